"""The facts that several records of one scheduling cycle share. They are stored once."""

from collections.abc import Mapping

from evenkeel.domain.admission.decide_job import AdmissionDecision, AdmissionFacts
from evenkeel.domain.scheduling.cycle_facts import Json, pointer_to
from evenkeel.ports import Put
from evenkeel.services.context import Context
from evenkeel.services.tables import cycle_facts_rows


class SharedFacts:
    """The facts of some decisions of a cycle, and the rows that hold them."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._digests: dict[str, str] = {}
        """Decision → digest of the row with its facts."""
        self.unwritten: tuple[Put, ...] = ()
        """The row to be written with the next records."""

    def share(self, facts: Mapping[str, AdmissionFacts]) -> None:
        """Put the facts of several decisions into shared rows. A single row waits for the first commit.

        Several rows are written at once, before the records. If the cycle then commits nothing, no record names these
        rows, and they expire.
        """
        if len(facts) < 2:
            return
        groups = list(cycle_facts_rows.facts_rows(facts, self._context.now))
        self._digests = {name: digest for digest, _, names in groups for name in names}
        writes = tuple(Put(row) for _, row, _ in groups)
        if len(writes) == 1:
            self.unwritten = writes
            return
        for write in writes:
            self._context.ledger.commit(write)

    def of(self, decision: AdmissionDecision, decision_id: str) -> Json:
        """Return the facts that the record of a decision keeps, or a pointer to the row that holds them."""
        digest = self._digests.get(decision_id)
        return pointer_to(digest) if digest else decision.facts.to_json()
