"""Which pools a job means, in its order, and which taints it puts up with."""

from collections.abc import Iterable, Mapping
from enum import StrEnum

from pydantic import ConfigDict

from evenkeel.domain.capacity.pools import Market, Pool
from evenkeel.domain.values import Value, Word


class PoolChoice(Value):
    """One pool that a job may run on: the one of this name, or the machines that bear all of these labels."""

    model_config = ConfigDict(extra="forbid")

    name: Word
    labels: dict[Word, Word] = {}
    market: Market | None = None
    """How its nodes are had. A pool to rent has no machines yet whose labels could be read: it is meant by this."""

    def matches(self, pool: str, labels: Mapping[str, str]) -> bool:
        """Whether a machine is of this pool."""
        return pool == self.name or (bool(self.labels) and self.labels.items() <= labels.items())

    def matches_pool(self, pool: Pool) -> bool:
        """Whether a pool that may have no machines is this one."""
        return pool.name == self.name or (self.market is not None and pool.market is self.market)


def preference_rank(choices: Iterable[PoolChoice], pool: str, labels: Mapping[str, str]) -> int | None:
    """Return the place of a machine among a job's choices, the first = 0; None where it is none of them.

    Who chooses nothing takes any machine as soon as any other.
    """
    weighed = tuple(choices)
    if not weighed:
        return 0
    return next((place for place, choice in enumerate(weighed) if choice.matches(pool, labels)), None)


class Operator(StrEnum):
    """How a toleration reads a taint's value."""

    EQUAL = "Equal"
    EXISTS = "Exists"


class Effect(StrEnum):
    """What a taint does to a pod that does not tolerate it."""

    NO_SCHEDULE = "NoSchedule"
    NO_EXECUTE = "NoExecute"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"


class Toleration(Value):
    """One taint that a job's pods put up with, as Kubernetes writes it."""

    model_config = ConfigDict(extra="forbid")

    key: Word
    """Empty, with `Exists`: every taint."""
    operator: Operator = Operator.EQUAL
    value: Word = ""
    effect: Effect | None = None
    """None = every effect."""

    def covers(self, taint: str) -> bool:
        """Whether it puts up with a taint, written `key=value:Effect`."""
        rest, _, effect = taint.rpartition(":")
        key, _, value = rest.partition("=")
        return (
            (key == self.key or (not self.key and self.operator is Operator.EXISTS))
            and self.effect in (None, effect)
            and (self.operator is Operator.EXISTS or value == self.value)
        )

    def to_pod(self) -> dict[str, str]:
        """Return it as a pod's spec has it."""
        toleration = {"key": self.key, "operator": str(self.operator)}
        toleration |= {"value": self.value} if self.operator is Operator.EQUAL else {}
        return toleration | ({"effect": str(self.effect)} if self.effect else {})


def all_tolerated(taints: Iterable[str], tolerations: Iterable[Toleration]) -> bool:
    """Whether pods with these tolerations may start on a machine with these taints."""
    borne = tuple(tolerations)
    return all(any(each.covers(taint) for each in borne) for taint in taints)
