"""State across restarts, and snapshots through the control address."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from evenkeel_local import gpu_cluster
from evenkeel_local.gpu_cluster import ClusterFailed, ClusterHandle
from tests.local.gpu_cluster.conftest import QUICK, aws_client
from tests.local.gpu_cluster.kube_client import (
    JOBS,
    NODES,
    PODS,
    Json,
    KubeClient,
    a_job,
    a_pod,
    condition,
    eventually,
)

SLEEPS = ("python", "-c", "import time; time.sleep(600)")
MAPS = "/api/v1/namespaces/default/configmaps"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"


def client(handle: ClusterHandle) -> KubeClient:
    return KubeClient(handle.kubernetes_url, handle.ca_pem, handle.admin_token)


def identity(nodes: list[Json]) -> set[tuple[Any, ...]]:
    return {(node["instanceId"], node["nodeLogicalId"], node["launchTime"]) for node in nodes}


def test_restart_keeps_objects_and_node_lives_and_reports_losses(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with gpu_cluster.start(QUICK, tmp_path / "one", data_dir=data) as first:
        kube = client(first)
        eventually(lambda: all(node["ready"] == "True" for node in first.nodes()), "the nodes")
        kube.create(MAPS, {"metadata": {"name": "kept"}, "data": {"a": "1"}})
        kube.create(JOBS, a_job("train", *SLEEPS, gpus=8))
        kube.create(PODS, a_pod("again", "python", "-c", "print('ran')", restartPolicy="OnFailure", gpus=9))
        kube.until(f"{JOBS}/train", lambda job: job["status"].get("ready") == 1, "the job to run")
        before, version = first.nodes(), kube.get(MAPS)["metadata"]["resourceVersion"]
        boots = {node["instanceId"]: node["bootId"] for node in before}
        kept = kube.get(f"{MAPS}/kept")
        kube.close()

    with gpu_cluster.start(QUICK, tmp_path / "two", data_dir=data) as second:
        kube = client(second)
        job = kube.until(f"{JOBS}/train", lambda job: condition(job, "Failed") == "True", "the loss to be told")
        eventually(lambda: all(node["ready"] == "True" for node in second.nodes()), "the nodes to be back")
        after = second.nodes()
        restored = kube.get(f"{MAPS}/kept")
        stale = next(kube.watch(f"{MAPS}?resourceVersion={version}"))
        waiting = kube.get(f"{PODS}/again")
        kube.close()

    assert restored == kept
    assert identity(after) == identity(before)
    assert all(node["bootId"] != boots[node["instanceId"]] for node in after)
    assert job["status"]["failed"] == 1
    assert (stale["type"], stale["object"]["code"]) == ("ERROR", 410)
    assert condition(waiting, "PodScheduled") == "False"


def test_replacement_continues_after_a_restart(tmp_path: Path) -> None:
    slow = {**QUICK, "delays": {**QUICK["delays"], "replace": 30.0}}
    data = tmp_path / "data"
    with gpu_cluster.start(slow, tmp_path / "one", data_dir=data) as first:
        eventually(lambda: all(node["ready"] == "True" for node in first.nodes()), "the nodes")
        slot = first.nodes()[0]["nodeLogicalId"]
        sagemaker = aws_client("sagemaker", first.sagemaker_url)
        sagemaker.batch_replace_cluster_nodes(ClusterName=first.cluster_name, NodeLogicalIds=[slot])
        pending = eventually(
            lambda: next((n for n in first.nodes() if n["nodeLogicalId"] == slot and n["status"] == "Pending"), None),
            "the new life",
        )

    with gpu_cluster.start(QUICK, tmp_path / "two", data_dir=data) as second:
        back = eventually(
            lambda: next((n for n in second.nodes() if n["nodeLogicalId"] == slot and n["ready"] == "True"), None),
            "the replacement to end",
        )
        counted = second.control("GET", "counters")["accepted"]["replace"]

    assert back["instanceId"] == pending["instanceId"]
    assert sum(counted.values()) == 1


def test_restarted_cluster_fills_a_slot_whose_launch_had_failed(tmp_path: Path) -> None:
    slow = {**QUICK, "delays": {**QUICK["delays"], "terminate": 30.0}}
    data = tmp_path / "data"
    with gpu_cluster.start(slow, tmp_path / "one", data_dir=data) as first:
        eventually(lambda: all(node["ready"] == "True" for node in first.nodes()), "the nodes")
        first.inject("boot-failing", instanceGroup="p5-workers", times=1)
        sagemaker = aws_client("sagemaker", first.sagemaker_url)
        sagemaker.update_cluster(ClusterName=first.cluster_name, AutoScaling={"Mode": "Enable"})
        wish = {"InstanceGroupName": "p5-workers", "IncrementTargetCountBy": 1}
        added = sagemaker.batch_add_cluster_nodes(ClusterName=first.cluster_name, ClientToken="t", NodesToAdd=[wish])
        slot = added["Successful"][0]["NodeLogicalId"]
        eventually(lambda: all(node["nodeLogicalId"] != slot for node in first.nodes()), "the first attempt to fail")

    with gpu_cluster.start(QUICK, tmp_path / "two", data_dir=data) as second:
        sagemaker = aws_client("sagemaker", second.sagemaker_url)
        back = eventually(
            lambda: next((n for n in second.nodes() if n["nodeLogicalId"] == slot and n["ready"] == "True"), None),
            "the slot to be filled",
        )
        scaler = sagemaker.describe_cluster(ClusterName=second.cluster_name)["AutoScaling"]["AutoScalerType"]

    assert back["message"] == "Lifecycle scripts did not run successfully."
    assert scaler == "Karpenter"


def test_killed_cluster_returns_to_its_last_snapshot(tmp_path: Path) -> None:
    data = tmp_path / "data"
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": a_pod("web", *SLEEPS, restartPolicy="Always")["spec"]}
    deployment = {"spec": {"replicas": 3, "selector": {"matchLabels": labels}, "template": template}}
    with gpu_cluster.start(QUICK, tmp_path / "one", data_dir=data) as first:
        kube = client(first)
        kube.create(DEPLOYMENTS, {"metadata": {"name": "web"}, **deployment})
        kube.until(f"{DEPLOYMENTS}/web", is_available, "the replicas")
        revision = int(kube.get(PODS)["metadata"]["resourceVersion"])
        path = data / "snapshot.json"
        eventually(lambda: path.exists() and json.loads(path.read_text())["revision"] >= revision, "a snapshot")
        pids = [process["pid"] for process in first.control("GET", "processes?running=true")["processes"]]
        for number in range(20):  # some of these pods are in no snapshot
            last = kube.create(MAPS, {"metadata": {"name": f"late-{number}"}})["metadata"]["resourceVersion"]
        os.kill(first.pid, signal.SIGKILL)
        kube.close()
        eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "every process to end")

    with gpu_cluster.start(QUICK, tmp_path / "two", data_dir=data) as second:
        kube = client(second)
        document = next(kube.watch(f"{MAPS}?resourceVersion={last}"))
        back = kube.until(f"{DEPLOYMENTS}/web", is_available, "the replicas to be back", 30)
        fresh = int(kube.create(MAPS, {"metadata": {"name": "fresh"}})["metadata"]["resourceVersion"])
        running = second.control("GET", "processes?running=true")["processes"]
        kube.close()

    assert len(pids) == len(running) == 3
    assert back["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "1"
    assert (document["type"], document["object"]["code"]) == ("ERROR", 410)
    assert fresh > int(last)


def is_available(deployment: Json) -> bool:
    return bool(deployment.get("status", {}).get("availableReplicas") == 3)


def test_snapshot_with_every_object_is_restored(cluster: ClusterHandle, kube: KubeClient) -> None:
    kube.create(MAPS, {"metadata": {"name": "kept"}, "data": {"a": "1"}})
    names = {node["metadata"]["name"] for node in kube.items(NODES)}
    snapshot = cluster.control("GET", "snapshot")
    kube.delete(f"{MAPS}/kept")

    cluster.control("PUT", "snapshot", snapshot)

    assert kube.get(f"{MAPS}/kept")["data"] == {"a": "1"}
    assert {node["metadata"]["name"] for node in kube.items(NODES)} == names
    eventually(lambda: all(node["ready"] == "True" for node in cluster.nodes()), "the nodes")
    kube.create(PODS, a_pod("one", "python", "-c", "pass"))
    kube.until(f"{PODS}/one", lambda pod: pod["status"]["phase"] == "Succeeded", "a pod to run")


@pytest.mark.parametrize(
    ("change", "expected"),
    [({"schemaVersion": 9}, "schema version 9"), ({"clusterArn": "arn:other"}, "is of arn:other")],
)
def test_snapshot_of_another_format_is_refused(cluster: ClusterHandle, change: Json, expected: str) -> None:
    snapshot = cluster.control("GET", "snapshot")

    with pytest.raises(ClusterFailed, match=expected):
        cluster.control("PUT", "snapshot", {**snapshot, **change})

    assert cluster.nodes()
