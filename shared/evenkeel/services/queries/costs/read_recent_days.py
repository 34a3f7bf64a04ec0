"""The figures of recent days, computed from the records of attempts, incidents, nodes and rentals.

attempts, incidents, nodes and rentals of the span ─▶ interruptions, node time ─▶ `compute_day_figures` for each UTC day
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import NamedTuple

from evenkeel.domain.costs.day_figures import (
    AttributedInterruption,
    DayFacts,
    DayFigures,
    TeamTime,
    compute_day_figures,
    day_spans,
)
from evenkeel.domain.costs.demand import DayDemand, DemandSpan, hourly_demand
from evenkeel.domain.costs.interruptions import LostTime, Span, interruptions
from evenkeel.domain.costs.job_sizes import JobRun
from evenkeel.domain.costs.node_time import GpuUse, HeldGpus, NodeSpan, WaitingGpus, node_time
from evenkeel.domain.costs.prices import base_price_of, price_at, price_changes, prices_of
from evenkeel.domain.costs.quota_time import HeldQuota, QuotaTime, quota_times
from evenkeel.domain.costs.receipt import GpuPrice, Stage, cost_usd_micros, microseconds
from evenkeel.domain.costs.rent_report import rent_report
from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.jobs.attempt import Attempt, AttemptState
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.nodes import FleetNode
from evenkeel.domain.plurals import count_of
from evenkeel.domain.quotas.setup_history import SetupPeriod
from evenkeel.domain.renting.rental import Rental
from evenkeel.ports import Key, Table, get_all
from evenkeel.services.context import Context
from evenkeel.services.queries.costs import read_cost_records
from evenkeel.services.queries.incidents import read_incidents
from evenkeel.services.storage import pagination, setup_history
from evenkeel.services.tables import job_rows, rows

MAX_JOBS = 1_000
"""Interrupted jobs whose attempts one report reads. The losses of further jobs are left out, and the report says so."""
_MAX_NODES = 20_000
_LONGEST_OUTAGE = timedelta(days=7)
"""An incident may have opened this long before the attempt ended that it interrupted."""


class RecentDays(NamedTuple):
    """Figures of recent days, from their records."""

    span: Span
    """Begins later than asked if there are too many attempts."""
    days: tuple[DayFigures, ...]
    whole_from: datetime
    """All records since this time were read."""
    open_since: frozenset[datetime]
    """Begins of days to which something belongs that is still open: an incident, or an interruption."""
    nodes: tuple["NodeLifetime", ...]
    unreadable_incidents: int
    unreadable_records: int
    """Attempts, jobs, rentals and nodes that this release cannot read. The sums are lower bounds."""
    is_complete: bool
    is_node_time_complete: bool
    notes: tuple[str, ...]


class NodeLifetime(NamedTuple):
    """A node with GPUs whose record is kept."""

    node: FleetNode
    is_rented: bool
    launched_at: datetime
    ended_at: datetime | None
    """None: it exists."""

    def part_within(self, span: Span, now: datetime) -> Span:
        """Return the part of a span in which it existed. Its end is before its start if there is none."""
        return Span(max(self.launched_at, span.start), min(self.ended_at or now, span.end))


def read_days(asked_span: Span, context: Context, *, max_jobs: int = 0) -> RecentDays:
    """Return the figures of each UTC day of a span, from the records. The first and last one may be parts of a day.

    Args:
        asked_span: The span.
        context: The context.
        max_jobs: Interrupted jobs that are read; 0: `MAX_JOBS`.
    """
    max_jobs = max_jobs or MAX_JOBS
    unreadable_keys: set[Key] = set()
    attempts, window = read_cost_records.attempts_in(context.ledger, asked_span, unreadable_keys)
    span, notes = window.span, []
    if not window.is_complete:
        notes.append("Too many attempts: the window begins later than requested.")
    incidents, has_all, unreadable_count = read_incidents.incidents_since(context.ledger, span.start - _LONGEST_OUTAGE)
    whole_from = span.start
    if not has_all:
        notes.append(f"Only the newest {read_incidents.MAX_READ} incidents were read.")
        oldest_at = incidents[0].opened_at if incidents else context.now
        whole_from = max(whole_from, oldest_at + _LONGEST_OUTAGE)
    if unreadable_count:
        notes.append(f"{count_of(unreadable_count, 'incident')} cannot be read: failures and losses are too low.")
    interrupted_jobs = _interrupted_job_ids(attempts, span)
    if len(interrupted_jobs) > max_jobs:
        jobs_text = count_of(len(interrupted_jobs), "interrupted job")
        notes.append(f"Only {max_jobs} of {jobs_text} were read. Losses and failures by job size are too low.")
    chosen_job_ids = interrupted_jobs[:max_jobs]
    jobs_on_rented_nodes = {attempt.job_id for attempt in attempts if attempt.is_rented or attempt.rented_part}
    jobs_that_began = [attempt.job_id for attempt in attempts if attempt.attempt == 1]
    jobs = read_cost_records.jobs_of(
        context.ledger,
        dict.fromkeys([*chosen_job_ids, *sorted(jobs_on_rented_nodes), *jobs_that_began[:max_jobs]]),
        unreadable_keys,
    )
    missing_count = sum(
        job_id not in jobs and job_rows.job_key(job_id) not in unreadable_keys for job_id in chosen_job_ids
    )
    if missing_count:
        notes.append(
            f"{count_of(missing_count, 'interrupted job is', 'interrupted jobs are')} no longer stored: losses unknown."
        )
    with_rentals = [
        jobs[job_id] for job_id in dict.fromkeys([*chosen_job_ids, *sorted(jobs_on_rented_nodes)]) if job_id in jobs
    ]
    rentals = read_cost_records.rentals_in(with_rentals, span.start, context, unreadable_keys)
    lost_times = _lost_time(
        [jobs[job_id] for job_id in chosen_job_ids if job_id in jobs],
        attempts,
        incidents,
        rentals,
        context,
        unreadable_keys,
    )
    nodes, is_cut = nodes_of(context, unreadable_keys)
    notes += read_cost_records.unreadable_notes(unreadable_keys)
    if is_cut:
        notes.append(f"Only {_MAX_NODES} nodes were read. Node time and rates are wrong.")
    spans = tuple(day_spans(span))
    demand = _Demand(attempts, jobs, nodes, span.start, context.now) if window.has_all_live else None
    setups = setup_history.read_periods(context.ledger, span.start, context.now) if window.has_all_live else ()
    by_day = _Records(spans, attempts, incidents, lost_times, setups, context)
    return RecentDays(
        span=span,
        days=tuple(by_day.compute_day(day, nodes, rentals, demand) for day in spans),
        whole_from=whole_from,
        open_since=frozenset(by_day.open_since),
        nodes=nodes,
        unreadable_incidents=unreadable_count,
        unreadable_records=len(unreadable_keys),
        is_complete=window.is_complete
        and has_all
        and not unreadable_count
        and not unreadable_keys
        and len(chosen_job_ids) == len(interrupted_jobs)
        and not missing_count,
        is_node_time_complete=not is_cut and not unreadable_keys,
        notes=tuple(notes),
    )


class _Records:
    """The records of a span, by the days that they touch."""

    def __init__(
        self,
        spans: Sequence[Span],
        attempts: Iterable[Attempt],
        incidents: Iterable[Incident],
        lost_times: Sequence[LostTime],
        setups: Sequence[SetupPeriod],
        context: Context,
    ) -> None:
        self._context, self._spans, self._setups = context, spans, setups
        self.open_since: set[datetime] = set()
        """Begins of days to which an open incident or interruption belongs."""
        self._incidents: dict[Span, list[Incident]] = defaultdict(list)
        self._interrupted: dict[Span, list[AttributedInterruption]] = defaultdict(list)
        self._attempts: dict[Span, list[Attempt]] = defaultdict(list)
        self._held: dict[Span, dict[str, list[HeldGpus]]] = defaultdict(lambda: defaultdict(list))
        self._repairs: dict[Span, dict[str, list[Span]]] = defaultdict(lambda: defaultdict(list))
        incident_by_id = {incident.incident_id: incident for incident in incidents}
        losses: dict[str, list[tuple[Span, GpuUse]]] = defaultdict(list)
        for incident in incident_by_id.values():
            self._add_incident(incident)
        for lost_time in lost_times:
            receipt = lost_time.receipt
            gpu_use = GpuUse.LOST if receipt.cause.is_failure else GpuUse.INTERRUPTED
            losses[receipt.job_id] += [
                (span, GpuUse.RESTORING if stage is Stage.RESTORE else gpu_use) for stage, span in lost_time.spans
            ]
            self._add_interruption(AttributedInterruption(receipt, incident_by_id.get(receipt.incident_id)))
        for attempt in attempts:
            self._add_attempt(attempt, losses[attempt.job_id])

    def _add_incident(self, incident: Incident) -> None:
        for day in self._days_of(Span(incident.opened_at, incident.opened_at)):
            self._incidents[day].append(incident)
            if not incident.state.is_settled:
                self.open_since.add(day.start)
        if outage := _time_out_of_service(incident, self._context.now):
            for day in self._days_of(outage):
                self._repairs[day][incident.life.key].append(outage)

    def _add_interruption(self, interruption: AttributedInterruption) -> None:
        receipt = interruption.receipt
        for day in self._days_of(Span(receipt.interrupted_at, receipt.interrupted_at)):
            self._interrupted[day].append(interruption)
            if not receipt.is_over:
                self.open_since.add(day.start)

    def _add_attempt(self, attempt: Attempt, losses: Sequence[tuple[Span, GpuUse]]) -> None:
        now, saving_share = self._context.now, attempt.saving_share
        restore_limit = timedelta(seconds=self._context.policy.jobs.expected_resume_seconds)
        for day in self._days_of(Span(attempt.charged_since or now, attempt.ended_at or now)):
            self._attempts[day].append(attempt)
        for gpu_use, span in _uses_of(attempt, losses, restore_limit, now):
            for day in self._days_of(span):
                for life in attempt.nodes:
                    held_gpus = HeldGpus(life.key, gpu_use, attempt.per_node.accelerators, span, saving_share)
                    self._held[day][life.key].append(held_gpus)

    def _days_of(self, span: Span) -> Iterator[Span]:
        """Yield the days that a span touches; the day of its start if the span is empty."""
        for day in self._spans:
            if (day.start < span.end and span.start < day.end) or day.start <= span.start == span.end < day.end:
                yield day

    def compute_day(
        self, day: Span, nodes: Iterable[NodeLifetime], rentals: Iterable[Rental], demand: "_Demand | None"
    ) -> DayFigures:
        context = self._context
        economy = context.policy.economy
        held_quota = [quota for attempt in self._attempts[day] if (quota := _held_quota(attempt, context.now))]
        quotas = quota_times(held_quota, self._setups, day)
        return compute_day_figures(
            DayFacts(
                span=day,
                incidents=self._incidents[day],
                interrupted=self._interrupted[day],
                pools=node_time(
                    _spans_of(nodes, day, context.now),
                    self._held[day],
                    self._repairs[day],
                    lambda kind, at, pool: price_at(kind, at, pool, economy),
                    price_changes(economy, *day),
                    demand.waiting_in(day) if demand else None,
                ),
                rent=rent_report(rentals, day, context.policy.burst.fleet_cap_micros_per_hour),
                teams=tuple(_team_times(self._attempts[day], day, quotas.teams, context)),
                known_quota_microseconds=quotas.known_microseconds,
                demand=demand.demand_of(day) if demand else None,
                runs=[_run_in(attempt, day, context.now) for attempt in self._attempts[day]],
                restore_seconds=context.policy.jobs.expected_resume_seconds,
            )
        )


class _Demand:
    """The demand of attempts and of their waiting jobs."""

    def __init__(
        self,
        attempts: Sequence[Attempt],
        jobs: Mapping[str, Job],
        nodes: Iterable[NodeLifetime],
        start: datetime,
        now: datetime,
    ) -> None:
        known_times = [*(node.launched_at for node in nodes), *(attempt.admitted_at for attempt in attempts)]
        self._first_record = min(known_times, default=None)
        self._spans: list[DemandSpan] = []
        self._unknown_waits: list[datetime] = []
        ends = {(attempt.job_id, attempt.attempt): attempt.ended_at for attempt in attempts}
        for attempt in attempts:
            held_span = Span(attempt.charged_since or attempt.ended_at or now, attempt.ended_at or now)
            self._add_span(attempt, held_span, is_waiting=False)
            if attempt.attempt > 1:  # an attempt before it that was not read ended before the window
                since = ends.get((attempt.job_id, attempt.attempt - 1), start)
            else:
                job = jobs.get(attempt.job_id)
                since = job.submitted_at if job else None
            if since is None:
                self._unknown_waits.append(attempt.admitted_at)
            else:
                self._add_span(attempt, Span(since, held_span.start), is_waiting=True)

    def _add_span(self, attempt: Attempt, span: Span, *, is_waiting: bool) -> None:
        if span.start >= span.end:
            return
        kind, base_gpus, rented_part = (
            (attempt.pool, attempt.instance_type),
            attempt.priced_accelerators,
            attempt.rented_part,
        )
        self._spans.append(DemandSpan(*kind, attempt.is_rented, base_gpus, span, is_waiting))
        if rented_part is not None and not is_waiting:
            rented_gpus = attempt.accelerators - base_gpus
            self._spans.append(
                DemandSpan(rented_part.pool, rented_part.instance_type, True, rented_gpus, span, is_waiting)
            )

    def waiting_in(self, day: Span) -> dict[tuple[str, bool], list[WaitingGpus]]:
        """Return the GPUs that jobs waited for in a day, by pool and whether it is rented."""
        waiting_gpus: dict[tuple[str, bool], list[WaitingGpus]] = defaultdict(list)
        for demand in self._spans:
            if demand.is_waiting and demand.span.start < day.end and day.start < demand.span.end:
                waiting_gpus[demand.pool, demand.is_rented].append(WaitingGpus(demand.gpus, demand.span))
        return waiting_gpus

    def demand_of(self, day: Span) -> DayDemand | None:
        """Return the demand of a day, or of a part of it; None if there is no record of that time."""
        if self._first_record is None or self._first_record >= day.end:
            return None
        return DayDemand(
            since=max(self._first_record, day.start),
            pools=hourly_demand(self._spans, day),
            unknown_waits=sum(day.start <= at < day.end for at in self._unknown_waits),
        )


def _interrupted_job_ids(attempts: Iterable[Attempt], span: Span) -> list[str]:
    """Return the jobs with an attempt that ended without success since the window began, the newest end first.

    An attempt that ended after the window may have lost time in it.
    """
    ends = [
        (attempt.ended_at, attempt.job_id)
        for attempt in attempts
        if attempt.ended_at and attempt.state is not AttemptState.SUCCEEDED and span.start <= attempt.ended_at
    ]
    return list(dict.fromkeys(job_id for _, job_id in sorted(ends, reverse=True)))


def _lost_time(
    jobs: Iterable[Job],
    known_attempts: Iterable[Attempt],
    incidents: Iterable[Incident],
    rentals: Iterable[Rental],
    context: Context,
    unreadable_keys: set[Key],
) -> list[LostTime]:
    """Return the interruptions of jobs. A job whose attempts are all known costs no further read."""
    attempts_of: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in known_attempts:
        attempts_of[attempt.job_id].append(attempt)
    incidents_by_job: dict[str, list[tuple[int, Incident]]] = defaultdict(list)
    for incident in incidents:
        for affected_job in incident.affected_jobs:
            incidents_by_job[affected_job.job_id].append((affected_job.attempt, incident))
    rentals_by_job: dict[str, list[Rental]] = defaultdict(list)
    for rental in rentals:
        rentals_by_job[rental.job_id].append(rental)
    losses: list[LostTime] = []
    for job in jobs:
        attempts: Sequence[Attempt] = attempts_of[job.job_id]
        if len(attempts) < job.current_attempt:
            keys = [job_rows.attempt_key(job.job_id, number) for number in range(1, job.current_attempt + 1)]
            stored_rows = get_all(context.ledger, keys).values()
            attempts = list(rows.readable_values(stored_rows, Attempt, unreadable_keys))
        prices: Mapping[int, GpuPrice | None] = prices_of(attempts, rentals_by_job[job.job_id], context.policy.economy)
        losses += interruptions(job, attempts, incidents_by_job[job.job_id], prices, context.now)
    return losses


def nodes_of(context: Context, unreadable_keys: set[Key]) -> tuple[tuple[NodeLifetime, ...], bool]:
    """Return the nodes with GPUs whose records are kept, and whether there are more of them than were read.

    Unreadable rows are left out. Their keys are added to `unreadable_keys`.
    """
    stored_rows, is_cut = pagination.read_partition(context.ledger, Table.FLEET, "NODE", at_most=_MAX_NODES)
    return tuple(
        NodeLifetime(
            node,
            (node.life.cluster, node.pool) in context.policy.burst.rented_pools,
            node.life.launched_at,
            node.changed_at if node.is_gone else None,
        )
        for node in rows.readable_values(stored_rows, FleetNode, unreadable_keys)
        if node.accelerators
    ), is_cut


def _spans_of(nodes: Iterable[NodeLifetime], day: Span, now: datetime) -> Iterator[NodeSpan]:
    """Yield the part of a day in which each node existed."""
    for lifetime in nodes:
        own_span = lifetime.part_within(day, now)
        if own_span.start < own_span.end:
            node, is_new = lifetime.node, lifetime.launched_at >= day.start
            yield NodeSpan(
                node.life.key, node.pool, node.instance_type, node.accelerators, lifetime.is_rented, own_span, is_new
            )


def _run_in(attempt: Attempt, day: Span, now: datetime) -> JobRun:
    """Return how long all pods of an attempt ran in a day. The time is not above 0 if they never did."""
    start, end = attempt.running_at or day.end, attempt.ended_at or now
    return JobRun(attempt.ranks, attempt.accelerators, microseconds(min(end, day.end) - max(start, day.start)))


def _held_quota(attempt: Attempt, now: datetime) -> HeldQuota | None:
    if attempt.charged_since is None:
        return None
    span = Span(attempt.charged_since, attempt.ended_at or now)
    return HeldQuota(Charge.of(attempt), attempt.quota_use is not None, span)


def _team_times(
    attempts: Iterable[Attempt], day: Span, quotas: Mapping[str, QuotaTime], context: Context
) -> Iterator[TeamTime]:
    """Yield the GPU time that the attempts of each team held or lent in a day, at the price of each admission."""
    times: dict[str, int] = dict.fromkeys(quotas, 0)
    costs: dict[str, int | None] = defaultdict(int)
    for attempt in attempts:
        start = attempt.charged_since
        if start is None:
            continue
        span = Span(max(start, day.start), min(attempt.ended_at or context.now, day.end))
        gpu_microseconds = attempt.accelerators * max(0, microseconds(span.end - span.start))
        times[attempt.team] = times.get(attempt.team, 0) + gpu_microseconds
        if attempt.is_rented or not gpu_microseconds:
            continue
        priced_microseconds = attempt.priced_accelerators * max(0, microseconds(span.end - span.start))
        price = base_price_of(attempt, context.policy.economy)
        cost, earlier_cost = cost_usd_micros(priced_microseconds, price), costs[attempt.team]
        costs[attempt.team] = None if cost is None or earlier_cost is None else earlier_cost + cost
    for team, amount in sorted(times.items()):
        yield TeamTime(team=team, gpu_microseconds=amount, usd_micros=costs[team], quota=quotas.get(team, QuotaTime()))


def _uses_of(
    attempt: Attempt, losses: Iterable[tuple[Span, GpuUse]], restore_limit: timedelta, now: datetime
) -> Iterator[tuple[GpuUse, Span]]:
    """Yield the use of an attempt's time in disjoint spans.

    If it resumed and its restore was not measured, the use of its first `restore_limit` is unknown.
    """
    start, end = attempt.charged_since or now, attempt.ended_at or now
    running_at = min(max(attempt.running_at or end, start), end)
    is_unmeasured = attempt.is_pinned and attempt.resume_from is not None and attempt.trained_at is None
    known_from = min(running_at + restore_limit, end) if is_unmeasured else running_at
    borders = {start, running_at, known_from, end}
    own_losses = [(Span(max(span.start, start), min(span.end, end)), gpu_use) for span, gpu_use in losses]
    own_losses = [(span, gpu_use) for span, gpu_use in own_losses if span.start < span.end]
    for span, _ in own_losses:
        borders |= {span.start, span.end}
    cuts = sorted(border for border in borders if start <= border <= end)
    for begin, until in pairwise(cuts):
        lost_use = next((gpu_use for span, gpu_use in own_losses if span.start <= begin < span.end), None)
        gpu_use = GpuUse.UNKNOWN if begin < known_from else GpuUse.PRODUCTIVE
        yield lost_use or (GpuUse.STARTING if begin < running_at else gpu_use), Span(begin, until)


def _time_out_of_service(incident: Incident, now: datetime) -> Span | None:
    """Return the time from the cordon of a node until its return. A replaced node does not return: it ends before."""
    start = incident.stages.cordoned_at
    if start is None or incident.is_drill:
        return None
    end = incident.stages.returned_at or incident.stages.settled_at or now
    return Span(start, end) if start < end else None
