"""`evenkeel postmortem`."""

from typing import Annotated, Any

import typer

from evenkeel_cli.commands import lookup
from evenkeel_cli.commands.incidents import IncidentArgument
from evenkeel_cli.postmortem_page import IncidentRecords, postmortem
from evenkeel_cli.render import stdout_printer
from evenkeel_client.client import ApiClient
from evenkeel_client.errors import CommandFailed, Exit

Json = dict[str, Any]

app = lookup.single_command("postmortem")


@app.command("postmortem")
def write_postmortem(
    incident: IncidentArgument,
    names: Annotated[bool, typer.Option("--names", help="Name the persons who acted.")] = False,
) -> None:
    """Write a blameless postmortem of an incident as Markdown: timeline, evidence, decisions, cost, what would help."""
    client = lookup.current_client()
    incident_id = lookup.find_incident(client, incident)
    document = client.get(f"/incidents/{incident_id}")
    decisions = sorted(document["decisions"], key=lambda decision: str(decision["decidedAt"]))
    records = IncidentRecords(
        incident=document,
        timeline=client.get(f"/incidents/{incident_id}/timeline")["entries"],
        decisions=[client.get(f"/decisions/{decision['decisionId']}") for decision in decisions],
        jobs=[
            job
            for affected_job in document["affectedJobs"]
            if (job := _optional(client, f"/jobs/{affected_job['jobId']}"))
        ],
        receipt=_optional(client, f"/incidents/{incident_id}/receipt"),
    )
    stdout_printer().text(postmortem(records, has_names=names))


def _optional(client: ApiClient, path: str) -> Json | None:
    """Read a part of the page. Return None if the stack is too old to have it, or if the record has expired."""
    try:
        return client.get(path)
    except CommandFailed as failure:
        if failure.exit_code is not Exit.NOT_FOUND:
            raise
        return None
