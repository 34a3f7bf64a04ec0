"""A release changes rows of a newer release: it keeps the fields that it does not know (docs/release.md)."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from evenkeel.ports import Key, Put, Row, Write
from tests.examples import examples
from tests.simulator import (
    elastic_invariants,  # noqa: F401 - add their rows to the table
    placement_invariants,  # noqa: F401
    renting_invariants,  # noqa: F401
    simulation,
    team_invariants,  # noqa: F401
)
from tests.simulator.invariants import InvariantChecker
from tests.stored_rows import as_newer_release, lost_fields, type_of

SEEDS = examples(100)
FEWEST_REWRITTEN = 15
"""Row types that the seeds must rewrite. They rewrite more types than these."""


class LedgerOfANewerRelease(simulation.WatchedLedger):
    """Adds an unknown field to each value of each stored row, and notes the rewrites that lose one."""

    lost: Counter[tuple[str, str]] = Counter()
    rewritten: Counter[str] = Counter()

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._seen: set[Key] = set()
        """Rows that were read since they were written. Only their readers can know the added fields."""

    def _copy(self, key: Key) -> Row:
        self._seen.add(key)
        return super()._copy(key)

    def _after(self, write: Write) -> Row | None:
        row = super()._after(write)
        if row is None or not isinstance(write, Put):
            return row
        before = self.rows.get(row.key)
        if before is not None and row.key in self._seen:
            kind = type_of(row.key).kind.__name__
            self.rewritten[kind] += 1
            for path in lost_fields(row.key, before.doc, row.doc):
                self.lost[kind, path] += 1
        self._seen.discard(row.key)
        return replace(row, doc=as_newer_release(row.key, row.doc))


@pytest.mark.timeout(300)
def test_rewritten_rows_keep_fields_of_a_newer_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "WatchedLedger", LedgerOfANewerRelease)
    monkeypatch.setattr(LedgerOfANewerRelease, "lost", Counter())
    monkeypatch.setattr(LedgerOfANewerRelease, "rewritten", Counter())

    runs = [simulation.Simulation(seed, InvariantChecker(), is_strict=True).run() for seed in range(1, SEEDS + 1)]

    assert [violation for run in runs for violation in run.violations] == []
    assert dict(LedgerOfANewerRelease.lost) == {}
    assert len(LedgerOfANewerRelease.rewritten) >= FEWEST_REWRITTEN, LedgerOfANewerRelease.rewritten
