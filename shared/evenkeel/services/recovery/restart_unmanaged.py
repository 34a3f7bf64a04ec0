"""Restart jobs that Evenkeel did not create, after their node failed and where their operator does not.

DrainNode and RepairNode request a restart and take its first step. The sweep takes the steps that are left. Each step
is decided anew from the object in the cluster, so a repeated, late or lost step does no harm.
"""

import contextlib
from collections.abc import Iterator

from evenkeel.domain.health.assessment import checkpoint_trust_of
from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.jobs.workload_kind import WorkloadKind
from evenkeel.domain.nodes import FleetNode
from evenkeel.domain.recovery.draining import affected_since
from evenkeel.domain.recovery.resume_options import distrust_after
from evenkeel.domain.recovery.unmanaged_restarts import (
    MAX_MANIFEST_BYTES,
    NextStep,
    RestartAction,
    RestartDecision,
    RestartFacts,
    RestartStage,
    RestartStep,
    UnmanagedJob,
    UnmanagedJobState,
    UnmanagedRestart,
    choose_next_step,
    decide_restart,
    is_stopping_step,
    parse_label,
    why_not_concerned,
)
from evenkeel.ports import EvenkeelError, Key, PermanentError, Put, Write
from evenkeel.services.context import Context
from evenkeel.services.incidents import recovery_step
from evenkeel.services.recovery import guardrail_inputs
from evenkeel.services.storage import incident_store
from evenkeel.services.storage.decision_record import decision_of
from evenkeel.services.tables import fleet_rows, rows, unmanaged_restart_rows

WRITER = "restart_unmanaged"
_MAX_NAMED_JOBS = 50
"""Most unmanaged jobs that an incident names. Beyond that number, only restarts are recorded."""


def run(incident: Incident, context: Context, *, may_stop: bool) -> frozenset[str]:
    """Decide about each unmanaged job on the node of an incident, and start the restarts. Return the jobs to move.

    A job that cannot be handled now delays no other job.

    Idempotent: yes, a job has one restart at a time, by its name.

    Args:
        incident: The incident.
        context: The adapters and the policy.
        may_stop: Whether the guardrails allow to stop jobs on the node.

    Returns:
        Labels of the jobs whose pods are evicted at once, because their operators start them on other nodes.
    """
    if not incident.node_name or not may_stop:
        return frozenset()
    for label, action in incident.unmanaged_jobs.items():
        if action == RestartAction.RESTART:
            _advance_safely(incident, label, context)
    moved_labels = set()
    node = _stored_node(incident, context)
    for job in _jobs_on_node(incident, node, context):
        if why_not_concerned(job, incident.node_name, by_policy=_is_adopted(job, context)):
            continue
        try:
            if _handle_job(incident, job, node, context) is RestartAction.MOVE:
                moved_labels.add(job.label)
        except EvenkeelError as error:
            context.telemetry.warning("UnmanagedJobNotHandled", job=job.label, detail=str(error))
    return frozenset(moved_labels)


def run_if_allowed(incident: Incident, context: Context) -> frozenset[str]:
    """Restart the jobs as `run` does, if the plan repairs the node, and if mode, holds and guardrails allow it.

    Idempotent: yes, as `run`.
    """
    if incident.plan is None or not incident.plan.repairs_node or _why_not_now(incident, context):
        return frozenset()
    return run(incident, context, may_stop=True)


def _advance_safely(incident: Incident, label: str, context: Context) -> None:
    try:
        if row := context.ledger.get(_restart_key(incident, label)):
            advance(rows.decode(row, UnmanagedRestart), context)
    except EvenkeelError as error:
        context.telemetry.warning("UnmanagedJobNotHandled", job=label, detail=str(error))


def _restart_key(incident: Incident, label: str) -> Key:
    kind, namespace, name = parse_label(label)
    return unmanaged_restart_rows.restart_key(incident.life.cluster, namespace, kind, name)


def _jobs_on_node(incident: Incident, node: FleetNode | None, context: Context) -> Iterator[UnmanagedJob]:
    """Yield the unmanaged jobs with pods on the node, and then failed jobs that a sweep listed there before."""
    cluster = incident.life.cluster
    jobs = context.cluster.unmanaged_jobs(cluster, incident.node_name)
    yield from jobs
    labels = {*node.unmanaged_workloads, *node.left_workloads} if node else set()
    for label in sorted(labels - {job.label for job in jobs}):
        kind, namespace, name = parse_label(label)
        if kind in set(WorkloadKind):
            with contextlib.suppress(EvenkeelError):  # the other jobs continue, and the sweep tries this job again
                job = context.cluster.unmanaged_job(cluster, namespace, WorkloadKind(kind), name)
                if job is not None and job.state is UnmanagedJobState.FAILED:
                    yield job


def _stored_node(incident: Incident, context: Context) -> FleetNode | None:
    row = context.ledger.get(fleet_rows.node_key(incident.life.cluster, incident.life.instance_id))
    return next((node for _, node in rows.readable_rows([row] if row else [], FleetNode)), None)


def _is_adopted(job: UnmanagedJob, context: Context) -> bool:
    return job.namespace in context.policy.adoption.namespaces


def _handle_job(incident: Incident, job: UnmanagedJob, node: FleetNode | None, context: Context) -> RestartAction:
    row = context.ledger.get(_restart_key(incident, job.label))
    last_restart = rows.decode(row, UnmanagedRestart) if row else None
    if last_restart is not None and last_restart.stage is not RestartStage.ENDED:
        return RestartAction.RESTART
    decision = _decide_restart(incident, job, node, last_restart, context)
    named_jobs = incident.unmanaged_jobs
    is_known = named_jobs.get(job.label) == decision.action or len(named_jobs) >= _MAX_NAMED_JOBS
    if decision.action is not RestartAction.RESTART and is_known:
        return decision.action
    restart = UnmanagedRestart(
        cluster=incident.life.cluster,
        namespace=job.namespace,
        kind=job.kind,
        name=job.name,
        uid=job.uid,
        incident_id=incident.incident_id,
        node_name=incident.node_name,
        begun_at=context.now,
        earlier=last_restart.recent_starts(context.now) if last_restart else (),
    )
    _record_decision(incident, job, decision, restart, row.version if row else 0, context)
    if decision.action is RestartAction.RESTART:
        advance(restart, context)
    return decision.action


def _decide_restart(
    incident: Incident,
    job: UnmanagedJob,
    node: FleetNode | None,
    last_restart: UnmanagedRestart | None,
    context: Context,
) -> RestartDecision:
    policy = context.policy
    left_workloads = node.left_workloads if node else {}
    facts = RestartFacts(
        job=job,
        node_name=incident.node_name,
        allowed_by_policy=_is_adopted(job, context),
        affected_since=affected_since(incident, policy),
        was_listed_on_node=node is not None and job.label in {*node.unmanaged_workloads, *left_workloads},
        left_node_at=left_workloads.get(job.label),
        distrusted_since=distrust_after(*checkpoint_trust_of(incident, policy.catalogue), policy.jobs),
        recent_restarts=len(last_restart.recent_starts(context.now)) if last_restart else 0,
        max_restarts=policy.adoption.max_restarts,
    )
    decision = decide_restart(facts)
    if decision.action is not RestartAction.RESTART:
        return decision
    return decide_restart(facts.replace(why_impossible=_why_impossible(incident.life.cluster, job, context)))


def _record_decision(
    incident: Incident,
    job: UnmanagedJob,
    decision: RestartDecision,
    restart: UnmanagedRestart,
    version: int,
    context: Context,
) -> None:
    """Record a decision with its timeline line. In the same commit, record the restart if there is one."""
    decision_record = decision_of(
        "RESTART",
        incident.incident_id,
        decision.action,
        decision,
        decision.facts,
        context.replace(mode=incident.mode or context.mode),
    )
    restarts = (
        [Put(unmanaged_restart_rows.restart_row(restart, version))] if decision.action is RestartAction.RESTART else []
    )

    def change(current: Incident) -> tuple[Incident, list[Write]] | None:
        named_jobs = current.unmanaged_jobs
        if job.label in named_jobs or len(named_jobs) < _MAX_NAMED_JOBS:
            named_jobs = {**named_jobs, job.label: decision.action}
        decision_puts = incident_store.decision_puts(decision_record, "job", at=context.now, writer=WRITER)
        return current.replace(unmanaged_jobs=named_jobs), [*decision_puts, *restarts]

    incident_store.update_incident(context.ledger, incident.incident_id, change)
    context.telemetry.count("UnmanagedJobsDecided", action=decision.action)


def advance(restart: UnmanagedRestart, context: Context) -> UnmanagedRestart:
    """Take the next step of a restart, as the object in the cluster requires it.

    Idempotent: yes. Each step that stops the job is recorded before it is taken, and the next call decides anew.

    Raises:
        Conflict: Another writer has advanced the restart meanwhile.
    """
    row = context.ledger.get(unmanaged_restart_rows.key_of(restart))
    if row is None:
        return restart
    restart = rows.decode(row, UnmanagedRestart)
    if restart.stage is RestartStage.ENDED:
        return restart
    job = context.cluster.unmanaged_job(restart.cluster, restart.namespace, restart.kind, restart.name)
    step = choose_next_step(restart, job)
    progress = _RestartWriter(restart, row.version, context)
    if is_stopping_step(step.step):  # the other steps start the job again, whatever became of the incident
        incident, _ = incident_store.load_incident(context.ledger, restart.incident_id)
        is_adopted = restart.namespace in context.policy.adoption.namespaces
        step = choose_next_step(restart, job, incident_is_over=incident.state.is_settled, by_policy=is_adopted)
        if is_stopping_step(step.step) and (reason_not_allowed := _why_not_now(incident, context)):
            return progress.record_wait_reason(reason_not_allowed)
    if step.step is RestartStep.WAIT:
        return progress.record_wait_reason(step.reason)
    if step.step is RestartStep.CREATE:
        return _create_job_again(progress, step.reason)
    if step.step is RestartStep.END or job is None:
        return progress.record_end(step.reason, was_restarted=step.was_restarted)
    if step.step is RestartStep.RESUME:
        context.cluster.suspend(restart.cluster, job, is_suspended=False)
        return progress.record_end(step.reason, was_restarted=True)
    return _stop_job(progress, job, step)


class _RestartWriter:
    """Writes the progress of one restart."""

    def __init__(self, restart: UnmanagedRestart, version: int, context: Context) -> None:
        self.restart, self._version, self.context = restart, version, context

    def record(self, text: str = "", **changes: object) -> UnmanagedRestart:
        """Record changes, with a line in the timeline of the incident if there is a text."""
        self.restart = self.restart.replace(**changes)
        line = incident_store.timeline_put(
            self.restart.incident_id,
            "job",
            text,
            at=self.context.now,
            writer=f"{WRITER}-{self.restart.namespace}/{self.restart.name}-{self._version}",
        )
        self.context.ledger.commit(
            Put(unmanaged_restart_rows.restart_row(self.restart, self._version)), *([line] if text else [])
        )
        self._version += 1
        return self.restart

    def record_wait_reason(self, text: str) -> UnmanagedRestart:
        """Record why the restart waits, unless that is recorded already."""
        return self.restart if text == self.restart.result else self.record(text, result=text)

    def record_end(self, text: str, *, was_restarted: bool) -> UnmanagedRestart:
        self.context.telemetry.count("UnmanagedJobRestarts", outcome="RESTARTED" if was_restarted else "NOT_RESTARTED")
        return self.record(
            text,
            stage=RestartStage.ENDED,
            result=text,
            was_restarted=was_restarted,
            ended_at=self.context.now,
            manifest="",
        )


def _why_not_now(incident: Incident, context: Context) -> str:
    """Return why Evenkeel may not stop a job for the incident now; empty if it may."""
    if reason_not_allowed := recovery_step.why_may_not_act(incident, context):
        return reason_not_allowed
    verdict = guardrail_inputs.check_stop_allowed(incident, context)
    return "" if verdict.is_allowed else verdict.reason


def _why_impossible(cluster: str, job: UnmanagedJob, context: Context) -> str:
    """Return why Evenkeel could not stop a job and start it again; empty if it could."""
    if missing_permissions := context.cluster.missing_restart_rights(cluster, job):
        refusals = "; ".join(permission.refusal for permission in missing_permissions)
        context.telemetry.warning("RestartNotPermitted", job=job.label, detail=refusals)
        verbs = ", ".join(f"{permission.verb} {permission.resource}" for permission in missing_permissions)
        return f"Evenkeel has no right to {verbs} in its namespace."
    is_too_long = (
        job.state is UnmanagedJobState.FAILED
        and len(context.cluster.manifest_of(cluster, job).encode()) > MAX_MANIFEST_BYTES
    )
    return f"its manifest has more than {MAX_MANIFEST_BYTES} bytes." if is_too_long else ""


def _stop_job(progress: _RestartWriter, job: UnmanagedJob, step: NextStep) -> UnmanagedRestart:
    """Suspend the object, or delete it. Record that first, so that the next call can tell who did it."""
    cluster, restart = progress.context.cluster, progress.restart
    if why_impossible := _why_impossible(restart.cluster, job, progress.context):
        return progress.record_end(f"{restart.label} is not restarted: {why_impossible}", was_restarted=False)
    if step.step is RestartStep.SUSPEND:
        if restart.stage is not RestartStage.SUSPENDED:
            restart = progress.record(step.reason, stage=RestartStage.SUSPENDED)
        cluster.suspend(restart.cluster, job, is_suspended=True)
        return restart
    manifest = cluster.manifest_of(restart.cluster, job)
    is_repeated = restart.stage is RestartStage.DELETED
    restart = progress.record("" if is_repeated else step.reason, stage=RestartStage.DELETED, manifest=manifest)
    if not cluster.delete_job(restart.cluster, job) and not is_repeated:
        return progress.record_end(f"{restart.label} was deleted by its owner.", was_restarted=False)
    return restart


def _create_job_again(progress: _RestartWriter, reason: str) -> UnmanagedRestart:
    """Create the deleted job. A refusal is repeated until it succeeds, because only the ledger has the job now."""
    restart = progress.restart
    try:
        progress.context.cluster.create_job(restart)
    except PermanentError as error:
        telemetry = progress.context.telemetry
        telemetry.count("UnmanagedJobsNotCreated")
        telemetry.error("UnmanagedJobNotCreated", job=restart.label, detail=str(error), runbook="job-not-created")
        return progress.record_wait_reason(f"{restart.label} cannot be created again yet: {error}")
    return progress.record_end(reason, was_restarted=True)
