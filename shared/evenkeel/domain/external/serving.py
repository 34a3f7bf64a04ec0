"""Serving workloads whose replicas wait for nodes."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from evenkeel.domain.external.adoption_policy import ServingWorkload
from evenkeel.domain.external.unmanaged_workloads import UnmanagedPod

LONG_AGO = datetime.min.replace(tzinfo=UTC)


_MAX_NAME = 32
"""The names of its capacity pods and executions start with its id, and may have 63 characters."""


class ReplicaShortfall(NamedTuple):
    """A registered Deployment with replicas that have no node."""

    registered: ServingWorkload
    replicas: tuple[UnmanagedPod, ...]
    """All its replicas."""
    waiting: tuple[UnmanagedPod, ...]
    """Replicas without a node, up to the agreed number, the longest-waiting first."""

    @property
    def per_replica(self) -> int:
        """Accelerators of one replica. If replicas differ, the accelerators of the largest replica."""
        return max(pod.accelerators for pod in self.waiting)


def holder_id(serving_workload: ServingWorkload) -> str:
    """Return the id under which nodes are rented for a Deployment: `srv-chat-0123abcd`."""
    full_name = f"{serving_workload.cluster}/{serving_workload.namespace}/{serving_workload.name}"
    short_name = re.sub("[^a-z0-9]+", "-", serving_workload.name.lower())[:_MAX_NAME].strip("-")
    return f"srv-{short_name}-{hashlib.sha256(full_name.encode()).hexdigest()[:8]}"


def replicas_of(namespace: str, name: str, pods: Iterable[UnmanagedPod]) -> tuple[UnmanagedPod, ...]:
    """Return the pods of a Deployment. Its ReplicaSets have its name, with a hash of their template."""
    return tuple(
        pod
        for pod in pods
        if (pod.namespace, pod.kind) == (namespace, "ReplicaSet") and pod.workload.rpartition("-")[0] == name
    )


def replica_shortfalls(
    serving_workloads: Iterable[ServingWorkload], pods: Mapping[str, Sequence[UnmanagedPod]]
) -> tuple[ReplicaShortfall, ...]:
    """Return the Deployments with replicas that wait for a node.

    Args:
        serving_workloads: All registered Deployments.
        pods: By cluster, all pods.
    """
    shortfalls = []
    for workload in serving_workloads:
        replicas = replicas_of(workload.namespace, workload.name, pods.get(workload.cluster, ()))
        placed_count = sum(bool(pod.node_name) for pod in replicas)
        without_node = (pod for pod in replicas if not pod.node_name and pod.accelerators)
        # Replicas beyond the agreed number are ignored, although the owner scaled the Deployment to them.
        waiting_pods = sorted(without_node, key=lambda pod: pod.created_at or LONG_AGO)[
            : max(0, workload.max_replicas - placed_count)
        ]
        if waiting_pods:
            shortfalls.append(ReplicaShortfall(workload, replicas, tuple(waiting_pods)))
    return tuple(shortfalls)
