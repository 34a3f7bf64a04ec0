"""`evenkeel dev`: the local data centre."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from evenkeel_cli import local_data_centre
from evenkeel_cli.commands import lookup
from evenkeel_cli.render import Column, OutputFormat, Printer, require_format, stdout_printer
from evenkeel_client.errors import CommandFailed, Exit

app = lookup.command_group("Start, stop and inspect the local data centre: an AWS emulator and a GPU cluster.")


@app.command("up")
def up(
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Run in the foreground until Ctrl-C, then stop everything.")
    ] = False,
) -> None:
    """Start the data centre. Run it in the project folder."""
    raise typer.Exit(_data_centre().up(_project_folder(), foreground=foreground))


@app.command("down")
def down() -> None:
    """Stop the data centre and everything in it."""
    was_up = _data_centre().down(_project_folder())
    printer = stdout_printer()
    text = "The data centre has stopped." if was_up else "No data centre runs in this folder."
    printer.line(printer.with_glyph("ok", text))


@app.command("status")
def status(output: lookup.OutputOption = OutputFormat.TABLE) -> None:
    """Check each part and print its address. Exit 1 if a part is down."""
    document: dict[str, Any] = _data_centre().status(_project_folder())
    printer = stdout_printer()
    if require_format(output, (OutputFormat.TABLE, OutputFormat.JSON)).is_document:
        printer.document(document, output)
    else:
        _draw_status(printer, document)
    raise typer.Exit(Exit.DONE if document["isUp"] else Exit.FAILED)


def _draw_status(out: Printer, document: dict[str, Any]) -> None:
    silent = [part["part"] for part in document["parts"] if not part["isUp"]]
    out.line(out.with_glyph("failed", f"down: {', '.join(silent)}") if silent else out.with_glyph("ok", "up"))
    marks = {True: out.with_glyph("ok", "up  "), False: out.with_glyph("failed", "down")}
    columns = [Column("", "part"), Column("", lambda row: marks[row["isUp"]]), Column("", "detail", wraps=True)]
    out.table(columns, document["parts"], indent="  ")
    for restart in document.get("restarts", ()):
        out.line(f"  {out.bold('restarted')}  {restart['part']}, {restart['at']}")
        out.paragraph(f"kept: {restart['kept']} lost: {restart['lost']}", indent="    ")
    if "runDir" in document:
        out.line(f"  files        {document['runDir']}")
    else:
        out.next_command("evenkeel dev up")


@app.command("env")
def env() -> None:
    """Print variables with which AWS commands act as the operator. Usage: eval "$(evenkeel dev env)"."""
    data_centre, root = _data_centre(), _project_folder()
    printer = stdout_printer()
    for name, value in _read_if_up(data_centre, root, data_centre.environment).items():
        printer.line(f"export {name}={shlex.quote(value)}")


@app.command("kubeconfig")
def kubeconfig() -> None:
    """Print a kubeconfig of the local GPU cluster, for kubectl."""
    data_centre, root = _data_centre(), _project_folder()
    stdout_printer().line(json.dumps(_read_if_up(data_centre, root, data_centre.kubeconfig), indent=2))


def _read_if_up(data_centre: Any, root: Path, read: Callable[[Path], Any]) -> Any:
    if not data_centre.is_up(root):
        raise CommandFailed(
            Exit.NOT_FOUND, "No local data centre runs in this folder.", code="NOT_UP", hint="evenkeel dev up"
        )
    return read(root)


def _data_centre() -> Any:
    return local_data_centre.load_local_module("dev_data_centre")


def _project_folder() -> Path:
    """Return the project folder: the current folder or its nearest parent that holds the template."""
    path = Path.cwd()
    for folder in (path, *path.parents):
        if (folder / "template.yaml").is_file() and (folder / "local").is_dir():
            return folder
    raise CommandFailed(
        Exit.USAGE, "Start the local data centre from a clone of the project.", code="NO_PROJECT", hint="cd evenkeel"
    )
