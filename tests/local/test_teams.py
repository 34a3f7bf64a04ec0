"""Teams that share the fleet of the running data centre: set up for this module, and removed after it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from evenkeel_local import ACCOUNT_ID
from evenkeel_local.data_centre import CHECKPOINTS_BUCKET, SERVICE_ACCOUNT, DataCentre, FleetShape
from evenkeel_local.drills import TrainingWork, await_all_nodes_ready
from tests.fake_kueue import local_queues
from tests.local.training import TrainingJob
from tests.waiting import until

Json = dict[str, Any]

INSTANCE_TYPE = FleetShape().instance_type
LONG = TrainingWork(nodes=2, steps=120, checkpoint_every=4, step_seconds=0.15, paced_attempts=1)
SHORT = TrainingWork(nodes=2, steps=12, checkpoint_every=4, step_seconds=0.1)


@pytest.fixture(scope="module")
def centre(data_centre: DataCentre) -> Iterator[DataCentre]:
    client = data_centre.client()
    await_all_nodes_ready(client, data_centre)
    people = [{"principal": f"arn:aws:iam::{ACCOUNT_ID}:user/operator", "role": "lead"}]
    set_fleet_quotas(data_centre, {"priorityClasses": {"low": 1, "high": 100}, "members": people})
    for name, gpus in (("red", 16), ("blue", 0)):
        queue = {
            "cohort": "fleet",
            "groups": [{INSTANCE_TYPE: {"nvidia.com/gpu": gpus}}],
            "preemption": {"within": "LowerPriority", "reclaim": "Any"},
        }
        data_centre.make_namespace(name)
        team = {"name": name, "queue": queue, "namespace": name, "serviceAccount": SERVICE_ACCOUNT}
        client.change("PUT", f"/teams/{name}/quota", {"team": team, "reason": "two teams"}, version=0)
    yield data_centre
    for name in ("red", "blue"):
        remove_team(data_centre, name)
    set_fleet_quotas(data_centre, {})


def set_fleet_quotas(centre: DataCentre, quotas: Json) -> None:
    """Replace the quotas of the whole fleet."""
    client = centre.client()
    path = f"/clusters/{client.fleet}/quotas"
    client.change("PUT", path, {"quotas": quotas, "reason": "two teams"}, version=client.get(path)["version"])


def remove_team(centre: DataCentre, name: str) -> None:
    """Remove a team without jobs."""
    client = centre.client()
    client.change("DELETE", f"/teams/{name}?reason=over", {}, version=client.get(f"/teams/{name}/quota")["version"])


def submit_by_curl(centre: DataCentre, name: str, work: TrainingWork, **changes: Any) -> TrainingJob:
    """Submit a job with curl, as in the README."""
    uri = f"s3://{CHECKPOINTS_BUCKET}/tests/{name}-{time.time_ns()}"
    key = centre.operator
    command = ["curl", "--silent", "--show-error", "--fail-with-body", "--noproxy", "*"]
    command += ["--aws-sigv4", f"aws:amz:{key.region}:execute-api"]
    command += ["--user", f"{key.access_key_id}:{key.secret_access_key}"]
    command += ["--header", "Content-Type: application/json", "--header", f"Idempotency-Key: {uri}"]
    body = json.dumps(work.submission(name, uri) | changes)
    completed = subprocess.run(
        [*command, "--data", body, f"{centre.api_url}/jobs"], capture_output=True, text=True, check=True, timeout=60
    )
    return TrainingJob(centre, json.loads(completed.stdout)["jobId"], uri, work)


def submit_by_command(centre: DataCentre, name: str, work: TrainingWork, **changes: Any) -> TrainingJob:
    """Submit a job as a person does: `evenkeel jobs submit -`."""
    uri = f"s3://{CHECKPOINTS_BUCKET}/tests/{name}-{time.time_ns()}"
    context = centre.run_dir / "context-of-a-person.json"
    context.write_text(json.dumps(centre.context()), encoding="utf-8")
    completed = subprocess.run(
        [sys.executable, "-m", "evenkeel_cli.main", "jobs", "submit", "-", "-o", "name"],
        input=json.dumps(work.submission(name, uri) | changes),
        env=os.environ | {"EVENKEEL_CONTEXT": str(context)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return TrainingJob(centre, completed.stdout.strip(), uri, work)


@pytest.mark.timeout(600)
def test_preempted_job_saves_and_resumes_with_the_same_weights(centre: DataCentre) -> None:
    low = submit_by_curl(centre, "low", LONG, team="red", priorityClass="low").reach(9)
    high = submit_by_command(centre, "high", SHORT, team="red", priorityClass="high")
    other = TrainingJob.submit(centre, "other", SHORT, team="blue", priorityClass="high")

    until(
        lambda: (other.why()["decision"] or {}).get("action") == "NO_QUOTA", "the borrower to be told why it waits", 60
    )
    done = high.end()
    back = low.end()

    assert (done["state"], high.digest()) == ("SUCCEEDED", high.expected_digest)
    assert (back["state"], back["currentAttempt"], low.digest()) == ("SUCCEEDED", 2, low.expected_digest)
    stopped, resumed = low.attempt(1), low.attempt(2)
    assert stopped["state"] == "STOPPED"
    assert (
        stopped["reason"] == f"Preempted by {high.job_id} of team red: the preempting job goes first in the same queue."
    )
    assert resumed["resumeFrom"]["step"] >= 8
    assert back["applicationFailures"] == 0
    assert other.end()["state"] == "SUCCEEDED"


def test_job_waits_while_kueue_manages_its_namespace(centre: DataCentre) -> None:
    queue = {"name": "default", "namespace": "red"}
    kind = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue"}
    centre.cluster.apply([local_queues(), {**kind, "metadata": queue, "spec": {"clusterQueue": "research"}}])
    job = TrainingJob.submit(centre, "beside-kueue", SHORT, team="red")

    until(lambda: (job.why()["decision"] or {}).get("action") == "EXCLUDED", "the job to be excluded", 60)
    sentence = job.why()["sentence"]
    centre.cluster.delete("/apis/kueue.x-k8s.io/v1beta2/namespaces/red/localqueues/default")
    done = job.end()

    assert "Kueue admits jobs in namespace red (its LocalQueue default)" in sentence
    assert (done["state"], done["currentAttempt"], job.digest()) == ("SUCCEEDED", 1, job.expected_digest)


def test_team_with_its_own_namespace_runs_and_resumes_there(centre: DataCentre) -> None:
    centre.make_namespace("green")
    queue = {"cohort": "fleet", "groups": [{INSTANCE_TYPE: {"nvidia.com/gpu": 0}}]}
    team = {"name": "green", "queue": queue, "namespace": "green", "serviceAccount": SERVICE_ACCOUNT}
    client = centre.client()
    client.change("PUT", "/teams/green/quota", {"team": team, "reason": "a third team"}, version=0)

    job = TrainingJob.submit(centre, "own-namespace", LONG, team="green").reach(6)
    pods = centre.cluster.get("/api/v1/namespaces/green/pods")["items"]
    client.post(f"/jobs/{job.job_id}/suspend", {"reason": "once round"})
    job.reach_state("SUSPENDED")
    client.post(f"/jobs/{job.job_id}/resume", {"reason": "once round"})
    done = job.end()

    assert done["namespace"] == "green"
    assert {pod["spec"]["serviceAccountName"] for pod in pods} == {SERVICE_ACCOUNT}
    assert (done["state"], done["currentAttempt"], job.digest()) == ("SUCCEEDED", 2, job.expected_digest)
    assert job.attempt(2)["resumeFrom"]["step"] >= 4
    remove_team(centre, "green")
    assert "green" not in [team["team"] for team in client.get("/teams")["items"]]
