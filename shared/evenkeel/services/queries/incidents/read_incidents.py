"""Incidents for the API: a list, one incident with its two branches, its timeline and its decisions."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, NamedTuple

from evenkeel.domain.decisions import Decision
from evenkeel.domain.health.faults import default_catalogue
from evenkeel.domain.health.incidents import (
    LIST_ORDER,
    AffectedJob,
    Evidence,
    Incident,
    IncidentState,
    PlanOutcome,
    StageTimes,
    StoredRecoveryPlan,
)
from evenkeel.domain.jobs.attempt import Attempt, AttemptState
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.nodes import FleetNode
from evenkeel.domain.recovery.approval import awaits_approval, is_approved
from evenkeel.domain.recovery.plan import NodeOwner
from evenkeel.domain.recovery.repair_policy import RepairPolicy
from evenkeel.domain.values import rfc3339
from evenkeel.ports import Ledger, Row, Table, get_all
from evenkeel.services.context import Context
from evenkeel.services.queries import disclosure
from evenkeel.services.queries.disclosure import Reader
from evenkeel.services.storage import pagination
from evenkeel.services.storage.facts_of_decisions import with_facts
from evenkeel.services.tables import incident_rows, job_rows, rows, subject_rows

Json = dict[str, Any]

_ATTRIBUTION_WINDOW = timedelta(minutes=10)
"""The fault may have caused the end of an attempt this long before the first signal."""
_MAX_ATTEMPTS = 1000
MAX_READ = 2_000
"""Incidents that one report reads, newest first. The report leaves out older incidents, and a note says so."""
_PAGE = 200
NEEDS_PERSON_STATES = (IncidentState.WAITING_FOR_PERSON, IncidentState.JOB_NOT_RESUMED, IncidentState.FAILED)
FRESH_FOR = timedelta(days=1)
"""How long a failed outcome asks for a person if no fact shows whether it was handled."""


def list_incidents(states: Sequence[IncidentState], page: pagination.PageRequest, context: Context) -> Json:
    """Return one page of incidents, newest first; no states = all."""
    partitions = [f"INC#{state}" for state in LIST_ORDER if not states or state in states]
    answer = pagination.page_newest_first(context.ledger, Table.INCIDENTS, partitions, page)
    items = [incident_summary(incident, context.now) for _, incident in rows.readable_rows(answer.rows, Incident)]
    return {"items": items, "nextPageToken": answer.next_token or None}


def show_incident(incident_id: str, reader: Reader, context: Context) -> Json:
    """Return an incident with its evidence, the two branches of its recovery, and the decisions about it.

    Raises:
        NotFound: there is no such incident.
    """
    incident = load_incident(context.ledger, incident_id)
    # An incident that continues an earlier one has its evidence, too.
    stored_rows = [
        row
        for subject in filter(None, (incident.resumes, incident_id))
        for row in context.ledger.partition(Table.INCIDENTS, incident_rows.incident_key(subject).pk, "EVIDENCE#")
    ]
    evidence = [_visible_evidence(rows.decode(row, Evidence), reader, context.ledger) for row in stored_rows]
    return incident_summary(incident, context.now) | {
        "nodeLane": node_progress(incident, context.policy.repair),
        "jobLanes": job_lanes(job := with_jobs(context.ledger, [incident])[0], load_affected_jobs(context.ledger, job)),
        "took": stage_seconds(incident.stages),
        "evidence": [_evidence_document(item) for item in evidence],
        "decisions": decisions_about(context.ledger, incident_id, reader.may_see_all_of(incident, context.ledger)),
        "execution": incident.execution_name,
    }


def show_decision(ledger: Ledger, decision_id: str, reader: Reader) -> Json:
    """Return the record of a decision, which can be replayed. `isRedacted` if its facts are private to a team.

    Raises:
        NotFound: there is no such decision.
    """
    decision = rows.load(ledger, subject_rows.decision_key(decision_id), Decision, f"decision {decision_id}")
    (decision,) = with_facts((decision,), ledger)
    shown = decision if _may_see_decision(decision, reader, ledger) else disclosure.public_decision(decision)
    return shown.to_json() | {"isRedacted": shown != decision}


def _may_see_decision(decision: Decision, reader: Reader, ledger: Ledger) -> bool:
    subject = decision.subject
    if reader.may_see_every_team:
        return True
    if subject.startswith("inc-"):
        row = ledger.get(incident_rows.incident_key(subject))
        return row is not None and reader.may_see_all_of(rows.decode(row, Incident), ledger)
    return reader.may_see_job_by_id(subject, ledger)


def _visible_evidence(evidence: Evidence, reader: Reader, ledger: Ledger) -> Evidence:
    """Return evidence without the text of a detector about another team's job."""
    fact = evidence.fact
    if not fact.job_id or reader.may_see_job_by_id(fact.job_id, ledger):
        return evidence
    return evidence.replace(fact=fact.replace(detail=""))


def load_incident(ledger: Ledger, incident_id: str) -> Incident:
    """Read an incident.

    Raises:
        NotFound: there is no such incident.
    """
    return rows.load(ledger, incident_rows.incident_key(incident_id), Incident, f"incident {incident_id}")


class RecentIncidents(NamedTuple):
    """The incidents that opened since a time."""

    incidents: list[Incident]
    """Oldest first."""
    has_all: bool
    """False: there are more than `MAX_READ`, and the older ones were not read."""
    unreadable_count: int
    """Further incidents of this time that this release cannot read."""


def incidents_since(ledger: Ledger, start: datetime) -> RecentIncidents:
    """Return the incidents that opened since a time, without unreadable ones, which are counted."""
    partitions = [f"INC#{state}" for state in LIST_ORDER]
    recent_rows: list[Row] = []
    request = pagination.PageRequest(_PAGE)
    while True:
        answer = pagination.page_newest_first(ledger, Table.INCIDENTS, partitions, request)
        # The index states the opening time of an incident, also if its row is unreadable.
        recent = [row for row in answer.rows if row.state and row.state[1] >= rfc3339(start)]
        recent_rows += recent
        has_all = len(recent) < len(answer.rows) or not answer.next_token
        if has_all or len(recent_rows) >= MAX_READ:
            break
        request = pagination.PageRequest(_PAGE, answer.next_token)
    incidents = [incident for _, incident in rows.readable_rows(recent_rows, Incident)]
    incidents.sort(key=lambda incident: (incident.opened_at, incident.incident_id))
    return RecentIncidents(incidents, has_all, len(recent_rows) - len(incidents))


def load_affected_jobs(ledger: Ledger, *incidents: Incident) -> dict[str, Job]:
    """Read the existing jobs that incidents interrupted, in one batch."""
    return load_jobs(ledger, (affected_job.job_id for incident in incidents for affected_job in incident.affected_jobs))


def load_jobs(ledger: Ledger, job_ids: Iterable[str]) -> dict[str, Job]:
    """Read the existing jobs of some ids, by hundreds."""
    stored_rows = get_all(ledger, map(job_rows.job_key, job_ids)).values()
    return {job.job_id: job for _, job in rows.readable_rows(stored_rows, Job)}


def decisions_about(ledger: Ledger, subject: str, may_see_all: bool, *, at_most: int = 20) -> list[Json]:
    """Return short forms of the decisions about a job or an incident, newest first."""
    page = ledger.by_state(Table.INCIDENTS, f"DEC#{subject}", limit=at_most, newest_first=True)
    return [
        {
            "decisionId": decision.decision_id,
            "kind": decision.kind,
            "action": decision.action,
            "reason": decision.reason,
            "decidedAt": rfc3339(decision.decided_at),
        }
        for decision in (
            disclosed_decision(decision, may_see_all) for _, decision in rows.readable_rows(page.rows, Decision)
        )
    ]


def disclosed_decision(decision: Decision, may_see_all: bool) -> Decision:
    """Return a decision as the caller may see it."""
    return decision if may_see_all else disclosure.public_decision(decision)


def incident_summary(incident: Incident, now: datetime) -> Json:
    """Return the fields that a list shows."""
    return {
        "incidentId": incident.incident_id,
        "state": incident.state,
        "outcome": incident.outcome,
        "severity": incident.severity,
        "fault": shown_fault(incident),
        "node": {
            "name": incident.node_name,
            "instanceId": incident.life.instance_id,
            "cluster": incident.life.cluster,
            "launchedAt": rfc3339(incident.life.launched_at),
            "pool": incident.pool,
            "instanceType": incident.instance_type,
        },
        "block": incident.block.to_json() if incident.block else None,
        "pendingApproval": _approval_question(incident, now) if awaits_approval(incident) else None,
        "lateApproval": _late_approval(incident),
        "approval": incident.approval.to_json() if incident.approval else None,
        "acknowledgement": incident.acknowledgement.to_json() if incident.acknowledgement else None,
        "replacementInstanceId": incident.replacement_instance_id or None,
        "repairs": list(incident.repairs),
        "affectedJobs": [affected_job.to_json() for affected_job in incident.affected_jobs],
        "unmanagedWorkloads": list(incident.unmanaged_workloads),
        "evidenceCount": incident.evidence_count,
        "firstSignalAt": rfc3339(incident.first_signal_at),
        "openedAt": rfc3339(incident.opened_at),
        "settledAt": _instant_text(incident.stages.settled_at),
        "stages": incident.stages.to_json(),
        "isDrill": incident.is_drill,
        "mode": incident.mode,
        "run": incident.run,
        "resumes": incident.resumes or None,
    }


def shown_fault(incident: Incident) -> Json:
    """Return the key of the fault and its name in the catalogue."""
    return {"key": incident.fault_key, "name": default_catalogue().look_up(incident.fault_key).name}


def if_unanswered(incident: Incident, now: datetime) -> str | None:
    """Return the consequence if no person answers the plan; None if no plan awaits approval."""
    return str(_approval_question(incident, now)["ifUnanswered"]) if awaits_approval(incident) else None


def is_waiting(incident: Incident) -> bool:
    """Whether an open incident does nothing yet: its plan awaits approval, or HyperPod is changing the cluster."""
    return awaits_approval(incident) or (incident.plan is not None and incident.plan.outcome == PlanOutcome.LATER)


def _approval_question(incident: Incident, now: datetime) -> Json:
    """Return the plan that awaits approval, and the consequence without an answer."""
    plan = incident.plan
    assert plan is not None
    return {
        "decisionId": plan.decision_id,
        "reason": plan.reason,
        "answerBy": _instant_text(plan.answer_by),
        "ifUnanswered": _if_unanswered(incident, plan, now),
    }


def _if_unanswered(incident: Incident, plan: StoredRecoveryPlan, now: datetime) -> str:
    by, where = plan.answer_by, incident.node_name or incident.life.instance_id
    approve = f"evenkeel incidents approve {incident.incident_id}"
    if by is not None and by <= now:
        consequence = "its jobs stay as they are" if not plan.repairs_node else f"{where} is not repaired"
        return f"No answer came by {by:%H:%M}Z: nothing was done; {consequence}. You can still approve it: {approve}."
    clock = f"No answer by {by:%H:%M}Z" if by else "Without an answer"
    if not plan.repairs_node:
        return f"{clock}: nothing is done; its jobs stay as they are."
    return (
        f"{clock}: nothing is done; the node stays unhealthy and new pods may land on {where}. "
        f"The plan can be approved later: {approve}."
    )


def _late_approval(incident: Incident) -> Json | None:
    """Return the declined or unanswered plan that may still be approved; None if there is none."""
    plan, approval = incident.plan, incident.approval
    if plan is None or plan.outcome != PlanOutcome.ASK or (approval and approval.approves) or incident.is_drill:
        return None
    if incident.state is not IncidentState.OBSERVED:
        return None
    return {"decisionId": plan.decision_id, "reason": plan.reason}


def node_lane(incident: Incident) -> Json:
    """Return the progress of the node branch: its phase, the word of its symbol, and since when."""
    if awaits_approval(incident):
        since = _instant_text(incident.stages.planned_at)
        return {"phase": "waits for approval", "status": "warn", "since": since, "rung": None}
    if incident.block is not None:
        phase = f"waits: {incident.block.guardrail.lower().replace('_', ' ')}"
        rung = incident.block.action if incident.block.action in ("reboot", "replace") else None
        return {"phase": phase, "status": "warn", "since": _instant_text(incident.block.since), "rung": rung}
    if is_waiting(incident) and not incident.state.is_settled:
        since = _instant_text(incident.stages.planned_at)
        return {"phase": "waits for HyperPod", "status": "warn", "since": since, "rung": None}
    if incident.plan is not None and incident.plan.intends_action and not incident.plan.repairs_node:
        since = _instant_text(incident.stages.planned_at)
        return {"phase": "left in service", "status": "ok", "since": since, "rung": None}
    stages = incident.stages
    rung = incident.repairs[-1] if incident.repairs else ""
    phase_by_rung = {"reboot": "rebooting", "replace": "replacing"}
    phases: tuple[tuple[datetime | None, str], ...] = (
        (stages.returned_at, "returned to service"),
        (stages.validated_at, "returning to service"),
        (stages.node_back_at, "validating"),
        (stages.repair_requested_at, phase_by_rung.get(rung, "repairing")),
        (stages.cordoned_at, "cordoned"),
        (stages.planned_at, "planned"),
        (incident.opened_at, "detected"),
    )
    # If two phases began at the same time, `max` returns the first.
    began_at, last_phase = max(((at, name) for at, name in phases if at is not None), key=lambda phase: phase[0])
    status = "ok" if stages.returned_at else "working"
    if incident.state.is_settled and not stages.returned_at:
        status = "failed" if incident.state in NEEDS_PERSON_STATES else "idle"
    return {"phase": last_phase, "status": status, "since": _instant_text(began_at), "rung": rung or None}


_NEXT_STEPS = {
    "detected": "the plan",
    "planned": "cordon the node",
    "cordoned": "stop its jobs, then repair it",
    "rebooting": "validate the node",
    "replacing": "validate the replacement",
    "repairing": "validate the node",
    "validating": "return the node to service",
    "returning to service": "settle the incident",
    "waits for approval": "a person approves or declines the plan",
    "waits for HyperPod": "plan again",
}
"""Phase of the node branch → its next step."""


def node_progress(incident: Incident, policy: RepairPolicy) -> Json:
    """Return the node branch with its next step, and when the present phase ends at the latest; null if unknown."""
    lane = node_lane(incident)
    if incident.state.is_settled:
        return lane | {"next": None, "latestAt": None}
    if incident.block is not None and lane["phase"].startswith("waits: "):
        act = incident.block.action or "the next step"
        return lane | {
            "next": f"{act}, as soon as the guardrail allows it",
            "latestAt": _instant_text(incident.block.clears_at),
        }
    return lane | {
        "next": _NEXT_STEPS.get(lane["phase"]),
        "latestAt": _instant_text(_latest_end(incident, lane, policy)),
    }


def _latest_end(incident: Incident, lane: Json, policy: RepairPolicy) -> datetime | None:
    """Return when Evenkeel's wait in this phase ends, by the policy; then it tries the next rung or asks a person."""
    stages, plan = incident.stages, incident.plan
    is_ours = plan is None or plan.owner in ("", NodeOwner.EVENKEEL)
    match lane["phase"]:
        case "waits for approval":
            return plan.answer_by if plan else None
        case "rebooting" if is_ours and stages.repair_requested_at:
            return stages.repair_requested_at + timedelta(seconds=policy.reboot_deadline_seconds)
        case "replacing" if is_ours and stages.repair_requested_at:
            return stages.repair_requested_at + timedelta(seconds=policy.replace_deadline_seconds)
        case "validating" if stages.node_back_at:
            return stages.node_back_at + timedelta(seconds=policy.validation_deadline_seconds)
    return None


def with_jobs(ledger: Ledger, incidents: Iterable[Incident]) -> list[Incident]:
    """Return incidents with the jobs on their nodes, if no recovery has searched them: their plan awaits approval.

    Attempts that were lost or failed there since about the first signal count, too.
    """
    all_incidents = list(incidents)
    incidents_to_search = [
        incident for incident in all_incidents if not incident.affected_jobs and not has_found_jobs(incident)
    ]
    if not incidents_to_search:
        return all_incidents
    since = min(incident.first_signal_at for incident in incidents_to_search) - _ATTRIBUTION_WINDOW
    live_rows, _ = pagination.read_partition(ledger, Table.JOBS, "ATTEMPT#LIVE", at_most=_MAX_ATTEMPTS)
    ended_rows, _ = pagination.read_partition(
        ledger, Table.JOBS, "ATTEMPT#ENDED", at_most=_MAX_ATTEMPTS, newest_first=True
    )
    attempts = [attempt for _, attempt in rows.readable_rows((*live_rows, *ended_rows), Attempt)]
    jobs_by_life: dict[str, dict[str, AffectedJob]] = defaultdict(dict)
    for attempt in sorted(attempts, key=lambda earlier: earlier.attempt):
        was_interrupted = (
            attempt.state in (AttemptState.LOST, AttemptState.FAILED) and (attempt.ended_at or since) >= since
        )
        if attempt.ended_at is None or was_interrupted:
            for life in attempt.nodes:
                jobs_by_life[life.key][attempt.job_id] = AffectedJob(job_id=attempt.job_id, attempt=attempt.attempt)
    return [
        incident.replace(affected_jobs=tuple(jobs_by_life[incident.life.key].values()))
        if incident in incidents_to_search
        else incident
        for incident in all_incidents
    ]


def has_found_jobs(incident: Incident) -> bool:
    """Whether the recovery has searched the jobs on its node.

    Before that, an empty list of jobs does not mean that no job ran there.
    """
    plan = incident.plan
    if plan is None:
        return False
    is_allowed = plan.outcome == "ACT" or is_approved(incident)
    return is_allowed and (incident.state.is_settled or incident.stages.cordoned_at is not None)


def job_lanes(incident: Incident, jobs: dict[str, Job]) -> list[Json]:
    """Return the progress of each interrupted job."""
    is_stopped = incident.plan is not None and (incident.plan.outcome == "ACT" or is_approved(incident))
    return [
        _job_lane(affected_job.job_id, affected_job.attempt, jobs.get(affected_job.job_id), is_stopped=is_stopped)
        for affected_job in incident.affected_jobs
    ]


def is_job_back(job: Job, interrupted_attempt: int) -> bool:
    """Whether an interrupted job needs nothing more: it runs in a later attempt, has ended, or is suspended."""
    return job.state.is_at_rest or (job.current_attempt > interrupted_attempt and job.state is JobState.RUNNING)


def needs_person(incident: Incident, jobs: Iterable[Job], holder: FleetNode | None, now: datetime) -> bool:
    """Whether the failed outcome of an incident still needs a person.

    It does while an interrupted job has not resumed, or the node that is now in the slot takes no work. If the slot is
    empty or unknown, the incident counts as blocked for a day.
    """
    if incident.state not in NEEDS_PERSON_STATES:
        return False
    attempts_by_job = {item.job_id: item.attempt for item in incident.affected_jobs}
    if any(not is_job_back(job, attempts_by_job[job.job_id]) for job in jobs if job.job_id in attempts_by_job):
        return True
    if holder is None:
        return now - (incident.stages.settled_at or incident.opened_at) < FRESH_FOR
    return not holder.is_ready or holder.is_awaiting_validation or holder.incident_id == incident.incident_id


def stage_seconds(stages: StageTimes) -> list[Json]:
    """Return the reached stages in order of time, each with the seconds since the one before."""
    reached_stages = sorted((at, name) for name, at in stages if isinstance(at, datetime))
    first_stage = [{"stage": _stage_name(name), "at": rfc3339(at), "seconds": 0.0} for at, name in reached_stages[:1]]
    return first_stage + [
        {"stage": _stage_name(name), "at": rfc3339(at), "seconds": round((at - earlier_at).total_seconds(), 3)}
        for (earlier_at, _), (at, name) in pairwise(reached_stages)
    ]


def _stage_name(field: str) -> str:
    return field.removesuffix("_at").replace("_", " ")


def _job_lane(job_id: str, attempt: int, job: Job | None, *, is_stopped: bool) -> Json:
    lane: Json = {"jobId": job_id, "name": job.spec.name if job else None, "interruptedAttempt": attempt}
    if job is None:
        return lane | {"phase": "no longer known", "status": "idle", "since": None}
    later = job.current_attempt > attempt
    match job.state:
        case JobState.RUNNING if later:
            phase, status = "running again", "ok"
        case JobState.STARTING if later:
            phase, status = "starting again", "working"
        case JobState.PENDING:
            phase, status = "waits for capacity", "working"
        case JobState.RUNNING | JobState.STARTING if not is_stopped:
            phase, status = "runs on the unhealthy node", "warn"
        case JobState.SUCCEEDED | JobState.CANCELLED | JobState.SUSPENDED:
            phase, status = job.state.lower(), "ok"
        case JobState.FAILED:
            phase, status = "failed", "failed"
        case _:
            phase, status = "stopping", "working"
    return lane | {"phase": phase, "status": status, "attempt": job.current_attempt}


def _evidence_document(evidence: Evidence) -> Json:
    fact = evidence.fact
    return {
        "kind": fact.kind,
        "source": fact.source,
        "faultKey": fact.fault_key,
        "code": fact.code,
        "detail": fact.detail,
        "observedAt": rfc3339(fact.observed_at),
        "joinedAt": rfc3339(evidence.joined_at),
        "opened": evidence.opened,
        "rawEvent": fact.envelope_id,
    }


def _instant_text(value: datetime | None) -> str | None:
    return rfc3339(value) if value else None
