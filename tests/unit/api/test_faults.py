"""Faults that a site's own detectors report: what they may report, and the effect."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from evenkeel.domain.decisions import Decision
from evenkeel.domain.health.assessment import source_family
from evenkeel.domain.health.faults import default_catalogue
from evenkeel.domain.health.incidents import NodeFact
from evenkeel.domain.health.reports import ReporterRole
from evenkeel.domain.replay import replay
from evenkeel.domain.values import rfc3339
from evenkeel.events import envelope
from evenkeel.events.outcomes import Malformed, ParsedEvent, Unknown
from evenkeel.ports import Put, Table, Unreachable, Write
from evenkeel.services.incidents import ingest_event
from evenkeel.services.tables import fleet_rows
from tests.fakes.cluster import CLUSTER, instance_id
from tests.fakes.system import A_MOMENT
from tests.unit.api.gateway import ApiResponse, Gateway
from tests.unit.api.seeds import a_fleet_node, a_job, an_attempt, an_incident, make_unreadable, store

XID = "NVRM: Xid (PCI:0000:b9:00): 79, pid=1234, GPU has fallen off the bus."


@pytest.fixture
def gateway_with_nodes(gateway: Gateway) -> Gateway:
    """The API of a fleet with two recorded nodes; one has its own node name."""
    store(gateway.fakes.ledger, a_fleet_node(1), a_fleet_node(2, node_name="ip-10-0-0-2.ec2.internal"))
    return gateway


def a_fault(number: int = 1, **changes: Any) -> dict[str, Any]:
    """Return a fault as a detector sends it, without the fields that are None."""
    facts = {"instanceId": instance_id(number), "code": "xid:79", "observedAt": rfc3339(A_MOMENT), **changes}
    return {name: value for name, value in facts.items() if value is not None}


def report_faults(gateway: Gateway, *faults: dict[str, Any], **options: Any) -> ApiResponse:
    return gateway.post("/v1/faults", {"faults": list(faults)}, **options)


def queued_events(gateway: Gateway) -> list[NodeFact]:
    """Return the events that receive_event reads from the queue."""
    facts: list[NodeFact] = []
    for document in gateway.fakes.inbox.queued:
        parsed_event = envelope.parse(json.dumps(document).encode())
        assert isinstance(parsed_event, ParsedEvent), parsed_event
        facts += [fact for fact in parsed_event.facts if isinstance(fact, NodeFact)]
    return facts


def test_reported_faults_are_queued_as_facts_of_one_source(gateway_with_nodes: Gateway) -> None:
    answer = report_faults(
        gateway_with_nodes, a_fault(detail="our own probe", gpu="GPU-5d1f7c0a"), a_fault(2, code="dcgm_diag_failed")
    )

    assert (answer.status, answer.headers["Location"]) == (202, "/v1/incidents")
    assert (answer.document["accepted"], answer.document["ignored"]) == (2, 0)
    first, second = queued_events(gateway_with_nodes)
    assert (first.fault_key, first.gpu, first.detail) == ("xid:79", "GPU-5d1f7c0a", "our own probe")
    assert (second.instance_id, second.fault_key) == (instance_id(2), "gpu:dcgm_diag_failed")
    assert {fact.source for fact in (first, second)} == {"site:role/Researcher"}
    assert {fact.observed_at for fact in (first, second)} == {A_MOMENT}
    assert answer.document["envelopeId"] == first.envelope_id
    assert not first.is_drill


def test_fault_report_opens_an_incident(gateway_with_nodes: Gateway) -> None:
    report_faults(gateway_with_nodes, a_fault())
    fakes = gateway_with_nodes.fakes

    results = ingest_event.ingest_facts(
        queued_events(gateway_with_nodes),
        fakes.context(),
    )

    assert [result.outcome for result in results] == ["OPEN"]
    assert {
        tuple(metric.dimensions.values()) for metric in fakes.telemetry.metrics if metric.name == "FactsOpened"
    } == {("site",)}


def test_unreadable_node_row_refuses_no_fault_report(gateway_with_nodes: Gateway) -> None:
    key = fleet_rows.node_key(CLUSTER, instance_id(1))
    make_unreadable(gateway_with_nodes.fakes.ledger, key, "isReady")

    answer = report_faults(gateway_with_nodes, a_fault(1), a_fault(2))

    assert (answer.status, answer.document["accepted"]) == (202, 2)


def test_sessions_of_one_role_are_one_signal_source(gateway_with_nodes: Gateway) -> None:
    role = "arn:aws:sts::000000000000:assumed-role/Detector/"
    for session in ("a", "b"):
        report_faults(gateway_with_nodes, a_fault(), caller=role + session, key=f"key-{session}")
    report_faults(gateway_with_nodes, a_fault(), caller="arn:aws:iam::000000000000:user/probe", key="key-c")

    assert [fact.source for fact in queued_events(gateway_with_nodes)] == [
        "site:role/Detector",
        "site:role/Detector",
        "site:user/probe",
    ]


@pytest.mark.parametrize("name", [f"hyperpod-{instance_id(1)}", "ip-10-0-0-2.ec2.internal"])
def test_node_name_identifies_the_instance(gateway_with_nodes: Gateway, name: str) -> None:
    assert report_faults(gateway_with_nodes, a_fault(instanceId=None, nodeName=name)).status == 202
    assert queued_events(gateway_with_nodes)[0].instance_id in (instance_id(1), instance_id(2))


@pytest.mark.parametrize(
    "named",
    [
        {"instanceId": "i-00000000000000404"},
        {"instanceId": None, "nodeName": "no-such-node"},
        {"instanceId": None, "nodeName": "hyperpod-i-00000000000000404"},
    ],
)
def test_unknown_instance_is_not_found_and_nothing_is_recorded(
    gateway_with_nodes: Gateway, named: dict[str, Any]
) -> None:
    answer = report_faults(gateway_with_nodes, a_fault(), a_fault(**named))

    assert (answer.status, answer.document["code"]) == (404, "NOT_FOUND")
    assert gateway_with_nodes.fakes.inbox.queued == []


def test_removed_instance_is_not_found(gateway: Gateway) -> None:
    store(gateway.fakes.ledger, a_fleet_node(1, is_gone=True))

    assert report_faults(gateway, a_fault()).status == 404


@pytest.mark.parametrize(
    ("line", "keys"),
    [
        (XID, ["xid:79"]),
        (
            json.dumps(
                {"details: ": {"reason": "XidUserAppError", "message": XID}, "HealthMonitoringAgentDetectionEvent": 1}
            ),
            ["xid:79"],
        ),
        ("Xid 79 in a format of tomorrow", ["xid:*"]),
    ],
)
def test_reported_log_line_gives_its_fault(gateway_with_nodes: Gateway, line: str, keys: list[str]) -> None:
    answer = report_faults(gateway_with_nodes, a_fault(code=None, line=line))

    assert answer.document["accepted"] == len(keys)
    assert [fact.fault_key for fact in queued_events(gateway_with_nodes)] == keys
    assert "79" in queued_events(gateway_with_nodes)[0].detail


@pytest.mark.parametrize("line", ["NVRM: Xid (PCI:0000:b9:00): 45, cleanup", "all is well"])
def test_log_line_without_a_fault_is_counted_as_ignored(gateway_with_nodes: Gateway, line: str) -> None:
    answer = report_faults(gateway_with_nodes, a_fault(code=None, line=line))

    assert (answer.status, answer.document) == (202, {"accepted": 0, "ignored": 1, "envelopeId": None})
    assert gateway_with_nodes.fakes.inbox.queued == []


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"code": "no-such-fault"}, "faults[0].code"),
        ({"code": None, "faultKey": "xid:12345"}, "faults[0].faultKey"),
        ({"observedAt": rfc3339(A_MOMENT + timedelta(minutes=6))}, "faults[0].observedAt"),
        ({"observedAt": rfc3339(A_MOMENT - timedelta(days=8))}, "faults[0].observedAt"),
        ({"observedAt": 1793700840}, "faults[0].observedAt"),
        ({"observedAt": None}, "faults[0].observedAt"),
        ({"observedAt": "1793700840"}, "faults[0].observedAt"),
        ({"observedAt": "0001-01-01T00:00:00+14:00"}, "faults[0].observedAt"),
        ({"observedAt": "9999-12-31T23:59:59-12:00"}, "faults[0].observedAt"),
        ({"observedAt": "2026-11-03T10:15:02"}, "faults[0].observedAt"),
        ({"instanceId": "i-12345678abcdefghi"}, "faults[0].instanceId"),
        ({"instanceId": None}, "faults[0]"),
        ({"nodeName": "both"}, "faults[0]"),
        ({"code": None}, "faults[0]"),
        ({"faultKey": "xid:79"}, "faults[0]"),
        ({"detail": "\u202eevil"}, "faults[0].detail"),
        ({"detail": "x" * 501}, "faults[0].detail"),
        ({"gpu": "GPU 1\n"}, "faults[0].gpu"),
        ({"severity": "critical"}, "faults[0].severity"),
    ],
)
def test_invalid_field_of_a_fault_report_is_named(
    gateway_with_nodes: Gateway, changes: dict[str, Any], field: str
) -> None:
    answer = report_faults(gateway_with_nodes, a_fault(**changes))

    assert (answer.status, answer.document["code"]) == (400, "VALIDATION_FAILED")
    assert [error["field"] for error in answer.document["errors"]] == [field]
    assert gateway_with_nodes.fakes.inbox.queued == []


@pytest.mark.parametrize("count", [0, 101])
def test_fault_batch_has_one_to_a_hundred_faults(gateway_with_nodes: Gateway, count: int) -> None:
    assert report_faults(gateway_with_nodes, *[a_fault()] * count).status == 400


def test_fault_batch_with_too_many_bytes_is_refused(gateway_with_nodes: Gateway) -> None:
    too_long = report_faults(gateway_with_nodes, *[a_fault(detail="\U0001f600" * 400)] * 100)
    acceptable = report_faults(gateway_with_nodes, *[a_fault(detail="x" * 400)] * 100, key="key-2")

    assert (too_long.status, acceptable.status) == (400, 202)
    assert len(queued_events(gateway_with_nodes)) == 100


# ---------------------------------------------------------------- repeated requests


def test_repeated_fault_report_gets_its_first_answer_and_queues_nothing(gateway_with_nodes: Gateway) -> None:
    first = report_faults(gateway_with_nodes, a_fault())
    gateway_with_nodes.fakes.clock.advance(3600)

    assert report_faults(gateway_with_nodes, a_fault()).document == first.document
    assert len(gateway_with_nodes.fakes.inbox.queued) == 1


def test_idempotency_key_of_another_fault_report_is_refused(gateway_with_nodes: Gateway) -> None:
    report_faults(gateway_with_nodes, a_fault())

    assert report_faults(gateway_with_nodes, a_fault(code="xid:48")).document["code"] == "IDEMPOTENCY_KEY_REUSED"


CRASHES = ["before the row", "before the envelope", "after the envelope"]


def crash(gateway: Gateway, monkeypatch: pytest.MonkeyPatch, point: str, send: Callable[[], ApiResponse]) -> None:
    """Send a request whose function ends at a point of its work."""
    fakes, commit, put = gateway.fakes, gateway.fakes.ledger.commit, gateway.fakes.inbox.put

    def crash_on_commit(*writes: Write, **options: Any) -> None:
        if point == "before the row" or fakes.inbox.queued:
            raise Unreachable("gone")
        commit(*writes, **options)

    def crash_on_put(document: Mapping[str, Any]) -> None:
        if point == "before the envelope":
            raise Unreachable("gone")
        put(document)

    with monkeypatch.context() as patched:
        patched.setattr(fakes.ledger, "commit", crash_on_commit)
        patched.setattr(fakes.inbox, "put", crash_on_put)
        assert send().status == 503


def remove_node(gateway: Gateway, number: int) -> None:
    """Let the sweep find that a node is gone."""
    ledger, node = gateway.fakes.ledger, a_fleet_node(number, is_gone=True)
    row = ledger.get(fleet_rows.node_key(node.life.cluster, node.life.instance_id))
    assert row
    ledger.commit(Put(replace(row, doc=node.to_json())))


@pytest.mark.parametrize("point", CRASHES)
def test_fault_report_repeated_after_a_crash_queues_an_equal_event(
    gateway_with_nodes: Gateway, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    crash(gateway_with_nodes, monkeypatch, point, lambda: report_faults(gateway_with_nodes, a_fault()))
    gateway_with_nodes.fakes.clock.advance(90)

    repeated, third = report_faults(gateway_with_nodes, a_fault()), report_faults(gateway_with_nodes, a_fault())

    assert (repeated.status, third.document) == (202, repeated.document)
    events = queued_events(gateway_with_nodes)
    assert len(events) == (2 if point == "after the envelope" else 1)
    assert {event.fact_key for event in events} == {events[0].fact_key}
    assert {event.envelope_id for event in events} == {repeated.document["envelopeId"]}


@pytest.mark.parametrize("point", CRASHES[1:])
def test_stored_fault_report_is_accepted_after_its_node_is_gone(
    gateway_with_nodes: Gateway, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    crash(gateway_with_nodes, monkeypatch, point, lambda: report_faults(gateway_with_nodes, a_fault()))
    remove_node(gateway_with_nodes, 1)

    repeated = report_faults(gateway_with_nodes, a_fault())

    assert (repeated.status, repeated.document["accepted"]) == (202, 1)
    assert queued_events(gateway_with_nodes)[-1].instance_id == instance_id(1)


def test_two_simultaneous_fault_reports_get_one_answer(
    gateway_with_nodes: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes, commit = gateway_with_nodes.fakes, gateway_with_nodes.fakes.ledger.commit
    answers = []

    def commit_after_the_other_request(*writes: Write, **options: Any) -> None:
        monkeypatch.setattr(fakes.ledger, "commit", commit)
        fakes.clock.advance(90)
        answers.append(report_faults(gateway_with_nodes, a_fault()))
        commit(*writes, **options)

    monkeypatch.setattr(fakes.ledger, "commit", commit_after_the_other_request)
    answers.append(report_faults(gateway_with_nodes, a_fault()))

    assert [answer.status for answer in answers] == [202, 202]
    assert answers[0].document == answers[1].document
    assert len(fakes.inbox.queued) == 1


def test_fault_report_that_an_older_release_stored_gets_its_answer(gateway_with_nodes: Gateway) -> None:
    first, fakes = report_faults(gateway_with_nodes, a_fault()), gateway_with_nodes.fakes
    (row,) = (row for key, row in fakes.ledger.rows.items() if key.pk.startswith("IDEM#"))
    older_doc = {name: value for name, value in row.doc.items() if name != "pendingEnvelope"}
    fakes.ledger.commit(Put(replace(row, doc=older_doc)))

    assert report_faults(gateway_with_nodes, a_fault()).document == first.document
    assert len(fakes.inbox.queued) == 1


def test_fault_report_needs_an_idempotency_key(gateway_with_nodes: Gateway) -> None:
    assert report_faults(gateway_with_nodes, a_fault(), key=None).document["code"] == "IDEMPOTENCY_KEY_MISSING"


# ---------------------------------------------------------------- faults of a job


@pytest.fixture
def gateway_with_job(gateway_with_nodes: Gateway) -> Gateway:
    """The API of a fleet with a job on both of its nodes."""
    job = a_job(1, state="RUNNING", current_attempt=1)
    store(gateway_with_nodes.fakes.ledger, job, an_attempt(job, 1, nodes=(1, 2)))
    return gateway_with_nodes


def a_fault_of_a_job(**changes: Any) -> dict[str, Any]:
    return a_fault(instanceId=None, jobId="job-0000000001", **{"code": "train:hang", **changes})


@pytest.mark.parametrize(("rank", "number"), [(None, 1), (1, 2)])
def test_fault_of_a_job_is_attributed_to_the_ranks_node(
    gateway_with_job: Gateway, rank: int | None, number: int
) -> None:
    assert report_faults(gateway_with_job, a_fault_of_a_job(rank=rank)).status == 202

    assert [(fact.instance_id, fact.fault_key) for fact in queued_events(gateway_with_job)] == [
        (instance_id(number), "train:hang")
    ]


def test_hang_after_a_node_fault_joins_its_incident(gateway_with_job: Gateway) -> None:
    faulty = an_incident(2, last_signal_at=A_MOMENT - timedelta(minutes=9))
    store(gateway_with_job.fakes.ledger, faulty)

    report_faults(gateway_with_job, a_fault_of_a_job(rank=0))

    assert [fact.instance_id for fact in queued_events(gateway_with_job)] == [instance_id(2)]
    (row,) = gateway_with_job.fakes.ledger.by_state(Table.INCIDENTS, "DEC#job-0000000001").rows
    record = Decision.model_validate(row.doc)
    assert (record.kind, record.action) == ("ATTRIBUTION", instance_id(2))
    assert replay(record, gateway_with_job.fakes.policy).differs_from(record) == ""


def test_repeated_fault_of_a_job_records_each_attribution_once(
    gateway_with_job: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, commit = gateway_with_job.fakes.ledger, gateway_with_job.fakes.ledger.commit
    faults = [a_fault_of_a_job(rank=0), a_fault_of_a_job(rank=1), a_fault_of_a_job(rank=1)]

    def crash_before_the_answer(*writes: Write, **options: Any) -> None:
        if isinstance(writes[0], Put) and writes[0].row.key.pk.startswith("IDEM#"):
            raise Unreachable("gone")
        commit(*writes, **options)

    with monkeypatch.context() as patched:
        patched.setattr(ledger, "commit", crash_before_the_answer)
        assert report_faults(gateway_with_job, *faults).status == 503
    first_rows = ledger.by_state(Table.INCIDENTS, "DEC#job-0000000001").rows
    gateway_with_job.fakes.clock.advance(90)

    assert report_faults(gateway_with_job, *faults).status == 202
    assert len(first_rows) == 3
    assert ledger.by_state(Table.INCIDENTS, "DEC#job-0000000001").rows == first_rows


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"jobId": "job-nope"}, 404),
        ({"rank": 2}, 404),
        ({"instanceId": instance_id(1)}, 400),
        ({"jobId": None, "instanceId": instance_id(1), "rank": 0}, 400),
        ({"rank": -1}, 400),
    ],
)
def test_fault_of_a_job_without_a_matching_attempt_is_refused(
    gateway_with_job: Gateway, changes: dict[str, Any], status: int
) -> None:
    fault = {name: value for name, value in {**a_fault_of_a_job(), **changes}.items() if value is not None}

    assert report_faults(gateway_with_job, fault).status == status
    assert queued_events(gateway_with_job) == []


# ---------------------------------------------------------------- faults that a detector may report

AGENT_LINE = {"details": {"reason": "NvidiaErrorTerminate"}, "HealthMonitoringAgentDetectionEvent": 1}
RESERVED_FAULTS = sorted(key for key in default_catalogue() if not ReporterRole.DETECTOR.may_report(key))


def test_detectors_may_report_only_their_fault_families() -> None:
    families = {key.partition(":")[0] for key in RESERVED_FAULTS}

    assert families == {"person", "hp", "ec2", "health", "eks", "node"}
    assert [key for key in RESERVED_FAULTS if key.startswith("node:")] == ["node:not_ready", "node:pressure"]


@pytest.mark.parametrize("field", ["code", "faultKey"])
@pytest.mark.parametrize("key", RESERVED_FAULTS)
def test_detector_cannot_report_provider_or_operator_faults(gateway_with_nodes: Gateway, key: str, field: str) -> None:
    answer = report_faults(gateway_with_nodes, a_fault(2), a_fault(1, **{"code": None, field: key}))

    assert (answer.status, [error["field"] for error in answer.document["errors"]]) == (400, [f"faults[1].{field}"])
    assert key in answer.document["detail"]
    assert gateway_with_nodes.fakes.inbox.queued == []


@pytest.mark.parametrize("code", ["NvidiaErrorTerminate", "instance_retirement", " person:replace", "PERSON:REPLACE"])
def test_detector_cannot_report_reserved_faults_in_another_spelling(gateway_with_nodes: Gateway, code: str) -> None:
    assert report_faults(gateway_with_nodes, a_fault(code=code)).status == 400
    assert gateway_with_nodes.fakes.inbox.queued == []


def test_fault_report_cannot_contain_a_verdict_of_the_health_agent(gateway_with_nodes: Gateway) -> None:
    answer = report_faults(gateway_with_nodes, a_fault(code=None, line=json.dumps(AGENT_LINE)))

    assert (answer.status, answer.document["errors"][0]["field"]) == (400, "faults[0].line")


@pytest.mark.parametrize(
    "reporter_role", [{}, {"reporterRole": "detector"}, {"reporterRole": "OPERATOR"}, {"reporterRole": ""}]
)
def test_forged_envelope_is_refused(gateway_with_nodes: Gateway, reporter_role: dict[str, str]) -> None:
    report_faults(gateway_with_nodes, a_fault())
    (document,) = gateway_with_nodes.fakes.inbox.queued
    detail = {name: value for name, value in document["detail"].items() if name != "reporterRole"} | reporter_role
    detail["faults"][0]["faultKey"] = "person:replace"

    parsed_event = envelope.parse(json.dumps(document | {"detail": detail}).encode())

    assert isinstance(parsed_event, Malformed)
    assert parsed_event.code == "EVENT_NOT_ITS_FAULT"


def test_replacement_request_of_an_operator_names_role_and_session(gateway_with_nodes: Gateway) -> None:
    operator = "arn:aws:sts::000000000000:assumed-role/Operator/ana.smith"
    answer = gateway_with_nodes.post(
        f"/v1/nodes/{instance_id(1)}/replace", {"reason": "It smells.", "code": "xid:79"}, caller=operator
    )

    assert answer.status == 202
    assert [(fact.fault_key, fact.source) for fact in queued_events(gateway_with_nodes)] == [
        ("person:replace", "person:role/Operator (ana.smith)"),
        ("xid:79", "person:role/Operator (ana.smith)"),
    ]
    assert {source_family(fact.source) for fact in queued_events(gateway_with_nodes)} == {"person:role/Operator"}


@pytest.mark.parametrize("source", ["evenkeel.drill", "aws.sagemaker", "custom.site"])
def test_events_of_other_sources_cannot_report_faults(gateway_with_nodes: Gateway, source: str) -> None:
    report_faults(gateway_with_nodes, a_fault())
    (document,) = gateway_with_nodes.fakes.inbox.queued

    assert isinstance(envelope.parse(json.dumps(document | {"source": source}).encode()), Unknown)
