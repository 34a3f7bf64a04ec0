"""The table of teams: what each holds, uses, borrows and lends.

    allocated  its quota
    used       what its running jobs take
    borrowed   what it uses beyond its quota
    lent       what others use of its quota

What is borrowed comes first from the quota that the nearest cohort holds itself, then from those below that cohort who
have let go of what they do not use, each by how much it has let go of; what is left is borrowed one cohort further up.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from evenkeel.domain.kueue.capacity import Node, Tree
from evenkeel.domain.kueue.objects import Amounts, Cohort, Key, Queue


class UsageRow(NamedTuple):
    """One flavor and resource of one team, in the resource's smallest unit."""

    key: Key
    allocated: int
    used: int
    borrowed: int
    lent: int


def usage_rows(
    queues: Sequence[Queue], cohorts: Sequence[Cohort], use: Mapping[str, Amounts]
) -> Mapping[str, tuple[UsageRow, ...]]:
    """Return the lines of every queue, by its name.

    Args:
        queues: All queues.
        cohorts: All cohorts.
        use: What each queue's jobs take.
    """
    tree = Tree(queues, cohorts)
    for name, amounts in use.items():
        tree.queues[name].add_all(amounts)
    groups = [group for queue in queues for group in queue.groups]
    groups += [group for cohort in cohorts for group in cohort.groups]
    declared = {(each.flavor, resource) for group in groups for each in group.flavors for resource in each.quotas}
    keys = sorted(declared | {key for amounts in use.values() for key in amounts})
    lent: dict[tuple[str, Key], int] = {}
    for key in keys:
        for root in tree.roots():
            _borrow(root, key, lent)
    return {
        name: tuple(
            UsageRow(key, slot.nominal, slot.use, max(0, slot.use - slot.nominal), lent.get((name, key), 0))
            for key in keys
            if (slot := node.at(key)).nominal or slot.use
        )
        for name, node in tree.queues.items()
    }


_OWN = ""
"""In the place of a team: the quota that a cohort holds itself."""


def _borrow(node: Node, key: Key, lent: dict[tuple[str, Key], int]) -> tuple[int, dict[str, int]]:
    """Settle below a node; return what is still to be borrowed above it, and what is still let go of, by team."""
    slot = node.at(key)
    let_go = max(0, slot.subtree - slot.guaranteed - max(0, slot.use - slot.guaranteed))
    if node.is_queue:
        return max(0, slot.use - slot.nominal), {node.name: let_go} if let_go else {}
    wanted, offers = 0, {_OWN: slot.nominal} if slot.nominal else {}
    for child in node.children:
        more, theirs = _borrow(child, key, lent)
        wanted += more
        for name, amount in theirs.items():
            offers[name] = offers.get(name, 0) + amount
    own = min(wanted, offers.pop(_OWN, 0))
    wanted -= own
    taken = _split_amount(min(wanted, sum(offers.values())), offers)
    for name, amount in taken.items():
        lent[name, key] = lent.get((name, key), 0) + amount
        offers[name] -= amount
    left = {name: amount for name, amount in offers.items() if amount}
    if slot.nominal > own:
        left[_OWN] = slot.nominal - own
    # A cohort may keep some of it to itself.
    return wanted - sum(taken.values()), _split_amount(min(let_go, sum(left.values())), left)


def _split_amount(amount: int, offers: Mapping[str, int]) -> dict[str, int]:
    """Split an amount by what each offers; the odd ones go to the largest remainders, then by name."""
    total = sum(offers.values())
    if not total:
        return {}
    parts = {name: amount * offered // total for name, offered in offers.items()}
    odd = amount - sum(parts.values())
    for name in sorted(offers, key=lambda each: (-(amount * offers[each] % total), each))[:odd]:
        parts[name] += 1
    return {name: part for name, part in parts.items() if part}
