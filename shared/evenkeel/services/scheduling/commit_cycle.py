"""Commit step of a scheduling cycle: write its plan, in commits that depend on the version of the quota tree.

    1  admissions                                      commit_admissions
    2  rentals for Deployments                         services/rentals
    3  for each waiting job: preemption, rental,       commit_stops, services/rentals,
       displacement or the reason why it waits         pending_reasons
    4  size changes                                    resize_jobs
    5  rented nodes that join running jobs             services/rentals
    6  stops: departures, reservations, queues         commit_stops

Each commit that changes quota also writes the next version of the tree, so it fails if another cycle changed the tree
in between. Admissions come first, because the other decisions depend on them.
"""

from collections.abc import Callable

from evenkeel.domain.decisions import PACKED_FROM_IF_MANY, packed
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.scheduling.cycle_plan import (
    AdmissionStep,
    CyclePlan,
    DisplacementStep,
    PendingStep,
    PreemptionStep,
    RentStep,
)
from evenkeel.domain.scheduling.queue_cursors import QueueCursors
from evenkeel.ports import Conflict, Put, Refused, Row, TransientError
from evenkeel.services.context import Context
from evenkeel.services.rentals import rental_store
from evenkeel.services.scheduling import commit_admissions, commit_stops, pending_job_changes, resize_jobs
from evenkeel.services.scheduling.loaded_cycle import LoadedCycle
from evenkeel.services.scheduling.pending_reasons import PendingReasons
from evenkeel.services.storage.quota_tree import QuotaTree


def run(
    plan: CyclePlan, loaded_cycle: LoadedCycle, on_admitted: Callable[[str], None], context: Context
) -> frozenset[str]:
    """Commit a plan, and call `on_admitted` after each admission.

    Idempotent: yes, every commit is conditional on the versions that the cycle read.

    Args:
        plan: A complete plan.
        loaded_cycle: The snapshot of the cycle, with rows and versions.
        on_admitted: Receives the name of the workflow of each admitted attempt, right after the commit of the attempt.
            So the caller knows them even if a later commit fails.
        context: Ports, policy, mode and time.

    Returns:
        Jobs whose admission the ledger refused. If there are any, the cycle committed only the other admissions.

    Raises:
        Conflict: another writer was first.
    """
    tree = QuotaTree(loaded_cycle.tree, plan.scheduler_state)
    refused_jobs = commit_admissions.run(plan.admissions, loaded_cycle, tree, on_admitted, context)
    if refused_jobs:
        return refused_jobs
    rental_store.begin_for_deployments(plan.serving_rentals, tree, context)
    reasons = PendingReasons(context)
    for step in plan.steps:
        match step:
            case PreemptionStep():
                commit_stops.request_preemption(step, loaded_cycle, tree, context)
            case RentStep():
                _begin_rental(step, loaded_cycle, tree, context)
            case DisplacementStep():
                commit_stops.request_displacement(step, loaded_cycle, tree, context)
            case PendingStep():
                reasons.add(step, loaded_cycle)
            case AdmissionStep():
                pass  # committed above
    reasons.commit()
    resize_jobs.carry_out(plan, loaded_cycle, tree, context)
    rental_store.begin_for_bases(
        [(step.decision, *loaded_cycle.stored(step.job_id)) for step in plan.mixed_steps], tree, context
    )
    if plan.departure is not None:
        commit_stops.request_departure(plan.departure, loaded_cycle, tree, context)
    if plan.serving_return is not None:
        rental_store.return_replicas_to_committed(plan.serving_return, tree, context)
    commit_stops.request_reservation_stops(plan, loaded_cycle, tree, context)
    commit_stops.request_queue_stops(plan, loaded_cycle, tree, context)
    return frozenset()


def _begin_rental(step: RentStep, loaded_cycle: LoadedCycle, tree: QuotaTree, context: Context) -> None:
    """Begin a rental for a job, unless the ledger refuses it."""
    job, version = loaded_cycle.stored(step.decision.job_id)
    job = pending_job_changes.with_current_queue(job, loaded_cycle.snapshot.setup)
    # The step exists only if the job may act, even if the stack only recommends.
    try:
        rental_store.begin_for_job(job, version, step.placement, tree, context.replace(mode=Mode.ACT))
    except Refused as refusal:
        pending_job_changes.defer_after_refusal(job.job_id, refusal, context)


def store_cursors(cursors: QueueCursors, row: Row, context: Context) -> None:
    """Store the cursors of the next cycle. Idempotent: yes; if another cycle was first, its cursors stay."""
    barriers = {"barriers": [list(barrier) for barrier in cursors.barriers]} if cursors.barriers else {}
    stored_doc = row.doc or {"cursors": {}}
    other_fields = {name: value for name, value in stored_doc.items() if name not in ("barriers", "turn")}
    turn = {"turn": cursors.last_queue} if cursors.last_queue is not None else {}
    doc = {**other_fields, "cursors": dict(cursors.page_starts), **turn, **barriers}
    if stored_doc != doc:
        _store_for_next_cycle(Row(row.key, doc, row.version), context)


def store_heads(plan: CyclePlan, loaded_cycle: LoadedCycle, context: Context) -> None:
    """Store the heads of many queues for the next cycle. Idempotent: yes; if another cycle was first, its heads stay.

    A head whose jobs left the queue, or that another job may have joined, is read again by the next cycle.
    """
    if loaded_cycle.heads is None:
        return
    heads, row, _ = loaded_cycle.heads
    pending, setup = loaded_cycle.snapshot.pending, loaded_cycle.snapshot.setup
    admitted_job_ids = {step.decision.job_id for step in plan.admissions}
    gone_job_ids = {job_id for head in heads.by_team.values() for job_id in head.jobs if job_id not in pending}
    changed_teams = {
        job.spec.team for job in pending.values() if job.queue != job.spec.team and job.spec.team in setup.by_name
    }
    doc = packed(
        heads.without_jobs(gone_job_ids | admitted_job_ids).outdated(changed_teams).to_json(), PACKED_FROM_IF_MANY
    )
    _store_for_next_cycle(Row(row.key, doc, row.version), context)


def _store_for_next_cycle(row: Row, context: Context) -> None:
    """Store a row that only helps the next cycle. A failure fails nothing, because the decisions are committed."""
    try:
        context.ledger.commit(Put(row))
    except Conflict:
        pass  # another cycle was first
    except TransientError as error:
        context.telemetry.warning("CycleRowNotStored", row=row.key.sk, error=str(error))
