"""Node time: every GPU-second has one use, and prices apply from their dates."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.domain.costs.interruptions import Span
from evenkeel.domain.costs.node_time import (
    GpuUse,
    HeldGpus,
    NodeSpan,
    PoolTime,
    WaitingGpus,
    node_time,
    pool_times,
)
from evenkeel.domain.costs.receipt import GpuPrice

BEGIN = datetime(2026, 11, 3, tzinfo=UTC)
HOUR = timedelta(hours=1)


def node_times(
    nodes: list[NodeSpan], held: list[HeldGpus], repairs: list[tuple[str, Span]], *prices: Any
) -> tuple[tuple[PoolTime, ...], PoolTime]:
    held_of = {name: [holding for holding in held if holding.node == name] for name in "ab"}
    out_of = {name: [span for node, span in repairs if node == name] for name in "ab"}
    return pool_times([node_time(nodes, held_of, out_of, *prices)])


def hours_between(start: float, end: float) -> Span:
    return Span(BEGIN + start * HOUR, BEGIN + end * HOUR)


def a_node(name: str = "a", start: float = 0, end: float = 10, *, gpus: int = 8, is_rented: bool = False) -> NodeSpan:
    return NodeSpan(name, "p5", "ml.p5.48xlarge", gpus, is_rented, hours_between(start, end))


def price_at(_kind: str, at: datetime, _pool: str) -> GpuPrice:
    return GpuPrice(usd_micros_per_gpu_hour=1_000_000 if at < BEGIN + 5 * HOUR else 3_000_000, origin="x")


SPANS = st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda ends: hours_between(min(ends) / 4, max(ends) / 4))
HELD_USES = (GpuUse.PRODUCTIVE, GpuUse.RESTORING, GpuUse.LOST, GpuUse.STARTING, GpuUse.UNKNOWN)
SHARES = st.sampled_from((None, 0.0, 0.25, 1.0))
HELD = st.builds(HeldGpus, st.sampled_from("ab"), st.sampled_from(HELD_USES), st.integers(0, 9), SPANS, SHARES)
WAITS = st.lists(st.builds(WaitingGpus, st.integers(0, 20), SPANS), max_size=4)
NODES = st.tuples(SPANS, SPANS).map(
    lambda spans: [NodeSpan(name, "p5", "t", 8, False, span) for name, span in zip("ab", spans, strict=True)]
)


REPAIRS = st.lists(st.tuples(st.sampled_from("ab"), SPANS), max_size=3)


@given(NODES, st.lists(HELD, max_size=8), REPAIRS, WAITS)
def test_kinds_of_use_sum_to_all_gpu_time(
    nodes: list[NodeSpan], held: list[HeldGpus], repairs: list[tuple[str, Span]], waits: list[WaitingGpus]
) -> None:
    pools, total = node_times(nodes, held, repairs, price_at, [BEGIN + 5 * HOUR], {("p5", False): waits})

    all_gpu_hours = sum(node.gpus * (node.span.end - node.span.start) / HOUR for node in nodes)
    assert sum(use.gpu_hours for use in total.uses) == pytest.approx(all_gpu_hours) == total.gpu_hours
    assert all(use.gpu_hours >= 0 for use in total.uses)
    for use in total.uses:
        assert use.gpu_hours == pytest.approx(sum(pool.time_of(use.use).gpu_hours for pool in pools))


def test_node_time_outside_attempts_is_repair_or_idle() -> None:
    held_gpus = [
        HeldGpus("a", GpuUse.PRODUCTIVE, 6, hours_between(2, 4)),
        HeldGpus("a", GpuUse.LOST, 6, hours_between(3, 4)),
    ]
    _, total = node_times([a_node()], held_gpus, [("a", hours_between(3, 6))], price_at)

    # From 3 to 4 both attempts hold 12 GPUs of 8: the second one gets the rest.
    assert {use.use: use.gpu_hours for use in total.uses if use.gpu_hours} == {
        GpuUse.PRODUCTIVE: 12,
        GpuUse.LOST: 2,
        GpuUse.IN_REPAIR: 16,
        GpuUse.NO_JOB: 50,
    }


def test_new_price_does_not_change_the_past() -> None:
    _, total = node_times([a_node()], [], [], price_at, [BEGIN + 5 * HOUR])

    assert total.time_of(GpuUse.NO_JOB).usd_micros == 8 * 5 * 1_000_000 + 8 * 5 * 3_000_000


def test_time_without_a_price_has_unknown_cost() -> None:
    _, total = node_times([a_node()], [], [], lambda *_: None)

    assert total.time_of(GpuUse.NO_JOB).usd_micros is None
    assert total.time_of(GpuUse.LOST).usd_micros == 0


def test_fleet_without_nodes_has_no_shares() -> None:
    pools, total = node_times([], [], [], price_at)

    assert (pools, total.gpu_hours, {use.share for use in total.uses}) == ((), 0, {None})


@given(NODES, st.lists(HELD, max_size=8), REPAIRS, WAITS)
def test_uses_equal_a_count_of_each_gpu(
    nodes: list[NodeSpan], held: list[HeldGpus], repairs: list[tuple[str, Span]], waits: list[WaitingGpus]
) -> None:
    _, total = node_times(nodes, held, repairs, price_at, [], {("p5", False): waits})

    assert {use.use: pytest.approx(use.gpu_hours) for use in total.uses} == counted_uses(nodes, held, repairs, waits)


def counted_uses(
    nodes: list[NodeSpan], held: list[HeldGpus], repairs: list[tuple[str, Span]], waits: list[WaitingGpus]
) -> dict[GpuUse, float]:
    """Return GPU-hours by use: look at each GPU in the middle of every quarter of an hour. All borders are quarters."""
    hours = dict.fromkeys(GpuUse, 0.0)
    for quarter in range(40):
        now = BEGIN + (quarter + 0.5) / 4 * HOUR
        free = 0
        for node in (node for node in nodes if node.span.start <= now < node.span.end):
            own = [entry for entry in held if entry.node == node.node and entry.span.start <= now < entry.span.end]
            gpus = node.gpus
            for entry in sorted(own, key=lambda entry: (entry.span.start, entry.use, entry.gpus)):
                used = min(gpus, entry.gpus)
                gpus -= used
                share = (entry.saving_share or 0.0) if entry.use is GpuUse.PRODUCTIVE else 0.0
                hours[GpuUse.CHECKPOINTING] += used * share / 4
                hours[entry.use] += used * (1 - share) / 4
            if any(name == node.node and span.start <= now < span.end for name, span in repairs):
                hours[GpuUse.IN_REPAIR] += gpus / 4
            else:
                free += gpus
        waiting = min(free, sum(wait.gpus for wait in waits if wait.span.start <= now < wait.span.end))
        hours[GpuUse.WAITING] += waiting / 4
        hours[GpuUse.NO_JOB] += (free - waiting) / 4
    return hours


def test_no_more_gpus_wait_than_jobs_need() -> None:
    waits = {("p5", False): [WaitingGpus(5, hours_between(1, 3)), WaitingGpus(99, hours_between(2, 3))]}

    _, total = node_times([a_node(end=4), a_node("b", end=4)], [], [], price_at, [], waits)

    # From 1 to 2 jobs wait for 5 of 16 free GPUs, from 2 to 3 for all.
    assert total.time_of(GpuUse.WAITING).gpu_hours == 5 + 16
    assert total.time_of(GpuUse.NO_JOB).gpu_hours == 16 * 4 - 21
    assert total.time_of(GpuUse.WAITING).usd_micros == 21_000_000


def test_wait_for_a_rented_pool_leaves_committed_nodes_idle() -> None:
    waits = {("p5", True): [WaitingGpus(8, hours_between(0, 10))]}

    _, total = node_times([a_node(), a_node("b", is_rented=True)], [], [], price_at, [], waits)

    assert (total.time_of(GpuUse.WAITING).gpu_hours, total.time_of(GpuUse.NO_JOB).gpu_hours) == (80, 80)


def test_unmeasured_saves_are_productive_and_counted() -> None:
    held_gpus = [
        HeldGpus("a", GpuUse.PRODUCTIVE, 8, hours_between(0, 2), None),
        HeldGpus("a", GpuUse.PRODUCTIVE, 8, hours_between(2, 4), 0.25),
    ]

    _, total = node_times([a_node(end=4)], held_gpus, [], price_at)

    assert total.time_of(GpuUse.CHECKPOINTING).gpu_hours == 4
    assert (total.time_of(GpuUse.PRODUCTIVE).gpu_hours, total.unmeasured_saves_gpu_hours) == (28, 16)


@given(NODES, st.lists(HELD, max_size=8), REPAIRS, WAITS, st.sampled_from((None, 1_000_000)))
def test_stored_uses_contain_every_use_with_its_cost(
    nodes: list[NodeSpan],
    held: list[HeldGpus],
    repairs: list[tuple[str, Span]],
    waits: list[WaitingGpus],
    micros: int | None,
) -> None:
    price = GpuPrice(usd_micros_per_gpu_hour=micros, origin="x") if micros else None
    held_of = {name: [holding for holding in held if holding.node == name] for name in "ab"}
    out_of = {name: [span for node, span in repairs if node == name] for name in "ab"}

    for pool in node_time(nodes, held_of, out_of, lambda *_: price, [], {("p5", False): waits}):
        read = type(pool).model_validate_json(pool.model_dump_json())
        times = read.use_times()
        assert sum(amount for amount, _ in times.values()) == sum(pool.gpu_microseconds.values())
        assert min(amount for amount, _ in times.values()) >= 0
        for amount, cost in times.values():
            expected = None if price is None and amount else pytest.approx(amount / 3600, abs=20)
            assert cost == expected or (price is None and cost is None)
