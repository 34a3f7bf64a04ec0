"""Who waits for a guardrail to clear, and who of them may go now: one answer for all, so nobody jumps the queue."""

from collections.abc import Callable, Iterable

from evenkeel.domain.health.incidents import Incident, IncidentState
from evenkeel.domain.recovery.guardrails import BlockedAction, GuardedAction, released_actions
from evenkeel.ports import Ledger, Table, every
from evenkeel.services.recovery.guardrails import GuardrailInputs
from evenkeel.services.storage import rows


def blocked(ledger: Ledger) -> dict[str, Incident]:
    """Return every incident that a guardrail bars, by id, as the index lists them."""
    listed = every(lambda cursor: ledger.by_state(Table.INCIDENTS, f"INC#{IncidentState.BLOCKED}", cursor=cursor))
    return {incident.incident_id: incident for incident in (rows.read(row, Incident) for row in listed)}


def released_incidents(
    waiting: Iterable[Incident], fleet: GuardrailInputs, looks_healthy: Callable[[Incident], bool]
) -> frozenset[str]:
    """Return those of the incidents whose barred act would be allowed now, the worst and oldest first.

    Args:
        waiting: All that wait.
        fleet: What the guardrails need to know.
        looks_healthy: Whether an incident's machine would pass its validation now; asked only of
            old evidence.
    """
    return released_actions(
        [_blocked_action(each, fleet, looks_healthy) for each in waiting], fleet.context.policy.repair.guardrails
    )


def _blocked_action(
    incident: Incident, fleet: GuardrailInputs, looks_healthy: Callable[[Incident], bool]
) -> BlockedAction:
    # What waits without a mark was held by a service of an earlier version: a repair is the most that it can be.
    act = GuardedAction(incident.block.act) if incident.block and incident.block.act else GuardedAction.REPLACE
    # Looked at only where it matters: a control plane that does not answer is not to keep the whole queue waiting.
    is_well = act is not GuardedAction.STOP and fleet.is_old(incident) and looks_healthy(incident)
    return BlockedAction(
        cause=incident.block.cause if incident.block else "",
        incident_id=incident.incident_id,
        severity=incident.severity,
        opened_at=incident.opened_at,
        act=act,
        is_drill=incident.is_drill,
        facts=fleet.guard_context(act, incident, looks_healthy=is_well).facts,
    )
