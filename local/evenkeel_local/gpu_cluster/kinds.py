"""What the API server fills in and refuses, kind by kind: defaults at creation, validation, immutable fields.

Source of each rule: `pkg/apis/*/v1/defaults.go` and `pkg/apis/*/validation/validation.go` of Kubernetes 1.33, plus the
admission plugins DefaultTolerationSeconds, Priority and ServiceAccount. Only rules that a client of a GPU cluster can
meet are here; what is missing is accepted.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from evenkeel_local.gpu_cluster import catalogue, errors, selectors
from evenkeel_local.gpu_cluster.errors import Obj
from evenkeel_local.gpu_cluster.store import ResourceType, Store, TypeKey, clone

Cause = tuple[str, str, str]

GPU = "nvidia.com/gpu"
NOT_READY = "node.kubernetes.io/not-ready"
SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
DEFAULT_TOLERATION_SECONDS = 300
TRACKING = "batch.kubernetes.io/job-tracking"
SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"

POD_UPDATE_RULE = (
    "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing "
    "tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)

_SUBDOMAIN = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
_DNS_LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
_SERVICE_NAME = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
_QUALIFIED = re.compile(r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)$")
_PERCENT = re.compile(r"^[0-9]+%$")
_LABEL_VALUE = re.compile(r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$")

_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
    "and end with an alphanumeric character"
)


# Names, labels and references of any object


def check_metadata(rt: ResourceType, obj: Obj) -> Iterator[Cause]:
    """Yield what is wrong with an object's metadata."""
    metadata = obj["metadata"]
    name = metadata.get("name") or ""
    if rt.group != catalogue.RBAC:
        if rt.key == catalogue.SERVICES.key:
            valid, longest = bool(_SERVICE_NAME.match(name)), 63
        elif rt.key == catalogue.NAMESPACES.key:
            valid, longest = bool(_DNS_LABEL.match(name)), 63
        else:
            valid, longest = bool(_SUBDOMAIN.match(name)), 253
        if not valid:
            yield ("FieldValueInvalid", "metadata.name", f'Invalid value: "{name}": {_SUBDOMAIN_RULE}')
        elif len(name) > longest:
            yield (
                "FieldValueInvalid",
                "metadata.name",
                f'Invalid value: "{name}": must be no more than {longest} bytes',
            )
    labels = metadata.get("labels") or {}
    for key, value in labels.items():
        yield from check_label(key, value, "metadata.labels")
    for key in metadata.get("annotations") or {}:
        if not _QUALIFIED.match(key.lower()):
            yield ("FieldValueInvalid", "metadata.annotations", f'Invalid value: "{key}": name part must be valid')


def check_label(key: str, value: Any, field: str) -> Iterator[Cause]:
    """Yield what is wrong with one label."""
    if not _QUALIFIED.match(key):
        yield ("FieldValueInvalid", field, f'Invalid value: "{key}": name part must consist of alphanumeric characters')
    if not isinstance(value, str) or len(value) > 63 or not _LABEL_VALUE.match(value):
        yield (
            "FieldValueInvalid",
            field,
            f'Invalid value: "{value}": a valid label must be an empty string or consist',
        )


def random_suffix() -> str:
    """Return the five characters that `generateName` adds."""
    return "".join(secrets.choice(SUFFIX_ALPHABET) for _ in range(5))


# Pods


def _default_pod_spec(spec: Obj, store: Store) -> None:
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("schedulerName", "default-scheduler")
    for container in [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]:
        image = str(container.get("image") or "")
        latest = ":" not in image.rsplit("/", 1)[-1] or image.endswith(":latest")
        container.setdefault("imagePullPolicy", "Always" if latest else "IfNotPresent")
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
        resources = container.setdefault("resources", {})
        for name, amount in (resources.get("limits") or {}).items():
            resources.setdefault("requests", {}).setdefault(name, amount)
        for port in container.get("ports") or ():
            port.setdefault("protocol", "TCP")


def _admit_pod(obj: Obj, store: Store) -> None:
    spec = obj["spec"]
    _default_pod_spec(spec, store)
    spec.setdefault("serviceAccountName", spec.get("serviceAccount") or "default")
    spec.setdefault("serviceAccount", spec["serviceAccountName"])
    spec.setdefault("enableServiceLinks", True)
    tolerations = spec.setdefault("tolerations", [])
    for key in (NOT_READY, "node.kubernetes.io/unreachable"):
        if not any(_tolerates_eviction(toleration, key) for toleration in tolerations):
            tolerations.append(
                {
                    "key": key,
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": DEFAULT_TOLERATION_SECONDS,
                }
            )
    _resolve_priority(obj, store)
    obj["status"] = {"phase": "Pending", "qosClass": quality_of_service(spec)}


def _tolerates_eviction(toleration: Obj, key: str) -> bool:
    return toleration.get("key") in (key, None, "") and toleration.get("effect") in ("NoExecute", None, "")


def _resolve_priority(obj: Obj, store: Store) -> None:
    spec = obj["spec"]
    name = spec.get("priorityClassName")
    if not name:
        chosen = next((pc for pc in store.each(catalogue.PRIORITY_CLASSES.key) if pc.get("globalDefault")), None)
    elif name in SYSTEM_PRIORITIES:
        chosen = {"value": SYSTEM_PRIORITIES[name], "metadata": {"name": name}}
    else:
        chosen = store.find(catalogue.PRIORITY_CLASSES.key, "", name)
        if chosen is None:
            raise errors.forbidden("", "pods", obj["metadata"]["name"], f"no PriorityClass with name {name} was found")
    if chosen is not None and not name:
        spec["priorityClassName"] = chosen["metadata"]["name"]
    spec["priority"] = chosen["value"] if chosen is not None else 0
    spec["preemptionPolicy"] = (chosen or {}).get("preemptionPolicy") or "PreemptLowerPriority"


def quality_of_service(spec: Obj) -> str:
    """Return the quality of service class that a pod's cpu and memory requests give it."""
    guaranteed, any_set = True, False
    for container in [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]:
        resources = container.get("resources") or {}
        limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
        for name in ("cpu", "memory"):
            any_set = any_set or name in limits or name in requests
            if name not in limits or requests.get(name, limits[name]) != limits[name]:
                guaranteed = False
    if not any_set:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


def check_pod_spec(spec: Obj, path: str) -> Iterator[Cause]:
    """Yield what is wrong with a pod's spec."""
    containers = spec.get("containers") or []
    if not containers:
        yield ("FieldValueRequired", f"{path}.containers", "Required value")
    if spec.get("restartPolicy", "Always") not in ("Always", "OnFailure", "Never"):
        yield _unsupported(f"{path}.restartPolicy", spec["restartPolicy"], ("Always", "OnFailure", "Never"))
    seen: set[str] = set()
    for number, container in enumerate(containers):
        at = f"{path}.containers[{number}]"
        name = container.get("name") or ""
        if not name:
            yield ("FieldValueRequired", f"{at}.name", "Required value")
        elif not _DNS_LABEL.match(name):
            yield (
                "FieldValueInvalid",
                f"{at}.name",
                f'Invalid value: "{name}": a lowercase RFC 1123 label must consist',
            )
        elif name in seen:
            yield ("FieldValueDuplicate", f"{at}.name", f'Duplicate value: "{name}"')
        seen.add(name)
        if not container.get("image"):
            yield ("FieldValueRequired", f"{at}.image", "Required value")
        yield from _check_resources(container.get("resources") or {}, f"{at}.resources")
    for field in ("hostname", "subdomain"):
        if (value := spec.get(field)) and (not _DNS_LABEL.match(value) or len(value) > 63):
            yield ("FieldValueInvalid", f"{path}.{field}", f'Invalid value: "{value}": a lowercase RFC 1123 label')
    for number, toleration in enumerate(spec.get("tolerations") or ()):
        at = f"{path}.tolerations[{number}]"
        if toleration.get("operator", "Equal") not in ("Equal", "Exists"):
            yield _unsupported(f"{at}.operator", toleration["operator"], ("Equal", "Exists"))
        if toleration.get("effect", "") not in ("", "NoSchedule", "PreferNoSchedule", "NoExecute"):
            yield _unsupported(f"{at}.effect", toleration["effect"], ("NoSchedule", "PreferNoSchedule", "NoExecute"))


def _check_resources(resources: Obj, at: str) -> Iterator[Cause]:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for part, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            try:
                value = selectors.quantity(amount)
            except ValueError as broken:
                yield ("FieldValueInvalid", f"{at}.{part}[{name}]", f'Invalid value: "{amount}": {broken}')
                continue
            if value < 0:
                yield ("FieldValueInvalid", f"{at}.{part}[{name}]", f'Invalid value: "{amount}": must be >= 0')
            elif is_extended(name) and value != int(value):
                yield ("FieldValueInvalid", f"{at}.{part}[{name}]", f'Invalid value: "{amount}": must be an integer')
            elif part == "requests":
                yield from _check_against_limit(name, value, amount, limits, at)


def _check_against_limit(name: str, value: Any, amount: Any, limits: Obj, at: str) -> Iterator[Cause]:
    if is_extended(name) and name not in limits:
        yield (
            "FieldValueRequired",
            f"{at}.limits",
            "Required value: Limit must be set for non overcommitable resources",
        )
    elif name in limits:
        limit = selectors.quantity(limits[name])
        if is_extended(name) and value != limit:
            yield (
                "FieldValueInvalid",
                f"{at}.requests",
                f'Invalid value: "{amount}": must be equal to {name} limit of {limits[name]}',
            )
        elif value > limit:
            yield (
                "FieldValueInvalid",
                f"{at}.requests",
                f'Invalid value: "{amount}": must be less than or equal to {name} limit of {limits[name]}',
            )


def is_extended(name: str) -> bool:
    """Whether a resource is counted in whole units, such as GPUs and network adapters."""
    return "/" in name and not name.startswith("kubernetes.io/")


def _unsupported(field: str, value: Any, supported: Iterable[str]) -> Cause:
    choices = ", ".join(f'"{choice}"' for choice in supported)
    return ("FieldValueNotSupported", field, f'Unsupported value: "{value}": supported values: {choices}')


def _check_pod(obj: Obj) -> Iterator[Cause]:
    yield from check_pod_spec(obj.get("spec") or {}, "spec")


def _check_pod_update(obj: Obj, old: Obj) -> Iterator[Cause]:
    left, right = _fixed_part(obj["spec"]), _fixed_part(old["spec"])
    if left != right:
        yield (
            "FieldValueForbidden",
            "spec",
            POD_UPDATE_RULE,
        )


def _fixed_part(spec: Obj) -> Obj:
    fixed = clone(spec)
    for container in [*(fixed.get("containers") or ()), *(fixed.get("initContainers") or ())]:
        container.pop("image", None)
    for field in ("activeDeadlineSeconds", "tolerations", "schedulingGates"):
        fixed.pop(field, None)
    return dict(fixed)


# Jobs


def _admit_job(obj: Obj, store: Store) -> None:
    spec = obj["spec"]
    uid, name = obj["metadata"]["uid"], obj["metadata"]["name"]
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("backoffLimit", 6)
    spec.setdefault("suspend", False)
    spec.setdefault("manualSelector", False)
    spec.setdefault("podReplacementPolicy", "Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed")
    template = spec.setdefault("template", {})
    labels = template.setdefault("metadata", {}).setdefault("labels", {})
    if not spec["manualSelector"]:
        labels.update(
            {
                "controller-uid": uid,
                "job-name": name,
                "batch.kubernetes.io/controller-uid": uid,
                "batch.kubernetes.io/job-name": name,
            }
        )
        spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    _default_pod_spec(template.setdefault("spec", {}), store)
    obj["metadata"].setdefault("labels", clone(labels))
    obj["status"] = {}


def _check_job(obj: Obj) -> Iterator[Cause]:
    spec = obj["spec"]
    for field in ("parallelism", "completions", "backoffLimit", "activeDeadlineSeconds"):
        value = spec.get(field)
        if value is not None and (not isinstance(value, int) or value < 0):
            yield (
                "FieldValueInvalid",
                f"spec.{field}",
                f"Invalid value: {value}: must be greater than or equal to 0",
            )
    if spec["completionMode"] not in ("Indexed", "NonIndexed"):
        yield _unsupported("spec.completionMode", spec["completionMode"], ("Indexed", "NonIndexed"))
    elif spec["completionMode"] == "Indexed" and spec.get("completions") is None:
        yield ("FieldValueRequired", "spec.completions", "Required value: when completion mode is Indexed")
    if spec["completionMode"] == "Indexed" and isinstance(spec.get("completions"), int):
        longest = len(obj["metadata"]["name"]) + 1 + len(str(max(spec["completions"] - 1, 0)))
        if longest > 63:
            yield (
                "FieldValueInvalid",
                "metadata.name",
                f'Invalid value: "{obj["metadata"]["name"]}": will not able to create pod with invalid DNS label',
            )
    if spec["podReplacementPolicy"] not in ("Failed", "TerminatingOrFailed"):
        yield _unsupported("spec.podReplacementPolicy", spec["podReplacementPolicy"], ("Failed", "TerminatingOrFailed"))
    pod = spec["template"].get("spec") or {}
    if pod.get("restartPolicy") not in ("OnFailure", "Never"):
        yield _unsupported("spec.template.spec.restartPolicy", pod.get("restartPolicy"), ("OnFailure", "Never"))
    yield from check_pod_spec(pod, "spec.template.spec")


def _check_job_update(obj: Obj, old: Obj) -> Iterator[Cause]:
    new_spec, old_spec = obj["spec"], old["spec"]
    frozen = ["selector", "completionMode", "template"]
    if old_spec.get("suspend") and not (old.get("status") or {}).get("startTime"):
        frozen.remove("template")
    for field in frozen:
        if new_spec.get(field) != old_spec.get(field):
            yield ("FieldValueInvalid", f"spec.{field}", "Invalid value: field is immutable")
    if new_spec.get("completions") != old_spec.get("completions"):
        elastic = new_spec.get("completionMode") == "Indexed" and new_spec.get("completions") == new_spec.get(
            "parallelism"
        )
        if not elastic:
            yield ("FieldValueInvalid", "spec.completions", "Invalid value: field is immutable")


# Deployments and ReplicaSets


def _admit_deployment(obj: Obj, store: Store) -> None:
    spec = obj["spec"]
    _default_replicas(spec, store)
    spec.setdefault("progressDeadlineSeconds", 600)
    spec.setdefault("revisionHistoryLimit", 10)
    strategy = spec.setdefault("strategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        bounds = strategy.setdefault("rollingUpdate", {})
        bounds.setdefault("maxSurge", "25%")
        bounds.setdefault("maxUnavailable", "25%")
    obj["status"] = {}


def _admit_replica_set(obj: Obj, store: Store) -> None:
    _default_replicas(obj["spec"], store)
    labels = obj["spec"]["template"].get("metadata", {}).get("labels")
    if labels and not obj["metadata"].get("labels"):
        obj["metadata"]["labels"] = clone(labels)
    obj["status"] = {"replicas": 0}


def _default_replicas(spec: Obj, store: Store) -> None:
    spec.setdefault("replicas", 1)
    _default_pod_spec(spec.setdefault("template", {}).setdefault("spec", {}), store)


def _check_replicas(obj: Obj) -> Iterator[Cause]:
    spec = obj["spec"]
    for field in ("replicas", "minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"):
        if isinstance(value := spec.get(field), int) and value < 0:
            yield (
                "FieldValueInvalid",
                f"spec.{field}",
                f"Invalid value: {value}: must be greater than or equal to 0",
            )
    selector = spec.get("selector")
    labels = (spec["template"].get("metadata") or {}).get("labels") or {}
    if selector is None:
        yield ("FieldValueRequired", "spec.selector", "Required value")
    elif not selector.get("matchLabels") and not selector.get("matchExpressions"):
        yield ("FieldValueInvalid", "spec.selector", "Invalid value: {}: empty selector is invalid")
    elif not selectors.matches_selector(selector, labels):
        yield (
            "FieldValueInvalid",
            "spec.template.metadata.labels",
            f"Invalid value: {json.dumps(labels)}: `selector` does not match template `labels`",
        )
    pod = spec["template"].get("spec") or {}
    if pod.get("restartPolicy", "Always") != "Always":
        yield _unsupported("spec.template.spec.restartPolicy", pod["restartPolicy"], ("Always",))
    yield from check_pod_spec(pod, "spec.template.spec")


def _check_deployment(obj: Obj) -> Iterator[Cause]:
    yield from _check_replicas(obj)
    strategy = obj["spec"].get("strategy") or {}
    if strategy.get("type") not in ("Recreate", "RollingUpdate"):
        yield _unsupported("spec.strategy.type", strategy.get("type"), ("Recreate", "RollingUpdate"))
    elif strategy["type"] == "Recreate" and strategy.get("rollingUpdate"):
        yield (
            "FieldValueForbidden",
            "spec.strategy.rollingUpdate",
            "Forbidden: may not be specified when strategy `type` is 'Recreate'",
        )
    elif strategy["type"] == "RollingUpdate":
        bounds = strategy.get("rollingUpdate") or {}
        for field in ("maxSurge", "maxUnavailable"):
            value = bounds.get(field, 0)
            if (isinstance(value, int) and value < 0) or (isinstance(value, str) and not _PERCENT.match(value)):
                yield (
                    "FieldValueInvalid",
                    f"spec.strategy.rollingUpdate.{field}",
                    f"Invalid value: {json.dumps(value)}: must be a whole number or a percentage",
                )
        if all(bounds.get(field) in (0, "0%") for field in ("maxSurge", "maxUnavailable")):
            yield (
                "FieldValueInvalid",
                "spec.strategy.rollingUpdate.maxUnavailable",
                "Invalid value: 0: may not be 0 when `maxSurge` is 0",
            )


def _check_selector_update(obj: Obj, old: Obj) -> Iterator[Cause]:
    if obj["spec"].get("selector") != old["spec"].get("selector"):
        shown = json.dumps(obj["spec"].get("selector"))
        yield ("FieldValueInvalid", "spec.selector", f"Invalid value: {shown}: field is immutable")


# Nodes, services and the rest


def _admit_node(obj: Obj, store: Store) -> None:
    obj.setdefault("spec", {})
    obj.setdefault("status", {})


def taint_new_node(obj: Obj) -> None:
    """Keep pods off a node that somebody else creates, until it is Ready (admission plugin TaintNodesByCondition)."""
    taints = obj["spec"].setdefault("taints", [])
    if not any((taint.get("key"), taint.get("effect")) == (NOT_READY, "NoSchedule") for taint in taints):
        taints.append({"key": NOT_READY, "effect": "NoSchedule"})


def _check_node(obj: Obj) -> Iterator[Cause]:
    seen: set[tuple[str, str]] = set()
    for number, taint in enumerate((obj.get("spec") or {}).get("taints") or ()):
        at = f"spec.taints[{number}]"
        if not taint.get("key"):
            yield ("FieldValueInvalid", f"{at}.key", 'Invalid value: "": name part must be non-empty')
        if taint.get("effect") not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
            yield _unsupported(f"{at}.effect", taint.get("effect"), ("NoSchedule", "PreferNoSchedule", "NoExecute"))
        mark = (str(taint.get("key")), str(taint.get("effect")))
        if mark in seen:
            yield ("FieldValueDuplicate", f"{at}", f'Duplicate value: "{mark[0]}:{mark[1]}"')
        seen.add(mark)


def _check_node_update(obj: Obj, old: Obj) -> Iterator[Cause]:
    before, after = old["spec"].get("providerID"), (obj.get("spec") or {}).get("providerID")
    if before and before != after:
        yield (
            "FieldValueForbidden",
            "spec.providerID",
            'Forbidden: node updates may not change providerID except from "" to valid',
        )


def _admit_service(obj: Obj, store: Store) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    spec.setdefault("internalTrafficPolicy", "Cluster")
    spec.setdefault("ipFamilies", ["IPv4"])
    spec.setdefault("ipFamilyPolicy", "SingleStack")
    if "clusterIP" not in spec:
        taken = {(service.get("spec") or {}).get("clusterIP") for service in store.each(catalogue.SERVICES.key)}
        spec["clusterIP"] = next(
            address
            for number in range(1, 65000)
            if (address := f"10.100.{number // 250}.{number % 250 + 1}") not in taken
        )
    spec.setdefault("clusterIPs", [spec["clusterIP"]])
    for port in spec.get("ports") or ():
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))
    obj["status"] = {"loadBalancer": {}}


def _check_service(obj: Obj) -> Iterator[Cause]:
    spec = obj.get("spec") or {}
    if not spec.get("ports") and spec.get("clusterIP") != "None" and spec.get("type") != "ExternalName":
        yield ("FieldValueRequired", "spec.ports", "Required value")
    for number, port in enumerate(spec.get("ports") or ()):
        value = port.get("port")
        if not isinstance(value, int) or not 1 <= value <= 65535:
            yield (
                "FieldValueInvalid",
                f"spec.ports[{number}].port",
                f"Invalid value: {value}: must be between 1 and 65535, inclusive",
            )


def _admit_namespace(obj: Obj, store: Store) -> None:
    obj["spec"] = {"finalizers": ["kubernetes"]}
    obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = obj["metadata"]["name"]
    obj["status"] = {"phase": "Active"}


def _admit_claim(obj: Obj, store: Store) -> None:
    # There is one storage class here, and it binds at once.
    spec = obj.setdefault("spec", {})
    if not isinstance(spec, dict):
        raise errors.bad_request("PersistentVolumeClaim: spec is not an object")
    spec.setdefault("volumeName", f"pvc-{obj['metadata']['uid']}")
    obj["status"] = {"phase": "Bound", "accessModes": spec.get("accessModes") or ["ReadWriteMany"]}


def _admit_priority(obj: Obj, store: Store) -> None:
    obj.setdefault("preemptionPolicy", "PreemptLowerPriority")


def _check_priority(obj: Obj) -> Iterator[Cause]:
    value = obj.get("value", 0)
    if not isinstance(value, int) or value > 1_000_000_000:
        yield (
            "FieldValueForbidden",
            "value",
            "Forbidden: maximum allowed value of a user defined priority is 1000000000",
        )


def _check_priority_update(obj: Obj, old: Obj) -> Iterator[Cause]:
    for field in ("value", "preemptionPolicy"):
        if obj.get(field) != old.get(field):
            yield ("FieldValueForbidden", field, "Forbidden: may not be changed in an update.")


def _admit_budget(obj: Obj, store: Store) -> None:
    obj["status"] = {"currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0}


def _check_budget(obj: Obj) -> Iterator[Cause]:
    spec = obj.get("spec") or {}
    if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
        yield ("FieldValueInvalid", "spec", "Invalid value: minAvailable and maxUnavailable cannot be both set")


def _check_binding_update(obj: Obj, old: Obj) -> Iterator[Cause]:
    if obj.get("roleRef") != old.get("roleRef"):
        yield ("FieldValueInvalid", "roleRef", "Invalid value: cannot change roleRef")


def _check_binding(obj: Obj) -> Iterator[Cause]:
    ref = obj.get("roleRef") or {}
    if ref.get("kind") not in ("Role", "ClusterRole"):
        yield _unsupported("roleRef.kind", ref.get("kind"), ("Role", "ClusterRole"))
    if not ref.get("name"):
        yield ("FieldValueRequired", "roleRef.name", "Required value")
    for number, subject in enumerate(obj.get("subjects") or ()):
        if subject.get("kind") not in ("User", "Group", "ServiceAccount"):
            yield _unsupported(f"subjects[{number}].kind", subject.get("kind"), ("ServiceAccount", "User", "Group"))


def _check_definition(obj: Obj) -> Iterator[Cause]:
    spec = obj.get("spec") or {}
    names = spec.get("names") or {}
    for field in ("group", "scope", "versions"):
        if not spec.get(field):
            yield ("FieldValueRequired", f"spec.{field}", "Required value")
    for field in ("plural", "kind"):
        if not names.get(field):
            yield ("FieldValueRequired", f"spec.names.{field}", "Required value")
    if names.get("plural") and obj["metadata"]["name"] != f"{names['plural']}.{spec.get('group')}":
        yield (
            "FieldValueInvalid",
            "metadata.name",
            f'Invalid value: "{obj["metadata"]["name"]}": must be spec.names.plural+"."+spec.group',
        )
    for number, version in enumerate(spec.get("versions") or ()):
        if not (version.get("schema") or {}).get("openAPIV3Schema"):
            yield (
                "FieldValueRequired",
                f"spec.versions[{number}].schema.openAPIV3Schema",
                "Required value: schemas are required",
            )


def _admit_definition(obj: Obj, store: Store) -> None:
    names = obj["spec"].setdefault("names", {})
    names.setdefault("singular", str(names.get("kind", "")).lower())
    names.setdefault("listKind", f"{names.get('kind', '')}List")
    obj["spec"].setdefault("conversion", {"strategy": "None"})
    obj["status"] = {}


Admission = Callable[[Obj, Store], None]
Check = Callable[[Obj], Iterator[Cause]]
UpdateCheck = Callable[[Obj, Obj], Iterator[Cause]]

ADMISSION: dict[TypeKey, Admission] = {
    catalogue.PODS.key: _admit_pod,
    catalogue.JOBS.key: _admit_job,
    catalogue.DEPLOYMENTS.key: _admit_deployment,
    catalogue.REPLICA_SETS.key: _admit_replica_set,
    catalogue.NODES.key: _admit_node,
    catalogue.SERVICES.key: _admit_service,
    catalogue.NAMESPACES.key: _admit_namespace,
    catalogue.PRIORITY_CLASSES.key: _admit_priority,
    catalogue.VOLUME_CLAIMS.key: _admit_claim,
    catalogue.BUDGETS.key: _admit_budget,
    catalogue.DEFINITIONS.key: _admit_definition,
}
CHECKS: dict[TypeKey, Check] = {
    catalogue.PODS.key: _check_pod,
    catalogue.JOBS.key: _check_job,
    catalogue.DEPLOYMENTS.key: _check_deployment,
    catalogue.REPLICA_SETS.key: _check_replicas,
    catalogue.NODES.key: _check_node,
    catalogue.SERVICES.key: _check_service,
    catalogue.PRIORITY_CLASSES.key: _check_priority,
    catalogue.BUDGETS.key: _check_budget,
    catalogue.ROLE_BINDINGS.key: _check_binding,
    catalogue.CLUSTER_ROLE_BINDINGS.key: _check_binding,
    catalogue.DEFINITIONS.key: _check_definition,
}
UPDATE_CHECKS: dict[TypeKey, UpdateCheck] = {
    catalogue.PODS.key: _check_pod_update,
    catalogue.JOBS.key: _check_job_update,
    catalogue.DEPLOYMENTS.key: _check_selector_update,
    catalogue.REPLICA_SETS.key: _check_selector_update,
    catalogue.NODES.key: _check_node_update,
    catalogue.PRIORITY_CLASSES.key: _check_priority_update,
    catalogue.ROLE_BINDINGS.key: _check_binding_update,
    catalogue.CLUSTER_ROLE_BINDINGS.key: _check_binding_update,
}
NEEDS_SPEC = frozenset(
    {
        catalogue.PODS.key,
        catalogue.JOBS.key,
        catalogue.DEPLOYMENTS.key,
        catalogue.REPLICA_SETS.key,
        catalogue.DEFINITIONS.key,
        catalogue.BUDGETS.key,
    }
)
WITH_GENERATION = frozenset(
    {
        catalogue.JOBS.key,
        catalogue.DEPLOYMENTS.key,
        catalogue.REPLICA_SETS.key,
        catalogue.BUDGETS.key,
        catalogue.DEFINITIONS.key,
    }
)
