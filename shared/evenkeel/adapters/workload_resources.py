"""Where the API server keeps each kind of workload, and how its pods are numbered. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evenkeel.adapters.object_fields import INDEX_LABEL, SAGEMAKER
from evenkeel.domain.jobs.workload_kind import WorkloadKind

KUBEFLOW_INDEX = "training.kubeflow.org/replica-index"
_NO_RANK = 1_000_000


@dataclass(frozen=True, slots=True)
class WorkloadResource:
    """A kind of workload in the API of Kubernetes."""

    kind: WorkloadKind
    group: str
    version: str
    plural: str
    operator: str = ""
    """The operator that a cluster needs for this kind; empty for Job, which Kubernetes itself has."""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}"

    def path(self, namespace: str = "", name: str = "") -> str:
        """Return the path of one object, of a namespace's objects, or of all objects."""
        within = f"/namespaces/{namespace}" if namespace else ""
        return f"/apis/{self.api_version}{within}/{self.plural}{f'/{name}' if name else ''}"


JOB = WorkloadResource(WorkloadKind.JOB, "batch", "v1", "jobs")
OPERATED = (
    WorkloadResource(WorkloadKind.JOB_SET, "jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet"),
    WorkloadResource(
        WorkloadKind.PYTORCH_JOB, "kubeflow.org", "v1", "pytorchjobs", "Kubeflow's training operator, version 1"
    ),
    WorkloadResource(
        WorkloadKind.HYPERPOD_PYTORCH_JOB, SAGEMAKER, "v1", "hyperpodpytorchjobs", "HyperPod's training operator"
    ),
)
"""The kinds whose pods an operator creates. A cluster serves a kind only if its operator is installed."""
RESOURCES: Mapping[WorkloadKind, WorkloadResource] = {resource.kind: resource for resource in (JOB, *OPERATED)}


def resource_of(owner: Mapping[str, Any]) -> WorkloadResource | None:
    """Return the kind that an owner reference names; None if it is none of these kinds. Its version does not count."""
    group = str(owner.get("apiVersion", "")).partition("/")[0]
    return next(
        (resource for resource in RESOURCES.values() if (resource.kind, resource.group) == (owner.get("kind"), group)),
        None,
    )


def rank_of(pod: Mapping[str, Any]) -> int:
    """Return the rank of a pod in its gang. A pod without a rank is sorted after all other pods.

    It is the completion index of an Indexed Job, and so of a JobSet with one Job. In a PyTorchJob without a master, the
    rank is the index of the worker. The name of a pod of a HyperPodPyTorchJob ends with it.
    """
    metadata = pod["metadata"]
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    if text := labels.get(INDEX_LABEL) or annotations.get(INDEX_LABEL, ""):
        return _number(text)
    if KUBEFLOW_INDEX in labels:
        return _number(labels[KUBEFLOW_INDEX])
    owners = metadata.get("ownerReferences") or ()
    kinds = {owner.get("kind") for owner in owners if owner.get("controller")}
    return _number(metadata["name"].rpartition("-")[2]) if WorkloadKind.HYPERPOD_PYTORCH_JOB in kinds else _NO_RANK


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else _NO_RANK
