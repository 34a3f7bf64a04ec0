"""What create, update, delete and evict mean: defaults, preconditions, finalizers, grace.

The store below keeps bytes and versions; the HTTP server above reads requests. The controllers use this module
directly, so the rules of deletion hold for them too.
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
from evenkeel_local.gpu_cluster.selectors import matches_selector
from evenkeel_local.gpu_cluster.store import ResourceType, Store, StoreChange, clone, name_of, namespace_of
from evenkeel_local.gpu_cluster.validation import metadata as metadata_rules
from evenkeel_local.gpu_cluster.validation.causes import Cause

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"
SERVER_FIELDS = ("uid", "creationTimestamp", "resourceVersion", "generation", "deletionTimestamp", "selfLink")


def timestamp(at: datetime | None = None) -> str:
    """Return a moment as Kubernetes' `Time` (whole seconds, UTC)."""
    return (at or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_timestamp(at: datetime | None = None) -> str:
    """Return a moment as Kubernetes' `MicroTime`."""
    return (at or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def set_condition(status: Obj, kind: str, value: str, reason: str, message: str = "", extra: Obj | None = None) -> bool:
    """Put a condition in a status and return whether that changed it; its time moves only when its value does."""
    conditions: list[Obj] = status.setdefault("conditions", [])
    now = timestamp()
    for condition in conditions:
        if condition["type"] == kind:
            same = condition.get("status") == value
            if same and condition.get("reason", "") == reason and condition.get("message", "") == message:
                return False
            condition.update(status=value, reason=reason, message=message, **(extra or {}))
            if not same:
                condition["lastTransitionTime"] = now
            return True
    conditions.append(
        {
            "type": kind,
            "status": value,
            "reason": reason,
            "message": message,
            "lastTransitionTime": now,
            **(extra or {}),
        }
    )
    return True


def condition_of(obj: Obj, kind: str) -> Obj | None:
    """Return an object's condition of one type, or nothing."""
    for condition in (obj.get("status") or {}).get("conditions") or ():
        if condition["type"] == kind:
            return dict(condition)
    return None


class Registry:
    """The rules of the API over the store."""

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

        With `trusted` the caller is a part of this cluster, and the object keeps the status it brings.

        Raises:
            ApiError: 404 without the namespace, 409 when the name is taken, 422 when the object is invalid.
        """
        obj = clone(obj) if trusted or rt.custom else object_schemas.without_nulls(obj)
        metadata = obj.setdefault("metadata", {})
        object_schemas.check(rt, obj)
        self._check_identity(rt, namespace, obj)
        if rt.namespaced:
            metadata["namespace"] = namespace
            self._check_namespace(rt, namespace, obj)
        else:
            metadata.pop("namespace", None)
        for field in SERVER_FIELDS:
            metadata.pop(field, None)
        if not metadata.get("name"):
            if not metadata.get("generateName"):
                raise errors.invalid(rt.group, rt.kind, "", [metadata_rules.name_is_required()])
            metadata["name"] = admission.generated_name(metadata["generateName"])
        metadata["uid"] = str(uuid.uuid4())
        metadata["creationTimestamp"] = timestamp()
        if rt.has_status and not trusted and rt.key != catalogue.NODES.key:  # kubelets bring their node's first status
            obj.pop("status", None)
        if rt.key in admission.NEEDS_SPEC:
            obj.setdefault("spec", {})
        if rt.key in admission.WITH_GENERATION or rt.custom:
            metadata["generation"] = 1
        if rt.custom:
            obj = self._apply_schema(rt, obj)
            metadata = obj["metadata"]
        if (fill := admission.DEFAULTS.get(rt.key)) is not None:
            fill(obj)
        admit = admission.ADMISSION.get(rt.key)
        kept = obj.get("status")
        if admit is not None:
            admit(obj, self.store)
        if trusted and kept is not None:
            obj["status"] = kept
        if rt.key == catalogue.PODS.key and self.new_address is not None and not dry_run:
            # A pod has its address from creation on, so that the others of its job can be told where it will be.
            address = self.new_address()
            obj["status"].update(podIP=address, podIPs=[{"ip": address}])
        if rt.key == catalogue.NODES.key and not trusted:
            admission.taint_new_node(obj)
        self._validate(rt, obj, is_new=True)
        if dry_run:
            if self.store.find(rt.key, namespace_of(obj), name_of(obj)) is not None:
                raise errors.already_exists(rt.group, rt.plural, name_of(obj))
            return obj
        return self.store.create(rt, obj)

    def _check_identity(self, rt: ResourceType, namespace: str, obj: Obj) -> None:
        if obj.get("kind") not in (None, "", rt.kind) or obj.get("apiVersion") not in (None, "", rt.api_version):
            raise errors.bad_request(
                f"{obj.get('kind')} in version {str(obj.get('apiVersion'))!r} cannot be handled as a {rt.kind}: "
                f"the API version in the data ({obj.get('apiVersion')}) does not match the expected API version "
                f"({rt.api_version})"
            )
        obj["apiVersion"], obj["kind"] = rt.api_version, rt.kind
        stated = obj["metadata"].get("namespace")
        if rt.namespaced and stated and stated != namespace:
            raise errors.bad_request(
                "the namespace of the provided object does not match the namespace sent on the request"
            )

    def _check_namespace(self, rt: ResourceType, namespace: str, obj: Obj) -> None:
        found = self.store.find(catalogue.NAMESPACES.key, "", namespace)
        if found is None:
            raise errors.not_found("", "namespaces", namespace)
        if found["metadata"].get("deletionTimestamp"):
            denied = errors.forbidden(
                rt.group,
                rt.plural,
                str(obj["metadata"].get("name") or ""),
                f"unable to create new content in namespace {namespace} because it is being terminated",
            )
            details = denied.details or {}
            details["causes"] = [
                {
                    "reason": "NamespaceTerminating",
                    "message": f"namespace {namespace} is being terminated",
                    "field": "metadata.namespace",
                }
            ]
            raise denied

    def _apply_schema(self, rt: ResourceType, obj: Obj) -> Obj:
        """Return a custom object with its schema's defaults and without what its schema does not know."""
        if rt.schema is None:
            return obj
        return dict(schemas.fill_defaults(rt.schema, schemas.prune(rt.schema, obj)))

    def _validate(self, rt: ResourceType, obj: Obj, *, is_new: bool = False) -> None:
        causes = list(metadata_rules.check_metadata(rt, obj))
        if rt.schema is not None:
            causes.extend(schemas.check(rt.schema, obj))
        check = validation.CHECKS.get(rt.key)
        if check is not None and (is_new or rt.key not in validation.JUDGED_ONCE):
            causes.extend(check(obj))
        self._refuse(rt, obj, causes)

    def _refuse(self, rt: ResourceType, obj: Obj, causes: Iterable[Cause]) -> None:
        if found := list(causes):
            raise errors.invalid(rt.group, rt.kind, name_of(obj), found)

    # Update

    def update(
        self,
        rt: ResourceType,
        obj: Obj,
        *,
        subresource: str = "",
        dry_run: bool = False,
    ) -> Obj:
        """Store a new version of an object; a stale `metadata.resourceVersion` is a conflict.

        A write to the object leaves its status alone, a write to `status` changes nothing else.

        Raises:
            ApiError: 404, 409 on a stale version, 422 when the new object is invalid or has another UID.
        """
        old = self.store.get(rt, namespace_of(obj), name_of(obj))
        self._check_version(rt, obj, old)
        self._refuse(rt, obj, metadata_rules.check_metadata_update(obj["metadata"], old["metadata"]))
        new: Obj = clone(obj) if rt.custom else object_schemas.without_nulls(obj)
        object_schemas.check(rt, new)
        new["apiVersion"], new["kind"] = old["apiVersion"], old["kind"]
        if rt.custom:
            new = self._apply_schema(rt, new)
        metadata, before = new["metadata"], old["metadata"]
        for field in (*SERVER_FIELDS, "deletionGracePeriodSeconds"):
            if field in before:
                metadata[field] = before[field]
            else:
                metadata.pop(field, None)
        if subresource == "status":
            kept = clone(old)
            kept["status"] = new.get("status") or {}
            kept["metadata"]["managedFields"] = metadata.get("managedFields") or before.get("managedFields") or []
            if not kept["metadata"]["managedFields"]:
                kept["metadata"].pop("managedFields")
            if rt.key in (catalogue.NODES.key, catalogue.PODS.key):
                # The server lets a status write of these two change labels and annotations, which kubelets rely on.
                for field in ("labels", "annotations"):
                    if field in metadata:
                        kept["metadata"][field] = metadata[field]
            new = kept
        elif rt.has_status:
            if "status" in old:
                new["status"] = old["status"]
            else:
                new.pop("status", None)
        if subresource == "":
            self._settle(rt, new, old)
        elif subresource == "status" and (check := validation.STATUS_CHECKS.get(rt.key)) is not None:
            self._refuse(rt, new, check(new))
        if dry_run:
            return new
        return self._write(rt, new, old)

    def _settle(self, rt: ResourceType, new: Obj, old: Obj) -> None:
        """Fill up, validate and number a new version of an object.

        Raises:
            ApiError: 422 when the object, or the step from the stored one to it, is invalid.
        """
        if rt.key in admission.NEEDS_SPEC:
            new.setdefault("spec", {})
        if (fill := admission.DEFAULTS.get(rt.key)) is not None:
            fill(new)
        if (keep := admission.KEPT.get(rt.key)) is not None:
            keep(new, old)
        self._validate(rt, new)
        check = validation.UPDATE_CHECKS.get(rt.key)
        self._refuse(rt, new, check(new, old) if check is not None else ())
        self._raise_generation(rt, new, old)
        before = old["metadata"]
        if rt.key == catalogue.DEPLOYMENTS.key and new["metadata"].get("annotations") != before.get("annotations"):
            # A Deployment hands its annotations down to its ReplicaSet: they are part of what was asked for.
            new["metadata"]["generation"] = int(before.get("generation") or 1) + 1

    def _check_version(self, rt: ResourceType, obj: Obj, old: Obj) -> None:
        stated, stored = obj["metadata"], old["metadata"]
        if stated.get("resourceVersion") and stated["resourceVersion"] != stored["resourceVersion"]:
            raise errors.conflict(rt.group, rt.plural, name_of(obj))

    def check_replacement(self, rt: ResourceType, obj: Obj, old: Obj) -> None:
        """Hold a client that replaces an object to the one that it means: a stated UID is a precondition.

        Raises:
            ApiError: 409 for another object of the same name, 422 without a version where one must be stated.
        """
        stated, stored = obj["metadata"], old["metadata"]
        if stated.get("uid") and stated["uid"] != stored["uid"]:
            key = "/".join(filter(None, ("/registry", rt.plural, namespace_of(old), name_of(old))))
            told = (
                f"StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: "
                f"Precondition failed: UID in precondition: {stated['uid']}, UID in object meta: {stored['uid']}"
            )
            raise errors.conflict(rt.group, rt.plural, name_of(old), told)
        if not stated.get("resourceVersion") and (rt.custom or rt.key in admission.NEEDS_VERSION):
            told = "Invalid value: 0x0: must be specified for an update"
            causes = [("FieldValueInvalid", "metadata.resourceVersion", told)]
            raise errors.invalid(rt.group, rt.plural, name_of(old), causes)

    def apply(self, config: Obj, manager: str, *, force: bool = True) -> Obj:
        """Create or update an object by server-side apply.

        Raises:
            ApiError: 404 for a kind that is not served, 409 for a field that another manager owns, 422.
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
            server_side_apply.own(rt, new, config, manager, "")
            return self.create(rt, namespace, new)
        return self.update(rt, server_side_apply.applied(rt, old, config, manager, force, ""))

    def _raise_generation(self, rt: ResourceType, new: Obj, old: Obj) -> None:
        if rt.key in admission.WITH_GENERATION or rt.custom:
            outside = ("metadata", "status", "apiVersion", "kind")
            body = {key: value for key, value in new.items() if key not in outside}
            if body != {key: value for key, value in old.items() if key not in outside}:
                new["metadata"]["generation"] = int(old["metadata"].get("generation") or 1) + 1

    def _write(self, rt: ResourceType, new: Obj, old: Obj) -> Obj:
        """Store an update, or remove the object when its deletion waited for just this."""
        metadata = new["metadata"]
        holds = old["metadata"].get("finalizers")
        if rt.key == catalogue.NAMESPACES.key:
            holds = holds or old["spec"].get("finalizers")
        waited = metadata.get("deletionTimestamp") and holds
        if waited and not metadata.get("finalizers") and self._can_be_removed(rt, new):
            return self.store.delete(rt, namespace_of(new), name_of(new), new)
        return self.store.update(rt, new)

    def _can_be_removed(self, rt: ResourceType, obj: Obj) -> bool:
        if rt.key == catalogue.NAMESPACES.key:
            return not obj["spec"].get("finalizers")
        return not obj["metadata"].get("deletionGracePeriodSeconds")

    def mutate(self, rt: ResourceType, namespace: str, name: str, change: Callable[[Obj], None]) -> Obj | None:
        """Change an object in place as a controller of this cluster; nothing happens when it is gone.

        Nothing else can write in between (the event loop is not given up), so this cannot conflict.
        """
        old = self.store.find(rt.key, namespace if rt.namespaced else "", name)
        if old is None:
            return None
        new = clone(old)
        change(new)
        self._raise_generation(rt, new, old)
        return self._write(rt, new, old)

    # Delete

    def delete(
        self,
        rt: ResourceType,
        namespace: str,
        name: str,
        options: Obj | None = None,
        *,
        dry_run: bool = False,
    ) -> tuple[Obj, bool]:
        """Begin or finish the deletion of an object; return its last state and whether it is gone.

        Raises:
            ApiError: 404, or 409 when a precondition of the options does not hold.
        """
        options = options or {}
        old = self.store.get(rt, namespace, name)
        self._check_preconditions(rt, old, options.get("preconditions") or {})
        new = clone(old)
        metadata = new["metadata"]
        finalizers: list[str] = metadata.get("finalizers") or []
        stated = options.get("propagationPolicy") or self._orphan_dependents_policy(options)
        policy = stated or self._policy_of(rt, finalizers)
        if stated or not metadata.get("deletionTimestamp"):
            finalizers = [finalizer for finalizer in finalizers if finalizer not in (FOREGROUND, ORPHAN)]
            finalizers += {"Foreground": [FOREGROUND], "Orphan": [ORPHAN]}.get(policy, [])
        if finalizers:
            metadata["finalizers"] = finalizers
        else:
            metadata.pop("finalizers", None)
        grace = self._grace(rt, old, options)
        waits = bool(finalizers) or grace > 0 or (rt.key == catalogue.NAMESPACES.key and new["spec"].get("finalizers"))
        if not waits:
            return (old, True) if dry_run else (self.store.delete(rt, namespace_of(old), name), True)
        self._mark(new, grace, rt)
        if rt.key == catalogue.NAMESPACES.key:
            new["status"] = {**(new.get("status") or {}), "phase": "Terminating"}
        if dry_run:
            return new, False
        return self.store.update(rt, new), False

    def _orphan_dependents_policy(self, options: Obj) -> str:
        orphans = options.get("orphanDependents")
        return "" if orphans is None else ("Orphan" if orphans else "Background")

    def _policy_of(self, rt: ResourceType, finalizers: list[str]) -> str:
        """Return what becomes of the dependants where the deletion says nothing: the object's word, then its kind's."""
        for finalizer, policy in ((ORPHAN, "Orphan"), (FOREGROUND, "Foreground")):
            if finalizer in finalizers:
                return policy
        return "Orphan" if rt.key in admission.ORPHANING else "Background"

    def _mark(self, new: Obj, grace: int, rt: ResourceType) -> None:
        metadata = new["metadata"]
        if not metadata.get("deletionTimestamp"):
            metadata["deletionTimestamp"] = timestamp(datetime.now(UTC) + timedelta(seconds=grace))
            metadata["deletionGracePeriodSeconds"] = grace
            if "generation" in metadata:
                metadata["generation"] += 1
        elif grace < int(metadata.get("deletionGracePeriodSeconds") or 0):
            metadata["deletionTimestamp"] = timestamp(datetime.now(UTC) + timedelta(seconds=grace))
            metadata["deletionGracePeriodSeconds"] = grace

    def _grace(self, rt: ResourceType, obj: Obj, options: Obj) -> int:
        """Return how long a pod may take to end; everything else, and a pod that nothing runs, goes at once."""
        if rt.key != catalogue.PODS.key:
            return 0
        asked = options.get("gracePeriodSeconds")
        if asked is None:
            asked = obj["spec"].get("terminationGracePeriodSeconds", 30)
        if not obj["spec"].get("nodeName") or obj["status"].get("phase") in ("Succeeded", "Failed"):
            return 0
        return int(asked) if int(asked) >= 0 else 1  # a negative time means a second

    def _check_preconditions(self, rt: ResourceType, obj: Obj, preconditions: Obj) -> None:
        metadata = obj["metadata"]
        wanted = preconditions.get("uid")
        if wanted and wanted != metadata["uid"]:
            raise errors.conflict(
                rt.group,
                rt.plural,
                name_of(obj),
                f"the UID in the precondition ({wanted}) does not match the UID in record ({metadata['uid']}). "
                "The object might have been deleted and then recreated",
            )
        version = preconditions.get("resourceVersion")
        if version and version != metadata["resourceVersion"]:
            raise errors.conflict(
                rt.group,
                rt.plural,
                name_of(obj),
                f"the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record "
                f"({metadata['resourceVersion']}). The object might have been modified",
            )

    # Evict

    def evict(self, namespace: str, name: str, eviction: Obj, *, dry_run: bool = False) -> None:
        """Delete a pod if the disruption budgets that cover it allow that.

        Raises:
            ApiError: 400 when the body is of another kind or names another pod, 403 in a namespace that is being
                deleted, 404 without the pod, 429 when a budget blocks it, 500 when two budgets cover it.
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
        exempt = pod["status"].get("phase") in ("Pending", "Succeeded", "Failed") or pod["metadata"].get(
            "deletionTimestamp"
        )
        if not exempt:
            self._spend_budget(pod, dry_run)
        if not dry_run:
            set_disrupted = "EvictionByEvictionAPI"
            self.mutate(
                catalogue.PODS,
                namespace,
                name,
                lambda obj: mark_disrupted(obj, set_disrupted, "Eviction API: evicting"),
            )
            self.delete(catalogue.PODS, namespace, name, options)

    def _spend_budget(self, pod: Obj, dry_run: bool) -> None:
        labels = pod["metadata"].get("labels") or {}
        covering = [
            budget
            for budget in self.store.all(catalogue.BUDGETS.key, namespace_of(pod))
            if matches_selector((budget.get("spec") or {}).get("selector"), labels)
        ]
        if not covering:
            return
        if len(covering) > 1:
            raise ApiError(
                500,
                "",
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
            )
        budget = covering[0]
        status = budget.get("status") or {}
        healthy, desired = int(status.get("currentHealthy") or 0), int(status.get("desiredHealthy") or 0)
        if (condition_of(pod, "Ready") or {}).get("status") != "True" and (
            budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow" or healthy >= desired > 0
        ):
            return  # a pod that serves nobody takes nothing from the budget
        if int(status.get("observedGeneration") or 0) < int(budget["metadata"].get("generation") or 0):
            told = f"The disruption budget {name_of(budget)} is still being processed by the server."
            raise _disruption_budget_error(told, retry_after=10)
        if int(status.get("disruptionsAllowed") or 0) <= 0:
            raise _disruption_budget_error(
                f"The disruption budget {name_of(budget)} needs {desired} healthy pods and has {healthy} currently"
            )
        if not dry_run:
            self.mutate(
                catalogue.BUDGETS,
                namespace_of(budget),
                name_of(budget),
                lambda obj: obj["status"].update(disruptionsAllowed=obj["status"]["disruptionsAllowed"] - 1),
            )

    # Events

    def record(
        self, about: Obj, reason: str, message: str, kind: str = "Normal", source: str = "evenkeel-local"
    ) -> None:
        """Write an Event about an object, or increase the count of the same Event."""
        namespace = namespace_of(about) or "default"
        involved = {
            "kind": about["kind"],
            "apiVersion": about["apiVersion"],
            "name": name_of(about),
            "uid": about["metadata"]["uid"],
        }
        if namespace_of(about):
            involved["namespace"] = namespace
        now = timestamp()
        name = f"{name_of(about)}.{abs(hash((involved['uid'], reason, message))):016x}"
        known = self.store.find(catalogue.EVENTS.key, namespace, name)
        if known is not None:
            self.mutate(
                catalogue.EVENTS,
                namespace,
                name,
                lambda event: event.update(count=int(event.get("count") or 1) + 1, lastTimestamp=now),
            )
            return
        if self.store.find(catalogue.NAMESPACES.key, "", namespace) is None:
            return
        self.store.create(
            catalogue.EVENTS,
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {
                    "name": name,
                    "namespace": namespace,
                    "uid": str(uuid.uuid4()),
                    "creationTimestamp": now,
                },
                "involvedObject": involved,
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
            self.mutate(catalogue.DEFINITIONS, "", name_of(change.new), _establish)


def _establish(definition: Obj) -> None:
    status: Obj = definition.setdefault("status", {})
    set_condition(status, "NamesAccepted", "True", "NoConflicts", "no conflicts found")
    set_condition(status, "Established", "True", "InitialNamesAccepted", "the initial names have been accepted")
    status["acceptedNames"] = clone(definition["spec"]["names"])
    status["storedVersions"] = [v["name"] for v in definition["spec"]["versions"] if v.get("storage")]


def _disruption_budget_error(why: str, retry_after: int | None = None) -> ApiError:
    details: Obj = {"causes": [{"reason": "DisruptionBudget", "message": why}]}
    if retry_after is not None:
        details["retryAfterSeconds"] = retry_after
    told = "Cannot evict pod as it would violate the pod's disruption budget."
    return errors.too_many_requests(told, details, retry_after)


def mark_disrupted(pod: Obj, reason: str, message: str) -> None:
    """Put the condition DisruptionTarget on a pod, as every component that removes a running pod does."""
    set_condition(pod.setdefault("status", {}), "DisruptionTarget", "True", reason, message)


def owner_reference(obj: Obj, *, controller: bool = True) -> dict[str, Any]:
    """Return the reference that makes `obj` the owner of another object."""
    return {
        "apiVersion": obj["apiVersion"],
        "kind": obj["kind"],
        "name": name_of(obj),
        "uid": obj["metadata"]["uid"],
        "controller": controller,
        "blockOwnerDeletion": True,
    }


def controller_of(obj: Obj) -> Obj | None:
    """Return the reference of the object's controller, or nothing."""
    for reference in obj["metadata"].get("ownerReferences") or ():
        if reference.get("controller"):
            return dict(reference)
    return None
