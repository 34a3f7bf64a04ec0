"""An administrator sets the site's own policy: all values that differ from the shipped policy."""

from datetime import datetime
from typing import Any

from evenkeel.domain.policy import Policy, PolicyChange, PolicyError, changed, resolve_policy
from evenkeel.domain.values import Value
from evenkeel.ports import (
    Conflict,
    Invalid,
    Key,
    KeyReused,
    Ledger,
    Put,
    Row,
    Table,
    Unreadable,
    site_policy_key,
)
from evenkeel.services.tables import incident_rows, rows

_TRIES = 5


class ChangePolicyRequest(Value):
    """A change of the policy: the values, the person and the reason."""

    changes: dict[str, Any]
    """In the form of the policy's JSON; empty = the shipped policy alone."""
    by: str
    reason: str
    based_on: str = ""
    """Hash of the policy that the change was written for; empty = any."""
    request_id: str
    fingerprint: str
    """Digest of the whole request. The same id with another digest is refused."""


def run(
    request: ChangePolicyRequest, *, ledger: Ledger, base: Policy, now: datetime, kept_hash: str = ""
) -> PolicyChange:
    """Put a site's changes in force, instead of the earlier changes. Each function uses them within half a minute.

    The new change also replaces a change that this release cannot read. Then its `before` is unknown.

    Idempotent: yes, by the request id, which is recorded in the same commit. A late repeat undoes nothing.

    Args:
        request: The change.
        ledger: The tables.
        base: The shipped policy.
        now: Time of the change.
        kept_hash: Hash of the policy that this container shows in force instead of an unusable change; empty if none.

    Raises:
        Invalid: the changes cannot be used; names each field.
        Conflict: another policy is in force than the one the change was written for.
        KeyReused: the request id was used for another request.
    """
    try:
        # Both as given and as it will be read back: JSON has no infinity, and its null may mean something else.
        for changes in (request.changes, request.to_json()["changes"]):
            changed(base, changes)
    except PolicyError as error:
        raise Invalid("The policy changes are not valid.", (("changes", str(error)),)) from error
    for _ in range(_TRIES):
        request_row = ledger.get(_request_key(request.request_id))
        if request_row is not None:
            if request_row.doc["fingerprint"] != request.fingerprint:
                raise KeyReused("This idempotency key was used for a different request. Use a new key.")
            return rows.parse(request_row.key, PolicyChange, request_row.doc["change"])
        row = ledger.get(site_policy_key(Table.INCIDENTS))
        try:
            previous_change = rows.decode(row, PolicyChange) if row else None
            current = resolve_policy(base, previous_change).policy
            last_number = previous_change.number if previous_change else 0
        except Unreadable:
            previous_change, current = None, None
            last_number = _last_number(row, ledger)
        current_hash = current.hash if current else kept_hash
        if request.based_on and request.based_on != current_hash:
            raise Conflict(f"The policy in force is {current_hash or 'unknown'}, not {request.based_on}.")
        change = PolicyChange(
            number=last_number + 1,
            changes=request.changes,
            before=previous_change.changes if previous_change else None,
            by=request.by,
            reason=request.reason,
            at=now,
        )
        answer_document = {"fingerprint": request.fingerprint, "change": change.to_json()}
        version = row.version if row else 0
        try:
            ledger.commit(
                Put(Row(site_policy_key(Table.INCIDENTS), change.to_json(), version)),
                Put(Row(site_policy_key(Table.JOBS), change.to_json(), version)),
                Put(
                    Row(
                        _request_key(request.request_id),
                        answer_document,
                        0,
                        (incident_rows.POLICY_CHANGES, f"{change.number:09d}"),
                        now + rows.KEPT,
                    )
                ),
            )
        except Conflict:
            continue
        return change
    raise Conflict("The policy changed on every try. Try again.")


def _last_number(row: Row | None, ledger: Ledger) -> int:
    """Return the number of a change that this release cannot read: from its row, or else from the history.

    The index of the history is eventually consistent, and its rows expire.
    """
    number = row.doc.get("number") if row else None
    if type(number) is int:
        return number
    page = ledger.by_state(Table.INCIDENTS, incident_rows.POLICY_CHANGES, limit=1, newest_first=True)
    return max((int(row.state[1]) for row in page.rows if row.state), default=0)


def _request_key(request_id: str) -> Key:
    """`POLICY#site / REQUEST#id`: the change of this request, for its repeat and for readers of the history."""
    return Key(Table.INCIDENTS, site_policy_key(Table.INCIDENTS).pk, f"REQUEST#{request_id}")
