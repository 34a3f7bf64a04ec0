"""`evenkeel decisions`."""

from typing import Annotated, Any

import typer

from evenkeel_cli.commands import lookup
from evenkeel_cli.commands.output import print_list, print_or_watch
from evenkeel_cli.render import Column, OutputFormat, Printer
from evenkeel_cli.state_signs import plain
from evenkeel_client.client import ApiClient

Json = dict[str, Any]

_FIELDS = ("decisionId", "kind", "subject", "action", "reason", "decidedAt", "mode", "isDryRun", "policyHash")

app = lookup.command_group("List the decisions about the fleet, a job or an incident. `why` explains one of them.")


@app.command("ls")
def list_decisions(
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="[JOB|INCIDENT]",
            help="Id, unique prefix of an id, job name, or @latest (incident). Default: the whole fleet.",
        ),
    ] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", help="Only these kinds, comma-separated: repair,resume.", metavar="KIND,…")
    ] = None,
    limit: lookup.LimitOption = 50,
    watch: lookup.WatchOption = False,
    output: lookup.OutputOption = OutputFormat.TABLE,
) -> None:
    """List decisions about the fleet, a job or an incident, newest first."""
    client = lookup.current_client()
    subject_id = None if subject is None else _find_subject(client, subject)
    kinds = kind and kind.upper().replace("-", "_")
    about = f" about {subject_id}" if subject_id else ""

    def draw(page: tuple[list[Json], str | None]) -> None:
        decisions, token = page
        empty_text = f"No decision{about}{f' of kind {kinds}' if kinds else ''} is recorded."
        print_list(
            decisions,
            output,
            lambda out: _columns(out, with_subject=not subject_id),
            fields=_FIELDS,
            empty_text=empty_text,
            page_token=token,
            ends_after=limit,
            watch=watch,
        )

    print_or_watch(
        lambda: lookup.list_items_and_token(client, "/decisions", limit, subject=subject_id, kind=kinds),
        draw,
        output,
        watch=watch,
    )


def _find_subject(client: ApiClient, typed_value: str) -> str:
    is_incident = typed_value.startswith("inc-") or typed_value == "@latest"
    return lookup.find_incident(client, typed_value) if is_incident else lookup.find_job(client, typed_value)


def _about(decision: Json) -> str:
    """Return the job, the incident or the node. A decision about a node names its cluster and its launch, too."""
    subject: str = decision["subject"]
    return next((part for part in subject.split("/") if part.startswith("i-")), subject)


def _columns(out: Printer, *, with_subject: bool) -> list[Column]:
    return [
        Column(
            out.age_title("DECIDED"), lambda decision: out.time_text(decision["decidedAt"], ago=False), is_right=True
        ),
        *([Column("ABOUT", _about)] if with_subject else ()),
        Column("KIND", lambda decision: plain(decision["kind"])),
        Column("ACTION", lambda decision: plain(decision["action"]) + (" (dry run)" if decision["isDryRun"] else "")),
        Column("MODE", "mode", is_wide=True),
        Column("POLICY", "policyHash", is_wide=True),
        Column("DECISION", "decisionId", may_shrink=True),
        Column("REASON", "reason", goes_below=True),
    ]
