"""The usage report: how much quota each team has, uses, borrows and lends.

    allocated  its quota
    used       use by its running jobs
    borrowed   its use beyond its quota
    lent       use of its quota by other teams

Borrowed quota comes first from the nearest cohort's own quota. Then it comes from the teams below that cohort that lend
unused quota, each in proportion to the quota that it lends. The rest is borrowed one cohort higher.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from evenkeel.domain.kueue.capacity import QuotaNode, Tree
from evenkeel.domain.kueue.objects import Amounts, Cohort, Key, Queue


class QuotaUsageRow(NamedTuple):
    """A flavor and resource of a team, in the resource's smallest unit."""

    key: Key
    allocated: int
    used: int
    borrowed: int
    lent: int


def usage_rows(
    queues: Sequence[Queue], cohorts: Sequence[Cohort], use: Mapping[str, Amounts]
) -> Mapping[str, tuple[QuotaUsageRow, ...]]:
    """Return the rows of every queue, by name.

    Args:
        queues: All queues.
        cohorts: All cohorts.
        use: Use by each queue's jobs.
    """
    tree = Tree(queues, cohorts)
    for name, amounts in use.items():
        tree.queues[name].add_all(amounts)
    groups = [group for queue in queues for group in queue.groups]
    groups += [group for cohort in cohorts for group in cohort.groups]
    declared = {(flavor.flavor, resource) for group in groups for flavor in group.flavors for resource in flavor.quotas}
    keys = sorted(declared | {key for amounts in use.values() for key in amounts})
    lent: dict[tuple[str, Key], int] = {}
    for key in keys:
        for root in tree.roots():
            _distribute_borrowing(root, key, lent)
    return {
        name: tuple(
            QuotaUsageRow(key, slot.nominal, slot.use, max(0, slot.use - slot.nominal), lent.get((name, key), 0))
            for key in keys
            if (slot := quota_node.at(key)).nominal or slot.use
        )
        for name, quota_node in tree.queues.items()
    }


_COHORT_QUOTA = ""
"""Used instead of a team: the quota that a cohort holds itself."""


def _distribute_borrowing(
    quota_node: QuotaNode, key: Key, lent: dict[tuple[str, Key], int]
) -> tuple[int, dict[str, int]]:
    """Distribute borrowing below a quota node; return the quota to borrow above it, and the lendable quota by team."""
    slot = quota_node.at(key)
    lendable = max(0, slot.subtree - slot.guaranteed - max(0, slot.use - slot.guaranteed))
    if quota_node.is_queue:
        return max(0, slot.use - slot.nominal), {quota_node.name: lendable} if lendable else {}
    to_borrow, lendable_by_team = 0, {_COHORT_QUOTA: slot.nominal} if slot.nominal else {}
    for child in quota_node.children:
        child_borrowing, child_lendable = _distribute_borrowing(child, key, lent)
        to_borrow += child_borrowing
        for name, amount in child_lendable.items():
            lendable_by_team[name] = lendable_by_team.get(name, 0) + amount
    from_cohort = min(to_borrow, lendable_by_team.pop(_COHORT_QUOTA, 0))
    to_borrow -= from_cohort
    borrowed_by_team = _split_amount(min(to_borrow, sum(lendable_by_team.values())), lendable_by_team)
    for name, amount in borrowed_by_team.items():
        lent[name, key] = lent.get((name, key), 0) + amount
        lendable_by_team[name] -= amount
    remaining = {name: amount for name, amount in lendable_by_team.items() if amount}
    if slot.nominal > from_cohort:
        remaining[_COHORT_QUOTA] = slot.nominal - from_cohort
    # A cohort's lending limit may be smaller.
    return to_borrow - sum(borrowed_by_team.values()), _split_amount(min(lendable, sum(remaining.values())), remaining)


def _split_amount(amount: int, lendable_by_team: Mapping[str, int]) -> dict[str, int]:
    """Split an amount in proportion to each team's lendable quota. The rest goes to the largest remainders."""
    total = sum(lendable_by_team.values())
    if not total:
        return {}
    parts = {name: amount * lendable // total for name, lendable in lendable_by_team.items()}
    odd = amount - sum(parts.values())
    for name in sorted(lendable_by_team, key=lambda team: (-(amount * lendable_by_team[team] % total), team))[:odd]:
        parts[name] += 1
    return {name: share for name, share in parts.items() if share}
