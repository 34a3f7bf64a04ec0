"""Elastic jobs grow if idle nodes justify it, shrink before jobs are preempted, and do not oscillate."""

import itertools
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from evenkeel.domain.elastic.grow_shrink import (
    GrowFacts,
    IdleNodes,
    NodeLossAction,
    NodeLossFacts,
    decide_after_node_loss,
    growth_backoff_until,
    plan_growth,
    plan_shrink,
)
from evenkeel.domain.elastic.sizes import ElasticJob, ElasticPolicy, Sizes
from evenkeel.domain.elastic.throughput import SizeThroughput, Throughput, known_throughput
from tests.unit.scheduling.pool_builders import NOW, at

EIGHTS = Sizes(least=4, most=32, step=4)


def a_job(number: int = 1, **changes: Any) -> ElasticJob:
    facts: dict[str, Any] = {
        "job_id": f"job-{number}",
        "nodes": 8,
        "sizes": EIGHTS,
        "since_checkpoint_seconds": 300,
        "started_at": at(-7200),
    }
    return ElasticJob.model_validate({**facts, **changes})


def grow_facts(*jobs: ElasticJob, nodes: int = 8, idle: float = 10**6, **changes: Any) -> GrowFacts:
    facts = {"jobs": jobs, "idle": IdleNodes(nodes=nodes, idle_node_seconds=idle), "now": NOW}
    return GrowFacts.model_validate({**facts, **changes})


# ---------------------------------------------------------------- sizes


@pytest.mark.parametrize(
    ("sizes", "legal"),
    [
        (Sizes(least=2, most=5), (2, 3, 4, 5)),
        (Sizes(least=2, most=9, step=3), (2, 5, 8)),
        (Sizes(least=2, most=9, discrete=(16, 8, 4, 1)), (4, 8)),
    ],
)
def test_sizes_follow_a_step_or_a_list(sizes: Sizes, legal: tuple[int, ...]) -> None:
    assert sizes.legal == legal
    assert [sizes.largest_up_to(n) for n in (legal[0] - 1, legal[0], 99)] == [None, legal[0], legal[-1]]


@pytest.mark.parametrize(
    "wrong",
    [
        {"least": 5, "most": 4},
        {"least": 1, "most": 4, "step": 1, "discrete": (2,)},
        {"least": 3, "most": 4, "discrete": (8,)},
    ],
)
def test_invalid_sizes_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Sizes.model_validate(wrong)


# ---------------------------------------------------------------- growing


def test_job_grows_when_idle_cost_reaches_resize_cost() -> None:
    just = 150 * 16

    assert plan_growth(grow_facts(a_job(), idle=just)).resizes[0].to_nodes == 16
    assert plan_growth(grow_facts(a_job(), idle=just - 1)).resizes == ()


def test_idle_cost_counts_only_nodes_that_the_job_would_use() -> None:
    # 10 are idle and 8 of them fit: eight tenths of the idle time count.
    assert plan_growth(grow_facts(a_job(), nodes=10, idle=150 * 16 / 0.8 - 1)).resizes == ()
    assert plan_growth(grow_facts(a_job(), nodes=10, idle=150 * 16 / 0.8 + 1)).resizes[0].to_nodes == 16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sizes": None}, "not elastic"),
        ({"is_resizing": True}, "already changing size"),
        ({"nodes": 32}, "No allowed size above 32"),
        ({"resized_at": at(-599)}, "changed size recently"),
        ({"growth_failed_at": at(-599), "failed_growths": 1}, "no retry before 10:15:01"),
        ({"growth_failed_at": at(-2399), "failed_growths": 3}, "no retry before 10:15:01"),
    ],
)
def test_growth_is_refused_with_a_reason(change: dict[str, Any], message: str) -> None:
    decision = plan_growth(grow_facts(a_job(**change)))

    assert decision.resizes == ()
    assert message in decision.alternatives[0].why_not


def test_no_job_grows_while_another_waits() -> None:
    assert plan_growth(grow_facts(a_job(), is_contended=True)).resizes == ()


def test_scaling_timeout_also_delays_cheap_resizes() -> None:
    policy = ElasticPolicy(scaling_timeout_seconds=600)

    assert plan_growth(grow_facts(a_job(resize_seconds=1), idle=8 * 599, policy=policy)).resizes == ()
    assert plan_growth(grow_facts(a_job(resize_seconds=1), idle=8 * 600, policy=policy)).resizes != ()


def test_only_one_job_grows_at_once_highest_priority_first() -> None:
    decision = plan_growth(grow_facts(a_job(1), a_job(2, priority=5), a_job(3)))

    assert [resize.job_id for resize in decision.resizes] == ["job-2"]


def throughput_at(points: dict[int, float], *, is_measured: bool = False) -> Throughput:
    return Throughput(points=points_of(points), is_measured=is_measured)


def points_of(points: dict[int, float]) -> tuple[SizeThroughput, ...]:
    return tuple(SizeThroughput(nodes=nodes, per_second=speed) for nodes, speed in points.items())


MEASURED = {1: 2000.0, 8: 14_000.0}
"""Tokens per second of a fine-tuning on one node and on eight."""


@pytest.mark.parametrize(
    ("points", "estimates"),
    [
        (MEASURED, {1: 2000, 2: 2000 + 12_000 / 7, 8: 14_000, 15: 26_000}),
        ({2: 3000.0, 4: 5000.0}, {1: 1500, 2: 3000, 3: 4000, 5: 6000}),
        ({1: 100.0, 2: 60.0}, {2: 60, 3: 20, 4: 0}),
    ],
)
def test_throughput_is_estimated_between_known_sizes(points: dict[int, float], estimates: dict[int, float]) -> None:
    known = throughput_at(points)

    assert {nodes: known.per_second(nodes) for nodes in estimates} == pytest.approx(estimates)


def test_growth_costs_more_idle_time_if_throughput_scales_badly() -> None:
    job = a_job(nodes=1, sizes=Sizes(least=1, most=8), throughput=throughput_at(MEASURED))
    # 7 idle nodes give the work of 6. The resize costs 150 s of the work of 7.
    just = 150 * 7 / (6 / 7)

    decision = plan_growth(grow_facts(job, nodes=7, idle=just + 0.1))

    assert [resize.to_nodes for resize in decision.resizes] == [8]
    assert decision.reason.endswith("from 2000 to 14000 per second, by the values that its submission declares.")
    assert plan_growth(grow_facts(job, nodes=7, idle=just - 0.1)).resizes == ()
    assert plan_growth(grow_facts(job.replace(throughput=None), nodes=7, idle=just - 0.1)).resizes != ()


def test_job_grows_only_to_the_size_of_most_throughput() -> None:
    sizes = Sizes(least=1, most=8)
    best_at_four = a_job(nodes=1, sizes=sizes, throughput=throughput_at({1: 10.0, 4: 40.0, 8: 30.0}))
    flat = a_job(nodes=4, sizes=sizes, throughput=throughput_at({4: 40.0, 8: 40.0}, is_measured=True))

    assert [resize.to_nodes for resize in plan_growth(grow_facts(best_at_four, nodes=7)).resizes] == [4]
    assert plan_growth(grow_facts(flat, nodes=4)).alternatives[0].why_not == (
        "The job's throughput does not rise above 4 nodes."
    )


def test_job_that_gains_most_throughput_grows_first() -> None:
    sizes = Sizes(least=1, most=8)
    more_nodes = a_job(1, nodes=1, sizes=sizes, throughput=throughput_at({1: 10.0, 8: 20.0}))
    more_work = a_job(2, nodes=1, sizes=Sizes(least=1, most=4), throughput=throughput_at({1: 10.0, 4: 36.0}))

    assert [resize.job_id for resize in plan_growth(grow_facts(more_nodes, more_work, nodes=7)).resizes] == ["job-2"]


def test_measured_throughput_is_never_mixed_with_declared() -> None:
    declared, once, twice = points_of(MEASURED), points_of({4: 1.5}), points_of({4: 1.5, 2: 1.0})

    assert known_throughput((), once) is None
    assert known_throughput(declared, once) == throughput_at(MEASURED)
    assert known_throughput(declared, twice) == throughput_at({2: 1.0, 4: 1.5}, is_measured=True)


def test_growth_backoff_doubles_up_to_a_limit() -> None:
    pauses = [
        (growth_backoff_until(a_job(growth_failed_at=NOW, failed_growths=n), ElasticPolicy()) - NOW).total_seconds()
        for n in (1, 2, 3, 20)
    ]

    assert pauses == [600, 1200, 2400, 21_600]


# ---------------------------------------------------------------- shrinking


def test_job_with_least_lost_work_shrinks_just_enough() -> None:
    small, large = a_job(1, nodes=8), a_job(2, nodes=16)

    decision = plan_shrink([large, small], 3, priority=1)

    assert [(resize.job_id, resize.from_nodes, resize.to_nodes) for resize in decision.resizes] == [("job-1", 8, 4)]


def test_shrinking_is_preferred_to_preemption_despite_more_loss() -> None:
    cheap = a_job(1, sizes=None, nodes=4, since_checkpoint_seconds=0, resize_seconds=0)
    large = a_job(2, nodes=32)

    assert [resize.job_id for resize in plan_shrink([cheap, large], 4, priority=1).resizes] == ["job-2"]


def test_job_with_least_lost_work_is_preempted_for_the_rest() -> None:
    elastic, dear, cheap = (
        a_job(1, nodes=8),
        a_job(2, sizes=None, since_checkpoint_seconds=3000),
        a_job(3, sizes=None, since_checkpoint_seconds=30),
    )

    decision = plan_shrink([elastic, dear, cheap], 10, priority=1)

    assert [(resize.job_id, resize.to_nodes) for resize in decision.resizes] == [("job-3", 0), ("job-1", 4)]


def test_no_job_shrinks_if_that_frees_too_few_nodes() -> None:
    decision = plan_shrink([a_job(1), a_job(2, priority=9)], 9, priority=5)

    assert (decision.resizes, decision.short) == ((), 1)


def test_job_without_checkpoint_reports_is_charged_the_median() -> None:
    unreported = a_job(1, since_checkpoint_seconds=None, sizes=None)
    good, bad = a_job(2, since_checkpoint_seconds=100, sizes=None), a_job(3, since_checkpoint_seconds=900, sizes=None)

    assert plan_shrink([unreported, good, bad], 8, priority=1).resizes[0].job_id == "job-2"
    assert plan_shrink([unreported, bad, bad.replace(job_id="job-4")], 8, priority=1).resizes[0].job_id == "job-1"


members = st.builds(
    lambda number, priority, nodes, sizes, since, saves: a_job(
        number, priority=priority, nodes=nodes, sizes=sizes, since_checkpoint_seconds=since, can_save=saves
    ),
    st.integers(0, 999),
    st.integers(0, 3),
    st.integers(1, 32),
    st.sampled_from([None, EIGHTS, Sizes(least=1, most=32), Sizes(least=2, most=32, discrete=(2, 8, 32))]),
    st.one_of(st.none(), st.integers(0, 3600)),
    st.booleans(),
)
fleets = st.lists(members, max_size=7, unique_by=lambda job: job.job_id)


@settings(max_examples=200, deadline=None)
@given(fleets, st.integers(1, 40), st.integers(0, 4))
def test_lower_priorities_shrink_first_at_the_least_loss(fleet, nodes, priority) -> None:  # type: ignore[no-untyped-def]
    decision = plan_shrink(fleet, nodes, priority)

    by_id = {job.job_id: job for job in fleet}
    freed = 0
    for resize in decision.resizes:
        job = by_id[resize.job_id]
        assert job.priority < priority
        assert resize.to_nodes == 0 or (
            job.sizes and resize.to_nodes in job.sizes.legal and resize.to_nodes < job.nodes
        )
        freed += resize.from_nodes - resize.to_nodes
    lower = [job for job in fleet if job.priority < priority]
    gives = {
        job.job_id: job.nodes - job.sizes.legal[0] for job in lower if job.sizes and job.nodes > job.sizes.legal[0]
    }
    if sum(job.nodes for job in lower) < nodes:
        assert (decision.resizes, decision.short) == ((), nodes - sum(job.nodes for job in lower))
        return
    assert freed >= nodes
    ended = [resize for resize in decision.resizes if not resize.to_nodes]
    assert bool(ended) == (sum(gives.values()) < nodes)
    if not ended:
        lost = {
            job.job_id: next(r for r in plan_shrink([job], 1, priority).resizes).lost_gpu_seconds
            for job in lower
            if job.job_id in gives and job.since_checkpoint_seconds is not None
        }
        if len(lost) == len(gives):
            least = min(
                sum(lost[name] for name in chosen)
                for count in range(1, len(gives) + 1)
                for chosen in itertools.combinations(gives, count)
                if sum(gives[name] for name in chosen) >= nodes
            )
            assert math.isclose(sum(resize.lost_gpu_seconds for resize in decision.resizes), least)
    # A job is resized only if that frees enough nodes.
    for resize in decision.resizes:
        assert freed - (resize.from_nodes - resize.to_nodes) < nodes


@given(st.integers(1, 120))
def test_no_more_jobs_shrink_than_needed(nodes: int) -> None:
    fleet = [a_job(number, nodes=5 + number, resize_seconds=10 * (1 + number % 4)) for number in range(15)]

    resizes = plan_shrink(fleet, nodes, priority=1).resizes

    freed = sum(resize.from_nodes - resize.to_nodes for resize in resizes)
    assert freed >= nodes
    assert all(resize.to_nodes >= EIGHTS.least for resize in resizes)
    assert all(freed - (resize.from_nodes - resize.to_nodes) < nodes for resize in resizes)


@settings(max_examples=40, deadline=None)
@given(fleets, st.integers(0, 40))
def test_resizes_end_without_outside_changes(fleet, idle) -> None:  # type: ignore[no-untyped-def]
    """While no job arrives or ends, sizes only rise, and finally no size changes."""
    jobs, seconds, stood = list(fleet), 0, 0.0
    states: set[tuple[tuple[str, int], ...]] = set()
    for _ in range(300):
        seconds += 60
        stood += 60 * idle
        facts = GrowFacts(jobs=tuple(jobs), idle=IdleNodes(nodes=idle, idle_node_seconds=stood), now=at(seconds))
        for resize in plan_growth(facts).resizes:
            state = tuple((job.job_id, job.nodes) for job in jobs)
            assert state not in states
            states.add(state)
            assert resize.from_nodes < resize.to_nodes <= resize.from_nodes + idle
            idle -= resize.to_nodes - resize.from_nodes
            stood = 0.0
            jobs = [
                job.replace(nodes=resize.to_nodes, resized_at=at(seconds)) if job.job_id == resize.job_id else job
                for job in jobs
            ]
    last = plan_growth(
        GrowFacts(jobs=tuple(jobs), idle=IdleNodes(nodes=idle, idle_node_seconds=10**12), now=at(seconds + 10**6))
    )
    assert last.resizes == ()
    assert len(states) <= 40


# ---------------------------------------------------------------- faults


@pytest.mark.parametrize(
    ("change", "action", "nodes"),
    [
        ({"spares": 1}, NodeLossAction.REPLACE, 8),
        ({}, NodeLossAction.WAIT, 0),
        ({"now": at(120)}, NodeLossAction.SHRINK, 4),
        ({"now": at(120), "lost_nodes": 2, "spares": 1}, NodeLossAction.SHRINK, 4),
        ({"now": at(120), "lost_nodes": 5}, NodeLossAction.QUEUE, 0),
        ({"now": at(120), "job": a_job(sizes=None)}, NodeLossAction.QUEUE, 0),
    ],
)
def test_interrupted_job_waits_for_a_spare_then_shrinks(
    change: dict[str, Any], action: NodeLossAction, nodes: int
) -> None:
    facts = {"job": a_job(), "lost_nodes": 1, "spares": 0, "lost_at": NOW, "now": NOW}

    decision = decide_after_node_loss(NodeLossFacts.model_validate({**facts, **change}))

    assert (decision.action, decision.nodes) == (action, nodes)
    assert decide_after_node_loss(NodeLossFacts.model_validate(decision.to_json()["facts"])) == decision
