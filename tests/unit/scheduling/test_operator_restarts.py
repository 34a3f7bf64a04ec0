"""Whether the controller of an unmanaged pod recreates it after an eviction."""

from typing import Any

import pytest

from evenkeel.adapters import unmanaged_pods
from evenkeel.adapters.workloads import Controllers
from evenkeel.domain.external.unmanaged_workloads import PodRecreation

GROUPS = {
    "Job": "batch/v1",
    "JobSet": "jobset.x-k8s.io/v1alpha2",
    "PyTorchJob": "kubeflow.org/v1",
    "HyperPodPyTorchJob": "sagemaker.amazonaws.com/v1",
}
ON_DISRUPTION = [{"type": "DisruptionTarget"}]
AUTO_RESUME = {"sagemaker.amazonaws.com/enable-job-auto-resume": "true"}


def a_workload_document(kind: str, spec: dict[str, Any], above: str = "", **fields: Any) -> dict[str, Any]:
    """Return a workload named after its kind, controlled by the workload of the kind `above`."""
    metadata = {"namespace": "research", "name": kind, "uid": f"uid-{kind}", "ownerReferences": owned_by(above)}
    labels = {"jobset.sigs.k8s.io/replicatedjob-name": "node"}
    return {"kind": kind, "metadata": {**metadata, "labels": labels}, "spec": spec, **fields}


def owned_by(kind: str) -> list[dict[str, Any]]:
    owner = {"apiVersion": GROUPS.get(kind, "x/v1"), "kind": kind, "name": kind, "uid": f"uid-{kind}"}
    return [{**owner, "controller": True}] if kind else []


def recreation_of(*workloads: dict[str, Any]) -> tuple[str, PodRecreation]:
    """Return kind and recreation of a pod that the first workload controls."""
    kind = workloads[0]["kind"]
    metadata = {"namespace": "research", "name": "pod-0", "uid": "u", "ownerReferences": owned_by(kind)}
    pod = unmanaged_pods.read_unmanaged_pod({"metadata": metadata, "spec": {}}, Controllers(workloads), "research")
    return pod.kind, pod.recreation


@pytest.mark.parametrize(
    ("spec", "failed", "recreates"),
    [
        ({}, 5, True),
        ({}, 6, False),
        ({"backoffLimit": 0}, 0, False),
        ({"backoffLimit": 1}, 0, True),
        ({"backoffLimit": 0, "backoffLimitPerIndex": 1}, 0, True),
        ({"backoffLimitPerIndex": 0}, 0, False),
        (
            {
                "backoffLimit": 0,
                "podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": ON_DISRUPTION}]},
            },
            0,
            True,
        ),
        ({"podFailurePolicy": {"rules": [{"action": "FailJob", "onPodConditions": ON_DISRUPTION}]}}, 0, False),
        ({"podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": {"values": [42]}}]}}, 0, True),
    ],
)
def test_job_recreates_within_its_backoff_limit(spec: dict[str, Any], failed: int, *, recreates: bool) -> None:
    expected = PodRecreation.BY_OWNER if recreates else PodRecreation.NEVER

    assert recreation_of(a_workload_document("Job", spec, status={"failed": failed})) == ("Job", expected)


@pytest.mark.parametrize(
    ("policy", "restarts", "recreates"),
    [
        (None, 0, False),
        ({"maxRestarts": 3}, 2, True),
        ({"maxRestarts": 3}, 3, False),
        ({"maxRestarts": 3, "rules": [{"action": "FailJobSet"}]}, 0, False),
        ({"maxRestarts": 3, "rules": [{"action": "FailJobSet", "targetReplicatedJobs": ["driver"]}]}, 0, True),
        ({"maxRestarts": 0, "rules": [{"action": "RestartJobSetAndIgnoreMaxRestarts"}]}, 9, True),
        (
            {
                "maxRestarts": 0,
                "rules": [
                    {"action": "RestartJobSetAndIgnoreMaxRestarts", "onJobFailureReasons": ["PodFailurePolicy"]},
                    {"action": "RestartJobSet"},
                ],
            },
            0,
            False,
        ),
    ],
)
def test_job_set_restarts_as_its_failure_policy_says(
    policy: dict[str, Any] | None, restarts: int, *, recreates: bool
) -> None:
    job = a_workload_document("Job", {"backoffLimit": 0}, above="JobSet")
    spec = {"failurePolicy": policy} if policy else {}
    job_set = a_workload_document("JobSet", spec, status={"restartsCountTowardsMax": restarts})
    expected = PodRecreation.BY_OWNER if recreates else PodRecreation.NEVER

    assert recreation_of(job, job_set) == ("JobSet", expected)


def test_job_of_a_job_set_recreates_its_own_pods() -> None:
    job = a_workload_document("Job", {"backoffLimit": 10}, above="JobSet")

    assert recreation_of(job, a_workload_document("JobSet", {})) == ("JobSet", PodRecreation.BY_OWNER)


@pytest.mark.parametrize(
    ("policies", "recreates"),
    [((None, None), True), (("OnFailure", "ExitCode"), True), (("OnFailure", "Never"), False)],
)
def test_pytorch_job_restarts_unless_a_replica_never_does(
    policies: tuple[str | None, str | None], *, recreates: bool
) -> None:
    replicas = {
        name: {"restartPolicy": restart_policy} if restart_policy else {}
        for name, restart_policy in zip(("Master", "Worker"), policies, strict=True)
    }
    expected = PodRecreation.BY_OWNER if recreates else PodRecreation.NEVER

    assert recreation_of(a_workload_document("PyTorchJob", {"pytorchReplicaSpecs": replicas})) == (
        "PyTorchJob",
        expected,
    )


def test_workload_with_the_hyperpod_annotation_is_restarted_by_hyperpod() -> None:
    job = a_workload_document("PyTorchJob", {})
    job["metadata"]["annotations"] = AUTO_RESUME

    assert recreation_of(job) == ("PyTorchJob", PodRecreation.BY_HYPERPOD)
    assert recreation_of(a_workload_document("HyperPodPyTorchJob", {}))[1] is PodRecreation.BY_HYPERPOD
