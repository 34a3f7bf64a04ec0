"""A dry run: the same services, on ports that change nothing and store nothing."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, assert_never

from evenkeel.ports import (
    Add,
    ConditionCheck,
    Delete,
    ExecutionState,
    Key,
    Ledger,
    Page,
    Put,
    Row,
    Table,
    WorkflowName,
    Write,
)


class DryRunLedger:
    """A ledger that reads stored rows and its own writes. No other process sees its writes.

    Lists leave out rows that exist only here.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.written: dict[Key, Row | None] = {}
        """Key → the written row; None if it was deleted."""

    def get(self, key: Key) -> Row | None:
        return self.written[key] if key in self.written else self._ledger.get(key)

    def batch_get(self, *keys: Key) -> tuple[Row | None, ...]:
        keys_and_rows = zip(keys, self._ledger.batch_get(*keys), strict=True)
        return tuple(self.written.get(key, row) for key, row in keys_and_rows)

    def partition(self, table: Table, pk: str, prefix: str = "") -> tuple[Row, ...]:
        return self._ledger.partition(table, pk, prefix)

    def by_state(
        self,
        table: Table,
        state: str,
        *,
        prefix: str = "",
        limit: int = 100,
        cursor: str | None = None,
        newest_first: bool = False,
    ) -> Page:
        return self._ledger.by_state(table, state, prefix=prefix, limit=limit, cursor=cursor, newest_first=newest_first)

    def commit(self, *writes: Write, client_token: str = "") -> None:
        del client_token
        for write in writes:
            match write:
                case Put(row):
                    self.written[row.key] = replace(row, version=row.version + 1)
                case Delete(key, _version):
                    self.written[key] = None
                case ConditionCheck() | Add():
                    pass  # a dry run has no concurrent writer and reads no sums
                case _:
                    assert_never(write)


class NullWorkflows:
    """Workflows that never start."""

    def start(self, workflow: WorkflowName, name: str, document: Mapping[str, Any]) -> bool:
        del workflow, name, document
        return False

    def state(self, workflow: WorkflowName, name: str) -> ExecutionState:
        del workflow, name
        return ExecutionState.NONE

    def running(self, workflow: WorkflowName) -> frozenset[str]:
        del workflow
        return frozenset()


class NullCycleRequests:
    """Requests for scheduling cycles that request nothing."""

    def request(self, reason: str) -> None:
        del reason


class NullTelemetry:
    """Telemetry that emits nothing."""

    def count(self, name: str, value: float = 1.0, **dimensions: str) -> None:
        del name, value, dimensions

    def gauge(self, name: str, value: float, **dimensions: str) -> None:
        del name, value, dimensions

    def seconds(self, name: str, value: float, **dimensions: str) -> None:
        del name, value, dimensions

    def info(self, message: str, **keys: Any) -> None:
        del message, keys

    def warning(self, message: str, **keys: Any) -> None:
        del message, keys

    def error(self, message: str, **keys: Any) -> None:
        del message, keys
