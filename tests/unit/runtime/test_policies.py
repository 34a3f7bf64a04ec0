"""The site policy is applied within half a minute.

A failure to read it never stops a function, and is always reported.
"""

from datetime import timedelta
from typing import Any

import pytest

from evenkeel.domain.policy import Policy, PolicyChange
from evenkeel.domain.policy_section import Mode
from evenkeel.ports import Key, NoPolicyInForce, Put, Row, Table, Throttled, site_policy_key
from evenkeel.runtime.site_policy import FRESH, SitePolicy
from tests.fakes import FakeWorld
from tests.fakes.system import A_MOMENT

BASE = Policy()


def a_change(**changes: object) -> PolicyChange:
    return PolicyChange(number=1, changes=changes, by="role/Admin", reason="Ours.", at=A_MOMENT)


def store_policy(world: FakeWorld, change: PolicyChange, version: int = 0) -> None:
    world.ledger.commit(Put(Row(site_policy_key(Table.INCIDENTS), change.to_json(), version)))


def a_site_policy(world: FakeWorld) -> SitePolicy:
    return SitePolicy(BASE, Table.INCIDENTS, world)


def test_shipped_policy_is_in_force_until_a_policy_change() -> None:
    assert a_site_policy(FakeWorld()).current_policy() == BASE


def test_policy_change_applies_after_the_cache_expires() -> None:
    world = FakeWorld()
    policies = a_site_policy(world)
    before = policies.current_policy()

    store_policy(world, a_change(faults={"xid:94": {"ladder": ["replace"]}}))
    at_once = policies.current_policy()
    world.clock.advance(FRESH.total_seconds())
    later = policies.current_policy()

    assert before == at_once == BASE
    assert later.catalogue["xid:94"].ladder == ("replace",)
    assert later.hash != BASE.hash


def test_policy_is_read_once_together_with_the_first_rows() -> None:
    fake = FakeWorld()
    store_policy(fake, a_change(faults={"xid:94": {"ladder": ["replace"]}}))
    reads: list[tuple[Key, ...]] = []

    class CountingLedger:
        def batch_get(self, *keys: Key) -> tuple[Row | None, ...]:
            reads.append(keys)
            return fake.ledger.batch_get(*keys)

    ports = fake.as_ports()
    ports.__dict__ |= {"ledger": CountingLedger(), "policies": a_site_policy(fake)}
    key = Key(Table.INCIDENTS, "INC#inc-1", "META")

    first, second = (ports.context().read_rows(key) for _ in range(2))

    assert (first, second) == ((None,), (None,))
    assert reads == [(key, site_policy_key(Table.INCIDENTS)), (key,)]
    assert ports.context().policy.catalogue["xid:94"].ladder == ("replace",)


def test_unusable_policy_change_falls_back_and_alerts() -> None:
    world = FakeWorld()
    store_policy(world, a_change(repair={"noLonger": 1}).replace(before={"repair": {"maxAttempts": 2}}))

    policy = a_site_policy(world).current_policy()

    assert policy.repair.max_attempts == 2
    assert world.telemetry.totals["PolicyInvalid"] == 1
    assert [line.level for line in world.telemetry.lines if line.message == "SitePolicyInvalid"] == ["ERROR"]


@pytest.mark.parametrize("has_read_shipped_policy", [False, True])
@pytest.mark.parametrize("before", [None, {}, {"faults": {"xid:9999": {}}}])
def test_shipped_policy_never_replaces_unusable_site_policy(
    before: dict[str, Any] | None, has_read_shipped_policy: bool
) -> None:
    world = FakeWorld()
    policies = a_site_policy(world)
    if has_read_shipped_policy:
        assert policies.current_policy() == BASE
        world.clock.advance(FRESH.total_seconds())
    change = a_change(modes=[{"mode": "observe", "noLonger": 1}]).replace(before=before)
    store_policy(world, change)

    for _ in range(2):
        with pytest.raises(NoPolicyInForce, match=r"change 1 by role/Admin: modes\.0\.noLonger"):
            policies.current_policy()

    assert world.telemetry.totals["PolicyInvalid"] == 2
    assert policies.in_force()[:2] == (None, None)
    assert policies.change == change
    assert [rule.mode for rule in policies.policy_to_show().modes] == [Mode.OBSERVE]


def test_known_policy_stays_while_the_new_change_is_unusable() -> None:
    world = FakeWorld()
    policies = a_site_policy(world)
    store_policy(world, a_change(repair={"maxAttempts": 2}))
    known_policy = policies.current_policy()
    store_policy(world, a_change(repair={"noLonger": 1}), version=1)
    world.clock.advance(FRESH.total_seconds())

    assert policies.current_policy() is known_policy
    assert policies.in_force().number == 1
    assert "repair.noLonger" in policies.in_force().refused


@pytest.mark.parametrize("was_read", [True, False])
def test_unreadable_policy_row_keeps_the_known_policy_and_alerts(was_read: bool) -> None:
    world = FakeWorld()
    policies, change = a_site_policy(world), a_change(repair={"maxAttempts": 2})
    store_policy(world, change)
    before = policies.current_policy() if was_read else None
    unreadable = {**change.to_json(), "number": "two"}
    world.ledger.commit(Put(Row(site_policy_key(Table.INCIDENTS), unreadable, 1)))
    world.clock.advance(FRESH.total_seconds())

    if was_read:
        assert policies.current_policy() == policies.current_policy() == before
        assert policies.in_force().policy == before
        assert "cannot read number='two'" in policies.in_force().refused
        store_policy(world, change, version=2)
        world.clock.advance(FRESH.total_seconds())
        policies.current_policy()
        assert not policies.in_force().refused
    else:
        with pytest.raises(NoPolicyInForce, match="POLICY#site META: this release cannot read number='two'"):
            policies.current_policy()

    assert world.telemetry.totals["PolicyInvalid"] == 1
    (line,) = [line for line in world.telemetry.lines if line.message == "SitePolicyInvalid"]
    assert (line.level, "cannot read number" in str(line)) == ("ERROR", True)


class _UnreachableLedger:
    """A ledger that can be unreachable for a while."""

    def __init__(self, world: FakeWorld) -> None:
        self.ledger = self
        self.clock, self.telemetry = world.clock, world.telemetry
        self.inner = world.ledger
        self.is_silent = False

    def get(self, key: Key) -> Row | None:
        if self.is_silent:
            raise Throttled("too many reads")
        return self.inner.get(key)


def test_last_read_policy_applies_while_the_table_fails() -> None:
    world = FakeWorld()
    store_policy(world, a_change(repair={"maxAttempts": 2}))
    silent = _UnreachableLedger(world)
    policies = SitePolicy(BASE, Table.INCIDENTS, silent)  # type: ignore[arg-type]  # only `get` is called
    read = policies.current_policy()

    silent.is_silent = True
    world.clock.advance(timedelta(hours=1).total_seconds())

    assert policies.current_policy() is read


def test_function_that_never_read_a_policy_decides_nothing() -> None:
    silent = _UnreachableLedger(FakeWorld())
    silent.is_silent = True

    with pytest.raises(Throttled):
        SitePolicy(BASE, Table.INCIDENTS, silent).current_policy()  # type: ignore[arg-type]  # as above
