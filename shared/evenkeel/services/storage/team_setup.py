"""The setup: the fleet's teams and quotas, with the versions that a change must name."""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

from evenkeel.domain.name_suggestions import unknown_name
from evenkeel.domain.quotas.teams import FleetQuotas, Team, TeamSetup
from evenkeel.ports import Ledger, NotFound
from evenkeel.services.tables import quota_rows, rows

FLEET = ""
"""Stands in for the name of a team: the fleet's own part."""


class StoredSetup(NamedTuple):
    """The setup, with its versions."""

    setup: TeamSetup
    versions: Mapping[str, int]
    """Team → version of its row; the empty name is the fleet's part; absent = never set up."""
    version: int
    """Version of the whole setup: the number of its changes."""

    def version_of(self, part: str) -> int:
        """Return a part's version; 0 if it was never set up."""
        return self.versions.get(part, 0)


def read_team(ledger: Ledger, team: str) -> dict[str, Any]:
    """Return the settings of a team.

    Raises:
        NotFound: there is no such team.
    """
    row = ledger.get(quota_rows.team_key(team))
    if row is None:
        raise NotFound(unknown_name("team", team, load_setup(ledger).setup.by_name))
    return to_document(rows.parse(row.key, Team, row.doc["document"]), row.version)


def read_fleet(ledger: Ledger) -> dict[str, Any]:
    """Return the quota settings that belong to no team; version 0 if they were never set up."""
    row = ledger.get(quota_rows.fleet_quotas_key())
    return to_document(
        rows.parse(row.key, FleetQuotas, row.doc["document"]) if row else FleetQuotas(), row.version if row else 0
    )


def to_document(part: Team | FleetQuotas, version: int) -> dict[str, Any]:
    """Return a part of the setup with its version, as the API shows it."""
    return {"version": version, "team" if isinstance(part, Team) else "quotas": part.to_json()}


def load_setup(ledger: Ledger) -> StoredSetup:
    """Read the setup: one query of one partition.

    Each change raises the tree's version in the same transaction. So a decision on an older setup, committed at the
    version of the tree that was read before it, fails as a whole.
    """
    versions: dict[str, int] = {}
    version, fleet = 0, ""
    teams: list[str] = []
    prefix = quota_rows.team_key("").sk
    for row in ledger.partition(quota_rows.setup_key().table, quota_rows.setup_key().pk):
        if row.key == quota_rows.setup_key():
            version = row.version
        elif row.key == quota_rows.fleet_quotas_key():
            fleet = row.doc["document"]
            versions[FLEET] = row.version
        else:
            teams.append(row.doc["document"])
            versions[row.key.sk.removeprefix(prefix)] = row.version
    return StoredSetup(_parse_setup(fleet, tuple(teams)), versions, version)


@functools.lru_cache(maxsize=4)
def _parse_setup(fleet: str, teams: tuple[str, ...]) -> TeamSetup:
    """Parse the stored setup. It changes rarely and every cycle reads it, so the last result is cached."""
    key = quota_rows.setup_key()
    sorted_teams = sorted((rows.parse(key, Team, team) for team in teams), key=lambda team: team.name)
    return TeamSetup(fleet=rows.parse(key, FleetQuotas, fleet) if fleet else FleetQuotas(), teams=tuple(sorted_teams))
