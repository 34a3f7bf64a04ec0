"""Kubernetes Jobs and pods with the labels of an attempt that do not belong to it."""

from typing import Any

import pytest

from evenkeel.domain.external.unmanaged_workloads import LabelledOwner, ManagedKind, UnmanagedPod
from evenkeel.domain.jobs.attempt import Attempt, AttemptState, ObservedPod, ObservedWorkload, PodPhase
from evenkeel.domain.jobs.job import JobState
from evenkeel.domain.jobs.settlement import SettleOutcome
from evenkeel.domain.policy import Policy
from evenkeel.ports import ExecutionState, WorkflowName
from evenkeel.services.queries.jobs import read_jobs
from evenkeel.services.recovery import drain_node, unmanaged_pods
from evenkeel.services.tables import job_rows
from tests.fakes.cluster import CLUSTER
from tests.unit.services_jobs.job_scenario import NAMESPACE, JobScenario
from tests.unit.services_jobs.test_sweep import an_incident

ANYWHERE = "other-team"


def a_forgery(attempt: Attempt, phase: PodPhase, **changes: Any) -> ObservedWorkload:
    """Return a Job in another namespace with the labels of this attempt, and a pod for each of its ranks."""
    code = 0 if phase is PodPhase.SUCCEEDED else None
    pods = tuple(
        ObservedPod(name=f"forged-{rank}", node_name=name, phase=phase, exit_code=code)
        for rank, name in enumerate(attempt.node_names)
    )
    facts: dict[str, Any] = {
        "job_id": attempt.job_id,
        "attempt": attempt.attempt,
        "namespace": ANYWHERE,
        "job_uid": "uid-forged",
        "uid": "uid-forged",
        "has_completed": phase is PodPhase.SUCCEEDED,
        "has_failed": phase is PodPhase.FAILED,
        "decision_id": attempt.decision_id,
        "pods": pods,
    }
    return ObservedWorkload.model_validate({**facts, **changes})


def a_recreated_job(attempt: Attempt, phase: PodPhase) -> ObservedWorkload:
    """Return a Job that a person created with the name and namespace of the attempt's Job."""
    return a_forgery(attempt, phase, namespace=attempt.namespace)


FORGERIES = [a_forgery, a_recreated_job]


@pytest.mark.parametrize("forge", FORGERIES)
@pytest.mark.parametrize("phase", [PodPhase.SUCCEEDED, PodPhase.FAILED])
def test_forged_end_leaves_the_attempt_running(forge: Any, phase: PodPhase) -> None:
    scenario = JobScenario()
    job = scenario.running(nodes=1)
    scenario.world.cluster.forged = [forge(scenario.attempt(job.job_id), phase)]

    workload = scenario.world.cluster.workload(scenario.attempt(job.job_id))
    scenario.world.clock.advance(3600)
    scenario.sweep()

    assert (workload.uid, workload.has_completed, workload.has_failed) == ("uid-1", False, False)
    assert scenario.attempt(job.job_id).state is AttemptState.RUNNING


@pytest.mark.parametrize("forge", FORGERIES)
def test_forged_pods_do_not_keep_a_lost_attempt_alive(forge: Any) -> None:
    scenario = JobScenario()
    job = scenario.running(nodes=1)
    attempt = scenario.attempt(job.job_id)
    scenario.world.cluster.jobs[CLUSTER].clear()
    scenario.world.cluster.forged = [forge(attempt, PodPhase.RUNNING)]
    scenario.world.workflows.finish(WorkflowName.RUN_JOB, attempt.workload_name, ExecutionState.FAILED)
    scenario.world.clock.advance(3600)

    scenario.sweep()

    assert scenario.attempt(job.job_id).state is AttemptState.LOST
    assert scenario.job(job.job_id).state is JobState.PENDING


def test_forged_pod_frees_no_charged_accelerator() -> None:
    scenario = JobScenario(size=1)
    first = scenario.started(nodes=1)
    attempt = scenario.attempt(first.job_id)
    scenario.world.cluster.forged = [a_forgery(attempt, PodPhase.RUNNING)]

    second = scenario.started(nodes=1, accelerators_per_node=8)

    assert second.state is JobState.PENDING


def test_forged_pod_on_a_faulty_node_interrupts_no_job() -> None:
    scenario = JobScenario()
    job = scenario.running(nodes=1)
    attempt = scenario.attempt(job.job_id)
    faulty = next(node for node in scenario.world.cluster.nodes(CLUSTER) if node.name not in attempt.node_names)
    forged = ObservedPod(name="forged-0", node_name=faulty.name, phase=PodPhase.RUNNING)
    scenario.world.cluster.forged = [a_forgery(attempt, PodPhase.RUNNING, pods=(forged,))]
    number = int(str(faulty.instance_id).removeprefix("i-"))
    incident = an_incident(scenario, number)

    affected = drain_node.find_affected_jobs(incident, scenario.context(policy=Policy())).jobs

    assert affected == ()


def test_forged_pods_of_a_settled_attempt_are_not_stopped() -> None:
    scenario = JobScenario()
    job = scenario.running(nodes=1)
    attempt = scenario.attempt(job.job_id)
    scenario.world.cluster.finish_pods(job.job_id, 1)
    scenario.settle(job.job_id)
    scenario.world.cluster.forged = [a_forgery(attempt, PodPhase.RUNNING)]
    scenario.world.cluster.calls.clear()
    scenario.world.clock.advance(3600)

    scenario.sweep()

    assert not [call for call in scenario.world.cluster.calls if call[0] == "stop"]
    assert scenario.world.telemetry.totals["UnmanagedWorkloads"] == 1


# ---------------------------------------------------------------- settling


@pytest.mark.parametrize("state", [AttemptState.SUCCEEDED, AttemptState.FAILED])
def test_reported_end_with_live_pods_queues_the_job_again(state: AttemptState) -> None:
    scenario = JobScenario()
    job = scenario.running(nodes=1)

    result = scenario.settle(job.job_id, ended={"facts": {"state": state, "reason": "It was seen to end."}})

    attempt = scenario.attempt(job.job_id)
    assert (attempt.state, result.outcome) == (AttemptState.LOST, SettleOutcome.JOB_REQUEUED)
    assert "its pods still run" in attempt.reason
    assert scenario.job(job.job_id).application_failures == 0


def test_completed_job_with_a_live_pod_has_not_succeeded() -> None:
    scenario = JobScenario()
    job = scenario.running(nodes=2)
    scenario.world.cluster.finish_pods(job.job_id, 1)
    cluster = scenario.world.cluster
    listed = cluster.workloads(CLUSTER)[0]
    alive = listed.pods[1].replace(phase=PodPhase.RUNNING, exit_code=None)
    cluster.jobs[CLUSTER].clear()
    cluster.forged = [listed.replace(pods=(listed.pods[0], alive))]
    scenario.world.clock.advance(3600)

    scenario.sweep()

    assert listed.has_completed
    assert scenario.attempt(job.job_id).state is AttemptState.RUNNING


# ---------------------------------------------------------------- unmanaged pods


def a_pod_with_labels_of(attempt: Attempt, /, **changes: Any) -> UnmanagedPod:
    """Return a pod with the attempt's labels. By default it differs from the attempt's pods only in its namespace."""
    claim: dict[str, Any] = {
        "kind": ManagedKind.ATTEMPT,
        "name": attempt.workload_name,
        "job_id": attempt.job_id,
        "attempt": attempt.attempt,
        "controller": attempt.workload_name,
        "controller_uid": attempt.workload_uid,
        "decision_id": attempt.decision_id,
    }
    ownership_claim = LabelledOwner.model_validate(
        {**claim, **{key: value for key, value in changes.items() if key in claim}}
    )
    return UnmanagedPod(
        namespace=changes.get("namespace", NAMESPACE),
        name="forged-0",
        uid="uid-of-forged-0",
        node_name=attempt.node_names[0],
        accelerators=2,
        claim=ownership_claim,
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"namespace": ANYWHERE},
        {"controller": "", "controller_uid": ""},
        {"controller_uid": "uid-of-another-job"},
        {"controller": "job-of-somebody-else"},
        {"attempt": 9},
        {"job_id": "job-unknown"},
        {"kind": ManagedKind.RENTAL},
        {"kind": ManagedKind.RENTAL, "name": "job-unknown-r1", "controller": "job-unknown-r1"},
        {"kind": ManagedKind.CHECK, "name": "inc-unknown-check-1", "controller": "inc-unknown-check-1"},
        {"kind": ManagedKind.CHECK},
    ],
)
def test_pod_with_borrowed_labels_is_unmanaged(changes: dict[str, Any]) -> None:
    scenario = JobScenario()
    job = scenario.running(nodes=1)
    forged = a_pod_with_labels_of(scenario.attempt(job.job_id), **changes)
    scenario.world.cluster.unmanaged = [forged]

    assert unmanaged_pods.list_unmanaged_pods(CLUSTER, scenario.context()) == (forged,)


def test_own_pods_are_managed_before_their_launch_is_recorded() -> None:
    scenario = JobScenario()
    job = scenario.started(nodes=1)
    before_launch = scenario.attempt(job.job_id)
    scenario.run_attempt(job.job_id, 1)
    recorded = unmanaged_pods.list_unmanaged_pods(CLUSTER, scenario.context())

    scenario.store_row(
        job_rows.attempt_row(before_launch, 0)
    )  # as if the function had died before it recorded the launch

    assert recorded == ()
    assert unmanaged_pods.list_unmanaged_pods(CLUSTER, scenario.context()) == ()


def test_unmanaged_pods_are_reported_with_the_job_in_their_labels() -> None:
    scenario = JobScenario()
    job = scenario.running(nodes=1)
    scenario.world.cluster.unmanaged = [a_pod_with_labels_of(scenario.attempt(job.job_id), namespace=ANYWHERE)]

    scenario.sweep()

    (listed,) = read_jobs.list_unmanaged(scenario.context())["items"]
    assert (listed["namespace"], listed["accelerators"], listed["claims"]) == (ANYWHERE, 2, f"{job.job_id}-a1")
    assert f"carries the labels of {job.job_id}-a1 but does not belong to that job" in listed["says"]
