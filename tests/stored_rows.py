"""Every kind of row in the four tables, and the rows that a newer release would write."""

import re
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel

from evenkeel.domain.admission.scheduler_state import SchedulerState
from evenkeel.domain.capacity.shortages import Shortages
from evenkeel.domain.capacity.training_plans import PlanEnds
from evenkeel.domain.costs.day_figures import DayRow
from evenkeel.domain.decisions import Decision
from evenkeel.domain.external.unmanaged_workloads import UnmanagedWorkload
from evenkeel.domain.health.group_facts import GroupFact
from evenkeel.domain.health.incidents import Evidence, Incident, NodeFact
from evenkeel.domain.health.ingestion import LastIncident
from evenkeel.domain.health.recurrence import FaultHistory
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.kept_logs import KeptLog
from evenkeel.domain.nodes import FleetNode, StoredProviderCluster
from evenkeel.domain.policy import PolicyChange
from evenkeel.domain.quotas.setup_history import SetupChange
from evenkeel.domain.quotas.spending import Spending
from evenkeel.domain.quotas.teams import FleetQuotas, Team
from evenkeel.domain.recovery.fleet_summary import FleetSummary
from evenkeel.domain.recovery.guardrails import Register
from evenkeel.domain.recovery.holds import Holds
from evenkeel.domain.recovery.manual_cordons import ManualCordons
from evenkeel.domain.recovery.repair_lease import RepairLease
from evenkeel.domain.recovery.unhealthy_nodes import UnhealthyNode
from evenkeel.domain.recovery.unmanaged_restarts import UnmanagedRestart
from evenkeel.domain.renting.rental import Rental
from evenkeel.domain.renting.rental_book import RentalAllocation
from evenkeel.domain.renting.serving_rentals import ServingState
from evenkeel.domain.scheduling.cycle_facts import CycleFacts
from evenkeel.domain.shadow.shadow_cases import Aftermath
from evenkeel.domain.sources import SourceReport
from evenkeel.domain.timeline import TimelineEntry
from evenkeel.domain.values import Instant, Value
from evenkeel.domain.waiting import Wait
from evenkeel.ports import Key, Table

# ---------------------------------------------------------------- documents without a class of their own


class Pointer(Value):
    """Names an incident: rows `OPEN#`, `SLOT#` and `FACT#`."""

    incident_id: str


class FactsOfUnlistedInstance(Value):
    """Facts about an instance that no sweep has recorded yet."""

    instance_id: str
    facts: tuple[NodeFact, ...]


class PolicyRequest(Value):
    """A change of the policy, with the digest of its request."""

    fingerprint: str
    change: PolicyChange


class Answered(Value):
    """The first answer to an idempotent request."""

    fingerprint: str
    answer: dict[str, Any]
    pending_envelope: dict[str, Any] | None = None
    """The envelope of reported faults, until it is on the queue."""


class Submitted(Value):
    """The job that was submitted with an idempotency key."""

    job_id: str
    fingerprint: str


class CheckpointOwner(Value):
    """The job that owns a checkpoint folder."""

    job_id: str


class OpenJobs(Value):
    """A number of open jobs."""

    jobs: int


class UnmanagedList(Value):
    """The unmanaged workloads of a cluster."""

    workloads: tuple[UnmanagedWorkload, ...]


class KueueNamespaces(Value):
    """Namespaces in which Kueue admits jobs, each with the object that shows it."""

    cluster: str
    namespaces: dict[str, str]


class SharedCausePage(Value):
    """A shared cause about which people were paged."""

    claimed_at: Instant
    claimed_by: str = ""
    """Incident whose recovery sends the page."""
    until: Instant
    is_paged: bool


class EndedCause(Value):
    """The end of a shared cause."""

    at: Instant
    by: str
    reason: str


class EndedCauses(Value):
    """Shared causes that people have ended."""

    causes: dict[str, EndedCause]


class LockRow(Value):
    """A lock, with the notes of its last owner."""

    owner: str
    expires_at: Instant
    notes: dict[str, Any]


class Heartbeat(Value):
    """The end of a function's last run, and the results of its sources."""

    at: Instant
    sources: dict[str, SourceReport] = {}


class TreeRow(Value):
    """The quota tree."""

    scheduler_state: SchedulerState | None = None
    set_ups: int = 0


class Cursors(Value):
    """The cursors from which cycles continue in long queues."""

    cursors: dict[str, str]
    barriers: tuple[tuple[str, str], ...] = ()


class FinishedCycle(Value):
    """When the last cycle that finished for a request began to read."""

    started_at: Instant


class Free(Value):
    """A document whose keys are data: names, sums and cursors."""


class RowType(NamedTuple):
    """One kind of row. Partition and sort key are regular expressions."""

    table: Table
    pk: str
    sk: str
    kind: type[BaseModel]
    text: str = ""
    """Field that holds the value as JSON text; empty if the document is the value."""
    subject: str = ""
    """Field with the subject of the row. A row about another subject is a new row, and keeps no fields."""
    is_replaced: bool = False
    """Whether each write replaces the document, as a change by a person or of a counter does."""


_D = "(DRILL-)?"
TYPES = (
    RowType(Table.INCIDENTS, "INC#.+", "META", Incident),
    RowType(Table.INCIDENTS, "INC#.+", "AFTERMATH", Aftermath),
    RowType(Table.INCIDENTS, "INC#.+", "EVIDENCE#.+", Evidence),
    RowType(Table.INCIDENTS, "INC#.+", "EVENT#.+", TimelineEntry),
    RowType(Table.INCIDENTS, "INC#.+", "WAIT#.+", Wait, subject="generation"),
    RowType(Table.INCIDENTS, f"{_D}OPEN#.+", "META", Pointer, subject="incident_id"),
    RowType(Table.INCIDENTS, f"{_D}SLOT#.+", "META", Pointer, subject="incident_id"),
    RowType(Table.INCIDENTS, f"{_D}LAST#.+", "META", LastIncident, subject="incident_id"),
    RowType(Table.INCIDENTS, f"{_D}HISTORY#.+", "META", FaultHistory),
    RowType(Table.INCIDENTS, f"{_D}EARLY#.+", "META", FactsOfUnlistedInstance),
    RowType(Table.INCIDENTS, "FACT#.+", "META", Pointer, subject="incident_id"),
    RowType(Table.INCIDENTS, "UNRESOLVED#.+", "META", NodeFact),
    RowType(Table.INCIDENTS, "UNHEALTHY#.+", "META", UnhealthyNode, subject="incident_id"),
    RowType(Table.INCIDENTS, "RETRIED", "META", Free),
    RowType(Table.INCIDENTS, "DEC#.+", "META", Decision),
    RowType(Table.INCIDENTS, "DECIDED#.+", "META", Decision),
    RowType(Table.INCIDENTS, "FACTS#.+", "META", CycleFacts),
    RowType(Table.INCIDENTS, "RESTART#.+", "META", UnmanagedRestart, subject="begun_at"),
    RowType(Table.INCIDENTS, "POLICY#site", "META", PolicyChange, subject="number"),
    RowType(Table.INCIDENTS, "POLICY#site", "REQUEST#.+", PolicyRequest),
    RowType(Table.JOBS, "JOB#.+", "META", Job),
    RowType(Table.JOBS, "JOB#.+", "ATTEMPT#.+", Attempt),
    RowType(Table.JOBS, "JOB#.+", "EVENT#.+", TimelineEntry),
    RowType(Table.JOBS, "JOB#.+", "WAIT#.+", Wait, subject="generation"),
    RowType(Table.JOBS, "JOB#.+", "LOG#.+", KeptLog),
    RowType(Table.JOBS, "JOB#.+", "RENTAL#.+", Rental),
    RowType(Table.JOBS, "JOB#.+", "SERVING", ServingState),
    RowType(Table.JOBS, "IDEM#.+", "META", Submitted, subject="job_id"),
    RowType(Table.JOBS, "JOBS-OPEN#.+", "META", OpenJobs),
    RowType(Table.JOBS, "CHECKPOINTS#.+", "META", CheckpointOwner, subject="job_id"),
    RowType(Table.JOBS, "POLICY#site", "META", PolicyChange, subject="number"),
    RowType(Table.FLEET, "NODE#.+", "META", FleetNode),
    RowType(Table.FLEET, "POOL#.+", "FACT#.+", GroupFact),
    RowType(Table.FLEET, "UNMANAGED#.+", "META", UnmanagedList),
    RowType(Table.FLEET, "KUEUE#.+", "META", KueueNamespaces),
    RowType(Table.FLEET, f"{_D}LEASE#.+", "META", RepairLease),
    RowType(Table.FLEET, f"{_D}REGISTER#.+", "META", Register),
    RowType(Table.FLEET, "POOLS#sizes", "META", FleetSummary),
    RowType(Table.FLEET, "HYPERPOD#cluster", "META", StoredProviderCluster),
    RowType(Table.FLEET, f"{_D}CAUSE#.+", "META", SharedCausePage, subject="claimed_at"),
    RowType(Table.FLEET, "CAUSES#ended", "META", EndedCauses),
    RowType(Table.FLEET, "LOCK#.+", "META", LockRow),
    RowType(Table.FLEET, "SHORTAGES#fleet", "META", Shortages),
    RowType(Table.FLEET, "PLANS#fleet", "META", PlanEnds),
    RowType(Table.FLEET, "HOLD#fleet", "META", Holds),
    RowType(Table.FLEET, "HOLD#fleet", "CORDONS", ManualCordons),
    RowType(Table.FLEET, "HOLD#fleet", "EVENT#.+", TimelineEntry),
    RowType(Table.FLEET, "IDEM#.+", "META", Answered, subject="fingerprint"),
    RowType(Table.FLEET, "OVERVIEW#fleet", "META", Free, is_replaced=True),
    RowType(Table.FLEET, "NODES#fleet", "CHANGED", Free, is_replaced=True),
    RowType(Table.FLEET, "DAY#.+", "META", DayRow, is_replaced=True),
    RowType(Table.FLEET, "HEARTBEAT#.+", "META", Heartbeat),
    RowType(Table.QUOTAS, "TREE#.+", "META", TreeRow),
    RowType(Table.QUOTAS, "TREE#.+", "TURN", Cursors),
    RowType(Table.QUOTAS, "TREE#.+", "CHARGE#.+", Charge, subject="released_at"),
    RowType(Table.QUOTAS, "TREE#.+", "RENTAL#.+", RentalAllocation, subject="pool"),
    RowType(Table.QUOTAS, "CYCLE#finished", "META", FinishedCycle),
    RowType(Table.QUOTAS, "SETUP", "VERSION", Free, is_replaced=True),
    RowType(Table.QUOTAS, "SETUP", "FLEET", FleetQuotas, text="document", is_replaced=True),
    RowType(Table.QUOTAS, "SETUP", "TEAM#.+", Team, text="document", is_replaced=True),
    RowType(Table.QUOTAS, "SETUP-EVENTS", "EVENT#.+", SetupChange),
    RowType(Table.QUOTAS, "TEAM#.+", "USAGE", Free),
    RowType(Table.QUOTAS, "TEAM#.+", "USED#.+", Free),
    RowType(Table.QUOTAS, "TEAM#.+", "SPENT#.+", Spending),
)


def type_of(key: Key) -> RowType:
    """Return the type of a row. Exactly one must fit."""
    row_types = [
        row_type
        for row_type in TYPES
        if row_type.table is key.table
        and re.fullmatch(row_type.pk, key.pk, re.DOTALL)
        and re.fullmatch(row_type.sk, key.sk)
    ]
    assert len(row_types) == 1, f"{key}: {len(row_types)} types of rows fit"
    return row_types[0]


def classes_in(kind: Any) -> Iterator[type]:
    """Yield each value class and each enumeration in a type, including the type. A class may be repeated."""
    classes: set[Any] = set()
    waiting = [kind]
    while waiting:
        candidate = waiting.pop()
        if isinstance(candidate, type) and issubclass(candidate, BaseModel | Enum):
            if candidate in classes:
                continue
            classes.add(candidate)
            yield candidate
            if issubclass(candidate, BaseModel):
                waiting += [field.annotation for field in candidate.model_fields.values()]
        waiting += get_args(candidate)


NEW_FIELD = "fieldOfANewerRelease"


def values_in(value: Any, path: str = "") -> Iterator[tuple[str, BaseModel]]:
    """Yield a value and each value inside it, with its path."""
    if isinstance(value, BaseModel):
        yield path, value
        for name in type(value).model_fields:
            yield from values_in(getattr(value, name), f"{path}.{name}")
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from values_in(item, f"{path}[{name}]")
    elif isinstance(value, list | tuple | frozenset | set):
        for index, list_item in enumerate(value):
            yield from values_in(list_item, f"{path}[{index}]")


def as_newer_release(key: Key, doc: dict[str, Any]) -> dict[str, Any]:
    """Return a document as a newer release would write it: each value in it has a field that this release lacks."""
    row_type = type_of(key)
    if row_type.kind is CycleFacts:  # written once, under the digest of its document
        return doc
    if row_type.text or row_type.kind is Decision:  # a decision is written once
        return {**doc, NEW_FIELD: "kept"}
    value = row_type.kind.model_validate(doc, extra="allow")
    for path, item in values_in(value):
        if row_type.kind is not Wait or not path.startswith(".answer"):  # an answer is sent outside the ledger
            object.__setattr__(item, "__pydantic_extra__", {NEW_FIELD: "kept", **(item.__pydantic_extra__ or {})})
    document: dict[str, Any] = value.model_dump(mode="json", by_alias=True)
    if isinstance(doc.get("schedulerState"), dict) and row_type.kind is TreeRow:  # its packed format is one text
        document["schedulerState"] = doc["schedulerState"]
    return document


def lost_fields(key: Key, before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return the paths of the values that a rewrite kept without their unknown fields.

    A value of a list has no name. It counts as kept if the list still has an equal value.
    """
    row_type = type_of(key)
    if row_type.is_replaced:
        return []
    old = row_type.kind.model_validate(before, extra="allow")
    new = row_type.kind.model_validate(after, extra="allow")
    if row_type.subject and getattr(old, row_type.subject) != getattr(new, row_type.subject):
        return []
    new_values = dict(values_in(new))
    lost = ["the row"] if _is_marked(old) and not _is_marked(new) else []
    for path, old_value in values_in(old):
        if not _is_marked(old_value) or not path:
            continue
        same = new_values.get(path)
        if (
            same is not None
            and type(same) is type(old_value)
            and not _is_marked(same)
            and _plain(same) == _plain(old_value)
        ):
            lost.append(path)
    return lost


def _is_marked(value: BaseModel) -> bool:
    return NEW_FIELD in (value.__pydantic_extra__ or {})


def _plain(value: BaseModel) -> Any:
    return _without(value.model_dump(mode="json", by_alias=True))


def _without(document: Any) -> Any:
    if isinstance(document, Mapping):
        return {name: _without(item) for name, item in document.items() if name != NEW_FIELD}
    if isinstance(document, list):
        return [_without(item) for item in document]
    return document
