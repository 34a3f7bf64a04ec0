"""Apply a changed policy to recorded decisions, and report the decisions that differ."""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from evenkeel.domain import replay
from evenkeel.domain.decisions import Decision
from evenkeel.domain.health.incidents import Incident, IncidentState
from evenkeel.domain.jobs.job import JobState
from evenkeel.domain.policy import Policy, PolicyError, changed
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.recovery.modes import most_cautious_mode
from evenkeel.domain.values import rfc3339
from evenkeel.ports import Invalid, Ledger, Table, Unreadable
from evenkeel.services.storage import pagination
from evenkeel.services.storage.facts_of_decisions import with_facts
from evenkeel.services.tables import rows

Json = dict[str, Any]

LOOKBACK = timedelta(days=7)
_MAX_INCIDENTS = 100
"""Maximum number of incidents, newest first. More would take longer than a request may."""
_MAX_JOBS = 100
"""Maximum number of admissions, newest first."""
_MAX_DECISIONS = 50
"""Maximum number of decisions for each incident or job, newest first."""
AS_RECORDED = (
    "For admissions, recorded quotas, nodes, limits and budgets apply. Only the number of spare nodes is tried "
    "again, and each decision is tried alone."
)


def run(
    changes: Mapping[str, Any],
    *,
    ledger: Ledger,
    base: Policy,
    current: Policy,
    stack_mode: Mode,
    since: datetime | None,
    now: datetime,
) -> Json:
    """Decide recorded repairs and admissions again, and change nothing.

    If the mode of an incident differs under the changes, its decisions are made again in the new mode.

    Raises:
        Invalid: the changes cannot be used; names each field.
    """
    try:
        policy = changed(base, changes)
    except PolicyError as error:
        raise Invalid("The policy changes are not valid.", (("changes", str(error)),)) from error
    since = since or now - LOOKBACK
    unreadable_incidents: list[Unreadable] = []
    incidents = list(islice(_incidents_since(ledger, since, unreadable_incidents), _MAX_INCIDENTS + 1))
    jobs = pagination.page_newest_first(
        ledger, Table.JOBS, [f"JOB#{state}" for state in JobState], pagination.PageRequest(_MAX_JOBS)
    )
    modes = {
        incident.incident_id: mode
        for incident in incidents[:_MAX_INCIDENTS]
        if (mode := _mode_of_incident(incident, policy, stack_mode))
        is not _mode_of_incident(incident, current, stack_mode)
    }
    subjects = [incident.incident_id for incident in incidents[:_MAX_INCIDENTS]]
    subjects += [str(row.doc["jobId"]) for row in jobs.rows]
    examined_count, unreadable_count, changed_decisions = 0, 0, []
    decision_records = (
        decision_record for subject in subjects for decision_record in _decisions_since(ledger, subject, since)
    )
    for decision_record in with_facts(decision_records, ledger):
        examined_count += 1
        other_mode = modes.get(decision_record.subject)
        try:
            decision = replay.record_in_mode(decision_record, other_mode) if other_mode else decision_record
            replayed = replay.decide_again(decision, policy)
            effect_before, effect_after = (
                replay.effect_of(decision_record, decision_record.action),
                replay.effect_of(decision, replayed.action),
            )
        except ValueError:  # this release cannot read the record
            unreadable_count += 1
            continue
        if (replayed.action, effect_after) != (decision_record.action, effect_before):
            changed_decisions.append(
                _changed_decision(decision_record, decision, replayed, effect_before, effect_after)
            )
    return {
        "policyHash": policy.hash,
        "since": rfc3339(since),
        "examined": examined_count,
        "cannot": unreadable_count,
        "changed": changed_decisions,
        "isLowerBound": len(incidents) > _MAX_INCIDENTS or bool(jobs.next_token),
        "unreadableIncidents": len(unreadable_incidents),
        "asRecorded": AS_RECORDED,
    }


def _incidents_since(ledger: Ledger, since: datetime, unreadable: list[Unreadable]) -> Iterator[Incident]:
    """Yield the incidents that were opened since a time, the newest first. Add unreadable ones to `unreadable`."""
    token = ""
    while True:
        page = pagination.page_newest_first(
            ledger, Table.INCIDENTS, [f"INC#{state}" for state in IncidentState], pagination.PageRequest(100, token)
        )
        for _, incident in rows.readable_rows(page.rows, Incident, unreadable.append):
            if incident.opened_at < since:
                return
            yield incident
        token = page.next_token
        if not token:
            return


def _decisions_since(ledger: Ledger, subject: str, since: datetime) -> list[Decision]:
    page = ledger.by_state(Table.INCIDENTS, f"DEC#{subject}", limit=_MAX_DECISIONS, newest_first=True)
    decisions = (rows.decode(row, Decision) for row in page.rows)
    # Decisions about an incident follow its opening, but a job may have waited for weeks.
    return [decision for decision in decisions if subject.startswith("inc-") or decision.decided_at >= since]


def _mode_of_incident(incident: Incident, policy: Policy, stack_mode: Mode) -> Mode:
    fault_class = policy.catalogue.look_up(incident.fault_key).fault_class
    return most_cautious_mode(stack_mode, policy.modes, fault_class, incident.pool)


def _changed_decision(
    decision_record: Decision, tested_record: Decision, replayed: replay.Replayed, effect_before: str, effect_after: str
) -> Json:
    return {
        "decisionId": decision_record.decision_id,
        "kind": decision_record.kind,
        "subject": decision_record.subject,
        "decidedAt": rfc3339(decision_record.decided_at),
        "before": {"action": effect_before, "reason": decision_record.reason, "mode": decision_record.mode or None},
        "after": {"action": effect_after, "reason": replayed.reason, "mode": tested_record.mode or None},
    }
