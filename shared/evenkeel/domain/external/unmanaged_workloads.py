"""Unmanaged workloads: pods that Evenkeel did not start, and what it may do with them."""

from collections.abc import Iterable
from enum import StrEnum
from typing import assert_never

from evenkeel.domain.capacity.pool_choices import Toleration
from evenkeel.domain.values import Instant, Value

RESUME_LABEL = "evenkeel.io/resume"
RESUME_ALLOWED = "allowed"
"""Label value with which an owner lets Evenkeel move the pods before a repair would end them."""


class PodRecreation(StrEnum):
    """How a pod is recreated after it is gone."""

    BY_OWNER = "BY_OWNER"
    """Its controller creates a new pod."""
    BY_HYPERPOD = "BY_HYPERPOD"
    """HyperPod restarts its job. Evenkeel must not, or it would be restarted twice."""
    NEVER = "NEVER"
    """No controller creates a new pod."""


class ManagedKind(StrEnum):
    """The kinds of objects that Evenkeel starts in a cluster."""

    ATTEMPT = "ATTEMPT"
    RENTAL = "RENTAL"
    CHECK = "CHECK"


class OwnershipClaim(Value):
    """Which attempt, rental or check a pod claims by its labels.

    Any user may write labels: `services/recovery/unmanaged.py` compares the claim with the ledger.
    """

    kind: ManagedKind
    name: str
    """Name of the Kubernetes Job that Evenkeel starts for it, by the pod's labels."""
    job_id: str = ""
    attempt: int = 0
    controller: str = ""
    """Name of the Kubernetes Job that controls the pod; empty where no Job does."""
    controller_uid: str = ""
    decision_id: str = ""


class UnmanagedPod(Value):
    """A pod, reduced to the fields that decisions need. Pods of DaemonSets and static pods are left out."""

    namespace: str
    name: str
    uid: str
    node_name: str
    accelerators: int
    kind: str = ""
    """Kind of its workload: `PyTorchJob`, `HyperPodPyTorchJob`, `JobSet`, `Job`, …; empty for a bare pod."""
    workload: str = ""
    """Name of its workload; the pod's own name for a bare pod."""
    recreation: PodRecreation = PodRecreation.NEVER
    may_move: bool = False
    """Whether its label allows Evenkeel to move it."""
    created_at: Instant | None = None
    tolerations: tuple[Toleration, ...] = ()
    selector: dict[str, str] = {}
    """Labels that its node must have (`nodeSelector`)."""
    claim: OwnershipClaim | None = None
    """The attempt, rental or check that its labels name; None for a pod without Evenkeel's labels."""

    @property
    def label(self) -> str:
        """`PyTorchJob research/llama`, or `pod research/debug`."""
        return f"{self.kind or 'pod'} {self.namespace}/{self.workload}"

    @property
    def is_movable(self) -> bool:
        """Whether Evenkeel may evict it early, so that its owner starts it on another node."""
        return self.may_move and self.recreation is PodRecreation.BY_OWNER


class UnmanagedWorkload(Value):
    """All pods of one unmanaged workload in one cluster."""

    cluster: str
    namespace: str
    kind: str
    name: str
    pods: int
    accelerators: int
    node_names: tuple[str, ...]
    recreation: PodRecreation
    may_move: bool
    claims: str = ""
    """The attempt, rental or node test whose labels it carries without belonging to it; empty for none."""

    @property
    def label(self) -> str:
        """`PyTorchJob research/llama`, or `pod research/debug`."""
        return f"{self.kind or 'pod'} {self.namespace}/{self.name}"


def fault_consequence(workload: UnmanagedWorkload) -> str:
    """Describe what happens to a workload when its node becomes faulty, and whether it has Evenkeel's labels."""
    message = _on_faulty_node(workload)
    return (
        f"{message} It carries the labels of {workload.claims} but does not belong to that job."
        if workload.claims
        else message
    )


def _on_faulty_node(workload: UnmanagedWorkload) -> str:
    match workload.recreation:
        case PodRecreation.BY_HYPERPOD:
            return "HyperPod restarts it, so Evenkeel does not move it."
        case PodRecreation.NEVER:
            return "No controller would restart it, so it runs until its node is removed."
        case PodRecreation.BY_OWNER if workload.may_move:
            return "Its label allows Evenkeel to move it as soon as its node is faulty."
        case PodRecreation.BY_OWNER:
            label = f"{RESUME_LABEL}={RESUME_ALLOWED}"
            return f"Evenkeel evicts it right before a repair. With the label {label}, Evenkeel moves it at once."
        case _:
            assert_never(workload.recreation)


def unmanaged_workloads(cluster: str, pods: Iterable[UnmanagedPod]) -> tuple[UnmanagedWorkload, ...]:
    """Return the unmanaged workloads of a cluster, by namespace, kind and name."""
    groups: dict[tuple[str, str, str], list[UnmanagedPod]] = {}
    for pod in pods:
        groups.setdefault((pod.namespace, pod.kind, pod.workload), []).append(pod)
    return tuple(
        UnmanagedWorkload(
            cluster=cluster,
            namespace=namespace,
            kind=kind,
            name=name,
            pods=len(group),
            accelerators=sum(pod.accelerators for pod in group),
            node_names=tuple(sorted({pod.node_name for pod in group if pod.node_name})),
            recreation=group[0].recreation,
            may_move=all(pod.may_move for pod in group),
            claims=next((pod.claim.name for pod in group if pod.claim), ""),
        )
        for (namespace, kind, name), group in sorted(groups.items())
    )
