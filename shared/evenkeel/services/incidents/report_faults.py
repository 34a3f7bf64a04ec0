"""A site's own detector reports faults. They are checked here, and then ingested through the queue like every signal.

    request ─▶ same key? ─▶ check every fault, find every node ─▶ store answer ─▶ put envelope ─▶ remove envelope
                 │ yes        else 400 or 404, and nothing        and envelope    on the queue    from the row
                 │            is ingested                                         receive_event
                 └─▶ put the envelope again if the row still has it, and return the stored answer

After a crash, the client sends the request again. If the row is stored, nothing is checked again: the node may be
replaced by then. The id of the envelope follows from the key, so the facts of a copy are recognised as duplicates.
"""

import hashlib
import json
import re
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from evenkeel.domain.health.faults import default_catalogue
from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.health.reports import DETECTOR_FAMILIES, FaultReport, ReporterRole
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.name_suggestions import unknown_name
from evenkeel.domain.nodes import INSTANCE_ID, FleetNode, NodeLife
from evenkeel.domain.recovery.attribution import (
    LOOK_BACK,
    Attribution,
    AttributionFacts,
    attribute_fault,
    attribution_facts,
)
from evenkeel.domain.values import Value, rfc3339
from evenkeel.events import envelope, reported_faults
from evenkeel.events.driver_lines import NamedFault
from evenkeel.ports import Invalid, KeyReused, Ledger, NotFound, Put, Row, Table, every
from evenkeel.services.context import Context
from evenkeel.services.storage.decision_record import decision_of
from evenkeel.services.storage.retries import commit_if_unchanged, until_committed
from evenkeel.services.tables import fleet_rows, incident_rows, job_rows, rows, subject_rows

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

    Idempotent: yes, by the request's row, which is stored before the envelope is put on the queue. An envelope that
    is put twice has the same id.

    Raises:
        Invalid: a fault cannot be ingested; names each field.
        NotFound: the fleet has no such node.
        KeyReused: the request id was used for another report.
    """
    row = until_committed(
        lambda: _accept(request, context), f"the row of request {request.request_id} kept changing", tries=3
    )
    if row.doc["fingerprint"] != request.fingerprint:
        raise KeyReused("This idempotency key was used for a different request. Use a new key.")
    pending_envelope = row.doc.get("pendingEnvelope")  # rows of older releases lack the field
    if pending_envelope:
        context.inbox.put(pending_envelope)
        sent_doc = {**row.doc, "pendingEnvelope": None}
        # If another request with this key was faster, it sent the same envelope.
        commit_if_unchanged(context.ledger, Put(replace(row, doc=sent_doc)))
    answer: Json = row.doc["answer"]
    return answer


def _accept(request: ReportFaultsRequest, context: Context) -> Row:
    """Return the row of the request. If there is none in force, check the reports, and store the row.

    The row has room for the largest envelope: `envelope.LARGEST_BYTES` is a third of `ports.LARGEST_ROW`.

    Raises:
        Conflict: another request with the same key was first.
    """
    earlier_row = context.ledger.get(fleet_rows.automation_request_key(request.request_id))
    if earlier_row and (earlier_row.expires_at is None or earlier_row.expires_at > context.now):
        return earlier_row
    checked_reports = check_reports(request, context)
    for index, (job_id, facts, attribution) in enumerate(checked_reports.attributions):
        decision_record = decision_of(
            "ATTRIBUTION",
            job_id,
            attribution.instance_id,
            attribution,
            facts,
            context.replace(mode=""),
            decision_id=_attribution_id(request, index, facts),
        )
        commit_if_unchanged(context.ledger, Put(subject_rows.decision_row(decision_record)))
    pending_envelope = checked_reports.document if checked_reports.count else None
    answer: Json = {
        "accepted": checked_reports.count,
        "ignored": checked_reports.ignored_lines,
        "envelopeId": pending_envelope["id"] if pending_envelope else None,
    }
    document = {"fingerprint": request.fingerprint, "answer": answer, "pendingEnvelope": pending_envelope}
    row = fleet_rows.automation_request_row(request.request_id, document, context.now)
    put = Put(replace(row, version=earlier_row.version if earlier_row else 0))
    context.ledger.commit(put)
    return replace(row, version=put.version)


def _attribution_id(request: ReportFaultsRequest, index: int, facts: AttributionFacts) -> str:
    """Return the id of an attribution: a repeat by equal facts is the same decision, and is recorded once."""
    text = json.dumps([request.request_id, index, facts.to_json()], sort_keys=True)
    return f"dec-{hashlib.sha256(text.encode()).hexdigest()[:20]}"


@dataclass(frozen=True, slots=True)
class CheckedReports:
    """The checked reports of a request, as they are sent to the queue."""

    document: Json
    count: int
    """Number of their faults."""
    ignored_lines: int
    """Lines without evidence of a fault."""
    attributions: tuple[tuple[str, AttributionFacts, Attribution], ...]
    """Jobs whose faults were attributed to a node."""


def check_reports(request: ReportFaultsRequest, context: Context) -> CheckedReports:
    """Check the reports of a request and find their nodes. Writes nothing.

    Raises:
        Invalid, NotFound: as `run`.
    """
    faults_by_report = _named_faults(request, context.now)
    instance_ids, attributions = _find_instance_ids(request, context)
    faults = [
        reported_faults.report_entry(
            instance_id,
            named_fault,
            gpu=report.gpu,
            job_id=report.job_id,
            observed_at=report.observed_at,
            detail=report.detail or report.line,
        )
        for report, instance_id, named_faults in zip(request.reports, instance_ids, faults_by_report, strict=True)
        for named_fault in named_faults
    ]
    document = _to_envelope(request, faults, context.now)
    ignored_lines = sum(not named_faults for named_faults in faults_by_report)
    return CheckedReports(document, len(faults), ignored_lines, tuple(attributions))


def _named_faults(request: ReportFaultsRequest, now: datetime) -> list[tuple[NamedFault, ...]]:
    """Return the faults that each report names; none for a line without evidence.

    Raises:
        Invalid: names every errors field.
    """
    errors: list[tuple[str, str]] = []
    faults_by_report: list[tuple[NamedFault, ...]] = []
    for index, report in enumerate(request.reports):
        field = f"faults[{index}]"
        named_faults = reported_faults.named_faults(report.code, report.line)
        allowed_faults = tuple(fault for fault in named_faults if request.reporter_role.may_report(fault.fault_key))
        faults_by_report.append(allowed_faults)
        if report.code and not named_faults:
            errors.append((f"{field}.{report.code_field}", unknown_code(report.code)))
        elif named_faults and not allowed_faults:
            code_field = report.code_field if report.code else "line"
            errors.append((f"{field}.{code_field}", _reserved_key_error(named_faults[0].fault_key)))
        if report.observed_at > now + _MAX_CLOCK_SKEW:
            errors.append((f"{field}.observedAt", "lies in the future"))
        if report.observed_at < now - _MAX_AGE:
            errors.append((f"{field}.observedAt", f"is older than {_MAX_AGE.days} days"))
    if errors:
        raise Invalid("the report is not valid", tuple(errors))
    return faults_by_report


def unknown_code(code: str) -> str:
    """Say that the catalogue has no such code, and suggest similar codes."""
    similar_codes = " or ".join(default_catalogue().nearest_keys(code, 3))
    advice = f" Did you mean {similar_codes}?" if similar_codes else ""
    return f"is not in the fault catalogue (evenkeel faults ls).{advice}"


def _reserved_key_error(fault_key: str) -> str:
    allowed_prefixes = ", ".join(f"{family}:" for family in DETECTOR_FAMILIES)
    return (
        f"names {fault_key}, which a detector may not report. "
        f"Report a fault whose key begins with {allowed_prefixes}; operators use evenkeel nodes replace"
    )


def _find_instance_ids(
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
            facts, attribution = _attribute_fault(report, context.ledger)
            attributions.append((report.job_id, facts, attribution))
            instance_ids.append(attribution.instance_id)
            continue
        instance_id = report.instance_id or _instance_id_in(report.node_name)
        if not instance_id:
            by_name = _instance_ids_by_name(context.ledger) if by_name is None else by_name
            instance_id = by_name.get(report.node_name, "")
        if not instance_id or not _is_own_node(instance_id, context):
            stated_name = report.instance_id or report.node_name
            nodes = rows.readable_rows(context.ledger.by_state(Table.FLEET, "NODE").rows, FleetNode)
            similar_names = (
                (report.instance_id and node.life.instance_id) or node.node_name
                for _, node in nodes
                if not node.is_gone
            )
            message = unknown_name("node", stated_name, similar_names)
            raise NotFound(f"{message} Evenkeel lists a new node within two minutes.")
        instance_ids.append(instance_id)
    return instance_ids, attributions


def _attribute_fault(report: FaultReport, ledger: Ledger) -> tuple[AttributionFacts, Attribution]:
    """Return the node of a fault that was seen in a job.

    Raises:
        NotFound: there is no such job, it does not run, or it has no such rank.
    """
    job = rows.load(ledger, job_rows.job_key(report.job_id), Job, f"job {report.job_id}")
    row = ledger.get(job_rows.attempt_key(job.job_id, job.current_attempt))
    attempt = rows.decode(row, Attempt) if row else None
    if attempt is None or (attempt.ended_at is not None and attempt.ended_at < report.observed_at - LOOK_BACK):
        raise NotFound(f"{report.job_id} was not running at {rfc3339(report.observed_at)}.")
    recent_incidents = {life.key: incident for life in attempt.nodes if (incident := _last_incident(life, ledger))}
    facts = attribution_facts(attempt, report.rank, recent_incidents, report.observed_at)
    attribution = attribute_fault(facts)
    if attribution is None:
        raise NotFound(f"{report.job_id} has no rank {report.rank}.")
    return facts, attribution


def _last_incident(life: NodeLife, ledger: Ledger) -> Incident | None:
    """Return the open incident of a node life, else its last settled incident."""
    row = ledger.get(incident_rows.open_key(life)) or ledger.get(incident_rows.last_key(life))
    incident = ledger.get(incident_rows.incident_key(row.doc["incidentId"])) if row else None
    return rows.decode(incident, Incident) if incident else None


def _instance_id_in(node_name: str) -> str:
    match = _HYPERPOD_NAME.fullmatch(node_name)
    return match["id"] if match and INSTANCE_ID.fullmatch(match["id"]) else ""


def _is_own_node(instance_id: str, context: Context) -> bool:
    """Whether the fleet has a node that is not gone. A node whose row this release cannot read counts as present."""
    node_rows = (context.ledger.get(fleet_rows.node_key(cluster, instance_id)) for cluster in context.site.clusters)
    stored_rows = [row for row in node_rows if row is not None]
    gone_count = sum(node.is_gone for _, node in rows.readable_rows(stored_rows, FleetNode))
    return gone_count < len(stored_rows)


def _instance_ids_by_name(ledger: Ledger) -> dict[str, str]:
    node_rows = every(lambda cursor: ledger.by_state(Table.FLEET, "NODE", cursor=cursor))
    nodes = (node for _, node in rows.readable_rows(node_rows, FleetNode))
    return {node.node_name: node.life.instance_id for node in nodes if node.node_name and not node.is_gone}


def _to_envelope(request: ReportFaultsRequest, faults: list[dict[str, str]], now: datetime) -> Json:
    """Return the envelope that carries a report.

    Raises:
        Invalid: the envelope would be larger than the limit of an event.
    """
    document = {
        "id": f"report-{hashlib.sha256(request.request_id.encode()).hexdigest()[:32]}",
        "source": reported_faults.SOURCE,
        "detail-type": reported_faults.DETAIL_TYPE,
        "time": rfc3339(now),
        "detail": reported_faults.report_detail(request.caller, request.reporter_role, faults),
    }
    size = len(json.dumps(document, ensure_ascii=False).encode())
    if size > envelope.LARGEST_BYTES:
        raise Invalid("the report is too large", (("faults", "are too large: report fewer faults, or shorten detail"),))
    return document
