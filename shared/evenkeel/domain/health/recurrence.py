"""Count how often a fault recurred, and choose the rung on which its repair then begins.

A fault counts once per incident and once per series, however many signals it has. A fault that is reported after the
node's return to service counts for the next incident, even before that one opens. So the count shows how often a repair
did not help, not how often the fault was reported.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import assert_never

from pydantic import Field

from evenkeel.domain.health.classification import ClassifiedFact
from evenkeel.domain.health.faults import Fault, RecurKey, Rung, Severity
from evenkeel.domain.health.incidents import AffectedNode, NodeFact, Recurrence
from evenkeel.domain.plurals import count_of
from evenkeel.domain.values import Instant, Value

HISTORY_WINDOW = timedelta(days=30)
"""How long occurrences are kept: the longest window of the catalogue."""
SERIES_GAP = timedelta(minutes=3)
"""Two codes of one node belong to one series if they are at most this far apart. Source: NVIDIA's Xid documentation."""
_MAX_OCCURRENCES = 60
_MAX_SOURCES = 10
"""Sources kept per occurrence. A limit is needed because all occurrences of one key share one row."""


class FaultOccurrence(Value):
    """A fault that one incident recorded."""

    fault_key: str
    incident_id: str
    life_key: str = Field(alias="life")
    sources: tuple[str, ...] = ()
    gpu: str = ""
    link: str = ""
    jobs: tuple[str, ...] = ()
    first_at: Instant
    last_at: Instant


class FaultHistory(Value):
    """Earlier faults under one history key: of a node slot, a job or an instance group."""

    occurrences: tuple[FaultOccurrence, ...] = ()
    """Ordered by first signal, oldest first."""


_MAX_JOBS = 40
"""Jobs of one node for which a fault is counted. Each job adds a row to the transaction that records a fact."""


def history_keys(fault: Fault, affected_node: AffectedNode) -> tuple[str, ...]:
    """Return the history keys of a fault: always its node slot, and its jobs or group if it is counted on them."""
    extra_keys: tuple[str, ...] = ()
    if fault.recur_key is RecurKey.JOB:
        extra_keys = tuple(f"job/{job}" for job in affected_node.job_ids[:_MAX_JOBS])
    elif fault.recur_key is RecurKey.GROUP and affected_node.pool:
        extra_keys = (f"group/{affected_node.life.cluster}/{affected_node.pool}",)
    return (slot_history_key(affected_node.slot), *extra_keys)


def slot_history_key(slot_id: str) -> str:
    """Return the history key of a node slot. Stored rows use this prefix."""
    return f"slot/{slot_id}"


def with_occurrence(
    history: FaultHistory, fact: NodeFact, affected_node: AffectedNode, incident_id: str
) -> FaultHistory:
    """Return a history with one more signal of an incident.

    Idempotent: yes, because the same signal merges into the same occurrence.
    """
    occurrence = FaultOccurrence(
        fault_key=fact.fault_key,
        incident_id=incident_id,
        life_key=affected_node.life.key,
        sources=(fact.source,),
        gpu=fact.gpu,
        link=fact.link,
        jobs=affected_node.job_ids,
        first_at=fact.observed_at,
        last_at=fact.observed_at,
    )
    same_occurrences = [
        fault_occurrence
        for fault_occurrence in history.occurrences
        if _is_same_occurrence(fault_occurrence, occurrence)
    ]
    merged_occurrence = occurrence.replace(
        sources=tuple(
            sorted(
                {
                    *occurrence.sources,
                    *(source for fault_occurrence in same_occurrences for source in fault_occurrence.sources),
                }
            )
        )[:_MAX_SOURCES],
        jobs=tuple(
            sorted({*occurrence.jobs, *(job for fault_occurrence in same_occurrences for job in fault_occurrence.jobs)})
        )[:_MAX_JOBS],
        first_at=min(fault_occurrence.first_at for fault_occurrence in (occurrence, *same_occurrences)),
        last_at=max(fault_occurrence.last_at for fault_occurrence in (occurrence, *same_occurrences)),
    )
    fault_occurrences = (
        fault_occurrence
        for fault_occurrence in history.occurrences
        if not _is_same_occurrence(fault_occurrence, occurrence)
    )
    recent = (
        other for other in (*fault_occurrences, merged_occurrence) if other.last_at > fact.observed_at - HISTORY_WINDOW
    )
    newest_occurrences = sorted(
        recent,
        key=lambda fault_occurrence: (
            fault_occurrence.first_at,
            fault_occurrence.incident_id,
            fault_occurrence.fault_key,
            fault_occurrence.gpu,
            fault_occurrence.link,
        ),
    )
    return history.replace(occurrences=tuple(newest_occurrences[-_MAX_OCCURRENCES:]))


def _is_same_occurrence(occurrence: FaultOccurrence, other_occurrence: FaultOccurrence) -> bool:
    return all(
        getattr(occurrence, name) == getattr(other_occurrence, name)
        for name in ("fault_key", "incident_id", "gpu", "link")
    )


def find_recurrence(
    classified_fact: ClassifiedFact, histories: Iterable[FaultHistory], *, incident_id: str
) -> Recurrence | None:
    """Return the rung on which a recurring fault begins; None if it begins on its first rung.

    The N-th occurrence inside the window begins on the second rung, and each further occurrence on the next rung.
    After the last rung, a fault with node repairs stays on the last rung. A fault without node repairs pages a person,
    except at severity info.

    Args:
        classified_fact: The new signal, with its node and its fault.
        histories: The histories of all keys of the fault.
        incident_id: The incident of the signal. It counts as one occurrence.
    """
    fact, affected_node, fault = classified_fact
    observed_at = fact.observed_at
    if fault.recur_count == 0:
        return None
    since = observed_at - timedelta(hours=fault.recur_window_hours)
    earlier = [
        occurrence
        for history in histories
        for occurrence in history.occurrences
        if occurrence.fault_key == fact.fault_key
        and occurrence.incident_id != incident_id
        and since < occurrence.first_at <= observed_at
        and _counts_as_repetition(fault.recur_key, occurrence, fact, affected_node)
    ]
    count = len({*affected_node.job_ids, *(job for occurrence in earlier for job in occurrence.jobs)})
    if fault.recur_key is not RecurKey.GPU_ACROSS_JOBS:
        count = _count_series(
            [
                *((occurrence.first_at, occurrence.last_at, occurrence.incident_id) for occurrence in earlier),
                (observed_at, observed_at, incident_id),
            ]
        )
    rung_index = count - fault.recur_count + 1
    if rung_index < 1:
        return None
    if rung_index < len(fault.ladder):
        rung = fault.ladder[rung_index]
    elif fault.repairs_node:
        # The repair ladder itself pages a person at its end, after the node is cordoned and its jobs are moved.
        rung = fault.ladder[-1]
    elif fault.severity is Severity.INFO:
        return None
    else:
        rung = Rung.ASK_PERSON
    window = f"{fault.recur_window_hours} h"
    where = _SCOPE_TEXT[fault.recur_key]
    reason = (
        f"{fault.name} occurred {count_of(count, 'time')} within {window} {where}, so the repair begins with {rung}."
    )
    return Recurrence(fault_key=fact.fault_key, count=count, rung=rung, reason=reason)


_SCOPE_TEXT = {
    RecurKey.NONE: "",
    RecurKey.GPU: "on this device",
    RecurKey.GPU_ACROSS_JOBS: "on this device in different jobs",
    RecurKey.LINK: "on this link",
    RecurKey.NODE: "on this node",
    RecurKey.SLOT: "in this node slot",
    RecurKey.JOB: "in this job",
    RecurKey.GROUP: "in this instance group",
}


def _counts_as_repetition(key: RecurKey, earlier: FaultOccurrence, fact: NodeFact, affected_node: AffectedNode) -> bool:
    """Whether an earlier occurrence has the scope of the fact. An unnamed device or link matches every other."""
    same_life = earlier.life_key == affected_node.life.key
    match key:
        case RecurKey.NONE:
            return False
        case RecurKey.GPU | RecurKey.GPU_ACROSS_JOBS:
            return same_life and _may_be_same_part(earlier.gpu, fact.gpu)
        case RecurKey.LINK:
            return same_life and _may_be_same_part(earlier.link, fact.link) and _may_be_same_part(earlier.gpu, fact.gpu)
        case RecurKey.NODE:
            return same_life
        case RecurKey.JOB:
            return bool({*earlier.jobs} & {*affected_node.job_ids}) if affected_node.job_ids else same_life
        case RecurKey.SLOT | RecurKey.GROUP:
            return True
        case _:
            assert_never(key)


def _may_be_same_part(part_id: str, other_part_id: str) -> bool:
    return not part_id or not other_part_id or part_id == other_part_id


def _count_series(spans: Sequence[tuple[datetime, datetime, str]]) -> int:
    """Count series. Spans of one incident are one series, and so are spans at most `SERIES_GAP` apart."""
    count, ended_at, incidents = 0, datetime.min.replace(tzinfo=UTC), set[str]()
    for first_at, last_at, incident_id in sorted(spans):
        if incident_id not in incidents and first_at > ended_at + SERIES_GAP:
            count += 1
        incidents.add(incident_id)
        ended_at = max(ended_at, last_at)
    return count
