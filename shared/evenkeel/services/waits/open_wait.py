"""States Await… of the workflows: record a wait, then evaluate it once, because its condition may hold already."""

from datetime import datetime, timedelta
from typing import Any

from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.recovery.repair_policy import RepairPolicy
from evenkeel.domain.recovery.repair_requests import RepairRequest, reports_of_owner, request_deadline
from evenkeel.domain.recovery.validation import CheckKind, margin_seconds
from evenkeel.domain.renting.rental import Rental
from evenkeel.domain.values import Value, milliseconds, rfc3339
from evenkeel.domain.waiting import ConditionKind, Wait, WaitCondition, wait_name
from evenkeel.ports import Put, Refused, Row
from evenkeel.services.attempts import record_nodes
from evenkeel.services.context import Context
from evenkeel.services.recovery.slot_reader import SlotReader
from evenkeel.services.storage import attempt_store, incident_store
from evenkeel.services.storage.retries import until_committed
from evenkeel.services.tables import job_rows, rows, subject_rows
from evenkeel.services.waits import evaluate_waits

_RELEASE_CHECK_INTERVAL = timedelta(days=8)
"""Longer than the longest hold. Blocked incidents continue in order; this timeout is only a safety net."""
_MIN_WAIT = timedelta(seconds=1)
_KUEUE_WAIT_SECONDS = 30_000_000
"""Seconds, most of a year: just below the timeout of the state. A job may wait in its queue without limit."""


class OpenWaitRequest(Value):
    """The wait of a state, with the task token that ends it."""

    schema_version: int = 1
    kind: ConditionKind
    token: str
    incident_id: str = ""
    run: int = 0
    job_id: str = ""
    attempt: int = 0
    rental: int = 0

    @property
    def subject(self) -> str:
        """The incident or job that waits."""
        return self.incident_id or self.job_id


class OpenWaitResult(Value):
    """The opened wait. The output of the state is the answer, not this."""

    reason: str
    generation: int


def run(request: OpenWaitRequest, context: Context) -> OpenWaitResult:
    """Write the wait's row, then evaluate it once, unless it waits for permission.

    A retried state overwrites the row with its new token and a higher generation, so that answers to the older one no
    longer match. Generations increase with time, also across rows.

    Idempotent: yes, a repeated call opens the next generation of the same wait.

    Raises:
        Refused: neither an incident nor a job is named.
    """
    if not request.subject:
        raise Refused("a wait needs an incidentId or a jobId")
    if request.kind is ConditionKind.ATTEMPT_ENDED:
        # The attempt runs. If Kueue chose its nodes, record them now: a fault of a node finds its jobs by them.
        record_nodes.run(request.job_id, request.attempt, context)
    facts, deadline = _facts_and_deadline(request, context)
    name = wait_name(request.kind, request.attempt or request.rental)

    def commit_once() -> tuple[Wait, Row]:
        row = context.ledger.get(subject_rows.wait_key(request.subject, name))
        last_generation = rows.decode(row, Wait).generation if row else 0
        wait = Wait(
            subject=request.subject,
            name=name,
            generation=max(last_generation + 1, milliseconds(context.now)),
            token=request.token,
            opened_at=context.now,
            deadline_at=max(deadline, context.now + _MIN_WAIT),
            condition=WaitCondition(kind=request.kind, facts=facts),
        )
        # A caller with an answer to an older generation must not match this one.
        fresh = Put(subject_rows.wait_row(wait, row.version if row else 0), first_version=wait.generation)
        context.ledger.commit(fresh)
        return wait, subject_rows.wait_row(wait, fresh.version)

    message = f"wait {name} of {request.subject} changed on every try"
    wait, wait_row = until_committed(commit_once, message, tries=incident_store.MAX_TRIES)
    if request.kind is ConditionKind.RELEASED:
        # The guardrails were checked a moment ago, and each check reads all blocked incidents. The watch does it once
        # for all.
        return OpenWaitResult(reason="The wait is queued.", generation=wait.generation)
    outcome = evaluate_waits.evaluate_one(wait, wait_row, context)
    reason = f"Already true: {outcome}." if outcome else f"Waits until {rfc3339(wait.deadline_at)} at most."
    return OpenWaitResult(reason=reason, generation=wait.generation)


def _facts_and_deadline(request: OpenWaitRequest, context: Context) -> tuple[dict[str, Any], datetime]:
    """Return the facts that the evaluation needs, and the deadline from the policy."""
    jobs = context.policy.jobs
    seconds = {
        ConditionKind.ATTEMPT_ADMITTED: _KUEUE_WAIT_SECONDS,
        ConditionKind.ATTEMPT_RUNNING: jobs.running_deadline_seconds,
        ConditionKind.ATTEMPT_ENDED: jobs.run_deadline_seconds,
        ConditionKind.ATTEMPT_STOPPED: jobs.stop_deadline_seconds,
    }
    if request.rental:
        return _rental_facts_and_deadline(request, context)
    if request.job_id:
        start = context.now
        if request.kind is ConditionKind.ATTEMPT_ENDED:
            # A failed workflow opens this wait again. The attempt keeps its deadline.
            attempt = attempt_store.load_attempt(context.ledger, request.job_id, request.attempt).attempt
            start = attempt.running_at or context.now
        return {"attempt": request.attempt}, start + timedelta(seconds=seconds[request.kind])
    if request.kind is ConditionKind.RELEASED:
        return {}, context.now + _RELEASE_CHECK_INTERVAL
    if request.kind is ConditionKind.APPROVED:
        plan = incident_store.load_incident(context.ledger, request.incident_id)[0].plan
        latest_deadline = context.now + timedelta(seconds=context.policy.repair.approval_deadline_seconds)
        return {}, plan.answer_by if plan and plan.answer_by else latest_deadline
    incident, _ = incident_store.load_incident(context.ledger, request.incident_id)
    if request.kind is ConditionKind.JOBS_RESUMED:
        return {}, incident.opened_at + timedelta(seconds=jobs.resume_deadline_seconds)
    if request.kind is ConditionKind.REPAIR_POSSIBLE:
        until = context.now + timedelta(seconds=context.policy.repair.repair_possible_deadline_seconds)
        work_until = incident.plan.work_may_run_until if incident.plan else None
        return _slot_facts(incident, None), min(until, work_until) if work_until and work_until > context.now else until
    repair_requests = incident_store.repair_requests(context.ledger, incident)
    last_repair_request = repair_requests[-1] if repair_requests else None
    facts = _slot_facts(incident, last_repair_request)
    if request.kind is ConditionKind.NODE_VALID:
        # The deadline includes the longest margin: a node with recurring faults must be healthy for longer.
        margin = margin_seconds(context.policy.repair.lemon_returns, context.policy.repair)
        return facts, context.now + timedelta(seconds=_check_seconds(incident, context.policy.repair) + margin)
    if last_repair_request is None:
        return facts, context.now + timedelta(seconds=context.policy.repair.replace_deadline_seconds)
    slot_state = SlotReader(incident, context).read_state(last_repair_request.requested_at)
    reports = reports_of_owner(repair_requests, incident.progress)
    return facts, request_deadline(last_repair_request, context.policy.repair, slot_state, reports)


def _rental_facts_and_deadline(request: OpenWaitRequest, context: Context) -> tuple[dict[str, Any], datetime]:
    """Return the facts of a rental's waits. Its nodes have a deadline; its end has only the timeout of the run."""
    rental = rows.load(
        context.ledger,
        job_rows.rental_key(request.job_id, request.rental),
        Rental,
        f"rental {request.rental} of {request.job_id}",
    )
    latest_deadline = context.now + timedelta(seconds=context.policy.jobs.run_deadline_seconds)
    return {
        "rental": request.rental
    }, rental.ready_by if request.kind is ConditionKind.RENTAL_READY else latest_deadline


def _check_seconds(incident: Incident, policy: RepairPolicy) -> int:
    kind = incident.check.kind if incident.check else CheckKind.BASIC
    longer = {
        CheckKind.DEEP: policy.deep_check_deadline_seconds,
        CheckKind.TEST_JOB: policy.test_job_deadline_seconds,
    }
    return max(policy.validation_deadline_seconds, longer.get(CheckKind(kind), 0))


def _slot_facts(incident: Incident, request: RepairRequest | None) -> dict[str, Any]:
    return {
        "life": incident.life.key,
        "slot": incident.slot,
        "pool": incident.pool,
        "since": rfc3339(request.requested_at if request else incident.opened_at),
        "rung": request.rung if request else "",
        "bootId": request.boot_id if request else "",
        "owner": incident.plan.owner if incident.plan else "",
    }
