"""The kinds of Kubernetes and Kueue objects that a file may hold."""

from collections.abc import Mapping
from typing import Any

from evenkeel.domain.queue_simulation.node_manifests import NodeManifest, PodManifest, TopologyManifest
from evenkeel.domain.queue_simulation.pod_limits import LimitRange, RuntimeClass
from evenkeel.domain.queue_simulation.queue_manifests import (
    API_VERSION,
    AdmissionCheckManifest,
    ClusterQueue,
    CohortManifest,
    KubernetesManifest,
    LocalQueue,
    Namespace,
    ResourceFlavor,
    WorkloadPriorityClass,
)
from evenkeel.domain.queue_simulation.workload_manifests import WorkloadManifest

OTHER_KINDS = frozenset({"MultiKueueCluster", "MultiKueueConfig", "ProvisioningRequestConfig"})
"""Kueue's kinds that a plan does not use."""

KINDS: dict[str, type[KubernetesManifest]] = {
    "ClusterQueue": ClusterQueue,
    "Cohort": CohortManifest,
    "ResourceFlavor": ResourceFlavor,
    "LocalQueue": LocalQueue,
    "WorkloadPriorityClass": WorkloadPriorityClass,
    "PriorityClass": WorkloadPriorityClass,
    "Namespace": Namespace,
    "Workload": WorkloadManifest,
    "Topology": TopologyManifest,
    "Node": NodeManifest,
    "Pod": PodManifest,
    "AdmissionCheck": AdmissionCheckManifest,
    "LimitRange": LimitRange,
    "RuntimeClass": RuntimeClass,
}


NO_JOBS = (KINDS.keys() | OTHER_KINDS) - {"Workload"}
"""Kinds that a file of jobs may also hold. A plan ignores them there."""


def is_other_kind(document: Mapping[str, Any]) -> bool:
    """Whether a document is an object of Kubernetes but not of Kueue. A plan ignores such objects."""
    version = document.get("apiVersion")
    kind = document.get("kind")
    if not (isinstance(version, str) and version and isinstance(kind, str)) or kind in KINDS:
        return False
    return version.partition("/")[0] != API_VERSION.partition("/")[0]


def items_of(document: Any) -> list[Any]:
    """Return the items of a List, or the document itself."""
    if isinstance(document, dict) and str(document.get("kind", "")).endswith("List"):
        items = document.get("items") or ()
        return list(items) if isinstance(items, list | tuple) else [items]
    return [document]
