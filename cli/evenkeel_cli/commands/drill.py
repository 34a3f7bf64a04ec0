"""`evenkeel drill`: break something in the local data centre. There is no way to do it to a real fleet."""

from typing import Annotated, Any

import typer

from evenkeel_cli.client import ControlClient
from evenkeel_cli.commands import asking
from evenkeel_cli.commands.answering import answer
from evenkeel_cli.errors import CommandFailed, Exit
from evenkeel_cli.render import Column, Output, Page, page
from evenkeel_cli.words import plain

Json = dict[str, Any]

app = asking.group("Break something in the local data centre. There is no way to do it to a real fleet.")


@app.command("ls")
def list_drills(output: asking.OutputOption = Output.TABLE) -> None:
    """List the faults that can be drilled, and those injected so far."""
    found = _control().call("GET", "/control/faults")
    out = page()
    match output:
        case Output.JSON:
            out.json(found)
        case Output.NAME:
            for row in found["rows"]:
                out.line(row["fault"])
        case _:
            _table(out, found)


@app.command("run")
def run(
    fault: Annotated[str, typer.Argument(help="Which fault: evenkeel drill ls.")],
    node: Annotated[
        str | None, typer.Option("--node", help="Instance id, node name or seat; else one that runs a job, by chance.")
    ] = None,
    job: Annotated[str | None, typer.Option("--job", help="Strike a node of this job.")] = None,
    output: asking.OutputOption = Output.TABLE,
) -> None:
    """Inject a fault now."""
    control = _control()
    body: Json = {"fault": fault}
    if node:
        body["node"] = node
    elif job:
        client = asking.current_client()
        struck = client.get(f"/jobs/{asking.find_job(client, job)}")
        body["job"] = f"{struck['namespace']}/{struck['jobId']}-a{struck['currentAttempt']}"
    found = control.call("POST", "/control/faults", body)

    def draw(out: Page) -> None:
        out.line(out.marked("warn", f"{found['fault']} on {found['node']} ({found['faultId']})"))
        out.line(f"{out.dim('next')}  evenkeel status -w")

    answer(found, output, draw)


@app.command("clear")
def clear(
    fault_id: Annotated[str, typer.Argument(metavar="FAULT-ID", help="As drill run and drill ls print it.")],
    output: asking.OutputOption = Output.TABLE,
) -> None:
    """Take a fault away."""
    found = _control().call("DELETE", f"/control/faults/{fault_id}")
    text = f"{found['fault']} on {found['node']} cleared"
    answer(found, output, lambda out: out.line(out.marked("ok", text)))


def _control() -> ControlClient:
    context = asking.current_context()
    if not context.control_url:
        raise CommandFailed(
            Exit.NOT_ALLOWED,
            f"Drills run on the local data centre only, and {context.url} is not one.",
            code="NOT_LOCAL",
            hint="evenkeel dev up",
        )
    return ControlClient(context.control_url)


def _table(out: Page, found: Json) -> None:
    columns = [Column("DRILL"), Column("WHAT IT DOES", gives_way=True)]
    widest = max((len(row["fault"]) for row in found["rows"]), default=0)
    if out.width is None:
        out.table(columns, [[row["fault"], row["does"]] for row in found["rows"]])
    else:
        for row in found["rows"]:
            first, *others = out.wrapped(row["does"], widest + 2)
            out.line(f"{out.bold(row['fault'])}{' ' * (widest - len(row['fault']))}  {first}")
            for text in others:
                out.line(" " * (widest + 2) + text)
    injected = [item for item in found["injected"] if not item["cleared"]]
    if injected:
        out.line()
        rows = [[item["faultId"], plain(item["fault"]), item["node"]] for item in injected]
        out.table([Column("INJECTED"), Column("FAULT"), Column("NODE")], rows)
