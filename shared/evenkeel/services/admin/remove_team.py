"""An administrator removes a team that has no jobs, no charges and no lent quota."""

from collections.abc import Iterator

from evenkeel.domain.jobs.job import JobState
from evenkeel.domain.quotas.setup_history import SetupChange
from evenkeel.domain.quotas.teams import TeamSetup
from evenkeel.domain.timeline import TimelineEntry
from evenkeel.domain.values import Value
from evenkeel.ports import Delete, Ledger, Put, Refused, Row, StaleVersion, Table, every
from evenkeel.services.context import Context
from evenkeel.services.queries.jobs import read_teams
from evenkeel.services.storage import charge_rows, team_setup
from evenkeel.services.storage.retries import until_committed
from evenkeel.services.tables import job_rows, quota_rows

WRITER = "remove_team"
_BEFORE_TEAMS = "2"
"""Prefix of the sort keys of jobs from before teams existed: the first digits of the year."""


class TeamInUse(Refused):
    """The team has jobs or charges, or other teams use its quota."""

    code = "TEAM_IN_USE"


class RemoveTeamRequest(Value):
    """A request to remove a team: the person and the reason."""

    team: str
    expected: int
    """Version of the team that the request was written for."""
    by: str
    reason: str


class RemoveTeamResult(Value):
    """The result: there is no team of that name."""

    team: str
    was_there: bool
    """False if the team was removed before."""


def run(request: RemoveTeamRequest, context: Context) -> RemoveTeamResult:
    """Remove a team from the setup, and request a scheduling cycle. Its spending is kept for a new team of that name.

        TREE (version v) ── no charges, no jobs, no lent quota ── commit: team deleted, VERSION as read, TREE still v

    An admission meanwhile raises TREE, and the whole commit fails. A job that is submitted at that moment waits, with
    the reason that its team is gone.

    Idempotent: yes, a missing team is success.

    Raises:
        TeamInUse: it has jobs or charges, or other teams use its quota; says which.
        StaleVersion: it is at another version.
    """
    was_there = until_committed(lambda: _remove(request, context), "The setup changed on every try. Try again.")
    if was_there:
        context.cycle_requests.request(f"Team {request.team} removed")
    return RemoveTeamResult(team=request.team, was_there=was_there)


def _remove(request: RemoveTeamRequest, context: Context) -> bool:
    """Remove the team in one commit. Return whether there was one."""
    name = request.team
    tree = _quota_tree_row(context.ledger)
    stored_setup = team_setup.load_setup(context.ledger)
    if name not in stored_setup.setup.by_name:
        return False
    if stored_setup.version_of(name) != request.expected:
        raise StaleVersion(f"Team {name} is at version {stored_setup.version_of(name)}, not {request.expected}.")
    why = _why_in_use(name, stored_setup.setup, context.ledger)
    if why:
        raise TeamInUse(f"Team {name} cannot be removed: {why}.")
    text = f"Team {name} removed by {request.by}: {request.reason}"
    entry = TimelineEntry(at=context.now, kind="setup", text=text, writer=request.by)
    tree_document = {**tree.doc, "setUps": int(tree.doc.get("setUps", 0)) + 1}
    context.ledger.commit(
        Delete(quota_rows.team_key(name), request.expected),
        Put(Row(quota_rows.setup_key(), {}, stored_setup.version)),
        Put(Row(tree.key, tree_document, tree.version)),
        Put(quota_rows.setup_event_row(SetupChange.of(entry, name, stored_setup.setup), stored_setup.version + 1)),
    )
    return True


def _quota_tree_row(ledger: Ledger) -> Row:
    key = quota_rows.tree_key()
    return next((row for row in ledger.partition(key.table, key.pk, key.sk) if row.key == key), Row(key, {}))


def _why_in_use(team: str, setup: TeamSetup, ledger: Ledger) -> str:
    """Return the jobs, charges or lent quota that keep the team; empty if none."""
    if jobs := jobs_of(team, ledger):
        return jobs
    charges = charge_rows.load_charges(ledger)
    lent = next(
        (line for entry in read_teams.team_lines(setup, charges.live, {}) for line in _lent_amounts(entry, team)), ""
    )
    return f"other teams use {lent} of its quota" if lent else ""


def jobs_of(team: str, ledger: Ledger) -> str:
    """Return which jobs of a team have not ended; empty if all have."""
    charges = charge_rows.load_charges(ledger)
    team_charges = [charge for charge in charges.live if team in (charge.team, charge.queue)]
    if team_charges:
        return f"{_first_and_count([charge.job_id for charge in team_charges])} still holds quota"
    # The index may not list an interrupted job yet.
    job_with_charge = next((charge.job_id for charge, _ in charges.released if charge.team == team), "")
    waiting_job = job_with_charge or _find_waiting_job(team, ledger)
    return f"its job {waiting_job} is queued: cancel it first" if waiting_job else ""


def _find_waiting_job(team: str, ledger: Ledger) -> str:
    """Return a pending or suspended job of the team; empty if there is none."""
    pending_state = f"JOB#{JobState.PENDING}"
    queued_rows = ledger.by_state(Table.JOBS, pending_state, prefix=job_rows.queue_prefix(team), limit=1).rows
    rows_before_teams = _jobs_in_state(team, ledger, pending_state, _BEFORE_TEAMS)
    held_back = _jobs_in_state(team, ledger, f"JOB#{JobState.SUSPENDED}")
    row = next(iter(queued_rows), None) or next(rows_before_teams, None) or next(held_back, None)
    return str(row.doc["jobId"]) if row else ""


def _jobs_in_state(team: str, ledger: Ledger, state: str, prefix: str = "") -> Iterator[Row]:
    queued_rows = every(lambda cursor: ledger.by_state(Table.JOBS, state, prefix=prefix, cursor=cursor))
    return (row for row in queued_rows if row.doc["spec"]["team"] == team)


def _lent_amounts(line: dict[str, object], team: str) -> list[str]:
    resources = line["resources"]
    if line["team"] != team or not isinstance(resources, list):
        return []
    return [
        f"{resource['lent']} {resource['resource']} of {resource['flavor']}"
        for resource in resources
        if resource["lent"] != "0"
    ]


def _first_and_count(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
