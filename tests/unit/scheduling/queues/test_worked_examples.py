"""Examples worked out by hand, one rule each."""

from evenkeel.domain.kueue.assignment import Pending
from evenkeel.domain.kueue.capacity import QuotaNode, Tree
from evenkeel.domain.kueue.cycle_decisions import Result
from evenkeel.domain.kueue.objects import Admitted, Fungibility, Fungible, PodSet, Workload
from evenkeel.domain.kueue.scheduler import Scheduler
from tests.unit.scheduling.queues.builders import (
    ANY,
    GPU,
    NEVER,
    a_queue,
    a_scheduler,
    a_workload,
    an_admitted_workload,
    decisions_by_workload,
    victims,
)

KEY = ("hp", GPU)


def test_available_quota_follows_borrowing_and_lending_in_a_tree() -> None:
    tree = Tree((a_queue("red", 12, lend=5), a_queue("blue", 8, borrow=4), a_queue("green", 4)), ())
    red, blue, green, fleet = (*(tree.queues[name] for name in ("red", "blue", "green")), tree.cohorts["fleet"])

    assert (red.at(KEY).guaranteed, fleet.at(KEY).subtree) == (7, 17)
    assert [node.potential(KEY) for node in (red, blue, green)] == [24, 12, 17]
    red.add_all({KEY: 9})
    blue.add_all({KEY: 10})
    assert fleet.at(KEY).use == 12
    assert [node.available(KEY) for node in (fleet, red, blue, green)] == [5, 5, 2, 5]

    blue.add_all({KEY: 2})
    assert [fleet.at(KEY).use, *(node.available(KEY) for node in (fleet, red, blue, green))] == [14, 3, 3, 0, 3]
    red.remove_all({KEY: 4})
    assert [fleet.at(KEY).use, red.available(KEY), green.available(KEY)] == [12, 7, 5]
    red.add_all({KEY: 4})
    assert fleet.at(KEY).use == 14


def decide_with_two_flavors(when_can_borrow: Fungible, nlp_holds: int) -> Scheduler:
    fungibility = Fungibility(when_can_borrow=when_can_borrow)
    return a_scheduler(
        a_queue("vision", {"hp": 8, "od": 8}, fungibility=fungibility, reclaim=ANY),
        a_queue("nlp", {"hp": 8, "od": 8}),
        admitted=(an_admitted_workload("v", "vision", 4), an_admitted_workload("n", "nlp", nlp_holds)),
        waiting=(a_workload("new", "vision", 6),),
    )


def test_when_can_borrow_decides_whether_the_search_stops() -> None:
    stops = decide_with_two_flavors(Fungible.STOP, 4).cycle()[0]
    goes_on = decide_with_two_flavors(Fungible.TRY_NEXT, 4).cycle()[0]

    assert (stops.assignment.flavors[0][GPU], stops.assignment.level) == ("hp", 1)
    assert stops.assignment.flavor_cursor is not None
    assert stops.assignment.flavor_cursor.tried[0] == {GPU: 0}
    assert (goes_on.assignment.flavors[0][GPU], goes_on.assignment.level) == ("od", 0)
    assert goes_on.assignment.flavor_cursor is not None
    assert goes_on.assignment.flavor_cursor.tried[0] == {GPU: -1}


def test_flavor_without_candidates_is_skipped() -> None:
    decision = decide_with_two_flavors(Fungible.STOP, 12).cycle()[0]

    assert (decision.result, decision.assignment.flavors[0][GPU]) == (Result.ADMITTED, "od")


def reclaiming_scheduler(gpus: int) -> Scheduler:
    return a_scheduler(
        a_queue("a", 8, reclaim=ANY),
        a_queue("b", 8, reclaim=ANY),
        admitted=(
            an_admitted_workload("b1", "b", 6, at=10),
            an_admitted_workload("b3", "b", 4, at=20),
            an_admitted_workload("b2", "b", 1, at=30),
        ),
        waiting=(a_workload("new", "a", gpus),),
    )


def test_reclaim_preempts_the_latest_jobs_and_restores_unneeded_ones() -> None:
    decision = reclaiming_scheduler(8).cycle()[0]

    assert decision.result == Result.PREEMPTING
    assert victims(decision) == {"b3": "InCohortReclamation"}


def test_request_above_nominal_reclaims_nothing() -> None:
    decision = reclaiming_scheduler(10).cycle()[0]

    assert (decision.result, decision.pending, victims(decision)) == (Result.NO_FIT, Pending.WAITING_FOR_QUOTA, {})


def fair_sharing_scheduler(gpus: int, strategies: tuple[str, ...] | None = None) -> Scheduler:
    return a_scheduler(
        *(a_queue(name, 4, reclaim=ANY) for name in "ABC"),
        admitted=(
            *(an_admitted_workload(f"b{n}", "B", 2, at=n) for n in (1, 2, 3, 4)),
            an_admitted_workload("c", "C", 2),
        ),
        waiting=(a_workload("new", "A", gpus),),
        fair=True,
        strategies=strategies,
    )


def test_fair_sharing_uses_final_share_then_initial_share() -> None:
    decision = fair_sharing_scheduler(5).cycle()[0]

    assert victims(decision) == {"b4": "InCohortFairSharing", "b3": "InCohortFairSharing"}


def test_final_share_rule_alone_finds_too_few_victims() -> None:
    decision = fair_sharing_scheduler(5, ("LessThanOrEqualToFinalShare",)).cycle()[0]

    assert (decision.result, victims(decision)) == (Result.NO_CANDIDATES, {})


def test_equal_shares_preempt_nothing() -> None:
    assert victims(fair_sharing_scheduler(6).cycle()[0]) == {}


def test_preemptor_within_nominal_reclaims_unconditionally() -> None:
    assert victims(fair_sharing_scheduler(4).cycle()[0]) == {"b4": "InCohortReclamation"}


def test_partial_admission_finds_the_largest_size() -> None:
    scheduler = a_scheduler(
        a_queue("q", 13, ""),
        waiting=(
            Workload(
                "new", "q", (PodSet("workers", 8, {GPU: 2}, min_count=2), PodSet("eval", 4, {GPU: 1}, min_count=1))
            ),
        ),
    )
    decision = scheduler.cycle()[0]

    assert (decision.result, decision.assignment.counts) == (Result.ADMITTED, (5, 3))
    assert decision.assignment.use[KEY] == 13


def test_head_without_candidates_reserves_quota_for_the_cycle() -> None:
    scheduler = a_scheduler(
        a_queue("x", 6, reclaim=NEVER),
        a_queue("y", 6),
        admitted=(an_admitted_workload("y1", "y", 8),),
        waiting=(a_workload("big", "x", 6), a_workload("small", "y", 2)),
    )
    decisions = decisions_by_workload(scheduler.cycle())

    assert (decisions["big"].result, dict(decisions["big"].reserved)) == (Result.NO_CANDIDATES, {KEY: 6})
    assert decisions["small"].result == Result.SKIPPED


def test_head_that_may_always_reclaim_reserves_nothing() -> None:
    scheduler = a_scheduler(
        a_queue("x", 6, reclaim=ANY),
        a_queue("y", 6),
        admitted=(an_admitted_workload("y1", "y", 8),),
        waiting=(a_workload("big", "x", 6), a_workload("small", "y", 2)),
    )
    decisions = decisions_by_workload(scheduler.cycle())

    assert victims(decisions["big"]) == {"y1": "InCohortReclamation"}
    assert decisions["small"].result == Result.ADMITTED


def _used(node: QuotaNode) -> dict[tuple[str, str], int]:
    return {key: cell.use for key, cell in node.cells.items() if cell.use}


def test_simulated_changes_of_the_quota_tree_are_undone() -> None:
    scheduler = fair_sharing_scheduler(5)
    before = {name: _used(queue.quota_node) for name, queue in scheduler.snapshot.queues.items()}
    scheduler.cycle()

    assert before == {name: _used(queue.quota_node) for name, queue in scheduler.snapshot.queues.items()}


def test_quota_use_counts_every_pod_set() -> None:
    workload = Workload("w", "q", (PodSet("a", 2, {GPU: 3}), PodSet("b", 1, {GPU: 4})))

    assert Admitted(workload, ({GPU: "hp"}, {GPU: "hp"}), (2, 1)).use == {KEY: 10}
