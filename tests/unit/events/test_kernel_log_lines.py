"""Faults in the lines of the driver, HyperPod's agent and the EKS agent."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.domain.health.faults import default_catalogue
from evenkeel.events import agent_log, driver_lines, eks_conditions, reported_faults
from evenkeel.events.driver_lines import NamedFault

XID = "NVRM: Xid (PCI:0000:b9:00): "


@pytest.mark.parametrize(
    ("line", "reading"),
    [
        (f"{XID}79, pid=1234, GPU has fallen off the bus.", NamedFault("xid:79", "79", "0000:b9:00")),
        (f"[ 12.3] {XID}048, DBE", NamedFault("xid:48", "48", "0000:b9:00")),
        (f"{XID}9999, new", NamedFault("xid:*", "9999", "0000:b9:00")),
        (
            "Xid (PCI:0000:B9:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 04 (0x1 0x2 0x3)",
            NamedFault("xid:149/fatal", "149/fatal", "0000:b9:00", "4"),
        ),
        (
            "Xid (PCI:0000:b9:00): 149, NETIR_LINK_EVT Nonfatal XC0 i0 Link 4",
            NamedFault("xid:149/nonfatal", "149/nonfatal", "0000:b9:00", "4"),
        ),
        (f"{XID}149, neither word", NamedFault("xid:*", "149", "0000:b9:00")),
        (f"{XID}147, TREX Fatal", NamedFault("xid:*", "147", "0000:b9:00")),
        (
            f"{XID}154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
            NamedFault("xid:154/node_reboot_required", "154/node_reboot_required", "0000:b9:00"),
        ),
        (f"{XID}154, GPU recovery action changed: None", NamedFault("xid:154/none", "154/none", "0000:b9:00")),
        (f"{XID}154, recovery action: Meditate", NamedFault("xid:*", "154", "0000:b9:00")),
        (
            "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress nonposted PRIV error",
            NamedFault("sxid:12028", "12028", "0000:c1:00.0", "32"),
        ),
        (
            "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 99999, Fatal, Link 07",
            NamedFault("sxid:*/fatal", "99999", "0000:c1:00.0", "7"),
        ),
        ("SXid (PCI:0000:c1:00.0): 99999, Non-fatal", NamedFault("sxid:*", "99999", "0000:c1:00.0")),
        ("NVRM: Xid (GPU-5d1f7c0a): 79", NamedFault("xid:*", "xid_unparsed")),
        ("xid error, code lost", NamedFault("xid:*", "xid_unparsed")),
    ],
)
def test_log_line_gives_its_fault_device_and_link(line: str, reading: NamedFault) -> None:
    assert driver_lines.named_faults(line) == (reading,)
    assert reading.fault_key in default_catalogue()


@pytest.mark.parametrize("line", ["", "all is well", f"{XID}45, cleanup", "XidHardwareFailure", "a maxid of 79"])
def test_log_line_without_evidence_gives_no_fault(line: str) -> None:
    assert driver_lines.named_faults(line) == ()


def test_each_fault_code_in_a_log_text_is_read_once() -> None:
    text = f"{XID}149, NETIR Fatal Link 04\n{XID}45, x\n{XID}79, y\n{XID}79, y\n{XID}149, NETIR Nonfatal Link 05"

    assert [reading.code for reading in driver_lines.named_faults(text)] == ["149/fatal", "79", "149/nonfatal"]


def test_at_most_eight_fault_codes_of_a_text_are_read() -> None:
    text = "".join(f"{XID}{number}, x " for number in range(13, 60))

    assert len(driver_lines.named_faults(text)) <= 8


# ---------------------------------------------------------------- HyperPod's agent


def a_log_line(key: str = "details", **details: Any) -> str:
    document = {
        "reason": "XidHardwareFailure",
        "message": f"{XID}71, NVLink: fatal error detected on link 6",
        **details,
    }
    return json.dumps({"level": "info", key: document, "HealthMonitoringAgentDetectionEvent": "HealthEvent"})


@pytest.mark.parametrize("key", ["details", "details: "])
def test_health_agent_line_gives_code_and_verdict(key: str) -> None:
    named_faults = agent_log.named_faults(a_log_line(key))

    assert [reading.fault_key for reading in named_faults] == ["xid:71", "hp:XidHardwareFailure"]


def test_some_codes_of_the_health_agent_blame_the_application() -> None:
    named_faults = agent_log.named_faults(a_log_line(reason="XidUserAppError", message=f"{XID}31, x"))

    assert [reading.fault_key for reading in named_faults] == ["xid:31", "hp:XidUserAppError"]


@pytest.mark.parametrize(("number", "keys"), [(79, ["xid:79"]), (45, []), (-1, []), (True, []), ("79", [])])
def test_dcgm_violation_gives_code_as_number(number: Any, keys: list[str]) -> None:
    line = a_log_line(reason="", message="DCGM policy violation", **{"condition: ": "XID Error", "ErrNum": number})

    assert [reading.fault_key for reading in agent_log.named_faults(line)] == keys


def test_driver_log_line_is_read_without_the_health_agent() -> None:
    assert agent_log.named_faults(f"{XID}79, x") == driver_lines.named_faults(f"{XID}79, x")


@pytest.mark.parametrize(
    "line",
    [
        '{"details": {"reason": "XidHardwareFailure"}}',
        '{"HealthMonitoringAgentDetectionEvent": 1, "details": "none"}',
        "{" * 5000,
        a_log_line(message="x" * 9000),
    ],
)
def test_health_agent_line_without_detection_gives_no_fault(line: str) -> None:
    assert agent_log.named_faults(line) == ()


# ---------------------------------------------------------------- the EKS agent


@pytest.mark.parametrize(
    ("reason", "key"),
    [
        ("NvidiaXID79Error", "xid:79"),
        ("NvidiaXID13Warning", "xid:13"),
        ("NvidiaXID9999Error", "xid:*"),
        ("DCGMHealthCode95", "eks:DCGMHealthCodeFatal"),
        ("DCGMHealthCode122", "gpu:dcgm_imex_unhealthy"),
        ("DCGMFieldError250", "eks:DCGMFieldError"),
        ("ContainerdRepeatedRestart", "eks:RepeatedRestart"),
        ("NvidiaDeviceCountMismatch", "eks:NvidiaDeviceCountMismatch"),
        ("IPAMDNotReady", "eks:IPAMDNotReady"),
        ("SomethingNew", "hp:unknown_fault_type"),
        ("bad reason!", "hp:unknown_fault_type"),
        ("", "hp:unknown_fault_type"),
    ],
)
def test_reason_of_eks_agent_names_its_fault(reason: str, key: str) -> None:
    reading = eks_conditions.named_fault(reason)

    assert reading
    assert (reading.fault_key, key in default_catalogue()) == (key, True)


def test_cleanup_code_of_the_eks_agent_is_no_fault() -> None:
    assert eks_conditions.named_fault("NvidiaXID45Error") is None


def test_eks_agent_message_gives_the_device() -> None:
    assert eks_conditions.named_fault("NvidiaXID79Error", f"{XID}79, off the bus") == NamedFault(
        "xid:79", "79", "0000:b9:00"
    )


# ---------------------------------------------------------------- codes as people write them


@pytest.mark.parametrize(
    ("code", "key"),
    [
        ("xid:79", "xid:79"),
        ("79", "xid:79"),
        ("079", "xid:79"),
        ("9999", "xid:*"),
        ("sxid:12028", "sxid:12028"),
        ("NvidiaErrorReboot", "hp:NvidiaErrorReboot"),
        ("NvidiaXID79Error", "xid:79"),
        ("IPAMDNotReady", "eks:IPAMDNotReady"),
        ("gpu:count_mismatch", "gpu:count_mismatch"),
        ("no such thing", ""),
        ("", ""),
        ("hp:", ""),
    ],
)
def test_fault_code_may_be_key_number_or_name(code: str, key: str) -> None:
    assert reported_faults.fault_key(code) == key


def test_fault_code_takes_its_device_from_the_reported_line() -> None:
    assert reported_faults.named_faults("xid:79", f"{XID}79, x") == (NamedFault("xid:79", "xid:79", "0000:b9:00"),)


# ---------------------------------------------------------------- arbitrary input


TEXT = st.text(max_size=300) | st.lists(
    st.sampled_from(
        [XID, "SXid (PCI:", "0000:c1:00.0", "): ", "154", "Fatal", "Link ", "{", '"details": ', "\x00", "9"]
    ),
    max_size=30,
).map("".join)


@given(TEXT)
def test_log_text_gives_only_faults_of_the_catalogue(text: str) -> None:
    read = [*driver_lines.named_faults(text), *agent_log.named_faults(text)]
    condition = eks_conditions.named_fault(text, text)

    assert {reading.fault_key for reading in [*read, *([condition] if condition else [])]} <= default_catalogue().keys()


@pytest.mark.parametrize("part", [XID, "Xid (PCI:0", "SXid ", "Link 1 ", "a", "0000:", '{"a":', "non-"])
def test_time_to_read_log_lines_is_linear_in_length(part: str) -> None:
    text = (part * 100_000)[:100_000]
    began = time.process_time()
    agent_log.named_faults(text)
    eks_conditions.named_fault(text, text)

    # A pattern that backtracks needs minutes for such a text; a linear pattern needs milliseconds.
    assert time.process_time() - began < 10
