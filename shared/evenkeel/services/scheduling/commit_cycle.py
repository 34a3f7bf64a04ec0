"""Commit step of a scheduling cycle: write its plan, in commits that depend on the version of the quota tree.

    admissions ─ rentals for replicas ─ preemptions, rentals and reasons ─ resizes ─ departures ─ reservations ─ drains

A departure is the stop of a job that leaves its rented nodes. The next version of the tree is part of each commit that
changes quota. So the commit fails if another cycle changed the tree in between. Jobs that start are committed first:
the other decisions count on them. A crash after the commit of an attempt leaves it without its workflow, which the
sweep starts. A stopping job keeps its charge until its pods are gone, and the job that needs its nodes waits.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from evenkeel.domain.admission.cycle_facts import Json, pointer_to
from evenkeel.domain.admission.cycle_plan import (
    AdmissionStep,
    CyclePlan,
    Departure,
    DisplacementStep,
    PendingStep,
    PreemptionStep,
    RentStep,
)
from evenkeel.domain.admission.decide_job import AdmissionAction, AdmissionDecision, AdmissionFacts, recorded_reason
from evenkeel.domain.admission.queue_cursors import QueueCursors
from evenkeel.domain.admission.scheduler_state import SchedulerState
from evenkeel.domain.decisions import PACKED_FROM_IF_MANY, Decision
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.kueue.preemption import reason_text
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.quotas.teams import TeamSetup
from evenkeel.domain.renting.displacement import displacement_requester
from evenkeel.domain.timeline import TimelineEntry
from evenkeel.ports import Add, Conflict, Delete, Put, Refused, Row, TransientError, WorkflowName, Write
from evenkeel.services.context import Context
from evenkeel.services.rentals import rentals
from evenkeel.services.scheduling import drain_reservations, resize_jobs
from evenkeel.services.scheduling.load_cycle import LoadedCycle
from evenkeel.services.storage import batches, cycle_facts_rows, job_rows, quota_rows, rows, subject_rows
from evenkeel.services.storage.decision_record import decision_of
from evenkeel.services.storage.quota_tree import QuotaTree

WRITER = "schedule_jobs"
_MAX_REASONS = 12
"""Jobs whose reasons are in one commit, if `batches.cut_into_batches` allows as many."""
_MAX_USAGE_ROWS = 10
"""Each admission raises the usage row of its team. If the teams are few, each commit has room for all their rows."""
_RETRY_AFTER_REFUSAL = timedelta(hours=1)
"""Time for which a job waits after the ledger refused to store its decision."""


def run(plan: CyclePlan, loaded: LoadedCycle, admitted: list[str], context: Context) -> frozenset[str]:
    """Commit a plan, and add each admitted workflow to `admitted`.

    Idempotent: yes, every commit is conditional on the versions that the cycle read.

    Args:
        plan: A complete plan.
        loaded: The snapshot of the cycle, with rows and versions.
        admitted: Collects the names of the workflows of admitted attempts. A later commit that fails removes none.
        context: Ports, policy, mode and time.

    Returns:
        Jobs whose admission the ledger refused. Then nothing but the other admissions was committed.

    Raises:
        Conflict: another writer was first.
    """
    tree = QuotaTree(loaded.tree, plan.scheduler_state)
    refused_jobs = _commit_admissions(plan.admissions, loaded, tree, admitted, context)
    if refused_jobs:
        return refused_jobs
    rentals.begin_for_deployments(plan.serving_rentals, tree, context)
    reasons = _ReasonBatch(context)
    for step in plan.steps:
        match step:
            case PreemptionStep():
                _request_preemption(step, loaded, tree, context)
            case RentStep():
                _begin_rental(step, loaded, tree, context)
            case DisplacementStep():
                _request_displacement(step, loaded, tree, context)
            case PendingStep():
                reasons.add(_reason_writes(step, loaded, context), step.decision.job_id)
            case AdmissionStep():
                pass  # committed above
    reasons.commit()
    resize_jobs.carry_out(plan, loaded, tree, context)
    if plan.departure is not None:
        commit_departure(plan.departure, loaded, tree, context)
    _commit_reservation_stops(plan, loaded, tree, context)
    _commit_queue_stops(plan, loaded, tree, context)
    return frozenset()


def store_cursors(cursors: QueueCursors, row: Row, context: Context) -> None:
    """Store the cursors of the next cycle. Idempotent: yes; if another cycle was first, its cursors stay."""
    barriers = {"barriers": [list(barrier) for barrier in cursors.barriers]} if cursors.barriers else {}
    stored_doc = row.doc or {"cursors": {}}
    other_fields = {name: value for name, value in stored_doc.items() if name not in ("barriers", "turn")}
    turn = {"turn": cursors.last_queue} if cursors.last_queue is not None else {}
    doc = {**other_fields, "cursors": dict(cursors.page_starts), **turn, **barriers}
    if stored_doc != doc:
        with contextlib.suppress(Conflict):
            context.ledger.commit(Put(Row(row.key, doc, row.version)))


# ---------------------------------------------------------------- admissions


def _commit_admissions(
    admissions: Sequence[AdmissionStep], loaded: LoadedCycle, tree: QuotaTree, admitted: list[str], context: Context
) -> frozenset[str]:
    """Create the attempts of a plan and start their workflows. Return the jobs whose admission the ledger refused."""
    attempts: dict[str, Attempt] = {}
    facts = _FactsOfAdmissions(context)
    for step in admissions:
        decision = step.decision
        attempt = decision.to_attempt(loaded.snapshot.pending[decision.job_id], context.ids.new("dec"))
        rental = loaded.snapshot.rental_book.rental_by_holder.get(decision.job_id)
        is_rented = rental is not None and rental.hosts(attempt)
        price = context.policy.economy.price_of(attempt.instance_type, attempt.admitted_at, attempt.pool)
        attempts[decision.job_id] = attempt.replace(
            is_rented=is_rented, usd_per_accelerator_hour=price.usd if price and not is_rented else None
        )
    refused_jobs: set[str] = set()

    def commit(batch: Sequence[batches.WriteGroup]) -> None:
        _commit_attempts([attempts[group.subject] for group in batch], batch, facts.unwritten, loaded, tree, context)
        facts.unwritten = ()
        for attempt in (attempts[group.subject] for group in batch):
            admitted.append(attempt.workload_name)
            context.telemetry.count("JobsAdmitted")
            context.telemetry.info("JobAdmitted", job_id=attempt.job_id, attempt=attempt.attempt, pool=attempt.pool)
            start_attempt_workflow(attempt, context)

    def on_refused(group: batches.WriteGroup, refused: Refused) -> None:
        refused_jobs.add(group.subject)
        _defer_after_refusal(group.subject, refused, context)

    facts.share({attempts[step.decision.job_id].decision_id: step.decision.facts for step in admissions})
    write_groups = (
        _admission_group(step.decision, attempts[step.decision.job_id], facts, loaded, context) for step in admissions
    )
    usage = [Add(quota_rows.usage_key(team), {}) for team in {attempt.team for attempt in attempts.values()}]
    has_few_teams = len(usage) <= _MAX_USAGE_ROWS
    common = (tree.state_put(tree.scheduler_state), *facts.unwritten, *(usage if has_few_teams else ()))
    for batch in batches.cut_into_batches(write_groups, common_writes=common, extra_writes=0 if has_few_teams else 1):
        batches.commit_each(batch, commit, on_refused)
    return frozenset(refused_jobs)


class _FactsOfAdmissions:
    """The facts of a cycle's admissions, stored once. The first commit of the cycle stores them with its records."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._digests: dict[str, str] = {}
        """Decision → digest of the row with its facts."""
        self.unwritten: tuple[Put, ...] = ()
        """The row to be written with the next records."""

    def share(self, facts: Mapping[str, AdmissionFacts]) -> None:
        """Keep the facts of several decisions in one row. More than one row is written at once, ahead of the records.

        Then a cycle that commits nothing leaves rows that no record names, until they expire.
        """
        if len(facts) < 2:
            return
        groups = list(cycle_facts_rows.facts_rows(facts, self._context.now))
        self._digests = {name: digest for digest, _, names in groups for name in names}
        writes = tuple(Put(row) for _, row, _ in groups)
        if len(writes) == 1:
            self.unwritten = writes
            return
        for write in writes:
            self._context.ledger.commit(write)

    def of(self, decision: AdmissionDecision, decision_id: str) -> Json:
        """Return the facts for the record of a decision, or the pointer to the row that holds them."""
        digest = self._digests.get(decision_id)
        return pointer_to(digest) if digest else decision.facts.to_json()


def _admission_group(
    decision: AdmissionDecision, attempt: Attempt, facts: _FactsOfAdmissions, loaded: LoadedCycle, context: Context
) -> batches.WriteGroup:
    """Return the writes that admit one job: its attempt with its charge, and the record.

    The entry in its timeline follows from the attempt at each read.
    """
    job, version = loaded.snapshot.pending[attempt.job_id], loaded.versions[attempt.job_id]
    number = attempt.attempt
    started = _with_current_queue(job.at_size(attempt.ranks, context.now), loaded.snapshot.setup).replace(
        state=JobState.STARTING,
        reason=decision.reason,
        current_attempt=number,
        local_queue=attempt.local_queue,
        not_before=None,
        queued_at=None,
        # A preempted job counts as started again only after Kueue has admitted it.
        is_preempted=job.is_preempted and bool(attempt.local_queue),
        placement=None,
        is_migrating_back=False,
        displaced_at=None,
        displacing_since=None,
        lost_at=None,
    )
    released = loaded.charges.released_by(job)
    recorded_facts = facts.of(decision, attempt.decision_id)
    record = _decision_record(decision, attempt.decision_id, decision.reason, Mode.ACT, context, recorded_facts)
    return batches.WriteGroup(
        job.job_id,
        (
            Put(quota_rows.charge_row(attempt, job)),
            Put(job_rows.job_row(started, version)),
            Put(job_rows.attempt_row(attempt, 0)),
            Put(subject_rows.decision_row(record, PACKED_FROM_IF_MANY)),
            *((Delete(released.key, released.version),) if released else ()),
        ),
    )


def _commit_attempts(
    attempts: Sequence[Attempt],
    write_groups: Sequence[batches.WriteGroup],
    shared: Sequence[Put],
    loaded: LoadedCycle,
    tree: QuotaTree,
    context: Context,
) -> None:
    """Create attempts, with the facts that their records share: all of them or none.

    The commit fails if another cycle admitted a job since this cycle read the tree.
    """
    scheduler_state = tree.scheduler_state
    usage: Counter[str] = Counter()
    for attempt in attempts:
        job = loaded.snapshot.pending[attempt.job_id]
        usage[attempt.team] += attempt.accelerators
        scheduler_state = scheduler_state.after_admission(attempt.team, job.job_id)
        scheduler_state = scheduler_state.replace(
            elastic=scheduler_state.elastic.after_admission(job.job_id, is_elastic=job.spec.elastic is not None)
        )
    sums = (Add(quota_rows.usage_key(team), {"accelerators": count}) for team, count in usage.items())
    # The halves of a refused batch hold different writes, so they need different tokens.
    token = f"{attempts[0].decision_id}/{len(attempts)}"
    writes = (write for group in write_groups for write in group.writes)
    context.ledger.commit(tree.state_put(scheduler_state), *shared, *sums, *writes, client_token=token)
    tree.record_commit(scheduler_state)


def start_attempt_workflow(attempt: Attempt, context: Context) -> bool:
    """Start the workflow of an attempt. Return False if that failed: then the sweep starts it.

    Idempotent: yes, by the execution's name. An execution that exists already is success.
    """
    document = {"schemaVersion": 1, "jobId": attempt.job_id, "attempt": attempt.attempt}
    try:
        context.workflows.start(WorkflowName.RUN_JOB, attempt.workload_name, document)
    except TransientError as error:
        context.telemetry.warning("AttemptWorkflowNotStarted", job_id=attempt.job_id, error=str(error))
        return False
    return True


def _defer_after_refusal(job_id: str, refused: Refused, context: Context) -> None:
    """Defer a job if the ledger refused to store its decision. Idempotent: yes.

    The ledger may refuse the job's own row, too. Then only the log and the metric report it, and each cycle tries
    again.
    """
    batches.note_refusal(context.telemetry, job_id, refused)
    row = context.ledger.get(job_rows.job_key(job_id))
    if row is None:
        return
    job = rows.decode(row, Job)
    if job.state is not JobState.PENDING:
        return
    minutes = _RETRY_AFTER_REFUSAL.seconds // 60
    text = f"The ledger refused to store this job's decision. Evenkeel tries again after {minutes} min."
    entry = TimelineEntry(at=context.now, kind="deferred", text=text, writer=WRITER)
    deferred = job.replace(reason=text, placement=None, not_before=context.now + _RETRY_AFTER_REFUSAL)
    with contextlib.suppress(Conflict, Refused):
        context.ledger.commit(
            Put(job_rows.job_row(deferred, row.version)), Put(subject_rows.timeline_row(job_id, entry, "deferred"))
        )


# ---------------------------------------------------------------- preemptions and rentals


def _request_preemption(step: PreemptionStep, loaded: LoadedCycle, tree: QuotaTree, context: Context) -> None:
    """Request the stop of the victims, with the recorded decision, unless the ledger refuses it.

    Each request depends on the version that the cycle read. If a victim changed since, the commit fails and the cycle
    decides again. Many victims need several commits. After a crash between two commits the next cycle finds the first
    victims stopping, keeps them, and requests the stop of the rest.
    """
    decision = step.decision
    job, version = loaded.snapshot.pending[decision.job_id], loaded.versions[decision.job_id]
    write_groups = []
    for victim_id, reason in step.victims.items():
        reason_to_stop = f"Preempted by {job.job_id} of team {job.spec.team}: {reason_text(reason)}."
        write_groups.append(
            batches.WriteGroup(
                victim_id, _stop_writes(victim_id, reason_to_stop, f"{WRITER}/{job.job_id}", loaded, context.now)
            )
        )
    record = _decision_record(decision, context.ids.new("dec"), decision.reason, Mode.ACT, context)
    waiting_job = _with_current_queue(job, loaded.snapshot.setup).replace(reason=decision.reason)
    job_writes = (Put(job_rows.job_row(waiting_job, version)), Put(subject_rows.decision_row(record)))

    def after_stops(victims: Sequence[str]) -> SchedulerState:
        return tree.scheduler_state.after_preemption(job.spec.team, job.job_id, victims, context.now)

    try:
        _commit_stops(write_groups, job_writes, record.decision_id, after_stops, tree, context)
    except Refused as refused:
        _defer_after_refusal(job.job_id, refused, context)
        return
    context.telemetry.count("JobsPreempted", len(step.victims))
    context.telemetry.info("PreemptionRequested", job_id=job.job_id, victims=list(step.victims))


def _commit_stops(
    write_groups: Sequence[batches.WriteGroup],
    job_writes: tuple[Write, ...],
    client_token: str,
    after_stops: Callable[[Sequence[str]], SchedulerState],
    tree: QuotaTree,
    context: Context,
) -> None:
    """Commit the stop requests of several jobs, in as few commits as possible.

    The first commit also holds `job_writes`, the writes of the waiting job, and has the `client_token`.

    Args:
        write_groups: The writes of each job that stops.
        job_writes: Writes of the waiting job.
        client_token: Makes a repeat of the first commit safe.
        after_stops: Returns the scheduler's state after some of these jobs were asked to stop.
        tree: The quota tree.
        context: The ports.

    Raises:
        Refused: the ledger refused a commit. Earlier commits stay.
    """
    for batch in batches.cut_into_batches(
        write_groups, common_writes=(tree.state_put(tree.scheduler_state), *job_writes)
    ):
        scheduler_state = after_stops([group.subject for group in batch])
        writes = (write for group in batch for write in group.writes)
        context.ledger.commit(tree.state_put(scheduler_state), *writes, *job_writes, client_token=client_token)
        tree.record_commit(scheduler_state)
        job_writes, client_token = (), context.ids.new("dec")


def _stop_writes(
    job_id: str, reason_to_stop: str, by: str, loaded: LoadedCycle, now: datetime, *, kind: str = "preempted"
) -> tuple[Write, ...]:
    """Return the writes that request the stop of a job's attempt, with its grace period; none if it already stops.

    `kind` is the kind of the timeline's entry.
    """
    job, version = loaded.stored(job_id)
    if not job.is_stoppable:
        return ()
    request = job.stop_request_now(reason_to_stop, by, now)
    entry = TimelineEntry(at=now, kind=kind, text=reason_to_stop, writer=WRITER)
    return (
        Put(job_rows.job_row(job.replace(stop_request=request, reason=reason_to_stop, is_preempted=True), version)),
        Put(subject_rows.timeline_row(job.job_id, entry, f"{kind}-{job.current_attempt}")),
    )


def _request_displacement(step: DisplacementStep, loaded: LoadedCycle, tree: QuotaTree, context: Context) -> None:
    """Request the move of jobs to rented nodes, with the recorded decision, unless the ledger refuses it.

    The first commit puts the job before all other jobs, so that no other job takes the nodes. A job that already moves
    gets no second request. After a crash between two commits the nodes of the first jobs become free, and the next
    cycle decides about the rest.
    """
    decision = step.displacement
    job, version = loaded.snapshot.pending[decision.job_id], loaded.versions[decision.job_id]
    record = decision_of("DISPLACEMENT", job.job_id, decision.action, decision, decision.facts, context)
    waiting_job = _with_current_queue(job, loaded.snapshot.setup).replace(
        reason=decision.reason, displacing_since=context.now
    )
    entry = TimelineEntry(
        at=context.now, kind="displacing", text=decision.reason, decision_id=record.decision_id, writer=WRITER
    )
    job_writes: tuple[Write, ...] = (
        Put(job_rows.job_row(waiting_job, version)),
        Put(subject_rows.decision_row(record)),
        Put(subject_rows.timeline_row(job.job_id, entry, f"displacing-{record.decision_id}")),
    )
    write_groups = [
        batches.WriteGroup(
            victim_id, _displacement_writes(victim_id, job.job_id, record.decision_id, loaded, context.now)
        )
        for victim_id in decision.victims
    ]

    def after_stops(victims: Sequence[str]) -> SchedulerState:
        if not loaded.snapshot.setup.has_teams:
            return tree.scheduler_state
        return tree.scheduler_state.after_preemption(job.spec.team, job.job_id, victims, context.now)

    try:
        _commit_stops(write_groups, job_writes, record.decision_id, after_stops, tree, context)
    except Refused as refused:
        _defer_after_refusal(job.job_id, refused, context)
        return
    context.telemetry.count("JobsDisplaced", len(decision.victims))
    context.telemetry.info("DisplacementRequested", job_id=job.job_id, victims=list(decision.victims))


def _displacement_writes(
    job_id: str, for_job: str, decision_id: str, loaded: LoadedCycle, now: datetime
) -> tuple[Write, ...]:
    """Return the writes that request that a job continues on rented nodes; none if it already stops."""
    job, version = loaded.stored(job_id)
    if not job.is_stoppable:
        return ()
    text = f"The job frees its nodes for {for_job} and continues on rented nodes."
    stop = job.stop_request_now(text, displacement_requester(for_job), now)
    moving = job.replace(stop_request=stop, reason=text, displaced_at=now, queued_at=now, moves=job.moves + 1)
    entry = TimelineEntry(at=now, kind="displaced", text=text, decision_id=decision_id, writer=WRITER)
    return (
        Put(job_rows.job_row(moving, version)),
        Put(subject_rows.timeline_row(job_id, entry, f"displaced-{job.current_attempt}")),
    )


def _begin_rental(step: RentStep, loaded: LoadedCycle, tree: QuotaTree, context: Context) -> None:
    """Begin a rental for a job, unless the ledger refuses it."""
    job, version = loaded.stored(step.decision.job_id)
    job = _with_current_queue(job, loaded.snapshot.setup)
    # The step exists only if the job may act, even if the stack only recommends.
    try:
        rentals.begin_for_job(job, version, step.placement, tree, context.replace(mode=Mode.ACT))
    except Refused as refused:
        _defer_after_refusal(job.job_id, refused, context)


# ---------------------------------------------------------------- jobs that leave their nodes


def commit_departure(departure: Departure, loaded: LoadedCycle, tree: QuotaTree, context: Context) -> None:
    """Request that a job leaves its rented nodes. Idempotent: yes, a job that already stops gets no second request.

    Raises:
        Conflict: another writer was first.
    """
    job_id = departure.job_id
    job, version = loaded.stored(job_id)
    writes, token = rentals.departure_writes(job, version, departure.decision, context)
    scheduler_state = _with_stopping(tree.scheduler_state, [job_id], loaded.snapshot.setup)
    try:
        context.ledger.commit(tree.state_put(scheduler_state), *writes, client_token=token)
    except Refused as refused:
        batches.note_refusal(context.telemetry, job_id, refused)
        return
    tree.record_commit(scheduler_state)
    context.telemetry.count("JobsMigratedBack")
    context.telemetry.info("MigrationRequested", job_id=job_id)


def _commit_reservation_stops(plan: CyclePlan, loaded: LoadedCycle, tree: QuotaTree, context: Context) -> None:
    """Request that jobs leave nodes whose reservation ends. Idempotent: yes, each job gets one request."""
    write_groups = [
        drain_reservations.stop_group(stop, *loaded.stored(stop.facts.candidate.job_id), context)
        for stop in plan.reservation_stops
    ]

    def commit(batch: Sequence[batches.WriteGroup]) -> None:
        job_ids = [group.subject for group in batch]
        scheduler_state = _with_stopping(tree.scheduler_state, job_ids, loaded.snapshot.setup)
        context.ledger.commit(tree.state_put(scheduler_state), *(write for group in batch for write in group.writes))
        tree.record_commit(scheduler_state)
        context.telemetry.count("JobsDrainedFromReservations", len(job_ids))
        context.telemetry.info("ReservationStopsRequested", jobs=job_ids)

    for batch in batches.cut_into_batches(write_groups, common_writes=(tree.state_put(tree.scheduler_state),)):
        batches.commit_each(
            batch, commit, lambda group, refused: batches.note_refusal(context.telemetry, group.subject, refused)
        )


def _commit_queue_stops(plan: CyclePlan, loaded: LoadedCycle, tree: QuotaTree, context: Context) -> None:
    """Request the stop of all jobs of drained queues. Idempotent: yes, each job gets one request."""
    for job_id in plan.queue_stops:
        job, _ = loaded.stored(job_id)
        reason_to_stop = f"The queue of team {job.spec.team} is drained."
        scheduler_state = tree.scheduler_state.replace(stopping={**tree.scheduler_state.stopping, job_id: ""})
        try:
            writes = _stop_writes(job_id, reason_to_stop, f"{WRITER}/drain", loaded, context.now, kind="drained")
            context.ledger.commit(tree.state_put(scheduler_state), *writes)
        except Refused as refused:
            batches.note_refusal(context.telemetry, job_id, refused)
            continue
        tree.record_commit(scheduler_state)
        context.telemetry.info("QueueDrainStopRequested", job_id=job_id)


def _with_stopping(scheduler_state: SchedulerState, job_ids: Iterable[str], setup: TeamSetup) -> SchedulerState:
    """Return the state with jobs that stop for no other job. Without teams it is not needed."""
    return (
        scheduler_state.replace(stopping={**scheduler_state.stopping, **dict.fromkeys(job_ids, "")})
        if setup.has_teams
        else scheduler_state
    )


# ---------------------------------------------------------------- reasons


class _ReasonBatch:
    """Reasons of waiting jobs. One commit holds many reasons, since each commit is a round trip."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._groups: list[batches.WriteGroup] = []

    def add(self, writes: tuple[Write, ...], job_id: str) -> None:
        """Add the writes of one job. Commits the batch once it is full."""
        if writes:
            self._groups.append(batches.WriteGroup(job_id, writes))
        if len(self._groups) == _MAX_REASONS:
            self.commit()

    def commit(self) -> None:
        """Commit the rest of the batch. A reason that the ledger refuses is counted and left out."""
        ledger, telemetry = self._context.ledger, self._context.telemetry
        for batch in batches.cut_into_batches(self._groups):
            batches.commit_each(
                batch,
                lambda groups: ledger.commit(*(write for group in groups for write in group.writes)),
                lambda group, refused: batches.note_refusal(telemetry, group.subject, refused),
            )
        self._groups.clear()


def _reason_writes(step: PendingStep, loaded: LoadedCycle, context: Context) -> tuple[Write, ...]:
    """Return the writes that record why a job waits; none if the job records it already."""
    decision = step.decision
    job, version = loaded.snapshot.pending[decision.job_id], loaded.versions[decision.job_id]
    note, records = rentals.placement_note(job, step.placement, context.replace(mode=step.mode))
    if decision.action is AdmissionAction.BACK_OFF:
        return ()  # the job already records the failure
    reason = recorded_reason(decision, step.mode)
    text = f"{reason} {note.text}" if note else reason
    updated = _with_current_queue(job, loaded.snapshot.setup).replace(reason=text, placement=note)
    if updated == job:
        return ()
    writes = (Put(job_rows.job_row(updated, version)), *records)
    if job.queue_reason == reason:
        return writes
    record = _decision_record(decision, context.ids.new("dec"), reason, step.mode, context)
    return (*writes, Put(subject_rows.decision_row(record)))


def _with_current_queue(job: Job, setup: TeamSetup) -> Job:
    """Return a job in its present queue: teams may have been set up since it was submitted."""
    queue = job.spec.team if job.spec.team in setup.by_name else ""
    if queue == job.queue:
        return job
    return job.replace(queue=queue, priority=setup.priority_of(job.spec.priority_class))


def _decision_record(
    decision: AdmissionDecision, decision_id: str, reason: str, mode: Mode, context: Context, facts: Json | None = None
) -> Decision:
    """Return the record of a decision, with its own facts unless other facts are given."""
    return Decision(
        decision_id=decision_id,
        kind="ADMISSION",
        subject=decision.job_id,
        action=decision.action,
        reason=reason,
        alternatives=decision.alternatives,
        facts=decision.facts.to_json() if facts is None else facts,
        policy_hash=context.policy.hash,
        mode=mode,
        decided_at=context.now,
    )
