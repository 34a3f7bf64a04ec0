"""The Endpoints controller: lists the addresses of each Service's pods.

Source: `pkg/controller/endpoint` of Kubernetes 1.33. There are no EndpointSlices.
"""

from __future__ import annotations

from evenkeel_local.gpu_cluster import catalogue
from evenkeel_local.gpu_cluster.errors import ApiError, Obj
from evenkeel_local.gpu_cluster.objects import is_deleting, is_true, labels_of, put
from evenkeel_local.gpu_cluster.selectors import matches_selector
from evenkeel_local.gpu_cluster.store import StoreChange, name_of, namespace_of
from evenkeel_local.gpu_cluster.work_queue import Controller

MANAGED = {"endpoints.kubernetes.io/managed-by": "endpoint-controller"}


class EndpointsController(Controller):
    """Keeps an Endpoints object for each Service that has a selector."""

    kind = catalogue.SERVICES
    debounce_seconds = 0.02

    def _on_other_change(self, change: StoreChange) -> None:
        if change.key == catalogue.PODS.key and self._store.count(catalogue.SERVICES.key):
            for service in self._store.all(catalogue.SERVICES.key, namespace_of(change.new)):
                if any(_selects(service, pod) for pod in (change.new, change.old) if pod is not None):
                    self.notice(service)

    def sync(self, namespace: str, name: str) -> None:
        """Write the Endpoints of one Service."""
        service = self._store.find(catalogue.SERVICES.key, namespace, name)
        endpoints = self._store.find(catalogue.ENDPOINTS.key, namespace, name)
        if service is None:
            if endpoints is not None and MANAGED.items() <= labels_of(endpoints).items():
                self._registry.delete(catalogue.ENDPOINTS, namespace, name)
            return
        if not (service.get("spec") or {}).get("selector") or is_deleting(service):
            return
        pods = [pod for pod in self._store.all(catalogue.PODS.key, namespace) if _selects(service, pod)]
        subsets = endpoint_subsets(service, pods)
        labels = {**labels_of(service), **MANAGED}
        if endpoints is None:
            body: Obj = {"metadata": {"name": name, "labels": labels}, **({"subsets": subsets} if subsets else {})}
            try:
                self._registry.create(catalogue.ENDPOINTS, namespace, body)
            except ApiError as refusal:
                if refusal.code not in (403, 404):  # the namespace is being deleted, together with the Service
                    raise
            return

        def change(obj: Obj) -> None:
            obj["metadata"]["labels"] = labels
            put(obj, "subsets", subsets)

        self._registry.mutate(catalogue.ENDPOINTS, namespace, name, change)


def _selects(service: Obj, pod: Obj) -> bool:
    selector = (service.get("spec") or {}).get("selector")
    return bool(selector) and matches_selector({"matchLabels": selector}, labels_of(pod))


def endpoint_subsets(service: Obj, pods: list[Obj]) -> list[Obj]:
    """Return the addresses of a Service's pods by port: ready addresses, and addresses that are not ready."""
    with_unready = (service["spec"] or {}).get("publishNotReadyAddresses")
    subsets: dict[str, Obj] = {}
    for pod in pods:
        ip, phase = pod["status"].get("podIP"), pod["status"].get("phase")
        if not ip or not pod["spec"].get("nodeName") or phase in ("Succeeded", "Failed"):
            continue
        if is_deleting(pod) and not with_unready:
            continue
        ports = _ports(service, pod)
        subset = subsets.setdefault(repr(ports), {"ports": ports} if ports else {})
        serves = with_unready or is_true(pod, "Ready")
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
    return list(subsets.values())


def _ports(service: Obj, pod: Obj) -> list[Obj]:
    ports = []
    for port in service["spec"].get("ports") or ():
        number = port.get("targetPort", port["port"])
        if isinstance(number, str):
            number = _named_port(pod, number)
        if number is not None:
            name_field = {"name": port["name"]} if port.get("name") else {}
            ports.append({**name_field, "port": number, "protocol": port.get("protocol", "TCP")})
    return ports


def _named_port(pod: Obj, name: str) -> int | None:
    for container in pod["spec"]["containers"]:
        for port in container.get("ports") or ():
            if port.get("name") == name:
                return int(port["containerPort"])
    return None
