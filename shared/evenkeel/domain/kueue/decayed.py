"""What sub-queues used of late: who used least goes first in its queue, before priority.

    use(t + d) = use(t) · 2^(-d/h) + running · (1 - 2^(-d/h))        h: the half-life

So it tends to what runs, and to nothing where nothing does. An admission counts at once for what an entry's time of it
would come to; else many of one sub-queue would go in before the first of them counts. It is exact at any moment, where
Kueue's admission fair sharing (KEP-4136), from which the rule comes, takes samples.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from evenkeel.domain.kueue.objects import Admitted, Amounts
from evenkeel.domain.kueue.quantities import CPU


class Decay(NamedTuple):
    """How use is measured, and how it fades."""

    half_life_seconds: float = 168 * 3600.0
    entry_seconds: float = 300.0
    weights: tuple[tuple[str, float], ...] = ()
    """By resource, the others 1: their weighted sum counts. None: the largest part of what the queue could have."""


@dataclass(slots=True)
class _Use:
    faded: dict[str, float] = field(default_factory=dict)
    running: dict[str, float] = field(default_factory=dict)
    at: float = -math.inf
    reported_until: float = -math.inf
    """Until then what ran is in what was told of it."""


class DecayedUse:
    """What the sub-queues of one queue used of late."""

    def __init__(self, decay: Decay, most: Mapping[str, int]) -> None:
        """Begin with nobody having used anything.

        Args:
            decay: How it is measured.
            most: By resource, what the queue could have at most.
        """
        self._decay = decay
        self._weights = dict(decay.weights)
        self._most = {name: _units(name, amount) for name, amount in most.items()}
        self._known: dict[str, _Use] = {}

    def of(self, sub_queue: str, now: float, weight: float = 1.0) -> float:
        """Return what a sub-queue used of late, by its weight; infinite without weight, even if it used nothing."""
        if weight <= 0:
            return math.inf
        known = self._known.get(sub_queue)
        if known is None:
            return 0.0
        self._settle(known, now)
        if self._weights:
            return sum(self._weights.get(name, 1.0) * amount for name, amount in sorted(known.faded.items())) / weight
        parts = (amount / self._most[name] for name, amount in known.faded.items() if self._most.get(name))
        return max(parts, default=0.0) / weight

    def began(self, admitted: Admitted, now: float, *, is_new: bool = True) -> None:
        """Count a workload that holds quota since it was given, or since now; if not new, what it used is counted."""
        known = self._known.setdefault(admitted.workload.sub_queue, _Use())
        self._settle(known, now)
        since = now if admitted.reserved_at is None else min(now, admitted.reserved_at)
        entry_seconds = self._decay.entry_seconds if since >= known.reported_until else 0.0
        since = max(since, known.reported_until)
        # What it would have come to by now; use of several is the sum of what each comes to.
        part = self._part(known.at - since + entry_seconds) if is_new else 0.0
        for name, amount in _by_resource(admitted.use).items():
            known.running[name] = known.running.get(name, 0.0) + amount
            known.faded[name] = known.faded.get(name, 0.0) + amount * part

    def left_of(self, sub_queue: str, amounts: Mapping[str, float], now: float) -> None:
        """Count what is left, by resource, of what a sub-queue used before all that is counted here."""
        known = self._known.setdefault(sub_queue, _Use())
        self._settle(known, now)
        for name, amount in amounts.items():
            known.faded[name] = known.faded.get(name, 0.0) + amount

    def set_reported(self, sub_queue: str, amounts: Mapping[str, float], at: float) -> None:
        """Begin with what a sub-queue's use had come to by then, by resource; who runs now is in it until then."""
        self._known[sub_queue] = _Use(dict(amounts), at=at, reported_until=at)

    def ended(self, admitted: Admitted, now: float) -> None:
        """Count it no longer; what it used fades."""
        known = self._known.get(admitted.workload.sub_queue)
        if known is not None:
            self._settle(known, now)
            for name, amount in _by_resource(admitted.use).items():
                known.running[name] = known.running.get(name, 0.0) - amount

    def _part(self, seconds: float) -> float:
        return -math.expm1(-math.log(2) * max(0.0, seconds) / self._decay.half_life_seconds)

    def _settle(self, known: _Use, now: float) -> None:
        if now > known.at:
            part = self._part(now - known.at)
            left = math.exp2((known.at - now) / self._decay.half_life_seconds)
            for name, amount in known.faded.items():
                known.faded[name] = amount * left + known.running.get(name, 0.0) * part
            known.at = now


def _by_resource(use: Amounts) -> dict[str, float]:
    found: dict[str, float] = {}
    for (_, resource), amount in use.items():
        found[resource] = found.get(resource, 0.0) + _units(resource, amount)
    return found


def _units(resource: str, amount: int) -> float:
    """Write an amount in cores, or as it is."""
    return amount / 1000 if resource == CPU else float(amount)
