from datetime import timedelta
from typing import Any

import pytest

from evenkeel.domain.checkpoints import Distrust
from evenkeel.domain.jobs.attempt import AttemptState, PodPhase
from evenkeel.domain.jobs.job import Demand, Job, JobState, ResumeOption, ResumePlan
from evenkeel.domain.jobs.policy import JobPolicy
from evenkeel.domain.jobs.settlement import SettleOutcome
from evenkeel.domain.policy import Policy
from evenkeel.domain.policy_base import Mode
from evenkeel.domain.recovery.validation import HEALTH_STATUS
from evenkeel.ports import NotAllowed, NotFound, Refused, TooLarge
from evenkeel.services.attempts.launch_job import LaunchOutcome
from evenkeel.services.attempts.mark_running import RunningOutcome
from evenkeel.services.attempts.pin_resume_point import MOST_LOOKS
from evenkeel.services.queries import explain
from evenkeel.services.queries.disclosure import Reader
from tests.fakes import Crash
from tests.fakes.cluster import CLUSTER
from tests.unit.services_jobs.story import Story


def fence(story: Story, job: Job) -> dict[str, Any] | None:
    return story.world.checkpoints.fence(job.spec.checkpoint_uri)[0]


def lost(story: Story, job: Job) -> str:
    """Cut off the first node of attempt 1, settle the attempt, and admit the next."""
    name = story.attempt(job.job_id).node_names[0]
    story.world.cluster.lose_node(name)
    story.world.clock.advance(61)
    story.world.cluster.fail_pods(job.job_id, 1, 1, exit_code=76)
    assert story.settle(job.job_id).outcome is SettleOutcome.JOB_REQUEUED
    assert story.run_pass().admitted == (f"{job.job_id}-a2",)
    return name


# ---------------------------------------------------------------- launch


def test_the_first_launch_raises_the_fence_and_creates_the_job() -> None:
    story = Story()
    job = story.started()

    outcome = story.launch(job.job_id)

    document = fence(story, job)
    assert document
    assert (outcome.outcome, document["attempt"], document["resumeFrom"]) == (LaunchOutcome.LAUNCHED, 1, None)
    attempt = story.attempt(job.job_id)
    assert (attempt.state, attempt.workload_uid, attempt.is_pinned) == (AttemptState.LAUNCHED, "uid-1", True)


def test_launching_twice_is_launching_once() -> None:
    story = Story()
    job = story.started()
    story.launch(job.job_id)
    before = story.world.ledger.contents()

    assert story.launch(job.job_id).outcome is LaunchOutcome.LAUNCHED
    assert story.world.ledger.contents() == before
    assert [call[0] for call in story.world.cluster.calls] == ["launch"]


def test_an_attempt_resumes_from_the_newest_checkpoint_that_holds() -> None:
    story = Story()
    job = story.running()
    story.save(job.job_id, 1, 10)
    good = story.save(job.job_id, 1, 20)
    bad = story.save(job.job_id, 1, 30)
    story.world.checkpoints.put(job.spec.checkpoint_uri, bad.replace("manifest.json", "shard-0-of-2.bin"), b"torn")
    lost(story, job)

    outcome = story.launch(job.job_id, 2)

    attempt = story.attempt(job.job_id, 2)
    assert attempt.resume_from
    assert (attempt.resume_from.manifest, outcome.outcome) == (good, LaunchOutcome.LAUNCHED)
    assert [(out["step"], out["code"]) for out in attempt.rejected_checkpoints] == [(30, "SHARD_SIZE")]
    assert story.world.cluster.launched(job.job_id, 2).spec.resume_from == good


@pytest.mark.parametrize(
    ("name", "body", "code"),
    [
        ("shard-1-of-2.bin", None, "SHARD_MISSING"),
        ("shard-1-of-2.bin", b"llama 99 1", "SHARD_SIZE"),
        ("manifest.json", b"{", "MANIFEST_UNREADABLE"),
        ("manifest.json", None, "MANIFEST_MISSING"),
    ],
)
def test_a_broken_checkpoint_is_passed_over_and_named(name: str, body: bytes | None, code: str) -> None:
    story = Story()
    job = story.running()
    story.save(job.job_id, 1, 10)
    spoil(story, job, story.save(job.job_id, 1, 20), name, body)
    lost(story, job)

    story.launch(job.job_id, 2)

    attempt = story.attempt(job.job_id, 2)
    assert attempt.resume_from
    assert (attempt.resume_from.step, [out["code"] for out in attempt.rejected_checkpoints]) == (10, [code])


def spoil(story: Story, job: Job, manifest: str, name: str, body: bytes | None) -> None:
    key = manifest.replace("manifest.json", name)
    if body is None:
        del story.world.checkpoints.objects[job.spec.checkpoint_uri][key]
    else:
        story.world.checkpoints.put(job.spec.checkpoint_uri, key, body)


def test_a_save_that_was_cut_off_before_any_was_finished_begins_again() -> None:
    story = Story()
    job = story.running()
    spoil(story, job, story.save(job.job_id, 1, 10), "manifest.json", None)
    lost(story, job)

    outcome = story.launch(job.job_id, 2)

    attempt = story.attempt(job.job_id, 2)
    assert (outcome.outcome, attempt.resume_from, attempt.is_pinned) == (LaunchOutcome.LAUNCHED, None, True)
    assert [out["code"] for out in attempt.rejected_checkpoints] == ["MANIFEST_MISSING"]


def test_when_every_finished_checkpoint_fails_its_proof_nothing_is_launched_or_disowned() -> None:
    story = Story()
    job = story.running()
    spoil(story, job, story.save(job.job_id, 1, 10), "shard-1-of-2.bin", None)
    lost(story, job)
    before = fence(story, job)

    outcome = story.launch(job.job_id, 2)
    again = story.launch(job.job_id, 2)
    settled = story.settle(job.job_id, 2)

    attempt, waiting = story.attempt(job.job_id, 2), story.job(job.job_id)
    assert (outcome.outcome, again) == (LaunchOutcome.GIVE_UP, outcome)
    assert (settled.outcome, attempt.state, attempt.is_pinned) == (
        SettleOutcome.JOB_REQUEUED,
        AttemptState.NEVER_RAN,
        False,
    )
    assert [out["code"] for out in attempt.rejected_checkpoints] == ["SHARD_MISSING"]
    assert (waiting.state, waiting.application_failures, story.usage()) == (JobState.PENDING, 0, 0)
    assert "SHARD_MISSING" in waiting.reason
    assert (
        "SHARD_MISSING"
        in explain.why_job(story.world.ledger, job.job_id, Reader(), now=story.world.clock.now())["sentence"]
    )
    assert fence(story, job) == before
    assert f"{job.job_id}-a2" not in [call[1] for call in story.world.cluster.calls]
    assert story.world.telemetry.totals["LaunchesUnproved"] == 2


def test_what_an_attempt_could_not_read_back_is_passed_over_by_the_next() -> None:
    story = Story()
    job = story.running()
    older = story.save(job.job_id, 1, 10)
    newer = story.save(job.job_id, 1, 20)
    story.world.checkpoints.without_checksum.add(newer.replace("manifest.json", "shard-1-of-2.bin"))
    lost(story, job)
    story.run_attempt(job.job_id, 2)
    second = story.attempt(job.job_id, 2)
    story.world.cluster.fail_pods(job.job_id, 2, exit_code=66)

    settled = story.settle(job.job_id, 2)
    story.run_pass()
    story.launch(job.job_id, 3)

    third, ended = story.attempt(job.job_id, 3), story.attempt(job.job_id, 2)
    assert second.resume_from
    assert third.resume_from
    assert (second.resume_from.manifest, third.resume_from.manifest) == (newer, older)
    assert [(out["step"], out["code"]) for out in third.rejected_checkpoints] == [(20, "DAMAGED")]
    assert (settled.outcome, ended.state) == (SettleOutcome.JOB_REQUEUED, AttemptState.LOST)
    assert ended.reason == "What it resumed from, step 20 of attempt 1, is damaged."
    assert story.job(job.job_id).application_failures == 0


def test_a_manifest_too_large_to_be_read_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story()
    job = story.running()
    older, newer = (story.save(job.job_id, 1, step) for step in (10, 20))
    lost(story, job)

    def read(uri: str, key: str) -> bytes:
        if key == newer:
            raise TooLarge("17 MiB")
        return small(uri, key)

    small = story.world.checkpoints.read
    monkeypatch.setattr(story.world.checkpoints, "read", read)
    story.launch(job.job_id, 2)

    second = story.attempt(job.job_id, 2)
    assert second.resume_from
    assert second.resume_from.manifest == older
    assert [(out["step"], out["code"]) for out in second.rejected_checkpoints] == [(20, "MANIFEST_UNREADABLE")]


def test_when_all_that_is_left_is_damaged_nothing_is_begun_over() -> None:
    story = Story()
    job = story.running()
    only = story.save(job.job_id, 1, 20)
    story.world.checkpoints.without_checksum.add(only.replace("manifest.json", "shard-1-of-2.bin"))
    lost(story, job)
    story.run_attempt(job.job_id, 2)
    story.world.cluster.fail_pods(job.job_id, 2, exit_code=66)
    story.settle(job.job_id, 2)
    story.run_pass()

    outcome = story.launch(job.job_id, 3)

    assert outcome.outcome is LaunchOutcome.GIVE_UP
    assert "step 20 of attempt 1 (DAMAGED)" in outcome.reason


def test_an_unproved_job_resumes_when_its_checkpoint_is_brought_back() -> None:
    story = Story()
    job = story.running()
    key = story.save(job.job_id, 1, 10)
    shard = key.replace("manifest.json", "shard-1-of-2.bin")
    kept = story.world.checkpoints.objects[job.spec.checkpoint_uri][shard]
    spoil(story, job, key, "shard-1-of-2.bin", None)
    lost(story, job)
    story.launch(job.job_id, 2)
    story.settle(job.job_id, 2)

    story.world.checkpoints.put(job.spec.checkpoint_uri, shard, kept)
    story.world.clock.advance(30)
    story.run_pass()
    story.launch(job.job_id, 3)

    point = story.attempt(job.job_id, 3).resume_from
    assert point
    assert point.manifest == key


def test_a_policy_may_begin_again_when_nothing_can_be_proved() -> None:
    policy = Policy(jobs=JobPolicy(start_over_when_unproved=True))
    story = Story(policy=policy)
    job = story.running()
    spoil(story, job, story.save(job.job_id, 1, 10), "shard-1-of-2.bin", None)
    lost(story, job)

    assert story.launch(job.job_id, 2).outcome is LaunchOutcome.LAUNCHED
    assert story.attempt(job.job_id, 2).resume_from is None


@pytest.mark.parametrize(("is_accepted", "step"), [(True, 30), (False, 10)])
def test_a_checkpoint_by_convention_is_resumed_from_where_the_policy_takes_it(is_accepted: bool, step: int) -> None:
    story = Story(policy=Policy(jobs=JobPolicy(convention_accepted_after=("restart",) if is_accepted else ())))
    job = story.running()
    story.save(job.job_id, 1, 10)
    for name in (".metadata", "__0_0.distcp", "__1_0.distcp"):
        story.world.checkpoints.put(job.spec.checkpoint_uri, f"attempt=1/step=000000030/{name}", b"dcp")
    lost(story, job)

    story.launch(job.job_id, 2)

    point = story.attempt(job.job_id, 2).resume_from
    assert point
    assert point.step == step


@pytest.mark.parametrize(("demand", "step"), [(Demand.CONVENTION, 30), (Demand.PROOF, 10)])
def test_after_a_fault_its_plan_says_whether_convention_will_do(demand: Demand, step: int) -> None:
    story = Story(policy=Policy(jobs=JobPolicy(convention_accepted_after=())))
    job = story.running()
    story.save(job.job_id, 1, 10)
    for name in (".metadata", "__0_0.distcp", "__1_0.distcp"):
        story.world.checkpoints.put(job.spec.checkpoint_uri, f"attempt=1/step=000000030/{name}", b"dcp")
    plan = ResumePlan(
        incident_id="inc-1",
        after_attempt=1,
        option=ResumeOption.FREE_NODE,
        demand=demand,
        planned_at=story.world.clock.now(),
    )
    story.set_job(story.job(job.job_id).with_plan(plan, is_doubted=False))
    lost(story, job)

    story.launch(job.job_id, 2)

    point = story.attempt(job.job_id, 2).resume_from
    assert point
    assert point.step == step


def test_after_a_fault_that_time_does_not_bound_each_checkpoint_passed_over_is_recorded_with_its_reason() -> None:
    story = Story()
    job = story.running()
    for step in (10, 20, 30):
        story.save(job.job_id, 1, step, seconds=step)
    plan = ResumePlan(
        incident_id="inc-1",
        after_attempt=1,
        option=ResumeOption.FREE_NODE,
        demand=Demand.EVIDENCE,
        planned_at=story.world.clock.now(),
    )
    story.set_job(story.job(job.job_id).with_plan(plan, is_doubted=False))
    lost(story, job)

    story.launch(job.job_id, 2)

    attempt = story.attempt(job.job_id, 2)
    assert attempt.resume_from
    assert (attempt.resume_from.step, attempt.resumed_work_from) == (
        20,
        plan.planned_at + timedelta(seconds=20),
    )
    assert [(out["step"], out["code"]) for out in attempt.rejected_checkpoints] == [(30, "NO_CLEAN_RUN")]
    assert all(out["detail"] for out in attempt.rejected_checkpoints)


def test_one_launch_looks_at_so_many_checkpoints_and_then_asks_a_person() -> None:
    story = Story()
    job = story.running()
    story.save(job.job_id, 1, 1)
    for step in range(2, MOST_LOOKS + 3):
        spoil(story, job, story.save(job.job_id, 1, step), "shard-1-of-2.bin", None)
    lost(story, job)

    outcome = story.launch(job.job_id, 2)

    codes = [out["code"] for out in story.attempt(job.job_id, 2).rejected_checkpoints]
    assert outcome.outcome is LaunchOutcome.GIVE_UP
    assert codes == ["SHARD_MISSING"] * MOST_LOOKS + ["NOT_EXAMINED"]


def test_checkpoints_that_no_function_can_read_are_left_to_rank_0() -> None:
    story = Story()
    job = story.running(checkpoint_uri="file:///fsx/llama", checkpoint_claim="fsx")
    plan = ResumePlan(
        incident_id="inc-1",
        after_attempt=1,
        option=ResumeOption.FREE_NODE,
        distrust_after=story.world.clock.now(),
        planned_at=story.world.clock.now(),
    )
    story.set_job(story.job(job.job_id).with_plan(plan, is_doubted=False))
    lost(story, job)

    outcome = story.launch(job.job_id, 2)

    attempt, spec = story.attempt(job.job_id, 2), story.world.cluster.launched(job.job_id, 2).spec
    assert (outcome.outcome, attempt.state, attempt.is_pinned) == (
        LaunchOutcome.LAUNCHED,
        AttemptState.LAUNCHED,
        False,
    )
    assert "rank 0 proves them" in attempt.reason
    assert spec.terms
    assert spec.terms.distrust == Distrust(after=plan.distrust_after, through_attempt=1)
    assert (spec.terms.accepts_convention, spec.terms.may_start_over) == (True, False)
    assert story.world.checkpoints.objects == {}


def test_an_attempt_that_proved_nothing_in_the_cluster_uses_up_a_restart_and_says_so() -> None:
    story = Story()
    job = story.running(checkpoint_uri="file:///fsx/llama", checkpoint_claim="fsx")
    story.world.cluster.fail_pods(job.job_id, 1, exit_code=65)

    story.settle(job.job_id)

    waiting = story.job(job.job_id)
    assert (waiting.state, waiting.application_failures) == (JobState.PENDING, 1)
    assert "could prove none" in waiting.reason


def test_a_checkpoint_saved_late_by_a_fenced_attempt_is_never_resumed_from() -> None:
    story = Story()
    job = story.running()
    pinned = story.save(job.job_id, 1, 20)
    lost(story, job)
    story.launch(job.job_id, 2)
    story.save(job.job_id, 1, 40)
    story.world.cluster.run_pods(job.job_id, 2)
    story.mark_running(job.job_id, 2)
    story.world.cluster.fail_pods(job.job_id, 2, exit_code=1)
    story.settle(job.job_id, 2)
    story.world.clock.advance(60)
    story.run_pass()

    story.launch(job.job_id, 3)

    attempt = story.attempt(job.job_id, 3)
    assert attempt.resume_from
    assert (attempt.resume_from.manifest, attempt.rejected_checkpoints[0]["code"]) == (pinned, "FENCED")


def test_a_distrusted_checkpoint_is_passed_over() -> None:
    story = Story()
    job = story.running()
    trusted = story.save(job.job_id, 1, 10, seconds=-100)
    story.save(job.job_id, 1, 20, seconds=0)
    plan = ResumePlan(
        incident_id="inc-1",
        after_attempt=1,
        option=ResumeOption.FREE_NODE,
        distrust_after=story.world.clock.now().replace(second=0),
        planned_at=story.world.clock.now(),
    )
    story.set_job(story.job(job.job_id).with_plan(plan, is_doubted=False))
    lost(story, job)

    story.launch(job.job_id, 2)

    attempt = story.attempt(job.job_id, 2)
    assert attempt.resume_from
    assert (attempt.resume_from.manifest, attempt.rejected_checkpoints[0]["code"]) == (trusted, "DISTRUSTED")


def test_a_launch_waits_while_a_pod_of_the_last_attempt_can_be_reached() -> None:
    story = Story()
    job = story.running()
    story.world.cluster.lose_node(story.attempt(job.job_id).node_names[0])
    story.settle(job.job_id, failure={"Error": "States.Timeout", "Cause": ""})
    story.run_pass()

    early = story.launch(job.job_id, 2)
    document = fence(story, job)
    story.world.clock.advance(60)
    late = story.launch(job.job_id, 2)

    assert document
    assert (early.outcome, early.wait_seconds, document["attempt"]) == (LaunchOutcome.NOT_YET, 5, 1)
    assert late.outcome is LaunchOutcome.LAUNCHED


def test_a_launch_ends_what_a_crash_let_run() -> None:
    story = Story()
    job = story.running()
    stop = story.world.cluster.stop
    story.world.cluster.stop = lambda *_: None  # type: ignore[method-assign]  # the settlement's last effect is lost
    story.settle(job.job_id, failure={"Error": "States.Timeout", "Cause": ""})
    story.world.cluster.stop = stop  # type: ignore[method-assign]
    story.set_job(story.job(job.job_id).but(spec=job.spec.but(nodes=1)))
    story.run_pass()

    first = story.launch(job.job_id, 2)
    second = story.launch(job.job_id, 2)

    assert (first.outcome, second.outcome) == (LaunchOutcome.NOT_YET, LaunchOutcome.LAUNCHED)
    assert ("stop", f"{job.job_id}-a1", 30) in story.world.cluster.calls


def test_an_attempt_that_never_ran_does_not_hide_the_pods_of_the_one_before() -> None:
    story = Story()
    job = story.running(nodes=1)
    story.world.cluster.lose_node(story.attempt(job.job_id).node_names[0])
    story.settle(job.job_id, failure={"Error": "States.Timeout"})
    story.run_pass()
    story.settle(job.job_id, 2)  # given up before it was launched
    story.world.clock.advance(30)
    story.run_pass()

    early = story.launch(job.job_id, 3)
    story.world.clock.advance(60)
    late = story.launch(job.job_id, 3)

    assert (early.outcome, late.outcome) == (LaunchOutcome.NOT_YET, LaunchOutcome.LAUNCHED)
    assert ("forget_pods", f"{job.job_id}-a1") in [call[:2] for call in story.world.cluster.calls]


def test_a_fence_that_is_raised_by_another_meanwhile_is_looked_at_again() -> None:
    story = Story()
    job = story.started()
    raise_fence = story.world.checkpoints.raise_fence
    rivals = iter([3])

    def overtaken(uri: str, document: dict[str, Any], tag: str) -> None:
        for attempt in rivals:
            raise_fence(uri, {"schemaVersion": 1, "attempt": attempt, "resumeFrom": None, "history": []}, tag)
        raise_fence(uri, document, tag)

    story.world.checkpoints.raise_fence = overtaken  # type: ignore[method-assign]

    assert story.launch(job.job_id).outcome is LaunchOutcome.STALE
    assert not story.world.cluster.calls


def test_pods_behind_a_lost_node_are_fenced_out_and_forgotten() -> None:
    story = Story()
    job = story.running()
    name = lost(story, job)

    assert story.launch(job.job_id, 2).outcome is LaunchOutcome.LAUNCHED

    calls = [call[0] for call in story.world.cluster.calls]
    assert calls[-2:] == ["forget_pods", "launch"]
    assert ("forget_pods", f"{job.job_id}-a1", (name,)) in story.world.cluster.calls
    assert fence(story, job)["attempt"] == 2  # type: ignore[index]  # just raised


def test_an_attempt_below_the_fence_is_stale() -> None:
    story = Story()
    job = story.started()
    story.world.checkpoints.raise_fence(
        job.spec.checkpoint_uri, {"schemaVersion": 1, "attempt": 5, "resumeFrom": None, "history": []}, ""
    )

    assert story.launch(job.job_id).outcome is LaunchOutcome.STALE
    assert not story.world.cluster.calls


def test_a_settled_attempt_is_stale() -> None:
    story = Story()
    job = story.running()
    story.world.cluster.finish_pods(job.job_id, 1)
    story.settle(job.job_id)

    assert story.launch(job.job_id).outcome is LaunchOutcome.STALE
    assert story.mark_running(job.job_id).outcome is RunningOutcome.STALE


def test_in_observe_mode_nothing_is_launched_and_the_job_goes_back() -> None:
    story = Story()
    job = story.started()
    story.mode = Mode.OBSERVE

    outcome = story.launch(job.job_id)
    settled = story.settle(job.job_id)

    assert (outcome.outcome, outcome.reason) == (LaunchOutcome.GIVE_UP, "Mode is observe: nothing is launched.")
    assert (settled.outcome, story.attempt(job.job_id).state) == (SettleOutcome.JOB_REQUEUED, AttemptState.NEVER_RAN)
    assert (story.attempt(job.job_id).reason, story.usage()) == ("Mode is observe: nothing is launched.", 0)
    assert (fence(story, job), story.world.cluster.calls) == (None, [])


def test_a_launch_that_takes_too_long_is_given_up() -> None:
    story = Story()
    job = story.started()
    story.world.clock.advance(901)

    assert story.launch(job.job_id).outcome is LaunchOutcome.GIVE_UP


@pytest.mark.parametrize("is_late", [False, True])
def test_what_a_lost_reply_left_running_is_stopped_before_it_is_settled(*, is_late: bool) -> None:
    story = Story(runs_at_once=True)
    job = story.started()
    story.plan.effects.clear()
    story.plan.at, story.plan.when = 2, "after"
    with pytest.raises(Crash):
        story.launch(job.job_id)
    assert story.plan.effects[-1] == "launch"
    if is_late:
        story.world.clock.advance(901)
    else:
        story.cancel(job.job_id)

    assert story.launch(job.job_id).outcome is LaunchOutcome.LAUNCHED
    assert story.attempt(job.job_id).state is AttemptState.LAUNCHED
    assert story.world.cluster.workload(story.attempt(job.job_id)).is_let_run


def test_a_cancelled_job_is_not_launched() -> None:
    story = Story()
    job = story.started()
    story.cancel(job.job_id)

    assert story.launch(job.job_id).outcome is LaunchOutcome.GIVE_UP
    assert story.settle(job.job_id).outcome is SettleOutcome.JOB_CANCELLED
    assert not story.world.cluster.calls


def test_a_manifest_that_the_cluster_refuses_fails_the_job_with_its_words() -> None:
    story = Story()
    job = story.started()

    def refuse(spec: Any) -> Any:
        raise Refused("Job is invalid: spec.template.spec.containers[0].image")

    story.world.cluster.launch = refuse  # type: ignore[method-assign]

    assert story.launch(job.job_id).outcome is LaunchOutcome.GIVE_UP
    assert story.settle(job.job_id).outcome is SettleOutcome.JOB_FAILED
    assert "spec.containers[0].image" in story.job(job.job_id).reason


@pytest.mark.parametrize("error", [NotAllowed("exceeded quota: gpus"), NotFound('namespaces "red" not found')])
def test_what_a_namespace_does_not_take_now_is_tried_again_after_a_pause_and_in_its_words(error: Exception) -> None:
    story = Story()
    job = story.started()

    def refuse(spec: Any) -> Any:
        raise error

    story.world.cluster.launch = refuse  # type: ignore[method-assign]

    assert story.launch(job.job_id).outcome is LaunchOutcome.GIVE_UP
    assert story.settle(job.job_id).outcome is SettleOutcome.JOB_REQUEUED
    waiting = story.job(job.job_id)
    assert str(error) in waiting.reason
    assert waiting.not_before
    assert waiting.application_failures == 0


def test_a_namespace_that_becomes_kueues_between_pass_and_launch_fails_the_job_and_leaves_nothing() -> None:
    story = Story()
    job = story.started()
    story.world.cluster.of_kueue[job.namespace] = "its LocalQueue default"

    assert [story.launch(job.job_id).outcome for _ in range(2)] == [LaunchOutcome.GIVE_UP] * 2
    assert story.settle(job.job_id).outcome is SettleOutcome.JOB_FAILED
    assert "was suspended as it was created" in story.job(job.job_id).reason
    assert not story.world.cluster.workloads(CLUSTER)
    assert not story.charges()


def test_a_bucket_that_was_never_reachable_fails_the_job() -> None:
    story = Story()
    job = story.started()

    def deny(uri: str) -> Any:
        raise NotAllowed("s3:GetObject on checkpoints/llama/_fence")

    story.world.checkpoints.fence = deny  # type: ignore[method-assign]

    assert story.launch(job.job_id).outcome is LaunchOutcome.GIVE_UP
    assert story.settle(job.job_id).outcome is SettleOutcome.JOB_FAILED


def test_a_fence_that_cannot_be_read_is_never_taken_for_none() -> None:
    story = Story()
    job = story.started()
    story.world.checkpoints.put(job.spec.checkpoint_uri, "_fence", b'{"schemaVersion": 9}')

    assert story.launch(job.job_id).outcome is LaunchOutcome.GIVE_UP
    assert not story.world.cluster.calls


def test_a_job_without_checkpoints_starts_again_from_nothing() -> None:
    story = Story()
    job = story.running(checkpoint_uri="")
    lost(story, job)

    assert story.launch(job.job_id, 2).outcome is LaunchOutcome.LAUNCHED
    assert story.attempt(job.job_id, 2).resume_from is None
    assert story.world.checkpoints.objects == {}


# ---------------------------------------------------------------- running, stopping


def test_a_running_attempt_is_marked_once() -> None:
    story = Story()
    job = story.running()
    before = story.world.ledger.contents()

    assert story.mark_running(job.job_id).outcome is RunningOutcome.RUNNING
    assert story.world.ledger.contents() == before
    assert (job.state, story.attempt(job.job_id).state) == (JobState.RUNNING, AttemptState.RUNNING)


def test_a_job_cancelled_while_it_started_stays_stopping() -> None:
    story = Story()
    job = story.started()
    story.launch(job.job_id)
    story.cancel(job.job_id)
    story.mark_running(job.job_id)

    assert story.job(job.job_id).state is JobState.STOPPING


def test_a_stop_uses_the_grace_of_the_request() -> None:
    story = Story()
    job = story.running(grace_seconds=90)
    story.cancel(job.job_id)

    story.stop(job.job_id)
    story.stop(job.job_id)

    assert story.world.cluster.calls[-1] == ("stop", f"{job.job_id}-a1", 90)
    assert [call[0] for call in story.world.cluster.calls].count("stop") == 1
    assert story.settle(job.job_id).outcome is SettleOutcome.JOB_CANCELLED


def test_a_start_deadline_says_why_before_the_pods_are_gone() -> None:
    story = Story()
    job = story.started()
    story.launch(job.job_id)
    story.world.cluster.set_pods(job.job_id, 1, PodPhase.PENDING, reason="ImagePullBackOff")

    story.stop(job.job_id)
    outcome = story.settle(job.job_id)

    assert (outcome.outcome, story.attempt(job.job_id).state) == (SettleOutcome.JOB_REQUEUED, AttemptState.NEVER_RAN)
    assert "did not start in time (ImagePullBackOff)" in story.attempt(job.job_id).reason
    assert story.job(job.job_id).application_failures == 1


# ---------------------------------------------------------------- settle


def test_success_gives_the_charge_back_and_keeps_the_logs() -> None:
    story = Story()
    job = story.running()
    story.world.cluster.finish_pods(job.job_id, 1)

    outcome = story.settle(job.job_id)

    assert (outcome.outcome, story.job(job.job_id).state) == (SettleOutcome.JOB_SUCCEEDED, JobState.SUCCEEDED)
    assert (story.usage(), story.charges()) == (0, [])
    assert "stop" not in [call[0] for call in story.world.cluster.calls]


def test_settling_twice_gives_the_charge_back_once() -> None:
    story = Story()
    job = story.running()
    story.world.cluster.fail_pods(job.job_id, 1)
    story.settle(job.job_id)
    before = story.world.ledger.contents()

    outcome = story.settle(job.job_id)

    assert outcome.outcome is SettleOutcome.ALREADY_SETTLED
    assert story.world.ledger.contents() == before
    assert story.usage() == 0


def test_an_open_incident_takes_the_blame() -> None:
    from evenkeel.ports import Put
    from evenkeel.services.storage import rows

    story = Story()
    job = story.running()
    story.world.cluster.fail_pods(job.job_id, 1, exit_code=1)
    story.world.ledger.commit(Put(rows.open_row(story.attempt(job.job_id).nodes[1], "inc-1")))

    story.settle(job.job_id)

    assert story.attempt(job.job_id).state is AttemptState.LOST
    assert story.job(job.job_id).application_failures == 0


@pytest.mark.parametrize(
    "marks",
    [{"labels": {HEALTH_STATUS: "UnschedulablePendingReplacement"}}, {"is_cordoned": True, "incident_id": "inc-1"}],
    ids=["by HyperPod's agent", "by a recovery"],
)
def test_a_marked_node_takes_the_blame_before_its_incident_is_known(marks: dict[str, Any]) -> None:
    story = Story()
    job = story.running(max_restarts=0)
    story.world.cluster.set_node(story.attempt(job.job_id).node_names[1], **marks)
    story.world.cluster.fail_pods(job.job_id, 1, exit_code=134)

    outcome = story.settle(job.job_id)

    assert outcome.outcome is SettleOutcome.JOB_REQUEUED
    assert story.attempt(job.job_id).state is AttemptState.LOST


def test_what_the_wait_saw_counts_where_nothing_is_left_to_see() -> None:
    story = Story()
    job = story.running()
    story.world.cluster.jobs.clear()
    ended = {
        "outcome": "ENDED",
        "reason": "It failed.",
        "facts": {"state": "FAILED", "reason": "pod 1 failed (exit code 3).", "exitCodes": {"pod": 3}},
    }

    story.settle(job.job_id, ended=ended)

    assert (story.attempt(job.job_id).exit_codes, story.job(job.job_id).application_failures) == ({"pod": 3}, 1)


def test_an_answer_that_saw_no_end_is_passed_over() -> None:
    story = Story()
    job = story.running()
    story.world.cluster.finish_pods(job.job_id, 1)

    outcome = story.settle(job.job_id, ended={"outcome": "RUNNING", "reason": "All pods run.", "facts": {}})

    assert outcome.outcome is SettleOutcome.JOB_SUCCEEDED


def test_a_failed_workflow_stops_what_still_runs_and_gives_the_job_back() -> None:
    story = Story()
    job = story.running()

    outcome = story.settle(job.job_id, failure={"Error": "States.Timeout", "Cause": "too slow"})

    assert (outcome.outcome, story.attempt(job.job_id).state) == (SettleOutcome.JOB_REQUEUED, AttemptState.LOST)
    assert story.world.cluster.calls[-1][0] == "stop"


def test_a_job_has_a_story() -> None:
    story = Story()
    job = story.running()
    story.world.cluster.finish_pods(job.job_id, 1)
    story.settle(job.job_id)

    assert set(story.timeline(job.job_id)) == {"submitted", "admitted", "launched", "running", "settled"}
