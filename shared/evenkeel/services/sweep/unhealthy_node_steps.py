"""Nodes that an incident left unhealthy: no longer recorded once they are healthy, repaired once that is allowed."""

import contextlib
from functools import partial

from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.nodes import KubernetesNode
from evenkeel.domain.recovery.node_slot import SlotState, find_slot_state
from evenkeel.domain.recovery.other_controllers import is_manual_cordon
from evenkeel.domain.recovery.plan import NodeOwner
from evenkeel.domain.recovery.unhealthy_nodes import UnhealthyNode, resumed_incident, why_healthy, why_resume
from evenkeel.domain.recovery.validation import expected_accelerators
from evenkeel.domain.shadow.shadow_cases import Actor, Aftermath, NodeEvent, NodeEventKind, shadow_decision
from evenkeel.domain.values import milliseconds
from evenkeel.ports import Conflict, Delete, Put, Row, Table
from evenkeel.services.incidents import record_node_fact, record_observed_aftermath
from evenkeel.services.recovery import manual_cordons, plan_recovery
from evenkeel.services.storage import incident_store
from evenkeel.services.sweep.sweep_run import WRITER, SweepRun
from evenkeel.services.tables import incident_rows, rows

_SWEEP_NOTE = "The sweep observed this."


def resume_work(sweep: SweepRun) -> int:
    """Check every unhealthy node again: the mode, the policy, an opt-out or a person's answer may have changed.

    Idempotent: yes, by the row, which is deleted in the commit that opens the next incident.
    """
    begun = 0
    for row in sweep.read_present_rows(sweep.list_rows(Table.INCIDENTS, "UNHEALTHY")):
        with sweep.isolate_item(row.key.pk):
            begun += _check_node(sweep, row)
    return begun


def _check_node(sweep: SweepRun, row: Row) -> bool:
    ledger = sweep.context.ledger
    unhealthy_node = rows.decode(row, UnhealthyNode)
    if unhealthy_node.trusted_by:
        return False
    incident, _ = incident_store.load_incident(ledger, unhealthy_node.incident_id)
    if ledger.get(incident_rows.open_key(unhealthy_node.life)) is not None:
        return False  # a newer incident works on it
    if unhealthy_node.life.cluster not in sweep.nodes_of or sweep.provider_nodes is None:
        return False  # nothing is known about nodes of an unreadable control plane
    nodes = tuple(node for node in sweep.kubernetes if node.cluster == unhealthy_node.life.cluster)
    provider_nodes = sweep.provider_nodes
    slot_state = find_slot_state(
        incident.life,
        incident.slot,
        incident.pool,
        provider_nodes=provider_nodes,
        nodes=nodes,
        since=incident.opened_at,
    )
    expected_type = incident.instance_type or (
        slot_state.original.node.instance_type if slot_state.original.node else ""
    )
    peers = [node for node in nodes if node.name != incident.node_name]
    is_gone = not slot_state.original.is_listed
    over = why_healthy(
        incident,
        slot_state.original,
        sweep.context.policy.catalogue,
        expected_accelerators=expected_accelerators(expected_type, peers),
    )
    if is_gone or over:
        _delete_record(sweep, row, incident, over or "The node is gone.", _ending_event(incident, slot_state, sweep))
        return False
    _record_first_events(sweep, incident, slot_state.original.node)
    plan = plan_recovery.preview_plan(
        incident,
        slot_state,
        nodes,
        sweep.hyperpod_settings,
        sweep.context,
    )
    reason = why_resume(incident, plan, now=sweep.context.now)
    return bool(reason) and _continue_incident(sweep, row, unhealthy_node, incident, reason)


def _delete_record(sweep: SweepRun, row: Row, incident: Incident, reason: str, event: NodeEvent) -> None:
    context = sweep.context
    line = partial(incident_store.timeline_put, incident.incident_id, at=context.now, writer=WRITER)
    writes = record_observed_aftermath.aftermath_writes(incident, [event], context.ledger, context.now)
    with contextlib.suppress(Conflict):  # the next sweep checks again
        context.ledger.commit(Delete(row.key, row.version), line("node", f"No longer unhealthy. {reason}"), *writes)


def _ending_event(incident: Incident, slot_state: SlotState, sweep: SweepRun) -> NodeEvent:
    """Return the event that ended the unhealthy state of a node, as the sweep observed it."""
    node, successor = slot_state.original.node, slot_state.replacement
    kind, at, actor = NodeEventKind.RECOVERED, sweep.context.now, Actor.UNKNOWN
    if not slot_state.original.is_listed:
        kind = NodeEventKind.REPLACED if successor else NodeEventKind.REMOVED
        if incident.plan is not None and incident.plan.owner == NodeOwner.KARPENTER:
            actor = Actor.KARPENTER
        if successor is not None and successor.provider_node is not None:
            at = min(at, max(successor.provider_node.launched_at, incident.opened_at))
    elif node is not None and incident.boot_id and node.boot_id and node.boot_id != incident.boot_id:
        kind = NodeEventKind.REBOOTED
    return NodeEvent(at=at, kind=kind, actor=actor, evidence=_SWEEP_NOTE)


def _record_first_events(sweep: SweepRun, incident: Incident, node: KubernetesNode | None) -> None:
    """Record the first cordon and the first reboot of a node that stays unhealthy."""
    if node is None or shadow_decision(incident) is None:
        return
    context = sweep.context
    row = context.ledger.get(incident_rows.aftermath_key(incident.incident_id))
    node_event_kinds = {event.kind for event in rows.decode(row, Aftermath).events} if row else set()
    events = []
    if node.is_cordoned and NodeEventKind.CORDONED not in node_event_kinds:
        events.append(_cordon_event(incident, node, sweep))
    has_rebooted = bool(incident.boot_id and node.boot_id and node.boot_id != incident.boot_id)
    if has_rebooted and NodeEventKind.REBOOTED not in node_event_kinds:
        events.append(NodeEvent(at=context.now, kind=NodeEventKind.REBOOTED, evidence=f"Boot id {node.boot_id}."))
    writes = record_observed_aftermath.aftermath_writes(incident, events, context.ledger, context.now) if events else []
    if writes:
        with contextlib.suppress(Conflict):  # the next sweep records it
            context.ledger.commit(*writes)


def _cordon_event(incident: Incident, node: KubernetesNode, sweep: SweepRun) -> NodeEvent:
    """Return the cordon of a node. Only a cordon through Evenkeel has a known author and time."""
    person = manual_cordons.load_manual_cordons(sweep.context.ledger).get(incident.life.key)
    if person is not None:
        text = f"{person.by}: {person.reason}"
        return NodeEvent(at=person.at, kind=NodeEventKind.CORDONED, actor=Actor.PERSON, evidence=text)
    actor = Actor.PERSON if is_manual_cordon(node) else Actor.CONTROLLER
    return NodeEvent(at=sweep.context.now, kind=NodeEventKind.CORDONED, actor=actor, evidence=_SWEEP_NOTE)


def _continue_incident(sweep: SweepRun, row: Row, node: UnhealthyNode, earlier_incident: Incident, reason: str) -> bool:
    """Open an incident that continues a settled incident, and start its recovery.

    Return False if a signal opened an incident first.
    """
    context, now = sweep.context, sweep.context.now
    resumed = resumed_incident(earlier_incident, node, incident_id=context.ids.new("inc"), now=now)
    slot_now = context.ledger.get(incident_rows.slot_key(resumed.slot))
    try:
        context.ledger.commit(
            Delete(row.key, row.version),
            Put(incident_rows.open_row(resumed.life, resumed.incident_id), first_version=milliseconds(now)),
            Put(incident_rows.incident_row(resumed, 0)),
            Put(incident_rows.slot_row(resumed, slot_now.version if slot_now else 0, now)),
            incident_store.timeline_put(
                resumed.incident_id,
                "resumed",
                f"Continues {earlier_incident.incident_id}. {reason}",
                at=now,
                writer=WRITER,
            ),
            incident_store.timeline_put(
                earlier_incident.incident_id,
                "resumed",
                f"{resumed.incident_id} continues this. {reason}",
                at=now,
                writer=WRITER,
            ),
        )
    except Conflict:
        return False  # a signal opened an incident at this moment
    context.telemetry.count("RecoveriesResumed")
    context.telemetry.info(
        "RecoveryResumed", incidentId=resumed.incident_id, resumes=earlier_incident.incident_id, reason=reason
    )
    record_node_fact.start_recovery(resumed, context.workflows)
    return True
