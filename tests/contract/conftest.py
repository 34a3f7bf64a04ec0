"""Implementations for the contract tests: the fake, moto, and the engine."""

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from moto import mock_aws

from evenkeel.adapters.kubernetes import KubernetesApi
from evenkeel_local.gpu_cluster import ClusterHandle, start
from evenkeel_local.identities import Credentials, make_user
from tests.contract.clusters_under_test import CLUSTER, CONFIG, NAMESPACE

ClientOf = Callable[[str], Any]


@pytest.fixture
def moto_client() -> Iterator[ClientOf]:
    """Clients of moto, empty for each test."""
    with mock_aws():
        session = boto3.session.Session(region_name="us-west-2")
        client_of: Any = session.client
        yield client_of


@pytest.fixture(scope="session")
def engine_user(deployer: Credentials) -> Credentials:
    """An identity that may use the services of the adapters."""
    actions = ["dynamodb:*", "s3:*", "sqs:*", "sns:*", "states:*", "lambda:*", "iam:*", "cloudwatch:*"]
    statement = {"Sid": "Contract", "Effect": "Allow", "Action": actions, "Resource": "*"}
    return make_user(deployer, "contract", [statement])


@pytest.fixture
def unique() -> str:
    """A unique name: all tests share one engine."""
    return f"contract-{uuid.uuid4().hex[:10]}"


@pytest.fixture(scope="session")
def gpu_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterHandle]:
    """A local GPU cluster for the session. Each test restores the state that it found."""
    with start(CONFIG, tmp_path_factory.mktemp("gpu-cluster")) as handle:
        admin = KubernetesApi(CLUSTER, handle.kubernetes_url, handle.ca_pem, lambda _: handle.admin_token)
        restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
        admin.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE, "labels": restricted}})
        admin.create(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", {"metadata": {"name": "trainer"}})
        yield handle
