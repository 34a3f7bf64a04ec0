"""Garbage collection: dependants of deleted owners, foreground deletion, namespaces, and pods without a node."""

from __future__ import annotations

import asyncio

from evenkeel_local.gpu_cluster import catalogue
from evenkeel_local.gpu_cluster.errors import ApiError, Obj
from evenkeel_local.gpu_cluster.objects import condition_of, has_ended, is_deleting, remove_finalizer, remove_owner
from evenkeel_local.gpu_cluster.registry import FOREGROUND, ORPHAN, Registry, mark_disrupted
from evenkeel_local.gpu_cluster.store import Store, StoreChange, TypeKey, name_of, namespace_of


class GarbageCollector:
    """Deletes a dependant when its last owner is gone."""

    def __init__(self, registry: Registry, pod_gc_seconds: float) -> None:
        self._registry = registry
        self._store: Store = registry.store
        self._pod_gc_seconds = pod_gc_seconds
        self._orphaned: dict[tuple[TypeKey, str, str], None] = {}
        self._ending: dict[tuple[TypeKey, str, str], None] = {}
        self._namespaces: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._store.listen(self._on_change)

    def _on_change(self, change: StoreChange) -> None:
        metadata = change.new["metadata"]
        at = (change.key, namespace_of(change.new), name_of(change.new))
        if change.kind == "DELETED":
            for key, dependant in self._store.owned_by(metadata["uid"]):
                self._orphaned[(key, namespace_of(dependant), name_of(dependant))] = None
            for reference in metadata.get("ownerReferences") or ():
                self._check_owner(reference, namespace_of(change.new))
            if namespace_of(change.new):
                self._check_namespace(namespace_of(change.new))
        else:
            if metadata.get("deletionTimestamp") and metadata.get("finalizers"):
                self._ending[at] = None
            if change.kind == "ADDED" and metadata.get("ownerReferences"):
                self._orphaned[at] = None
            if change.key == catalogue.NAMESPACES.key:
                self._check_namespace(name_of(change.new))
        self._wake.set()

    def _check_owner(self, reference: Obj, namespace: str) -> None:
        rt = self._registry.types.by_kind(reference["apiVersion"], reference["kind"])
        if rt is not None:
            self._ending[(rt.key, namespace if rt.namespaced else "", reference["name"])] = None

    def _check_namespace(self, name: str) -> None:
        namespace = self._store.find(catalogue.NAMESPACES.key, "", name)
        if namespace is not None and is_deleting(namespace):
            self._namespaces[name] = None

    async def run(self) -> None:
        """Collect until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._orphaned or self._ending or self._namespaces:
                if self._ending:
                    at = next(iter(self._ending))
                    del self._ending[at]
                    self._finish_deletion(*at)
                elif self._orphaned:
                    at = next(iter(self._orphaned))
                    del self._orphaned[at]
                    self._collect(*at)
                else:
                    name = next(iter(self._namespaces))
                    del self._namespaces[name]
                    self._empty_namespace(name)
            await asyncio.sleep(0)

    def _owner_exists(self, reference: Obj, namespace: str) -> bool:
        rt = self._registry.types.by_kind(reference["apiVersion"], reference["kind"])
        if rt is None:
            return True  # the kind is not served, so assume that the owner exists
        owner = self._store.find(rt.key, namespace if rt.namespaced else "", reference["name"])
        return owner is not None and owner["metadata"]["uid"] == reference["uid"]

    def _collect(self, key: TypeKey, namespace: str, name: str) -> None:
        obj = self._store.find(key, namespace, name)
        references = (obj or {}).get("metadata", {}).get("ownerReferences") or []
        if obj is None or not references or is_deleting(obj):
            return
        if any(self._owner_exists(reference, namespace) for reference in references):
            return
        self._registry.remove(obj, {"propagationPolicy": "Background"})

    def _finish_deletion(self, key: TypeKey, namespace: str, name: str) -> None:
        """Continue the deletion of an object that waits for its dependants."""
        obj = self._store.find(key, namespace, name)
        if obj is None or not is_deleting(obj):
            return
        finalizers, uid = obj["metadata"].get("finalizers") or [], obj["metadata"]["uid"]
        if ORPHAN in finalizers:
            for _, dependant in self._store.owned_by(uid):
                self._registry.change(dependant, lambda other: remove_owner(other, uid))
            self._registry.change(obj, lambda other: remove_finalizer(other, ORPHAN))
        elif FOREGROUND in finalizers:
            dependants = [dependant for _, dependant in self._store.owned_by(uid)]
            for dependant in dependants:
                if not is_deleting(dependant):
                    has_own = self._store.owned_by(dependant["metadata"]["uid"])
                    self._registry.remove(dependant, {"propagationPolicy": "Foreground"} if has_own else {})
            if not dependants:
                self._registry.change(obj, lambda other: remove_finalizer(other, FOREGROUND))
            elif not self._store.owned_by(uid):
                self._ending[(key, namespace, name)] = None

    def _empty_namespace(self, name: str) -> None:
        """Delete the objects in a namespace that is being deleted, and then the namespace."""
        namespace = self._store.find(catalogue.NAMESPACES.key, "", name)
        if namespace is None:
            return
        objects_left = 0
        for rt in {rt.key: rt for rt in self._registry.types.all() if rt.namespaced}.values():
            for obj in self._store.all(rt.key, name):
                objects_left += 1
                if not is_deleting(obj):
                    self._registry.delete(rt, name, name_of(obj), {"propagationPolicy": "Background"})
                    if self._store.find(rt.key, name, name_of(obj)) is None:
                        objects_left -= 1
        if objects_left == 0:
            self._registry.change(namespace, lambda obj: obj["spec"].update(finalizers=[]))

    # Pods

    async def collect_pods(self) -> None:
        """Remove pods whose node is gone, and terminating pods on a node with the out-of-service taint."""
        while True:
            await asyncio.sleep(self._pod_gc_seconds)
            self.collect_pods_once()

    def collect_pods_once(self) -> None:
        """Collect once."""
        for pod in self._store.all(catalogue.PODS.key):
            node_name = pod["spec"].get("nodeName")
            if not node_name:
                continue
            node = self._store.find(catalogue.NODES.key, "", node_name)
            if node is None:
                self._remove(pod, "PodGC: node no longer exists")
            elif is_deleting(pod) and _is_out_of_service(node):
                self._remove(pod, "PodGC: node is out of service")

    def _remove(self, pod: Obj, why: str) -> None:
        def fail(obj: Obj) -> None:
            if not has_ended(obj):
                obj["status"]["phase"] = "Failed"
                mark_disrupted(obj, "DeletionByPodGC", why)

        self._registry.change(pod, fail)
        try:
            self._registry.remove(pod, {"gracePeriodSeconds": 0})
        except ApiError as refusal:
            if refusal.code != 404:
                raise


def _is_out_of_service(node: Obj) -> bool:
    keys = {taint["key"] for taint in node["spec"].get("taints") or ()}
    ready = condition_of(node, "Ready")
    return "node.kubernetes.io/out-of-service" in keys and ready is not None and ready["status"] != "True"
