"""Elastic jobs where Kueue admits: Kueue may admit fewer pods, and the pods learn their world size."""

import contextlib
from typing import Any

import pytest

from evenkeel.domain.admission.authority import AdmissionAuthority
from evenkeel.domain.jobs.attempt import AttemptState
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.jobs.settlement import SettleOutcome
from evenkeel.domain.jobs.workload_kind import WorkloadKind
from evenkeel.domain.waiting import ConditionKind
from evenkeel.ports import ExecutionState, NotAllowed, WorkflowName
from evenkeel.services.attempts import record_size
from evenkeel.services.attempts.launch_job import LaunchOutcome
from evenkeel.services.queries.disclosure import Reader
from evenkeel.services.queries.fleet import read_status
from evenkeel.services.queries.jobs import read_jobs
from evenkeel.services.queries.records import explain
from tests.fakes.crashes import Crash, CrashPlan, CrashTiming
from tests.unit.services_jobs.job_scenario import JobScenario
from tests.unit.services_jobs.test_with_kueue import await_answer

SIZES = {"min_nodes": 1, "max_nodes": 4}
ANY_SIZE: dict[str, Any] = {"nodes": 4, "elastic": SIZES}
POWERS: dict[str, Any] = {"nodes": 4, "elastic": {**SIZES, "sizes": (1, 2, 4)}}


def a_scenario(**changes: Any) -> JobScenario:
    return JobScenario(admission=AdmissionAuthority.KUEUE, **changes)


def hand_over(scenario: JobScenario, **changes: Any) -> Job:
    job = scenario.started(**(ANY_SIZE | changes))
    assert scenario.launch(job.job_id).outcome is LaunchOutcome.QUEUED
    return scenario.job(job.job_id)


def admit(scenario: JobScenario, job_id: str, pods: int, attempt: int = 1) -> None:
    names = [node.name for node in scenario.world.cluster.nodes("research-eks")]
    scenario.world.cluster.kueue_admits(job_id, attempt, *names[:pods])


def published(scenario: JobScenario, job_id: str, attempt: int = 1) -> int:
    return scenario.world.cluster.launched(job_id, attempt).published_size


def test_pods_start_with_the_number_that_kueue_admits() -> None:
    scenario = a_scenario()
    job = hand_over(scenario)
    admit(scenario, job.job_id, 3)
    assert await_answer(scenario, ConditionKind.ATTEMPT_ADMITTED, job.job_id) == "ADMITTED"

    assert scenario.launch(job.job_id).outcome is LaunchOutcome.LAUNCHED
    assert await_answer(scenario, ConditionKind.ATTEMPT_RUNNING, job.job_id) == "RUNNING"
    scenario.mark_running(job.job_id)
    assert await_answer(scenario, ConditionKind.ATTEMPT_ENDED, job.job_id) == ""

    attempt = scenario.attempt(job.job_id)
    assert published(scenario, job.job_id) == 3
    assert (attempt.requested_size, attempt.size, attempt.accelerators, len(attempt.node_names)) == (4, 3, 24, 3)
    assert (scenario.job(job.job_id).size, scenario.usage()) == (3, 24)
    story = [entry["text"] for entry in read_jobs.job_timeline(scenario.world.ledger, job.job_id)]
    assert "Kueue admitted attempt 1 with 3 of 4 nodes." in story
    assert "Attempt 1 is running on 3 nodes of 4 requested." in story
    reason = "Attempt 1 runs on 3 of 4 requested nodes that Kueue chose (LocalQueue default)."
    explained = explain.why_job(job.job_id, Reader(), scenario.world.context())
    assert explained["sentence"] == f"The job runs, attempt 1. {reason}"
    shown = read_jobs.show_job(job.job_id, Reader(), scenario.world.context())["attempts"][0]
    assert (shown["size"], shown["requestedSize"]) == (3, 4)
    jobs = read_status.show_status((), scenario.context())["jobs"]
    assert jobs["belowRequestedSize"] == {"jobs": 1, "nodes": 3, "requestedNodes": 4}


@pytest.mark.parametrize(("is_told", "outcome"), [(True, "STILL_RUNS"), (False, "JOB_REQUEUED")])
def test_failed_workflow_leaves_elastic_attempt_whose_pods_run(is_told: bool, outcome: str) -> None:
    scenario = a_scenario()
    job = hand_over(scenario)
    admit(scenario, job.job_id, 3)
    if is_told:
        scenario.launch(job.job_id)

    assert scenario.settle(job.job_id, failure={"Error": "TransientError", "Cause": "Throttled"}).outcome == outcome


def test_settled_attempt_returns_exactly_its_admitted_accelerators() -> None:
    scenario = a_scenario()
    job = hand_over(scenario)
    admit(scenario, job.job_id, 3)
    scenario.launch(job.job_id)
    scenario.mark_running(job.job_id)
    scenario.world.cluster.finish_pods(job.job_id, 1)

    assert scenario.settle(job.job_id).outcome is SettleOutcome.JOB_SUCCEEDED

    assert (scenario.usage(), scenario.charges()) == (0, [])


def test_full_admission_also_tells_the_pods() -> None:
    scenario = a_scenario()
    job = hand_over(scenario)
    admit(scenario, job.job_id, 4)

    scenario.launch(job.job_id)

    assert published(scenario, job.job_id) == 4
    assert scenario.attempt(job.job_id).size == 4
    assert "resized" not in scenario.timeline(job.job_id)


@pytest.mark.parametrize("kind", [WorkloadKind.JOB_SET, WorkloadKind.PYTORCH_JOB, WorkloadKind.HYPERPOD_PYTORCH_JOB])
def test_other_kinds_ask_kueue_for_all_pods(kind: WorkloadKind) -> None:
    scenario = a_scenario()

    job = hand_over(scenario, kind=kind)

    assert scenario.attempt(job.job_id).requested_size == 0


def test_job_at_its_smallest_size_asks_for_all_pods() -> None:
    scenario = a_scenario()

    job = hand_over(scenario, nodes=1)

    assert scenario.attempt(job.job_id).requested_size == 0


def test_second_call_changes_nothing() -> None:
    scenario = a_scenario()
    job = hand_over(scenario)
    admit(scenario, job.job_id, 3)

    scenario.launch(job.job_id)
    scenario.launch(job.job_id)
    scenario.sweep()

    assert scenario.usage() == 24
    assert [call for call in scenario.world.cluster.calls if call[0] == "publish_size"] == [
        ("publish_size", f"{job.job_id}-a1", 3)
    ]
    sizes = [entry for entry in read_jobs.job_timeline(scenario.world.ledger, job.job_id) if entry["kind"] == "resized"]
    assert len(sizes) == 1


def test_no_size_is_published_while_a_check_is_open() -> None:
    scenario = a_scenario()
    job = hand_over(scenario)

    assert scenario.launch(job.job_id).outcome is LaunchOutcome.QUEUED
    scenario.sweep()

    assert published(scenario, job.job_id) == 0


# ---------------------------------------------------------------- numbers between two sizes


def test_number_between_sizes_asks_kueue_for_the_smaller_size() -> None:
    scenario = a_scenario()
    job = hand_over(scenario, **POWERS)
    admit(scenario, job.job_id, 3)

    assert scenario.launch(job.job_id).outcome is LaunchOutcome.LAUNCHED
    assert await_answer(scenario, ConditionKind.ATTEMPT_RUNNING, job.job_id) == "STOP_REQUESTED"
    scenario.stop(job.job_id)
    assert scenario.settle(job.job_id).outcome is SettleOutcome.JOB_REQUEUED
    scenario.run_scheduling_cycle()
    assert scenario.launch(job.job_id, 2).outcome is LaunchOutcome.QUEUED

    stopped, asking = scenario.attempt(job.job_id), scenario.attempt(job.job_id, 2)
    assert stopped.state is AttemptState.STOPPED
    assert "publish_size" not in [call[0] for call in scenario.world.cluster.calls]
    assert stopped.reason == (
        "Kueue admits the job with 3 nodes, which is none of its sizes (1, 2, 4). "
        "Its next attempt asks Kueue for 2 nodes."
    )
    assert (asking.size, asking.requested_size, asking.accelerators) == (2, 2, 16)
    assert (scenario.usage(), scenario.job(job.job_id).application_failures) == (16, 0)


def test_attempt_after_the_smaller_size_asks_for_all_nodes() -> None:
    scenario = a_scenario()
    job = hand_over(scenario, **POWERS)
    admit(scenario, job.job_id, 3)
    scenario.launch(job.job_id)
    scenario.stop(job.job_id)
    scenario.settle(job.job_id)
    scenario.run_scheduling_cycle()
    scenario.launch(job.job_id, 2)
    admit(scenario, job.job_id, 2, attempt=2)
    scenario.launch(job.job_id, 2)
    scenario.mark_running(job.job_id, 2)
    scenario.world.cluster.kueue_evicts(job.job_id, 2)
    scenario.settle(job.job_id, 2)

    scenario.run_scheduling_cycle()

    assert scenario.attempt(job.job_id, 3).size == 4


# ---------------------------------------------------------------- evictions


def test_readmission_at_another_size_publishes_nothing() -> None:
    scenario = a_scenario()
    job = hand_over(scenario)
    admit(scenario, job.job_id, 3)
    scenario.world.cluster.kueue_evicts(job.job_id, 1)
    names = [node.name for node in scenario.world.cluster.nodes("research-eks")]
    scenario.world.cluster.kueue_admits(job.job_id, 1, *names[:2], was_admitted=True)

    scenario.launch(job.job_id)

    assert published(scenario, job.job_id) == 0
    assert await_answer(scenario, ConditionKind.ATTEMPT_RUNNING, job.job_id) == "STOP_REQUESTED"


def test_readmission_after_the_size_was_published_ends_the_attempt() -> None:
    scenario = a_scenario()
    job = hand_over(scenario)
    admit(scenario, job.job_id, 3)
    scenario.launch(job.job_id)
    scenario.world.cluster.kueue_evicts(job.job_id, 1)
    names = [node.name for node in scenario.world.cluster.nodes("research-eks")]
    scenario.world.cluster.kueue_admits(job.job_id, 1, *names[:2], was_admitted=True)

    assert await_answer(scenario, ConditionKind.ATTEMPT_RUNNING, job.job_id) == "STOP_REQUESTED"
    scenario.stop(job.job_id)
    scenario.settle(job.job_id)
    scenario.world.clock.advance(600)
    scenario.run_scheduling_cycle()
    scenario.launch(job.job_id, 2)

    fence = scenario.world.checkpoints.fence(job.spec.checkpoint_uri)[0]
    assert fence
    assert (fence["attempt"], scenario.attempt(job.job_id, 2).size) == (2, 4)
    assert scenario.usage() == 32


@pytest.mark.parametrize("pods", [3, 2])
def test_sweep_ends_a_readmitted_attempt_without_a_workflow(pods: int) -> None:
    scenario = a_scenario()
    job = hand_over(scenario)
    admit(scenario, job.job_id, 3)
    scenario.launch(job.job_id)
    scenario.world.workflows.finish(WorkflowName.RUN_JOB, f"{job.job_id}-a1", ExecutionState.FAILED)
    scenario.world.cluster.kueue_evicts(job.job_id, 1)
    names = [node.name for node in scenario.world.cluster.nodes("research-eks")]
    scenario.world.cluster.kueue_admits(job.job_id, 1, *names[:pods], was_admitted=True)
    scenario.world.clock.advance(600)

    scenario.sweep()

    attempt = scenario.attempt(job.job_id)
    assert (attempt.state, attempt.reason) == (
        AttemptState.NEVER_RAN,
        "Kueue evicted the job, then admitted it again.",
    )
    assert not scenario.world.cluster.workload(attempt).has_runnable_pods
    assert (scenario.job(job.job_id).state, scenario.usage()) == (JobState.PENDING, 0)


def test_changed_parallelism_without_an_eviction_ends_the_attempt() -> None:
    scenario = a_scenario()
    job = hand_over(scenario)
    admit(scenario, job.job_id, 3)
    scenario.launch(job.job_id)
    admit(scenario, job.job_id, 2)

    assert record_size.run(job.job_id, 1, scenario.context()).action == "ASK_AGAIN"

    stop_request = scenario.job(job.job_id).stop_of(1)
    assert stop_request
    assert "started attempt 1 again with 2 pods, but its size was 3 before" in stop_request.reason
    assert stop_request.outcome is AttemptState.NEVER_RAN


# ---------------------------------------------------------------- crashes and refusals


@pytest.mark.parametrize("when", list(CrashTiming))
@pytest.mark.parametrize("at", [1, 2])
def test_crash_while_a_size_is_recorded_charges_it_once(at: int, when: CrashTiming) -> None:
    scenario = a_scenario(plan=CrashPlan())
    job = hand_over(scenario)
    admit(scenario, job.job_id, 3)
    scenario.plan.effects.clear()
    scenario.plan.at, scenario.plan.when = at, when
    with contextlib.suppress(Crash):
        scenario.launch(job.job_id)
    scenario.plan.at = 0

    scenario.launch(job.job_id)

    assert (published(scenario, job.job_id), scenario.attempt(job.job_id).size, scenario.usage()) == (3, 3, 24)


def test_sweep_tells_the_pods_if_the_workflow_did_not() -> None:
    scenario = a_scenario()
    job = hand_over(scenario)
    admit(scenario, job.job_id, 3)
    scenario.world.workflows.finish(WorkflowName.RUN_JOB, f"{job.job_id}-a1", ExecutionState.FAILED)
    scenario.world.clock.advance(600)

    scenario.sweep()
    scenario.sweep()

    assert published(scenario, job.job_id) == 3
    assert scenario.attempt(job.job_id).state is AttemptState.RUNNING


def test_cluster_without_the_right_stops_the_attempt_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = a_scenario()
    job = hand_over(scenario)
    admit(scenario, job.job_id, 3)

    def deny(_attempt: object) -> None:
        raise NotAllowed("create configmaps: 403")

    monkeypatch.setattr(scenario.world.cluster, "publish_size", deny)

    scenario.launch(job.job_id)
    scenario.stop(job.job_id)
    scenario.settle(job.job_id)

    ended, waiting = scenario.attempt(job.job_id), scenario.job(job.job_id)
    assert ended.state is AttemptState.NEVER_RAN
    assert ended.reason == "The pods cannot get their world size: create configmaps: 403."
    assert (waiting.state, waiting.not_before is not None, scenario.usage()) == (JobState.PENDING, True, 0)


def test_cancelled_job_is_told_nothing() -> None:
    scenario = a_scenario()
    job = hand_over(scenario)
    admit(scenario, job.job_id, 3)
    scenario.cancel(job.job_id)

    scenario.launch(job.job_id)

    assert (published(scenario, job.job_id), scenario.attempt(job.job_id).size) == (0, 4)
