"""Routes of operators: hold and release automation, take incidents, answer plans, cordon and replace nodes."""

from typing import Any

from evenkeel.runtime import api, entry, request_bodies, wiring
from evenkeel.services.incidents import acknowledge_incident, approve_recovery, report_faults
from evenkeel.services.queries.incidents import read_incidents
from evenkeel.services.recovery import hold_automation, request_replacement, set_manual_cordon

app = api.Resolver(lambda: wiring.ports().telemetry)


@app.post("/v1/clusters/<cluster>/automation/hold")
def hold(cluster: str) -> api.Reply:
    context = wiring.context()
    app.require_fleet(cluster, context.site.fleet)
    body = app.parse_body(request_bodies.HoldBody)
    now = context.now
    request = hold_automation.HoldRequest(
        by=app.caller().actor,
        reason=body.reason,
        until=body.end(now),
        pool=body.pool,
        instance_id=body.instance_id,
        allows_unknown=body.allow_unknown,
        stops_scheduling=body.stops_scheduling,
        request_id=app.request_id(),
        fingerprint=app.fingerprint(),
    )
    if body.dry_run:
        return app.change_reply(hold_automation.plan_hold(request, context))
    held = hold_automation.set_hold(request, context)
    return app.change_reply(held.to_json())


@app.post("/v1/clusters/<cluster>/automation/release")
def release(cluster: str) -> api.Reply:
    context = wiring.context()
    app.require_fleet(cluster, context.site.fleet)
    body = app.parse_body(request_bodies.ReleaseBody)
    request = hold_automation.ReleaseRequest(
        by=app.caller().actor,
        reason=body.reason,
        cause=body.cause,
        pool=body.pool,
        instance_id=body.instance_id,
        request_id=app.request_id(),
        fingerprint=app.fingerprint(),
    )
    return app.change_reply(hold_automation.release_hold(request, context))


@app.post("/v1/incidents/<incident_id>/approve")
def approve(incident_id: str) -> api.Reply:
    app.idempotency_key()  # the answer itself makes a repeat harmless; a key is asked of every change
    return app.accepted_reply(
        _answered(incident_id, app.parse_body(request_bodies.ApprovalBody), approves=True), _incident(incident_id)
    )


@app.post("/v1/incidents/<incident_id>/decline")
def decline(incident_id: str) -> api.Reply:
    app.idempotency_key()  # required, although a repeat is harmless
    return app.accepted_reply(
        _answered(incident_id, app.parse_body(request_bodies.ApprovalBody), approves=False), _incident(incident_id)
    )


@app.post("/v1/incidents/<incident_id>/acknowledge")
def acknowledge(incident_id: str) -> api.Reply:
    context = wiring.context()
    request = acknowledge_incident.AcknowledgeIncidentRequest(
        incident_id=incident_id,
        by=app.caller().actor,
        reason=app.parse_body(request_bodies.RemarkBody).reason,
        request_id=app.request_id(),
    )
    return app.change_reply(read_incidents.incident_summary(acknowledge_incident.run(request, context), context.now))


@app.post("/v1/nodes/<node_id>/cordon")
def cordon(node_id: str) -> api.Reply:
    body, key = app.parse_body(request_bodies.NodeBody), app.request_id()
    if body.dry_run:
        return app.change_reply(set_manual_cordon.plan_cordon(node_id, wiring.context()))
    request = _mark(node_id, body, key, fingerprint=app.fingerprint())
    context = wiring.context()
    outcome = set_manual_cordon.cordon_as_person(request, context)
    return app.change_reply(outcome.to_json())


@app.post("/v1/nodes/<node_id>/uncordon")
def uncordon(node_id: str) -> api.Reply:
    body, key = app.parse_body(request_bodies.NodeBody), app.request_id()
    if body.dry_run:
        return app.change_reply(set_manual_cordon.plan_uncordon(node_id, wiring.context()))
    request = _mark(node_id, body, key, fingerprint=app.fingerprint())
    context = wiring.context()
    outcome = set_manual_cordon.uncordon_as_person(request, context)
    return app.change_reply(outcome.to_json())


@app.post("/v1/nodes/<node_id>/replace")
def replace(node_id: str) -> api.Reply:
    context = wiring.context()
    body = app.parse_body(request_bodies.ReplaceBody)
    request = request_replacement.ReplacementRequest(
        instance_id=node_id,
        code=body.code,
        reason=body.reason,
        dry_run=body.dry_run,
        caller=app.caller().actor,
        request_id=app.request_id(),
        fingerprint=app.fingerprint(),
    )
    answer, location = request_replacement.run(request, context)
    return app.accepted_reply(answer, location)


def _mark(
    node_id: str, body: request_bodies.NodeBody, request_id: str, *, fingerprint: str
) -> set_manual_cordon.SetManualCordonRequest:
    return set_manual_cordon.SetManualCordonRequest(
        instance_id=node_id,
        by=app.caller().actor,
        reason=body.reason,
        request_id=request_id,
        fingerprint=fingerprint,
    )


def _incident(incident_id: str) -> str:
    return f"/v1/incidents/{incident_id}"


def _answered(incident_id: str, body: request_bodies.ApprovalBody, *, approves: bool) -> dict[str, Any]:
    context = wiring.context()
    request = approve_recovery.ApproveRecoveryRequest(
        incident_id=incident_id,
        decision_id=body.decision_id,
        approves=approves,
        by=app.caller().actor,
        reason=body.reason,
    )
    now = context.now
    incident = approve_recovery.run(request, context)
    return read_incidents.incident_summary(incident, now)


@app.post("/v1/faults")
def report() -> api.Reply:
    context = wiring.context()
    request = report_faults.ReportFaultsRequest(
        reports=app.parse_body(request_bodies.FaultsBody).reports(),
        caller=app.caller().principal,
        request_id=app.request_id(),
        fingerprint=app.fingerprint(),
    )
    answer = report_faults.run(request, context)
    return app.accepted_reply(answer, "/v1/incidents")


@entry.api
def handler(event: entry.Json, context: entry.LambdaContext) -> entry.Json:
    return app.handle_request(event, context)
