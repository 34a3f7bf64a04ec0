"""The cost of an interruption without Evenkeel: estimates from published times, never measurements.

The work since the checkpoint is lost in every case, so only the standstill is compared:

    saved = published standstill - (known standstill of the receipt + expected restore)

HyperPod publishes P90s (docs/economics.md, Table 2). A sum of P90s is above the mean, so it is the high end. The low
end is the mean of independent lognormal stages with these P90s and a sigma of 0.3: P90 x e^(0.3²/2 - 1.2816 x 0.3)
each. It leaves out the detection, because the first signal may come from HyperPod's own detection.
"""

import math
from collections.abc import Iterable, Sequence
from enum import StrEnum
from statistics import NormalDist

from evenkeel.domain.costs.receipt import (
    MICROSECONDS_PER_HOUR,
    InterruptionCause,
    InterruptionReceipt,
    Stage,
    cost_usd_micros,
)
from evenkeel.domain.economics.fleet_forecast import published_stages
from evenkeel.domain.economics.published_tables import TABLE_3
from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.recovery.approval import is_approved
from evenkeel.domain.values import Value

_SIGMA = 0.3
_MEAN_PER_P90 = math.exp(_SIGMA**2 / 2 - NormalDist().inv_cdf(0.9) * _SIGMA)
_HYPERPOD = "ml."


class RecoveryBaseline(StrEnum):
    """How the job would have recovered without Evenkeel."""

    HYPERPOD_UNCHANGED = "HYPERPOD_UNCHANGED"
    """HyperPod detects, replaces and resumes by itself, at its published times."""
    MANUAL = "MANUAL"
    """People find the cause, replace the node and restart the job, at the times of AWS's article."""


class EstimatedSaving(Value):
    """Estimated savings against one baseline. Negative: the recovery of the baseline would have been faster."""

    instead_of: RecoveryBaseline
    is_estimate: bool = True
    """Always true."""
    low_standstill_seconds: float | None
    """Standstill without Evenkeel; null if nothing is claimed."""
    high_standstill_seconds: float | None
    low_saved_seconds: float | None
    high_saved_seconds: float | None
    low_saved_gpu_hours: float | None
    high_saved_gpu_hours: float | None
    low_saved_usd_micros: int | None
    """Null also without a price."""
    high_saved_usd_micros: int | None
    assumptions: tuple[str, ...]
    why_unknown: str = ""
    """Why nothing is claimed; empty if something is."""


def has_acted(incident: Incident) -> bool:
    """Whether Evenkeel carried out the plan of an incident, at once or after an approval."""
    plan = incident.plan
    return plan is not None and (plan.outcome == "ACT" or is_approved(incident))


def savings(
    interruption: InterruptionReceipt, owner: Incident | None, restore_seconds: float
) -> tuple[EstimatedSaving, ...]:
    """Return the estimated savings against each baseline. Nothing is claimed if the standstill or its cause is unknown.

    Args:
        interruption: An interruption.
        owner: The incident that owns its loss; None if there is none.
        restore_seconds: Expected time from running pods until the job trains. The published times include it.
    """
    results = []
    for baseline in RecoveryBaseline:
        why = _why_unknown(baseline, interruption, owner)
        results.append(_no_saving(baseline, why) if why else _estimated_saving(baseline, interruption, restore_seconds))
    return tuple(results)


def _why_unknown(baseline: RecoveryBaseline, interruption: InterruptionReceipt, owner: Incident | None) -> str:
    if interruption.cause is not InterruptionCause.INCIDENT or owner is None:
        return "No incident interrupted the job, so nothing is claimed."
    if owner.is_drill:
        return "A drill saves nothing."
    if not has_acted(owner):
        return "Evenkeel did not act on this incident, so it saved nothing."
    if not interruption.is_over or interruption.resumed_by_attempt is None:
        return "The job has not resumed yet, so the length of its standstill is unknown."
    if baseline is RecoveryBaseline.HYPERPOD_UNCHANGED and not interruption.instance_type.startswith(_HYPERPOD):
        return "HyperPod does not manage this node, so it would not have repaired it."
    return ""


def _estimated_saving(
    baseline: RecoveryBaseline, interruption: InterruptionReceipt, restore_seconds: float
) -> EstimatedSaving:
    nodes = max((receipt_part.nodes for receipt_part in interruption.parts), default=0)
    low, high, resume, text = _published_standstill(baseline, max(1, nodes))
    is_measured = any(
        receipt_part.stage is Stage.RESTORE and receipt_part.seconds is not None for receipt_part in interruption.parts
    )
    restore = 0.0 if is_measured else min(restore_seconds, resume)
    assumption = f"No record says when this job trained again: {restore:g} s after the start of its pods is assumed."
    assumptions = (
        "An estimate, not a measurement. Without Evenkeel, the work since the last checkpoint is lost, too.",
        "Its checkpoints show when this job trained again." if is_measured else assumption,
        text,
    )
    gpus = next((receipt_part.gpus for receipt_part in interruption.parts), 0)
    saved_microseconds = [round((bound - interruption.standstill_seconds - restore) * 1e6) for bound in (low, high)]
    usd = [cost_usd_micros(gpus * saved_seconds, interruption.price) for saved_seconds in saved_microseconds]
    return EstimatedSaving(
        instead_of=baseline,
        low_standstill_seconds=low,
        high_standstill_seconds=high,
        low_saved_seconds=saved_microseconds[0] / 1e6,
        high_saved_seconds=saved_microseconds[1] / 1e6,
        low_saved_gpu_hours=gpus * saved_microseconds[0] / MICROSECONDS_PER_HOUR,
        high_saved_gpu_hours=gpus * saved_microseconds[1] / MICROSECONDS_PER_HOUR,
        low_saved_usd_micros=usd[0],
        high_saved_usd_micros=usd[1],
        assumptions=assumptions,
    )


def _no_saving(baseline: RecoveryBaseline, why: str) -> EstimatedSaving:
    fields = [f"{end}_{name}" for end in ("low", "high") for name in _SAVED_AMOUNTS]
    return EstimatedSaving(instead_of=baseline, assumptions=(), why_unknown=why, **dict.fromkeys(fields))


_SAVED_AMOUNTS = ("standstill_seconds", "saved_seconds", "saved_gpu_hours", "saved_usd_micros")


def _published_standstill(baseline: RecoveryBaseline, nodes: int) -> tuple[float, float, float, str]:
    """Return the low and the high end of a standstill, its resume stage, and the assumptions."""
    if baseline is RecoveryBaseline.MANUAL:
        cause, replace, resume = (60.0 * minutes for minutes in TABLE_3["without HyperPod"][:3])
        text = "10 min to find the cause, 240 min to replace, 30 min to resume (AWS's article, Table 3). No interval."
        return cause + replace + resume, cause + replace + resume, resume, text
    detect, replace, resume = published_stages(nodes)
    text = (
        f"HyperPod's published P90s of the nearest size: {detect:g} s to detect, {replace:g} s to replace, {resume:g} s"
        " to resume. High: their sum. Low: the mean of the last two, as independent lognormal stages with a sigma of"
        " 0.3, because HyperPod itself may have sent the first signal."
    )
    return (replace + resume) * _MEAN_PER_P90, detect + replace + resume, resume, text


class SavedSum(Value):
    """The sum of several interruptions' estimated savings against one baseline."""

    instead_of: RecoveryBaseline
    is_estimate: bool = True
    claimed: int
    """Interruptions with an estimate."""
    not_claimed: int
    """Interruptions without an estimate. No sum includes them."""
    low_saved_gpu_hours: float | None = None
    """Null: nothing is claimed."""
    high_saved_gpu_hours: float | None = None
    low_saved_usd_micros: int | None = None
    """Null also if one claimed interruption has no price."""
    high_saved_usd_micros: int | None = None
    assumptions: tuple[str, ...]
    reasons: dict[str, int]
    """Why nothing is claimed, with the number of interruptions."""


def sum_savings(estimates: Iterable[EstimatedSaving], baseline: RecoveryBaseline) -> SavedSum:
    """Return the sum of the estimated savings against one baseline. Without an estimate it is unknown, not zero."""
    estimates_of_baseline = [estimate for estimate in estimates if estimate.instead_of is baseline]
    claimed_estimates = [estimate for estimate in estimates_of_baseline if not estimate.why_unknown]
    reasons: dict[str, int] = {}
    for estimate in estimates_of_baseline:
        if estimate.why_unknown:
            reasons[estimate.why_unknown] = reasons.get(estimate.why_unknown, 0) + 1
    return SavedSum(
        instead_of=baseline,
        claimed=len(claimed_estimates),
        not_claimed=len(estimates_of_baseline) - len(claimed_estimates),
        low_saved_gpu_hours=_sum_if_all_known([estimate.low_saved_gpu_hours for estimate in claimed_estimates]),
        high_saved_gpu_hours=_sum_if_all_known([estimate.high_saved_gpu_hours for estimate in claimed_estimates]),
        low_saved_usd_micros=_whole_sum([estimate.low_saved_usd_micros for estimate in claimed_estimates]),
        high_saved_usd_micros=_whole_sum([estimate.high_saved_usd_micros for estimate in claimed_estimates]),
        assumptions=tuple(dict.fromkeys(text for estimate in claimed_estimates for text in estimate.assumptions)),
        reasons=reasons,
    )


def _sum_if_all_known(values: Sequence[float | None]) -> float | None:
    known_values = [value for value in values if value is not None]
    return math.fsum(known_values) if known_values and len(known_values) == len(values) else None


def _whole_sum(values: Sequence[int | None]) -> int | None:
    known_values = [value for value in values if value is not None]
    return sum(known_values) if known_values and len(known_values) == len(values) else None
