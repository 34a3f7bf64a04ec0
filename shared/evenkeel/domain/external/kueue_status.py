"""The status of a job that Kueue admits, read from its Workload.

If Kueue is the authority, Evenkeel has no quota of its own. It creates a suspended Kubernetes Job and follows Kueue.
Condition types and reasons follow `apis/kueue/v1beta2/workload_types.go`; v1beta1 has the same. A newer Kueue
gives specific reasons (`WaitingForQuota`) where an older one gives `Pending`.
"""

from collections.abc import Mapping
from datetime import datetime

from evenkeel.domain.external.burst_check_protocol import RENTAL_NODE_LABEL, BurstCheckState
from evenkeel.domain.values import Instant, Value

QUOTA_RESERVED, ADMITTED, EVICTED, FINISHED = "QuotaReserved", "Admitted", "Evicted", "Finished"
PREEMPTED = "Preempted"


class KueueCondition(Value):
    """A condition of a Workload."""

    type: str
    is_true: bool
    reason: str = ""
    message: str = ""
    changed_at: Instant | None = None


class KueueCheck(Value):
    """An admission check of a Workload: `Pending`, `Ready`, `Retry` or `Rejected`."""

    name: str
    state: str
    message: str = ""
    node_selector: Mapping[str, str] = {}
    """Node selector that it adds to the pods."""


class KueueStatus(Value):
    """A Workload, reduced to the fields that decisions and messages need."""

    name: str
    queue: str
    """The LocalQueue."""
    cluster_queue: str = ""
    """The ClusterQueue in which it holds quota."""
    flavors: tuple[str, ...] = ()
    """The flavors of its quota, each once."""
    is_active: bool = True
    """False if a user or Kueue deactivated it. Kueue then ignores it until it is active again."""
    conditions: tuple[KueueCondition, ...] = ()
    checks: tuple[KueueCheck, ...] = ()
    was_admitted: bool = False
    """Whether it was admitted and then evicted: Kueue then records the past execution time in its status."""
    requeue_at: Instant | None = None
    """The earliest time at which Kueue tries it again."""
    position: int | None = None
    """Its position among the pending Workloads of its LocalQueue, by priority and age; None if it is not pending."""

    def condition(self, kind: str) -> KueueCondition | None:
        """Return a condition, true or false; None if it was never set."""
        return next((condition for condition in self.conditions if condition.type == kind), None)

    def is_true(self, kind: str) -> bool:
        """Whether a condition is true."""
        condition = self.condition(kind)
        return condition is not None and condition.is_true

    @property
    def holds_quota(self) -> bool:
        """Whether quota is reserved for it. An evicted Workload is about to lose it."""
        return self.is_true(QUOTA_RESERVED) and not self.is_true(EVICTED) and not self.is_true(FINISHED)

    def is_sent_to(self, rental: str) -> bool:
        """Whether a check sends its pods to the nodes of a rental.

        Only a check that is `Ready` does. An eviction resets the state, but Kueue's patch may leave the node selector,
        because Evenkeel's write owns that field.
        """
        return any(
            check.state == BurstCheckState.READY and check.node_selector.get(RENTAL_NODE_LABEL) == rental
            for check in self.checks
        )

    @property
    def is_pending(self) -> bool:
        """Whether it waits for quota."""
        return not (self.is_true(QUOTA_RESERVED) or self.is_true(FINISHED))


class KueueEviction(Value):
    """An eviction by Kueue."""

    reason: str
    """The reason as a sentence."""
    at: Instant | None = None
    was_preempted: bool = False
    """Whether Kueue preempted it for another workload."""


def eviction_of(workload: KueueStatus) -> KueueEviction | None:
    """Return how an admitted Workload was evicted; None if it was not.

    Kueue admits the same Job again when it fits, and its pods would start with the arguments of the old attempt. An
    attempt that was admitted and evicted is therefore over, even if Kueue has admitted the Job again. A Workload that
    was evicted before its checks passed has started nothing: it stays in the queue.
    """
    eviction_condition = workload.condition(EVICTED)
    is_evicted = eviction_condition is not None and eviction_condition.is_true
    if not workload.was_admitted and not (is_evicted and workload.is_true(ADMITTED)):
        return None
    if eviction_condition is None or not is_evicted:
        return KueueEviction(reason="Kueue evicted the job, then admitted it again.", at=None)
    reason = _why_evicted(eviction_condition.reason)
    message = _as_sentence(eviction_condition.message)
    return KueueEviction(
        reason=f"{reason}: {message}" if message else f"{reason}.",
        at=eviction_condition.changed_at,
        was_preempted=eviction_condition.reason == PREEMPTED,
    )


def _why_evicted(reason: str) -> str:
    """Describe the reason of an eviction. `Deactivated` may name its cause: `DeactivatedDueToAdmissionCheck`."""
    return _WHY_EVICTED.get(reason.partition("DueTo")[0], f"Kueue evicted the job ({reason})")


_WHY_EVICTED = {
    "Preempted": "Kueue preempted the job",
    "PodsReadyTimeout": "Kueue evicted the job because its pods were not ready in time",
    "AdmissionCheck": "Kueue evicted the job because an admission check failed",
    "ClusterQueueStopped": "Kueue evicted the job because its ClusterQueue was stopped",
    "LocalQueueStopped": "Kueue evicted the job because its LocalQueue was stopped",
    "NodeFailures": "Kueue evicted the job because one of its nodes failed",
    "Deactivated": "Kueue evicted the job because its Workload was made inactive",
}


def describe_status(workload: KueueStatus | None, queue: str, now: datetime) -> str:
    """Describe the status of a job in Kueue.

    Args:
        workload: The job's Workload; None if Kueue has created none.
        queue: The LocalQueue of the job.
        now: The time.
    """
    if workload is None:
        return f"Kueue has no Workload for the job in LocalQueue {queue} yet."
    if not workload.is_active:
        return "The job's Workload is inactive. Kueue admits it only after its spec.active is set to true again."
    if workload.is_true(ADMITTED):
        return f"Kueue admitted the job{_quota_text(workload)}."
    if workload.is_true(QUOTA_RESERVED):
        return f"Kueue reserved quota for the job{_quota_text(workload)} and waits for {_open_checks(workload)}."
    condition = workload.condition(QUOTA_RESERVED)
    position_text = f", {_ordinal(workload.position)} of its LocalQueue" if workload.position else ""
    if workload.requeue_at is not None and workload.requeue_at > now:
        requeue_text = f"Kueue tries again after {workload.requeue_at:%H:%M:%S} UTC"
        return f"The job waits in Kueue's queue {workload.queue}{position_text}: {requeue_text}."
    eviction_condition = workload.condition(EVICTED)
    if condition is None:
        return f"The job waits in Kueue's queue {workload.queue}{position_text}: Kueue has not evaluated the job yet."
    reason = _WHY_PENDING.get(condition.reason, "")
    message = _as_sentence(condition.message)
    text = ": ".join(text_part for text_part in (reason, message) if text_part) or "Kueue gives no reason."
    eviction_text = (
        f" Kueue evicted the job before ({eviction_condition.reason})."
        if eviction_condition is not None and eviction_condition.is_true
        else ""
    )
    return f"The job waits in Kueue's queue {workload.queue}{position_text}. {text[0].upper()}{text[1:]}{eviction_text}"


def status_step(workload: KueueStatus | None) -> str:
    """Return a short code for the status of a job in Kueue. The code changes only if the status changes."""
    if workload is None:
        return ""
    if not workload.is_active:
        return "Inactive"
    for kind in (ADMITTED, QUOTA_RESERVED):
        if workload.is_true(kind):
            return kind
    eviction_condition, condition = workload.condition(EVICTED), workload.condition(QUOTA_RESERVED)
    if eviction_condition is not None and eviction_condition.is_true:
        return f"Evicted/{eviction_condition.reason}"
    return f"Pending/{condition.reason}" if condition is not None and condition.reason else "Pending"


_WHY_PENDING = {
    "WaitingForQuota": "no quota is free for the job",
    "ExceedsMaxQuota": "the job asks for more than its queue can ever have",
    "NoMatchingFlavor": "no flavor of its queue matches its pods",
    "TopologyPlacementFailed": "its pods do not fit into one topology domain",
    "WaitingForPreemptedWorkloads": "preempted workloads have not stopped yet",
    "WaitingForPodsReady": "Kueue admits no workload until the pods of all admitted workloads are ready",
    "Misconfigured": "its queue is misconfigured",
    "Inadmissible": "its queue does not accept the job",
    "Suspended": "its queue is stopped",
    "OnHold": "its queue is stopped",
    "AdmissionGated": "an admission gate holds the job back",
}


def _quota_text(workload: KueueStatus) -> str:
    flavors = f" of {', '.join(workload.flavors)}" if workload.flavors else ""
    return f" by quota{flavors} in ClusterQueue {workload.cluster_queue}" if workload.cluster_queue else ""


def _open_checks(workload: KueueStatus) -> str:
    open_checks = [check for check in workload.checks if check.state != "Ready"]
    if not open_checks:
        return "its admission"
    check_texts = ", ".join(
        f"{check.name} ({check.state}{': ' + _as_sentence(check.message).rstrip('.') if check.message else ''})"
        for check in open_checks
    )
    return f"its admission checks: {check_texts}"


_MAX_MESSAGE = 600


def _as_sentence(message: str) -> str:
    """Return a message as one sentence, at most `_MAX_MESSAGE` characters long."""
    text = " ".join(message.split())[:_MAX_MESSAGE]
    return text if not text or text.endswith((".", "!", "?")) else f"{text}."


def _ordinal(number: int) -> str:
    suffix = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"
