"""The policy in force: the shipped one with the site's own changes, read again after a while."""

from datetime import datetime, timedelta
from typing import Protocol

from evenkeel.domain.policy import Policy, PolicyChange, in_force
from evenkeel.ports import Clock, Ledger, Table, Telemetry, TransientError, site_policy_key

FRESH = timedelta(seconds=30)
"""How long a container goes by what it read: so late a change is everywhere."""


class PolicyPorts(Protocol):
    """What is needed to read it; nothing of it is built before that."""

    @property
    def ledger(self) -> Ledger: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def telemetry(self) -> Telemetry: ...


class SitePolicy:
    """The shipped policy and the site's changes to it."""

    def __init__(self, base: Policy, table: Table | None, world: PolicyPorts) -> None:
        self.base = base
        self.change: PolicyChange | None = None
        """The site's last change, as it was last read."""
        self._table = table
        self._world = world
        self._known: Policy | None = base if table is None else None
        self._fresh_until: datetime | None = None

    def current(self) -> Policy:
        """Return the policy in force.

        What was read last counts while the table does not answer. Before anything was read it is not known what the
        site forbids, so nothing is decided then.

        Raises:
            TransientError: nothing was read yet, and the table does not answer.
        """
        if self._table is None:
            return self.base
        now = self._world.clock.now()
        if self._known is not None and self._fresh_until is not None and now < self._fresh_until:
            return self._known
        try:
            row = self._world.ledger.get(site_policy_key(self._table))
        except TransientError as error:
            if self._known is None:
                raise
            self._world.telemetry.warning("SitePolicyNotRead", error=str(error))
            return self._known
        self.change = PolicyChange.model_validate(row.doc) if row else None
        self._known, problem = in_force(self.base, self.change)
        self._fresh_until = now + FRESH
        if problem:
            self._world.telemetry.count("PolicyInvalid")
            self._world.telemetry.error("SitePolicyInvalid", reason=problem, runbook="policy-refused")
        return self._known
