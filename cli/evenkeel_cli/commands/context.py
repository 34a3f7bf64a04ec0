"""`evenkeel context`."""

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from evenkeel_cli.commands import lookup
from evenkeel_cli.commands.output import print_change, print_list, print_object
from evenkeel_cli.render import Column, OutputFormat
from evenkeel_client import context
from evenkeel_client.context import ApiContext
from evenkeel_client.errors import CommandFailed, Exit

Json = dict[str, Any]

app = lookup.command_group("List, add and choose the fleets that this command line talks to.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the context; often the fleet's name.")]


@app.command("ls")
def list_contexts(output: lookup.OutputOption = OutputFormat.TABLE) -> None:
    """List contexts, and mark the context in use."""
    try:
        in_force = Path(lookup.current_context().source).resolve()
    except CommandFailed:
        in_force = None
    files = sorted(context.named_file(os.environ, "x").parent.glob("*.json"))
    documents = [_context_row(file) | {"isInForce": file.resolve() == in_force} for file in files]
    empty_text = "There are no contexts: evenkeel context add NAME --stack STACK"
    print_list(documents, output, lambda _: _COLUMNS, fields=_FIELDS, empty_text=empty_text)


@app.command("add")
def add(
    name: NameArgument,
    stack: Annotated[str, typer.Option("--stack", help="The CloudFormation stack of the fleet.", metavar="NAME")],
    region: Annotated[str, typer.Option("--region", help="Region of the stack; default: AWS_REGION.")] = "",
    profile: Annotated[str, typer.Option("--profile", help="Profile of the AWS CLI for this fleet.")] = "",
    output: lookup.ResultOption = OutputFormat.TABLE,
) -> None:
    """Add or replace the context of a fleet. The stack gives the API's address."""
    from evenkeel_cli.doctor.findings import CouldNotCheck
    from evenkeel_cli.doctor.site import BotocoreAws, InspectedSite
    from evenkeel_cli.offline import access

    file = _context_file(name)
    region = region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or ""
    if not region:
        raise CommandFailed(Exit.USAGE, "The region is unknown.", code="USAGE", hint="Add --region REGION.")
    where = ApiContext(name="", url="", region=region, profile=profile or os.environ.get("EVENKEEL_PROFILE"))
    site = InspectedSite(BotocoreAws(where), None, where, stack, access)
    try:
        site.read_stack()
        document = {"name": site.parameter("FleetName"), "url": site.output("ApiUrl"), "region": region, "stack": stack}
    except CouldNotCheck as error:
        raise CommandFailed(Exit.FAILED, str(error), code="NO_STACK", hint=error.fix) from error
    _write_context(file, document | ({"profile": where.profile} if where.profile else {}))
    next_command = f"context use {name}"
    print_change(
        _context_row(file),
        output,
        f"{name}  fleet {document['name']} of the stack {stack} in {region}",
        then=next_command,
    )


@app.command("use")
def use(name: NameArgument, output: lookup.ResultOption = OutputFormat.TABLE) -> None:
    """Make a context the default for this user."""
    file, default = _context_file(name), context.default_file(os.environ)
    if not file.is_file():
        raise CommandFailed(
            Exit.NOT_FOUND, f"There is no context {name!r}.", code="NO_CONTEXT", hint="evenkeel context ls"
        )
    if default.exists() and not default.is_symlink():
        text = f"{default} is a file and not a link to a context. This command would overwrite it."
        raise CommandFailed(
            Exit.CONFLICT, text, code="CONFLICT", hint=f"Move it: mv {default} {file.parent}/OTHER.json"
        )
    beside = default.with_suffix(".new")
    beside.unlink(missing_ok=True)
    beside.symlink_to(file.relative_to(default.parent))
    beside.replace(default)
    context_row = _context_row(file)
    shadow = _overriding_setting()

    def draw(out: Any) -> None:
        out.line(out.with_glyph("ok", f"{name}  fleet {context_row['fleet']} is the default"))
        if shadow:
            out.line(out.with_glyph("warn", f"{shadow} takes precedence here"))

    print_object(context_row, output, draw)


def _overriding_setting() -> str:
    """Return the setting of this folder or shell that overrides the default; empty if there is none."""
    for name in ("EVENKEEL_URL", "EVENKEEL_CONTEXT"):
        if os.environ.get(name):
            return name
    return ".evenkeel/context.json" if Path(".evenkeel", "context.json").is_file() else ""


def _context_file(name: str) -> Path:
    if not context.NAME.fullmatch(name):
        text = f"{name!r} is not a valid context name: use a-z, 0-9 and hyphens, at most 63 characters."
        raise CommandFailed(Exit.USAGE, text, code="USAGE")
    return context.named_file(os.environ, name)


def _write_context(file: Path, document: Json) -> None:
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    beside = file.with_suffix(".new")
    beside.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    beside.chmod(0o600)
    beside.replace(file)


def _context_row(file: Path) -> Json:
    row = {"context": file.stem, "fleet": "", "stack": "", "region": "", "profile": "", "problem": ""}
    try:
        api_context = context.read_context(json.loads(file.read_text(encoding="utf-8")), str(file), os.environ)
    except (OSError, ValueError, CommandFailed) as error:
        return row | {"problem": str(error)}
    return row | {
        "fleet": api_context.name,
        "stack": api_context.stack,
        "region": api_context.region,
        "profile": api_context.profile or "",
    }


_FIELDS = ("context", "fleet", "stack", "region", "profile", "isInForce", "problem")
_COLUMNS = (
    Column("", lambda row: "*" if row["isInForce"] else ""),
    Column("CONTEXT", "context"),
    Column("FLEET", "fleet"),
    Column("STACK", "stack"),
    Column("REGION", "region"),
    Column("PROFILE", lambda row: row["profile"] or "–"),
    Column("", "problem", wraps=True),
)
