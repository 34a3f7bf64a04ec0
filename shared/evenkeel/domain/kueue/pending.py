"""A queue's waiting workloads: who is at its head, what is parked, what is sticky.

Workloads of one shape are bound to get the same answer, so they wait in a line of their own, and a whole line is parked
and woken at once: a pass costs what the number of shapes costs, not the number of workloads.

    push ─▶ line of its shape ─▶ head of the queue ─▶ pop ─▶ admitted
                │  ▲                                   │
              park  wake                            requeue

Where a queue goes by use, each of its sub-queues has lines and a head of its own, and who used least goes first.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, replace

from evenkeel.domain.kueue.flavors import Progress
from evenkeel.domain.kueue.objects import QueueingStrategy, Workload

_Entry = tuple[int, float, str, str, str, str]
"""A workload's order, its shape and its sub-queue: flat, since heaps compare little else."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A workload that waits, and what the rules remember of it between cycles."""

    workload: Workload
    progress: Progress | None = None


@dataclass(slots=True)
class RequeueTrigger:
    """Wakes all queues of a tree: each hears it when it is next asked anything, so ringing costs nothing."""

    rings: int = 0


class PendingQueue:
    """The waiting workloads of one queue."""

    def __init__(self, strategy: QueueingStrategy, *, by_use: bool = False) -> None:
        self.strategy = strategy
        self.is_by_use = by_use
        self.use_of: Callable[[str, float], float] = lambda _, __: 0.0
        """What a sub-queue of some weight used of late."""
        self.sticky = ""
        """The workload that waits for its evictions: it stays head, even before higher priorities."""
        self._waiting: dict[str, Waiting] = {}
        self._lines: dict[tuple[str, str], list[_Entry]] = {}
        """By shape and sub-queue."""
        self._heads: dict[str, list[_Entry]] = {}
        """By sub-queue: the first of each line that is not parked; entries that no longer hold are dropped when met."""
        self._parked: set[str] = set()
        self._barred: set[str] = set()
        """Parked for good: the queue takes them not at all."""
        self._held_until: list[tuple[float, str]] = []
        """Backed off: not to be tried before."""
        self._held: dict[str, Waiting] = {}
        self._pops = 0
        self._woken_at = -1
        self._bell = RequeueTrigger()
        self._heard = 0

    def __len__(self) -> int:
        return len(self._waiting) + len(self._held)

    def __contains__(self, workload_id: str) -> bool:
        return workload_id in self._waiting or workload_id in self._held

    def hang(self, requeue_trigger: RequeueTrigger) -> None:
        """Listen to this bell from now on."""
        self._listen()
        self._bell, self._heard = requeue_trigger, requeue_trigger.rings

    def _listen(self) -> None:
        if self._heard != self._bell.rings:
            self._heard = self._bell.rings
            self.wake()

    @property
    def is_idle(self) -> bool:
        """Whether there is surely nobody to be tried: cheap, for cycles over many queues."""
        return not self._heads and not self._held_until and not self.sticky and self._heard == self._bell.rings

    @property
    def parked_shapes(self) -> frozenset[str]:
        """The shapes that wait for something to change."""
        self._listen()
        return frozenset(self._parked)

    def all(self) -> list[Waiting]:
        """Return everybody who waits, in queue order."""
        everybody = (*self._waiting.values(), *self._held.values())
        use = {each.workload.sub_queue: 0.0 for each in everybody}
        if self.is_by_use:
            weights = {each.workload.sub_queue: each.workload.sub_weight for each in everybody}
            use = {sub: self.use_of(sub, weight) for sub, weight in weights.items()}
        return sorted(
            everybody,
            key=lambda each: (
                each.workload.workload_id != self.sticky,
                use[each.workload.sub_queue],
                each.workload.order,
            ),
        )

    def by_state(self) -> tuple[list[str], list[str], list[str]]:
        """Return who is tried next, who is parked, and who is backed off; each in queue order."""
        self._listen()
        active: list[str] = []
        parked: list[str] = []
        held: list[str] = []
        for waiting in self.all():
            name = waiting.workload.workload_id
            into = held if name in self._held else parked if waiting.workload.shape in self._parked else active
            into.append(name)
        return active, parked, held

    def get(self, workload_id: str) -> Waiting | None:
        """Return who waits under this id."""
        return self._waiting.get(workload_id) or self._held.get(workload_id)

    def push(self, waiting: Waiting, *, not_before: float | None = None) -> None:
        """Let a workload wait; one whose shape is parked is parked with it. Known ids are replaced."""
        self._listen()
        workload = waiting.workload
        if workload.workload_id in self:
            sticky = self.sticky
            self.remove(workload.workload_id)
            self.sticky = sticky  # another priority or size does not cost it the head
        if not_before is not None:
            self._held[workload.workload_id] = waiting
            heapq.heappush(self._held_until, (not_before, workload.workload_id))
            return
        self._waiting[workload.workload_id] = waiting
        shape, sub = workload.shape, workload.sub_queue if self.is_by_use else ""
        entry = (*workload.order, shape, sub)
        line = self._lines.get((shape, sub))
        if line is None:
            self._lines[shape, sub] = [entry]
        else:
            heapq.heappush(line, entry)
        if (line is None or line[0] is entry) and shape not in self._parked:
            self._lead(entry)

    def _lead(self, entry: _Entry) -> None:
        heads = self._heads.get(entry[5])
        if heads is None:
            self._heads[entry[5]] = [entry]
        else:
            heapq.heappush(heads, entry)

    def go_by_use(self, *, by_use: bool) -> None:
        """Order by use from now on, or no longer."""
        if by_use is self.is_by_use:
            return
        self.is_by_use = by_use
        self._lines, self._heads, sticky = {}, {}, self.sticky
        for waiting in list(self._waiting.values()):
            self.push(waiting)
        self.sticky = sticky

    def remove(self, workload_id: str) -> None:
        """Take a workload out: it was cancelled or changed."""
        self._waiting.pop(workload_id, None)
        self._held.pop(workload_id, None)
        if self.sticky == workload_id:
            self.sticky = ""

    def pop(self, now: float = 0.0) -> Waiting | None:
        """Take the head; None where nobody waits who is not parked."""
        self._listen()
        self._pops += 1
        self._let_go(now)
        sticky = self._waiting.get(self.sticky)
        if sticky is not None and sticky.workload.shape not in self._parked:
            return self._waiting.pop(self.sticky)
        entry = self._head()
        if entry is None:
            return None
        line = self._lines[entry[4:]]
        heapq.heappop(self._heads[entry[5]])
        heapq.heappop(line)
        found = self._waiting.pop(entry[3])
        if self._clean(entry[4:]):
            self._lead(line[0])
        elif not self._heads[entry[5]]:
            del self._heads[entry[5]]
        return found

    def _head(self) -> _Entry | None:
        if not self.is_by_use:
            return self._head_of("")
        heads = [entry for sub in list(self._heads) if (entry := self._head_of(sub)) is not None]
        if len(heads) < 2:
            return heads[0] if heads else None
        return min(heads, key=lambda entry: (self.use_of(entry[5], self._waiting[entry[3]].workload.sub_weight), entry))

    def _head_of(self, sub: str) -> _Entry | None:
        """Return the head of a sub-queue; entries that no longer hold are dropped."""
        heads = self._heads.get(sub)
        while heads:
            entry = heads[0]
            if entry[4] not in self._parked:
                line = self._clean(entry[4:])
                if line and line[0] == entry:
                    return entry
                if line and line[0] > entry:
                    heapq.heapreplace(heads, line[0])
                    continue
            heapq.heappop(heads)
        self._heads.pop(sub, None)
        return None

    def requeue(self, waiting: Waiting, *, at_once: bool, parks_shape: bool, is_preempting: bool) -> bool:
        """Put back a workload that was not admitted; return whether it was parked.

        Args:
            waiting: It, with what is to be remembered.
            at_once: It is to be tried again in the next cycle.
            parks_shape: Everybody of its shape would get the same answer.
            is_preempting: It waits for its evictions.
        """
        self._listen()
        workload = waiting.workload
        is_best_effort = self.strategy is QueueingStrategy.BEST_EFFORT
        if is_preempting and is_best_effort:
            self.sticky = workload.workload_id
        elif self.sticky == workload.workload_id and parks_shape:
            self.sticky = ""  # nobody can be evicted for it any more; who was only skipped stays head
        was_woken = self._woken_at >= self._pops
        has_more = waiting.progress is not None and waiting.progress.has_more
        may_park = is_best_effort or bool(workload.barred)
        parks = may_park and parks_shape and not (at_once or has_more or (was_woken and not workload.barred))
        if parks:
            self._parked.add(workload.shape)
            if workload.barred:
                self._barred.add(workload.shape)
        self.push(waiting)
        return parks

    def wake(self) -> int:
        """Let everybody be tried again; return how many shapes were parked."""
        self._woken_at = self._pops
        woken, self._parked = self._parked - self._barred, self._parked & self._barred
        lines = [key for key in self._lines if key[0] in woken] if self.is_by_use else [(each, "") for each in woken]
        for key in lines:
            line = self._clean(key)
            if line:
                self._lead(line[0])
        return len(woken)

    def _clean(self, key: tuple[str, str]) -> list[_Entry]:
        """Return a line with somebody who waits at its head."""
        line = self._lines.get(key, [])
        while line:
            entry = line[0]
            found = self._waiting.get(entry[3])
            if found is not None and found.workload.order == entry[:4] and found.workload.shape == key[0]:
                break
            heapq.heappop(line)
        if not line:
            self._lines.pop(key, None)
        return line

    def _let_go(self, now: float) -> None:
        while self._held_until and self._held_until[0][0] <= now:
            _, workload_id = heapq.heappop(self._held_until)
            found = self._held.pop(workload_id, None)
            if found is not None:
                self.push(replace(found))
