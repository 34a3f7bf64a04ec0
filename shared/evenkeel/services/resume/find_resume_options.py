"""Resume options of an interrupted job beyond free nodes: rent nodes, or preempt other jobs.

    the job as it will wait ── its charge released, its nodes free, the faulty one out ─▶ admission rules ─▶ options

Nothing is requested here. A scheduling cycle rents and preempts for the chosen option, by the same rules.

`load_cycle` of a scheduling cycle does not load these facts. It reads all clusters and the fleet as it is now, in order
to commit. A recovery needs the fleet as it will be once the interrupted attempt has ended, and nothing to commit. Its
caller has read the nodes and pods already, only of the clusters where the job may run. In a storm, a read of all
clusters for each interrupted job could throttle the calls of all recoveries.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from evenkeel.domain.admission import build_request
from evenkeel.domain.admission.admission_input import AdmissionInput
from evenkeel.domain.admission.decide_job import AdmissionAction, AdmissionDecision
from evenkeel.domain.admission.start_size import decide_with_sizes
from evenkeel.domain.capacity.node_capacity import NodeCapacity, node_capacity, resources_not_free
from evenkeel.domain.capacity.pod_shares import NodeShares
from evenkeel.domain.capacity.run_times import run_times_of
from evenkeel.domain.jobs.attempt import Attempt, run_seconds
from evenkeel.domain.jobs.charge import Charge, charged_resources
from evenkeel.domain.jobs.job import Job, JobState, ResumeOption, ResumePlan
from evenkeel.domain.nodes import KubernetesNode, Node, NodeLife
from evenkeel.domain.policy import Policy
from evenkeel.domain.quotas.budgets import remaining_by_team
from evenkeel.domain.quotas.teams import TeamSetup
from evenkeel.domain.recovery.resume_options import OptionCost, PreemptionCandidate, RentOption, charge_lost_work
from evenkeel.domain.renting.candidates import PlacementContext, nodes_to_rent, placement_facts, runs_so_far
from evenkeel.domain.renting.placement import PlacementAction, cheapest_rental_in_time, choose_pool
from evenkeel.domain.renting.rental import RentalState
from evenkeel.domain.renting.rental_book import RentalBook
from evenkeel.domain.resources import NONE, Resources
from evenkeel.domain.scheduling.rent_plan import why_rental_would_not_help
from evenkeel.ports import Table, get_all
from evenkeel.services.context import Context
from evenkeel.services.rentals import rental_store
from evenkeel.services.scheduling import read_usage
from evenkeel.services.storage import charge_rows, past_jobs, team_setup
from evenkeel.services.storage.quota_tree import stored_state
from evenkeel.services.storage.training_plan_ends import with_training_plan_ends
from evenkeel.services.tables import job_rows, quota_rows, rows

_KUEUE = "Kueue admits jobs here, so Evenkeel neither rents nodes nor preempts"


class ResumeOptions(NamedTuple):
    """The available options, and the reason against each other option."""

    renting: RentOption | None = None
    preemption_victims: tuple[PreemptionCandidate, ...] = ()
    unavailable: tuple[OptionCost, ...] = ()


class InterruptedJob(NamedTuple):
    """The interrupted job."""

    job: Job
    attempt: Attempt
    """Its attempt. The attempt has ended, or will end soon."""
    faulty_node: str
    """Name of the faulty node; empty if every node is healthy again."""
    avoid: tuple[str, ...]
    """Keys of node lives that the job must not use again."""
    wait_seconds: float
    """Until committed nodes are expected for it."""
    is_faulty_node_committed: bool


def run(
    interrupted_job: InterruptedJob, nodes: Iterable[KubernetesNode], in_use: Mapping[str, Resources], context: Context
) -> ResumeOptions:
    """Apply the admission rules to find the effect of renting or preempting for an interrupted job.

    Args:
        interrupted_job: The job, its interrupted attempt, and the faulty node.
        nodes: Nodes of the cluster in which it ran, and of its own cluster.
        in_use: Amounts that live pods request there, by node.
        context: The context.
    """
    if interrupted_job.job.local_queue:
        return ResumeOptions(
            unavailable=(_unavailable(ResumeOption.PREEMPT, _KUEUE), _unavailable(ResumeOption.RENT, _KUEUE))
        )
    setup = team_setup.load_setup(context.ledger).setup
    if not setup.has_teams and not context.policy.burst.pools:
        return ResumeOptions(
            unavailable=(
                _unavailable(ResumeOption.PREEMPT, _NO_TEAMS),
                _unavailable(ResumeOption.RENT, _NO_POOLS),
            )
        )
    context = with_training_plan_ends(context)
    fleet = _load_fleet(interrupted_job, nodes, in_use, setup, context)
    preemption_victims, no_preemption = _find_preemption_victims(interrupted_job, fleet, context.policy, context.now)
    rent_option, why_no_rental = _find_rental(interrupted_job, fleet, context)
    return ResumeOptions(
        rent_option, preemption_victims, tuple(option for option in (no_preemption, why_no_rental) if option)
    )


_NO_TEAMS = "not available here: no teams are set up, so there is no preemption"
_NO_POOLS = "not available here: the policy names no pool to rent from"
_NO_PRICE = "the policy sets no price on the delay of its class"


def _unavailable(option: ResumeOption, why_not: str) -> OptionCost:
    return OptionCost(option=option, why_not=why_not.rstrip("."))


# ---------------------------------------------------------------- load


class _Fleet(NamedTuple):
    """The fleet after the interrupted attempt has freed its nodes."""

    admission_input: AdmissionInput
    """The input of the admission rules, without the interrupted attempt's charge and without pending requests."""
    jobs_with_charge: Mapping[str, Job]
    """Jobs that hold a charge, by id."""
    waiting: tuple[Job, ...]
    """The other pending jobs."""
    rented: RentalBook


def _decide_as_cycle(
    jobs: Iterable[Job], admission_input: AdmissionInput, policy: Policy, now: datetime
) -> tuple[AdmissionDecision, ...]:
    """Decide about these pending jobs as a scheduling cycle does."""
    shares = NodeShares(admission_input.capacities, policy.burst.pools)
    may_backfill = not admission_input.setup.has_teams
    requests = tuple(build_request.build_request(job, shares, policy, now, may_backfill=may_backfill) for job in jobs)
    return decide_with_sizes(admission_input._replace(pending=requests), policy, now)


def _load_fleet(
    interrupted_job: InterruptedJob,
    nodes: Iterable[KubernetesNode],
    in_use: Mapping[str, Resources],
    setup: TeamSetup,
    context: Context,
) -> _Fleet:
    tree = quota_rows.tree_key()
    all_charges = charge_rows.load_charges(context.ledger)
    live_charges = all_charges.live
    charges = tuple(charge for charge in live_charges if charge.job_id != interrupted_job.job.job_id)
    jobs = get_all(context.ledger, (job_rows.job_key(charge.job_id) for charge in charges)).values()
    jobs_with_charge = {job.job_id: job for _, job in rows.readable_rows(jobs, Job)}
    lost_work = (
        (
            charge,
            charge_lost_work(
                charge,
                jobs_with_charge.get(charge.job_id),
                context.policy.economy.expected_checkpoint_seconds,
                context.now,
            ),
        )
        for charge in charges
    )
    tree_row = context.ledger.get(tree)
    scheduler_state = stored_state(tree_row)
    rental_book = rental_store.load(context.ledger)
    spent = rental_store.spent_by_period(setup, context, rental_book.rentals)
    rental_book = _remaining_rentals(interrupted_job, rental_book)
    rental_book = rental_book._replace(
        budgets_left=remaining_by_team(
            setup, spent, live_charges, rental_book.rentals, context.policy.economy, context.now
        )
    )
    capacities = rental_book.reserve_nodes(
        _node_capacity(interrupted_job, nodes, in_use, charges, context.now),
        [interrupted_job.job],
        context.policy.burst.pools,
    )
    admission_input = AdmissionInput(
        capacities=build_request.with_reservation_ends(capacities, context.policy),
        setup=setup,
        charges=charges,
        stopping=frozenset(scheduler_state.stopping) & {charge.job_id for charge in charges},
        scheduler_state=scheduler_state,
        spent=spent,
        used=read_usage.run(setup, context),
        work_at_risk_by_job={charge.job_id: round(charge.accelerators * seconds) for charge, seconds in lost_work}
        if setup.fleet.switches.spares_work
        else {},
    )
    pending_jobs = _queue_heads(
        interrupted_job.job, setup, (*scheduler_state.sticky.values(), *all_charges.released_job_ids), context
    )
    return _Fleet(admission_input, jobs_with_charge, pending_jobs, rental_book)


def _remaining_rentals(interrupted_job: InterruptedJob, rental_book: RentalBook) -> RentalBook:
    """Return the rentals that remain after the fault. A rental that lost a node is returned as a whole."""
    return rental_book._replace(
        rentals=tuple(
            rental
            for rental in rental_book.rentals
            if (rental.job_id, interrupted_job.faulty_node in rental.node_names) != (interrupted_job.job.job_id, True)
        )
    )


def _node_capacity(
    interrupted_job: InterruptedJob,
    nodes: Iterable[KubernetesNode],
    in_use: Mapping[str, Resources],
    charges: Sequence[Charge],
    now: datetime,
) -> tuple[NodeCapacity, ...]:
    """Return the nodes as the job will find them. Launch times are placeholders, because no job is admitted here."""
    names, kubernetes_nodes = interrupted_job.attempt.node_names, tuple(nodes)
    resources = interrupted_job.attempt.per_node
    # The job's own pods may have ended already.
    others_in_use = {
        (node.cluster, node.name): in_use.get(node.name, NONE).minus(resources if node.name in names else NONE)
        for node in kubernetes_nodes
    }
    capacities = node_capacity(
        (Node(life=_placeholder_life(node, now), kubernetes=node) for node in kubernetes_nodes),
        resources_not_free(others_in_use, charged_resources(charges)),
    )
    return tuple(
        capacity.replace(unschedulable_reason="unhealthy", free=NONE)
        if capacity.node_name == interrupted_job.faulty_node
        else capacity
        for capacity in capacities
    )


def _placeholder_life(node: KubernetesNode, now: datetime) -> NodeLife:
    return NodeLife(cluster=node.cluster, instance_id=node.instance_id or node.name, launched_at=node.created_at or now)


def _queue_heads(job: Job, setup: TeamSetup, job_ids: Iterable[str], context: Context) -> tuple[Job, ...]:
    """Return the other pending jobs that a scheduling cycle considers in any case.

    These are the first page of each queue, and the jobs in `job_ids` at any position. Jobs in `job_ids` wait for their
    victims, or a released charge names them.
    """
    prefixes = [job_rows.queue_prefix(team) for team in setup.by_name] or [""]
    state, heads = f"JOB#{JobState.PENDING}", context.policy.scheduling.jobs_per_page
    pages = [context.ledger.by_state(Table.JOBS, state, prefix=prefix, limit=heads) for prefix in prefixes]
    rows_by_key = {row.key: row for page in pages for row in page.rows}
    behind = [key for key in map(job_rows.job_key, job_ids) if key not in rows_by_key]
    stored_rows = (*rows_by_key.values(), *get_all(context.ledger, behind).values())
    jobs = (other for _, other in rows.readable_rows(stored_rows, Job))
    return tuple(other for other in jobs if other.job_id != job.job_id and other.state is JobState.PENDING)


# ---------------------------------------------------------------- preemption victims


def _as_pending(interrupted_job: InterruptedJob, option: ResumeOption, now: datetime) -> Job:
    """Return the job as it waits once its interrupted attempt has ended, if it resumes in this way."""
    plan = ResumePlan(
        incident_id="",
        after_attempt=interrupted_job.job.current_attempt,
        option=option,
        avoid=interrupted_job.avoid,
        capacity_at=now + timedelta(seconds=interrupted_job.wait_seconds),
        is_faulty_node_committed=interrupted_job.is_faulty_node_committed,
        planned_at=now,
    )
    return interrupted_job.job.replace(state=JobState.PENDING, resume_plan=plan, not_before=None, resize=None)


def _find_preemption_victims(
    interrupted_job: InterruptedJob, fleet: _Fleet, policy: Policy, now: datetime
) -> tuple[tuple[PreemptionCandidate, ...], OptionCost | None]:
    if not fleet.admission_input.setup.has_teams:
        return (), _unavailable(ResumeOption.PREEMPT, _NO_TEAMS)
    job = _as_pending(interrupted_job, ResumeOption.PREEMPT, now)
    decisions = _decide_as_cycle((*fleet.waiting, job), fleet.admission_input, policy, now)
    admission_decision = next(decision for decision in decisions if decision.job_id == interrupted_job.job.job_id)
    if admission_decision.action is AdmissionAction.ADMIT:
        return (), _unavailable(ResumeOption.PREEMPT, f"no job must stop for it: {admission_decision.reason}")
    charges = {charge.job_id: charge for charge in fleet.admission_input.charges}
    victims = [
        (charges[victim.job_id], fleet.jobs_with_charge.get(victim.job_id)) for victim in admission_decision.victims
    ]
    if not victims:
        return (), _unavailable(ResumeOption.PREEMPT, f"no job may be preempted for it: {admission_decision.reason}")
    return tuple(_preemption_candidate(charge, job, policy, now) for charge, job in victims), None


def _preemption_candidate(charge: Charge, job: Job | None, policy: Policy, now: datetime) -> PreemptionCandidate:
    spec = job.spec if job else None
    return PreemptionCandidate(
        job_id=charge.job_id,
        team=charge.team,
        accelerators=charge.accelerators,
        save_seconds=spec.grace_seconds if spec else 0,
        lost_work_seconds=charge_lost_work(charge, job, policy.economy.expected_checkpoint_seconds, now),
        usd_per_hour_of_delay=policy.burst.usd_of_delay(spec.priority_class if spec else ""),
    )


# ---------------------------------------------------------------- rented nodes


def _find_rental(
    interrupted_job: InterruptedJob, fleet: _Fleet, context: Context
) -> tuple[RentOption | None, OptionCost | None]:
    option, job_id = ResumeOption.RENT, interrupted_job.job.job_id
    if not context.policy.burst.pools:
        return None, _unavailable(option, _NO_POOLS)
    price = context.policy.burst.delay_of(interrupted_job.job.spec.priority_class)
    if not price and interrupted_job.job.spec.deadline_at is None:
        return None, _unavailable(option, f"{_NO_PRICE}, so Evenkeel rents no nodes for the job")
    rental = fleet.rented.rental_by_holder.get(job_id)
    if rental is not None:
        state_text = "still serve it" if rental.state is RentalState.READY else "are starting"
        return None, _unavailable(option, f"nodes rented for the job {state_text}")
    job = _as_pending(interrupted_job, option, context.now)
    running_jobs = runs_so_far(fleet.admission_input.charges, fleet.jobs_with_charge, context.now)
    past = (*past_jobs.load_past_jobs(context.ledger), *running_jobs)
    rental_context = PlacementContext(
        now=context.now,
        capacities=fleet.admission_input.capacities,
        charges=fleet.admission_input.charges,
        classes={
            charged_job.job_id: charged_job.spec.priority_class for charged_job in fleet.jobs_with_charge.values()
        },
        queue=(job, *fleet.waiting),  # a recovery goes first
        rented=fleet.rented,
        shortages=rental_store.read_shortages(context.ledger)[0],
        run_times=run_times_of(past, context.policy.economy.min_samples),
        jobs_with_charge=fleet.jobs_with_charge,
        done_seconds=rental_store.read_done_seconds(context.ledger, fleet.jobs_with_charge.values()),
    )
    ran = run_seconds(rental_store.read_attempts(context.ledger, [job]), context.now)
    waiting_since = interrupted_job.attempt.ended_at or context.now
    facts = placement_facts(job, rental_context, context.policy, ran.get(job_id, 0.0), waiting_since=waiting_since)
    placement = choose_pool(facts)
    row = cheapest_rental_in_time(placement)
    if row is None:
        return RentOption(placement=facts), None
    if not price and placement.action is not PlacementAction.RENT:
        return None, _unavailable(option, f"{_NO_PRICE}, and the job meets its deadline without renting")
    pool = next(rented_pool for rented_pool in context.policy.burst.pools if rented_pool.name == row.pool)
    with_rented = (*fleet.admission_input.capacities, *nodes_to_rent(job, pool, context.now))
    jobs = (*fleet.waiting, job.replace(cluster=pool.cluster))
    decisions = _decide_as_cycle(
        jobs, fleet.admission_input._replace(capacities=with_rented), context.policy, context.now
    )
    return RentOption(placement=facts, barred=why_rental_would_not_help(job_id, pool, decisions)), None
