"""Repair leases of node slots, repair requests, and holds by persons."""

from datetime import datetime, timedelta
from typing import Any

from pydantic import model_validator

from evenkeel.domain.nodes import NodeLife
from evenkeel.domain.recovery.policy import RepairPolicy
from evenkeel.domain.values import Instant, Value


class RepairRequest(Value):
    """A repair request: recorded before the call, completed after it."""

    rung: str
    """`reboot` or `replace`."""
    life: NodeLife
    boot_id: str
    """The episode in which it was asked: another boot id later shows that it took effect."""
    status_before: str = ""
    """What the provider called the machine just before the call: another status later shows the same."""
    requested_at: Instant
    incident_id: str = ""
    answer: str = ""
    """RepairAnswer; empty while the reply is out (a crash leaves it so: reconcile before repeating)."""


class NodeReturn(Value):
    """A machine was returned to service."""

    life: str
    at: Instant


class RepairLease(Value):
    """The repair of one node slot by one incident."""

    slot: str
    incident_id: str
    """Empty once it is released. The calls stay: what was done to a life outlasts the incident."""
    taken_at: Instant
    requests: tuple[RepairRequest, ...] = ()
    """Newest last; the requests for the last few nodes of the slot."""
    returns: tuple[NodeReturn, ...] = ()
    """Newest last, likewise."""
    lemon: str = ""
    """Node life in this slot that returned to service too often; empty if none did."""

    def returns_of(self, life: NodeLife, since: datetime) -> tuple[NodeReturn, ...]:
        """Return when a machine was returned to service since a time."""
        return tuple(each for each in self.returns if each.life == life.key and each.at >= since)


_MAX_RETURNS = 20


def released_lease(
    lease: RepairLease, life: NodeLife, policy: RepairPolicy, *, is_returned: bool, is_over: bool, now: datetime
) -> RepairLease:
    """Return the lease of a node slot without its holder, with the result for its node.

    The calls stay on it: what was done to a life outlasts the incident. A machine that was replaced is no lemon here.
    """
    back = is_returned and not is_over
    after = lease.but(incident_id="", returns=(*lease.returns, *([NodeReturn(life=life.key, at=now)] if back else ())))
    is_kept_out = not is_over and is_lemon(after, life, policy, now)
    return after.but(returns=after.returns[-_MAX_RETURNS:], lemon=life.key if is_kept_out else "")


def is_lemon(lease: RepairLease, life: NodeLife, policy: RepairPolicy, now: datetime) -> bool:
    """Whether a machine was returned to service so often lately that it is not to be trusted with another reboot."""
    since = now - timedelta(hours=policy.flap_window_hours)
    return len(lease.returns_of(life, since)) >= policy.lemon_returns


class PersonCordon(Value):
    """A cordon that a person set through Evenkeel. The node itself does not say whose it is."""

    life: str
    """Key of the node life."""
    by: str
    reason: str
    at: Instant


class PersonCordons(Value):
    """Every cordon that a person set through Evenkeel and that was not taken off since, in one row."""

    cordons: tuple[PersonCordon, ...] = ()

    @property
    def by_life(self) -> dict[str, PersonCordon]:
        """The cordons by the key of their node life."""
        return {cordon.life: cordon for cordon in self.cordons}

    def with_cordon(self, cordon: PersonCordon) -> "PersonCordons":
        """Return these with one more; the oldest is forgotten where there would be too many for one row."""
        others = tuple(each for each in self.cordons if each.life != cordon.life)
        return PersonCordons(cordons=(*others, cordon)[-MAX_PERSON_CORDONS:])

    def without(self, life: str) -> "PersonCordons":
        """Return these without the one of a node life."""
        return PersonCordons(cordons=tuple(each for each in self.cordons if each.life != life))


MAX_PERSON_CORDONS = 200
"""Cordons of persons that are remembered: a reason has 300 characters of four bytes at most, and a row 400 kB."""


class Hold(Value):
    """A person holds harmful acts until a time. Un-cordon is never held."""

    by: str
    reason: str
    since: Instant
    until: Instant
    pool: str = ""
    """Only machines of this pool; empty for all."""
    instance_id: str = ""
    """Only this machine; empty for all."""

    @property
    def where(self) -> str:
        """What it covers, as the tail of a sentence; empty for the whole fleet."""
        return f" on {self.instance_id or self.pool}" if self.instance_id or self.pool else ""

    @property
    def scope(self) -> tuple[str, str]:
        """Pool and machine: a new hold of the same scope takes the place of the old one."""
        return self.pool, self.instance_id

    def covers(self, pool: str, instance_id: str) -> bool:
        """Whether it holds acts on a machine."""
        return self.pool in ("", pool) and self.instance_id in ("", instance_id)


class Holds(Value):
    """Every hold of the fleet, in one row: one read tells whether an act is held."""

    holds: tuple[Hold, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _of_one(cls, data: Any) -> Any:
        """Read a row that holds the fleet's one hold and nothing else, as it was written before there were scopes."""
        return {"holds": [data]} if isinstance(data, dict) and "until" in data else data

    def at(self, now: datetime) -> tuple[Hold, ...]:
        """Return the holds in force, the widest first."""
        return tuple(sorted((hold for hold in self.holds if hold.until > now), key=lambda hold: hold.scope))

    def on(self, pool: str, instance_id: str, now: datetime) -> Hold | None:
        """Return the widest hold in force that covers a machine."""
        return next((hold for hold in self.at(now) if hold.covers(pool, instance_id)), None)
