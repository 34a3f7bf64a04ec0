"""Holds: a person stops harmful actions until a time, in the whole fleet or a part of it."""

from datetime import datetime
from typing import Any

from pydantic import model_validator

from evenkeel.domain.values import Instant, Value


class Hold(Value):
    """A person's hold on harmful actions until a time. A hold never blocks an uncordon."""

    by: str
    reason: str
    since: Instant
    until: Instant
    pool: str = ""
    """Only nodes of this pool; empty for all pools."""
    instance_id: str = ""
    """Only this node; empty for all nodes."""
    stops_scheduling: bool = False
    """Whether it also holds admissions, preemptions, resizes, migrations and rentals; only for the whole fleet."""

    @property
    def scope_text(self) -> str:
        """The scope as the end of a sentence; empty for the whole fleet."""
        return f" on {self.instance_id or self.pool}" if self.instance_id or self.pool else ""

    @property
    def wait_reason(self) -> str:
        """Why a job waits until the hold ends, as a sentence."""
        return f"{self.by} holds admissions until {self.until:%Y-%m-%d %H:%M}Z: {self.reason}"

    @property
    def scope(self) -> tuple[str, str]:
        """Pool and node. A new hold replaces an older one of the same scope."""
        return self.pool, self.instance_id

    def covers_node(self, pool: str, instance_id: str) -> bool:
        """Whether the hold covers a node."""
        return self.pool in ("", pool) and self.instance_id in ("", instance_id)


class Holds(Value):
    """Every hold of the fleet, in one row, so that one read finds them all."""

    holds: tuple[Hold, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _read_single_hold(cls, data: Any) -> Any:
        """Read a row of an older release, which had one hold without a scope."""
        return {"holds": [data]} if isinstance(data, dict) and "until" in data else data

    def in_force(self, now: datetime) -> tuple[Hold, ...]:
        """Return the holds in force, widest scope first."""
        return tuple(sorted((hold for hold in self.holds if hold.until > now), key=lambda hold: hold.scope))

    def scheduling_hold(self, now: datetime) -> Hold | None:
        """Return the hold in force that stops scheduling; None if none does."""
        return next((hold for hold in self.in_force(now) if hold.stops_scheduling), None)

    def hold_on_node(self, pool: str, instance_id: str, now: datetime) -> Hold | None:
        """Return the widest hold in force that covers a node; None if none does."""
        return next((hold for hold in self.in_force(now) if hold.covers_node(pool, instance_id)), None)
