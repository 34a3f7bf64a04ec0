"""A person takes an incident: others see who works on it, and since when. Nothing else changes."""

from evenkeel.domain.health.incidents import Acknowledgement, Incident
from evenkeel.domain.timeline import TimelineEntry
from evenkeel.domain.values import Value
from evenkeel.ports import Put, Write
from evenkeel.services.context import Context
from evenkeel.services.storage import incident_store
from evenkeel.services.tables import fleet_rows


class AcknowledgeIncidentRequest(Value):
    """The incident, the person and a remark."""

    incident_id: str
    by: str
    reason: str
    request_id: str


def run(request: AcknowledgeIncidentRequest, context: Context) -> Incident:
    """Record who works on an incident, in its timeline and in the audit. Another person may take it over.

    Idempotent: yes. A second acknowledgement by the same person changes nothing.

    Raises:
        NotFound: there is no such incident.
    """

    def change(current: Incident) -> tuple[Incident, list[Write]] | None:
        earlier_acknowledgement = current.acknowledgement
        if earlier_acknowledgement is not None and earlier_acknowledgement.by == request.by:
            return None
        text_start = f"{request.by} acknowledged {current.incident_id}"
        text = text_start + (f", taken over from {earlier_acknowledgement.by}" if earlier_acknowledgement else "")
        text += f": {request.reason}" if request.reason else "."
        entry = TimelineEntry(at=context.now, kind="acknowledged", text=text, writer=request.by)
        line = incident_store.timeline_put(current.incident_id, "acknowledged", text, at=context.now, writer=request.by)
        acknowledgement = Acknowledgement(by=request.by, reason=request.reason, at=context.now)
        audit_put = Put(fleet_rows.automation_event_row(entry, request.request_id))
        return current.replace(acknowledgement=acknowledgement), [line, audit_put]

    return incident_store.update_incident(context.ledger, request.incident_id, change)
