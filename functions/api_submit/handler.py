"""Routes of researchers: submit, cancel, suspend and change the priority of jobs."""

from evenkeel.runtime import api, entry, request_bodies, wiring
from evenkeel.services.jobs import cancel_job, set_priority, submit_job, suspend_job
from evenkeel.services.jobs.check_role import Requester
from evenkeel.services.queries.jobs import plan_job_change, plan_unsubmitted_job, read_jobs

app = api.Resolver(lambda: wiring.ports().telemetry)


@app.post("/v1/jobs")
def submit() -> api.Reply:
    context = wiring.context()
    request = submit_job.SubmitJobRequest(
        spec=app.parse_body(request_bodies.JobBody).spec(),
        requester=_requester(),
        idempotency_key=app.idempotency_key(),
    )
    result = submit_job.run(request, context)
    return app.accepted_reply(read_jobs.job_summary(result.job), f"/v1/jobs/{result.job.job_id}")


@app.post("/v1/jobs/plan")
def plan() -> api.Reply:
    context = wiring.context()
    placement = plan_unsubmitted_job.run(app.parse_body(request_bodies.JobBody).spec(), _requester(), context)
    return app.change_reply(placement)


@app.post("/v1/jobs/<job_id>/cancel")
def cancel(job_id: str) -> api.Reply:
    context = wiring.context()
    app.idempotency_key()  # every change requires a key, although the job's state already makes a repeat harmless
    body = app.parse_body(request_bodies.ReasonBody)
    if body.dry_run:
        return _plan_reply("cancel", job_id)
    request = cancel_job.CancelJobRequest(job_id=job_id, requester=_requester(), reason=body.reason)
    result = cancel_job.run(request, context)
    has_changed = result.outcome != cancel_job.CancelOutcome.ALREADY_ENDED
    app.require(has_changed, "JOB_ENDED", str(suspend_job.JobEnded(result.job)))
    return app.accepted_reply(read_jobs.job_summary(result.job), f"/v1/jobs/{job_id}")


@app.post("/v1/jobs/<job_id>/suspend")
def suspend(job_id: str) -> api.Reply:
    context = wiring.context()
    app.idempotency_key()  # required, although a repeat is harmless
    body = app.parse_body(request_bodies.ReasonBody)
    if body.dry_run:
        return _plan_reply("suspend", job_id)
    request = suspend_job.JobChangeRequest(job_id=job_id, requester=_requester(), reason=body.reason)
    job = suspend_job.suspend(request, context)
    return app.accepted_reply(read_jobs.job_summary(job), f"/v1/jobs/{job_id}")


@app.post("/v1/jobs/<job_id>/resume")
def resume(job_id: str) -> api.Reply:
    context = wiring.context()
    app.idempotency_key()  # required, although a repeat is harmless
    body = app.parse_body(request_bodies.ReasonBody)
    if body.dry_run:
        return _plan_reply("resume", job_id)
    request = suspend_job.JobChangeRequest(job_id=job_id, requester=_requester(), reason=body.reason)
    job = suspend_job.resume(request, context)
    return app.accepted_reply(read_jobs.job_summary(job), f"/v1/jobs/{job_id}")


@app.patch("/v1/jobs/<job_id>")
def change_priority(job_id: str) -> api.Reply:
    context = wiring.context()
    body = app.parse_body(request_bodies.PriorityBody)
    if body.dry_run:
        return _plan_reply("priority", job_id, body.priority_class)
    request = set_priority.SetPriorityRequest(
        job_id=job_id,
        priority_class=body.priority_class,
        expected=app.expected_version(),
        requester=_requester(),
        reason=body.reason,
    )
    job = set_priority.run(request, context)
    return app.change_reply(read_jobs.job_summary(job))


def _plan_reply(change: str, job_id: str, priority_class: str = "") -> api.Reply:
    """Answer with the plan of a change."""
    request = plan_job_change.PlanJobChangeRequest.model_validate(
        {"change": change, "job_id": job_id, "requester": _requester(), "priority_class": priority_class}
    )
    return app.change_reply(plan_job_change.run(request, wiring.context()))


def _requester() -> Requester:
    caller = app.caller()
    return Requester(principal=caller.principal, identity=caller.identity, actor=caller.actor)


@entry.api
def handler(event: entry.Json, context: entry.LambdaContext) -> entry.Json:
    return app.handle_request(event, context)
