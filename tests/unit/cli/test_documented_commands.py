"""Every command in a page, a message or a document exists."""

import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer

from evenkeel_cli.aliases import expand_aliases
from evenkeel_cli.main import NOUNS, main

PROJECT = Path(__file__).resolve().parents[3]
PAGES = sorted([PROJECT / "README.md", PROJECT / "CHANGELOG.md", *(PROJECT / "docs").rglob("*.md")])
SOURCES = sorted(
    [
        PROJECT / "template.yaml",
        *(path for folder in ("shared", "functions", "cli", "local") for path in (PROJECT / folder).rglob("*.py")),
    ]
)
_COMMAND = re.compile(r"(?<![\w.-])evenkeel ([a-z][a-z-]*)((?:[^`|;&\"\n]|\|(?! ))*)")
_IN_CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
_NO_COMMANDS = {"resume-point", "import", "and", "is"}
"""Words after `evenkeel` in texts that are no commands."""


@cache
def verbs_of(noun: str) -> dict[str, frozenset[str]]:
    """Return the options of each verb of a noun. A noun without verbs has its options under the empty name."""
    app: typer.Typer = importlib.import_module(f"evenkeel_cli.commands.{NOUNS[noun].module}").app
    command = typer.main.get_command(app)
    verbs = getattr(command, "commands", {"": command})
    return {
        name: frozenset({"--help", *(option for parameter in verb.params for option in parameter.opts)})
        for name, verb in verbs.items()
    }


def commands_in(text: str) -> Iterator[tuple[str, str]]:
    """Yield each noun after `evenkeel` in a text, with the rest of the line."""
    for match in _COMMAND.finditer(text):
        if match[1] not in _NO_COMMANDS:
            yield match[1], match[2].split(" -- ")[0]


def wrong_commands_in(text: str) -> list[str]:
    """Return the commands and options in a text that do not exist."""
    problems = []
    for typed_noun, typed_rest in commands_in(text):
        noun, *words = expand_aliases([typed_noun, *typed_rest.split()])
        remaining_words = "".join(f" {word}" for word in words)
        if noun not in NOUNS:
            problems.append(noun)
            continue
        verbs, typed = verbs_of(noun), re.match(r" ([a-z][a-z-]*)", remaining_words)
        verb = typed[1] if typed and "" not in verbs else ""
        if verb and verb not in verbs:
            problems.append(f"{noun} {verb}")
            continue
        options = re.findall(r"(?<=[ \[])--[a-z-]+", remaining_words)
        problems += [f"{noun} {option}" for option in options if option not in verbs.get(verb, {"--help"})]
    return problems


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_every_documented_command_exists(page: Path) -> None:
    code = "\n".join(_IN_CODE.findall(page.read_text("utf-8")))

    assert wrong_commands_in(code) == []


def test_every_command_named_in_a_message_exists() -> None:
    problems_by_file = {
        path.relative_to(PROJECT): commands
        for path in SOURCES
        if (commands := wrong_commands_in(path.read_text("utf-8")))
    }

    assert problems_by_file == {}


def test_unknown_command_or_option_in_a_text_is_reported() -> None:
    text = "evenkeel incidents last\nevenkeel drain x\nevenkeel why x --loudly; evenkeel jobs ls --state FAILED"

    assert wrong_commands_in(text) == ["incidents last", "drain", "why --loudly"]


@pytest.mark.parametrize("noun", NOUNS)
def test_command_line_page_lists_every_command(noun: str) -> None:
    page = (PROJECT / "docs" / "cli.md").read_text(encoding="utf-8")
    rows = [line.split(" | ")[0] for line in page.splitlines() if line.startswith(f"| `{noun}")]
    app = importlib.import_module(f"evenkeel_cli.commands.{NOUNS[noun].module}").app
    visible_verbs = verbs_of(noun).keys() - {command.name for command in app.registered_commands if command.hidden}

    missing = [verb for verb in sorted(visible_verbs) if not re.search(rf"\b{re.escape(verb)}\b", " ".join(rows))]
    assert rows, f"add a row of {noun} to the table of commands in docs/cli.md"
    assert missing == [], f"add the command to a row of {noun} in docs/cli.md"


@pytest.mark.parametrize("words", [(), *((noun,) for noun in NOUNS)])
def test_help_summaries_fit_80_columns(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    main([*words, "--help"])

    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert [line for line in lines if line.endswith("...") and not line.startswith("Usage:")] == []
