"""`evenkeel quota`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from evenkeel_cli.commands import lookup
from evenkeel_cli.render import note, stdout_printer

app = lookup.command_group("Convert quota files between formats.")

FilesArgument = Annotated[list[Path], typer.Argument(metavar="FILE…", help="Quota files; read together.")]


@app.command("import")
def import_(files: FilesArgument) -> None:
    """Convert Kueue's YAML or HyperPod's JSON to the short form."""
    _print_converted(files, "evenkeel")


@app.command("export")
def export(
    files: FilesArgument,
    into: Annotated[str, typer.Option("--to", metavar="SPELLING", help="kueue, hyperpod or evenkeel.")] = "kueue",
) -> None:
    """Convert quota files to another format. Prints one JSON object with `documents` and `losses`."""
    _print_converted(files, into)


def _print_converted(files: list[Path], into: str) -> None:
    from evenkeel_cli.offline import quota_files

    converted_quotas = quota_files.convert_quotas(files, into)
    for loss in converted_quotas.losses:
        note(f"lost: {loss}")
    stdout_printer().line(
        json.dumps({"documents": list(converted_quotas.documents), "losses": list(converted_quotas.losses)}, indent=2)
    )
