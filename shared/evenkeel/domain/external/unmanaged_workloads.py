"""Unmanaged workloads: pods that Evenkeel did not start, and the actions that it may take on them."""

from collections.abc import Iterable
from enum import StrEnum

from evenkeel.domain.capacity.pool_choices import Toleration
from evenkeel.domain.values import Instant, Value

RESUME_LABEL = "evenkeel.io/resume"
RESUME_ALLOWED = "allowed"
"""Label value with which an owner lets Evenkeel recover a workload, before a repair would end its pods."""


class Consent(StrEnum):
    """Whether the owner of an unmanaged workload lets Evenkeel recover it, by its label or its pods' label."""

    UNSET = "UNSET"
    """No label: the policy's `adoption.namespaces` decide."""
    ALLOWED = "ALLOWED"
    FORBIDDEN = "FORBIDDEN"
    """Any other value of the label."""


def is_allowed(consent: Consent, *, by_policy: bool) -> bool:
    """Whether Evenkeel may recover an unmanaged workload. The label of the workload overrides the policy."""
    return consent is Consent.ALLOWED or (consent is Consent.UNSET and by_policy)


class PodRecreation(StrEnum):
    """How a pod is recreated after it is gone."""

    BY_OWNER = "BY_OWNER"
    """Its controller creates a new pod."""
    BY_HYPERPOD = "BY_HYPERPOD"
    """HyperPod restarts its job. Evenkeel must not, because the job would restart twice."""
    NEVER = "NEVER"
    """No controller creates a new pod."""


class ManagedKind(StrEnum):
    """The kinds of objects that Evenkeel starts in a cluster."""

    ATTEMPT = "ATTEMPT"
    RENTAL = "RENTAL"
    CHECK = "CHECK"


class LabelledOwner(Value):
    """The attempt, rental or check that a pod's labels name.

    Any user may write labels: `services/recovery/unmanaged_pods.py` compares them with the ledger.
    """

    kind: ManagedKind
    name: str
    """Name of the Kubernetes Job that Evenkeel starts for it, by the pod's labels."""
    job_id: str = ""
    attempt: int = 0
    controller: str = ""
    """Name of the Kubernetes Job that controls the pod; empty if no Job does."""
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
    consent: Consent = Consent.UNSET
    created_at: Instant | None = None
    tolerations: tuple[Toleration, ...] = ()
    selector: dict[str, str] = {}
    """Labels that its node must have (`nodeSelector`)."""
    claim: LabelledOwner | None = None
    """The attempt, rental or check that its labels name; None for a pod without Evenkeel's labels."""
    is_unready: bool = False
    """Whether its status does not show it as ready, or it is being deleted."""

    @property
    def label(self) -> str:
        """`PyTorchJob research/llama`, or `pod research/debug`."""
        return f"{self.kind or 'pod'} {self.namespace}/{self.workload}"

    @property
    def is_movable(self) -> bool:
        """Whether Evenkeel may evict it early, so that its owner starts it on another node."""
        return self.consent is Consent.ALLOWED and self.recreation is PodRecreation.BY_OWNER


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
    consent: Consent
    claims: str = ""
    """The attempt, rental or node test whose labels it carries without belonging to it; empty for none."""

    @property
    def label(self) -> str:
        """`PyTorchJob research/llama`, or `pod research/debug`."""
        return f"{self.kind or 'pod'} {self.namespace}/{self.name}"


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
            consent=_consent_of_all(group),
            claims=next((pod.claim.name for pod in group if pod.claim), ""),
        )
        for (namespace, kind, name), group in sorted(groups.items())
    )


def _consent_of_all(pods: Iterable[UnmanagedPod]) -> Consent:
    """Return the consent for a whole workload: one pod that forbids it decides, and all must allow it."""
    consents = {pod.consent for pod in pods}
    if Consent.FORBIDDEN in consents:
        return Consent.FORBIDDEN
    return Consent.ALLOWED if consents == {Consent.ALLOWED} else Consent.UNSET
