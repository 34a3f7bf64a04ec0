"""Check whether the caller may act for a team. Its role is looked up; a request cannot grant a role."""

from evenkeel.domain.jobs.job import Job
from evenkeel.domain.quotas.permissions import may_change, may_submit
from evenkeel.domain.quotas.teams import TeamSetup
from evenkeel.domain.values import Value
from evenkeel.ports import Refused


class Requester(Value):
    """The caller of a request."""

    principal: str = ""
    """The role or user that signed, as records name it. It is the same in every session."""
    identity: str = ""
    """The ARN in the form in which teams name their members; empty if the caller is neither a role nor a user."""
    actor: str = ""
    """Principal and session, for records only."""


class NotYourTeam(Refused):
    """The caller's role in the team does not allow the request."""

    code = "NOT_YOUR_TEAM"


def to_submit(requester: Requester, team: str, setup: TeamSetup) -> None:
    """Check a submission against the caller's role.

    Raises:
        NotYourTeam: the caller may not submit for this team.
    """
    if not may_submit(setup, team, requester.identity):
        raise NotYourTeam(
            f"{requester.principal} may not submit jobs for team {team}. Allowed: submitters and leads of the team."
        )


def to_change(requester: Requester, job: Job, setup: TeamSetup) -> None:
    """Check a change of a job against the caller's role.

    Raises:
        NotYourTeam: the caller may not change this job.
    """
    if not may_change(setup, job, requester.identity, requester.principal):
        required_role = f"its submitter, or a lead of team {job.spec.team}"
        raise NotYourTeam(f"{requester.principal} may not change {job.job_id}. Allowed: {required_role}.")
