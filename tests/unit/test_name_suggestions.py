"""Suggestions for unknown names."""

from evenkeel.domain.name_suggestions import unknown_name


def test_suggestion_for_an_unknown_name_is_never_that_name_itself() -> None:
    assert unknown_name("node", "i-1", ["i-1", "i-2"]) == "There is no node i-1. Did you mean i-2?"


def test_unlike_names_are_listed() -> None:
    assert unknown_name("team", "blue", ["red"]) == "There is no team blue. Known: red."


def test_nothing_is_suggested_if_no_other_name_exists() -> None:
    assert unknown_name("node", "i-1", ["i-1"]) == "There is no node i-1."
