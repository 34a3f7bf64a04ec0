"""The queue of a controller, and the base class of controllers."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from evenkeel_local.gpu_cluster.errors import Obj
from evenkeel_local.gpu_cluster.registry import Registry
from evenkeel_local.gpu_cluster.store import ResourceType, Store, StoreChange, name_of, namespace_of


class WorkQueue:
    """Objects of one type that a controller will process. Each is queued once, by namespace and name."""

    def __init__(self, sync: Callable[[str, str], None], debounce_seconds: float) -> None:
        self._sync = sync
        self._debounce_seconds = debounce_seconds
        self._due: dict[tuple[str, str], None] = {}
        self._wake = asyncio.Event()

    def add(self, namespace: str, name: str) -> None:
        """Queue an object."""
        self._due[(namespace, name)] = None
        self._wake.set()

    def add_later(self, obj: Obj, seconds: float) -> None:
        """Queue an object after some seconds."""
        asyncio.get_running_loop().call_later(seconds, self.add, namespace_of(obj), name_of(obj))

    async def run(self) -> None:
        """Work through the queue until cancelled."""
        while True:
            await self._wake.wait()
            await asyncio.sleep(self._debounce_seconds)
            self._wake.clear()
            due, self._due = self._due, {}
            try:
                while due:
                    at = next(iter(due))
                    del due[at]
                    self._sync(*at)
                    await asyncio.sleep(0)
            finally:
                if due:  # one object failed: keep the rest for the next run
                    self._due.update(due)
                    self._wake.set()


class Controller(ABC):
    """A controller of one type of object."""

    kind: ClassVar[ResourceType]
    debounce_seconds: ClassVar[float] = 0.01
    """Seconds for which changes of an object are collected before the controller processes it."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._store: Store = registry.store
        self._queue = WorkQueue(self.sync, self.debounce_seconds)
        self.run = self._queue.run
        self._store.listen(self._on_change)

    def notice(self, obj: Obj) -> None:
        """Queue an object of the controller's type."""
        self._queue.add(namespace_of(obj), name_of(obj))

    def notice_all(self) -> None:
        """Queue every object that exists."""
        for obj in self._store.each(self.kind.key):
            self.notice(obj)

    def _on_change(self, change: StoreChange) -> None:
        if change.key == self.kind.key:
            self.notice(change.new)
        else:
            self._on_other_change(change)

    @abstractmethod
    def _on_other_change(self, change: StoreChange) -> None:
        """Queue the objects that a change of another type concerns."""

    @abstractmethod
    def sync(self, namespace: str, name: str) -> None:
        """Compare the state of an object with its spec, and act on the difference."""
