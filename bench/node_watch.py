"""Records when a node becomes unschedulable: a watch on the Kubernetes API, as the cluster's admin."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Self

from evenkeel.adapters.kubernetes import Expired, KubernetesApi, Watch
from evenkeel.ports import TransientError
from evenkeel_local.gpu_cluster import ClusterHandle

_NODES = "/api/v1/nodes"
_WATCH_SECONDS = 600


def admin_api(cluster: ClusterHandle) -> KubernetesApi:
    """Return a client of the cluster's API server with the admin's token."""
    return KubernetesApi("bench", cluster.kubernetes_url, cluster.ca_pem, lambda _fresh: cluster.admin_token)


class NodeWatch:
    """Watches all nodes on its own thread. Use it as a context manager."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api
        self._cordoned_at: dict[str, float] = {}
        self._changed = threading.Condition()
        self._open: Watch | None = None
        self._ending = False
        self._thread = threading.Thread(target=self._follow, name="node-watch", daemon=True)

    def cordoned_at(self, node: str, seconds: float) -> float | None:
        """Wait until a node is unschedulable; return that instant (`time.perf_counter`), or None if the wait ends."""
        with self._changed:
            self._changed.wait_for(lambda: node in self._cordoned_at, seconds)
            return self._cordoned_at.get(node)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._ending = True
            if self._open is not None:
                self._open.shut()
        self._thread.join(5)

    def _follow(self) -> None:
        version = ""
        while not self._ending:
            with contextlib.suppress(TransientError):  # the connection ended: continue, or list again
                try:
                    version = version or self._api.version(_NODES)
                    version = self._read(version)
                except Expired:
                    version = ""

    def _read(self, version: str) -> str:
        with self._api.watch(_NODES, version, _WATCH_SECONDS) as watch:
            with self._changed:
                if self._ending:
                    return version
                self._open = watch
            for event in watch.events():
                now = time.perf_counter()
                metadata = event.item["metadata"]
                version = str(metadata["resourceVersion"])
                if event.kind == "BOOKMARK":
                    continue
                is_cordoned = event.kind != "DELETED" and bool(event.item["spec"].get("unschedulable"))
                with self._changed:
                    if not is_cordoned:
                        self._cordoned_at.pop(metadata["name"], None)
                    elif metadata["name"] not in self._cordoned_at:
                        self._cordoned_at[metadata["name"]] = now
                        self._changed.notify_all()
        return version
