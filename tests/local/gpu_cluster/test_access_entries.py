"""`evenkeel access` on the EKS operations of the local cluster, with planted faults."""

import json
import shlex
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from evenkeel_cli.commands import doctor
from evenkeel_cli.doctor.site import InspectedSite
from evenkeel_cli.main import main
from evenkeel_cli.offline import access
from evenkeel_client.context import ApiContext
from evenkeel_local.gpu_cluster import ClusterHandle
from tests.local.gpu_cluster.conftest import aws_client

Json = dict[str, Any]
Command = Callable[..., tuple[int, Json]]
STACK = "evenkeel-dev"


def role_of(function: str) -> str:
    return f"arn:aws:iam::111122223333:role/{STACK}-{function}-1A2B3C"


class StackAws:
    """The description of a stack, and the EKS operations of a local cluster."""

    def __init__(self, cluster: ClusterHandle) -> None:
        self._cluster = cluster
        self.clusters = cluster.eks_cluster_name
        self.functions = list(access.functions_with_access())

    def call(self, service: str, operation: str, **_: Any) -> Json:
        assert (service, operation) == ("cloudformation", "describe_stacks")
        roles = ",".join(f"{name}={role_of(name)}" for name in self.functions)
        parameters = [{"ParameterKey": "KubernetesClusters", "ParameterValue": self.clusters}]
        outputs = [{"OutputKey": "KubernetesRoleArns", "OutputValue": roles}]
        return {"Stacks": [{"Parameters": parameters, "Outputs": outputs}]}

    def client(self, service: str) -> Any:
        return aws_client(service, self._cluster.eks_url)


@pytest.fixture
def stack(cluster: ClusterHandle, monkeypatch: pytest.MonkeyPatch) -> Iterator[StackAws]:
    aws = StackAws(cluster)
    site = InspectedSite(aws, None, ApiContext("dev", "", "us-west-2"), STACK, access)
    monkeypatch.setattr(doctor, "stack_site", lambda _: (site, aws))
    yield aws
    cluster.control("PUT", "access-entries", {"accessEntries": []})


@pytest.fixture
def run(stack: StackAws, capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*arguments: str) -> tuple[int, Json]:
        capsys.readouterr()
        code = main(["access", "apply", *arguments, "-o", "json"])
        text = capsys.readouterr().out
        return code, json.loads(text) if text else {}

    return run


def entries(cluster: ClusterHandle) -> dict[str, tuple[str, ...]]:
    listed = cluster.control("GET", "access-entries")["accessEntries"]
    return {entry["principalArn"]: tuple(entry["kubernetesGroups"]) for entry in listed}


def actions(document: Json, index: int = 0) -> list[str]:
    return [entry["action"] for entry in document["clusters"][index]["entries"]]


def test_second_apply_of_access_entries_changes_nothing(cluster: ClusterHandle, run: Command) -> None:
    code, first = run("--yes")
    wanted = {role_of(name): tuple(sorted(access.groups_of(name))) for name in access.functions_with_access()}
    again, second = run("--yes")

    assert (code, set(actions(first))) == (0, {"create"})
    assert entries(cluster) == wanted
    assert (again, set(actions(second))) == (0, {"keep"})


def test_dry_run_shows_changes_of_access_entries_without_making_them(cluster: ClusterHandle, run: Command) -> None:
    code, document = run("--dry-run")

    assert (code, set(actions(document))) == (0, {"create"})
    assert entries(cluster) == {}


def test_access_entries_do_not_change_without_yes_or_terminal(cluster: ClusterHandle, run: Command) -> None:
    code, _ = run()

    assert code == 2
    assert entries(cluster) == {}


def test_manually_created_access_entry_keeps_its_groups_and_gains_ours(cluster: ClusterHandle, run: Command) -> None:
    cluster.put_access_entry(role_of("cordon_node"), ["platform:auditors"])
    cluster.put_access_entry("arn:aws:iam::111122223333:role/evenkeel-dev-by-hand", ["evenkeel:readers"])

    run("--yes")

    assert set(entries(cluster)[role_of("cordon_node")]) == {"evenkeel:cordoners", "platform:auditors"}
    assert "arn:aws:iam::111122223333:role/evenkeel-dev-by-hand" in entries(cluster)


def test_entry_of_a_removed_function_is_removed(cluster: ClusterHandle, run: Command) -> None:
    old = {"principalArn": role_of("protect_jobs"), "kubernetesGroups": ["evenkeel:readers"]}
    aws_client("eks", cluster.eks_url).create_access_entry(
        clusterName=cluster.eks_cluster_name, tags={"evenkeel:stack": STACK}, **old
    )

    code, document = run("--yes")

    assert (code, actions(document).count("remove")) == (0, 1)
    assert role_of("protect_jobs") not in entries(cluster)


def test_failed_cluster_is_named_and_other_clusters_are_processed(
    cluster: ClusterHandle, stack: StackAws, run: Command
) -> None:
    stack.clusters = f"absent-eks,{cluster.eks_cluster_name}"

    code, document = run("--yes")

    assert code == 1
    assert "ResourceNotFoundException" in document["clusters"][0]["problem"]
    assert "KubernetesClusters" in document["clusters"][0]["problem"]
    assert len(entries(cluster)) == len(access.functions_with_access())


def test_failed_entry_is_named_and_other_entries_are_processed(cluster: ClusterHandle, run: Command) -> None:
    fault = {"effect": "error", "api": "eks", "operation": "CreateAccessEntry", "times": 1, "status": 403}
    cluster.control("POST", "call-faults", {**fault, "code": "AccessDeniedException"})

    code, document = run("--yes")
    failed = [entry for entry in document["clusters"][0]["entries"] if entry["problem"]]
    again, _ = run("--yes")

    assert code == 1
    assert [entry["function"] for entry in failed] == [access.functions_with_access()[0]]
    assert "Use an identity that may" in failed[0]["problem"]
    assert (again, len(entries(cluster))) == (0, len(access.functions_with_access()))


def test_access_entry_is_created_once_despite_a_lost_reply(cluster: ClusterHandle, run: Command) -> None:
    cluster.control("POST", "call-faults", {"effect": "lost-reply", "api": "eks", "operation": "CreateAccessEntry"})

    code, _ = run("--yes")
    again, document = run("--yes")

    assert code == 1
    assert (again, set(actions(document))) == (0, {"keep"})


def test_stack_of_another_release_is_refused(
    cluster: ClusterHandle, stack: StackAws, run: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    stack.functions.append("future_function")

    assert main(["access", "apply", "--yes"]) == 1
    assert "future_function" in capsys.readouterr().err
    assert entries(cluster) == {}


def test_printed_commands_name_cluster_role_groups_and_tag(stack: StackAws, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["access", "print"]) == 0
    lines = [shlex.split(line) for line in capsys.readouterr().out.splitlines()]

    assert len(lines) == len(access.functions_with_access())
    first = access.functions_with_access()[0]
    index = lines[0].index("--kubernetes-groups")
    assert lines[0][:3] == ["aws", "eks", "create-access-entry"]
    assert lines[0][index + 1 : -2] == sorted(access.groups_of(first))
    assert lines[0][-1] == f"evenkeel:stack={STACK}"
    assert role_of(first) in lines[0]
