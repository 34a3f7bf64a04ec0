"""Each change that an explanation names flips the answer, and one unit less does not: in random worlds, tried anew."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import example, given, settings

from evenkeel.domain.kueue.decisions import Decision, Result
from evenkeel.domain.kueue.objects import Queue, Workload
from evenkeel.domain.kueue.scheduler import Scheduler
from evenkeel.domain.kueue.why import Change, why
from tests.unit.scheduling.queues.builders import (
    ANY,
    LOWER,
    LOWER_OR_NEWER,
    a_queue,
    a_scheduler,
    a_workload,
    holds,
)
from tests.unit.scheduling.queues.random_queues import RandomQueues
from tests.unit.scheduling.queues.test_properties import SEEDS

GETS_IN = (Result.ADMITTED, Result.PREEMPTING)


def a_world_in_which_jobs_wait(seed: int, *, deep: bool) -> RandomQueues:
    world = RandomQueues(seed, deep=deep)
    for _ in world.history(15):
        pass
    return world


def decided(world: RandomQueues, queues: Iterable[Queue], job: Workload, gone: Iterable[str] = ()) -> Result:
    """Return what becomes of a job, were it alone to wait, once its scan of the flavors is at its end."""
    scheduler = Scheduler(queues, world.cohorts, world.scheduler.snapshot.flavors.values(), world.rules)
    for queue in world.scheduler.snapshot.queues.values():
        for name, each in queue.admitted.items():
            if name not in gone:
                scheduler.restore(replace(each))
    scheduler.submit(job)
    decision: Decision | None = None
    for _ in range(4):
        for decision in scheduler.cycle(world.scheduler.snapshot.now):
            if decision.result in GETS_IN or decision.parked:
                return decision.result
    assert decision is not None
    return decision.result


def flips(world: RandomQueues, job: Workload, change: Change, *, less: int = 0) -> bool:
    """Whether a change gets the job in; made by so much less."""
    queues: Iterable[Queue] = world.queues
    match change.kind:
        case "quota":
            once = RandomQueues.with_more
            for number, (resource, amount) in enumerate(change.amounts.items()):
                units = int(amount.removesuffix("m")) * (1 if amount.endswith("m") or resource != "cpu" else 1000)
                world.queues = once(world, job.queue, (change.flavor, resource), units - (less if number == 0 else 0))
            changed, world.queues = world.queues, tuple(queues)
            return decided(world, changed, job) is Result.ADMITTED
        case "priority":
            assert change.priority is not None
            return decided(world, queues, replace(job, priority=change.priority - less)) in GETS_IN
        case "size":
            pods = (replace(job.pod_sets[0], count=change.counts[0] + less, min_count=None),)
            return decided(world, queues, replace(job, pod_sets=pods)) is Result.ADMITTED
        case _:
            return decided(world, queues, job, change.jobs[less:]) is Result.ADMITTED


@pytest.mark.parametrize("deep", [False, True])
@settings(max_examples=15, deadline=None)
@given(SEEDS)
@example(475)
@example(1_668_146_072)
def test_suggested_change_admits_the_job_and_one_unit_less_does_not(deep: bool, seed: int) -> None:
    world = a_world_in_which_jobs_wait(seed, deep=deep)
    waiting = [each.workload for queue in world.scheduler.pending.values() for each in queue.all()]
    for job in waiting[:3]:
        found = why(world.scheduler, job)
        for change in found.changes:
            assert flips(world, job, change), change.message
            assert not flips(world, job, change, less=1), change.message


def test_equal_priority_is_enough_against_newer_workloads() -> None:
    scheduler = a_scheduler(
        a_queue("a", 4, within=LOWER_OR_NEWER),
        admitted=(holds("late", "a", 4, priority=5),),
        waiting=(a_workload("early", "a", 4, at=-1, priority=1),),
    )
    scheduler.cycle()
    (change,) = (each for each in why(scheduler, a_workload("early", "a", 4, at=-1)).changes if each.kind == "priority")

    assert change.priority == 5


def test_explanation_names_the_sticky_head() -> None:
    scheduler = a_scheduler(
        a_queue("a", 4, reclaim=ANY, within=LOWER),
        admitted=(holds("old", "a", 4),),
        waiting=(a_workload("first", "a", 4, priority=5),),
    )
    scheduler.cycle()
    urgent = a_workload("urgent", "a", 4, priority=9)
    scheduler.submit(urgent)

    assert why(scheduler, urgent).sentence.startswith("first stays the head of a until old has stopped")
