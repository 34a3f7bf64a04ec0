"""Stored days while sweeps crash, run twice or find days missing, and the quota time of stored days."""

import contextlib
import random
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.domain.costs.day_figures import day_of
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.quotas.teams import Team
from evenkeel.ports import Put
from evenkeel.services.admin import set_quotas
from evenkeel.services.queries.costs import read_recent_days
from evenkeel.services.queries.costs.read_recent_days import RecentDays
from evenkeel.services.storage import team_setup
from evenkeel.services.sweep.fold_days import fold_days
from evenkeel.services.sweep.sweep_run import SweepRun
from evenkeel.services.tables import rows
from tests.fakes.crashes import Crash, CrashingLedger, CrashTiming
from tests.fakes.system import A_MOMENT
from tests.fakes.world import FakeWorld, a_context
from tests.interleaving import InterleavedLedger, at_every_point
from tests.unit.api.seeds import make_unreadable
from tests.unit.api.test_day_figures import (
    DAY,
    TODAY,
    delete_rows,
    fold,
    read_report,
    store_random_history,
    stored_days,
)


def store_history_with_quotas(seed: int, days: int = 12) -> FakeWorld:
    """Store a random history in which quotas change, and most attempts record the quota that they use."""
    draw = random.Random(seed)
    fakes = store_random_history(seed, days)
    ledger = fakes.ledger
    for row in list(ledger.rows.values()):
        if row.key.sk.startswith("ATTEMPT#") and draw.random() < 0.9:
            attempt = rows.decode(row, Attempt).replace(quota_use={"ml.p5.48xlarge": {"nvidia.com/gpu": 16}})
            ledger.commit(Put(replace(row, doc=attempt.to_json())))
    for change in range(3):
        changed_at = A_MOMENT - timedelta(days=(days - 2) * (3 - change) / 3 * draw.uniform(0.9, 1))
        for name in "ab":
            gpus = draw.choice((0, 8, 40))
            queue = {"cohort": "research", "groups": [{"ml.p5.48xlarge": {"nvidia.com/gpu": gpus}}]}
            request = set_quotas.SetQuotasRequest(
                part=Team.model_validate({"name": name, "namespace": name, "queue": queue}),
                expected=team_setup.load_setup(ledger).version_of(name),
                by="ana",
                reason="More.",
            )
            set_quotas.run(request, a_context(fakes, now=changed_at))
    return fakes


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(3, 15))
def test_quota_time_is_equal_from_stored_days_and_records(seed: int, days: int) -> None:
    fakes = store_history_with_quotas(seed)
    fold(fakes)
    since = TODAY - days * DAY

    from_rows = read_report(fakes, since)
    delete_rows(fakes, "DAY#")
    from_records = read_report(fakes, since)

    assert from_rows["teams"] == from_records["teams"]
    assert from_rows["knownQuotaHours"] == from_records["knownQuotaHours"]
    for team in from_rows["teams"]:
        parts = (team[f"{part}QuotaGpuHours"] or 0 for part in ("within", "without", "unknown"))
        assert sum(parts) + (team["borrowedGpuHours"] or 0) == pytest.approx(team["gpuHours"])


def test_report_states_what_earlier_releases_did_not_record() -> None:
    fakes = store_history_with_quotas(3)
    fold(fakes)
    for row in list(fakes.ledger.rows.values()):
        if row.key.pk.startswith("DAY#"):
            figures = {name: value for name, value in row.doc["figures"].items() if name != "knownQuotaMicroseconds"}
            figures["teams"] = [{**team, "quota": None} for team in figures["teams"]]
            fakes.ledger.commit(Put(replace(row, doc={**row.doc, "figures": figures})))
    window = (TODAY - 9 * DAY, TODAY - 5 * DAY)

    document = read_report(fakes, *window, now=A_MOMENT + 35 * DAY)

    assert document["knownQuotaHours"] == 0
    assert any(team["gpuHours"] for team in document["teams"])
    for team in document["teams"]:
        assert team["unknownQuotaGpuHours"] == team["gpuHours"]
        assert {team[f"{figure}GpuHours"] for figure in ("withinQuota", "borrowed", "withoutQuota", "lent")} == {None}
    assert any(note.startswith("Quotas and their use are known for 0.0 of 96.0 hours.") for note in document["notes"])


def test_two_sweeps_at_once_emit_metrics_of_the_day_once() -> None:
    alone = store_random_history(5)
    fold(alone)
    names = sorted(metric.name for metric in alone.telemetry.metrics)

    def fold_between(number: int) -> int:
        fakes = store_random_history(5)
        ledger = InterleavedLedger(fakes.ledger, number, lambda: fold(fakes))
        fold_days(SweepRun(a_context(fakes, ledger=ledger), {}))
        assert sorted(metric.name for metric in fakes.telemetry.metrics) == names, f"at call {number}"
        return ledger.calls

    assert len(list(at_every_point(fold_between))) > 30


@pytest.mark.parametrize("when", CrashTiming)
def test_crash_at_any_write_emits_metrics_at_most_once(when: CrashTiming) -> None:
    emitted = []
    for number in (1, 2, 28, 29, 30):
        fakes = store_random_history(5)
        ledger = CrashingLedger(fakes.ledger, number, when)
        with contextlib.suppress(Crash):
            fold_days(SweepRun(a_context(fakes, ledger=ledger), {}))
        fold(fakes)
        emitted.append([metric.name for metric in fakes.telemetry.metrics].count("DayTrainingTimeRatio"))
        assert len(stored_days(fakes)) == 29

    # Only a crash between the write of the latest day and the metrics loses the data points.
    assert emitted.count(0) == (when is CrashTiming.AFTER)
    assert set(emitted) <= {0, 1}


def test_missing_days_of_a_restored_table_are_stored_at_once() -> None:
    fakes = store_random_history(5)
    fold(fakes)
    before = {name: day.figures for name, day in stored_days(fakes).items()}
    metrics = len(fakes.telemetry.metrics)
    names = sorted(before)[3:15]
    delete_rows(fakes, *names)

    counts = []
    for minute in range(1, 6):
        fold(fakes, A_MOMENT + timedelta(minutes=minute))
        counts.append(len(stored_days(fakes)))

    assert counts == [22, 27, 29, 29, 29]
    assert {name: day.figures for name, day in stored_days(fakes).items()} == before
    assert len(fakes.telemetry.metrics) == metrics


@pytest.mark.parametrize(("prefix", "field"), [("INC#", "severity"), ("ATTEMPT#", "accelerators")])
def test_no_day_is_stored_without_unreadable_record(prefix: str, field: str) -> None:
    fakes = store_random_history(5)
    key = next(
        row.key for row in fakes.ledger.rows.values() if row.key.pk.startswith(prefix) or row.key.sk.startswith(prefix)
    )
    make_unreadable(fakes.ledger, key, field)
    sweep = SweepRun(a_context(fakes, now=A_MOMENT), {})

    fold_days(sweep)

    assert stored_days(fakes) == {}
    assert sweep.failures == ["1 record cannot be read, so no figures of days are stored."] * len(sweep.failures)
    assert sweep.failures


def test_day_that_stays_missing_is_tried_once_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes = store_random_history(5)
    fold(fakes)
    delete_rows(fakes, f"DAY#{day_of(TODAY - 9 * DAY)}")
    read, tries = read_recent_days.read_days, []
    notes: dict[str, Any] = {}

    def read_too_little(*given: Any, **options: Any) -> RecentDays:
        tries.append(given)
        return read(*given, **options)._replace(whole_from=TODAY)

    monkeypatch.setattr(read_recent_days, "read_days", read_too_little)
    for minute in range(0, 150, 5):
        sweep = SweepRun(a_context(fakes, now=A_MOMENT + timedelta(minutes=minute)), notes)
        fold_days(sweep)
        notes = sweep.notes

    assert len(tries) == 3
