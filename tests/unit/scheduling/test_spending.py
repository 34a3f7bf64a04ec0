from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from evenkeel.domain.economics.economy_policy import EconomyPolicy
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.queue_simulation.profiles import RULES, Profile
from evenkeel.domain.quotas.spending import (
    HALF_LIFE_SECONDS,
    Spending,
    UsageLimit,
    decayed_usage,
    usage_by_period,
    usage_by_week,
    usage_limits,
)
from evenkeel.domain.quotas.teams import Period, Team
from tests.unit.scheduling.builders import CLUSTER, an_attempt

ECONOMY = EconomyPolicy(usd_per_accelerator_hour={"ml.p5.48xlarge": 3.6})
MIDNIGHT = datetime(2026, 11, 1, tzinfo=UTC)


def used_seconds(admitted_at: datetime, ended_at: datetime, accelerators: int = 8) -> dict[str, int]:
    attempt = an_attempt(admitted_at=admitted_at, accelerators=accelerators, instance_type="ml.p5.48xlarge")
    return {part.key: part.spent.accelerator_seconds for part in usage_by_period(attempt, ended_at, ECONOMY)}


def test_use_is_split_by_day_week_and_month() -> None:
    seconds_by_period = used_seconds(MIDNIGHT - timedelta(seconds=10), MIDNIGHT + timedelta(seconds=20))

    assert seconds_by_period == {
        "2026-10-31": 80,
        "2026-11-01": 160,
        "2026-W44": 240,
        "2026-10": 80,
        "2026-11": 160,
    }


def test_cost_follows_the_instance_type() -> None:
    attempt = an_attempt(admitted_at=MIDNIGHT, accelerators=8, instance_type="ml.p5.48xlarge")

    parts = usage_by_period(attempt, MIDNIGHT + timedelta(hours=1), ECONOMY)

    assert {part.spent.usd_micros for part in parts} == {8 * 3_600_000}


def test_attempt_keeps_the_price_of_its_admission() -> None:
    attempt = an_attempt(
        admitted_at=MIDNIGHT, accelerators=8, instance_type="ml.p5.48xlarge", usd_per_accelerator_hour=1.0
    )

    parts = usage_by_period(attempt, MIDNIGHT + timedelta(hours=1), ECONOMY)

    assert {part.spent.usd_micros for part in parts} == {8 * 1_000_000}


def test_use_without_a_price_is_counted_apart() -> None:
    attempt = an_attempt(admitted_at=MIDNIGHT, accelerators=8, instance_type="p5e.48xlarge")

    parts = usage_by_period(attempt, MIDNIGHT + timedelta(hours=1), EconomyPolicy())

    assert {part.spent for part in parts} == {Spending(accelerator_seconds=8 * 3600, unpriced_seconds=8 * 3600)}


def test_attempt_that_ended_before_its_start_used_nothing() -> None:
    assert set(used_seconds(MIDNIGHT, MIDNIGHT - timedelta(seconds=5)).values()) == {0}


@given(st.integers(0, 40_000_000), st.integers(0, 31_000_000))
def test_periods_of_a_year_add_up_exactly(begins: int, length: int) -> None:
    since = MIDNIGHT + timedelta(seconds=begins)

    seconds_by_period = used_seconds(since, since + timedelta(seconds=length), accelerators=1)

    months = sum(count for key, count in seconds_by_period.items() if len(key) == 7)
    assert months == length
    assert len(seconds_by_period) <= 39


@given(st.integers(0, 10_000_000), st.integers(0, 2_500_000), st.integers(0, 1_500_000))
def test_weekly_sums_decay_like_exact_use(begins: int, length: int, later: int) -> None:
    since = MIDNIGHT + timedelta(seconds=begins)
    until, now = since + timedelta(seconds=length), since + timedelta(seconds=length + later)

    left = decayed_usage(usage_by_week(an_attempt(admitted_at=since, accelerators=8), until), now)

    halves = [seconds / HALF_LIFE_SECONDS for seconds in (later, length + later)]
    assert abs(left - 8 * (2 ** -halves[0] - 2 ** -halves[1])) < 1e-5


def test_half_life_of_recorded_use_equals_the_default_profile() -> None:
    decay = RULES[Profile.EVENKEEL].decay
    assert decay
    assert decay.half_life_seconds == HALF_LIFE_SECONDS


def test_use_from_months_ago_is_forgotten() -> None:
    used = usage_by_week(an_attempt(admitted_at=MIDNIGHT, accelerators=8), MIDNIGHT + timedelta(days=1))

    assert decayed_usage(used, MIDNIGHT + timedelta(weeks=9)) == 0


def limit_reasons(team: dict[str, Any], **facts: Any) -> tuple[UsageLimit, ...]:
    charge = Charge(
        job_id="job-1",
        attempt=1,
        team="red",
        cluster=CLUSTER,
        node_names=("node-1",),
        accelerators=8,
        instance_type="ml.p5.48xlarge",
        admitted_at=MIDNIGHT - timedelta(hours=2),
        submitter="role/ana",
    )
    arguments = {"submitter": "role/ana", "accelerators": 8, "charges": [charge], "spent": {}, **facts}
    now = MIDNIGHT + timedelta(hours=1)
    return usage_limits(Team.model_validate({"name": "red", **team}), **arguments, economy=ECONOMY, now=now)


def test_running_and_settled_use_of_the_period_count() -> None:
    budget = {"budgets": [{"period": Period.MONTH, "gpuHours": 20, "usd": 100}]}

    hours, dollars = limit_reasons(
        budget, spent={"2026-11": Spending(accelerator_seconds=3600 * 11, usd_micros=80_000_000)}
    )

    assert (hours.used, hours.is_reached) == (19.0, False)
    assert (dollars.used, dollars.is_reached) == (108.8, True)


def test_budget_blocks_once_it_is_exactly_spent() -> None:
    (hours,) = limit_reasons({"budgets": [{"period": Period.DAY, "gpuHours": 8}]})

    assert (hours.used, hours.is_reached) == (8.0, True)


def test_member_may_reach_but_not_exceed_their_limit() -> None:
    (reached,) = limit_reasons({"maxAcceleratorsPerUser": 16})
    (passed,) = limit_reasons({"maxAcceleratorsPerUser": 15})

    assert (reached.is_reached, passed.is_reached) == (False, True)


def test_limit_of_a_million_is_written_in_full() -> None:
    limit = UsageLimit(quantity="dollars of team red", used=1_234_567.89, limit=1_000_000, requested=2_000_000)

    assert limit.text == "1234567.89 of 1000000 dollars of team red are used, and the job asks for 2000000"


def test_dollar_budget_blocks_jobs_while_some_use_has_no_price() -> None:
    charge = Charge(
        job_id="job-1",
        attempt=1,
        team="red",
        cluster=CLUSTER,
        node_names=("ip-1",),
        accelerators=8,
        instance_type="p5e.48xlarge",
        admitted_at=MIDNIGHT,
        submitter="role/ana",
    )
    team = Team.model_validate({"name": "red", "budgets": [{"period": Period.MONTH, "usd": 100}]})
    arguments: dict[str, Any] = {"submitter": "role/ana", "accelerators": 8, "charges": [charge], "spent": {}}

    limits = usage_limits(team, **arguments, economy=EconomyPolicy(), now=MIDNIGHT + timedelta(hours=1))
    priced = usage_limits(
        team, **arguments, economy=EconomyPolicy(other_usd_per_accelerator_hour=1), now=MIDNIGHT + timedelta(hours=1)
    )

    (reached,) = [limit for limit in limits if limit.is_reached]
    assert reached.text == (
        "8 accelerators of team red have no price, so its dollar budget cannot be checked: "
        "set economy.prices for p5e.48xlarge"
    )
    assert not any(limit.is_reached for limit in priced)
