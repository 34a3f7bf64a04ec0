"""Commit the reasons why the remaining jobs of a scheduling cycle wait."""

from evenkeel.domain.admission.cycle_plan import PendingStep
from evenkeel.domain.admission.decide_job import AdmissionAction, recorded_reason
from evenkeel.ports import Put, Write
from evenkeel.services.context import Context
from evenkeel.services.rentals import rentals
from evenkeel.services.scheduling import pending_job_changes
from evenkeel.services.scheduling.loaded_cycle import LoadedCycle
from evenkeel.services.storage import batches, job_rows, subject_rows

_MAX_REASONS = 12
"""Jobs whose reasons are in one commit, if `batches.cut_into_batches` allows as many."""


class PendingReasons:
    """The reasons of waiting jobs, committed in batches: each commit is a round trip."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._groups: list[batches.WriteGroup] = []

    def add(self, step: PendingStep, loaded: LoadedCycle) -> None:
        """Add the reason of one job, unless the job records it already. Commit the batch once it is full."""
        if writes := _reason_writes(step, loaded, self._context):
            self._groups.append(batches.WriteGroup(step.decision.job_id, writes))
        if len(self._groups) == _MAX_REASONS:
            self.commit()

    def commit(self) -> None:
        """Commit the reasons that were added. A reason that the ledger refuses is counted and left out."""
        ledger, telemetry = self._context.ledger, self._context.telemetry
        for batch in batches.cut_into_batches(self._groups):
            batches.commit_each(
                batch,
                lambda groups: ledger.commit(*(write for group in groups for write in group.writes)),
                lambda group, refused: batches.note_refusal(telemetry, group.subject, refused),
            )
        self._groups.clear()


def _reason_writes(step: PendingStep, loaded: LoadedCycle, context: Context) -> tuple[Write, ...]:
    """Return the writes that record why a job waits; none if the job records it already."""
    decision = step.decision
    job, version = loaded.snapshot.pending[decision.job_id], loaded.versions[decision.job_id]
    note, records = rentals.placement_note(job, step.placement, context.replace(mode=step.mode))
    if decision.action is AdmissionAction.BACK_OFF:
        return ()  # the job already records the failure
    reason = recorded_reason(decision, step.mode)
    text = f"{reason} {note.text}" if note else reason
    updated_job = pending_job_changes.with_current_queue(job, loaded.snapshot.setup).replace(
        reason=text, placement=note
    )
    if updated_job == job:
        return ()
    writes = (Put(job_rows.job_row(updated_job, version)), *records)
    if job.queue_reason == reason:
        return writes
    record = pending_job_changes.admission_record(decision, context.ids.new("dec"), reason, step.mode, context)
    return (*writes, Put(subject_rows.decision_row(record)))
