"""Commit the reasons why the remaining jobs of a scheduling cycle wait."""

from collections.abc import Sequence
from typing import NamedTuple

from evenkeel.domain.admission.decide_job import AdmissionAction, recorded_reason
from evenkeel.domain.scheduling.cycle_plan import PendingStep
from evenkeel.ports import Put, Write
from evenkeel.services.context import Context
from evenkeel.services.rentals import rental_store
from evenkeel.services.scheduling import pending_job_changes
from evenkeel.services.scheduling.loaded_cycle import LoadedCycle
from evenkeel.services.scheduling.shared_facts import SharedFacts
from evenkeel.services.storage import batches
from evenkeel.services.tables import job_rows, subject_rows

_MAX_REASONS = 12
"""Jobs whose reasons are in one commit, if `batches.cut_into_batches` allows as many."""
_SHARED_FROM = 12
"""Records from which their facts are stored once. Fewer records keep their own facts: a reader needs one row less."""


class _Reason(NamedTuple):
    """The new reason of a job."""

    step: PendingStep
    writes: tuple[Write, ...]
    decision_id: str
    """Id of its record; empty if the reason was recorded before."""


class PendingReasons:
    """The reasons of waiting jobs, committed in batches: each commit is a round trip."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._reasons: list[_Reason] = []

    def add(self, step: PendingStep, loaded_cycle: LoadedCycle) -> None:
        """Add the reason of one job, unless the job records it already."""
        reason = _new_reason(step, loaded_cycle, self._context)
        if reason is not None:
            self._reasons.append(reason)

    def commit(self) -> None:
        """Commit the reasons that were added. A reason that the ledger refuses is counted and left out."""
        telemetry = self._context.telemetry
        facts = SharedFacts(self._context)
        facts_by_decision = {
            reason.decision_id: reason.step.decision.facts for reason in self._reasons if reason.decision_id
        }
        if len(facts_by_decision) >= _SHARED_FROM:
            facts.share(facts_by_decision)

        def commit(groups: Sequence[batches.WriteGroup]) -> None:
            self._context.ledger.commit(*facts.unwritten, *(write for group in groups for write in group.writes))
            facts.unwritten = ()

        for start in range(0, len(self._reasons), _MAX_REASONS):
            groups = [self._write_group(reason, facts) for reason in self._reasons[start : start + _MAX_REASONS]]
            for batch in batches.cut_into_batches(groups, common_writes=facts.unwritten):
                batches.commit_each(
                    batch, commit, lambda group, refusal: batches.note_refusal(telemetry, group.subject, refusal)
                )
        self._reasons.clear()

    def _write_group(self, reason: _Reason, facts: SharedFacts) -> batches.WriteGroup:
        step, writes = reason.step, reason.writes
        if reason.decision_id:
            decision_record = pending_job_changes.admission_record(
                step.decision,
                reason.decision_id,
                recorded_reason(step.decision, step.mode),
                step.mode,
                self._context,
                facts.of(step.decision, reason.decision_id),
            )
            writes = (*writes, Put(subject_rows.decision_row(decision_record)))
        return batches.WriteGroup(step.decision.job_id, writes)


def _new_reason(step: PendingStep, loaded_cycle: LoadedCycle, context: Context) -> _Reason | None:
    """Return why a job waits, with the writes besides its record; None if the job records it already."""
    decision = step.decision
    job, version = loaded_cycle.snapshot.pending[decision.job_id], loaded_cycle.versions[decision.job_id]
    note, record_writes = rental_store.placement_note(job, step.placement, context.replace(mode=step.mode))
    if decision.action is AdmissionAction.BACK_OFF:
        return None  # the job already records the failure
    reason = recorded_reason(decision, step.mode)
    text = f"{reason} {note.text}" if note else reason
    updated_job = pending_job_changes.with_current_queue(job, loaded_cycle.snapshot.setup).replace(
        reason=text, placement=note
    )
    if updated_job == job:
        return None
    writes = (Put(job_rows.job_row(updated_job, version)), *record_writes)
    return _Reason(step, writes, "" if job.queue_reason == reason else context.ids.new("dec"))
