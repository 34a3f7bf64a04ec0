"""The receipt of an interrupted job: every second that it lost, in stages, each with its records and its cost.

An attempt was interrupted if it ran and did not succeed. Its interruption lasts until the next attempt that runs:

    checkpoint   first signal   opened    planned   approved   ended     admitted   launched   running   trains
        │ REPEATED_WORK │ DETECTION │ DECISION │ APPROVAL │ DRAIN │ WAIT_FOR_NODES │ LAUNCH │ RESTART │ RESTORE │

The work between the checkpoint and the first signal was done and thrown away. So the loss is the whole time line, and
the repetition after the restart must not be added to it.

* The stages follow each other without gaps. A time outside this order is moved to the nearest stage border.
* After the interrupted attempt has ended, all time until an admission is WAIT_FOR_NODES. An attempt that ended before
  it ran is a FAILED_START.
* A second belongs to the first interruption that lost it. A later interruption that goes back behind
  it does not count the second again.
* An unknown border has no time: the next stage with a known border then covers both, and says so. An unknown stage at
  either end has no seconds, and the sum is a lower bound.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from evenkeel.domain.costs.receipt import (
    MICROSECONDS_PER_HOUR,
    GpuPrice,
    InterruptionCause,
    InterruptionReceipt,
    ReceiptPart,
    Stage,
    cost_usd_micros,
    microseconds,
    total_of,
)
from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.jobs.attempt import Attempt, AttemptState
from evenkeel.domain.jobs.job import Job


class Span(NamedTuple):
    """A time span."""

    start: datetime
    end: datetime


class _StageEnd(NamedTuple):
    """The end of a stage, and the record that shows it."""

    stage: Stage
    at: datetime | None
    time_source: str
    attempt: Attempt
    """The attempt whose GPUs the stage costs."""


PriceOf = Mapping[int, GpuPrice | None]
"""The price of each attempt of a job, by its number."""


class LostTime(NamedTuple):
    """An interruption and the disjoint spans that it lost."""

    receipt: InterruptionReceipt
    spans: tuple[tuple[Stage, Span], ...]


def interruptions(
    job: Job, attempts: Iterable[Attempt], incidents: Iterable[tuple[int, Incident]], price_of: PriceOf, now: datetime
) -> list[LostTime]:
    """Return each interruption of a job, oldest first. The arguments are described in `job_receipt`."""
    sorted_attempts = sorted(attempts, key=lambda row: row.attempt)
    until = job_end_or_now(job, sorted_attempts, now)
    incidents_by_attempt: dict[int, dict[str, Incident]] = {}
    for number, incident in incidents:
        incidents_by_attempt.setdefault(number, {})[incident.incident_id] = incident
    spans_taken: list[Span] = []
    losses = []
    for index, attempt in enumerate(sorted_attempts):
        if not _was_interrupted(job, attempt, sorted_attempts[index + 1 :]):
            continue
        attempt_incidents = sorted(
            incidents_by_attempt.get(attempt.attempt, {}).values(),
            key=lambda incident: (incident.first_signal_at, incident.incident_id),
        )
        times = _interruption_times(job, sorted_attempts, index, attempt_incidents, until)
        lost_time = _priced_loss(job, attempt, attempt_incidents, times, spans_taken, price_of)
        spans_taken += [span for _, span in lost_time.spans]
        losses.append(lost_time)
    return losses


def job_end_or_now(job: Job, attempts: Iterable[Attempt], now: datetime) -> datetime:
    """Return when the job ended, or the present; at least the latest recorded time, so that no duration is negative."""
    recorded_times = [
        job.submitted_at,
        *(at for attempt in attempts for at in (attempt.admitted_at, attempt.running_at, attempt.ended_at) if at),
    ]
    return max(job.ended_at or now, *recorded_times)


def _was_interrupted(job: Job, attempt: Attempt, later: Sequence[Attempt]) -> bool:
    """Whether an attempt ran, ended without success, and its job continued or waited to continue."""
    if attempt.running_at is None or attempt.ended_at is None or attempt.state is AttemptState.SUCCEEDED:
        return False
    return bool(later) or job.ended_at is None or job.ended_at > attempt.ended_at


# ---------------------------------------------------------------- the times of one interruption


class _InterruptionTimes(NamedTuple):
    """The recorded times of one interruption, in order."""

    start: datetime | None
    """None: the resume point is unknown."""
    start_time_source: str
    stage_ends: tuple[_StageEnd, ...]
    resumed: Attempt | None
    until: datetime
    """End of the job, or the time of the receipt."""
    is_over: bool


def _interruption_times(
    job: Job, attempts: Sequence[Attempt], index: int, attempt_incidents: Sequence[Incident], until: datetime
) -> _InterruptionTimes:
    attempt, later_attempts = attempts[index], attempts[index + 1 :]
    resumed_attempt = next((attempt for attempt in later_attempts if attempt.running_at), None)
    start, start_time_source = _work_kept_until(attempts, attempt, resumed_attempt)
    stage_ends = list(_stage_ends_before_drain(attempt, attempt_incidents))
    stage_ends.append(_StageEnd(Stage.DRAIN, attempt.ended_at, f"attempt {attempt.attempt} ended", attempt))
    for later in later_attempts[: later_attempts.index(resumed_attempt) + 1 if resumed_attempt else None]:
        name = f"attempt {later.attempt}"
        stage_ends.append(_StageEnd(Stage.WAIT_FOR_NODES, later.admitted_at, f"{name} admitted", attempt))
        if later is resumed_attempt:
            stage_ends.append(_StageEnd(Stage.LAUNCH, later.launched_at, f"{name} launched", later))
            stage_ends.append(_StageEnd(Stage.RESTART, later.running_at, f"every pod of {name} runs", later))
            if later.trained_at:
                # The clock that dates the checkpoints may run ahead of the clock that dates the end.
                trained_at = min(later.trained_at, later.ended_at or until)
                stage_ends.append(
                    _StageEnd(Stage.RESTORE, trained_at, f"{name} trains: its checkpoints show it", later)
                )
        elif later.ended_at:
            stage_ends.append(_StageEnd(Stage.FAILED_START, later.ended_at, f"{name} ended without a run", later))
        elif later.launched_at:
            stage_ends.append(_StageEnd(Stage.LAUNCH, later.launched_at, f"{name} launched", later))
    if resumed_attempt is None:
        last_attempt = later_attempts[-1] if later_attempts else None
        starting_attempt = last_attempt if last_attempt and last_attempt.ended_at is None else None
        stage = Stage.WAIT_FOR_NODES
        if starting_attempt:
            stage = Stage.RESTART if starting_attempt.launched_at else Stage.LAUNCH
        time_source = "job ended" if job.ended_at else "now"
        stage_ends.append(_StageEnd(stage, until, time_source, starting_attempt or attempt))
    return _InterruptionTimes(
        start,
        start_time_source,
        tuple(stage_ends),
        resumed_attempt,
        until,
        resumed_attempt is not None or job.ended_at is not None,
    )


def _stage_ends_before_drain(attempt: Attempt, attempt_incidents: Sequence[Incident]) -> Iterator[_StageEnd]:
    """Yield the ends of the stages before the drain."""
    if not attempt_incidents:
        stop_requested_at = attempt.stop_asked_at
        time_source = "stop requested" if stop_requested_at else f"attempt {attempt.attempt} ended"
        yield _StageEnd(Stage.REPEATED_WORK, stop_requested_at or attempt.ended_at, time_source, attempt)
        return
    first_incident = attempt_incidents[0]
    approval = first_incident.approval
    yield _StageEnd(Stage.REPEATED_WORK, first_incident.first_signal_at, "first signal", attempt)
    yield _StageEnd(Stage.DETECTION, first_incident.opened_at, "incident opened", attempt)
    yield _StageEnd(Stage.DECISION, first_incident.stages.planned_at, "recovery planned", attempt)
    if approval is not None and approval.approves:
        yield _StageEnd(Stage.APPROVAL, approval.at, f"approved by {approval.by}", attempt)


def _work_kept_until(
    attempts: Sequence[Attempt], ended_attempt: Attempt, resumed_attempt: Attempt | None
) -> tuple[datetime | None, str]:
    """Return until when the work of a job was kept, None if unknown, and the record that shows it."""
    if resumed_attempt is None or not resumed_attempt.is_pinned:
        return None, ""
    first_run_at = min(attempt.running_at for attempt in attempts if attempt.running_at)
    if resumed_attempt.resume_from is None:
        return first_run_at, f"first run: attempt {resumed_attempt.attempt} resumed from no checkpoint"
    if resumed_attempt.resumed_work_from is None or ended_attempt.ended_at is None:
        return None, ""
    kept_until = max(first_run_at, min(resumed_attempt.resumed_work_from, ended_attempt.ended_at))
    return kept_until, f"checkpoint of step {resumed_attempt.resume_from.step} began"


def _priced_loss(
    job: Job,
    attempt: Attempt,
    attempt_incidents: Sequence[Incident],
    times: _InterruptionTimes,
    spans_taken: Sequence[Span],
    price_of: PriceOf,
) -> LostTime:
    receipt_parts, spans = [], []
    for receipt_part, part_spans in _priced_parts(times, attempt, spans_taken, price_of):
        receipt_parts.append(receipt_part)
        spans += [(receipt_part.stage, span) for span in part_spans]
    resumed_attempt = times.resumed
    if resumed_attempt is None or resumed_attempt.trained_at is None:
        receipt_parts.append(_part_without_times(Stage.RESTORE, resumed_attempt or attempt, "not recorded"))
    standstill_microseconds = [
        round(receipt_part.seconds * 1e6)
        for receipt_part in receipt_parts
        if receipt_part.seconds and receipt_part.stage is not Stage.REPEATED_WORK
    ]
    resume_point = resumed_attempt.resume_from if resumed_attempt and resumed_attempt.is_pinned else None
    receipt = InterruptionReceipt(
        job_id=job.job_id,
        attempt=attempt.attempt,
        resumed_by_attempt=resumed_attempt.attempt if resumed_attempt else None,
        cause=_interruption_cause(attempt, attempt_incidents),
        incident_ids=tuple(incident.incident_id for incident in attempt_incidents),
        reason=attempt.reason,
        interrupted_at=attempt.ended_at or times.until,
        is_over=times.is_over,
        pool=attempt.pool,
        instance_type=attempt.instance_type,
        nodes=attempt.ranks,
        gpus=attempt.accelerators,
        price=price_of.get(attempt.attempt),
        resumed_step=resume_point.step if resume_point else None,
        parts=tuple(receipt_parts),
        total=total_of(receipt_parts),
        standstill_seconds=sum(standstill_microseconds) / 1e6,
    )
    return LostTime(receipt, tuple(spans))


def _interruption_cause(attempt: Attempt, attempt_incidents: Sequence[Incident]) -> InterruptionCause:
    if attempt_incidents:
        return InterruptionCause.INCIDENT
    if attempt.state is AttemptState.FAILED:
        return InterruptionCause.APPLICATION
    return InterruptionCause.REQUEST if attempt.state is AttemptState.STOPPED else InterruptionCause.INFRASTRUCTURE


_STAGES_BEFORE_ATTEMPT_END = (Stage.REPEATED_WORK, Stage.DETECTION, Stage.DECISION, Stage.APPROVAL)
"""Stages that end with the interrupted attempt at the latest."""


def _priced_parts(
    times: _InterruptionTimes, attempt: Attempt, spans_taken: Sequence[Span], price_of: PriceOf
) -> Iterator[tuple[ReceiptPart, list[Span]]]:
    """Yield the stages with their spans. Two stages never overlap, and together they leave no gap."""
    # The last border is known: every pod runs, the job ended, or the receipt is written.
    last_at = times.stage_ends[-1].at
    stage_ends, at, time_source = times.stage_ends, times.start, times.start_time_source
    if at is None:
        yield _part_without_times(Stage.REPEATED_WORK, attempt, "resume point not recorded"), []
        first_stage_end, stage_ends = times.stage_ends[0], times.stage_ends[1:]
        at, time_source = first_stage_end.at, first_stage_end.time_source
        at = min(filter(None, (at, attempt.ended_at)))
    unrecorded_stages: list[Stage] = []
    for stage_end in stage_ends:
        if stage_end.at is None:
            unrecorded_stages.append(stage_end.stage)
            continue
        limit = min(
            filter(
                None,
                (last_at or stage_end.at, attempt.ended_at if stage_end.stage in _STAGES_BEFORE_ATTEMPT_END else None),
            )
        )
        span = Span(at, max(at, min(stage_end.at, limit)))
        spans = subtract_spans(span, spans_taken)
        yield _priced_part(stage_end, span, spans, time_source, tuple(unrecorded_stages), price_of), spans
        at, time_source, unrecorded_stages = span.end, stage_end.time_source, []


def _priced_part(
    stage_end: _StageEnd,
    span: Span,
    lost_spans: Sequence[Span],
    time_source: str,
    unrecorded_stages: tuple[Stage, ...],
    price_of: PriceOf,
) -> ReceiptPart:
    lost_microseconds = sum(microseconds(span.end - span.start) for span in lost_spans)
    attempt = stage_end.attempt
    return ReceiptPart(
        stage=stage_end.stage,
        seconds=lost_microseconds / 1e6,
        started_at=span.start,
        ended_at=span.end,
        from_record=time_source,
        to_record=stage_end.time_source,
        covers=unrecorded_stages,
        already_counted_seconds=(microseconds(span.end - span.start) - lost_microseconds) / 1e6,
        gpus=attempt.accelerators,
        nodes=attempt.ranks,
        gpu_hours=attempt.accelerators * lost_microseconds / MICROSECONDS_PER_HOUR,
        node_hours=attempt.ranks * lost_microseconds / MICROSECONDS_PER_HOUR,
        usd_micros=cost_usd_micros(attempt.accelerators * lost_microseconds, price_of.get(attempt.attempt)),
    )


def _part_without_times(stage: Stage, attempt: Attempt, why: str) -> ReceiptPart:
    return ReceiptPart(
        stage=stage,
        seconds=None,
        started_at=None,
        ended_at=None,
        from_record="",
        to_record="",
        gpus=attempt.accelerators,
        nodes=attempt.ranks,
        gpu_hours=None,
        node_hours=None,
        usd_micros=None,
        why_unknown=why,
    )


def subtract_spans(span: Span, spans_taken: Iterable[Span]) -> list[Span]:
    """Return the parts of a span that no taken span covers."""
    spans = [span]
    for other_span in spans_taken:
        spans = [
            piece
            for remaining_span in spans
            for piece in (
                Span(remaining_span.start, min(remaining_span.end, other_span.start)),
                Span(max(remaining_span.start, other_span.end), remaining_span.end),
            )
            if piece.start < piece.end
        ]
    return [span for span in spans if span.start < span.end]
