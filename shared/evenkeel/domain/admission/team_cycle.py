"""A pass where teams share the fleet: who goes next by quota, and where by the machines that are there.

    who holds quota ─┐
    recoveries ──────┼─▶ cycles until nothing moves ─▶ one decision for each job
    heads of queues ─┘         │ quota, then seats: both or neither

Recoveries are weighed in cycles of their own before all others, may take spares, and what is their own is kept for them
while they wait for machines. It is kept for other interrupted jobs, too, so that no younger job takes their nodes. What
quota allows and machines do not is an answer of its own: it is parked, or holds up its queue, as the queue's strategy
says; and even then only those of its queue who could take the same machines.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from evenkeel.domain.admission.decide import (
    Action,
    AdmissionDecision,
    AdmissionFacts,
    decide,
    from_quota_decision,
    with_preemption,
)
from evenkeel.domain.admission.fifo import FifoBarrier
from evenkeel.domain.admission.offers import (
    PoolFit,
    PreemptionPlan,
    PreemptionVictim,
    best_fit,
    missing_efa,
    pool_fits,
    stays_long_enough,
    subtract_assigned,
    why_no_fit,
)
from evenkeel.domain.admission.policy import SchedulingPolicy
from evenkeel.domain.admission.request import AdmissionRequest
from evenkeel.domain.admission.scheduler_state import SchedulerState
from evenkeel.domain.capacity import instance_types
from evenkeel.domain.capacity.node_capacity import NodeCapacity
from evenkeel.domain.economics.policy import EconomyPolicy
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.kueue import own
from evenkeel.domain.kueue.assignment import Assignment
from evenkeel.domain.kueue.decisions import CycleDecision, Result
from evenkeel.domain.kueue.hyperpod import INSTANCE_TYPE_LABEL
from evenkeel.domain.kueue.objects import Amounts, QueueingStrategy, Workload
from evenkeel.domain.kueue.preemption import Demand, Victim, preemptable_victims
from evenkeel.domain.kueue.queue_manifests import Expression
from evenkeel.domain.kueue.scheduler import Scheduler
from evenkeel.domain.kueue.setup import Declared, Profile
from evenkeel.domain.nodes import NodeLife
from evenkeel.domain.quotas import flavor_matching
from evenkeel.domain.quotas.holder_documents import QuotaHolder, holder_document
from evenkeel.domain.quotas.quota_facts import CycleState, DocumentCache, quota_facts_of
from evenkeel.domain.quotas.spending import Spent, UsageLimit, usage_limits
from evenkeel.domain.quotas.teams import TeamSetup

_MAX_CYCLES = 2000
_NEUTRAL_FIELDS: Mapping[str, Any] = {"job_id": "", "owner": "", "submitted_at": None, "queued_at": None}
"""What tells two requests apart and no machine asks about."""


class TeamCycleSnapshot(NamedTuple):
    """All that one pass rests on."""

    setup: TeamSetup
    capacities: tuple[NodeCapacity, ...]
    pending: tuple[AdmissionRequest, ...]
    charges: tuple[Charge, ...] = ()
    stopping: frozenset[str] = frozenset()
    """Jobs that somebody asked to stop: a person, a recovery, or an earlier pass."""
    memory: SchedulerState = SchedulerState()
    spent: Mapping[tuple[str, str], Spent] = {}
    """(team, period's name) → what its settled attempts held."""
    last_reasons: Mapping[str, str] = {}
    """Job → why it waits, as it was said last: nothing is recorded twice, so no facts are gathered for it either."""
    used: Mapping[str, Mapping[str, float]] = {}
    """Team whose queue goes by use → submitter → accelerators that are left of what it used and holds no more."""
    work_at_risk_by_job: Mapping[str, float] = {}
    """Job that holds a charge → accelerator-seconds of work that would be lost if it had to go now."""
    unreadable: frozenset[str] = frozenset()
    """Clusters that cannot be read: the jobs there hold their quota, and none of them is asked to stop."""


class _QueueDecision(NamedTuple):
    decision: CycleDecision
    moment: CycleState
    offers: tuple[PoolFit, ...]


def run_team_cycle(
    snapshot: TeamCycleSnapshot, policy: SchedulingPolicy, economy: EconomyPolicy, now: datetime
) -> tuple[AdmissionDecision, ...]:
    """Decide about every pending job. Never over a limit, never more on a node than is free there.

    Returns:
        One decision a job, in the order in which they are to be carried out: each is right with those before it.
    """
    last: frozenset[str] = frozenset()
    while True:
        answers = _TeamCycle(snapshot, policy, economy, now, last).run()
        started = {answer.job_id for answer in answers if answer.action is Action.ADMIT}
        # Nobody is started to be stopped for another at once: it comes last, and takes what is left.
        in_vain = started & {victim.job_id for answer in answers for victim in answer.victims}
        if in_vain <= last:
            return answers
        last |= in_vain


class _TeamCycle:
    def __init__(
        self,
        snapshot: TeamCycleSnapshot,
        policy: SchedulingPolicy,
        economy: EconomyPolicy,
        now: datetime,
        last: frozenset[str] = frozenset(),
    ) -> None:
        self.snapshot, self.policy, self.economy, self.now = snapshot, policy, economy, now
        self.last = last
        """Jobs that are weighed after all others."""
        self.capacities = snapshot.capacities
        self.catalogue = instance_types.shipped()
        found = snapshot.setup.queues
        self.queues = {queue.name: queue for queue in found.queues}
        self.flavors = {each.name: flavor_matching.with_labels(each) for each in found.flavors}
        self.declared = Declared(Profile.EVENKEEL, found.rules)
        self.declared.queues = dict(self.queues)
        self.scheduler = Scheduler(found.queues, found.cohorts, self.flavors.values(), found.rules, self._assign_nodes)
        self.requests: dict[str, AdmissionRequest] = {}
        """Those that are weighed."""
        self.jobs: dict[str, own.OwnJob] = {}
        """The same, as the rules of queues read them."""
        self.notes = DocumentCache()
        self.meant: dict[frozenset[str], Callable[[NodeCapacity], bool] | None] = {}
        self.reservation_holders = frozenset(capacity.reserved_for for capacity in self.capacities)
        """Jobs for which machines are rented."""
        self.offered: tuple[tuple[NodeCapacity, ...], dict[AdmissionRequest, tuple[PoolFit, ...]]] = (
            self.capacities,
            {},
        )
        """Machines, and what they could give to any job that asks for just this."""
        self.turns: dict[str, _QueueDecision] = {}
        self.offers: dict[str, tuple[PoolFit, ...]] = {}
        """Of those who were asked about in this cycle."""
        self.decided: dict[str, AdmissionDecision] = {}
        """Final ones, in their order."""
        self.waits: dict[str, AdmissionDecision] = {}
        """Of those who were weighed and wait."""
        self.answered: dict[str, tuple[str, Mapping[str, str]]] = {}
        """By queue, once all stands still: the first who was weighed, and the first of each parked shape."""
        self.lines: dict[str, FifoBarrier] = {}
        self.unplaced: dict[str, _QueueDecision] = {}
        """Turns in which quota was there and machines were not, while the scan of the flavors goes on."""
        self.kept: dict[str, tuple[str, Amounts]] = {}
        """Job that waits for machines only → (queue, what is kept for it)."""
        self.reserved_nodes: dict[str, tuple[NodeLife, ...]] = {}
        """The same → machines that are kept for it."""
        self.preemption_plans: dict[str, PreemptionPlan | None] = {}
        """By job that has quota and no machines, and takes the place of others."""
        self.started: dict[str, list[Charge]] = {}
        """By team, what this pass admitted: it counts for its limits."""
        self._load_usage()

    # ------------------------------------------------------------ who holds quota

    def _load_usage(self) -> None:
        scheduler = self.scheduler
        scheduler.snapshot.now = self.now.timestamp()
        for name, submitters in self.snapshot.used.items():
            resource = flavor_matching.resource_of((), self.queues[name], self.catalogue)
            for submitter, left in submitters.items():
                scheduler.add_past_use(name, submitter, {resource: left})
        for charge in sorted(self.snapshot.charges, key=lambda each: (each.admitted_at or self.now, each.job_id)):
            queue = self.queues.get(charge.queue or charge.team)
            use = flavor_matching.quota_use(charge, queue, self.flavors, self.catalogue) if queue else {}
            if queue is None or not use:
                continue
            document = holder_document(
                QuotaHolder(
                    charge.job_id,
                    queue.name,
                    use,
                    max(1, len(charge.node_names)),
                    charge.priority,
                    (charge.admitted_at or self.now).timestamp(),
                    queued_at=charge.queued_at.timestamp() if charge.queued_at else 0.0,
                    is_evicted=charge.job_id in self.snapshot.stopping,
                    sub_queue=charge.owner if queue.by_use else "",
                    work_at_risk=self.snapshot.work_at_risk_by_job.get(charge.job_id),
                    is_pinned=charge.cluster in self.snapshot.unreadable,
                )
            )
            holder = self.declared.job(document, charge.job_id).admitted
            assert holder is not None
            scheduler.restore(holder)
        for each in self.snapshot.memory.evictions:
            scheduler.snapshot.evicted_at[frozenset((each.preemptor, each.victim))] = each.at.timestamp()

    # ------------------------------------------------------------ who is weighed

    def run(self) -> tuple[AdmissionDecision, ...]:
        waiting = sorted(self.snapshot.pending, key=lambda each: each.queue_order_key)
        for request in waiting:
            if not self._is_decided_without_quota(request):
                self.requests[request.job_id] = request
                self.jobs[request.job_id] = self._job(request)
        for turn in (0, 1, 2):
            # Who was admitted in a turn before counts for the limits of this one.
            names = [
                name
                for name, each in self.requests.items()
                if turn == self._queue_decision(each) and not self._is_over_limit(each)
            ]
            for name in names:
                self.scheduler.submit(self.jobs[name].to_workload(self.requests[name].priority))
            self._keep_heads(names)
            self._run_until_stable()
        for request in waiting:
            if request.job_id not in self.decided:
                self.decided[request.job_id] = self._why_waiting(request)
        return tuple(self.decided.values())

    def _queue_decision(self, request: AdmissionRequest) -> int:
        return 2 if request.job_id in self.last else 0 if request.has_prior_grant else 1

    def _is_decided_without_quota(self, request: AdmissionRequest) -> bool:
        """Whether it is not weighed at all: it pauses, is held back, or could never start here."""
        if request.not_before and self.now < request.not_before:
            return self._decide_now(request)
        team = self.snapshot.setup.by_name.get(request.team)
        if team is None:
            return self._decide_now(request, hold_reason=f"Team {request.team} no longer exists.")
        queue = self.queues[request.team]
        if not queue.is_active:
            return self._decide_now(
                request, hold_reason=f"The job's queue admits no jobs: {queue.inactive or queue.stop}."
            )
        offers = self._offers(request)
        if all(offer.total_nodes < request.nodes for offer in offers) and (request.attempts == 0 or not offers):
            return self._decide_now(request, offers=offers)
        # Others of its shape may be done before the machines go, so that it parks nobody with it.
        is_cut_off = all(offer.total_nodes - offer.leaving < request.nodes for offer in offers)
        if is_cut_off and any(offer.leaving for offer in offers):
            return self._decide_now(request, offers=offers)
        return self._is_over_limit(request)

    def _is_over_limit(self, request: AdmissionRequest) -> bool:
        limits = self._limits(request)
        return any(limit.is_reached for limit in limits) and self._decide_now(request, limits=limits)

    def _decide_now(self, request: AdmissionRequest, **facts: object) -> bool:
        known = {"request": request, "offers": (), "now": self.now, **facts}
        self.decided[request.job_id] = decide(AdmissionFacts.model_validate(known))
        return True

    def _limits(self, request: AdmissionRequest) -> tuple[UsageLimit, ...]:
        team = self.snapshot.setup.by_name[request.team]
        if team.most_accelerators_per_user is None and not team.budgets:
            return ()
        held = [each for each in self.snapshot.charges if each.team == team.name]
        spent = {period: found for (of, period), found in self.snapshot.spent.items() if of == team.name}
        return usage_limits(
            team,
            request.owner,
            request.nodes * request.accelerators_per_node,
            (*held, *self.started.get(team.name, ())),
            spent,
            self.economy,
            self.now,
        )

    def _job(self, request: AdmissionRequest) -> own.OwnJob:
        queue = self.queues[request.team]
        types = Expression(key=INSTANCE_TYPE_LABEL, operator="In", values=request.instance_types)
        resource = flavor_matching.resource_of(request.instance_types, queue, self.catalogue)
        each = request.accelerators_per_node
        pods = own.OwnPodSet(
            name="workers",
            count=request.nodes,
            requests={resource: each} if each else {},
            selector={flavor_matching.CLUSTER_LABEL: request.cluster},
            affinity=((types,),) if request.instance_types else (),
        )
        return own.OwnJob(
            name=request.job_id,
            queue=queue.name,
            priority=request.priority,
            created_at=request.submitted_at.timestamp(),
            requeued_at=request.queued_at.timestamp() if request.queued_at else None,
            sub_queue=request.owner if queue.by_use else "",
            pod_sets=(pods,),
        )

    def _keep_heads(self, names: Iterable[str]) -> None:
        """Let those who wait for their evictions stay the heads of their queues; a recovery before anybody."""
        heads = {*self.snapshot.memory.sticky.values()}
        for name in names:
            pending = self.scheduler.pending[self.requests[name].team]
            if name in heads and not pending.sticky:
                pending.sticky = name

    # ------------------------------------------------------------ seats

    def _assign_nodes(self, workload: Workload, assignment: Assignment, victims: tuple[Victim, ...]) -> str:
        """Say why there are no machines; take them where there are, and nobody has to stop for them first."""
        request = self.requests[workload.workload_id]
        capacities = self._capacity_after(victims) if victims else self.capacities
        meant = self._nodes_of_flavors(
            frozenset(flavor for flavors in assignment.flavors for flavor in flavors.values())
        )
        offers = pool_fits(request, capacities, self.policy, meant)
        self.offers[request.job_id] = offers
        shortage = why_no_fit(request, offers)
        if not shortage and not victims:
            self.capacities = subtract_assigned(self.capacities, request, best_fit(offers).best)
        elif shortage and not victims and not _tries_next_flavor(assignment):
            self._reserve(request, workload, assignment)
        return shortage

    def _offers(self, request: AdmissionRequest) -> tuple[PoolFit, ...]:
        """Return what the machines that are left could give: reckoned once for all who ask alike."""
        if self.offered[0] is not self.capacities:
            self.offered = (self.capacities, {})
        found = self.offered[1]
        alike = request if request.job_id in self.reservation_holders else request.model_copy(update=_NEUTRAL_FIELDS)
        if alike not in found:
            found[alike] = pool_fits(request, self.capacities, self.policy)
        return found[alike]

    def _nodes_of_flavors(self, given: frozenset[str]) -> Callable[[NodeCapacity], bool] | None:
        """Return which machines all of some flavors stand for, which no pass changes; None where all are."""
        if given not in self.meant:
            found = frozenset(
                (capacity.cluster, capacity.node_name)
                for capacity in self.snapshot.capacities
                if all(
                    flavor_matching.matches_node(
                        self.flavors[name], capacity.instance_type, capacity.pool, capacity.labels
                    )
                    for name in given
                )
            )
            is_all = len(found) == len(self.snapshot.capacities)
            self.meant[given] = None if is_all else lambda capacity: (capacity.cluster, capacity.node_name) in found
        return self.meant[given]

    def _capacity_after(self, victims: tuple[Victim, ...]) -> tuple[NodeCapacity, ...]:
        """Return the rooms as they are once all who are asked to stop have stopped."""
        return self._capacity_without({victim.workload_id for victim in victims} | self.snapshot.stopping)

    def _capacity_without(self, gone: Collection[str]) -> tuple[NodeCapacity, ...]:
        """Return the rooms as they are once some have stopped."""
        freed: dict[tuple[str, str], int] = {}
        for charge in self.snapshot.charges:
            for name in charge.node_names if charge.job_id in gone else ():
                place = (charge.cluster, name)
                freed[place] = freed.get(place, 0) + charge.accelerators // len(charge.node_names)
        return tuple(
            capacity.model_copy(
                update={
                    "free": min(
                        capacity.accelerators, capacity.free + freed.get((capacity.cluster, capacity.node_name), 0)
                    )
                }
            )
            for capacity in self.capacities
        )

    # ------------------------------------------------------------ cycles

    def _run_until_stable(self) -> None:
        """Run cycles until one more could change nothing."""
        seen: set[str] = set()
        for _ in range(_MAX_CYCLES):
            moment = CycleState.of(self.scheduler, self.kept.values())
            self.offers = {}
            decisions = self.scheduler.cycle(self.now.timestamp())
            if not decisions:
                return
            moved = False
            for decision in decisions:
                name = decision.workload.workload_id
                self.turns[name] = _QueueDecision(decision, moment, self.offers.get(name, ()))
                moved |= self._apply(decision)
            was_evicted = {each.workload.workload_id for each, was in moment.holders if was}
            moved |= any(victim.workload_id not in was_evicted for each in decisions for victim in each.victims)
            mark = repr([(each.workload.workload_id, each.result, each.assignment.flavors) for each in decisions])
            if moved:
                seen.clear()
            elif mark in seen:
                return
            seen.add(mark)

    def _apply(self, decision: CycleDecision) -> bool:
        """Do what a decision entails; return whether others may now get another answer."""
        workload = decision.workload
        request = self.requests[workload.workload_id]
        if decision.result is Result.ADMITTED:
            self._admitted(request)
            return True
        if decision.result is Result.NO_NODES:
            self.unplaced[request.job_id] = self.turns[request.job_id]
        if decision.result in (Result.PREEMPTING, Result.DEFERRED, Result.SKIPPED) or _tries_next_flavor(
            decision.assignment
        ):
            return False
        unplaced = self.unplaced.pop(request.job_id, None)
        if unplaced is None:
            return False
        # No other flavor would do: that machines are missing is what there is to say.
        self.turns[request.job_id] = unplaced
        is_strict = self._is_strict(workload)
        if not is_strict and not request.reserves_nodes:
            return False  # parked: others go on
        self.scheduler.withdraw(workload)
        self._reserve(request, workload, unplaced.decision.assignment)
        if request.job_id in self.kept:
            self.scheduler.snapshot.queue_of(workload).node.add_all(self.kept[request.job_id][1])
        if is_strict:
            self._block_queue(request)
        return True

    def _is_strict(self, workload: Workload) -> bool:
        return self.queues[workload.queue].strategy is QueueingStrategy.STRICT

    def _admitted(self, request: AdmissionRequest) -> None:
        decided = self._by_quota(request)
        self.decided[request.job_id] = decided
        team = self.snapshot.setup.by_name[request.team]
        self.started.setdefault(team.name, []).append(decided.to_charge())
        for other in self._waiting_in(request.team):
            limits = self._limits(other)
            if any(limit.is_reached for limit in limits):
                self._withdraw(other)
                self._decide_now(other, limits=limits)

    def _reserve(self, request: AdmissionRequest, workload: Workload, assignment: Assignment) -> None:
        """Keep for one that waits for machines what is its own: nobody borrows it, nor takes those that are there."""
        holds = self._is_strict(workload) or request.reserves_nodes
        if not holds or assignment.level or request.job_id in self.kept:
            return
        self.kept[request.job_id] = (workload.queue, dict(assignment.use))
        name = request.job_id
        offers = self.offers[name] if name in self.offers else self.turns[name].offers
        offer = max(offers, key=lambda each: (each.fitting, each.pool), default=None)
        if offer is None:
            return
        fits = [
            capacity
            for capacity in self.capacities
            if (capacity.pool, capacity.instance_type) == (offer.pool, offer.instance_type)
            and capacity.cluster == request.cluster
            and capacity.is_open
            and stays_long_enough(request, capacity)
            and capacity.free >= request.accelerators_per_node
            and capacity.life.key not in request.avoid
            and not missing_efa(request, capacity, self.policy)
        ]
        self.reserved_nodes[name] = tuple(capacity.life for capacity in fits[: request.nodes])
        self.capacities = subtract_assigned(self.capacities, request, self.reserved_nodes[name])

    def _block_queue(self, request: AdmissionRequest) -> None:
        """Let one that waits for machines hold up those of its queue who could take them."""
        line = self.lines.setdefault(request.team, FifoBarrier())
        line.waits(request.job_id, self._offers(request))
        for other in self._waiting_in(request.team):
            before = line.before(self._offers(other))
            if before:
                self._withdraw(other)
                self.decided[other.job_id] = self._blocked_by(other, before, "free nodes")

    def _waiting_in(self, team: str) -> list[AdmissionRequest]:
        waiting = self.scheduler.pending[team].all()
        return [self.requests[each.workload.workload_id] for each in waiting]

    def _withdraw(self, request: AdmissionRequest) -> None:
        self.scheduler.pending[request.team].remove(request.job_id)

    # ------------------------------------------------------------ what is said

    def _by_quota(self, request: AdmissionRequest) -> AdmissionDecision:
        turn = self.turns[request.job_id]
        facts = AdmissionFacts(request=request, offers=turn.offers, now=self.now)
        decided = from_quota_decision(facts, turn.decision)
        if request.resumes_by_preemption and decided.action is Action.WAIT:
            if request.job_id not in self.preemption_plans:
                self.preemption_plans[request.job_id] = self._plan_preemption(request, turn.decision)
            facts = facts.model_copy(update={"preemption_plan": self.preemption_plans[request.job_id]})
            decided = with_preemption(decided.model_copy(update={"facts": facts}))
        is_done = decided.action in (Action.ADMIT, Action.PREEMPT)  # and so recorded, whatever was said before
        if not is_done and self.snapshot.last_reasons.get(request.job_id) == decided.reason:
            return decided
        document = self.jobs[request.job_id].model_dump(mode="json", by_alias=True, exclude_defaults=True)
        quota = quota_facts_of(document, turn.decision, turn.moment, self.scheduler, self.notes)
        return decided.model_copy(update={"facts": facts.model_copy(update={"quota": quota})})

    def _plan_preemption(self, request: AdmissionRequest, decision: CycleDecision) -> PreemptionPlan | None:
        """Find who makes machines free for one that has quota: in the order of its queue's policies, and no more.

        Nobody does where those are enough who stop in any case.
        """
        for_whom = self.snapshot.memory.stopping
        stopping = {name for name in self.snapshot.stopping if for_whom.get(name) != request.job_id}
        is_others = {name for name in stopping if for_whom.get(name)}
        is_others |= {
            victim.job_id
            for preemption_plan in self.preemption_plans.values()
            if preemption_plan
            for victim in preemption_plan.victims
        }
        is_others |= {victim.workload_id for turn in self.turns.values() for victim in turn.decision.victims}
        meant = self._nodes_of_flavors(
            frozenset(name for names in decision.assignment.flavors for name in names.values())
        )
        own = frozenset(life.key for life in self.reserved_nodes.get(request.job_id, ()))

        def offers_without(gone: Iterable[str]) -> tuple[PoolFit, ...]:
            capacities = (
                capacity.model_copy(update={"free": capacity.free + request.accelerators_per_node})
                if capacity.life.key in own
                else capacity
                for capacity in self._capacity_without({*gone, *stopping})
            )
            return pool_fits(request, capacities, self.policy, meant)

        def is_enough(gone: Iterable[str]) -> bool:
            return not why_no_fit(request, offers_without(gone))

        if is_enough(()):
            return None
        going: list[PreemptionVictim] = []
        for victim in self._preemption_candidates(request, decision):
            if victim.workload_id in is_others:
                continue
            going.append(PreemptionVictim(job_id=victim.workload_id, reason=victim.reason))
            if is_enough(each.job_id for each in going):
                break
        else:
            return None
        # Those run on whose going was not needed, from the second-last backwards.
        for spared in going[-2::-1]:
            if is_enough(each.job_id for each in going if each is not spared):
                going.remove(spared)
        return PreemptionPlan(victims=tuple(going), offers=offers_without(each.job_id for each in going))

    def _preemption_candidates(self, request: AdmissionRequest, decision: CycleDecision) -> list[Victim]:
        """Return who may be asked to stop for a job, in their order; what is kept for it is no use of its queue's."""
        queue = self.scheduler.snapshot.queue_of(decision.workload)
        wanted = {key: amount for key, amount in decision.assignment.use.items() if amount > 0}
        _, own = self.kept.get(request.job_id, ("", {}))
        queue.node.remove_all(own)
        demand = Demand(decision.workload, queue, wanted, frozenset(wanted))
        found = preemptable_victims(demand, self.scheduler.snapshot, may_borrow=decision.assignment.level > 0)
        queue.node.add_all(own)
        started = {charge.job_id for charges in self.started.values() for charge in charges}
        return [each for each in found if each.workload_id not in started]

    def _why_waiting(self, request: AdmissionRequest) -> AdmissionDecision:
        if request.job_id in self.turns:
            return self._waiting_decision(request)
        mine = self.scheduler.pending[request.team].get(request.job_id)
        head, alike = self._answered_in(request.team)
        if mine is not None and mine.workload.shape in alike:
            return self._same_shape(request, alike[mine.workload.shape])
        name = head or next(iter(self.turns), "")
        turn = self.turns.get(name)
        waits_for = {
            Result.PREEMPTING: "preempted jobs to stop",
            Result.DEFERRED: "preempted jobs to stop",
            Result.NO_NODES: "free nodes",
        }
        return self._blocked_by(
            request, name, waits_for.get(turn.decision.result, "quota") if turn else "a later scheduling cycle"
        )

    def _answered_in(self, team: str) -> tuple[str, Mapping[str, str]]:
        if team not in self.answered:
            pending = self.scheduler.pending[team]
            others = [each.workload for each in pending.all() if each.workload.workload_id in self.turns]
            parked = pending.parked_shapes
            # Written from behind: the first of a shape is what stands.
            alike = {each.shape: each.workload_id for each in reversed(others) if each.shape in parked}
            self.answered[team] = (others[0].workload_id if others else "", alike)
        return self.answered[team]

    def _waiting_decision(self, request: AdmissionRequest) -> AdmissionDecision:
        if request.job_id not in self.waits:
            self.waits[request.job_id] = self._by_quota(request)
        return self.waits[request.job_id]

    def _same_shape(self, request: AdmissionRequest, other: str) -> AdmissionDecision:
        reason = self._waiting_decision(self.requests[other]).reason
        facts = AdmissionFacts(request=request, offers=(), blocked_by=other, same_shape_reason=reason, now=self.now)
        return decide(facts)

    def _blocked_by(self, request: AdmissionRequest, other: str, waits_for: str) -> AdmissionDecision:
        offers = self._offers(request)
        facts = AdmissionFacts(
            request=request, offers=offers, blocked_by=other, blocker_waits_for=waits_for, now=self.now
        )
        return decide(facts)


def _tries_next_flavor(assignment: Assignment) -> bool:
    """Whether another flavor is tried in the next cycle."""
    return assignment.progress is not None and assignment.progress.has_more
