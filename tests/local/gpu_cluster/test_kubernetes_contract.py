"""The answers of a Kubernetes API server: one suite, for the local cluster and, on request, for a real server.

Set EVENKEEL_KUBE_APISERVER (URL), EVENKEEL_KUBE_TOKEN (of a member of `system:masters`) and EVENKEEL_KUBE_CA (a file)
to run it against a real kube-apiserver. Tests that need a controller, scheduler or kubelet beside it are marked
`needs_controllers`. Names are unique to a run, and all objects are deleted at its end.
"""

import base64
import contextlib
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.local.gpu_cluster.contract import REAL, budgets_of, deployments_of, finalize, jobs_of
from tests.local.gpu_cluster.kube_client import (
    APPLY,
    JSON_PATCH,
    MERGE,
    STRATEGIC,
    Json,
    KubeApiError,
    KubeClient,
    a_job,
    a_pod,
    eventually,
)

RUN = uuid.uuid4().hex[:8]
GROUP = f"r{RUN}.example.evenkeel.io"
WIDGETS: Json = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"widgets.{GROUP}"},
    "spec": {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "shortNames": ["wg"]},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {
                    "status": {},
                    "scale": {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size"},
                },
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "required": ["size"],
                                "properties": {
                                    "size": {"type": "integer", "minimum": 1},
                                    "colour": {"type": "string", "enum": ["red", "blue"], "default": "red"},
                                    "parts": {"type": "array", "items": {"type": "string"}},
                                },
                            },
                            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                        },
                    }
                },
            }
        ],
    },
}
needs_controllers = pytest.mark.skipif(bool(REAL), reason="a bare API server runs no controllers")


def answers(api: KubeClient, path: str) -> bool:
    try:
        api.get(path)
    except KubeApiError:
        return False
    return True


@pytest.fixture
def maps(space: str) -> str:
    return f"{space}/configmaps"


@pytest.fixture(scope="module")
def widgets(api: KubeClient) -> Iterator[str]:
    """A custom resource definition; returns the plural name of its objects."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    api.create(path, WIDGETS)
    api.until(
        f"{path}/widgets.{GROUP}",
        lambda crd: any(
            c["type"] == "Established" and c["status"] == "True" for c in crd["status"].get("conditions") or ()
        ),
        "the definition to be established",
    )
    # A definition is established a moment before its objects are served.
    eventually(lambda: answers(api, f"/apis/{GROUP}/v1/widgets"), "the widgets to be served")
    yield "widgets"
    api.delete(f"{path}/widgets.{GROUP}")


def of_widgets(space: str) -> str:
    return space.replace("/api/v1", f"/apis/{GROUP}/v1") + "/widgets"


def a_map(name: str, **data: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


# Reading and writing


def test_created_object_has_the_fields_that_server_sets(api: KubeClient, maps: str) -> None:
    created = api.create(maps, a_map("one", a="1"))

    metadata = created["metadata"]
    assert {"uid", "resourceVersion", "creationTimestamp", "namespace", "name"} <= set(metadata)
    assert (created["kind"], created["apiVersion"]) == ("ConfigMap", "v1")
    assert api.get(f"{maps}/one") == created


def test_duplicate_name_is_a_conflict(api: KubeClient, maps: str) -> None:
    api.create(maps, a_map("one"))

    refused = api.status_of("POST", maps, a_map("one"))

    assert (refused.code, refused.reason) == (409, "AlreadyExists")
    assert refused.status["details"] == {"name": "one", "kind": "configmaps"}


def test_generate_name_makes_a_unique_name(api: KubeClient, maps: str) -> None:
    body = {"metadata": {"generateName": "made-"}}

    names = {api.create(maps, body)["metadata"]["name"] for _ in range(2)}

    assert len(names) == 2
    assert all(name.startswith("made-") and len(name) == len("made-") + 5 for name in names)


def test_missing_object_is_a_status_404(api: KubeClient, maps: str) -> None:
    refused = api.status_of("GET", f"{maps}/none")

    assert (refused.code, refused.reason) == (404, "NotFound")
    assert refused.status["kind"] == "Status"
    assert refused.status["message"] == 'configmaps "none" not found'


def test_create_in_a_missing_namespace_is_404(api: KubeClient) -> None:
    refused = api.status_of("POST", "/api/v1/namespaces/nowhere-at-all/configmaps", a_map("one"))

    assert (refused.code, refused.reason) == (404, "NotFound")


def test_body_of_another_kind_is_refused(api: KubeClient, maps: str) -> None:
    assert api.status_of("POST", maps, {"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "x"}}).code == 400
    assert api.status_of("POST", maps, "{not json").code == 400


@pytest.mark.parametrize("name", ["Upper", "under_score", "-first", "a" * 254])
def test_invalid_name_is_refused(api: KubeClient, maps: str, name: str) -> None:
    refused = api.status_of("POST", maps, a_map(name))

    assert (refused.code, refused.reason) == (422, "Invalid")
    assert refused.status["details"]["causes"][0]["field"] == "metadata.name"


def test_update_of_an_old_version_is_a_conflict(api: KubeClient, maps: str) -> None:
    first = api.create(maps, a_map("one", a="1"))
    api.call("PUT", f"{maps}/one", {**first, "data": {"a": "2"}})

    refused = api.status_of("PUT", f"{maps}/one", {**first, "data": {"a": "3"}})

    assert (refused.code, refused.reason) == (409, "Conflict")
    assert api.get(f"{maps}/one")["data"] == {"a": "2"}


def test_unchanged_write_keeps_the_version(api: KubeClient, maps: str) -> None:
    first = api.create(maps, a_map("one", a="1"))

    again = api.patch(f"{maps}/one", {"data": {"a": "1"}})

    assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


def test_dry_run_stores_nothing(api: KubeClient, maps: str) -> None:
    created = api.create(f"{maps}?dryRun=All", a_map("one", a="1"))

    assert created["data"] == {"a": "1"}
    assert api.status_of("GET", f"{maps}/one").code == 404


def test_dry_run_of_a_change_returns_its_result(api: KubeClient, maps: str) -> None:
    before = api.create(maps, a_map("one", a="1"))

    patched = api.patch(f"{maps}/one?dryRun=All", {"data": {"a": "2"}})
    put = api.call("PUT", f"{maps}/one?dryRun=All", {**before, "data": {"a": "3"}})
    applied = api.patch(f"{maps}/one?dryRun=All&fieldManager=x&force=true", a_map("one", a="4"), APPLY)
    deleted = api.delete(f"{maps}/one?dryRun=All")

    assert [answer["data"] for answer in (patched, put, applied)] == [{"a": "2"}, {"a": "3"}, {"a": "4"}]
    assert deleted["status"] == "Success"
    assert api.get(f"{maps}/one") == before


def test_parallel_writers_lose_no_update(api: KubeClient, maps: str) -> None:
    api.create(maps, a_map("counter", n="0"))

    codes: set[int] = set()

    def increment_ten_times() -> None:
        done = 0
        while done < 10:
            current = api.get(f"{maps}/counter")
            current["data"]["n"] = str(int(current["data"]["n"]) + 1)
            try:
                api.call("PUT", f"{maps}/counter", current)
            except KubeApiError as refused:
                codes.add(refused.code)
            else:
                done += 1

    threads = [threading.Thread(target=increment_ten_times) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert api.get(f"{maps}/counter")["data"] == {"n": "30"}
    assert codes <= {409}


# Patches


def test_merge_patch_removes_with_null(api: KubeClient, maps: str) -> None:
    api.create(maps, a_map("one", a="1", b="2"))

    assert api.patch(f"{maps}/one", {"data": {"a": None, "c": "3"}})["data"] == {"b": "2", "c": "3"}


def test_patch_with_a_stale_version_is_a_conflict(api: KubeClient, maps: str) -> None:
    first = api.create(maps, a_map("one", a="1"))
    api.patch(f"{maps}/one", {"data": {"a": "2"}})

    body = {"metadata": {"resourceVersion": first["metadata"]["resourceVersion"]}, "data": {"a": "3"}}
    for kind in (MERGE, STRATEGIC):
        refused = api.status_of("PATCH", f"{maps}/one", body, kind)
        assert (refused.code, refused.reason) == (409, "Conflict")


@pytest.mark.parametrize("kind", [MERGE, STRATEGIC])
def test_patch_cannot_change_the_uid(api: KubeClient, maps: str, kind: str) -> None:
    api.create(maps, a_map("one", a="1"))

    refused = api.status_of("PATCH", f"{maps}/one", {"metadata": {"uid": str(uuid.uuid4())}}, kind)

    assert (refused.code, refused.reason) == (422, "Invalid")
    (cause,) = refused.status["details"]["causes"]
    assert (cause["reason"], cause["field"]) == ("FieldValueInvalid", "metadata.uid")
    assert cause["message"].endswith("field is immutable")


def test_replacement_uses_the_uid_as_a_precondition(api: KubeClient, maps: str) -> None:
    first = api.create(maps, a_map("one", a="1"))
    body = {**first, "metadata": {**first["metadata"], "uid": str(uuid.uuid4())}}

    refused = api.status_of("PUT", f"{maps}/one", body)

    assert (refused.code, refused.reason) == (409, "Conflict")
    assert "Precondition failed: UID in precondition" in str(refused.status["message"])


@pytest.mark.parametrize("kind", [MERGE, STRATEGIC])
def test_node_is_cordoned_and_tainted_by_patch(api: KubeClient, node: str, kind: str) -> None:
    taint = {"key": "evenkeel.io/suspect", "value": "inc-1", "effect": "NoSchedule"}

    patched = api.patch(node, {"spec": {"unschedulable": True, "taints": [taint]}}, kind)

    assert patched["spec"]["unschedulable"] is True
    assert taint in patched["spec"]["taints"]


def test_strategic_patch_replaces_taints_and_merges_conditions(api: KubeClient, node: str) -> None:
    two = [{"key": "a", "effect": "NoSchedule"}, {"key": "b", "effect": "NoSchedule"}]
    api.patch(node, {"spec": {"taints": two}}, STRATEGIC)
    conditions = [{"type": "A", "status": "True"}, {"type": "B", "status": "True"}]
    api.patch(f"{node}/status", {"status": {"conditions": conditions}}, STRATEGIC)

    patched = api.patch(node, {"spec": {"taints": two[:1]}}, STRATEGIC)
    merged = api.patch(f"{node}/status", {"status": {"conditions": [{"type": "B", "status": "False"}]}}, STRATEGIC)

    assert "b" not in {taint["key"] for taint in patched["spec"]["taints"]}
    values = {entry["type"]: entry["status"] for entry in merged["status"]["conditions"]}
    assert (values["A"], values["B"]) == ("True", "False")


def test_json_patch_test_guards_the_change(api: KubeClient, node: str) -> None:
    failing = [
        {"op": "test", "path": "/metadata/labels/a", "value": "2"},
        {"op": "add", "path": "/spec/unschedulable", "value": True},
    ]
    passing = [
        {"op": "test", "path": "/metadata/labels/a", "value": "1"},
        {"op": "add", "path": "/spec/unschedulable", "value": True},
    ]

    refused = api.status_of("PATCH", node, failing, JSON_PATCH)
    patched = api.patch(node, passing, JSON_PATCH)

    assert (refused.code, refused.reason) == (422, "Invalid")
    assert patched["spec"]["unschedulable"] is True


def test_json_patch_of_a_missing_path_is_invalid(api: KubeClient, maps: str) -> None:
    api.create(maps, a_map("one", a="1"))

    refused = api.status_of("PATCH", f"{maps}/one", [{"op": "remove", "path": "/data/none"}], JSON_PATCH)

    assert (refused.code, refused.reason) == (422, "Invalid")


def test_patch_of_an_unknown_type_is_415(api: KubeClient, maps: str) -> None:
    api.create(maps, a_map("one", a="1"))

    assert api.status_of("PATCH", f"{maps}/one", {"data": {}}, "application/json").code == 415


def test_invalid_taint_is_refused(api: KubeClient, node: str) -> None:
    refused = api.status_of("PATCH", node, {"spec": {"taints": [{"key": "a", "effect": "Never"}]}}, MERGE)

    assert (refused.code, refused.reason) == (422, "Invalid")


def test_name_and_provider_of_a_node_are_immutable(api: KubeClient, node: str) -> None:
    api.patch(node, {"spec": {"providerID": "aws:///usw2-az1/i-0123456789abcdef0"}})

    refused = api.status_of("PATCH", node, {"spec": {"providerID": "aws:///usw2-az1/i-0aaaaaaaaaaaaaaaa"}}, MERGE)

    assert (refused.code, refused.reason) == (422, "Invalid")


# Status


def test_status_is_written_only_through_its_subresource(api: KubeClient, node: str) -> None:
    condition = {"type": "Odd", "status": "True"}

    patch = api.patch(node, {"status": {"conditions": [condition]}})
    status = api.patch(f"{node}/status", {"status": {"conditions": [condition]}, "spec": {"unschedulable": True}})

    assert not any(entry["type"] == "Odd" for entry in patch["status"].get("conditions", []))
    assert any(entry["type"] == "Odd" for entry in status["status"]["conditions"])
    assert "unschedulable" not in status["spec"]


# Lists


def test_list_is_filtered_by_label_and_field_selectors(api: KubeClient, maps: str) -> None:
    for name, tier in (("one", "gold"), ("two", "gold"), ("three", "lead")):
        api.create(maps, {"metadata": {"name": name, "labels": {"tier": tier, name: "yes"}}})

    def names(query: str) -> set[str]:
        return {item["metadata"]["name"] for item in api.items(f"{maps}?{query}")} - {"kube-root-ca.crt"}

    assert names("labelSelector=tier=gold") == {"one", "two"}
    assert names("labelSelector=tier!%3Dgold") == {"three"}
    assert names("labelSelector=tier%20in%20(lead,iron)") == {"three"}
    assert names("labelSelector=tier%20notin%20(lead),one") == {"one"}
    assert names("labelSelector=!one,tier") == {"two", "three"}
    assert names("fieldSelector=metadata.name=two") == {"two"}
    assert api.status_of("GET", f"{maps}?fieldSelector=data.a=1").code == 400
    assert api.status_of("GET", f"{maps}?labelSelector=a%20in").code == 400


def test_pages_of_a_list_show_one_resource_version(api: KubeClient, maps: str) -> None:
    for number in range(5):
        api.create(maps, {"metadata": {"name": f"m{number}", "labels": {"page": "1"}}})

    first = api.get(f"{maps}?labelSelector=page&limit=2")
    api.delete(f"{maps}/m3")
    second = api.get(f"{maps}?labelSelector=page&limit=2&continue={first['metadata']['continue']}")
    third = api.get(f"{maps}?labelSelector=page&limit=2&continue={second['metadata']['continue']}")

    names = [item["metadata"]["name"] for page in (first, second, third) for item in page["items"]]
    assert names == ["m0", "m1", "m2", "m3", "m4"]
    assert "continue" not in third["metadata"]
    assert len({page["metadata"]["resourceVersion"] for page in (first, second, third)}) == 1


# Watches


def test_watch_shows_events_after_a_version(api: KubeClient, maps: str) -> None:
    start = api.get(maps)["metadata"]["resourceVersion"]
    api.create(maps, a_map("one", a="1"))
    api.patch(f"{maps}/one", {"data": {"a": "2"}})
    api.delete(f"{maps}/one")

    events: list[Json] = []
    for event in api.watch(f"{maps}?resourceVersion={start}&fieldSelector=metadata.name=one", seconds=5):
        events.append(event)
        if len(events) == 3:
            break

    assert [event["type"] for event in events] == ["ADDED", "MODIFIED", "DELETED"]
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events]
    assert versions == sorted(set(versions))


def test_watch_reports_object_that_stops_matching_selector_as_deleted(api: KubeClient, maps: str) -> None:
    start = api.get(maps)["metadata"]["resourceVersion"]
    api.create(maps, {"metadata": {"name": "one", "labels": {"in": "yes"}}})
    api.patch(f"{maps}/one", {"metadata": {"labels": {"in": None}}})
    api.patch(f"{maps}/one", {"metadata": {"labels": {"in": "again"}}})

    kinds: list[str] = []
    for event in api.watch(f"{maps}?resourceVersion={start}&labelSelector=in", seconds=5):
        kinds.append(event["type"])
        if len(kinds) == 3:
            break

    assert kinds == ["ADDED", "DELETED", "ADDED"]


def test_watch_without_a_version_begins_with_existing_objects(api: KubeClient, maps: str) -> None:
    api.create(maps, {"metadata": {"name": "one", "labels": {"seen": "yes"}}})

    first = next(api.watch(f"{maps}?labelSelector=seen"))

    assert (first["type"], first["object"]["metadata"]["name"]) == ("ADDED", "one")


@pytest.fixture
def expire_old_versions(api: KubeClient, request: pytest.FixtureRequest) -> None:
    """Compact the history, as after five minutes; a real server has no history before its own start."""
    if not REAL:
        request.getfixturevalue("running_cluster").control("POST", "compact")


@pytest.mark.usefixtures("expire_old_versions")
def test_watch_from_an_expired_version_reports_it_and_ends(api: KubeClient, maps: str) -> None:
    (only,) = api.watch(f"{maps}?resourceVersion=1", seconds=2)

    assert only["type"] == "ERROR"
    assert (only["object"]["code"], only["object"]["reason"]) == (410, "Expired")


@pytest.mark.usefixtures("expire_old_versions")
def test_continuation_at_an_expired_version_is_410(api: KubeClient, maps: str) -> None:
    old = base64.urlsafe_b64encode(b'{"v":"meta.k8s.io/v1","rv":1,"start":"a\\u0000"}').decode().rstrip("=")
    try:
        api.get(f"{maps}?limit=1&continue={old}")
    except KubeApiError as refused:
        assert (refused.code, refused.reason) == (410, "Expired")  # noqa: PT017 (an answer is one for a young server)
    else:
        assert REAL, "answer 410 Expired for a version that the server no longer keeps"
        pytest.skip("the server is too young to have forgotten its first version")

    assert api.status_of("GET", f"{maps}?limit=1&continue=nonsense").code == 400


def test_watch_ends_after_its_timeout(api: KubeClient, maps: str) -> None:
    start = api.get(maps)["metadata"]["resourceVersion"]

    assert list(api.watch(f"{maps}?resourceVersion={start}&labelSelector=none", seconds=1)) == []


def watch_events(api: KubeClient, path: str) -> Iterator[Json]:
    try:
        yield from api.watch(path)
    except KubeApiError as refused:
        if REAL and "WatchList feature gate" in str(refused.status.get("message")):
            pytest.skip("this server's WatchList is switched off")
        raise


def test_initial_events_of_a_watch_end_with_bookmark(api: KubeClient, maps: str) -> None:
    api.create(maps, {"metadata": {"name": "one", "labels": {"seen": "yes"}}})
    query = "labelSelector=seen&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan"

    events: list[Json] = []
    for event in watch_events(api, f"{maps}?{query}"):
        events.append(event)
        if event["type"] == "BOOKMARK":
            break

    assert [event["type"] for event in events] == ["ADDED", "BOOKMARK"]
    assert events[-1]["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"] == "true"


# Deletion


def test_deletion_of_a_config_map_returns_a_status(api: KubeClient, maps: str) -> None:
    created = api.create(maps, a_map("one"))

    answer = api.delete(f"{maps}/one")

    assert (answer["kind"], answer["status"]) == ("Status", "Success")
    assert answer["details"] == {"name": "one", "kind": "configmaps", "uid": created["metadata"]["uid"]}


def test_deletion_with_a_failed_precondition_is_refused(api: KubeClient, maps: str) -> None:
    api.create(maps, a_map("one"))

    refused = api.status_of("DELETE", f"{maps}/one", {"preconditions": {"uid": str(uuid.uuid4())}})

    assert (refused.code, refused.reason) == (409, "Conflict")
    assert api.get(f"{maps}/one")


def test_object_exists_until_its_finalizer_is_removed(api: KubeClient, maps: str) -> None:
    body = a_map("held")
    body["metadata"]["finalizers"] = ["evenkeel.io/held"]
    api.create(maps, body)

    deleted = api.delete(f"{maps}/held")
    added = api.status_of("PATCH", f"{maps}/held", {"metadata": {"finalizers": ["evenkeel.io/held", "a.io/b"]}}, MERGE)
    held = api.get(f"{maps}/held")
    api.patch(f"{maps}/held", {"metadata": {"finalizers": None}})

    assert deleted["metadata"]["deletionTimestamp"] == held["metadata"]["deletionTimestamp"]
    assert added.code == 422
    assert api.status_of("GET", f"{maps}/held").code == 404


def test_collection_is_deleted_by_selector(api: KubeClient, maps: str) -> None:
    for name in ("one", "two"):
        api.create(maps, {"metadata": {"name": name, "labels": {"go": name}}})

    api.call("DELETE", f"{maps}?labelSelector=go=one")

    assert api.status_of("GET", f"{maps}/one").code == 404
    assert api.get(f"{maps}/two")


# Jobs and pods


def test_job_gets_its_selector_and_defaults(api: KubeClient, space: str) -> None:
    job = api.create(jobs_of(space), a_job("one", "true", spec={"suspend": True}))

    uid = job["metadata"]["uid"]
    assert job["spec"]["selector"] == {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert labels["batch.kubernetes.io/job-name"] == labels["job-name"] == "one"
    assert job["metadata"]["generation"] == 1
    assert api.status_of("POST", jobs_of(space), a_job("one", "true")).reason == "AlreadyExists"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"template": {"spec": {"containers": [{"name": "a", "image": "b"}]}}}, "spec.template.spec.restartPolicy"),
        ({"completions": None}, "spec.completions"),
        ({"parallelism": -1}, "spec.parallelism"),
        ({"podReplacementPolicy": "Sometimes"}, "spec.podReplacementPolicy"),
    ],
)
def test_invalid_job_is_refused(api: KubeClient, space: str, change: Json, field: str) -> None:
    body = a_job("one", "true")
    body["spec"].update(change)
    body["spec"] = {key: value for key, value in body["spec"].items() if value is not None}

    refused = api.status_of("POST", jobs_of(space), body)

    assert (refused.code, refused.reason) == (422, "Invalid")
    assert field in {cause["field"] for cause in refused.status["details"]["causes"]}


def test_template_and_completions_of_a_job_are_immutable(api: KubeClient, space: str) -> None:
    api.create(jobs_of(space), a_job("one", "true", spec={"suspend": True}))

    refused = api.status_of("PATCH", f"{jobs_of(space)}/one", {"spec": {"completions": 7}}, MERGE)

    assert (refused.code, refused.reason) == (422, "Invalid")


def test_job_deleted_in_the_foreground_waits_for_its_finalizer(api: KubeClient, space: str) -> None:
    # Another program's finalizer holds the object; a garbage collector would remove its own finalizer at once.
    body = a_job("one", "true", spec={"suspend": True})
    body["metadata"]["finalizers"] = ["evenkeel.io/held"]
    api.create(jobs_of(space), body)

    deleted = api.delete(f"{jobs_of(space)}/one", {"propagationPolicy": "Foreground"})
    held = api.get(f"{jobs_of(space)}/one")
    api.patch(f"{jobs_of(space)}/one", {"metadata": {"finalizers": None}})

    assert deleted["kind"] == "Job"
    assert deleted["metadata"]["finalizers"] == ["evenkeel.io/held", "foregroundDeletion"]
    assert held["metadata"]["deletionTimestamp"]
    assert api.status_of("GET", f"{jobs_of(space)}/one").code == 404


@needs_controllers
def test_job_deleted_in_the_foreground_is_collected(api: KubeClient, space: str) -> None:
    api.create(jobs_of(space), a_job("one", "true", spec={"suspend": True}))

    api.delete(f"{jobs_of(space)}/one", {"propagationPolicy": "Foreground"})

    api.until_gone(f"{jobs_of(space)}/one")


# Deployments


def a_deployment(name: str, **spec: Any) -> Json:
    """Return a Deployment without pods, on which no controller acts."""
    labels = {"app": name}
    return {
        "metadata": {"name": name},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "x:1"}]}},
            **spec,
        },
    }


def test_deployment_gets_its_defaults(api: KubeClient, space: str) -> None:
    created = api.create(deployments_of(space), a_deployment("one"))

    spec = created["spec"]
    assert (spec["progressDeadlineSeconds"], spec["revisionHistoryLimit"]) == (600, 10)
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}
    assert spec["template"]["spec"]["restartPolicy"] == "Always"
    assert created["metadata"]["generation"] == 1


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"selector": {"matchLabels": {"app": "other"}}}, "spec.template.metadata.labels"),
        ({"selector": {}}, "spec.selector"),
        ({"replicas": -1}, "spec.replicas"),
        ({"strategy": {"type": "Sometimes"}}, "spec.strategy.type"),
        (
            {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}}},
            "spec.strategy.rollingUpdate.maxUnavailable",
        ),
        ({"strategy": {"type": "Recreate", "rollingUpdate": {"maxSurge": 1}}}, "spec.strategy.rollingUpdate"),
    ],
)
def test_invalid_deployment_is_refused(api: KubeClient, space: str, change: Json, field: str) -> None:
    refused = api.status_of("POST", deployments_of(space), a_deployment("one", **change))

    assert (refused.code, refused.reason) == (422, "Invalid")
    assert field in {cause["field"] for cause in refused.status["details"]["causes"]}


def test_selector_of_a_deployment_is_immutable(api: KubeClient, space: str) -> None:
    api.create(deployments_of(space), a_deployment("one"))
    labels = {"app": "one", "tier": "gold"}
    change = {"spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}}}}

    refused = api.status_of("PATCH", f"{deployments_of(space)}/one", change, MERGE)

    assert (refused.code, refused.reason) == (422, "Invalid")


def test_scale_of_a_deployment_is_a_subresource(api: KubeClient, space: str) -> None:
    path = f"{deployments_of(space)}/one/scale"
    api.create(deployments_of(space), a_deployment("one", paused=True))

    first = api.get(path)
    patched = api.patch(path, {"spec": {"replicas": 2}})
    stale = api.status_of("PUT", path, {**first, "spec": {"replicas": 3}})
    negative = api.status_of("PATCH", path, {"spec": {"replicas": -1}}, MERGE)
    whole = api.get(f"{deployments_of(space)}/one")

    assert (first["kind"], first["apiVersion"]) == ("Scale", "autoscaling/v1")
    assert (first["spec"].get("replicas", 0), first["status"]["selector"]) == (0, "app=one")
    assert patched["spec"] == {"replicas": 2}
    assert (stale.code, stale.reason) == (409, "Conflict")
    assert (negative.code, negative.reason) == (422, "Invalid")
    assert (whole["spec"]["replicas"], whole["metadata"]["generation"]) == (2, 2)


def test_gpu_request_without_a_limit_is_refused(api: KubeClient, space: str) -> None:
    body = a_pod("greedy")
    body["spec"]["containers"][0]["resources"] = {"requests": {"nvidia.com/gpu": "1"}}

    refused = api.status_of("POST", f"{space}/pods", body)

    assert (refused.code, refused.reason) == (422, "Invalid")


def test_containers_of_a_pod_are_immutable(api: KubeClient, space: str) -> None:
    api.create(f"{space}/pods", a_pod("one", schedulerName="nobody"))

    change = {"spec": {"containers": [{"name": "main", "command": ["other"]}]}}
    refused = api.status_of("PATCH", f"{space}/pods/one", change, STRATEGIC)
    image = api.patch(f"{space}/pods/one", {"spec": {"containers": [{"name": "main", "image": "new:2"}]}}, STRATEGIC)

    assert (refused.code, refused.reason) == (422, "Invalid")
    assert image["spec"]["containers"][0]["image"] == "new:2"


def test_pending_pod_is_deleted_at_once(api: KubeClient, space: str) -> None:
    api.create(f"{space}/pods", a_pod("one", schedulerName="nobody"))

    api.delete(f"{space}/pods/one")

    assert api.status_of("GET", f"{space}/pods/one").code == 404


def test_every_pod_tolerates_a_lost_node_for_five_minutes(api: KubeClient, space: str) -> None:
    pod = api.create(f"{space}/pods", a_pod("one", schedulerName="nobody"))

    tolerated = {item["key"]: item["tolerationSeconds"] for item in pod["spec"]["tolerations"]}
    assert tolerated == {"node.kubernetes.io/not-ready": 300, "node.kubernetes.io/unreachable": 300}
    assert pod["status"]["phase"] == "Pending"


@pytest.fixture
def priority(api: KubeClient) -> Iterator[str]:
    """Name of a priority class with value 700."""
    name = f"contract-{uuid.uuid4().hex[:8]}"
    api.create("/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": name}, "value": 700})
    yield name
    api.delete(f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}")


def test_pod_gets_priority_of_its_class(api: KubeClient, space: str, priority: str) -> None:
    body = a_pod("one", schedulerName="nobody", priorityClassName=priority)

    def created() -> Json | None:  # the admission plugin sees a new class a moment later
        try:
            return api.create(f"{space}/pods", body)
        except KubeApiError as refused:
            assert refused.code == 403  # noqa: PT017 (anything else is no matter of time)
            return None

    pod = eventually(created, "the class to be known")
    refused = api.status_of("POST", f"{space}/pods", a_pod("two", priorityClassName="unheard-of"))
    frozen = api.status_of("PATCH", f"/apis/scheduling.k8s.io/v1/priorityclasses/{priority}", {"value": 1}, MERGE)

    assert pod["spec"]["priority"] == 700
    assert (refused.code, refused.reason) == (403, "Forbidden")
    assert (frozen.code, frozen.reason) == (422, "Invalid")


@pytest.fixture
def bound(api: KubeClient, space: str, node: str) -> Iterator[str]:
    """A pod on a node without a kubelet; returns its path."""
    api.create(f"{space}/pods", a_pod("one", nodeName=node.rsplit("/", 1)[1], terminationGracePeriodSeconds=7))
    yield f"{space}/pods/one"
    with contextlib.suppress(KubeApiError):
        api.delete(f"{space}/pods/one", {"gracePeriodSeconds": 0})


def test_bound_pod_is_deleted_with_or_without_grace(api: KubeClient, bound: str) -> None:
    graceful = api.delete(bound)
    shorter = api.delete(bound, {"gracePeriodSeconds": 3})
    held = api.get(bound)
    forced = api.delete(bound, {"gracePeriodSeconds": 0})

    assert (graceful["kind"], graceful["metadata"]["deletionGracePeriodSeconds"]) == ("Pod", 7)
    assert shorter["metadata"]["deletionGracePeriodSeconds"] == 3
    assert held["metadata"]["deletionTimestamp"]
    assert forced["metadata"]["uid"] == held["metadata"]["uid"]
    assert api.status_of("GET", bound).code == 404


def test_pods_are_selected_by_node(api: KubeClient, space: str, bound: str, node: str) -> None:
    api.create(f"{space}/pods", a_pod("two", schedulerName="nobody"))
    name = node.rsplit("/", 1)[1]

    on_it = api.items(f"/api/v1/pods?fieldSelector=spec.nodeName={name}")
    documents = api.items(f"{space}/pods?fieldSelector=spec.nodeName!%3D{name},status.phase=Pending")

    assert [pod["metadata"]["name"] for pod in on_it] == ["one"]
    assert [pod["metadata"]["name"] for pod in documents] == ["two"]


def test_pod_is_bound_once(api: KubeClient, space: str, node: str) -> None:
    api.create(f"{space}/pods", a_pod("one", schedulerName="nobody"))
    binding: Json = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "one"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node.rsplit("/", 1)[1]},
    }

    answer = api.create(f"{space}/pods/one/binding", binding)
    again = api.status_of("POST", f"{space}/pods/one/binding", binding)
    pod = api.get(f"{space}/pods/one")
    api.delete(f"{space}/pods/one", {"gracePeriodSeconds": 0})

    assert (answer["kind"], answer["status"]) == ("Status", "Success")
    assert (again.code, again.reason) == (409, "Conflict")
    assert pod["spec"]["nodeName"] == binding["target"]["name"]


# Nodes and namespaces


def test_new_node_keeps_its_status_and_is_tainted_until_ready(api: KubeClient) -> None:
    name = f"contract-{uuid.uuid4().hex[:8]}"
    body = {"metadata": {"name": name}, "status": {"capacity": {"nvidia.com/gpu": "8"}}}

    created = api.create("/api/v1/nodes", body)
    api.delete(f"/api/v1/nodes/{name}")

    assert created["status"]["capacity"] == {"nvidia.com/gpu": "8"}
    assert created["spec"]["taints"] == [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]


def test_terminating_namespace_refuses_new_objects(api: KubeClient, space: str, maps: str) -> None:
    body = a_map("held")
    body["metadata"]["finalizers"] = ["evenkeel.io/held"]
    api.create(maps, body)

    ending = api.delete(space)
    refused = api.status_of("POST", maps, a_map("late"))
    api.patch(f"{maps}/held", {"metadata": {"finalizers": None}})

    assert ending["status"]["phase"] == "Terminating"
    assert (refused.code, refused.reason) == (403, "Forbidden")
    assert refused.status["details"]["causes"][0]["reason"] == "NamespaceTerminating"


def test_namespace_is_removed_with_its_last_finalizer(api: KubeClient, space: str) -> None:
    api.patch(space, {"metadata": {"finalizers": ["evenkeel.io/held"]}})
    before = api.get(space)
    api.delete(space)
    ending = api.get(space)

    stale = api.status_of("PUT", f"{space}/finalize", {**before, "spec": {"finalizers": []}})
    finalized = finalize(api, space)
    still_there = api.get(space)
    api.patch(space, {"metadata": {"finalizers": None}})

    assert ending["status"]["phase"] == "Terminating"
    assert (stale.code, stale.reason) == (409, "Conflict")
    assert finalized["kind"] == "Namespace"
    assert not still_there["spec"].get("finalizers")
    assert api.status_of("GET", space).code == 404


@needs_controllers
def test_deleted_namespace_is_emptied_and_removed(api: KubeClient, space: str, maps: str) -> None:
    api.create(maps, a_map("one"))

    api.delete(space)

    api.until_gone(space)
    assert api.status_of("GET", f"{maps}/one").code == 404


# Eviction


def test_eviction_of_a_missing_pod_is_404(api: KubeClient, space: str) -> None:
    api.create(f"{space}/pods", a_pod("one", schedulerName="nobody"))
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "one"}}

    answer = api.create(f"{space}/pods/one/eviction", eviction)
    refused = api.status_of("POST", f"{space}/pods/none/eviction", {**eviction, "metadata": {"name": "none"}})

    assert (answer["kind"], answer["status"], answer["code"]) == ("Status", "Success", 201)
    assert refused.code == 404


def test_eviction_of_another_kind_is_refused(api: KubeClient, space: str) -> None:
    api.create(f"{space}/pods", a_pod("one", schedulerName="nobody"))
    eviction = {"apiVersion": "policy/v1", "kind": "Evict", "metadata": {"name": "one"}}

    refused = api.status_of("POST", f"{space}/pods/one/eviction", eviction)

    assert refused.code == 400
    assert 'no kind "Evict" is registered for version "policy/v1"' in str(refused)


def test_eviction_with_another_name_than_its_path_is_refused(api: KubeClient, space: str) -> None:
    api.create(f"{space}/pods", a_pod("one", schedulerName="nobody"))
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "two"}}

    assert api.status_of("POST", f"{space}/pods/one/eviction", eviction).code == 400


@pytest.fixture
def guarded(api: KubeClient, space: str) -> str:
    """A running pod with an exhausted budget; returns its path."""
    api.create(f"{space}/pods", a_pod("one", schedulerName="nobody"))
    ready = {"type": "Ready", "status": "True"}
    api.patch(f"{space}/pods/one/status", {"status": {"phase": "Running", "conditions": [ready]}})
    budget = {"metadata": {"name": "all"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "one"}}}}
    api.create(budgets_of(space), budget)
    status = {
        "disruptionsAllowed": 0,
        "currentHealthy": 1,
        "desiredHealthy": 1,
        "expectedPods": 1,
        "observedGeneration": 1,
    }
    api.patch(f"{budgets_of(space)}/all/status", {"status": status})
    return f"{space}/pods/one"


def evict(name: str, **options: Any) -> Json:
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}, "deleteOptions": options}


def test_blocked_eviction_is_429_without_retry_after(api: KubeClient, guarded: str) -> None:
    refused = api.status_of("POST", f"{guarded}/eviction", evict("one"))
    dry = api.status_of("POST", f"{guarded}/eviction", evict("one", dryRun=["All"]))

    for answer in (refused, dry):
        assert (answer.code, answer.reason) == (429, "TooManyRequests")
        assert answer.status["details"]["causes"][0]["reason"] == "DisruptionBudget"
        assert "Retry-After" not in answer.headers
    assert api.get(guarded)["status"]["phase"] == "Running"


def test_pending_pod_is_evicted_despite_a_disruption_budget(api: KubeClient, guarded: str) -> None:
    api.patch(f"{guarded}/status", {"status": {"phase": "Pending"}})

    answer = api.create(f"{guarded}/eviction", evict("one"))

    assert answer["status"] == "Success"
    assert api.status_of("GET", guarded).code == 404


def test_pod_with_two_disruption_budgets_cannot_be_evicted(api: KubeClient, space: str, guarded: str) -> None:
    second = {"metadata": {"name": "too"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "one"}}}}
    api.create(budgets_of(space), second)

    refused = api.status_of("POST", f"{guarded}/eviction", evict("one"))

    assert refused.code == 500
    assert "more than one PodDisruptionBudget" in str(refused.status["message"])


@needs_controllers
def test_disruption_budget_status_follows_its_pods(api: KubeClient, space: str, guarded: str) -> None:
    api.create(f"{space}/pods", {**a_pod("two", schedulerName="nobody"), "metadata": {"name": "two"}})
    api.patch(f"{space}/pods/two", {"metadata": {"labels": {"app": "one"}}})
    ready = {"type": "Ready", "status": "True"}
    api.patch(f"{space}/pods/two/status", {"status": {"phase": "Running", "conditions": [ready]}})
    allowed = "disruptionsAllowed"

    api.until(f"{budgets_of(space)}/all", lambda budget: budget["status"][allowed] == 1, "room for one disruption")
    api.create(f"{guarded}/eviction", evict("one"))
    api.until(f"{budgets_of(space)}/all", lambda budget: budget["status"][allowed] == 0, "no more room")

    assert api.status_of("POST", f"{space}/pods/two/eviction", evict("two")).code == 429


# Custom resources


def test_custom_object_is_validated_by_its_schema(api: KubeClient, space: str, widgets: str) -> None:
    path = of_widgets(space)

    created = api.create(
        path,
        {
            "apiVersion": f"{GROUP}/v1",
            "kind": "Widget",
            "metadata": {"name": "one"},
            "spec": {"size": 2, "unknown": 1},
        },
    )
    for spec in ({"size": 0}, {"size": "2"}, {"size": 1, "colour": "green"}, {}):
        refused = api.status_of(
            "POST",
            path,
            {"apiVersion": f"{GROUP}/v1", "kind": "Widget", "metadata": {"name": "two"}, "spec": spec},
        )
        assert (refused.code, refused.reason) == (422, "Invalid"), spec

    assert created["spec"] == {"size": 2, "colour": "red"}
    assert created["metadata"]["generation"] == 1


def test_custom_object_refuses_a_strategic_patch(api: KubeClient, space: str, widgets: str) -> None:
    path = of_widgets(space)
    api.create(
        path,
        {"apiVersion": f"{GROUP}/v1", "kind": "Widget", "metadata": {"name": "one"}, "spec": {"size": 2}},
    )

    refused = api.status_of("PATCH", f"{path}/one", {"spec": {"size": 3}}, STRATEGIC)
    merged = api.patch(f"{path}/one", {"spec": {"size": 3}})
    status = api.patch(f"{path}/one/status", {"status": {"done": True}, "spec": {"size": 9}})
    deleted = api.delete(f"{path}/one")

    assert (refused.code, refused.reason) == (415, "UnsupportedMediaType")
    assert (merged["spec"]["size"], merged["metadata"]["generation"]) == (3, 2)
    assert (status["status"], status["spec"]["size"], status["metadata"]["generation"]) == ({"done": True}, 3, 2)
    assert (deleted["kind"], deleted["status"]) == ("Status", "Success")


def test_scale_of_a_custom_object_follows_its_definition(api: KubeClient, space: str, widgets: str) -> None:
    path = f"{of_widgets(space)}/one"
    body = {"apiVersion": f"{GROUP}/v1", "kind": "Widget", "metadata": {"name": "one"}, "spec": {"size": 2}}
    api.create(of_widgets(space), body)

    patched = api.patch(f"{path}/scale", {"spec": {"replicas": 5}})

    assert (patched["kind"], patched["spec"]) == ("Scale", {"replicas": 5})
    assert (api.get(path)["spec"]["size"], api.get(path)["metadata"]["generation"]) == (5, 2)


# Server-side apply


def test_applied_fields_belong_to_their_manager(api: KubeClient, maps: str) -> None:
    def apply(manager: str, data: dict[str, str], force: bool = False) -> Any:
        query = f"fieldManager={manager}{'&force=true' if force else ''}"
        return api.patch(f"{maps}/one?{query}", a_map("one", **data), APPLY)

    apply("first", {"a": "1", "b": "1"})
    apply("second", {"c": "1"})
    shared = apply("second", {"c": "1", "a": "1"})
    refused = api.status_of("PATCH", f"{maps}/one?fieldManager=second", a_map("one", c="1", a="2"), APPLY)
    forced = apply("second", {"c": "1", "a": "2"}, force=True)
    removed = apply("first", {"a": "2"}, force=True)

    assert shared["data"] == {"a": "1", "b": "1", "c": "1"}
    assert (refused.code, refused.reason) == (409, "Conflict")
    assert "first" in str(refused.status["message"])
    assert refused.status["details"]["causes"][0]["reason"] == "FieldManagerConflict"
    assert refused.status["details"]["causes"][0]["field"] == ".data.a"
    assert forced["data"] == {"a": "2", "b": "1", "c": "1"}
    assert removed["data"] == {"a": "2", "c": "1"}


def test_apply_conflicts_with_an_update(api: KubeClient, maps: str) -> None:
    api.patch(f"{maps}/one?fieldManager=first", a_map("one", a="1"), APPLY)
    api.patch(f"{maps}/one?fieldManager=hand", {"data": {"a": "2"}})

    refused = api.status_of("PATCH", f"{maps}/one?fieldManager=first", a_map("one", a="1"), APPLY)

    assert (refused.code, refused.reason) == (409, "Conflict")
    assert "hand" in str(refused.status["message"])


def test_apply_without_a_field_manager_is_refused(api: KubeClient, maps: str) -> None:
    assert api.status_of("PATCH", f"{maps}/one", a_map("one"), APPLY).code == 422


def test_apply_merges_containers_by_name(api: KubeClient, space: str) -> None:
    path = f"{jobs_of(space)}/one?fieldManager=first"
    body = a_job("one", "true", spec={"suspend": True})

    created = api.patch(path, body, APPLY)
    again = api.patch(path, body, APPLY)

    assert (again["spec"], again["metadata"]["generation"]) == (created["spec"], created["metadata"]["generation"])
    managers = [entry["manager"] for entry in again["metadata"]["managedFields"] if entry["operation"] == "Apply"]
    assert managers == ["first"]


# Authorization


def test_invalid_token_is_401(api: KubeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "token", "nonsense")

    refused = api.status_of("GET", "/api/v1/nodes")

    assert (refused.code, refused.reason) == (401, "Unauthorized")


@pytest.fixture
def nobody(api: KubeClient) -> str:
    """Name of a user without any permission."""
    name = f"contract-{RUN}"
    document: Json = {"spec": {"user": name, "resourceAttributes": {"verb": "list", "resource": "nodes"}}}
    if api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", document)["status"]["allowed"]:
        assert REAL
        pytest.skip("this server allows every request of every user")
    return name


def test_refusal_names_the_missing_permission(api: KubeClient, nobody: str) -> None:
    with api.acting_as(nobody):
        refused = api.status_of("GET", "/api/v1/nodes")
        about_one = api.status_of("DELETE", "/api/v1/nodes/some")

    assert (refused.code, refused.reason) == (403, "Forbidden")
    assert refused.status["details"] == {"kind": "nodes"}
    assert refused.status["message"] == (
        f'nodes is forbidden: User "{nobody}" cannot list resource "nodes" in API group "" at the cluster scope'
    )
    assert about_one.status["details"] == {"name": "some", "kind": "nodes"}


def test_impersonated_user_is_treated_as_the_caller(api: KubeClient, nobody: str) -> None:
    with api.acting_as(nobody):
        review = api.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", {})

    assert review["status"]["userInfo"]["username"] == nobody
    assert "system:masters" not in review["status"]["userInfo"]["groups"]


def test_role_binding_grants_the_role(api: KubeClient, space: str, maps: str, nobody: str) -> None:
    roles = space.replace("/api/v1", "/apis/rbac.authorization.k8s.io/v1")
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]
    subject = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": nobody}
    ref = {"kind": "Role", "apiGroup": "rbac.authorization.k8s.io", "name": "reader"}
    api.create(f"{roles}/roles", {"metadata": {"name": "reader"}, "rules": rules})
    api.create(f"{roles}/rolebindings", {"metadata": {"name": "reader"}, "subjects": [subject], "roleRef": ref})
    api.create(maps, a_map("one"))

    with api.acting_as(nobody):
        eventually(lambda: answers(api, f"{maps}/one"), "the binding to hold")
        listing = api.status_of("GET", maps)
        review = {"spec": {"namespace": space.rsplit("/", 1)[1]}}
        may = api.create("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", review)
    api.call("DELETE", f"{roles}/rolebindings")
    api.call("DELETE", f"{roles}/roles")

    assert (listing.code, listing.reason) == (403, "Forbidden")
    assert ["configmaps"] in [rule["resources"] for rule in may["status"]["resourceRules"]]


def test_discovery_lists_every_served_kind(api: KubeClient, widgets: str) -> None:
    core = api.get("/api/v1")
    groups = {group["name"] for group in api.get("/apis")["groups"]}
    custom = api.get(f"/apis/{GROUP}/v1")

    assert {"pods", "pods/eviction", "pods/log", "nodes", "nodes/status"} <= {
        item["name"] for item in core["resources"]
    }
    assert {"batch", "policy", "rbac.authorization.k8s.io", GROUP} <= groups
    assert {"widgets", "widgets/status", "widgets/scale"} == {item["name"] for item in custom["resources"]}
    assert api.get("/version")["major"] == "1"


@pytest.mark.parametrize(
    "body",
    [
        {"metadata": "x"},
        {"metadata": {"name": "x", "labels": ["a"]}},
        {"metadata": {"name": "x", "labels": {"a": 1}}},
        {"metadata": {"name": "x"}, "data": {"a": {}}},
    ],
)
def test_undecodable_body_is_400(api: KubeClient, maps: str, body: Json) -> None:
    refused = api.status_of("POST", maps, body)

    assert (refused.code, refused.reason) == (400, "BadRequest")


def a_misspelt_job(name: str) -> Json:
    body = a_job(name, "true", spec={"suspend": True})
    body["spec"]["paralelism"] = 2
    body["spec"]["template"]["spec"]["containers"][0]["comand"] = ["x"]
    return body


def test_strict_validation_refuses_an_unknown_field(api: KubeClient, space: str) -> None:
    path = jobs_of(space)

    refused = api.status_of("POST", f"{path}?fieldValidation=Strict", a_misspelt_job("one"))
    document = api.create(f"{path}?fieldValidation=Ignore", a_misspelt_job("one"))
    patched = api.status_of("PATCH", f"{path}/one?fieldValidation=Strict", {"spec": {"suspnd": True}}, MERGE)
    unsupported = api.status_of("POST", f"{path}?fieldValidation=Sometimes", a_misspelt_job("two"))

    assert (refused.code, refused.reason) == (400, "BadRequest")
    for field in ("spec.paralelism", "spec.template.spec.containers[0].comand"):
        assert f'unknown field "{field}"' in str(refused.status["message"])
    assert "paralelism" not in document["spec"]
    assert "comand" not in document["spec"]["template"]["spec"]["containers"][0]
    assert (patched.code, patched.reason) == (422, "Invalid")
    assert 'unknown field "spec.suspnd"' in str(patched.status["message"])
    assert unsupported.code == 422


def test_strict_validation_refuses_an_unknown_custom_field(api: KubeClient, space: str, widgets: str) -> None:
    body = {"apiVersion": f"{GROUP}/v1", "kind": "Widget", "metadata": {"name": "one"}, "spec": {"size": 1, "sice": 2}}

    refused = api.status_of("POST", f"{of_widgets(space)}?fieldValidation=Strict", body)

    assert (refused.code, refused.reason) == (400, "BadRequest")
    assert 'unknown field "spec.sice"' in str(refused.status["message"])


def test_unknown_field_is_not_applied(api: KubeClient, space: str) -> None:
    path = f"{jobs_of(space)}/one?fieldManager=first"

    refused = api.status_of("PATCH", path, a_misspelt_job("one"), APPLY)

    assert refused.code == 500
    assert "field not declared in schema" in str(refused.status["message"])


@pytest.mark.parametrize(
    ("at", "value"),
    [
        ("activeDeadlineSeconds", "ten"),
        ("suspend", "yes"),
        ("template", []),
        ("template.spec.containers", {}),
        ("template.spec.containers.0.image", 1),
        ("template.spec.containers.0.resources", {"limits": {"cpu": "a lot"}}),
        ("template.spec.nodeSelector", {"a": True}),
    ],
)
def test_value_of_another_type_is_400(api: KubeClient, space: str, at: str, value: Any) -> None:
    body = a_job("one", "true")
    *parents, last = at.split(".")
    part: Any = body["spec"]
    for name in parents:
        part = part[int(name)] if name.isdigit() else part[name]
    part[last] = value

    refused = api.status_of("POST", jobs_of(space), body)

    assert (refused.code, refused.reason) == (400, "BadRequest")


def test_secret_with_invalid_base64_is_400(api: KubeClient, space: str) -> None:
    refused = api.status_of("POST", f"{space}/secrets", {"metadata": {"name": "one"}, "data": {"a": "no base64!"}})

    assert (refused.code, refused.reason) == (400, "BadRequest")


def test_omitted_zero_value_is_absent(api: KubeClient, node: str, maps: str) -> None:
    patched = api.patch(node, {"spec": {"unschedulable": False}})
    created = api.create(maps, {"metadata": {"name": "one", "annotations": {}}, "data": {}})

    assert "unschedulable" not in patched["spec"]
    assert "annotations" not in created["metadata"]
    assert "data" not in created


def test_null_field_is_absent(api: KubeClient, maps: str) -> None:
    created = api.create(maps, {"metadata": {"name": "one", "labels": None}, "data": None})

    assert "labels" not in created["metadata"]
    assert "data" not in created
