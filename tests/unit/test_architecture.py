"""The pictures and tables of docs/architecture.md are generated from the code."""

import pytest

from tools import architecture


def test_architecture_pictures_match_the_code() -> None:
    page = architecture.PAGE.read_text(encoding="utf-8")

    assert page == architecture.files()[architecture.PAGE], "run `make generate` and commit docs/architecture.md"


def test_package_picture_omits_transitive_edges() -> None:
    graph = {"a": frozenset({"b", "c"}), "b": frozenset({"c"}), "c": frozenset[str]()}

    assert architecture.without_shortcuts(graph) == {**graph, "a": frozenset({"b"})}


def test_page_without_markers_for_a_picture_is_refused() -> None:
    with pytest.raises(ValueError, match="one place for the picture job"):
        architecture.page_with_pictures("no markers", {"job": ["stateDiagram-v2"]})


@pytest.mark.parametrize("layer", ["domain", "services"])
def test_table_of_packages_describes_each_package(layer: str) -> None:
    rows = [row for row in architecture.package_table(layer) if row.startswith("| `")]

    assert len(rows) == len(list((architecture.ROOT / "shared" / "evenkeel" / layer).glob("*/**/__init__.py"))) > 10
    assert [row for row in rows if row.endswith("|  |")] == []
