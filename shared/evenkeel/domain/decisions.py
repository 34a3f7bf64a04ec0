"""What every decision carries: the answer, its reason, what else was weighed, and the facts it rests on."""

from typing import Any

from evenkeel.domain.values import Instant, Value

ENGINE_VERSION = "2"
"""Raised when a rule changes its answer for the same facts and policy, so that old records still replay."""


class Alternative(Value):
    """One option that was weighed and not taken."""

    option: str
    why_not: str
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
    reason: str
    """One sentence an operator could read aloud."""
    chosen: Alternative | None = None
    """The option taken, with its figures, where options were weighed by figures; `why_not` is empty."""
    alternatives: tuple[Alternative, ...] = ()
    facts: dict[str, Any] = {}
    policy_hash: str
    catalogue_hash: str = ""
    """Of the fault catalogue as the site has it; empty where no fault was weighed."""
    engine_version: str = ENGINE_VERSION
    mode: str = ""
    simulated: bool = False
    decided_at: Instant
