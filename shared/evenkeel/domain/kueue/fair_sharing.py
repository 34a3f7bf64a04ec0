"""Shares: how much more than its own a node uses, and who therefore goes first, or has to go.

    share(n) = max over resources of 1000 · (what n uses beyond what it holds, over all flavors) / lendable(resource),
               divided by n's weight; 0 without a parent. Weight 0 with any use beyond it counts as infinite.

Source: Kueue's fair sharing (KEP-1714), dominant resource fairness over a tree.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from evenkeel.domain.kueue.capacity import Node, queues_below
from evenkeel.domain.kueue.objects import Admitted, Amounts, Key, PreemptionPolicy, Workload
from evenkeel.domain.kueue.preemption import (
    Demand,
    Reason,
    Victim,
    candidates_in,
    fits,
    give_back,
    order,
    order_key,
    restore,
    usual_risk,
)
from evenkeel.domain.kueue.snapshot import Snapshot, not_using, using


class Share(NamedTuple):
    """What a node uses beyond what it holds, as a part of what could be lent to it."""

    ratio: float = 0.0
    """Per mille, before the weight."""
    weight: float = 1.0
    resource: str = ""
    """The resource that decides."""
    borrowed: tuple[Key, ...] = ()

    @property
    def value(self) -> float:
        """The weighted share; infinite for weight 0."""
        if self.ratio == 0:
            return 0.0
        return math.inf if self.weight == 0 else self.ratio / self.weight

    @property
    def rank(self) -> tuple[bool, float]:
        """Compares shares: two infinite ones by what they are before the weight."""
        if self.weight == 0 and self.ratio != 0:
            return (True, self.ratio)
        return (False, self.value)

    def borrows_any_of(self, wanted: Mapping[Key, int]) -> bool:
        """Whether it borrows on a key of which something is asked."""
        return any(wanted.get(key, 0) > 0 for key in self.borrowed)


def share_of(node: Node) -> Share:
    """Return a node's share of its tree."""
    if node.parent is None:
        return Share(weight=node.weight)
    ratio, resource = 0.0, ""
    borrowed: list[Key] = []
    for name, slots in node.by_resource:  # in the order of their names: of equal ratios the first counts
        beyond = 0
        for key, slot in slots:
            over = slot.use - slot.sub
            if over > 0:
                beyond += over
                borrowed.append(key)
        if beyond:
            lendable = node.parent.lendable.get(name, 0)
            if lendable > 0 and beyond * 1000.0 / lendable > ratio:
                ratio, resource = beyond * 1000.0 / lendable, name
    return Share(ratio, node.weight, resource, tuple(borrowed))


# ---------------------------------------------------------------- who goes first


@dataclass(frozen=True, slots=True)
class Contestant:
    """A head with the room it asks for."""

    workload: Workload
    node: Node
    wanted: Amounts


_Turn = tuple[bool, tuple[bool, float], int, float]


class Tournament:
    """Whose turn it is among heads: each cohort sends up the winner of its child cohorts and its own queues' heads.

    Trees are independent of each other. What was worked out stands until somebody below it leaves or usage changes.
    """

    def __init__(self, contestants: Mapping[str, Contestant]) -> None:
        """Begin with everybody, by queue name."""
        self._contestants = dict(contestants)
        self._turns: dict[Node, tuple[Contestant, _Turn]] = {}
        """By the child that a head came through."""
        self._winners: dict[Node, Contestant | None] = {}
        self._roots: dict[Node, int] = {}
        for contestant in contestants.values():
            root = contestant.node.root
            self._roots[root] = self._roots.get(root, 0) + 1
        # Trees in the order of the first of their queues' names.
        self._waiting = [contestants[name].node.root for name in sorted(contestants, reverse=True)]

    def __bool__(self) -> bool:
        return bool(self._contestants)

    def pop(self) -> str:
        """Return whose turn it is, by queue name, and let it leave."""
        while not self._roots[self._waiting[-1]]:
            self._waiting.pop()
        root = self._waiting[-1]
        winner = self._contestants[root.name] if root.is_queue else self._winner(root)
        assert winner is not None
        del self._contestants[winner.node.name]
        self._roots[root] -= 1
        for ancestor in winner.node.path:
            self._winners.pop(ancestor, None)
        return winner.node.name

    def changed(self, node: Node) -> None:
        """Forget what rests on the use of a queue: its own share, and those of the cohorts above it."""
        self._turns.pop(node, None)
        for ancestor in node.path:
            self._turns.pop(ancestor, None)
            self._winners.pop(ancestor, None)

    def _winner(self, cohort: Node) -> Contestant | None:
        if cohort in self._winners:
            return self._winners[cohort]
        best: Contestant | None = None
        best_turn: _Turn | None = None
        for child in cohort.children:
            found = self._contestants.get(child.name) if child.is_queue else self._winner(child)
            if found is not None:
                known = self._turns.get(child)
                turn = known[1] if known is not None and known[0] is found else self._turn(found, child)
                if best_turn is None or turn < best_turn:
                    best, best_turn = found, turn
        self._winners[cohort] = best
        return best

    def _turn(self, contestant: Contestant, through: Node) -> _Turn:
        """Sort a head at a cohort: by the share of the child that it came through, with what it asks for."""
        with using(contestant.node, contestant.wanted):
            share = share_of(through)
        workload = contestant.workload
        turn = (share.borrows_any_of(contestant.wanted), share.rank, -workload.priority, workload.queued_at)
        self._turns[through] = (contestant, turn)
        return turn


# ---------------------------------------------------------------- who has to go


def fair_victims(demand: Demand, snapshot: Snapshot) -> list[Victim]:
    """Find who has to go; nobody where that does not help."""
    found = list(_candidates(demand, snapshot))
    usual = usual_risk(found, snapshot)
    candidates = sorted(found, key=order(demand.team.queue.name, snapshot, usual))
    if not candidates:
        return []
    first, *second = snapshot.rules.fair_strategies
    victims: list[Victim] = []
    with using(demand.team.node, demand.wanted):  # shares are compared with the newcomer in
        done, retry = _first_rule(demand, snapshot, candidates, victims, first)
        if not done and second:
            done = _second_rule(demand, snapshot, retry, victims)
    if not done:
        restore(victims, snapshot)
        return []
    kept = give_back(victims, demand, snapshot, may_borrow=True)
    restore(kept, snapshot)
    return kept


def _candidates(demand: Demand, snapshot: Snapshot) -> Iterator[Admitted]:
    team, policies = demand.team, demand.team.queue.preemption
    yield from candidates_in(team, demand, policies.within, snapshot)
    if team.node.parent is None or policies.reclaim is PreemptionPolicy.NEVER:
        return
    for queue in queues_below(team.node.root):
        if queue is not team.node and not queue.is_within(demand.contested):
            yield from candidates_in(snapshot.teams[queue.name], demand, policies.reclaim, snapshot)


class _Targets:
    """The queues whose workloads may have to go; always the one whose branch has the highest share."""

    def __init__(self, demand: Demand, candidates: Iterable[Admitted], now: float) -> None:
        self.node = demand.team.node
        self.now = now
        self.of: dict[str, list[Admitted]] = {}
        for candidate in candidates:
            self.of.setdefault(candidate.workload.queue, []).append(candidate)
        self.path = set(self.node.path)
        self.dropped: set[Node] = set()
        self._shares: dict[Node, Share] = {}

    def __iter__(self) -> Iterator[Node]:
        """Yield the next queue; the caller takes a candidate from it or drops it."""
        if self.node.parent is None:
            while self.node not in self.dropped and self.of.get(self.node.name):
                yield self.node
            return
        root = self.node.root
        while root not in self.dropped:
            queue = self._next(root)
            if queue is not None:
                yield queue

    def share(self, node: Node) -> Share:
        """Return a node's share; it stands until somebody below it goes."""
        found = self._shares.get(node)
        if found is None:
            found = self._shares[node] = share_of(node)
        return found

    def lost(self, queue: Node) -> None:
        """Forget the shares that somebody's going changes."""
        self._shares.pop(queue, None)
        for ancestor in queue.path:
            self._shares.pop(ancestor, None)

    def _next(self, cohort: Node) -> Node | None:
        best_queue: Node | None = None
        best_cohort: Node | None = None
        queue_rank = cohort_rank = (False, -1.0)
        for child in cohort.children:
            if child in self.dropped:
                continue
            share = self.share(child)
            if child.is_queue:
                if not self.of.get(child.name) or (not share.borrowed and child is not self.node):
                    self.dropped.add(child)
                elif share.rank > queue_rank or (
                    share.rank == queue_rank and best_queue is not None and self._goes_before(child, best_queue)
                ):
                    best_queue, queue_rank = child, share.rank
            elif not share.borrowed and child not in self.path:
                self.dropped.add(child)
            elif share.rank >= cohort_rank:
                best_cohort, cohort_rank = child, share.rank
        if best_queue is None and best_cohort is None:
            self.dropped.add(cohort)
            return None
        if best_cohort is not None and cohort_rank >= queue_rank:
            return self._next(best_cohort)
        return best_queue

    def _goes_before(self, queue: Node, other: Node) -> bool:
        ours, theirs = self.of[queue.name][0], self.of[other.name][0]
        return order_key(ours, self.node.name, self.now) < order_key(theirs, self.node.name, self.now)

    def take(self, queue: Node) -> Admitted:
        """Take a queue's next candidate."""
        return self.of[queue.name].pop(0)

    def branches(self, queue: Node) -> tuple[Node, Node]:
        """Return the two nodes just below the common ancestor: the preemptor's and the queue's."""
        met = next(ancestor for ancestor in queue.path if ancestor in self.path)
        return _below(met, self.node), _below(met, queue)


def _below(ancestor: Node, node: Node) -> Node:
    """Return the node on the way down from an ancestor."""
    through = node
    for each in node.path:
        if each is ancestor:
            break
        through = each
    return through


def _first_rule(
    demand: Demand, snapshot: Snapshot, candidates: list[Admitted], victims: list[Victim], rule: str
) -> tuple[bool, list[Admitted]]:
    """Remove candidates by the first rule; return whether it fits, and who failed the rule."""
    node = demand.team.node
    is_within_nominal = node.is_within(demand.contested)
    targets = _Targets(demand, candidates, snapshot.now)
    retry: list[Admitted] = []

    def goes(admitted: Admitted, queue: Node, reason: Reason) -> bool:
        snapshot.release(admitted)
        targets.lost(queue)
        victims.append(Victim(admitted, reason))
        return _fits_without_itself(demand)

    for queue in targets:
        if queue is node or is_within_nominal:
            reason = Reason.IN_CLUSTER_QUEUE if queue is node else Reason.IN_COHORT_RECLAMATION
            if goes(targets.take(queue), queue, reason):
                return True, []
            continue
        ours, theirs = targets.branches(queue)
        new, old = targets.share(ours).rank, targets.share(theirs).rank
        while targets.of[queue.name]:
            admitted = targets.take(queue)
            with not_using(queue, admitted.use):
                after = share_of(theirs).rank
            passes = new <= after if rule == "LessThanOrEqualToFinalShare" else new < old
            if not passes:
                retry.append(admitted)
                continue
            if goes(admitted, queue, Reason.IN_COHORT_FAIR_SHARING):
                return True, []
            break  # another queue's branch may have the highest share now
    return False, retry


def _second_rule(demand: Demand, snapshot: Snapshot, retry: list[Admitted], victims: list[Victim]) -> bool:
    """Remove at most one more of each queue: whose branch has the higher share before it goes."""
    targets = _Targets(demand, retry, snapshot.now)
    for queue in targets:
        ours, theirs = targets.branches(queue)
        admitted = targets.take(queue)
        if targets.share(ours).rank < targets.share(theirs).rank:
            snapshot.release(admitted)
            targets.lost(queue)
            victims.append(Victim(admitted, Reason.IN_COHORT_FAIR_SHARING))
            if _fits_without_itself(demand):
                return True
        targets.dropped.add(queue)
    return False


def _fits_without_itself(demand: Demand) -> bool:
    """Whether there is room, tested without the newcomer's own simulated use."""
    with not_using(demand.team.node, demand.wanted):
        return fits(demand, may_borrow=True)
