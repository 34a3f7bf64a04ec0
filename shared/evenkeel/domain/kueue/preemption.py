"""Who has to go so that a workload fits, in the classical order.

Candidates are of three kinds: of the own queue; *hierarchical* ones, which use quota that the waiting workload's part
of the tree holds; and *priority* ones, which only its priority outranks. They are removed one by one until it fits;
then, from the second-last backwards, every one whose return still leaves room is given back.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from functools import cmp_to_key
from typing import Any

from evenkeel.domain.kueue.capacity import Node
from evenkeel.domain.kueue.flavors import Mode
from evenkeel.domain.kueue.objects import Admitted, Amounts, Key, PreemptionPolicy, Workload
from evenkeel.domain.kueue.snapshot import Snapshot, Team


class Reason(StrEnum):
    """Why a workload has to go."""

    IN_CLUSTER_QUEUE = "InClusterQueue"
    IN_COHORT_RECLAMATION = "InCohortReclamation"
    IN_COHORT_FAIR_SHARING = "InCohortFairSharing"
    IN_COHORT_RECLAIM_WHILE_BORROWING = "InCohortReclaimWhileBorrowing"
    REPLACED = "WorkloadSliceReplaced"
    """Not a victim: the larger slice of the same job takes its place."""


@dataclass(frozen=True, slots=True)
class Victim:
    """A workload that has to go, and why."""

    admitted: Admitted
    reason: Reason

    @property
    def workload_id(self) -> str:
        """Its id."""
        return self.admitted.workload.workload_id


@dataclass(frozen=True, slots=True)
class Demand:
    """What somebody needs room for."""

    workload: Workload
    team: Team
    wanted: Amounts
    contested: frozenset[Key]
    """The keys on which others have to go."""
    replaced: str = ""
    """The slice that it takes the place of: never its victim."""


def fits(demand: Demand, *, may_borrow: bool) -> bool:
    """Whether there is room now."""
    node = demand.team.node
    for key, amount in demand.wanted.items():
        if not may_borrow and node.is_over_with(key, amount):
            return False
        if amount > node.free(key):
            return False
    return True


def order_key(
    candidate: Admitted, queue: str, now: float, usual_risk: float | None = None
) -> tuple[bool, bool, int, float, float, str]:
    """Sort candidates: evicted ones, other queues, lower priority, later admission, then by id.

    With a usual risk, less work at risk goes before later admission; who never said is charged the usual.
    """
    workload = candidate.workload
    risk = 0.0
    if usual_risk is not None:
        risk = usual_risk if candidate.work_at_risk is None else candidate.work_at_risk
    reserved_at = now if candidate.reserved_at is None else candidate.reserved_at
    return (
        not candidate.is_evicted,
        workload.queue == queue,
        workload.priority,
        risk,
        -reserved_at,
        workload.tie,
    )


def order(queue: str, snapshot: Snapshot, usual_risk: float | None) -> Callable[[Admitted], Any]:
    """Return what candidates are sorted by.

    Where evictions go by use, of two of one queue, who belongs to the sub-queue that used more goes first. Source:
    Kueue's `pkg/scheduler/preemption/common/ordering.go`.
    """

    def key(candidate: Admitted) -> tuple[bool, bool, int, float, float, str]:
        return order_key(candidate, queue, snapshot.now, usual_risk)

    if not (snapshot.rules.evicts_by_use and snapshot.use_of):
        return key

    def use(workload: Workload) -> float:
        return snapshot.use_of[workload.queue](workload.sub_queue, workload.sub_weight)

    def compare(one: Admitted, other: Admitted) -> int:
        ours, theirs = key(one), key(other)
        workload, beside = one.workload, other.workload
        if ours[:2] == theirs[:2] and workload.queue == beside.queue and workload.queue in snapshot.use_of:
            used, used_beside = use(workload), use(beside)
            if used != used_beside:
                return -1 if used > used_beside else 1
        return -1 if ours < theirs else int(ours > theirs)

    return cmp_to_key(compare)


def outranks(workload: Workload, other: Workload, policy: PreemptionPolicy) -> bool:
    """Whether a policy lets one workload have the other evicted."""
    if policy is PreemptionPolicy.ANY:
        return True
    if policy is PreemptionPolicy.NEVER:
        return False
    if workload.priority > other.priority:
        return True
    is_newer_equal = workload.priority == other.priority and workload.queued_at < other.queued_at
    return policy is PreemptionPolicy.LOWER_OR_NEWER_EQUAL_PRIORITY and is_newer_equal


def usual_risk(candidates: Iterable[Admitted], snapshot: Snapshot) -> float | None:
    """Return what who never said is charged: the median, so that saying never hurts. None where work is not spared."""
    if not snapshot.rules.spares_work:
        return None
    risks = sorted(each.work_at_risk for each in candidates if each.work_at_risk is not None)
    return risks[len(risks) // 2] if risks else 0.0


def candidates_in(team: Team, demand: Demand, policy: PreemptionPolicy, snapshot: Snapshot) -> Iterator[Admitted]:
    """Yield who in a queue may be evicted and uses what is contested."""
    if policy is PreemptionPolicy.NEVER:
        return
    workload, contested = demand.workload, demand.contested
    is_guarded = snapshot.rules.min_run_seconds or snapshot.rules.flap_guard_seconds
    for admitted in team.admitted.values():
        if admitted.is_pinned or admitted.workload.workload_id == demand.replaced or contested.isdisjoint(admitted.use):
            continue
        if not outranks(workload, admitted.workload, policy):
            continue
        if not (is_guarded and snapshot.spares(workload, admitted)):
            yield admitted


def give_back(victims: list[Victim], demand: Demand, snapshot: Snapshot, *, may_borrow: bool) -> list[Victim]:
    """Let those run on whose going was not needed, from the second-last backwards. All are removed when it begins."""
    kept = victims[-1:]
    for victim in reversed(victims[:-1]):
        snapshot.admit(victim.admitted)
        if not fits(demand, may_borrow=may_borrow):
            snapshot.release(victim.admitted)
            kept.append(victim)
    return [*reversed(kept[1:]), kept[0]]


def restore(victims: Iterable[Victim], snapshot: Snapshot) -> None:
    """Undo the removals."""
    for victim in victims:
        snapshot.admit(victim.admitted)


# ---------------------------------------------------------------- the classical order


class _Kind(IntEnum):
    WITHIN = 0
    HIERARCHICAL = 1
    WITHOUT_BORROWING = 2
    """Usable only if the preemptor does not borrow in the end."""
    WHILE_BORROWING = 3


_REASONS = {
    _Kind.WITHIN: Reason.IN_CLUSTER_QUEUE,
    _Kind.HIERARCHICAL: Reason.IN_COHORT_RECLAMATION,
    _Kind.WITHOUT_BORROWING: Reason.IN_COHORT_RECLAMATION,
    _Kind.WHILE_BORROWING: Reason.IN_COHORT_RECLAIM_WHILE_BORROWING,
}


@dataclass(frozen=True, slots=True)
class _Candidate:
    admitted: Admitted
    kind: _Kind
    met_at: Node | None
    """The ancestor under which it was found."""


def classical_victims(demand: Demand, snapshot: Snapshot) -> list[Victim]:
    """Find who has to go; nobody where that does not help."""
    team = demand.team
    within = team.queue.preemption.within
    own = [_Candidate(each, _Kind.WITHIN, None) for each in candidates_in(team, demand, within, snapshot)]
    hierarchical, by_priority = _outside(demand, snapshot)
    ordered = list(_in_order(own, hierarchical, by_priority, team.queue.name, snapshot))
    may_not_borrow = team.queue.preemption.borrow_within is None
    if not (hierarchical or by_priority) or (may_not_borrow and not _is_under_nominal(demand)):
        attempts: tuple[bool, ...] = (True,)
    elif may_not_borrow and not hierarchical:
        attempts = (False, True)
    else:
        attempts = (True, False)
    for may_borrow in attempts:
        victims = _attempt(ordered, demand, snapshot, may_borrow=may_borrow)
        if victims:
            return victims
    return []


def preemptable_victims(demand: Demand, snapshot: Snapshot, *, may_borrow: bool) -> list[Victim]:
    """Return all who may be asked to go, in the order in which they are: each once those before it have gone.

    For one that has quota and no machines: how far down the list it has to go, the machines say. Where shares are fair,
    another queue gives back what it borrows to one that stays within its own, and nothing else.
    """
    within = demand.team.queue.preemption.within
    own = [_Candidate(each, _Kind.WITHIN, None) for each in candidates_in(demand.team, demand, within, snapshot)]
    hierarchical, by_priority = _outside(demand, snapshot)
    if snapshot.rules.fair_sharing:
        hierarchical, by_priority = ([] if may_borrow else hierarchical), []
    found: list[Victim] = []
    for candidate in list(_in_order(own, hierarchical, by_priority, demand.team.queue.name, snapshot)):
        if _is_usable(candidate, demand, snapshot, may_borrow=may_borrow):
            snapshot.release(candidate.admitted)
            found.append(Victim(candidate.admitted, _REASONS[candidate.kind]))
    restore(found, snapshot)
    return found


def _is_under_nominal(demand: Demand) -> bool:
    node = demand.team.node
    return all(slot.nominal > slot.use for slot in map(node.at, demand.contested))


def _in_order(
    own: list[_Candidate],
    hierarchical: list[_Candidate],
    by_priority: list[_Candidate],
    queue: str,
    snapshot: Snapshot,
) -> Iterator[_Candidate]:
    usual = usual_risk((each.admitted for each in (*own, *hierarchical, *by_priority)), snapshot)
    key = order(queue, snapshot, usual)
    groups = [sorted(group, key=lambda each: key(each.admitted)) for group in (hierarchical, by_priority, own)]
    for evicted in (True, False):
        for group in groups:
            yield from (each for each in group if each.admitted.is_evicted is evicted)


def _outside(demand: Demand, snapshot: Snapshot) -> tuple[list[_Candidate], list[_Candidate]]:
    """Collect candidates of other queues, walking from the parent to the root."""
    hierarchical: list[_Candidate] = []
    by_priority: list[_Candidate] = []
    node = demand.team.node
    if demand.team.queue.preemption.reclaim is PreemptionPolicy.NEVER:
        return hierarchical, by_priority
    has_advantage, rest = _holds(node, demand.wanted)
    visited: Node | None = None
    for ancestor in node.path:
        found = hierarchical if has_advantage else by_priority
        for queue in _over_quota_below(ancestor, visited, demand):
            policy = demand.team.queue.preemption.reclaim
            for admitted in candidates_in(snapshot.teams[queue.name], demand, policy, snapshot):
                kind = _Kind.HIERARCHICAL if has_advantage else _kind_by_priority(admitted.workload, demand)
                found.append(_Candidate(admitted, kind, ancestor))
        holds, rest = _holds(ancestor, rest)
        has_advantage = has_advantage or holds
        visited = ancestor
    return hierarchical, by_priority


def _holds(node: Node, wanted: Mapping[Key, int]) -> tuple[bool, Amounts]:
    """Whether a subtree's own quota holds this, and what is left to be found above it."""
    holds = not any(node.is_over_with(key, amount) for key, amount in wanted.items())
    return holds, {key: max(0, amount - node.at(key).spare) for key, amount in wanted.items()}


def _over_quota_below(node: Node, visited: Node | None, demand: Demand) -> Iterator[Node]:
    """Yield the queues below a node that use more than they hold, entering only cohorts that do."""
    for child in node.children:
        if child is visited or child is demand.team.node or child.is_within(demand.contested):
            continue
        if child.is_queue:
            yield child
        else:
            yield from _over_quota_below(child, visited, demand)


def _kind_by_priority(candidate: Workload, demand: Demand) -> _Kind:
    borrow_within = demand.team.queue.preemption.borrow_within
    if borrow_within is None or candidate.priority >= demand.workload.priority:
        return _Kind.WITHOUT_BORROWING
    threshold = borrow_within.max_priority_threshold
    if threshold is not None and candidate.priority > threshold:
        return _Kind.WITHOUT_BORROWING
    return _Kind.WHILE_BORROWING


def _attempt(ordered: list[_Candidate], demand: Demand, snapshot: Snapshot, *, may_borrow: bool) -> list[Victim]:
    victims: list[Victim] = []
    for candidate in ordered:
        if not _is_usable(candidate, demand, snapshot, may_borrow=may_borrow):
            continue
        snapshot.release(candidate.admitted)
        victims.append(Victim(candidate.admitted, _REASONS[candidate.kind]))
        if fits(demand, may_borrow=may_borrow):
            kept = give_back(victims, demand, snapshot, may_borrow=may_borrow)
            restore(kept, snapshot)
            return kept
    restore(victims, snapshot)
    return []


def _is_usable(candidate: _Candidate, demand: Demand, snapshot: Snapshot, *, may_borrow: bool) -> bool:
    """Whether it may still be pushed: nobody is, once back within what is theirs."""
    if candidate.kind is _Kind.WITHIN:
        return True
    if may_borrow and candidate.kind is _Kind.WITHOUT_BORROWING:
        return False
    node = snapshot.team_of(candidate.admitted.workload).node
    if node.is_within(demand.contested):
        return False
    for ancestor in node.path:
        if ancestor is candidate.met_at:
            return True
        if ancestor.is_within(demand.contested):
            return False
    return True


# ---------------------------------------------------------------- what a single key would take


def simulate(demand: Demand, key: Key, victims: list[Victim], snapshot: Snapshot) -> tuple[Mode, int]:
    """Return the mode in which victims make room for one key, and how far it borrows once they are gone."""
    node = demand.team.node
    amount = demand.wanted[key]
    if not victims:
        return Mode.NO_CANDIDATES, node.level(key, amount)[0]
    with snapshot.without_use_of(victim.admitted for victim in victims):
        level = node.level(key, amount)[0]
    is_own = any(victim.admitted.workload.queue == demand.team.queue.name for victim in victims)
    return (Mode.PREEMPT if is_own else Mode.RECLAIM), level
