"""Permissions: what a job may request for its team, and who may submit, read or change it."""

from collections.abc import Collection, Iterator

from evenkeel.domain.jobs.check_pod_rules import check_pod_rules
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.jobs.pod_rules import NOTHING_ALLOWED, PodRules
from evenkeel.domain.jobs.spec import DEFAULT_TEAM, JobSpec
from evenkeel.domain.jobs.validation import SpecError
from evenkeel.domain.name_suggestions import unknown_name
from evenkeel.domain.quotas.teams import Role, Team, TeamSetup, is_under


def team_of(spec: JobSpec, setup: TeamSetup, identity: str) -> str:
    """Return the team of a job: the team that it names, else the submitter's only team; empty if there is none."""
    if spec.team or not setup.has_teams:
        return spec.team or DEFAULT_TEAM
    own_teams = setup.teams_of(identity)
    return own_teams[0] if len(own_teams) == 1 else ""


def check_permitted(
    spec: JobSpec, setup: TeamSetup, classes: Collection[str] = (), pod_rules: PodRules = NOTHING_ALLOWED
) -> tuple[SpecError, ...]:
    """Return an error for each field of a job that its team may not use.

    Args:
        spec: The job's specification.
        setup: The teams.
        classes: Priority classes that the policy allows if there are no teams.
        pod_rules: The rules of the policy; they apply if there are no teams.
    """
    return tuple(
        _errors_with_teams(spec, setup) if setup.has_teams else _errors_without_teams(spec, classes, pod_rules)
    )


def _errors_without_teams(spec: JobSpec, classes: Collection[str], pod_rules: PodRules) -> Iterator[SpecError]:
    if spec.priority_class and spec.priority_class not in classes:
        hint = f"The policy allows {', '.join(sorted(classes)[:10])}" if classes else "The policy allows none"
        text = f"The site's policy does not allow priority class {spec.priority_class} (jobs.priorityClasses). {hint}."
        yield SpecError("priorityClass", text)
    yield from check_pod_rules(spec, pod_rules, "The site's policy (jobs.allowed)")


def _errors_with_teams(spec: JobSpec, setup: TeamSetup) -> Iterator[SpecError]:
    team = setup.by_name.get(spec.team)
    if team is None:
        team_names = ", ".join(list(setup.by_name)[:10])
        ellipsis = " and more" if len(setup.teams) > 10 else ""
        missing_team_text = f"Name the job's team. The teams are {team_names}{ellipsis}."
        yield SpecError("team", unknown_name("team", spec.team, setup.by_name) if spec.team else missing_team_text)
    else:
        yield from _team_errors(spec, team, setup)
    classes = setup.fleet.priority_classes
    if spec.priority_class and spec.priority_class not in classes:
        message = unknown_name("priority class", spec.priority_class, classes)
        yield SpecError("priorityClass", message if classes else f"{message} No priority class is set up.")


def _team_errors(spec: JobSpec, team: Team, setup: TeamSetup) -> Iterator[SpecError]:
    if not team.namespace and len(setup.teams) > 1:
        text = f"Team {team.name} has no namespace of its own. Ask an administrator to set one: evenkeel teams apply."
        yield SpecError("team", text)
    if not team.allows_image(spec.image):
        yield SpecError("image", f"Team {team.name} runs only {', '.join(team.images[:10])}.")
    if spec.priority_class and team.priority_classes and spec.priority_class not in team.priority_classes:
        allowed_text = ", ".join(team.priority_classes[:10])
        yield SpecError("priorityClass", f"Use one of the priority classes of team {team.name}: {allowed_text}.")
    yield from check_pod_rules(spec, team.allowed, f"Team {team.name}")
    if not spec.checkpoint_uri:
        return
    other_teams = (other_team for other_team in setup.teams if other_team.name != team.name)
    folder_team = next(
        (other_team.name for other_team in other_teams if _overlaps_folder_of_team(spec, other_team)), ""
    )
    if team.checkpoints and not team.has_checkpoints(spec.checkpoint_uri):
        allowed_text = ", ".join(team.checkpoints[:10])
        yield SpecError("checkpoint.uri", f"Team {team.name} keeps checkpoints under {allowed_text}.")
    elif folder_team:
        yield SpecError("checkpoint.uri", f"The path is inside a folder of team {folder_team}.")


def _overlaps_folder_of_team(spec: JobSpec, team: Team) -> bool:
    # Checkpoints on a claim are in the namespace of the job's own team, whatever their path.
    uri = spec.checkpoint_uri
    if spec.keeps_checkpoints_in_cluster:
        return False
    return team.has_checkpoints(uri) or any(is_under(checkpoint, uri) for checkpoint in team.checkpoints)


def may_submit(setup: TeamSetup, team: str, identity: str) -> bool:
    """Whether an identity may submit jobs for a team. Without teams, the IAM policy of the route decided it."""
    role = setup.role_in(team, identity)
    return not setup.has_teams or (role is not None and role.includes(Role.SUBMITTER))


def may_read(setup: TeamSetup, job: Job, identity: str, principal: str) -> bool:
    """Whether an identity is a member of the job's team, or submitted the job before its team was set up."""
    if not setup.has_teams or setup.role_in(job.spec.team, identity) is not None:
        return True
    return bool(principal) and job.submitter == principal and job.spec.team not in setup.by_name


def may_change(setup: TeamSetup, job: Job, identity: str, principal: str) -> bool:
    """Whether an identity may cancel, suspend, resume or reprioritise a job: its submitter, or a lead of its team."""
    role = setup.role_in(job.spec.team, identity)
    is_own = bool(principal) and job.submitter == principal
    if not setup.has_teams or (role is not None and role.includes(Role.LEAD)):
        return True
    # The job may be older than the set-up of its team.
    return is_own and (job.spec.team not in setup.by_name or (role is not None and role.includes(Role.SUBMITTER)))
