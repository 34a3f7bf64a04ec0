"""`evenkeel teams`."""

import json
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from evenkeel_cli import spend_page
from evenkeel_cli.commands import lookup
from evenkeel_cli.commands.output import (
    print_change,
    print_list,
    print_object,
    print_or_watch,
    print_read,
    write_csv,
    write_template,
)
from evenkeel_cli.render import Column, OutputFormat, Printer, note, stdout_printer, warn
from evenkeel_cli.spend_page import SpendGroupBy
from evenkeel_cli.state_signs import count_of
from evenkeel_client.client import ApiClient
from evenkeel_client.errors import CommandFailed, Exit

Json = dict[str, Any]

_FIELDS = (
    *("team", "cohort", "weight", "accelerators.allocated", "accelerators.used", "accelerators.usedByUnmanaged"),
    *("accelerators.borrowed", "accelerators.lent", "accelerators.utilization", "running", "pending"),
)

app = lookup.command_group("Show and change teams, their quotas, and what they borrow and lend.")

TeamArgument = Annotated[str, typer.Argument(metavar="TEAM", help="The team's name.")]


@app.command("init")
def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write.")] = Path("teams.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write an example file of teams and quotas. Nothing is applied."""
    next_command = f'evenkeel teams apply -f {file} --reason "first teams" --dry-run'
    write_template("teams_template.yaml", file, then=next_command, force=force)


@app.command("ls")
def list_teams(watch: lookup.WatchOption = False, output: lookup.OutputOption = OutputFormat.TABLE) -> None:
    """List teams: accelerators allocated, used, borrowed and lent."""
    client = lookup.current_client()

    def draw(teams: list[Json]) -> None:
        empty_text = "There are no teams and no running jobs."
        print_list(teams, output, lambda _: _COLUMNS, fields=_FIELDS, empty_text=empty_text, watch=watch)

    print_or_watch(lambda: _read_lines(client), draw, output, watch=watch)


def _read_lines(client: ApiClient) -> list[Json]:
    """Return the line of each team, and warn if its use is a lower bound."""
    document = client.get("/teams")
    if unreadable_count := document.get("unreadableCharges"):  # older stacks do not count them
        warn(f"{count_of(unreadable_count, 'charge')} cannot be read: the use of teams is a lower bound.")
    lines: list[Json] = document["items"]
    return lines


@app.command("show")
def show_team(
    team: TeamArgument, watch: lookup.WatchOption = False, output: lookup.OutputOption = OutputFormat.TABLE
) -> None:
    """Show the configuration of a team. `teams apply` accepts the output of `-o json`."""
    client = lookup.current_client()
    print_read(lambda: _read_team(client, team), output, _draw_team, watch=watch)


def _read_team(client: ApiClient, team: str) -> Json:
    try:
        return client.get(f"/teams/{team}/quota")
    except CommandFailed as failure:
        if failure.exit_code is Exit.NOT_FOUND:
            failure.hint = "evenkeel teams ls"
        raise


@app.command("quota")
def quota(
    team: TeamArgument, watch: lookup.WatchOption = False, output: lookup.OutputOption = OutputFormat.TABLE
) -> None:
    """Show a team's quota by flavor and resource. Also shows what the team uses, borrows and lends."""
    client = lookup.current_client()

    def read_team() -> Json:
        rows = [item for item in _read_lines(client) if item["team"] == team]
        if not rows:
            text = f"There is no team {team!r}."
            raise CommandFailed(Exit.NOT_FOUND, text, code="NOT_FOUND", hint="evenkeel teams ls")
        row: Json = rows[0]
        return row

    print_read(read_team, output, _draw_resources, watch=watch)


@app.command("spend")
def spend(
    since: Annotated[str, typer.Option(metavar="WHEN", help="30d, 12h, or 2026-11-03T10:15:00Z.")] = "30d",
    until: Annotated[str | None, typer.Option(metavar="WHEN", help="End of the window; if omitted, now.")] = None,
    team: Annotated[str | None, typer.Option("--team", metavar="TEAM", help="Only this team.")] = None,
    by: Annotated[SpendGroupBy, typer.Option("--by", help="Group the rows by this.")] = SpendGroupBy.TEAM,
    label: Annotated[str, typer.Option(metavar="LABEL", help="Label of jobs that names their project.")] = "project",
    output: lookup.OutputOption = OutputFormat.TABLE,
) -> None:
    """Show use, cost and budgets of teams, users and projects.

    `-o csv` writes a line for each team, user, project, pool and instance type, in the columns of FOCUS. It has no
    `-o name`, because a line has no id, and no `--watch`, because it adds up whole attempts.
    """
    if "" in (team, label):  # an unset shell variable: without the option, the answer is another one
        raise CommandFailed(Exit.USAGE, f"--{'team' if team == '' else 'label'} is empty.", code="USAGE")
    now = stdout_printer().now()
    document = spend_page.read_spend(
        lookup.current_client(),
        since=lookup.parse_instant("--since", since, now),
        until=None if until is None else lookup.parse_instant("--until", until, now),
        team=team,
        label=label,
    )
    if output is OutputFormat.CSV:
        write_csv(stdout_printer(), spend_page.focus_rows(document), spend_page.FOCUS_COLUMNS)
    else:
        print_object(document, output, lambda out: spend_page.draw_spend(out, document, by), has_wide=True)
    if not document["isComplete"]:
        note("There are too many attempts: the window begins later than requested.")


@app.command("apply")
def apply(
    files: Annotated[
        list[Path],
        typer.Option(
            "-f", "--file", metavar="FILE", help="File with teams, or with quotas in any format; may be repeated."
        ),
    ],
    reason: Annotated[str, typer.Option(help="Reason; recorded.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the changes; change nothing.")] = False,
    output: lookup.ResultOption = OutputFormat.TABLE,
) -> None:
    """Create or change teams from files. Other teams do not change.

    A quota file says only queues, cohorts, flavors and priority classes. An existing team keeps its members,
    namespace and budgets.
    """
    from evenkeel_cli.offline import team_files

    desired_state = team_files.read_team_files(files)
    for loss in desired_state.losses:
        note(f"lost: {loss}")
    client = lookup.current_client()
    path = f"/clusters/{client.fleet}/quotas"
    changes: list[Json] = []
    if desired_state.quotas is not None or desired_state.fleet:
        document = client.get(path)
        quotas = desired_state.quotas or document["quotas"] | desired_state.fleet
        changes.append(_plan_change("", path, "quotas", document, quotas, desired_state.versions.get("")))
    for name, team in sorted({**desired_state.queues, **desired_state.teams}.items()):
        at = f"/teams/{name}/quota"
        document = _current_or_new(client, at)
        is_whole = name in desired_state.teams or not document["team"]
        new_team = team if is_whole else document["team"] | {"queue": team["queue"]}
        changes.append(_plan_change(name, at, "team", document, new_team, desired_state.versions.get(name)))
    for change in changes:
        if change["changes"] and not dry_run:
            body = {change["kind"]: change.pop("wanted"), "reason": reason}
            change["version"] = client.change("PUT", change["path"], body, version=change["version"])["version"]
    applied_document = {
        "isDryRun": dry_run,
        "items": [{k: v for k, v in change.items() if k in _STATE_TEXT} for change in changes],
    }
    print_object(applied_document, output, lambda out: _print_changes(out, applied_document))


@app.command("remove")
def remove(
    team: TeamArgument,
    reason: Annotated[str, typer.Option(help="Reason; recorded.")],
    output: lookup.ResultOption = OutputFormat.TABLE,
) -> None:
    """Remove a team that has no jobs, holds no nodes and lends no quota."""
    client = lookup.current_client()
    version = _read_team(client, team)["version"]
    response = client.change("DELETE", f"/teams/{team}?reason={quote(reason, safe='')}", {}, version=version)
    print_change(response, output, f"{team}  removed")


_STATE_TEXT = ("name", "changes", "version")


def _current_or_new(client: ApiClient, path: str) -> Json:
    try:
        return client.get(path)
    except CommandFailed as failure:
        if failure.exit_code is not Exit.NOT_FOUND:
            raise
        return {"version": 0, "team": None}


def _plan_change(name: str, path: str, kind: str, present: Json, desired_document: Json, read_at: int | None) -> Json:
    present_document = present[kind] or {}
    fields = sorted(
        field
        for field in {*present_document, *desired_document}
        if present_document.get(field) != desired_document.get(field)
    )
    return {
        "name": name,
        "path": path,
        "kind": kind,
        "wanted": desired_document,
        "changes": fields,
        # A file that names a version is refused if the team has a newer version.
        "version": present["version"] if read_at is None or not fields else read_at,
    }


def _print_changes(out: Printer, document: Json) -> None:
    is_dry_run = document["isDryRun"]
    changes: list[tuple[str, str]] = []
    for item in document["items"]:
        sign = "idle" if not item["changes"] else "next" if is_dry_run else "ok"
        verb = "would change" if is_dry_run else f"set, version {item['version']}"
        text = f"{verb}: {', '.join(item['changes'])}" if item["changes"] else "unchanged"
        changes.append((out.with_glyph(sign, item["name"] or "(fleet settings)"), text))
    out.table([Column("", 0), Column("", 1, wraps=True)], changes)
    out.next_command("evenkeel teams ls")


def _number_text(value: float | None) -> str:
    return "–" if value is None else f"{value:.10g}"


def _percent_text(value: int | None) -> str:
    return "–" if value is None else f"{value} %"


def _amount_column(title: str, name: str, *, is_wide: bool = False) -> Column:
    return Column(title, lambda team: _number_text(team["accelerators"][name]), is_right=True, is_wide=is_wide)


_COLUMNS = (
    Column("TEAM", "team", may_shrink=True),
    *(
        _amount_column("QUOTA", "allocated"),
        _amount_column("USED", "used"),
        _amount_column("BORROWED", "borrowed"),
        _amount_column("LENT", "lent"),
    ),
    Column("UTIL", lambda team: _percent_text(team["accelerators"]["utilization"]), is_right=True),
    Column("RUN", "running", is_right=True),
    Column("PEND", "pending", is_right=True),
    Column("COHORT", lambda team: team["cohort"] or "–", is_wide=True),
    Column("WEIGHT", lambda team: _number_text(team["weight"]), is_right=True, is_wide=True),
    _amount_column("BESIDES", "usedByUnmanaged", is_wide=True),
)
_RESOURCE_COLUMNS = (
    Column("FLAVOR", "flavor", may_shrink=True),
    Column("RESOURCE", "resource"),
    Column("QUOTA", "allocated", is_right=True),
    Column("USED", "used", is_right=True),
    Column("BORROWED", "borrowed", is_right=True),
    Column("LENT", "lent", is_right=True),
    Column("UTIL", lambda line: _percent_text(line["utilization"]), is_right=True),
)


def _draw_resources(out: Printer, team: Json) -> None:
    out.table(_RESOURCE_COLUMNS, team["resources"])
    unmanaged_use = team["accelerators"]["usedByUnmanaged"]
    if unmanaged_use:
        out.line(f"also uses {count_of(unmanaged_use, 'accelerator')} on nodes outside the flavors of its quota")


def _draw_team(out: Printer, document: Json) -> None:
    team = document["team"]
    queue = team["queue"]
    out.line(f"{out.bold(team['name'])}  version {document['version']}")
    out.pairs(
        [
            ("cohort", queue["cohort"] or "none: the team neither borrows nor lends"),
            ("quota", "; ".join(json.dumps(group, ensure_ascii=False) for group in queue["groups"]) or "none"),
            ("weight", f"{queue['weight']:g}"),
            (
                "preemption",
                f"within the team {queue['preemption']['within']}, reclaim {queue['preemption']['reclaim']}",
            ),
            ("members", "; ".join(f"{member['principal']} ({member['role']})" for member in team["members"]) or "none"),
            ("namespace", team["namespace"] or "default of the stack"),
            ("runs as", team["serviceAccount"] or "default of the stack"),
            ("images", ", ".join(team["images"]) or "any"),
            (
                "each user",
                f"at most {count_of(team['maxAcceleratorsPerUser'], 'accelerator')}"
                if team["maxAcceleratorsPerUser"] is not None
                else "",
            ),
            ("budgets", "; ".join(_budget_text(budget) for budget in team["budgets"])),
        ],
        indent="  ",
    )
    out.next_command(f"evenkeel teams quota {team['name']}")


def _budget_text(budget: Json) -> str:
    limits = [f"{budget['gpuHours']:.10g} GPU-hours"] if budget["gpuHours"] is not None else []
    limits += [f"${budget['usd']:,.2f}"] if budget["usd"] is not None else []
    return f"{' and '.join(limits)} a {budget['period']}"
