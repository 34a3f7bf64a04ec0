"""EventBridge envelopes: routed by source and detail-type and nothing else.

Size first, then JSON, then the kind, then the kind's own parser. `resources` and `version` are not read: AWS fills them
in several ways, or not at all.
"""

import json
from typing import Any, NoReturn, TypeAlias

from evenkeel.domain.health.incidents import NodeFact
from evenkeel.events import hyperpod_cluster_event, hyperpod_node_health
from evenkeel.events.outcomes import BadEvent, Ignored, Malformed, Unknown

Fact: TypeAlias = NodeFact
"""What an event that matters comes out as."""

DRILL_SOURCE = "evenkeel.drill"
SOURCES = frozenset({"aws.sagemaker", DRILL_SOURCE})

LARGEST_BYTES = 131_072
"""Real events are a few KB; one with every instance group of a large cluster stays below this."""


def parse(body: bytes) -> NodeFact | Ignored | Unknown | Malformed:
    """Read one envelope as it came from EventBridge. Never raises for what the envelope contains."""
    if len(body) > LARGEST_BYTES:
        return Malformed("EVENT_TOO_LARGE", f"{len(body)} bytes, at most {LARGEST_BYTES} are read")
    try:
        return _routed(_document(body))
    except BadEvent as bad:
        return bad.malformed


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        raise BadEvent("EVENT_BAD_TEXT", "the event is not UTF-8") from None
    except (ValueError, RecursionError):
        raise BadEvent("EVENT_BAD_JSON", "the event is not JSON") from None
    if type(document) is not dict:
        raise BadEvent("EVENT_BAD_JSON", "the event is not a JSON object")
    return document


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _routed(envelope: dict[str, Any]) -> NodeFact | Ignored | Unknown:
    source, detail_type = envelope.get("source"), envelope.get("detail-type")
    is_named = type(source) is str and type(detail_type) is str
    if not is_named or source not in SOURCES or detail_type not in _PARSERS:
        return Unknown(f"no parser for {_shown(source)} / {_shown(detail_type)}")
    if "detail" not in envelope:
        raise BadEvent("EVENT_NO_DETAIL", "detail: missing")
    detail = envelope["detail"]
    if type(detail) is not dict:
        raise BadEvent("EVENT_NO_DETAIL", "detail: not an object")
    if detail_type == hyperpod_cluster_event.EVENT_DETAIL_TYPE:
        return hyperpod_cluster_event.parse_event(detail)
    if detail_type == hyperpod_cluster_event.STATE_DETAIL_TYPE:
        return hyperpod_cluster_event.parse_state(detail)
    return hyperpod_node_health.parse(envelope, detail, is_drill=source == DRILL_SOURCE)


_PARSERS = frozenset(
    {
        hyperpod_node_health.DETAIL_TYPE,
        hyperpod_cluster_event.EVENT_DETAIL_TYPE,
        hyperpod_cluster_event.STATE_DETAIL_TYPE,
    }
)


def _shown(value: object) -> str:
    return ascii(value)[:80]
