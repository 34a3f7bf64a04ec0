"""Template files are valid as written, and have the shipped values."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.cli.conftest import CliFixture


@pytest.mark.parametrize("noun", ["jobs", "policy", "teams"])
def test_template_overwrites_no_file_unless_forced(served: CliFixture, noun: str) -> None:
    first, again, forced = (served.run(noun, "init", "mine.yaml", *force) for force in ((), (), ("--force",)))

    assert (first.exit_code, again.exit_code, forced.exit_code) == (0, 2, 0)
    assert "mine.yaml exists. [FILE_EXISTS]" in again.err
    assert "evenkeel" in first.out.splitlines()[-1]


def test_policy_template_has_the_shipped_values(served: CliFixture) -> None:
    served.run("policy", "init")

    checked = served.run("policy", "check", "policy.yaml", "-o", "json")

    assert (checked.exit_code, checked.err) == (0, "")
    assert json.loads(checked.out)["changes"] == []
    assert len(leaf_paths(yaml.safe_load(Path("policy.yaml").read_text(encoding="utf-8")))) > 10


def test_changed_policy_template_is_applied(served: CliFixture) -> None:
    served.run("policy", "init")
    text = Path("policy.yaml").read_text(encoding="utf-8").replace("maxAttempts: 3 ", "maxAttempts: 2 ")
    Path("policy.yaml").write_text(text, encoding="utf-8")

    applied = served.run("policy", "apply", "policy.yaml", "--reason", "fewer tries")

    assert (applied.exit_code, applied.err) == (0, "")


def test_teams_template_is_accepted_as_it_is(served: CliFixture) -> None:
    served.run("teams", "init")

    applied = served.run("teams", "apply", "-f", "teams.yaml", "--reason", "first teams")

    assert (applied.exit_code, applied.err) == (0, "")


def leaf_paths(document: Any) -> list[Any]:
    return (
        [leaf for value in document.values() for leaf in leaf_paths(value)]
        if isinstance(document, dict)
        else [document]
    )
