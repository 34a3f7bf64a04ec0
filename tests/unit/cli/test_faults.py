"""A person reports a fault with the command, as a detector does."""

import pytest

from evenkeel.domain.values import rfc3339
from tests.fakes.cluster import instance_id
from tests.fakes.system import A_MOMENT
from tests.unit.api.seeds import a_fleet_node, store
from tests.unit.cli.conftest import CliFixture

AT = ["--at", rfc3339(A_MOMENT)]
XID = "NVRM: Xid (PCI:0000:b9:00): 79, GPU has fallen off the bus."


@pytest.fixture
def fleet(cli: CliFixture) -> CliFixture:
    store(cli.gateway.fakes.ledger, a_fleet_node(1), a_fleet_node(2, node_name="ip-10-0-0-2.ec2.internal"))
    return cli


def queued_faults(fleet: CliFixture) -> list[tuple[str, str, str]]:
    faults = [fault for document in fleet.gateway.fakes.inbox.queued for fault in document["detail"]["faults"]]
    return [(fault["instanceId"], fault["faultKey"], fault["gpu"]) for fault in faults]


def test_fault_report_sends_a_single_request(fleet: CliFixture) -> None:
    result = fleet.run("faults", "report", instance_id(1), "79", "--gpu", "0000:b9:00", *AT, terminal=True)

    assert result.out == "● 1 reported\nnext  evenkeel incidents ls\n"
    assert queued_faults(fleet) == [(instance_id(1), "xid:79", "0000:b9:00")]
    assert [method for method, _, _ in fleet.requests] == ["POST"]


def test_fault_report_accepts_a_log_line_and_node_name(fleet: CliFixture) -> None:
    fleet.run("faults", "report", "ip-10-0-0-2.ec2.internal", "-", "--line", XID, *AT)

    assert queued_faults(fleet) == [(instance_id(2), "xid:79", "0000:b9:00")]


def test_log_line_without_a_fault_prints_a_warning(fleet: CliFixture) -> None:
    result = fleet.run("faults", "report", instance_id(1), "-", "--line", "all is well", *AT, terminal=True)

    assert "the log line names no fault of the node" in result.out
    assert queued_faults(fleet) == []


@pytest.mark.parametrize(
    ("words", "exit_code"),
    [
        ([instance_id(1), "no-such-fault"], 2),
        ([instance_id(1), "-"], 2),
        ([instance_id(7), "79"], 4),
        ([instance_id(1), "79", "--at", "yesterday"], 2),
    ],
)
def test_refused_fault_report_sets_the_exit_code(fleet: CliFixture, words: list[str], exit_code: int) -> None:
    at = [] if "--at" in words else AT

    assert fleet.run("faults", "report", *words, *at).exit_code == exit_code
    assert queued_faults(fleet) == []


def test_repeated_idempotency_key_queues_one_fault_report(fleet: CliFixture) -> None:
    for _ in range(2):
        assert fleet.run("faults", "report", instance_id(1), "79", "--idempotency-key", "k1", *AT).exit_code == 0

    assert len(queued_faults(fleet)) == 1
