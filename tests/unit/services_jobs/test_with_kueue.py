"""Admission by Kueue: Evenkeel hands each job over, follows Kueue's status, and starts no job itself."""

import contextlib
import re
from datetime import timedelta
from typing import Any

import pytest

from evenkeel.domain.admission.authority import AdmissionAuthority
from evenkeel.domain.admission.decide_job import AdmissionAction
from evenkeel.domain.decisions import Decision
from evenkeel.domain.external.kueue_status import KueueCondition
from evenkeel.domain.jobs.attempt import AttemptState, PodPhase
from evenkeel.domain.jobs.job import Job, JobState, ResumeOption, ResumePlan
from evenkeel.domain.jobs.settlement import SettleOutcome
from evenkeel.domain.nodes import NodeLife
from evenkeel.domain.recovery.validation import HEALTH_STATUS
from evenkeel.domain.replay import replay
from evenkeel.domain.waiting import ConditionKind, Wait
from evenkeel.ports import ExecutionState, Invalid, Put, Table, WorkflowName
from evenkeel.services.attempts.launch_job import LaunchOutcome
from evenkeel.services.jobs.check_role import Requester
from evenkeel.services.queries.disclosure import Reader
from evenkeel.services.queries.jobs import plan_unsubmitted_job, read_jobs
from evenkeel.services.queries.records import explain
from evenkeel.services.tables import job_rows, rows, subject_rows
from evenkeel.services.waits import open_wait
from tests.fakes.cluster import a_node, instance_id
from tests.fakes.crashes import Crash, CrashPlan, CrashTiming
from tests.unit.scheduling.test_sharing import a_team
from tests.unit.services_jobs.job_scenario import NAMESPACE, JobScenario, a_spec
from tests.unit.services_jobs.test_teams import MEMBERS, set_up_teams


def a_scenario(**changes: Any) -> JobScenario:
    return JobScenario(admission=AdmissionAuthority.KUEUE, **changes)


def hand_over_job(scenario: JobScenario, **changes: Any) -> Job:
    job = scenario.started(**changes)
    assert scenario.launch(job.job_id).outcome is LaunchOutcome.QUEUED
    return scenario.job(job.job_id)


def await_answer(scenario: JobScenario, kind: ConditionKind, job_id: str, attempt: int = 1) -> str:
    """Open a wait, as the workflow does; return its immediate answer, or None."""
    world = scenario.world
    request = open_wait.OpenWaitRequest(kind=kind, token="token", job_id=job_id, attempt=attempt)
    before = len(world.wait_answers.requests)
    open_wait.run(request, world.context(policy=scenario.policy))
    requests = world.wait_answers.requests[before:]
    return str(requests[-1].answer["outcome"]) if requests else ""


def job_waiting_in_kueue(scenario: JobScenario, job_id: str, attempt: int = 1) -> Wait:
    row = scenario.world.ledger.get(subject_rows.wait_key(job_id, f"attempt-{attempt}-admitted"))
    assert row
    return rows.decode(row, Wait)


def pending_condition(reason: str, message: str) -> KueueCondition:
    return KueueCondition(type="QuotaReserved", is_true=False, reason=reason, message=message)


def job_running_in_kueue(scenario: JobScenario) -> Job:
    job = hand_over_job(scenario)
    scenario.world.cluster.kueue_admits(
        job.job_id, 1, *(node.name for node in scenario.world.cluster.nodes("research-eks")[:2])
    )
    scenario.mark_running(job.job_id)
    assert await_answer(scenario, ConditionKind.ATTEMPT_ENDED, job.job_id) == ""
    return scenario.job(job.job_id)


# ---------------------------------------------------------------- handing over


def test_cycle_hands_every_job_to_its_local_queue() -> None:
    scenario = a_scenario(size=0)

    jobs = [scenario.submit(f"key-{number}") for number in range(3)]
    outcome = scenario.run_scheduling_cycle()

    assert [name.partition("-a")[0] for name in outcome.admitted] == [job.job_id for job in jobs]
    attempt = scenario.attempt(jobs[0].job_id)
    assert (attempt.local_queue, attempt.node_names, attempt.pool) == ("default", (), "")
    assert scenario.run_scheduling_cycle().admitted == ()


def test_handover_decision_replays() -> None:
    scenario = a_scenario()
    job = scenario.started()

    (row,) = scenario.world.ledger.by_state(Table.INCIDENTS, f"DEC#{job.job_id}").rows
    record = rows.decode(row, Decision)

    assert (record.action, record.reason) == (
        AdmissionAction.ADMIT,
        "Kueue admits jobs here: the job goes to LocalQueue default.",
    )
    assert replay(record, scenario.policy).reason == record.reason


@pytest.mark.parametrize("when", list(CrashTiming))
@pytest.mark.parametrize("at", range(1, 9))
def test_crash_during_handover_leaves_one_attempt(at: int, when: CrashTiming) -> None:
    scenario = a_scenario(plan=CrashPlan())
    job = job_running_in_kueue(scenario)
    scenario.world.clock.advance(60)
    scenario.world.cluster.kueue_evicts(job.job_id, 1)
    scenario.plan.effects.clear()
    scenario.plan.at, scenario.plan.when = at, when
    with contextlib.suppress(Crash):
        scenario.settle(job.job_id)
        scenario.run_scheduling_cycle()
        scenario.launch(job.job_id, 2)
    scenario.plan.at = 0
    scenario.world.clock.advance(600)

    scenario.settle(job.job_id)
    scenario.run_scheduling_cycle()
    scenario.sweep()
    scenario.launch(job.job_id, 2)

    assert [scenario.attempt(job.job_id, number).state for number in (1, 2)] == [
        AttemptState.STOPPED,
        AttemptState.LAUNCHED,
    ]
    assert scenario.job(job.job_id).current_attempt == 2
    assert scenario.charges() == [f"CHARGE#{job.job_id}-a2"]
    assert not scenario.world.cluster.workload(scenario.attempt(job.job_id)).has_runnable_pods


def test_job_in_backoff_is_not_handed_to_kueue() -> None:
    scenario = a_scenario()
    job = scenario.submit()
    row = scenario.world.ledger.get(job_rows.job_key(job.job_id))
    assert row
    later = scenario.world.clock.now() + timedelta(seconds=60)
    scenario.world.ledger.commit(Put(job_rows.job_row(job.replace(not_before=later), row.version)))

    assert scenario.run_scheduling_cycle().admitted == ()
    scenario.world.clock.advance(61)
    assert scenario.run_scheduling_cycle().admitted == (f"{job.job_id}-a1",)


def test_launch_through_kueue_raises_the_fence_and_assigns_no_nodes() -> None:
    scenario = a_scenario()

    job = hand_over_job(scenario)

    launched = scenario.world.cluster.launched(job.job_id, 1)
    assert (launched.is_suspended, launched.pods) == (True, [])
    assert launched.spec.accelerator_resource == "nvidia.com/gpu"
    fence = scenario.world.checkpoints.fence(job.spec.checkpoint_uri)[0]
    assert fence
    assert fence["attempt"] == 1
    assert scenario.launch(job.job_id).outcome is LaunchOutcome.QUEUED


def test_attempt_after_a_recovery_avoids_the_faulty_nodes() -> None:
    scenario = a_scenario()
    job = scenario.submit()
    faulty = NodeLife(cluster="research-eks", instance_id=instance_id(2), launched_at=scenario.world.clock.now())
    row = scenario.world.ledger.get(job_rows.job_key(job.job_id))
    assert row
    plan = ResumePlan(
        incident_id="inc-1",
        after_attempt=0,
        option=ResumeOption.FREE_NODE,
        avoid=(faulty.key,),
        planned_at=scenario.world.clock.now(),
    )
    scenario.world.ledger.commit(Put(job_rows.job_row(job.replace(resume_plan=plan), row.version)))
    scenario.run_scheduling_cycle()

    scenario.launch(job.job_id)

    assert scenario.world.cluster.launched(job.job_id, 1).spec.avoid == (a_node(2).name,)


# ---------------------------------------------------------------- waiting


def test_job_waits_for_kueue_without_a_deadline() -> None:
    scenario = a_scenario()
    job = hand_over_job(scenario)
    message = "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu, 8 more needed"
    scenario.world.cluster.kueue_says(job.job_id, 1, pending_condition("WaitingForQuota", message), position=2)

    assert await_answer(scenario, ConditionKind.ATTEMPT_ADMITTED, job.job_id) == ""

    scenario.world.clock.advance(40 * 86_400)
    scenario.sweep()
    assert scenario.world.wait_answers.requests == []
    now = scenario.world.clock.now()
    reason = f"The job waits in Kueue's queue default, 2nd of its LocalQueue. No quota is free for the job: {message}."
    explained = explain.why_job(job.job_id, Reader(), scenario.world.context(now=now))
    assert explained["sentence"] == f"The job waits for Kueue to admit it, attempt 1. {reason}"
    assert explained["changes"] == []
    assert explained["changesUnknown"].startswith("Kueue decides, and Evenkeel does not read the quotas of its queues.")
    assert re.search(rf"--why [a-z0-9-]+/{job.job_id}-a1`", explained["changesUnknown"])
    shown = read_jobs.show_job(job.job_id, Reader(), scenario.world.context(now=now))
    assert (shown["reason"], shown["queue"]) == (reason, {"position": 2, "estimate": None})


def test_each_kueue_step_is_recorded_once() -> None:
    scenario = a_scenario()
    job = hand_over_job(scenario)
    await_answer(scenario, ConditionKind.ATTEMPT_ADMITTED, job.job_id)
    for message in ("3 more needed", "2 more needed"):
        scenario.world.cluster.kueue_says(job.job_id, 1, pending_condition("WaitingForQuota", message))
        scenario.sweep()
        scenario.sweep()

    texts = [
        entry["text"] for entry in read_jobs.job_timeline(scenario.world.ledger, job.job_id) if entry["kind"] == "kueue"
    ]

    assert texts == [
        "The job waits in Kueue's queue default. No quota is free for the job: 3 more needed.",
    ]
    assert job_waiting_in_kueue(scenario, job.job_id).kueue_status.endswith("2 more needed.")


def test_sweep_stops_admitted_attempt_whose_pods_never_start() -> None:
    scenario = a_scenario()
    job = hand_over_job(scenario)
    deadline_seconds = scenario.policy.jobs.running_deadline_seconds
    scenario.world.workflows.finish(WorkflowName.RUN_JOB, f"{job.job_id}-a1", ExecutionState.FAILED)
    scenario.world.clock.advance(10 * deadline_seconds)  # in Kueue's queue
    scenario.world.cluster.kueue_admits(job.job_id, 1, a_node(1).name, a_node(2).name)
    workload = scenario.world.cluster.launched(job.job_id, 1)
    workload.pods = [pod.replace(phase=PodPhase.PENDING) for pod in workload.pods]
    scenario.world.clock.advance(deadline_seconds)
    assert scenario.sweep().corrections.get("attempts") is None
    scenario.world.clock.advance(60)

    scenario.sweep()
    scenario.sweep()

    assert (scenario.attempt(job.job_id).state, scenario.job(job.job_id).state) == (
        AttemptState.NEVER_RAN,
        JobState.PENDING,
    )
    assert not scenario.world.cluster.workload(scenario.attempt(job.job_id)).has_runnable_pods


def test_job_runs_after_kueue_admits_it() -> None:
    scenario = a_scenario()
    job = hand_over_job(scenario)
    await_answer(scenario, ConditionKind.ATTEMPT_ADMITTED, job.job_id)

    scenario.world.cluster.kueue_admits(job.job_id, 1, a_node(1).name, a_node(2).name)
    scenario.sweep()

    assert scenario.world.wait_answers.requests[-1].answer["outcome"] == "ADMITTED"
    texts = [
        entry["text"] for entry in read_jobs.job_timeline(scenario.world.ledger, job.job_id) if entry["kind"] == "kueue"
    ]
    assert texts == ["Kueue admitted the job by quota of h100 in ClusterQueue research."]


def test_nodes_that_kueue_chose_are_recorded_once_job_runs() -> None:
    scenario = a_scenario()

    job = job_running_in_kueue(scenario)

    attempt = scenario.attempt(job.job_id)
    assert attempt.node_names == (a_node(1).name, a_node(2).name)
    assert [life.instance_id for life in attempt.nodes] == [instance_id(1), instance_id(2)]
    assert (attempt.pool, attempt.instance_type) == ("p5-workers", "ml.p5.48xlarge")
    assert job.reason == "Attempt 1 runs on nodes that Kueue chose (LocalQueue default)."


def test_node_that_joins_between_two_lists_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = a_scenario()
    job = hand_over_job(scenario, nodes=1)
    cluster = scenario.world.cluster
    nodes = cluster.nodes("research-eks")
    cluster.kueue_admits(job.job_id, 1, nodes[0].name)
    lists = iter([nodes[1:]])  # the first node joins after the first list
    monkeypatch.setattr(cluster, "nodes", lambda _cluster: next(lists, nodes))

    assert await_answer(scenario, ConditionKind.ATTEMPT_RUNNING, job.job_id) == "RUNNING"


def test_sweep_does_not_lose_a_node_that_just_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = a_scenario()
    job = hand_over_job(scenario, nodes=1)
    cluster = scenario.world.cluster
    nodes = cluster.nodes("research-eks")
    cluster.kueue_admits(job.job_id, 1, nodes[0].name)
    scenario.world.clock.advance(600)
    scenario.world.workflows.finish(WorkflowName.RUN_JOB, f"{job.job_id}-a1", ExecutionState.FAILED)
    monkeypatch.setattr(cluster, "nodes", lambda _cluster: nodes[1:])

    scenario.sweep()

    assert scenario.attempt(job.job_id).state is AttemptState.RUNNING


def test_sweeper_records_nodes_after_a_crash() -> None:
    scenario = a_scenario()
    job = hand_over_job(scenario)
    scenario.world.cluster.kueue_admits(job.job_id, 1, a_node(1).name, a_node(2).name)
    scenario.mark_running(job.job_id)

    scenario.sweep()

    assert scenario.attempt(job.job_id).node_names == (a_node(1).name, a_node(2).name)


# ---------------------------------------------------------------- evictions


def test_eviction_requeues_the_job_without_using_a_restart() -> None:
    scenario = a_scenario()
    job = job_running_in_kueue(scenario)
    scenario.world.clock.advance(60)
    scenario.world.cluster.kueue_evicts(job.job_id, 1, "Preempted", "Preempted to accommodate a workload (UID: 7)")
    assert await_answer(scenario, ConditionKind.ATTEMPT_ENDED, job.job_id) == "ENDED"

    result = scenario.settle(job.job_id)

    attempt, again = scenario.attempt(job.job_id), scenario.job(job.job_id)
    assert (result.outcome, attempt.state) == (SettleOutcome.JOB_REQUEUED, AttemptState.STOPPED)
    assert attempt.reason == "Kueue preempted the job: Preempted to accommodate a workload (UID: 7)."
    assert attempt.stop_asked_at == scenario.world.clock.now()
    assert (again.state, again.is_preempted, again.application_failures, again.not_before) == (
        JobState.PENDING,
        True,
        0,
        None,
    )
    assert scenario.run_scheduling_cycle().admitted == (f"{job.job_id}-a2",)
    assert scenario.launch(job.job_id, 2).outcome is LaunchOutcome.QUEUED
    fence = scenario.world.checkpoints.fence(job.spec.checkpoint_uri)[0]
    assert fence
    assert fence["attempt"] == 2


def test_attempt_that_kueue_evicts_and_readmits_is_still_stopped() -> None:
    scenario = a_scenario()
    job = job_running_in_kueue(scenario)
    scenario.world.cluster.kueue_admits(job.job_id, 1, a_node(3).name, a_node(4).name, was_admitted=True)

    assert await_answer(scenario, ConditionKind.ATTEMPT_ENDED, job.job_id) == "STOP_REQUESTED"
    scenario.stop(job.job_id)
    assert scenario.settle(job.job_id).outcome is SettleOutcome.JOB_REQUEUED

    attempt = scenario.attempt(job.job_id)
    assert (attempt.state, attempt.reason) == (AttemptState.STOPPED, "Kueue evicted the job, then admitted it again.")
    assert scenario.job(job.job_id).application_failures == 0


def test_attempt_evicted_before_admission_keeps_waiting() -> None:
    scenario = a_scenario()
    job = hand_over_job(scenario)
    evicted = KueueCondition(type="Evicted", is_true=True, reason="AdmissionCheck", message="retry")
    no = KueueCondition(type="Admitted", is_true=False, reason="NoReservation")
    scenario.world.cluster.kueue_says(job.job_id, 1, pending_condition("PendingEvaluation", "retry"), no, evicted)

    assert await_answer(scenario, ConditionKind.ATTEMPT_ADMITTED, job.job_id) == ""

    assert "Kueue evicted the job before (AdmissionCheck)." in job_waiting_in_kueue(scenario, job.job_id).kueue_status


def test_job_whose_pods_never_become_ready_backs_off() -> None:
    scenario = a_scenario()
    job = hand_over_job(scenario)
    scenario.world.cluster.kueue_evicts(job.job_id, 1, "PodsReadyTimeout", "Exceeded the PodsReady timeout")

    scenario.settle(job.job_id)

    again = scenario.job(job.job_id)
    assert scenario.attempt(job.job_id).state is AttemptState.NEVER_RAN
    assert again.not_before is not None
    assert (again.state, again.application_failures, again.launch_failures) == (JobState.PENDING, 0, 1)


def test_application_failure_counts_despite_a_kueue_eviction() -> None:
    scenario = a_scenario()
    job = job_running_in_kueue(scenario)
    scenario.world.cluster.fail_pods(job.job_id, 1, 0, exit_code=1)
    scenario.world.cluster.fail_pods(job.job_id, 1, 1, exit_code=76)

    scenario.settle(job.job_id)

    assert scenario.job(job.job_id).application_failures == 1


@pytest.mark.parametrize("marks", [{"labels": {HEALTH_STATUS: "UnschedulablePendingReplacement"}}, {"is_ready": False}])
def test_failure_at_start_is_attributed_to_the_faulty_node(marks: dict[str, Any]) -> None:
    scenario = a_scenario()
    job = hand_over_job(scenario, max_restarts=0)
    scenario.world.cluster.kueue_admits(job.job_id, 1, a_node(1).name, a_node(2).name)
    scenario.world.cluster.set_node(a_node(2).name, **marks)
    scenario.world.cluster.fail_pods(job.job_id, 1, exit_code=134)
    assert scenario.attempt(job.job_id).node_names == ()  # not recorded yet

    result = scenario.settle(job.job_id)

    assert result.outcome is SettleOutcome.JOB_REQUEUED
    assert scenario.attempt(job.job_id).state is AttemptState.LOST
    assert scenario.job(job.job_id).application_failures == 0


def test_cancel_ends_a_job_that_waits_for_kueue() -> None:
    scenario = a_scenario()
    job = hand_over_job(scenario)
    await_answer(scenario, ConditionKind.ATTEMPT_ADMITTED, job.job_id)
    scenario.cancel(job.job_id)

    scenario.sweep()
    assert scenario.world.wait_answers.requests[-1].answer["outcome"] == "STOP_REQUESTED"
    scenario.stop(job.job_id)
    assert scenario.settle(job.job_id).outcome is SettleOutcome.JOB_CANCELLED


def test_time_waiting_for_kueue_is_not_charged() -> None:
    scenario = a_scenario()
    job = hand_over_job(scenario)
    scenario.world.clock.advance(86_400)
    scenario.cancel(job.job_id)
    scenario.stop(job.job_id)

    scenario.settle(job.job_id)

    assert scenario.attempt(job.job_id).charged_since is None


# ---------------------------------------------------------------- beside Kueue


def test_submission_into_a_kueue_namespace_is_refused() -> None:
    scenario = JobScenario()
    scenario.world.cluster.kueue_managed[NAMESPACE] = "its LocalQueue default"
    scenario.sweep()

    with pytest.raises(Invalid, match=r"where Kueue admits jobs \(its LocalQueue default\)") as refused:
        scenario.submit()

    assert refused.value.faults[0][0] == "team"
    scenario.world.cluster.kueue_managed.clear()
    scenario.world.clock.advance(60)
    scenario.sweep()
    assert scenario.submit("key-2").state is JobState.PENDING


def test_kueue_admission_refuses_no_kueue_namespace() -> None:
    scenario = a_scenario()
    scenario.world.cluster.kueue_managed[NAMESPACE] = "its LocalQueue default"
    scenario.sweep()

    job = scenario.submit()

    assert scenario.run_scheduling_cycle().admitted == (f"{job.job_id}-a1",)


def test_jobs_go_to_kueue_even_without_team_quota() -> None:
    scenario = a_scenario(size=0)
    set_up_teams(scenario, a_team("red", 0, members=MEMBERS, local_queue="gpu-queue"))

    job = scenario.started(team="red", priority_class="")
    scenario.launch(job.job_id)

    assert scenario.attempt(job.job_id).local_queue == "gpu-queue"
    assert scenario.world.cluster.launched(job.job_id, 1).is_suspended


def plan_job(scenario: JobScenario) -> dict[str, Any]:
    return plan_unsubmitted_job.run(
        a_spec(),
        Requester(principal="role/ana", identity="111122223333:role/ana"),
        scenario.context(),
    )


def test_plan_answer_says_that_kueue_decides() -> None:
    beside, followed = JobScenario(), a_scenario()
    for scenario in (beside, followed):
        scenario.world.cluster.kueue_managed[NAMESPACE] = "its LocalQueue default"
        scenario.sweep()

    assert plan_job(followed)["decision"]["reason"] == "Kueue admits jobs here: the job goes to LocalQueue default."
    with pytest.raises(Invalid, match="where Kueue admits jobs"):
        plan_job(beside)
