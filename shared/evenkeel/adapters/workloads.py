"""An attempt as Kubernetes objects: the manifests that are sent, and the reading of what comes back. Pure."""

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
from evenkeel.domain.nodes import (
    AWAITING_VALIDATION_TAINT,
    INCIDENT_ANNOTATION,
    KARPENTER_LABEL,
    KubernetesNode,
    NodeCondition,
    parse_provider_id,
)
from evenkeel.domain.values import rfc3339
from evenkeel.ports import CapacitySpec, CheckSpec, KubernetesPermission, LaunchSpec, LogTail

Json: TypeAlias = dict[str, Any]

JOB_LABEL = "evenkeel.io/job"
ATTEMPT_LABEL = "evenkeel.io/attempt"
FLEET_LABEL = "evenkeel.io/fleet"
CHECK_LABEL = "evenkeel.io/check"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""Source: Kueue's `pkg/controller/constants`. On the Job alone: what owns its pods is admitted, not each of them."""
KUEUE_PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
KUEUE_JOB_LABEL = "kueue.x-k8s.io/job-uid"
"""On a Workload: the UID of the Job that it was made for."""
RENTAL_LABEL = "evenkeel.io/rental"
DECISION_NOTE = "evenkeel.io/decision"
"""Annotation: the decision that admitted the attempt. It proves whose a Job is until its UID is recorded."""
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
RENDEZVOUS_PORT = 29500

_FAILED = ("Failed", "FailureTarget")
_DISRUPTED = {"type": "DisruptionTarget", "status": "True"}
"""Kubernetes' mark on a pod that is ended for its node's sake, or for another pod's."""
_DO_NOT_DISRUPT = {"karpenter.sh/do-not-disrupt": "true"}
"""Karpenter does not take a node of such a pod to save something, nor because it is old."""
NVIDIA, NEURON = "nvidia.com/gpu", "aws.amazon.com/neuron"
_HUGE_PAGES = "hugepages-2Mi"
_MIB = 2**20
_SAGEMAKER = "sagemaker.amazonaws.com"
_DETAILS = (f"{_SAGEMAKER}/fault-details", f"{_SAGEMAKER}/fault-detail")
_KUBELETS = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")
"""Conditions of the kubelet itself and of the network plugin: eviction by taint owns what they say."""
_NAME_LIMIT = 128
"""Characters of a name that a kubelet, an agent or an annotation gives: the API server limits none of these."""
_MESSAGE_LIMIT = 500
"""Characters of a condition's message that are kept: it goes into decision records."""
_POOL_LABELS = (f"{_SAGEMAKER}/instance-group-name", KARPENTER_LABEL, "eks.amazonaws.com/nodegroup")
_HOSTNAME = "kubernetes.io/hostname"
_TYPE_LABEL = "node.kubernetes.io/instance-type"
_USER = 1000
_MIRROR = "kubernetes.io/config.mirror"
_JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
_BACKOFF_LIMIT = 6
"""Kubernetes' own default."""


def labels(spec: LaunchSpec, fleet: str) -> dict[str, str]:
    """Ours; they win over a researcher's."""
    return {
        **spec.job.labels,
        "app.kubernetes.io/managed-by": "evenkeel",
        JOB_LABEL: spec.attempt.job_id,
        ATTEMPT_LABEL: str(spec.attempt.attempt),
        FLEET_LABEL: fleet,
    }


def service(spec: LaunchSpec, fleet: str) -> Json:
    """The headless Service that gives each rank its name, ready or not: ranks look for rank 0 before they are."""
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
    """The Indexed Job of an attempt.

    `backoffLimit: 0`, `restartPolicy: Never` and `podReplacementPolicy: Failed` keep the Job controller from running a
    restart loop of its own; there is no TTL, since the end is read before it is cleaned up. What goes to Kueue is
    suspended from the start, as its webhook would have it: nothing runs before Kueue has let it in.
    """
    attempt = spec.attempt
    follows = {QUEUE_LABEL: attempt.local_queue} if attempt.local_queue else {}
    if follows and spec.job.priority_class:
        follows[KUEUE_PRIORITY_LABEL] = spec.job.priority_class
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": attempt.workload_name,
            "namespace": attempt.namespace,
            "labels": {**labels(spec, fleet), **follows},
            "annotations": {DECISION_NOTE: attempt.decision_id},
        },
        "spec": {
            **({"suspend": True} if attempt.local_queue else {}),
            "completionMode": "Indexed",
            "completions": spec.attempt.ranks,
            "parallelism": spec.attempt.ranks,
            "backoffLimit": 0,
            "podReplacementPolicy": "Failed",
            # An evicted pod is gone once its Job has counted it, and peers that lost it fail by themselves: the Job's
            # condition is what still says whose doing it was.
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
    own = {JOB_LABEL: attempt.job_id, ATTEMPT_LABEL: str(attempt.attempt)}
    where = _placement(spec)
    is_ranked_by_kueue = bool(attempt.local_queue)
    return {
        "restartPolicy": "Never",
        "serviceAccountName": spec.service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "subdomain": attempt.workload_name,
        "terminationGracePeriodSeconds": spec.job.grace_seconds,
        **(
            {"priorityClassName": spec.job.priority_class} if spec.job.priority_class and not is_ranked_by_kueue else {}
        ),
        **({"tolerations": [each.to_pod() for each in spec.job.tolerations]} if spec.job.tolerations else {}),
        "affinity": {
            **(
                {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [{"matchExpressions": where}]
                        }
                    }
                }
                if where
                else {}
            ),
            # One pod a node, also where a pod takes less than a whole node.
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": own}}
                ]
            },
        },
        # The "restricted" pod security standard, in full; with EFA, IPC_LOCK besides, which only "privileged" allows.
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumes": [
            # Collectives and data loaders share memory between processes; the default of 64 MiB is too small for both.
            {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
            *({"name": name, "persistentVolumeClaim": {"claimName": claim}} for name, claim, _ in _claims(spec)),
        ],
        "containers": [
            {
                "name": "trainer",
                "image": spec.job.image,
                "command": list(spec.job.command),
                **({"args": list(spec.job.args)} if spec.job.args else {}),
                "env": _environment(spec),
                "ports": [{"name": "rendezvous", "containerPort": RENDEZVOUS_PORT}],
                "resources": _resources(spec, accelerator_resource),
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    # EFA pins the memory that it reads and writes.
                    "capabilities": {"drop": ["ALL"], **({"add": ["IPC_LOCK"]} if spec.network.interfaces else {})},
                },
                "volumeMounts": [
                    {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108 - inside the pod
                    *({"name": name, "mountPath": path} for name, _, path in _claims(spec)),
                ],
                # The last lines of a log that ends in an error say why; Kubernetes then keeps them with the pod.
                "terminationMessagePolicy": "FallbackToLogsOnError",
            }
        ],
    }


def _resources(spec: LaunchSpec, accelerator_resource: str) -> Json:
    """Return what one pod asks for: accelerators, and where it uses EFA its interfaces and huge pages."""
    count, network = spec.job.accelerators_per_node, spec.network
    limits = {
        **({accelerator_resource: str(count)} if count else {}),
        **({EFA: str(network.interfaces)} if network.interfaces else {}),
        **({_HUGE_PAGES: f"{network.huge_pages_mib}Mi"} if network.huge_pages_mib else {}),
    }
    # Kubernetes takes huge pages only from containers that request memory or CPU as well.
    return {
        **({"limits": limits} if limits else {}),
        **({"requests": {"cpu": "1"}} if network.huge_pages_mib else {}),
    }


def _placement(spec: LaunchSpec) -> list[Json]:
    """Return on which nodes the pods may be: those of the attempt; where Kueue seats it, of which kind, and not where.

    Kueue's flavors add their labels as node selectors; of what stands here it weighs the keys that its flavors label.
    """
    if not spec.attempt.local_queue:
        return [{"key": _HOSTNAME, "operator": "In", "values": list(spec.attempt.node_names)}]
    types = {"key": _TYPE_LABEL, "operator": "In", "values": list(spec.job.instance_types)}
    avoided = {"key": _HOSTNAME, "operator": "NotIn", "values": list(spec.avoid)}
    return [*([types] if spec.job.instance_types else []), *([avoided] if spec.avoid else [])]


def check_job(spec: CheckSpec, fleet: str) -> Json:
    """The test job of one node. It bears every taint, ours and HyperPod's: it is there to find out about them.

    Its end is read by whoever waits for it; after an hour Kubernetes clears it away.
    """
    mine = {"app.kubernetes.io/managed-by": "evenkeel", FLEET_LABEL: fleet, CHECK_LABEL: spec.name}
    here = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [spec.node_name]}]}
    limits = {spec.accelerator_resource: str(spec.accelerators)} if spec.accelerators else {}
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [here]}}},
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
        "metadata": {"name": spec.name, "namespace": spec.namespace, "labels": mine},
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": spec.deadline_seconds,
            "ttlSecondsAfterFinished": 3600,
            "template": {"metadata": {"labels": mine}, "spec": pod},
        },
    }


def access_review(right: KubernetesPermission) -> Json:
    """The question whether the caller itself has a right. It is answered and not stored."""
    resource, _, subresource = right.resource.partition("/")
    asked = {"verb": right.verb, "group": right.group, "resource": resource, "namespace": right.namespace}
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {**asked, **({"subresource": subresource} if subresource else {})}},
    }


def capacity_job(spec: CapacitySpec, fleet: str, taints: Iterable[Mapping[str, Any]] = ()) -> Json:
    """The capacity pods of a rental: each takes all accelerators of one node of the pool, and does nothing.

    Karpenter launches a node for each, and takes none back while its pod is there.

    Args:
        spec: The rental.
        fleet: Its fleet.
        taints: What the pool gives its nodes. No other is tolerated: nodes of another rental that are about to go, and
            those that are cordoned, would have the pods, and no machine would come.
    """
    borne = dict.fromkeys(
        [(AWAITING_VALIDATION_TAINT, "NoSchedule"), *((each["key"], each["effect"]) for each in taints)]
    )
    mine = {"app.kubernetes.io/managed-by": "evenkeel", FLEET_LABEL: fleet, RENTAL_LABEL: spec.name}
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        "nodeSelector": {KARPENTER_LABEL: spec.pool},
        "tolerations": [{"key": key, "operator": "Exists", "effect": effect} for key, effect in borne],
        "affinity": {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "topologyKey": "kubernetes.io/hostname",
                        "labelSelector": {"matchLabels": {RENTAL_LABEL: spec.name}},
                    }
                ]
            }
        },
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
        "metadata": {"name": spec.name, "namespace": spec.namespace, "labels": mine},
        "spec": {
            "completionMode": "Indexed",
            "completions": spec.nodes,
            "parallelism": spec.nodes,
            "backoffLimit": 6,
            # A node that goes takes its pod along: another one is made, however often that happens.
            "podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": [_DISRUPTED]}]},
            "template": {"metadata": {"labels": mine, "annotations": _DO_NOT_DISRUPT}, "spec": pod},
        },
    }


def _claims(spec: LaunchSpec) -> list[tuple[str, str, str]]:
    """Volume, claim and mount path of the storage that holds the checkpoints: `file:///fsx/llama/7b` is on `/fsx`."""
    claim = spec.job.checkpoint_claim
    first = spec.job.checkpoint_uri.removeprefix("file:///").partition("/")[0]
    return [("checkpoints", claim, f"/{first}")] if claim else []


def _environment(spec: LaunchSpec) -> list[Json]:
    """The training contract. Kubernetes itself adds JOB_COMPLETION_INDEX, the rank, to pods of an Indexed Job."""
    attempt, name = spec.attempt, spec.attempt.workload_name
    ours = {
        "EVENKEEL_JOB_ID": attempt.job_id,
        "EVENKEEL_ATTEMPT": str(attempt.attempt),
        "EVENKEEL_CHECKPOINT_URI": spec.job.checkpoint_uri,
        **_resume(spec),
        "WORLD_SIZE": str(spec.attempt.ranks),
        "MASTER_ADDR": f"{name}-0.{name}",
        "MASTER_PORT": str(RENDEZVOUS_PORT),
    }
    given = {key: value for key, value in spec.job.env.items() if key not in RESERVED_ENV}
    return [
        *({"name": key, "value": value} for key, value in {**given, **ours}.items()),
        *(
            {"name": name, "valueFrom": {"secretKeyRef": {"name": source.secret, "key": source.key}}}
            for name, source in spec.job.secret_env.items()
            if name not in RESERVED_ENV
        ),
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]


def _resume(spec: LaunchSpec) -> dict[str, str]:
    """Where to resume, or, without a word about that, the terms on which rank 0 finds out."""
    terms = spec.terms
    if terms is None:
        return {"EVENKEEL_RESUME_FROM": spec.resume_from}
    doubt, damaged = terms.distrust, ",".join(f"{each.attempt}/{each.step}" for each in terms.damaged)
    return {
        **({"EVENKEEL_DISTRUST_AFTER": rfc3339(doubt.after)} if doubt and doubt.after else {}),
        **({"EVENKEEL_DISTRUST_THROUGH": str(doubt.through_attempt)} if doubt else {}),
        **(
            {"EVENKEEL_DISTRUST_DEMAND": doubt.demand}
            if doubt and doubt.demand is not CheckpointRequirement.CONVENTION
            else {}
        ),
        **({"EVENKEEL_ACCEPT_CONVENTION": "1"} if terms.accepts_convention else {}),
        **({"EVENKEEL_START_OVER": "1"} if terms.may_start_over else {}),
        **({"EVENKEEL_DAMAGED_CHECKPOINTS": damaged} if damaged else {}),
    }


# ---------------------------------------------------------------- reading


def is_queued_in_kueue(job: Mapping[str, Any]) -> bool:
    """Whether a Job is Kueue's to admit."""
    return QUEUE_LABEL in (job["metadata"].get("labels") or {})


def owner_of_workload(workload: Mapping[str, Any]) -> tuple[str, str]:
    """Return namespace and UID of the Job that controls one of Kueue's Workloads; no UID where none does."""
    return (str(workload["metadata"].get("namespace", "")), controlling_job(workload)[1])


def read_kueue(workload: Mapping[str, Any], position: int | None = None) -> KueueStatus:
    """Reduce one of Kueue's Workloads to what is decided and said about it.

    Source: `apis/kueue/v1beta2/workload_types.go`; v1beta1 spells the note of past execution with an x too many.
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
                type=one["type"],
                is_true=one["status"] == "True",
                reason=one.get("reason") or "",
                message=(one.get("message") or "")[:_MESSAGE_LIMIT],
                changed_at=_instant(one.get("lastTransitionTime")),
            )
            for one in status.get("conditions") or ()
        ),
        checks=tuple(
            KueueCheck(name=one["name"], state=one["state"], message=(one.get("message") or "")[:_MESSAGE_LIMIT])
            for one in status.get("admissionChecks") or ()
        ),
        was_admitted=any(status.get(name) is not None for name in past),
        requeue_at=_instant((status.get("requeueState") or {}).get("requeueAt")),
        position=position,
    )


def read_queue(listed: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], KueueStatus]:
    """Return Kueue's Workloads by namespace and UID of their Jobs, with the place of those that wait."""
    found = {job: (each, read_kueue(each)) for each in listed if (job := owner_of_workload(each))[1]}
    ahead: Counter[tuple[str, str]] = Counter()
    places: dict[tuple[str, str], int] = {}
    for uid, (each, seen) in sorted(found.items(), key=lambda one: _queue_order(*one[1])):
        if seen.is_pending and seen.is_active:
            place = (each["metadata"]["namespace"], seen.queue)
            ahead[place] += 1
            places[uid] = ahead[place]
    return {uid: seen.but(position=places.get(uid)) for uid, (_, seen) in found.items()}


def _queue_order(workload: Mapping[str, Any], seen: KueueStatus) -> tuple[int, str, str]:
    """Higher priority first, then as Kueue's queues do: by age, or by the eviction that costs a place."""
    priority = int((workload.get("spec") or {}).get("priority") or 0)
    evicted = seen.condition("Evicted")
    since = str(workload["metadata"].get("creationTimestamp") or "")
    if evicted and evicted.is_true and evicted.reason in ("PodsReadyTimeout", "AdmissionCheck") and evicted.changed_at:
        since = rfc3339(evicted.changed_at)
    return (-priority, since, str(workload["metadata"]["name"]))


def is_launched_by(item: Mapping[str, Any], attempt: Attempt, fleet: str) -> bool:
    """Whether an object of an attempt's namespace and name is what the attempt's launch created."""
    found = item["metadata"].get("labels") or {}
    ours = (attempt.job_id, str(attempt.attempt), fleet)
    has_labels = (found.get(JOB_LABEL), found.get(ATTEMPT_LABEL), found.get(FLEET_LABEL)) == ours
    return has_labels and bool(attempt.decision_id) and decision_of(item) == attempt.decision_id


def decision_of(item: Mapping[str, Any]) -> str:
    """Return the decision that an object says it was created for; empty where it says nothing."""
    return str((item["metadata"].get("annotations") or {}).get(DECISION_NOTE, ""))


def controlling_job(item: Mapping[str, Any]) -> tuple[str, str]:
    """Return name and UID of the Kubernetes Job that controls an object; empty where no Job does."""
    owners = item["metadata"].get("ownerReferences") or ()
    jobs = (one for one in owners if one.get("controller") and one.get("kind") == "Job")
    return next(
        ((str(one["name"]), str(one["uid"])) for one in jobs if str(one.get("apiVersion", "")).startswith("batch/")),
        ("", ""),
    )


def read_workloads(
    jobs: Iterable[Json], pods: Iterable[Json], kueue: Mapping[tuple[str, str], KueueStatus]
) -> tuple[ObservedWorkload, ...]:
    """Group Jobs and pods by the Job that controls them; each group names the attempt that its labels name.

    A Job counts under the name that a launch gives it alone, and a pod under the Job that controls it alone.
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
"""Namespace, job and attempt by the labels, UID of the Kubernetes Job."""


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
    """Return job id and attempt from an object's labels; None where they are not as we write them."""
    found = item["metadata"].get("labels") or {}
    job_id, number = found.get(JOB_LABEL, ""), found.get(ATTEMPT_LABEL, "")
    return (job_id, int(number)) if job_id and number.isascii() and number.isdigit() else None


def has_condition(item: Mapping[str, Any], *kinds: str) -> bool:
    """Whether one of these conditions is true."""
    conditions = (item.get("status") or {}).get("conditions") or ()
    return any(one["type"] in kinds and one["status"] == "True" for one in conditions)


def has_failed(job: Mapping[str, Any]) -> bool:
    """Whether a Job has failed: `FailureTarget` says so at once, `Failed` when no pod of it is left."""
    return has_condition(job, *_FAILED)


def was_disrupted(job: Mapping[str, Any]) -> bool:
    """Whether a Job failed since a pod of it was evicted, or went with its node: its failure policy says so."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    reasons = {one.get("reason") for one in conditions if one["type"] in _FAILED and one["status"] == "True"}
    return "PodFailurePolicy" in reasons


def rank_of(pod: Mapping[str, Any]) -> int:
    """Return the completion index; ranks of pods that have none come last."""
    metadata = pod["metadata"]
    text = (metadata.get("labels") or {}).get(INDEX_LABEL) or (metadata.get("annotations") or {}).get(INDEX_LABEL, "")
    return int(text) if text.isascii() and text.isdigit() else 1_000_000


def log_tail(pod: Mapping[str, Any], *, text: str = "", why: str = "") -> LogTail:
    """Return what was read of a pod's log, with whose and where it is."""
    return LogTail(
        pod_name=pod["metadata"]["name"], node_name=(pod.get("spec") or {}).get("nodeName") or "", text=text, why=why
    )


def read_pod(pod: Mapping[str, Any]) -> ObservedPod:
    """Reduce a pod to what decisions rest on."""
    status = pod.get("status") or {}
    states = [container.get("state") or {} for container in status.get("containerStatuses") or ()]
    ended = next((state["terminated"] for state in states if "terminated" in state), None)
    waiting = next((state["waiting"] for state in states if "waiting" in state), None)
    disruption = _condition(status, "DisruptionTarget", "True")
    unscheduled = _condition(status, "PodScheduled", "False")
    # Most telling first: what Kubernetes did to the pod, then how the process ended, then what it waits for.
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
    """Reduce a node object to what decisions rest on."""
    metadata, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
    found, notes = metadata.get("labels") or {}, metadata.get("annotations") or {}
    taints = spec.get("taints") or ()
    provider = parse_provider_id(spec.get("providerID") or "")
    ready = next((one for one in status.get("conditions") or () if one["type"] == "Ready"), None)
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
        incident_id=notes[INCIDENT_ANNOTATION][:_NAME_LIMIT] if is_cordoned and INCIDENT_ANNOTATION in notes else None,
        is_awaiting_validation=any(taint["key"] == AWAITING_VALIDATION_TAINT for taint in taints),
        taints=tuple(f"{taint['key']}={taint.get('value') or ''}:{taint['effect']}" for taint in taints),
        accelerators=count,
        accelerator_resource=resource,
        efa=_parse_quantity(EFA, allocatable.get(EFA, 0)),
        huge_pages_mib=_parse_quantity(_HUGE_PAGES, allocatable.get(_HUGE_PAGES, 0)) // _MIB,
        labels=found,
        fault_details=next((notes[key] for key in _DETAILS if notes.get(key)), ""),
        conditions=tuple(
            NodeCondition(
                type=one["type"],
                status=one["status"],
                reason=(one.get("reason") or "")[:_NAME_LIMIT],
                message=(one.get("message") or "")[:_MESSAGE_LIMIT],
                changed_at=_instant(one.get("lastTransitionTime")),
            )
            for one in status.get("conditions") or ()
            if one["type"] not in _KUBELETS
        ),
    )


def _instant(text: str | None) -> datetime | None:
    """Read a time that an agent wrote: one that it got wrong must not hide the node."""
    try:
        at = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return at if at.tzinfo else None


def owner_of(item: Mapping[str, Any]) -> tuple[str, str]:
    """Return kind and name of an object's controller; empty where it has none."""
    owners = item["metadata"].get("ownerReferences") or ()
    return next(((str(one["kind"]), str(one["name"])) for one in owners if one.get("controller")), ("", ""))


def is_movable_kind(pod: Mapping[str, Any]) -> bool:
    """Whether a pod belongs to a workload at all: those of a DaemonSet, and static ones, belong to their node.

    Only a kubelet may create a mirror pod; anybody may write a Node into `ownerReferences`.
    """
    kind = owner_of(pod)[0]
    return kind != "DaemonSet" and not (kind == "Node" and _MIRROR in (pod["metadata"].get("annotations") or {}))


def claim_of(pod: Mapping[str, Any], fleet: str) -> OwnershipClaim | None:
    """Return what of Evenkeel's a pod says it belongs to; None where its labels name nothing."""
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
    """Reduce a pod to what `read_unmanaged_pod` looks at; None where it belongs to no workload."""
    if not is_movable_kind(pod):
        return None
    source_metadata, spec = pod["metadata"], pod.get("spec") or {}
    metadata = ("namespace", "name", "uid", "labels", "annotations", "ownerReferences", "creationTimestamp")
    return {
        "metadata": {name: source_metadata[name] for name in metadata if name in source_metadata},
        "spec": {
            **{name: spec[name] for name in ("nodeName", "tolerations", "nodeSelector") if name in spec},
            "containers": _container_requests(spec),
        },
    }


def trim_gpu_pod(pod: Json) -> Json | None:
    """Reduce a pod to which node's accelerators it takes; None where it takes none."""
    spec = pod.get("spec") or {}
    if not spec.get("nodeName") or not accelerators_requested(pod):
        return None
    place = {name: pod["metadata"][name] for name in ("namespace", "name")}
    return {"metadata": place, "spec": {"nodeName": spec["nodeName"], "containers": _container_requests(spec)}}


def _container_requests(spec: Mapping[str, Any]) -> list[Json]:
    return [{"resources": one.get("resources")} for one in spec.get("containers") or ()]


def read_unmanaged_pod(
    pod: Mapping[str, Any], jobs: Mapping[tuple[str, str], Mapping[str, Any]], fleet: str
) -> UnmanagedPod:
    """Reduce a pod to what decisions rest on.

    Source: JobSet (and with it Kubeflow's TrainJob) names itself in a label of its pods, whose controller is a Job.

    Args:
        pod: The pod.
        jobs: The Jobs of its cluster, by namespace and name.
        fleet: The fleet whose labels count.
    """
    metadata = pod["metadata"]
    found, notes = metadata.get("labels") or {}, metadata.get("annotations") or {}
    kind, name = owner_of(pod)
    restarts = kind not in ("", "Job") or _job_restarts(jobs.get((metadata["namespace"], name)))
    if _JOBSET_LABEL in found:
        kind, name, restarts = "JobSet", found[_JOBSET_LABEL], True
    recreation = PodRecreation.BY_OWNER if restarts else PodRecreation.NEVER
    if kind == "HyperPodPyTorchJob" or notes.get(f"{_SAGEMAKER}/enable-job-auto-resume") == "true":
        recreation = PodRecreation.BY_HYPERPOD
    return UnmanagedPod(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        node_name=(pod.get("spec") or {}).get("nodeName") or "",
        accelerators=accelerators_requested(pod),
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
    """Read a pod's tolerations; one of a kind that is not known here tolerates nothing."""
    return tuple(
        Toleration(
            key=one.get("key") or "",
            operator=Operator(one.get("operator") or Operator.EQUAL),
            value=one.get("value") or "",
            effect=Effect(one["effect"]) if one.get("effect") else None,
        )
        for one in tolerations
        if (one.get("operator") or Operator.EQUAL) in set(Operator) and (one.get("effect") or None) in {None, *Effect}
    )


def _job_restarts(job: Mapping[str, Any] | None) -> bool:
    """Whether a Job makes another pod in place of an evicted one: each counts as a failure against its limit."""
    if job is None:
        return False
    limit = (job.get("spec") or {}).get("backoffLimit", _BACKOFF_LIMIT)
    return int((job.get("status") or {}).get("failed") or 0) < int(limit)


def accelerators_requested(pod: Mapping[str, Any]) -> int:
    """Sum what a pod's containers take. Extended resources are never overcommitted: the limit is the request."""
    total = 0
    for container in (pod.get("spec") or {}).get("containers") or ():
        resources = container.get("resources") or {}
        total += _accelerators({**(resources.get("requests") or {}), **(resources.get("limits") or {})})[1]
    return total


def _accelerators(quantities: Mapping[str, Any]) -> tuple[str, int]:
    for resource in (NVIDIA, NEURON):
        if resource in quantities:
            return resource, _parse_quantity(resource, quantities[resource])
    return "", 0


def _parse_quantity(resource: str, quantity: str | float) -> int:
    """Read a quantity as an API server writes it, 1000 as `1k`; what is none counts for nothing."""
    try:
        return amount(resource, quantity)
    except ValueError:
        return 0


def _condition(status: Mapping[str, Any], kind: str, value: str) -> Mapping[str, Any] | None:
    conditions = status.get("conditions") or ()
    return next((one for one in conditions if one["type"] == kind and one["status"] == value), None)
