"""Jobs with claims: for checkpoints that no function can mount, and for training data.

Rank 0 proves and pins the checkpoints in the cluster, and the job resumes.
"""

import json
from collections.abc import Iterator

import pytest

from evenkeel_client.errors import CommandFailed
from evenkeel_local.data_centre import DataCentre
from evenkeel_local.drills import (
    ENDED,
    JOB_SECONDS,
    TrainingWork,
    await_all_nodes_ready,
    last_step,
    node_of_rank,
    wait_for,
)
from evenkeel_local.reference_run import reference_digest
from tests.local import containers
from tests.local.gpu_cluster.kube_client import KubeClient, a_claim

WORK = TrainingWork(nodes=2, steps=200, checkpoint_every=4, step_seconds=0.15, seed=11, paced_attempts=1)


READS_FOLDERS = "import os, runpy; os.listdir(os.environ['DATA']); open(os.environ['NOTES'], 'w').close(); "
"""Program that each rank runs before the trainer. It fails unless the claim and the scratch folder are mounted."""
ALLOWED = {"claims": [{"name": "fsx", "maxMode": "read-write"}, {"name": "datasets"}], "maxScratchGib": 1}


@pytest.fixture
def claims(data_centre: DataCentre) -> Iterator[None]:
    """Two claims of the jobs' namespace, which the policy allows."""
    client, cluster = data_centre.client(), data_centre.cluster
    path = f"/clusters/{client.fleet}/policy"
    kube = KubeClient(cluster.kubernetes_url, cluster.ca_pem, cluster.admin_token)
    for name in ("fsx", "datasets"):
        kube.create("/api/v1/namespaces/evenkeel-jobs/persistentvolumeclaims", a_claim(name))
    kube.close()
    client.post(path, {"changes": {"jobs": {"allowed": ALLOWED}}, "reason": "a test mounts claims"})
    containers.start_cold(data_centre.deployer.client("lambda"), "api_submit")
    yield
    client.post(path, {"changes": {}, "reason": "the test is over"})


@pytest.mark.usefixtures("claims")
def test_job_with_checkpoints_on_a_claim_resumes_after_a_fault(data_centre: DataCentre) -> None:
    client = data_centre.client()
    await_all_nodes_ready(client, data_centre)
    body = WORK.submission("mounted", "") | {
        "command": ["python", "-c", READS_FOLDERS + "runpy.run_module('evenkeel_trainer', run_name='__main__')"],
        "checkpoint": {"uri": "file:///fsx/research/mounted", "claim": "fsx"},
        "volumes": [{"claim": "datasets", "mountPath": "/data", "subPath": "words"}],
        "scratch": [{"mountPath": "/scratch", "sizeGib": 1}],
        "env": {"DATA": "/data", "NOTES": "/scratch/notes"},
    }
    with pytest.raises(CommandFailed) as refused:
        client.post("/jobs", body | {"volumes": [{"claim": "datasets", "mountPath": "/data", "readOnly": False}]})
    job_id = client.post("/jobs", body)["jobId"]
    wait_for("step 10", JOB_SECONDS, lambda: last_step(client, job_id) >= 10)
    node = node_of_rank(data_centre, client.get(f"/jobs/{job_id}"), 1)

    fault = data_centre.cluster.control("POST", "faults", {"fault": "gpu-xid79", "node": node})
    wait_for("the job to end", JOB_SECONDS, lambda: client.get(f"/jobs/{job_id}")["state"] in ENDED)
    data_centre.cluster.control("DELETE", f"faults/{fault['faultId']}")
    await_all_nodes_ready(client, data_centre)

    job = client.get(f"/jobs/{job_id}")
    (claim,) = data_centre.run_dir.rglob("evenkeel-jobs/fsx")
    folder = claim / "research" / "mounted"
    fence = json.loads((folder / "_fence.d" / f"{job['currentAttempt']}.json").read_text())
    result = json.loads((folder / "result" / f"attempt={job['currentAttempt']}.json").read_text())
    texts = [
        entry["text"] for entry in client.get(f"/jobs/{job_id}/timeline")["entries"] if entry["kind"] == "launched"
    ]
    last = job["attempts"][0]
    assert "volumes.0.readOnly" in refused.value.text + refused.value.hint
    assert len(job["attempts"]) >= 2, "it had ended before its machine failed"
    assert (job["state"], last["isPinned"]) == ("SUCCEEDED", True)
    assert last["resumeFrom"]["step"] == fence["resumeFrom"]["step"]
    assert (fence["grade"], fence["resumeFrom"]["step"] >= 4) == ("PROVED", True)
    assert result["digest"] == reference_digest(WORK.nodes, WORK.steps, WORK.seed)
    assert len(texts) >= 2
    assert all("Rank 0 verifies them" in text for text in texts)
