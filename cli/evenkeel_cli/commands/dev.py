"""`evenkeel dev`: the local data centre."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from evenkeel_cli.commands import asking
from evenkeel_cli.errors import CommandFailed, Exit
from evenkeel_cli.render import Output, Page, only, page

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
    """Try each part and print its address; exit 1 if a part is down."""
    found: dict[str, Any] = _data_centre().status(_root())
    out = page()
    if only(output, (Output.TABLE, Output.JSON)) is Output.JSON:
        out.json(found)
    else:
        _show(out, found)
    raise typer.Exit(Exit.DONE if found["isUp"] else Exit.FAILED)


def _show(out: Page, found: dict[str, Any]) -> None:
    silent = [part["part"] for part in found["parts"] if not part["isUp"]]
    out.line(out.marked("failed", f"down: {', '.join(silent)}") if silent else out.marked("ok", "up"))
    for part in found["parts"]:
        mark = out.marked("ok", "up  ") if part["isUp"] else out.marked("failed", "down")
        first, *more = out.wrapped(part["detail"], 23)
        out.line(f"  {part['part']:<12} {mark}  {first}")
        for line in more:
            out.line(" " * 23 + line)
    for restart in found.get("restarts", ()):
        out.line(f"  {out.bold('restarted')}  {restart['part']}, {restart['at']}")
        out.paragraph(f"kept: {restart['kept']} lost: {restart['lost']}", indent="    ")
    if "runDir" in found:
        out.line(f"  files        {found['runDir']}")
    else:
        out.line(f"{out.dim('next')}  evenkeel dev up")


@app.command("env")
def env() -> None:
    """Print variables for a shell, so that AWS commands act as the operator: eval "$(evenkeel dev env)"."""
    data_centre, root = _data_centre(), _root()
    out = page()
    for name, value in _of_one_that_is_up(data_centre, root, data_centre.environment).items():
        out.line(f"export {name}={shlex.quote(value)}")


@app.command("kubeconfig")
def kubeconfig() -> None:
    """Print a kubeconfig of the local GPU cluster, for kubectl."""
    data_centre, root = _data_centre(), _root()
    page().line(json.dumps(_of_one_that_is_up(data_centre, root, data_centre.kubeconfig), indent=2))


def _of_one_that_is_up(data_centre: Any, root: Path, read: Callable[[Path], Any]) -> Any:
    if not data_centre.is_up(root):
        raise CommandFailed(Exit.NOT_FOUND, "No data centre is up here.", code="NOT_UP", hint="evenkeel dev up")
    return read(root)


def _data_centre() -> Any:
    """Import the data centre, which is no part of what the command needs elsewhere."""
    try:
        from evenkeel_local import kept_up
    except ImportError as error:
        raise CommandFailed(
            Exit.FAILED,
            f"The local data centre is not installed here: {error}.",
            code="NOT_INSTALLED",
            hint="In a clone of the project: make setup",
        ) from error
    return kept_up


def _root() -> Path:
    """Return the project's folder: here, or the nearest above that holds the template."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "template.yaml").is_file() and (folder / "local").is_dir():
            return folder
    raise CommandFailed(
        Exit.USAGE, "The local data centre is started in a clone of the project.", code="NO_PROJECT", hint="cd evenkeel"
    )
