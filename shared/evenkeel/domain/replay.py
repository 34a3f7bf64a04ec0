"""Replay decision records: pass the recorded facts to the same functions again.

A record replays with the engine version that wrote it, and with the policy and fault catalogue of its hashes. If the
answer differs from the recorded one, the record does not hold all facts of the decision.
"""

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from pydantic import ValidationError

from evenkeel.domain.admission.decide_job import AdmissionFacts, decide, recorded_reason
from evenkeel.domain.admission.queue_without_teams import with_spares
from evenkeel.domain.decisions import ENGINE_VERSION, MAX_ALTERNATIVES, OMITTED, Alternative, Decision
from evenkeel.domain.health.incidents import PlanOutcome
from evenkeel.domain.policy import Policy
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.recovery.attribution import AttributionFacts, attribute_fault
from evenkeel.domain.recovery.draining import DrainFacts, plan_drain
from evenkeel.domain.recovery.node_slot import ObservedNode
from evenkeel.domain.recovery.plan import PlanFacts, outcome_in_mode, plan_recovery, why_not_allowed
from evenkeel.domain.recovery.repair import choose_repair
from evenkeel.domain.recovery.repair_facts import RepairFacts
from evenkeel.domain.recovery.resume_options import ResumeFacts, plan_resume
from evenkeel.domain.recovery.rollback import RollbackFacts, decide_rollback
from evenkeel.domain.recovery.unmanaged_restarts import RestartFacts, decide_restart
from evenkeel.domain.recovery.validation import CheckFacts, choose_check, judge_node
from evenkeel.domain.renting.displacement import DisplacementFacts, decide_displacement
from evenkeel.domain.renting.migration import (
    MigrationFacts,
    TemporaryCapacityFacts,
    decide_migration,
    decide_temporary_capacity,
)
from evenkeel.domain.renting.mixed_capacity import MixedFacts, decide_mixed
from evenkeel.domain.renting.placement import PlacementFacts, choose_pool
from evenkeel.domain.renting.serving_return import ServingReturnFacts, decide_serving_return
from evenkeel.domain.scheduling.burst_checks import BurstCheckFacts, decide_burst_check
from evenkeel.domain.scheduling.resize_facts import ResizeFacts, resize_answer
from evenkeel.domain.values import Sentence, Value

F = TypeVar("F", bound=Value)


class CannotReplayError(ValueError):
    """The record cannot be replayed: it needs another engine, policy or catalogue, or its kind is unknown."""


class _DecisionResult(Protocol):
    """The parts of a result that a replay compares."""

    @property
    def action(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def alternatives(self) -> tuple[Alternative, ...]: ...


class Replayed(Value):
    """The answer of a replay."""

    action: str
    reason: Sentence
    alternatives: tuple[Alternative, ...] = ()

    def differs_from(self, decision_record: Decision) -> str:
        """Return how this answer differs from the recorded one, as a clause; empty if it is the same."""
        for name in ("action", "reason", "alternatives"):
            now, then = getattr(self, name), getattr(decision_record, name)
            if name == "alternatives":
                now, then = now[:MAX_ALTERNATIVES], then[:MAX_ALTERNATIVES]
            if now != then:
                return f"its {name} was {then!r} and would be {now!r}"
        return ""


def replay(decision_record: Decision, policy: Policy, catalogue_hash: str = "") -> Replayed:
    """Replay a decision record.

    Args:
        decision_record: The decision record.
        policy: The policy with the hash in the record.
        catalogue_hash: Hash of the fault catalogue in force here.

    Raises:
        CannotReplayError: The record needs another engine, policy or catalogue, or its kind is unknown.
    """
    if decision_record.policy_hash != policy.hash:
        raise CannotReplayError(
            f"{decision_record.decision_id} needs policy {decision_record.policy_hash}, and this is {policy.hash}"
        )
    if decision_record.catalogue_hash and catalogue_hash and decision_record.catalogue_hash != catalogue_hash:
        raise CannotReplayError(f"{decision_record.decision_id} needs catalogue {decision_record.catalogue_hash}")
    return decide_again(decision_record, policy)


def decide_again(decision_record: Decision, policy: Policy) -> Replayed:
    """Decide the facts of a record under another policy. The recorded facts stay, including the terms of the fault.

    Raises:
        CannotReplayError: The record needs another engine, or its kind is unknown.
    """
    if decision_record.engine_version != ENGINE_VERSION:
        raise CannotReplayError(
            f"{decision_record.decision_id} needs engine {decision_record.engine_version}, and this is {ENGINE_VERSION}"
        )
    if OMITTED in decision_record.facts:
        raise CannotReplayError(f"{decision_record.decision_id} has no facts: {decision_record.facts[OMITTED]}")
    decide_kind = _BY_KIND.get(decision_record.kind)
    if decide_kind is None:
        raise CannotReplayError(f"{decision_record.decision_id} has the unknown kind {decision_record.kind}")
    try:
        return decide_kind(decision_record, policy)
    except ValidationError as error:
        raise CannotReplayError(
            f"{decision_record.decision_id} has facts that do not fit its kind {decision_record.kind}"
        ) from error


def _read_facts(kind: type[F], decision_record: Decision) -> F:
    """Read the facts of a record. A newer release may have recorded more of them."""
    return kind.model_validate(decision_record.facts, extra="allow")


def record_in_mode(decision_record: Decision, mode: Mode) -> Decision:
    """Return a record as if its incident had another mode. A kind that does not depend on the mode stays unchanged."""
    if decision_record.kind == "RECOVERY":
        facts: Value = _read_facts(PlanFacts, decision_record).replace(mode=mode)
    elif decision_record.kind == "REPAIR":
        # Keep the reason if it does not come from the mode, for example that drills may not act.
        recorded_facts = _read_facts(RepairFacts, decision_record)
        by_mode = why_not_allowed(mode, is_drill=False, drills_may_act=True)
        facts = recorded_facts.replace(
            not_allowed=by_mode if recorded_facts.not_allowed in _BY_MODE else recorded_facts.not_allowed
        )
    else:
        return decision_record
    return decision_record.replace(facts=facts.to_json(), mode=mode)


def effect_of(decision_record: Decision, intent: str) -> str:
    """Return the outcome of an answer in the mode of its record. For a plan: whether Evenkeel carries it out."""
    if decision_record.kind != "RECOVERY":
        return intent
    return outcome_in_mode(PlanOutcome(intent), _read_facts(PlanFacts, decision_record))


def _replay_recovery(decision_record: Decision, policy: Policy) -> Replayed:
    plan = plan_recovery(_read_facts(PlanFacts, decision_record), policy.repair)
    return Replayed(action=plan.intent, reason=plan.reason, alternatives=plan.alternatives)


def _replay_repair(decision_record: Decision, policy: Policy) -> Replayed:
    decision = choose_repair(_read_facts(RepairFacts, decision_record), policy.repair)
    return Replayed(action=decision.action, reason=decision.reason, alternatives=decision.alternatives)


def _replay_check(decision_record: Decision, policy: Policy) -> Replayed:
    decision = choose_check(_read_facts(CheckFacts, decision_record), policy.repair)
    return Replayed(action=decision.kind, reason=decision.reason, alternatives=decision.alternatives)


def _replay_resume(decision_record: Decision, policy: Policy) -> Replayed:
    decision = plan_resume(_read_facts(ResumeFacts, decision_record), policy.jobs)
    return Replayed(action=decision.option, reason=decision.reason, alternatives=decision.alternatives)


def _replay_rollback(decision_record: Decision, policy: Policy) -> Replayed:
    decision = decide_rollback(_read_facts(RollbackFacts, decision_record), policy.jobs)
    return Replayed(action=decision.action, reason=decision.reason, alternatives=decision.alternatives)


def _replay_drain(decision_record: Decision, policy: Policy) -> Replayed:
    decision = plan_drain(_read_facts(DrainFacts, decision_record), policy)
    return Replayed(action=decision.action, reason=decision.reason, alternatives=decision.alternatives)


def _replay_restart(decision_record: Decision, _policy: Policy) -> Replayed:
    decision = decide_restart(_read_facts(RestartFacts, decision_record))
    return Replayed(action=decision.action, reason=decision.reason, alternatives=decision.alternatives)


def _replayed(result: _DecisionResult) -> Replayed:
    return Replayed(action=result.action, reason=result.reason, alternatives=result.alternatives)


def _replay_attribution(decision_record: Decision, _policy: Policy) -> Replayed:
    attribution = attribute_fault(_read_facts(AttributionFacts, decision_record))
    if attribution is None:
        return Replayed(action="", reason="The attempt has no such rank.")
    return Replayed(action=attribution.instance_id, reason=attribution.reason, alternatives=attribution.alternatives)


def _replay_admission(decision_record: Decision, policy: Policy) -> Replayed:
    decision = decide(with_spares(_read_facts(AdmissionFacts, decision_record), policy.scheduling))
    return Replayed(
        action=decision.action,
        reason=recorded_reason(decision, Mode(decision_record.mode)),
        alternatives=decision.alternatives,
    )


def _replay_resize(decision_record: Decision, _policy: Policy) -> Replayed:
    return _replayed(resize_answer(_read_facts(ResizeFacts, decision_record)))


def _replay_placement(decision_record: Decision, _policy: Policy) -> Replayed:
    placement = choose_pool(_read_facts(PlacementFacts, decision_record))
    return Replayed(
        action=placement.action,
        reason=placement.recorded_reason(Mode(decision_record.mode)),
        alternatives=placement.alternatives,
    )


def _replay_burst_check(decision_record: Decision, _policy: Policy) -> Replayed:
    return _replayed(decide_burst_check(_read_facts(BurstCheckFacts, decision_record)))


def _replay_serving_return(decision_record: Decision, _policy: Policy) -> Replayed:
    return _replayed(decide_serving_return(_read_facts(ServingReturnFacts, decision_record)))


def _replay_mixed_growth(decision_record: Decision, _policy: Policy) -> Replayed:
    decision = decide_mixed(_read_facts(MixedFacts, decision_record))
    return Replayed(
        action=decision.action,
        reason=decision.recorded_reason(Mode(decision_record.mode)),
        alternatives=decision.alternatives,
    )


def _replay_displacement(decision_record: Decision, _policy: Policy) -> Replayed:
    return _replayed(decide_displacement(DisplacementFacts.model_validate(decision_record.facts)))


def _replay_migration(decision_record: Decision, _policy: Policy) -> Replayed:
    return _replayed(decide_migration(_read_facts(MigrationFacts, decision_record)))


def _replay_temporary_capacity(decision_record: Decision, _policy: Policy) -> Replayed:
    decision = decide_temporary_capacity(_read_facts(TemporaryCapacityFacts, decision_record))
    return Replayed(action=decision.state, reason=decision.reason)


def _replay_validation(decision_record: Decision, _policy: Policy) -> Replayed:
    verdict = judge_node(
        ObservedNode.model_validate(decision_record.facts["observed"], extra="allow"),
        expected_count=int(decision_record.facts["expected"]),
    )
    return Replayed(action="RELEASE" if verdict.is_valid else "KEEP", reason=verdict.reason)


_BY_MODE = {"", *(why_not_allowed(mode, is_drill=False, drills_may_act=True) for mode in Mode)}
"""Values of `RepairFacts.not_allowed` that come from the mode alone."""
_BY_KIND: Mapping[str, Callable[[Decision, Policy], Replayed]] = {
    "RECOVERY": _replay_recovery,
    "REPAIR": _replay_repair,
    "CHECK": _replay_check,
    "RESUME": _replay_resume,
    "ROLLBACK": _replay_rollback,
    "DRAIN": _replay_drain,
    "RESTART": _replay_restart,
    "ATTRIBUTION": _replay_attribution,
    "ADMISSION": _replay_admission,
    "RESIZE": _replay_resize,
    "PLACEMENT": _replay_placement,
    "BURST_CHECK": _replay_burst_check,
    "SERVING_RETURN": _replay_serving_return,
    "MIXED_GROWTH": _replay_mixed_growth,
    "DISPLACEMENT": _replay_displacement,
    "MIGRATION": _replay_migration,
    "TEMPORARY_CAPACITY": _replay_temporary_capacity,
    "VALIDATION": _replay_validation,
}

KINDS = frozenset(_BY_KIND)
"""Every kind of decision that can be replayed: all recorded kinds."""
