"""A site's own detector reports faults: checked here, and then taken in as every other signal is, through the queue.

request ─▶ same key before? ─▶ every fault checked, every machine known ─▶ one envelope on the queue ─▶ the key recorded
             its answer again      else 400, 404, and nothing is taken in       receive_event
                                   whom a job's fault is laid on: recorded

A crash before the last step has the client send again: the envelope's name follows from the key, and what is taken in
twice is known.
"""

import hashlib
import json
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from evenkeel.domain.health.faults import default_catalogue
from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.health.reports import DETECTOR_FAMILIES, FaultReport, ReporterRole
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.names import unknown_name
from evenkeel.domain.nodes import INSTANCE_ID, FleetNode, NodeLife
from evenkeel.domain.recovery.attribution import LOOK_BACK, Attribution, AttributionFacts, attribute_fault, facts_of
from evenkeel.domain.values import Value, rfc3339
from evenkeel.events import envelope, reported_faults
from evenkeel.events.driver_lines import Reading
from evenkeel.ports import Conflict, Invalid, KeyReused, Ledger, NotFound, Put, Row, Table, every
from evenkeel.services.context import Context
from evenkeel.services.storage import rows
from evenkeel.services.storage.decision_record import decision_of

Json = dict[str, Any]

_MAX_CLOCK_SKEW = timedelta(minutes=5)
"""Clocks differ; a fault further ahead than this has not happened."""
_MAX_AGE = timedelta(days=7)
"""Well inside the time for which a fact is remembered, so that a late copy is known for one."""
_HYPERPOD_NAME = re.compile(r"hyperpod-(?P<id>i-[0-9a-f]{8,17})", re.ASCII)


class Request(Value):
    """What a detector reports at once."""

    reports: tuple[FaultReport, ...]
    caller: str
    """Who signed. A detector without its session: it is one witness, whatever its session."""
    reporter_role: ReporterRole = ReporterRole.DETECTOR
    """By which route it came: decides which faults it may name."""
    request_id: str
    """Identity of the request: a repeat of it changes nothing."""
    fingerprint: str
    """Of all that was reported: the same id with another one is refused."""


def run(request: Request, context: Context) -> Json:
    """Take in a report; all of it or nothing.

    Idempotent: yes, by the request id, and before that by the envelope's id, which follows from it.

    Raises:
        Invalid: a fault cannot be taken in; names each field.
        NotFound: a machine is none of this fleet's.
        KeyReused: the request id was used for something else.
    """
    row = context.ledger.get(rows.automation_request_key(request.request_id))
    is_in_force = row is not None and (row.expires_at is None or row.expires_at > context.now)
    if row is not None and is_in_force:
        return _first_answer(row, request)
    new = accept_reports(request, context)
    for job_id, facts, blamed in new.laid:
        record = decision_of("BLAME", job_id, blamed.instance_id, blamed, facts, context.but(mode=""))
        context.ledger.commit(Put(rows.decision_row(record)))
    if new.count:
        context.inbox.put(new.document)
    answer: Json = {"accepted": new.count, "passedOver": new.passed_over}
    answer["envelopeId"] = new.document["id"] if new.count else None
    fresh = rows.automation_request_row(
        request.request_id, {"fingerprint": request.fingerprint, "answer": answer}, context.now
    )
    try:
        context.ledger.commit(Put(Row(fresh.key, fresh.doc, row.version if row else 0, None, fresh.expires_at)))
    except Conflict:
        first = context.ledger.get(fresh.key)
        return _first_answer(first, request) if first else answer
    return answer


@dataclass(frozen=True, slots=True)
class AcceptedReports:
    """A report as it goes on the queue."""

    document: Json
    count: int
    """Faults in it."""
    passed_over: int
    """Reports without evidence of any."""
    laid: tuple[tuple[str, AttributionFacts, Attribution], ...]
    """The jobs whose faults were laid on a machine."""


def accept_reports(request: Request, context: Context) -> AcceptedReports:
    """Check a report and find its machines. Nothing is written.

    Raises:
        Invalid, NotFound: as `run`.
    """
    read = _checked(request, context.now)
    machines, laid = _machines(request, context)
    faults = [
        reported_faults.fault_of(
            machine,
            reading,
            gpu=report.gpu,
            job_id=report.job_id,
            observed_at=report.observed_at,
            words=report.detail or report.line,
        )
        for report, machine, readings in zip(request.reports, machines, read, strict=True)
        for reading in readings
    ]
    document = _enveloped(request, faults, context.now)
    return AcceptedReports(document, len(faults), sum(not readings for readings in read), tuple(laid))


def _first_answer(row: Row, request: Request) -> Json:
    if row.doc["fingerprint"] != request.fingerprint:
        raise KeyReused("This idempotency key was used for a different request. Use a new key.")
    given: Json = row.doc["answer"]
    return given


def _checked(request: Request, now: datetime) -> list[tuple[Reading, ...]]:
    """Return what each report says; none for a line without evidence.

    Raises:
        Invalid: names every field that is wrong.
    """
    wrong: list[tuple[str, str]] = []
    read: list[tuple[Reading, ...]] = []
    for index, report in enumerate(request.reports):
        place = f"faults[{index}]"
        found = reported_faults.readings(report.code, report.line)
        read.append(tuple(each for each in found if request.reporter_role.may_report(each.fault_key)))
        if report.code and not found:
            wrong.append((f"{place}.{report.code_field}", unknown_code(report.code)))
        elif found and not read[-1]:
            wrong.append((f"{place}.{report.code_field if report.code else 'line'}", _reserved(found[0].fault_key)))
        if report.observed_at > now + _MAX_CLOCK_SKEW:
            wrong.append((f"{place}.observedAt", "lies in the future"))
        if report.observed_at < now - _MAX_AGE:
            wrong.append((f"{place}.observedAt", f"is older than {_MAX_AGE.days} days"))
    if wrong:
        raise Invalid("the report is not valid", tuple(wrong))
    return read


def unknown_code(code: str) -> str:
    """Say that a code is none of the catalogue, and which are near."""
    near = " or ".join(default_catalogue().nearest(code, 3))
    return f"is not in the fault catalogue (evenkeel faults ls).{f' Did you mean {near}?' if near else ''}"


def _reserved(fault_key: str) -> str:
    allowed = ", ".join(f"{family}:" for family in DETECTOR_FAMILIES)
    return (
        f"names {fault_key}, which a detector may not report. "
        f"Report a fault whose key begins with {allowed}; operators use evenkeel nodes replace"
    )


def _machines(request: Request, context: Context) -> tuple[list[str], list[tuple[str, AttributionFacts, Attribution]]]:
    """Return the instance id behind each report, and how those of jobs were found.

    Raises:
        NotFound: names the first machine that the fleet's memory does not hold.
    """
    found: list[str] = []
    laid: list[tuple[str, AttributionFacts, Attribution]] = []
    by_name: dict[str, str] | None = None
    for report in request.reports:
        if report.job_id:
            facts, blamed = _attribute(report, context.ledger)
            laid.append((report.job_id, facts, blamed))
            found.append(blamed.instance_id)
            continue
        instance_id = report.instance_id or _id_in(report.node_name)
        if not instance_id:
            by_name = _by_name(context.ledger) if by_name is None else by_name
            instance_id = by_name.get(report.node_name, "")
        if not instance_id or not _is_ours(instance_id, context):
            named = report.instance_id or report.node_name
            nodes = (rows.read(row, FleetNode) for row in context.ledger.by_state(Table.FLEET, "NODE").rows)
            near = (
                (report.instance_id and node.life.instance_id) or node.node_name for node in nodes if not node.is_gone
            )
            message = unknown_name("machine", named, near)
            raise NotFound(f"{message} Evenkeel lists a new node within two minutes.")
        found.append(instance_id)
    return found, laid


def _attribute(report: FaultReport, ledger: Ledger) -> tuple[AttributionFacts, Attribution]:
    """Return the machine that a fault seen in a job is laid on.

    Raises:
        NotFound: there is no such job, it runs nowhere, or it has no such rank.
    """
    job = rows.load(ledger, rows.job_key(report.job_id), Job, f"job {report.job_id}")
    row = ledger.get(rows.attempt_key(job.job_id, job.current_attempt))
    attempt = rows.read(row, Attempt) if row else None
    if attempt is None or (attempt.ended_at is not None and attempt.ended_at < report.observed_at - LOOK_BACK):
        raise NotFound(f"{report.job_id} was not running at {rfc3339(report.observed_at)}.")
    lately = {life.key: incident for life in attempt.nodes if (incident := _last_incident(life, ledger))}
    facts = facts_of(attempt, report.rank, lately, report.observed_at)
    blamed = attribute_fault(facts)
    if blamed is None:
        raise NotFound(f"{report.job_id} has no rank {report.rank}.")
    return facts, blamed


def _last_incident(life: NodeLife, ledger: Ledger) -> Incident | None:
    """Return the open incident of a life, else the last one that was settled."""
    row = ledger.get(rows.open_key(life)) or ledger.get(rows.last_key(life))
    found = ledger.get(rows.incident_key(row.doc["incidentId"])) if row else None
    return rows.read(found, Incident) if found else None


def _id_in(node_name: str) -> str:
    match = _HYPERPOD_NAME.fullmatch(node_name)
    return match["id"] if match and INSTANCE_ID.fullmatch(match["id"]) else ""


def _is_ours(instance_id: str, context: Context) -> bool:
    found = (context.ledger.get(rows.node_key(cluster, instance_id)) for cluster in context.site.clusters)
    return any(row is not None and not rows.read(row, FleetNode).is_gone for row in found)


def _by_name(ledger: Ledger) -> dict[str, str]:
    nodes = (
        rows.read(row, FleetNode) for row in every(lambda cursor: ledger.by_state(Table.FLEET, "NODE", cursor=cursor))
    )
    return {node.node_name: node.life.instance_id for node in nodes if node.node_name and not node.is_gone}


def _enveloped(request: Request, faults: list[dict[str, str]], now: datetime) -> Json:
    """Return the envelope that carries a report.

    Raises:
        Invalid: it would be larger than what is read of an event.
    """
    document = {
        "id": f"report-{hashlib.sha256(request.request_id.encode()).hexdigest()[:32]}",
        "source": reported_faults.SOURCE,
        "detail-type": reported_faults.DETAIL_TYPE,
        "time": rfc3339(now),
        "detail": reported_faults.detail_of(request.caller, request.reporter_role, faults),
    }
    size = len(json.dumps(document, ensure_ascii=False).encode())
    if size > envelope.LARGEST_BYTES:
        raise Invalid("the report is too large", (("faults", "are too large: report fewer faults, or shorten detail"),))
    return document
