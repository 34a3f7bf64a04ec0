"""Decide everything of one scheduling cycle: admissions, preemptions, resizes, rentals, departures and waits.

    snapshot ─▶ queue and sizes ─▶ rentals ─▶ jobs that leave their nodes ─▶ plan

Some decisions need facts that few cycles read, such as the attempts of a job. If the snapshot does not hold them, the
plan names them. The cycle reads them and decides again.
"""

from collections.abc import Container, Iterable, Iterator, Mapping
from datetime import datetime

from evenkeel.domain.admission import rent_plan
from evenkeel.domain.admission.admission_input import AdmissionInput
from evenkeel.domain.admission.authority import AdmissionAuthority
from evenkeel.domain.admission.cycle_plan import (
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
from evenkeel.domain.admission.cycle_snapshot import CycleSnapshot
from evenkeel.domain.admission.decide_job import (
    Action,
    AdmissionDecision,
    delegate_to_kueue,
    exclude,
    exclude_in_kueue_namespace,
    exclude_in_other_teams_namespace,
    exclude_on_unreadable_cluster,
)
from evenkeel.domain.admission.decide_queue import decide_queue
from evenkeel.domain.admission.queue_cursors import ALL_JOBS
from evenkeel.domain.admission.request import AdmissionRequest
from evenkeel.domain.admission.request_facts import with_open_amounts
from evenkeel.domain.admission.resize_facts import ResizePlan
from evenkeel.domain.admission.resize_plan import plan_resizes
from evenkeel.domain.admission.serving_demand import (
    ServingDemand,
    ServingRentalPlan,
    plan_serving_rentals,
    replica_requests,
    reserve_for_replicas,
    satisfied_replicas,
)
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

_PROGRESS_ACTIONS = frozenset({Action.ADMIT, Action.PREEMPT})
"""Without teams, a cycle reads further if no job got one of these actions: a waiting job blocks only jobs for the same
nodes."""
_PARKED_ACTIONS = frozenset(
    {
        Action.NO_QUOTA,
        Action.WAIT,
        Action.SAME_SHAPE,
        Action.LIMIT_REACHED,
        Action.EXCLUDED,
        Action.BACK_OFF,
        Action.NEVER_FITS,
    }
)
"""With teams, a cycle reads a queue further if all jobs of its head got one of these actions."""


def decide_cycle(
    snapshot: CycleSnapshot, policy: Policy, mode: Mode, now: datetime, draft: CyclePlan | None = None
) -> CyclePlan:
    """Decide everything of one scheduling cycle.

    Args:
        snapshot: Everything that the cycle read.
        policy: The whole policy.
        mode: The mode of the stack. In any mode but `act` jobs wait, with the decision as their reason.
        now: The time.
        draft: An incomplete plan. The snapshot now holds the facts that it lacked. The decisions of its queue stay,
            unless more pending jobs were read.
    """
    if snapshot.automation_hold_reason:
        return _plan_during_hold(snapshot, now)
    if draft is None or draft.missing.queues:
        queue_plan, queues_to_read = _plan_queue(snapshot, policy, now, may_read_further=draft is None)
        missing = (
            MissingFacts(queues=queues_to_read)
            if queues_to_read
            else _missing_facts(snapshot, queue_plan, policy, mode, now)
        )
        plan = CyclePlan(queue_plan=queue_plan, missing=missing)
        if plan.is_incomplete:
            return plan
    else:
        queue_plan = draft.queue_plan
    snapshot = snapshot._replace(pending=queue_plan.pending)
    queue, decisions = queue_plan.queue, queue_plan.decisions
    serving_rentals = _plan_serving_rentals(snapshot, queue_plan, policy, now)
    planned = (decision for plan in serving_rentals for decision in plan.to_rent)
    rented = snapshot.rented.with_planned(planned, policy.burst.pools)
    placements = rent_plan.plan_placements(snapshot, queue, decisions, rented, policy, now)
    displacement = None
    if mode is Mode.ACT:
        displacement = rent_plan.plan_displacement(snapshot, queue, decisions, placements, policy, now)
    has_teams = snapshot.setup.has_teams
    plan = CyclePlan(
        queue_plan=queue_plan,
        scheduler_state=snapshot.scheduler_state.pruned(queue.charges, snapshot.setup, now)
        if has_teams
        else snapshot.scheduler_state,
        steps=tuple(_steps(snapshot, queue_plan, placements, displacement, mode)),
        serving_rentals=serving_rentals,
    )
    return _with_stops(plan, snapshot, policy, now) if mode is Mode.ACT else plan


def _plan_during_hold(snapshot: CycleSnapshot, now: datetime) -> CyclePlan:
    """Start, stop, resize and rent nothing: each pending job waits, with the hold as its reason."""
    decisions = (
        exclude(AdmissionRequest.of(job), snapshot.automation_hold_reason, now) for job in snapshot.eligible_jobs()
    )
    queue_plan = QueuePlan(
        queue=AdmissionInput(
            setup=snapshot.setup, charges=snapshot.live_charges, scheduler_state=snapshot.scheduler_state
        ),
        pending=snapshot.pending,
        decisions=(*_decide_jobs_in_other_teams_namespaces(snapshot, now), *decisions),
        resizes=ResizePlan(elastic_state=snapshot.scheduler_state.elastic),
        next_cursors=snapshot.next_cursors,
    )
    steps = tuple(_steps(snapshot, queue_plan, {}, None, Mode.ACT))
    return CyclePlan(queue_plan=queue_plan, scheduler_state=snapshot.scheduler_state, steps=steps)


# ---------------------------------------------------------------- the queue


def _plan_queue(
    snapshot: CycleSnapshot, policy: Policy, now: datetime, *, may_read_further: bool
) -> tuple[QueuePlan, tuple[str, ...]]:
    """Decide about the pending jobs and the sizes of running jobs, or return the queues to read further first."""
    if snapshot.authority is AdmissionAuthority.KUEUE:
        return _hand_over_to_kueue(snapshot, now), ()
    demand, capacities_left = _serving_demand(snapshot, _without_unreadable_serving(policy, snapshot), now)
    admission_input = snapshot.queue(policy, now)
    queue = admission_input._replace(capacities=capacities_left)
    decisions = decide_queue(queue, policy, now)
    queues_to_read = _queues_to_read_further(snapshot, decisions) if may_read_further else ()
    if queues_to_read:
        return QueuePlan(), queues_to_read
    cursors = snapshot.next_cursors
    if cursors is not None and not snapshot.setup.has_teams:
        rewound = cursors.rewound_to_barrier(decisions)
        if rewound is not None:
            # A barrier waits no more, so the jobs behind it come first. Decide again without the jobs of this page.
            cursors = rewound
            snapshot = snapshot._replace(
                pending={name: job for name, job in snapshot.pending.items() if name not in rewound.page_jobs}
            )
            admission_input = snapshot.queue(policy, now)
            queue = admission_input._replace(capacities=capacities_left)
            decisions = decide_queue(queue, policy, now)
        elif ALL_JOBS in snapshot.head_ends:
            cursors = cursors.with_barriers(decisions, snapshot.head_ends[ALL_JOBS])
    decisions = fit_sizes(queue, decisions, policy, now, snapshot.rented.rental_by_holder)
    decisions = (*_decide_excluded_jobs(snapshot, now), *decisions)
    resizes = plan_resizes(admission_input, decisions, snapshot.resizable_jobs(), demand.demands, policy, now)
    return QueuePlan(
        queue=queue,
        pending=snapshot.pending,
        decisions=decisions,
        resizes=resizes,
        demand=demand._replace(satisfied_demands=resizes.satisfied_demands),
        next_cursors=cursors,
    ), ()


def _hand_over_to_kueue(snapshot: CycleSnapshot, now: datetime) -> QueuePlan:
    """Hand each job over to the LocalQueue of its team, where Kueue alone admits jobs."""
    shares = NodeShares(())
    admission_requests = (with_open_amounts(AdmissionRequest.of(job), shares) for job in snapshot.eligible_jobs())
    requests = sorted(admission_requests, key=lambda request: request.queue_order_key)
    delegated = (delegate_to_kueue(request, snapshot.setup.local_queue_of(request.team), now) for request in requests)
    return QueuePlan(
        queue=AdmissionInput(
            setup=snapshot.setup, charges=snapshot.live_charges, scheduler_state=snapshot.scheduler_state
        ),
        pending=snapshot.pending,
        decisions=(*_decide_jobs_in_other_teams_namespaces(snapshot, now), *delegated),
        next_cursors=snapshot.next_cursors,
    )


def _decide_excluded_jobs(snapshot: CycleSnapshot, now: datetime) -> Iterator[AdmissionDecision]:
    """Yield the decisions about jobs that the rules do not examine."""
    yield from _decide_jobs_in_other_teams_namespaces(snapshot, now)
    jobs = tuple(snapshot.eligible_jobs())
    for job in jobs:
        if snapshot.is_unreadable(job):
            yield exclude_on_unreadable_cluster(AdmissionRequest.of(snapshot.rented.in_rented_cluster(job)), now)
    for job in jobs:
        if snapshot.is_in_kueue_namespace(job) and not snapshot.is_unreadable(job):
            shown_by = snapshot.kueue_namespaces[job.cluster, job.namespace]
            yield exclude_in_kueue_namespace(AdmissionRequest.of(job), job.namespace, shown_by, now)


def _decide_jobs_in_other_teams_namespaces(snapshot: CycleSnapshot, now: datetime) -> Iterator[AdmissionDecision]:
    for job in snapshot.pending.values():
        owner = snapshot.namespace_owner(job)
        if owner:
            yield exclude_in_other_teams_namespace(AdmissionRequest.of(job), job.namespace, owner, now)


def _queues_to_read_further(snapshot: CycleSnapshot, decisions: Iterable[AdmissionDecision]) -> tuple[str, ...]:
    """Return the teams whose queue continues after a head of parked jobs."""
    has_teams = snapshot.setup.has_teams
    actions: dict[str, set[Action]] = {}
    for decision in decisions:
        team = snapshot.pending[decision.job_id].spec.team if has_teams else ALL_JOBS
        actions.setdefault(team, set()).add(decision.action)
    teams = []
    for team in snapshot.readable_further:
        if team == ALL_JOBS and has_teams:
            continue  # the queue of each team is read separately
        queue_actions = actions.get(team, set())
        if team == ALL_JOBS:
            is_parked = queue_actions.isdisjoint(_PROGRESS_ACTIONS)
        else:
            is_parked = queue_actions <= _PARKED_ACTIONS
        if is_parked and not is_strict(team, snapshot.setup):
            teams.append(team)
    return tuple(teams)


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
    satisfied = satisfied_replicas(serving, snapshot.rented, snapshot.serving_pods, snapshot.capacities)
    demands = replica_requests(shortfalls, snapshot.capacities, classes, now, satisfied)
    return ServingDemand(shortfalls=shortfalls, satisfied_replicas=satisfied, demands=demands), node_capacities


def _plan_serving_rentals(
    snapshot: CycleSnapshot, queue_plan: QueuePlan, policy: Policy, now: datetime
) -> tuple[ServingRentalPlan, ...]:
    if snapshot.authority is AdmissionAuthority.KUEUE:
        return ()
    context = rent_plan.placement_context(snapshot, queue_plan.queue, policy, now)
    return plan_serving_rentals(
        queue_plan.demand, snapshot.serving_states, context, _without_unreadable_serving(policy, snapshot)
    )


# ---------------------------------------------------------------- missing facts


def _missing_facts(
    snapshot: CycleSnapshot, queue_plan: QueuePlan, policy: Policy, mode: Mode, now: datetime
) -> MissingFacts:
    """Return the facts that the later decisions need and the snapshot does not hold."""
    queue, decisions = queue_plan.queue, queue_plan.decisions
    holders = tuple(charge.job_id for charge in queue.charges)
    to_place = tuple(
        job.job_id for job in jobs_to_place(rent_plan.jobs_without_nodes(snapshot, decisions), policy, now)
    )
    has_demand = bool(to_place or queue_plan.demand.shortfalls)
    jobs = set(holders if has_demand else ())
    attempts_of = set(to_place)
    if mode is Mode.ACT:
        leaving, moving = rent_plan.jobs_that_may_leave(snapshot, queue, decisions)
        draining = {charge.job_id for charge in queue.charges if charge.team in draining_teams(snapshot.setup)}
        jobs |= {*leaving, *rent_plan.charges_on_ending_reservations(queue, policy, now), *draining}
        attempts_of |= set(moving)
    return MissingFacts(
        jobs=tuple(sorted(name for name in jobs if snapshot.known_job(name) is None)),
        attempts_of=tuple(sorted(name for name in attempts_of if _may_have_attempts(snapshot.known_job(name)))),
        needs_shortages=has_demand,
        needs_past_runs=has_demand or bool(attempts_of),
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
    serving = snapshot.rented.rental_by_holder
    for decision in queue_plan.decisions:
        job = snapshot.pending[decision.job_id]
        launch_mode = job.launch_mode(mode, job.current_attempt + 1)
        may_act = launch_mode is Mode.ACT
        placement = placements.get(decision.job_id)
        if decision.action is Action.ADMIT and may_act:
            yield AdmissionStep(decision)
        elif decision.action is Action.PREEMPT and may_act and decision.job_id not in shrinks:
            victims = _new_victims(snapshot, queue_plan.queue, decision)
            yield PreemptionStep(decision, victims) if victims else PendingStep(decision, launch_mode)
        elif decision.job_id in serving and decision.action is not Action.ADMIT:
            continue  # the job's reason names its rental already
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


def _new_victims(snapshot: CycleSnapshot, queue: AdmissionInput, decision: AdmissionDecision) -> dict[str, str]:
    """Return the victims that were not asked to stop yet, each with Kueue's reason."""
    attempts = {charge.job_id: charge.attempt for charge in queue.charges}
    return {
        victim.job_id: victim.reason
        for victim in decision.victims
        if victim.job_id not in queue.stopping
        and (job := snapshot.jobs_with_charge.get(victim.job_id))
        and job.current_attempt == attempts.get(victim.job_id)
    }


def _with_stops(plan: CyclePlan, snapshot: CycleSnapshot, policy: Policy, now: datetime) -> CyclePlan:
    """Add the jobs to a plan that leave their nodes for a reason other than preemption or resize."""
    queue, decisions = plan.queue_plan.queue, plan.decisions
    stopping = {name for step in plan.steps if isinstance(step, PreemptionStep) for name in step.victims}
    stopping |= {
        name for step in plan.steps if isinstance(step, DisplacementStep) for name in step.displacement.victims
    }
    stopping |= {resize.job_id for resize in plan.resizes.planned}
    departure = rent_plan.next_departure(snapshot, queue, decisions, stopping, policy, now)
    stopping |= {departure.job_id} if departure else set()
    reservation_stops = rent_plan.reservation_stops(snapshot, queue, stopping, policy, now)
    stopping |= {stop.facts.candidate.job_id for stop in reservation_stops}
    queue_stops = tuple(_jobs_of_drained_queues(snapshot, queue, {*stopping, *plan.scheduler_state.stopping}))
    return plan._replace(departure=departure, reservation_stops=reservation_stops, queue_stops=queue_stops)


def _jobs_of_drained_queues(snapshot: CycleSnapshot, queue: AdmissionInput, stopping: Container[str]) -> Iterator[str]:
    """Yield the jobs that must stop because the queue of their team is drained, and that were not asked yet."""
    teams = draining_teams(snapshot.setup)
    for charge in queue.charges:
        if charge.team not in teams or charge.job_id in stopping:
            continue
        job = snapshot.known_job(charge.job_id)
        if job is not None and job.current_attempt == charge.attempt and job.is_stoppable:
            yield job.job_id
