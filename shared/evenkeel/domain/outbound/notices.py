"""Texts for a person: an alert that answers five questions, and a message for a chat channel."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from evenkeel.domain.health.faults import default_catalogue
from evenkeel.domain.health.incidents import Incident, IncidentState
from evenkeel.domain.outbound.events import OutboundEvent, OutboundKind
from evenkeel.domain.plurals import count_of
from evenkeel.domain.recovery.settling import ALERTING_STATES

MAX_ALERT_CHARACTERS = 500
"""Maximum characters of an alert: three text messages, or the preview of a locked telephone."""
_MIN_ANSWER_CHARACTERS = 24
"""No answer is cut to fewer characters."""

CHAT_KINDS = frozenset(
    {
        OutboundKind.INCIDENT_OPENED,
        OutboundKind.INCIDENT_NEEDS_PERSON,
        OutboundKind.INCIDENT_SETTLED,
        OutboundKind.BUDGET_NEAR_END,
        OutboundKind.BUDGET_RUNS_OUT,
        OutboundKind.AUTOMATION_CHANGED,
    }
)
"""Kinds of events that a chat channel shows. A channel that shows every job is not read."""


class Notice(NamedTuple):
    """The answers to the five questions of a paged person."""

    what: str
    """What happened, and where?"""
    affects: str
    """Which jobs does the incident affect?"""
    actions: str
    """The actions of Evenkeel so far, and the present action."""
    until: str
    """When is it over, or what does it wait for?"""
    command: str
    """What must I do? The command to run first. It is never cut."""
    runbook: str
    """Name of the runbook."""


def alert_text(notice: Notice) -> str:
    """Return an alert of at most `MAX_ALERT_CHARACTERS` characters: a line for each question, and the whole command.

    The longest answers are cut first, so no other answer is lost.
    """
    answers = [" ".join(text.split()) for text in notice[:4]]
    last_line = f"Next: {notice.command} (runbook {notice.runbook})"
    labels = ("What", "Affects", "Doing", "Until")
    available = MAX_ALERT_CHARACTERS - len(last_line) - sum(len(f"{label}: \n") for label in labels)
    while sum(map(len, answers)) > available:
        index = max(range(len(answers)), key=lambda position: len(answers[position]))
        excess = sum(map(len, answers)) - available
        longest_other = max((len(text) for position, text in enumerate(answers) if position != index), default=0)
        length = max(_MIN_ANSWER_CHARACTERS, len(answers[index]) - excess, min(longest_other, len(answers[index]) - 1))
        if length >= len(answers[index]):
            break
        answers[index] = f"{answers[index][: length - 1].rstrip()}…"
    lines = [f"{label}: {text}" for label, text in zip(labels, answers, strict=True)]
    return "\n".join([*lines, last_line])


_END_TEXTS: Mapping[IncidentState, str] = {
    IncidentState.WAITING_FOR_PERSON: "needs a person",
    IncidentState.JOB_NOT_RESUMED: "a job did not resume",
    IncidentState.FAILED: "the recovery failed",
}


def incident_notice(incident: Incident) -> Notice:
    """Return the notice about an incident that needs a person."""
    fault = default_catalogue().look_up(incident.fault_key)
    node_text = incident.node_name or incident.life.instance_id
    jobs = [affected_job.job_id for affected_job in incident.affected_jobs]
    plan = incident.plan
    repairs = f"tried: {', '.join(incident.repairs)}." if incident.repairs else "no repair was requested."
    if incident.state in ALERTING_STATES:
        until = "you act. Evenkeel does nothing more about this incident by itself."
        if incident.state is IncidentState.JOB_NOT_RESUMED:
            until = "the job runs again or you act. The node needs nothing more."
        return Notice(
            what=f"{node_text} ({incident.pool}): {fault.name} ({incident.fault_key}); {_END_TEXTS[incident.state]}.",
            affects=_jobs_text(jobs),
            actions=f"{repairs} {incident.outcome}",
            until=until,
            command=f"evenkeel incidents show {incident.incident_id}",
            runbook="incident-needs-person",
        )
    answer_by = f"{plan.answer_by:%H:%M}Z, then Evenkeel does nothing" if plan and plan.answer_by else "you answer"
    return Notice(
        what=f"{node_text} ({incident.pool}): {fault.name} ({incident.fault_key}).",
        affects=_jobs_text(jobs),
        actions=f"waits for your approval: {plan.reason if plan else incident.outcome}",
        until=answer_by,
        command=f"evenkeel incidents approve {incident.incident_id}",
        runbook="incident-needs-person",
    )


def _jobs_text(jobs: list[str]) -> str:
    if not jobs:
        return "no job of Evenkeel is known to run there."
    shown = ", ".join(jobs[:3])
    return f"{shown} and {count_of(len(jobs) - 3, 'more job')}." if len(jobs) > 3 else f"{shown}."


def chat_message(event: OutboundEvent, fleet: str, notice: Notice | None = None) -> dict[str, Any]:
    """Return the message of an event in the format of Amazon Q Developer's custom notifications, version 1.0.

    Updates about one incident have its id as `threadId`, so a channel keeps them together.
    Source: https://docs.aws.amazon.com/chatbot/latest/adminguide/custom-notifs.html

    Args:
        event: The event.
        fleet: Name of the fleet.
        notice: The answers to the five questions, if the event asks a person to act.
    """
    drill = "[drill] " if event.is_drill else ""
    steps = [f"Run `{notice.command}`", f"Read docs/runbooks/{notice.runbook}.md"] if notice else _next_steps(event)
    return {
        "version": "1.0",
        "source": "custom",
        "id": event.event_id,
        "content": {
            "textType": "client-markdown",
            "title": f"{drill}{_TITLE_SIGNS.get(event.kind, '')}{event.kind}: {event.subject}",
            "description": alert_text(notice) if notice else event.text[:MAX_ALERT_CHARACTERS],
            "nextSteps": steps,
            "keywords": [fleet, event.subject],
        },
        "metadata": {
            "threadId": event.subject,
            "summary": f"{drill}{event.text}"[:200],
            "eventType": event.kind,
            "relatedResources": [value for value in (event.data.get("instanceId"),) if value],
            "additionalContext": {"fleet": fleet, "eventId": event.event_id, "subject": event.subject},
        },
    }


_TITLE_SIGNS = {
    OutboundKind.INCIDENT_NEEDS_PERSON: ":rotating_light: ",
    OutboundKind.BUDGET_NEAR_END: ":warning: ",
    OutboundKind.BUDGET_RUNS_OUT: ":warning: ",
}


def _next_steps(event: OutboundEvent) -> list[str]:
    if event.subject.startswith("inc-"):
        return [f"Run `evenkeel incidents show {event.subject}`"]
    if event.kind in (OutboundKind.BUDGET_NEAR_END, OutboundKind.BUDGET_RUNS_OUT):
        return [f"Run `evenkeel teams show {event.team}`"]
    return ["Run `evenkeel automation show`"]
