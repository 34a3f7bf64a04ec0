"""The resource metrics API (`metrics.k8s.io`), which `kubectl top` reads: CPU and memory of the pods' processes."""

from __future__ import annotations

import os
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path

from evenkeel_local.gpu_cluster import catalogue
from evenkeel_local.gpu_cluster.errors import Obj
from evenkeel_local.gpu_cluster.kubelet import KubeletDirectory
from evenkeel_local.gpu_cluster.objects import labels_of
from evenkeel_local.gpu_cluster.registry import timestamp
from evenkeel_local.gpu_cluster.store import ResourceType, Store, name_of, namespace_of

GROUP, VERSION = "metrics.k8s.io", "v1beta1"
PODS = ResourceType(GROUP, VERSION, "pods", "PodMetrics", singular="")
NODES = ResourceType(GROUP, VERSION, "nodes", "NodeMetrics", namespaced=False, singular="")
WINDOW = "15s"
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def _usage_by_session() -> dict[int, tuple[float, int]]:
    """Return (cpu seconds, resident bytes) of every session on this machine."""
    usage: dict[int, tuple[float, int]] = defaultdict(lambda: (0.0, 0))
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            fields = Path(entry.path, "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        session, seconds = int(fields[3]), (int(fields[11]) + int(fields[12])) / _TICKS
        earlier_usage = usage[session]
        usage[session] = (earlier_usage[0] + seconds, earlier_usage[1] + int(fields[21]) * _PAGE_BYTES)
    return usage


class MetricsServer:
    """Measures pods by their processes, and nodes by their pods."""

    def __init__(self, directory: KubeletDirectory, store: Store) -> None:
        self._directory = directory
        self._store = store

    def pods(self, namespace: str | None) -> list[Obj]:
        """Return the metrics of running pods; usage is the mean since the container started."""
        sessions, now = _usage_by_session(), datetime.now(UTC)
        pod_documents: list[Obj] = []
        for kubelet in self._directory.all():
            for worker in kubelet.workers.values():
                if namespace is not None and namespace_of(worker.pod) != namespace:
                    continue
                containers = []
                for container, process in worker.processes:
                    seconds, resident = sessions.get(process.group, (0.0, 0))
                    age = max((now - process.started_at).total_seconds(), 0.1)
                    containers.append({"name": container.name, "usage": _usage_json(seconds / age, resident)})
                if containers:
                    pod_documents.append(self._metrics_object(PODS, worker.pod, {"containers": containers}))
        return pod_documents

    def nodes(self) -> list[Obj]:
        """Return the metrics of nodes: the sum of their pods."""
        usage_by_node: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
        for pod in self.pods(None):
            node = self._store.find(catalogue.PODS.key, pod["metadata"]["namespace"], pod["metadata"]["name"])
            name = node["spec"].get("nodeName", "") if node is not None else ""
            for container in pod["containers"]:
                cpu, memory = container["usage"]["cpu"], container["usage"]["memory"]
                earlier_usage = usage_by_node[name]
                usage_by_node[name] = (
                    earlier_usage[0] + int(cpu.removesuffix("n")),
                    earlier_usage[1] + int(memory.removesuffix("Ki")),
                )
        return [
            self._metrics_object(
                NODES,
                node,
                {
                    "usage": {
                        "cpu": f"{usage_by_node[name_of(node)][0]}n",
                        "memory": f"{usage_by_node[name_of(node)][1]}Ki",
                    }
                },
            )
            for node in self._store.all(catalogue.NODES.key)
        ]

    def _metrics_object(self, resource_type: ResourceType, subject: Obj, fields: Obj) -> Obj:
        metadata = {"name": name_of(subject), "creationTimestamp": timestamp(), "labels": labels_of(subject)}
        if resource_type.namespaced:
            metadata["namespace"] = namespace_of(subject)
        return {
            "kind": resource_type.kind,
            "apiVersion": resource_type.api_version,
            "metadata": metadata,
            "timestamp": timestamp(),
            "window": WINDOW,
            **fields,
        }


def _usage_json(cores: float, resident: int) -> Obj:
    return {"cpu": f"{int(cores * 1e9)}n", "memory": f"{resident // 1024}Ki"}
