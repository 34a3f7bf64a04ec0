"""The port RentedCapacity on Kubernetes: capacity pods, limits of Karpenter NodePools, and NodeClaims."""

import contextlib
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from evenkeel.adapters.kubernetes import AlreadyExists, KubernetesApi, retry_on_conflict
from evenkeel.adapters.manifests import capacity_job
from evenkeel.adapters.object_fields import FLEET_LABEL, NEURON, NVIDIA, RENTAL_LABEL, Json
from evenkeel.adapters.workloads import controlling_workload
from evenkeel.domain.jobs.workload_kind import WorkloadKind
from evenkeel.domain.nodes import KARPENTER_LABEL
from evenkeel.ports import CapacitySpec, Conflict, LimitResult, NodeClaim, NotFound

_POOLS = "/apis/karpenter.sh/v1/nodepools"
_CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
_NODES = "/api/v1/nodes"
_EVENTS = "/api/v1/namespaces/default/events"
"""Kubernetes stores events about objects without a namespace in the namespace `default`."""
_LAUNCH_FAILED_REASON = "InsufficientCapacityError"
"""Reason of Karpenter's event before it deletes a NodeClaim for lack of capacity. Only this event reports it."""
_TRIES = 5


class KubernetesCapacity(ABC):
    """The operations of renting. `KubernetesCluster` includes them."""

    _fleet: str

    @abstractmethod
    def _api(self, cluster: str) -> KubernetesApi: ...

    @abstractmethod
    def _list_objects(self, cluster: str, path: str, **query: str) -> list[Json]: ...

    def create_capacity_pods(self, spec: CapacitySpec) -> None:
        path = f"/apis/batch/v1/namespaces/{spec.namespace}/jobs"
        pool = self._api(spec.cluster).get(f"{_POOLS}/{spec.pool}") or {}
        nodes = ((pool.get("spec") or {}).get("template") or {}).get("spec") or {}
        taints = (*(nodes.get("taints") or ()), *(nodes.get("startupTaints") or ()))
        with contextlib.suppress(AlreadyExists):
            self._api(spec.cluster).create(path, capacity_job(spec, self._fleet, taints))

    def delete_capacity_pods(self, cluster: str, namespace: str, name: str) -> bool:
        api = self._api(cluster)
        path = f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}"
        job = api.get(path)
        if job is not None and _labels(job).get(RENTAL_LABEL) != name:
            job = None  # this Job does not belong to the rental
        if job is not None and "deletionTimestamp" not in job["metadata"]:
            api.delete(path, propagationPolicy="Background", preconditions={"uid": job["metadata"]["uid"]})
        selector = f"{RENTAL_LABEL}={name},{FLEET_LABEL}={self._fleet}"
        listed_pods = self._list_objects(cluster, f"/api/v1/namespaces/{namespace}/pods", labelSelector=selector)
        # Any pod may have these labels. Only pods that the rental's Job controls belong to the rental.
        pods = [pod for pod in listed_pods if controlling_workload(pod)[:2] == (WorkloadKind.JOB, name)]
        for pod in pods:
            if "deletionTimestamp" not in pod["metadata"]:
                path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}"
                api.delete(path, gracePeriodSeconds=1)
        return job is None and not pods

    def label_rented_nodes(self, cluster: str, names: Iterable[str], rental: str) -> None:
        for name in names:
            with contextlib.suppress(NotFound):
                retry_on_conflict(functools.partial(self._label_node, cluster, name, rental))

    def _label_node(self, cluster: str, name: str, rental: str) -> None:
        node = self._api(cluster).get(f"{_NODES}/{name}")
        if node is not None and _labels(node).get(RENTAL_LABEL) != rental:
            metadata = {"resourceVersion": node["metadata"]["resourceVersion"], "labels": {RENTAL_LABEL: rental}}
            self._api(cluster).patch(f"{_NODES}/{name}", {"metadata": metadata})

    def set_pool_limit(self, cluster: str, pool: str, rented: Callable[[], tuple[int, int]]) -> LimitResult:
        for _ in range(_TRIES - 1):
            with contextlib.suppress(Conflict):
                return self._try_limit(cluster, pool, rented)
        return self._try_limit(cluster, pool, rented)

    def _try_limit(self, cluster: str, pool: str, rented: Callable[[], tuple[int, int]]) -> LimitResult:
        pool_object = self._api(cluster).get(f"{_POOLS}/{pool}")
        if pool_object is None:
            return LimitResult.GONE
        limits = (pool_object.get("spec") or {}).get("limits") or {}
        # Count after reading the pool. If another process patches the pool meanwhile, this patch is a conflict.
        nodes, accelerators = rented()
        limit = {name: str(accelerators) for name in (NVIDIA, NEURON) if name in limits}
        if "nodes" in limits:
            limit["nodes"] = str(nodes)
        if not limit:
            return LimitResult.UNBOUNDED
        if all(str(limits[name]) == value for name, value in limit.items()):
            return LimitResult.UNCHANGED
        metadata = {"resourceVersion": pool_object["metadata"]["resourceVersion"]}
        self._api(cluster).patch(f"{_POOLS}/{pool}", {"metadata": metadata, "spec": {"limits": limit}})
        return LimitResult.SET

    def node_claims(self, cluster: str, pool: str) -> tuple[NodeClaim, ...]:
        claims = self._list_objects(cluster, _CLAIMS, labelSelector=f"{KARPENTER_LABEL}={pool}")
        return tuple(
            NodeClaim(name=claim["metadata"]["name"], node_name=(claim.get("status") or {}).get("nodeName") or "")
            for claim in claims
        )

    def delete_node_claim(self, cluster: str, name: str) -> None:
        self._api(cluster).delete(f"{_CLAIMS}/{name}")

    def latest_capacity_refusal(self, cluster: str, pool: str, since: datetime) -> str:
        events = self._list_objects(
            cluster, _EVENTS, fieldSelector=f"involvedObject.kind=NodeClaim,reason={_LAUNCH_FAILED_REASON}"
        )
        matching_claims = [
            event for event in events if _is_of_pool(event, pool) and _event_time(event) >= since.replace(microsecond=0)
        ]
        return (
            str(max(matching_claims, key=_event_time).get("message") or _LAUNCH_FAILED_REASON)[:300]
            if matching_claims
            else ""
        )


def _labels(item: Mapping[str, Any]) -> Mapping[str, str]:
    return item["metadata"].get("labels") or {}


def _is_of_pool(event: Mapping[str, Any], pool: str) -> bool:
    """Whether an event is about a NodeClaim of a pool. Karpenter names it `<pool>-<5 characters>`."""
    return str(event["involvedObject"].get("name", "")).rpartition("-")[0] == pool


def _event_time(event: Mapping[str, Any]) -> datetime:
    timestamp = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"]
    return datetime.fromisoformat(timestamp)
