"""The part of a scheduling pass that changes the size of running jobs: `domain/admission/resize_plan.py` says whose.

    attempt n is asked to stop, with its grace to save ── run_job settles it ── the next pass admits n+1 at its new size

The wish, its reason and its record are one commit, held to the tree's version and the job's. What follows is what
follows any stop: a crash anywhere leaves a job that waits, and that goes before all others to what was its own.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from evenkeel.domain.admission.resize_facts import Planned, ResizePlan, answer_for, wish_of
from evenkeel.domain.admission.scheduler_state import ElasticMemory, Memory
from evenkeel.domain.decisions import Decision
from evenkeel.domain.health.incidents import TimelineEntry
from evenkeel.domain.jobs.attempt import AttemptState
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.jobs.job import Job, JobState, StopRequest
from evenkeel.domain.policy_base import Mode
from evenkeel.ports import Key, Ledger, Put, Refused, Write, get_all
from evenkeel.services.context import Desk, Tree
from evenkeel.services.storage import batches, rows

WRITER = "resize_jobs"


def load(ledger: Ledger, charges: Iterable[Charge], memory: ElasticMemory) -> dict[str, tuple[Job, int]]:
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
    plan: ResizePlan, jobs: Mapping[str, tuple[Job, int]], waiting: Iterable[str], tree: Tree, desk: Desk
) -> None:
    """Ask jobs to stop so that they change size; in any mode but `act` say once what would be asked.

    Idempotent: yes, each commit is conditional on the tree's and the jobs' versions, and who was asked is not again.

    Args:
        plan: What was decided.
        jobs: The elastic jobs as they were looked at, each with its row's version.
        waiting: Ids of the jobs that wait: others of whom room is made are no jobs of ours.
        tree: Of this pass.
        desk: What commits need.
    """
    known = frozenset(waiting)
    others = {each.job_id for made in plan.room.values() for each in made} - jobs.keys()
    found = {**jobs, **_read(desk.ledger, others)}
    # What started in this very pass is remembered already, and was waiting when it was looked at.
    begun = tree.memory.elastic
    memory = plan.memory.but(
        jobs=tuple(sorted({*plan.memory.jobs, *(known & set(begun.jobs))})),
        resizing=tuple(name for name in plan.memory.resizing if name in begun.resizing),
        told={} if desk.mode is Mode.ACT else plan.memory.told,
    )
    pending = tree.memory.but(elastic=memory)
    for made in (*plan.room.values(), *([(plan.growth,)] if plan.growth else [])):
        try:
            pending = _commit(made, found, known, pending, tree, desk)
        except Refused as refused:
            batches.note_refusal(desk.telemetry, ", ".join(each.job_id for each in made[:4]), refused)
    if pending != tree.memory:
        desk.ledger.commit(tree.put(pending))
        tree.raised(pending)


def _commit(
    made: Sequence[Planned],
    jobs: Mapping[str, tuple[Job, int]],
    waiting: frozenset[str],
    memory: Memory,
    tree: Tree,
    desk: Desk,
) -> Memory:
    """Write down one change of sizes, whole; return what is remembered then."""
    if desk.mode is not Mode.ACT:
        return _say(made, memory, tree, desk)
    due = [each for each in made if each.job_id in jobs and _may_stop(jobs[each.job_id][0], each.attempt)]
    if len(due) < len(made):
        return memory  # somebody ended or was asked meanwhile: the next pass looks again
    records = {each.job_id: _record(each, desk) for each in due}
    parts = [_part(each, jobs[each.job_id], records[each.job_id], waiting, desk) for each in due]
    # The next pass counts on those who were asked, and asks the rest.
    first = next(batches.cut(parts, besides=(tree.put(memory),)))
    names = {part.subject for part in first}
    due = [each for each in due if each.job_id in names]
    changed = _remembered(due, memory, waiting)
    writes = (write for part in first for write in part.writes)
    desk.ledger.commit(tree.put(changed), *writes, token=records[first[0].subject].decision_id)
    tree.raised(changed)
    for each in due:
        action = answer_for(each.facts).action
        desk.telemetry.count("JobsResized", action=action)
        desk.telemetry.info(
            "Job asked to stop to change size",
            job_id=each.job_id,
            from_nodes=each.resize.from_nodes,
            to_nodes=each.resize.to_nodes,
            for_whom=each.for_whom,
        )
    return changed


def _part(
    planned: Planned, found: tuple[Job, int], record: Decision, waiting: frozenset[str], desk: Desk
) -> batches.Part:
    """Return what asks one job to stop for another size."""
    job, version = found
    entry = TimelineEntry(
        at=desk.now,
        kind=_KIND[record.action],
        text=_said(planned, record),
        decision_id=record.decision_id,
        writer=WRITER,
    )
    writes: list[Write] = [
        Put(rows.job_row(_asked(job, planned, record, desk.now), version)),
        Put(rows.decision_row(record)),
        Put(rows.timeline_row(planned.job_id, entry, f"resized-{planned.attempt}")),
    ]
    if planned.for_whom in waiting:
        told = TimelineEntry(
            at=desk.now,
            kind="room is made",
            text=planned.resize.reason,
            decision_id=record.decision_id,
            writer=WRITER,
        )
        writes.append(Put(rows.timeline_row(planned.for_whom, told, f"room-{record.decision_id}")))
    return batches.Part(planned.job_id, tuple(writes))


_KIND = {"GROW": "resized", "SHRINK": "resized", "END": "preempted"}


def _may_stop(job: Job, attempt: int) -> bool:
    is_at_work = job.state in (JobState.STARTING, JobState.RUNNING)
    return is_at_work and job.current_attempt == attempt and job.stop_of(attempt) is None


def _asked(job: Job, planned: Planned, record: Decision, now: datetime) -> Job:
    request = StopRequest(
        attempt=planned.attempt,
        reason=_said(planned, record),
        by=f"{WRITER}/{planned.for_whom}",
        outcome=AttemptState.STOPPED,
        grace_seconds=job.spec.grace_seconds,
        requested_at=now,
    )
    if not planned.resize.to_nodes:
        return job.but(stop_request=request, reason=request.reason, is_preempted=True)
    return job.but(stop_request=request, reason=request.reason, resize=wish_of(planned, record.decision_id, now))


def _said(planned: Planned, record: Decision) -> str:
    resize = planned.resize
    if not resize.to_nodes:
        return f"Has to go for {planned.for_whom}. {record.reason}"
    return f"Saves and stops, to go on with {resize.to_nodes} in place of {resize.from_nodes} nodes. {record.reason}"


def _remembered(due: Sequence[Planned], memory: Memory, waiting: frozenset[str]) -> Memory:
    names = [each.job_id for each in due]
    resizing = [each.job_id for each in due if each.resize.to_nodes]
    whom = {each.job_id: each.for_whom for each in due if each.for_whom in waiting}
    return memory.but(
        elastic=memory.elastic.but(resizing=tuple(dict.fromkeys((*memory.elastic.resizing, *resizing)))),
        stopping={**memory.stopping, **{name: whom[name] for name in names if name in whom}},
    )


def _say(made: Sequence[Planned], memory: Memory, tree: Tree, desk: Desk) -> Memory:
    """Record what would be done, once for as long as it stays the same."""
    told = {each.job_id: f"{each.resize.from_nodes} to {each.resize.to_nodes} {each.for_whom}".strip() for each in made}
    if all(memory.elastic.told.get(name) == said for name, said in told.items()):
        return memory
    changed = memory.but(elastic=memory.elastic.but(told={**memory.elastic.told, **told}))
    records = {each.job_id: _record(each, desk) for each in made}
    parts = [batches.Part(name, (Put(rows.decision_row(record)),)) for name, record in records.items()]
    for some in batches.cut(parts, besides=(tree.put(changed),)):
        writes = (write for part in some for write in part.writes)
        desk.ledger.commit(tree.put(changed), *writes, token=records[some[0].subject].decision_id)
        tree.raised(changed)
    return changed


def _record(planned: Planned, desk: Desk) -> Decision:
    answer = answer_for(planned.facts)
    return Decision(
        decision_id=desk.ids.new("dec"),
        kind="RESIZE",
        subject=planned.job_id,
        action=answer.action,
        reason=answer.reason,
        alternatives=answer.alternatives,
        facts=planned.facts.to_json(),
        policy_hash=desk.policy.hash,
        mode=desk.mode,
        decided_at=desk.now,
    )
