"""`evenkeel drill`: inject faults into a local data centre. No command can inject a fault into a real fleet."""

import json
import random
from typing import Annotated, Any

import typer

from evenkeel_cli import local_data_centre
from evenkeel_cli.commands import lookup
from evenkeel_cli.commands.output import print_change, print_list
from evenkeel_cli.render import Column, OutputFormat, Printer, stdout_printer
from evenkeel_cli.state_signs import plain
from evenkeel_client.client import ControlClient
from evenkeel_client.errors import CommandFailed, Exit

Json = dict[str, Any]

app = lookup.command_group("Inject faults into a local data centre. A real fleet cannot be targeted.")


@app.command("ls")
def list_drills(output: lookup.OutputOption = OutputFormat.TABLE) -> None:
    """List the drills. Each injects a fault and checks the outcome."""
    documents = [{"name": drill.name, "summary": drill.title} for drill in _drills().DRILLS.values()]
    print_list(
        documents,
        output,
        lambda out: _columns(out, "DRILL", "name", "summary"),
        fields=("name", "summary"),
        empty_text="",
    )


@app.command("run")
def run(
    name: Annotated[str, typer.Argument(metavar="DRILL", help="Name of the drill (evenkeel drill ls).")],
    full: Annotated[bool, typer.Option("--full", help="Run at full size, if the drill has one.")] = False,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Seed for the time and the node; random if omitted.")
    ] = None,
) -> None:
    """Run a drill in its own data centre. Exit 1 if a check fails."""
    drills = _drills()
    if name not in drills.DRILLS:
        hint = "evenkeel drill ls"
        raise CommandFailed(Exit.NOT_FOUND, f"There is no drill {name!r}.", code="NO_SUCH_DRILL", hint=hint)
    drill, used_seed = drills.DRILLS[name], random.SystemRandom().randrange(10**6) if seed is None else seed
    printer = stdout_printer()
    printer.line(f"{printer.bold(drill.name)}  {drill.title}  {printer.dim(f'seed {used_seed}')}")
    result = drills.run_alone(drill, seed=used_seed, full=full, say=lambda text: printer.line(printer.dim(f"  {text}")))
    for title, holds, detail in result.checks:
        printer.line(
            printer.with_glyph(
                "ok" if holds else "failed", f"{title}: {detail}" if not holds or len(detail) <= _SHORT_TEXTS else title
            )
        )
    if result.figures:
        printer.pairs(list(result.figures.items()), indent="  ")
    if result.seconds:
        printer.line(printer.dim("  ".join(f"{stage} {seconds:.1f} s" for stage, seconds in result.seconds.items())))
    if not result.is_ok:
        raise typer.Exit(Exit.FAILED)


_SHORT_TEXTS = 60
"""A passed check shows its observed value only if the value is at most this long."""


@app.command("faults")
def list_faults(output: lookup.OutputOption = OutputFormat.TABLE) -> None:
    """List the faults that can be injected, and the injected ones."""
    document = _control_client().call("GET", "/control/faults")
    printer = stdout_printer()
    match output:
        case OutputFormat.JSON | OutputFormat.YAML:
            printer.document(document, output)
        case OutputFormat.NAME:
            for row in document["rows"]:
                printer.line(row["fault"])
        case _:
            _draw_faults(printer, document)


@app.command("inject")
def inject(
    fault: Annotated[str, typer.Argument(help="Name of the fault; list them with `evenkeel drill faults`.")],
    node: Annotated[
        str | None,
        typer.Option("--node", help="Instance id, node name or node slot; if omitted, a random node that runs a job."),
    ] = None,
    job: Annotated[str | None, typer.Option("--job", help="Inject the fault into a node of this job.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="An option of the fault, for example code=48.", metavar="NAME=VALUE"),
    ] = None,
    output: lookup.ResultOption = OutputFormat.TABLE,
) -> None:
    """Inject a fault into the running data centre."""
    control = _control_client()
    body: Json = {**dict(map(_parse_setting, settings or ())), "fault": fault}
    if node:
        body["node"] = node
    elif job:
        client = lookup.current_client()
        struck = client.get(f"/jobs/{lookup.find_job(client, job)}")
        body["job"] = f"{struck['namespace']}/{struck['jobId']}-a{struck['currentAttempt']}"
    try:
        document = control.call("POST", "/control/faults", body)
    except CommandFailed as failure:
        failure.hint = failure.hint or "evenkeel drill faults"
        raise

    text = f"{document['fault']} on {document['node']} ({document['faultId']})"
    print_change(document, output, text, status="warn", then="status -w")


@app.command("clear")
def clear(
    fault_id: Annotated[
        str, typer.Argument(metavar="FAULT-ID", help="Id of the fault; `drill inject` and `drill faults` print it.")
    ],
    output: lookup.ResultOption = OutputFormat.TABLE,
) -> None:
    """Clear a fault."""
    try:
        document = _control_client().call("DELETE", f"/control/faults/{fault_id}")
    except CommandFailed as failure:
        failure.hint = failure.hint or "evenkeel drill faults"
        raise
    text = f"{document['fault']} on {document['node']} cleared"
    print_change(document, output, text)


def _parse_setting(text: str) -> tuple[str, Any]:
    """Read an option of a fault: `code=48`, `zone=us-west-2a`. Numbers and true and false are JSON."""
    name, equals, value = text.partition("=")
    if not equals or name in ("fault", "node", "job"):
        raise CommandFailed(Exit.USAGE, f"--set {text}: write NAME=VALUE.", code="USAGE", hint="evenkeel drill faults")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _control_client() -> ControlClient:
    context = lookup.current_context()
    if not context.control_url:
        raise CommandFailed(
            Exit.NOT_ALLOWED,
            f"Drills run only in the local data centre. {context.url} is not a local data centre.",
            code="NOT_LOCAL",
            hint="evenkeel dev up",
        )
    return ControlClient(context.control_url)


def _drills() -> Any:
    return local_data_centre.load_local_module("drills")


def _draw_faults(out: Printer, document: Json) -> None:
    out.table(_columns(out, "FAULT", "fault", "does"), document["rows"])
    injected_faults = [item for item in document["injected"] if not item["cleared"]]
    if injected_faults:
        out.line()
        fault = Column("FAULT", lambda item: plain(item["fault"]))
        out.table([Column("INJECTED", "faultId"), fault, Column("NODE", "node")], injected_faults)


def _columns(out: Printer, title: str, name: str, text: str) -> list[Column]:
    """Return a column of names and a column of effects. They have titles only in a pipe."""
    titles = (title, "EFFECT") if out.width is None else ("", "")
    return [Column(titles[0], lambda entry: out.bold(entry[name])), Column(titles[1], text, wraps=True)]
