"""Rented nodes that join the committed nodes of a job: the choice, the compatibility and the replay."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.domain.capacity.compatibility import PoolEnvironment
from evenkeel.domain.capacity.instance_types import shipped_instance_types
from evenkeel.domain.capacity.pools import LaunchDelay, Market
from evenkeel.domain.economics import money
from evenkeel.domain.elastic.throughput import SizeThroughput, Throughput
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.renting.burst_policy import RentedPool
from evenkeel.domain.renting.cost import CandidatePool, JobDemand, SpendLimits
from evenkeel.domain.renting.mixed_capacity import (
    Base,
    MixedAction,
    MixedFacts,
    RentedPartFacts,
    decide_mixed,
    decide_rented_part,
    why_not_joinable,
)
from tests.examples import examples
from tests.unit.services_jobs.job_scenario import a_spec

NOW = datetime(2026, 11, 25, 12, 0, tzinfo=UTC)
HOUR = 3600.0


def a_pool(name: str = "burst-spot", **changes: Any) -> RentedPool:
    facts: dict[str, Any] = {
        "name": name,
        "cluster": "research-eks",
        "market": Market.SPOT,
        "instance_type": "p5.48xlarge",
        "zone": "us-west-2a",
        "accelerators_per_node": 8,
        "max_nodes": 8,
        "micros_per_node_hour": 20_000_000,
        "launch": LaunchDelay(p50_seconds=240, p90_seconds=400),
        "place": PoolEnvironment(),
    }
    return RentedPool.model_validate({**facts, **changes})


def a_base(**changes: Any) -> Base:
    facts: dict[str, Any] = {
        "cluster": "research-eks",
        "pool": "p5-workers",
        "instance_type": "ml.p5.48xlarge",
        "nodes": 2,
        "zones": ("us-west-2a",),
    }
    return Base.model_validate({**facts, **changes})


def a_job() -> Job:
    spec = a_spec(elastic={"min_nodes": 2, "max_nodes": 4, "mixed_pools": ["burst-spot"]})
    return Job(
        job_id="job-1", spec=spec, state=JobState.RUNNING, submitted_at=NOW, cluster="research-eks", namespace="n"
    )


def mixed_facts(*pools: RentedPool, differences: tuple[str, ...] = (), **changes: Any) -> MixedFacts:
    job = JobDemand(
        job_id="job-1",
        team="nlp",
        nodes=2,
        accelerators_per_node=8,
        micros_per_hour_of_delay=200_000_000,
        run_seconds=10 * HOUR,
        p90_run_seconds=15 * HOUR,
        checkpoint_seconds=600,
        save_seconds=30,
        restart_seconds=60,
        submitted_at=NOW,
    )
    candidates = tuple(
        CandidatePool(pool=pool, accelerators_left=64, differences=differences) for pool in pools or (a_pool(),)
    )
    cap = 400_000_000
    facts: dict[str, Any] = {
        "job": job,
        "base": a_base(),
        "sizes": (3, 4),
        "resize_seconds": 150,
        "candidates": candidates,
        "spending": SpendLimits(team_cap_micros_per_hour=cap, fleet_cap_micros_per_hour=cap),
        "now": NOW,
    }
    return MixedFacts(**{**facts, **changes})


def test_size_with_the_highest_gain_after_rent_is_chosen() -> None:
    decision = decide_mixed(mixed_facts())

    assert decision.action is MixedAction.RENT
    assert decision.chosen is not None
    assert (decision.chosen.pool, decision.chosen.nodes, decision.chosen.rented_nodes) == ("burst-spot", 4, 2)
    # 10 h at two nodes are about 5 h at four nodes; the launch and the resize cost minutes.
    assert 4.8 * HOUR < decision.chosen.saved_seconds < 5 * HOUR
    assert decision.chosen.profit_parts == decision.chosen.gain_parts - decision.chosen.rent_parts > 0
    assert decision.reason.startswith("2 spot nodes of burst-spot join the job's 2 committed nodes of p5-workers.")
    assert [alternative.option for alternative in decision.alternatives] == ["burst-spot, 3 nodes"]


def test_rent_covers_only_the_rented_nodes() -> None:
    option = decide_mixed(mixed_facts(sizes=(4,))).options[0]

    hours = option.rent_parts / money.COST_PARTS_PER_USD / (2 * 20)
    assert 4.9 < hours < 5.3  # the time at four nodes, and the launch


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"spending": SpendLimits()}, "exceeds the limit"),
        ({"free_committed_nodes": 1}, "grows onto committed nodes first"),
        ({"max_rented_nodes": 0, "limit_text": "16 of 16 accelerators are used"}, "16 of 16 accelerators are used"),
        ({"differences": ("The zone differs.",)}, "The zone differs."),
    ],
)
def test_rejected_options_keep_the_base_and_say_why(changes: dict[str, Any], expected: str) -> None:
    decision = decide_mixed(mixed_facts(**changes))

    assert (decision.action, decision.chosen) == (MixedAction.KEEP, None)
    assert expected in decision.reason


def test_job_without_price_of_delay_gets_no_rented_nodes() -> None:
    facts = mixed_facts()

    decision = decide_mixed(facts.replace(job=facts.job.replace(micros_per_hour_of_delay=0)))

    assert decision.action is MixedAction.KEEP
    assert "sets no price on the delay" in decision.reason


def test_budget_below_the_rent_rejects_the_pool() -> None:
    facts = mixed_facts()
    tight = facts.spending.replace(team_budget_left_parts=round(50 * money.COST_PARTS_PER_USD))

    decision = decide_mixed(facts.replace(spending=tight))

    assert decision.action is MixedAction.KEEP
    assert "the budget of team nlp has $50.00 left" in decision.reason


def test_job_that_ends_before_the_launch_stays_on_its_base() -> None:
    facts = mixed_facts()

    decision = decide_mixed(facts.replace(job=facts.job.replace(run_seconds=120.0)))

    assert decision.action is MixedAction.KEEP
    assert "expected to end before the nodes are ready" in decision.reason


def test_throughput_without_a_rise_rents_nothing() -> None:
    flat = Throughput(
        points=(SizeThroughput(nodes=2, per_second=100), SizeThroughput(nodes=4, per_second=100)), is_measured=True
    )

    assert decide_mixed(mixed_facts(throughput=flat)).action is MixedAction.KEEP


def test_frequent_reclaims_make_on_demand_nodes_the_better_choice() -> None:
    spot = a_pool(interruptions_per_node_hour=0.4)
    on_demand = a_pool("burst-on-demand", market=Market.ON_DEMAND, micros_per_node_hour=30_000_000)

    decision = decide_mixed(mixed_facts(spot, on_demand))

    assert decision.chosen is not None
    assert decision.chosen.pool == "burst-on-demand"


@settings(max_examples=examples(30))
@given(
    price=st.integers(1_000_000, 500_000_000),
    delay=st.integers(0, 500_000_000),
    left=st.floats(1, 1e6),
    reclaims=st.floats(0, 2),
)
def test_rented_part_always_gains_more_than_it_costs(price: int, delay: int, left: float, reclaims: float) -> None:
    facts = mixed_facts(a_pool(micros_per_node_hour=price, interruptions_per_node_hour=reclaims))
    facts = facts.replace(job=facts.job.replace(micros_per_hour_of_delay=delay, run_seconds=left))

    decision = decide_mixed(facts)

    replayed = decide_mixed(MixedFacts.model_validate(facts.to_json()))
    assert (replayed.action, replayed.reason, replayed.options) == (decision.action, decision.reason, decision.options)
    if decision.chosen is not None:
        assert decision.chosen.gain_parts > decision.chosen.rent_parts >= 0
        assert decision.chosen.saved_seconds > 0
        assert decision.chosen.nodes in facts.sizes


@pytest.mark.parametrize(
    ("base", "pool", "expected"),
    [
        ({}, {"cluster": "other-eks"}, "The pool is in cluster other-eks, and the job runs in research-eks."),
        ({}, {"zone": "us-west-2b"}, "the base is in us-west-2a, the pool in us-west-2b"),
        ({}, {"zone": ""}, "the pool in an unknown zone"),
        ({"zones": ("",)}, {}, "the base is in an unknown zone"),
        ({"zones": ("us-west-2a", "us-west-2b")}, {}, "the base is in us-west-2a and us-west-2b"),
        ({}, {"instance_type": "p4d.24xlarge"}, "The accelerator differs: p5-workers has h100, and the pool has a100."),
        ({}, {"instance_type": "p6e-gb200.36xlarge"}, "The architecture differs: p5-workers has amd64"),
        (
            {},
            {"instance_type": "x1.unknown"},
            "The architecture differs: p5-workers has amd64, and the pool has unknown",
        ),
        ({"ultra_servers": ("us-1",)}, {}, "The base is in UltraServer us-1, which rented nodes cannot join."),
        ({}, {"accelerators_per_node": 4}, "Each node of burst-spot has 4 accelerators, and the job asks for 8."),
        ({}, {"taints": ("team=red:NoSchedule",)}, "Its pods do not tolerate team=red:NoSchedule."),
    ],
)
def test_incompatible_pool_is_refused_with_a_reason(base: Any, pool: Any, expected: str) -> None:
    reasons = why_not_joinable(a_job(), a_base(**base), a_pool(**pool), {}, shipped_instance_types())

    assert any(expected in reason for reason in reasons), reasons


def test_pool_with_another_network_is_refused() -> None:
    plain = a_pool(instance_type="p5.48xlarge", place=PoolEnvironment(fabric="infiniband"))

    reasons = why_not_joinable(a_job(), a_base(), plain, {}, shipped_instance_types())

    assert reasons == ("The network differs: p5-workers has efa, and the pool has infiniband.",)


def test_pool_of_the_same_kind_and_zone_is_joinable() -> None:
    assert why_not_joinable(a_job(), a_base(), a_pool(), {}, shipped_instance_types()) == ()


def test_pool_with_too_little_memory_is_refused() -> None:
    job = a_job()
    job = job.replace(spec=job.spec.replace(memory_gib_per_node=100_000))

    reasons = why_not_joinable(job, a_base(), a_pool(), {}, shipped_instance_types())

    assert reasons == ("Each node of the pool is short of memory for the job.",)


def rented_part_facts(**changes: Any) -> RentedPartFacts:
    facts = mixed_facts()
    cap = 400_000_000
    known: dict[str, Any] = {
        "job": facts.job,
        "base_nodes": 2,
        "rented_nodes": 2,
        "pool": "burst-spot",
        "rental": 1,
        "micros_per_node_hour": 20_000_000,
        "resize_seconds": 150,
        "spending": SpendLimits(
            team_micros_per_hour=40_000_000,
            fleet_micros_per_hour=40_000_000,
            team_cap_micros_per_hour=cap,
            fleet_cap_micros_per_hour=cap,
        ),
    }
    return RentedPartFacts(**{**known, **changes})


def test_rented_part_that_pays_is_kept() -> None:
    decision = decide_rented_part(rented_part_facts())

    assert not decision.is_released
    assert "of rent and cost" in decision.alternatives[0].why_not


def test_rented_part_without_measured_gain_is_released() -> None:
    flat = Throughput(
        points=(SizeThroughput(nodes=2, per_second=100), SizeThroughput(nodes=4, per_second=101)), is_measured=True
    )

    decision = decide_rented_part(rented_part_facts(throughput=flat))

    assert decision.is_released
    assert decision.reason.startswith("The 2 rented nodes no longer pay: the rent for the rest is $39")


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("team_cap_micros_per_hour", "The rents of team nlp are $40.00 per hour, and its cap is $10.00 per hour."),
        ("fleet_cap_micros_per_hour", "The rents of the fleet are $40.00 per hour, and its cap is $10.00 per hour."),
    ],
)
def test_lowered_cap_drops_a_part_that_pays(field: str, expected: str) -> None:
    facts = rented_part_facts(may_stop_to_save=False)

    decision = decide_rented_part(facts.replace(spending=facts.spending.replace(**{field: 10_000_000})))

    assert decision.is_released
    assert decision.reason == f"{expected} The 2 rented nodes go first."


def test_budget_that_does_not_cover_rentals_drops_the_part() -> None:
    facts = rented_part_facts(rented_nodes=1)

    decision = decide_rented_part(facts.replace(spending=facts.spending.replace(team_budget_left_parts=-1)))

    assert decision.is_released
    assert decision.reason.endswith("The 1 rented node goes first.")


def test_job_near_its_end_keeps_its_rented_part() -> None:
    facts = rented_part_facts()

    assert not decide_rented_part(
        facts.replace(job=facts.job.replace(run_seconds=300.0, micros_per_hour_of_delay=0))
    ).is_released


@settings(max_examples=examples(30))
@given(
    price=st.integers(1_000_000, 500_000_000),
    delay=st.integers(1, 500_000_000),
    left=st.floats(1, 1e6),
    gain=st.floats(1.0, 2.0),
)
def test_next_cycle_keeps_part_that_was_just_rented(price: int, delay: int, left: float, gain: float) -> None:
    throughput = Throughput(
        points=(SizeThroughput(nodes=2, per_second=100), SizeThroughput(nodes=4, per_second=100 * gain)),
        is_measured=True,
    )
    facts = mixed_facts(a_pool(micros_per_node_hour=price), sizes=(4,), throughput=throughput)
    facts = facts.replace(job=facts.job.replace(micros_per_hour_of_delay=delay, run_seconds=left))
    rented = decide_mixed(facts)

    released = decide_rented_part(
        rented_part_facts(job=facts.job, throughput=throughput, micros_per_node_hour=price, spending=facts.spending)
    )

    assert not (rented.action is MixedAction.RENT and released.is_released)
