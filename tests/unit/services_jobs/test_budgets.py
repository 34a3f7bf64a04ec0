"""Budgets and rentals: a rental stays within the remaining budget, and its bill counts against the budget."""

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
from evenkeel.services.queries.disclosure import Reader
from evenkeel.services.queries.jobs import plan_unsubmitted_job
from evenkeel.services.queries.records import explain
from evenkeel.services.tables import quota_rows
from tests.unit.services_jobs.job_scenario import a_spec
from tests.unit.services_jobs.test_rentals import NODE_HOUR, ON_DEMAND, SPOT, RentalScenario, a_policy
from tests.unit.services_jobs.test_teams import set_up_teams

QUOTA = {"ml.p5.48xlarge": {"nvidia.com/gpu": 32}, "p5.48xlarge": {"nvidia.com/gpu": 64}}


def market_with_budgets(*budgets: dict[str, Any], **changes: Any) -> RentalScenario:
    """A team with enough quota. Only its rented nodes have a price."""
    policy = a_policy(**changes)
    renting = RentalScenario(policy=policy.replace(economy=policy.economy.replace(other_usd_per_accelerator_hour=0)))
    members = [{"principal": "arn:aws:iam::111122223333:role/ana"}]
    queue = {"cohort": "fleet", "groups": [QUOTA]}
    team = {"name": "red", "queue": queue, "members": members, "budgets": budgets}
    set_up_teams(renting.scenario, Team.model_validate(team))
    return renting


def last_request(renting: RentalScenario) -> PlacementFacts:
    records: list[Decision] = sorted(renting.decision_records("PLACEMENT"), key=lambda decision: decision.decided_at)
    return PlacementFacts.model_validate(records[-1].facts)


@pytest.mark.parametrize(("usd", "rentals"), [(None, 1), (80, 0), (90, 1)])
def test_rental_never_exceeds_the_remaining_team_budget(usd: float | None, rentals: int) -> None:
    renting = market_with_budgets(*([{"period": "month", "usd": usd}] if usd else []))
    _, second = renting.fill_fleet(team="red")

    renting.scenario.run_scheduling_cycle()

    # Two hours of work and some minutes of launch and restart, on two nodes at $20.
    assert renting.allocation_count() == rentals
    left = last_request(renting).spending.team_budget_left_parts
    assert left == (None if usd is None else usd * money.COST_PARTS_PER_USD)
    if not rentals:
        job = explain.why_job(second.job_id, Reader(), renting.world.context())
        assert "the budget of team red has $80.00 left." in job["sentence"]


def test_expected_cost_of_running_rentals_limits_the_next_job() -> None:
    renting = market_with_budgets({"period": "month", "usd": 100})
    _, second = renting.fill_fleet(team="red")
    renting.scenario.run_scheduling_cycle()
    expected = renting.rental(second.job_id).expected_parts
    renting.world.clock.advance(1)
    third = renting.scenario.submit("third", team="red", nodes=1)

    renting.scenario.run_scheduling_cycle()

    assert expected > 80 * money.COST_PARTS_PER_USD
    assert renting.allocation_count() == 1
    assert last_request(renting).spending.team_budget_left_parts == 100 * money.COST_PARTS_PER_USD - expected
    assert "but the budget of team red has" in renting.scenario.job(third.job_id).reason


def test_two_jobs_of_one_cycle_do_not_exceed_the_budget() -> None:
    held = []
    for usd in (100, 130):
        renting = market_with_budgets({"period": "month", "usd": usd})
        renting.fill_fleet(team="red")
        renting.scenario.submit("third", team="red", nodes=1)

        renting.scenario.run_scheduling_cycle()

        held.append(renting.allocation_count())
    # $81 and $41.
    assert held == [1, 2]


def test_later_offer_of_a_rental_respects_the_budget() -> None:
    dollars = {"period": "month", "usd": 100}
    for budgets, expected in (((), [SPOT, ON_DEMAND]), ((dollars,), [SPOT])):
        renting = market_with_budgets(*budgets)
        renting.has_capacity = set()
        _, second = renting.fill_fleet(team="red")
        renting.scenario.run_scheduling_cycle()
        renting.advance_executions()
        renting.launch_nodes()
        for _ in range(4):
            renting.advance_executions()

        assert [offer.pool for offer in renting.rental(second.job_id).offers] == expected, budgets


def test_rent_is_charged_once_and_its_attempt_adds_only_hours() -> None:
    renting = market_with_budgets({"period": "month", "usd": 1000})
    _, second = renting.run_second_job_on_rented_nodes(team="red")
    assert renting.scenario.attempt(second.job_id, 1).is_rented
    renting.world.clock.advance(1800)
    renting.world.cluster.finish_pods(second.job_id, 1)
    renting.scenario.settle(second.job_id, 1)
    for _ in range(3):
        renting.advance_executions()

    rental = renting.rental(second.job_id)
    row = renting.world.ledger.get(quota_rows.spent_key("red", "2026-11"))
    assert row
    spent = Spending.model_validate(row.doc)
    assert rental.state is RentalState.ENDED
    assert spent.usd_micros * 3600 == rental.cost_parts >= 2 * NODE_HOUR[SPOT] * 1800
    assert spent.accelerator_seconds == 16 * 1800


def test_running_rental_that_spent_the_budget_blocks_the_next_job() -> None:
    renting = market_with_budgets({"period": "month", "usd": 90})
    first, _ = renting.run_second_job_on_rented_nodes(team="red")
    renting.world.cluster.finish_pods(first.job_id, 1)
    renting.scenario.settle(first.job_id, 1)
    third = renting.scenario.submit("third", team="red", nodes=1)
    renting.world.clock.advance(9000)

    renting.scenario.run_scheduling_cycle()

    assert renting.scenario.job(third.job_id).state is JobState.PENDING
    assert "dollars of team red in 2026-11 are used" in renting.scenario.job(third.job_id).reason


def test_plan_names_the_exceeded_budget() -> None:
    renting = market_with_budgets({"period": "month", "usd": 100})
    renting.fill_fleet(team="red")
    renting.scenario.store_row(
        Row(quota_rows.spent_key("red", "2026-11"), Spending(usd_micros=60 * money.MICROS_PER_USD).to_json())
    )
    renting.scenario.sweep()

    plan = plan_unsubmitted_job.run(
        a_spec(team="red", nodes=1),
        Requester(principal="role/ana", identity="111122223333:role/ana"),
        renting.world.context(policy=renting.policy),
    )

    why_not = {row["pool"]: row["whyNot"] for row in plan["placement"]["pools"]}
    assert "the budget of team red has $40.00 left" in why_not[SPOT]
