"""Access to EKS: tokens verified by STS on the engine, and the permissions of the published manifest."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import boto3
import pytest
import yaml

from evenkeel.adapters.cluster import KubernetesCluster
from evenkeel.adapters.eks import EksConnections, EksToken
from evenkeel.adapters.kubernetes import KubernetesApi
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.ports import (
    ClusterCordonResult,
    KubernetesPermission,
    LaunchResult,
    NotAllowed,
    NotFound,
    PermanentError,
    UncordonResult,
    Unreadable,
)
from evenkeel_cli.offline import access
from evenkeel_local.engine import Engine
from evenkeel_local.gpu_cluster import ClusterHandle, start
from evenkeel_local.identities import Credentials, make_user
from tests.contract.clusters_under_test import CLUSTER, CONFIG, FLEET, NAMESPACE, a_launch
from tests.waiting import until

ACCESS = Path(__file__).parents[2] / "charts" / "kubernetes-access.yaml"


@pytest.fixture(scope="module")
def guarded(engine: Engine, deployer: Credentials, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterHandle]:
    """A local GPU cluster that authenticates callers through the engine, with Evenkeel's manifest applied."""
    actions = ["iam:SimulatePrincipalPolicy", "iam:GetAccessKeyLastUsed", "lambda:ListFunctions"]
    credentials = make_user(deployer, "contract-gpu-cluster", [{"Effect": "Allow", "Action": actions, "Resource": "*"}])
    folder = tmp_path_factory.mktemp("guarded-cluster")
    keys = {"AWS_ACCESS_KEY_ID": credentials.access_key_id, "AWS_SECRET_ACCESS_KEY": credentials.secret_access_key}
    with start({**CONFIG, "authCacheSeconds": 0}, folder, engine.endpoint_url, keys) as handle:
        handle.apply(yaml.safe_load_all(ACCESS.read_text(encoding="utf-8")))
        yield handle


@pytest.fixture(scope="module")
def caller(deployer: Credentials) -> Credentials:
    """Credentials that may describe the cluster. Access entries give them Kubernetes permissions."""
    return make_user(
        deployer, "contract-caller", [{"Effect": "Allow", "Action": "eks:DescribeCluster", "Resource": "*"}]
    )


@pytest.fixture
def connections(guarded: ClusterHandle, caller: Credentials, monkeypatch: pytest.MonkeyPatch) -> EksConnections:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", caller.endpoint_url)
    session = caller.session()
    return EksConnections("us-west-2", session.client("eks", endpoint_url=guarded.eks_url), session._session)


def create_access_entry(guarded: ClusterHandle, caller: Credentials, *groups: str) -> None:
    guarded.put_access_entry(caller.principal_arn, groups)


def test_identity_without_an_access_entry_is_refused(
    guarded: ClusterHandle, caller: Credentials, connections: EksConnections
) -> None:
    create_access_entry(guarded, caller)

    with pytest.raises(NotAllowed):
        KubernetesCluster(connections, fleet=FLEET).nodes(CLUSTER)


def test_wrong_secret_is_refused(guarded: ClusterHandle, caller: Credentials, connections: EksConnections) -> None:
    create_access_entry(guarded, caller, "evenkeel:readers")
    forger = boto3.session.Session(caller.access_key_id, "wrong", region_name="us-west-2")._session
    api = KubernetesApi(CLUSTER, guarded.kubernetes_url, guarded.ca_pem, EksToken(CLUSTER, "us-west-2", forger))

    with pytest.raises(NotAllowed):
        api.get("/api/v1/nodes/any")


def test_token_for_another_cluster_is_refused(
    guarded: ClusterHandle, caller: Credentials, connections: EksConnections
) -> None:
    create_access_entry(guarded, caller, "evenkeel:readers")
    token = EksToken("another-eks", "us-west-2", caller.session()._session)

    with pytest.raises(NotAllowed):
        KubernetesApi(CLUSTER, guarded.kubernetes_url, guarded.ca_pem, token).get("/api/v1/nodes/any")


def test_readers_group_may_read_but_change_nothing(
    guarded: ClusterHandle, caller: Credentials, connections: EksConnections
) -> None:
    create_access_entry(guarded, caller, "evenkeel:readers")
    cluster = KubernetesCluster(connections, fleet=FLEET)

    name = cluster.nodes(CLUSTER)[0].name

    assert cluster.workloads(CLUSTER) == ()
    assert cluster.resources_in_use(CLUSTER) == {}
    assert cluster.kueue_namespaces(CLUSTER) == {}
    cluster.watch(CLUSTER, lambda _: None, until=iter([False, True]).__next__)
    with pytest.raises(NotAllowed):
        cluster.cordon(CLUSTER, name, "inc-1")


def test_cordoners_group_may_only_cordon_and_release(
    guarded: ClusterHandle, caller: Credentials, connections: EksConnections
) -> None:
    create_access_entry(guarded, caller, "evenkeel:cordoners")
    cluster = KubernetesCluster(connections, fleet=FLEET)
    name = guarded.nodes()[0]["name"]

    assert cluster.cordon(CLUSTER, name, "inc-1") is ClusterCordonResult.CORDONED
    assert cluster.return_to_service(CLUSTER, name, "inc-1") is UncordonResult.RELEASED
    with pytest.raises(NotAllowed):
        cluster.nodes(CLUSTER)


def test_launchers_group_manages_jobs_and_log_readers_read_logs(
    guarded: ClusterHandle, caller: Credentials, connections: EksConnections
) -> None:
    create_access_entry(guarded, caller, "evenkeel:readers", "evenkeel:launchers", "evenkeel:log-readers")
    cluster = KubernetesCluster(connections, fleet=FLEET)

    class Numbers:
        def new_job(self) -> str:
            return "job-0000000001"

    node = until(
        lambda: next((n for n in cluster.nodes(CLUSTER) if n.is_schedulable and n.pool == "p5-workers"), None),
        "a free node",
    )
    assert node is not None
    spec = a_launch(Numbers(), [node], "echo hello; exec sleep 60")  # type: ignore[arg-type]  # only its numbers

    assert cluster.launch(spec)[0] is LaunchResult.CREATED
    until(lambda: "hello" in log_of(cluster, spec.attempt), "the first line of the log")
    cluster.stop(spec.attempt, 1)
    cluster.force_delete_pods(spec.attempt, spec.attempt.node_names)

    until(lambda: cluster.workloads(CLUSTER) == (), "the workload to be gone")


def log_of(cluster: KubernetesCluster, attempt: Attempt) -> str:
    try:
        return cluster.logs(attempt, 0, 5)
    except (NotFound, PermanentError):
        return ""


@pytest.mark.parametrize("function", access.functions_with_access())
def test_role_has_exactly_the_rights_of_its_groups(
    function: str, guarded: ClusterHandle, caller: Credentials, connections: EksConnections
) -> None:
    create_access_entry(guarded, caller, *access.groups_of(function))
    cluster = KubernetesCluster(connections, fleet=FLEET)
    needed = [KubernetesPermission(*right) for right in access.rights_of(function, [NAMESPACE])]
    never = KubernetesPermission("delete", "", "namespaces")

    assert cluster.missing_rights(CLUSTER, [*needed, never]) == (never,)


def test_server_version_is_read_by_every_function(
    guarded: ClusterHandle, caller: Credentials, connections: EksConnections
) -> None:
    create_access_entry(guarded, caller, "evenkeel:cordoners")

    assert KubernetesCluster(connections, fleet=FLEET).server_version(CLUSTER).startswith("v1.")


def test_cluster_that_does_not_exist_is_not_found(connections: EksConnections) -> None:
    with pytest.raises(NotFound):
        connections.api("no-such-eks")


# ---------------------------------------------------------------- the token itself


def decode_token(token: str) -> Any:
    payload = token.removeprefix("k8s-aws-v1.")
    return urlsplit(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)).decode())


def test_token_is_a_presigned_sts_call_for_the_cluster() -> None:
    token = EksToken("research-eks", "us-west-2", boto3.session.Session("AKIA", "secret")._session)(False)

    url = decode_token(token)
    query = parse_qs(url.query)
    assert token.startswith("k8s-aws-v1.")
    assert not token.endswith("=")
    assert (url.scheme, url.netloc) == ("https", "sts.us-west-2.amazonaws.com")
    assert (query["Action"], query["X-Amz-Expires"]) == (["GetCallerIdentity"], ["60"])
    assert query["X-Amz-SignedHeaders"] == ["host;x-k8s-aws-id"]


def test_token_is_cached_for_ten_minutes() -> None:
    now = [0.0]
    eks_token = EksToken("research-eks", "us-west-2", boto3.session.Session("AKIA", "secret")._session, lambda: now[0])
    first = eks_token(False)

    now[0] = 599.0
    kept = eks_token(False)
    again = eks_token(True)
    now[0] = 599.0 + 601.0
    later = eks_token(False)

    assert kept is first
    assert again is not first
    assert later is not again


def test_cluster_without_an_endpoint_shows_its_status() -> None:
    class Creating:
        def describe_cluster(self, **_: Any) -> Any:
            return {"cluster": {"status": "CREATING"}}

    with pytest.raises(PermanentError, match="CREATING"):
        EksConnections("us-west-2", Creating()).api("research-eks")


@pytest.mark.parametrize(
    "answer",
    [{}, {"cluster": {"endpoint": "https://x", "certificateAuthority": {"data": "a"}}}],
)
def test_malformed_description_of_cluster_is_unreadable(answer: dict[str, Any]) -> None:
    class Malformed:
        def describe_cluster(self, **_: Any) -> Any:
            return answer

    with pytest.raises(Unreadable, match="describe EKS cluster research-eks: malformed answer"):
        EksConnections("us-west-2", Malformed()).api("research-eks")


def test_access_manifest_binds_every_group_of_the_access_entries() -> None:
    """The last group is bound only in namespaces whose jobs Evenkeel may restart."""
    entries = json.loads((ACCESS.parent / "access-entries.json").read_text(encoding="utf-8"))
    bound = {
        subject["name"]
        for item in yaml.safe_load_all(ACCESS.read_text(encoding="utf-8"))
        for subject in item.get("subjects", ())
    }

    assert {group for groups in entries.values() for group in groups} == bound | {"evenkeel:restarters"}
