"""The part of a scheduling pass that changes the size of running jobs: `domain/admission/resize_plan.py` says whose.

    attempt n is asked to stop, with its grace to save ── run_job settles it ── the next pass admits n+1 at its new size

The wish, its reason and its record are one commit, held to the tree's version and the job's. What follows is what
follows any stop: a crash anywhere leaves a job that waits, and that goes before all others to what was its own.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from evenkeel.domain.admission.resize_facts import PlannedResize, ResizePlan, resize_answer, resize_request_of
from evenkeel.domain.admission.scheduler_state import ElasticState, SchedulerState
from evenkeel.domain.decisions import Decision
from evenkeel.domain.health.incidents import TimelineEntry
from evenkeel.domain.jobs.attempt import AttemptState
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.jobs.job import Job, JobState, StopRequest
from evenkeel.domain.policy_base import Mode
from evenkeel.ports import Key, Ledger, Put, Refused, Write, get_all
from evenkeel.services.context import Context, QuotaTreeVersion
from evenkeel.services.storage import batches, rows

WRITER = "resize_jobs"


def load(ledger: Ledger, charges: Iterable[Charge], memory: ElasticState) -> dict[str, tuple[Job, int]]:
    """Read the elastic jobs that hold nodes, and those that are changing size, each with its row's version.

    After the charges: a job whose charge was gone by then is seen waiting, and takes what was its own before others do.
    """
    names = dict.fromkeys((*(charge.job_id for charge in charges if charge.is_elastic), *memory.resizing))
    return _read(ledger, names)


def _read(ledger: Ledger, names: Iterable[str]) -> dict[str, tuple[Job, int]]:
    keys: list[Key] = [rows.job_key(name) for name in sorted(names)]
    found = get_all(ledger, keys).values() if keys else ()
    jobs = ((rows.read(row, Job), row.version) for row in found)
    return {job.job_id: (job, version) for job, version in jobs}


def carry_out(
    plan: ResizePlan,
    jobs: Mapping[str, tuple[Job, int]],
    waiting: Iterable[str],
    tree: QuotaTreeVersion,
    context: Context,
) -> None:
    """Ask jobs to stop so that they change size; in any mode but `act` say once what would be asked.

    Idempotent: yes, each commit is conditional on the tree's and the jobs' versions, and who was asked is not again.

    Args:
        plan: What was decided.
        jobs: The elastic jobs as they were looked at, each with its row's version.
        waiting: Ids of the jobs that wait: others of whom room is made are no jobs of ours.
        tree: Of this pass.
        context: What commits need.
    """
    known = frozenset(waiting)
    others = {each.job_id for made in plan.shrinks_by_waiter.values() for each in made} - jobs.keys()
    found = {**jobs, **_read(context.ledger, others)}
    # What started in this very pass is remembered already, and was waiting when it was looked at.
    begun = tree.memory.elastic
    memory = plan.memory.but(
        jobs=tuple(sorted({*plan.memory.jobs, *(known & set(begun.jobs))})),
        resizing=tuple(name for name in plan.memory.resizing if name in begun.resizing),
        last_announced={} if context.mode is Mode.ACT else plan.memory.last_announced,
    )
    pending = tree.memory.but(elastic=memory)
    for made in (*plan.shrinks_by_waiter.values(), *([(plan.growth,)] if plan.growth else [])):
        try:
            pending = _commit(made, found, known, pending, tree, context)
        except Refused as refused:
            batches.note_refusal(context.telemetry, ", ".join(each.job_id for each in made[:4]), refused)
    if pending != tree.memory:
        context.ledger.commit(tree.put(pending))
        tree.raised(pending)


def _commit(
    made: Sequence[PlannedResize],
    jobs: Mapping[str, tuple[Job, int]],
    waiting: frozenset[str],
    memory: SchedulerState,
    tree: QuotaTreeVersion,
    context: Context,
) -> SchedulerState:
    """Write down one change of sizes, whole; return what is remembered then."""
    if context.mode is not Mode.ACT:
        return _record_dry_run(made, memory, tree, context)
    due = [each for each in made if each.job_id in jobs and _may_stop(jobs[each.job_id][0], each.attempt)]
    if len(due) < len(made):
        return memory  # somebody ended or was asked meanwhile: the next pass looks again
    records = {each.job_id: _record(each, context) for each in due}
    parts = [_part(each, jobs[each.job_id], records[each.job_id], waiting, context) for each in due]
    # The next pass counts on those who were asked, and asks the rest.
    first = next(batches.cut(parts, besides=(tree.put(memory),)))
    names = {part.subject for part in first}
    due = [each for each in due if each.job_id in names]
    changed = _elastic_state_after(due, memory, waiting)
    writes = (write for part in first for write in part.writes)
    context.ledger.commit(tree.put(changed), *writes, token=records[first[0].subject].decision_id)
    tree.raised(changed)
    for each in due:
        action = resize_answer(each.facts).action
        context.telemetry.count("JobsResized", action=action)
        context.telemetry.info(
            "Job asked to stop to change size",
            job_id=each.job_id,
            from_nodes=each.resize.from_nodes,
            to_nodes=each.resize.to_nodes,
            waiting_id=each.waiting_id,
        )
    return changed


def _part(
    planned: PlannedResize, found: tuple[Job, int], record: Decision, waiting: frozenset[str], context: Context
) -> batches.WriteGroup:
    """Return what asks one job to stop for another size."""
    job, version = found
    entry = TimelineEntry(
        at=context.now,
        kind=_KIND[record.action],
        text=_timeline_text(planned, record),
        decision_id=record.decision_id,
        writer=WRITER,
    )
    writes: list[Write] = [
        Put(rows.job_row(_with_stop_request(job, planned, record, context.now), version)),
        Put(rows.decision_row(record)),
        Put(rows.timeline_row(planned.job_id, entry, f"resized-{planned.attempt}")),
    ]
    if planned.waiting_id in waiting:
        timeline_entry = TimelineEntry(
            at=context.now,
            kind="nodes freed",
            text=planned.resize.reason,
            decision_id=record.decision_id,
            writer=WRITER,
        )
        writes.append(Put(rows.timeline_row(planned.waiting_id, timeline_entry, f"room-{record.decision_id}")))
    return batches.WriteGroup(planned.job_id, tuple(writes))


_KIND = {"GROW": "resized", "SHRINK": "resized", "END": "preempted"}


def _may_stop(job: Job, attempt: int) -> bool:
    is_at_work = job.state in (JobState.STARTING, JobState.RUNNING)
    return is_at_work and job.current_attempt == attempt and job.stop_of(attempt) is None


def _with_stop_request(job: Job, planned: PlannedResize, record: Decision, now: datetime) -> Job:
    request = StopRequest(
        attempt=planned.attempt,
        reason=_timeline_text(planned, record),
        by=f"{WRITER}/{planned.waiting_id}",
        outcome=AttemptState.STOPPED,
        grace_seconds=job.spec.grace_seconds,
        requested_at=now,
    )
    if not planned.resize.to_nodes:
        return job.but(stop_request=request, reason=request.reason, is_preempted=True)
    return job.but(
        stop_request=request, reason=request.reason, resize=resize_request_of(planned, record.decision_id, now)
    )


def _timeline_text(planned: PlannedResize, record: Decision) -> str:
    resize = planned.resize
    if not resize.to_nodes:
        return f"The job is stopped to free nodes for {planned.waiting_id}. {record.reason}"
    sizes = f"{resize.to_nodes} instead of {resize.from_nodes} nodes"
    return f"The job saves a checkpoint and stops. It continues with {sizes}. {record.reason}"


def _elastic_state_after(
    due: Sequence[PlannedResize], memory: SchedulerState, waiting: frozenset[str]
) -> SchedulerState:
    names = [each.job_id for each in due]
    resizing = [each.job_id for each in due if each.resize.to_nodes]
    whom = {each.job_id: each.waiting_id for each in due if each.waiting_id in waiting}
    return memory.but(
        elastic=memory.elastic.but(resizing=tuple(dict.fromkeys((*memory.elastic.resizing, *resizing)))),
        stopping={**memory.stopping, **{name: whom[name] for name in names if name in whom}},
    )


def _record_dry_run(
    made: Sequence[PlannedResize], memory: SchedulerState, tree: QuotaTreeVersion, context: Context
) -> SchedulerState:
    """Record what would be done, once for as long as it stays the same."""
    messages = {
        each.job_id: f"{each.resize.from_nodes} to {each.resize.to_nodes} {each.waiting_id}".strip() for each in made
    }
    if all(memory.elastic.last_announced.get(name) == text for name, text in messages.items()):
        return memory
    changed = memory.but(elastic=memory.elastic.but(last_announced={**memory.elastic.last_announced, **messages}))
    records = {each.job_id: _record(each, context) for each in made}
    parts = [batches.WriteGroup(name, (Put(rows.decision_row(record)),)) for name, record in records.items()]
    for some in batches.cut(parts, besides=(tree.put(changed),)):
        writes = (write for part in some for write in part.writes)
        context.ledger.commit(tree.put(changed), *writes, token=records[some[0].subject].decision_id)
        tree.raised(changed)
    return changed


def _record(planned: PlannedResize, context: Context) -> Decision:
    answer = resize_answer(planned.facts)
    return Decision(
        decision_id=context.ids.new("dec"),
        kind="RESIZE",
        subject=planned.job_id,
        action=answer.action,
        reason=answer.reason,
        alternatives=answer.alternatives,
        facts=planned.facts.to_json(),
        policy_hash=context.policy.hash,
        mode=context.mode,
        decided_at=context.now,
    )
