"""An API function is killed during a change: the repeated request completes the change once."""

from collections.abc import Callable, Mapping

import pytest

from tests.fakes.cluster import CLUSTER
from tests.fakes.crashes import Crash, CrashingLedger, CrashPlan, CrashTiming, crashing
from tests.fakes.system import SequenceIds
from tests.unit.api.gateway import ACCOUNT, Gateway
from tests.unit.api.test_audit import (
    AS_READ,
    CHANGES,
    IF_NEW,
    JOB,
    NODE,
    TEAM,
    Change,
    change_by_call,
    change_by_post,
    prepared_gateway,
)

OPERATOR = f"arn:aws:iam::{ACCOUNT}:user/division/ana"
OTHER_OPERATOR = f"arn:aws:iam::{ACCOUNT}:user/another-person"
_MAX_EFFECTS = 12


def store_cordon_of_recovery(gateway: Gateway) -> None:
    gateway.fakes.cluster.cordon(CLUSTER, f"hyperpod-{NODE}", "inc-0000000001")


PREPARED_CHANGES: Mapping[tuple[str, str], tuple[Callable[[Gateway], object], Change]] = {
    ("POST", "/v1/jobs/{jobId}/resume"): (
        lambda gateway: gateway.post(f"{JOB}/suspend", {}, caller=OTHER_OPERATOR),
        change_by_post(f"{JOB}/resume", {}),
    ),
    ("DELETE", "/v1/teams/{team}"): (
        lambda gateway: gateway.call("PUT", "/v1/teams/nlp/quota", TEAM, headers=IF_NEW, caller=OTHER_OPERATOR),
        change_by_call("DELETE", "/v1/teams/nlp?reason=x", None, AS_READ),
    ),
    ("POST", "/v1/nodes/{nodeId}/uncordon"): (
        store_cordon_of_recovery,
        change_by_post(f"/v1/nodes/{NODE}/uncordon", {}),
    ),
}
"""Changes that need a prepared state: the step that prepares it, and the change."""
CHANGE_BY_ROUTE = {
    route: PREPARED_CHANGES.get(route, (lambda _gateway: None, change))
    for route, change in CHANGES.items()
    if change is not None
}


def kill_at(gateway: Gateway, number: int, when: CrashTiming) -> CrashPlan:
    """Let the function crash at its n-th write or call."""
    plan, fakes = CrashPlan(number, when), gateway.fakes
    gateway.use_ports(
        ledger=CrashingLedger(fakes.ledger, plan=plan),
        cluster=crashing(fakes.cluster, plan, "cordon", "remove_manual_cordon", "return_to_service"),
        cycle_requests=crashing(fakes.cycle_requests, plan, "request"),
        inbox=crashing(fakes.inbox, plan, "send"),
    )
    return plan


@pytest.mark.parametrize("when", CrashTiming)
@pytest.mark.parametrize("route", CHANGE_BY_ROUTE, ids=" ".join)
def test_change_interrupted_by_a_crash_is_completed_when_repeated(route: tuple[str, str], when: CrashTiming) -> None:
    prepare, change = CHANGE_BY_ROUTE[route]
    undisturbed = prepare_gateway(prepare)
    assert change(undisturbed, OPERATOR).status in (200, 202)
    expected = undisturbed.fakes.ledger.contents()

    for number in range(1, _MAX_EFFECTS):
        gateway = prepare_gateway(prepare)
        kill_at(gateway, number, when)
        try:
            change(gateway, OPERATOR)
        except Crash:
            gateway.use_ports(ids=SequenceIds())
        else:
            assert number > 1
            return

        answer = change(gateway, OPERATOR)

        # A change with `If-Match` conflicts with its own earlier write.
        assert answer.status in ((200, 202, 412) if route[0] in ("PUT", "PATCH") else (200, 202)), (number, answer.text)
        assert gateway.fakes.ledger.contents() == expected, number
    raise AssertionError("the change has more effects than the test interrupts")


def prepare_gateway(prepare: Callable[[Gateway], object]) -> Gateway:
    gateway = prepared_gateway()
    prepare(gateway)
    return gateway
