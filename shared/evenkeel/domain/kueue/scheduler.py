"""The scheduler: queues, their pending workloads, and the workloads that hold quota, over many Kueue cycles."""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from evenkeel.domain.kueue.capacity import QuotaNode, Tree
from evenkeel.domain.kueue.cycle import Entry, KueueCycle
from evenkeel.domain.kueue.cycle_decisions import NO_EARLIER_HEADS, CycleDecision, EarlierHeads, NodeFit, Result
from evenkeel.domain.kueue.nomination import KnownNominations
from evenkeel.domain.kueue.objects import Admitted, Cohort, Flavor, Queue, QueueingStrategy, Workload
from evenkeel.domain.kueue.pending_queue import PendingQueue, PendingWorkload, RequeueTrigger
from evenkeel.domain.kueue.preemption import CandidateLists
from evenkeel.domain.kueue.recent_use import DecayedUse
from evenkeel.domain.kueue.snapshot import SchedulerRules, Snapshot

_TRIED_AGAIN_AT_ONCE = frozenset({Result.PREEMPTING, Result.DEFERRED, Result.SKIPPED, Result.BLOCKED})
_SAME_FOR_ALL_OF_A_SHAPE = frozenset({Result.NO_FIT, Result.NO_CANDIDATES, Result.INADMISSIBLE, Result.NO_NODES})


class Scheduler:
    """Queues and workloads. Each call of `cycle` runs one Kueue cycle."""

    def __init__(
        self,
        queues: Iterable[Queue],
        cohorts: Iterable[Cohort] = (),
        flavors: Iterable[Flavor] = (),
        rules: SchedulerRules | None = None,
        known_nominations: KnownNominations | None = None,
    ) -> None:
        """Start with no workloads.

        Args:
            queues: All queues.
            cohorts: All cohorts.
            flavors: The flavors that the queues name.
            rules: The cluster-wide switches; default Kueue's.
            known_nominations: Shared by schedulers of the same declarations that decide about the same workloads.
        """
        self.rules = rules or SchedulerRules()
        self._known_nominations = known_nominations
        self._latest_lists: tuple[Hashable, CandidateLists] | None = None
        """The candidates of the last Kueue cycle, with its state."""
        self.cohorts = tuple(cohorts)
        self._flavors = {flavor.name: flavor for flavor in flavors}
        declared = tuple(queues)
        self.snapshot = Snapshot(Tree(declared, self.cohorts), declared, self._flavors, self.rules)
        self.pending = {queue.name: PendingQueue(queue.strategy) for queue in declared}
        self._uses: dict[str, DecayedUse] = {}
        """Recent use of each queue that orders its sub-queues by use."""
        self.cycles = 0
        self._triggers: dict[QuotaNode, RequeueTrigger] = {}
        """By root of a tree."""
        self._active_queues: list[str] = []
        self._queue_by_workload: dict[str, str] = {}
        """Only workloads that hold quota."""
        self._queue_by_pending: dict[str, str] = {}
        """The queue of each workload that was submitted, and neither withdrawn nor admitted since."""
        self._connect_triggers()
        self._track_use()

    # ------------------------------------------------------------ workloads

    def submit(self, workload: Workload, *, not_before: float | None = None) -> None:
        """Add a workload to the pending workloads of its queue."""
        self.pending[workload.queue].push(PendingWorkload(workload), not_before=not_before)
        self._queue_by_pending[workload.workload_id] = workload.queue

    def withdraw(self, workload: Workload) -> None:
        """Remove a pending workload."""
        self.pending[workload.queue].remove(workload.workload_id)
        self._queue_by_pending.pop(workload.workload_id, None)

    def restore(self, admitted: Admitted) -> None:
        """Add a workload that already holds quota. It must stop if its queue's stop policy says so."""
        if self.snapshot.queue_of(admitted.workload).spec.stop.ends(admitted):
            admitted.is_evicted = True
        self._add_holder(admitted)

    def advance_to(self, now: float) -> None:
        """Set the time for the following calls. An earlier time is ignored."""
        self.snapshot.now = max(self.snapshot.now, now)

    def waiting(self, workload_id: str) -> PendingWorkload | None:
        """Return the submitted workload with this id that is pending."""
        queue = self.pending.get(self._queue_by_pending.get(workload_id, ""))
        return None if queue is None else queue.get(workload_id)

    def admitted(self, workload_id: str) -> Admitted | None:
        """Return the workload with this id that holds quota."""
        queue = self._queue_by_workload.get(workload_id)
        return self.snapshot.queues[queue].admitted[workload_id] if queue is not None else None

    def release(self, workload_id: str) -> Admitted | None:
        """Release the quota of a workload that ended or stopped, and wake the parked workloads of its tree."""
        admitted = self.admitted(workload_id)
        if admitted is not None:
            self.snapshot.remove(admitted)
            self._stop_use(admitted)
            del self._queue_by_workload[workload_id]
            self._forget_cursor(admitted.workload)
        return admitted

    def requeue_evicted(
        self, workload_id: str, *, requeued_at: float | None = None, not_before: float | None = None
    ) -> None:
        """Release the quota of an evicted workload that has stopped, and queue it again.

        Args:
            workload_id: The evicted workload.
            requeued_at: When it lost its position in the queue: evicted for its ready timeout or by an admission check.
            not_before: The earliest time of its next try.
        """
        admitted = self.release(workload_id)
        if admitted is not None:
            workload = admitted.workload
            if requeued_at is not None:
                workload = replace(workload, requeued_at=requeued_at)
            if workload.has_reservation:
                workload = replace(workload, has_reservation=False)
            self.submit(workload, not_before=not_before)

    def evict(self, workload_id: str) -> None:
        """Mark a workload as asked to stop. It holds its quota until `requeue_evicted` or `release`."""
        admitted = self.admitted(workload_id)
        if admitted is not None and not admitted.is_evicted:
            admitted.is_evicted = True
            queue = self.snapshot.queue_of(admitted.workload)
            queue.forget_holders()
            queue.generation += 1

    def pods_ready(self, workload_id: str) -> None:
        """Note that all pods of a workload are ready."""
        admitted = self.admitted(workload_id)
        if admitted is not None:
            admitted.is_ready = True

    def shrink(self, workload_id: str, counts: tuple[int, ...]) -> None:
        """Lower the pod counts of an admitted workload. Its quota falls at once, and its tree is woken."""
        admitted = self.admitted(workload_id)
        if admitted is None:
            return
        self.snapshot.remove(admitted)
        self._stop_use(admitted)
        # If the workload is queued again, it no longer requests finished or released pods. It still requests the pods
        # that partial admission left out.
        gone = [old - new for old, new in zip(admitted.counts, counts, strict=True)]
        pod_sets = tuple(
            replace(pod_set, count=max(0, pod_set.count - removed))
            for pod_set, removed in zip(admitted.workload.pod_sets, gone, strict=True)
        )
        workload = replace(admitted.workload, pod_sets=pod_sets)
        smaller = replace(admitted, workload=workload, counts=counts, use={})
        self.snapshot.admit(smaller)
        self._start_use(smaller, is_new=False)
        self._forget_cursor(admitted.workload)

    def reprioritize(self, workload_id: str, priority: int) -> None:
        """Change the priority of a workload that holds quota. Its tree is woken: the workload may now be a victim."""
        admitted = self.admitted(workload_id)
        if admitted is None or admitted.workload.priority == priority:
            return
        admitted.workload = replace(admitted.workload, priority=priority)
        self._forget_cursor(admitted.workload)

    def wake(self, quota_node: QuotaNode) -> None:
        """Wake all parked workloads of a quota tree, so that they are tried again."""
        self._triggers[quota_node.root].count += 1

    def _add_holder(self, admitted: Admitted) -> None:
        self.snapshot.admit(admitted)
        self._start_use(admitted)
        self._queue_by_workload[admitted.workload.workload_id] = admitted.workload.queue

    def _forget_cursor(self, workload: Workload) -> None:
        queue = self.snapshot.queue_of(workload)
        queue.generation += 1
        self.wake(queue.quota_node)

    # ------------------------------------------------------------ recent use of sub-queues

    def add_past_use(self, queue: str, sub_queue: str, amounts: Mapping[str, float]) -> None:
        """Add use by workloads that have ended, decayed to the present, by resource.

        It has an effect only in a queue that orders its sub-queues by use.
        """
        if queue in self._uses:
            self._uses[queue].add_past(sub_queue, amounts, self.snapshot.now)

    def set_reported_use(self, queue: str, sub_queue: str, amounts: Mapping[str, float], at: float) -> None:
        """Set a sub-queue's use as it was reported at a time, running workloads included.

        It has an effect only in a queue that orders its sub-queues by use.
        """
        if queue in self._uses:
            self._uses[queue].set_reported(sub_queue, amounts, at)

    def _start_use(self, admitted: Admitted, *, is_new: bool = True) -> None:
        uses = self._uses.get(admitted.workload.queue)
        if uses is not None:
            uses.start(admitted, self.snapshot.now, is_new=is_new)

    def _stop_use(self, admitted: Admitted) -> None:
        uses = self._uses.get(admitted.workload.queue)
        if uses is not None:
            uses.stop(admitted, self.snapshot.now)

    def _track_use(self) -> None:
        """Track use in the queues that order by it. In a new one, each admitted workload counts since its admission."""
        earlier_uses, self._uses = self._uses, {}
        for name, queue in self.snapshot.queues.items():
            decay = self.rules.decay if queue.spec.by_use else None
            self.pending[name].set_by_use(by_use=decay is not None)
            if decay is None:
                continue
            if name in earlier_uses:
                self._uses[name] = earlier_uses[name]
            else:
                capacity: dict[str, int] = {}
                for key in queue.quota_node.quotas:
                    capacity[key[1]] = capacity.get(key[1], 0) + queue.quota_node.potential(key)
                self._uses[name] = DecayedUse(decay, capacity)
                for admitted in queue.admitted.values():
                    self._start_use(admitted)
            self.snapshot.recent_use[name] = self._uses[name]
            self.pending[name].recent_use = partial(_recent_use, self._uses[name], self.snapshot)

    # ------------------------------------------------------------ configuration

    def reconfigure(
        self, queues: Iterable[Queue], cohorts: Iterable[Cohort] = (), flavors: Iterable[Flavor] = ()
    ) -> None:
        """Replace quotas, cohorts, flavors, weights and stop policies. Pending and admitted workloads stay."""
        earlier_queues, trees = self.snapshot.queues, _declarations_by_queue(self.snapshot, self.cohorts)
        declared, evicted_at, now = tuple(queues), self.snapshot.evicted_at, self.snapshot.now
        self.cohorts, self._flavors = tuple(cohorts), {flavor.name: flavor for flavor in flavors}
        self.snapshot = Snapshot(Tree(declared, self.cohorts), declared, self._flavors, self.rules)
        self.snapshot.evicted_at, self.snapshot.now = evicted_at, now
        changed = _declarations_by_queue(self.snapshot, self.cohorts)
        pending, self.pending = self.pending, {}
        for spec in declared:
            in_queue = self.pending[spec.name] = pending.get(spec.name) or PendingQueue(spec.strategy)
            in_queue.strategy = spec.strategy
            queue, earlier_queue = self.snapshot.queues[spec.name], earlier_queues.get(spec.name)
            queue.generation = earlier_queue.generation if earlier_queue else 0
            if trees.get(spec.name) != changed[spec.name]:
                in_queue.wake()
                queue.generation += 1
            for admitted in earlier_queue.admitted.values() if earlier_queue else ():
                self.snapshot.admit(admitted)
                if spec.stop.ends(admitted):
                    admitted.is_evicted = True
                    queue.forget_holders()
        self._connect_triggers()
        self._track_use()

    def _connect_triggers(self) -> None:
        """Give all queues of a tree one requeue trigger."""
        tree = self.snapshot.tree
        self._active_queues = [
            name
            for name in sorted(self.pending)
            if self.snapshot.queues[name].spec.is_active and not tree.is_cyclic(name)
        ]
        self._triggers = {quota_node.root: RequeueTrigger() for quota_node in tree.queues.values()}
        for name, quota_node in tree.queues.items():
            self.pending[name].set_trigger(self._triggers[quota_node.root])

    # ------------------------------------------------------------ cycles

    def cycle(
        self, now: float = 0.0, earlier: EarlierHeads = NO_EARLIER_HEADS, *, node_fit: NodeFit | None = None
    ) -> list[CycleDecision]:
        """Decide about the head of every queue once, and apply the decisions; return them in their order.

        Args:
            now: The time.
            earlier: Quota and victims of earlier heads, if a recorded cycle is repeated for one head alone.
            node_fit: Checks nodes after quota. Without it, quota alone decides.
        """
        self.snapshot.now = now
        state = self._state_of_nominations()
        known_nominations = self._known_nominations
        known = known_nominations.in_state((self.cycles, state)) if known_nominations and state is not None else {}
        cycle = KueueCycle(self.snapshot, self.cycles + 1, node_fit, self._candidate_lists_in(state))
        entries = cycle.nominate(self._heads(now), known)
        if not entries:
            return []  # does not count as a cycle: cursors of flavor scans expire by the number of cycles
        self.cycles += 1
        preempted = [admitted for name in earlier.victims if (admitted := self.admitted(name)) is not None]
        decisions = cycle.run(entries, earlier, preempted)
        return [self._apply(entries[decision.workload.queue], decision, now) for decision in decisions]

    def _candidate_lists_in(self, state: Hashable) -> CandidateLists:
        """Return the lists of candidates in a state. Kueue cycles in equal states share them."""
        if state is None or self._latest_lists is None or self._latest_lists[0] != state:
            self._latest_lists = (state, CandidateLists(self.snapshot))
        return self._latest_lists[1]

    def _state_of_nominations(self) -> Hashable | None:
        """Return all that a nomination reads, except the head and the number of the cycle; None if it is not compared.

        A topology and recent use are states of their own.
        """
        snapshot = self.snapshot
        if self._known_nominations is None or snapshot.topology is not None or snapshot.recent_use:
            return None
        quota_nodes = (*snapshot.tree.queues.values(), *snapshot.tree.cohorts.values())
        use = tuple(
            tuple((key, cell.use) for key, cell in quota_node.cells.items() if cell.use) for quota_node in quota_nodes
        )
        held = tuple(queue.held for queue in snapshot.queues.values())
        generations = tuple(queue.generation for queue in snapshot.queues.values())
        return (snapshot.now, held, use, generations, frozenset(snapshot.evicted_at.items()))

    def _heads(self, now: float) -> Iterator[PendingWorkload]:
        for name in self._active_queues:
            pending = self.pending[name]
            if pending.is_idle:
                continue
            head = pending.pop(now)
            if head is not None:
                yield head

    def _apply(self, entry: Entry, decision: CycleDecision, now: float) -> CycleDecision:
        """Apply a decision: admit the head, or mark its victims and queue it again."""
        workload = decision.workload
        queue, pending = self.snapshot.queue_of(workload), self.pending[workload.queue]
        if decision.result is Result.ADMITTED:
            self._admit(decision, now)
            self.withdraw(workload)
            return decision
        for victim in decision.victims:
            self.evict(victim.workload_id)
            if self.rules.flap_guard_seconds:
                self.snapshot.evicted_at[frozenset((workload.workload_id, victim.workload_id))] = now
        is_strict = queue.spec.strategy is QueueingStrategy.STRICT
        lets_others_pass = decision.result is Result.INADMISSIBLE and not workload.blocks_when_inadmissible
        parked = pending.requeue(
            PendingWorkload(workload, entry.flavor_cursor),
            at_once=(is_strict and not lets_others_pass) or decision.result in _TRIED_AGAIN_AT_ONCE,
            parks_shape=decision.result in _SAME_FOR_ALL_OF_A_SHAPE,
            is_preempting=decision.result in (Result.PREEMPTING, Result.DEFERRED),
        )
        if decision.result is Result.BLOCKED:
            pending.sticky = workload.workload_id  # Kueue's scheduler waits here, so no other workload overtakes it
        return decision.as_parked() if parked else decision

    def _admit(self, decision: CycleDecision, now: float) -> None:
        workload, assignment = decision.workload, decision.assignment
        queue = self.snapshot.queue_of(workload)
        if workload.replaces and workload.replaces in queue.admitted:
            replaced = queue.admitted[workload.replaces]
            self._stop_use(replaced)
            self.snapshot.remove(replaced)
            del self._queue_by_workload[workload.replaces]
            queue.generation += 1
        use = {} if workload.replaces else dict(assignment.use)  # the use of a larger slice adds only the difference
        is_ready = not self.rules.blocks_until_ready
        self._add_holder(
            Admitted(
                workload,
                assignment.flavors,
                assignment.counts,
                now,
                use=use,
                is_ready=is_ready,
                topology=assignment.topology,
            )
        )


def _recent_use(uses: DecayedUse, snapshot: Snapshot, sub_queue: str, weight: float) -> float:
    return uses.of(sub_queue, snapshot.now, weight)


def _declarations_by_queue(snapshot: Snapshot, cohorts: Iterable[Cohort]) -> dict[str, frozenset[str]]:
    """Return all declarations of each queue's tree. If they are the same, so are the queue's decisions."""
    by_root: dict[int, set[str]] = {}
    for cohort in cohorts:
        by_root.setdefault(id(snapshot.tree.cohorts[cohort.name].root), set()).add(repr(cohort))
    for queue in snapshot.queues.values():
        tree = by_root.setdefault(id(queue.quota_node.root), set())
        tree.add(repr(queue.spec))
        tree.update(
            repr(snapshot.flavors.get(flavor.flavor)) for group in queue.spec.groups for flavor in group.flavors
        )
    return {name: frozenset(by_root[id(queue.quota_node.root)]) for name, queue in snapshot.queues.items()}
