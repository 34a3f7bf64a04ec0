"""Build the Kubernetes objects of an attempt, a health check and a rental. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from evenkeel.adapters.object_fields import (
    ATTEMPT_LABEL,
    CHECK_LABEL,
    DECISION_NOTE,
    FLEET_LABEL,
    HUGE_PAGES,
    JOB_LABEL,
    KUEUE_PRIORITY_LABEL,
    QUEUE_LABEL,
    RENTAL_LABEL,
    Json,
)
from evenkeel.domain.capacity.instance_types import EFA
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.job import CheckpointRequirement
from evenkeel.domain.jobs.pod_rules import DEFAULT_ID
from evenkeel.domain.jobs.spec import JobSpec
from evenkeel.domain.jobs.validation import RESERVED_ENV
from evenkeel.domain.jobs.volumes import checkpoint_mount
from evenkeel.domain.kueue.quantities import text as quantity_text
from evenkeel.domain.nodes import (
    AWAITING_VALIDATION_TAINT,
    KARPENTER_LABEL,
)
from evenkeel.domain.values import rfc3339
from evenkeel.ports import CapacitySpec, CheckSpec, KubernetesPermission, LaunchSpec

RENDEZVOUS_PORT = 29500
TRAINER_CONTAINER = "trainer"
WORLD_SIZE_KEY = "worldSize"
"""Key of the number of pods in the ConfigMap of an attempt."""
_DISRUPTED = {"type": "DisruptionTarget", "status": "True"}
"""Condition that Kubernetes sets on a pod that ends because of its node or of another pod."""
_DO_NOT_DISRUPT = {"karpenter.sh/do-not-disrupt": "true"}
"""Karpenter does not terminate the node of such a pod to save cost, or because of the node's age."""
_HOSTNAME = "kubernetes.io/hostname"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_TYPE_LABEL = "node.kubernetes.io/instance-type"


def labels(spec: LaunchSpec, fleet: str) -> dict[str, str]:
    """Return the labels of an attempt's objects. Evenkeel's labels override the labels of the submission."""
    return {
        **spec.job_spec.labels,
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
    if kueue_labels and spec.job_spec.priority_class:
        kueue_labels[KUEUE_PRIORITY_LABEL] = spec.job_spec.priority_class
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": attempt.workload_name,
            "namespace": attempt.namespace,
            "labels": {**labels(spec, fleet), **kueue_labels},
            "annotations": {DECISION_NOTE: attempt.decision_id, **_partial_admission(spec)},
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
                    "annotations": {**_DO_NOT_DISRUPT, DECISION_NOTE: attempt.decision_id, **_kueue_topology(spec)},
                },
                "spec": _pod(spec, accelerator_resource),
            },
        },
    }


def size_config_map(attempt: Attempt, fleet: str) -> Json:
    """Return the ConfigMap from which the pods of an attempt read their world size, once Kueue has admitted it.

    Its pods wait for it. It cannot be changed, so all pods read the same number. Kubernetes deletes it with the Job.
    """
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": attempt.workload_name, "uid": attempt.workload_uid}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": attempt.workload_name,
            "namespace": attempt.namespace,
            "labels": {
                "app.kubernetes.io/managed-by": "evenkeel",
                JOB_LABEL: attempt.job_id,
                ATTEMPT_LABEL: str(attempt.attempt),
                FLEET_LABEL: fleet,
            },
            "annotations": {DECISION_NOTE: attempt.decision_id},
            "ownerReferences": [owner],
        },
        "immutable": True,
        "data": {WORLD_SIZE_KEY: str(attempt.ranks)},
    }


def _partial_admission(spec: LaunchSpec) -> dict[str, str]:
    """Return the annotations that let Kueue admit fewer pods, and set `completions` to the number that it admits.

    Source: kubernetes-sigs/kueue, `pkg/controller/jobs/job/job_controller.go`.
    """
    sizes = spec.job_spec.sizes
    if not spec.attempt.requested_size or sizes is None:
        return {}
    return {
        "kueue.x-k8s.io/job-min-parallelism": str(sizes.legal[0]),
        "kueue.x-k8s.io/job-completions-equal-parallelism": "true",
    }


def _pod(spec: LaunchSpec, accelerator_resource: str) -> Json:
    attempt, job_spec = spec.attempt, spec.job_spec
    own_labels = {JOB_LABEL: attempt.job_id, ATTEMPT_LABEL: str(attempt.attempt)}
    node_terms = _node_affinity_terms(spec)
    required_nodes = {_REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": node_terms}]}} if node_terms else {}
    return {
        "restartPolicy": "Never",
        "serviceAccountName": spec.service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "subdomain": attempt.workload_name,
        "terminationGracePeriodSeconds": job_spec.grace_seconds,
        **_without_empty(
            {
                # Kueue has its own label for the class.
                "priorityClassName": "" if attempt.local_queue else job_spec.priority_class,
                "tolerations": [toleration.to_pod() for toleration in job_spec.tolerations],
                "imagePullSecrets": [{"name": name} for name in job_spec.image_pull_secrets],
            }
        ),
        "affinity": {
            **_without_empty({"nodeAffinity": required_nodes}),
            # Each node gets a single pod, even if a pod needs less than a whole node.
            "podAntiAffinity": _one_pod_per_node(own_labels),
        },
        # The whole pod security standard "restricted". Pods with EFA also need IPC_LOCK, which only "privileged"
        # allows.
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": job_spec.run_as_user or DEFAULT_ID,
            "runAsGroup": job_spec.run_as_group or DEFAULT_ID,
            "fsGroup": job_spec.fs_group or DEFAULT_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumes": _volumes(job_spec),
        "containers": [_trainer_container(spec, accelerator_resource)],
    }


def _without_empty(fields: Json) -> Json:
    """Return the fields of an object that have a value."""
    return {name: value for name, value in fields.items() if value}


def _one_pod_per_node(own_labels: Mapping[str, str]) -> Json:
    """Return the rule that keeps two pods with these labels off one node."""
    return {_REQUIRED: [{"topologyKey": _HOSTNAME, "labelSelector": {"matchLabels": dict(own_labels)}}]}


def _trainer_container(spec: LaunchSpec, accelerator_resource: str) -> Json:
    """Return the container of a rank."""
    return {
        "name": TRAINER_CONTAINER,
        "image": spec.job_spec.image,
        "command": list(spec.job_spec.command),
        **_without_empty({"args": list(spec.job_spec.args)}),
        "env": _environment_variables(spec),
        "ports": [{"name": "rendezvous", "containerPort": RENDEZVOUS_PORT}],
        "resources": _resources(spec, accelerator_resource),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            # EFA locks the memory that it reads and writes.
            "capabilities": {"drop": ["ALL"], **({"add": ["IPC_LOCK"]} if spec.network.interfaces else {})},
        },
        "volumeMounts": _volume_mounts(spec.job_spec),
        # After an error, Kubernetes stores the last log lines with the pod.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _resources(spec: LaunchSpec, accelerator_resource: str) -> Json:
    """Return the resources of one pod: accelerators, CPU, memory and huge pages, and with EFA also interfaces.

    CPU and memory are requests without limits: a pod may use idle CPU and memory of its node.
    """
    resources, network = spec.attempt.per_node, spec.network
    count = spec.job_spec.accelerators_per_node
    huge_pages_mib = network.huge_pages_mib + (spec.job_spec.huge_pages_mib_per_node or 0)
    limits = {
        **({accelerator_resource: str(count)} if count else {}),
        **({EFA: str(network.interfaces)} if network.interfaces else {}),
        **({HUGE_PAGES: f"{huge_pages_mib}Mi"} if huge_pages_mib else {}),
    }
    requests = {
        **({"cpu": quantity_text("cpu", resources.cpu_millis)} if resources.cpu_millis else {}),
        **({"memory": f"{resources.memory_mib}Mi"} if resources.memory_mib else {}),
    }
    if huge_pages_mib and not requests:
        # Kubernetes accepts huge pages only for a container that also requests memory or CPU.
        requests = {"cpu": "1"}
    return _without_empty({"limits": limits, "requests": requests})


def _kueue_topology(spec: LaunchSpec) -> dict[str, str]:
    """Return the annotation by which Kueue keeps pods close together. Without Kueue, Evenkeel chose the nodes."""
    network = spec.job_spec.network_needs
    if not spec.attempt.local_queue or spec.attempt.ranks < 2:
        return {}
    if network.required:
        return {"kueue.x-k8s.io/podset-required-topology": network.required.node_label}
    return {"kueue.x-k8s.io/podset-preferred-topology": network.preferred.node_label} if network.preferred else {}


def _node_affinity_terms(spec: LaunchSpec) -> list[Json]:
    """Return the node affinity terms of the pods: the attempt's nodes; for Kueue the allowed types and avoided nodes.

    Kueue's flavors add their labels as node selectors. Kueue considers only the terms whose keys belong to its flavors.
    """
    if not spec.attempt.local_queue:
        return [{"key": _HOSTNAME, "operator": "In", "values": list(spec.attempt.node_names)}]
    types = {"key": _TYPE_LABEL, "operator": "In", "values": list(spec.job_spec.instance_types)}
    avoid_term = {"key": _HOSTNAME, "operator": "NotIn", "values": list(spec.avoid)}
    return [*([types] if spec.job_spec.instance_types else []), *([avoid_term] if spec.avoid else [])]


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
            "runAsUser": DEFAULT_ID,
            "runAsGroup": DEFAULT_ID,
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


def access_review(permission: KubernetesPermission) -> Json:
    """Return a SelfSubjectAccessReview of one right of the caller. The API server answers it and does not store it."""
    resource, _, subresource = permission.resource.partition("/")
    attributes = {
        "verb": permission.verb,
        "group": permission.group,
        "resource": resource,
        "namespace": permission.namespace,
    }
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {**attributes, **({"subresource": subresource} if subresource else {})}},
    }


_NO_RENTAL = {"key": RENTAL_LABEL, "operator": "DoesNotExist"}


def capacity_job(spec: CapacitySpec, fleet: str, taints: Iterable[Mapping[str, Any]] = ()) -> Json:
    """Return the Job of a rental's capacity pods. Each pod takes all accelerators of one node and does nothing.

    Karpenter launches a node for each pod, and does not terminate the node while the pod exists.

    Args:
        spec: The rental.
        fleet: Its fleet.
        taints: Taints of the pool's nodes. The pods tolerate no further taints. Otherwise a capacity pod could start on
            cordoned nodes, or on nodes of another rental that ends, and Karpenter would launch no new node.
    """
    toleration_keys = dict.fromkeys(
        [(AWAITING_VALIDATION_TAINT, "NoSchedule"), *((taint["key"], taint["effect"]) for taint in taints)]
    )
    own_labels = {"app.kubernetes.io/managed-by": "evenkeel", FLEET_LABEL: fleet, RENTAL_LABEL: spec.name}
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        "nodeSelector": {KARPENTER_LABEL: spec.pool},
        "tolerations": [{"key": key, "operator": "Exists", "effect": effect} for key, effect in toleration_keys],
        # Nodes with the label belong to a rental. They are empty until the pods of its job start.
        "affinity": {
            "nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [_NO_RENTAL]}]}},
            "podAntiAffinity": _one_pod_per_node({RENTAL_LABEL: spec.name}),
        },
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": DEFAULT_ID,
            "runAsGroup": DEFAULT_ID,
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


def _volumes(job: JobSpec) -> list[Json]:
    """Return the volumes of a pod: shared memory, the checkpoint claim, one volume for each claim, scratch folders."""
    # Collectives and data loaders share memory between processes. The default of 64 MiB is too small.
    shared_gib = job.shared_memory_gib
    shared_memory = {"medium": "Memory", **({"sizeLimit": f"{shared_gib}Gi"} if shared_gib else {})}
    return [
        {"name": "shared-memory", "emptyDir": shared_memory},
        *({"name": name, "persistentVolumeClaim": {"claimName": claim}} for claim, name in _claim_volumes(job).items()),
        *(
            {"name": f"scratch-{index}", "emptyDir": {"sizeLimit": f"{folder.size_gib}Gi"}}
            for index, folder in enumerate(job.scratch)
        ),
    ]


def _claim_volumes(job: JobSpec) -> dict[str, str]:
    """Return the volume of each claim. Kubernetes mounts a volume as often as a pod needs it."""
    names = {job.checkpoint_claim: "checkpoints"} if job.checkpoint_claim else {}
    for volume in job.volumes:
        names.setdefault(volume.claim, f"claim-{len(names)}")
    return names


def _volume_mounts(job: JobSpec) -> list[Json]:
    volumes = _claim_volumes(job)
    claim = job.checkpoint_claim
    return [
        {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108 - inside the pod
        *([{"name": volumes[claim], "mountPath": checkpoint_mount(job.checkpoint_uri)}] if claim else []),
        *(
            {
                "name": volumes[volume.claim],
                "mountPath": volume.mount_path,
                **({"subPath": volume.sub_path} if volume.sub_path else {}),
                **({"readOnly": True} if volume.read_only else {}),
            }
            for volume in job.volumes
        ),
        *({"name": f"scratch-{index}", "mountPath": folder.mount_path} for index, folder in enumerate(job.scratch)),
    ]


def _environment_variables(spec: LaunchSpec) -> list[Json]:
    """Return the environment of the training contract. Kubernetes itself adds the rank as JOB_COMPLETION_INDEX."""
    attempt, name = spec.attempt, spec.attempt.workload_name
    size_key = {"name": name, "key": WORLD_SIZE_KEY}
    environment = {
        "EVENKEEL_JOB_ID": attempt.job_id,
        "EVENKEEL_ATTEMPT": str(attempt.attempt),
        "EVENKEEL_CHECKPOINT_URI": spec.job_spec.checkpoint_uri,
        **_resume_variables(spec),
        **({} if attempt.requested_size else {"WORLD_SIZE": str(attempt.ranks)}),
        "MASTER_ADDR": f"{name}-0.{name}",
        "MASTER_PORT": str(RENDEZVOUS_PORT),
    }
    submitted_env = {key: value for key, value in spec.job_spec.env.items() if key not in RESERVED_ENV}
    return [
        *({"name": key, "value": value} for key, value in {**submitted_env, **environment}.items()),
        *(
            {"name": name, "valueFrom": {"secretKeyRef": {"name": source.secret, "key": source.key}}}
            for name, source in spec.job_spec.secret_env.items()
            if name not in RESERVED_ENV
        ),
        *([{"name": "WORLD_SIZE", "valueFrom": {"configMapKeyRef": size_key}}] if attempt.requested_size else []),
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]


def _resume_variables(spec: LaunchSpec) -> dict[str, str]:
    """Return the variables that name the resume point, or the variables with which rank 0 chooses it."""
    rules = spec.proof_rules
    if rules is None:
        return {"EVENKEEL_RESUME_FROM": spec.resume_from}
    distrust, damaged_text = rules.distrust, ",".join(f"{point.attempt}/{point.step}" for point in rules.damaged)
    return {
        **({"EVENKEEL_DISTRUST_AFTER": rfc3339(distrust.after)} if distrust and distrust.after else {}),
        **({"EVENKEEL_DISTRUST_THROUGH": str(distrust.through_attempt)} if distrust else {}),
        **(
            {"EVENKEEL_DISTRUST_REQUIREMENT": distrust.requirement}
            if distrust and distrust.requirement is not CheckpointRequirement.CONVENTION
            else {}
        ),
        **({"EVENKEEL_ACCEPT_CONVENTION": "1"} if rules.accepts_convention else {}),
        **({"EVENKEEL_START_OVER": "1"} if rules.may_start_over else {}),
        **({"EVENKEEL_DAMAGED_CHECKPOINTS": damaged_text} if damaged_text else {}),
    }
