"""The decisions about the fleet, or about one job or incident, in pages, newest first."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from evenkeel.domain.decisions import Decision
from evenkeel.domain.health.incidents import Incident
from evenkeel.ports import Ledger, Row, Table, get_all
from evenkeel.services.context import Context
from evenkeel.services.queries.disclosure import Reader
from evenkeel.services.queries.incidents import read_incidents
from evenkeel.services.queries.jobs import read_jobs
from evenkeel.services.queries.records import explain
from evenkeel.services.storage import pagination
from evenkeel.services.tables import incident_rows, rows, subject_rows

Json = dict[str, Any]


class DecisionFilter(NamedTuple):
    """The requested decisions."""

    subject: str = ""
    """Id of a job or an incident; empty = the whole fleet."""
    kinds: Sequence[str] = ()
    """Empty = all."""

    def is_match(self, row: Row) -> bool:
        """Whether a decision's row matches, apart from its subject."""
        return not self.kinds or row.doc["kind"] in self.kinds


def list_decisions(filters: DecisionFilter, page: pagination.PageRequest, reader: Reader, context: Context) -> Json:
    """Return one page of the decisions about the fleet, a job or an incident, newest first.

    A caller outside a job's team gets the public part of each decision about it, and `isRedacted` is set.

    The list of the fleet has the decisions of the last 90 days. A decision joins it seconds after its record.

    Raises:
        NotFound: there is no such job or incident.
        BadPageToken: this list did not issue the token.
    """
    if not filters.subject:
        return _list_fleet(filters, page, reader, context)
    may_see_all = _may_see_all(filters.subject, reader, context)
    decisions, token = _read_page([f"DEC#{filters.subject}"], filters, page, context)
    shown = [read_incidents.disclosed_decision(decision, may_see_all) for decision in decisions]
    return _list_document(shown, token, is_redacted=not may_see_all) | {"subject": filters.subject}


def _list_fleet(filters: DecisionFilter, page: pagination.PageRequest, reader: Reader, context: Context) -> Json:
    months = tuple(subject_rows.listed_decision_months(context.now))
    decisions, token = _read_page(months, filters, page, context, list_name="DECIDED")
    hidden_subjects = _hidden_subjects({decision.subject for decision in decisions}, reader, context.ledger)
    shown = [
        read_incidents.disclosed_decision(decision, decision.subject not in hidden_subjects) for decision in decisions
    ]
    return _list_document(shown, token, is_redacted=shown != decisions) | {
        "subject": None,
        "keptDays": subject_rows.DECISIONS_LISTED.days,
    }


def _read_page(
    partitions: Sequence[str],
    filters: DecisionFilter,
    page: pagination.PageRequest,
    context: Context,
    *,
    list_name: str = "",
) -> tuple[list[Decision], str]:
    keep = filters.is_match if filters.kinds else None
    answer = pagination.page_newest_first(context.ledger, Table.INCIDENTS, partitions, page, keep, list_name=list_name)
    return [decision for _, decision in rows.readable_rows(answer.rows, Decision)], answer.next_token


def _list_document(decisions: Sequence[Decision], token: str, *, is_redacted: bool) -> Json:
    items = [explain.short_decision(decision) | {"subject": decision.subject} for decision in decisions]
    return {"items": items, "isRedacted": is_redacted, "nextPageToken": token or None}


def _may_see_all(subject: str, reader: Reader, context: Context) -> bool:
    if subject.startswith("inc-"):
        return reader.may_see_all_of(read_incidents.load_incident(context.ledger, subject), context.ledger)
    return reader.may_see_job(read_jobs.load_job(context.ledger, subject))


def _hidden_subjects(subjects: set[str], reader: Reader, ledger: Ledger) -> set[str]:
    """Return the subjects that the caller may not read whole. Reads all of them in two batches."""
    if reader.may_see_every_team:
        return set()
    about_incidents = {subject for subject in subjects if subject.startswith("inc-")}
    stored_rows = get_all(ledger, map(incident_rows.incident_key, about_incidents)).values()
    incidents = {incident.incident_id: incident for _, incident in rows.readable_rows(stored_rows, Incident)}
    jobs = read_incidents.load_jobs(
        ledger,
        (subjects - about_incidents)
        | {affected_job.job_id for incident in incidents.values() for affected_job in incident.affected_jobs},
    )

    def may_see_job(job_id: str) -> bool:
        return job_id in jobs and reader.may_see_job(jobs[job_id])

    def may_see(subject: str) -> bool:
        if subject not in about_incidents:
            return may_see_job(subject)
        incident = incidents.get(subject)
        return incident is not None and all(may_see_job(affected_job.job_id) for affected_job in incident.affected_jobs)

    return {subject for subject in subjects if not may_see(subject)}
