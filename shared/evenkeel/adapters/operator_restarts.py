"""Read whether the controller of a workload creates a pod again, and whether its owner lets Evenkeel do so. Pure.

Sources: https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-backoff-failure-policy;
kubernetes-sigs/jobset, `pkg/controllers/failure_policy.go`;
kubeflow/training-operator, branch release-1.9, `pkg/controller.v1/common/pod.go`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from evenkeel.adapters.object_fields import SAGEMAKER
from evenkeel.domain.external.unmanaged_workloads import RESUME_ALLOWED, RESUME_LABEL, Consent, PodRecreation
from evenkeel.domain.jobs.workload_kind import WorkloadKind

AUTO_RESUME = f"{SAGEMAKER}/enable-job-auto-resume"
"""HyperPod's annotation for PyTorchJobs and Jobs. With `true`, HyperPod restarts the job after it replaced a node."""
_BACKOFF_LIMIT = 6
"""Default of Kubernetes."""
_DISRUPTION = "DisruptionTarget"


def recreation_of(pod: Mapping[str, Any], kind: str, chain: Sequence[Mapping[str, Any]]) -> PodRecreation:
    """Return how a pod is recreated after an eviction.

    Args:
        pod: The pod.
        kind: Kind of its workload; empty for a bare pod.
        chain: The workloads above it that `adapters/workload_resources.py` lists, the nearest first.
    """
    if kind == WorkloadKind.HYPERPOD_PYTORCH_JOB or any(has_auto_resume(obj) for obj in (pod, *chain)):
        return PodRecreation.BY_HYPERPOD
    if kind not in set(WorkloadKind):
        return PodRecreation.BY_OWNER if kind else PodRecreation.NEVER
    return PodRecreation.BY_OWNER if restarts_after_eviction(chain) else PodRecreation.NEVER


def consent_of(*items: Mapping[str, Any]) -> Consent:
    """Read the label of a job, or else of its pods or their templates: the first that has the label decides."""
    for item in items:
        value = ((item.get("metadata") or {}).get("labels") or {}).get(RESUME_LABEL)
        if value is not None:
            return Consent.ALLOWED if value == RESUME_ALLOWED else Consent.FORBIDDEN
    return Consent.UNSET


def has_auto_resume(item: Mapping[str, Any]) -> bool:
    return (item["metadata"].get("annotations") or {}).get(AUTO_RESUME) == "true"


def restarts_after_eviction(chain: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a controller starts its pods again after one was evicted. An eviction counts as a failure."""
    for position, item in enumerate(chain):
        match item.get("kind"):
            case WorkloadKind.JOB:
                restarts = _job_restarts(item)
            case WorkloadKind.JOB_SET:
                restarts = _job_set_restarts(item, chain[position - 1] if position else {})
            case WorkloadKind.PYTORCH_JOB:
                restarts = _pytorch_job_restarts(item)
            case _:
                restarts = False
        if restarts:
            return True
    return False


def _job_restarts(job: Mapping[str, Any]) -> bool:
    spec = job.get("spec") or {}
    match _action_on_disruption(spec):
        case "FailJob" | "FailIndex":
            return False
        case "Ignore":
            return True
    if "backoffLimitPerIndex" in spec:
        return int(spec["backoffLimitPerIndex"]) > 0
    return int((job.get("status") or {}).get("failed") or 0) < int(spec.get("backoffLimit", _BACKOFF_LIMIT))


def _action_on_disruption(spec: Mapping[str, Any]) -> str:
    """Return the action of the first rule of a pod failure policy that names disruptions; empty if none does."""
    for rule in (spec.get("podFailurePolicy") or {}).get("rules") or ():
        if any(condition.get("type") == _DISRUPTION for condition in rule.get("onPodConditions") or ()):
            return str(rule.get("action", ""))
    return ""


def _job_set_restarts(job_set: Mapping[str, Any], job: Mapping[str, Any]) -> bool:
    """Whether a JobSet restarts after one of its Jobs failed. Its first matching rule decides."""
    policy = (job_set.get("spec") or {}).get("failurePolicy") or {}
    is_allowed = int((job_set.get("status") or {}).get("restartsCountTowardsMax") or 0) < int(
        policy.get("maxRestarts") or 0
    )
    fails_by_policy = _action_on_disruption(job.get("spec") or {}) == "FailJob"
    reason = "PodFailurePolicy" if fails_by_policy else "BackoffLimitExceeded"
    name = (job.get("metadata", {}).get("labels") or {}).get("jobset.sigs.k8s.io/replicatedjob-name", "")
    for rule in policy.get("rules") or ():
        targets, reasons = rule.get("targetReplicatedJobs") or (), rule.get("onJobFailureReasons") or ()
        if (targets and name not in targets) or (reasons and reason not in reasons):
            continue
        action = str(rule.get("action", ""))
        return action.endswith("IgnoreMaxRestarts") or (action != "FailJobSet" and is_allowed)
    return is_allowed


def _pytorch_job_restarts(job: Mapping[str, Any]) -> bool:
    """Whether every replica is restarted. Without a policy, it is `OnFailure`."""
    replicas = (job.get("spec") or {}).get("pytorchReplicaSpecs") or {}
    return all((replica.get("restartPolicy") or "OnFailure") != "Never" for replica in replicas.values())
