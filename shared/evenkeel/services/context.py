"""What the services of a scheduling cycle commit with."""

from datetime import datetime
from typing import NamedTuple, Protocol

from evenkeel.domain.admission.scheduler_state import SchedulerState
from evenkeel.domain.policy import Policy
from evenkeel.domain.policy_base import Mode
from evenkeel.ports import Ids, Ledger, Put, Telemetry


class QuotaTreeVersion(Protocol):
    """The tree as the pass last wrote it."""

    memory: SchedulerState

    def put(self, memory: SchedulerState) -> Put:
        """Return the write that raises it."""
        ...

    def raised(self, memory: SchedulerState) -> None:
        """Note that it was written."""
        ...


class CommitContext(NamedTuple):
    """What every commit of a pass needs."""

    ledger: Ledger
    ids: Ids
    telemetry: Telemetry
    policy: Policy
    mode: Mode
    now: datetime
