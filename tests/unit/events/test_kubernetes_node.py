"""Facts about machines in Kubernetes node objects."""

import json
from datetime import UTC, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.domain.health.faults import default_catalogue
from evenkeel.domain.health.group_facts import GroupFact, GroupFactKind
from evenkeel.domain.health.health_policy import WatchPolicy
from evenkeel.domain.health.incidents import NodeFact
from evenkeel.domain.nodes import KubernetesNode, NodeCondition
from evenkeel.events.kubernetes_node import node_facts, stale_conditions
from tests.fakes import a_node
from tests.fakes.system import A_MOMENT

POLICY = WatchPolicy(not_ready_seconds=300, first_boot_grace_seconds=1800)
PREFIX = "sagemaker.amazonaws.com/"


def facts(node: KubernetesNode, seconds: float = 0) -> tuple[NodeFact, ...]:
    return node_facts(node, POLICY, A_MOMENT + timedelta(seconds=seconds))


def fault_keys(node: KubernetesNode, seconds: float = 0) -> list[str]:
    return [fact.fault_key for fact in facts(node, seconds)]


def a_not_ready_node(**changes: Any) -> KubernetesNode:
    return a_node(is_ready=False, not_ready_since=A_MOMENT, **changes)


def a_marked_node(*details: dict[str, Any], types: str = "NvidiaErrorReboot", **changes: Any) -> KubernetesNode:
    labels = {f"{PREFIX}fault-types": types, f"{PREFIX}node-health-status": "UnschedulablePendingReboot"}
    return a_node(labels=labels, fault_details=json.dumps(details) if details else "", **changes)


def a_fault_detail(message: str = "", **changes: Any) -> dict[str, Any]:
    facts = {"timestamp": "2026-11-03T10:14:00Z", "type": "NvidiaErrorReboot", "reason": "XidHardwareFailure"}
    return {**facts, "message": message, **changes}


def test_healthy_node_gives_no_fact() -> None:
    assert facts(a_node()) == ()


def test_not_ready_node_gives_a_fact_only_after_the_limit() -> None:
    assert fault_keys(a_not_ready_node(), 299) == []
    assert fault_keys(a_not_ready_node(), 300) == ["node:not_ready"]


def test_node_that_stays_not_ready_is_one_fact() -> None:
    [early_fact], [late_fact] = facts(a_not_ready_node(), 300), facts(a_not_ready_node(), 900)

    assert early_fact.fact_key == late_fact.fact_key
    assert early_fact.observed_at == A_MOMENT


def test_node_that_goes_not_ready_twice_gives_two_facts() -> None:
    again = a_not_ready_node().replace(not_ready_since=A_MOMENT + timedelta(seconds=20))

    [first], [second] = facts(a_not_ready_node(), 600), facts(again, 600)
    assert first.fact_key != second.fact_key


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (a_not_ready_node(created_at=A_MOMENT - timedelta(seconds=2)), []),
        (a_not_ready_node(created_at=A_MOMENT - timedelta(seconds=60), is_awaiting_validation=True), []),
        (a_not_ready_node(created_at=A_MOMENT - timedelta(seconds=60)), ["node:not_ready"]),
        (a_not_ready_node(created_at=A_MOMENT - timedelta(hours=2), is_awaiting_validation=True), ["node:not_ready"]),
    ],
    ids=["never Ready yet", "not in service yet", "was Ready before", "boots for too long"],
)
def test_node_not_ready_during_its_first_boot_has_no_fault(node: KubernetesNode, expected: list[str]) -> None:
    assert expected == fault_keys(node, 600)


def test_node_without_instance_id_is_skipped() -> None:
    assert facts(a_not_ready_node(instance_id=None), 900) == ()


def test_xid_in_the_annotation_refines_the_fault_type() -> None:
    node = a_marked_node(a_fault_detail("NVRM: Xid (PCI:0000:b9:00): 79, pid=1234, GPU has fallen off the bus."))

    assert fault_keys(node) == ["hp:NvidiaErrorReboot", "xid:79"]
    assert facts(node)[1].observed_at.isoformat() == "2026-11-03T10:14:00+00:00"


@pytest.mark.parametrize(
    ("message", "key"),
    [
        ("NVRM: Xid (PCI:0000:b9:00): 48, DBE", "xid:48"),
        ("NVRM: Xid (PCI:0000:b9:00): 9999, new", "xid:*"),
        ("Xid (PCI:0000:b9:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 04", "xid:149/fatal"),
        ("Xid (PCI:0000:b9:00): 149, NETIR_LINK_EVT Non-fatal XC0 i0 Link 04", "xid:149/nonfatal"),
        (
            "Xid (PCI:0000:b9:00): 154, GPU recovery action changed: Node Reboot Required",
            "xid:154/node_reboot_required",
        ),
        ("Xid (PCI:0000:b9:00): 154, GPU recovery action changed: None", "xid:154/none"),
    ],
)
def test_driver_log_line_in_the_annotation_names_the_fault(message: str, key: str) -> None:
    assert key in fault_keys(a_marked_node(a_fault_detail(message)))


@pytest.mark.parametrize("message", ["Xid (PCI:0000:b9:00): 45, cleanup", "no code", "XidHardwareFailure"])
def test_cleanup_code_in_the_annotation_does_not_refine_the_fault(message: str) -> None:
    assert fault_keys(a_marked_node(a_fault_detail(message))) == ["hp:NvidiaErrorReboot"]


@pytest.mark.parametrize("message", ["Xid (PCI:xyz): 79", "Xid: 79"])
def test_xid_line_of_unknown_format_is_unparsed(message: str) -> None:
    [_, fact] = facts(a_marked_node(a_fault_detail(message)))

    assert (fact.fault_key, fact.code) == ("xid:*", "xid_unparsed")


def test_fault_label_without_a_time_counts_once_per_boot() -> None:
    [first], [later_fact] = facts(a_marked_node(), 0), facts(a_marked_node(), 4000)
    [other_boot_fact] = facts(a_marked_node(boot_id="another-boot"), 0)

    assert first.fact_key == later_fact.fact_key
    assert first.fact_key != other_boot_fact.fact_key


def test_fault_annotation_of_a_schedulable_node_is_ignored() -> None:
    details = json.dumps([a_fault_detail("NVRM: Xid (PCI:0000:b9:00): 79, gone")])

    assert facts(a_node(fault_details=details, labels={f"{PREFIX}node-health-status": "Schedulable"})) == ()


def test_pending_repair_label_and_failed_deep_check_give_faults() -> None:
    pending = a_node(labels={f"{PREFIX}node-health-status": "UnschedulablePendingReplacement"})
    checked = a_node(labels={f"{PREFIX}deep-health-check-status": "Failed"})

    assert fault_keys(pending) == ["hp:pending_replacement_label"]
    assert fault_keys(checked) == ["hp:deep_health_check_failed"]


@pytest.mark.parametrize(
    "details",
    [
        "not json",
        "{}",
        "[" * 5000,
        json.dumps([1, None, "x", {"timestamp": 5}, {"timestamp": "soon", "type": "T"}, {"timestamp": True}]),
        json.dumps([{"timestamp": "2026-11-03T10:14:00", "type": "NaiveTime"}]),
        json.dumps([a_fault_detail("x" * 70_000)]),
        json.dumps([a_fault_detail(timestamp=10**400)]),
    ],
)
def test_fault_labels_are_read_if_the_annotation_is_unreadable(details: str) -> None:
    assert fault_keys(a_marked_node().replace(fault_details=details)) == ["hp:NvidiaErrorReboot"]


def test_fault_annotation_in_epoch_milliseconds_with_bad_names_is_read() -> None:
    stamped = a_marked_node(
        a_fault_detail(timestamp=1793700840000, type="bad name!", reason="XidUserAppError"), types=""
    )
    stamped = stamped.replace(labels={**stamped.labels, f"{PREFIX}fault-types": "NvidiaErrorReboot"})

    assert fault_keys(stamped) == ["hp:NvidiaErrorReboot"]


def test_fault_is_read_from_an_old_label_or_reason_label() -> None:
    with_old_label = a_node(labels={f"{PREFIX}fault-type": "NvidiaErrorTerminate"})
    with_reason_label = a_node(labels={f"{PREFIX}fault-reason": "XidUserAppError"})

    assert (fault_keys(with_old_label), fault_keys(with_reason_label)) == (
        ["hp:NvidiaErrorTerminate"],
        ["hp:XidUserAppError"],
    )


def test_pending_repair_is_read_from_the_taint() -> None:
    node = a_node(taints=(f"{PREFIX}node-health-status=UnschedulablePendingReplacement:NoSchedule",))

    assert fault_keys(node) == ["hp:pending_replacement_label"]


def test_deep_check_in_progress_is_no_fault() -> None:
    labels = {f"{PREFIX}node-health-status": "Unschedulable", f"{PREFIX}deep-health-check-status": "InProgress"}

    assert facts(a_node(labels=labels, taints=(f"{PREFIX}node-health-status=Unschedulable:NoSchedule",))) == ()


def test_one_code_of_two_devices_gives_two_facts() -> None:
    node = a_marked_node(a_fault_detail("Xid (PCI:0000:b9:00): 79, x"), a_fault_detail("Xid (PCI:0000:ba:00): 79, x"))

    node_facts = [fact for fact in facts(node) if fact.fault_key == "xid:79"]
    assert [fact.gpu for fact in node_facts] == ["0000:b9:00", "0000:ba:00"]
    assert len({fact.fact_key for fact in node_facts}) == 2


# ---------------------------------------------------------------- conditions


def a_condition(kind: str, status: str, reason: str = "", seconds: float = 0, message: str = "") -> NodeCondition:
    at = A_MOMENT + timedelta(seconds=seconds)
    return NodeCondition(type=kind, status=status, reason=reason, message=message, changed_at=at)


def facts_of_node(node: KubernetesNode, seconds: float = 1) -> list[tuple[str, str, str]]:
    return [(fact.kind, fact.source, fact.fault_key) for fact in facts(node, seconds)]


GPU = "AcceleratedHardwareReady"


def test_eks_condition_is_a_fact_from_its_first_transition() -> None:
    node = a_node(conditions=(a_condition(GPU, "False", "NvidiaXID79Error", -90),))

    [fact] = facts(node)

    assert (fact.source, fact.fault_key, fact.code) == ("eks.node-conditions", "xid:79", "79")
    assert fact.observed_at == A_MOMENT - timedelta(seconds=90)


def test_condition_with_another_reason_is_another_fact() -> None:
    [first] = facts(a_node(conditions=(a_condition(GPU, "False", "NvidiaXID79Error", -90),)))
    [second] = facts(a_node(conditions=(a_condition(GPU, "False", "NvidiaDoubleBitError", -10),)))

    assert first.fact_key != second.fact_key
    assert min(first.observed_at, second.observed_at) == first.observed_at


@pytest.mark.parametrize("status", ["Unknown", ""])
def test_condition_with_status_unknown_is_ignored(status: str) -> None:
    assert facts(a_node(conditions=(a_condition(GPU, status, "AgentGone"),))) == ()


@pytest.mark.parametrize("kind", ["KernelDeadlock", "Custom", "Ready"])
def test_condition_of_another_agent_is_ignored(kind: str) -> None:
    node = a_node(conditions=(a_condition(kind, "True", "Whatever"), a_condition(kind, "False", "NvidiaXID79Error")))

    assert facts(node) == ()


def test_node_with_only_healthy_conditions_has_recovered() -> None:
    node = a_node(conditions=(a_condition(GPU, "True", "Ready", 0), a_condition("StorageReady", "True", "Ready", -9e6)))

    assert facts_of_node(node) == [("RECOVERED", "eks.node-conditions", "")]
    assert facts_of_node(node, 601) == []


def test_node_with_one_unhealthy_condition_has_not_recovered() -> None:
    node = a_node(
        conditions=(
            a_condition(GPU, "True", "Ready", 0),
            a_condition("StorageReady", "False", "BlockDeviceIOError", -5),
        )
    )

    assert facts_of_node(node) == [("FAULT", "eks.node-conditions", "eks:BlockDeviceIOError")]


def test_stale_condition_is_reported_and_ignored() -> None:
    node = a_node(conditions=(a_condition(GPU, "False", "NvidiaXID79Error", -172_801),))

    assert facts(node) == ()
    assert stale_conditions(node, POLICY, A_MOMENT) == (GPU,)
    assert stale_conditions(a_node(conditions=(a_condition(GPU, "True", "", -172_801),)), POLICY, A_MOMENT) == ()


def test_hyperpod_condition_counts_without_its_labels() -> None:
    faulty = a_condition("NvidiaErrorReboot", "True", "XidHardwareFailure", -3)

    assert facts_of_node(a_node(conditions=(faulty,))) == [("FAULT", "hyperpod.node-labels", "hp:NvidiaErrorReboot")]
    assert fault_keys(a_marked_node(a_fault_detail()).replace(conditions=(faulty,)), 1) == ["hp:NvidiaErrorReboot"]


def test_hyperpod_condition_recovers_once_the_labels_are_gone() -> None:
    well = (a_condition("NvidiaErrorReboot", "False", "Recovered"),)

    assert facts_of_node(a_node(conditions=well)) == [("RECOVERED", "hyperpod.node-labels", "")]
    assert ("RECOVERED", "hyperpod.node-labels", "") not in facts_of_node(a_marked_node().replace(conditions=well))


# ---------------------------------------------------------------- arbitrary input


TEXT = st.text(max_size=60) | st.sampled_from(
    ["NvidiaErrorReboot", "NvidiaXID79Error", "Xid (PCI:0000:b9:00): 79, x", "True", "False", GPU, "\ud800", "\u202e"]
)
ENTRY = st.dictionaries(
    st.sampled_from(["timestamp", "type", "reason", "message"]),
    TEXT | st.none() | st.integers() | st.floats() | st.just("2026-11-03T10:14:00Z") | st.lists(TEXT, max_size=2),
)
DETAILS = st.text(max_size=200) | st.lists(ENTRY | TEXT, max_size=12).map(json.dumps)
CONDITION = st.builds(
    NodeCondition,
    type=TEXT,
    status=TEXT,
    reason=TEXT,
    message=TEXT,
    changed_at=st.none() | st.datetimes(timezones=st.just(UTC)),
)
LABELS = st.dictionaries(
    st.sampled_from([f"{PREFIX}{name}" for name in ("fault-types", "fault-reason", "node-health-status")]), TEXT
)


@given(details=DETAILS, conditions=st.lists(CONDITION, max_size=4), labels=LABELS)
def test_facts_of_any_agent_text_can_be_stored(
    details: str, conditions: list[NodeCondition], labels: dict[str, str]
) -> None:
    node = a_node(fault_details=details, conditions=conditions, labels=labels)

    node_facts = facts(node)

    assert node_facts == facts(node)
    assert {fact.fault_key for fact in node_facts if fact.kind == "FAULT"} <= default_catalogue().keys()
    for fact in node_facts:
        fact.model_dump_json().encode("utf-8")
        assert fact.fact_key.isprintable()


# ---------------------------------------------------------------- reservations


def test_node_of_an_ending_reservation_has_a_deadline() -> None:
    ends_at = A_MOMENT + timedelta(minutes=40)
    node = a_node(labels={"karpenter.k8s.aws/capacity-reservation-id": "cr-06b1d8f3a7c24e905"})
    group_fact = GroupFact(
        kind=GroupFactKind.RESERVATION_EXPIRING,
        source="ec2.notice",
        code="cr-06b1d8f3a7c24e905",
        deadline_at=ends_at,
        observed_at=A_MOMENT,
        envelope_id="one",
    )

    [fact] = node_facts(node, POLICY, A_MOMENT, {group_fact.code: group_fact})
    [later] = node_facts(node, POLICY, A_MOMENT + timedelta(minutes=5), {group_fact.code: group_fact})
    [drill] = node_facts(node, POLICY, A_MOMENT, {group_fact.code: group_fact.replace(is_drill=True)})

    assert (fact.fault_key, fact.deadline_at) == ("ec2:capacity_block_expiring", ends_at)
    assert fact.fact_key == later.fact_key
    assert (fact.is_drill, drill.is_drill) == (False, True)
    assert drill.fact_key != fact.fact_key
    assert node_facts(node, POLICY, A_MOMENT, {"cr-00000000000000000": group_fact}) == ()


# ---------------------------------------------------------------- NVSentinel's conditions

XID_79 = (
    "ErrorCode:79 PCI:0000:ef:00 GPU_UUID:GPU-b5f21324 MESSAGE=NVRM: Xid (PCI:0000:ef:00): 79, pid=0, "
    "name=<unknown>, GPU has fallen off the bus. Recommended Action=RESTART_BM;"
)


@pytest.mark.parametrize(
    ("kind", "message", "expected"),
    [
        ("SysLogsXIDError", XID_79, ["xid:79"]),
        ("SysLogsXIDError", "ErrorCode:79 PCI:0000:ef:00 Recommended Action=RESTART_BM;", ["xid:79"]),
        ("SysLogsXIDError", "ErrorCode:48 GPU:0;ErrorCode:79 GPU:1;", ["xid:48", "xid:79"]),
        ("SysLogsXIDError", "ErrorCode:45 PCI:0000:ef:00;", []),
        ("SysLogsXIDError", "ErrorCode:9999;", ["xid:*"]),
        ("SysLogsXIDError", "", ["xid:*"]),
        ("SysLogsGPUFallenOff", "ErrorCode:GPU_FALLEN_OFF;", ["xid:79"]),
        ("SysLogsSXIDError", "ErrorCode:20034 SXid (PCI:0000:a8:00.0): 20034, Fatal, Link 30", ["sxid:20034"]),
        (
            "GpuMemWatch",
            "ErrorCode:DCGM_FR_FAULTY_MEMORY GPU:0 Recommended Action=RESTART_VM;",
            ["gpu:dcgm_health_fatal"],
        ),
        ("GpuNvlinkWatch", "ErrorCode:DCGM_FR_NVLINK_DOWN GPU:0;", ["fabric:nvlink_error"]),
        ("NVSwitchFatalError", "", ["sxid:*/fatal"]),
        ("CSPMaintenance", "ErrorCode:X;", []),
    ],
)
def test_condition_of_nvsentinel_names_the_fault(kind: str, message: str, expected: list[str]) -> None:
    node = a_node(conditions=(a_condition(kind, "True", "Fatal", -5, message),))

    assert fault_keys(node) == expected
    assert {fact.source for fact in facts(node)} <= {"nvsentinel.node-conditions"}


def test_cleared_condition_of_nvsentinel_is_a_recovery() -> None:
    node = a_node(conditions=(a_condition("GpuMemWatch", "False", "Healthy", -5),))

    assert facts_of_node(node) == [("RECOVERED", "nvsentinel.node-conditions", "")]
    assert fault_keys(a_node(conditions=(a_condition("GpuMemWatch", "Unknown", "", -5),))) == []
