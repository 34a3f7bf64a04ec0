from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.domain.capacity.network_topology import NetworkLevel
from evenkeel.domain.capacity.start_estimates import (
    DomainDemand,
    WaitingUse,
    after_domains,
    after_whole_nodes,
    estimate_start,
)


def test_fitting_job_starts_at_once() -> None:
    start_estimate = estimate_start(8, [], [], 8, [100.0, 200.0, 300.0])

    assert (
        start_estimate.earliest_seconds,
        start_estimate.seconds,
        start_estimate.latest_seconds,
        start_estimate.samples,
    ) == (0.0, 0.0, 0.0, 3)


def test_start_estimate_ranges_from_short_to_long_past_runs() -> None:
    runs = [100.0, 200.0, 300.0, 400.0, 500.0, 600.0, 700.0, 800.0, 900.0, 1000.0]

    start_estimate = estimate_start(0, [(8, 50.0)], [], 8, runs)

    assert (start_estimate.earliest_seconds, start_estimate.seconds, start_estimate.latest_seconds) == (
        150.0,
        550.0,
        950.0,
    )


def test_jobs_ahead_run_first() -> None:
    assert estimate_start(0, [(8, 0.0)], [8], 8, [100.0]).seconds == 200.0


def test_job_too_large_for_the_pool_has_no_expected_start() -> None:
    start_estimate = estimate_start(4, [], [], 8, [100.0])

    assert (start_estimate.seconds, start_estimate.earliest_seconds, start_estimate.latest_seconds) == (
        None,
        None,
        None,
    )


# ---------------------------------------------------------------- a required network level

LAYER_3 = NetworkLevel.LAYER_3


def a_gang(nodes: int, level: NetworkLevel | None = LAYER_3) -> WaitingUse:
    return WaitingUse(8 * nodes, 3600, nodes, level)


@pytest.mark.parametrize(
    ("why", "queue", "domains", "expected"),
    [
        ("one domain has enough empty nodes", [a_gang(2)], [[0, 0], [0, 500]], (0,)),
        ("two domains have one empty node each", [a_gang(2)], [[0, 500], [0, 300]], (300,)),
        ("no domain is large enough", [a_gang(3)], [[0, 0], [0, 0]], (inf,)),
        ("the first gang takes the first domain", [a_gang(2), a_gang(2)], [[0, 0], [400, 400]], (0, 400)),
        ("both gangs share a domain", [a_gang(1), a_gang(2)], [[0, 700, 900]], (0, 900)),
        ("the second gang waits for the end of the first", [a_gang(2), a_gang(2)], [[0, 100]], (100, 3700)),
        ("a gang without a level may be anywhere", [a_gang(2, None)], [[0, 500], [0, 300]], (0,)),
    ],
)
def test_gang_with_required_level_waits_for_one_domain(
    why: str, queue: list[WaitingUse], domains: list[list[float]], expected: tuple[float, ...]
) -> None:
    assert after_domains([0.0] * len(queue), queue, {LAYER_3: domains}) == expected, why


def test_unknown_domains_can_hold_no_gang_with_required_level() -> None:
    assert after_domains([5.0, 5.0], [a_gang(2), a_gang(2, None)], {}) == (inf, 5.0)


@given(
    st.lists(st.lists(st.floats(0, 1e5), min_size=1, max_size=6), min_size=1, max_size=4),
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
)
def test_required_level_never_starts_a_gang_earlier(domains: list[list[float]], sizes: list[int]) -> None:
    queue = [a_gang(nodes) for nodes in sizes]
    everywhere = [seconds for domain in domains for seconds in domain]
    anywhere = after_whole_nodes([0.0] * len(queue), queue, everywhere)

    starts = after_domains(anywhere, queue, {LAYER_3: domains})

    assert all(start >= earliest for start, earliest in zip(starts, anywhere, strict=True))
    largest = max(map(len, domains))
    assert [start < inf for start in starts] == [nodes <= largest for nodes in sizes]


def test_start_estimate_counts_the_nodes_of_one_domain() -> None:
    split = DomainDemand(LAYER_3, 2, [[None, 900.0], [None, 800.0]])
    together = DomainDemand(LAYER_3, 2, [[None, None], [900.0, 800.0]])

    assert estimate_start(16, [], [], 16, [1000.0], split).seconds == 100.0
    assert estimate_start(16, [], [], 16, [1000.0], together).seconds == 0.0
    assert estimate_start(16, [], [], 16, [1000.0], DomainDemand(LAYER_3, 2, [[None], [None]])).seconds is None
