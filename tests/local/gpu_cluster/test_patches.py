"""The four patches as properties and rules: JSON, merge, strategic merge and server-side apply."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel_local.gpu_cluster import catalogue, patches, server_side_apply
from evenkeel_local.gpu_cluster.errors import ApiError
from evenkeel_local.gpu_cluster.store import clone
from tests.local.gpu_cluster.kube_client import Json

NAMES = st.sampled_from("abcd")
VALUES = st.text("xyz", min_size=1, max_size=2)
ENTRIES = st.dictionaries(NAMES, VALUES, max_size=4)


def variables(entries: dict[str, str]) -> list[Json]:
    """Return an environment, a list that is merged by name."""
    return [{"name": name, "value": value} for name, value in entries.items()]


def env_of(container: Json) -> dict[str, str]:
    return {item["name"]: item["value"] for item in container.get("env", [])}


# JSON patch


@given(ENTRIES, NAMES, VALUES)
def test_json_patch_remove_undoes_add(before: dict[str, str], name: str, value: str) -> None:
    document = {"data": dict(before)}

    added = patches.json_patch(document, [{"op": "add", "path": f"/data/{name}", "value": value}])
    removed = patches.json_patch(added, [{"op": "remove", "path": f"/data/{name}"}])

    assert added["data"] == {**before, name: value}
    assert removed["data"] == {key: item for key, item in before.items() if key != name}
    assert document == {"data": before}


@given(ENTRIES, NAMES)
def test_json_patch_test_reads_a_missing_member_as_null(before: dict[str, str], name: str) -> None:
    tested = [{"op": "test", "path": f"/data/{name}", "value": None}]

    if name in before:
        with pytest.raises(patches.PatchFailed):
            patches.json_patch({"data": before}, tested)
    else:
        assert patches.json_patch({"data": before}, tested) == {"data": before}


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "spin", "path": "/data"},
        {"op": "add", "value": 1},
        {"op": "test", "path": "/none/a", "value": None},
        {"op": "replace", "path": "/data/none", "value": 1},
        {"op": "move", "path": "/data/a", "from": "/data/none"},
        {"op": "add", "path": "/list/3", "value": 1},
    ],
)
def test_inapplicable_operation_fails_the_patch(operation: Json) -> None:
    with pytest.raises(patches.PatchFailed):
        patches.json_patch({"data": {}, "list": [1, 2]}, [operation])


def test_patch_of_too_many_operations_is_413() -> None:
    with pytest.raises(ApiError) as refused:
        patches.json_patch({}, [{"op": "test", "path": "/a", "value": None}] * 10_001)

    assert (refused.value.code, refused.value.reason) == (413, "RequestEntityTooLarge")


# Strategic merge


@given(ENTRIES, ENTRIES)
def test_strategic_merge_keeps_unnamed_items(before: dict[str, str], change: dict[str, str]) -> None:
    container = {"env": variables(before)}

    merged = patches.strategic_patch(container, {"env": variables(change)})

    assert env_of(merged) == {**before, **change}
    assert patches.strategic_patch(merged, {"env": variables(change)}) == merged


@given(ENTRIES, NAMES)
def test_strategic_merge_deletes_one_item(before: dict[str, str], name: str) -> None:
    merged = patches.strategic_patch({"env": variables(before)}, {"env": [{"name": name, "$patch": "delete"}]})

    assert env_of(merged) == {key: value for key, value in before.items() if key != name}


@given(ENTRIES, ENTRIES)
def test_strategic_merge_replaces_a_list_by_directive(before: dict[str, str], after: dict[str, str]) -> None:
    patch = {"env": [{"$patch": "replace"}, *variables(after)]}

    assert env_of(patches.strategic_patch({"env": variables(before)}, patch)) == after


@given(st.permutations("abcd"), st.permutations("abcd"), st.integers(0, 4))
def test_ordering_patch_keeps_relative_order_of_unlisted_items(
    stored: list[str], wanted: list[str], count: int
) -> None:
    order = wanted[:count]
    patch = {"$setElementOrder/env": [{"name": name} for name in order], "env": variables({"a": "new"})}

    merged = list(env_of(patches.strategic_patch({"env": variables(dict.fromkeys(stored, "x"))}, patch)))

    assert sorted(merged) == sorted(stored)
    assert [name for name in merged if name in order] == order
    assert [name for name in merged if name not in order] == [name for name in stored if name not in order]


def test_item_without_a_stated_order_stays_first() -> None:
    patch = {"$setElementOrder/env": [{"name": "a"}, {"name": "b"}], "env": variables({"b": "2"})}

    merged = patches.strategic_patch({"env": variables({"injected": "0", "a": "1"})}, patch)

    assert list(env_of(merged)) == ["injected", "a", "b"]


def test_patch_item_without_its_merge_key_is_internal_error() -> None:
    with pytest.raises(ApiError) as refused:
        patches.strategic_patch({"env": []}, {"env": [{"value": "x"}]})

    assert (refused.value.code, refused.value.reason) == (500, "")
    assert "does not contain declared merge key: name" in refused.value.message


# Server-side apply


def a_map(data: dict[str, str]) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}, "data": dict(data)}


def applied(stored: Json | None, manager: str, config: Json, *, force: bool = False) -> Json:
    if stored is None:
        new = clone(config)
        server_side_apply.record_ownership(catalogue.CONFIG_MAPS, new, config, manager, "")
        return dict(new)
    return server_side_apply.apply_configuration(catalogue.CONFIG_MAPS, stored, config, manager, force, "")


@given(ENTRIES, ENTRIES)
def test_apply_conflicts_exactly_on_differing_fields(first: dict[str, str], second: dict[str, str]) -> None:
    stored = applied(None, "first", a_map(first))
    differing = sorted(name for name in first.keys() & second.keys() if first[name] != second[name])

    if not differing:
        assert applied(stored, "second", a_map(second)).get("data", {}) == {**first, **second}
        return
    with pytest.raises(ApiError) as refused:
        applied(stored, "second", a_map(second))
    assert (refused.value.code, refused.value.reason) == (409, "Conflict")
    causes = (refused.value.details or {})["causes"]
    assert [cause["field"] for cause in causes] == [f".data.{name}" for name in differing]
    assert {cause["message"] for cause in causes} == {'conflict with "first"'}
    forced = applied(stored, "second", a_map(second), force=True)
    assert forced["data"] == {**first, **second}


@given(ENTRIES, ENTRIES, ENTRIES)
def test_unapplied_field_is_removed_unless_another_manager_owns_it(
    first: dict[str, str], second: dict[str, str], later: dict[str, str]
) -> None:
    stored = applied(None, "first", a_map(first))
    stored = applied(stored, "second", a_map(second), force=True)

    stored = applied(stored, "first", a_map(later), force=True)

    assert stored.get("data", {}) == {**second, **later}


def test_conflict_message_matches_the_real_server() -> None:
    stored = applied(None, "first", a_map({"a": "1", "b": "1"}))
    with pytest.raises(ApiError) as conflict:
        applied(stored, "second", a_map({"a": "2"}))
    with pytest.raises(ApiError) as two:
        applied(stored, "second", a_map({"a": "2", "b": "2"}))

    assert conflict.value.message == 'Apply failed with 1 conflict: conflict with "first": .data.a'
    assert two.value.message == 'Apply failed with 2 conflicts: conflicts with "first":\n- .data.a\n- .data.b'


def test_two_managers_share_a_security_context() -> None:
    def pod(**context: Any) -> Json:
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, "spec": {"securityContext": context}}

    stored = pod(runAsUser=1)
    server_side_apply.record_ownership(catalogue.PODS, stored, pod(runAsUser=1), "first", "")

    merged = server_side_apply.apply_configuration(catalogue.PODS, stored, pod(runAsGroup=2), "second", False, "")

    assert merged["spec"]["securityContext"] == {"runAsUser": 1, "runAsGroup": 2}
