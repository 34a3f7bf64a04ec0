"""Elastic jobs in their own data centre: they grow, shrink for other jobs, grow back, and shrink after a node loss."""

from collections.abc import Iterator
from typing import Any

import pytest

from evenkeel_local import ACCOUNT_ID
from evenkeel_local.data_centre import DataCentre, FleetShape
from evenkeel_local.drills import TrainingWork
from evenkeel_local.drills.decision_replay import replay_mismatches
from tests.local import signals
from tests.local.training import JOB_SECONDS, TrainingJob, with_all_nodes_in_service
from tests.waiting import until

Json = dict[str, Any]

FLEET = FleetShape(nodes=3, delays={**FleetShape().delays, "replace": 90.0})
LONG = TrainingWork(nodes=2, steps=1000, checkpoint_every=4, step_seconds=0.12)
END_SECONDS = JOB_SECONDS + LONG.steps * LONG.step_seconds
"""The steps of a long job alone take two minutes."""
SHORT = TrainingWork(nodes=2, steps=30, checkpoint_every=4, step_seconds=0.1)
SIZES = {"minNodes": 1, "maxNodes": 3}
SECONDS = 150.0
EKS = "research-eks"


@pytest.fixture(scope="module")
def centre(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DataCentre]:
    with DataCentre.start(tmp_path_factory.mktemp("elastic-fleet"), fleet=FLEET) as running:
        client = running.client()
        people = [{"principal": f"arn:aws:iam::{ACCOUNT_ID}:user/operator", "role": "lead"}]
        fleet = {"priorityClasses": {"low": 1, "high": 100}, "members": people}
        client.change("PUT", f"/clusters/{client.fleet}/quotas", {"quotas": fleet, "reason": "one team"}, version=0)
        queue = {
            "groups": [{FLEET.instance_type: {"nvidia.com/gpu": 24}}],
            "preemption": {"within": "LowerPriority"},
        }
        client.change(
            "PUT", "/teams/red/quota", {"team": {"name": "red", "queue": queue}, "reason": "one team"}, version=0
        )
        changes = {
            "jobs": {"expectedReplaceSeconds": 120},
            "repair": {"replaceDeadlineSeconds": 180},
            "scheduling": {
                "serving": [{"cluster": EKS, "namespace": "default", "name": "chat"}],
                "elastic": {"spareWaitSeconds": 45},  # a slow machine has its plan by then
            },
        }
        reason = "repairs are slow here, and chat serves"
        client.post(f"/clusters/{client.fleet}/policy", {"changes": changes, "reason": reason})
        yield running
        assert replay_mismatches(running) == []


@pytest.fixture(autouse=True)
def _all_nodes_in_service(centre: DataCentre) -> Iterator[None]:
    yield from with_all_nodes_in_service(centre)


def scale_deployment(centre: DataCentre, replicas: int) -> None:
    """Scale the Deployment that serves, as its own autoscaler would."""
    waits = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); time.sleep(3600)"
    container = {
        "name": "main",
        "image": "registry.invalid/chat:1",
        "command": ["python", "-c", waits],
        "resources": {"limits": {"nvidia.com/gpu": "8"}},
    }
    pod = {"containers": [container], "terminationGracePeriodSeconds": 1}
    template = {"metadata": {"labels": {"app": "chat"}}, "spec": pod}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "chat"}}, "template": template}
    metadata = {"name": "chat", "namespace": "default"}
    centre.cluster.apply([{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}])


def running_replicas(centre: DataCentre) -> int:
    """Count the replicas that run."""
    pods = centre.cluster.get("/api/v1/namespaces/default/pods?labelSelector=app%3Dchat")["items"]
    return sum(pod["status"].get("phase") == "Running" for pod in pods)


def await_size(job: TrainingJob, nodes: int) -> Json:
    """Wait until a job runs on this number of nodes."""

    def look() -> Json:
        document = job.show()
        return document if (document["state"], document["currentNodes"]) == ("RUNNING", nodes) else {}

    return until(look, f"{job.job_id} to run on {nodes} nodes", SECONDS)


@pytest.mark.drills
@pytest.mark.timeout(900)
def test_elastic_job_grows_shrinks_for_a_higher_class_and_regrows(centre: DataCentre) -> None:
    job = TrainingJob.submit(centre, "elastic", LONG, team="red", priorityClass="low", elastic=SIZES)
    grown = await_size(job, 3)
    step = job.last_step()
    job.reach(step + 5)
    high = TrainingJob.submit(centre, "urgent", SHORT, team="red", priorityClass="high")
    shrunk = await_size(job, 1)
    beside = high.reach_state("RUNNING", "SUCCEEDED")
    done = high.end()
    back = await_size(job, 3)
    ended = job.end(END_SECONDS)

    assert [document["currentAttempt"] for document in (grown, shrunk, back)] == [2, 3, 4]
    assert beside["state"] in ("RUNNING", "SUCCEEDED")
    assert (done["state"], high.digest()) == ("SUCCEEDED", high.expected_digest)
    assert (ended["state"], ended["applicationFailures"], job.digest()) == ("SUCCEEDED", 0, job.expected_digest)
    attempts = [job.attempt(number) for number in (1, 2, 3, 4)]
    assert [attempt["gpus"] for attempt in attempts] == [16, 24, 8, 24]
    assert all(attempt["resumeFrom"]["step"] > 0 for attempt in attempts[1:])
    story = " ".join(job.timeline())
    assert "The job saves a checkpoint and stops. It continues with 3 instead of 2 nodes." in story
    assert f"The resize frees nodes for {high.job_id}." in story
    assert "Attempt 4 is running on all 3 nodes, resumed from step" in story


@pytest.mark.drills
@pytest.mark.timeout(900)
def test_serving_spike_shrinks_a_job_until_it_ends(centre: DataCentre) -> None:
    work = TrainingWork(nodes=3, steps=1000, checkpoint_every=4, step_seconds=0.12)
    job = TrainingJob.submit(centre, "beside-chat", work, team="red", priorityClass="low", elastic=SIZES).reach(9)

    scale_deployment(centre, 1)
    shrunk = await_size(job, 2)
    until(lambda: running_replicas(centre) == 1, "the replica to run", SECONDS)
    scale_deployment(centre, 0)
    back = await_size(job, 3)
    ended = job.end(END_SECONDS)

    assert (shrunk["currentAttempt"], back["currentAttempt"]) == (2, 3)
    assert (ended["state"], ended["applicationFailures"], job.digest()) == ("SUCCEEDED", 0, job.expected_digest)
    assert "The resize frees nodes for default/chat." in " ".join(job.timeline())


@pytest.mark.drills
@pytest.mark.timeout(900)
def test_elastic_job_trains_on_fewer_nodes_during_a_repair(centre: DataCentre) -> None:
    work = TrainingWork(nodes=3, steps=1000, checkpoint_every=4, step_seconds=0.12)
    job = TrainingJob.submit(centre, "loses-a-node", work, team="red", priorityClass="low", elastic=SIZES).reach(9)
    node = job.node(2)

    centre.cluster.inject("gpu-xid79", node=node)
    shrunk = await_size(job, 2)
    incident = signals.incidents_about(centre, node.removeprefix("hyperpod-"))[0]
    signals.settled_incident(centre, node.removeprefix("hyperpod-"))
    back = await_size(job, 3)
    ended = job.end(END_SECONDS)

    assert incident["state"] not in ("RECOVERED", "STOOD_DOWN")
    assert node not in [node_shown["name"] for node_shown in job.attempt(2)["nodes"]]
    assert (shrunk["currentAttempt"], back["currentAttempt"]) == (2, 3)
    assert (ended["state"], ended["applicationFailures"], job.digest()) == ("SUCCEEDED", 0, job.expected_digest)
    assert any("SHRINK" in line for line in job.timeline()), job.timeline()
