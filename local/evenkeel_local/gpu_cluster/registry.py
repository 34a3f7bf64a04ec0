"""Create, update, delete and evict objects: defaults, preconditions, finalizers and grace periods.

The HTTP server and the controllers both write through this module, so the same rules of deletion hold for both.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from evenkeel_local.gpu_cluster import (
    admission,
    catalogue,
    errors,
    object_schemas,
    schemas,
    server_side_apply,
    validation,
)
from evenkeel_local.gpu_cluster.catalogue import ResourceCatalogue
from evenkeel_local.gpu_cluster.errors import ApiError, Obj
from evenkeel_local.gpu_cluster.objects import condition_of, has_ended, is_deleting, is_true, labels_of, put
from evenkeel_local.gpu_cluster.selectors import matches_selector
from evenkeel_local.gpu_cluster.store import ResourceType, Store, StoreChange, clone, name_of, namespace_of
from evenkeel_local.gpu_cluster.validation import metadata as metadata_rules
from evenkeel_local.gpu_cluster.validation.causes import Cause

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"
SERVER_FIELDS = ("uid", "creationTimestamp", "resourceVersion", "generation", "deletionTimestamp", "selfLink")


def timestamp(at: datetime | None = None) -> str:
    """Return a time as Kubernetes' `Time` (whole seconds, UTC)."""
    return (at or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_timestamp(at: datetime | None = None) -> str:
    """Return a time as Kubernetes' `MicroTime`."""
    return (at or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def set_condition(status: Obj, kind: str, value: str, reason: str, message: str = "", extra: Obj | None = None) -> bool:
    """Set a condition of a status; return whether it changed. Its transition time changes with its value only."""
    conditions: list[Obj] = status.setdefault("conditions", [])
    now = timestamp()
    for condition in conditions:
        if condition["type"] == kind:
            is_same_status = condition.get("status") == value
            if is_same_status and condition.get("reason", "") == reason and condition.get("message", "") == message:
                return False
            condition.update(status=value, reason=reason, message=message, **(extra or {}))
            if not is_same_status:
                condition["lastTransitionTime"] = now
            return True
    new_condition = {"type": kind, "status": value, "reason": reason, "message": message, "lastTransitionTime": now}
    conditions.append(new_condition | (extra or {}))
    return True


class Registry:
    """The rules of the API on top of the store."""

    def __init__(self, store: Store, types: ResourceCatalogue) -> None:
        self.store = store
        self.types = types
        self.new_address: Callable[[], str] | None = None
        store.listen(self._follow_definitions)

    # Create

    def create(
        self, rt: ResourceType, namespace: str, obj: Obj, *, dry_run: bool = False, trusted: bool = False
    ) -> Obj:
        """Admit, default, validate and store a new object.

        With `trusted`, the caller is a part of this cluster, and the object keeps its status.

        Raises:
            ApiError: 404 without the namespace, 409 if the name is taken, 422 if the object is invalid.
        """
        obj = clone(obj) if trusted or rt.custom else object_schemas.without_nulls(obj)
        obj.setdefault("metadata", {})
        object_schemas.check_decodes(rt, obj)
        self._check_identity(rt, namespace, obj)
        self._set_namespace(rt, namespace, obj)
        self._set_identity(rt, obj)
        if rt.has_status and not trusted and rt.key != catalogue.NODES.key:  # a kubelet sends its node's first status
            obj.pop("status", None)
        if rt.custom:
            obj = self._apply_schema(rt, obj)
        self._fill_defaults(rt, obj)
        self._admit(rt, obj, trusted=trusted)
        if rt.key == catalogue.PODS.key and self.new_address is not None and not dry_run:
            # A pod has its address from creation on, so that the other pods of its job can resolve its name.
            address = self.new_address()
            obj["status"].update(podIP=address, podIPs=[{"ip": address}])
        self._validate(rt, obj, is_new=True)
        if not dry_run:
            return self.store.create(rt, obj)
        if self.store.find(rt.key, namespace_of(obj), name_of(obj)) is not None:
            raise errors.already_exists(rt.group, rt.plural, name_of(obj))
        return obj

    def _set_namespace(self, rt: ResourceType, namespace: str, obj: Obj) -> None:
        if not rt.namespaced:
            obj["metadata"].pop("namespace", None)
            return
        obj["metadata"]["namespace"] = namespace
        self._check_namespace(rt, namespace, obj)

    def _set_identity(self, rt: ResourceType, obj: Obj) -> None:
        """Set the fields of a new object's metadata that only the server sets, and generate its name if it has none."""
        metadata = obj["metadata"]
        for field in SERVER_FIELDS:
            metadata.pop(field, None)
        if not metadata.get("name"):
            if not metadata.get("generateName"):
                raise errors.invalid(rt.group, rt.kind, "", [metadata_rules.name_is_required()])
            metadata["name"] = admission.generated_name(metadata["generateName"])
        metadata["uid"] = str(uuid.uuid4())
        metadata["creationTimestamp"] = timestamp()
        if rt.key in admission.WITH_GENERATION or rt.custom:
            metadata["generation"] = 1

    def _fill_defaults(self, rt: ResourceType, obj: Obj) -> None:
        if rt.key in admission.NEEDS_SPEC:
            obj.setdefault("spec", {})
        if (fill := admission.DEFAULTS.get(rt.key)) is not None:
            fill(obj)

    def _admit(self, rt: ResourceType, obj: Obj, *, trusted: bool) -> None:
        """Let the admission plugins of a kind change a new object. A trusted caller's status stays."""
        status = obj.get("status")
        if (admit := admission.ADMISSION.get(rt.key)) is not None:
            admit(obj, self.store)
        if trusted and status is not None:
            obj["status"] = status
        if rt.key == catalogue.NODES.key and not trusted:
            admission.taint_new_node(obj)

    def _check_identity(self, rt: ResourceType, namespace: str, obj: Obj) -> None:
        if obj.get("kind") not in (None, "", rt.kind) or obj.get("apiVersion") not in (None, "", rt.api_version):
            raise errors.bad_request(
                f"{obj.get('kind')} in version {str(obj.get('apiVersion'))!r} cannot be handled as a {rt.kind}: "
                f"the API version in the data ({obj.get('apiVersion')}) does not match the expected API version "
                f"({rt.api_version})"
            )
        obj["apiVersion"], obj["kind"] = rt.api_version, rt.kind
        stated_namespace = obj["metadata"].get("namespace")
        if rt.namespaced and stated_namespace and stated_namespace != namespace:
            raise errors.bad_request(
                "the namespace of the provided object does not match the namespace sent on the request"
            )

    def _check_namespace(self, rt: ResourceType, namespace: str, obj: Obj) -> None:
        namespace_obj = self.store.find(catalogue.NAMESPACES.key, "", namespace)
        if namespace_obj is None:
            raise errors.not_found("", "namespaces", namespace)
        if is_deleting(namespace_obj):
            denial = errors.forbidden(
                rt.group,
                rt.plural,
                str(obj["metadata"].get("name") or ""),
                f"unable to create new content in namespace {namespace} because it is being terminated",
            )
            why, field = f"namespace {namespace} is being terminated", "metadata.namespace"
            denial.details = (denial.details or {}) | {
                "causes": [{"reason": "NamespaceTerminating", "message": why, "field": field}]
            }
            raise denial

    def _apply_schema(self, rt: ResourceType, obj: Obj) -> Obj:
        """Return a custom object with its schema's defaults and without unknown fields."""
        if rt.schema is None:
            return obj
        return dict(schemas.fill_defaults(rt.schema, schemas.prune(rt.schema, obj)))

    def _validate(self, rt: ResourceType, obj: Obj, *, is_new: bool = False) -> None:
        causes = list(metadata_rules.check_metadata(rt, obj))
        if rt.schema is not None:
            causes.extend(schemas.check_value(rt.schema, obj))
        check = validation.CHECKS.get(rt.key)
        if check is not None and (is_new or rt.key not in validation.JUDGED_ONCE):
            causes.extend(check(obj))
        self._refuse(rt, obj, causes)

    def _refuse(self, rt: ResourceType, obj: Obj, causes: Iterable[Cause]) -> None:
        if reasons := list(causes):
            raise errors.invalid(rt.group, rt.kind, name_of(obj), reasons)

    # Update

    def update(
        self,
        rt: ResourceType,
        obj: Obj,
        *,
        subresource: str = "",
        dry_run: bool = False,
    ) -> Obj:
        """Store a new version of an object. Only a write to the subresource `status` changes the status.

        Raises:
            ApiError: 404, 409 for a stale `metadata.resourceVersion`, 422 if the new object is invalid.
        """
        old = self.store.get(rt, namespace_of(obj), name_of(obj))
        self._check_version(rt, obj, old)
        self._refuse(rt, obj, metadata_rules.check_metadata_update(obj["metadata"], old["metadata"]))
        new: Obj = clone(obj) if rt.custom else object_schemas.without_nulls(obj)
        object_schemas.check_decodes(rt, new)
        new["apiVersion"], new["kind"] = old["apiVersion"], old["kind"]
        if rt.custom:
            new = self._apply_schema(rt, new)
        _keep_fields(new["metadata"], old["metadata"], (*SERVER_FIELDS, "deletionGracePeriodSeconds"))
        if subresource == "status":
            new = self._with_new_status(rt, new, old)
        elif rt.has_status:
            _keep_fields(new, old, ("status",))
        if subresource == "":
            self._prepare_update(rt, new, old)
        return new if dry_run else self._write(rt, new, old)

    def _with_new_status(self, rt: ResourceType, new: Obj, old: Obj) -> Obj:
        """Return the old object with the status of the new one.

        Raises:
            ApiError: 422 if the status is invalid.
        """
        metadata, old_metadata = new["metadata"], old["metadata"]
        document: Obj = clone(old)
        document["status"] = new.get("status") or {}
        put(document["metadata"], "managedFields", metadata.get("managedFields") or old_metadata.get("managedFields"))
        if rt.key in (catalogue.NODES.key, catalogue.PODS.key):
            # The server lets a status write of these kinds change labels and annotations: kubelets rely on it.
            for field in ("labels", "annotations"):
                if field in metadata:
                    document["metadata"][field] = metadata[field]
        if (check := validation.STATUS_CHECKS.get(rt.key)) is not None:
            self._refuse(rt, document, check(document))
        return document

    def _prepare_update(self, rt: ResourceType, new: Obj, old: Obj) -> None:
        """Set defaults and the generation of a new version of an object, and validate it.

        Raises:
            ApiError: 422 if the object or the change is invalid.
        """
        self._fill_defaults(rt, new)
        if (keep := admission.KEPT.get(rt.key)) is not None:
            keep(new, old)
        self._validate(rt, new)
        check = validation.UPDATE_CHECKS.get(rt.key)
        self._refuse(rt, new, check(new, old) if check is not None else ())
        self._raise_generation(rt, new, old)
        old_metadata = old["metadata"]
        if rt.key == catalogue.DEPLOYMENTS.key and new["metadata"].get("annotations") != old_metadata.get(
            "annotations"
        ):
            # A Deployment copies its annotations to its ReplicaSet: they are part of its spec.
            new["metadata"]["generation"] = int(old_metadata.get("generation") or 1) + 1

    def _check_version(self, rt: ResourceType, obj: Obj, old: Obj) -> None:
        stated_metadata, stored_metadata = obj["metadata"], old["metadata"]
        if (
            stated_metadata.get("resourceVersion")
            and stated_metadata["resourceVersion"] != stored_metadata["resourceVersion"]
        ):
            raise errors.conflict(rt.group, rt.plural, name_of(obj))

    def check_replacement(self, rt: ResourceType, obj: Obj, old: Obj) -> None:
        """Check the preconditions of a replacement: the UID if the client sent one, and a version where it is required.

        Raises:
            ApiError: 409 for another object of the same name, 422 if a required version is missing.
        """
        stated_metadata, stored_metadata = obj["metadata"], old["metadata"]
        if stated_metadata.get("uid") and stated_metadata["uid"] != stored_metadata["uid"]:
            key = "/".join(filter(None, ("/registry", rt.plural, namespace_of(old), name_of(old))))
            message = (
                f"StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: "
                f"Precondition failed: UID in precondition: {stated_metadata['uid']}, UID in object meta: "
                f"{stored_metadata['uid']}"
            )
            raise errors.conflict(rt.group, rt.plural, name_of(old), message)
        if not stated_metadata.get("resourceVersion") and (rt.custom or rt.key in admission.NEEDS_VERSION):
            message = "Invalid value: 0x0: must be specified for an update"
            causes = [("FieldValueInvalid", "metadata.resourceVersion", message)]
            raise errors.invalid(rt.group, rt.plural, name_of(old), causes)

    def apply(self, config: Obj, manager: str, *, force: bool = True) -> Obj:
        """Create or update an object by server-side apply.

        Raises:
            ApiError: 400 for a kind that is not served, 409 for a field that another manager owns, 422.
        """
        rt = self.types.by_kind(str(config.get("apiVersion")), str(config.get("kind")))
        if rt is None:
            raise errors.bad_request(
                f"no matches for kind {config.get('kind')!r} in version {config.get('apiVersion')!r}"
            )
        metadata = config.get("metadata") or {}
        namespace = str(metadata.get("namespace") or "default") if rt.namespaced else ""
        config = {**config, "metadata": {**metadata, **({"namespace": namespace} if namespace else {})}}
        old = self.store.find(rt.key, namespace, str(metadata.get("name")))
        if old is None:
            new = clone(config)
            server_side_apply.record_ownership(rt, new, config, manager, "")
            return self.create(rt, namespace, new)
        return self.update(rt, server_side_apply.apply_configuration(rt, old, config, manager, force, ""))

    def _raise_generation(self, rt: ResourceType, new: Obj, old: Obj) -> None:
        if rt.key in admission.WITH_GENERATION or rt.custom:
            outside = ("metadata", "status", "apiVersion", "kind")
            body = {key: value for key, value in new.items() if key not in outside}
            if body != {key: value for key, value in old.items() if key not in outside}:
                new["metadata"]["generation"] = int(old["metadata"].get("generation") or 1) + 1

    def _write(self, rt: ResourceType, new: Obj, old: Obj) -> Obj:
        """Store an update, or remove the object if its deletion waited for this update."""
        metadata = new["metadata"]
        holds = old["metadata"].get("finalizers")
        if rt.key == catalogue.NAMESPACES.key:
            holds = holds or old["spec"].get("finalizers")
        awaits_finalizers = metadata.get("deletionTimestamp") and holds
        if awaits_finalizers and not metadata.get("finalizers") and self._can_be_removed(rt, new):
            return self.store.delete(rt, namespace_of(new), name_of(new), new)
        return self.store.update(rt, new)

    def _can_be_removed(self, rt: ResourceType, obj: Obj) -> bool:
        if rt.key == catalogue.NAMESPACES.key:
            return not obj["spec"].get("finalizers")
        return not obj["metadata"].get("deletionGracePeriodSeconds")

    def mutate(self, rt: ResourceType, namespace: str, name: str, change: Callable[[Obj], Any]) -> Obj | None:
        """Change an object in place, as a controller of this cluster; return None if it is gone.

        Nothing else writes meanwhile, because nothing here awaits: there is no conflict.
        """
        old = self.store.find(rt.key, namespace if rt.namespaced else "", name)
        if old is None:
            return None
        new = clone(old)
        change(new)
        self._raise_generation(rt, new, old)
        return self._write(rt, new, old)

    def change(self, obj: Obj, change: Callable[[Obj], Any]) -> Obj | None:
        """Change a stored object in place, as `mutate` does."""
        rt = self.types.by_kind(obj["apiVersion"], obj["kind"])
        return self.mutate(rt, namespace_of(obj), name_of(obj), change) if rt is not None else None

    # Delete

    def remove(self, obj: Obj, options: Obj | None = None) -> tuple[Obj, bool]:
        """Delete a stored object of a kind that is served, as `delete` does."""
        rt = self.types.by_kind(obj["apiVersion"], obj["kind"])
        assert rt is not None, obj["kind"]
        return self.delete(rt, namespace_of(obj), name_of(obj), options)

    def delete(
        self,
        rt: ResourceType,
        namespace: str,
        name: str,
        options: Obj | None = None,
        *,
        dry_run: bool = False,
    ) -> tuple[Obj, bool]:
        """Start or finish the deletion of an object; return its last state and whether it is gone.

        Raises:
            ApiError: 404, or 409 if a precondition of the options does not hold.
        """
        options = options or {}
        old = self.store.get(rt, namespace, name)
        self._check_preconditions(rt, old, options.get("preconditions") or {})
        new = clone(old)
        metadata = new["metadata"]
        finalizers: list[str] = metadata.get("finalizers") or []
        propagation_policy = options.get("propagationPolicy") or self._orphan_dependents_policy(options)
        policy = propagation_policy or self._policy_of(rt, finalizers)
        if propagation_policy or not metadata.get("deletionTimestamp"):
            finalizers = [finalizer for finalizer in finalizers if finalizer not in (FOREGROUND, ORPHAN)]
            finalizers += {"Foreground": [FOREGROUND], "Orphan": [ORPHAN]}.get(policy, [])
        put(metadata, "finalizers", finalizers)
        grace = self._grace_seconds(rt, old, options)
        waits = bool(finalizers) or grace > 0 or (rt.key == catalogue.NAMESPACES.key and new["spec"].get("finalizers"))
        if not waits:
            return (old, True) if dry_run else (self.store.delete(rt, namespace_of(old), name), True)
        self._mark_for_deletion(new, grace, rt)
        if rt.key == catalogue.NAMESPACES.key:
            new["status"] = {**(new.get("status") or {}), "phase": "Terminating"}
        if dry_run:
            return new, False
        return self.store.update(rt, new), False

    def _orphan_dependents_policy(self, options: Obj) -> str:
        orphans = options.get("orphanDependents")
        return "" if orphans is None else ("Orphan" if orphans else "Background")

    def _policy_of(self, rt: ResourceType, finalizers: list[str]) -> str:
        """Return the propagation policy if the request has none: from the object's finalizers, else from its kind."""
        for finalizer, policy in ((ORPHAN, "Orphan"), (FOREGROUND, "Foreground")):
            if finalizer in finalizers:
                return policy
        return "Orphan" if rt.key in admission.ORPHANING else "Background"

    def _mark_for_deletion(self, new: Obj, grace: int, rt: ResourceType) -> None:
        metadata = new["metadata"]
        is_first = not metadata.get("deletionTimestamp")
        if is_first or grace < int(metadata.get("deletionGracePeriodSeconds") or 0):
            metadata["deletionTimestamp"] = timestamp(datetime.now(UTC) + timedelta(seconds=grace))
            metadata["deletionGracePeriodSeconds"] = grace
        if is_first and "generation" in metadata:
            metadata["generation"] += 1

    def _grace_seconds(self, rt: ResourceType, obj: Obj, options: Obj) -> int:
        """Return the grace period of a pod. Pods that do not run, and other kinds, have none."""
        if rt.key != catalogue.PODS.key:
            return 0
        seconds = options.get("gracePeriodSeconds")
        if seconds is None:
            seconds = obj["spec"].get("terminationGracePeriodSeconds", 30)
        if not obj["spec"].get("nodeName") or has_ended(obj):
            return 0
        return int(seconds) if int(seconds) >= 0 else 1  # a negative time means a second

    def _check_preconditions(self, rt: ResourceType, obj: Obj, preconditions: Obj) -> None:
        metadata = obj["metadata"]
        expected_uid = preconditions.get("uid")
        if expected_uid and expected_uid != metadata["uid"]:
            text = (
                f"the UID in the precondition ({expected_uid}) does not match the UID in record ({metadata['uid']}). "
            )
            text += "The object might have been deleted and then recreated"
            raise errors.conflict(rt.group, rt.plural, name_of(obj), text)
        version = preconditions.get("resourceVersion")
        if version and version != metadata["resourceVersion"]:
            text = f"the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record "
            text += f"({metadata['resourceVersion']}). The object might have been modified"
            raise errors.conflict(rt.group, rt.plural, name_of(obj), text)

    # Evict

    def evict(self, namespace: str, name: str, eviction: Obj, *, dry_run: bool = False) -> None:
        """Delete a pod if its disruption budget allows it.

        Raises:
            ApiError: 400 for another kind or name, 403 in a terminating namespace, 404 without the pod, 429 for a used
                budget, 500 for two budgets.
        """
        kind, version = eviction.get("kind") or "Eviction", eviction.get("apiVersion") or "policy/v1"
        if kind != "Eviction":
            raise errors.bad_request(
                f'{kind} in version "{version.rpartition("/")[2]}" cannot be handled as a Eviction: '
                f'no kind "{kind}" is registered for version "{version}"'
            )
        self._check_namespace(catalogue.PODS, namespace, {"metadata": {"name": name}})
        pod = self.store.get(catalogue.PODS, namespace, name)
        if ((eviction.get("metadata") or {}).get("name") or name) != name:
            raise errors.bad_request("name in URL does not match name in Eviction object")
        options = clone(eviction.get("deleteOptions") or {})
        dry_run = dry_run or bool(options.get("dryRun"))
        if not (has_ended(pod) or is_deleting(pod) or pod["status"].get("phase") == "Pending"):
            self._spend_budget(pod, dry_run)
        if not dry_run:
            self.change(pod, lambda obj: mark_disrupted(obj, "EvictionByEvictionAPI", "Eviction API: evicting"))
            self.delete(catalogue.PODS, namespace, name, options)

    def _spend_budget(self, pod: Obj, dry_run: bool) -> None:
        labels = labels_of(pod)
        covering_budgets = [
            budget
            for budget in self.store.all(catalogue.BUDGETS.key, namespace_of(pod))
            if matches_selector((budget.get("spec") or {}).get("selector"), labels)
        ]
        if not covering_budgets:
            return
        if len(covering_budgets) > 1:
            message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
            raise ApiError(500, "", message)
        budget = covering_budgets[0]
        status = budget.get("status") or {}
        healthy, desired_healthy = int(status.get("currentHealthy") or 0), int(status.get("desiredHealthy") or 0)
        if not is_true(pod, "Ready") and (
            budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow" or healthy >= desired_healthy > 0
        ):
            return  # a pod that is not ready does not count against the budget
        if int(status.get("observedGeneration") or 0) < int(budget["metadata"].get("generation") or 0):
            message = f"The disruption budget {name_of(budget)} is still being processed by the server."
            raise _disruption_budget_error(message, retry_after=10)
        if int(status.get("disruptionsAllowed") or 0) <= 0:
            raise _disruption_budget_error(
                f"The disruption budget {name_of(budget)} needs {desired_healthy} healthy pods and has "
                f"{healthy} currently"
            )
        if not dry_run:
            budget_left = int(status["disruptionsAllowed"]) - 1
            self.change(budget, lambda obj: obj["status"].update(disruptionsAllowed=budget_left))

    # Events

    def record(
        self, about: Obj, reason: str, message: str, kind: str = "Normal", source: str = "evenkeel-local"
    ) -> None:
        """Record an Event about an object, or increase the count of an equal Event."""
        namespace = namespace_of(about) or "default"
        involved_object = {key: about[key] for key in ("kind", "apiVersion")}
        involved_object |= {
            key: about["metadata"][key] for key in ("name", "uid", "namespace") if about["metadata"].get(key)
        }
        now = timestamp()
        name = f"{name_of(about)}.{abs(hash((involved_object['uid'], reason, message))):016x}"
        recorded_event = self.store.find(catalogue.EVENTS.key, namespace, name)
        if recorded_event is not None:
            count = int(recorded_event.get("count") or 1) + 1
            self.change(recorded_event, lambda event: event.update(count=count, lastTimestamp=now))
            return
        if self.store.find(catalogue.NAMESPACES.key, "", namespace) is None:
            return
        self.store.create(
            catalogue.EVENTS,
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": name, "namespace": namespace, "uid": str(uuid.uuid4()), "creationTimestamp": now},
                "involvedObject": involved_object,
                "reason": reason,
                "message": message,
                "type": kind,
                "source": {"component": source},
                "reportingComponent": source,
                "reportingInstance": "",
                "firstTimestamp": now,
                "lastTimestamp": now,
                "count": 1,
                "eventTime": None,
            },
        )

    # Custom resource definitions

    def _follow_definitions(self, change: StoreChange) -> None:
        if change.key != catalogue.DEFINITIONS.key:
            return
        if change.kind == "DELETED":
            self.types.withdraw(change.new)
            return
        self.types.define(change.new)
        if condition_of(change.new, "Established") is None:
            self.change(change.new, _set_established)


def _keep_fields(new: Obj, old: Obj, fields: Iterable[str]) -> None:
    """Give the new version of a part the old version's fields, whether they are set or absent."""
    for field in fields:
        if field in old:
            new[field] = old[field]
        else:
            new.pop(field, None)


def _set_established(definition: Obj) -> None:
    status: Obj = definition.setdefault("status", {})
    set_condition(status, "NamesAccepted", "True", "NoConflicts", "no conflicts found")
    set_condition(status, "Established", "True", "InitialNamesAccepted", "the initial names have been accepted")
    status["acceptedNames"] = clone(definition["spec"]["names"])
    status["storedVersions"] = [v["name"] for v in definition["spec"]["versions"] if v.get("storage")]


def _disruption_budget_error(why: str, retry_after: int | None = None) -> ApiError:
    details: Obj = {"causes": [{"reason": "DisruptionBudget", "message": why}]}
    if retry_after is not None:
        details["retryAfterSeconds"] = retry_after
    message = "Cannot evict pod as it would violate the pod's disruption budget."
    return errors.too_many_requests(message, details, retry_after)


def mark_disrupted(pod: Obj, reason: str, message: str) -> None:
    """Set the condition DisruptionTarget of a pod, as each component does before it removes a running pod."""
    set_condition(pod.setdefault("status", {}), "DisruptionTarget", "True", reason, message)
