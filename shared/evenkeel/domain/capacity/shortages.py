"""Where capacity was refused lately: shared by all jobs, so that nobody asks again what another was just told."""

from datetime import datetime, timedelta

from evenkeel.domain.capacity.pools import Market
from evenkeel.domain.values import Instant, Value

HOLD_SECONDS = 180
"""How long one refusal counts. Karpenter's own figure (karpenter.sh, insufficient capacity cache)."""
HALF_LIFE_SECONDS = 1800
"""An older refusal weighs half as much for the length of the next hold."""
MOST_HOLD_SECONDS = 3600
FORGOTTEN_BELOW = 0.1


class Shortage(Value):
    """What is remembered of one market."""

    instance_type: str
    zone: str
    market: Market
    refused_at: Instant
    """The last time."""
    weight: float
    """Refusals, the last whole, those before it decayed."""

    @property
    def key(self) -> tuple[str, str, Market]:
        """What the memory is about."""
        return (self.instance_type, self.zone, self.market)

    @property
    def until(self) -> datetime:
        """When it may be asked again: the hold doubles with each refusal that still weighs."""
        hold = min(MOST_HOLD_SECONDS, HOLD_SECONDS * 2 ** (self.weight - 1))
        return self.refused_at + timedelta(seconds=round(hold))

    def weight_at(self, now: datetime) -> float:
        """Return what is left of it."""
        age = max(0.0, (now - self.refused_at).total_seconds())
        return float(self.weight * 0.5 ** (age / HALF_LIFE_SECONDS))


class Shortages(Value):
    """The memory of a fleet: one entry a market, and none that has faded."""

    entries: tuple[Shortage, ...] = ()

    def with_refusal(self, instance_type: str, zone: str, market: Market, now: datetime) -> "Shortages":
        """Return the memory after a refusal, or after a spot node of this market was taken back.

        Idempotent: no, because each refusal weighs; guarded by its caller, which reports each request's answer once.
        An older refusal than the one remembered changes nothing.
        """
        key = (instance_type, zone, market)
        before = self._of(key)
        if before and before.refused_at > now:
            return self
        weight = 1.0 + (before.weight_at(now) if before else 0.0)
        entry = Shortage(instance_type=instance_type, zone=zone, market=market, refused_at=now, weight=weight)
        kept = (each for each in self.entries if each.key != key and each.weight_at(now) >= FORGOTTEN_BELOW)
        return Shortages(entries=tuple(sorted((*kept, entry), key=lambda each: each.key)))

    def with_success(self, instance_type: str, zone: str, market: Market) -> "Shortages":
        """Return the memory after a node came: what was refused before says nothing more."""
        return Shortages(entries=tuple(each for each in self.entries if each.key != (instance_type, zone, market)))

    def barred_until(self, instance_type: str, zone: str, market: Market, now: datetime) -> datetime | None:
        """Return when this market may be asked again; None where it may be now."""
        found = self._of((instance_type, zone, market))
        return found.until if found and found.until > now else None

    def _of(self, key: tuple[str, str, Market]) -> Shortage | None:
        return next((each for each in self.entries if each.key == key), None)
