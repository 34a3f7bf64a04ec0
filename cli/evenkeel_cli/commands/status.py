"""`evenkeel status`."""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

import typer

from evenkeel_cli.commands import lookup
from evenkeel_cli.commands.automation import scope_options
from evenkeel_cli.commands.incidents import RUNBOOK, acknowledged_by, print_recovery_branches
from evenkeel_cli.commands.output import print_read
from evenkeel_cli.render import (
    Column,
    OutputFormat,
    Printer,
    age_text,
    duration,
    require_format,
    stdout_printer,
    visible_width,
)
from evenkeel_cli.state_signs import HEALTH, NODE, SOURCE, count_of, mode_text, plain
from evenkeel_client.errors import Exit

Json = dict[str, Any]

app = lookup.single_command("status")


@app.command("status")
def status(
    watch: lookup.WatchOption = False,
    check: Annotated[
        bool, typer.Option("--check", help="For cron: exit 0 if all is well, 20 degraded, 21 critical.")
    ] = False,
    output: lookup.OutputOption = OutputFormat.TABLE,
) -> None:
    """Show health, open incidents, the fleet and jobs on one screen."""
    client = lookup.current_client()

    def draw(out: Printer, fleet: Json) -> None:
        draw_status(out, fleet, is_wide=output is OutputFormat.WIDE)

    if check:
        fleet = client.get("/overview")
        _print_check(stdout_printer(), fleet, require_format(output, (OutputFormat.TABLE, OutputFormat.JSON)))
        raise typer.Exit({"OK": Exit.DONE, "DEGRADED": Exit.DEGRADED}.get(fleet["health"], Exit.CRITICAL))
    print_read(lambda: client.get("/overview"), output, draw, watch=watch)


def _print_check(out: Printer, status: Json, form: OutputFormat) -> None:
    if form.is_document:
        out.document(status, form)
    else:
        out.line(
            f"{out.with_glyph(HEALTH[status['health']], status['health'])}  {'; '.join(_reasons(status))}".rstrip()
        )


def draw_status(out: Printer, status: Json, *, is_wide: bool = False) -> None:
    """Print the overview. The wide form also lists every source with its age."""
    automation, incidents = status["automation"], status["incidents"]
    age_seconds = out.seconds_since(status["asOf"])
    shown_at = f"{status['asOf'][11:19]}Z" + (
        f" ({duration(age_seconds)} old)" if out.is_terminal and age_seconds >= 2 else ""
    )
    hold_text = "  HELD" if automation["isHeld"] else ""
    _print_left_right(
        out, out.bold(f"fleet {status['fleet']}"), f"mode: {mode_text(automation)}{hold_text}  {shown_at}"
    )
    head = out.with_glyph(HEALTH[status["health"]], out.bold(status["health"]))
    lower_bound_sign = "+" if incidents["isLowerBound"] else ""
    working_text = count_of(incidents["working"], "incident").replace(" ", f"{lower_bound_sign} ", 1)
    counts = f"{working_text} working, {_attention_text(incidents['needYou'], lower_bound_sign)}"
    out.line(f"{head}  {counts}")
    for reason in _other_reasons(_reasons(status)):
        out.line(f"  {reason}")
    _print_sources(out, status, is_wide=is_wide)
    if status["counts"]:
        _print_counts(out, status["counts"], is_wide=is_wide)
    in_outage = {name for outage in status["outages"] for name in outage["incidentIds"]}
    for outage in status["outages"]:
        out.line(f"{out.bold('OUTAGE')}  {outage['cause']}: {', '.join(outage['instanceIds'])}")
    for incident in incidents["items"]:
        if incident["incidentId"] in in_outage and not incident["needsYou"]:
            continue
        _print_incident(out, incident)
    for node in status["counts"]["unhealthy"] if status["counts"] else ():
        since = f" since {node['since'][11:16]}Z" if node["since"] else ""
        out.line(f"{out.bold('UNHEALTHY')} {node['instanceId']}  {node['incidentId'] or ''}{since}")
        out.paragraph(node["reason"], indent="        ")
        if node["marks"]:
            out.paragraph(f"marks: {', '.join(node['marks'])}", indent="        ")
    for hold in automation["holds"]:
        where = hold["instanceId"] or hold["pool"]
        scope = f"{where} by" if where else "everything, by" if hold.get("stopsScheduling") else "by"
        _print_titled(out, "HELD", f"{scope} {hold['by']}, until {hold['until'][:19]}Z: {hold['reason']}")
    for cordon in status["cordons"]:
        why = f": {cordon['reason']}" if cordon["reason"] else ""
        _print_titled(out, "CORDONED", f"{cordon['instanceId']} by {cordon['by']}, {out.time_text(cordon['at'])}{why}")
    _print_next_steps(out, status)


def _reasons(status: Json) -> list[str]:
    """Return why the fleet is not OK, shared causes first."""
    return [*(outage["headline"] for outage in status["outages"]), *status["reasons"]]


def _print_counts(out: Printer, counts: Json, *, is_wide: bool) -> None:
    """Print what the last sweep counted. If it is old, it says so."""
    if counts["isStale"]:
        counted_at = out.with_glyph("warn", out.time_text(counts["at"]))
        out.line(f"{out.bold('COUNTED')} {counted_at}: these numbers are not current")
    _print_nodes(out, counts["nodes"])
    _print_gpus(out, counts["gpus"])
    if is_wide:
        _print_amount(out, "CPU", counts["cpu"], "vCPU")
        _print_amount(out, "MEMORY", counts["memoryGib"], "GiB")
    _print_jobs(out, counts["jobs"])
    _print_teams(out, counts["teams"])
    _print_serving(out, counts["serving"])


def _print_incident(out: Printer, incident: Json) -> None:
    word = "NEEDS YOU" if incident["needsYou"] else "WORKING"
    name = f"{incident['incidentId']}  {incident['instanceId']}  {incident['fault']['name']}"
    out.table([Column("", 0, may_shrink=True)], [[f"{out.bold(word)} {name}"]])
    print_recovery_branches(out, incident, indent="        ")
    if more := incident["affectedJobs"] - len(incident["jobLanes"] or ()):
        out.line(f"        and {count_of(more, 'more job')}")
    if acknowledged := acknowledged_by(out, incident):
        out.paragraph(f"acknowledged by {acknowledged}", indent="        ")
    if incident["needsYou"] and incident["outcome"]:
        out.paragraph(incident["outcome"], indent="        ")
    if incident["needsYou"] and not incident["ifUnanswered"]:
        out.paragraph(f"runbook: {RUNBOOK}", indent="        ")
    if incident["ifUnanswered"]:
        out.paragraph(incident["ifUnanswered"], indent="        ")


def _attention_text(number: int, suffix: str = "") -> str:
    return f"{number}{suffix} {'needs' if number == 1 and not suffix else 'need'} you"


def _other_reasons(reasons: list[str]) -> list[str]:
    """Return the reasons that the incident counts do not already state."""
    return [reason for reason in reasons if not re.match(r"[0-9]+[+]? incidents? ", reason)]


def _print_sources(out: Printer, status: Json, *, is_wide: bool) -> None:
    """Print how many sources of facts are current, and the age of the counts. The wide form lists all ages."""
    counts = status["sources"]
    if not status["isRunning"]:
        return
    texts = [f"{counts[state]} {plain(state)} {out.glyph(sign)}" for state, sign in SOURCE.items() if counts.get(state)]
    if status["counts"] and not status["counts"]["isStale"]:
        texts.append(f"nodes and jobs counted {_age_when_read(status, status['counts']['at'])} ago")
    out.line(f"{out.bold('SOURCES')} {'  '.join(texts)}")
    if not is_wide:
        return
    for source in status["sourceAges"]:
        out.line(f"        {out.with_glyph(SOURCE[source['state']], source['reason'])}")
    for beat in status["heartbeats"]:
        sign = "failed" if beat["isSilent"] else "ok" if beat["at"] else "warn"
        ended = f"ended {_age_when_read(status, beat['at'])} ago" if beat["at"] else "has not ended yet"
        out.line("        " + out.with_glyph(sign, f"The last run of {beat['function']} {ended}."))


def _age_when_read(status: Json, at: str) -> str:
    """Return how old a time was when the status was read."""
    return duration((datetime.fromisoformat(status["asOf"]) - datetime.fromisoformat(at)).total_seconds())


def _print_nodes(out: Printer, nodes: Json) -> None:
    if not nodes["pools"]:
        out.line("NODES   none known yet: the first sweep adds them")
        return
    rows = []
    for pool in nodes["pools"]:
        states = "  ".join(
            f"{number} {plain(state)} {out.glyph('warn' if pool.get('isStale') else NODE[state])}"
            for state, number in pool["states"].items()
        )
        rows.append((pool["pool"], f"{count_of(pool['total'], 'node')}: {states}{out.last_seen_text(pool)}"))
    _print_section(out, "NODES", rows)


def _print_titled(out: Printer, title: str, text: str) -> None:
    """Print a title and a text, which continues below its beginning if the line is too long."""
    out.table([Column("", 0), Column("", 1, wraps=True)], [[f"{out.bold(title)}{' ' * (6 - len(title))}", text]])


def _print_section(out: Printer, title: str, rows: Sequence[Sequence[str]]) -> None:
    """Print rows beside the title of their section."""
    titles = [f"{out.bold(title)}{' ' * (6 - len(title))}", *[""] * (len(rows) - 1)]
    is_name_and_text = len(rows[0]) == 2
    columns = [
        Column("", index, is_right=index > 1 and not is_name_and_text, wraps=index == 2 and is_name_and_text)
        for index in range(len(rows[0]) + 1)
    ]
    out.table(columns, [(head, *row) for head, row in zip(titles, rows, strict=True)], is_wide=not is_name_and_text)


def _print_gpus(out: Printer, gpus: Json) -> None:
    if gpus["total"] is None:
        out.line(f"{out.bold('GPUs')}    unknown: Evenkeel has not read the node list yet")
        return
    in_use = f" {100 * gpus['inUse'] / gpus['total']:.0f}%" if gpus["total"] else ""
    out.line(
        f"{out.bold('GPUs')}    {gpus['total']} in the fleet  {gpus['inUse']} in use{in_use}  "
        f"{gpus['free']} free in service{out.last_seen_text(gpus)}"
    )


def _print_amount(out: Printer, title: str, amount: Json, unit: str) -> None:
    if amount["total"] is None:
        out.line(f"{out.bold(title)}{' ' * (7 - len(title))} unknown: no node states it")
        return
    unknown_text = f"  unknown on {count_of(amount['unknownNodes'], 'node')}" if amount["unknownNodes"] else ""
    out.line(
        f"{out.bold(title)}{' ' * (7 - len(title))} {amount['total']:g} {unit} in the fleet  "
        f"{amount['inUse']:g} requested  {amount['free']:g} free in service{unknown_text}"
    )


def _print_jobs(out: Printer, jobs: Json) -> None:
    if not jobs["classes"] and not jobs["unmanaged"]["workloads"]:
        out.line(f"{out.bold('JOBS')}    none running, none pending")
        return
    rows: list[tuple[str, ...]] = [("class", "run", "pend", "preempted", "avg run", "max run", "avg wait", "max wait")]
    rows += [
        (
            entry["priorityClass"] or "(unset)",
            *(str(entry[name]) for name in ("running", "pending", "preempted")),
            *(
                _age_text(entry[name])
                for name in ("averageRunSeconds", "longestRunSeconds", "averageWaitSeconds", "longestWaitSeconds")
            ),
        )
        for entry in jobs["classes"]
    ]
    unmanaged_counts = jobs["unmanaged"]
    if unmanaged_counts["workloads"]:
        rows.append(("(unmanaged)", str(unmanaged_counts["workloads"]), *["–"] * 6))
    _print_section(out, "JOBS", rows)
    suspended_count = sum(entry["suspended"] for entry in jobs["classes"])
    if suspended_count:
        out.line(f"        {count_of(suspended_count, 'job')} suspended")
    mixed_counts = jobs.get("mixed") or {"jobs": 0}
    if mixed_counts["jobs"]:
        parts_text = (
            f"{mixed_counts['committedNodes']} committed and {count_of(mixed_counts['rentedNodes'], 'rented node')}"
        )
        out.line(f"        {count_of(mixed_counts['jobs'], 'job')} on {parts_text} together")
    if (small := jobs.get("belowRequestedSize")) and small["jobs"]:
        nodes = f"{small['nodes']} of {small['requestedNodes']} requested nodes"
        out.line(f"        {count_of(small['jobs'], 'elastic job')} on {nodes}")
    if jobs.get("waitingForCheck"):
        out.line(f"        {count_of(jobs['waitingForCheck'], 'job')} with Kueue's quota, waiting for rented nodes")
    if jobs.get("isStale") and any(entry["running"] for entry in jobs["classes"]):
        out.line(f"        running{out.last_seen_text(jobs)}")
    if jobs["isLowerBound"]:
        out.line("        more than 2000 jobs in one state: the counts are lower bounds")


def _print_teams(out: Printer, teams: list[Json]) -> None:
    """Print which teams use, borrow and lend GPUs; only if teams share the fleet."""
    if not any(team["accelerators"]["allocated"] is not None for team in teams):
        return
    rows = []
    for team in teams:
        accelerators = team["accelerators"]
        util = "" if accelerators["utilization"] is None else f"  {accelerators['utilization']}%"
        borrowed_and_lent = "".join(
            f"  {accelerators[name]} {name}" for name in ("borrowed", "lent") if accelerators[name]
        )
        quota = "no quota" if accelerators["allocated"] is None else f"of {accelerators['allocated']}"
        rows.append((team["team"], f"{accelerators['used']} {quota} GPUs{util}{borrowed_and_lent}"))
    _print_section(out, "TEAMS", rows)


def _print_serving(out: Printer, serving: list[Json]) -> None:
    """Print the Deployments with rented nodes, and the last decision about their replicas."""
    workloads = [workload for workload in serving if workload["rentals"] or workload["reason"]]
    for index, workload in enumerate(workloads):
        title = out.bold("SERVING") + " " if index == 0 else "        "
        nodes = sum(rental["nodes"] for rental in workload["rentals"])
        rented_text = f": {count_of(nodes, 'node')} rented" if nodes else ""
        out.line(f"{title}{workload['namespace']}/{workload['name']}{rented_text}")
        if workload["reason"]:
            out.paragraph(workload["reason"], indent="        ")


def _age_text(seconds: float | None) -> str:
    return "–" if seconds is None else age_text(seconds)


def _print_next_steps(out: Printer, status: Json) -> None:
    if status["next"]:
        out.line(f"{out.bold('NEXT')}    {status['next']}")
    elif status["automation"]["isHeld"]:
        [hold, *_] = status["automation"]["holds"]
        out.line(f"{out.bold('NEXT')}    evenkeel automation release{scope_options(hold)}")
    elif status["sources"].get("STALE"):
        out.line(f"{out.bold('NEXT')}    evenkeel doctor")


def _print_left_right(out: Printer, left_text: str, right_text: str) -> None:
    free_width = (out.width or 80) - visible_width(left_text) - visible_width(right_text)
    out.line(left_text + " " * max(2, free_width) + right_text)
