"""Jobs in a fleet with admission by Kueue: real processes, IAM, and a stand-in for Kueue.

These tests do not run the real Kueue: `tests/fake_kueue.py` lists what the stand-in does.
"""

from collections.abc import Iterator

import pytest

from evenkeel.adapters.kubernetes import KubernetesApi
from evenkeel_local.data_centre import NAMESPACE, DataCentre, FleetShape, StackSettings
from evenkeel_local.drills import TrainingWork
from evenkeel_local.drills.decision_replay import replay_mismatches
from tests.fake_kueue import FakeKueue, local_queue
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
    until(lambda: "no quota free" in job.why()["sentence"], "the next attempt to be told why it waits", 90)
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
