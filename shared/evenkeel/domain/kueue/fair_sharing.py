"""Fair sharing: the borrowing of a quota node relative to its maximum, and the resulting order and victims.

    share(n) = max over resources of 1000 · (use of n beyond its quota, over all flavors) / lendable(resource),
               divided by n's weight; 0 without a parent. With weight 0, any borrowing counts as infinite.

Source: Kueue's fair sharing (KEP-1714), dominant resource fairness over a tree.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from evenkeel.domain.kueue.capacity import QuotaNode
from evenkeel.domain.kueue.objects import Admitted, Amounts, Key, PreemptionPolicy, Workload
from evenkeel.domain.kueue.preemption import (
    CandidateLists,
    QuotaDemand,
    Reason,
    Victim,
    candidate_order,
    candidates_in,
    compute_median_risk,
    fill_back,
    order_key,
    restore,
)
from evenkeel.domain.kueue.snapshot import Snapshot, using


class Share(NamedTuple):
    """The borrowing of a quota node, relative to the quota that other nodes could lend to it."""

    ratio: float
    """Per mille, before division by the weight."""
    weight: float
    resource: str
    """The resource with the largest ratio."""
    borrowed: tuple[Key, ...]
    rank: tuple[bool, float]
    """Sorts shares. Two infinite shares compare by their ratio before the weight."""

    @classmethod
    def of(cls, ratio: float, weight: float, resource: str = "", borrowed: tuple[Key, ...] = ()) -> "Share":
        """Return a share with its rank."""
        return cls(ratio, weight, resource, borrowed, _rank_of(ratio, weight))

    @property
    def value(self) -> float:
        """The weighted share; infinite with weight 0."""
        if self.ratio == 0:
            return 0.0
        return math.inf if self.weight == 0 else self.ratio / self.weight


def _rank_of(ratio: float, weight: float) -> tuple[bool, float]:
    return (False, ratio / weight) if weight else (ratio != 0, ratio)


def share_of(quota_node: QuotaNode) -> Share:
    """Return a quota node's share in its tree. It is computed again only after the node's use has changed."""
    share = quota_node.cached_share
    if share is None:
        share = quota_node.cached_share = _compute_share(quota_node)
    return share


def _compute_share(quota_node: QuotaNode, removed: Amounts | None = None) -> Share:
    """Compute a share, as if the node used some amounts less."""
    if quota_node.parent is None:
        return Share.of(0.0, quota_node.weight)
    ratio, resource = 0.0, ""
    borrowed: list[Key] = []
    for name, cells in quota_node.by_resource:  # sorted by name, so that the first of equal ratios wins
        beyond = 0
        for key, cell in cells:
            borrowing = cell.use - cell.subtree
            if removed:
                borrowing -= removed.get(key, 0)
            if borrowing > 0:
                beyond += borrowing
                borrowed.append(key)
        if beyond:
            lendable = quota_node.parent.lendable.get(name, 0)
            if lendable > 0 and beyond * 1000.0 / lendable > ratio:
                ratio, resource = beyond * 1000.0 / lendable, name
    return Share.of(ratio, quota_node.weight, resource, tuple(borrowed))


# ---------------------------------------------------------------- the order of the heads


@dataclass(slots=True)
class Contestant:
    """A head, and the quota that it needs."""

    workload: Workload
    quota_node: QuotaNode
    requested: Amounts


Rank = tuple[bool, tuple[bool, float], int, float]
"""The rank of a head at a cohort; the smallest wins."""


class Tournament:
    """The order of the heads: each cohort sends up the winner of its child cohorts and its own queues' heads.

    Trees are independent of each other. The rank of a head at its own cohort depends only on its own queue, so it is
    computed once. Above it, a winner stays valid until a head below it is removed or use changes.
    """

    def __init__(self, contestants: Mapping[str, Contestant]) -> None:
        """Start with all heads, by queue name."""
        self._contestants = dict(contestants)
        self._heads: dict[QuotaNode, list[tuple[Rank, Contestant]]] = {}
        """By cohort: the heads of its own queues, the best last."""
        self._winners: dict[QuotaNode, tuple[Contestant, Rank] | None] = {}
        """By child cohort: its winner, with its rank in the parent; None if no head is left."""
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
        quota_node = winner.quota_node
        del self._contestants[quota_node.name]
        self._roots[root] -= 1
        if quota_node.parent is not None:
            self._remove_head(quota_node.parent)
        self.drop_ranks_of(quota_node)
        return quota_node.name

    def drop_ranks_of(self, quota_node: QuotaNode) -> None:
        """Drop the cached winners and ranks of the cohorts above a queue: they depend on its head and its use."""
        winners = self._winners
        for ancestor in quota_node.path:
            winners.pop(ancestor, None)

    def _winner(self, cohort: QuotaNode) -> Contestant | None:
        heads = self._heads.get(cohort)
        if heads is None:
            heads = self._heads[cohort] = self._rank_heads(cohort)
        best_rank, winner = heads[-1] if heads else (None, None)
        winners, best_child = self._winners, None
        for child in cohort.children:
            if child.is_queue:
                break  # the children are cohorts first, then queues
            if child in winners:
                child_winner = winners[child]
            else:
                contestant = self._winner(child)
                child_winner = winners[child] = (contestant, rank_in(contestant, child)) if contestant else None
            if child_winner is None:
                continue
            contestant, rank = child_winner
            # If two ranks are equal, the first child wins.
            if best_rank is None or rank < best_rank or (best_child is None and rank == best_rank):
                winner, best_rank, best_child = contestant, rank, child
        return winner

    def _rank_heads(self, cohort: QuotaNode) -> list[tuple[Rank, Contestant]]:
        """Return the ranked heads of a cohort's own queues, the best last. If equal, the first queue is last."""
        contestants = self._contestants
        heads = [
            (rank_in(contestant, child), contestant)
            for child in cohort.children
            if child.is_queue and (contestant := contestants.get(child.name)) is not None
        ]
        heads.sort(key=_first)
        heads.reverse()
        return heads

    def _remove_head(self, cohort: QuotaNode) -> None:
        """Remove the best head of a cohort's own queues: the winner was it."""
        self._heads[cohort].pop()


def _first(head: tuple[Rank, Contestant]) -> Rank:
    return head[0]


def rank_in(contestant: Contestant, through: QuotaNode) -> Rank:
    """Return the rank of a head at a cohort: the share, with its request, of the child it came through."""
    assert through.parent is not None
    requested, lendable = contestant.requested, through.parent.lendable
    added = requested if through is contestant.quota_node else _use_passed_up(contestant, through)
    borrows, ratio = False, 0.0
    for name, cells in through.by_resource:
        beyond = 0
        for key, cell in cells:
            borrowing = cell.use - cell.subtree + added.get(key, 0)
            if borrowing > 0:
                beyond += borrowing
                if not borrows:
                    borrows = requested.get(key, 0) > 0
        if beyond and (most := lendable.get(name, 0)) > 0 and beyond * 1000.0 / most > ratio:
            ratio = beyond * 1000.0 / most
    workload = contestant.workload
    return (borrows, _rank_of(ratio, through.weight), -workload.priority, workload.queued_at)


def _use_passed_up(contestant: Contestant, cohort: QuotaNode) -> Amounts:
    """Return the use that a head would add to an ancestor of its queue: what lies beyond all guaranteed quota below."""
    added: Amounts = {}
    quota_node = contestant.quota_node
    cells = quota_node.cells
    for key, requested in contestant.requested.items():
        cell, amount = cells.get(key) or quota_node.at(key), requested
        while amount > 0 and cell.quota_node is not cohort:
            unused = cell.guaranteed - cell.use
            if unused > 0:
                amount -= unused
            assert cell.parent_cell is not None
            cell = cell.parent_cell
        if amount > 0:
            added[key] = amount
    return added


# ---------------------------------------------------------------- victims


def fair_victims(demand: QuotaDemand, snapshot: Snapshot, lists: CandidateLists) -> list[Victim]:
    """Return the workloads to preempt; empty if preemption does not help."""
    candidates = _candidates(demand, snapshot, lists)
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


CandidatesByQueue = dict[str, list[Admitted]]
"""By queue, in the order of preemption. A queue without candidates has an empty list."""


def _candidates(demand: QuotaDemand, snapshot: Snapshot, lists: CandidateLists) -> CandidatesByQueue:
    if not (snapshot.rules.evicts_by_use and snapshot.recent_use):
        return _LazyCandidates(demand, snapshot, lists)
    # This rule compares the candidates of all queues.
    own = demand.queue.quota_node
    other_queues = (quota_node for quota_node in own.root.queues if quota_node is not own)
    workloads = [
        candidate for quota_node in (own, *other_queues) for candidate in _candidates_of(quota_node, demand, snapshot)
    ]
    median = compute_median_risk(workloads, snapshot)
    workloads.sort(key=candidate_order(demand.queue.spec.name, snapshot, median))
    return group_by_queue(workloads)


def group_by_queue(candidates: Iterable[Admitted]) -> CandidatesByQueue:
    """Return the candidates by queue, in their order."""
    grouped: CandidatesByQueue = defaultdict(list)
    for candidate in candidates:
        grouped[candidate.workload.queue].append(candidate)
    return grouped


def _candidates_of(quota_node: QuotaNode, demand: QuotaDemand, snapshot: Snapshot) -> list[Admitted]:
    """Return the workloads of one queue that may be preempted. Another queue only returns what it borrowed."""
    queue, policies = demand.queue, demand.queue.spec.preemption
    if quota_node is queue.quota_node:
        return candidates_in(queue, demand, policies.within, snapshot)
    if quota_node.is_within_quota(demand.keys_needing_preemption):
        return []
    return candidates_in(snapshot.queues[quota_node.name], demand, policies.reclaim, snapshot)


class _LazyCandidates(CandidatesByQueue):
    """Candidates that are sorted when a queue is first asked for. Most searches ask for a few queues.

    The use of a queue changes only when one of its candidates is removed, so it does not matter when it is first asked.
    """

    def __init__(self, demand: QuotaDemand, snapshot: Snapshot, lists: CandidateLists) -> None:
        super().__init__()
        self._demand = demand
        self._snapshot = snapshot
        self._lists = lists
        own, policies = demand.queue.quota_node, demand.queue.spec.preemption
        self._policies = {
            queue.name: policies.reclaim for queue in lists.borrowers(own.root, demand.keys_needing_preemption)
        }
        self._policies[own.name] = policies.within
        self._may_protect = snapshot.may_protect_from(demand.workload)

    def __missing__(self, name: str) -> list[Admitted]:
        policy = self._policies.get(name, PreemptionPolicy.NEVER)
        candidates = self._lists.in_order(name, self._demand, policy, self._policies, may_protect=self._may_protect)
        own_list = self[name] = candidates.copy()
        return own_list


_RankBelow = tuple[tuple[bool, float], bool]
"""The rank of a child below its cohort: its share, and whether it is a cohort. The largest precedes."""


def _rank_below(ranked_child: tuple[_RankBelow, QuotaNode]) -> _RankBelow:
    return ranked_child[0]


class _VictimQueues:
    """The queues whose workloads may be preempted. The next queue is always in the branch with the highest share."""

    def __init__(self, demand: QuotaDemand, candidates_by_queue: CandidatesByQueue, now: float) -> None:
        self.quota_node = demand.queue.quota_node
        self.now = now
        self.candidates_by_queue = candidates_by_queue
        self.path = set(self.quota_node.path)
        self.dropped: set[QuotaNode] = set()
        self._ranked: dict[QuotaNode, list[tuple[_RankBelow, QuotaNode]]] = {}
        """By cohort: its children that may have candidates, the highest share last. `use_changed` removes it."""
        self._unsorted: dict[QuotaNode, list[QuotaNode]] = {}
        """By cohort: the same children in the cohort's order, as of the last ranking."""
        self._order_keys: dict[str, tuple[object, ...]] = {}
        """By id of a workload."""
        self._branches: dict[QuotaNode, tuple[QuotaNode, QuotaNode]] = {}

    def __iter__(self) -> Iterator[QuotaNode]:
        """Yield the next queue.

        Before the caller asks for the next queue, it drops this one, takes all its candidates, or calls `use_changed`.
        """
        if self.quota_node.parent is None:
            while self.quota_node not in self.dropped and self.candidates_by_queue[self.quota_node.name]:
                yield self.quota_node
            return
        root = self.quota_node.root
        while root not in self.dropped:
            queue = self._next(root)
            if queue is not None:
                yield queue

    def use_changed(self, queue: QuotaNode) -> None:
        """Forget the ranks below each cohort of a queue: the use of the queue changed."""
        for cohort in queue.path:
            self._ranked.pop(cohort, None)

    def _next(self, cohort: QuotaNode) -> QuotaNode | None:
        """Return the next queue below a cohort. None: no queue is left below a cohort, which is dropped."""
        ranked = self._ranked.get(cohort)
        if ranked is None:
            ranked = self._ranked[cohort] = self._rank_children(cohort)
        while ranked:
            rank, child = ranked[-1]
            if child in self.dropped or (child.is_queue and not self.candidates_by_queue[child.name]):
                self.dropped.add(child)
                ranked.pop()
            elif not child.is_queue:
                return self._next(child)
            elif len(ranked) > 1 and ranked[-2][0] == rank:
                return self._first_of_equals(ranked)
            else:
                return child
        self.dropped.add(cohort)
        return None

    def _rank_children(self, cohort: QuotaNode) -> list[tuple[_RankBelow, QuotaNode]]:
        """Return the children that borrow or hold the preemptor. A cohort precedes a queue of equal share."""
        ranked: list[tuple[_RankBelow, QuotaNode]] = []
        for child in self._unsorted.get(cohort, cohort.children):
            if child in self.dropped:
                continue
            share = child.cached_share or share_of(child)
            if share.borrowed or child is self.quota_node or child in self.path:
                ranked.append(((share.rank, not child.is_queue), child))
            else:
                self.dropped.add(child)
        self._unsorted[cohort] = [child for _, child in ranked]
        ranked.sort(key=_rank_below)
        return ranked

    def _first_of_equals(self, ranked: list[tuple[_RankBelow, QuotaNode]]) -> QuotaNode:
        """Return the queue of the best rank whose first candidate precedes the other queues' first candidates."""
        best_rank = ranked[-1][0]
        equals = []
        for rank, queue in reversed(ranked):
            if rank != best_rank:
                break
            if self.candidates_by_queue[queue.name]:
                equals.append(queue)
        return min(reversed(equals), key=self._first_order_key)

    def _first_order_key(self, queue: QuotaNode) -> tuple[object, ...]:
        """Return the order key of a queue's next candidate."""
        candidate = self.candidates_by_queue[queue.name][0]
        candidate_id = candidate.workload.workload_id
        sort_key = self._order_keys.get(candidate_id)
        if sort_key is None:
            sort_key = self._order_keys[candidate_id] = order_key(candidate, self.quota_node.name, self.now)
        return sort_key

    def take(self, queue: QuotaNode) -> Admitted:
        """Remove and return a queue's next candidate."""
        return self.candidates_by_queue[queue.name].pop(0)

    def take_all(self, queue: QuotaNode) -> list[Admitted]:
        """Remove and return all candidates of a queue."""
        candidates, self.candidates_by_queue[queue.name] = self.candidates_by_queue[queue.name], []
        return candidates

    def branches(self, queue: QuotaNode) -> tuple[QuotaNode, QuotaNode]:
        """Return the two nodes just below the common ancestor: the preemptor's and the queue's."""
        branches = self._branches.get(queue)
        if branches is None:
            met = next(ancestor for ancestor in queue.path if ancestor in self.path)
            branches = self._branches[queue] = (_below(met, self.quota_node), _below(met, queue))
        return branches


def _below(ancestor: QuotaNode, descendant: QuotaNode) -> QuotaNode:
    """Return the child of an ancestor that leads to the given descendant."""
    through = descendant
    for quota_node in descendant.path:
        if quota_node is ancestor:
            break
        through = quota_node
    return through


def _first_rule(
    demand: QuotaDemand, snapshot: Snapshot, candidates: CandidatesByQueue, victims: list[Victim], rule: str
) -> tuple[bool, list[Admitted]]:
    """Remove candidates by the first rule; return whether the preemptor fits, and which candidates failed the rule."""
    quota_node = demand.queue.quota_node
    is_within_nominal = quota_node.is_within_quota(demand.keys_needing_preemption)
    targets = _VictimQueues(demand, candidates, snapshot.now)
    retry: list[Admitted] = []

    def remove(admitted: Admitted, reason: Reason) -> bool:
        snapshot.release(admitted)
        victims.append(Victim(admitted, reason))
        targets.use_changed(snapshot.queue_of(admitted.workload).quota_node)
        return _fits_without_itself(demand)

    for queue in targets:
        if queue is quota_node or is_within_nominal:
            reason = Reason.IN_CLUSTER_QUEUE if queue is quota_node else Reason.IN_COHORT_RECLAMATION
            if remove(targets.take(queue), reason):
                return True, []
            continue
        preemptor_branch, queue_branch = targets.branches(queue)
        new, old = share_of(preemptor_branch).rank, share_of(queue_branch).rank
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
            if remove(admitted, Reason.IN_COHORT_FAIR_SHARING):
                return True, []
            break  # another branch may have the highest share now
    return False, retry


def _rank_without(admitted: Admitted, queue: QuotaNode, branch: QuotaNode) -> tuple[bool, float]:
    """Return the rank of a branch without one of its workloads."""
    removed: Amounts = {}
    for key, amount in admitted.use.items():
        cell = queue.at(key)
        while amount > 0 and cell.quota_node is not branch:
            amount = min(amount, cell.use - cell.guaranteed)  # noqa: PLW2901 - the guaranteed quota is not passed up
            assert cell.parent_cell is not None
            cell = cell.parent_cell
        if amount > 0:
            removed[key] = amount
    return _compute_share(branch, removed).rank


def _second_rule(demand: QuotaDemand, snapshot: Snapshot, retry: list[Admitted], victims: list[Victim]) -> bool:
    """Remove at most one more candidate of each queue, if its branch has the higher share before the removal."""
    targets = _VictimQueues(demand, group_by_queue(retry), snapshot.now)

    def has_higher_share(queue: QuotaNode) -> bool:
        preemptor_branch, queue_branch = targets.branches(queue)
        return share_of(preemptor_branch).rank < share_of(queue_branch).rank

    # Shares change only when a candidate is removed. So if no branch has the higher share now, none ever has.
    if not any(has_higher_share(snapshot.queues[name].quota_node) for name in targets.candidates_by_queue):
        return False
    for queue in targets:
        admitted = targets.take(queue)
        if has_higher_share(queue):
            snapshot.release(admitted)
            victims.append(Victim(admitted, Reason.IN_COHORT_FAIR_SHARING))
            targets.use_changed(queue)
            if _fits_without_itself(demand):
                return True
        targets.dropped.add(queue)
    return False


def _fits_without_itself(demand: QuotaDemand) -> bool:
    """Whether the preemptor fits, without its own simulated use."""
    quota_node = demand.queue.quota_node
    for key, amount in demand.requested.items():
        if amount > max(0, quota_node.at(key).available_without(amount)):
            return False
    return demand.has_domains is None or demand.has_domains()
