"""Ask jobs to leave nodes whose reservation ends, in time for a last checkpoint.

    attempt n is asked to stop and to save ── run_job settles it ── the next cycle finds other nodes for it

By then no job starts on these nodes (`domain/admission/build_request.py`). So the job continues on committed
or rented nodes, or it returns to the queue with a reason.
"""

from evenkeel.domain.decisions import Decision
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.renting.migration import MigrationDecision
from evenkeel.domain.timeline import TimelineEntry
from evenkeel.ports import Put
from evenkeel.services.context import Context
from evenkeel.services.storage.batches import WriteGroup
from evenkeel.services.tables import job_rows, subject_rows

WRITER = "drain_reservations"


def stop_group(decision: MigrationDecision, job: Job, version: int, context: Context) -> WriteGroup:
    """Return the writes that ask one job to leave.

    Args:
        decision: Why the job must leave.
        job: The job, as the cycle read it.
        version: Version of the job's row.
        context: Ids, policy and time.
    """
    decision_record = Decision(
        decision_id=context.ids.new("dec"),
        kind="MIGRATION",
        subject=job.job_id,
        action=decision.action,
        reason=decision.reason,
        alternatives=decision.alternatives,
        facts=decision.facts.to_json(),
        policy_hash=context.policy.hash,
        mode=Mode.ACT,
        decided_at=context.now,
    )
    reason = f"The job saves a checkpoint and leaves: {decision_record.reason}"
    entry = TimelineEntry(
        at=context.now, kind="draining reservation", text=reason, decision_id=decision_record.decision_id, writer=WRITER
    )
    stopping_job = job.replace(stop_request=job.stop_request_now(reason, WRITER, context.now), reason=reason)
    return WriteGroup(
        job.job_id,
        (
            Put(job_rows.job_row(stopping_job, version)),
            Put(subject_rows.decision_row(decision_record)),
            Put(subject_rows.timeline_row(job.job_id, entry, f"leaving-{job.current_attempt}")),
        ),
    )
