"""AWS Health events: one event about planned work or problems of many nodes."""

from datetime import UTC, datetime
from typing import Any

import pytest

from evenkeel.domain.health.faults import default_catalogue
from evenkeel.domain.health.group_facts import GroupFactKind
from evenkeel.domain.health.incidents import FactKind
from evenkeel.events.outcomes import Ignored, Unknown
from tests.unit.events.samples import Json, group_facts, node_facts, parse_event, sample_event, without_field

HEALTH = "aws-health-scheduled-change"
FIRST, SECOND, THIRD = "i-0c93e1b47fa06d528", "i-0d4f8a6127be9c053", "i-0f21b6c8d05e7a394"


def affected_entities(*values: str, status: str = "PENDING") -> list[Json]:
    return [{"entityValue": value, "status": status} for value in values]


def fact_keys(event: Json) -> set[str]:
    return {fact.fact_key for fact in node_facts(event)}


def test_health_event_gives_one_fact_for_each_affected_instance() -> None:
    facts = node_facts(sample_event(HEALTH))

    assert [fact.instance_id for fact in facts] == [FIRST, SECOND]
    assert {(fact.kind, fact.fault_key) for fact in facts} == {(FactKind.FAULT, "health:instance_retirement")}
    assert {fact.deadline_at for fact in facts} == {datetime(2026, 11, 17, 14, tzinfo=UTC)}
    assert {fact.observed_at for fact in facts} == {datetime(2026, 11, 3, 8, 0, 2, tzinfo=UTC)}


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED", "health:instance_retirement"),
        ("AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED", "health:instance_reboot"),
        ("AWS_EC2_SYSTEM_REBOOT_MAINTENANCE_SCHEDULED", "health:instance_reboot"),
        ("AWS_EC2_INSTANCE_NETWORK_MAINTENANCE_SCHEDULED", "health:network_or_power"),
        ("AWS_EC2_INSTANCE_POWER_MAINTENANCE_SCHEDULED", "health:network_or_power"),
        ("AWS_EC2_INSTANCE_STORE_DRIVE_PERFORMANCE_DEGRADED", "health:drive_degraded"),
        ("AWS_EC2_ULTRASERVER_MAINTENANCE_INITIATED", "health:ultraserver_maintenance"),
        ("AWS_EC2_ULTRASERVER_CAPACITY_REDUCED", "health:ultraserver_maintenance"),
    ],
)
def test_each_type_code_of_aws_health_gives_its_fault(code: str, fault: str) -> None:
    facts = node_facts(sample_event(HEALTH, eventTypeCode=code))

    assert {fact.fault_key for fact in facts} == {fault}
    assert fault in default_catalogue()


def test_withdrawn_maintenance_is_a_recovery_of_every_instance() -> None:
    facts = node_facts(sample_event(HEALTH, statusCode="closed"))

    assert [fact.instance_id for fact in facts] == [FIRST, SECOND, THIRD]
    assert {(fact.kind, fact.fault_key, fact.deadline_at) for fact in facts} == {
        (FactKind.RECOVERED, "health:instance_retirement", None)
    }


def test_maintenance_of_an_ultra_server_gives_a_group_fact() -> None:
    rack = "us-0a1b2c3d4e5f60718"
    started = sample_event(
        HEALTH, eventTypeCode="AWS_EC2_ULTRASERVER_MAINTENANCE_INITIATED", affectedEntities=affected_entities(rack)
    )
    ended = sample_event(
        HEALTH, eventTypeCode="AWS_EC2_ULTRASERVER_MAINTENANCE_COMPLETED", affectedEntities=affected_entities(rack)
    )

    [first], [last] = group_facts(started), group_facts(ended)
    assert (first.kind, first.code, first.fault_key) == (
        GroupFactKind.RACK_MAINTENANCE,
        rack,
        "health:ultraserver_maintenance",
    )
    assert (last.code, last.fault_key, last.deadline_at) == (rack, "", None)


@pytest.mark.parametrize(
    "changes",
    [
        {"communicationId": "other-2", "page": "2", "totalPages": "2"},
        {"backupEvent": "true"},
        {"lastUpdatedTime": "Wed, 4 Nov 2026 08:00:02 GMT", "statusCode": "open"},
    ],
)
def test_copies_and_updates_of_one_health_event_are_one_fact(changes: Json) -> None:
    assert fact_keys(sample_event(HEALTH, **changes) | {"id": "another"}) == fact_keys(sample_event(HEALTH))


@pytest.mark.parametrize(
    "changes", [{"startTime": "Wed, 18 Nov 2026 14:00:00 GMT"}, {"affectedAccount": "444455556666"}, {"eventArn": "a"}]
)
def test_health_event_of_another_date_account_or_arn_differs(changes: Json) -> None:
    assert fact_keys(sample_event(HEALTH, **changes)).isdisjoint(fact_keys(sample_event(HEALTH)))


@pytest.mark.parametrize(
    "text", ["Mon, 17 Nov 2026 14:00:00 GMT", "Tue, 17 Nov 2026 14:00:00 GMT", "Xyz, 17 Nov 2026 14:00:00 GMT"]
)
def test_health_event_date_with_a_wrong_weekday_is_read(text: str) -> None:
    assert node_facts(sample_event(HEALTH, startTime=text)) == node_facts(sample_event(HEALTH))


def test_health_event_day_may_have_one_or_two_digits() -> None:
    one_digit_day, two_digit_day = (
        sample_event(HEALTH, startTime=f"Tue, {day} Dec 2026 14:00:00 GMT") for day in ("3", "03")
    )

    assert node_facts(one_digit_day) == node_facts(two_digit_day)


def test_health_event_about_a_present_fault_has_no_deadline() -> None:
    facts = node_facts(sample_event(HEALTH, eventTypeCategory="issue", statusCode="open"))

    assert {fact.deadline_at for fact in facts} == {None}


def test_unknown_entity_status_counts_as_affected() -> None:
    [fact] = node_facts(sample_event(HEALTH, affectedEntities=affected_entities(FIRST, status="WOBBLY")))

    assert fact.instance_id == FIRST


@pytest.mark.parametrize(
    "changes", [{"affectedEntities": []}, {"affectedEntities": affected_entities("vol-1", "111122223333")}]
)
def test_health_event_without_instances_is_ignored(changes: Json) -> None:
    assert isinstance(parse_event(sample_event(HEALTH, **changes)), Ignored)
    assert isinstance(parse_event(without_field(sample_event(HEALTH), "affectedEntities")), Ignored)


def test_public_health_event_is_ignored() -> None:
    assert isinstance(parse_event(sample_event(HEALTH, eventScopeCode="PUBLIC")), Ignored)


def test_unknown_health_type_code_with_instances_is_unknown() -> None:
    event_with_instances = sample_event(HEALTH, eventTypeCode="AWS_EC2_SOMETHING_NEW")

    assert isinstance(parse_event(event_with_instances), Unknown)
    assert isinstance(parse_event(without_field(event_with_instances, "affectedEntities")), Ignored)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"statusCode": "odd"}, "EVENT_UNKNOWN_STATUS"),
        ({"startTime": "2026-11-17T14:00:00Z"}, "EVENT_BAD_TIME"),
        ({"startTime": "Tue, 31 Feb 2026 14:00:00 GMT"}, "EVENT_BAD_TIME"),
        ({"startTime": "Tue, 17 Nov 1970 14:00:00 GMT"}, "EVENT_BAD_TIME"),
        ({"startTime": 7}, "EVENT_BAD_TYPE"),
        ({"affectedEntities": "none"}, "EVENT_BAD_TYPE"),
        ({"affectedEntities": ["i-0c93e1b47fa06d528"]}, "EVENT_BAD_TYPE"),
        ({"affectedEntities": [{"status": "PENDING"}]}, "EVENT_BAD_TYPE"),
        ({"eventTypeCode": None}, "EVENT_BAD_TYPE"),
        ({"eventArn": "a\u200bb"}, "EVENT_BAD_TEXT"),
    ],
)
def test_broken_health_event_is_malformed(changes: dict[str, Any], code: str) -> None:
    assert parse_event(sample_event(HEALTH, **changes)).code == code
