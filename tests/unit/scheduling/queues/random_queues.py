"""Random queues with random histories. A seed determines everything."""

import random
from collections.abc import Iterator
from dataclasses import replace

from evenkeel.domain.kueue.cycle_decisions import CycleDecision, Result
from evenkeel.domain.kueue.objects import (
    BorrowWithin,
    Cohort,
    Flavor,
    FlavorQuotas,
    Fungibility,
    Fungible,
    PodSet,
    PreemptionPolicy,
    PreemptionRules,
    Queue,
    QueueingStrategy,
    Quota,
    ResourceGroup,
    Workload,
)
from evenkeel.domain.kueue.scheduler import Scheduler
from evenkeel.domain.kueue.snapshot import SchedulerRules
from tests import kueue_checker

RESOURCES = ("cpu", "gpu")
FLAVORS = ("f1", "f2")
PRIORITIES = (0, 0, 1, 2)


class RandomQueues:
    """A scheduler, and a seeded source of events."""

    def __init__(self, seed: int, *, deep: bool = False, fair: bool | None = None) -> None:
        self.random = random.Random(seed)
        self.cohorts: tuple[Cohort, ...] = (
            (self._cohort("west", "root"), self._cohort("east", "root"), self._cohort("root", "")) if deep else ()
        )
        self.queues = tuple(self._queue(name, deep=deep) for name in "abcd")
        is_fair = self.random.random() < 0.5 if fair is None else fair
        self.rules = SchedulerRules(fair_sharing=is_fair)
        self.now = 0.0
        self.number = 0
        self.scheduler = self.fresh()

    def fresh(self) -> Scheduler:
        """Return a scheduler of the same queues without workloads."""
        return Scheduler(self.queues, self.cohorts, [Flavor(name) for name in FLAVORS], self.rules)

    def _quota(self, most: int, *, is_limited: bool) -> Quota:
        nominal = self.random.randint(0, most)
        borrow = self.random.choice((None, None, self.random.randint(0, most))) if is_limited else None
        lend = self.random.choice((None, None, self.random.randint(0, nominal))) if is_limited else None
        return Quota(nominal, borrow, lend)

    def _groups(self, most: int, *, is_limited: bool) -> tuple[ResourceGroup, ...]:
        flavors = (
            FlavorQuotas(flavor, {resource: self._quota(most, is_limited=is_limited) for resource in RESOURCES})
            for flavor in FLAVORS
        )
        return (ResourceGroup(RESOURCES, tuple(flavors)),)

    def _cohort(self, name: str, parent: str) -> Cohort:
        groups = self._groups(4, is_limited=bool(parent)) if self.random.random() < 0.5 else ()
        return Cohort(name, parent, groups, self.random.choice((0.0, 1.0, 1.0, 2.0)))

    def _queue(self, name: str, *, deep: bool) -> Queue:
        pick = self.random.choice
        reclaim = pick((PreemptionPolicy.NEVER, PreemptionPolicy.LOWER_PRIORITY, PreemptionPolicy.ANY))
        may_borrow = reclaim is not PreemptionPolicy.NEVER and self.random.random() < 0.3
        within = (
            PreemptionPolicy.NEVER,
            PreemptionPolicy.LOWER_PRIORITY,
            PreemptionPolicy.LOWER_OR_NEWER_EQUAL_PRIORITY,
        )
        return Queue(
            name,
            pick(("west", "east")) if deep else "flat",
            self._groups(8, is_limited=True),
            pick((0.0, 1.0, 1.0, 2.0)),
            PreemptionRules(pick(within), reclaim, BorrowWithin(pick((None, 1))) if may_borrow else None),
            Fungibility(pick(tuple(Fungible)), pick(tuple(Fungible))),
            pick(tuple(QueueingStrategy)),
        )

    def workload(self) -> Workload:
        """Return a new workload."""
        pick, self.number = self.random.choice, self.number + 1
        count = self.random.randint(1, 4)
        requests = {"cpu": self.random.randint(0, 3), "gpu": self.random.randint(0, 2)}
        smallest = pick((None, None, self.random.randint(1, count)))
        return Workload(
            f"w{self.number:03}",
            pick("abcd"),
            (PodSet("main", count, requests, smallest),),
            priority=pick(PRIORITIES),
            created_at=float(self.random.randint(0, 50)),
        )

    def history(self, steps: int) -> Iterator[tuple[list[CycleDecision], dict[str, frozenset[tuple[str, str]]]]]:
        """Run random events; yield each cycle's decisions, and by queue the keys that were over nominal before it."""
        for _ in range(steps):
            self.now += 1.0
            self._random_event()
            over = {
                name: frozenset(key for key, cell in queue.quota_node.cells.items() if cell.use > cell.nominal)
                for name, queue in self.scheduler.snapshot.queues.items()
            }
            yield self.cycle(), over

    def cycle(self) -> list[CycleDecision]:
        """Run a cycle, and check each decision with the independent checker."""
        decisions = self.scheduler.cycle(self.now)
        for decision in decisions:
            queue = self.scheduler.snapshot.queues[decision.workload.queue].spec
            assert list(kueue_checker.faults_of(decision, queue)) == []
        return decisions

    def _random_event(self) -> None:
        running = sorted(name for queue in self.scheduler.snapshot.queues.values() for name in queue.admitted)
        match self.random.randrange(5):
            case 0 | 1 | 2:
                for _ in range(self.random.randint(1, 3)):
                    self.scheduler.submit(self.workload())
            case 3 if running:
                self.scheduler.release(self.random.choice(running))
            case _:
                self.stop_evicted()

    def stop_evicted(self) -> None:
        """Let all evicted workloads stop."""
        for queue in self.scheduler.snapshot.queues.values():
            for name in [name for name, workload in queue.admitted.items() if workload.is_evicted]:
                self.scheduler.requeue_evicted(name)

    def overcommitted(self, *, with_evicted: bool = True) -> list[str]:
        """Return the violations of limits."""
        queues = self.scheduler.snapshot.queues.values()
        admitted = [
            admitted
            for queue in queues
            for admitted in queue.admitted.values()
            if with_evicted or not admitted.is_evicted
        ]
        return list(kueue_checker.overcommitted(self.queues, self.cohorts, admitted))

    def with_more(self, queue: str, key: tuple[str, str], more: int) -> tuple[Queue, ...]:
        """Return the queues with more nominal quota of a key in one of them."""

        def raised(old_queue: Queue) -> Queue:
            groups = tuple(
                replace(
                    group,
                    flavors=tuple(
                        FlavorQuotas(
                            flavor.flavor,
                            {
                                resource: replace(quota, nominal=quota.nominal + more)
                                if (flavor.flavor, resource) == key
                                else quota
                                for resource, quota in flavor.quotas.items()
                            },
                        )
                        for flavor in group.flavors
                    ),
                )
                for group in old_queue.groups
            )
            return replace(old_queue, groups=groups)

        return tuple(raised(old_queue) if old_queue.name == queue else old_queue for old_queue in self.queues)


def plain_decisions(decisions: list[CycleDecision]) -> list[object]:
    """Return the decisions as plain values."""
    return [
        (
            decision.workload.workload_id,
            decision.result,
            decision.assignment.flavors,
            decision.assignment.counts,
            decision.assignment.level,
            [(victim.workload_id, victim.reason) for victim in decision.victims],
            decision.parked,
        )
        for decision in decisions
    ]


__all__ = ["RandomQueues", "Result", "plain_decisions"]
