from datetime import datetime, timedelta
from typing import Any

import pytest

from evenkeel.domain.checkpoints import Distrust
from evenkeel.domain.economics.expected_durations import restore_durations
from evenkeel.domain.jobs.attempt import Attempt, AttemptState, PodPhase
from evenkeel.domain.jobs.job import CheckpointRequirement, Job, JobState, ResumeOption, ResumePlan
from evenkeel.domain.jobs.job_policy import JobPolicy
from evenkeel.domain.jobs.settlement import SettleOutcome
from evenkeel.domain.jobs.spec import ElasticSpec
from evenkeel.domain.policy import Policy
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.recovery.validation import HEALTH_STATUS
from evenkeel.domain.waiting import ConditionKind, Wait
from evenkeel.ports import NotAllowed, NotFound, Refused, TooLarge, TransientError
from evenkeel.services.attempts import pin_resume_point, settle_attempt
from evenkeel.services.attempts.launch_job import LaunchOutcome
from evenkeel.services.attempts.mark_running import RunningOutcome
from evenkeel.services.attempts.pin_resume_point import MAX_CHECKPOINTS_READ
from evenkeel.services.queries.disclosure import Reader
from evenkeel.services.queries.records import explain
from evenkeel.services.tables import job_rows, rows, subject_rows
from evenkeel.services.waits import open_wait
from tests.fakes import Crash
from tests.fakes.cluster import CLUSTER
from tests.unit.services_jobs.job_scenario import JobScenario

WRONGLY_REPORTED_END = {
    "outcome": "ENDED",
    "reason": "It failed.",
    "facts": {"state": "FAILED", "reason": "It failed.", "exitCodes": {}},
}
"""The answer of a wait that saw an end although pods still run."""


def stored_fence(scenario: JobScenario, job: Job) -> dict[str, Any] | None:
    return scenario.world.checkpoints.fence(job.spec.checkpoint_uri)[0]


def lose_attempt(scenario: JobScenario, job: Job, number: int = 1) -> str:
    """Disconnect the first node of an attempt, settle the attempt, and admit the next one."""
    name = scenario.attempt(job.job_id, number).node_names[0]
    scenario.world.cluster.lose_node(name)
    scenario.world.clock.advance(61)
    scenario.world.cluster.fail_pods(job.job_id, number, 1, exit_code=76)
    assert scenario.settle(job.job_id, number).outcome is SettleOutcome.JOB_REQUEUED
    assert scenario.run_scheduling_cycle().admitted == (f"{job.job_id}-a{number + 1}",)
    return name


# ---------------------------------------------------------------- launch


def test_first_launch_raises_fence_and_creates_job() -> None:
    scenario = JobScenario()
    job = scenario.started()

    result = scenario.launch(job.job_id)

    document = stored_fence(scenario, job)
    assert document
    assert (result.outcome, document["attempt"], document["resumeFrom"]) == (LaunchOutcome.LAUNCHED, 1, None)
    attempt = scenario.attempt(job.job_id)
    assert (attempt.state, attempt.workload_uid, attempt.is_pinned) == (AttemptState.LAUNCHED, "uid-1", True)


def test_second_launch_changes_nothing() -> None:
    scenario = JobScenario()
    job = scenario.started()
    scenario.launch(job.job_id)
    before = scenario.world.ledger.contents()

    assert scenario.launch(job.job_id).outcome is LaunchOutcome.LAUNCHED
    assert scenario.world.ledger.contents() == before
    assert [call[0] for call in scenario.world.cluster.calls] == ["launch"]


def test_attempt_resumes_from_the_newest_valid_checkpoint() -> None:
    scenario = JobScenario()
    job = scenario.running()
    scenario.save_checkpoint(job.job_id, 1, 10)
    good = scenario.save_checkpoint(job.job_id, 1, 20)
    bad = scenario.save_checkpoint(job.job_id, 1, 30)
    scenario.world.checkpoints.put(job.spec.checkpoint_uri, bad.replace("manifest.json", "shard-0-of-2.bin"), b"torn")
    lose_attempt(scenario, job)

    result = scenario.launch(job.job_id, 2)

    attempt = scenario.attempt(job.job_id, 2)
    assert attempt.resume_from
    assert (attempt.resume_from.manifest, result.outcome) == (good, LaunchOutcome.LAUNCHED)
    assert [(checkpoint["step"], checkpoint["code"]) for checkpoint in attempt.rejected_checkpoints] == [
        (30, "SHARD_SIZE")
    ]
    assert scenario.world.cluster.launched(job.job_id, 2).spec.resume_from == good


@pytest.mark.parametrize(
    ("elastic", "reported", "known"),
    [
        (ElasticSpec(min_nodes=1, max_nodes=2), 1750.5, [(2, 1750.5)]),
        (ElasticSpec(min_nodes=1, max_nodes=2), 0.0, []),
        (None, 1750.5, []),
    ],
)
def test_checkpoint_reports_the_throughput_of_its_attempt(
    elastic: ElasticSpec | None, reported: float, known: list[tuple[int, float]]
) -> None:
    scenario = JobScenario()
    job = scenario.running(elastic=elastic)
    scenario.save_checkpoint(job.job_id, 1, 10, throughput=reported)
    lose_attempt(scenario, job)

    scenario.run_attempt(job.job_id, 2)

    assert [
        (size_throughput.nodes, size_throughput.per_second)
        for size_throughput in scenario.job(job.job_id).measured_throughput
    ] == known


@pytest.mark.parametrize(
    ("name", "body", "code"),
    [
        ("shard-1-of-2.bin", None, "SHARD_MISSING"),
        ("shard-1-of-2.bin", b"llama 99 1", "SHARD_SIZE"),
        ("manifest.json", b"{", "MANIFEST_UNREADABLE"),
        ("manifest.json", None, "MANIFEST_MISSING"),
    ],
)
def test_broken_checkpoint_is_rejected_and_named(name: str, body: bytes | None, code: str) -> None:
    scenario = JobScenario()
    job = scenario.running()
    scenario.save_checkpoint(job.job_id, 1, 10)
    spoil_checkpoint(scenario, job, scenario.save_checkpoint(job.job_id, 1, 20), name, body)
    lose_attempt(scenario, job)

    scenario.launch(job.job_id, 2)

    attempt = scenario.attempt(job.job_id, 2)
    assert attempt.resume_from
    assert (attempt.resume_from.step, [checkpoint["code"] for checkpoint in attempt.rejected_checkpoints]) == (
        10,
        [code],
    )


def spoil_checkpoint(scenario: JobScenario, job: Job, manifest: str, name: str, body: bytes | None) -> None:
    key = manifest.replace("manifest.json", name)
    if body is None:
        del scenario.world.checkpoints.objects[job.spec.checkpoint_uri][key]
    else:
        scenario.world.checkpoints.put(job.spec.checkpoint_uri, key, body)


def test_attempt_without_a_finished_checkpoint_starts_from_the_beginning() -> None:
    scenario = JobScenario()
    job = scenario.running()
    spoil_checkpoint(scenario, job, scenario.save_checkpoint(job.job_id, 1, 10), "manifest.json", None)
    lose_attempt(scenario, job)

    result = scenario.launch(job.job_id, 2)

    attempt = scenario.attempt(job.job_id, 2)
    assert (result.outcome, attempt.resume_from, attempt.is_pinned) == (LaunchOutcome.LAUNCHED, None, True)
    assert [checkpoint["code"] for checkpoint in attempt.rejected_checkpoints] == ["MANIFEST_MISSING"]


def test_nothing_is_launched_without_a_proven_checkpoint() -> None:
    scenario = JobScenario()
    job = scenario.running()
    spoil_checkpoint(scenario, job, scenario.save_checkpoint(job.job_id, 1, 10), "shard-1-of-2.bin", None)
    lose_attempt(scenario, job)
    before = stored_fence(scenario, job)

    result = scenario.launch(job.job_id, 2)
    again = scenario.launch(job.job_id, 2)
    settled = scenario.settle(job.job_id, 2)

    attempt, waiting = scenario.attempt(job.job_id, 2), scenario.job(job.job_id)
    assert (result.outcome, again) == (LaunchOutcome.GIVE_UP, result)
    assert (settled.outcome, attempt.state, attempt.is_pinned) == (
        SettleOutcome.JOB_REQUEUED,
        AttemptState.NEVER_RAN,
        False,
    )
    assert [checkpoint["code"] for checkpoint in attempt.rejected_checkpoints] == ["SHARD_MISSING"]
    assert (waiting.state, waiting.application_failures, scenario.usage()) == (JobState.PENDING, 0, 0)
    assert "SHARD_MISSING" in waiting.reason
    assert "SHARD_MISSING" in explain.why_job(job.job_id, Reader(), scenario.world.context())["sentence"]
    assert stored_fence(scenario, job) == before
    assert f"{job.job_id}-a2" not in [call[1] for call in scenario.world.cluster.calls]
    assert scenario.world.telemetry.totals["LaunchesWithoutCheckpoint"] == 2


def test_next_attempt_skips_a_checkpoint_reported_unreadable() -> None:
    scenario = JobScenario()
    job = scenario.running()
    older = scenario.save_checkpoint(job.job_id, 1, 10)
    newer = scenario.save_checkpoint(job.job_id, 1, 20)
    scenario.world.checkpoints.without_checksum.add(newer.replace("manifest.json", "shard-1-of-2.bin"))
    lose_attempt(scenario, job)
    scenario.run_attempt(job.job_id, 2)
    second = scenario.attempt(job.job_id, 2)
    scenario.world.cluster.fail_pods(job.job_id, 2, exit_code=66)

    settled = scenario.settle(job.job_id, 2)
    scenario.run_scheduling_cycle()
    scenario.launch(job.job_id, 3)

    third, ended = scenario.attempt(job.job_id, 3), scenario.attempt(job.job_id, 2)
    assert second.resume_from
    assert third.resume_from
    assert (second.resume_from.manifest, third.resume_from.manifest) == (newer, older)
    assert [(checkpoint["step"], checkpoint["code"]) for checkpoint in third.rejected_checkpoints] == [(20, "DAMAGED")]
    assert (settled.outcome, ended.state) == (SettleOutcome.JOB_REQUEUED, AttemptState.LOST)
    assert ended.reason == "The checkpoint it resumed from (step 20 of attempt 1) is damaged."
    assert scenario.job(job.job_id).application_failures == 0


def test_oversized_manifest_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = JobScenario()
    job = scenario.running()
    older, newer = (scenario.save_checkpoint(job.job_id, 1, step) for step in (10, 20))
    lose_attempt(scenario, job)

    def read(uri: str, key: str) -> bytes:
        if key == newer:
            raise TooLarge("17 MiB")
        return small(uri, key)

    small = scenario.world.checkpoints.read
    monkeypatch.setattr(scenario.world.checkpoints, "read", read)
    scenario.launch(job.job_id, 2)

    second = scenario.attempt(job.job_id, 2)
    assert second.resume_from
    assert second.resume_from.manifest == older
    assert [(checkpoint["step"], checkpoint["code"]) for checkpoint in second.rejected_checkpoints] == [
        (20, "MANIFEST_UNREADABLE")
    ]


def test_damaged_checkpoints_never_restart_training_from_the_beginning() -> None:
    scenario = JobScenario()
    job = scenario.running()
    only = scenario.save_checkpoint(job.job_id, 1, 20)
    scenario.world.checkpoints.without_checksum.add(only.replace("manifest.json", "shard-1-of-2.bin"))
    lose_attempt(scenario, job)
    scenario.run_attempt(job.job_id, 2)
    scenario.world.cluster.fail_pods(job.job_id, 2, exit_code=66)
    scenario.settle(job.job_id, 2)
    scenario.run_scheduling_cycle()

    result = scenario.launch(job.job_id, 3)

    assert result.outcome is LaunchOutcome.GIVE_UP
    assert "step 20 of attempt 1 (DAMAGED)" in result.reason


def test_job_resumes_once_its_checkpoint_is_restored() -> None:
    scenario = JobScenario()
    job = scenario.running()
    key = scenario.save_checkpoint(job.job_id, 1, 10)
    shard = key.replace("manifest.json", "shard-1-of-2.bin")
    kept = scenario.world.checkpoints.objects[job.spec.checkpoint_uri][shard]
    spoil_checkpoint(scenario, job, key, "shard-1-of-2.bin", None)
    lose_attempt(scenario, job)
    scenario.launch(job.job_id, 2)
    scenario.settle(job.job_id, 2)

    scenario.world.checkpoints.put(job.spec.checkpoint_uri, shard, kept)
    scenario.world.clock.advance(30)
    scenario.run_scheduling_cycle()
    scenario.launch(job.job_id, 3)

    point = scenario.attempt(job.job_id, 3).resume_from
    assert point
    assert point.manifest == key


def test_policy_may_restart_training_without_a_proven_checkpoint() -> None:
    policy = Policy(jobs=JobPolicy(start_over_when_unproven=True))
    scenario = JobScenario(policy=policy)
    job = scenario.running()
    spoil_checkpoint(scenario, job, scenario.save_checkpoint(job.job_id, 1, 10), "shard-1-of-2.bin", None)
    lose_attempt(scenario, job)

    assert scenario.launch(job.job_id, 2).outcome is LaunchOutcome.LAUNCHED
    assert scenario.attempt(job.job_id, 2).resume_from is None


@pytest.mark.parametrize(("is_accepted", "step"), [(True, 30), (False, 10)])
def test_checkpoint_without_manifest_is_used_if_policy_accepts_it(is_accepted: bool, step: int) -> None:
    scenario = JobScenario(policy=Policy(jobs=JobPolicy(convention_accepted_after=("restart",) if is_accepted else ())))
    job = scenario.running()
    scenario.save_checkpoint(job.job_id, 1, 10)
    for name in (".metadata", "__0_0.distcp", "__1_0.distcp"):
        scenario.world.checkpoints.put(job.spec.checkpoint_uri, f"attempt=1/step=000000030/{name}", b"dcp")
    lose_attempt(scenario, job)

    scenario.launch(job.job_id, 2)

    point = scenario.attempt(job.job_id, 2).resume_from
    assert point
    assert point.step == step


@pytest.mark.parametrize(
    ("requirement", "step"), [(CheckpointRequirement.CONVENTION, 30), (CheckpointRequirement.PROOF, 10)]
)
def test_resume_plan_decides_whether_checkpoint_without_manifest_is_used(
    requirement: CheckpointRequirement, step: int
) -> None:
    scenario = JobScenario(policy=Policy(jobs=JobPolicy(convention_accepted_after=())))
    job = scenario.running()
    scenario.save_checkpoint(job.job_id, 1, 10)
    for name in (".metadata", "__0_0.distcp", "__1_0.distcp"):
        scenario.world.checkpoints.put(job.spec.checkpoint_uri, f"attempt=1/step=000000030/{name}", b"dcp")
    plan = ResumePlan(
        incident_id="inc-1",
        after_attempt=1,
        option=ResumeOption.FREE_NODE,
        requirement=requirement,
        planned_at=scenario.world.clock.now(),
    )
    scenario.set_job(scenario.job(job.job_id).with_plan(plan, is_still_distrusted=False))
    lose_attempt(scenario, job)

    scenario.launch(job.job_id, 2)

    point = scenario.attempt(job.job_id, 2).resume_from
    assert point
    assert point.step == step


def test_each_rejected_checkpoint_is_recorded_with_its_reason() -> None:
    scenario = JobScenario()
    job = scenario.running()
    for step in (10, 20, 30):
        scenario.save_checkpoint(job.job_id, 1, step, seconds=step)
    plan = ResumePlan(
        incident_id="inc-1",
        after_attempt=1,
        option=ResumeOption.FREE_NODE,
        requirement=CheckpointRequirement.EVIDENCE,
        planned_at=scenario.world.clock.now(),
    )
    scenario.set_job(scenario.job(job.job_id).with_plan(plan, is_still_distrusted=False))
    lose_attempt(scenario, job)

    scenario.launch(job.job_id, 2)

    attempt = scenario.attempt(job.job_id, 2)
    assert attempt.resume_from
    assert (attempt.resume_from.step, attempt.resumed_work_from) == (
        20,
        plan.planned_at + timedelta(seconds=20),
    )
    assert [(checkpoint["step"], checkpoint["code"]) for checkpoint in attempt.rejected_checkpoints] == [
        (30, "NO_CLEAN_RUN")
    ]
    assert all(checkpoint["detail"] for checkpoint in attempt.rejected_checkpoints)


def test_launch_examines_a_bounded_number_of_checkpoints() -> None:
    scenario = JobScenario()
    job = scenario.running()
    scenario.save_checkpoint(job.job_id, 1, 1)
    for step in range(2, MAX_CHECKPOINTS_READ + 3):
        spoil_checkpoint(scenario, job, scenario.save_checkpoint(job.job_id, 1, step), "shard-1-of-2.bin", None)
    lose_attempt(scenario, job)

    result = scenario.launch(job.job_id, 2)

    codes = [checkpoint["code"] for checkpoint in scenario.attempt(job.job_id, 2).rejected_checkpoints]
    assert result.outcome is LaunchOutcome.GIVE_UP
    assert codes == ["SHARD_MISSING"] * MAX_CHECKPOINTS_READ + ["NOT_EXAMINED"]


def test_rank_0_chooses_checkpoints_that_functions_cannot_read() -> None:
    scenario = JobScenario()
    job = scenario.running(checkpoint_uri="file:///fsx/llama", checkpoint_claim="fsx")
    plan = ResumePlan(
        incident_id="inc-1",
        after_attempt=1,
        option=ResumeOption.FREE_NODE,
        distrust_after=scenario.world.clock.now(),
        planned_at=scenario.world.clock.now(),
    )
    scenario.set_job(scenario.job(job.job_id).with_plan(plan, is_still_distrusted=False))
    lose_attempt(scenario, job)

    result = scenario.launch(job.job_id, 2)

    attempt, spec = scenario.attempt(job.job_id, 2), scenario.world.cluster.launched(job.job_id, 2).spec
    assert (result.outcome, attempt.state, attempt.is_pinned) == (
        LaunchOutcome.LAUNCHED,
        AttemptState.LAUNCHED,
        False,
    )
    assert "Rank 0 verifies them" in attempt.reason
    assert spec.proof_rules
    assert spec.proof_rules.distrust == Distrust(after=plan.distrust_after, through_attempt=1)
    assert (spec.proof_rules.accepts_convention, spec.proof_rules.may_start_over) == (True, False)
    assert scenario.world.checkpoints.objects == {}


def test_attempt_that_verified_no_checkpoint_uses_a_restart() -> None:
    scenario = JobScenario()
    job = scenario.running(checkpoint_uri="file:///fsx/llama", checkpoint_claim="fsx")
    scenario.world.cluster.fail_pods(job.job_id, 1, exit_code=65)

    scenario.settle(job.job_id)

    waiting = scenario.job(job.job_id)
    assert (waiting.state, waiting.application_failures) == (JobState.PENDING, 1)
    assert "could verify none" in waiting.reason


def test_late_checkpoint_of_a_fenced_attempt_is_never_used() -> None:
    scenario = JobScenario()
    job = scenario.running()
    pinned = scenario.save_checkpoint(job.job_id, 1, 20)
    lose_attempt(scenario, job)
    scenario.launch(job.job_id, 2)
    scenario.save_checkpoint(job.job_id, 1, 40)
    scenario.world.cluster.run_pods(job.job_id, 2)
    scenario.mark_running(job.job_id, 2)
    scenario.world.cluster.fail_pods(job.job_id, 2, exit_code=1)
    scenario.settle(job.job_id, 2)
    scenario.world.clock.advance(60)
    scenario.run_scheduling_cycle()

    scenario.launch(job.job_id, 3)

    attempt = scenario.attempt(job.job_id, 3)
    assert attempt.resume_from
    assert (attempt.resume_from.manifest, attempt.rejected_checkpoints[0]["code"]) == (pinned, "FENCED")


def test_distrusted_checkpoint_is_rejected() -> None:
    scenario = JobScenario()
    job = scenario.running()
    trusted = scenario.save_checkpoint(job.job_id, 1, 10, seconds=-100)
    scenario.save_checkpoint(job.job_id, 1, 20, seconds=0)
    plan = ResumePlan(
        incident_id="inc-1",
        after_attempt=1,
        option=ResumeOption.FREE_NODE,
        distrust_after=scenario.world.clock.now().replace(second=0),
        planned_at=scenario.world.clock.now(),
    )
    scenario.set_job(scenario.job(job.job_id).with_plan(plan, is_still_distrusted=False))
    lose_attempt(scenario, job)

    scenario.launch(job.job_id, 2)

    attempt = scenario.attempt(job.job_id, 2)
    assert attempt.resume_from
    assert (attempt.resume_from.manifest, attempt.rejected_checkpoints[0]["code"]) == (trusted, "DISTRUSTED")


def test_launch_waits_for_reachable_pods_of_the_last_attempt() -> None:
    scenario = JobScenario()
    job = scenario.running()
    scenario.world.cluster.lose_node(scenario.attempt(job.job_id).node_names[0])
    scenario.settle(job.job_id, ended=WRONGLY_REPORTED_END)
    scenario.run_scheduling_cycle()

    early = scenario.launch(job.job_id, 2)
    document = stored_fence(scenario, job)
    scenario.world.clock.advance(60)
    late = scenario.launch(job.job_id, 2)

    assert document
    assert (early.outcome, early.wait_seconds, document["attempt"]) == (LaunchOutcome.NOT_YET, 5, 1)
    assert late.outcome is LaunchOutcome.LAUNCHED


def test_launch_deletes_pods_that_a_crash_left() -> None:
    scenario = JobScenario()
    job = scenario.running()
    stop = scenario.world.cluster.stop
    scenario.world.cluster.stop = lambda *_: None  # type: ignore[method-assign]  # the settlement's last effect is lost
    scenario.settle(job.job_id, ended=WRONGLY_REPORTED_END)
    scenario.world.cluster.stop = stop  # type: ignore[method-assign]
    scenario.set_job(scenario.job(job.job_id).replace(spec=job.spec.replace(nodes=1)))
    scenario.run_scheduling_cycle()

    first = scenario.launch(job.job_id, 2)
    second = scenario.launch(job.job_id, 2)

    assert (first.outcome, second.outcome) == (LaunchOutcome.NOT_YET, LaunchOutcome.LAUNCHED)
    assert ("stop", f"{job.job_id}-a1", 30) in scenario.world.cluster.calls


def test_unstarted_attempt_does_not_hide_pods_of_the_previous_attempt() -> None:
    scenario = JobScenario()
    job = scenario.running(nodes=1)
    scenario.world.cluster.lose_node(scenario.attempt(job.job_id).node_names[0])
    scenario.settle(job.job_id, ended=WRONGLY_REPORTED_END)
    scenario.run_scheduling_cycle()
    scenario.settle(job.job_id, 2)  # its launch was given up
    scenario.world.clock.advance(30)
    scenario.run_scheduling_cycle()

    early = scenario.launch(job.job_id, 3)
    scenario.world.clock.advance(60)
    late = scenario.launch(job.job_id, 3)

    assert (early.outcome, late.outcome) == (LaunchOutcome.NOT_YET, LaunchOutcome.LAUNCHED)
    assert ("force_delete_pods", f"{job.job_id}-a1") in [call[:2] for call in scenario.world.cluster.calls]


def test_concurrently_raised_fence_is_read_again() -> None:
    scenario = JobScenario()
    job = scenario.started()
    raise_fence = scenario.world.checkpoints.raise_fence
    rivals = iter([3])

    def overtaken(uri: str, document: dict[str, Any], tag: str) -> None:
        for attempt in rivals:
            raise_fence(uri, {"schemaVersion": 1, "attempt": attempt, "resumeFrom": None, "history": []}, tag)
        raise_fence(uri, document, tag)

    scenario.world.checkpoints.raise_fence = overtaken  # type: ignore[method-assign]

    assert scenario.launch(job.job_id).outcome is LaunchOutcome.STALE
    assert not scenario.world.cluster.calls


def test_pods_on_a_lost_node_are_fenced_and_ignored() -> None:
    scenario = JobScenario()
    job = scenario.running()
    name = lose_attempt(scenario, job)

    assert scenario.launch(job.job_id, 2).outcome is LaunchOutcome.LAUNCHED

    calls = [call[0] for call in scenario.world.cluster.calls]
    assert calls[-2:] == ["force_delete_pods", "launch"]
    assert ("force_delete_pods", f"{job.job_id}-a1", (name,)) in scenario.world.cluster.calls
    assert stored_fence(scenario, job)["attempt"] == 2  # type: ignore[index]  # just raised


def test_attempt_with_a_number_below_the_fence_is_stale() -> None:
    scenario = JobScenario()
    job = scenario.started()
    scenario.world.checkpoints.raise_fence(
        job.spec.checkpoint_uri, {"schemaVersion": 1, "attempt": 5, "resumeFrom": None, "history": []}, ""
    )

    assert scenario.launch(job.job_id).outcome is LaunchOutcome.STALE
    assert not scenario.world.cluster.calls


def test_settled_attempt_is_stale() -> None:
    scenario = JobScenario()
    job = scenario.running()
    scenario.world.cluster.finish_pods(job.job_id, 1)
    scenario.settle(job.job_id)

    assert scenario.launch(job.job_id).outcome is LaunchOutcome.STALE
    assert scenario.mark_running(job.job_id).outcome is RunningOutcome.STALE


def test_observe_mode_requeues_the_job_without_launching() -> None:
    scenario = JobScenario()
    job = scenario.started()
    scenario.mode = Mode.OBSERVE

    result = scenario.launch(job.job_id)
    settled = scenario.settle(job.job_id)

    assert (result.outcome, result.reason) == (LaunchOutcome.GIVE_UP, "Mode is observe: Evenkeel launches nothing.")
    assert (settled.outcome, scenario.attempt(job.job_id).state) == (SettleOutcome.JOB_REQUEUED, AttemptState.NEVER_RAN)
    assert (scenario.attempt(job.job_id).reason, scenario.usage()) == ("Mode is observe: Evenkeel launches nothing.", 0)
    assert (stored_fence(scenario, job), scenario.world.cluster.calls) == (None, [])


def test_launch_past_its_deadline_is_given_up() -> None:
    scenario = JobScenario()
    job = scenario.started()
    scenario.world.clock.advance(901)

    assert scenario.launch(job.job_id).outcome is LaunchOutcome.GIVE_UP


@pytest.mark.parametrize("is_late", [False, True])
def test_job_created_by_a_lost_reply_is_stopped_before_settlement(*, is_late: bool) -> None:
    scenario = JobScenario(runs_at_once=True)
    job = scenario.started()
    scenario.plan.effects.clear()
    scenario.plan.at, scenario.plan.when = 2, "after"
    with pytest.raises(Crash):
        scenario.launch(job.job_id)
    assert scenario.plan.effects[-1] == "launch"
    if is_late:
        scenario.world.clock.advance(901)
    else:
        scenario.cancel(job.job_id)

    assert scenario.launch(job.job_id).outcome is LaunchOutcome.LAUNCHED
    assert scenario.attempt(job.job_id).state is AttemptState.LAUNCHED
    assert scenario.world.cluster.workload(scenario.attempt(job.job_id)).has_runnable_pods


def test_cancelled_job_is_not_launched() -> None:
    scenario = JobScenario()
    job = scenario.started()
    scenario.cancel(job.job_id)

    assert scenario.launch(job.job_id).outcome is LaunchOutcome.GIVE_UP
    assert scenario.settle(job.job_id).outcome is SettleOutcome.JOB_CANCELLED
    assert not scenario.world.cluster.calls


def test_refused_manifest_fails_the_job_with_the_cluster_message() -> None:
    scenario = JobScenario()
    job = scenario.started()

    def refuse(spec: Any) -> Any:
        raise Refused("Job is invalid: spec.template.spec.containers[0].image")

    scenario.world.cluster.launch = refuse  # type: ignore[method-assign]

    assert scenario.launch(job.job_id).outcome is LaunchOutcome.GIVE_UP
    assert scenario.settle(job.job_id).outcome is SettleOutcome.JOB_FAILED
    assert "spec.containers[0].image" in scenario.job(job.job_id).reason


@pytest.mark.parametrize("error", [NotAllowed("exceeded quota: gpus"), NotFound('namespaces "red" not found')])
def test_temporarily_refused_manifest_is_retried_after_a_pause(error: Exception) -> None:
    scenario = JobScenario()
    job = scenario.started()

    def refuse(spec: Any) -> Any:
        raise error

    scenario.world.cluster.launch = refuse  # type: ignore[method-assign]

    assert scenario.launch(job.job_id).outcome is LaunchOutcome.GIVE_UP
    assert scenario.settle(job.job_id).outcome is SettleOutcome.JOB_REQUEUED
    waiting = scenario.job(job.job_id)
    assert str(error) in waiting.reason
    assert waiting.not_before
    assert waiting.application_failures == 0


def test_launch_into_a_new_kueue_namespace_fails_the_job() -> None:
    scenario = JobScenario()
    job = scenario.started()
    scenario.world.cluster.kueue_managed[job.namespace] = "its LocalQueue default"

    assert [scenario.launch(job.job_id).outcome for _ in range(2)] == [LaunchOutcome.GIVE_UP] * 2
    assert scenario.settle(job.job_id).outcome is SettleOutcome.JOB_FAILED
    assert "was suspended at its creation" in scenario.job(job.job_id).reason
    assert not scenario.world.cluster.workloads(CLUSTER)
    assert not scenario.charges()


def test_bucket_that_was_never_reachable_fails_job() -> None:
    scenario = JobScenario()
    job = scenario.started()

    def deny(uri: str) -> Any:
        raise NotAllowed("s3:GetObject on checkpoints/llama/_fence")

    scenario.world.checkpoints.fence = deny  # type: ignore[method-assign]

    assert scenario.launch(job.job_id).outcome is LaunchOutcome.GIVE_UP
    assert scenario.settle(job.job_id).outcome is SettleOutcome.JOB_FAILED


def test_unreadable_fence_never_counts_as_no_fence() -> None:
    scenario = JobScenario()
    job = scenario.started()
    scenario.world.checkpoints.put(job.spec.checkpoint_uri, "_fence", b'{"schemaVersion": 9}')

    assert scenario.launch(job.job_id).outcome is LaunchOutcome.GIVE_UP
    assert not scenario.world.cluster.calls


def test_job_without_checkpoints_restarts_from_the_beginning() -> None:
    scenario = JobScenario()
    job = scenario.running(checkpoint_uri="")
    lose_attempt(scenario, job)

    assert scenario.launch(job.job_id, 2).outcome is LaunchOutcome.LAUNCHED
    assert scenario.attempt(job.job_id, 2).resume_from is None
    assert scenario.world.checkpoints.objects == {}


# ---------------------------------------------------------------- running, stopping


def test_running_attempt_is_marked_once() -> None:
    scenario = JobScenario()
    job = scenario.running()
    before = scenario.world.ledger.contents()

    assert scenario.mark_running(job.job_id).outcome is RunningOutcome.RUNNING
    assert scenario.world.ledger.contents() == before
    assert (job.state, scenario.attempt(job.job_id).state) == (JobState.RUNNING, AttemptState.RUNNING)


def test_job_cancelled_while_it_starts_stays_stopping() -> None:
    scenario = JobScenario()
    job = scenario.started()
    scenario.launch(job.job_id)
    scenario.cancel(job.job_id)
    scenario.mark_running(job.job_id)

    assert scenario.job(job.job_id).state is JobState.STOPPING


def test_stop_uses_grace_of_request() -> None:
    scenario = JobScenario()
    job = scenario.running(grace_seconds=90)
    scenario.cancel(job.job_id)

    scenario.stop(job.job_id)
    scenario.stop(job.job_id)

    assert scenario.world.cluster.calls[-1] == ("stop", f"{job.job_id}-a1", 90)
    assert [call[0] for call in scenario.world.cluster.calls].count("stop") == 1
    assert scenario.settle(job.job_id).outcome is SettleOutcome.JOB_CANCELLED


def test_missed_start_deadline_is_recorded_as_reason() -> None:
    scenario = JobScenario()
    job = scenario.started()
    scenario.launch(job.job_id)
    scenario.world.cluster.set_pods(job.job_id, 1, PodPhase.PENDING, reason="ImagePullBackOff")

    scenario.stop(job.job_id)
    result = scenario.settle(job.job_id)

    assert (result.outcome, scenario.attempt(job.job_id).state) == (SettleOutcome.JOB_REQUEUED, AttemptState.NEVER_RAN)
    assert "did not start in time (ImagePullBackOff)" in scenario.attempt(job.job_id).reason
    assert scenario.job(job.job_id).application_failures == 1


# ---------------------------------------------------------------- settle


def test_success_releases_the_charge_and_keeps_the_logs() -> None:
    scenario = JobScenario()
    job = scenario.running()
    scenario.world.cluster.finish_pods(job.job_id, 1)

    result = scenario.settle(job.job_id)

    assert (result.outcome, scenario.job(job.job_id).state) == (SettleOutcome.JOB_SUCCEEDED, JobState.SUCCEEDED)
    assert (scenario.usage(), scenario.charges()) == (0, [])
    assert "stop" not in [call[0] for call in scenario.world.cluster.calls]


def test_settling_twice_releases_the_charge_once() -> None:
    scenario = JobScenario()
    job = scenario.running()
    scenario.world.cluster.fail_pods(job.job_id, 1)
    scenario.settle(job.job_id)
    before = scenario.world.ledger.contents()

    result = scenario.settle(job.job_id)

    assert result.outcome is SettleOutcome.ALREADY_SETTLED
    assert scenario.world.ledger.contents() == before
    assert scenario.usage() == 0


def test_failure_is_attributed_to_an_open_incident() -> None:
    from evenkeel.ports import Put
    from evenkeel.services.tables import incident_rows

    scenario = JobScenario()
    job = scenario.running()
    scenario.world.cluster.fail_pods(job.job_id, 1, exit_code=1)
    scenario.world.ledger.commit(Put(incident_rows.open_row(scenario.attempt(job.job_id).nodes[1], "inc-1")))

    scenario.settle(job.job_id)

    assert scenario.attempt(job.job_id).state is AttemptState.LOST
    assert scenario.job(job.job_id).application_failures == 0


@pytest.mark.parametrize(
    "marks",
    [{"labels": {HEALTH_STATUS: "UnschedulablePendingReplacement"}}, {"is_cordoned": True, "incident_id": "inc-1"}],
    ids=["by HyperPod's agent", "by a recovery"],
)
def test_failure_is_attributed_to_a_faulty_node_before_its_incident(marks: dict[str, Any]) -> None:
    scenario = JobScenario()
    job = scenario.running(max_restarts=0)
    scenario.world.cluster.set_node(scenario.attempt(job.job_id).node_names[1], **marks)
    scenario.world.cluster.fail_pods(job.job_id, 1, exit_code=134)

    result = scenario.settle(job.job_id)

    assert result.outcome is SettleOutcome.JOB_REQUEUED
    assert scenario.attempt(job.job_id).state is AttemptState.LOST


def test_recorded_wait_answer_applies_if_the_pods_are_gone() -> None:
    scenario = JobScenario()
    job = scenario.running()
    scenario.world.cluster.jobs.clear()
    ended = {
        "outcome": "ENDED",
        "reason": "It failed.",
        "facts": {"state": "FAILED", "reason": "pod 1 failed (exit code 3).", "exitCodes": {"pod": 3}},
    }

    scenario.settle(job.job_id, ended=ended)

    assert (scenario.attempt(job.job_id).exit_codes, scenario.job(job.job_id).application_failures) == ({"pod": 3}, 1)


def test_wait_answer_without_an_end_is_ignored() -> None:
    scenario = JobScenario()
    job = scenario.running()
    scenario.world.cluster.finish_pods(job.job_id, 1)

    result = scenario.settle(job.job_id, ended={"outcome": "RUNNING", "reason": "All pods run.", "facts": {}})

    assert result.outcome is SettleOutcome.JOB_SUCCEEDED


FAILURE = {"Error": "TransientError", "Cause": "Throttled: get POLICY#site"}


def test_failed_workflow_neither_settles_nor_stops_running_attempt() -> None:
    scenario = JobScenario()
    job = scenario.running()

    result = scenario.settle(job.job_id, failure=FAILURE)

    assert (result.outcome, result.wait_seconds) == (SettleOutcome.STILL_RUNS, 300)
    assert (scenario.attempt(job.job_id).state, scenario.job(job.job_id).state) == (
        AttemptState.RUNNING,
        JobState.RUNNING,
    )
    assert (scenario.usage(), len(scenario.charges())) == (scenario.attempt(job.job_id).accelerators, 1)
    assert "stop" not in [call[0] for call in scenario.world.cluster.calls]
    scenario.world.cluster.finish_pods(job.job_id, 1)
    assert scenario.settle(job.job_id, failure=FAILURE).outcome is SettleOutcome.JOB_SUCCEEDED


def test_failed_workflow_leaves_launched_attempt_whose_pods_all_run() -> None:
    scenario = JobScenario()
    job = scenario.started()
    scenario.launch(job.job_id)
    scenario.world.cluster.run_pods(job.job_id, 1)

    assert scenario.settle(job.job_id, failure=FAILURE).outcome is SettleOutcome.STILL_RUNS
    assert scenario.mark_running(job.job_id).outcome is RunningOutcome.RUNNING


def test_failed_workflow_requeues_job_whose_pods_do_not_run() -> None:
    scenario = JobScenario()
    job = scenario.started()
    scenario.launch(job.job_id)

    result = scenario.settle(job.job_id, failure=FAILURE)

    assert (result.outcome, scenario.attempt(job.job_id).state) == (SettleOutcome.JOB_REQUEUED, AttemptState.NEVER_RAN)
    assert scenario.world.cluster.calls[-1][0] == "stop"


def test_failed_workflow_settles_attempt_that_was_asked_to_stop() -> None:
    scenario = JobScenario()
    job = scenario.running()
    scenario.cancel(job.job_id)

    assert scenario.settle(job.job_id, failure=FAILURE).outcome is SettleOutcome.JOB_CANCELLED


def deadline_of_run(scenario: JobScenario, job_id: str) -> datetime:
    """Open the wait for the end of attempt 1, and return its deadline."""
    request = open_wait.OpenWaitRequest(kind=ConditionKind.ATTEMPT_ENDED, token="token", job_id=job_id, attempt=1)
    open_wait.run(request, scenario.context())
    row = scenario.world.ledger.get(subject_rows.wait_key(job_id, "attempt-1-ended"))
    assert row
    return rows.decode(row, Wait).deadline_at


def test_resumed_wait_keeps_run_deadline() -> None:
    scenario = JobScenario()
    job = scenario.running()
    deadline = deadline_of_run(scenario, job.job_id)
    scenario.world.clock.advance(3600)

    assert scenario.settle(job.job_id, failure=FAILURE).outcome is SettleOutcome.STILL_RUNS
    assert deadline_of_run(scenario, job.job_id) == deadline


def test_failed_stop_after_run_deadline_is_repeated() -> None:
    scenario = JobScenario()
    job = scenario.running()
    scenario.world.clock.advance(scenario.policy.jobs.run_deadline_seconds + 60)
    passed = {"outcome": "DEADLINE_PASSED", "reason": "The deadline passed."}

    assert scenario.settle(job.job_id, ended=passed, failure=FAILURE).outcome is SettleOutcome.STILL_RUNS

    assert deadline_of_run(scenario, job.job_id) == scenario.world.clock.now() + timedelta(seconds=1)
    scenario.stop(job.job_id)
    assert scenario.settle(job.job_id, ended=passed).outcome is SettleOutcome.JOB_FAILED
    assert scenario.attempt(job.job_id).reason == "The attempt ran past its deadline."


def test_running_attempt_without_reported_end_is_not_settled() -> None:
    scenario = JobScenario()
    job = scenario.running()

    assert scenario.settle(job.job_id).outcome is SettleOutcome.STILL_RUNS
    passed = {"outcome": "DEADLINE_PASSED", "reason": "The deadline passed."}
    assert scenario.settle(job.job_id, ended=passed).outcome is SettleOutcome.JOB_FAILED


def test_timeline_shows_the_whole_life_of_a_job() -> None:
    scenario = JobScenario()
    job = scenario.running()
    scenario.world.cluster.finish_pods(job.job_id, 1)
    scenario.settle(job.job_id)

    assert set(scenario.timeline(job.job_id)) == {"submitted", "admitted", "launched", "running", "settled"}


# ---------------------------------------------------------------- the restore of an earlier attempt


def launch_third_attempt(
    saved: dict[int, float], ran_seconds: float = 2000, *, is_measured_at_end: bool = True
) -> tuple[JobScenario, str]:
    """Run attempt 2 from step 10, save these steps some seconds after its pods started, and launch attempt 3."""
    scenario = JobScenario()
    job = scenario.running()
    scenario.save_checkpoint(job.job_id, 1, 10)
    lose_attempt(scenario, job)
    scenario.run_attempt(job.job_id, 2)
    for step, seconds in saved.items():
        scenario.save_checkpoint(job.job_id, 2, step, seconds)
    scenario.world.clock.advance(ran_seconds)
    lose_attempt(scenario, job, 2)
    if not is_measured_at_end:
        unmeasured = scenario.attempt(job.job_id, 2).replace(trained_at=None, save_seconds=None)
        scenario.store_row(job_rows.attempt_row(unmeasured, 0))
    scenario.launch(job.job_id, 3)
    return scenario, job.job_id


def test_restore_is_measured_from_the_checkpoints_of_the_attempt() -> None:
    # 100 steps take 500 s, so steps 11 to 110 began 500 s before step 110 was saved.
    scenario, job_id = launch_third_attempt({110: 800.0, 210: 1300.0})

    attempt = scenario.attempt(job_id, 2)

    assert attempt.running_at
    assert attempt.trained_at
    assert (attempt.trained_at - attempt.running_at).total_seconds() == 300
    assert restore_durations([attempt, scenario.attempt(job_id, 3)]) == (300.0,)
    assert scenario.attempt(job_id, 1).trained_at is None  # it began at step 0 and restored nothing


@pytest.mark.parametrize(
    ("saved", "seconds"),
    [
        ({}, None),
        ({110: 800.0}, None),
        ({110: 800.0, 210: 700.0}, None),  # clocks of two ranks
        ({110: -5.0, 210: 700.0}, None),  # a clock that is behind
        ({110: 400.0, 210: 1300.0}, 0),  # steps became slower: the restore cannot end before the pods ran
        ({210: 1300.0, 110: 800.0, 310: 1800.0}, 300),
    ],
)
def test_restore_is_unknown_or_bounded_without_checkpoint_facts(saved: dict[int, float], seconds: float | None) -> None:
    scenario, job_id = launch_third_attempt(saved)

    attempt = scenario.attempt(job_id, 2)

    measured = attempt.trained_at and attempt.running_at and (attempt.trained_at - attempt.running_at).total_seconds()
    assert measured == seconds
    assert scenario.attempt(job_id, 3).launched_at


def test_checkpoint_newer_than_its_attempt_measures_no_restore() -> None:
    scenario, job_id = launch_third_attempt({110: 1e8, 210: 2e8})

    assert scenario.attempt(job_id, 2).trained_at is None


def test_saves_are_measured_from_two_checkpoints_also_without_a_restore() -> None:
    scenario = JobScenario()
    job = scenario.running()
    for step, seconds in ((10, 100.0), (20, 400.0)):
        scenario.save_checkpoint(job.job_id, 1, step, seconds, save_seconds=60.0)
    lose_attempt(scenario, job)
    scenario.run_attempt(job.job_id, 2)

    first = scenario.attempt(job.job_id, 1)

    assert (first.save_seconds, first.save_interval_seconds, first.saving_share) == (60, 300, 0.2)
    assert first.trained_at is None
    assert scenario.attempt(job.job_id, 2).saving_share is None


def resumed_and_saved(saved: dict[int, float]) -> tuple[JobScenario, Job]:
    """Run attempt 2 from step 10, save these steps some seconds after its pods started, and let its pods end."""
    scenario = JobScenario()
    job = scenario.running()
    scenario.save_checkpoint(job.job_id, 1, 10)
    lose_attempt(scenario, job)
    scenario.run_attempt(job.job_id, 2)
    for step, seconds in saved.items():
        scenario.save_checkpoint(job.job_id, 2, step, seconds, save_seconds=60.0)
    scenario.world.clock.advance(2000)
    scenario.world.cluster.finish_pods(job.job_id, 2)
    return scenario, job


def restore_of(attempt: Attempt) -> float | None:
    """Return the seconds from the start of all pods until the attempt trained; None if unknown."""
    return (
        (attempt.trained_at - attempt.running_at).total_seconds() if attempt.trained_at and attempt.running_at else None
    )


def test_restore_of_the_last_attempt_is_measured_at_its_end() -> None:
    scenario, job = resumed_and_saved({110: 800.0, 210: 1300.0})

    result = scenario.settle(job.job_id, 2)

    attempt = scenario.attempt(job.job_id, 2)
    assert result.outcome is SettleOutcome.JOB_SUCCEEDED
    assert (restore_of(attempt), attempt.save_seconds, attempt.save_interval_seconds) == (300, 60, 500)


def test_restore_measured_at_the_end_stays_if_settled_again() -> None:
    scenario, job = resumed_and_saved({110: 800.0, 210: 1300.0})
    scenario.settle(job.job_id, 2)
    before = scenario.attempt(job.job_id, 2)
    scenario.world.checkpoints.objects.clear()

    result = scenario.settle(job.job_id, 2)

    assert result.outcome is SettleOutcome.ALREADY_SETTLED
    assert scenario.attempt(job.job_id, 2) == before


def test_repeated_settlement_measures_what_a_crash_left_unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario, job = resumed_and_saved({110: 800.0, 210: 1300.0})
    with monkeypatch.context() as patch:

        def folders(_: str) -> tuple[str, ...]:
            raise TransientError("the store is busy")

        patch.setattr(scenario.world.checkpoints, "folders", folders)
        assert scenario.settle(job.job_id, 2).outcome is SettleOutcome.JOB_SUCCEEDED
        assert scenario.attempt(job.job_id, 2).trained_at is None

    scenario.settle(job.job_id, 2)

    assert restore_of(scenario.attempt(job.job_id, 2)) == 300


def test_sweep_settles_without_reading_checkpoints() -> None:
    scenario, job = resumed_and_saved({110: 800.0, 210: 1300.0})
    request = settle_attempt.SettleAttemptRequest(job_id=job.job_id, attempt=2)

    result = settle_attempt.settle_without_checkpoints(request, scenario.context())

    assert result.outcome is SettleOutcome.JOB_SUCCEEDED
    assert scenario.attempt(job.job_id, 2).trained_at is None


def test_launch_measures_an_attempt_that_the_sweep_settled() -> None:
    scenario, job_id = launch_third_attempt({110: 800.0, 210: 1300.0}, is_measured_at_end=False)

    assert restore_of(scenario.attempt(job_id, 2)) == 300


def test_store_that_fails_does_not_fail_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = JobScenario()
    job = scenario.running()
    scenario.save_checkpoint(job.job_id, 1, 10)
    lose_attempt(scenario, job)
    scenario.run_attempt(job.job_id, 2)
    for step, seconds in ((110, 800.0), (210, 1300.0)):
        scenario.save_checkpoint(job.job_id, 2, step, seconds)
    lose_attempt(scenario, job, 2)
    measured = scenario.attempt(job.job_id, 2)
    scenario.store_row(job_rows.attempt_row(measured.replace(trained_at=None, save_seconds=None), 0))
    pin = pin_resume_point.run

    def then_fail(*args: Any, **more: Any) -> pin_resume_point.PinAnswer:
        answer = pin(*args, **more)

        def folders(_: str) -> tuple[str, ...]:
            raise TransientError("the store is busy")

        monkeypatch.setattr(scenario.world.checkpoints, "folders", folders)
        return answer

    monkeypatch.setattr(pin_resume_point, "run", then_fail)

    assert scenario.launch(job.job_id, 3).outcome is LaunchOutcome.LAUNCHED
    assert scenario.attempt(job.job_id, 2).trained_at is None
