"""What every decision carries: the answer, its reason, what else was weighed, and the facts it rests on."""

import base64
import json
import zlib
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator

from evenkeel.domain.values import Instant, Sentence, Value

ENGINE_VERSION = "2"
"""Raised when a rule changes its answer for the same facts and policy, so that old records still replay."""


PACKED_FROM = 65_536
"""Characters from which on facts are kept packed: an item holds 400 kB, and one commit 4 MB of a dozen records."""
LARGEST_PACKED = 250_000
"""Characters of packed facts that a record keeps. Of larger ones it keeps the size alone: the act matters more."""
MOST_ALTERNATIVES = 50
"""Of one record, in the order in which they were weighed."""
_PACKED = "packed"
OMITTED = "omitted"
"""In place of facts that are too large to keep: why. Such a record does not replay."""


def packed(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts as a record keeps them: as they are, or, where they are long, as `{"packed": <base64 of zlib>}`."""
    text = json.dumps(facts, separators=(",", ":"))
    if len(text) < PACKED_FROM:
        return dict(facts)
    squeezed = _squeezed(text)
    if len(squeezed) > LARGEST_PACKED:
        return {OMITTED: f"{len(squeezed)} characters packed, at most {LARGEST_PACKED} are kept"}
    return {_PACKED: squeezed}


def packed_size(facts: Any) -> int:
    """Return how many characters a document takes where it is packed."""
    return len(_squeezed(json.dumps(facts, separators=(",", ":"))))


def _squeezed(text: str) -> str:
    return base64.b64encode(zlib.compress(text.encode(), level=3)).decode("ascii")


def unpacked(facts: Any) -> Any:
    """Return what `packed` was given."""
    if isinstance(facts, Mapping) and facts.keys() == {_PACKED}:
        return json.loads(zlib.decompress(base64.b64decode(facts[_PACKED])))
    return facts


class Alternative(Value):
    """One option that was weighed and not taken."""

    option: Sentence
    why_not: Sentence
    expected_seconds: float | None = None
    gpu_hours_lost: float | None = None
    usd: float | None = None


class Decision(Value):
    """The record of one decision. It replays from `facts`, the policy of that hash and the engine version."""

    decision_id: str
    kind: str
    """What was decided: `RECOVERY`, `REPAIR`, `DRAIN`, `RESUME`, `ADMISSION`, `VALIDATION`, …"""
    subject: str
    """Id of the incident or job it is about."""
    action: str
    reason: Sentence
    """A sentence for an operator."""
    chosen: Alternative | None = None
    """The option taken, with its figures, where options were weighed by figures; `why_not` is empty."""
    alternatives: tuple[Alternative, ...] = ()
    facts: Annotated[dict[str, Any], BeforeValidator(unpacked)] = {}
    """Long ones are kept packed, and read as they were."""
    policy_hash: str
    catalogue_hash: str = ""
    """Of the fault catalogue as the site has it; empty where no fault was weighed."""
    engine_version: str = ENGINE_VERSION
    mode: str = ""
    simulated: bool = False
    decided_at: Instant
