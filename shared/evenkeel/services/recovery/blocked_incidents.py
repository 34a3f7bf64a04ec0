"""Incidents that a guardrail blocks, and the blocked incidents that may continue now.

A single decision covers all blocked incidents, so no incident overtakes a worse or older incident.
"""

from collections.abc import Callable, Iterable

from evenkeel.domain.health.incidents import Incident, IncidentState
from evenkeel.domain.recovery.guardrails import BlockedAction, GuardrailAction, unblocked_actions
from evenkeel.ports import Ledger, Table, every
from evenkeel.services.recovery.guardrail_inputs import GuardrailInputs
from evenkeel.services.tables import rows


def load_blocked_incidents(ledger: Ledger) -> dict[str, Incident]:
    """Return every incident that a guardrail blocks, by id, as the index lists them."""
    index_entries = every(
        lambda cursor: ledger.by_state(Table.INCIDENTS, f"INC#{IncidentState.BLOCKED}", cursor=cursor)
    )
    return {incident.incident_id: incident for _, incident in rows.readable_rows(index_entries, Incident)}


def unblocked_incidents(
    incidents: Iterable[Incident], fleet: GuardrailInputs, looks_healthy: Callable[[Incident], bool]
) -> frozenset[str]:
    """Return the blocked incidents whose action would be allowed now, the worst and oldest first.

    Args:
        incidents: All blocked incidents.
        fleet: The facts of the guardrails.
        looks_healthy: Whether an incident's node would pass its validation now. The function calls it only for
            incidents with old evidence.
    """
    return unblocked_actions(
        [_blocked_action(incident, fleet, looks_healthy) for incident in incidents],
        fleet.context.policy.repair.guardrails,
    )


def _blocked_action(
    incident: Incident, fleet: GuardrailInputs, looks_healthy: Callable[[Incident], bool]
) -> BlockedAction:
    # An incident without a recorded action comes from an earlier version. A repair is the most that it can wait for.
    action = (
        GuardrailAction(incident.block.action) if incident.block and incident.block.action else GuardrailAction.REPLACE
    )
    # Called only if its result matters: a control plane that does not answer must not block other incidents.
    is_well = action is not GuardrailAction.STOP and fleet.is_old(incident) and looks_healthy(incident)
    return BlockedAction(
        cause=incident.block.cause if incident.block else "",
        incident_id=incident.incident_id,
        severity=incident.severity,
        opened_at=incident.opened_at,
        action=action,
        is_drill=incident.is_drill,
        facts=fleet.read_facts(action, incident, looks_healthy=is_well).facts,
    )
