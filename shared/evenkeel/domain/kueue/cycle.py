"""The Kueue cycle: nominate the head of every queue, then decide about the heads in order.

heads ─▶ nominate each in the same snapshot ─▶ in order: does it still fit? ─▶ admit · preempt · wait

The cycle changes the snapshot while it runs, and restores it at the end. `Scheduler` applies the decisions.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from evenkeel.domain.kueue import fair_sharing
from evenkeel.domain.kueue.assignment import Assignment, AssignmentMode, FlavorCursor, Pending, new_tuple
from evenkeel.domain.kueue.capacity import QuotaNode
from evenkeel.domain.kueue.cycle_decisions import NO_EARLIER_HEADS, CycleDecision, EarlierHeads, NodeFit, Result
from evenkeel.domain.kueue.nomination import Nomination, Nominator
from evenkeel.domain.kueue.objects import Admitted, Amounts, Key, PreemptionPolicy, QueueingStrategy
from evenkeel.domain.kueue.pending_queue import PendingWorkload
from evenkeel.domain.kueue.preemption import CandidateLists, Victim
from evenkeel.domain.kueue.snapshot import Snapshot
from evenkeel.domain.kueue.topology_state import DomainUse, domain_use


@dataclass(slots=True)
class Entry:
    """A nominated head."""

    waiting: PendingWorkload
    assignment: Assignment
    victims: list[Victim]
    flavor_cursor: FlavorCursor | None
    was_recomputed: bool = False
    earlier: EarlierHeads = NO_EARLIER_HEADS
    scan_start: FlavorCursor | None = None

    @property
    def use(self) -> Amounts:
        """The quota that the head takes beyond its present use."""
        return {} if self.waiting.workload.has_reservation else self.assignment.use

    @property
    def domain_use(self) -> tuple[DomainUse, ...]:
        """The pods of the head in the domains of a topology."""
        topology, workload = self.assignment.topology, self.waiting.workload
        return () if not topology or workload.has_reservation else domain_use(workload.pod_sets, topology)


class _TakenQuota(NamedTuple):
    """Quota that a head of this cycle took. The cycle returns it when it ends."""

    quota_node: QuotaNode
    amounts: Mapping[Key, int]
    is_fit: bool
    """Whether the head fits at once. If not, the amounts are only reserved for it."""
    domain_use: tuple[DomainUse, ...] = ()


class KueueCycle:
    """A Kueue cycle over a snapshot."""

    def __init__(
        self, snapshot: Snapshot, number: int, node_fit: NodeFit | None, candidate_lists: CandidateLists
    ) -> None:
        self._snapshot = snapshot
        self._number = number
        self._node_fit = node_fit
        self._nominator = Nominator(snapshot, number, candidate_lists)
        self._taken: list[_TakenQuota] = []
        self._preempted: dict[QuotaNode, dict[str, Admitted]] = {}
        """Victims by tree. Victims of another tree free no quota for a head."""
        self._has_admitted = False
        self._waits_for_pods_ready = False
        """Whether the rest of the cycle admits no workload until pods are ready."""

    def nominate(
        self, heads: Iterable[PendingWorkload], known: dict[str, tuple[PendingWorkload, Nomination]]
    ) -> dict[str, Entry]:
        """Find flavors and victims for each head; return the entries by queue.

        Args:
            heads: The heads.
            known: Nominations in an equal state, by workload. New ones are added.
        """
        return {waiting.workload.queue: self._nominate(waiting, known) for waiting in heads}

    def _nominate(self, waiting: PendingWorkload, known: dict[str, tuple[PendingWorkload, Nomination]]) -> Entry:
        workload, flavor_cursor = waiting.workload, waiting.flavor_cursor
        queue = self._snapshot.queue_of(workload)
        if flavor_cursor is not None and flavor_cursor.is_outdated(workload, queue, self._number):
            flavor_cursor = None
        if workload.inadmissible_reason:
            return Entry(waiting, Assignment(workload.counts, verdict=AssignmentMode.NO_FIT), [], None)
        nominated, nomination = known.get(workload.workload_id, (None, None))
        if nomination is None or nominated != waiting:
            nomination = self._nominator.nominate(workload, flavor_cursor)
            known[workload.workload_id] = (waiting, nomination)
        assignment, victims = nomination.assignment, [self._present(victim) for victim in nomination.victims]
        return Entry(waiting, assignment, victims, assignment.flavor_cursor, scan_start=flavor_cursor)

    def _present(self, victim: Victim) -> Victim:
        """Return a victim as this snapshot holds it."""
        queue = self._snapshot.queue_of(victim.admitted.workload)
        return Victim(queue.admitted[victim.workload_id], victim.reason)

    def run(
        self, entries: Mapping[str, Entry], earlier: EarlierHeads, preempted: Iterable[Admitted]
    ) -> list[CycleDecision]:
        """Decide about the heads in order. The snapshot is unchanged afterwards.

        Args:
            entries: The nominated heads by queue.
            earlier: Quota and victims of the heads before these, if the cycle is repeated for one head.
            preempted: The victims that `earlier` names.
        """
        for queue, amounts, is_fit in earlier.usage:
            self._take(self._snapshot.queues[queue].quota_node, dict(amounts), is_fit=is_fit)
        for victim in preempted:
            root = self._snapshot.queue_of(victim.workload).quota_node.root
            self._preempted.setdefault(root, {})[victim.workload.workload_id] = victim
        decisions = [self._decide_head(entry) for entry in self._entries_in_order(entries)]
        for taken_quota in reversed(self._taken):
            self._give_back(taken_quota)
        return decisions

    def _entries_in_order(self, entries: Mapping[str, Entry]) -> Iterator[Entry]:
        if not self._snapshot.rules.fair_sharing:
            yield from sorted(entries.values(), key=_classical_order)
            return
        queues = self._snapshot.queues
        tournament = fair_sharing.Tournament(
            {
                name: fair_sharing.Contestant(entry.waiting.workload, queues[name].quota_node, entry.use)
                for name, entry in entries.items()
            }
        )
        while tournament:
            name = tournament.pop()
            taken_earlier = len(self._taken)
            yield entries[name]
            if len(self._taken) > taken_earlier:
                tournament.drop_ranks_of(queues[name].quota_node)

    # ------------------------------------------------------------ one head

    def _decide_head(self, entry: Entry) -> CycleDecision:
        """Decide about one head, after the decisions about earlier heads of this cycle."""
        quota_node = self._snapshot.queue_of(entry.waiting.workload).quota_node
        preempted = self._preempted.setdefault(quota_node.root, {})
        if self._node_fit is not None:
            usage = tuple(
                (taken_quota.quota_node.name, dict(taken_quota.amounts), taken_quota.is_fit)
                for taken_quota in self._taken
            )
            entry.earlier = EarlierHeads(usage, tuple(preempted))
        if self._waits_for_pods_ready:
            reason = "An earlier job of this cycle waits until the pods of all admitted jobs are ready."
            return _decision(entry, Result.BLOCKED, reason, pending=Pending.WAITING_FOR_PODS_READY)
        if _shares_victims(entry, preempted):
            self._recompute(entry, preempted)
        elif entry.assignment.topology and self._lacks_only_domains(entry, quota_node, preempted):
            self._nominate_again(entry)
        return (
            self._decide_without_fit(entry, quota_node)
            or self._decide_overtaken(entry, quota_node, preempted)
            or self._decide_without_nodes(entry, quota_node)
            or self._grant(entry, quota_node, preempted)
        )

    def _decide_without_fit(self, entry: Entry, quota_node: QuotaNode) -> CycleDecision | None:
        """Decide about a head whose nomination cannot be used; None if it can."""
        workload, assignment = entry.waiting.workload, entry.assignment
        if workload.inadmissible_reason:
            return _decision(entry, Result.INADMISSIBLE, workload.inadmissible_reason)
        if assignment.verdict is AssignmentMode.NO_FIT:
            return _decision(entry, Result.NO_FIT, _pending_message(assignment), pending=assignment.pending)
        if assignment.verdict is AssignmentMode.PREEMPT and not entry.victims:
            reserved = self._reserve(entry, quota_node)
            self._take(quota_node, reserved, is_fit=False, domains=entry.domain_use if self._reserves(entry) else ())
            reason = "The job fits only after preemption, and its queue's policies allow no victim."
            return _decision(entry, Result.NO_CANDIDATES, reason, pending=Pending.WAITING_FOR_QUOTA, reserved=reserved)
        return None

    def _decide_overtaken(
        self, entry: Entry, quota_node: QuotaNode, preempted: Mapping[str, Admitted]
    ) -> CycleDecision | None:
        """Decide about a head whose quota or victims an earlier head took; None if none did."""
        if entry.assignment.verdict is AssignmentMode.DEFERRED:
            entry.flavor_cursor = None
            self._take(quota_node, entry.use, is_fit=False, domains=entry.domain_use)
            return _decision(entry, Result.DEFERRED, "The job fits when the present evictions have ended.")
        if _shares_victims(entry, preempted):
            reason = "Another job of this cycle already preempts the same victims."
            return _decision(entry, Result.SKIPPED, reason, pending=Pending.WAITING_FOR_QUOTA)
        if not self._still_fits(entry, quota_node, preempted):
            reason = "The job no longer fits after earlier decisions of this cycle."
            return _decision(entry, Result.SKIPPED, reason, pending=Pending.WAITING_FOR_QUOTA)
        return None

    def _decide_without_nodes(self, entry: Entry, quota_node: QuotaNode) -> CycleDecision | None:
        """Decide about a head that has quota but no nodes; None if nodes fit."""
        workload, assignment = entry.waiting.workload, entry.assignment
        why_not = self._node_fit(workload, assignment, tuple(entry.victims)) if self._node_fit else ""
        if not why_not:
            return None
        # The head of a strict queue blocks its queue, so quota within its nominal quota is reserved for it.
        is_strict = self._snapshot.queue_of(workload).spec.strategy is QueueingStrategy.STRICT
        reserved = entry.use if is_strict and not assignment.level and not entry.victims else {}
        self._take(quota_node, reserved, is_fit=assignment.verdict is AssignmentMode.FIT)
        return _decision(entry, Result.NO_NODES, why_not, reserved=reserved)

    def _grant(self, entry: Entry, quota_node: QuotaNode, preempted: dict[str, Admitted]) -> CycleDecision:
        """Admit a head, or preempt its victims."""
        is_fit = entry.assignment.verdict is AssignmentMode.FIT
        preempted.update((victim.workload_id, victim.admitted) for victim in entry.victims)
        self._take(quota_node, entry.use, is_fit=is_fit, domains=entry.domain_use)
        if is_fit and self._must_wait_for_pods(entry):
            self._waits_for_pods_ready = True
            reason = "The job fits. It waits until the pods of all jobs admitted before it are ready."
            return _decision(entry, Result.BLOCKED, reason, pending=Pending.WAITING_FOR_PODS_READY)
        if entry.assignment.verdict is AssignmentMode.PREEMPT:
            entry.flavor_cursor = None
            names = ", ".join(victim.workload_id for victim in entry.victims)
            have = "has" if len(entry.victims) == 1 else "have"
            decision = _decision(entry, Result.PREEMPTING, f"Waits until {names} {have} stopped.")
            return decision._replace(below_nominal=self._below_nominal(entry))
        self._has_admitted = True
        return _decision(entry, Result.ADMITTED, _admitted_message(entry.assignment))

    # ------------------------------------------------------------ parts of a decision

    def _take(
        self, quota_node: QuotaNode, amounts: Amounts, *, is_fit: bool, domains: tuple[DomainUse, ...] = ()
    ) -> None:
        """Count quota and domains as used until the end of the cycle."""
        if amounts or domains:
            taken_quota = _TakenQuota(quota_node, amounts, is_fit, domains)
            self._take_quota_again(taken_quota)
            self._taken.append(taken_quota)

    def _take_quota_again(self, taken_quota: _TakenQuota) -> None:
        taken_quota.quota_node.add_all(taken_quota.amounts)
        if self._snapshot.topology is not None:
            self._snapshot.topology.add(taken_quota.domain_use)

    def _give_back(self, taken_quota: _TakenQuota) -> None:
        taken_quota.quota_node.remove_all(taken_quota.amounts)
        if self._snapshot.topology is not None:
            self._snapshot.topology.remove(taken_quota.domain_use)

    def _must_wait_for_pods(self, entry: Entry) -> bool:
        """Whether pods of an admitted workload are not ready, and the rules make the head wait for them.

        A head that already holds its quota takes nothing new, so it never waits.
        """
        if not self._snapshot.rules.blocks_until_ready or entry.waiting.workload.has_reservation:
            return False
        if self._has_admitted:
            return True
        return any(
            not workload.is_ready for queue in self._snapshot.queues.values() for workload in queue.admitted.values()
        )

    def _below_nominal(self, entry: Entry) -> dict[str, Amounts]:
        """Return by queue how far the evictions push its use below its nominal quota."""
        evicted: dict[str, Amounts] = {}
        for victim in entry.victims:
            of_queue = evicted.setdefault(victim.admitted.workload.queue, {})
            for key, amount in victim.admitted.use.items():
                of_queue[key] = of_queue.get(key, 0) + amount
        evicted.pop(entry.waiting.workload.queue, None)
        below: dict[str, Amounts] = {}
        for queue, amounts in evicted.items():
            quota_node = self._snapshot.queues[queue].quota_node
            short = {key: cell.nominal - (cell.use - amounts[key]) for key in amounts for cell in (quota_node.at(key),)}
            lost = {key: min(amount, amounts[key]) for key, amount in short.items() if min(amount, amounts[key]) > 0}
            if lost:
                below[queue] = lost
        return below

    def _still_fits(self, entry: Entry, quota_node: QuotaNode, preempted: Mapping[str, Admitted]) -> bool:
        """Whether the head fits after its own victims and all earlier victims of the cycle have stopped."""
        if not preempted and not entry.victims:
            return self._fits_now(entry, quota_node)
        gone = {**preempted, **{victim.workload_id: victim.admitted for victim in entry.victims}}
        with self._snapshot.without_use_of(gone.values()):
            is_fit = self._fits_now(entry, quota_node)
        if not is_fit or entry.victims or not self._snapshot.rules.never_overcommits:
            return is_fit
        # Test the present state too: the victims still hold quota, and the heads that wait for them do not.
        waiting = [taken_quota for taken_quota in self._taken if not taken_quota.is_fit]
        for taken_quota in reversed(waiting):
            self._give_back(taken_quota)
        is_fit = self._fits_now(entry, quota_node)
        for taken_quota in waiting:
            self._take_quota_again(taken_quota)
        return is_fit

    def _fits_now(self, entry: Entry, quota_node: QuotaNode) -> bool:
        """Whether the head's quota is available now, and its pods fit in its domains."""
        topology = self._snapshot.topology
        return quota_node.fits(entry.use) and (topology is None or topology.fits(entry.domain_use))

    def _lacks_only_domains(self, entry: Entry, quota_node: QuotaNode, preempted: Mapping[str, Admitted]) -> bool:
        """Whether the head still has its quota, but an earlier head of this cycle took its capacity in a domain."""
        if not self._snapshot.rules.recomputes_domains:
            return False
        gone = {**preempted, **{victim.workload_id: victim.admitted for victim in entry.victims}}
        with self._snapshot.without_use_of(gone.values()):
            return quota_node.fits(entry.use) and not self._fits_now(entry, quota_node)

    def _recompute(self, entry: Entry, preempted: Mapping[str, Admitted]) -> None:
        """Nominate a head again, on the same flavors, without the victims of earlier heads."""
        with self._snapshot.without(tuple(preempted.values())):
            self._nominate_again(entry)
        if entry.assignment.verdict is AssignmentMode.FIT:
            entry.assignment.verdict = AssignmentMode.DEFERRED

    def _nominate_again(self, entry: Entry) -> None:
        """Nominate a head again, on the same flavors, in the present state."""
        entry.assignment, entry.victims = self._nominator.nominate(
            entry.waiting.workload, None, entry.assignment.flavors
        )
        entry.flavor_cursor = entry.assignment.flavor_cursor
        entry.was_recomputed = True

    def _reserves(self, entry: Entry) -> bool:
        """Whether capacity is reserved for a head without candidates. A queue that may reclaim from all needs none."""
        queue = self._snapshot.queue_of(entry.waiting.workload)
        return queue.spec.preemption.reclaim is not PreemptionPolicy.ANY

    def _reserve(self, entry: Entry, quota_node: QuotaNode) -> Amounts:
        """Return the quota to reserve for a head without candidates, so that later heads do not take it.

        Nothing if the head's queue may reclaim its quota from any workload.
        """
        if not self._reserves(entry) or entry.waiting.workload.has_reservation:
            return {}
        reserved: Amounts = {}
        for key, amount in entry.assignment.use.items():
            cell = quota_node.at(key)
            if entry.assignment.level == 0:
                reserved[key] = max(0, min(amount, cell.nominal - cell.use))
            elif cell.borrow is None:
                reserved[key] = amount
            else:
                reserved[key] = min(amount, cell.nominal + cell.borrow - cell.use)
        return reserved


_NOTHING_BELOW_NOMINAL: Mapping[str, Amounts] = MappingProxyType({})


def _shares_victims(entry: Entry, preempted: Mapping[str, Admitted]) -> bool:
    return bool(preempted and entry.victims) and any(victim.workload_id in preempted for victim in entry.victims)


def _decision(
    entry: Entry,
    result: Result,
    reason: str,
    *,
    pending: Pending = Pending.NONE,
    reserved: Mapping[Key, int] | None = None,
) -> CycleDecision:
    victims = tuple(entry.victims) if result in (Result.PREEMPTING, Result.ADMITTED) else ()
    return new_tuple(
        CycleDecision,
        (
            entry.waiting.workload,
            result,
            reason,
            entry.assignment,
            victims,
            pending,
            reserved or {},
            entry.was_recomputed,
            False,
            entry.earlier,
            entry.scan_start,
            _NOTHING_BELOW_NOMINAL,
        ),
    )


def _classical_order(entry: Entry) -> tuple[bool, int, int, float, str]:
    workload = entry.waiting.workload
    return (
        not workload.has_reservation,
        entry.assignment.level,
        -workload.priority,
        workload.queued_at,
        workload.tie_break,
    )


def _pending_message(assignment: Assignment) -> str:
    match assignment.pending:
        case Pending.EXCEEDS_MAX_QUOTA:
            return "The job requests more than its queue could ever use."
        case Pending.TOPOLOGY_PLACEMENT_FAILED:
            return "The job's pods fit in no domain of the topology, even without other jobs."
        case Pending.NO_MATCHING_FLAVOR:
            return "No flavor of the job's queue matches its pods."
        case _:
            return "The job's queue has too little free quota, and can neither borrow more nor preempt."


def _admitted_message(assignment: Assignment) -> str:
    names = sorted({choice.flavor for choices in assignment.choices for choice in choices.values()})
    where = ", ".join(names) or "no flavor"
    return f"Admitted on {where}, borrowing." if assignment.level else f"Admitted on {where} within its own quota."
