"""Ingest the facts of an event: find the node of each fact, record the fact in an incident, and start the recovery.

    fact ─▶ find_affected_node ─▶ record_node_fact
              │ unknown node
              ├─▶ unresolved_facts: store the fact, and the sweep tries again
              └─▶ count and drop the fact, if its source also reports nodes of other fleets

An event may carry several facts. Each fact has its own row and is ingested separately. If a fact fails, the event is
ingested again. `entry.event` archives the raw event.
"""

import re
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from evenkeel.domain.health.group_facts import GroupFact
from evenkeel.domain.health.incidents import (
    FactKind,
    NodeFact,
)
from evenkeel.domain.health.signal_sources import signal_source
from evenkeel.domain.plurals import count_of
from evenkeel.events.outcomes import ParsedEvent
from evenkeel.ports import (
    EvenkeelError,
    Telemetry,
)
from evenkeel.services.context import Context
from evenkeel.services.incidents import note_group_fact, record_node_fact, record_observed_aftermath, unresolved_facts
from evenkeel.services.incidents.find_affected_node import find_affected_node, find_node_in_repair, has_row
from evenkeel.services.incidents.record_node_fact import FactOutcome, IngestResult

_MAX_CLOCK_SKEW = timedelta(minutes=5)
"""Most by which two clocks may differ. A fact from a later time than that counts as observed now."""
_CLUSTER_ID = re.compile(r".*:cluster/[a-z0-9]{12}", re.ASCII)


def run(event: ParsedEvent, context: Context) -> dict[str, Any]:
    """Ingest one event. If it names many nodes, queue smaller events instead.

    So the work of one invocation is limited, and an urgent event does not wait until hundreds of nodes are ingested.

    Idempotent: yes, as `ingest_facts`. A smaller event that is queued twice has the same facts.
    """
    if not event.smaller_events:
        return summarize_outcomes(ingest_facts(event.facts, context))
    for smaller_event in event.smaller_events:
        context.inbox.put(smaller_event)
    return {
        "outcome": "SPLIT",
        "reason": f"{count_of(len(event.facts), 'fact')}, queued as {count_of(len(event.smaller_events), 'event')}.",
    }


def ingest_facts(facts: Iterable[NodeFact | GroupFact], context: Context) -> tuple[IngestResult, ...]:
    """Ingest the facts of one event, each by itself. A failing fact does not stop the rest.

    Idempotent: yes, as `ingest_fact` and `note_group_fact.run`. If the event is delivered again after a failure, the
    facts that were ingested are duplicates.

    Raises:
        EvenkeelError: the first failure, after every fact was tried.
    """
    outcomes: list[IngestResult] = []
    failures: list[EvenkeelError] = []
    for fact in facts:
        try:
            if _is_of_another_cluster(fact.cluster_arn, context.site.hyperpod_cluster_arn):
                outcomes.append(
                    _other_fleet_outcome(
                        f"The event is about cluster {fact.cluster_arn}.", fact.source, context.telemetry
                    )
                )
            elif isinstance(fact, GroupFact):
                note_result = note_group_fact.run(fact, context)
                outcomes.append(IngestResult(outcome=FactOutcome(note_result.outcome), reason=note_result.reason))
            else:
                outcomes.append(ingest_fact(fact, context))
        except EvenkeelError as error:
            failures.append(error)
    if failures:
        raise failures[0]
    return tuple(outcomes)


def ingest_fact(fact: NodeFact, context: Context) -> IngestResult:
    """Ingest one fact: find its node, then record it.

    Idempotent: yes, by the fact's own row. Any number of copies, in any order and at once, make one incident.
    """
    if fact.kind is FactKind.PROGRESS:
        affected_node = find_node_in_repair(fact, context)
        if affected_node is None:
            node = find_affected_node(fact.instance_id, context, asks_provider=False)
            record_observed_aftermath.record_progress(fact, node.life if node else None, context)
            return IngestResult(outcome=FactOutcome.IGNORED, reason="No repair of this node is in progress.")
    else:
        affected_node = find_affected_node(
            fact.instance_id, context, asks_provider=not signal_source(fact.source).is_account_wide
        )
    if affected_node is None:
        return _outcome_of_unknown_node(fact, context)
    return record_node_fact.run(_without_future_time(fact, context.clock.now()), affected_node, context)


def summarize_outcomes(outcomes: tuple[IngestResult, ...]) -> dict[str, Any]:
    """Return the handler's answer for an event: its single outcome, or the number of each outcome."""
    if len(outcomes) == 1:
        return outcomes[0].to_json()
    counts = Counter(result.outcome for result in outcomes)
    return {"outcome": "INGESTED", "reason": ", ".join(f"{count} {result}" for result, count in counts.items())}


def _outcome_of_unknown_node(fact: NodeFact, context: Context) -> IngestResult:
    """Store a fact about a node that no control plane lists, unless it is a drill or about another fleet.

    A node whose row this release cannot read is a node of this fleet.
    """
    if fact.is_drill and not context.site.drills_may_act:
        return _other_fleet_outcome(
            f"The drill names {fact.instance_id}, which is not a node of this fleet.", fact.source, context.telemetry
        )
    if signal_source(fact.source).is_account_wide and not has_row(fact.instance_id, context):
        unresolved_facts.store_fact_of_unlisted_instance(fact, context.replace(now=context.clock.now()))
        return _other_fleet_outcome(f"{fact.instance_id} is not a node of this fleet.", fact.source, context.telemetry)
    return unresolved_facts.store_unresolved(_without_future_time(fact, context.clock.now()), context)


def _without_future_time(fact: NodeFact, now: datetime) -> NodeFact:
    """Replace a time in the future by now.

    Otherwise no later fact could supersede this one. The identity of the fact stays.
    """
    if fact.observed_at <= now + _MAX_CLOCK_SKEW:
        return fact
    return fact.replace(observed_at=now, occurrence=fact.occurrence or f"{fact.observed_at:%Y%m%dT%H%M}")


def _is_of_another_cluster(stated_arn: str, own_arn: str) -> bool:
    """Return whether an event names another cluster. Only two ARNs that end in ids can prove that.

    If the fleet has no HyperPod cluster, every stated ARN names another cluster.
    """
    if not stated_arn or stated_arn == own_arn:
        return False
    return not own_arn or (_CLUSTER_ID.fullmatch(stated_arn) is not None and _CLUSTER_ID.fullmatch(own_arn) is not None)


def _other_fleet_outcome(reason: str, source: str, telemetry: Telemetry) -> IngestResult:
    telemetry.count("FactsOtherFleet", source=source.partition(":")[0])
    return IngestResult(outcome=FactOutcome.OTHER_FLEET, reason=reason)
