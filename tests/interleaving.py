"""Run another writer between any two ledger calls of a service, with a current or a late index."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from evenkeel.domain.jobs.job import JobState
from evenkeel.ports import Key, Ledger, Page, Put, Row, Table, Write, every
from tests.fakes import InMemoryLedger

PENDING = f"JOB#{JobState.PENDING}"


class InterleavedLedger:
    """A ledger that runs `act` once, right before its call number `at`.

    With `lags`, the index of pending jobs stays as it was before `act`: on AWS it is eventually consistent.
    """

    def __init__(self, ledger: Ledger, at: int, act: Callable[[], Any], *, lags: bool = False) -> None:
        self._ledger, self._at, self._act, self._lags = ledger, at, act, lags
        self.calls = 0
        self._stale: InMemoryLedger | None = None

    def _step(self) -> None:
        self.calls += 1
        if self.calls != self._at:
            return
        if self._lags:
            self._stale = InMemoryLedger()
            for row in every(lambda cursor: self._ledger.by_state(Table.JOBS, PENDING, cursor=cursor)):
                self._stale.commit(Put(replace(row, version=0)))
        self._act()

    def get(self, key: Key) -> Row | None:
        self._step()
        return self._ledger.get(key)

    def batch_get(self, *keys: Key) -> tuple[Row | None, ...]:
        self._step()
        return self._ledger.batch_get(*keys)

    def partition(self, table: Table, pk: str, prefix: str = "") -> tuple[Row, ...]:
        self._step()
        return self._ledger.partition(table, pk, prefix)

    def by_state(self, table: Table, state: str, **options: Any) -> Page:
        self._step()
        if self._stale is not None and (table, state) == (Table.JOBS, PENDING):
            return self._stale.by_state(table, state, **options)
        return self._ledger.by_state(table, state, **options)

    def commit(self, *writes: Write, client_token: str = "") -> None:
        self._step()
        self._ledger.commit(*writes, client_token=client_token)


def at_every_point(run: Callable[[int], int]) -> Iterator[int]:
    """Call `run` for each call number until the service makes fewer calls. Yield each number after its run."""
    at = 1
    while run(at) >= at:
        yield at
        at += 1
