"""Commit the stop requests of a scheduling cycle.

    for a waiting job     preemption, displacement (the stopped job continues on rented nodes)
    for no other job      departure from rented nodes, a reservation that ends, a drained queue

A stopping job keeps its charge until its pods are gone, and the job that needs its nodes waits.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from evenkeel.domain.admission.scheduler_state import SchedulerState
from evenkeel.domain.kueue.preemption import reason_text
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.quotas.teams import TeamSetup
from evenkeel.domain.renting.displacement import displacement_requester
from evenkeel.domain.scheduling.cycle_plan import CyclePlan, Departure, DisplacementStep, PreemptionStep
from evenkeel.domain.timeline import TimelineEntry
from evenkeel.ports import Put, Refused, Write
from evenkeel.services.context import Context
from evenkeel.services.rentals import rental_store
from evenkeel.services.scheduling import drain_reservations, pending_job_changes
from evenkeel.services.scheduling.loaded_cycle import LoadedCycle
from evenkeel.services.scheduling.pending_job_changes import WRITER
from evenkeel.services.storage import batches
from evenkeel.services.storage.decision_record import decision_of
from evenkeel.services.storage.quota_tree import QuotaTree
from evenkeel.services.tables import job_rows, subject_rows


def request_preemption(step: PreemptionStep, loaded_cycle: LoadedCycle, tree: QuotaTree, context: Context) -> None:
    """Request the stop of the victims, with the recorded decision, unless the ledger refuses it.

    Each request depends on the version that the cycle read. If a victim changed since, the commit fails and the cycle
    decides again. Many victims need several commits. After a crash between two commits the next cycle finds the first
    victims stopping, keeps them, and requests the stop of the rest.
    """
    decision = step.decision
    job, version = loaded_cycle.snapshot.pending[decision.job_id], loaded_cycle.versions[decision.job_id]
    write_groups = []
    for victim_id, reason in step.victims.items():
        reason_to_stop = f"Preempted by {job.job_id} of team {job.spec.team}: {reason_text(reason)}."
        write_groups.append(
            batches.WriteGroup(
                victim_id,
                _stop_writes(victim_id, reason_to_stop, f"{WRITER}/{job.job_id}", loaded_cycle, context.now),
            )
        )
    decision_record = pending_job_changes.admission_record(
        decision, context.ids.new("dec"), decision.reason, Mode.ACT, context
    )
    waiting_job = pending_job_changes.with_current_queue(job, loaded_cycle.snapshot.setup).replace(
        reason=decision.reason
    )
    job_writes = (Put(job_rows.job_row(waiting_job, version)), Put(subject_rows.decision_row(decision_record)))

    def after_stops(victims: Sequence[str]) -> SchedulerState:
        return tree.scheduler_state.after_preemption(job.spec.team, job.job_id, victims, context.now)

    try:
        _commit_stops(write_groups, job_writes, decision_record.decision_id, after_stops, tree, context)
    except Refused as refusal:
        pending_job_changes.defer_after_refusal(job.job_id, refusal, context)
        return
    context.telemetry.count("JobsPreempted", len(step.victims))
    context.telemetry.info("PreemptionRequested", job_id=job.job_id, victims=list(step.victims))


def request_displacement(step: DisplacementStep, loaded_cycle: LoadedCycle, tree: QuotaTree, context: Context) -> None:
    """Request the move of jobs to rented nodes, with the recorded decision, unless the ledger refuses it.

    The first commit puts the job before all other jobs, so that no other job takes the nodes. A job that already moves
    gets no second request. After a crash between two commits the nodes of the first jobs become free, and the next
    cycle decides about the rest.
    """
    decision = step.displacement
    job, version = loaded_cycle.snapshot.pending[decision.job_id], loaded_cycle.versions[decision.job_id]
    decision_record = decision_of("DISPLACEMENT", job.job_id, decision.action, decision, decision.facts, context)
    waiting_job = pending_job_changes.with_current_queue(job, loaded_cycle.snapshot.setup).replace(
        reason=decision.reason, displacing_since=context.now
    )
    entry = TimelineEntry(
        at=context.now,
        kind="displacing",
        text=decision.reason,
        decision_id=decision_record.decision_id,
        writer=WRITER,
    )
    job_writes: tuple[Write, ...] = (
        Put(job_rows.job_row(waiting_job, version)),
        Put(subject_rows.decision_row(decision_record)),
        Put(subject_rows.timeline_row(job.job_id, entry, f"displacing-{decision_record.decision_id}")),
    )
    write_groups = [
        batches.WriteGroup(
            victim_id,
            _displacement_writes(victim_id, job.job_id, decision_record.decision_id, loaded_cycle, context.now),
        )
        for victim_id in decision.victims
    ]

    def after_stops(victims: Sequence[str]) -> SchedulerState:
        if not loaded_cycle.snapshot.setup.has_teams:
            return tree.scheduler_state
        return tree.scheduler_state.after_preemption(job.spec.team, job.job_id, victims, context.now)

    try:
        _commit_stops(write_groups, job_writes, decision_record.decision_id, after_stops, tree, context)
    except Refused as refusal:
        pending_job_changes.defer_after_refusal(job.job_id, refusal, context)
        return
    context.telemetry.count("JobsDisplaced", len(decision.victims))
    context.telemetry.info("DisplacementRequested", job_id=job.job_id, victims=list(decision.victims))


def request_departure(departure: Departure, loaded_cycle: LoadedCycle, tree: QuotaTree, context: Context) -> None:
    """Request that a job leaves its rented nodes. Idempotent: yes, a job that already stops gets no second request.

    Raises:
        Conflict: another writer was first.
    """
    job_id = departure.job_id
    job, version = loaded_cycle.stored(job_id)
    writes, token = rental_store.departure_writes(job, version, departure.decision, context)
    scheduler_state = _with_stopping(tree.scheduler_state, [job_id], loaded_cycle.snapshot.setup)
    try:
        context.ledger.commit(tree.state_put(scheduler_state), *writes, client_token=token)
    except Refused as refusal:
        batches.note_refusal(context.telemetry, job_id, refusal)
        return
    tree.record_commit(scheduler_state)
    context.telemetry.count("JobsMigratedBack")
    context.telemetry.info("MigrationRequested", job_id=job_id)


def request_reservation_stops(plan: CyclePlan, loaded_cycle: LoadedCycle, tree: QuotaTree, context: Context) -> None:
    """Request that jobs leave nodes whose reservation ends. Idempotent: yes, each job gets one request."""
    write_groups = [
        drain_reservations.stop_group(stop, *loaded_cycle.stored(stop.facts.candidate.job_id), context)
        for stop in plan.reservation_stops
    ]

    def commit(batch: Sequence[batches.WriteGroup]) -> None:
        job_ids = [group.subject for group in batch]
        scheduler_state = _with_stopping(tree.scheduler_state, job_ids, loaded_cycle.snapshot.setup)
        context.ledger.commit(tree.state_put(scheduler_state), *(write for group in batch for write in group.writes))
        tree.record_commit(scheduler_state)
        context.telemetry.count("JobsDrainedFromReservations", len(job_ids))
        context.telemetry.info("ReservationStopsRequested", jobs=job_ids)

    for batch in batches.cut_into_batches(write_groups, common_writes=(tree.state_put(tree.scheduler_state),)):
        batches.commit_each(
            batch, commit, lambda group, refusal: batches.note_refusal(context.telemetry, group.subject, refusal)
        )


def request_queue_stops(plan: CyclePlan, loaded_cycle: LoadedCycle, tree: QuotaTree, context: Context) -> None:
    """Request the stop of all jobs of drained queues. Idempotent: yes, each job gets one request."""
    for job_id in plan.queue_stops:
        job, _ = loaded_cycle.stored(job_id)
        reason_to_stop = f"The queue of team {job.spec.team} is drained."
        scheduler_state = tree.scheduler_state.replace(stopping={**tree.scheduler_state.stopping, job_id: ""})
        try:
            writes = _stop_writes(job_id, reason_to_stop, f"{WRITER}/drain", loaded_cycle, context.now, kind="drained")
            context.ledger.commit(tree.state_put(scheduler_state), *writes)
        except Refused as refusal:
            batches.note_refusal(context.telemetry, job_id, refusal)
            continue
        tree.record_commit(scheduler_state)
        context.telemetry.info("QueueDrainStopRequested", job_id=job_id)


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
    job_id: str, reason_to_stop: str, by: str, loaded_cycle: LoadedCycle, now: datetime, *, kind: str = "preempted"
) -> tuple[Write, ...]:
    """Return the writes that request the stop of a job's attempt, with its grace period; none if it already stops.

    `kind` is the kind of the timeline's entry.
    """
    job, version = loaded_cycle.stored(job_id)
    if not job.is_stoppable:
        return ()
    request = job.stop_request_now(reason_to_stop, by, now)
    entry = TimelineEntry(at=now, kind=kind, text=reason_to_stop, writer=WRITER)
    present_reason = f"The job saves a checkpoint and stops. {reason_to_stop}"
    return (
        Put(job_rows.job_row(job.replace(stop_request=request, reason=present_reason, is_preempted=True), version)),
        Put(subject_rows.timeline_row(job.job_id, entry, f"{kind}-{job.current_attempt}")),
    )


def _displacement_writes(
    job_id: str, for_job: str, decision_id: str, loaded_cycle: LoadedCycle, now: datetime
) -> tuple[Write, ...]:
    """Return the writes of a request to continue a job on rented nodes; none if it already stops."""
    job, version = loaded_cycle.stored(job_id)
    if not job.is_stoppable:
        return ()
    text = f"The job frees its nodes for {for_job} and continues on rented nodes."
    stop = job.stop_request_now(text, displacement_requester(for_job), now)
    moving_job = job.replace(stop_request=stop, reason=text, displaced_at=now, queued_at=now, moves=job.moves + 1)
    entry = TimelineEntry(at=now, kind="displaced", text=text, decision_id=decision_id, writer=WRITER)
    return (
        Put(job_rows.job_row(moving_job, version)),
        Put(subject_rows.timeline_row(job_id, entry, f"displaced-{job.current_attempt}")),
    )


def _with_stopping(scheduler_state: SchedulerState, job_ids: Iterable[str], setup: TeamSetup) -> SchedulerState:
    """Return the state with jobs that stop for no other job. Without teams it is not needed."""
    return (
        scheduler_state.replace(stopping={**scheduler_state.stopping, **dict.fromkeys(job_ids, "")})
        if setup.has_teams
        else scheduler_state
    )
