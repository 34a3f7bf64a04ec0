"""Karpenter as an observer of NodePools, NodeClaims and nodes sees it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evenkeel_local import gpu_cluster
from evenkeel_local.gpu_cluster import ClusterFailed, ClusterHandle
from tests.local.gpu_cluster.conftest import QUICK
from tests.local.gpu_cluster.kube_client import NODES, PODS, Json, KubeClient, Refused, a_pod, condition, eventually

POOLS, CLAIMS = "/apis/karpenter.sh/v1/nodepools", "/apis/karpenter.sh/v1/nodeclaims"
SLEEPS = ("python", "-c", "import time; time.sleep(600)")
STARTUP = {"key": "evenkeel.io/awaiting-validation", "value": "true", "effect": "NoSchedule"}
KARPENTER: Json = {
    "offerings": [
        {"instanceType": "p5.48xlarge", "usdPerHour": 55.0, "spotUsdPerHour": 22.0},
        {"instanceType": "g5.8xlarge", "usdPerHour": 2.5, "spotUsdPerHour": 1.0},
    ],
    "launch": 0.2,
    "register": 0.1,
    "capacityMemory": 2.0,
    "spotNotice": 1.0,
}


@pytest.fixture
def burst(tmp_path: Path) -> Iterator[ClusterHandle]:
    """A cluster without committed nodes, with Karpenter."""
    config = {**QUICK, "instanceGroups": [{"name": "none", "count": 0}], "karpenter": KARPENTER}
    with gpu_cluster.start(config, tmp_path / "run") as handle:
        yield handle


@pytest.fixture
def kube(burst: ClusterHandle) -> Iterator[KubeClient]:
    client = KubeClient(burst.kubernetes_url, burst.ca_pem, burst.admin_token)
    yield client
    client.close()


def a_pool(name: str = "burst", *, capacity: tuple[str, ...] = ("on-demand",), **spec: Any) -> Json:
    template = spec.pop("template", {})
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": name},
        "spec": {
            "template": {
                "metadata": {"labels": {"pool": name}},
                "spec": {
                    "requirements": [{"key": "karpenter.sh/capacity-type", "operator": "In", "values": list(capacity)}],
                    "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"},
                    **template,
                },
            },
            "disruption": {"consolidateAfter": "Never"},
            **spec,
        },
    }


def running(kube: KubeClient, name: str) -> Json:
    return kube.until(f"{PODS}/{name}", lambda pod: pod["status"]["phase"] == "Running", f"{name} to run")


def test_a_pod_that_fits_nowhere_gets_the_cheapest_node_that_fits(burst: ClusterHandle, kube: KubeClient) -> None:
    kube.create(POOLS, a_pool(capacity=("on-demand", "spot")))
    kube.create(PODS, a_pod("small", *SLEEPS, gpus=1))
    small = running(kube, "small")
    kube.create(PODS, a_pod("large", *SLEEPS, gpus=8))
    large = running(kube, "large")
    claims = {claim["status"]["nodeName"]: claim for claim in kube.items(CLAIMS)}
    node = kube.get(f"{NODES}/{small['spec']['nodeName']}")

    types = [claims[pod["spec"]["nodeName"]]["metadata"]["labels"] for pod in (small, large)]
    assert [labels["node.kubernetes.io/instance-type"] for labels in types] == ["g5.8xlarge", "p5.48xlarge"]
    assert {labels["karpenter.sh/capacity-type"] for labels in types} == {"spot"}
    assert node["metadata"]["labels"]["karpenter.sh/nodepool"] == "burst"
    assert node["metadata"]["labels"]["pool"] == "burst"
    assert node["spec"]["providerID"].startswith("aws:///us-west-2a/i-")
    claim = kube.until(
        f"{CLAIMS}/{claims[small['spec']['nodeName']]['metadata']['name']}",
        lambda obj: condition(obj, "Initialized") == "True",
        "the claim to be initialized",
    )
    assert [condition(claim, kind) for kind in ("Launched", "Registered", "Ready")] == ["True"] * 3
    assert len(kube.items(CLAIMS)) == 2


def test_pods_share_a_node_that_is_on_its_way(kube: KubeClient) -> None:
    kube.create(POOLS, a_pool())
    for number in range(4):
        kube.create(PODS, a_pod(f"p{number}", *SLEEPS, gpus=2))

    nodes = {running(kube, f"p{number}")["spec"]["nodeName"] for number in range(4)}

    assert len(nodes) == 1
    assert len(kube.items(CLAIMS)) == 1


def test_a_heavier_pool_comes_first_and_limits_hold(kube: KubeClient) -> None:
    kube.create(POOLS, a_pool("light"))
    kube.create(POOLS, a_pool("heavy", weight=10, limits={"nvidia.com/gpu": "8"}))
    for name in ("one", "two"):
        kube.create(PODS, a_pod(name, *SLEEPS, gpus=8))

    running(kube, "one")
    running(kube, "two")

    pools = sorted(claim["metadata"]["labels"]["karpenter.sh/nodepool"] for claim in kube.items(CLAIMS))
    assert pools == ["heavy", "light"]
    used = kube.until(f"{POOLS}/heavy", lambda pool: pool.get("status", {}).get("resources"), "the resources")
    assert used["status"]["resources"]["nvidia.com/gpu"] == "8"


def test_an_offering_without_capacity_is_remembered_and_another_is_taken(
    burst: ClusterHandle, kube: KubeClient
) -> None:
    kube.create(POOLS, a_pool(capacity=("on-demand", "spot")))
    none_left = {"instanceType": "p5.48xlarge", "zone": "us-west-2a", "capacityType": "spot", "machines": 0}
    burst.control("POST", "offerings", none_left)

    kube.create(PODS, a_pod("large", *SLEEPS, gpus=8))
    running(kube, "large")

    claims = kube.items(CLAIMS)
    assert [claim["metadata"]["labels"]["karpenter.sh/capacity-type"] for claim in claims] == ["on-demand"]
    reasons = {event["reason"] for event in kube.items("/api/v1/events")}
    assert "InsufficientCapacityError" in reasons


def test_start_up_taints_hold_a_node_back_until_they_are_taken_off(kube: KubeClient) -> None:
    kube.create(POOLS, a_pool(template={"startupTaints": [STARTUP]}))
    kube.create(PODS, a_pod("large", *SLEEPS, gpus=8))

    node = eventually(lambda: next(iter(kube.items(NODES)), None), "the node")
    claim = kube.items(CLAIMS)[0]
    assert STARTUP in node["spec"]["taints"]
    assert condition(claim, "Initialized") is None
    kube.patch(f"{NODES}/{node['metadata']['name']}", {"spec": {"taints": None}})

    running(kube, "large")
    kube.until(
        f"{NODES}/{node['metadata']['name']}",
        lambda obj: obj["metadata"]["labels"].get("karpenter.sh/initialized") == "true",
        "the node to be initialized",
    )
    assert len(kube.items(CLAIMS)) == 1


def test_an_empty_node_goes_after_a_while(kube: KubeClient) -> None:
    disruption = {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "500ms", "budgets": [{"nodes": "100%"}]}
    kube.create(POOLS, a_pool(disruption=disruption))
    kube.create(PODS, a_pod("large", *SLEEPS, gpus=8))
    node = running(kube, "large")["spec"]["nodeName"]
    kube.create(PODS, a_pod("short", "python", "-c", "pass"))

    kube.delete(f"{PODS}/large")

    kube.until_gone(f"{NODES}/{node}")
    assert kube.items(CLAIMS) == []


def test_a_budget_of_none_keeps_every_node(kube: KubeClient) -> None:
    disruption = {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "0s", "budgets": [{"nodes": "0"}]}
    kube.create(POOLS, a_pool(disruption=disruption))
    kube.create(PODS, a_pod("large", *SLEEPS, gpus=8))
    running(kube, "large")
    kube.delete(f"{PODS}/large")
    kube.until_gone(f"{PODS}/large")

    kube.create(POOLS, a_pool("other", template={"taints": [STARTUP]}))
    kube.create(PODS, a_pod("later", *SLEEPS, gpus=8))
    running(kube, "later")

    assert len(kube.items(CLAIMS)) == 1


def test_a_deleted_claim_drains_its_node(kube: KubeClient) -> None:
    kube.create(POOLS, a_pool())
    kube.create(PODS, a_pod("large", *SLEEPS, gpus=8))
    node = running(kube, "large")["spec"]["nodeName"]
    claim = kube.items(CLAIMS)[0]["metadata"]["name"]

    kube.delete(f"{CLAIMS}/{claim}")
    kube.until_gone(f"{CLAIMS}/{claim}")

    with pytest.raises(Refused, match="NotFound"):
        kube.get(f"{NODES}/{node}")
    with pytest.raises(Refused, match="NotFound"):
        kube.get(f"{PODS}/large")


def test_a_deleted_node_takes_its_claim_along(kube: KubeClient) -> None:
    kube.create(POOLS, a_pool())
    kube.create(PODS, a_pod("large", *SLEEPS, gpus=8))
    node = running(kube, "large")["spec"]["nodeName"]

    kube.delete(f"{NODES}/{node}")

    kube.until_gone(f"{NODES}/{node}")
    eventually(lambda: not kube.items(CLAIMS), "the claim to go")


def test_a_spot_notice_is_sent_and_the_node_drained(burst: ClusterHandle, kube: KubeClient) -> None:
    kube.create(POOLS, a_pool(capacity=("spot",)))
    kube.create(PODS, a_pod("large", *SLEEPS, gpus=8))
    node = running(kube, "large")["spec"]["nodeName"]

    told = burst.inject("spot-reclaim", node=node)
    kube.until_gone(f"{NODES}/{node}")

    event = burst.control("GET", "events")["events"][0]
    assert event["detailType"] == "EC2 Spot Instance Interruption Warning"
    assert event["detail"] == {"instance-id": told["instanceId"], "instance-action": "terminate"}
    with pytest.raises(ClusterFailed, match="there is no node"):
        burst.inject("spot-reclaim", node=node)
