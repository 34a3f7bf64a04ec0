"""In a queue that is ordered by recent use, the sub-queue with the least decayed use goes first."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.domain.kueue.objects import Admitted, Flavor, Workload
from evenkeel.domain.kueue.recent_use import Decay, DecayedUse
from evenkeel.domain.kueue.scheduler import Scheduler
from evenkeel.domain.kueue.snapshot import SchedulerRules
from tests.unit.scheduling.queues.builders import ANY, GPU, a_queue, a_workload

HOUR = Decay(half_life_seconds=3600.0, entry_seconds=60.0)
MOST = {GPU: 100}


def a_workload_of(
    sub_queue: str, name: str, gpus: int = 1, at: float = 0.0, *, priority: int = 0, sub_weight: float = 1.0
) -> Workload:
    workload = a_workload(name, "a", gpus, at=at, priority=priority)
    return replace(workload, sub_queue=sub_queue, sub_weight=sub_weight)


def admitted_since(workload: Workload, since: float) -> Admitted:
    return Admitted(workload, ({GPU: "hp"},), (1,), since)


def a_scheduler(*waiting: Workload, nominal: int = 1, by_use: bool = True, decay: Decay | None = HOUR) -> Scheduler:
    queue = a_queue("a", nominal, "", by_use=by_use)
    scheduler = Scheduler((queue,), (), (Flavor("hp"),), SchedulerRules(decay=decay))
    for workload in waiting:
        scheduler.submit(workload)
    return scheduler


def admission_order(scheduler: Scheduler, *, seconds_each: float = 0.0) -> list[str]:
    """Run the jobs one after another; return them in the order of their admission."""
    names: list[str] = []
    now = scheduler.snapshot.now
    while decisions := scheduler.cycle(now):
        name = decisions[0].workload.workload_id
        if scheduler.admitted(name) is None:
            continue
        names.append(name)
        now += seconds_each
        scheduler.advance_to(now)
        scheduler.release(name)
    return names


def test_recent_use_approaches_running_amount_and_decays_by_half_lives() -> None:
    uses = DecayedUse(HOUR._replace(entry_seconds=0.0), MOST)
    job = admitted_since(a_workload_of("ann", "j", 40), 0.0)
    uses.start(job, 0.0)

    assert uses.of("ann", 3600.0) == pytest.approx(0.20)
    uses.stop(job, 3600.0)
    assert uses.of("ann", 7200.0) == pytest.approx(0.10)
    assert uses.of("bob", 7200.0) == 0.0


def test_sub_queue_with_recent_use_waits_behind_one_without() -> None:
    jobs = (a_workload_of("ann", "a1"), a_workload_of("ann", "a2", at=1, priority=9), a_workload_of("bob", "b1", at=2))

    assert admission_order(a_scheduler(*jobs), seconds_each=600) == ["a2", "b1", "a1"]
    assert admission_order(a_scheduler(*jobs, by_use=False), seconds_each=600) == ["a2", "a1", "b1"]
    assert admission_order(a_scheduler(*jobs, decay=None), seconds_each=600) == ["a2", "a1", "b1"]


def test_admission_counts_at_once_so_sub_queues_alternate() -> None:
    jobs = tuple(a_workload_of(sub_queue, f"{sub_queue}{n}", at=n) for sub_queue in ("ann", "bob") for n in range(3))
    scheduler = a_scheduler(*jobs, nominal=6)
    went_in = [cycle_decision.workload.sub_queue for _ in jobs for cycle_decision in scheduler.cycle(0.0)]

    assert went_in == ["ann", "bob"] * 3


def test_recent_use_decays_over_time() -> None:
    scheduler = a_scheduler(a_workload_of("ann", "old"))
    admission_order(scheduler, seconds_each=36_000)
    for workload in (a_workload_of("bob", "b", at=1), a_workload_of("ann", "a", at=0)):
        scheduler.submit(workload)
    scheduler.advance_to(36_000 + 3600 * 60)
    scheduler.submit(a_workload_of("cid", "c", 1, at=9))

    # Ann's use has decayed to a part of 2^60, but is still more than the use of the other sub-queue.
    assert admission_order(scheduler) == ["b", "c", "a"]


def test_recent_use_is_divided_by_weight() -> None:
    uses = DecayedUse(HOUR, MOST)
    for sub_queue in ("ann", "bob"):
        uses.start(admitted_since(a_workload_of(sub_queue, sub_queue, 8), 0.0), 0.0)

    assert uses.of("ann", 60.0) == pytest.approx(4 * uses.of("bob", 60.0, weight=4.0))
    assert uses.of("cid", 60.0, weight=0.0) == math.inf  # although it has no use


def test_sub_queue_without_weight_is_last_even_without_use() -> None:
    jobs = (a_workload_of("zoe", "z", at=0, priority=9, sub_weight=0.0), a_workload_of("ann", "a", at=1))

    assert admission_order(a_scheduler(*jobs)) == ["a", "z"]


def test_reported_use_includes_running_workloads() -> None:
    uses = DecayedUse(HOUR, MOST)
    uses.set_reported("ann", {GPU: 20.0}, 3600.0)
    uses.start(admitted_since(a_workload_of("ann", "long", 20), 0.0), 7200.0)  # the reported 20 include it until 3600
    uses.set_reported("bob", {GPU: 20.0}, 3600.0)

    assert uses.of("ann", 7200.0) == pytest.approx(0.20)
    assert uses.of("bob", 7200.0) == pytest.approx(0.10)


def test_shrink_keeps_past_use_and_lowers_later_use() -> None:
    scheduler = a_scheduler(a_workload_of("ann", "a", 10), nominal=10)
    scheduler.cycle(0.0)
    scheduler.advance_to(3600.0)
    before = scheduler.pending["a"].recent_use("ann", 1.0)
    scheduler.shrink("a", (0,))

    assert scheduler.pending["a"].recent_use("ann", 1.0) == pytest.approx(before)
    scheduler.advance_to(7200.0)
    assert scheduler.pending["a"].recent_use("ann", 1.0) == pytest.approx(before / 2)


def test_queue_switched_to_recent_use_counts_running_workloads() -> None:
    scheduler = a_scheduler(a_workload_of("ann", "a", 2), nominal=2, by_use=False)
    scheduler.cycle(0.0)
    scheduler.advance_to(3600.0)
    for workload in (a_workload_of("ann", "a2", 1), a_workload_of("bob", "b", 1, at=5)):
        scheduler.submit(workload)
    scheduler.reconfigure((a_queue("a", 3, "", by_use=True),), (), (Flavor("hp"),))

    assert scheduler.pending["a"].recent_use("ann", 1.0) > 0.3
    assert [cycle_decision.workload.workload_id for cycle_decision in scheduler.cycle(3600.0)] == ["b"]


@pytest.mark.parametrize(
    ("evicts_by_use", "fair_sharing", "victim"),
    [(True, False, "of-greedy"), (True, True, "of-greedy"), (False, False, "of-modest"), (False, True, "of-modest")],
)
def test_eviction_by_use_starts_with_busiest_sub_queue(evicts_by_use: bool, fair_sharing: bool, victim: str) -> None:
    queues = (a_queue("a", 1, by_use=True), a_queue("b", 1, reclaim=ANY))
    rules = SchedulerRules(decay=HOUR, evicts_by_use=evicts_by_use, fair_sharing=fair_sharing)
    scheduler = Scheduler(queues, (), (Flavor("hp"),), rules)
    scheduler.set_reported_use("a", "greedy", {GPU: 9.0}, 0.0)
    scheduler.restore(admitted_since(a_workload_of("greedy", "of-greedy", priority=5), 0.0))
    scheduler.restore(admitted_since(a_workload_of("modest", "of-modest", priority=1), 0.0))
    scheduler.submit(a_workload("reclaims", "b", 1))

    assert [victim.workload_id for victim in scheduler.cycle(10.0)[0].victims] == [victim]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(1, 9)), max_size=8), st.integers(50, 99))
def test_recent_use_is_the_sum_over_jobs(jobs: list[tuple[int, int, int]], now: int) -> None:
    uses = DecayedUse(HOUR._replace(entry_seconds=0.0), MOST)
    changes: list[tuple[float, int, Any, Admitted]] = []
    for number, (begin, more, gpus) in enumerate(jobs):
        job = admitted_since(a_workload_of("ann", f"j{number}", gpus), float(begin))
        changes.append((float(begin), number, uses.start, job))
        changes.append((float(begin + more), number, uses.stop, job))
    for at, _, change, job in sorted(changes, key=lambda change_row: change_row[:2]):
        if at <= now:
            change(job, at)

    def remaining_share(seconds: float) -> float:
        return math.exp2(-seconds / 3600.0)

    expected = sum(
        gpus
        / 100
        * (1 - remaining_share(min(now, begin + more) - begin))
        * remaining_share(now - min(now, begin + more))
        for begin, more, gpus in jobs
        if begin <= now
    )
    assert uses.of("ann", float(now)) == pytest.approx(expected, abs=1e-12)
