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


class _Mark(NamedTuple):
    """The end of a stage: a time of a record."""

    stage: Stage
    at: datetime | None
    record: str
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
    ordered = sorted(attempts, key=lambda row: row.attempt)
    until = end_of(job, ordered, now)
    named: dict[int, dict[str, Incident]] = {}
    for number, incident in incidents:
        named.setdefault(number, {})[incident.incident_id] = incident
    spans_taken: list[Span] = []
    losses = []
    for place, attempt in enumerate(ordered):
        if not _was_interrupted(job, attempt, ordered[place + 1 :]):
            continue
        blamed = sorted(
            named.get(attempt.attempt, {}).values(),
            key=lambda incident: (incident.first_signal_at, incident.incident_id),
        )
        line = _time_line(job, ordered, place, blamed, until)
        lost_time = _priced(job, attempt, blamed, line, spans_taken, price_of)
        spans_taken += [span for _, span in lost_time.spans]
        losses.append(lost_time)
    return losses


def end_of(job: Job, attempts: Iterable[Attempt], now: datetime) -> datetime:
    """Return the end of a job, or the present. A clock that is ahead cannot make a time negative."""
    last = [
        job.submitted_at,
        *(at for attempt in attempts for at in (attempt.admitted_at, attempt.running_at, attempt.ended_at) if at),
    ]
    return max(job.ended_at or now, *last)


def _was_interrupted(job: Job, attempt: Attempt, later: Sequence[Attempt]) -> bool:
    """Whether an attempt ran, ended without success, and its job went on or waited to go on."""
    if attempt.running_at is None or attempt.ended_at is None or attempt.state is AttemptState.SUCCEEDED:
        return False
    return bool(later) or job.ended_at is None or job.ended_at > attempt.ended_at


# ---------------------------------------------------------------- the time line of one interruption


class _TimeLine(NamedTuple):
    """The recorded instants of one interruption, in order of time."""

    start: datetime | None
    """None: the resume point is unknown."""
    start_record: str
    marks: tuple[_Mark, ...]
    resumed: Attempt | None
    until: datetime
    """End of the job, or the time of the receipt."""
    is_over: bool


def _time_line(
    job: Job, attempts: Sequence[Attempt], place: int, blamed: Sequence[Incident], until: datetime
) -> _TimeLine:
    attempt, following = attempts[place], attempts[place + 1 :]
    resumed = next((attempt for attempt in following if attempt.running_at), None)
    start, start_record = _kept_until(attempts, attempt, resumed)
    marks = list(_before_the_end(attempt, blamed))
    marks.append(_Mark(Stage.DRAIN, attempt.ended_at, f"attempt {attempt.attempt} ended", attempt))
    for later in following[: following.index(resumed) + 1 if resumed else None]:
        name = f"attempt {later.attempt}"
        marks.append(_Mark(Stage.WAIT_FOR_NODES, later.admitted_at, f"{name} admitted", attempt))
        if later is resumed:
            marks.append(_Mark(Stage.LAUNCH, later.launched_at, f"{name} launched", later))
            marks.append(_Mark(Stage.RESTART, later.running_at, f"every pod of {name} runs", later))
            if later.trained_at:
                marks.append(_Mark(Stage.RESTORE, later.trained_at, f"{name} trains, by its checkpoints", later))
        elif later.ended_at:
            marks.append(_Mark(Stage.FAILED_START, later.ended_at, f"{name} ended without a run", later))
        elif later.launched_at:
            marks.append(_Mark(Stage.LAUNCH, later.launched_at, f"{name} launched", later))
    if resumed is None:
        last = following[-1] if following else None
        starting = last if last and last.ended_at is None else None
        stage = Stage.WAIT_FOR_NODES
        if starting:
            stage = Stage.RESTART if starting.launched_at else Stage.LAUNCH
        record = "job ended" if job.ended_at else "now"
        marks.append(_Mark(stage, until, record, starting or attempt))
    return _TimeLine(start, start_record, tuple(marks), resumed, until, resumed is not None or job.ended_at is not None)


def _before_the_end(attempt: Attempt, blamed: Sequence[Incident]) -> Iterator[_Mark]:
    """Yield the ends of the stages before the drain."""
    if not blamed:
        stop_requested_at = attempt.stop_asked_at
        record = "stop requested" if stop_requested_at else f"attempt {attempt.attempt} ended"
        yield _Mark(Stage.REPEATED_WORK, stop_requested_at or attempt.ended_at, record, attempt)
        return
    first = blamed[0]
    approval = first.approval
    yield _Mark(Stage.REPEATED_WORK, first.first_signal_at, "first signal", attempt)
    yield _Mark(Stage.DETECTION, first.opened_at, "incident opened", attempt)
    yield _Mark(Stage.DECISION, first.stages.planned_at, "recovery planned", attempt)
    if approval is not None and approval.approves:
        yield _Mark(Stage.APPROVAL, approval.at, f"approved by {approval.by}", attempt)


def _kept_until(attempts: Sequence[Attempt], ended: Attempt, resumed: Attempt | None) -> tuple[datetime | None, str]:
    """Return until when the work of a job was kept, and the record that says so. None: unknown."""
    if resumed is None or not resumed.is_pinned:
        return None, ""
    began = min(attempt.running_at for attempt in attempts if attempt.running_at)
    if resumed.resume_from is None:
        return began, f"first run: attempt {resumed.attempt} resumed from no checkpoint"
    if resumed.resumed_work_from is None or ended.ended_at is None:
        return None, ""
    kept_until = max(began, min(resumed.resumed_work_from, ended.ended_at))
    return kept_until, f"checkpoint of step {resumed.resume_from.step} began"


def _priced(
    job: Job,
    attempt: Attempt,
    blamed: Sequence[Incident],
    line: _TimeLine,
    taken: Sequence[Span],
    price_of: PriceOf,
) -> LostTime:
    parts, spans = [], []
    for receipt_part, part_spans in _parts(line, attempt, taken, price_of):
        parts.append(receipt_part)
        spans += [(receipt_part.stage, span) for span in part_spans]
    resumed = line.resumed
    if resumed is None or resumed.trained_at is None:
        parts.append(_unknown(Stage.RESTORE, resumed or attempt, "not recorded"))
    still = [
        round(receipt_part.seconds * 1e6)
        for receipt_part in parts
        if receipt_part.seconds and receipt_part.stage is not Stage.REPEATED_WORK
    ]
    point = resumed.resume_from if resumed and resumed.is_pinned else None
    receipt = InterruptionReceipt(
        job_id=job.job_id,
        attempt=attempt.attempt,
        resumed_by_attempt=resumed.attempt if resumed else None,
        cause=_cause(attempt, blamed),
        incident_ids=tuple(incident.incident_id for incident in blamed),
        reason=attempt.reason,
        interrupted_at=attempt.ended_at or line.until,
        is_over=line.is_over,
        pool=attempt.pool,
        instance_type=attempt.instance_type,
        price=price_of.get(attempt.attempt),
        resumed_step=point.step if point else None,
        parts=tuple(parts),
        total=total_of(parts),
        standstill_seconds=sum(still) / 1e6,
    )
    return LostTime(receipt, tuple(spans))


def _cause(attempt: Attempt, blamed: Sequence[Incident]) -> InterruptionCause:
    if blamed:
        return InterruptionCause.INCIDENT
    if attempt.state is AttemptState.FAILED:
        return InterruptionCause.APPLICATION
    return InterruptionCause.REQUEST if attempt.state is AttemptState.STOPPED else InterruptionCause.INFRASTRUCTURE


_WHILE_IT_RUNS = (Stage.REPEATED_WORK, Stage.DETECTION, Stage.DECISION, Stage.APPROVAL)
"""Stages that the end of the interrupted attempt ends."""


def _parts(
    line: _TimeLine, attempt: Attempt, taken: Sequence[Span], price_of: PriceOf
) -> Iterator[tuple[ReceiptPart, list[Span]]]:
    """Yield the stages with their spans. Two stages never overlap, and together they leave no gap."""
    # The last border is known: every pod runs, the job ended, or the receipt is written.
    last = line.marks[-1].at
    marks, at, record = line.marks, line.start, line.start_record
    if at is None:
        yield _unknown(Stage.REPEATED_WORK, attempt, "resume point not recorded"), []
        first, marks = line.marks[0], line.marks[1:]
        at, record = first.at, first.record
        at = min(filter(None, (at, attempt.ended_at)))
    missing: list[Stage] = []
    for mark in marks:
        if mark.at is None:
            missing.append(mark.stage)
            continue
        limit = min(filter(None, (last or mark.at, attempt.ended_at if mark.stage in _WHILE_IT_RUNS else None)))
        span = Span(at, max(at, min(mark.at, limit)))
        spans = subtract_spans(span, taken)
        yield _part(mark, span, spans, record, tuple(missing), price_of), spans
        at, record, missing = span.end, mark.record, []


def _part(
    mark: _Mark, span: Span, own: Sequence[Span], record: str, missing: tuple[Stage, ...], price_of: PriceOf
) -> ReceiptPart:
    lost = sum(microseconds(span.end - span.start) for span in own)
    attempt = mark.attempt
    return ReceiptPart(
        stage=mark.stage,
        seconds=lost / 1e6,
        started_at=span.start,
        ended_at=span.end,
        from_record=record,
        to_record=mark.record,
        covers=missing,
        already_counted_seconds=(microseconds(span.end - span.start) - lost) / 1e6,
        gpus=attempt.accelerators,
        nodes=attempt.ranks,
        gpu_hours=attempt.accelerators * lost / MICROSECONDS_PER_HOUR,
        node_hours=attempt.ranks * lost / MICROSECONDS_PER_HOUR,
        usd_micros=cost_usd_micros(attempt.accelerators * lost, price_of.get(attempt.attempt)),
    )


def _unknown(stage: Stage, attempt: Attempt, why: str) -> ReceiptPart:
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


def subtract_spans(span: Span, taken: Iterable[Span]) -> list[Span]:
    """Return the parts of a span that no taken span covers."""
    spans = [span]
    for other_span in taken:
        spans = [
            piece
            for old in spans
            for piece in (
                Span(old.start, min(old.end, other_span.start)),
                Span(max(old.start, other_span.end), old.end),
            )
            if piece.start < piece.end
        ]
    return [span for span in spans if span.start < span.end]
