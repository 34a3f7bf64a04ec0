"""What a job may ask for in its team's name, and who may change it."""

from collections.abc import Iterator

from evenkeel.domain.names import unknown
from evenkeel.domain.scheduling.jobs import DEFAULT_TEAM, Job, JobSpec
from evenkeel.domain.scheduling.submission import SpecFault
from evenkeel.domain.scheduling.teams import Role, SetUp


def team_of(spec: JobSpec, setup: SetUp, identity: str) -> str:
    """Return the team that a job is meant for: the one it names, else the only one that its submitter belongs to."""
    if spec.team or not setup.has_teams:
        return spec.team or DEFAULT_TEAM
    mine = setup.teams_of(identity)
    return mine[0] if len(mine) == 1 else ""


def check_governed(spec: JobSpec, setup: SetUp) -> tuple[SpecFault, ...]:
    """Return what a job asks for that its team may not have; nothing where no teams are set up."""
    return tuple(_faults(spec, setup)) if setup.has_teams else ()


def _faults(spec: JobSpec, setup: SetUp) -> Iterator[SpecFault]:
    team = setup.by_name.get(spec.team)
    if team is None:
        there = ", ".join(list(setup.by_name)[:10])
        more = " and more" if len(setup.teams) > 10 else ""
        ask = f"Name the team that it is for. There are {there}{more}."
        yield SpecFault("team", unknown("team", spec.team, setup.by_name) if spec.team else ask)
    elif not team.allows_image(spec.image):
        yield SpecFault("image", f"Team {team.name} runs only {', '.join(team.images[:10])}.")
    classes = setup.fleet.priority_classes
    if spec.priority_class and spec.priority_class not in classes:
        said = unknown("priority class", spec.priority_class, classes)
        yield SpecFault("priorityClass", said if classes else f"{said} None is set up.")


def may_submit(setup: SetUp, team: str, identity: str) -> bool:
    """Whether somebody may submit jobs for a team. Where no teams are set up, the route's IAM policy decided it."""
    role = setup.role_in(team, identity)
    return not setup.has_teams or (role is not None and role.covers(Role.SUBMITTER))


def may_read(setup: SetUp, job: Job, identity: str, principal: str) -> bool:
    """Whether somebody belongs to a job's team, or submitted the job before its team was set up."""
    if not setup.has_teams or setup.role_in(job.spec.team, identity) is not None:
        return True
    return bool(principal) and job.owner == principal and job.spec.team not in setup.by_name


def may_change(setup: SetUp, job: Job, identity: str, principal: str) -> bool:
    """Whether somebody may cancel, suspend, resume or re-rank a job: its submitter, or a lead of its team."""
    role = setup.role_in(job.spec.team, identity)
    is_own = bool(principal) and job.owner == principal
    if not setup.has_teams or (role is not None and role.covers(Role.LEAD)):
        return True
    # A job may be older than its team's set-up.
    return is_own and (job.spec.team not in setup.by_name or (role is not None and role.covers(Role.SUBMITTER)))
