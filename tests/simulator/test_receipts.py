"""Receipts of whole simulated runs: records that the real services wrote, under faults, crashes and late facts."""

from itertools import pairwise

import pytest

from evenkeel.domain.costs.interruptions import interruptions
from evenkeel.domain.costs.receipt import InterruptionCause, Stage
from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.jobs.job import Job
from evenkeel.services.queries.costs import read_cost_report, read_receipts
from evenkeel.services.queries.disclosure import Reader
from evenkeel.services.queries.jobs import read_jobs
from tests.simulator.invariants import InvariantChecker
from tests.simulator.simulation import Simulation

SEEDS = (2, 3, 5, 6, 7, 10, 12)
"""Seeds whose faults, preemptions and failures of applications interrupt jobs."""


@pytest.fixture(scope="module")
def worlds() -> list[Simulation]:
    worlds_made = []
    for seed in SEEDS:
        world = Simulation(seed, InvariantChecker())
        world.run()
        worlds_made.append(world)
    return worlds_made


def jobs_of(world: Simulation) -> list[Job]:
    rows = [row for row in world.ledger.rows.values() if row.key.pk.startswith("JOB#job-") and row.key.sk == "META"]
    return [world.ledger.read(row, Job) for row in rows]


def incidents_of(world: Simulation) -> list[Incident]:
    rows = [row for row in world.ledger.rows.values() if row.key.pk.startswith("INC#") and row.key.sk == "META"]
    return [world.ledger.read(row, Incident) for row in rows]


def test_time_buckets_of_every_job_sum_to_its_elapsed_time(worlds: list[Simulation]) -> None:
    interrupted = 0
    for world in worlds:
        context = world.observer_context()
        for job in jobs_of(world):
            receipt = read_receipts.visible_job_receipt(job, Reader(), context)
            interrupted += len(receipt.interruptions)
            assert sum(round(bucket.seconds * 1e6) for bucket in receipt.buckets) == round(
                receipt.elapsed_seconds * 1e6
            ), (world.seed, job.job_id)
            assert all(bucket.seconds >= 0 for bucket in receipt.buckets), (world.seed, job.job_id)
    assert interrupted >= len(worlds)


def test_lost_time_of_an_attempt_belongs_to_one_incident(worlds: list[Simulation]) -> None:
    owned = 0
    for world in worlds:
        owners: dict[tuple[str, int], str] = {}
        context = world.observer_context()
        for incident in incidents_of(world):
            for interruption in read_receipts.visible_incident_receipt(
                incident, Reader(), context, may_see_all=True
            ).jobs:
                attempt_key = (interruption.job_id, interruption.attempt)
                assert owners.setdefault(attempt_key, incident.incident_id) == incident.incident_id, (
                    world.seed,
                    attempt_key,
                )
                owned += 1
    assert owned >= 4


def test_recoveries_have_known_stages_and_a_forecast(worlds: list[Simulation]) -> None:
    known = forecasts = 0
    for world in worlds:
        context = world.observer_context()
        for incident in incidents_of(world):
            receipt = read_receipts.visible_incident_receipt(incident, Reader(), context, may_see_all=True)
            for interruption in receipt.jobs:
                assert interruption.cause is InterruptionCause.INCIDENT
                if interruption.resumed_by_attempt:
                    known += interruption.seconds_of(Stage.WAIT_FOR_NODES) is not None
            forecasts += sum(option.actual_seconds is not None for option in receipt.options)
    assert known >= 3
    assert forecasts >= 3


def test_lost_spans_of_a_job_never_overlap(worlds: list[Simulation]) -> None:
    for world in worlds:
        for job in jobs_of(world):
            attempts = read_jobs.load_attempts(world.ledger, job.job_id, set())
            lost = interruptions(job, attempts, [], {}, world.observer_context().now)
            spans = sorted(span for lost_time in lost for _, span in lost_time.spans)
            assert all(before.end <= after.start for before, after in pairwise(spans)), (world.seed, job.job_id)


def test_cost_report_counts_every_gpu_hour_once(worlds: list[Simulation]) -> None:
    for world in worlds:
        report = read_cost_report.show_cost_report(read_cost_report.ReportWindow(), Reader(), world.observer_context())
        uses = sum(use["gpuHours"] for use in report["allNodes"]["uses"])
        assert uses == pytest.approx(report["allNodes"]["gpuHours"]), world.seed
        assert report["isComplete"], world.seed
        by_cause = sum(group["gpuHours"] for group in report["byCause"])
        assert by_cause == pytest.approx(report["lost"]["gpuHours"]), world.seed
