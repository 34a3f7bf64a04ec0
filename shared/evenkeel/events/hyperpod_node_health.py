"""aws.sagemaker / SageMaker HyperPod Cluster Node Health Event.

Source: the SageMaker guide, "Events that SageMaker AI sends to EventBridge". The fault is in prose only. AWS
documents only the status `Unhealthy`. `Healthy` is accepted, too. Any other value is an error: it never counts as
healthy.
"""

import re
from typing import Any, Literal

from pydantic import ConfigDict
from pydantic.alias_generators import to_pascal

from evenkeel.domain.health.faults import UNKNOWN_FAULT, default_catalogue
from evenkeel.domain.health.incidents import FactKind, NodeFact
from evenkeel.events import fields
from evenkeel.events.fields import ClusterArn, EventEnvelope, EventModel, InstanceId, PlainText
from evenkeel.events.outcomes import ParsedEvent

DETAIL_TYPE = "SageMaker HyperPod Cluster Node Health Event"
SOURCE = "hyperpod.node-health"

# ASCII on purpose: `\w` would take look-alike letters of other scripts. The lookahead refuses a longer name.
_FAULT_TYPE = re.compile(r"fault type ([A-Za-z0-9]{1,64})(?!\w)")
_BARE_CODE = re.compile(r"[A-Z][A-Z0-9_]{2,63}", re.ASCII)


class _HealthSummary(EventModel):
    """`detail.HealthSummary`."""

    model_config = ConfigDict(alias_generator=to_pascal)

    health_status: Literal["Unhealthy", "Healthy"]
    health_status_reason: PlainText = ""
    repair_action: PlainText = ""
    recommendation: PlainText = ""


class _Detail(EventModel):
    """`detail` of aws.sagemaker / SageMaker HyperPod Cluster Node Health Event."""

    model_config = ConfigDict(alias_generator=to_pascal)

    instance_id: InstanceId
    cluster_name: PlainText
    cluster_arn: ClusterArn
    health_summary: _HealthSummary


def parse(document: dict[str, Any]) -> ParsedEvent:
    """Read the event.

    Raises:
        ValidationError: the event does not fit its model.
    """
    event = EventEnvelope[_Detail].model_validate(document)
    detail, summary = event.detail, event.detail.health_summary
    is_unhealthy = summary.health_status == "Unhealthy"
    code = _code(summary.health_status_reason) if is_unhealthy else ""
    words = (summary.health_status_reason, summary.recommendation)
    fact = NodeFact(
        kind=FactKind.FAULT if is_unhealthy else FactKind.RECOVERED,
        source=SOURCE,
        instance_id=detail.instance_id,
        cluster_arn=detail.cluster_arn,
        fault_key=fault_key(code) if is_unhealthy else "",
        code=code,
        observed_at=event.time,
        envelope_id=event.id,
        detail=fields.one_line(" ".join(word for word in words if word)),
        is_drill=event.is_drill,
    )
    return ParsedEvent((fact,))


def _code(reason: str) -> str:
    match = _FAULT_TYPE.search(reason)
    if match:
        return match[1]
    return reason if _BARE_CODE.fullmatch(reason) else ""


def fault_key(code: str) -> str:
    """Return the catalogue's key of a HyperPod fault type or reason, or the unknown fault if the catalogue has none."""
    key = f"hp:{code}"
    return key if key in default_catalogue() else UNKNOWN_FAULT
