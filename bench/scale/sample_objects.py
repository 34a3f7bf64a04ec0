"""Objects of a large fleet as the API servers send them. Their sizes decide what a list of a fleet costs.

The shapes follow an EKS cluster of HyperPod, with the labels of HyperPod, EKS and the GPU operator. A node has 50
images (the kubelet's `nodeStatusMaxImages`). Objects have managed fields, because a list contains them.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from evenkeel.adapters.object_fields import ATTEMPT_LABEL, FLEET_LABEL, JOB_LABEL

Json = dict[str, Any]
_AT = "2026-11-03T08:00:00Z"
_IMAGES = 50
_MACHINE_LABELS = 30
"""Labels that GPU feature discovery, EFA and the topology of the network add."""
FLEET = "research"


def node(number: int) -> Json:
    """Return a p5 node of HyperPod."""
    machine = f"i-{number:017x}"
    name = f"hyperpod-{machine}"
    labels = {
        "beta.kubernetes.io/arch": "amd64",
        "kubernetes.io/hostname": name,
        "node.kubernetes.io/instance-type": "ml.p5.48xlarge",
        "sagemaker.amazonaws.com/cluster-name": "research-train",
        "sagemaker.amazonaws.com/compute-type": "hyperpod",
        "sagemaker.amazonaws.com/instance-group-name": "p5-workers",
        "sagemaker.amazonaws.com/node-health-status": "Schedulable",
        "sagemaker.amazonaws.com/deep-health-check-status": "Passed",
        "topology.kubernetes.io/region": "us-west-2",
        "topology.kubernetes.io/zone": "us-west-2a",
        **{f"nvidia.com/gpu.feature-{index}": f"value-{index}" for index in range(_MACHINE_LABELS)},
    }
    amounts = {
        "cpu": "192",
        "ephemeral-storage": "1073730540Ki",
        "hugepages-1Gi": "0",
        "hugepages-2Mi": "10512Mi",
        "memory": "2097152000Ki",
        "nvidia.com/gpu": "8",
        "pods": "110",
        "vpc.amazonaws.com/efa": "32",
    }
    conditions = [
        {"type": kind, "status": "True" if kind == "Ready" else "False", "reason": f"Kubelet{kind}"}
        | {"message": f"kubelet reports {kind}", "lastHeartbeatTime": _AT, "lastTransitionTime": _AT}
        for kind in ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "AcceleratedHardwareReady")
    ]
    repository = "111122223333.dkr.ecr.us-west-2.amazonaws.com/training"
    images = [
        {"names": [f"{repository}-{index}@sha256:{_digest(number, index)}", f"{repository}-{index}:1.0.{index}"]}
        | {"sizeBytes": 10**9}
        for index in range(_IMAGES)
    ]
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-{number:032x}",
            "resourceVersion": str(10**8 + number),
            "creationTimestamp": _AT,
            "labels": labels,
            "annotations": {"node.alpha.kubernetes.io/ttl": "30", "volumes.kubernetes.io/attach-detach": "true"},
            "managedFields": _managed_fields(labels),
        },
        "spec": {"providerID": f"aws:///usw2-az1/sagemaker/cluster/hyperpod-abcdefghijkl-{machine}"},
        "status": {
            "addresses": [{"address": "10.0.0.1", "type": "InternalIP"}, {"address": name, "type": "Hostname"}],
            "allocatable": amounts,
            "capacity": amounts,
            "conditions": conditions,
            "images": images,
            "nodeInfo": {"bootID": f"boot-{number}", "kernelVersion": "6.1.0", "kubeletVersion": "v1.33.0"},
        },
    }


def _digest(number: int, index: int) -> str:
    """Return a digest that no other node and image has, so that a list compresses no better than a real one."""
    return hashlib.sha256(f"{number}/{index}".encode()).hexdigest()


def pod(number: int) -> Json:
    """Return the pod of a training job, with the environment and volumes of a usual job."""
    job, name = f"job-{number:010d}", f"job-{number:010d}-a1"
    labels = {
        JOB_LABEL: job,
        ATTEMPT_LABEL: "1",
        FLEET_LABEL: FLEET,
        "batch.kubernetes.io/job-name": name,
        "batch.kubernetes.io/controller-uid": f"uid-{number}",
        "batch.kubernetes.io/job-completion-index": "0",
    }
    container = {
        "name": "trainer",
        "image": "111122223333.dkr.ecr.us-west-2.amazonaws.com/training:1",
        "command": ["python", "train.py"],
        "env": [{"name": f"EVENKEEL_SETTING_{index}", "value": "x" * 40} for index in range(20)],
        "resources": {
            kind: {"nvidia.com/gpu": "8", "cpu": "180", "memory": "1900Gi"} for kind in ("limits", "requests")
        },
        "volumeMounts": [{"name": f"volume-{index}", "mountPath": f"/mnt/{index}"} for index in range(4)],
    }
    return {
        "metadata": {
            "name": f"{name}-0",
            "namespace": "evenkeel-jobs",
            "uid": f"pod-{number}",
            "resourceVersion": str(number),
            "creationTimestamp": _AT,
            "labels": labels,
            "annotations": {"evenkeel.io/decision": "dec-0000000001"},
            "ownerReferences": [_owner(name, number)],
            "managedFields": _managed_fields(labels),
        },
        "spec": {
            "nodeName": f"hyperpod-i-{number:017x}",
            "containers": [container],
            "initContainers": [{**container, "name": "prepare"}],
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}] * 3,
            "volumes": [{"name": f"volume-{index}", "emptyDir": {}} for index in range(4)],
        },
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.2",
            "startTime": _AT,
            "conditions": [{"type": f"Condition{index}", "status": "True"} for index in range(5)],
            "containerStatuses": [{"name": "trainer", "ready": True, "state": {"running": {"startedAt": _AT}}}],
        },
    }


def job(number: int) -> Json:
    """Return the Job of an attempt."""
    template, name = pod(number), f"job-{number:010d}-a1"
    metadata = {
        **template["metadata"],
        "name": name,
        "uid": f"uid-{number}",
        "ownerReferences": [],
        "managedFields": _managed_fields(template["metadata"]["labels"]),
    }
    return {
        "metadata": metadata,
        "spec": {"template": {"metadata": {"labels": metadata["labels"]}, "spec": template["spec"]}},
        "status": {"active": 1, "startTime": _AT},
    }


def _owner(name: str, number: int) -> Json:
    return {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": f"uid-{number}", "controller": True}


def _managed_fields(labels: Json) -> list[Json]:
    fields = {"f:metadata": {"f:labels": {f"f:{name}": {} for name in labels}}, "f:status": {"f:conditions": {}}}
    return [
        {"manager": manager, "operation": "Update", "apiVersion": "v1", "time": _AT, "fieldsV1": fields}
        for manager in ("kubelet", "controller")
    ]


def page(items: list[Json]) -> bytes:
    """Return one page of a list."""
    return json.dumps({"metadata": {"resourceVersion": "1"}, "items": items}, separators=(",", ":")).encode()
