"""Each rule of the scheduler, and known bugs of other schedulers."""

import random
from dataclasses import replace
from typing import Any

import pytest

from evenkeel.domain.kueue.assignment import FlavorMode, Pending
from evenkeel.domain.kueue.capacity import Tree
from evenkeel.domain.kueue.cycle_decisions import CycleDecision, Result
from evenkeel.domain.kueue.fair_sharing import share_of
from evenkeel.domain.kueue.flavors import why_unfit
from evenkeel.domain.kueue.objects import (
    PODS,
    Admitted,
    BorrowWithin,
    Cohort,
    Flavor,
    FlavorQuotas,
    FlavorToleration,
    Fungibility,
    Fungible,
    PodSet,
    Preference,
    QueueingStrategy,
    Quota,
    Requirement,
    ResourceGroup,
    StopPolicy,
    Taint,
    Workload,
)
from evenkeel.domain.kueue.pending_queue import PendingQueue, PendingWorkload
from evenkeel.domain.kueue.preemption import order_key
from evenkeel.domain.kueue.quantities import UNLIMITED
from evenkeel.domain.kueue.scheduler import Scheduler
from tests import kueue_checker
from tests.unit.scheduling.queues.builders import (
    ANY,
    GPU,
    LOWER,
    LOWER_OR_NEWER,
    NEVER,
    a_queue,
    a_scheduler,
    a_workload,
    an_admitted_workload,
    decisions_by_workload,
    victims,
)

KEY = ("hp", GPU)
STRICT = QueueingStrategy.STRICT
BOTH_NEXT = Fungibility(Fungible.TRY_NEXT, Fungible.TRY_NEXT)


def cycle(scheduler: Scheduler) -> dict[str, CycleDecision]:
    """Run a cycle, and check each decision with the independent checker."""
    decisions = scheduler.cycle(1000.0)
    for decision in decisions:
        assert list(kueue_checker.faults_of(decision, scheduler.snapshot.queues[decision.workload.queue].spec)) == []
    return decisions_by_workload(decisions)


def only_decision(scheduler: Scheduler) -> CycleDecision:
    (decision,) = cycle(scheduler).values()
    return decision


# ---------------------------------------------------------------- capacity


def test_lending_limit_keeps_quota_from_the_parent() -> None:
    tree = Tree((a_queue("a", 10, lend=3), a_queue("b", 2)), ())

    assert tree.cohorts["fleet"].at(KEY).subtree == 5
    assert tree.queues["b"].potential(KEY) == 5


def test_queue_without_cohort_borrows_nothing() -> None:
    decision = only_decision(a_scheduler(a_queue("a", 4, ""), waiting=(a_workload("w", "a", 5),)))

    assert (decision.result, decision.pending) == (Result.NO_FIT, Pending.EXCEEDS_MAX_QUOTA)


def test_cohort_borrowing_limit_applies_to_all_its_queues() -> None:
    group = ResourceGroup((GPU,), (FlavorQuotas("hp", {GPU: Quota(0, 2)}),))
    cohorts = (Cohort("team", "fleet", (group,)), Cohort("fleet"))
    scheduler = a_scheduler(
        a_queue("a", 2, "team"), a_queue("b", 8), cohorts=cohorts, waiting=(a_workload("w", "a", 5),)
    )

    assert scheduler.snapshot.queues["a"].quota_node.potential(KEY) == 4
    assert only_decision(scheduler).pending is Pending.EXCEEDS_MAX_QUOTA


def test_quota_cut_affects_every_queue_of_the_tree() -> None:
    scheduler = a_scheduler(a_queue("a", 4), a_queue("b", 4), admitted=(an_admitted_workload("h", "a", 8),))
    scheduler.reconfigure((a_queue("a", 1), a_queue("b", 4)), (), (Flavor("hp"),))

    assert scheduler.snapshot.queues["b"].quota_node.available(KEY) == -3
    assert scheduler.snapshot.queues["b"].quota_node.free(KEY) == 0


@pytest.mark.parametrize("amount", [-12, -8, -1, 0, 1, 8, 12])
@pytest.mark.parametrize("used", [0, 3, 4, 16])
def test_removing_added_use_restores_the_tree(used: int, amount: int) -> None:
    cohorts = (Cohort("west", "fleet"), Cohort("fleet"))
    tree = Tree((a_queue("a", 4, "west", lend=2), a_queue("b", 20, "fleet")), cohorts)
    node = tree.queues["a"]
    node.add_all({KEY: used})
    before = [quota_node.at(KEY).use for quota_node in (node, *node.path)]

    node.add_all({KEY: amount})
    node.remove_all({KEY: amount})

    assert [quota_node.at(KEY).use for quota_node in (node, *node.path)] == before


def test_head_of_an_overcommitted_queue_leaves_cohort_use_unchanged() -> None:
    scheduler = a_scheduler(
        a_queue("a", 0, borrow=8, within=LOWER),
        a_queue("b", 24),
        cohorts=(Cohort("fleet", "company"), Cohort("company")),
        admitted=(an_admitted_workload("held", "a", 16),),
        waiting=(a_workload("waits", "a", 8, at=1),),
    )

    assert only_decision(scheduler).result is Result.NO_CANDIDATES
    assert [node.at(KEY).use for node in scheduler.snapshot.queues["a"].quota_node.path] == [16, 16]


def test_unlimited_quota_stays_unlimited() -> None:
    tree = Tree((a_queue("a", UNLIMITED), a_queue("b", 1)), ())
    tree.queues["a"].add_all({KEY: 10**15})

    assert tree.queues["b"].available(KEY) > 2**63


def test_cyclic_cohorts_admit_no_workload() -> None:
    cohorts = (Cohort("x", "y"), Cohort("y", "x"))
    scheduler = a_scheduler(a_queue("a", 4, "x"), cohorts=cohorts, waiting=(a_workload("w", "a"),))

    assert cycle(scheduler) == {}


def test_borrowing_level_is_height_of_the_lowest_sufficient_subtree() -> None:
    cohorts = (Cohort("west", "fleet"), Cohort("fleet"))
    tree = Tree((a_queue("a", 2, "west"), a_queue("b", 2, "west"), a_queue("c", 4, "fleet")), cohorts)
    node = tree.queues["a"]

    assert [node.level(KEY, amount) for amount in (2, 4, 8, 9)] == [(0, True), (1, True), (2, False), (2, False)]


# ---------------------------------------------------------------- flavors


def test_untolerated_taint_excludes_a_flavor() -> None:
    tainted = Flavor("hp", {}, (Taint("gpu", "yes"),))
    scheduler = a_scheduler(a_queue("a", {"hp": 4, "od": 4}, ""), flavors=(tainted,), waiting=(a_workload("w", "a"),))
    decision = only_decision(scheduler)

    assert decision.assignment.flavors == ({GPU: "od"},)
    assert decision.assignment.attempts[0][0].pending is Pending.NO_MATCHING_FLAVOR


@pytest.mark.parametrize(
    ("toleration", "covers"),
    [
        (FlavorToleration("gpu", "Equal", "yes", "NoSchedule"), True),
        (FlavorToleration("gpu", "Equal", "no", "NoSchedule"), False),
        (FlavorToleration("gpu", "Exists"), True),
        (FlavorToleration("", "Exists"), True),
        (FlavorToleration("gpu", "Exists", "", "NoExecute"), False),
    ],
)
def test_tolerations_match_taints(toleration: FlavorToleration, covers: bool) -> None:
    assert toleration.tolerates(Taint("gpu", "yes")) is covers


def test_flavor_that_tolerates_its_own_taint_is_usable() -> None:
    flavor = Flavor("hp", {}, (Taint("gpu", "yes"),), (FlavorToleration("gpu", "Exists"),))

    assert why_unfit("hp", flavor, [PodSet("main", 1, {})]) == ""


def test_selectors_ignore_labels_that_the_flavor_lacks() -> None:
    flavor = Flavor("hp", {"type": "p5"})
    other, unknown = PodSet("m", 1, {}, selector={"type": "p4"}), PodSet("m", 1, {}, selector={"zone": "a"})

    assert why_unfit("hp", flavor, [other])
    assert not why_unfit("hp", flavor, [unknown])


def test_affinity_term_without_flavor_labels_matches() -> None:
    flavor = Flavor("hp", {"type": "p5"})
    foreign, wrong = Requirement("zone", "In", ("a",)), Requirement("type", "In", ("p4",))

    assert not why_unfit("hp", flavor, [PodSet("m", 1, {}, affinity=((foreign,), (wrong,)))])
    assert why_unfit("hp", flavor, [PodSet("m", 1, {}, affinity=((wrong,),))])


def test_pending_reason_is_mildest_among_flavors_and_severest_among_groups() -> None:
    queue = replace(
        a_queue("a", 0, "fleet"),
        groups=(
            ResourceGroup((GPU,), (FlavorQuotas("hp", {GPU: Quota(1)}), FlavorQuotas("od", {GPU: Quota(4)}))),
            ResourceGroup(("cpu",), (FlavorQuotas("cpu", {"cpu": Quota(2)}),)),
        ),
    )
    waiting = Workload("w", "a", (PodSet("main", 1, {GPU: 4, "cpu": 1}),))
    held = Admitted(Workload("h", "a", (PodSet("main", 1, {GPU: 2}),)), ({GPU: "od"},), (1,), 0.0)
    decision = only_decision(a_scheduler(queue, admitted=(held,), waiting=(waiting,), flavors=(Flavor("cpu"),)))

    # hp can never hold 4, but od could: od determines why the job waits.
    assert decision.result is Result.NO_CANDIDATES
    assert [
        flavor_attempt.pending for flavor_attempt in decision.assignment.attempts[0] if flavor_attempt.flavor == "hp"
    ] == [Pending.EXCEEDS_MAX_QUOTA]


@pytest.mark.parametrize(("gpus", "pending"), [(2, Pending.WAITING_FOR_QUOTA), (3, Pending.EXCEEDS_MAX_QUOTA)])
def test_pending_reason_names_the_resource_that_never_fits(gpus: int, pending: Pending) -> None:
    # CPU comes first and is all used by the other queue. The whole tree has two accelerators.
    group = ResourceGroup(("cpu", GPU), (FlavorQuotas("hp", {"cpu": Quota(1), GPU: Quota(1)}),))
    queues = [replace(a_queue(name, 0), groups=(group,)) for name in ("a", "b")]
    held = Admitted(Workload("h", "b", (PodSet("main", 1, {"cpu": 2}),)), ({"cpu": "hp"},), (1,), 0.0)
    waiting = Workload("w", "a", (PodSet("main", 1, {"cpu": 2, GPU: gpus}),))
    decision = only_decision(a_scheduler(*queues, admitted=(held,), waiting=(waiting,)))

    assert (decision.result, decision.pending) == (Result.NO_FIT, pending)


@pytest.mark.parametrize(
    ("preference", "flavor"),
    [(Preference.BORROWING_OVER_PREEMPTION, "hp"), (Preference.PREEMPTION_OVER_BORROWING, "od")],
)
def test_preference_chooses_between_borrowing_and_preemption(preference: Preference, flavor: str) -> None:
    # hp fits by borrowing. od is within the queue's own quota, but needs preemption.
    scheduler = a_scheduler(
        a_queue("a", {"hp": 0, "od": 4}, within=LOWER, fungibility=replace(BOTH_NEXT, preference=preference)),
        a_queue("b", {"hp": 4, "od": 0}),
        admitted=(an_admitted_workload("h", "a", 4, flavor="od"),),
        waiting=(a_workload("w", "a", 4, priority=1),),
    )

    assert only_decision(scheduler).assignment.flavors == ({GPU: flavor},)


def test_skipped_workload_continues_with_the_next_flavor() -> None:
    scheduler = a_scheduler(
        a_queue("a", {"hp": 4, "od": 4}),
        a_queue("b", {"hp": 4, "od": 4}),
        waiting=(a_workload("w", "a", 5), a_workload("v", "b", 5, at=1)),
    )
    first, second = cycle(scheduler), cycle(scheduler)

    # Both stop at hp, by borrowing. Only one of them fits.
    assert [
        (cycle_decision.result, cycle_decision.assignment.flavors[0][GPU]) for cycle_decision in first.values()
    ] == [
        (Result.ADMITTED, "hp"),
        (Result.SKIPPED, "hp"),
    ]
    assert (second["v"].result, second["v"].assignment.flavors[0][GPU]) == (Result.ADMITTED, "od")
    assert [flavor_attempt.flavor for flavor_attempt in second["v"].assignment.attempts[0]] == ["od"]


def test_pod_count_uses_quota_if_queue_covers_pods() -> None:
    queue = replace(a_queue("a", 0, ""), groups=(ResourceGroup((PODS,), (FlavorQuotas("hp", {PODS: Quota(3)}),)),))
    small, large = (Workload(name, "a", (PodSet("main", count, {}),)) for name, count in (("s", 3), ("l", 4)))

    assert only_decision(a_scheduler(queue, waiting=(small,))).result is Result.ADMITTED
    assert only_decision(a_scheduler(queue, waiting=(large,))).pending is Pending.EXCEEDS_MAX_QUOTA


def test_only_nonzero_requests_of_uncovered_resources_never_fit() -> None:
    none, positive = (Workload(f"w{n}", "a", (PodSet("main", 1, {GPU: 1, "fpga": n}),)) for n in (0, 1))

    assert only_decision(a_scheduler(a_queue("a", 4, ""), waiting=(none,))).result is Result.ADMITTED
    assert only_decision(a_scheduler(a_queue("a", 4, ""), waiting=(positive,))).pending is Pending.NO_MATCHING_FLAVOR


def test_pod_sets_of_a_group_get_one_flavor() -> None:
    pods = (PodSet("a", 1, {GPU: 3}, group="g"), PodSet("b", 1, {GPU: 3}, group="g"))
    scheduler = a_scheduler(a_queue("q", {"hp": 4, "od": 8}, ""), waiting=(Workload("w", "q", pods),))

    assert only_decision(scheduler).assignment.flavors == ({GPU: "od"}, {GPU: "od"})


# ---------------------------------------------------------------- queue order, parking, stickiness


def test_queue_is_ordered_by_priority_then_time_then_id() -> None:
    jobs = (
        a_workload("d", "a", at=1),
        a_workload("c", "a", at=1),
        a_workload("b", "a", at=0),
        a_workload("a", "a", at=9, priority=1),
    )
    scheduler = a_scheduler(a_queue("a", 9, ""), waiting=jobs)

    assert [name for _ in jobs for name in cycle(scheduler)] == ["a", "b", "c", "d"]


def test_preempted_job_keeps_its_position_and_unready_job_loses_it() -> None:
    scheduler = a_scheduler(a_queue("a", 1, ""), waiting=(a_workload("x", "a", at=0), a_workload("y", "a", at=5)))
    cycle(scheduler)
    scheduler.requeue_evicted("x")
    assert list(cycle(scheduler)) == ["x"]
    scheduler.requeue_evicted("x", requeued_at=10)
    assert list(cycle(scheduler)) == ["y"]


def test_best_effort_queue_parks_identical_jobs_and_strict_queue_blocks() -> None:
    jobs = tuple(a_workload(f"big{n}", "a", 9, at=n) for n in range(3))
    small = a_workload("small", "a", 1, at=9)
    best = a_scheduler(a_queue("a", 4, ""), waiting=(*jobs, small))
    strict = a_scheduler(a_queue("a", 4, "", strategy=STRICT), waiting=(*jobs, small))

    assert list(cycle(best)) == ["big0"]
    assert list(cycle(best)) == ["small"]
    assert [list(cycle(strict)) for _ in range(3)] == [["big0"], ["big0"], ["big0"]]


def test_released_quota_wakes_parked_jobs_of_its_tree_only() -> None:
    scheduler = a_scheduler(
        a_queue("a", 4),
        a_queue("b", 4),
        a_queue("c", 4, "other"),
        admitted=(
            an_admitted_workload("h", "a", 4),
            an_admitted_workload("i", "b", 4),
            an_admitted_workload("k", "c", 4),
        ),
        waiting=tuple(a_workload(f"w{name}", name, 2) for name in "abc"),
    )
    cycle(scheduler)
    assert cycle(scheduler) == {}
    scheduler.release("h")

    assert sorted(cycle(scheduler)) == ["wa", "wb"]


def test_preemptor_stays_head_before_higher_priorities() -> None:
    scheduler = a_scheduler(
        a_queue("a", 4, within=LOWER),
        admitted=(an_admitted_workload("old", "a", 4),),
        waiting=(a_workload("p", "a", 4, priority=5),),
    )
    assert only_decision(scheduler).result is Result.PREEMPTING
    scheduler.submit(a_workload("higher", "a", 4, priority=9))
    assert list(cycle(scheduler)) == ["p"]
    scheduler.requeue_evicted("old")

    # The preempted job is not admitted again before its preemptor.
    assert (only_decision(scheduler).workload.workload_id, scheduler.admitted("p") is not None) == ("p", True)


def test_sticky_head_without_candidates_lets_next_workload_try() -> None:
    scheduler = a_scheduler(
        a_queue("a", 4, within=LOWER),
        admitted=(an_admitted_workload("old", "a", 4),),
        waiting=(a_workload("p", "a", 4, priority=5),),
    )
    cycle(scheduler)
    scheduler.reconfigure((a_queue("a", 1, within=LOWER),), (), (Flavor("hp"),))
    assert only_decision(scheduler).result is Result.NO_FIT
    scheduler.submit(a_workload("higher", "a", 1, priority=9))

    assert list(cycle(scheduler)) == ["higher"]


def test_evicted_workload_holds_quota_until_it_stops() -> None:
    scheduler = a_scheduler(
        a_queue("a", 4, within=LOWER),
        admitted=(an_admitted_workload("old", "a", 4),),
        waiting=(a_workload("p", "a", 4, priority=5),),
    )
    assert [only_decision(scheduler).result for _ in range(3)] == [Result.PREEMPTING] * 3
    scheduler.requeue_evicted("old")

    assert only_decision(scheduler).result is Result.ADMITTED


def test_held_queue_admits_nothing_and_drained_queue_evicts() -> None:
    for policy, evicted in ((StopPolicy.HOLD, False), (StopPolicy.HOLD_AND_DRAIN, True)):
        scheduler = a_scheduler(
            a_queue("a", 4), admitted=(an_admitted_workload("h", "a"),), waiting=(a_workload("w", "a"),)
        )
        scheduler.reconfigure((a_queue("a", 4, stop=policy),), (), (Flavor("hp"),))

        assert cycle(scheduler) == {}
        holder = scheduler.admitted("h")
        assert holder is not None
        assert holder.is_evicted is evicted


def test_job_in_backoff_is_not_tried_before_backoff_ends() -> None:
    scheduler = a_scheduler(a_queue("a", 4, ""))
    scheduler.submit(a_workload("w", "a"), not_before=10)

    assert scheduler.cycle(9.9) == []
    assert [cycle_decision.result for cycle_decision in scheduler.cycle(10.0)] == [Result.ADMITTED]


# ---------------------------------------------------------------- classical order and preemption


def test_heads_are_ordered_by_borrowing_then_priority_then_age() -> None:
    scheduler = a_scheduler(
        a_queue("a", 1),
        a_queue("b", 4),
        a_queue("c", 4),
        waiting=(
            a_workload("borrows", "a", 2, priority=9),
            a_workload("late", "b", 1, at=5),
            a_workload("early", "c", 1, at=1),
        ),
    )

    assert [cycle_decision.workload.workload_id for cycle_decision in scheduler.cycle()] == ["early", "late", "borrows"]


def test_lower_or_newer_equal_policy_preempts_later_workloads() -> None:
    def decide(policy: Any) -> CycleDecision:
        held = Admitted(a_workload("h", "a", 4, at=5), ({GPU: "hp"},), (1,), 0.0)
        return only_decision(
            a_scheduler(a_queue("a", 4, within=policy), admitted=(held,), waiting=(a_workload("w", "a", 4, at=1),))
        )

    assert victims(decide(LOWER_OR_NEWER)) == {"h": "InClusterQueue"}
    assert victims(decide(LOWER)) == {}


def test_reclaim_policy_never_protects_other_queues() -> None:
    scheduler = a_scheduler(
        a_queue("a", 4, reclaim=NEVER),
        a_queue("b", 4),
        admitted=(an_admitted_workload("h", "b", 8),),
        waiting=(a_workload("w", "a", 4, priority=99),),
    )

    decision = only_decision(scheduler)

    assert (decision.result, victims(decision)) == (Result.NO_CANDIDATES, {})


def test_request_above_nominal_without_borrow_within_does_not_fit() -> None:
    scheduler = a_scheduler(
        a_queue("a", 4, reclaim=ANY, within=LOWER),
        a_queue("b", 4),
        admitted=(an_admitted_workload("own", "a", 4), an_admitted_workload("h", "b", 4)),
        waiting=(a_workload("w", "a", 5, priority=9),),
    )
    decision = only_decision(scheduler)

    assert (decision.result, decision.pending) == (Result.NO_FIT, Pending.WAITING_FOR_QUOTA)
    assert "can neither borrow more nor preempt" in decision.reason


@pytest.mark.parametrize(("threshold", "reason"), [(5, "InCohortReclaimWhileBorrowing"), (0, None)])
def test_borrowing_preemptor_respects_the_priority_threshold(threshold: int, reason: str | None) -> None:
    scheduler = a_scheduler(
        a_queue("a", 2, reclaim=ANY, borrow_within=BorrowWithin(threshold)),
        a_queue("b", 2),
        a_queue("c", 4),
        admitted=(an_admitted_workload("h", "b", 6, priority=3),),
        waiting=(a_workload("w", "a", 4, priority=9),),
    )

    assert victims(only_decision(scheduler)) == ({"h": reason} if reason else {})


def test_evicted_candidates_are_preempted_first_then_the_latest() -> None:
    scheduler = a_scheduler(
        a_queue("a", 8, reclaim=ANY, within=LOWER),
        a_queue("b", 0),
        admitted=(
            an_admitted_workload("own", "a", 2, at=9),
            an_admitted_workload("early", "b", 2, at=1),
            an_admitted_workload("late", "b", 2, at=5),
            an_admitted_workload("gone", "b", 2, at=0, priority=7, evicted=True),
        ),
        waiting=(a_workload("w", "a", 4, priority=9),),
    )
    decision = only_decision(scheduler)

    assert [victim.workload_id for victim in decision.victims] == ["gone", "late"]


def test_queue_below_its_nominal_quota_loses_no_more_jobs() -> None:
    scheduler = a_scheduler(
        a_queue("a", 8, reclaim=ANY),
        a_queue("b", 4),
        admitted=(
            an_admitted_workload("b1", "b", 3, at=1),
            an_admitted_workload("b2", "b", 3, at=2),
            an_admitted_workload("b3", "b", 3, at=3),
        ),
        waiting=(a_workload("w", "a", 8),),
    )
    decision = only_decision(scheduler)

    # 9 of 12 are used and 8 are requested. Evicting b3 and b2 lowers queue b to 3, below its 4. So b1 stays in any
    # case.
    assert victims(decision) == {"b3": "InCohortReclamation", "b2": "InCohortReclamation"}
    assert decision.below_nominal == {"b": {KEY: 1}}


def test_overlapping_victims_are_recomputed_and_a_fit_is_deferred() -> None:
    scheduler = a_scheduler(
        a_queue("a", 4, reclaim=ANY),
        a_queue("b", 4, reclaim=ANY),
        a_queue("c", 0),
        admitted=(an_admitted_workload("h", "c", 8),),
        waiting=(a_workload("wa", "a", 4), a_workload("wb", "b", 4, at=1)),
    )
    decisions = cycle(scheduler)

    assert decisions["wa"].result is Result.PREEMPTING
    assert (decisions["wb"].result, decisions["wb"].was_recomputed) == (Result.DEFERRED, True)


def test_repeated_eviction_of_a_workload_counts_once() -> None:
    scheduler = a_scheduler(
        a_queue("a", 4, within=LOWER),
        admitted=(an_admitted_workload("old", "a", 4),),
        waiting=(a_workload("p", "a", 4, priority=5),),
    )
    generation = scheduler.snapshot.queues["a"].generation
    for _ in range(3):
        cycle(scheduler)
    scheduler.evict("old")

    assert scheduler.snapshot.queues["a"].generation == generation + 1


# ---------------------------------------------------------------- fair sharing


def test_fair_share_is_borrowed_quota_over_lendable_quota() -> None:
    tree = Tree((a_queue("a", 4, weight=2.0), a_queue("b", 4), a_queue("c", 4, weight=0.0)), ())
    for name, amount in (("a", 7), ("c", 5)):
        tree.queues[name].add_all({KEY: amount})

    assert share_of(tree.queues["a"]).value == 1000 * 3 / 12 / 2
    assert share_of(tree.queues["b"]).value == 0
    assert share_of(tree.queues["c"]).value == float("inf")
    assert share_of(tree.cohorts["fleet"]).value == 0


def test_shares_of_queues_with_zero_weight_compare_by_use() -> None:
    tree = Tree((a_queue("a", 4, weight=0.0), a_queue("b", 4, weight=0.0)), ())
    tree.queues["a"].add_all({KEY: 5})
    tree.queues["b"].add_all({KEY: 6})

    assert share_of(tree.queues["a"]).rank < share_of(tree.queues["b"]).rank


def test_head_with_smaller_share_goes_first_despite_lower_priority() -> None:
    scheduler = a_scheduler(
        a_queue("a", 2),
        a_queue("b", 2),
        a_queue("pool", 8),
        admitted=(an_admitted_workload("h", "a", 6),),
        waiting=(a_workload("wa", "a", 2, priority=9), a_workload("wb", "b", 3)),
        fair=True,
    )

    assert [cycle_decision.workload.workload_id for cycle_decision in scheduler.cycle()] == ["wb", "wa"]


def test_head_that_does_not_borrow_goes_first() -> None:
    scheduler = a_scheduler(
        a_queue("a", 4), a_queue("b", 1), waiting=(a_workload("own", "a", 4), a_workload("lent", "b", 2)), fair=True
    )

    assert [cycle_decision.workload.workload_id for cycle_decision in scheduler.cycle()] == ["own", "lent"]


# ---------------------------------------------------------------- partial admission, slices


def test_partial_admission_is_skipped_if_full_size_has_victims() -> None:
    pods = (PodSet("main", 4, {GPU: 1}, min_count=1),)
    scheduler = a_scheduler(
        a_queue("a", 4, within=LOWER),
        admitted=(an_admitted_workload("h", "a", 2),),
        waiting=(Workload("w", "a", pods, priority=1),),
    )
    decision = only_decision(scheduler)

    assert (decision.result, decision.assignment.counts) == (Result.PREEMPTING, (4,))


def growing_job(*, nominal: int, admitted: tuple[Admitted, ...] = (), **queue: Any) -> Scheduler:
    small = Workload("small", "a", (PodSet("main", 2, {GPU: 1}),), priority=5)
    large = Workload("large", "a", (PodSet("main", 4, {GPU: 1}),), priority=5, replaces="small")
    held = Admitted(small, ({GPU: "hp"},), (2,), 0.0)
    return a_scheduler(a_queue("a", nominal, **queue), admitted=(held, *admitted), waiting=(large,))


def test_larger_slice_requests_the_difference_and_replaces_the_old() -> None:
    scheduler = growing_job(nominal=4)
    decision = only_decision(scheduler)

    assert (decision.result, decision.assignment.use) == (Result.ADMITTED, {KEY: 2})
    assert (scheduler.admitted("small"), scheduler.admitted("large") is None) == (None, False)
    assert scheduler.snapshot.queues["a"].quota_node.at(KEY).use == 4


def test_larger_slice_never_preempts_its_own_old_slice() -> None:
    decision = only_decision(
        growing_job(nominal=4, within=LOWER, admitted=(an_admitted_workload("h", "a", 2, priority=1),))
    )

    assert victims(decision) == {"h": "InClusterQueue"}


def test_old_slice_stays_until_the_new_one_is_admitted() -> None:
    scheduler = growing_job(nominal=3)

    assert only_decision(scheduler).result is not Result.ADMITTED
    assert scheduler.admitted("small") is not None


def test_larger_slice_keeps_the_old_flavor() -> None:
    small = Workload("small", "a", (PodSet("main", 2, {GPU: 1}),))
    large = Workload("large", "a", (PodSet("main", 4, {GPU: 1}),), replaces="small")
    scheduler = a_scheduler(
        a_queue("a", {"hp": 8, "od": 8}, ""),
        admitted=(Admitted(small, ({GPU: "od"},), (2,), 0.0),),
        waiting=(large,),
    )

    assert only_decision(scheduler).assignment.flavors == ({GPU: "od"},)


def test_shrink_wakes_parked_workloads_of_the_tree() -> None:
    wide = Admitted(Workload("h", "a", (PodSet("main", 8, {GPU: 1}),)), ({GPU: "hp"},), (8,), 0.0)
    scheduler = a_scheduler(a_queue("a", 4), a_queue("b", 4), admitted=(wide,), waiting=(a_workload("w", "b", 4),))
    assert only_decision(scheduler).parked
    scheduler.shrink("h", (4,))

    assert only_decision(scheduler).result is Result.ADMITTED


def test_requeued_workload_omits_only_released_pods() -> None:
    # The job requested 8 pods, was admitted with 6, and 2 of these are done.
    decide = Workload("h", "a", (PodSet("main", 8, {GPU: 1}, min_count=4),))
    partial = Admitted(decide, ({GPU: "hp"},), (6,), 0.0)
    scheduler = a_scheduler(a_queue("a", 12, ""), admitted=(partial,))
    scheduler.shrink("h", (4,))
    scheduler.evict("h")
    scheduler.requeue_evicted("h")

    assert only_decision(scheduler).assignment.counts == (6,)


def test_repeated_shrink_frees_quota_once() -> None:
    wide = Admitted(Workload("h", "a", (PodSet("main", 4, {GPU: 1}),)), ({GPU: "hp"},), (4,), 0.0)
    scheduler = a_scheduler(a_queue("a", 4), admitted=(wide,))
    for counts in ((1,), (1,), (0,)):
        scheduler.shrink("h", counts)
    scheduler.release("h")
    scheduler.release("h")

    assert scheduler.snapshot.queues["a"].quota_node.at(KEY).use == 0


def test_zero_request_fits_a_full_resource() -> None:
    asks_nothing = Workload("w", "a", (PodSet("main", 1, {GPU: 0}),))
    scheduler = a_scheduler(a_queue("a", 4, ""), admitted=(an_admitted_workload("h", "a", 4),), waiting=(asks_nothing,))

    assert only_decision(scheduler).result is Result.ADMITTED


def test_withdrawn_sticky_head_lets_the_next_workload_try() -> None:
    scheduler = a_scheduler(
        a_queue("a", 4, reclaim=ANY),
        a_queue("b", 0),
        admitted=(an_admitted_workload("h", "b", 4),),
        waiting=(a_workload("w", "a", 4),),
    )
    assert only_decision(scheduler).result is Result.PREEMPTING
    scheduler.withdraw(a_workload("w", "a", 4))
    scheduler.submit(a_workload("next", "a", 2))

    assert list(cycle(scheduler)) == ["next"]


@pytest.mark.parametrize(("parks_shape", "head"), [(False, "waits"), (True, "urgent")])
def test_skipped_preemptor_stays_head_until_it_has_no_candidates(parks_shape: bool, head: str) -> None:
    pending = PendingQueue(QueueingStrategy.BEST_EFFORT)
    pending.push(PendingWorkload(a_workload("waits", "a", 1)))
    for is_preempting in (True, False):
        waiting = pending.pop()
        assert waiting is not None
        parks = parks_shape and not is_preempting
        pending.requeue(waiting, at_once=not parks, parks_shape=parks, is_preempting=is_preempting)
    pending.push(PendingWorkload(a_workload("urgent", "a", 1, priority=9)))
    pending.wake()
    workload = pending.pop()

    assert workload is not None
    assert workload.workload.workload_id == head


def test_changed_priority_keeps_a_sticky_head() -> None:
    scheduler = a_scheduler(
        a_queue("a", 4, reclaim=ANY),
        a_queue("b", 0),
        admitted=(an_admitted_workload("h", "b", 4),),
        waiting=(a_workload("w", "a", 4, priority=2),),
    )
    assert only_decision(scheduler).result is Result.PREEMPTING
    scheduler.submit(a_workload("w", "a", 4, priority=1))
    scheduler.submit(a_workload("urgent", "a", 2, priority=9))

    assert list(cycle(scheduler)) == ["w"]


def test_assignment_modes_are_ordered_from_worst_to_best() -> None:
    assert sorted(FlavorMode) == [
        FlavorMode.NO_FIT,
        FlavorMode.NO_CANDIDATES,
        FlavorMode.PREEMPT,
        FlavorMode.RECLAIM,
        FlavorMode.FIT,
    ]


# ---------------------------------------------------------------- faults seen in other schedulers


def test_larger_slice_is_never_admitted_partially() -> None:
    large = Workload("large", "a", (PodSet("main", 4, {GPU: 1}, min_count=3),), replaces="small")
    held = Admitted(Workload("small", "a", (PodSet("main", 2, {GPU: 1}),)), ({GPU: "hp"},), (2,), 0.0)
    decision = only_decision(a_scheduler(a_queue("a", 3, ""), admitted=(held,), waiting=(large,)))

    assert (decision.result, decision.assignment.counts) == (Result.NO_CANDIDATES, (4,))


def test_larger_workload_slice_does_not_wait_for_smaller_to_start() -> None:
    scheduler = growing_job(nominal=4)
    smaller = scheduler.admitted("small")
    assert smaller is not None
    smaller.is_started = False

    assert only_decision(scheduler).result is Result.ADMITTED


def test_first_flavor_is_used_up_before_the_next() -> None:
    next_one = Fungibility(when_can_borrow=Fungible.TRY_NEXT)
    jobs = tuple(a_workload(f"w{n}", "a", 1, at=n) for n in range(6))
    scheduler = a_scheduler(a_queue("a", {"reserved": 4, "on-demand": 4}, fungibility=next_one), waiting=jobs)
    flavors = [only_decision(scheduler).assignment.flavors[0][GPU] for _ in jobs]

    assert flavors == ["reserved"] * 4 + ["on-demand"] * 2


def test_preemptor_evicts_workloads_of_one_flavor_only() -> None:
    scheduler = a_scheduler(
        a_queue("a", {"east": 4, "west": 4}, within=LOWER),
        admitted=(an_admitted_workload("e", "a", 4, flavor="east"), an_admitted_workload("w", "a", 4, flavor="west")),
        waiting=(a_workload("new", "a", 4, priority=1),),
    )
    for _ in range(3):
        cycle(scheduler)
    evicted = [
        admitted.workload.workload_id
        for admitted in scheduler.snapshot.queues["a"].admitted.values()
        if admitted.is_evicted
    ]

    assert evicted == ["e"]


def test_borrowing_is_preferred_to_preemption_in_the_own_queue() -> None:
    scheduler = a_scheduler(
        a_queue("a", 4, within=LOWER),
        a_queue("b", 4),
        admitted=(an_admitted_workload("own", "a", 4),),
        waiting=(a_workload("w", "a", 4, priority=9),),
    )
    decision = only_decision(scheduler)

    assert (decision.result, decision.assignment.level, victims(decision)) == (Result.ADMITTED, 1, {})


def test_first_workload_in_queue_order_is_always_admitted_first() -> None:
    source = random.Random(7)
    jobs = [a_workload(f"w{n:03}", "a", 1, at=source.randrange(50), priority=source.randrange(3)) for n in range(400)]
    scheduler = a_scheduler(a_queue("a", 8, ""))
    source.shuffle(jobs)
    to_submit, admitted = list(jobs), list[Workload]()
    while to_submit or len(admitted) < len(jobs):
        for _ in range(min(len(to_submit), source.randrange(4))):
            scheduler.submit(to_submit.pop())
        pending = {workload.workload.workload_id: workload.workload for workload in scheduler.pending["a"].all()}
        for decision in scheduler.cycle():
            if decision.result is Result.ADMITTED:
                admitted.append(decision.workload)
                assert decision.workload.order == min(workload.order for workload in pending.values())
        running = list(scheduler.snapshot.queues["a"].admitted)
        if running and source.random() < 0.7:
            scheduler.release(source.choice(running))

    assert len({workload.workload_id for workload in admitted}) == len(jobs)


def test_no_two_workloads_have_equal_order() -> None:
    same = [a_workload(name, "a") for name in ("x", "y")]
    held = [replace(an_admitted_workload(name, "a"), reserved_at=None) for name in ("x", "y")]

    assert same[0].order != same[1].order
    assert order_key(held[0], "a", 9.0) != order_key(held[1], "a", 9.0)


def test_duplicate_eviction_has_one_effect() -> None:
    scheduler = a_scheduler(
        a_queue("a", 4, within=LOWER),
        admitted=(an_admitted_workload("old", "a", 4),),
        waiting=(a_workload("p", "a", 4, priority=5),),
    )
    cycle(scheduler)
    for _ in range(2):
        scheduler.requeue_evicted("old")
    scheduler.evict("old")

    assert only_decision(scheduler).workload.workload_id == "p"
    assert [workload.workload.workload_id for workload in scheduler.pending["a"].all()] == ["old"]
    assert scheduler.snapshot.queues["a"].quota_node.at(KEY).use == 4


def test_two_queues_that_need_all_quota_do_not_alternate() -> None:
    scheduler = a_scheduler(
        a_queue("a", 0, reclaim=ANY),
        a_queue("b", 0, reclaim=ANY),
        a_queue("pool", 4),
        waiting=(a_workload("wa", "a", 4), a_workload("wb", "b", 4, at=1)),
        fair=True,
    )
    evicted = []
    for _ in range(20):
        for decision in scheduler.cycle():
            evicted += [victim.workload_id for victim in decision.victims]
            for victim in decision.victims:
                scheduler.requeue_evicted(victim.workload_id)

    assert (evicted, scheduler.admitted("wa") is not None) == ([], True)


def test_victims_move_to_another_queue_once_one_is_at_nominal() -> None:
    scheduler = a_scheduler(
        a_queue("a", 4, reclaim=ANY),
        a_queue("b", 4),
        a_queue("c", 4),
        admitted=(
            *(an_admitted_workload(f"b{n}", "b", 2, at=10 + n) for n in (1, 2, 3)),
            *(an_admitted_workload(f"c{n}", "c", 2, at=n) for n in (1, 2, 3)),
        ),
        waiting=(a_workload("w", "a", 4),),
    )

    # b2 and b1 were admitted later than c3. But without b3, queue b is within its own quota.
    assert list(victims(only_decision(scheduler))) == ["b3", "c3"]
