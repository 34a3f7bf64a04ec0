"""Jobs in a fleet with admission by Kueue: real processes, IAM, and a stand-in for Kueue.

These tests do not run the real Kueue: `tests/fake_kueue.py` lists what the stand-in does.
"""

import time
from collections.abc import Iterator

import pytest

from evenkeel.adapters.kubernetes import KubernetesApi
from evenkeel.runtime.site_policy import FRESH
from evenkeel_local.data_centre import NAMESPACE, DataCentre, FleetShape, StackSettings
from evenkeel_local.drills import TrainingWork
from evenkeel_local.drills.decision_replay import replay_mismatches
from tests.fake_kueue import FakeKueue, checks_of, local_queue
from tests.local.test_burst import (
    MICROS,
    SPOT,
    await_rental_end,
    bill_of,
    node_pool,
    remains_of_rentals,
    rented_pool,
)
from tests.local.training import TrainingJob
from tests.waiting import until

FLEET = FleetShape(nodes=2)
LONG = TrainingWork(nodes=2, steps=320, checkpoint_every=4, step_seconds=0.15)


@pytest.fixture(scope="module")
def centre(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DataCentre]:
    with DataCentre.start(
        tmp_path_factory.mktemp("kueue"), fleet=FLEET, stack=StackSettings(admission="kueue")
    ) as running:
        yield running
        assert replay_mismatches(running) == []


@pytest.fixture
def kueue(centre: DataCentre) -> Iterator[FakeKueue]:
    handle = centre.cluster
    api = KubernetesApi("research-eks", handle.kubernetes_url, handle.ca_pem, lambda _: handle.admin_token)
    with FakeKueue(api, NAMESPACE, room=0) as stand_in:
        centre.cluster.apply([local_queue(NAMESPACE, "default")])
        yield stand_in
    assert stand_in.faults == []


@pytest.mark.drills
@pytest.mark.timeout(600)
def test_job_evicted_by_kueue_resumes_with_the_same_weights(centre: DataCentre, kueue: FakeKueue) -> None:
    job = TrainingJob.submit(centre, "followed", LONG)
    until(lambda: "16 more needed" in job.why()["sentence"], "Kueue's own reason to be told", 90)
    waiting = job.show()
    assert (waiting["state"], waiting["queue"]) == ("STARTING", {"position": 1, "estimate": None})
    assert job.processes(1) == []

    kueue.room = 16
    job.reach(9)
    until(lambda: len(job.attempt(1)["nodes"]) == 2, "its machines to be known", 60)
    kueue.evict(f"{job.job_id}-a1", "Preempted", "Preempted to accommodate a workload", room=0)
    until(lambda: job.show()["currentAttempt"] == 2, "the next attempt", 90)
    until(lambda: "No quota is free" in job.why()["sentence"], "the next attempt to be told why it waits", 90)
    kueue.room = 16
    done = job.end()

    assert (done["state"], done["currentAttempt"], job.digest()) == ("SUCCEEDED", 2, job.expected_digest)
    stopped, resumed = job.attempt(1), job.attempt(2)
    assert (stopped["state"], stopped["localQueue"]) == ("STOPPED", "default")
    assert stopped["reason"] == "Kueue preempted the job: Preempted to accommodate a workload."
    assert resumed["resumeFrom"]["step"] >= 8
    assert done["applicationFailures"] == 0
    story = job.timeline()
    assert any("was saved while attempt 1 was stopped" in line for line in story), story
    assert any(line.startswith("Kueue admitted the job by quota of ml.p5.48xlarge") for line in story), story


FOUR = TrainingWork(nodes=4, steps=240, checkpoint_every=4, step_seconds=0.15)
ANY_SIZE = {"elastic": {"minNodes": 1, "maxNodes": 4}}
POWERS = {"elastic": {"minNodes": 1, "maxNodes": 4, "sizes": [1, 2, 4]}}


@pytest.mark.drills
@pytest.mark.timeout(600)
def test_elastic_job_runs_on_the_nodes_that_kueue_admits(centre: DataCentre, kueue: FakeKueue) -> None:
    kueue.room = 16
    job = TrainingJob.submit(centre, "partly", FOUR, **ANY_SIZE)
    job.reach(9)
    until(lambda: len(job.attempt(1)["nodes"]) == 2, "its machines to be known", 60)
    kueue.evict(f"{job.job_id}-a1", "Preempted", "Preempted to accommodate a workload", room=8)
    ended_job = job.end()

    assert (ended_job["state"], ended_job["currentAttempt"], job.digest()) == ("SUCCEEDED", 2, job.expected_digest)
    first, second = job.attempt(1), job.attempt(2)
    assert [(attempt["size"], attempt["requestedSize"], attempt["gpus"]) for attempt in (first, second)] == [
        (2, 4, 16),
        (1, 4, 8),
    ]
    assert second["resumeFrom"]["step"] >= 8
    # Kueue may start the evicted Job again, with one pod, before Evenkeel has deleted it. That pod waits for its peer.
    assert len(job.processes(1)) in (2, 3)
    assert len(job.processes(2)) == 1
    texts = job.timeline()
    assert "Kueue admitted attempt 1 with 2 of 4 nodes." in texts, texts
    # The Job of the last attempt is kept for its logs, with its number.
    until(lambda: f"{job.job_id}-a1" not in config_maps(centre), "the first number to be deleted with its Job", 60)


@pytest.mark.drills
@pytest.mark.timeout(600)
def test_number_between_two_sizes_never_starts_a_pod(centre: DataCentre, kueue: FakeKueue) -> None:
    kueue.room = 24
    job = TrainingJob.submit(centre, "between", FOUR, **POWERS)
    ended_job = job.end()

    assert (ended_job["state"], ended_job["currentAttempt"], job.digest()) == ("SUCCEEDED", 2, job.expected_digest)
    stopped, ran = job.attempt(1), job.attempt(2)
    assert (stopped["state"], ran["size"]) == ("STOPPED", 2)
    assert "3 nodes, which is none of its sizes (1, 2, 4)" in stopped["reason"]
    assert [len(job.processes(number)) for number in (1, 2)] == [0, 2]


def config_maps(centre: DataCentre) -> list[str]:
    """Return the names of the ConfigMaps of attempts."""
    handle = centre.cluster
    api = KubernetesApi("research-eks", handle.kubernetes_url, handle.ca_pem, lambda _: handle.admin_token)
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
    return [item["metadata"]["name"] for item in api.items(path, labelSelector="evenkeel.io/job")]


HOLDS = TrainingWork(nodes=2, steps=3000, checkpoint_every=4, step_seconds=0.15)
"""Work of a job that keeps the committed nodes until it is cancelled."""
SHORT = TrainingWork(nodes=1, steps=160, checkpoint_every=4, step_seconds=0.15)


@pytest.fixture
def renting_kueue(centre: DataCentre) -> Iterator[FakeKueue]:
    """Kueue with quota of a burst flavor, whose admission check Evenkeel answers."""
    centre.cluster.apply([node_pool(SPOT, "spot")])
    burst = {
        "pools": [rented_pool(centre, SPOT, "spot")],
        "fleetCapMicrosPerHour": 2 * MICROS[SPOT],
        "otherTeamCapMicrosPerHour": 2 * MICROS[SPOT],
        "otherDelayMicrosPerHour": 100_000_000,
        "otherExpectedRunSeconds": 3600,
    }
    client = centre.client()
    client.post(f"/clusters/{client.fleet}/policy", {"changes": {"burst": burst}, "reason": "burst with Kueue"})
    time.sleep(FRESH.total_seconds())
    handle = centre.cluster
    api = KubernetesApi("research-eks", handle.kubernetes_url, handle.ca_pem, lambda _: handle.admin_token)
    with FakeKueue(api, NAMESPACE, room=16, burst_room=16) as stand_in:
        centre.cluster.apply([local_queue(NAMESPACE, "default")])
        yield stand_in
    assert stand_in.faults == []


@pytest.mark.drills
@pytest.mark.timeout(600)
def test_job_with_kueues_burst_quota_runs_on_rented_nodes(centre: DataCentre, renting_kueue: FakeKueue) -> None:
    base = TrainingJob.submit(centre, "base", HOLDS).reach(4)
    urgent = TrainingJob.submit(centre, "urgent", SHORT)

    urgent.reach(9)
    ready = checks_of(renting_kueue.workload(f"{urgent.job_id}-a1"))
    done = urgent.end()
    rental = await_rental_end(urgent)
    centre.client().post(f"/jobs/{base.job_id}/cancel", {"reason": "the test is over"})
    until(lambda: not remains_of_rentals(centre), "everything rented to be given back", 60)

    assert (done["state"], done["currentAttempt"], urgent.digest()) == ("SUCCEEDED", 1, urgent.expected_digest)
    assert [check["state"] for check in ready] == ["Ready"]
    assert ready[0]["podSetUpdates"] == [
        {"name": "main", "nodeSelector": {"evenkeel.io/rental": f"{urgent.job_id}-b1"}}
    ]
    assert (urgent.attempt(1)["localQueue"], urgent.attempt(1)["pool"]) == ("default", SPOT)
    assert rental["costUsd"] == bill_of(rental)
    story = urgent.timeline()
    assert any("Kueue asks for nodes: Ready. 1 node of burst-spot is rented for the job" in line for line in story), (
        story
    )
