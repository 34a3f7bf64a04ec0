"""The algebra of quota over a tree of cohorts.

    local(n)     what n keeps to itself                     max(0, sub(n) - lend), 0 without a lending limit
    sub(n)       what n's subtree holds                     nominal(n) + what its children let go of
    use(n)       a queue's use; a cohort's is what its children use beyond what they keep
    potential(n) the most n could use of an empty tree
    available(n) what n could use now; negative where a tree uses more than it holds

Taking back what was added gives the tree as it was. Source: Kueue's concepts of cohort and quota.
"""

from collections.abc import Iterable, Iterator, Mapping

from evenkeel.domain.scheduling.queues.objects import (
    NO_QUOTA,
    UNLIMITED,
    Amounts,
    Cohort,
    Key,
    Queue,
    Quota,
    ResourceGroup,
)


def plus(a: int, b: int) -> int:
    """Add; without bound stays without bound."""
    if UNLIMITED in (a, b):
        return UNLIMITED
    return min(a + b, UNLIMITED)


def minus(a: int, b: int) -> int:
    """Subtract; nothing takes anything from what has no bound, but something as boundless leaves nothing."""
    if a == UNLIMITED:
        return 0 if b == UNLIMITED else UNLIMITED
    return -UNLIMITED if b == UNLIMITED else a - b


class Node:
    """A queue or a cohort in its tree: what it holds, and what is used of it."""

    __slots__ = (
        "_lendable",
        "_potential",
        "children",
        "height",
        "is_active",
        "is_queue",
        "kept",
        "name",
        "parent",
        "path",
        "quotas",
        "sub",
        "use",
        "weight",
    )

    def __init__(self, name: str, quotas: dict[Key, Quota], weight: float, *, is_queue: bool) -> None:
        self.name = name
        self.is_queue = is_queue
        self.is_active = True
        self.quotas = quotas
        self.weight = weight
        self.parent: Node | None = None
        self.path: tuple[Node, ...] = ()
        """Its ancestors, from the parent to the root."""
        self.children: list[Node] = []
        """Those that take part, by name, cohorts before queues."""
        self.height = 0
        """0 for a queue and for an empty cohort; the longest way down to a queue."""
        self.sub: Amounts = {}
        self.kept: Amounts = {}
        self.use: Amounts = {}
        self._potential: Amounts = {}
        self._lendable: dict[str, int] | None = None

    def quota(self, key: Key) -> Quota:
        """Return what it holds itself."""
        return self.quotas.get(key, NO_QUOTA)

    @property
    def root(self) -> "Node":
        """The top of its tree; itself where it has no parent."""
        return self.path[-1] if self.path else self

    def spare(self, key: Key) -> int:
        """Return what it keeps to itself and does not use."""
        return max(0, minus(self.kept.get(key, 0), self.use.get(key, 0)))

    def potential(self, key: Key) -> int:
        """Return the most it could use of an empty tree."""
        known = self._potential.get(key)
        if known is None:
            known = self._potential[key] = self._most(key)
        return known

    def _most(self, key: Key) -> int:
        sub = self.sub.get(key, 0)
        if self.parent is None:
            return sub
        most = plus(self.kept.get(key, 0), self.parent.potential(key))
        borrow = self.quota(key).borrow
        return most if borrow is None else min(most, plus(sub, borrow))

    def available(self, key: Key) -> int:
        """Return what it could use now; negative where the tree uses more than it holds."""
        if self.parent is None:
            return minus(self.sub.get(key, 0), self.use.get(key, 0))
        above = self.parent.available(key)
        borrow = self.quota(key).borrow
        if borrow is not None:
            kept = self.kept.get(key, 0)
            stored = minus(self.sub.get(key, 0), kept)
            used = max(0, minus(self.use.get(key, 0), kept))
            above = min(above, plus(minus(stored, used), borrow))
        return plus(self.spare(key), above)

    def free(self, key: Key) -> int:
        """Return what it could use now, as a test of fit asks for it: never negative."""
        return max(0, self.available(key))

    def fits(self, wanted: Mapping[Key, int]) -> bool:
        """Whether all of these amounts are there at once."""
        return all(amount <= self.free(key) for key, amount in wanted.items())

    def add(self, key: Key, amount: int) -> None:
        """Use more; what goes beyond what it keeps is used of its parent too."""
        spare = self.spare(key)
        self.use[key] = plus(self.use.get(key, 0), amount)
        if self.parent is not None and amount > spare:
            self.parent.add(key, minus(amount, spare))

    def remove(self, key: Key, amount: int) -> None:
        """Use less: the reverse of `add`."""
        past = minus(self.use.get(key, 0), self.kept.get(key, 0))
        self.use[key] = minus(self.use.get(key, 0), amount)
        if self.parent is not None and past > 0:
            self.parent.remove(key, min(amount, past))

    def add_all(self, amounts: Mapping[Key, int]) -> None:
        """Use more of several keys."""
        for key, amount in amounts.items():
            self.add(key, amount)

    def remove_all(self, amounts: Mapping[Key, int]) -> None:
        """Use less of several keys."""
        for key, amount in amounts.items():
            self.remove(key, amount)

    def is_over_with(self, key: Key, amount: int) -> bool:
        """Whether it would use more than it holds (a queue: more than nominal) with so much more."""
        return plus(self.use.get(key, 0), amount) > self.sub.get(key, 0)

    def is_within(self, keys: Iterable[Key]) -> bool:
        """Whether it uses no more than it holds, on every one of these keys."""
        return not any(self.is_over_with(key, 0) for key in keys)

    def level(self, key: Key, amount: int) -> tuple[int, bool]:
        """Return how far up the tree so much more must be borrowed, and whether that is below the root.

        0 is not borrowed at all; else the height of the lowest ancestor whose subtree holds it.
        """
        if self.parent is None:
            return 0, False
        if not self.is_over_with(key, amount):
            return 0, True
        rest = minus(amount, self.spare(key))
        for ancestor in self.path:
            if not ancestor.is_over_with(key, rest):
                return ancestor.height, ancestor.parent is not None
            rest = minus(rest, ancestor.spare(key))
        return self.root.height, False

    @property
    def lendable(self) -> dict[str, int]:
        """What a child of this node could have at most, by resource."""
        if self._lendable is None:
            found: dict[str, int] = {}
            for key in self.root.sub:
                found[key[1]] = plus(found.get(key[1], 0), self.potential(key))
            self._lendable = found
        return self._lendable


def quotas_of(groups: Iterable[ResourceGroup]) -> dict[Key, Quota]:
    """Return the quota by key of what a queue or cohort declares."""
    return {
        (flavor.flavor, resource): quota
        for group in groups
        for flavor in group.flavors
        for resource, quota in flavor.quotas.items()
    }


class Tree:
    """All queues and cohorts, as one or more trees."""

    def __init__(self, queues: Iterable[Queue], cohorts: Iterable[Cohort]) -> None:
        """Build the trees, unused."""
        self.queues = {each.name: _node(each, is_queue=True) for each in sorted(queues, key=lambda each: each.name)}
        declared = {each.name: each for each in cohorts}
        parents = {name: each.parent for name, each in declared.items()}
        specs = {each.name: each.cohort for each in queues}
        self.cyclic = _on_cycles(parents)
        """Cohorts that are their own ancestors: nothing below them is admitted."""
        for name in (*specs.values(), *parents.values()):
            if name and name not in declared:
                declared[name] = Cohort(name)  # named and never defined: an empty root
        self.cohorts = {name: _node(declared[name], is_queue=False) for name in sorted(declared)}
        for name, parent in sorted(parents.items()):
            if parent and name not in self.cyclic:
                self._hang(self.cohorts[name], parent)
        for name in self.queues:
            if specs[name]:
                self._hang(self.queues[name], specs[name])
        for root in self.roots():
            _accumulate(root)

    def _hang(self, child: Node, parent: str) -> None:
        child.parent = self.cohorts[parent]
        child.parent.children.append(child)

    def roots(self) -> Iterator[Node]:
        """Yield the top of each tree: cohorts by name, then queues without one."""
        for node in (*self.cohorts.values(), *self.queues.values()):
            if node.parent is None:
                yield node

    def is_cyclic(self, queue: str) -> bool:
        """Whether a queue hangs below a cycle."""
        node = self.queues[queue]
        return any(ancestor.name in self.cyclic for ancestor in node.path)


def queues_below(node: Node) -> Iterator[Node]:
    """Yield the queues of a subtree, depth first."""
    if node.is_queue:
        yield node
    for child in node.children:
        yield from queues_below(child)


def _node(declared: Queue | Cohort, *, is_queue: bool) -> Node:
    quotas = quotas_of(declared.groups)
    node = Node(declared.name, quotas, declared.fair_weight, is_queue=is_queue)
    node.is_active = not isinstance(declared, Queue) or declared.is_active
    return node


def _on_cycles(parents: Mapping[str, str]) -> frozenset[str]:
    found = set()
    for start in parents:
        seen, name = set(), start
        while name in parents and name not in seen:
            seen.add(name)
            name = parents[name]
        if name in seen:
            found.add(name)
            on_it = parents[name]
            while on_it != name:
                found.add(on_it)
                on_it = parents[on_it]
    return frozenset(found)


def _accumulate(node: Node) -> None:
    """Sum up what each subtree holds, from the leaves to the root."""
    node.path = (node.parent, *node.parent.path) if node.parent else ()
    node.children.sort(key=lambda child: (child.is_queue, child.name))
    node.sub = {key: quota.nominal for key, quota in node.quotas.items()}
    for child in node.children:
        _accumulate(child)
        for key, held in child.sub.items():
            node.sub[key] = plus(node.sub.get(key, 0), minus(held, child.kept.get(key, 0)))
    for key, quota in node.quotas.items():
        if quota.lend is not None:
            node.kept[key] = max(0, minus(node.sub[key], quota.lend))
    # What an inactive queue holds and uses counts; it takes part in nothing else.
    node.children = [child for child in node.children if child.is_active]
    node.height = max((1 if child.is_queue else child.height + 1 for child in node.children), default=0)
