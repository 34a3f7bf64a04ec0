"""The policy in force: the shipped policy with the site's changes. It is read again every 30 seconds."""

from datetime import datetime, timedelta
from typing import Protocol

from evenkeel.domain.policy import Policy, PolicyChange, PolicyInForce, in_force, resolve_policy
from evenkeel.ports import Clock, Key, Ledger, Row, Table, Telemetry, TransientError, Unreadable, site_policy_key
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
        self._unreadable = ""
        """Why this release cannot read the last change; empty if it can."""
        self._table = table
        self._ports = ports
        self._known: Policy | None = base if table is None else None
        self._fresh_until: datetime | None = None

    def current_policy(self) -> Policy:
        """Return the policy in force.

        While the table does not answer, or its row cannot be read, the last policy that was read stays in force. Before
        the first read, the site's restrictions are unknown, so no decision is allowed.

        Raises:
            TransientError: The table does not answer, and the policy was never read.
            Unreadable: This release cannot read the row, and the policy was never read.
        """
        if self._table is None:
            return self.base
        key = self.due_key()
        if key is None:
            assert self._known is not None
            return self._known
        now = self._ports.clock.now()
        try:
            row = self._ports.ledger.get(key)
        except TransientError as error:
            if self._known is None:
                raise
            self._ports.telemetry.warning("SitePolicyNotRead", error=str(error))
            return self._known
        return self.use_row(row, now)

    def in_force(self) -> PolicyInForce:
        """Return the policy of the last read, and why the last change is not in force."""
        policy_in_force = resolve_policy(self.base, self.change)
        return policy_in_force._replace(refused=self._unreadable or policy_in_force.refused)

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
            Unreadable: As `current_policy`.
        """
        try:
            self.change, self._unreadable = decode(row, PolicyChange) if row else None, ""
        except Unreadable as error:
            self._unreadable = str(error)
            self._report_invalid(self._unreadable)
            if self._known is None:
                raise
        else:
            self._known, problem = in_force(self.base, self.change)
            if problem:
                self._report_invalid(problem)
        self._fresh_until = read_at + FRESH
        return self._known

    def _report_invalid(self, reason: str) -> None:
        self._ports.telemetry.count("PolicyInvalid")
        self._ports.telemetry.error("SitePolicyInvalid", reason=reason, runbook="policy-refused")
