"""What is said of an instance group or of the whole cluster, and not of one machine: the causes that machines share."""

from enum import StrEnum

from evenkeel.domain.health.incidents import (
    DRILL_PREFIX,
    DeliveryId,
    FactArn,
    FactDetail,
    FactText,
    FactWord,
    SourceName,
)
from evenkeel.domain.values import Instant, Value


class GroupFactKind(StrEnum):
    """What happened to the group. The first five are trouble; the others are its state."""

    NO_CAPACITY = "NO_CAPACITY"
    """A launch found no capacity."""
    LIFECYCLE_SCRIPT_FAILED = "LIFECYCLE_SCRIPT_FAILED"
    """A new machine's lifecycle script failed: so will it on the next."""
    EFA_BOOT_FAILED = "EFA_BOOT_FAILED"
    """A new machine failed the EFA check at its boot; often passes on another try."""
    CREATION_FAILED = "CREATION_FAILED"
    """A launch failed for another reason."""
    CLUSTER_FAILED = "CLUSTER_FAILED"
    """The cluster is Failed or RollingBack."""
    PROVISIONED = "PROVISIONED"
    """A launch succeeded: what barred launches before it is over."""
    CLUSTER_STATUS = "CLUSTER_STATUS"
    """`code` is the cluster's status."""
    GROUP_STATUS = "GROUP_STATUS"
    """`code` is the group's status."""
    NODE_RECOVERY = "NODE_RECOVERY"
    """`code` is `Automatic` or `None`: whether HyperPod repairs by itself."""
    RESERVATION_EXPIRING = "RESERVATION_EXPIRING"
    """`code` is the reservation; `deadline_at` is when its machines begin to go."""
    RACK_MAINTENANCE = "RACK_MAINTENANCE"
    """`code` is the UltraServer."""
    OTHER_ERROR = "OTHER_ERROR"
    """An error that nobody has a name for."""


class GroupFact(Value):
    """One signal about a group or the cluster."""

    kind: GroupFactKind
    source: SourceName
    cluster_arn: FactArn = ""
    instance_group: FactDetail = ""
    """Empty where it is about the whole cluster."""
    fault_key: FactWord = ""
    """Key in the fault catalogue; empty for what is no fault."""
    code: FactText = ""
    instance_id: FactWord = ""
    """The machine on which it showed, where the source tells: several are several facts."""
    deadline_at: Instant | None = None
    observed_at: Instant
    detail: FactDetail = ""
    """The source's own words, as in `NodeFact`."""
    envelope_id: DeliveryId
    is_drill: bool = False

    @property
    def fact_key(self) -> str:
        """Identity of the fact under however many envelopes: kind, code, machine and minute, and whether a drill."""
        when = f"{DRILL_PREFIX if self.is_drill else ''}{self.observed_at:%Y%m%dT%H%M}"
        return f"{when}/{self.kind}/{self.code}/{self.instance_id}"
