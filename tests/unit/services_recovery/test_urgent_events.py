"""A batch of events: the urgent ones first, and no event with more work than one invocation can do."""

import copy
import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.nodes import FleetNode, NodeLife
from evenkeel.events import aws_health, envelope
from evenkeel.events.outcomes import ParsedEvent
from evenkeel.ports import Put, Throttled
from evenkeel.runtime import wiring
from evenkeel.services.tables import fleet_rows, rows
from tests.fakes import FakeWorld
from tests.fakes.cluster import CLUSTER, instance_id
from tests.fakes.counting import CountedCalls
from tests.fakes.system import A_MOMENT
from tests.unit.services_recovery.test_handlers import EVENTS, handler

MACHINES, HEALTH_EVENTS = 300, 9
SPOT_MACHINE = MACHINES * HEALTH_EVENTS + 1
MOST_CALLS_BEFORE_SPOT = 12


def sample_event(name: str, number: int) -> dict[str, Any]:
    event: dict[str, Any] = json.loads((EVENTS / name).read_text())
    return event | {"id": f"event-{number}"}


def a_health_event(number: int, machines: range) -> dict[str, Any]:
    event = copy.deepcopy(sample_event("aws-health-scheduled-change.json", number))
    event["detail"]["affectedEntities"] = [{"entityValue": instance_id(machine)} for machine in machines]
    event["detail"]["eventArn"] += str(number)
    return event


def a_spot_notice(number: int) -> dict[str, Any]:
    event = sample_event("ec2-spot-interruption.json", 0)
    event["detail"]["instance-id"] = instance_id(number)
    return event


def event_storm() -> list[dict[str, Any]]:
    health = [
        a_health_event(number, range(number * MACHINES + 1, (number + 1) * MACHINES + 1))
        for number in range(HEALTH_EVENTS)
    ]
    return [*health, a_spot_notice(SPOT_MACHINE)]


@pytest.fixture
def world() -> Iterator[FakeWorld]:
    fake = FakeWorld(size=1)
    for number in range(1, SPOT_MACHINE + 1):
        life = NodeLife(cluster=CLUSTER, instance_id=instance_id(number), launched_at=A_MOMENT)
        node = FleetNode(life=life, slot=life.key, node_name=f"node-{number}", changed_at=A_MOMENT)
        fake.ledger.commit(Put(fleet_rows.node_row(CLUSTER, instance_id(number), node.to_json(), 0, None)))
    with wiring.use_ports(fake.as_ports()):
        yield fake


def deliver_batch(documents: list[dict[str, Any]], *, seconds_left: Callable[[], float] = lambda: 60.0) -> list[str]:
    """Deliver a batch, and return the ids of the messages that failed."""
    context = SimpleNamespace(
        function_name="receive_event",
        aws_request_id="request-1",
        get_remaining_time_in_millis=lambda: int(1000 * seconds_left()),
    )
    records = [
        {"messageId": document["id"], "body": json.dumps(document), "receiptHandle": f"receipt-{document['id']}"}
        for document in documents
    ]
    answer = handler("receive_event")({"Records": records}, context)
    return [failure["itemIdentifier"] for failure in answer["batchItemFailures"]]


def incidents_in_order(world: FakeWorld) -> list[Incident]:
    """Return the incidents in the order in which they were opened."""
    incident_rows = [row for key, row in world.ledger.rows.items() if key.pk.startswith("INC#") and key.sk == "META"]
    return [rows.decode(row, Incident) for row in incident_rows]


def test_spot_notice_behind_nine_health_events_opens_first(world: FakeWorld) -> None:
    counted = CountedCalls(world)
    calls_before_start: list[int] = []
    start = world.workflows.start

    def noting_start(*args: Any) -> bool:
        calls_before_start.append(counted.calls.total())
        return start(*args)

    world.workflows.start = noting_start  # type: ignore[assignment, method-assign]  # notes when each recovery starts
    vars(world).update(counted.ports)
    with wiring.use_ports(world.as_ports()):
        assert deliver_batch(event_storm()) == []

    assert incidents_in_order(world)[0].life.instance_id == instance_id(SPOT_MACHINE)
    assert calls_before_start[0] <= MOST_CALLS_BEFORE_SPOT
    # Each part of a large event is queued separately. This invocation ingests no machine of the event.
    assert len(incidents_in_order(world)) == 1
    assert counted.calls["inbox.put"] == HEALTH_EVENTS * MACHINES / aws_health.MAX_ENTITIES


def test_split_large_event_opens_one_incident_per_machine(world: FakeWorld) -> None:
    health_event = a_health_event(1, range(1, 26))

    deliver_batch([health_event])
    parts = world.inbox.queued
    deliver_batch(parts)
    deliver_batch([*parts, health_event])

    assert {incident.life.instance_id for incident in incidents_in_order(world)} == {
        instance_id(number) for number in range(1, 26)
    }
    assert len(incidents_in_order(world)) == 25
    assert {part["id"] for part in parts} <= set(world.raw_events.kept)
    assert len({part["id"] for part in parts}) == 3


def test_parts_of_a_split_event_contain_all_its_facts() -> None:
    whole = envelope.parse(json.dumps(a_health_event(1, range(1, 36))).encode())
    assert isinstance(whole, ParsedEvent)
    parts = [envelope.parse(json.dumps(part).encode()) for part in whole.smaller_events]

    facts = [fact for part in parts if isinstance(part, ParsedEvent) for fact in part.facts]

    assert [fact.fact_key for fact in facts] == [fact.fact_key for fact in whole.facts]
    assert all(isinstance(part, ParsedEvent) and not part.smaller_events for part in parts)


def test_event_of_few_machines_is_not_split() -> None:
    parsed = envelope.parse(json.dumps(a_health_event(1, range(1, aws_health.MAX_ENTITIES + 1))).encode())

    assert isinstance(parsed, ParsedEvent)
    assert parsed.smaller_events == ()


def test_event_returns_to_queue_if_a_part_cannot_be_queued(world: FakeWorld) -> None:
    put, queued = world.inbox.put, world.inbox.queued

    def queue_only_two(document: dict[str, Any]) -> None:
        if len(queued) == 2:
            raise Throttled("queue")
        put(document)

    world.inbox.put = queue_only_two  # type: ignore[method-assign, assignment]  # the queue fails once

    assert deliver_batch([a_health_event(1, range(1, 36)), a_spot_notice(SPOT_MACHINE)]) == ["event-1"]
    assert world.inbox.again == [("receipt-event-1", 10)]


def test_invocation_near_its_timeout_returns_remaining_events_to_queue(world: FakeWorld) -> None:
    left = iter([60.0, 5.0, 5.0])

    failed = deliver_batch(
        [a_health_event(1, range(1, 3)), a_health_event(2, range(3, 5)), a_spot_notice(SPOT_MACHINE)],
        seconds_left=lambda: next(left),
    )

    assert failed == ["event-1", "event-2"]
    assert [incident.life.instance_id for incident in incidents_in_order(world)] == [instance_id(SPOT_MACHINE)]
    assert {receipt for receipt, _ in world.inbox.again} == {"receipt-event-1", "receipt-event-2"}
