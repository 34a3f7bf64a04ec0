"""The control address: faults of calls, AWS events, the watch history, and resets."""

import time
from pathlib import Path
from typing import Any

import pytest
import urllib3

from evenkeel_local import gpu_cluster
from evenkeel_local.gpu_cluster import ClusterFailed, ClusterHandle
from tests.local.gpu_cluster.conftest import QUICK
from tests.local.gpu_cluster.kube_client import JOBS, NODES, PODS, Json, KubeClient, a_job, a_pod, eventually

SLEEPS = ("python", "-c", "import time; time.sleep(600)")


def add_fault_rule(cluster: ClusterHandle, **rule: Any) -> str:
    return str(cluster.control("POST", "call-faults", {"api": "kubernetes", **rule})["callFaultId"])


def test_fault_rule_fails_kubernetes_calls_the_requested_number_of_times(
    cluster: ClusterHandle, kube: KubeClient
) -> None:
    add_fault_rule(cluster, operation="patch nodes", effect="error", status=500, code="InternalError", times=1)
    add_fault_rule(cluster, operation="create pods*", effect="throttle", times=2)
    name = kube.items(NODES)[0]["metadata"]["name"]
    patch: Json = {"spec": {"unschedulable": True}}

    failed = kube.status_of("PATCH", f"{NODES}/{name}", patch, "application/merge-patch+json")
    passed = kube.patch(f"{NODES}/{name}", patch)
    throttled = [kube.status_of("POST", PODS, a_pod("one")) for _ in range(2)]
    created = kube.create(PODS, a_pod("one"))

    assert (failed.code, failed.reason) == (500, "InternalError")
    assert passed["spec"]["unschedulable"]
    assert [(answer.code, answer.headers["Retry-After"]) for answer in throttled] == [(429, "1")] * 2
    assert created["metadata"]["uid"]


def test_fault_rule_drops_reply_after_the_call_took_effect(cluster: ClusterHandle, kube: KubeClient) -> None:
    add_fault_rule(cluster, operation="create jobs", effect="lost-reply")

    with pytest.raises(urllib3.exceptions.HTTPError):
        kube.create(JOBS, a_job("train", *SLEEPS))

    assert kube.get(f"{JOBS}/train")["metadata"]["name"] == "train"


def test_slow_call_rule_can_be_removed(cluster: ClusterHandle, kube: KubeClient) -> None:
    add_fault_rule(cluster, operation="list pods", effect="latency", seconds=0.3)
    rule = add_fault_rule(cluster, operation="list nodes", effect="latency", seconds=5, times=None)

    began = time.monotonic()
    kube.items(PODS)
    took = time.monotonic() - began
    removed = cluster.control("DELETE", f"call-faults/{rule}")
    listed = kube.items(NODES)

    assert took >= 0.3
    assert removed == {"removed": True}
    assert len(listed) == 3
    assert cluster.control("GET", "counters")["calls"]["kubernetes list nodes"] >= 1


def test_dropped_watch_ends_with_a_broken_connection(cluster: ClusterHandle, kube: KubeClient) -> None:
    version = kube.get(NODES)["metadata"]["resourceVersion"]
    add_fault_rule(cluster, operation="watch nodes", effect="drop-watch")

    with pytest.raises(urllib3.exceptions.HTTPError):
        list(kube.watch(f"{NODES}?resourceVersion={version}", seconds=20))


def test_reopened_watch_loses_no_event_after_a_drop(cluster: ClusterHandle, kube: KubeClient) -> None:
    version = kube.get(PODS)["metadata"]["resourceVersion"]
    event_names: list[str] = []
    kube.create(PODS, a_pod("before", schedulerName="nobody"))
    with pytest.raises(urllib3.exceptions.HTTPError):  # noqa: PT012 (the break comes in the middle of the loop)
        for event in kube.watch(f"{PODS}?resourceVersion={version}", seconds=20):
            event_names.append(event["object"]["metadata"]["name"])
            version = event["object"]["metadata"]["resourceVersion"]
            add_fault_rule(cluster, operation="watch pods", effect="drop-watch")
            kube.create(PODS, a_pod("meanwhile", schedulerName="nobody"))

    for event in kube.watch(f"{PODS}?resourceVersion={version}", seconds=20):
        event_names.append(event["object"]["metadata"]["name"])
        break

    assert event_names == ["before", "meanwhile"]


def test_version_from_before_a_reset_is_expired(cluster: ClusterHandle, kube: KubeClient) -> None:
    kube.create(PODS, a_pod("one", schedulerName="nobody"))
    version = kube.get(PODS)["metadata"]["resourceVersion"]

    cluster.control("POST", "reset")
    event = next(kube.watch(f"{PODS}?resourceVersion={version}"))

    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)
    assert int(kube.get(PODS)["metadata"]["resourceVersion"]) > int(version)


def test_version_before_the_compaction_is_expired(cluster: ClusterHandle, kube: KubeClient) -> None:
    first = kube.get(f"{NODES}?limit=1")
    cluster.control("POST", "compact")

    event = next(kube.watch(f"{NODES}?resourceVersion={first['metadata']['resourceVersion']}"))
    refused = kube.status_of("GET", f"{NODES}?limit=1&continue={first['metadata']['continue']}")

    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
    assert (refused.code, refused.reason) == (410, "Expired")


def test_events_are_delivered_two_or_three_times(tmp_path: Path) -> None:
    with gpu_cluster.start({**QUICK, "duplicateEvents": True, "clusterEvents": True}, tmp_path / "run") as handle:
        eventually(lambda: all(node["ready"] == "True" for node in handle.nodes()), "the nodes")
        handle.inject("gpu-xid79", node=handle.nodes()[0]["instanceId"])

        def sent() -> list[Json]:
            return [e for e in handle.control("GET", "events")["events"] if "Health" in e["detailType"]]

        events = eventually(sent, "the event")

    assert len(events) in (2, 3)
    assert len({str(event["detail"]) for event in events}) == 1


def test_events_can_arrive_out_of_order(tmp_path: Path) -> None:
    config = {**QUICK, "reorderEvents": True, "instanceGroups": [{"name": "none", "count": 0}]}
    with gpu_cluster.start(config, tmp_path / "run") as handle:
        for number in range(20):
            handle.control("POST", "events", {"detailType": "Numbered", "detail": {"number": number}})

        def all_sent() -> list[Json] | None:
            events = list(handle.control("GET", "events")["events"])
            return events if all(event["at"] is not None for event in events) else None

        events = eventually(all_sent, "all events to go out")

    order = [event["detail"]["number"] for event in sorted(events, key=lambda event: event["at"])]
    assert sorted(order) == list(range(20))
    assert order != list(range(20))


def test_reset_cluster_keeps_its_addresses(cluster: ClusterHandle, kube: KubeClient) -> None:
    kube.create(PODS, a_pod("one", *SLEEPS))
    pid = eventually(lambda: next(iter(cluster.processes()), None), "the process")["pid"]
    before = {node["instanceId"] for node in cluster.nodes()}

    cluster.control("POST", "reset")

    assert kube.items(PODS) == []
    eventually(lambda: not Path(f"/proc/{pid}").exists(), "the process to be gone")
    assert before.isdisjoint({node["instanceId"] for node in cluster.nodes()})
    assert cluster.control("GET", "counters")["accepted"] == {"reboot": {}, "replace": {}, "delete": {}}


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("POST", "call-faults", {"effect": "explode"}, "effect must be one of"),
        ("POST", "call-faults", {"effect": "error", "colour": "red"}, "has no colour"),
        ("DELETE", "faults/none", None, "no injected fault"),
        ("POST", "capacity", {"instanceGroup": "none"}, "no instance group"),
        ("POST", "hidden-nodes", {}, "the body needs 'instanceId'"),
        ("POST", "capacity", {"instanceGroup": "p5-workers", "machines": "all"}, "machines must be a number"),
        ("POST", "faults", {"fault": "node-lost", "node": "i-none"}, "there is no node 'i-none'"),
        ("POST", "faults", {"fault": "boot-failing", "instanceGroup": "none"}, "no node up in instanceGroup 'none'"),
        ("POST", "faults", {"fault": "boot-failing", "instanceGroup": "p5-workers", "stage": "x"}, "stage must be one"),
        ("POST", "faults", {"fault": "boot-failing", "instanceGroup": "p5-workers", "times": 0}, "at least 1"),
        ("POST", "faults", {"fault": "zone-outage", "zone": "eu-west-1a"}, "no node up in zone 'eu-west-1a'"),
        ("POST", "faults", {"fault": "rebalance"}, "no node runs a pod"),
        ("POST", "faults", {"fault": "node-lost", "colour": "red"}, "node-lost has no option colour"),
        (
            "POST",
            "faults",
            {"fault": "node-flap", "instanceGroup": "p5-workers", "seconds": -1},
            "seconds must be a numb",
        ),
        ("POST", "faults", {"fault": "gpu-xid", "instanceGroup": "p5-workers", "code": "x"}, "code must be a number"),
        ("POST", "call-faults", {"effect": "latency", "seconds": "x"}, "seconds: Input should be a valid number"),
        ("POST", "call-faults", {"effect": "error", "times": 0}, "times must be at least 1"),
        ("GET", "nowhere", None, "the control address has no GET /control/nowhere"),
        ("DELETE", "nodes", None, "the control address has no DELETE"),
        ("POST", "failing-checks", {"instanceId": "i-1", "repair": "pray"}, "repair must be"),
        ("POST", "cluster-events", {"description": "x"}, "the body needs 'resourceType'"),
        ("POST", "apply", {"kind": "Nothing", "apiVersion": "v9"}, "no matches for kind"),
    ],
)
def test_invalid_control_call_is_refused_with_a_reason(
    cluster: ClusterHandle, method: str, path: str, body: Json | None, expected: str
) -> None:
    with pytest.raises(ClusterFailed, match=expected):
        cluster.control(method, path, body)


def test_node_is_missing_from_list_while_hidden(cluster: ClusterHandle, sagemaker: Any) -> None:
    instance = cluster.nodes()[0]["instanceId"]

    cluster.control("POST", "hidden-nodes", {"instanceId": instance})
    hidden = sagemaker.list_cluster_nodes(ClusterName=cluster.cluster_name)["ClusterNodeSummaries"]
    cluster.control("POST", "hidden-nodes", {"instanceId": instance, "hidden": False})
    shown = sagemaker.list_cluster_nodes(ClusterName=cluster.cluster_name)["ClusterNodeSummaries"]

    assert (len(hidden), len(shown)) == (2, 3)
