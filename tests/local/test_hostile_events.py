"""Events on the running data centre: hostile events, concurrent copies, late events, and events in the wrong order."""

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from evenkeel.adapters.dynamo_ledger import document_of
from evenkeel_local.data_centre import DataCentre
from evenkeel_local.drills import SETTLED, await_all_nodes_ready, dead_letter_counts
from tests.local import signals
from tests.waiting import until

Json = dict[str, Any]

BAD_EVENTS = Path(__file__).parent.parent / "fixtures" / "events" / "bad"
CODES = {
    "bad-instance-id": "EVENT_BAD_ID",
    "epoch-seconds": "EVENT_BAD_TIME",
    "hostile-strings": "EVENT_BAD_TEXT",
    "missing-detail": "EVENT_NO_DETAIL",
    "oversize-detail": "EVENT_TOO_LARGE",
    "unknown-status": "EVENT_UNKNOWN_STATUS",
    "wrong-types": "EVENT_BAD_TYPE",
}
"""The malformed samples, each with its error code."""
UNKNOWN = "unknown-detail-type"
RECOVERY_SECONDS = 90.0


@pytest.fixture(scope="module", autouse=True)
def _all_nodes_stay_in_service(data_centre: DataCentre) -> Iterator[None]:
    await_all_nodes_ready(data_centre.client(), data_centre)
    yield
    await_all_nodes_ready(data_centre.client(), data_centre)


# ---------------------------------------------------------------- hostile events


@dataclass
class HostileEventResults:
    """Effects of the hostile events."""

    began_at: datetime
    good_instance: str
    sent: dict[str, str] = field(default_factory=dict)
    """Body by envelope id, as delivered by the bus: the archive must contain the same."""
    ids: dict[tuple[str, str], str] = field(default_factory=dict)
    """Envelope id by sample and route."""
    raw: dict[str, bytes | None] = field(default_factory=dict)
    letters: dict[str, Json] = field(default_factory=dict)
    changed: dict[tuple[str, str], Json] = field(default_factory=dict)
    """Rows of incidents that are new or not as before."""
    good_id: str = ""


WAYS = [
    (sample, way)
    for sample in (*CODES, UNKNOWN)
    for way in ("bus", "queue")
    if (sample, way) != ("missing-detail", "bus")
]
"""Routes of each sample. EventBridge accepts every sample with the source of drills, except one without a detail."""


@pytest.fixture(scope="module")
def event_results(data_centre: DataCentre) -> HostileEventResults:
    """Send every hostile sample by every possible route, with one valid event among them."""
    results = HostileEventResults(good_instance=signals.untouched_machine(data_centre), began_at=datetime.now(UTC))
    signals.take_dead_letters(data_centre)
    before = signals.incident_rows(data_centre)
    good = signals.health_event(results.good_instance, fault="NobodyKnowsThisFault")
    results.good_id = good["id"]

    def send(sample: str, way: str) -> None:
        text = (BAD_EVENTS / f"{sample}.json").read_text(encoding="utf-8")
        event = json.loads(text)
        if way == "bus":
            envelope_id = signals.put_on_bus(data_centre, event["detail-type"], event["detail"])
        else:
            envelope_id = event["id"]
            results.sent[envelope_id] = text
            signals.queue(data_centre, text)
        results.ids[sample, way] = envelope_id

    for sample, way in WAYS[:8]:
        send(sample, way)
    signals.queue(data_centre, good)
    for sample, way in WAYS[8:]:
        send(sample, way)
    signals.await_handled(data_centre, *results.ids.values(), results.good_id)
    results.raw = {envelope_id: signals.raw_copy(data_centre, envelope_id) for envelope_id in results.ids.values()}
    signals.settled_incident(data_centre, results.good_instance)
    after = signals.incident_rows(data_centre)
    results.changed = {key: row for key, row in after.items() if before.get(key) != row}
    results.letters = {json.loads(letter["body"])["id"]: letter for letter in signals.take_dead_letters(data_centre)}
    return results


@pytest.mark.parametrize(("sample", "way"), WAYS)
def test_hostile_event_is_archived_unchanged(sample: str, way: str, event_results: HostileEventResults) -> None:
    envelope_id = event_results.ids[sample, way]

    raw = event_results.raw[envelope_id]

    assert raw is not None
    assert json.loads(raw)["id"] == envelope_id
    if way == "queue":
        assert raw.decode() == event_results.sent[envelope_id]


@pytest.mark.parametrize(("sample", "way"), [(sample, way) for sample, way in WAYS if sample != UNKNOWN])
def test_malformed_event_is_dead_lettered_with_its_code(
    sample: str, way: str, event_results: HostileEventResults
) -> None:
    envelope_id = event_results.ids[sample, way]

    letter = event_results.letters[envelope_id]

    assert letter["code"] == CODES[sample]
    assert letter["body"].encode() == event_results.raw[envelope_id]


def test_value_of_a_wrong_type_is_named_by_its_path(event_results: HostileEventResults) -> None:
    letter = event_results.letters[event_results.ids["wrong-types", "queue"]]

    assert letter["reason"] == "detail.InstanceId: expected string, got number"


@pytest.mark.parametrize("way", ["bus", "queue"])
def test_event_of_an_unknown_kind_is_not_dead_lettered(way: str, event_results: HostileEventResults) -> None:
    assert event_results.ids[UNKNOWN, way] not in event_results.letters


def test_log_line_of_a_hostile_event_is_short_and_coded(
    data_centre: DataCentre, event_results: HostileEventResults
) -> None:
    samples = {envelope_id: sample for (sample, _), envelope_id in event_results.ids.items()}
    logged = signals.log_lines(data_centre, "EventDone", since=event_results.began_at)
    lines = [line for line in logged if line["envelopeId"] in samples]

    codes = CODES | {UNKNOWN: "EVENT_UNKNOWN_TYPE"}
    assert lines, "log each event: no line was found"
    for line in lines:
        assert line["code"] == codes[samples[line["envelopeId"]]]
        assert line["sizeBytes"] == len(event_results.raw[line["envelopeId"]] or b"")
        assert len(line.get("bodyStart", "")) <= 200


def test_hostile_events_are_counted_by_their_code(data_centre: DataCentre, event_results: HostileEventResults) -> None:
    failed = signals.log_lines(data_centre, "EventsFailed", since=event_results.began_at)

    assert failed, "count each failed event: no metric was found"
    assert {line["Code"] for line in failed} <= set(CODES.values())


def test_hostile_events_change_no_incident(data_centre: DataCentre, event_results: HostileEventResults) -> None:
    good = signals.incidents_about(data_centre, event_results.good_instance)[0]["incidentId"]

    unexpected = [key for key, row in event_results.changed.items() if good not in json.dumps(row)]

    assert unexpected == []


def test_valid_event_among_hostile_events_is_handled(
    data_centre: DataCentre, event_results: HostileEventResults
) -> None:
    [incident] = signals.incidents_about(data_centre, event_results.good_instance)

    assert (incident["fault"]["key"], incident["state"]) == ("hp:unknown_fault_type", "OBSERVED")
    assert incident["repairs"] == []


def test_node_with_an_unknown_fault_is_not_repaired(
    data_centre: DataCentre, event_results: HostileEventResults
) -> None:
    node = next(node for node in data_centre.cluster.nodes() if node["instanceId"] == event_results.good_instance)

    assert (node["unschedulable"], node["taints"]) == (False, [])
    assert signals.accepted_calls(data_centre, event_results.good_instance) == {}


def test_dead_letter_queue_is_empty_after_all_hostile_events(
    data_centre: DataCentre, event_results: HostileEventResults
) -> None:
    assert event_results.letters
    assert dead_letter_counts(data_centre) == {}


# ---------------------------------------------------------------- copies, at once and late


@dataclass
class DuplicateStorm:
    """A fault reported by several events at once, and its settled incident."""

    event: Json
    ids: tuple[str, ...]
    incident: Json

    @property
    def instance_id(self) -> str:
        return str(self.event["detail"]["InstanceId"])


@pytest.fixture(scope="module")
def storm(data_centre: DataCentre) -> DuplicateStorm:
    """Send at once three copies of an event, and three events with other ids for the same state change."""
    machine = signals.untouched_machine(data_centre)
    event = signals.health_event(machine)
    documents = [signals.health_event(machine) | {"time": event["time"]} for _ in range(3)]
    sent = [event, event, event, *documents]
    random.Random(7).shuffle(sent)
    with ThreadPoolExecutor(len(sent)) as senders:
        list(senders.map(lambda event: signals.queue(data_centre, event), sent))
    signals.await_handled(data_centre, *(document["id"] for document in (event, *documents)))
    incident = signals.settled_incident(data_centre, machine)
    return DuplicateStorm(event, (event["id"], *(other["id"] for other in documents)), incident)


def test_concurrent_copies_of_an_event_open_one_incident(data_centre: DataCentre, storm: DuplicateStorm) -> None:
    incidents = signals.incidents_about(data_centre, storm.instance_id)

    assert [incident["incidentId"] for incident in incidents] == [storm.incident["incidentId"]]


def test_copies_of_an_event_add_one_evidence_entry(data_centre: DataCentre, storm: DuplicateStorm) -> None:
    shown = data_centre.client().get(f"/incidents/{storm.incident['incidentId']}")

    # The reboot makes the node NotReady for a while, which is a signal of its own.
    [evidence] = [entry for entry in shown["evidence"] if entry["source"] == "hyperpod.node-health"]
    other_faults = {entry["faultKey"] for entry in shown["evidence"] if entry != evidence}
    assert (evidence["opened"], evidence["rawEvent"] in storm.ids) == (True, True)
    assert other_faults <= {"node:not_ready"}


def test_copies_of_an_event_start_one_execution_and_repair(data_centre: DataCentre, storm: DuplicateStorm) -> None:
    incident_id = storm.incident["incidentId"]

    assert signals.executions_of(data_centre, incident_id) == [f"{incident_id}-r1"]
    assert signals.accepted_calls(data_centre, storm.instance_id) == {"reboot": 1}
    assert (storm.incident["state"], storm.incident["repairs"]) == ("RECOVERED", ["reboot"])


def test_late_copy_opens_no_incident(data_centre: DataCentre, storm: DuplicateStorm) -> None:
    before = signals.incident_rows(data_centre)
    same = storm.event
    resent = signals.health_event(storm.instance_id) | {"time": same["time"]}
    older_at = datetime.fromisoformat(same["time"]) - timedelta(minutes=3)
    older = signals.health_event(storm.instance_id, at=older_at)

    for event in (same, resent, older):
        signals.queue(data_centre, event)
    signals.await_handled(data_centre, same["id"], resent["id"], older["id"])

    assert signals.incident_rows(data_centre) == before
    assert len(signals.executions_of(data_centre, storm.incident["incidentId"])) == 1


def test_recovery_signal_without_an_incident_opens_none(data_centre: DataCentre, storm: DuplicateStorm) -> None:
    before = signals.incident_rows(data_centre)
    healthy = signals.health_event(storm.instance_id, status="Healthy", at=datetime.now(UTC) + timedelta(seconds=1))

    signals.queue(data_centre, healthy)
    signals.await_handled(data_centre, healthy["id"])

    assert signals.incident_rows(data_centre) == before


def test_different_faults_of_a_node_open_one_incident(data_centre: DataCentre) -> None:
    machine = signals.untouched_machine(data_centre)
    now = datetime.now(UTC)
    faults = ("EfaError", "NvidiaErrorReboot", "NvidiaErrorTerminate")
    events = [signals.health_event(machine, fault=fault, at=now) for fault in faults]

    with ThreadPoolExecutor(len(events)) as senders:
        list(senders.map(lambda event: signals.queue(data_centre, event), events))
    signals.await_handled(data_centre, *(event["id"] for event in events))
    settled = signals.settled_incident(data_centre, machine)

    [incident] = signals.incidents_about(data_centre, machine)
    evidence = data_centre.client().get(f"/incidents/{incident['incidentId']}")["evidence"]
    codes = sorted(entry["code"] for entry in evidence if entry["source"] == "hyperpod.node-health")
    assert (incident["fault"]["key"], codes) == ("hp:NvidiaErrorTerminate", sorted(faults))
    assert signals.executions_of(data_centre, incident["incidentId"]) == [f"{incident['incidentId']}-r1"]
    assert settled["state"] == "RECOVERED"
    assert signals.accepted_calls(data_centre, machine).get("replace", 0) == 1


# ---------------------------------------------------------------- other sources


def test_detector_report_opens_an_incident_with_its_source(data_centre: DataCentre) -> None:
    machine = signals.untouched_machine(data_centre)
    seen_at = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    line = "NVRM: Xid (PCI:0000:b9:00): 9999, an unknown code"
    fault = {"instanceId": machine, "line": line, "observedAt": seen_at}

    answer = data_centre.client().post("/faults", {"faults": [fault]})
    signals.await_handled(data_centre, answer["envelopeId"])
    settled = signals.settled_incident(data_centre, machine)

    evidence = data_centre.client().get(f"/incidents/{settled['incidentId']}")["evidence"]
    assert answer["accepted"] == 1
    assert (settled["fault"]["key"], settled["repairs"]) == ("xid:*", [])
    assert [entry["source"].partition("/")[0] for entry in evidence] == ["site:user"]
    assert signals.accepted_calls(data_centre, machine) == {}


def test_notice_about_an_unmanaged_instance_opens_no_incident(data_centre: DataCentre) -> None:
    before = signals.incident_rows(data_centre)
    detail = {"instance-id": "i-00000000000000404", "instance-action": "terminate"}

    sent = signals.put_on_bus(data_centre, "EC2 Spot Instance Interruption Warning", detail)
    signals.await_handled(data_centre, sent)

    assert signals.incident_rows(data_centre) == before


def test_hyperpod_group_facts_are_stored(data_centre: DataCentre) -> None:
    text = (BAD_EVENTS.parent / "hyperpod-event-insufficient-capacity.json").read_text(encoding="utf-8")
    detail = json.loads(text)["detail"]
    record = detail["EventDetails"]
    record["ClusterArn"] = data_centre.cluster.cluster_arn
    record["InstanceGroupName"] = "a-group-of-the-test"
    record["EventTime"] = int(datetime.now(UTC).timestamp() * 1000)

    sent = signals.put_on_bus(data_centre, "SageMaker HyperPod Cluster Event", detail)
    signals.await_handled(data_centre, sent)

    group_rows = data_centre.deployer.client("dynamodb").query(
        TableName=data_centre.outputs["FleetTableName"],
        KeyConditionExpression="pk = :pool",
        ExpressionAttributeValues={":pool": {"S": "POOL#a-group-of-the-test"}},
    )["Items"]
    assert [document_of(row)["kind"] for row in group_rows] == ["NO_CAPACITY"]


# ---------------------------------------------------------------- healthy again


@pytest.fixture
def held_machine(data_centre: DataCentre) -> Iterator[str]:
    """Hold automation for the test, so that the repair of the node waits until it is released."""
    machine = signals.untouched_machine(data_centre)
    client = data_centre.client()
    path = f"/clusters/{client.fleet}/automation"
    client.post(f"{path}/hold", {"reason": "a test looks closely", "forSeconds": 300})
    yield machine
    client.post(f"{path}/release", {})


def _release(centre: DataCentre) -> None:
    client = centre.client()
    client.post(f"/clusters/{client.fleet}/automation/release", {})


def _timeline_entry(centre: DataCentre, instance_id: str, kind: str) -> Json | None:
    """Return the open incident of a node once its timeline has an entry of that kind."""
    for incident in signals.incidents_about(centre, instance_id)[:1]:
        story = centre.client().get(f"/incidents/{incident['incidentId']}/timeline")["entries"]
        if incident["state"] not in SETTLED and any(line["kind"] == kind for line in story):
            return incident
    return None


def test_older_recovery_signal_does_not_stop_the_repair(data_centre: DataCentre, held_machine: str) -> None:
    machine = held_machine
    fault_at = datetime.now(UTC) - timedelta(seconds=2)
    faulty = signals.health_event(machine, at=fault_at)
    healthy = signals.health_event(machine, status="Healthy", at=fault_at - timedelta(minutes=1))

    signals.queue(data_centre, faulty)
    until(lambda: _timeline_entry(data_centre, machine, "held"), "the repair to be held", RECOVERY_SECONDS)
    signals.queue(data_centre, healthy)
    signals.await_handled(data_centre, healthy["id"])
    _release(data_centre)
    settled = signals.settled_incident(data_centre, machine)

    evidence = data_centre.client().get(f"/incidents/{settled['incidentId']}")["evidence"]
    assert "RECOVERED" in [entry["kind"] for entry in evidence]
    assert (settled["state"], settled["repairs"]) == ("RECOVERED", ["reboot"])


def test_recovery_signal_returns_the_node_without_a_repair(data_centre: DataCentre, held_machine: str) -> None:
    machine = held_machine
    fault_at = datetime.now(UTC) - timedelta(seconds=5)
    faulty = signals.health_event(machine, at=fault_at)
    healthy = signals.health_event(machine, status="Healthy", at=fault_at + timedelta(seconds=3))

    signals.queue(data_centre, faulty)
    until(lambda: _timeline_entry(data_centre, machine, "held"), "the repair to be held", RECOVERY_SECONDS)
    signals.queue(data_centre, healthy)
    signals.await_handled(data_centre, healthy["id"])
    _release(data_centre)
    settled = signals.settled_incident(data_centre, machine)

    node = next(node for node in data_centre.cluster.nodes() if node["instanceId"] == machine)
    assert (settled["state"], settled["repairs"], node["unschedulable"]) == ("RECOVERED", [], False)
    assert signals.accepted_calls(data_centre, machine) == {}
