"""Facts about an instance group or a cluster. They are kept for a day, for the rules that look for shared causes."""

import contextlib
from collections.abc import Mapping
from enum import StrEnum

from evenkeel.domain.capacity.pools import Market
from evenkeel.domain.capacity.shortages import Shortages
from evenkeel.domain.health.group_facts import GroupFact, GroupFactKind
from evenkeel.domain.values import Value
from evenkeel.ports import Conflict, Ledger, Put, Table
from evenkeel.services.context import Context
from evenkeel.services.storage.retries import commit_if_unchanged
from evenkeel.services.tables import fleet_rows, rows

_NO_CAPACITY, _PROVISIONED = GroupFactKind.NO_CAPACITY, GroupFactKind.PROVISIONED


class GroupFactOutcome(StrEnum):
    """Whether the fact was new."""

    NOTED = "NOTED"
    DUPLICATE = "DUPLICATE"
    """A copy of a recorded fact."""


class NoteGroupFactResult(Value):
    """The outcome for a fact about a group."""

    outcome: GroupFactOutcome
    reason: str


def run(fact: GroupFact, context: Context) -> NoteGroupFactResult:
    """Store the fact.

    Idempotent: yes, by the fact's own row. A copy of a fact is recognised, whatever the order of arrival.
    """
    row = fleet_rows.group_fact_row(fact, context.clock.now())
    subject = fact.instance_group or "the cluster"
    result = NoteGroupFactResult(
        outcome=GroupFactOutcome.DUPLICATE, reason=f"Already recorded for {subject}: {fact.kind}."
    )
    if context.ledger.get(row.key) is not None:
        return result
    if not commit_if_unchanged(context.ledger, Put(row)):
        return result
    _record_shortage(fact, context.ledger)
    context.telemetry.count("GroupFactsNoted", kind=fact.kind)
    keys = {"group": fact.instance_group, "fact": fact.kind, "code": fact.code, "isDrill": fact.is_drill}
    if fact.fault_key:
        context.telemetry.warning("InstanceGroupUnhealthy", **keys, fault=fact.fault_key, detail=fact.detail)
    else:
        context.telemetry.info("InstanceGroupChanged", **keys)
    return NoteGroupFactResult(outcome=GroupFactOutcome.NOTED, reason=f"Recorded for {subject}: {fact.kind}.")


def _record_shortage(fact: GroupFact, ledger: Ledger) -> None:
    """Record that a group lacks capacity, as a hint for placements. A crash may lose the hint.

    Drills record nothing. Idempotent: no, each refusal counts; guarded by the fact's own row.
    """
    if fact.is_drill or not fact.instance_group or fact.kind not in (_NO_CAPACITY, _PROVISIONED):
        return
    row = ledger.get(fleet_rows.shortages_key())
    shortages = rows.decode(row, Shortages) if row else Shortages()
    shortages_after = (
        shortages.with_refusal(fact.instance_group, "", Market.COMMITTED, fact.observed_at)
        if fact.kind is _NO_CAPACITY
        else shortages.with_success(fact.instance_group, "", Market.COMMITTED)
    )
    if shortages_after != shortages:
        with contextlib.suppress(Conflict):  # another writer was first; HyperPod repeats the event
            ledger.commit(Put(fleet_rows.shortages_row(shortages_after, row.version if row else 0)))


def recent_facts(pool: str, context: Context) -> tuple[GroupFact, ...]:
    """Return the recent facts about a pool and about the whole cluster, oldest first.

    Expired rows are left out: DynamoDB deletes them within days and not at once.
    """
    facts = [
        rows.decode(row, GroupFact)
        for name in dict.fromkeys((pool, ""))
        for row in context.ledger.partition(Table.FLEET, fleet_rows.pool_partition(name), "FACT#")
        if row.expires_at is None or row.expires_at > context.now
    ]
    return tuple(sorted(facts, key=lambda fact: (fact.observed_at, fact.fact_key)))


def ending_reservations(context: Context) -> Mapping[str, GroupFact]:
    """Return the newest fact about each capacity reservation that ends, by its id. A real fact comes before a drill."""
    facts = sorted(recent_facts("", context), key=lambda fact: not fact.is_drill)
    return {fact.code: fact for fact in facts if fact.kind is GroupFactKind.RESERVATION_EXPIRING and fact.deadline_at}
