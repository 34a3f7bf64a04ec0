"""The policy in force: the shipped policy with the site's changes. It is read again every 30 seconds."""

import contextlib
from datetime import datetime, timedelta
from typing import Protocol

from evenkeel.domain.policy import Policy, PolicyChange, PolicyInForce, resolve_policy
from evenkeel.domain.policy_section import Mode, ModeRule
from evenkeel.ports import (
    Clock,
    Key,
    Ledger,
    NoPolicyInForce,
    Row,
    Table,
    Telemetry,
    TransientError,
    Unreadable,
    site_policy_key,
)
from evenkeel.services.tables.rows import decode

FRESH = timedelta(seconds=30)
"""How long a container uses the policy that it read. After this time, a change is in force everywhere."""


class PolicyPorts(Protocol):
    """The ports that reading the policy needs. They are built on first use."""

    @property
    def ledger(self) -> Ledger: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def telemetry(self) -> Telemetry: ...


class SitePolicy:
    """The shipped policy and the site's changes to it."""

    def __init__(self, base: Policy, table: Table | None, ports: PolicyPorts) -> None:
        self.base = base
        self.change: PolicyChange | None = None
        """The site's last readable change at the last read; None if there is none."""
        self._in_force: PolicyInForce | None = None
        """The policy in force after the last read; None before the first read."""
        self._table = table
        self._ports = ports
        self._fresh_until: datetime | None = None

    def current_policy(self) -> Policy:
        """Return the policy in force.

        While the table does not answer, the last policy that was read stays in force. While this release cannot use
        the row, the last policy of the site that was read does. Without one, the site's restrictions are unknown, so no
        decision is allowed.

        Raises:
            TransientError: The table does not answer, and the policy was never read.
            NoPolicyInForce: This release cannot use the row, and no policy of the site was read before.
        """
        if self._table is None:
            return self.base
        key = self.due_key()
        if key is None:
            assert self._known_policy is not None
            return self._known_policy
        now = self._ports.clock.now()
        try:
            row = self._ports.ledger.get(key)
        except TransientError as error:
            if self._known_policy is None:
                raise
            self._ports.telemetry.warning("SitePolicyNotRead", error=str(error))
            return self._known_policy
        return self.use_row(row, now)

    def in_force(self) -> PolicyInForce:
        """Return the policy in force, if any, and why the last change is not in force.

        Raises:
            TransientError: The table does not answer, and the policy was never read.
        """
        with contextlib.suppress(NoPolicyInForce):
            self.current_policy()
        return self._in_force or PolicyInForce(self.base, 0, "")

    @property
    def kept_hash(self) -> str:
        """Hash of the policy in force instead of the last change, by the last read; empty if there is none."""
        if self._in_force is None or self._in_force.policy is None or not self._in_force.refused:
            return ""
        return self._in_force.policy.hash

    def policy_to_show(self) -> Policy:
        """Return the policy that answers of the API show: the policy in force, or else the shipped policy in `observe`.

        Raises:
            TransientError: As `in_force`.
        """
        return self.in_force().policy or self.base.replace(modes=(ModeRule(mode=Mode.OBSERVE),))

    def due_key(self) -> Key | None:
        """Return the key of the row that must be read before the next decision; None if the known policy is fresh."""
        if self._table is None:
            return None
        if self._fresh_until is not None and self._ports.clock.now() < self._fresh_until:
            return None
        return site_policy_key(self._table)

    def use_row(self, row: Row | None, read_at: datetime) -> Policy:
        """Put the policy of a row in force, and return it.

        Args:
            row: The row of `due_key`; None if the site changes nothing.
            read_at: Time before the row was read.

        Raises:
            NoPolicyInForce: As `current_policy`.
        """
        try:
            self.change = decode(row, PolicyChange) if row else None
        except Unreadable as error:
            policy_in_force = PolicyInForce(None, None, str(error))
        else:
            policy_in_force = resolve_policy(self.base, self.change)
        if policy_in_force.refused:
            self._report_invalid(policy_in_force.refused)
        # The shipped policy is not kept: the site has restrictions now, and the shipped policy has none of them.
        if policy_in_force.policy is None and self._in_force is not None and self._in_force.number:
            policy_in_force = self._in_force._replace(refused=policy_in_force.refused)
        self._in_force = policy_in_force
        if policy_in_force.policy is None:
            raise NoPolicyInForce(
                f"No policy of the site can be used, so nothing is decided: {policy_in_force.refused}"
            )
        self._fresh_until = read_at + FRESH
        return policy_in_force.policy

    @property
    def _known_policy(self) -> Policy | None:
        return self._in_force.policy if self._in_force else None

    def _report_invalid(self, reason: str) -> None:
        self._ports.telemetry.count("PolicyInvalid")
        self._ports.telemetry.error("SitePolicyInvalid", reason=reason, runbook="policy-refused")
