"""Unmanaged jobs: the checkpoint folder, and the manifest that recreates a job."""

from typing import Any

import pytest

from evenkeel.adapters.unmanaged_jobs import checkpoint_location, manifest_of, read_job
from evenkeel.adapters.workloads import Controllers
from evenkeel.domain.external.unmanaged_workloads import Consent


def a_container(**fields: Any) -> dict[str, Any]:
    return {"name": "main", "image": "trainer", **fields}


def a_job(container: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "Job", "spec": {"template": {"spec": {"containers": [container]}}}}


def environment_variable(name: str, value: str) -> dict[str, str]:
    return {"name": name, "value": value}


@pytest.mark.parametrize(
    ("container", "location"),
    [
        (
            {"env": [environment_variable("EVENKEEL_CHECKPOINT_URI", "s3://b/llama")]},
            "s3://b/llama (variable EVENKEEL_CHECKPOINT_URI)",
        ),
        ({"env": [environment_variable("CHECKPOINT_DIR", "/fsx/llama")]}, "/fsx/llama (variable CHECKPOINT_DIR)"),
        (
            {
                "env": [
                    environment_variable("CHECKPOINT_DIR", "/a"),
                    environment_variable("EVENKEEL_CHECKPOINT_URI", "s3://b"),
                ]
            },
            "s3://b (variable EVENKEEL_CHECKPOINT_URI)",
        ),
        ({"env": [{"name": "CHECKPOINT_DIR", "valueFrom": {"secretKeyRef": {"name": "x", "key": "y"}}}]}, ""),
        ({"command": ["python", "train.py", "--checkpoint_dir", "/fsx/a"]}, "/fsx/a (option --checkpoint_dir)"),
        ({"args": ["--save=/fsx/megatron", "--output-dir", "/fsx/out"]}, "/fsx/megatron (option --save)"),
        ({"command": ["sh", "-c", "torchrun train.py --output_dir /fsx/hf"]}, "/fsx/hf (option --output_dir)"),
        ({"args": ["exp_manager.exp_dir=/fsx/nemo"]}, "/fsx/nemo (option exp_manager.exp_dir)"),
        ({"args": ["--save"]}, ""),
        ({"args": ["save", "/fsx/no-option"]}, ""),
        ({"args": ["--epochs=1"]}, ""),
        ({}, ""),
    ],
)
def test_checkpoint_folder_is_read_from_the_workload_manifest(container: dict[str, Any], location: str) -> None:
    assert checkpoint_location(a_job(a_container(**container))) == location


@pytest.mark.parametrize(
    "spec",
    [
        {"replicatedJobs": [{"template": {"spec": {"template": "POD"}}}]},
        {"pytorchReplicaSpecs": {"Worker": {"template": "POD"}}},
        {"replicaSpecs": [{"template": "POD"}]},
        {"template": "POD"},
    ],
)
def test_checkpoint_folder_is_read_from_every_workload_kind(spec: dict[str, Any]) -> None:
    pod_template = {"spec": {"containers": [a_container(env=[environment_variable("CKPT_DIR", "/fsx")])]}}

    def with_pod_template(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: with_pod_template(item) for key, item in value.items()}
        if isinstance(value, list):
            return [with_pod_template(item) for item in value]
        return pod_template if value == "POD" else value

    assert checkpoint_location({"spec": with_pod_template(spec)}) == "/fsx (variable CKPT_DIR)"


def test_copied_manifest_omits_fields_that_kubernetes_set() -> None:
    labels = {"team": "research", "controller-uid": "u", "batch.kubernetes.io/job-name": "llama"}
    stored = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": "llama",
            "namespace": "research",
            "uid": "u",
            "resourceVersion": "7",
            "creationTimestamp": "2026-11-24T03:00:00Z",
            "generation": 2,
            "managedFields": [{}],
            "finalizers": ["foregroundDeletion"],
            "labels": dict(labels),
            "annotations": {"note": "kept"},
        },
        "spec": {
            "suspend": True,
            "selector": {"matchLabels": {"controller-uid": "u"}},
            "template": {"metadata": {"labels": dict(labels)}, "spec": {"containers": [a_container()]}},
        },
        "status": {"failed": 1},
    }

    manifest = manifest_of(stored)

    assert manifest == {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": "llama",
            "namespace": "research",
            "labels": {"team": "research"},
            "annotations": {"note": "kept"},
        },
        "spec": {
            "template": {"metadata": {"labels": {"team": "research"}}, "spec": {"containers": [a_container()]}},
        },
    }
    assert stored["status"] == {"failed": 1}


def test_copied_manifest_keeps_the_users_selector_and_is_not_suspended() -> None:
    spec = {"manualSelector": True, "selector": {"matchLabels": {"a": "b"}}, "template": {}}

    assert manifest_of({"kind": "Job", "metadata": {}, "spec": spec})["spec"] == spec
    operated = {
        "kind": "PyTorchJob",
        "metadata": {},
        "spec": {"runPolicy": {"suspend": True, "cleanPodPolicy": "None"}},
    }
    assert manifest_of(operated)["spec"] == {"runPolicy": {"cleanPodPolicy": "None"}}


@pytest.mark.parametrize(("label", "consent"), [("allowed", Consent.ALLOWED), ("forbidden", Consent.FORBIDDEN)])
def test_consent_of_pods_outlives_the_pods(label: str, consent: Consent) -> None:
    job = a_job(a_container())
    job["metadata"] = {"namespace": "research", "name": "llama", "uid": "u-1"}
    job["spec"]["template"]["metadata"] = {"labels": {"evenkeel.io/resume": label}}

    assert read_job(job, (), Controllers([])).consent is consent
    assert read_job({**job, "spec": {"template": {}}}, (), Controllers([])).consent is Consent.UNSET
