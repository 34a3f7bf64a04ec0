"""The readings of the guardrails for an incident: as they are now, or as its last repair decision recorded them."""

from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from evenkeel.domain.decisions import Decision
from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.recovery.guardrail_readings import GuardrailReading, read_guardrails
from evenkeel.domain.recovery.guardrails import GuardrailAction, GuardrailFacts, GuardrailName
from evenkeel.services.context import Context
from evenkeel.services.recovery.guardrail_inputs import GuardrailInputs

Json = dict[str, Any]


def show_readings(incident: Incident, decisions: Iterable[Decision], context: Context) -> list[Json]:
    """Return the reading of each guardrail against its limit, with the time of the reading.

    An open incident shows the readings of now. Only the reading of a shared cause is the recorded one, because it needs
    every node of the fleet. A settled incident shows the readings of its last repair decision. If the policy has
    changed since, it is unknown what the limits were and what blocked.

    Args:
        incident: The incident.
        decisions: The decisions about it, newest first.
        context: The ledger, the policy and the time.
    """
    recorded_readings, is_same_policy = _recorded_readings(decisions, context)
    if incident.state.is_settled:
        readings = (
            recorded_readings
            if is_same_policy
            else [reading.replace(limit=None, is_blocking=None) for reading in recorded_readings]
        )
    else:
        readings = _current_readings(incident, recorded_readings, context)
    return [reading.to_json() for reading in readings]


def _recorded_readings(decisions: Iterable[Decision], context: Context) -> tuple[list[GuardrailReading], bool]:
    """Return the readings of the last decision that recorded facts, and whether its policy is in force.

    Facts of another release that this one cannot read yield no readings.
    """
    for decision in decisions:
        if decision.kind == "REPAIR" and decision.facts.get("guard"):
            try:
                facts = GuardrailFacts.model_validate(decision.facts["guard"])
            except ValidationError:  # the record of another release
                return [], True
            readings = read_guardrails(GuardrailAction.REPLACE, facts, context.policy.repair.guardrails)
            return list(readings), decision.policy_hash == context.policy.hash
    return [], True


def _current_readings(
    incident: Incident, recorded_readings: list[GuardrailReading], context: Context
) -> list[GuardrailReading]:
    inputs = GuardrailInputs(context)
    policy = context.policy.repair.guardrails
    is_cordoned = incident.stages.cordoned_at is not None
    actions = (GuardrailAction.REPLACE,) if is_cordoned else (GuardrailAction.CORDON, GuardrailAction.REPLACE)
    pool_nodes = inputs.pool_nodes(incident.pool)
    readings = [
        reading
        for action in actions
        for reading in read_guardrails(
            action, inputs.read_counts(action, incident).facts.replace(pool_nodes=pool_nodes), policy
        )
    ]
    shared_cause = next(
        (reading for reading in recorded_readings if reading.guardrail is GuardrailName.SHARED_CAUSE), None
    )
    return [_without_unread(reading, shared_cause) for reading in readings]


def _without_unread(reading: GuardrailReading, recorded_cause: GuardrailReading | None) -> GuardrailReading:
    """Return a present reading. Shared causes and the node's health are unknown: this call reads neither."""
    if reading.guardrail is GuardrailName.SHARED_CAUSE:
        return recorded_cause or reading.replace(reading=None, is_blocking=None, read_at=None)
    is_old = (reading.reading or 0) >= (reading.limit or 0)
    if reading.guardrail is GuardrailName.STALE_EVIDENCE and is_old:
        return reading.replace(is_blocking=None)
    return reading
