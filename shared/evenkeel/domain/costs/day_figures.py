"""The figures of one UTC day, or of a part of it, that reports add up. They need no record of a job or a node.

An interruption belongs to the day in which its attempt ended, with its whole loss. Node time, use and rent are cut at
the borders of the day. Lists of durations are kept, because percentiles of days cannot be added.
"""

import base64
import json
import math
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator

from evenkeel.domain.costs.demand import DayDemand
from evenkeel.domain.costs.interruptions import Span
from evenkeel.domain.costs.job_sizes import JobRun, JobSizeUse, SizedFailure, job_size_uses
from evenkeel.domain.costs.node_time import PoolUse
from evenkeel.domain.costs.quota_time import QuotaTime
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
    """The summed loss of interruptions with the same values in all fields up to `is_failure`."""

    cause: str
    """Fault class of the incident, or another cause."""
    pool: str
    instance_type: str
    node: str
    """Instance id of the node whose incident owns the loss; empty without an incident."""
    is_failure: bool
    """Whether a failure caused the interruptions; false if the jobs were stopped on request."""
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


class FailureDurations(Value):
    """Durations after the failures of one fault class in one pool."""

    fault_class: str
    pool: str
    seconds: tuple[float, ...]
    unknown: int
    """Failures whose duration is unknown or not over."""


class TeamTime(Value):
    """The GPU time that the attempts of a team held."""

    team: str
    gpu_microseconds: int
    usd_micros: int | None = None
    """Null: a part has no price. Rented nodes cost nothing here."""
    quota: QuotaTime | None = None
    """Null: unknown, as in rows of earlier releases."""


class DayFigures(Value):
    """The figures of a day, or of a part of it."""

    since: Instant
    until: Instant
    failures: tuple[CountedFailure, ...]
    losses: tuple[LossGroup, ...]
    stages: tuple[StageDurations, ...]
    recovery_seconds: tuple[float, ...]
    """Duration of each standstill of a job that an incident caused and that is over."""
    unknown_recoveries: int
    """Standstills that are not over, so their duration is unknown."""
    recoveries: tuple[FailureDurations, ...] | None = None
    """The same standstills by fault class and pool of the incident; null in rows of earlier releases."""
    repairs: tuple[FailureDurations, ...] | None = None
    """Time from the first signal until the node or its replacement was in service again, for failures of this day. Null
    in rows of earlier releases."""
    saved: tuple[SavedSum, ...]
    pools: tuple[PoolUse, ...]
    rent: RentReport
    teams: tuple[TeamTime, ...]
    known_quota_microseconds: int = 0
    """Duration in which all quotas and their use are known."""
    demand: DayDemand | None = None
    """Hourly demand; null if it is unknown, as in rows of earlier releases."""
    job_sizes: tuple[JobSizeUse, ...] | None = None
    """Running time and failures of jobs by their size; null in rows of earlier releases."""


def compress_figures(document: dict[str, Any]) -> str:
    """Return the JSON of large figures as a compressed text. `DayRow` reads both forms."""
    text = json.dumps(document, separators=(",", ":"))
    return base64.b85encode(zlib.compress(text.encode(), level=9)).decode("ascii")


def _decompress_figures(document: Any) -> Any:
    return json.loads(zlib.decompress(base64.b85decode(document))) if isinstance(document, str) else document


class DayRow(Value):
    """The stored figures of a whole UTC day."""

    day: str
    """ISO date."""
    folded_at: Instant
    is_settled: bool
    """Whether nothing of this day is still open. A report then reads the row. A fact that is recorded later enters the
    row after the next midnight, such as the restore of an attempt that ran for days."""
    figures: Annotated[DayFigures, BeforeValidator(_decompress_figures)]
    """A row holds the figures of a day with thousands of interruptions as a compressed text."""


class AttributedInterruption(NamedTuple):
    """An interruption, with the incident that caused it; None if no such incident is known."""

    receipt: InterruptionReceipt
    incident: Incident | None


class DayFacts(NamedTuple):
    """Facts from which the figures of a day are computed."""

    span: Span
    incidents: Sequence[Incident]
    """Opened in the span; drills included."""
    interrupted: Sequence[AttributedInterruption]
    """Interruptions whose attempt ended in the span."""
    pools: tuple[PoolUse, ...]
    rent: RentReport
    teams: tuple[TeamTime, ...]
    known_quota_microseconds: int
    demand: DayDemand | None
    runs: Sequence[JobRun]
    """Running time of attempts in the span."""
    restore_seconds: float


def day_of(at: datetime) -> date:
    """Return the UTC day of an instant."""
    return at.astimezone(UTC).date()


def begin_of_day(day: date) -> datetime:
    """Return the first instant of a UTC day."""
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def day_spans(span: Span) -> Iterator[Span]:
    """Yield the UTC days of a span. The first and the last may be parts of a day."""
    start = span.start
    while start < span.end:
        end = min(begin_of_day(day_of(start)) + DAY, span.end)
        yield Span(start, end)
        start = end


def compute_day_figures(facts: DayFacts) -> DayFigures:
    """Return the figures of a day. Equal facts give equal figures, in any order."""
    interruptions = sorted(
        facts.interrupted, key=lambda interruption: (interruption.receipt.job_id, interruption.receipt.attempt)
    )
    failures = [interruption for interruption in interruptions if _is_failure(interruption)]
    requested_interruptions = [
        interruption for interruption in interruptions if not interruption.receipt.cause.is_failure
    ]
    by_incident = [interruption for interruption in failures if interruption.incident]
    estimates = [
        saving
        for interruption in by_incident
        for saving in savings(interruption.receipt, interruption.incident, facts.restore_seconds)
    ]
    return DayFigures(
        since=facts.span.start,
        until=facts.span.end,
        failures=tuple(
            CountedFailure(
                fault_class=str(_fault_class(incident)),
                pool=incident.pool,
                instance_type=incident.instance_type,
                node=incident.life.instance_id,
            )
            for incident in sorted(facts.incidents, key=lambda incident: (incident.opened_at, incident.incident_id))
            if is_node_failure(incident)
        ),
        losses=tuple(_loss_groups([*failures, *requested_interruptions])),
        stages=tuple(_stage_durations(failures)),
        recovery_seconds=tuple(
            sorted(
                interruption.receipt.standstill_seconds for interruption in by_incident if interruption.receipt.is_over
            )
        ),
        unknown_recoveries=sum(not interruption.receipt.is_over for interruption in by_incident),
        recoveries=_failure_durations(
            (interruption.incident, _standstill_seconds(interruption.receipt))
            for interruption in by_incident
            if interruption.incident
        ),
        repairs=_failure_durations(
            (incident, _repair_seconds(incident)) for incident in facts.incidents if is_node_failure(incident)
        ),
        saved=tuple(sum_savings(estimates, baseline) for baseline in RecoveryBaseline) if estimates else (),
        pools=facts.pools,
        rent=facts.rent,
        teams=facts.teams,
        known_quota_microseconds=facts.known_quota_microseconds,
        demand=facts.demand,
        job_sizes=job_size_uses(
            facts.runs,
            (
                SizedFailure(interruption.receipt.nodes, _is_by_infrastructure(interruption))
                for interruption in failures
            ),
        ),
    )


def is_node_failure(incident: Incident) -> bool:
    """Whether an incident counts as a failure of its node."""
    return not (incident.is_drill or incident.resumes or _fault_class(incident) in _NOT_COUNTED)


def _fault_class(incident: Incident) -> FaultClass:
    return default_catalogue().look_up(incident.fault_key).fault_class


def _standstill_seconds(receipt: InterruptionReceipt) -> float | None:
    return receipt.standstill_seconds if receipt.is_over else None


def _repair_seconds(incident: Incident) -> float | None:
    """Return how long a node was out of service; None if it is not back, or no record says when it was."""
    returned_at = incident.stages.returned_at
    return None if returned_at is None else max(0.0, (returned_at - incident.first_signal_at).total_seconds())


def _failure_durations(durations: Iterable[tuple[Incident, float | None]]) -> tuple[FailureDurations, ...]:
    groups: dict[tuple[str, str], list[float | None]] = defaultdict(list)
    for incident, seconds in durations:
        groups[str(_fault_class(incident)), incident.pool].append(seconds)
    return tuple(
        FailureDurations(
            fault_class=fault_class,
            pool=pool,
            seconds=tuple(sorted(value for value in values if value is not None)),
            unknown=values.count(None),
        )
        for (fault_class, pool), values in sorted(groups.items())
    )


def _is_failure(interruption: AttributedInterruption) -> bool:
    return interruption.receipt.cause.is_failure and not (interruption.incident and interruption.incident.is_drill)


def _is_by_infrastructure(failure: AttributedInterruption) -> bool:
    """Whether a node or the network interrupted a job, as far as is known, and not its own program."""
    if failure.incident is not None:
        return _fault_class(failure.incident) not in _NOT_COUNTED
    return failure.receipt.cause is not InterruptionCause.APPLICATION


def _loss_groups(interruptions: Iterable[AttributedInterruption]) -> Iterator[LossGroup]:
    groups: dict[tuple[str, str, str, str, bool], list[InterruptionReceipt]] = defaultdict(list)
    for interruption in interruptions:
        receipt = interruption.receipt
        node = interruption.incident.life.instance_id if interruption.incident else ""
        groups[_cause_text(interruption), receipt.pool, receipt.instance_type, node, receipt.cause.is_failure].append(
            receipt
        )
    for (cause, pool, instance_type, node, is_failure), receipts in sorted(groups.items()):
        total = total_of(receipt_part for receipt in receipts for receipt_part in receipt.parts)
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


def _cause_text(interruption: AttributedInterruption) -> str:
    if interruption.incident is not None:
        return str(_fault_class(interruption.incident))
    other_causes = {
        InterruptionCause.APPLICATION: "application failure",
        InterruptionCause.INFRASTRUCTURE: "infrastructure, no incident",
    }
    return other_causes.get(interruption.receipt.cause, "unknown")


def _stage_durations(failures: Iterable[AttributedInterruption]) -> Iterator[StageDurations]:
    parts_by_stage: dict[Stage, list[ReceiptPart]] = defaultdict(list)
    for interruption in failures:
        for receipt_part in interruption.receipt.parts:
            parts_by_stage[receipt_part.stage].append(receipt_part)
    for stage in Stage:
        if not (stage_parts := parts_by_stage[stage]):
            continue
        total = total_of(stage_parts)
        seconds = sorted(receipt_part.seconds for receipt_part in stage_parts if receipt_part.seconds is not None)
        yield StageDurations(
            stage=stage,
            seconds=tuple(seconds),
            unknown=len(stage_parts) - len(seconds),
            gpu_hours=total.gpu_hours,
            usd_micros=total.usd_micros,
        )


def add_savings(days: Iterable[Iterable[SavedSum]], baseline: RecoveryBaseline) -> SavedSum:
    """Return the sum of several days' savings against one baseline. Without an estimate it is unknown, not zero."""
    sums = [saved_sum for day in days for saved_sum in day if saved_sum.instead_of is baseline]
    sums_with_claims = [saved_sum for saved_sum in sums if saved_sum.claimed]
    reasons: dict[str, int] = {}
    for saved_sum in sums:
        for why, count in saved_sum.reasons.items():
            reasons[why] = reasons.get(why, 0) + count
    return SavedSum(
        instead_of=baseline,
        claimed=sum(saved_sum.claimed for saved_sum in sums_with_claims),
        not_claimed=sum(saved_sum.not_claimed for saved_sum in sums),
        low_saved_gpu_hours=math.fsum(saved_sum.low_saved_gpu_hours or 0 for saved_sum in sums_with_claims)
        if sums_with_claims
        else None,
        high_saved_gpu_hours=math.fsum(saved_sum.high_saved_gpu_hours or 0 for saved_sum in sums_with_claims)
        if sums_with_claims
        else None,
        low_saved_usd_micros=_sum_if_all_known([saved_sum.low_saved_usd_micros for saved_sum in sums_with_claims]),
        high_saved_usd_micros=_sum_if_all_known([saved_sum.high_saved_usd_micros for saved_sum in sums_with_claims]),
        assumptions=tuple(dict.fromkeys(text for saved_sum in sums_with_claims for text in saved_sum.assumptions)),
        reasons=reasons,
    )


def _sum_if_all_known(amounts: Sequence[int | None]) -> int | None:
    """Return the sum; None if there is no amount, or an unknown one."""
    known_amounts = [amount for amount in amounts if amount is not None]
    return sum(known_amounts) if known_amounts and len(known_amounts) == len(amounts) else None
