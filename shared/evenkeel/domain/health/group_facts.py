"""Facts about an instance group or a whole cluster: the causes that several nodes share."""

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
    """Kind of fact about an instance group. The first five values are problems; all later values report a state."""

    NO_CAPACITY = "NO_CAPACITY"
    """A launch found no capacity."""
    LIFECYCLE_SCRIPT_FAILED = "LIFECYCLE_SCRIPT_FAILED"
    """The lifecycle script of a new node failed. It will fail on the next node too."""
    EFA_BOOT_FAILED = "EFA_BOOT_FAILED"
    """A new node failed the EFA check at its boot. Another launch often passes."""
    CREATION_FAILED = "CREATION_FAILED"
    """A launch failed for another reason."""
    CLUSTER_FAILED = "CLUSTER_FAILED"
    """The cluster is Failed or RollingBack."""
    PROVISIONED = "PROVISIONED"
    """A launch succeeded, so the cause that blocked earlier launches is over."""
    CLUSTER_STATUS = "CLUSTER_STATUS"
    """`code` is the cluster's status."""
    GROUP_STATUS = "GROUP_STATUS"
    """`code` is the group's status."""
    NODE_RECOVERY = "NODE_RECOVERY"
    """`code` is `Automatic` or `None`: whether HyperPod repairs nodes by itself."""
    RESERVATION_EXPIRING = "RESERVATION_EXPIRING"
    """`code` is the reservation; `deadline_at` is the time at which AWS starts to end its nodes."""
    RACK_MAINTENANCE = "RACK_MAINTENANCE"
    """`code` is the id of the UltraServer."""
    OTHER_ERROR = "OTHER_ERROR"
    """An error that Evenkeel has no name for."""


class GroupFact(Value):
    """A parsed statement about an instance group or the cluster, from one source."""

    kind: GroupFactKind
    source: SourceName
    cluster_arn: FactArn = ""
    instance_group: FactDetail = ""
    """Empty if the fact is about the whole cluster."""
    fault_key: FactWord = ""
    """Key in the fault catalogue; empty if the fact is not a fault."""
    code: FactText = ""
    instance_id: FactWord = ""
    """The affected node, if the source names one. A source that names several nodes yields one fact for each."""
    deadline_at: Instant | None = None
    observed_at: Instant
    detail: FactDetail = ""
    """The text of the source, unchanged; see `NodeFact.detail`."""
    envelope_id: DeliveryId
    is_drill: bool = False

    @property
    def fact_key(self) -> str:
        """Identity of the fact, however often it is delivered: drill or not, minute, kind, code and node."""
        time_text = f"{DRILL_PREFIX if self.is_drill else ''}{self.observed_at:%Y%m%dT%H%M}"
        return f"{time_text}/{self.kind}/{self.code}/{self.instance_id}"
