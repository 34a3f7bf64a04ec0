"""`evenkeel quota`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from evenkeel_cli.commands import lookup
from evenkeel_cli.render import note, page

app = lookup.group("Convert quota files between formats.")

FilesArgument = Annotated[list[Path], typer.Argument(metavar="FILE…", help="Quota files; read together.")]


@app.command("import")
def import_(files: FilesArgument) -> None:
    """Write Kueue's YAML or HyperPod's JSON in the short form."""
    _exchange(files, "evenkeel")


@app.command("export")
def export(
    files: FilesArgument,
    into: Annotated[str, typer.Option("--to", metavar="SPELLING", help="kueue, hyperpod or evenkeel.")] = "kueue",
) -> None:
    """Convert quota files to another format: one JSON with `documents` and `losses`."""
    _exchange(files, into)


def _exchange(files: list[Path], into: str) -> None:
    from evenkeel_cli.offline import quota_files

    converted = quota_files.exchange(files, into)
    for loss in converted.losses:
        note(f"lost: {loss}")
    page().line(json.dumps({"documents": list(converted.documents), "losses": list(converted.losses)}, indent=2))
