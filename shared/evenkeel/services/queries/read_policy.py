"""The policy as people and programs see it: what is in force, and every change that a site made, newest first."""

from typing import Any

from evenkeel.domain.policy import Policy, PolicyChange, resolve_policy
from evenkeel.ports import Ledger, Table
from evenkeel.services.storage import pagination, rows

Json = dict[str, Any]


def show(
    policy: Policy, base: Policy, change: PolicyChange | None, *, ledger: Ledger, page: pagination.Request
) -> Json:
    """Return the policy in force with one page of its changes.

    Where the last change cannot be used: why, and which one counts instead.

    Raises:
        BadPageToken: the token is not one of this list's.
    """
    found = resolve_policy(base, change)
    changes = pagination.newest_first(ledger, Table.INCIDENTS, [rows.POLICY_CHANGES], page)
    return {
        "hash": policy.hash,
        "catalogueHash": policy.catalogue.hash,
        "policy": policy.to_json(),
        "change": change.to_json() if change else None,
        "refused": found.refused or None,
        "inForce": found.number,
        "history": {
            "items": [PolicyChange.model_validate(row.doc["change"]).to_json() for row in changes.rows],
            "nextPageToken": changes.next_token or None,
        },
    }
