"""Commands in the style of kubectl expand to Evenkeel's commands."""

import pytest

from evenkeel_cli.aliases import expand_aliases
from evenkeel_cli.main import NOUNS
from tests.unit.cli.conftest import CliFixture
from tests.unit.cli.recovery_fixture import store_running_recovery


@pytest.mark.parametrize(
    ("typed", "command"),
    [
        ("get jobs -w", "jobs ls -w"),
        ("get job first", "jobs show first"),
        ("get job/first -o yaml", "jobs show first -o yaml"),
        ("describe node i-1", "nodes show i-1"),
        ("get incidents", "incidents ls"),
        ("delete job first", "jobs cancel first"),
        ("rm job/first", "jobs cancel first"),
        ("logs first -f", "jobs logs first -f"),
        ("cordon i-1", "nodes cordon i-1"),
        ("job ls", "jobs ls"),
        ("jobs get first", "jobs show first"),
        ("jobs list", "jobs ls"),
        ("jobs rm first", "jobs cancel first"),
        ("delete node i-1", "delete node i-1"),
        ("nodes rm i-1", "nodes rm i-1"),
        ("get secrets", "get secrets"),
        ("jobs ls", "jobs ls"),
        ("why get", "why get"),
        ("--version", "--version"),
        ("", ""),
    ],
)
def test_kubectl_style_commands_expand_to_evenkeel_commands(typed: str, command: str) -> None:
    assert expand_aliases(typed.split()) == command.split()


def test_no_evenkeel_command_is_shadowed_by_an_alias() -> None:
    assert [noun for noun in NOUNS if expand_aliases([noun]) != [noun]] == []


def test_alias_prints_the_output_of_its_command(cli: CliFixture) -> None:
    store_running_recovery(cli.gateway)

    assert cli.run("get", "jobs").out == cli.run("jobs", "ls").out != ""
