"""The port AdmissionChecks on Kubernetes: Kueue's AdmissionChecks, and the status of its Workloads.

Kueue's own controllers write a check in the same way: `pkg/controller/admissionchecks/provisioning/controller.go`, with
`pkg/workload/patching`. The patch replaces the whole list of checks, in the version that was read.
"""

from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from evenkeel.adapters.kubernetes import KubernetesApi
from evenkeel.adapters.object_fields import Json, condition_of, has_condition
from evenkeel.adapters.workloads import controlling_workload
from evenkeel.domain.external.burst_check_protocol import CONTROLLER, BurstCheckAnswer, BurstCheckState, CheckedWorkload
from evenkeel.ports import BurstChecks, Conflict, NotFound

_KUEUE = "/apis/kueue.x-k8s.io"


class KubernetesAdmissionChecks(ABC):
    """The operations of a controller of AdmissionChecks. `KubernetesCluster` includes them."""

    @abstractmethod
    def _api(self, cluster: str) -> KubernetesApi: ...

    @abstractmethod
    def _list_objects(self, cluster: str, path: str, **query: str) -> list[Json]: ...

    def burst_checks(self, cluster: str) -> BurstChecks:
        base = self._kueue_path(cluster)
        if not base:
            return BurstChecks()
        try:
            admission_checks = self._list_objects(cluster, f"{base}/admissionchecks")
        except NotFound:  # this definition of Kueue may not be installed yet
            return BurstChecks()
        checks = [check for check in admission_checks if (check.get("spec") or {}).get("controllerName") == CONTROLLER]
        if not checks:
            return BurstChecks()
        names = frozenset(str(check["metadata"]["name"]) for check in checks)
        workloads = [item for item in self._list_objects(cluster, f"{base}/workloads") if _checks_of(item, names)]
        if not workloads:
            return BurstChecks(_inactive(checks))
        flavors = {item["metadata"]["name"]: item for item in self._list_objects(cluster, f"{base}/resourceflavors")}
        queues = {item["metadata"]["name"]: item for item in self._list_objects(cluster, f"{base}/clusterqueues")}
        checked_workloads = (
            read_checked_workload(cluster, item, check, names, flavors, queues)
            for item, check in _pairs(workloads, names)
        )
        return BurstChecks(_inactive(checks), tuple(sorted(checked_workloads, key=lambda workload: workload.label)))

    def mark_check_active(self, cluster: str, name: str, at: datetime) -> None:
        path = f"{self._kueue_path(cluster)}/admissionchecks/{name}"
        check = self._api(cluster).get(path)
        if check is None or has_condition(check, "Active"):
            return
        conditions = [item for item in (check.get("status") or {}).get("conditions") or () if item["type"] != "Active"]
        active = {
            "type": "Active",
            "status": "True",
            "reason": "Active",
            "message": "Evenkeel answers this admission check.",
            "lastTransitionTime": _time_text(at),
            "observedGeneration": check["metadata"].get("generation", 1),
        }
        metadata = {"resourceVersion": check["metadata"]["resourceVersion"]}
        self._api(cluster).patch(
            f"{path}/status", {"metadata": metadata, "status": {"conditions": [*conditions, active]}}
        )

    def answer_check(self, workload: CheckedWorkload, answer: BurstCheckAnswer, at: datetime) -> None:
        base = self._kueue_path(workload.cluster)
        path = f"{base}/namespaces/{workload.namespace}/workloads/{workload.name}"
        item = self._api(workload.cluster).get(path)
        if item is None:
            raise NotFound(f"Workload {workload.label} of {workload.cluster} is gone")
        if item["metadata"]["resourceVersion"] != workload.resource_version:
            raise Conflict(f"Workload {workload.label} of {workload.cluster} has changed")
        checks = [
            _answered(check, workload, answer, at) if check["name"] == workload.check else check
            for check in item["status"]["admissionChecks"]
        ]
        metadata = {"resourceVersion": workload.resource_version}
        patch = {"metadata": metadata, "status": {"admissionChecks": checks}}
        self._api(workload.cluster).patch(f"{path}/status", patch)

    def _kueue_path(self, cluster: str) -> str:
        """Return the path of Kueue's preferred version; empty without Kueue."""
        group = self._api(cluster).get(_KUEUE)
        return f"{_KUEUE}/{group['preferredVersion']['version']}" if group else ""


def read_checked_workload(
    cluster: str,
    item: Mapping[str, Any],
    check: Mapping[str, Any],
    own_names: Container[str],
    flavors: Mapping[str, Json],
    queues: Mapping[str, Json],
) -> CheckedWorkload:
    """Read a Workload that has one of Evenkeel's checks.

    Args:
        cluster: Its cluster.
        item: The Workload.
        check: The check in its status.
        own_names: Evenkeel's checks. None of them waits for another of them.
        flavors: ResourceFlavors by name.
        queues: ClusterQueues by name.
    """
    spec, status = item.get("spec") or {}, item["status"]
    admission = status.get("admission") or {}
    counts = {pod_set["name"]: int(pod_set.get("count", 1)) for pod_set in spec.get("podSets") or ()}
    assignments_by_pod_set = {assignment["name"]: assignment for assignment in admission.get("podSetAssignments") or ()}
    names = tuple(
        dict.fromkeys(
            str(flavor)
            for assignment in assignments_by_pod_set.values()
            for flavor in (assignment.get("flavors") or {}).values()
        )
    )
    owner = controlling_workload(item)
    updates = check.get("podSetUpdates") or ()
    queue_spec = queues.get(str(admission.get("clusterQueue")), {}).get("spec") or {}
    return CheckedWorkload(
        cluster=cluster,
        namespace=item["metadata"]["namespace"],
        name=item["metadata"]["name"],
        resource_version=item["metadata"]["resourceVersion"],
        job_name=owner.name,
        job_uid=owner.uid,
        check=check["name"],
        state=BurstCheckState(check["state"]),
        message=check.get("message") or "",
        retry_count=int(check.get("retryCount") or 0),
        node_selector=(updates[0].get("nodeSelector") or {}) if updates else {},
        has_quota=has_condition(item, "QuotaReserved"),
        is_admitted=has_condition(item, "Admitted"),
        is_over=spec.get("active", True) is False or has_condition(item, "Finished", "Evicted"),
        pod_sets=tuple(counts),
        pods=sum(int(assignments_by_pod_set.get(name, {}).get("count", count)) for name, count in counts.items()),
        flavors=names,
        node_labels={
            key: str(value)
            for name in names
            for key, value in (flavors.get(name, {}).get("spec", {}).get("nodeLabels") or {}).items()
        },
        open_checks=tuple(
            other_check["name"]
            for other_check in status["admissionChecks"]
            if other_check["name"] not in own_names and other_check["state"] != BurstCheckState.READY
        ),
        covers_all_flavors=_covers_all_flavors(queue_spec, check["name"]),
    )


def _pairs(workloads: Iterable[Json], names: frozenset[str]) -> Iterator[tuple[Json, Json]]:
    for item in workloads:
        for check in _checks_of(item, names):
            yield item, check


def _checks_of(item: Mapping[str, Any], names: frozenset[str]) -> list[Json]:
    return [check for check in (item.get("status") or {}).get("admissionChecks") or () if check["name"] in names]


def _covers_all_flavors(queue_spec: Mapping[str, Any], check: str) -> bool:
    """Whether a ClusterQueue asks for a check with every flavor.

    v1beta2 lists checks in `admissionChecksStrategy`; v1beta1 also has the list `admissionChecks` of names.
    """
    if check in (queue_spec.get("admissionChecks") or ()):
        return True
    rules = (queue_spec.get("admissionChecksStrategy") or {}).get("admissionChecks") or ()
    return any(rule["name"] == check and not rule.get("onFlavors") for rule in rules)


def _answered(check: Mapping[str, Any], workload: CheckedWorkload, answer: BurstCheckAnswer, at: datetime) -> Json:
    """Return the check in a Workload's status with Evenkeel's answer."""
    is_same_state = check.get("state") == answer.state
    check_document: Json = {
        "name": check["name"],
        "state": str(answer.state),
        "message": answer.message,
        "lastTransitionTime": check.get("lastTransitionTime") if is_same_state else _time_text(at),
    }
    if answer.node_selector:
        selector = dict(answer.node_selector)
        check_document["podSetUpdates"] = [{"name": name, "nodeSelector": selector} for name in workload.pod_sets]
    if answer.requeue_after_seconds is not None:
        check_document["requeueAfterSeconds"] = answer.requeue_after_seconds
    return {**check_document, **({"retryCount": check["retryCount"]} if check.get("retryCount") is not None else {})}


def _inactive(checks: Iterable[Json]) -> tuple[str, ...]:
    return tuple(
        sorted(
            str(check["metadata"]["name"])
            for check in checks
            if condition_of(check.get("status") or {}, "Active", "True") is None
        )
    )


def _time_text(at: datetime) -> str:
    """Format a time in whole seconds, as Kubernetes writes times of conditions."""
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"
