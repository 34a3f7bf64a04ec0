"""A local GPU cluster: the HyperPod and Kubernetes APIs, with pods that run as real processes."""

from evenkeel_local.gpu_cluster.handle import ClusterFailed, ClusterHandle, start

__all__ = ["ClusterFailed", "ClusterHandle", "start"]
