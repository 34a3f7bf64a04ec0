"""State CordonNode of recover_node: keep new pods off a suspect node.

The order of the writes, and the effect of a crash:

    check ─▶ register: add the node, if its version is the checked one ─▶ cordon ─▶ timeline of the incident
               │ crash here: the node counts, and the next try continues  │ crash here: the node has the mark
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.recovery.guardrails import GuardrailAction, GuardrailVerdict, check_guardrails
from evenkeel.domain.values import Value
from evenkeel.ports import Conflict, CordonResult, Key, Row, Write
from evenkeel.services.context import Context
from evenkeel.services.recovery import guardrails, record_block
from evenkeel.services.storage import guardrail_registers, incident_record
from evenkeel.services.storage.guardrail_registers import RegisterName

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
    """The mode allows no action, or the incident is settled."""
    BLOCKED = "BLOCKED"
    """A guardrail blocks the cordon."""


class CordonNodeResult(Value):
    """The outcome for the node."""

    outcome: CordonOutcome
    reason: str


_OUTCOME_TEXT = {
    CordonResult.CORDONED: (CordonOutcome.CORDONED, "Cordoned: the node gets no new pods."),
    CordonResult.ALREADY_CORDONED: (CordonOutcome.CORDONED, "Cordoned: the node gets no new pods."),
    CordonResult.BY_OTHER_INCIDENT: (CordonOutcome.CORDONED, "The node was already cordoned for an earlier incident."),
    CordonResult.BY_PERSON: (CordonOutcome.BY_PERSON, "A person cordoned the node, so Evenkeel changes nothing."),
    CordonResult.GONE: (CordonOutcome.GONE, "The node is gone from its cluster."),
}


def run(request: incident_record.RecoveryRun, context: Context) -> CordonNodeResult:
    """Cordon the node with Evenkeel's mark, unless too many nodes are cordoned.

    Idempotent: yes, by the mark. A person's cordon stays unchanged.
    """
    keys = guardrails.cordon_keys()
    incident, version, known_rows = incident_record.load_with(request.incident_id, context, *keys)
    reason_not_allowed = incident_record.why_may_not_act(incident, context)
    if reason_not_allowed or incident.state.is_settled:
        return CordonNodeResult(
            outcome=CordonOutcome.NOT_ALLOWED, reason=reason_not_allowed or "The incident is settled."
        )
    if incident.plan is not None and not incident.plan.repairs_node:
        return CordonNodeResult(outcome=CordonOutcome.NOT_NEEDED, reason="The node needs no action.")
    read_before = ReadBefore(version, dict(zip(keys, known_rows, strict=True)))
    return cordon(incident, context, read_before)


class ReadBefore(NamedTuple):
    """Rows that the caller has just read. If one is stale, the commit fails."""

    version: int
    """Version of the incident's row."""
    rows: Mapping[Key, Row | None]
    """Rows of `guardrails.cordon_keys`."""


def cordon(incident: Incident, context: Context, read_before: ReadBefore | None = None) -> CordonNodeResult:
    """Check the guardrails and cordon. Right before a repair this runs again, if a guardrail blocked the first try.

    A hold on automation does not block a cordon, because a cordoned node can wait safely.

    Args:
        incident: The incident of the node.
        context: The ports and the policy.
        read_before: The rows that the caller has just read; None = read them again.

    Idempotent: yes, as `run`.
    """
    if not incident.node_name:
        return CordonNodeResult(outcome=CordonOutcome.GONE, reason="The node never joined its cluster.")
    verdict = _register_cordon(incident, context, read_before.rows if read_before else None)
    # A node that is gone needs no entry. If this incident waited for an entry, its replacement could not use the
    # node slot.
    if not verdict.is_allowed and context.cluster.node(incident.life.cluster, incident.node_name) is not None:
        record_block.block(incident, GuardrailAction.CORDON, verdict, context, writer=WRITER)
        return CordonNodeResult(outcome=CordonOutcome.BLOCKED, reason=verdict.reason)
    read_version = incident.plan.node_version if incident.plan else ""
    result = context.cluster.cordon(incident.life.cluster, incident.node_name, incident.incident_id, read_version)
    outcome, reason = _OUTCOME_TEXT[result]
    is_marked = result in (CordonResult.CORDONED, CordonResult.ALREADY_CORDONED)
    has_evenkeel_cordon = is_marked or result is CordonResult.BY_OTHER_INCIDENT

    def with_cordon(current: Incident) -> tuple[Incident, list[Write]] | None:
        if current.state.is_settled:
            return None
        life = current.life.key
        writes: list[Write] = []
        if not has_evenkeel_cordon:
            writes += guardrail_registers.puts_removing(RegisterName.CORDONS, context, life, is_drill=current.is_drill)
        after = current
        if current.block is not None and current.block.action == GuardrailAction.CORDON:
            after = after.without_block()
        if is_marked and current.cordon_marked_at is None:
            after = after.replace(cordon_marked_at=context.now)
        if current.stages.cordoned_at is None and outcome in (CordonOutcome.CORDONED, CordonOutcome.BY_PERSON):
            after = after.at_stage("cordoned_at", context.now)
            writes.append(
                incident_record.timeline_put(current.incident_id, "cordoned", reason, at=context.now, writer=WRITER)
            )
        return (after, writes) if after is not current or writes else None

    stored = (incident, read_before.version) if read_before else None
    incident_record.update(context.ledger, incident.incident_id, with_cordon, read_before=stored)
    if result is CordonResult.CORDONED:
        context.telemetry.seconds("DetectedToCordoned", (context.now - incident.opened_at).total_seconds())
    return CordonNodeResult(outcome=outcome, reason=reason)


def _register_cordon(
    incident: Incident, context: Context, known_rows: Mapping[Key, Row | None] | None
) -> GuardrailVerdict:
    """Check the guardrails, and register the node if allowed. Check again if another node was registered first."""
    for _ in range(incident_record.MAX_TRIES):
        inputs = guardrails.GuardrailInputs(context, known_rows)
        guardrail_state = inputs.read(GuardrailAction.CORDON, incident)
        known_rows = None
        verdict = check_guardrails(GuardrailAction.CORDON, guardrail_state.facts, context.policy.repair.guardrails)
        entry = guardrail_state.entry(incident, context.now)
        # An entry of an earlier incident is about to be removed, so it does not belong to this incident.
        is_registered = any(
            (registered.life, registered.incident_id) == (entry.life, entry.incident_id)
            for registered in guardrail_state.register.entries
        )
        if not verdict.is_allowed or is_registered:
            return verdict
        try:
            context.ledger.commit(
                guardrail_registers.put_adding(
                    RegisterName.CORDONS,
                    guardrail_state.register,
                    guardrail_state.version,
                    entry,
                    is_request=False,
                    is_drill=incident.is_drill,
                )
            )
        except Conflict:
            continue
        return verdict
    raise Conflict("the register of cordons changed on every try")
