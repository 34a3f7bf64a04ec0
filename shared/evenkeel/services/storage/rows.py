"""Keys, index entries and lifetimes of all rows. No other module knows them."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, TypeVar

from evenkeel.domain.capacity.shortages import Shortages
from evenkeel.domain.decisions import MAX_ALTERNATIVES, Decision, packed
from evenkeel.domain.health.groups import GroupFact
from evenkeel.domain.health.incidents import DRILL_PREFIX, Evidence, Incident, NodeFact, TimelineEntry
from evenkeel.domain.health.intake import LastIncident
from evenkeel.domain.health.recurrence import HISTORY_WINDOW, FaultHistory
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.kept_logs import KeptLog
from evenkeel.domain.nodes import NodeLife
from evenkeel.domain.quotas.teams import FleetQuotas, Team
from evenkeel.domain.recovery.leases import RepairLease
from evenkeel.domain.recovery.unhealthy import UnhealthyNode
from evenkeel.domain.renting.book import RentalAllocation
from evenkeel.domain.renting.rental import Rental, RentalState
from evenkeel.domain.renting.serving import ServingState
from evenkeel.domain.values import Value, rfc3339
from evenkeel.domain.waiting import Wait
from evenkeel.ports import Key, Ledger, NotFound, Row, Table

T = TypeVar("T", bound=Value)

KEPT = timedelta(days=400)
"""How long jobs, incidents and decisions are kept."""
FACT_KEPT = timedelta(days=30)
"""How long a fact is kept, so that late copies of it are recognised."""
GROUP_FACT_KEPT = timedelta(days=1)
"""How long a fact about a group counts, from its time: the longest window of the rules that read it."""
EARLY_KEPT = timedelta(hours=1)
"""How long a notice about an instance that the fleet does not know is kept."""
IDEMPOTENCY_KEPT = timedelta(hours=24)

_SETUP = "SETUP"
ROOT_TREE = "fleet"
"""The only cohort tree."""


def load(ledger: Ledger, key: Key, kind: type[T], what: str) -> T:
    """Read the value that must exist under a key.

    Raises:
        NotFound: there is none; the message names `what`.
    """
    row = ledger.get(key)
    if row is None:
        raise NotFound(f"There is no {what}.")
    return read(row, kind)


def read(row: Row, kind: type[T]) -> T:
    """Read a row's document as a domain value."""
    return kind.model_validate(row.doc)


# ---------------------------------------------------------------- Incidents
#
# A drill has rows of its own, whose keys begin with DRILL-: a drill cannot reach the rows of a real recovery.

_DRILL = "DRILL-"


def _own(pk: str, *, is_drill: bool) -> str:
    return f"{_DRILL}{pk}" if is_drill else pk


def incident_key(incident_id: str) -> Key:
    """`INC#id / META`."""
    return Key(Table.INCIDENTS, f"INC#{incident_id}", "META")


def incident_row(incident: Incident, version: int) -> Row:
    """In `byState` under `INC#<state>` by opening time, so that lists are in order."""
    return Row(
        incident_key(incident.incident_id),
        incident.to_json(),
        version,
        (f"INC#{incident.state}", rfc3339(incident.opened_at)),
        incident.opened_at + KEPT,
    )


def open_key(life: NodeLife, *, is_drill: bool = False) -> Key:
    """`OPEN#life`: exists exactly while an incident of that life is open; one for real facts and one for drills."""
    return Key(Table.INCIDENTS, _own(f"OPEN#{life.key}", is_drill=is_drill), "META")


def open_row(life: NodeLife, incident_id: str, version: int = 0, *, is_drill: bool = False) -> Row:
    """Points from the life to its open incident. In `byState` under `OPEN`, so that a leftover can be found."""
    return Row(open_key(life, is_drill=is_drill), {"incidentId": incident_id}, version, ("OPEN", life.key))


def slot_key(slot: str, *, is_drill: bool = False) -> Key:
    """`SLOT#slot`: the latest incident of a node slot, on any of its nodes."""
    return Key(Table.INCIDENTS, _own(f"SLOT#{slot}", is_drill=is_drill), "META")


def slot_row(incident: Incident, version: int, now: datetime) -> Row:
    """A signal about a replacement names the new node. This row leads to the incident of the old one."""
    key = slot_key(incident.slot, is_drill=incident.is_drill)
    return Row(key, {"incidentId": incident.incident_id}, version, None, now + FACT_KEPT)


def fact_key(fact: str) -> Key:
    """`FACT#…`: a row for each ingested fact. Its copies are recognised even after the incident is settled."""
    return Key(Table.INCIDENTS, f"FACT#{fact}", "META")


def fact_row(fact: str, incident_id: str, now: datetime, version: int = 0) -> Row:
    """Record the fact with the incident that it joined."""
    return Row(fact_key(fact), {"incidentId": incident_id}, version, None, now + FACT_KEPT)


def last_key(life: NodeLife, *, is_drill: bool = False) -> Key:
    """`LAST#life / META`: the state in which the last settled incident left a life."""
    return Key(Table.INCIDENTS, _own(f"LAST#{life.key}", is_drill=is_drill), "META")


def last_row(life: NodeLife, last: LastIncident, version: int, now: datetime, *, is_drill: bool = False) -> Row:
    """Kept as long as facts are: it separates old facts from new ones."""
    return Row(last_key(life, is_drill=is_drill), last.to_json(), version, None, now + FACT_KEPT)


def history_key(place: str, *, is_drill: bool = False) -> Key:
    """`HISTORY#place / META`: the earlier faults of a node slot, a job or an instance group."""
    return Key(Table.INCIDENTS, _own(f"HISTORY#{place}", is_drill=is_drill), "META")


def history_row(place: str, history: FaultHistory, version: int, now: datetime, *, is_drill: bool = False) -> Row:
    """Kept as long as the longest window in which a fault is counted."""
    return Row(history_key(place, is_drill=is_drill), history.to_json(), version, None, now + HISTORY_WINDOW)


POLICY_CHANGES = "POLICY"
"""Index key of the policy changes, listed by number."""


def unresolved_row(fact_doc: dict[str, Any], fact: str, now: datetime, version: int = 0) -> Row:
    """A fact whose node life is unknown. The sweep tries again. Drills are listed apart."""
    key = Key(Table.INCIDENTS, f"UNRESOLVED#{fact}", "META")
    state = "UNRESOLVED-DRILL" if fact.startswith(DRILL_PREFIX) else "UNRESOLVED"
    return Row(key, fact_doc, version, (state, rfc3339(now)), now + FACT_KEPT)


def unhealthy_key(life: NodeLife) -> Key:
    """`UNHEALTHY#life / META`: an incident left the node unhealthy and none works on it, or a person trusts it."""
    return Key(Table.INCIDENTS, f"UNHEALTHY#{life.key}", "META")


def unhealthy_row(node: UnhealthyNode, version: int) -> Row:
    """In `byState` under `UNHEALTHY`, trusted nodes too. The sweep, the scheduler and `status` find them there."""
    state = ("UNHEALTHY", node.life.key)
    return Row(unhealthy_key(node.life), node.to_json(), version, state, node.since + KEPT)


def retried_key() -> Key:
    """`RETRIED / META`: the position in the list of unresolved facts."""
    return Key(Table.INCIDENTS, "RETRIED", "META")


def early_key(instance_id: str, *, is_drill: bool = False) -> Key:
    """`EARLY#instance / META`."""
    return Key(Table.INCIDENTS, _own(f"EARLY#{instance_id}", is_drill=is_drill), "META")


def early_row(
    instance_id: str, facts: Iterable[NodeFact], now: datetime, version: int, *, is_drill: bool = False
) -> Row:
    """A notice of an account-wide source about an instance that the fleet does not know, or not yet."""
    doc = {"instanceId": instance_id, "facts": [fact.to_json() for fact in facts]}
    return Row(early_key(instance_id, is_drill=is_drill), doc, version, ("EARLY", rfc3339(now)), now + EARLY_KEPT)


def evidence_row(evidence: Evidence) -> Row:
    """`INC#id / EVIDENCE#time#envelope#fact`: one envelope may carry several facts about one node."""
    digest = hashlib.sha256(evidence.fact.fact_key.encode()).hexdigest()[:8]
    key = Key(
        Table.INCIDENTS,
        f"INC#{evidence.incident_id}",
        f"EVIDENCE#{rfc3339(evidence.joined_at)}#{evidence.fact.envelope_id}#{digest}",
    )
    return Row(key, evidence.to_json(), 0, None, evidence.joined_at + KEPT)


# ---------------------------------------------------------------- Jobs


def job_key(job_id: str) -> Key:
    """`JOB#id / META`."""
    return Key(Table.JOBS, f"JOB#{job_id}", "META")


def job_row(job: Job, version: int) -> Row:
    """In `byState` under `JOB#<state>`: while it waits in a team's queue in queue order, else by submission."""
    expires = (job.ended_at or job.submitted_at) + KEPT if job.state.has_ended else None
    waits = job.state is JobState.PENDING
    place = queue_order(job) if waits else f"{rfc3339(job.submitted_at)}#{job.job_id}"
    return Row(job_key(job.job_id), job.to_json(), version, (f"JOB#{job.state}", place), expires)


def queue_prefix(queue: str) -> str:
    """Return the prefix of the places in a team's queue."""
    return f"{queue}#"


def queue_order(job: Job) -> str:
    """Return the place of a pending job: `<team>#<inverted priority>#<queued at>#<id>`. Each queue is read alone.

    Without teams, first come, first served: `<submitted at>#<id>`. The id makes the order total.
    """
    if not job.queue:
        return f"{rfc3339(job.submitted_at)}#{job.job_id}"
    inverted = 2**31 - 1 - max(-(2**31), min(2**31 - 1, job.priority))
    queued_at = rfc3339(job.queued_at or job.submitted_at)
    return f"{queue_prefix(job.queue)}{inverted:010d}#{queued_at}#{job.job_id}"


def attempt_key(job_id: str, attempt: int) -> Key:
    """`JOB#id / ATTEMPT#0000n`."""
    return Key(Table.JOBS, f"JOB#{job_id}", f"ATTEMPT#{attempt:05d}")


def attempt_row(attempt: Attempt, version: int) -> Row:
    """In `byState` under `ATTEMPT#LIVE` by admission until it is settled, then under `ATTEMPT#ENDED` by its end."""
    entry = ("ATTEMPT#LIVE", f"{rfc3339(attempt.admitted_at)}#{attempt.workload_name}")
    if attempt.state.has_ended and attempt.ended_at:
        entry = ("ATTEMPT#ENDED", f"{rfc3339(attempt.ended_at)}#{attempt.workload_name}")
    return Row(
        attempt_key(attempt.job_id, attempt.attempt),
        attempt.to_json(),
        version,
        entry,
        attempt.admitted_at + KEPT if attempt.state.has_ended else None,
    )


def idempotency_key(principal: str, key: str) -> Key:
    """`IDEM#principal#key`, written in the job's own transaction."""
    return Key(Table.JOBS, f"IDEM#{principal}#{key}", "META")


def idempotency_row(principal: str, key: str, answer: dict[str, Any], now: datetime) -> Row:
    """The first answer. Every repeat within a day gets it again."""
    return Row(idempotency_key(principal, key), answer, 0, None, now + IDEMPOTENCY_KEPT)


def open_jobs_key(name: str) -> Key:
    """`JOBS-OPEN#name / META`: the number of open jobs of a principal or a queue."""
    return Key(Table.JOBS, f"JOBS-OPEN#{name}", "META")


def checkpoint_place(job: Job) -> str:
    """Return the identity of a job's checkpoint folder: its S3 URI, or its path on the claim that holds it.

    The first folder of a file URI is only the mount point: `file:///fsx/llama` and `file:///data/llama` are one folder
    of a claim.
    """
    place = job.spec.checkpoint_uri.rstrip("/")
    if not job.spec.keeps_checkpoints_in_cluster:
        return place
    _, _, path = place.removeprefix("file:///").partition("/")
    return f"{job.cluster}/{job.namespace}/{job.spec.checkpoint_claim}#file:///{path}"


def checkpoints_key(place: str) -> Key:
    """`CHECKPOINTS#place / META`: the owner of a checkpoint folder. Written with the job, never deleted.

    Attempt numbers begin at one in each job. Two jobs with one folder would mistake each other's fences and
    checkpoints.
    """
    return Key(Table.JOBS, f"CHECKPOINTS#{place}", "META")


def checkpoints_row(job: Job, version: int = 0) -> Row:
    """Record the owner of a checkpoint folder. In `byState` under `CHECKPOINTS` by place, for folders inside."""
    place = checkpoint_place(job)
    return Row(checkpoints_key(place), {"jobId": job.job_id}, version, checkpoints_entry(place))


def checkpoints_entry(place: str) -> tuple[str, str]:
    """Return the index entry of a folder. The entries of folders inside it begin with it."""
    return ("CHECKPOINTS", f"{place}/")


def kept_log_key(job_id: str, attempt: int, rank: int) -> Key:
    """`JOB#id / LOG#n#rank`: the end of a rank's log, kept when its pod was deleted."""
    return Key(Table.JOBS, f"JOB#{job_id}", f"LOG#{attempt:06d}#{rank:06d}")


def kept_log_row(log: KeptLog, version: int, expires_at: datetime) -> Row:
    """In no index: a log is read by its job, attempt and rank."""
    key = kept_log_key(log.job_id, log.attempt, log.rank)
    return Row(key, log.to_json(), version, None, expires_at)


def rental_key(job_id: str, number: int) -> Key:
    """`JOB#id / RENTAL#n`: present or past rented nodes of a job."""
    return Key(Table.JOBS, f"JOB#{job_id}", f"RENTAL#{number:06d}")


def rental_row(rental: Rental, version: int) -> Row:
    """In `byState` under `RENTAL#OPEN` by its beginning until it has ended."""
    has_ended = rental.state is RentalState.ENDED
    state = None if has_ended else ("RENTAL#OPEN", f"{rfc3339(rental.begun_at)}#{rental.name}")
    expires_at = rental.begun_at + KEPT if has_ended else None
    return Row(rental_key(rental.job_id, rental.number), rental.to_json(), version, state, expires_at)


def serving_key(holder_id: str) -> Key:
    """`JOB#srv-… / SERVING`: a Deployment for which nodes are rented. Its rentals, waits and timeline are beside it."""
    return Key(Table.JOBS, f"JOB#{holder_id}", "SERVING")


def serving_row(memory: ServingState, version: int) -> Row:
    """In `byState` under `SERVING` by its id."""
    return Row(serving_key(memory.holder_id), memory.to_json(), version, ("SERVING", memory.holder_id))


# ---------------------------------------------------------------- both: timelines, waits, decisions


def subject_partition(subject: str) -> tuple[Table, str]:
    """Table and partition of a job or an incident, by the type that its id carries."""
    if subject.startswith("inc-"):
        return Table.INCIDENTS, f"INC#{subject}"
    return Table.JOBS, f"JOB#{subject}"


def timeline_row(subject: str, entry: TimelineEntry, discriminator: str) -> Row:
    """`… / EVENT#time#discriminator`. The discriminator makes a retried write the same row."""
    table, pk = subject_partition(subject)
    key = Key(table, pk, f"EVENT#{rfc3339(entry.at)}#{discriminator}")
    return Row(key, entry.to_json(), 0, None, entry.at + KEPT)


def wait_key(subject: str, name: str) -> Key:
    """`… / WAIT#name`."""
    table, pk = subject_partition(subject)
    return Key(table, pk, f"WAIT#{name}")


def wait_row(wait: Wait, version: int) -> Row:
    """In `byState` under `WAIT#OPEN` or `WAIT#ANSWERED` by deadline."""
    return Row(
        wait_key(wait.subject, wait.name),
        wait.to_json(),
        version,
        (f"WAIT#{wait.state}", f"{rfc3339(wait.deadline_at)}#{wait.subject}#{wait.name}"),
        wait.deadline_at + FACT_KEPT,
    )


def decision_key(decision_id: str) -> Key:
    """`DEC#id / META`."""
    return Key(Table.INCIDENTS, f"DEC#{decision_id}", "META")


def decision_row(decision: Decision) -> Row:
    """In `byState` under `DEC#<subject>` by time: the decisions about one incident or job."""
    return Row(
        decision_key(decision.decision_id),
        {
            **decision.but(facts={}, alternatives=decision.alternatives[:MAX_ALTERNATIVES]).to_json(),
            "facts": packed(decision.facts),
        },
        0,
        (f"DEC#{decision.subject}", rfc3339(decision.decided_at)),
        decision.decided_at + KEPT,
    )


# ---------------------------------------------------------------- Fleet


def node_key(cluster: str, instance_id: str) -> Key:
    """`NODE#cluster/instance / META`. AWS never reuses an instance id, so one row holds one node life."""
    return Key(Table.FLEET, f"NODE#{cluster}/{instance_id}", "META")


def node_row(cluster: str, instance_id: str, doc: dict[str, Any], version: int, expires_at: datetime | None) -> Row:
    """In `byState` under `NODE` by pool and id: the fleet list."""
    state = ("NODE", f"{doc.get('pool', '')}#{instance_id}")
    return Row(node_key(cluster, instance_id), doc, version, state, expires_at)


def pool_partition(pool: str) -> str:
    """`POOL#pool`; `POOL#*` holds facts about the whole cluster."""
    return f"POOL#{pool or '*'}"


def group_fact_row(fact: GroupFact, now: datetime) -> Row:
    """`POOL#pool / FACT#minute/kind/code/instance`: short-lived, so that a pool's partition stays small.

    A late fact is kept for an hour anyway, so that its copies are recognised.
    """
    key = Key(Table.FLEET, pool_partition(fact.instance_group), f"FACT#{fact.fact_key}")
    expires_at = max(fact.observed_at + GROUP_FACT_KEPT, now + timedelta(hours=1))
    return Row(key, fact.to_json(), 0, None, max(expires_at, fact.deadline_at or expires_at))


LARGEST_LIST = 300_000
"""Bytes of a list that is stored in one row."""


def fit_into_row(documents: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the first documents of a list, as many as fit into one row."""
    size, kept = 0, []
    for document in documents:
        size += len(json.dumps(document))
        if size > LARGEST_LIST:
            break
        kept.append(document)
    return kept


def unmanaged_workloads_key(cluster: str) -> Key:
    """`UNMANAGED#cluster / META`: workloads with accelerators that Evenkeel did not start, as last seen."""
    return Key(Table.FLEET, f"UNMANAGED#{cluster}", "META")


def kueue_key(cluster: str) -> Key:
    """`KUEUE#cluster / META`: the namespaces in which Kueue admits jobs, as last seen."""
    return Key(Table.FLEET, f"KUEUE#{cluster}", "META")


def kueue_row(cluster: str, doc: dict[str, Any], version: int) -> Row:
    """Lists them, each with the object that shows it. In the index: submissions read nothing else of the fleet."""
    return Row(kueue_key(cluster), doc, version, ("KUEUE", cluster))


def lease_key(slot: str, *, is_drill: bool = False) -> Key:
    """`LEASE#slot / META`: the incident that repairs a node slot, and its provider calls."""
    return Key(Table.FLEET, _own(f"LEASE#{slot}", is_drill=is_drill), "META")


def register_key(name: str, *, is_drill: bool = False) -> Key:
    """`REGISTER#name / META`: the nodes in repair, or the nodes with Evenkeel's cordon."""
    return Key(Table.FLEET, _own(f"REGISTER#{name}", is_drill=is_drill), "META")


def pools_row(nodes: Mapping[str, int], version: int) -> Row:
    """`POOLS#sizes / META`: pool → number of nodes that can be acted on. Guardrails need not list the fleet."""
    return Row(Key(Table.FLEET, "POOLS#sizes", "META"), {"nodes": dict(sorted(nodes.items()))}, version)


def cause_key(cause: str, *, is_drill: bool = False) -> Key:
    """`CAUSE#kind/name / META`: a shared cause about which people were paged."""
    return Key(Table.FLEET, _own(f"CAUSE#{cause}", is_drill=is_drill), "META")


def ended_causes_key() -> Key:
    """`CAUSES#ended / META`: the shared causes that a person ended, each with time, person and reason."""
    return Key(Table.FLEET, "CAUSES#ended", "META")


def lease_row(lease: RepairLease, version: int, *, is_drill: bool = False) -> Row:
    """In `byState` under `LEMON` while its node is one. Drills create none."""
    state = ("LEMON", lease.slot) if lease.lemon and not is_drill else None
    return Row(lease_key(lease.slot, is_drill=is_drill), lease.to_json(), version, state)


def lock_key(name: str) -> Key:
    """`LOCK#name / META`: one watch, one sweep at a time."""
    return Key(Table.FLEET, f"LOCK#{name}", "META")


def shortages_key() -> Key:
    """`SHORTAGES#fleet / META`: recent refusals of capacity."""
    return Key(Table.FLEET, "SHORTAGES#fleet", "META")


def shortages_row(shortages: Shortages, version: int) -> Row:
    """One small row: outdated entries are dropped."""
    return Row(shortages_key(), shortages.to_json(), version)


def hold_key() -> Key:
    """`HOLD#fleet / META`: every hold, of the fleet, of a pool or of a node."""
    return Key(Table.FLEET, "HOLD#fleet", "META")


def person_cordons_key() -> Key:
    """`HOLD#fleet / CORDONS`: cordons that people set through Evenkeel, with author and reason."""
    return Key(Table.FLEET, hold_key().pk, "CORDONS")


def automation_request_key(request_id: str) -> Key:
    """`IDEM#request / META`: a hold or release that was answered already."""
    return Key(Table.FLEET, f"IDEM#{request_id}", "META")


def automation_request_row(request_id: str, answer: dict[str, Any], now: datetime) -> Row:
    """The first answer. Every repeat within a day gets it again."""
    return Row(automation_request_key(request_id), answer, 0, None, now + IDEMPOTENCY_KEPT)


def automation_event_row(entry: TimelineEntry, request_id: str) -> Row:
    """`HOLD#fleet / EVENT#time#request`: each hold and release, with person and reason."""
    key = Key(Table.FLEET, hold_key().pk, f"EVENT#{rfc3339(entry.at)}#{request_id}")
    return Row(key, entry.to_json(), 0, None, entry.at + KEPT)


def heartbeat_key(function: str) -> Key:
    """`HEARTBEAT#function / META`: the end of a function's last run, and its results by source."""
    return Key(Table.FLEET, f"HEARTBEAT#{function}", "META")


# ---------------------------------------------------------------- Quotas


def tree_key(root: str = ROOT_TREE) -> Key:
    """`TREE#root / META`: its version orders all admissions of the tree."""
    return Key(Table.QUOTAS, f"TREE#{root}", "META")


def queue_cursors_key() -> Key:
    """`TREE#root / TURN`: team → how far cycles have read its queue behind the head."""
    return Key(Table.QUOTAS, f"TREE#{ROOT_TREE}", "TURN")


def charge_key(attempt: Attempt) -> Key:
    """`TREE#root / CHARGE#workload`: in the tree's partition, so that all charges are read strongly consistent."""
    return Key(Table.QUOTAS, f"TREE#{ROOT_TREE}", f"CHARGE#{attempt.workload_name}")


def charge_row(attempt: Attempt, job: Job | None = None, use: Mapping[str, Mapping[str, int]] | None = None) -> Row:
    """The amounts and nodes of an admitted attempt. Written with the attempt, released or deleted at its end."""
    return Row(charge_key(attempt), Charge.of(attempt, job, use).to_json())


def released_charge_row(attempt: Attempt, version: int, now: datetime) -> Row:
    """Mark a charge as released by a job that waits again. The row stays, so that freed quota names its owner."""
    return Row(charge_key(attempt), Charge.of(attempt).but(released_at=now).to_json(), version)


def rental_allocation_key(job_id: str, number: int) -> Key:
    """`TREE#root / RENTAL#job-bn`: in the tree's partition, so that caps are checked on a consistent read."""
    return Key(Table.QUOTAS, f"TREE#{ROOT_TREE}", f"RENTAL#{job_id}-b{number}")


def rental_allocation_row(rental: Rental, version: int) -> Row:
    """The share of a rental in caps and limits. Written with the rental, deleted once it has ended."""
    return Row(rental_allocation_key(rental.job_id, rental.number), RentalAllocation.of(rental).to_json(), version)


def setup_key() -> Key:
    """`SETUP / VERSION`: raised by every change of the setup, so that no two changes start from the same one."""
    return Key(Table.QUOTAS, _SETUP, "VERSION")


def fleet_quotas_key() -> Key:
    """`SETUP / FLEET`: the part that no single team owns."""
    return Key(Table.QUOTAS, _SETUP, "FLEET")


def team_key(team: str) -> Key:
    """`SETUP / TEAM#team`: a team's quota and members. The whole setup is one partition: one consistent query."""
    return Key(Table.QUOTAS, _SETUP, f"TEAM#{team}")


def setup_row(key: Key, part: Team | FleetQuotas, version: int) -> Row:
    """Stored as text: a queue tries its flavors in their written order, and a stored map has no order."""
    return Row(key, {"document": json.dumps(part.to_json(), separators=(",", ":"))}, version)


def setup_event_row(entry: TimelineEntry, version: int) -> Row:
    """`SETUP-EVENTS / EVENT#time#version`: changes of the setup, with person and reason. No cycle reads them."""
    key = Key(Table.QUOTAS, "SETUP-EVENTS", f"EVENT#{rfc3339(entry.at)}#{version:08d}")
    return Row(key, entry.to_json(), 0, None, entry.at + KEPT)


def usage_key(team: str) -> Key:
    """`TEAM#team / USAGE`: accelerators charged, changed by ADD only."""
    return Key(Table.QUOTAS, f"TEAM#{team}", "USAGE")


USED = "USED#"


def used_key(team: str, week: str, submitter: str) -> Key:
    """`TEAM#team / USED#week#digest`: the decayed use of a submitter's settled attempts, changed by ADD only.

    Each submitter has a row: there may be any number of sessions, and one row for all would become too large.
    """
    digest = hashlib.sha256(submitter.encode()).hexdigest()[:32]
    return Key(Table.QUOTAS, f"TEAM#{team}", f"{USED}{week}#{digest}")


def spent_key(team: str, period: str) -> Key:
    """`TEAM#team / SPENT#period`: the use of settled attempts in a day, week or month, changed by ADD only."""
    return Key(Table.QUOTAS, f"TEAM#{team}", f"SPENT#{period}")
