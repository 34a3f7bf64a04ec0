"""Run the scheduler on files: its decisions, cycle by cycle, with their reasons."""

from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenkeel.domain.kueue.quantities import short_text
from evenkeel.domain.queue_simulation.documents import DocumentError, seconds
from evenkeel.domain.queue_simulation.manifest_kinds import NO_JOBS, is_other_kind, items_of
from evenkeel.domain.queue_simulation.plan_events import Events
from evenkeel.domain.queue_simulation.plan_report import (
    ConsideredFlavor,
    CycleAnswer,
    DecisionAnswer,
    NodeAnswer,
    Plan,
    TopologyAnswer,
    decision_of,
)
from evenkeel.domain.queue_simulation.profiles import Profile
from evenkeel.domain.queue_simulation.replay import Replay
from evenkeel.domain.queue_simulation.setup import QuotaDocuments
from evenkeel_cli.offline import quota_files
from evenkeel_cli.render import Column, Printer
from evenkeel_client.errors import CommandFailed, Exit

if TYPE_CHECKING:
    from evenkeel.domain.queue_simulation.why import Why

Json = dict[str, Any]
_FIRST_UNIX_TIME = 10**8
"""An instant in 1973. A smaller number counts seconds from a start that the files choose."""

_MAX_DOMAINS = 4
"""Maximum number of domains of a pod set that a table names."""


def replay_files(
    quota_documents: QuotaDocuments,
    jobs: list[Path],
    events: Path | None,
    *,
    begins: float,
    cycles: int | None,
    releases_at_once: bool,
) -> Replay:
    """Submit the jobs, apply the events, and run the cycles.

    Raises:
        CommandFailed: a file cannot be used; names the file, the object and the field.
    """
    try:
        replay = Replay(quota_documents, cycles, releases_at_once, begins)
        for file in jobs:
            for position, document in enumerate(quota_files.load_documents(file)):
                for job in _jobs_of(document):
                    where = f"{file}: document {position + 1}"
                    if isinstance(job, dict) and (str(job.get("kind")) in NO_JOBS or is_other_kind(job)):
                        quota_documents.read_warnings.warn(where, f"{job['kind']} is not a job and is ignored here")
                    else:
                        replay.submit(job, where)
        replay.run(_read_events(quota_documents, events), str(events or "events"))
    except DocumentError as error:
        raise quota_files.as_command_failed(error) from error
    return replay


def _jobs_of(document: Any) -> list[Any]:
    return _as_list(document["jobs"]) if isinstance(document, dict) and "jobs" in document else items_of(document)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _read_events(quota_documents: QuotaDocuments, file: Path | None) -> Events:
    if file is None:
        return Events()
    events: list[Any] = []
    for document in quota_files.load_documents(file):
        events += _as_list(document["events"]) if isinstance(document, dict) and "events" in document else [document]
    return quota_documents.read_warnings.read(Events, {"events": events}, str(file))


def draw_plan(out: Printer, plan: Plan) -> None:
    """Draw a plan: its cycles, the quota in use at the end, and the jobs that were not admitted."""
    for cycle in plan.cycles:
        _draw_cycle(out, cycle)
    out.table(_TREE_COLUMNS, [queue for queue in (*plan.end.queues, *plan.end.cohorts) if queue.quotas])
    waiting_workloads = [
        (job, state) for queue in plan.end.queues for state in ("active", "parked") for job in getattr(queue, state)
    ]
    if waiting_workloads or plan.end.unqueued:
        out.line()
        waiting_workloads += [(answer.job, answer.reason) for answer in plan.end.unqueued]
        out.table([Column("NOT ADMITTED", 0), Column("STATE", 1, may_shrink=True)], waiting_workloads)


def _draw_cycle(out: Printer, cycle: CycleAnswer) -> None:
    out.line(out.bold(f"cycle {cycle.number}") + out.dim(f"  at {_instant_text(cycle.at)}"))
    out.table(_CYCLE_COLUMNS, cycle.decisions, indent="  ", is_wide=True)
    out.line()


def _instant_text(at: float) -> str:
    """Return an instant in RFC 3339 if the files count from 1970, else the seconds as they were written."""
    if at < _FIRST_UNIX_TIME:
        return f"{at:.15g}"
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="auto").replace("+00:00", "Z")


def _flavor_text(answer: DecisionAnswer) -> str:
    return (
        " ".join(
            f"{pods.name}×{pods.count}:{','.join(sorted({chosen.flavor for chosen in pods.flavors.values()}))}"
            f"{_domain_text(pods.topology)}"
            for pods in answer.pod_sets
            if pods.flavors
        )
        or "–"
    )


def _domain_text(topology: TopologyAnswer | None) -> str:
    if topology is None:
        return ""
    names = ["/".join(domain.values) for domain in topology.domains]
    more = f" and {len(names) - _MAX_DOMAINS} more" if len(names) > _MAX_DOMAINS else ""
    return f"@{','.join(names[:_MAX_DOMAINS])}{more}"


def _reason_text(answer: DecisionAnswer) -> str:
    victims = ", ".join(f"{victim.job} ({victim.reason})" for victim in answer.victims)
    return f"evicts {victims}" if victims else answer.pending or answer.reason


def _usage_text(node: NodeAnswer) -> str:
    return "  ".join(
        f"{quota.flavor}/{quota.resource} {short_text(quota.resource, quota.used)} of"
        f" {short_text(quota.resource, quota.subtree)}"
        for quota in node.quotas
    )


_CYCLE_COLUMNS = (
    Column("JOB", attrgetter("job")),
    Column("QUEUE", attrgetter("queue")),
    Column("RESULT", attrgetter("result")),
    Column("FLAVORS", _flavor_text),
    Column("LEVEL", attrgetter("level"), is_right=True),
    Column("BECAUSE", _reason_text),
)
_TREE_COLUMNS = (
    Column("QUEUE OR COHORT", attrgetter("name")),
    Column("IN", lambda node: node.parent or "–"),
    Column("USED OF QUOTA", _usage_text, may_shrink=True),
    Column("SHARE", lambda node: "∞" if node.share.value is None else node.share.value, is_right=True),
)


def parse_profile(name: str) -> Profile:
    """Return the profile of this name.

    Raises:
        CommandFailed: there is none.
    """
    try:
        return Profile(name)
    except ValueError as error:
        profiles = ", ".join(Profile)
        raise CommandFailed(Exit.USAGE, f"There is no profile {name!r}; there are {profiles}.", code="USAGE") from error


def parse_instant(typed_value: str) -> float:
    """Parse the value of `--now`; 0 if it is empty.

    Raises:
        CommandFailed: it is not an instant.
    """
    try:
        return seconds(typed_value) if "T" in typed_value else float(typed_value or 0)
    except ValueError as error:
        raise CommandFailed(Exit.USAGE, f"--now: {typed_value!r} is not an instant.", code="USAGE") from error


def parse_evictions(eviction_mode: str) -> bool:
    """Return whether `--evictions` is `released`: evicted jobs have then stopped before the next cycle.

    Raises:
        CommandFailed: it is neither `held` nor `released`.
    """
    if eviction_mode not in ("held", "released"):
        raise CommandFailed(Exit.USAGE, f"--evictions is held or released, not {eviction_mode!r}.", code="USAGE")
    return eviction_mode == "released"


def explain_job(replay: Replay, job: str) -> "Why":
    """Explain why a job waits, or which decision admitted it.

    Args:
        replay: The plan.
        job: The id of the job; for a Workload of Kueue `namespace/name`, or the name of the object that owns it.

    Raises:
        CommandFailed: there is no such job, several have this name, or no decision was made about it.
    """
    from evenkeel.domain.queue_simulation.why import Why, why

    job = _job_with_owner(replay, job)
    if job in replay.unqueued:
        raise CommandFailed(Exit.NOT_FOUND, f"{job} is in no queue: {replay.unqueued[job]}.", code="NOT_QUEUED")
    scheduler = replay.scheduler
    pending_workload = next((workload for queue in scheduler.pending.values() if (workload := queue.get(job))), None)
    if pending_workload is not None:
        return why(scheduler, pending_workload.workload)
    last_decision = next(
        (decision for decision in reversed(replay.decisions) if decision.workload.workload_id == job), None
    )
    if last_decision is None:
        raise CommandFailed(Exit.NOT_FOUND, f"Nothing was decided about {job}.", code="NOT_FOUND")
    return Why(
        job=job,
        queue=last_decision.workload.queue,
        sentence=last_decision.reason,
        position=None,
        before=(),
        decision=decision_of(last_decision, frozenset(), ""),
        changes=(),
    )


def _job_with_owner(replay: Replay, name: str) -> str:
    """Return the id of the only Workload whose owner has this name; the name itself if there is none."""
    if name in replay.documents:
        return name
    owned = [job for job, document in replay.documents.items() if name in _owner_names(document)]
    if len(owned) > 1:
        hint = "Name one of them with its namespace."
        raise CommandFailed(Exit.USAGE, f"{name} owns {', '.join(owned)}.", code="AMBIGUOUS", hint=hint)
    return owned[0] if owned else name


def _owner_names(document: Any) -> set[str]:
    """Return the names of the owners of a Workload, each also with the Workload's namespace."""
    metadata = document.get("metadata") if isinstance(document, dict) else None
    if not isinstance(metadata, dict):
        return set()
    names = {str(owner.get("name")) for owner in metadata.get("ownerReferences") or () if isinstance(owner, dict)}
    return names | {f"{metadata.get('namespace')}/{name}" for name in names}


def draw_why(out: Printer, why: "Why") -> None:
    """Draw the explanation of a job."""
    out.line(f"{out.bold(why.job)} in {why.queue}: {why.sentence}")
    if why.decision.considered:
        out.line()
        columns = [
            Column("POD SET", attrgetter("pod_set")),
            Column("FLAVOR", attrgetter("flavor")),
            Column("MODE", attrgetter("mode")),
            Column(
                "WEIGHED",
                lambda decision: decision.why or _comparison_text(decision) or decision.pending,
                may_shrink=True,
            ),
        ]
        out.table(columns, why.decision.considered)
    if why.changes:
        out.line()
        out.line("Each of these changes alone would admit the job:")
        out.pairs([(change.kind, change.message) for change in why.changes], indent="  ")


def _comparison_text(considered_flavor: ConsideredFlavor) -> str:
    return "; ".join(
        f"{key.resource} wants {short_text(key.resource, key.wanted)},"
        f" {short_text(key.resource, key.available)} available, {short_text(key.resource, key.potential)} at most"
        for key in considered_flavor.compared
    )
