"""A recovery makes as many calls in a large fleet as in a small one."""

from collections import Counter

import pytest

from evenkeel.adapters.null_provider import NullProvider
from evenkeel.domain.nodes import ProviderNode
from evenkeel.domain.waiting import ConditionKind
from evenkeel.ports import Throttled
from evenkeel.services.recovery import (
    check_node,
    cordon_node,
    plan_recovery,
    repair_node,
    return_node,
)
from evenkeel.services.waits import evaluate_waits, wait_observation
from evenkeel.services.waits.read_cache import ReadCache
from tests.fakes.cluster import instance_id
from tests.fakes.counting import CountedCalls
from tests.unit.services_recovery.recovery_scenario import RecoveryScenario

SMALL, LARGE = 6, 1006
MOST_BEFORE_CORDON = 10


def count_calls(size: int) -> dict[str, Counter[str]]:
    """Return the calls of each state of one recovery, by port method, in a fleet of this many nodes."""
    recovery = RecoveryScenario(size=size, with_job=False)
    recovery.scenario.sweep()
    counted = CountedCalls(recovery.world)
    vars(recovery).update(counted.ports)
    recovery.report_fault()
    counts = {"ReceiveEvent": Counter(counted.calls)}

    def record_calls_of(state: str) -> None:
        counts[state] = Counter(counted.calls)
        counted.clear()

    counted.clear()
    for name, service in (
        ("PlanRecovery", plan_recovery),
        ("CordonNode", cordon_node),
        ("RepairNode", repair_node),
    ):
        recovery.run_state(name, service)
        record_calls_of(name)
    recovery.open_wait(ConditionKind.NODE_BACK)
    record_calls_of("AwaitNode")
    recovery.advance_five_seconds()
    counted.clear()
    recovery.run_state("CheckNode", check_node)
    record_calls_of("CheckNode")
    recovery.open_wait(ConditionKind.NODE_VALID)
    record_calls_of("AwaitValidation")
    recovery.run_state("ReturnNode", return_node)
    record_calls_of("ReturnNode")
    return counts


@pytest.fixture(scope="module")
def calls_by_size() -> dict[int, dict[str, Counter[str]]]:
    return {size: count_calls(size) for size in (SMALL, LARGE)}


def test_number_of_calls_does_not_grow_with_the_fleet(calls_by_size: dict[int, dict[str, Counter[str]]]) -> None:
    # After the cordon, the guardrails of a repair read the fleet's rows: one page for each thousand nodes.
    for counted in calls_by_size.values():
        del counted["RepairNode"]["ledger.by_state"]

    assert calls_by_size[SMALL] == calls_by_size[LARGE]


def test_cordon_makes_at_most_ten_calls_of_each_method(calls_by_size: dict[int, dict[str, Counter[str]]]) -> None:
    before_cordon = (
        calls_by_size[LARGE]["ReceiveEvent"] + calls_by_size[LARGE]["PlanRecovery"] + calls_by_size[LARGE]["CordonNode"]
    )

    assert max(before_cordon.values()) <= MOST_BEFORE_CORDON, before_cordon
    assert before_cordon["provider.nodes"] == before_cordon["cluster.nodes"] == 0


class ThrottledProvider(NullProvider):
    """A provider that refuses to list its nodes."""

    def __init__(self) -> None:
        self.lists = 0

    def nodes(self) -> tuple[ProviderNode, ...]:
        self.lists += 1
        raise Throttled("list nodes: rate exceeded")


def test_failed_list_is_not_repeated_for_each_wait() -> None:
    recovery = RecoveryScenario(size=6, with_job=False)
    for number in (1, 2, 3):
        recovery.report_fault(number)
        recovery.open_wait(ConditionKind.NODE_BACK)
    provider = ThrottledProvider()

    result = evaluate_waits.run(recovery.context(provider=provider))

    assert (len(result.failed), provider.lists) == (3, 1)


def test_watch_lists_hyperpod_once_for_many_rounds() -> None:
    recovery = RecoveryScenario(size=6, with_job=False)
    for number in (1, 2):
        recovery.report_fault(number)
        recovery.open_wait(ConditionKind.NODE_BACK)
    counted = CountedCalls(recovery.world)
    reads = ReadCache(recovery.now)
    ticks = recovery.policy.watch.tick_seconds

    for _ in range(wait_observation.RECORDS_MAX_TICKS):
        reads.begin_tick(recovery.now)
        evaluate_waits.run(recovery.context(**counted.ports), reads=reads)
        recovery.world.clock.advance(ticks)

    assert (counted.calls["provider.nodes"], counted.calls["cluster.nodes"]) == (
        1,
        wait_observation.RECORDS_MAX_TICKS,
    )
    reads.begin_tick(recovery.now)
    evaluate_waits.run(recovery.context(**counted.ports), reads=reads)
    assert counted.calls["provider.nodes"] == 2


def test_wait_is_not_answered_from_an_older_list() -> None:
    recovery = RecoveryScenario(size=6, with_job=False)
    recovery.report_fault(1)
    recovery.open_wait(ConditionKind.NODE_BACK)
    recovery.open_wait(ConditionKind.NODE_VALID)
    reads = ReadCache(recovery.now)
    evaluate_waits.run(recovery.context(), reads=reads)
    recovery.report_fault(2, fault_key="hp:NvidiaErrorTerminate")
    recovery.world.clock.advance(1)
    recovery.open_wait(ConditionKind.NODE_BACK)
    recovery.world.cluster.set_node(f"hyperpod-{instance_id(2)}", boot_id="another boot")

    reads.begin_tick(recovery.now)
    old = evaluate_waits.run(recovery.context(), reads=reads)
    recovery.world.clock.advance(wait_observation.RECORDS_MAX_TICKS * recovery.policy.watch.tick_seconds)
    reads.begin_tick(recovery.now)
    fresh = evaluate_waits.run(recovery.context(), reads=reads)

    answered = f"{recovery.incident_id}/node-back: NODE_BACK"
    assert answered not in old.answered
    assert answered in fresh.answered
