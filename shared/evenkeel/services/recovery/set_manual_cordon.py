"""A person cordons or uncordons a node. No hold, guardrail or mode blocks an uncordon.

The request is recorded before the node changes. So a repeat after a crash knows that the change of the node is its own,
and completes the records.
"""

import contextlib
from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.nodes import FleetNode, KubernetesNode
from evenkeel.domain.recovery import operator_effects
from evenkeel.domain.recovery.manual_cordons import ManualCordon
from evenkeel.domain.recovery.unhealthy_nodes import UnhealthyNode
from evenkeel.domain.timeline import TimelineEntry
from evenkeel.domain.values import Value, rfc3339
from evenkeel.ports import ClusterCordonResult, Conflict, KeyReused, NotFound, Put, Refused, UncordonResult, Write
from evenkeel.services.context import Context
from evenkeel.services.recovery import manual_cordons
from evenkeel.services.storage import guardrail_registers, incident_store, known_names
from evenkeel.services.storage.guardrail_registers import RegisterName
from evenkeel.services.storage.retries import until_committed
from evenkeel.services.tables import fleet_rows, incident_rows, rows

Json = dict[str, Any]


class SetManualCordonRequest(Value):
    """A request of a person: the node and the reason."""

    instance_id: str
    by: str
    reason: str
    request_id: str
    fingerprint: str
    """Digest of the whole request. The same id with another digest is refused."""


class BegunRequest(NamedTuple):
    """A recorded request. An earlier try may have carried it out."""

    at: datetime
    """When the first try began. It is the time of its records, so that a repeat writes the same rows."""
    is_repeat: bool
    was_cordoned: bool
    """Whether the node was cordoned when the first try began."""
    incident_id: str
    """Incident whose cordon that was; empty if none."""


class ManualCordonOutcome(StrEnum):
    """The state of the node after the request."""

    CORDONED = "CORDONED"
    RELEASED = "RELEASED"
    ALREADY_FREE = "ALREADY_FREE"


class SetManualCordonResult(Value):
    """The outcome for the node."""

    outcome: ManualCordonOutcome
    instance_id: str
    node_name: str
    incident_id: str = ""
    """Incident whose cordon was removed; empty if a person set it."""


class CordonedOutsideEvenkeel(Refused):
    """A person set this cordon outside Evenkeel. Only that person knows the reason, and can remove it."""

    code = "CORDONED_BY_PERSON"


class CordonedByRecovery(Refused):
    """A recovery set this cordon, and removes it itself. A person's cordon cannot exist beside it."""

    code = "CORDONED_BY_RECOVERY"


def cordon_as_person(request: SetManualCordonRequest, context: Context) -> SetManualCordonResult:
    """Cordon a node as a person: without Evenkeel's annotation, so that no recovery removes the cordon.

    The author and the reason are recorded first, because a node object has no fields for them. `uncordon_as_person`
    removes only recorded cordons. Idempotent: yes. If a person cordoned the node already, that is success and the
    first author stays.

    Raises:
        NotFound: the fleet does not know the node, or the node has not joined its cluster.
        CordonedByRecovery: a recovery cordoned the node, and would remove the cordon.
        KeyReused: the request id was used for another request.
    """
    node = _find_node(request.instance_id, context)
    begun = _record_request(request, node, context)
    own_record = ManualCordon(life_key=node.life.key, by=request.by, reason=request.reason, at=begun.at)
    earlier_record = manual_cordons.record_first_cordon(context.ledger, own_record)
    result = context.cluster.cordon(node.life.cluster, node.node_name, None)
    if result is ClusterCordonResult.CORDONED:
        # An earlier record is of a cordon that has been removed. Or a person has uncordoned since the record.
        manual_cordons.record_cordon(context.ledger, own_record)
    elif earlier_record is None or result is not ClusterCordonResult.BY_PERSON:
        manual_cordons.delete_record(context.ledger, earlier_record or own_record)
    if result in (ClusterCordonResult.BY_OTHER_INCIDENT, ClusterCordonResult.ALREADY_CORDONED):
        kubernetes = context.cluster.node(node.life.cluster, node.node_name)
        raise _cordoned_by_recovery(node, (kubernetes.incident_id if kubernetes else None) or "a recovery")
    if result is ClusterCordonResult.GONE:
        raise _node_gone(node)
    if result is ClusterCordonResult.CORDONED or (begun.is_repeat and not begun.was_cordoned):
        _record_manual_cordon_event(request, f"{request.by} cordoned {node.node_name}", "cordoned", begun.at, context)
    return SetManualCordonResult(
        outcome=ManualCordonOutcome.CORDONED, instance_id=request.instance_id, node_name=node.node_name
    )


def uncordon_as_person(request: SetManualCordonRequest, context: Context) -> SetManualCordonResult:
    """Remove Evenkeel's cordon from a node, with the taint of its validation. A recovery of the node stands down.

    Cordons of `cordon_as_person` are removed, too. Idempotent: yes, a node without a cordon is success.

    Raises:
        NotFound: the fleet does not know the node, or the node has not joined its cluster.
        NotOurs: a person cordoned the node outside Evenkeel.
        KeyReused: the request id was used for another request.
    """
    node = _find_node(request.instance_id, context)
    begun = _record_request(request, node, context)
    incident_id = begun.incident_id
    result = context.cluster.return_to_service(node.life.cluster, node.node_name, incident_id or None)
    if result is UncordonResult.GONE:
        raise _node_gone(node)
    if result is UncordonResult.CORDONED_BY_OTHER:
        result = _remove_recorded_cordon(node, context)
    if result is UncordonResult.CORDONED_BY_OTHER:
        raise _cordoned_outside(node)
    if result is UncordonResult.RELEASED or (begun.is_repeat and begun.was_cordoned):
        _record_manual_cordon_event(
            request, f"{request.by} uncordoned {node.node_name}", "uncordoned", begun.at, context
        )
    _record_on_incident(request, node, incident_id, begun.at, context)
    _record_trust(node, request.by, incident_id, context)
    return SetManualCordonResult(
        outcome=ManualCordonOutcome(result),
        instance_id=request.instance_id,
        node_name=node.node_name,
        incident_id=incident_id,
    )


def _remove_recorded_cordon(node: FleetNode, context: Context) -> UncordonResult:
    """Remove the cordon of a node if a person set it through Evenkeel, then its record.

    The sweep deletes a record whose cordon is gone. Here a person may just be setting the cordon of such a record.
    """
    record = manual_cordons.load_manual_cordons(context.ledger).get(node.life.key)
    if record is None:
        kubernetes = context.cluster.node(node.life.cluster, node.node_name)
        is_cordoned = kubernetes is not None and kubernetes.is_cordoned
        return UncordonResult.CORDONED_BY_OTHER if is_cordoned else UncordonResult.ALREADY_FREE
    result = context.cluster.remove_manual_cordon(node.life.cluster, node.node_name)
    if result is UncordonResult.RELEASED:
        manual_cordons.delete_record(context.ledger, record)
    return result


def plan_cordon(instance_id: str, context: Context) -> Json:
    """Return the plan of `cordon_as_person`. It is refused where the cordon would be refused. Changes nothing.

    Raises:
        NotFound: the fleet does not know the node, or the node has not joined its cluster.
        CordonedByRecovery: a recovery cordoned the node, and would remove the cordon.
    """
    node, kubernetes = _read_present_node(instance_id, context)
    if kubernetes.is_cordoned and kubernetes.incident_id:
        raise _cordoned_by_recovery(node, kubernetes.incident_id)
    return _plan_document("cordon", node, operator_effects.cordon_effects(node, is_cordoned=kubernetes.is_cordoned))


def plan_uncordon(instance_id: str, context: Context) -> Json:
    """Return the plan of `uncordon_as_person`. It is refused where the uncordon would be refused. Changes nothing.

    Raises:
        NotFound: the fleet does not know the node, or the node has not joined its cluster.
        CordonedOutsideEvenkeel: a person cordoned the node outside Evenkeel.
    """
    node, kubernetes = _read_present_node(instance_id, context)
    manual_cordon = manual_cordons.load_manual_cordons(context.ledger).get(node.life.key)
    if kubernetes.is_cordoned and not kubernetes.incident_id and manual_cordon is None:
        raise _cordoned_outside(node)
    effects = operator_effects.uncordon_effects(
        node,
        is_cordoned=kubernetes.is_cordoned,
        incident_id=kubernetes.incident_id or "",
        manual_cordon=manual_cordon,
    )
    return _plan_document("uncordon", node, effects)


def _read_present_node(instance_id: str, context: Context) -> tuple[FleetNode, KubernetesNode]:
    node = _find_node(instance_id, context)
    kubernetes = context.cluster.node(node.life.cluster, node.node_name)
    if kubernetes is None:
        raise _node_gone(node)
    return node, kubernetes


def _plan_document(change: str, node: FleetNode, effects: tuple[str, ...]) -> Json:
    return {
        "instanceId": node.life.instance_id,
        "dryRun": True,
        "change": change,
        "nodeName": node.node_name,
        "effects": list(effects),
    }


def _node_gone(node: FleetNode) -> NotFound:
    return NotFound(f"{node.node_name} is gone from {node.life.cluster}.")


def _cordoned_by_recovery(node: FleetNode, whose: str) -> CordonedByRecovery:
    instance_id = node.life.instance_id
    return CordonedByRecovery(
        f"The cordon of {node.node_name} belongs to {whose}, which removes it at its end. "
        f"To keep the node cordoned, end that recovery first: evenkeel nodes uncordon {instance_id}, "
        f"then evenkeel nodes cordon {instance_id}."
    )


def _cordoned_outside(node: FleetNode) -> CordonedOutsideEvenkeel:
    return CordonedOutsideEvenkeel(
        f"{node.node_name} was cordoned by a person or another program, not through Evenkeel. "
        f"To remove that cordon: kubectl uncordon {node.node_name}."
    )


def _record_trust(node: FleetNode, by: str, incident_id: str, context: Context) -> None:
    """Record that a person declares a node healthy, although an incident or a fault mark says that it is not.

    An incident that ends at this moment may record that it leaves the node unhealthy. The person's answer counts.
    """

    def commit_once() -> None:
        row = context.ledger.get(incident_rows.unhealthy_key(node.life))
        if row is None and not node.marks and not incident_id:
            return
        reason = f"{by} reports that the node is healthy."
        unhealthy_node = (
            rows.decode(row, UnhealthyNode)
            if row
            else UnhealthyNode(life=node.life, incident_id=incident_id, since=context.now, reason=reason)
        )
        trusted_node = unhealthy_node.replace(trusted_by=by, trusted_at=context.now)
        context.ledger.commit(Put(incident_rows.unhealthy_row(trusted_node, row.version if row else 0)))

    until_committed(commit_once, f"the record of {node.life.key} as unhealthy changed on every try")


def _find_node(instance_id: str, context: Context) -> FleetNode:
    for name in context.site.clusters:
        row = context.ledger.get(fleet_rows.node_key(name, instance_id))
        node = rows.decode(row, FleetNode) if row else None
        if node is not None and node.node_name:
            return node
    raise known_names.unknown_node_error(instance_id, context.ledger)


def _record_request(request: SetManualCordonRequest, node: FleetNode, context: Context) -> BegunRequest:
    """Record a request, and the cordon of the node before it, unless an earlier try did.

    Raises:
        KeyReused: the request id was used for another request.
    """
    key = fleet_rows.automation_request_key(request.request_id)

    def begin() -> BegunRequest:
        earlier = context.ledger.get(key)
        if earlier is not None and (earlier.expires_at is None or earlier.expires_at > context.now):
            if earlier.doc["fingerprint"] != request.fingerprint:
                raise KeyReused("This idempotency key was used for a different request. Use a new key.")
            begun = earlier.doc
            return BegunRequest(
                datetime.fromisoformat(begun["begunAt"]), True, begun["wasCordoned"], begun["incidentId"]
            )
        kubernetes = context.cluster.node(node.life.cluster, node.node_name)
        was_cordoned = kubernetes is not None and kubernetes.is_cordoned
        incident_id = (kubernetes.incident_id or "") if kubernetes else ""
        document = {
            "fingerprint": request.fingerprint,
            "begunAt": rfc3339(context.now),
            "wasCordoned": was_cordoned,
            "incidentId": incident_id,
        }
        fresh = fleet_rows.automation_request_row(request.request_id, document, context.now)
        context.ledger.commit(Put(replace(fresh, version=earlier.version if earlier else 0)))
        return BegunRequest(context.now, False, was_cordoned, incident_id)

    return until_committed(begin, f"request {request.request_id} changed on every try")


def _record_manual_cordon_event(
    request: SetManualCordonRequest, text: str, kind: str, at: datetime, context: Context
) -> None:
    """Record the act. Idempotent: yes, a repeat has the same key."""
    reason = f": {request.reason}" if request.reason else "."
    entry = TimelineEntry(at=at, kind=kind, text=f"{text}{reason}", writer=request.by)
    with contextlib.suppress(Conflict):
        context.ledger.commit(Put(fleet_rows.automation_event_row(entry, request.request_id)))


def _record_on_incident(
    request: SetManualCordonRequest, node: FleetNode, incident_id: str, at: datetime, context: Context
) -> None:
    """Remove the node from the register of cordons, and write the incident's timeline, in one commit.

    If this is lost, the sweep removes the node from the register.
    """
    if not incident_id:
        return

    def change(current: Incident) -> tuple[Incident, list[Write]] | None:
        text = f"{request.by} uncordoned {node.node_name}" + (f": {request.reason}" if request.reason else ".")
        line = incident_store.timeline_put(current.incident_id, "uncordoned", text, at=at, writer=request.by)
        leaves = guardrail_registers.removal_writes(
            RegisterName.CORDONS, context, node.life.key, is_drill=current.is_drill
        )
        return current, [*leaves, line]

    try:
        incident_store.update_incident(context.ledger, incident_id, change)
    except (NotFound, Conflict):
        return  # the cordon is removed, as requested
