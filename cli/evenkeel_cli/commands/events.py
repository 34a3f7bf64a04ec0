"""`evenkeel events`."""

from typing import Annotated, Any

import typer

from evenkeel_cli.commands import lookup
from evenkeel_cli.commands.output import print_list, print_or_watch
from evenkeel_cli.render import Column, OutputFormat, Printer, stdout_printer

Json = dict[str, Any]

_FIELDS = ("id", "kind", "occurredAt", "recordedAt", "subject", "team", "by", "text", "isDrill")

app = lookup.command_group("List what changed: incidents, jobs, nodes, and what people did.")


@app.command("ls")
def list_events(
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind", help="Only these kinds, comma-separated, such as incident-opened,job-ended.", metavar="KIND,…"
        ),
    ] = None,
    subject: Annotated[
        str | None, typer.Option("--subject", help="Only this incident, job, node or team.", metavar="ID")
    ] = None,
    team: Annotated[str | None, typer.Option("--team", help="Only jobs and budgets of this team.")] = None,
    since: Annotated[str, typer.Option(metavar="WHEN", help="30d, 12h, 10m, or 2026-11-03T10:15:00Z.")] = "1d",
    limit: lookup.LimitOption = 50,
    watch: lookup.WatchOption = False,
    output: lookup.OutputOption = OutputFormat.TABLE,
) -> None:
    """List events, newest first. Events are kept for 90 days."""
    client = lookup.current_client()
    kinds = ",".join(_kind(name) for name in kind.split(",") if name) if kind else None
    since_text = lookup.parse_instant("--since", since, stdout_printer().now())

    def fetch() -> tuple[list[Json], str | None]:
        return lookup.list_items_and_token(
            client, "/events", limit, kind=kinds, subject=subject, team=team, since=since_text
        )

    def draw(page: tuple[list[Json], str | None]) -> None:
        events, token = page
        empty_text = f"Nothing changed since {since_text}." if not (kind or subject or team) else "No event matches."
        print_list(
            events,
            output,
            _columns,
            fields=_FIELDS,
            empty_text=empty_text,
            page_token=token,
            ends_after=limit,
            watch=watch,
        )

    print_or_watch(fetch, draw, output, watch=watch)


def _kind(typed_value: str) -> str:
    """Return a kind as the API spells it: `job-ended` becomes `Job Ended`."""
    return " ".join(word.capitalize() for word in typed_value.replace("-", " ").split())


def _columns(out: Printer) -> list[Column]:
    return [
        Column(out.age_title("TIME"), lambda event: out.time_text(event["occurredAt"], ago=False), is_right=True),
        Column("KIND", lambda event: f"{event['kind']}{' (drill)' if event['isDrill'] else ''}"),
        Column("SUBJECT", "subject"),
        Column("BY", lambda event: event["by"] or "–"),
        Column("WHAT", "text", goes_below=True),
    ]
