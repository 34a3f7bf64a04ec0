"""Commit the size changes of a scheduling cycle. `domain/scheduling/resize_plan.py` decides them.

    attempt n is asked to stop and to save ── run_job settles it ── the next cycle admits n+1 at a new size

The request, its reason and its record are one commit that depends on the version of the quota tree and of the job.
After a crash the job waits like after any stop, and comes before other jobs to the nodes that were its own.
"""

from collections.abc import Sequence
from datetime import datetime

from evenkeel.domain.admission.scheduler_state import SchedulerState
from evenkeel.domain.decisions import Decision
from evenkeel.domain.jobs.attempt import AttemptState
from evenkeel.domain.jobs.job import Job, StopRequest
from evenkeel.domain.plurals import count_of
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.scheduling.cycle_plan import CyclePlan
from evenkeel.domain.scheduling.resize_facts import PlannedResize, resize_answer, resize_request_of
from evenkeel.domain.timeline import TimelineEntry
from evenkeel.ports import Put, Refused, Write
from evenkeel.services.context import Context
from evenkeel.services.scheduling.loaded_cycle import LoadedCycle
from evenkeel.services.storage import batches
from evenkeel.services.storage.quota_tree import QuotaTree
from evenkeel.services.tables import job_rows, subject_rows

WRITER = "resize_jobs"


def carry_out(plan: CyclePlan, loaded_cycle: LoadedCycle, tree: QuotaTree, context: Context) -> None:
    """Ask jobs to stop so that they change size. In any mode but `act`, record the planned requests once.

    Idempotent: yes, each commit is conditional on the versions of the tree and of the jobs.

    Args:
        plan: The plan of the cycle.
        loaded_cycle: The snapshot of the cycle, with rows and versions.
        tree: The quota tree as this cycle last wrote it.
        context: Ports, policy, mode and time.
    """
    resizes, pending_job_ids = plan.resizes, plan.queue_plan.pending.keys()
    # The tree's state already has the jobs that this cycle started; the snapshot still shows them as pending.
    elastic_state = tree.scheduler_state.elastic
    elastic = resizes.elastic_state.replace(
        jobs=tuple(sorted({*resizes.elastic_state.jobs, *(pending_job_ids & set(elastic_state.jobs))})),
        resizing=tuple(job_id for job_id in resizes.elastic_state.resizing if job_id in elastic_state.resizing),
        last_announced={} if context.mode is Mode.ACT else resizes.elastic_state.last_announced,
    )
    commit = _ResizeCommit(loaded_cycle, frozenset(pending_job_ids), tree, context)
    scheduler_state = tree.scheduler_state.replace(elastic=elastic)
    for planned_resizes in (*resizes.shrinks_by_waiter.values(), *([(resizes.growth,)] if resizes.growth else [])):
        try:
            scheduler_state = commit.run(planned_resizes, scheduler_state)
        except Refused as refusal:
            batches.note_refusal(context.telemetry, ", ".join(resize.job_id for resize in planned_resizes[:4]), refusal)
    if scheduler_state != tree.scheduler_state:
        context.ledger.commit(tree.state_put(scheduler_state))
        tree.record_commit(scheduler_state)


class _ResizeCommit:
    """Commits size changes, one waiting job at a time."""

    def __init__(
        self, loaded_cycle: LoadedCycle, pending_job_ids: frozenset[str], tree: QuotaTree, context: Context
    ) -> None:
        self.loaded, self.pending, self.tree, self.context = loaded_cycle, pending_job_ids, tree, context

    def run(self, planned_resizes: Sequence[PlannedResize], scheduler_state: SchedulerState) -> SchedulerState:
        """Commit all size changes for one waiting job, or none. Return the state after them."""
        if self.context.mode is not Mode.ACT:
            return self._record_dry_run(planned_resizes, scheduler_state)
        if not all(self._may_stop(resize) for resize in planned_resizes):
            return scheduler_state  # a job has ended or was asked to stop: the next cycle decides again
        decision_records = {resize.job_id: self._record(resize) for resize in planned_resizes}
        write_groups = [self._stop_writes(resize, decision_records[resize.job_id]) for resize in planned_resizes]
        # The next cycle asks the jobs that do not fit into one commit, and counts on the jobs that already stop.
        first_batch = next(
            batches.cut_into_batches(write_groups, common_writes=(self.tree.state_put(scheduler_state),))
        )
        job_ids = {write_group.subject for write_group in first_batch}
        resizes = [resize for resize in planned_resizes if resize.job_id in job_ids]
        state_after = self._state_after(resizes, scheduler_state)
        writes = (write for write_group in first_batch for write in write_group.writes)
        token = decision_records[first_batch[0].subject].decision_id
        self.context.ledger.commit(self.tree.state_put(state_after), *writes, client_token=token)
        self.tree.record_commit(state_after)
        for resize in resizes:
            self.context.telemetry.count("JobsResized", action=resize_answer(resize.facts).action)
            self.context.telemetry.info(
                "ResizeRequested",
                job_id=resize.job_id,
                from_nodes=resize.resize.from_nodes,
                to_nodes=resize.resize.to_nodes,
                waiting_id=resize.waiting_id,
            )
        return state_after

    def _may_stop(self, planned_resize: PlannedResize) -> bool:
        job = self.loaded.snapshot.known_job(planned_resize.job_id)
        return job is not None and job.current_attempt == planned_resize.attempt and job.is_stoppable

    def _stop_writes(self, planned_resize: PlannedResize, decision_record: Decision) -> batches.WriteGroup:
        """Return the writes that ask one job to stop for another size."""
        job, version = self.loaded.stored(planned_resize.job_id)
        now = self.context.now
        entry = TimelineEntry(
            at=now,
            kind=_KIND[decision_record.action],
            text=_timeline_text(planned_resize, decision_record, job),
            decision_id=decision_record.decision_id,
            writer=WRITER,
        )
        writes: list[Write] = [
            Put(job_rows.job_row(_with_stop_request(job, planned_resize, decision_record, now), version)),
            Put(subject_rows.decision_row(decision_record)),
            Put(subject_rows.timeline_row(planned_resize.job_id, entry, f"resized-{planned_resize.attempt}")),
        ]
        if planned_resize.waiting_id in self.pending:
            entry = TimelineEntry(
                at=now,
                kind="nodes freed",
                text=planned_resize.resize.reason,
                decision_id=decision_record.decision_id,
                writer=WRITER,
            )
            writes.append(
                Put(subject_rows.timeline_row(planned_resize.waiting_id, entry, f"freed-{decision_record.decision_id}"))
            )
        return batches.WriteGroup(planned_resize.job_id, tuple(writes))

    def _state_after(self, resizes: Sequence[PlannedResize], scheduler_state: SchedulerState) -> SchedulerState:
        resizing_ids = [resize.job_id for resize in resizes if resize.resize.to_nodes]
        waiter_by_job = {resize.job_id: resize.waiting_id for resize in resizes if resize.waiting_id in self.pending}
        return scheduler_state.replace(
            elastic=scheduler_state.elastic.replace(
                resizing=tuple(dict.fromkeys((*scheduler_state.elastic.resizing, *resizing_ids)))
            ),
            stopping={**scheduler_state.stopping, **waiter_by_job},
        )

    def _record_dry_run(
        self, planned_resizes: Sequence[PlannedResize], scheduler_state: SchedulerState
    ) -> SchedulerState:
        """Record the planned actions, once for as long as they stay the same."""
        messages = {
            resize.job_id: f"{resize.resize.from_nodes} to {resize.resize.to_nodes} {resize.waiting_id}".strip()
            for resize in planned_resizes
        }
        if all(scheduler_state.elastic.last_announced.get(job_id) == text for job_id, text in messages.items()):
            return scheduler_state
        state_after = scheduler_state.replace(
            elastic=scheduler_state.elastic.replace(
                last_announced={**scheduler_state.elastic.last_announced, **messages}
            )
        )
        decision_records = {resize.job_id: self._record(resize) for resize in planned_resizes}
        write_groups = [
            batches.WriteGroup(job_id, (Put(subject_rows.decision_row(decision_record)),))
            for job_id, decision_record in decision_records.items()
        ]
        for batch in batches.cut_into_batches(write_groups, common_writes=(self.tree.state_put(state_after),)):
            writes = (write for write_group in batch for write in write_group.writes)
            token = decision_records[batch[0].subject].decision_id
            self.context.ledger.commit(self.tree.state_put(state_after), *writes, client_token=token)
            self.tree.record_commit(state_after)
        return state_after

    def _record(self, planned_resize: PlannedResize) -> Decision:
        answer = resize_answer(planned_resize.facts)
        return Decision(
            decision_id=self.context.ids.new("dec"),
            kind="RESIZE",
            subject=planned_resize.job_id,
            action=answer.action,
            reason=answer.reason,
            alternatives=answer.alternatives,
            facts=planned_resize.facts.to_json(),
            policy_hash=self.context.policy.hash,
            mode=self.context.mode,
            decided_at=self.context.now,
        )


_KIND = {"GROW": "resized", "SHRINK": "resized", "END": "preempted"}


def _with_stop_request(job: Job, planned_resize: PlannedResize, decision_record: Decision, now: datetime) -> Job:
    request = StopRequest(
        attempt=planned_resize.attempt,
        reason=_timeline_text(planned_resize, decision_record, job),
        by=f"{WRITER}/{planned_resize.waiting_id}",
        outcome=AttemptState.STOPPED,
        grace_seconds=job.spec.grace_seconds,
        requested_at=now,
    )
    if not planned_resize.resize.to_nodes:
        return job.replace(stop_request=request, reason=request.reason, is_preempted=True)
    return job.replace(
        stop_request=request,
        reason=request.reason,
        resize=resize_request_of(planned_resize, decision_record.decision_id, now),
        # Its next attempt must not get the rented nodes again.
        is_migrating_back=planned_resize.facts.rented_part is not None,
    )


def _timeline_text(planned_resize: PlannedResize, decision_record: Decision, job: Job) -> str:
    resize = planned_resize.resize
    if not resize.to_nodes:
        return f"The job is stopped to free nodes for {planned_resize.waiting_id}. {decision_record.reason}"
    sizes = f"{resize.to_nodes} instead of {count_of(resize.from_nodes, 'node')}"
    if planned_resize.facts.rented_part is not None:
        base = count_of(resize.to_nodes, "committed node")
        return f"The job saves a checkpoint and stops. It continues on its {base} alone. {decision_record.reason}"
    if job.rented_nodes:
        sizes = f"{resize.to_nodes} instead of {count_of(resize.from_nodes, 'committed node')}"
    return f"The job saves a checkpoint and stops. It continues with {sizes}. {decision_record.reason}"
