"""Explain a job or an incident: one sentence, the alternatives, and the next step."""

from datetime import datetime
from typing import Any

from evenkeel.domain.admission.admitting_changes import admitting_changes
from evenkeel.domain.admission.decide_job import AdmissionAction, AdmissionFacts
from evenkeel.domain.decisions import OMITTED, Alternative, Decision
from evenkeel.domain.health.faults import default_catalogue
from evenkeel.domain.health.incidents import Incident, IncidentState
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.job import Job, JobState, StopRequest
from evenkeel.domain.plurals import count_of
from evenkeel.domain.queue_simulation.admitting_change import AdmittingChange
from evenkeel.domain.recovery.approval import awaits_approval
from evenkeel.domain.values import rfc3339
from evenkeel.domain.waiting import Wait
from evenkeel.ports import Ledger, Table
from evenkeel.services.context import Context
from evenkeel.services.queries import disclosure
from evenkeel.services.queries.disclosure import Reader
from evenkeel.services.queries.incidents import read_guardrails, read_incidents
from evenkeel.services.queries.jobs import read_jobs, read_queue
from evenkeel.services.storage.facts_of_decisions import with_facts
from evenkeel.services.tables import rows, subject_rows

Json = dict[str, Any]

_MAX_BLOCKING_JOBS = 3
"""Length of the chain of blocking jobs that is followed."""


def why_job(job_id: str, reader: Reader, context: Context) -> Json:
    """Explain a job: why it waits, why it runs on its nodes, why it was moved or how it ended.

    Raises:
        NotFound: there is no such job.
    """
    stored_job = read_jobs.load_job(context.ledger, job_id)
    may_see_all = reader.may_see_job(stored_job)
    job = reader.view_of_job(stored_job)
    attempts = read_jobs.load_attempts(context.ledger, job_id, set())
    latest_attempt = attempts[-1] if attempts and may_see_all else None
    decisions = _latest_decisions(context.ledger, job_id)
    if not may_see_all:
        decisions = [decision for decision in decisions if decision.kind in disclosure.QUEUE_KINDS]
    # The decision that the job itself names comes first: its resume plan, then its admission.
    plan_decision_id = job.resume_plan.decision_id if job.resume_plan else ""
    admission_decision_id = latest_attempt.decision_id if latest_attempt else ""
    resize_request = job.live_resize()
    resize_decision_id = resize_request.decision_id if resize_request else ""
    head: Decision | None = None
    kueue_wait = read_queue.waits_with_kueue(job, context.ledger)
    if job.state is JobState.PENDING:
        if job.live_plan():
            decisions = _put_first(context.ledger, plan_decision_id, decisions)
        head = _why_pending(decisions, plan_decision_id, attempts[-1] if attempts else None)
        decisions = [decision for decision in decisions if decision != head]
    else:
        for decision_id in (
            (admission_decision_id, resize_decision_id, plan_decision_id)
            if job.live_plan()
            else (plan_decision_id, admission_decision_id, resize_decision_id)
        ):
            decisions = _put_first(context.ledger, decision_id, decisions)
        if kueue_wait is not None and latest_attempt is not None:
            decisions = _burst_check_first(decisions, latest_attempt)
        head, decisions = (decisions[0], decisions[1:]) if decisions else (None, [])
    changes = _smallest_changes(context.ledger, head) if head and job.state is JobState.PENDING else []
    return {
        "subject": job_id,
        "kind": "job",
        "cluster": latest_attempt.cluster if latest_attempt else job.cluster,
        "state": job.state,
        "sentence": _job_sentence(job, latest_attempt, context.now, kueue_wait) + _deadline_text(job, context.now),
        "decision": short_decision(head) if head else None,
        "considered": _considered_options(head) if head else [],
        "changes": changes,
        "changesUnknown": None if changes else _why_changes_unknown(job, head, kueue_wait, latest_attempt),
        "earlier": [short_decision(decision) for decision in decisions],
        "next": _next_command_for_job(job) if may_see_all else None,
        "isRedacted": not may_see_all,
        "evidence": {
            "execution": latest_attempt.workload_name if latest_attempt else None,
            "resumedFrom": latest_attempt.resume_from.to_json()
            if latest_attempt and latest_attempt.resume_from
            else None,
            "rejectedCheckpoints": list(latest_attempt.rejected_checkpoints) if latest_attempt else [],
            "incident": job.resume_plan.incident_id if job.resume_plan else None,
        },
    }


def why_incident(incident_id: str, reader: Reader, context: Context) -> Json:
    """Explain an incident: the evidence, the decision and the next step.

    Raises:
        NotFound: there is no such incident.
    """
    incident = read_incidents.load_incident(context.ledger, incident_id)
    may_see_all = reader.may_see_all_of(incident, context.ledger)
    every_decision = _latest_decisions(context.ledger, incident_id)
    decisions = [decision for decision in every_decision if may_see_all or decision.kind in disclosure.NODE_KINDS]
    jobs = read_incidents.load_affected_jobs(context.ledger, incident)
    return {
        "subject": incident_id,
        "kind": "incident",
        "state": incident.state,
        "sentence": _incident_sentence(incident, context.now),
        "decision": short_decision(decisions[0]) if decisions else None,
        "considered": _considered_options(decisions[0]) if decisions else [],
        "guardrails": read_guardrails.show_readings(incident, decisions, context),
        "earlier": [
            short_decision(decision) | {"considered": _considered_options(decision)} for decision in decisions[1:]
        ],
        "next": _next_command_for_incident(
            incident, needs=read_incidents.needs_person(incident, jobs.values(), None, context.now)
        ),
        "isRedacted": len(decisions) < len(every_decision),
        "evidence": {
            "execution": incident.execution_name,
            "signals": incident.evidence_count,
            "unmanagedWorkloads": list(incident.unmanaged_workloads),
        },
    }


def _job_sentence(job: Job, latest_attempt: Attempt | None, now: datetime, kueue_wait: Wait | None = None) -> str:
    """Say in one sentence what the job does now, and why."""
    reason = _as_sentence(job.reason)
    where = f"attempt {job.current_attempt}"
    stop = _stop_request(job)
    match job.state:
        case JobState.PENDING:
            since = _duration_since(job.submitted_at, now)
            begin = f"The job waits to resume after {where}." if job.current_attempt else f"The job has waited {since}."
            return f"{begin} {reason or 'No scheduling cycle has examined it yet.'}"
        case JobState.STARTING | JobState.RUNNING if stop is not None:
            request_text = f"Requested {_duration_since(stop.requested_at, now)} ago by {_requester_text(stop)}."
            return f"The job is stopping, {where}. {_as_sentence(stop.reason)} {request_text} {_after_stop(job, stop)}"
        case JobState.STARTING if kueue_wait is not None:
            return f"The job waits for Kueue to admit it, {where}. {_as_sentence(kueue_wait.kueue_status)}"
        case JobState.STARTING:
            return f"The job is starting, {where}. {reason}".strip()
        case JobState.RUNNING:
            point = latest_attempt.resume_from if latest_attempt else None
            resume_text = f", resumed from step {point.step} of attempt {point.attempt}" if point else ""
            return f"The job runs, {where}{resume_text}. {reason} {_mixed_text(job)}".strip()
        case JobState.STOPPING:
            return f"The job is stopping and will be cancelled. {reason}".strip()
        case JobState.SUSPENDED:
            return f"The job is suspended. {reason}".strip()
        case JobState.SUCCEEDED:
            return f"The job succeeded in {where}. {reason}".strip()
        case JobState.FAILED:
            return f"The job failed in {where}. {reason}".strip()
        case JobState.CANCELLED:
            return f"The job was cancelled. {reason}".strip()


def _mixed_text(job: Job) -> str:
    """Return the nodes of a mixed job, or why no rented nodes join its base; empty for any other job."""
    if job.rented_nodes:
        committed_text = count_of(job.committed_size, "committed node")
        return f"It runs on {committed_text} and {count_of(job.rented_nodes, 'rented node')}."
    return _as_sentence(job.mixed_note.text) if job.mixed_note else ""


def _stop_request(job: Job) -> StopRequest | None:
    """Return the stop request of the job's present attempt, until that has stopped."""
    is_at_work = job.state in (JobState.STARTING, JobState.RUNNING)
    return job.stop_of(job.current_attempt) if is_at_work else None


def _requester_text(stop: StopRequest) -> str:
    kind, _, asker = stop.by.partition("/")
    if kind in ("cancel", "suspend"):
        return asker
    return f"the recovery of {asker}" if kind == "recover_node" else f"Evenkeel ({kind.replace('_', ' ')})"


def _after_stop(job: Job, stop: StopRequest) -> str:
    """Return the next step after the attempt has stopped."""
    begin = "After the stop"
    if job.is_suspended:
        return f"{begin} it stays suspended until a person resumes it."
    if stop.is_final:
        return f"{begin} it is FAILED, because another attempt would fail too."
    resize_request = job.live_resize()
    point = (
        "resumes from its last checkpoint"
        if job.spec.checkpoint_uri
        else "starts from the beginning, because it has no checkpoint"
    )
    if resize_request is not None and resize_request.after_attempt == stop.attempt:
        return f"{begin} it starts on {count_of(resize_request.nodes, 'node')} and {point}."
    if stop.counts_as_failure:
        return f"{begin} it uses one restart; if one is left, it waits for capacity and {point}."
    return f"{begin} it waits for capacity and {point}."


def _deadline_text(job: Job, now: datetime) -> str:
    deadline_at = job.spec.deadline_at
    if deadline_at is None or deadline_at > now or job.state.has_ended:
        return ""
    return f" Its deadline passed {_duration_since(deadline_at, now)} ago."


def _incident_sentence(incident: Incident, now: datetime) -> str:
    fault = default_catalogue().look_up(incident.fault_key)
    begin = f"{incident.node_name or incident.life.instance_id} showed {fault.name} ({incident.fault_key})."
    match incident.state:
        case IncidentState.OPEN:
            return f"{begin} Its recovery begins."
        case IncidentState.RECOVERING if incident.plan and read_incidents.is_waiting(incident):
            return f"{begin} {_as_sentence(incident.plan.reason)}"
        case IncidentState.RECOVERING:
            lane = read_incidents.node_lane(incident)
            phase = _PHASE_TEXT.get(lane["phase"], lane["phase"])
            return f"{begin} Recovery has run for {_duration_since(incident.opened_at, now)}; the node {phase}."
        case IncidentState.BLOCKED:
            why = incident.block.reason if incident.block else ""
            act = f"the {incident.block.action}" if incident.block and incident.block.action else "the next step"
            return f"{begin} T{act[1:]} waits: {_as_sentence(why)}".strip()
        case _:
            return f"{begin} {_as_sentence(incident.outcome)}".strip()


_PHASE_TEXT = {
    "detected": "is waiting for its plan",
    "planned": "is waiting for its cordon",
    "cordoned": "is cordoned",
    "rebooting": "is being rebooted",
    "replacing": "is being replaced",
    "repairing": "is being repaired",
    "validating": "is being validated",
    "returning to service": "returns to service",
    "returned to service": "is back in service",
    "left in service": "stays in service, because the jobs caused the fault",
}
"""The phases of the node branch, as a part of a sentence."""


def _next_command_for_job(job: Job) -> str | None:
    if _stop_request(job) is not None:
        return f"evenkeel jobs {'resume' if job.is_suspended else 'wait'} {job.job_id}"
    match job.state:
        case JobState.PENDING | JobState.STARTING | JobState.STOPPING:
            return f"evenkeel jobs wait {job.job_id}"
        case JobState.RUNNING | JobState.FAILED:
            return f"evenkeel jobs logs {job.job_id}"
        case JobState.SUSPENDED:
            return f"evenkeel jobs resume {job.job_id}"
        case JobState.SUCCEEDED | JobState.CANCELLED:
            return None


def _next_command_for_incident(incident: Incident, *, needs: bool) -> str | None:
    if awaits_approval(incident):
        return f"evenkeel incidents approve {incident.incident_id}"
    if not incident.state.is_settled or needs:
        return f"evenkeel incidents timeline {incident.incident_id}"
    return None


def _latest_decisions(ledger: Ledger, subject: str) -> list[Decision]:
    """Return the latest decisions, newest first. Decisions about grace periods come last, because they are a detail."""
    page = ledger.by_state(Table.INCIDENTS, f"DEC#{subject}", limit=10, newest_first=True)
    return sorted((rows.decode(row, Decision) for row in page.rows), key=lambda decision: decision.kind == "DRAIN")


def _why_pending(
    decision_records: list[Decision], plan_decision_id: str, latest_attempt: Attempt | None
) -> Decision | None:
    """Return the newest decision that says why a job is pending now; None if there is none since then.

    An admission belongs to the attempt that it started, and so does every decision before it.
    """
    decisions = [
        decision
        for decision in decision_records
        if decision.decision_id == plan_decision_id
        or (
            decision.kind in ("ADMISSION", "PLACEMENT", "RESIZE")
            and decision.action != AdmissionAction.ADMIT
            and (latest_attempt is None or decision.decided_at > latest_attempt.admitted_at)
        )
    ]
    # The reason of the wait also names pools to rent from, and belongs to the same cycle.
    return max(decisions, key=lambda decision: (decision.kind != "PLACEMENT", decision.decided_at), default=None)


def _burst_check_first(decisions: list[Decision], latest_attempt: Attempt) -> list[Decision]:
    """Put the newest answer to Kueue's burst check first, if Evenkeel gave one for the latest attempt."""
    answers = [
        decision
        for decision in decisions
        if decision.kind == "BURST_CHECK" and decision.decided_at >= latest_attempt.admitted_at
    ]
    newest_answer = max(answers, key=lambda decision: decision.decided_at, default=None)
    return (
        [newest_answer, *(decision for decision in decisions if decision != newest_answer)]
        if newest_answer
        else decisions
    )


def _put_first(ledger: Ledger, decision_id: str, decisions: list[Decision]) -> list[Decision]:
    """Put the decision that the subject itself names before other decisions about it."""
    row = ledger.get(subject_rows.decision_key(decision_id)) if decision_id else None
    if row is None:
        return decisions
    named_decision = rows.decode(row, Decision)
    return [named_decision, *(decision for decision in decisions if decision.decision_id != decision_id)]


_ACTIONS_THAT_QUOTA_MAY_CHANGE = (AdmissionAction.NO_QUOTA, AdmissionAction.SAME_SHAPE, AdmissionAction.BLOCKED)
"""Results of an admission that a change of quota or of an earlier job flips."""


def _smallest_changes(ledger: Ledger, decision: Decision) -> list[Json]:
    """Return the smallest changes that would flip the result. If another job blocks the job, return its changes.

    None are known if the record has no facts, because they were too large or cannot be read.
    """
    for _ in range(_MAX_BLOCKING_JOBS):
        if decision.kind != "ADMISSION" or decision.action not in tuple(AdmissionAction):
            break  # another release may have recorded the action
        (decision,) = with_facts((decision,), ledger)
        if OMITTED in decision.facts or "request" not in decision.facts:
            break
        facts = AdmissionFacts.model_validate(decision.facts, extra="allow")
        if decision.action not in _ACTIONS_THAT_QUOTA_MAY_CHANGE:
            return [_change_document(change) for change in admitting_changes(AdmissionAction(decision.action), facts)]
        if facts.quota is not None:
            from evenkeel.domain.quotas.quota_replay import smallest_changes

            changes = smallest_changes(facts.quota, facts.now.timestamp())
            return [_change_document(change) for change in changes]
        decisions = _latest_decisions(ledger, facts.blocked_by) if facts.blocked_by else []
        if not decisions:
            break
        decision = decisions[0]
    return []


def _why_changes_unknown(
    job: Job, decision: Decision | None, kueue_wait: Wait | None, latest_attempt: Attempt | None
) -> str | None:
    """Return why it is unknown which change would start a waiting job; None if the job does not wait."""
    if kueue_wait is not None:
        name = f"{latest_attempt.namespace}/{latest_attempt.workload_name}" if latest_attempt else "JOB"
        return (
            "Kueue decides, and Evenkeel does not read the quotas of its queues. With your own rights, write Kueue's "
            "objects to files (docs/operate/plan.md#a-job-that-waits-in-kueue). `evenkeel plan --profile kueue "
            f"-q queues.yaml -j workloads.yaml --why {name}` then shows the smallest changes."
        )
    if job.state is not JobState.PENDING:
        return None
    if decision is None:
        return "No scheduling cycle has decided about the job yet."
    return f"The record of {decision.decision_id} compares no such changes."


def _change_document(change: AdmittingChange) -> Json:
    return change.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def short_decision(decision: Decision) -> Json:
    """Return a decision as a list shows it: without alternatives and facts."""
    return {
        "decisionId": decision.decision_id,
        "kind": decision.kind,
        "action": decision.action,
        "reason": decision.reason,
        "decidedAt": rfc3339(decision.decided_at),
        "policyHash": decision.policy_hash,
        "mode": decision.mode,
        "isDryRun": decision.is_dry_run,
    }


def _considered_options(decision: Decision) -> list[Json]:
    chosen = decision.chosen or Alternative(option=decision.action, why_not="")
    return [
        _option_document(chosen, chosen=True),
        *(_option_document(alternative, chosen=False) for alternative in decision.alternatives),
    ]


def _option_document(option: Alternative, *, chosen: bool) -> Json:
    return {
        "option": option.option,
        "chosen": chosen,
        "whyNot": option.why_not or None,
        "expectedSeconds": option.expected_seconds,
        "gpuHoursLost": option.gpu_hours_lost,
        "usd": option.usd,
        "slowdownSeconds": option.slowdown_seconds,
    }


def _as_sentence(text: str) -> str:
    text = text.strip()
    return text if not text or text.endswith((".", "!", "?")) else f"{text}."


def _duration_since(since: datetime, now: datetime) -> str:
    """Write a duration in its two largest units: `18m 20s`, `3h 5m`, `2d`."""
    seconds_left = max(0, int((now - since).total_seconds()))
    parts: list[str] = []
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")):
        count, seconds_left = divmod(seconds_left, size)
        if count:
            parts.append(f"{count}{unit}")
        elif parts:
            break
    return " ".join(parts[:2]) or "0s"
