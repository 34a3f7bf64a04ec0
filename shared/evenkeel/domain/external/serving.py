"""Serving workloads whose replicas wait for nodes."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from evenkeel.domain.external.policy import ServingWorkload
from evenkeel.domain.external.unmanaged_workloads import UnmanagedPod

LONG_AGO = datetime.min.replace(tzinfo=UTC)


_SLUG_LENGTH = 32
"""The names of its capacity pods and executions begin with its id, and have 63 characters."""


class ReplicaShortfall(NamedTuple):
    """A registered Deployment of whose replicas some have no node."""

    registered: ServingWorkload
    replicas: tuple[UnmanagedPod, ...]
    """All that there are."""
    waiting: tuple[UnmanagedPod, ...]
    """Those without a node, as far as was agreed, those that wait longest first."""

    @property
    def per_replica(self) -> int:
        """Accelerators of one, where they differ of the largest."""
        return max(pod.accelerators for pod in self.waiting)


def holder_id(registered: ServingWorkload) -> str:
    """Return the id under which nodes are rented for a Deployment: `srv-chat-0123abcd`."""
    place = f"{registered.cluster}/{registered.namespace}/{registered.name}"
    slug = re.sub("[^a-z0-9]+", "-", registered.name.lower())[:_SLUG_LENGTH].strip("-")
    return f"srv-{slug}-{hashlib.sha256(place.encode()).hexdigest()[:8]}"


def replicas_of(namespace: str, name: str, pods: Iterable[UnmanagedPod]) -> tuple[UnmanagedPod, ...]:
    """Return the pods of a Deployment: its ReplicaSets are named after it, with a hash of their template."""
    return tuple(
        pod
        for pod in pods
        if (pod.namespace, pod.kind) == (namespace, "ReplicaSet") and pod.workload.rpartition("-")[0] == name
    )


def replica_shortfalls(
    registered: Iterable[ServingWorkload], pods: Mapping[str, Sequence[UnmanagedPod]]
) -> tuple[ReplicaShortfall, ...]:
    """Return the Deployments of whose replicas some wait for a node.

    Args:
        registered: All of them.
        pods: By cluster, all of them.
    """
    found = []
    for each in registered:
        mine = replicas_of(each.namespace, each.name, pods.get(each.cluster, ()))
        placed = sum(bool(pod.node_name) for pod in mine)
        waits = (pod for pod in mine if not pod.node_name and pod.accelerators)
        # More than it may have is not asked for: its owner scaled it beyond what was agreed.
        waiting = sorted(waits, key=lambda pod: pod.created_at or LONG_AGO)[: max(0, each.most_replicas - placed)]
        if waiting:
            found.append(ReplicaShortfall(each, mine, tuple(waiting)))
    return tuple(found)
