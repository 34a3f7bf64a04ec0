"""The receipt of a job: where the time of its whole life went. The buckets sum to the time since its submission."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType

from evenkeel.domain.costs.interruptions import LostTime, PriceOf, Span, interruptions, job_end_or_now, subtract_spans
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
from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.values import Instant, Value


class JobTimeBucket(StrEnum):
    """Use of a job's time. Every second is in exactly one bucket."""

    PRODUCTIVE = "PRODUCTIVE"
    """Running, and the work was kept. It includes saves that were not measured."""
    CHECKPOINTING = "CHECKPOINTING"
    """Saving checkpoints, by the saves of an attempt's first two checkpoints."""
    RESTORING = "RESTORING"
    """Restoring a checkpoint after an interruption, if that was measured."""
    UNKNOWN = "UNKNOWN"
    """The begin of an attempt that resumed, if its restore was not measured."""
    LOST = "LOST"
    """Lost by failures."""
    INTERRUPTED = "INTERRUPTED"
    """Lost by requests: preempted, resized, moved, drained or suspended."""
    STARTING = "STARTING"
    """From an admission until every pod ran, before the first run."""
    QUEUED = "QUEUED"
    """Waiting for its first run. It holds no GPUs."""


class BucketTime(Value):
    """The time of one bucket."""

    bucket: JobTimeBucket
    seconds: float
    share: float | None
    """Share of the elapsed time; null if no time has elapsed."""
    gpu_hours: float
    usd_micros: int | None
    is_measured: bool = True
    """False if part of this time was not measured. Another bucket includes that part, for example UNKNOWN."""


class CapacityPart(StrEnum):
    """A part of a job's capacity."""

    COMMITTED = "COMMITTED"
    RENTED = "RENTED"


class PartCost(Value):
    """The use and cost of one part of a job's capacity, over all its attempts."""

    part: CapacityPart
    pools: tuple[str, ...]
    gpu_hours: float
    """Held by its attempts, from admission to end. Rented nodes that wait for the job are in the bill of the rental."""
    usd_micros: int | None
    """At the price of each attempt; null if a price is unknown."""


PartPrices = Mapping[int, tuple[GpuPrice | None, GpuPrice | None]]
"""By attempt: the price of its committed and of its rented part."""


class JobReceipt(Value):
    """The time and cost of a job's whole life, and the losses by its interruptions."""

    job_id: str
    submitted_at: Instant
    until: Instant
    """End of the job, or the time of the receipt."""
    is_over: bool
    elapsed_seconds: float
    """Since its submission. The buckets sum to it."""
    buckets: tuple[BucketTime, ...]
    parts: tuple[PartCost, ...] = ()
    """Its committed and its rented nodes; empty if it never held both together."""
    interruptions: tuple[InterruptionReceipt, ...]
    lost: ReceiptTotal
    """Sum of the interruptions by failures. Interruptions by request are not included."""
    notes: tuple[str, ...]


def job_receipt(
    job: Job,
    attempts: Iterable[Attempt],
    incidents: Iterable[tuple[int, Incident]],
    price_of: PriceOf,
    now: datetime,
    restore_seconds: float = 0.0,
    part_prices: PartPrices = MappingProxyType({}),
) -> JobReceipt:
    """Return the receipt of a job's whole life so far.

    Equal records give an equal receipt, in any order. A late record changes it: nothing is stored.

    Args:
        job: The job.
        attempts: All its attempts.
        incidents: Incidents that name one of its attempts, with the number of that attempt.
        price_of: By attempt, its price.
        now: The time of the receipt.
        restore_seconds: Expected time of a restore. For so long, the use of an attempt is unknown if its restore was
            not measured.
        part_prices: The prices of both parts of each attempt.
    """
    sorted_attempts = sorted(attempts, key=lambda row: row.attempt)
    lost_times = interruptions(job, sorted_attempts, incidents, price_of, now)
    until = job_end_or_now(job, sorted_attempts, now)
    # The clock that dates an admission may be behind the clock that dates the submission.
    since = min([job.submitted_at, *(attempt.admitted_at for attempt in sorted_attempts)])
    return JobReceipt(
        job_id=job.job_id,
        submitted_at=job.submitted_at,
        until=until,
        is_over=job.state.has_ended,
        elapsed_seconds=microseconds(until - since) / 1e6,
        buckets=_bucket_times(
            job, sorted_attempts, lost_times, price_of, Span(since, until), timedelta(seconds=restore_seconds)
        ),
        parts=_part_costs(sorted_attempts, part_prices, until),
        interruptions=tuple(lost_time.receipt for lost_time in lost_times),
        lost=total_of(
            receipt_part
            for lost_time in lost_times
            if lost_time.receipt.cause.is_failure
            for receipt_part in lost_time.receipt.parts
        ),
        notes=NOTES,
    )


NOTES = (
    "PRODUCTIVE includes saves of attempts whose saves were not measured. CHECKPOINTING is at most the time of saves.",
    "While a job stands still, all its GPUs count as lost, even if other jobs use them.",
)


def _part_costs(attempts: Sequence[Attempt], prices: PartPrices, until: datetime) -> tuple[PartCost, ...]:
    """Return the use and cost of the committed and of the rented nodes; empty without a mixed attempt or prices."""
    if not prices or not any(attempt.rented_part for attempt in attempts):
        return ()
    sums = {capacity_part: _BucketTotals() for capacity_part in CapacityPart}
    pools: dict[CapacityPart, set[str]] = {capacity_part: set() for capacity_part in CapacityPart}
    for attempt in attempts:
        committed_price, rented_price = prices.get(attempt.attempt, (None, None))
        held_microseconds = microseconds(max(attempt.ended_at or until, attempt.admitted_at) - attempt.admitted_at)
        committed_accelerators = 0 if attempt.is_rented else attempt.priced_accelerators
        rented_accelerators = attempt.accelerators - committed_accelerators
        sums[CapacityPart.COMMITTED].add(held_microseconds, committed_accelerators, committed_price)
        sums[CapacityPart.RENTED].add(held_microseconds, rented_accelerators, rented_price)
        if attempt.rented_part:
            pools[CapacityPart.RENTED].add(attempt.rented_part.pool)
        pools[CapacityPart.RENTED if attempt.is_rented else CapacityPart.COMMITTED].add(attempt.pool)
    return tuple(
        PartCost(
            part=capacity_part,
            pools=tuple(sorted(pools[capacity_part])),
            gpu_hours=sums[capacity_part].gpu / MICROSECONDS_PER_HOUR,
            usd_micros=sums[capacity_part].usd,
        )
        for capacity_part in CapacityPart
    )


class _BucketTotals:
    """The time, GPU time and cost of one bucket."""

    def __init__(self) -> None:
        self.time = self.gpu = 0
        self.usd: int | None = 0
        self.is_measured = True

    def add(self, time: int, gpus: int, price: GpuPrice | None) -> None:
        self.time += time
        self.gpu += time * gpus
        cost = cost_usd_micros(time * gpus, price)
        if time * gpus:
            self.usd = None if cost is None or self.usd is None else self.usd + cost


def _bucket_times(
    job: Job,
    attempts: Sequence[Attempt],
    losses: Sequence[LostTime],
    price_of: PriceOf,
    elapsed: Span,
    restore_limit: timedelta,
) -> tuple[BucketTime, ...]:
    sums = {bucket: _BucketTotals() for bucket in JobTimeBucket}
    counted_spans = [span for lost_time in losses for _, span in lost_time.spans]
    for lost_time in losses:
        lost_bucket = JobTimeBucket.LOST if lost_time.receipt.cause.is_failure else JobTimeBucket.INTERRUPTED
        for receipt_part in lost_time.receipt.parts:
            bucket_sum = sums[JobTimeBucket.RESTORING if receipt_part.stage is Stage.RESTORE else lost_bucket]
            if receipt_part.seconds is None:
                bucket_sum.is_measured = False
            else:
                bucket_sum.time += round(receipt_part.seconds * 1e6)
                bucket_sum.gpu += receipt_part.gpus * round(receipt_part.seconds * 1e6)
                if receipt_part.seconds and receipt_part.gpus:
                    bucket_sum.usd = (
                        None
                        if receipt_part.usd_micros is None or bucket_sum.usd is None
                        else bucket_sum.usd + receipt_part.usd_micros
                    )
    for attempt in attempts:
        ended_at = attempt.ended_at or elapsed.end
        running_at = attempt.running_at or ended_at
        is_unmeasured = attempt.is_pinned and attempt.resume_from is not None and attempt.trained_at is None
        known_from = max(running_at, min(running_at + restore_limit, ended_at)) if is_unmeasured else running_at
        spans = (
            (JobTimeBucket.STARTING, attempt.admitted_at, running_at),
            (JobTimeBucket.UNKNOWN, running_at, known_from),
            (JobTimeBucket.PRODUCTIVE, known_from, ended_at),
        )
        for bucket, start, end in spans:
            own_spans = subtract_spans(Span(start, max(start, end)), counted_spans)
            counted_spans += own_spans
            spent = sum(microseconds(span.end - span.start) for span in own_spans)
            price = price_of.get(attempt.attempt)
            saves_checkpoints = bool(job.spec.checkpoint_uri)
            if bucket is JobTimeBucket.PRODUCTIVE and spent and saves_checkpoints and attempt.saving_share is None:
                sums[JobTimeBucket.CHECKPOINTING].is_measured = False
            if bucket is JobTimeBucket.UNKNOWN and spent:
                sums[JobTimeBucket.RESTORING].is_measured = False
            saving = int(spent * (attempt.saving_share or 0.0)) if bucket is JobTimeBucket.PRODUCTIVE else 0
            sums[JobTimeBucket.CHECKPOINTING].add(saving, attempt.accelerators, price)
            sums[bucket].add(spent - saving, attempt.accelerators, price)
    elapsed_microseconds = microseconds(elapsed.end - elapsed.start)
    sums[JobTimeBucket.QUEUED].time = elapsed_microseconds - sum(bucket_totals.time for bucket_totals in sums.values())
    return tuple(
        BucketTime(
            bucket=bucket,
            seconds=bucket_sum.time / 1e6,
            share=bucket_sum.time / elapsed_microseconds if elapsed_microseconds else None,
            gpu_hours=bucket_sum.gpu / MICROSECONDS_PER_HOUR,
            usd_micros=bucket_sum.usd,
            is_measured=bucket_sum.is_measured,
        )
        for bucket, bucket_sum in sums.items()
    )
