"""Whether the caller may act in a team's name. Its role is looked up; nothing that the request says gives one."""

from evenkeel.domain.jobs.job import Job
from evenkeel.domain.quotas.permissions import may_change, may_submit
from evenkeel.domain.quotas.teams import TeamSetup
from evenkeel.domain.values import Value
from evenkeel.ports import Refused


class Requester(Value):
    """Who asks."""

    principal: str = ""
    """The role or user that signed, as records of this account name it; stable over sessions."""
    identity: str = ""
    """The same in the form in which teams name their members; empty where it is neither role nor user."""
    actor: str = ""
    """Principal and session, for the record alone."""


class NotYourTeam(Refused):
    """The caller's role in the team does not cover what it asks for."""

    code = "NOT_YOUR_TEAM"


def to_submit(requester: Requester, team: str, setup: TeamSetup) -> None:
    """Hold a submission to the caller's role.

    Raises:
        NotYourTeam: it may not submit for this team.
    """
    if not may_submit(setup, team, requester.identity):
        raise NotYourTeam(
            f"{requester.principal} may not submit jobs for team {team}. Allowed: submitters and leads of the team."
        )


def to_change(requester: Requester, job: Job, setup: TeamSetup) -> None:
    """Hold a change of a job to the caller's role.

    Raises:
        NotYourTeam: it may not change this job.
    """
    if not may_change(setup, job, requester.identity, requester.principal):
        needed = f"its submitter, or a lead of team {job.spec.team}"
        raise NotYourTeam(f"{requester.principal} may not change {job.job_id}. Allowed: {needed}.")
