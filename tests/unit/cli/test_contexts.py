"""Contexts of several fleets."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evenkeel_cli.doctor import site
from evenkeel_cli.doctor.site import ResourceNotFound
from evenkeel_cli.main import main
from evenkeel_client import context
from evenkeel_client.errors import CommandFailed

Run = Callable[..., tuple[int, str, str]]
URL = "https://{}.execute-api.us-west-2.amazonaws.com/api/v1"
STACKS = {"evenkeel": ("prod", "abc"), "evenkeel-dev": ("dev", "xyz")}


class TwoStacks:
    """CloudFormation with two stacks in one account."""

    def __init__(self, where: context.ApiContext) -> None:
        self.where = where

    def call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        assert (service, operation) == ("cloudformation", "describe_stacks")
        if parameters["StackName"] not in STACKS:
            raise ResourceNotFound(parameters["StackName"])
        fleet, api = STACKS[parameters["StackName"]]
        return {
            "Stacks": [
                {
                    "Parameters": [{"ParameterKey": "FleetName", "ParameterValue": fleet}],
                    "Outputs": [{"OutputKey": "ApiUrl", "OutputValue": URL.format(api)}],
                }
            ]
        }


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    for name in (
        "EVENKEEL_URL",
        "EVENKEEL_CONTEXT",
        "EVENKEEL_PROFILE",
        "XDG_CONFIG_HOME",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(site, "BotocoreAws", TwoStacks)

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["context", *words])
        return code, *capsys.readouterr()

    return run


def add_both_contexts(run: Run) -> None:
    for name, stack in (("prod", "evenkeel"), ("dev", "evenkeel-dev")):
        assert run("add", name, "--stack", stack, "--region", "us-west-2")[0] == 0


def context_in_force(tmp_path: Path, **environment: str) -> str:
    return context.find_context({"HOME": str(tmp_path)} | environment, tmp_path).url


def test_chosen_context_is_the_default_until_another_is_chosen(run: Run, tmp_path: Path) -> None:
    add_both_contexts(run)

    for name, api in (("prod", "abc"), ("dev", "xyz")):
        assert run("use", name)[0] == 0
        assert context_in_force(tmp_path) == URL.format(api)


def test_environment_variable_chooses_the_context(run: Run, tmp_path: Path) -> None:
    add_both_contexts(run)
    run("use", "prod")

    assert context_in_force(tmp_path, EVENKEEL_CONTEXT="dev") == URL.format("xyz")


def test_context_list_marks_the_context_in_use(run: Run) -> None:
    add_both_contexts(run)
    run("use", "dev")

    rows = json.loads(run("ls", "-o", "json")[1])["items"]

    assert [(row["context"], row["fleet"], row["isInForce"]) for row in rows] == [
        ("dev", "dev", True),
        ("prod", "prod", False),
    ]


def test_added_context_is_private_and_updated_when_added_again(run: Run, tmp_path: Path) -> None:
    run("add", "prod", "--stack", "evenkeel", "--region", "us-west-2", "--profile", "ops")
    file = tmp_path / ".config" / "evenkeel" / "contexts" / "prod.json"
    STACKS["evenkeel"] = ("prod", "new")
    try:
        run("add", "prod", "--stack", "evenkeel", "--region", "us-west-2", "--profile", "ops")
    finally:
        STACKS["evenkeel"] = ("prod", "abc")

    assert file.stat().st_mode & 0o777 == 0o600
    assert json.loads(file.read_text()) == {
        "name": "prod",
        "url": URL.format("new"),
        "region": "us-west-2",
        "stack": "evenkeel",
        "profile": "ops",
    }


def test_default_context_file_of_the_user_is_never_overwritten(run: Run, tmp_path: Path) -> None:
    add_both_contexts(run)
    default = tmp_path / ".config" / "evenkeel" / "context.json"
    default.write_text('{"url": "https://mine/v1"}')

    code, _, message = run("use", "prod")

    assert (code, "mv " in message) == (5, True)
    assert default.read_text() == '{"url": "https://mine/v1"}'


@pytest.mark.parametrize(
    ("words", "code", "named"),
    [
        (("use", "absent"), 4, "absent"),
        (("add", "../evil", "--stack", "evenkeel", "--region", "us-west-2"), 2, "../evil"),
        (("add", "prod", "--stack", "gone", "--region", "us-west-2"), 1, "gone"),
        (("add", "prod", "--stack", "evenkeel"), 2, "region"),
    ],
)
def test_refused_context_command_names_the_reason(run: Run, words: tuple[str, ...], code: int, named: str) -> None:
    exit_code, _, message = run(*words)

    assert (exit_code, named in message) == (code, True)


def test_unknown_context_in_the_environment_variable_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed) as error_info:
        context_in_force(tmp_path, EVENKEEL_CONTEXT="prdo")

    assert "prdo does not exist" in error_info.value.text


def test_unreadable_context_is_listed_with_its_problem(run: Run, tmp_path: Path) -> None:
    add_both_contexts(run)
    (tmp_path / ".config" / "evenkeel" / "contexts" / "prod.json").write_text("{")

    rows = json.loads(run("ls", "-o", "json")[1])["items"]

    assert [bool(row["problem"]) for row in rows] == [False, True]
