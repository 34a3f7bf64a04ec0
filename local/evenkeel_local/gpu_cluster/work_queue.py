"""The queue of a controller: what something happened to, once each, looked at a moment later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from evenkeel_local.gpu_cluster.errors import Obj
from evenkeel_local.gpu_cluster.store import name_of, namespace_of


class WorkQueue:
    """Objects of one type, by namespace and name, that a controller is to look at."""

    def __init__(self, sync: Callable[[str, str], None], debounce_seconds: float) -> None:
        self._sync = sync
        self._debounce_seconds = debounce_seconds
        self._due: dict[tuple[str, str], None] = {}
        self._wake = asyncio.Event()

    def add(self, namespace: str, name: str) -> None:
        """Have an object looked at soon."""
        self._due[(namespace, name)] = None
        self._wake.set()

    def add_later(self, obj: Obj, seconds: float) -> None:
        """Have an object looked at when time has passed."""
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
                if due:  # a look broke: the others are still to be had
                    self._due.update(due)
                    self._wake.set()
