"""An API function is killed during a change: the repeated request completes the change once."""

from collections.abc import Callable, Mapping

import pytest

from tests.fakes.cluster import CLUSTER
from tests.fakes.crashes import Crash, CrashingLedger, CrashPlan, CrashTiming, crashing
from tests.fakes.system import SequenceIds
from tests.unit.api.gateway import ACCOUNT, Gateway
from tests.unit.api.test_audit import AS_READ, CHANGES, JOB, NEW, NODE, TEAM, Change, a_site, call, post

OPERATOR = f"arn:aws:iam::{ACCOUNT}:user/division/ana"
OTHER = f"arn:aws:iam::{ACCOUNT}:user/another-person"
_MAX_EFFECTS = 12


def store_cordon_of_recovery(gateway: Gateway) -> None:
    gateway.fakes.cluster.cordon(CLUSTER, f"hyperpod-{NODE}", "inc-0000000001")


PREPARED: Mapping[tuple[str, str], tuple[Callable[[Gateway], object], Change]] = {
    ("POST", "/v1/jobs/{jobId}/resume"): (
        lambda gateway: gateway.post(f"{JOB}/suspend", {}, caller=OTHER),
        post(f"{JOB}/resume", {}),
    ),
    ("DELETE", "/v1/teams/{team}"): (
        lambda gateway: gateway.call("PUT", "/v1/teams/nlp/quota", TEAM, headers=NEW, caller=OTHER),
        call("DELETE", "/v1/teams/nlp?reason=x", None, AS_READ),
    ),
    ("POST", "/v1/nodes/{nodeId}/uncordon"): (store_cordon_of_recovery, post(f"/v1/nodes/{NODE}/uncordon", {})),
}
"""Changes that need a prepared state: the step that prepares it, and the change."""
ACTS = {
    route: PREPARED.get(route, (lambda _gateway: None, change))
    for route, change in CHANGES.items()
    if change is not None
}


def kill_at(gateway: Gateway, number: int, when: CrashTiming) -> CrashPlan:
    """Let the function die at its effect with this number."""
    plan, fakes = CrashPlan(number, when), gateway.fakes
    gateway.use_ports(
        ledger=CrashingLedger(fakes.ledger, plan=plan),
        cluster=crashing(fakes.cluster, plan, "cordon", "uncordon", "release"),
        cycle_requests=crashing(fakes.cycle_requests, plan, "request"),
        inbox=crashing(fakes.inbox, plan, "send"),
    )
    return plan


@pytest.mark.parametrize("when", CrashTiming)
@pytest.mark.parametrize("route", ACTS, ids=" ".join)
def test_repeat_after_a_kill_completes_the_act(route: tuple[str, str], when: CrashTiming) -> None:
    prepare, change = ACTS[route]
    undisturbed = prepare_site(prepare)
    assert change(undisturbed, OPERATOR).status in (200, 202)
    expected = undisturbed.fakes.ledger.contents()

    for number in range(1, _MAX_EFFECTS):
        gateway = prepare_site(prepare)
        kill_at(gateway, number, when)
        try:
            change(gateway, OPERATOR)
        except Crash:
            gateway.use_ports(ids=SequenceIds())
        else:
            assert number > 1
            return

        answer = change(gateway, OPERATOR)

        # A change at a stated version finds its own earlier write.
        assert answer.status in ((200, 202, 412) if route[0] in ("PUT", "PATCH") else (200, 202)), (number, answer.text)
        assert gateway.fakes.ledger.contents() == expected, number
    raise AssertionError("the act has more effects than the test kills")


def prepare_site(prepare: Callable[[Gateway], object]) -> Gateway:
    gateway = a_site()
    prepare(gateway)
    return gateway
