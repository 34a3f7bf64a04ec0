"""`evenkeel why`."""

from typing import Annotated, Any

import typer

from evenkeel_cli.commands import lookup
from evenkeel_cli.commands.nodes import cordon_text
from evenkeel_cli.commands.output import print_read
from evenkeel_cli.render import Column, OutputFormat, Printer, duration
from evenkeel_cli.state_signs import INCIDENT, JOB, NODE, plain
from evenkeel_client.client import ApiClient
from evenkeel_client.errors import CommandFailed, Exit

Json = dict[str, Any]

app = lookup.single_command("why")


@app.command("why")
def why(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="JOB|INCIDENT|NODE|DECISION", help="Id or unique prefix, job or node name, or @latest (incident)."
        ),
    ],
    watch: lookup.WatchOption = False,
    output: lookup.OutputOption = OutputFormat.TABLE,
) -> None:
    """Explain a decision: the reason, the alternatives and the next step."""
    client = lookup.current_client()

    def draw(out: Printer, response: Json) -> None:
        if response.get("decisionId"):
            _print_decision(out, response)
        elif response.get("cordon") or response.get("repairedBy"):
            _print_node(out, response)
        else:
            _print_answer(out, response)

    def fetch() -> Json:
        is_decision = subject.startswith("dec-")
        return client.get(f"/decisions/{subject}") if is_decision else _read_explanation(client, subject)

    print_read(fetch, output, draw, watch=watch)


def _read_explanation(client: ApiClient, subject: str) -> Json:
    """Read the explanation of an incident, a job or a node. A name is matched to jobs first, then to nodes."""
    if subject.startswith("inc-") or subject == "@latest":
        try:
            return client.get(f"/incidents/{lookup.find_incident(client, subject)}/why")
        except CommandFailed as failure:
            # @latest means the newest incident; if there is none, the newest job.
            if subject != "@latest" or failure.exit_code is not Exit.NOT_FOUND:
                raise
    if not lookup.is_instance_id(subject):
        try:
            return client.get(f"/jobs/{lookup.find_job(client, subject)}/why")
        except CommandFailed as failure:
            if failure.exit_code is not Exit.NOT_FOUND or subject.startswith(("job-", "@")):
                raise
            no_job = failure
        try:
            subject = lookup.find_node(client, subject)
        except CommandFailed as failure:
            if failure.exit_code is Exit.NOT_FOUND:
                no_job.text = f"There is no job, incident, node or decision {subject!r}."
                no_job.hint = "evenkeel status"
                raise no_job from None
            raise
    node = _node_without_incident(client, subject)
    return node or client.get(f"/incidents/{_latest_incident(client, subject)}/why")


def _node_without_incident(client: ApiClient, instance_id: str) -> Json | None:
    """Return a node without an incident that a person cordoned or another controller repairs; else None."""
    try:
        node = client.get(f"/nodes/{instance_id}")
    except CommandFailed as failure:
        if failure.exit_code is not Exit.NOT_FOUND:
            raise
        return None
    is_explained = node.get("cordon") or node.get("repairedBy")
    return node if is_explained and not node["incidentId"] else None


def _print_node(out: Printer, node: Json) -> None:
    out.line(f"{out.with_glyph(NODE[node['state']], out.bold(node['instanceId']))}  {plain(node['state'])}")
    if not node.get("cordon"):
        out.paragraph(f"Another controller repairs the node: {node['repairedBy']}.", indent="  ")
        return
    out.paragraph(f"A person cordoned the node, {cordon_text(out, node)}.", indent="  ")
    out.line()
    out.next_command(f"evenkeel nodes uncordon {node['instanceId']}")


def _latest_incident(client: ApiClient, instance_id: str) -> str:
    """Return the id of the open incident of a node, else of its last incident.

    Raises:
        CommandFailed: the node has no incident among those read, or there is no such node.
    """
    failure: CommandFailed | None = None
    try:
        incident_id = client.get(f"/nodes/{instance_id}")["incidentId"]
        if incident_id:
            return str(incident_id)
    except CommandFailed as failed:
        if failed.exit_code is not Exit.NOT_FOUND:
            raise
        # The node may have been replaced: its incident still exists.
        failure = failed
    for incident in lookup.list_for_lookup(client, "/incidents"):
        if incident["node"]["instanceId"] == instance_id:
            return str(incident["incidentId"])
    raise failure or CommandFailed(
        Exit.NOT_FOUND,
        f"There is no incident of {instance_id}.",
        code="NOT_FOUND",
        hint=f"evenkeel nodes show {instance_id}",
    )


def _print_answer(out: Printer, answer: Json) -> None:
    states = JOB if answer["kind"] == "job" else INCIDENT
    sign = "warn" if answer.get("isStale") else states[answer["state"]]
    out.line(
        f"{out.with_glyph(sign, out.bold(answer['subject']))}  {plain(answer['state'])}{out.last_seen_text(answer)}"
    )
    out.paragraph(answer["sentence"], indent="  ")
    decision = answer["decision"]
    if decision:
        out.line()
        out.pairs(
            [
                ("decided", f"{out.time_text(decision['decidedAt'])}: {decision['action']}, {decision['decisionId']}"),
                ("because", decision["reason"]),
            ],
            indent="  ",
        )
        _print_alternatives(out, answer["considered"])
    _print_guardrails(out, answer.get("guardrails") or [])
    for number, change in enumerate(answer.get("changes") or []):
        if not number:
            out.line()
        out.pairs([("would start with" if not number else "or with", change["message"])], indent="  ")
    if answer.get("changesUnknown"):
        out.line()
        out.pairs([("would start with", f"unknown: {answer['changesUnknown']}")], indent="  ")
    earlier = answer.get("earlier") or []
    if earlier:
        out.line()
        columns = [
            Column("BEFORE", 0),
            Column("DECIDED", lambda row: row[1]["action"]),
            Column("DECISION", lambda row: row[1]["decisionId"]),
            Column("BECAUSE", lambda row: row[1]["reason"], goes_below=True),
        ]
        clocks = out.clock_texts(decision["decidedAt"] for decision in earlier)
        out.table(columns, zip(clocks, earlier, strict=True), indent="  ")
    evidence = answer["evidence"]
    resume_point, rejections = evidence.get("resumedFrom"), evidence.get("rejectedCheckpoints") or []
    out.line()
    out.pairs(
        [
            (
                "resumed from",
                f"step {resume_point['step']} of attempt {resume_point['attempt']}" if resume_point else "",
            ),
            ("rejected", "; ".join(_rejection_text(item) for item in rejections)),
            ("unmanaged work", ", ".join(evidence.get("unmanagedWorkloads") or ())),
            ("incident", evidence.get("incident") or ""),
            ("execution", evidence.get("execution") or ""),
            ("withheld", "Only the job's team and operators see the rest." if answer.get("isRedacted") else ""),
            ("next", answer["next"] or ""),
        ],
        indent="  ",
    )


def _print_alternatives(out: Printer, options: list[Json]) -> None:
    if len(options) < 2:
        return
    columns = [
        Column("CONSIDERED", lambda option: plain(option["option"])),
        Column("START", lambda option: _approximate_duration(option.get("expectedSeconds")), is_right=True),
        Column("GPU-H LOST", lambda option: _hours_text(option.get("gpuHoursLost")), is_right=True),
        Column("LOSS", lambda option: _usd_text(option.get("usd")), is_right=True),
        Column(
            "CHOSEN",
            lambda option: out.with_glyph("ok", "yes") if option["chosen"] else f"no: {option['whyNot']}",
            wraps=True,
        ),
    ]
    out.line()
    out.table(columns, options, indent="  ")


def _print_guardrails(out: Printer, readings: list[Json]) -> None:
    """Print the number that each guardrail compares, against its limit."""
    if not readings:
        return

    def counts(reading: Json) -> str:
        return out.with_glyph("warn", f"blocks: {reading['unit']}") if reading["isBlocking"] else str(reading["unit"])

    columns = [
        Column("GUARDRAIL", lambda reading: plain(reading["guardrail"])),
        Column("READING", lambda reading: "–" if reading["reading"] is None else reading["reading"], is_right=True),
        Column("LIMIT", lambda reading: "–" if reading["limit"] is None else reading["limit"], is_right=True),
        Column("READ", lambda reading: out.time_text(reading["readAt"]), is_right=True),
        Column("COUNTS", counts, goes_below=True),
    ]
    out.line()
    out.table(columns, readings, indent="  ")


def _print_decision(out: Printer, decision: Json) -> None:
    out.line(f"{out.bold(decision['decisionId'])}  {plain(decision['kind'])}: {decision['action']}")
    out.paragraph(decision["reason"], indent="  ")
    chosen_option: Json = {"option": decision["action"], **(decision.get("chosen") or {}), "chosen": True}
    _print_alternatives(
        out, [chosen_option, *({**alternative, "chosen": False} for alternative in decision["alternatives"])]
    )
    out.line()
    out.pairs(
        [
            ("about", decision["subject"]),
            ("decided", out.time_text(decision["decidedAt"])),
            ("mode", decision["mode"]),
            ("policy", f"{decision['policyHash']}, engine {decision['engineVersion']}"),
            ("withheld", "Only the job's team and operators see the rest." if decision.get("isRedacted") else ""),
            ("facts", f"evenkeel why {decision['decisionId']} -o json"),
        ],
        indent="  ",
    )


def _rejection_text(item: Json) -> str:
    where = f"step {item['step']} of attempt {item['attempt']}" if "step" in item else str(item.get("manifest", ""))
    return f"{where}, {plain(str(item.get('code', '')))}"


def _approximate_duration(seconds: float | None) -> str:
    return "–" if seconds is None else f"~{duration(seconds)}"


def _hours_text(hours: float | None) -> str:
    return "–" if hours is None else f"{hours:.2f}"


def _usd_text(amount: float | None) -> str:
    return "–" if amount is None else f"${amount:,.2f}"
