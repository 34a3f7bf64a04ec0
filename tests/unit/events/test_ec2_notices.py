"""EC2 notices before the end of an instance."""

from datetime import UTC, datetime
from typing import Any

import pytest

from evenkeel.domain.health.group_facts import GroupFactKind
from evenkeel.domain.health.incidents import FactKind
from evenkeel.events.outcomes import Ignored
from tests.unit.events.samples import Json, group_facts, node_facts, parse_event, sample_event, without_field

SPOT = "ec2-spot-interruption"
STATE = "ec2-instance-state-change"
RESERVATION = "ec2-capacity-reservation-interruption"
BLOCK = "ec2-capacity-block-expiration"


def at(clock: str) -> datetime:
    return datetime.fromisoformat(f"2026-11-03T{clock}").replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("name", "changes", "fault", "deadline"),
    [
        (SPOT, {}, "ec2:spot_interruption", at("13:04:10")),
        (SPOT, {"instance-action": "stop"}, "ec2:spot_interruption", at("13:04:10")),
        (SPOT, {"instance-action": "hibernate"}, "ec2:spot_interruption", at("13:02:10")),
        ("ec2-rebalance-recommendation", {}, "ec2:rebalance_recommendation", None),
        (STATE, {}, "ec2:state_stopping", at("13:04:12")),
        (STATE, {"state": "stopping"}, "ec2:state_stopping", at("13:04:12")),
        (RESERVATION, {}, "ec2:capacity_reservation_interruption", at("15:32:00")),
    ],
)
def test_each_ec2_notice_gives_its_fault_and_deadline(
    name: str, changes: Json, fault: str, deadline: datetime | None
) -> None:
    event = sample_event(name, **changes)

    [fact] = node_facts(event)

    assert (fact.kind, fact.fault_key, fact.deadline_at) == (FactKind.FAULT, fault, deadline)
    assert fact.instance_id == event["detail"]["instance-id"]


@pytest.mark.parametrize("resources", ["i-0d4f8a6127be9c053", ["arn:aws:ec2:us-west-2a:instance/i-other"], [], None])
def test_ec2_notice_is_read_without_its_resources_field(resources: Any) -> None:
    assert node_facts(sample_event(RESERVATION) | {"resources": resources}) == node_facts(sample_event(RESERVATION))


@pytest.mark.parametrize("state", ["pending", "running"])
def test_notice_about_a_starting_instance_is_ignored(state: str) -> None:
    assert isinstance(parse_event(sample_event(STATE, state=state)), Ignored)


def test_shutting_down_and_terminated_are_one_fact() -> None:
    first = sample_event(STATE, state="shutting-down")
    last = sample_event(STATE, state="terminated") | {"time": "2026-11-03T13:09:59Z", "id": "another"}

    [[fact], [other]] = node_facts(first), node_facts(last)
    assert fact.fact_key == other.fact_key


def test_second_stop_of_an_instance_is_another_fact() -> None:
    first = sample_event(STATE, state="stopping")
    second = first | {"time": "2026-11-03T18:09:59Z"}

    [[fact], [other]] = node_facts(first), node_facts(second)
    assert fact.fact_key != other.fact_key


@pytest.mark.parametrize(
    "spelling", ["Capacity Block Expiration Warning", "Capacity Block Reservation Expiration Warning"]
)
def test_expiring_capacity_block_is_a_fact_of_its_reservation(spelling: str) -> None:
    [fact] = group_facts(sample_event(BLOCK) | {"detail-type": spelling})

    assert (fact.kind, fact.code) == (GroupFactKind.RESERVATION_EXPIRING, "cr-06b1d8f3a7c24e905")
    assert (fact.fault_key, fact.deadline_at) == ("ec2:capacity_block_expiring", at("15:30:00"))


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (sample_event(STATE, state=""), "EVENT_UNKNOWN_STATUS"),
        (sample_event(STATE, state="stop"), "EVENT_UNKNOWN_STATUS"),
        (sample_event(SPOT, **{"instance-action": "detonate"}), "EVENT_UNKNOWN_STATUS"),
        (sample_event(SPOT, **{"instance-id": "i-12345678abcdefghi"}), "EVENT_BAD_ID"),
        (sample_event(SPOT, **{"instance-id": 7}), "EVENT_BAD_TYPE"),
        (without_field(sample_event(SPOT), "instance-action"), "EVENT_BAD_TYPE"),
        (sample_event(SPOT) | {"time": 1793700902}, "EVENT_BAD_TYPE"),
        (sample_event(RESERVATION, **{"instance-termination-time": "soon"}), "EVENT_BAD_TIME"),
        (without_field(sample_event(RESERVATION), "instance-termination-time"), "EVENT_BAD_TYPE"),
        (sample_event(BLOCK, **{"capacity-reservation-id": "../x"}), "EVENT_BAD_ID"),
        (sample_event(BLOCK, **{"end-date": "1970-01-01T00:00:00Z"}), "EVENT_BAD_TIME"),
    ],
)
def test_broken_ec2_notice_is_malformed(event: Json, code: str) -> None:
    assert parse_event(event).code == code
