"""The number that each guardrail compares with its limit, also of guardrails that block nothing.

An action is blocked when the reading reaches the limit. `GUARDRAILS` alone decides; a reading only shows its numbers.
"""

import math
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

from evenkeel.domain.recovery.guardrails import (
    GUARDRAILS,
    GuardrailAction,
    GuardrailFacts,
    GuardrailName,
    SharedCause,
    pool_limit,
    recent_requests,
)
from evenkeel.domain.recovery.repair_policy import GuardrailPolicy
from evenkeel.domain.values import Instant, Value


class GuardrailReading(Value):
    """The number that a guardrail compares, its limit, and when it was read."""

    guardrail: GuardrailName
    action: GuardrailAction
    reading: int | None
    """None if it was not read."""
    limit: int | None
    """None if it is unknown, for example the share of a pool whose size was not read."""
    unit: str
    """The counted things, such as `nodes of the fleet in repair`."""
    is_blocking: bool | None
    """None if the limits of that time are unknown."""
    read_at: Instant | None
    """None if it was not read."""


class _Amount(NamedTuple):
    reading: int | None
    limit: int | None
    unit: str


def read_guardrails(
    action: GuardrailAction, facts: GuardrailFacts, policy: GuardrailPolicy
) -> tuple[GuardrailReading, ...]:
    """Return the reading of every guardrail of an action, in the order of their checks."""
    return tuple(
        GuardrailReading(
            guardrail=guardrail.name,
            action=action,
            is_blocking=guardrail.check(action, facts, policy) is not None,
            read_at=facts.now,
            **_AMOUNTS[guardrail.name](facts, policy)._asdict(),
        )
        for guardrail in GUARDRAILS
        if action in guardrail.actions and guardrail.name in _AMOUNTS
    )


def _hold(facts: GuardrailFacts, _policy: GuardrailPolicy) -> _Amount:
    return _Amount(int(facts.hold is not None), 1, "holds in force on the node")


def _group_trouble(facts: GuardrailFacts, policy: GuardrailPolicy) -> _Amount:
    (check,) = (guardrail.check for guardrail in GUARDRAILS if guardrail.name is GuardrailName.GROUP_TROUBLE)
    fails = check(GuardrailAction.REPLACE, facts, policy) is not None
    return _Amount(int(fails), 1, "launch or cluster failures")


def _shared_cause(facts: GuardrailFacts, policy: GuardrailPolicy) -> _Amount:
    """Return the cause that is nearest to its limit."""
    window = timedelta(seconds=policy.shared_cause_window_seconds)

    def amount_of(cause: SharedCause) -> _Amount:
        recent_count = sum(facts.now - at < window for at in cause.faulted_at)
        open_count_in_window = max(  # open incidents count if they began within one window, however long ago
            (sum(timedelta() <= at - first_at < window for at in cause.open_at) for first_at in cause.open_at),
            default=0,
        )
        limit = max(policy.shared_cause_count, math.ceil(policy.shared_cause_share * cause.nodes))
        return _Amount(max(recent_count, open_count_in_window), limit, f"unhealthy nodes of {cause.kind} {cause.name}")

    amounts = [amount_of(cause) for cause in facts.causes]
    no_cause = _Amount(0, policy.shared_cause_count, "unhealthy nodes that share a cause")
    return max(amounts, key=lambda amount: (amount.reading or 0) / (amount.limit or 1), default=no_cause)


def _stale_evidence(facts: GuardrailFacts, policy: GuardrailPolicy) -> _Amount:
    age = max(facts.now - facts.evidence_at, timedelta()) if facts.evidence_at else None  # clocks differ
    minutes = None if age is None else int(age.total_seconds()) // 60
    return _Amount(minutes, policy.stale_after_seconds // 60, "minutes since the last fault signal")


def _fleet_repairs(facts: GuardrailFacts, policy: GuardrailPolicy) -> _Amount:
    return _Amount(
        facts.under_way.count_others(facts.life_key), policy.fleet_repairs, "other nodes of the fleet in repair"
    )


def _pool_repairs(facts: GuardrailFacts, policy: GuardrailPolicy) -> _Amount:
    limit = _pool_limit(facts, policy.pool_repairs, policy.pool_repair_share)
    return _Amount(
        facts.under_way.count_others(facts.life_key, facts.pool), limit, f"other nodes of {facts.pool} in repair"
    )


def _repair_rate(facts: GuardrailFacts, policy: GuardrailPolicy) -> _Amount:
    return _Amount(len(recent_requests(facts)), policy.repairs_per_hour, "repair requests in the last hour")


def _fleet_cordons(facts: GuardrailFacts, policy: GuardrailPolicy) -> _Amount:
    return _Amount(
        facts.under_way.count_others(facts.life_key), policy.fleet_cordons, "other nodes of the fleet cordoned"
    )


def _pool_cordons(facts: GuardrailFacts, policy: GuardrailPolicy) -> _Amount:
    limit = _pool_limit(facts, policy.pool_cordons, policy.pool_cordon_share)
    cordons = facts.under_way.count_others(facts.life_key, facts.pool)
    return _Amount(cordons, limit, f"other nodes of {facts.pool} cordoned")


def _pool_limit(facts: GuardrailFacts, count: int | None, share: float | None) -> int | None:
    """Return the limit of a pool; None if it depends on the size of the pool, which was not read."""
    return None if share is not None and not facts.pool_nodes else pool_limit(count, share, facts.pool_nodes)


_AMOUNTS: dict[GuardrailName, Callable[[GuardrailFacts, GuardrailPolicy], _Amount]] = {
    GuardrailName.HOLD: _hold,
    GuardrailName.GROUP_TROUBLE: _group_trouble,
    GuardrailName.SHARED_CAUSE: _shared_cause,
    GuardrailName.STALE_EVIDENCE: _stale_evidence,
    GuardrailName.FLEET_REPAIRS: _fleet_repairs,
    GuardrailName.POOL_REPAIRS: _pool_repairs,
    GuardrailName.REPAIR_RATE: _repair_rate,
    GuardrailName.FLEET_CORDONS: _fleet_cordons,
    GuardrailName.POOL_CORDONS: _pool_cordons,
}
