"""The status of a job in Kueue as text, from the conditions that Kueue writes."""

from datetime import timedelta
from typing import Any

import pytest

from evenkeel.adapters.kueue_workloads import read_queue
from evenkeel.adapters.manifests import job
from evenkeel.domain.external.burst_check_protocol import RENTAL_NODE_LABEL
from evenkeel.domain.external.kueue_status import (
    KueueCheck,
    KueueCondition,
    KueueStatus,
    describe_status,
    eviction_of,
    status_step,
)
from evenkeel.domain.jobs.attempt import Attempt, AttemptState
from evenkeel.domain.jobs.spec import JobSpec
from evenkeel.ports import LaunchSpec
from tests.fakes.system import A_MOMENT


def status_of(*conditions: KueueCondition, **facts: Any) -> KueueStatus:
    return KueueStatus.model_validate({"name": "job-a1-12345", "queue": "nlp", "conditions": conditions} | facts)


def condition_of_kind(kind: str, *, is_true: bool = False, reason: str = "", message: str = "") -> KueueCondition:
    return KueueCondition(type=kind, is_true=is_true, reason=reason, message=message)


RESERVED = condition_of_kind("QuotaReserved", is_true=True)
ADMITTED = condition_of_kind("Admitted", is_true=True)


@pytest.mark.parametrize(
    ("status", "sentence", "step"),
    [
        (None, "Kueue has no Workload for the job in LocalQueue nlp yet.", ""),
        (status_of(), "The job waits in Kueue's queue nlp: Kueue has not evaluated the job yet.", "Pending"),
        (
            status_of(
                condition_of_kind("QuotaReserved", reason="WaitingForQuota", message="8 more needed"), position=3
            ),
            "The job waits in Kueue's queue nlp, 3rd of its LocalQueue. No quota is free for the job: 8 more needed.",
            "Pending/WaitingForQuota",
        ),
        (
            status_of(condition_of_kind("QuotaReserved", reason="Pending", message="LocalQueue nlp doesn't exist")),
            "The job waits in Kueue's queue nlp. LocalQueue nlp doesn't exist.",
            "Pending/Pending",
        ),
        (
            status_of(RESERVED, checks=(KueueCheck(name="nodes", state="Pending", message="asked for 2"),)),
            "Kueue reserved quota for the job and waits for its admission checks: nodes (Pending: asked for 2).",
            "QuotaReserved",
        ),
        (
            status_of(RESERVED, ADMITTED, cluster_queue="research", flavors=("h100",)),
            "Kueue admitted the job by quota of h100 in ClusterQueue research.",
            "Admitted",
        ),
        (
            status_of(is_active=False),
            "The job's Workload is inactive. Kueue admits it only after its spec.active is set to true again.",
            "Inactive",
        ),
        (
            status_of(
                condition_of_kind("QuotaReserved", reason="PendingEvaluation", message="timeout"),
                condition_of_kind("Evicted", is_true=True, reason="PodsReadyTimeout"),
                requeue_at=A_MOMENT + timedelta(seconds=60),
            ),
            (
                "The job waits in Kueue's queue nlp: "
                f"Kueue tries again after {A_MOMENT + timedelta(seconds=60):%H:%M:%S} UTC."
            ),
            "Evicted/PodsReadyTimeout",
        ),
    ],
)
def test_kueue_status_is_described_in_plain_words(status: KueueStatus | None, sentence: str, step: str) -> None:
    assert (describe_status(status, "nlp", A_MOMENT), status_step(status)) == (sentence, step)


@pytest.mark.parametrize(
    ("reason", "sentence", "was_preempted"),
    [
        ("Preempted", "Kueue preempted the job: for another.", True),
        ("PodsReadyTimeout", "Kueue evicted the job because its pods were not ready in time: for another.", False),
        ("NodeFailures", "Kueue evicted the job because one of its nodes failed: for another.", False),
        ("ClusterQueueStopped", "Kueue evicted the job because its ClusterQueue was stopped: for another.", False),
        ("SomethingNew", "Kueue evicted the job (SomethingNew): for another.", False),
    ],
)
def test_eviction_states_its_reason(reason: str, sentence: str, was_preempted: bool) -> None:
    evicted = condition_of_kind("Evicted", is_true=True, reason=reason, message="for another")

    # While its pods end, Kueue still calls it admitted. Afterwards it records for how long it was admitted.
    for kueue_status in (
        status_of(RESERVED, ADMITTED, evicted),
        status_of(condition_of_kind("Admitted"), evicted, was_admitted=True),
    ):
        ending = eviction_of(kueue_status)
        assert ending is not None
        assert (ending.reason, ending.was_preempted) == (sentence, was_preempted)


@pytest.mark.parametrize(
    "status",
    [
        status_of(RESERVED, ADMITTED),
        status_of(
            condition_of_kind("Admitted", reason="NoReservation"),
            condition_of_kind("Evicted", is_true=True, reason="AdmissionCheck"),
        ),
        status_of(condition_of_kind("QuotaReserved", reason="WaitingForQuota")),
    ],
)
def test_workload_that_was_never_admitted_is_not_evicted(status: KueueStatus) -> None:
    assert eviction_of(status) is None


def a_workload(name: str, *, priority: int = 0, at: int = 0, queue: str = "nlp", **status: Any) -> dict[str, Any]:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": f"uid-{name}", "controller": True}
    created_at = f"2026-11-03T10:00:{at:02d}Z"
    metadata = {"name": name, "namespace": "jobs", "creationTimestamp": created_at, "ownerReferences": [owner]}
    return {"metadata": metadata, "spec": {"queueName": queue, "priority": priority}, "status": status}


def test_local_queue_positions_follow_priority_then_age() -> None:
    admitted = [{"type": "QuotaReserved", "status": "True"}]
    late = {"type": "Evicted", "status": "True", "reason": "PodsReadyTimeout"}
    listed = [
        a_workload("young", at=9),
        a_workload("old", at=1),
        a_workload("urgent", at=30, priority=5),
        a_workload("in", at=0, conditions=admitted),
        a_workload("late", at=2, conditions=[{**late, "lastTransitionTime": "2026-11-03T11:00:00Z"}]),
        a_workload("elsewhere", at=40, queue="vision"),
    ]

    positions = {uid: workload.position for (_, uid), workload in read_queue(listed).items()}

    assert positions == {
        "uid-urgent": 1,
        "uid-old": 2,
        "uid-young": 3,
        "uid-late": 4,
        "uid-in": None,
        "uid-elsewhere": 1,
    }


def a_launch(**changes: Any) -> LaunchSpec:
    spec = JobSpec(
        name="llama", image="i", command=("c",), nodes=2, priority_class="high", instance_types=("ml.p5.48xlarge",)
    )
    attempt = Attempt(
        job_id="job-1",
        attempt=1,
        state=AttemptState.STARTING,
        cluster="research-eks",
        namespace="nlp",
        pool="",
        local_queue="nlp-queue",
        nodes=(),
        node_names=(),
        accelerators=16,
        admitted_at=A_MOMENT,
    )
    return LaunchSpec(spec, attempt, "", "trainer", **changes)


def test_job_for_kueue_is_suspended_with_queue_and_class() -> None:
    document = job(a_launch(), "research", "nvidia.com/gpu")

    labels = document["metadata"]["labels"]
    pod = document["spec"]["template"]
    assert document["spec"]["suspend"] is True
    assert (labels["kueue.x-k8s.io/queue-name"], labels["kueue.x-k8s.io/priority-class"]) == ("nlp-queue", "high")
    assert not any("kueue" in name for name in pod["metadata"]["labels"])
    assert "priorityClassName" not in pod["spec"]
    (terms,) = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert terms["matchExpressions"] == [
        {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["ml.p5.48xlarge"]}
    ]


def test_job_for_kueue_excludes_avoided_nodes() -> None:
    document = job(a_launch(avoid=("node-2",)), "research", "nvidia.com/gpu")

    affinity = document["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    (terms,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms["matchExpressions"][-1] == {
        "key": "kubernetes.io/hostname",
        "operator": "NotIn",
        "values": ["node-2"],
    }


def test_only_a_ready_check_sends_pods_to_rental() -> None:
    """After an eviction, the node selector of Evenkeel's answer may stay in a check that is pending again."""
    selector = {RENTAL_NODE_LABEL: "job-1-b1"}
    states = {
        state: KueueStatus(
            name="w", queue="q", checks=(KueueCheck(name="burst", state=state, node_selector=selector),)
        ).is_sent_to("job-1-b1")
        for state in ("Ready", "Pending", "Retry")
    }

    assert states == {"Ready": True, "Pending": False, "Retry": False}


def test_deactivation_by_a_check_is_named() -> None:
    condition = KueueCondition(
        type="Evicted", is_true=True, reason="DeactivatedDueToAdmissionCheck", message="burst: no pool can run the job"
    )
    eviction = eviction_of(KueueStatus(name="w", queue="q", conditions=(condition,), was_admitted=True))

    assert eviction
    assert eviction.reason == (
        "Kueue evicted the job because its Workload was made inactive: burst: no pool can run the job."
    )
