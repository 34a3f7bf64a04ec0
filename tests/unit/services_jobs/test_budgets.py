"""Budgets in dollars and rents: a rental stays within the remaining budget, and counts with its bill."""

from typing import Any

import pytest

from evenkeel.domain.decisions import Decision
from evenkeel.domain.economics import money
from evenkeel.domain.jobs.job import JobState
from evenkeel.domain.quotas.spending import Spending
from evenkeel.domain.quotas.teams import Team
from evenkeel.domain.renting.placement import PlacementFacts
from evenkeel.domain.renting.rental import RentalState
from evenkeel.ports import Row
from evenkeel.services.jobs.check_role import Requester
from evenkeel.services.queries import explain, read_queue
from evenkeel.services.queries.disclosure import Reader
from evenkeel.services.storage import quota_rows
from tests.unit.services_jobs.job_scenario import a_spec
from tests.unit.services_jobs.test_rentals import NODE_HOUR, ON_DEMAND, SPOT, RentalScenario, a_policy
from tests.unit.services_jobs.test_teams import set_up

QUOTA = {"ml.p5.48xlarge": {"nvidia.com/gpu": 32}, "p5.48xlarge": {"nvidia.com/gpu": 64}}


def sharing(*budgets: dict[str, Any], **changes: Any) -> RentalScenario:
    """A team with enough quota, whose only priced nodes are rented nodes."""
    policy = a_policy(**changes)
    market = RentalScenario(policy=policy.replace(economy=policy.economy.replace(other_usd_per_accelerator_hour=0)))
    members = [{"principal": "arn:aws:iam::111122223333:role/ana"}]
    queue = {"cohort": "fleet", "groups": [QUOTA]}
    team = {"name": "red", "queue": queue, "members": members, "budgets": budgets}
    set_up(market.scenario, Team.model_validate(team))
    return market


def asked_last(market: RentalScenario) -> PlacementFacts:
    records: list[Decision] = sorted(market.records("PLACEMENT"), key=lambda decision: decision.decided_at)
    return PlacementFacts.model_validate(records[-1].facts)


@pytest.mark.parametrize(("usd", "rentals"), [(None, 1), (80, 0), (90, 1)])
def test_rental_never_exceeds_the_remaining_team_budget(usd: float | None, rentals: int) -> None:
    market = sharing(*([{"period": "month", "usd": usd}] if usd else []))
    _, second = market.full_fleet(team="red")

    market.scenario.run_scheduling_cycle()

    # Two hours of work and some minutes of launch and restart, on two nodes at $20.
    assert market.holds() == rentals
    left = asked_last(market).spending.team_budget_left_parts
    assert left == (None if usd is None else usd * money.PARTS)
    if not rentals:
        job = explain.why_job(second.job_id, Reader(), market.world.context())
        assert "the budget of team red has $80.00 left." in job["sentence"]


def test_expected_cost_of_running_rentals_limits_the_next_job() -> None:
    market = sharing({"period": "month", "usd": 100})
    _, second = market.full_fleet(team="red")
    market.scenario.run_scheduling_cycle()
    expected = market.rental(second.job_id).expected_parts
    market.world.clock.advance(1)
    third = market.scenario.submit("third", team="red", nodes=1)

    market.scenario.run_scheduling_cycle()

    assert expected > 80 * money.PARTS
    assert market.holds() == 1
    assert asked_last(market).spending.team_budget_left_parts == 100 * money.PARTS - expected
    assert "but the budget of team red has" in market.scenario.job(third.job_id).reason


def test_two_jobs_of_one_cycle_do_not_exceed_the_budget() -> None:
    held = []
    for usd in (100, 130):
        market = sharing({"period": "month", "usd": usd})
        market.full_fleet(team="red")
        market.scenario.submit("third", team="red", nodes=1)

        market.scenario.run_scheduling_cycle()

        held.append(market.holds())
    # $81 and $41.
    assert held == [1, 2]


def test_later_offer_of_a_rental_respects_the_budget() -> None:
    dollars = {"period": "month", "usd": 100}
    for budgets, expected in (((), [SPOT, ON_DEMAND]), ((dollars,), [SPOT])):
        market = sharing(*budgets)
        market.has_capacity = set()
        _, second = market.full_fleet(team="red")
        market.scenario.run_scheduling_cycle()
        market.advance()
        market.karpenter()
        for _ in range(4):
            market.advance()

        assert [offer.pool for offer in market.rental(second.job_id).offers] == expected, budgets


def test_rent_is_charged_once_and_its_attempt_adds_only_hours() -> None:
    market = sharing({"period": "month", "usd": 1000})
    _, second = market.rented(team="red")
    assert market.scenario.attempt(second.job_id, 1).is_rented
    market.world.clock.advance(1800)
    market.world.cluster.finish_pods(second.job_id, 1)
    market.scenario.settle(second.job_id, 1)
    for _ in range(3):
        market.advance()

    rental = market.rental(second.job_id)
    row = market.world.ledger.get(quota_rows.spent_key("red", "2026-11"))
    assert row
    spent = Spending.model_validate(row.doc)
    assert rental.state is RentalState.ENDED
    assert spent.usd_micros * 3600 == rental.cost_parts >= 2 * NODE_HOUR[SPOT] * 1800
    assert spent.accelerator_seconds == 16 * 1800


def test_running_rental_that_spent_the_budget_blocks_the_next_job() -> None:
    market = sharing({"period": "month", "usd": 90})
    first, _ = market.rented(team="red")
    market.world.cluster.finish_pods(first.job_id, 1)
    market.scenario.settle(first.job_id, 1)
    third = market.scenario.submit("third", team="red", nodes=1)
    market.world.clock.advance(9000)

    market.scenario.run_scheduling_cycle()

    assert market.scenario.job(third.job_id).state is JobState.PENDING
    assert "dollars of team red in 2026-11 are used" in market.scenario.job(third.job_id).reason


def test_plan_names_the_exceeded_budget() -> None:
    market = sharing({"period": "month", "usd": 100})
    market.full_fleet(team="red")
    market.scenario.put(
        Row(quota_rows.spent_key("red", "2026-11"), Spending(usd_micros=60 * money.MICROS_PER_USD).to_json())
    )
    market.scenario.sweep()

    plan = read_queue.plan(
        a_spec(team="red", nodes=1),
        Requester(principal="role/ana", identity="111122223333:role/ana"),
        market.world.context(policy=market.policy),
    )

    why_not = {row["pool"]: row["whyNot"] for row in plan["placement"]["pools"]}
    assert "the budget of team red has $40.00 left" in why_not[SPOT]
