"""What is set up: the fleet's teams and quotas, with the versions that a change must name."""

from collections.abc import Mapping
from typing import NamedTuple

from evenkeel.domain.scheduling.teams import FleetQuotas, SetUp, Team
from evenkeel.ports import Ledger
from evenkeel.services import rows

FLEET = ""
"""In the place of a team's name: the fleet's part."""


class Found(NamedTuple):
    """The set-up, and where it stands."""

    setup: SetUp
    versions: Mapping[str, int]
    """Of each team's row by its name, and of the fleet's part under the empty name; absent = never set up."""
    version: int
    """Of all together: how often the set-up changed."""

    def version_of(self, part: str) -> int:
        """Return a part's version; 0 where it was never set up."""
        return self.versions.get(part, 0)


def run(ledger: Ledger) -> Found:
    """Read the set-up: one query of one partition.

    A change of it raises the tree's version in the same transaction, so what is decided on an older reading, and
    committed on the tree's version that was read before it, fails whole.
    """
    versions: dict[str, int] = {}
    version, fleet = 0, FleetQuotas()
    teams: list[Team] = []
    for row in ledger.partition(rows.setup_key().table, rows.setup_key().pk):
        if row.key == rows.setup_key():
            version = row.version
        elif row.key == rows.fleet_quotas_key():
            fleet = FleetQuotas.model_validate_json(row.doc["document"])
            versions[FLEET] = row.version
        else:
            team = Team.model_validate_json(row.doc["document"])
            teams.append(team)
            versions[team.name] = row.version
    teams.sort(key=lambda team: team.name)
    return Found(SetUp(fleet=fleet, teams=tuple(teams)), versions, version)
