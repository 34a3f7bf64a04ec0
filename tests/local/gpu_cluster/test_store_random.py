"""Random histories of the object store against a simple model: nothing lost, nothing resurrected, watch equals list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from evenkeel_local.gpu_cluster import catalogue
from evenkeel_local.gpu_cluster.catalogue import Catalogue
from evenkeel_local.gpu_cluster.errors import ApiError
from evenkeel_local.gpu_cluster.registry import Registry
from evenkeel_local.gpu_cluster.store import Store, clone, name_of

Json = dict[str, Any]
T = TypeVar("T")
NAMES = st.sampled_from(["a", "b", "c", "d"])
VALUES = st.text("xyz", min_size=1, max_size=2)
HISTORY = 25
HOLD = "evenkeel.io/hold"


def attempt(call: Callable[[], T]) -> tuple[T | None, ApiError | None]:
    """Return what a call gives, or how it is refused."""
    try:
        return call(), None
    except ApiError as refused:
        return None, refused


class Objects(RuleBasedStateMachine):
    """Nodes and pods under every kind of write; the model is what a reader must see."""

    read = Bundle("read")

    def __init__(self) -> None:
        super().__init__()
        self.store = Store(history=HISTORY)
        self.registry = Registry(self.store, Catalogue())
        self.registry.create(catalogue.NAMESPACES, "", {"metadata": {"name": "default"}})
        self.model: dict[str, Json] = {}
        self.dead_uids: set[str] = set()
        self.replayed: dict[str, Json] = {}
        self.position = self.store.revision
        self.versions: set[str] = set()

    def _pod(self, name: str, value: str, held: bool) -> Json:
        metadata: Json = {"name": name, "labels": {"v": value}}
        if held:
            metadata["finalizers"] = [HOLD]
        return {"metadata": metadata, "spec": {"containers": [{"name": "m", "image": "i:1"}]}}

    def _remember(self, obj: Json) -> None:
        version = obj["metadata"]["resourceVersion"]
        current = self.model.get(name_of(obj))
        if current is None or current["metadata"]["resourceVersion"] != version:
            assert version not in self.versions, "a version is given once"
            self.versions.add(version)
        self.model[name_of(obj)] = obj

    def _forget(self, name: str) -> None:
        self.dead_uids.add(self.model.pop(name)["metadata"]["uid"])

    @rule(target=read, name=NAMES, value=VALUES, held=st.booleans())
    def create(self, name: str, value: str, held: bool) -> Json:
        created, refused = attempt(
            lambda: self.registry.create(catalogue.PODS, "default", self._pod(name, value, held))
        )
        if created is None:
            assert refused is not None
            assert refused.reason == "AlreadyExists"
            assert name in self.model
            return self.model[name]
        assert name not in self.model
        assert created["metadata"]["uid"] not in self.dead_uids
        self._remember(created)
        return created

    @rule(target=read, name=NAMES)
    def get(self, name: str) -> Json:
        found = self.store.find(catalogue.PODS.key, "default", name)
        assert found == self.model.get(name)
        return found or {}

    @rule(seen=read, value=VALUES)
    def update_what_was_read(self, seen: Json, value: str) -> None:
        """Write back an object read some time ago: it succeeds exactly when nobody wrote since."""
        if not seen:
            return
        current = self.model.get(name_of(seen))
        changed = clone(seen)
        changed["metadata"]["labels"] = {"v": value}
        stored, refused = attempt(lambda: self.registry.update(catalogue.PODS, changed))
        if stored is None:
            assert refused is not None
            stale = current is None or current["metadata"]["resourceVersion"] != seen["metadata"]["resourceVersion"]
            assert refused.code in (404, 409)
            assert stale
            return
        assert current is not None
        assert current["metadata"]["resourceVersion"] == seen["metadata"]["resourceVersion"]
        self._remember(stored)

    @rule(name=NAMES, value=VALUES)
    def change_in_place(self, name: str, value: str) -> None:
        stored = self.registry.mutate(
            catalogue.PODS, "default", name, lambda obj: obj["metadata"].update(annotations={"v": value})
        )
        assert (stored is None) == (name not in self.model)
        if stored is not None:
            self._remember(stored)

    @rule(seen=consumes(read))
    def delete_what_was_read(self, seen: Json) -> None:
        """Delete with the UID that was read as the precondition: a successor of the same name is safe."""
        if not seen:
            return
        name, uid = name_of(seen), seen["metadata"]["uid"]
        current = self.model.get(name)
        options = {"preconditions": {"uid": uid}}
        done, refused = attempt(lambda: self.registry.delete(catalogue.PODS, "default", name, options))
        if done is None:
            assert refused is not None
            assert refused.code == (404 if current is None else 409)
            assert current is None or current["metadata"]["uid"] != uid
            return
        assert current is not None
        last, gone = done
        if gone:
            self._forget(name)
        else:
            assert last["metadata"]["deletionTimestamp"]
            assert last["metadata"]["finalizers"] == [HOLD]
            self._remember(last)

    @rule(name=NAMES)
    def let_go(self, name: str) -> None:
        """Take the finalizer off: an object that was deleted goes now."""
        current = self.model.get(name)
        if current is None or not current["metadata"].get("finalizers"):
            return
        self.registry.mutate(catalogue.PODS, "default", name, lambda obj: obj["metadata"].pop("finalizers"))
        if current["metadata"].get("deletionTimestamp"):
            self._forget(name)
        else:
            self._remember(self.store.all(catalogue.PODS.key)[[*sorted(self.model)].index(name)])

    @rule()
    def follow(self) -> None:
        """Catch up by watching; where history no longer reaches, list again as clients do."""
        changes, expired = attempt(lambda: self.store.changes_since(catalogue.PODS.key, self.position))
        if changes is None:
            assert expired is not None
            assert (expired.code, expired.reason) == (410, "Expired")
            self.replayed = {name_of(obj): obj for obj in self.store.all(catalogue.PODS.key)}
            self.position = self.store.revision
            return
        for change in changes:
            assert change.revision > self.position
            self.position = change.revision
            known = self.replayed.get(name_of(change.new))
            assert (change.kind == "ADDED") == (known is None)
            if change.kind == "DELETED":
                del self.replayed[name_of(change.new)]
            else:
                self.replayed[name_of(change.new)] = change.new
        assert self.replayed == self.model

    @invariant()
    def what_is_listed_is_the_model(self) -> None:
        listed = self.store.all(catalogue.PODS.key)
        assert {name_of(obj): obj for obj in listed} == self.model
        assert not {obj["metadata"]["uid"] for obj in listed} & self.dead_uids


TestObjects = Objects.TestCase
TestObjects.settings = settings(max_examples=60, stateful_step_count=40)
