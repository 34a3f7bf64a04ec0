"""Every `aws` command in the pages exists, and has only existing options and all required ones."""

import functools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from botocore import xform_name
from botocore.model import ServiceModel, Shape
from botocore.session import get_session

from evenkeel_cli.offline.planned_stack import read_planned_stack
from tools import adoption

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])
_FENCED = re.compile(r"^ *```\w*\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`(aws [^`]+)`")
_GLOBAL = frozenset(
    {"region", "output", "query", "profile", "endpoint-url", "cli-input-json", "max-items", "no-cli-pager"}
)
_CLI_ONLY_COMMANDS = {
    *(("logs", "tail"), ("sso", "login"), ("s3", "cp"), ("s3", "ls"), ("eks", "update-kubeconfig")),
    ("cloudformation", "deploy"),
}
"""Commands that the AWS CLI adds to the operations of the services."""
_RENAMED_OPTIONS = {("lambda", "invoke"): {"payload"}, ("sns", "subscribe"): {"notification-endpoint"}}
"""Options whose name in the AWS CLI differs from the parameter of the service."""


class AwsCommand(NamedTuple):
    page: str
    text: str

    def words(self) -> list[str]:
        """Return the words of the command up to a pipe or a list separator."""
        text = re.sub(r"\$\([^()]*\)", "VALUE", self.text.replace("\\\n", " ")).replace("…", "")
        words = shlex.split(text)
        ends = [index for index, word in enumerate(words) if word in ("|", ">", "&&", "||", ";") or word.endswith(";")]
        return words[: min(ends, default=len(words))]


def documented_commands() -> Iterator[AwsCommand]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        name = str(page.relative_to(ROOT))
        blocks = "\n".join(_FENCED.findall(text)).replace("\\\n", " ")
        for line in blocks.splitlines():
            if match := re.search(r"(?:^|\s|\$\()(aws [a-z].*)$", line):
                yield AwsCommand(name, match[1])
        for inline in _INLINE.findall(_FENCED.sub("", text)):
            yield AwsCommand(name, " ".join(inline.split()))
    for command in adoption.commands(read_planned_stack(ROOT, "prod"), Path("folder")):
        if command.startswith("aws "):
            yield AwsCommand("tools/adoption.py", command)


COMMANDS = sorted(set(documented_commands()))


@functools.cache
def service_model_of(service: str) -> ServiceModel:
    return get_session().get_service_model(service)


def problems_of_command(command: AwsCommand) -> list[str]:
    """Return what is wrong with a command."""
    _, service, operation, *arguments = command.words()
    if (service, operation) in _CLI_ONLY_COMMANDS:
        return []
    if operation == "wait":
        waiters = get_session().get_waiter_model(service).waiter_names
        return [] if arguments[0] in {xform_name(name, "-") for name in waiters} else [f"no waiter {arguments[0]}"]
    operation_by_command = {xform_name(name, "-"): name for name in service_model_of(service).operation_names}
    if operation not in operation_by_command:
        return [f"{service} has no operation {operation}"]
    shape = service_model_of(service).operation_model(operation_by_command[operation]).input_shape
    members: dict[str, Shape] = dict(shape.members) if shape else {}
    options = {xform_name(name, "-") for name in members}
    given_options = {word[2:].partition("=")[0] for word in arguments if word.startswith("--")}
    unknown_options = {
        name
        for name in given_options - options - _GLOBAL - _RENAMED_OPTIONS.get((service, operation), set())
        if name.removeprefix("no-") not in options
    }
    needed = {xform_name(name, "-") for name in (shape.required_members if shape else ())}
    missing = needed - given_options - ({"endpoint"} if operation == "subscribe" else set())
    return [f"no option --{name}" for name in sorted(unknown_options)] + (
        [f"needs --{name}" for name in sorted(missing)] if given_options else []
    )


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: f"{command.page}: {command.text[:60]}")
def test_aws_command_in_a_page_is_valid(command: AwsCommand) -> None:
    assert problems_of_command(command) == [], command.text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("aws dynamodb restore-everything", "no operation restore-everything"),
        ("aws dynamodb update-table --table-nam x --table-name x", "no option --table-nam"),
        ("aws dynamodb create-backup --table-name x", "needs --backup-name"),
        ("aws dynamodb wait table-there --table-name x", "no waiter table-there"),
    ],
)
def test_wrong_aws_command_in_a_page_is_reported(text: str, says: str) -> None:
    assert any(says in problem for problem in problems_of_command(AwsCommand("a page", text)))


def test_aws_commands_are_read_from_the_pages() -> None:
    assert len(COMMANDS) > 40
