"""The values of a receipt: stages, parts, prices and exact sums. Time is counted in whole microseconds."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from enum import StrEnum

from evenkeel.domain.values import Instant, Sentence, Value

_MICROSECOND = timedelta(microseconds=1)
MICROSECONDS_PER_HOUR = 3_600_000_000


class Stage(StrEnum):
    """A stage of an interruption, in order."""

    REPEATED_WORK = "REPEATED_WORK"
    """From the write of the checkpoint that the job resumes from until the first signal. This work is done again."""
    DETECTION = "DETECTION"
    """From the first signal until Evenkeel opened the incident."""
    DECISION = "DECISION"
    """Until the recovery was planned."""
    APPROVAL = "APPROVAL"
    """Until a person approved the plan."""
    DRAIN = "DRAIN"
    """Until the interrupted attempt had ended."""
    WAIT_FOR_NODES = "WAIT_FOR_NODES"
    """Until an attempt was admitted."""
    FAILED_START = "FAILED_START"
    """Attempts in between that ended before they ran."""
    LAUNCH = "LAUNCH"
    """From the admission until its pods were created."""
    RESTART = "RESTART"
    """Until every pod ran."""
    RESTORE = "RESTORE"
    """Until the job trained again."""


class InterruptionCause(StrEnum):
    """Why an attempt was interrupted."""

    INCIDENT = "INCIDENT"
    """A node fault that Evenkeel opened an incident for."""
    INFRASTRUCTURE = "INFRASTRUCTURE"
    """The attempt was lost, and no incident names it."""
    APPLICATION = "APPLICATION"
    """The application failed."""
    REQUEST = "REQUEST"
    """It was stopped on request: preempted, resized, moved, drained or suspended."""

    @property
    def is_failure(self) -> bool:
        """Whether something failed. A stop on request is no failure."""
        return self is not InterruptionCause.REQUEST


class GpuPrice(Value):
    """The price of a GPU-hour, and where it comes from."""

    usd_micros_per_gpu_hour: int
    """Micro-dollars."""
    origin: str
    """The list, its region and its date; or the site's policy; or the rent."""


class ReceiptPart(Value):
    """A stage of an interruption, with its loss."""

    stage: Stage
    seconds: float | None
    """Lost seconds; null if a border is unknown. Seconds of an earlier interruption do not count."""
    started_at: Instant | None
    ended_at: Instant | None
    """Null: unknown. For a stage that still lasts, the time of the receipt."""
    from_record: str
    """The record of the beginning."""
    to_record: str
    """The record of the end."""
    covers: tuple[Stage, ...] = ()
    """Earlier stages whose end is not recorded. Their seconds are in this part."""
    already_counted_seconds: float = 0
    """Seconds of this stage that already count as lost by an earlier interruption of the job."""
    gpus: int
    nodes: int
    gpu_hours: float | None
    node_hours: float | None
    usd_micros: int | None
    """Null: seconds or price are unknown."""
    why_unknown: str = ""
    """Why the seconds are unknown; empty if they are known."""


class ReceiptTotal(Value):
    """The sum of the known parts. It is a lower bound if a part is unknown."""

    seconds: float
    gpu_hours: float
    node_hours: float
    usd_micros: int | None
    """Cost of the priced parts; null if no part with GPU-hours has a price."""
    unpriced_gpu_hours: float
    """Known GPU-hours without a price. The dollars exclude them."""
    unknown_stages: tuple[Stage, ...]
    """Stages whose seconds are unknown."""

    @property
    def is_lower_bound(self) -> bool:
        """Whether the sum excludes an unknown part."""
        return bool(self.unknown_stages) or self.unpriced_gpu_hours > 0


class InterruptionReceipt(Value):
    """The cost of one interruption of a job."""

    job_id: str
    attempt: int
    """The interrupted attempt."""
    resumed_by_attempt: int | None
    """Null: no later attempt runs."""
    cause: InterruptionCause
    incident_ids: tuple[str, ...] = ()
    """The incidents that name this attempt. The first incident owns the loss; the other incidents do not count it
    again."""
    reason: Sentence = ""
    interrupted_at: Instant
    """When the attempt ended."""
    is_over: bool
    """False: no later attempt runs yet, so the loss grows."""
    pool: str
    instance_type: str
    nodes: int
    """Nodes of the interrupted attempt; 0: unknown."""
    gpus: int
    """GPUs of the interrupted attempt."""
    price: GpuPrice | None
    """Price of the interrupted attempt; null if unknown."""
    resumed_step: int | None
    """Step of the checkpoint that the job resumed from; null if there is none, or it is not known yet."""
    parts: tuple[ReceiptPart, ...]
    total: ReceiptTotal
    standstill_seconds: float
    """Known seconds without the repeated work."""

    @property
    def incident_id(self) -> str:
        """The incident that owns the loss; empty if there is none."""
        return self.incident_ids[0] if self.incident_ids else ""

    @property
    def ended_at(self) -> datetime | None:
        """When every pod ran again, or the job ended; of an interruption that lasts, the time of the receipt."""
        return max((receipt_part.ended_at for receipt_part in self.parts if receipt_part.ended_at), default=None)

    def seconds_of(self, stage: Stage) -> float | None:
        """Return the lost seconds of a stage; None if they are unknown, or recorded together with another stage."""
        return next((receipt_part.seconds for receipt_part in self.parts if receipt_part.stage is stage), None)


def microseconds(span: timedelta) -> int:
    """Return a duration in whole microseconds."""
    return span // _MICROSECOND


def cost_usd_micros(gpu_microseconds: int, price: GpuPrice | None) -> int | None:
    """Return the cost of GPU time in whole micro-dollars; None without a price.

    Args:
        gpu_microseconds: GPUs times microseconds.
        price: Price of a GPU-hour.
    """
    if price is None:
        return None
    return (2 * gpu_microseconds * price.usd_micros_per_gpu_hour + MICROSECONDS_PER_HOUR) // (2 * MICROSECONDS_PER_HOUR)


def total_of(receipt_parts: Iterable[ReceiptPart]) -> ReceiptTotal:
    """Return the sum of parts. Whole microseconds and micro-dollars are added, so the sum is exact."""
    seconds = gpu_microseconds = node_microseconds = usd = unpriced_microseconds = 0
    has_price, unknown_stages = False, dict[Stage, None]()
    for receipt_part in receipt_parts:
        if receipt_part.seconds is None:
            unknown_stages[receipt_part.stage] = None
            continue
        part_microseconds = round(receipt_part.seconds * 1e6)
        seconds += part_microseconds
        gpu_microseconds += receipt_part.gpus * part_microseconds
        node_microseconds += receipt_part.nodes * part_microseconds
        if receipt_part.usd_micros is None:
            unpriced_microseconds += receipt_part.gpus * part_microseconds
        else:
            has_price = True
            usd += receipt_part.usd_micros
    return ReceiptTotal(
        seconds=seconds / 1e6,
        gpu_hours=gpu_microseconds / MICROSECONDS_PER_HOUR,
        node_hours=node_microseconds / MICROSECONDS_PER_HOUR,
        usd_micros=usd if has_price else None,
        unpriced_gpu_hours=unpriced_microseconds / MICROSECONDS_PER_HOUR,
        unknown_stages=tuple(unknown_stages),
    )
