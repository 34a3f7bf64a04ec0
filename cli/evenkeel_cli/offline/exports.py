"""Convert exported events to records of the backtest, with the parsers of the service."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from evenkeel.adapters.node_objects import read_node
from evenkeel.domain.health.group_facts import GroupFact
from evenkeel.domain.nodes import KARPENTER_LABEL
from evenkeel.domain.policy import Policy
from evenkeel.domain.recovery.other_controllers import is_manual_cordon
from evenkeel.domain.shadow.node_index import KUBELET
from evenkeel.domain.shadow.records import ExportedRecord, NodeSnapshot
from evenkeel.domain.values import rfc3339
from evenkeel.events import cloudtrail, envelope, hyperpod_history, kubernetes_event, kubernetes_node
from evenkeel.events.outcomes import Ignored, Malformed, ParsedEvent, ParseResult, Unknown

Json = dict[str, Any]

_LISTS = ("Records", "items", "Events")
_WATCH_EVENTS = ("ADDED", "MODIFIED", "DELETED")
_CORDON_TAINT = "node.kubernetes.io/unschedulable"
_DEEPEST = 4
"""Maximum depth of documents: an event in a list may itself contain a list."""


class DocumentReading(NamedTuple):
    """The record of one document, or why the document cannot be used."""

    records: tuple[ExportedRecord, ...] = ()
    unknown: str = ""
    """Kind of a document without a parser."""
    malformed: str = ""
    is_drill: bool = False


def read_events(document: object, cluster: str, policy: Policy, depth: int = 0) -> Iterator[DocumentReading]:
    """Yield the reading of each event in a document.

    Args:
        document: The document.
        cluster: Name of the cluster of node objects.
        policy: The site's policy.
        depth: Number of documents around this one.
    """
    if not isinstance(document, dict):
        yield DocumentReading(malformed="not a JSON object")
        return
    inner = _inner_documents(document)
    if inner is not None and depth < _DEEPEST:
        for inner_event in inner:
            yield from read_events(inner_event, cluster, policy, depth + 1)
        return
    is_deleted = document.get("type") == "DELETED"
    node = document["object"] if document.get("type") in _WATCH_EVENTS and "object" in document else document
    if isinstance(node, dict) and node.get("kind") == "Node":
        yield _read_node_object(node, cluster, policy, is_deleted=is_deleted)
    elif isinstance(node, dict) and kubernetes_event.is_event(node):
        yield _read_kubernetes_event(node)
    elif cloudtrail.is_cloudtrail_record(document):
        yield _read_cloudtrail_record(document)
    elif hyperpod_history.is_hyperpod_event(document):
        envelope = hyperpod_history.to_envelope(document)
        yield (
            DocumentReading(malformed=_problem_text(envelope))
            if isinstance(envelope, Malformed)
            else _read_eventbridge_event(envelope)
        )
    elif "detail-type" in document:
        yield _read_eventbridge_event(document)
    else:
        yield DocumentReading(unknown=f"a document with the fields {', '.join(sorted(map(str, document))[:5])}")


def _inner_documents(document: Json) -> list[Any] | None:
    """Return the documents inside a document; None if it is an event itself."""
    for name in _LISTS:
        if isinstance(document.get(name), list):
            return list(document[name])
    if isinstance(document.get("CloudTrailEvent"), str):
        try:
            return [json.loads(document["CloudTrailEvent"])]
        except ValueError:
            return [None]
    if document.get("detail-type") == cloudtrail.DETAIL_TYPE:
        return [document.get("detail")]
    detail = document.get("EventDetails")
    if "detail-type" not in document and isinstance(detail, dict) and hyperpod_history.is_hyperpod_event(detail):
        return [detail]
    return None


def _read_eventbridge_event(document: Json) -> DocumentReading:
    """Read an event of EventBridge with the parser of the service."""
    body = json.dumps(document).encode("utf-8", errors="surrogatepass")
    parse_result: ParseResult = envelope.parse(body)
    match parse_result:
        case ParsedEvent():
            facts = [fact for fact in parse_result.facts if not fact.is_drill]
            if not facts:
                return DocumentReading(is_drill=True)
            records = (
                ExportedRecord(
                    key=f"{fact.source}/{fact.instance_group}/{fact.fact_key}"
                    if isinstance(fact, GroupFact)
                    else fact.fact_key,
                    # The source may report a fact later than it happened.
                    at=max(fact.observed_at, datetime.fromisoformat(document["time"])),
                    content=fact,
                )
                for fact in facts
            )
            return DocumentReading(tuple(records))
        case _:
            return _without_records(parse_result)


def _read_cloudtrail_record(document: Json) -> DocumentReading:
    parse_result = cloudtrail.parse(document)
    if not isinstance(parse_result, tuple):
        return _without_records(parse_result)
    prefix = f"cloudtrail/{document['eventID']}"
    return DocumentReading(
        tuple(
            ExportedRecord(key=f"{prefix}/{action.instance_id}{action.logical_id}", at=action.event.at, content=action)
            for action in parse_result
        )
    )


def _read_kubernetes_event(document: Json) -> DocumentReading:
    parse_result = kubernetes_event.parse(document)
    if not isinstance(parse_result, tuple):
        return _without_records(parse_result)
    metadata = document["metadata"]
    name = metadata.get("uid") or f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"
    return DocumentReading(
        tuple(ExportedRecord(key=f"event/{name}/{rfc3339(at)}", at=at, content=content) for at, content in parse_result)
    )


def _without_records(parse_result: ParseResult) -> DocumentReading:
    match parse_result:
        case Malformed():
            return DocumentReading(malformed=_problem_text(parse_result))
        case Unknown():
            return DocumentReading(unknown=parse_result.reason)
        case Ignored() | ParsedEvent():
            return DocumentReading()


def _problem_text(malformed: Malformed) -> str:
    return f"{malformed.code}: {malformed.reason}"


# ---------------------------------------------------------------- node objects


def _read_node_object(document: Json, cluster: str, policy: Policy, *, is_deleted: bool) -> DocumentReading:
    """Read the export of a Kubernetes node: its state, dated with the latest time in the object, and its facts."""
    try:
        at = max(_times_in(document))
        node = read_node(cluster, document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return DocumentReading(malformed=f"not a node object: {type(error).__name__}: {error}"[:200])
    if node.instance_id is None:
        return DocumentReading(unknown="a node object without an EC2 instance id")
    observation = NodeSnapshot(
        cluster=cluster,
        node_name=node.name,
        instance_id=node.instance_id,
        created_at=node.created_at,
        pool=node.pool,
        instance_type=node.instance_type,
        boot_id=node.boot_id,
        is_hyperpod=node.hyperpod_cluster_id is not None,
        is_karpenter=KARPENTER_LABEL in node.labels and node.hyperpod_cluster_id is None,
        is_ready=node.is_ready,
        not_ready_since=node.not_ready_since,
        is_cordoned=node.is_cordoned,
        cordoned_at=_cordoned_at(document),
        is_manual_cordon=is_manual_cordon(node),
        has_fault_marks=bool(kubernetes_node.fault_evidence(node, policy.watch, policy.catalogue, at)),
        is_deleted=is_deleted,
    )
    # The times of NotReady follow from all objects and events of the node together.
    facts = [fact for fact in kubernetes_node.node_facts(node, policy.watch, at) if fact.source != KUBELET]
    digest = hashlib.sha256(observation.model_dump_json().encode()).hexdigest()[:16]
    records = [ExportedRecord(key=f"node/{node.name}/{rfc3339(at)}/{digest}", at=at, content=observation)]
    records += [ExportedRecord(key=fact.fact_key, at=at, content=fact) for fact in facts if not fact.is_drill]
    return DocumentReading(tuple(records))


def _times_in(document: Mapping[str, Any]) -> Iterator[datetime]:
    """Yield the times in a node object. Kubernetes wrote the object at the latest of them, or shortly after."""
    metadata, status = document["metadata"], document.get("status") or {}
    texts = [metadata.get("creationTimestamp"), metadata.get("deletionTimestamp")]
    texts += [field.get("time") for field in metadata.get("managedFields") or ()]
    for condition in status.get("conditions") or ():
        texts += [condition.get("lastHeartbeatTime"), condition.get("lastTransitionTime")]
    times = [datetime.fromisoformat(text) for text in texts if text]
    if not times or any(at.tzinfo is None for at in times):
        raise ValueError("it shows no time with a time zone")
    yield from times


def _cordoned_at(document: Mapping[str, Any]) -> datetime | None:
    taints = (document.get("spec") or {}).get("taints") or ()
    added_at = next((taint.get("timeAdded") for taint in taints if taint.get("key") == _CORDON_TAINT), None)
    return datetime.fromisoformat(added_at) if added_at else None
