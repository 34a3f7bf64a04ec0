"""Suggestions for unknown names."""

from evenkeel.domain.names import unknown_name


def test_suggestion_is_another_name() -> None:
    assert unknown_name("node", "i-1", ["i-1", "i-2"]) == "There is no node i-1. Did you mean i-2?"


def test_name_alone_has_no_suggestion() -> None:
    assert unknown_name("node", "i-1", ["i-1"]) == "There is no node i-1."
