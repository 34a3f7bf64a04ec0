"""Unmanaged workloads: their owner, the recreation of their pods, and the consequence of a fault."""

from datetime import UTC, datetime
from typing import Any

import pytest

from evenkeel.adapters import unmanaged_pods
from evenkeel.adapters.workloads import Controllers
from evenkeel.domain.capacity.pool_choices import Effect, Operator, Toleration, all_tolerated
from evenkeel.domain.external.unmanaged_workloads import (
    Consent,
    PodRecreation,
    UnmanagedPod,
    unmanaged_workloads,
)
from evenkeel.domain.recovery.unmanaged_restarts import describe_fault_consequence

NODE = "hyperpod-i-00000000000000001"


def a_pod_document(kind: str = "", name: str = "llama", **metadata: Any) -> dict[str, Any]:
    """Return a pod as the API server shows it, with a controller of this kind."""
    owner = [{"apiVersion": "x/v1", "kind": kind, "name": name, "uid": "u", "controller": True}] if kind else []
    return {
        "metadata": {"namespace": "research", "name": "pod-0", "uid": "u-0", "ownerReferences": owner, **metadata},
        "spec": {"nodeName": NODE, "containers": [{"resources": {"limits": {"nvidia.com/gpu": "8"}}}]},
    }


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (a_pod_document(), ("", "pod-0", PodRecreation.NEVER)),
        (a_pod_document("ReplicaSet"), ("ReplicaSet", "llama", PodRecreation.BY_OWNER)),
        (a_pod_document("HyperPodPyTorchJob"), ("HyperPodPyTorchJob", "llama", PodRecreation.BY_HYPERPOD)),
        (
            a_pod_document("PyTorchJob", annotations={"sagemaker.amazonaws.com/enable-job-auto-resume": "true"}),
            ("PyTorchJob", "llama", PodRecreation.BY_HYPERPOD),
        ),
        (a_pod_document("Job"), ("Job", "llama", PodRecreation.NEVER)),
    ],
)
def test_workload_of_a_pod_is_read_from_its_owner(
    pod: dict[str, Any], expected: tuple[str, str, PodRecreation]
) -> None:
    unmanaged_pod = unmanaged_pods.read_unmanaged_pod(pod, Controllers([]), "research")

    assert (unmanaged_pod.kind, unmanaged_pod.workload, unmanaged_pod.recreation) == expected
    assert (unmanaged_pod.node_name, unmanaged_pod.accelerators, unmanaged_pod.consent) == (NODE, 8, Consent.UNSET)


def test_tolerations_and_selectors_are_read() -> None:
    tolerations = [
        {"key": "evenkeel.io/serving", "value": "chat", "effect": "NoSchedule"},
        {"operator": "Exists"},
        {"key": "spot", "operator": "Exists", "effect": "", "tolerationSeconds": 30},
        {"key": "size", "operator": "Gt", "value": "8"},
        {"key": "spot", "effect": "NoBreakfast"},
    ]
    pod = a_pod_document("ReplicaSet", creationTimestamp="2026-11-03T10:15:00Z")
    pod["spec"] |= {"tolerations": tolerations, "nodeSelector": {"disk": "nvme"}}

    unmanaged_pod = unmanaged_pods.read_unmanaged_pod(pod, Controllers([]), "research")

    assert unmanaged_pod.tolerations == (
        Toleration(key="evenkeel.io/serving", value="chat", effect=Effect.NO_SCHEDULE),
        Toleration(key="", operator=Operator.EXISTS),
        Toleration(key="spot", operator=Operator.EXISTS),
    )
    assert all_tolerated(["any=x:NoExecute"], unmanaged_pod.tolerations)
    assert unmanaged_pod.selector == {"disk": "nvme"}
    assert unmanaged_pod.created_at == datetime(2026, 11, 3, 10, 15, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "consent"), [("allowed", Consent.ALLOWED), ("yes", Consent.FORBIDDEN), ("", Consent.FORBIDDEN)]
)
def test_only_the_exact_label_value_counts_as_consent(value: str, consent: Consent) -> None:
    pod = a_pod_document("PyTorchJob", labels={"evenkeel.io/resume": value})

    assert unmanaged_pods.read_unmanaged_pod(pod, Controllers([]), "research").consent is consent


@pytest.mark.parametrize(("kind", "is_work"), [("DaemonSet", False), ("Node", False), ("PyTorchJob", True), ("", True)])
def test_daemon_and_static_pods_are_no_workloads(kind: str, is_work: bool) -> None:
    assert (
        unmanaged_pods.is_movable_kind(a_pod_document(kind, annotations={"kubernetes.io/config.mirror": "x"}))
        is is_work
    )


def test_pod_owned_only_by_node_is_workload() -> None:
    assert unmanaged_pods.is_movable_kind(a_pod_document("Node"))


def an_unmanaged_pod(name: str, workload: str, node: str = NODE, **changes: Any) -> UnmanagedPod:
    facts: dict[str, Any] = {
        "namespace": "research",
        "name": name,
        "uid": name,
        "node_name": node,
        "accelerators": 8,
        "kind": "PyTorchJob",
        "workload": workload,
        "recreation": PodRecreation.BY_OWNER,
    }
    return UnmanagedPod.model_validate({**facts, **changes})


def test_pods_of_a_workload_are_grouped() -> None:
    llama, other = unmanaged_workloads(
        "eks",
        [
            an_unmanaged_pod("llama-1", "llama", "b", consent=Consent.ALLOWED),
            an_unmanaged_pod("other-0", "other"),
            an_unmanaged_pod("llama-0", "llama", "a"),
        ],
    )

    assert (llama.label, llama.pods, llama.accelerators) == ("PyTorchJob research/llama", 2, 16)
    assert (llama.node_names, llama.consent) == (("a", "b"), Consent.UNSET)
    assert other.pods == 1


@pytest.mark.parametrize("recreation", list(PodRecreation))
@pytest.mark.parametrize("consent", list(Consent))
@pytest.mark.parametrize("by_policy", [True, False])
def test_consequence_of_a_fault_names_every_workload(
    recreation: PodRecreation, consent: Consent, *, by_policy: bool
) -> None:
    (workload,) = unmanaged_workloads("eks", [an_unmanaged_pod("a", "a", recreation=recreation, consent=consent)])

    text = describe_fault_consequence(workload, by_policy=by_policy)

    is_allowed = consent is Consent.ALLOWED or (consent is Consent.UNSET and by_policy)
    assert ("Evenkeel does." in text) is (is_allowed and recreation is PodRecreation.NEVER)
    assert ("moves it as soon" in text) is (is_allowed and recreation is PodRecreation.BY_OWNER)


@pytest.mark.parametrize(
    ("kind", "group", "controller"), [("Job", "batch", "j-r1"), ("PyTorchJob", "kubeflow.org", "")]
)
def test_only_a_job_controls_the_pods_of_a_rental(kind: str, group: str, controller: str) -> None:
    owner = {"apiVersion": f"{group}/v1", "kind": kind, "name": "j-r1", "uid": "u", "controller": True}
    labels = {"evenkeel.io/fleet": "research", "evenkeel.io/rental": "j-r1"}
    metadata = {"namespace": "research", "name": "p", "uid": "p", "labels": labels, "ownerReferences": [owner]}

    claim = unmanaged_pods.labelled_owner_of({"metadata": metadata}, Controllers([]), "research")

    assert claim is not None
    assert (claim.name, claim.controller) == ("j-r1", controller)


@pytest.mark.parametrize(
    ("status", "deleted", "is_unready"),
    [("True", {}, False), ("False", {}, True), (None, {}, True), ("True", {"deletionTimestamp": "2026-01-01"}, True)],
    ids=["ready", "not ready", "no status", "being deleted"],
)
def test_pod_is_ready_only_if_its_status_says_so(status: str | None, deleted: dict[str, str], is_unready: bool) -> None:
    pod = {
        "metadata": {"namespace": "serving", "name": "chat-1", "uid": "uid-1", **deleted},
        "spec": {"nodeName": "n-1"},
        "status": {"conditions": [{"type": "Ready", "status": status}] if status else []},
    }
    trimmed = unmanaged_pods.trim_unmanaged_pod(pod)

    assert trimmed
    assert unmanaged_pods.read_unmanaged_pod(trimmed, Controllers([]), "research").is_unready is is_unready
