"""Averages of the measured utilization of a node and of a group."""

import math
from datetime import UTC, datetime, timedelta
from itertools import permutations

import pytest

from evenkeel.domain.capacity.utilization import GroupUtilization, Measure, NodeReading, NodeUtilization, Sample

LAUNCHED = datetime(2026, 11, 3, 10, 0, tzinfo=UTC)


def minute_samples(*percent: float, after: int = 0) -> list[Sample]:
    """Return one sample for each minute; the first is `after` minutes after the launch."""
    return [Sample(LAUNCHED + timedelta(minutes=after + index), value) for index, value in enumerate(percent)]


def test_node_average_covers_every_sample() -> None:
    node_utilization = NodeUtilization.of({Measure.GPU: minute_samples(10, 20, 90)}, LAUNCHED)

    assert node_utilization.percent == {Measure.GPU: 40}
    assert node_utilization.measured_at == LAUNCHED + timedelta(minutes=3)
    assert node_utilization.invalid == ()


def test_measure_without_samples_is_missing() -> None:
    node_utilization = NodeUtilization.of({Measure.CPU: minute_samples(0.0), Measure.GPU: []}, LAUNCHED)

    assert node_utilization.percent == {Measure.CPU: 0}


def test_age_of_readings_is_that_of_the_oldest_measure() -> None:
    node_utilization = NodeUtilization.of(
        {Measure.CPU: minute_samples(1, 1, 1, 1), Measure.GPU: minute_samples(1)}, LAUNCHED
    )

    assert node_utilization.measured_at == LAUNCHED + timedelta(minutes=1)


def test_samples_from_before_the_launch_do_not_count() -> None:
    node_utilization = NodeUtilization.of(
        {Measure.GPU: minute_samples(100, 100, 0, after=-2), Measure.CPU: minute_samples(5, after=-1)}, LAUNCHED
    )

    assert node_utilization.percent == {Measure.GPU: 0}


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.1, 105.1, 800])
def test_measure_with_a_value_outside_0_to_100_is_unknown(value: float) -> None:
    node_utilization = NodeUtilization.of(
        {Measure.GPU: minute_samples(50, value), Measure.CPU: minute_samples(50)}, LAUNCHED
    )

    assert node_utilization.percent == {Measure.CPU: 50}
    assert node_utilization.invalid == (Measure.GPU,)


def test_rounding_of_an_agent_above_100_counts_as_100() -> None:
    assert NodeUtilization.of({Measure.CPU: minute_samples(100.4)}, LAUNCHED).percent == {Measure.CPU: 100}


def test_node_without_samples_has_no_age_of_readings() -> None:
    assert NodeUtilization.of({}, LAUNCHED) == NodeUtilization()


def test_group_average_is_weighted_by_the_amounts() -> None:
    group_utilization = GroupUtilization.of([NodeReading("i-a", 8, 90), NodeReading("i-b", 1, 0)])

    assert (
        group_utilization.average,
        group_utilization.lowest,
        group_utilization.lowest_node,
        group_utilization.highest,
    ) == (80, 0, "i-b", 90)


def test_unmeasured_node_is_unknown_and_not_idle() -> None:
    group_utilization = GroupUtilization.of([NodeReading("i-a", 8, 90), NodeReading("i-b", 8, None)])

    assert (group_utilization.average, group_utilization.lowest) == (90, 90)
    assert (group_utilization.measured_nodes, group_utilization.unknown_nodes) == (1, 1)


def test_node_without_gpus_counts_in_no_gpu_figure() -> None:
    group_utilization = GroupUtilization.of([NodeReading("i-a", 8, 90), NodeReading("i-cpu", 0, None)])

    assert (group_utilization.measured_nodes, group_utilization.unknown_nodes) == (1, 0)


def test_node_of_unknown_size_counts_only_in_the_extremes() -> None:
    group_utilization = GroupUtilization.of([NodeReading("i-a", 8, 90), NodeReading("i-b", None, 2)])

    assert (group_utilization.average, group_utilization.lowest, group_utilization.measured_nodes) == (90, 2, 2)
    assert GroupUtilization.of([NodeReading("i-b", None, 2)]).average is None


def test_group_without_readings_has_no_figures() -> None:
    group_utilization = GroupUtilization.of([NodeReading("i-a", 8, None)])

    assert (
        group_utilization.average,
        group_utilization.lowest,
        group_utilization.lowest_node,
        group_utilization.highest,
    ) == (None, None, None, None)
    assert GroupUtilization.of([]).unknown_nodes == 0


def test_order_of_nodes_does_not_change_the_figures() -> None:
    readings = [
        NodeReading("i-c", 8, 5),
        NodeReading("i-a", 8, 5),
        NodeReading("i-b", 1, 70),
        NodeReading("i-d", 8, None),
    ]

    assert len({GroupUtilization.of(permutation).model_dump_json() for permutation in permutations(readings)}) == 1
