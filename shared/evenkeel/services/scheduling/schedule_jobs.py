"""A scheduling cycle: admit the jobs that fit, and record why the other jobs wait.

    load ─▶ decide_cycle(snapshot) ─▶ commit if the quota tree is unchanged ─▶ answer Kueue's checks

No other service creates attempts. Evenkeel admits no job on a cluster that it cannot read. The jobs of that cluster
stay pending, and the jobs that run there keep their quota and are not preempted.

If the ledger refuses to store an admission, the cycle reads everything again and decides without that job.

Each admission and each change of the set-up raises the version of the tree, so a commit of an older snapshot fails
whole. A released charge does not raise it: the charge is marked in place, and jobs are read after the charges. So a
cycle sees freed quota only with the job that freed it (docs/decisions/0023).
"""

import contextlib
from datetime import datetime
from typing import NamedTuple

from evenkeel.domain.economics import money
from evenkeel.domain.scheduling.cycle_plan import CyclePlan
from evenkeel.domain.scheduling.cycle_requests import is_answered
from evenkeel.domain.scheduling.decide_cycle import decide_cycle
from evenkeel.domain.sources import Source, SourceKind
from evenkeel.domain.values import Value, rfc3339
from evenkeel.ports import Conflict, EvenkeelError, Put, Row
from evenkeel.services.context import Context
from evenkeel.services.scheduling import answer_burst_checks, commit_cycle, load_cycle, pending_job_changes
from evenkeel.services.scheduling.loaded_cycle import LoadedCycle
from evenkeel.services.storage import charge_rows, heartbeats
from evenkeel.services.storage.training_plan_ends import with_training_plan_ends
from evenkeel.services.tables import quota_rows

WRITER = pending_job_changes.WRITER
_MAX_TRIES = 3
"""Tries of one invocation to load, decide and commit. After that the next invocation continues."""
_RIVAL_PAUSE_SECONDS = 0.1
_MAX_RIVAL_PAUSES = 5


class ScheduleJobsResult(Value):
    """The result of a scheduling cycle."""

    admitted: tuple[str, ...] = ()
    """Names of the workflows of admitted attempts."""
    waiting: int = 0
    """Pending jobs that were examined and stay pending."""
    is_complete: bool = True
    """False if the last try did not finish the queue: other writers changed it, the ledger refused jobs, or more jobs
    may start. The next cycle continues."""
    was_skipped: bool = False
    """An earlier cycle began after the newest request, so none ran."""


def run(context: Context, *, requested_at: datetime | None = None) -> ScheduleJobsResult:
    """Run one scheduling cycle. In any mode but `act` it records the same decisions and starts no job.

    Args:
        context: The ports and the policy.
        requested_at: When the newest request for this cycle was sent. No cycle runs if an earlier cycle began after it.
            None for a run by the clock, or if the time is unknown.

    Idempotent: yes, every admission is conditional on the version of the tree and of the job, so cycles may overlap.
    """
    finished_row = context.ledger.get(quota_rows.finished_cycle_key()) if requested_at else None
    if (
        requested_at
        and finished_row
        and is_answered(requested_at, datetime.fromisoformat(finished_row.doc["startedAt"]))
    ):
        return ScheduleJobsResult(was_skipped=True)
    cycle = Source(kind=SourceKind.SCHEDULING_CYCLE)
    results = heartbeats.SourceResults()
    try:
        outcome, started_at = _CycleTries(results, context).run_until_committed()
    except EvenkeelError as error:
        results.record_failure(cycle, error)
        heartbeats.record_heartbeat(WRITER, context, results)
        raise
    if outcome.is_complete:
        results.record_answer(cycle)
        if requested_at and started_at:
            _record_finished(started_at, finished_row, context)
    else:
        results.record_failure(cycle, f"The queue was not finished in {_MAX_TRIES} tries.")
    heartbeats.record_heartbeat(WRITER, context, results)
    return outcome


def _record_finished(started_at: datetime, earlier_row: Row | None, context: Context) -> None:
    """Record that a cycle finished. Idempotent: yes; if another cycle was first, its time stays."""
    doc = {**(earlier_row.doc if earlier_row else {}), "startedAt": rfc3339(started_at)}
    row = Row(quota_rows.finished_cycle_key(), doc, earlier_row.version if earlier_row else 0)
    with contextlib.suppress(Conflict):
        context.ledger.commit(Put(row))


class _CommittedCycle(NamedTuple):
    """The result of a cycle, and when it began to read the facts of its decisions."""

    result: ScheduleJobsResult
    started_at: datetime | None
    """None if a cluster or the changed head of a queue was not read: such a cycle answers only its own requests."""


class _CycleTries:
    """The tries of one invocation. Admissions of a try stay, even if a later commit of that try fails."""

    def __init__(self, results: heartbeats.SourceResults, context: Context) -> None:
        self._results, self._context = results, with_training_plan_ends(context)
        self._admitted: list[str] = []
        self._refused_jobs: frozenset[str] = frozenset()
        """Jobs whose admission the ledger refused. Later tries decide without them."""
        self._has_rival = False
        """Whether another writer was first in the last try."""

    def run_until_committed(self) -> _CommittedCycle:
        """Try whole cycles until one is committed and has examined the queue."""
        for number in range(_MAX_TRIES):
            if number and self._has_rival:
                self._await_rival()
            committed_cycle = self._try_cycle()
            if committed_cycle is not None:
                return committed_cycle
        self._context.telemetry.warning("CycleEndedEarly", tries=_MAX_TRIES)
        return _CommittedCycle(ScheduleJobsResult(admitted=tuple(self._admitted), is_complete=False), None)

    def _try_cycle(self) -> _CommittedCycle | None:
        """Load, decide and commit once. Return None if a further try may start jobs, or if another writer was first."""
        context = self._context
        started_at = context.clock.now()
        self._has_rival = False
        try:
            loaded_cycle, plan = _decide(self._load(), context)
            refused_jobs = commit_cycle.run(plan, loaded_cycle, self._admitted.append, context)
        except Conflict:
            self._has_rival = True
            return None  # another writer was first
        if refused_jobs:
            self._refused_jobs |= refused_jobs
            return None  # other jobs may take the nodes and the quota of the refused jobs
        self._complete(plan, loaded_cycle)
        if not plan.pending_count and len(plan.decisions) >= context.policy.scheduling.jobs_per_page:
            return None  # all jobs of the first pages started, so jobs after them may start, too
        if loaded_cycle.errors.keys() >= set(context.site.clusters):
            # The reasons of the jobs are recorded. The error repeats the request for this cycle.
            raise loaded_cycle.errors[context.site.clusters[0]]
        result = ScheduleJobsResult(admitted=tuple(self._admitted), waiting=plan.pending_count)
        return _CommittedCycle(result, started_at if loaded_cycle.is_whole else None)

    def _await_rival(self) -> None:
        """Wait until the quota tree stays as it is. A decision beside a cycle that still commits would fail, too."""
        version: int | None = None
        for _ in range(_MAX_RIVAL_PAUSES):
            row = self._context.ledger.get(quota_rows.tree_key())
            if row is None or row.version == version:
                return
            version = row.version
            self._context.clock.sleep_about(_RIVAL_PAUSE_SECONDS)

    def _load(self) -> LoadedCycle:
        """Load the facts of a cycle, without the refused jobs, and record the clusters that could not be read."""
        loaded_cycle = load_cycle.run(self._context)
        for name, error in loaded_cycle.errors.items():
            self._results.record_failure(Source(kind=SourceKind.KUBERNETES_LIST, target=name), error)
        return loaded_cycle._replace(snapshot=loaded_cycle.snapshot.without_jobs(self._refused_jobs))

    def _complete(self, plan: CyclePlan, loaded_cycle: LoadedCycle) -> None:
        """Do the work that follows the commits: answer Kueue, and store the cursors and heads for the next cycle."""
        context = self._context
        answer_burst_checks.run(loaded_cycle, self._results, context)
        charge_rows.delete(loaded_cycle.outdated, context.ledger)
        _measure_rental_cost(loaded_cycle, context)
        if plan.queue_plan.cursors_of_next_cycle is not None and loaded_cycle.cursors_row is not None:
            commit_cycle.store_cursors(plan.queue_plan.cursors_of_next_cycle, loaded_cycle.cursors_row, context)
        commit_cycle.store_heads(plan, loaded_cycle, context)


def _measure_rental_cost(loaded_cycle: LoadedCycle, context: Context) -> None:
    """Emit the cost of all open rentals, with the cap on it."""
    rental_cost = sum(allocation.micros_per_hour for allocation in loaded_cycle.snapshot.rental_book.allocations)
    context.telemetry.gauge("RentalUsdPerHour", rental_cost / money.MICROS_PER_USD)
    context.telemetry.gauge(
        "RentalCapUsdPerHour", context.policy.burst.fleet_cap_micros_per_hour / money.MICROS_PER_USD
    )


def _decide(loaded_cycle: LoadedCycle, context: Context) -> tuple[LoadedCycle, CyclePlan]:
    """Decide, and read the facts that the decisions turn out to need, until the plan is complete."""
    plan = decide_cycle(loaded_cycle.snapshot, context.policy, context.mode, context.now)
    while plan.is_incomplete:
        loaded_cycle = load_cycle.read_missing(loaded_cycle, plan.missing, context)
        plan = decide_cycle(loaded_cycle.snapshot, context.policy, context.mode, context.now, incomplete_plan=plan)
    return loaded_cycle, plan
