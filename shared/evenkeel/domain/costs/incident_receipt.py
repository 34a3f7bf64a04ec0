"""The receipt of an incident: the loss of its jobs, the time of its node, the forecast, and the savings."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from evenkeel.domain.costs.interruptions import LostTime, Span, subtract_spans
from evenkeel.domain.costs.receipt import (
    MICROSECONDS_PER_HOUR,
    GpuPrice,
    InterruptionReceipt,
    ReceiptTotal,
    Stage,
    cost_usd_micros,
    microseconds,
    total_of,
)
from evenkeel.domain.costs.savings import EstimatedSaving, savings
from evenkeel.domain.decisions import Decision
from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.jobs.job import ResumeOption
from evenkeel.domain.values import Instant, Value


class NodeOutage(Value):
    """The time in which the node of an incident took no work."""

    started_at: Instant | None
    """When Evenkeel cordoned it; null if it did not."""
    ended_at: Instant | None
    """When it, or its replacement, took work again; null if unknown. If it still lasts, the time of the receipt."""
    is_over: bool
    seconds: float | None
    """Null: unknown, or there was none."""
    counted_with_jobs_seconds: float
    """Part of these seconds that its jobs' interruptions count as lost. No sum here includes it."""
    gpus: int | None
    """Null: the type of the node is unknown."""
    gpu_hours: float | None
    """GPU-hours that do not already count with the jobs."""
    usd_micros: int | None
    why_unknown: str = ""


class WeighedOption(Value):
    """An option of a decision about a job: the forecast, and the result of the chosen option."""

    job_id: str
    decision_id: str
    option: str
    is_chosen: bool
    expected_seconds: float | None
    actual_seconds: float | None
    """Time of the chosen option: from the decision until every pod ran, plus the repeated work; null if unknown."""
    hindsight_seconds: float | None = None
    """The time that an option would have taken at least, if it was not chosen and the records show it; else null."""
    why_unknown: str = ""
    """Why there is neither an actual time nor one in hindsight; empty if there is one."""
    expected_gpu_hours: float | None
    expected_usd: float | None
    expected_slowdown_seconds: float | None
    """Seconds that the job was expected to lose after its resume, on nodes that are farther apart. GPU-hours and
    dollars include them; null if unknown, or not weighed."""
    why_not: str


class IncidentReceipt(Value):
    """The cost of an incident, stage by stage. Estimates are apart, and marked."""

    incident_id: str
    as_of: Instant
    is_over: bool
    """False: a job or the node is still out of service, so the figures grow."""
    is_drill: bool
    mode: str
    jobs: tuple[InterruptionReceipt, ...]
    """Interruptions whose loss this incident owns."""
    shared: tuple[InterruptionReceipt, ...]
    """Interruptions whose loss an earlier incident owns. No sum here includes them."""
    running: tuple[str, ...]
    """Jobs on the node whose attempts this incident has not interrupted so far."""
    node: NodeOutage
    lost: ReceiptTotal
    """Loss of the interruptions that this incident owns."""
    total_gpu_hours: float
    """Lost by jobs, plus the node's own time that no job lost. A lower bound if any part is unknown."""
    total_usd_micros: int | None
    """Null: no price is known."""
    is_lower_bound: bool
    options: tuple[WeighedOption, ...]
    savings: tuple[EstimatedSaving, ...]
    """Estimates for each owned interruption."""
    notes: tuple[str, ...]


def incident_receipt(
    incident: Incident,
    lost_times: Iterable[LostTime],
    decisions: Iterable[Decision],
    node_gpus: int | None,
    node_price: GpuPrice | None,
    restore_seconds: float,
    now: datetime,
) -> IncidentReceipt:
    """Return the receipt of an incident so far. A late record changes it: nothing is stored.

    Args:
        incident: The incident.
        lost_times: The interruptions of its jobs that name it, and others of these jobs.
        decisions: The records about it.
        node_gpus: GPUs of its node; None if unknown.
        node_price: Price of a GPU-hour of its node; None if unknown.
        restore_seconds: Expected time from running pods until a job trains.
        now: The time of the receipt.
    """
    naming_losses = [lost_time for lost_time in lost_times if incident.incident_id in lost_time.receipt.incident_ids]
    owned_losses = [lost_time for lost_time in naming_losses if lost_time.receipt.incident_id == incident.incident_id]
    node = node_outage(
        incident, [span for lost_time in owned_losses for _, span in lost_time.spans], node_gpus, node_price, now
    )
    total = total_of(receipt_part for lost_time in owned_losses for receipt_part in lost_time.receipt.parts)
    interrupted_jobs = {lost_time.receipt.job_id for lost_time in naming_losses}
    uninterrupted_job_ids = tuple(job.job_id for job in incident.affected_jobs if job.job_id not in interrupted_jobs)
    prices = [price for price in (total.usd_micros, node.usd_micros) if price is not None]
    return IncidentReceipt(
        incident_id=incident.incident_id,
        as_of=now,
        is_over=incident.state.is_settled
        and node.is_over
        and all(lost_time.receipt.is_over for lost_time in owned_losses),
        is_drill=incident.is_drill,
        mode=incident.mode,
        jobs=tuple(lost_time.receipt for lost_time in owned_losses),
        shared=tuple(lost_time.receipt for lost_time in naming_losses if lost_time not in owned_losses),
        running=uninterrupted_job_ids,
        node=node,
        lost=total,
        total_gpu_hours=total.gpu_hours + (node.gpu_hours or 0.0),
        total_usd_micros=sum(prices) if prices else None,
        is_lower_bound=total.is_lower_bound
        or bool(node.why_unknown)
        or (node.usd_micros is None and bool(node.seconds)),
        options=tuple(_weighed_options(incident, decisions, [lost_time.receipt for lost_time in naming_losses])),
        savings=tuple(
            saving for lost_time in owned_losses for saving in savings(lost_time.receipt, incident, restore_seconds)
        ),
        notes=(_STANDSTILL_NOTE, *((_RESTORE_NOTE,) if Stage.RESTORE in total.unknown_stages else ())),
    )


_STANDSTILL_NOTE = "While a job stands still, all its GPUs count as lost, even if other jobs use them."
_RESTORE_NOTE = "Restoring the checkpoint was not measured for every interruption, so the sums lack some of this time."


def node_outage(
    incident: Incident, with_jobs: Sequence[Span], gpus: int | None, price: GpuPrice | None, now: datetime
) -> NodeOutage:
    """Return how long the node took no work, from its cordon until its return.

    Args:
        incident: The incident.
        with_jobs: Spans that the interruptions of its jobs lost.
        gpus: GPUs of the node; None if unknown.
        price: Price of a GPU-hour of the node; None if unknown.
        now: The time.
    """
    stages = incident.stages
    start = stages.cordoned_at
    if start is None:
        return _no_outage(None, is_over=incident.state.is_settled, gpus=gpus, why="")
    returned_at = stages.returned_at
    is_over = returned_at is not None or incident.state.is_settled
    if returned_at is None and incident.state.is_settled:
        return _no_outage(start, is_over=True, gpus=gpus, why="No record says when the node took work again.")
    end = max(start, returned_at or now)
    spans = subtract_spans(Span(start, end), with_jobs)
    microseconds_without_jobs = sum(microseconds(span.end - span.start) for span in spans)
    total = microseconds(end - start)
    return NodeOutage(
        started_at=start,
        ended_at=end,
        is_over=is_over,
        seconds=total / 1e6,
        counted_with_jobs_seconds=(total - microseconds_without_jobs) / 1e6,
        gpus=gpus,
        gpu_hours=None if gpus is None else gpus * microseconds_without_jobs / MICROSECONDS_PER_HOUR,
        usd_micros=None if gpus is None else cost_usd_micros(gpus * microseconds_without_jobs, price),
        why_unknown="" if gpus is not None else "The type of the node is unknown.",
    )


def _no_outage(start: datetime | None, *, is_over: bool, gpus: int | None, why: str) -> NodeOutage:
    return NodeOutage(
        started_at=start,
        ended_at=None,
        is_over=is_over,
        seconds=None,
        counted_with_jobs_seconds=0,
        gpus=gpus,
        gpu_hours=None,
        usd_micros=None,
        why_unknown=why,
    )


def _weighed_options(
    incident: Incident, decisions: Iterable[Decision], interruptions: Sequence[InterruptionReceipt]
) -> Iterable[WeighedOption]:
    """Yield every option of each decision about a resume, the chosen one first."""
    for decision in sorted(decisions, key=lambda earlier: (earlier.decided_at, earlier.decision_id)):
        if decision.kind != "RESUME":
            continue
        job_id, attempt = str(decision.facts.get("jobId", "")), decision.facts.get("attempt")
        receipt = next(
            (
                interruption_receipt
                for interruption_receipt in interruptions
                if (interruption_receipt.job_id, interruption_receipt.attempt) == (job_id, attempt)
            ),
            None,
        )
        chosen_option = decision.chosen
        for option in (*([chosen_option] if chosen_option else []), *decision.alternatives):
            is_chosen = option is chosen_option
            actual = _actual_seconds(receipt, decision.decided_at) if is_chosen else None
            hindsight = None if is_chosen else _hindsight_seconds(option.option, incident, receipt, decision.decided_at)
            yield WeighedOption(
                job_id=job_id,
                decision_id=decision.decision_id,
                option=option.option,
                is_chosen=is_chosen,
                expected_seconds=option.expected_seconds,
                actual_seconds=actual,
                hindsight_seconds=hindsight,
                why_unknown=_why_unknown(option.option, receipt, is_chosen=is_chosen)
                if actual is None and hindsight is None
                else "",
                expected_gpu_hours=option.gpu_hours_lost,
                expected_usd=option.usd,
                expected_slowdown_seconds=option.slowdown_seconds,
                why_not=option.why_not,
            )


def _actual_seconds(receipt: InterruptionReceipt | None, decided_at: datetime) -> float | None:
    """Return the actual seconds of the chosen option: until every pod ran, plus repeated work; None if unknown."""
    if receipt is None or receipt.resumed_by_attempt is None:
        return None
    repeated_work_seconds = receipt.seconds_of(Stage.REPEATED_WORK)
    running_at = receipt.ended_at
    if repeated_work_seconds is None or running_at is None:
        return None
    return max(0.0, microseconds(running_at - decided_at) / 1e6) + repeated_work_seconds


def _hindsight_seconds(
    option: str, incident: Incident, receipt: InterruptionReceipt | None, decided_at: datetime
) -> float | None:
    """Return the seconds that waiting for the repair would have taken, by the time at which the node was back.

    The start of the pods and the repeated work come from the resume that took place. All other options need nodes
    that were never requested, so no record shows their time.
    """
    returned_at = incident.stages.returned_at
    if option != ResumeOption.WAIT_FOR_REPAIR or returned_at is None or receipt is None:
        return None
    stage_seconds = [receipt.seconds_of(stage) for stage in (Stage.REPEATED_WORK, Stage.LAUNCH, Stage.RESTART)]
    if receipt.resumed_by_attempt is None or None in stage_seconds:
        return None
    return max(0.0, microseconds(returned_at - decided_at) / 1e6) + sum(seconds or 0.0 for seconds in stage_seconds)


def _why_unknown(option: str, receipt: InterruptionReceipt | None, *, is_chosen: bool) -> str:
    if receipt is None:
        return "No record shows this interruption."
    if receipt.resumed_by_attempt is None:
        return "The job has not resumed."
    if is_chosen:
        return "The repeated work is unknown."
    if option == ResumeOption.WAIT_FOR_REPAIR:
        return "No record says when the node was back."
    return "It was not carried out, so no record shows its time."
