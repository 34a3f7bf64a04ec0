"""Nodes that wait for their validation without an incident."""

import contextlib

from evenkeel.domain.decisions import Decision
from evenkeel.domain.nodes import Node
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.recovery.node_slot import ObservedNode
from evenkeel.domain.recovery.validation import Validity, expected_accelerators, judge_node
from evenkeel.ports import Conflict, Put, UncordonResult
from evenkeel.services.sweep.sweep_run import SweepRun
from evenkeel.services.tables import incident_rows, subject_rows


def return_new_nodes(sweep: SweepRun) -> int:
    """Return nodes to service that wait for their validation without an incident.

    These are nodes after their first boot, and nodes that came back after their incident was settled. In any mode but
    `act` the same is decided and recorded, and the taint stays.
    """
    released_count = 0
    for node in sweep.nodes:
        kubernetes_node = node.kubernetes
        if (
            kubernetes_node is None
            or not kubernetes_node.is_awaiting_validation
            or kubernetes_node.is_cordoned
            or _is_in_repair(sweep, node)
        ):
            continue
        peers = [peer for peer in sweep.kubernetes if peer.name != kubernetes_node.name]
        observed_node = ObservedNode(provider_node=node.provider, node=kubernetes_node)
        expected_count = expected_accelerators(kubernetes_node.instance_type, peers)
        verdict = judge_node(observed_node, expected_count=expected_count)
        if not verdict.is_valid or sweep.context.ledger.get(incident_rows.open_key(node.life)):
            continue
        _record_return(sweep, node, observed_node, expected_count, verdict)
        if sweep.context.mode is Mode.ACT:
            with sweep.isolate_item(kubernetes_node.name):
                result = sweep.context.cluster.return_to_service(kubernetes_node.cluster, kubernetes_node.name, None)
                released_count += result is UncordonResult.RELEASED
    if released_count:
        sweep.context.cycle_requests.request("nodes arrived")
        sweep.context.telemetry.count("NodesValidated", released_count)
    return 0


def _is_in_repair(sweep: SweepRun, node: Node) -> bool:
    """Whether an open incident waits for this node.

    Such an incident validates the node itself. An incident that this run did not read may wait for it, too.
    """
    incidents = sweep.open_incidents
    if sweep.hides_incidents:
        return True
    for incident in incidents:
        has_no_slot = incident.slot == incident.life.key
        if incident.slot == node.slot or (has_no_slot and incident.pool == node.pool):
            return True
    return False


def _record_return(
    sweep: SweepRun, node: Node, observed_node: ObservedNode, expected_count: int, verdict: Validity
) -> None:
    assert node.kubernetes
    boot = node.kubernetes.boot_id or "first"
    decision_record = Decision(
        # Each boot and mode has a single decision, although each sweep decides the same.
        decision_id=f"dec-{node.life.instance_id}-{boot}-{sweep.context.mode}",
        kind="VALIDATION",
        subject=node.life.key,
        action="RELEASE",
        reason=verdict.reason,
        facts={"observed": observed_node.to_json(), "expected": expected_count},
        policy_hash=sweep.context.policy.hash,
        mode=sweep.context.mode,
        decided_at=sweep.context.now,
    )
    with contextlib.suppress(Conflict):  # recorded before
        sweep.context.ledger.commit(Put(subject_rows.decision_row(decision_record)))
