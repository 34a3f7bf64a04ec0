"""The faults of the documented table, on pods with real processes."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from evenkeel_local import gpu_cluster
from evenkeel_local.gpu_cluster import ClusterFailed, ClusterHandle
from evenkeel_local.gpu_cluster.faults import ROWS
from tests.local.gpu_cluster.conftest import QUICK, aws_client
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


def test_xid_79_ends_gpu_processes_and_marks_the_node(cluster: ClusterHandle, kube: KubeClient) -> None:
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


def test_reboot_clears_a_rebootable_fault(cluster: ClusterHandle, kube: KubeClient, sagemaker: Any) -> None:
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


def test_processes_of_a_lost_node_run_until_the_machine_ends(
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


def test_terminating_pod_of_a_lost_node_is_removed_with_it(
    cluster: ClusterHandle, kube: KubeClient, sagemaker: Any
) -> None:
    victim = run_job(kube)[0]
    name = victim["spec"]["nodeName"]
    cluster.inject("node-lost", node=name)

    kube.delete(f"{JOBS}/train", {"propagationPolicy": "Foreground"})
    kube.until(f"{PODS}?labelSelector=app=train", lambda pods: len(pods["items"]) == 1, "the other pod to be gone")
    sagemaker.batch_replace_cluster_nodes(ClusterName=cluster.cluster_name, NodeIds=[name.removeprefix("hyperpod-")])

    kube.until_gone(f"{JOBS}/train")


def test_healed_partition_ends_pods_deleted_during_it(cluster: ClusterHandle, kube: KubeClient) -> None:
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


def test_application_crash_leaves_the_node_healthy(cluster: ClusterHandle, kube: KubeClient) -> None:
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


def test_stuck_replacement_stays_pending_until_cleared(
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


@pytest.mark.parametrize(
    ("code", "ends", "fault_type"),
    [(79, True, "NvidiaErrorTerminate"), (95, True, "NvidiaErrorReboot"), (13, True, ""), (63, False, "")],
)
def test_injected_xid_has_the_effect_of_its_code(
    cluster: ClusterHandle, kube: KubeClient, code: int, ends: bool, fault_type: str
) -> None:
    name = run_job(kube)[0]["spec"]["nodeName"]
    pid = next(process["pid"] for process in cluster.processes() if process["node"] == name)

    injected = cluster.inject("gpu-xid", node=name, code=code)
    if ends:
        eventually(lambda: not is_alive(pid), "the process to abort")
    if fault_type:
        mark = f"{PREFIX}fault-details"
        node = kube.until(f"{NODES}/{name}", lambda obj: mark in obj["metadata"].get("annotations", {}), "the mark")
        assert f"): {code}," in node["metadata"]["annotations"][mark]
        assert node["metadata"]["labels"][f"{PREFIX}fault-types"] == fault_type
    else:
        # Marking a node without pods takes equally long, so a mark of this node would be visible by now.
        other = next(node["name"] for node in cluster.nodes() if not node["pods"])
        cluster.inject("gpu-xid79", node=other)
        eventually(lambda: node_of(cluster, name=other, unhealthy=["NvidiaErrorTerminate", "XidHardwareFailure"]), "it")
        assert (node_of(cluster, name=name) or {})["unhealthy"] is None

    assert is_alive(pid) is not ends
    assert injected["processesHit"] == int(ends)


def test_second_fault_is_reported_beside_the_first(cluster: ClusterHandle, kube: KubeClient) -> None:
    name = cluster.nodes()[0]["name"]
    for code in (48, 79):
        cluster.inject("gpu-xid", node=name, code=code)

    def both() -> list[str] | None:
        node = kube.get(f"{NODES}/{name}")
        details = json.loads(node["metadata"].get("annotations", {}).get(f"{PREFIX}fault-details", "[]"))
        return [item["type"] for item in details] if len(details) == 2 else None

    assert eventually(both, "both faults") == ["NvidiaErrorReboot", "NvidiaErrorTerminate"]


def test_stopped_health_agent_reports_nothing_until_a_reboot(
    cluster: ClusterHandle, kube: KubeClient, sagemaker: Any
) -> None:
    first, second, _ = cluster.nodes()
    cluster.inject("health-silent", node=first["name"])
    for node in (first, second):
        cluster.inject("gpu-xid79", node=node["name"])
    eventually(lambda: (node_of(cluster, name=second["name"]) or {})["unhealthy"], "the agent that still lives")

    assert (node_of(cluster, name=first["name"]) or {})["unhealthy"] is None
    assert [event["detail"]["InstanceId"] for event in cluster.control("GET", "events")["events"]] == [
        second["instanceId"]
    ]
    sagemaker.batch_reboot_cluster_nodes(ClusterName=cluster.cluster_name, NodeIds=[first["instanceId"]])
    eventually(lambda: node_of(cluster, name=first["name"], operation=None, ready="True"), "the reboot")
    cluster.inject("gpu-xid79", node=first["name"])
    eventually(lambda: (node_of(cluster, name=first["name"]) or {})["unhealthy"], "the agent to speak again")


def test_flapping_node_alternates_between_not_ready_and_ready(cluster: ClusterHandle, kube: KubeClient) -> None:
    victim = run_job(kube)[0]
    path = f"{NODES}/{victim['spec']['nodeName']}"
    pid = next(process["pid"] for process in cluster.processes() if process["pod"] == victim["metadata"]["name"])

    injected = cluster.inject("node-flap", node=victim["spec"]["nodeName"], seconds=0.3)
    for _ in range(2):
        kube.until(path, lambda node: condition(node, "Ready") == "Unknown", "the node to be lost")
        kube.until(path, lambda node: condition(node, "Ready") == "True", "the node to be back")
    cluster.clear(injected["faultId"])

    kube.until(path, lambda node: condition(node, "Ready") == "True", "the node to stay")
    assert is_alive(pid)
    assert node_of(cluster, name=victim["spec"]["nodeName"], connected=True)


def test_zone_outage_affects_only_its_zone(tmp_path: Path) -> None:
    other_zone = {"name": "there", "count": 2, "availabilityZone": "us-west-2b", "availabilityZoneId": "usw2-az2"}
    config = {**QUICK, "instanceGroups": [{"name": "here", "count": 1}, other_zone]}
    with gpu_cluster.start(config, tmp_path / "run") as handle:
        sagemaker = aws_client("sagemaker", handle.sagemaker_url)
        eventually(lambda: all(node["ready"] == "True" for node in handle.nodes()), "the nodes")
        slot = next(node["nodeLogicalId"] for node in handle.nodes() if node["instanceGroup"] == "there")

        injected = handle.inject("zone-outage", zone="us-west-2b")
        lost = eventually(
            lambda: (
                unknown_nodes
                if len(unknown_nodes := [n for n in handle.nodes() if n["ready"] == "Unknown"]) == 2
                else None
            ),
            "both",
        )
        sagemaker.batch_replace_cluster_nodes(ClusterName=handle.cluster_name, NodeLogicalIds=[slot])
        stuck = eventually(
            lambda: (node := node_of(handle, nodeLogicalId=slot)) is not None and node["message"] and node,
            "the reason",
        )
        handle.clear(injected["faultId"])
        eventually(lambda: all(n["ready"] == "True" for n in handle.nodes()) and len(handle.nodes()) == 3, "the zone")

    assert {node["instanceGroup"] for node in lost} == {"there"}
    assert sorted(injected["nodes"]) == sorted(node["name"] for node in lost)
    assert "sufficient capacity in the Availability Zone" in stuck["message"]


@pytest.mark.parametrize(("retires", "what"), [(False, "SYSTEM_REBOOT_MAINTENANCE"), (True, "INSTANCE_RETIREMENT")])
def test_maintenance_is_announced_and_then_carried_out(cluster: ClusterHandle, retires: bool, what: str) -> None:
    node = cluster.nodes()[0]

    injected = cluster.inject("maintenance", node=node["name"], startsInSeconds=0.2, retires=retires)
    eventually(
        lambda: (node_of(cluster, nodeLogicalId=node["nodeLogicalId"]) or node)["bootId"] != node["bootId"], "it"
    )

    first, last = (event["detail"] for event in cluster.control("GET", "events")["events"])
    assert first["eventTypeCode"] == f"AWS_SAGEMAKER_{what}_SCHEDULED"
    assert (first["statusCode"], last["statusCode"]) == ("upcoming", "closed")
    assert first["eventArn"] == last["eventArn"] == injected["eventArn"]
    assert [entity["entityValue"] for entity in first["affectedEntities"]] == [node["instanceId"]]
    alive = {item["instanceId"] for item in cluster.nodes()}
    assert (node["instanceId"] in alive) is not retires


def test_withdrawn_maintenance_does_not_happen(cluster: ClusterHandle, kube: KubeClient) -> None:
    first, second, _ = cluster.nodes()
    withdrawn = cluster.inject("maintenance", node=first["name"], startsInSeconds=0.2)
    cluster.inject("maintenance", node=second["name"], startsInSeconds=0.3)

    for _ in range(2):
        cluster.clear(withdrawn["faultId"])
    eventually(lambda: not node_of(cluster, name=second["name"], bootId=second["bootId"]), "the other one")

    assert node_of(cluster, name=first["name"], bootId=first["bootId"])
    details = [e["detail"] for e in cluster.control("GET", "events")["events"]]
    codes = [d["statusCode"] for d in details if d["eventArn"] == withdrawn["eventArn"]]
    assert codes == ["upcoming", "closed"]


def test_every_fault_and_option_is_documented(cluster: ClusterHandle) -> None:
    page = (Path(__file__).parents[3] / "docs" / "local-gpu-cluster.md").read_text()
    faults = page[page.index("The faults:") : page.index("## Who may do what")]

    named = set(re.findall(r"`([a-zA-Z0-9-]+)`", faults))

    assert {row["fault"] for row in cluster.control("GET", "faults")["rows"]} == set(ROWS) <= named
    assert {option for row in ROWS.values() for option in row.options} <= named


def test_unknown_fault_is_refused_with_a_reason(cluster: ClusterHandle) -> None:
    with pytest.raises(ClusterFailed, match="unknown fault 'quake'"):
        cluster.inject("quake")
    with pytest.raises(ClusterFailed, match="no node runs a pod of any job"):
        cluster.inject("gpu-xid79")
