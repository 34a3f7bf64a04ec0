"""The pin of rank 0 is read from its log and recorded once."""

from datetime import UTC, datetime
from typing import Any

import pytest

from evenkeel.domain.jobs.spec import ElasticSpec
from evenkeel.ports import EvenkeelError, NotFound, Refused, Unreachable
from evenkeel.services.attempts import record_pin
from evenkeel.services.storage import attempt_store
from evenkeel.training.layout import ResumePoint
from evenkeel.training.resume import ResumeChoice, report
from tests.fakes import Crash, CrashPlan
from tests.unit.services_jobs.job_scenario import JobScenario

BEGAN = datetime(2026, 11, 3, 10, 0, tzinfo=UTC)
PASSED_OVER = {
    "attempt": 1,
    "step": 20,
    "manifest": "attempt=1/step=000000020/manifest.json",
    "code": "SHARD_SIZE",
    "detail": "It is empty.",
}
REPORT = report(
    2,
    ResumeChoice(
        ResumePoint(1, 10, "attempt=1/step=000000010/manifest.json"),
        "PROVED",
        "Step 10 of attempt 1 is valid.",
        (PASSED_OVER,),
        BEGAN,
    ),
)


def mounted_job(log: str, plan: CrashPlan | None = None, **fields: Any) -> tuple[JobScenario, str]:
    """Return a job on mounted storage whose second attempt runs, with this log of rank 0."""
    scenario = JobScenario(plan=plan or CrashPlan())
    job_id = scenario.running(checkpoint_uri="file:///fsx/llama", checkpoint_claim="fsx", **fields).job_id
    scenario.world.cluster.fail_pods(job_id, 1, exit_code=2)
    scenario.settle(job_id)
    scenario.world.clock.advance(3600)
    scenario.run_scheduling_cycle()
    scenario.run_attempt(job_id, 2)
    scenario.world.cluster.text[f"{job_id}-a2-0"] = log
    return scenario, job_id


def record_pin_of(scenario: JobScenario, job_id: str, number: int = 2) -> bool:
    stored_attempt = attempt_store.load_attempt(scenario.ledger, job_id, number)
    return record_pin.run(stored_attempt, scenario.context())


def test_pin_of_rank_0_is_recorded_once() -> None:
    scenario, job_id = mounted_job(f"loading\n{REPORT}\nstep 11\n")

    assert [record_pin_of(scenario, job_id) for _ in range(2)] == [True, False]

    attempt = scenario.attempt(job_id, 2)
    assert attempt.resume_from
    assert (attempt.is_pinned, attempt.resume_from.step, attempt.resumed_work_from) == (True, 10, BEGAN)
    assert attempt.rejected_checkpoints == (PASSED_OVER,)
    assert scenario.timeline(job_id).count("pinned") == 1


def test_reported_throughput_counts_for_the_size_that_wrote_it() -> None:
    log = REPORT.replace('"throughput": null', '"throughput": 1750.5')
    scenario, job_id = mounted_job(log, elastic=ElasticSpec(min_nodes=1, max_nodes=2))

    scenario.world.cluster.finish_pods(job_id, 2)
    scenario.settle(job_id, 2)

    assert [
        (size_throughput.nodes, size_throughput.per_second)
        for size_throughput in scenario.job(job_id).measured_throughput
    ] == [(2, 1750.5)]


@pytest.mark.parametrize(
    "log",
    [
        "",
        "evenkeel resume-point {",
        "evenkeel resume-point []",
        "evenkeel resume-point " + "[" * 60_000,
        REPORT.replace('"attempt": 2', '"attempt": 3'),
        REPORT.replace('"resumeFrom": {"attempt": 1', '"resumeFrom": {"attempt": 2'),
        f"said {REPORT}",
    ],
)
def test_invalid_pin_is_not_recorded(log: str) -> None:
    scenario, job_id = mounted_job(log)

    assert not record_pin_of(scenario, job_id)
    assert not scenario.attempt(job_id, 2).is_pinned


def test_start_without_checkpoint_is_a_valid_pin() -> None:
    scenario, job_id = mounted_job(report(2, ResumeChoice(None, "NONE", "There is no checkpoint yet.")))

    assert record_pin_of(scenario, job_id)
    assert (scenario.attempt(job_id, 2).is_pinned, scenario.attempt(job_id, 2).resume_from) == (True, None)


@pytest.mark.parametrize("error", [NotFound("no pod"), Refused("it waits to start"), Unreachable("its node is gone")])
def test_unreadable_log_does_not_delay_settlement(error: EvenkeelError, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario, job_id = mounted_job("")

    def logs(*_: Any) -> str:
        raise error

    monkeypatch.setattr(scenario.world.cluster, "logs", logs)
    scenario.world.cluster.finish_pods(job_id, 2)

    assert scenario.settle(job_id, 2).outcome == "JOB_SUCCEEDED"


def test_sweep_and_settlement_both_read_the_pin() -> None:
    swept, job_id = mounted_job(REPORT)
    swept.sweep()
    assert swept.attempt(job_id, 2).is_pinned

    settled, job_id = mounted_job(REPORT)
    settled.world.cluster.finish_pods(job_id, 2)
    settled.settle(job_id, 2)
    assert settled.attempt(job_id, 2).is_pinned


def test_pin_of_an_s3_job_is_not_read_from_logs() -> None:
    scenario = JobScenario()
    job_id = scenario.running().job_id
    scenario.world.cluster.text[f"{job_id}-a1-0"] = REPORT

    assert not record_pin_of(scenario, job_id, 1)


@pytest.mark.parametrize("when", ["before", "after"])
def test_pin_is_recorded_once_after_a_crash(when: str) -> None:
    plan = CrashPlan()
    scenario, job_id = mounted_job(REPORT, plan)
    plan.at, plan.when = len(plan.effects) + 1, when

    with pytest.raises(Crash):
        record_pin_of(scenario, job_id)
    record_pin_of(scenario, job_id)

    assert scenario.attempt(job_id, 2).is_pinned
    assert scenario.timeline(job_id).count("pinned") == 1
