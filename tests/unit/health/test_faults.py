"""The fault catalogue: its rows are validated when they are read, as are the changes of a site."""

import csv
import importlib.resources
import io
from typing import Any

import pytest

from evenkeel.domain.health.faults import (
    UNKNOWN_FAULT,
    CatalogueError,
    FaultOverride,
    Rung,
    Severity,
    default_catalogue,
    read_catalogue,
)
from evenkeel.events import reported_faults

TEXT = importlib.resources.files("evenkeel.domain.health").joinpath("faults.csv").read_text(encoding="utf-8")


def catalogue_text_with(key: str, /, **columns: str) -> str:
    """Return the shipped catalogue as text, with some columns of one row changed."""
    rows = list(csv.DictReader(TEXT.splitlines()))
    for row in rows:
        if row["key"] == key:
            row.update(columns)
    out = io.StringIO()
    writer = csv.DictWriter(out, rows[0].keys(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


# ---------------------------------------------------------------- reading


def test_whole_catalogue_is_read_and_each_alias_equals_its_fault() -> None:
    catalogue = default_catalogue()

    assert len(catalogue) == len(TEXT.splitlines()) - 1
    for fault in catalogue.values():
        if fault.alias_of:
            assert catalogue[fault.alias_of].ladder == fault.ladder


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"p_ladder": "reboot>explode"}, r"xid:79\), column p_ladder: .*not 'explode'"),
        ({"p_ladder": "reboot>reboot"}, "xid:79\\), column p_ladder: a rung occurs twice"),
        ({"p_ladder": ""}, r"xid:79\), column p_ladder: "),
        ({"p_severity": "dire"}, r"xid:79\), column p_severity: .*not 'dire'"),
        ({"p_checkpoint_trust": "maybe"}, r"xid:79\), column p_checkpoint_trust: "),
        ({"p_drain_s": "soon"}, r"xid:79\), column p_drain_s: "),
        ({"p_drain_s": "300"}, r"xid:79\), column p_drain_class: now is not 300 s"),
        ({"p_drain_s": "60", "p_drain_class": "notice"}, r"xid:79\), column p_drain_class: "),
        ({"p_acts_alone": "perhaps"}, r"xid:79\), column p_acts_alone: "),
        ({"p_recur_count": "1"}, r"xid:79\), column p_recur_count: "),
        ({"p_recur_count": "0"}, r"xid:79\), column p_recur_count: must be 0 if"),
        ({"p_recur_window_h": "0"}, r"xid:79\), column p_recur_window_h: "),
        ({"p_recur_window_h": "721"}, r"xid:79\), column p_recur_window_h: "),
        ({"p_validate": "none"}, r"xid:79\), column p_validate: "),
        ({"p_class": "gremlins"}, r"xid:79\), column p_class: "),
        ({"alias_of": "xid:9999"}, "xid:79, column alias_of: xid:9999 does not exist"),
        ({"alias_of": "xid:48"}, "xid:79, column .*p_checkpoint_trust.*: differs from xid:48"),
        ({"key": "xid:78"}, r"xid:78\), column key: this key occurs twice"),
    ],
)
def test_invalid_catalogue_row_is_refused_with_line_key_and_column(columns: dict[str, str], expected: str) -> None:
    with pytest.raises(CatalogueError, match=expected):
        read_catalogue(catalogue_text_with("xid:79", **columns))


def test_catalogue_with_extra_column_or_missing_fallback_is_refused() -> None:
    with pytest.raises(CatalogueError, match="p_mood"):
        read_catalogue(TEXT.replace("p_validate,note", "p_validate,p_mood,note", 1))
    with pytest.raises(CatalogueError, match=r"xid:\*"):
        read_catalogue(catalogue_text_with("xid:*", key="xid:nothing"))
    with pytest.raises(CatalogueError, match="fields than the header"):
        read_catalogue(TEXT + "xid:9999,xid\n")


def test_each_fault_reference_has_a_url() -> None:
    references = importlib.resources.files("evenkeel.domain.health").joinpath("fault_references.csv").read_text("utf-8")
    reference_by_key = {row["key"]: row for row in csv.DictReader(references.splitlines())}

    used_references = {reference for fault in default_catalogue().values() for reference in fault.facts.references}

    assert used_references - set(reference_by_key) == set(), "add these references to fault_references.csv"
    assert set(reference_by_key) - used_references == set(), "no fault has these references: delete their rows"
    assert all(row["url"].startswith("https://") or row["key"] == "project" for row in reference_by_key.values())


# ---------------------------------------------------------------- looking up


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("xid:79", "xid:79"),
        ("xid:4711", "xid:*"),
        ("xid:79/strange", "xid:79"),
        ("xid:154/strange", "xid:*"),
        ("sxid:4711", "sxid:*"),
        ("hp:Nonsense", UNKNOWN_FAULT),
        ("", UNKNOWN_FAULT),
        ("nonsense", UNKNOWN_FAULT),
    ],
)
def test_every_fault_key_has_a_catalogue_row(key: str, expected: str) -> None:
    assert default_catalogue().look_up(key).key == expected


@pytest.mark.parametrize("key", sorted(default_catalogue()))
def test_every_fault_of_the_catalogue_can_be_reported(key: str) -> None:
    assert [reading.fault_key for reading in reported_faults.named_faults(key, "")] == [key]


def test_unknown_fault_has_no_repair() -> None:
    assert not default_catalogue().look_up("hp:Nonsense").repairs_node
    assert not default_catalogue().look_up("xid:4711").acts_alone


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("79", "xid:79"),
        ("XID 79", "xid:79"),
        ("xid79", "xid:79"),
        ("NvidiaXID79Error", "xid:79"),
        ("SXid: 12028", "sxid:12028"),
        ("xid:154/none", "xid:154/none"),
        ("NvidiaErrorReboot", "hp:NvidiaErrorReboot"),
        ("nvidiaerrorreboot", "hp:NvidiaErrorReboot"),
        ("DCGMError", "eks:DCGMError"),
        ("spot_interruption", "ec2:spot_interruption"),
    ],
)
def test_fault_is_found_by_every_name_that_people_type(code: str, expected: str) -> None:
    fault = default_catalogue().find(code)

    assert fault
    assert fault.key == expected


def test_unknown_fault_name_suggests_similar_names() -> None:
    assert default_catalogue().find("4711") is None
    assert default_catalogue().find("NvidiaErorReboot") is None
    assert "hp:NvidiaErrorReboot" in default_catalogue().nearest_keys("NvidiaErorReboot")
    assert default_catalogue().nearest_keys("zzzzzz") == ()


# ---------------------------------------------------------------- changes of a site


def an_override(**changes: Any) -> FaultOverride:
    return FaultOverride.model_validate(changes)


def test_fault_changed_by_the_site_changes_the_catalogue_hash() -> None:
    changed = default_catalogue().with_overrides(
        {"xid:94": an_override(ladder=["replace"], severity="critical", drainSeconds=60)}
    )

    assert changed["xid:94"].ladder == (Rung.REPLACE,)
    assert (changed["xid:94"].severity, changed["xid:94"].drain_class) == (Severity.CRITICAL, "notice")
    assert default_catalogue()["xid:94"].ladder != changed["xid:94"].ladder
    assert changed.hash != default_catalogue().hash


def test_alias_of_a_fault_takes_over_its_overrides() -> None:
    changed = default_catalogue().with_overrides({"thermal:slowdown": an_override(severity="major")})

    assert changed["eks:NvidiaThermalError"].severity is Severity.MAJOR


def test_order_of_fault_overrides_does_not_matter() -> None:
    first, second = {"xid:94": an_override(severity="major")}, {"xid:13": an_override(severity="major")}

    assert default_catalogue().with_overrides({}) is default_catalogue()
    assert (
        default_catalogue().with_overrides(first | second).hash
        == default_catalogue().with_overrides(second | first).hash
    )


@pytest.mark.parametrize(
    ("key", "changes", "expected"),
    [
        ("xid:9999", {}, "there is no fault 'xid:9999'; did you mean xid:99"),
        ("eks:DCGMError", {"severity": "info"}, "is an alias of gpu:dcgm_host_engine_lost"),
        ("xid:79", {"recurCount": 1}, "xid:79: recurCount: "),
        ("xid:79", {"drainSeconds": -2}, "xid:79: "),
        ("xid:43", {"ladder": ["reboot"]}, "xid:43: validateWith: "),
    ],
)
def test_invalid_fault_override_is_refused_by_field(key: str, changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(CatalogueError, match=expected):
        default_catalogue().with_overrides({key: an_override(**changes)})


@pytest.mark.parametrize("changes", [{"fNvidiaNow": "IGNORE"}, {"name": "x"}, {"ladder": ["explode"]}, {"facts": {}}])
def test_fault_override_with_fixed_fields_or_unknown_values_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"Extra inputs|should be"):
        an_override(**changes)
