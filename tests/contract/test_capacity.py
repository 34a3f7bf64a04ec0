"""Renting in a cluster: the same tests for the fake and the adapter, with a simulated Karpenter."""

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from evenkeel.adapters.cluster import KubernetesCluster
from evenkeel.adapters.kubernetes import KubernetesApi
from evenkeel.domain.admission.scheduling_policy import SchedulingPolicy
from evenkeel.domain.capacity.pools import Market
from evenkeel.domain.external.adoption_policy import ServingWorkload
from evenkeel.domain.external.serving import holder_id
from evenkeel.domain.jobs.attempt import PodPhase
from evenkeel.domain.renting.rental import RentalState
from evenkeel.domain.resources import NONE
from evenkeel.ports import CapacitySpec, Cluster, LimitResult
from evenkeel_local.gpu_cluster import ClusterHandle, start
from tests.contract.clusters_under_test import CLUSTER, CONFIG, FLEET, NAMESPACE
from tests.fakes import FakeCluster, FixedClock
from tests.unit.services_jobs.test_rentals import ON_DEMAND, RentalScenario, a_policy, a_pool
from tests.waiting import until

BOUNDED, OPEN = "bounded", "open"
TYPE = "p5.48xlarge"


def node_pool(name: str, *taints: dict[str, str], **spec: Any) -> dict[str, Any]:
    requirements = [{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [TYPE]}]
    template = {"spec": {"requirements": requirements, "taints": list(taints)}}
    disruption = {"consolidateAfter": "Never"}
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": name},
        "spec": {"template": template, "disruption": disruption, **spec},
    }


class SingleConnection:
    """The same API server for every cluster name."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api

    def api(self, _cluster: str) -> KubernetesApi:
        return self._api


@contextlib.contextmanager
def a_cluster(run_dir: Path) -> Iterator[ClusterHandle]:
    offering = {"instanceType": TYPE, "zones": ["us-west-2a"], "usdPerHour": 55.04, "machines": 2}
    settings = {"offerings": [offering], "launch": 0.2, "register": 0.1, "capacityMemory": 0.5}
    with start({**CONFIG, "karpenter": settings}, run_dir) as running:
        limits = {"limits": {"nvidia.com/gpu": "0", "cpu": "1000"}}
        space: dict[str, Any] = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        account = {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "trainer", "namespace": NAMESPACE},
        }
        space["metadata"]["labels"] = {"pod-security.kubernetes.io/enforce": "restricted"}
        running.apply([space, account, node_pool(BOUNDED, **limits), node_pool(OPEN)])
        yield running


@pytest.fixture(scope="module")
def handle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterHandle]:
    with a_cluster(tmp_path_factory.mktemp("capacity")) as running:
        yield running


@pytest.fixture
def separate_cluster(tmp_path: Path) -> Iterator[ClusterHandle]:
    """A cluster without earlier refusals: a late event of Karpenter would count for the next rental."""
    with a_cluster(tmp_path) as running:
        yield running


def adapter(handle: ClusterHandle) -> Cluster:
    api = KubernetesApi(CLUSTER, handle.kubernetes_url, handle.ca_pem, lambda _: handle.admin_token)
    return KubernetesCluster(SingleConnection(api), fleet=FLEET)


@pytest.fixture(params=["twin", "local"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    if request.param == "local":
        return adapter(request.getfixturevalue("handle"))
    twin = FakeCluster(FixedClock())
    twin.limits = {(CLUSTER, BOUNDED): (0, 0), (CLUSTER, OPEN): None}
    return twin


def a_spec(nodes: int = 2) -> CapacitySpec:
    return CapacitySpec(
        cluster=CLUSTER,
        namespace=NAMESPACE,
        name="job-a-b1",
        pool=BOUNDED,
        nodes=nodes,
        accelerators=8,
        accelerator_resource="nvidia.com/gpu",
        image="registry.k8s.io/pause:3.10",
    )


def test_pool_limit_is_set_once_if_pool_has_one(cluster: Cluster) -> None:
    first = cluster.set_pool_limit(CLUSTER, BOUNDED, lambda: (1, 8))
    second = cluster.set_pool_limit(CLUSTER, BOUNDED, lambda: (1, 8))
    back = cluster.set_pool_limit(CLUSTER, BOUNDED, lambda: (0, 0))

    assert (first, second, back) == (LimitResult.SET, LimitResult.UNCHANGED, LimitResult.SET)
    assert cluster.set_pool_limit(CLUSTER, OPEN, lambda: (1, 8)) is LimitResult.UNBOUNDED
    assert cluster.set_pool_limit(CLUSTER, "none", lambda: (1, 8)) is LimitResult.GONE


def test_missing_claims_and_pods_count_as_deleted(cluster: Cluster) -> None:
    cluster.delete_node_claim(CLUSTER, "none-12345")

    assert cluster.delete_capacity_pods(CLUSTER, NAMESPACE, "job-none-b1")
    assert cluster.node_claims(CLUSTER, BOUNDED) == ()
    assert cluster.latest_capacity_refusal(CLUSTER, BOUNDED, datetime.now(UTC)) == ""


def test_capacity_pods_rent_whole_nodes_and_are_deleted_completely(handle: ClusterHandle) -> None:
    cluster, spec = adapter(handle), a_spec()
    cluster.create_capacity_pods(spec)
    cluster.create_capacity_pods(spec)
    assert cluster.node_claims(CLUSTER, BOUNDED) == ()

    cluster.set_pool_limit(CLUSTER, BOUNDED, lambda: (2, 16))
    nodes = until(
        lambda: [node for node in cluster.nodes(CLUSTER) if node.pool == BOUNDED and node.is_ready][1:],
        "two nodes of the pool",
    )
    until(lambda: cluster.resources_in_use(CLUSTER).get(nodes[0].name, NONE).accelerators == 8, "a capacity pod on it")
    names = {claim.node_name for claim in cluster.node_claims(CLUSTER, BOUNDED)}
    assert nodes[0].name in names
    assert len(names) == 2
    until(lambda: cluster.delete_capacity_pods(CLUSTER, NAMESPACE, spec.name), "the capacity pods to be gone")
    cluster.set_pool_limit(CLUSTER, BOUNDED, lambda: (0, 0))
    for claim in cluster.node_claims(CLUSTER, BOUNDED):
        cluster.delete_node_claim(CLUSTER, claim.name)
    until(lambda: not cluster.node_claims(CLUSTER, BOUNDED), "the machines to be gone")

    assert [node.name for node in cluster.nodes(CLUSTER) if node.pool == BOUNDED] == []
    pool = handle.get(f"/apis/karpenter.sh/v1/nodepools/{BOUNDED}")
    assert pool["spec"]["limits"] == {"nvidia.com/gpu": "0", "cpu": "1000"}


def test_recent_karpenter_event_shows_a_refusal(handle: ClusterHandle) -> None:
    cluster, spec = adapter(handle), a_spec(nodes=3)
    began = datetime.now(UTC)
    cluster.set_pool_limit(CLUSTER, BOUNDED, lambda: (3, 24))
    cluster.create_capacity_pods(spec)

    refusal = until(lambda: cluster.latest_capacity_refusal(CLUSTER, BOUNDED, began), "the third machine to be refused")

    assert "InsufficientInstanceCapacity" in refusal
    assert cluster.latest_capacity_refusal(CLUSTER, "other", began) == ""
    assert cluster.latest_capacity_refusal(CLUSTER, BOUNDED, datetime.now(UTC) + timedelta(minutes=1)) == ""
    until(lambda: cluster.delete_capacity_pods(CLUSTER, NAMESPACE, spec.name), "the capacity pods to be gone")
    cluster.set_pool_limit(CLUSTER, BOUNDED, lambda: (0, 0))
    for claim in cluster.node_claims(CLUSTER, BOUNDED):
        cluster.delete_node_claim(CLUSTER, claim.name)
    until(lambda: not cluster.node_claims(CLUSTER, BOUNDED), "the machines to be gone")


def test_rental_completes_on_local_cluster_from_request_to_bill(separate_cluster: ClusterHandle) -> None:
    """The services on a ledger in memory; pods, nodes, limits and Karpenter are the local cluster's."""
    pool = a_pool(ON_DEMAND, Market.ON_DEMAND, max_nodes=2).replace(name=BOUNDED)
    renting = RentalScenario(policy=a_policy(pools=(pool,)))
    cluster = adapter(separate_cluster)
    renting.scenario.cluster = cluster  # type: ignore[assignment] # the real one in place of its twin
    renting.scenario.world.clock.set(datetime.now(UTC))

    def is_now(state: RentalState) -> bool:
        renting.advance_executions()
        return renting.rental(job.job_id).state is state

    job = renting.scenario.submit("rented", instance_types=(TYPE,), command=("sleep", "600"), grace_seconds=1)

    renting.scenario.run_scheduling_cycle()
    renting.advance_executions()
    until(lambda: is_now(RentalState.READY), "the nodes to be ready")
    held = until(
        lambda: resources if len(resources := cluster.resources_in_use(CLUSTER)) == 2 else None,
        "the capacity pods to be bound to the ready nodes",
    )
    renting.scenario.run_scheduling_cycle()
    attempt = renting.scenario.attempt(job.job_id)
    renting.scenario.launch(job.job_id)
    running = until(
        lambda: [
            pod
            for pod in cluster.workload(renting.scenario.attempt(job.job_id)).pods
            if pod.phase is PodPhase.RUNNING and pod.node_name in attempt.node_names
        ][1:],
        "both pods to run where capacity pods stood",
    )
    renting.scenario.cancel(job.job_id)
    renting.scenario.stop(job.job_id)
    until(lambda: not cluster.workload(renting.scenario.attempt(job.job_id)).pods, "its pods to end")
    renting.scenario.settle(job.job_id)
    until(lambda: is_now(RentalState.ENDED), "the rental to end")

    assert running
    assert attempt.pool == BOUNDED
    assert set(attempt.node_names) <= set(held or {})
    assert renting.rental(job.job_id).offer.joined_node_names == attempt.node_names
    assert renting.rental(job.job_id).cost_parts == 60 * 2 * pool.micros_per_node_hour
    assert (renting.allocation_count(), cluster.node_claims(CLUSTER, BOUNDED)) == (0, ())
    limits = separate_cluster.get(f"/apis/karpenter.sh/v1/nodepools/{BOUNDED}")["spec"]["limits"]
    assert limits["nvidia.com/gpu"] == "0"
    assert cluster.delete_capacity_pods(CLUSTER, NAMESPACE, renting.rental(job.job_id).pods_name)


CHAT_TAINT = {"key": "evenkeel.io/serving", "value": "chat", "effect": "NoSchedule"}


def a_deployment(replicas: int) -> dict[str, Any]:
    """Replicas that use a node each and tolerate only the Deployment's taint."""
    labels = {"app": "chat"}
    container = {
        "name": "main",
        "image": "any",
        "command": ["sh", "-c", "exec sleep 600"],
        "resources": {"limits": {"nvidia.com/gpu": "8"}},
    }
    pod = {"containers": [container], "tolerations": [CHAT_TAINT], "terminationGracePeriodSeconds": 1}
    template = {"metadata": {"labels": labels}, "spec": pod}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "chat", "namespace": "default"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
    }


def test_serving_spike_rents_and_returns_nodes_of_local_cluster(separate_cluster: ClusterHandle) -> None:
    """The services on a ledger in memory; the Deployment, pods, nodes, limits and Karpenter are the local cluster's."""
    name = "chat-burst"
    pool = a_pool(
        ON_DEMAND, Market.ON_DEMAND, max_nodes=2, taints=(f"{CHAT_TAINT['key']}={CHAT_TAINT['value']}:NoSchedule",)
    ).replace(name=name)
    chat = ServingWorkload(cluster=CLUSTER, namespace="default", name="chat", rents_from=(name,), patience_seconds=0)
    policy = a_policy(pools=(pool,), quiet_seconds=1, capacity_pod_namespace=NAMESPACE)
    renting = RentalScenario(policy=policy.replace(scheduling=SchedulingPolicy(serving=(chat,))))
    cluster = adapter(separate_cluster)
    renting.scenario.cluster = cluster  # type: ignore[assignment] # the real one in place of its twin
    limits = {"nvidia.com/gpu": "0", "cpu": "1000"}
    # Karpenter launches a node of any pool that is open to the replicas, and prefers this pool.
    separate_cluster.apply([node_pool(OPEN, limits=limits), node_pool(name, CHAT_TAINT, limits=limits)])

    def run_cycle_and_advance() -> None:
        renting.scenario.world.clock.set(datetime.now(UTC))
        renting.scenario.run_scheduling_cycle()
        renting.advance_executions()

    def states() -> list[RentalState]:
        run_cycle_and_advance()
        return [renting.rental(holder_id(chat), number).state for number in range(1, len(renting.executions()) + 1)]

    def bound_nodes() -> list[str]:
        return sorted(pod.node_name for pod in cluster.pods(CLUSTER) if pod.node_name and pod.claim is None)

    separate_cluster.apply([a_deployment(4)])
    committed = until(lambda: pods if len(pods := bound_nodes()) == 4 else [], "four replicas on committed nodes")
    run_cycle_and_advance()
    separate_cluster.apply([a_deployment(5)])
    until(lambda: states() == [RentalState.READY], "a node for the fifth")
    rental = renting.rental(holder_id(chat))
    until(lambda: bound_nodes() == sorted((*committed, *rental.node_names)), "the fifth replica to stand on it")
    separate_cluster.apply([a_deployment(0)])
    until(lambda: states() == [RentalState.ENDED], "the node to go back")

    over = renting.rental(holder_id(chat))
    assert over.was_used
    assert over.cost_parts >= 60 * pool.micros_per_node_hour
    assert (renting.allocation_count(), cluster.node_claims(CLUSTER, name)) == (0, ())
    assert bound_nodes() == []
    assert separate_cluster.get(f"/apis/karpenter.sh/v1/nodepools/{name}")["spec"]["limits"]["nvidia.com/gpu"] == "0"
    assert cluster.delete_capacity_pods(CLUSTER, NAMESPACE, over.pods_name)
