"""Read the Jobs and the pods of attempts. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from evenkeel.adapters.object_fields import (
    ATTEMPT_LABEL,
    DECISION_NOTE,
    FLEET_LABEL,
    INDEX_LABEL,
    JOB_LABEL,
    Json,
    condition_of,
    has_condition,
)
from evenkeel.domain.external.kueue_status import KueueStatus
from evenkeel.domain.jobs.attempt import Attempt, ObservedPod, ObservedWorkload, PodPhase
from evenkeel.ports import LogTail

_FAILED = ("Failed", "FailureTarget")


def is_launched_by(item: Mapping[str, Any], attempt: Attempt, fleet: str) -> bool:
    """Whether the attempt's launch created an object with the attempt's namespace and name."""
    found = item["metadata"].get("labels") or {}
    expected = (attempt.job_id, str(attempt.attempt), fleet)
    has_labels = (found.get(JOB_LABEL), found.get(ATTEMPT_LABEL), found.get(FLEET_LABEL)) == expected
    return has_labels and bool(attempt.decision_id) and decision_of(item) == attempt.decision_id


def decision_of(item: Mapping[str, Any]) -> str:
    """Return the decision in an object's annotation; empty if it has none."""
    return str((item["metadata"].get("annotations") or {}).get(DECISION_NOTE, ""))


def controlling_job(item: Mapping[str, Any]) -> tuple[str, str]:
    """Return name and UID of the Kubernetes Job that controls an object; empty if no Job does."""
    owners = item["metadata"].get("ownerReferences") or ()
    jobs = (each for each in owners if each.get("controller") and each.get("kind") == "Job")
    return next(
        (
            (str(each["name"]), str(each["uid"]))
            for each in jobs
            if str(each.get("apiVersion", "")).startswith("batch/")
        ),
        ("", ""),
    )


def read_workloads(
    jobs: Iterable[Json], pods: Iterable[Json], kueue: Mapping[tuple[str, str], KueueStatus]
) -> tuple[ObservedWorkload, ...]:
    """Group Jobs and pods by the controlling Job. The labels of a group name its attempt.

    A Job counts only if it has the name that a launch gives it. A pod counts only under the Job that controls it.
    """
    found: dict[_Group, Json] = {}
    members: dict[_Group, list[Json]] = {}
    for job in jobs:
        name = attempt_of(job)
        if name and job["metadata"]["name"] == workload_name(*name):
            found[(job["metadata"]["namespace"], *name, job["metadata"]["uid"])] = job
    for pod in pods:
        name, (controller, uid) = attempt_of(pod), controlling_job(pod)
        if name and uid and controller == workload_name(*name):
            members.setdefault((pod["metadata"]["namespace"], *name, uid), []).append(pod)
    return tuple(
        _workload(group, found.get(group), members.get(group, []), kueue.get((group[0], group[3])))
        for group in sorted({*found, *members})
    )


_Group: TypeAlias = tuple[str, str, int, str]
"""Namespace, job id and attempt number from the labels, and the UID of the Kubernetes Job."""


def workload_name(job_id: str, attempt: int) -> str:
    return f"{job_id}-a{attempt}"


def _workload(group: _Group, job: Json | None, pods: list[Json], kueue: KueueStatus | None) -> ObservedWorkload:
    namespace, job_id, attempt, uid = group
    decisions = {decision_of(item) for item in ([job] if job else pods)}
    return ObservedWorkload(
        job_id=job_id,
        attempt=attempt,
        namespace=namespace,
        job_uid=uid,
        decision_id=decisions.pop() if len(decisions) == 1 else "",
        uid=uid if job else "",
        is_deleting=job is not None and "deletionTimestamp" in job["metadata"],
        is_suspended=job is not None and bool(job["spec"].get("suspend")),
        has_completed=job is not None and has_condition(job, "Complete"),
        has_failed=job is not None and has_failed(job),
        was_disrupted=job is not None and was_disrupted(job),
        pods=tuple(read_pod(pod) for pod in sorted(pods, key=lambda pod: (rank_of(pod), pod["metadata"]["name"]))),
        kueue=kueue if job else None,
    )


def attempt_of(item: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return job id and attempt from an object's labels; None if they are not in Evenkeel's format."""
    found = item["metadata"].get("labels") or {}
    job_id, number = found.get(JOB_LABEL, ""), found.get(ATTEMPT_LABEL, "")
    return (job_id, int(number)) if job_id and number.isascii() and number.isdigit() else None


def has_failed(job: Mapping[str, Any]) -> bool:
    """Whether a Job has failed. `FailureTarget` shows it at once, `Failed` only after its last pod."""
    return has_condition(job, *_FAILED)


def was_disrupted(job: Mapping[str, Any]) -> bool:
    """Whether a Job failed because a pod was evicted or its node ended. The pod failure policy records this."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    reasons = {each.get("reason") for each in conditions if each["type"] in _FAILED and each["status"] == "True"}
    return "PodFailurePolicy" in reasons


def rank_of(pod: Mapping[str, Any]) -> int:
    """Return the completion index of a pod. A pod without one gets a rank behind all others."""
    metadata = pod["metadata"]
    text = (metadata.get("labels") or {}).get(INDEX_LABEL) or (metadata.get("annotations") or {}).get(INDEX_LABEL, "")
    return int(text) if text.isascii() and text.isdigit() else 1_000_000


def log_tail(pod: Mapping[str, Any], *, text: str = "", why: str = "") -> LogTail:
    """Return the log lines of a pod, or the reason why they are missing, with the pod and node names."""
    return LogTail(
        pod_name=pod["metadata"]["name"], node_name=(pod.get("spec") or {}).get("nodeName") or "", text=text, why=why
    )


def read_pod(pod: Mapping[str, Any]) -> ObservedPod:
    """Parse a pod."""
    status = pod.get("status") or {}
    states = [container.get("state") or {} for container in status.get("containerStatuses") or ()]
    ended = next((state["terminated"] for state in states if "terminated" in state), None)
    waiting = next((state["waiting"] for state in states if "waiting" in state), None)
    disruption = condition_of(status, "DisruptionTarget", "True")
    unscheduled = condition_of(status, "PodScheduled", "False")
    # Most informative first: why Kubernetes ended the pod, how its process ended, why it waits.
    reasons = (
        (disruption or {}).get("reason"),
        status.get("reason"),
        (ended or {}).get("reason"),
        (waiting or {}).get("reason"),
        (unscheduled or {}).get("reason"),
    )
    return ObservedPod(
        name=pod["metadata"]["name"],
        node_name=(pod.get("spec") or {}).get("nodeName") or "",
        phase=PodPhase(status.get("phase") or PodPhase.PENDING),
        is_terminating="deletionTimestamp" in pod["metadata"],
        exit_code=ended.get("exitCode") if ended else None,
        reason=next((reason for reason in reasons if reason), ""),
    )
