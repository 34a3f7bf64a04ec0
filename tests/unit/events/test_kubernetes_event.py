"""Kubernetes events about node objects."""

from typing import Any

import pytest

from evenkeel.domain.shadow.records import NodeAction, ReadinessChange
from evenkeel.domain.shadow.shadow_cases import Actor, NodeEventKind
from evenkeel.events.kubernetes_event import is_event, parse
from evenkeel.events.outcomes import Ignored, Malformed, Unknown

FIRST, LAST = "2026-11-03T12:00:00Z", "2026-11-03T12:30:00Z"


def an_event(reason: str = "NodeNotReady", **changes: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "node.1", "uid": "uid-1", "creationTimestamp": FIRST},
        "involvedObject": {"kind": "Node", "name": "node-1"},
        "reason": reason,
        "message": "text",
        "firstTimestamp": FIRST,
        "lastTimestamp": FIRST,
        **changes,
    }


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("NodeNotSchedulable", NodeEventKind.CORDONED),
        ("NodeSchedulable", NodeEventKind.UNCORDONED),
        ("Rebooted", NodeEventKind.REBOOTED),
        ("RemovingNode", NodeEventKind.REMOVED),
        ("DeletingNode", NodeEventKind.REMOVED),
    ],
)
def test_reason_of_a_kubernetes_event_gives_the_action(reason: str, kind: NodeEventKind) -> None:
    parsed = parse(an_event(reason))

    assert isinstance(parsed, tuple)
    ((_, action),) = parsed
    assert isinstance(action, NodeAction)
    assert (action.node_name, action.event.kind, action.is_planned) == ("node-1", kind, False)


def test_repeated_kubernetes_event_counts_at_first_and_last_time() -> None:
    parsed = parse(an_event("NodeNotReady", lastTimestamp=LAST, count=3))

    assert isinstance(parsed, tuple)
    assert [at.isoformat() for at, _ in parsed] == ["2026-11-03T12:00:00+00:00", "2026-11-03T12:30:00+00:00"]
    assert all(isinstance(readiness, ReadinessChange) and not readiness.is_ready for _, readiness in parsed)


@pytest.mark.parametrize(
    ("message", "is_planned"),
    [("Disrupting Node: Drift", True), ("Disrupting Node: Empty", True), ("Disrupting Node: Unhealthy", False)],
)
def test_voluntary_disruption_by_karpenter_is_a_planned_end(message: str, is_planned: bool) -> None:
    parsed = parse(an_event("DisruptionTerminating", message=message))

    assert isinstance(parsed, tuple)
    ((_, action),) = parsed
    assert isinstance(action, NodeAction)
    assert (action.event.actor, action.is_planned) == (Actor.KARPENTER, is_planned)


def test_kubernetes_event_of_the_newer_api_version_is_read() -> None:
    document = an_event(note="text", eventTime="2026-11-03T12:00:00.123456Z")
    for name in ("involvedObject", "message", "firstTimestamp", "lastTimestamp"):
        del document[name]
    document["regarding"] = {"kind": "Node", "name": "node-1"}

    assert is_event(document)
    assert isinstance(parse(document), tuple)


def test_kubernetes_events_about_other_objects_are_ignored() -> None:
    assert isinstance(parse(an_event(involvedObject={"kind": "Pod", "name": "pod-1"})), Ignored)


def test_unlisted_reason_of_a_kubernetes_event_is_unknown() -> None:
    assert isinstance(parse(an_event("Starting")), Unknown)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"lastTimestamp": "soon"}, "lastTimestamp"),
        ({"lastTimestamp": "2026-11-03T12:00:00"}, "lastTimestamp"),
        ({"message": 5}, "message"),
        ({"metadata": None}, "metadata"),
    ],
)
def test_malformed_kubernetes_event_names_its_field(changes: dict[str, Any], field: str) -> None:
    malformed = parse(an_event(**changes))

    assert isinstance(malformed, Malformed)
    assert field in malformed.reason


def test_kubernetes_event_without_a_time_is_malformed() -> None:
    bare = an_event(metadata={"name": "node.1"}, firstTimestamp=None, lastTimestamp=None)

    assert isinstance(parse(bare), Malformed)
