"""The record of a decision: the domain's result, with the time, the policy and the mode.

The facts of a record may be in a row of its scheduling cycle: `facts_of_decisions.py` reads them.
"""

from typing import Protocol

from evenkeel.domain.decisions import Alternative, Decision
from evenkeel.domain.values import Value
from evenkeel.services.context import Context

WEIGH_FAULTS = frozenset({"CHECK", "DRAIN", "RECOVERY", "REPAIR", "RESTART", "RESUME", "ROLLBACK"})
"""Kinds of decisions that depend on the fault catalogue. Their records carry its hash."""


class Answer(Protocol):
    """A result of the domain that is recorded."""

    @property
    def reason(self) -> str:
        """Sentence for an operator."""
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
