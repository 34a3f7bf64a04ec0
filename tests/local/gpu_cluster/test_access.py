"""Access control: signatures and policies by the engine, tokens by its STS, rules by the cluster's own objects."""

import base64
import io
import json
import zipfile
from collections.abc import Iterator, Sequence
from typing import Any

import boto3
import pytest
from botocore import UNSIGNED
from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials as Key
from botocore.exceptions import ClientError

from evenkeel_local import gpu_cluster
from evenkeel_local.data_centre import SERVICES_USER
from evenkeel_local.engine import Engine
from evenkeel_local.gpu_cluster import ClusterHandle, rbac
from evenkeel_local.gpu_cluster.api_server import RequestInfo
from evenkeel_local.gpu_cluster.catalogue import ResourceCatalogue
from evenkeel_local.gpu_cluster.config import AccessEntry
from evenkeel_local.gpu_cluster.kube_auth import checked_sts_url, user_of
from evenkeel_local.gpu_cluster.registry import Registry
from evenkeel_local.gpu_cluster.store import Store
from evenkeel_local.identities import Credentials, make_user
from tests.local.gpu_cluster.conftest import QUICK
from tests.local.gpu_cluster.kube_client import NODES, PODS, Json, KubeClient, eventually

OWN_STATEMENTS = [
    {
        "Effect": "Allow",
        "Action": [
            "iam:SimulatePrincipalPolicy",
            "iam:GetAccessKeyLastUsed",
            "lambda:ListFunctions",
            "events:PutEvents",
        ],
        "Resource": "*",
    }
]
RULES = "rbac.authorization.k8s.io"
CALLER = """
import json, os, boto3
from botocore.exceptions import ClientError


def handler(event, context):
    print("called")
    client = boto3.client("sagemaker", endpoint_url=event["url"])
    out = {}
    for name, call in {
        "list": lambda: client.list_cluster_nodes(ClusterName=event["cluster"]),
        "reboot": lambda: client.batch_reboot_cluster_nodes(ClusterName=event["cluster"], NodeIds=["i-12345678"]),
    }.items():
        try:
            call()
            out[name] = "ok"
        except ClientError as error:
            out[name] = error.response["Error"]["Code"]
    return out
"""


@pytest.fixture(scope="module")
def guarded(engine: Engine, deployer: Credentials, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterHandle]:
    """A cluster that authenticates callers through the engine."""
    credentials = make_user(deployer, SERVICES_USER, OWN_STATEMENTS)
    run_dir = tmp_path_factory.mktemp("guarded")
    with gpu_cluster.start(QUICK, run_dir, engine_endpoint=engine.endpoint_url, credentials=credentials) as handle:
        yield handle


@pytest.fixture(scope="module")
def reader(deployer: Credentials, guarded: ClusterHandle) -> Credentials:
    """Credentials that may only list nodes and read the EKS cluster."""
    actions = ["sagemaker:ListClusterNodes", "eks:DescribeCluster"]
    resources = [guarded.cluster_arn, guarded.state["eksClusterArn"]]
    return make_user(deployer, "gpu-cluster-reader", [{"Effect": "Allow", "Action": actions, "Resource": resources}])


def code_of(refused: pytest.ExceptionInfo[ClientError]) -> str:
    return str(refused.value.response["Error"]["Code"])


def token(engine: Engine, credentials: Credentials, cluster: str, *, secret: str = "", header: bool = True) -> str:
    headers = {"x-k8s-aws-id": cluster} if header else {}
    url = f"{engine.endpoint_url}/?Action=GetCallerIdentity&Version=2011-06-15"
    request = AWSRequest("GET", url, headers=headers)
    key = Key(credentials.access_key_id, secret or credentials.secret_access_key)
    SigV4QueryAuth(key, "sts", "us-west-2", expires=60).add_auth(request)
    return "k8s-aws-v1." + base64.urlsafe_b64encode(str(request.url).encode()).decode().rstrip("=")


# AWS


def test_user_may_call_only_actions_of_its_policy(guarded: ClusterHandle, reader: Credentials) -> None:
    sagemaker = reader.client("sagemaker", endpoint_url=guarded.sagemaker_url)
    eks = reader.client("eks", endpoint_url=guarded.eks_url)

    listed = sagemaker.list_cluster_nodes(ClusterName=guarded.cluster_name)["ClusterNodeSummaries"]
    described = eks.describe_cluster(name=guarded.eks_cluster_name)
    with pytest.raises(ClientError) as refused:
        sagemaker.batch_replace_cluster_nodes(ClusterName=guarded.cluster_name, NodeIds=[listed[0]["InstanceId"]])

    assert described["cluster"]["status"] == "ACTIVE"
    assert code_of(refused) == "AccessDeniedException"
    message = refused.value.response["Error"]["Message"]
    assert reader.principal_arn in message
    assert f"sagemaker:BatchReplaceClusterNodes on resource: {guarded.cluster_arn}" in message
    assert guarded.control("GET", "counters")["accepted"]["replace"] == {}


def test_user_without_policies_is_denied_every_action(deployer: Credentials, guarded: ClusterHandle) -> None:
    nobody = make_user(deployer, "gpu-cluster-nobody", [])

    for service, call in (("sagemaker", "list_clusters"), ("eks", "list_clusters")):
        with pytest.raises(ClientError) as refused:
            getattr(nobody.client(service, endpoint_url=guarded.sagemaker_url), call)()
        assert code_of(refused) == "AccessDeniedException"


def test_wrong_secret_unknown_key_and_missing_signature_are_refused(
    guarded: ClusterHandle, reader: Credentials
) -> None:
    def refused_with(key: str, secret: str, **config: Any) -> str:
        client = boto3.client(
            "sagemaker",
            endpoint_url=guarded.sagemaker_url,
            region_name="us-west-2",
            aws_access_key_id=key,
            aws_secret_access_key=secret,
            config=Config(**config) if config else None,
        )
        with pytest.raises(ClientError) as refused:
            client.list_cluster_nodes(ClusterName=guarded.cluster_name)
        return code_of(refused)

    assert refused_with(reader.access_key_id, "guessed") == "InvalidSignatureException"
    assert refused_with("AKIAAAAAAAAAAAAAAAAA", "guessed") == "UnrecognizedClientException"
    assert refused_with("any", "any", signature_version=UNSIGNED) == "MissingAuthenticationTokenException"


def test_function_may_call_only_actions_of_its_role(
    engine: Engine, deployer: Credentials, guarded: ClusterHandle
) -> None:
    trust = {"Effect": "Allow", "Principal": {"Service": "lambda.amazonaws.com"}, "Action": "sts:AssumeRole"}
    policy = {"Effect": "Allow", "Action": "sagemaker:ListClusterNodes", "Resource": guarded.cluster_arn}
    iam, functions = deployer.client("iam"), deployer.client("lambda")
    document = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
    role = iam.create_role(RoleName="gpu-cluster-caller", AssumeRolePolicyDocument=document)["Role"]["Arn"]
    body = json.dumps({"Version": "2012-10-17", "Statement": [policy]})
    iam.put_role_policy(RoleName="gpu-cluster-caller", PolicyName="own", PolicyDocument=body)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("caller.py", CALLER)
    functions.create_function(
        FunctionName="gpu-cluster-caller",
        Runtime="python3.11",
        Role=role,
        Handler="caller.handler",
        Code={"ZipFile": packed.getvalue()},
        Timeout=30,
    )

    event = {"url": guarded.sagemaker_url, "cluster": guarded.cluster_name}
    answer = functions.invoke(FunctionName="gpu-cluster-caller", Payload=json.dumps(event).encode())
    payload = json.loads(answer["Payload"].read())

    assert payload == {"list": "ok", "reboot": "AccessDeniedException"}


def test_health_event_of_a_faulty_node_reaches_the_bus(deployer: Credentials, guarded: ClusterHandle) -> None:
    eventually(lambda: all(node["ready"] == "True" for node in guarded.nodes()), "the nodes")

    guarded.inject("gpu-xid79", node=guarded.nodes()[0]["instanceId"])

    sent = eventually(lambda: guarded.control("GET", "events")["events"], "the event")
    assert eventually(lambda: guarded.control("GET", "events")["events"][0]["delivered"], "its delivery")
    assert sent[0]["detailType"] == "SageMaker HyperPod Cluster Node Health Event"


# Kubernetes


def test_kubernetes_access_needs_token_access_entry_and_rbac_rule(
    engine: Engine, guarded: ClusterHandle, reader: Credentials
) -> None:
    def client(text: str) -> KubeClient:
        return KubeClient(guarded.kubernetes_url, guarded.ca_pem, text)

    kube = client(token(engine, reader, guarded.eks_cluster_name))
    without_entry = kube.status_of("GET", NODES)
    guarded.put_access_entry(reader.principal_arn, ["readers"])
    without_rule = kube.status_of("GET", NODES)
    rule = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}
    guarded.apply(
        [
            {"apiVersion": f"{RULES}/v1", "kind": "ClusterRole", "metadata": {"name": "r"}, "rules": [rule]},
            {
                "apiVersion": f"{RULES}/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": "r"},
                "roleRef": {"apiGroup": RULES, "kind": "ClusterRole", "name": "r"},
                "subjects": [{"kind": "Group", "name": "readers", "apiGroup": RULES}],
            },
        ]
    )

    assert (without_entry.code, without_entry.reason) == (401, "Unauthorized")
    assert (without_rule.code, without_rule.reason) == (403, "Forbidden")
    assert f'User "{reader.principal_arn}" cannot list resource "nodes"' in str(without_rule)
    assert len(kube.items(NODES)) == 3
    assert kube.status_of("GET", PODS).code == 403
    assert kube.status_of("PATCH", f"{NODES}/x", {}, "application/merge-patch+json").code == 403


@pytest.mark.parametrize("wrong", ["secret", "cluster", "header", "garbage", "none"])
def test_invalid_token_is_401(engine: Engine, guarded: ClusterHandle, reader: Credentials, wrong: str) -> None:
    guarded.put_access_entry(reader.principal_arn, ["readers"])
    text = {
        "secret": token(engine, reader, guarded.eks_cluster_name, secret="guessed"),
        "cluster": token(engine, reader, "another"),
        "header": token(engine, reader, guarded.eks_cluster_name, header=False),
        "garbage": "k8s-aws-v1.%%%",
        "none": "",
    }[wrong]

    kube = KubeClient(guarded.kubernetes_url, guarded.ca_pem, text)

    assert kube.status_of("GET", NODES).code == 401


@pytest.mark.parametrize(
    "url",
    [
        "http://203.0.113.9:4566/?Action=GetCallerIdentity",
        "http://127.0.0.1:1/?Action=GetCallerIdentity",
        "https://127.0.0.1:4566/?Action=GetCallerIdentity",
        "http://127.0.0.1:4566/other?Action=GetCallerIdentity",
        "http://127.0.0.1:4566/?Action=AssumeRole",
        "http://127.0.0.1:4566/?Action=GetCallerIdentity&Extra=1",
        "http://127.0.0.1:4566/?Action=GetCallerIdentity&X-Amz-SignedHeaders=host&X-Amz-Expires=60",
        "http://127.0.0.1:4566/?Action=GetCallerIdentity&X-Amz-SignedHeaders=host%3Bx-k8s-aws-id&X-Amz-Expires=901",
        "http://user@127.0.0.1:99999/?Action=GetCallerIdentity",
    ],
)
def test_token_with_another_host_is_refused(url: str) -> None:
    text = "k8s-aws-v1." + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")

    assert checked_sts_url(text, "http://127.0.0.1:4566") is None


# Access policies, without the engine


def is_refused(policies: Sequence[Json | str], verb: str, plural: str, namespace: str, group: str = "") -> bool:
    """Return whether these access policies refuse a request."""
    registry = Registry(Store(), ResourceCatalogue())
    for obj in rbac.bootstrap_roles():
        rt = registry.types.by_kind(obj["apiVersion"], obj["kind"])
        assert rt is not None
        registry.create(rt, "", obj)
    arn = "arn:aws:iam::000000000000:role/somebody"
    entry = AccessEntry.model_validate({"principalArn": arn, "accessPolicies": policies})
    user = user_of(arn, [entry])
    assert user is not None
    request_info = RequestInfo(verb, group, "v1", plural, namespace, "", "", "")
    return rbac.RbacAuthorizer(registry.store).refusal(user, request_info) is not None


@pytest.mark.parametrize(
    ("policy", "may", "may_not"),
    [
        ("AmazonEKSViewPolicy", ("list", "pods", "team"), ("list", "secrets", "team")),
        ("AmazonEKSAdminViewPolicy", ("list", "secrets", "team"), ("delete", "pods", "team")),
        ("AmazonEKSEditPolicy", ("create", "jobs", "team", "batch"), ("create", "roles", "team", RULES)),
        ("AmazonEKSAdminPolicy", ("create", "roles", "team", RULES), ("delete", "nodes", "")),
        (
            "arn:aws:eks::aws:cluster-access-policy/AmazonEKSViewPolicy",
            ("get", "jobs", "team", "batch"),
            ("patch", "nodes", ""),
        ),
    ],
)
def test_access_policy_permits_the_verbs_of_its_role(
    policy: str, may: tuple[str, ...], may_not: tuple[str, ...]
) -> None:
    assert not is_refused([policy], *may)
    assert is_refused([policy], *may_not)


def test_cluster_admin_policy_permits_everything() -> None:
    assert not is_refused(["AmazonEKSClusterAdminPolicy"], "delete", "nodes", "")


def test_namespace_policy_applies_only_in_its_namespace() -> None:
    policies = [{"policy": "AmazonEKSEditPolicy", "namespaces": ["team"]}]

    assert not is_refused(policies, "delete", "pods", "team")
    assert is_refused(policies, "delete", "pods", "other")
    assert is_refused(policies, "list", "pods", "")
