"""`evenkeel completion`."""

from typing import Annotated

import typer

from evenkeel_cli.commands.lookup import single_command
from evenkeel_cli.render import stdout_printer
from evenkeel_client.errors import CommandFailed, Exit

app = single_command("completion")


@app.command("completion")
def completion(shell: Annotated[str, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")]) -> None:
    """Print the completion script of a shell: source <(evenkeel completion bash).

    It completes commands, options, and live ids of jobs, incidents, nodes and teams.
    """
    from evenkeel_cli.completion import SCRIPTS

    if shell not in SCRIPTS:
        raise CommandFailed(Exit.USAGE, f"There is no completion for {shell!r}: bash, zsh or fish.", code="USAGE")
    stdout_printer().raw(SCRIPTS[shell])
