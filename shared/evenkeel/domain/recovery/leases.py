"""Repair leases of node slots, repair requests, and the cordons and holds that persons set."""

from datetime import datetime, timedelta
from typing import Any

from pydantic import model_validator

from evenkeel.domain.nodes import NodeLife
from evenkeel.domain.recovery.repair_policy import RepairPolicy
from evenkeel.domain.values import Instant, Value


class RepairRequest(Value):
    """A repair request to the provider. It is recorded before the call; its answer is added after the call."""

    rung: str
    """`reboot` or `replace`."""
    life: NodeLife
    boot_id: str
    """Boot id of the node before the call. Another boot id later shows that the request took effect."""
    status_before: str = ""
    """Status of the node before the call, as HyperPod or its Auto Scaling group reports it."""
    requested_at: Instant
    incident_id: str = ""
    group: str = ""
    """Auto Scaling group of the node; empty for other nodes."""
    answer: str = ""
    """A `RepairAnswer`. Empty until the reply arrives, and after a crash: look for effects before a repetition."""


class NodeReturn(Value):
    """A return of a node to service."""

    life: str
    at: Instant


class RepairLease(Value):
    """The right of one incident to repair a node slot, with the slot's recent repair requests and returns."""

    slot: str
    incident_id: str
    """Incident that holds the lease; empty if the lease is free. The requests stay after the incident ends."""
    taken_at: Instant
    requests: tuple[RepairRequest, ...] = ()
    """Requests for the last few nodes of the slot, newest last."""
    returns: tuple[NodeReturn, ...] = ()
    """Returns of the last few nodes of the slot, newest last."""
    lemon: str = ""
    """Node life in this slot that returned to service too often; empty if none did."""

    def returns_of(self, life: NodeLife, since: datetime) -> tuple[NodeReturn, ...]:
        """Return the returns of a node to service since a time."""
        return tuple(
            node_return for node_return in self.returns if node_return.life == life.key and node_return.at >= since
        )


_MAX_RETURNS = 20


def released_lease(
    lease: RepairLease, life: NodeLife, policy: RepairPolicy, *, is_returned: bool, is_over: bool, now: datetime
) -> RepairLease:
    """Return the lease of a node slot without its holder, with the result for its node.

    The repair requests stay on the lease. A node that was replaced is not marked as a lemon.

    Args:
        lease: The lease of the slot.
        life: The node of the incident.
        policy: Says how many returns make a lemon.
        is_returned: Whether the node returned to service.
        is_over: Whether the node was replaced.
        now: The current time.
    """
    came_back = is_returned and not is_over
    returns = (*lease.returns, *([NodeReturn(life=life.key, at=now)] if came_back else ()))
    released = lease.replace(incident_id="", returns=returns)
    is_marked = not is_over and is_lemon(released, life, policy, now)
    return released.replace(returns=returns[-_MAX_RETURNS:], lemon=life.key if is_marked else "")


def is_lemon(lease: RepairLease, life: NodeLife, policy: RepairPolicy, now: datetime) -> bool:
    """Whether a node returned to service so often lately that its next fault replaces it without a reboot."""
    since = now - timedelta(hours=policy.flap_window_hours)
    return len(lease.returns_of(life, since)) >= policy.lemon_returns


class ManualCordon(Value):
    """A cordon that a person set through Evenkeel. The node object itself does not record the person."""

    life: str
    """Key of the node life."""
    by: str
    reason: str
    at: Instant


class ManualCordons(Value):
    """Every cordon that a person set through Evenkeel and that is still in place, in one row."""

    cordons: tuple[ManualCordon, ...] = ()

    @property
    def by_life(self) -> dict[str, ManualCordon]:
        """The cordons, by the key of the node life."""
        return {cordon.life: cordon for cordon in self.cordons}

    def with_cordon(self, cordon: ManualCordon) -> "ManualCordons":
        """Return the cordons with a new one added. At most `MAX_MANUAL_CORDONS` are kept; the oldest is dropped."""
        manual_cordons = tuple(manual_cordon for manual_cordon in self.cordons if manual_cordon.life != cordon.life)
        return self.replace(cordons=(*manual_cordons, cordon)[-MAX_MANUAL_CORDONS:])

    def without(self, life: str) -> "ManualCordons":
        """Return the cordons without the cordon of a node life."""
        return self.replace(cordons=tuple(cordon for cordon in self.cordons if cordon.life != life))


MAX_MANUAL_CORDONS = 200
"""Maximum number of cordons in the row. A row has at most 400 kB, and a reason up to 300 characters of four bytes."""


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

    def covers(self, pool: str, instance_id: str) -> bool:
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
        return next((hold for hold in self.in_force(now) if hold.covers(pool, instance_id)), None)
