"""The queue position and expected start of a pending job, and the decision about a job that is not submitted."""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from evenkeel.domain.admission import request_facts
from evenkeel.domain.admission.admission_input import AdmissionInput
from evenkeel.domain.admission.authority import AdmissionAuthority
from evenkeel.domain.admission.decide_job import Action, AdmissionDecision, delegate_to_kueue
from evenkeel.domain.admission.request import AdmissionRequest
from evenkeel.domain.admission.scheduler_state import SchedulerState
from evenkeel.domain.admission.start_size import decide_with_sizes
from evenkeel.domain.capacity.node_capacity import NodeCapacity, stored_capacity
from evenkeel.domain.capacity.pod_shares import NodeShares
from evenkeel.domain.capacity.start_estimates import BASIS, estimate_start
from evenkeel.domain.jobs.charge import Charge, charged_resources
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.jobs.spec import JobSpec
from evenkeel.domain.kueue.capacity import Tree
from evenkeel.domain.kueue.preemption import reason_text
from evenkeel.domain.nodes import FleetNode
from evenkeel.domain.quotas.budgets import remaining_by_team
from evenkeel.domain.quotas.teams import TeamSetup
from evenkeel.domain.renting.book import reserve_rented_nodes
from evenkeel.domain.values import rfc3339
from evenkeel.domain.waiting import ConditionKind, Wait, WaitState, wait_name
from evenkeel.ports import Ledger, Row, Table
from evenkeel.services.context import Context
from evenkeel.services.incidents import unhealthy_nodes
from evenkeel.services.jobs import check_fit, check_role, submit_job
from evenkeel.services.queries import plan_placement, read_teams
from evenkeel.services.rentals import rentals
from evenkeel.services.scheduling import read_usage
from evenkeel.services.storage import (
    job_rows,
    pagination,
    past_runs,
    quota_rows,
    read_charges,
    rows,
    subject_rows,
    team_setup,
)
from evenkeel.services.storage.quota_tree import stored_state

Json = dict[str, Any]

_MAX_AHEAD = 1000
_MAX_NODES = 5000
_PLANNED = "job-planned"


# ---------------------------------------------------------------- where a job stands


def queue_position(job: Job, context: Context) -> Json | None:
    """Return a pending job's position in its queue, and the estimate of its start; None if it is not pending.

    The position is unknown beyond the first thousand. There is no estimate before enough jobs of its team have run.
    """
    if job.state is JobState.STARTING:
        return _position_with_kueue(job, context.ledger)
    if job.state is not JobState.PENDING:
        return None
    prefix = job_rows.queue_prefix(job.queue) if job.queue else ""
    page = context.ledger.by_state(Table.JOBS, f"JOB#{JobState.PENDING}", prefix=prefix, limit=_MAX_AHEAD)
    names = [str(row.doc["jobId"]) for row in page.rows]
    if job.job_id not in names:
        return {"position": None, "estimate": None}
    index = names.index(job.job_id)
    return {"position": index + 1, "estimate": _estimate_start(job, page.rows[:index], context)}


def waits_with_kueue(job: Job, ledger: Ledger) -> Wait | None:
    """Return the state of a job that waits for Kueue; None if it does not."""
    if job.state is not JobState.STARTING:
        return None
    row = ledger.get(subject_rows.wait_key(job.job_id, wait_name(ConditionKind.ATTEMPT_ADMITTED, job.current_attempt)))
    wait = rows.decode(row, Wait) if row else None
    return wait if wait and wait.state is WaitState.OPEN and wait.kueue_status else None


def _position_with_kueue(job: Job, ledger: Ledger) -> Json | None:
    """Return its position among the Workloads of its LocalQueue. Only Kueue could know when it starts."""
    wait = waits_with_kueue(job, ledger)
    return {"position": wait.kueue_position, "estimate": None} if wait else None


def _estimate_start(job: Job, ahead: Sequence[Any], context: Context) -> Json | None:
    runs = [run.seconds for run in past_runs.load(context.ledger) if run.team == job.spec.team]
    if len(runs) < context.policy.economy.min_samples:
        return None
    setup, charges = team_setup.load(context.ledger).setup, read_charges.held(context.ledger)
    if check_fit.why_never(job, check_fit.read_fleet(job.cluster, context.ledger), setup, context.policy, context.now):
        return None
    capacities = reserve_rented_nodes(_node_capacity(context.ledger, charges), (), context.policy.burst.pools)
    free = sum(capacity.free.accelerators for capacity in capacities if capacity.is_open and not capacity.reserved_for)
    if job.queue in setup.by_name:
        free = min(free, _free_quota(job.queue, setup, charges))
        charges = tuple(charge for charge in charges if (charge.queue or charge.team) == job.queue)
    estimate = estimate_start(
        free,
        [
            (charge.accelerators, (context.now - (charge.admitted_at or context.now)).total_seconds())
            for charge in charges
        ],
        [_accelerators(row.doc["spec"]) for row in ahead],
        job.spec.nodes * job.spec.accelerators_per_node,
        runs,
    )

    def at(seconds: float | None) -> str | None:
        return None if seconds is None else rfc3339(context.now + timedelta(seconds=seconds))

    return {
        "startsAt": at(estimate.seconds),
        "earliestAt": at(estimate.earliest_seconds),
        "latestAt": at(estimate.latest_seconds),
        "samples": estimate.samples,
        "basis": BASIS,
    }


def _accelerators(spec: Json) -> int:
    return int(spec["nodes"]) * int(spec["acceleratorsPerNode"])


def _free_quota(queue: str, setup: TeamSetup, charges: Iterable[Charge]) -> int:
    quota_tree = setup.scheduler_declarations
    tree = Tree(quota_tree.queues, quota_tree.cohorts)
    for name, amounts in read_teams.use_by_team(setup, charges).items():
        tree.queues[name].add_all(amounts)
    quota_node = tree.queues[queue]
    return sum(quota_node.free(key) for key in quota_node.quotas if read_teams.is_accelerator(key[1]))


# ---------------------------------------------------------------- what would be decided


def plan(spec: JobSpec, requester: check_role.Requester, context: Context) -> Json:
    """Decide about a job as if it were submitted now. Records nothing.

    The nodes come from the last sweep, usually a minute ago; quotas are read now.

    Raises:
        Invalid: the job is impossible, or its team does not allow it; names each field.
        NotYourTeam: the caller may not submit for its team.
    """
    setup = team_setup.load(context.ledger).setup
    job = submit_job.checked_job(spec, requester, setup, context, job_id=_PLANNED)
    if context.site.admission is AdmissionAuthority.KUEUE:
        planned_decision = delegate_to_kueue(AdmissionRequest.of(job), setup.local_queue_of(job.spec.team), context.now)
        # Kueue decides where the job starts, so Evenkeel compares no pools.
        return _plan_document(job, position=1, decision=planned_decision, placement=None)
    submit_job.check_not_in_kueue_namespace(job, context.ledger)
    submit_job.check_fits_fleet(job, setup, context)
    charges = read_charges.held(context.ledger)
    # Rented nodes stay reserved for their jobs.
    capacities = request_facts.with_reservation_ends(
        reserve_rented_nodes(_node_capacity(context.ledger, charges), (), context.policy.burst.pools), context.policy
    )
    jobs = _queue_heads(context.ledger, setup, context.policy.scheduling.jobs_per_page)
    shares = NodeShares(capacities, context.policy.burst.pools)
    pending = tuple(
        request_facts.admission_request(other, shares, context.policy, context.now) for other in (*jobs, job)
    )
    scheduler_state = _scheduler_state(setup, context.ledger)
    own = setup.replace(teams=tuple(team for team in setup.teams if team.name == job.spec.team and team.budgets))
    rented = rentals.load(context.ledger).rentals if own.teams else ()
    spent = rentals.spent_by_period(own, context, rented)
    left = remaining_by_team(own, spent, charges, rented, context.policy.economy, context.now)
    queue = AdmissionInput(
        capacities=capacities,
        pending=pending,
        setup=setup,
        charges=tuple(charges),
        stopping=frozenset(scheduler_state.stopping) & {charge.job_id for charge in charges},
        scheduler_state=scheduler_state,
        spent=spent,
        used=read_usage.run(setup, context),
    )
    decisions = decide_with_sizes(queue, context.policy, context.now)
    planned_decision = next(decision for decision in decisions if decision.job_id == _PLANNED)
    if not capacities:
        unread = "No sweep has read the fleet yet, so Evenkeel does not know where the job could start."
        planned_decision = planned_decision.replace_unchecked(action=Action.WAIT, reason=unread, alternatives=())
    ahead = sorted(
        (other for other in jobs if job_rows.queue_order(other) < job_rows.queue_order(job)), key=job_rows.queue_order
    )
    position = sum(other.queue == job.queue for other in ahead) + 1
    placement = (
        plan_placement.run(job, planned_decision, capacities, charges, ahead, left, context) if capacities else None
    )
    return _plan_document(job, position=position, decision=planned_decision, placement=placement)


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
        "decision": _decision_document(decision),
        "placement": placement,
    }


def _decision_document(decision: AdmissionDecision) -> Json:
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
    return [job for page in pages for _, job in rows.readable(page.rows, Job)]


def _node_capacity(ledger: Ledger, charges: Iterable[Charge]) -> tuple[NodeCapacity, ...]:
    """Return the capacity of the nodes as the last sweep stored them. Charges count before their pods exist."""
    node_rows, _ = pagination.everything(ledger, Table.FLEET, "NODE", at_most=_MAX_NODES, keep=is_present)
    nodes = [node for _, node in rows.readable(node_rows, FleetNode)]
    left = unhealthy_nodes.load(ledger)
    unhealthy = {(node.life.cluster, node.node_name) for node in nodes if unhealthy_nodes.is_unhealthy_node(node, left)}
    return stored_capacity(nodes, charged_resources(charges), unhealthy)


def is_present(row: Row) -> bool:
    """Whether a node that is stored in a row is not gone."""
    return not row.doc.get("isGone")
