"""Write docs/cli-commands.md: every command with its arguments and options, from the commands themselves."""

import importlib
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import typer

from evenkeel_cli.main import NOUNS
from tools.generated_tables import with_tables

PAGE = Path(__file__).resolve().parents[1] / "docs" / "cli-commands.md"


def lines() -> Iterator[str]:
    """Yield a section for each noun, and in it a table for each command."""
    for name, noun in NOUNS.items():
        app: typer.Typer = importlib.import_module(f"evenkeel_cli.commands.{noun.module}").app
        yield ""
        yield f"## {name}"
        yield ""
        yield noun.help
        for words, command in _commands(name, typer.main.get_command(app)):
            yield ""
            yield f"### evenkeel {words}"
            yield ""
            yield from _section(words, command)
    yield ""


def _commands(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yield each command below a noun. A noun whose module has one command of that name is the command."""
    subcommands = getattr(command, "commands", None)
    if subcommands is None:
        yield words, command
        return
    for name, subcommand in subcommands.items():
        if not subcommand.hidden:
            yield from _commands(words if name == words else f"{words} {name}", subcommand)


def _section(words: str, command: Any) -> Iterator[str]:
    shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    arguments = [parameter for parameter in shown if parameter.param_type_name == "argument"]
    options = [parameter for parameter in shown if parameter.param_type_name == "option"]
    usage = [_name(argument) if argument.required else f"[{_name(argument)}]" for argument in arguments]
    yield "```"
    yield " ".join(["evenkeel", words, *usage, *(["[options]"] if options else [])])
    yield "```"
    yield ""
    yield from re.sub(r"\n(?!\n)(?<!\n\n)", " ", (command.help or "").strip()).splitlines()
    if shown:
        yield ""
        yield "| argument or option | meaning | default |"
        yield "|---|---|---|"
    for parameter in (*arguments, *options):
        yield f"| {_names(parameter)} | {_in_cell(parameter.help or '')} | {_default(parameter)} |"


def _name(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{_in_cell(_name(parameter))}`"
    value = "" if parameter.is_flag else f" {parameter.metavar or _kind(parameter)}"
    return ", ".join(f"`{name}{_in_cell(value)}`" for name in sorted(parameter.opts, key=len, reverse=True))


def _kind(parameter: Any) -> str:
    """Return the choices of an option, else its type in capitals."""
    annotation = parameter.type_descriptor.annotation
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return "|".join(str(choice.value) for choice in annotation)
    return {int: "NUMBER", float: "NUMBER", Path: "FILE"}.get(annotation, "TEXT")


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    default = parameter.default
    if default is None or default is False or default == "" or callable(default):
        return ""
    return f"`{getattr(default, 'value', default)}`"


def _in_cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def files() -> dict[Path, str]:
    """Return the page with its sections."""
    return {PAGE: with_tables(PAGE, {"commands": lines})}
