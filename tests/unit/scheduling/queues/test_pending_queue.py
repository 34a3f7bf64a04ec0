"""The heaps of a queue return the same heads as a plain list, in any order of events."""

from hypothesis import given
from hypothesis import strategies as st

from evenkeel.domain.kueue.objects import QueueingStrategy, Workload
from evenkeel.domain.kueue.pending_queue import PendingQueue, PendingWorkload
from tests.unit.scheduling.queues.builders import a_workload

IDS = st.sampled_from("abcdef")
EVENTS = st.one_of(
    st.tuples(st.just("push"), IDS, st.integers(1, 2), st.integers(0, 2)),
    st.tuples(st.just("remove"), IDS),
    st.tuples(st.just("pop")),
    st.tuples(st.just("requeue"), st.booleans(), st.booleans(), st.booleans()),
    st.tuples(st.just("wake")),
)


class PlainQueue:
    """A queue without heaps: it sorts all workloads for each head."""

    def __init__(self) -> None:
        self.waiting: dict[str, Workload] = {}
        self.parked: set[str] = set()
        self.sticky = ""

    def head(self) -> str:
        """Return the next workload; empty if none can be tried."""
        active = [workload for workload in self.waiting.values() if workload.shape not in self.parked]
        ordered = sorted(active, key=lambda workload: (workload.workload_id != self.sticky, workload.order))
        return ordered[0].workload_id if ordered else ""

    def remove(self, workload_id: str) -> None:
        self.waiting.pop(workload_id, None)
        if self.sticky == workload_id:
            self.sticky = ""

    def requeue(self, workload: Workload, *, parks_shape: bool, is_parked: bool, is_preempting: bool) -> None:
        self.waiting[workload.workload_id] = workload
        if is_preempting:
            self.sticky = workload.workload_id
        elif self.sticky == workload.workload_id and parks_shape:
            self.sticky = ""
        if is_parked:
            self.parked.add(workload.shape)


@given(st.lists(EVENTS, max_size=60))
def test_heaps_and_plain_list_return_equal_heads(events: list[tuple[str | int | bool, ...]]) -> None:
    pending, plain = PendingQueue(QueueingStrategy.BEST_EFFORT), PlainQueue()
    popped: list[PendingWorkload] = []
    for event in events:
        match event:
            case ("push", str(name), int(size), int(priority)):
                workload = a_workload(name, "a", size, priority=priority)
                pending.push(PendingWorkload(workload))
                plain.waiting[name] = workload
            case ("remove", str(name)):
                pending.remove(name)
                plain.remove(name)
            case ("pop",):
                head, waiting = plain.head(), pending.pop()
                assert (waiting.workload.workload_id if waiting else "") == head
                if waiting:
                    del plain.waiting[head]
                    popped.append(waiting)
            case ("requeue", bool(at_once), bool(parks_shape), bool(is_preempting)) if popped:
                waiting = popped.pop()
                if waiting.workload.workload_id in plain.waiting:
                    continue  # it was submitted again meanwhile
                is_parked = pending.requeue(
                    waiting, at_once=at_once, parks_shape=parks_shape, is_preempting=is_preempting
                )
                plain.requeue(
                    waiting.workload, parks_shape=parks_shape, is_parked=is_parked, is_preempting=is_preempting
                )
            case ("wake",):
                pending.wake()
                plain.parked.clear()

    heads = [waiting.workload.workload_id for _ in range(len(plain.waiting)) if (waiting := pending.pop())]
    expected_heads = []
    while head := plain.head():
        expected_heads.append(head)
        del plain.waiting[head]
    assert heads == expected_heads
