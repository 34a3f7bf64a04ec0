"""People control the running data centre: they approve plans, remove cordons, and opt nodes out."""

from collections.abc import Iterator
from typing import Any

import pytest

from evenkeel_client.client import ApiClient
from evenkeel_client.context import ApiContext, StaticKey
from evenkeel_client.errors import CommandFailed
from evenkeel_local import REGION
from evenkeel_local.data_centre import FLEET, DataCentre
from evenkeel_local.drills import await_all_nodes_ready
from evenkeel_local.identities import make_user
from tests.local import containers, signals
from tests.waiting import until

Json = dict[str, Any]

SECONDS = 60.0


@pytest.fixture(scope="module")
def centre(data_centre: DataCentre) -> Iterator[DataCentre]:
    """The data centre, in which faults of the network ask before anything is done."""
    client = data_centre.client()
    path = f"/clusters/{client.fleet}/policy"
    rule = {"faultClass": "network", "mode": "recommend"}
    await_all_nodes_ready(client, data_centre)
    client.post(path, {"changes": {"modes": [rule]}, "reason": "nobody trusts this class yet"})
    containers.start_cold(data_centre.deployer.client("lambda"), "plan_recovery")
    yield data_centre
    client.post(path, {"changes": {}, "reason": "the test is over"})
    containers.start_cold(data_centre.deployer.client("lambda"), "plan_recovery")
    await_all_nodes_ready(client, data_centre)


def newest(centre: DataCentre, machine: str) -> Json:
    """Return the newest incident of a node; an incident without a state if there is none."""
    return next(iter(signals.incidents_about(centre, machine)), {"state": "", "block": None, "pendingApproval": None})


def node_of(centre: DataCentre, machine: str) -> Json:
    """Return the node as the cluster shows it."""
    return next(dict(node) for node in centre.cluster.nodes() if node["instanceId"] == machine)


def test_uncordon_by_a_person_under_a_hold_ends_the_recovery(centre: DataCentre) -> None:
    client = centre.client()
    machine = signals.untouched_machine(centre)
    automation = f"/clusters/{client.fleet}/automation"
    client.post(f"{automation}/hold", {"reason": "somebody looks", "forSeconds": 300})
    try:
        signals.queue(centre, signals.health_event(machine))
        until(
            lambda: (newest(centre, machine)["block"] or {}).get("guardrail") == "HOLD",
            "the repair to be held",
            SECONDS,
        )
        before = node_of(centre, machine)["unschedulable"]
        client.post(f"/nodes/{machine}/uncordon", {"reason": "it is fine"})
        settled = signals.settled_incident(centre, machine)
        after = node_of(centre, machine)["unschedulable"]
    finally:
        client.post(f"{automation}/release", {})

    assert (before, after) == (True, False)
    assert (settled["state"], settled["repairs"]) == ("STOOD_DOWN", [])
    assert signals.accepted_calls(centre, machine) == {}


def test_opted_out_machine_is_left_alone(centre: DataCentre) -> None:
    machine = signals.untouched_machine(centre)
    name = node_of(centre, machine)["name"]
    label(centre, name, "off")
    try:
        signals.queue(centre, signals.health_event(machine, fault="NvidiaErrorTerminate"))
        settled = signals.settled_incident(centre, machine)
        node = node_of(centre, machine)
    finally:
        label(centre, name, "on")

    assert (settled["state"], settled["repairs"], node["unschedulable"]) == ("STOOD_DOWN", [], False)
    assert "has the label evenkeel.io/automation=off" in settled["outcome"]
    assert signals.accepted_calls(centre, machine) == {}


def label(centre: DataCentre, name: str, value: str) -> None:
    """Set or remove the opt-out of a node, as a person with kubectl does."""
    labels = {"evenkeel.io/automation": value}
    centre.cluster.apply([{"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}])


def test_recommend_mode_acts_only_after_one_approval(centre: DataCentre) -> None:
    machine = signals.untouched_machine(centre)
    signals.queue(centre, signals.health_event(machine, fault="EfaError"))
    incident = until(
        lambda: newest(centre, machine) if newest(centre, machine)["pendingApproval"] else {}, "the plan", SECONDS
    )
    untouched = (node_of(centre, machine)["unschedulable"], signals.accepted_calls(centre, machine))
    answer = {"decisionId": incident["pendingApproval"]["decisionId"], "reason": "go on"}
    path = f"/incidents/{incident['incidentId']}/approve"

    centre.client().post(path, answer)
    with pytest.raises(CommandFailed) as late:
        second_operator(centre).post(path, answer)
    settled = signals.settled_incident(centre, machine)

    assert untouched == (False, {})
    assert late.value.code == "ALREADY_ANSWERED"
    assert "operator" in late.value.text
    assert (settled["state"], settled["repairs"]) == ("RECOVERED", ["reboot"])


def second_operator(centre: DataCentre) -> ApiClient:
    """Return the command line of another person with all rights of the operator."""
    may: Json = {"Effect": "Allow", "Action": "execute-api:Invoke", "Resource": "*"}
    user = make_user(centre.deployer, "second", [may])
    key = StaticKey(user.access_key_id, user.secret_access_key)
    return ApiClient(ApiContext(FLEET, centre.api_url, REGION, key=key, control_url="", source="a test"))
