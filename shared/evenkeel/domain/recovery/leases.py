"""Who repairs a seat, what was asked of the provider, and whether a person holds harmful acts."""

from evenkeel.domain.nodes import NodeLife
from evenkeel.domain.values import Instant, Value


class RepairAsk(Value):
    """One provider call: recorded before it is made, completed after."""

    rung: str
    """`reboot` or `replace`."""
    life: NodeLife
    boot_id: str
    """The episode in which it was asked: another boot id later shows that it took effect."""
    status_before: str = ""
    """What the provider called the machine just before the call: another status later shows the same."""
    asked_at: Instant
    incident_id: str = ""
    answer: str = ""
    """RepairAnswer; empty while the reply is out (a crash leaves it so: reconcile before repeating)."""


class Lease(Value):
    """The repair of one seat by one incident."""

    slot: str
    incident_id: str
    """Empty once it is released. The calls stay: what was done to a life outlasts the incident."""
    taken_at: Instant
    asks: tuple[RepairAsk, ...] = ()
    """Newest last; those of the last few lives of the seat."""


class Hold(Value):
    """A person holds harmful acts until a time. Un-cordon is never held."""

    by: str
    reason: str
    since: Instant
    until: Instant
