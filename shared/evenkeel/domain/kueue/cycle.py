"""One scheduling cycle: the head of every queue is weighed once, and admitted, made room for, or put back.

heads ─▶ each weighed against the same world ─▶ in turn: fits still? ─▶ admit · evict others · wait ─▶ put back
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from evenkeel.domain.kueue import fair_sharing
from evenkeel.domain.kueue.capacity import Node, Tree
from evenkeel.domain.kueue.decayed import DecayedUse
from evenkeel.domain.kueue.flavors import Assignment, FlavorAssigner, Mode, Pending, Progress, Verdict
from evenkeel.domain.kueue.objects import (
    Admitted,
    Amounts,
    Cohort,
    Flavor,
    Key,
    PreemptionPolicy,
    Queue,
    QueueingStrategy,
    Workload,
)
from evenkeel.domain.kueue.pending import PendingQueue, RequeueTrigger, Waiting
from evenkeel.domain.kueue.preemption import Demand, Victim, classical_victims, simulate
from evenkeel.domain.kueue.snapshot import Rules, Snapshot, positive


class Result(StrEnum):
    """What a cycle did with a head."""

    ADMITTED = "Admitted"
    PREEMPTING = "Preempting"
    """Others were told to go, and it waits for them."""
    DEFERRED = "Deferred"
    """It fits once evictions of this cycle are over."""
    NO_FIT = "NoFit"
    NO_CANDIDATES = "NoCandidates"
    """Others would have to go, and nobody may be made to."""
    INADMISSIBLE = "Inadmissible"
    """Its queue takes it not at all."""
    SKIPPED = "Skipped"
    """Somebody before it in this cycle took the room, or the victims."""
    BLOCKED = "Blocked"
    """It fits, and waits until the pods of all who were admitted are ready."""
    NO_SEATS = "NoSeats"
    """Quota is there, machines are not. Only where seats are asked for."""


NodeFit = Callable[[Workload, Assignment, tuple[Victim, ...]], str]
"""Says why there are no machines for a workload on its flavors, these victims gone; empty where there are.

Asked last, so the answer that there are some is a promise: where nobody has to go first, they are taken."""


class Before(NamedTuple):
    """What was given away in a cycle before a head's turn."""

    blocked: tuple[tuple[str, Mapping[Key, int], bool], ...] = ()
    """(queue, amounts, whether it was admitted): used by others, or kept free for them."""
    taken: tuple[str, ...] = ()
    """Victims, in its own tree."""


_FIRST = Before()


class Decision(NamedTuple):
    """What became of one head, and all that it rests on."""

    workload: Workload
    result: Result
    reason: str
    assignment: Assignment
    victims: tuple[Victim, ...] = ()
    pending: Pending = Pending.NONE
    reserved: Mapping[Key, int] = MappingProxyType({})
    """Kept free for it for the rest of the cycle, though it was not admitted."""
    was_recomputed: bool = False
    """Its victims overlapped with earlier ones of this cycle."""
    parked: bool = False
    before: Before = _FIRST
    """Where seats are asked for: with this, its turn can be repeated alone."""
    began: Progress | None = None
    """Where its scan of the flavors began."""
    below: Mapping[str, Amounts] = MappingProxyType({})
    """By how much other queues fall below their own quota once its victims are gone: the last one may be larger than
    what its queue had borrowed."""


@dataclass(slots=True)
class _Entry:
    waiting: Waiting
    assignment: Assignment
    victims: list[Victim]
    progress: Progress | None
    was_recomputed: bool = False
    before: Before = _FIRST
    began: Progress | None = None

    @property
    def workload(self) -> Workload:
        return self.waiting.workload


class Scheduler:
    """Queues, who waits in them, and who holds their quota; `cycle` moves it on by one step."""

    def __init__(
        self,
        queues: Iterable[Queue],
        cohorts: Iterable[Cohort] = (),
        flavors: Iterable[Flavor] = (),
        rules: Rules | None = None,
        node_fit: NodeFit | None = None,
    ) -> None:
        """Begin with nobody waiting and nobody admitted; without `seats`, quota alone decides."""
        self.rules = rules or Rules()
        self._seats = node_fit
        self.cohorts = tuple(cohorts)
        self._flavors = {flavor.name: flavor for flavor in flavors}
        declared = tuple(queues)
        self.snapshot = Snapshot(Tree(declared, self.cohorts), declared, self._flavors, self.rules)
        self.pending = {queue.name: PendingQueue(queue.strategy) for queue in declared}
        self._uses: dict[str, DecayedUse] = {}
        """Of the queues that go by use."""
        self.cycles = 0
        self._blocked: list[tuple[Node, Amounts]] = []
        """Use that this cycle gave away so far, taken back at its end."""
        self._is_in: list[bool] = []
        """Of each of them, whether it was admitted; else it only waits."""
        self._has_admitted = self._waits_for_ready = False
        """Whether this cycle admitted somebody, and whether it stands still until pods are ready."""
        self._bells: dict[Node, RequeueTrigger] = {}
        self._taking_part: list[str] = []
        """The queues that admit, by name."""
        self._queue_of: dict[str, str] = {}
        """Of each workload that holds quota."""
        self._hang_bells()
        self._go_by_use()

    # ------------------------------------------------------------ what happens to it

    def submit(self, workload: Workload, *, not_before: float | None = None) -> None:
        """Let a workload wait in its queue."""
        self.pending[workload.queue].push(Waiting(workload), not_before=not_before)

    def withdraw(self, workload: Workload) -> None:
        """Forget a workload that waits."""
        self.pending[workload.queue].remove(workload.workload_id)

    def restore(self, admitted: Admitted) -> None:
        """Take over a workload that holds quota already."""
        if self.snapshot.team_of(admitted.workload).queue.stop.ends(admitted):
            admitted.is_evicted = True
        self._hold(admitted)

    def pass_time(self, now: float) -> None:
        """Let it be so late when the next thing happens."""
        self.snapshot.now = max(self.snapshot.now, now)

    def _hold(self, admitted: Admitted) -> None:
        self.snapshot.admit(admitted)
        self._count(admitted)
        self._queue_of[admitted.workload.workload_id] = admitted.workload.queue

    def _count(self, admitted: Admitted, *, is_new: bool = True) -> None:
        uses = self._uses.get(admitted.workload.queue)
        if uses is not None:
            uses.began(admitted, self.snapshot.now, is_new=is_new)

    def used_before(self, queue: str, sub_queue: str, amounts: Mapping[str, float]) -> None:
        """Say what is left by now, by resource, of what a sub-queue used and holds no more; for queues by use."""
        if queue in self._uses:
            self._uses[queue].left_of(sub_queue, amounts, self.snapshot.now)

    def set_reported_use(self, queue: str, sub_queue: str, amounts: Mapping[str, float], at: float) -> None:
        """Say what a sub-queue's use had come to by then, whoever holds quota now included; for queues by use."""
        if queue in self._uses:
            self._uses[queue].set_reported(sub_queue, amounts, at)

    def _count_no_longer(self, admitted: Admitted) -> None:
        uses = self._uses.get(admitted.workload.queue)
        if uses is not None:
            uses.ended(admitted, self.snapshot.now)

    def _go_by_use(self) -> None:
        """Measure use where queues go by it; who holds quota by now counts since it has it."""
        known, self._uses = self._uses, {}
        for name, team in self.snapshot.teams.items():
            decay = self.rules.decay if team.queue.by_use else None
            self.pending[name].go_by_use(by_use=decay is not None)
            if decay is None:
                continue
            if name in known:
                self._uses[name] = known[name]
            else:
                most: dict[str, int] = {}
                for key in team.node.quotas:
                    most[key[1]] = most.get(key[1], 0) + team.node.potential(key)
                self._uses[name] = DecayedUse(decay, most)
                for admitted in team.admitted.values():
                    self._count(admitted)
            self.pending[name].use_of = self.snapshot.use_of[name] = partial(self._used_of_late, self._uses[name])

    def _used_of_late(self, uses: DecayedUse, sub_queue: str, weight: float) -> float:
        return uses.of(sub_queue, self.snapshot.now, weight)

    def _hang_bells(self) -> None:
        """Give all queues of a tree one bell."""
        tree = self.snapshot.tree
        self._taking_part = [
            name
            for name in sorted(self.pending)
            if self.snapshot.teams[name].queue.is_active and not tree.is_cyclic(name)
        ]
        self._bells = {node.root: RequeueTrigger() for node in tree.queues.values()}
        for name, node in tree.queues.items():
            self.pending[name].hang(self._bells[node.root])

    def holder(self, workload_id: str) -> Admitted | None:
        """Return who holds quota under this id."""
        queue = self._queue_of.get(workload_id)
        return self.snapshot.teams[queue].admitted[workload_id] if queue is not None else None

    def release(self, workload_id: str) -> Admitted | None:
        """Take back the quota of a workload that ended or has stopped, and wake its whole tree."""
        admitted = self.holder(workload_id)
        if admitted is not None:
            self.snapshot.release(admitted)
            self._count_no_longer(admitted)
            del self._queue_of[workload_id]
            team = self.snapshot.team_of(admitted.workload)
            team.generation += 1
            self.wake(team.node)
        return admitted

    def give_up(self, workload_id: str, *, requeued_at: float | None = None, not_before: float | None = None) -> None:
        """Let an evicted workload, now that it has stopped, wait again.

        Args:
            workload_id: It.
            requeued_at: When it lost its place, where it was evicted for its ready timeout or by a check.
            not_before: When it may be tried again at the earliest.
        """
        admitted = self.release(workload_id)
        if admitted is not None:
            workload = admitted.workload
            if requeued_at is not None:
                workload = replace(workload, requeued_at=requeued_at)
            self.submit(replace(workload, has_reservation=False), not_before=not_before)

    def evict(self, workload_id: str) -> None:
        """Tell a workload to stop. It holds its quota until `give_up` or `release`."""
        admitted = self.holder(workload_id)
        if admitted is not None and not admitted.is_evicted:
            admitted.is_evicted = True
            self.snapshot.team_of(admitted.workload).generation += 1

    def pods_ready(self, workload_id: str) -> None:
        """Note that all pods of a workload are ready."""
        admitted = self.holder(workload_id)
        if admitted is not None:
            admitted.is_ready = True

    def shrink(self, workload_id: str, counts: tuple[int, ...]) -> None:
        """Lower an admitted workload's counts in place; its quota falls at once and its whole tree is woken."""
        admitted = self.holder(workload_id)
        if admitted is None:
            return
        self.snapshot.release(admitted)
        self._count_no_longer(admitted)
        # Pods that are done or given up are asked for no more, should it ever wait again; those that partial admission
        # did without are.
        gone = [old - new for old, new in zip(admitted.counts, counts, strict=True)]
        pod_sets = tuple(
            replace(pod_set, count=max(0, pod_set.count - less))
            for pod_set, less in zip(admitted.workload.pod_sets, gone, strict=True)
        )
        workload = replace(admitted.workload, pod_sets=pod_sets)
        smaller = replace(admitted, workload=workload, counts=counts, use={})
        self.snapshot.admit(smaller)
        self._count(smaller, is_new=False)
        team = self.snapshot.team_of(admitted.workload)
        team.generation += 1
        self.wake(team.node)

    def reprioritize(self, workload_id: str, priority: int) -> None:
        """Give a workload that holds quota another priority; its whole tree is woken, since it may be a victim now."""
        admitted = self.holder(workload_id)
        if admitted is None or admitted.workload.priority == priority:
            return
        admitted.workload = replace(admitted.workload, priority=priority)
        team = self.snapshot.team_of(admitted.workload)
        team.generation += 1
        self.wake(team.node)

    def wake(self, node: Node) -> None:
        """Let everything that is parked in a tree be tried again."""
        self._bells[node.root].rings += 1

    def reconfigure(
        self, queues: Iterable[Queue], cohorts: Iterable[Cohort] = (), flavors: Iterable[Flavor] = ()
    ) -> None:
        """Change quota, cohorts, flavors, weights or stop policies; who waits and who runs stays."""
        before, trees = self.snapshot.teams, _declared_by_queue(self.snapshot, self.cohorts)
        declared, known_pairs, now = tuple(queues), self.snapshot.evicted_at, self.snapshot.now
        self.cohorts, self._flavors = tuple(cohorts), {flavor.name: flavor for flavor in flavors}
        self.snapshot = Snapshot(Tree(declared, self.cohorts), declared, self._flavors, self.rules)
        self.snapshot.evicted_at, self.snapshot.now = known_pairs, now
        changed = _declared_by_queue(self.snapshot, self.cohorts)
        pending, self.pending = self.pending, {}
        for queue in declared:
            kept = self.pending[queue.name] = pending.get(queue.name) or PendingQueue(queue.strategy)
            kept.strategy = queue.strategy
            team, known = self.snapshot.teams[queue.name], before.get(queue.name)
            team.generation = known.generation if known else 0
            if trees.get(queue.name) != changed[queue.name]:
                kept.wake()
                team.generation += 1
            for admitted in known.admitted.values() if known else ():
                self.snapshot.admit(admitted)
                if queue.stop.ends(admitted):
                    admitted.is_evicted = True
        self._hang_bells()
        self._go_by_use()

    # ------------------------------------------------------------ a cycle

    def cycle(self, now: float = 0.0, before: Before | None = None) -> list[Decision]:
        """Weigh the head of every queue once, in place; return what was decided, in the order of processing.

        Args:
            now: The time.
            before: What others were given earlier in a cycle that is repeated for one head alone.
        """
        self.cycles += 1
        self.snapshot.now = now
        entries = {entry.workload.queue: entry for entry in self._nominate(now)}
        if not entries:
            self.cycles -= 1  # what looked at nobody is no cycle: nothing that was remembered grows older by it
            return []
        taken: dict[Node, dict[str, Admitted]] = {}
        """Victims by tree: those of another tree make no room."""
        self._blocked, self._is_in = [], []
        self._has_admitted = self._waits_for_ready = False
        self._begin_after(before, taken)
        decisions: list[tuple[_Entry, Decision]] = []
        for entry in self._in_turn(entries):
            root = self.snapshot.team_of(entry.workload).node.root
            decision = self._process(entry, taken.setdefault(root, {}))
            decisions.append((entry, decision))
        for node, amounts in reversed(self._blocked):
            node.remove_all(amounts)
        return [self._conclude(entry, decision, now) for entry, decision in decisions]

    def _begin_after(self, before: Before | None, taken: dict[Node, dict[str, Admitted]]) -> None:
        """Give away what others were given before."""
        for queue, amounts, is_in in before.blocked if before else ():
            node = self.snapshot.teams[queue].node
            node.add_all(amounts)
            self._blocked.append((node, dict(amounts)))
            self._is_in.append(is_in)
        for name in before.taken if before else ():
            victim = self.holder(name)
            if victim is not None:
                taken.setdefault(self.snapshot.team_of(victim.workload).node.root, {})[name] = victim

    def _nominate(self, now: float) -> Iterator[_Entry]:
        for name in self._taking_part:
            pending = self.pending[name]
            if pending.is_idle:
                continue
            team = self.snapshot.teams[name]
            waiting = pending.pop(now)
            if waiting is not None:
                progress = waiting.progress
                if progress is not None and progress.is_outdated(waiting.workload, team, self.cycles):
                    progress = None
                if waiting.workload.barred:
                    yield _Entry(waiting, Assignment(waiting.workload.counts, verdict=Verdict.NO_FIT), [], None)
                    continue
                assignment, victims = self._weigh(waiting.workload, progress)
                yield _Entry(waiting, assignment, victims, assignment.progress, began=progress)

    def _weigh(
        self, workload: Workload, progress: Progress | None, only: tuple[Mapping[str, str], ...] | None = None
    ) -> tuple[Assignment, list[Victim]]:
        """Find flavors and victims: at full size, else at the largest that works."""
        team = self.snapshot.team_of(workload)
        replaced = team.admitted.get(workload.replaces) if workload.replaces else None
        assigner = FlavorAssigner(
            workload, self.snapshot, self._simulate, progress=progress, cycle=self.cycles, only=only, replaced=replaced
        )
        full = assigner.assign(workload.counts)
        found = self._admissible(full, workload)
        if found is not None:
            return full, found
        if workload.may_shrink and replaced is None and self.rules.partial_admission:
            smaller = self._search_smaller(assigner, workload)
            if smaller is not None:
                return smaller
        return full, []

    def _admissible(self, assignment: Assignment, workload: Workload) -> list[Victim] | None:
        """Return the victims that this size needs, perhaps none; None where it cannot be had."""
        if assignment.verdict is Verdict.FIT:
            return []
        if assignment.verdict is Verdict.PREEMPT:
            return self._victims(workload, positive(assignment.use), assignment.contested) or None
        return None

    def _search_smaller(self, assigner: FlavorAssigner, workload: Workload) -> tuple[Assignment, list[Victim]] | None:
        """Find the first of the D steps from full to least that can be had, by halving."""
        slack = [
            pod_set.count - (pod_set.count if pod_set.min_count is None else pod_set.min_count)
            for pod_set in workload.pod_sets
        ]
        steps = sum(slack)
        low, high = 0, steps + 1
        best: tuple[int, Assignment, list[Victim]] | None = None
        while low < high:
            middle = (low + high) // 2
            counts = tuple(count - less * middle // steps for count, less in zip(workload.counts, slack, strict=True))
            assignment = assigner.assign(counts)
            victims = self._admissible(assignment, workload)
            if victims is None:
                low = middle + 1
            else:
                best, high = (middle, assignment, victims), middle
        if best is None or best[0] != low:
            return None
        return best[1], best[2]

    def _victims(self, workload: Workload, wanted: Amounts, contested: frozenset[Key]) -> list[Victim]:
        demand = Demand(workload, self.snapshot.team_of(workload), wanted, contested, workload.replaces)
        if self.rules.fair_sharing:
            return fair_sharing.fair_victims(demand, self.snapshot)
        return classical_victims(demand, self.snapshot)

    def _simulate(self, workload: Workload, key: Key, amount: int) -> tuple[Mode, int]:
        """Say whether preemption makes room for so much of one key alone."""
        contested = frozenset((key,))
        wanted = {key: amount}
        demand = Demand(workload, self.snapshot.team_of(workload), wanted, contested, workload.replaces)
        return simulate(demand, key, self._victims(workload, wanted, contested), self.snapshot)

    # ------------------------------------------------------------ in turn

    def _in_turn(self, entries: dict[str, _Entry]) -> Iterator[_Entry]:
        if not self.rules.fair_sharing:
            yield from sorted(entries.values(), key=_classical_order)
            return
        teams = self.snapshot.teams
        tournament = fair_sharing.Tournament(
            {
                name: fair_sharing.Contestant(entry.workload, teams[name].node, self._net_use(entry))
                for name, entry in entries.items()
            }
        )
        while tournament:
            name = tournament.pop()
            before = len(self._blocked)
            yield entries[name]
            if len(self._blocked) > before:
                tournament.changed(teams[name].node)

    def _net_use(self, entry: _Entry) -> Amounts:
        return {} if entry.workload.has_reservation else entry.assignment.use

    def _process(self, entry: _Entry, taken: dict[str, Admitted]) -> Decision:
        """Decide about one head, with what was decided before it in this cycle."""
        node = self.snapshot.team_of(entry.workload).node
        if self._seats is not None:
            blocked = zip(self._blocked, self._is_in, strict=True)
            entry.before = Before(
                tuple((other.name, dict(amounts), is_in) for (other, amounts), is_in in blocked), tuple(taken)
            )
        if self._waits_for_ready:
            reason = "One before it in this cycle waits until the pods of all who were admitted are ready."
            return self._decided(entry, Result.BLOCKED, reason, pending=Pending.WAITING_FOR_PODS_READY)
        if any(victim.workload_id in taken for victim in entry.victims):
            self._recompute(entry, taken)
        assignment = entry.assignment

        def block(amounts: Amounts) -> None:
            if amounts:
                node.add_all(amounts)
                self._blocked.append((node, amounts))
                self._is_in.append(assignment.verdict is Verdict.FIT)

        if entry.workload.barred:
            return self._decided(entry, Result.INADMISSIBLE, entry.workload.barred)
        if assignment.verdict is Verdict.NO_FIT:
            reason = _pending_message(assignment)
            return self._decided(entry, Result.NO_FIT, reason, pending=assignment.pending)
        if assignment.verdict is Verdict.PREEMPT and not entry.victims:
            reserved = self._reserve(entry, node)
            block(reserved)
            reason = "Others would have to go, and its queue's policies let it have none of them evicted."
            return self._decided(
                entry, Result.NO_CANDIDATES, reason, pending=Pending.WAITING_FOR_QUOTA, reserved=reserved
            )
        if assignment.verdict is Verdict.DEFERRED:
            entry.progress = None
            block(self._net_use(entry))
            reason = "It fits once the evictions that are under way are over."
            return self._decided(entry, Result.DEFERRED, reason)
        if any(victim.workload_id in taken for victim in entry.victims):
            reason = "Its victims go for another workload of this cycle."
            return self._decided(entry, Result.SKIPPED, reason, pending=Pending.WAITING_FOR_QUOTA)
        if not self._still_fits(entry, node, taken):
            reason = "It no longer fits, after others of this cycle."
            return self._decided(entry, Result.SKIPPED, reason, pending=Pending.WAITING_FOR_QUOTA)
        no_seats = self._seats(entry.workload, assignment, tuple(entry.victims)) if self._seats else ""
        if no_seats:
            # A strict queue waits behind it, so what is its own is kept for it; nobody else's.
            is_strict = self.snapshot.team_of(entry.workload).queue.strategy is QueueingStrategy.STRICT
            reserved = self._net_use(entry) if is_strict and not assignment.level and not entry.victims else {}
            block(reserved)
            return self._decided(entry, Result.NO_SEATS, no_seats, reserved=reserved)
        taken.update((victim.workload_id, victim.admitted) for victim in entry.victims)
        block(self._net_use(entry))
        if assignment.verdict is Verdict.FIT and self._waits_for_pods(entry):
            self._waits_for_ready = True
            reason = "It waits until the pods of all who were admitted before it are ready."
            return self._decided(entry, Result.BLOCKED, reason, pending=Pending.WAITING_FOR_PODS_READY)
        if assignment.verdict is Verdict.PREEMPT:
            entry.progress = None
            names = ", ".join(victim.workload_id for victim in entry.victims)
            decision = self._decided(entry, Result.PREEMPTING, f"Waits until {names} has stopped.")
            return decision._replace(below=self._below(entry))
        self._has_admitted = True
        return self._decided(entry, Result.ADMITTED, _admitted_message(assignment))

    def _waits_for_pods(self, entry: _Entry) -> bool:
        """Whether somebody who is admitted, in this cycle or before, keeps a head waiting: its pods are not ready.

        Who holds its quota already takes nothing new, and waits for nobody.
        """
        if not self.rules.blocks_until_ready or entry.workload.has_reservation:
            return False
        if self._has_admitted:
            return True
        return any(not each.is_ready for team in self.snapshot.teams.values() for each in team.admitted.values())

    def _below(self, entry: _Entry) -> dict[str, Amounts]:
        """Return what the victims' queues then use less than their own."""
        gone: dict[str, Amounts] = {}
        for victim in entry.victims:
            of_queue = gone.setdefault(victim.admitted.workload.queue, {})
            for key, amount in victim.admitted.use.items():
                of_queue[key] = of_queue.get(key, 0) + amount
        gone.pop(entry.workload.queue, None)
        found: dict[str, Amounts] = {}
        for queue, amounts in gone.items():
            node = self.snapshot.teams[queue].node
            short = {key: slot.nominal - (slot.use - amounts[key]) for key in amounts for slot in (node.at(key),)}
            lost = {key: min(amount, amounts[key]) for key, amount in short.items() if min(amount, amounts[key]) > 0}
            if lost:
                found[queue] = lost
        return found

    def _still_fits(self, entry: _Entry, node: Node, taken: Mapping[str, Admitted]) -> bool:
        """Whether there is room, all victims of the cycle and its own gone."""
        gone = {**taken, **{victim.workload_id: victim.admitted for victim in entry.victims}}
        if not gone:
            return node.fits(self._net_use(entry))
        with self.snapshot.without_use_of(gone.values()):
            fits = node.fits(self._net_use(entry))
        if not fits or entry.victims or not self.rules.never_overcommits:
            return fits
        waiting = [each for each, is_in in zip(self._blocked, self._is_in, strict=True) if not is_in]
        for other, amounts in reversed(waiting):
            other.remove_all(amounts)
        fits = node.fits(self._net_use(entry))  # as it is, victims there and those who wait for them not yet
        for other, amounts in waiting:
            other.add_all(amounts)
        return fits

    def _recompute(self, entry: _Entry, taken: Mapping[str, Admitted]) -> None:
        """Weigh a head anew, its victims being others' already, on the flavors that it was nominated for."""
        with self.snapshot.without(tuple(taken.values())):
            entry.assignment, entry.victims = self._weigh(entry.workload, None, entry.assignment.flavors)
        entry.progress = entry.assignment.progress
        entry.was_recomputed = True
        if entry.assignment.verdict is Verdict.FIT:
            entry.assignment.verdict = Verdict.DEFERRED

    def _reserve(self, entry: _Entry, node: Node) -> Amounts:
        """Keep free what a head could take, so that nobody below it slips in; nothing where it may always reclaim."""
        team = self.snapshot.team_of(entry.workload)
        if team.queue.preemption.reclaim is PreemptionPolicy.ANY or entry.workload.has_reservation:
            return {}
        reserved: Amounts = {}
        for key, amount in entry.assignment.use.items():
            slot = node.at(key)
            if entry.assignment.level == 0:
                reserved[key] = max(0, min(amount, slot.nominal - slot.use))
            elif slot.borrow is None:
                reserved[key] = amount
            else:
                reserved[key] = min(amount, slot.nominal + slot.borrow - slot.use)
        return reserved

    def _decided(
        self,
        entry: _Entry,
        result: Result,
        reason: str,
        *,
        pending: Pending = Pending.NONE,
        reserved: Mapping[Key, int] | None = None,
    ) -> Decision:
        victims = tuple(entry.victims) if result in (Result.PREEMPTING, Result.ADMITTED) else ()
        return Decision(
            entry.workload,
            result,
            reason,
            entry.assignment,
            victims,
            pending,
            reserved or {},
            entry.was_recomputed,
            before=entry.before,
            began=entry.began,
        )

    def _conclude(self, entry: _Entry, decision: Decision, now: float) -> Decision:
        """Carry a decision out: admit, mark victims, or put the head back."""
        workload = entry.workload
        team = self.snapshot.team_of(workload)
        queue = self.pending[workload.queue]
        if decision.result is Result.ADMITTED:
            if workload.replaces and workload.replaces in team.admitted:
                self._count_no_longer(team.admitted[workload.replaces])
                self.snapshot.release(team.admitted[workload.replaces])
                del self._queue_of[workload.replaces]
                team.generation += 1
            assignment = decision.assignment
            use = {} if workload.replaces else dict(assignment.use)  # a slice's use is only what it asks for more
            is_ready = not self.rules.blocks_until_ready
            self._hold(Admitted(workload, assignment.flavors, assignment.counts, now, use=use, is_ready=is_ready))
            queue.remove(workload.workload_id)
            return decision
        for victim in decision.victims:
            self.evict(victim.workload_id)
            if self.rules.flap_guard_seconds:
                self.snapshot.evicted_at[frozenset((workload.workload_id, victim.workload_id))] = now
        is_strict = team.queue.strategy is QueueingStrategy.STRICT
        passes = decision.result is Result.INADMISSIBLE and not workload.barred_holds_up
        at_once = (is_strict and not passes) or decision.result in (
            Result.PREEMPTING,
            Result.DEFERRED,
            Result.SKIPPED,
            Result.BLOCKED,
        )
        parked = queue.requeue(
            Waiting(workload, entry.progress),
            at_once=at_once,
            parks_shape=decision.result in (Result.NO_FIT, Result.NO_CANDIDATES, Result.INADMISSIBLE, Result.NO_SEATS),
            is_preempting=decision.result in (Result.PREEMPTING, Result.DEFERRED),
        )
        if decision.result is Result.BLOCKED:
            queue.sticky = workload.workload_id  # Kueue waits with it in its hand: nobody passes it by
        return decision._replace(parked=parked) if parked else decision


def _declared_by_queue(snapshot: Snapshot, cohorts: Iterable[Cohort]) -> dict[str, frozenset[str]]:
    """Return all that is declared of each queue's tree: where it stays the same, so do its answers."""
    by_root: dict[int, set[str]] = {}
    for cohort in cohorts:
        by_root.setdefault(id(snapshot.tree.cohorts[cohort.name].root), set()).add(repr(cohort))
    for team in snapshot.teams.values():
        tree = by_root.setdefault(id(team.node.root), set())
        tree.add(repr(team.queue))
        tree.update(repr(snapshot.flavors.get(each.flavor)) for group in team.queue.groups for each in group.flavors)
    return {name: frozenset(by_root[id(team.node.root)]) for name, team in snapshot.teams.items()}


def _classical_order(entry: _Entry) -> tuple[bool, int, int, float, str]:
    workload = entry.workload
    return (
        not workload.has_reservation,
        entry.assignment.level,
        -workload.priority,
        workload.queued_at,
        workload.tie,
    )


def _pending_message(assignment: Assignment) -> str:
    match assignment.pending:
        case Pending.EXCEEDS_MAX_QUOTA:
            return "It asks for more than its queue could ever have."
        case Pending.NO_MATCHING_FLAVOR:
            return "No flavor of its queue matches its pods."
        case _:
            return "Its queue has no room, and may neither borrow more nor have anybody evicted for it."


def _admitted_message(assignment: Assignment) -> str:
    names = sorted({flavor for flavors in assignment.flavors for flavor in flavors.values()})
    where = ", ".join(names) or "no flavor"
    return f"Admitted on {where}, borrowing." if assignment.level else f"Admitted on {where} within its own quota."
