"""Receipts for the API: the cost of an incident or a job. They are computed on each read, so late facts change them."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from evenkeel.domain.costs.incident_receipt import IncidentReceipt, incident_receipt
from evenkeel.domain.costs.interruptions import LostTime, interruptions
from evenkeel.domain.costs.job_receipt import JobReceipt, job_receipt
from evenkeel.domain.costs.prices import node_price, part_prices_of, prices_of
from evenkeel.domain.costs.receipt import GpuPrice
from evenkeel.domain.decisions import Decision
from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.plurals import count_of
from evenkeel.ports import Key, Ledger, Table, get_all
from evenkeel.services.context import Context
from evenkeel.services.queries import disclosure
from evenkeel.services.queries.disclosure import Reader
from evenkeel.services.queries.incidents import read_incidents
from evenkeel.services.queries.jobs import read_jobs
from evenkeel.services.storage import pagination
from evenkeel.services.tables import incident_rows, rows, subject_rows

Json = dict[str, Any]

_MAX_DECISIONS = 200
"""Decisions about one incident that a receipt reads."""


def show_job(job_id: str, reader: Reader, context: Context) -> Json:
    """Return the receipt of a job's life. Outside its team, resume points and prices are withheld.

    Raises:
        NotFound: there is no such job.
    """
    job = read_jobs.load_job(context.ledger, job_id)
    return visible_job_receipt(job, reader, context).to_json() | {"isRedacted": not reader.may_see_job(job)}


def visible_job_receipt(job: Job, reader: Reader, context: Context) -> JobReceipt:
    """Return the receipt of a job as the caller may see it."""
    unreadable_keys: set[Key] = set()
    attempts, prices = _visible_attempts(job, context, reader, unreadable_keys)
    part_prices = {}
    if reader.may_see_job(job) and any(attempt.rented_part for attempt in attempts):
        rentals = read_jobs.load_rentals(context.ledger, job.job_id, unreadable_keys)
        part_prices = part_prices_of(attempts, rentals, context.policy.economy)
    incidents, unreadable_count = _incidents_of(job, context.ledger)
    receipt = job_receipt(
        reader.view_of_job(job),
        attempts,
        incidents,
        prices,
        context.now,
        context.policy.jobs.expected_resume_seconds,
        part_prices,
    )
    return receipt.replace(notes=(*receipt.notes, *_unreadable_notes(unreadable_count, unreadable_keys)))


def show_incident(incident_id: str, reader: Reader, context: Context) -> Json:
    """Return the receipt of an incident. Resume points and prices of other teams' jobs are withheld.

    Raises:
        NotFound: there is no such incident.
    """
    incident = read_incidents.load_incident(context.ledger, incident_id)
    may_see_all = reader.may_see_all_of(incident, context.ledger)
    receipt = visible_incident_receipt(incident, reader, context, may_see_all=may_see_all)
    return receipt.to_json() | {"isRedacted": not may_see_all}


def visible_incident_receipt(
    incident: Incident, reader: Reader, context: Context, *, may_see_all: bool
) -> IncidentReceipt:
    """Return the receipt of an incident as the caller may see it."""
    lost_times: list[LostTime] = []
    unreadable_count, unreadable_keys = 0, set[Key]()
    for job in read_incidents.load_affected_jobs(context.ledger, incident).values():
        attempts, prices = _visible_attempts(job, context, reader, unreadable_keys)
        incidents, unreadable_of_job = _incidents_of(job, context.ledger)
        unreadable_count += unreadable_of_job
        attempt_incidents = [*incidents, *_named_by(incident, job.job_id)]
        lost_times += interruptions(reader.view_of_job(job), attempts, attempt_incidents, prices, context.now)
    known_type = context.policy.hardware.find(incident.instance_type)
    decisions = _decisions_about(incident.incident_id, context.ledger) if may_see_all else ()
    receipt = incident_receipt(
        incident,
        lost_times,
        decisions,
        known_type.accelerators if known_type else None,
        node_price(incident, context.policy.economy) if may_see_all else None,
        context.policy.jobs.expected_resume_seconds,
        context.now,
    )
    return receipt.replace(notes=(*receipt.notes, *_unreadable_notes(unreadable_count, unreadable_keys)))


def _unreadable_notes(unreadable_count: int, unreadable_keys: Collection[Key]) -> Iterator[str]:
    if unreadable_count:
        incidents = count_of(unreadable_count, "incident of the job", "incidents of the jobs")
        yield f"{incidents} cannot be read, so losses may have another cause."
    if unreadable_keys:
        records = count_of(len(unreadable_keys), "attempt or rental", "attempts and rentals")
        yield f"{records} cannot be read: the sums are lower bounds."


def _visible_attempts(
    job: Job, context: Context, reader: Reader, unreadable_keys: set[Key]
) -> tuple[tuple[Attempt, ...], Mapping[int, GpuPrice | None]]:
    """Return the attempts and prices that the caller may see. Unreadable rows are added to a set."""
    attempts = read_jobs.load_attempts(context.ledger, job.job_id, unreadable_keys)
    if not reader.may_see_job(job):
        return tuple(map(disclosure.public_attempt, attempts)), {}
    rentals = read_jobs.load_rentals(context.ledger, job.job_id, unreadable_keys) if job.rentals else ()
    return attempts, prices_of(attempts, rentals, context.policy.economy)


def _named_by(incident: Incident, job_id: str) -> Iterable[tuple[int, Incident]]:
    return ((job.attempt, incident) for job in incident.affected_jobs if job.job_id == job_id)


def _incidents_of(job: Job, ledger: Ledger) -> tuple[list[tuple[int, Incident]], int]:
    """Return the incidents after which recoveries planned how a job resumes, with the interrupted attempts.

    Unreadable incidents are left out. The number is their count.
    """
    decision_ids = (str(entry.get("decisionId", "")) for entry in read_jobs.stored_timeline(ledger, job.job_id))
    keys = [subject_rows.decision_key(decision_id) for decision_id in decision_ids if decision_id]
    decisions = [rows.decode(row, Decision) for row in get_all(ledger, keys).values()]
    resumes = [
        decision for decision in decisions if decision.kind == "RESUME" and decision.facts.get("jobId") == job.job_id
    ]
    stored_rows = get_all(ledger, [incident_rows.incident_key(decision.subject) for decision in resumes])
    incidents = {incident.incident_id: incident for _, incident in rows.readable_rows(stored_rows.values(), Incident)}
    pairs = [
        (attempt, incidents[resume.subject])
        for resume in resumes
        if resume.subject in incidents and isinstance(attempt := resume.facts.get("attempt"), int)
    ]
    return pairs, len(stored_rows) - len(incidents)


def _decisions_about(incident_id: str, ledger: Ledger) -> Iterable[Decision]:
    decision_rows, _ = pagination.read_partition(ledger, Table.INCIDENTS, f"DEC#{incident_id}", at_most=_MAX_DECISIONS)
    return [rows.decode(row, Decision) for row in decision_rows]
