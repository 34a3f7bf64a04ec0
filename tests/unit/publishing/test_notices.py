"""Alerts and chat messages: five answers in 500 characters, in the format of Amazon Q Developer."""

from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.domain.health.incidents import AffectedJob
from evenkeel.domain.outbound import notices
from evenkeel.domain.outbound.notices import MAX_ALERT_CHARACTERS, Notice, alert_text
from evenkeel.domain.values import LONGEST_SENTENCE
from evenkeel.services.publishing import publish_events
from tests.unit.api.seeds import an_incident
from tests.unit.publishing.test_publish_events import incident_awaiting_approval, incident_change

AMAZON_Q: dict[str, Any] = {
    "type": "object",
    "required": ["version", "source", "content"],
    "additionalProperties": False,
    "properties": {
        "version": {"const": "1.0"},
        "source": {"const": "custom"},
        "id": {"type": "string"},
        "content": {
            "type": "object",
            "required": ["description"],
            "additionalProperties": False,
            "properties": {
                "textType": {"const": "client-markdown"},
                "title": {"type": "string"},
                "description": {"type": "string", "minLength": 1},
                "nextSteps": {"type": "array", "items": {"type": "string"}},
                "keywords": {"type": "array", "items": {"type": "string"}},
            },
        },
        "metadata": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "threadId": {"type": "string"},
                "summary": {"type": "string"},
                "eventType": {"type": "string"},
                "relatedResources": {"type": "array", "items": {"type": "string"}},
                "additionalContext": {"type": "object", "additionalProperties": {"type": "string"}},
                "enableCustomActions": {"type": "boolean"},
            },
        },
    },
}
"""The fields of https://docs.aws.amazon.com/chatbot/latest/adminguide/custom-notifs.html, and no others."""

TEXT = st.text(max_size=LONGEST_SENTENCE)


@given(st.tuples(TEXT, TEXT, TEXT, TEXT))
def test_alert_is_shortened_to_its_limit_and_keeps_its_command(answers: tuple[str, str, str, str]) -> None:
    text = alert_text(Notice(*answers, command="evenkeel incidents show inc-0000000001", runbook="shared-cause"))

    assert len(text) <= MAX_ALERT_CHARACTERS
    assert text.endswith("Next: evenkeel incidents show inc-0000000001 (runbook shared-cause)")
    assert [line.partition(":")[0] for line in text.split("\n")] == ["What", "Affects", "Doing", "Until", "Next"]


def test_long_part_of_an_alert_does_not_shorten_short_parts() -> None:
    text = alert_text(Notice("x " * 900, "job-1.", "y " * 900, "you act.", "evenkeel status", "r"))

    assert "Affects: job-1.\n" in text
    assert "Until: you act.\n" in text
    assert len(text) > MAX_ALERT_CHARACTERS - 5


@pytest.mark.parametrize("state", ["WAITING_FOR_PERSON", "JOB_NOT_RESUMED", "FAILED"])
def test_alert_about_an_incident_answers_the_five_questions(state: str) -> None:
    jobs = tuple(AffectedJob(job_id=f"job-{number}", attempt=1) for number in range(5))
    incident = an_incident(state=state, repairs=("reboot", "replace"), affected_jobs=jobs, outcome="It did not return.")

    lines = dict(line.split(": ", 1) for line in alert_text(notices.incident_notice(incident)).split("\n"))

    assert incident.node_name in lines["What"]
    assert "xid:79" in lines["What"]
    assert lines["Affects"] == "job-0, job-1, job-2 and 2 more jobs."
    assert lines["Doing"] == "tried: reboot, replace. It did not return."
    assert "act" in lines["Until"]
    assert lines["Next"] == f"evenkeel incidents show {incident.incident_id} (runbook incident-needs-person)"


def test_alert_about_a_pending_approval_names_deadline_and_command() -> None:
    text = alert_text(notices.incident_notice(an_incident(plan=incident_awaiting_approval())))

    assert "Until: 10:45Z, then Evenkeel does nothing" in text
    assert "Next: evenkeel incidents approve inc-0000000001" in text


@pytest.mark.parametrize("is_drill", [False, True])
def test_chat_message_has_the_format_of_amazon_q(is_drill: bool) -> None:
    incident = an_incident(plan=incident_awaiting_approval(), is_drill=is_drill)
    for event in publish_events.derive(incident_change(None, incident), "research"):
        message = notices.chat_message(event, "research", notices.incident_notice(incident))

        jsonschema.validate(message, AMAZON_Q)
        assert message["metadata"]["threadId"] == incident.incident_id, "updates stay in one thread"
        assert message["content"]["title"].startswith("[drill] ") is is_drill
        assert len(message["content"]["description"]) <= MAX_ALERT_CHARACTERS
