from typing import Any

import pytest

from evenkeel.domain.quotas.teams import FleetQuotas, Team
from evenkeel.ports import ConditionCheck, Conflict, Invalid, Ledger, StaleVersion, Write
from evenkeel.services.admin import set_quotas
from evenkeel.services.storage import team_setup
from evenkeel.services.tables import quota_rows
from tests.fakes import FakeWorld
from tests.unit.scheduling.test_teams import a_team


def set_quotas_part(
    world: FakeWorld, part: Team | FleetQuotas, expected: int = 0, ledger: Any = None
) -> set_quotas.SetQuotasResult:
    request = set_quotas.SetQuotasRequest(part=part, expected=expected, by="role/Platform (ana)", reason="First quota.")
    return set_quotas.run(request, world.context(ledger=ledger or world.ledger))


def tree_version(world: FakeWorld) -> int:
    row = world.ledger.get(quota_rows.tree_key())
    return row.version if row else 0


def test_stored_setup_is_read_with_its_version() -> None:
    world = FakeWorld()
    set_quotas_part(world, a_team("vision"))
    set_quotas_part(world, a_team("nlp"))
    set_quotas_part(world, FleetQuotas(priority_classes={"high": 10}))
    set_quotas_part(world, a_team("nlp", namespace="language"), expected=1)

    stored_setup = team_setup.load_setup(world.ledger)

    assert [team.name for team in stored_setup.setup.teams] == ["nlp", "vision"]
    assert stored_setup.setup.by_name["nlp"].namespace == "language"
    assert stored_setup.setup.priority_of("high") == 10
    assert stored_setup.versions == {"nlp": 2, "vision": 1, team_setup.FLEET: 1}
    assert stored_setup.version == 4


def test_empty_setup_has_no_teams_and_no_limits() -> None:
    stored_setup = team_setup.load_setup(FakeWorld().ledger)

    assert not stored_setup.setup.has_teams
    assert stored_setup.version_of("nlp") == 0


def test_every_change_raises_the_tree_version_and_requests_a_cycle() -> None:
    world = FakeWorld()
    before = tree_version(world)

    set_quotas_part(world, a_team())
    set_quotas_part(world, FleetQuotas())

    assert tree_version(world) == before + 2
    assert len(world.cycle_requests.reasons) == 2


def test_same_change_twice_is_made_once() -> None:
    world = FakeWorld()
    first = set_quotas_part(world, a_team())
    version = tree_version(world)

    again = set_quotas_part(world, a_team())

    assert again == first
    assert tree_version(world) == version


def test_change_with_an_old_version_is_refused() -> None:
    world = FakeWorld()
    set_quotas_part(world, a_team())

    for expected in (0, 2):
        with pytest.raises(StaleVersion):
            set_quotas_part(world, a_team(namespace="other"), expected)


def test_invalid_setup_is_explained_and_not_written() -> None:
    world = FakeWorld()
    set_quotas_part(world, a_team("vision", namespace="shared"))

    with pytest.raises(Invalid) as refused:
        set_quotas_part(world, a_team("nlp", namespace="shared"))
    with pytest.raises(Invalid):
        set_quotas_part(world, a_team("nlp", members=[{"principal": "Research"}]))

    assert [field for field, _ in refused.value.faults] == ["team.namespace"]
    assert team_setup.load_setup(world.ledger).version == 1


class ConcurrentWriterLedger:
    """Writes another version just before the first commit."""

    def __init__(self, ledger: Ledger, other: Any) -> None:
        self._ledger = ledger
        self._other = other

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def commit(self, *writes: Write, client_token: str = "") -> None:
        other, self._other = self._other, None
        if other:
            other()
        self._ledger.commit(*writes, client_token=client_token)


def test_concurrent_changes_are_checked_together() -> None:
    world = FakeWorld()
    ledger = ConcurrentWriterLedger(world.ledger, lambda: set_quotas_part(world, a_team("vision", namespace="shared")))

    with pytest.raises(Invalid):
        set_quotas_part(world, a_team("nlp", namespace="shared"), ledger=ledger)


def test_second_team_in_the_same_namespace_is_refused() -> None:
    world = FakeWorld()
    set_quotas_part(world, a_team("nlp"))
    set_quotas_part(world, a_team("vision"))
    ledger = ConcurrentWriterLedger(
        world.ledger, lambda: set_quotas_part(world, a_team("vision", namespace="shared"), expected=1)
    )

    with pytest.raises(Invalid):
        set_quotas_part(world, a_team("nlp", namespace="shared"), expected=1, ledger=ledger)

    assert team_setup.load_setup(world.ledger).setup.namespaces == {"nlp": "nlp", "shared": "vision"}


def test_team_in_a_namespace_of_the_stack_is_refused() -> None:
    world = FakeWorld()
    request = set_quotas.SetQuotasRequest(part=a_team(namespace="training"), expected=0, by="role/Ops", reason="x")

    with pytest.raises(Invalid):
        set_quotas.run(request, world.context(), own_namespaces=("training",))

    assert not team_setup.load_setup(world.ledger).setup.has_teams


def test_commit_at_an_older_team_setup_fails() -> None:
    world = FakeWorld()
    set_quotas_part(world, a_team())
    version = tree_version(world)
    set_quotas_part(world, a_team("vision"))

    with pytest.raises(Conflict):
        world.ledger.commit(ConditionCheck(quota_rows.tree_key(), version))


def test_stored_team_keeps_its_declared_order_of_flavors() -> None:
    world = FakeWorld()
    group = {name: {"nvidia.com/gpu": 8} for name in ("ml.p5.48xlarge", "ml.g5.48xlarge", "ml.p4d.24xlarge")}

    set_quotas_part(world, a_team(queue={"groups": [group]}))

    row = world.ledger.get(quota_rows.team_key("nlp"))
    assert row
    # A stored map may be read back in another order.
    assert not any(isinstance(value, dict) for value in row.doc.values())
    assert list(team_setup.load_setup(world.ledger).setup.by_name["nlp"].queue.groups[0]) == list(group)
