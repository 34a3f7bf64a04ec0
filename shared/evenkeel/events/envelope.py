"""EventBridge envelopes: routed by source and detail-type and nothing else.

Size first, then JSON, then the kind, then the kind's own parser. `resources` and `version` are not read: AWS fills them
in several ways, or not at all.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeAlias

from pydantic import ValidationError

from evenkeel.events import (
    aws_health,
    ec2_notices,
    hyperpod_cluster_event,
    hyperpod_cluster_state,
    hyperpod_node_health,
    reported_faults,
)
from evenkeel.events.fields import Envelope
from evenkeel.events.outcomes import BadEvent, Ignored, Malformed, ParsedEvent, ParseResult, Unknown

Parser: TypeAlias = Callable[[Envelope], ParsedEvent | Ignored | Unknown]

DRILL_SOURCE = "evenkeel.drill"
PARSERS: Mapping[str, Mapping[str, Parser]] = {
    "aws.sagemaker": {
        hyperpod_node_health.DETAIL_TYPE: hyperpod_node_health.parse,
        hyperpod_cluster_event.DETAIL_TYPE: hyperpod_cluster_event.parse,
        hyperpod_cluster_state.DETAIL_TYPE: hyperpod_cluster_state.parse,
    },
    "aws.ec2": ec2_notices.PARSERS,
    "aws.health": {aws_health.DETAIL_TYPE: aws_health.parse},
    reported_faults.SOURCE: {reported_faults.DETAIL_TYPE: reported_faults.parse},
}
"""By source and detail-type. A drill may speak as AWS does, and never as a site's detector: those sign the API."""
_DRILLS: Mapping[str, Parser] = {
    detail_type: parser
    for source, parsers in PARSERS.items()
    if source.startswith("aws.")
    for detail_type, parser in parsers.items()
}

LARGEST_BYTES = 131_072
"""Real events are a few KB; one with every instance group of a large cluster stays below this."""


def parse(body: bytes) -> ParseResult:
    """Read one envelope as it came from EventBridge. Never raises for what the envelope contains."""
    if len(body) > LARGEST_BYTES:
        return Malformed("EVENT_TOO_LARGE", f"{len(body)} bytes, at most {LARGEST_BYTES} are read")
    try:
        return _parse_by_type(_document(body))
    except BadEvent as bad:
        return bad.malformed
    except ValidationError as error:  # a fact has a limit for each text
        fault = error.errors(include_url=False, include_input=False, include_context=False)[0]
        return Malformed("EVENT_TOO_LARGE", f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}")


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


def _parse_by_type(document: dict[str, Any]) -> ParsedEvent | Ignored | Unknown:
    source, detail_type = document.get("source"), document.get("detail-type")
    is_named = type(source) is str and type(detail_type) is str
    parsers = _DRILLS if source == DRILL_SOURCE else PARSERS.get(str(source), {})
    parser = parsers.get(str(detail_type)) if is_named else None
    if parser is None:
        return Unknown(f"no parser for {_quoted(source)} / {_quoted(detail_type)}")
    if "detail" not in document:
        raise BadEvent("EVENT_NO_DETAIL", "detail: missing")
    detail = document["detail"]
    if type(detail) is not dict:
        raise BadEvent("EVENT_NO_DETAIL", "detail: not an object")
    return parser(Envelope(document, detail, is_drill=source == DRILL_SOURCE))


def _quoted(value: object) -> str:
    return ascii(value)[:80]
