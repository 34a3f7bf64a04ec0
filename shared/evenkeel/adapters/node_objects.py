"""Read Kubernetes nodes. Pure."""

from collections.abc import Mapping
from typing import Any

from evenkeel.adapters.object_fields import (
    HUGE_PAGES,
    MESSAGE_LIMIT,
    MIB,
    NAME_LIMIT,
    SAGEMAKER,
    accelerators_in,
    parse_instant,
    parse_quantity,
)
from evenkeel.domain.capacity.instance_types import EFA
from evenkeel.domain.nodes import (
    AWAITING_VALIDATION_TAINT,
    INCIDENT_ANNOTATION,
    KARPENTER_LABEL,
    KubernetesNode,
    NodeCondition,
    parse_provider_id,
)

_DETAILS = (f"{SAGEMAKER}/fault-details", f"{SAGEMAKER}/fault-detail")
_KUBELETS = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")
"""Conditions of the kubelet itself and of the network plugin. Kubernetes handles them with taints."""
_POOL_LABELS = (f"{SAGEMAKER}/instance-group-name", KARPENTER_LABEL, "eks.amazonaws.com/nodegroup")


def read_node(cluster: str, node: Mapping[str, Any]) -> KubernetesNode:
    """Parse a node object."""
    metadata, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    taints = spec.get("taints") or ()
    provider = parse_provider_id(spec.get("providerID") or "")
    ready = next((condition for condition in status.get("conditions") or () if condition["type"] == "Ready"), None)
    is_ready = ready is not None and ready["status"] == "True"
    since = (ready or {}).get("lastTransitionTime") or metadata.get("creationTimestamp")
    is_cordoned = bool(spec.get("unschedulable"))
    allocatable = status.get("allocatable") or {}
    resource, count = accelerators_in(allocatable)
    return KubernetesNode(
        cluster=cluster,
        name=metadata["name"],
        instance_id=provider.instance_id if provider else None,
        hyperpod_cluster_id=provider.hyperpod_cluster_id if provider else None,
        created_at=parse_instant(metadata.get("creationTimestamp")),
        pool=next((labels[label] for label in _POOL_LABELS if label in labels), ""),
        instance_type=labels.get("node.kubernetes.io/instance-type", ""),
        zone=labels.get("topology.kubernetes.io/zone", ""),
        boot_id=(status.get("nodeInfo") or {}).get("bootID", "")[:NAME_LIMIT],
        resource_version=metadata.get("resourceVersion", ""),
        is_ready=is_ready,
        not_ready_since=None if is_ready else parse_instant(since),
        ready_since=parse_instant(since) if is_ready else None,
        is_cordoned=is_cordoned,
        incident_id=annotations[INCIDENT_ANNOTATION][:NAME_LIMIT]
        if is_cordoned and INCIDENT_ANNOTATION in annotations
        else None,
        is_awaiting_validation=any(taint["key"] == AWAITING_VALIDATION_TAINT for taint in taints),
        taints=tuple(f"{taint['key']}={taint.get('value') or ''}:{taint['effect']}" for taint in taints),
        accelerators=count,
        accelerator_resource=resource,
        cpu_millis=parse_quantity("cpu", allocatable.get("cpu", 0)),
        memory_mib=parse_quantity("memory", allocatable.get("memory", 0)) // MIB,
        efa=parse_quantity(EFA, allocatable.get(EFA, 0)),
        huge_pages_mib=parse_quantity(HUGE_PAGES, allocatable.get(HUGE_PAGES, 0)) // MIB,
        labels=labels,
        fault_details=next((annotations[key] for key in _DETAILS if annotations.get(key)), ""),
        conditions=tuple(
            NodeCondition(
                type=condition["type"],
                status=condition["status"],
                reason=(condition.get("reason") or "")[:NAME_LIMIT],
                message=(condition.get("message") or "")[:MESSAGE_LIMIT],
                changed_at=parse_instant(condition.get("lastTransitionTime")),
            )
            for condition in status.get("conditions") or ()
            if condition["type"] not in _KUBELETS
        ),
    )
