"""Restarts of unmanaged jobs: the decision about each job, and the next step of its restart."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from evenkeel.domain.external.unmanaged_workloads import Consent, PodRecreation
from evenkeel.domain.jobs.workload_kind import WorkloadKind
from evenkeel.domain.nodes import FleetNode, NodeLife
from evenkeel.domain.recovery.unmanaged_restarts import (
    FailedPod,
    RestartAction,
    RestartDecision,
    RestartFacts,
    RestartStage,
    RestartStep,
    UnmanagedJob,
    UnmanagedJobState,
    UnmanagedRestart,
    choose_next_step,
    decide_restart,
)

NOW = datetime(2026, 11, 24, 3, 0, tzinfo=UTC)
NODE, OTHER = "node-a", "node-b"


def a_job(**changes: Any) -> UnmanagedJob:
    facts: dict[str, Any] = {
        "namespace": "research",
        "kind": WorkloadKind.PYTORCH_JOB,
        "name": "llama",
        "uid": "u-1",
        "state": UnmanagedJobState.RUNNING,
        "consent": Consent.ALLOWED,
        "live_nodes": (NODE, OTHER),
    }
    return UnmanagedJob.model_validate({**facts, **changes})


def failed_job(failed_at: datetime | None = NOW, node: str = NODE, **changes: Any) -> UnmanagedJob:
    failed_pods = (FailedPod(node_name=node, failed_at=failed_at),)
    return a_job(state=UnmanagedJobState.FAILED, live_nodes=(), failed_pods=failed_pods, **changes)


WITHOUT_PODS = a_job(state=UnmanagedJobState.FAILED, live_nodes=(), failed_at=NOW)
"""Kubernetes deleted its pods when it failed."""


def decide_restart_of(job: UnmanagedJob, **changes: Any) -> RestartDecision:
    facts: dict[str, Any] = {
        "job": job,
        "node_name": NODE,
        "allowed_by_policy": False,
        "affected_since": NOW - timedelta(minutes=5),
        "max_restarts": 3,
    }
    return decide_restart(RestartFacts.model_validate({**facts, **changes}))


@pytest.mark.parametrize(
    ("job", "facts", "action", "reason"),
    [
        (a_job(), {}, "RESTART", "its operator would not restart it"),
        (a_job(recreation=PodRecreation.BY_OWNER), {}, "MOVE", "its operator starts evicted pods"),
        (a_job(recreation=PodRecreation.BY_HYPERPOD), {}, "LEAVE", "HyperPod restarts it"),
        (failed_job(), {}, "RESTART", "failed when a pod ended on node-a"),
        (failed_job(recreation=PodRecreation.BY_HYPERPOD), {}, "LEAVE", "after it has replaced the node"),
        (
            failed_job(recreation=PodRecreation.BY_HYPERPOD, kind=WorkloadKind.HYPERPOD_PYTORCH_JOB),
            {},
            "RESTART",
            "failed when",
        ),
        (failed_job(None), {}, "RESTART", "failed when"),
        (failed_job(NOW - timedelta(minutes=6)), {}, "LEAVE", "no pod of it is known to have failed on node-a"),
        (failed_job(node=OTHER), {}, "LEAVE", "no pod of it is known to have failed on node-a"),
        (WITHOUT_PODS, {"was_listed_on_node": True}, "RESTART", "failed when"),
        (WITHOUT_PODS, {"was_listed_on_node": True, "left_node_at": NOW}, "RESTART", "failed when"),
        (
            WITHOUT_PODS,
            {"was_listed_on_node": True, "left_node_at": NOW - timedelta(seconds=1)},
            "LEAVE",
            "no pod of it is known",
        ),
        (WITHOUT_PODS, {"was_listed_on_node": True, "affected_since": NOW + timedelta(seconds=1)}, "LEAVE", "no pod"),
        (WITHOUT_PODS, {}, "LEAVE", "no pod of it is known"),
        (failed_job(node=OTHER, failed_at=NOW), {"was_listed_on_node": True}, "LEAVE", "no pod of it is known"),
        (a_job(consent=Consent.UNSET), {}, "LEAVE", "evenkeel.io/resume=allowed"),
        (a_job(consent=Consent.UNSET), {"allowed_by_policy": True}, "RESTART", "would not restart it"),
        (a_job(consent=Consent.FORBIDDEN), {"allowed_by_policy": True}, "LEAVE", "evenkeel.io/resume=allowed"),
        (a_job(has_managed_labels=True), {}, "LEAVE", "the labels of an Evenkeel job"),
        (a_job(owner="TrainJob llama"), {}, "LEAVE", "belongs to TrainJob llama"),
        (a_job(state=UnmanagedJobState.SUSPENDED), {}, "LEAVE", "it is suspended"),
        (a_job(state=UnmanagedJobState.SUCCEEDED), {}, "LEAVE", "it is succeeded"),
        (a_job(state=UnmanagedJobState.DELETING), {}, "LEAVE", "it is deleting"),
        (a_job(live_nodes=(OTHER,)), {}, "LEAVE", "no pod of it runs on node-a"),
        (a_job(), {"distrusted_since": NOW}, "LEAVE", "checkpoints that began after 2026-11-24T03:00:00Z"),
        (a_job(), {"recent_restarts": 3}, "LEAVE", "3 times within 24 hours"),
        (a_job(), {"recent_restarts": 2}, "RESTART", "would not restart it"),
    ],
)
def test_unmanaged_job_is_restarted_moved_or_left_with_a_reason(
    job: UnmanagedJob, facts: dict[str, Any], action: str, reason: str
) -> None:
    decision = decide_restart_of(job, **facts)

    assert decision.action is RestartAction(action)
    assert reason in decision.reason
    assert decision.reason.startswith("PyTorchJob research/llama") or "HyperPodPyTorchJob" in decision.reason
    assert decision.alternatives
    assert all(alternative.option != action for alternative in decision.alternatives)


def test_restart_decision_names_the_checkpoint_folder() -> None:
    with_folder, without_folder = (
        decide_restart_of(a_job(checkpoints="/fsx/llama (option --save)")),
        decide_restart_of(a_job()),
    )

    assert "resumes from /fsx/llama (option --save), if it saved a checkpoint there" in with_folder.reason
    assert "names no checkpoint folder, so it may start from the beginning" in without_folder.reason


def a_restart(stage: RestartStage = RestartStage.REQUESTED, **changes: Any) -> UnmanagedRestart:
    facts: dict[str, Any] = {
        "cluster": "eks",
        "namespace": "research",
        "kind": WorkloadKind.PYTORCH_JOB,
        "name": "llama",
        "uid": "u-1",
        "incident_id": "inc-1",
        "node_name": NODE,
        "begun_at": NOW,
        "stage": stage,
    }
    return UnmanagedRestart.model_validate({**facts, **changes})


REQUESTED, SUSPENDED, DELETED = RestartStage.REQUESTED, RestartStage.SUSPENDED, RestartStage.DELETED
WITHOUT_LIVE_PODS = a_job(state=UnmanagedJobState.SUSPENDED, live_nodes=())
ENDING = a_job(state=UnmanagedJobState.SUSPENDED)


@pytest.mark.parametrize(
    ("stage", "job", "step", "was_restarted"),
    [
        (REQUESTED, a_job(), "SUSPEND", False),
        (REQUESTED, failed_job(), "DELETE", False),
        (REQUESTED, a_job(live_nodes=(OTHER,)), "END", False),
        (REQUESTED, ENDING, "END", False),
        (REQUESTED, a_job(state=UnmanagedJobState.SUCCEEDED), "END", False),
        (REQUESTED, a_job(state=UnmanagedJobState.DELETING), "END", False),
        (REQUESTED, a_job(uid="u-2"), "END", False),
        (REQUESTED, None, "END", False),
        (SUSPENDED, a_job(), "SUSPEND", False),
        (SUSPENDED, ENDING, "WAIT", False),
        (SUSPENDED, WITHOUT_LIVE_PODS, "RESUME", True),
        (SUSPENDED, a_job(live_nodes=(OTHER,)), "END", True),
        (SUSPENDED, a_job(live_nodes=()), "END", True),
        (SUSPENDED, failed_job(), "DELETE", False),
        (SUSPENDED, a_job(uid="u-2"), "END", False),
        (SUSPENDED, None, "END", False),
        (DELETED, failed_job(), "DELETE", False),
        (DELETED, a_job(state=UnmanagedJobState.DELETING), "WAIT", False),
        (DELETED, None, "CREATE", True),
        (DELETED, a_job(uid="u-2"), "END", True),
    ],
)
def test_next_restart_step_follows_from_the_job_in_the_cluster(
    stage: RestartStage, job: UnmanagedJob | None, step: str, *, was_restarted: bool
) -> None:
    decision = choose_next_step(a_restart(stage), job)

    assert (decision.step, decision.was_restarted) == (RestartStep(step), was_restarted)
    assert decision.reason.startswith("PyTorchJob research/llama ")


def test_restarts_older_than_a_day_are_not_counted() -> None:
    day = timedelta(hours=24)
    exactly_a_day_ago, under_a_day_ago = NOW - day, NOW - day + timedelta(seconds=1)
    ended_fields: dict[str, Any] = {"stage": RestartStage.ENDED, "ended_at": NOW}

    assert a_restart(earlier=(exactly_a_day_ago, under_a_day_ago)).recent_starts(NOW) == (under_a_day_ago, NOW)
    assert a_restart(earlier=(exactly_a_day_ago, under_a_day_ago), was_restarted=True, **ended_fields).recent_starts(
        NOW
    ) == (
        under_a_day_ago,
        NOW,
    )
    assert a_restart(earlier=(exactly_a_day_ago, under_a_day_ago), **ended_fields).recent_starts(NOW) == (
        under_a_day_ago,
    )


def test_node_row_remembers_workloads_that_left_in_15_minutes() -> None:
    life = NodeLife(cluster="eks", instance_id="i-00000000000000001", launched_at=NOW)
    busy = FleetNode(life=life, slot="s", changed_at=NOW, unmanaged_workloads=("Job research/a", "Job research/b"))
    later_nodes = [
        FleetNode(life=life, slot="s", changed_at=NOW + timedelta(minutes=minutes), unmanaged_workloads=workloads)
        for minutes, workloads in ((1, ("Job research/b",)), (2, ()), (16, ()), (17, ()))
    ]

    rows = [busy]
    for node in later_nodes:
        rows.append(node.with_history_of(rows[-1]))

    first, second = NOW + timedelta(minutes=1), NOW + timedelta(minutes=2)
    assert [row.left_workloads for row in rows[1:]] == [
        {"Job research/a": first},
        {"Job research/a": first, "Job research/b": second},
        {"Job research/b": second},
        {},
    ]
    assert busy.with_history_of(None) == busy
