"""Record that a guardrail blocks an action of an incident, and page a person about a shared cause."""

from datetime import datetime, timedelta

from evenkeel.domain.decisions import Decision
from evenkeel.domain.health.incidents import Block, Incident, IncidentState
from evenkeel.domain.outbound import notices
from evenkeel.domain.recovery.guardrails import (
    GuardrailAction,
    GuardrailName,
    GuardrailVerdict,
)
from evenkeel.domain.values import rfc3339
from evenkeel.ports import Ledger, Put, Row, Write
from evenkeel.services.context import Context
from evenkeel.services.storage import incident_store
from evenkeel.services.storage.retries import commit_if_unchanged
from evenkeel.services.tables import fleet_rows, rows, subject_rows

_ALERT_TIMEOUT = timedelta(minutes=2)
"""After this time another recovery sends an alert that was started but not recorded as sent."""


def set_block(
    incident: Incident,
    action: GuardrailAction,
    verdict: GuardrailVerdict,
    context: Context,
    *,
    writer: str,
    decision_record: Decision | None = None,
) -> None:
    """Show the guardrail with the incident and its node, and add one timeline entry for each rule that blocks it.

    Args:
        incident: The incident.
        action: The blocked action.
        verdict: The verdict of the guardrails.
        decision_record: The decision, recorded with the entry.
        writer: The service that writes the entry.

    Idempotent: yes. A guardrail has one entry for each action; its reason stays current.
    """

    def with_block(current: Incident) -> tuple[Incident, list[Write]] | None:
        earlier_block = current.block
        is_same = earlier_block is not None and (earlier_block.guardrail, earlier_block.action) == (
            verdict.guardrail,
            action,
        )
        if current.state.is_settled or (is_same and earlier_block and earlier_block.reason == verdict.reason):
            return None
        since = earlier_block.since if is_same and earlier_block else context.now
        block = Block(
            guardrail=verdict.guardrail,
            reason=verdict.reason,
            since=since,
            action=action,
            clears_at=verdict.clears_at,
            cause=verdict.cause,
        )
        blocked_incident = current.replace(state=IncidentState.BLOCKED, block=block)
        if is_same:
            return blocked_incident, []
        text = f"The {action} waits: {verdict.reason}"
        kind = "held" if verdict.guardrail == GuardrailName.HOLD else "blocked"
        decision_id = decision_record.decision_id if decision_record else ""
        line = incident_store.timeline_put(
            current.incident_id, kind, text, at=context.now, writer=writer, decision_id=decision_id
        )
        return blocked_incident, [line, *([Put(subject_rows.decision_row(decision_record))] if decision_record else [])]

    earlier_block = incident.block
    incident_store.update_incident(context.ledger, incident.incident_id, with_block)
    if earlier_block is None or earlier_block.guardrail != verdict.guardrail:
        context.telemetry.count("ActionsBlocked", guardrail=verdict.guardrail)
        context.telemetry.info("ActionBlocked", guardrail=verdict.guardrail, act=action, reason=verdict.reason)


def clear_block(incident: Incident, ledger: Ledger) -> None:
    """Remove the block from an incident whose next step needs no permission.

    Idempotent: yes, an incident without a block stays unchanged.
    """

    def with_block(current: Incident) -> tuple[Incident, list[Write]] | None:
        return None if current.block is None else (current.without_block(), [])

    if incident.block is not None:
        incident_store.update_incident(ledger, incident.incident_id, with_block)


def alert_about_shared_cause(
    verdict: GuardrailVerdict, context: Context, *, incident: Incident, window: timedelta
) -> None:
    """Alert people once about a shared cause, however many nodes it blocks and whichever service sees it first.

    While one of the nodes that were faulty at the alert still is, the cause stays the same. The row is written, then
    the alert is sent, then the row records that. After a failure in between, a retry of the same recovery sends the
    alert at once, and another recovery after `_ALERT_TIMEOUT`. Two alerts are better than none. Idempotent: yes, by the
    row of the cause.
    """
    is_drill = incident.is_drill
    key = fleet_rows.cause_key(verdict.cause, is_drill=is_drill)
    row = context.ledger.get(key)
    until = max(verdict.clears_at or context.now, context.now) + window
    was = row.doc if row else {}
    wave_begun_at = datetime.fromisoformat(str(was["claimedAt"])) if row else None
    is_same_wave = wave_begun_at is not None and (verdict.since or context.now) <= wave_begun_at
    begun_at = wave_begun_at if is_same_wave else None
    is_paged = is_same_wave and was["isPaged"]
    carried_over = was if is_same_wave else {}
    doc = {
        **carried_over,
        "claimedAt": rfc3339(begun_at or context.now),
        "until": rfc3339(until),
        "isPaged": bool(is_paged),
    }
    expires_at = until + rows.KEPT
    is_own_alert = was.get("claimedBy") == incident.incident_id
    if begun_at is not None and (is_paged or (not is_own_alert and context.now - begun_at < _ALERT_TIMEOUT)):
        if is_paged and until - datetime.fromisoformat(str(was["until"])) > window:
            commit_if_unchanged(context.ledger, Put(Row(key, doc, row.version if row else 0, None, expires_at)))
        return
    sender = {"claimedAt": rfc3339(context.now), "claimedBy": incident.incident_id}
    begun_row = Row(key, doc | sender, row.version if row else 0, None, expires_at)
    if not commit_if_unchanged(context.ledger, Put(begun_row)):
        return  # another run recorded it first, and sends the alert
    kind, _, name = verdict.cause.partition("/")
    notice = notices.Notice(
        what=verdict.reason,
        affects="the jobs on these nodes.",
        actions=f"repairs of these nodes wait. Look at the {kind}.",
        until=f"{verdict.clears_at:%H:%M}Z at the earliest." if verdict.clears_at else "the cause is over.",
        command="evenkeel incidents ls --state BLOCKED",
        runbook="shared-cause",
    )
    drill, of_drills = ("[drill] ", "drill-") if is_drill else ("", "")
    subject = f"{drill}Several nodes of {kind} {name} failed at once"
    context.on_call.alert(subject, notices.alert_text(notice), key=f"{of_drills}shared-cause-{verdict.cause}")
    context.telemetry.error("SharedCause", cause=verdict.cause, reason=verdict.reason, runbook="shared-cause")
    paged_row = Row(key, begun_row.doc | {"isPaged": True}, begun_row.version + 1, None, begun_row.expires_at)
    commit_if_unchanged(context.ledger, Put(paged_row))
