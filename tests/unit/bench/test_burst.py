"""The simulation that compares rental policies: every job ends, and no limit is exceeded."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest

from bench import elastic
from bench.burst import (
    BaselinePolicy,
    BurstSimulation,
    SimulatedProvider,
    TraceJob,
    jobs_of,
    load_setup,
    ratio_with_interval,
    setup_hash,
)
from evenkeel.domain.capacity.pools import Market
from evenkeel.domain.economics import money

PROJECT = Path(__file__).resolve().parents[3]
POLICIES = [
    BaselinePolicy("committed", "arrival"),
    BaselinePolicy("always", "value", 0.0, spot=True),
    BaselinePolicy("greedy", "class", 1.0, spot=True, most_gpus=8),
    BaselinePolicy("evenkeel", "class"),
]


def a_setup(**changes: Any) -> dict[str, Any]:
    """Return the setup of two busy days with few committed nodes and low caps."""
    setup = copy.deepcopy(load_setup())
    setup["jobs"]["days"] = 2
    setup["committed"]["nodes"] = 8
    for path, value in changes.items():
        section, key = path.split("__")
        setup[section][key] = value
    return setup


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_every_job_ends_and_no_cap_is_exceeded(policy: BaselinePolicy) -> None:
    setup = a_setup(caps__teamUsdPerHour=30, caps__fleetUsdPerHour=45)
    world = BurstSimulation(setup, policy, 7)

    outcome = world.play()

    assert len(outcome.delays) == len(world.jobs) == len(jobs_of(setup, 7, 0.8))
    assert all(job.ended >= job.at + job.run for job in world.jobs)
    assert world.free == [8] * 8
    assert (world.queue, world.rented, world.leaving, world.fleet_rate) == ([], set(), {}, 0)
    assert set(world.rates.values()) <= {0}
    assert outcome.most_team_rate <= 30 * money.MICROS_PER_USD
    assert outcome.most_fleet_rate <= 45 * money.MICROS_PER_USD
    assert (outcome.rent_parts > 0) == (policy.name != "committed")


def test_same_seed_gives_the_same_figures() -> None:
    first, second = (BurstSimulation(a_setup(), POLICIES[-1], 3).play() for _ in range(2))

    assert first.usd == second.usd
    assert first.delays == second.delays


class ExhaustiveSimulation(BurstSimulation):
    """Compares all pools for every job; the benchmark skips jobs for which renting cannot pay."""

    def _may_pay(self, job: TraceJob, wait: float, opportunity: int) -> bool:
        return True


def test_skipping_idle_cycles_changes_no_decision() -> None:
    assert (
        ExhaustiveSimulation(a_setup(), POLICIES[-1], 3).play().delays
        == BurstSimulation(a_setup(), POLICIES[-1], 3).play().delays
    )


class CheckedSimulation(BurstSimulation):
    """Checks after each cycle that no job of the queue fits on free nodes."""

    cycles = 0

    def _run_cycle(self, now: float) -> None:
        super()._run_cycle(now)
        self.cycles += 1
        fitting = [job.name for _, job in self.queue if self._free_slots(job)]
        assert not fitting, f"pending jobs fit on free nodes after a cycle; expected them to start: {fitting}"
        before = self.out.moves
        self._migrate_back(now)
        assert self.out.moves == before


def test_no_paid_node_is_idle_while_a_fitting_job_waits() -> None:
    world = CheckedSimulation(a_setup(), POLICIES[-1], 5)

    outcome = world.play()

    assert world.cycles > 500
    assert outcome.moves > 0


def test_evenkeel_without_renting_equals_the_committed_fleet_baseline() -> None:
    setup = a_setup(caps__teamUsdPerHour=0, caps__fleetUsdPerHour=0)

    assert (
        BurstSimulation(setup, BaselinePolicy("evenkeel", "class"), 2).play().delays
        == BurstSimulation(setup, BaselinePolicy("committed", "class"), 2).play().delays
    )


def test_every_strategy_sees_spot_capacity_at_equal_times() -> None:
    first, second = (SimulatedProvider(load_setup(), 1) for _ in range(2))
    moments = range(0, 400 * 86_400, 1800)

    is_open = [first.is_open("g5.xlarge", "a", Market.SPOT, moment) for moment in moments]

    assert is_open[::7] == [second.is_open("g5.xlarge", "a", Market.SPOT, moment) for moment in moments[::7]]
    assert sum(is_open) / len(is_open) == pytest.approx(6 / 8, abs=0.03)


def test_confidence_interval_contains_the_ratio_of_the_sums() -> None:
    ratio, low, high = ratio_with_interval([(1.0, 2.0), (4.0, 4.0), (2.0, 6.0)])

    assert ratio == 7 / 12
    assert low <= ratio <= high


# ---------------------------------------------------------------- a day with one elastic job

DAY = load_setup()["elasticDay"]


def test_idle_day_loses_only_the_delay_and_one_resize() -> None:
    day = elastic.play_day(DAY, "all-day")

    # 12 idle nodes have cost a resize to 32 nodes (150 s) after 400 s: the tick at 420 s.
    assert day.idle_gpu_hours == 2304
    assert day.recovered == pytest.approx(1 - (420 * 96 + 150 * 256) / (2304 * 3600))
    assert day.bound == pytest.approx(1 - 150 * 256 / (2304 * 3600))
    assert (day.resizes, day.best_resizes) == (1, 1)


@pytest.mark.parametrize("seed", range(5))
def test_recovered_idle_time_never_exceeds_perfect_foresight(seed: int) -> None:
    day = elastic.play_day(DAY, "ragged", seed)

    assert 0 < day.recovered <= day.bound <= 1


def test_perfect_foresight_equals_the_best_of_all_schedules() -> None:
    setting = {**DAY, "gpus": 24, "idle": 16, "resizeSeconds": 100}
    idle = [2, 2, 0, 1, 2, 2, 2, 0]
    schedules: list[tuple[list[int], float]] = [([], 0.0)]
    for free in idle:
        schedules = [
            (
                [*sizes, size],
                gained + size * 8 * 60 - (100 * (1 + size) * 8 if size != (sizes[-1] if sizes else 0) else 0),
            )
            for sizes, gained in schedules
            for size in range(free + 1)
        ]

    assert math.isclose(elastic.best_with_foresight(setting, idle)[0], max(gained for _, gained in schedules))


# ---------------------------------------------------------------- stored figures


@pytest.mark.parametrize("name", ["burst", "elastic"])
def test_stored_burst_figures_match_the_setup_and_the_page(name: str) -> None:
    document = json.loads((PROJECT / "bench" / "results" / f"{name}.json").read_text("utf-8"))
    page = (PROJECT / "docs" / "benchmarks.md").read_text("utf-8")

    assert document["setup"] == setup_hash()
    if name == "burst":
        assert document["seeds"] == load_setup()["seeds"]["measured"]
        page_rows = [
            f"{figures['ratio']:.3f} ({figures['low']:.3f} – {figures['high']:.3f})"
            for figures in document["ratios"].values()
        ]
        page_rows += [
            f"${figures['usd']:,} | ${figures['rentUsd']:,} | ${figures['delayUsd']:,}"
            for figures in document["policies"].values()
        ]
    else:
        page_rows = [f"**{document[day]['recovered']:.1%}**" for day in DAY["shapes"]]
    assert [cell for cell in page_rows if cell not in page] == []
