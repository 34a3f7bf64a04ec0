"""The decision about a job that is not submitted, as if it were submitted now."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from evenkeel.domain.admission import build_request
from evenkeel.domain.admission.admission_input import AdmissionInput
from evenkeel.domain.admission.admission_request import AdmissionRequest
from evenkeel.domain.admission.authority import AdmissionAuthority
from evenkeel.domain.admission.decide_job import AdmissionAction, AdmissionDecision, delegate_to_kueue
from evenkeel.domain.admission.scheduler_state import SchedulerState
from evenkeel.domain.admission.start_size import decide_with_sizes
from evenkeel.domain.capacity.node_capacity import NodeCapacity
from evenkeel.domain.capacity.pod_shares import NodeShares
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.jobs.spec import JobSpec
from evenkeel.domain.kueue.preemption import reason_text
from evenkeel.domain.plurals import count_of
from evenkeel.domain.quotas.budgets import remaining_by_team
from evenkeel.domain.quotas.teams import TeamSetup
from evenkeel.domain.renting.rental_book import reserve_rented_nodes
from evenkeel.ports import Key, Ledger, Table
from evenkeel.services.context import Context
from evenkeel.services.jobs import check_role, submit_job
from evenkeel.services.queries.jobs import plan_placement, read_queue
from evenkeel.services.rentals import rental_store
from evenkeel.services.scheduling import read_usage
from evenkeel.services.storage import charge_rows, team_setup
from evenkeel.services.storage.quota_tree import stored_state
from evenkeel.services.storage.training_plan_ends import with_training_plan_ends
from evenkeel.services.tables import job_rows, quota_rows, rows

Json = dict[str, Any]

_PLANNED_JOB_ID = "job-planned"


def run(spec: JobSpec, requester: check_role.Requester, context: Context) -> Json:
    """Decide about a job as if it were submitted now. Records nothing.

    The nodes come from the last sweep, usually a minute ago; quotas are read now.

    Raises:
        Invalid: the job is impossible, or its team does not allow it; names each field.
        NotYourTeam: the caller may not submit for its team.
    """
    setup = team_setup.load_setup(context.ledger).setup
    job = submit_job.checked_job(spec, requester, setup, context, job_id=_PLANNED_JOB_ID)
    if context.site.admission is AdmissionAuthority.KUEUE:
        planned_decision = delegate_to_kueue(AdmissionRequest.of(job), setup.local_queue_of(job.spec.team), context.now)
        # Kueue decides where the job starts, so Evenkeel compares no pools.
        return _plan_document(job, position=1, decision=planned_decision, placement=None)
    submit_job.check_not_in_kueue_namespace(job, context.ledger)
    submit_job.check_fits_fleet(job, setup, context)
    context = with_training_plan_ends(context)
    cycle = preview_cycle(job, setup, context)
    placement = (
        plan_placement.compare_pools(
            job, cycle.decision, cycle.capacities, cycle.charges, cycle.ahead, cycle.budgets_left, context
        )
        if cycle.capacities
        else None
    )
    position = sum(other.queue == job.queue for other in cycle.ahead) + 1
    return _plan_document(job, position=position, decision=cycle.decision, placement=placement)


class CyclePreview(NamedTuple):
    """The decision of the next scheduling cycle about one job, and the facts of that decision."""

    decision: AdmissionDecision
    capacities: tuple[NodeCapacity, ...]
    charges: tuple[Charge, ...]
    ahead: tuple[Job, ...]
    """Pending jobs before it."""
    budgets_left: Mapping[str, int]


def preview_cycle(job: Job, setup: TeamSetup, context: Context) -> CyclePreview:
    """Decide as the next scheduling cycle would if the job were pending as given. Records nothing.

    The policy of `context` has the ends of training plans.
    """
    charges, unreadable_count = charge_rows.readable_charges(context.ledger)
    # Rented nodes stay reserved for their jobs.
    stored_capacities = read_queue.stored_node_capacity(context.ledger, charges)
    capacities = build_request.with_reservation_ends(
        reserve_rented_nodes(stored_capacities, (), context.policy.burst.pools), context.policy
    )
    heads = _queue_heads(context.ledger, setup, context.policy.scheduling.jobs_per_page)
    jobs = [other for other in heads if other.job_id != job.job_id]
    shares = NodeShares(capacities, context.policy.burst.pools)
    requests = tuple(
        build_request.build_request(other, shares, context.policy, context.now, may_backfill=not setup.has_teams)
        for other in (*jobs, job)
    )
    scheduler_state = _scheduler_state(setup, context.ledger)
    own_setup = setup.replace(teams=tuple(team for team in setup.teams if team.name == job.spec.team and team.budgets))
    unreadable_rentals: set[Key] = set()
    open_rentals = rental_store.load_readable(context.ledger, unreadable_rentals).rentals
    spent = rental_store.spent_by_period(own_setup, context, open_rentals)
    budget_left = remaining_by_team(own_setup, spent, charges, open_rentals, context.policy.economy, context.now)
    admission_input = AdmissionInput(
        capacities=capacities,
        pending=requests,
        setup=setup,
        charges=charges,
        stopping=frozenset(scheduler_state.stopping) & {charge.job_id for charge in charges},
        scheduler_state=scheduler_state,
        spent=spent,
        used=read_usage.run(setup, context),
    )
    decisions = decide_with_sizes(admission_input, context.policy, context.now)
    decision = next(decision for decision in decisions if decision.job_id == job.job_id)
    if not capacities:
        unread = "No sweep has read the fleet yet, so Evenkeel does not know where the job could start."
        decision = decision.replace_unchecked(action=AdmissionAction.WAIT, reason=unread, alternatives=())
    if unreadable_count:
        unread = f"{count_of(unreadable_count, 'charge')} cannot be read, so the free quota is unknown. No job starts."
        decision = decision.replace_unchecked(action=AdmissionAction.WAIT, reason=unread, alternatives=())
    if unreadable_rentals:
        rentals = count_of(len(unreadable_rentals), "open rental")
        unread = f"{rentals} cannot be read, so scheduling cycles fail. No job starts."
        decision = decision.replace_unchecked(action=AdmissionAction.WAIT, reason=unread, alternatives=())
    ahead = sorted(
        (other for other in jobs if job_rows.queue_order(other) < job_rows.queue_order(job)), key=job_rows.queue_order
    )
    return CyclePreview(decision, capacities, charges, tuple(ahead), budget_left)


def _scheduler_state(setup: TeamSetup, ledger: Ledger) -> SchedulerState:
    key = quota_rows.tree_key()
    tree = ledger.partition(key.table, key.pk, key.sk) if setup.has_teams else ()
    return stored_state(tree[0] if tree else None)


def _plan_document(job: Job, *, position: int, decision: AdmissionDecision, placement: Json | None) -> Json:
    return {
        "team": job.spec.team,
        "jobType": job.spec.job_type or None,
        "namespace": job.namespace,
        "position": position,
        "decision": decision_document(decision),
        "placement": placement,
    }


def decision_document(decision: AdmissionDecision) -> Json:
    """Return a decision of a scheduling cycle as the API shows it."""
    return {
        "action": decision.action,
        "reason": decision.reason,
        "pool": decision.pool or None,
        "instanceType": decision.instance_type or None,
        "nodes": list(decision.node_names),
        "quota": decision.use,
        "victims": [victim.to_json() | {"says": reason_text(victim.reason)} for victim in decision.victims],
        "considered": [
            {"option": alternative.option, "whyNot": alternative.why_not or None}
            for alternative in decision.alternatives
        ],
    }


def _queue_heads(ledger: Ledger, setup: TeamSetup, heads: int) -> list[Job]:
    prefixes = [job_rows.queue_prefix(team) for team in setup.by_name] or [""]
    state = f"JOB#{JobState.PENDING}"
    pages = (ledger.by_state(Table.JOBS, state, prefix=prefix, limit=heads) for prefix in prefixes)
    return [job for page in pages for _, job in rows.readable_rows(page.rows, Job)]
