"""Choose the workloads to preempt so that a workload fits, in Kueue's classical order.

Candidates are of three kinds: workloads of the same queue; *hierarchical* candidates, which use quota that belongs to
the preemptor's part of the tree; and *priority* candidates, which only the preemptor's priority outranks. Candidates
are removed one by one until the preemptor fits. Then, from the second-last backwards, each victim that is not needed is
filled back.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from functools import cmp_to_key
from typing import Any, NamedTuple

from evenkeel.domain.kueue.assignment import FlavorMode
from evenkeel.domain.kueue.capacity import QuotaNode
from evenkeel.domain.kueue.objects import Admitted, Amounts, Key, PreemptionPolicy, Workload
from evenkeel.domain.kueue.snapshot import ClusterQueueSnapshot, Snapshot


class Reason(StrEnum):
    """Why a workload is preempted."""

    IN_CLUSTER_QUEUE = "InClusterQueue"
    IN_COHORT_RECLAMATION = "InCohortReclamation"
    IN_COHORT_FAIR_SHARING = "InCohortFairSharing"
    IN_COHORT_RECLAIM_WHILE_BORROWING = "InCohortReclaimWhileBorrowing"
    REPLACED = "WorkloadSliceReplaced"
    """The larger slice of the same job replaces it. It is not a victim."""

    @property
    def words(self) -> str:
        """The reason as a clause about the preempting job, for people."""
        return _WORDS[self]


_WORDS = {
    Reason.IN_CLUSTER_QUEUE: "the preempting job goes first in the same queue",
    Reason.IN_COHORT_RECLAMATION: "the team of the preempting job takes back quota that it had lent",
    Reason.IN_COHORT_FAIR_SHARING: "the team of the preempting job uses less of its fair share",
    Reason.IN_COHORT_RECLAIM_WHILE_BORROWING: "the preempting job has a higher priority, and its team may borrow",
    Reason.REPLACED: "the preempting job is the same job at a larger size",
}


def reason_text(reason: str) -> str:
    """Return a reason of a preemption for people. A text that is not a `Reason` is returned unchanged."""
    return Reason(reason).words if reason in set(Reason) else reason


@dataclass(frozen=True, slots=True)
class Victim:
    """A workload to preempt, and why."""

    admitted: Admitted
    reason: Reason

    @property
    def workload_id(self) -> str:
        """The id of the workload."""
        return self.admitted.workload.workload_id


@dataclass(frozen=True, slots=True)
class QuotaDemand:
    """The quota that a pending workload needs."""

    workload: Workload
    queue: ClusterQueueSnapshot
    requested: Amounts
    keys_needing_preemption: frozenset[Key]
    """The (flavor, resource) pairs that need preemption."""
    replaced: str = ""
    """The slice that the workload replaces. It is never a victim."""
    has_domains: Callable[[], bool] | None = None
    """Whether its pods fit in the topology now; None without a topology."""


def fits_now(demand: QuotaDemand, *, may_borrow: bool) -> bool:
    """Whether the demand fits in the quota that is free now, and its pods in the topology if it has one."""
    quota_node = demand.queue.quota_node
    for key, amount in demand.requested.items():
        if not may_borrow and quota_node.borrows_with(key, amount):
            return False
        if amount > quota_node.free(key):
            return False
    return demand.has_domains is None or demand.has_domains()


def order_key(
    candidate: Admitted, queue: str, now: float, median_risk: float | None = None
) -> tuple[bool, bool, int, float, float, str]:
    """Sort candidates: evicted candidates first, then other queues, lower priority, later admission, `tie_break`.

    With a median risk, less work at risk comes before later admission. A candidate of unknown risk gets the median.
    """
    workload = candidate.workload
    risk = 0.0
    if median_risk is not None:
        risk = median_risk if candidate.work_at_risk is None else candidate.work_at_risk
    reserved_at = now if candidate.reserved_at is None else candidate.reserved_at
    return (
        not candidate.is_evicted,
        workload.queue == queue,
        workload.priority,
        risk,
        -reserved_at,
        workload.tie_break,
    )


def candidate_order(queue: str, snapshot: Snapshot, median_risk: float | None) -> Callable[[Admitted], Any]:
    """Return the sort key of candidates.

    If evictions go by recent use, of two candidates of one queue the candidate of the sub-queue with more use is first.
    Source: Kueue's `pkg/scheduler/preemption/common/ordering.go`.
    """
    now = snapshot.now

    def key(candidate: Admitted) -> tuple[bool, bool, int, float, float, str]:
        return order_key(candidate, queue, now, median_risk)

    if not (snapshot.rules.evicts_by_use and snapshot.recent_use):
        return key

    def use(workload: Workload) -> float:
        return snapshot.recent_use[workload.queue].of(workload.sub_queue, now, workload.sub_weight)

    def compare(candidate: Admitted, other: Admitted) -> int:
        sort_key, other_key = key(candidate), key(other)
        workload, beside = candidate.workload, other.workload
        if sort_key[:2] == other_key[:2] and workload.queue == beside.queue and workload.queue in snapshot.recent_use:
            recent_use, used_beside = use(workload), use(beside)
            if recent_use != used_beside:
                return -1 if recent_use > used_beside else 1
        return -1 if sort_key < other_key else int(sort_key > other_key)

    return cmp_to_key(compare)


def outranks(workload: Workload, other: Workload, policy: PreemptionPolicy) -> bool:
    """Whether a policy allows a workload to preempt the other."""
    if policy is PreemptionPolicy.ANY:
        return True
    if policy is PreemptionPolicy.NEVER:
        return False
    if workload.priority > other.priority:
        return True
    is_newer_equal = workload.priority == other.priority and workload.queued_at < other.queued_at
    return policy is PreemptionPolicy.LOWER_OR_NEWER_EQUAL_PRIORITY and is_newer_equal


def compute_median_risk(candidates: Iterable[Admitted], snapshot: Snapshot) -> float | None:
    """Return the risk of a candidate without a report: the median of all other candidates.

    None if the rules do not consider the work at risk.
    """
    if not snapshot.rules.spares_work:
        return None
    risks = sorted(candidate.work_at_risk for candidate in candidates if candidate.work_at_risk is not None)
    return risks[len(risks) // 2] if risks else 0.0


def candidates_in(
    queue: ClusterQueueSnapshot, demand: QuotaDemand, policy: PreemptionPolicy, snapshot: Snapshot
) -> list[Admitted]:
    """Return the workloads of a queue that may be preempted and use a key that needs preemption."""
    if policy is PreemptionPolicy.NEVER:
        return []
    users = _preemptable_users(queue, demand.keys_needing_preemption)
    return _preemptable(users, demand, policy, snapshot, may_protect=snapshot.may_protect_from(demand.workload))


def _preemptable_users(queue: ClusterQueueSnapshot, keys: frozenset[Key]) -> list[Admitted]:
    """Return the workloads of a queue that use one of these keys and may be preempted at all."""
    return [
        admitted for admitted in queue.admitted.values() if not (admitted.is_pinned or keys.isdisjoint(admitted.use))
    ]


def _preemptable(
    candidates: list[Admitted],
    demand: QuotaDemand,
    policy: PreemptionPolicy,
    snapshot: Snapshot,
    *,
    may_protect: bool,
) -> list[Admitted]:
    """Return the candidates that this preemptor may preempt, in their order. The list may be the given one."""
    workload = demand.workload
    if demand.replaced:
        candidates = [admitted for admitted in candidates if admitted.workload.workload_id != demand.replaced]
    if policy is PreemptionPolicy.LOWER_PRIORITY:
        priority = workload.priority
        candidates = [admitted for admitted in candidates if admitted.workload.priority < priority]
    elif policy is not PreemptionPolicy.ANY:
        candidates = [admitted for admitted in candidates if outranks(workload, admitted.workload, policy)]
    if may_protect:
        candidates = [admitted for admitted in candidates if not snapshot.protects(workload, admitted)]
    return candidates


class CandidateLists:
    """Candidates of each queue, shared by all searches in one snapshot.

    All heads of a cycle are nominated in the same state, and often those of the next cycle too. A search removes
    workloads only from queues whose candidates it has already read, and adds them again when it ends.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        """Start without lists.

        Args:
            snapshot: The snapshot. Only searches may change it.
        """
        self._snapshot = snapshot
        self._users: dict[tuple[str, frozenset[Key]], list[Admitted]] = {}
        self._sorted: dict[tuple[str, frozenset[Key], float | None], list[Admitted]] = {}
        self._borrowers: dict[tuple[QuotaNode, frozenset[Key]], tuple[QuotaNode, ...]] = {}
        self._need_median: dict[tuple[str, frozenset[Key]], bool] = {}
        self._medians: dict[tuple[str, int, frozenset[Key], str], float | None] = {}
        """Queue, priority and keys of a demand, and its workload if the median depends on it → the median risk."""
        self._any_median = 0.0 if snapshot.rules.spares_work else None
        """Used if every median gives the same order."""

    def borrowers(self, root: QuotaNode, keys: frozenset[Key]) -> tuple[QuotaNode, ...]:
        """Return the queues of a tree that borrow one of these keys."""
        borrowers = self._borrowers.get((root, keys))
        if borrowers is None:
            borrowers = tuple(queue for queue in root.queues if not queue.is_within_quota(keys))
            self._borrowers[root, keys] = borrowers
        return borrowers

    def in_order(
        self,
        name: str,
        demand: QuotaDemand,
        policy: PreemptionPolicy,
        all_policies: Mapping[str, PreemptionPolicy],
        *,
        may_protect: bool,
    ) -> list[Admitted]:
        """Return the workloads of a queue that may be preempted for a demand, in the order of preemption.

        Args:
            name: The queue.
            demand: The demand.
            policy: The policy for this queue.
            all_policies: The policy for each queue that has candidates.
            may_protect: Whether Evenkeel's own switches may protect a workload from the demand.
        """
        if policy is PreemptionPolicy.NEVER:
            return []
        keys, median = demand.keys_needing_preemption, self._any_median
        if self._needs_median(name, keys):
            median = self._median_risk(demand, all_policies, may_protect=may_protect)
        list_key = (name, keys, median)
        candidates = self._sorted.get(list_key)
        if candidates is None:
            # Within one queue, the order does not depend on the preemptor.
            candidates = sorted(self._users_of(name, keys), key=candidate_order(name, self._snapshot, median))
            self._sorted[list_key] = candidates
        return _preemptable(candidates, demand, policy, self._snapshot, may_protect=may_protect)

    def _median_risk(
        self, demand: QuotaDemand, policies: Mapping[str, PreemptionPolicy], *, may_protect: bool
    ) -> float | None:
        """Return the median risk of all workloads that may be preempted for a demand."""
        workload, keys = demand.workload, demand.keys_needing_preemption
        depends_on_workload = (
            may_protect
            or demand.replaced
            or PreemptionPolicy.LOWER_OR_NEWER_EQUAL_PRIORITY in policies.values()  # compares the time in the queue
        )
        median_key = (workload.queue, workload.priority, keys, workload.workload_id if depends_on_workload else "")
        if median_key not in self._medians:
            candidates: list[Admitted] = []
            for name, policy in policies.items():
                if policy is not PreemptionPolicy.NEVER:
                    users = self._users_of(name, keys)
                    candidates += _preemptable(users, demand, policy, self._snapshot, may_protect=may_protect)
            self._medians[median_key] = compute_median_risk(candidates, self._snapshot)
        return self._medians[median_key]

    def _needs_median(self, name: str, keys: frozenset[Key]) -> bool:
        """Whether the median risk decides about the order of a queue: some risks are known, and others are not."""
        if not self._snapshot.rules.spares_work:
            return False
        needs_median = self._need_median.get((name, keys))
        if needs_median is None:
            are_known = {user.work_at_risk is not None for user in self._users_of(name, keys)}
            needs_median = self._need_median[name, keys] = len(are_known) > 1
        return needs_median

    def _users_of(self, name: str, keys: frozenset[Key]) -> list[Admitted]:
        users = self._users.get((name, keys))
        if users is None:
            users = self._users[name, keys] = _preemptable_users(self._snapshot.queues[name], keys)
        return users


def fill_back(victims: list[Victim], demand: QuotaDemand, snapshot: Snapshot, *, may_borrow: bool) -> list[Victim]:
    """Fill back the victims that are not needed, from the second-last backwards; return the rest.

    All victims are removed from the snapshot when it is called.
    """
    needed = victims[-1:]
    for victim in reversed(victims[:-1]):
        snapshot.admit(victim.admitted)
        if not fits_now(demand, may_borrow=may_borrow):
            snapshot.release(victim.admitted)
            needed.append(victim)
    return [*reversed(needed[1:]), needed[0]]


def restore(victims: Iterable[Victim], snapshot: Snapshot) -> None:
    """Add the victims to the snapshot again."""
    for victim in victims:
        snapshot.admit(victim.admitted)


# ---------------------------------------------------------------- the classical order


class _Kind(IntEnum):
    """The relation of a candidate to the preemptor, in the order of preemption."""

    WITHIN = 0
    HIERARCHICAL = 1
    WITHOUT_BORROWING = 2
    """Usable only if the preemptor does not borrow afterwards."""
    WHILE_BORROWING = 3


_REASONS = {
    _Kind.WITHIN: Reason.IN_CLUSTER_QUEUE,
    _Kind.HIERARCHICAL: Reason.IN_COHORT_RECLAMATION,
    _Kind.WITHOUT_BORROWING: Reason.IN_COHORT_RECLAMATION,
    _Kind.WHILE_BORROWING: Reason.IN_COHORT_RECLAIM_WHILE_BORROWING,
}


class _Candidate(NamedTuple):
    """An admitted workload that the preemptor may preempt."""

    admitted: Admitted
    kind: _Kind
    common_ancestor: QuotaNode | None
    """The lowest common ancestor with the preemptor; None in the same queue."""


def classical_victims(demand: QuotaDemand, snapshot: Snapshot) -> list[Victim]:
    """Return the workloads to preempt; empty if preemption does not help."""
    queue = demand.queue
    within = queue.spec.preemption.within
    candidates = [
        _Candidate(candidate, _Kind.WITHIN, None) for candidate in candidates_in(queue, demand, within, snapshot)
    ]
    hierarchical, by_priority = _outside(demand, snapshot)
    ordered = list(_candidates_in_order(candidates, hierarchical, by_priority, queue.spec.name, snapshot))
    may_not_borrow = queue.spec.preemption.borrow_within is None
    if not (hierarchical or by_priority) or (may_not_borrow and not _is_under_nominal(demand)):
        attempts: tuple[bool, ...] = (True,)
    elif may_not_borrow and not hierarchical:
        attempts = (False, True)
    else:
        attempts = (True, False)
    for may_borrow in attempts:
        victims = _try_candidates(ordered, demand, snapshot, may_borrow=may_borrow)
        if victims:
            return victims
    return []


def preemptable_victims(demand: QuotaDemand, snapshot: Snapshot, *, may_borrow: bool) -> list[Victim]:
    """Return all workloads that may be preempted, in order. Each may be preempted after those before it have stopped.

    For a workload that has quota and no nodes: the nodes decide how many of them are needed. With fair sharing, another
    queue only returns borrowed quota, and only to a queue that stays within its own.
    """
    within = demand.queue.spec.preemption.within
    candidates = [
        _Candidate(workload, _Kind.WITHIN, None) for workload in candidates_in(demand.queue, demand, within, snapshot)
    ]
    hierarchical, by_priority = _outside(demand, snapshot)
    if snapshot.rules.fair_sharing:
        hierarchical, by_priority = ([] if may_borrow else hierarchical), []
    victims: list[Victim] = []
    for candidate in list(
        _candidates_in_order(candidates, hierarchical, by_priority, demand.queue.spec.name, snapshot)
    ):
        if _is_usable(candidate, demand, snapshot, may_borrow=may_borrow):
            snapshot.release(candidate.admitted)
            victims.append(Victim(candidate.admitted, _REASONS[candidate.kind]))
    restore(victims, snapshot)
    return victims


def _is_under_nominal(demand: QuotaDemand) -> bool:
    quota_node = demand.queue.quota_node
    return all(cell.nominal > cell.use for cell in map(quota_node.at, demand.keys_needing_preemption))


def _candidates_in_order(
    own_queue: list[_Candidate],
    hierarchical: list[_Candidate],
    by_priority: list[_Candidate],
    queue: str,
    snapshot: Snapshot,
) -> Iterator[_Candidate]:
    """Yield the candidates: evicted ones first, then by group, then by `candidate_order`."""
    median = compute_median_risk(
        (candidate.admitted for candidate in (*own_queue, *hierarchical, *by_priority)), snapshot
    )
    key = candidate_order(queue, snapshot, median)
    groups = [
        sorted(group, key=lambda candidate: key(candidate.admitted)) for group in (hierarchical, by_priority, own_queue)
    ]
    for evicted in (True, False):
        for group in groups:
            yield from (candidate for candidate in group if candidate.admitted.is_evicted is evicted)


def _outside(demand: QuotaDemand, snapshot: Snapshot) -> tuple[list[_Candidate], list[_Candidate]]:
    """Collect the candidates of other queues, from the parent to the root."""
    hierarchical: list[_Candidate] = []
    by_priority: list[_Candidate] = []
    quota_node = demand.queue.quota_node
    if demand.queue.spec.preemption.reclaim is PreemptionPolicy.NEVER:
        return hierarchical, by_priority
    has_advantage, uncovered = _own_quota_covers(quota_node, demand.requested)
    visited: QuotaNode | None = None
    for ancestor in quota_node.path:
        candidates = hierarchical if has_advantage else by_priority
        for queue in _over_quota_below(ancestor, visited, demand):
            policy = demand.queue.spec.preemption.reclaim
            for admitted in candidates_in(snapshot.queues[queue.name], demand, policy, snapshot):
                kind = _Kind.HIERARCHICAL if has_advantage else _kind_by_priority(admitted.workload, demand)
                candidates.append(_Candidate(admitted, kind, ancestor))
        is_covered, uncovered = _own_quota_covers(ancestor, uncovered)
        has_advantage = has_advantage or is_covered
        visited = ancestor
    return hierarchical, by_priority


def _own_quota_covers(quota_node: QuotaNode, requested: Mapping[Key, int]) -> tuple[bool, Amounts]:
    """Return whether a subtree's own quota is enough, and what its ancestors must still provide."""
    is_covered = not any(quota_node.borrows_with(key, amount) for key, amount in requested.items())
    return is_covered, {key: max(0, amount - quota_node.at(key).unused_guaranteed) for key, amount in requested.items()}


def _over_quota_below(quota_node: QuotaNode, visited: QuotaNode | None, demand: QuotaDemand) -> Iterator[QuotaNode]:
    """Yield the queues below a quota node that use more than their quota, and skip cohorts that do not."""
    for child in quota_node.children:
        if (
            child is visited
            or child is demand.queue.quota_node
            or child.is_within_quota(demand.keys_needing_preemption)
        ):
            continue
        if child.is_queue:
            yield child
        else:
            yield from _over_quota_below(child, visited, demand)


def _kind_by_priority(candidate: Workload, demand: QuotaDemand) -> _Kind:
    borrow_within = demand.queue.spec.preemption.borrow_within
    if borrow_within is None or candidate.priority >= demand.workload.priority:
        return _Kind.WITHOUT_BORROWING
    threshold = borrow_within.max_priority_threshold
    if threshold is not None and candidate.priority > threshold:
        return _Kind.WITHOUT_BORROWING
    return _Kind.WHILE_BORROWING


def _try_candidates(
    ordered: list[_Candidate], demand: QuotaDemand, snapshot: Snapshot, *, may_borrow: bool
) -> list[Victim]:
    victims: list[Victim] = []
    for candidate in ordered:
        if not _is_usable(candidate, demand, snapshot, may_borrow=may_borrow):
            continue
        snapshot.release(candidate.admitted)
        victims.append(Victim(candidate.admitted, _REASONS[candidate.kind]))
        if fits_now(demand, may_borrow=may_borrow):
            needed = fill_back(victims, demand, snapshot, may_borrow=may_borrow)
            restore(needed, snapshot)
            return needed
    restore(victims, snapshot)
    return []


def _is_usable(candidate: _Candidate, demand: QuotaDemand, snapshot: Snapshot, *, may_borrow: bool) -> bool:
    """Whether a candidate may still be preempted. It may not if its queue is back within its quota."""
    if candidate.kind is _Kind.WITHIN:
        return True
    if may_borrow and candidate.kind is _Kind.WITHOUT_BORROWING:
        return False
    quota_node = snapshot.queue_of(candidate.admitted.workload).quota_node
    if quota_node.is_within_quota(demand.keys_needing_preemption):
        return False
    for ancestor in quota_node.path:
        if ancestor is candidate.common_ancestor:
            return True
        if ancestor.is_within_quota(demand.keys_needing_preemption):
            return False
    return True


# ---------------------------------------------------------------- simulation for one key


def simulate(demand: QuotaDemand, key: Key, victims: list[Victim], snapshot: Snapshot) -> tuple[FlavorMode, int]:
    """Return the mode in which these victims free one key, and the borrowing level after they have stopped."""
    quota_node = demand.queue.quota_node
    amount = demand.requested[key]
    if not victims:
        return FlavorMode.NO_CANDIDATES, quota_node.level(key, amount)[0]
    with snapshot.without_use_of(victim.admitted for victim in victims):
        level = quota_node.level(key, amount)[0]
    is_own = any(victim.admitted.workload.queue == demand.queue.spec.name for victim in victims)
    return (FlavorMode.PREEMPT if is_own else FlavorMode.RECLAIM), level
