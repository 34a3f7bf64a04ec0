from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel import training
from evenkeel.domain.jobs import attempt_end
from evenkeel.domain.jobs.attempt import AttemptState, ObservedWorkload, PodPhase, ResumePoint
from evenkeel.domain.jobs.attempt_end import AttemptEnd, judge_abandoned_attempt, judge_end, lost_nodes
from evenkeel.domain.jobs.job import Job, JobState, ResumeOption, ResumePlan, StopRequest
from evenkeel.domain.jobs.job_policy import JobPolicy
from evenkeel.domain.jobs.lifecycle import ATTEMPT_WRITERS, JOB_WRITERS
from evenkeel.domain.jobs.settlement import SettleOutcome, settle, settled_outcome
from evenkeel.domain.nodes import KubernetesNode
from tests.state_writers import attempt_writers, job_writers
from tests.unit.scheduling.builders import CLUSTER, NOW, a_job, a_pod, a_spec, a_workload, an_attempt, at

FAILED, SUCCEEDED, PENDING, RUNNING = PodPhase.FAILED, PodPhase.SUCCEEDED, PodPhase.PENDING, PodPhase.RUNNING
NOTHING: frozenset[str] = frozenset()


def a_stop(outcome: AttemptState = AttemptState.STOPPED, **changes: Any) -> StopRequest:
    facts: dict[str, Any] = {
        "attempt": 1,
        "reason": "Somebody asked.",
        "by": "cancel/ana",
        "outcome": outcome,
        "grace_seconds": 30,
        "requested_at": NOW,
    }
    return StopRequest.model_validate({**facts, **changes})


def end_of_attempt(
    *pods: Any, job: Job | None = None, lost: set[str] | None = None, faulty: set[str] | None = None, **workload: Any
) -> AttemptEnd | None:
    observed_workload = a_workload(*pods, **workload)
    return judge_end(observed_workload, job or a_job(), an_attempt(), frozenset(lost or ()), frozenset(faulty or ()))


def end_state(ending: AttemptEnd | None) -> AttemptState | None:
    return ending.state if ending else None


def test_running_pods_do_not_end_an_attempt() -> None:
    assert end_of_attempt(a_pod(0), a_pod(1)) is None


def test_kubernetes_job_without_pods_does_not_end_an_attempt() -> None:
    assert end_of_attempt() is None


def test_one_successful_rank_does_not_end_an_attempt() -> None:
    assert end_of_attempt(a_pod(0, SUCCEEDED, 0), a_pod(1)) is None


def test_failure_is_attributed_only_after_the_last_pod_ended() -> None:
    assert end_of_attempt(a_pod(0, FAILED, 76), a_pod(1)) is None


def test_attempt_succeeds_when_every_rank_succeeds() -> None:
    assert end_state(end_of_attempt(a_pod(0, SUCCEEDED, 0), a_pod(1, SUCCEEDED, 0))) is AttemptState.SUCCEEDED


def test_success_takes_precedence_over_a_late_stop() -> None:
    job = a_job(stop_request=a_stop())

    assert end_state(end_of_attempt(a_pod(0, SUCCEEDED, 0), a_pod(1, SUCCEEDED, 0), job=job)) is AttemptState.SUCCEEDED


@pytest.mark.parametrize("outcome", [AttemptState.STOPPED, AttemptState.LOST])
def test_killed_pods_after_a_stop_request_end_as_requested(outcome: AttemptState) -> None:
    ending = end_of_attempt(a_pod(0, FAILED, 143), a_pod(1, FAILED, 137), job=a_job(stop_request=a_stop(outcome)))

    assert ending
    assert (ending.state, ending.reason) == (outcome, "Somebody asked.")
    assert not ending.counts_as_failure


def test_stop_request_for_another_attempt_is_ignored() -> None:
    job = a_job(stop_request=a_stop(attempt=7))

    assert end_state(end_of_attempt(a_pod(0, FAILED, 1), a_pod(1, FAILED, 143), job=job)) is AttemptState.FAILED


def test_exit_code_blames_the_application() -> None:
    ending = end_of_attempt(a_pod(0, FAILED, 143), a_pod(1, FAILED, 3))

    assert ending
    assert (ending.state, ending.counts_as_failure) == (AttemptState.FAILED, True)
    assert ending.reason == "Pod job-1-a1-1 failed (exit code 3)."
    assert ending.exit_codes == {"job-1-a1-0": 143, "job-1-a1-1": 3}


def test_exit_codes_match_the_training_package() -> None:
    exit_codes = (attempt_end.FENCED_EXIT, attempt_end.UNPROVEN_EXIT, attempt_end.DAMAGED_EXIT)

    assert exit_codes == (training.EXIT_FENCED, training.EXIT_UNPROVEN, training.EXIT_DAMAGED)


def test_attempt_without_resume_point_cannot_blame_a_checkpoint() -> None:
    ending = end_of_attempt(a_pod(0, FAILED, 66), a_pod(1, FAILED, 76))

    assert ending
    assert (ending.state, ending.counts_as_failure, ending.is_checkpoint_damaged) == (AttemptState.FAILED, True, False)


def test_rank_that_lost_its_peer_is_never_blamed() -> None:
    ending = end_of_attempt(a_pod(0, FAILED, 76), a_pod(1, FAILED, 137, reason="OOMKilled"))

    assert ending
    assert ending.reason == "Pod job-1-a1-1 failed (exit code 137, OOMKilled)."


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (137, "exit code 137: killed by SIGKILL; possibly out of memory"),
        (127, "exit code 127: its command was not found in the image"),
        (9, "exit code 9"),
    ],
)
def test_explanation_of_an_exit_code_is_marked_as_possible(code: int, expected: str) -> None:
    ending = end_of_attempt(a_pod(0, FAILED, 76), a_pod(1, FAILED, code))

    assert ending
    assert ending.reason == f"Pod job-1-a1-1 failed ({expected})."


def test_pod_on_a_lost_node_loses_the_attempt() -> None:
    ending = end_of_attempt(a_pod(0, FAILED, 76), a_pod(1), lost={"node-2"})

    assert ending
    assert (ending.state, ending.reason) == (AttemptState.LOST, "The attempt lost contact with node-2.")


def test_lost_node_takes_the_blame_for_failed_pods() -> None:
    assert end_state(end_of_attempt(a_pod(0, FAILED, 1), a_pod(1, FAILED, 137), lost={"node-1"})) is AttemptState.LOST


def test_faulty_node_takes_the_blame_after_its_pods_end() -> None:
    assert end_state(end_of_attempt(a_pod(0, FAILED, 1), a_pod(1, FAILED, 143), faulty={"node-2"})) is AttemptState.LOST
    assert end_of_attempt(a_pod(0, FAILED, 1), a_pod(1), faulty={"node-2"}) is None


@pytest.mark.parametrize(
    "reason",
    ["NodeLost", "Evicted", "DeletionByTaintManager", "TerminationByKubelet", "EvictionByEvictionAPI", "Terminated"],
)
def test_pod_removed_with_its_node_is_lost(reason: str) -> None:
    assert end_state(end_of_attempt(a_pod(0, FAILED, 137, reason=reason), a_pod(1, FAILED, 143))) is AttemptState.LOST


def test_fence_ends_an_attempt_without_blame() -> None:
    ending = end_of_attempt(a_pod(0, FAILED, 75), a_pod(1, FAILED, 76))

    assert ending
    assert (ending.state, ending.counts_as_failure) == (AttemptState.LOST, False)


def test_deleted_kubernetes_job_loses_the_attempt() -> None:
    assert end_state(end_of_attempt(uid="")) is AttemptState.LOST


def test_attempt_not_launched_yet_has_not_ended() -> None:
    workload = ObservedWorkload(job_id="job-1", attempt=1)

    assert judge_end(workload, a_job(), an_attempt(state=AttemptState.STARTING), NOTHING) is None


@given(
    st.lists(
        st.tuples(st.sampled_from(list(PodPhase)), st.sampled_from([None, 0, 1, 75, 76, 137, 143])),
        min_size=2,
        max_size=2,
    ),
    st.booleans(),
)
def test_attempt_does_not_end_while_a_pod_is_reachable(
    pods: list[tuple[PodPhase, int | None]], requested: bool
) -> None:
    observed_pods = [a_pod(rank, phase, code) for rank, (phase, code) in enumerate(pods)]
    ending = end_of_attempt(*observed_pods, job=a_job(stop_request=a_stop() if requested else None))

    if any(not pod.has_ended for pod in observed_pods):
        assert ending is None
    elif all(pod.phase is SUCCEEDED for pod in observed_pods):
        assert end_state(ending) is AttemptState.SUCCEEDED
    else:
        assert ending
        assert ending.state.has_ended
        assert not (requested and ending.counts_as_failure)


# ---------------------------------------------------------------- abandoned attempts


def abandoned_end(*pods: Any, job: Job | None = None, failure: str = "", **changes: Any) -> AttemptEnd:
    return judge_abandoned_attempt(a_workload(*pods), job or a_job(), an_attempt(**changes), failure)


def test_attempt_that_could_not_launch_ends_as_never_ran() -> None:
    ending = abandoned_end(state=AttemptState.STARTING, reason="The one before would not end.")

    assert (ending.state, ending.reason) == (AttemptState.NEVER_RAN, "The one before would not end.")
    assert not ending.counts_as_failure


def test_refused_kubernetes_job_is_not_retried() -> None:
    ending = abandoned_end(state=AttemptState.STARTING, is_refused=True, reason="No such image name.")

    assert (ending.state, ending.is_final) == (AttemptState.NEVER_RAN, True)


def test_unscheduled_pods_do_not_blame_the_application() -> None:
    ending = abandoned_end(a_pod(0), a_pod(1, PENDING, node_name=""), state=AttemptState.LAUNCHED)

    assert (ending.state, ending.counts_as_failure) == (AttemptState.NEVER_RAN, False)


def test_pod_that_does_not_start_blames_the_application() -> None:
    ending = abandoned_end(a_pod(0), a_pod(1, PENDING, reason="ImagePullBackOff"), state=AttemptState.LAUNCHED)

    assert (ending.state, ending.counts_as_failure) == (AttemptState.NEVER_RAN, True)
    assert ending.reason == "Pod job-1-a1-1 did not start in time (ImagePullBackOff)."


def test_failed_workflow_does_not_blame_the_application() -> None:
    ending = abandoned_end(a_pod(0), failure="States.Timeout: too slow")

    assert (ending.state, ending.counts_as_failure) == (AttemptState.LOST, False)
    assert ending.reason == "The workflow of the attempt failed: States.Timeout: too slow"


def test_pods_that_do_not_stop_are_settled_as_requested() -> None:
    ending = abandoned_end(a_pod(0), job=a_job(stop_request=a_stop(AttemptState.LOST)))

    assert ending.state is AttemptState.LOST


def test_removed_evicted_pod_blames_nothing() -> None:
    ending = end_of_attempt(a_pod(1, FAILED, 1), was_disrupted=True)

    assert ending
    assert (ending.state, ending.counts_as_failure) == (AttemptState.LOST, False)


@pytest.mark.parametrize(
    ("before", "after"),
    [(AttemptState.LAUNCHED, AttemptState.NEVER_RAN), (AttemptState.RUNNING, AttemptState.LOST)],
)
def test_pod_rejected_by_its_node_blames_nothing(before: AttemptState, after: AttemptState) -> None:
    rejected = a_pod(0, FAILED, reason="UnexpectedAdmissionError")
    workload = a_workload(rejected, a_pod(1, FAILED, 1))

    ending = judge_end(workload, a_job(), an_attempt(state=before), NOTHING)

    assert ending
    assert (ending.state, ending.counts_as_failure) == (after, False)
    assert ending.reason == f"The node did not run pod {rejected.name} (UnexpectedAdmissionError)."


def test_terminating_pod_with_exit_code_0_has_not_succeeded() -> None:
    terminating, single_rank = a_pod(0, SUCCEEDED, 0, is_terminating=True), an_attempt(node_names=("node-1",))
    stopping_job = a_job(stop_request=a_stop())

    assert (
        end_state(judge_end(a_workload(terminating, is_deleting=True), stopping_job, single_rank, NOTHING))
        is AttemptState.STOPPED
    )


def test_run_past_its_deadline_is_not_repeated() -> None:
    assert abandoned_end(a_pod(0), a_pod(1)).is_final


# ---------------------------------------------------------------- settling the job

POLICY = JobPolicy(application_restarts=2, restart_backoff_seconds=30, restart_backoff_max_seconds=100)
CRASH = AttemptEnd(state=AttemptState.FAILED, reason="It failed.", counts_as_failure=True)


def settle_attempt(ending: AttemptEnd, **job: Any) -> tuple[SettleOutcome, Job]:
    decided = settle(a_job(**job), an_attempt(), ending, POLICY, NOW)
    assert decided.attempt.state is ending.state
    assert not decided.attempt.charge_held
    assert decided.attempt.ended_at == NOW
    assert decided.outcome is settled_outcome(decided.job)
    return decided.outcome, decided.job


def test_successful_attempt_ends_the_job() -> None:
    outcome, job = settle_attempt(AttemptEnd(state=AttemptState.SUCCEEDED, reason="Done."))

    assert (outcome, job.state, job.ended_at) == (SettleOutcome.JOB_SUCCEEDED, JobState.SUCCEEDED, NOW)


def test_cancelled_job_ends_cancelled_after_any_attempt_end() -> None:
    outcome, job = settle_attempt(CRASH, state=JobState.STOPPING, stop_request=a_stop())

    assert (outcome, job.state, job.stop_request) == (SettleOutcome.JOB_CANCELLED, JobState.CANCELLED, None)


def test_repeatedly_damaged_checkpoint_counts_as_failure() -> None:
    damage = AttemptEnd(state=AttemptState.LOST, reason="It is damaged.", is_checkpoint_damaged=True)
    point = ResumePoint(attempt=1, step=20, manifest="attempt=1/step=000000020/manifest.json")
    attempt = an_attempt(resume_from=point)

    first = settle(a_job(), attempt, damage, POLICY, NOW)
    second = settle(first.job.replace(state=JobState.RUNNING), attempt, damage, POLICY, NOW)

    assert (first.attempt.state, first.job.application_failures) == (AttemptState.LOST, 0)
    assert first.job.damaged_checkpoints == second.job.damaged_checkpoints == (point,)
    assert (second.attempt.state, second.job.application_failures) == (AttemptState.FAILED, 1)
    assert second.attempt.reason == (
        "It is damaged. Evenkeel knew of the damage, but the attempt resumed from this checkpoint again."
    )


def test_infrastructure_loss_requeues_at_once_without_a_restart() -> None:
    lost = AttemptEnd(state=AttemptState.LOST, reason="Its node died.")

    outcome, job = settle_attempt(lost, application_failures=2, stop_request=a_stop())

    assert (outcome, job.state) == (SettleOutcome.JOB_REQUEUED, JobState.PENDING)
    assert (job.application_failures, job.not_before, job.stop_request) == (2, None, None)


def test_resume_plan_is_kept_when_an_attempt_ends() -> None:
    plan = ResumePlan(incident_id="inc-1", after_attempt=1, option=ResumeOption.SPARE, planned_at=NOW)

    _, job = settle_attempt(AttemptEnd(state=AttemptState.LOST, reason="Lost."), resume_plan=plan, distrust_after=NOW)

    assert (job.resume_plan, job.distrust_after) == (plan, NOW)


@pytest.mark.parametrize(("before", "pause"), [(0, 30), (1, 60)])
def test_each_application_failure_doubles_the_backoff(before: int, pause: int) -> None:
    outcome, job = settle_attempt(CRASH, application_failures=before)

    assert (outcome, job.application_failures, job.not_before) == (SettleOutcome.JOB_REQUEUED, before + 1, at(pause))


def test_job_fails_after_its_last_restart() -> None:
    outcome, job = settle_attempt(CRASH, application_failures=2)

    assert (outcome, job.state) == (SettleOutcome.JOB_FAILED, JobState.FAILED)
    assert job.reason == "It failed. The job has used its 2 restarts."


def test_job_without_restarts_fails_at_first_application_failure() -> None:
    outcome, job = settle_attempt(CRASH, spec=a_spec(max_restarts=0))

    assert (outcome, job.reason) == (SettleOutcome.JOB_FAILED, "It failed. The job allows no restarts.")


def test_attempt_that_never_ran_backs_off_longer_each_time() -> None:
    never = AttemptEnd(state=AttemptState.NEVER_RAN, reason="No node.")

    pauses = [settle_attempt(never, launch_failures=count)[1].not_before for count in range(4)]

    assert pauses == [at(30), at(60), at(100), at(100)]


def test_settlement_keeps_stop_request_for_another_attempt() -> None:
    _, job = settle_attempt(CRASH, stop_request=a_stop(attempt=9))

    assert job.stop_request


# ---------------------------------------------------------------- distrusted checkpoints


def a_plan(after_attempt: int, distrust_seconds: int | None) -> ResumePlan:
    distrust = None if distrust_seconds is None else at(distrust_seconds)
    return ResumePlan(
        incident_id="inc-1",
        after_attempt=after_attempt,
        option=ResumeOption.SPARE,
        distrust_after=distrust,
        planned_at=NOW,
    )


def test_strictest_suspicion_of_an_attempt_counts() -> None:
    job = a_job().with_plan(a_plan(1, 50), is_still_distrusted=False).with_plan(a_plan(1, 90), is_still_distrusted=True)

    assert (job.distrust_after, job.distrust_through_attempt) == (at(50), 1)


def test_later_plan_keeps_the_suspicion_of_the_same_attempt() -> None:
    job = (
        a_job().with_plan(a_plan(1, 50), is_still_distrusted=False).with_plan(a_plan(1, None), is_still_distrusted=True)
    )

    assert (job.distrust_after, job.distrust_through_attempt) == (at(50), 1)


def test_suspicion_that_a_pin_respected_affects_no_later_attempt() -> None:
    job = (
        a_job()
        .with_plan(a_plan(1, 50), is_still_distrusted=False)
        .with_plan(a_plan(2, None), is_still_distrusted=False)
    )

    assert (job.distrust_after, job.distrust_through_attempt) == (None, 0)


def test_suspicion_that_no_pin_respected_affects_later_attempts() -> None:
    job = a_job().with_plan(a_plan(1, 50), is_still_distrusted=False).with_plan(a_plan(2, 90), is_still_distrusted=True)

    assert (job.distrust_after, job.distrust_through_attempt) == (at(50), 2)


# ---------------------------------------------------------------- lost nodes, writers


def test_node_is_lost_when_gone_or_not_ready_too_long() -> None:
    def node(name: str, **changes: Any) -> KubernetesNode:
        return KubernetesNode.model_validate({"cluster": CLUSTER, "name": name, **changes})

    nodes = {
        "well": node("well", is_ready=True),
        "brief": node("brief", not_ready_since=at(-5)),
        "long": node("long", not_ready_since=at(-60)),
    }

    assert lost_nodes(nodes, ("well", "brief", "long", "gone"), NOW, 60) == {"long", "gone"}


def test_only_the_scheduling_cycle_creates_attempts() -> None:
    assert attempt_writers(None, AttemptState.STARTING) == ("schedule_jobs",)
    assert job_writers(JobState.PENDING, JobState.STARTING) == ("schedule_jobs",)


def test_no_transition_leaves_a_final_state() -> None:
    for changes in ATTEMPT_WRITERS.values():
        assert not [before for before, _ in changes if before and before.has_ended]
    for writer, job_changes in JOB_WRITERS.items():
        job_states = [before for before, after in job_changes if before and before.has_ended and before is not after]
        assert not job_states, writer


# ---------------------------------------------------------------- failures of the application


def test_do_not_requeue_exit_code_ends_job_despite_remaining_restarts() -> None:
    ending = end_of_attempt(a_pod(0, FAILED, exit_code=93), a_pod(1, FAILED, exit_code=76))

    assert ending
    assert (ending.state, ending.is_final) == (AttemptState.FAILED, True)
    assert settle_attempt(ending)[0] is SettleOutcome.JOB_FAILED


def test_faulty_node_does_not_override_do_not_requeue() -> None:
    ending = end_of_attempt(a_pod(0, FAILED, exit_code=93), a_pod(1, FAILED), faulty={a_pod(0).node_name})

    assert ending
    assert (ending.state, ending.is_final) == (AttemptState.FAILED, True)


POINT = ResumePoint(attempt=1, step=10, manifest="attempt=1/step=000000010/manifest.json")


@pytest.mark.parametrize(
    ("exit_codes", "points", "ran", "ends_after"),
    [
        ([1, 1, 1], [None, None, None], 60, 2),
        ([1, 2, 1], [None, None, None], 60, None),
        ([1, 1, 1], [None, POINT, None], 60, None),
        ([1, 1, 1], [POINT, POINT, POINT], 60, 2),
        ([1, 1, 1], [None, None, None], 601, None),
        ([None, None, None], [None, None, None], 60, None),
    ],
)
def test_same_failure_twice_ends_the_job(
    exit_codes: list[int | None], points: list[ResumePoint | None], ran: int, ends_after: int | None
) -> None:
    policy = JobPolicy(application_restarts=9, same_failures=2, same_failure_seconds=600)
    job, outcomes = a_job(), []
    for code, point in zip(exit_codes, points, strict=True):
        attempt = an_attempt(resume_from=point, running_at=NOW)
        decided = settle(job, attempt, CRASH.replace(exit_code=code), policy, NOW + timedelta(seconds=ran))
        outcomes.append(decided.outcome)
        job = decided.job.replace(state=JobState.RUNNING)

    ended = outcomes.index(SettleOutcome.JOB_FAILED) + 1 if SettleOutcome.JOB_FAILED in outcomes else None
    assert ended == ends_after


def test_infrastructure_loss_between_equal_failures_does_not_reset_their_count() -> None:
    policy = JobPolicy(same_failures=2)
    lost = AttemptEnd(state=AttemptState.LOST, reason="Its node died.")
    first = settle(a_job(), an_attempt(), CRASH.replace(exit_code=1), policy, NOW).job

    between = settle(first.replace(state=JobState.RUNNING), an_attempt(), lost, policy, NOW).job

    second = settle(between.replace(state=JobState.RUNNING), an_attempt(), CRASH.replace(exit_code=1), policy, NOW)
    assert second.outcome is SettleOutcome.JOB_FAILED
    assert "2 times" in second.job.reason


@pytest.mark.parametrize(("code", "is_said"), [(1, True), (137, False), (143, False), (76, False)])
def test_killed_process_never_repeats_a_failure(code: int, is_said: bool) -> None:
    ending = end_of_attempt(a_pod(0, FAILED, exit_code=code), a_pod(1, FAILED, exit_code=code))

    assert ending
    assert (ending.exit_code is not None) is is_said


def test_only_job_whose_pods_never_started_loses_queue_position() -> None:
    late = AttemptEnd(state=AttemptState.NEVER_RAN, reason="Its pods were not scheduled in time.")
    lost = AttemptEnd(state=AttemptState.LOST, reason="The attempt lost contact with node-1.")

    assert settle_attempt(late, queue="red")[1].queued_at == NOW
    assert settle_attempt(late)[1].queued_at is None
    assert settle_attempt(lost, queue="red")[1].queued_at is None
