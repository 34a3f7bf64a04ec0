"""Validation of pools, decaying shortages, and environments of pools that do not suit a job."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from evenkeel.domain.capacity.compatibility import EnvironmentNeeds, PoolEnvironment, differences
from evenkeel.domain.capacity.pools import LaunchDelay, Market
from evenkeel.domain.capacity.shortages import MAX_HOLD_SECONDS, MIN_WEIGHT, Shortages
from tests.unit.scheduling.pool_builders import NOW, a_pool, a_reservation, at

SPOT = ("g5.48xlarge", "a", Market.SPOT)


@pytest.mark.parametrize(
    ("market", "expected"),
    [
        (Market.COMMITTED, {"keeps_spares"}),
        (Market.RESERVED, {"keeps_spares"}),
        (Market.SPOT, {"is_rented", "can_be_reclaimed", "is_discounted"}),
        (Market.ON_DEMAND, {"is_rented", "is_rented_firmly"}),
    ],
)
def test_each_market_has_its_properties(market: Market, expected: set[str]) -> None:
    names = ("is_rented", "is_rented_firmly", "can_be_reclaimed", "is_discounted", "keeps_spares")

    assert {name for name in names if getattr(market, name)} == expected


@pytest.mark.parametrize(
    ("market", "change", "message"),
    [
        (Market.SPOT, {"micros_per_node_hour": 0}, "a rented pool needs microsPerNodeHour"),
        (Market.COMMITTED, {"micros_per_node_hour": 1}, "only a rented pool has microsPerNodeHour"),
        (Market.RESERVED, {"reservation": None}, "a start and an end"),
        (Market.SPOT, {"launch": {"p50Seconds": 200, "p90Seconds": 100}}, "p90Seconds must not be less"),
    ],
)
def test_invalid_pool_is_refused(market: Market, change: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        a_pool(market, **change)


def test_pool_needs_a_limit() -> None:
    facts = a_pool(Market.ON_DEMAND).to_json()
    del facts["maxNodes"]

    with pytest.raises(ValidationError, match="maxNodes"):
        type(a_pool()).model_validate(facts)


def test_gang_launch_time_is_that_of_the_slowest_node() -> None:
    delay = LaunchDelay(p50_seconds=180, p90_seconds=360)

    assert delay.gang_seconds(1) == pytest.approx(180)
    assert delay.gang_seconds(64) > delay.gang_seconds(8) > 360


def test_reservation_is_usable_until_termination_starts() -> None:
    assert a_reservation(7200).usable_until == at(5400)


def test_capacity_refusal_blocks_only_its_market_for_three_minutes() -> None:
    memory = Shortages().with_refusal(*SPOT, NOW)

    assert memory.unavailable_until(*SPOT, at(1)) == at(180)
    assert memory.unavailable_until(*SPOT, at(180)) is None
    assert memory.unavailable_until("g5.48xlarge", "b", Market.SPOT, at(1)) is None
    assert memory.unavailable_until("g5.48xlarge", "a", Market.ON_DEMAND, at(1)) is None


def test_pool_is_avoided_longer_after_each_capacity_refusal() -> None:
    memory = Shortages().with_refusal(*SPOT, NOW).with_refusal(*SPOT, at(180))
    second = memory.unavailable_until(*SPOT, at(181))
    later = Shortages().with_refusal(*SPOT, NOW).with_refusal(*SPOT, at(7200)).unavailable_until(*SPOT, at(7201))

    assert second is not None
    assert later is not None
    assert (second - at(180)).total_seconds() == pytest.approx(343, abs=5)
    assert (later - at(7200)).total_seconds() == pytest.approx(188, abs=5)


def test_launched_node_clears_the_shortage() -> None:
    assert Shortages().with_refusal(*SPOT, NOW).with_success(*SPOT) == Shortages()


def test_refusal_older_than_the_stored_one_changes_nothing() -> None:
    memory = Shortages().with_refusal(*SPOT, NOW)

    assert memory.with_refusal(*SPOT, at(-60)) == memory


@given(st.lists(st.tuples(st.integers(0, 40_000), st.sampled_from("abc")), max_size=60))
def test_number_of_shortages_is_bounded_and_they_expire(refusals: list[tuple[int, str]]) -> None:
    memory = Shortages()
    for seconds, zone in sorted(refusals):
        memory = memory.with_refusal("g5.48xlarge", zone, Market.SPOT, at(seconds))
        until = memory.unavailable_until("g5.48xlarge", zone, Market.SPOT, at(seconds))
        assert until is not None
        assert 180 <= (until - at(seconds)).total_seconds() <= MAX_HOLD_SECONDS
        assert all(entry.weight_at(at(seconds)) >= MIN_WEIGHT for entry in memory.entries)
    assert len(memory.entries) <= 3


HERE = PoolEnvironment(accelerator="a100", accelerator_memory_gib=80, fabric="efa", storage={"data": "fs-1"})


@pytest.mark.parametrize(
    ("needs", "environment", "message"),
    [
        (EnvironmentNeeds(architectures=("arm64",)), HERE, "image is for arm64"),
        (EnvironmentNeeds(accelerator_memory_gib=60), HERE.replace(accelerator_memory_gib=40), "needs 60 GiB on each"),
        (
            EnvironmentNeeds(accelerator_memory_gib=60),
            HERE.replace(accelerator_memory_gib=0),
            "accelerators is unknown",
        ),
        (EnvironmentNeeds(accelerators=("h100",)), HERE, "runs on h100"),
        (EnvironmentNeeds(accelerators=("h100",)), HERE.replace(accelerator=""), "an unknown model"),
        (EnvironmentNeeds(fabric="efa"), HERE.replace(fabric=""), "needs the network efa"),
        (
            EnvironmentNeeds(storage={"data": "fs-1"}),
            HERE.replace(storage={"data": "fs-2"}),
            "but fs-1 in the job's cluster",
        ),
        (EnvironmentNeeds(storage={"models": "fs-1"}), HERE, "No storage is known for claim models"),
    ],
)
def test_environment_needs_that_a_pool_lacks_are_reported(
    needs: EnvironmentNeeds, environment: PoolEnvironment, message: str
) -> None:
    texts = differences(needs, environment)

    assert len(texts) == 1
    assert message in texts[0]


def test_pool_that_meets_all_environment_needs_has_no_differences() -> None:
    needs = EnvironmentNeeds(
        architectures=("amd64", "arm64"),
        accelerators=("a100", "h100"),
        accelerator_memory_gib=80,
        fabric="efa",
        storage={"data": "fs-1"},
    )

    assert differences(needs, HERE) == ()
    assert differences(EnvironmentNeeds(), PoolEnvironment()) == ()
