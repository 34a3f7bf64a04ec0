"""Every change of a rental is a named transition: the legal transitions, and their records."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from evenkeel.domain.capacity.pools import Market
from evenkeel.domain.renting.placement import PlacementDecision, choose_pool
from evenkeel.domain.renting.rental import (
    TRANSITIONS,
    CapacityAnswer,
    IllegalTransitionError,
    Rental,
    RentalHolder,
    RentalOffer,
    RentalState,
    RentalTerms,
    ServingTarget,
    assign_nodes,
    end_rental,
    next_offer,
    open_rental,
    refuse_offer,
    release_rental,
    with_joined_nodes,
    with_next_execution,
    with_other_rentals_nodes,
    with_replicas_observed,
)
from tests.unit.scheduling.pool_builders import a_candidate_pool, a_waiting, facts_of
from tests.unit.scheduling.test_renting import POLICY, POOL, START, a_rental

LATER = START + timedelta(seconds=100)
SPOT_OFFER = RentalOffer.of(POOL.replace(market=Market.SPOT), START)


def a_placement(nodes: int = 2) -> PlacementDecision:
    candidate = a_candidate_pool(Market.ON_DEMAND, pool={"name": POOL.name})
    return choose_pool(facts_of(candidate, job=a_waiting(nodes=nodes)))


STEPS: dict[str, tuple[RentalState | None, Callable[[Rental], Rental]]] = {
    "assigned": (RentalState.READY, lambda rental: assign_nodes(rental, ("ip-1", "ip-2"), LATER).rental),
    "refused": (RentalState.OPENING, lambda rental: refuse_offer(rental, "It has none.").rental),
    "offered": (
        RentalState.OPENING,
        lambda rental: next_offer(rental, a_placement(), "It is next.", "dec-2", POLICY.burst, LATER).rental,
    ),
    "released": (RentalState.ENDING, lambda rental: release_rental(rental, "It is over.", ()).rental),
    "ended": (RentalState.ENDED, lambda rental: end_rental(rental, LATER).rental),
    "nodes_joined": (None, lambda rental: with_joined_nodes(rental, ["ip-7"])),
    "other_nodes_seen": (None, lambda rental: with_other_rentals_nodes(rental, [a_rental(node_names=("ip-9",))])),
    "replicas_seen": (None, lambda rental: with_replicas_observed(rental, has_replicas=True, now=LATER)),
    "restarted": (None, with_next_execution),
}
"""Transitions by name: the state after each (None if it keeps the state), and its function."""


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("state", RentalState)
def test_rental_transition_outside_the_table_is_refused_with_both_states(state: RentalState, name: str) -> None:
    target, step = STEPS[name]
    target = target or state
    rental = a_rental(state=state)

    if target in TRANSITIONS[state]:
        after = step(rental)
        assert after.state is target
        assert after != rental
    else:
        with pytest.raises(IllegalTransitionError, match=f"from {state} to {target}"):
            step(rental)


def test_every_rental_state_is_reachable_and_the_end_is_final() -> None:
    reached = {RentalState.OPENING}
    for _ in RentalState:
        reached |= {after for state in reached for after in TRANSITIONS[state]}

    assert reached == TRANSITIONS.keys() == {*RentalState}
    assert TRANSITIONS[RentalState.ENDED] == frozenset()


def test_rental_opens_with_the_terms_of_its_decision() -> None:
    placement = a_placement(nodes=3)
    holder = RentalHolder("job-a", 4, "vision", "jobs", due_at=LATER, incident_id="inc-1")

    change = open_rental(holder, RentalTerms.of(placement), "dec-7", POLICY.burst, START)

    rental = change.rental
    assert (rental.name, rental.state, rental.nodes, rental.decision_id) == (
        "job-a-b4",
        RentalState.OPENING,
        3,
        "dec-7",
    )
    assert (rental.offer.pool, rental.begun_at) == (POOL.name, START)
    assert rental.ready_by == START + timedelta(seconds=POLICY.burst.ready_seconds)
    assert placement.row
    assert rental.expected_parts == placement.row.rent_parts
    assert (change.kind, change.event, change.has_new_offer, change.changes_capacity) == (
        "rented",
        "rented-4",
        True,
        True,
    )
    assert "3 nodes of burst are rented for the job." in change.text
    assert "temporary capacity for inc-1, until 03 Nov 10:16 UTC" in change.text


def test_node_of_a_deployment_is_no_temporary_capacity() -> None:
    target = ServingTarget(namespace="serving", name="chat", accelerators_per_replica=8)
    holder = RentalHolder("srv-chat", 1, "chat", "jobs", target, LATER)

    change = open_rental(holder, RentalTerms.of(a_placement(nodes=1)), "dec-7", POLICY.burst, START)

    assert change.rental.due_at == LATER
    assert change.text.startswith("1 node of burst is rented for the Deployment.")
    assert "temporary" not in change.text


def test_assigned_nodes_are_billed_and_count_as_supplied_capacity() -> None:
    change = assign_nodes(with_joined_nodes(a_rental(), ["ip-0"]), ("ip-1", "ip-2"), LATER)

    assert change.rental.node_names == ("ip-1", "ip-2")
    assert change.rental.offer.joined_node_names == ("ip-0", "ip-1", "ip-2")
    assert (change.rental.handed_over_at, change.rental.idle_since) == (LATER, None)
    assert (change.capacity_answer, change.changes_capacity) == (CapacityAnswer.SUPPLIED, True)


def test_node_assigned_to_another_rental_is_not_billed() -> None:
    rental = with_joined_nodes(a_rental(), ["ip-0", "ip-1"])

    after = with_other_rentals_nodes(rental, iter([a_rental(state=RentalState.READY, node_names=("ip-1", "ip-2"))]))

    assert after.other_rentals_nodes == ("ip-1", "ip-2")
    assert [bill.nodes for bill in after.bills()] == [1]


def test_next_rental_offer_closes_the_refused_offer() -> None:
    rental = refuse_offer(a_rental(), "").rental

    change = next_offer(rental, a_placement(), "It is next.", "dec-2", POLICY.burst, LATER)

    first, second = change.rental.offers
    assert first.refused == "burst did not provide 2 nodes in time."
    assert (first.closed_at, second.opened_at, second.refused) == (LATER, LATER, "")
    assert (change.rental.decision_id, change.rental.pods_name) == ("dec-2", "job-a-b1-2")
    assert (change.event, change.has_new_offer) == ("offer-1-2", True)


@pytest.mark.parametrize(
    ("offer", "usable", "report"),
    [
        (SPOT_OFFER, ("ip-1", "ip-2"), None),
        (SPOT_OFFER, ("ip-1",), CapacityAnswer.REFUSED),
        (RentalOffer.of(POOL, START), ("ip-1",), None),
    ],
)
def test_only_a_lost_spot_node_counts_as_a_refusal(
    offer: RentalOffer, usable: tuple[str, ...], report: CapacityAnswer | None
) -> None:
    rental = a_rental(state=RentalState.READY, node_names=("ip-1", "ip-2"), offers=(offer,))

    change = release_rental(rental, "", usable)

    assert (change.capacity_answer, change.rental.reason) == (report, rental.reason)


def test_observation_without_a_change_leaves_rental_unchanged() -> None:
    rental = with_joined_nodes(a_rental(state=RentalState.READY), ["ip-1"])

    assert with_joined_nodes(rental, ["ip-1"]) is rental
    assert with_replicas_observed(rental.replace(was_used=True), has_replicas=True, now=LATER) == rental.replace(
        was_used=True
    )
