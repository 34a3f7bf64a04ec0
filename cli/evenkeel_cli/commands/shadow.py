"""`evenkeel shadow`."""

from typing import Annotated, Any

import typer

from evenkeel_cli.commands import lookup
from evenkeel_cli.commands.backtest import WindowOption
from evenkeel_cli.commands.output import print_read
from evenkeel_cli.render import OutputFormat, Printer, note, stdout_printer
from evenkeel_cli.shadow_page import draw_cases, draw_faults, draw_summary
from evenkeel_cli.state_signs import count_of

Json = dict[str, Any]

_FIELDS = (
    *("decision.incidentId", "decision.instanceId", "decision.pool", "decision.faultKey", "decision.decidedAt"),
    *("decision.cordons", "decision.repair"),
    *("cordon.verdict", "cordon.cause", "cordon.seconds", "repair.verdict", "repair.cause", "repair.seconds"),
)

app = lookup.command_group("Compare the decisions of the mode `observe` with what happened.")


@app.command("report")
def report(
    since: Annotated[str, typer.Option(metavar="WHEN", help="30d, 12h, or 2026-11-03T10:15:00Z.")] = "30d",
    pool: Annotated[str, typer.Option(metavar="POOL", help="Only nodes of this pool.")] = "",
    window: WindowOption = 24,
    limit: lookup.LimitOption = 50,
    watch: lookup.WatchOption = False,
    output: lookup.OutputOption = OutputFormat.TABLE,
) -> None:
    """Compare Evenkeel's decisions with the actions that were taken.

    HyperPod, Karpenter, Auto Scaling or people took the actions. `-o csv` and `-o name` list the cases.
    """
    client = lookup.current_client()
    query: Json = {"since": lookup.parse_instant("--since", since, stdout_printer().now()), "windowHours": window}

    def fetch() -> Json:
        document: Json = {}
        items: list[Json] = []
        token: str | None = None
        while not document or (token and len(items) < limit):
            size = min(200, limit - len(items))
            document = client.get("/shadow-report", **query, pool=pool or None, pageSize=size, nextPageToken=token)
            items += document["items"]
            token = document["nextPageToken"]
        if not document["isComplete"]:
            note(f"Too many incidents: the report begins at {document['since'][:19]}Z.")
        if unreadable_count := document.get("unreadableIncidents"):  # older stacks do not count them
            note(f"The report leaves out {count_of(unreadable_count, 'incident')} that cannot be read.")
        if token:
            note(f"Listed the newest {len(items)} cases. The counts include all cases.")
        return document | {"items": items, "nextPageToken": token}

    def draw(out: Printer, document: Json) -> None:
        draw_summary(out, document["summary"])
        if output is OutputFormat.WIDE:
            draw_faults(out, document["summary"]["faults"])
        draw_cases(out, document["items"], is_wide=output is OutputFormat.WIDE)

    print_read(fetch, output, draw, watch=watch, items="items", fields=_FIELDS)
