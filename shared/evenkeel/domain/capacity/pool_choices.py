"""The pools that a job may run on, in its order of preference, and the taints that it tolerates."""

from collections.abc import Iterable, Mapping
from enum import StrEnum

from evenkeel.domain.capacity.pools import Market, Pool
from evenkeel.domain.values import StrictValue, Word


class PoolChoice(StrictValue):
    """A pool that a job may run on: the pool with this name, or the nodes with all of these labels."""

    name: Word
    labels: dict[Word, Word] = {}
    market: Market | None = None
    """The market of the pool. It selects a rented pool that has no nodes yet whose labels could be read."""

    def matches(self, pool: str, labels: Mapping[str, str]) -> bool:
        """Whether a node belongs to this choice."""
        return pool == self.name or (bool(self.labels) and self.labels.items() <= labels.items())

    def matches_pool(self, pool: Pool) -> bool:
        """Whether a pool belongs to this choice. The pool may have no nodes."""
        return pool.name == self.name or (self.market is not None and pool.market is self.market)


def preference_rank(choices: Iterable[PoolChoice], pool: str, labels: Mapping[str, str]) -> int | None:
    """Return the rank of a node among a job's choices, the first is 0; None if it matches no choice.

    A job without choices prefers no node over another.
    """
    ordered_choices = tuple(choices)
    if not ordered_choices:
        return 0
    return next((index for index, choice in enumerate(ordered_choices) if choice.matches(pool, labels)), None)


class Operator(StrEnum):
    """How a toleration compares a taint's value."""

    EQUAL = "Equal"
    EXISTS = "Exists"


class Effect(StrEnum):
    """The effect of a taint on pods that do not tolerate it."""

    NO_SCHEDULE = "NoSchedule"
    NO_EXECUTE = "NoExecute"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"


class Toleration(StrictValue):
    """A toleration of a job's pods, as in Kubernetes."""

    key: Word
    """Empty with `Exists` tolerates every taint."""
    operator: Operator = Operator.EQUAL
    """`Equal` compares key and value, `Exists` the key alone."""
    value: Word = ""
    """The value to compare with `Equal`."""
    effect: Effect | None = None
    """None tolerates every effect."""

    def tolerates(self, taint: str) -> bool:
        """Whether it tolerates a taint, written `key=value:Effect`."""
        key_value, _, effect = taint.rpartition(":")
        key, _, value = key_value.partition("=")
        return (
            (key == self.key or (not self.key and self.operator is Operator.EXISTS))
            and self.effect in (None, effect)
            and (self.operator is Operator.EXISTS or value == self.value)
        )

    def to_pod(self) -> dict[str, str]:
        """Return the toleration for a pod's spec."""
        toleration = {"key": self.key, "operator": str(self.operator)}
        toleration |= {"value": self.value} if self.operator is Operator.EQUAL else {}
        return toleration | ({"effect": str(self.effect)} if self.effect else {})


def all_tolerated(taints: Iterable[str], tolerations: Iterable[Toleration]) -> bool:
    """Whether pods with these tolerations may start on a node with these taints."""
    available = tuple(tolerations)
    return all(any(toleration.tolerates(taint) for toleration in available) for taint in taints)
