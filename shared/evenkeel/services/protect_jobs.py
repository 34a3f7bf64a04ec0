"""State ProtectJobs of recover_node: stop what runs on the node, with the grace that its fault allows.

For each hurt job: a StopRequest on the job, then its workload is deleted. Its own workflow settles the attempt.
"""

import math
from collections.abc import Iterator
from datetime import datetime, timedelta

from evenkeel.domain.health.faults import look_up
from evenkeel.domain.health.incidents import HurtJob, Incident, JobAct
from evenkeel.domain.policy import Mode, Policy
from evenkeel.domain.recovery.approval import is_approved
from evenkeel.domain.recovery.modes import mode_now
from evenkeel.domain.recovery.plan import not_allowed
from evenkeel.domain.recovery.resume import distrust_after
from evenkeel.domain.scheduling.jobs import Attempt, AttemptState, Job, StopRequest
from evenkeel.domain.values import Value
from evenkeel.ports import Cluster, Conflict, Ledger, Put, Table, Telemetry, Write, every
from evenkeel.services import guard_acts, incident_record, rows

WRITER = "protect_jobs"

Request = incident_record.Request


class Outcome(Value):
    """Which jobs are hurt."""

    outcome: str
    """PROTECTED or NO_JOBS."""
    reason: str
    jobs: tuple[HurtJob, ...] = ()


def run(
    request: Request,
    *,
    ledger: Ledger,
    cluster: Cluster,
    telemetry: Telemetry,
    policy: Policy,
    mode: Mode,
    drills_may_act: bool,
    now: datetime,
) -> Outcome:
    """Find the jobs on the node and stop them.

    Idempotent: yes: what was hurt is stored and only grows, a stop request stays, and deleting what is gone is success.
    """
    incident, _ = incident_record.load(ledger, request.incident_id)
    allowed = mode_now(mode, incident.mode, is_approved=is_approved(incident))
    barred = not_allowed(allowed, is_drill=incident.is_drill, drills_may_act=drills_may_act)
    if barred or incident.state.is_settled:
        return Outcome(outcome="NO_JOBS", reason=barred or "The incident is settled.")
    if incident.plan is not None and incident.plan.jobs is JobAct.LEAVE:
        return Outcome(outcome="NO_JOBS", reason="What runs on it may run on.")
    return protect(incident, ledger=ledger, cluster=cluster, telemetry=telemetry, policy=policy, now=now)


def protect(
    incident: Incident, *, ledger: Ledger, cluster: Cluster, telemetry: Telemetry, policy: Policy, now: datetime
) -> Outcome:
    """Stop what runs on the incident's node. Called again right before a repair, for what slipped in.

    Idempotent: yes, as `run`.
    """
    found = find_hurt(incident, ledger=ledger, cluster=cluster, policy=policy)
    incident = _remember(incident, found, ledger)
    for hurt in incident.hurt_jobs:
        _forgive(incident, hurt, ledger, now)
    if not incident.hurt_jobs:
        return Outcome(outcome="NO_JOBS", reason="No job ran on it.")
    verdict = guard_acts.may_stop(incident, ledger=ledger, cluster=cluster, policy=policy, now=now)
    if not verdict.allowed:
        return Outcome(outcome="PROTECTED", reason=f"The jobs run on. {verdict.reason}", jobs=incident.hurt_jobs)
    stopped = [hurt for hurt in incident.hurt_jobs if _stop(incident, hurt, ledger, cluster, policy, now)]
    _tell(incident, stopped, ledger, now)
    telemetry.count("JobsProtected", len(stopped))
    names = ", ".join(hurt.job_id for hurt in incident.hurt_jobs)
    return Outcome(outcome="PROTECTED", reason=f"Stopped to be moved: {names}.", jobs=incident.hurt_jobs)


def find_hurt(incident: Incident, *, ledger: Ledger, cluster: Cluster, policy: Policy) -> tuple[HurtJob, ...]:
    """Find the jobs whose current attempt has its place on the node: by its pods there, and by the ledger.

    An attempt that ended there already, since about the first signal, counts too: it was hurt all the same, its job
    may still be on its way back, and what it saved last may be as sick as the node. Its pods may be gone with the node,
    so the ledger tells.
    """
    candidates = {
        (seen.job_id, seen.attempt)
        for seen in cluster.workloads(incident.life.cluster)
        if any(pod.node_name == incident.node_name for pod in seen.pods)
    }
    for attempt in (*_live(ledger), *_ended_since(_hurt_since(incident, policy), ledger)):
        if any(life.key == incident.life.key for life in attempt.nodes):
            candidates.add((attempt.job_id, attempt.attempt))
    hurt = [HurtJob(job_id=job, attempt=number) for job, number in sorted(candidates)]
    return tuple(each for each in hurt if _is_hurt(each, incident, ledger, policy))


def _live(ledger: Ledger) -> Iterator[Attempt]:
    for row in every(lambda cursor: ledger.by_state(Table.JOBS, "ATTEMPT#LIVE", cursor=cursor)):
        yield rows.read(row, Attempt)


def _ended_since(since: datetime, ledger: Ledger) -> Iterator[Attempt]:
    """Return the attempts that ended lately, the last first."""
    for row in every(lambda cursor: ledger.by_state(Table.JOBS, "ATTEMPT#ENDED", cursor=cursor, newest_first=True)):
        attempt = rows.read(row, Attempt)
        if attempt.ended_at is None or attempt.ended_at < since:
            return
        yield attempt


def _hurt_since(incident: Incident, policy: Policy) -> datetime:
    """Return from when on an end on the node is laid on its fault, which began before its first signal.

    Where the fault can corrupt, an attempt that ended in the poisoned window saved in it, too.
    """
    blamed = incident.first_signal_at - timedelta(seconds=policy.jobs.blame_seconds)
    trust = look_up(incident.fault_key).checkpoint_trust
    return min(blamed, distrust_after(trust, incident.first_signal_at, policy.jobs) or blamed)


def _is_hurt(hurt: HurtJob, incident: Incident, ledger: Ledger, policy: Policy) -> bool:
    loaded = _load(hurt, ledger)
    if loaded is None:
        return False
    job, _, attempt = loaded
    if job.state.has_ended:
        return False
    if attempt.ended_at is None:
        return job.current_attempt == hurt.attempt
    return attempt.state in (AttemptState.LOST, AttemptState.FAILED) and attempt.ended_at >= _hurt_since(
        incident, policy
    )


def _load(hurt: HurtJob, ledger: Ledger) -> tuple[Job, int, Attempt] | None:
    job = ledger.get(rows.job_key(hurt.job_id))
    attempt = ledger.get(rows.attempt_key(hurt.job_id, hurt.attempt))
    if job is None or attempt is None:
        return None
    return rows.read(job, Job), job.version, rows.read(attempt, Attempt)


def _remember(incident: Incident, found: tuple[HurtJob, ...], ledger: Ledger) -> Incident:
    def change(current: Incident) -> tuple[Incident, list[Write]] | None:
        # A job is listed once, with the latest attempt that was hurt here.
        before = {hurt.job_id: hurt for hurt in current.hurt_jobs}
        later = [hurt for hurt in found if hurt.job_id not in before or before[hurt.job_id].attempt < hurt.attempt]
        merged = before | {hurt.job_id: hurt for hurt in later}
        hurt_jobs = tuple(merged.values())
        return None if hurt_jobs == current.hurt_jobs else (current.but(hurt_jobs=hurt_jobs), [])

    return incident_record.amend(ledger, incident.incident_id, change)


def _forgive(incident: Incident, hurt: HurtJob, ledger: Ledger, now: datetime) -> None:
    """Take back a failure that was laid on the application before its node was known to be sick.

    In one commit with the incident's note of it, so that it is taken back once.
    """
    for _ in range(incident_record.TRIES):
        loaded = None if hurt.is_forgiven else _load(hurt, ledger)
        if loaded is None:
            return
        job, job_version, attempt = loaded
        if attempt.state is not AttemptState.FAILED or job.state.has_ended or job.application_failures == 0:
            return
        current, version = incident_record.load(ledger, incident.incident_id)
        if hurt not in current.hurt_jobs:
            return
        noted = tuple(each.but(is_forgiven=True) if each == hurt else each for each in current.hurt_jobs)
        subject = incident.incident_id
        text = f"The failure of attempt {hurt.attempt} is not the application's: its node was sick ({subject})."
        try:
            ledger.commit(
                Put(rows.incident_row(current.but(hurt_jobs=noted), version)),
                Put(rows.job_row(job.but(application_failures=job.application_failures - 1), job_version)),
                incident_record.told(job.job_id, "forgiven", text, at=now, writer=WRITER),
            )
        except Conflict:
            continue
        return
    raise Conflict(f"{hurt.job_id} kept changing while its failure was to be taken back")


def grace_seconds(incident: Incident, job: Job, policy: Policy) -> int:
    """Return the time a job's pods get to save: what it asks for, as far as the fault allows."""
    drain = look_up(incident.fault_key).drain_seconds
    if drain < 0:
        return job.spec.grace_seconds
    return min(job.spec.grace_seconds, math.ceil(drain * policy.repair.drain_scale))


def _stop(incident: Incident, hurt: HurtJob, ledger: Ledger, cluster: Cluster, policy: Policy, now: datetime) -> bool:
    """Ask an attempt to stop and delete its workload; False where it has ended or somebody else had asked."""
    for _ in range(incident_record.TRIES):
        loaded = _load(hurt, ledger)
        if loaded is None:
            return False
        job, version, attempt = loaded
        if attempt.state.has_ended or job.current_attempt != hurt.attempt:
            return False
        asked = job.stop_of(hurt.attempt)
        by = f"recover_node/{incident.incident_id}"
        if asked is None:
            fault = look_up(incident.fault_key)
            where = incident.node_name or incident.life.instance_id
            asked = StopRequest(
                attempt=hurt.attempt,
                reason=f"{where} is sick: {fault.name} ({incident.incident_id}).",
                by=by,
                outcome=AttemptState.LOST,
                grace_seconds=grace_seconds(incident, job, policy),
                requested_at=now,
            )
            line = incident_record.told(job.job_id, "stopped", f"Stopped: {asked.reason}", at=now, writer=WRITER)
            try:
                ledger.commit(Put(rows.job_row(job.but(stop_request=asked), version)), line)
            except Conflict:
                continue
        cluster.stop(attempt.cluster, attempt.namespace, attempt.job_id, attempt.attempt, asked.grace_seconds)
        return asked.by == by
    raise Conflict(f"{hurt.job_id} kept changing while its attempt {hurt.attempt} was to be stopped")


def _tell(incident: Incident, stopped: list[HurtJob], ledger: Ledger, now: datetime) -> None:
    def change(current: Incident) -> tuple[Incident, list[Write]] | None:
        if not stopped or current.stages.jobs_stopped_at is not None:
            return None
        names = ", ".join(f"{hurt.job_id} (attempt {hurt.attempt})" for hurt in stopped)
        line = incident_record.told(
            current.incident_id, "job", f"Asked to stop, to run elsewhere: {names}.", at=now, writer=WRITER
        )
        return current.at_stage("jobs_stopped_at", now), [line]

    incident_record.amend(ledger, incident.incident_id, change)
