"""The rows of the fault table, on pods that are real processes."""

import os
from typing import Any

import pytest

from evenkeel_local.gpu_cluster import ClusterFailed, ClusterHandle
from tests.local.gpu_cluster.kube_client import JOBS, NODES, PODS, Json, KubeClient, a_job, condition, eventually

PREFIX = "sagemaker.amazonaws.com/"
SLEEPS = ("python", "-c", "import time; print('up', flush=True); time.sleep(600)")


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def run_job(kube: KubeClient, name: str = "train", completions: int = 2) -> list[Json]:
    kube.create(JOBS, a_job(name, *SLEEPS, completions=completions, gpus=8))

    def running() -> list[Json] | None:
        pods = kube.items(f"{PODS}?labelSelector=app={name}")
        return pods if len(pods) == completions and all(p["status"]["phase"] == "Running" for p in pods) else None

    return eventually(running, "the pods to run")


def node_of(cluster: ClusterHandle, **wanted: Any) -> Json | None:
    for node in cluster.nodes():
        if all(node[key] == value for key, value in wanted.items()):
            return node
    return None


def test_xid_79_ends_the_gpu_processes_and_marks_the_node(cluster: ClusterHandle, kube: KubeClient) -> None:
    victim = run_job(kube)[0]
    name = victim["spec"]["nodeName"]

    injected = cluster.inject("gpu-xid79", node=name)
    failed = kube.until(f"{JOBS}/train", lambda job: condition(job, "Failed"), "the job to fail")
    node = kube.until(
        f"{NODES}/{name}", lambda node: f"{PREFIX}fault-types" in node["metadata"]["labels"], "the agent's labels"
    )

    assert injected["processesHit"] == 1
    assert failed["status"]["failed"] >= 1
    labels = node["metadata"]["labels"]
    assert labels[f"{PREFIX}fault-types"] == "NvidiaErrorTerminate"
    assert labels[f"{PREFIX}node-health-status"] == "UnschedulablePendingReplacement"
    assert "): 79," in node["metadata"]["annotations"][f"{PREFIX}fault-details"]
    assert condition(node, "NvidiaErrorTerminate") == "True"
    assert {"key": f"{PREFIX}node-health-status", "value": "Unschedulable", "effect": "NoSchedule"} in node["spec"][
        "taints"
    ]
    sent = cluster.control("GET", "events")["events"]
    assert [event["detail"]["InstanceId"] for event in sent] == [injected["instanceId"]]
    assert sent[0]["detail"]["HealthSummary"]["HealthStatus"] == "Unhealthy"


def test_a_reboot_cures_a_fault_that_asks_for_one(cluster: ClusterHandle, kube: KubeClient, sagemaker: Any) -> None:
    name = run_job(kube)[0]["spec"]["nodeName"]
    injected = cluster.inject("gpu-xid79", node=name, faultType="NvidiaErrorReboot")
    before = kube.until(f"{NODES}/{name}", lambda node: condition(node, "NvidiaErrorReboot") == "True", "the mark")

    sagemaker.batch_reboot_cluster_nodes(ClusterName=cluster.cluster_name, NodeIds=[injected["instanceId"]])
    after = kube.until(f"{NODES}/{name}", lambda node: condition(node, "NvidiaErrorReboot") == "False", "the cure")

    assert after["status"]["nodeInfo"]["bootID"] != before["status"]["nodeInfo"]["bootID"]
    assert f"{PREFIX}fault-types" not in after["metadata"]["labels"]
    assert after["metadata"]["labels"][f"{PREFIX}node-health-status"] == "Schedulable"
    assert [
        event["detail"]["HealthSummary"]["HealthStatus"] for event in cluster.control("GET", "events")["events"]
    ] == [
        "Unhealthy",
        "Healthy",
    ]


def test_a_lost_node_keeps_its_processes_until_the_machine_goes(
    cluster: ClusterHandle, kube: KubeClient, sagemaker: Any
) -> None:
    victim = run_job(kube)[0]
    name, pod = victim["spec"]["nodeName"], victim["metadata"]["name"]
    pid = next(process["pid"] for process in cluster.processes() if process["pod"] == pod)

    cluster.inject("node-lost", node=name)
    node = kube.until(f"{NODES}/{name}", lambda node: condition(node, "Ready") == "Unknown", "the node to be lost")
    kube.until(f"{NODES}/{name}", lambda node: len(node["spec"].get("taints", [])) == 2, "the taints")
    kube.delete(f"{JOBS}/train", {"propagationPolicy": "Background"})
    stuck = kube.until(f"{PODS}/{pod}", lambda pod: pod["metadata"].get("deletionTimestamp"), "the deletion")
    kube.delete(f"{PODS}/{pod}", {"gracePeriodSeconds": 0})
    kube.until_gone(f"{PODS}/{pod}")

    assert stuck["status"]["phase"] == "Running"
    assert is_alive(pid)
    assert cluster.processes()[0]["behindPartition"]
    assert cluster.control("GET", "events")["events"] == []
    instance = name.removeprefix("hyperpod-")
    sagemaker.batch_replace_cluster_nodes(ClusterName=cluster.cluster_name, NodeIds=[instance])
    eventually(lambda: not is_alive(pid), "the process to go with its machine")
    kube.until_gone(f"{NODES}/{name}")
    assert node["status"]["conditions"][-1]["reason"] == "NodeStatusUnknown"


def test_a_terminating_pod_of_a_lost_node_goes_with_the_node(
    cluster: ClusterHandle, kube: KubeClient, sagemaker: Any
) -> None:
    victim = run_job(kube)[0]
    name = victim["spec"]["nodeName"]
    cluster.inject("node-lost", node=name)

    kube.delete(f"{JOBS}/train", {"propagationPolicy": "Foreground"})
    kube.until(f"{PODS}?labelSelector=app=train", lambda pods: len(pods["items"]) == 1, "the other pod to be gone")
    sagemaker.batch_replace_cluster_nodes(ClusterName=cluster.cluster_name, NodeIds=[name.removeprefix("hyperpod-")])

    kube.until_gone(f"{JOBS}/train")


def test_a_healed_partition_ends_what_was_deleted_meanwhile(cluster: ClusterHandle, kube: KubeClient) -> None:
    victim = run_job(kube)[0]
    pid = next(process["pid"] for process in cluster.processes() if process["pod"] == victim["metadata"]["name"])
    injected = cluster.inject("node-lost", node=victim["spec"]["nodeName"])
    kube.delete(f"{JOBS}/train", {"propagationPolicy": "Foreground"})

    cluster.clear(injected["faultId"])

    kube.until_gone(f"{JOBS}/train")
    eventually(lambda: not is_alive(pid), "the process to end")
    kube.until(
        f"{NODES}/{victim['spec']['nodeName']}", lambda node: condition(node, "Ready") == "True", "the node to be ready"
    )


def test_an_application_crash_leaves_the_node_alone(cluster: ClusterHandle, kube: KubeClient) -> None:
    run_job(kube)

    injected = cluster.inject("app-crash", job="default/train")
    pod = kube.until(
        f"/api/v1/namespaces/{injected['pod'].replace('/', '/pods/')}",
        lambda pod: pod["status"]["phase"] == "Failed",
        "the pod to fail",
    )

    ended = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (1, "Error")
    assert cluster.control("GET", "events")["events"] == []
    assert all(node["ready"] == "True" for node in cluster.nodes())


def test_a_stuck_replacement_stays_pending_until_cleared(
    cluster: ClusterHandle, kube: KubeClient, sagemaker: Any
) -> None:
    run_job(kube)
    injected = cluster.inject("stuck-replace", job="train")
    slot = injected["nodeLogicalId"]
    sagemaker.batch_replace_cluster_nodes(ClusterName=cluster.cluster_name, NodeLogicalIds=[slot])

    stuck = eventually(lambda: node_of(cluster, nodeLogicalId=slot, status="Pending"), "the replacement to begin")
    eventually(lambda: (node_of(cluster, nodeLogicalId=slot) or {}).get("message"), "the reason")
    described = sagemaker.describe_cluster_node(ClusterName=cluster.cluster_name, NodeLogicalId=slot)["NodeDetails"]
    cluster.clear(injected["faultId"])
    back = eventually(lambda: node_of(cluster, nodeLogicalId=slot, status="Running", ready="True"), "the node")

    assert described["InstanceStatus"]["Status"] == "Pending"
    assert described["InstanceStatus"]["Message"].startswith("We currently do not have sufficient capacity")
    assert stuck["instanceId"] == back["instanceId"] != injected["instanceId"]


def test_an_unknown_fault_is_refused_with_a_sentence(cluster: ClusterHandle) -> None:
    with pytest.raises(ClusterFailed, match="there is no fault 'quake'"):
        cluster.inject("quake")
    with pytest.raises(ClusterFailed, match="no node runs a pod of any job"):
        cluster.inject("gpu-xid79")
