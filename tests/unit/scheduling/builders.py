"""Builders of jobs, attempts, node capacities and workloads. A test states only the fields that matter."""

from datetime import UTC, datetime, timedelta
from typing import Any

from evenkeel.domain.admission.admission_request import AdmissionRequest
from evenkeel.domain.capacity.node_capacity import NodeCapacity
from evenkeel.domain.jobs.attempt import Attempt, AttemptState, ObservedPod, ObservedWorkload, PodPhase
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.jobs.spec import JobSpec
from evenkeel.domain.nodes import NodeLife
from evenkeel.domain.resources import Resources

NOW = datetime(2026, 11, 3, 10, 15, 2, tzinfo=UTC)
CLUSTER = "research-eks"


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def a_life(number: int = 1) -> NodeLife:
    return NodeLife(cluster=CLUSTER, instance_id=f"i-{number:017x}", launched_at=NOW - timedelta(days=1))


def a_node_capacity(number: int = 1, *, accelerators: int = 8, free: int = 8, **changes: Any) -> NodeCapacity:
    """Return a node that offers accelerators, and whose CPU and memory are unknown unless `changes` state them."""
    facts: dict[str, Any] = {
        "life": a_life(number),
        "node_name": f"node-{number}",
        "cluster": CLUSTER,
        "pool": "workers",
        "instance_type": "ml.p5.48xlarge",
        "allocatable": Resources(accelerators=accelerators),
        "free": Resources(accelerators=free),
    }
    return NodeCapacity.model_validate({**facts, **changes})


def a_request(number: int = 1, **changes: Any) -> AdmissionRequest:
    facts: dict[str, Any] = {
        "job_id": f"job-{number}",
        "submitted_at": at(number),
        "cluster": CLUSTER,
        "nodes": 1,
        "accelerators_per_node": 8,
    }
    return AdmissionRequest.model_validate({**facts, **changes})


def a_spec(**changes: Any) -> JobSpec:
    facts: dict[str, Any] = {
        "name": "llama",
        "image": "registry/llama:1",
        "command": ("python", "train.py"),
        "nodes": 2,
        "accelerators_per_node": 8,
        "checkpoint_uri": "s3://checkpoints/llama",
    }
    return JobSpec.model_validate({**facts, **changes})


def a_job(**changes: Any) -> Job:
    facts: dict[str, Any] = {
        "job_id": "job-1",
        "spec": a_spec(),
        "state": JobState.RUNNING,
        "submitted_at": NOW,
        "cluster": CLUSTER,
        "namespace": "evenkeel-jobs",
        "current_attempt": 1,
    }
    return Job.model_validate({**facts, **changes})


def an_attempt(**changes: Any) -> Attempt:
    facts: dict[str, Any] = {
        "job_id": "job-1",
        "attempt": 1,
        "state": AttemptState.RUNNING,
        "cluster": CLUSTER,
        "namespace": "evenkeel-jobs",
        "pool": "workers",
        "nodes": (a_life(1), a_life(2)),
        "node_names": ("node-1", "node-2"),
        "accelerators": 16,
        "admitted_at": NOW,
    }
    return Attempt.model_validate({**facts, **changes})


def a_pod(rank: int, phase: PodPhase = PodPhase.RUNNING, code: int | None = None, **changes: Any) -> ObservedPod:
    facts: dict[str, Any] = {
        "name": f"job-1-a1-{rank}",
        "node_name": f"node-{rank + 1}",
        "phase": phase,
        "exit_code": code,
        "reason": "Error" if phase is PodPhase.FAILED else "",
    }
    return ObservedPod.model_validate({**facts, **changes})


def a_workload(*pods: ObservedPod, **changes: Any) -> ObservedWorkload:
    facts: dict[str, Any] = {
        "job_id": "job-1",
        "attempt": 1,
        "uid": "uid-1",
        "pods": pods,
        "has_failed": any(pod.phase is PodPhase.FAILED for pod in pods),
    }
    return ObservedWorkload.model_validate({**facts, **changes})
