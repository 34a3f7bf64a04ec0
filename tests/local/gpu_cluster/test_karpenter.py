"""The simulated Karpenter, observed through NodePools, NodeClaims and nodes."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evenkeel_local import gpu_cluster
from evenkeel_local.gpu_cluster import ClusterFailed, ClusterHandle
from tests.local.gpu_cluster.conftest import QUICK
from tests.local.gpu_cluster.kube_client import (
    NODES,
    PODS,
    Json,
    KubeApiError,
    KubeClient,
    a_pod,
    condition,
    eventually,
)

POOLS, CLAIMS = "/apis/karpenter.sh/v1/nodepools", "/apis/karpenter.sh/v1/nodeclaims"
SLEEPS = ("python", "-c", "import time; time.sleep(600)")
PREFIX = "sagemaker.amazonaws.com/"
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


@pytest.fixture(scope="module")
def running_burst(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterHandle]:
    """A cluster without committed nodes, with Karpenter."""
    config = {**QUICK, "instanceGroups": [{"name": "none", "count": 0}], "karpenter": KARPENTER}
    with gpu_cluster.start(config, tmp_path_factory.mktemp("burst")) as handle:
        yield handle


@pytest.fixture
def burst(running_burst: ClusterHandle) -> ClusterHandle:
    """The module's cluster, as new."""
    running_burst.control("POST", "reset")
    return running_burst


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


def await_heartbeats(kube: KubeClient, node: str, count: int = 3) -> None:
    """Wait for some heartbeats of a node: several cycles of Karpenter."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{node}"
    for _ in range(count):
        last = kube.get(path)["spec"]["renewTime"]
        kube.until(path, lambda lease, last=last: lease["spec"]["renewTime"] != last, "a heartbeat")  # type: ignore[misc]


def test_unschedulable_pod_gets_the_cheapest_fitting_node(burst: ClusterHandle, kube: KubeClient) -> None:
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


@pytest.mark.parametrize(("requested", "offered"), [("16", "32"), ("", None)])
def test_node_has_efa_if_its_pod_requests_it(kube: KubeClient, requested: str, offered: str | None) -> None:
    kube.create(POOLS, a_pool())
    pod = a_pod("large", *SLEEPS, gpus=8)
    if requested:
        pod["spec"]["containers"][0]["resources"]["limits"]["vpc.amazonaws.com/efa"] = requested
    kube.create(PODS, pod)

    node = kube.get(f"{NODES}/{running(kube, 'large')['spec']['nodeName']}")

    assert node["status"]["allocatable"].get("vpc.amazonaws.com/efa") == offered


def test_pods_share_a_launching_node(kube: KubeClient) -> None:
    kube.create(POOLS, a_pool())
    for number in range(4):
        kube.create(PODS, a_pod(f"p{number}", *SLEEPS, gpus=2))

    nodes = {running(kube, f"p{number}")["spec"]["nodeName"] for number in range(4)}

    assert len(nodes) == 1
    assert len(kube.items(CLAIMS)) == 1


def test_pool_of_higher_weight_is_used_up_to_its_limit(kube: KubeClient) -> None:
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


def test_karpenter_uses_another_offering_after_a_capacity_refusal(burst: ClusterHandle, kube: KubeClient) -> None:
    kube.create(POOLS, a_pool(capacity=("on-demand", "spot")))
    none_left = {"instanceType": "p5.48xlarge", "zone": "us-west-2a", "capacityType": "spot", "machines": 0}
    burst.control("POST", "offerings", none_left)

    kube.create(PODS, a_pod("large", *SLEEPS, gpus=8))
    running(kube, "large")

    claims = kube.items(CLAIMS)
    assert [claim["metadata"]["labels"]["karpenter.sh/capacity-type"] for claim in claims] == ["on-demand"]
    reasons = {event["reason"] for event in kube.items("/api/v1/events")}
    assert "InsufficientCapacityError" in reasons


def test_node_with_startup_taints_is_not_initialized(kube: KubeClient) -> None:
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


def test_empty_node_is_removed_after_its_delay(kube: KubeClient) -> None:
    disruption = {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "500ms", "budgets": [{"nodes": "100%"}]}
    kube.create(POOLS, a_pool(disruption=disruption))
    kube.create(PODS, a_pod("large", *SLEEPS, gpus=8))
    node = running(kube, "large")["spec"]["nodeName"]
    kube.create(PODS, a_pod("short", "python", "-c", "pass"))

    kube.delete(f"{PODS}/large")

    kube.until_gone(f"{NODES}/{node}")
    assert kube.items(CLAIMS) == []


def test_budget_of_zero_keeps_every_node(kube: KubeClient) -> None:
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


def test_deleted_claim_drains_its_node(kube: KubeClient) -> None:
    kube.create(POOLS, a_pool())
    kube.create(PODS, a_pod("large", *SLEEPS, gpus=8))
    node = running(kube, "large")["spec"]["nodeName"]
    claim = kube.items(CLAIMS)[0]["metadata"]["name"]

    kube.delete(f"{CLAIMS}/{claim}")
    kube.until_gone(f"{CLAIMS}/{claim}")

    with pytest.raises(KubeApiError, match="NotFound"):
        kube.get(f"{NODES}/{node}")
    with pytest.raises(KubeApiError, match="NotFound"):
        kube.get(f"{PODS}/large")


def test_deleted_node_removes_its_claim(kube: KubeClient) -> None:
    kube.create(POOLS, a_pool())
    kube.create(PODS, a_pod("large", *SLEEPS, gpus=8))
    node = running(kube, "large")["spec"]["nodeName"]

    kube.delete(f"{NODES}/{node}")

    kube.until_gone(f"{NODES}/{node}")
    eventually(lambda: not kube.items(CLAIMS), "the claim to go")


def test_spot_notice_is_sent_and_its_node_drained(burst: ClusterHandle, kube: KubeClient) -> None:
    kube.create(POOLS, a_pool(capacity=("spot",)))
    kube.create(PODS, a_pod("large", *SLEEPS, gpus=8))
    node = running(kube, "large")["spec"]["nodeName"]

    document = burst.inject("spot-reclaim", node=node)
    kube.until_gone(f"{NODES}/{node}")

    event = burst.control("GET", "events")["events"][0]
    assert event["detailType"] == "EC2 Spot Instance Interruption Warning"
    assert event["detail"] == {"instance-id": document["instanceId"], "instance-action": "terminate"}
    with pytest.raises(ClusterFailed, match="there is no node"):
        burst.inject("spot-reclaim", node=node)


def test_karpenter_retries_a_refused_offering_after_its_expiry(burst: ClusterHandle, kube: KubeClient) -> None:
    kube.create(POOLS, a_pool(capacity=("spot",)))
    offering = {"instanceType": "p5.48xlarge", "zone": "us-west-2a", "capacityType": "spot"}
    burst.control("POST", "offerings", {**offering, "machines": 0})
    kube.create(PODS, a_pod("large", *SLEEPS, gpus=8))

    def refusal() -> Json | None:
        return next((e for e in kube.items("/api/v1/events") if e["reason"] == "InsufficientCapacityError"), None)

    eventually(refusal, "the refusal")
    eventually(lambda: not kube.items(CLAIMS), "the claim to be given up")
    refused_at = time.monotonic()
    burst.control("POST", "offerings", {**offering, "machines": 1})
    eventually(lambda: kube.items(CLAIMS), "another claim")
    waited = time.monotonic() - refused_at

    running(kube, "large")
    # The refusal is remembered for two seconds, and polling uses part of them.
    assert waited > 1.0


def test_pool_at_its_limit_creates_no_node(kube: KubeClient) -> None:
    kube.create(POOLS, a_pool(limits={"nvidia.com/gpu": "7"}))
    kube.create(PODS, a_pod("large", *SLEEPS, gpus=8))

    eventually(
        lambda: any(e["reason"] == "LimitExceeded" for e in kube.items("/api/v1/events")), "the limit to be told"
    )

    assert kube.items(CLAIMS) == []


@pytest.mark.parametrize(("budget", "left"), [("50%", 1), ("1", 1), ("0%", 2)])
def test_budget_bounds_concurrent_node_removals(kube: KubeClient, budget: str, left: int) -> None:
    never = {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "Never"}
    kube.create(POOLS, a_pool(disruption=never))
    for name in ("one", "two"):
        kube.create(PODS, a_pod(name, *SLEEPS, gpus=8))
    nodes = {running(kube, name)["spec"]["nodeName"] for name in ("one", "two")}
    # Another program's finalizer holds the node that is removed first, and the budget with it.
    for node in nodes:
        kube.patch(f"{NODES}/{node}", {"metadata": {"finalizers": ["karpenter.sh/termination", "test/hold"]}})
    for name in ("one", "two"):
        kube.delete(f"{PODS}/{name}")
        kube.until_gone(f"{PODS}/{name}")

    kube.patch(f"{POOLS}/burst", {"spec": {"disruption": {"consolidateAfter": "0s", "budgets": [{"nodes": budget}]}}})
    kube.create(POOLS, a_pool("other", template={"taints": [STARTUP]}))
    kube.create(
        PODS, a_pod("later", *SLEEPS, gpus=8, tolerations=[{"operator": "Exists"}], nodeSelector={"pool": "other"})
    )
    other = running(kube, "later")["spec"]["nodeName"]

    def staying() -> int:
        claims = [c["metadata"] for c in kube.items(CLAIMS)]
        return sum(c["labels"]["pool"] == "burst" and "deletionTimestamp" not in c for c in claims)

    eventually(lambda: staying() == left, "the budget to be used")
    await_heartbeats(kube, other)
    assert staying() == left


# Actions of EC2


def test_rebalance_recommendation_is_sent_and_removes_no_node(burst: ClusterHandle, kube: KubeClient) -> None:
    kube.create(POOLS, a_pool(capacity=("spot",)))
    kube.create(PODS, a_pod("large", *SLEEPS, gpus=8))
    node = running(kube, "large")["spec"]["nodeName"]

    document = burst.inject("rebalance", node=node)

    events = burst.control("GET", "events")["events"]
    assert [event["detailType"] for event in events] == ["EC2 Instance Rebalance Recommendation"]
    assert events[0]["detail"] == {"instance-id": document["instanceId"]}
    assert not kube.items(CLAIMS)[0]["metadata"].get("deletionTimestamp")


@pytest.mark.parametrize("fault", ["spot-reclaim", "capacity-reservation-interruption"])
def test_reclaimed_node_ends_with_its_notice(burst: ClusterHandle, kube: KubeClient, fault: str) -> None:
    kube.create(POOLS, a_pool(capacity=("spot",)))
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    )
    kube.create(PODS, a_pod("large", "python", "-c", stubborn, gpus=8, terminationGracePeriodSeconds=600))
    node = running(kube, "large")["spec"]["nodeName"]
    pid = burst.processes()[0]["pid"]

    burst.inject(fault, node=node)

    eventually(lambda: not Path(f"/proc/{pid}").exists(), "the process to end with its machine")
    kube.until_gone(f"{NODES}/{node}")
    eventually(lambda: not any(c["status"].get("nodeName") == node for c in kube.items(CLAIMS)), "the claim to go")
    detail = burst.control("GET", "events")["events"][0]["detail"]
    assert detail["instance-action"] == "terminate"
    assert ("instance-termination-time" in detail) is (fault != "spot-reclaim")


def test_zone_outage_ends_burst_nodes_and_offerings(burst: ClusterHandle, kube: KubeClient) -> None:
    kube.create(POOLS, a_pool())
    kube.create(PODS, a_pod("one", *SLEEPS, gpus=8))
    node = running(kube, "one")["spec"]["nodeName"]

    outages = [burst.inject("zone-outage", zone="us-west-2a")["faultId"] for _ in range(2)]
    kube.until(f"{NODES}/{node}", lambda obj: condition(obj, "Ready") == "Unknown", "the node to be lost")
    kube.create(PODS, a_pod("two", *SLEEPS, gpus=8))
    burst.clear(outages[0])

    def refused() -> bool:
        return any(event["reason"] == "InsufficientCapacityError" for event in kube.items("/api/v1/events"))

    eventually(refused, "the refusal of the outage that goes on")
    burst.clear(outages[1])
    running(kube, "two")
    kube.until(f"{NODES}/{node}", lambda obj: condition(obj, "Ready") == "True", "the node to be back")


def test_on_demand_node_gets_no_spot_notice(burst: ClusterHandle, kube: KubeClient) -> None:
    kube.create(POOLS, a_pool())
    kube.create(PODS, a_pod("large", *SLEEPS, gpus=8))
    node = running(kube, "large")["spec"]["nodeName"]

    with pytest.raises(ClusterFailed, match="is no spot node"):
        burst.inject("spot-reclaim", node=node)
    with pytest.raises(ClusterFailed, match="it is for HyperPod's nodes"):
        burst.inject("health-silent", node=node)


# Node repair


# Conditions have whole seconds, so a delay below two seconds may end immediately.
REPAIR: Json = {"nodeRepair": {"AcceleratedHardwareReady": 2.0, "Ready": 2.0}, "repairDrain": 0.3}


@pytest.fixture(scope="module")
def running_repair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterHandle]:
    """As `running_burst`, with node repair enabled."""
    groups = [{"name": "none", "count": 0}]
    config = {**QUICK, "instanceGroups": groups, "karpenter": {**KARPENTER, **REPAIR}}
    with gpu_cluster.start(config, tmp_path_factory.mktemp("repair")) as handle:
        yield handle


@pytest.fixture
def repairing(running_repair: ClusterHandle) -> ClusterHandle:
    """The module's repairing cluster, as new."""
    running_repair.control("POST", "reset")
    return running_repair


@pytest.fixture
def repair_kube(repairing: ClusterHandle) -> Iterator[KubeClient]:
    client = KubeClient(repairing.kubernetes_url, repairing.ca_pem, repairing.admin_token)
    yield client
    client.close()


@pytest.mark.parametrize("fault", ["gpu-xid79", "node-lost"])
def test_unhealthy_node_is_terminated_despite_disruption_guards(
    repairing: ClusterHandle, repair_kube: KubeClient, fault: str
) -> None:
    repair_kube.create(POOLS, a_pool())
    guarded = a_pod("large", *SLEEPS, gpus=8, terminationGracePeriodSeconds=600)
    guarded["metadata"]["annotations"] = {"karpenter.sh/do-not-disrupt": "true"}
    repair_kube.create(PODS, guarded)
    node = running(repair_kube, "large")["spec"]["nodeName"]
    budget = {"metadata": {"name": "all"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "large"}}}}
    repair_kube.create("/apis/policy/v1/namespaces/default/poddisruptionbudgets", budget)

    repairing.inject(fault, node=node)
    if fault == "gpu-xid79":
        faulty = repair_kube.until(
            f"{NODES}/{node}", lambda obj: condition(obj, "AcceleratedHardwareReady") == "False", "the condition"
        )
        reasons = {c["reason"] for c in faulty["status"]["conditions"]}
        assert "NvidiaXID79Error" in reasons
        assert f"{PREFIX}fault-types" not in faulty["metadata"]["labels"]

    repair_kube.until_gone(f"{NODES}/{node}")
    assert any("unhealthy" in event["message"] for event in repair_kube.items("/api/v1/events"))
    assert repairing.control("GET", "events")["events"] == []


def test_node_that_recovers_in_time_is_kept(repairing: ClusterHandle, repair_kube: KubeClient) -> None:
    repair_kube.create(POOLS, a_pool())
    for name in ("one", "two"):
        repair_kube.create(PODS, a_pod(name, *SLEEPS, gpus=8))
    kept, ended = (running(repair_kube, name)["spec"]["nodeName"] for name in ("one", "two"))
    fault = repairing.inject("gpu-xid79", node=kept)
    repair_kube.until(
        f"{NODES}/{kept}", lambda obj: condition(obj, "AcceleratedHardwareReady") == "False", "the condition"
    )

    repairing.clear(fault["faultId"])
    repairing.inject("gpu-xid79", node=ended)
    repair_kube.until_gone(f"{NODES}/{ended}")

    assert condition(repair_kube.get(f"{NODES}/{kept}"), "AcceleratedHardwareReady") == "True"


def test_no_node_is_repaired_if_over_a_fifth_are_unhealthy(repairing: ClusterHandle, repair_kube: KubeClient) -> None:
    repair_kube.create(POOLS, a_pool())
    for number in range(3):
        repair_kube.create(PODS, a_pod(f"p{number}", *SLEEPS, gpus=8))
    nodes = [running(repair_kube, f"p{number}")["spec"]["nodeName"] for number in range(3)]
    faults = [repairing.inject("gpu-xid79", node=node)["faultId"] for node in nodes[:2]]

    def paused() -> bool:
        return any(event["reason"] == "NodeRepairBlocked" for event in repair_kube.items("/api/v1/events"))

    eventually(paused, "the pause to be told")
    before = {node["metadata"]["name"] for node in repair_kube.items(NODES)}
    repairing.clear(faults[1])
    repair_kube.until_gone(f"{NODES}/{nodes[0]}")

    assert set(nodes) <= before
    assert set(nodes[1:]) <= {node["metadata"]["name"] for node in repair_kube.items(NODES)}
