"""Write the postmortem of an incident as Markdown: events, evidence, cost and possible improvements.

The page is blameless: it speaks of systems, and names no person unless asked. Every statement is from a record.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from evenkeel_cli.render import duration, escape_control_characters, whole_seconds
from evenkeel_cli.state_signs import plain

Json = dict[str, Any]

_WAITING = frozenset({"blocked", "held", "asked"})
"""Kinds of timeline entries after which a recovery waits."""
_STAGE_ADVICE = {
    "planned": "The plan waited for facts about the node. `evenkeel doctor` shows sources that answer late.",
    "cordoned": "The cordon came late. If the plan asked for approval, the mode `act` would not have waited.",
    "jobs stopped": "The jobs took this long to save and stop. Faster or more frequent checkpoints shorten it.",
    "repair requested": "The repair waited for a guardrail, an approval or the jobs on the node.",
    "node back": "The provider needed this long. A spare node keeps jobs from waiting for it.",
    "validated": "The validation of the node took this long. `evenkeel policy show` lists its checks.",
    "returned": "The return to service took this long.",
    "jobs resumed": "The jobs waited for nodes or for their start. A spare node, or rented nodes, shorten this wait.",
}


class IncidentRecords(NamedTuple):
    """The records of an incident, as the API returns them."""

    incident: Json
    timeline: Sequence[Json]
    decisions: Sequence[Json]
    """Oldest first."""
    jobs: Sequence[Json]
    """The interrupted jobs that the caller may read."""
    receipt: Json | None


def postmortem(records: IncidentRecords, *, has_names: bool = False) -> str:
    """Return the page. Without `has_names`, each person is `a person`."""
    text = "\n".join(_lines(records)) + "\n"
    return escape_control_characters(text if has_names else _PRINCIPAL.sub("a person", text))


_PRINCIPAL = re.compile(r"(?:\b\d{12}:)?\b(?:role|user|federated-user)/[\w+=,.@-]+(?: \([^()|]*\))?")
"""A caller as records name it: `role/Operator (ana)`."""


def _lines(records: IncidentRecords) -> Iterator[str]:
    incident = records.incident
    node, fault = incident["node"], incident["fault"]
    yield f"# Postmortem: {_markdown_cell(fault['name'])} on {node['instanceId']}"
    yield ""
    if incident["isDrill"]:
        yield "**A drill.** The fault was injected."
        yield ""
    yield _summary(incident)
    yield ""
    yield from _table_lines(("", ""), _facts(incident))
    yield from _section_lines("Impact", _impact(records))
    yield from _section_lines("Timeline", _timeline(records.timeline))
    yield from _section_lines("Where the time went", _stages(incident))
    yield from _section_lines("Evidence", _evidence(incident["evidence"]))
    yield from _section_lines("Decisions", _decisions(records.decisions))
    yield from _section_lines("What would have helped", _improvement_lines(records))
    yield from _section_lines(
        "For the people involved",
        ["- What went well:", "- What was luck:", "- What was unclear at the time:", "- [ ] Action, owner, date:"],
    )
    yield from _section_lines("Records", _command_lines(incident, records.decisions))


def _summary(incident: Json) -> str:
    settled_at = incident["settledAt"]
    state = (
        f"It is {plain(incident['state'])}." if settled_at else f"It is not settled yet: {plain(incident['state'])}."
    )
    return f"{_markdown_cell(incident['outcome']) or 'The recovery is in progress.'} {state}"


def _facts(incident: Json) -> Iterator[tuple[str, str]]:
    node = incident["node"]
    yield "Incident", f"`{incident['incidentId']}`, {incident['severity']}, mode `{incident['mode'] or 'unknown'}`"
    yield "Fault", f"{incident['fault']['name']} (`{incident['fault']['key']}`)"
    yield "Node", f"`{node['instanceId']}`, {node['instanceType']}, pool {node['pool']}, cluster {node['cluster']}"
    if incident["replacementInstanceId"]:
        yield "Replaced by", f"`{incident['replacementInstanceId']}`"
    yield "First signal", whole_seconds(incident["firstSignalAt"])
    yield "Opened", whole_seconds(incident["openedAt"])
    yield "Settled", whole_seconds(incident["settledAt"]) if incident["settledAt"] else "not yet"
    if incident["repairs"]:
        yield "Repairs", ", ".join(incident["repairs"])
    if incident["resumes"]:
        yield "Continues", f"`{incident['resumes']}`: that recovery did not clear the same fault"


def _impact(records: IncidentRecords) -> Iterator[str]:
    lanes = records.incident["jobLanes"]
    if not lanes:
        yield "No job of Evenkeel ran on the node."
    for lane in lanes:
        name = f" ({_markdown_cell(lane['name'])})" if lane["name"] else ""
        yield f"- `{lane['jobId']}`{name}: attempt {lane['interruptedAttempt']} was interrupted; {lane['phase']}."
    for workload in records.incident["unmanagedWorkloads"]:
        yield f"- Unmanaged workload {_markdown_cell(workload)}."
    yield ""
    if records.receipt is None:
        yield "No receipt is available: the cost is unknown."
    else:
        yield from _cost(records.receipt)


def _cost(receipt: Json) -> Iterator[str]:
    bound_text = "at least " if receipt["isLowerBound"] else ""
    so_far_text = "" if receipt["isOver"] else " so far"
    gpu_hours, cost = _number_text(receipt["totalGpuHours"]), _usd_text(receipt["totalUsdMicros"])
    yield f"Cost{so_far_text}: {bound_text}{gpu_hours} GPU-hours, {cost}."
    for interruption in receipt["jobs"]:
        yield from ("", f"`{interruption['jobId']}`, attempt {interruption['attempt']}:", "")
        rows = [stage for stage in interruption["parts"] if stage["seconds"] != 0] + [
            {"stage": "sum", **interruption["total"]}
        ]
        yield from _table_lines(
            ("Stage", "Lost", "GPU-hours", "Cost"),
            (
                (
                    plain(stage["stage"]),
                    _duration_text(stage["seconds"]),
                    _number_text(stage["gpuHours"]),
                    _usd_text(stage["usdMicros"]),
                )
                for stage in rows
            ),
        )
    for note in receipt["notes"]:
        yield from ("", _markdown_cell(note))


def _timeline(entries: Sequence[Json]) -> Iterator[str]:
    yield from _table_lines(
        ("Time (UTC)", "What", "Details"),
        ((whole_seconds(entry["at"]), entry["kind"], _with_decision(entry)) for entry in entries),
    )


def _with_decision(entry: Json) -> str:
    return str(entry["text"]) + (f" [{entry['decisionId']}]" if entry["decisionId"] else "")


def _stages(incident: Json) -> Iterator[str]:
    steps = incident["took"]
    if not steps:
        yield "No stage was recorded."
        return
    rows = ((step["stage"], whole_seconds(step["at"]), _time_after_previous(step, steps)) for step in steps)
    yield from _table_lines(("Reached", "At (UTC)", "After"), rows)


def _time_after_previous(step: Json, steps: Sequence[Json]) -> str:
    return "" if step is steps[0] else f"+{duration(step['seconds'])}"


def _evidence(evidence: Sequence[Json]) -> Iterator[str]:
    yield from _table_lines(
        ("Seen (UTC)", "Source", "Fault", "Details"),
        (
            (whole_seconds(fact["observedAt"]), fact["source"], fact["faultKey"] or plain(fact["kind"]), fact["detail"])
            for fact in evidence
        ),
    )


def _decisions(decisions: Sequence[Json]) -> Iterator[str]:
    if not decisions:
        yield "No decision is recorded."
    for number, decision in enumerate(decisions):
        if number:
            yield ""
        decided_at = whole_seconds(decision["decidedAt"])
        yield f"### {decided_at}: {plain(decision['kind'])}, {decision['action']} (`{decision['decisionId']}`)"
        yield ""
        yield _markdown_cell(decision["reason"]) or "The reason is private to the job's team."
        alternatives = decision.get("alternatives") or ()
        if alternatives:
            yield ""
            yield from _table_lines(
                ("Also considered", "Would take", "GPU-hours lost", "Why not"),
                (
                    (
                        plain(alternative["option"]),
                        _seconds_text(alternative),
                        _number_text(alternative.get("gpuHoursLost")),
                        alternative["whyNot"],
                    )
                    for alternative in alternatives
                ),
            )


def _improvement_lines(records: IncidentRecords) -> Iterator[str]:
    advice = list(dict.fromkeys(_advice(records)))
    if not advice:
        yield "The records show no step that a setting, a spare node or another checkpoint would have shortened."
    for text in advice:
        yield f"- {text}"


def _advice(records: IncidentRecords) -> Iterator[str]:
    """Yield the changes that would have shortened the incident, each from a record."""
    incident = records.incident
    later = incident["took"][1:]
    if later:
        longest_step = max(later, key=lambda step: step["seconds"])
        total = sum(step["seconds"] for step in later)
        if total >= 1:
            advice = _STAGE_ADVICE.get(longest_step["stage"], "")
            share = f"{duration(longest_step['seconds'])} of {duration(total)}"
            yield f"The longest step led to *{longest_step['stage']}*: {share}. {advice}".rstrip()
    for decision in records.decisions:
        yield from _faster_options(decision)
    for entry in records.timeline:
        if entry["kind"] in _WAITING and entry["text"]:
            yield f"The recovery had to wait: {_markdown_cell(entry['text'])}"
    if incident["mode"] in ("observe", "recommend"):
        yield f"The mode was `{incident['mode']}`: Evenkeel did not act by itself. `evenkeel shadow` shows its record."
    for job in records.jobs:
        yield from _job_advice(job)


def _faster_options(decision: Json) -> Iterator[str]:
    seconds_taken = (decision.get("chosen") or {}).get("expectedSeconds")
    for alternative in decision.get("alternatives") or ():
        seconds = alternative.get("expectedSeconds")
        if seconds_taken is not None and seconds is not None and seconds < seconds_taken and alternative["whyNot"]:
            yield (
                f"*{plain(alternative['option'])}* would have taken {_seconds_text(alternative)} "
                f"instead of ~{duration(seconds_taken)}, but: {_markdown_cell(alternative['whyNot'])} "
                f"(`{decision['decisionId']}`)"
            )


def _job_advice(job: Json) -> Iterator[str]:
    checkpoint = job.get("checkpoint")
    if checkpoint is not None and not checkpoint["uri"]:
        yield f"`{job['jobId']}` has no checkpoint, so it started again from step 0. Set `checkpoint.uri`."
    for attempt in job.get("attempts") or ():
        rejections = attempt.get("rejectedCheckpoints") or ()
        if rejections:
            checkpoints_text = f"{len(rejections)} checkpoint{'s' if len(rejections) > 1 else ''}"
            name = job["jobId"]
            yield f"Attempt {attempt['attempt']} of `{name}` could not use {checkpoints_text}: `evenkeel why {name}`."


def _command_lines(incident: Json, decisions: Sequence[Json]) -> Iterator[str]:
    name = incident["incidentId"]
    yield f"- `evenkeel incidents show {name}`, `evenkeel incidents timeline {name}`"
    for decision in decisions:
        yield f"- `evenkeel why {decision['decisionId']}`: its facts, and why Evenkeel decided so"
    if incident["execution"]:
        yield f"- Step Functions execution `{incident['execution']}`"


def _section_lines(title: str, lines: Iterable[str]) -> Iterator[str]:
    yield from ("", f"## {title}", "", *lines)


def _table_lines(titles: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    yield f"| {' | '.join(titles)} |"
    yield f"|{'---|' * len(titles)}"
    for row in rows:
        yield f"| {' | '.join(map(_markdown_cell, row))} |"


def _markdown_cell(value: Any) -> str:
    """Return a text as one line of Markdown, escaped so that it starts no Markdown element."""
    text = re.sub(r"\s+", " ", str(value)).strip()
    return re.sub(r"([|<>*_\[\]\\])", r"\\\1", text) if _HAS_MARKS.search(text) else text


_HAS_MARKS = re.compile(r"[|<>*\[\]\\]|(?<!\w)_|_(?!\w)")
"""Characters with a meaning in Markdown or HTML. An underscore inside a word has none."""


def _seconds_text(option: Mapping[str, Any]) -> str:
    seconds = option.get("expectedSeconds")
    return "unknown" if seconds is None else f"~{duration(seconds)}"


def _duration_text(seconds: float | None) -> str:
    return "unknown" if seconds is None else duration(seconds)


def _usd_text(micros: int | None) -> str:
    return "unknown" if micros is None else f"${micros / 1_000_000:,.2f}"


def _number_text(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"
