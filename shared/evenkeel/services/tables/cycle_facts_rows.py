"""Keys and lifetimes of the facts that the records of one scheduling cycle share. No other function needs them."""

import hashlib
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta

from evenkeel.domain.admission.decide_job import AdmissionFacts
from evenkeel.domain.decisions import OMITTED, PACKED_FROM_IF_MANY, packed
from evenkeel.domain.scheduling.cycle_facts import cycle_facts
from evenkeel.ports import Key, Row, Table
from evenkeel.ports.ledger import document_text
from evenkeel.services.tables import rows

_FACTS_KEPT = rows.KEPT + timedelta(days=1)
"""Longer than each record that points at the facts: it is decided within the same invocation."""


def facts_key(digest: str) -> Key:
    """Return the key `FACTS#digest / META` with the digest of the stored document."""
    return Key(Table.INCIDENTS, f"FACTS#{digest}", "META")


def facts_digest(doc: Mapping[str, object]) -> str:
    """Return the digest that names the row of a document."""
    return hashlib.sha256(document_text(doc).encode("utf-8", "backslashreplace")).hexdigest()[:32]


def facts_rows(facts: Mapping[str, AdmissionFacts], now: datetime) -> Iterator[tuple[str, Row, tuple[str, ...]]]:
    """Yield the rows that hold the facts of some decisions: one row, or more if it would be too large.

    Each item has the digest, the row and the ids of its decisions.

    A decision whose facts are too large by themselves is in no row.
    """
    if not facts:
        return
    doc = packed(cycle_facts(facts).to_json(), PACKED_FROM_IF_MANY)
    names = tuple(facts)
    if OMITTED not in doc:
        digest = facts_digest(doc)
        yield digest, Row(facts_key(digest), doc, 0, None, now + _FACTS_KEPT), names
    elif len(names) > 1:
        middle = len(names) // 2
        for half_of_names in (names[:middle], names[middle:]):
            yield from facts_rows({name: facts[name] for name in half_of_names}, now)
