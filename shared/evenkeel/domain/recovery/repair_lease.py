"""The repair lease of a node slot, with the slot's repair requests and returns to service."""

from datetime import datetime, timedelta

from pydantic import Field

from evenkeel.domain.nodes import NodeLife
from evenkeel.domain.recovery.repair_policy import RepairPolicy
from evenkeel.domain.recovery.repair_requests import RepairRequest
from evenkeel.domain.values import Instant, Value


class NodeReturn(Value):
    """A return of a node to service."""

    life_key: str = Field(alias="life")
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
            node_return for node_return in self.returns if node_return.life_key == life.key and node_return.at >= since
        )


_MAX_RETURNS = 20


def freed_lease(
    lease: RepairLease, life: NodeLife, policy: RepairPolicy, *, is_returned: bool, is_over: bool, now: datetime
) -> RepairLease:
    """Return the lease of a node slot without its holder, with the result for its node.

    The repair requests stay on the lease. A node that was replaced is no lemon.

    Args:
        lease: The lease of the slot.
        life: The node of the incident.
        policy: Says how many returns make a lemon.
        is_returned: Whether the node returned to service.
        is_over: Whether the node was replaced.
        now: The current time.
    """
    came_back = is_returned and not is_over
    returns = (*lease.returns, *([NodeReturn(life_key=life.key, at=now)] if came_back else ()))
    freed = lease.replace(incident_id="", returns=returns)
    is_still_lemon = not is_over and is_lemon(freed, life, policy, now)
    return freed.replace(returns=returns[-_MAX_RETURNS:], lemon=life.key if is_still_lemon else "")


def is_lemon(lease: RepairLease, life: NodeLife, policy: RepairPolicy, now: datetime) -> bool:
    """Whether a node returned to service so often lately that its next fault replaces it without a reboot."""
    since = now - timedelta(hours=policy.flap_window_hours)
    return len(lease.returns_of(life, since)) >= policy.lemon_returns
