"""The result of parsing every sample event and every hostile event."""

import copy
import functools
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.domain.health.group_facts import GroupFact
from evenkeel.domain.health.incidents import FactKind, NodeFact
from evenkeel.events import envelope
from evenkeel.events.outcomes import Ignored, Malformed, ParsedEvent, Unknown

EVENTS = Path(__file__).resolve().parents[2] / "fixtures" / "events"
UNHEALTHY = "hyperpod-node-unhealthy.json"


def sample_bytes(name: str) -> bytes:
    return (EVENTS / name).read_bytes()


def an_event(**changes: Any) -> dict[str, Any]:
    """Return the event of an unhealthy node with changes of the envelope or of `detail` (`__` between names)."""
    event: dict[str, Any] = json.loads(sample_bytes(UNHEALTHY))
    for path, value in changes.items():
        *parents, last = path.split("__")
        section = event
        for name in parents:
            section = section[name]
        section[last] = value
    return event


def parsed(event: dict[str, Any]) -> Any:
    return envelope.parse(json.dumps(event).encode())


def only_fact(answer: Any) -> NodeFact:
    """Return the only fact of a parsed event."""
    assert isinstance(answer, ParsedEvent), answer
    [fact] = answer.facts
    assert isinstance(fact, NodeFact)
    return fact


# ---------------------------------------------------------------- sample events


def test_unhealthy_event_becomes_a_fault_fact() -> None:
    fact = only_fact(envelope.parse(sample_bytes(UNHEALTHY)))

    assert (fact.kind, fact.instance_id) == (FactKind.FAULT, "i-0a1c4f7b92d36e581")
    assert (fact.fault_key, fact.code) == ("hp:NvidiaErrorTerminate", "NvidiaErrorTerminate")
    assert fact.observed_at.isoformat() == "2026-11-03T10:15:02+00:00"
    assert fact.envelope_id == "3f0c5e0e-8a51-4c0b-9d3c-0f5d8e7a2b61"
    assert "Please Replace the Faulty Node." in fact.detail
    assert not fact.is_drill


def test_healthy_event_becomes_a_recovered_fact_without_a_fault() -> None:
    fact = only_fact(envelope.parse(sample_bytes("hyperpod-node-healthy.json")))

    assert (fact.kind, fact.fault_key) == (FactKind.RECOVERED, "")


def test_drill_differs_from_the_real_event_only_in_its_flag() -> None:
    drill, real = (
        only_fact(envelope.parse(sample_bytes(name))) for name in ("drill-hyperpod-node-unhealthy.json", UNHEALTHY)
    )

    assert drill.is_drill
    assert real == drill.replace(is_drill=False, envelope_id=real.envelope_id, observed_at=real.observed_at)


def test_copied_event_is_one_fact_but_another_day_differs() -> None:
    first, copy = only_fact(parsed(an_event())), only_fact(parsed(an_event(id="other", time="2026-11-03T10:15:41Z")))
    next_day = only_fact(parsed(an_event(time="2026-11-04T10:15:02Z")))

    assert first.fact_key == copy.fact_key
    assert first.fact_key != next_day.fact_key


@pytest.mark.parametrize("name", [path.name for path in sorted(EVENTS.glob("*.json"))])
def test_every_sample_event_gives_a_fact(name: str) -> None:
    assert isinstance(envelope.parse(sample_bytes(name)), ParsedEvent)


@pytest.mark.parametrize("name", [path.name for path in sorted(EVENTS.glob("*.json"))])
def test_drill_event_gives_equal_facts_marked_as_drill(name: str) -> None:
    event = json.loads(sample_bytes(name))

    real, drill = parsed(event | {"source": event["source"]}), parsed(event | {"source": "evenkeel.drill"})

    assert all(fact.is_drill for fact in drill.facts)
    flagged = [fact.replace(is_drill=True) for fact in real.facts]
    assert list(drill.facts) == flagged


@pytest.mark.parametrize(
    ("source", "detail_type"),
    [
        ("aws.ec2", "SageMaker HyperPod Cluster Node Health Event"),
        ("aws.sagemaker", "AWS Health Event"),
        ("aws.sagemaker", "Evenkeel Reported Faults"),
        ("evenkeel.drill", "Evenkeel Reported Faults"),
        ("aws.ec2", "EC2 Instance-terminate Lifecycle Action"),
        ("someone.else", "AWS Health Event"),
        (["aws.health"], "AWS Health Event"),
        ("aws.health", {"AWS Health Event": 1}),
    ],
)
def test_event_kind_of_another_source_is_refused(source: Any, detail_type: Any) -> None:
    event = an_event(source=source, **{"detail-type": detail_type})

    assert isinstance(parsed(event), Unknown)


# ---------------------------------------------------------------- malformed


@pytest.mark.parametrize(
    ("name", "code", "reason"),
    [
        ("missing-detail.json", "EVENT_NO_DETAIL", "detail"),
        ("wrong-types.json", "EVENT_BAD_TYPE", "detail.InstanceId: expected string, got number"),
        ("unknown-status.json", "EVENT_UNKNOWN_STATUS", "detail.HealthSummary.HealthStatus"),
        ("oversize-detail.json", "EVENT_TOO_LARGE", "bytes"),
        ("hostile-strings.json", "EVENT_BAD_TEXT", "detail.ClusterName"),
        ("epoch-seconds.json", "EVENT_BAD_TIME", "detail.EventDetails.EventTime"),
        ("bad-instance-id.json", "EVENT_BAD_ID", "detail.InstanceId"),
    ],
)
def test_refusal_of_malformed_event_names_code_and_first_wrong_field(name: str, code: str, reason: str) -> None:
    answer = envelope.parse(sample_bytes(f"bad/{name}"))

    assert isinstance(answer, Malformed)
    assert code == answer.code
    assert reason in answer.reason


def test_event_with_unknown_detail_type_is_not_guessed_from_fields() -> None:
    answer = envelope.parse(sample_bytes("bad/unknown-detail-type.json"))

    assert isinstance(answer, Unknown)
    assert answer.code == "EVENT_UNKNOWN_TYPE"


@pytest.mark.parametrize("raw", [b"", b"not json", b"[]", b'"text"', b"null", b"{", b"[" * 100_000, b'{"a": NaN}'])
def test_body_that_is_no_json_object_is_malformed(raw: bytes) -> None:
    assert getattr(envelope.parse(raw), "code", None) == "EVENT_BAD_JSON"


def test_bytes_that_are_not_utf8_are_malformed() -> None:
    assert getattr(envelope.parse(b'{"source": "\xff\xfe"}'), "code", None) == "EVENT_BAD_TEXT"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"detail": None}, "EVENT_NO_DETAIL"),
        ({"detail": "text"}, "EVENT_NO_DETAIL"),
        ({"detail__InstanceId": None}, "EVENT_BAD_TYPE"),
        ({"detail__HealthSummary": []}, "EVENT_BAD_TYPE"),
        ({"detail__HealthSummary__HealthStatus": True}, "EVENT_BAD_TYPE"),
        ({"time": 1793700902}, "EVENT_BAD_TYPE"),
        ({"time": "yesterday"}, "EVENT_BAD_TIME"),
        ({"time": "2026-13-40T10:15:02Z"}, "EVENT_BAD_TIME"),
        ({"time": "1970-01-21T10:15:02Z"}, "EVENT_BAD_TIME"),
        ({"id": 7}, "EVENT_BAD_TYPE"),
        ({"id": "../../etc/passwd"}, "EVENT_BAD_ID"),
        ({"detail__InstanceId": "i-0a1c4f7b92d36e58"}, "EVENT_BAD_ID"),
        ({"detail__InstanceId": "i-0a1c4f7b92d36e581\n"}, "EVENT_BAD_ID"),
        ({"detail__HealthSummary__HealthStatus": "healthy"}, "EVENT_UNKNOWN_STATUS"),
        ({"detail__HealthSummary__HealthStatus": ""}, "EVENT_UNKNOWN_STATUS"),
        ({"detail__HealthSummary__HealthStatusReason": "a\u202eb"}, "EVENT_BAD_TEXT"),
        ({"detail__HealthSummary__HealthStatusReason": "a\u200bb"}, "EVENT_BAD_TEXT"),
        ({"detail__HealthSummary__Recommendation": "\x1b[31m"}, "EVENT_BAD_TEXT"),
        ({"detail__HealthSummary__HealthStatusReason": "fault type " * 1000}, "EVENT_TOO_LARGE"),
    ],
)
def test_each_malformed_event_has_its_error_code(changes: dict[str, Any], code: str) -> None:
    assert code == getattr(parsed(an_event(**changes)), "code", None)


@pytest.mark.parametrize("kind", ["SageMaker HyperPod Cluster Event", "SageMaker HyperPod Cluster State Change"])
def test_cluster_event_without_its_fields_is_malformed(kind: str) -> None:
    assert getattr(parsed(an_event(**{"detail-type": kind, "detail": {}})), "code", None) == "EVENT_BAD_TYPE"


# ---------------------------------------------------------------- fault types in a sentence


@pytest.mark.parametrize(
    ("reason", "key", "code"),
    [
        ("… has detected fault type NvidiaErrorReboot on this node", "hp:NvidiaErrorReboot", "NvidiaErrorReboot"),
        ("fault type SomethingNew here", "hp:unknown_fault_type", "SomethingNew"),
        ("GPU_DCGM_HEALTH_CHECK_FAILED", "hp:unknown_fault_type", "GPU_DCGM_HEALTH_CHECK_FAILED"),
        ("", "hp:unknown_fault_type", ""),
        ("prose without a name", "hp:unknown_fault_type", ""),
        ("fault type \u041dvidiaErrorTerminate", "hp:unknown_fault_type", ""),
        ("fault type NvidiaError\u0422erminate", "hp:unknown_fault_type", ""),
        ("fault type " + "A" * 65, "hp:unknown_fault_type", ""),
    ],
)
def test_fault_type_in_a_sentence_is_read_only_exactly(reason: str, key: str, code: str) -> None:
    fact = only_fact(parsed(an_event(detail__HealthSummary__HealthStatusReason=reason)))

    assert (key, code) == (fact.fault_key, fact.code)


def test_unread_keys_of_an_event_change_no_fact() -> None:
    changes = {"version": 9, "resources": "arn:one", "detail__Tags": "none", "detail__New": {"deep": [1]}}

    assert parsed(an_event()) == parsed(an_event(**changes))


# ---------------------------------------------------------------- arbitrary input


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.sampled_from([10**400, -(10**400), "i-0a1c4f7b92d36e581", "Healthy", "2026-11-03T10:15:02Z", "\ud800"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
SAMPLES = tuple(json.loads(path.read_text(encoding="utf-8")) for path in sorted(EVENTS.glob("*.json")))


def paths_in(document: Any, before: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the path of every named field of a document."""
    if not isinstance(document, dict):
        return [before]
    return [before, *(path for name, value in document.items() for path in paths_in(value, (*before, name)))]


@st.composite
def altered_events(draw: st.DrawFn) -> Any:
    """Draw a sample event with one or two fields removed or replaced by any value."""
    event = copy.deepcopy(draw(st.sampled_from(SAMPLES)))
    for _ in range(draw(st.integers(1, 2))):
        *parents, last = draw(st.sampled_from(paths_in(event)[1:] or [("id",)]))
        parent = functools.reduce(lambda document, name: document[name], parents, event)
        parent[last] = draw(JSON)
        if draw(st.booleans()):
            del parent[last]
    return event


@given(altered_events())
def test_altered_event_is_parsed_equally_each_time(event: Any) -> None:
    answer = parsed(event)

    assert isinstance(answer, ParsedEvent | Ignored | Unknown | Malformed)
    assert str(answer) == str(parsed(event))
    for fact in answer.facts if isinstance(answer, ParsedEvent) else ():
        assert isinstance(fact, NodeFact | GroupFact)
        fact.model_dump_json().encode("utf-8")
        assert fact.fact_key.isprintable()


@given(st.binary(max_size=300))
def test_any_bytes_are_parsed_or_refused_without_an_exception(raw: bytes) -> None:
    assert isinstance(envelope.parse(raw), ParsedEvent | Ignored | Unknown | Malformed)


REPEATED = (
    "fault type ",
    "Instance i-0a1c4f7b92d36e581 in IG ",
    "Instance creation in Cluster ",
    "Xid (PCI:0000:b9:00): ",
    "a" * 200,
)


@pytest.mark.parametrize("name", [path.name for path in sorted(EVENTS.glob("*.json"))])
@pytest.mark.parametrize("text", REPEATED)
def test_time_to_parse_an_event_is_linear_in_its_length(name: str, text: str) -> None:
    event = json.loads(sample_bytes(name))
    long = (text * 100_000)[:100_000]
    variants = []
    for *parents, last in paths_in(event)[1:]:
        variant = copy.deepcopy(event)
        parent = functools.reduce(lambda document, part: document[part], parents, variant)
        if isinstance(parent[last], str):
            parent[last] = long
            variants.append(json.dumps(variant).encode())

    began = time.process_time()
    for raw in variants:
        envelope.parse(raw)

    # A pattern that backtracks needs minutes for such a text; a linear pattern needs milliseconds.
    assert time.process_time() - began < 10


def test_number_too_large_for_a_float_is_malformed() -> None:
    event = json.loads(sample_bytes("hyperpod-event-reboot-in-progress.json"))
    event["detail"]["EventDetails"]["EventTime"] = 10**400

    assert getattr(parsed(event), "code", None) == "EVENT_BAD_TYPE"
