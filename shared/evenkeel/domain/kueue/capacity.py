"""The algebra of quota over a tree of cohorts.

    kept(n)      what n keeps to itself                     max(0, sub(n) - lend), 0 without a lending limit
    sub(n)       what n's subtree holds                     nominal(n) + what its children let go of
    use(n)       a queue's use; a cohort's is what its children use beyond what they keep
    potential(n) the most n could use of an empty tree
    available(n) what n could use now; negative where a tree uses more than it holds

Each is a figure per key, so a node has a slot for each of its keys, and a slot knows the slots above it: a scheduling
cycle asks little else. Taking back what was added gives the tree as it was. Source: Kueue's concepts
of cohort and quota.
"""

from collections.abc import Iterable, Iterator, Mapping

from evenkeel.domain.kueue.objects import NO_QUOTA, Cohort, Key, Queue, Quota, ResourceGroup


class Slot:
    """One key of one node."""

    __slots__ = ("_potential", "above", "borrow", "chain", "kept", "nominal", "sub", "use")

    def __init__(self, quota: Quota, above: "Slot | None") -> None:
        self.nominal = quota.nominal
        self.borrow = quota.borrow
        self.above = above
        """The slot of the parent."""
        self.chain: tuple[Slot, ...] = (self,) if above is None else (*above.chain, self)
        """From the root's to its own."""
        self.sub = quota.nominal
        self.kept = 0
        self.use = 0
        self._potential: int | None = None

    @property
    def spare(self) -> int:
        """What it keeps to itself and does not use."""
        return max(0, self.kept - self.use)

    @property
    def potential(self) -> int:
        """The most it could use of an empty tree."""
        if self._potential is None:
            most = self.sub
            if self.above is not None:
                most = self.kept + self.above.potential
                if self.borrow is not None:
                    most = min(most, self.sub + self.borrow)
            self._potential = most
        return self._potential

    def available(self) -> int:
        """Return what it could use now; negative where the tree uses more than it holds."""
        chain = self.chain
        root = chain[0]
        found = root.sub - root.use
        for slot in chain[1:]:
            beyond = slot.use - slot.kept
            borrow = slot.borrow
            if borrow is not None:
                most = slot.sub - slot.kept + borrow
                if beyond > 0:
                    most -= beyond
                found = min(found, most)
            if beyond < 0:
                found -= beyond
        return found

    def add(self, amount: int) -> None:
        """Use more; what goes beyond what it keeps is used of its parent too."""
        slot = self
        while True:
            spare = slot.kept - slot.use
            slot.use += amount
            if spare > 0:
                amount -= spare
            if amount <= 0 or slot.above is None:
                return
            slot = slot.above

    def remove(self, amount: int) -> None:
        """Use less: the reverse of `add`, also of one of less than nothing, which concerns no parent."""
        slot = self
        while True:
            past = slot.use - slot.kept
            slot.use -= amount
            if past <= 0 or amount <= 0 or slot.above is None:
                return
            amount = min(amount, past)
            slot = slot.above


class Node:
    """A queue or a cohort in its tree: what it holds, and what is used of it."""

    __slots__ = (
        "_by_resource",
        "_lendable",
        "children",
        "declared",
        "height",
        "is_active",
        "is_queue",
        "name",
        "parent",
        "path",
        "quotas",
        "slots",
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
        self.slots: dict[Key, Slot] = {}
        self.declared: tuple[tuple[Key, Slot], ...] = ()
        """The keys of which its subtree holds anything by declaration."""
        self._lendable: dict[str, int] | None = None
        self._by_resource: tuple[tuple[str, tuple[tuple[Key, Slot], ...]], ...] | None = None

    def at(self, key: Key) -> Slot:
        """Return its slot of a key."""
        found = self.slots.get(key)
        if found is None:
            above = self.parent.at(key) if self.parent else None
            found = self.slots[key] = Slot(self.quotas.get(key, NO_QUOTA), above)
        return found

    @property
    def root(self) -> "Node":
        """The top of its tree; itself where it has no parent."""
        return self.path[-1] if self.path else self

    def potential(self, key: Key) -> int:
        """Return the most it could use of an empty tree."""
        return self.at(key).potential

    def available(self, key: Key) -> int:
        """Return what it could use now; negative where the tree uses more than it holds."""
        return self.at(key).available()

    def free(self, key: Key) -> int:
        """Return what it could use now, as a test of fit asks for it: never negative."""
        return max(0, self.at(key).available())

    def fits(self, wanted: Mapping[Key, int]) -> bool:
        """Whether all of these amounts are there at once."""
        return all(amount <= 0 or amount <= self.at(key).available() for key, amount in wanted.items())

    def add(self, key: Key, amount: int) -> None:
        """Use more of a key."""
        self.at(key).add(amount)

    def remove(self, key: Key, amount: int) -> None:
        """Use less of a key."""
        self.at(key).remove(amount)

    def add_all(self, amounts: Mapping[Key, int]) -> None:
        """Use more of several keys."""
        for key, amount in amounts.items():
            self.at(key).add(amount)

    def remove_all(self, amounts: Mapping[Key, int]) -> None:
        """Use less of several keys."""
        for key, amount in amounts.items():
            self.at(key).remove(amount)

    def is_over_with(self, key: Key, amount: int) -> bool:
        """Whether it would use more than it holds (a queue: more than nominal) with so much more."""
        slot = self.at(key)
        return slot.use + amount > slot.sub

    def is_within(self, keys: Iterable[Key]) -> bool:
        """Whether it uses no more than it holds, on every one of these keys."""
        for key in keys:
            slot = self.at(key)
            if slot.use > slot.sub:
                return False
        return True

    def level(self, key: Key, amount: int) -> tuple[int, bool]:
        """Return how far up the tree so much more must be borrowed, and whether that is below the root.

        0 is not borrowed at all; else the height of the lowest ancestor whose subtree holds it.
        """
        if self.parent is None:
            return 0, False
        slot = self.at(key)
        if slot.use + amount <= slot.sub:
            return 0, True
        for ancestor in self.path:
            spare = slot.kept - slot.use
            if spare > 0:
                amount -= spare
            slot = slot.above or slot
            if slot.use + amount <= slot.sub:
                return ancestor.height, ancestor.parent is not None
        return self.root.height, False

    @property
    def by_resource(self) -> tuple[tuple[str, tuple[tuple[Key, Slot], ...]], ...]:
        """The declared keys of each resource, by its name."""
        if self._by_resource is None:
            found: dict[str, list[tuple[Key, Slot]]] = {}
            for key, slot in self.declared:
                found.setdefault(key[1], []).append((key, slot))
            self._by_resource = tuple((name, tuple(found[name])) for name in sorted(found))
        return self._by_resource

    @property
    def lendable(self) -> dict[str, int]:
        """What a child of this node could have at most, by resource."""
        if self._lendable is None:
            found: dict[str, int] = {}
            for key, _ in self.root.declared:
                found[key[1]] = found.get(key[1], 0) + self.potential(key)
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
    for key in node.quotas:
        node.at(key)
    for child in node.children:
        _accumulate(child)
        for key, held in child.declared:
            node.at(key).sub += held.sub - held.kept
    for key, quota in node.quotas.items():
        if quota.lend is not None:
            slot = node.at(key)
            slot.kept = max(0, slot.sub - quota.lend)
    node.declared = tuple(node.slots.items())
    # What an inactive queue holds and uses counts; it takes part in nothing else.
    node.children = [child for child in node.children if child.is_active]
    node.height = max((1 if child.is_queue else child.height + 1 for child in node.children), default=0)
