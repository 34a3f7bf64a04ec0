"""The pending workloads of a queue: its head, its parked workloads, and its sticky workload.

Workloads of one shape always get the same decision. They wait in a group of their own, which is parked and woken as a
whole. The cost of a Kueue cycle therefore grows with the number of shapes, not with the number of workloads.

    push ─▶ group of its shape ─▶ head of the queue ─▶ pop ─▶ admitted
                │  ▲                                    │
              park  wake                             requeue

If a queue orders by recent use, each of its sub-queues has groups and a head of its own. The sub-queue with the least
recent use goes first.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from evenkeel.domain.kueue.assignment import FlavorCursor
from evenkeel.domain.kueue.objects import QueueingStrategy, Workload

_Entry = tuple[int, float, str, str, str, str]
"""A workload's order, shape and sub-queue. It is a flat tuple, because the heaps compare it often."""


class PendingWorkload(NamedTuple):
    """A pending workload, and where its scan of the flavors stopped."""

    workload: Workload
    flavor_cursor: FlavorCursor | None = None


@dataclass(slots=True)
class RequeueTrigger:
    """Wakes the parked workloads of all queues of a tree.

    A queue compares the count when it is next used, so that one wake-up costs the same for any number of queues.
    """

    count: int = 0


class PendingQueue:
    """The pending workloads of one queue."""

    def __init__(self, strategy: QueueingStrategy, *, by_use: bool = False) -> None:
        self.strategy = strategy
        self.orders_by_use = by_use
        self.recent_use: Callable[[str, float], float] = lambda _, __: 0.0
        """Returns the recent use of a sub-queue, divided by its weight."""
        self.sticky = ""
        """The workload that waits for its evictions. It stays the head of the queue, even if a workload of higher
        priority arrives."""
        self._waiting: dict[str, PendingWorkload] = {}
        """Workloads that are backing off are not included."""
        self._same_shape: dict[tuple[str, str], list[_Entry]] = {}
        """Heaps by shape and sub-queue. An entry may be stale: `_drop_stale` removes it."""
        self._heads: dict[str, list[_Entry]] = {}
        """Heaps by sub-queue: the first workload of each group that is not parked. Entries may be stale."""
        self._parked: set[str] = set()
        self._inadmissible_shapes: set[str] = set()
        """Parked shapes that a wake-up leaves parked, because the queue never admits them."""
        self._backoff_ends: list[tuple[float, str]] = []
        """Heap of (time of the next try, workload)."""
        self._backing_off: dict[str, PendingWorkload] = {}
        self._pops = 0
        self._woken_at = -1
        self._trigger = RequeueTrigger()
        self._seen_count = 0

    def __len__(self) -> int:
        return len(self._waiting) + len(self._backing_off)

    def __contains__(self, workload_id: str) -> bool:
        return workload_id in self._waiting or workload_id in self._backing_off

    def set_trigger(self, requeue_trigger: RequeueTrigger) -> None:
        """Follow this requeue trigger from now on."""
        self._follow_trigger()
        self._trigger, self._seen_count = requeue_trigger, requeue_trigger.count

    def _follow_trigger(self) -> None:
        if self._seen_count != self._trigger.count:
            self._seen_count = self._trigger.count
            self.wake()

    @property
    def is_idle(self) -> bool:
        """Whether it is certain that no workload can be tried: a cheap test for cycles over many queues."""
        return (
            not self._heads and not self._backoff_ends and not self.sticky and self._seen_count == self._trigger.count
        )

    @property
    def parked_shapes(self) -> frozenset[str]:
        """The shapes that are not tried until a wake-up."""
        self._follow_trigger()
        return frozenset(self._parked)

    def all(self) -> list[PendingWorkload]:
        """Return all pending workloads, in queue order."""
        workloads = (*self._waiting.values(), *self._backing_off.values())
        use = {workload.workload.sub_queue: 0.0 for workload in workloads}
        if self.orders_by_use:
            weights = {workload.workload.sub_queue: workload.workload.sub_weight for workload in workloads}
            use = {sub: self.recent_use(sub, weight) for sub, weight in weights.items()}
        return sorted(
            workloads,
            key=lambda workload: (
                workload.workload.workload_id != self.sticky,
                use[workload.workload.sub_queue],
                workload.workload.order,
            ),
        )

    def by_state(self) -> tuple[list[str], list[str], list[str]]:
        """Return the active, the parked and the backing-off workloads, each in queue order."""
        self._follow_trigger()
        active: list[str] = []
        parked: list[str] = []
        backing_off: list[str] = []
        for waiting in self.all():
            name = waiting.workload.workload_id
            if name in self._backing_off:
                backing_off.append(name)
            else:
                (parked if waiting.workload.shape in self._parked else active).append(name)
        return active, parked, backing_off

    def get(self, workload_id: str) -> PendingWorkload | None:
        """Return the pending workload with this id."""
        return self._waiting.get(workload_id) or self._backing_off.get(workload_id)

    def push(self, waiting: PendingWorkload, *, not_before: float | None = None) -> None:
        """Add a workload, or replace the workload with the same id. If its shape is parked, it is parked too."""
        if self._seen_count != self._trigger.count:
            self._follow_trigger()
        workload = waiting.workload
        if workload.workload_id in self._waiting or workload.workload_id in self._backing_off:
            sticky = self.sticky
            self.remove(workload.workload_id)
            self.sticky = sticky  # it stays the head even if its priority or size changed
        if not_before is not None:
            self._backing_off[workload.workload_id] = waiting
            heapq.heappush(self._backoff_ends, (not_before, workload.workload_id))
            return
        self._waiting[workload.workload_id] = waiting
        shape, sub = workload.shape, workload.sub_queue if self.orders_by_use else ""
        entry = (*workload.order, shape, sub)
        group = self._same_shape.get((shape, sub))
        if group is None:
            self._same_shape[shape, sub] = [entry]
        elif group[0] == entry:
            return  # it was the head, and its entries are still in the heaps
        else:
            heapq.heappush(group, entry)
        if (group is None or group[0] is entry) and shape not in self._parked:
            self._add_head(entry)

    def _add_head(self, entry: _Entry) -> None:
        heads = self._heads.get(entry[5])
        if heads is None:
            self._heads[entry[5]] = [entry]
        else:
            heapq.heappush(heads, entry)

    def set_by_use(self, *, by_use: bool) -> None:
        """Start or stop ordering the sub-queues by recent use."""
        if by_use is self.orders_by_use:
            return
        self.orders_by_use = by_use
        self._same_shape, self._heads, sticky = {}, {}, self.sticky
        for waiting in list(self._waiting.values()):
            self.push(waiting)
        self.sticky = sticky

    def remove(self, workload_id: str) -> None:
        """Remove a workload that was cancelled or changed."""
        self._waiting.pop(workload_id, None)
        self._backing_off.pop(workload_id, None)
        if self.sticky == workload_id:
            self.sticky = ""

    def pop(self, now: float = 0.0) -> PendingWorkload | None:
        """Remove and return the head; None if every workload is parked or backing off."""
        if self._seen_count != self._trigger.count:
            self._follow_trigger()
        self._pops += 1
        if self._backoff_ends:
            self._end_backoffs(now)
        sticky = self._waiting.get(self.sticky) if self.sticky else None
        if sticky is not None and sticky.workload.shape not in self._parked:
            return self._waiting.pop(self.sticky)
        entry = self._head()
        if entry is None:
            return None
        # Its entries stay in the heaps: most heads are put back unchanged. Otherwise they are stale.
        return self._waiting.pop(entry[3])

    def _head(self) -> _Entry | None:
        if not self.orders_by_use:
            return self._head_of("")
        heads = [entry for sub in list(self._heads) if (entry := self._head_of(sub)) is not None]
        if len(heads) < 2:
            return heads[0] if heads else None
        return min(
            heads, key=lambda entry: (self.recent_use(entry[5], self._waiting[entry[3]].workload.sub_weight), entry)
        )

    def _head_of(self, sub: str) -> _Entry | None:
        """Return the head of a sub-queue. Stale entries are dropped."""
        heads = self._heads.get(sub)
        while heads:
            entry = heads[0]
            if entry[4] not in self._parked:
                group = self._drop_stale(entry[4:])
                if group and group[0] == entry:
                    return entry
                # A copy of the smallest entry of a heap is a child of its root. Only the last copy is replaced.
                if group and group[0] > entry and entry not in heads[1:3]:
                    heapq.heapreplace(heads, group[0])
                    continue
            heapq.heappop(heads)
        self._heads.pop(sub, None)
        return None

    def requeue(self, waiting: PendingWorkload, *, at_once: bool, parks_shape: bool, is_preempting: bool) -> bool:
        """Put back a workload that was not admitted; return whether it was parked.

        Args:
            waiting: The workload, with the cursor of its flavor scan.
            at_once: Whether to try it again in the next cycle.
            parks_shape: Whether every workload of its shape would get the same decision.
            is_preempting: Whether it waits for its evictions.
        """
        if self._seen_count != self._trigger.count:
            self._follow_trigger()
        workload = waiting.workload
        is_best_effort = self.strategy is QueueingStrategy.BEST_EFFORT
        if is_preempting and is_best_effort:
            self.sticky = workload.workload_id
        elif self.sticky == workload.workload_id and parks_shape:
            self.sticky = ""  # no workload can still be evicted for it; a skipped workload stays sticky
        was_woken = self._woken_at >= self._pops
        has_more = waiting.flavor_cursor is not None and waiting.flavor_cursor.has_more
        may_park = is_best_effort or bool(workload.inadmissible_reason)
        parks = (
            may_park and parks_shape and not (at_once or has_more or (was_woken and not workload.inadmissible_reason))
        )
        if parks:
            self._parked.add(workload.shape)
            if workload.inadmissible_reason:
                self._inadmissible_shapes.add(workload.shape)
        self.push(waiting)
        return parks

    def wake(self) -> int:
        """Wake all parked workloads, so that they are tried again; return how many shapes were parked."""
        self._woken_at = self._pops
        woken, self._parked = self._parked - self._inadmissible_shapes, self._parked & self._inadmissible_shapes
        keys = (
            [key for key in self._same_shape if key[0] in woken]
            if self.orders_by_use
            else [(shape, "") for shape in woken]
        )
        for key in keys:
            group = self._drop_stale(key)
            if group:
                self._add_head(group[0])
        return len(woken)

    def _drop_stale(self, key: tuple[str, str]) -> list[_Entry]:
        """Return a group after removing stale entries from its start."""
        group = self._same_shape.get(key)
        if group is None:
            return []
        while group:
            entry = group[0]
            waiting = self._waiting.get(entry[3])
            if waiting is not None:
                workload = waiting.workload
                if workload.order == entry[:4] and workload.shape == key[0]:
                    break
            heapq.heappop(group)
        if not group:
            self._same_shape.pop(key, None)
        return group

    def _end_backoffs(self, now: float) -> None:
        while self._backoff_ends and self._backoff_ends[0][0] <= now:
            _, workload_id = heapq.heappop(self._backoff_ends)
            workload = self._backing_off.pop(workload_id, None)
            if workload is not None:
                self.push(workload)
