"""Decide everything of one scheduling cycle: admissions, preemptions, resizes, rentals, departures and waits.

    snapshot ─▶ queue and sizes ─▶ rentals ─▶ jobs that leave their nodes ─▶ plan

Some decisions need facts that few cycles read, such as the attempts of a job. If the snapshot does not hold them, the
plan names them. The cycle reads them and decides again.
"""

from collections.abc import Container, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import NamedTuple

from evenkeel.domain.admission.admission_input import AdmissionInput
from evenkeel.domain.admission.admission_request import AdmissionRequest
from evenkeel.domain.admission.authority import AdmissionAuthority
from evenkeel.domain.admission.build_request import with_default_amounts
from evenkeel.domain.admission.decide_job import (
    AdmissionAction,
    AdmissionDecision,
    delegate_to_kueue,
    exclude,
    exclude_in_kueue_namespace,
    exclude_in_other_teams_namespace,
    exclude_on_unreadable_cluster,
)
from evenkeel.domain.admission.decide_queue import decide_queue
from evenkeel.domain.admission.start_size import fit_sizes
from evenkeel.domain.capacity.node_capacity import NodeCapacity
from evenkeel.domain.capacity.pod_shares import NodeShares
from evenkeel.domain.external.serving import replica_shortfalls
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.kueue.objects import QueueingStrategy, StopPolicy
from evenkeel.domain.policy import Policy
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.quotas.teams import TeamSetup
from evenkeel.domain.renting.candidates import jobs_to_place
from evenkeel.domain.renting.displacement import DisplacementDecision
from evenkeel.domain.renting.placement import PlacementAction, PlacementDecision
from evenkeel.domain.renting.rental_book import RentalBook
from evenkeel.domain.scheduling import departure_plan, displacement_plan, mixed_plan, rent_plan
from evenkeel.domain.scheduling.cycle_plan import (
    AdmissionStep,
    CyclePlan,
    DisplacementStep,
    JobStep,
    MissingFacts,
    PendingStep,
    Placement,
    PreemptionStep,
    QueuePlan,
    RentStep,
)
from evenkeel.domain.scheduling.cycle_snapshot import CycleSnapshot
from evenkeel.domain.scheduling.queue_cursors import ALL_JOBS
from evenkeel.domain.scheduling.resize_facts import ResizePlan
from evenkeel.domain.scheduling.resize_plan import plan_resizes
from evenkeel.domain.scheduling.serving_demand import (
    ServingDemand,
    ServingRentalPlan,
    next_serving_return,
    plan_serving_rentals,
    replica_requests,
    reserve_for_replicas,
    satisfied_replicas,
)

_PROGRESS_ACTIONS = frozenset({AdmissionAction.ADMIT, AdmissionAction.PREEMPT})
_SKIPPED_ACTIONS = frozenset(
    {
        AdmissionAction.NO_QUOTA,
        AdmissionAction.WAIT,
        AdmissionAction.SAME_SHAPE,
        AdmissionAction.LIMIT_REACHED,
        AdmissionAction.EXCLUDED,
        AdmissionAction.BACK_OFF,
        AdmissionAction.NEVER_FITS,
    }
)


def decide_cycle(
    snapshot: CycleSnapshot, policy: Policy, mode: Mode, now: datetime, incomplete_plan: CyclePlan | None = None
) -> CyclePlan:
    """Decide everything of one scheduling cycle.

    Args:
        snapshot: Everything that the cycle read.
        policy: The whole policy.
        mode: The mode of the stack. In any mode but `act` jobs wait, with the decision as their reason.
        now: The time.
        incomplete_plan: An earlier plan. The snapshot now holds the facts that it lacked. The decisions of its queue
            stay, unless more pending jobs were read.
    """
    if snapshot.automation_hold_reason:
        return _plan_during_hold(snapshot, mode, now)
    plan = _plan_with_queue(snapshot, policy, mode, now, incomplete_plan)
    if plan.is_incomplete:
        return plan
    snapshot = snapshot._replace(pending=plan.queue_plan.pending)
    plan, rental_book = _with_rentals(plan, snapshot, policy, mode, now)
    plan = _with_released_part(plan, snapshot, policy, now)
    if mode is Mode.ACT:
        plan = _with_stops(plan, snapshot, policy, now)
    if snapshot.authority is AdmissionAuthority.KUEUE:
        return plan
    mixed_steps = mixed_plan.plan_mixed(
        snapshot, plan.queue_plan.admission_input, plan.decisions, _stopping_jobs(plan), rental_book, policy, now
    )
    return plan._replace(mixed_steps=mixed_steps)


def _plan_with_queue(
    snapshot: CycleSnapshot, policy: Policy, mode: Mode, now: datetime, incomplete_plan: CyclePlan | None
) -> CyclePlan:
    """Return a plan with the decisions about the queue, or with the facts that are missing for the next decisions."""
    if incomplete_plan is not None and not incomplete_plan.missing.queues:
        return CyclePlan(queue_plan=incomplete_plan.queue_plan)
    queue_plan = _plan_queue(snapshot, policy, now, may_read_further=incomplete_plan is None)
    if isinstance(queue_plan, MissingFacts):
        return CyclePlan(missing=queue_plan)
    return CyclePlan(queue_plan=queue_plan, missing=_missing_facts(snapshot, queue_plan, policy, mode, now))


def _with_rentals(
    plan: CyclePlan, snapshot: CycleSnapshot, policy: Policy, mode: Mode, now: datetime
) -> tuple[CyclePlan, RentalBook]:
    """Add the rentals, the displacement and the step of each pending job. Return also the rentals with the new ones."""
    queue_plan = plan.queue_plan
    admission_input, decisions = queue_plan.admission_input, queue_plan.decisions
    stopping_job_ids = [charge.job_id for charge in admission_input.charges]
    snapshot = displacement_plan.with_rents_of_displaced_jobs(snapshot, stopping_job_ids, admission_input, policy, now)
    serving_rentals = _plan_serving_rentals(snapshot, queue_plan, policy, now)
    nodes_for_replicas = (decision for rental_plan in serving_rentals for decision in rental_plan.to_rent)
    rental_book = snapshot.rental_book.with_planned(nodes_for_replicas, policy.burst.pools)
    placements = rent_plan.plan_placements(snapshot, admission_input, decisions, rental_book, policy, now)
    planned_rents = [
        placement for placement in placements.values() if isinstance(placement, PlacementDecision) and placement.is_rent
    ]
    rental_book = rental_book.with_planned(planned_rents, policy.burst.pools)
    displacement = None
    if mode is Mode.ACT:
        displacement = displacement_plan.plan_displacement(
            snapshot._replace(rental_book=rental_book), admission_input, decisions, placements, policy, now
        )
    scheduler_state = snapshot.scheduler_state
    if snapshot.setup.has_teams:
        scheduler_state = scheduler_state.pruned(admission_input.charges, snapshot.setup, now)
    plan = plan._replace(
        scheduler_state=scheduler_state,
        steps=tuple(_steps(snapshot, queue_plan, placements, displacement, mode)),
        serving_rentals=serving_rentals,
    )
    return plan, rental_book


def _with_released_part(plan: CyclePlan, snapshot: CycleSnapshot, policy: Policy, now: datetime) -> CyclePlan:
    """Add to a plan the job that releases its rented part, if no other job changes its size or is asked to stop."""
    if plan.resizes.planned or _stopping_jobs(plan) or snapshot.authority is AdmissionAuthority.KUEUE:
        return plan
    release = mixed_plan.plan_part_release(snapshot, plan.queue_plan.admission_input, policy, now)
    if release is None:
        return plan
    return plan._replace(queue_plan=plan.queue_plan._replace(resizes=plan.resizes.replace(growth=release)))


def _stopping_jobs(plan: CyclePlan) -> frozenset[str]:
    """Return the jobs that a plan asks to stop."""
    victims = {job_id for step in plan.steps if isinstance(step, PreemptionStep) for job_id in step.victims}
    victims |= {
        job_id for step in plan.steps if isinstance(step, DisplacementStep) for job_id in step.displacement.victims
    }
    resized_job_ids = {resize.job_id for resize in plan.resizes.planned}
    leaving_job_ids = {stop.facts.candidate.job_id for stop in plan.reservation_stops} | set(plan.queue_stops)
    departing_job_ids = {plan.departure.job_id} if plan.departure else set()
    return frozenset(victims | resized_job_ids | leaving_job_ids | departing_job_ids)


def _plan_during_hold(snapshot: CycleSnapshot, mode: Mode, now: datetime) -> CyclePlan:
    """Start, stop, resize and rent nothing: each pending job waits, with the hold as its reason."""
    decisions = (
        exclude(AdmissionRequest.of(job), snapshot.automation_hold_reason, now) for job in snapshot.eligible_jobs()
    )
    queue_plan = QueuePlan(
        admission_input=AdmissionInput(
            setup=snapshot.setup, charges=snapshot.live_charges, scheduler_state=snapshot.scheduler_state
        ),
        pending=snapshot.pending,
        decisions=(*_decide_jobs_in_other_teams_namespaces(snapshot, now), *decisions),
        resizes=ResizePlan(elastic_state=snapshot.scheduler_state.elastic),
        cursors_of_next_cycle=snapshot.cursors_of_next_cycle,
    )
    steps = tuple(_steps(snapshot, queue_plan, {}, None, mode))
    return CyclePlan(queue_plan=queue_plan, scheduler_state=snapshot.scheduler_state, steps=steps)


# ---------------------------------------------------------------- the queue


def _plan_queue(
    snapshot: CycleSnapshot, policy: Policy, now: datetime, *, may_read_further: bool
) -> QueuePlan | MissingFacts:
    """Decide about the pending jobs and the sizes of running jobs, or return the queues to read further first."""
    if snapshot.authority is AdmissionAuthority.KUEUE:
        return _hand_over_to_kueue(snapshot, now)
    demand, capacities_left = _serving_demand(snapshot, _without_unreadable_serving(policy, snapshot), now)
    queue_decisions = _decide_pending_jobs(snapshot, capacities_left, policy, now)
    queues_to_read = _queues_to_read_further(snapshot, queue_decisions.decisions) if may_read_further else ()
    if queues_to_read:
        return MissingFacts(queues=queues_to_read)
    cursors = snapshot.cursors_of_next_cycle
    if cursors is not None and not snapshot.setup.has_teams:
        rewound = cursors.rewound_to_barrier(queue_decisions.decisions)
        if rewound is not None:
            # A barrier waits no more, so the jobs behind it come first. Decide again without the jobs of this page.
            cursors = rewound
            snapshot = snapshot._replace(
                pending={job_id: job for job_id, job in snapshot.pending.items() if job_id not in rewound.page_jobs}
            )
            queue_decisions = _decide_pending_jobs(snapshot, capacities_left, policy, now)
        elif ALL_JOBS in snapshot.cursor_after_first_page:
            cursors = cursors.with_barriers(queue_decisions.decisions, snapshot.cursor_after_first_page[ALL_JOBS])
    decisions = fit_sizes(
        queue_decisions.input_after_serving,
        queue_decisions.decisions,
        policy,
        now,
        snapshot.rental_book.sole_rental_by_holder,
    )
    decisions = mixed_plan.with_rented_parts(decisions, snapshot, queue_decisions.admission_input, policy, now)
    decisions = (*_decide_excluded_jobs(snapshot, now), *decisions)
    resizes = plan_resizes(
        queue_decisions.admission_input, decisions, snapshot.resizable_jobs(), demand.replica_requests, policy, now
    )
    if not resizes.planned:
        resizes = resizes.replace(growth=mixed_plan.plan_part_join(snapshot, policy))
    return QueuePlan(
        admission_input=queue_decisions.input_after_serving,
        pending=snapshot.pending,
        decisions=decisions,
        resizes=resizes,
        demand=demand._replace(satisfied_demands=resizes.satisfied_demands),
        cursors_of_next_cycle=cursors,
    )


class _QueueDecisions(NamedTuple):
    """The decisions about the pending jobs at their requested sizes, and their input."""

    admission_input: AdmissionInput
    """Input with all nodes of the fleet."""
    input_after_serving: AdmissionInput
    """The same input without the nodes that serving replicas take. The decisions were made from it."""
    decisions: tuple[AdmissionDecision, ...]


def _decide_pending_jobs(
    snapshot: CycleSnapshot, capacities_left: tuple[NodeCapacity, ...], policy: Policy, now: datetime
) -> _QueueDecisions:
    """Decide about the pending jobs on the nodes that serving replicas leave."""
    admission_input = snapshot.admission_input(policy, now)
    input_after_serving = admission_input._replace(capacities=capacities_left)
    return _QueueDecisions(admission_input, input_after_serving, decide_queue(input_after_serving, policy, now))


def _hand_over_to_kueue(snapshot: CycleSnapshot, now: datetime) -> QueuePlan:
    """Hand each job over to the LocalQueue of its team, where Kueue alone admits jobs."""
    shares = NodeShares(())
    admission_requests = (with_default_amounts(AdmissionRequest.of(job), shares) for job in snapshot.eligible_jobs())
    requests = sorted(admission_requests, key=lambda request: request.queue_order_key)
    delegations = (delegate_to_kueue(request, snapshot.setup.local_queue_of(request.team), now) for request in requests)
    return QueuePlan(
        admission_input=AdmissionInput(
            setup=snapshot.setup, charges=snapshot.live_charges, scheduler_state=snapshot.scheduler_state
        ),
        pending=snapshot.pending,
        decisions=(*_decide_jobs_in_other_teams_namespaces(snapshot, now), *delegations),
        cursors_of_next_cycle=snapshot.cursors_of_next_cycle,
    )


def _decide_excluded_jobs(snapshot: CycleSnapshot, now: datetime) -> Iterator[AdmissionDecision]:
    """Yield the decisions about jobs that the rules do not examine."""
    yield from _decide_jobs_in_other_teams_namespaces(snapshot, now)
    jobs = tuple(snapshot.eligible_jobs())
    for job in jobs:
        if snapshot.is_unreadable(job):
            yield exclude_on_unreadable_cluster(AdmissionRequest.of(snapshot.rental_book.in_rented_cluster(job)), now)
    for job in jobs:
        if snapshot.is_in_kueue_namespace(job) and not snapshot.is_unreadable(job):
            shown_by = snapshot.kueue_namespaces[job.cluster, job.namespace]
            yield exclude_in_kueue_namespace(AdmissionRequest.of(job), job.namespace, shown_by, now)


def _decide_jobs_in_other_teams_namespaces(snapshot: CycleSnapshot, now: datetime) -> Iterator[AdmissionDecision]:
    for job in snapshot.pending.values():
        other_team = snapshot.other_team_of_namespace(job)
        if other_team:
            yield exclude_in_other_teams_namespace(AdmissionRequest.of(job), job.namespace, other_team, now)


def _queues_to_read_further(snapshot: CycleSnapshot, decisions: Iterable[AdmissionDecision]) -> tuple[str, ...]:
    """Return the teams whose queue continues after a first page of skipped jobs."""
    has_teams = snapshot.setup.has_teams
    actions: dict[str, set[AdmissionAction]] = {}
    for decision in decisions:
        team = snapshot.pending[decision.job_id].spec.team if has_teams else ALL_JOBS
        actions.setdefault(team, set()).add(decision.action)
    teams = []
    for team in snapshot.cursor_after_read:
        if team == ALL_JOBS and has_teams:
            continue  # the queue of each team is read separately
        queue_actions = actions.get(team, set())
        if _may_read_further(team, queue_actions) and not is_strict(team, snapshot.setup):
            teams.append(team)
    return tuple(teams)


def _may_read_further(team: str, actions: AbstractSet[AdmissionAction]) -> bool:
    """Whether the jobs behind the first page may start, by the actions for the jobs of that page.

    Without teams, no job of the page may have made progress: a waiting job blocks only jobs for the same nodes. With
    teams, the cycle must have skipped all jobs of the page.
    """
    return actions.isdisjoint(_PROGRESS_ACTIONS) if team == ALL_JOBS else actions <= _SKIPPED_ACTIONS


def is_strict(team: str, setup: TeamSetup) -> bool:
    """Whether no job of a team's queue may pass the head of the queue."""
    return team != ALL_JOBS and setup.by_name[team].queue.strategy is QueueingStrategy.STRICT


# ---------------------------------------------------------------- serving replicas


def _without_unreadable_serving(policy: Policy, snapshot: CycleSnapshot) -> Policy:
    """Return the policy without the serving workloads of clusters that could not be read."""
    if not snapshot.unreadable_clusters:
        return policy
    serving = tuple(
        workload for workload in policy.scheduling.serving if workload.cluster not in snapshot.unreadable_clusters
    )
    return policy.replace(scheduling=policy.scheduling.replace(serving=serving))


def _serving_demand(
    snapshot: CycleSnapshot, policy: Policy, now: datetime
) -> tuple[ServingDemand, tuple[NodeCapacity, ...]]:
    """Return the replicas that wait, and the node capacities without the nodes that they will take."""
    serving, classes = policy.scheduling.serving, snapshot.setup.fleet.priority_classes
    shortfalls = replica_shortfalls(serving, snapshot.serving_pods)
    # All waiting replicas take nodes that become free, even replicas whose rented node is still starting.
    requests = replica_requests(shortfalls, snapshot.capacities, classes, now)
    node_capacities = reserve_for_replicas(requests, snapshot.capacities, policy.scheduling)
    satisfied = satisfied_replicas(serving, snapshot.rental_book, snapshot.serving_pods, snapshot.capacities)
    requests_left = replica_requests(shortfalls, snapshot.capacities, classes, now, satisfied)
    return ServingDemand(
        shortfalls=shortfalls, satisfied_replicas=satisfied, replica_requests=requests_left
    ), node_capacities


def _plan_serving_rentals(
    snapshot: CycleSnapshot, queue_plan: QueuePlan, policy: Policy, now: datetime
) -> tuple[ServingRentalPlan, ...]:
    if snapshot.authority is AdmissionAuthority.KUEUE:
        return ()
    context = rent_plan.placement_context(snapshot, queue_plan.admission_input, policy, now)
    return plan_serving_rentals(
        queue_plan.demand, snapshot.serving_states, context, _without_unreadable_serving(policy, snapshot)
    )


# ---------------------------------------------------------------- missing facts


def _missing_facts(
    snapshot: CycleSnapshot, queue_plan: QueuePlan, policy: Policy, mode: Mode, now: datetime
) -> MissingFacts:
    """Return the facts that the later decisions need and the snapshot does not hold."""
    admission_input, decisions = queue_plan.admission_input, queue_plan.decisions
    charged_ids = tuple(charge.job_id for charge in admission_input.charges)
    to_place = tuple(
        job.job_id for job in jobs_to_place(rent_plan.jobs_without_nodes(snapshot, decisions), policy, now)
    )
    has_demand = bool(to_place or queue_plan.demand.shortfalls)
    jobs = set(charged_ids if has_demand else ())
    attempts_of = set(to_place)
    if has_demand:  # a running job continues the work of its earlier attempts
        attempts_of |= {charge.job_id for charge in admission_input.charges if charge.attempt > 1}
    if mode is Mode.ACT:
        leaving_job_ids, migrating_job_ids = departure_plan.jobs_that_may_leave(snapshot, admission_input, decisions)
        teams_to_drain = draining_teams(snapshot.setup)
        draining_job_ids = {charge.job_id for charge in admission_input.charges if charge.team in teams_to_drain}
        jobs |= {
            *leaving_job_ids,
            *departure_plan.charges_on_ending_reservations(admission_input, policy, now),
            *draining_job_ids,
        }
        attempts_of |= set(migrating_job_ids)
    mixed_jobs = {job.job_id for job in mixed_plan.jobs_to_examine(snapshot, policy, now)}
    mixed_jobs |= {job.job_id for job in mixed_plan.jobs_with_rented_part(snapshot, now)}
    attempts_of |= mixed_jobs
    has_demand = has_demand or bool(mixed_jobs)
    return MissingFacts(
        jobs=tuple(sorted(job_id for job_id in jobs if snapshot.known_job(job_id) is None)),
        attempts_of=tuple(sorted(job_id for job_id in attempts_of if _may_have_attempts(snapshot.known_job(job_id)))),
        needs_shortages=has_demand,
        needs_past_jobs=has_demand or bool(attempts_of),
    )


def _may_have_attempts(job: Job | None) -> bool:
    return job is None or job.current_attempt > 0


def draining_teams(setup: TeamSetup) -> frozenset[str]:
    """Return the teams whose jobs must all stop."""
    return frozenset(team.name for team in setup.teams if team.queue.stop is StopPolicy.HOLD_AND_DRAIN)


# ---------------------------------------------------------------- steps


def _steps(
    snapshot: CycleSnapshot,
    queue_plan: QueuePlan,
    placements: Mapping[str, Placement],
    displacement: DisplacementDecision | None,
    mode: Mode,
) -> Iterator[JobStep]:
    """Yield the step for each pending job."""
    shrinks = queue_plan.resizes.shrinks_by_waiter
    rental_by_holder = snapshot.rental_book.sole_rental_by_holder
    for decision in queue_plan.decisions:
        job = snapshot.pending[decision.job_id]
        launch_mode = job.launch_mode(mode, job.current_attempt + 1)
        may_act = launch_mode is Mode.ACT
        placement = placements.get(decision.job_id)
        if decision.action is AdmissionAction.ADMIT and may_act:
            yield AdmissionStep(decision)
        elif decision.action is AdmissionAction.PREEMPT and may_act and decision.job_id not in shrinks:
            victims = _new_victims(snapshot, queue_plan.admission_input, decision)
            yield PreemptionStep(decision, victims) if victims else PendingStep(decision, launch_mode)
        elif decision.job_id in rental_by_holder and decision.action is not AdmissionAction.ADMIT:
            continue  # its nodes are starting, and its recorded reason names the rental
        elif displacement and displacement.job_id == decision.job_id and may_act and not shrinks:
            yield DisplacementStep(decision, displacement)
        elif (
            may_act
            and not shrinks
            and isinstance(placement, PlacementDecision)
            and placement.action is PlacementAction.RENT
        ):
            yield RentStep(decision, placement)
        else:
            yield PendingStep(decision, launch_mode, placement)


def _new_victims(
    snapshot: CycleSnapshot, admission_input: AdmissionInput, decision: AdmissionDecision
) -> dict[str, str]:
    """Return the victims that were not asked to stop yet, each with Kueue's reason."""
    attempts = {charge.job_id: charge.attempt for charge in admission_input.charges}
    return {
        victim.job_id: victim.reason
        for victim in decision.victims
        if victim.job_id not in admission_input.stopping
        and (job := snapshot.jobs_with_charge.get(victim.job_id))
        and job.current_attempt == attempts.get(victim.job_id)
    }


def _with_stops(plan: CyclePlan, snapshot: CycleSnapshot, policy: Policy, now: datetime) -> CyclePlan:
    """Add to a plan the jobs that stop for another reason than preemption, displacement or a resize."""
    admission_input, decisions = plan.queue_plan.admission_input, plan.decisions
    departure = departure_plan.next_departure(snapshot, admission_input, decisions, _stopping_jobs(plan), policy, now)
    plan = plan._replace(departure=departure)
    reservation_stops = departure_plan.reservation_stops(snapshot, admission_input, _stopping_jobs(plan), policy, now)
    plan = plan._replace(reservation_stops=reservation_stops)
    stopping_job_ids = _stopping_jobs(plan) | frozenset(plan.scheduler_state.stopping)
    plan = plan._replace(queue_stops=tuple(_jobs_of_drained_queues(snapshot, admission_input, stopping_job_ids)))
    serving_return = None
    may_return = bool(snapshot.rental_book.rentals) and departure is None and not plan.queue_plan.demand.shortfalls
    if may_return and not _jobs_want_nodes(decisions):
        capacities = rent_plan.capacities_after_admissions(admission_input.capacities, decisions)
        serving_return = next_serving_return(
            snapshot.rental_book.rentals, snapshot.serving_pods, capacities, policy, now
        )
    return plan._replace(serving_return=serving_return)


def _jobs_want_nodes(decisions: Iterable[AdmissionDecision]) -> bool:
    """Whether a pending job waits for nodes: free committed nodes are for this job."""
    waiting_actions = (AdmissionAction.WAIT, AdmissionAction.BLOCKED, AdmissionAction.PREEMPT)
    return any(decision.action in waiting_actions for decision in decisions)


def _jobs_of_drained_queues(
    snapshot: CycleSnapshot, admission_input: AdmissionInput, stopping_job_ids: Container[str]
) -> Iterator[str]:
    """Yield the jobs that must stop because the queue of their team is drained, and that were not asked yet."""
    teams = draining_teams(snapshot.setup)
    for charge in admission_input.charges:
        if charge.team not in teams or charge.job_id in stopping_job_ids:
            continue
        job = snapshot.known_job(charge.job_id)
        if job is not None and job.current_attempt == charge.attempt and job.is_stoppable:
            yield job.job_id
