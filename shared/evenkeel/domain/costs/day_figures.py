"""The figures of one UTC day, or of a part of it, that reports add up. They need no record of a job or a node.

An interruption belongs to the day in which its attempt ended, with its whole loss. Node time, use and rent are cut at
the borders of the day. Lists of durations are kept, because percentiles of days cannot be added.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

from evenkeel.domain.costs.interruptions import Span
from evenkeel.domain.costs.node_time import PoolUse
from evenkeel.domain.costs.receipt import InterruptionCause, InterruptionReceipt, ReceiptPart, Stage, total_of
from evenkeel.domain.costs.rent_report import RentReport
from evenkeel.domain.costs.savings import RecoveryBaseline, SavedSum, savings, sum_savings
from evenkeel.domain.health.faults import FaultClass, default_catalogue
from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.values import Instant, Value

DAY = timedelta(days=1)
_NOT_COUNTED = (FaultClass.APPLICATION, FaultClass.INFO)
"""Faults of these classes are not failures of a node."""


class CountedFailure(Value):
    """An incident that counts as a failure of its node."""

    fault_class: str
    pool: str
    instance_type: str
    node: str
    """Instance id."""


class LossGroup(Value):
    """The loss of some interruptions that have everything below up to `is_failure` in common."""

    cause: str
    """Fault class of the incident, or another cause."""
    pool: str
    instance_type: str
    node: str
    """Instance id of the node whose incident owns the loss; empty without an incident."""
    is_failure: bool
    """False: stopped on request."""
    interruptions: int
    still_interrupted: int
    gpu_hours: float
    usd_micros: int | None = None
    """Null: no part has a price."""
    unpriced_gpu_hours: float
    unknown_repeated_work: int
    """Interruptions whose repeated work is unknown."""


class StageDurations(Value):
    """The durations and the loss of one stage, over the failures of the day."""

    stage: Stage
    seconds: tuple[float, ...]
    unknown: int
    """Failures in which the duration of this stage is unknown."""
    gpu_hours: float
    usd_micros: int | None = None


class TeamTime(Value):
    """The GPU time that the attempts of a team held."""

    team: str
    gpu_microseconds: int
    usd_micros: int | None = None
    """Null: a part has no price. Rented nodes cost nothing here."""


class DayFigures(Value):
    """The figures of a day, or of a part of it."""

    since: Instant
    until: Instant
    failures: tuple[CountedFailure, ...]
    losses: tuple[LossGroup, ...]
    stages: tuple[StageDurations, ...]
    recovery_seconds: tuple[float, ...]
    """Standstills of jobs by incidents that are over."""
    unknown_recoveries: int
    """Standstills that last."""
    saved: tuple[SavedSum, ...]
    pools: tuple[PoolUse, ...]
    rent: RentReport
    teams: tuple[TeamTime, ...]


class DayRow(Value):
    """The stored figures of a whole UTC day."""

    day: str
    """ISO date."""
    folded_at: Instant
    is_settled: bool
    """Whether nothing that is still open belongs to this day."""
    figures: DayFigures


class OwnedInterruption(NamedTuple):
    """An interruption, with the incident that owns it."""

    receipt: InterruptionReceipt
    owner: Incident | None


class DayFacts(NamedTuple):
    """Everything that the figures of a day rest on."""

    span: Span
    incidents: Sequence[Incident]
    """Opened in the span; drills included."""
    interrupted: Sequence[OwnedInterruption]
    """Interruptions whose attempt ended in the span."""
    pools: tuple[PoolUse, ...]
    rent: RentReport
    teams: tuple[TeamTime, ...]
    restore_seconds: float


def day_of(at: datetime) -> date:
    """Return the UTC day of an instant."""
    return at.astimezone(UTC).date()


def begin_of_day(day: date) -> datetime:
    """Return the first instant of a UTC day."""
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def day_spans(span: Span) -> Iterator[Span]:
    """Yield the UTC days of a span. The first and the last one may be parts of a day."""
    start = span.start
    while start < span.end:
        end = min(begin_of_day(day_of(start)) + DAY, span.end)
        yield Span(start, end)
        start = end


def fold_day(facts: DayFacts) -> DayFigures:
    """Return the figures of a day. Equal facts give equal figures, in any order."""
    interrupted = sorted(facts.interrupted, key=lambda outcome: (outcome.receipt.job_id, outcome.receipt.attempt))
    failed = [outcome for outcome in interrupted if _is_failure(outcome)]
    requested = [outcome for outcome in interrupted if not outcome.receipt.cause.is_failure]
    by_incident = [outcome for outcome in failed if outcome.owner]
    estimates = [
        saving for outcome in by_incident for saving in savings(outcome.receipt, outcome.owner, facts.restore_seconds)
    ]
    return DayFigures(
        since=facts.span.start,
        until=facts.span.end,
        failures=tuple(
            CountedFailure(
                fault_class=str(_class_of(incident)),
                pool=incident.pool,
                instance_type=incident.instance_type,
                node=incident.life.instance_id,
            )
            for incident in sorted(facts.incidents, key=lambda incident: (incident.opened_at, incident.incident_id))
            if is_node_failure(incident)
        ),
        losses=tuple(_losses([*failed, *requested])),
        stages=tuple(_stages(failed)),
        recovery_seconds=tuple(
            sorted(outcome.receipt.standstill_seconds for outcome in by_incident if outcome.receipt.is_over)
        ),
        unknown_recoveries=sum(not outcome.receipt.is_over for outcome in by_incident),
        saved=tuple(sum_savings(estimates, way) for way in RecoveryBaseline) if estimates else (),
        pools=facts.pools,
        rent=facts.rent,
        teams=facts.teams,
    )


def is_node_failure(incident: Incident) -> bool:
    """Whether an incident counts as a failure of its node."""
    return not (incident.is_drill or incident.resumes or _class_of(incident) in _NOT_COUNTED)


def _class_of(incident: Incident) -> FaultClass:
    return default_catalogue().look_up(incident.fault_key).fault_class


def _is_failure(interrupted: OwnedInterruption) -> bool:
    return interrupted.receipt.cause.is_failure and not (interrupted.owner and interrupted.owner.is_drill)


def _losses(interrupted: Iterable[OwnedInterruption]) -> Iterator[LossGroup]:
    groups: dict[tuple[str, str, str, str, bool], list[InterruptionReceipt]] = defaultdict(list)
    for outcome in interrupted:
        receipt = outcome.receipt
        node = outcome.owner.life.instance_id if outcome.owner else ""
        groups[_cause(outcome), receipt.pool, receipt.instance_type, node, receipt.cause.is_failure].append(receipt)
    for (cause, pool, instance_type, node, is_failure), receipts in sorted(groups.items()):
        total = total_of(part for receipt in receipts for part in receipt.parts)
        yield LossGroup(
            cause=cause,
            pool=pool,
            instance_type=instance_type,
            node=node,
            is_failure=is_failure,
            interruptions=len(receipts),
            still_interrupted=sum(not receipt.is_over for receipt in receipts),
            gpu_hours=total.gpu_hours,
            usd_micros=total.usd_micros,
            unpriced_gpu_hours=total.unpriced_gpu_hours,
            unknown_repeated_work=sum(receipt.seconds_of(Stage.REPEATED_WORK) is None for receipt in receipts),
        )


def _cause(interrupted: OwnedInterruption) -> str:
    if interrupted.owner is not None:
        return str(_class_of(interrupted.owner))
    other = {
        InterruptionCause.APPLICATION: "application failure",
        InterruptionCause.INFRASTRUCTURE: "infrastructure, no incident",
    }
    return other.get(interrupted.receipt.cause, "unknown")


def _stages(failed: Iterable[OwnedInterruption]) -> Iterator[StageDurations]:
    parts: dict[Stage, list[ReceiptPart]] = defaultdict(list)
    for outcome in failed:
        for part in outcome.receipt.parts:
            parts[part.stage].append(part)
    for stage in Stage:
        if not (own := parts[stage]):
            continue
        total = total_of(own)
        seconds = sorted(part.seconds for part in own if part.seconds is not None)
        yield StageDurations(
            stage=stage,
            seconds=tuple(seconds),
            unknown=len(own) - len(seconds),
            gpu_hours=total.gpu_hours,
            usd_micros=total.usd_micros,
        )


def add_savings(days: Iterable[Iterable[SavedSum]], way: RecoveryBaseline) -> SavedSum:
    """Return the sum of the estimates of days against one other way. Without an estimate it is unknown, not zero."""
    listed = [saved for day in days for saved in day if saved.instead_of is way]
    claimed = [saved for saved in listed if saved.claimed]
    reasons: dict[str, int] = {}
    for saved in listed:
        for why, count in saved.reasons.items():
            reasons[why] = reasons.get(why, 0) + count
    return SavedSum(
        instead_of=way,
        claimed=sum(saved.claimed for saved in claimed),
        not_claimed=sum(saved.not_claimed for saved in listed),
        low_saved_gpu_hours=math.fsum(saved.low_saved_gpu_hours or 0 for saved in claimed) if claimed else None,
        high_saved_gpu_hours=math.fsum(saved.high_saved_gpu_hours or 0 for saved in claimed) if claimed else None,
        low_saved_usd_micros=_sum_of_all([saved.low_saved_usd_micros for saved in claimed]),
        high_saved_usd_micros=_sum_of_all([saved.high_saved_usd_micros for saved in claimed]),
        assumptions=tuple(dict.fromkeys(text for saved in claimed for text in saved.assumptions)),
        reasons=reasons,
    )


def _sum_of_all(amounts: Sequence[int | None]) -> int | None:
    """Return the sum; None if there is no amount, or an unknown one."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known and len(known) == len(amounts) else None
