"""Garbage collection: dependants of deleted owners, foreground deletion, ending namespaces, pods without a node."""

from __future__ import annotations

import asyncio

from evenkeel_local.gpu_cluster import catalogue
from evenkeel_local.gpu_cluster.errors import ApiError, Obj
from evenkeel_local.gpu_cluster.registry import FOREGROUND, ORPHAN, Registry, mark_disrupted
from evenkeel_local.gpu_cluster.store import Store, StoreChange, TypeKey, name_of, namespace_of


class GarbageCollector:
    """Follows owner references; a dependant goes when none of its owners is left."""

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
        if namespace is not None and namespace["metadata"].get("deletionTimestamp"):
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

    def _owner_lives(self, reference: Obj, namespace: str) -> bool:
        rt = self._registry.types.by_kind(reference["apiVersion"], reference["kind"])
        if rt is None:
            return True  # an owner of a kind that is not served: nothing can be concluded
        owner = self._store.find(rt.key, namespace if rt.namespaced else "", reference["name"])
        return owner is not None and owner["metadata"]["uid"] == reference["uid"]

    def _collect(self, key: TypeKey, namespace: str, name: str) -> None:
        obj = self._store.find(key, namespace, name)
        references = (obj or {}).get("metadata", {}).get("ownerReferences") or []
        if obj is None or not references or obj["metadata"].get("deletionTimestamp"):
            return
        if any(self._owner_lives(reference, namespace) for reference in references):
            return
        rt = self._registry.types.by_key(key)
        self._registry.delete(rt, namespace, name, {"propagationPolicy": "Background"})

    def _finish_deletion(self, key: TypeKey, namespace: str, name: str) -> None:
        """Go on with an object that is being deleted and waits for its dependants."""
        obj = self._store.find(key, namespace, name)
        if obj is None or not obj["metadata"].get("deletionTimestamp"):
            return
        finalizers = obj["metadata"].get("finalizers") or []
        rt = self._registry.types.by_key(key)
        if ORPHAN in finalizers:
            for dependant_key, dependant in self._store.owned_by(obj["metadata"]["uid"]):
                self._remove_owner_reference(dependant_key, dependant, obj["metadata"]["uid"])
            self._drop_finalizer(rt.key, obj, ORPHAN)
        elif FOREGROUND in finalizers:
            blocking = False
            for dependant_key, dependant in self._store.owned_by(obj["metadata"]["uid"]):
                blocking = True
                if not dependant["metadata"].get("deletionTimestamp"):
                    dependant_rt = self._registry.types.by_key(dependant_key)
                    self._registry.delete(
                        dependant_rt,
                        namespace_of(dependant),
                        name_of(dependant),
                        {"propagationPolicy": "Foreground"}
                        if self._store.owned_by(dependant["metadata"]["uid"])
                        else {},
                    )
            if not blocking:
                self._drop_finalizer(rt.key, obj, FOREGROUND)
            elif not self._store.owned_by(obj["metadata"]["uid"]):
                self._ending[(key, namespace, name)] = None

    def _remove_owner_reference(self, key: TypeKey, dependant: Obj, uid: str) -> None:
        rt = self._registry.types.by_key(key)

        def strip(obj: Obj) -> None:
            kept = [reference for reference in obj["metadata"]["ownerReferences"] if reference["uid"] != uid]
            obj["metadata"]["ownerReferences"] = kept
            if not kept:
                del obj["metadata"]["ownerReferences"]

        self._registry.mutate(rt, namespace_of(dependant), name_of(dependant), strip)

    def _drop_finalizer(self, key: TypeKey, obj: Obj, finalizer: str) -> None:
        rt = self._registry.types.by_key(key)

        def drop(stored: Obj) -> None:
            rest = [kept for kept in stored["metadata"].get("finalizers") or () if kept != finalizer]
            stored["metadata"]["finalizers"] = rest
            if not rest:
                del stored["metadata"]["finalizers"]

        self._registry.mutate(rt, namespace_of(obj), name_of(obj), drop)

    def _empty_namespace(self, name: str) -> None:
        """Delete what is in a namespace that is being deleted; when nothing is left, let the namespace go."""
        namespace = self._store.find(catalogue.NAMESPACES.key, "", name)
        if namespace is None:
            return
        left = 0
        for rt in {rt.key: rt for rt in self._registry.types.all() if rt.namespaced}.values():
            for obj in self._store.all(rt.key, name):
                left += 1
                if not obj["metadata"].get("deletionTimestamp"):
                    self._registry.delete(rt, name, name_of(obj), {"propagationPolicy": "Background"})
                    if self._store.find(rt.key, name, name_of(obj)) is None:
                        left -= 1
        if left == 0:
            self._registry.mutate(catalogue.NAMESPACES, "", name, lambda obj: obj["spec"].update(finalizers=[]))

    # Pods

    async def collect_pods(self) -> None:
        """Remove pods whose node object is gone, and terminating ones on a node declared out of service."""
        while True:
            await asyncio.sleep(self._pod_gc_seconds)
            self.collect_pods_once()

    def collect_pods_once(self) -> None:
        """Do one round of `collect_pods`."""
        for pod in self._store.all(catalogue.PODS.key):
            node_name = pod["spec"].get("nodeName")
            if not node_name:
                continue
            node = self._store.find(catalogue.NODES.key, "", node_name)
            if node is None:
                self._remove(pod, "PodGC: node no longer exists")
            elif pod["metadata"].get("deletionTimestamp") and _is_out_of_service(node):
                self._remove(pod, "PodGC: node is out of service")

    def _remove(self, pod: Obj, why: str) -> None:
        def fail(obj: Obj) -> None:
            if obj["status"].get("phase") not in ("Succeeded", "Failed"):
                obj["status"]["phase"] = "Failed"
                mark_disrupted(obj, "DeletionByPodGC", why)

        self._registry.mutate(catalogue.PODS, namespace_of(pod), name_of(pod), fail)
        try:
            self._registry.delete(catalogue.PODS, namespace_of(pod), name_of(pod), {"gracePeriodSeconds": 0})
        except ApiError as refused:
            if refused.code != 404:
                raise


def _is_out_of_service(node: Obj) -> bool:
    return any(
        taint["key"] == "node.kubernetes.io/out-of-service" for taint in node["spec"].get("taints") or ()
    ) and any(
        condition["type"] == "Ready" and condition["status"] != "True"
        for condition in (node.get("status") or {}).get("conditions") or ()
    )
