"""Signals that no other service delivered: facts of node objects, and facts whose node was unknown."""

import contextlib
from collections.abc import Iterable

from evenkeel.domain.health.incidents import NodeFact
from evenkeel.domain.health.ingestion import IngestAction
from evenkeel.events import kubernetes_node
from evenkeel.ports import Conflict, Delete, Table, get_all
from evenkeel.services.incidents import ingest_event, note_group_fact, unresolved_facts
from evenkeel.services.incidents.record_node_fact import FactOutcome
from evenkeel.services.sweep.sweep_run import SweepRun
from evenkeel.services.tables import fleet_rows


def ingest_node_facts(sweep: SweepRun) -> int:
    """Ingest the facts of node objects that the watch may have missed."""
    ending_reservations = note_group_fact.ending_reservations(sweep.context)
    facts = (
        fact
        for node in sweep.kubernetes
        for fact in kubernetes_node.node_facts(node, sweep.context.policy.watch, sweep.context.now, ending_reservations)
    )
    opened_count = 0
    for fact in facts:
        with sweep.isolate_item(fact.instance_id):
            opened_count += _ingest(sweep, fact) == IngestAction.OPEN
    return opened_count


def ingest_notices_before_listing(sweep: SweepRun) -> int:
    """Ingest the notices about an instance that arrived before the fleet table held it."""
    ledger = sweep.context.ledger
    notice_rows = [(str(row.doc["instanceId"]), row) for row in sweep.list_rows(Table.INCIDENTS, "EARLY")]
    own_instances = {node.life.instance_id for node in sweep.nodes} | _known_instances(
        sweep, {instance_id for instance_id, _ in notice_rows}
    )
    opened_count = 0
    for row in sweep.read_present_rows(row for instance_id, row in notice_rows if instance_id in own_instances):
        with sweep.isolate_item(row.key.pk):
            outcomes = [_ingest(sweep, fact) for fact in unresolved_facts.facts_of_unlisted_instance(row)]
            opened_count += outcomes.count(IngestAction.OPEN)
            if FactOutcome.OTHER_FLEET in outcomes:
                continue  # this sweep listed the node but could not store it; the next sweep ingests the notices
            with contextlib.suppress(Conflict):  # another notice arrived; the next sweep ingests it
                ledger.commit(Delete(row.key, row.version))
    return opened_count


def _known_instances(sweep: SweepRun, instance_ids: Iterable[str]) -> set[str]:
    """Return the nodes that an earlier sweep stored without ingesting their notices. These nodes may be gone by now."""
    keys = {
        fleet_rows.node_key(cluster, instance_id): instance_id
        for instance_id in instance_ids
        for cluster in sweep.context.site.clusters
    }
    return {keys[key] for key in get_all(sweep.context.ledger, keys)}


def _ingest(sweep: SweepRun, fact: NodeFact) -> str:
    return ingest_event.ingest_fact(fact, sweep.context).outcome


def retry_unresolved(sweep: SweepRun) -> int:
    """Try again the facts whose node was unknown."""
    outcomes = unresolved_facts.retry_unresolved(sweep.context)
    return len(outcomes)
