"""Template files are valid as written, and have the shipped values."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.cli.conftest import CliFixture


@pytest.mark.parametrize("noun", ["jobs", "policy", "teams"])
def test_template_overwrites_no_file_unless_forced(cli: CliFixture, noun: str) -> None:
    first, repeated_result, forced = (cli.run(noun, "init", "mine.yaml", *force) for force in ((), (), ("--force",)))

    assert (first.exit_code, repeated_result.exit_code, forced.exit_code) == (0, 2, 0)
    assert "mine.yaml exists. [FILE_EXISTS]" in repeated_result.err
    assert "evenkeel" in first.out.splitlines()[-1]


def test_policy_template_has_the_shipped_values(cli: CliFixture) -> None:
    cli.run("policy", "init")

    checked = cli.run("policy", "check", "policy.yaml", "-o", "json")

    assert (checked.exit_code, checked.err) == (0, "")
    assert json.loads(checked.out)["changes"] == []
    assert len(leaf_paths(yaml.safe_load(Path("policy.yaml").read_text(encoding="utf-8")))) > 10


def test_changed_policy_template_is_applied(cli: CliFixture) -> None:
    cli.run("policy", "init")
    text = Path("policy.yaml").read_text(encoding="utf-8").replace("maxAttempts: 3 ", "maxAttempts: 2 ")
    Path("policy.yaml").write_text(text, encoding="utf-8")

    applied = cli.run("policy", "apply", "policy.yaml", "--reason", "fewer tries")

    assert (applied.exit_code, applied.err) == (0, "")


def test_teams_template_is_accepted_as_it_is(cli: CliFixture) -> None:
    cli.run("teams", "init")

    applied = cli.run("teams", "apply", "-f", "teams.yaml", "--reason", "first teams")

    assert (applied.exit_code, applied.err) == (0, "")


def leaf_paths(document: Any) -> list[Any]:
    return (
        [leaf for value in document.values() for leaf in leaf_paths(value)]
        if isinstance(document, dict)
        else [document]
    )
