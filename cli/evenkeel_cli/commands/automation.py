"""`evenkeel automation`."""

import re
from typing import Annotated, Any

import typer

from evenkeel_cli.commands import lookup
from evenkeel_cli.commands.change_plans import show_plan_or_confirm
from evenkeel_cli.commands.output import print_change, print_object, print_read
from evenkeel_cli.render import OutputFormat, Printer
from evenkeel_cli.state_signs import count_of, mode_text
from evenkeel_client.client import ApiClient
from evenkeel_client.errors import CommandFailed, Exit

Json = dict[str, Any]

PoolOption = Annotated[str | None, typer.Option("--pool", help="Hold of this pool, not of the fleet.", metavar="POOL")]
NodeOption = Annotated[str | None, typer.Option("--node", help="Hold of this node, not of the fleet.", metavar="NODE")]

app = lookup.command_group("Show, hold and release automation: recoveries, or everything. Uncordon is never held.")

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"(\d{1,6})([smhd])", re.ASCII)
_LONGEST_HOLD_SECONDS = 7 * 86_400


@app.command("show")
def show(watch: lookup.WatchOption = False, output: lookup.OutputOption = OutputFormat.TABLE) -> None:
    """Show the mode of automation and active holds."""
    client = lookup.current_client()
    print_read(lambda: client.get(f"/clusters/{client.fleet}/automation"), output, _draw_automation, watch=watch)


@app.command("hold")
def hold(  # noqa: PLR0913, PLR0917 - options, each given by its name
    reason: Annotated[str, typer.Option(help="Reason; recorded and shown.")],
    duration_text: Annotated[str, typer.Option("--for", help="Duration: 30m, 2h or 1d.", metavar="TIME")] = "1h",
    pool: PoolOption = None,
    node: NodeOption = None,
    allow_unknown: Annotated[
        bool, typer.Option("--allow-unknown", help="Also hold a pool or a node that does not exist yet.")
    ] = False,
    is_dry_run: lookup.DryRunOption = False,
    is_sure: lookup.YesOption = False,
    key: lookup.KeyOption = None,
    output: lookup.ResultOption = OutputFormat.TABLE,
) -> None:
    """Show the plan, ask, and hold repairs and their job stops.

    Steps that have started still finish. `automation stop` holds everything, without a confirmation.
    """
    client = lookup.current_client()
    body = {"reason": reason, "forSeconds": parse_duration(duration_text), **_scope_fields(client, pool, node)}
    body |= {"allowUnknown": True} if allow_unknown else {}
    path = f"/clusters/{client.fleet}/automation/hold"
    if show_plan_or_confirm(
        lambda: client.post_read_only(path, {**body, "dryRun": True}),
        title=lambda plan: f"{plan['instanceId'] or plan['pool'] or 'the whole fleet'}  hold",
        texts=lambda plan: [*plan["effects"], f"Recoveries at work: {_recoveries_text(client.get('/overview'))}."],
        verb="hold automation",
        output=output,
        is_dry_run=is_dry_run,
        is_sure=is_sure,
    ):
        return
    response = client.post(path, body, key=key)

    text = f"held{_scope_text(response)}, until {response['until'][:19]}Z: {response['reason']}"
    print_change(response, output, text, status="warn", then=f"automation release{scope_options(response)}")


@app.command("stop")
def stop(
    reason: Annotated[str, typer.Option(help="Reason; recorded and shown.")],
    duration_text: Annotated[str, typer.Option("--for", help="Duration: 30m, 2h or 1d.", metavar="TIME")] = "1h",
    key: lookup.KeyOption = None,
    output: lookup.ResultOption = OutputFormat.TABLE,
) -> None:
    """Hold repairs and job stops of recoveries, scheduling and rentals.

    No admission, preemption or resize starts. Prints the actions that still run. `automation release` ends the hold.
    """
    client = lookup.current_client()
    body = {"reason": reason, "forSeconds": parse_duration(duration_text), "stopsScheduling": True}
    document = client.post(f"/clusters/{client.fleet}/automation/hold", body, key=key)
    print_object(document, output, lambda out: _draw_stop(out, document, client))


def _draw_stop(out: Printer, hold: Json, client: ApiClient) -> None:
    out.line(out.with_glyph("warn", f"everything is held until {hold['until'][:19]}Z: {hold['reason']}"))
    held_acts = "No recovery repairs a node or stops a job, and no admission, preemption, resize or rental starts."
    out.paragraph(held_acts, indent="  ")
    out.line()
    out.line(out.bold("STILL RUNS"))
    out.pairs(still_running(client), indent="  ")
    out.next_command("evenkeel automation release")


def still_running(client: ApiClient) -> list[tuple[str, str]]:
    """Return the names and texts of the actions that continue during a hold on everything."""
    overview = client.get("/overview")
    changing_jobs = lookup.list_items(client, "/jobs", 1000, state="STARTING,STOPPING")
    counts = overview["counts"]
    running_text = rented_text = "an unknown number"
    if counts:
        at = f"counted at {counts['at'][:19]}Z" + (", which is long ago" if counts["isStale"] else "")
        running_text = f"{sum(entry['running'] for entry in counts['jobs']['classes'])} running, {at}"
        rented_text = f"{count_of(counts['rent']['nodes'], 'node')}, {at}"
    return [
        ("jobs", f"{running_text}; a hold stops none of them"),
        (
            "changing",
            ", ".join(f"{job['jobId']} {job['state'].lower()}" for job in changing_jobs) or "no job starts or stops",
        ),
        ("recoveries", f"{_recoveries_text(overview)}; a step that has started still finishes"),
        ("rented nodes", f"{rented_text}; AWS bills them until they are released"),
        ("scheduling", "a running cycle commits its plan; the next cycle starts nothing"),
        ("not held", "cordons of faulty nodes, uncordons, and all records"),
        ("others", "HyperPod, EC2, Karpenter and Kueue still act; after an AWS notice, AWS still ends the node"),
    ]


def _recoveries_text(overview: Json) -> str:
    incidents = overview["incidents"]
    recoveries = [f"{incident['incidentId']}: {incident['nodeLane']['phase']}" for incident in incidents["items"]]
    if incidents["isLowerBound"] or len(recoveries) < incidents["open"]:
        recoveries.append("and more: evenkeel incidents ls")
    return "; ".join(recoveries) or "none"


@app.command("release")
def release(
    reason: Annotated[str, typer.Option(help="Reason; recorded.")] = "",
    pool: PoolOption = None,
    node: NodeOption = None,
    cause: Annotated[str, typer.Option(help="Shared cause to clear, such as zone/use1-az1.")] = "",
    key: lookup.KeyOption = None,
    output: lookup.ResultOption = OutputFormat.TABLE,
) -> None:
    """End a hold, or clear a shared cause. Blocked recoveries continue if nothing else blocks them.

    Without --pool or --node, the hold of the whole fleet ends.
    """
    client = lookup.current_client()
    path = f"/clusters/{client.fleet}/automation/release"
    options = {name: value for name, value in (("reason", reason), ("cause", cause)) if value}
    response = client.post(path, {**options, **_scope_fields(client, pool, node)}, key=key)

    hold_text = "released" if response.get("wasHeld") else "automation was not held"
    text = f"{cause} is cleared. Repairs continue, a few at a time." if cause else hold_text
    print_change(response, output, text, then="status")


def _scope_fields(client: ApiClient, pool: str | None, node: str | None) -> Json:
    if pool is not None and not pool.strip():
        # An unset shell variable: an empty pool would hold the whole fleet.
        raise CommandFailed(Exit.USAGE, "--pool needs the name of a pool.", code="USAGE")
    instance_id = None if node is None else lookup.find_node(client, node)
    return {name: value for name, value in (("pool", pool), ("instanceId", instance_id)) if value}


def _scope_text(hold: Json) -> str:
    if hold.get("stopsScheduling"):
        return ", with all scheduling,"
    name = hold["instanceId"] or hold["pool"]
    return f" on {name}" if name else ""


def scope_options(hold: Json) -> str:
    """Return the options that name the scope of a hold; empty for the whole fleet."""
    pool = f" --pool {hold['pool']}" if hold["pool"] else ""
    return pool + (f" --node {hold['instanceId']}" if hold["instanceId"] else "")


def parse_duration(text: str) -> int:
    """Read `90s`, `30m`, `2h`, `1d`.

    Raises:
        CommandFailed: it is none of these.
    """
    match = _DURATION.fullmatch(text.strip().lower())
    if not match:
        raise CommandFailed(Exit.USAGE, f"--for {text}: write a number followed by s, m, h or d.", code="USAGE")
    seconds = int(match[1]) * _UNITS[match[2]]
    if not 1 <= seconds <= _LONGEST_HOLD_SECONDS:
        raise CommandFailed(Exit.USAGE, f"--for {text}: a hold lasts 1s to 7d.", code="USAGE")
    return seconds


def _draw_automation(out: Printer, automation: Json) -> None:
    drills = "drills may act" if automation["drillsMayAct"] else "drills are only recorded"
    meaning = f"({_MODES.get(automation.get('modeInForce') or automation['mode'], '')}; {drills})"
    out.line(f"mode  {out.bold(mode_text(automation))}  {out.dim(meaning)}")
    for rule in automation.get("modeRules", ()):
        scope = " ".join(filter(None, (rule["faultClass"], f"in pool {rule['pool']}" if rule["pool"] else "")))
        out.line(f"      at most {rule['mode']} for {scope}")
    for hold in automation["holds"]:
        out.paragraph(out.with_glyph("warn", f"held{_scope_text(hold)} by {hold['by']}, until {hold['until'][:19]}Z"))
        out.paragraph(hold["reason"], indent="  ")
        out.next_command(f"evenkeel automation release{scope_options(hold)}")
    if not automation["holds"]:
        out.line(out.with_glyph("ok", "not held"))


_MODES = {
    "observe": "decides and records, changes nothing",
    "recommend": "decides, records and waits for approval",
    "act": "decides, records and acts",
}
