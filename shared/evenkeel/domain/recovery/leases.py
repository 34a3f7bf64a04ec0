"""Who repairs a seat, what was asked of the provider, and whether a person holds harmful acts."""

from evenkeel.domain.nodes import NodeLife
from evenkeel.domain.values import Instant, Value


class RepairAsk(Value):
    """One provider call: recorded before it is made, completed after."""

    rung: str
    """`reboot` or `replace`."""
    life: NodeLife
    boot_id: str
    asked_at: Instant
    answer: str = ""
    """RepairAnswer; empty while the reply is out (a crash leaves it so: reconcile before repeating)."""


class Lease(Value):
    """The repair of one seat by one incident."""

    slot: str
    incident_id: str
    taken_at: Instant
    asks: tuple[RepairAsk, ...] = ()


class Hold(Value):
    """A person holds harmful acts until a time. Un-cordon is never held."""

    by: str
    reason: str
    since: Instant
    until: Instant
