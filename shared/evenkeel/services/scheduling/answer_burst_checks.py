"""Answer Kueue's admission check `evenkeel.io/burst`, as a step of a scheduling cycle where Kueue admits jobs.

The same step moves jobs from rented nodes back to committed ones.

    list the checks ─ read nodes, rentals and budgets ─ decide_burst_check ─ rent ─ record ─ write the answer

A rental is started, and the decision recorded, before the answer is written. A crash in between leaves a Workload
without an answer, which the next cycle gives. An answer is written only to the version of the Workload that was read. A
failed write of an answer is logged, and the cycle continues with the next Workload. The job keeps the key of its last
record, so that an answer that cannot be written is recorded once.
"""

from collections.abc import Sequence
from typing import NamedTuple

from evenkeel.domain.admission.admission_input import AdmissionInput
from evenkeel.domain.admission.authority import AdmissionAuthority
from evenkeel.domain.external.burst_check_protocol import CheckedWorkload
from evenkeel.domain.jobs.admitted_size import ask_for_size, stopped_for_a_size
from evenkeel.domain.jobs.attempt import Attempt, run_seconds
from evenkeel.domain.jobs.job import Job, PlacementNote
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.renting.candidates import PlacementContext
from evenkeel.domain.renting.rental import Rental, RentalState
from evenkeel.domain.scheduling import rent_plan
from evenkeel.domain.scheduling.burst_checks import (
    BurstCheckAction,
    BurstCheckDecision,
    begins_rental,
    burst_check_facts,
    decide_burst_check,
    job_of_check,
)
from evenkeel.domain.scheduling.cycle_plan import MissingFacts
from evenkeel.domain.scheduling.departure_plan import next_departure_where_kueue_admits
from evenkeel.domain.sources import Source, SourceKind
from evenkeel.domain.timeline import TimelineEntry
from evenkeel.ports import BurstChecks, Conflict, EvenkeelError, Key, NotFound, Put, Refused, get_all
from evenkeel.services.context import Context
from evenkeel.services.rentals import rental_store
from evenkeel.services.scheduling import commit_stops, load_cycle
from evenkeel.services.scheduling.loaded_cycle import LoadedCycle
from evenkeel.services.storage import batches, heartbeats
from evenkeel.services.storage.decision_record import decision_of
from evenkeel.services.storage.quota_tree import QuotaTree
from evenkeel.services.tables import job_rows, rows, subject_rows

WRITER = "schedule_jobs"


class _JobOfCheck(NamedTuple):
    """A Workload that waits, with the job that it belongs to."""

    workload: CheckedWorkload
    job: Job | None


def run(loaded_cycle: LoadedCycle, results: heartbeats.SourceResults, context: Context) -> None:
    """Answer every Workload that waits for the check. In any mode but `act`, nothing is written.

    Idempotent: yes. An answer is written once, and only to the version of the Workload that was read. A conditional
    commit begins each rental.

    Args:
        loaded_cycle: The rows that the cycle read.
        results: Collects what could not be read.
        context: Ports, policy, mode and time.
    """
    snapshot = loaded_cycle.snapshot
    if snapshot.authority is not AdmissionAuthority.KUEUE or snapshot.automation_hold_reason:
        return
    checks = _read_checks(results, context)
    if context.mode is Mode.ACT:
        for cluster, name in (
            (cluster, name) for cluster, burst_checks in checks.items() for name in burst_checks.inactive
        ):
            _mark_active(cluster, name, context)
    waiting_workloads = [
        workload for burst_checks in checks.values() for workload in burst_checks.workloads if workload.is_waiting
    ]
    if not waiting_workloads and not rental_store.load_allocations(context.ledger):
        return
    loaded_cycle = load_cycle.read_fleet(loaded_cycle, context)
    for name, error in loaded_cycle.errors.items():
        results.record_failure(Source(kind=SourceKind.KUBERNETES_LIST, target=name), error)
    attempts = loaded_cycle.snapshot.attempts
    uids = {attempt.job_id: attempt.workload_uid for attempt in attempts}
    charges = loaded_cycle.snapshot.live_charges
    names = {workload.job_name for workload in waiting_workloads}
    examined_job_ids = {charge.job_id for charge in charges if f"{charge.job_id}-a{charge.attempt}" in names}
    examined_job_ids |= loaded_cycle.snapshot.rental_book.rental_by_holder.keys() & {
        charge.job_id for charge in charges
    }
    examined_job_ids |= {charge.job_id for charge in charges if charge.attempt > 1}  # for the forecast of their ends
    missing_facts = MissingFacts(
        jobs=tuple(charge.job_id for charge in charges),
        attempts_of=tuple(sorted(examined_job_ids)),
        needs_shortages=True,
        needs_past_jobs=True,
    )
    loaded_cycle = load_cycle.read_missing(loaded_cycle, missing_facts, context)
    tree = QuotaTree(loaded_cycle.tree, loaded_cycle.snapshot.scheduler_state)
    readable = (
        workload for workload in waiting_workloads if workload.cluster not in loaded_cycle.snapshot.unreadable_clusters
    )
    checked_jobs = [_JobOfCheck(workload, job_of_check(workload, loaded_cycle.snapshot, uids)) for workload in readable]
    of_other_attempts = _of_other_attempts([workload for workload, job in checked_jobs if job is None], context)
    checked_jobs_to_answer = [
        checked_job for checked_job in checked_jobs if checked_job.workload not in of_other_attempts
    ]
    _answer_each(sorted(checked_jobs_to_answer, key=_order), loaded_cycle, tree, results, context)
    _move_back(attempts, loaded_cycle, tree, context)


def _of_other_attempts(workloads: Sequence[CheckedWorkload], context: Context) -> list[CheckedWorkload]:
    """Return the Workloads of attempts that the cycle has not read: they have just started, or have ended.

    An answer for an unknown job would take their quota for half an hour, or make them inactive for good. The Workload
    of an ended attempt goes with its Job.

    Args:
        workloads: Workloads without a job in the snapshot.
        context: Gives the ledger, which is read again.
    """
    keys: dict[str, Key] = {}
    for workload in workloads:
        job_id, _, number = workload.job_name.rpartition("-a")
        if job_id and number.isascii() and number.isdigit():
            keys[workload.job_name] = job_rows.attempt_key(job_id, int(number))
    stored_rows = get_all(context.ledger, keys.values())
    attempts = {row.key: attempt for row, attempt in rows.readable_rows(stored_rows.values(), Attempt)}
    return [
        workload
        for workload in workloads
        if (key := keys.get(workload.job_name))
        and (attempt := attempts.get(key))
        and (attempt.cluster, attempt.namespace) == (workload.cluster, workload.namespace)
        and attempt.workload_uid in ("", workload.job_uid)
    ]


def _move_back(attempts: Sequence[Attempt], loaded_cycle: LoadedCycle, tree: QuotaTree, context: Context) -> None:
    """Ask a job to leave its rented nodes, if committed nodes are free for it or its temporary capacity is due."""
    if context.mode is not Mode.ACT:
        return
    departure = next_departure_where_kueue_admits(loaded_cycle.snapshot, attempts, context.policy, context.now)
    if departure is None:
        return
    try:
        commit_stops.request_departure(departure, loaded_cycle, tree, context)
    except Conflict as error:  # the next cycle decides again
        context.telemetry.info("MigrationChanged", job_id=departure.job_id, detail=str(error))


def _order(checked_job: _JobOfCheck) -> tuple[int, str, str]:
    """Return the order in which rentals are started: the priority of the job, then its age."""
    job = checked_job.job
    return (-job.priority, job.submitted_at.isoformat(), job.job_id) if job else (0, "", checked_job.workload.label)


def _read_checks(results: heartbeats.SourceResults, context: Context) -> dict[str, BurstChecks]:
    """Read the checks of each cluster. A cluster that cannot be read is left out."""
    checks = {}
    for cluster in context.site.clusters:
        try:
            checks[cluster] = context.cluster.burst_checks(cluster)
        except EvenkeelError as error:
            results.record_failure(Source(kind=SourceKind.KUEUE, target=cluster), error)
            context.telemetry.warning("BurstChecksNotRead", cluster=cluster, error=str(error))
    return checks


def _mark_active(cluster: str, name: str, context: Context) -> None:
    try:
        context.cluster.mark_check_active(cluster, name, context.now)
    except EvenkeelError as error:  # the next cycle tries again
        context.telemetry.warning("BurstCheckNotMarkedActive", cluster=cluster, check=name, error=str(error))


def _answer_each(
    checked_jobs: Sequence[_JobOfCheck],
    loaded_cycle: LoadedCycle,
    tree: QuotaTree,
    results: heartbeats.SourceResults,
    context: Context,
) -> None:
    policy = context.policy
    admission_input = AdmissionInput(setup=loaded_cycle.snapshot.setup, charges=loaded_cycle.snapshot.live_charges)
    placement_context = rent_plan.placement_context(loaded_cycle.snapshot, admission_input, policy, context.now)
    placement_context = placement_context._replace(queue=tuple(job for _, job in checked_jobs if job))
    ran = run_seconds(loaded_cycle.snapshot.attempts)
    begun = 0
    for workload, job in checked_jobs:
        mode = job.launch_mode(context.mode, job.current_attempt) if job else context.mode
        if mode is not Mode.ACT:
            continue
        rental = _usable_rental(job, placement_context) if job else None
        facts = burst_check_facts(
            workload, job, rental, placement_context, policy, ran.get(job.job_id, 0.0) if job else 0.0
        )
        if begun >= policy.burst.rentals_per_cycle:
            facts = facts.replace(why_not_now="Evenkeel rents nodes for the job in one of the next scheduling cycles.")
        decision = decide_burst_check(facts)
        placement = begins_rental(decision)
        if workload.has_answer(decision.answer) and placement is None:
            continue
        try:
            if rental is not None and decision.action is BurstCheckAction.ADMIT:
                _check_still_ready(rental, context)
            if job is not None:
                stored_job, version = loaded_cycle.stored(job.job_id)
                if placement is not None:
                    opening = rental_store.open_for_job(stored_job, placement, context.replace(mode=Mode.ACT))
                    rental_store.commit_opening(opening, Put(job_rows.job_row(opening.job, version)), tree, context)
                    begun += 1
                    placement_context = placement_context._replace(
                        rented=placement_context.rented.with_planned([placement], policy.burst.pools)
                    )
                    stored_job, version = opening.job, version + 1
                _record(decision, stored_job, version, context)
            context.cluster.answer_check(workload, decision.answer, context.now)
        except (Conflict, NotFound) as error:
            # The job, the tree or the Workload changed since it was read. The next cycle decides again.
            context.telemetry.info("BurstCheckChanged", workload=workload.label, detail=str(error))
            continue
        except Refused as error:
            batches.note_refusal(context.telemetry, workload.label, error)
            continue
        except EvenkeelError as error:
            results.record_failure(Source(kind=SourceKind.KUEUE, target=workload.cluster), error)
            context.telemetry.warning("BurstCheckNotAnswered", workload=workload.label, error=str(error))
            continue
        context.telemetry.info(
            "BurstCheckAnswered", workload=workload.label, state=decision.answer.state, reason=decision.reason
        )


def _usable_rental(job: Job, placement_context: PlacementContext) -> Rental | None:
    """Return the rental of a job; None if it has none, or if one of its nodes is out of service.

    The workflow of a rental that lost a node ends it. Until then the job waits.
    """
    rental = placement_context.rented.rental_by_holder.get(job.job_id)
    if rental is None or rental.state is not RentalState.READY:
        return rental
    open_nodes = {capacity.node_name for capacity in placement_context.capacities if capacity.is_open}
    lost_node_names = [name for name in rental.node_names if name not in open_nodes]
    if not lost_node_names:
        return rental
    return rental.replace(state=RentalState.OPENING, reason=f"{lost_node_names[0]} of the rental is out of service.")


def _check_still_ready(rental: Rental, context: Context) -> None:
    """Read a rental again before its check becomes Ready: Kueue would admit the job onto nodes that are released.

    Raises:
        Conflict: the rental was released since it was read.
    """
    stored_rental = rows.load(
        context.ledger, job_rows.rental_key(rental.job_id, rental.number), Rental, f"rental {rental.name}"
    )
    if stored_rental.state is not RentalState.READY:
        raise Conflict(f"rental {rental.name} is {stored_rental.state}")


def _record(decision: BurstCheckDecision, job: Job, version: int, context: Context) -> None:
    """Record a decision about a job, with its entry in the timeline, once for as long as the answer stays the same.

    Idempotent: yes, the commit is conditional on the version of the job's row, which names the last record.
    """
    if job.placement is not None and job.placement.key == decision.note_key:
        return
    decision_record = decision_of("BURST_CHECK", job.job_id, decision.action, decision, decision.facts, context)
    text = f"Kueue asks for nodes: {decision.answer.state}. {decision.reason}"
    entry = TimelineEntry(
        at=context.now, kind="burst check", text=text, decision_id=decision_record.decision_id, writer=WRITER
    )
    note = PlacementNote(key=decision.note_key, text=decision.reason, decision_id=decision_record.decision_id)
    if decision.action is BurstCheckAction.RESIZE:
        answer = ask_for_size(decision.facts.workload.pods, decision.facts.next_size, decision.reason)
        job = stopped_for_a_size(job, answer, WRITER, context.now)
    context.ledger.commit(
        Put(job_rows.job_row(job.replace(placement=note), version)),
        Put(subject_rows.decision_row(decision_record)),
        Put(subject_rows.timeline_row(job.job_id, entry, f"burst-check-{decision_record.decision_id}")),
    )
