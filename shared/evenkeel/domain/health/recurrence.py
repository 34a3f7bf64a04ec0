"""How often a fault came before: what is remembered of it, on which key it is counted, on which rung it then begins.

A fault counts once for each incident, and once for each burst, however many signals it has: what its repair did not
help with is counted, and not its noise.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import assert_never

from evenkeel.domain.health.faults import Fault, RecurKey, Rung, Severity
from evenkeel.domain.health.incidents import AffectedNode, NodeFact, Recurrence
from evenkeel.domain.values import Instant, Value

HISTORY_WINDOW = timedelta(days=30)
"""As long as the longest window of the catalogue."""
BURST_GAP = timedelta(minutes=3)
"""Codes of one node belong to one burst until they are silent for longer. Source: NVIDIA's Xid documentation."""
_MAX_OCCURRENCES = 60
_MAX_SOURCES = 10
"""Sources of one occurrence that are remembered: all occurrences of a place are one row."""


class FaultOccurrence(Value):
    """One fault of one incident."""

    fault_key: str
    incident_id: str
    life: str
    sources: tuple[str, ...] = ()
    gpu: str = ""
    link: str = ""
    jobs: tuple[str, ...] = ()
    first_at: Instant
    last_at: Instant


class FaultHistory(Value):
    """Earlier faults at one place: a node slot, a job or an instance group."""

    occurrences: tuple[FaultOccurrence, ...] = ()
    """By first signal, oldest first."""


_MAX_JOBS = 40
"""Jobs of one machine on which a fault is counted: each is a row of the commit that takes a fact in."""


def history_keys(fault: Fault, affected: AffectedNode) -> tuple[str, ...]:
    """Return where a fault of this seat is remembered: its seat always, and what else it is counted on."""
    more: tuple[str, ...] = ()
    if fault.recur_key is RecurKey.JOB:
        more = tuple(f"job/{job}" for job in affected.job_ids[:_MAX_JOBS])
    elif fault.recur_key is RecurKey.GROUP and affected.pool:
        more = (f"group/{affected.life.cluster}/{affected.pool}",)
    return (slot_history_key(affected.slot), *more)


def slot_history_key(slot: str) -> str:
    """Return the place of a node slot."""
    return f"seat/{slot}"


def with_occurrence(history: FaultHistory, fact: NodeFact, affected: AffectedNode, incident_id: str) -> FaultHistory:
    """Return a history with one more signal of an incident. The same signal again changes nothing."""
    seen = FaultOccurrence(
        fault_key=fact.fault_key,
        incident_id=incident_id,
        life=affected.life.key,
        sources=(fact.source,),
        gpu=fact.gpu,
        link=fact.link,
        jobs=affected.job_ids,
        first_at=fact.observed_at,
        last_at=fact.observed_at,
    )
    same = [each for each in history.occurrences if _is_same(each, seen)]
    merged = seen.but(
        sources=tuple(sorted({*seen.sources, *(source for each in same for source in each.sources)}))[:_MAX_SOURCES],
        jobs=tuple(sorted({*seen.jobs, *(job for each in same for job in each.jobs)}))[:_MAX_JOBS],
        first_at=min(each.first_at for each in (seen, *same)),
        last_at=max(each.last_at for each in (seen, *same)),
    )
    others = (each for each in history.occurrences if not _is_same(each, seen))
    fresh = (each for each in (*others, merged) if each.last_at > fact.observed_at - HISTORY_WINDOW)
    kept = sorted(fresh, key=lambda each: (each.first_at, each.incident_id, each.fault_key, each.gpu, each.link))
    return FaultHistory(occurrences=tuple(kept[-_MAX_OCCURRENCES:]))


def _is_same(one: FaultOccurrence, other: FaultOccurrence) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in ("fault_key", "incident_id", "gpu", "link"))


def find_recurrence(
    fault: Fault, fact: NodeFact, affected: AffectedNode, histories: Iterable[FaultHistory], *, incident_id: str
) -> Recurrence | None:
    """Say on which rung a fault begins that came before; None where it begins on its own first.

    The N-th occurrence inside the window begins on the second rung, each further one on the next. After the last comes
    a person where no rung touches the machine; where one does, the last stays. A fault of severity info pages no one.

    Args:
        fault: The fault, as the site has it.
        fact: The signal.
        affected: The machine.
        histories: Of every place where the fault is remembered.
        incident_id: The incident that weighs it: it counts as one.
    """
    at = fact.observed_at
    if fault.recur_count == 0:
        return None
    since = at - timedelta(hours=fault.recur_window_hours)
    earlier = [
        each
        for history in histories
        for each in history.occurrences
        if each.fault_key == fact.fault_key
        and each.incident_id != incident_id
        and since < each.first_at <= at
        and _is_counted(fault.recur_key, each, fact, affected)
    ]
    count = len({*affected.job_ids, *(job for each in earlier for job in each.jobs)})
    if fault.recur_key is not RecurKey.GPU_ACROSS_JOBS:
        count = _bursts([*((each.first_at, each.last_at, each.incident_id) for each in earlier), (at, at, incident_id)])
    step = count - fault.recur_count + 1
    if step < 1:
        return None
    if step < len(fault.ladder):
        rung = fault.ladder[step]
    elif fault.repairs_node:
        # A person is called where the repairs themselves run out, with the machine out of service and its jobs moved.
        rung = fault.ladder[-1]
    elif fault.severity is Severity.INFO:
        return None
    else:
        rung = Rung.PAGE_HUMAN
    window = f"{fault.recur_window_hours} h"
    where = _SCOPE_TEXT[fault.recur_key]
    reason = f"{fault.name} occurred {count} times within {window} {where}, so the repair begins with {rung}."
    return Recurrence(fault_key=fact.fault_key, count=count, rung=rung, reason=reason)


_SCOPE_TEXT = {
    RecurKey.NONE: "",
    RecurKey.GPU: "on this device",
    RecurKey.GPU_ACROSS_JOBS: "on this device in different jobs",
    RecurKey.LINK: "on this link",
    RecurKey.NODE: "on this machine",
    RecurKey.SLOT: "in this seat",
    RecurKey.JOB: "in this job",
    RecurKey.GROUP: "in this instance group",
}


def _is_counted(key: RecurKey, each: FaultOccurrence, fact: NodeFact, affected: AffectedNode) -> bool:
    """Whether an earlier occurrence is one on the same key. What a signal does not name is no ground to tell apart."""
    same_life = each.life == affected.life.key
    match key:
        case RecurKey.NONE:
            return False
        case RecurKey.GPU | RecurKey.GPU_ACROSS_JOBS:
            return same_life and _may_match(each.gpu, fact.gpu)
        case RecurKey.LINK:
            return same_life and _may_match(each.link, fact.link) and _may_match(each.gpu, fact.gpu)
        case RecurKey.NODE:
            return same_life
        case RecurKey.JOB:
            return bool({*each.jobs} & {*affected.job_ids}) if affected.job_ids else same_life
        case RecurKey.SLOT | RecurKey.GROUP:
            return True
        case _:
            assert_never(key)


def _may_match(one: str, other: str) -> bool:
    return not one or not other or one == other


def _bursts(spans: Sequence[tuple[datetime, datetime, str]]) -> int:
    """Count spans; those of one incident, and those without silence between them, are one."""
    count, ended_at, incidents = 0, datetime.min.replace(tzinfo=UTC), set[str]()
    for first_at, last_at, incident_id in sorted(spans):
        if incident_id not in incidents and first_at > ended_at + BURST_GAP:
            count += 1
        incidents.add(incident_id)
        ended_at = max(ended_at, last_at)
    return count
