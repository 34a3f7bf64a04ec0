"""The policy as people and programs see it: what is in force, the site's last change, and whether that one is in it."""

from typing import Any

from evenkeel.domain.policy import Policy, PolicyChange, standing

Json = dict[str, Any]


def show(policy: Policy, base: Policy, change: PolicyChange | None) -> Json:
    """Return the policy in force; where the last change cannot be used, why, and which one counts instead."""
    found = standing(base, change)
    return {
        "hash": policy.hash,
        "catalogueHash": policy.catalogue.hash,
        "policy": policy.to_json(),
        "change": change.to_json() if change else None,
        "refused": found.refused or None,
        "inForce": found.number,
    }
