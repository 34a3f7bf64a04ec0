"""Recent use of sub-queues. In its queue, the sub-queue with the least recent use goes first, before priority.

    use(t + d) = use(t) · 2^(-d/h) + running · (1 - 2^(-d/h))        h: the half-life

The value converges to the present use, and to 0 if nothing runs. An admission counts at once as `entry_seconds` of use.
Otherwise many workloads of one sub-queue would be admitted before the first of them counts. The value is exact at any
time. Kueue's admission fair sharing (KEP-4136), the source of the rule, samples it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from evenkeel.domain.kueue.objects import Admitted, Amounts
from evenkeel.domain.kueue.quantities import CPU


class Decay(NamedTuple):
    """How use is measured and how it decays."""

    half_life_seconds: float = 168 * 3600.0
    entry_seconds: float = 300.0
    weights: tuple[tuple[str, float], ...] = ()
    """Weights by resource, default 1: the weighted sum of the resources counts.

    Empty: the largest fraction of the queue's possible use counts.
    """


@dataclass(slots=True)
class _Use:
    """The recent use of one LocalQueue: decayed past use, and present use."""

    decayed: dict[str, float] = field(default_factory=dict)
    running: dict[str, float] = field(default_factory=dict)
    at: float = -math.inf
    reported_until: float = -math.inf
    """Use before this time is part of a reported value."""


class DecayedUse:
    """Recent use of the sub-queues of one queue."""

    def __init__(self, decay: Decay, capacity: Mapping[str, int]) -> None:
        """Start without use.

        Args:
            decay: How use is measured and decays.
            capacity: By resource, the maximum that the queue could use.
        """
        self._decay = decay
        self._weights = dict(decay.weights)
        self._capacity = {name: _units(name, amount) for name, amount in capacity.items()}
        self._by_sub_queue: dict[str, _Use] = {}

    def of(self, sub_queue: str, now: float, weight: float = 1.0) -> float:
        """Return a sub-queue's recent use, divided by its weight; infinite with weight 0, even without use."""
        if weight <= 0:
            return math.inf
        use = self._by_sub_queue.get(sub_queue)
        if use is None:
            return 0.0
        self._decay_to(use, now)
        if self._weights:
            return sum(self._weights.get(name, 1.0) * amount for name, amount in sorted(use.decayed.items())) / weight
        parts = (amount / self._capacity[name] for name, amount in use.decayed.items() if self._capacity.get(name))
        return max(parts, default=0.0) / weight

    def start(self, admitted: Admitted, now: float, *, is_new: bool = True) -> None:
        """Count a workload from its admission, or from now. If it is not new, its past use is already counted."""
        use = self._by_sub_queue.setdefault(admitted.workload.sub_queue, _Use())
        self._decay_to(use, now)
        since = now if admitted.reserved_at is None else min(now, admitted.reserved_at)
        entry_seconds = self._decay.entry_seconds if since >= use.reported_until else 0.0
        since = max(since, use.reported_until)
        # Use until now, decayed. The use of several workloads is added up.
        fraction = self._fraction(use.at - since + entry_seconds) if is_new else 0.0
        for name, amount in _by_resource(admitted.use).items():
            use.running[name] = use.running.get(name, 0.0) + amount
            use.decayed[name] = use.decayed.get(name, 0.0) + amount * fraction

    def add_past(self, sub_queue: str, amounts: Mapping[str, float], now: float) -> None:
        """Add a sub-queue's earlier use, decayed to now, by resource."""
        use = self._by_sub_queue.setdefault(sub_queue, _Use())
        self._decay_to(use, now)
        for name, amount in amounts.items():
            use.decayed[name] = use.decayed.get(name, 0.0) + amount

    def set_reported(self, sub_queue: str, amounts: Mapping[str, float], at: float) -> None:
        """Set the reported recent use of a sub-queue, by resource. It covers everything until the time `at`."""
        self._by_sub_queue[sub_queue] = _Use(dict(amounts), at=at, reported_until=at)

    def stop(self, admitted: Admitted, now: float) -> None:
        """Stop counting a workload. Its past use decays."""
        use = self._by_sub_queue.get(admitted.workload.sub_queue)
        if use is not None:
            self._decay_to(use, now)
            for name, amount in _by_resource(admitted.use).items():
                use.running[name] = use.running.get(name, 0.0) - amount

    def _fraction(self, seconds: float) -> float:
        return -math.expm1(-math.log(2) * max(0.0, seconds) / self._decay.half_life_seconds)

    def _decay_to(self, use: _Use, now: float) -> None:
        if now > use.at:
            fraction = self._fraction(now - use.at)
            factor = math.exp2((use.at - now) / self._decay.half_life_seconds)
            for name, amount in use.decayed.items():
                use.decayed[name] = amount * factor + use.running.get(name, 0.0) * fraction
            use.at = now


def _by_resource(use: Amounts) -> dict[str, float]:
    use_by_resource: dict[str, float] = {}
    for (_, resource), amount in use.items():
        use_by_resource[resource] = use_by_resource.get(resource, 0.0) + _units(resource, amount)
    return use_by_resource


def _units(resource: str, amount: int) -> float:
    """Return an amount in cores for CPU, otherwise unchanged."""
    return amount / 1000 if resource == CPU else float(amount)
