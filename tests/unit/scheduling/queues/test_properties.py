"""Properties of all decisions, in random queues with random histories."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.domain.kueue.cycle_decisions import CycleDecision
from evenkeel.domain.kueue.objects import Admitted, Fungible
from evenkeel.domain.kueue.scheduler import Scheduler
from tests.examples import examples
from tests.unit.scheduling.queues.random_queues import RandomQueues, Result, plain_decisions

SEEDS = st.integers(0, 2**32)
quick = settings(max_examples=examples(20), deadline=None)


@pytest.mark.parametrize("deep", [False, True])
@quick
@given(SEEDS)
def test_no_queue_exceeds_its_limits(deep: bool, seed: int) -> None:
    fleet = RandomQueues(seed, deep=deep)
    fleet.rules = fleet.rules._replace(never_overcommits=True)
    fleet.scheduler = fleet.fresh()

    for _ in fleet.history(30):
        assert fleet.overcommitted() == []


@pytest.mark.parametrize("deep", [False, True])
@quick
@given(SEEDS)
def test_kueue_rules_exceed_limits_only_by_stopping_victims(deep: bool, seed: int) -> None:
    fleet = RandomQueues(seed, deep=deep)

    for _ in fleet.history(30):
        assert fleet.overcommitted(with_evicted=False) == []


@pytest.mark.parametrize("deep", [False, True])
@quick
@given(SEEDS)
def test_quota_use_equals_job_use_and_removal_restores_it(deep: bool, seed: int) -> None:
    fleet = RandomQueues(seed, deep=deep)
    for _ in fleet.history(20):
        pass
    nodes = [*fleet.scheduler.snapshot.tree.queues.values(), *fleet.scheduler.snapshot.tree.cohorts.values()]
    for queue in fleet.scheduler.snapshot.queues.values():
        used: dict[tuple[str, str], int] = {}
        for admitted in queue.admitted.values():
            for key, amount in admitted.use.items():
                used[key] = used.get(key, 0) + amount
        assert {key: cell.use for key, cell in queue.quota_node.cells.items() if cell.use} == {
            key: amount for key, amount in used.items() if amount
        }

    before = [{key: cell.use for key, cell in node.cells.items()} for node in nodes]
    random = fleet.random
    keys = [("f1", "gpu"), ("f2", "cpu")]
    added = [(random.choice(nodes[:4]), random.choice(keys), random.randint(0, 20)) for _ in range(10)]
    for node, key, amount in added:
        node.add_all({key: amount})
    for node, key, amount in reversed(added):
        node.remove_all({key: amount})
    assert before == [{key: cell.use for key, cell in node.cells.items()} for node in nodes]


@pytest.mark.parametrize("deep", [False, True])
@quick
@given(SEEDS)
def test_queue_within_nominal_loses_no_job_to_another_queue(deep: bool, seed: int) -> None:
    for decisions, over in RandomQueues(seed, deep=deep).history(30):
        for decision in decisions:
            # A recomputed decision counts earlier admissions of its cycle, which may put a queue over nominal.
            for victim in () if decision.was_recomputed else decision.victims:
                queue = victim.admitted.workload.queue
                if queue != decision.workload.queue:
                    assert over[queue] & decision.assignment.keys_needing_preemption


@quick
@given(SEEDS)
def test_every_preempted_job_is_needed(seed: int) -> None:
    fleet = RandomQueues(seed)
    for decisions, _ in fleet.history(30):
        decision = next((decision for decision in decisions if decision.victims), None)
        if decision is None:
            continue
        victims = [victim.admitted for victim in decision.victims]
        fits, borrows = _fits_without(fleet.scheduler, decision, victims)
        assert fits
        # A nomination without borrowing must also be within nominal afterwards.
        may_borrow = borrows or fleet.rules.fair_sharing
        for needed in victims:
            others_gone = [victim for victim in victims if victim is not needed]
            fits, borrows = _fits_without(fleet.scheduler, decision, others_gone)
            assert not fits or (borrows and not may_borrow)


def _fits_without(scheduler: Scheduler, decision: CycleDecision, others_gone: list[Admitted]) -> tuple[bool, bool]:
    """Return whether the preemptor would fit, and borrow, without some workloads and this cycle's admissions."""
    snapshot = scheduler.snapshot
    now = snapshot.now
    fresh = [
        admitted
        for queue in snapshot.queues.values()
        for admitted in queue.admitted.values()
        if admitted.reserved_at == now and admitted not in others_gone
    ]
    node = snapshot.queue_of(decision.workload).quota_node
    with snapshot.without_use_of([*others_gone, *fresh]):
        wanted = {key: amount for key, amount in decision.assignment.use.items() if amount}
        return node.fits(wanted), any(node.borrows_with(key, amount) for key, amount in wanted.items())


@pytest.mark.parametrize("deep", [False, True])
@quick
@given(SEEDS)
def test_order_of_declarations_and_submissions_does_not_matter(deep: bool, seed: int) -> None:
    fleet, other = RandomQueues(seed, deep=deep), RandomQueues(seed, deep=deep)
    jobs = [fleet.workload() for _ in range(20)]
    shuffled = list(jobs)
    other.random.shuffle(shuffled)
    queues, cohorts = list(other.queues), list(other.cohorts)
    other.random.shuffle(queues)
    other.random.shuffle(cohorts)
    other.queues, other.cohorts = tuple(queues), tuple(cohorts)
    other.scheduler = other.fresh()
    for job in jobs:
        fleet.scheduler.submit(job)
    for job in shuffled:
        other.scheduler.submit(job)

    for _ in range(8):
        assert plain_decisions(fleet.cycle()) == plain_decisions(other.cycle())
        fleet.stop_evicted()
        other.stop_evicted()


@pytest.mark.parametrize("deep", [False, True])
@quick
@given(SEEDS)
def test_more_quota_never_prevents_admission(deep: bool, seed: int) -> None:
    # The job is alone in its queue, at full size, and the queue tries all flavors before it preempts. With
    # MayStopSearch, more quota on an early flavor may turn "fits on a later flavor" into "reclaim on this one".
    fleet = RandomQueues(seed, deep=deep)
    for _ in fleet.history(12):
        pass
    fleet.queues = tuple(
        replace(queue, fungibility=replace(queue.fungibility, when_can_preempt=Fungible.TRY_NEXT))
        for queue in fleet.queues
    )
    job = fleet.workload()
    job = replace(job, pod_sets=tuple(replace(pod_set, min_count=None) for pod_set in job.pod_sets))
    admitted = [admitted for queue in fleet.scheduler.snapshot.queues.values() for admitted in queue.admitted.values()]
    key = (fleet.random.choice(("f1", "f2")), fleet.random.choice(("cpu", "gpu")))

    results = []
    for more in (0, 1, 3):
        world_queues = fleet.with_more(job.queue, key, more)
        scheduler = Scheduler(world_queues, fleet.cohorts, fleet.scheduler.snapshot.flavors.values(), fleet.rules)
        for workload in admitted:
            scheduler.restore(replace(workload))
        scheduler.submit(job)
        results.append(
            any(cycle_decision.result is Result.ADMITTED for _ in range(3) for cycle_decision in scheduler.cycle())
        )

    assert results == sorted(results)


@pytest.mark.parametrize("fair", [False, True])
@settings(max_examples=examples(12), deadline=None)
@given(SEEDS)
def test_evictions_stop_repeating_in_a_flat_tree(fair: bool, seed: int) -> None:
    fleet = RandomQueues(seed, fair=fair)
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


@settings(max_examples=examples(12), deadline=None)
@given(SEEDS)
def test_queue_decisions_are_deterministic(seed: int) -> None:
    first, second = RandomQueues(seed, deep=True), RandomQueues(seed, deep=True)

    assert [plain_decisions(decisions) for decisions, _ in first.history(25)] == [
        plain_decisions(decisions) for decisions, _ in second.history(25)
    ]
