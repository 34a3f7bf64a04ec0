"""The cost report of the fleet for the API. It is computed on each read, so late facts change it.

attempts, incidents, nodes and rentals of the window ─▶ interruptions, node time ─▶ `fleet_report`
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, NamedTuple

from evenkeel.domain.costs.fleet_report import FleetFacts, OwnedInterruption, fleet_report
from evenkeel.domain.costs.interruptions import LostTime, Span, interruptions
from evenkeel.domain.costs.node_time import HeldGpus, NodeOutageSpan, NodeSpan, NodeUse, node_time
from evenkeel.domain.costs.prices import price_at, price_changes, prices_of
from evenkeel.domain.costs.receipt import GpuPrice
from evenkeel.domain.costs.rent_report import rent_report
from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.jobs.attempt import Attempt, AttemptState
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.nodes import FleetNode
from evenkeel.domain.renting.rental import Rental
from evenkeel.domain.words import count_of
from evenkeel.ports import Table
from evenkeel.services.context import Context
from evenkeel.services.queries import read_cost_records, read_incidents, read_jobs
from evenkeel.services.storage import pagination, rows

Json = dict[str, Any]

MAX_JOBS = 1_000
"""Interrupted jobs whose attempts one report reads. The losses of further jobs are left out, and the report says so."""
_MAX_NODES = 20_000
_GONE_KEPT = timedelta(days=30)
"""How long the record of a node is kept once it is gone."""
_BEFORE = timedelta(days=7)
"""An incident may have opened this long before the attempt ended that it interrupted."""


class ReportWindow(NamedTuple):
    """The window of a report; None: until now, and 30 days long."""

    since: datetime | None = None
    until: datetime | None = None


def show(report_window: ReportWindow, context: Context) -> Json:
    """Return the cost report of a window.

    Raises:
        Invalid: the window is empty.
    """
    asked_span = read_cost_records.window_of(report_window.since, report_window.until, context.now)
    attempts, window = read_cost_records.attempts_in(context.ledger, asked_span)
    span, notes = window.span, []
    if not window.is_complete:
        notes.append("Too many attempts: the window begins later than requested.")
    incidents, is_complete = read_incidents.incidents_since(context.ledger, span.start - _BEFORE)
    if not is_complete:
        notes.append(f"Only the newest {read_incidents.MAX_READ} incidents were read.")
    interrupted_jobs = _interrupted(attempts, span)
    if len(interrupted_jobs) > MAX_JOBS:
        jobs_text = count_of(len(interrupted_jobs), "interrupted job")
        notes.append(f"Only {MAX_JOBS} of {jobs_text} were read. The losses are too low.")
    chosen = interrupted_jobs[:MAX_JOBS]
    rented = {attempt.job_id for attempt in attempts if attempt.is_rented}
    jobs = read_cost_records.jobs_of(context.ledger, dict.fromkeys([*chosen, *sorted(rented)]))
    missing = sum(name not in jobs for name in chosen)
    if missing:
        notes.append(
            f"{count_of(missing, 'interrupted job is', 'interrupted jobs are')} no longer stored: losses unknown."
        )
    rentals = read_cost_records.rentals_in(jobs.values(), context)
    lost = _lost_time([jobs[name] for name in chosen if name in jobs], attempts, incidents, rentals, context)
    nodes, node_note = _nodes(span, context)
    notes += [node_note] if node_note else []
    economy = context.policy.economy
    pools, total = node_time(
        nodes,
        _held(attempts, lost, context.now),
        _repairs(incidents, context.now),
        lambda kind, at, pool: price_at(kind, at, pool, economy),
        price_changes(economy, *span),
    )
    by_id = {incident.incident_id: incident for incident in incidents}
    facts = FleetFacts(
        window=span,
        incidents=[incident for incident in incidents if span.start <= incident.opened_at < span.end],
        interrupted=[
            OwnedInterruption(lost_time.receipt, by_id.get(lost_time.receipt.incident_id))
            for lost_time in lost
            if span.start <= lost_time.receipt.interrupted_at < span.end
        ],
        node_hours=_node_hours(nodes),
        pools=pools,
        all_nodes=total,
        rent=rent_report(rentals, span, context.policy.burst.fleet_cap_micros_per_hour),
        restore_seconds=context.policy.jobs.expected_resume_seconds,
        notes=tuple(notes),
    )
    is_whole = window.is_complete and is_complete and len(chosen) == len(interrupted_jobs) and not missing
    return fleet_report(facts).to_json() | {"isComplete": is_whole, "isNodeTimeComplete": not node_note}


def _interrupted(attempts: Iterable[Attempt], span: Span) -> list[str]:
    """Return the jobs of which an attempt ended in the window without success, the newest end first."""
    ended = [
        (attempt.ended_at, attempt.job_id)
        for attempt in attempts
        if attempt.ended_at
        and attempt.state is not AttemptState.SUCCEEDED
        and span.start <= attempt.ended_at < span.end
    ]
    return list(dict.fromkeys(job_id for _, job_id in sorted(ended, reverse=True)))


def _lost_time(
    jobs: Iterable[Job],
    known: Iterable[Attempt],
    incidents: Iterable[Incident],
    rentals: Iterable[Rental],
    context: Context,
) -> list[LostTime]:
    """Return the interruptions of jobs. A job whose attempts are all known costs no further read."""
    attempts_of: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in known:
        attempts_of[attempt.job_id].append(attempt)
    named: dict[str, list[tuple[int, Incident]]] = defaultdict(list)
    for incident in incidents:
        for affected in incident.affected_jobs:
            named[affected.job_id].append((affected.attempt, incident))
    rented: dict[str, list[Rental]] = defaultdict(list)
    for rental in rentals:
        rented[rental.job_id].append(rental)
    losses: list[LostTime] = []
    for job in jobs:
        attempts: Sequence[Attempt] = attempts_of[job.job_id]
        if len(attempts) < job.current_attempt:
            attempts = read_jobs.load_attempts(context.ledger, job.job_id)
        prices: Mapping[int, GpuPrice | None] = prices_of(attempts, rented[job.job_id], context.policy.economy)
        losses += interruptions(job, attempts, named[job.job_id], prices, context.now)
    return losses


def _nodes(span: Span, context: Context) -> tuple[list[NodeSpan], str]:
    """Return the nodes with GPUs that existed in the window, and why some may be missing; empty if none is."""
    stored, is_cut = pagination.everything(context.ledger, Table.FLEET, "NODE", at_most=_MAX_NODES)
    rented = {(pool.cluster, pool.name) for pool in context.policy.burst.pools}
    spans = []
    for node in (rows.decode(row, FleetNode) for row in stored):
        own = Span(max(node.life.launched_at, span.start), min(node.changed_at if node.is_gone else span.end, span.end))
        if own.start < own.end and node.accelerators:
            is_rented = (node.life.cluster, node.pool) in rented
            spans.append(NodeSpan(node.life.key, node.pool, node.instance_type, node.accelerators, is_rented, own))
    if is_cut:
        return spans, f"Only {_MAX_NODES} nodes were read. Node time and rates are wrong."
    if span.start < context.now - _GONE_KEPT:
        return spans, "Records of nodes that went more than 30 days ago are gone: node time is too low, rates too high."
    return spans, ""


def _node_hours(nodes: Iterable[NodeSpan]) -> dict[str, tuple[str, str, float]]:
    return {
        node.node.rsplit("/", 2)[1]: (
            node.pool,
            node.instance_type,
            (node.span.end - node.span.start).total_seconds() / 3600,
        )
        for node in nodes
    }


def _held(attempts: Iterable[Attempt], lost: Sequence[LostTime], now: datetime) -> Iterator[HeldGpus]:
    """Yield the use of each node's GPUs by attempts."""
    losses: dict[str, list[tuple[Span, bool]]] = defaultdict(list)
    for lost_time in lost:
        losses[lost_time.receipt.job_id] += [(span, lost_time.receipt.cause.is_failure) for _, span in lost_time.spans]
    for attempt in attempts:
        if not attempt.nodes:
            continue
        gpus = attempt.per_node.accelerators
        for use, span in _uses_of(attempt, losses[attempt.job_id], now):
            for life in attempt.nodes:
                yield HeldGpus(life.key, use, gpus, span)


def _uses_of(attempt: Attempt, losses: Iterable[tuple[Span, bool]], now: datetime) -> Iterator[tuple[NodeUse, Span]]:
    """Yield the use of an attempt's time in disjoint spans."""
    start, end = attempt.charged_since or now, attempt.ended_at or now
    running = min(max(attempt.running_at or end, start), end)
    borders = {start, running, end}
    own = [(Span(max(span.start, start), min(span.end, end)), failed) for span, failed in losses]
    own = [(span, failed) for span, failed in own if span.start < span.end]
    for span, _ in own:
        borders |= {span.start, span.end}
    cuts = sorted(border for border in borders if start <= border <= end)
    for begin, until in pairwise(cuts):
        failed = next((failed for span, failed in own if span.start <= begin < span.end), None)
        if failed is not None:
            use = NodeUse.LOST if failed else NodeUse.INTERRUPTED
        else:
            use = NodeUse.STARTING if begin < running else NodeUse.PRODUCTIVE
        yield use, Span(begin, until)


def _repairs(incidents: Iterable[Incident], now: datetime) -> Iterator[NodeOutageSpan]:
    """Yield the time from the cordon of a node until its return. A replaced node does not return: it ends before."""
    for incident in incidents:
        start = incident.stages.cordoned_at
        if start is None or incident.is_drill:
            continue
        end = incident.stages.returned_at or incident.stages.settled_at or now
        if start < end:
            yield NodeOutageSpan(incident.life.key, Span(start, end))
