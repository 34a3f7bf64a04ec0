"""What Kueue says of a job that it admits, read from the Workload that it keeps for the Job.

Where Kueue is the authority, Evenkeel starts, stops and moves nothing by a quota of its own: it hands the Job over
suspended, and follows. Condition types and reasons are those of `apis/kueue/v1beta2/workload_types.go`; v1beta1 has the
same. A granular reason (`WaitingForQuota`) stands where an older Kueue says `Pending`; what it means is in the message.
"""

from datetime import datetime

from evenkeel.domain.values import Instant, Value

QUOTA_RESERVED, ADMITTED, EVICTED, FINISHED = "QuotaReserved", "Admitted", "Evicted", "Finished"
PODS_READY, REQUEUED, PREEMPTED = "PodsReady", "Requeued", "Preempted"


class KueueCondition(Value):
    """One condition of a Workload."""

    type: str
    is_true: bool
    reason: str = ""
    message: str = ""
    changed_at: Instant | None = None


class KueueCheck(Value):
    """One admission check of a Workload: `Pending`, `Ready`, `Retry` or `Rejected`."""

    name: str
    state: str
    message: str = ""


class KueueStatus(Value):
    """A Workload, reduced to what is decided and said about it."""

    name: str
    queue: str
    """Its LocalQueue."""
    cluster_queue: str = ""
    """Where it holds quota."""
    flavors: tuple[str, ...] = ()
    """Of what it holds quota, each once."""
    is_active: bool = True
    """False where somebody, or Kueue, has put it out of the queue until it is made active again."""
    conditions: tuple[KueueCondition, ...] = ()
    checks: tuple[KueueCheck, ...] = ()
    was_admitted: bool = False
    """Whether it had been admitted, and lost that: Kueue then notes for how long, and keeps the note."""
    requeue_at: Instant | None = None
    """When it is tried again at the earliest."""
    position: int | None = None
    """Among those that wait in its LocalQueue, by priority and age; None where it does not wait."""

    def condition(self, kind: str) -> KueueCondition | None:
        """Return a condition, true or false; None where it was never set."""
        return next((each for each in self.conditions if each.type == kind), None)

    def holds(self, kind: str) -> bool:
        """Whether a condition is true."""
        found = self.condition(kind)
        return found is not None and found.is_true

    @property
    def is_pending(self) -> bool:
        """Whether it waits for quota."""
        return not (self.holds(QUOTA_RESERVED) or self.holds(FINISHED))


class KueueEviction(Value):
    """Kueue took back what it had given."""

    reason: str
    """One sentence."""
    at: Instant | None = None
    was_preempted: bool = False
    """Whether others needed the room."""


def eviction_of(seen: KueueStatus) -> KueueEviction | None:
    """Return how a Workload lost what had been admitted; None where it never did.

    Kueue admits the same Job again once there is room, and its pods would begin where this attempt once began. So an
    attempt that was admitted and evicted is over, even where it is admitted again by now. One that was evicted while it
    held quota alone, waiting for its checks, has begun nothing: it keeps its place.
    """
    evicted = seen.condition(EVICTED)
    is_evicted = evicted is not None and evicted.is_true
    if not seen.was_admitted and not (is_evicted and seen.holds(ADMITTED)):
        return None
    if evicted is None or not is_evicted:
        return KueueEviction(reason="Kueue evicted the job, then admitted it again.", at=None)
    why = _WHY_EVICTED.get(evicted.reason, f"Kueue evicted the job ({evicted.reason})")
    message = _as_sentence(evicted.message)
    return KueueEviction(
        reason=f"{why}: {message}" if message else f"{why}.",
        at=evicted.changed_at,
        was_preempted=evicted.reason == PREEMPTED,
    )


_WHY_EVICTED = {
    "Preempted": "Kueue preempted the job",
    "PodsReadyTimeout": "Kueue evicted the job because its pods were not ready in time",
    "AdmissionCheck": "Kueue evicted the job because an admission check failed",
    "ClusterQueueStopped": "Kueue evicted the job because its ClusterQueue was stopped",
    "LocalQueueStopped": "Kueue evicted the job because its LocalQueue was stopped",
    "NodeFailures": "Kueue evicted the job because one of its nodes failed",
    "Deactivated": "Kueue evicted the job because its Workload was made inactive",
}


def describe_status(seen: KueueStatus | None, queue: str, now: datetime) -> str:
    """Say in plain words where a job stands with Kueue.

    Args:
        seen: Its Workload; None where Kueue has made none.
        queue: The LocalQueue that it was handed to.
        now: The time.
    """
    if seen is None:
        return f"Kueue has no Workload for the job in LocalQueue {queue} yet."
    if not seen.is_active:
        return "The job's Workload is inactive. Kueue admits it only after its spec.active is set to true again."
    if seen.holds(ADMITTED):
        return f"Kueue admitted the job{_queue_position(seen)}."
    if seen.holds(QUOTA_RESERVED):
        return f"Kueue reserved quota for the job{_queue_position(seen)} and waits for {_checks(seen)}."
    found = seen.condition(QUOTA_RESERVED)
    place = f", {_ordinal(seen.position)} of its LocalQueue" if seen.position else ""
    if seen.requeue_at is not None and seen.requeue_at > now:
        again = f"Kueue tries again after {seen.requeue_at:%H:%M:%S} UTC"
        return f"The job waits in Kueue's queue {seen.queue}{place}: {again}."
    evicted = seen.condition(EVICTED)
    if found is None:
        return f"The job waits in Kueue's queue {seen.queue}{place}: Kueue has not evaluated the job yet."
    why = _WHY_PENDING.get(found.reason, "")
    message = _as_sentence(found.message)
    text = ": ".join(each for each in (why, message) if each) or "Kueue gives no reason."
    before = f" Kueue evicted the job before ({evicted.reason})." if evicted is not None and evicted.is_true else ""
    return f"The job waits in Kueue's queue {seen.queue}{place}. {text[0].upper()}{text[1:]}{before}"


def status_step(seen: KueueStatus | None) -> str:
    """Return Kueue's own words for where a job stands, without what changes from cycle to cycle: a story of them."""
    if seen is None:
        return ""
    if not seen.is_active:
        return "Inactive"
    for kind in (ADMITTED, QUOTA_RESERVED):
        if seen.holds(kind):
            return kind
    evicted, found = seen.condition(EVICTED), seen.condition(QUOTA_RESERVED)
    if evicted is not None and evicted.is_true:
        return f"Evicted/{evicted.reason}"
    return f"Pending/{found.reason}" if found is not None and found.reason else "Pending"


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


def _queue_position(seen: KueueStatus) -> str:
    of = f" of {', '.join(seen.flavors)}" if seen.flavors else ""
    return f" by quota{of} in ClusterQueue {seen.cluster_queue}" if seen.cluster_queue else ""


def _checks(seen: KueueStatus) -> str:
    waiting = [each for each in seen.checks if each.state != "Ready"]
    if not waiting:
        return "its admission"
    named = ", ".join(
        f"{each.name} ({each.state}{': ' + _as_sentence(each.message).rstrip('.') if each.message else ''})"
        for each in waiting
    )
    return f"its admission checks: {named}"


_MAX_MESSAGE = 600


def _as_sentence(message: str) -> str:
    """Return a message as one sentence, no longer than a reader wants."""
    text = " ".join(message.split())[:_MAX_MESSAGE]
    return text if not text or text.endswith((".", "!", "?")) else f"{text}."


def _ordinal(number: int) -> str:
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
