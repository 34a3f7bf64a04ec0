"""The sweep: compare the ledger with the clusters, and complete interrupted work, by the same services.

Each step stands alone. A failed step is reported and runs again in the next sweep; the other steps continue.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from enum import StrEnum

from evenkeel.domain.health.incidents import IncidentState
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.plurals import count_of
from evenkeel.domain.sources import Source, SourceAge, SourceKind, SourceState
from evenkeel.domain.values import Value
from evenkeel.events import kubernetes_node
from evenkeel.ports import Conflict, EvenkeelError, Put, Row, Table, Telemetry
from evenkeel.services.context import Context
from evenkeel.services.queries.fleet import read_overview, read_sources
from evenkeel.services.storage import heartbeats, locks
from evenkeel.services.sweep import (
    attempt_steps,
    incident_steps,
    inventory_steps,
    new_node_steps,
    rental_steps,
    signal_steps,
    unhealthy_node_steps,
    unmanaged_restart_steps,
    watch_cluster,
)
from evenkeel.services.sweep.fold_days import fold_days
from evenkeel.services.sweep.sweep_run import WRITER, SweepRun
from evenkeel.services.tables import fleet_rows, rows
from evenkeel.services.waits import evaluate_waits, wait_observation
from evenkeel.services.waits.debounced_answers import DebouncedWaitAnswerRequests
from evenkeel.services.waits.read_cache import ReadCache

LOCK = "sweep"
_LOCK_SECONDS = 60
_MAX_COUNTED = 1000
"""Maximum number of rows that a gauge counts. Beyond it the figure is a lower bound."""


class SweepOutcome(StrEnum):
    """Whether the sweep ran."""

    SWEPT = "SWEPT"
    LOCKED = "LOCKED"
    """Another sweep runs."""


class SweepFleetResult(Value):
    """The result of one sweep."""

    outcome: SweepOutcome
    corrections: dict[str, int] = {}
    """Step → number of repaired leftovers: the failures of all services above the sweep."""
    failed: tuple[str, ...] = ()
    """Failed steps and unreadable sources, each with the reason."""


def run(context: Context) -> SweepFleetResult:
    """Sweep once.

    Idempotent: yes, each step is. A sweep that finds nothing to repair changes only the heartbeat.
    """
    now = context.now
    lock = locks.take_lock(context.ledger, LOCK, context.ids.new("op"), seconds=_LOCK_SECONDS, now=now)
    if lock is None:
        return SweepFleetResult(outcome=SweepOutcome.LOCKED)
    sweep = SweepRun(context, lock.notes)
    corrections: dict[str, int] = {}
    failed_steps: list[str] = []
    held_lock: locks.Lock | None = lock
    for name, step in STEPS:
        held_lock = locks.renew_lock(context.ledger, held_lock, now=context.clock.now()) if held_lock else None
        if held_lock is None:
            failed_steps.append(f"{name}: the lock was lost")
            break
        if not sweep.is_due(name):
            continue
        sweep.failures = []
        count = 0
        with sweep.isolate_item(name):
            count = step(sweep)
        source = Source(kind=SourceKind.SWEEP, target=name)
        if sweep.failures:
            failed_steps.append(f"{name}: {sweep.failures[0]}")
            sweep.results.record_failure(source, "; ".join(sweep.failures))
            context.telemetry.count("SweepStepsFailed", step=name)
            context.telemetry.warning(
                "SweepStepFailed", step=name, failures=len(sweep.failures), detail=sweep.failures[0]
            )
        else:
            sweep.results.record_answer(source)
        if count:
            corrections[name] = count
            context.telemetry.count("SweepCorrections", count, step=name)
    measures = sweep.is_due("sources")
    if held_lock is not None:
        locks.unlock(context.ledger, held_lock, now=context.clock.now(), notes=sweep.notes)
    _note_lists(sweep)
    steps = f"{SourceKind.SWEEP}/"
    failed_steps += [
        f"{name}: {error}" for name, error in sweep.results.errors.items() if error and not name.startswith(steps)
    ]
    context_at_end = context.replace(now=context.clock.now())
    heartbeats.record_heartbeat(WRITER, context_at_end, sweep.results, read_at=context.now)
    if measures:
        ages = read_sources.read_source_ages(context_at_end)
        _measure_sources(ages, context.telemetry)
    return SweepFleetResult(outcome=SweepOutcome.SWEPT, corrections=corrections, failed=tuple(failed_steps))


def _note_lists(sweep: SweepRun) -> None:
    """Record which clusters were listed completely, and whether HyperPod was, if this run came so far."""
    for cluster in sweep.context.site.clusters:
        source = Source(kind=SourceKind.KUBERNETES_LIST, target=cluster)
        if cluster in sweep.unreadable_clusters:
            sweep.results.record_failure(source, sweep.unreadable_clusters[cluster])
        elif sweep.has_listed:
            sweep.results.record_answer(source)
    if not sweep.context.site.has_hyperpod or not sweep.has_listed:
        return
    if sweep.hyperpod_error:
        sweep.results.record_failure(Source(kind=SourceKind.HYPERPOD), sweep.hyperpod_error)
    else:
        sweep.results.record_answer(Source(kind=SourceKind.HYPERPOD))


def _measure_sources(ages: Sequence[SourceAge], telemetry: Telemetry) -> None:
    """Emit the age of each source that ever answered, and how many sources of each kind are stale."""
    for age in ages:
        if age.age_seconds is not None:
            telemetry.seconds(
                "SourceAgeSeconds", age.age_seconds, source=age.source.kind, target=age.source.target or "fleet"
            )
    stale = Counter(age.source.kind for age in ages if age.state is SourceState.STALE)
    for kind in sorted({age.source.kind for age in ages}):
        telemetry.count("SourcesStale", stale[kind], source=kind)


def read_event_queue(sweep: SweepRun) -> int:
    """Check whether events wait: a queue that is not drained is a silent source."""
    source = Source(kind=SourceKind.EVENT_QUEUE)
    try:
        waiting_messages = sweep.context.inbox.waiting()
    except EvenkeelError as error:
        sweep.note_unreadable(source, error)
        return 0
    if waiting_messages:
        sweep.results.record_failure(source, f"{count_of(waiting_messages, 'event is', 'events are')} waiting.")
    else:
        sweep.results.record_answer(source)
    return 0


def answer_waits(sweep: SweepRun) -> int:
    """Evaluate every open wait, and repeat answers that were recorded but never delivered.

    While the watch runs, it answers waits that have just become due.
    """
    context = sweep.context
    answers = DebouncedWaitAnswerRequests(
        context.wait_answers,
        context.clock,
        sweep.notes.pop("requested", {}),
        defers_to_watch=locks.is_taken(context.ledger, watch_cluster.LOCK, now=sweep.context.now),
    )
    reads = ReadCache(context.now)
    if sweep.provider_nodes is not None:
        # Node objects are listed again: an incident that is newer than the list may have cordoned its node since.
        reads.store(wait_observation.HYPERPOD, "nodes", sweep.provider_nodes)
    evaluation = evaluate_waits.run(context.replace(wait_answers=answers), repeat_answered=True, reads=reads)
    sweep.notes["requested"] = answers.requested
    source = Source(kind=SourceKind.WAITS)
    if evaluation.failure_text:
        sweep.results.record_failure(source, evaluation.failure_text)
    else:
        sweep.results.record_answer(source)
    return answers.requests


def emit_gauges(sweep: SweepRun) -> int:
    """Emit the gauges."""
    context = sweep.context
    for state in JobState:
        if state.has_ended:
            continue
        jobs, is_complete = _read_state(sweep, Table.JOBS, f"JOB#{state}")
        context.telemetry.count(f"Jobs{state.capitalize()}", len(jobs))
        if state is JobState.PENDING and is_complete and sweep.accelerators_in_use is not None:
            pending_specs = (job.spec for _, job in rows.readable_rows(jobs, Job))
            requested_gpus = sum(spec.nodes * spec.accelerators_per_node for spec in pending_specs)
            context.telemetry.count("AcceleratorsInDemand", sweep.accelerators_in_use + requested_gpus)
    context.telemetry.count("IncidentsOpen", len(sweep.open_incidents))
    repairs = sum(bool(incident.repairs) and not incident.stages.node_back_at for incident in sweep.open_incidents)
    context.telemetry.count("RepairsInFlight", repairs)
    blocked_count = sum(incident.state is IncidentState.BLOCKED for incident in sweep.open_incidents)
    context.telemetry.count("IncidentsBlocked", blocked_count)
    if (
        not sweep.unreadable_clusters and not sweep.hyperpod_error
    ):  # a count over a part of the fleet would look like a loss
        ready = sum(node.kubernetes is not None and node.kubernetes.is_ready for node in sweep.nodes)
        context.telemetry.count("NodesReady", ready)
        context.telemetry.count("NodesNotReady", len(sweep.nodes) - ready)
        cordoned_count = sum(node.kubernetes is not None and node.kubernetes.is_cordoned for node in sweep.nodes)
        context.telemetry.count("NodesCordoned", cordoned_count)
        context.telemetry.count("LemonNodes", sum(node.life.key in sweep.lemons for node in sweep.nodes))
    stale = [
        kubernetes_node.stale_conditions(node, sweep.context.policy.watch, sweep.context.now)
        for node in sweep.kubernetes
    ]
    context.telemetry.count("ConditionsStale", sum(map(len, stale)))
    return 0


def _read_state(sweep: SweepRun, table: Table, state: str) -> tuple[list[Row], bool]:
    """Return the rows of a state, up to the limit, and whether these are all."""
    state_rows: list[Row] = []
    cursor = None
    while len(state_rows) < _MAX_COUNTED and sweep.pages_left > 0:
        sweep.pages_left -= 1
        page = sweep.context.ledger.by_state(table, state, cursor=cursor)
        state_rows += page.rows
        cursor = page.cursor
        if cursor is None:
            return state_rows, True
    return state_rows, False


def count_fleet(sweep: SweepRun) -> int:
    """Store the counts of nodes, jobs, teams and budgets, so that the overview needs a constant number of reads.

    A new warning of a budget is counted before the row says that it was given. If the sweep dies in between, the next
    one warns again: a second alarm is better than none.
    """
    context = sweep.context
    key = fleet_rows.overview_key()
    row = context.ledger.get(key)
    _note_lists(sweep)
    ages = read_sources.read_source_ages(context, sweep.results)
    counts = read_overview.counts_document(ages, context, row.doc if row else None)
    new_warnings = [budget for budget in counts["budgets"] if budget["warnedAt"] == counts["at"]]
    context.telemetry.count("BudgetsRunningOut", len(new_warnings))
    for budget in new_warnings:
        context.telemetry.error("BudgetRunsOut", runbook="budget-runs-out", **budget)
    with contextlib.suppress(Conflict):  # a newer sweep was first
        context.ledger.commit(Put(Row(key, counts, row.version if row else 0)))
    return 0


def request_cycle(sweep: SweepRun) -> int:
    """Request a scheduling cycle: a lost request must not leave a job waiting."""
    if sweep.context.ledger.by_state(Table.JOBS, f"JOB#{JobState.PENDING}", limit=1).rows:
        sweep.context.cycle_requests.request("sweep")
    return 0


STEPS: tuple[tuple[str, Callable[[SweepRun], int]], ...] = (
    ("fleet", inventory_steps.refresh_fleet),
    ("kueue", inventory_steps.refresh_kueue),
    ("settings", inventory_steps.refresh_settings),
    ("plans", inventory_steps.refresh_plan_ends),
    ("early", signal_steps.ingest_notices_before_listing),
    ("facts", signal_steps.ingest_node_facts),
    ("unresolved", signal_steps.retry_unresolved),
    ("events", read_event_queue),
    ("unhealthy", unhealthy_node_steps.resume_work),
    ("incidents", incident_steps.resume_incidents),
    ("rollbacks", incident_steps.roll_back_jobs),
    ("stale_pointers", incident_steps.delete_stale_pointers),
    ("registers", incident_steps.reconcile_registers),
    ("attempts", attempt_steps.resume_attempts),
    ("workloads", attempt_steps.clear_workloads),
    ("rentals", rental_steps.resume_rentals),
    ("restarts", unmanaged_restart_steps.continue_restarts),
    ("waits", answer_waits),
    ("new_nodes", new_node_steps.return_new_nodes),
    ("metrics", emit_gauges),
    ("overview", count_fleet),
    ("request_cycle", request_cycle),
    ("days", fold_days),
)
"""The steps in order. Each step returns the number of corrections that it made."""
