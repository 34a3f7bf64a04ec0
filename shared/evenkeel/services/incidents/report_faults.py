"""A site's own detector reports faults. They are checked here, and then ingested through the queue like every signal.

    request ─▶ same key? ─▶ check every fault, find every node ─▶ one envelope on the queue ─▶ record the key
               its answer     else 400 or 404, and nothing          receive_event
                              is ingested

After a crash before the last step, the client sends the request again. The id of the envelope follows from the key, so
its facts are recognised as duplicates.
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
from evenkeel.events.driver_lines import NamedFault
from evenkeel.ports import Conflict, Invalid, KeyReused, Ledger, NotFound, Put, Row, Table, every
from evenkeel.services.context import Context
from evenkeel.services.storage import fleet_rows, incident_rows, job_rows, rows, subject_rows
from evenkeel.services.storage.decision_record import decision_of

Json = dict[str, Any]

_MAX_CLOCK_SKEW = timedelta(minutes=5)
"""Clocks differ. A fault further in the future than this is refused."""
_MAX_AGE = timedelta(days=7)
"""Shorter than the time for which a fact is kept, so that a late copy is recognised."""
_HYPERPOD_NAME = re.compile(r"hyperpod-(?P<id>i-[0-9a-f]{8,17})", re.ASCII)


class ReportFaultsRequest(Value):
    """A report of a detector."""

    reports: tuple[FaultReport, ...]
    caller: str
    """The principal that signed, without its session: a detector is one source, whatever its session."""
    reporter_role: ReporterRole = ReporterRole.DETECTOR
    """The route of the report. It decides which faults the report may name."""
    request_id: str
    """Identity of the request. A repeated request changes nothing."""
    fingerprint: str
    """Digest of the whole report. The same id with another digest is refused."""


def run(request: ReportFaultsRequest, context: Context) -> Json:
    """Ingest a report, as a whole or not at all.

    Idempotent: yes, by the request id, and before that by the envelope's id, which follows from it.

    Raises:
        Invalid: a fault cannot be ingested; names each field.
        NotFound: the fleet has no such node.
        KeyReused: the request id was used for another report.
    """
    row = context.ledger.get(fleet_rows.automation_request_key(request.request_id))
    is_in_force = row is not None and (row.expires_at is None or row.expires_at > context.now)
    if row is not None and is_in_force:
        return _first_answer(row, request)
    new = accept_reports(request, context)
    for job_id, facts, blamed in new.laid:
        record = decision_of("ATTRIBUTION", job_id, blamed.instance_id, blamed, facts, context.replace(mode=""))
        context.ledger.commit(Put(subject_rows.decision_row(record)))
    if new.count:
        context.inbox.put(new.document)
    answer: Json = {"accepted": new.count, "ignored": new.ignored_types}
    answer["envelopeId"] = new.document["id"] if new.count else None
    fresh = fleet_rows.automation_request_row(
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
    """A checked report, as it goes on the queue."""

    document: Json
    count: int
    """Number of its faults."""
    ignored_types: int
    """Lines without evidence of a fault."""
    laid: tuple[tuple[str, AttributionFacts, Attribution], ...]
    """Jobs whose faults were attributed to a node."""


def accept_reports(request: ReportFaultsRequest, context: Context) -> AcceptedReports:
    """Check a report and find its nodes. Writes nothing.

    Raises:
        Invalid, NotFound: as `run`.
    """
    read = _checked(request, context.now)
    instance_ids, attributions = _instance_ids(request, context)
    faults = [
        reported_faults.fault_of(
            instance_id,
            reading,
            gpu=report.gpu,
            job_id=report.job_id,
            observed_at=report.observed_at,
            words=report.detail or report.line,
        )
        for report, instance_id, readings in zip(request.reports, instance_ids, read, strict=True)
        for reading in readings
    ]
    document = _enveloped(request, faults, context.now)
    return AcceptedReports(document, len(faults), sum(not readings for readings in read), tuple(attributions))


def _first_answer(row: Row, request: ReportFaultsRequest) -> Json:
    if row.doc["fingerprint"] != request.fingerprint:
        raise KeyReused("This idempotency key was used for a different request. Use a new key.")
    given: Json = row.doc["answer"]
    return given


def _checked(request: ReportFaultsRequest, now: datetime) -> list[tuple[NamedFault, ...]]:
    """Return the faults of a report; none for a line without evidence.

    Raises:
        Invalid: names every wrong field.
    """
    wrong: list[tuple[str, str]] = []
    read: list[tuple[NamedFault, ...]] = []
    for index, report in enumerate(request.reports):
        place = f"faults[{index}]"
        readings = reported_faults.readings(report.code, report.line)
        read.append(tuple(reading for reading in readings if request.reporter_role.may_report(reading.fault_key)))
        if report.code and not readings:
            wrong.append((f"{place}.{report.code_field}", unknown_code(report.code)))
        elif readings and not read[-1]:
            wrong.append((f"{place}.{report.code_field if report.code else 'line'}", _reserved(readings[0].fault_key)))
        if report.observed_at > now + _MAX_CLOCK_SKEW:
            wrong.append((f"{place}.observedAt", "lies in the future"))
        if report.observed_at < now - _MAX_AGE:
            wrong.append((f"{place}.observedAt", f"is older than {_MAX_AGE.days} days"))
    if wrong:
        raise Invalid("the report is not valid", tuple(wrong))
    return read


def unknown_code(code: str) -> str:
    """Say that the catalogue has no such code, and suggest similar codes."""
    near = " or ".join(default_catalogue().nearest(code, 3))
    return f"is not in the fault catalogue (evenkeel faults ls).{f' Did you mean {near}?' if near else ''}"


def _reserved(fault_key: str) -> str:
    allowed = ", ".join(f"{family}:" for family in DETECTOR_FAMILIES)
    return (
        f"names {fault_key}, which a detector may not report. "
        f"Report a fault whose key begins with {allowed}; operators use evenkeel nodes replace"
    )


def _instance_ids(
    request: ReportFaultsRequest, context: Context
) -> tuple[list[str], list[tuple[str, AttributionFacts, Attribution]]]:
    """Return the instance id of each fault, and how the nodes of jobs were found.

    Raises:
        NotFound: names the first node that the fleet table does not hold.
    """
    instance_ids: list[str] = []
    attributions: list[tuple[str, AttributionFacts, Attribution]] = []
    by_name: dict[str, str] | None = None
    for report in request.reports:
        if report.job_id:
            facts, blamed = _attribute(report, context.ledger)
            attributions.append((report.job_id, facts, blamed))
            instance_ids.append(blamed.instance_id)
            continue
        instance_id = report.instance_id or _id_in(report.node_name)
        if not instance_id:
            by_name = _by_name(context.ledger) if by_name is None else by_name
            instance_id = by_name.get(report.node_name, "")
        if not instance_id or not _is_ours(instance_id, context):
            named = report.instance_id or report.node_name
            nodes = (rows.decode(row, FleetNode) for row in context.ledger.by_state(Table.FLEET, "NODE").rows)
            near = (
                (report.instance_id and node.life.instance_id) or node.node_name for node in nodes if not node.is_gone
            )
            message = unknown_name("node", named, near)
            raise NotFound(f"{message} Evenkeel lists a new node within two minutes.")
        instance_ids.append(instance_id)
    return instance_ids, attributions


def _attribute(report: FaultReport, ledger: Ledger) -> tuple[AttributionFacts, Attribution]:
    """Return the node of a fault that was seen in a job.

    Raises:
        NotFound: there is no such job, it does not run, or it has no such rank.
    """
    job = rows.load(ledger, job_rows.job_key(report.job_id), Job, f"job {report.job_id}")
    row = ledger.get(job_rows.attempt_key(job.job_id, job.current_attempt))
    attempt = rows.decode(row, Attempt) if row else None
    if attempt is None or (attempt.ended_at is not None and attempt.ended_at < report.observed_at - LOOK_BACK):
        raise NotFound(f"{report.job_id} was not running at {rfc3339(report.observed_at)}.")
    lately = {life.key: incident for life in attempt.nodes if (incident := _last_incident(life, ledger))}
    facts = facts_of(attempt, report.rank, lately, report.observed_at)
    blamed = attribute_fault(facts)
    if blamed is None:
        raise NotFound(f"{report.job_id} has no rank {report.rank}.")
    return facts, blamed


def _last_incident(life: NodeLife, ledger: Ledger) -> Incident | None:
    """Return the open incident of a node life, else its last settled incident."""
    row = ledger.get(incident_rows.open_key(life)) or ledger.get(incident_rows.last_key(life))
    incident = ledger.get(incident_rows.incident_key(row.doc["incidentId"])) if row else None
    return rows.decode(incident, Incident) if incident else None


def _id_in(node_name: str) -> str:
    match = _HYPERPOD_NAME.fullmatch(node_name)
    return match["id"] if match and INSTANCE_ID.fullmatch(match["id"]) else ""


def _is_ours(instance_id: str, context: Context) -> bool:
    nodes = (context.ledger.get(fleet_rows.node_key(cluster, instance_id)) for cluster in context.site.clusters)
    return any(row is not None and not rows.decode(row, FleetNode).is_gone for row in nodes)


def _by_name(ledger: Ledger) -> dict[str, str]:
    nodes = (
        rows.decode(row, FleetNode) for row in every(lambda cursor: ledger.by_state(Table.FLEET, "NODE", cursor=cursor))
    )
    return {node.node_name: node.life.instance_id for node in nodes if node.node_name and not node.is_gone}


def _enveloped(request: ReportFaultsRequest, faults: list[dict[str, str]], now: datetime) -> Json:
    """Return the envelope that carries a report.

    Raises:
        Invalid: the envelope would be larger than the limit of an event.
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
