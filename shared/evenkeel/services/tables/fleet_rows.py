"""Keys, index entries and lifetimes of the fleet table."""

from datetime import datetime, timedelta
from typing import Any

from evenkeel.domain.capacity.shortages import Shortages
from evenkeel.domain.health.group_facts import GroupFact
from evenkeel.domain.recovery.repair_lease import RepairLease
from evenkeel.domain.timeline import TimelineEntry
from evenkeel.domain.values import rfc3339
from evenkeel.ports import Key, Row, Table
from evenkeel.services.tables import rows

GROUP_FACT_KEPT = timedelta(days=1)
"""How long a fact about a group counts, from its time: the longest window of the rules that read it."""


def node_key(cluster: str, instance_id: str) -> Key:
    """Return the key `NODE#cluster/instance / META`.

    AWS never reuses an instance id, so one row holds one node life.
    """
    return Key(Table.FLEET, f"NODE#{cluster}/{instance_id}", "META")


def node_row(cluster: str, instance_id: str, doc: dict[str, Any], version: int, expires_at: datetime | None) -> Row:
    """Return the row; `byState` lists it under `NODE` by pool and id: the fleet list."""
    state = ("NODE", f"{doc.get('pool', '')}#{instance_id}")
    return Row(node_key(cluster, instance_id), doc, version, state, expires_at)


def pool_partition(pool: str) -> str:
    """Return the partition `POOL#pool`; `POOL#*` holds facts about the whole cluster."""
    return f"POOL#{pool or '*'}"


def group_fact_row(fact: GroupFact, now: datetime) -> Row:
    """Return the row `POOL#pool / FACT#minute/kind/code/instance`: short-lived, so that a pool's partition stays small.

    A late fact is kept for an hour anyway, so that its copies are recognised.
    """
    key = Key(Table.FLEET, pool_partition(fact.instance_group), f"FACT#{fact.fact_key}")
    expires_at = max(fact.observed_at + GROUP_FACT_KEPT, now + timedelta(hours=1))
    return Row(key, fact.to_json(), 0, None, max(expires_at, fact.deadline_at or expires_at))


def unmanaged_workloads_key(cluster: str) -> Key:
    """Return the key `UNMANAGED#cluster / META`: unmanaged workloads with accelerators, as last seen."""
    return Key(Table.FLEET, f"UNMANAGED#{cluster}", "META")


def kueue_key(cluster: str) -> Key:
    """Return the key `KUEUE#cluster / META`: the namespaces in which Kueue admits jobs, as last seen."""
    return Key(Table.FLEET, f"KUEUE#{cluster}", "META")


def kueue_row(cluster: str, doc: dict[str, Any], version: int) -> Row:
    """Return the row: each namespace with the object that shows it. Indexed, because submissions read nothing else."""
    return Row(kueue_key(cluster), doc, version, ("KUEUE", cluster))


def lease_key(slot_id: str, *, is_drill: bool = False) -> Key:
    """Return the key `LEASE#slot / META`: the incident that repairs a node slot, and its provider calls."""
    return Key(Table.FLEET, rows.partition_key(f"LEASE#{slot_id}", is_drill=is_drill), "META")


def register_key(name: str, *, is_drill: bool = False) -> Key:
    """Return the key `REGISTER#name / META`: the nodes in repair, or the nodes with Evenkeel's cordon."""
    return Key(Table.FLEET, rows.partition_key(f"REGISTER#{name}", is_drill=is_drill), "META")


def summary_key() -> Key:
    """Return the key `POOLS#sizes / META`: the summary of the fleet.

    Recoveries and guardrails need not list the fleet.
    """
    return Key(Table.FLEET, "POOLS#sizes", "META")


def hyperpod_key() -> Key:
    """Return the key `HYPERPOD#cluster / META`: HyperPod's settings as the last sweep read them."""
    return Key(Table.FLEET, "HYPERPOD#cluster", "META")


def cause_key(cause: str, *, is_drill: bool = False) -> Key:
    """Return the key `CAUSE#kind/name / META`: a shared cause about which people were paged."""
    return Key(Table.FLEET, rows.partition_key(f"CAUSE#{cause}", is_drill=is_drill), "META")


def ended_causes_key() -> Key:
    """Return the key `CAUSES#ended / META`: shared causes that a person ended, with time, person and reason."""
    return Key(Table.FLEET, "CAUSES#ended", "META")


def lease_row(lease: RepairLease, version: int, *, is_drill: bool = False) -> Row:
    """Return the row; `byState` lists it under `LEMON` while its node is a lemon. Drills create no such row."""
    state = ("LEMON", lease.slot) if lease.lemon and not is_drill else None
    return Row(lease_key(lease.slot, is_drill=is_drill), lease.to_json(), version, state)


def lock_key(name: str) -> Key:
    """Return the key `LOCK#name / META`: one watch, one sweep at a time."""
    return Key(Table.FLEET, f"LOCK#{name}", "META")


def plan_ends_key() -> Key:
    """Return the key `PLANS#fleet / META`: when the nodes of training plans end, as last read from SageMaker."""
    return Key(Table.FLEET, "PLANS#fleet", "META")


def shortages_key() -> Key:
    """Return the key `SHORTAGES#fleet / META`: recent refusals of capacity."""
    return Key(Table.FLEET, "SHORTAGES#fleet", "META")


def shortages_row(shortages: Shortages, version: int) -> Row:
    """Return the row: the refusals of the whole fleet. The row stays small, because outdated entries are dropped."""
    return Row(shortages_key(), shortages.to_json(), version)


def hold_key() -> Key:
    """Return the key `HOLD#fleet / META`: every hold, of the fleet, of a pool or of a node."""
    return Key(Table.FLEET, "HOLD#fleet", "META")


def manual_cordons_key() -> Key:
    """Return the key `HOLD#fleet / CORDONS`: cordons that people set through Evenkeel, with author and reason."""
    return Key(Table.FLEET, hold_key().pk, "CORDONS")


def automation_request_key(request_id: str) -> Key:
    """Return the key `IDEM#request / META`: an answered request of an operator or a detector."""
    return Key(Table.FLEET, f"IDEM#{request_id}", "META")


def automation_request_row(request_id: str, answer: dict[str, Any], now: datetime) -> Row:
    """Return the row with the first answer. A repeated request gets that answer for a day.

    The row of reported faults also holds their envelope until it is on the queue (`pendingEnvelope`).
    """
    return Row(automation_request_key(request_id), answer, 0, None, now + rows.IDEMPOTENCY_KEPT)


def automation_event_row(entry: TimelineEntry, request_id: str) -> Row:
    """Return the row `HOLD#fleet / EVENT#time#request`: each hold and release, with person and reason."""
    key = Key(Table.FLEET, hold_key().pk, f"EVENT#{rfc3339(entry.at)}#{request_id}")
    return Row(key, entry.to_json(), 0, None, entry.at + rows.KEPT)


def nodes_changed_key() -> Key:
    """Return the key `NODES#fleet / CHANGED`: when a sweep last changed a row of a node."""
    return Key(Table.FLEET, "NODES#fleet", "CHANGED")


def overview_key() -> Key:
    """Return the key `OVERVIEW#fleet / META`: the last sweep's counts of nodes and jobs, teams and budgets."""
    return Key(Table.FLEET, "OVERVIEW#fleet", "META")


def heartbeat_key(function: str) -> Key:
    """Return the key `HEARTBEAT#function / META`: the end of a function's last run, and its results by source."""
    return Key(Table.FLEET, f"HEARTBEAT#{function}", "META")
