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
from evenkeel.domain.shadow.cases import ShadowCase, ShadowDecision, cases_of, event_of, shadow_decision
from evenkeel.domain.shadow.node_index import NodeIndex
from evenkeel.domain.shadow.records import Record
from evenkeel.domain.shadow.replay_facts import FactReplay
from evenkeel.domain.shadow.report import ShadowSummary, summary_of
from evenkeel.domain.shadow.verdicts import JudgedCase, ShadowTimes, judge
from evenkeel.domain.values import Instant, Value


class Backtest(Value):
    """The decisions and verdicts on recorded events."""

    first_at: Instant | None
    last_at: Instant | None
    """Times of the first and the last record; None without any."""
    nodes: int
    unmatched: int
    """Records about nodes that no record identifies."""
    summary: ShadowSummary
    cases: tuple[JudgedCase, ...]


def run(
    read: Callable[[], Iterable[Record]], policy: Policy, times: ShadowTimes, *, repairs_by_itself: bool | None = None
) -> Backtest:
    """Replay recorded events and judge the decisions.

    Args:
        read: Returns all records in order of time, the same each time.
        policy: The site's policy.
        times: The times that the verdicts depend on.
        repairs_by_itself: Whether NodeRecovery is Automatic; None = as the events show it, else not.
    """
    book = NodeIndex(policy.watch.not_ready_seconds, repairs_by_itself)
    first_at: datetime | None = None
    for record in read():
        first_at = first_at or record.at
        book.learn(record)
    not_ready = sorted(book.not_ready_facts(), key=itemgetter(0))
    for _, fact in not_ready:
        book.machines[fact.instance_id].add_known(event_of(fact, is_evidence=_is_evidence(fact, policy)))
    facts = heapq.merge(_follow(book, read(), policy), not_ready, key=itemgetter(0))
    incidents = FactReplay(policy, book.node_at).decisions(facts)
    decisions = [decision for incident in incidents if (decision := shadow_decision(incident)) is not None]
    judged = tuple(judge(_case(case, decisions, book), times) for case, decisions in cases_of(decisions, times.window))
    return Backtest(
        first_at=first_at,
        last_at=book.last_at,
        nodes=len(book.machines),
        unmatched=book.unmatched,
        summary=summary_of(judged, times),
        cases=judged,
    )


def _follow(book: NodeIndex, records: Iterable[Record], policy: Policy) -> Iterator[tuple[datetime, NodeFact]]:
    """Yield the facts of all records, after their nodes have their events."""
    for record in records:
        content = record.content
        book.follow(record, is_evidence=isinstance(content, NodeFact) and _is_evidence(content, policy))
        if isinstance(content, NodeFact):
            yield record.at, content


def _is_evidence(fact: NodeFact, policy: Policy) -> bool:
    return fact.kind is FactKind.FAULT and policy.catalogue.look_up(fact.fault_key).is_evidence


def _case(decision: ShadowDecision, decisions: tuple[ShadowDecision, ...], book: NodeIndex) -> ShadowCase:
    machine = book.machines[decision.instance_id]
    assert book.last_at is not None
    known_until, ended = machine.ended or (book.last_at, "")
    return ShadowCase(
        decision=decision,
        incident_ids=tuple(recorded.incident_id for recorded in decisions),
        events=machine.events,
        known_until=known_until,
        ended=ended,
    )
