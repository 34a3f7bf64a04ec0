"""The catalogue as data."""

import pytest

from evenkeel.domain.health.faults import UNKNOWN_FAULT, Fault, catalogue, look_up

VERBS = {
    *("ignore", "watch", "follow_primary", "obey_154", "cordon", "restart_job", "rollback_job", "stop_job", "reboot"),
    *("checkpoint_drain", "restart_fabric_manager", "rebind_driver", "diagnose", "replace", "stand_down", "burst"),
    "page_human",
}


@pytest.mark.parametrize("fault", catalogue().values(), ids=lambda fault: fault.key)
def test_each_row_makes_sense(fault: Fault) -> None:
    assert fault.ladder
    assert set(fault.ladder) <= VERBS
    assert fault.drain_seconds >= -1
    assert fault.settle_seconds >= 0
    assert fault.node_rungs in ((), ("reboot",), ("replace",), ("reboot", "replace"))


@pytest.mark.parametrize(
    ("key", "found"),
    [
        ("xid:79", "xid:79"),
        ("xid:4711", "xid:*"),
        ("sxid:4711", "sxid:*"),
        ("hp:Nonsense", UNKNOWN_FAULT),
        ("", UNKNOWN_FAULT),
        ("nonsense", UNKNOWN_FAULT),
    ],
)
def test_every_key_finds_a_row(key: str, found: str) -> None:
    assert look_up(key).key == found


def test_an_unknown_fault_repairs_nothing() -> None:
    assert not look_up("hp:Nonsense").repairs_node
    assert not look_up("xid:4711").acts_alone
