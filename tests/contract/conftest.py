"""The worlds that the contract bodies run in: the twin, moto, and the engine."""

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from moto import mock_aws

from evenkeel_local.identities import Credentials, make_user

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
    """An identity that may use the services the adapters speak to."""
    actions = ["dynamodb:*", "s3:*", "sqs:*", "sns:*", "states:*", "lambda:*", "iam:*"]
    statement = {"Sid": "Contract", "Effect": "Allow", "Action": actions, "Resource": "*"}
    return make_user(deployer, "contract", [statement])


@pytest.fixture
def unique() -> str:
    """A name that no other test uses, since all share one engine."""
    return f"contract-{uuid.uuid4().hex[:10]}"
