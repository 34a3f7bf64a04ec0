"""A fact about a group of nodes is stored once, under its pool or cluster, until it expires."""

from datetime import timedelta
from typing import Any

import pytest

from evenkeel.domain.health.group_facts import GroupFact, GroupFactKind
from evenkeel.services.incidents import note_group_fact
from tests.fakes import FakeWorld
from tests.fakes.system import A_MOMENT


def a_group_fact(**changes: Any) -> GroupFact:
    facts: dict[str, Any] = {
        "kind": GroupFactKind.NO_CAPACITY,
        "source": "hyperpod.cluster-event",
        "instance_group": "p5-workers",
        "fault_key": "hp:insufficient_capacity",
        "observed_at": A_MOMENT,
        "envelope_id": "one",
    }
    return GroupFact.model_validate({**facts, **changes})


def store_fact(world: FakeWorld, fact: GroupFact) -> str:
    return note_group_fact.run(fact, world.context()).outcome


def stored_facts(world: FakeWorld, pool: str = "p5-workers") -> list[str]:
    return [fact.kind for fact in note_group_fact.recent_facts(pool, world.context())]


def test_group_fact_in_another_envelope_is_a_duplicate() -> None:
    world = FakeWorld()

    assert [store_fact(world, a_group_fact()), store_fact(world, a_group_fact(envelope_id="two"))] == [
        "NOTED",
        "DUPLICATE",
    ]
    assert stored_facts(world) == ["NO_CAPACITY"]
    assert world.telemetry.totals["GroupFactsNoted"] == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"observed_at": A_MOMENT + timedelta(minutes=1)},
        {"instance_id": "i-0a1c4f7b92d36e581"},
        {"kind": GroupFactKind.EFA_BOOT_FAILED},
        {"code": "Degraded"},
    ],
)
def test_group_facts_of_different_content_are_stored_separately(changes: dict[str, Any]) -> None:
    world = FakeWorld()
    store_fact(world, a_group_fact())

    assert store_fact(world, a_group_fact(**changes)) == "NOTED"


def test_pool_reads_facts_of_itself_and_cluster_oldest_first() -> None:
    world = FakeWorld()
    store_fact(world, a_group_fact())
    store_fact(world, a_group_fact(instance_group="other"))
    five_minutes_earlier = A_MOMENT - timedelta(minutes=5)
    store_fact(
        world, a_group_fact(kind=GroupFactKind.CLUSTER_FAILED, instance_group="", observed_at=five_minutes_earlier)
    )

    assert stored_facts(world) == ["CLUSTER_FAILED", "NO_CAPACITY"]


def test_group_fact_expires_after_a_day() -> None:
    world = FakeWorld()
    store_fact(world, a_group_fact())
    world.clock.advance(86_400)

    assert stored_facts(world) == []


def test_group_fact_is_kept_until_a_later_deadline() -> None:
    world = FakeWorld()
    store_fact(world, a_group_fact(kind=GroupFactKind.RESERVATION_EXPIRING, deadline_at=A_MOMENT + timedelta(days=3)))
    world.clock.advance(2 * 86_400)

    assert stored_facts(world) == ["RESERVATION_EXPIRING"]
