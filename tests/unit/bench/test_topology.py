"""The benchmark of close nodes: its fleet, its figures, and the effect of a required level."""

from collections.abc import Iterator
from math import inf

import pytest

from bench.topology import LANES, PlacementRun, Setting, TraceJob, fleet_size, lane_figures, load_jobs, play

SMALL = Setting("whole-nodes", 0.35, 8, 0.0)


@pytest.fixture(scope="module")
def few_jobs(module_patch: pytest.MonkeyPatch) -> list[TraceJob]:
    jobs = load_jobs("whole-nodes", 1)[:400]
    module_patch.setattr("bench.topology.load_jobs", lambda *_: jobs)
    return jobs


@pytest.fixture(scope="module")
def module_patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def runs(few_jobs: list[TraceJob]) -> dict[str, PlacementRun]:
    return {lane: play(SMALL, lane, 1) for lane in LANES}


def test_every_job_starts_once_in_every_lane(runs: dict[str, PlacementRun], few_jobs: list[TraceJob]) -> None:
    for lane, ran in runs.items():
        assert len(ran.gang_waits) + len(ran.other_waits) + ran.never == len(few_jobs), lane
        assert all(0 <= waited < inf for waited in (*ran.gang_waits, *ran.other_waits))


def test_required_level_is_never_missed(runs: dict[str, PlacementRun]) -> None:
    assert runs["require-3"].in_layer_3 == len(runs["require-3"].gang_waits)
    assert runs["require-2"].in_layer_2 == len(runs["require-2"].gang_waits)


def test_default_places_more_gangs_in_one_domain_than_without_labels(runs: dict[str, PlacementRun]) -> None:
    assert runs["default"].in_layer_3 > runs["without"].in_layer_3


def test_no_gang_waits_for_a_domain_unless_it_requires_one(runs: dict[str, PlacementRun]) -> None:
    assert runs["without"].stranded == runs["default"].stranded == 0
    assert runs["require-3"].stranded > 0


def test_fleet_has_whole_domains_and_room_for_the_largest_gang() -> None:
    jobs = [TraceJob("a", 0.0, 100.0, 9, 8), TraceJob("b", 1000.0, 100.0, 1, 8)]

    assert fleet_size(jobs, SMALL) == 16
    assert fleet_size([job._replace(seconds=100_000.0) for job in jobs], SMALL) % 8 == 0


def test_figures_are_shares_of_the_gangs_that_started() -> None:
    ran = PlacementRun(
        gang_waits=[0.0, 3600.0], other_waits=[0.0], in_layer_3=1, in_layer_2=2, could_be_in_layer_3=2,
        never=1, idle=10.0, fragmented=5.0, stranded=1.0, span=4.0,
    )  # fmt: skip

    figures = lane_figures([ran])

    assert (figures["inLayer3"], figures["inLayer2"], figures["never"]) == (0.5, 1.0, 1)
    assert figures["gangWaitHours"] == {"p50": 0.0, "p90": 1.0, "p99": 1.0, "max": 1.0}
    assert (figures["fragmentedShare"], figures["strandedShare"]) == (0.5, 0.25)
