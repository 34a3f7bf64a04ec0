"""A local GPU cluster with short durations."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from evenkeel_local import gpu_cluster
from evenkeel_local.gpu_cluster import ClusterHandle
from tests.local.gpu_cluster.contract import REAL, delete_everything_in
from tests.local.gpu_cluster.kube_client import KubeApiError, KubeClient, eventually

QUICK: dict[str, Any] = {
    "instanceGroups": [{"name": "p5-workers", "instanceType": "ml.p5.48xlarge", "count": 3}],
    "delays": {
        "reboot": 0.4,
        "replace": 0.4,
        "terminate": 0.1,
        "heartbeat": 0.2,
        "nodeMonitorGrace": 1.0,
        "podGc": 0.2,
        "agentDetect": 0.1,
        "eventDelay": 0.0,
        "autoRecovery": 0.2,
        "deepHealthCheck": 0.4,
        "restartBackoff": 0.2,
    },
}


def aws_client(service: str, url: str) -> Any:
    """Return a boto3 client of the cluster's AWS endpoint that never retries."""
    # Typed stubs know each service by a literal name; here the name is the caller's.
    return boto3.client(  # type: ignore[call-overload]
        service,
        endpoint_url=url,
        region_name="us-west-2",
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
        config=Config(retries={"total_max_attempts": 1}, proxies={}),
    )


@pytest.fixture(scope="module")
def running_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterHandle]:
    """A cluster for the tests of a module."""
    with gpu_cluster.start(QUICK, tmp_path_factory.mktemp("gpu-cluster")) as handle:
        yield handle


@pytest.fixture
def cluster(running_cluster: ClusterHandle) -> ClusterHandle:
    """The module's cluster, reset."""
    running_cluster.control("POST", "reset")
    eventually(lambda: all(node["ready"] == "True" for node in running_cluster.nodes()), "the nodes to be ready")
    return running_cluster


@pytest.fixture
def kube(cluster: ClusterHandle) -> Iterator[KubeClient]:
    """A client of the cluster's Kubernetes API, as the admin."""
    client = KubeClient(cluster.kubernetes_url, cluster.ca_pem, cluster.admin_token)
    yield client
    client.close()


@pytest.fixture
def sagemaker(cluster: ClusterHandle) -> Any:
    """A boto3 client of the HyperPod operations."""
    return aws_client("sagemaker", cluster.sagemaker_url)


@pytest.fixture(scope="module")
def api(request: pytest.FixtureRequest) -> Iterator[KubeClient]:
    """A client of the API under test, as a member of `system:masters`: the real server if one is given."""
    if REAL:
        ca = Path(os.environ["EVENKEEL_KUBE_CA"]).read_text()
        client = KubeClient(REAL, ca, os.environ["EVENKEEL_KUBE_TOKEN"])
    else:
        handle = request.getfixturevalue("running_cluster")
        client = KubeClient(handle.kubernetes_url, handle.ca_pem, handle.admin_token)
    yield client
    client.close()


@pytest.fixture
def space(api: KubeClient) -> Iterator[str]:
    """Path of a new namespace with the service account that pods need."""
    name = f"contract-{uuid.uuid4().hex[:8]}"
    path = f"/api/v1/namespaces/{name}"
    api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    try:
        api.create(f"{path}/serviceaccounts", {"metadata": {"name": "default"}})
    except KubeApiError as refused:
        assert refused.reason == "AlreadyExists"  # noqa: PT017 (a controller was quicker, where there is one)
    yield path
    with contextlib.suppress(KubeApiError):  # a test may have deleted it
        api.delete(path)
    if REAL:
        delete_everything_in(api, path)


@pytest.fixture
def node(api: KubeClient) -> Iterator[str]:
    """A node object without a kubelet; returns its path."""
    name = f"contract-{uuid.uuid4().hex[:8]}"
    api.create("/api/v1/nodes", {"metadata": {"name": name, "labels": {"a": "1"}}})
    yield f"/api/v1/nodes/{name}"
    api.delete(f"/api/v1/nodes/{name}")
