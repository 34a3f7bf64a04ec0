"""A receipt in one sentence, for a timeline.

The sentence names unknown stages, so that its sum does not look like the whole loss.
"""

from evenkeel.domain.costs.incident_receipt import IncidentReceipt
from evenkeel.domain.costs.receipt import InterruptionReceipt, ReceiptTotal, Stage
from evenkeel.domain.economics import money

_MIN_SHOWN_SECONDS = 1


def incident_sentence(receipt: IncidentReceipt) -> str:
    """Return a sentence about the cost of an incident."""
    if not receipt.jobs:
        shared_note = " Another incident counts the loss of its jobs." if receipt.shared else ""
        return f"Receipt: no job lost time in this incident.{shared_note}"
    jobs = ", ".join(dict.fromkeys(job.job_id for job in receipt.jobs))
    return f"Receipt: {jobs} lost {_amounts_text(receipt.lost)}.{_unknown_stages_text(receipt.lost)}"


def interruption_sentence(receipt: InterruptionReceipt) -> str:
    """Return a sentence about the cost of one interruption of a job, by stage."""
    stages_text = ", ".join(
        f"{stage_text(receipt_part.stage)} {_format_duration(receipt_part.seconds)}"
        for receipt_part in receipt.parts
        if receipt_part.seconds is not None and receipt_part.seconds >= _MIN_SHOWN_SECONDS
    )
    stages = f": {stages_text}" if stages_text else ""
    return (
        f"Attempt {receipt.attempt} lost {_amounts_text(receipt.total)}{stages}.{_unknown_stages_text(receipt.total)}"
    )


def stage_text(stage: Stage) -> str:
    """Return a stage in words."""
    return stage.lower().replace("_", " ")


def _amounts_text(total: ReceiptTotal) -> str:
    cost = (
        ""
        if total.usd_micros is None
        else f", {money.format_usd(total.usd_micros * (money.COST_PARTS_PER_USD // money.MICROS_PER_USD))}"
    )
    unpriced_note = f" ({total.unpriced_gpu_hours:.2f} of them without a price)" if total.unpriced_gpu_hours else ""
    return f"{_format_duration(total.seconds)}, {total.gpu_hours:.2f} GPU-hours{unpriced_note}{cost}"


def _unknown_stages_text(total: ReceiptTotal) -> str:
    if not total.unknown_stages:
        return ""
    return f" The sum excludes these unrecorded stages: {', '.join(map(stage_text, total.unknown_stages))}."


def _format_duration(seconds: float) -> str:
    """Format a duration to the second: `2 h 4 min 9 s`."""
    hours, seconds_below_hour = divmod(round(seconds), 3600)
    minutes, left_seconds = divmod(seconds_below_hour, 60)
    unit_texts = [f"{count} {unit}" for count, unit in ((hours, "h"), (minutes, "min"), (left_seconds, "s")) if count]
    return " ".join(unit_texts) or "0 s"
