"""Read the recent usage of each submitter, for the teams whose queues are ordered by usage."""

from collections import Counter

from evenkeel.domain.quotas.spending import decayed_usage, weeks_until
from evenkeel.domain.quotas.teams import Period, TeamSetup
from evenkeel.services.context import Context
from evenkeel.services.tables import quota_rows


def run(setup: TeamSetup, context: Context) -> dict[str, dict[str, float]]:
    """Return the decayed usage of settled attempts by team and submitter: two queries for each such team.

    Returns:
        Usage in accelerators, as if they had been held constantly. Attempts that still run are not counted.
    """
    return {team.name: _left_in(team.name, context) for team in setup.teams if team.queue.by_use}


def _left_in(team: str, context: Context) -> dict[str, float]:
    usage_key = quota_rows.used_key(team, "", "")
    # All weeks of one decade are one query: `2026-W4`.
    decades = dict.fromkeys(Period.WEEK.key_at(begin)[:-1] for begin in weeks_until(context.now))
    sums: dict[str, Counter[str]] = {}
    for decade in decades:
        for row in context.ledger.partition(usage_key.table, usage_key.pk, f"{quota_rows.USED}{decade}"):
            # Older releases kept all submitters of a week in the row `USED#week`: such a row counts as well.
            week = row.key.sk.removeprefix(quota_rows.USED).partition("#")[0]
            for submitter, amount in row.doc.items():
                sums.setdefault(submitter, Counter())[week] += amount
    return {submitter: decayed_usage(by_week, context.now) for submitter, by_week in sums.items()}
