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
from evenkeel.domain.admission.offers import offers_for, without_seats
from evenkeel.domain.admission.request import Request
from evenkeel.domain.admission.resize_facts import (
    MAY_SHRINK,
    NEEDS_IT,
    Facts,
    Fleet,
    Kind,
    Planned,
    ResizeFacts,
    ResizePlan,
    RoomFacts,
    Weigh,
)
from evenkeel.domain.admission.scheduler_state import ElasticMemory
from evenkeel.domain.admission.serving_demand import kept_for
from evenkeel.domain.elastic.grow_shrink import GrowFacts, Idle, grow, make_room
from evenkeel.domain.elastic.sizes import ElasticJob, Sizes
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.kueue.objects import PreemptionPolicy

_MOST_HELPED = 3
"""Waiting jobs, each asking for something else, that a pass tries to make room for: each costs some passes."""
_MOST_TRIED = 12
"""Waiting jobs of which is looked whether anything helps: each costs one pass."""
_MOST_IDLE = 256
"""Idle nodes that are remembered, those that have stood longest."""
_MOST_TRIES = 12
"""Sizes that are tried for one growth."""


def plan(facts: Facts, weigh: Weigh) -> ResizePlan:
    """Decide who changes size now.

    Args:
        facts: The fleet, and what was decided about who waits.
        weigh: The rules of the pass.
    """
    return _Plan(facts, weigh).made()


class _Plan:
    def __init__(self, facts: Facts, weigh: Weigh) -> None:
        self.facts, self.weigh = facts, weigh
        self.charges = {charge.job_id: charge for charge in facts.fleet.charges}
        self.fleet = _seated(facts.fleet, facts.decisions)
        self.closed = {(room.cluster, room.node_name) for room in facts.fleet.rooms if not room.is_open}
        self.left: dict[str, int] = self._under_way()
        """Job that gives nodes back → how many it keeps."""
        self.stands_still = {self._kind(name) for name in self.left if name in self.charges}

    def made(self) -> ResizePlan:
        idle = self._idle()
        room = self._room()
        growth = None if room else self._growth(idle)
        memory = ElasticMemory(
            jobs=tuple(sorted(charge.job_id for charge in self.facts.fleet.charges if charge.is_elastic)),
            resizing=self._resizing(),
            idle_since=idle,
            told=self.facts.memory.told,
        )
        return ResizePlan(room=room, growth=growth, memory=memory, helped=self._helped())

    # ------------------------------------------------------------ what is so

    def _under_way(self) -> dict[str, int]:
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

    def _kind(self, job_id: str) -> Kind:
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

    def _room(self) -> dict[str, tuple[Planned, ...]]:
        found: dict[str, tuple[Planned, ...]] = {}
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
            if decided.action in (Action.WAIT, Action.PREEMPT, Action.NO_QUOTA, Action.BEHIND)
        ]
        tried: set[tuple[object, ...]] = set()
        helped = 0
        # Whoever would have others stopped comes first: they shrink before that.
        for decided in sorted(waiting, key=lambda each: each.action is not Action.PREEMPT):
            request = asked[decided.job_id]
            fresh = {each.job_id for each in decided.victims} - self.facts.fleet.stopping
            if decided.victims and not fresh and not any(self.left.get(each.job_id) for each in decided.victims):
                continue  # they are on their way, whole; one that only shrinks gives less than the queues' rules think
            # What did not help one does not help another that asks for the same.
            size = (request.nodes, request.accelerators_per_node, request.instance_types)
            shape = (request.team, request.priority, request.cluster, *size)
            if shape in tried or len(tried) == _MOST_TRIED or helped == _MOST_HELPED:
                continue
            may = self._candidates(request, fresh, runners)
            if not any(each.sizes for each in may.values()):
                continue
            tried.add(shape)
            # One that nothing helps takes nobody's turn, or a few of those would keep all others from theirs for ever.
            if not self._would_help(request, may):
                continue
            helped += 1
            made = self._for_job(request, may, {each.job_id for each in decided.victims})
            if made:
                found[request.job_id] = made
        return found

    def _would_help(self, request: Request, may: Mapping[str, ElasticJob]) -> bool:
        """Whether a waiting job starts if all give what they can."""
        given = {name: each.nodes - _gives(each) for name, each in may.items()}
        return self._starts(request.at(min(_sizes_that_do(request))), given)

    def _for_job(
        self, request: Request, may: Mapping[str, ElasticJob], victims: Collection[str]
    ) -> tuple[Planned, ...]:
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
        for size in _sizes_that_do(request):
            asked = request.at(size)
            if self._starts(asked, {}):
                return ()  # what is on its way is enough
            for group in tried:
                made = self._fewest(asked, group, functools.partial(self._starts, asked))
                if made:
                    return made
        return ()

    def _for_demand(self, demand: Request, runners: list[Job]) -> tuple[Planned, ...]:
        """Find who shrinks so that pods that are not ours find nodes: quotas are not about them."""

        def fits(left: Mapping[str, int]) -> bool:
            rooms = self._after(left).rooms
            return any(each.fitting >= demand.nodes for each in offers_for(demand, rooms, self.facts.policy))

        may = self._candidates(demand, set(), runners)
        if not may or fits({}):
            return ()
        return self._fewest(demand, may, fits)

    def _helped(self) -> dict[str, int]:
        """Return for how many nodes' worth of each demand there is room, or will be; who is urgent has it first."""
        rooms = self._after({}).rooms
        found: dict[str, int] = {}
        for demand in self.facts.demands:
            fits = sum(offer.fitting for offer in offers_for(demand, rooms, self.facts.policy))
            found[f"{demand.cluster}/{demand.job_id}"] = min(demand.nodes, fits)
            rooms = kept_for((demand,), rooms, self.facts.policy)
        return found

    def _fewest(
        self,
        request: Request,
        may: Mapping[str, ElasticJob],
        starts: Callable[[Mapping[str, int]], bool],
    ) -> tuple[Planned, ...]:
        """Give back as few nodes as will do, of the kind where least is lost."""
        best: tuple[float, tuple[Planned, ...]] | None = None
        for offer in offers_for(request, self._after({}).rooms, self.facts.policy):
            kind = (request.cluster, offer.pool, offer.instance_type)
            jobs = tuple(each for name, each in sorted(may.items()) if self._kind(name) == kind)
            useless = sum(len(self._closed_of(self.charges[each.job_id])) for each in jobs)
            most = min(sum(_gives(each) for each in jobs), request.nodes + offer.kept_back + useless)
            tried = range(max(1, request.nodes - offer.fitting), most + 1)
            made: dict[int, tuple[Planned, ...]] = {}

            def is_enough(nodes: int, jobs=jobs, made=made) -> bool:  # type: ignore[no-untyped-def]
                made[nodes] = self._making(jobs, nodes, request.job_id)
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

    def _making(self, jobs: tuple[ElasticJob, ...], nodes: int, for_whom: str) -> tuple[Planned, ...]:
        facts = RoomFacts(jobs=jobs, nodes=nodes, for_whom=for_whom)
        return tuple(
            Planned(
                facts=ResizeFacts(job_id=each.job_id, room=facts),
                resize=each,
                attempt=self.charges[each.job_id].attempt,
            )
            for each in make_room(jobs, nodes, NEEDS_IT).resizes
        )

    def _candidates(self, request: Request, fresh: set[str], runners: list[Job]) -> dict[str, ElasticJob]:
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
                found[job.job_id] = held.but(priority=MAY_SHRINK, sizes=sizes, may_end=job.job_id in fresh)
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

    def _outranks(self, request: Request, job: Job) -> bool:
        if request.priority <= job.priority:
            return False
        team = self.facts.setup.by_name.get(request.team)
        if team is None:
            return True  # one queue for everybody, or pods that are not ours
        within = team.to_queue().preemption.within
        return request.team == job.spec.team and within is not PreemptionPolicy.NEVER

    def _starts(self, request: Request, left: Mapping[str, int]) -> bool:
        """Whether a job starts once others have given their nodes back, these beside those who were asked before."""
        fleet = self._after(left)
        asked = tuple(request if each.job_id == request.job_id else each for each in fleet.pending)
        rooms = kept_for(self.facts.demands, fleet.rooms, self.facts.policy)
        decisions = self.weigh(fleet._replace(rooms=rooms, pending=asked))
        return any(each.job_id == request.job_id and each.action is Action.ADMIT for each in decisions)

    def _after(self, left: Mapping[str, int]) -> Fleet:
        """Return the fleet once all have given back what they are to."""
        keeps, fleet = {**self.left, **left}, self.fleet
        freed: dict[tuple[str, str], int] = {}
        charges: list[Charge] = []
        for charge in fleet.charges:
            kept = keeps.get(charge.job_id, len(charge.node_names))
            held = self._sound_first(charge) if kept < len(charge.node_names) else charge
            if charge.node_names:
                each = charge.accelerators // len(charge.node_names)
                for name in held.node_names[kept:]:
                    freed[charge.cluster, name] = freed.get((charge.cluster, name), 0) + each
            if kept or not charge.node_names:
                charges.append(_smaller(held, kept))
        rooms = tuple(
            room.model_copy(update={"free": min(room.accelerators, room.free + freed[room.cluster, room.node_name])})
            if (room.cluster, room.node_name) in freed
            else room
            for room in fleet.rooms
        )
        return fleet._replace(rooms=rooms, charges=tuple(charges), stopping=fleet.stopping - keeps.keys())

    def _closed_of(self, charge: Charge) -> set[str]:
        """Return the nodes of a charge that would not be given to anybody now."""
        return {name for name in charge.node_names if (charge.cluster, name) in self.closed}

    def _sound_first(self, charge: Charge) -> Charge:
        """Return a charge in the order in which its job keeps nodes: it cannot start again on one that is closed."""
        closed = self._closed_of(charge)
        return charge.model_copy(update={"node_names": tuple(sorted(charge.node_names, key=closed.__contains__))})

    # ------------------------------------------------------------ who grows

    def _idle(self) -> dict[str, datetime]:
        """Return since when each node has stood idle that an elastic job could use."""
        kinds = {self._kind(job.job_id) for job in self._runners() if job.spec.sizes}
        before, now = self.facts.memory.idle_since, self.facts.now
        found = {
            room.life.key: before.get(room.life.key, now)
            for room in self.fleet.rooms
            if (room.cluster, room.pool, room.instance_type) in kinds and room.is_empty and room.accelerators
        }
        return dict(sorted(found.items(), key=lambda each: (each[1], each[0]))[:_MOST_IDLE])

    def _growth(self, idle: Mapping[str, datetime]) -> Planned | None:
        by_kind: dict[Kind, list[Job]] = {}
        for job in self._runners():
            if job.state is JobState.RUNNING:
                by_kind.setdefault(self._kind(job.job_id), []).append(job)
        for kind, jobs in sorted(by_kind.items()):
            if kind in self.stands_still or self._is_waited_for(kind):
                continue
            planned = self._growth_of(kind, jobs, idle)
            if planned is not None:
                return planned
        return None

    def _growth_of(self, kind: Kind, jobs: list[Job], idle: Mapping[str, datetime]) -> Planned | None:
        now, policy = self.facts.now, self.facts.policy
        keys = {
            room.life.key for room in self.facts.fleet.rooms if (room.cluster, room.pool, room.instance_type) == kind
        }
        since = sorted(at for key, at in idle.items() if key in keys)
        # Spares stay for recoveries: those that have stood for the shortest time.
        usable = since[: max(0, len(since) - policy.spare_nodes.get(kind[1], 0))]
        if not usable:
            return None
        stood = Idle(nodes=len(usable), idle_node_seconds=sum((now - at).total_seconds() for at in usable))
        running = {job.job_id: job for job in jobs}
        weighed = {name: self._elastic(job) for name, job in running.items()}
        for _ in range(_MOST_TRIES):
            growth = GrowFacts(jobs=tuple(weighed.values()), idle=stood, terms=policy.elastic, now=now)
            decided = grow(growth)
            if not decided.resizes:
                return None
            resize = decided.resizes[0]
            if self._may_have(running[resize.job_id], resize.to_nodes):
                charge = self.charges[resize.job_id]
                facts = ResizeFacts(job_id=resize.job_id, growth=growth)
                return Planned(facts=facts, resize=resize, attempt=charge.attempt)
            # Its quota, or a limit, holds less: the next smaller size is weighed against all others anew.
            found = weighed[resize.job_id]
            assert found.sizes is not None  # or it would not grow
            most = found.sizes.at_most(resize.to_nodes - 1) or found.sizes.least
            legal = tuple(size for size in found.sizes.legal if size <= most)
            weighed[resize.job_id] = found.but(sizes=Sizes(least=legal[0], most=most, discrete=legal))
        return None

    def _may_have(self, job: Job, nodes: int) -> bool:
        """Whether the rules would start a job at a size, were it not running."""
        fleet = self._after({job.job_id: 0})
        asked = self.facts.asked_by(job).model_copy(
            update={"nodes": nodes, "wanted": 0, "sizes": (), "is_resize": True, "queued_at": job.queued_at}
        )
        decisions = self.weigh(fleet._replace(pending=(asked,)))
        return any(each.action is Action.ADMIT for each in decisions)

    def _is_waited_for(self, kind: Kind) -> bool:
        """Whether somebody waits who could take nodes of a kind at any of its sizes, were they enough."""
        return any(
            decided.action in (Action.WAIT, Action.PREEMPT, Action.BEHIND)
            and decided.facts.request.cluster == kind[0]
            and (
                not decided.facts.offers
                or any(
                    (offer.pool, offer.instance_type) == kind[1:]
                    and offer.in_fleet - offer.leaving
                    >= min((decided.facts.request.nodes, *decided.facts.request.sizes))
                    for offer in decided.facts.offers
                )
            )
            for decided in self.facts.decisions
        ) or any(demand.cluster == kind[0] for demand in self.facts.demands)


def _seated(fleet: Fleet, decisions: Iterable[AdmissionDecision]) -> Fleet:
    """Return the fleet with those in their seats whom this very pass admits: what is tried after that is not theirs."""
    started = {decided.job_id: decided for decided in decisions if decided.action is Action.ADMIT and decided.nodes}
    rooms = fleet.rooms
    for decided in started.values():
        rooms = without_seats(rooms, decided.facts.request, decided.nodes)
    return fleet._replace(
        rooms=rooms,
        charges=(*fleet.charges, *(decided.to_charge() for decided in started.values())),
        pending=tuple(request for request in fleet.pending if request.job_id not in started),
    )


def _sizes_that_do(request: Request) -> tuple[int, ...]:
    """Return the sizes that room is made for: all that a job asks for, and its least; after a fault what it had."""
    is_patient = bool(request.shrinks_at) and not request.is_resize
    enough = request.patient_sizes if is_patient else request.sizes
    return (request.nodes, *enough[:1])


def _gives(job: ElasticJob) -> int:
    """Return how many nodes a job can give: all where it may end, else down to its least size."""
    return job.nodes if job.may_end else job.nodes - (job.sizes.legal[0] if job.sizes else job.nodes)


def _smaller(charge: Charge, nodes: int) -> Charge:
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
