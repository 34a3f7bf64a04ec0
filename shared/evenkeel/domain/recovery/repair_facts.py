"""The facts, the actions and the decision of the repair ladder (`repair.py` decides)."""

from datetime import datetime
from enum import StrEnum

from evenkeel.domain.decisions import Alternative
from evenkeel.domain.health.faults import default_catalogue
from evenkeel.domain.health.incidents import RepairProgress
from evenkeel.domain.nodes import NodeLife
from evenkeel.domain.recovery.guardrails import (
    GuardrailFacts,
)
from evenkeel.domain.recovery.holds import Hold
from evenkeel.domain.recovery.node_groups import GroupRepairFacts
from evenkeel.domain.recovery.node_slot import SlotState
from evenkeel.domain.recovery.other_controllers import ControllerMark
from evenkeel.domain.recovery.plan import FaultTraits, NodeOwner
from evenkeel.domain.recovery.repair_requests import (
    RepairRequest,
)
from evenkeel.domain.recovery.validation import Validity
from evenkeel.domain.values import Instant, Value


class Repair(StrEnum):
    """Next repair action."""

    DIAGNOSE = "DIAGNOSE"
    """Drain the node, then validate it, with a deep health check if available."""
    REBOOT = "REBOOT"
    REPLACE = "REPLACE"
    AWAIT = "AWAIT"
    """A repair is in progress: wait for the node, request nothing."""
    PAUSE = "PAUSE"
    LATER = "LATER"
    """Wait for jobs that may finish, or until HyperPod has finished its own change of the cluster."""
    HOLD = "HOLD"
    BLOCKED = "BLOCKED"
    """A guardrail blocks the next rung."""
    NOT_NEEDED = "NOT_NEEDED"
    """The node is gone and gets no replacement."""
    HEALTHY = "HEALTHY"
    """The node slot has a Ready node: validate it."""
    ASK_PERSON = "ASK_PERSON"
    STAND_DOWN = "STAND_DOWN"


class RepairFacts(Value):
    """Facts for the decision."""

    incident_id: str
    life: NodeLife
    fault_key: str
    fault: FaultTraits | None = None
    """The fault with the site's overrides; None = as shipped."""
    ladder: tuple[str, ...]
    owner: NodeOwner
    """The owner now. It differs from the owner in the plan if NodeRecovery has become Automatic since."""
    opened_at: Instant
    last_fault_at: Instant | None = None
    """Time of the latest fault signal; None in records of older releases."""
    boot_id_at_opening: str
    has_recovered: bool
    not_allowed: str
    """Why no action is allowed; empty if actions are allowed."""
    is_manual_cordon: bool
    controller: ControllerMark | None = None
    """The mark of another controller that repairs nodes; None without one."""
    has_karpenter: bool = False
    """Whether HyperPod's own Karpenter scales the cluster: it replaces a node only if pods need one."""
    lease_holder: str
    """Another open incident that repairs this node slot; empty if there is none."""
    requests: tuple[RepairRequest, ...]
    """Every repair request for this node life, oldest first, including earlier incidents."""
    slot_state: SlotState
    group: GroupRepairFacts | None = None
    """Auto Scaling group of the node; None unless the owner is NODE_GROUP."""
    validity: Validity
    """Validity of the node in the slot."""
    invalid_at: Instant | None = None
    """Time at which a node in this slot last failed validation."""
    deep_check_failed_at: Instant | None = None
    """Time at which this node failed HyperPod's deep health check."""
    hold: Hold | None
    opt_out_reason: str = ""
    """How a person opted this node out of automation; empty if no person did."""
    provider_busy: str = ""
    """Why HyperPod's own change of the cluster blocks a repair; empty if it does not."""
    has_work: bool = False
    """Whether jobs run on the node."""
    work_may_run_until: Instant | None = None
    leaves_work: bool = False
    """Whether the jobs on the node keep running, whatever the decision is."""
    unreadable_attempts: tuple[str, ...] = ()
    """Attempts that may use the node, and whose rows this release cannot read. Known only after the drain."""
    has_unreadable_row: bool = False
    """Whether this release cannot read the node's row, so the causes that it shares with other nodes are unknown. Read
    only when a rung is due."""
    progress: tuple[RepairProgress, ...] = ()
    """Repair steps that the provider reported, oldest first."""
    calls_today: int = 0
    """Repair requests for this slot within a day, including earlier incidents and nodes."""
    returns: int = 0
    """Number of returns of this node to service within the flapping window."""
    returned_at: Instant | None = None
    """When the node last returned to service within that window; None if it did not."""
    guard: GuardrailFacts | None = None
    """Facts for the guardrails. They are read only when a rung is due, and no rung is requested without them."""
    now: Instant

    @property
    def fault_traits(self) -> FaultTraits:
        """The traits of the fault."""
        return self.fault or FaultTraits.of(default_catalogue().look_up(self.fault_key))

    def has_failed_validation_since(self, time: datetime) -> bool:
        """Whether a node in this slot has failed a validation since a time."""
        return self.invalid_at is not None and self.invalid_at >= time


class RepairDecision(Value):
    """Next repair action for one node, with its reason."""

    action: Repair
    reason: str
    wait_seconds: int = 0
    drains: bool = False
    """Whether the jobs on the node stop first."""
    awaited_owner: str = ""
    """Owner that Evenkeel waits for from now on, one of `WAIT_RUNGS`; empty if none."""
    alternatives: tuple[Alternative, ...] = ()

    @property
    def rung(self) -> str:
        """The provider request to make; empty if none."""
        return self.action.lower() if self.action in (Repair.REBOOT, Repair.REPLACE) else ""


def decision_of(action: Repair, reason: str, *rejections: tuple[str, str]) -> RepairDecision:
    """Return a decision with the rejected options and why each was rejected."""
    options = tuple(Alternative(option=option, why_not=why_not) for option, why_not in rejections)
    return RepairDecision(action=action, reason=reason, alternatives=options)
