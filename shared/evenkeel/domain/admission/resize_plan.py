"""Which running jobs a pass asks to stop so that their next attempts run on another number of nodes.

    somebody waits ──▶ would it start if jobs that may shrink did? ──▶ they shrink, who loses least, before any is ended
    nobody waits   ──▶ have idle nodes paid for a resize by now?   ──▶ one job grows

`elastic.py` says by how much and at what loss. Whether the result then starts, the rules of the pass themselves say, on
a world in which the nodes are given back already: so quota, limits and machines hold at every size.
"""

import functools
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime

from evenkeel.domain.admission.decide import Action, AdmissionDecision
from evenkeel.domain.admission.offers import pool_fits, subtract_assigned
from evenkeel.domain.admission.request import AdmissionRequest
from evenkeel.domain.admission.resize_facts import (
    MAY_SHRINK,
    NEEDS_IT,
    CycleFleet,
    DecideFleet,
    NodeKind,
    PlannedResize,
    ResizeFacts,
    ResizeInputs,
    ResizePlan,
    ShrinkFacts,
)
from evenkeel.domain.admission.scheduler_state import ElasticState
from evenkeel.domain.admission.serving_demand import reserve_for_replicas
from evenkeel.domain.elastic.grow_shrink import GrowFacts, IdleNodes, plan_growth, plan_shrink
from evenkeel.domain.elastic.sizes import ElasticJob, Sizes
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.kueue.objects import PreemptionPolicy

_MAX_HELPED = 3
"""Waiting jobs, each asking for something else, that a pass tries to make room for: each costs some passes."""
_MAX_TRIED = 12
"""Waiting jobs of which is looked whether anything helps: each costs one pass."""
_MAX_IDLE_NODES = 256
"""Idle nodes that are remembered, those that have stood longest."""
_MAX_SIZES_TRIED = 12
"""Sizes that are tried for one growth."""


def plan(facts: ResizeInputs, weigh: DecideFleet) -> ResizePlan:
    """Decide who changes size now.

    Args:
        facts: The fleet, and what was decided about who waits.
        weigh: The rules of the pass.
    """
    return _Planner(facts, weigh).made()


class _Planner:
    def __init__(self, facts: ResizeInputs, weigh: DecideFleet) -> None:
        self.facts, self.weigh = facts, weigh
        self.charges = {charge.job_id: charge for charge in facts.fleet.charges}
        self.fleet = _with_admitted(facts.fleet, facts.decisions)
        self.closed = {
            (capacity.cluster, capacity.node_name) for capacity in facts.fleet.capacities if not capacity.is_open
        }
        self.left: dict[str, int] = self._freed_by_running_resizes()
        """Job that gives nodes back → how many it keeps."""
        self.stands_still = {self._kind(name) for name in self.left if name in self.charges}

    def made(self) -> ResizePlan:
        idle = self._idle()
        shrinks_by_waiter = self._plan_shrinks()
        growth = None if shrinks_by_waiter else self._growth(idle)
        memory = ElasticState(
            jobs=tuple(sorted(charge.job_id for charge in self.facts.fleet.charges if charge.is_elastic)),
            resizing=self._resizing(),
            idle_since=idle,
            last_announced=self.facts.memory.last_announced,
        )
        return ResizePlan(
            shrinks_by_waiter=shrinks_by_waiter,
            growth=growth,
            memory=memory,
            satisfied_demands=self._satisfied_demands(),
        )

    # ------------------------------------------------------------ what is so

    def _freed_by_running_resizes(self) -> dict[str, int]:
        """Return what those who were asked already will have left."""
        found = {name: 0 for name in self.facts.leaving if name in self.charges}
        for name, job in self.facts.jobs.items():
            wish = job.live_resize()
            if wish and name in self.charges:
                found[name] = min(wish.nodes, len(self.charges[name].node_names))
        return found

    def _resizing(self) -> tuple[str, ...]:
        return tuple(
            name for name in self.facts.memory.resizing if (job := self.facts.jobs.get(name)) and job.live_resize()
        )

    def _kind(self, job_id: str) -> NodeKind:
        charge = self.charges[job_id]
        return (charge.cluster, charge.pool, charge.instance_type)

    def _elastic(self, job: Job) -> ElasticJob:
        charge = self.charges[job.job_id]
        return ElasticJob(
            job_id=job.job_id,
            team=job.spec.team,
            priority=job.priority,
            nodes=len(charge.node_names),
            accelerators_per_node=job.spec.accelerators_per_node,
            sizes=job.spec.sizes,
            resize_seconds=self.facts.policy.elastic.resize_seconds,
            resized_at=job.resized_at,
            failed_growths=job.failed_growths,
            growth_failed_at=job.growth_failed_at,
            is_resizing=job.stop_of(job.current_attempt) is not None,
            started_at=charge.admitted_at or self.facts.now,
        )

    def _runners(self) -> list[Job]:
        """Return the elastic jobs that run and that nobody has asked to stop."""
        return [
            job
            for name, job in sorted(self.facts.jobs.items())
            if name in self.charges
            and self.charges[name].node_names
            and self.charges[name].attempt == job.current_attempt
            and job.state in (JobState.STARTING, JobState.RUNNING)
            and job.stop_of(job.current_attempt) is None
        ]

    # ------------------------------------------------------------ who makes room

    def _plan_shrinks(self) -> dict[str, tuple[PlannedResize, ...]]:
        found: dict[str, tuple[PlannedResize, ...]] = {}
        runners = self._runners()
        if not runners:
            return found
        for demand in self.facts.demands:
            made = self._for_demand(demand, runners)
            if made:
                found[demand.job_id] = made
        asked = {request.job_id: request for request in self.facts.fleet.pending}
        waiting = [
            decided
            for decided in self.facts.decisions
            if decided.action in (Action.WAIT, Action.PREEMPT, Action.NO_QUOTA, Action.BLOCKED)
        ]
        tried: set[tuple[object, ...]] = set()
        satisfied_demands = 0
        # Whoever would have others stopped comes first: they shrink before that.
        for decided in sorted(waiting, key=lambda each: each.action is not Action.PREEMPT):
            request = asked[decided.job_id]
            fresh = {each.job_id for each in decided.victims} - self.facts.fleet.stopping
            if decided.victims and not fresh and not any(self.left.get(each.job_id) for each in decided.victims):
                continue  # they are on their way, whole; one that only shrinks gives less than the queues' rules think
            # What did not help one does not help another that asks for the same.
            size = (request.nodes, request.accelerators_per_node, request.instance_types)
            shape = (request.team, request.priority, request.cluster, *size)
            if shape in tried or len(tried) == _MAX_TRIED or satisfied_demands == _MAX_HELPED:
                continue
            may = self._candidates(request, fresh, runners)
            if not any(each.sizes for each in may.values()):
                continue
            tried.add(shape)
            # One that nothing helps takes nobody's turn, or a few of those would keep all others from theirs for ever.
            if not self._would_help(request, may):
                continue
            satisfied_demands += 1
            made = self._for_job(request, may, {each.job_id for each in decided.victims})
            if made:
                found[request.job_id] = made
        return found

    def _would_help(self, request: AdmissionRequest, may: Mapping[str, ElasticJob]) -> bool:
        """Whether a waiting job starts if all give what they can."""
        given = {name: each.nodes - _max_nodes_freed(each) for name, each in may.items()}
        return self._would_start(request.at(min(_acceptable_sizes(request))), given)

    def _for_job(
        self, request: AdmissionRequest, may: Mapping[str, ElasticJob], victims: Collection[str]
    ) -> tuple[PlannedResize, ...]:
        """Find who shrinks so that a waiting job starts, in full or at least.

        Those who lose least may give nodes and not the quota that it lacks: then whom the queues' rules let go, then
        the jobs of each team by themselves.
        """
        teams = sorted({each.team for each in may.values()}, key=lambda team: (team != request.team, team))
        groups = [
            may,
            {name: each for name, each in may.items() if name in victims},
            *({name: each for name, each in may.items() if each.team == team} for team in teams),
        ]
        tried = [group for index, group in enumerate(groups) if group and group not in groups[:index]]
        for size in _acceptable_sizes(request):
            asked = request.at(size)
            if self._would_start(asked, {}):
                return ()  # what is on its way is enough
            for group in tried:
                made = self._fewest_nodes(asked, group, functools.partial(self._would_start, asked))
                if made:
                    return made
        return ()

    def _for_demand(self, demand: AdmissionRequest, runners: list[Job]) -> tuple[PlannedResize, ...]:
        """Find who shrinks so that pods that are not ours find nodes: quotas are not about them."""

        def fits(left: Mapping[str, int]) -> bool:
            capacities = self._fleet_after(left).capacities
            return any(each.fitting >= demand.nodes for each in pool_fits(demand, capacities, self.facts.policy))

        may = self._candidates(demand, set(), runners)
        if not may or fits({}):
            return ()
        return self._fewest_nodes(demand, may, fits)

    def _satisfied_demands(self) -> dict[str, int]:
        """Return for how many nodes' worth of each demand there is room, or will be; who is urgent has it first."""
        capacities = self._fleet_after({}).capacities
        found: dict[str, int] = {}
        for demand in self.facts.demands:
            fits = sum(offer.fitting for offer in pool_fits(demand, capacities, self.facts.policy))
            found[f"{demand.cluster}/{demand.job_id}"] = min(demand.nodes, fits)
            capacities = reserve_for_replicas((demand,), capacities, self.facts.policy)
        return found

    def _fewest_nodes(
        self,
        request: AdmissionRequest,
        may: Mapping[str, ElasticJob],
        starts: Callable[[Mapping[str, int]], bool],
    ) -> tuple[PlannedResize, ...]:
        """Give back as few nodes as will do, of the kind where least is lost."""
        best: tuple[float, tuple[PlannedResize, ...]] | None = None
        for offer in pool_fits(request, self._fleet_after({}).capacities, self.facts.policy):
            kind = (request.cluster, offer.pool, offer.instance_type)
            jobs = tuple(each for name, each in sorted(may.items()) if self._kind(name) == kind)
            useless = sum(len(self._unschedulable_nodes(self.charges[each.job_id])) for each in jobs)
            most = min(sum(_max_nodes_freed(each) for each in jobs), request.nodes + offer.reserved_spares + useless)
            tried = range(max(1, request.nodes - offer.fitting), most + 1)
            made: dict[int, tuple[PlannedResize, ...]] = {}

            def is_enough(nodes: int, jobs=jobs, made=made) -> bool:  # type: ignore[no-untyped-def]
                made[nodes] = self._planned_shrinks(jobs, nodes, request.job_id)
                return starts({each.job_id: each.resize.to_nodes for each in made[nodes]})

            index = bisect_left(tried, True, key=is_enough)
            if index == len(tried):
                continue
            plan = made[tried[index]]
            lost = sum(each.resize.lost_gpu_seconds for each in plan)
            if best is None or lost < best[0]:
                best = (lost, plan)
        if best is None or not any(each.resize.to_nodes for each in best[1]):
            return ()  # if nobody shrinks, the queues' rules say who goes
        self.left |= {each.job_id: each.resize.to_nodes for each in best[1]}
        return best[1]

    def _planned_shrinks(self, jobs: tuple[ElasticJob, ...], nodes: int, waiting_id: str) -> tuple[PlannedResize, ...]:
        facts = ShrinkFacts(jobs=jobs, nodes=nodes, waiting_id=waiting_id)
        return tuple(
            PlannedResize(
                facts=ResizeFacts(job_id=each.job_id, shrink=facts),
                resize=each,
                attempt=self.charges[each.job_id].attempt,
            )
            for each in plan_shrink(jobs, nodes, NEEDS_IT).resizes
        )

    def _candidates(self, request: AdmissionRequest, fresh: set[str], runners: list[Job]) -> dict[str, ElasticJob]:
        """Return who may give nodes to somebody, each with the sizes that it may have.

        Whom the queues' rules let go may shrink as far as it can, or end; so may whom the job outranks in its own
        queue, but not end. Anybody gives back what it holds beyond what it asked for: that was idle when it took it.
        """
        found: dict[str, ElasticJob] = {}
        for job in runners:
            held = self._elastic(job)
            if held.sizes is None or job.job_id in self.left or job.job_id == request.job_id:
                continue
            least = held.sizes.legal[0]
            if job.job_id not in fresh and not self._outranks(request, job):
                least = next((size for size in held.sizes.legal if size >= job.spec.nodes), held.nodes)
            smaller = tuple(size for size in held.sizes.legal if least <= size <= held.nodes)
            if smaller and smaller[0] < held.nodes:
                sizes = Sizes(least=smaller[0], most=held.nodes, discrete=(*smaller, held.nodes))
                found[job.job_id] = held.but(priority=MAY_SHRINK, sizes=sizes, is_preemptable=job.job_id in fresh)
        for name in sorted(fresh - found.keys()):
            charge = self.charges.get(name)
            if charge is not None and charge.node_names:
                found[name] = ElasticJob(
                    job_id=name,
                    team=charge.team,
                    priority=MAY_SHRINK,
                    nodes=len(charge.node_names),
                    accelerators_per_node=charge.accelerators // len(charge.node_names),
                    resize_seconds=self.facts.policy.elastic.resize_seconds,
                    started_at=charge.admitted_at or self.facts.now,
                )
        return found

    def _outranks(self, request: AdmissionRequest, job: Job) -> bool:
        if request.priority <= job.priority:
            return False
        team = self.facts.setup.by_name.get(request.team)
        if team is None:
            return True  # one queue for everybody, or pods that are not ours
        within = team.to_queue().preemption.within
        return request.team == job.spec.team and within is not PreemptionPolicy.NEVER

    def _would_start(self, request: AdmissionRequest, left: Mapping[str, int]) -> bool:
        """Whether a job starts once others have given their nodes back, these beside those who were asked before."""
        fleet = self._fleet_after(left)
        asked = tuple(request if each.job_id == request.job_id else each for each in fleet.pending)
        capacities = reserve_for_replicas(self.facts.demands, fleet.capacities, self.facts.policy)
        decisions = self.weigh(fleet._replace(capacities=capacities, pending=asked))
        return any(each.job_id == request.job_id and each.action is Action.ADMIT for each in decisions)

    def _fleet_after(self, left: Mapping[str, int]) -> CycleFleet:
        """Return the fleet once all have given back what they are to."""
        keeps, fleet = {**self.left, **left}, self.fleet
        freed: dict[tuple[str, str], int] = {}
        charges: list[Charge] = []
        for charge in fleet.charges:
            kept = keeps.get(charge.job_id, len(charge.node_names))
            held = self._healthy_first(charge) if kept < len(charge.node_names) else charge
            if charge.node_names:
                each = charge.accelerators // len(charge.node_names)
                for name in held.node_names[kept:]:
                    freed[charge.cluster, name] = freed.get((charge.cluster, name), 0) + each
            if kept or not charge.node_names:
                charges.append(_shrunk_charge(held, kept))
        capacities = tuple(
            capacity.model_copy(
                update={"free": min(capacity.accelerators, capacity.free + freed[capacity.cluster, capacity.node_name])}
            )
            if (capacity.cluster, capacity.node_name) in freed
            else capacity
            for capacity in fleet.capacities
        )
        return fleet._replace(capacities=capacities, charges=tuple(charges), stopping=fleet.stopping - keeps.keys())

    def _unschedulable_nodes(self, charge: Charge) -> set[str]:
        """Return the nodes of a charge that would not be given to anybody now."""
        return {name for name in charge.node_names if (charge.cluster, name) in self.closed}

    def _healthy_first(self, charge: Charge) -> Charge:
        """Return a charge in the order in which its job keeps nodes: it cannot start again on one that is closed."""
        closed = self._unschedulable_nodes(charge)
        return charge.model_copy(update={"node_names": tuple(sorted(charge.node_names, key=closed.__contains__))})

    # ------------------------------------------------------------ who grows

    def _idle(self) -> dict[str, datetime]:
        """Return since when each node has stood idle that an elastic job could use."""
        kinds = {self._kind(job.job_id) for job in self._runners() if job.spec.sizes}
        before, now = self.facts.memory.idle_since, self.facts.now
        found = {
            capacity.life.key: before.get(capacity.life.key, now)
            for capacity in self.fleet.capacities
            if (capacity.cluster, capacity.pool, capacity.instance_type) in kinds
            and capacity.is_unused
            and capacity.accelerators
        }
        return dict(sorted(found.items(), key=lambda each: (each[1], each[0]))[:_MAX_IDLE_NODES])

    def _growth(self, idle: Mapping[str, datetime]) -> PlannedResize | None:
        by_kind: dict[NodeKind, list[Job]] = {}
        for job in self._runners():
            if job.state is JobState.RUNNING:
                by_kind.setdefault(self._kind(job.job_id), []).append(job)
        for kind, jobs in sorted(by_kind.items()):
            if kind in self.stands_still or self._has_waiting_jobs(kind):
                continue
            planned = self._growth_of(kind, jobs, idle)
            if planned is not None:
                return planned
        return None

    def _growth_of(self, kind: NodeKind, jobs: list[Job], idle: Mapping[str, datetime]) -> PlannedResize | None:
        now, policy = self.facts.now, self.facts.policy
        keys = {
            capacity.life.key
            for capacity in self.facts.fleet.capacities
            if (capacity.cluster, capacity.pool, capacity.instance_type) == kind
        }
        since = sorted(at for key, at in idle.items() if key in keys)
        # Spares stay for recoveries: those that have stood for the shortest time.
        usable = since[: max(0, len(since) - policy.spare_nodes.get(kind[1], 0))]
        if not usable:
            return None
        stood = IdleNodes(nodes=len(usable), idle_node_seconds=sum((now - at).total_seconds() for at in usable))
        running = {job.job_id: job for job in jobs}
        weighed = {name: self._elastic(job) for name, job in running.items()}
        for _ in range(_MAX_SIZES_TRIED):
            growth = GrowFacts(jobs=tuple(weighed.values()), idle=stood, terms=policy.elastic, now=now)
            decided = plan_growth(growth)
            if not decided.resizes:
                return None
            resize = decided.resizes[0]
            if self._would_start_at(running[resize.job_id], resize.to_nodes):
                charge = self.charges[resize.job_id]
                facts = ResizeFacts(job_id=resize.job_id, growth=growth)
                return PlannedResize(facts=facts, resize=resize, attempt=charge.attempt)
            # Its quota, or a limit, holds less: the next smaller size is weighed against all others anew.
            found = weighed[resize.job_id]
            assert found.sizes is not None  # or it would not grow
            most = found.sizes.at_most(resize.to_nodes - 1) or found.sizes.least
            legal = tuple(size for size in found.sizes.legal if size <= most)
            weighed[resize.job_id] = found.but(sizes=Sizes(least=legal[0], most=most, discrete=legal))
        return None

    def _would_start_at(self, job: Job, nodes: int) -> bool:
        """Whether the rules would start a job at a size, were it not running."""
        fleet = self._fleet_after({job.job_id: 0})
        asked = self.facts.to_request(job).model_copy(
            update={"nodes": nodes, "wanted": 0, "sizes": (), "is_resize": True, "queued_at": job.queued_at}
        )
        decisions = self.weigh(fleet._replace(pending=(asked,)))
        return any(each.action is Action.ADMIT for each in decisions)

    def _has_waiting_jobs(self, kind: NodeKind) -> bool:
        """Whether somebody waits who could take nodes of a kind at any of its sizes, were they enough."""
        return any(
            decided.action in (Action.WAIT, Action.PREEMPT, Action.BLOCKED)
            and decided.facts.request.cluster == kind[0]
            and (
                not decided.facts.offers
                or any(
                    (offer.pool, offer.instance_type) == kind[1:]
                    and offer.total_nodes - offer.leaving
                    >= min((decided.facts.request.nodes, *decided.facts.request.sizes))
                    for offer in decided.facts.offers
                )
            )
            for decided in self.facts.decisions
        ) or any(demand.cluster == kind[0] for demand in self.facts.demands)


def _with_admitted(fleet: CycleFleet, decisions: Iterable[AdmissionDecision]) -> CycleFleet:
    """Return the fleet with those in their seats whom this very pass admits: what is tried after that is not theirs."""
    started = {decided.job_id: decided for decided in decisions if decided.action is Action.ADMIT and decided.nodes}
    capacities = fleet.capacities
    for decided in started.values():
        capacities = subtract_assigned(capacities, decided.facts.request, decided.nodes)
    return fleet._replace(
        capacities=capacities,
        charges=(*fleet.charges, *(decided.to_charge() for decided in started.values())),
        pending=tuple(request for request in fleet.pending if request.job_id not in started),
    )


def _acceptable_sizes(request: AdmissionRequest) -> tuple[int, ...]:
    """Return the sizes that room is made for: all that a job asks for, and its least; after a fault what it had."""
    is_patient = bool(request.shrinks_at) and not request.is_resize
    enough = request.sizes_during_spare_wait if is_patient else request.sizes
    return (request.nodes, *enough[:1])


def _max_nodes_freed(job: ElasticJob) -> int:
    """Return how many nodes a job can give: all where it may end, else down to its least size."""
    return job.nodes if job.is_preemptable else job.nodes - (job.sizes.legal[0] if job.sizes else job.nodes)


def _shrunk_charge(charge: Charge, nodes: int) -> Charge:
    """Return what an attempt would hold on so many of its nodes."""
    count = len(charge.node_names)
    if nodes == count:
        return charge
    return charge.model_copy(
        update={
            "node_names": charge.node_names[:nodes],
            "accelerators": charge.accelerators * nodes // count,
            "use": {
                flavor: {resource: amount * nodes // count for resource, amount in amounts.items()}
                for flavor, amounts in charge.use.items()
            },
        }
    )
