"""Read the workloads of attempts and their pods. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from evenkeel.adapters.object_fields import (
    ATTEMPT_LABEL,
    DECISION_NOTE,
    FLEET_LABEL,
    JOB_LABEL,
    Json,
    condition_of,
    has_condition,
)
from evenkeel.adapters.workload_resources import rank_of, resource_of
from evenkeel.domain.external.kueue_status import KueueStatus
from evenkeel.domain.jobs.attempt import Attempt, ObservedPod, ObservedWorkload, PodPhase
from evenkeel.ports import LogTail

_FAILED = ("Failed", "FailureTarget")
COMPLETED = ("Complete", "Completed", "Succeeded")
"""Conditions of a workload that ended well: of a Job; of JobSet and HyperPod; of Kubeflow."""
_LONGEST_CHAIN = 2
"""A JobSet controls a Job, which controls its pods."""


def is_launched_by(item: Mapping[str, Any], attempt: Attempt, fleet: str) -> bool:
    """Whether the attempt's launch created an object with the attempt's namespace and name."""
    labels = item["metadata"].get("labels") or {}
    expected_labels = (attempt.job_id, str(attempt.attempt), fleet)
    has_labels = (labels.get(JOB_LABEL), labels.get(ATTEMPT_LABEL), labels.get(FLEET_LABEL)) == expected_labels
    return has_labels and bool(attempt.decision_id) and decision_of(item) == attempt.decision_id


def decision_of(item: Mapping[str, Any]) -> str:
    """Return the decision in an object's annotation; empty if it has none."""
    return str((item["metadata"].get("annotations") or {}).get(DECISION_NOTE, ""))


class ControllerRef(NamedTuple):
    """A workload that controls an object. All fields are empty if no workload does."""

    kind: str = ""
    name: str = ""
    uid: str = ""


def controlling_workload(item: Mapping[str, Any]) -> ControllerRef:
    """Return the workload that an object names as its controller, whatever controls that workload."""
    for reference in item["metadata"].get("ownerReferences") or ():
        resource = resource_of(reference) if reference.get("controller") else None
        if resource is not None:
            return ControllerRef(resource.kind, str(reference["name"]), str(reference["uid"]))
    return ControllerRef()


class Controllers:
    """Finds the last workload in an object's chain of controllers. A JobSet controls Jobs, which control its pods.

    Only the owner references of the listed objects count. Labels prove nothing, because any user may write them.
    """

    def __init__(self, listed: Iterable[Json]) -> None:
        """Read the owner references of workloads. The chain ends at a workload that is not listed."""
        self._items = {str(item["metadata"]["uid"]): item for item in listed}

    def controller_of(self, item: Mapping[str, Any]) -> ControllerRef:
        """Return the last workload above an object."""
        owner = controlling_workload(item)
        controller = self._items.get(owner.uid)
        above = controlling_workload(controller) if controller else ControllerRef()
        return above if above.uid else owner

    def controllers_above(self, item: Mapping[str, Any]) -> tuple[Json, ...]:
        """Return the listed workloads above an object, the nearest first."""
        parents = []
        for _ in range(_LONGEST_CHAIN):
            controller = self._items.get(controlling_workload(item).uid)
            if controller is None:
                break
            parents.append(controller)
            item = controller
        return tuple(parents)


def trim_object(item: Json) -> Json:
    """Reduce a workload or pod to the fields that `read_workloads` needs: most of an object is its pod template."""
    spec = item.get("spec") or {}
    return {
        "metadata": {name: value for name, value in item["metadata"].items() if name != "managedFields"},
        "spec": {name: spec[name] for name in ("nodeName", "suspend", "parallelism", "runPolicy") if name in spec},
        "status": item.get("status") or {},
    }


def read_workloads(
    items: Iterable[Json], pods: Iterable[Json], kueue: Mapping[tuple[str, str], KueueStatus]
) -> tuple[ObservedWorkload, ...]:
    """Group workloads and pods by the workload that controls them. The labels of a group name its attempt.

    A workload counts only if it has the name that a launch gives it. A pod counts only under the workload that
    controls it.

    Args:
        items: The workloads, and the Jobs that belong to JobSets.
        pods: The pods.
        kueue: Kueue's status by namespace and UID of the workload.
    """
    workloads = list(items)
    controllers = Controllers(workloads)
    groups: dict[_Group, Json] = {}
    jobs: dict[_Group, list[Json]] = {}
    members: dict[_Group, list[Json]] = {}
    for workload in workloads:
        name, owner = attempt_of(workload), controlling_workload(workload)
        if not name:
            continue
        if owner.uid and owner.name == workload_name(*name):
            jobs.setdefault((workload["metadata"]["namespace"], *name, owner.uid), []).append(workload)
        elif workload["metadata"]["name"] == workload_name(*name):
            groups[(workload["metadata"]["namespace"], *name, workload["metadata"]["uid"])] = workload
    for pod in pods:
        name, owner = attempt_of(pod), controllers.controller_of(pod)
        if name and owner.uid and owner.name == workload_name(*name):
            members.setdefault((pod["metadata"]["namespace"], *name, owner.uid), []).append(pod)
    return tuple(
        _workload(
            group,
            groups.get(group),
            jobs=jobs.get(group, []),
            pods=members.get(group, []),
            kueue=kueue.get((group[0], group[3])),
        )
        for group in sorted({*groups, *members})
    )


_Group: TypeAlias = tuple[str, str, int, str]
"""Namespace, job id and attempt number from the labels, and the UID of the workload."""


def workload_name(job_id: str, attempt: int) -> str:
    return f"{job_id}-a{attempt}"


def _workload(
    group: _Group, item: Json | None, *, jobs: list[Json], pods: list[Json], kueue: KueueStatus | None
) -> ObservedWorkload:
    """Read a workload.

    Args:
        group: Its namespace and its attempt.
        item: The object; None if it is gone.
        jobs: The Jobs that it controls.
        pods: Its pods.
        kueue: Kueue's status of it.
    """
    namespace, job_id, attempt, uid = group
    decisions = {decision_of(obj) for obj in ([item] if item else pods)}
    return ObservedWorkload(
        job_id=job_id,
        attempt=attempt,
        namespace=namespace,
        job_uid=uid,
        decision_id=decisions.pop() if len(decisions) == 1 else "",
        uid=uid if item else "",
        is_deleting=item is not None and "deletionTimestamp" in item["metadata"],
        is_suspended=item is not None and is_suspended(item),
        parallelism=int((item.get("spec") or {}).get("parallelism") or 0) if item else 0,
        has_completed=item is not None and has_condition(item, *COMPLETED),
        has_failed=item is not None and has_failed(item),
        was_disrupted=item is not None and any(map(was_disrupted, [item, *jobs])),
        pods=tuple(read_pod(pod) for pod in sorted(pods, key=lambda pod: (rank_of(pod), pod["metadata"]["name"]))),
        kueue=kueue if item else None,
    )


def is_suspended(item: Mapping[str, Any]) -> bool:
    """Whether a workload is suspended. The operators of PyTorch keep the field in the run policy."""
    spec = item.get("spec") or {}
    return bool(spec.get("suspend") or (spec.get("runPolicy") or {}).get("suspend"))


def attempt_of(item: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return job id and attempt from an object's labels; None if they are not in Evenkeel's format."""
    labels = item["metadata"].get("labels") or {}
    job_id, number = labels.get(JOB_LABEL, ""), labels.get(ATTEMPT_LABEL, "")
    return (job_id, int(number)) if job_id and number.isascii() and number.isdigit() else None


def has_failed(job: Mapping[str, Any]) -> bool:
    """Whether a workload has failed. On a Job, `FailureTarget` shows it before its last pod has ended."""
    return has_condition(job, *_FAILED)


def was_disrupted(job: Mapping[str, Any]) -> bool:
    """Whether a Job failed because a pod was evicted or its node ended. The pod failure policy records this."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    reasons = {
        condition.get("reason")
        for condition in conditions
        if condition["type"] in _FAILED and condition["status"] == "True"
    }
    return "PodFailurePolicy" in reasons


def log_tail(pod: Mapping[str, Any], *, text: str = "", why: str = "") -> LogTail:
    """Return the log lines of a pod, or the reason why they are missing, with the pod and node names."""
    return LogTail(
        pod_name=pod["metadata"]["name"], node_name=(pod.get("spec") or {}).get("nodeName") or "", text=text, why=why
    )


def read_pod(pod: Mapping[str, Any]) -> ObservedPod:
    """Parse a pod."""
    status = pod.get("status") or {}
    states = [container.get("state") or {} for container in status.get("containerStatuses") or ()]
    terminated_state = next((state["terminated"] for state in states if "terminated" in state), None)
    waiting_state = next((state["waiting"] for state in states if "waiting" in state), None)
    disruption = condition_of(status, "DisruptionTarget", "True")
    unscheduled_condition = condition_of(status, "PodScheduled", "False")
    # Most informative first: why Kubernetes ended the pod, how its process ended, why it waits.
    reasons = (
        (disruption or {}).get("reason"),
        status.get("reason"),
        (terminated_state or {}).get("reason"),
        (waiting_state or {}).get("reason"),
        (unscheduled_condition or {}).get("reason"),
    )
    return ObservedPod(
        name=pod["metadata"]["name"],
        node_name=(pod.get("spec") or {}).get("nodeName") or "",
        phase=PodPhase(status.get("phase") or PodPhase.PENDING),
        is_terminating="deletionTimestamp" in pod["metadata"],
        exit_code=terminated_state.get("exitCode") if terminated_state else None,
        reason=next((reason for reason in reasons if reason), ""),
    )
