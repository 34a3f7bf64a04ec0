"""Each suggested change admits the job, and one unit less does not: tested in random queues."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import example, given, settings

from evenkeel.domain.kueue.cycle_decisions import CycleDecision, Result
from evenkeel.domain.kueue.objects import Queue, Workload
from evenkeel.domain.kueue.scheduler import Scheduler
from evenkeel.domain.queue_simulation.admitting_change import AdmittingChange
from evenkeel.domain.queue_simulation.why import why
from tests.examples import examples
from tests.unit.scheduling.queues.builders import (
    ANY,
    LOWER,
    LOWER_OR_NEWER,
    a_queue,
    a_scheduler,
    a_workload,
    an_admitted_workload,
)
from tests.unit.scheduling.queues.random_queues import RandomQueues
from tests.unit.scheduling.queues.test_properties import SEEDS

GRANTED = (Result.ADMITTED, Result.PREEMPTING)


def random_pending_jobs(seed: int, *, deep: bool) -> RandomQueues:
    fleet = RandomQueues(seed, deep=deep)
    for _ in fleet.history(15):
        pass
    return fleet


def result_for(fleet: RandomQueues, queues: Iterable[Queue], job: Workload, ended: Iterable[str] = ()) -> Result:
    """Return the result for a job as if it were the only pending job, after a complete scan of the flavors."""
    scheduler = Scheduler(queues, fleet.cohorts, fleet.scheduler.snapshot.flavors.values(), fleet.rules)
    for queue in fleet.scheduler.snapshot.queues.values():
        for name, workload in queue.admitted.items():
            if name not in ended:
                scheduler.restore(replace(workload))
    scheduler.submit(job)
    decision: CycleDecision | None = None
    for _ in range(4):
        for decision in scheduler.cycle(fleet.scheduler.snapshot.now):
            if decision.result in GRANTED or decision.parked:
                return decision.result
    assert decision is not None
    return decision.result


def admits(fleet: RandomQueues, job: Workload, change: AdmittingChange, *, less: int = 0) -> bool:
    """Whether a change, made smaller by `less` units, admits the job."""
    queues: Iterable[Queue] = fleet.queues
    match change.kind:
        case "quota":
            with_more = RandomQueues.with_more
            for number, (resource, amount) in enumerate(change.amounts.items()):
                units = int(amount.removesuffix("m")) * (1 if amount.endswith("m") or resource != "cpu" else 1000)
                fleet.queues = with_more(
                    fleet, job.queue, (change.flavor, resource), units - (less if number == 0 else 0)
                )
            changed, fleet.queues = fleet.queues, tuple(queues)
            return result_for(fleet, changed, job) is Result.ADMITTED
        case "priority":
            assert change.priority is not None
            return result_for(fleet, queues, replace(job, priority=change.priority - less)) in GRANTED
        case "size":
            pods = (replace(job.pod_sets[0], count=change.counts[0] + less, min_count=None),)
            return result_for(fleet, queues, replace(job, pod_sets=pods)) is Result.ADMITTED
        case _:
            return result_for(fleet, queues, job, change.jobs[less:]) is Result.ADMITTED


@pytest.mark.parametrize("deep", [False, True])
@settings(max_examples=examples(15), deadline=None)
@given(SEEDS)
@example(475)
@example(1_668_146_072)
def test_suggested_change_is_smallest_that_admits_job(deep: bool, seed: int) -> None:
    fleet = random_pending_jobs(seed, deep=deep)
    waiting = [workload.workload for queue in fleet.scheduler.pending.values() for workload in queue.all()]
    for job in waiting[:3]:
        explanation = why(fleet.scheduler, job)
        for change in explanation.changes:
            assert admits(fleet, job, change), change.message
            assert not admits(fleet, job, change, less=1), change.message


def test_suggested_priority_equals_priority_of_newer_workloads() -> None:
    scheduler = a_scheduler(
        a_queue("a", 4, within=LOWER_OR_NEWER),
        admitted=(an_admitted_workload("late", "a", 4, priority=5),),
        waiting=(a_workload("early", "a", 4, at=-1, priority=1),),
    )
    scheduler.cycle()
    (change,) = (
        change for change in why(scheduler, a_workload("early", "a", 4, at=-1)).changes if change.kind == "priority"
    )

    assert change.priority == 5


def test_explanation_names_the_head_that_keeps_its_position() -> None:
    scheduler = a_scheduler(
        a_queue("a", 4, reclaim=ANY, within=LOWER),
        admitted=(an_admitted_workload("old", "a", 4),),
        waiting=(a_workload("first", "a", 4, priority=5),),
    )
    scheduler.cycle()
    urgent = a_workload("urgent", "a", 4, priority=9)
    scheduler.submit(urgent)

    assert why(scheduler, urgent).sentence.startswith("first stays the head of a until old has stopped")
