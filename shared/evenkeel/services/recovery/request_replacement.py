"""A person requests the replacement of a node. The request is reported as a fault, and a normal recovery follows.

A dry run uses the same report and the same services, and keeps only the decision.
"""

import hashlib
import json
from datetime import datetime
from typing import Any

from evenkeel.domain.decisions import Decision
from evenkeel.domain.health.incidents import NodeFact
from evenkeel.domain.health.reports import FaultReport, ReporterRole
from evenkeel.domain.values import Value
from evenkeel.events import envelope, reported_faults
from evenkeel.events.outcomes import ParsedEvent
from evenkeel.ports import Invalid, NotFound, Put
from evenkeel.services.context import Context
from evenkeel.services.incidents import record_node_fact, recovery_step, report_faults
from evenkeel.services.incidents.find_affected_node import find_affected_node
from evenkeel.services.recovery import plan_recovery
from evenkeel.services.storage import incident_store
from evenkeel.services.storage.dry_run import DryRunLedger, NullTelemetry, NullWorkflows
from evenkeel.services.storage.retries import commit_if_unchanged
from evenkeel.services.tables import rows, subject_rows

Json = dict[str, Any]

ASKED_FOR = "person:replace"
"""Key of the fault that stands for a person's request."""


class ReplacementRequest(Value):
    """A request: the node, the fault and the person."""

    instance_id: str
    code: str
    """The fault of the node, if it is known. It decides how work is drained and how far checkpoints are trusted."""
    reason: str
    dry_run: bool
    caller: str
    """The operator, with the session."""
    request_id: str
    fingerprint: str


def run(request: ReplacementRequest, context: Context) -> tuple[Json, str]:
    """Report the request. In a dry run, plan and record the decision. Return the answer and where to find the result.

    Idempotent: yes, as `report_faults.run`. A dry run is recorded once for each result, and changes nothing else.

    Raises:
        Invalid: the catalogue has no such code.
        NotFound: the fleet has no such node.
    """
    if request.code and not reported_faults.named_faults(request.code, ""):
        raise Invalid("the code is unknown", (("code", report_faults.unknown_code(request.code)),))
    now = context.clock.now()
    report = _fault_report(request, now)
    if not request.dry_run:
        answer = report_faults.run(report, context.replace(now=now))
        return {"instanceId": request.instance_id, "envelopeId": answer["envelopeId"]}, "/v1/incidents"
    parsed_event = envelope.parse(
        json.dumps(report_faults.check_reports(report, context.replace(now=now)).document).encode()
    )
    affected_node = find_affected_node(request.instance_id, context, asks_provider=False)
    if not isinstance(parsed_event, ParsedEvent) or affected_node is None:
        raise NotFound(f"{request.instance_id} is not a node of this fleet.")
    dry_run_ledger = DryRunLedger(context.ledger)
    dry_run = context.replace(ledger=dry_run_ledger, telemetry=NullTelemetry(), workflows=NullWorkflows(), now=now)
    for fact in parsed_event.facts:
        assert isinstance(fact, NodeFact)
        ingest_result = record_node_fact.run(
            fact,
            affected_node,
            dry_run,
        )
    if not ingest_result.incident_id:
        return _answer(
            request, affected_node.job_ids, None, "NOTHING", ingest_result.reason
        ), f"/v1/nodes/{request.instance_id}"
    incident, _ = incident_store.load_incident(dry_run_ledger, ingest_result.incident_id)
    result = plan_recovery.run(
        recovery_step.RecoveryStepRequest(
            incident_id=incident.incident_id, run=incident.run + (incident.plan is not None)
        ),
        dry_run,
    )
    row = dry_run_ledger.get(subject_rows.decision_key(result.decision_id))
    assert row, "a plan is recorded"
    plan_record = rows.decode(row, Decision)
    decision_record = plan_record.replace(
        decision_id=_dry_run_id(request, result.outcome, plan_record), subject=affected_node.life.key, is_dry_run=True
    )
    commit_if_unchanged(context.ledger, Put(subject_rows.decision_row(decision_record)))
    return _answer(
        request, affected_node.job_ids, decision_record, result.outcome, result.reason
    ), f"/v1/decisions/{decision_record.decision_id}"


def _dry_run_id(request: ReplacementRequest, outcome: str, decision_record: Decision) -> str:
    """Return the id of a dry run: a repeated request with the same result is the same decision."""
    text = json.dumps(
        [request.request_id, request.fingerprint, outcome, decision_record.action, decision_record.reason]
    )
    return f"dec-{hashlib.sha256(text.encode()).hexdigest()[:20]}"


def _fault_report(request: ReplacementRequest, now: datetime) -> report_faults.ReportFaultsRequest:
    codes = dict.fromkeys((ASKED_FOR, request.code) if request.code else (ASKED_FOR,))
    return report_faults.ReportFaultsRequest(
        reports=tuple(
            FaultReport(instance_id=request.instance_id, code=code, detail=request.reason, observed_at=now)
            for code in codes
        ),
        caller=request.caller,
        reporter_role=ReporterRole.OPERATOR,
        request_id=request.request_id,
        fingerprint=request.fingerprint,
    )


def _answer(
    request: ReplacementRequest, jobs: tuple[str, ...], decision_record: Decision | None, outcome: str, reason: str
) -> Json:
    return {
        "instanceId": request.instance_id,
        "dryRun": True,
        "outcome": outcome,
        "reason": reason,
        "alternatives": [alternative.to_json() for alternative in decision_record.alternatives]
        if decision_record
        else [],
        "decisionId": decision_record.decision_id if decision_record else None,
        "jobs": list(jobs),
    }
