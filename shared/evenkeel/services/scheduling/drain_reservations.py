"""The part of a scheduling pass that lets jobs leave machines whose reservation ends, in time for a last save.

    attempt n is asked to stop, with its grace to save ── run_job settles it ── the next pass finds it another place

Nobody is let on any more by then, so that it goes where the machines stay: committed, rented, or back to the queue
with a reason (`domain/admission/request_facts.py`).
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from evenkeel.domain.capacity.node_capacity import NodeCapacity
from evenkeel.domain.decisions import Decision
from evenkeel.domain.health.incidents import TimelineEntry
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.jobs.spec import MAX_GRACE_SECONDS
from evenkeel.domain.policy_base import Mode
from evenkeel.domain.renting.candidates import committed_pools
from evenkeel.domain.renting.migration import MigrationAction, MigrationDecision, decide_migration, migration_facts
from evenkeel.ports import Put, Write, get_all
from evenkeel.services.context import Context
from evenkeel.services.storage import rows
from evenkeel.services.storage.batches import WriteGroup

WRITER = "drain_reservations"
_LOOKAHEAD = timedelta(seconds=MAX_GRACE_SECONDS + 600)
"""Nobody's last save begins sooner before the end: until then no job is read for it."""


def stops_due(charges: Iterable[Charge], capacities: Sequence[NodeCapacity], context: Context) -> list[WriteGroup]:
    """Return what asks each job to leave that has to leave now. Jobs that were asked to stop are not asked again.

    Args:
        charges: What attempts hold.
        capacities: The machines.
    """
    ending = {
        (each.cluster, each.pool)
        for each in context.policy.scheduling.reservations
        if each.usable_until - _LOOKAHEAD <= context.now
    }
    held = {each.job_id: each for each in charges if each.node_names and (each.cluster, each.pool) in ending}
    if not held:
        return []
    pools = {
        (pool.cluster, pool.name, pool.instance_type): pool for pool in committed_pools(capacities, context.policy)
    }
    asked: list[WriteGroup] = []
    for row in get_all(context.ledger, map(rows.job_key, sorted(held))).values():
        job, charge = rows.read(row, Job), held[str(row.doc["jobId"])]
        pool = pools.get((charge.cluster, charge.pool, charge.instance_type))
        if pool is None or not _is_running_there(job, charge):
            continue
        ran = (context.now - charge.admitted_at).total_seconds() if charge.admitted_at else 0.0
        judged = decide_migration(
            migration_facts(job, len(charge.node_names), pool, None, context.policy, context.now, ran_seconds=ran)
        )
        if judged.action is MigrationAction.REQUEUE:
            record = _record(job, judged, context)
            asked.append(WriteGroup(job.job_id, _writes(job, row.version, record, context.now)))
    return asked


def _is_running_there(job: Job, charge: Charge) -> bool:
    is_at_work = job.state in (JobState.STARTING, JobState.RUNNING)
    return is_at_work and job.current_attempt == charge.attempt and job.stop_of(job.current_attempt) is None


def _record(job: Job, judged: MigrationDecision, context: Context) -> Decision:
    return Decision(
        decision_id=context.ids.new("dec"),
        kind="STAY",
        subject=job.job_id,
        action=judged.action,
        reason=judged.reason,
        alternatives=judged.alternatives,
        facts=judged.facts.to_json(),
        policy_hash=context.policy.hash,
        mode=Mode.ACT,
        decided_at=context.now,
    )


def _writes(job: Job, version: int, record: Decision, now: datetime) -> tuple[Write, ...]:
    why = f"The job saves a checkpoint and leaves: {record.reason}"
    entry = TimelineEntry(at=now, kind="draining reservation", text=why, decision_id=record.decision_id, writer=WRITER)
    stopping = job.but(stop_request=job.with_stop_request(why, WRITER, now), reason=why)
    return (
        Put(rows.job_row(stopping, version)),
        Put(rows.decision_row(record)),
        Put(rows.timeline_row(job.job_id, entry, f"leaving-{job.current_attempt}")),
    )
