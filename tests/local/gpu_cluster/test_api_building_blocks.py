"""Building blocks of the API server: patches, selectors, quantities, field ownership, schemas, protobuf, ages."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel_local.gpu_cluster import (
    catalogue,
    patches,
    printers,
    protobuf,
    quantities,
    schemas,
    selectors,
    server_side_apply,
)
from evenkeel_local.gpu_cluster.catalogue import ResourceCatalogue
from evenkeel_local.gpu_cluster.errors import ApiError
from evenkeel_local.gpu_cluster.job_controller import read_indexes, write_indexes
from evenkeel_local.gpu_cluster.pod_runner import expand_variables
from evenkeel_local.gpu_cluster.pod_topology import NodeCapacityView, PodAffinityRules
from evenkeel_local.gpu_cluster.registry import Registry
from evenkeel_local.gpu_cluster.scheduler import tolerates
from evenkeel_local.gpu_cluster.store import ResourceType, Store

Json = dict[str, Any]
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text("ab", max_size=2))
DOCUMENTS = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abc"), inner, max_size=3)),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), DOCUMENTS, max_size=3)


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return value


@given(OBJECTS, OBJECTS)
def test_merge_patch_is_idempotent(target: Json, patch: Json) -> None:
    once = patches.merge_patch(target, patch)

    assert patches.merge_patch(once, patch) == once


@given(OBJECTS, OBJECTS)
def test_merge_patch_can_turn_any_document_into_any_other(target: Json, wanted: Json) -> None:
    wanted = without_nulls(wanted)
    removals = dict.fromkeys(target)

    assert patches.merge_patch(patches.merge_patch(target, removals), wanted) == wanted


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ([{"op": "add", "path": "/a/-", "value": 3}], {"a": [1, 2, 3]}),
        ([{"op": "add", "path": "/a/0", "value": 0}], {"a": [0, 1, 2]}),
        ([{"op": "remove", "path": "/a/0"}], {"a": [2]}),
        ([{"op": "replace", "path": "/a", "value": {"b~1": 1}}], {"a": {"b~1": 1}}),
        ([{"op": "copy", "from": "/a", "path": "/c"}], {"a": [1, 2], "c": [1, 2]}),
        ([{"op": "move", "from": "/a/1", "path": "/x~1y"}], {"a": [1], "x/y": 2}),
        ([{"op": "test", "path": "/a/1", "value": 2}], {"a": [1, 2]}),
    ],
)
def test_json_patch_gives_the_expected_document(operations: list[Json], expected: Json) -> None:
    assert patches.json_patch({"a": [1, 2]}, operations) == expected


@pytest.mark.parametrize("path", ["/b", "/a/2", "/a/x", "/a/0/c"])
def test_json_patch_of_a_missing_path_fails(path: str) -> None:
    with pytest.raises(patches.PatchFailed):
        patches.json_patch({"a": [1, 2]}, [{"op": "replace", "path": path, "value": 0}])


def test_strategic_patch_merges_by_key_and_deletes_by_directive() -> None:
    pod = {"spec": {"containers": [{"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}]}, {"name": "b"}]}}
    patch = {
        "spec": {
            "$setElementOrder/containers": [{"name": "c"}, {"name": "a"}],
            "containers": [
                {"name": "a", "env": [{"name": "X", "value": "2"}, {"name": "Y", "value": "3"}]},
                {"name": "b", "$patch": "delete"},
                {"name": "c", "image": "3"},
            ],
        }
    }

    merged = patches.strategic_patch(pod, patch)

    assert merged["spec"]["containers"] == [
        {"name": "c", "image": "3"},
        {"name": "a", "image": "1", "env": [{"name": "X", "value": "2"}, {"name": "Y", "value": "3"}]},
    ]


def test_strategic_patch_adds_and_removes_finalizers() -> None:
    obj = {"metadata": {"finalizers": ["a", "b"]}}

    joined = patches.strategic_patch(obj, {"metadata": {"finalizers": ["b", "c"]}})
    removed = patches.strategic_patch(joined, {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}})

    assert removed["metadata"]["finalizers"] == ["b", "c"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("8", 8), ("500m", 0.5), ("2Ki", 2048), ("1.5Gi", 1.5 * 2**30), ("1e3", 1000), ("3k", 3000), ("1E", 10**18)],
)
def test_quantity_is_read_as_a_number(text: str, expected: float) -> None:
    assert float(quantities.parse_quantity(text)) == expected


@pytest.mark.parametrize("text", ["", "8 Gi", "x", "1KiB", "--1"])
def test_invalid_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="quantit"):
        quantities.parse_quantity(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1", True),
        ("a==2", False),
        ("a!=2,b", True),
        ("!c", True),
        ("a in (1,2),b notin (x)", True),
        ("b in ()", False),
        ("n>4", True),
        ("n<4", False),
        ("", True),
    ],
)
def test_label_selector_matches_as_in_kubernetes(text: str, expected: bool) -> None:
    obj = {"metadata": {"labels": {"a": "1", "b": "y", "n": "5"}}}

    assert selectors.label_selector(text)(obj) is expected


@given(st.sets(st.integers(0, 40)))
def test_completion_indexes_are_unchanged_after_writing_and_reading(indexes: set[int]) -> None:
    assert read_indexes(write_indexes(indexes)) == indexes


def test_completion_indexes_are_written_as_in_kubernetes() -> None:
    assert write_indexes({0, 1, 2, 5, 7, 8}) == "0-2,5,7-8"


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "k", "operator": "Exists"}, True),
        ({"key": "k", "value": "v"}, True),
        ({"key": "k", "value": "w"}, False),
        ({"key": "k", "value": "v", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_toleration_matches_taints_as_in_kubernetes(toleration: Json, expected: bool) -> None:
    assert tolerates([toleration], {"key": "k", "value": "v", "effect": "NoSchedule"}) is expected


def test_references_to_variables_expand_as_in_kubernetes() -> None:
    assert expand_variables("$(A)-$(B)-$$(A)-$A", {"A": "1"}) == "1-$(B)-$(A)-$A"


# Field ownership


def a_map(**data: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": data}


def fields_by_manager(obj: Json) -> dict[str, Json]:
    return {entry["manager"]: entry["fieldsV1"] for entry in obj["metadata"].get("managedFields", [])}


def test_managed_fields_have_the_form_of_kubernetes() -> None:
    pod: Json = {
        "metadata": {"name": "p", "labels": {"a": "1"}, "finalizers": ["x/y"]},
        "spec": {
            "containers": [{"name": "m", "ports": [{"containerPort": 80, "protocol": "TCP"}]}],
            "tolerations": [{}],
        },
    }

    server_side_apply.record_ownership(catalogue.PODS, pod, pod, "me", "")

    assert fields_by_manager(pod)["me"] == {
        "f:metadata": {"f:labels": {"f:a": {}}, "f:finalizers": {'v:"x/y"': {}}},
        "f:spec": {
            "f:containers": {
                'k:{"name":"m"}': {
                    ".": {},
                    "f:name": {},
                    "f:ports": {
                        'k:{"containerPort":80,"protocol":"TCP"}': {".": {}, "f:containerPort": {}, "f:protocol": {}}
                    },
                }
            },
            "f:tolerations": {},
        },
    }


@given(
    st.dictionaries(st.sampled_from("abcd"), st.sampled_from("12")),
    st.dictionaries(st.sampled_from("abcd"), st.sampled_from("12")),
)
def test_repeated_apply_changes_nothing_and_removes_omitted_fields(first: Any, second: Any) -> None:
    live: Json = {**a_map(), "metadata": {"name": "m"}}
    live = server_side_apply.apply_configuration(catalogue.CONFIG_MAPS, live, a_map(**first), "me", False, "")
    live = server_side_apply.apply_configuration(catalogue.CONFIG_MAPS, live, a_map(**second), "me", False, "")

    again = server_side_apply.apply_configuration(catalogue.CONFIG_MAPS, live, a_map(**second), "me", False, "")

    assert live["data"] == second
    assert again == live


def test_update_takes_ownership_of_a_field_and_deletion_releases_it() -> None:
    live: Json = a_map(a="1", b="1")
    server_side_apply.record_ownership(catalogue.CONFIG_MAPS, live, live, "applier", "")
    written = {**a_map(a="2"), "metadata": dict(live["metadata"])}

    server_side_apply.track_write(catalogue.CONFIG_MAPS, written, live, "hand", "")

    assert fields_by_manager(written) == {"hand": {"f:data": {"f:a": {}}}}


# Schemas


SCHEMA: Json = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "required": ["size"],
            "properties": {
                "size": {"type": "integer", "minimum": 1, "maximum": 9},
                "names": {"type": "array", "maxItems": 2, "items": {"type": "string", "pattern": "^[a-z]+$"}},
                "limits": {"type": "object", "additionalProperties": {"x-kubernetes-int-or-string": True}},
                "mode": {"type": "string", "default": "auto", "enum": ["auto", "off"]},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            },
        }
    },
}


def test_unknown_fields_are_pruned_unless_kept() -> None:
    dropped: list[str] = []

    pruned = schemas.prune(SCHEMA, {"kind": "X", "spec": {"size": 1, "odd": 2, "free": {"any": 1}}}, "", dropped)

    assert pruned == {"kind": "X", "spec": {"size": 1, "free": {"any": 1}}}
    assert dropped == ["spec.odd"]
    assert schemas.fill_defaults(SCHEMA, pruned)["spec"]["mode"] == "auto"


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({}, "spec.size"),
        ({"size": 0}, "spec.size"),
        ({"size": 10}, "spec.size"),
        ({"size": True}, "spec.size"),
        ({"size": 1, "names": ["a", "b", "c"]}, "spec.names"),
        ({"size": 1, "names": ["A"]}, "spec.names[0]"),
        ({"size": 1, "mode": "on"}, "spec.mode"),
        ({"size": 1, "limits": {"cpu": []}}, "spec.limits.cpu"),
    ],
)
def test_schema_violation_names_field_and_reason(spec: Json, field: str) -> None:
    assert [cause[1] for cause in schemas.check_value(SCHEMA, {"spec": spec})] == [field]


def test_valid_object_passes_its_schema_unchanged() -> None:
    spec = {"size": 9, "names": ["a"], "limits": {"cpu": 1, "memory": "2Gi"}, "mode": "off"}

    assert list(schemas.check_value(SCHEMA, {"spec": spec})) == []


# Evictions before the disruption controller has counted the pods


def a_budget(**status: int) -> Registry:
    """Return a registry with a running pod that is not ready and a budget that covers it."""
    registry = Registry(Store(), ResourceCatalogue())
    registry.create(catalogue.NAMESPACES, "", {"metadata": {"name": "default"}})
    registry.create(catalogue.SERVICE_ACCOUNTS, "default", {"metadata": {"name": "default"}})
    pod = {
        "metadata": {"name": "one", "labels": {"app": "one"}},
        "spec": {"containers": [{"name": "m", "image": "i:1"}], "schedulerName": "nobody"},
    }
    registry.create(catalogue.PODS, "default", pod)
    registry.mutate(catalogue.PODS, "default", "one", lambda obj: obj["status"].update(phase="Running"))
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "one"}}}
    registry.create(catalogue.BUDGETS, "default", {"metadata": {"name": "all"}, "spec": spec})
    registry.mutate(catalogue.BUDGETS, "default", "all", lambda obj: obj["status"].update(status))
    return registry


def test_budget_not_yet_processed_refuses_eviction_with_retry_after() -> None:
    registry = a_budget(disruptionsAllowed=1, currentHealthy=1, desiredHealthy=0)

    with pytest.raises(ApiError) as refused:
        registry.evict("default", "one", {})

    assert (refused.value.code, refused.value.headers) == (429, {"Retry-After": "10"})
    assert "still being processed" in str(refused.value.details)


@pytest.mark.parametrize(
    ("healthy", "policy", "evicted"),
    [(1, None, True), (0, None, False), (0, "AlwaysAllow", True), (1, "IfHealthyBudget", True)],
)
def test_eviction_of_an_unready_pod_follows_the_budget_policy(healthy: int, policy: str | None, evicted: bool) -> None:
    counts = {"disruptionsAllowed": 0, "currentHealthy": healthy, "desiredHealthy": 1, "observedGeneration": 1}
    registry = a_budget(**counts)
    if policy is not None:
        registry.mutate(
            catalogue.BUDGETS, "default", "all", lambda obj: obj["spec"].update(unhealthyPodEvictionPolicy=policy)
        )
        registry.mutate(catalogue.BUDGETS, "default", "all", lambda obj: obj["status"].update(observedGeneration=2))

    if evicted:
        registry.evict("default", "one", {})
    else:
        with pytest.raises(ApiError, match="disruption budget"):
            registry.evict("default", "one", {})

    gone = registry.store.find(catalogue.PODS.key, "default", "one") is None
    assert gone == evicted


# Pod affinity


def a_node_capacity(name: str, zone: str, *pods: Json) -> NodeCapacityView:
    room = NodeCapacityView({"metadata": {"name": name, "labels": {"zone": zone}}}, {})
    for pod in pods:
        room.add(pod)
    return room


def a_neighbour(app: str, *, together: str = "", apart: str = "", key: str = "zone", **spec: Any) -> Json:
    """Return a pod with affinity, or anti-affinity, to the pods of another app."""
    affinity = {
        kind: {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": key, "labelSelector": {"matchLabels": {"app": other}}}
            ]
        }
        for kind, other in (("podAffinity", together), ("podAntiAffinity", apart))
        if other
    }
    metadata = {"name": app, "namespace": "default", "labels": {"app": app}}
    return {"metadata": metadata, "spec": {"affinity": affinity, **spec}}


def fitting(pod: Json, *capacities: NodeCapacityView) -> str:
    """Return the names of the nodes on which a pod may be scheduled."""
    neighbours = PodAffinityRules(pod, capacities, lambda _: True)
    return "".join(room.node["metadata"]["name"] for room in capacities if neighbours.refusal(room) is None)


def test_pod_affinity_applies_to_zones() -> None:
    web, loner = a_neighbour("web"), a_neighbour("loner", apart="web")
    capacities = (a_node_capacity("a", "west", web), a_node_capacity("b", "west"), a_node_capacity("c", "east"))

    assert fitting(a_neighbour("cache", together="web"), *capacities) == "ab"
    assert fitting(a_neighbour("cache", together="web", key="kubernetes.io/hostname"), *capacities) == "a"
    assert fitting(loner, *capacities) == "c"
    assert (
        fitting(web, a_node_capacity("a", "west", loner), a_node_capacity("b", "west"), a_node_capacity("c", "east"))
        == "c"
    )
    assert fitting(a_neighbour("cache", together="nobody"), *capacities) == ""
    assert fitting(a_neighbour("gang", together="gang"), *capacities) == "abc"
    assert fitting(a_neighbour("cache", together="web", key="rack"), *capacities) == ""


@pytest.mark.parametrize(
    ("extra", "expected"),
    [({}, "c"), ({"maxSkew": 2}, "abc"), ({"topologyKey": "rack"}, "")],
)
def test_topology_spread_applies_to_zones(extra: Json, expected: str) -> None:
    web = a_neighbour("web")
    capacities = (a_node_capacity("a", "west", web), a_node_capacity("b", "west"), a_node_capacity("c", "east"))
    constraint = {"topologyKey": "zone", "maxSkew": 1, "labelSelector": {"matchLabels": {"app": "web"}}, **extra}

    assert fitting(a_neighbour("web", topologySpreadConstraints=[constraint]), *capacities) == expected
    even = (*capacities[:2], a_node_capacity("c", "east", web))
    more = {**constraint, "minDomains": 3, "maxSkew": 1}
    assert fitting(a_neighbour("web", topologySpreadConstraints=[more]), *even) == ""
    soft = {**constraint, "whenUnsatisfiable": "ScheduleAnyway"}
    assert fitting(a_neighbour("web", topologySpreadConstraints=[soft]), *capacities) == "abc"


# Protobuf and tables


def varint(value: int) -> bytes:
    return bytes([value]) if value < 0x80 else bytes([value & 0x7F | 0x80]) + varint(value >> 7)


def field(number: int, value: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(value)) + value


def numbered(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def a_protobuf(api_version: bytes, kind: bytes, obj: bytes) -> bytes:
    return protobuf.MAGIC + field(1, field(1, api_version) + field(2, kind)) + field(2, obj)


def test_secret_is_read_from_protobuf() -> None:
    entry = field(1, b"key") + field(2, b"\x00\xff")
    secret = field(1, field(1, b"name") + field(11, field(1, b"a") + field(2, b"b"))) + field(2, entry) + field(3, b"t")

    assert protobuf.decode_body(a_protobuf(b"v1", b"Secret", secret)) == {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "name", "labels": {"a": "b"}},
        "data": {"key": "AP8="},
        "type": "t",
    }


def test_pod_from_protobuf_equals_the_pod_from_json() -> None:
    limits = field(1, field(1, b"nvidia.com/gpu") + field(2, field(1, b"8")))
    settings_ref = field(1, field(1, b"settings"))
    variable = field(1, b"LEVEL") + field(2, b"") + field(3, field(3, settings_ref + field(2, b"level")))
    probe = field(1, field(2, field(1, b"/") + field(2, numbered(1, 0) + numbered(2, 80) + field(3, b""))))
    container = field(1, b"main") + field(7, variable) + field(8, limits) + field(10, probe) + numbered(18, 0)
    claim = field(1, b"data") + field(2, field(10, field(1, b"shared") + numbered(2, 0)))
    spec = field(1, claim) + field(2, container) + numbered(4, 0) + field(10, b"") + numbered(11, 0)
    metadata = field(1, b"name") + field(8, b"")

    read = protobuf.decode_body(a_protobuf(b"v1", b"Pod", field(1, metadata) + field(2, spec) + field(3, b"")))

    # Fields that are inline in JSON are lifted. An explicit zero is kept (the grace period); a zero value of Go is not.
    assert read["metadata"] == {"name": "name"}
    assert read["spec"] == {
        "containers": [
            {
                "name": "main",
                "env": [{"name": "LEVEL", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "level"}}}],
                "resources": {"limits": {"nvidia.com/gpu": "8"}},
                "livenessProbe": {"httpGet": {"path": "/", "port": 80}},
            }
        ],
        "terminationGracePeriodSeconds": 0,
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "shared"}}],
    }


def test_every_built_in_kind_except_definitions_is_read_from_protobuf() -> None:
    for rt in catalogue.BUILT_IN:
        body = a_protobuf(rt.api_version.encode(), rt.kind.encode(), field(1, field(1, b"name")))
        if rt is catalogue.DEFINITIONS:  # its clients send JSON: a schema has no other form
            with pytest.raises(ApiError, match="does not read CustomResourceDefinition"):
                protobuf.decode_body(body)
        else:
            assert protobuf.decode_body(body)["metadata"] == {"name": "name"}


@given(st.sampled_from([rt for rt in catalogue.BUILT_IN if not rt.custom]), st.binary(max_size=80))
def test_arbitrary_protobuf_bytes_are_read_or_refused(rt: ResourceType, data: bytes) -> None:
    with contextlib.suppress(ApiError):
        protobuf.decode_body(a_protobuf(rt.api_version.encode(), rt.kind.encode(), data))


@given(st.binary(max_size=60))
def test_bytes_other_than_protobuf_are_refused(data: bytes) -> None:
    with contextlib.suppress(ApiError):
        protobuf.decode_body(protobuf.MAGIC + data)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0s"),
        (119, "119s"),
        (125, "2m5s"),
        (600, "10m"),
        (3 * 3600, "3h"),
        (3 * 3600 + 300, "3h5m"),
        (50 * 3600, "2d2h"),
        (800 * 86400, "2y70d"),
    ],
)
def test_object_ages_are_printed_as_in_kubectl(seconds: float, shown: str) -> None:
    assert printers.duration_text(seconds) == shown


def test_printer_columns_read_values_by_path_and_filter() -> None:
    obj = {"status": {"conditions": [{"type": "A", "status": "x"}, {"type": "B", "status": "y"}], "n": [{"v": 3}]}}

    assert printers.at_path(obj, '.status.conditions[?(@.type=="B")].status') == "y"
    assert printers.at_path(obj, ".status.n[0].v") == 3
    assert printers.at_path(obj, ".status.none[0].v") is None


# Invalid bodies


@st.composite
def broken_objects(draw: st.DrawFn) -> tuple[Any, Json]:
    """Draw a type and a body of its kind with one field replaced by any value."""
    rt = draw(st.sampled_from(catalogue.BUILT_IN))
    pod = {"containers": [{"name": "m", "image": "i", "resources": {"limits": {"nvidia.com/gpu": 1}}}]}
    body: Json = {
        "metadata": {"name": "x", "labels": {"a": "b"}, "finalizers": ["a/b"], "ownerReferences": []},
        "spec": {
            **pod,
            "template": {"spec": pod},
            "selector": {},
            "taints": [],
            "ports": [],
            "names": {},
            "versions": [],
        },
        "status": {"conditions": []},
        "rules": [{"verbs": ["get"]}],
        "subjects": [{"kind": "User", "name": "x"}],
        "roleRef": {"kind": "Role", "name": "x"},
        "data": {"a": "b"},
    }
    at: Any = body
    while True:
        key = draw(st.sampled_from(sorted(at)) if isinstance(at, dict) else st.integers(0, len(at) - 1))
        inner = at[key]
        if not isinstance(inner, dict | list) or not inner or draw(st.booleans()):
            at[key] = draw(DOCUMENTS)
            return rt, body
        at = inner


@pytest.mark.parametrize(
    ("rt", "spec"),
    [
        (catalogue.LIMIT_RANGES, True),
        (catalogue.LIMIT_RANGES, {"limits": 5}),
        (catalogue.LIMIT_RANGES, {"limits": [{"type": "Container", "max": "x"}]}),
        (catalogue.RESOURCE_QUOTAS, True),
        (catalogue.RESOURCE_QUOTAS, {"hard": ["pods"]}),
    ],
)
def test_malformed_limit_range_or_quota_is_refused(rt: Any, spec: Json) -> None:
    registry = Registry(Store(), ResourceCatalogue())
    registry.create(catalogue.NAMESPACES, "", {"metadata": {"name": "default"}})

    with pytest.raises(ApiError) as refused:
        registry.create(rt, "default", {"metadata": {"name": "x"}, "spec": spec})

    assert refused.value.code == 400


@given(broken_objects())
def test_arbitrary_body_is_accepted_or_refused_without_internal_error(case: tuple[Any, Json]) -> None:
    rt, body = case
    registry = Registry(Store(), ResourceCatalogue())
    registry.create(catalogue.NAMESPACES, "", {"metadata": {"name": "default"}})
    registry.create(catalogue.SERVICE_ACCOUNTS, "default", {"metadata": {"name": "default"}})

    with contextlib.suppress(ApiError):
        registry.create(rt, "default" if rt.namespaced else "", body)
        printers.table_of(rt, registry.store.all(rt.key), {}, "Object")
