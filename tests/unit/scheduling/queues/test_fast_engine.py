"""The queue engine caches figures and skips repeated work.

In random histories it decides like an engine without caches.
"""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.domain.kueue import fair_sharing
from evenkeel.domain.kueue.capacity import QuotaCell, QuotaNode
from evenkeel.domain.kueue.cycle_decisions import CycleDecision
from evenkeel.domain.kueue.fair_sharing import Contestant, Rank, Share, Tournament, _VictimQueues
from evenkeel.domain.kueue.flavors import FlavorAssigner
from evenkeel.domain.kueue.nomination import Nominator
from evenkeel.domain.kueue.objects import Key, Workload
from evenkeel.domain.kueue.preemption import CandidateLists
from evenkeel.domain.kueue.snapshot import Snapshot, using
from tests.examples import examples
from tests.unit.scheduling.queues.plain_flavors import plain_choose
from tests.unit.scheduling.queues.random_queues import RandomQueues
from tests.unit.scheduling.queues.test_victim_search import (
    CacheThatForgets,
    plain_candidates,
    plain_first_rule,
    plain_next,
)

STEPS = 25


def plain_available(cell: QuotaCell) -> int:
    """Return the available quota from the definition: by recursion, without the chain of cells."""
    if cell.parent_cell is None:
        return cell.subtree - cell.use
    from_parent = plain_available(cell.parent_cell)
    if cell.borrow is not None:
        most = cell.subtree - cell.guaranteed + cell.borrow
        from_parent = min(from_parent, most - max(0, cell.use - cell.guaranteed))
    return max(0, cell.guaranteed - cell.use) + from_parent


def plain_available_without(cell: QuotaCell, amount: int) -> int:
    """Return the quota that is available after the removal of an amount, and restore the use."""
    cell.remove(amount)
    available = plain_available(cell)
    cell.add(amount)
    return available


def plain_queues(quota_node: QuotaNode) -> tuple[QuotaNode, ...]:
    own = (quota_node,) if quota_node.is_queue else ()
    return own + tuple(queue for child in quota_node.children for queue in plain_queues(child))


def plain_share(quota_node: QuotaNode) -> Share:
    """Return the share from the definition: the largest ratio of the resources, computed from all keys."""
    if quota_node.parent is None:
        return Share.of(0.0, quota_node.weight)
    root = quota_node.root
    over = {key: max(0, cell.use - cell.subtree) for key, cell in quota_node.declared}
    ratios: list[tuple[float, str]] = []
    borrowed: list[Key] = []
    for resource in sorted({key[1] for key in over}):
        keys = [key for key in over if key[1] == resource]
        borrowed += [key for key in keys if over[key]]
        lendable = sum(quota_node.parent.potential(key) for key, _ in root.declared if key[1] == resource)
        if lendable > 0:
            ratios.append((sum(over[key] for key in keys) * 1000.0 / lendable, resource))
    ratio, resource = max(ratios, key=lambda pair: pair[0], default=(0.0, ""))
    return Share.of(ratio, quota_node.weight, resource if ratio else "", tuple(borrowed))


def plain_winner(tournament: Tournament, cohort: QuotaNode) -> Contestant | None:
    """Return the winner of a cohort, with the rank of each head computed anew."""
    heads = []
    for child in cohort.children:
        head = tournament._contestants.get(child.name) if child.is_queue else plain_winner(tournament, child)
        if head is not None:
            heads.append((plain_rank(head, child), head))
    return min(heads, key=lambda pair: pair[0])[1] if heads else None


def plain_rank(head: Contestant, through: QuotaNode) -> Rank:
    """Return the rank from its definition: add the request to the tree, and compute the share."""
    with using(head.quota_node, head.requested):
        share = plain_share(through)
    is_borrowed = any(head.requested.get(key, 0) > 0 for key in share.borrowed)
    return (is_borrowed, share.rank, -head.workload.priority, head.workload.queued_at)


def without_caches(patch: pytest.MonkeyPatch) -> None:
    """Replace each shortcut of the engine by the plain computation."""
    prepare: Callable[[Nominator, Snapshot, int, CandidateLists], None] = Nominator.__init__

    def forget_victims(nominator: Nominator, snapshot: Snapshot, cycle: int, candidate_lists: CandidateLists) -> None:
        prepare(nominator, snapshot, cycle, candidate_lists)
        nominator._victims = CacheThatForgets()

    def compute_groups(_snapshot: Snapshot, _workload: Workload, compute: Callable[[], Any]) -> Any:
        return compute()

    def fits(quota_node: QuotaNode, requested: dict[Key, int]) -> bool:
        return all(amount <= 0 or amount <= plain_available(quota_node.at(key)) for key, amount in requested.items())

    patch.setattr(QuotaCell, "available", plain_available)
    patch.setattr(QuotaCell, "available_without", plain_available_without)
    patch.setattr(QuotaNode, "fits", fits)
    patch.setattr(QuotaNode, "queues", property(plain_queues))
    patch.setattr(fair_sharing, "share_of", plain_share)
    patch.setattr(fair_sharing, "_first_rule", plain_first_rule)
    patch.setattr(fair_sharing, "_candidates", plain_candidates)
    patch.setattr(_VictimQueues, "_next", plain_next)
    patch.setattr(Tournament, "_winner", plain_winner)
    patch.setattr(Tournament, "_remove_head", lambda _tournament, _cohort: None)
    patch.setattr(FlavorAssigner, "_choose", plain_choose)
    patch.setattr(Nominator, "__init__", forget_victims)
    patch.setattr(Snapshot, "cached_groups", compute_groups)


def decisions_of_history(seed: int, *, deep: bool, fair: bool) -> list[list[CycleDecision]]:
    return [decisions for decisions, _ in RandomQueues(seed, deep=deep, fair=fair).history(STEPS)]


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32), st.booleans(), st.booleans())
def test_queue_engine_without_shortcuts_makes_the_same_decisions(seed: int, deep: bool, fair: bool) -> None:
    fast = decisions_of_history(seed, deep=deep, fair=fair)

    with pytest.MonkeyPatch.context() as patch:
        without_caches(patch)
        plain = decisions_of_history(seed, deep=deep, fair=fair)

    assert sum(map(len, fast)) > 0
    assert fast == plain
