"""The sweep warns once in a period of a budget that is expected to end before its period."""

from datetime import UTC, datetime, timedelta
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.domain.costs.showback import BudgetForecast, budget_forecasts, runs_out_early
from evenkeel.domain.outbound.events import OutboundKind
from evenkeel.domain.quotas.spending import Spending, begin_of, end_of
from evenkeel.domain.quotas.teams import Budget, Period
from evenkeel.ports import Put, Row, RowChange
from evenkeel.services.publishing import publish_events
from evenkeel.services.queries.fleet import read_overview
from evenkeel.services.sweep import sweep_fleet
from evenkeel.services.sweep.sweep_run import SweepRun
from evenkeel.services.tables import fleet_rows, quota_rows
from tests.fakes.world import FakeWorld, a_context
from tests.unit.api.seeds import a_job, an_attempt, store
from tests.unit.publishing.test_publish_events import SCHEMA
from tests.unit.services_jobs.test_budgets import market_with_budgets

DAY_BEGIN = datetime(2026, 11, 3, tzinfo=UTC)
HOUR = timedelta(hours=1)


def forecast(used_hours: float, at: datetime, limit: float = 240) -> BudgetForecast:
    used = Spending(accelerator_seconds=round(used_hours * 3600))
    (outlook,) = budget_forecasts("red", Budget(period=Period.DAY, gpu_hours=limit), used, at)
    return outlook


@pytest.mark.parametrize(
    ("hours", "used", "is_early"),
    [
        (6, 61, True),  # 244 of 240 by midnight
        (6, 59, False),  # 236
        (2, 100, False),  # less than a tenth of the day has passed
        (2.5, 100, True),
        (6, 240, False),  # spent: that is another event
        (6, 0, False),
    ],
)
def test_warning_needs_a_pace_that_ends_the_budget_early(hours: float, used: float, *, is_early: bool) -> None:
    now = DAY_BEGIN + hours * HOUR

    assert runs_out_early(forecast(used, now), DAY_BEGIN, now) is is_early


@pytest.mark.parametrize("hours", [3, 6, 12, 20])
def test_constant_use_reaches_the_limit_at_the_forecast_time(hours: int) -> None:
    # A second derivation: 20 GPUs from midnight use 240 GPU-hours by noon, and 480 by the end.
    outlook = forecast(min(20 * hours, 239), DAY_BEGIN + hours * HOUR)

    if hours < 12:
        assert outlook.reached_at == DAY_BEGIN + 12 * HOUR
        assert outlook.expected_at_end == pytest.approx(480)


@pytest.mark.parametrize("period", list(Period))
@given(
    st.integers(0, 5 * 366 * 86_400).map(lambda seconds: datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds))
)
def test_period_ends_where_the_next_one_begins(period: Period, instant: datetime) -> None:
    end = end_of(period, instant)

    assert begin_of(period, instant) <= instant < end == begin_of(period, end)
    assert period.key_at(end - timedelta(microseconds=1)) == period.key_at(instant) != period.key_at(end)


def counted_budgets(world: FakeWorld, now: datetime) -> list[dict[str, Any]]:
    sweep_fleet.count_fleet(SweepRun(a_context(world, now=now), {}))
    row = world.ledger.get(fleet_rows.overview_key())
    assert row
    return list(row.doc["budgets"])


def store_use(world: FakeWorld, began: datetime) -> None:
    """Store the charge of a running attempt with 16 GPUs of the team red."""
    job = a_job(1, state="RUNNING", current_attempt=1, team="red")
    attempt = an_attempt(job, admitted_at=began, running_at=began, team="red")
    store(world.ledger, job, attempt)
    world.ledger.commit(Put(quota_rows.charge_row(attempt, job)))


def test_sweep_warns_once_before_the_budget_is_gone() -> None:
    world = market_with_budgets({"period": "day", "gpuHours": 240}).scenario.world
    store_use(world, DAY_BEGIN)

    counts = {}
    for hour in (1, 5, 6, 20):
        (budget,) = counted_budgets(world, DAY_BEGIN + hour * HOUR)
        counts[hour] = (budget["used"], budget["warnedAt"], world.telemetry.totals["BudgetsRunningOut"])

    warned_at = "2026-11-03T05:00:00.000000Z"
    assert counts == {1: (16, None, 0), 5: (80, warned_at, 1), 6: (96, warned_at, 1), 20: (320, warned_at, 1)}
    (tomorrow,) = counted_budgets(world, DAY_BEGIN + 25 * HOUR)
    assert (tomorrow["period"], tomorrow["warnedAt"]) == ("2026-11-04", None)


def test_warning_survives_a_crash_before_its_row_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    world = market_with_budgets({"period": "day", "gpuHours": 240}).scenario.world
    store_use(world, DAY_BEGIN)
    counted_budgets(world, DAY_BEGIN + HOUR)

    def die(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(world.ledger, "commit", die)
        with pytest.raises(KeyboardInterrupt):
            sweep_fleet.count_fleet(SweepRun(a_context(world, now=DAY_BEGIN + 5 * HOUR), {}))

    assert world.telemetry.totals["BudgetsRunningOut"] == 1
    (budget,) = counted_budgets(world, DAY_BEGIN + 5 * HOUR + timedelta(minutes=1))
    assert budget["warnedAt"] == "2026-11-03T05:01:00.000000Z"


def test_most_urgent_budgets_are_kept_in_order_of_teams() -> None:
    budgets = [{"team": f"team-{number:04}", "used": number, "limit": 1000, "warnedAt": None} for number in range(1100)]
    budgets[3] |= {"warnedAt": "2026-11-03T05:00:00.000000Z"}
    budgets[5] |= {"limit": 0}

    kept = read_overview.most_urgent_budgets(budgets, read_overview.MAX_BUDGETS)

    assert kept == [budgets[3], *budgets[101:]]
    assert read_overview.most_urgent_budgets(budgets[:300], read_overview.MAX_BUDGETS) == budgets[:300]


def test_counts_name_the_number_of_budgets_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_overview, "MAX_BUDGETS", 1)
    budgets = ({"period": "day", "gpuHours": 240}, {"period": "month", "gpuHours": 24000})
    world = market_with_budgets(*budgets).scenario.world
    store_use(world, DAY_BEGIN)

    (budget,) = counted_budgets(world, DAY_BEGIN + HOUR)

    row = world.ledger.get(fleet_rows.overview_key())
    assert row
    assert (budget["period"], row.doc["budgetsLeftOut"]) == ("2026-11-03", 1)


def test_warning_is_published_once_with_the_expected_time() -> None:
    budget = {
        "team": "red",
        "period": "2026-11-03",
        "quantity": "gpuHours",
        "used": 1_080_000.5,
        "limit": 2_400_000,
        "expectedAtEnd": 3_840_000.0,
        "expectedGoneAt": "2026-11-03T15:00:00.000000Z",
        "warnedAt": None,
    }
    warned = budget | {"warnedAt": "2026-11-03T05:00:00.000000Z"}
    world = FakeWorld()

    for before, after in ((budget, warned), (warned, warned | {"used": 1_090_000}), (None, budget)):
        publish_events.run(counts_change(before, after), a_context(world))

    (event,) = world.event_bus.events
    assert event.detail_type == OutboundKind.BUDGET_RUNS_OUT
    assert event.detail["data"]["text"] == (
        "Team red is expected to spend its budget of 2400000 GPU-hours in 2026-11-03 by 2026-11-03 15:00Z. It has "
        "used 1080000.5; at this rate it uses 3840000 by the end. A team without budget starts no further job."
    )
    document = {"source": event.source, "detail-type": event.detail_type, "detail": event.detail}
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    assert len(world.chat.messages) == 1


def test_event_of_a_spent_budget_writes_its_limit_in_full() -> None:
    budget = {"team": "red", "period": "2026-11", "quantity": "usd", "used": 790_000, "limit": 1_000_000}
    world = FakeWorld()

    publish_events.run(counts_change(budget, budget | {"used": 800_000}), a_context(world))

    (event,) = world.event_bus.events
    assert event.detail_type == OutboundKind.BUDGET_NEAR_END
    assert event.detail["data"]["text"].startswith(
        "Team red has used 80 % of its budget of 1000000 US dollars in 2026-11"
    )


def test_changed_limit_is_warned_of_again() -> None:
    market = market_with_budgets({"period": "day", "gpuHours": 240})
    world = market.scenario.world
    store_use(world, DAY_BEGIN)
    counted_budgets(world, DAY_BEGIN + 5 * HOUR)
    row = world.ledger.get(fleet_rows.overview_key())
    assert row
    (warned,) = row.doc["budgets"]
    world.ledger.commit(Put(Row(row.key, row.doc | {"budgets": [warned | {"limit": 100}]}, row.version)))

    (budget,) = counted_budgets(world, DAY_BEGIN + 6 * HOUR)

    assert (budget["limit"], budget["warnedAt"]) == (240, "2026-11-03T06:00:00.000000Z")
    smaller = warned | {"limit": 100}
    events = [publish_events.derive(counts_change(before, budget), "fleet") for before in (None, smaller, warned)]
    (first,), (again,), repeated = events
    assert first.kind is again.kind is OutboundKind.BUDGET_RUNS_OUT
    assert repeated == ()
    (other,) = publish_events.derive(counts_change(None, budget | {"limit": 239}), "fleet")
    assert other.event_id != first.event_id


def test_counts_of_an_earlier_release_give_no_warning() -> None:
    old = {"team": "red", "period": "2026-11-03", "quantity": "usd", "used": 1, "limit": 240}

    assert publish_events.derive(counts_change(old, old), "fleet") == ()


def counts_change(before: dict[str, Any] | None, after: dict[str, Any]) -> RowChange:
    key = fleet_rows.overview_key()
    return RowChange(
        Row(key, {"budgets": [before]}, 1) if before else None, Row(key, {"budgets": [after]}, 2), DAY_BEGIN + 5 * HOUR
    )
