"""What each submitter used of late, for the teams whose queues go by use."""

from datetime import datetime

from evenkeel.domain.scheduling.spending import left_of
from evenkeel.domain.scheduling.teams import SetUp
from evenkeel.ports import Ledger
from evenkeel.services import rows


def run(setup: SetUp, ledger: Ledger, now: datetime) -> dict[str, dict[str, float]]:
    """Return by team and submitter what is left of what settled attempts held: one query for each such team.

    Returns:
        Accelerators that, held ever since, would come to as much. What runs still is not in it.
    """
    return {team.name: _left_in(team.name, ledger, now) for team in setup.teams if team.queue.by_use}


def _left_in(team: str, ledger: Ledger, now: datetime) -> dict[str, float]:
    place = rows.used_key(team, "")
    sums: dict[str, dict[str, int]] = {}
    for row in ledger.partition(place.table, place.pk, place.sk):
        for submitter, amount in row.doc.items():
            sums.setdefault(submitter, {})[row.key.sk.removeprefix(place.sk)] = amount
    return {submitter: left_of(by_week, now) for submitter, by_week in sums.items()}
