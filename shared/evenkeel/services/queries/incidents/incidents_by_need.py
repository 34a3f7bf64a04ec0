"""Open incidents by what they need: a person, time, or nothing. Also their shared causes, and the next command."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from evenkeel.domain.health.incidents import LIST_ORDER, Incident
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.nodes import FleetNode
from evenkeel.domain.plurals import count_of
from evenkeel.domain.recovery.approval import awaits_approval
from evenkeel.domain.values import rfc3339
from evenkeel.ports import Ledger, Row, Table
from evenkeel.services.context import Context
from evenkeel.services.queries.incidents import read_incidents
from evenkeel.services.queries.jobs.job_counts import JobCounts
from evenkeel.services.storage import pagination
from evenkeel.services.tables import incident_rows, job_rows, rows

Json = dict[str, Any]
MAX_OPEN = 1000
"""Open incidents of one state that the overview counts. Beyond it, the counts are marked as lower bounds."""
_MAX_UNRESOLVED = 100
"""Newest incidents of one failed outcome that are examined. Older ones are found by their cordons and resume plans."""
_MAX_LEFT = 50
"""Older incidents that are looked up by the nodes and jobs that they left."""
_MAX_INTERRUPTED = 200
"""Interrupted jobs that are looked up one by one, if not all live jobs could be listed."""
MAX_SHOWN = 50
"""Active incidents that are shown and not only counted, and as many that need a person."""


def acts_on_its_node(incident: Incident) -> bool:
    """Whether an open incident acts on its node. A drill does only if it may act."""
    acts = bool(incident.repairs) or (incident.plan is not None and incident.plan.intends_action)
    return acts or not incident.is_drill


def by_node(incidents: Iterable[Incident]) -> dict[str, Incident]:
    """Node → its open incident that acts. Real incidents come last, so that a drill hides none."""
    acting_incidents = sorted(filter(acts_on_its_node, incidents), key=lambda incident: not incident.is_drill)
    return {incident.life.key: incident for incident in acting_incidents}


class IncidentsByNeed(NamedTuple):
    """Open incidents, separated by whether they need a person."""

    needing: Sequence[Incident]
    """Incidents that need a person: first incidents that await approval, then failed incidents."""
    working: Sequence[Incident]
    """Open incidents that continue by themselves."""
    asking: Sequence[Incident]
    """Open incidents that await approval."""
    is_lower_bound: bool

    @property
    def in_work(self) -> dict[str, Incident]:
        """Node → its open incident."""
        return by_node((*self.working, *self.asking))

    def count_text(self, incidents: Sequence[Incident], verbs: tuple[str, str]) -> str:
        """Write a count: `1 incident works`, or `50+ incidents work` if it is a lower bound."""
        number = f"{len(incidents)}+" if self.is_lower_bound else str(len(incidents))
        return f"{number} incident {verbs[0]}" if number == "1" else f"{number} incidents {verbs[1]}"


def open_incidents(ledger: Ledger, *, at_most: int = MAX_OPEN) -> tuple[list[Incident], bool]:
    """Return the open incidents, the newest of each state, and whether there are more.

    Args:
        ledger: Has them.
        at_most: Number of incidents of one state. This limits the number of reads.
    """
    incidents: dict[str, Incident] = {}
    is_lower_bound = False
    for state in LIST_ORDER:
        if state.is_settled:
            break
        rows_read, more = pagination.read_partition(
            ledger, Table.INCIDENTS, f"INC#{state}", at_most=at_most, newest_first=True
        )
        incidents |= {incident.incident_id: incident for _, incident in rows.readable_rows(rows_read, Incident)}
        is_lower_bound |= more
    return list(incidents.values()), is_lower_bound


def group_by_need(
    nodes: Iterable[FleetNode], job_counts: Mapping[JobState, JobCounts], context: Context
) -> IncidentsByNeed:
    incidents, is_cut = open_incidents(context.ledger)
    awaiting_approval = [incident for incident in incidents if awaits_approval(incident)]
    not_awaiting = [incident for incident in incidents if not awaits_approval(incident)]
    failed_incidents, may_be_more = _find_failed_incidents(nodes, job_counts, incidents, context)
    alive = _JobCache(context.ledger, job_counts)
    holders = {node.slot: node for node in nodes}
    need_person = [
        incident
        for incident in failed_incidents
        if read_incidents.needs_person(
            incident, alive.jobs_of_incident(incident), holders.get(incident.slot), context.now
        )
    ]
    return IncidentsByNeed(
        [*awaiting_approval, *need_person], not_awaiting, awaiting_approval, is_cut or may_be_more or alive.is_cut
    )


class _JobCache:
    """The live jobs, read once. An interrupted job that is not live needs nothing more."""

    def __init__(self, ledger: Ledger, job_counts: Mapping[JobState, JobCounts]) -> None:
        self._ledger = ledger
        self._known: dict[str, Row | None] = {
            row.doc["jobId"]: row for lookup in job_counts.values() for row in lookup["rows"]
        }
        self._lookups = _MAX_INTERRUPTED if any(lookup["is_lower_bound"] for lookup in job_counts.values()) else 0
        self._is_whole = not self._lookups
        self.is_cut = False

    def jobs_of_incident(self, incident: Incident) -> list[Job]:
        """Return the jobs that an incident interrupted."""
        jobs = (self._job_row(affected_job.job_id) for affected_job in incident.affected_jobs)
        return [job for _, job in rows.readable_rows((row for row in jobs if row is not None), Job)]

    def _job_row(self, job_id: str) -> Row | None:
        if job_id not in self._known and not self._is_whole:
            if not self._lookups:
                self.is_cut = True
                return None
            self._lookups -= 1
            self._known[job_id] = self._ledger.get(job_rows.job_key(job_id))
        return self._known.get(job_id)


def _find_failed_incidents(
    nodes: Iterable[FleetNode],
    job_counts: Mapping[JobState, JobCounts],
    other_incidents: Iterable[Incident],
    context: Context,
) -> tuple[list[Incident], bool]:
    """Return the settled incidents that may need a person, and whether there may be more.

    The newest are listed. An older incident needs a person only if a node has its cordon or a job its resume plan.
    Evenkeel finds such incidents by these nodes and jobs.
    """
    incidents: list[Incident] = []
    has_older = is_lower_bound = False
    for state in read_incidents.NEEDS_PERSON_STATES:
        partition = f"INC#{state}"
        newest_rows, more = pagination.read_partition(
            context.ledger, Table.INCIDENTS, partition, at_most=_MAX_UNRESOLVED, newest_first=True
        )
        newest_incidents = [incident for _, incident in rows.readable_rows(newest_rows, Incident)]
        incidents += newest_incidents
        has_older |= more
        # The newest are a sample of a day, so some of the rest may still need a person.
        is_lower_bound |= (
            more and bool(newest_incidents) and context.now - newest_incidents[-1].opened_at < read_incidents.FRESH_FOR
        )
    if not has_older:
        return incidents, is_lower_bound
    docs = (row.doc for lookup in job_counts.values() for row in lookup["rows"])
    named_incident_ids = {node.incident_id for node in nodes} | {
        (doc.get("resumePlan") or {}).get("incidentId") for doc in docs
    }
    incident_ids = {incident.incident_id for incident in (*incidents, *other_incidents)}
    older = sorted({name for name in named_incident_ids if name} - incident_ids, reverse=True)
    older_rows = map(context.ledger.get, map(incident_rows.incident_key, older[:_MAX_LEFT]))
    incidents += [
        incident for _, incident in rows.readable_rows((row for row in older_rows if row is not None), Incident)
    ]
    return incidents, is_lower_bound or len(older) > _MAX_LEFT


def next_command(incidents: IncidentsByNeed, unhealthy: Sequence[str | None]) -> str | None:
    """Return the command that helps most now. `unhealthy`: the incidents that left nodes unhealthy."""
    if incidents.asking:
        return f"evenkeel incidents approve {incidents.asking[0].incident_id}"
    shown = [incident.incident_id for incident in (*incidents.needing, *incidents.working)]
    shown += filter(None, unhealthy)
    return f"evenkeel incidents show {shown[0]}" if shown else None


def shared_cause_documents(incidents: Iterable[Incident]) -> list[Json]:
    """Return the shared causes that block repairs, the largest first. The console shows each cause as one headline."""
    blocked_by_cause: dict[str, list[Incident]] = defaultdict(list)
    for incident in sorted(
        incidents, key=lambda listed_incident: (listed_incident.opened_at, listed_incident.incident_id)
    ):
        if incident.block and incident.block.cause and not incident.is_drill:
            blocked_by_cause[incident.block.cause].append(incident)
    return [
        _shared_cause_document(cause, blocked_by_cause[cause])
        for cause in sorted(blocked_by_cause, key=lambda cause: (-len(blocked_by_cause[cause]), cause))
    ]


def _shared_cause_document(cause: str, members: Sequence[Incident]) -> Json:
    kind, _, name = cause.partition("/")
    since = min(incident.first_signal_at for incident in members)
    clears = [incident.block.clears_at for incident in members if incident.block and incident.block.clears_at]
    until = f"until {max(clears):%H:%M}Z at the earliest" if clears else "until it is over"
    nodes = count_of(len(members), f"node of {kind} {name} is", f"nodes of {kind} {name} are")
    return {
        "cause": cause,
        "headline": f"{nodes} unhealthy since {since:%H:%M}Z; repairs wait (SHARED_CAUSE) {until}; look at the {kind}",
        "since": rfc3339(since),
        "guardrail": "SHARED_CAUSE",
        "incidentIds": [incident.incident_id for incident in members],
        "instanceIds": [incident.life.instance_id for incident in members],
    }


def incident_documents(incidents: IncidentsByNeed, context: Context) -> list[Json]:
    need_person = read_incidents.with_jobs(context.ledger, incidents.needing[:MAX_SHOWN])
    in_progress = read_incidents.with_jobs(context.ledger, incidents.working[:MAX_SHOWN])
    jobs = read_incidents.load_affected_jobs(context.ledger, *need_person, *in_progress)
    return [
        read_incidents.incident_summary(incident, context.now)
        | {
            "needsYou": position < len(need_person),
            "nodeLane": read_incidents.node_progress(incident, context.policy.repair),
            "jobLanes": read_incidents.job_lanes(incident, jobs),
        }
        for position, incident in enumerate([*need_person, *in_progress])
    ]
