"""The kinds of Kubernetes objects that an attempt can be created as."""

from enum import StrEnum


class WorkloadKind(StrEnum):
    """The kind of the object that creates an attempt's pods. Each kind but Job needs its operator in the cluster."""

    JOB = "Job"
    """An Indexed Job of Kubernetes itself."""
    JOB_SET = "JobSet"
    """https://jobset.sigs.k8s.io."""
    PYTORCH_JOB = "PyTorchJob"
    """The kind of Kubeflow's training operator."""
    HYPERPOD_PYTORCH_JOB = "HyperPodPyTorchJob"
    """The kind of HyperPod's training operator."""
