"""`evenkeel dev`: the local data centre."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from evenkeel_cli.commands import asking
from evenkeel_cli.errors import CommandFailed, Exit
from evenkeel_cli.render import Output, only, page

app = asking.group("The local data centre: an AWS emulator, the real template, and a GPU cluster of processes.")


@app.command("up")
def up(
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay until Ctrl-C, then end everything.")] = False,
) -> None:
    """Bring it up; needs the project's folder."""
    raise typer.Exit(_data_centre().up(_root(), foreground=foreground))


@app.command("down")
def down() -> None:
    """End it, and everything in it."""
    raise typer.Exit(_data_centre().down(_root()))


@app.command("status")
def status(output: asking.OutputOption = Output.TABLE) -> None:
    """Say whether it is up, and where."""
    found: dict[str, Any] = _data_centre().status(_root())
    out = page()
    if only(output, (Output.TABLE, Output.JSON)) is Output.JSON:
        out.json(found)
    elif not found.get("isUp"):
        out.line(out.marked("idle", "down"))
        out.line(f"{out.dim('next')}  evenkeel dev up")
    else:
        out.line(out.marked("ok", "up"))
        places = {"API": "apiUrl", "engine": "engineUrl", "control": "controlUrl", "Kubernetes": "kubernetesUrl"}
        shown = [(name, str(found[key])) for name, key in places.items() if found.get(key)]
        out.pairs([*shown, ("files", str(found.get("runDir", "")))], indent="  ")


@app.command("kubeconfig")
def kubeconfig() -> None:
    """Print a kubeconfig of the local GPU cluster, for kubectl."""
    data_centre, root = _data_centre(), _root()
    if not data_centre.status(root).get("isUp"):
        raise CommandFailed(Exit.NOT_FOUND, "No data centre is up here.", code="NOT_UP", hint="evenkeel dev up")
    page().line(json.dumps(data_centre.kubeconfig(root), indent=2))


def _data_centre() -> Any:
    """Import the data centre, which is no part of what the command needs elsewhere."""
    try:
        from evenkeel_local import data_centre
    except ImportError as error:
        raise CommandFailed(
            Exit.FAILED,
            f"The local data centre is not installed here: {error}.",
            code="NOT_INSTALLED",
            hint="In a clone of the project: make setup",
        ) from error
    return data_centre


def _root() -> Path:
    """Return the project's folder: here, or the nearest above that holds the template."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "template.yaml").is_file() and (folder / "local").is_dir():
            return folder
    raise CommandFailed(
        Exit.USAGE, "The local data centre is started in a clone of the project.", code="NO_PROJECT", hint="cd evenkeel"
    )
