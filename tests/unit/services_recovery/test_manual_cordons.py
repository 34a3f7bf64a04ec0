"""Two people cordon and uncordon one node at the same moment: each cordon in place keeps a record of its author."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from evenkeel.domain.recovery.manual_cordons import ManualCordon
from evenkeel.services.recovery import manual_cordons, set_manual_cordon
from evenkeel.services.recovery.set_manual_cordon import cordon_as_person, uncordon_as_person
from tests.fakes import FakeWorld
from tests.fakes.cluster import CLUSTER, instance_id
from tests.interleaving import InterleavedLedger, at_every_point
from tests.unit.services_jobs.job_scenario import JobScenario

NAME = f"hyperpod-{instance_id(1)}"


def request_of(person: str, number: int = 1) -> set_manual_cordon.SetManualCordonRequest:
    return set_manual_cordon.SetManualCordonRequest(
        instance_id=instance_id(1),
        by=person,
        reason="fan noise",
        request_id=f"{person}-{number}",
        fingerprint=person,
    )


def fleet_with_known_nodes() -> FakeWorld:
    scenario = JobScenario(size=2)
    scenario.sweep()
    return scenario.world


def is_cordoned(world: FakeWorld) -> bool:
    return world.cluster.by_name[CLUSTER, NAME].is_cordoned


def recorded_authors(world: FakeWorld) -> list[str]:
    return [cordon.by for cordon in manual_cordons.load_manual_cordons(world.ledger).values()]


@pytest.mark.parametrize("was_cordoned", [False, True])
@pytest.mark.parametrize("first", [cordon_as_person, uncordon_as_person])
@pytest.mark.parametrize("second", [cordon_as_person, uncordon_as_person])
def test_concurrent_requests_leave_no_cordon_without_record(
    first: Callable[..., object], second: Callable[..., object], *, was_cordoned: bool
) -> None:
    def run(at: int) -> int:
        world = fleet_with_known_nodes()
        if was_cordoned:
            cordon_as_person(request_of("ana", 0), world.context())
        ledger = InterleavedLedger(world.ledger, at, lambda: second(request_of("bo"), world.context()))
        first(request_of("cy"), world.context(ledger=ledger))
        assert recorded_authors(world) or not is_cordoned(world), f"{second.__name__} before call {at}"
        return ledger.calls

    for _ in at_every_point(run):
        pass


def test_sweep_keeps_record_of_new_cordon() -> None:
    world = fleet_with_known_nodes()
    cordon_as_person(request_of("ana"), world.context())
    [earlier] = manual_cordons.load_manual_cordons(world.ledger).values()
    world.cluster.remove_manual_cordon(CLUSTER, NAME)
    later = world.context(now=world.clock.now() + timedelta(minutes=3))
    new = ManualCordon(life_key=earlier.life_key, by="bo", reason="smoke", at=later.now)
    ledger = InterleavedLedger(world.ledger, 2, lambda: manual_cordons.record_cordon(world.ledger, new))

    manual_cordons.delete_outdated_records(frozenset(), later.replace(ledger=ledger))

    assert recorded_authors(world) == ["bo"]
