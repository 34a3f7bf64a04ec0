"""Spares: closed forms agree with simulations, and the cheapest number is found."""

import heapq
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.domain.economics import poisson, spares
from evenkeel.domain.economics.figure_checks import WrongFigure

CASE = spares.SpareInputs(
    nodes=256,
    failures_per_node_hour=0.0005,
    lead_seconds=940,
    wait_seconds=903,
    detect_seconds=89,
    resume_seconds=1398,
    run_cost_usd=50e6,
)


@pytest.mark.parametrize(
    ("count", "no_spare", "time", "cost", "usd_millions"),
    [
        (0, 1, 1.0850, 1.0850, 54.25),
        (1, 0.0329, 1.0539, 1.0580, 52.90),
        (2, 0.0005, 1.0529, 1.0611, 53.06),
        (3, 0.000006, 1.0529, 1.0652, 53.26),
    ],
)
def test_cost_of_spares_in_a_known_case_is_reproduced(
    count: int, no_spare: float, time: float, cost: float, usd_millions: float
) -> None:
    spare_cost = spares.spare_cost(count, CASE)

    assert spare_cost.no_spare_probability == pytest.approx(no_spare, abs=5e-5)
    assert (round(spare_cost.time_factor, 4), round(spare_cost.cost_factor, 4)) == (time, cost)
    assert spare_cost.cost_usd == pytest.approx(usd_millions * 1e6, abs=5e3)


@pytest.mark.parametrize("takes_from_stock_only", [True, False])
def test_probability_of_no_free_spare_agrees_with_the_simulation(*, takes_from_stock_only: bool) -> None:
    """The lead time of an order varies: only its mean matters."""
    uniform, stock, load = random.Random(5), 3, 2.0
    now, orders, missed, failures = 0.0, list[float](), 0, 60_000
    for _ in range(failures):
        now += -math.log(1 - uniform.random())
        while orders and orders[0] <= now:
            heapq.heappop(orders)
        is_missed = len(orders) >= stock
        missed += is_missed
        if takes_from_stock_only or not is_missed:
            heapq.heappush(orders, now + uniform.choice((0.5, 1.5)) * load)

    expected = (
        spares.no_spare_probability(stock, 1.0, load) if takes_from_stock_only else spares.erlang_loss(stock, load)
    )
    assert missed / failures == pytest.approx(expected, abs=0.01)


@given(st.integers(1, 2000), st.floats(1e-6, 1e-2), st.floats(60, 50_000), st.floats(0, 20_000))
def test_best_number_of_spares_is_the_cheapest(nodes: int, rate: float, lead: float, wait: float) -> None:
    terms = CASE.replace(nodes=nodes, failures_per_node_hour=rate, lead_seconds=lead, wait_seconds=wait)
    best = spares.best_spares(terms)

    costs = [spares.spare_cost(count, terms).cost_factor for count in range(best + 30)]
    assert costs[best] == min(costs)


def test_next_spare_pays_if_it_saves_more_than_it_costs() -> None:
    for count in range(4):
        mean = 0.128 * 940 / 3600
        saved_hours = 0.128 * CASE.wait_seconds / 3600 * math.exp(-mean) * mean**count / math.factorial(count)
        spare_hour = spares.spare_cost(count + 1, CASE).time_factor / 256
        # The spare pays if the time saved on N + S nodes exceeds the time of one more node.
        assert spares.spare_cost(count, CASE).next_spare_pays is (saved_hours * (256 + count) / 256 > spare_hour)


def test_broken_nodes_are_poisson_distributed_with_unlimited_repairers() -> None:
    """With a repairer for each machine, the number of broken machines is almost Poisson."""
    shop = spares.repair_shop(5000, 6, 0.0004, 1.0, None, fails_while_stopped=True)

    assert shop.no_spare_probability < 1
    assert 1 - shop.enough_nodes_probability == pytest.approx(poisson.at_least_probability(7, 2.0), rel=0.02)


@pytest.mark.parametrize("fails_while_stopped", [False, True])
@pytest.mark.parametrize("repairers", [1, 2])
def test_repair_queue_model_agrees_with_the_simulation(repairers: int, *, fails_while_stopped: bool) -> None:
    nodes, stock, rate, repair = 6, 2, 0.05, 2.0
    uniform, broken_nodes, short_time, elapsed = random.Random(repairers), 0, 0.0, 0.0
    for _ in range(150_000):
        in_use = nodes if broken_nodes <= stock else (nodes + stock - broken_nodes) * fails_while_stopped
        failing, repairing = in_use * rate, min(broken_nodes, repairers) / repair
        span = -math.log(1 - uniform.random()) / (failing + repairing)
        elapsed += span
        short_time += span * (broken_nodes > stock)
        broken_nodes += 1 if uniform.random() < failing / (failing + repairing) else -1

    shop = spares.repair_shop(nodes, stock, rate, repair, repairers, fails_while_stopped=fails_while_stopped)
    assert math.fsum(shop.broken_probabilities) == pytest.approx(1)
    assert 1 - shop.enough_nodes_probability == pytest.approx(short_time / elapsed, abs=0.01)


def test_fewer_repairers_leave_more_nodes_broken() -> None:
    one_repairer, unlimited_repairers = (spares.repair_shop(256, 2, 0.0005, 4.0, repairers) for repairers in (1, None))

    assert one_repairer.mean_broken > unlimited_repairers.mean_broken
    assert one_repairer.mean_waiting_for_a_repairer > unlimited_repairers.mean_waiting_for_a_repairer == 0


def test_repair_queue_model_stays_exact_for_an_always_short_fleet() -> None:
    shop = spares.repair_shop(20_000, 1, 0.0005, 4.0, fails_while_stopped=True)

    # The job runs in two states; the state without a spare has the weight 20,000 x 0.0005 x 4 = 40.
    assert shop.no_spare_probability == pytest.approx(40 / 41)
    assert shop.mean_broken == pytest.approx(40, abs=0.2)


def test_fleet_without_failures_is_never_short() -> None:
    shop = spares.repair_shop(8, 1, 0.0, 1.0)

    assert (shop.enough_nodes_probability, shop.mean_broken, shop.no_spare_probability) == (1, 0, 0)


@pytest.mark.parametrize("field", ["nodes", "failures_per_node_hour", "lead_seconds", "wait_seconds"])
def test_negative_figure_is_refused_by_its_name(field: str) -> None:
    with pytest.raises(WrongFigure) as error_info:
        spares.spare_cost(1, CASE.replace(**{field: -1}))

    assert error_info.value.field in (field, "lead_hours")
