"""The lifecycle of nodes and of the cluster's process, which leaves no child processes."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evenkeel_local import gpu_cluster
from evenkeel_local.gpu_cluster import ClusterFailed, ClusterHandle
from evenkeel_local.gpu_cluster.__main__ import main
from tests.local.gpu_cluster.conftest import QUICK, aws_client
from tests.local.gpu_cluster.kube_client import JOBS, NODES, PODS, Json, KubeClient, a_job, a_pod, condition, eventually

SLEEPS = ("python", "-c", "import time; print('up', flush=True); time.sleep(600)")
TAINT = {"key": "evenkeel.io/awaiting-validation", "value": "true", "effect": "NoSchedule"}


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def start_pods(handle: ClusterHandle, kube: KubeClient, count: int) -> list[int]:
    for number in range(count):
        kube.create(PODS, a_pod(f"p{number}", *SLEEPS, gpus=8))
    running = eventually(lambda: processes if len(processes := handle.processes()) == count else None, "the processes")
    return [int(process["pid"]) for process in running]


def test_stopped_cluster_leaves_no_process(tmp_path: Path) -> None:
    handle = gpu_cluster.start(QUICK, tmp_path / "run")
    kube = KubeClient(handle.kubernetes_url, handle.ca_pem, handle.admin_token)
    pids = start_pods(handle, kube, 2)

    handle.stop()
    handle.stop()

    kube.close()
    assert not handle.is_running
    assert not any(is_alive(pid) for pid in pids)
    assert not (tmp_path / "run" / "state.json").exists()
    assert (tmp_path / "run" / "cluster.log").read_text() == ""


def test_killed_cluster_leaves_no_process(tmp_path: Path) -> None:
    handle = gpu_cluster.start(QUICK, tmp_path / "run")
    kube = KubeClient(handle.kubernetes_url, handle.ca_pem, handle.admin_token)
    spawn = "import subprocess, time; subprocess.Popen(['sleep', '601'], start_new_session=True); time.sleep(600)"
    kube.create(PODS, a_pod("spawner", "python", "-c", spawn))
    leader = eventually(lambda: next(iter(handle.processes()), None), "the process")["pid"]
    escaped = eventually(lambda: _children(leader), "the process that leaves its group")

    os.kill(handle.pid, signal.SIGKILL)

    eventually(lambda: not any(is_alive(pid) for pid in (leader, *escaped)), "the processes to be gone")
    kube.close()
    handle.stop()


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def test_invalid_configuration_is_refused_with_a_reason(tmp_path: Path) -> None:
    with pytest.raises(ClusterFailed, match=r"delays\.bot"):
        gpu_cluster.start({"delays": {"bot": 1}}, tmp_path / "run")


def as_a_program(*arguments: str) -> tuple[int, str]:
    """Run the cluster as a program until it ends. Return its exit code and its error output."""
    command = [sys.executable, "-m", "evenkeel_local.gpu_cluster", "--no-auth", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return done.returncode, done.stderr


def test_taken_port_is_an_error(running_cluster: ClusterHandle) -> None:
    port = running_cluster.control_url.rsplit(":", 1)[1]

    printed = as_a_program("--control-port", port)

    assert printed == (1, f"the cluster cannot start: port {port} of 127.0.0.1: Address already in use\n")


def test_restarted_cluster_keeps_addresses_and_certificates(tmp_path: Path) -> None:
    data = tmp_path / "data"
    first = gpu_cluster.start(QUICK, tmp_path / "run", data_dir=data)
    os.kill(first.pid, signal.SIGKILL)
    eventually(lambda: not first.is_running, "the cluster to be gone")
    first.stop()

    with gpu_cluster.start(QUICK, tmp_path / "run", data_dir=data, after=first) as second:
        same = ("sagemaker_url", "kubernetes_url", "control_url", "ca_pem", "admin_token", "cluster_arn")
        assert [name for name in same if getattr(first, name) != getattr(second, name)] == []
        assert second.get("/api/v1/namespaces/default")["metadata"]["name"] == "default"


def test_second_cluster_in_a_used_folder_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with gpu_cluster.start(QUICK, tmp_path / "run", data_dir=data):
        refused = [as_a_program("--data", str(data)), as_a_program("--run-dir", str(tmp_path / "run"))]

    folders = [data, tmp_path / "run"]
    assert refused == [
        (1, f"the cluster cannot start: the folder {item} is in use by another cluster\n") for item in folders
    ]
    gpu_cluster.start(QUICK, tmp_path / "run", data_dir=data).stop()


@pytest.mark.parametrize("content", ["garbage", "[]"])
def test_file_that_is_no_snapshot_is_not_overwritten(tmp_path: Path, content: str) -> None:
    (tmp_path / "snapshot.json").write_text(content)

    code, printed = as_a_program("--data", str(tmp_path))

    assert (code, "is no snapshot" in printed, "Traceback" in printed) == (1, True, False)
    assert (tmp_path / "snapshot.json").read_text() == content


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ("{", "Expecting property name"),
        ("[]", "the document: Input should be"),
        ('{"delays": {"bot": 1}}', "delays.bot: Extra inputs are not permitted"),
        ('{"instanceGroups": [{"name": "a b"}]}', "instanceGroups.0.name: String should match pattern"),
        ('{"instanceGroups": [{"name": "a"}, {"name": "a"}]}', "there is more than one instance group named a"),
        ('{"instanceGroups": [{"name": "a", "instanceType": "ml.zz.big"}]}', "has no instance type ml.zz.big"),
    ],
)
def test_invalid_configuration_is_reported_on_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], document: str, expected: str
) -> None:
    config = tmp_path / "config.json"
    config.write_text(document)

    code = main(["--no-auth", "--config", str(config)])

    complaint = capsys.readouterr().err
    assert code == 2
    assert complaint.startswith("the configuration cannot be used: ")
    assert expected in complaint
    assert complaint.count("\n") == 1


# Nodes


def test_node_has_the_shape_of_a_hyperpod_node(cluster: ClusterHandle, kube: KubeClient, sagemaker: Any) -> None:
    node = kube.items(NODES)[0]
    summary = next(
        item
        for item in sagemaker.list_cluster_nodes(ClusterName=cluster.cluster_name, IncludeNodeLogicalIds=True)[
            "ClusterNodeSummaries"
        ]
        if node["metadata"]["name"] == f"hyperpod-{item['InstanceId']}"
    )

    cluster_id = cluster.cluster_arn.rsplit("/", 1)[1]
    assert node["spec"]["providerID"] == (
        f"aws:///usw2-az1/sagemaker/cluster/hyperpod-{cluster_id}-{summary['InstanceId']}"
    )
    labels = node["metadata"]["labels"]
    assert labels["sagemaker.amazonaws.com/compute-type"] == "hyperpod"
    assert labels["sagemaker.amazonaws.com/instance-group-name"] == "p5-workers"
    assert labels["node.kubernetes.io/instance-type"] == "ml.p5.48xlarge"
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    lease = kube.get(f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{node['metadata']['name']}")
    later = kube.until(
        f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{node['metadata']['name']}",
        lambda now: now["spec"]["renewTime"] > lease["spec"]["renewTime"],
        "the next heartbeat",
    )
    assert later["spec"]["holderIdentity"] == node["metadata"]["name"]


def test_pods_of_a_lost_node_are_evicted_after_toleration(cluster: ClusterHandle, kube: KubeClient) -> None:
    tolerations = [
        {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0},
        {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0},
    ]
    kube.create(PODS, a_pod("impatient", *SLEEPS, tolerations=tolerations))
    node = kube.until(f"{PODS}/impatient", lambda pod: pod["status"]["phase"] == "Running", "it to run")["spec"][
        "nodeName"
    ]
    kube.create(PODS, a_pod("patient", *SLEEPS, nodeName=node))
    kube.until(f"{PODS}/patient", lambda pod: pod["status"]["phase"] == "Running", "it to run")

    cluster.inject("node-lost", node=node)
    evicted = kube.until(f"{PODS}/impatient", lambda pod: pod["metadata"].get("deletionTimestamp"), "the eviction")

    assert condition(evicted, "DisruptionTarget") == "True"
    assert evicted["status"]["phase"] == "Running"
    assert "deletionTimestamp" not in kube.get(f"{PODS}/patient")["metadata"]
    assert condition(kube.get(f"{PODS}/patient"), "Ready") == "False"


def test_out_of_service_taint_removes_terminating_pods_of_the_node(cluster: ClusterHandle, kube: KubeClient) -> None:
    kube.create(PODS, a_pod("stuck", *SLEEPS))
    node = kube.until(f"{PODS}/stuck", lambda pod: pod["status"]["phase"] == "Running", "it to run")["spec"]["nodeName"]
    cluster.inject("node-lost", node=node)
    kube.until(f"{NODES}/{node}", lambda obj: condition(obj, "Ready") == "Unknown", "the node to be lost")
    kube.delete(f"{PODS}/stuck")
    assert kube.get(f"{PODS}/stuck")["metadata"]["deletionTimestamp"]

    taint = {
        "op": "add",
        "path": "/spec/taints/-",
        "value": {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"},
    }
    kube.patch(f"{NODES}/{node}", [taint], "application/json-patch+json")

    kube.until_gone(f"{PODS}/stuck")


def test_reboot_keeps_the_instance_and_clears_the_fault(
    cluster: ClusterHandle, kube: KubeClient, sagemaker: Any
) -> None:
    kube.create(JOBS, a_job("train", *SLEEPS, completions=1, gpus=8))
    pod = eventually(lambda: next((p for p in kube.items(PODS) if p["status"]["phase"] == "Running"), None), "the pod")
    name = pod["spec"]["nodeName"]
    instance, boot = name.removeprefix("hyperpod-"), kube.get(f"{NODES}/{name}")["status"]["nodeInfo"]["bootID"]
    pid = cluster.processes()[0]["pid"]

    answer = sagemaker.batch_reboot_cluster_nodes(ClusterName=cluster.cluster_name, NodeIds=[instance])
    during = kube.until(f"{NODES}/{name}", lambda node: condition(node, "Ready") == "False", "the node to go down")
    again = sagemaker.batch_reboot_cluster_nodes(ClusterName=cluster.cluster_name, NodeIds=[instance])
    after = kube.until(f"{NODES}/{name}", lambda node: condition(node, "Ready") == "True", "the node to be back")
    job = kube.until(f"{JOBS}/train", lambda job: condition(job, "Failed") == "True", "the job to fail")

    assert answer["Successful"] == [instance]
    assert again["Failed"][0]["ErrorCode"] == "InstanceIdInUse"
    assert during["metadata"]["uid"] == after["metadata"]["uid"]
    assert after["status"]["nodeInfo"]["bootID"] != boot
    assert not is_alive(pid)
    assert job["status"]["failed"] == 1
    assert cluster.control("GET", "counters")["accepted"]["reboot"] == {instance: 1}


def test_kubelet_fills_a_node_object_that_client_created(
    cluster: ClusterHandle, kube: KubeClient, sagemaker: Any
) -> None:
    name = kube.items(NODES)[0]["metadata"]["name"]
    kube.delete(f"{NODES}/{name}")
    kube.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"team": "red"}}})

    sagemaker.batch_reboot_cluster_nodes(ClusterName=cluster.cluster_name, NodeIds=[name.removeprefix("hyperpod-")])
    node = kube.until(
        f"{NODES}/{name}",
        lambda node: condition(node, "Ready") == "True" and "nodeInfo" in node["status"],
        "the node to be back",
    )

    assert node["metadata"]["labels"]["team"] == "red"
    assert node["metadata"]["labels"]["node.kubernetes.io/instance-type"]
    assert node["status"]["allocatable"]["nvidia.com/gpu"]
    assert node["spec"]["providerID"]


def test_replacement_node_has_new_instance_and_same_slot(tmp_path: Path) -> None:
    config: Json = {**QUICK, "instanceGroups": [{"name": "p5-workers", "count": 1, "taints": [TAINT]}]}
    with gpu_cluster.start(config, tmp_path / "run") as handle:
        kube = KubeClient(handle.kubernetes_url, handle.ca_pem, handle.admin_token)
        sagemaker = aws_client("sagemaker", handle.sagemaker_url)
        eventually(lambda: handle.nodes()[0]["ready"] == "True", "the node")
        before = handle.nodes()[0]
        kube.create(PODS, a_pod("one", *SLEEPS, tolerations=[{"operator": "Exists"}]))
        pid = eventually(lambda: next(iter(handle.processes()), None), "the process")["pid"]
        kube.patch(f"{NODES}/{before['name']}", {"spec": {"taints": None}})

        sagemaker.batch_replace_cluster_nodes(ClusterName=handle.cluster_name, NodeLogicalIds=[before["nodeLogicalId"]])
        after = eventually(
            lambda: next((n for n in handle.nodes() if n["name"] != before["name"] and n["ready"] == "True"), None),
            "the new node",
        )
        new = kube.get(f"{NODES}/{after['name']}")
        node = sagemaker.list_cluster_nodes(ClusterName=handle.cluster_name)["ClusterNodeSummaries"]
        kube.until_gone(f"{PODS}/one")
        kube.close()

    assert not is_alive(pid)
    assert after["nodeLogicalId"] == before["nodeLogicalId"]
    assert after["instanceId"] != before["instanceId"]
    assert after["launchTime"] > before["launchTime"]
    assert TAINT in new["spec"]["taints"]
    assert [item["InstanceId"] for item in node] == [after["instanceId"]]


def test_cordoned_node_has_the_unschedulable_taint(cluster: ClusterHandle, kube: KubeClient) -> None:
    name = kube.items(NODES)[0]["metadata"]["name"]

    kube.patch(f"{NODES}/{name}", {"spec": {"unschedulable": True}})
    tainted = kube.until(f"{NODES}/{name}", lambda node: node["spec"].get("taints"), "the taint")
    kube.patch(f"{NODES}/{name}", {"spec": {"unschedulable": None}})
    kube.until(f"{NODES}/{name}", lambda node: not node["spec"].get("taints"), "the taint to go")

    assert [taint["key"] for taint in tainted["spec"]["taints"]] == ["node.kubernetes.io/unschedulable"]
