"""Identities on the local engine.

The engine's root key is public and may do everything. So it is used once, to create the user `deployer`, which may do
what `sam deploy` needs and may create users. Functions, commands, the local cluster, the ticker and tests have
identities of their own, with policies.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import boto3
import botocore.session
from botocore.config import Config
from botocore.exceptions import ClientError
from botocore.loaders import Loader, create_loader

from evenkeel_local import REGION
from evenkeel_local.engine import Engine

if TYPE_CHECKING:
    from mypy_boto3_iam import IAMClient

Statement = Mapping[str, Any]

ARTIFACTS_BUCKET: Final = "evenkeel-artifacts"
_ROOT_KEY: Final = "test"
_POLICY_NAME: Final = "evenkeel"


@functools.cache
def _service_models() -> Loader:
    """Return the shared loader of all sessions: it parses each service model once, which takes 0.1 s."""
    return create_loader()


@dataclass(frozen=True)
class Credentials:
    """An access key on one engine. Its text form has no secrets."""

    access_key_id: str
    secret_access_key: str
    endpoint_url: str
    session_token: str | None = None
    principal_arn: str = ""
    region: str = REGION

    def __repr__(self) -> str:
        return f"Credentials({self.access_key_id!r}, principal_arn={self.principal_arn!r})"

    def session(self) -> boto3.Session:
        core = botocore.session.get_session()
        core.register_component("data_loader", _service_models())
        return boto3.Session(
            self.access_key_id,
            self.secret_access_key,
            self.session_token,
            region_name=self.region,
            botocore_session=core,
        )

    def client(self, service: str, **options: Any) -> Any:
        """Return a boto3 client of the engine; `options` go to boto3 (`config=`, `endpoint_url=`)."""
        options.setdefault("endpoint_url", self.endpoint_url)
        options.setdefault("config", Config(retries={"mode": "standard", "max_attempts": 2}, proxies={}))
        # The typed stubs accept only literal names.
        return self.session().client(service, **options)  # type: ignore[call-overload]

    def environment(self) -> dict[str, str]:
        """Return the environment variables with which AWS tools and SDKs use this identity on the engine.

        They also disable the caller's profile and configuration file.
        """
        variables = {
            "AWS_ACCESS_KEY_ID": self.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret_access_key,
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
            "NO_PROXY": "127.0.0.1,localhost",
        }
        return variables | ({"AWS_SESSION_TOKEN": self.session_token} if self.session_token else {})


def create_deployer(engine: Engine) -> Credentials:
    """Create the user `deployer` and the artifacts bucket, with the root key.

    Idempotent: yes; the access key of an existing user is replaced.
    """
    root = Credentials(_ROOT_KEY, _ROOT_KEY, engine.endpoint_url)
    credentials = make_user(root, "deployer", _deployer_statements(engine.account_id))
    with _ignore_error("BucketAlreadyOwnedByYou"):
        credentials.client("s3").create_bucket(
            Bucket=ARTIFACTS_BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION}
        )
    return credentials


def make_user(maker: Credentials, name: str, statements: Sequence[Statement]) -> Credentials:
    """Create the IAM user `name` with exactly `statements` as its policy; return a new access key.

    Idempotent: yes; the policy and the access key of an existing user are replaced.

    Args:
        maker: The creator: `deployer`.
        name: The user's name, unique on the engine.
        statements: IAM policy statements, `Effect` included.
    """
    iam: IAMClient = maker.client("iam")
    with _ignore_error("EntityAlreadyExists"):
        iam.create_user(UserName=name)
    for old_key in iam.list_access_keys(UserName=name)["AccessKeyMetadata"]:
        iam.delete_access_key(UserName=name, AccessKeyId=old_key["AccessKeyId"])
    set_policy(maker, name, statements)
    arn = iam.get_user(UserName=name)["User"]["Arn"]
    key = iam.create_access_key(UserName=name)["AccessKey"]
    return Credentials(
        key["AccessKeyId"], key["SecretAccessKey"], maker.endpoint_url, principal_arn=arn, region=maker.region
    )


def policy_statements(maker: Credentials, arn: str) -> list[Statement]:
    """Return the statements of a managed policy, as they are deployed."""
    iam: IAMClient = maker.client("iam")
    version = iam.get_policy(PolicyArn=arn)["Policy"]["DefaultVersionId"]
    policy_document: Any = iam.get_policy_version(PolicyArn=arn, VersionId=version)["PolicyVersion"]["Document"]
    document = json.loads(policy_document) if isinstance(policy_document, str) else policy_document
    return list(document["Statement"])


def set_policy(maker: Credentials, name: str, statements: Sequence[Statement]) -> None:
    """Replace the policy of the user `name`; its access key stays.

    Idempotent: yes.
    """
    iam: IAMClient = maker.client("iam")
    if not statements:
        with _ignore_error("NoSuchEntity"):
            iam.delete_user_policy(UserName=name, PolicyName=_POLICY_NAME)
        return
    document = json.dumps({"Version": "2012-10-17", "Statement": list(statements)})
    iam.put_user_policy(UserName=name, PolicyName=_POLICY_NAME, PolicyDocument=document)


@contextlib.contextmanager
def _ignore_error(code: str) -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        if error.response["Error"]["Code"] != code:
            raise


def _deployer_statements(account_id: str) -> list[Statement]:
    """Return the permissions to deploy a stack and to create the local users."""
    services = (
        *("apigateway", "cloudformation", "cloudwatch", "dynamodb", "events", "kms", "lambda", "logs"),
        *("s3", "scheduler", "sns", "sqs", "ssm", "states", "tag"),
    )
    actions_by_resource = {
        "role": (
            *("*RolePolicy", "CreateRole", "DeleteRole", "GetRole", "PassRole", "TagRole", "UntagRole", "UpdateRole"),
            *("UpdateAssumeRolePolicy", "ListRolePolicies", "ListAttachedRolePolicies"),
        ),
        "policy": (
            *("CreatePolicy", "DeletePolicy", "GetPolicy", "ListPolicyVersions"),
            *("CreatePolicyVersion", "DeletePolicyVersion", "GetPolicyVersion"),
        ),
        "user": (
            *("CreateUser", "GetUser", "DeleteUser", "PutUserPolicy", "DeleteUserPolicy"),
            *("ListAccessKeys", "CreateAccessKey", "DeleteAccessKey"),
        ),
    }
    return [
        {"Effect": "Allow", "Action": [f"{service}:*" for service in services], "Resource": "*"},
        *(
            {
                "Effect": "Allow",
                "Action": [f"iam:{action}" for action in actions],
                "Resource": f"arn:aws:iam::{account_id}:{kind}/*",
            }
            for kind, actions in actions_by_resource.items()
        ),
    ]
