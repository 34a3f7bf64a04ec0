"""`evenkeel incidents`."""

from typing import Annotated, Any

import typer

from evenkeel_cli.commands import lookup
from evenkeel_cli.commands.output import (
    confirm,
    draw_timeline_document,
    print_change,
    print_list,
    print_or_watch,
    print_read,
)
from evenkeel_cli.receipt_page import draw_incident_receipt
from evenkeel_cli.render import Column, OutputFormat, Printer, duration
from evenkeel_cli.state_signs import INCIDENT, plain
from evenkeel_client.errors import CommandFailed, Exit

Json = dict[str, Any]

_FIELDS = (
    *("incidentId", "state", "outcome", "severity", "fault.key", "fault.name", "node.instanceId", "node.name"),
    *(
        "node.cluster",
        "node.pool",
        "node.instanceType",
        "block.guardrail",
        "block.reason",
        "pendingApproval.decisionId",
    ),
    *("replacementInstanceId", "repairs", "affectedJobs", "unmanagedWorkloads", "evidenceCount", "firstSignalAt"),
    *("openedAt", "settledAt", "isDrill", "mode", "run", "isStale"),
)

_NEEDS_PERSON = ("WAITING_FOR_PERSON", "JOB_NOT_RESUMED", "FAILED")
RUNBOOK = "docs/runbooks/incident-needs-person.md"

app = lookup.command_group("Show node incidents and their recovery; approve or decline plans.")

IncidentArgument = Annotated[str, typer.Argument(metavar="INCIDENT", help="Id, unique prefix of an id, or @latest.")]


@app.command("ls")
def list_incidents(
    state: lookup.StateOption = None,
    limit: lookup.LimitOption = 50,
    watch: lookup.WatchOption = False,
    output: lookup.OutputOption = OutputFormat.TABLE,
) -> None:
    """List incidents, newest first."""
    client = lookup.current_client()
    empty_text = "No incidents." if not state else f"No incidents are {plain(state)}."

    def draw(page: tuple[list[Json], str | None]) -> None:
        incidents, token = page
        print_list(
            incidents,
            output,
            lambda out: _columns(out, is_wide=output is OutputFormat.WIDE),
            fields=_FIELDS,
            empty_text=empty_text,
            page_token=token,
            ends_after=limit,
            watch=watch,
        )

    print_or_watch(
        lambda: lookup.list_items_and_token(client, "/incidents", limit, state=state and state.upper()),
        draw,
        output,
        watch=watch,
    )


@app.command("show")
def show_incident(
    incident: IncidentArgument, watch: lookup.WatchOption = False, output: lookup.OutputOption = OutputFormat.TABLE
) -> None:
    """Show an incident: evidence, node and job recovery, durations."""
    client = lookup.current_client()
    incident_id = lookup.find_incident(client, incident)
    print_read(lambda: client.get(f"/incidents/{incident_id}"), output, _print_incident, watch=watch)


@app.command("timeline")
def timeline(
    incident: IncidentArgument, watch: lookup.WatchOption = False, output: lookup.OutputOption = OutputFormat.TABLE
) -> None:
    """Show the timeline of an incident."""
    client = lookup.current_client()
    path = f"/incidents/{lookup.find_incident(client, incident)}/timeline"
    print_read(lambda: client.get(path), output, draw_timeline_document, watch=watch, items="entries")


@app.command("receipt")
def receipt(
    incident: IncidentArgument, watch: lookup.WatchOption = False, output: lookup.OutputOption = OutputFormat.TABLE
) -> None:
    """Show the cost of an incident by stage, and estimated savings."""
    client = lookup.current_client()
    path = f"/incidents/{lookup.find_incident(client, incident)}/receipt"
    print_read(lambda: client.get(path), output, draw_incident_receipt, watch=watch)


@app.command("ack")
def acknowledge(
    incident: IncidentArgument,
    reason: lookup.ReasonOption = "",
    key: lookup.KeyOption = None,
    output: lookup.ResultOption = OutputFormat.TABLE,
) -> None:
    """Acknowledge an incident: other people see that you work on it. The recovery continues as before."""
    client = lookup.current_client()
    incident_id = lookup.find_incident(client, incident)
    body = {"reason": reason} if reason else {}
    document = client.post(f"/incidents/{incident_id}/acknowledge", body, key=key)
    print_change(
        document,
        output,
        f"{incident_id}  acknowledged by {document['acknowledgement']['by']}",
        then=f"why {incident_id}",
    )


@app.command("approve")
def approve(
    incident: IncidentArgument,
    reason: lookup.ReasonOption = "",
    is_sure: lookup.YesOption = False,
    key: lookup.KeyOption = None,
    output: lookup.ResultOption = OutputFormat.TABLE,
) -> None:
    """Approve the plan that awaits approval. It starts immediately, within the guardrails."""
    _answer_plan(incident, "approve", reason, is_sure, key, output)


@app.command("decline")
def decline(
    incident: IncidentArgument,
    reason: lookup.ReasonOption = "",
    is_sure: lookup.YesOption = False,
    key: lookup.KeyOption = None,
    output: lookup.ResultOption = OutputFormat.TABLE,
) -> None:
    """Decline the plan that awaits approval. Nothing is changed, and the incident is settled."""
    _answer_plan(incident, "decline", reason, is_sure, key, output)


def _answer_plan(
    typed_value: str, verb: str, reason: str, is_sure: bool, key: str | None, output: OutputFormat
) -> None:
    client = lookup.current_client()
    incident_id = lookup.find_incident(client, typed_value)
    document = client.get(f"/incidents/{incident_id}")
    late_approval = document["lateApproval"] if verb == "approve" else None
    plan = document["pendingApproval"] or late_approval
    if plan is None:
        approval = document["approval"]
        was = f" {approval['by']} {'approved' if approval['approves'] else 'declined'} it." if approval else ""
        raise CommandFailed(
            Exit.CONFLICT, f"{incident_id} has no plan that awaits approval.{was}", code="PLAN_SUPERSEDED"
        )
    if not is_sure:
        node, jobs = document["node"], ", ".join(affected_job["jobId"] for affected_job in document["affectedJobs"])
        confirm(
            verb,
            f"{incident_id}: {document['fault']['name']} on {node['instanceId']}, pool {node['pool']}.",
            f"{plan['reason']} ({plan['decisionId']})",
            f"Jobs that will be stopped and moved: {jobs or 'the jobs on the node at that time'}.",
            "Evenkeel checks every guardrail again before it acts."
            if verb == "approve"
            else "Nothing will be changed.",
        )
    body = {"decisionId": plan["decisionId"], **({"reason": reason} if reason else {})}
    response = client.post(f"/incidents/{incident_id}/{verb}", body, key=key)
    done = "approved" if response["approval"]["approves"] else "declined"
    print_change(response, output, f"{incident_id}  {done}", then=f"incidents timeline {incident_id}")


def print_recovery_branches(out: Printer, incident: Json, *, indent: str = "") -> None:
    """Print one line for the node and one for each job of a recovery."""
    node = incident["nodeLane"]
    is_working = node["status"] == "working" and out.is_terminal
    since = f" for {duration(out.seconds_since(node['since']))}" if is_working else ""
    out.line(f"{indent}node  {out.with_glyph(node['status'], node['phase'])}{since}")
    if node.get("next"):
        latest_text = f"; at the latest by {out.clock_texts([node['latestAt']])[0]}" if node.get("latestAt") else ""
        out.line(f"{indent}next  {out.dim(node['next'] + latest_text)}")
    for job in incident["jobLanes"] or ():
        name = f" ({job['name']})" if job["name"] else ""
        attempt = f", attempt {job['attempt']}" if job.get("attempt") else ""
        out.line(f"{indent}job   {out.with_glyph(job['status'], job['jobId'])}{name} {job['phase']}{attempt}")
    if not incident["jobLanes"]:
        is_early = node["status"] == "working" and node["phase"] in ("detected", "planned", "cordoned")
        is_unknown = is_early or incident["jobLanes"] is None
        text = (
            out.with_glyph("next", "not checked yet")
            if is_unknown
            else out.with_glyph("idle", "no job ran on this node")
        )
        out.line(f"{indent}job   {text}")


def acknowledged_by(out: Printer, incident: Json) -> str:
    """Return who works on an incident and since when; empty without an acknowledgement."""
    acknowledgement = incident.get("acknowledgement")
    return f"{acknowledgement['by']}, {out.time_text(acknowledgement['at'])}" if acknowledgement else ""


def _columns(out: Printer, *, is_wide: bool) -> list[Column]:
    def node(incident: Json) -> str:
        return str(incident["node"]["instanceId"]) if is_wide else short_instance_id(incident["node"]["instanceId"])

    def state(incident: Json) -> str:
        return out.with_glyph(INCIDENT[incident["state"]], plain(incident["state"]))

    def jobs(incident: Json) -> str:
        return ",".join(affected_job["jobId"] for affected_job in incident["affectedJobs"]) or "–"

    return [
        Column("INCIDENT", "incidentId"),
        Column("NODE", node),
        Column("FAULT", lambda incident: incident["fault"]["key"]),
        Column("STATE", state),
        Column(out.age_title("OPENED"), lambda incident: out.time_text(incident["openedAt"], ago=False), is_right=True),
        Column("FAULT NAME", lambda incident: incident["fault"]["name"], is_wide=True),
        Column("SEVERITY", "severity", is_wide=True),
        Column("POOL", lambda incident: incident["node"]["pool"], is_wide=True),
        Column("REPAIRS", lambda incident: ",".join(incident["repairs"]) or "–", is_wide=True),
        Column("JOBS", jobs, is_wide=True),
        Column("ACKNOWLEDGED", lambda incident: acknowledged_by(out, incident) or "–", is_wide=True),
        Column("OUTCOME", _outcome_text, goes_below=True),
    ]


def _outcome_text(incident: Json) -> str:
    acknowledgement = incident.get("acknowledgement")
    return " ".join(
        filter(None, (incident["outcome"], f"Acknowledged by {acknowledgement['by']}." if acknowledgement else ""))
    )


def short_instance_id(instance_id: str) -> str:
    """Return an abbreviated instance id such as `i-0ab…c41`, long enough to be unique in a fleet."""
    return instance_id if len(instance_id) <= 12 else f"{instance_id[:5]}…{instance_id[-4:]}"


def _print_incident(out: Printer, incident: Json) -> None:
    state = incident["state"]
    drill = "  drill" if incident["isDrill"] else ""
    out.line(f"{out.with_glyph(INCIDENT[state], out.bold(incident['incidentId']))}  {plain(state)}{out.dim(drill)}")
    if incident["outcome"]:
        out.paragraph(incident["outcome"], indent="  ")
    out.line()
    node = incident["node"]
    replacement = incident["replacementInstanceId"]
    needs_person = state in _NEEDS_PERSON
    out.pairs(
        [
            ("fault", f"{incident['fault']['name']} ({incident['fault']['key']}), {incident['severity']}"),
            ("node", f"{node['instanceId']}, {node['instanceType']}, pool {node['pool']}"),
            ("replaced by", replacement or ""),
            ("opened", out.time_text(incident["openedAt"])),
            ("acknowledged", acknowledged_by(out, incident) or ("not yet" if needs_person else "")),
            ("runbook", RUNBOOK if needs_person else ""),
            ("mode", incident["mode"]),
            ("waits", f"{incident['block']['guardrail']}: {incident['block']['reason']}" if incident["block"] else ""),
            (
                "plan",
                f"{incident['pendingApproval']['reason']} ({incident['pendingApproval']['decisionId']})"
                if incident["pendingApproval"]
                else "",
            ),
            ("if unanswered", incident["pendingApproval"]["ifUnanswered"] if incident["pendingApproval"] else ""),
            ("approve", _late_approval_hint(incident)),
            ("resumes from", incident["resumes"] or ""),
            ("execution", incident["execution"]),
        ],
        indent="  ",
    )
    out.line()
    print_recovery_branches(out, incident, indent="  ")
    if incident["took"]:
        out.line()
        _draw_steps(out, incident["took"])
    out.line()
    _print_evidence(out, incident["evidence"])
    out.line()
    verb = "approve" if incident["pendingApproval"] else "timeline"
    out.next_command(f"evenkeel incidents {verb} {incident['incidentId']}")


def _late_approval_hint(incident: Json) -> str:
    """Return how to approve a plan after its deadline; empty if that is not possible."""
    late_approval = incident["lateApproval"]
    return f"while the node is unhealthy: evenkeel incidents approve {incident['incidentId']}" if late_approval else ""


def _draw_steps(out: Printer, steps: list[Json]) -> None:
    clocks = out.clock_texts(step["at"] for step in steps)
    delays = ["", *(f"+{duration(step['seconds'])}" for step in steps[1:])]
    rows = [(step["stage"], at, later) for step, at, later in zip(steps, clocks, delays, strict=True)]
    out.table([Column("REACHED", 0), Column("AT", 1), Column("AFTER", 2, is_right=True)], rows, indent="  ")


def _print_evidence(out: Printer, evidence: list[Json]) -> None:
    clocks = out.clock_texts(fact["observedAt"] for fact in evidence)
    columns = [
        Column("EVIDENCE", lambda row: row[0]["faultKey"] or plain(row[0]["kind"])),
        Column("SEEN", 1),
        Column("SOURCE", lambda row: row[0]["source"]),
        Column("DETAIL", lambda row: row[0]["detail"], goes_below=True),
    ]
    out.table(columns, zip(evidence, clocks, strict=True), indent="  ")
