"""A release reads the rows of the previous release, and writes rows that the previous release can read."""

import copy
import json
from collections.abc import Callable
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from evenkeel.domain.values import StrictValue
from tests.row_schemas import FILE, problems, schemas
from tests.stored_rows import TYPES, classes_in

READ_BUT_NOT_WRITTEN: dict[str, frozenset[str]] = {}
"""Enumeration → new values that this release reads and does not write yet."""
COMMITTED = json.loads(FILE.read_text(encoding="utf-8"))


def test_last_release_and_this_release_read_each_others_rows() -> None:
    texts = list(problems(COMMITTED, schemas(), READ_BUT_NOT_WRITTEN))

    assert not texts, "\n".join(["docs/release.md#what-a-release-may-change:", *texts])


def test_snapshot_of_the_row_schemas_is_current() -> None:
    assert schemas() == COMMITTED, "The change is allowed. Run: .venv/bin/python -m tests.row_schemas"


def test_stored_classes_keep_unknown_fields_of_a_newer_release() -> None:
    kinds = {kind for row in TYPES for kind in classes_in(row.kind) if issubclass(kind, BaseModel)}

    dropping_classes = [
        kind.__name__
        for kind in kinds
        if kind.model_config.get("extra") != "allow" and not issubclass(kind, StrictValue)
    ]
    assert dropping_classes == []


def test_row_field_that_may_be_none_defaults_to_none() -> None:
    """Rows that leave out fields that are None read the same (`Value.to_compact_json`)."""
    kinds = {kind for row in TYPES for kind in classes_in(row.kind) if issubclass(kind, BaseModel)}

    required_fields = [
        f"{kind.__name__}.{name}"
        for kind in kinds
        for name, field in kind.model_fields.items()
        if type(None) in get_args(field.annotation) and field.default is not None
    ]
    assert required_fields == []


def _problems_after(change: Callable[[dict[str, Any]], object]) -> str:
    after = copy.deepcopy(COMMITTED)
    change(after)
    return "\n".join(problems(COMMITTED, after, {"JobState": frozenset({"READ"})}))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda s: s["values"]["Job"].pop("reason"), "Job.reason is gone. Keep the field; stop using it."),
        (lambda s: s["values"]["Job"].update(priority="str"), "Job.priority was int"),
        (lambda s: s["values"]["Job"].update(colour="str (required)"), "Job.colour is new and required"),
        (lambda s: s["values"]["Job"].update(reason="str (required)"), "Job.reason was"),
        (lambda s: s["values"].pop("Wait"), "Wait is gone."),
        (lambda s: s["rows"].pop("JOBS JOB#.+ / META"), "The row JOBS JOB#.+ / META was a Job."),
        (lambda s: s["enumerations"]["JobState"].remove("RUNNING"), "JobState has no value RUNNING any more."),
        (lambda s: s["enumerations"]["JobState"].append("PAUSED"), "JobState.PAUSED is new. The last release cannot"),
    ],
)
def test_row_change_that_breaks_the_last_release_is_reported(
    change: Callable[[dict[str, Any]], object], expected: str
) -> None:
    assert expected in _problems_after(change)


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s["values"]["Job"].update(colour="str"),
        lambda s: s["values"]["Job"].update(jobId="str"),
        lambda s: s["values"].update(Colour={"name": "str (required)"}),
        lambda s: s["enumerations"].update(Colour=["RED"]),
        lambda s: s["enumerations"]["JobState"].append("READ"),
    ],
)
def test_row_change_that_both_releases_can_read_is_accepted(change: Callable[[dict[str, Any]], object]) -> None:
    assert _problems_after(change) == ""
