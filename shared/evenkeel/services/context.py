"""What the services of a scheduling cycle commit with."""

from datetime import datetime
from typing import NamedTuple, Protocol

from evenkeel.domain.admission.scheduler_state import Memory
from evenkeel.domain.policy import Policy
from evenkeel.domain.policy_base import Mode
from evenkeel.ports import Ids, Ledger, Put, Telemetry


class Tree(Protocol):
    """The tree as the pass last wrote it."""

    memory: Memory

    def put(self, memory: Memory) -> Put:
        """Return the write that raises it."""
        ...

    def raised(self, memory: Memory) -> None:
        """Note that it was written."""
        ...


class Desk(NamedTuple):
    """What every commit of a pass needs."""

    ledger: Ledger
    ids: Ids
    telemetry: Telemetry
    policy: Policy
    mode: Mode
    now: datetime
