"""The backtest: what would Evenkeel have decided about recorded events, and what happened instead?

    records, in order of time ─▶ learn the nodes ─▶ follow them, and replay their facts ─▶ cases ─▶ verdicts

The records are read twice and never kept, so that an export may be larger than the memory.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from operator import itemgetter

from evenkeel.domain.health.incidents import FactKind, NodeFact
from evenkeel.domain.policy import Policy
from evenkeel.domain.shadow.node_index import NodeIndex
from evenkeel.domain.shadow.records import ExportedRecord
from evenkeel.domain.shadow.replay_facts import FactReplay
from evenkeel.domain.shadow.report import ShadowSummary, summarise_cases
from evenkeel.domain.shadow.shadow_cases import (
    ShadowCase,
    ShadowDecision,
    group_into_cases,
    node_event_of,
    shadow_decision,
)
from evenkeel.domain.shadow.verdicts import JudgedCase, ShadowTimes, judge_case
from evenkeel.domain.values import Instant, Value


class Backtest(Value):
    """The decisions and verdicts on recorded events."""

    first_at: Instant | None
    last_at: Instant | None
    """Times of the first and the last record; None without any."""
    nodes: int
    unmatched: int
    """Number of records about a node whose instance no record shows."""
    summary: ShadowSummary
    cases: tuple[JudgedCase, ...]


def run_backtest(
    read_records: Callable[[], Iterable[ExportedRecord]],
    policy: Policy,
    times: ShadowTimes,
    *,
    repairs_by_itself: bool | None = None,
) -> Backtest:
    """Replay recorded events and judge the decisions.

    Args:
        read_records: Returns all records in order of time, the same each time.
        policy: The site's policy.
        times: The times that the verdicts depend on.
        repairs_by_itself: Whether NodeRecovery is Automatic; None = as the events show it, else not.
    """
    index = NodeIndex(policy.watch.not_ready_seconds, repairs_by_itself)
    first_at: datetime | None = None
    for exported_record in read_records():
        first_at = first_at or exported_record.at
        index.learn_names(exported_record)
    not_ready_facts = sorted(index.not_ready_facts(), key=itemgetter(0))
    for _, fact in not_ready_facts:
        index.instances[fact.instance_id].add_known_event(node_event_of(fact, is_evidence=_is_evidence(fact, policy)))
    facts = heapq.merge(_follow_records(index, read_records(), policy), not_ready_facts, key=itemgetter(0))
    incidents = FactReplay(policy, index.node_at).decide_incidents(facts)
    decisions = [decision for incident in incidents if (decision := shadow_decision(incident)) is not None]
    judged_cases = tuple(
        judge_case(_shadow_case(case, decisions, index), times)
        for case, decisions in group_into_cases(decisions, times.window)
    )
    return Backtest(
        first_at=first_at,
        last_at=index.last_at,
        nodes=len(index.instances),
        unmatched=index.unmatched,
        summary=summarise_cases(judged_cases, times),
        cases=judged_cases,
    )


def _follow_records(
    index: NodeIndex, exported_records: Iterable[ExportedRecord], policy: Policy
) -> Iterator[tuple[datetime, NodeFact]]:
    """Yield the facts of all records, after their nodes have their events."""
    for exported_record in exported_records:
        content = exported_record.content
        index.add_events(exported_record, is_evidence=isinstance(content, NodeFact) and _is_evidence(content, policy))
        if isinstance(content, NodeFact):
            yield exported_record.at, content


def _is_evidence(fact: NodeFact, policy: Policy) -> bool:
    return fact.kind is FactKind.FAULT and policy.catalogue.look_up(fact.fault_key).is_evidence


def _shadow_case(decision: ShadowDecision, decisions: tuple[ShadowDecision, ...], index: NodeIndex) -> ShadowCase:
    instance = index.instances[decision.instance_id]
    assert index.last_at is not None
    known_until, end_reason = instance.planned_end or (index.last_at, "")
    return ShadowCase(
        decision=decision,
        incident_ids=tuple(shadow_decision.incident_id for shadow_decision in decisions),
        events=instance.events,
        known_until=known_until,
        end_reason=end_reason,
    )
