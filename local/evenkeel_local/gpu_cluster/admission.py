"""Defaults and admission plugins of the API server, by kind. `validation` has the checks.

Source of each rule: `pkg/apis/*/v1/defaults.go` of Kubernetes 1.33 and the admission plugins DefaultTolerationSeconds,
Priority, ResourceQuota, ServiceAccount and TaintNodesByCondition.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable

from evenkeel_local.gpu_cluster import catalogue, errors, resource_quotas
from evenkeel_local.gpu_cluster.errors import Obj
from evenkeel_local.gpu_cluster.pod_defaults import default_pod, default_pod_spec
from evenkeel_local.gpu_cluster.store import Store, TypeKey, clone, namespace_of

GPU = "nvidia.com/gpu"
NOT_READY = "node.kubernetes.io/not-ready"
SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
DEFAULT_TOLERATION_SECONDS = 300
TRACKING = "batch.kubernetes.io/job-tracking"
SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
LONGEST_PREFIX = 58
"""Number of characters of `generateName` that are kept: with the suffix, the name is a DNS label."""
MAX_FAILURES = 2**31 - 1


def generated_name(prefix: str) -> str:
    """Return a new name that starts with `generateName`."""
    return prefix[:LONGEST_PREFIX] + random_suffix()


def random_suffix() -> str:
    """Return the five characters that `generateName` adds."""
    return "".join(secrets.choice(SUFFIX_ALPHABET) for _ in range(5))


# Pods


def _admit_pod(obj: Obj, store: Store) -> None:
    spec = obj["spec"]
    _find_account(obj, store)
    tolerations = spec.setdefault("tolerations", [])
    for key in (NOT_READY, "node.kubernetes.io/unreachable"):
        if not any(_tolerates_eviction(toleration, key) for toleration in tolerations):
            seconds = {"tolerationSeconds": DEFAULT_TOLERATION_SECONDS}
            tolerations.append({"key": key, "operator": "Exists", "effect": "NoExecute", **seconds})
    _resolve_priority(obj, store)
    if refused := resource_quotas.quota_refusal(obj, store):
        raise errors.forbidden("", "pods", obj["metadata"]["name"], refused)
    obj["status"] = {"phase": "Pending", "qosClass": quality_of_service(spec)}


def _find_account(obj: Obj, store: Store) -> None:
    """Refuse a pod whose service account does not exist."""
    spec, namespace = obj["spec"], namespace_of(obj)
    name = spec.get("serviceAccountName") or "default"
    if store.find(catalogue.SERVICE_ACCOUNTS.key, namespace, name) is None:
        message = f'error looking up service account {namespace}/{name}: serviceaccount "{name}" not found'
        raise errors.forbidden("", "pods", obj["metadata"]["name"], message)
    spec["serviceAccountName"] = spec["serviceAccount"] = name


def _tolerates_eviction(toleration: Obj, key: str) -> bool:
    return toleration.get("key") in (key, None, "") and toleration.get("effect") in ("NoExecute", None, "")


def _resolve_priority(obj: Obj, store: Store) -> None:
    spec = obj["spec"]
    name = spec.get("priorityClassName")
    if not name:
        defaults = [pc for pc in store.each(catalogue.PRIORITY_CLASSES.key) if pc.get("globalDefault")]
        default_class = min(defaults, key=lambda pc: int(pc["value"]), default=None)
    elif name in SYSTEM_PRIORITIES:
        default_class = {"value": SYSTEM_PRIORITIES[name], "metadata": {"name": name}}
    else:
        default_class = store.find(catalogue.PRIORITY_CLASSES.key, "", name)
        if default_class is None:
            raise errors.forbidden("", "pods", obj["metadata"]["name"], f"no PriorityClass with name {name} was found")
    if default_class is not None and not name:
        spec["priorityClassName"] = default_class["metadata"]["name"]
    computed_fields = {
        "priority": default_class["value"] if default_class is not None else 0,
        "preemptionPolicy": (default_class or {}).get("preemptionPolicy") or "PreemptLowerPriority",
    }
    for field, shown in (("priority", "integer value of priority"), ("preemptionPolicy", "string value of")):
        stated_value = spec.get(field, computed_fields[field])
        if stated_value != computed_fields[field]:
            field_text = shown if field == "priority" else f"{shown} PreemptionPolicy"
            why = (
                f"the {field_text} ({stated_value}) must not be provided in pod spec; priority admission "
                "controller computed "
                f"{computed_fields[field]} from the given PriorityClass name"
            )
            raise errors.forbidden("", "pods", obj["metadata"]["name"], why)
        spec[field] = computed_fields[field]


def quality_of_service(spec: Obj) -> str:
    """Return the quality of service class of a pod."""
    is_guaranteed, any_set = True, False
    for container in [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]:
        resources = container.get("resources") or {}
        limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
        for name in ("cpu", "memory"):
            any_set = any_set or name in limits or name in requests
            if name not in limits or requests.get(name, limits[name]) != limits[name]:
                is_guaranteed = False
    if not any_set:
        return "BestEffort"
    return "Guaranteed" if is_guaranteed else "Burstable"


# Jobs


def _default_job(obj: Obj) -> None:
    spec = obj["spec"]
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("backoffLimit", 6 if spec.get("backoffLimitPerIndex") is None else MAX_FAILURES)
    spec.setdefault("suspend", False)
    spec.setdefault("manualSelector", False)
    spec.setdefault("podReplacementPolicy", "Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed")
    for rule in (spec.get("podFailurePolicy") or {}).get("rules") or ():
        for pattern in rule.get("onPodConditions") or ():
            pattern.setdefault("status", "True")
    template = spec.setdefault("template", {})
    labels = template.setdefault("metadata", {}).setdefault("labels", {})
    if labels and not obj["metadata"].get("labels"):
        obj["metadata"]["labels"] = clone(labels)
    default_pod_spec(template.setdefault("spec", {}))


def _admit_job(obj: Obj, store: Store) -> None:
    spec = obj["spec"]
    uid, name = obj["metadata"]["uid"], obj["metadata"]["name"]
    if not spec["manualSelector"]:
        labels = spec["template"]["metadata"]["labels"]
        for prefix in ("", "batch.kubernetes.io/"):
            labels.setdefault(f"{prefix}controller-uid", uid)
            labels.setdefault(f"{prefix}job-name", name)
        selector = spec.setdefault("selector", {}).setdefault("matchLabels", {})
        selector.setdefault("batch.kubernetes.io/controller-uid", uid)
    if not obj["metadata"].get("labels"):
        obj["metadata"]["labels"] = clone(spec["template"]["metadata"]["labels"])
    obj["status"] = {}


# Deployments and ReplicaSets


def _default_deployment(obj: Obj) -> None:
    spec = obj["spec"]
    _default_replicas(obj)
    spec.setdefault("progressDeadlineSeconds", 600)
    spec.setdefault("revisionHistoryLimit", 10)
    strategy = spec.setdefault("strategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        bounds = strategy.setdefault("rollingUpdate", {})
        bounds.setdefault("maxSurge", "25%")
        bounds.setdefault("maxUnavailable", "25%")


def _default_replicas(obj: Obj) -> None:
    obj["spec"].setdefault("replicas", 1)
    template = obj["spec"].setdefault("template", {})
    default_pod_spec(template.setdefault("spec", {}))


def _default_replica_set(obj: Obj) -> None:
    _default_replicas(obj)
    labels = (obj["spec"]["template"].get("metadata") or {}).get("labels")
    if labels and not obj["metadata"].get("labels"):
        obj["metadata"]["labels"] = clone(labels)


def _admit_deployment(obj: Obj, store: Store) -> None:
    obj["status"] = {}


def _admit_replica_set(obj: Obj, store: Store) -> None:
    obj["status"] = {"replicas": 0}


# Nodes, services and the rest


def _default_node(obj: Obj) -> None:
    obj.setdefault("spec", {})
    obj.setdefault("status", {})


def taint_new_node(obj: Obj) -> None:
    """Taint a node that a client creates until it is Ready (admission plugin TaintNodesByCondition)."""
    taints = obj["spec"].setdefault("taints", [])
    if not any((taint.get("key"), taint.get("effect")) == (NOT_READY, "NoSchedule") for taint in taints):
        taints.append({"key": NOT_READY, "effect": "NoSchedule"})


def _default_service(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    spec.setdefault("internalTrafficPolicy", "Cluster")
    for port in spec.get("ports") or ():
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))


def _admit_service(obj: Obj, store: Store) -> None:
    spec = obj["spec"]
    spec.setdefault("ipFamilies", ["IPv4"])
    spec.setdefault("ipFamilyPolicy", "SingleStack")
    if "clusterIP" not in spec:
        addresses_taken = {
            (service.get("spec") or {}).get("clusterIP") for service in store.each(catalogue.SERVICES.key)
        }
        addresses = (f"10.100.{number // 250}.{number % 250 + 1}" for number in range(1, 65000))
        spec["clusterIP"] = next(address for address in addresses if address not in addresses_taken)
    spec.setdefault("clusterIPs", [spec["clusterIP"]])
    obj["status"] = {"loadBalancer": {}}


def _keep_addresses(new: Obj, old: Obj) -> None:
    """Keep the addresses of a service if an update omits them."""
    for field in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"):
        if field in old["spec"]:
            new["spec"].setdefault(field, old["spec"][field])


def _admit_namespace(obj: Obj, store: Store) -> None:
    stated_finalizers = (obj.get("spec") or {}).get("finalizers") or []
    obj["spec"] = {
        "finalizers": [*stated_finalizers, *(["kubernetes"] if "kubernetes" not in stated_finalizers else [])]
    }
    obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = obj["metadata"]["name"]
    obj["status"] = {"phase": "Active"}


def _keep_namespace(new: Obj, old: Obj) -> None:
    """Keep the spec of a namespace and the label with its name."""
    new["spec"] = old["spec"]
    new["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = new["metadata"]["name"]


def _default_secret(obj: Obj) -> None:
    """Encode `stringData` into `data`, which it overrides."""
    if texts := obj.pop("stringData", None):
        encoded_data = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
        obj["data"] = {**(obj.get("data") or {}), **encoded_data}
    obj.setdefault("type", "Opaque")


def _default_limits(obj: Obj) -> None:
    for limit in (obj.get("spec") or {}).get("limits") or ():
        if limit.get("type") != "Container":
            continue
        for field, sources in (("default", ("max",)), ("defaultRequest", ("default", "min"))):
            for source in sources:
                for name, amount in (limit.get(source) or {}).items():
                    limit.setdefault(field, {}).setdefault(name, amount)


def _admit_claim(obj: Obj, store: Store) -> None:
    # There is one storage class, which binds at once.
    spec = obj.setdefault("spec", {})
    spec.setdefault("volumeName", f"pvc-{obj['metadata']['uid']}")
    obj["status"] = {"phase": "Bound", "accessModes": spec.get("accessModes") or []}


def _default_claim(obj: Obj) -> None:
    obj.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")


def _default_binding(obj: Obj) -> None:
    obj.setdefault("roleRef", {}).setdefault("apiGroup", catalogue.RBAC)
    for subject in obj.get("subjects") or ():
        if subject.get("kind") in ("User", "Group"):
            subject.setdefault("apiGroup", catalogue.RBAC)


def _default_priority(obj: Obj) -> None:
    obj.setdefault("preemptionPolicy", "PreemptLowerPriority")


def _admit_budget(obj: Obj, store: Store) -> None:
    obj["status"] = {"currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0}


def _admit_definition(obj: Obj, store: Store) -> None:
    names = obj["spec"].setdefault("names", {})
    names.setdefault("singular", str(names.get("kind", "")).lower())
    names.setdefault("listKind", f"{names.get('kind', '')}List")
    obj["spec"].setdefault("conversion", {"strategy": "None"})
    obj["status"] = {}


Default = Callable[[Obj], None]
Admission = Callable[[Obj, Store], None]
Keep = Callable[[Obj, Obj], None]

DEFAULTS: dict[TypeKey, Default] = {
    catalogue.PODS.key: lambda obj: default_pod(obj["spec"]),
    catalogue.JOBS.key: _default_job,
    catalogue.DEPLOYMENTS.key: _default_deployment,
    catalogue.REPLICA_SETS.key: _default_replica_set,
    catalogue.NODES.key: _default_node,
    catalogue.SERVICES.key: _default_service,
    catalogue.SECRETS.key: _default_secret,
    catalogue.PRIORITY_CLASSES.key: _default_priority,
    catalogue.LIMIT_RANGES.key: _default_limits,
    catalogue.VOLUME_CLAIMS.key: _default_claim,
    catalogue.ROLE_BINDINGS.key: _default_binding,
    catalogue.CLUSTER_ROLE_BINDINGS.key: _default_binding,
}
"""Defaults at every write."""
ADMISSION: dict[TypeKey, Admission] = {
    catalogue.PODS.key: _admit_pod,
    catalogue.JOBS.key: _admit_job,
    catalogue.DEPLOYMENTS.key: _admit_deployment,
    catalogue.REPLICA_SETS.key: _admit_replica_set,
    catalogue.SERVICES.key: _admit_service,
    catalogue.NAMESPACES.key: _admit_namespace,
    catalogue.VOLUME_CLAIMS.key: _admit_claim,
    catalogue.BUDGETS.key: _admit_budget,
    catalogue.DEFINITIONS.key: _admit_definition,
}
"""Admission of a new object: more defaults, and refusals."""
KEPT: dict[TypeKey, Keep] = {
    catalogue.SERVICES.key: _keep_addresses,
    catalogue.NAMESPACES.key: _keep_namespace,
}
"""Fields that an update keeps from the stored object."""
ORPHANING = frozenset({catalogue.JOBS.key})
"""Kinds whose dependants stay if a deletion has no policy: batch/v1 Jobs, for compatibility with old clients."""
NEEDS_VERSION = frozenset({catalogue.BUDGETS.key, catalogue.LEASES.key, catalogue.DEFINITIONS.key})
"""Built-in kinds whose update needs a resource version."""
WITH_GENERATION = frozenset(
    rt.key
    for rt in (
        *(catalogue.JOBS, catalogue.DEPLOYMENTS, catalogue.REPLICA_SETS),
        *(catalogue.BUDGETS, catalogue.DEFINITIONS),
    )
)
NEEDS_SPEC = WITH_GENERATION | {catalogue.PODS.key}
