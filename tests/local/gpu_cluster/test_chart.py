"""The Helm chart on the local cluster: installed, upgraded while Evenkeel rents, and uninstalled."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from evenkeel.adapters.cluster import KubernetesCluster
from evenkeel.adapters.kubernetes import KubernetesApi
from evenkeel.ports import LimitResult
from evenkeel_cli.offline import access
from evenkeel_local import gpu_cluster
from evenkeel_local.gpu_cluster import ClusterHandle
from tests.chart_values import BURST, TEAMS, helm
from tests.contract.test_capacity import SingleConnection
from tests.local.gpu_cluster.conftest import QUICK
from tests.local.gpu_cluster.kube_client import KubeApiError, KubeClient
from tests.local.gpu_cluster.test_karpenter import KARPENTER, POOLS
from tools.chart import CHART

Helm = Callable[..., str]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterHandle]:
    config = {**QUICK, "instanceGroups": [{"name": "none", "count": 0}], "karpenter": KARPENTER}
    with gpu_cluster.start(config, tmp_path_factory.mktemp("chart")) as handle:
        yield handle


@pytest.fixture
def kube(running: ClusterHandle) -> Iterator[KubeClient]:
    running.control("POST", "reset")
    client = KubeClient(running.kubernetes_url, running.ca_pem, running.admin_token)
    client.create("/api/v1/namespaces", {"metadata": {"name": "research"}})
    yield client
    client.close()


@pytest.fixture
def run_helm(running: ClusterHandle, tmp_path: Path) -> Helm:
    program = helm()
    (tmp_path / "kubeconfig").write_text(json.dumps(running.kubeconfig()))
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(TEAMS | BURST))
    environment = {"KUBECONFIG": str(tmp_path / "kubeconfig"), "HOME": str(tmp_path), "PATH": os.environ["PATH"]}

    def run(*arguments: str | Path) -> str:
        result = subprocess.run(
            [program, *arguments], capture_output=True, text=True, env=environment, timeout=90, check=False
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    return run


def limit_of(kube: KubeClient, pool: str) -> str:
    return str(kube.get(f"{POOLS}/{pool}")["spec"]["limits"]["nvidia.com/gpu"])


def test_chart_upgrade_keeps_rented_limits_and_uninstall_keeps_pools(
    running: ClusterHandle, kube: KubeClient, run_helm: Helm, tmp_path: Path
) -> None:
    """Uses helm's defaults: server-side apply, which refuses conflicts of field managers."""
    values = ("-f", tmp_path / "values.yaml")
    installed = run_helm("install", "evenkeel", CHART, *values)
    assert "STATUS: deployed" in installed
    assert limit_of(kube, "burst-on-demand") == "0"
    api = KubernetesApi("research", running.kubernetes_url, running.ca_pem, lambda _: running.admin_token)
    cluster = KubernetesCluster(SingleConnection(api), fleet="main")

    assert cluster.set_pool_limit("research", "burst-on-demand", lambda: (2, 16)) is LimitResult.SET
    run_helm("upgrade", "evenkeel", CHART, *values, "--set-string", "namespaces.nlp.labels.cost=7")

    assert limit_of(kube, "burst-on-demand") == "16"
    assert kube.get("/api/v1/namespaces/nlp")["metadata"]["labels"]["cost"] == "7"
    run_helm("uninstall", "evenkeel")
    assert limit_of(kube, "burst-on-demand") == "16"
    assert kube.get("/api/v1/namespaces/nlp")["metadata"]["name"] == "nlp"
    with pytest.raises(KubeApiError):
        kube.get("/apis/rbac.authorization.k8s.io/v1/clusterroles/evenkeel-reader")


def test_installed_chart_grants_each_function_its_rights(
    running: ClusterHandle, kube: KubeClient, run_helm: Helm, tmp_path: Path
) -> None:
    """The rights are those that `evenkeel doctor` checks, in every namespace of the chart."""
    run_helm("install", "evenkeel", CHART, "-f", tmp_path / "values.yaml")

    def allowed(function: str, rule: access.AccessRule) -> bool:
        resource, _, part = rule.resource.partition("/")
        attributes = {"verb": rule.verb, "group": rule.group, "resource": resource, "subresource": part}
        spec = {
            "user": function,
            "groups": list(access.groups_of(function)),
            "resourceAttributes": attributes | ({"namespace": rule.namespace} if rule.namespace else {}),
        }
        answer = kube.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": spec})
        return bool(answer["status"]["allowed"])

    assert [
        (function, str(rule))
        for function in access.functions_with_access()
        for rule in access.rights_of(function, ("evenkeel-jobs", "nlp"))
        if not allowed(function, rule)
    ] == []
    assert not allowed("launch_job", access.AccessRule("create", "batch", "jobs", "default"))
    assert allowed("drain_node", access.AccessRule("patch", "batch", "jobs", "research"))
