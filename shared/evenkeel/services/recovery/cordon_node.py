"""State CordonNode of recover_node: keep new pods off a faulty node.

The order of the writes, and the effect of a crash:

    check ─▶ register: add the node, if register and incident are the checked ones ─▶ cordon ─▶ timeline of the incident
               │ crash here: the node counts, and the next try continues  │ crash here: the node has the annotation
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.recovery.guardrails import GuardrailAction, GuardrailVerdict, check_guardrails
from evenkeel.domain.values import Value
from evenkeel.ports import ClusterCordonResult, ConditionCheck, Key, Row, Write
from evenkeel.services.context import Context
from evenkeel.services.incidents import recovery_step
from evenkeel.services.recovery import guardrail_inputs
from evenkeel.services.storage import guardrail_registers, incident_store
from evenkeel.services.storage.guardrail_registers import RegisterName
from evenkeel.services.storage.retries import until_committed
from evenkeel.services.tables import incident_rows

WRITER = "cordon_node"


class CordonOutcome(StrEnum):
    """The outcomes of CordonNode."""

    CORDONED = "CORDONED"
    BY_PERSON = "BY_PERSON"
    """A person cordoned the node."""
    GONE = "GONE"
    NOT_NEEDED = "NOT_NEEDED"
    """The plan takes no action on the node."""
    NOT_ALLOWED = "NOT_ALLOWED"
    """The mode allows no action, or this step of the incident is over."""
    BLOCKED = "BLOCKED"
    """A guardrail blocks the cordon."""


class CordonNodeResult(Value):
    """The outcome for the node."""

    outcome: CordonOutcome
    reason: str


_OUTCOME_TEXT = {
    ClusterCordonResult.CORDONED: (CordonOutcome.CORDONED, "Cordoned: the node gets no new pods."),
    ClusterCordonResult.ALREADY_CORDONED: (CordonOutcome.CORDONED, "Cordoned: the node gets no new pods."),
    ClusterCordonResult.BY_OTHER_INCIDENT: (
        CordonOutcome.CORDONED,
        "The node was already cordoned for an earlier incident.",
    ),
    ClusterCordonResult.BY_PERSON: (
        CordonOutcome.BY_PERSON,
        "A person cordoned the node, so Evenkeel changes nothing.",
    ),
    ClusterCordonResult.GONE: (CordonOutcome.GONE, "The node is gone from its cluster."),
}


class CordonReads(NamedTuple):
    """The rows that a cordon needs, as the caller has just read them. If one is stale, the commit fails."""

    incident_version: int
    """Version of the incident's row."""
    rows: Mapping[Key, Row | None]
    """Rows of `guardrail_inputs.cordon_keys`."""


def run(request: recovery_step.RecoveryStepRequest, context: Context) -> CordonNodeResult:
    """Cordon the node with Evenkeel's cordon annotation, unless too many nodes are cordoned.

    Idempotent: yes, by the annotation. A person's cordon stays unchanged.
    """
    keys = guardrail_inputs.cordon_keys()
    incident, version, cordon_rows = incident_store.load_incident_with(request.incident_id, context, *keys)
    reason_not_allowed = recovery_step.why_may_not_act(incident, context)
    if reason_not_allowed or recovery_step.is_repair_over(request.run, incident):
        reason = reason_not_allowed or recovery_step.REPAIR_OVER_TEXT
        return CordonNodeResult(outcome=CordonOutcome.NOT_ALLOWED, reason=reason)
    if incident.plan is not None and not incident.plan.repairs_node:
        return CordonNodeResult(outcome=CordonOutcome.NOT_NEEDED, reason="The node needs no action.")
    if incident.cordon_marked_at is not None:
        # A cordon that is missing by now was removed by a person.
        outcome, reason = _OUTCOME_TEXT[ClusterCordonResult.ALREADY_CORDONED]
        return CordonNodeResult(outcome=outcome, reason=reason)
    return cordon(incident, context, CordonReads(version, dict(zip(keys, cordon_rows, strict=True))))


def cordon(incident: Incident, context: Context, reads: CordonReads | None = None) -> CordonNodeResult:
    """Check the guardrails and cordon. Right before a repair this runs again, if a guardrail blocked the first try.

    A hold on automation does not block a cordon, because a cordoned node can wait safely.

    Args:
        incident: The incident of the node.
        context: The ports and the policy.
        reads: The rows that the caller has just read; None = read them here.

    Idempotent: yes, as `run`.
    """
    if not incident.node_name:
        return CordonNodeResult(outcome=CordonOutcome.GONE, reason="The node never joined its cluster.")
    verdict = _register_cordon(incident, context, reads)
    if verdict is None:
        return CordonNodeResult(outcome=CordonOutcome.NOT_ALLOWED, reason=recovery_step.REPAIR_OVER_TEXT)
    # A node that is gone needs no entry. If this incident waited for an entry, the node's replacement could not
    # use the node slot.
    if not verdict.is_allowed and context.cluster.node(incident.life.cluster, incident.node_name) is not None:
        from evenkeel.services.recovery import record_block  # late: few cordons are blocked, and it loads much

        record_block.set_block(incident, GuardrailAction.CORDON, verdict, context, writer=WRITER)
        return CordonNodeResult(outcome=CordonOutcome.BLOCKED, reason=verdict.reason)
    result = _set_cordon(incident, context) if verdict.is_allowed else ClusterCordonResult.GONE
    outcome, reason = _OUTCOME_TEXT[result]
    is_own_cordon = result in (ClusterCordonResult.CORDONED, ClusterCordonResult.ALREADY_CORDONED)
    has_evenkeel_cordon = is_own_cordon or result is ClusterCordonResult.BY_OTHER_INCIDENT

    def record_cordon(current: Incident) -> tuple[Incident, list[Write]] | None:
        if current.state.is_settled:
            return None
        life = current.life.key
        writes: list[Write] = []
        if not has_evenkeel_cordon:
            writes += guardrail_registers.removal_writes(RegisterName.CORDONS, context, life, is_drill=current.is_drill)
        cordoned_incident = current
        if current.block is not None and current.block.action == GuardrailAction.CORDON:
            cordoned_incident = cordoned_incident.without_block()
        if is_own_cordon and current.cordon_marked_at is None:
            cordoned_incident = cordoned_incident.replace(cordon_marked_at=context.now)
        if current.stages.cordoned_at is None and outcome in (CordonOutcome.CORDONED, CordonOutcome.BY_PERSON):
            cordoned_incident = cordoned_incident.with_stage_time("cordoned_at", context.now)
            writes.append(
                incident_store.timeline_put(current.incident_id, "cordoned", reason, at=context.now, writer=WRITER)
            )
        return (cordoned_incident, writes) if cordoned_incident is not current or writes else None

    incident_store.update_incident(
        context.ledger,
        incident.incident_id,
        record_cordon,
        read_incident=(incident, reads.incident_version) if reads else None,
    )
    if result is ClusterCordonResult.CORDONED:
        context.telemetry.seconds("DetectedToCordoned", (context.now - incident.opened_at).total_seconds())
    return CordonNodeResult(outcome=outcome, reason=reason)


def _set_cordon(incident: Incident, context: Context) -> ClusterCordonResult:
    """Cordon the node. Only a registered node may be cordoned: a gone node may join again at any moment."""
    version = incident.plan.uncordoned_resource_version if incident.plan else ""
    return context.cluster.cordon(incident.life.cluster, incident.node_name, incident.incident_id, version)


def _register_cordon(incident: Incident, context: Context, reads: CordonReads | None) -> GuardrailVerdict | None:
    """Check the guardrails, and register the node if allowed. Return None if the step is over.

    Check again if another node was registered first, or the incident changed.
    """
    first_try = [reads] if reads else []

    def register_once() -> GuardrailVerdict | None:
        if first_try:
            version, read_rows = first_try.pop()
        else:
            current, version = incident_store.load_incident(context.ledger, incident.incident_id)
            if recovery_step.is_repair_over(incident.run, current):
                return None
            read_rows = {}
        inputs = guardrail_inputs.GuardrailInputs(context, read_rows)
        guardrail_state = inputs.read_facts(GuardrailAction.CORDON, incident)
        verdict = check_guardrails(GuardrailAction.CORDON, guardrail_state.facts, context.policy.repair.guardrails)
        entry = guardrail_state.entry(incident, context.now)
        # An entry of an earlier incident is about to be removed, so it does not belong to this incident.
        is_registered = any(
            (register_entry.life_key, register_entry.incident_id) == (entry.life_key, entry.incident_id)
            for register_entry in guardrail_state.register.entries
        )
        if not verdict.is_allowed or is_registered:
            return verdict
        context.ledger.commit(
            guardrail_registers.addition_put(
                RegisterName.CORDONS,
                guardrail_state.register,
                guardrail_state.version,
                entry,
                is_request=False,
                is_drill=incident.is_drill,
            ),
            ConditionCheck(incident_rows.incident_key(incident.incident_id), version),
        )
        return verdict

    message = "the register of cordons changed on every try"
    return until_committed(register_once, message, tries=incident_store.MAX_TRIES)
