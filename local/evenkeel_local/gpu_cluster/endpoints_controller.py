"""The Endpoints controller: says where the pods of each Service are.

Source: `pkg/controller/endpoint` of Kubernetes 1.33. There are no EndpointSlices.
"""

from __future__ import annotations

from evenkeel_local.gpu_cluster import catalogue
from evenkeel_local.gpu_cluster.errors import ApiError, Obj
from evenkeel_local.gpu_cluster.registry import Registry, condition_of
from evenkeel_local.gpu_cluster.selectors import matches_selector
from evenkeel_local.gpu_cluster.store import Store, StoreChange, name_of, namespace_of
from evenkeel_local.gpu_cluster.work_queue import WorkQueue

DEBOUNCE_SECONDS = 0.02
MANAGED = {"endpoints.kubernetes.io/managed-by": "endpoint-controller"}


class EndpointsController:
    """Keeps an Endpoints object beside every Service that has a selector."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._store: Store = registry.store
        self._queue = WorkQueue(self.sync, DEBOUNCE_SECONDS)
        self.run = self._queue.run
        self._store.listen(self._on_change)

    def _on_change(self, change: StoreChange) -> None:
        if change.key == catalogue.SERVICES.key:
            self._queue.add(namespace_of(change.new), name_of(change.new))
        elif change.key == catalogue.PODS.key and self._store.count(catalogue.SERVICES.key):
            for service in self._store.all(catalogue.SERVICES.key, namespace_of(change.new)):
                if any(_is_of(service, pod) for pod in (change.new, change.old) if pod is not None):
                    self._queue.add(namespace_of(service), name_of(service))

    def notice_all(self) -> None:
        """Look at every Service that is there already."""
        for service in self._store.each(catalogue.SERVICES.key):
            self._queue.add(namespace_of(service), name_of(service))

    def sync(self, namespace: str, name: str) -> None:
        """Write down where one Service's pods are."""
        service = self._store.find(catalogue.SERVICES.key, namespace, name)
        known = self._store.find(catalogue.ENDPOINTS.key, namespace, name)
        if service is None:
            if known is not None and MANAGED.items() <= (known["metadata"].get("labels") or {}).items():
                self._registry.delete(catalogue.ENDPOINTS, namespace, name)
            return
        if not (service.get("spec") or {}).get("selector") or service["metadata"].get("deletionTimestamp"):
            return
        pods = [pod for pod in self._store.all(catalogue.PODS.key, namespace) if _is_of(service, pod)]
        subsets = subsets_of(service, pods)
        labels = {**(service["metadata"].get("labels") or {}), **MANAGED}
        if known is None:
            body: Obj = {"metadata": {"name": name, "labels": labels}, **({"subsets": subsets} if subsets else {})}
            try:
                self._registry.create(catalogue.ENDPOINTS, namespace, body)
            except ApiError as refused:
                if refused.code not in (403, 404):  # the namespace ends, and the Service with it
                    raise
            return

        def change(obj: Obj) -> None:
            obj["metadata"]["labels"] = labels
            obj.pop("subsets", None)
            if subsets:
                obj["subsets"] = subsets

        self._registry.mutate(catalogue.ENDPOINTS, namespace, name, change)


def _is_of(service: Obj, pod: Obj) -> bool:
    selector = (service.get("spec") or {}).get("selector")
    return bool(selector) and matches_selector({"matchLabels": selector}, pod["metadata"].get("labels") or {})


def subsets_of(service: Obj, pods: list[Obj]) -> list[Obj]:
    """Return the addresses of a Service's pods, those that serve apart from those that do not yet, by their ports."""
    everybody = (service["spec"] or {}).get("publishNotReadyAddresses")
    found: dict[str, Obj] = {}
    for pod in pods:
        ip, phase = pod["status"].get("podIP"), pod["status"].get("phase")
        if not ip or not pod["spec"].get("nodeName") or phase in ("Succeeded", "Failed"):
            continue
        if pod["metadata"].get("deletionTimestamp") and not everybody:
            continue
        ports = _ports(service, pod)
        subset = found.setdefault(repr(ports), {"ports": ports} if ports else {})
        serves = everybody or (condition_of(pod, "Ready") or {}).get("status") == "True"
        subset.setdefault("addresses" if serves else "notReadyAddresses", []).append(
            {
                "ip": ip,
                "nodeName": pod["spec"]["nodeName"],
                "targetRef": {
                    "kind": "Pod",
                    "namespace": namespace_of(pod),
                    "name": name_of(pod),
                    "uid": pod["metadata"]["uid"],
                },
            }
        )
    return list(found.values())


def _ports(service: Obj, pod: Obj) -> list[Obj]:
    ports = []
    for port in service["spec"].get("ports") or ():
        number = port.get("targetPort", port["port"])
        if isinstance(number, str):
            number = _named(pod, number)
        if number is not None:
            named = {"name": port["name"]} if port.get("name") else {}
            ports.append({**named, "port": number, "protocol": port.get("protocol", "TCP")})
    return ports


def _named(pod: Obj, name: str) -> int | None:
    for container in pod["spec"]["containers"]:
        for port in container.get("ports") or ():
            if port.get("name") == name:
                return int(port["containerPort"])
    return None
