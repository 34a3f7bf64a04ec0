"""`evenkeel policy`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from evenkeel_cli.commands import asking
from evenkeel_cli.commands.answering import answer
from evenkeel_cli.render import Column, Output, Page

Json = dict[str, Any]

app = asking.group("The limits, deadlines and faults that decisions are made by.")

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="JSON: what the site has otherwise.")]
BaseOption = Annotated[str, typer.Option("--base", metavar="NAME", help="The policy it is laid over.")]


@app.command("check")
def check(file: FileArgument, base: BaseOption = "production", output: asking.OutputOption = Output.TABLE) -> None:
    """Judge a site's policy file as the service would, without a fleet; exit 2 where it would be refused."""
    from evenkeel_cli.offline import policies

    policy = policies.load(file, base)
    changes = policies.differences(policy, base)
    found = {
        "hash": policy.hash,
        "catalogueHash": policy.catalogue.hash,
        "changes": [{"field": name, "before": before, "after": after} for name, before, after in changes],
    }
    answer(found, output, lambda out: _checked(out, found))


def _checked(out: Page, found: Json) -> None:
    out.line(out.marked("ok", f"It can be used: policy {found['hash']}, catalogue {found['catalogueHash']}"))
    if found["changes"]:
        out.line()
        rows = [[change["field"], change["before"], change["after"]] for change in found["changes"]]
        out.table([Column("FIELD"), Column("SHIPPED"), Column("HERE", gives_way=True)], rows, indent="  ")
