"""The worked example of docs/renting.md follows the rules."""

import json
import math
import re
from pathlib import Path

import pytest

from bench.burst_cycle import SITE
from evenkeel.domain.capacity.instance_types import shipped_instance_types
from evenkeel.domain.capacity.list_prices import shipped_prices
from evenkeel.domain.economics.money import format_usd
from evenkeel.domain.renting.placement import PlacementFacts, choose_pool

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "renting.md").read_text("utf-8")
COST_PAGE = (DOCS / "operate" / "cost.md").read_text("utf-8")
PRICES = shipped_prices()
"""On-demand prices. Spot prices and prices of capacity blocks change per hour or per purchase."""


def documented_facts() -> PlacementFacts:
    block = re.search(r"## A worked example.*?```json\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    return PlacementFacts.model_validate(json.loads(block[1]))


def duration_text(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def test_documented_cost_table_follows_the_rules() -> None:
    decision = choose_pool(documented_facts())

    why_not = {alternative.option: alternative.why_not for alternative in decision.alternatives}
    rows = [
        [
            row.pool,
            duration_text(row.starts_after_seconds),
            duration_text(row.ends_after_seconds),
            *map(format_usd, (row.rent_parts, row.delay_parts, row.opportunity_parts)),
            "—" if row.why_not else format_usd(row.cost_parts),
            why_not.get(row.pool, "chosen"),
        ]
        for row in decision.table
    ]
    shown = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.splitlines()
        if line.startswith("| ") and "$" in line
    ]
    assert rows == shown
    assert f"> {decision.reason}" in PAGE


def test_documented_bounds_of_long_delays_are_right() -> None:
    """The examples of the section about long delays, in dollars and hours."""
    rents_after = {price: math.sqrt(16 * 0.5 / price) for price in (1, 20)}
    rent, wait = 13 * 0.5, 0.50 * 0.25

    more = {hours: 40 * hours * hours / 0.5 for hours in (0.25, 1, 2)}

    assert (
        f"After 15 minutes renting may cost ${more[0.25]:.0f} more than the wait, after an hour ${more[1]:.0f} more, "
        f"and after two hours ${more[2]:.0f} more."
    ) in " ".join(PAGE.split())
    assert f"√(16 × 0.5 ÷ 1) = {rents_after[1]:.2f} hours" in PAGE
    assert f"p = $20 an hour it rents after {rents_after[20]:.2f} hours" in PAGE
    assert f"(${rent:.2f}) costs {rent / wait:.0f} times as much" in PAGE
    assert f"(${wait:.3f})" in PAGE


def test_settings_of_the_benchmark_are_those_that_it_sets() -> None:
    block = re.search(r"## The settings of the benchmark.*?```json\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    settings = json.loads(block[1])

    assert {
        "max_moves": settings["burst"]["maxMoves"],
        "max_wait_seconds": settings["burst"]["maxWaitSeconds"],
        "backfill_seconds": settings["scheduling"]["backfillSeconds"],
    } == SITE


def test_documented_worked_figures_match_the_decision() -> None:
    spot, plan = choose_pool(documented_facts()).table[:2]

    assert (spot.interruptions, spot.ends_after_seconds) == (0.6, 23_037.164)
    assert format_usd(24_000_000 * 2 * 23_038) == format_usd(spot.rent_parts) == "$307.17"
    assert format_usd(18_660 * 150_000_000) == format_usd(plan.delay_parts) == "$777.50"
    assert format_usd(1_200_000 * 16 * 21_600) == format_usd(plan.opportunity_parts) == "$115.20"


def test_example_of_the_cost_page_is_the_worked_example() -> None:
    decision = choose_pool(documented_facts())
    spot, plan = decision.table[:2]
    rent, worth = spot.rent_parts, plan.delay_parts - spot.delay_parts
    hours_sooner = (plan.starts_after_seconds - spot.starts_after_seconds) / 3600
    text = " ".join(COST_PAGE.split())

    assert f"the job starts {hours_sooner:.1f} hours sooner" in text
    hours_shorter = (plan.ends_after_seconds - spot.ends_after_seconds) / 3600
    assert f"ends {hours_shorter:.2f} hours sooner. That is worth {format_usd(worth)}." in text
    assert f"Their rent is {format_usd(rent)}." in text
    extra = (
        f"{format_usd(rent)} − {format_usd(plan.opportunity_parts)} = {format_usd(rent - plan.opportunity_parts)} more"
    )
    assert f"so renting costs {extra}." in text


def test_documented_on_demand_prices_match_the_table() -> None:
    rented = [candidate.pool for candidate in documented_facts().candidates if candidate.pool.market == "on-demand"]

    assert rented
    for pool in rented:
        price = PRICES.price_of(pool.instance_type, documented_facts().now)
        assert price is not None
        assert price.micros_per_node_hour == pool.micros_per_node_hour


@pytest.mark.parametrize("instance_type", [*PRICES.ec2, *PRICES.hyperpod])
def test_each_price_names_a_known_type_and_source(instance_type: str) -> None:
    for price in (*PRICES.ec2.get(instance_type, ()), *PRICES.hyperpod.get(instance_type, ())):
        source = PRICES.sources[price.source]

        assert shipped_instance_types().find(instance_type) is not None, "Add the instance type to instance_types.json."
        assert source.link.startswith("https://")
        assert source.read_at >= price.starts_on
