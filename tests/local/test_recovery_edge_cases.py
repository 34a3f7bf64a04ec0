"""Recoveries with manual changes, provider repairs and broken checkpoints, on the running data centre."""

from collections.abc import Iterator
from typing import Any

import pytest

from evenkeel_client.errors import ApiRequestFailed
from evenkeel_local.data_centre import DataCentre, FleetShape, StackSettings
from evenkeel_local.deployment import STACK_NAME, deploy
from evenkeel_local.drills import TrainingWork, await_all_nodes_ready
from tests.local import signals
from tests.local.training import TrainingJob, with_all_nodes_in_service
from tests.waiting import until

Json = dict[str, Any]

SHORT = TrainingWork(nodes=2, steps=160, checkpoint_every=4, step_seconds=0.15, paced_attempts=1)
LONG = TrainingWork(nodes=1, steps=4000, checkpoint_every=10, step_seconds=0.2)
"""Work that does not end within a test."""
SECONDS = 60.0


@pytest.fixture(autouse=True)
def _all_nodes_in_service(data_centre: DataCentre) -> Iterator[None]:
    yield from with_all_nodes_in_service(data_centre)


def incident_of(centre: DataCentre, node: str) -> Json:
    """Return the newest incident of a node, with its lanes and evidence."""
    incidents = signals.incidents_about(centre, node.removeprefix("hyperpod-"))
    client = centre.client()
    return client.get(f"/incidents/{incidents[0]['incidentId']}") if incidents else {}


def await_settled(centre: DataCentre, node: str) -> Json:
    """Wait until the newest incident of a node is settled, and return it."""
    settled_id = signals.settled_incident(centre, node.removeprefix("hyperpod-"))["incidentId"]
    return dict(centre.client().get(f"/incidents/{settled_id}"))


def timeline_of(centre: DataCentre, incident: Json) -> list[str]:
    """Return the kinds of the entries of an incident's timeline."""
    entries = centre.client().get(f"/incidents/{incident['incidentId']}/timeline")["entries"]
    return [str(entry["kind"]) for entry in entries]


def node_in_cluster(centre: DataCentre, node: str) -> Json:
    """Return the node as the cluster shows it; empty if it was deleted."""
    return next((document for document in centre.cluster.nodes() if document["name"] == node), {})


# ---------------------------------------------------------------- who repairs


def test_hold_allows_only_the_cordon_until_its_release(data_centre: DataCentre) -> None:
    client = data_centre.client()
    automation = f"/clusters/{client.fleet}/automation"
    job = TrainingJob.submit(data_centre, "held", LONG).reach(5)
    node = job.node()
    before = signals.accepted_calls(data_centre, node_in_cluster(data_centre, node)["instanceId"])
    earlier = incident_of(data_centre, node).get("incidentId")  # it may belong to another test, and may be held
    client.post(f"{automation}/hold", {"reason": "the auditors are here", "forSeconds": 600})
    try:
        # No other test reports this fault: a report in the same minute as an equal report is a copy of it.
        event = signals.health_event(node_in_cluster(data_centre, node)["instanceId"], fault="InstanceUnreachable")
        signals.queue(data_centre, event)
        until(lambda: "held" in _timeline_since(earlier, data_centre, node), "the repair to be held", SECONDS)
        at_step = job.last_step()
        job.reach(at_step + 10)
        held, node_state = incident_of(data_centre, node), node_in_cluster(data_centre, node)
        accepted_calls = signals.accepted_calls(data_centre, held["node"]["instanceId"])
        running = job.show()
    finally:
        client.post(f"{automation}/release", {})
    incident = await_settled(data_centre, node)
    after = job.show()

    assert (held["state"], held["repairs"], accepted_calls, node_state["unschedulable"]) == (
        "BLOCKED",
        [],
        before,
        True,
    )
    assert (running["state"], running["currentAttempt"]) == ("RUNNING", 1)
    assert "the auditors are here" in _timeline_text(data_centre, incident, "held")
    # One repair. Its rung depends on earlier faults of the node, and the scheduler chose the node.
    assert (incident["state"], len(incident["repairs"])) == ("RECOVERED", 1)
    assert (after["currentAttempt"], after["attempts"][-1]["state"]) == (2, "LOST")
    assert job.attempt(2)["resumeFrom"]["step"] >= at_step


def _timeline_since(earlier: str | None, centre: DataCentre, node: str) -> list[str]:
    """Return the kinds of the timeline entries of the node's newest incident; none if that is the earlier one."""
    incident = incident_of(centre, node)
    return timeline_of(centre, incident) if incident.get("incidentId") != earlier else []


def _timeline_text(centre: DataCentre, incident: Json, kind: str) -> str:
    entries = centre.client().get(f"/incidents/{incident['incidentId']}/timeline")["entries"]
    return " ".join(str(entry["text"]) for entry in entries if entry["kind"] == kind)


def test_cordon_of_a_person_stays_and_its_jobs_move(data_centre: DataCentre) -> None:
    job = TrainingJob.submit(data_centre, "persons", SHORT).reach(8)
    node = job.node()
    cordon(data_centre, node)
    instance = node_in_cluster(data_centre, node)["instanceId"]
    before = signals.accepted_calls(data_centre, instance)

    fault = data_centre.cluster.inject("gpu-xid79", node=node)
    ended = job.end()
    incident = await_settled(data_centre, node)
    document = node_in_cluster(data_centre, node)
    data_centre.cluster.clear(fault["faultId"])
    cordon(data_centre, node, unschedulable=False)

    assert (ended["state"], job.digest()) == ("SUCCEEDED", job.expected_digest)
    assert ended["currentAttempt"] == 2
    assert node not in [node_used["name"] for node_used in job.attempt(2)["nodes"]]
    assert (incident["state"], incident["repairs"]) == ("STOOD_DOWN", [])
    assert "person cordoned" in incident["outcome"]
    assert (document["instanceId"], document["unschedulable"]) == (instance, True)
    assert signals.accepted_calls(data_centre, instance) == before


def cordon(centre: DataCentre, node: str, *, unschedulable: bool = True) -> None:
    """Cordon or uncordon a node, as a person with kubectl does."""
    spec = {"unschedulable": unschedulable}
    centre.cluster.apply([{"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}, "spec": spec}])


# ---------------------------------------------------------------- checkpoints


def test_unusable_checkpoints_are_rejected_with_reasons(data_centre: DataCentre) -> None:
    work = TrainingWork(nodes=2, steps=160, checkpoint_every=4, step_seconds=0.15, paced_attempts=1)
    job = TrainingJob.submit(data_centre, "shards", work).reach(18)
    data_centre.cluster.inject("app-crash", node=job.node(1))
    until(lambda: all(process["endedAt"] for process in job.processes(1)), "the first attempt's processes to end")

    whole, unvouched, corrupt, missing = job.saved_steps(1)[-4:]
    job.delete_shard(1, missing, rank=1)
    job.corrupt_shard(1, corrupt, rank=0)
    job.corrupt_shard(1, unvouched, rank=0, has_checksum=False)
    is_in_time = job.show()["currentAttempt"] == 1
    ended = job.end()
    second, third = job.attempt(2), job.attempt(3)

    assert is_in_time
    assert (second["state"], second["resumeFrom"]["step"]) == ("LOST", unvouched)
    assert _rejection_reasons(second, missing) == {missing: "SHARD_MISSING", corrupt: "SHARD_CHECKSUM"}
    assert second["reason"] == f"The checkpoint it resumed from (step {unvouched} of attempt 1) is damaged."
    assert third["resumeFrom"]["step"] == whole
    assert _rejection_reasons(third, missing) == {missing: "FENCED", corrupt: "FENCED", unvouched: "DAMAGED"}
    timeline = [line for line in job.timeline() if "launched" in line]
    assert f"from step {unvouched} of attempt 1" in timeline[1]
    assert f"step {missing} of attempt 1 (SHARD_MISSING), step {corrupt} of attempt 1 (SHARD_CHECKSUM)" in timeline[1]
    assert f"from step {whole} of attempt 1" in timeline[2]
    evidence = job.why()["evidence"]
    assert evidence["resumedFrom"]["step"] == whole
    assert evidence["rejectedCheckpoints"] == third["rejectedCheckpoints"]
    assert (ended["state"], ended["applicationFailures"]) == ("SUCCEEDED", 1)
    assert job.digest() == job.expected_digest


def _rejection_reasons(attempt: Json, last_saved: int) -> dict[int, str]:
    """Return why each finished checkpoint was rejected, except those that were incomplete at the end."""
    return {out["step"]: out["code"] for out in attempt["rejectedCheckpoints"] if out["step"] <= last_saved}


# ---------------------------------------------------------------- cancel


def test_cancelled_job_saves_stops_and_frees_its_capacity(data_centre: DataCentre) -> None:
    client = data_centre.client()
    job = TrainingJob.submit(data_centre, "cancelled", TrainingWork(nodes=1, steps=4000, checkpoint_every=4000)).reach(
        5
    )
    node = job.node()

    first = client.post(f"/jobs/{job.job_id}/cancel", {"reason": "wrong data"})
    second = client.post(f"/jobs/{job.job_id}/cancel", {"reason": "still the wrong data"})
    ended = job.end()
    third = client.post(f"/jobs/{job.job_id}/cancel", {"reason": "and again"})
    processes = job.processes(1)

    assert (first["state"], second["state"], third["state"]) == ("STOPPING", "STOPPING", "CANCELLED")
    assert (ended["state"], "wrong data" in ended["reason"]) == ("CANCELLED", True)
    assert ended["attempts"][0]["state"] == "STOPPED"
    assert [bool(process["endedAt"]) for process in processes] == [True]
    assert len(job.saved_steps(1)) == 1, "it saved when it was asked to end: no other checkpoint was due"
    until(lambda: node_row(data_centre, node)["gpusInUse"] == 0, "the node to be free again", SECONDS)


def node_row(centre: DataCentre, node: str) -> Json:
    """Return a node as the API shows it."""
    listed = centre.client().get("/nodes", pageSize=100)["items"]
    return next(dict(row) for row in listed if row["name"] == node)


def test_cancelled_pending_job_never_starts(data_centre: DataCentre) -> None:
    client = data_centre.client()
    holder = TrainingJob.submit(data_centre, "holder", TrainingWork(nodes=5, steps=4000))
    holder.reach_state("STARTING", "RUNNING")
    job = TrainingJob.submit(data_centre, "pending", SHORT)
    until(lambda: "free accelerators" in job.show()["reason"], "a cycle to examine it", SECONDS)

    cancelled = client.post(f"/jobs/{job.job_id}/cancel", {"reason": "not needed"})
    client.post(f"/jobs/{holder.job_id}/cancel", {})
    holder.end()
    after = job.show()

    assert (cancelled["state"], after["state"], after["attempts"]) == ("CANCELLED", "CANCELLED", [])
    assert "not needed" in after["reason"]


# ---------------------------------------------------------------- the queue


def test_job_that_can_never_fit_is_refused(data_centre: DataCentre) -> None:
    until(lambda: len(data_centre.client().get("/nodes")["items"]) >= 5, "a sweep of the fleet", SECONDS)

    with pytest.raises(ApiRequestFailed) as caught:
        TrainingJob.submit(data_centre, "too-big", TrainingWork(nodes=6))
    ended = TrainingJob.submit(data_centre, "small", TrainingWork(nodes=1, steps=8, step_seconds=0.05)).end()

    assert (caught.value.code, caught.value.text.partition(":")[0]) == ("VALIDATION_FAILED", "nodes")
    assert "the largest matching pool has 5 nodes" in caught.value.text
    assert ended["state"] == "SUCCEEDED"


def test_queued_job_starts_when_capacity_is_free(data_centre: DataCentre) -> None:
    first = TrainingJob.submit(data_centre, "first", TrainingWork(nodes=4, steps=4000))
    first.reach_state("STARTING", "RUNNING")
    second = TrainingJob.submit(data_centre, "second", TrainingWork(nodes=2, steps=8, step_seconds=0.05))
    third = TrainingJob.submit(data_centre, "third", TrainingWork(nodes=1, steps=8, step_seconds=0.05))
    until(lambda: "waits behind" in third.show()["reason"], "a scheduling cycle to consider both", SECONDS)
    waiting = [second.show(), third.show()]
    admitted = data_centre.client().get(f"/decisions/{first.attempt(1)['decisionId']}")

    data_centre.client().post(f"/jobs/{first.job_id}/cancel", {"reason": "make room"})
    ended = [second.end(), third.end()]

    assert [job["state"] for job in waiting] == ["PENDING", "PENDING"]
    assert (
        waiting[0]["reason"]
        == "The job waits for 2 nodes with 8 free accelerators each: p5-workers has 1 of them (4 in use)."
    )
    assert admitted["reason"].endswith("They share layer-3 domain nn-3-p5-workers.")
    assert waiting[1]["reason"] == f"The job waits behind {second.job_id}, which waits for free nodes."
    assert [job["state"] for job in ended] == ["SUCCEEDED", "SUCCEEDED"]
    assert ended[0]["startedAt"] < ended[1]["startedAt"] or ended[0]["currentAttempt"] == 1


# ---------------------------------------------------------------- what must not act


@pytest.fixture
def data_centre_for_modes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DataCentre]:
    """A second, small data centre in mode `act` where drills may not act."""
    run_dir = tmp_path_factory.mktemp("careful")
    with DataCentre.start(run_dir, fleet=FleetShape(nodes=2), stack=StackSettings(drills_may_act=False)) as running:
        await_all_nodes_ready(running.client(), running)
        yield running


def redeploy_with(centre: DataCentre, **parameters: str) -> None:
    """Deploy the stack again with some parameters changed, as an operator does."""
    [stack] = centre.deployer.client("cloudformation").describe_stacks(StackName=STACK_NAME)["Stacks"]
    before = {parameter["ParameterKey"]: parameter["ParameterValue"] for parameter in stack["Parameters"]}
    deploy(centre.engine, centre.deployer, before | parameters, run_dir=centre.run_dir)


def everything_an_action_changes(centre: DataCentre, job: TrainingJob, node: str) -> list[Any]:
    """Return everything that an action would change: node, attempts, processes and provider calls."""
    node_state, shown = node_in_cluster(centre, node), job.show()
    return [
        (node_state["instanceId"], node_state["bootId"], node_state["unschedulable"], node_state["taints"]),
        (shown["state"], shown["currentAttempt"], shown["stopRequest"], shown["resumePlan"]),
        [(process["pid"], process["endedAt"]) for process in job.processes(1)],
        centre.cluster.control("GET", "counters")["accepted"],
    ]


def report_and_settle(centre: DataCentre, node: str, fault: str, source: str = "aws.sagemaker") -> Json:
    """Report a fault of a node, and return its incident once it is settled."""
    event = signals.health_event(node_in_cluster(centre, node)["instanceId"], fault=fault, source=source)
    signals.queue(centre, event)
    signals.await_handled(centre, event["id"])
    return await_settled(centre, node)


def test_observe_mode_makes_same_decisions_and_changes_nothing(data_centre_for_modes: DataCentre) -> None:
    job = TrainingJob.submit(data_centre_for_modes, "careful", LONG)
    job.reach_state("RUNNING")
    node = job.node()
    before = everything_an_action_changes(data_centre_for_modes, job, node)

    drill = report_and_settle(data_centre_for_modes, node, "NvidiaErrorReboot", source="evenkeel.drill")
    redeploy_with(data_centre_for_modes, Mode="observe", DrillsMayAct="true")
    pending = TrainingJob.submit(data_centre_for_modes, "in-observe", LONG)
    watched = report_and_settle(data_centre_for_modes, node, "NvidiaErrorTerminate")
    until(lambda: "Mode is observe" in pending.show()["reason"], "a cycle in mode observe", SECONDS)
    after = everything_an_action_changes(data_centre_for_modes, job, node)
    step = job.last_step()
    job.reach(step + 1)

    assert after == before
    assert (drill["state"], drill["isDrill"], drill["mode"]) == ("OBSERVED", True, "act")
    assert (watched["state"], watched["mode"]) == ("OBSERVED", "observe")
    assert drill["outcome"].startswith("This is a drill, and drills may not act on this fleet. Plan: ")
    assert watched["outcome"].startswith("Mode is observe: Evenkeel records the decision and changes nothing. Plan: ")
    for incident, rungs in ((drill, "reboot then replace"), (watched, "replace")):
        [decided] = [decision for decision in incident["decisions"] if decision["kind"] == "RECOVERY"]
        record = data_centre_for_modes.client().get(f"/decisions/{decided['decisionId']}")
        assert (record["action"], record["isDryRun"]) == ("ACT", True)
        assert f": Evenkeel moves the jobs, then: {rungs}." in record["reason"]
        assert timeline_of(data_centre_for_modes, incident) == ["fault", "decided", "settled"]
    assert pending.show()["attempts"] == []
