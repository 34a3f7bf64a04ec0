"""aws.sagemaker / SageMaker HyperPod Cluster Node Health Event.

Source: the SageMaker guide, "Events that SageMaker AI sends to EventBridge". The fault is in prose only; the status
values but `Unhealthy` are not published, so anything else than the two known ones is an error and never "healthy".
"""

import re

from evenkeel.domain.health.faults import UNKNOWN_FAULT, default_catalogue
from evenkeel.domain.health.incidents import FactKind, NodeFact
from evenkeel.events import fields
from evenkeel.events.outcomes import BadEvent, ParsedEvent

DETAIL_TYPE = "SageMaker HyperPod Cluster Node Health Event"
SOURCE = "hyperpod.node-health"

# ASCII on purpose: `\w` would take look-alike letters of other scripts. The lookahead refuses a name that goes on.
_FAULT_TYPE = re.compile(r"fault type ([A-Za-z0-9]{1,64})(?!\w)")
_BARE_CODE = re.compile(r"[A-Z][A-Z0-9_]{2,63}", re.ASCII)
_KINDS = {"Unhealthy": FactKind.SICKENED, "Healthy": FactKind.RECOVERED}


def parse(envelope: fields.Envelope) -> ParsedEvent:
    """Read the event.

    Raises:
        BadEvent: at the first fault, by its path.
    """
    detail = envelope.detail
    instance_id = fields.text_of(detail, "InstanceId", "detail.InstanceId")
    summary = fields.object_of(detail, "HealthSummary", "detail.HealthSummary")
    status = fields.text_of(summary, "HealthStatus", "detail.HealthSummary.HealthStatus")
    texts = {
        "detail.InstanceId": instance_id,
        "detail.ClusterName": fields.text_of(detail, "ClusterName", "detail.ClusterName"),
        "detail.ClusterArn": fields.text_of(detail, "ClusterArn", "detail.ClusterArn"),
        "detail.HealthSummary.HealthStatus": status,
    }
    for name in ("HealthStatusReason", "RepairAction", "Recommendation"):
        path = f"detail.HealthSummary.{name}"
        texts[path] = fields.text_of(summary, name, path, required=False)
    for path, text in texts.items():
        fields.check_text(text, path)
    envelope_id, observed_at = envelope.identity()
    fields.check_instance_id(instance_id, "detail.InstanceId")
    kind = _KINDS.get(status)
    if kind is None:
        known = " or ".join(_KINDS)
        raise BadEvent("EVENT_UNKNOWN_STATUS", f"detail.HealthSummary.HealthStatus: {status[:40]!r} is not {known}")
    reason = texts["detail.HealthSummary.HealthStatusReason"]
    code = _code(reason) if kind is FactKind.SICKENED else ""
    words = (reason, texts["detail.HealthSummary.Recommendation"])
    fact = NodeFact(
        kind=kind,
        source=SOURCE,
        instance_id=instance_id,
        cluster_arn=texts["detail.ClusterArn"],
        fault_key=fault_key(code) if kind is FactKind.SICKENED else "",
        code=code,
        observed_at=observed_at,
        envelope_id=envelope_id,
        detail=fields.quoted(" ".join(word for word in words if word)),
        is_drill=envelope.is_drill,
    )
    return ParsedEvent((fact,))


def _code(reason: str) -> str:
    match = _FAULT_TYPE.search(reason)
    if match:
        return match[1]
    return reason if _BARE_CODE.fullmatch(reason) else ""


def fault_key(code: str) -> str:
    """Return the catalogue's key of a HyperPod fault type or reason; the unknown fault where it has none."""
    key = f"hp:{code}"
    return key if key in default_catalogue() else UNKNOWN_FAULT
