"""Keys, index entries and lifetimes of the incidents table."""

import hashlib
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from evenkeel.domain.health.incidents import DRILL_PREFIX, Evidence, Incident, NodeFact
from evenkeel.domain.health.ingestion import LastIncident
from evenkeel.domain.health.recurrence import HISTORY_WINDOW, FaultHistory
from evenkeel.domain.nodes import NodeLife
from evenkeel.domain.recovery.unhealthy_nodes import UnhealthyNode
from evenkeel.domain.shadow.shadow_cases import Aftermath
from evenkeel.domain.values import rfc3339
from evenkeel.ports import Key, Row, Table
from evenkeel.services.tables import rows

NOTICE_BEFORE_LISTING_KEPT = timedelta(hours=1)
"""How long a notice about an instance that the fleet does not know is kept."""


def incident_key(incident_id: str) -> Key:
    """Return the key `INC#id / META`."""
    return Key(Table.INCIDENTS, f"INC#{incident_id}", "META")


def incident_row(incident: Incident, version: int) -> Row:
    """Return the row; `byState` lists it under `INC#<state>` by opening time, so that lists are in order."""
    return Row(
        incident_key(incident.incident_id),
        incident.to_json(),
        version,
        (f"INC#{incident.state}", rfc3339(incident.opened_at)),
        incident.opened_at + rows.KEPT,
    )


def open_key(life: NodeLife, *, is_drill: bool = False) -> Key:
    """Return the key `OPEN#life`, which exists while an incident of that life is open. Drills have their own."""
    return Key(Table.INCIDENTS, rows.partition_key(f"OPEN#{life.key}", is_drill=is_drill), "META")


def open_row(life: NodeLife, incident_id: str, version: int = 0, *, is_drill: bool = False) -> Row:
    """Return the row from a node life to its open incident; `byState` lists it under `OPEN`, to find leftovers."""
    return Row(open_key(life, is_drill=is_drill), {"incidentId": incident_id}, version, ("OPEN", life.key))


def slot_key(slot_id: str, *, is_drill: bool = False) -> Key:
    """Return the key `SLOT#slot`: the latest incident of a node slot, on any of its nodes."""
    return Key(Table.INCIDENTS, rows.partition_key(f"SLOT#{slot_id}", is_drill=is_drill), "META")


def slot_row(incident: Incident, version: int, now: datetime) -> Row:
    """Return the row that leads a signal about a replacement node to the incident of the replaced node."""
    key = slot_key(incident.slot, is_drill=incident.is_drill)
    return Row(key, {"incidentId": incident.incident_id}, version, None, now + rows.FACT_KEPT)


def fact_key(fact: str) -> Key:
    """Return the key `FACT#…`: a row for each ingested fact.

    Its copies are recognised even after the incident is settled.
    """
    return Key(Table.INCIDENTS, f"FACT#{fact}", "META")


def fact_row(fact: str, incident_id: str, now: datetime, version: int = 0) -> Row:
    """Record the fact with the incident that it joined."""
    return Row(fact_key(fact), {"incidentId": incident_id}, version, None, now + rows.FACT_KEPT)


def last_key(life: NodeLife, *, is_drill: bool = False) -> Key:
    """Return the key `LAST#life / META`: the state in which the last settled incident left a life."""
    return Key(Table.INCIDENTS, rows.partition_key(f"LAST#{life.key}", is_drill=is_drill), "META")


def last_row(
    life: NodeLife, last_incident: LastIncident, version: int, now: datetime, *, is_drill: bool = False
) -> Row:
    """Return the row. It is kept as long as facts are: it separates old facts from new ones."""
    return Row(last_key(life, is_drill=is_drill), last_incident.to_json(), version, None, now + rows.FACT_KEPT)


def history_key(fault_location: str, *, is_drill: bool = False) -> Key:
    """Return the key `HISTORY#fault-location / META`: the earlier faults of a node slot, a job or an instance group."""
    return Key(Table.INCIDENTS, rows.partition_key(f"HISTORY#{fault_location}", is_drill=is_drill), "META")


def history_row(
    fault_location: str, history: FaultHistory, version: int, now: datetime, *, is_drill: bool = False
) -> Row:
    """Return the row. It is kept as long as the longest window in which a fault is counted."""
    return Row(history_key(fault_location, is_drill=is_drill), history.to_json(), version, None, now + HISTORY_WINDOW)


def aftermath_key(incident_id: str) -> Key:
    """Return the key `INC#id / AFTERMATH`: events of the node after an incident of the mode `observe` had ended."""
    return Key(Table.INCIDENTS, f"INC#{incident_id}", "AFTERMATH")


def aftermath_row(incident: Incident, aftermath: Aftermath, version: int) -> Row:
    """Return the row. It is kept as long as its incident."""
    key = aftermath_key(incident.incident_id)
    return Row(key, aftermath.to_json(), version, None, incident.opened_at + rows.KEPT)


POLICY_CHANGES = "POLICY"
"""Index key of the policy changes, listed by number."""


def unresolved_key(fact: str) -> Key:
    """Return the key `UNRESOLVED#fact / META`."""
    return Key(Table.INCIDENTS, f"UNRESOLVED#{fact}", "META")


def unresolved_row(fact_doc: dict[str, Any], fact: str, now: datetime, version: int = 0) -> Row:
    """Return the row: a fact whose node life is unknown. The sweep tries again. Drills are listed apart."""
    state = "UNRESOLVED-DRILL" if fact.startswith(DRILL_PREFIX) else "UNRESOLVED"
    return Row(unresolved_key(fact), fact_doc, version, (state, rfc3339(now)), now + rows.FACT_KEPT)


def unhealthy_key(life: NodeLife) -> Key:
    """Return the key `UNHEALTHY#life / META`: a node that an incident left unhealthy, or that a person trusts."""
    return Key(Table.INCIDENTS, f"UNHEALTHY#{life.key}", "META")


def unhealthy_row(node: UnhealthyNode, version: int) -> Row:
    """Return the row; `byState` lists it under `UNHEALTHY`, trusted nodes too.

    The sweep, the scheduler and `status` find them there.
    """
    state = ("UNHEALTHY", node.life.key)
    return Row(unhealthy_key(node.life), node.to_json(), version, state, node.since + rows.KEPT)


def retry_cursors_key() -> Key:
    """Return the key `RETRIED / META`: where the next retry continues in the lists of unresolved facts."""
    return Key(Table.INCIDENTS, "RETRIED", "META")


def notice_before_listing_key(instance_id: str, *, is_drill: bool = False) -> Key:
    """Return the key `EARLY#instance / META`."""
    return Key(Table.INCIDENTS, rows.partition_key(f"EARLY#{instance_id}", is_drill=is_drill), "META")


def notice_before_listing_row(
    instance_id: str, facts: Iterable[NodeFact], now: datetime, version: int, *, is_drill: bool = False
) -> Row:
    """Return the row: a notice of an account-wide source about an instance that the fleet does not know, or not yet."""
    doc = {"instanceId": instance_id, "facts": [fact.to_json() for fact in facts]}
    return Row(
        notice_before_listing_key(instance_id, is_drill=is_drill),
        doc,
        version,
        ("EARLY", rfc3339(now)),
        now + NOTICE_BEFORE_LISTING_KEPT,
    )


def evidence_row(evidence: Evidence) -> Row:
    """Return the row `INC#id / EVIDENCE#time#envelope#fact`: one envelope may carry several facts about one node."""
    digest = hashlib.sha256(evidence.fact.fact_key.encode()).hexdigest()[:8]
    key = Key(
        Table.INCIDENTS,
        f"INC#{evidence.incident_id}",
        f"EVIDENCE#{rfc3339(evidence.joined_at)}#{evidence.fact.envelope_id}#{digest}",
    )
    return Row(key, evidence.to_json(), 0, None, evidence.joined_at + rows.KEPT)
