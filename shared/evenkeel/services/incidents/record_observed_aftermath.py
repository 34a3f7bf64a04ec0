"""Record what happens to a node after an incident of the mode `observe` has ended, for the shadow report.

In `observe` an incident ends at once. The repairs by HyperPod or by people come later, when no incident is open for
them to join. No decision reads these records.
"""

from datetime import datetime

from evenkeel.domain.health.incidents import Incident, NodeFact
from evenkeel.domain.nodes import NodeLife
from evenkeel.domain.shadow.shadow_cases import AFTERMATH_PERIOD, Aftermath, NodeEvent, node_event_of, shadow_decision
from evenkeel.ports import Ledger, Put, Row
from evenkeel.services.context import Context
from evenkeel.services.storage.retries import until_committed
from evenkeel.services.tables import incident_rows, rows


def aftermath_writes(incident: Incident, events: list[NodeEvent], ledger: Ledger, now: datetime) -> list[Put]:
    """Return the writes that add events to the aftermath of an incident; none if they add nothing.

    Only settled incidents of the mode `observe` are followed, and only for some time.
    """
    decision = shadow_decision(incident)
    if decision is None or not incident.state.is_settled or now - decision.decided_at > AFTERMATH_PERIOD:
        return []
    row = ledger.get(incident_rows.aftermath_key(incident.incident_id))
    stored_aftermath = rows.decode(row, Aftermath) if row else Aftermath()
    aftermath = stored_aftermath.with_events(events)
    return (
        [Put(incident_rows.aftermath_row(incident, aftermath, row.version if row else 0))]
        if aftermath != stored_aftermath
        else []
    )


def aftermath_writes_for_fact(fact: NodeFact, incident_id: str, context: Context) -> list[Put]:
    """Return the writes for a fact that no open incident took.

    Args:
        fact: The fact. A drill's fact is never recorded.
        incident_id: The last incident of its node.
        context: Gives the ledger and the time.
    """
    event = node_event_of(fact, is_evidence=False)
    row = context.ledger.get(incident_rows.incident_key(incident_id)) if event else None
    if event is None or row is None:
        return []
    return aftermath_writes(rows.decode(row, Incident), [event], context.ledger, context.clock.now())


def record_progress(fact: NodeFact, life: NodeLife | None, context: Context) -> None:
    """Record a step of HyperPod's repair of a node without an open incident.

    Idempotent: yes, a copy of an event adds nothing.

    Args:
        fact: The step. It may name the new instance of the node slot.
        life: The node that it names; None if the fleet does not know it.
        context: Gives the ledger, the time and the cluster.

    Raises:
        Conflict: other writers were first too often.
    """

    def commit_once() -> None:
        incident_id = _last_incident_id(fact, life, context)
        puts = aftermath_writes_for_fact(fact, incident_id, context) if incident_id else []
        if puts:
            context.ledger.commit(*puts)

    until_committed(commit_once, f"the aftermath of {fact.instance_id} changed on every try")


def _last_incident_id(fact: NodeFact, life: NodeLife | None, context: Context) -> str:
    """Return the last incident of the node, else of its node slot; empty if there is none."""
    last_row = context.ledger.get(incident_rows.last_key(life)) if life else None
    if last_row is not None:
        return str(last_row.doc["incidentId"])
    slot_id = f"{context.site.clusters[0]}/{fact.logical_id}" if context.site.clusters and fact.logical_id else ""
    pointer: Row | None = context.ledger.get(incident_rows.slot_key(slot_id)) if slot_id else None
    return str(pointer.doc["incidentId"]) if pointer else ""
