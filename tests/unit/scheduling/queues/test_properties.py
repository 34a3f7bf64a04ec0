"""What holds in every world: random queues, random histories, a second opinion on every decision."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.domain.kueue.decisions import Decision
from evenkeel.domain.kueue.objects import Admitted, Fungible
from evenkeel.domain.kueue.scheduler import Scheduler
from tests.unit.scheduling.queues.random_queues import RandomQueues, Result, outcomes

SEEDS = st.integers(0, 2**32)
quick = settings(max_examples=20, deadline=None)


@pytest.mark.parametrize("deep", [False, True])
@quick
@given(SEEDS)
def test_no_queue_exceeds_its_limits(deep: bool, seed: int) -> None:
    world = RandomQueues(seed, deep=deep)
    world.rules = world.rules._replace(never_overcommits=True)
    world.scheduler = world.fresh()

    for _ in world.history(30):
        assert world.overcommitted() == []


@pytest.mark.parametrize("deep", [False, True])
@quick
@given(SEEDS)
def test_kueue_rules_exceed_limits_only_by_stopping_victims(deep: bool, seed: int) -> None:
    world = RandomQueues(seed, deep=deep)

    for _ in world.history(30):
        assert world.overcommitted(with_evicted=False) == []


@pytest.mark.parametrize("deep", [False, True])
@quick
@given(SEEDS)
def test_tree_use_equals_job_use_and_removal_is_exact(deep: bool, seed: int) -> None:
    world = RandomQueues(seed, deep=deep)
    for _ in world.history(20):
        pass
    nodes = [*world.scheduler.snapshot.tree.queues.values(), *world.scheduler.snapshot.tree.cohorts.values()]
    for queue in world.scheduler.snapshot.queues.values():
        used: dict[tuple[str, str], int] = {}
        for each in queue.admitted.values():
            for key, amount in each.use.items():
                used[key] = used.get(key, 0) + amount
        assert {key: slot.use for key, slot in queue.node.slots.items() if slot.use} == {
            key: amount for key, amount in used.items() if amount
        }

    before = [{key: slot.use for key, slot in node.slots.items()} for node in nodes]
    random = world.random
    keys = [("f1", "gpu"), ("f2", "cpu")]
    added = [(random.choice(nodes[:4]), random.choice(keys), random.randint(0, 20)) for _ in range(10)]
    for node, key, amount in added:
        node.add_all({key: amount})
    for node, key, amount in reversed(added):
        node.remove_all({key: amount})
    assert before == [{key: slot.use for key, slot in node.slots.items()} for node in nodes]


@pytest.mark.parametrize("deep", [False, True])
@quick
@given(SEEDS)
def test_queue_within_nominal_loses_no_job_to_another_queue(deep: bool, seed: int) -> None:
    for decisions, over in RandomQueues(seed, deep=deep).history(30):
        for decision in decisions:
            # One that was weighed anew counts what its cycle had already given away: somebody may be over by that.
            for victim in () if decision.was_recomputed else decision.victims:
                queue = victim.admitted.workload.queue
                if queue != decision.workload.queue:
                    assert over[queue] & decision.assignment.contested


@quick
@given(SEEDS)
def test_every_victim_is_needed(seed: int) -> None:
    world = RandomQueues(seed)
    for decisions, _ in world.history(30):
        decision = next((each for each in decisions if each.victims), None)
        if decision is None:
            continue
        everybody = [victim.admitted for victim in decision.victims]
        fits, borrows = _fits_without(world.scheduler, decision, everybody)
        assert fits
        # An attempt without borrowing asks for more: to be within nominal afterwards.
        may_borrow = borrows or world.rules.fair_sharing
        for spared in everybody:
            gone = [each for each in everybody if each is not spared]
            fits, borrows = _fits_without(world.scheduler, decision, gone)
            assert not fits or (borrows and not may_borrow)


def _fits_without(scheduler: Scheduler, decision: Decision, gone: list[Admitted]) -> tuple[bool, bool]:
    """Whether it would fit now, and borrow; of those who hold quota these gone, and who was admitted in its cycle."""
    snapshot = scheduler.snapshot
    now = snapshot.now
    fresh = [
        each
        for queue in snapshot.queues.values()
        for each in queue.admitted.values()
        if each.reserved_at == now and each not in gone
    ]
    node = snapshot.queue_of(decision.workload).node
    with snapshot.without_use_of([*gone, *fresh]):
        wanted = {key: amount for key, amount in decision.assignment.use.items() if amount}
        return node.fits(wanted), any(node.borrows_with(key, amount) for key, amount in wanted.items())


@pytest.mark.parametrize("deep", [False, True])
@quick
@given(SEEDS)
def test_order_of_declarations_and_submissions_does_not_matter(deep: bool, seed: int) -> None:
    world, other = RandomQueues(seed, deep=deep), RandomQueues(seed, deep=deep)
    jobs = [world.workload() for _ in range(20)]
    shuffled = list(jobs)
    other.random.shuffle(shuffled)
    queues, cohorts = list(other.queues), list(other.cohorts)
    other.random.shuffle(queues)
    other.random.shuffle(cohorts)
    other.queues, other.cohorts = tuple(queues), tuple(cohorts)
    other.scheduler = other.fresh()
    for job in jobs:
        world.scheduler.submit(job)
    for job in shuffled:
        other.scheduler.submit(job)

    for _ in range(8):
        assert outcomes(world.cycle()) == outcomes(other.cycle())
        world.stop_evicted()
        other.stop_evicted()


@pytest.mark.parametrize("deep", [False, True])
@quick
@given(SEEDS)
def test_more_quota_never_prevents_admission(deep: bool, seed: int) -> None:
    # A job alone in its queue, at full size, in a queue that looks at all flavors before others have to go: with
    # MayStopSearch more quota on an early flavor may turn "fits further down" into "reclaim here".
    world = RandomQueues(seed, deep=deep)
    for _ in world.history(12):
        pass
    world.queues = tuple(
        replace(each, fungibility=replace(each.fungibility, when_can_preempt=Fungible.TRY_NEXT))
        for each in world.queues
    )
    job = world.workload()
    job = replace(job, pod_sets=tuple(replace(each, min_count=None) for each in job.pod_sets))
    admitted = [each for queue in world.scheduler.snapshot.queues.values() for each in queue.admitted.values()]
    key = (world.random.choice(("f1", "f2")), world.random.choice(("cpu", "gpu")))

    results = []
    for more in (0, 1, 3):
        world_queues = world.with_more(job.queue, key, more)
        scheduler = Scheduler(world_queues, world.cohorts, world.scheduler.snapshot.flavors.values(), world.rules)
        for each in admitted:
            scheduler.restore(replace(each))
        scheduler.submit(job)
        results.append(any(each.result is Result.ADMITTED for _ in range(3) for each in scheduler.cycle()))

    assert results == sorted(results)


@pytest.mark.parametrize("fair", [False, True])
@settings(max_examples=12, deadline=None)
@given(SEEDS)
def test_evictions_end_in_a_flat_tree(fair: bool, seed: int) -> None:
    world = RandomQueues(seed, fair=fair)
    for _ in range(20):
        world.scheduler.submit(world.workload())

    for _ in range(1000):
        evicted = [victim for decision in world.cycle() for victim in decision.victims]
        world.now += 1.0
        if not evicted:
            break
        world.stop_evicted()
    else:
        pytest.fail("evictions never end")


@settings(max_examples=12, deadline=None)
@given(SEEDS)
def test_decisions_are_deterministic(seed: int) -> None:
    one, two = RandomQueues(seed, deep=True), RandomQueues(seed, deep=True)

    assert [outcomes(each) for each, _ in one.history(25)] == [outcomes(each) for each, _ in two.history(25)]
