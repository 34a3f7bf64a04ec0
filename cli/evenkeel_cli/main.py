"""The command's entry: one root, nouns loaded when they are typed, failures said in two lines."""

import gc
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple, TextIO

import typer

from evenkeel_cli.errors import CommandFailed, Exit


class Noun(NamedTuple):
    """One word after `evenkeel`."""

    module: str
    help: str


NOUNS = {
    "status": Noun("status", "One screen: what burns, what is done, the fleet, the jobs."),
    "why": Noun("why", "Why a job waits, moved or ended; why an incident went so."),
    "jobs": Noun("jobs", "Submit, list, show, follow, hold back and cancel training jobs."),
    "teams": Noun("teams", "Who shares the fleet: quotas, who borrows from whom."),
    "incidents": Noun("incidents", "What happened to nodes, and what was done about it."),
    "nodes": Noun("nodes", "The machines of the fleet."),
    "faults": Noun("faults", "What can go wrong with a node, and what it calls for."),
    "automation": Noun("automation", "Hold harmful acts, or let them go on."),
    "policy": Noun("policy", "The limits, deadlines and faults that decisions are made by."),
    "plan": Noun("plan", "Run the scheduler on files: who is admitted where, who has to go, and why."),
    "quota": Noun("quota", "Quota files: from one spelling into another."),
    "doctor": Noun("doctor", "Check everything that Evenkeel needs, and say what to fix."),
    "drill": Noun("drill", "Break something in the local data centre."),
    "dev": Noun("dev", "The local data centre: up, down, status."),
    "version": Noun("version", "Print the version."),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    _start_fast()
    code = _run(list(sys.argv[1:] if arguments is None else arguments) or ["--help"])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _let_go(sys.stdout)
    return code


def _start_fast() -> None:
    """Skip work that a short-lived process does not need: early garbage collection, and the search for plugins."""
    gc.set_threshold(50_000, 20, 20)
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")


def _run(words: list[str]) -> int:
    try:
        answer = _root(words)(args=words, prog_name="evenkeel", standalone_mode=False)
    except CommandFailed as failed:
        _say(failed)
        return failed.exit_code
    except typer.Abort:
        return Exit.INTERRUPTED
    except typer.TyperException as wrong:
        noun = next((word for word in words if word in NOUNS), "")
        hint = f"evenkeel {noun} --help" if noun else "evenkeel --help"
        _say(CommandFailed(Exit.USAGE, wrong.format_message(), code="USAGE", hint=hint))
        return Exit.USAGE
    except SystemExit as ended:
        # The reader of a pipe had enough (`evenkeel jobs ls | head`): not worth a word. Typer makes exit 1 of it.
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        _let_go(sys.stdout)
        return Exit.DONE
    return answer if isinstance(answer, int) else Exit.DONE


def _let_go(stream: TextIO) -> None:
    """Let what is still to be written to a closed pipe go nowhere: Python would complain of it as it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _root(words: Sequence[str]) -> typer.Typer:
    root = typer.Typer(
        help="Keeps GPU training on an even keel.",
        rich_markup_mode=None,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    root.callback()(_nothing)
    typed = next((word for word in words if not word.startswith("-")), "")
    for name, noun in NOUNS.items():
        if name != typed:
            root.command(name, help=noun.help)(_nothing)
            continue
        app: typer.Typer = importlib.import_module(f"evenkeel_cli.commands.{noun.module}").app
        # A noun with one nameless command is that command; the others are groups.
        root.add_typer(app, name=None if app.registered_commands[0].name == name else name, help=noun.help)
    return root


def _nothing() -> None:
    """Stand in for a noun that was not typed."""


def _say(failed: CommandFailed) -> None:
    from evenkeel_cli.render import Page

    code = f" [{failed.code}]" if failed.code else ""
    lines = [f"✖ {failed.text}{code}"]
    if failed.hint:
        lines.append(f"  {failed.hint}")
    if failed.request_id and failed.exit_code is Exit.FAILED:
        lines.append(f"  request {failed.request_id}")
    try:
        for line in lines:
            Page(sys.stderr, os.environ).line(line)
        sys.stderr.flush()
    except BrokenPipeError:
        _let_go(sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
