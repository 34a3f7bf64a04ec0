"""Node time: every GPU-second has one use, and prices apply from their dates."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.domain.costs.interruptions import Span
from evenkeel.domain.costs.node_time import HeldGpus, NodeSpan, NodeUse, PoolTime, node_time, pool_times
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
HELD = st.builds(HeldGpus, st.sampled_from("ab"), st.sampled_from(list(NodeUse)[:4]), st.integers(0, 9), SPANS)
NODES = st.tuples(SPANS, SPANS).map(
    lambda spans: [NodeSpan(name, "p5", "t", 8, False, span) for name, span in zip("ab", spans, strict=True)]
)


@given(NODES, st.lists(HELD, max_size=8), st.lists(st.tuples(st.sampled_from("ab"), SPANS), max_size=3))
def test_kinds_of_use_sum_to_all_gpu_time(
    nodes: list[NodeSpan], held: list[HeldGpus], repairs: list[tuple[str, Span]]
) -> None:
    pools, total = node_times(nodes, held, repairs, price_at, [BEGIN + 5 * HOUR])

    all_gpu_hours = sum(node.gpus * (node.span.end - node.span.start) / HOUR for node in nodes)
    assert sum(use.gpu_hours for use in total.uses) == pytest.approx(all_gpu_hours) == total.gpu_hours
    assert all(use.gpu_hours >= 0 for use in total.uses)
    for use in total.uses:
        assert use.gpu_hours == pytest.approx(sum(pool.time_of(use.use).gpu_hours for pool in pools))


def test_node_time_outside_attempts_is_repair_or_idle() -> None:
    held_gpus = [
        HeldGpus("a", NodeUse.PRODUCTIVE, 6, hours_between(2, 4)),
        HeldGpus("a", NodeUse.LOST, 6, hours_between(3, 4)),
    ]
    _, total = node_times([a_node()], held_gpus, [("a", hours_between(3, 6))], price_at)

    # From 3 to 4 both attempts hold 12 GPUs of 8: the second one gets the rest.
    assert {use.use: use.gpu_hours for use in total.uses if use.gpu_hours} == {
        NodeUse.PRODUCTIVE: 12,
        NodeUse.LOST: 2,
        NodeUse.IN_REPAIR: 16,
        NodeUse.NO_JOB: 50,
    }


def test_new_price_does_not_change_the_past() -> None:
    _, total = node_times([a_node()], [], [], price_at, [BEGIN + 5 * HOUR])

    assert total.time_of(NodeUse.NO_JOB).usd_micros == 8 * 5 * 1_000_000 + 8 * 5 * 3_000_000


def test_time_without_a_price_has_unknown_cost() -> None:
    _, total = node_times([a_node()], [], [], lambda *_: None)

    assert total.time_of(NodeUse.NO_JOB).usd_micros is None
    assert total.time_of(NodeUse.LOST).usd_micros == 0


def test_fleet_without_nodes_has_no_shares() -> None:
    pools, total = node_times([], [], [], price_at)

    assert (pools, total.gpu_hours, {use.share for use in total.uses}) == ((), 0, {None})
