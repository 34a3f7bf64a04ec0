"""The object store: versions, conflicts, watch history and consistent pages.

Every write is atomic: all code runs in one event loop, and no write awaits. A stored object never changes; a write
stores a new object. So lists, watches and pages can share references.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import secrets
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from evenkeel_local.gpu_cluster import errors
from evenkeel_local.gpu_cluster.errors import ApiError, Obj

TypeKey = tuple[str, str]
"""(group, plural): the identity of a resource type in storage; its versions share it."""

PAGE_LIFE_SECONDS = 300.0


@dataclass(frozen=True)
class ScalePaths:
    """The paths of the fields that the subresource `scale` shows."""

    spec_replicas: str = ".spec.replicas"
    status_replicas: str = ".status.replicas"
    selector: str | None = ".spec.selector"


@dataclass(frozen=True)
class ResourceType:
    """A kind of object."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    singular: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    has_status: bool = False
    scale: ScalePaths | None = None
    custom: bool = False
    schema: Obj | None = None
    columns: tuple[Obj, ...] = ()

    @property
    def key(self) -> TypeKey:
        """The identity in storage."""
        return (self.group, self.plural)

    @property
    def api_version(self) -> str:
        """`group/version`, or the version alone for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version


@dataclass(frozen=True)
class StoreChange:
    """A committed write, as watchers and controllers receive it."""

    revision: int
    kind: str  # ADDED, MODIFIED or DELETED
    key: TypeKey
    new: Obj
    old: Obj | None


@dataclass
class _FrozenList:
    """The objects of a paginated list, as they were at its first page."""

    revision: int
    objects: list[Obj]
    expires_at: float


@dataclass
class _ChangeLog:
    """Recent changes of one kind of object, and the watches that wait for more."""

    changes: deque[StoreChange]
    dropped_up_to: int = 0
    waiters: set[asyncio.Future[None]] = field(default_factory=set)


def clone(value: Any) -> Any:
    """Return a deep copy of JSON data (several times faster than `copy.deepcopy`)."""
    if isinstance(value, dict):
        return {key: clone(item) for key, item in value.items()}
    if isinstance(value, list):
        return [clone(item) for item in value]
    return value


def namespace_of(obj: Obj) -> str:
    """Return the object's namespace, empty for a cluster-scoped one."""
    return str(obj["metadata"].get("namespace") or "")


def name_of(obj: Obj) -> str:
    """Return the object's name."""
    return str(obj["metadata"]["name"])


def _without_version(obj: Obj) -> Obj:
    copy = dict(obj)
    metadata = dict(copy.get("metadata") or {})
    metadata.pop("resourceVersion", None)
    copy["metadata"] = metadata
    return copy


class Store:
    """All objects of the cluster, in memory."""

    def __init__(self, history: int = 8192) -> None:
        self._history = history
        self._objects: dict[TypeKey, dict[tuple[str, str], Obj]] = defaultdict(dict)
        self._logs: dict[TypeKey, _ChangeLog] = {}
        self._listeners: list[Callable[[StoreChange], None]] = []
        self._compacted_at = 0
        self._pending: deque[StoreChange] = deque()
        self._notifying = False
        self._frozen_lists: dict[str, _FrozenList] = {}
        self._encoded: dict[tuple[TypeKey, str, str], bytes] = {}
        self._items: dict[tuple[TypeKey, str, str], bytes] = {}
        self._by_node: dict[str, dict[tuple[str, str], None]] = defaultdict(dict)
        self._by_owner: dict[str, dict[tuple[TypeKey, str, str], None]] = defaultdict(dict)
        self.revision = 1

    # Reading

    def get(self, rt: ResourceType, namespace: str, name: str) -> Obj:
        """Return an object; raise 404 if it does not exist."""
        obj = self._objects[rt.key].get((namespace if rt.namespaced else "", name))
        if obj is None:
            raise errors.not_found(rt.group, rt.plural, name)
        return obj

    def find(self, key: TypeKey, namespace: str, name: str) -> Obj | None:
        """Return an object, or None."""
        return self._objects[key].get((namespace, name))

    def all(self, key: TypeKey, namespace: str | None = None) -> list[Obj]:
        """Return the objects of one type in name order, of all namespaces or of one."""
        objects = self._objects[key]
        chosen_items = [item for item in objects.items() if namespace is None or item[0][0] == namespace]
        chosen_items.sort(key=lambda item: item[0])
        return [obj for _, obj in chosen_items]

    def each(self, key: TypeKey) -> Iterator[Obj]:
        """Iterate over the objects of one type, in any order; do not write meanwhile."""
        return iter(self._objects[key].values())

    def count(self, key: TypeKey) -> int:
        """Return the number of objects of one type."""
        return len(self._objects[key])

    def types_in_use(self) -> list[TypeKey]:
        """Return the types that have at least one object."""
        return [key for key, objects in self._objects.items() if objects]

    def pods_on(self, node: str) -> list[Obj]:
        """Return the pods bound to a node."""
        pods = self._objects[("", "pods")]
        return [pods[key] for key in list(self._by_node.get(node, ()))]

    def owned_by(self, uid: str) -> list[tuple[TypeKey, Obj]]:
        """Return the objects that name `uid` as an owner."""
        return [(key, self._objects[key][(ns, name)]) for key, ns, name in list(self._by_owner.get(uid, ()))]

    def encoded(self, key: TypeKey, obj: Obj) -> bytes:
        """Return an object as JSON; each stored version is encoded once."""
        where = (namespace_of(obj), name_of(obj))
        if self._objects[key].get(where) is not obj:  # a dry run, or a deleted object
            return json.dumps(obj, separators=(",", ":")).encode()
        data = self._encoded.get((key, *where))
        if data is None:
            data = self._encoded[(key, *where)] = json.dumps(obj, separators=(",", ":")).encode()
        return data

    def encoded_item(self, key: TypeKey, obj: Obj) -> bytes:
        """Return an object as an item of a list of built-in objects, without kind and version."""
        where = (namespace_of(obj), name_of(obj))
        data = self._items.get((key, *where))
        if data is not None and self._objects[key].get(where) is obj:
            return data
        item = {name: value for name, value in obj.items() if name not in ("apiVersion", "kind")}
        data = json.dumps(item, separators=(",", ":")).encode()
        if self._objects[key].get(where) is obj:
            self._items[(key, *where)] = data
        return data

    # Writing

    def create(self, rt: ResourceType, obj: Obj) -> Obj:
        """Store a new object; raise 409 if the name is taken."""
        key = (namespace_of(obj), name_of(obj))
        if key in self._objects[rt.key]:
            raise errors.already_exists(rt.group, rt.plural, name_of(obj))
        return self._commit(rt.key, "ADDED", obj, None)

    def update(self, rt: ResourceType, obj: Obj, expected_version: str | None = None) -> Obj:
        """Store a new version; raise 409 if `expected_version` is not the stored version.

        A write without a change keeps the version, as on the real server.
        """
        old = self.get(rt, namespace_of(obj), name_of(obj))
        if expected_version and expected_version != old["metadata"]["resourceVersion"]:
            raise errors.conflict(rt.group, rt.plural, name_of(obj))
        if _without_version(obj) == _without_version(old):
            return old
        return self._commit(rt.key, "MODIFIED", obj, old)

    def delete(self, rt: ResourceType, namespace: str, name: str, last: Obj | None = None) -> Obj:
        """Remove an object; `last` is its final state if that differs from the stored object."""
        old = self.get(rt, namespace, name)
        return self._commit(rt.key, "DELETED", last or old, old)

    def _commit(self, key: TypeKey, kind: str, obj: Obj, old: Obj | None) -> Obj:
        self.revision += 1
        stored_object = dict(obj)
        stored_object["metadata"] = {**obj["metadata"], "resourceVersion": str(self.revision)}
        where = (namespace_of(stored_object), name_of(stored_object))
        if old is not None:
            self._unindex(key, where, old)
            self._encoded.pop((key, *where), None)
            self._items.pop((key, *where), None)
        if kind == "DELETED":
            del self._objects[key][where]
        else:
            self._objects[key][where] = stored_object
            self._index(key, where, stored_object)
        change = StoreChange(self.revision, kind, key, stored_object, old)
        self._log(key).changes.append(change)
        self._trim(key)
        self._wake(key)
        self._pending.append(change)
        self._notify()
        return stored_object

    def _notify(self) -> None:
        """Call the listeners in the order of the writes, even if a listener itself writes."""
        if self._notifying:
            return
        self._notifying = True
        try:
            while self._pending:
                change = self._pending.popleft()
                for listener in list(self._listeners):
                    listener(change)
        finally:
            self._notifying = False

    def _index(self, key: TypeKey, where: tuple[str, str], obj: Obj) -> None:
        if key == ("", "pods") and (node := obj["spec"].get("nodeName")):
            self._by_node[node][where] = None
        for owner in obj["metadata"].get("ownerReferences") or ():
            self._by_owner[owner["uid"]][(key, *where)] = None

    def _unindex(self, key: TypeKey, where: tuple[str, str], obj: Obj) -> None:
        if key == ("", "pods") and (node := obj["spec"].get("nodeName")):
            self._by_node[node].pop(where, None)
        for owner in obj["metadata"].get("ownerReferences") or ():
            owned_keys = self._by_owner.get(owner["uid"])
            if owned_keys is not None:
                owned_keys.pop((key, *where), None)
                if not owned_keys:
                    del self._by_owner[owner["uid"]]

    def load(self, objects: Iterable[tuple[TypeKey, Obj]], revision: int) -> None:
        """Load objects with their versions into an empty store, without calling listeners; older positions are gone."""
        for key, obj in objects:
            where = (namespace_of(obj), name_of(obj))
            self._objects[key][where] = obj
            self._index(key, where, obj)
        self.continue_after(revision)

    def continue_after(self, revision: int) -> None:
        """Continue above the positions of an earlier store; all of them are gone."""
        self.revision = max(self.revision, revision)
        self.forget_history()

    # Listening

    def listen(self, listener: Callable[[StoreChange], None]) -> None:
        """Call `listener` after every write, in the order of the writes. It must not block."""
        self._listeners.append(listener)

    def changes_since(self, key: TypeKey, revision: int) -> list[StoreChange]:
        """Return the changes after a revision; raise 410 if the history no longer has it."""
        log = self._log(key)
        if revision < log.dropped_up_to:
            raise errors.gone(f"too old resource version: {revision} ({log.dropped_up_to})")
        newer: list[StoreChange] = []
        for change in reversed(log.changes):
            if change.revision <= revision:
                break
            newer.append(change)
        newer.reverse()
        return newer

    async def watch(self, key: TypeKey, revision: int, beat_seconds: float) -> AsyncIterator[list[StoreChange]]:
        """Yield batches of changes after `revision`; an empty batch every `beat_seconds` without one.

        Raises:
            ApiError: 410 when history no longer reaches the position.
        """
        log = self._log(key)
        while True:
            batch = self.changes_since(key, revision)
            if batch:
                revision = batch[-1].revision
                yield batch
                continue
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            log.waiters.add(waiter)
            try:
                await asyncio.wait_for(waiter, beat_seconds)
            except TimeoutError:
                if self.changes_since(key, revision):
                    continue
                # This type has not changed: advance the position, so that a quiet watch never expires.
                revision = max(revision, self.revision)
                yield []
            finally:
                log.waiters.discard(waiter)

    def forget_history(self) -> None:
        """Drop all watch history and open pages, as a compaction does: older positions answer 410."""
        self.revision += 1
        self._compacted_at = self.revision
        for log in self._logs.values():
            log.changes.clear()
            log.dropped_up_to = self.revision
        self._frozen_lists.clear()

    def _log(self, key: TypeKey) -> _ChangeLog:
        log = self._logs.get(key)
        if log is None:
            log = self._logs[key] = _ChangeLog(deque(), self._compacted_at)
        return log

    def _trim(self, key: TypeKey) -> None:
        log = self._log(key)
        while len(log.changes) > self._history:
            log.dropped_up_to = log.changes.popleft().revision

    def _wake(self, key: TypeKey) -> None:
        for waiter in self._log(key).waiters:
            if not waiter.done():
                waiter.set_result(None)

    # Pages

    def open_page(self, objects: list[Obj], revision: int) -> str:
        """Keep the rest of a list; return its continue token."""
        now = time.monotonic()
        for token in [token for token, page in self._frozen_lists.items() if page.expires_at < now]:
            del self._frozen_lists[token]
        last_name = name_of(objects[0]) if objects else ""
        token = _continue_token(revision, f"{last_name}/{secrets.token_hex(6)}")
        self._frozen_lists[token] = _FrozenList(revision, objects, now + PAGE_LIFE_SECONDS)
        return token

    def take_page(self, token: str, limit: int) -> tuple[list[Obj], int, str | None, int]:
        """Return (objects, revision, next token, remaining count) of a kept list; raise 410 if it expired.

        A token can be used again: a client that lost the answer asks for the same page.
        """
        _check_continue_token(token)
        page = self._frozen_lists.get(token)
        if page is None or page.expires_at < time.monotonic():
            raise expired_continue()
        page_objects, objects_left = page.objects[:limit], page.objects[limit:]
        next_token = self.open_page(objects_left, page.revision) if objects_left else None
        return page_objects, page.revision, next_token, len(objects_left)


def _continue_token(revision: int, start: str) -> str:
    text = json.dumps({"v": "meta.k8s.io/v1", "rv": revision, "start": start}, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _check_continue_token(token: str) -> None:
    """Refuse a malformed token with 400. A well-formed but unknown token has expired."""
    try:
        token_content = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    except (ValueError, binascii.Error) as error:
        raise errors.bad_request(f"continue key is not valid: {error}") from error
    if not isinstance(token_content, dict) or token_content.get("v") != "meta.k8s.io/v1":
        raise errors.bad_request("continue key is not valid: server does not recognize this encoded version")


def expired_continue() -> ApiError:
    """Return 410 for a continue token that has expired."""
    return errors.gone(
        "The provided continue parameter is too old to display a consistent list result. You can start a new list "
        "without the continue parameter."
    )
