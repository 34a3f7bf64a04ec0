"""The admission check `evenkeel.io/burst`: how Kueue asks Evenkeel for nodes, and how Evenkeel answers.

    Kueue reserves quota ── check Pending ── Evenkeel rents ── check Ready, with the nodes ── Kueue admits
                                  │
                                  └── Retry: Kueue releases the quota and tries again later

Sources: `apis/kueue/v1beta2/workload_types.go` and `admissioncheck_types.go`; v1beta1 has the same fields.
"""

from collections.abc import Mapping
from enum import StrEnum

from pydantic import Field

from evenkeel.domain.values import Value

CONTROLLER = "evenkeel.io/burst"
"""`spec.controllerName` of the AdmissionChecks that Evenkeel answers."""
MAX_MESSAGE = 4_000
"""Kueue allows 32,768 characters, but repeats the message in events and conditions."""
RENTAL_NODE_LABEL = "evenkeel.io/rental"
"""Label of the nodes that were rented for a job in Kueue's queue: the name of their rental."""


class BurstCheckState(StrEnum):
    """State of an admission check of a Workload, in Kueue's words."""

    PENDING = "Pending"
    READY = "Ready"
    RETRY = "Retry"
    """Kueue releases the quota of the Workload and tries again after `requeueAfterSeconds`."""
    REJECTED = "Rejected"
    """Kueue makes the Workload inactive. It stays so until a person makes it active again."""


class CheckedWorkload(Value):
    """A Workload of Kueue that has Evenkeel's check."""

    cluster: str
    namespace: str
    name: str
    resource_version: str = ""
    """Version of the object. An answer is written only to this version."""
    job_name: str = ""
    """Name of the Job that controls it; empty if no Job does."""
    job_uid: str = ""
    check: str
    """Name of the AdmissionCheck."""
    state: BurstCheckState
    message: str = ""
    retry_count: int = 0
    """How often Evenkeel has answered `Retry`. Kueue counts it."""
    node_selector: Mapping[str, str] = {}
    """Node selector of the last answer."""
    has_quota: bool = False
    is_admitted: bool = False
    is_over: bool = False
    """Whether it has finished, is inactive, or is being evicted."""
    pod_sets: tuple[str, ...] = ()
    """Names of its pod sets."""
    pods: int = 0
    """Pods that Kueue reserved quota for. With partial admission, fewer than requested."""
    flavors: tuple[str, ...] = ()
    """Flavors of its quota, each once."""
    node_labels: Mapping[str, str] = {}
    """Node labels of these flavors: Kueue adds them to the pods' node selector."""
    open_checks: tuple[str, ...] = ()
    """Names of the checks of other controllers that are not `Ready`."""
    covers_all_flavors: bool = False
    """Whether its ClusterQueue asks for this check with every flavor."""

    @property
    def label(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def is_waiting(self) -> bool:
        """Whether Kueue waits for the answer."""
        return self.has_quota and not self.is_admitted and not self.is_over

    def has_answer(self, answer: "BurstCheckAnswer") -> bool:
        """Whether the Workload has this answer already."""
        return (self.state, self.message, dict(self.node_selector)) == (
            answer.state,
            answer.message,
            dict(answer.node_selector),
        )


class BurstCheckAnswer(Value):
    """The answer to a check of one Workload."""

    state: BurstCheckState
    message: str = Field(max_length=MAX_MESSAGE)
    node_selector: Mapping[str, str] = {}
    """The node selector of all its pod sets, with `Ready`."""
    requeue_after_seconds: int | None = None
    """The time until Kueue tries again, with `Retry`."""
