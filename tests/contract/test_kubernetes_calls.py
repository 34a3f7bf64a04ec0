"""Every Kubernetes call of the adapters: its request, and whether each release of Kubernetes accepts it."""

import inspect
import json
import re
from typing import Any

import kubernetes_validate
import pytest

from evenkeel.adapters.cluster import KubernetesCluster
from evenkeel.adapters.workload_resources import OPERATED
from tests import kubernetes_calls
from tests.kubernetes_calls import CASES, KINDS, RELEASES, KubernetesCase, KubernetesRequest, Resource, resource_of

CUSTOM = {
    *((operated.group, operated.plural) for operated in OPERATED),
    *(("karpenter.sh", plural) for plural in ("nodepools", "nodeclaims")),
    *(("kueue.x-k8s.io", plural) for plural in ("localqueues", "workloads", "admissionchecks")),
    *(("kueue.x-k8s.io", plural) for plural in ("resourceflavors", "clusterqueues")),
}
"""Custom resources, for which Kubernetes publishes no schema. tests/contract/test_operator_manifests.py and
tests/contract/test_kueue.py check them against their own definitions."""
LIST = {"labelSelector", "fieldSelector", "limit", "continue"}
WATCH = {"labelSelector", "fieldSelector", "watch", "allowWatchBookmarks", "resourceVersion", "timeoutSeconds"}
LOG = {"container", "tailLines", "limitBytes", "timestamps"}
"""Query parameters, as https://kubernetes.io/docs/reference/kubernetes-api/common-parameters/common-parameters/ and
https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/ list them."""
MERGE, JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"
CALLS = [(case.name, request) for case in CASES for request in case.record()]
BY_NAME = [pytest.param(request, id=f"{name}-{number}") for number, (name, request) in enumerate(CALLS)]


def built_in(request: KubernetesRequest) -> tuple[Resource, str] | None:
    """Return the resource of a call and its kind; None if Kubernetes itself does not have it."""
    resource = resource_of(request.path)
    if resource is None or (resource.group, resource.plural) in CUSTOM:
        return None
    return resource, KINDS[resource.group, resource.plural]


def test_requests_equal_their_golden_copies() -> None:
    golden = json.loads(kubernetes_calls.GOLDEN.read_text(encoding="utf-8"))

    assert kubernetes_calls.recorded() == golden, f"check the change, then run `{kubernetes_calls.UPDATE}`"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_golden_case_makes_a_call(case: KubernetesCase) -> None:
    assert case.record()


def test_every_operation_of_the_cluster_port_has_a_golden_case() -> None:
    source = inspect.getsource(kubernetes_calls)
    operations = [name for name, _ in inspect.getmembers(KubernetesCluster, inspect.isfunction) if name[0] != "_"]

    # `manifest_of` reads the object that `unmanaged_job` reads.
    assert [name for name in operations if f"port.{name}(" not in source] == ["manifest_of", "watch"]


@pytest.mark.parametrize("request_", BY_NAME)
def test_query_has_only_parameters_of_its_verb(request_: KubernetesRequest) -> None:
    resource = resource_of(request_.path)
    allowed: set[str] = set()
    if resource is not None and request_.method == "GET" and resource.subresource == "log":
        allowed = LOG
    elif resource is not None and request_.method == "GET" and not resource.is_object:
        allowed = WATCH if "watch" in request_.query else LIST

    assert set(request_.query) <= allowed


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("request_", BY_NAME)
def test_request_fits_the_published_schema(request_: KubernetesRequest, release: str) -> None:
    if request_.method == "DELETE":
        options = kubernetes_calls.schema("DeleteOptions", "meta", "v1", release)
        assert kubernetes_calls.unknown_fields(request_.body, options, release) == []
    kind_of_request = built_in(request_)
    if kind_of_request is None:
        return
    resource, kind = kind_of_request
    shape = kubernetes_calls.schema(kind, resource.group, resource.version, release)
    if request_.method == "POST":
        kubernetes_validate.validate(request_.body, release, strict=True)
        assert request_.body["kind"] == ("Eviction" if resource.subresource == "eviction" else kind)
    if request_.method == "PATCH":
        assert problems_of_patch(request_, shape, release) == []


def problems_of_patch(request: KubernetesRequest, shape: dict[str, Any], release: str) -> list[str]:
    if request.content_type == MERGE:
        return kubernetes_calls.unknown_fields(request.body, shape, release)
    assert request.content_type == JSON_PATCH
    pointers = [operation["path"] for operation in request.body]
    assert {operation["op"] for operation in request.body} <= {"add", "remove", "replace", "test"}
    return [unknown for pointer in pointers if (unknown := kubernetes_calls.unknown_pointer(pointer, shape, release))]


@pytest.mark.parametrize("request_", BY_NAME)
def test_patch_names_the_version_that_was_read(request_: KubernetesRequest) -> None:
    """Kueue alone decides whether its Workload is active, so that patch needs no version."""
    if request_.method != "PATCH" or "/workloads/" in request_.path:
        return

    assert re.search(
        r'"resourceVersion": "7"|"path": "/metadata/resourceVersion", "value": "7"', json.dumps(request_.body)
    )


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"spec": {"unschedulabel": True}}, [".spec.unschedulabel"]),
        ({"spec": {"unschedulable": "yes"}}, [".spec.unschedulable: 'yes' is no "]),
        ({"spec": {"taints": [{"keey": "a"}]}}, [".spec.taints[].keey"]),
        ({"spec": {"unschedulable": None}}, []),
        ({"metadata": {"annotations": {"any/name": "text"}}}, []),
    ],
)
def test_check_reports_unknown_field_of_a_patch(body: dict[str, Any], problem: list[str]) -> None:
    shape = kubernetes_calls.schema("Node", "", "v1", RELEASES[0])
    unknown = kubernetes_calls.unknown_fields(body, shape, RELEASES[0])

    assert [problem_found[: len(wanted)] for problem_found, wanted in zip(unknown, problem, strict=True)] == problem


def test_check_reports_unknown_path_of_a_json_patch() -> None:
    shape = kubernetes_calls.schema("Node", "", "v1", RELEASES[0])

    assert kubernetes_calls.unknown_pointer("/spec/taints/0/key", shape, RELEASES[0]) == ""
    assert kubernetes_calls.unknown_pointer("/metadata/annotations/evenkeel.io~1incident", shape, RELEASES[0]) == ""
    assert kubernetes_calls.unknown_pointer("/spec/taint/0", shape, RELEASES[0]) == "/spec/taint"
