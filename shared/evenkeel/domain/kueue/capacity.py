"""Quota, use and borrowing over a tree of cohorts.

    guaranteed(n) quota that n does not lend             max(0, subtree(n) - lending limit), 0 without a lending limit
    subtree(n)    quota of n's subtree                   nominal(n) + what its children can lend
    use(n)        use of a queue; of a cohort, what its children use beyond their guaranteed quota
    potential(n)  the most that n could use in an empty tree
    available(n)  what n could use now; negative if the tree uses more than its quota

Each figure exists for each key. So a node of the tree has a cell for each of its keys. A cell refers to the cell of
its parent: a Kueue cycle reads little else. Removing the use that was added restores the tree exactly. Source:
Kueue's concepts of cohort and quota.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from evenkeel.domain.kueue.objects import NO_QUOTA, Cohort, Key, Queue, Quota, ResourceGroup

if TYPE_CHECKING:
    from evenkeel.domain.kueue.fair_sharing import Share


class QuotaCell:
    """Quota and use of one key in one node of the quota tree."""

    __slots__ = (
        "_potential",
        "below_root",
        "borrow",
        "chain",
        "guaranteed",
        "nominal",
        "parent_cell",
        "quota_node",
        "subtree",
        "use",
    )

    def __init__(self, quota: Quota, parent_cell: "QuotaCell | None", quota_node: "QuotaNode") -> None:
        self.quota_node = quota_node
        self.nominal = quota.nominal
        self.borrow = quota.borrow
        self.parent_cell = parent_cell
        """The cell of the same key in the parent."""
        self.chain: tuple[QuotaCell, ...] = (self,) if parent_cell is None else (*parent_cell.chain, self)
        """The cells on the path from the root to this node."""
        self.below_root = self.chain[1:]
        self.subtree = quota.nominal
        self.guaranteed = 0
        self.use = 0
        self._potential: int | None = None

    @property
    def unused_guaranteed(self) -> int:
        """Guaranteed quota that is not used."""
        return max(0, self.guaranteed - self.use)

    @property
    def potential(self) -> int:
        """Maximum that could be used in an empty tree."""
        if self._potential is None:
            total = self.subtree
            if self.parent_cell is not None:
                total = self.guaranteed + self.parent_cell.potential
                if self.borrow is not None:
                    total = min(total, self.subtree + self.borrow)
            self._potential = total
        return self._potential

    def available(self) -> int:
        """Return the quota that is available now; negative if the tree uses more than its quota."""
        root = self.chain[0]
        free = root.subtree - root.use
        for cell in self.below_root:
            beyond = cell.use - cell.guaranteed
            borrow = cell.borrow
            if borrow is not None:
                limit = cell.subtree - cell.guaranteed + borrow
                if beyond > 0:
                    limit -= beyond
                free = limit if limit < free else free
            if beyond < 0:
                free -= beyond
        return free

    def available_without(self, amount: int) -> int:
        """Return the quota that would be available if this cell used less, as `remove` would leave it.

        It repeats the rule of `available`, which is called far more often and must not walk the tree twice.
        """
        removed = []
        for cell in reversed(self.chain):
            removed.append(amount)
            past = cell.use - cell.guaranteed
            amount = max(0, min(past, amount))
        root = self.chain[0]
        free = root.subtree - root.use + removed.pop()
        for cell in self.below_root:
            beyond = cell.use - removed.pop() - cell.guaranteed
            if cell.borrow is not None:
                free = min(free, cell.subtree - cell.guaranteed + cell.borrow - max(0, beyond))
            free += max(0, -beyond)
        return free

    def add(self, amount: int) -> None:
        """Add use. Use beyond the guaranteed quota also counts in the parent."""
        cell = self
        while True:
            unused_guaranteed = cell.guaranteed - cell.use
            cell.use += amount
            cell.quota_node.cached_share = None
            if unused_guaranteed > 0:
                amount -= unused_guaranteed
            if amount <= 0 or cell.parent_cell is None:
                return
            cell = cell.parent_cell

    def remove(self, amount: int) -> None:
        """Remove use: the reverse of `add`. A negative amount changes no parent."""
        cell = self
        while True:
            past = cell.use - cell.guaranteed
            cell.use -= amount
            cell.quota_node.cached_share = None
            if past <= 0 or amount <= 0 or cell.parent_cell is None:
                return
            amount = past if past < amount else amount
            cell = cell.parent_cell


class QuotaNode:
    """A node of the quota tree: a queue or a cohort, with its quota and use. It is not a node of the fleet."""

    __slots__ = (
        "_by_resource",
        "_lendable",
        "_queues",
        "cached_share",
        "cells",
        "children",
        "declared",
        "height",
        "is_active",
        "is_queue",
        "name",
        "parent",
        "path",
        "quotas",
        "weight",
    )

    def __init__(self, name: str, quotas: dict[Key, Quota], weight: float, *, is_queue: bool) -> None:
        self.name = name
        self.is_queue = is_queue
        self.is_active = True
        self.quotas = quotas
        self.weight = weight
        self.parent: QuotaNode | None = None
        self.path: tuple[QuotaNode, ...] = ()
        """The ancestors, from the parent to the root."""
        self.children: list[QuotaNode] = []
        """The active children: cohorts before queues, each by name."""
        self.height = 0
        """0 for a queue and for an empty cohort; otherwise the longest path down to a queue."""
        self.cells: dict[Key, QuotaCell] = {}
        self.declared: tuple[tuple[Key, QuotaCell], ...] = ()
        """The keys for which the subtree declares quota."""
        self.cached_share: Share | None = None
        """The share that `share_of` in fair_sharing.py computed; None after the use changed."""
        self._lendable: dict[str, int] | None = None
        self._queues: tuple[QuotaNode, ...] | None = None
        self._by_resource: tuple[tuple[str, tuple[tuple[Key, QuotaCell], ...]], ...] | None = None

    def at(self, key: Key) -> QuotaCell:
        """Return the cell of a key."""
        cell = self.cells.get(key)
        if cell is None:
            parent_cell = self.parent.at(key) if self.parent else None
            cell = self.cells[key] = QuotaCell(self.quotas.get(key, NO_QUOTA), parent_cell, self)
        return cell

    @property
    def root(self) -> "QuotaNode":
        """The root of the tree; this node itself if it has no parent."""
        return self.path[-1] if self.path else self

    def potential(self, key: Key) -> int:
        """Return the maximum that could be used in an empty tree."""
        return self.at(key).potential

    def available(self, key: Key) -> int:
        """Return the quota that is available now; negative if the tree uses more than its quota."""
        return self.at(key).available()

    def free(self, key: Key) -> int:
        """Return the quota that is available now, never negative."""
        return max(0, self.at(key).available())

    def fits(self, requested: Mapping[Key, int]) -> bool:
        """Whether all of these amounts are available together."""
        cells = self.cells
        for key, amount in requested.items():
            if amount > 0 and amount > (cells.get(key) or self.at(key)).available():
                return False
        return True

    def add_all(self, amounts: Mapping[Key, int]) -> None:
        """Add use of several keys."""
        cells = self.cells
        for key, amount in amounts.items():
            (cells.get(key) or self.at(key)).add(amount)

    def remove_all(self, amounts: Mapping[Key, int]) -> None:
        """Remove use of several keys."""
        cells = self.cells
        for key, amount in amounts.items():
            (cells.get(key) or self.at(key)).remove(amount)

    def borrows_with(self, key: Key, amount: int) -> bool:
        """Whether this additional amount exceeds the subtree's quota (of a queue: its nominal quota)."""
        cell = self.at(key)
        return cell.use + amount > cell.subtree

    def is_within_quota(self, keys: Iterable[Key]) -> bool:
        """Whether the use of each of these keys is within the subtree's quota."""
        for key in keys:
            cell = self.at(key)
            if cell.use > cell.subtree:
                return False
        return True

    def level(self, key: Key, amount: int) -> tuple[int, bool]:
        """Return at which height of the tree an additional amount is borrowed, and whether that is below the root.

        0 means that nothing is borrowed. Otherwise it is the height of the lowest ancestor whose subtree has enough.
        """
        if self.parent is None:
            return 0, False
        cell = self.at(key)
        if cell.use + amount <= cell.subtree:
            return 0, True
        for ancestor in self.path:
            unused = cell.guaranteed - cell.use
            if unused > 0:
                amount -= unused
            cell = cell.parent_cell or cell
            if cell.use + amount <= cell.subtree:
                return ancestor.height, ancestor.parent is not None
        return self.root.height, False

    @property
    def queues(self) -> "tuple[QuotaNode, ...]":
        """The queues of the subtree, depth first."""
        if self._queues is None:
            below = tuple(queue for child in self.children for queue in child.queues)
            self._queues = (self, *below) if self.is_queue else below
        return self._queues

    @property
    def by_resource(self) -> tuple[tuple[str, tuple[tuple[Key, QuotaCell], ...]], ...]:
        """The declared keys of each resource, in the order of the resources' names."""
        if self._by_resource is None:
            cells: dict[str, list[tuple[Key, QuotaCell]]] = {}
            for key, cell in self.declared:
                cells.setdefault(key[1], []).append((key, cell))
            self._by_resource = tuple((name, tuple(cells[name])) for name in sorted(cells))
        return self._by_resource

    @property
    def lendable(self) -> dict[str, int]:
        """Maximum that a child could use, by resource."""
        if self._lendable is None:
            amounts: dict[str, int] = {}
            for key, _ in self.root.declared:
                amounts[key[1]] = amounts.get(key[1], 0) + self.potential(key)
            self._lendable = amounts
        return self._lendable


def quotas_of(groups: Iterable[ResourceGroup]) -> dict[Key, Quota]:
    """Return the quota by key that a queue or cohort declares."""
    return {
        (flavor.flavor, resource): quota
        for group in groups
        for flavor in group.flavors
        for resource, quota in flavor.quotas.items()
    }


class Tree:
    """All queues and cohorts, as one or more trees."""

    def __init__(self, queues: Iterable[Queue], cohorts: Iterable[Cohort]) -> None:
        """Build the trees without use."""
        self.queues = {
            queue.name: quota_node_of(queue, is_queue=True) for queue in sorted(queues, key=lambda queue: queue.name)
        }
        declared = {cohort.name: cohort for cohort in cohorts}
        parents = {name: cohort.parent for name, cohort in declared.items()}
        specs = {queue.name: queue.cohort for queue in queues}
        self.cyclic = _cyclic_cohorts(parents)
        """Cohorts that are their own ancestors. Queues below them admit no workload."""
        for name in (*specs.values(), *parents.values()):
            if name and name not in declared:
                declared[name] = Cohort(name)  # named as a parent but not declared: it is a root without quota
        self.cohorts = {name: quota_node_of(declared[name], is_queue=False) for name in sorted(declared)}
        for name, parent in sorted(parents.items()):
            if parent and name not in self.cyclic:
                self._attach(self.cohorts[name], parent)
        for name in self.queues:
            if specs[name]:
                self._attach(self.queues[name], specs[name])
        for root in self.roots():
            _accumulate(root)

    def _attach(self, child: QuotaNode, parent: str) -> None:
        child.parent = self.cohorts[parent]
        child.parent.children.append(child)

    def roots(self) -> Iterator[QuotaNode]:
        """Yield the root of each tree: cohorts by name, then queues without a cohort."""
        for quota_node in (*self.cohorts.values(), *self.queues.values()):
            if quota_node.parent is None:
                yield quota_node

    def is_cyclic(self, queue: str) -> bool:
        """Whether a queue is below a cohort that is its own ancestor."""
        quota_node = self.queues[queue]
        return any(ancestor.name in self.cyclic for ancestor in quota_node.path)


def quota_node_of(declared: Queue | Cohort, *, is_queue: bool) -> QuotaNode:
    quotas = quotas_of(declared.groups)
    quota_node = QuotaNode(declared.name, quotas, declared.fair_weight, is_queue=is_queue)
    quota_node.is_active = not isinstance(declared, Queue) or declared.is_active
    return quota_node


def _cyclic_cohorts(parents: Mapping[str, str]) -> frozenset[str]:
    cyclic = set()
    for start in parents:
        visited, name = set(), start
        while name in parents and name not in visited:
            visited.add(name)
            name = parents[name]
        if name in visited:
            cyclic.add(name)
            name_on_cycle = parents[name]
            while name_on_cycle != name:
                cyclic.add(name_on_cycle)
                name_on_cycle = parents[name_on_cycle]
    return frozenset(cyclic)


def _accumulate(quota_node: QuotaNode) -> None:
    """Add up the quota of each subtree, from the leaves to the root."""
    quota_node.path = (quota_node.parent, *quota_node.parent.path) if quota_node.parent else ()
    quota_node.children.sort(key=lambda child: (child.is_queue, child.name))
    for key in quota_node.quotas:
        quota_node.at(key)
    for child in quota_node.children:
        _accumulate(child)
        for key, cell in child.declared:
            quota_node.at(key).subtree += cell.subtree - cell.guaranteed
    for key, quota in quota_node.quotas.items():
        if quota.lend is not None:
            cell = quota_node.at(key)
            cell.guaranteed = max(0, cell.subtree - quota.lend)
    quota_node.declared = tuple(quota_node.cells.items())
    # The quota and the use of an inactive queue count. Otherwise it is ignored.
    quota_node.children = [child for child in quota_node.children if child.is_active]
    quota_node.height = max((1 if child.is_queue else child.height + 1 for child in quota_node.children), default=0)
