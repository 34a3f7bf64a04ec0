"""Teams for the API: the quota of each team, its use, its borrowing and lending, and its running and pending jobs."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from evenkeel.domain.capacity.instance_types import is_accelerator
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.jobs.job import JobState
from evenkeel.domain.kueue import quantities
from evenkeel.domain.kueue.objects import Amounts
from evenkeel.domain.quotas import flavor_matching
from evenkeel.domain.quotas.teams import TeamSetup
from evenkeel.domain.quotas.usage_report import QuotaUsageRow, usage_rows
from evenkeel.domain.values import rfc3339
from evenkeel.ports import Table
from evenkeel.services.context import Context
from evenkeel.services.storage import charge_rows, fleet_counts, pagination, team_setup

Json = dict[str, Any]

_MAX_WAITING = 2000
"""Pending jobs that are counted. Beyond it, the counts are marked as lower bounds."""


def list_teams(context: Context) -> Json:
    """Return the table of teams. Without teams: the use of accelerators by team name, without quotas."""
    setup = team_setup.load_setup(context.ledger).setup
    charges = charge_rows.readable_charges(context.ledger)
    pending_rows, is_cut = pagination.read_partition(
        context.ledger, Table.JOBS, f"JOB#{JobState.PENDING}", at_most=_MAX_WAITING
    )
    pending_counts = Counter(str(row.doc["spec"]["team"]) for row in pending_rows)
    counts = fleet_counts.load_counts(context.ledger)
    waits = {team["team"]: team["p90WaitSeconds"] for team in counts["teams"]} if counts else {}
    return {
        "asOf": rfc3339(context.now),
        "items": [
            team | {"p90WaitSeconds": waits.get(team["team"])}
            for team in team_lines(setup, charges.live, pending_counts)
        ],
        "waitsAt": counts["at"] if counts else None,
        "unreadableCharges": charges.unreadable_count,
        "isLowerBound": is_cut or charges.unreadable_count > 0,
    }


def team_lines(setup: TeamSetup, charges: Sequence[Charge], pending_counts: Mapping[str, int]) -> list[Json]:
    """Return a line for each team, by name: teams of the setup, and team names that only jobs use."""
    running_counts = Counter(charge.team for charge in charges)
    running_gpus = Counter(dict.fromkeys(running_counts, 0))
    for charge in charges:
        running_gpus[charge.team] += charge.accelerators
    lines = usage_rows(*setup.scheduler_declarations[:2], use_by_team(setup, charges))
    items = []
    for name in sorted({*setup.by_name, *running_counts, *pending_counts}):
        team = setup.by_name.get(name)
        of_accelerators = [line for line in lines.get(name, ()) if is_accelerator(line.key[1])]
        used_gpus = sum(line.used for line in of_accelerators) if team else running_gpus[name]
        allocated_gpus = sum(line.allocated for line in of_accelerators) if team else None
        items.append(
            {
                "team": name,
                "cohort": (team.queue.cohort or None) if team else None,
                "weight": team.queue.weight if team else None,
                "accelerators": {
                    "allocated": allocated_gpus,
                    "used": used_gpus,
                    # Its nodes match no flavor of its queue: they are in use, but no quota is.
                    "usedByUnmanaged": running_gpus[name] - used_gpus,
                    "borrowed": sum(line.borrowed for line in of_accelerators) if team else None,
                    "lent": sum(line.lent for line in of_accelerators) if team else None,
                    "utilization": _used_percent(used_gpus, allocated_gpus),
                },
                "resources": [_team_document(line) for line in lines.get(name, ())],
                "running": running_counts[name],
                "pending": pending_counts.get(name, 0),
            }
        )
    return items


def use_by_team(setup: TeamSetup, charges: Iterable[Charge]) -> Mapping[str, Amounts]:
    """Return the use of quota by the jobs of each team."""
    amounts_by_team: dict[str, Amounts] = defaultdict(dict)
    for queue, amounts in flavor_matching.amounts_by_queue(charges, setup.scheduler_declarations):
        for key, amount in amounts.items():
            amounts_by_team[queue][key] = amounts_by_team[queue].get(key, 0) + amount
    return amounts_by_team


def _team_document(line: QuotaUsageRow) -> Json:
    flavor, resource = line.key

    def format_amount(amount: int) -> str:
        return quantities.text(resource, amount)

    return {
        "flavor": flavor,
        "resource": resource,
        "allocated": format_amount(line.allocated),
        "used": format_amount(line.used),
        "borrowed": format_amount(line.borrowed),
        "lent": format_amount(line.lent),
        "utilization": _used_percent(line.used, line.allocated),
    }


def _used_percent(used_gpus: int, allocated_gpus: int | None) -> int | None:
    return round(100 * used_gpus / allocated_gpus) if allocated_gpus else None
