"""aws.sagemaker / SageMaker HyperPod Cluster State Change: the state of the cluster and of each of its groups.

Source: the SageMaker guide, "Events that SageMaker AI sends to EventBridge". InService while scaling is normal.
"""

from collections.abc import Iterator

from evenkeel.domain.health.groups import GroupFact, GroupFactKind
from evenkeel.events import fields
from evenkeel.events.outcomes import ParsedEvent

DETAIL_TYPE = "SageMaker HyperPod Cluster State Change"
SOURCE = "hyperpod.cluster-state"
_FAILED = ("Failed", "RollingBack")


def parse(envelope: fields.Envelope) -> ParsedEvent:
    """Read the event.

    Raises:
        BadEvent: at the first fault.
    """
    return ParsedEvent(tuple(_facts(envelope)))


def _facts(envelope: fields.Envelope) -> Iterator[GroupFact]:
    detail = envelope.detail
    arn, name, status = (
        fields.text_of(detail, key, f"detail.{key}") for key in ("ClusterArn", "ClusterName", "ClusterStatus")
    )
    for key, text in (("ClusterArn", arn), ("ClusterName", name), ("ClusterStatus", status)):
        fields.check_text(text, f"detail.{key}")
    failure = fields.plain_text_of(detail, "FailureMessage", "detail.FailureMessage", required=False)
    recovery = fields.plain_text_of(detail, "NodeRecovery", "detail.NodeRecovery", required=False)
    envelope_id, at = envelope.identity()
    whole = GroupFact(
        kind=GroupFactKind.CLUSTER_STATUS,
        source=SOURCE,
        cluster_arn=arn,
        code=fields.quoted(status)[:40],
        observed_at=at,
        detail=fields.quoted(failure),
        envelope_id=envelope_id,
        is_drill=envelope.is_drill,
    )
    yield whole
    if status in _FAILED:
        yield whole.but(kind=GroupFactKind.CLUSTER_FAILED, fault_key="hp:cluster_failed")
    if recovery:
        yield whole.but(kind=GroupFactKind.NODE_RECOVERY, code=fields.quoted(recovery)[:40], detail="")
    for path, group in fields.list_of(detail, "InstanceGroups", "detail.InstanceGroups"):
        group_name = fields.plain_text_of(group, "InstanceGroupName", f"{path}.InstanceGroupName")
        group_status = fields.plain_text_of(group, "Status", f"{path}.Status", required=False)
        if group_name and group_status:
            yield whole.but(
                kind=GroupFactKind.GROUP_STATUS,
                instance_group=fields.quoted(group_name)[:256],
                code=fields.quoted(group_status)[:40],
                detail="",
            )
