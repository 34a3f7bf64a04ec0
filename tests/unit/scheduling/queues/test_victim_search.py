"""The optimised search for victims finds the same victims as a plain search."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.domain.kueue import fair_sharing
from evenkeel.domain.kueue.capacity import QuotaNode
from evenkeel.domain.kueue.fair_sharing import (
    CandidatesByQueue,
    _candidates_of,
    _fits_without_itself,
    _VictimQueues,
    group_by_queue,
    share_of,
)
from evenkeel.domain.kueue.nomination import KnownNominations, Nominator
from evenkeel.domain.kueue.objects import (
    Admitted,
    Cohort,
    Flavor,
    FlavorQuotas,
    PodSet,
    PreemptionPolicy,
    PreemptionRules,
    Queue,
    Quota,
    ResourceGroup,
    Workload,
)
from evenkeel.domain.kueue.preemption import (
    CandidateLists,
    QuotaDemand,
    Reason,
    Victim,
    candidate_order,
    compute_median_risk,
    order_key,
)
from evenkeel.domain.kueue.scheduler import Scheduler
from evenkeel.domain.kueue.snapshot import SchedulerRules, Snapshot
from tests.examples import examples
from tests.unit.scheduling.queues.builders import GPU, a_queue
from tests.unit.scheduling.queues.random_queues import plain_decisions


def plain_first_rule(
    demand: QuotaDemand, snapshot: Snapshot, candidates: CandidatesByQueue, victims: list[Victim], rule: str
) -> tuple[bool, list[Admitted]]:
    """Remove candidates by the first rule, and compute the shares for each candidate anew."""
    node = demand.queue.quota_node
    is_within_nominal = node.is_within_quota(demand.keys_needing_preemption)
    targets = _VictimQueues(demand, candidates, snapshot.now)
    retry: list[Admitted] = []
    for queue in targets:
        if queue is node or is_within_nominal:
            chosen, reason = targets.take(queue), Reason.IN_COHORT_RECLAMATION
            reason = Reason.IN_CLUSTER_QUEUE if queue is node else reason
        else:
            reason = Reason.IN_COHORT_FAIR_SHARING
            own_branch, other_branch = targets.branches(queue)
            victim = None
            while targets.candidates_by_queue[queue.name] and victim is None:
                candidate = targets.take(queue)
                queue.remove_all(candidate.use)
                after = share_of(other_branch).rank
                queue.add_all(candidate.use)
                before, now = share_of(other_branch).rank, share_of(own_branch).rank
                if now <= after if rule == "LessThanOrEqualToFinalShare" else now < before:
                    victim = candidate
                else:
                    retry.append(candidate)
            if victim is None:
                continue
            chosen = victim
        snapshot.release(chosen)
        victims.append(Victim(chosen, reason))
        if _fits_without_itself(demand):
            return True, []
    return False, retry


def plain_next(targets: _VictimQueues, cohort: QuotaNode) -> QuotaNode | None:
    """Return the next queue below a cohort, and compare all its children anew."""
    path, dropped, candidates = (
        {*targets.quota_node.path, targets.quota_node},
        targets.dropped,
        targets.candidates_by_queue,
    )
    children = [child for child in cohort.children if child not in dropped]
    dropped.update(child for child in children if not share_of(child).borrowed and child not in path)
    dropped.update(child for child in children if child.is_queue and not candidates[child.name])
    children = [child for child in children if child not in dropped]
    if not children:
        dropped.add(cohort)
        return None
    best = max(share_of(child).rank for child in children)
    equals = [child for child in children if share_of(child).rank == best]
    cohorts = [child for child in equals if not child.is_queue]
    if cohorts:
        return plain_next(targets, cohorts[-1])
    name = targets.quota_node.name
    return min(equals, key=lambda queue: order_key(candidates[queue.name][0], name, targets.now))


def plain_candidates(demand: QuotaDemand, snapshot: Snapshot, _lists: CandidateLists) -> dict[str, list[Admitted]]:
    """Return the candidates of all queues, sorted together."""
    own = demand.queue.quota_node
    candidates = [
        candidate
        for quota_node in sorted(own.root.queues, key=lambda quota_node: quota_node is not own)
        for candidate in _candidates_of(quota_node, demand, snapshot)
    ]
    median = compute_median_risk(candidates, snapshot)
    return group_by_queue(sorted(candidates, key=candidate_order(demand.queue.spec.name, snapshot, median)))


def random_workload(dice: random.Random, number: int, queue: str, gpus: int) -> Workload:
    return Workload(
        f"w{number:03}",
        queue,
        (PodSet("main", 1, {"gpu": gpus}),),
        priority=dice.choice((0, 0, 1)),
        created_at=float(dice.randint(0, 50)),
    )


class CacheThatForgets(dict[tuple[object, ...], list[Victim]]):
    """A cache that is always empty, so that each search is repeated."""

    def __contains__(self, name: object) -> bool:
        return False


def random_scheduler(dice: random.Random, strategy: str, known: KnownNominations | None = None) -> Scheduler:
    """Return queues of one cohort whose workloads often use equal amounts, and borrow."""
    names = "abcde"
    policies = (PreemptionPolicy.LOWER_PRIORITY, PreemptionPolicy.LOWER_OR_NEWER_EQUAL_PRIORITY, PreemptionPolicy.ANY)
    queues = [
        Queue(
            name,
            dice.choice(("west", "east", "root")),
            (ResourceGroup(("gpu",), (FlavorQuotas("f", {"gpu": Quota(dice.randint(0, 6))}),)),),
            dice.choice((0.0, 1.0, 1.0, 2.0)),
            PreemptionRules(dice.choice(policies[:2]), dice.choice(policies)),
        )
        for name in names
    ]
    cohorts = (Cohort("west", "root"), Cohort("east", "root"), Cohort("root", ""))
    rules = SchedulerRules(
        fair_sharing=dice.random() < 0.8,
        fair_strategies=(strategy, "LessThanInitialShare"),
        spares_work=dice.random() < 0.5,
    )
    risks = dice.choice(((None,), (5.0, 50.0), (None, 5.0, 50.0)))
    scheduler = Scheduler(queues, cohorts, [Flavor("f")], rules, known)
    for number in range(dice.randint(4, 24)):
        workload = random_workload(dice, number, dice.choice(names), dice.choice((1, 1, 2)))
        admitted = Admitted(
            workload,
            ({"gpu": "f"},),
            (1,),
            float(number),
            use={("f", "gpu"): workload.pod_sets[0].requests["gpu"]},
            work_at_risk=dice.choice(risks),
        )
        scheduler.restore(admitted)
    return scheduler


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(("LessThanOrEqualToFinalShare", "LessThanInitialShare")))
def test_optimised_victim_search_finds_the_same_victims(seed: int, strategy: str) -> None:
    def victims_found() -> list[tuple[object, ...]]:
        dice = random.Random(seed)
        scheduler = random_scheduler(dice, strategy)
        nominator = Nominator(scheduler.snapshot, 1, CandidateLists(scheduler.snapshot))
        nominated: list[tuple[object, ...]] = []
        for number in range(100, 110):
            nomination = nominator.nominate(
                random_workload(dice, number, dice.choice("abcde"), dice.randint(1, 9)), None
            )
            victims = [(victim.workload_id, victim.reason) for victim in nomination.victims]
            nominated.append((nomination.assignment.verdict, nomination.assignment.flavors, victims))
        return nominated

    fast = victims_found()

    original = Nominator.__init__

    def plain(self: Nominator, snapshot: Snapshot, cycle: int, candidate_lists: CandidateLists) -> None:
        original(self, snapshot, cycle, candidate_lists)
        self._victims = CacheThatForgets()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Nominator, "__init__", plain)
        patch.setattr(fair_sharing, "_first_rule", plain_first_rule)
        patch.setattr(fair_sharing, "_candidates", plain_candidates)
        patch.setattr(_VictimQueues, "_next", plain_next)
        assert fast == victims_found()


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(("LessThanOrEqualToFinalShare", "LessThanInitialShare")))
def test_candidates_kept_between_cycles_give_the_same_decisions(seed: int, strategy: str) -> None:
    def decisions_made(known: KnownNominations | None) -> list[list[object]]:
        dice = random.Random(seed)
        scheduler = random_scheduler(dice, strategy, known)
        decisions = []
        for number in range(100, 112):
            scheduler.submit(random_workload(dice, number, dice.choice("abcde"), dice.randint(1, 9)))
            decisions.append(plain_decisions(scheduler.cycle(60.0)))
            running = sorted(name for queue in scheduler.snapshot.queues.values() for name in queue.admitted)
            if running and dice.random() < 0.5:
                change = dice.choice((scheduler.release, scheduler.evict, lambda name: scheduler.reprioritize(name, 2)))
                change(dice.choice(running))
        return decisions

    assert decisions_made(KnownNominations()) == decisions_made(None)


def test_nominations_are_shared_only_in_equal_quota_use() -> None:
    queues = [a_queue(name, 8, borrow=0) for name in "ab"]
    key = ("hp", GPU)
    answers = {}
    for known in (None, KnownNominations()):
        for full in "ab":
            scheduler = Scheduler(queues, flavors=[Flavor("hp")], known_nominations=known)
            scheduler.snapshot.queues[full].quota_node.add_all({key: 8})
            scheduler.submit(Workload("job-1", "a", (PodSet("main", 1, {GPU: 8}),)))
            answers[known is not None, full] = [decision.result for decision in scheduler.cycle(1.0)]

    assert answers[False, "a"] != answers[False, "b"]
    assert [answers[True, full] for full in "ab"] == [answers[False, full] for full in "ab"]
