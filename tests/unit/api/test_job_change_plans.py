"""The plan of a change of a job: what stops and what waits. It is shown before the change, and changes nothing."""

from typing import Any

import pytest

from tests.fakes.cluster import instance_id
from tests.unit.api.gateway import ApiResponse, Gateway
from tests.unit.api.seeds import a_fleet_node, a_job, ago, an_attempt, store

JOB_PATH = "/v1/jobs/job-0000000001"
VERBS = ("cancel", "suspend", "resume")


def plan_of(gateway: Gateway, verb: str, **changes: Any) -> ApiResponse:
    if verb == "priority":
        return gateway.call("PATCH", JOB_PATH, {"priorityClass": "high", "dryRun": True, **changes})
    return gateway.post(f"{JOB_PATH}/{verb}", {"reason": "a look", "dryRun": True, **changes}, key="k1")


def store_running_job(gateway: Gateway, **changes: Any) -> None:
    job = a_job(1, state="RUNNING", current_attempt=1, **changes)
    store(gateway.fakes.ledger, job, an_attempt(job), a_fleet_node(1), a_fleet_node(2))


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("state", ["PENDING", "RUNNING"])
def test_plan_of_a_job_change_writes_no_row(gateway: Gateway, verb: str, state: str) -> None:
    if state == "RUNNING":
        store_running_job(gateway)
    else:
        store(gateway.fakes.ledger, a_job(1))
    before, cycles = dict(gateway.fakes.ledger.rows), list(gateway.fakes.cycle_requests.reasons)

    answer = plan_of(gateway, verb)

    assert answer.status == 200, answer.text
    assert answer.document["dryRun"] is True
    assert gateway.fakes.ledger.rows == before
    assert gateway.fakes.cycle_requests.reasons == cycles


def test_cancel_plan_names_the_stopped_attempt_and_its_nodes(gateway: Gateway) -> None:
    store_running_job(gateway)

    document = plan_of(gateway, "cancel").document

    assert (document["state"], document["nextState"]) == ("RUNNING", "STOPPING")
    assert document["stops"] == {
        "attempt": 1,
        "nodes": [instance_id(1), instance_id(2)],
        "gpus": 16,
        "graceSeconds": 30,
    }
    assert document["effects"] == [
        f"Attempt 1 stops: 2 nodes, {instance_id(1)}, {instance_id(2)}. 16 GPUs become free.",
        "Its pods get 30 seconds to save a checkpoint.",
        "The job ends and never starts again.",
    ]


def test_stop_plan_warns_of_lost_work_without_checkpoints(gateway: Gateway) -> None:
    store_running_job(gateway, spec=a_job(1).spec.replace(checkpoint_uri=""))

    effects = plan_of(gateway, "suspend").document["effects"]

    assert "The job has no checkpoints, so its work is lost." in effects[1]


def test_resume_plan_shows_position_and_next_decision(gateway: Gateway) -> None:
    store(gateway.fakes.ledger, a_job(2, submitted_at=ago(minutes=90)), a_fleet_node(1))
    store(gateway.fakes.ledger, a_job(1, state="SUSPENDED", is_suspended=True))

    document = plan_of(gateway, "resume").document

    assert document["nextState"] == "PENDING"
    assert document["queue"] == {"position": None, "positionAfter": 2}
    assert document["decision"]["action"] != "ADMIT"
    assert document["decision"]["reason"]


@pytest.mark.parametrize("verb", [*VERBS, "priority"])
def test_plan_of_an_ended_job_is_refused_like_the_change(gateway: Gateway, verb: str) -> None:
    store(gateway.fakes.ledger, a_job(1, state="SUCCEEDED", ended_at=ago(minutes=1)))

    answer = plan_of(gateway, verb)

    assert (answer.status, answer.document["code"]) == (409, "JOB_ENDED")


def test_plan_of_an_unknown_class_names_the_field(gateway: Gateway) -> None:
    store(gateway.fakes.ledger, a_job(1))

    answer = plan_of(gateway, "priority", priorityClass="hgih")

    assert answer.status == 400
    assert "priorityClass" in answer.text


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "SUSPENDED"])
def test_plan_and_change_agree_on_the_next_state(gateway: Gateway, state: str, verb: str) -> None:
    if state == "RUNNING":
        store_running_job(gateway)
    else:
        store(gateway.fakes.ledger, a_job(1, state=state, is_suspended=state == "SUSPENDED"))
    planned = plan_of(gateway, verb).document["nextState"]

    done = gateway.post(f"{JOB_PATH}/{verb}", {"reason": "a look"}, key="k2")

    assert done.document["state"] == planned
