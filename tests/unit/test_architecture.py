"""The pictures of docs/architecture.md are those that the code gives."""

import pytest

from tools import architecture


def test_pictures_of_the_architecture_are_fresh() -> None:
    page = architecture.PAGE.read_text(encoding="utf-8")

    assert page == architecture.files()[architecture.PAGE], "run `make generate` and commit docs/architecture.md"


def test_shortcuts_are_left_out_of_the_packages() -> None:
    graph = {"a": frozenset({"b", "c"}), "b": frozenset({"c"}), "c": frozenset[str]()}

    assert architecture.without_shortcuts(graph) == {**graph, "a": frozenset({"b"})}


def test_page_without_a_place_for_a_picture_is_refused() -> None:
    with pytest.raises(ValueError, match="one place for the picture job"):
        architecture.drawn("no markers", {"job": ["stateDiagram-v2"]})
