"""Decide again what a record says was decided: the same facts, through the very functions that decided then.

A record replays under the engine version that wrote it, with the policy and the fault catalogue of its hashes. Any
other answer than the recorded one would mean that the record does not hold all that the decision rested on.
"""

from collections.abc import Callable, Mapping

from pydantic import ValidationError

from evenkeel.domain.admission.decide import AdmissionFacts, decide, recorded_reason
from evenkeel.domain.admission.fifo import with_spares
from evenkeel.domain.admission.resize_facts import ResizeFacts, resize_answer
from evenkeel.domain.decisions import ENGINE_VERSION, MOST_ALTERNATIVES, OMITTED, Alternative, Decision
from evenkeel.domain.policy import Policy
from evenkeel.domain.policy_base import Mode
from evenkeel.domain.recovery.attribution import AttributionFacts, attribute_fault
from evenkeel.domain.recovery.draining import DrainFacts, plan_drain
from evenkeel.domain.recovery.node_slot import ObservedNode
from evenkeel.domain.recovery.plan import PlanFacts, PlanOutcome, not_allowed, outcome_of, plan_recovery
from evenkeel.domain.recovery.repair import RepairFacts, choose_repair
from evenkeel.domain.recovery.resume import ResumeFacts, plan_resume
from evenkeel.domain.recovery.rollback import RollbackFacts, roll_back
from evenkeel.domain.recovery.validation import CheckFacts, choose_check, judge_node
from evenkeel.domain.renting.demand import PlacementFacts
from evenkeel.domain.renting.migration import (
    MigrationFacts,
    TemporaryCapacityFacts,
    decide_migration,
    decide_temporary_capacity,
)
from evenkeel.domain.renting.placement import choose_pool, recorded_placement_reason
from evenkeel.domain.values import Sentence, Value


class CannotReplayError(ValueError):
    """The record cannot be decided again here: another engine, policy or catalogue made it, or its kind is unknown."""


class Replayed(Value):
    """What the same facts lead to now."""

    action: str
    reason: Sentence
    alternatives: tuple[Alternative, ...] = ()

    def differs_from(self, record: Decision) -> str:
        """Say in what this answer is another than the recorded one; empty where it is the same."""
        for name in ("action", "reason", "alternatives"):
            now, then = getattr(self, name), getattr(record, name)
            if name == "alternatives":
                now, then = now[:MOST_ALTERNATIVES], then[:MOST_ALTERNATIVES]
            if now != then:
                return f"its {name} was {then!r} and would be {now!r}"
        return ""


def replay(record: Decision, policy: Policy, catalogue_hash: str = "") -> Replayed:
    """Decide again from a record.

    Args:
        record: The decision as it was recorded.
        policy: The policy of its hash.
        catalogue_hash: Of the fault catalogue in force here.

    Raises:
        CannotReplayError: engine, policy or catalogue are not those of the record, or its kind has no row here.
    """
    if record.policy_hash != policy.hash:
        raise CannotReplayError(f"{record.decision_id}: policy {record.policy_hash} is needed, this is {policy.hash}")
    if record.catalogue_hash and catalogue_hash and record.catalogue_hash != catalogue_hash:
        raise CannotReplayError(f"{record.decision_id}: catalogue {record.catalogue_hash} is needed")
    return under(record, policy)


def under(record: Decision, policy: Policy) -> Replayed:
    """Decide what a record tells of under another policy: what is in its facts stays, a fault's own figures too.

    Raises:
        CannotReplayError: the engine is not that of the record, or its kind has no row here.
    """
    if record.engine_version != ENGINE_VERSION:
        raise CannotReplayError(
            f"{record.decision_id}: engine {record.engine_version} decided, this is {ENGINE_VERSION}"
        )
    if OMITTED in record.facts:
        raise CannotReplayError(f"{record.decision_id}: its facts were not kept: {record.facts[OMITTED]}")
    again = _BY_KIND.get(record.kind)
    if again is None:
        raise CannotReplayError(f"{record.decision_id}: no rule decides {record.kind}")
    try:
        return again(record, policy)
    except ValidationError as error:
        raise CannotReplayError(f"{record.decision_id}: its facts are not those of a {record.kind}") from error


def in_mode(record: Decision, mode: Mode) -> Decision:
    """Return a record as if its incident had been in another mode; as it is where its kind does not weigh the mode."""
    if record.kind == "RECOVERY":
        facts: Value = PlanFacts.model_validate(record.facts).but(mode=mode)
    elif record.kind == "REPAIR":
        # That drills may not act is no matter of the mode.
        was = RepairFacts.model_validate(record.facts)
        barred = not_allowed(mode, is_drill=False, drills_may_act=True)
        facts = was.but(not_allowed=barred if was.not_allowed in _BY_MODE else was.not_allowed)
    else:
        return record
    return record.but(facts=facts.to_json(), mode=mode)


def effect_of(record: Decision, intent: str) -> str:
    """Return what becomes of an answer in the mode of its record: of a plan, whether it is carried out."""
    if record.kind != "RECOVERY":
        return intent
    return outcome_of(PlanOutcome(intent), PlanFacts.model_validate(record.facts))


def _recovery(record: Decision, policy: Policy) -> Replayed:
    plan = plan_recovery(PlanFacts.model_validate(record.facts), policy.repair)
    return Replayed(action=plan.intent, reason=plan.reason, alternatives=plan.alternatives)


def _repair(record: Decision, policy: Policy) -> Replayed:
    decided = choose_repair(RepairFacts.model_validate(record.facts), policy.repair)
    return Replayed(action=decided.action, reason=decided.reason, alternatives=decided.alternatives)


def _check(record: Decision, policy: Policy) -> Replayed:
    decided = choose_check(CheckFacts.model_validate(record.facts), policy.repair)
    return Replayed(action=decided.kind, reason=decided.reason, alternatives=decided.alternatives)


def _resume(record: Decision, policy: Policy) -> Replayed:
    decided = plan_resume(ResumeFacts.model_validate(record.facts), policy.jobs)
    return Replayed(action=decided.option, reason=decided.reason, alternatives=decided.alternatives)


def _rollback(record: Decision, policy: Policy) -> Replayed:
    decided = roll_back(RollbackFacts.model_validate(record.facts), policy.jobs)
    return Replayed(action=decided.action, reason=decided.reason, alternatives=decided.alternatives)


def _drain(record: Decision, policy: Policy) -> Replayed:
    decided = plan_drain(DrainFacts.model_validate(record.facts), policy)
    return Replayed(action=decided.action, reason=decided.reason, alternatives=decided.alternatives)


def _attribution(record: Decision, _policy: Policy) -> Replayed:
    blamed = attribute_fault(AttributionFacts.model_validate(record.facts))
    if blamed is None:
        return Replayed(action="", reason="It has no such rank.")
    return Replayed(action=blamed.instance_id, reason=blamed.reason, alternatives=blamed.alternatives)


def _admission(record: Decision, policy: Policy) -> Replayed:
    decided = decide(with_spares(AdmissionFacts.model_validate(record.facts), policy.scheduling))
    return Replayed(
        action=decided.action, reason=recorded_reason(decided, Mode(record.mode)), alternatives=decided.alternatives
    )


def _resize(record: Decision, _policy: Policy) -> Replayed:
    answer = resize_answer(ResizeFacts.model_validate(record.facts))
    return Replayed(action=answer.action, reason=answer.reason, alternatives=answer.alternatives)


def _placement(record: Decision, _policy: Policy) -> Replayed:
    placed = choose_pool(PlacementFacts.model_validate(record.facts))
    reason = recorded_placement_reason(placed, Mode(record.mode))
    return Replayed(action=placed.action, reason=reason, alternatives=placed.alternatives)


def _decide_migration(record: Decision, _policy: Policy) -> Replayed:
    judged = decide_migration(MigrationFacts.model_validate(record.facts))
    return Replayed(action=judged.action, reason=judged.reason, alternatives=judged.alternatives)


def _temporary_capacity(record: Decision, _policy: Policy) -> Replayed:
    judged = decide_temporary_capacity(TemporaryCapacityFacts.model_validate(record.facts))
    return Replayed(action=judged.state, reason=judged.reason)


def _validation(record: Decision, _policy: Policy) -> Replayed:
    verdict = judge_node(ObservedNode.model_validate(record.facts["machine"]), expected=int(record.facts["expected"]))
    return Replayed(action="RELEASE" if verdict.is_valid else "KEEP", reason=verdict.reason)


_BY_MODE = {"", *(not_allowed(mode, is_drill=False, drills_may_act=True) for mode in Mode)}
"""What a repair's facts say where only the mode decides whether it may act."""
_BY_KIND: Mapping[str, Callable[[Decision, Policy], Replayed]] = {
    "RECOVERY": _recovery,
    "REPAIR": _repair,
    "CHECK": _check,
    "RESUME": _resume,
    "ROLLBACK": _rollback,
    "DRAIN": _drain,
    "BLAME": _attribution,
    "ADMISSION": _admission,
    "RESIZE": _resize,
    "PLACEMENT": _placement,
    "STAY": _decide_migration,
    "LOAN": _temporary_capacity,
    "VALIDATION": _validation,
}

KINDS = frozenset(_BY_KIND)
"""Every kind of decision that can be decided again: all that are recorded."""
