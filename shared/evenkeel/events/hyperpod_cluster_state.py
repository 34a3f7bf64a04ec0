"""aws.sagemaker / SageMaker HyperPod Cluster State Change: the state of the cluster and of each of its groups.

Source: the SageMaker guide, "Events that SageMaker AI sends to EventBridge". InService while scaling is normal.
"""

from collections.abc import Iterator
from typing import Any

from pydantic import ConfigDict
from pydantic.alias_generators import to_pascal

from evenkeel.domain.health.group_facts import GroupFact, GroupFactKind
from evenkeel.events import fields
from evenkeel.events.fields import ClusterArn, EventEnvelope, EventModel, PlainText
from evenkeel.events.outcomes import ParsedEvent

DETAIL_TYPE = "SageMaker HyperPod Cluster State Change"
SOURCE = "hyperpod.cluster-state"
_FAILED = ("Failed", "RollingBack")


class _InstanceGroup(EventModel):
    """An entry of `detail.InstanceGroups`."""

    model_config = ConfigDict(alias_generator=to_pascal)

    instance_group_name: PlainText
    status: PlainText = ""


class _Detail(EventModel):
    """`detail` of aws.sagemaker / SageMaker HyperPod Cluster State Change."""

    model_config = ConfigDict(alias_generator=to_pascal)

    cluster_arn: ClusterArn
    cluster_name: PlainText
    cluster_status: PlainText
    failure_message: PlainText = ""
    node_recovery: PlainText = ""
    instance_groups: list[_InstanceGroup] = []


def parse(document: dict[str, Any]) -> ParsedEvent:
    """Read the event.

    Raises:
        ValidationError: the event does not fit its model.
    """
    return ParsedEvent(tuple(_facts(EventEnvelope[_Detail].model_validate(document))))


def _facts(event: EventEnvelope[_Detail]) -> Iterator[GroupFact]:
    detail = event.detail
    fact = GroupFact(
        kind=GroupFactKind.CLUSTER_STATUS,
        source=SOURCE,
        cluster_arn=detail.cluster_arn,
        code=fields.one_line(detail.cluster_status)[:40],
        observed_at=event.time,
        detail=fields.one_line(detail.failure_message),
        envelope_id=event.id,
        is_drill=event.is_drill,
    )
    yield fact
    if detail.cluster_status in _FAILED:
        yield fact.replace(kind=GroupFactKind.CLUSTER_FAILED, fault_key="hp:cluster_failed")
    if detail.node_recovery:
        yield fact.replace(kind=GroupFactKind.NODE_RECOVERY, code=fields.one_line(detail.node_recovery)[:40], detail="")
    for group in detail.instance_groups:
        if group.instance_group_name and group.status:
            yield fact.replace(
                kind=GroupFactKind.GROUP_STATUS,
                instance_group=fields.one_line(group.instance_group_name)[:256],
                code=fields.one_line(group.status)[:40],
                detail="",
            )
