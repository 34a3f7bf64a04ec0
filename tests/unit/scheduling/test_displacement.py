"""Displacement: jobs move to rented nodes, so that another job starts on committed nodes."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.domain.decisions import OMITTED, packed
from evenkeel.domain.economics import money
from evenkeel.domain.renting.displacement import (
    MAX_RECORDED_JOBS,
    CommittedNode,
    DisplacementAction,
    DisplacementDecision,
    DisplacementFacts,
    MovableJob,
    decide_displacement,
)
from tests.unit.scheduling.builders import NOW

DOLLAR = money.MICROS_PER_USD


def a_movable(name: str, *nodes: str, accelerators: int = 1, **changes: Any) -> MovableJob:
    facts: dict[str, Any] = {
        "job_id": name,
        "team": "red",
        "nodes": dict.fromkeys(nodes, accelerators),
        "micros_per_hour_of_delay": DOLLAR,
        "left_seconds": (3600.0,),
        "save_seconds": 60,
        "standstill_seconds": 360,
        "pool": "spot",
        "rent_micros_per_hour": DOLLAR // 2,
    }
    return MovableJob.model_validate(facts | changes)


def decide_displacement_of(
    *movable: MovableJob, free: dict[str, int] | None = None, **changes: Any
) -> DisplacementDecision:
    committed = tuple(CommittedNode(name=name, free=count) for name, count in (free or {"n1": 6}).items())
    facts: dict[str, Any] = {
        "job_id": "gang",
        "nodes": 1,
        "accelerators_per_node": 8,
        "micros_per_hour_of_delay": DOLLAR,
        "start_seconds": 120,
        "wait_seconds": 7200,
        "other_option": "on-demand",
        "other_parts": 30 * money.COST_PARTS_PER_USD,
        "committed": committed,
        "movable": movable,
        "team_left_micros": {"red": 10 * DOLLAR},
        "fleet_left_micros": 10 * DOLLAR,
        "now": NOW,
    }
    return decide_displacement(DisplacementFacts.model_validate(facts | changes))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_decision_among_many_jobs_replays_from_its_own_facts(data: st.DataObject) -> None:
    count = data.draw(st.integers(MAX_RECORDED_JOBS - 2, MAX_RECORDED_JOBS + 20))
    names = [f"n{number % 60}" for number in range(count)]
    costs = data.draw(st.lists(st.integers(1, 5), min_size=count, max_size=count))
    movable = [
        a_movable(f"job-{number}", *{name, f"n{cost}"}, accelerators=4, rent_micros_per_hour=cost * 1000)
        for number, (name, cost) in enumerate(zip(names, costs, strict=True))
    ]

    decision = decide_displacement_of(*movable, free=dict.fromkeys(names, 0), nodes=data.draw(st.integers(1, 8)))

    again = decide_displacement(decision.facts)
    assert (again.action, again.reason, again.victims) == (decision.action, decision.reason, decision.victims)


def test_displacement_among_thousands_of_jobs_records_its_facts() -> None:
    left = tuple(1000.1 * number for number in range(200))
    nodes = [f"ip-{number}" for number in range(2000)]
    movable = [a_movable(f"job-{node}", node, accelerators=8, left_seconds=left) for node in nodes]
    movable = [
        job.replace(left_seconds=tuple(seconds + number / 7 for seconds in left)) for number, job in enumerate(movable)
    ]

    decision = decide_displacement_of(
        *movable,
        free=dict.fromkeys(nodes, 0),
        nodes=64,
        other_parts=10**15,
        fleet_left_micros=10**12,
        team_left_micros={"red": 10**12},
    )

    assert decision.action is DisplacementAction.DISPLACE
    assert OMITTED not in packed(decision.facts.to_json())


def test_jobs_are_displaced_if_cheaper_than_renting_for_gang() -> None:
    decision = decide_displacement_of(a_movable("a", "n1"), a_movable("b", "n1"))

    assert (decision.action, decision.victims) == (DisplacementAction.DISPLACE, ("a", "b"))
    # Two moves: $0.10 of standstill each, and $0.50 an hour for 1 h and the 300 s of its start; the gang waits 120 s.
    assert decision.parts == round((2 * (0.1 + 0.5 * 3900 / 3600) + 120 / 3600) * money.COST_PARTS_PER_USD)
    assert decision.alternatives[0].option == "on-demand"


def test_no_job_is_displaced_if_renting_for_gang_is_cheaper() -> None:
    decision = decide_displacement_of(a_movable("a", "n1"), a_movable("b", "n1"), other_parts=money.COST_PARTS_PER_USD)

    assert (decision.action, decision.victims) == (DisplacementAction.KEEP, ())
    assert decision.reason == "Moving 2 jobs to rented nodes would cost $1.32, and on-demand costs $1.00."


def test_displacement_frees_the_cheapest_node() -> None:
    movable = (a_movable("dear", "n1", accelerators=2, micros_per_hour_of_delay=20 * DOLLAR), a_movable("cheap", "n2"))

    assert decide_displacement_of(*movable, free={"n1": 6, "n2": 7}).victims == ("cheap",)


def test_no_job_is_displaced_unnecessarily() -> None:
    movable = (a_movable("small", "n1"), a_movable("large", "n1", accelerators=4, rent_micros_per_hour=2 * DOLLAR))

    assert decide_displacement_of(*movable, free={"n1": 4}).victims == ("large",)


def test_job_on_two_nodes_frees_both_and_counts_once() -> None:
    decision = decide_displacement_of(a_movable("wide", "n1", "n2", accelerators=8), free={"n1": 0, "n2": 0}, nodes=2)

    assert decision.victims == ("wide",)
    assert decision.parts == round((0.1 + 0.5 * 3900 / 3600 + 120 / 3600) * money.COST_PARTS_PER_USD)


def test_no_job_is_displaced_if_too_few_nodes_become_free() -> None:
    decision = decide_displacement_of(a_movable("a", "n1"), free={"n1": 6})

    assert (decision.action, decision.reason) == (
        DisplacementAction.KEEP,
        "Too few nodes would become free if all movable jobs moved.",
    )


def test_no_job_is_displaced_above_the_spending_caps() -> None:
    movable = (a_movable("a", "n1"), a_movable("b", "n1"))

    assert decide_displacement_of(*movable, team_left_micros={"red": DOLLAR - 1}).action is DisplacementAction.KEEP
    assert decide_displacement_of(*movable, fleet_left_micros=DOLLAR - 1).action is DisplacementAction.KEEP
    assert decide_displacement_of(*movable, team_left_micros={"red": DOLLAR}, fleet_left_micros=DOLLAR).victims == (
        "a",
        "b",
    )


def test_displaced_job_with_cheap_delay_waits_instead_of_renting() -> None:
    cheap = a_movable("a", "n1", accelerators=2, micros_per_hour_of_delay=DOLLAR // 100, rent_micros_per_hour=DOLLAR)

    # Its wait of two hours costs $0.02, its rent for the same time $1.
    assert decide_displacement_of(cheap).parts == round((0.02 + 0.001 + 120 / 3600) * money.COST_PARTS_PER_USD)


sizes = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 8), st.integers(0, 40)), max_size=12)


@given(sizes, st.integers(1, 3), st.integers(1, 8), st.integers(0, 100))
def test_displaced_jobs_free_enough_nodes_at_lower_cost(
    jobs: list[tuple[int, int, int]], nodes: int, accelerators: int, other: int
) -> None:
    used = dict.fromkeys(("n0", "n1", "n2", "n3"), 0)
    movable = []
    for number, (node, count, price) in enumerate(jobs):
        name = f"n{node}"
        if used[name] + count <= 8:
            used[name] += count
            price_of_delay = price * DOLLAR
            movable.append(
                a_movable(f"job-{number}", name, accelerators=count, micros_per_hour_of_delay=price_of_delay)
            )
    free = {name: 8 - count for name, count in used.items()}

    decision = decide_displacement_of(
        *movable,
        free=free,
        nodes=nodes,
        accelerators_per_node=accelerators,
        other_parts=other * money.COST_PARTS_PER_USD,
    )

    assert decide_displacement(decision.facts) == decision
    if decision.action is DisplacementAction.DISPLACE:
        assert decision.parts < other * money.COST_PARTS_PER_USD
        for job in movable:
            if job.job_id in decision.victims:
                for name, count in job.nodes.items():
                    free[name] += count
        assert sum(count >= accelerators for count in free.values()) >= nodes


def test_rentals_of_displaced_jobs_share_pool_limit_and_budget() -> None:
    movable = [a_movable(name, "n1", rented_nodes=2, rent_parts=10) for name in ("a", "b")]

    pools = [decide_displacement_of(*movable, pool_nodes_left={"spot": left}) for left in (3, 4)]
    budgets = [decide_displacement_of(*movable, team_budget_left_parts={"red": left}) for left in (19, 20)]

    expected = [DisplacementAction.KEEP, DisplacementAction.DISPLACE]
    assert [decision.action for decision in pools] == [decision.action for decision in budgets] == expected
    assert pools[0].reason == "The moved jobs would need more nodes than the limit of spot leaves."
    assert budgets[0].reason == "The rents of the moved jobs would exceed the budget of team red."
