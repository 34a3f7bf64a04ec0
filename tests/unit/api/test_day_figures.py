"""Stored figures of days equal those of the records.

Summarising a day again changes nothing. A missing day never counts as zero.
"""

import random
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.domain.costs.day_figures import DayRow, FailureDurations, StageDurations, begin_of_day, day_of
from evenkeel.domain.costs.day_summary import PoolSummary, summarise_pools
from evenkeel.domain.costs.interruptions import Span
from evenkeel.domain.costs.node_time import NodeUse
from evenkeel.domain.costs.receipt import Stage
from evenkeel.domain.health.incidents import AffectedJob, IncidentState, StageTimes
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.nodes import NodeLife
from evenkeel.domain.renting.rental import Rental
from evenkeel.domain.values import rfc3339
from evenkeel.ports import LARGEST_ROW, Delete, Put, Table
from evenkeel.ports.ledger import document_text
from evenkeel.services.queries.costs import read_cost_records, read_cost_report
from evenkeel.services.queries.disclosure import Reader
from evenkeel.services.sweep.fold_days import fold_days
from evenkeel.services.sweep.sweep_run import SweepRun
from evenkeel.services.tables import day_rows, incident_rows, job_rows, rows
from tests.fakes.system import A_MOMENT
from tests.fakes.world import FakeWorld, a_context
from tests.unit.api.seeds import a_fleet_node, a_job, a_life, an_attempt, an_incident, store
from tests.unit.api.test_receipts import PLAN_THAT_ACTS
from tests.unit.costs.test_rent import a_rental

DAY = timedelta(days=1)
TODAY = begin_of_day(day_of(A_MOMENT))


def store_random_history(seed: int, days: int = 12) -> FakeWorld:
    """Store a random history: nodes join and leave, jobs are interrupted, some resume, and nodes are rented."""
    draw = random.Random(seed)
    fakes = FakeWorld()
    ledger = fakes.ledger

    def at(least: float = 0) -> datetime:
        return A_MOMENT - timedelta(seconds=draw.randint(0, round((days - least) * 86_400)))

    lives: dict[int, NodeLife] = {}

    def on_present_lives(attempt: Attempt) -> Attempt:
        numbers = (int(name[-2:]) for name in attempt.node_names)
        return attempt.replace(nodes=tuple(lives[number] for number in numbers))

    for number in range(1, 7):
        launched = A_MOMENT - timedelta(days=draw.uniform(0, days + 5))
        life = a_life(number).model_copy(update={"launched_at": launched})
        lives[number] = life
        gone_fields = {"is_gone": True, "changed_at": launched + (A_MOMENT - launched) * draw.random()}
        store(ledger, a_fleet_node(number, life=life, **(gone_fields if draw.random() < 0.4 else {})))
    for number in range(1, 9):
        lost_at = at(0.5)
        begun, signal = lost_at - timedelta(days=draw.uniform(0.01, 4)), lost_at - timedelta(minutes=5)
        resumes = draw.random() < 0.8
        resumed_at = lost_at + timedelta(hours=draw.choice((0.1, 1, 30)))
        resumes = resumes and resumed_at < A_MOMENT
        job = a_job(number, state="RUNNING" if resumes else "PENDING", current_attempt=1 + resumes, submitted_at=begun)
        price: dict[str, Any] = {
            "usd_per_accelerator_hour": 6.88,
            "instance_type": "ml.p5.48xlarge",
            "team": draw.choice("ab"),
        }
        times: dict[str, Any] = {"admitted_at": begun, "launched_at": begun, "running_at": begun, "ended_at": lost_at}
        first = an_attempt(job, 1, state=draw.choice(("LOST", "STOPPED", "FAILED")), **times, **price)
        store(ledger, job, on_present_lives(first))
        if resumes:
            resumed_times: dict[str, Any] = {
                "admitted_at": resumed_at,
                "launched_at": resumed_at,
                "running_at": resumed_at,
                "is_pinned": True,
            }
            resumed_times["resumed_work_from"] = lost_at - (lost_at - begun) * draw.random()
            store(ledger, on_present_lives(an_attempt(job, 2, nodes=(2, 3), **resumed_times, **price)))
        stages = StageTimes(planned_at=signal, cordoned_at=signal, returned_at=resumed_at, settled_at=resumed_at)
        facts: dict[str, Any] = {"state": IncidentState.RECOVERED, "stages": stages, "plan": PLAN_THAT_ACTS}
        facts |= {"first_signal_at": signal, "opened_at": signal}
        incident = an_incident(number, **facts, affected_jobs=(AffectedJob(job_id=job.job_id, attempt=1),))
        ledger.commit(Put(incident_rows.incident_row(incident, 0)))
    begin = at(1) - A_MOMENT
    opened = seconds_of(A_MOMENT + begin)
    rental: Rental = a_rental(1, opened, None if draw.random() < 0.5 else opened + draw.randint(60, 80_000))
    ledger.commit(Put(job_rows.rental_row(rental, 0)))
    return fakes


def fold(fakes: FakeWorld, now: datetime = A_MOMENT) -> SweepRun:
    sweep = SweepRun(a_context(fakes, now=now), {})
    fold_days(sweep)
    return sweep


def read_report(fakes: FakeWorld, since: datetime, until: datetime | None = None, **given: Any) -> dict[str, Any]:
    window = read_cost_report.ReportWindow(since, until)
    return read_cost_report.show_cost_report(window, Reader(), a_context(fakes, **given))


def seconds_of(at: datetime) -> float:
    """Return a time in the unit of `a_rental`."""
    return (at - datetime(2026, 11, 3, tzinfo=A_MOMENT.tzinfo)).total_seconds()


def stored_days(fakes: FakeWorld) -> dict[str, DayRow]:
    day_rows = [row for row in fakes.ledger.rows.values() if row.key.pk.startswith("DAY#")]
    return {row.key.pk: rows.decode(row, DayRow) for row in day_rows}


def delete_rows(fakes: FakeWorld, *prefixes: str) -> None:
    """Delete rows, as their expiry does."""
    for row in list(fakes.ledger.rows.values()):
        if row.key.pk.startswith(prefixes):
            fakes.ledger.commit(Delete(row.key, row.version))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 46), st.integers(0, 20))
def test_window_within_stored_days_counts_each_hour_once(seed: int, hours: int, until: int) -> None:
    fakes = store_random_history(seed)
    fold(fakes)
    end = TODAY - timedelta(hours=until)
    since = end - timedelta(hours=hours)

    with_rows = read_report(fakes, since, end)
    delete_rows(fakes, "DAY#")
    without_rows = read_report(fakes, since, end)

    assert with_rows.pop("notes") == without_rows.pop("notes")
    assert with_rows == without_rows


def test_rent_of_a_day_remains_after_its_rental_ended() -> None:
    fakes = FakeWorld()
    store(fakes.ledger, a_fleet_node(1))
    opened = seconds_of(TODAY - DAY / 2)
    fakes.ledger.commit(Put(job_rows.rental_row(a_rental(1, opened, None), 0)))
    fold(fakes)
    yesterday = f"DAY#{day_of(TODAY - DAY)}"
    rent = stored_days(fakes)[yesterday].figures.rent
    ended_rental = a_rental(1, opened, seconds_of(TODAY + DAY / 2))
    row = fakes.ledger.get(job_rows.rental_key(ended_rental.job_id, ended_rental.number))
    assert row
    fakes.ledger.commit(Put(job_rows.rental_row(ended_rental, row.version)))

    fold(fakes, A_MOMENT + DAY)

    assert rent.usd_micros
    assert stored_days(fakes)[yesterday].figures.rent == rent


def test_unreadable_row_of_yesterday_stops_no_other_day() -> None:
    fakes = store_random_history(7)
    fold(fakes)
    row = fakes.ledger.get(day_rows.day_key(day_of(TODAY - DAY)))
    assert row
    fakes.ledger.commit(Put(replace(row, doc={**row.doc, "figures": {}})))
    delete_rows(fakes, f"DAY#{day_of(TODAY - 2 * DAY)}")

    sweep = fold(fakes, A_MOMENT + timedelta(hours=1))

    assert sweep.failures
    assert fakes.ledger.get(day_rows.day_key(day_of(TODAY - 2 * DAY)))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(3, 15))
def test_cost_report_is_equal_from_stored_days_and_records(seed: int, days: int) -> None:
    fakes = store_random_history(seed)
    fold(fakes)
    since = TODAY - days * DAY

    from_rows = read_report(fakes, since)
    delete_rows(fakes, "DAY#")
    from_records = read_report(fakes, since)

    notes = from_rows.pop("notes"), from_records.pop("notes")
    assert from_rows == from_records
    assert len(notes[0]) >= len(notes[1])


def test_cost_report_uses_stored_days_after_the_records_expired() -> None:
    fakes = store_random_history(7)
    after_expiry = A_MOMENT + 40 * DAY
    before = read_report(fakes, TODAY - 12 * DAY, TODAY - 4 * DAY)
    for day in range(41):
        fold(fakes, A_MOMENT + day * DAY)
    delete_rows(fakes, "JOB#", "INC#", "NODE#")

    after = read_report(fakes, TODAY - 12 * DAY, TODAY - 4 * DAY, now=after_expiry)

    for figure in ("lost", "recovery", "stages", "allNodes", "rent"):
        assert after[figure] == before[figure], figure


def test_repeated_summary_of_a_day_writes_nothing() -> None:
    fakes = store_random_history(3)
    fold(fakes)
    before = {row.key: row.version for row in fakes.ledger.rows.values()}

    fold(fakes)

    assert {row.key: row.version for row in fakes.ledger.rows.values()} == before
    assert f"DAY#{day_of(TODAY - DAY)}" in stored_days(fakes)
    assert f"DAY#{day_of(TODAY)}" not in stored_days(fakes)


def test_record_stored_late_changes_the_figures_of_its_day() -> None:
    fakes = store_random_history(3)
    fold(fakes)
    late_incident = an_incident(40, state="RECOVERED", opened_at=TODAY - 5 * DAY, first_signal_at=TODAY - 5 * DAY)
    store(fakes.ledger, late_incident)

    fold(fakes, A_MOMENT + DAY)

    day = stored_days(fakes)[f"DAY#{day_of(TODAY - 5 * DAY)}"]
    assert late_incident.life.instance_id in {failure.node for failure in day.figures.failures}


def test_day_is_not_summarised_just_after_midnight() -> None:
    fakes = store_random_history(3)

    fold(fakes, TODAY + timedelta(minutes=14))

    assert stored_days(fakes) == {}


def test_missing_day_is_named_unknown_and_left_out_of_figures() -> None:
    fakes = store_random_history(5)
    fold(fakes)
    fold(fakes, A_MOMENT + 10 * DAY)
    gap = day_of(TODAY - 3 * DAY)
    complete_report = read_report(fakes, TODAY - 6 * DAY, TODAY, now=A_MOMENT + 35 * DAY)
    delete_rows(fakes, f"DAY#{gap}")

    document = read_report(fakes, TODAY - 6 * DAY, TODAY, now=A_MOMENT + 35 * DAY)

    assert document["unknownDays"] == [str(gap)]
    assert not document["isComplete"]
    assert document["allNodes"]["nodeHours"] < complete_report["allNodes"]["nodeHours"]


def test_day_with_an_unreadable_row_is_unknown() -> None:
    fakes = store_random_history(5)
    fold(fakes)
    key = day_rows.day_key(day_of(TODAY - 3 * DAY))
    row = fakes.ledger.get(key)
    assert row is not None
    fakes.ledger.commit(Put(row.__class__(key, {**row.doc, "figures": {}}, row.version)))

    document = read_report(fakes, TODAY - 6 * DAY, TODAY, now=A_MOMENT + 35 * DAY)

    assert document["unknownDays"] == [str(day_of(TODAY - 3 * DAY))]


def test_cost_report_of_a_year_reads_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes = store_random_history(5)
    for day in range(0, 360, 20):
        fold(fakes, A_MOMENT + day * DAY)
    now = A_MOMENT + 360 * DAY
    fold(fakes, now)
    pages: list[str] = []
    read = fakes.ledger.by_state

    def by_state(table: Table, state: str, **options: Any) -> Any:
        page = read(table, state, **options)
        pages.extend(row.key.pk for row in page.rows)
        return page

    monkeypatch.setattr(fakes.ledger, "by_state", by_state)
    document = read_report(fakes, now - 350 * DAY, now=now)

    assert (document["unknownDays"], document["since"]) == ([], rfc3339(begin_of_day(day_of(now - 350 * DAY))))
    assert document["isComplete"]
    assert len(pages) < 60


def test_metrics_of_yesterday_are_emitted_once() -> None:
    fakes = store_random_history(5)
    fold(fakes)
    first = {(metric.name, metric.dimensions.get("use")): metric.value for metric in fakes.telemetry.metrics}
    fold(fakes)

    assert len(fakes.telemetry.metrics) == len(first)
    uses = [value for (name, _), value in first.items() if name == "DayNodeSeconds"]
    figures = stored_days(fakes)[f"DAY#{day_of(TODAY - DAY)}"].figures
    nodes = sum(sum(pool.node_microseconds.values()) for pool in figures.pools)
    assert sum(uses) == pytest.approx(nodes / 1e6)
    productive = sum(pool.gpu_microseconds[NodeUse.PRODUCTIVE] for pool in figures.pools) / 3.6e9
    lost_gpu_hours = sum(group.gpu_hours for group in figures.losses if group.is_failure)
    assert productive > 0 < lost_gpu_hours
    assert first["DayTrainingTimeRatio", None] == pytest.approx(productive / (productive + lost_gpu_hours))


def test_metrics_of_the_only_pool_equal_those_of_the_fleet() -> None:
    fakes = store_random_history(5)
    fold(fakes)
    values = {(metric.name, metric.dimensions.get("pool")): metric.value for metric in fakes.telemetry.metrics}

    for name in ("TrainingTimeRatio", "SecondsBetweenFailures"):
        assert values[f"DayPool{name}", "p5-workers"] == pytest.approx(values[f"Day{name}", None])


def test_figures_of_a_pool_exclude_other_pools() -> None:
    fakes = store_random_history(5)
    fold(fakes)
    figures = stored_days(fakes)[f"DAY#{day_of(TODAY - DAY)}"].figures
    (alone,) = summarise_pools(figures)
    (pool, *_) = figures.pools
    idle = pool.replace(
        pool="idle",
        gpu_microseconds=dict.fromkeys(pool.gpu_microseconds, 0) | {NodeUse.NO_JOB: 1},
        included_gpu_microseconds={},
    )
    failure = figures.failures[0].replace(pool="idle")

    recovery = FailureDurations(fault_class="hardware", pool="idle", seconds=(60.0, 120.0), unknown=0)
    with_idle = figures.replace(
        pools=(*figures.pools, idle),
        failures=(*figures.failures, failure),
        recoveries=(*(figures.recoveries or ()), recovery),
    )

    node_seconds = sum(idle.node_microseconds.values()) / 1e6
    of_idle, of_other = summarise_pools(with_idle)
    assert of_idle == PoolSummary("idle", None, 90, of_idle.seconds_between_failures)
    assert of_idle.seconds_between_failures == pytest.approx(node_seconds)
    assert of_other == alone


def test_only_the_largest_pools_have_metrics() -> None:
    fakes = store_random_history(5)
    fold(fakes)
    figures = stored_days(fakes)[f"DAY#{day_of(TODAY - DAY)}"].figures
    (first, *_) = figures.pools
    many = tuple(
        first.replace(pool=f"pool-{number:02}", node_microseconds={"p5.48xlarge": number + 1}) for number in range(30)
    )

    summaries = summarise_pools(figures.replace(pools=many))

    assert [summary.pool for summary in summaries] == [f"pool-{number:02}" for number in range(10, 30)]


def test_day_with_thousands_of_interruptions_is_stored() -> None:
    fakes = store_random_history(3)
    fold(fakes)
    day = stored_days(fakes)[f"DAY#{day_of(TODAY - DAY)}"]
    rng = random.Random(7)
    figures = day.figures.replace(
        stages=tuple(
            StageDurations(
                stage=stage, seconds=tuple(round(rng.random() * 900, 6) for _ in range(5000)), unknown=0, gpu_hours=1.0
            )
            for stage in list(Stage)[:8]
        )
    )
    assert len(document_text(figures.to_json())) > LARGEST_ROW

    row = day_rows.day_row(day.replace(figures=figures), 0)

    assert len(document_text(row.doc)) < LARGEST_ROW
    assert rows.decode(row, DayRow).figures == figures


def test_day_figure_that_is_unknown_emits_no_metric() -> None:
    fakes = FakeWorld()
    fold(fakes)

    assert fakes.telemetry.metrics == []


def test_loss_without_price_emits_no_metric() -> None:
    fakes = FakeWorld()
    job = a_job(1, state="PENDING", current_attempt=1)
    begun = TODAY - timedelta(hours=5)
    lost_attempt = an_attempt(
        job, state="LOST", admitted_at=begun, running_at=begun, ended_at=TODAY - timedelta(hours=2)
    )
    store(fakes.ledger, job, lost_attempt)
    fold(fakes)

    names = {metric.name for metric in fakes.telemetry.metrics}

    assert "DayLostUsd" not in names


@pytest.mark.parametrize("prefix", ["ATTEMPT", "RENTAL"])
def test_record_that_ends_between_two_reads_is_not_lost(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes = FakeWorld()
    ledger, opened = fakes.ledger, TODAY - DAY / 2
    job = a_job(1, state="RUNNING", current_attempt=1)
    running = an_attempt(job, 1, state="RUNNING", admitted_at=opened, running_at=opened)
    store(ledger, job, running)
    ledger.commit(Put(job_rows.rental_row(a_rental(7, seconds_of(opened), None), 0)))
    by_state, reads = ledger.by_state, iter(range(9))

    def end_after_first_read(table: Table, state: str, **options: Any) -> Any:
        page = by_state(table, state, **options)
        if state.startswith(prefix) and next(reads) == 0:
            lost_attempt = running.replace(state="LOST", ended_at=TODAY)
            ledger.commit(Put(job_rows.attempt_row(lost_attempt, 1)))
            ledger.commit(Put(job_rows.rental_row(a_rental(7, seconds_of(opened), seconds_of(TODAY)), 1)))
        return page

    monkeypatch.setattr(ledger, "by_state", end_after_first_read)
    span = Span(opened, TODAY + DAY)

    attempts, _ = read_cost_records.attempts_in(ledger, span, set())
    rentals = read_cost_records.rentals_in((), span.start, a_context(fakes), set())

    assert [attempt.attempt for attempt in attempts] == [1]
    assert [rental.job_id for rental in rentals] == ["job-7"]


def test_settled_day_gains_a_restore_that_is_measured_later() -> None:
    fakes = FakeWorld()
    lost_at = TODAY - 5 * DAY + DAY / 2
    job = a_job(1, state="RUNNING", current_attempt=2, submitted_at=lost_at - DAY)
    times: dict[str, Any] = dict.fromkeys(("admitted_at", "launched_at", "running_at"), lost_at + timedelta(minutes=10))
    first = an_attempt(job, 1, state="LOST", running_at=lost_at - DAY, ended_at=lost_at)
    resumed = an_attempt(job, 2, is_pinned=True, resumed_work_from=lost_at, **times)
    store(fakes.ledger, a_fleet_node(1), job, first, resumed)
    fold(fakes)
    key = f"DAY#{day_of(lost_at)}"
    before = stored_days(fakes)[key]
    row = fakes.ledger.get(job_rows.attempt_key(job.job_id, 2))
    assert row
    measured = resumed.replace(ended_at=A_MOMENT, state="STOPPED", trained_at=lost_at + timedelta(minutes=13))
    fakes.ledger.commit(Put(job_rows.attempt_row(measured, row.version)))

    fold(fakes, A_MOMENT + timedelta(hours=1))
    on_the_same_day = stored_days(fakes)[key]
    fold(fakes, A_MOMENT + DAY)
    after = stored_days(fakes)[key]

    assert before.is_settled
    assert [restore_seconds(day) for day in (before, on_the_same_day, after)] == [(), (), (180.0,)]


def restore_seconds(day: DayRow) -> tuple[float, ...]:
    """Return the measured durations of the restores after the failures of a day."""
    return next(stage.seconds for stage in day.figures.stages if stage.stage is Stage.RESTORE)
