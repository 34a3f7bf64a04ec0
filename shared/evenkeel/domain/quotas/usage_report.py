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
    queues: Sequence[Queue], cohorts: Sequence[Cohort], amounts_by_team: Mapping[str, Amounts]
) -> Mapping[str, tuple[QuotaUsageRow, ...]]:
    """Return the rows of every queue, by name.

    Args:
        queues: All queues.
        cohorts: All cohorts.
        amounts_by_team: Use by each queue's jobs.
    """
    tree = Tree(queues, cohorts)
    for name, amounts in amounts_by_team.items():
        tree.queues[name].add_all(amounts)
    rows: dict[str, list[QuotaUsageRow]] = {name: [] for name in tree.queues}
    groups = [group for queue in queues for group in queue.groups]
    groups += [group for cohort in cohorts for group in cohort.groups]
    declared_keys = {
        (flavor.flavor, resource) for group in groups for flavor in group.flavors for resource in flavor.quotas
    }
    keys = sorted(declared_keys | {key for amounts in amounts_by_team.values() for key in amounts})
    for key in keys:
        for name, row in usage_of_key(tree, key).items():
            rows[name].append(row)
    return {name: tuple(queue_rows) for name, queue_rows in rows.items()}


def usage_of_key(tree: Tree, key: Key) -> Mapping[str, QuotaUsageRow]:
    """Return the row of each queue that has or uses quota of a flavor and resource."""
    cells = {name: cell for name, quota_node in tree.queues.items() if (cell := quota_node.at(key)).nominal or cell.use}
    lent: dict[str, int] = {}
    if any(cell.use > cell.nominal for cell in cells.values()):
        for root in tree.roots():
            _distribute_borrowing(root, key, lent)
    return {
        name: QuotaUsageRow(key, cell.nominal, cell.use, max(0, cell.use - cell.nominal), lent.get(name, 0))
        for name, cell in cells.items()
    }


_COHORT_QUOTA = ""
"""Used instead of a team: the quota that a cohort holds itself."""


def _distribute_borrowing(quota_node: QuotaNode, key: Key, lent: dict[str, int]) -> tuple[int, dict[str, int]]:
    """Charge the borrowing below a quota node to its lenders: add it to `lent`.

    Return what the subtree must borrow from its parent, and what each team in it can still lend outside.
    """
    cell = quota_node.at(key)
    lendable = max(0, cell.subtree - cell.guaranteed - max(0, cell.use - cell.guaranteed))
    if quota_node.is_queue:
        return max(0, cell.use - cell.nominal), {quota_node.name: lendable} if lendable else {}
    to_borrow, lendable_by_team = 0, {_COHORT_QUOTA: cell.nominal} if cell.nominal else {}
    for child in quota_node.children:
        child_borrowing, child_lendable = _distribute_borrowing(child, key, lent)
        to_borrow += child_borrowing
        for name, amount in child_lendable.items():
            lendable_by_team[name] = lendable_by_team.get(name, 0) + amount
    from_cohort = min(to_borrow, lendable_by_team.pop(_COHORT_QUOTA, 0))
    to_borrow -= from_cohort
    borrowed_by_team = _split_amount(min(to_borrow, sum(lendable_by_team.values())), lendable_by_team)
    for name, amount in borrowed_by_team.items():
        lent[name] = lent.get(name, 0) + amount
        lendable_by_team[name] -= amount
    amounts_left = {name: amount for name, amount in lendable_by_team.items() if amount}
    if cell.nominal > from_cohort:
        amounts_left[_COHORT_QUOTA] = cell.nominal - from_cohort
    # A cohort's lending limit may be smaller.
    return to_borrow - sum(borrowed_by_team.values()), _split_amount(
        min(lendable, sum(amounts_left.values())), amounts_left
    )


def _split_amount(amount: int, lendable_by_team: Mapping[str, int]) -> dict[str, int]:
    """Split an amount in proportion to each team's lendable quota. The rest goes to the largest remainders."""
    total = sum(lendable_by_team.values())
    if not total:
        return {}
    amount_by_team = {name: amount * lendable // total for name, lendable in lendable_by_team.items()}
    odd = amount - sum(amount_by_team.values())
    for name in sorted(lendable_by_team, key=lambda team: (-(amount * lendable_by_team[team] % total), team))[:odd]:
        amount_by_team[name] += 1
    return {name: share for name, share in amount_by_team.items() if share}
