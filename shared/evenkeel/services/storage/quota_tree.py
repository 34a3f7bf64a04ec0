"""The row of the quota tree: its version orders all changes of quota, and it holds the state of the scheduler."""

from evenkeel.domain.admission.scheduler_state import SchedulerState
from evenkeel.ports import Put, Row


def stored_state(row: Row | None) -> SchedulerState:
    """Return the scheduler's state in the row; an empty state if there is none."""
    return SchedulerState.model_validate((row.doc.get("schedulerState") if row else None) or {})


class QuotaTree:
    """The row as this cycle last wrote it. Each commit that changes quota increases its version."""

    def __init__(self, row: Row, scheduler_state: SchedulerState) -> None:
        self._row = row
        self.scheduler_state = scheduler_state

    def state_put(self, scheduler_state: SchedulerState) -> Put:
        """Return the write that stores a state. Its commit increases the version of the row."""
        packed_state = scheduler_state.to_row()
        doc = {name: value for name, value in self._row.doc.items() if name != "schedulerState"}
        return Put(
            Row(self._row.key, {**doc, "schedulerState": packed_state} if packed_state else doc, self._row.version)
        )

    def record_commit(self, scheduler_state: SchedulerState) -> None:
        """Take over the state and the version of the write that was committed."""
        written_row = self.state_put(scheduler_state).row
        self._row, self.scheduler_state = (
            Row(written_row.key, written_row.doc, written_row.version + 1),
            scheduler_state,
        )
