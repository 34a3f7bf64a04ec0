"""Shortages: offerings that recently refused capacity. All jobs share them, so no job asks for the same again.

An offering is an instance type in one zone and of one market, as in Karpenter.
"""

from datetime import datetime, timedelta

from evenkeel.domain.capacity.pools import Market
from evenkeel.domain.values import Instant, Value

HOLD_SECONDS = 180
"""How long one refusal counts. Karpenter's own figure (karpenter.sh, insufficient capacity cache)."""
HALF_LIFE_SECONDS = 1800
"""Half-life of the weight of an older refusal."""
MAX_HOLD_SECONDS = 3600
MIN_WEIGHT = 0.1


class Shortage(Value):
    """The last refusals of one offering."""

    instance_type: str
    zone: str
    market: Market
    refused_at: Instant
    """Time of the last refusal."""
    weight: float
    """Number of refusals: the last counts fully, earlier refusals have decayed."""

    @property
    def key(self) -> tuple[str, str, Market]:
        """The offering."""
        return (self.instance_type, self.zone, self.market)

    @property
    def until(self) -> datetime:
        """When the offering may be requested again: the hold time doubles with each refusal that still counts."""
        hold_seconds = min(MAX_HOLD_SECONDS, HOLD_SECONDS * 2 ** (self.weight - 1))
        return self.refused_at + timedelta(seconds=round(hold_seconds))

    def weight_at(self, now: datetime) -> float:
        """Return the weight, decayed to now."""
        age = max(0.0, (now - self.refused_at).total_seconds())
        return float(self.weight * 0.5 ** (age / HALF_LIFE_SECONDS))


class Shortages(Value):
    """The shortages of a fleet: one entry for each offering, without entries that have decayed."""

    entries: tuple[Shortage, ...] = ()

    def with_refusal(self, instance_type: str, zone: str, market: Market, now: datetime) -> "Shortages":
        """Return the shortages after a refusal, or after a spot node of this offering was interrupted.

        Idempotent: no, because each refusal counts. The caller passes each refusal once. A refusal older than the
        stored one changes nothing.
        """
        key = (instance_type, zone, market)
        shortage = self._shortage_of(key)
        if shortage and shortage.refused_at > now:
            return self
        weight = 1.0 + (shortage.weight_at(now) if shortage else 0.0)
        entry = Shortage(instance_type=instance_type, zone=zone, market=market, refused_at=now, weight=weight)
        recent_shortages = (
            shortage for shortage in self.entries if shortage.key != key and shortage.weight_at(now) >= MIN_WEIGHT
        )
        return self.replace(entries=tuple(sorted((*recent_shortages, entry), key=lambda shortage: shortage.key)))

    def with_success(self, instance_type: str, zone: str, market: Market) -> "Shortages":
        """Return the shortages after a node was launched: earlier refusals no longer count."""
        return self.replace(
            entries=tuple(entry for entry in self.entries if entry.key != (instance_type, zone, market))
        )

    def unavailable_until(self, instance_type: str, zone: str, market: Market, now: datetime) -> datetime | None:
        """Return when this offering may be requested again; None if it may be requested now."""
        shortage = self._shortage_of((instance_type, zone, market))
        return shortage.until if shortage and shortage.until > now else None

    def _shortage_of(self, key: tuple[str, str, Market]) -> Shortage | None:
        return next((entry for entry in self.entries if entry.key == key), None)
