"""The resumption of an interrupted job: the expected loss of each option, and the choice."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.domain.capacity.compatibility import PoolEnvironment
from evenkeel.domain.capacity.network_topology import NetworkLevel, NetworkSpread
from evenkeel.domain.capacity.pools import LaunchDelay, Market, Pool
from evenkeel.domain.economics.expected_durations import ExpectedDuration
from evenkeel.domain.elastic.grow_shrink import NodeLossFacts
from evenkeel.domain.elastic.sizes import ElasticJob, Sizes
from evenkeel.domain.health.faults import CheckpointTrust
from evenkeel.domain.jobs.job import ResumeOption
from evenkeel.domain.jobs.job_policy import JobPolicy
from evenkeel.domain.recovery.network_distance import NetworkFacts
from evenkeel.domain.recovery.resume_options import (
    OPTION_ORDER,
    OptionCost,
    PoolCapacity,
    PreemptionCandidate,
    RentOption,
    ResumeDecision,
    ResumeDelays,
    ResumeFacts,
    lost_work_seconds,
    plan_resume,
)
from evenkeel.domain.renting.cost import CandidatePool, JobDemand, SpendLimits, cheapest_rented
from evenkeel.domain.renting.placement import PlacementFacts, choose_pool
from tests.unit.recovery.facts import LIFE, at

POLICY = JobPolicy(distrust_guard_seconds=300)
UNAVAILABLE_OPTIONS = tuple(
    OptionCost(option=option, why_not="not available here")
    for option in (ResumeOption.SHRINK, ResumeOption.PREEMPT, ResumeOption.RENT)
)


def delay_prices(**seconds: float) -> ResumeDelays:
    defaults = {"repair": 900, "capacity": 3600, "launch": 30, "restore": 70, **seconds}
    return ResumeDelays.model_validate({name: ExpectedDuration(seconds=value) for name, value in defaults.items()})


def decide_resume(usable: int, spares: int = 0, **changes: Any) -> ResumeDecision:
    facts: dict[str, Any] = {
        "job_id": "job-1",
        "attempt": 1,
        "nodes": 2,
        "accelerators_per_node": 8,
        "pools": (PoolCapacity(pool="p5", usable=usable, spares=spares),),
        "offers": UNAVAILABLE_OPTIONS,
        "delays": delay_prices(),
        "lost_work_seconds": 0,
        "usd_per_accelerator_hour": 5,
        "fault_key": "xid:79",
        "fault_class": "hardware",
        "trust": CheckpointTrust.TRUSTED,
        "first_signal_at": at(0),
        "faulty_life": LIFE.key,
        "will_be_replaced": False,
        "is_repaired": True,
    }
    return plan_resume(ResumeFacts.model_validate({**facts, **changes}), POLICY)


@pytest.mark.parametrize(
    ("usable", "spares", "option", "seconds"),
    [
        (2, 0, ResumeOption.FREE_NODE, 100),
        (3, 1, ResumeOption.FREE_NODE, 100),
        (2, 1, ResumeOption.SPARE, 100),
        (1, 1, ResumeOption.WAIT_FOR_REPAIR, 1000),
        (0, 0, ResumeOption.WAIT_FOR_REPAIR, 3700),
    ],
)
def test_resume_option_with_the_least_loss_is_chosen(
    usable: int, spares: int, option: ResumeOption, seconds: float
) -> None:
    decision = decide_resume(usable, spares)

    assert (decision.option, decision.expected_seconds) == (option, seconds)
    assert decision.gpu_hours_lost == pytest.approx(seconds * 16 / 3600, abs=0.001)
    assert decision.usd == pytest.approx(seconds * 16 / 3600 * 5, abs=0.01)
    assert {alternative.option for alternative in decision.alternatives} == set(ResumeOption) - {option}
    assert all(alternative.why_not for alternative in decision.alternatives)


def test_expected_time_sums_waiting_launch_restore_and_lost_work() -> None:
    decision = decide_resume(2, lost_work_seconds=250)
    waits = next(
        alternative for alternative in decision.alternatives if alternative.option == ResumeOption.WAIT_FOR_REPAIR
    )

    assert decision.expected_seconds == 30 + 70 + 250
    assert waits.expected_seconds == 900 + 30 + 70 + 250
    assert waits.why_not == "it would lose $20.00 more"


def test_resume_does_not_wait_for_an_unrepaired_node() -> None:
    decision = decide_resume(1, is_repaired=False)

    assert (decision.option, decision.expected_seconds) == (ResumeOption.WAIT_FOR_REPAIR, 3600 + 100)
    assert decision.reason == "2 nodes are needed and 1 is free, so the job waits for capacity."


def test_resume_reason_states_that_one_repaired_node_is_insufficient() -> None:
    assert "one repaired node is not enough" in decide_resume(0).reason


def test_preemption_counts_the_work_that_its_victims_lose() -> None:
    def option_with_preemption(gpu_hours_taken: float) -> ResumeOption:
        preemption_victims = OptionCost(option=ResumeOption.PREEMPT, gpu_hours_taken=gpu_hours_taken)
        return decide_resume(1, offers=(preemption_victims,)).option

    assert option_with_preemption(3.9) is ResumeOption.PREEMPT  # 900 s of 16 accelerators are 4 GPU-hours
    assert option_with_preemption(4.1) is ResumeOption.WAIT_FOR_REPAIR


def test_rent_is_paid_only_if_waiting_costs_more() -> None:
    def option_with_rent(usd: float) -> ResumeOption:
        return decide_resume(1, offers=(OptionCost(option=ResumeOption.RENT, wait_seconds=300, usd=usd),)).option

    assert option_with_rent(13) is ResumeOption.RENT  # waiting costs 4 GPU-hours, renting 1 1/3: a difference of $13.33
    assert option_with_rent(14) is ResumeOption.WAIT_FOR_REPAIR


def test_cheaper_resume_option_wins_over_a_faster_one() -> None:
    shrinks = OptionCost(option=ResumeOption.SHRINK, wait_seconds=60)

    assert decide_resume(1, offers=(shrinks,)).option is ResumeOption.SHRINK


@given(
    usable=st.integers(0, 4),
    spares=st.integers(0, 4),
    offers=st.lists(
        st.builds(
            OptionCost,
            option=st.sampled_from([ResumeOption.SHRINK, ResumeOption.PREEMPT, ResumeOption.RENT]),
            why_not=st.sampled_from(["", "not here"]),
            wait_seconds=st.integers(0, 2000),
            gpu_hours_taken=st.integers(0, 10),
            usd=st.integers(0, 100),
        ),
        max_size=3,
        unique_by=lambda offer: offer.option,
    ),
    is_repaired=st.booleans(),
)
def test_chosen_option_loses_least_and_ties_follow_option_order(
    usable: int, spares: int, offers: list[OptionCost], *, is_repaired: bool
) -> None:
    decision = decide_resume(usable, min(spares, usable), offers=tuple(offers), is_repaired=is_repaired)

    chosen = (decision.usd, OPTION_ORDER.index(decision.option))
    earlier_options = [
        (alternative.usd, OPTION_ORDER.index(ResumeOption(alternative.option)))
        for alternative in decision.alternatives
        if alternative.usd is not None
    ]
    assert all(chosen < other for other in earlier_options)
    assert decision.option not in {offer.option for offer in offers if offer.why_not}


def test_job_resumes_in_a_second_pool_if_one_is_full() -> None:
    pools = (PoolCapacity(pool="full", usable=1, spares=0), PoolCapacity(pool="roomy", usable=2, spares=0))

    assert decide_resume(0, pools=pools).pool == "roomy"


def test_resume_avoids_only_nodes_that_will_be_replaced() -> None:
    assert decide_resume(2).avoid == ()
    assert decide_resume(2, will_be_replaced=True).avoid == (LIFE.key,)


@pytest.mark.parametrize("trust", [CheckpointTrust.SUSPECT_SINCE_FIRST_SIGNAL, CheckpointTrust.NONE])
def test_resume_plan_states_which_checkpoints_it_distrusts(trust: CheckpointTrust) -> None:
    decision = decide_resume(2, trust=trust)

    assert decide_resume(2).distrust_after is None
    assert decision.distrust_after == at(-300)
    assert "does not use checkpoints that began after" in decision.reason


# ---------------------------------------------------------------- lost work


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        ({}, 450),
        ({"distrusted_seconds": 400.0}, 850),
        ({"ran_seconds": 100.0}, 100),
        ({"keeps_checkpoints": False}, 7200),
        ({"ran_seconds": -1.0, "keeps_checkpoints": False}, 0),
    ],
)
def test_expected_lost_work_is_at_most_the_work_done(changes: dict[str, Any], seconds: float) -> None:
    facts: dict[str, Any] = {
        "ran_seconds": 7200.0,
        "keeps_checkpoints": True,
        "distrusted_seconds": 0.0,
        "expected_checkpoint_seconds": 900,
    }

    assert seconds == lost_work_seconds(**{**facts, **changes})


# ---------------------------------------------------------------- the example of the page

_ROW = re.compile(r"\| `(\w+)` \| (\d+) \| (\d+) \| ([\d.]+) \| \$([\d.]+) \|")


def test_first_example_of_the_resume_page_matches_the_decision() -> None:
    text = (Path(__file__).parents[3] / "docs" / "operate" / "resume.md").read_text(encoding="utf-8")
    expected_lost_work = lost_work_seconds(
        ran_seconds=86_400, keeps_checkpoints=True, distrusted_seconds=0, expected_checkpoint_seconds=900
    )

    decision = decide_resume(
        16,
        1,
        nodes=16,
        delays=delay_prices(repair=280, launch=60, restore=1400),
        lost_work_seconds=expected_lost_work,
    )

    compared_options = [
        (decision.option, decision.expected_seconds, decision.gpu_hours_lost, decision.usd),
        *(
            (alternative.option, alternative.expected_seconds, alternative.gpu_hours_lost, alternative.usd)
            for alternative in decision.alternatives
            if alternative.usd is not None
        ),
    ]
    documented = [(option, float(s), float(hours), float(usd)) for option, _, s, hours, usd in _ROW.findall(text)]
    assert compared_options == documented


# ---------------------------------------------------------------- elastic jobs on fewer nodes


def node_loss_of_elastic_job(left: int, seconds: float = 300, **changes: Any) -> NodeLossFacts:
    """Return the facts of an elastic job of 2 to 4 nodes that has `left` nodes, some seconds after the fault."""
    facts: dict[str, Any] = {
        "job": ElasticJob(job_id="job-1", nodes=4, sizes=Sizes(least=2, most=4), started_at=at(0)),
        "lost_nodes": 4 - left,
        "spares": 0,
        "lost_at": at(0),
        "now": at(seconds),
    }
    return NodeLossFacts.model_validate({**facts, **changes})


def test_elastic_job_shrinks_if_that_loses_less_than_repair() -> None:
    decided = decide_resume(3, nodes=4, offers=UNAVAILABLE_OPTIONS[1:], fault=node_loss_of_elastic_job(3))

    assert (decided.option, decided.nodes, decided.shrinks_at) == (ResumeOption.SHRINK, 3, at(300))
    # (100 s of standstill x 4 nodes + 1 node for 900 s + growing back: 4 nodes for 150 s) x 8 GPUs
    assert decided.gpu_hours_lost == pytest.approx((400 + 900 + 600) * 8 / 3600, abs=0.001)
    waits = next(
        alternative for alternative in decided.alternatives if alternative.option == ResumeOption.WAIT_FOR_REPAIR
    )
    assert waits.gpu_hours_lost == pytest.approx(1000 * 4 * 8 / 3600, abs=0.001)


def test_elastic_job_waits_only_for_a_short_repair() -> None:
    decided = decide_resume(
        3, nodes=4, offers=UNAVAILABLE_OPTIONS[1:], fault=node_loss_of_elastic_job(3), delays=delay_prices(repair=140)
    )

    assert decided.option is ResumeOption.WAIT_FOR_REPAIR
    assert decided.shrinks_at == at(300 + decided.expected_seconds)


def test_elastic_job_waits_for_a_spare_first() -> None:
    decided = decide_resume(3, nodes=4, offers=UNAVAILABLE_OPTIONS[1:], fault=node_loss_of_elastic_job(3, seconds=20))

    assert (decided.option, decided.shrinks_at) == (ResumeOption.SHRINK, at(120))
    assert decided.expected_seconds == 100 + 100


def test_elastic_job_shrinks_only_to_an_allowed_size() -> None:
    decided = decide_resume(1, nodes=4, offers=UNAVAILABLE_OPTIONS[1:], fault=node_loss_of_elastic_job(1))

    assert decided.option is ResumeOption.WAIT_FOR_REPAIR
    assert any("No allowed size fits 1 node" in alternative.why_not for alternative in decided.alternatives)


def test_free_nodes_are_used_before_shrinking() -> None:
    decided = decide_resume(4, nodes=4, offers=UNAVAILABLE_OPTIONS[1:], fault=node_loss_of_elastic_job(3, spares=1))

    assert (decided.option, decided.nodes) == (ResumeOption.FREE_NODE, 4)


# ---------------------------------------------------------------- rented nodes, preemption of other jobs


def rent_option(
    *, micros: int = 55_040_000, cap: int = 10**10, nodes: int = 16, barred: str = "", run: float = 7200
) -> RentOption:
    """Return the facts for renting: no committed node is free, and there is one on-demand pool."""
    pool = Pool(
        name="on-demand-p5",
        cluster="burst",
        market=Market.ON_DEMAND,
        instance_type="p5.48xlarge",
        accelerators_per_node=8,
        max_nodes=32,
        micros_per_node_hour=micros,
        launch=LaunchDelay(p50_seconds=240, p90_seconds=400),
        environment=PoolEnvironment(),
    )
    job = JobDemand(
        job_id="job-1",
        team="nlp",
        nodes=nodes,
        accelerators_per_node=8,
        micros_per_hour_of_delay=150_000_000,
        run_seconds=run,
        p90_run_seconds=2 * run,
        checkpoint_seconds=900,
        restart_seconds=1400,
        submitted_at=at(0),
    )
    spending = SpendLimits(team_cap_micros_per_hour=cap, fleet_cap_micros_per_hour=cap)
    candidates = (CandidatePool(pool=pool, accelerators_left=256),)
    return RentOption(
        placement=PlacementFacts(job=job, candidates=candidates, spending=spending, now=at(0)), barred=barred
    )


SMALL_JOB = PreemptionCandidate(
    job_id="job-small",
    team="vision",
    accelerators=8,
    save_seconds=60,
    lost_work_seconds=450,
    usd_per_hour_of_delay=20,
)


def decide_resume_of_large_job(**changes: Any) -> ResumeDecision:
    """Return the decision for a job on 16 nodes. One node is out for six hours; an hour of delay costs $150."""
    defaults = {
        "nodes": 16,
        "offers": UNAVAILABLE_OPTIONS[:1],
        "delays": delay_prices(repair=21_600, launch=60, restore=1400),
        "lost_work_seconds": 450,
        "usd_per_hour_of_delay": 150,
        "renting": rent_option(),
        "preemption_victims": (SMALL_JOB,),
    }
    return decide_resume(15, **{**defaults, **changes})


def test_second_example_of_the_resume_page_matches_the_decision() -> None:
    text = (Path(__file__).parents[3] / "docs" / "operate" / "resume.md").read_text(encoding="utf-8")
    rows = re.findall(r"\| `(\w+)` \| ([\d.]+) s \| ([\d.]+) GPU-h \| \$([\d,.]+) \|", text)
    decision = decide_resume_of_large_job()

    compared_options = [
        (decision.option, decision.expected_seconds, decision.gpu_hours_lost, decision.usd),
        *(
            (alternative.option, alternative.expected_seconds, alternative.gpu_hours_lost, alternative.usd)
            for alternative in sorted(decision.alternatives, key=lambda other: other.usd or 0)
            if alternative.usd is not None
        ),
    ]

    documented = [(option, float(s), float(hours), float(usd.replace(",", ""))) for option, s, hours, usd in rows]
    assert compared_options == documented
    assert [option for option, *_ in documented] == ["PREEMPT", "RENT", "WAIT_FOR_REPAIR"]


def test_maximum_rent_equals_the_loss_of_the_next_option() -> None:
    decision = decide_resume_of_large_job(preemption_victims=())
    max_rent = decision.max_rent_parts
    assert max_rent is not None
    cheapest = cheapest_rented(choose_pool(rent_option().placement).table)
    assert cheapest is not None
    highest_price = 55_040_000 * max_rent / cheapest.rent_parts

    assert decision.option is ResumeOption.RENT
    assert (
        decide_resume_of_large_job(preemption_victims=(), renting=rent_option(micros=int(highest_price * 0.999))).option
        is ResumeOption.RENT
    )
    assert (
        decide_resume_of_large_job(preemption_victims=(), renting=rent_option(micros=int(highest_price * 1.001))).option
        is ResumeOption.WAIT_FOR_REPAIR
    )
    assert decide_resume_of_large_job().max_rent_parts is None


def test_nothing_is_rented_that_a_scheduling_cycle_would_refuse() -> None:
    without_quota = decide_resume_of_large_job(
        preemption_victims=(), renting=rent_option(barred="Rented nodes would not help the job: no quota.")
    )
    above_cap = decide_resume_of_large_job(preemption_victims=(), renting=rent_option(cap=55_040_000 * 15))

    for decision, expected_reason in (
        (without_quota, "no quota"),
        (above_cap, "$880.64 an hour, which exceeds the limit"),
    ):
        row = next(alternative for alternative in decision.alternatives if alternative.option == ResumeOption.RENT)
        assert decision.option is ResumeOption.WAIT_FOR_REPAIR
        assert (row.usd, expected_reason in row.why_not) == (None, True)


def test_job_does_not_preempt_a_job_with_an_equal_loss() -> None:
    equal = SMALL_JOB.replace(accelerators=128, usd_per_hour_of_delay=150)

    assert decide_resume_of_large_job(renting=None, preemption_victims=(equal,)).option is ResumeOption.WAIT_FOR_REPAIR


def test_option_that_loses_least_gpu_hours_wins_without_a_price() -> None:
    decision = decide_resume(2, spares=1, usd_per_accelerator_hour=None)

    assert decision.option is decide_resume(2, spares=1).option
    assert decision.usd is None
    assert {alternative.usd for alternative in decision.alternatives} == {None}
    other_losses = [
        alternative
        for alternative in decision.alternatives
        if alternative.gpu_hours_lost and alternative.gpu_hours_lost > decision.gpu_hours_lost
    ]
    assert other_losses
    assert all("GPU-hours are unpriced" in alternative.why_not for alternative in other_losses)


def test_price_of_delay_counts_for_every_resume_option() -> None:
    priced, unpriced = decide_resume(1, usd_per_hour_of_delay=90), decide_resume(1)

    assert priced.option is unpriced.option
    assert priced.usd is not None
    assert unpriced.usd is not None
    assert priced.usd == pytest.approx(unpriced.usd + 90 * 1000 / 3600, abs=0.01)


@given(
    micros=st.integers(1_000_000, 200_000_000),
    cap=st.integers(0, 2_000_000_000),
    run=st.integers(60, 40_000),
    repair=st.integers(0, 40_000),
    accelerators=st.integers(1, 256),
)
def test_chosen_option_loses_least_within_the_caps(
    micros: int, cap: int, run: int, repair: int, accelerators: int
) -> None:
    decision = decide_resume_of_large_job(
        renting=rent_option(micros=micros, cap=cap, run=run),
        preemption_victims=(SMALL_JOB.replace(accelerators=accelerators),),
        delays=delay_prices(repair=repair),
    )

    assert decision.usd is not None
    assert all(decision.usd <= alternative.usd for alternative in decision.alternatives if alternative.usd is not None)
    if decision.option is ResumeOption.RENT:
        assert micros * 16 <= cap


def test_reason_names_measured_times_and_earlier_records_replay() -> None:
    measured = ExpectedDuration(seconds=320, samples=12, low_seconds=280, high_seconds=400, origin="pool p5")
    of_earlier_release = ExpectedDuration(seconds=320, samples=12)

    with_origin, without = (
        decide_resume(1, delays=delay_prices().replace(launch=launch)).reason
        for launch in (measured, of_earlier_release)
    )

    assert "launch 320 s (12 cases of pool p5, 95 % interval 280 to 400 s); restore" in with_origin
    assert "Expected times" not in without


NEAR = NetworkSpread(level=NetworkLevel.LAYER_3, levels_apart=0)
FAR = NetworkSpread(level=NetworkLevel.LAYER_2, levels_apart=1)


def decide_with_network(
    spread: NetworkSpread | None, slowdown: float | None, *, spares: int = 0, **changes: Any
) -> ResumeDecision:
    """Decide for a job of two nodes with 30 h left, whose nodes shared a domain of layer 3. The repair takes 900 s."""
    network = NetworkFacts(before=NEAR, slowdown_per_level=slowdown, remaining_seconds=30 * 3600)
    pool = PoolCapacity(pool="p5", usable=2, spares=spares, spread=spread)
    return decide_resume(2, **{"pools": (pool,), "network": network, **changes})


@pytest.mark.parametrize(("slowdown", "option"), [(0.0083, "FREE_NODE"), (0.0084, "WAIT_FOR_REPAIR")])
def test_job_waits_if_slowdown_loses_more_than_repair(slowdown: float, option: str) -> None:
    decision = decide_with_network(FAR, slowdown)  # 0.0083 x 30 h = 896 s

    assert decision.option == option


def test_wait_for_near_nodes_is_bounded_by_slowdown() -> None:
    decision = decide_with_network(FAR, 0.02)
    free_nodes = next(alternative for alternative in decision.alternatives if alternative.option == "FREE_NODE")

    assert (decision.near_level, decision.far_nodes_after_seconds) == (NetworkLevel.LAYER_3, 2160)
    assert free_nodes.slowdown_seconds == 2160
    assert free_nodes.gpu_hours_lost == pytest.approx((100 + 2160) * 16 / 3600, abs=0.001)
    assert free_nodes.why_not == (
        "it would lose $28.00 more; its nodes are 1 network level farther apart than before, "
        "2.00% slower for an expected 30.0 h"
    )
    assert decision.reason.startswith("The free nodes are farther apart than the job's nodes were")


def test_slowdown_counts_until_next_expected_fault_only() -> None:
    network = NetworkFacts(before=NEAR, slowdown_per_level=0.02, remaining_seconds=3600 * 1e6, failures_per_hour=0.5)

    decision = decide_with_network(FAR, None, network=network)

    assert decision.slowdown_seconds == pytest.approx(0.02 * 2 * 3600)


@pytest.mark.parametrize(
    ("network", "text"),
    [
        ({"before": NEAR, "slowdown_per_level": None}, "because economy.slowdownPerNetworkLevel is not set"),
        ({"before": None, "slowdown_per_level": 0.9}, "How far apart its nodes would be is unknown"),
        ({"before": NEAR, "slowdown_per_level": 0.9, "why_not_weighed": "Kueue chooses"}, "Kueue chooses"),
    ],
)
def test_unknown_slowdown_is_named_not_counted_as_none(network: dict[str, Any], text: str) -> None:
    decision = decide_with_network(FAR, None, network=NetworkFacts(**network, remaining_seconds=30 * 3600))

    assert (decision.option, decision.slowdown_seconds, decision.far_nodes_after_seconds) == ("FREE_NODE", None, None)
    assert text in decision.reason


@pytest.mark.parametrize("spread", [NEAR, NetworkSpread(level=NetworkLevel.ULTRA_SERVER, levels_apart=0)])
def test_nodes_as_near_as_before_cost_nothing(spread: NetworkSpread) -> None:
    decision = decide_with_network(spread, 0.5)

    assert (decision.option, decision.slowdown_seconds) == ("FREE_NODE", 0)
    assert "farther" not in decision.reason


def test_distant_spare_waits_for_repair_too() -> None:
    decision = decide_with_network(FAR, 0.02, spares=1)

    assert (decision.option, decision.far_nodes_after_seconds) == ("WAIT_FOR_REPAIR", 2160)


def test_job_does_not_wait_for_near_nodes_without_a_repair() -> None:
    assert decide_with_network(FAR, 0.5, is_repaired=False).option == "FREE_NODE"
