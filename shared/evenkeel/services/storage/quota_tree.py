"""The row of the quota tree: its version orders all changes of quota, and it holds the state of the scheduler."""

from evenkeel.domain.admission.scheduler_state import SchedulerState
from evenkeel.ports import Put, Row


def stored_state(row: Row | None) -> SchedulerState:
    """Return the scheduler's state in the row; an empty state if there is none."""
    return SchedulerState.model_validate((row.doc.get("schedulerState") if row else None) or {})


class QuotaTree:
    """The row as this cycle last wrote it. Each commit that changes quota raises its version."""

    def __init__(self, row: Row, scheduler_state: SchedulerState) -> None:
        self._row = row
        self.scheduler_state = scheduler_state

    def put(self, scheduler_state: SchedulerState) -> Put:
        """Return the write that raises its version and stores a state."""
        packed = scheduler_state.to_row()
        doc = {name: value for name, value in self._row.doc.items() if name != "schedulerState"}
        return Put(Row(self._row.key, {**doc, "schedulerState": packed} if packed else doc, self._row.version))

    def raised(self, scheduler_state: SchedulerState) -> None:
        """Note that the write of this state was committed."""
        written = self.put(scheduler_state).row
        self._row, self.scheduler_state = Row(written.key, written.doc, written.version + 1), scheduler_state
