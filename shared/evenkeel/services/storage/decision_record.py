"""The record of a decision: the domain's result, with the time, the policy and the mode.

The facts of a record may be in a row of its scheduling cycle. Readers that need facts call `with_facts`.
"""

from collections.abc import Iterable, Iterator
from typing import Protocol

from evenkeel.domain.admission.cycle_facts import POINTER, CycleFacts, without_cycle
from evenkeel.domain.decisions import Alternative, Decision
from evenkeel.domain.values import Value
from evenkeel.ports import Ledger, Row, Unreadable
from evenkeel.services.context import Context
from evenkeel.services.storage import rows, subject_rows

WEIGH_FAULTS = frozenset({"CHECK", "DRAIN", "RECOVERY", "REPAIR", "RESTART", "RESUME", "ROLLBACK"})
"""Kinds of decisions that depend on the fault catalogue. Their records carry its hash."""


class Answer(Protocol):
    """A result of the domain that is recorded."""

    @property
    def reason(self) -> str:
        """One sentence for an operator."""
        ...

    @property
    def alternatives(self) -> tuple[Alternative, ...]:
        """The options that were not chosen."""
        ...


def decision_of(
    kind: str, subject: str, action: str, answer: Answer, facts: Value, context: Context, *, decision_id: str = ""
) -> Decision:
    """Return the record of a result, with the time, the policy and the mode of the context.

    Args:
        kind: `ADMISSION`, `REPAIR`, `RESUME`, …
        subject: Id of the job or incident.
        action: The result in one word.
        answer: Its reason and its alternatives.
        facts: Everything that the result follows from, so that the record replays.
        context: Gives the time, the policy, the mode and a new id.
        decision_id: The id, if it was chosen before.
    """
    return Decision(
        decision_id=decision_id or context.ids.new("dec"),
        kind=kind,
        subject=subject,
        action=action,
        reason=answer.reason,
        alternatives=answer.alternatives,
        facts=facts.to_json(),
        policy_hash=context.policy.hash,
        catalogue_hash=context.policy.catalogue.hash if kind in WEIGH_FAULTS else "",
        mode=context.mode,
        decided_at=context.now,
    )


def with_facts(records: Iterable[Decision], ledger: Ledger) -> Iterator[Decision]:
    """Yield records with the facts of their cycles, each cycle read once.

    A record whose cycle cannot be read says so in its facts, and does not replay.
    """
    cycles: dict[str, CycleFacts | str] = {}
    for record in records:
        digest = record.facts.get(POINTER)
        if not isinstance(digest, str):
            yield record
            continue
        if digest not in cycles:
            cycles[digest] = _cycle_facts(digest, ledger.get(subject_rows.cycle_facts_key(digest)))
        yield _resolved(record, cycles[digest])


def _cycle_facts(digest: str, row: Row | None) -> CycleFacts | str:
    """Return the facts of a cycle, or why they cannot be read."""
    if row is None:
        return f"the row of their cycle, FACTS#{digest}, does not exist"
    if subject_rows.cycle_facts_digest(row.doc) != digest:
        return f"the row of their cycle, FACTS#{digest}, was changed after it was written"
    try:
        return rows.read(row, CycleFacts)
    except (Unreadable, ValueError) as error:
        return f"the row of their cycle cannot be read: {str(error)[:300]}"


def _resolved(record: Decision, cycle: CycleFacts | str) -> Decision:
    facts = cycle if isinstance(cycle, str) else cycle.of(record.decision_id)
    if facts is None:
        facts = f"the row of their cycle, FACTS#{record.facts[POINTER]}, does not name this decision"
    return record.replace(facts=without_cycle(facts) if isinstance(facts, str) else facts)
