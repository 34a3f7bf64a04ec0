"""Checkpoints on storage that no function can mount: rank 0 proves and pins in the cluster, and the job resumes."""

import json

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
from tests.local.gpu_cluster.kube_client import KubeClient, a_claim

WORK = TrainingWork(nodes=2, steps=200, checkpoint_every=4, step_seconds=0.15, seed=11, paced_attempts=1)


def test_job_with_checkpoints_on_a_claim_resumes_after_a_fault(data_centre: DataCentre) -> None:
    client, cluster = data_centre.client(), data_centre.cluster
    kube = KubeClient(cluster.kubernetes_url, cluster.ca_pem, cluster.admin_token)
    kube.create("/api/v1/namespaces/evenkeel-jobs/persistentvolumeclaims", a_claim("fsx"))
    kube.close()
    await_all_nodes_ready(client, data_centre)
    body = WORK.submission("mounted", "") | {"checkpoint": {"uri": "file:///fsx/research/mounted", "claim": "fsx"}}
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
    told = [entry["text"] for entry in client.get(f"/jobs/{job_id}/timeline")["entries"] if entry["kind"] == "launched"]
    last = job["attempts"][0]
    assert len(job["attempts"]) >= 2, "it had ended before its machine failed"
    assert (job["state"], last["isPinned"]) == ("SUCCEEDED", True)
    assert last["resumeFrom"]["step"] == fence["resumeFrom"]["step"]
    assert (fence["grade"], fence["resumeFrom"]["step"] >= 4) == ("PROVED", True)
    assert result["digest"] == reference_digest(WORK.nodes, WORK.steps, WORK.seed)
    assert len(told) >= 2
    assert all("Rank 0 verifies them" in text for text in told)
