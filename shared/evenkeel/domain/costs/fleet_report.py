"""The cost report of a fleet: failures with intervals, downtime by stage, losses by cause, node time, rent, savings.

It adds up the figures of days (`day_figures`). So a stored day and a day that was computed now give the same report.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from typing import NamedTuple

from evenkeel.domain.costs.commitment_report import NodeType, TypeCommitment, type_commitments
from evenkeel.domain.costs.day_figures import (
    CountedFailure,
    DayFigures,
    FailureDurations,
    LossGroup,
    StageDurations,
    TeamTime,
    add_savings,
)
from evenkeel.domain.costs.demand import HourOfUse, use_by_hour
from evenkeel.domain.costs.interruptions import Span
from evenkeel.domain.costs.job_sizes import (
    EndlessSize,
    JobSizeReliability,
    endless_size,
    reliability_by_job_size,
)
from evenkeel.domain.costs.node_time import GpuUse, PoolTime, pool_times
from evenkeel.domain.costs.quota_time import QuotaTime
from evenkeel.domain.costs.receipt import MICROSECONDS_PER_HOUR, Stage, microseconds
from evenkeel.domain.costs.rent_report import RentReport, sum_rents
from evenkeel.domain.costs.savings import RecoveryBaseline, SavedSum
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
from evenkeel.domain.plurals import count_of
from evenkeel.domain.values import Instant, Value

_SIGNIFICANCE = 0.05
_MAX_NODES = 20
"""Nodes with losses that the report names."""
_MAX_LEMONS = 100
"""Lemons that the report names. Its sums count all."""


class DurationPercentiles(Value):
    """Percentiles of some durations, and their mean. One repair of a day raises the mean, but not the median."""

    count: int
    unknown: int
    """Cases without a known duration. The percentiles leave them out."""
    p50_seconds: float | None
    p99_seconds: float | None
    """With fewer than 100 cases, the longest case."""
    max_seconds: float | None
    mean_seconds: float | None = None
    """The mean of repairs is the mean time to repair (MTTR)."""


class GroupReliability(Value):
    """Mean time between failures (MTBF) and mean times to repair (MTTR) of one group of failures."""

    group: str
    """`all`, or the pool, the fault class, or both: `p5 / hardware`."""
    pool: str | None
    """Null: all pools."""
    fault_class: str | None
    """Null: all fault classes."""
    failures: int
    node_hours: float
    """Node-hours of the pool. Every node can have every fault class, so each class counts all of them."""
    mtbf_hours: float | None
    """Node-hours per failure; null without a failure or without node-hours."""
    low_mtbf_hours: float | None
    """Low end of the exact Poisson interval of 95 %; null without node-hours."""
    high_mtbf_hours: float | None
    """Null without a failure: no failure gives no upper bound."""
    node_repair: DurationPercentiles
    """From the first signal until the node, or its replacement, was in service again."""
    job_recovery: DurationPercentiles
    """Standstill of each interrupted job, until every pod ran."""


class LemonCost(Value):
    """The nodes that fail more often than the fleet, and their loss."""

    nodes: tuple[str, ...]
    """Instance ids."""
    failures: int
    gpu_hours: float
    """Lost by jobs, in incidents of these nodes."""
    usd_micros: int | None
    """Null: a part has no price."""
    unjudged_nodes: int
    """Nodes with failures whose record is gone, so they cannot be compared with the fleet."""


class StageLoss(Value):
    """The loss in one stage, over all failures."""

    stage: Stage
    time: DurationPercentiles
    gpu_hours: float
    usd_micros: int | None


class GroupLoss(Value):
    """The summed loss of a group of interruptions. The sums leave out unknown parts."""

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
    """Whether it is a lemon. At the rate of the fleet, fewer than one such fleet in 20 has such a node by chance."""
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
    checkpointing_gpu_hours: float
    """Saves, where they were measured."""
    unknown_gpu_hours: float
    """Resumed attempts that either restored or trained. The ratio counts this time as productive."""
    ratio: float | None
    """Productive and unknown time over all four; null if no job ran. An upper bound, because unknown losses and saves
    are left out."""


class Improvement(Value):
    """A change, and the most that it could have saved in the window."""

    change: str
    worth_gpu_hours: float
    worth_usd_micros: int | None
    method: str
    """How the worth follows from the figures of the report."""


class TeamUse(Value):
    """The GPU time that the attempts of a team held."""

    team: str
    gpu_hours: float
    usd_micros: int | None
    """At the price of each admission, without rented nodes. Null: a part has no price, or the caller may not see it."""
    rent_usd_micros: int | None
    """The bills of its rentals. Null: the caller may not see it."""
    within_quota_gpu_hours: float | None
    """Use of its own quota. Null: no quota of the window is known, or none of the time of its use."""
    borrowed_gpu_hours: float | None
    """Use beyond its quota."""
    without_quota_gpu_hours: float | None
    """Use of GPUs for which it had no quota."""
    unknown_quota_gpu_hours: float
    """Use while quotas are unknown. With the three figures above, it sums to all GPU-hours."""
    lent_gpu_hours: float | None
    """Use of its quota by other teams, while quotas are known."""


class FleetReport(Value):
    """The cost report of a fleet in a window."""

    since: Instant
    until: Instant
    failures: FleetFailures
    recovery: DurationPercentiles
    """Standstill of jobs by incidents, from the first signal until every pod ran."""
    reliability: tuple[GroupReliability, ...]
    """All failures, then each pool, each fault class, and each fault class of each pool."""
    job_sizes: tuple[JobSizeReliability, ...]
    """All jobs, then each size class from the smallest. Empty if no job ran, or if the sizes are unknown."""
    endless_size: EndlessSize | None
    """Null: the rate of failures or the loss by a failure is unknown."""
    lemons: LemonCost | None
    """Null: no node is recorded in the window."""
    stages: tuple[StageLoss, ...]
    by_cause: tuple[GroupLoss, ...]
    """Fault classes of incidents, and the other causes."""
    by_pool: tuple[GroupLoss, ...]
    by_instance_type: tuple[GroupLoss, ...]
    lost: GroupLoss
    """Loss by failures."""
    requested: GroupLoss
    """By requests: preempted, resized, moved, drained or suspended. They are not failures."""
    effective: EffectiveTrainingTime
    pools: tuple[PoolTime, ...]
    all_nodes: PoolTime
    idle_committed_gpu_hours: float | None
    """Null: no node is recorded in the window."""
    idle_committed_usd_micros: int | None
    """Null: a part has no price, or no node is recorded."""
    idle_rented_gpu_hours: float | None
    """Rented GPUs that no job held. Null: no node is recorded in the window."""
    idle_rented_usd_micros: int | None
    """Part of the bills, by the share of the idle GPU time of each rented pool. Null: a pool with bills has no recorded
    GPU time."""
    rent: RentReport
    commitments: tuple[TypeCommitment, ...]
    """How many nodes of each instance type to commit, from the hourly demand."""
    hours: tuple[HourOfUse, ...]
    """GPUs that jobs held and waited for, in each of the last whole hours: one week at most."""
    teams: tuple[TeamUse, ...]
    known_quota_hours: float
    """Hours of the window in which all quotas and their use are known."""
    saved: tuple[SavedSum, ...]
    """Estimates. Each names its assumptions, and how many interruptions it leaves out."""
    improvements: tuple[Improvement, ...]
    """Ranked by their worth."""
    unknown_days: tuple[str, ...]
    """Days of the window without any record. No figure includes them."""
    notes: tuple[str, ...]


class ReportFacts(NamedTuple):
    """Facts from which a report is computed."""

    window: Span
    days: Sequence[DayFigures]
    """Days and parts of days with figures, in the order of time. They do not overlap. The rest is unknown."""
    node_hours: Mapping[str, float]
    """By instance id: hours in the days above, for nodes whose record is kept."""
    node_types: Mapping[str, NodeType]
    """By EC2's name of the instance type."""
    unknown_days: Sequence[date]
    cap_micros_per_hour: int
    notes: tuple[str, ...] = ()


_CHARTED_HOURS = 7 * 24

NOTES = (
    "GPU-hours lost count on all GPUs of the interrupted job, even if other jobs used them during the standstill.",
    "CHECKPOINTING is at most the time of saves, because a script may train meanwhile.",
    "Saves and restores are known only of attempts that have ended, and whose checkpoints a function can read.",
    "NO_JOB and WAITING are idle at most, because use by workloads outside Evenkeel is not recorded.",
    "No waiting time includes jobs that never started.",
    "Drills, continued incidents and faults of the classes application and info do not count as failures of nodes.",
)


def fleet_report(facts: ReportFacts) -> FleetReport:
    """Return the report of a window, from the figures of its days."""
    days = facts.days
    groups = [group for day in days for group in day.losses]
    failure_losses = [group for group in groups if group.is_failure]
    pools, all_nodes = pool_times(day.pools for day in days)
    idle_committed_times = [pool.time_of(use_time) for pool in pools if not pool.is_rented for use_time in IDLE_USES]
    idle_usd = [use_time.usd_micros for use_time in idle_committed_times]
    failures = _fleet_failures(facts, failure_losses, all_nodes)
    counted_failures = [failure for day in days for failure in day.failures]
    lemons = _lemon_cost(facts, counted_failures, failure_losses, failures.rate, all_nodes.nodes)
    stages = tuple(_stage_losses(days))
    recovery = _percentiles_of(
        [value for day in days for value in day.recovery_seconds], sum(day.unknown_recoveries for day in days)
    )
    job_sizes = reliability_by_job_size(day.job_sizes or () for day in days)
    repeated_work = next(loss.time for loss in stages if loss.stage is Stage.REPEATED_WORK)
    idle_hours = sum(use_time.gpu_hours for use_time in idle_committed_times)
    idle_cost = None if None in idle_usd else sum(amount or 0 for amount in idle_usd)
    lost_total = _summed_loss("failures", failure_losses)
    on_request = _summed_loss("requests", [group for group in groups if not group.is_failure])
    rent = sum_rents((day.rent for day in days), facts.cap_micros_per_hour)
    demands = [(Span(day.since, day.until), day.demand) for day in days]
    known_quota = sum(day.known_quota_microseconds for day in days)
    return FleetReport(
        since=facts.window.start,
        until=facts.window.end,
        failures=failures,
        recovery=recovery,
        reliability=tuple(_reliability(days, counted_failures, pools)),
        job_sizes=job_sizes,
        endless_size=endless_size(
            job_sizes[0] if job_sizes else None, recovery.mean_seconds, repeated_work.mean_seconds
        ),
        lemons=lemons if all_nodes.nodes else None,
        stages=stages,
        by_cause=_group_losses(failure_losses, lambda group: group.cause),
        by_pool=_group_losses(failure_losses, lambda group: group.pool or "unknown"),
        by_instance_type=_group_losses(failure_losses, lambda group: group.instance_type or "unknown"),
        lost=lost_total,
        requested=on_request,
        effective=effective_time(all_nodes, lost_total.gpu_hours),
        pools=pools,
        all_nodes=all_nodes,
        idle_committed_gpu_hours=idle_hours if all_nodes.nodes else None,
        idle_committed_usd_micros=idle_cost if all_nodes.nodes else None,
        idle_rented_gpu_hours=_idle_rented_gpu_hours(pools) if all_nodes.nodes else None,
        idle_rented_usd_micros=_idle_rented_usd_micros(pools, rent) if all_nodes.nodes else None,
        rent=rent,
        commitments=type_commitments(demands, facts.window, facts.node_types),
        hours=use_by_hour(demands, facts.window, _CHARTED_HOURS),
        teams=tuple(_team_uses(days, rent, has_quotas=known_quota > 0)),
        known_quota_hours=known_quota / MICROSECONDS_PER_HOUR,
        saved=tuple(add_savings((day.saved for day in days), baseline) for baseline in RecoveryBaseline),
        improvements=improvements(stages, lemons, on_request, idle_hours, idle_cost),
        unknown_days=tuple(map(str, facts.unknown_days)),
        notes=(
            *NOTES,
            *_no_node_notes(all_nodes),
            *_use_notes(days, all_nodes),
            *_quota_notes(facts.window, known_quota),
            *_demand_notes(days),
            *_job_size_notes(days),
            *facts.notes,
        ),
    )


def _no_node_notes(all_nodes: PoolTime) -> Iterable[str]:
    if not all_nodes.nodes:
        yield "No node is recorded in this window, so its losses and its idle time are unknown."


def _use_notes(days: Sequence[DayFigures], all_nodes: PoolTime) -> Iterable[str]:
    if earlier := sum(day.repairs is None for day in days):
        yield (
            f"{count_of(earlier, 'stored day is', 'stored days are')} of an earlier release. There, other uses include "
            "saves, restores and waiting. Times to repair by pool and class are unknown there."
        )
    if all_nodes.unmeasured_saves_gpu_hours:
        yield (
            f"The saves of attempts with {all_nodes.unmeasured_saves_gpu_hours:,.1f} productive GPU-hours were not "
            "measured, so PRODUCTIVE includes them."
        )


IDLE_USES = (GpuUse.WAITING, GpuUse.NO_JOB)
"""Uses in which no job held a GPU that was in service."""


def _idle_rented_gpu_hours(pools: Iterable[PoolTime]) -> float:
    return math.fsum(pool.time_of(gpu_use).gpu_hours for pool in pools if pool.is_rented for gpu_use in IDLE_USES)


def _idle_rented_usd_micros(pools: Iterable[PoolTime], rent: RentReport) -> int | None:
    rented_pools = {pool.pool: pool for pool in pools if pool.is_rented and pool.gpu_hours}
    total = 0
    for bill in rent.pools:
        pool = rented_pools.get(bill.name)
        if pool is None:
            if bill.usd_micros:
                return None
            continue
        total += round(
            bill.usd_micros * math.fsum(pool.time_of(gpu_use).gpu_hours for gpu_use in IDLE_USES) / pool.gpu_hours
        )
    return total


def _demand_notes(days: Iterable[DayFigures]) -> Iterable[str]:
    demands = [day.demand for day in days if day.demand]
    if any(demand.pools for demand in demands):
        yield (
            "The demand of an hour is its mean. Jobs that were never admitted and workloads outside Evenkeel are in no "
            "demand. Waiting time includes time in which a job was suspended."
        )
    if unknown := sum(demand.unknown_waits for demand in demands):
        yield f"The waiting time of {count_of(unknown, 'attempt')} is unknown and in no demand."


def _job_size_notes(days: Iterable[DayFigures]) -> Iterable[str]:
    if earlier := sum(day.job_sizes is None for day in days):
        yield (
            f"{count_of(earlier, 'stored day is', 'stored days are')} of a release without job sizes. Failures "
            "by job size leave these days out."
        )


def _team_uses(days: Iterable[DayFigures], rent: RentReport, *, has_quotas: bool) -> Iterator[TeamUse]:
    times: dict[str, list[TeamTime]] = defaultdict(list)
    for day in days:
        for team_time in day.teams:
            times[team_time.team].append(team_time)
    rents = {team_rent.name: team_rent.usd_micros for team_rent in rent.teams}
    for team in sorted({*times, *rents}):
        costs = [time.usd_micros for time in times[team]]
        quotas = [time.quota or QuotaTime(unknown=time.gpu_microseconds) for time in times[team]]
        gpu_time, unknown_time = (
            sum(time.gpu_microseconds for time in times[team]),
            sum(quota.unknown for quota in quotas),
        )
        # A team whose whole use is unknown used no known quota: 0 would look like a figure.
        has_known_use = has_quotas and (unknown_time < gpu_time or not gpu_time)

        def use_hours(amounts: Iterable[int], *, is_known: bool = has_known_use) -> float | None:
            return sum(amounts) / MICROSECONDS_PER_HOUR if is_known else None

        yield TeamUse(
            team=team,
            gpu_hours=gpu_time / MICROSECONDS_PER_HOUR,
            usd_micros=None if None in costs else sum(cost or 0 for cost in costs),
            rent_usd_micros=rents.get(team, 0),
            within_quota_gpu_hours=use_hours(quota.within_quota for quota in quotas),
            borrowed_gpu_hours=use_hours(quota.borrowed for quota in quotas),
            without_quota_gpu_hours=use_hours(quota.without_quota for quota in quotas),
            unknown_quota_gpu_hours=unknown_time / MICROSECONDS_PER_HOUR,
            lent_gpu_hours=use_hours((quota.lent for quota in quotas), is_known=has_quotas),
        )


def _quota_notes(window: Span, known_microseconds: int) -> Iterable[str]:
    hours = microseconds(window.end - window.start) / MICROSECONDS_PER_HOUR
    known_hours = known_microseconds / MICROSECONDS_PER_HOUR
    if known_hours < hours:
        yield (
            f"Quotas and their use are known for {known_hours:.1f} of {hours:.1f} hours. In the other hours, borrowed "
            "and lent GPU-hours are unknown. No figure includes them."
        )


# ---------------------------------------------------------------- failures


def _fleet_failures(facts: ReportFacts, failure_losses: Iterable[LossGroup], all_nodes: PoolTime) -> FleetFailures:
    counted_failures = [failure for day in facts.days for failure in day.failures]
    node_microseconds: Counter[tuple[str, str]] = Counter()
    for day in facts.days:
        for pool in day.pools:
            for type_name, amount in pool.node_microseconds.items():
                node_microseconds[pool.pool, type_name] += amount
    observations = Observations(
        failures=tuple(
            ObservedFailures(fault_class=failure.fault_class, pool=failure.pool, instance_type=failure.instance_type)
            for failure in counted_failures
        ),
        node_hours=tuple(
            ObservedNodeHours(pool=pool, instance_type=type_name, node_hours=amount / MICROSECONDS_PER_HOUR)
            for (pool, type_name), amount in node_microseconds.items()
        ),
    )
    hours = all_nodes.node_hours
    rate = failure_rate(len(counted_failures), hours) if hours else None
    return FleetFailures(
        count=len(counted_failures),
        rate=rate,
        by_class=rates_by(observations, GroupedBy.FAULT_CLASS),
        by_pool=rates_by(observations, GroupedBy.POOL),
        by_instance_type=rates_by(observations, GroupedBy.INSTANCE_TYPE),
        nodes=tuple(_failing_nodes(facts, counted_failures, failure_losses, rate, all_nodes.nodes)[:_MAX_NODES]),
    )


def _reliability(
    days: Sequence[DayFigures], failures: Sequence[CountedFailure], pools: Iterable[PoolTime]
) -> Iterator[GroupReliability]:
    """Yield the reliability of all nodes, of each pool, of each fault class, and of both together."""
    hours: dict[str, float] = defaultdict(float)
    for pool_time in pools:
        hours[pool_time.pool] += pool_time.node_hours
    counts = Counter((failure.pool, failure.fault_class) for failure in failures)
    recoveries = [durations for day in days for durations in day.recoveries or ()]
    repairs = [durations for day in days for durations in day.repairs or ()]
    pools_and_classes = {*counts, *((durations.pool, durations.fault_class) for durations in (*recoveries, *repairs))}
    pool_names = sorted({*hours, *(pool for pool, _ in pools_and_classes)})
    keys: list[tuple[str | None, str | None]] = [(None, None), *((pool, None) for pool in pool_names)]
    keys += [(None, fault_class) for fault_class in sorted({fault_class for _, fault_class in pools_and_classes})]
    keys += sorted(pools_and_classes)
    for pool, fault_class in keys:
        count = sum(amount for key, amount in counts.items() if _is_in_group(*key, pool, fault_class))
        node_hours = math.fsum(hours.values()) if pool is None else hours.get(pool, 0.0)
        rate = failure_rate(count, node_hours) if node_hours else None
        yield GroupReliability(
            group=" / ".join(name or "unknown" for name in (pool, fault_class) if name is not None) or "all",
            pool=pool,
            fault_class=fault_class,
            failures=count,
            node_hours=node_hours,
            mtbf_hours=_hours_between(rate.failures_per_node_hour if rate else None),
            low_mtbf_hours=_hours_between(rate.high_failures_per_node_hour if rate else None),
            high_mtbf_hours=_hours_between(rate.low_failures_per_node_hour if rate else None),
            node_repair=_percentiles_of_group(repairs, pool, fault_class),
            job_recovery=_percentiles_of_group(recoveries, pool, fault_class),
        )


def _is_in_group(of_pool: str, of_class: str, pool: str | None, fault_class: str | None) -> bool:
    return pool in (None, of_pool) and fault_class in (None, of_class)


def _percentiles_of_group(
    groups: Iterable[FailureDurations], pool: str | None, fault_class: str | None
) -> DurationPercentiles:
    members = [group for group in groups if _is_in_group(group.pool, group.fault_class, pool, fault_class)]
    return _percentiles_of(
        [value for group in members for value in group.seconds], sum(group.unknown for group in members)
    )


def _hours_between(per_hour: float | None) -> float | None:
    return 1 / per_hour if per_hour else None


def _failing_nodes(
    facts: ReportFacts,
    counted_failures: Iterable[CountedFailure],
    failure_losses: Iterable[LossGroup],
    fleet_rate: FailureRate | None,
    fleet_nodes: int,
) -> list[NodeFailures]:
    failures: dict[str, list[CountedFailure]] = defaultdict(list)
    for failure in counted_failures:
        failures[failure.node].append(failure)
    groups: dict[str, list[LossGroup]] = defaultdict(list)
    for group in failure_losses:
        groups[group.node].append(group)
    report_rows = []
    for node, node_failures in failures.items():
        hours = facts.node_hours.get(node) or None
        rate = failure_rate(len(node_failures), hours) if hours else None
        node_loss = _summed_loss(node, groups[node])
        report_rows.append(
            NodeFailures(
                node=node,
                pool=node_failures[0].pool,
                failures=len(node_failures),
                node_hours=hours,
                rate=rate,
                is_above_fleet=_is_unlikely(len(node_failures), hours, fleet_rate, fleet_nodes),
                gpu_hours=node_loss.gpu_hours,
                usd_micros=node_loss.usd_micros,
            )
        )
    return sorted(report_rows, key=lambda row: (-row.gpu_hours, -row.failures, row.node))


def _lemon_cost(
    facts: ReportFacts,
    counted_failures: Iterable[CountedFailure],
    failure_losses: Iterable[LossGroup],
    fleet_rate: FailureRate | None,
    fleet_nodes: int,
) -> LemonCost:
    failing_nodes = _failing_nodes(facts, counted_failures, failure_losses, fleet_rate, fleet_nodes)
    lemons = [node for node in failing_nodes if node.is_above_fleet]
    costs = [node.usd_micros for node in lemons]
    return LemonCost(
        nodes=tuple(node.node for node in lemons[:_MAX_LEMONS]),
        failures=sum(node.failures for node in lemons),
        gpu_hours=math.fsum(node.gpu_hours for node in lemons),
        usd_micros=None if None in costs else sum(cost or 0 for cost in costs),
        unjudged_nodes=sum(node.rate is None for node in failing_nodes),
    )


def _is_unlikely(failures: int, hours: float | None, fleet_rate: FailureRate | None, nodes: int) -> bool:
    """Whether this number of failures of one node is unlikely in a fleet whose nodes all have the same rate.

    With many nodes, some have several failures by chance. So the significance level is divided by the number of nodes
    (Bonferroni).
    """
    if fleet_rate is None or hours is None:
        return False
    probability = poisson.at_least_probability(failures, fleet_rate.failures_per_node_hour * hours)
    return probability * nodes < _SIGNIFICANCE


# ---------------------------------------------------------------- losses


def _stage_losses(days: Iterable[DayFigures]) -> Iterable[StageLoss]:
    times: dict[Stage, list[StageDurations]] = defaultdict(list)
    for day in days:
        for durations in day.stages:
            times[durations.stage].append(durations)
    for stage in Stage:
        stage_durations = times[stage]
        yield StageLoss(
            stage=stage,
            time=_percentiles_of(
                [value for durations in stage_durations for value in durations.seconds],
                sum(durations.unknown for durations in stage_durations),
            ),
            gpu_hours=math.fsum(durations.gpu_hours for durations in stage_durations),
            usd_micros=_known_sum(durations.usd_micros for durations in stage_durations),
        )


def _percentiles_of(seconds: Iterable[float], unknown_count: int) -> DurationPercentiles:
    known_values = sorted(seconds)
    return DurationPercentiles(
        count=len(known_values),
        unknown=unknown_count,
        p50_seconds=_percentile(known_values, 0.5),
        p99_seconds=_percentile(known_values, 0.99),
        max_seconds=known_values[-1] if known_values else None,
        mean_seconds=math.fsum(known_values) / len(known_values) if known_values else None,
    )


def _percentile(sorted_values: Sequence[float], share: float) -> float | None:
    """Return the nearest rank: the smallest value that at least this share of the values does not exceed."""
    return sorted_values[max(0, -(-len(sorted_values) * round(share * 100) // 100) - 1)] if sorted_values else None


def _group_losses(failure_losses: Iterable[LossGroup], group_of: Callable[[LossGroup], str]) -> tuple[GroupLoss, ...]:
    groups: dict[str, list[LossGroup]] = defaultdict(list)
    for group in failure_losses:
        groups[group_of(group)].append(group)
    losses = [_summed_loss(name, members) for name, members in groups.items()]
    return tuple(sorted(losses, key=lambda loss: (-loss.gpu_hours, loss.group)))


def _summed_loss(name: str, groups: Sequence[LossGroup]) -> GroupLoss:
    return GroupLoss(
        group=name,
        interruptions=sum(group.interruptions for group in groups),
        still_interrupted=sum(group.still_interrupted for group in groups),
        gpu_hours=math.fsum(group.gpu_hours for group in groups),
        usd_micros=_known_sum(group.usd_micros for group in groups) if groups else 0,
        unpriced_gpu_hours=math.fsum(group.unpriced_gpu_hours for group in groups),
        unknown_repeated_work=sum(group.unknown_repeated_work for group in groups),
    )


def _known_sum(amounts: Iterable[int | None]) -> int | None:
    """Return the sum of the known amounts; None if none is known."""
    known_amounts = [amount for amount in amounts if amount is not None]
    return sum(known_amounts) if known_amounts else None


def effective_time(all_nodes: PoolTime, lost: float) -> EffectiveTrainingTime:
    """Return the effective training time of a window, from its node time and the GPU-hours that failures lost."""
    productive_hours, saving_hours, unknown_hours = (
        all_nodes.time_of(use).gpu_hours for use in (GpuUse.PRODUCTIVE, GpuUse.CHECKPOINTING, GpuUse.UNKNOWN)
    )
    total = productive_hours + saving_hours + unknown_hours + lost
    return EffectiveTrainingTime(
        productive_gpu_hours=productive_hours,
        lost_gpu_hours=lost,
        checkpointing_gpu_hours=saving_hours,
        unknown_gpu_hours=unknown_hours,
        ratio=(productive_hours + unknown_hours) / total if total else None,
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
    lemons: LemonCost,
    requested: GroupLoss,
    idle_gpu_hours: float,
    idle_usd_micros: int | None,
) -> tuple[Improvement, ...]:
    """Return the changes that the figures point to, ranked by their worth. Each worth is an upper bound."""
    loss_by_stage = {loss.stage: loss for loss in stages}
    improvements_found = []
    for lever in _LEVERS:
        losses = [
            loss_by_stage[stage] for stage in lever.stages if stage in loss_by_stage and loss_by_stage[stage].gpu_hours
        ]
        prices = [loss.usd_micros for loss in losses]
        improvements_found.append(
            Improvement(
                change=lever.change,
                worth_gpu_hours=lever.share * sum(loss.gpu_hours for loss in losses),
                worth_usd_micros=None if None in prices else round(lever.share * sum(price or 0 for price in prices)),
                method=lever.method,
            )
        )
    if lemons.nodes:
        names = ", ".join(lemons.nodes)
        improvements_found.append(
            Improvement(
                change=f"Replace the nodes that fail more often than the fleet: {names}.",
                worth_gpu_hours=lemons.gpu_hours,
                worth_usd_micros=lemons.usd_micros,
                method="The loss by these nodes. Fewer than one fleet in 20 would show such a node by chance.",
            )
        )
    improvements_found.append(
        Improvement(
            change="Interrupt fewer jobs on request: preemption, resizes and moves.",
            worth_gpu_hours=requested.gpu_hours,
            worth_usd_micros=requested.usd_micros,
            method="All time lost to requested stops. The gain of the jobs that got the nodes is not subtracted.",
        )
    )
    improvements_found.append(
        Improvement(
            change="Use idle committed nodes (queue more jobs, lend quota), or commit to fewer nodes.",
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
