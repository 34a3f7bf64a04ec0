"""Read the pods that Evenkeel does not launch, and the resources that they request. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from evenkeel.adapters.object_fields import (
    CHECK_LABEL,
    FLEET_LABEL,
    JOB_LABEL,
    MIB,
    RENTAL_LABEL,
    Json,
    accelerators_in,
    condition_of,
    controller_of,
    has_condition,
    parse_instant,
    parse_quantity,
)
from evenkeel.adapters.operator_restarts import consent_of, recreation_of
from evenkeel.adapters.workloads import Controllers, attempt_of, decision_of, trim_object, workload_name
from evenkeel.domain.capacity.pool_choices import Effect, Operator, Toleration
from evenkeel.domain.external.unmanaged_workloads import (
    LabelledOwner,
    ManagedKind,
    UnmanagedPod,
)
from evenkeel.domain.jobs.workload_kind import WorkloadKind
from evenkeel.domain.resources import NONE, Resources
from evenkeel.ports import PodGroup

_MIRROR = "kubernetes.io/config.mirror"


def is_movable_kind(pod: Mapping[str, Any]) -> bool:
    """Whether a pod belongs to a workload. Pods of a DaemonSet and static pods belong to their node instead.

    A static pod is recognised by its mirror annotation, which only a kubelet may set. Any user can write a Node into
    `ownerReferences`.
    """
    kind = controller_of(pod)[0]
    return kind != "DaemonSet" and not (kind == "Node" and _MIRROR in (pod["metadata"].get("annotations") or {}))


def labelled_owner_of(pod: Mapping[str, Any], controllers: Controllers, fleet: str) -> LabelledOwner | None:
    """Return the attempt, rental or check that a pod's labels name; None if they name none."""
    labels = pod["metadata"].get("labels") or {}
    if labels.get(FLEET_LABEL) != fleet:
        return None
    owner = controllers.controller_of(pod)
    claim: Json = {"controller": owner.name, "controller_uid": owner.uid, "decision_id": decision_of(pod)}
    if name := attempt_of(pod):
        job_id, attempt = name
        return LabelledOwner(
            kind=ManagedKind.ATTEMPT, name=workload_name(*name), job_id=job_id, attempt=attempt, **claim
        )
    for label, kind in ((RENTAL_LABEL, ManagedKind.RENTAL), (CHECK_LABEL, ManagedKind.CHECK)):
        if labels.get(label):
            if owner.kind != WorkloadKind.JOB:  # Evenkeel creates only Jobs for these, so it is another's workload
                claim |= {"controller": "", "controller_uid": ""}
            return LabelledOwner(kind=kind, name=labels[label], **claim)
    return None


def trim_unmanaged_pod(pod: Json) -> Json | None:
    """Reduce a pod to the fields that `read_unmanaged_pod` needs; None if it belongs to no workload."""
    if not is_movable_kind(pod):
        return None
    source_metadata, spec = pod["metadata"], pod.get("spec") or {}
    metadata = (
        "namespace",
        "name",
        "uid",
        "labels",
        "annotations",
        "ownerReferences",
        "creationTimestamp",
        "deletionTimestamp",
    )
    ready = condition_of(pod.get("status") or {}, "Ready", "True")
    return {
        "metadata": {name: source_metadata[name] for name in metadata if name in source_metadata},
        "spec": {
            **{name: spec[name] for name in ("nodeName", "tolerations", "nodeSelector") if name in spec},
            **_pod_requests(spec),
        },
        **({"status": {"conditions": [{"type": "Ready", "status": "True"}]}} if ready else {}),
    }


def read_placed_pod(pod: Json) -> tuple[str, Resources] | None:
    """Return the name of a pod's node and the pod's requests; None if it is on no node."""
    node_name = (pod.get("spec") or {}).get("nodeName")
    return (node_name, resources_requested(pod)) if node_name else None


def read_own_pod(pod: Json) -> tuple[Json | None, tuple[str, Resources] | None]:
    """Return a pod with this fleet's label, its node and its requests, in the form that `read_workloads` needs.

    The first is None if the pod belongs to no attempt, the second if it is on no node.
    """
    is_of_attempt = JOB_LABEL in (pod["metadata"].get("labels") or {})
    return (trim_object(pod) if is_of_attempt else None), read_placed_pod(pod)


class LivePod(NamedTuple):
    """A pod, reduced to the fields that lists of all live pods need."""

    is_bound: bool
    """Whether it has the label of DaemonSets' pods."""
    node_requests: tuple[str, Resources] | None
    """Its node and its requests; None if it is on no node."""
    unmanaged: Json | None
    """As `read_unmanaged_pod` needs it; None if it belongs to no workload."""


def read_live_pod(pod: Json) -> LivePod:
    """Reduce a live pod."""
    is_bound = PodGroup.BOUND in (pod["metadata"].get("labels") or {})
    return LivePod(is_bound, read_placed_pod(pod), trim_unmanaged_pod(pod))


def _pod_requests(spec: Mapping[str, Any]) -> Json:
    containers = {
        kind: [
            {name: container[name] for name in ("resources", "restartPolicy") if name in container}
            for container in spec[kind]
        ]
        for kind in ("containers", "initContainers")
        if spec.get(kind)
    }
    return {**containers, **({"overhead": spec["overhead"]} if spec.get("overhead") else {})}


def read_unmanaged_pod(pod: Mapping[str, Any], controllers: Controllers, fleet: str) -> UnmanagedPod:
    """Parse a pod that may be outside Evenkeel.

    Args:
        pod: The pod.
        controllers: The workloads of its cluster.
        fleet: Name of this fleet. Labels of other fleets are ignored.
    """
    metadata = pod["metadata"]
    owner, above = controllers.controller_of(pod), controllers.controllers_above(pod)
    kind, name = (owner.kind, owner.name) if owner.uid else controller_of(pod)
    return UnmanagedPod(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        node_name=(pod.get("spec") or {}).get("nodeName") or "",
        accelerators=resources_requested(pod).accelerators,
        kind=kind,
        workload=name or metadata["name"],
        recreation=recreation_of(pod, kind, above),
        consent=consent_of(*reversed(above), pod),
        created_at=parse_instant(metadata.get("creationTimestamp")),
        tolerations=_tolerations((pod.get("spec") or {}).get("tolerations") or ()),
        selector=(pod.get("spec") or {}).get("nodeSelector") or {},
        claim=labelled_owner_of(pod, controllers, fleet),
        is_unready="deletionTimestamp" in metadata or not has_condition(pod, "Ready"),
    )


def _tolerations(tolerations: Iterable[Mapping[str, Any]]) -> tuple[Toleration, ...]:
    """Parse a pod's tolerations. A toleration with an unknown operator or effect is left out."""
    return tuple(
        Toleration(
            key=toleration.get("key") or "",
            operator=Operator(toleration.get("operator") or Operator.EQUAL),
            value=toleration.get("value") or "",
            effect=Effect(toleration["effect"]) if toleration.get("effect") else None,
        )
        for toleration in tolerations
        if (toleration.get("operator") or Operator.EQUAL) in set(Operator)
        and (toleration.get("effect") or None) in {None, *Effect}
    )


def resources_requested(pod: Mapping[str, Any]) -> Resources:
    """Return the amounts that the scheduler reserves for a pod.

    Source: https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#resource-sharing-within-containers.
    Containers and sidecars run side by side; other init containers run alone, one after the other, before them.
    """
    spec = pod.get("spec") or {}
    sidecars, largest_request = NONE, NONE
    for container in spec.get("initContainers") or ():
        resources = _amounts_requested(container)
        if container.get("restartPolicy") == "Always":
            sidecars += resources
        else:
            largest_request = largest_request.at_least(sidecars + resources)
    total = sidecars
    for container in spec.get("containers") or ():
        total += _amounts_requested(container)
    return total.at_least(largest_request) + _amounts(spec.get("overhead") or {})


def _amounts_requested(container: Mapping[str, Any]) -> Resources:
    """Return the requests of a container. A resource with a limit alone is requested up to that limit."""
    resources = container.get("resources") or {}
    return _amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _amounts(quantities: Mapping[str, Any]) -> Resources:
    return Resources(
        accelerators=accelerators_in(quantities)[1],
        cpu_millis=parse_quantity("cpu", quantities.get("cpu", 0)),
        memory_mib=-(-parse_quantity("memory", quantities.get("memory", 0)) // MIB),
    )
