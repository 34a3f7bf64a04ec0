"""Past setups. Each recorded change keeps the quota before it, so earlier setups follow from the present one.

    present setup, version 7 ── undo change 7 ──▶ setup of version 6 ── undo change 6 ──▶ …

Only queues, cohorts and flavors are kept: past members, limits and budgets are in no figure.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, Self

from evenkeel.domain.quotas.teams import FleetQuotas, Team, TeamSetup
from evenkeel.domain.timeline import TimelineEntry

_QUOTA_FIELDS = {Team: {"name", "queue"}, FleetQuotas: {"cohorts", "flavors"}}


class SetupChange(TimelineEntry):
    """A change of the setup, with the quota of the changed part before it."""

    part: str | None = None
    """The changed team; empty for the quotas of the fleet. None: an earlier release recorded the change."""
    before: str | None = None
    """The part before the change, as JSON: the order of flavors matters, and a stored map has no order. None: the part
    did not exist."""

    @classmethod
    def of(cls, entry: TimelineEntry, part: str, setup: TeamSetup) -> Self:
        """Return the change of a part.

        Args:
            entry: The entry of the timeline.
            part: The changed team; empty for the quotas of the fleet.
            setup: The setup before the change.
        """
        part_before: Team | FleetQuotas | None = setup.by_name.get(part) if part else setup.fleet
        text = (
            part_before.model_dump_json(include=_QUOTA_FIELDS[type(part_before)], by_alias=True)
            if part_before
            else None
        )
        return cls(**dict(entry), part=part, before=text)

    def undo(self, setup: TeamSetup) -> TeamSetup:
        """Return the quotas before the change.

        Args:
            setup: The setup after the change.
        """
        if not self.part:
            return setup.replace(fleet=FleetQuotas.model_validate_json(self.before or "{}"))
        if self.before is None:
            return setup.replace(teams=tuple(team for team in setup.teams if team.name != self.part))
        return setup.with_team(Team.model_validate_json(self.before))


class SetupPeriod(NamedTuple):
    """A time in which the quotas did not change."""

    since: datetime
    until: datetime
    setup: TeamSetup
    """Past members, limits and budgets are not kept."""


def setup_periods(
    setup: TeamSetup, version: int, changes: Mapping[int, SetupChange], since: datetime, until: datetime
) -> Sequence[SetupPeriod]:
    """Return the setups of a time, oldest first. In time without a period, the quotas are unknown.

    Args:
        setup: The setup at the end.
        version: Its version.
        changes: All changes of that time, by the version of the setup since the change. Later changes are ignored.
        since: Start of the time.
        until: Its end.
    """
    periods: list[SetupPeriod] = []
    while change := changes.get(version):
        start = max(since, min(change.at, until))
        periods.insert(0, SetupPeriod(start, until, setup))
        if change.part is None:
            return periods
        setup, until, version = change.undo(setup), start, version - 1
    is_gap = any(earlier < version for earlier in changes)
    return periods if is_gap else [SetupPeriod(since, until, setup), *periods]
