"""Published events: the changes that cause them, their ids and schema, and the effect of crashes and repeats."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from evenkeel.domain.health.incidents import AffectedJob, Approval, Incident, StoredRecoveryPlan
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.outbound.events import DATA_OF, OutboundKind
from evenkeel.domain.recovery.manual_cordons import ManualCordon, ManualCordons
from evenkeel.domain.timeline import TimelineEntry
from evenkeel.domain.values import Value
from evenkeel.ports import Key, NotAllowed, Row, RowChange, Table, Throttled
from evenkeel.runtime import entry, wiring
from evenkeel.runtime.settings import Settings
from evenkeel.services.publishing import publish_events
from evenkeel.services.tables import fleet_rows, incident_rows, job_rows, quota_rows
from tests.fakes import FakeWorld
from tests.fakes.world import a_context
from tests.unit.api.seeds import a_fleet_node, a_job, an_incident
from tests.unit.runtime.test_entry import CONTEXT

SCHEMA = json.loads((Path(__file__).parents[3] / "docs/schemas/outbound-events.schema.json").read_text())
AT = datetime(2026, 11, 3, 10, 15, 2, tzinfo=UTC)
SECRET = "s3cret"
A_LIFE = an_incident().life


@pytest.fixture
def world() -> FakeWorld:
    return FakeWorld()


def context_of(world: FakeWorld) -> Any:
    return a_context(world)


def row_change(key: Key, before: Value | None, after: Value | dict[str, Any], version: int = 2) -> RowChange:
    doc = after.to_json() if isinstance(after, Value) else after
    old_row = Row(key, before.to_json(), version - 1) if before else None
    return RowChange(old_row, Row(key, doc, version), AT)


def job_change(before: Job | None, after: Job) -> RowChange:
    return row_change(job_rows.job_key(after.job_id), before, after)


def incident_change(before: Incident | None, after: Incident) -> RowChange:
    return row_change(incident_rows.incident_key(after.incident_id), before, after)


def event_kinds(change: RowChange) -> list[str]:
    return [event.kind for event in publish_events.derive(change, "research")]


def incident_awaiting_approval(number: int = 1) -> StoredRecoveryPlan:
    return StoredRecoveryPlan(
        run=1,
        outcome="ASK",
        repairs_node=True,
        evidence_wait_seconds=60,
        max_repairs=2,
        decision_id=f"dec-{number}",
        reason="Replace the node: no reboot clears Xid 79.",
        answer_by=AT + timedelta(minutes=30),
    )


STATES_OF_A_JOB = [
    (None, "PENDING", 0, "Job Submitted"),
    ("PENDING", "STARTING", 1, None),
    ("STARTING", "RUNNING", 1, "Job Started"),
    ("STARTING", "RUNNING", 2, "Job Moved"),
    ("RUNNING", "RUNNING", 1, None),
    ("RUNNING", "STOPPING", 1, None),
    ("RUNNING", "PENDING", 1, "Job Interrupted"),
    ("STARTING", "PENDING", 1, "Job Interrupted"),
    ("SUSPENDED", "PENDING", 1, None),
    ("STOPPING", "SUSPENDED", 1, "Job Suspended"),
    ("RUNNING", "SUCCEEDED", 1, "Job Ended"),
    ("RUNNING", "FAILED", 3, "Job Ended"),
    ("PENDING", "CANCELLED", 0, "Job Ended"),
]


@pytest.mark.parametrize(("before", "after", "attempt", "kind"), STATES_OF_A_JOB)
def test_job_transition_has_its_event(before: str | None, after: str, attempt: int, kind: str | None) -> None:
    old_job = a_job(state=before) if before else None

    assert event_kinds(job_change(old_job, a_job(state=after, current_attempt=attempt))) == ([kind] if kind else [])


def test_incident_publishes_its_opening_approval_request_and_settlement_once() -> None:
    opened = an_incident()
    awaiting_approval = opened.replace(plan=incident_awaiting_approval())
    awaiting_second_approval = opened.replace(plan=incident_awaiting_approval(2))
    approved = awaiting_approval.replace(
        approval=Approval(decision_id="dec-1", approves=True, by="ana", reason="", at=AT)
    )
    failed = approved.replace(state="WAITING_FOR_PERSON", outcome="Every repair was used.")
    recovered = approved.replace(state="RECOVERED", outcome="The node is back.")

    assert event_kinds(incident_change(None, opened)) == ["Incident Opened"]
    assert event_kinds(incident_change(opened, awaiting_approval)) == ["Incident Needs Person"]
    assert event_kinds(incident_change(awaiting_approval, awaiting_approval.replace(evidence_count=2))) == []
    assert event_kinds(incident_change(awaiting_approval, awaiting_second_approval)) == ["Incident Needs Person"], (
        "ask again: the second plan needs an answer of its own"
    )
    assert event_kinds(incident_change(awaiting_approval, approved)) == []
    assert event_kinds(incident_change(approved, failed)) == ["Incident Needs Person", "Incident Settled"]
    assert event_kinds(incident_change(approved, recovered)) == ["Incident Settled"]
    assert event_kinds(incident_change(failed, failed.replace(paged_at=AT))) == []


def test_joining_and_leaving_of_a_node_are_published() -> None:
    node = a_fleet_node(1)
    key = fleet_rows.node_key(node.life.cluster, node.life.instance_id)

    assert event_kinds(row_change(key, None, node)) == ["Node Joined"]
    assert event_kinds(row_change(key, node, node.replace(accelerators_in_use=8))) == []
    assert event_kinds(row_change(key, node, node.replace(is_gone=True))) == ["Node Left"]
    assert event_kinds(row_change(key, node.replace(is_gone=True), node.replace(is_gone=True, zone="b"))) == []


def test_changes_by_people_name_the_person() -> None:
    entry_row = fleet_rows.automation_event_row(
        TimelineEntry(at=AT, kind="held", text="Held by ana until noon: storm", writer="ana"), "r-1"
    )
    cordon = ManualCordon(life_key=A_LIFE.key, by="ben", reason="swap the NIC", at=AT)
    cordons = row_change(fleet_rows.manual_cordons_key(), ManualCordons(), ManualCordons(cordons=(cordon,)))
    setup = quota_rows.setup_event_row(TimelineEntry(at=AT, kind="setup", text="Team nlp set by cleo: more"), 3)
    policy = {
        "fingerprint": "f",
        "change": {
            "number": 4,
            "changes": {"guardrails": {}},
            "by": "dan",
            "reason": SECRET,
            "at": "2026-11-03T10:15:02Z",
        },
    }
    of_policy = row_change(Key(Table.INCIDENTS, "POLICY#site", "REQUEST#r-1"), None, policy, 1)

    outbound_events = [
        event
        for change in (RowChange(None, entry_row, AT), cordons, RowChange(None, setup, AT), of_policy)
        for event in publish_events.derive(change, "research")
    ]

    assert [(event.kind, event.by) for event in outbound_events] == [
        ("Automation Changed", "ana"),
        ("Node Cordoned", "ben"),
        ("Quota Changed", ""),
        ("Policy Changed", "dan"),
    ]
    assert outbound_events[1].subject == A_LIFE.instance_id
    assert SECRET not in outbound_events[3].model_dump_json(), "only administrators read the policy and its reasons"


def test_change_of_an_internal_row_publishes_nothing() -> None:
    for key in (
        Key(Table.JOBS, "JOB#job-1", "ATTEMPT#00001"),
        Key(Table.JOBS, "JOB#srv-1", "SERVING"),
        Key(Table.INCIDENTS, "EVT#evt-1", "META"),
        Key(Table.INCIDENTS, "DECIDED#dec-1", "META"),
        Key(Table.FLEET, "HOLD#fleet", "META"),
        Key(Table.QUOTAS, "TREE#fleet", "META"),
    ):
        assert event_kinds(row_change(key, None, {"a": 1})) == []


EVERY_KIND = [
    incident_change(None, an_incident()),
    incident_change(an_incident(), an_incident(plan=incident_awaiting_approval())),
    incident_change(an_incident(), an_incident(state="RECOVERED", outcome="The node is back.")),
    *(
        job_change(a_job(state=before) if before else None, a_job(state=after, current_attempt=attempt))
        for before, after, attempt, kind in STATES_OF_A_JOB
        if kind
    ),
    row_change(fleet_rows.node_key("c", "i-1"), None, a_fleet_node(1)),
    row_change(fleet_rows.node_key("c", "i-1"), a_fleet_node(1), a_fleet_node(1).replace(is_gone=True)),
    RowChange(None, fleet_rows.automation_event_row(TimelineEntry(at=AT, kind="held", text="Held."), "r"), AT),
    RowChange(None, quota_rows.setup_event_row(TimelineEntry(at=AT, kind="setup", text="Set."), 3), AT),
    row_change(
        fleet_rows.manual_cordons_key(),
        None,
        ManualCordons(cordons=(ManualCordon(life_key=A_LIFE.key, by="ben", reason="", at=AT),)),
    ),
    row_change(
        Key(Table.INCIDENTS, "POLICY#site", "REQUEST#r"),
        None,
        {"change": {"number": 1, "changes": {}, "by": "dan", "reason": "r", "at": "2026-11-03T10:15:02Z"}},
        1,
    ),
]


BUDGET_KINDS = {OutboundKind.BUDGET_NEAR_END, OutboundKind.BUDGET_RUNS_OUT}
"""Published of the counts of the sweep: tests/unit/services_jobs/test_budget_warnings.py."""


def test_every_published_event_follows_the_schema(world: FakeWorld) -> None:
    for change in EVERY_KIND:
        publish_events.run(change, context_of(world))

    published = world.event_bus.events
    validator = jsonschema.Draft202012Validator(SCHEMA)
    for event in published:
        validator.validate({"source": event.source, "detail-type": event.detail_type, "detail": event.detail})
    assert {event.detail_type for event in published} == set(OutboundKind) - BUDGET_KINDS
    assert set(DATA_OF) == set(OutboundKind)


def test_schema_refuses_an_event_without_its_id(world: FakeWorld) -> None:
    publish_events.run(incident_change(None, an_incident()), context_of(world))
    (event,) = world.event_bus.events
    detail = json.loads(json.dumps(event.detail))
    del detail["metadata"]["id"]

    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"source": event.source, "detail-type": event.detail_type, "detail": detail}, SCHEMA)


def test_repeated_change_is_listed_once_under_one_event_id(world: FakeWorld) -> None:
    change = job_change(a_job(state="STARTING"), a_job(state="RUNNING", current_attempt=1))

    publish_events.run(change, context_of(world))
    publish_events.run(change, context_of(world).replace(now=AT + timedelta(hours=1)))

    first, second = world.event_bus.events
    assert first.detail["metadata"]["id"] == second.detail["metadata"]["id"]
    assert first == second, "a repeat is the same event, byte for byte"
    assert len(world.ledger.by_state(Table.INCIDENTS, "EVT#2026-11").rows) == 1


def test_two_changes_have_different_event_ids() -> None:
    job = a_job(state="RUNNING", current_attempt=1)
    once = row_change(job_rows.job_key(job.job_id), job, job.replace(state="PENDING"), 7)
    later_change = row_change(job_rows.job_key(job.job_id), job, job.replace(state="PENDING"), 12)

    ids = {event.event_id for change in (once, later_change) for event in publish_events.derive(change, "research")}

    assert len(ids) == 2


def test_event_is_published_by_next_delivery_after_a_crash(world: FakeWorld) -> None:
    change = incident_change(None, an_incident())
    context = context_of(world)

    with pytest.raises(Throttled):
        publish_events.run(change, context.replace(event_bus=BusyBus()))
    assert len(world.ledger.by_state(Table.INCIDENTS, "EVT#2026-11").rows) == 1
    publish_events.run(change, context)

    assert [event.detail_type for event in world.event_bus.events] == ["Incident Opened"]
    assert len(world.chat.messages) == 1


def test_private_fields_of_a_job_are_never_published(world: FakeWorld) -> None:
    job = a_job(state="RUNNING", current_attempt=1, reason=f"{SECRET} exit message. Restart 1 of 3 follows.")
    spec = job.spec.replace(
        image=f"registry/{SECRET}:1",
        command=("python", f"--token={SECRET}"),
        env={f"{SECRET}_NAME": SECRET},
        checkpoint_uri=f"s3://{SECRET}/llama",
    )
    secret = job.replace(spec=spec)
    for after in ("PENDING", "FAILED", "SUSPENDED"):
        publish_events.run(job_change(secret, secret.replace(state=after)), context_of(world))

    assert len(world.event_bus.events) == 3
    assert SECRET not in json.dumps([event.detail for event in world.event_bus.events])
    event_rows = world.ledger.by_state(Table.INCIDENTS, "EVT#2026-11").rows
    assert SECRET not in json.dumps([row.doc for row in event_rows])


def test_event_about_2000_jobs_is_shortened() -> None:
    jobs = tuple(AffectedJob(job_id=f"job-{number:04d}", attempt=1) for number in range(2000))

    (event,) = publish_events.derive(incident_change(None, an_incident(affected_jobs=jobs)), "research")

    assert len(json.dumps(event.detail("research"))) < 64_000


# ---------------------------------------------------------------- the stream


def stream_record(change: RowChange, name: str = "MODIFY") -> dict[str, Any]:
    def image(row: Row) -> dict[str, Any]:
        return {
            "pk": {"S": row.key.pk},
            "sk": {"S": row.key.sk},
            "version": {"N": str(row.version)},
            "doc": {"S": json.dumps(row.doc)},
        }

    stream = f"arn:aws:dynamodb:us-west-2:111122223333:table/{change.after.key.table}-t/stream/2026-11-03T10:00:00.000"
    return {
        "eventName": name,
        "eventSourceARN": stream,
        "dynamodb": {
            "ApproximateCreationDateTime": AT.timestamp(),
            "Keys": {},
            "NewImage": image(change.after),
            **({"OldImage": image(change.before)} if change.before else {}),
        },
    }


@pytest.fixture
def world_with_stream(world: FakeWorld) -> Iterator[FakeWorld]:
    settings = Settings.model_validate(
        {
            "JOBS_TABLE": "JOBS-t",
            "INCIDENTS_TABLE": "INCIDENTS-t",
            "FLEET_TABLE": "FLEET-t",
            "EVENKEEL_FLEET": "research",
        }
    )
    ports = {name: getattr(world, name) for name in ("ledger", "event_bus", "chat", "telemetry", "clock")}
    with wiring.use_ports(wiring.Ports(settings, **ports)):
        yield world


def publish_batch(batch: list[dict[str, Any]]) -> None:
    @entry.stream
    def handler(change: entry.StoredChange) -> entry.Json:
        return publish_events.run(change, wiring.context()).to_json()

    handler({"Records": batch}, CONTEXT)


def test_changes_of_one_stream_batch_are_published_in_order(world_with_stream: FakeWorld) -> None:
    job = a_job(state="STARTING", current_attempt=1)
    batch = [
        stream_record(job_change(job, job.replace(state="RUNNING"))),
        stream_record(job_change(job.replace(state="RUNNING"), job.replace(state="SUCCEEDED"))),
        {**stream_record(job_change(job, job)), "eventName": "REMOVE"},
    ]

    publish_batch(batch)

    assert [event.detail_type for event in world_with_stream.event_bus.events] == ["Job Started", "Job Ended"]
    assert world_with_stream.event_bus.events[0].detail["metadata"]["occurredAt"] == "2026-11-03T10:15:02.000000Z"


def test_unreadable_change_does_not_stop_other_changes(world_with_stream: FakeWorld) -> None:
    job = a_job(state="STARTING", current_attempt=1)
    bad = stream_record(job_change(job, job.replace(state="RUNNING")))
    bad["dynamodb"]["NewImage"]["doc"] = {"S": '{"state": "NONSENSE"}'}

    publish_batch([bad, stream_record(job_change(job, job.replace(state="RUNNING")))])

    assert [event.detail_type for event in world_with_stream.event_bus.events] == ["Job Started"]
    assert [line.message for line in world_with_stream.telemetry.lines if line.level == "ERROR"] == [
        "ChangeNotPublished"
    ]


class BusyBus:
    """A bus that accepts nothing."""

    def publish(self, events: Any) -> None:
        raise Throttled("the bus is busy")


def test_transient_failure_returns_the_batch_to_the_stream(world_with_stream: FakeWorld) -> None:
    job = a_job(state="STARTING", current_attempt=1)
    ports = {name: getattr(world_with_stream, name) for name in ("ledger", "chat", "telemetry", "clock")}

    with (
        wiring.use_ports(wiring.Ports(wiring.ports().settings, **ports, event_bus=BusyBus())),
        pytest.raises(Throttled),
    ):
        publish_batch([stream_record(job_change(job, job.replace(state="RUNNING")))])


def test_denied_publication_is_tried_again(world_with_stream: FakeWorld) -> None:
    """A missing permission is a fault of the deployment, so the events wait in the stream."""
    job = a_job(state="STARTING", current_attempt=1)
    ports = {name: getattr(world_with_stream, name) for name in ("ledger", "chat", "telemetry", "clock")}

    class Denied(BusyBus):
        def publish(self, events: Any) -> None:
            raise NotAllowed("no policy allows events:PutEvents")

    with (
        wiring.use_ports(wiring.Ports(wiring.ports().settings, **ports, event_bus=Denied())),
        pytest.raises(NotAllowed),
    ):
        publish_batch([stream_record(job_change(job, job.replace(state="RUNNING")))])
