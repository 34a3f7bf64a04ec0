"""`evenkeel audit`."""

from typing import Annotated, Any

import typer

from evenkeel_cli.commands import lookup
from evenkeel_cli.commands.output import print_list, print_or_watch
from evenkeel_cli.render import Column, OutputFormat, Printer, stdout_printer

Json = dict[str, Any]

_FIELDS = ("at", "by", "kind", "text")

app = lookup.command_group(
    "List who held automation, cordoned nodes, acknowledged or approved incidents, and changed settings."
)


@app.command("ls")
def list_acts(
    by: Annotated[str, typer.Option(help="Only actions of people whose name contains this text.")] = "",
    since: Annotated[str, typer.Option(metavar="WHEN", help="30d, 12h, 10m, or 2026-11-03T10:15:00Z.")] = "30d",
    limit: lookup.LimitOption = 200,
    watch: lookup.WatchOption = False,
    output: lookup.OutputOption = OutputFormat.TABLE,
) -> None:
    """List what people did to the fleet, newest first. Actions on a job are in its timeline."""
    client = lookup.current_client()
    since_text = lookup.parse_instant("--since", since, stdout_printer().now())

    def draw(page: tuple[list[Json], str | None]) -> None:
        acts, token = page
        print_list(
            acts,
            output,
            _columns,
            fields=_FIELDS,
            empty_text=f"{by or 'No person'} {'did not change' if by else 'changed'} the fleet since {since_text}.",
            page_token=token,
            ends_after=limit,
            watch=watch,
        )

    def fetch() -> tuple[list[Json], str | None]:
        return lookup.list_items_and_token(client, "/audit", limit, since=since_text, by=by)

    print_or_watch(fetch, draw, output, watch=watch)


def _columns(out: Printer) -> list[Column]:
    return [
        Column(out.age_title("AT"), lambda act: out.time_text(act["at"], ago=False), is_right=True),
        Column("BY", "by"),
        Column("ACT", "kind"),
        Column("TEXT", "text", goes_below=True),
    ]
