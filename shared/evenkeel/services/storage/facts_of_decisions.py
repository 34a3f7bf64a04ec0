"""The facts of records: their own, or the facts of their scheduling cycle."""

from collections.abc import Iterable, Iterator

from evenkeel.domain.decisions import Decision
from evenkeel.domain.scheduling.cycle_facts import POINTER, CycleFacts, without_cycle
from evenkeel.ports import EvenkeelError, Ledger, Unreadable
from evenkeel.services.tables import cycle_facts_rows, rows


def with_facts(decision_records: Iterable[Decision], ledger: Ledger) -> Iterator[Decision]:
    """Yield records with the facts of their cycles, each cycle read once.

    A record whose cycle cannot be read says so in its facts, and does not replay.
    """
    cycles: dict[str, CycleFacts | str] = {}
    for decision_record in decision_records:
        digest = decision_record.facts.get(POINTER)
        if not isinstance(digest, str):
            yield decision_record
            continue
        if digest not in cycles:
            cycles[digest] = _cycle_facts(digest, ledger)
        yield _with_cycle_facts(decision_record, cycles[digest])


def _cycle_facts(digest: str, ledger: Ledger) -> CycleFacts | str:
    """Return the facts of a cycle, or why they cannot be read."""
    try:
        row = ledger.get(cycle_facts_rows.facts_key(digest))
    except EvenkeelError as error:
        return f"the row of their cycle cannot be read now: {str(error)[:300]}"
    if row is None:
        return f"the row of their cycle, FACTS#{digest}, does not exist"
    if cycle_facts_rows.facts_digest(row.doc) != digest:
        return f"the row of their cycle, FACTS#{digest}, was changed after it was written"
    try:
        return rows.decode(row, CycleFacts)
    except (Unreadable, ValueError) as error:
        return f"the row of their cycle cannot be read: {str(error)[:300]}"


def _with_cycle_facts(decision_record: Decision, cycle: CycleFacts | str) -> Decision:
    facts = cycle if isinstance(cycle, str) else cycle.facts_of(decision_record.decision_id)
    if facts is None:
        facts = f"the row of their cycle, FACTS#{decision_record.facts[POINTER]}, does not name this decision"
    return decision_record.replace(facts=without_cycle(facts) if isinstance(facts, str) else facts)
