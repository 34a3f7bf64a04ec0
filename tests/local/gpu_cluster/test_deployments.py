"""Deployments and ReplicaSets: their pods, rollouts to a new template, scaling and deletion."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

from evenkeel_local.gpu_cluster import ClusterHandle, catalogue
from evenkeel_local.gpu_cluster.catalogue import ResourceCatalogue
from evenkeel_local.gpu_cluster.deployment_controller import DeploymentController
from evenkeel_local.gpu_cluster.endpoints_controller import endpoint_subsets
from evenkeel_local.gpu_cluster.registry import Registry
from evenkeel_local.gpu_cluster.replica_set_controller import ReplicaSetController
from evenkeel_local.gpu_cluster.store import Store
from evenkeel_local.gpu_cluster.work_queue import WorkQueue
from tests.local.gpu_cluster.kube_client import (
    PODS,
    SERVICES,
    STRATEGIC,
    Json,
    KubeClient,
    condition,
    eventually,
)

APPS = "/apis/apps/v1/namespaces/default"
DEPLOYMENTS, REPLICA_SETS = f"{APPS}/deployments", f"{APPS}/replicasets"
ENDPOINTS = "/api/v1/namespaces/default/endpoints"
WEB, OF_WEB = f"{DEPLOYMENTS}/web", "?labelSelector=app%3Dweb"


def a_deployment(replicas: int = 3, name: str = "web", pod: Json | None = None, **spec: object) -> Json:
    container = {"name": "main", "image": "registry.invalid/main:1"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [container], "terminationGracePeriodSeconds": 1, **(pod or {})},
            },
            **spec,
        },
    }


def is_rolled_out(deployment: Json) -> bool:
    """Return whether a rollout is complete, as `kubectl rollout status` does."""
    status, wanted = deployment.get("status", {}), deployment["spec"]["replicas"]
    counts = [status.get(field, 0) for field in ("replicas", "updatedReplicas", "availableReplicas")]
    return status.get("observedGeneration") == deployment["metadata"]["generation"] and counts == [wanted] * 3


def rolled_out(kube: KubeClient) -> Json:
    return kube.until(WEB, is_rolled_out, "the rollout to be over")


def new_image(kube: KubeClient, image: str) -> None:
    containers = [{"name": "main", "image": image}]
    kube.patch(WEB, {"spec": {"template": {"spec": {"containers": containers}}}}, STRATEGIC)


def object_names(kube: KubeClient, path: str) -> set[str]:
    return {item["metadata"]["name"] for item in kube.items(path)}


class FollowedPods:
    """The pods after each event of a watch."""

    def __init__(self, kube: KubeClient) -> None:
        start = kube.get(PODS + OF_WEB)
        self._pods = {item["metadata"]["name"]: item for item in start["items"]}
        self.moments: list[list[Json]] = []
        self._enough = threading.Event()
        path = f"{PODS}{OF_WEB}&resourceVersion={start['metadata']['resourceVersion']}"
        self._thread = threading.Thread(target=self._follow, args=(kube, path))
        self._thread.start()

    def _follow(self, kube: KubeClient, path: str) -> None:
        for event in kube.watch(path, seconds=2):
            name = event["object"]["metadata"]["name"]
            if event["type"] == "DELETED":
                del self._pods[name]
            else:
                self._pods[name] = event["object"]
            self.moments.append(list(self._pods.values()))

    def until_the_watch_ends(self) -> list[list[Json]]:
        self._thread.join(20)
        return self.moments


def is_standing(pod: Json) -> bool:
    return "deletionTimestamp" not in pod["metadata"]


def is_serving(pod: Json) -> bool:
    return is_standing(pod) and condition(pod, "Ready") == "True"


def test_deployment_runs_its_pods_through_a_replica_set(kube: KubeClient) -> None:
    kube.create(DEPLOYMENTS, a_deployment())

    deployment = rolled_out(kube)
    (replica_set,) = kube.items(REPLICA_SETS + OF_WEB)
    pods = kube.items(PODS + OF_WEB)

    assert replica_set["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "name": "web",
            "uid": deployment["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
    hashed = replica_set["metadata"]["labels"]["pod-template-hash"]
    assert replica_set["metadata"]["name"] == f"web-{hashed}"
    assert replica_set["spec"]["selector"] == {"matchLabels": {"app": "web", "pod-template-hash": hashed}}
    assert [pod["metadata"]["ownerReferences"][0]["uid"] for pod in pods] == [replica_set["metadata"]["uid"]] * 3
    assert {pod["metadata"]["labels"]["pod-template-hash"] for pod in pods} == {hashed}
    assert deployment["metadata"]["annotations"] == {"deployment.kubernetes.io/revision": "1"}
    assert (condition(deployment, "Available"), condition(deployment, "Progressing")) == ("True", "True")


def test_deleted_pod_is_replaced_and_relabelled_pod_released(kube: KubeClient) -> None:
    kube.create(DEPLOYMENTS, a_deployment(replicas=2))
    rolled_out(kube)
    lost, stray = sorted(object_names(kube, PODS + OF_WEB))

    kube.delete(f"{PODS}/{lost}")
    kube.patch(f"{PODS}/{stray}", {"metadata": {"labels": {"app": "examined"}}})

    eventually(
        lambda: len(fresh := object_names(kube, PODS + OF_WEB)) == 2 and not fresh & {lost, stray},
        "two other pods to stand in",
    )
    assert "ownerReferences" not in kube.get(f"{PODS}/{stray}")["metadata"]


def test_rolling_update_stays_within_its_bounds(kube: KubeClient) -> None:
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}}
    kube.create(DEPLOYMENTS, a_deployment(replicas=4, strategy=strategy))
    rolled_out(kube)

    followed = FollowedPods(kube)
    new_image(kube, "registry.invalid/main:2")
    deployment = rolled_out(kube)
    moments = followed.until_the_watch_ends()

    assert max(len([pod for pod in pods if is_standing(pod)]) for pods in moments) == 5
    assert (
        min(len([pod for pod in pods if is_standing(pod) and condition(pod, "Ready") == "True"]) for pods in moments)
        >= 3
    )
    assert {pod["spec"]["containers"][0]["image"] for pod in moments[-1]} == {"registry.invalid/main:2"}
    assert deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "2"


def test_recreate_waits_for_the_end_of_every_old_pod(kube: KubeClient) -> None:
    # A process that ends slowly: the test needs pods that have ended, not terminating ones.
    command = ["python", "-c", "import signal, time; signal.signal(15, lambda *_: 0); time.sleep(9); time.sleep(9)"]
    slow = {"containers": [{"name": "main", "image": "registry.invalid/main:1", "command": command}]}
    kube.create(DEPLOYMENTS, a_deployment(replicas=2, pod=slow, strategy={"type": "Recreate"}))
    rolled_out(kube)

    followed = FollowedPods(kube)
    new_image(kube, "registry.invalid/main:2")
    rolled_out(kube)
    moments = followed.until_the_watch_ends()

    images = [{pod["spec"]["containers"][0]["image"] for pod in pods} for pods in moments]
    assert all(len(mixed) <= 1 for mixed in images)
    assert images[-1] == {"registry.invalid/main:2"}


def test_rollback_makes_the_old_revision_of_deployment_the_latest(kube: KubeClient) -> None:
    kube.create(DEPLOYMENTS, a_deployment(replicas=1, revisionHistoryLimit=1))
    first = rolled_out(kube)["spec"]["template"]
    for image in ("registry.invalid/main:2", "registry.invalid/main:3"):
        new_image(kube, image)
        rolled_out(kube)
    eventually(lambda: len(kube.items(REPLICA_SETS + OF_WEB)) == 2, "the history to be cut to one")

    new_image(kube, "registry.invalid/main:2")
    rolled_out(kube)
    new_image(kube, first["spec"]["containers"][0]["image"])
    deployment = rolled_out(kube)

    assert deployment["spec"]["template"] == first
    assert deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "5"
    eventually(
        lambda: (
            sorted(
                int(item["metadata"]["annotations"]["deployment.kubernetes.io/revision"])
                for item in kube.items(REPLICA_SETS + OF_WEB)
            )
            == [4, 5]
        ),
        "the last two revisions to be kept",
    )


def test_paused_deployment_scales_but_does_not_roll_out(kube: KubeClient) -> None:
    kube.create(DEPLOYMENTS, a_deployment(replicas=1))
    rolled_out(kube)

    kube.patch(WEB, {"spec": {"paused": True}})
    new_image(kube, "registry.invalid/main:2")
    kube.patch(f"{WEB}/scale", {"spec": {"replicas": 2}})
    eventually(lambda: len(object_names(kube, PODS + OF_WEB)) == 2, "the second pod")
    paused = kube.get(WEB)
    held = kube.items(REPLICA_SETS + OF_WEB)
    kube.patch(WEB, {"spec": {"paused": None}})
    rolled_out(kube)

    assert len(held) == 1
    assert [c["reason"] for c in paused["status"]["conditions"] if c["type"] == "Progressing"] == ["DeploymentPaused"]
    assert {pod["spec"]["containers"][0]["image"] for pod in kube.items(PODS + OF_WEB)} == {"registry.invalid/main:2"}


def test_deployment_that_cannot_create_pods_exceeds_its_deadline(kube: KubeClient) -> None:
    kube.create(DEPLOYMENTS, a_deployment(pod={"priorityClassName": "unheard-of"}, progressDeadlineSeconds=1))

    def stuck(deployment: Json) -> bool:
        return condition(deployment, "Progressing") == "False" and condition(deployment, "ReplicaFailure") == "True"

    deployment = kube.until(WEB, stuck, "the deadline to pass")

    reasons = {c["type"]: c["reason"] for c in deployment["status"]["conditions"]}
    assert reasons == {
        "Available": "MinimumReplicasUnavailable",
        "Progressing": "ProgressDeadlineExceeded",
        "ReplicaFailure": "FailedCreate",
    }


def test_pods_of_a_lost_node_are_replaced_while_terminating(kube: KubeClient, cluster: ClusterHandle) -> None:
    quick = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0}
        for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
    ]
    kube.create(DEPLOYMENTS, a_deployment(replicas=3, pod={"tolerations": quick}))
    rolled_out(kube)
    lost = kube.items(PODS + OF_WEB)[0]

    cluster.control("POST", "faults", {"fault": "node-lost", "node": lost["spec"]["nodeName"]})

    def stand_in() -> bool:
        standing = [pod for pod in kube.items(PODS + OF_WEB) if is_standing(pod)]
        return len(standing) == 3 and all(pod["spec"].get("nodeName") != lost["spec"]["nodeName"] for pod in standing)

    eventually(stand_in, "three pods on other nodes")
    assert "deletionTimestamp" in kube.get(f"{PODS}/{lost['metadata']['name']}")["metadata"]


@pytest.mark.parametrize("policy", ["Foreground", "Background"])
def test_deleted_deployment_deletes_its_pods(kube: KubeClient, policy: str) -> None:
    kube.create(DEPLOYMENTS, a_deployment())
    rolled_out(kube)

    kube.delete(WEB, {"propagationPolicy": policy})

    if policy == "Foreground":
        kube.until_gone(WEB)
        assert object_names(kube, PODS + OF_WEB) == object_names(kube, REPLICA_SETS + OF_WEB) == set()
    eventually(
        lambda: not object_names(kube, PODS + OF_WEB) | object_names(kube, REPLICA_SETS + OF_WEB),
        "all of it to be gone",
    )


def test_new_deployment_of_same_name_adopts_orphaned_pods(kube: KubeClient) -> None:
    kube.create(DEPLOYMENTS, a_deployment())
    rolled_out(kube)
    before = object_names(kube, PODS + OF_WEB)

    kube.delete(WEB, {"propagationPolicy": "Orphan"})
    kube.until_gone(WEB)
    kube.create(DEPLOYMENTS, a_deployment())
    successor = rolled_out(kube)

    (replica_set,) = kube.items(REPLICA_SETS + OF_WEB)
    assert replica_set["metadata"]["ownerReferences"][0]["uid"] == successor["metadata"]["uid"]
    assert object_names(kube, PODS + OF_WEB) == before


# Services


def test_service_lists_the_addresses_of_its_pods(kube: KubeClient) -> None:
    ports = [{"name": "http", "containerPort": 8000}]
    containers = [{"name": "main", "image": "registry.invalid/main:1", "ports": ports}]
    kube.create(DEPLOYMENTS, a_deployment(replicas=2, pod={"containers": containers}))
    service = {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "http"}]}
    kube.create(SERVICES, {"metadata": {"name": "web"}, "spec": service})
    rolled_out(kube)

    def addresses() -> list[str]:
        subsets = kube.get(f"{ENDPOINTS}/web").get("subsets", [])
        return sorted(address["ip"] for subset in subsets for address in subset.get("addresses", []))

    def expected() -> list[str]:
        return sorted(pod["status"]["podIP"] for pod in kube.items(PODS + OF_WEB) if is_serving(pod))

    eventually(lambda: len(addresses()) == 2 and addresses() == expected(), "both pods to be addressed")
    first = kube.get(f"{ENDPOINTS}/web")["subsets"]
    kube.patch(f"{WEB}/scale", {"spec": {"replicas": 1}})
    eventually(lambda: len(addresses()) == 1 and addresses() == expected(), "one pod to be addressed")
    kube.delete(f"{SERVICES}/web")
    kube.until_gone(f"{ENDPOINTS}/web")

    assert [subset["ports"] for subset in first] == [[{"port": 8000, "protocol": "TCP"}]]


def test_unready_pod_is_listed_separately_unless_published() -> None:
    apart = ControllersAlone()
    apart.registry.create(catalogue.DEPLOYMENTS, "default", a_deployment(replicas=1))
    apart.settle()
    (pod,) = apart.store.all(catalogue.PODS.key)
    pod = {**pod, "spec": {**pod["spec"], "nodeName": "n"}, "status": {"phase": "Running", "podIP": "127.9.0.1"}}
    service: Json = {"spec": {"ports": [{"port": 80, "targetPort": 80}]}}

    (subset,) = endpoint_subsets(service, [pod])
    service["spec"]["publishNotReadyAddresses"] = True
    (published,) = endpoint_subsets(service, [pod])
    ending = {**pod, "status": {**pod["status"], "phase": "Failed"}}

    assert [address["ip"] for address in subset["notReadyAddresses"]] == ["127.9.0.1"]
    assert [address["ip"] for address in published["addresses"]] == ["127.9.0.1"]
    assert endpoint_subsets(service, [ending]) == []


# Controllers without the cluster: a test sets the state between two reconciliations


class ControllersAlone:
    """Both controllers without queues, scheduler and kubelet."""

    def __init__(self) -> None:
        self.store = Store()
        self.registry = Registry(self.store, ResourceCatalogue())
        self.registry.create(catalogue.NAMESPACES, "", {"metadata": {"name": "default"}})
        self.registry.create(catalogue.SERVICE_ACCOUNTS, "default", {"metadata": {"name": "default"}})
        self.replica_sets, self.deployments = ReplicaSetController(self.registry), DeploymentController(self.registry)

    def look(self) -> None:
        asyncio.run(self._look())

    async def _look(self) -> None:
        self.deployments.sync("default", "web")
        for replica_set in self.store.all(catalogue.REPLICA_SETS.key):
            self.replica_sets.sync("default", replica_set["metadata"]["name"])

    def settle(self) -> None:
        before = -1
        while before != self.store.revision:
            before = self.store.revision
            self.look()

    def make_ready(self) -> None:
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        for pod in self.store.all(catalogue.PODS.key):
            self.registry.mutate(
                catalogue.PODS,
                "default",
                pod["metadata"]["name"],
                lambda obj: obj["status"].update(phase="Running", conditions=[ready]),
            )

    def images(self) -> list[str]:
        return sorted(pod["spec"]["containers"][0]["image"][-1] for pod in self.store.all(catalogue.PODS.key))

    def update(self, **spec: object) -> None:
        self.registry.mutate(catalogue.DEPLOYMENTS, "default", "web", lambda obj: obj["spec"].update(spec))

    def update_image(self, image: str) -> None:
        kept = self.store.all(catalogue.DEPLOYMENTS.key)[0]["spec"]["template"]
        container = {**kept["spec"]["containers"][0], "image": image}
        self.update(template={**kept, "spec": {**kept["spec"], "containers": [container]}})


@pytest.fixture
def apart() -> ControllersAlone:
    return ControllersAlone()


def test_second_reconciliation_of_a_deployment_changes_nothing(apart: ControllersAlone) -> None:
    apart.registry.create(catalogue.DEPLOYMENTS, "default", a_deployment())
    apart.settle()
    apart.make_ready()
    apart.settle()
    before = apart.store.revision

    apart.look()

    assert apart.store.revision == before
    assert len(apart.store.all(catalogue.PODS.key)) == 3


def test_failing_object_does_not_stop_reconciliation_of_others() -> None:
    looked: list[str] = []

    def look(_namespace: str, name: str) -> None:
        looked.append(name)
        if name == "broken" and looked.count("broken") == 1:
            raise KeyError(name)

    async def story() -> None:
        queue = WorkQueue(look, 0)
        for name in ("first", "broken", "last"):
            queue.add("default", name)
        with pytest.raises(KeyError):
            await queue.run()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(queue.run(), 0.05)

    asyncio.run(story())

    assert looked == ["first", "broken", "last"]


def test_deployment_renames_its_replica_set_if_name_is_taken(apart: ControllersAlone) -> None:
    apart.registry.create(catalogue.DEPLOYMENTS, "default", a_deployment())
    apart.look()
    (document,) = apart.store.all(catalogue.REPLICA_SETS.key)
    apart.registry.mutate(
        catalogue.REPLICA_SETS,
        "default",
        document["metadata"]["name"],
        lambda obj: obj["metadata"]["ownerReferences"][0].update(uid="another", name="another"),
    )
    apart.registry.mutate(catalogue.DEPLOYMENTS, "default", "web", lambda obj: obj.update(status={}))

    apart.settle()

    assert apart.store.all(catalogue.DEPLOYMENTS.key)[0]["status"]["collisionCount"] == 1
    assert len(apart.store.all(catalogue.REPLICA_SETS.key)) == 2


def test_rollout_of_a_broken_template_stops_within_its_bounds(apart: ControllersAlone) -> None:
    apart.registry.create(catalogue.DEPLOYMENTS, "default", a_deployment(replicas=8))
    apart.settle()
    apart.make_ready()
    apart.settle()

    apart.update_image("x:2")
    apart.settle()

    assert apart.images() == ["1"] * 6 + ["2"] * 4  # a quarter may be missing, a quarter may be too many


def test_scaling_during_a_rollout_is_proportional(apart: ControllersAlone) -> None:
    apart.registry.create(catalogue.DEPLOYMENTS, "default", a_deployment(replicas=8))
    apart.settle()
    apart.make_ready()
    apart.settle()
    apart.update_image("x:2")
    apart.settle()

    apart.update(replicas=16)
    apart.look()

    sizes = {
        item["spec"]["template"]["spec"]["containers"][0]["image"][-1]: item["spec"]["replicas"]
        for item in apart.store.all(catalogue.REPLICA_SETS.key)
    }
    assert sizes == {"1": 12, "2": 8}
