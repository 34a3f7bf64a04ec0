"""An attempt as Kubernetes objects: the manifests that are sent, and the reading of what comes back. Pure."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeAlias

from evenkeel.domain.nodes import (
    AWAITING_VALIDATION_TAINT,
    INCIDENT_ANNOTATION,
    KARPENTER_LABEL,
    KubernetesNode,
    NodeCondition,
    parse_provider_id,
)
from evenkeel.domain.scheduling.foreign import RESUME_ALLOWED, RESUME_LABEL, Comeback, ForeignPod
from evenkeel.domain.scheduling.jobs import Demand, PodPhase, PodSeen
from evenkeel.domain.scheduling.submission import RESERVED_ENV
from evenkeel.domain.values import rfc3339
from evenkeel.ports import CheckSpec, LaunchSpec

Json: TypeAlias = dict[str, Any]

JOB_LABEL = "evenkeel.io/job"
ATTEMPT_LABEL = "evenkeel.io/attempt"
FLEET_LABEL = "evenkeel.io/fleet"
CHECK_LABEL = "evenkeel.io/check"
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
RENDEZVOUS_PORT = 29500

NVIDIA, NEURON = "nvidia.com/gpu", "aws.amazon.com/neuron"
_SAGEMAKER = "sagemaker.amazonaws.com"
_DETAILS = (f"{_SAGEMAKER}/fault-details", f"{_SAGEMAKER}/fault-detail")
_KUBELETS = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")
"""Conditions of the kubelet itself and of the network plugin: eviction by taint owns what they say."""
_MESSAGE_LIMIT = 500
"""Characters of a condition's message that are kept: it goes into decision records."""
_POOL_LABELS = (f"{_SAGEMAKER}/instance-group-name", KARPENTER_LABEL, "eks.amazonaws.com/nodegroup")
_USER = 1000
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
        "metadata": {"name": name, "namespace": spec.attempt.namespace, "labels": labels(spec, fleet)},
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
    restart loop of its own; there is no TTL, since the end is read before it is cleaned up.
    """
    attempt = spec.attempt
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": attempt.workload_name,
            "namespace": attempt.namespace,
            "labels": labels(spec, fleet),
        },
        "spec": {
            "completionMode": "Indexed",
            "completions": spec.job.nodes,
            "parallelism": spec.job.nodes,
            "backoffLimit": 0,
            "podReplacementPolicy": "Failed",
            "template": {"metadata": {"labels": labels(spec, fleet)}, "spec": _pod(spec, accelerator_resource)},
        },
    }


def _pod(spec: LaunchSpec, accelerator_resource: str) -> Json:
    attempt = spec.attempt
    own = {JOB_LABEL: attempt.job_id, ATTEMPT_LABEL: str(attempt.attempt)}
    count = spec.job.accelerators_per_node
    hosts = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(attempt.node_names)}
    return {
        "restartPolicy": "Never",
        "serviceAccountName": spec.service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "subdomain": attempt.workload_name,
        "terminationGracePeriodSeconds": spec.job.grace_seconds,
        **({"priorityClassName": spec.job.priority_class} if spec.job.priority_class else {}),
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [hosts]}]}
            },
            # One pod a node, also where a pod takes less than a whole node.
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": own}}
                ]
            },
        },
        # The "restricted" pod security standard, in full.
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
                "resources": {"limits": {accelerator_resource: str(count)}} if count else {},
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                "volumeMounts": [
                    {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108 - inside the pod
                    *({"name": name, "mountPath": path} for name, _, path in _claims(spec)),
                ],
                # The last lines of a log that ends in an error say why; Kubernetes then keeps them with the pod.
                "terminationMessagePolicy": "FallbackToLogsOnError",
            }
        ],
    }


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
        "WORLD_SIZE": str(spec.job.nodes),
        "MASTER_ADDR": f"{name}-0.{name}",
        "MASTER_PORT": str(RENDEZVOUS_PORT),
    }
    told = {key: value for key, value in spec.job.env.items() if key not in RESERVED_ENV}
    return [
        *({"name": key, "value": value} for key, value in {**told, **ours}.items()),
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
    doubt = terms.distrust
    return {
        **({"EVENKEEL_DISTRUST_AFTER": rfc3339(doubt.after)} if doubt and doubt.after else {}),
        **({"EVENKEEL_DISTRUST_THROUGH": str(doubt.through_attempt)} if doubt else {}),
        **({"EVENKEEL_DISTRUST_DEMAND": doubt.demand} if doubt and doubt.demand is not Demand.CONVENTION else {}),
        **({"EVENKEEL_ACCEPT_CONVENTION": "1"} if terms.accepts_convention else {}),
        **({"EVENKEEL_START_OVER": "1"} if terms.may_start_over else {}),
    }


# ---------------------------------------------------------------- reading


def is_ours(item: Mapping[str, Any], job_id: str, attempt: int, fleet: str) -> bool:
    """Whether an object carries the labels of this attempt."""
    found = item["metadata"].get("labels") or {}
    return (found.get(JOB_LABEL), found.get(ATTEMPT_LABEL), found.get(FLEET_LABEL)) == (job_id, str(attempt), fleet)


def attempt_of(item: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return job id and attempt from an object's labels; None where they are not as we write them."""
    found = item["metadata"].get("labels") or {}
    job_id, number = found.get(JOB_LABEL, ""), found.get(ATTEMPT_LABEL, "")
    return (job_id, int(number)) if job_id and number.isascii() and number.isdigit() else None


def has_condition(item: Mapping[str, Any], *kinds: str) -> bool:
    """Whether one of these conditions is true."""
    conditions = (item.get("status") or {}).get("conditions") or ()
    return any(one["type"] in kinds and one["status"] == "True" for one in conditions)


def rank_of(pod: Mapping[str, Any]) -> int:
    """Return the completion index; ranks of pods that have none come last."""
    metadata = pod["metadata"]
    text = (metadata.get("labels") or {}).get(INDEX_LABEL) or (metadata.get("annotations") or {}).get(INDEX_LABEL, "")
    return int(text) if text.isascii() and text.isdigit() else 1_000_000


def read_pod(pod: Mapping[str, Any]) -> PodSeen:
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
    return PodSeen(
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
    resource, count = _accelerators(status.get("allocatable") or {})
    return KubernetesNode(
        cluster=cluster,
        name=metadata["name"],
        instance_id=provider.instance_id if provider else None,
        hyperpod_cluster_id=provider.hyperpod_cluster_id if provider else None,
        created_at=_instant(metadata.get("creationTimestamp")),
        pool=next((found[label] for label in _POOL_LABELS if label in found), ""),
        instance_type=found.get("node.kubernetes.io/instance-type", ""),
        zone=found.get("topology.kubernetes.io/zone", ""),
        boot_id=(status.get("nodeInfo") or {}).get("bootID", ""),
        resource_version=metadata.get("resourceVersion", ""),
        is_ready=is_ready,
        not_ready_since=None if is_ready or not since else datetime.fromisoformat(since),
        is_cordoned=is_cordoned,
        incident_id=notes.get(INCIDENT_ANNOTATION) if is_cordoned else None,
        is_awaiting_validation=any(taint["key"] == AWAITING_VALIDATION_TAINT for taint in taints),
        taints=tuple(f"{taint['key']}={taint.get('value') or ''}:{taint['effect']}" for taint in taints),
        accelerators=count,
        accelerator_resource=resource,
        labels=found,
        fault_details=next((notes[key] for key in _DETAILS if notes.get(key)), ""),
        conditions=tuple(
            NodeCondition(
                type=one["type"],
                status=one["status"],
                reason=one.get("reason") or "",
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
    """Whether a pod belongs to a workload at all: those of a DaemonSet, and static ones, belong to their node."""
    return owner_of(pod)[0] not in ("DaemonSet", "Node")


def read_foreign(pod: Mapping[str, Any], jobs: Mapping[tuple[str, str], Mapping[str, Any]]) -> ForeignPod:
    """Reduce a pod that is not ours to what decisions rest on.

    Source: JobSet (and with it Kubeflow's TrainJob) names itself in a label of its pods, whose controller is a Job.

    Args:
        pod: The pod.
        jobs: The Jobs of its cluster, by namespace and name.
    """
    metadata = pod["metadata"]
    found, notes = metadata.get("labels") or {}, metadata.get("annotations") or {}
    kind, name = owner_of(pod)
    restarts = kind not in ("", "Job") or _job_restarts(jobs.get((metadata["namespace"], name)))
    if _JOBSET_LABEL in found:
        kind, name, restarts = "JobSet", found[_JOBSET_LABEL], True
    comeback = Comeback.BY_OWNER if restarts else Comeback.NEVER
    if kind == "HyperPodPyTorchJob" or notes.get(f"{_SAGEMAKER}/enable-job-auto-resume") == "true":
        comeback = Comeback.BY_HYPERPOD
    return ForeignPod(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        node_name=(pod.get("spec") or {}).get("nodeName") or "",
        accelerators=accelerators_requested(pod),
        kind=kind,
        workload=name or metadata["name"],
        comeback=comeback,
        may_move=found.get(RESUME_LABEL) == RESUME_ALLOWED,
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
            return resource, int(quantities[resource])
    return "", 0


def _condition(status: Mapping[str, Any], kind: str, value: str) -> Mapping[str, Any] | None:
    conditions = status.get("conditions") or ()
    return next((one for one in conditions if one["type"] == kind and one["status"] == value), None)
