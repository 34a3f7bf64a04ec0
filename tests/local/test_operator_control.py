"""People answer plans, remove cordons, replace nodes, suspend jobs and opt nodes out in the running data centre."""

import re
import secrets
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from evenkeel_cli.console.server import ConsoleServer
from evenkeel_client.client import ApiClient
from evenkeel_client.context import ApiContext, StaticKey
from evenkeel_client.errors import CommandFailed
from evenkeel_local import REGION
from evenkeel_local.data_centre import FLEET, DataCentre
from evenkeel_local.drills import TrainingWork, await_all_nodes_ready, last_step
from evenkeel_local.identities import make_user
from tests import browser
from tests.local import containers, signals
from tests.local.killed_functions import answered_despite_kills, changes_with, without_pauses
from tests.local.training import TrainingJob
from tests.waiting import until

Json = dict[str, Any]

SECONDS = 60.0


@pytest.fixture(scope="module")
def centre(data_centre: DataCentre) -> Iterator[DataCentre]:
    """The data centre with a policy that requires an approval for faults of the network."""
    client = data_centre.client()
    path = f"/clusters/{client.fleet}/policy"
    rule = {"faultClass": "network", "mode": "recommend"}
    await_all_nodes_ready(client, data_centre)
    changes = {"modes": [rule], "jobs": {"priorityClasses": ["urgent"]}}
    client.post(path, {"changes": changes, "reason": "this class is not trusted yet"})
    functions = data_centre.deployer.client("lambda")
    for function in ("plan_recovery", "api_submit"):
        containers.start_cold(functions, function)
    yield data_centre
    client.post(path, {"changes": {}, "reason": "the test is over"})
    for function in ("plan_recovery", "api_submit"):
        containers.start_cold(functions, function)
    await_all_nodes_ready(client, data_centre)


def newest_incident(centre: DataCentre, machine: str) -> Json:
    """Return the newest incident of a node; an incident without a state if there is none."""
    return next(iter(signals.incidents_about(centre, machine)), {"state": "", "block": None, "pendingApproval": None})


def incident_with_a_plan(centre: DataCentre, machine: str) -> Json:
    """Wait until a plan for a node awaits approval, and return its incident."""

    def look() -> Json:
        newest = newest_incident(centre, machine)
        return newest if newest["pendingApproval"] else {}

    return until(look, "the plan", SECONDS)


def node_of(centre: DataCentre, machine: str) -> Json:
    """Return the node as the cluster shows it."""
    return next(dict(node) for node in centre.cluster.nodes() if node["instanceId"] == machine)


def test_operator_follows_a_recovery_in_the_console(centre: DataCentre) -> None:
    """The operator sees the incident, reads why, approves, watches the job resume, and reads the cost.

    It runs first, because later tests leave nodes with an open incident. A new signal about such a node would join that
    incident instead of opening another.
    """
    work = TrainingWork(nodes=1, steps=400, paced_attempts=1)
    job = TrainingJob.submit(centre, "console", work)
    until(lambda: last_step(centre.client(), job.job_id) > 5, "the job to save a checkpoint", SECONDS)
    attempt = job.show()["attempts"][0]
    signals.queue(centre, signals.health_event(attempt["nodes"][0]["instanceId"], fault="EfaError"))
    server = ConsoleServer(centre.client())
    threading.Thread(target=server.serve_forever, daemon=True).start()

    with browser.running() as chromium:
        page = chromium.new_page()
        page.set_default_timeout(60_000)
        failed: list[str] = []
        page.on("response", lambda response: failed.append(response.url) if response.status >= 500 else None)
        page.goto(server.link)
        incident = page.locator("#needs-you li", has_text=attempt["nodes"][0]["instanceId"][-4:])
        incident.get_by_role("link").click(timeout=90_000)
        expect(page.get_by_role("region", name="Why")).to_contain_text("approval", timeout=30_000)
        page.get_by_role("button", name="Approve…").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Reason").fill("seen in the console")
        dialog.get_by_role("button", name="Approve", exact=True).click()
        expect(dialog.get_by_role("status")).to_contain_text("approved the plan", timeout=30_000)
        dialog.get_by_role("button", name="Close").click()

        # The page also lists jobs that ran on the node before. The second attempt may end before the page asks again.
        own = page.get_by_role("listitem").filter(has=page.get_by_role("link", name="console", exact=True))
        expect(own).to_contain_text(re.compile("(running again|succeeded), attempt 2"), timeout=90_000)
        expect(page.locator(".state", has_text="recovered").first).to_be_visible(timeout=90_000)
        expect(page.get_by_role("region", name="Cost", exact=True)).to_contain_text("GPU-hours")
        expect(page.get_by_role("region", name="Timeline")).to_contain_text("seen in the console")
        assert failed == []
    server.shutdown()
    server.server_close()


def test_uncordon_by_a_person_under_a_hold_ends_the_recovery(centre: DataCentre) -> None:
    client = centre.client()
    machine = signals.untouched_machine(centre)
    automation = f"/clusters/{client.fleet}/automation"
    client.post(f"{automation}/hold", {"reason": "somebody looks", "forSeconds": 300})
    try:
        signals.queue(centre, signals.health_event(machine))
        until(
            lambda: (newest_incident(centre, machine)["block"] or {}).get("guardrail") == "HOLD",
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


def test_node_with_an_opt_out_label_is_left_alone(centre: DataCentre) -> None:
    machine = signals.untouched_machine(centre)
    name = node_of(centre, machine)["name"]
    set_opt_out_label(centre, name, "off")
    try:
        signals.queue(centre, signals.health_event(machine, fault="NvidiaErrorTerminate"))
        settled = signals.settled_incident(centre, machine)
        node = node_of(centre, machine)
    finally:
        set_opt_out_label(centre, name, "on")

    assert (settled["state"], settled["repairs"], node["unschedulable"]) == ("STOOD_DOWN", [], False)
    assert "has the label evenkeel.io/automation=off" in settled["outcome"]
    assert signals.accepted_calls(centre, machine) == {}


def set_opt_out_label(centre: DataCentre, name: str, value: str) -> None:
    """Set or remove the opt-out label of a node, as a person with kubectl does."""
    labels = {"evenkeel.io/automation": value}
    centre.cluster.apply([{"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}])


def test_recommend_mode_acts_only_after_one_approval(centre: DataCentre) -> None:
    machine = signals.untouched_machine(centre)
    signals.queue(centre, signals.health_event(machine, fault="EfaError"))
    incident = incident_with_a_plan(centre, machine)
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


def answered(centre: DataCentre, send: Callable[[], Json]) -> Json:
    """Send a change while its functions are killed. Each failure must say that the change may have been made."""
    answer, failures, killed = answered_despite_kills(centre, send)
    assert killed, "no function was killed during the request: the test proves nothing"
    assert all("may have" in failed.hint for failed in failures), [failed.hint for failed in failures]
    return answer


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("act", "repairs"), [("approve", ["reboot"]), ("decline", [])])
def test_answer_to_a_plan_counts_once_through_killed_functions(
    act: str, repairs: list[str], centre: DataCentre
) -> None:
    machine, client, run = signals.untouched_machine(centre), without_pauses(centre.client()), secrets.token_hex(4)
    signals.queue(centre, signals.health_event(machine, fault="EfaError"))
    incident = incident_with_a_plan(centre, machine)
    path = f"/incidents/{incident['incidentId']}"
    body = {"decisionId": incident["pendingApproval"]["decisionId"], "reason": f"killed {run}"}

    answer = answered(centre, lambda: client.post(f"{path}/{act}", body, key=f"{act}-{run}"))
    settled = signals.settled_incident(centre, machine)

    assert (answer["approval"]["approves"], answer["approval"]["reason"]) == (act == "approve", f"killed {run}")
    assert settled["repairs"] == repairs
    assert signals.accepted_calls(centre, machine) == dict.fromkeys(repairs, 1)
    timeline, audit = client.get(f"{path}/timeline")["entries"], client.get("/audit", pageSize=200)["items"]
    for recorded in (timeline, audit):
        assert changes_with(run, recorded) == [f"{act}d"]


@pytest.mark.timeout(400)
def test_node_is_replaced_once_through_killed_functions(centre: DataCentre) -> None:
    machine, client, run = signals.untouched_machine(centre), without_pauses(centre.client()), secrets.token_hex(4)

    answer = answered(
        centre, lambda: client.post(f"/nodes/{machine}/replace", {"reason": f"killed {run}"}, key=f"replace-{run}")
    )
    signals.await_handled(centre, answer["envelopeId"])
    settled = signals.settled_incident(centre, machine)

    assert answer["instanceId"] == machine
    assert (settled["state"], settled["repairs"]) == ("RECOVERED", ["replace"])
    assert len(signals.incidents_about(centre, machine)) == 1
    assert signals.accepted_calls(centre, machine) == {"replace": 1}


def test_suspension_and_priority_count_once_through_killed_functions(centre: DataCentre) -> None:
    client, run = without_pauses(centre.client()), secrets.token_hex(4)
    job = TrainingJob.submit(centre, "suspended", TrainingWork(nodes=1, steps=400, paced_attempts=1))
    path = f"/jobs/{job.job_id}"

    suspended = answered(
        centre, lambda: client.post(f"{path}/suspend", {"reason": f"killed {run}"}, key=f"suspend-{run}")
    )
    version = job.reach_state("SUSPENDED")["version"]
    body = {"priorityClass": "urgent", "reason": f"killed {run}"}
    ranked = answered(centre, lambda: client.change("PATCH", path, body, version=version))

    assert (suspended["isSuspended"], ranked["priorityClass"], ranked["state"]) == (True, "urgent", "SUSPENDED")
    entries = client.get(f"{path}/timeline")["entries"]
    assert changes_with(run, entries) == ["suspended", "priority changed"]
    assert job.show()["version"] == version + 1
    client.post(f"{path}/cancel", {"reason": "the test is over"})
    job.end()
