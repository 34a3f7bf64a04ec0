"""How to show states: the sign for each state, and its text."""

from collections.abc import Mapping
from typing import Any

JOB = {
    "PENDING": "next",
    "STARTING": "working",
    "RUNNING": "ok",
    "STOPPING": "working",
    "SUSPENDED": "idle",
    "SUCCEEDED": "ok",
    "FAILED": "failed",
    "CANCELLED": "idle",
}
ATTEMPT = {
    "STARTING": "working",
    "LAUNCHED": "working",
    "RUNNING": "ok",
    "SUCCEEDED": "ok",
    "FAILED": "failed",
    "STOPPED": "idle",
    "LOST": "warn",
    "NEVER_RAN": "warn",
}
INCIDENT = {
    "OPEN": "working",
    "RECOVERING": "working",
    "BLOCKED": "warn",
    "RECOVERED": "ok",
    "OBSERVED": "idle",
    "STOOD_DOWN": "idle",
    "WAITING_FOR_PERSON": "failed",
    "JOB_NOT_RESUMED": "failed",
    "FAILED": "failed",
}
NODE = {
    "IN_SERVICE": "ok",
    "STARTING": "working",
    "REPAIRING": "working",
    "BLOCKED": "warn",
    "WAITING": "warn",
    "QUARANTINED": "failed",
    "CORDONED": "warn",
    "NOT_READY": "warn",
    "UNHEALTHY": "failed",
    "GONE": "idle",
}
HEALTH = {"OK": "ok", "DEGRADED": "warn", "CRITICAL": "failed", "NOT_RUNNING": "failed"}
SOURCE = {"CURRENT": "ok", "FAILING": "warn", "STALE": "failed", "UNKNOWN": "warn", "OFF": "idle"}


def mode_text(automation: Mapping[str, Any]) -> str:
    """Return the mode in force as text. If the policy lowers the stack's mode, the text has both."""
    stack, mode = str(automation["mode"]), str(automation.get("modeInForce") or automation["mode"])
    if mode != stack:
        return f"{mode} (by the policy; the stack allows {stack})"
    lower = [rule for rule in automation.get("modeRules", ()) if rule["mode"] != stack]
    return f"{mode} (the policy has {count_of(len(lower), 'narrower rule')})" if lower else mode


def plain(state: str) -> str:
    """Return a state in plain words: `JOB_NOT_RESUMED` becomes `job not resumed`."""
    return state.lower().replace("_", " ")


def count_of(number: int, noun: str) -> str:
    """Return `1 node`, `2 nodes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
