"""Decision records: the answer, its reason, the rejected alternatives and the facts of a decision."""

import base64
import json
import zlib
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, TypeAdapter

from evenkeel.domain.plurals import count_of
from evenkeel.domain.values import Instant, Sentence, Value

ENGINE_VERSION = "2"
"""Increased when a rule changes its answer for the same facts and policy. A record replays only with its version."""


PACKED_FROM = 65_536
"""Facts with at least this many bytes are compressed. A row has at most 400 kB, and a commit 4 MB."""
PACKED_FROM_IF_MANY = 1_000
"""Limit for records that are written by the hundred: DynamoDB charges a write by the KB."""
LARGEST_PACKED = 250_000
"""Maximum characters of compressed facts. A record keeps only the size of larger facts, so that it can be stored."""
MAX_ALTERNATIVES = 50
"""Maximum alternatives in one record, in the order in which they were considered."""
PACKED = "packed"
"""Key of compressed facts."""
_WRITER: TypeAdapter[Any] = TypeAdapter(Any)
"""Writes JSON twice as fast as `json`: the facts of a scheduling cycle have megabytes."""
OMITTED = "omitted"
"""Key that replaces facts that are too large. Its value is the reason. Such a record does not replay."""


def packed(facts: Mapping[str, Any], packed_from: int = PACKED_FROM) -> dict[str, Any]:
    """Return facts in the form of a record: unchanged, or compressed as `{"packed": <base64 of zlib>}` if long."""
    text = _WRITER.dump_json(facts)
    if len(text) < packed_from:
        return dict(facts)
    compressed_text = _compressed(text)
    if len(compressed_text) > LARGEST_PACKED:
        return {OMITTED: f"{count_of(len(compressed_text), 'character')} compressed, and the limit is {LARGEST_PACKED}"}
    return {PACKED: compressed_text}


def packed_size(facts: Any) -> int:
    """Return the number of characters of a document after compression."""
    return len(_compressed(_WRITER.dump_json(facts)))


def _compressed(text: bytes) -> str:
    return base64.b64encode(zlib.compress(text, level=3)).decode("ascii")


def unpacked(facts: Any) -> Any:
    """Return the facts before `packed`.

    Raises:
        ValueError: The text is not the result of `packed`.
    """
    if isinstance(facts, Mapping) and facts.keys() == {PACKED}:
        try:
            return json.loads(zlib.decompress(base64.b64decode(facts[PACKED])))
        except zlib.error as error:
            raise ValueError(f"{PACKED} is damaged: {error}") from error
    return facts


class Alternative(Value):
    """An option that the decision rejected."""

    option: Sentence
    why_not: Sentence
    expected_seconds: float | None = None
    gpu_hours_lost: float | None = None
    usd: float | None = None
    slowdown_seconds: float | None = None
    """Seconds that the job is expected to lose later, because its nodes are farther apart. Its other figures include
    them, except `expected_seconds`. None if unknown, or not weighed."""


class Decision(Value):
    """The record of one decision. Its facts, policy hash and engine version allow a replay."""

    decision_id: str
    kind: str
    """Kind of decision: `RECOVERY`, `REPAIR`, `DRAIN`, `RESUME`, `ADMISSION`, `VALIDATION`, …"""
    subject: str
    """Id of the incident or job that the decision is about."""
    action: str
    reason: Sentence
    """A sentence for an operator."""
    chosen: Alternative | None = None
    """The chosen option with its figures, if the options were compared by figures; its `why_not` is empty."""
    alternatives: tuple[Alternative, ...] = ()
    facts: Annotated[dict[str, Any], BeforeValidator(unpacked)] = {}
    """Long facts are stored compressed. Reading restores them."""
    policy_hash: str
    catalogue_hash: str = ""
    """Hash of the site's fault catalogue; empty if the decision used no fault."""
    engine_version: str = ENGINE_VERSION
    mode: str = ""
    is_dry_run: bool = False
    """Whether Evenkeel recorded the decision and did not carry it out: in mode `observe`, or on request."""
    decided_at: Instant
