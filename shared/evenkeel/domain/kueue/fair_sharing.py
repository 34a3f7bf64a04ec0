"""Fair sharing: the borrowing of a quota node relative to its maximum, and the resulting order and victims.

    share(n) = max over resources of 1000 · (use of n beyond its quota, over all flavors) / lendable(resource),
               divided by n's weight; 0 without a parent. With weight 0, any borrowing counts as infinite.

Source: Kueue's fair sharing (KEP-1714), dominant resource fairness over a tree.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from evenkeel.domain.kueue.capacity import QuotaNode
from evenkeel.domain.kueue.objects import Admitted, Amounts, Key, PreemptionPolicy, Workload
from evenkeel.domain.kueue.preemption import (
    QuotaDemand,
    Reason,
    Victim,
    candidate_order,
    candidates_in,
    compute_median_risk,
    fill_back,
    fits_now,
    order_key,
    restore,
)
from evenkeel.domain.kueue.snapshot import Snapshot, not_using, using


class Share(NamedTuple):
    """The borrowing of a quota node, relative to the quota that other nodes could lend to it."""

    ratio: float = 0.0
    """Per mille, before division by the weight."""
    weight: float = 1.0
    resource: str = ""
    """The resource with the largest ratio."""
    borrowed: tuple[Key, ...] = ()

    @property
    def value(self) -> float:
        """The weighted share; infinite with weight 0."""
        if self.ratio == 0:
            return 0.0
        return math.inf if self.weight == 0 else self.ratio / self.weight

    @property
    def rank(self) -> tuple[bool, float]:
        """Sorts shares. Two infinite shares compare by their ratio before the weight."""
        if self.weight:
            return (False, self.ratio / self.weight)
        return (self.ratio != 0, self.ratio)

    def borrows_any_of(self, requested: Mapping[Key, int]) -> bool:
        """Whether the quota node borrows a key of which an amount is requested."""
        return any(requested.get(key, 0) > 0 for key in self.borrowed)


def share_of(quota_node: QuotaNode) -> Share:
    """Return a quota node's share in its tree."""
    if quota_node.parent is None:
        return Share(weight=quota_node.weight)
    ratio, resource = 0.0, ""
    borrowed: list[Key] = []
    for name, cells in quota_node.by_resource:  # sorted by name, so that the first of equal ratios wins
        beyond = 0
        for key, cell in cells:
            borrowing = cell.use - cell.subtree
            if borrowing > 0:
                beyond += borrowing
                borrowed.append(key)
        if beyond:
            lendable = quota_node.parent.lendable.get(name, 0)
            if lendable > 0 and beyond * 1000.0 / lendable > ratio:
                ratio, resource = beyond * 1000.0 / lendable, name
    return Share(ratio, quota_node.weight, resource, tuple(borrowed))


# ---------------------------------------------------------------- the order of the heads


@dataclass(frozen=True, slots=True)
class Contestant:
    """A head, and the quota that it needs."""

    workload: Workload
    quota_node: QuotaNode
    requested: Amounts


_Rank = tuple[bool, tuple[bool, float], int, float]


class Tournament:
    """The order of the heads: each cohort sends up the winner of its child cohorts and its own queues' heads.

    Trees are independent of each other. A cached winner stays valid until a head below it is removed or use changes.
    """

    def __init__(self, contestants: Mapping[str, Contestant]) -> None:
        """Start with all heads, by queue name."""
        self._contestants = dict(contestants)
        self._ranks: dict[QuotaNode, tuple[Contestant, _Rank]] = {}
        """By the child through which a head reached a cohort."""
        self._winners: dict[QuotaNode, Contestant | None] = {}
        self._roots: dict[QuotaNode, int] = {}
        for contestant in contestants.values():
            root = contestant.quota_node.root
            self._roots[root] = self._roots.get(root, 0) + 1
        # The trees are sorted by the first name of their queues.
        self._waiting = [contestants[name].quota_node.root for name in sorted(contestants, reverse=True)]

    def __bool__(self) -> bool:
        return bool(self._contestants)

    def pop(self) -> str:
        """Remove the winner and return its queue's name."""
        while not self._roots[self._waiting[-1]]:
            self._waiting.pop()
        root = self._waiting[-1]
        winner = self._contestants[root.name] if root.is_queue else self._winner(root)
        assert winner is not None
        del self._contestants[winner.quota_node.name]
        self._roots[root] -= 1
        for ancestor in winner.quota_node.path:
            self._winners.pop(ancestor, None)
        return winner.quota_node.name

    def drop_ranks_of(self, quota_node: QuotaNode) -> None:
        """Drop the cached ranks that depend on a queue's use: its own rank, and the ranks of the cohorts above it."""
        self._ranks.pop(quota_node, None)
        for ancestor in quota_node.path:
            self._ranks.pop(ancestor, None)
            self._winners.pop(ancestor, None)

    def _winner(self, cohort: QuotaNode) -> Contestant | None:
        if cohort in self._winners:
            return self._winners[cohort]
        winner: Contestant | None = None
        best_rank: _Rank | None = None
        contestants, winners, ranks = self._contestants, self._winners, self._ranks
        for child in cohort.children:
            if child.is_queue:
                contestant = contestants.get(child.name)
            else:
                contestant = winners[child] if child in winners else self._winner(child)
            if contestant is not None:
                cached = ranks.get(child)
                rank = cached[1] if cached is not None and cached[0] is contestant else self._rank(contestant, child)
                if best_rank is None or rank < best_rank:
                    winner, best_rank = contestant, rank
        self._winners[cohort] = winner
        return winner

    def _rank(self, contestant: Contestant, through: QuotaNode) -> _Rank:
        """Return the rank of a head at a cohort: the share, with its request, of the child it came through."""
        with using(contestant.quota_node, contestant.requested):
            share = share_of(through)
        workload = contestant.workload
        rank = (share.borrows_any_of(contestant.requested), share.rank, -workload.priority, workload.queued_at)
        self._ranks[through] = (contestant, rank)
        return rank


# ---------------------------------------------------------------- victims


def fair_victims(demand: QuotaDemand, snapshot: Snapshot) -> list[Victim]:
    """Return the workloads to preempt; empty if preemption does not help."""
    workloads = list(_candidates(demand, snapshot))
    median = compute_median_risk(workloads, snapshot)
    candidates = sorted(workloads, key=candidate_order(demand.queue.spec.name, snapshot, median))
    if not candidates:
        return []
    first, *second = snapshot.rules.fair_strategies
    victims: list[Victim] = []
    with using(demand.queue.quota_node, demand.requested):  # the compared shares include the preemptor's use
        is_enough, retry = _first_rule(demand, snapshot, candidates, victims, first)
        if not is_enough and second:
            is_enough = _second_rule(demand, snapshot, retry, victims)
    if not is_enough:
        restore(victims, snapshot)
        return []
    needed = fill_back(victims, demand, snapshot, may_borrow=True)
    restore(needed, snapshot)
    return needed


def _candidates(demand: QuotaDemand, snapshot: Snapshot) -> Iterator[Admitted]:
    queue, policies = demand.queue, demand.queue.spec.preemption
    yield from candidates_in(queue, demand, policies.within, snapshot)
    if queue.quota_node.parent is None or policies.reclaim is PreemptionPolicy.NEVER:
        return
    for quota_node in queue.quota_node.root.queues:
        if quota_node is not queue.quota_node and not quota_node.is_within_quota(demand.keys_needing_preemption):
            yield from candidates_in(snapshot.queues[quota_node.name], demand, policies.reclaim, snapshot)


class _VictimQueues:
    """The queues whose workloads may be preempted. The next queue is always in the branch with the highest share."""

    def __init__(self, demand: QuotaDemand, candidates: Iterable[Admitted], now: float) -> None:
        self.quota_node = demand.queue.quota_node
        self.now = now
        self.candidates_by_queue: dict[str, list[Admitted]] = {}
        for candidate in candidates:
            self.candidates_by_queue.setdefault(candidate.workload.queue, []).append(candidate)
        self.path = set(self.quota_node.path)
        self.dropped: set[QuotaNode] = set()
        self._shares: dict[QuotaNode, Share] = {}

    def __iter__(self) -> Iterator[QuotaNode]:
        """Yield the next queue. The caller takes a candidate from it or drops it."""
        if self.quota_node.parent is None:
            while self.quota_node not in self.dropped and self.candidates_by_queue.get(self.quota_node.name):
                yield self.quota_node
            return
        root = self.quota_node.root
        while root not in self.dropped:
            queue = self._next(root)
            if queue is not None:
                yield queue

    def share(self, quota_node: QuotaNode) -> Share:
        """Return a quota node's share, cached until a workload below it is removed."""
        share = self._shares.get(quota_node)
        if share is None:
            share = self._shares[quota_node] = share_of(quota_node)
        return share

    def lost(self, queue: QuotaNode) -> None:
        """Drop the cached shares that a removed workload changes."""
        self._shares.pop(queue, None)
        for ancestor in queue.path:
            self._shares.pop(ancestor, None)

    def _next(self, cohort: QuotaNode) -> QuotaNode | None:
        best_queue: QuotaNode | None = None
        best_cohort: QuotaNode | None = None
        queue_rank = cohort_rank = (False, -1.0)
        for child in cohort.children:
            if child in self.dropped:
                continue
            if child.is_queue and not self.candidates_by_queue.get(child.name):
                self.dropped.add(child)
                continue
            share = self.share(child)
            if not share.borrowed and child is not self.quota_node and child not in self.path:
                self.dropped.add(child)
                continue
            rank = share.rank
            if not child.is_queue:
                if rank >= cohort_rank:
                    best_cohort, cohort_rank = child, rank
            elif rank > queue_rank or (
                rank == queue_rank and best_queue is not None and self._precedes(child, best_queue)
            ):
                best_queue, queue_rank = child, rank
        if best_queue is None and best_cohort is None:
            self.dropped.add(cohort)
            return None
        if best_cohort is not None and cohort_rank >= queue_rank:
            return self._next(best_cohort)
        return best_queue

    def _precedes(self, queue: QuotaNode, other: QuotaNode) -> bool:
        candidate, other_candidate = self.candidates_by_queue[queue.name][0], self.candidates_by_queue[other.name][0]
        return order_key(candidate, self.quota_node.name, self.now) < order_key(
            other_candidate, self.quota_node.name, self.now
        )

    def take(self, queue: QuotaNode) -> Admitted:
        """Remove and return a queue's next candidate."""
        return self.candidates_by_queue[queue.name].pop(0)

    def take_all(self, queue: QuotaNode) -> list[Admitted]:
        """Remove and return all candidates of a queue."""
        candidates, self.candidates_by_queue[queue.name] = self.candidates_by_queue[queue.name], []
        return candidates

    def branches(self, queue: QuotaNode) -> tuple[QuotaNode, QuotaNode]:
        """Return the two nodes just below the common ancestor: the preemptor's and the queue's."""
        met = next(ancestor for ancestor in queue.path if ancestor in self.path)
        return _below(met, self.quota_node), _below(met, queue)


def _below(ancestor: QuotaNode, descendant: QuotaNode) -> QuotaNode:
    """Return the child of an ancestor on the path to a descendant of it."""
    through = descendant
    for quota_node in descendant.path:
        if quota_node is ancestor:
            break
        through = quota_node
    return through


def _first_rule(
    demand: QuotaDemand, snapshot: Snapshot, candidates: list[Admitted], victims: list[Victim], rule: str
) -> tuple[bool, list[Admitted]]:
    """Remove candidates by the first rule; return whether the preemptor fits, and which candidates failed the rule."""
    quota_node = demand.queue.quota_node
    is_within_nominal = quota_node.is_within_quota(demand.keys_needing_preemption)
    targets = _VictimQueues(demand, candidates, snapshot.now)
    retry: list[Admitted] = []

    def remove(admitted: Admitted, queue: QuotaNode, reason: Reason) -> bool:
        snapshot.release(admitted)
        targets.lost(queue)
        victims.append(Victim(admitted, reason))
        return _fits_without_itself(demand)

    for queue in targets:
        if queue is quota_node or is_within_nominal:
            reason = Reason.IN_CLUSTER_QUEUE if queue is quota_node else Reason.IN_COHORT_RECLAMATION
            if remove(targets.take(queue), queue, reason):
                return True, []
            continue
        preemptor_branch, queue_branch = targets.branches(queue)
        new, old = targets.share(preemptor_branch).rank, targets.share(queue_branch).rank
        # Removing a candidate never raises the share of its branch. So if this check fails, it fails for every
        # candidate of the queue: all go to the second pass.
        needs_final_share = rule == "LessThanOrEqualToFinalShare"
        if new > old or (new == old and not needs_final_share):
            retry += targets.take_all(queue)
            continue
        failed: list[Amounts] = []
        while targets.candidates_by_queue[queue.name]:
            admitted = targets.take(queue)
            # Until a candidate is removed, candidates of equal use get the same answer. Most jobs of a queue have equal
            # use.
            if admitted.use in failed:
                retry.append(admitted)
                continue
            if needs_final_share and new > _rank_without(admitted, queue, queue_branch):
                failed.append(admitted.use)
                retry.append(admitted)
                continue
            if remove(admitted, queue, Reason.IN_COHORT_FAIR_SHARING):
                return True, []
            break  # another branch may have the highest share now
    return False, retry


def _rank_without(admitted: Admitted, queue: QuotaNode, branch: QuotaNode) -> tuple[bool, float]:
    """Return the rank of a branch without one of its workloads."""
    with not_using(queue, admitted.use):
        return share_of(branch).rank


def _second_rule(demand: QuotaDemand, snapshot: Snapshot, retry: list[Admitted], victims: list[Victim]) -> bool:
    """Remove at most one more candidate of each queue, if its branch has the higher share before the removal."""
    targets = _VictimQueues(demand, retry, snapshot.now)
    for queue in targets:
        preemptor_branch, queue_branch = targets.branches(queue)
        admitted = targets.take(queue)
        if targets.share(preemptor_branch).rank < targets.share(queue_branch).rank:
            snapshot.release(admitted)
            targets.lost(queue)
            victims.append(Victim(admitted, Reason.IN_COHORT_FAIR_SHARING))
            if _fits_without_itself(demand):
                return True
        targets.dropped.add(queue)
    return False


def _fits_without_itself(demand: QuotaDemand) -> bool:
    """Whether the preemptor fits, without its own simulated use."""
    with not_using(demand.queue.quota_node, demand.requested):
        return fits_now(demand, may_borrow=True)
