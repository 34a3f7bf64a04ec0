"""Random histories of nodes and pods against a simple model: no object is lost, and a watch agrees with a list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from evenkeel_local.gpu_cluster import catalogue
from evenkeel_local.gpu_cluster.catalogue import ResourceCatalogue
from evenkeel_local.gpu_cluster.errors import ApiError
from evenkeel_local.gpu_cluster.garbage_collector import GarbageCollector
from evenkeel_local.gpu_cluster.registry import Registry
from evenkeel_local.gpu_cluster.store import ResourceType, Store, TypeKey, clone, name_of, namespace_of

Json = dict[str, Any]
T = TypeVar("T")
Where = tuple[TypeKey, str]
"""A type and a name: the identity of an object in the model."""

POD, NODE = catalogue.PODS, catalogue.NODES
# Few names and a short history, so that many writes meet on one object.
NODES = st.just("n")
NAMES = st.sampled_from(["a", "b"])
ALL = st.sampled_from([(POD, "a"), (POD, "b"), (NODE, "n")])
VALUES = st.text("xyz", min_size=1, max_size=2)
HISTORY = 6
HOLD = "evenkeel.io/hold"
BUDGET = "guard"


def result_or_refusal(call: Callable[[], T]) -> tuple[T | None, ApiError | None]:
    """Return the result of a call, or its refusal."""
    try:
        return call(), None
    except ApiError as refused:
        return None, refused


def version_of(obj: Json) -> str:
    return str(obj["metadata"]["resourceVersion"])


def is_ending(obj: Json) -> bool:
    return "deletionTimestamp" in obj["metadata"]


class Objects(RuleBasedStateMachine):
    """Nodes and pods under every kind of write. The model holds the state that a reader must see."""

    read = Bundle("read")

    def __init__(self) -> None:
        super().__init__()
        self.store = Store(history=HISTORY)
        self.registry = Registry(self.store, ResourceCatalogue())
        self.garbage = GarbageCollector(self.registry, 1.0)
        self.registry.create(catalogue.NAMESPACES, "", {"metadata": {"name": "default"}})
        self.registry.create(catalogue.SERVICE_ACCOUNTS, "default", {"metadata": {"name": "default"}})
        spec = {"minAvailable": 1, "selector": {"matchLabels": {"kind": "pod"}}}
        self.registry.create(catalogue.BUDGETS, "default", {"metadata": {"name": BUDGET}, "spec": spec})
        self.model: dict[Where, Json] = {}
        self.dead_uids: set[str] = set()
        self.versions: set[str] = set()
        # The state of a watcher at each of its positions: it may start again from any of them.
        self.replayed: dict[TypeKey, dict[int, dict[str, Json]]] = {
            rt.key: {self.store.revision: {}} for rt in (POD, NODE)
        }

    # The model

    def _current(self, rt: ResourceType, name: str) -> Json | None:
        return self.model.get((rt.key, name))

    def _settle(self, rt: ResourceType, name: str, stored: Json | None) -> None:
        """Apply the answer of a write to the model; `None` if the object was deleted."""
        at = (rt.key, name)
        current = self.model.get(at)
        if stored is None:
            self.dead_uids.add(self.model.pop(at)["metadata"]["uid"])
            return
        if current is None or version_of(current) != version_of(stored):
            assert version_of(stored) not in self.versions, "a version is given once"
            assert current is None or int(version_of(stored)) > int(version_of(current)), "versions only grow"
            self.versions.add(version_of(stored))
        self.model[at] = stored

    def _refused(self, refused: ApiError | None, *codes: int) -> None:
        assert refused is not None
        assert refused.code in codes, refused

    # Creating and reading

    @rule(target=read, name=NAMES, value=VALUES, held=st.booleans(), node=st.none() | NODES)
    def create_pod(self, name: str, value: str, held: bool, node: str | None) -> Json:
        metadata: Json = {"name": name, "labels": {"v": value, "kind": "pod"}}
        if held:
            metadata["finalizers"] = [HOLD]
        spec: Json = {"containers": [{"name": "m", "image": "i:1"}], **({"nodeName": node} if node else {})}
        return self._create(POD, {"metadata": metadata, "spec": spec})

    @rule(target=read, name=NODES, value=VALUES)
    def create_node(self, name: str, value: str) -> Json:
        return self._create(NODE, {"metadata": {"name": name, "labels": {"v": value}}})

    def _create(self, rt: ResourceType, body: Json) -> Json:
        name = name_of(body)
        created, refused = result_or_refusal(lambda: self.registry.create(rt, "default" if rt.namespaced else "", body))
        current = self._current(rt, name)
        if created is None:
            self._refused(refused, 409)
            assert current is not None
            return current
        assert current is None
        assert created["metadata"]["uid"] not in self.dead_uids
        self._settle(rt, name, created)
        return created

    @rule(target=read, at=ALL)
    def get(self, at: tuple[ResourceType, str]) -> Json:
        rt, name = at
        obj = self.store.find(rt.key, "default" if rt.namespaced else "", name)
        assert obj == self._current(rt, name)
        return obj or {}

    # Writing

    def _type_of(self, obj: Json) -> ResourceType:
        return POD if obj["kind"] == "Pod" else NODE

    @rule(obj=read, value=VALUES, status=st.booleans())
    def update_a_read_object(self, obj: Json, value: str, status: bool) -> None:
        """Write back an object read earlier, or its status: it succeeds exactly if the object has not changed since."""
        if not obj:
            return
        rt, name = self._type_of(obj), name_of(obj)
        current = self._current(rt, name)
        changed = clone(obj)
        changed["metadata"]["labels"] = {**changed["metadata"]["labels"], "v": value}
        changed["status"] = {**changed.get("status", {}), "told": value}
        subresource = "status" if status else ""
        stored, refused = result_or_refusal(lambda: self.registry.update(rt, changed, subresource=subresource))
        if stored is None:
            self._refused(refused, 404, 409)
            assert current is None or version_of(current) != version_of(obj)
            return
        assert current is not None
        assert version_of(current) == version_of(obj)
        assert stored["spec"] == current["spec"]
        assert stored.get("status", {}).get("told") == (value if status else current.get("status", {}).get("told"))
        self._settle(rt, name, stored)

    @rule(obj=read, value=VALUES)
    def update_without_a_version(self, obj: Json, value: str) -> None:
        """Overwrite the present object: it fails only if the object was deleted or recreated."""
        if not obj:
            return
        rt, name = self._type_of(obj), name_of(obj)
        current = self._current(rt, name)
        changed = clone(current or obj)
        changed["metadata"]["uid"] = obj["metadata"]["uid"]
        changed["metadata"].pop("resourceVersion", None)
        changed["metadata"]["annotations"] = {"v": value}
        stored, refused = result_or_refusal(lambda: self.registry.update(rt, changed))
        if stored is None:
            self._refused(refused, 404, 422)
            assert current is None or current["metadata"]["uid"] != obj["metadata"]["uid"]
            return
        assert current is not None
        assert stored["metadata"]["annotations"] == {"v": value}
        self._settle(rt, name, stored)

    @rule(name=NODES, cordoned=st.booleans())
    def cordon(self, name: str, cordoned: bool) -> None:
        """Change a node as a patch without a version does."""
        stored = self.registry.mutate(NODE, "", name, lambda obj: obj["spec"].update(unschedulable=cordoned))
        assert (stored is None) == (self._current(NODE, name) is None)
        if stored is not None:
            assert stored["spec"]["unschedulable"] is cordoned
            self._settle(NODE, name, stored)

    @rule(name=NAMES, phase=st.sampled_from(["Running", "Succeeded"]))
    def report(self, name: str, phase: str) -> None:
        """Report the status of a pod, as its kubelet does."""
        stored = self.registry.mutate(POD, "default", name, lambda obj: obj["status"].update(phase=phase))
        assert (stored is None) == (self._current(POD, name) is None)
        if stored is not None:
            self._settle(POD, name, stored)

    @rule(at=ALL, value=VALUES)
    def dry_run(self, at: tuple[ResourceType, str], value: str) -> None:
        """Make a dry run of a write: nothing is stored, as the invariants check."""
        rt, name = at
        current = self._current(rt, name)
        if current is None:
            return
        changed = clone(current)
        changed["metadata"]["annotations"] = {"dry": value}
        document = self.registry.update(rt, changed, dry_run=True)
        self.registry.delete(rt, namespace_of(current), name, dry_run=True)
        assert document["metadata"]["annotations"] == {"dry": value}

    # Ending

    @rule(obj=consumes(read), grace=st.none() | st.just(0), policy=st.sampled_from([None, "Foreground"]))
    def delete_a_read_object(self, obj: Json, grace: int | None, policy: str | None) -> None:
        """Delete with the UID that was read as the precondition: a successor of the same name is safe."""
        if not obj:
            return
        rt, name, uid = self._type_of(obj), name_of(obj), obj["metadata"]["uid"]
        current = self._current(rt, name)
        options: Json = {"preconditions": {"uid": uid}, "gracePeriodSeconds": grace, "propagationPolicy": policy}
        done, refused = result_or_refusal(lambda: self.registry.delete(rt, namespace_of(obj), name, options))
        if done is None:
            self._refused(refused, 404 if current is None else 409)
            assert current is None or current["metadata"]["uid"] != uid
            return
        assert current is not None
        assert current["metadata"]["uid"] == uid
        last, gone = done
        if not gone:
            assert is_ending(last)
            assert last["metadata"].get("finalizers") or last["metadata"]["deletionGracePeriodSeconds"] > 0
        self._settle(rt, name, None if gone else last)

    @rule(name=NAMES, room=st.booleans(), dry_run=st.booleans())
    def evict(self, name: str, room: bool, dry_run: bool) -> None:
        """Evict a pod: only an exhausted budget of a running pod prevents it."""
        counts = {
            "disruptionsAllowed": int(room),
            "currentHealthy": 1,
            "desiredHealthy": 2,
            "observedGeneration": 1,
        }
        self.registry.mutate(catalogue.BUDGETS, "default", BUDGET, lambda obj: obj["status"].update(counts))
        current = self._current(POD, name)
        _, refused = result_or_refusal(lambda: self.registry.evict("default", name, {}, dry_run=dry_run))
        if current is None:
            self._refused(refused, 404)
            return
        guarded = current["status"]["phase"] == "Running" and not is_ending(current)
        if guarded and not room:
            self._refused(refused, 429)
            return
        assert refused is None
        left = self.store.find(catalogue.BUDGETS.key, "default", BUDGET)
        assert left is not None
        assert left["status"]["disruptionsAllowed"] == int(room) - int(guarded and not dry_run)
        if not dry_run:
            pod_object = self.store.find(POD.key, "default", name)
            assert pod_object is None or is_ending(pod_object)
            self._settle(POD, name, pod_object)

    @rule(name=NAMES)
    def let_go(self, name: str) -> None:
        """Remove the finalizers. An object whose deletion waited only for them is deleted."""
        current = self._current(POD, name)
        if current is None or not current["metadata"].get("finalizers"):
            return
        self.registry.mutate(POD, "default", name, lambda obj: obj["metadata"].pop("finalizers"))
        pod_object = self.store.find(POD.key, "default", name)
        goes = is_ending(current) and not current["metadata"].get("deletionGracePeriodSeconds")
        assert (pod_object is None) == goes
        self._settle(POD, name, pod_object)

    @rule(name=NAMES)
    def confirm_the_end(self, name: str) -> None:
        """Finish a graceful deletion as a kubelet does: a finalizer still holds the object."""
        current = self._current(POD, name)
        if current is None or not is_ending(current):
            return
        last, gone = self.registry.delete(POD, "default", name, {"gracePeriodSeconds": 0})
        assert gone == (not current["metadata"].get("finalizers"))
        self._settle(POD, name, None if gone else last)

    @rule(name=NODES)
    def lose_a_node(self, name: str) -> None:
        """Delete a node and collect its pods: only a finalizer keeps a pod bound to it, and all are marked."""
        if self._current(NODE, name) is not None:
            _, gone = self.registry.delete(NODE, "", name)
            if not gone:
                self._settle(NODE, name, self.store.find(NODE.key, "", name))
                return
            self._settle(NODE, name, None)
        self.garbage.collect_pods_once()
        for (key, pod), before in list(self.model.items()):
            bound = before["spec"].get("nodeName") if key == POD.key else None
            if bound is None or self._current(NODE, bound) is not None:
                continue
            pod_object = self.store.find(POD.key, "default", pod)
            assert pod_object is None or (pod_object["metadata"]["finalizers"] and is_ending(pod_object))
            assert pod_object is None or pod_object["status"]["phase"] in ("Succeeded", "Failed")
            self._settle(POD, pod, pod_object)

    # Watching

    @rule(rt=st.sampled_from([POD, NODE]), back=st.integers(0, 20))
    def follow(self, rt: ResourceType, back: int) -> None:
        """Watch from any position held so far; where history no longer reaches it, list again as clients do."""
        held = self.replayed[rt.key]
        position = sorted(held)[-1 - back % len(held)]
        objects = dict(held[position])
        changes, expired = result_or_refusal(lambda: self.store.changes_since(rt.key, position))
        if changes is None:
            self._refused(expired, 410)
            objects = {name_of(obj): obj for obj in self.store.all(rt.key)}
            held.clear()
        for change in changes or ():
            assert change.revision > position
            position = change.revision
            known = objects.get(name_of(change.new))
            assert (change.kind == "ADDED") == (known is None)
            assert known is None or known["metadata"]["uid"] == change.new["metadata"]["uid"]
            if change.kind == "DELETED":
                del objects[name_of(change.new)]
            else:
                objects[name_of(change.new)] = change.new
            held[position] = dict(objects)
        held[self.store.revision] = objects
        assert objects == {name: obj for (key, name), obj in self.model.items() if key == rt.key}

    @precondition(lambda self: self.model)
    @rule()
    def forget(self) -> None:
        """Compact the history."""
        self.store.forget_history()

    @invariant()
    def list_matches_the_model(self) -> None:
        for rt in (POD, NODE):
            listed = self.store.all(rt.key)
            assert {(rt.key, name_of(obj)): obj for obj in listed} == {
                at: obj for at, obj in self.model.items() if at[0] == rt.key
            }
            assert not {obj["metadata"]["uid"] for obj in listed} & self.dead_uids


TestObjects = Objects.TestCase
TestObjects.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
