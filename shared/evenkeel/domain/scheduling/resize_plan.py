"""Running jobs that a scheduling cycle stops so that their next attempts run on another number of nodes.

    a job waits   ──▶ would it start if other jobs shrank? ──▶ the jobs that lose least shrink; none is preempted first
    no job waits  ──▶ have idle nodes paid for a resize?   ──▶ one job grows

`domain/elastic/grow_shrink.py` decides by how much a job changes, and at which loss. The admission rules decide whether
a job then starts: they are applied to a fleet in which the nodes are already free. So quota, limits and nodes hold at
every size.
"""

import functools
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime

from evenkeel.domain.admission.admission_input import AdmissionInput
from evenkeel.domain.admission.admission_request import AdmissionRequest
from evenkeel.domain.admission.build_request import build_request
from evenkeel.domain.admission.decide_job import AdmissionAction, AdmissionDecision
from evenkeel.domain.admission.decide_queue import decide_queue
from evenkeel.domain.admission.pool_fits import pool_fits, subtract_all_assigned
from evenkeel.domain.admission.scheduler_state import ElasticState
from evenkeel.domain.capacity.node_capacity import NodeKey, with_freed
from evenkeel.domain.capacity.pod_shares import NodeShares
from evenkeel.domain.elastic.grow_shrink import GrowFacts, IdleNodes, plan_growth, plan_shrink
from evenkeel.domain.elastic.sizes import ElasticJob, Sizes
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.kueue.objects import PreemptionPolicy
from evenkeel.domain.policy import Policy
from evenkeel.domain.resources import Resources, sum_by_node
from evenkeel.domain.scheduling.resize_facts import (
    MAY_SHRINK,
    NEEDS_IT,
    PlannedResize,
    ResizeFacts,
    ResizePlan,
    ShrinkFacts,
)
from evenkeel.domain.scheduling.serving_demand import reserve_for_replicas

_MAX_HELPED = 3
"""Waiting jobs, each with another request, for which one cycle frees nodes. Each costs several queue decisions."""
_MAX_TRIED = 12
"""Waiting jobs for which one cycle checks whether shrinking helps. Each costs one queue decision."""
_MAX_IDLE_NODES = 256
"""Maximum number of idle nodes that are remembered: those that were idle for longest."""
_MAX_SIZES_TRIED = 12
"""Maximum number of sizes that one growth tries."""

NodeKind = tuple[str, str, str]
"""Cluster, pool and instance type. All nodes of an attempt are of one kind."""


def plan_resizes(
    admission_input: AdmissionInput,
    decisions: tuple[AdmissionDecision, ...],
    jobs: Mapping[str, Job],
    demands: tuple[AdmissionRequest, ...],
    policy: Policy,
    now: datetime,
) -> ResizePlan:
    """Decide which running jobs change size now.

    Args:
        admission_input: With all nodes of the fleet, also the nodes that are reserved for replicas.
        decisions: Decisions about the pending jobs.
        jobs: Elastic jobs that hold nodes or are changing size.
        demands: Requests of serving replicas that have no node.
        policy: The whole policy.
        now: The time.
    """
    return _ResizePlanner(admission_input, decisions, jobs, demands, policy, now).plan()


class _ResizePlanner:
    """Plans the resizes of one cycle."""

    def __init__(
        self,
        admission_input: AdmissionInput,
        decisions: tuple[AdmissionDecision, ...],
        jobs: Mapping[str, Job],
        demands: tuple[AdmissionRequest, ...],
        policy: Policy,
        now: datetime,
    ) -> None:
        # No size change frees or takes the rented part of a mixed job.
        charges = tuple(charge.without_rented_part() for charge in admission_input.charges)
        self.rented_nodes = {
            charge.job_id: len(charge.rented_part.node_names)
            for charge in admission_input.charges
            if charge.rented_part
        }
        admission_input = admission_input._replace(charges=charges)
        self.admission_input, self.decisions, self.jobs, self.demands = admission_input, decisions, jobs, demands
        self.policy, self.now = policy, now
        self.scheduling = policy.scheduling
        self.charges = {charge.job_id: charge for charge in admission_input.charges}
        self.closed_nodes = {
            (capacity.cluster, capacity.node_name) for capacity in admission_input.capacities if not capacity.is_open
        }
        self.nodes_kept: dict[str, int] = self._nodes_kept_by_stopping_jobs()
        """Job that frees nodes → the number of nodes that it keeps."""
        self.changing_kinds = {self._kind_of(job_id) for job_id in self.nodes_kept if job_id in self.charges}
        """Kinds of nodes that a stopping job already frees."""

    @functools.cached_property
    def fleet(self) -> AdmissionInput:
        """The queue after the admissions of this cycle."""
        return _after_admissions(self.admission_input, self.decisions)

    @functools.cached_property
    def shares(self) -> NodeShares:
        return NodeShares(self.admission_input.capacities, self.policy.burst.pools)

    def plan(self) -> ResizePlan:
        idle_since = self._idle_since()
        shrinks_by_waiter = self._plan_shrinks()
        growth = None if shrinks_by_waiter else self._plan_growth(idle_since)
        elastic_state = ElasticState(
            jobs=tuple(sorted(charge.job_id for charge in self.admission_input.charges if charge.is_elastic)),
            resizing=self._resizing_jobs(),
            idle_since=idle_since,
            last_announced=self.admission_input.scheduler_state.elastic.last_announced,
        )
        return ResizePlan(
            shrinks_by_waiter=shrinks_by_waiter,
            growth=growth,
            elastic_state=elastic_state,
            satisfied_demands=self._satisfied_demands(),
        )

    # ------------------------------------------------------------ elastic jobs

    def _nodes_kept_by_stopping_jobs(self) -> dict[str, int]:
        """Return how many nodes each stopping job keeps: none, or the nodes of its new size."""
        nodes_by_job = {job_id: 0 for job_id in self.admission_input.scheduler_state.stopping if job_id in self.charges}
        for job_id, job in self.jobs.items():
            resize = job.live_resize()
            if resize and job_id in self.charges:
                nodes_by_job[job_id] = min(resize.nodes, len(self.charges[job_id].node_names))
        return nodes_by_job

    def _resizing_jobs(self) -> tuple[str, ...]:
        return tuple(
            job_id
            for job_id in self.admission_input.scheduler_state.elastic.resizing
            if (job := self.jobs.get(job_id)) and job.live_resize()
        )

    def _kind_of(self, job_id: str) -> NodeKind:
        charge = self.charges[job_id]
        return (charge.cluster, charge.pool, charge.instance_type)

    def _elastic_job(self, job: Job) -> ElasticJob:
        charge, sizes = self.charges[job.job_id], job.spec.sizes
        rented_nodes = self.rented_nodes.get(job.job_id, 0)
        if sizes is not None and rented_nodes:
            sizes = _base_sizes(sizes, len(charge.node_names), rented_nodes)
        return ElasticJob(
            job_id=job.job_id,
            team=job.spec.team,
            priority=job.priority,
            nodes=len(charge.node_names),
            accelerators_per_node=job.spec.accelerators_per_node,
            sizes=sizes,
            throughput=job.throughput,
            resize_seconds=self.scheduling.elastic.resize_seconds,
            resized_at=job.resized_at,
            failed_growths=job.failed_growths,
            growth_failed_at=job.growth_failed_at,
            is_resizing=job.stop_of(job.current_attempt) is not None,
            started_at=charge.admitted_at or self.now,
        )

    def _running_jobs(self) -> list[Job]:
        """Return the elastic jobs that run and were not asked to stop."""
        return [
            job
            for job_id, job in sorted(self.jobs.items())
            if job_id in self.charges
            and self.charges[job_id].node_names
            and self.charges[job_id].attempt == job.current_attempt
            and job.state in (JobState.STARTING, JobState.RUNNING)
            and job.stop_of(job.current_attempt) is None
        ]

    # ------------------------------------------------------------ shrinking

    def _plan_shrinks(self) -> dict[str, tuple[PlannedResize, ...]]:
        shrinks_by_job: dict[str, tuple[PlannedResize, ...]] = {}
        running_jobs = self._running_jobs()
        if not running_jobs:
            return shrinks_by_job
        for demand in self.demands:
            planned_resizes = self._shrinks_for_replicas(demand, running_jobs)
            if planned_resizes:
                shrinks_by_job[demand.job_id] = planned_resizes
        requests = {request.job_id: request for request in self.admission_input.pending}
        waiting_decisions = [
            decision
            for decision in self.decisions
            if decision.action
            in (AdmissionAction.WAIT, AdmissionAction.PREEMPT, AdmissionAction.NO_QUOTA, AdmissionAction.BLOCKED)
        ]
        tried_shapes: set[tuple[object, ...]] = set()
        helped_jobs = 0
        # Jobs that would preempt come first: other jobs shrink before any is preempted.
        for decision in sorted(waiting_decisions, key=lambda decision: decision.action is not AdmissionAction.PREEMPT):
            request = requests[decision.job_id]
            new_victims = {victim.job_id for victim in decision.victims} - self.admission_input.stopping
            if (
                decision.victims
                and not new_victims
                and not any(self.nodes_kept.get(victim.job_id) for victim in decision.victims)
            ):
                continue  # The victims stop anyway. If they only shrank, they would free less than the rules count on.
            # If shrinking does not help one job, it does not help another with the same request.
            size = (request.nodes, request.accelerators_per_node, request.instance_types)
            shape = (request.team, request.priority, request.cluster, *size)
            if shape in tried_shapes or len(tried_shapes) == _MAX_TRIED or helped_jobs == _MAX_HELPED:
                continue
            candidates = self._shrink_candidates(request, new_victims, running_jobs)
            if not any(candidate.sizes for candidate in candidates.values()):
                continue
            tried_shapes.add(shape)
            # Jobs that shrinking cannot help do not count against the limit; otherwise they would starve the rest.
            if not self._would_help(request, candidates):
                continue
            helped_jobs += 1
            planned_resizes = self._shrinks_for_job(request, candidates, {victim.job_id for victim in decision.victims})
            if planned_resizes:
                shrinks_by_job[request.job_id] = planned_resizes
        return shrinks_by_job

    def _would_help(self, request: AdmissionRequest, candidates: Mapping[str, ElasticJob]) -> bool:
        """Whether a waiting job starts if all candidates free as many nodes as they can."""
        sizes_left = {job_id: job.nodes - _max_nodes_freed(job) for job_id, job in candidates.items()}
        return self._would_start(request.with_nodes(min(_acceptable_sizes(request))), sizes_left)

    def _shrinks_for_job(
        self, request: AdmissionRequest, candidates: Mapping[str, ElasticJob], victims: Collection[str]
    ) -> tuple[PlannedResize, ...]:
        """Choose the jobs that shrink so that a waiting job starts at its full size, or else at its smallest.

        The candidates that lose least may free nodes but not the quota that the job lacks. So the victims of the queue
        rules are tried next, and then the jobs of each team by themselves.
        """
        teams = sorted(
            {candidate.team for candidate in candidates.values()}, key=lambda team: (team != request.team, team)
        )
        groups = [
            candidates,
            {job_id: job for job_id, job in candidates.items() if job_id in victims},
            *({job_id: job for job_id, job in candidates.items() if job.team == team} for team in teams),
        ]
        groups_to_try = [group for index, group in enumerate(groups) if group and group not in groups[:index]]
        for size in _acceptable_sizes(request):
            resized_request = request.with_nodes(size)
            if self._would_start(resized_request, {}):
                return ()  # the jobs that already stop free enough nodes
            for group in groups_to_try:
                planned_resizes = self._fewest_nodes(
                    resized_request, group, functools.partial(self._would_start, resized_request)
                )
                if planned_resizes:
                    return planned_resizes
        return ()

    def _shrinks_for_replicas(self, demand: AdmissionRequest, running_jobs: list[Job]) -> tuple[PlannedResize, ...]:
        """Choose the jobs that shrink so that replicas of a Deployment find nodes. Replicas use no quota."""

        def fits(sizes_left: Mapping[str, int]) -> bool:
            capacities = self._fleet_after_shrinks(sizes_left).capacities
            return any(fit.fitting >= demand.nodes for fit in pool_fits(demand, capacities, self.scheduling))

        candidates = self._shrink_candidates(demand, set(), running_jobs)
        if not candidates or fits({}):
            return ()
        return self._fewest_nodes(demand, candidates, fits)

    def _satisfied_demands(self) -> dict[str, int]:
        """Return how many nodes each demand of replicas finds, now or after the planned stops. Urgent demands first."""
        capacities = self._fleet_after_shrinks({}).capacities if self.demands else ()
        satisfied_by_demand: dict[str, int] = {}
        for demand in self.demands:
            fitting_nodes = sum(fit.fitting for fit in pool_fits(demand, capacities, self.scheduling))
            satisfied_by_demand[f"{demand.cluster}/{demand.job_id}"] = min(demand.nodes, fitting_nodes)
            capacities = reserve_for_replicas((demand,), capacities, self.scheduling)
        return satisfied_by_demand

    def _fewest_nodes(
        self,
        request: AdmissionRequest,
        candidates: Mapping[str, ElasticJob],
        starts: Callable[[Mapping[str, int]], bool],
    ) -> tuple[PlannedResize, ...]:
        """Free as few nodes as are enough, of the kind of node where the jobs lose least."""
        cheapest_shrinks: tuple[float, tuple[PlannedResize, ...]] | None = None
        for fit in pool_fits(request, self._fleet_after_shrinks({}).capacities, self.scheduling):
            kind = (request.cluster, fit.pool, fit.instance_type)
            jobs = tuple(job for job_id, job in sorted(candidates.items()) if self._kind_of(job_id) == kind)
            useless = sum(len(self._unschedulable_nodes(self.charges[job.job_id])) for job in jobs)
            max_freed = min(sum(_max_nodes_freed(job) for job in jobs), request.nodes + fit.reserved_spares + useless)
            node_counts = range(max(1, request.nodes - fit.fitting), max_freed + 1)
            resizes_by_count: dict[int, tuple[PlannedResize, ...]] = {}

            def is_enough(nodes: int, jobs=jobs, resizes_by_count=resizes_by_count) -> bool:  # type: ignore[no-untyped-def]
                resizes_by_count[nodes] = self._planned_shrinks(jobs, nodes, request.job_id)
                return starts({change.job_id: change.resize.to_nodes for change in resizes_by_count[nodes]})

            index = bisect_left(node_counts, True, key=is_enough)
            if index == len(node_counts):
                continue
            resizes = resizes_by_count[node_counts[index]]
            lost_gpu_seconds = sum(resize.resize.lost_gpu_seconds for resize in resizes)
            if cheapest_shrinks is None or lost_gpu_seconds < cheapest_shrinks[0]:
                cheapest_shrinks = (lost_gpu_seconds, resizes)
        if cheapest_shrinks is None or not any(resize.resize.to_nodes for resize in cheapest_shrinks[1]):
            return ()  # no job would shrink, so the queue rules choose the victims
        self.nodes_kept |= {resize.job_id: resize.resize.to_nodes for resize in cheapest_shrinks[1]}
        return cheapest_shrinks[1]

    def _planned_shrinks(self, jobs: tuple[ElasticJob, ...], nodes: int, waiting_id: str) -> tuple[PlannedResize, ...]:
        facts = ShrinkFacts(jobs=jobs, nodes=nodes, waiting_id=waiting_id)
        return tuple(
            PlannedResize(
                facts=ResizeFacts(job_id=resize.job_id, shrink=facts),
                resize=resize,
                attempt=self.charges[resize.job_id].attempt,
            )
            for resize in plan_shrink(jobs, nodes, NEEDS_IT).resizes
        )

    def _shrink_candidates(
        self, request: AdmissionRequest, new_victims: set[str], running_jobs: list[Job]
    ) -> dict[str, ElasticJob]:
        """Return the jobs that may free nodes for a request, each with the sizes that it may take.

        A victim of the queue rules may shrink to its smallest size, or stop. A job of lower priority in the same queue
        may shrink to its smallest size, but not stop. Every other job may release only nodes beyond its requested
        number, because these nodes were idle before.

        Args:
            request: The request that waits.
            new_victims: Victims of the queue rules that were not asked to stop yet.
            running_jobs: The elastic jobs that run.
        """
        candidates: dict[str, ElasticJob] = {}
        for job in running_jobs:
            elastic_job = self._elastic_job(job)
            if elastic_job.sizes is None or job.job_id in self.nodes_kept or job.job_id == request.job_id:
                continue
            min_size = elastic_job.sizes.legal[0]
            if job.job_id not in new_victims and not self._may_shrink_below_request(request, job):
                min_size = next((size for size in elastic_job.sizes.legal if size >= job.spec.nodes), elastic_job.nodes)
            smaller = tuple(size for size in elastic_job.sizes.legal if min_size <= size <= elastic_job.nodes)
            if smaller and smaller[0] < elastic_job.nodes:
                sizes = Sizes(least=smaller[0], most=elastic_job.nodes, discrete=(*smaller, elastic_job.nodes))
                candidates[job.job_id] = elastic_job.replace(
                    priority=MAY_SHRINK, sizes=sizes, is_preemptable=job.job_id in new_victims
                )
        for job_id in sorted(new_victims - candidates.keys()):
            charge = self.charges.get(job_id)
            if charge is not None and charge.node_names:
                candidates[job_id] = ElasticJob(
                    job_id=job_id,
                    team=charge.team,
                    priority=MAY_SHRINK,
                    nodes=len(charge.node_names),
                    accelerators_per_node=charge.accelerators // len(charge.node_names),
                    resize_seconds=self.scheduling.elastic.resize_seconds,
                    started_at=charge.admitted_at or self.now,
                )
        return candidates

    def _may_shrink_below_request(self, request: AdmissionRequest, job: Job) -> bool:
        if request.priority <= job.priority:
            return False
        team = self.admission_input.setup.by_name.get(request.team)
        if team is None:
            return True  # no teams are set up, or the request is one of serving replicas
        within = team.to_queue().preemption.within
        return request.team == job.spec.team and within is not PreemptionPolicy.NEVER

    def _would_start(self, request: AdmissionRequest, nodes_kept: Mapping[str, int]) -> bool:
        """Whether a job starts after other jobs freed nodes: these and the jobs that already stop.

        Args:
            request: The request that waits.
            nodes_kept: Job → the number of nodes that it keeps.
        """
        fleet = self._fleet_after_shrinks(nodes_kept)
        requests = tuple(
            request if pending_request.job_id == request.job_id else pending_request
            for pending_request in fleet.pending
        )
        capacities = reserve_for_replicas(self.demands, fleet.capacities, self.scheduling)
        decisions = self._decide_queue(fleet._replace(capacities=capacities, pending=requests))
        return any(
            decision.job_id == request.job_id and decision.action is AdmissionAction.ADMIT for decision in decisions
        )

    def _decide_queue(self, admission_input: AdmissionInput) -> tuple[AdmissionDecision, ...]:
        return decide_queue(admission_input, self.policy, self.now)

    def _fleet_after_shrinks(self, nodes_kept: Mapping[str, int]) -> AdmissionInput:
        """Return the fleet after all jobs freed the nodes that they do not keep."""
        keeps, fleet = {**self.nodes_kept, **nodes_kept}, self.fleet
        freed_resources: list[tuple[NodeKey, Resources]] = []
        charges: list[Charge] = []
        for charge in fleet.charges:
            count = keeps.get(charge.job_id, len(charge.node_names))
            ordered_charge = self._schedulable_first(charge) if count < len(charge.node_names) else charge
            freed_resources += [((charge.cluster, name), charge.per_node) for name in ordered_charge.node_names[count:]]
            if count or not charge.node_names:
                charges.append(shrunk_charge(ordered_charge, count))
        capacities = with_freed(fleet.capacities, sum_by_node(freed_resources))
        return fleet._replace(capacities=capacities, charges=tuple(charges), stopping=fleet.stopping - keeps.keys())

    def _unschedulable_nodes(self, charge: Charge) -> set[str]:
        """Return the nodes of a charge on which no pod may start now."""
        return {name for name in charge.node_names if (charge.cluster, name) in self.closed_nodes}

    def _schedulable_first(self, charge: Charge) -> Charge:
        """Return a charge with its unschedulable nodes last. The job frees these first: it cannot start there again."""
        unschedulable_names = self._unschedulable_nodes(charge)
        return charge.replace_unchecked(
            node_names=tuple(sorted(charge.node_names, key=unschedulable_names.__contains__))
        )

    # ------------------------------------------------------------ growing

    def _idle_since(self) -> dict[str, datetime]:
        """Return since when each node that an elastic job could use has been idle."""
        kinds = {self._kind_of(job.job_id) for job in self._running_jobs() if job.spec.sizes}
        if not kinds:
            return {}
        earlier, now = self.admission_input.scheduler_state.elastic.idle_since, self.now
        idle_since = {
            capacity.life.key: earlier.get(capacity.life.key, now)
            for capacity in self.fleet.capacities
            if (capacity.cluster, capacity.pool, capacity.instance_type) in kinds
            and capacity.is_unused
            and capacity.accelerators
        }
        return dict(sorted(idle_since.items(), key=lambda gain: (gain[1], gain[0]))[:_MAX_IDLE_NODES])

    def _plan_growth(self, idle_since: Mapping[str, datetime]) -> PlannedResize | None:
        by_kind: dict[NodeKind, list[Job]] = {}
        for job in self._running_jobs():
            if job.state is JobState.RUNNING:
                by_kind.setdefault(self._kind_of(job.job_id), []).append(job)
        for kind, jobs in sorted(by_kind.items()):
            if kind in self.changing_kinds or self._has_waiting_jobs(kind):
                continue
            planned_resize = self._plan_growth_on(kind, jobs, idle_since)
            if planned_resize is not None:
                return planned_resize
        return None

    def _plan_growth_on(
        self, kind: NodeKind, jobs: list[Job], idle_since: Mapping[str, datetime]
    ) -> PlannedResize | None:
        now, policy = self.now, self.scheduling
        keys = {
            capacity.life.key
            for capacity in self.admission_input.capacities
            if (capacity.cluster, capacity.pool, capacity.instance_type) == kind
        }
        since = sorted(at for key, at in idle_since.items() if key in keys)
        # The nodes that became idle last are the spares: they stay free for recoveries.
        usable = since[: max(0, len(since) - policy.spare_nodes.get(kind[1], 0))]
        if not usable:
            return None
        idle_nodes = IdleNodes(nodes=len(usable), idle_node_seconds=sum((now - at).total_seconds() for at in usable))
        running_jobs = {job.job_id: job for job in jobs}
        elastic_jobs = {job_id: self._elastic_job(job) for job_id, job in running_jobs.items()}
        for _ in range(_MAX_SIZES_TRIED):
            growth = GrowFacts(jobs=tuple(elastic_jobs.values()), idle=idle_nodes, policy=policy.elastic, now=now)
            decision = plan_growth(growth)
            if not decision.resizes:
                return None
            resize = decision.resizes[0]
            if self._would_start_at(running_jobs[resize.job_id], resize.to_nodes):
                charge = self.charges[resize.job_id]
                facts = ResizeFacts(job_id=resize.job_id, growth=growth)
                return PlannedResize(facts=facts, resize=resize, attempt=charge.attempt)
            # Quota or a limit allows less. The job's next smaller size is compared with all other jobs again.
            elastic_job = elastic_jobs[resize.job_id]
            assert elastic_job.sizes is not None  # a job without sizes does not grow
            max_size = elastic_job.sizes.largest_up_to(resize.to_nodes - 1) or elastic_job.sizes.least
            legal = tuple(size for size in elastic_job.sizes.legal if size <= max_size)
            elastic_jobs[resize.job_id] = elastic_job.replace(
                sizes=Sizes(least=legal[0], most=max_size, discrete=legal)
            )
        return None

    def _would_start_at(self, job: Job, nodes: int) -> bool:
        """Whether the rules would start a running job at another size if it waited instead."""
        fleet = self._fleet_after_shrinks({job.job_id: 0})
        request = build_request(job, self.shares, self.policy, self.now).replace_unchecked(
            nodes=nodes, requested_nodes=0, sizes=(), is_resize=True, queued_at=job.queued_at
        )
        decisions = self._decide_queue(fleet._replace(pending=(request,)))
        return any(decision.action is AdmissionAction.ADMIT for decision in decisions)

    def _has_waiting_jobs(self, kind: NodeKind) -> bool:
        """Whether a job waits that could take nodes of a kind, at any of its sizes, if enough were free."""
        return any(
            decision.action in (AdmissionAction.WAIT, AdmissionAction.PREEMPT, AdmissionAction.BLOCKED)
            and decision.facts.request.cluster == kind[0]
            and (
                not decision.facts.fits
                or any(
                    (fit.pool, fit.instance_type) == kind[1:]
                    and fit.total_nodes - fit.leaving
                    >= min((decision.facts.request.nodes, *decision.facts.request.sizes))
                    for fit in decision.facts.fits
                )
            )
            for decision in self.decisions
        ) or any(demand.cluster == kind[0] for demand in self.demands)


def _base_sizes(sizes: Sizes, base_nodes: int, rented_nodes: int) -> Sizes:
    """Return the sizes that the base of a mixed job may have.

    A larger base keeps the rented part if their sum is allowed. Otherwise it must replace all rented nodes.
    """
    legal = tuple(
        size
        for size in sizes.legal
        if size <= base_nodes or size >= base_nodes + rented_nodes or size + rented_nodes in sizes.legal
    )
    return Sizes(least=legal[0], most=legal[-1], discrete=legal)


def _after_admissions(admission_input: AdmissionInput, decisions: Iterable[AdmissionDecision]) -> AdmissionInput:
    """Return the queue after this cycle's admissions: those jobs hold their nodes and no longer wait."""
    admissions = {
        decision.job_id: decision
        for decision in decisions
        if decision.action is AdmissionAction.ADMIT and decision.nodes
    }
    assignments = ((decision.facts.request, decision.nodes) for decision in admissions.values())
    return admission_input._replace(
        capacities=subtract_all_assigned(admission_input.capacities, assignments),
        charges=(*admission_input.charges, *(decision.to_charge() for decision in admissions.values())),
        pending=tuple(request for request in admission_input.pending if request.job_id not in admissions),
    )


def _acceptable_sizes(request: AdmissionRequest) -> tuple[int, ...]:
    """Return the sizes for which nodes are freed: the full and the smallest size, after a fault none below the last."""
    waits_for_spare = bool(request.shrinks_at) and not request.is_resize
    enough = request.sizes_during_spare_wait if waits_for_spare else request.sizes
    return (request.nodes, *enough[:1])


def _max_nodes_freed(job: ElasticJob) -> int:
    """Return how many nodes a job can free: all if it may be stopped, else down to its smallest size."""
    return job.nodes if job.is_preemptable else job.nodes - (job.sizes.legal[0] if job.sizes else job.nodes)


def shrunk_charge(charge: Charge, nodes: int) -> Charge:
    """Return the charge of an attempt that keeps only the first nodes of its list."""
    count = len(charge.node_names)
    if nodes == count:
        return charge
    return charge.replace_unchecked(
        node_names=charge.node_names[:nodes],
        accelerators=charge.accelerators * nodes // count,
        cpu_millis=charge.cpu_millis * nodes // count,
        memory_mib=charge.memory_mib * nodes // count,
        use={
            flavor: {resource: amount * nodes // count for resource, amount in amounts.items()}
            for flavor, amounts in charge.use.items()
        },
    )
