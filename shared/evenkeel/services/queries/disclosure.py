"""Public and private fields of a job.

If teams exist, a team's logs, commands, environment, checkpoints and failure reports are private. All callers see the
facts that make the queue transparent: submitter, size, age, and the pending reason. This module lists every public
field, so a new field is private until it is added here.
"""

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from evenkeel.domain.decisions import Decision
from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.jobs.spec import JobSpec
from evenkeel.domain.quotas.permissions import may_read
from evenkeel.domain.quotas.teams import Team, TeamSetup, identity_of
from evenkeel.domain.submitted import submitted_fields
from evenkeel.domain.timeline import TimelineEntry
from evenkeel.domain.values import Value
from evenkeel.ports import Ledger
from evenkeel.services.jobs.check_role import NotYourTeam, Requester
from evenkeel.services.storage import team_setup
from evenkeel.services.tables import job_rows, rows

Json = dict[str, Any]

PUBLIC_SPEC = tuple(field.name for field in submitted_fields(JobSpec) if field.rules.is_public)
"""Fields of a job's spec that every caller sees."""
PUBLIC_JOB = (
    *("job_id", "state", "cluster", "queue", "priority", "local_queue"),
    *("submitted_at", "submitted_by", "submitter", "started_at", "ended_at", "not_before", "queued_at"),
    *("is_suspended", "is_preempted", "current_attempt", "size"),
)
"""Further fields of a job that every caller sees, beside the reason why it is pending."""
PUBLIC_ATTEMPT = (
    *("job_id", "attempt", "state", "cluster", "pool", "local_queue", "nodes", "node_names", "size", "requested_size"),
    *("accelerators", "cpu_millis", "memory_mib", "instance_type", "team"),
    *("admitted_at", "launched_at", "running_at", "ended_at"),
)
"""Fields of an attempt that every caller sees. Its reason is private, because it may quote the application."""
PUBLIC_ENTRIES = frozenset({"submitted", "admitted", "kueue", "preempted", "drained", "ranked"})
"""Timeline entries of a job whose text every caller sees. Only time and kind of other entries are public."""
NODE_KINDS = frozenset({"RECOVERY", "REPAIR", "CHECK", "VALIDATION"})
"""Decisions about nodes: every caller sees the whole record."""
QUEUE_KINDS = frozenset({"ADMISSION", "PLACEMENT"})
"""Decisions that say why a job is pending: every caller sees the result and the alternatives, its team the facts."""

_RESTART_SENTENCE = re.compile(r"(?:(?:Waits|The job waits) to run again|Restart \d+ of \d+ follows)\.\Z", re.ASCII)
"""The end of the reason of a job that is pending again. The text before it may quote the application."""


class Reader(Value):
    """The caller of a read. Without teams, it sees everything."""

    requester: Requester = Requester()
    setup: TeamSetup = TeamSetup()
    operators: tuple[str, ...] = ()
    """ARNs of the operators' roles and users. Operators see the jobs of every team."""

    @classmethod
    def for_requester(cls, requester: Requester, ledger: Ledger, operators: tuple[str, ...]) -> "Reader":
        """Return a caller with the present teams."""
        return cls(requester=requester, setup=team_setup.load_setup(ledger).setup, operators=operators)

    @cached_property
    def may_see_every_team(self) -> bool:
        """Whether the caller sees the whole of every job."""
        identity = self.requester.identity
        return not self.setup.has_teams or (bool(identity) and identity in map(identity_of, self.operators))

    def may_see_job(self, job: Job) -> bool:
        """Whether the caller may read everything about a job."""
        return self.may_see_every_team or may_read(self.setup, job, self.requester.identity, self.requester.principal)

    def may_see_team(self, team: Team) -> bool:
        """Whether the caller may read everything about the jobs of a team."""
        return self.may_see_every_team or self.setup.role_in(team.name, self.requester.identity) is not None

    def may_see_spend_of(self, team: str) -> bool:
        """Whether the caller may read the spending of a team. If the team is not set up, only operators may."""
        declared_team = self.setup.by_name.get(team)
        return self.may_see_every_team or (declared_team is not None and self.may_see_team(declared_team))

    def may_see_job_by_id(self, job_id: str, ledger: Ledger) -> bool:
        """Whether the caller may read everything about a job, by its id. A job that is gone has no team."""
        if self.may_see_every_team:
            return True
        row = ledger.get(job_rows.job_key(job_id))
        return row is not None and self.may_see_job(rows.decode(row, Job))

    def may_see_all_of(self, incident: Incident, ledger: Ledger) -> bool:
        """Whether the caller may read everything about every job that an incident interrupted."""
        return all(self.may_see_job_by_id(affected_job.job_id, ledger) for affected_job in incident.affected_jobs)

    def view_of_job(self, job: Job) -> Job:
        """Return a job as the caller may see it."""
        return job if self.may_see_job(job) else public_job(job)

    def require_access(self, job: Job) -> None:
        """Refuse a caller who may not read everything about a job.

        Raises:
            NotYourTeam: the caller is neither in the job's team nor an operator.
        """
        if not self.may_see_job(job):
            required_role = f"a member of team {job.spec.team}, a lead of every team, or an operator"
            raise NotYourTeam(
                f"{self.requester.principal} may not read the logs of {job.job_id}. Allowed: {required_role}."
            )


def public_job(job: Job) -> Job:
    """Return the public part of a job. Every other field has its default."""
    spec = JobSpec(**_fields_named(job.spec, PUBLIC_SPEC))
    return Job(spec=spec, reason=public_reason(job), namespace="", **_fields_named(job, PUBLIC_JOB))


def public_attempt(attempt: Attempt) -> Attempt:
    """Return the public part of an attempt. Every other field has its default."""
    return Attempt(namespace="", **_fields_named(attempt, PUBLIC_ATTEMPT))


def public_reason(job: Job) -> str:
    """Return why a job is pending, without words of its last attempt; empty if the job is not pending."""
    if job.state is not JobState.PENDING:
        return ""
    match = _RESTART_SENTENCE.search(job.reason)
    return match[0] if match else job.reason


def public_decision(decision: Decision) -> Decision:
    """Return the public part of a decision about a job."""
    if decision.kind in NODE_KINDS:
        return decision
    if decision.kind in QUEUE_KINDS:
        return decision.replace(facts={})
    return decision.replace(facts={}, reason="", alternatives=(), chosen=None)


def job_timeline(entries: Iterable[Json]) -> list[Json]:
    """Return the public part of a job's timeline."""
    return [entry if entry.get("kind") in PUBLIC_ENTRIES else _without_text(entry) for entry in entries]


def incident_timeline(entries: Iterable[Json]) -> list[Json]:
    """Return the public part of an incident's timeline. Entries about jobs keep only time and kind."""
    return [_without_text(entry) if entry.get("kind") == "job" else entry for entry in entries]


def _without_text(entry: Json) -> Json:
    timeline_entry = TimelineEntry.model_validate(entry)
    return timeline_entry.replace(text="").to_json()


def _fields_named(value: Value, names: Iterable[str]) -> Mapping[str, Any]:
    return {name: getattr(value, name) for name in names}
