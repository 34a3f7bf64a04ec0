"""EventBridge envelopes: choose the parser by source and detail-type, and nothing else.

The order of the checks is: size, JSON, kind of event, model of that kind.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeAlias

from pydantic import ValidationError

from evenkeel.events import (
    aws_health,
    ec2_notices,
    fields,
    hyperpod_cluster_event,
    hyperpod_cluster_state,
    hyperpod_node_health,
    reported_faults,
)
from evenkeel.events.outcomes import Malformed, ParseResult, Unknown

Document: TypeAlias = dict[str, Any]
Parser: TypeAlias = Callable[[Document], ParseResult]
"""Reads an event of one kind. Raises pydantic's ValidationError if the event does not fit its model."""

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
"""Parsers by source and detail-type. A drill may send events of AWS, but not reports, which come through the API."""
_DRILLS: Mapping[str, Parser] = {
    detail_type: parser
    for source, parsers in PARSERS.items()
    if source.startswith("aws.")
    for detail_type, parser in parsers.items()
}

LARGEST_BYTES = 131_072
"""Maximum bytes of an event. Real events have a few KB; the largest lists every instance group of a large cluster."""


def parse(body: bytes) -> ParseResult:
    """Parse one event from EventBridge. No content of the event makes it raise."""
    if len(body) > LARGEST_BYTES:
        return Malformed("EVENT_TOO_LARGE", f"{len(body)} bytes, at most {LARGEST_BYTES} are read")
    try:
        document = json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        return Malformed("EVENT_BAD_TEXT", "the event is not UTF-8")
    except (ValueError, RecursionError):
        return Malformed("EVENT_BAD_JSON", "the event is not JSON")
    if not isinstance(document, dict):
        return Malformed("EVENT_BAD_JSON", "the event is not a JSON object")
    parser = _find_parser(document)
    if parser is None:
        return Unknown(f"no parser for {_quoted(document.get('source'))} / {_quoted(document.get('detail-type'))}")
    try:
        return parser(document)
    except ValidationError as error:
        return fields.malformed_event(error)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _find_parser(document: Document) -> Parser | None:
    source, detail_type = document.get("source"), document.get("detail-type")
    if not isinstance(source, str) or not isinstance(detail_type, str):
        return None
    return (_DRILLS if source == fields.DRILL_SOURCE else PARSERS.get(source, {})).get(detail_type)


def _quoted(value: object) -> str:
    return ascii(value)[:80]
