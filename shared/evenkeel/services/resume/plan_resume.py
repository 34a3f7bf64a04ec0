"""State PlanResume of recover_node: choose how each interrupted job resumes, and request a scheduling cycle.

The plan is recorded on the job; only `schedule_jobs` acts on it.
"""

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum, StrEnum, auto
from typing import NamedTuple

from evenkeel.domain.capacity import efa
from evenkeel.domain.capacity.network_topology import (
    HasPosition,
    NetworkSpread,
    closest_nodes,
    largest_domain,
    spread_of,
)
from evenkeel.domain.capacity.run_times import run_times_of
from evenkeel.domain.decisions import Alternative, Decision
from evenkeel.domain.economics.expected_durations import (
    MeasuredDurations,
    expected_duration,
    launch_durations,
    newest_of_each_job,
    repair_durations,
    restore_durations,
)
from evenkeel.domain.elastic.grow_shrink import NodeLossFacts
from evenkeel.domain.elastic.sizes import ElasticJob
from evenkeel.domain.health.assessment import checkpoint_trust_of
from evenkeel.domain.health.classification import IncidentFault
from evenkeel.domain.health.incidents import AffectedJob, Incident, IncidentState
from evenkeel.domain.jobs.attempt import Attempt, AttemptState, run_seconds
from evenkeel.domain.jobs.job import CheckpointRequirement, Job, ResumeOption, ResumePlan, StopRequest
from evenkeel.domain.nodes import FleetNode, KubernetesNode
from evenkeel.domain.policy import Policy
from evenkeel.domain.recovery.network_distance import NetworkFacts
from evenkeel.domain.recovery.repair_requests import REPLACE
from evenkeel.domain.recovery.resume_options import (
    OptionCost,
    PoolCapacity,
    ResumeDecision,
    ResumeDelays,
    ResumeFacts,
    capacity_wait,
    distrust_after,
    lost_work_seconds,
    plan_resume,
    requirement_after,
)
from evenkeel.domain.recovery.rollback import Rollback, RollbackDecision, RollbackFacts, decide_rollback
from evenkeel.domain.renting.candidates import origin_of
from evenkeel.domain.resources import NONE, Resources, why_too_small
from evenkeel.domain.values import Value
from evenkeel.ports import Conflict, Ledger, Put, Table, Unreadable, Write, every, get_all
from evenkeel.services.context import Context
from evenkeel.services.incidents import recovery_step, unhealthy_nodes
from evenkeel.services.recovery import guardrail_inputs
from evenkeel.services.rentals import rental_store
from evenkeel.services.resume import find_resume_options
from evenkeel.services.storage import incident_store, past_jobs
from evenkeel.services.storage.decision_record import decision_of
from evenkeel.services.storage.retries import until_committed
from evenkeel.services.tables import fleet_rows, incident_rows, job_rows, rows, subject_rows

WRITER = "plan_resume"
_MAX_INCIDENT_SAMPLES = 50
_MAX_INCIDENTS_READ = 200
_MAX_ATTEMPT_SAMPLES = 5
_MAX_ATTEMPTS_READ = 200
"""The newest ended attempts of all jobs. Their launches and restores predict the times of their pools."""
_SMALLEST_GANG = 2
"""Nodes of the smallest job for which the distance between nodes counts."""
_NOT_ELASTIC = OptionCost(option=ResumeOption.SHRINK, why_not="not available: the job is not elastic")
_NOT_CHECKED = tuple(
    OptionCost(option=option, why_not="not checked: existing nodes can run the job now")
    for option in (ResumeOption.PREEMPT, ResumeOption.RENT)
)
"""Used if existing nodes can run the job, so renting and preempting were not checked."""


class PlannedJob(Value):
    """A job and its resume decision."""

    job_id: str
    attempt: int
    option: ResumeOption | None = None
    """None if the job resumes already: a later attempt existed before the plan."""


class ResumeOutcome(StrEnum):
    """Whether any interrupted job resumes."""

    PLANNED = "PLANNED"
    NO_JOBS = "NO_JOBS"


class PlanResumeResult(Value):
    """The jobs that resume, with their plans."""

    outcome: ResumeOutcome
    reason: str
    jobs: tuple[PlannedJob, ...] = ()


def run(request: recovery_step.RecoveryStepRequest, context: Context) -> PlanResumeResult:
    """Record a resume plan on each interrupted job.

    Idempotent: yes, by the incident and attempt that a plan names. Each call requests a scheduling cycle.
    """
    incident, _ = incident_store.load_incident(context.ledger, request.incident_id)
    reason_not_allowed = recovery_step.why_may_not_act(incident, context)
    if reason_not_allowed or incident.state.is_settled:
        return PlanResumeResult(outcome=ResumeOutcome.NO_JOBS, reason=reason_not_allowed or "The incident is settled.")
    if not incident.affected_jobs:
        return PlanResumeResult(outcome=ResumeOutcome.NO_JOBS, reason="No job ran on the node.")
    shared_facts = _read_shared_facts(incident, context)
    is_automation_held = guardrail_inputs.GuardrailInputs(context).hold_on(incident) is not None
    planned_jobs, unreadable = [], []
    for affected_job in incident.affected_jobs:
        try:
            planned_job = _plan_resume_of_job(
                incident, affected_job, shared_facts, context, is_automation_held=is_automation_held
            )
        except Unreadable as error:  # the other jobs continue, and the sweep reports the row
            unreadable.append(str(error))
            continue
        if planned_job is not None:
            planned_jobs.append(planned_job)
    if not planned_jobs and unreadable:
        return PlanResumeResult(outcome=ResumeOutcome.NO_JOBS, reason=" ".join(unreadable))
    if not planned_jobs:
        return PlanResumeResult(outcome=ResumeOutcome.NO_JOBS, reason="Every interrupted job has ended.")
    context.cycle_requests.request(f"{incident.incident_id} planned the resume")
    for job in planned_jobs:
        context.telemetry.count("ResumesPlanned", option=job.option or "ON_ITS_WAY")
    summary = ", ".join(f"{job.job_id} ({job.option or 'already resuming'})" for job in planned_jobs)
    return PlanResumeResult(
        outcome=ResumeOutcome.PLANNED, reason=f"Planned to resume: {summary}.", jobs=tuple(planned_jobs)
    )


class _SharedFacts(NamedTuple):
    """The facts that the plans of all interrupted jobs of an incident share."""

    nodes: tuple[KubernetesNode, ...]
    """Healthy nodes of the incident's cluster and of the jobs' own clusters, and the incident's own node."""
    in_use: Mapping[str, Resources]
    past: tuple[Incident, ...]
    """Past recoveries that succeeded."""
    ended_attempts: tuple[Attempt, ...]
    """The newest ended attempts of all jobs."""


def _read_shared_facts(incident: Incident, context: Context) -> _SharedFacts:
    jobs = get_all(
        context.ledger, (job_rows.job_key(affected_job.job_id) for affected_job in incident.affected_jobs)
    ).values()
    names = sorted({incident.life.cluster, *(job.cluster for _, job in rows.readable_rows(jobs, Job))})
    nodes = tuple(node for name in names for node in context.cluster.nodes(name))
    unhealthy = unhealthy_nodes.unhealthy_among(nodes, context)
    return _SharedFacts(
        # The plan itself decides about the incident's own node.
        tuple(
            node
            for node in nodes
            if (node.cluster, node.name) not in unhealthy or node.instance_id == incident.life.instance_id
        ),
        {node: resources for name in names for node, resources in context.cluster.resources_in_use(name).items()},
        _past_incidents(context.ledger, is_drill=incident.is_drill),
        _ended_attempts(context.ledger),
    )


def _plan_resume_of_job(
    incident: Incident,
    affected_job: AffectedJob,
    shared_facts: _SharedFacts,
    context: Context,
    *,
    is_automation_held: bool = False,
    may_rent_or_preempt: bool = True,
) -> PlannedJob | None:
    """Plan the resume of one job; None if it needs no plan.

    While automation is held, no attempt is stopped; the sweep stops it after the hold.

    A job that is rolled back keeps its healthy nodes, so it needs no option that takes capacity from other jobs.
    """

    def attempt_once() -> PlannedJob | None:
        return _try_to_plan(
            incident,
            affected_job,
            shared_facts,
            context,
            is_automation_held=is_automation_held,
            may_rent_or_preempt=may_rent_or_preempt,
        )

    message = f"{affected_job.job_id} changed on every try to plan its resume"
    return until_committed(attempt_once, message, tries=incident_store.MAX_TRIES)


def _try_to_plan(
    incident: Incident,
    affected_job: AffectedJob,
    shared_facts: _SharedFacts,
    context: Context,
    *,
    is_automation_held: bool,
    may_rent_or_preempt: bool,
) -> PlannedJob | None:
    """Load a job, decide how it resumes, and commit. Return None if it needs no plan.

    Raises:
        Conflict: a row changed since it was read.
    """
    ledger = context.ledger
    row = ledger.get(job_rows.job_key(affected_job.job_id))
    attempt_row = ledger.get(job_rows.attempt_key(affected_job.job_id, affected_job.attempt))
    if row is None or attempt_row is None:
        return None
    job, attempt = rows.decode(row, Job), rows.decode(attempt_row, Attempt)
    if job.state.has_ended:
        return None
    rollback: RollbackDecision | None = None
    if job.current_attempt > affected_job.attempt and not _can_still_distrust(job, affected_job, ledger):
        rollback = _judge_rollback(incident, affected_job, job, context)
    unplanned_job = PlannedJob(job_id=job.job_id, attempt=affected_job.attempt)
    match _situation_of(incident, affected_job, job, rollback, is_automation_held=is_automation_held):
        case _Situation.HAS_PLAN:
            return unplanned_job.replace(option=job.resume_plan.option if job.resume_plan else None)
        case _Situation.ALREADY_RESUMED:
            assert rollback
            _record_running_resume(incident, affected_job, job, attempt, rollback, context)
            return unplanned_job
        case _Situation.ROLLBACK_ON_HOLD:
            return unplanned_job
        case _Situation.NEEDS_ROLLBACK:
            attempt = rows.load(ledger, job_rows.attempt_key(job.job_id, job.current_attempt), Attempt, "such attempt")
        case _Situation.NEEDS_PLAN:
            pass
    facts = _resume_facts(incident, job, attempt, shared_facts, context, may_rent_or_preempt=may_rent_or_preempt)
    resume_decision = plan_resume(facts, context.policy.jobs)
    is_still_distrusted = _has_open_distrust(job, attempt, ledger)
    writes = _plan_writes(
        incident, job, row.version, facts, resume_decision, context, is_still_distrusted=is_still_distrusted
    )
    if rollback is not None:
        decision_record = decision_of(
            "ROLLBACK", incident.incident_id, rollback.action, rollback, rollback.facts, context
        )
        writes = _rollback_writes(incident, affected_job, attempt, decision_record, writes, context)
        context.telemetry.count("JobsRolledBack")
    ledger.commit(*writes)
    return PlannedJob(job_id=job.job_id, attempt=attempt.attempt, option=resume_decision.option)


class _Situation(Enum):
    """The situation of an interrupted job: it needs a plan, a rollback, or nothing more."""

    NEEDS_PLAN = auto()
    HAS_PLAN = auto()
    """An earlier call planned the resume after this attempt."""
    ALREADY_RESUMED = auto()
    """A later attempt runs, and keeps running."""
    NEEDS_ROLLBACK = auto()
    """A later attempt resumed from a checkpoint that is distrusted now."""
    ROLLBACK_ON_HOLD = auto()
    """The same, but a person holds automation."""


def _situation_of(
    incident: Incident,
    affected_job: AffectedJob,
    job: Job,
    rollback: RollbackDecision | None,
    *,
    is_automation_held: bool,
) -> _Situation:
    """Return what a job needs. `rollback` is the decision about its later attempt; None if there is none."""
    if rollback is not None and rollback.action is Rollback.STOP:
        return _Situation.ROLLBACK_ON_HOLD if is_automation_held else _Situation.NEEDS_ROLLBACK
    plan = job.resume_plan
    if plan and (plan.incident_id, plan.after_attempt) == (incident.incident_id, affected_job.attempt):
        return _Situation.HAS_PLAN
    return _Situation.NEEDS_PLAN if rollback is None else _Situation.ALREADY_RESUMED


def _record_running_resume(
    incident: Incident,
    affected_job: AffectedJob,
    job: Job,
    attempt: Attempt,
    rollback: RollbackDecision,
    context: Context,
) -> None:
    """Record that the job resumed before the plan, and page a person if it may not be rolled back again."""
    if rollback.action is Rollback.LIMIT:
        _alert_about_distrusted_checkpoint(incident, affected_job, job.current_attempt, rollback, context)
    _note_already_resuming(incident, job, attempt, rollback.facts.descent, context.ledger)


def _has_open_distrust(job: Job, attempt: Attempt, ledger: Ledger) -> bool:
    """Whether an earlier recovery distrusts checkpoints, and no resume point was pinned since."""
    numbers = range(attempt.attempt, job.distrust_through_attempt, -1) if job.distrust_through_attempt else ()
    attempts = (ledger.get(job_rows.attempt_key(job.job_id, number)) for number in numbers)
    return bool(job.distrust_through_attempt) and not any(
        rows.decode(row, Attempt).is_pinned for row in attempts if row
    )


def _judge_rollback(incident: Incident, affected_job: AffectedJob, job: Job, context: Context) -> RollbackDecision:
    """Judge whether the attempt after the interrupted one resumed from a checkpoint that is distrusted now."""
    fault_class = context.policy.catalogue.look_up(incident.fault_key).fault_class
    trust, since = checkpoint_trust_of(incident, context.policy.catalogue)
    numbers = range(affected_job.attempt + 1, job.current_attempt + 1)
    attempts = (context.ledger.get(job_rows.attempt_key(job.job_id, number)) for number in numbers)
    facts = RollbackFacts(
        interrupted_attempt=affected_job.attempt,
        current_attempt=job.current_attempt,
        descent=tuple(rows.decode(row, Attempt) for row in attempts if row),
        distrust_after=distrust_after(trust, since, context.policy.jobs),
        requirement=requirement_after(trust, fault_class, context.policy.jobs),
        distrust_after_at_launch=job.distrust_after if job.distrust_through_attempt >= affected_job.attempt else None,
        requirement_at_launch=job.requirement
        if job.distrust_through_attempt >= affected_job.attempt
        else CheckpointRequirement.CONVENTION,
        rollbacks=job.rollbacks,
    )
    return decide_rollback(facts, context.policy.jobs)


def _rollback_writes(
    incident: Incident,
    affected_job: AffectedJob,
    attempt: Attempt,
    decision_record: Decision,
    writes: list[Write],
    context: Context,
) -> list[Write]:
    """Extend the writes of a plan: stop the attempt, and make it the interrupted one, in the same commit.

    Its checkpoints descend from the distrusted checkpoint, so it gets no grace period to save more.
    """
    current, version = incident_store.load_incident(context.ledger, incident.incident_id)
    job_put, *further_writes = writes
    assert isinstance(job_put, Put)
    planned_job = rows.decode(job_put.row, Job)
    stop = planned_job.stop_of(attempt.attempt)
    if stop is None and not attempt.state.has_ended:
        stop = StopRequest(
            attempt=attempt.attempt,
            reason=decision_record.reason,
            by=f"recover_node/{incident.incident_id}",
            outcome=AttemptState.LOST,
            grace_seconds=0,
            requested_at=context.now,
        )
    stopped_job = planned_job.replace(
        stop_request=stop or planned_job.stop_request, rollbacks=planned_job.rollbacks + 1
    )
    affected_jobs = tuple(
        job.replace(attempt=attempt.attempt) if job == affected_job else job for job in current.affected_jobs
    )
    return [
        Put(job_rows.job_row(stopped_job, job_put.row.version)),
        Put(incident_rows.incident_row(current.replace(affected_jobs=affected_jobs), version)),
        Put(subject_rows.decision_row(decision_record)),
        incident_store.timeline_put(
            attempt.job_id,
            "rolled back",
            decision_record.reason,
            at=context.now,
            writer=WRITER,
            decision_id=decision_record.decision_id,
        ),
        *further_writes,
    ]


def roll_back_jobs(incident: Incident, context: Context) -> int:
    """Roll back jobs that resumed from a checkpoint that is distrusted now. Return the number of jobs.

    During a hold, nothing is rolled back; the sweep repeats the call.

    Idempotent: yes, a rolled-back attempt becomes the interrupted one in the same commit.
    """
    if distrust_after(*checkpoint_trust_of(incident, context.policy.catalogue), context.policy.jobs) is None:
        return 0
    if guardrail_inputs.GuardrailInputs(context).hold_on(incident) is not None:
        return 0
    rolled_back_count, shared_facts = 0, None
    for affected_job in incident.affected_jobs:
        with contextlib.suppress(Unreadable):  # the other jobs continue, and the sweep reports the row
            if not _needs_rollback(incident, affected_job, context):
                continue
            shared_facts = shared_facts or _read_shared_facts(incident, context)
            _plan_resume_of_job(incident, affected_job, shared_facts, context, may_rent_or_preempt=False)
            rolled_back_count += 1
    return rolled_back_count


def _needs_rollback(incident: Incident, affected_job: AffectedJob, context: Context) -> bool:
    """Whether a job must be rolled back. If it was rolled back too often, page a person instead."""
    row = context.ledger.get(job_rows.job_key(affected_job.job_id))
    job = rows.decode(row, Job) if row else None
    if job is None or job.state.has_ended or job.current_attempt <= affected_job.attempt:
        return False
    rollback = _judge_rollback(incident, affected_job, job, context)
    if rollback.action is Rollback.LIMIT:
        _alert_about_distrusted_checkpoint(incident, affected_job, job.current_attempt, rollback, context)
    return rollback.action is Rollback.STOP


def _note_already_resuming(
    incident: Incident, job: Job, attempt: Attempt, later_attempts: Sequence[Attempt], ledger: Ledger
) -> None:
    """Record once that a job resumed before the plan: its attempt ended with the node, and a later attempt exists.

    The entry has the time of the first later attempt, so a repeated call records the same entry.
    """
    at = max([incident.opened_at, *(later.admitted_at for later in later_attempts[:1])])
    text = f"{job.job_id} lost attempt {attempt.attempt} with the node and is already resuming."
    writer = f"{WRITER}-{job.job_id}"
    with contextlib.suppress(Conflict):  # recorded before
        ledger.commit(incident_store.timeline_put(incident.incident_id, "job", text, at=at, writer=writer))


def _alert_about_distrusted_checkpoint(
    incident: Incident, affected_job: AffectedJob, attempt: int, rollback: RollbackDecision, context: Context
) -> None:
    """Page a person once: the job was rolled back too often, and continues from a distrusted checkpoint.

    After a crash before the record, the alert is sent again.
    """
    if affected_job.distrusted_attempt == attempt:
        return
    context.telemetry.count("JobsOnDistrustedCheckpoints")
    context.telemetry.error(
        "RollbackLimitReached", job_id=affected_job.job_id, reason=rollback.reason, runbook="job-distrusted"
    )
    decision_record = decision_of("ROLLBACK", incident.incident_id, rollback.action, rollback, rollback.facts, context)

    def change(current: Incident) -> tuple[Incident, list[Write]] | None:
        if affected_job not in current.affected_jobs:
            return None
        affected_jobs = tuple(
            job.replace(distrusted_attempt=attempt) if job == affected_job else job for job in current.affected_jobs
        )
        text = f"{affected_job.job_id} keeps running. {rollback.reason} A person must check it."
        line = incident_store.timeline_put(
            current.incident_id, "job", text, at=context.now, writer=WRITER, decision_id=decision_record.decision_id
        )
        return current.replace(affected_jobs=affected_jobs), [Put(subject_rows.decision_row(decision_record)), line]

    incident_store.update_incident(context.ledger, incident.incident_id, change)


def _can_still_distrust(job: Job, affected_job: AffectedJob, ledger: Ledger) -> bool:
    """Whether the next attempt exists without a pinned resume point, so that the distrust still applies."""
    row = ledger.get(job_rows.attempt_key(job.job_id, job.current_attempt))
    return (
        job.current_attempt == affected_job.attempt + 1
        and row is not None
        and rows.decode(row, Attempt).launched_at is None
    )


def _past_incidents(ledger: Ledger, *, is_drill: bool) -> tuple[Incident, ...]:
    """Return the last recoveries that succeeded. Their durations are the estimate for this one.

    Drills say nothing about real recoveries.
    """
    state = f"INC#{IncidentState.RECOVERED}"
    index_entries = every(lambda cursor: ledger.by_state(Table.INCIDENTS, state, cursor=cursor, newest_first=True))
    newest_entries = itertools.islice(index_entries, _MAX_INCIDENTS_READ)
    incidents = (incident for _, incident in rows.readable_rows(newest_entries, Incident))
    of_its_kind = (incident for incident in incidents if incident.is_drill is is_drill)
    return tuple(itertools.islice(of_its_kind, _MAX_INCIDENT_SAMPLES))


def _ended_attempts(ledger: Ledger) -> tuple[Attempt, ...]:
    """Return the newest ended attempts of all jobs, a few of each job."""
    page = ledger.by_state(Table.JOBS, "ATTEMPT#ENDED", limit=_MAX_ATTEMPTS_READ, newest_first=True)
    ended_attempts = (attempt for _, attempt in rows.readable_rows(page.rows, Attempt))
    return tuple(newest_of_each_job(ended_attempts, _MAX_ATTEMPT_SAMPLES))


def _past_attempts(attempt: Attempt, ledger: Ledger) -> tuple[Attempt, ...]:
    """Return the interrupted attempt and the few attempts before it."""
    numbers = range(max(1, attempt.attempt - _MAX_ATTEMPT_SAMPLES), attempt.attempt)
    attempts = (ledger.get(job_rows.attempt_key(attempt.job_id, number)) for number in numbers)
    return (*(rows.decode(row, Attempt) for row in attempts if row), attempt)


def _resume_delays(
    incident: Incident, shared_facts: _SharedFacts, attempts: tuple[Attempt, ...], policy: Policy
) -> ResumeDelays:
    """Return the expected durations: of the job itself, else of its pool, else of the policy."""
    *_, interrupted_attempt = attempts
    pool = (interrupted_attempt.cluster, interrupted_attempt.pool)
    pool_attempts = [attempt for attempt in shared_facts.ended_attempts if (attempt.cluster, attempt.pool) == pool]
    pool_origin = f"pool {interrupted_attempt.pool}"
    economy, jobs = policy.economy, policy.jobs
    rung = next(iter(IncidentFault.of(incident, policy.catalogue).node_rungs), "")
    repair_seconds = jobs.expected_replace_seconds if rung == REPLACE else economy.expected_reboot_seconds
    min_samples = economy.min_samples
    return ResumeDelays(
        repair=expected_duration(
            repair_durations(shared_facts.past, incident.pool, rung),
            repair_seconds,
            min_samples=min_samples,
            origin=f"pool {incident.pool}",
        ),
        capacity=expected_duration((), economy.expected_capacity_seconds, min_samples=min_samples),
        launch=expected_duration(
            launch_durations(attempts),
            economy.expected_launch_seconds,
            min_samples=min_samples,
            otherwise=MeasuredDurations(pool_origin, launch_durations(pool_attempts)),
        ),
        restore=expected_duration(
            restore_durations(attempts),
            jobs.expected_resume_seconds,
            min_samples=min_samples,
            otherwise=MeasuredDurations(pool_origin, restore_durations(pool_attempts)),
        ),
    )


def _requested_nodes(job: Job) -> int:
    if job.spec.elastic is None:
        return job.spec.nodes
    # A mixed job resumes on its base. Rented nodes that are still usable join it, but it never waits for them.
    return job.committed_size if job.rented_nodes else max(job.spec.nodes, job.size)


def _interrupted_job(
    incident: Incident, job: Job, attempt: Attempt, wait_seconds: float, policy: Policy
) -> find_resume_options.InterruptedJob:
    stays = _stays_in_service(incident)
    earlier_plan = job.live_plan()
    return find_resume_options.InterruptedJob(
        job,
        attempt,
        faulty_node="" if stays else incident.node_name,
        avoid=(*(earlier_plan.avoid if earlier_plan else ()), *(() if stays else (incident.life.key,))),
        wait_seconds=wait_seconds,
        is_faulty_node_committed=_is_faulty_node_committed(incident, policy),
    )


def _resume_facts(
    incident: Incident,
    job: Job,
    attempt: Attempt,
    shared_facts: _SharedFacts,
    context: Context,
    *,
    may_rent_or_preempt: bool,
) -> ResumeFacts:
    pools = _pool_capacities(incident, job, attempt, shared_facts, context.policy)
    delays = _resume_delays(incident, shared_facts, _past_attempts(attempt, context.ledger), context.policy)
    is_repaired = bool(incident.plan and incident.plan.repairs_node)
    wait = capacity_wait(delays, pools, _requested_nodes(job), is_repaired=is_repaired)
    options = find_resume_options.ResumeOptions(unavailable=_NOT_CHECKED)
    if may_rent_or_preempt and not any(pool.usable >= _requested_nodes(job) for pool in pools):
        interrupted_job = _interrupted_job(incident, job, attempt, wait, context.policy)
        options = find_resume_options.run(interrupted_job, shared_facts.nodes, shared_facts.in_use, context)
    policy, now = context.policy, context.now
    fault = IncidentFault.of(incident, policy.catalogue)
    trust, since = checkpoint_trust_of(incident, policy.catalogue)
    ended_at = attempt.ended_at or now
    distrusted_from = distrust_after(trust, since, policy.jobs) or ended_at
    price = policy.economy.price_of(incident.instance_type, now, attempt.pool)
    return ResumeFacts(
        job_id=job.job_id,
        attempt=attempt.attempt,
        nodes=_requested_nodes(job),
        accelerators_per_node=job.spec.accelerators_per_node,
        pools=pools,
        option_costs=options.unavailable if job.spec.elastic else (_NOT_ELASTIC, *options.unavailable),
        renting=options.renting,
        preemption_victims=options.preemption_victims,
        usd_per_hour_of_delay=policy.burst.usd_of_delay(job.spec.priority_class),
        node_loss=_node_loss_facts(incident, job, attempt, pools, policy, now),
        delays=delays,
        lost_work_seconds=lost_work_seconds(
            ran_seconds=(ended_at - (attempt.running_at or ended_at)).total_seconds(),
            keeps_checkpoints=bool(job.spec.checkpoint_uri),
            distrusted_seconds=max(0.0, (ended_at - distrusted_from).total_seconds()),
            expected_checkpoint_seconds=policy.economy.expected_checkpoint_seconds,
        ),
        usd_per_accelerator_hour=price.usd if price else None,
        price_origin=price.origin if price else f"{incident.instance_type or 'the node'} has no list price",
        fault_key=incident.fault_key,
        fault_class=fault.fault.fault_class,
        trust=trust,
        first_signal_at=since,
        faulty_life=incident.life.key,
        will_be_replaced=fault.node_rungs[:1] == (REPLACE,) and not _stays_in_service(incident),
        is_repaired=is_repaired,
        network=_network_facts(job, attempt, pools, shared_facts, context),
    )


def _network_facts(
    job: Job, attempt: Attempt, pools: Sequence[PoolCapacity], shared_facts: _SharedFacts, context: Context
) -> NetworkFacts | None:
    """Return how far apart the nodes of the interrupted attempt were; None for a job on one node."""
    if _requested_nodes(job) < _SMALLEST_GANG:
        return None
    economy = context.policy.economy
    before = _spread_before(attempt, shared_facts, context.ledger)
    network = NetworkFacts(
        before=before, slowdown_per_level=economy.slowdown_per_network_level, why_not_weighed=_why_not_weighed(job)
    )
    is_farther = any(pool.spread and before and pool.spread.levels_apart > before.levels_apart for pool in pools)
    if not (is_farther and network.slowdown_per_level) or network.why_not_weighed:
        return network
    ran = run_seconds(rental_store.read_attempts(context.ledger, [job]), context.now) if job.spec.checkpoint_uri else {}
    run_times = run_times_of(past_jobs.load_past_jobs(context.ledger), economy.min_samples)
    remaining_time = run_times.remaining(origin_of(job, context.policy), ran.get(job.job_id, 0.0))
    return network.replace(
        remaining_seconds=round(remaining_time.mean, 1),
        failures_per_hour=economy.failures_per_node_hour * _requested_nodes(job),
    )


def _why_not_weighed(job: Job) -> str:
    """Return why the slowdown of distant nodes does not count for a job; empty if it counts."""
    if job.local_queue:
        return "Kueue chooses the nodes, so no slowdown is weighed"
    if job.spec.sizes is not None:
        return "an elastic job grows onto such nodes anyway, so no slowdown is weighed"
    return ""


def _spread_before(attempt: Attempt, shared_facts: _SharedFacts, ledger: Ledger) -> NetworkSpread | None:
    """Return how far apart the nodes of an attempt are; None if the position of a node is unknown or unreadable.

    Kubernetes may have removed the faulty node already. Its position is then in the row of the last sweep.
    """
    node_objects = {(node.cluster, node.name): node for node in shared_facts.nodes}
    nodes: list[HasPosition] = []
    for life, name in zip(attempt.nodes, attempt.node_names, strict=False):
        node: HasPosition | None = node_objects.get((life.cluster, name))
        if node is None:
            row = ledger.get(fleet_rows.node_key(life.cluster, life.instance_id))
            node = next((value for _, value in rows.readable_rows([row] if row else [], FleetNode)), None)
        if node is None:
            return None
        nodes.append(node)
    return spread_of(nodes)


def _node_loss_facts(
    incident: Incident, job: Job, attempt: Attempt, pools: tuple[PoolCapacity, ...], policy: Policy, now: datetime
) -> NodeLossFacts | None:
    """Return the nodes that an elastic job lost and kept; None if it runs at one size only."""
    if job.spec.sizes is None:
        return None
    nodes = _requested_nodes(job)
    # The pods of a gang run in one pool.
    usable_nodes = max((pool.usable for pool in pools), default=0)
    lost_nodes = max(1, nodes - usable_nodes)
    return NodeLossFacts(
        job=ElasticJob(
            job_id=job.job_id,
            nodes=nodes,
            accelerators_per_node=job.spec.accelerators_per_node,
            sizes=job.spec.sizes,
            started_at=attempt.admitted_at,
        ),
        lost_nodes=lost_nodes,
        spares=max(0, usable_nodes - (nodes - lost_nodes)),
        lost_at=incident.opened_at,
        policy=policy.scheduling.elastic,
        now=now,
    )


def _stays_in_service(incident: Incident) -> bool:
    """Whether the fault is attributed only to the jobs, so that the node counts as healthy."""
    return incident.plan is not None and incident.plan.intends_action and not incident.plan.repairs_node


def _pool_capacities(
    incident: Incident,
    job: Job,
    attempt: Attempt,
    shared_facts: _SharedFacts,
    policy: Policy,
) -> tuple[PoolCapacity, ...]:
    """Count, by pool, the nodes that are free now, or will be once the interrupted attempt has ended.

    A rented node counts only for its own job. If the job requires a network level, only the nodes of the domain with
    most of them count.
    """
    allowed_types = job.spec.instance_types
    rented_pools = {(pool.cluster, pool.name) for pool in policy.burst.pools}
    keeps_rented = _stays_in_service(incident) or incident.node_name not in attempt.node_names
    nodes_by_pool: dict[str, list[KubernetesNode]] = {}
    for node in shared_facts.nodes:
        is_faulty_node = node.name == incident.node_name and not _stays_in_service(incident)
        if is_faulty_node or not node.is_schedulable:
            continue
        if allowed_types and node.instance_type not in allowed_types:
            continue
        is_own = node.name in attempt.node_names
        is_elsewhere = node.cluster != job.cluster or (node.cluster, node.pool) in rented_pools
        if is_elsewhere and not (is_own and keeps_rented):
            continue
        free_resources = node.allocatable.minus(NONE if is_own else shared_facts.in_use.get(node.name, NONE))
        accelerators, by_pool = job.spec.accelerators_per_node, policy.scheduling.efa_interfaces
        has_efa = node.efa >= efa.interfaces_per_pod(efa.EfaNode.of(node), attempt.ranks, accelerators, by_pool)
        if not why_too_small(attempt.per_node, free_resources, node.allocatable) and has_efa:
            nodes_by_pool.setdefault(node.pool, []).append(node)
    spares = policy.scheduling.spare_nodes
    # The pool of the last attempt first: the job's data and peers are near.
    order = sorted(nodes_by_pool, key=lambda pool: (pool != attempt.pool, pool))
    return tuple(
        _pool_capacity(job, pool, sorted(nodes_by_pool[pool], key=lambda node: node.name), spares.get(pool, 0))
        for pool in order
    )


def _pool_capacity(job: Job, pool: str, nodes: Sequence[KubernetesNode], spares: int) -> PoolCapacity:
    """Return what these free nodes of a pool offer to a job.

    If the job requires a network level, only its largest domain counts. All nodes count if none has a label of the
    level: HyperPod may know the UltraServer of a node without a label.
    """
    needs, count = job.spec.network_needs, _requested_nodes(job)
    usable = (largest_domain(nodes, needs.required) if needs.required else 0) or len(nodes)
    has_spread = _SMALLEST_GANG <= count <= len(nodes)
    spread = spread_of(closest_nodes(nodes, count, needs).nodes) if has_spread else None
    return PoolCapacity(pool=pool, usable=usable, spares=spares, spread=spread)


def _plan_writes(
    incident: Incident,
    job: Job,
    version: int,
    facts: ResumeFacts,
    resume_decision: ResumeDecision,
    context: Context,
    *,
    is_still_distrusted: bool,
) -> list[Write]:
    decision_record = decision_of(
        "RESUME", incident.incident_id, resume_decision.option, resume_decision, facts, context
    )
    decision = decision_record.replace(
        chosen=Alternative(
            option=resume_decision.option,
            why_not="",
            expected_seconds=resume_decision.expected_seconds,
            gpu_hours_lost=resume_decision.gpu_hours_lost,
            usd=resume_decision.usd,
            slowdown_seconds=resume_decision.slowdown_seconds,
        )
    )
    plan = _resume_plan(incident, job, facts.attempt, resume_decision, decision.decision_id, context)
    text = f"{job.job_id} resumes by {resume_decision.option}. {resume_decision.reason}"
    line = incident_store.timeline_row_of(
        incident.incident_id,
        "job",
        text,
        at=context.now,
        writer=f"{WRITER}-{job.job_id}",
        decision_id=decision.decision_id,
    )
    return [
        Put(job_rows.job_row(job.with_plan(plan, is_still_distrusted=is_still_distrusted), version)),
        Put(subject_rows.decision_row(decision)),
        Put(line),
        incident_store.timeline_put(
            job.job_id,
            "planned",
            f"Resumes by {resume_decision.option} after {incident.incident_id}. {resume_decision.reason}",
            at=context.now,
            writer=WRITER,
            decision_id=decision.decision_id,
        ),
    ]


def _resume_plan(
    incident: Incident, job: Job, attempt: int, resume_decision: ResumeDecision, decision_id: str, context: Context
) -> ResumePlan:
    # Another node of the same job may have failed, too. Its node life stays avoided.
    earlier_plan = job.live_plan()
    return ResumePlan(
        incident_id=incident.incident_id,
        after_attempt=attempt,
        option=resume_decision.option,
        avoid=tuple(dict.fromkeys((*(earlier_plan.avoid if earlier_plan else ()), *resume_decision.avoid))),
        distrust_after=resume_decision.distrust_after,
        requirement=resume_decision.requirement,
        shrinks_at=resume_decision.shrinks_at,
        max_rent_parts=resume_decision.max_rent_parts,
        capacity_at=context.now + timedelta(seconds=resume_decision.capacity_seconds),
        near_level=resume_decision.near_level,
        far_nodes_at=None
        if resume_decision.far_nodes_after_seconds is None
        else context.now + timedelta(seconds=resume_decision.far_nodes_after_seconds),
        is_faulty_node_committed=_is_faulty_node_committed(incident, context.policy),
        decision_id=decision_id,
        planned_at=context.now,
    )


def _is_faulty_node_committed(incident: Incident, policy: Policy) -> bool:
    """Whether the faulty node is committed capacity."""
    return (incident.life.cluster, incident.pool) not in {(pool.cluster, pool.name) for pool in policy.burst.pools}
