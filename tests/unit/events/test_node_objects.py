"""Node objects from an API server, parsed into facts about their machines."""

from typing import Any

from evenkeel.adapters.node_objects import read_node
from evenkeel.domain.health.health_policy import WatchPolicy
from evenkeel.domain.nodes import INCIDENT_ANNOTATION
from evenkeel.events.kubernetes_node import node_facts
from evenkeel.services.tables import incident_rows
from tests.fakes.system import A_MOMENT

SAGEMAKER = "sagemaker.amazonaws.com"
XID = "NVRM: Xid (PCI:0000:b9:00): 79, GPU has fallen off the bus."


def an_object(*conditions: dict[str, Any], **annotations: str) -> dict[str, Any]:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-01T00:00:00Z"}
    return {
        "metadata": {
            "name": "hyperpod-i-0a1c4f7b92d36e581",
            "labels": {f"{SAGEMAKER}/fault-types": "NvidiaErrorReboot"} if annotations else {},
            "annotations": {f"{SAGEMAKER}/{name.replace('_', '-')}": text for name, text in annotations.items()},
        },
        "spec": {"providerID": "aws:///us-west-2a/sagemaker/cluster/hyperpod-k3v9x2m7q1ab-i-0a1c4f7b92d36e581"},
        "status": {"conditions": [ready, *conditions]},
    }


def facts_of_object(node: dict[str, Any]) -> list[str]:
    return [fact.fault_key for fact in node_facts(read_node("eks", node), WatchPolicy(), A_MOMENT)]


def a_condition(**changes: Any) -> dict[str, Any]:
    return {
        "type": "AcceleratedHardwareReady",
        "status": "False",
        "reason": "NvidiaXID79Error",
        "lastHeartbeatTime": "2026-11-03T10:15:00Z",
        "lastTransitionTime": "2026-11-03T10:00:00Z",
        **changes,
    }


def test_agent_condition_is_read_without_its_heartbeat() -> None:
    first, later = an_object(a_condition()), an_object(a_condition(lastHeartbeatTime="2026-11-03T10:20:00Z"))

    assert facts_of_object(first) == ["xid:79"]
    assert read_node("eks", first) == read_node("eks", later)


def test_kubelet_conditions_are_left_out() -> None:
    pressure = {"type": "MemoryPressure", "status": "True", "lastTransitionTime": "2026-11-03T10:00:00Z"}

    assert read_node("eks", an_object(pressure)).conditions == ()


def test_condition_without_a_time_does_not_hide_other_conditions() -> None:
    untimed_conditions = [a_condition(lastTransitionTime=time) for time in ("soon", None, "2026-11-03T10:00:00")]
    valid_condition = a_condition(type="StorageReady", reason="BlockDeviceIOError")

    assert facts_of_object(an_object(*untimed_conditions, valid_condition)) == ["eks:BlockDeviceIOError"]


def test_fault_annotation_is_read_in_both_spellings() -> None:
    details = (
        f'[{{"timestamp": "2026-11-03T10:14:00Z", "type": "NvidiaErrorReboot", "reason": "", "message": "{XID}"}}]'
    )

    expected = ["hp:NvidiaErrorReboot", "xid:79"]
    assert (
        facts_of_object(an_object(fault_details=details))
        == facts_of_object(an_object(fault_detail=details))
        == expected
    )


def test_long_texts_on_a_node_are_shortened_for_the_ledger() -> None:
    long = "x" * 300_000
    node = an_object(a_condition(reason=long, message=long), node_health=long)
    node["spec"]["unschedulable"] = True
    node["metadata"]["annotations"][INCIDENT_ANNOTATION] = long
    node["status"]["nodeInfo"] = {"bootID": long}

    kubernetes_node = read_node("eks", node)
    facts = node_facts(kubernetes_node, WatchPolicy(), A_MOMENT)

    assert facts
    assert all(len(fact.fact_key) < 1024 for fact in facts)
    assert len(incident_rows.incident_key(kubernetes_node.incident_id or "").pk) < 1024
    assert len(kubernetes_node.boot_id) + sum(len(condition.reason) for condition in kubernetes_node.conditions) <= 256
