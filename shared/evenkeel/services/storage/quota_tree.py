"""The row of the quota tree: its version orders all changes of quota, and it holds the state of the scheduler."""

from evenkeel.domain.admission.scheduler_state import SchedulerState
from evenkeel.ports import Put, Row


def stored_state(row: Row | None) -> SchedulerState:
    """Return the scheduler's state in the row; an empty state if there is none."""
    return SchedulerState.model_validate((row.doc.get("memory") if row else None) or {})


class QuotaTree:
    """The row as this cycle last wrote it. Each commit that changes quota raises its version."""

    def __init__(self, row: Row, memory: SchedulerState) -> None:
        self._row = row
        self.memory = memory

    def put(self, memory: SchedulerState) -> Put:
        """Return the write that raises its version and stores a state."""
        packed = memory.to_row()
        doc = {name: value for name, value in self._row.doc.items() if name != "memory"}
        return Put(Row(self._row.key, {**doc, "memory": packed} if packed else doc, self._row.version))

    def raised(self, memory: SchedulerState) -> None:
        """Note that the write of this state was committed."""
        written = self.put(memory).row
        self._row, self.memory = Row(written.key, written.doc, written.version + 1), memory
