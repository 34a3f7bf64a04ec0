"""Read the Workloads of Kueue. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from evenkeel.adapters.object_fields import MESSAGE_LIMIT, QUEUE_LABEL, parse_instant
from evenkeel.adapters.workloads import controlling_workload
from evenkeel.domain.external.kueue_status import KueueCheck, KueueCondition, KueueStatus
from evenkeel.domain.values import rfc3339


def is_queued_in_kueue(job: Mapping[str, Any]) -> bool:
    """Whether Kueue admits a workload."""
    return QUEUE_LABEL in (job["metadata"].get("labels") or {})


def controller_of_workload(workload: Mapping[str, Any]) -> tuple[str, str]:
    """Return namespace and UID of the job that controls a Workload of Kueue; the UID is empty if none does."""
    return (str(workload["metadata"].get("namespace", "")), controlling_workload(workload).uid)


def read_kueue(workload: Mapping[str, Any], position: int | None = None) -> KueueStatus:
    """Parse the status of a Workload of Kueue.

    Source: `apis/kueue/v1beta2/workload_types.go`. v1beta1 misspells the field of the past execution time.
    """
    spec, status = workload.get("spec") or {}, workload.get("status") or {}
    admission = status.get("admission") or {}
    assignments = admission.get("podSetAssignments") or ()
    flavors = (str(flavor) for assignment in assignments for flavor in (assignment.get("flavors") or {}).values())
    past = ("accumulatedPastExecutionTimeSeconds", "accumulatedPastExexcutionTimeSeconds")
    return KueueStatus(
        name=workload["metadata"]["name"],
        queue=spec.get("queueName") or "",
        cluster_queue=admission.get("clusterQueue") or "",
        flavors=tuple(dict.fromkeys(flavors)),
        is_active=spec.get("active", True) is not False,
        conditions=tuple(
            KueueCondition(
                type=item["type"],
                is_true=item["status"] == "True",
                reason=item.get("reason") or "",
                message=(item.get("message") or "")[:MESSAGE_LIMIT],
                changed_at=parse_instant(item.get("lastTransitionTime")),
            )
            for item in status.get("conditions") or ()
        ),
        checks=tuple(
            KueueCheck(
                name=item["name"],
                state=item["state"],
                message=(item.get("message") or "")[:MESSAGE_LIMIT],
                node_selector=next(
                    (update.get("nodeSelector") or {} for update in item.get("podSetUpdates") or ()), {}
                ),
            )
            for item in status.get("admissionChecks") or ()
        ),
        was_admitted=any(status.get(name) is not None for name in past),
        requeue_at=parse_instant((status.get("requeueState") or {}).get("requeueAt")),
        position=position,
    )


def read_queue(listed: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], KueueStatus]:
    """Return Kueue's status and the queue position of each Workload, by namespace and UID of its Job."""
    workloads = {
        job: (workload, read_kueue(workload)) for workload in listed if (job := controller_of_workload(workload))[1]
    }
    lengths: Counter[tuple[str, str]] = Counter()
    positions: dict[tuple[str, str], int] = {}
    for uid, (workload, status) in sorted(workloads.items(), key=lambda item: _queue_order(*item[1])):
        if status.is_pending and status.is_active:
            queue = (workload["metadata"]["namespace"], status.queue)
            lengths[queue] += 1
            positions[uid] = lengths[queue]
    return {uid: status.replace(position=positions.get(uid)) for uid, (_, status) in workloads.items()}


def _queue_order(workload: Mapping[str, Any], kueue: KueueStatus) -> tuple[int, str, str]:
    """Return the sort key of Kueue's queues: priority, then age. Some evictions count as a new start of the age."""
    priority = int((workload.get("spec") or {}).get("priority") or 0)
    eviction = kueue.condition("Evicted")
    since = str(workload["metadata"].get("creationTimestamp") or "")
    if (
        eviction
        and eviction.is_true
        and eviction.reason in ("PodsReadyTimeout", "AdmissionCheck")
        and eviction.changed_at
    ):
        since = rfc3339(eviction.changed_at)
    return (-priority, since, str(workload["metadata"]["name"]))
