"""Kubernetes objects of an attempt: build the manifests, and parse the objects that the API server returns. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, TypeAlias

from evenkeel.domain.capacity.instance_types import EFA
from evenkeel.domain.capacity.pool_choices import Effect, Operator, Toleration
from evenkeel.domain.external.kueue_status import KueueCheck, KueueCondition, KueueStatus
from evenkeel.domain.external.unmanaged_workloads import (
    RESUME_ALLOWED,
    RESUME_LABEL,
    ManagedKind,
    OwnershipClaim,
    PodRecreation,
    UnmanagedPod,
)
from evenkeel.domain.jobs.attempt import Attempt, ObservedPod, ObservedWorkload, PodPhase
from evenkeel.domain.jobs.job import CheckpointRequirement
from evenkeel.domain.jobs.validation import RESERVED_ENV
from evenkeel.domain.kueue.quantities import amount
from evenkeel.domain.kueue.quantities import text as quantity_text
from evenkeel.domain.nodes import (
    AWAITING_VALIDATION_TAINT,
    INCIDENT_ANNOTATION,
    KARPENTER_LABEL,
    KubernetesNode,
    NodeCondition,
    parse_provider_id,
)
from evenkeel.domain.resources import NONE, Resources
from evenkeel.domain.values import rfc3339
from evenkeel.ports import CapacitySpec, CheckSpec, KubernetesPermission, LaunchSpec, LogTail

Json: TypeAlias = dict[str, Any]

JOB_LABEL = "evenkeel.io/job"
ATTEMPT_LABEL = "evenkeel.io/attempt"
FLEET_LABEL = "evenkeel.io/fleet"
CHECK_LABEL = "evenkeel.io/check"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""Label of a Job that Kueue admits. Only the Job has it, because Kueue admits the Job and not each pod.
Source: Kueue's `pkg/controller/constants`."""
KUEUE_PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
KUEUE_JOB_LABEL = "kueue.x-k8s.io/job-uid"
"""Label of a Workload: the UID of its Job."""
RENTAL_LABEL = "evenkeel.io/rental"
DECISION_NOTE = "evenkeel.io/decision"
"""Annotation: the decision that admitted the attempt. It identifies a Job until the Job's UID is recorded."""
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
RENDEZVOUS_PORT = 29500

_FAILED = ("Failed", "FailureTarget")
_DISRUPTED = {"type": "DisruptionTarget", "status": "True"}
"""Condition that Kubernetes sets on a pod that ends because of its node or of another pod."""
_DO_NOT_DISRUPT = {"karpenter.sh/do-not-disrupt": "true"}
"""Karpenter does not terminate the node of such a pod to save cost, or because of the node's age."""
NVIDIA, NEURON = "nvidia.com/gpu", "aws.amazon.com/neuron"
_HUGE_PAGES = "hugepages-2Mi"
_MIB = 2**20
_SAGEMAKER = "sagemaker.amazonaws.com"
_DETAILS = (f"{_SAGEMAKER}/fault-details", f"{_SAGEMAKER}/fault-detail")
_KUBELETS = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")
"""Conditions of the kubelet itself and of the network plugin. Kubernetes handles them with taints."""
_NAME_LIMIT = 128
"""Maximum characters of a name from a kubelet, an agent or an annotation. The API server does not limit these."""
_MESSAGE_LIMIT = 500
"""Maximum characters of a condition's message, because decision records contain it."""
_POOL_LABELS = (f"{_SAGEMAKER}/instance-group-name", KARPENTER_LABEL, "eks.amazonaws.com/nodegroup")
_HOSTNAME = "kubernetes.io/hostname"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_TYPE_LABEL = "node.kubernetes.io/instance-type"
_USER = 1000
_MIRROR = "kubernetes.io/config.mirror"
_JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
_BACKOFF_LIMIT = 6
"""Default of Kubernetes."""


def labels(spec: LaunchSpec, fleet: str) -> dict[str, str]:
    """Return the labels of an attempt's objects. Evenkeel's labels override those of the submission."""
    return {
        **spec.job.labels,
        "app.kubernetes.io/managed-by": "evenkeel",
        JOB_LABEL: spec.attempt.job_id,
        ATTEMPT_LABEL: str(spec.attempt.attempt),
        FLEET_LABEL: fleet,
    }


def service(spec: LaunchSpec, fleet: str) -> Json:
    """Return the headless Service of an attempt, which gives each rank a DNS name.

    Names of pods that are not ready are published too, because ranks contact rank 0 before they are ready.
    """
    name = spec.attempt.workload_name
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name,
            "namespace": spec.attempt.namespace,
            "labels": labels(spec, fleet),
            "annotations": {DECISION_NOTE: spec.attempt.decision_id},
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {JOB_LABEL: spec.attempt.job_id, ATTEMPT_LABEL: str(spec.attempt.attempt)},
            "ports": [{"name": "rendezvous", "port": RENDEZVOUS_PORT}],
        },
    }


def job(spec: LaunchSpec, fleet: str, accelerator_resource: str) -> Json:
    """Return the Indexed Job of an attempt.

    `backoffLimit: 0`, `restartPolicy: Never` and `podReplacementPolicy: Failed` prevent restarts by the Job controller.
    The Job has no TTL, so that Evenkeel can read its end before it deletes the Job. A Job for Kueue is created
    suspended, so that no pod runs before Kueue admits it.
    """
    attempt = spec.attempt
    kueue_labels = {QUEUE_LABEL: attempt.local_queue} if attempt.local_queue else {}
    if kueue_labels and spec.job.priority_class:
        kueue_labels[KUEUE_PRIORITY_LABEL] = spec.job.priority_class
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": attempt.workload_name,
            "namespace": attempt.namespace,
            "labels": {**labels(spec, fleet), **kueue_labels},
            "annotations": {DECISION_NOTE: attempt.decision_id},
        },
        "spec": {
            **({"suspend": True} if attempt.local_queue else {}),
            "completionMode": "Indexed",
            "completions": spec.attempt.ranks,
            "parallelism": spec.attempt.ranks,
            "backoffLimit": 0,
            "podReplacementPolicy": "Failed",
            # An evicted pod disappears once its Job has counted it, and the other ranks then fail. With this rule, the
            # condition of the Job still shows the disruption as the cause.
            "podFailurePolicy": {"rules": [{"action": "FailJob", "onPodConditions": [_DISRUPTED]}]},
            "template": {
                "metadata": {
                    "labels": labels(spec, fleet),
                    "annotations": {**_DO_NOT_DISRUPT, DECISION_NOTE: attempt.decision_id},
                },
                "spec": _pod(spec, accelerator_resource),
            },
        },
    }


def _pod(spec: LaunchSpec, accelerator_resource: str) -> Json:
    attempt = spec.attempt
    own_labels = {JOB_LABEL: attempt.job_id, ATTEMPT_LABEL: str(attempt.attempt)}
    node_terms = [{"matchExpressions": terms}] if (terms := _placement(spec)) else []
    is_kueue_job = bool(attempt.local_queue)
    return {
        "restartPolicy": "Never",
        "serviceAccountName": spec.service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "subdomain": attempt.workload_name,
        "terminationGracePeriodSeconds": spec.job.grace_seconds,
        **({"priorityClassName": spec.job.priority_class} if spec.job.priority_class and not is_kueue_job else {}),
        **({"tolerations": [each.to_pod() for each in spec.job.tolerations]} if spec.job.tolerations else {}),
        "affinity": {
            **({"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": node_terms}}} if node_terms else {}),
            # One pod per node, even if a pod needs less than a whole node.
            "podAntiAffinity": _one_per_node(own_labels),
        },
        # The whole pod security standard "restricted". With EFA also IPC_LOCK, which only "privileged" allows.
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumes": [
            # Collectives and data loaders share memory between processes. The default of 64 MiB is too small.
            {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
            *({"name": name, "persistentVolumeClaim": {"claimName": claim}} for name, claim, _ in _claims(spec)),
        ],
        "containers": [_trainer(spec, accelerator_resource)],
    }


def _one_per_node(own_labels: Mapping[str, str]) -> Json:
    """Return the rule that keeps two pods with these labels off one node."""
    return {_REQUIRED: [{"topologyKey": _HOSTNAME, "labelSelector": {"matchLabels": dict(own_labels)}}]}


def _trainer(spec: LaunchSpec, accelerator_resource: str) -> Json:
    """Return the container of a rank."""
    return {
        "name": "trainer",
        "image": spec.job.image,
        "command": list(spec.job.command),
        **({"args": list(spec.job.args)} if spec.job.args else {}),
        "env": _environment(spec),
        "ports": [{"name": "rendezvous", "containerPort": RENDEZVOUS_PORT}],
        "resources": _resources(spec, accelerator_resource),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            # EFA locks the memory that it reads and writes.
            "capabilities": {"drop": ["ALL"], **({"add": ["IPC_LOCK"]} if spec.network.interfaces else {})},
        },
        "volumeMounts": [
            {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108 - inside the pod
            *({"name": name, "mountPath": path} for name, _, path in _claims(spec)),
        ],
        # After an error, Kubernetes stores the last log lines with the pod.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _resources(spec: LaunchSpec, accelerator_resource: str) -> Json:
    """Return the resources of one pod: accelerators, CPU and memory, and with EFA also interfaces and huge pages.

    CPU and memory are requests without limits: a pod may use what is idle on its node.
    """
    wanted, network = spec.attempt.per_node, spec.network
    count = spec.job.accelerators_per_node
    limits = {
        **({accelerator_resource: str(count)} if count else {}),
        **({EFA: str(network.interfaces)} if network.interfaces else {}),
        **({_HUGE_PAGES: f"{network.huge_pages_mib}Mi"} if network.huge_pages_mib else {}),
    }
    requests = {
        **({"cpu": quantity_text("cpu", wanted.cpu_millis)} if wanted.cpu_millis else {}),
        **({"memory": f"{wanted.memory_mib}Mi"} if wanted.memory_mib else {}),
    }
    if network.huge_pages_mib and not requests:
        # Kubernetes accepts huge pages only for a container that also requests memory or CPU.
        requests = {"cpu": "1"}
    return {**({"limits": limits} if limits else {}), **({"requests": requests} if requests else {})}


def _placement(spec: LaunchSpec) -> list[Json]:
    """Return the node affinity terms of the pods: the attempt's nodes; for Kueue the allowed types and avoided nodes.

    Kueue's flavors add their labels as node selectors. Of these terms, Kueue considers only keys of its flavors.
    """
    if not spec.attempt.local_queue:
        return [{"key": _HOSTNAME, "operator": "In", "values": list(spec.attempt.node_names)}]
    types = {"key": _TYPE_LABEL, "operator": "In", "values": list(spec.job.instance_types)}
    avoided = {"key": _HOSTNAME, "operator": "NotIn", "values": list(spec.avoid)}
    return [*([types] if spec.job.instance_types else []), *([avoided] if spec.avoid else [])]


def check_job(spec: CheckSpec, fleet: str) -> Json:
    """Return the test job of one node. It tolerates every taint, because it tests a node that is out of service.

    Evenkeel reads its end while it waits for the validation. Kubernetes deletes the job after an hour.
    """
    own_labels = {"app.kubernetes.io/managed-by": "evenkeel", FLEET_LABEL: fleet, CHECK_LABEL: spec.name}
    node_term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [spec.node_name]}]}
    limits = {spec.accelerator_resource: str(spec.accelerators)} if spec.accelerators else {}
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "tolerations": [{"operator": "Exists"}],
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [node_term]}}
        },
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": "check",
                "image": spec.image,
                **({"command": list(spec.command)} if spec.command else {}),
                "resources": {"limits": limits} if limits else {},
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                "terminationMessagePolicy": "FallbackToLogsOnError",
            }
        ],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": spec.name, "namespace": spec.namespace, "labels": own_labels},
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": spec.deadline_seconds,
            "ttlSecondsAfterFinished": 3600,
            "template": {"metadata": {"labels": own_labels}, "spec": pod},
        },
    }


def access_review(right: KubernetesPermission) -> Json:
    """Return a review of one of the caller's own rights. The API server answers it and does not store it."""
    resource, _, subresource = right.resource.partition("/")
    attributes = {"verb": right.verb, "group": right.group, "resource": resource, "namespace": right.namespace}
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {**attributes, **({"subresource": subresource} if subresource else {})}},
    }


def capacity_job(spec: CapacitySpec, fleet: str, taints: Iterable[Mapping[str, Any]] = ()) -> Json:
    """Return the Job of a rental's capacity pods. Each pod takes all accelerators of one node and does nothing.

    Karpenter launches a node for each pod, and does not terminate the node while the pod exists.

    Args:
        spec: The rental.
        fleet: Its fleet.
        taints: Taints of the pool's nodes. The pods tolerate no others. Otherwise they could start on cordoned nodes,
            or on nodes of another rental that ends, and Karpenter would launch no new node.
    """
    tolerated = dict.fromkeys(
        [(AWAITING_VALIDATION_TAINT, "NoSchedule"), *((each["key"], each["effect"]) for each in taints)]
    )
    own_labels = {"app.kubernetes.io/managed-by": "evenkeel", FLEET_LABEL: fleet, RENTAL_LABEL: spec.name}
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        "nodeSelector": {KARPENTER_LABEL: spec.pool},
        "tolerations": [{"key": key, "operator": "Exists", "effect": effect} for key, effect in tolerated],
        "affinity": {"podAntiAffinity": _one_per_node({RENTAL_LABEL: spec.name})},
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": "capacity",
                "image": spec.image,
                "resources": {
                    "limits": {
                        spec.accelerator_resource: str(spec.accelerators),
                        **({EFA: str(spec.efa)} if spec.efa else {}),
                    }
                },
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            }
        ],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": spec.name, "namespace": spec.namespace, "labels": own_labels},
        "spec": {
            "completionMode": "Indexed",
            "completions": spec.nodes,
            "parallelism": spec.nodes,
            "backoffLimit": 6,
            # If a node ends, its pod ends too. Such ends do not count, so the Job always creates another pod.
            "podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": [_DISRUPTED]}]},
            "template": {"metadata": {"labels": own_labels, "annotations": _DO_NOT_DISRUPT}, "spec": pod},
        },
    }


def _claims(spec: LaunchSpec) -> list[tuple[str, str, str]]:
    """Return volume, claim and mount path of the storage of checkpoints: `file:///fsx/llama/7b` is on `/fsx`."""
    claim = spec.job.checkpoint_claim
    first = spec.job.checkpoint_uri.removeprefix("file:///").partition("/")[0]
    return [("checkpoints", claim, f"/{first}")] if claim else []


def _environment(spec: LaunchSpec) -> list[Json]:
    """Return the environment of the training contract. Kubernetes itself adds the rank as JOB_COMPLETION_INDEX."""
    attempt, name = spec.attempt, spec.attempt.workload_name
    own = {
        "EVENKEEL_JOB_ID": attempt.job_id,
        "EVENKEEL_ATTEMPT": str(attempt.attempt),
        "EVENKEEL_CHECKPOINT_URI": spec.job.checkpoint_uri,
        **_resume(spec),
        "WORLD_SIZE": str(spec.attempt.ranks),
        "MASTER_ADDR": f"{name}-0.{name}",
        "MASTER_PORT": str(RENDEZVOUS_PORT),
    }
    submitted = {key: value for key, value in spec.job.env.items() if key not in RESERVED_ENV}
    return [
        *({"name": key, "value": value} for key, value in {**submitted, **own}.items()),
        *(
            {"name": name, "valueFrom": {"secretKeyRef": {"name": source.secret, "key": source.key}}}
            for name, source in spec.job.secret_env.items()
            if name not in RESERVED_ENV
        ),
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]


def _resume(spec: LaunchSpec) -> dict[str, str]:
    """Return the variables for the resume point, or those for rank 0 to choose it."""
    terms = spec.terms
    if terms is None:
        return {"EVENKEEL_RESUME_FROM": spec.resume_from}
    distrust, damaged = terms.distrust, ",".join(f"{each.attempt}/{each.step}" for each in terms.damaged)
    return {
        **({"EVENKEEL_DISTRUST_AFTER": rfc3339(distrust.after)} if distrust and distrust.after else {}),
        **({"EVENKEEL_DISTRUST_THROUGH": str(distrust.through_attempt)} if distrust else {}),
        **(
            {"EVENKEEL_DISTRUST_DEMAND": distrust.demand}
            if distrust and distrust.demand is not CheckpointRequirement.CONVENTION
            else {}
        ),
        **({"EVENKEEL_ACCEPT_CONVENTION": "1"} if terms.accepts_convention else {}),
        **({"EVENKEEL_START_OVER": "1"} if terms.may_start_over else {}),
        **({"EVENKEEL_DAMAGED_CHECKPOINTS": damaged} if damaged else {}),
    }


# ---------------------------------------------------------------- parsing


def is_queued_in_kueue(job: Mapping[str, Any]) -> bool:
    """Whether Kueue admits a Job."""
    return QUEUE_LABEL in (job["metadata"].get("labels") or {})


def owner_of_workload(workload: Mapping[str, Any]) -> tuple[str, str]:
    """Return namespace and UID of the Job that controls a Workload of Kueue; the UID is empty if no Job does."""
    return (str(workload["metadata"].get("namespace", "")), controlling_job(workload)[1])


def read_kueue(workload: Mapping[str, Any], position: int | None = None) -> KueueStatus:
    """Parse the status of a Workload of Kueue.

    Source: `apis/kueue/v1beta2/workload_types.go`. v1beta1 misspells the field of the past execution time.
    """
    spec, status = workload.get("spec") or {}, workload.get("status") or {}
    admission = status.get("admission") or {}
    assigned = admission.get("podSetAssignments") or ()
    flavors = (str(flavor) for each in assigned for flavor in (each.get("flavors") or {}).values())
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
                message=(item.get("message") or "")[:_MESSAGE_LIMIT],
                changed_at=_instant(item.get("lastTransitionTime")),
            )
            for item in status.get("conditions") or ()
        ),
        checks=tuple(
            KueueCheck(name=item["name"], state=item["state"], message=(item.get("message") or "")[:_MESSAGE_LIMIT])
            for item in status.get("admissionChecks") or ()
        ),
        was_admitted=any(status.get(name) is not None for name in past),
        requeue_at=_instant((status.get("requeueState") or {}).get("requeueAt")),
        position=position,
    )


def read_queue(listed: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], KueueStatus]:
    """Return the status of Kueue's Workloads, by namespace and UID of their Jobs. A waiting one has its position."""
    found = {job: (each, read_kueue(each)) for each in listed if (job := owner_of_workload(each))[1]}
    lengths: Counter[tuple[str, str]] = Counter()
    positions: dict[tuple[str, str], int] = {}
    for uid, (each, status) in sorted(found.items(), key=lambda item: _queue_order(*item[1])):
        if status.is_pending and status.is_active:
            queue = (each["metadata"]["namespace"], status.queue)
            lengths[queue] += 1
            positions[uid] = lengths[queue]
    return {uid: status.but(position=positions.get(uid)) for uid, (_, status) in found.items()}


def _queue_order(workload: Mapping[str, Any], kueue: KueueStatus) -> tuple[int, str, str]:
    """Return the sort key of Kueue's queues: priority, then age. Some evictions count as a new start of the age."""
    priority = int((workload.get("spec") or {}).get("priority") or 0)
    evicted = kueue.condition("Evicted")
    since = str(workload["metadata"].get("creationTimestamp") or "")
    if evicted and evicted.is_true and evicted.reason in ("PodsReadyTimeout", "AdmissionCheck") and evicted.changed_at:
        since = rfc3339(evicted.changed_at)
    return (-priority, since, str(workload["metadata"]["name"]))


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
        if name and job["metadata"]["name"] == _workload_name(*name):
            found[(job["metadata"]["namespace"], *name, job["metadata"]["uid"])] = job
    for pod in pods:
        name, (controller, uid) = attempt_of(pod), controlling_job(pod)
        if name and uid and controller == _workload_name(*name):
            members.setdefault((pod["metadata"]["namespace"], *name, uid), []).append(pod)
    return tuple(
        _workload(group, found.get(group), members.get(group, []), kueue.get((group[0], group[3])))
        for group in sorted({*found, *members})
    )


_Group: TypeAlias = tuple[str, str, int, str]
"""Namespace, job id and attempt number from the labels, and the UID of the Kubernetes Job."""


def _workload_name(job_id: str, attempt: int) -> str:
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


def has_condition(item: Mapping[str, Any], *kinds: str) -> bool:
    """Whether any of these conditions is true."""
    conditions = (item.get("status") or {}).get("conditions") or ()
    return any(each["type"] in kinds and each["status"] == "True" for each in conditions)


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
    disruption = _condition(status, "DisruptionTarget", "True")
    unscheduled = _condition(status, "PodScheduled", "False")
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


def read_node(cluster: str, node: Mapping[str, Any]) -> KubernetesNode:
    """Parse a node object."""
    metadata, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
    found, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    taints = spec.get("taints") or ()
    provider = parse_provider_id(spec.get("providerID") or "")
    ready = next((condition for condition in status.get("conditions") or () if condition["type"] == "Ready"), None)
    is_ready = ready is not None and ready["status"] == "True"
    since = (ready or {}).get("lastTransitionTime") or metadata.get("creationTimestamp")
    is_cordoned = bool(spec.get("unschedulable"))
    allocatable = status.get("allocatable") or {}
    resource, count = _accelerators(allocatable)
    return KubernetesNode(
        cluster=cluster,
        name=metadata["name"],
        instance_id=provider.instance_id if provider else None,
        hyperpod_cluster_id=provider.hyperpod_cluster_id if provider else None,
        created_at=_instant(metadata.get("creationTimestamp")),
        pool=next((found[label] for label in _POOL_LABELS if label in found), ""),
        instance_type=found.get("node.kubernetes.io/instance-type", ""),
        zone=found.get("topology.kubernetes.io/zone", ""),
        boot_id=(status.get("nodeInfo") or {}).get("bootID", "")[:_NAME_LIMIT],
        resource_version=metadata.get("resourceVersion", ""),
        is_ready=is_ready,
        not_ready_since=None if is_ready or not since else datetime.fromisoformat(since),
        is_cordoned=is_cordoned,
        incident_id=annotations[INCIDENT_ANNOTATION][:_NAME_LIMIT]
        if is_cordoned and INCIDENT_ANNOTATION in annotations
        else None,
        is_awaiting_validation=any(taint["key"] == AWAITING_VALIDATION_TAINT for taint in taints),
        taints=tuple(f"{taint['key']}={taint.get('value') or ''}:{taint['effect']}" for taint in taints),
        accelerators=count,
        accelerator_resource=resource,
        cpu_millis=_parse_quantity("cpu", allocatable.get("cpu", 0)),
        memory_mib=_parse_quantity("memory", allocatable.get("memory", 0)) // _MIB,
        efa=_parse_quantity(EFA, allocatable.get(EFA, 0)),
        huge_pages_mib=_parse_quantity(_HUGE_PAGES, allocatable.get(_HUGE_PAGES, 0)) // _MIB,
        labels=found,
        fault_details=next((annotations[key] for key in _DETAILS if annotations.get(key)), ""),
        conditions=tuple(
            NodeCondition(
                type=condition["type"],
                status=condition["status"],
                reason=(condition.get("reason") or "")[:_NAME_LIMIT],
                message=(condition.get("message") or "")[:_MESSAGE_LIMIT],
                changed_at=_instant(condition.get("lastTransitionTime")),
            )
            for condition in status.get("conditions") or ()
            if condition["type"] not in _KUBELETS
        ),
    )


def _instant(text: str | None) -> datetime | None:
    """Parse a time from an agent; None if it is not valid. One bad time must not hide the whole node."""
    try:
        at = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return at if at.tzinfo else None


def owner_of(item: Mapping[str, Any]) -> tuple[str, str]:
    """Return kind and name of an object's controller; empty if it has none."""
    owners = item["metadata"].get("ownerReferences") or ()
    return next(((str(each["kind"]), str(each["name"])) for each in owners if each.get("controller")), ("", ""))


def is_movable_kind(pod: Mapping[str, Any]) -> bool:
    """Whether a pod belongs to a workload. Pods of a DaemonSet and static pods belong to their node instead.

    A static pod is recognised by its mirror annotation, which only a kubelet may set. Any user can write a Node into
    `ownerReferences`.
    """
    kind = owner_of(pod)[0]
    return kind != "DaemonSet" and not (kind == "Node" and _MIRROR in (pod["metadata"].get("annotations") or {}))


def claim_of(pod: Mapping[str, Any], fleet: str) -> OwnershipClaim | None:
    """Return the owner within Evenkeel that a pod's labels claim; None if they claim none."""
    found = pod["metadata"].get("labels") or {}
    if found.get(FLEET_LABEL) != fleet:
        return None
    controller, uid = controlling_job(pod)
    claim: Json = {"controller": controller, "controller_uid": uid, "decision_id": decision_of(pod)}
    if name := attempt_of(pod):
        job_id, attempt = name
        return OwnershipClaim(
            kind=ManagedKind.ATTEMPT, name=_workload_name(*name), job_id=job_id, attempt=attempt, **claim
        )
    for label, kind in ((RENTAL_LABEL, ManagedKind.RENTAL), (CHECK_LABEL, ManagedKind.CHECK)):
        if found.get(label):
            return OwnershipClaim(kind=kind, name=found[label], **claim)
    return None


def trim_unmanaged_pod(pod: Json) -> Json | None:
    """Reduce a pod to the fields that `read_unmanaged_pod` needs; None if it belongs to no workload."""
    if not is_movable_kind(pod):
        return None
    source_metadata, spec = pod["metadata"], pod.get("spec") or {}
    metadata = ("namespace", "name", "uid", "labels", "annotations", "ownerReferences", "creationTimestamp")
    return {
        "metadata": {name: source_metadata[name] for name in metadata if name in source_metadata},
        "spec": {
            **{name: spec[name] for name in ("nodeName", "tolerations", "nodeSelector") if name in spec},
            **_pod_requests(spec),
        },
    }


def trim_placed_pod(pod: Json) -> Json | None:
    """Reduce a pod to its node and its resources; None if it is on no node."""
    spec = pod.get("spec") or {}
    if not spec.get("nodeName"):
        return None
    metadata = {name: pod["metadata"][name] for name in ("namespace", "name")}
    return {"metadata": metadata, "spec": {"nodeName": spec["nodeName"], **_pod_requests(spec)}}


def _pod_requests(spec: Mapping[str, Any]) -> Json:
    containers = {
        kind: [{name: each[name] for name in ("resources", "restartPolicy") if name in each} for each in spec[kind]]
        for kind in ("containers", "initContainers")
        if spec.get(kind)
    }
    return {**containers, **({"overhead": spec["overhead"]} if spec.get("overhead") else {})}


def read_unmanaged_pod(
    pod: Mapping[str, Any], jobs: Mapping[tuple[str, str], Mapping[str, Any]], fleet: str
) -> UnmanagedPod:
    """Parse a pod that may be outside Evenkeel.

    Source: pods of a JobSet, and so of Kubeflow's TrainJob, have a Job as controller and name the JobSet in a label.

    Args:
        pod: The pod.
        jobs: The Jobs of its cluster, by namespace and name.
        fleet: Name of this fleet. Labels of other fleets are ignored.
    """
    metadata = pod["metadata"]
    found, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    kind, name = owner_of(pod)
    restarts = kind not in ("", "Job") or _job_restarts(jobs.get((metadata["namespace"], name)))
    if _JOBSET_LABEL in found:
        kind, name, restarts = "JobSet", found[_JOBSET_LABEL], True
    recreation = PodRecreation.BY_OWNER if restarts else PodRecreation.NEVER
    if kind == "HyperPodPyTorchJob" or annotations.get(f"{_SAGEMAKER}/enable-job-auto-resume") == "true":
        recreation = PodRecreation.BY_HYPERPOD
    return UnmanagedPod(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        node_name=(pod.get("spec") or {}).get("nodeName") or "",
        accelerators=resources_requested(pod).accelerators,
        kind=kind,
        workload=name or metadata["name"],
        recreation=recreation,
        may_move=found.get(RESUME_LABEL) == RESUME_ALLOWED,
        created_at=_instant(metadata.get("creationTimestamp")),
        tolerations=_tolerations((pod.get("spec") or {}).get("tolerations") or ()),
        selector=(pod.get("spec") or {}).get("nodeSelector") or {},
        claim=claim_of(pod, fleet),
    )


def _tolerations(tolerations: Iterable[Mapping[str, Any]]) -> tuple[Toleration, ...]:
    """Parse a pod's tolerations. A toleration with an unknown operator or effect is left out."""
    return tuple(
        Toleration(
            key=each.get("key") or "",
            operator=Operator(each.get("operator") or Operator.EQUAL),
            value=each.get("value") or "",
            effect=Effect(each["effect"]) if each.get("effect") else None,
        )
        for each in tolerations
        if (each.get("operator") or Operator.EQUAL) in set(Operator) and (each.get("effect") or None) in {None, *Effect}
    )


def _job_restarts(job: Mapping[str, Any] | None) -> bool:
    """Whether a Job creates another pod after an eviction. Each eviction counts as a failure up to its limit."""
    if job is None:
        return False
    limit = (job.get("spec") or {}).get("backoffLimit", _BACKOFF_LIMIT)
    return int((job.get("status") or {}).get("failed") or 0) < int(limit)


def resources_requested(pod: Mapping[str, Any]) -> Resources:
    """Return what the scheduler reserves for a pod.

    Source: https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#resource-sharing-within-containers.
    Containers and sidecars run side by side; other init containers run alone, one after the other, before them.
    """
    spec = pod.get("spec") or {}
    sidecars, largest = NONE, NONE
    for container in spec.get("initContainers") or ():
        amounts = _amounts_requested(container)
        if container.get("restartPolicy") == "Always":
            sidecars += amounts
        else:
            largest = largest.at_least(sidecars + amounts)
    total = sidecars
    for container in spec.get("containers") or ():
        total += _amounts_requested(container)
    return total.at_least(largest) + _amounts(spec.get("overhead") or {})


def _amounts_requested(container: Mapping[str, Any]) -> Resources:
    """Return the requests of a container. A resource with a limit alone is requested up to that limit."""
    resources = container.get("resources") or {}
    return _amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _amounts(quantities: Mapping[str, Any]) -> Resources:
    return Resources(
        accelerators=_accelerators(quantities)[1],
        cpu_millis=_parse_quantity("cpu", quantities.get("cpu", 0)),
        memory_mib=-(-_parse_quantity("memory", quantities.get("memory", 0)) // _MIB),
    )


def _accelerators(quantities: Mapping[str, Any]) -> tuple[str, int]:
    for resource in (NVIDIA, NEURON):
        if resource in quantities:
            return resource, _parse_quantity(resource, quantities[resource])
    return "", 0


def _parse_quantity(resource: str, quantity: str | float) -> int:
    """Parse a Kubernetes quantity, such as `1k` for 1000. An invalid quantity counts as 0."""
    try:
        return amount(resource, quantity)
    except ValueError:
        return 0


def _condition(status: Mapping[str, Any], kind: str, value: str) -> Mapping[str, Any] | None:
    conditions = status.get("conditions") or ()
    return next((each for each in conditions if each["type"] == kind and each["status"] == value), None)
