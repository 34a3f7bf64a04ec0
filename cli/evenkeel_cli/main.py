"""Command entry point: load each subcommand on first use, and print each failure in two lines."""

import gc
import importlib
import os
import re
import sys
from collections.abc import Sequence
from typing import Annotated, NamedTuple, TextIO

import typer

from evenkeel_cli.aliases import expand_aliases
from evenkeel_client.errors import CommandFailed, Exit


class CommandGroup(NamedTuple):
    """The module and the summary of a noun, which is the word after `evenkeel`."""

    module: str
    help: str


NOUNS = {
    "status": CommandGroup("status", "Show health, open incidents, nodes and jobs on one screen."),
    "console": CommandGroup("console", "Open the operator console in the browser."),
    "why": CommandGroup("why", "Explain a decision about a job, a node or an incident."),
    "decisions": CommandGroup("decisions", "List decisions about the fleet, a job or an incident."),
    "jobs": CommandGroup("jobs", "Submit, list, show, follow, suspend and cancel training jobs."),
    "teams": CommandGroup("teams", "Show and change teams, their quotas and their spending."),
    "incidents": CommandGroup("incidents", "Show incidents and their recovery; approve or decline plans."),
    "postmortem": CommandGroup("postmortem", "Write a blameless postmortem of an incident as Markdown."),
    "events": CommandGroup("events", "List what changed on the fleet, and what people did."),
    "nodes": CommandGroup("nodes", "List, show, cordon, uncordon and replace nodes."),
    "report": CommandGroup("report", "Show what failures, idle nodes and rent cost."),
    "utilization": CommandGroup("utilization", "List allocation and measured utilization of pools and nodes."),
    "faults": CommandGroup("faults", "List and explain known faults, and report a fault."),
    "automation": CommandGroup("automation", "Show, hold and release automation: recoveries, or everything."),
    "audit": CommandGroup("audit", "List what people did to the fleet."),
    "policy": CommandGroup("policy", "Show, check and change limits, deadlines and faults."),
    "plan": CommandGroup("plan", "Run the scheduler on files; show admissions and preemptions."),
    "shadow": CommandGroup("shadow", "Compare decisions of the mode `observe` with what happened."),
    "backtest": CommandGroup("backtest", "Replay exported events: compare decisions with what happened."),
    "quota": CommandGroup("quota", "Convert quota files between formats."),
    "context": CommandGroup("context", "List, add and choose the fleets of this command line."),
    "access": CommandGroup("access", "Create, update and remove the functions' EKS access entries."),
    "economics": CommandGroup("economics", "Calculate what failures cost and what to change."),
    "doctor": CommandGroup("doctor", "Check everything that Evenkeel needs, and show the fixes."),
    "drill": CommandGroup("drill", "Inject faults into the local data centre."),
    "dev": CommandGroup("dev", "Start, stop and inspect the local data centre."),
    "completion": CommandGroup("completion", "Print the completion script of a shell."),
    "version": CommandGroup("version", "Print the version."),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    _start_fast()
    arguments_typed = list(sys.argv[1:] if arguments is None else arguments)
    if arguments_typed and arguments_typed[0].startswith("__"):
        importlib.import_module("evenkeel_cli.completion").run(arguments_typed)
        return Exit.DONE
    code = _run(expand_aliases(arguments_typed) or ["--help"])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output(sys.stdout)
    return code


def _start_fast() -> None:
    """Skip work that a short-lived process does not need: early garbage collection, and the search for plugins."""
    gc.set_threshold(50_000, 20, 20)
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")


def _run(words: list[str]) -> int:
    try:
        answer = _root_app(words)(args=words, prog_name="evenkeel", standalone_mode=False)
    except CommandFailed as failure:
        _print_error(_in_words_typed(failure, words))
        return failure.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return Exit.INTERRUPTED
    except typer.TyperException as wrong:
        usage_context = getattr(wrong, "ctx", None)
        command = usage_context.command_path if usage_context else "evenkeel"
        _print_error(CommandFailed(Exit.USAGE, _usage_text(wrong), code="USAGE", hint=f"{command} --help"))
        return Exit.USAGE
    except SystemExit as ended:
        # The reader closed the pipe (`evenkeel jobs ls | head`). This is not an error, but Typer returns exit code 1.
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        _discard_output(sys.stdout)
        return Exit.DONE
    return answer if isinstance(answer, int) else Exit.DONE


def _in_words_typed(failure: CommandFailed, words: Sequence[str]) -> CommandFailed:
    """Name the options that the person typed, instead of the fields of the API's request."""
    if failure.code != "VALIDATION_FAILED":
        return failure
    options = {word.partition("=")[0] for word in words if word.startswith("--")}

    def named(match: re.Match[str]) -> str:
        option = "--" + re.sub("[A-Z]", lambda letter: f"-{letter[0].lower()}", match[2])
        return f"{match[1]}{option if option in options else match[2]}: "

    failure.text = re.sub(r"^( *)(\w+): ", named, failure.text, flags=re.MULTILINE)
    failure.hint = failure.hint.replace("Correct the fields that `errors` names.", "Correct this, then run it again.")
    return failure


def _usage_text(wrong: typer.TyperException) -> str:
    """Return why an option or argument is wrong. Typer converts values with pydantic, whose wording is left out."""
    from evenkeel_cli.offline.quantities import problem_of

    parameter, problem = getattr(wrong, "param", None), problem_of(wrong.__cause__)
    if not problem or parameter is None:
        return wrong.format_message().replace("Value error, ", "")
    name = max(parameter.opts, key=len) if parameter.param_type_name == "option" else parameter.human_readable_name
    return f"{name} {problem.rstrip('.')}."


def _discard_output(stream: TextIO) -> None:
    """Discard the rest of the output to a closed pipe; otherwise Python prints an error on exit."""
    null_device = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_device, stream.fileno())
    os.close(null_device)


def _root_app(words: Sequence[str]) -> typer.Typer:
    root = typer.Typer(
        help="Keep GPU training running when hardware fails.",
        rich_markup_mode=None,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    root.callback(invoke_without_command=True)(_handle_version_option)
    command_name = next((word for word in words if not word.startswith("-")), "")
    for name, noun in NOUNS.items():
        if name != command_name:
            root.command(name, help=noun.help)(_placeholder_command)
            continue
        app: typer.Typer = importlib.import_module(f"evenkeel_cli.commands.{noun.module}").app
        # A module with one command of its own name is that command; other modules are groups.
        root.add_typer(app, name=None if app.registered_commands[0].name == name else name, help=noun.help)
    return root


def _handle_version_option(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Answer `evenkeel --version`."""
    if version:
        from evenkeel_cli.commands.version import version as print_version

        print_version()
        raise typer.Exit
    if context.invoked_subcommand is None:
        raise typer.TyperException("A command is missing.")


def _placeholder_command() -> None:
    """Represent a subcommand that was not typed, so that its module is not loaded."""


def _print_error(failure: CommandFailed) -> None:
    from evenkeel_cli.render import Printer

    code = f" [{failure.code}]" if failure.code else ""
    first_line, *further_lines = failure.text.splitlines() or [""]
    out = Printer(sys.stderr, os.environ)
    try:
        out.paragraph(f"✖ {first_line}{code}")
        for line in further_lines:
            out.line(line)
        for line in failure.hint.splitlines():
            if line.strip().startswith("evenkeel "):  # do not wrap a command, so that a person can copy it
                out.line(f"  {line.strip()}")
            else:
                out.paragraph(line.strip(), indent="  ")
        if failure.request_id and failure.exit_code is Exit.FAILED:
            out.line(f"  request {failure.request_id}")
        sys.stderr.flush()
    except BrokenPipeError:
        _discard_output(sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
