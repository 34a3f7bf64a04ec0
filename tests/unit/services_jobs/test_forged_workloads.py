"""Kubernetes Jobs and pods that carry an attempt's labels and are not the attempt's."""

from typing import Any

import pytest

from evenkeel.domain.external.workloads import ForeignPod, Owned, PodClaim
from evenkeel.domain.jobs.attempt import Attempt, AttemptState, PodPhase, PodSeen, WorkloadSeen
from evenkeel.domain.jobs.job import JobState
from evenkeel.domain.jobs.settlement import SettleOutcome
from evenkeel.domain.policy import Policy
from evenkeel.ports import ExecutionState, Machine
from evenkeel.services.queries import read_jobs
from evenkeel.services.recovery import protect_jobs, unmanaged
from evenkeel.services.storage import rows
from tests.fakes.cluster import CLUSTER
from tests.unit.services_jobs.story import NAMESPACE, Story
from tests.unit.services_jobs.test_sweep import an_incident

ANYWHERE = "other-team"


def a_forgery(attempt: Attempt, phase: PodPhase, **changes: Any) -> WorkloadSeen:
    """A Job of another namespace with the labels of this attempt, and a pod for each of its ranks."""
    code = 0 if phase is PodPhase.SUCCEEDED else None
    pods = tuple(
        PodSeen(name=f"forged-{rank}", node_name=name, phase=phase, exit_code=code)
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
    return WorkloadSeen.model_validate({**facts, **changes})


def as_recreated(attempt: Attempt, phase: PodPhase) -> WorkloadSeen:
    """A Job that somebody created under the attempt's own name in its own namespace."""
    return a_forgery(attempt, phase, namespace=attempt.namespace)


FORGERIES = [a_forgery, as_recreated]


@pytest.mark.parametrize("forge", FORGERIES)
@pytest.mark.parametrize("phase", [PodPhase.SUCCEEDED, PodPhase.FAILED])
def test_forged_end_leaves_the_attempt_running(forge: Any, phase: PodPhase) -> None:
    story = Story()
    job = story.running(nodes=1)
    story.world.cluster.forged = [forge(story.attempt(job.job_id), phase)]

    seen = story.world.cluster.workload(story.attempt(job.job_id))
    story.world.clock.advance(3600)
    story.sweep()

    assert (seen.uid, seen.has_completed, seen.has_failed) == ("uid-1", False, False)
    assert story.attempt(job.job_id).state is AttemptState.RUNNING


@pytest.mark.parametrize("forge", FORGERIES)
def test_forged_pods_do_not_keep_a_lost_attempt_alive(forge: Any) -> None:
    story = Story()
    job = story.running(nodes=1)
    attempt = story.attempt(job.job_id)
    story.world.cluster.jobs[CLUSTER].clear()
    story.world.cluster.forged = [forge(attempt, PodPhase.RUNNING)]
    story.world.workflows.finish(Machine.RUN_JOB, attempt.workload_name, ExecutionState.FAILED)
    story.world.clock.advance(3600)

    story.sweep()

    assert story.attempt(job.job_id).state is AttemptState.LOST
    assert story.job(job.job_id).state is JobState.PENDING


def test_forged_pod_frees_no_charged_accelerator() -> None:
    story = Story(size=1)
    first = story.started(nodes=1)
    attempt = story.attempt(first.job_id)
    story.world.cluster.forged = [a_forgery(attempt, PodPhase.RUNNING)]

    second = story.started(nodes=1, accelerators_per_node=8)

    assert second.state is JobState.PENDING


def test_forged_pod_on_a_sick_node_hurts_no_job() -> None:
    story = Story()
    job = story.running(nodes=1)
    attempt = story.attempt(job.job_id)
    sick = next(node for node in story.world.cluster.nodes(CLUSTER) if node.name not in attempt.node_names)
    forged = PodSeen(name="forged-0", node_name=sick.name, phase=PodPhase.RUNNING)
    story.world.cluster.forged = [a_forgery(attempt, PodPhase.RUNNING, pods=(forged,))]
    number = int(str(sick.instance_id).removeprefix("i-"))
    incident = an_incident(story, number)

    hurt = protect_jobs.find_hurt(incident, ledger=story.ledger, cluster=story.world.cluster, policy=Policy())

    assert hurt == ()


def test_forged_pods_of_a_settled_attempt_are_not_stopped() -> None:
    story = Story()
    job = story.running(nodes=1)
    attempt = story.attempt(job.job_id)
    story.world.cluster.finish_pods(job.job_id, 1)
    story.settle(job.job_id)
    story.world.cluster.forged = [a_forgery(attempt, PodPhase.RUNNING)]
    story.world.cluster.calls.clear()
    story.world.clock.advance(3600)

    story.sweep()

    assert not [call for call in story.world.cluster.calls if call[0] == "stop"]
    assert story.world.telemetry.totals["UnownedWorkloads"] == 1


# ---------------------------------------------------------------- settling


@pytest.mark.parametrize("state", [AttemptState.SUCCEEDED, AttemptState.FAILED])
def test_reported_end_with_live_pods_queues_the_job_again(state: AttemptState) -> None:
    story = Story()
    job = story.running(nodes=1)

    outcome = story.settle(job.job_id, ended={"facts": {"state": state, "reason": "It was seen to end."}})

    attempt = story.attempt(job.job_id)
    assert (attempt.state, outcome.outcome) == (AttemptState.LOST, SettleOutcome.JOB_REQUEUED)
    assert "pods of it are alive" in attempt.reason
    assert story.job(job.job_id).application_failures == 0


def test_completed_job_with_a_live_pod_has_not_succeeded() -> None:
    story = Story()
    job = story.running(nodes=2)
    story.world.cluster.finish_pods(job.job_id, 1)
    cluster = story.world.cluster
    listed = cluster.workloads(CLUSTER)[0]
    alive = listed.pods[1].but(phase=PodPhase.RUNNING, exit_code=None)
    cluster.jobs[CLUSTER].clear()
    cluster.forged = [listed.but(pods=(listed.pods[0], alive))]
    story.world.clock.advance(3600)

    story.sweep()

    assert listed.has_completed
    assert story.attempt(job.job_id).state is AttemptState.RUNNING


# ---------------------------------------------------------------- unmanaged pods


def a_pod_with_labels_of(attempt: Attempt, /, **changes: Any) -> ForeignPod:
    """A pod with the attempt's labels; by default everything but its namespace is as the attempt's own."""
    claim: dict[str, Any] = {
        "kind": Owned.ATTEMPT,
        "name": attempt.workload_name,
        "job_id": attempt.job_id,
        "attempt": attempt.attempt,
        "controller": attempt.workload_name,
        "controller_uid": attempt.workload_uid,
        "decision_id": attempt.decision_id,
    }
    said = PodClaim.model_validate({**claim, **{key: value for key, value in changes.items() if key in claim}})
    return ForeignPod(
        namespace=changes.get("namespace", NAMESPACE),
        name="forged-0",
        uid="uid-of-forged-0",
        node_name=attempt.node_names[0],
        accelerators=2,
        claim=said,
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
        {"kind": Owned.RENTAL},
        {"kind": Owned.RENTAL, "name": "job-unknown-r1", "controller": "job-unknown-r1"},
        {"kind": Owned.CHECK, "name": "inc-unknown-check-1", "controller": "inc-unknown-check-1"},
        {"kind": Owned.CHECK},
    ],
)
def test_pod_with_borrowed_labels_is_unmanaged(changes: dict[str, Any]) -> None:
    story = Story()
    job = story.running(nodes=1)
    forged = a_pod_with_labels_of(story.attempt(job.job_id), **changes)
    story.world.cluster.foreign = [forged]

    assert unmanaged.pods(story.ledger, story.world.cluster, CLUSTER) == (forged,)


def test_own_pods_are_managed_before_and_after_the_launch_is_recorded() -> None:
    story = Story()
    job = story.started(nodes=1)
    before_launch = story.attempt(job.job_id)
    story.run_attempt(job.job_id, 1)
    recorded = unmanaged.pods(story.ledger, story.world.cluster, CLUSTER)

    story.put(rows.attempt_row(before_launch, 0))  # as if the launch had died before it was recorded

    assert recorded == ()
    assert unmanaged.pods(story.ledger, story.world.cluster, CLUSTER) == ()


def test_unmanaged_pods_are_reported_with_whose_labels_they_carry() -> None:
    story = Story()
    job = story.running(nodes=1)
    story.world.cluster.foreign = [a_pod_with_labels_of(story.attempt(job.job_id), namespace=ANYWHERE)]

    story.sweep()

    (listed,) = read_jobs.list_foreign(story.ledger, [CLUSTER])["items"]
    assert (listed["namespace"], listed["accelerators"], listed["claims"]) == (ANYWHERE, 2, f"{job.job_id}-a1")
    assert f"carries the labels of {job.job_id}-a1 and does not belong to it" in listed["says"]
