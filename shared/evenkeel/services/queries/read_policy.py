"""The policy for the API: the policy in force, and every change of the site, newest first."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from evenkeel.domain.policy import PolicyChange, PolicyInForce
from evenkeel.ports import Ledger, Row, Table
from evenkeel.services.storage import pagination
from evenkeel.services.tables import incident_rows, rows

Json = dict[str, Any]


def show_policy(
    policy_in_force: PolicyInForce, change: PolicyChange | None, *, ledger: Ledger, page: pagination.PageRequest
) -> Json:
    """Return the policy in force with one page of its changes.

    If the last change cannot be used, the answer says why, and which policy is in force instead, if any.

    Raises:
        BadPageToken: this list did not issue the token.
    """
    policy = policy_in_force.policy
    changes = pagination.page_newest_first(ledger, Table.INCIDENTS, [incident_rows.POLICY_CHANGES], page)
    return {
        "hash": policy.hash if policy else None,
        "catalogueHash": policy.catalogue.hash if policy else None,
        "policy": policy.to_json() if policy else None,
        "change": change.to_json() if change else None,
        "refused": policy_in_force.refused or None,
        "inForce": policy_in_force.number,
        "history": {
            "items": [policy_change.to_json() for policy_change in readable_changes(changes.rows)],
            "nextPageToken": changes.next_token or None,
        },
    }


def readable_changes(stored_rows: Iterable[Row]) -> Iterator[PolicyChange]:
    """Yield the changes in rows of the history, without rows that this release cannot read."""
    changes = (replace(row, doc=row.doc["change"]) for row in stored_rows)
    return (change for _, change in rows.readable_rows(changes, PolicyChange))
