"""Work that Evenkeel did not start: pods of other operators, and what may be done about them."""

from collections.abc import Iterable
from enum import StrEnum
from typing import assert_never

from evenkeel.domain.capacity.pool_choices import Toleration
from evenkeel.domain.values import Instant, Value

RESUME_LABEL = "evenkeel.io/resume"
RESUME_ALLOWED = "allowed"
"""Value of the label by which a workload's owner lets Evenkeel move its pods before a repair would end them."""


class PodRecreation(StrEnum):
    """How a pod comes back after it is gone."""

    BY_OWNER = "BY_OWNER"
    """Its controller makes another one."""
    BY_HYPERPOD = "BY_HYPERPOD"
    """HyperPod restarts its job: hands off, or it would be restarted twice."""
    NEVER = "NEVER"
    """Nobody makes another one."""


class ManagedKind(StrEnum):
    """What Evenkeel starts in a cluster."""

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
    """One pod, reduced to what decisions rest on. Pods of a DaemonSet and static pods are not listed."""

    namespace: str
    name: str
    uid: str
    node_name: str
    accelerators: int
    kind: str = ""
    """Kind of the workload it belongs to: `PyTorchJob`, `HyperPodPyTorchJob`, `JobSet`, `Job`, …; empty = bare."""
    workload: str = ""
    """Name of that workload; the pod's own where it is bare."""
    recreation: PodRecreation = PodRecreation.NEVER
    may_move: bool = False
    """Whether its label says that it may be moved."""
    created_at: Instant | None = None
    tolerations: tuple[Toleration, ...] = ()
    selector: dict[str, str] = {}
    """Labels that its node must bear (`nodeSelector`)."""
    claim: OwnershipClaim | None = None
    """What of Evenkeel's it says it belongs to; None for a pod without Evenkeel's labels."""

    @property
    def label(self) -> str:
        """`PyTorchJob research/llama`, or `pod research/debug`."""
        return f"{self.kind or 'pod'} {self.namespace}/{self.workload}"

    @property
    def is_movable(self) -> bool:
        """Whether Evenkeel may end it before anything else would, so that its owner starts it again elsewhere."""
        return self.may_move and self.recreation is PodRecreation.BY_OWNER


class UnmanagedWorkload(Value):
    """All pods of one workload that is not ours, on one cluster."""

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
    """Say what happens to it when its machine sickens, and whether it only looks like Evenkeel's."""
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
            return "No controller would restart it, so it runs until its machine is removed."
        case PodRecreation.BY_OWNER if workload.may_move:
            return "Its label allows Evenkeel to move it as soon as its machine is faulty."
        case PodRecreation.BY_OWNER:
            label = f"{RESUME_LABEL}={RESUME_ALLOWED}"
            return f"Evenkeel evicts it right before a repair. With the label {label}, Evenkeel moves it at once."
        case _:
            assert_never(workload.recreation)


def unmanaged_workloads(cluster: str, pods: Iterable[UnmanagedPod]) -> tuple[UnmanagedWorkload, ...]:
    """Return the workloads of a cluster that are not ours, by namespace, kind and name."""
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
