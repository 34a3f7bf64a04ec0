"""Input of the admission rules: nodes, pending requests, charges and the state of the quotas."""

from collections.abc import Mapping
from typing import NamedTuple

from evenkeel.domain.admission.admission_request import AdmissionRequest
from evenkeel.domain.admission.scheduler_state import SchedulerState
from evenkeel.domain.capacity.node_capacity import NodeCapacity
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.quotas.spending import Spending
from evenkeel.domain.quotas.teams import TeamSetup


class AdmissionInput(NamedTuple):
    """The input of the admission rules. Without teams they read the nodes and the pending requests only."""

    capacities: tuple[NodeCapacity, ...] = ()
    pending: tuple[AdmissionRequest, ...] = ()
    setup: TeamSetup = TeamSetup()
    charges: tuple[Charge, ...] = ()
    stopping: frozenset[str] = frozenset()
    """Jobs that hold a charge although a person, a recovery or an earlier cycle asked them to stop."""
    scheduler_state: SchedulerState = SchedulerState()
    spent: Mapping[tuple[str, str], Spending] = {}
    """(team, name of the budget period) → the use of its settled attempts and rentals."""
    last_reasons: Mapping[str, str] = {}
    """Job → the recorded reason why it waits. The rules gather no facts for a reason that they recorded before."""
    used: Mapping[str, Mapping[str, float]] = {}
    """Team with a queue ordered by usage → submitter → decayed usage of its settled attempts, in accelerators."""
    work_at_risk_by_job: Mapping[str, float] = {}
    """Job that holds a charge → accelerator-seconds of work that it would lose if it stopped now."""
    unreadable_clusters: frozenset[str] = frozenset()
    """Clusters that cannot be read. Jobs there keep their quota and are not preempted."""
