"""State DrainNode of recover_node: stop the work on the node, with the grace period that its fault allows.

For each affected job: record a StopRequest on the job, then delete its workload. The job's own workflow settles the
attempt.
"""

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple, assert_never

from evenkeel.domain.external.unmanaged_workloads import UnmanagedPod
from evenkeel.domain.health.faults import Fault, FaultClass
from evenkeel.domain.health.incidents import AffectedJob, Incident, JobAction
from evenkeel.domain.jobs.attempt import Attempt, AttemptState
from evenkeel.domain.jobs.job import Job, StopRequest
from evenkeel.domain.jobs.spec import OnNodeFault
from evenkeel.domain.nodes import NodeLife
from evenkeel.domain.policy import Policy
from evenkeel.domain.recovery.draining import (
    Drain,
    DrainFacts,
    UnmanagedPodAction,
    affected_since,
    decide_unmanaged_pod,
    drain_deadline,
    finish_deadline,
    may_damage_checkpoints,
    plan_drain,
)
from evenkeel.domain.recovery.guardrails import GuardrailAction
from evenkeel.domain.values import Instant, Value
from evenkeel.ports import (
    Conflict,
    EvenkeelError,
    EvictionStatus,
    Ledger,
    Put,
    Table,
    Unreadable,
    Write,
    every,
)
from evenkeel.services.attempts import keep_logs
from evenkeel.services.context import Context
from evenkeel.services.incidents import recovery_step
from evenkeel.services.recovery import guardrail_inputs, record_block, restart_unmanaged, unmanaged_pods
from evenkeel.services.storage import attempt_store, incident_store
from evenkeel.services.storage.decision_record import decision_of
from evenkeel.services.storage.retries import until_committed
from evenkeel.services.tables import incident_rows, job_rows, rows, subject_rows

WRITER = "drain_node"
_MAX_UNMANAGED_NAMES = 20
_MAX_UNANSWERED = 3
"""Evictions without an answer after which a try ends. An eviction without an answer takes about 15 seconds."""
_MAX_DRAIN_CHECKS = 20


class DrainOutcome(StrEnum):
    """The outcomes of DrainNode."""

    JOBS_AFFECTED = "JOBS_AFFECTED"
    """Jobs use the node, or may use it. The reason says which stop, which may finish, and why others keep running."""
    NO_JOBS = "NO_JOBS"
    """No job uses the node, or the plan leaves its jobs alone."""
    HELD = "HELD"
    """A hold forbids the stop. The workflow waits until it ends."""


class DrainNodeResult(Value):
    """The affected jobs."""

    outcome: DrainOutcome
    reason: str
    jobs: tuple[AffectedJob, ...] = ()
    unreadable_attempts: tuple[str, ...] = ()
    """Attempts that may use the node, and whose rows this release cannot read. Evenkeel does not stop them."""


def run(request: recovery_step.RecoveryStepRequest, context: Context) -> DrainNodeResult:
    """Find the jobs on the node and stop them.

    Idempotent: yes. The affected jobs are stored and the list only grows, a stop request stays, and deleting a missing
    workload is success.
    """
    incident, _ = incident_store.load_incident(context.ledger, request.incident_id)
    reason_not_allowed = recovery_step.why_may_not_act(incident, context)
    if reason_not_allowed or recovery_step.is_repair_over(request.run, incident):
        return DrainNodeResult(
            outcome=DrainOutcome.NO_JOBS, reason=reason_not_allowed or recovery_step.REPAIR_OVER_TEXT
        )
    if incident.plan is not None and incident.plan.jobs is JobAction.LEAVE:
        return DrainNodeResult(outcome=DrainOutcome.NO_JOBS, reason="The jobs on the node keep running.")
    if incident.plan is not None and incident.plan.repairs_node:
        verdict = guardrail_inputs.check_stop_allowed(incident, context)
        incident, moved_count = evict_movable_pods(incident, context, may_stop=verdict.is_allowed)
        context.telemetry.count("UnmanagedPodsMoved", moved_count)
    drain_result = drain(incident, context)
    if incident.plan is None or incident.plan.repairs_node or not drain_result.jobs:
        return drain_result
    # No repair follows that would stop these jobs later, so the workflow waits until the hold ends.
    verdict = guardrail_inputs.check_stop_allowed(incident, context)
    if verdict.is_allowed:
        record_block.clear_block(incident, context.ledger)
        return drain_result
    record_block.set_block(incident, GuardrailAction.STOP, verdict, context, writer=WRITER)
    return drain_result.replace(outcome=DrainOutcome.HELD)


def drain(incident: Incident, context: Context) -> DrainNodeResult:
    """Stop the work on the incident's node.

    Evenkeel drains the node again right before a repair, because new work may have started there.

    Idempotent: yes, as `run`.
    """
    users = find_affected_jobs(incident, context)
    incident = _record_affected_jobs(incident, users.jobs, context.ledger)
    drain_result = _stop_jobs(incident, context)
    if not users.unreadable:
        return drain_result
    names = tuple(f"{affected_job.job_id}-a{affected_job.attempt}" for affected_job in users.unreadable)
    text = f"These attempts may use the node, but this release cannot read their rows: {', '.join(names)}."
    _record_line(incident, text, "unreadable", incident.opened_at, context.ledger)  # once, with this fixed time
    return drain_result.replace(
        outcome=DrainOutcome.JOBS_AFFECTED,
        reason=f"{drain_result.reason} {text}" if drain_result.jobs else text,
        unreadable_attempts=names,
    )


def _stop_jobs(incident: Incident, context: Context) -> DrainNodeResult:
    """Stop the affected jobs that may not finish on the node."""
    if job_action(incident) in (JobAction.MOVE, JobAction.LEAVE):
        for affected_job in incident.affected_jobs:
            _excuse_failure(incident, affected_job, context)
    if not incident.affected_jobs:
        return DrainNodeResult(outcome=DrainOutcome.NO_JOBS, reason="No job ran on the node.")
    verdict = guardrail_inputs.check_stop_allowed(incident, context)
    if not verdict.is_allowed:
        return DrainNodeResult(
            outcome=DrainOutcome.JOBS_AFFECTED,
            reason=f"The jobs keep running. {verdict.reason}",
            jobs=incident.affected_jobs,
        )
    incident, finishing_jobs = _allow_finish(incident, context)
    leaving_jobs = [
        affected_job for affected_job in incident.affected_jobs if affected_job.job_id not in finishing_jobs
    ]
    stopped_jobs = [affected_job for affected_job in leaving_jobs if _stop_attempt(incident, affected_job, context)]
    _record_stops(incident, stopped_jobs, context)
    context.telemetry.count("JobsStopped", len(stopped_jobs))
    if len(stopped_jobs) < len(leaving_jobs):
        verdict = guardrail_inputs.check_stop_allowed(incident, context)
        if not verdict.is_allowed:  # a hold was set meanwhile
            return DrainNodeResult(
                outcome=DrainOutcome.JOBS_AFFECTED,
                reason=f"{len(leaving_jobs) - len(stopped_jobs)} of the jobs keep running. {verdict.reason}",
                jobs=incident.affected_jobs,
            )
    messages = []
    if leaving_jobs:
        names = ", ".join(affected_job.job_id for affected_job in leaving_jobs)
        messages.append(f"Evenkeel asked these jobs to stop: {names}.")
    if finishing_jobs:
        messages.append(f"These jobs may finish on the node: {', '.join(sorted(finishing_jobs))}.")
    return DrainNodeResult(outcome=DrainOutcome.JOBS_AFFECTED, reason=" ".join(messages), jobs=incident.affected_jobs)


class NodeUsers(NamedTuple):
    """The jobs on a node."""

    jobs: tuple[AffectedJob, ...]
    unreadable: tuple[AffectedJob, ...] = ()
    """Jobs that may use the node, although this release cannot read the row of the job or of the attempt."""


def find_affected_jobs(incident: Incident, context: Context) -> NodeUsers:
    """Find the jobs whose current attempt uses the node, by its pods there and by the ledger.

    Attempts that ended there since about the first signal count, too: the fault affected them. Perhaps their job has
    not resumed yet, and their last checkpoint may be damaged. Their pods may be gone with the node, so the ledger is
    read. If even the nodes of an attempt cannot be read, its pods alone decide.
    """
    cluster = incident.life.cluster
    workloads = [
        workload
        for workload in context.cluster.workloads(cluster)
        if any(pod.node_name == incident.node_name for pod in workload.pods)
    ]
    attempts_and_workloads = attempt_store.owned_workloads(
        context.ledger, ((cluster, workload) for workload in workloads)
    )
    candidates = {(attempt.job_id, attempt.attempt) for attempt, _ in attempts_and_workloads}
    for job_id, number in {(workload.job_id, workload.attempt) for workload in workloads} - candidates:
        row = context.ledger.get(job_rows.attempt_key(job_id, number))
        if row and not any(rows.readable_rows([row], Attempt)):
            candidates.add((job_id, number))
    candidates |= _attempts_on(incident.life, _live_attempts(context.ledger))
    candidates |= _attempts_on(incident.life, _ended_since(affected_since(incident, context.policy), context.ledger))
    jobs, unreadable = [], []
    for job_id, number in sorted(candidates):
        affected_job = AffectedJob(job_id=job_id, attempt=number)
        try:
            if _is_still_affected(affected_job, incident, context):
                jobs.append(affected_job)
        except Unreadable:
            if not _has_attempt_ended(affected_job, context.ledger):
                unreadable.append(affected_job)
    return NodeUsers(tuple(jobs), tuple(unreadable))


class _Placement(Value):
    """The part of an attempt that says where it runs. It can be read even if the attempt cannot."""

    job_id: str
    attempt: int
    nodes: tuple[NodeLife, ...]
    ended_at: Instant | None = None


def _attempts_on(life: NodeLife, placements: Iterable[_Placement]) -> set[tuple[str, int]]:
    return {
        (placement.job_id, placement.attempt)
        for placement in placements
        if any(node.key == life.key for node in placement.nodes)
    }


def _live_attempts(ledger: Ledger) -> Iterator[_Placement]:
    index_entries = every(lambda cursor: ledger.by_state(Table.JOBS, "ATTEMPT#LIVE", limit=1000, cursor=cursor))
    for _, placement in rows.readable_rows(index_entries, _Placement):
        yield placement


def _ended_since(since: datetime, ledger: Ledger) -> Iterator[_Placement]:
    """Return the attempts that ended lately, the last first."""
    index_entries = every(lambda cursor: ledger.by_state(Table.JOBS, "ATTEMPT#ENDED", cursor=cursor, newest_first=True))
    for _, placement in rows.readable_rows(index_entries, _Placement):
        if placement.ended_at is None or placement.ended_at < since:
            return
        yield placement


def _has_attempt_ended(affected_job: AffectedJob, ledger: Ledger) -> bool:
    """Whether an attempt has ended, by its index entry: this release may not be able to read its row."""
    row = ledger.get(job_rows.attempt_key(affected_job.job_id, affected_job.attempt))
    return row is None or (row.state is not None and row.state[0] == "ATTEMPT#ENDED")


def _is_still_affected(affected_job: AffectedJob, incident: Incident, context: Context) -> bool:
    job_and_attempt = _load_job_and_attempt(affected_job, context.ledger)
    if job_and_attempt is None:
        return False
    job, _, attempt = job_and_attempt
    if job.state.has_ended:
        return False
    if attempt.ended_at is None:
        return job.current_attempt == affected_job.attempt
    # An attempt that was stopped for another reason lost no work, but its last checkpoint may be damaged.
    is_affected = attempt.state in (AttemptState.LOST, AttemptState.FAILED) or (
        attempt.state is AttemptState.STOPPED and may_damage_checkpoints(incident, context.policy)
    )
    return is_affected and attempt.ended_at >= affected_since(incident, context.policy)


def _load_if_readable(affected_job: AffectedJob, ledger: Ledger) -> tuple[Job, int, Attempt] | None:
    try:
        return _load_job_and_attempt(affected_job, ledger)
    except Unreadable:
        return None  # Evenkeel leaves such a job alone; the sweep reports the row


def _load_job_and_attempt(affected_job: AffectedJob, ledger: Ledger) -> tuple[Job, int, Attempt] | None:
    job = ledger.get(job_rows.job_key(affected_job.job_id))
    attempt = ledger.get(job_rows.attempt_key(affected_job.job_id, affected_job.attempt))
    if job is None or attempt is None:
        return None
    return rows.decode(job, Job), job.version, rows.decode(attempt, Attempt)


def _record_affected_jobs(incident: Incident, jobs: tuple[AffectedJob, ...], ledger: Ledger) -> Incident:
    def change(current: Incident) -> tuple[Incident, list[Write]] | None:
        # A job is listed once, with its latest affected attempt.
        known_jobs = {affected_job.job_id: affected_job for affected_job in current.affected_jobs}
        newer_jobs = [
            affected_job
            for affected_job in jobs
            if affected_job.job_id not in known_jobs or known_jobs[affected_job.job_id].attempt < affected_job.attempt
        ]
        job_by_id = known_jobs | {affected_job.job_id: affected_job for affected_job in newer_jobs}
        affected_jobs = tuple(job_by_id.values())
        return None if affected_jobs == current.affected_jobs else (current.replace(affected_jobs=affected_jobs), [])

    return incident_store.update_incident(ledger, incident.incident_id, change)


def _excuse_failure(incident: Incident, affected_job: AffectedJob, context: Context) -> None:
    """Take back a failure that was counted against the application before its node was known to be faulty.

    The incident records it in the same commit, so that it is taken back once.
    """

    def excuse_once() -> None:
        job_and_attempt = None if affected_job.is_failure_excused else _load_if_readable(affected_job, context.ledger)
        if job_and_attempt is None:
            return
        job, job_version, attempt = job_and_attempt
        if attempt.state is not AttemptState.FAILED or job.state.has_ended or job.application_failures == 0:
            return
        current, version = incident_store.load_incident(context.ledger, incident.incident_id)
        if affected_job not in current.affected_jobs:
            return
        updated_jobs = tuple(
            other_job.replace(is_failure_excused=True) if other_job == affected_job else other_job
            for other_job in current.affected_jobs
        )
        subject = incident.incident_id
        text = f"The node caused the failure of attempt {affected_job.attempt}, not the application ({subject})."
        context.ledger.commit(
            Put(incident_rows.incident_row(current.replace(affected_jobs=updated_jobs), version)),
            Put(job_rows.job_row(_without_failure(job), job_version)),
            incident_store.timeline_put(job.job_id, "forgiven", text, at=context.now, writer=WRITER),
        )

    message = f"{affected_job.job_id} changed on every try to correct its failure"
    until_committed(excuse_once, message, tries=incident_store.MAX_TRIES)


def _without_failure(job: Job) -> Job:
    return job.replace(application_failures=job.application_failures - 1, last_failure=None)


def _allow_finish(incident: Incident, context: Context) -> tuple[Incident, frozenset[str]]:
    """Let jobs with `finish` run on beside the cordon. The plan makes the repair wait for them."""
    fault = context.policy.catalogue.look_up(incident.fault_key)
    until: dict[str, datetime] = {}
    for affected_job in incident.affected_jobs:
        job_and_attempt = _load_if_readable(affected_job, context.ledger)
        on_node_fault = (
            job_and_attempt[0].spec.on_node_fault
            if job_and_attempt and job_and_attempt[2].ended_at is None
            else OnNodeFault.MOVE
        )
        at = finish_deadline(
            on_node_fault, fault, opened_at=incident.opened_at, deadline_at=incident.deadline_at, policy=context.policy
        )
        if at is not None and at > context.now:
            until[affected_job.job_id] = at
    if not until or incident.plan is None or job_action(incident) is not JobAction.MOVE:
        return incident, frozenset()
    latest_deadline = max(until.values())

    def change(current: Incident) -> tuple[Incident, list[Write]] | None:
        if current.plan is None or current.plan.work_may_run_until is not None:
            return None
        names = ", ".join(sorted(until))
        text = f"Cordoned only: {names} may finish, until {latest_deadline:%Y-%m-%dT%H:%M:%SZ} at the latest."
        line = incident_store.timeline_put(current.incident_id, "job", text, at=context.now, writer=f"{WRITER}-finish")
        return current.replace(plan=current.plan.replace(work_may_run_until=latest_deadline)), [line]

    return incident_store.update_incident(context.ledger, incident.incident_id, change), frozenset(until)


def job_action(incident: Incident) -> JobAction:
    """Return how the plan treats the jobs. Before there is a plan, the jobs are moved."""
    return incident.plan.jobs if incident.plan else JobAction.MOVE


def _decide_drain(incident: Incident, fault: Fault, job: Job, policy: Policy, now: datetime) -> Drain:
    """Decide the grace period of an attempt."""
    facts = DrainFacts(
        can_save=fault.can_save,
        drain_seconds=fault.drain_seconds,
        action=job_action(incident),
        wanted_seconds=job.spec.grace_seconds,
        deadline_at=incident.deadline_at,
        now=now,
    )
    return plan_drain(facts, policy)


def _stop_request(
    incident: Incident, fault: Fault, affected_job: AffectedJob, drain: Drain, now: datetime
) -> StopRequest:
    """Return the request to stop an attempt."""
    act = job_action(incident)
    where = incident.node_name or incident.life.instance_id
    moves = act in (JobAction.MOVE, JobAction.LEAVE)
    reason = f"{where} is unhealthy: {fault.name}" if moves else f"{fault.name} on {where}"
    return StopRequest(
        attempt=affected_job.attempt,
        reason=f"{reason} ({incident.incident_id}).",
        by=_requester(incident),
        outcome=AttemptState.LOST if moves else AttemptState.FAILED,
        grace_seconds=drain.grace_seconds,
        requested_at=now,
        counts_as_failure=not moves and fault.fault_class is not FaultClass.HARDWARE,
        is_final=act is JobAction.STOP,
        nodes_without_grace=()
        if drain.grants_grace_on_faulty_node or not incident.node_name
        else (incident.node_name,),
    )


def _stop_attempt(incident: Incident, affected_job: AffectedJob, context: Context) -> bool:
    """Request the stop of an attempt and delete its workload. Return False if it ended or has another request."""
    message = f"{affected_job.job_id} changed on every try to stop attempt {affected_job.attempt}"
    stopped = until_committed(
        lambda: _request_stop(incident, affected_job, context), message, tries=incident_store.MAX_TRIES
    )
    if stopped is None:
        return False
    attempt, stop_request = stopped
    try:
        context.cluster.stop(attempt, stop_request.grace_seconds, stop_request.nodes_without_grace)
    except EvenkeelError as error:
        # The request is recorded, so the attempt's own workflow and the sweep carry it out, too.
        context.telemetry.warning(
            "PodsNotStopped", job_id=affected_job.job_id, attempt=affected_job.attempt, detail=str(error)
        )
    return stop_request.by == _requester(incident)


def _request_stop(
    incident: Incident, affected_job: AffectedJob, context: Context
) -> tuple[Attempt, StopRequest] | None:
    """Record a request to stop an attempt, and keep its logs.

    Return the request in force; None if the attempt has ended, or if a hold was set meanwhile. An earlier request
    stays, but its grace ends if the node cannot save.
    """
    job_and_attempt = _load_if_readable(affected_job, context.ledger)
    if job_and_attempt is None:
        return None
    job, version, attempt = job_and_attempt
    if attempt.state.has_ended or job.current_attempt != affected_job.attempt:
        return None
    earlier_request = job.stop_of(affected_job.attempt)
    fault = context.policy.catalogue.look_up(incident.fault_key)
    drain = _decide_drain(incident, fault, job, context.policy, context.now)
    stop_request = _stop_request(incident, fault, affected_job, drain, context.now)
    if earlier_request is not None:
        stop_request = earlier_request.without_grace_on(stop_request.nodes_without_grace, drain.grace_seconds)
        if stop_request == earlier_request:
            return attempt, earlier_request
    guardrails = guardrail_inputs.GuardrailInputs(context)
    if guardrails.hold_on(incident) is not None:
        return None
    decision_record = decision_of(
        "DRAIN", incident.incident_id, drain.action, drain, drain.facts, context.replace(mode=incident.mode)
    )
    text = f"Stopped: {stop_request.reason} The job gets {drain.explanation}."
    line = incident_store.timeline_put(
        job.job_id, "stopped", text, at=context.now, writer=WRITER, decision_id=decision_record.decision_id
    )
    context.ledger.commit(
        Put(job_rows.job_row(job.replace(stop_request=stop_request), version)),
        Put(subject_rows.decision_row(decision_record)),
        line,
        guardrails.holds_check(),
    )
    keep_logs.run(job, attempt, context, within_seconds=keep_logs.BEFORE_STOP_SECONDS)
    return attempt, stop_request


def _requester(incident: Incident) -> str:
    return f"recover_node/{incident.incident_id}"


def _record_stops(incident: Incident, stopped_jobs: list[AffectedJob], context: Context) -> None:
    def change(current: Incident) -> tuple[Incident, list[Write]] | None:
        if not stopped_jobs or current.stages.jobs_stopped_at is not None:
            return None
        names = ", ".join(f"{affected_job.job_id} (attempt {affected_job.attempt})" for affected_job in stopped_jobs)
        line = incident_store.timeline_put(
            current.incident_id,
            "job",
            f"Evenkeel asked these jobs to stop: {names}.",
            at=context.now,
            writer=WRITER,
        )
        return current.with_stage_time("jobs_stopped_at", context.now), [line]

    incident_store.update_incident(context.ledger, incident.incident_id, change)


class UnmanagedDrain(Value):
    """The unmanaged work that delays a repair."""

    wait_seconds: int = 0
    question: str = ""
    """Why a person must decide; empty if none must."""


def evict_movable_pods(incident: Incident, context: Context, *, may_stop: bool) -> tuple[Incident, int]:
    """Restart unmanaged jobs on the node, and evict pods that may be moved, so that they start elsewhere at once.

    If a guardrail forbids stopping Evenkeel's own jobs there, no unmanaged pod is evicted either.

    Idempotent: yes, each eviction names one pod by its UID.
    """
    pods = (
        unmanaged_pods.list_unmanaged_pods(incident.life.cluster, context, incident.node_name)
        if incident.node_name
        else ()
    )
    incident = _record_unmanaged_workloads(incident, pods, context)
    moved_jobs = restart_unmanaged.run(incident, context, may_stop=may_stop)
    movable = [pod for pod in pods if (pod.is_movable or pod.label in moved_jobs) and may_stop]
    incident, moved_pods = _evict_pods(incident, movable, context)
    if moved_pods:
        _record_evictions(incident, [f"{pod.label} is evicted, as its label allows" for pod in moved_pods], context)
    return incident, len(moved_pods)


def _record_unmanaged_workloads(incident: Incident, pods_here: Sequence[UnmanagedPod], context: Context) -> Incident:
    labels = tuple(sorted({pod.label for pod in pods_here if pod.accelerators or pod.is_movable}))

    def change(current: Incident) -> tuple[Incident, list[Write]] | None:
        if not labels or current.unmanaged_workloads:
            return None
        more_text = f" and {len(labels) - 4} more" if len(labels) > 4 else ""
        text = f"Workloads outside Evenkeel run on the node: {', '.join(labels[:4])}{more_text}."
        line = incident_store.timeline_put(current.incident_id, "job", text, at=context.now, writer=f"{WRITER}-others")
        return current.replace(unmanaged_workloads=labels[:_MAX_UNMANAGED_NAMES]), [line]

    return incident_store.update_incident(context.ledger, incident.incident_id, change)


def drain_unmanaged_pods(incident: Incident, context: Context, *, has_unreadable_attempts: bool) -> UnmanagedDrain:
    """Evict the unmanaged work of a node before its repair, within disruption budgets until the drain ends.

    Until then the repair also waits for attempts whose rows cannot be read: a deployment may be under way.

    Idempotent: yes, each eviction names one pod by its UID.
    """
    restart_unmanaged.run_if_allowed(incident, context)
    fault = context.policy.catalogue.look_up(incident.fault_key)
    until = drain_deadline(fault, opened_at=incident.opened_at, deadline_at=incident.deadline_at, policy=context.policy)
    pods = (
        unmanaged_pods.list_unmanaged_pods(incident.life.cluster, context, incident.node_name)
        if incident.node_name
        else ()
    )
    leaving_jobs: dict[str, UnmanagedPod] = {}
    messages: dict[str, str] = {}
    waits, question = has_unreadable_attempts and context.now < until, ""
    for pod in pods:
        verdict = decide_unmanaged_pod(
            pod,
            fault,
            until=until,
            has_deadline=incident.deadline_at is not None,
            policy=context.policy,
            now=context.now,
        )
        match verdict.action:
            case UnmanagedPodAction.EVICT:
                waits = True
                leaving_jobs[pod.uid] = pod
                messages[pod.uid] = verdict.reason
            case UnmanagedPodAction.LEAVE:
                waits = waits or context.now < until
            case UnmanagedPodAction.ASK:
                question = question or f"{verdict.reason}{_eviction_failure(incident, pod)}"
            case _:
                assert_never(verdict.action)
    incident, evicted_pods = _evict_pods(incident, list(leaving_jobs.values()), context)
    if evicted_pods:
        _record_evictions(incident, list({pod.label: messages[pod.uid] for pod in evicted_pods}.values()), context)
    seconds_left = math.ceil((until - context.now).total_seconds())
    # A long drain is polled less often, because the workflow counts its tries, and they must last until the end.
    pause = max(context.policy.repair.retry_seconds, seconds_left // _MAX_DRAIN_CHECKS)
    return UnmanagedDrain(wait_seconds=min(seconds_left, pause) if waits else 0, question=question)


def _evict_pods(
    incident: Incident, pods: Sequence[UnmanagedPod], context: Context
) -> tuple[Incident, list[UnmanagedPod]]:
    """Request the eviction of each pod. Return the evicted pods, and the incident with the answers for the rest.

    A refusal stops no other eviction. A server that does not answer would use up the function's time, so the try ends
    after a few such pods. The next try begins with another pod.
    """
    evicted_pods, refusals, unanswered_count = [], {}, 0
    start = int(context.now.timestamp()) % len(pods) if pods else 0
    for pod in (*pods[start:], *pods[:start]):
        if unanswered_count == _MAX_UNANSWERED:
            refusals[_pod_name(pod)] = "eviction not requested, because the API server did not answer for other pods"
            continue
        answer = context.cluster.evict(incident.life.cluster, pod)
        unanswered_count += answer.result is EvictionStatus.NO_ANSWER
        if answer.result is EvictionStatus.EVICTED:
            evicted_pods.append(pod)
        elif answer.result is not EvictionStatus.GONE:
            refusals[_pod_name(pod)] = answer.why
            context.telemetry.warning("PodNotEvicted", pod=_pod_name(pod), result=str(answer.result), detail=answer.why)
    return _record_failed_evictions(incident, pods, refusals, context), evicted_pods


def _record_failed_evictions(
    incident: Incident, pods: Sequence[UnmanagedPod], refusals: dict[str, str], context: Context
) -> Incident:
    names = {_pod_name(pod) for pod in pods}

    def change(current: Incident) -> tuple[Incident, list[Write]] | None:
        earlier_failures = {name: why for name, why in current.failed_evictions.items() if name not in names}
        failed_evictions = dict(list((earlier_failures | refusals).items())[-_MAX_UNMANAGED_NAMES:])
        if failed_evictions == current.failed_evictions:
            return None
        new_names = [
            f"{name} was not evicted: {why}" for name, why in refusals.items() if name not in current.failed_evictions
        ]
        text = " ".join(sentence.rstrip(".") + "." for sentence in new_names[:4]) + (
            f" And {len(new_names) - 4} more." if new_names[4:] else ""
        )
        lines: list[Write] = [
            incident_store.timeline_put(current.incident_id, "job", text, at=context.now, writer=f"{WRITER}-unevicted")
        ]
        return current.replace(failed_evictions=failed_evictions), lines if new_names else []

    return incident_store.update_incident(context.ledger, incident.incident_id, change)


def _pod_name(pod: UnmanagedPod) -> str:
    return f"{pod.namespace}/{pod.name}"


def _eviction_failure(incident: Incident, pod: UnmanagedPod) -> str:
    why = incident.failed_evictions.get(_pod_name(pod), "")
    return f" Its pod {_pod_name(pod)} was not evicted: {why.rstrip('.')}." if why else ""


def _record_evictions(incident: Incident, messages: list[str], context: Context) -> None:
    text = " ".join(message.rstrip(".") + "." for message in messages[:4]) + (" And more." if len(messages) > 4 else "")
    _record_line(incident, text, "unmanaged", context.now, context.ledger)


def _record_line(incident: Incident, text: str, topic: str, at: datetime, ledger: Ledger) -> None:
    with contextlib.suppress(Conflict):  # the same line exists already
        ledger.commit(incident_store.timeline_put(incident.incident_id, "job", text, at=at, writer=f"{WRITER}-{topic}"))
