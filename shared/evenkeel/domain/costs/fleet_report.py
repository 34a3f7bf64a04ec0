"""The cost report of a fleet: failures with intervals, downtime by stage, losses by cause, node time, rent, savings.

An interruption belongs to the window in which its attempt ended, with its whole loss. So the reports of consecutive
windows count each interruption once. Node time and rent are cut at the borders of the window.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from evenkeel.domain.costs.interruptions import Span
from evenkeel.domain.costs.node_time import NodeUse, PoolTime
from evenkeel.domain.costs.receipt import InterruptionCause, InterruptionReceipt, ReceiptPart, Stage, total_of
from evenkeel.domain.costs.rent_report import RentReport
from evenkeel.domain.costs.savings import RecoveryBaseline, SavedSum, savings, sum_savings
from evenkeel.domain.economics import poisson
from evenkeel.domain.economics.failure_rates import (
    FailureRate,
    GroupedBy,
    GroupRate,
    Observations,
    ObservedFailures,
    ObservedNodeHours,
    failure_rate,
    rates_by,
)
from evenkeel.domain.health.faults import FaultClass, default_catalogue
from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.values import Instant, Value

_NOT_COUNTED = (FaultClass.APPLICATION, FaultClass.INFO)
"""Faults of these classes are not failures of a node."""
_SIGNIFICANCE = 0.05
_MAX_NODES = 20
"""Nodes that the report names."""


class DurationPercentiles(Value):
    """Percentiles of some durations. The mean is left out: one repair of a day would hide the usual repairs."""

    count: int
    unknown: int
    """Cases without a known duration. They are in no figure."""
    p50_seconds: float | None
    p99_seconds: float | None
    """With fewer than 100 cases, the longest case."""
    max_seconds: float | None


class StageLoss(Value):
    """The loss in one stage, over all failures."""

    stage: Stage
    time: DurationPercentiles
    gpu_hours: float
    usd_micros: int | None


class GroupLoss(Value):
    """The loss of some interruptions. Unknown parts are in no sum."""

    group: str
    interruptions: int
    still_interrupted: int
    gpu_hours: float
    usd_micros: int | None
    """Null: no part has a price."""
    unpriced_gpu_hours: float
    unknown_repeated_work: int
    """Interruptions whose repeated work is unknown."""


class NodeFailures(Value):
    """The failures and losses of one node."""

    node: str
    """Instance id."""
    pool: str
    failures: int
    node_hours: float | None
    """Null: the record of the node is gone."""
    rate: FailureRate | None
    is_above_fleet: bool
    """Whether fewer than one fleet in 20 of this size would show such a node by chance, at the rate of the fleet."""
    gpu_hours: float
    """Loss by the incidents that the pool or node owns."""
    usd_micros: int | None


class FleetFailures(Value):
    """The failures of the nodes of a fleet, with exact Poisson intervals."""

    count: int
    rate: FailureRate | None
    """Null: no node-hours are known."""
    by_class: tuple[GroupRate, ...]
    by_pool: tuple[GroupRate, ...]
    by_instance_type: tuple[GroupRate, ...]
    nodes: tuple[NodeFailures, ...]
    """Nodes with the largest losses."""


class EffectiveTrainingTime(Value):
    """The effective training time ratio (ETTR) of the jobs that ran."""

    productive_gpu_hours: float
    lost_gpu_hours: float
    """By failures, on all GPUs of the jobs, standstill included. A lower bound."""
    ratio: float | None
    """Productive over both; null if no job ran. An upper bound, because unknown losses are left out."""


class Improvement(Value):
    """A change, and the most that it could have saved in the window."""

    change: str
    worth_gpu_hours: float
    worth_usd_micros: int | None
    method: str
    """How the worth follows from the figures of the report."""


class FleetReport(Value):
    """The cost report of a fleet in a window."""

    since: Instant
    until: Instant
    failures: FleetFailures
    recovery: DurationPercentiles
    """Standstill of jobs by incidents, from the first signal until every pod ran."""
    stages: tuple[StageLoss, ...]
    by_cause: tuple[GroupLoss, ...]
    """Fault classes of incidents, and the other causes."""
    by_pool: tuple[GroupLoss, ...]
    by_instance_type: tuple[GroupLoss, ...]
    lost: GroupLoss
    """By failures."""
    requested: GroupLoss
    """By requests: preempted, resized, moved, drained or suspended. They are not failures."""
    effective: EffectiveTrainingTime
    pools: tuple[PoolTime, ...]
    all_nodes: PoolTime
    idle_committed_gpu_hours: float
    idle_committed_usd_micros: int | None
    """Null: a part has no price."""
    rent: RentReport
    saved: tuple[SavedSum, ...]
    """Estimates. Each names its assumptions, and how many interruptions it leaves out."""
    improvements: tuple[Improvement, ...]
    """Ranked by their worth."""
    notes: tuple[str, ...]


class OwnedInterruption(NamedTuple):
    """An interruption of the window, with the incident that owns it."""

    receipt: InterruptionReceipt
    owner: Incident | None


class FleetFacts(NamedTuple):
    """Everything that a report rests on."""

    window: Span
    incidents: Sequence[Incident]
    """Opened in the window; drills included."""
    interrupted: Sequence[OwnedInterruption]
    node_hours: Mapping[str, tuple[str, str, float]]
    """By instance id: pool, instance type and hours in the window."""
    pools: tuple[PoolTime, ...]
    all_nodes: PoolTime
    rent: RentReport
    restore_seconds: float
    notes: tuple[str, ...] = ()


NOTES = (
    "GPU-hours lost count on all GPUs of the interrupted job, also where other jobs used them during the standstill.",
    "Saving checkpoints is not recorded, so it is in no loss. Restoring is known only of measured attempts.",
    "NO_JOB is idle at most: use by workloads outside Evenkeel is not recorded.",
    "Drills, continued incidents and faults of the classes application and info do not count as failures of nodes.",
)


def fleet_report(facts: FleetFacts) -> FleetReport:
    """Return the report of a window."""
    failed = [owned_interruption for owned_interruption in facts.interrupted if _is_failure(owned_interruption)]
    requested = [
        owned_interruption
        for owned_interruption in facts.interrupted
        if not owned_interruption.receipt.cause.is_failure
    ]
    estimates = [
        saving
        for owned_interruption in failed
        if owned_interruption.owner
        for saving in savings(owned_interruption.receipt, owned_interruption.owner, facts.restore_seconds)
    ]
    committed = [pool.of(NodeUse.NO_JOB) for pool in facts.pools if not pool.is_rented]
    idle_usd = [use.usd_micros for use in committed]
    failures = _failures(facts, failed)
    stages = tuple(_stage_losses(failed))
    idle_hours = sum(use.gpu_hours for use in committed)
    idle = None if None in idle_usd else sum(amount or 0 for amount in idle_usd)
    lost, on_request = _loss("failures", failed), _loss("requests", requested)
    return FleetReport(
        since=facts.window.start,
        until=facts.window.end,
        failures=failures,
        recovery=_duration(
            [
                owned_interruption.receipt.standstill_seconds if owned_interruption.receipt.is_over else None
                for owned_interruption in failed
                if owned_interruption.owner
            ]
        ),
        stages=stages,
        by_cause=_groups(failed, _cause),
        by_pool=_groups(failed, lambda outcome: outcome.receipt.pool or "unknown"),
        by_instance_type=_groups(failed, lambda outcome: outcome.receipt.instance_type or "unknown"),
        lost=lost,
        requested=on_request,
        effective=_effective(facts.all_nodes, lost.gpu_hours),
        pools=facts.pools,
        all_nodes=facts.all_nodes,
        idle_committed_gpu_hours=idle_hours,
        idle_committed_usd_micros=idle,
        rent=facts.rent,
        saved=tuple(sum_savings(estimates, way) for way in RecoveryBaseline),
        improvements=improvements(stages, failures, on_request, idle_hours, idle),
        notes=(*NOTES, *facts.notes),
    )


def _is_failure(interrupted: OwnedInterruption) -> bool:
    return interrupted.receipt.cause.is_failure and not (interrupted.owner and interrupted.owner.is_drill)


# ---------------------------------------------------------------- failures


def is_node_failure(incident: Incident) -> bool:
    """Whether an incident counts as a failure of its node."""
    return not (incident.is_drill or incident.resumes or _class_of(incident) in _NOT_COUNTED)


def _class_of(incident: Incident) -> FaultClass:
    return default_catalogue().look_up(incident.fault_key).fault_class


def _failures(facts: FleetFacts, failed: Sequence[OwnedInterruption]) -> FleetFailures:
    counted = [incident for incident in facts.incidents if is_node_failure(incident)]
    observations = Observations(
        failures=tuple(
            ObservedFailures(
                fault_class=str(_class_of(incident)), pool=incident.pool, instance_type=incident.instance_type
            )
            for incident in counted
        ),
        node_hours=tuple(
            ObservedNodeHours(pool=pool, instance_type=kind, node_hours=hours)
            for pool, kind, hours in facts.node_hours.values()
        ),
    )
    hours = sum(hours for _, _, hours in facts.node_hours.values())
    rate = failure_rate(len(counted), hours) if hours else None
    return FleetFailures(
        count=len(counted),
        rate=rate,
        by_class=rates_by(observations, GroupedBy.FAULT_CLASS),
        by_pool=rates_by(observations, GroupedBy.POOL),
        by_instance_type=rates_by(observations, GroupedBy.INSTANCE_TYPE),
        nodes=tuple(_nodes(facts, counted, failed, rate)),
    )


def _nodes(
    facts: FleetFacts, counted: Iterable[Incident], failed: Iterable[OwnedInterruption], fleet: FailureRate | None
) -> Iterable[NodeFailures]:
    incidents: dict[str, list[Incident]] = defaultdict(list)
    for incident in counted:
        incidents[incident.life.instance_id].append(incident)
    parts: dict[str, list[ReceiptPart]] = defaultdict(list)
    for interrupted in failed:
        if interrupted.owner:
            parts[interrupted.owner.life.instance_id] += interrupted.receipt.parts
    report_rows = []
    for node, node_interruptions in incidents.items():
        hours = facts.node_hours.get(node, ("", "", 0.0))[2] or None
        rate = failure_rate(len(node_interruptions), hours) if hours else None
        total = total_of(parts[node])
        report_rows.append(
            NodeFailures(
                node=node,
                pool=node_interruptions[0].pool,
                failures=len(node_interruptions),
                node_hours=hours,
                rate=rate,
                is_above_fleet=_is_unlikely(len(node_interruptions), hours, fleet, len(facts.node_hours)),
                gpu_hours=total.gpu_hours,
                usd_micros=total.usd_micros,
            )
        )
    return sorted(report_rows, key=lambda row: (-row.gpu_hours, -row.failures, row.node))[:_MAX_NODES]


def _is_unlikely(failures: int, hours: float | None, fleet: FailureRate | None, nodes: int) -> bool:
    """Whether so many failures of one node are unlikely in a fleet whose nodes all have the same rate.

    With many nodes, some have several failures by chance. So the chance of one node counts for each node (Bonferroni).
    """
    if fleet is None or hours is None:
        return False
    by_chance = poisson.at_least_probability(failures, fleet.failures_per_node_hour * hours)
    return by_chance * nodes < _SIGNIFICANCE


# ---------------------------------------------------------------- losses


def _stage_losses(failed: Iterable[OwnedInterruption]) -> Iterable[StageLoss]:
    parts: dict[Stage, list[ReceiptPart]] = defaultdict(list)
    for interrupted in failed:
        for receipt_part in interrupted.receipt.parts:
            parts[receipt_part.stage].append(receipt_part)
    for stage in Stage:
        receipt_parts = parts[stage]
        total = total_of(receipt_parts)
        yield StageLoss(
            stage=stage,
            time=_duration([receipt_part.seconds for receipt_part in receipt_parts]),
            gpu_hours=total.gpu_hours,
            usd_micros=total.usd_micros,
        )


def _duration(seconds: Sequence[float | None]) -> DurationPercentiles:
    known_values = sorted(value for value in seconds if value is not None)
    return DurationPercentiles(
        count=len(known_values),
        unknown=len(seconds) - len(known_values),
        p50_seconds=_percentile(known_values, 0.5),
        p99_seconds=_percentile(known_values, 0.99),
        max_seconds=known_values[-1] if known_values else None,
    )


def _percentile(ordered: Sequence[float], share: float) -> float | None:
    """Return the nearest rank: the smallest value that at least this share of the values does not exceed."""
    return ordered[max(0, -(-len(ordered) * round(share * 100) // 100) - 1)] if ordered else None


def _cause(interrupted: OwnedInterruption) -> str:
    if interrupted.owner is not None:
        return str(_class_of(interrupted.owner))
    other = {
        InterruptionCause.APPLICATION: "application failure",
        InterruptionCause.INFRASTRUCTURE: "infrastructure, no incident",
    }
    return other.get(interrupted.receipt.cause, "unknown")


def _groups(failed: Iterable[OwnedInterruption], by: Callable[[OwnedInterruption], str]) -> tuple[GroupLoss, ...]:
    groups: dict[str, list[OwnedInterruption]] = defaultdict(list)
    for interrupted in failed:
        groups[by(interrupted)].append(interrupted)
    rows = [_loss(name, group_interruptions) for name, group_interruptions in groups.items()]
    return tuple(sorted(rows, key=lambda row: (-row.gpu_hours, row.group)))


def _loss(group: str, interruptions: Sequence[OwnedInterruption]) -> GroupLoss:
    total = total_of(
        receipt_part for owned_interruption in interruptions for receipt_part in owned_interruption.receipt.parts
    )
    return GroupLoss(
        group=group,
        interruptions=len(interruptions),
        still_interrupted=sum(not owned_interruption.receipt.is_over for owned_interruption in interruptions),
        gpu_hours=total.gpu_hours,
        usd_micros=0 if not interruptions else total.usd_micros,
        unpriced_gpu_hours=total.unpriced_gpu_hours,
        unknown_repeated_work=Counter(
            owned_interruption.receipt.seconds_of(Stage.REPEATED_WORK) is None for owned_interruption in interruptions
        )[True],
    )


def _effective(all_nodes: PoolTime, lost: float) -> EffectiveTrainingTime:
    productive = all_nodes.of(NodeUse.PRODUCTIVE).gpu_hours
    total = productive + lost
    return EffectiveTrainingTime(
        productive_gpu_hours=productive, lost_gpu_hours=lost, ratio=productive / total if total else None
    )


# ---------------------------------------------------------------- what to change


class _Lever(NamedTuple):
    """A change of the fleet that would save GPU-hours."""

    change: str
    stages: tuple[Stage, ...]
    share: float
    method: str


_LEVERS = (
    _Lever(
        "Save checkpoints twice as often (checkpoint.intervalSeconds).",
        (Stage.REPEATED_WORK,),
        0.5,
        "Half of the repeated work. The saves cost more time, which is not recorded.",
    ),
    _Lever(
        "Detect faults sooner: node agents and detectors that report at once (POST /v1/faults).",
        (Stage.DETECTION,),
        1,
        "All time from a first signal until the incident was opened.",
    ),
    _Lever(
        "Let Evenkeel act without asking: mode act for the faults that people always approve.",
        (Stage.APPROVAL,),
        1,
        "All time from a plan until its approval.",
    ),
    _Lever(
        "Stop jobs sooner: shorter graceSeconds where a save never completes.",
        (Stage.DRAIN,),
        1,
        "All time from a plan until the attempt had ended.",
    ),
    _Lever(
        "Keep spare nodes (scheduling.spareNodes), or allow renting for these jobs.",
        (Stage.WAIT_FOR_NODES,),
        1,
        "All time from the end of an attempt until the next admission.",
    ),
    _Lever(
        "Start jobs faster: images on the nodes, shorter start-up.",
        (Stage.LAUNCH, Stage.RESTART, Stage.FAILED_START),
        1,
        "All time from an admission until every pod ran, failed starts included.",
    ),
)


def improvements(
    stages: Sequence[StageLoss],
    failures: FleetFailures,
    requested: GroupLoss,
    idle_gpu_hours: float,
    idle_usd_micros: int | None,
) -> tuple[Improvement, ...]:
    """Return the changes that the figures point to, ranked by their worth. Each worth is an upper bound."""
    of_stage = {loss.stage: loss for loss in stages}
    improvements_found = []
    for lever in _LEVERS:
        losses = [of_stage[stage] for stage in lever.stages if stage in of_stage and of_stage[stage].gpu_hours]
        prices = [loss.usd_micros for loss in losses]
        improvements_found.append(
            Improvement(
                change=lever.change,
                worth_gpu_hours=lever.share * sum(loss.gpu_hours for loss in losses),
                worth_usd_micros=None if None in prices else round(lever.share * sum(price or 0 for price in prices)),
                method=lever.method,
            )
        )
    lemons = [node for node in failures.nodes if node.is_above_fleet]
    if lemons:
        names = ", ".join(node.node for node in lemons)
        prices = [node.usd_micros for node in lemons]
        improvements_found.append(
            Improvement(
                change=f"Replace the nodes that fail more often than the fleet: {names}.",
                worth_gpu_hours=sum(node.gpu_hours for node in lemons),
                worth_usd_micros=None if None in prices else sum(price or 0 for price in prices),
                method="The loss by these nodes. Fewer than one fleet in 20 would show such a node by chance.",
            )
        )
    improvements_found.append(
        Improvement(
            change="Interrupt fewer jobs on request: preemption, resizes and moves.",
            worth_gpu_hours=requested.gpu_hours,
            worth_usd_micros=requested.usd_micros,
            method="All loss by requests. A request also gave its nodes to another job.",
        )
    )
    improvements_found.append(
        Improvement(
            change="Fill or return idle committed nodes: more queued work, lending, a smaller commitment.",
            worth_gpu_hours=idle_gpu_hours,
            worth_usd_micros=idle_usd_micros,
            method="Committed GPU time without a job of Evenkeel. Use by other workloads is not recorded.",
        )
    )
    worthy = sorted(
        (improvement for improvement in improvements_found if improvement.worth_gpu_hours > 0),
        key=lambda improvement: -improvement.worth_gpu_hours,
    )
    if any(improvement.worth_usd_micros is None for improvement in worthy):
        return tuple(worthy)  # an unknown price cannot be ranked by dollars
    return tuple(sorted(worthy, key=lambda improvement: -(improvement.worth_usd_micros or 0)))
