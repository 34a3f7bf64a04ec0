"""The rules beyond Kueue, each with its switch. With the switch off, Kueue's rules hold."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from evenkeel.domain.kueue.objects import Admitted, Flavor
from evenkeel.domain.kueue.scheduler import Scheduler
from evenkeel.domain.kueue.snapshot import SchedulerRules
from evenkeel.domain.queue_simulation.profiles import RULES, Profile
from tests.unit.scheduling.queues.builders import (
    ANY,
    GPU,
    LOWER,
    a_queue,
    a_scheduler,
    a_workload,
    an_admitted_workload,
    victims,
)
from tests.unit.scheduling.queues.random_queues import RandomQueues
from tests.unit.scheduling.queues.test_properties import SEEDS


def full_queue_with_preemptor(rules: SchedulerRules, *held: Admitted) -> Scheduler:
    """Return a full queue of four, and a job of higher priority that requests two."""
    scheduler = a_scheduler(a_queue("a", 4, "", within=LOWER))
    scheduler = Scheduler([scheduler.snapshot.queues["a"].spec], (), scheduler.snapshot.flavors.values(), rules)
    for admitted in held:
        scheduler.restore(admitted)
    scheduler.submit(a_workload("new", "a", 2, priority=9))
    return scheduler


def workload_with_work_at_risk(name: str, at: float, work: float | None) -> Admitted:
    return replace(an_admitted_workload(name, "a", 2, at=at), work_at_risk=work)


@pytest.mark.parametrize(
    ("switch", "victim"),
    [(False, "late"), (True, "early")],
)
def test_workload_with_least_work_at_risk_is_preempted_first(switch: bool, victim: str) -> None:
    scheduler = full_queue_with_preemptor(
        SchedulerRules(spares_work=switch),
        workload_with_work_at_risk("early", 1, 10.0),
        workload_with_work_at_risk("late", 2, 500.0),
    )

    assert list(victims(scheduler.cycle(10)[0])) == [victim]


def test_workload_without_risk_figure_gets_the_median() -> None:
    without_risk, low_risk, high_risk = (
        workload_with_work_at_risk("silent", 9, None),
        workload_with_work_at_risk("lucky", 1, 1.0),
        workload_with_work_at_risk("unlucky", 2, 900.0),
    )
    scheduler = full_queue_with_preemptor(SchedulerRules(spares_work=True), without_risk, high_risk)
    assert list(victims(scheduler.cycle(10)[0])) == ["silent"]  # the median of one; then the latest job
    scheduler = full_queue_with_preemptor(SchedulerRules(spares_work=True), without_risk, low_risk)
    assert list(victims(scheduler.cycle(10)[0])) == ["silent"]


def test_workload_is_not_preempted_before_minimum_run_time() -> None:
    rules = SchedulerRules(min_run_seconds=60)

    assert victims(full_queue_with_preemptor(rules, an_admitted_workload("x", "a", 4, at=0)).cycle(59)[0]) == {}
    assert list(victims(full_queue_with_preemptor(rules, an_admitted_workload("x", "a", 4, at=0)).cycle(60)[0])) == [
        "x"
    ]


def test_workload_preempts_only_after_it_waited() -> None:
    rules = SchedulerRules(preempt_after_seconds=60)

    assert victims(full_queue_with_preemptor(rules, an_admitted_workload("x", "a", 4, at=0)).cycle(59)[0]) == {}
    assert list(victims(full_queue_with_preemptor(rules, an_admitted_workload("x", "a", 4, at=0)).cycle(60)[0])) == [
        "x"
    ]


def test_flap_guard_limits_repeated_preemption() -> None:
    scheduler = full_queue_with_preemptor(
        SchedulerRules(flap_guard_seconds=100), an_admitted_workload("x", "a", 4, at=0)
    )
    assert list(victims(scheduler.cycle(0)[0])) == ["x"]
    scheduler.requeue_evicted("x")
    scheduler.cycle(0)
    scheduler.release("new")
    scheduler.cycle(1)
    scheduler.submit(a_workload("new", "a", 2, priority=9))

    assert victims(scheduler.cycle(50)[0]) == {}
    scheduler.wake(scheduler.snapshot.queues["a"].quota_node)
    assert list(victims(scheduler.cycle(100)[0])) == ["x"]


@pytest.mark.parametrize(("switch", "used"), [(False, 9), (True, 8)])
def test_quota_of_terminating_victims_is_not_assigned_to_other_jobs(switch: bool, used: int) -> None:
    # 7 of 8 are used, 4 of them by the victim. Two jobs of 1 fit one by one, but not together.
    queues = [a_queue("p", 4, reclaim=ANY), a_queue("q", 4), a_queue("r", 0), a_queue("v", 0)]
    scheduler = Scheduler(queues, (), [Flavor("hp")], SchedulerRules(never_overcommits=switch))
    for admitted in (an_admitted_workload("q1", "q", 3), an_admitted_workload("victim", "v", 4, priority=-1)):
        scheduler.restore(admitted)
    for job in (a_workload("w", "p", 2, priority=9), a_workload("x", "q", 1), a_workload("y", "r", 1)):
        scheduler.submit(job)
    scheduler.cycle(1)

    assert scheduler.snapshot.tree.cohorts["fleet"].at(("hp", GPU)).use == used


def test_kueue_compatible_profiles_disable_all_extra_rules() -> None:
    extra_rules: dict[str, Any] = {
        "never_overcommits": False,
        "flap_guard_seconds": 0.0,
        "min_run_seconds": 0.0,
        "preempt_after_seconds": 0.0,
        "spares_work": False,
    }

    for profile in (Profile.KUEUE, Profile.HYPERPOD):
        assert {name: getattr(RULES[profile], name) for name in extra_rules} == extra_rules


@pytest.mark.parametrize("fair", [False, True])
@settings(max_examples=10, deadline=None)
@given(SEEDS)
def test_flap_guard_ends_evictions_in_deep_trees(fair: bool, seed: int) -> None:
    fleet = RandomQueues(seed, deep=True, fair=fair)
    fleet.rules = fleet.rules._replace(flap_guard_seconds=1e9)
    fleet.scheduler = fleet.fresh()
    for _ in range(20):
        fleet.scheduler.submit(fleet.workload())

    for _ in range(1000):
        evicted = [victim for decision in fleet.cycle() for victim in decision.victims]
        fleet.now += 1.0
        if not evicted:
            break
        fleet.stop_evicted()
    else:
        pytest.fail("evictions never end")
