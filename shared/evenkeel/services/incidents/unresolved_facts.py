"""Store facts whose node no control plane lists yet, and try again to find these nodes."""

import contextlib
from datetime import datetime, timedelta

from evenkeel.domain.health.incidents import (
    NodeFact,
)
from evenkeel.ports import (
    Conflict,
    Delete,
    EvenkeelError,
    Put,
    Row,
    Table,
)
from evenkeel.services.context import Context
from evenkeel.services.incidents import record_node_fact
from evenkeel.services.incidents.find_affected_node import find_affected_node
from evenkeel.services.incidents.record_node_fact import FactOutcome, IngestResult
from evenkeel.services.storage import incident_store
from evenkeel.services.storage.retries import commit_if_unchanged
from evenkeel.services.tables import incident_rows, rows

UNRESOLVED, UNRESOLVED_DRILL = "UNRESOLVED", "UNRESOLVED-DRILL"
_UNRESOLVED_KEPT = timedelta(hours=6)
"""Time for which a fact about an unknown node is stored. After that, the node belongs to another cluster."""
_RETRY_BATCH = 25
_MAX_NOTICES_BEFORE_LISTING = 5


def store_unresolved(fact: NodeFact, context: Context) -> IngestResult:
    """Store a fact about a node that no control plane lists. Idempotent: yes, a stored fact stays as it is."""
    reason = f"No control plane lists {fact.instance_id} yet; the sweep tries again."
    row = incident_rows.unresolved_row(fact.to_json(), fact.fact_key, context.clock.now())
    # Another delivery of this fact may be stored first.
    if context.ledger.get(row.key) is None and commit_if_unchanged(context.ledger, Put(row)):
        context.telemetry.count("FactsUnresolved")
        context.telemetry.warning("FactUnresolved", instanceId=fact.instance_id, source=fact.source)
    return IngestResult(outcome=FactOutcome.UNRESOLVED, reason=reason)


def store_fact_of_unlisted_instance(fact: NodeFact, context: Context) -> None:
    """Store a notice about an instance that no sweep has listed yet, for an hour.

    AWS may reclaim a Spot instance before a sweep lists it.
    """
    for _ in range(incident_store.MAX_TRIES):
        row = context.ledger.get(incident_rows.notice_before_listing_key(fact.instance_id, is_drill=fact.is_drill))
        facts = facts_of_unlisted_instance(row) if row else ()
        if any(node_fact.fact_key == fact.fact_key for node_fact in facts):
            return
        node_facts = (*facts, fact)[-_MAX_NOTICES_BEFORE_LISTING:]
        with contextlib.suppress(Conflict):  # another notice about this instance was stored first
            version = row.version if row else 0
            context.ledger.commit(
                Put(
                    incident_rows.notice_before_listing_row(
                        fact.instance_id, node_facts, context.now, version, is_drill=fact.is_drill
                    )
                )
            )
            return
    # Without the error, the notice would be lost silently.
    raise Conflict(f"the stored facts of {fact.instance_id} changed on every try")


def facts_of_unlisted_instance(row: Row) -> tuple[NodeFact, ...]:
    """Return the stored notices about an instance that no sweep had listed."""
    return tuple(rows.parse(row.key, NodeFact, fact) for fact in row.doc["facts"])


def retry_unresolved(context: Context) -> tuple[IngestResult, ...]:
    """Try again to find the nodes of the stored facts, and drop facts whose node stays unknown. The sweep calls this.

    Each call takes the next facts of the list, so every fact is tried however long the list is. Drills come after real
    facts, and are left out if drills may not act.

    Idempotent: yes, as `record_node_fact.run`.

    Raises:
        EvenkeelError: the first failure, after each fact was tried.
    """
    outcomes: list[IngestResult] = []
    failures: list[EvenkeelError] = []
    for row, fact in rows.readable_rows(_next_unresolved(context), NodeFact, failures.append):
        try:
            affected_node = find_affected_node(fact.instance_id, context, asks_provider=True)
            if affected_node is not None:
                outcomes.append(record_node_fact.run(fact, affected_node, context))
                continue
        except EvenkeelError as error:
            failures.append(error)
            continue
        if context.clock.now() - _stored_at(row) > _UNRESOLVED_KEPT:
            context.telemetry.count("FactsDropped")
            with contextlib.suppress(Conflict):  # another writer resolved it meanwhile
                context.ledger.commit(Delete(row.key, row.version))
    if failures:
        raise failures[0]
    return tuple(outcomes)


def _next_unresolved(context: Context) -> list[Row]:
    """Return the rows of the facts to retry now, and store where the next call continues."""
    row = context.ledger.get(incident_rows.retry_cursors_key())
    cursors = dict(row.doc) if row else {}
    facts: list[Row] = []
    for state in (UNRESOLVED, UNRESOLVED_DRILL) if context.site.drills_may_act else (UNRESOLVED,):
        if len(facts) < _RETRY_BATCH:
            page = context.ledger.by_state(
                Table.INCIDENTS, state, limit=_RETRY_BATCH - len(facts), cursor=cursors.get(state) or None
            )
            facts += page.rows
            cursors[state] = page.cursor or ""
    if cursors != (dict(row.doc) if row else {}):
        cursor_row = Row(incident_rows.retry_cursors_key(), cursors, row.version if row else 0)
        with contextlib.suppress(Conflict):  # another sweep stored its own position
            context.ledger.commit(Put(cursor_row))
    return facts


def _stored_at(row: Row) -> datetime:
    assert row.state
    _, stored_at = row.state
    return datetime.fromisoformat(stored_at)
