"""Changes of a pending job that several commits of a scheduling cycle share."""

import contextlib
from datetime import timedelta

from evenkeel.domain.admission.decide_job import AdmissionDecision
from evenkeel.domain.decisions import Decision
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.quotas.teams import TeamSetup
from evenkeel.domain.scheduling.cycle_facts import Json
from evenkeel.domain.timeline import TimelineEntry
from evenkeel.ports import Conflict, Put, Refused
from evenkeel.services.context import Context
from evenkeel.services.storage import batches
from evenkeel.services.tables import job_rows, rows, subject_rows

WRITER = "schedule_jobs"
"""Name of the service in timelines, stop requests and heartbeats."""
_RETRY_AFTER_REFUSAL = timedelta(hours=1)
"""Time for which a job waits after the ledger refused to store its decision."""


def with_current_queue(job: Job, setup: TeamSetup) -> Job:
    """Return a job with its current queue. Teams may have been created after its submission."""
    queue = job.spec.team if job.spec.team in setup.by_name else ""
    if queue == job.queue:
        return job
    return job.replace(queue=queue, priority=setup.priority_of(job.spec.priority_class))


def admission_record(
    decision: AdmissionDecision, decision_id: str, reason: str, mode: Mode, context: Context, facts: Json | None = None
) -> Decision:
    """Return the record of a decision, with its own facts unless other facts are given."""
    return Decision(
        decision_id=decision_id,
        kind="ADMISSION",
        subject=decision.job_id,
        action=decision.action,
        reason=reason,
        alternatives=decision.alternatives,
        facts=decision.facts.to_json() if facts is None else facts,
        policy_hash=context.policy.hash,
        mode=mode,
        decided_at=context.now,
    )


def defer_after_refusal(job_id: str, refusal: Refused, context: Context) -> None:
    """Defer a job if the ledger refused to store its decision. Idempotent: yes.

    The ledger may refuse the job's own row, too. Then only the log and the metric report it, and each cycle tries
    again.
    """
    batches.note_refusal(context.telemetry, job_id, refusal)
    row = context.ledger.get(job_rows.job_key(job_id))
    if row is None:
        return
    job = rows.decode(row, Job)
    if job.state is not JobState.PENDING:
        return
    minutes = _RETRY_AFTER_REFUSAL.seconds // 60
    text = f"The ledger refused to store this job's decision. Evenkeel tries again after {minutes} min."
    entry = TimelineEntry(at=context.now, kind="deferred", text=text, writer=WRITER)
    deferred_job = job.replace(reason=text, placement=None, not_before=context.now + _RETRY_AFTER_REFUSAL)
    with contextlib.suppress(Conflict, Refused):
        context.ledger.commit(
            Put(job_rows.job_row(deferred_job, row.version)), Put(subject_rows.timeline_row(job_id, entry, "deferred"))
        )
