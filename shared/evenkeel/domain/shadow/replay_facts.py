"""Repeat offline the decisions of the mode `observe` on recorded facts.

    facts, in order of time ─▶ IngestDecision ─▶ incident ─▶ plan ─▶ the incident ends, as in `observe`

The code of the service decides here, too. The replay knows only what the facts and the nodes show, so guardrails,
jobs and the marks of other controllers are left out.
"""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from typing import NamedTuple

from evenkeel.domain.health.classification import ClassifiedFact, IncidentFault
from evenkeel.domain.health.incidents import AffectedNode, FactKind, Incident, NodeFact, StoredRecoveryPlan
from evenkeel.domain.health.ingestion import IngestAction, LastIncident, NodeHistory, decide_ingestion
from evenkeel.domain.health.recurrence import FaultHistory, history_keys
from evenkeel.domain.policy import Policy
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.recovery.plan import FaultTraits, PlanFacts, plan_recovery
from evenkeel.domain.values import Value

PLAN_DELAY = timedelta(seconds=2)
"""A fact that follows the first one this closely joins its incident before the plan is made."""
_FACT_KEPT = timedelta(days=30)


class RecordedNodeState(Value):
    """The state of a node at one time, as the records show it."""

    affected: AffectedNode
    is_hyperpod: bool
    is_karpenter: bool = False
    is_gone: bool = False
    is_manual_cordon: bool = False
    hyperpod_repairs: bool = False
    """NodeRecovery is Automatic."""


class _OpenIncident(NamedTuple):
    """An incident of the replay that is still open."""

    incident: Incident
    opened_at: datetime


class FactReplay:
    """The decisions about a stream of facts. Facts come in order of time."""

    def __init__(self, policy: Policy, node_at: Callable[[str, datetime], RecordedNodeState]) -> None:
        """Begin without any incident.

        Args:
            policy: The site's policy.
            node_at: Returns the known facts about an instance at a time.
        """
        self._policy = policy
        self._node_at = node_at
        self._open: dict[str, _OpenIncident] = {}
        self._last: dict[str, LastIncident] = {}
        self._known: dict[str, tuple[str, datetime]] = {}
        self._histories: dict[str, FaultHistory] = {}
        self._opened = 0

    def decide_incidents(self, facts: Iterable[tuple[datetime, NodeFact]]) -> Iterator[Incident]:
        """Yield each incident, with its plan, as it ends.

        Args:
            facts: Each fact, with the time from which Evenkeel can know it; in order of that time.
        """
        for known_at, fact in facts:
            yield from self._plan_due_incidents(known_at)
            if fact.kind is not FactKind.PROGRESS and not fact.is_drill:
                self._ingest(fact, known_at)
        yield from self._plan_due_incidents(None)

    def _ingest(self, fact: NodeFact, now: datetime) -> None:
        node = self._node_at(fact.instance_id, now)
        catalogue, life = self._policy.catalogue, node.affected.life.key
        classified_fact = ClassifiedFact.of(fact, node.affected, catalogue)
        keys = history_keys(classified_fact.fault, node.affected) if fact.kind is FactKind.FAULT else ()
        known_open = self._open.get(life)
        known_fact = self._known.get(fact.fact_key)
        node_history = NodeHistory(
            known_incident_id=known_fact[0] if known_fact and now - known_fact[1] <= _FACT_KEPT else "",
            last_incident=self._last.get(life),
            open_incident=known_open.incident if known_open else None,
            histories={key: self._histories[key] for key in keys if key in self._histories},
        )
        decision = decide_ingestion(
            classified_fact, node_history, catalogue, new_id=f"inc-{self._opened + 1:05}", now=now
        )
        self._histories |= decision.histories
        if decision.incident is None or decision.action not in (IngestAction.OPEN, IngestAction.JOIN):
            return
        self._opened += decision.action is IngestAction.OPEN
        self._known[fact.fact_key] = (decision.incident.incident_id, now)
        self._open[life] = _OpenIncident(decision.incident, known_open.opened_at if known_open else now)

    def _plan_due_incidents(self, now: datetime | None) -> Iterator[Incident]:
        """Plan each incident that has waited long enough for further facts; with None, plan all incidents."""
        due_lives = [
            life
            for life, open_incident in self._open.items()
            if now is None or now > open_incident.opened_at + PLAN_DELAY
        ]
        for life in due_lives:
            due_incident = self._open.pop(life)
            yield self._plan_incident(due_incident)
            last_incident = self._last.get(life)
            self._last[life] = LastIncident(
                incident_id=due_incident.incident.incident_id,
                returned_at=last_incident.returned_at if last_incident else None,
            )

    def _plan_incident(self, open_incident: _OpenIncident) -> Incident:
        incident, decided_at = open_incident
        facts = self._plan_facts(incident, decided_at)
        plan = plan_recovery(facts, self._policy.repair)
        stored_plan = StoredRecoveryPlan(
            run=1,
            outcome=plan.outcome,
            repairs_node=plan.repairs_node,
            owner=plan.owner,
            evidence_wait_seconds=plan.evidence_wait_seconds,
            max_repairs=plan.max_repairs,
            jobs=plan.jobs,
            decision_id="",
            reason=plan.reason,
            fault_key=incident.fault_key,
            rungs=facts.rungs,
        )
        return incident.replace(plan=stored_plan, mode=Mode.OBSERVE).with_stage_time("planned_at", decided_at)

    def _plan_facts(self, incident: Incident, now: datetime) -> PlanFacts:
        node = self._node_at(incident.life.instance_id, now)
        fault = IncidentFault.of(incident, self._policy.catalogue)
        return PlanFacts(
            fault_key=incident.fault_key,
            fault=FaultTraits.of(fault.fault),
            ladder=fault.node_rungs,
            rungs=fault.rungs,
            min_rung_reason=incident.min_rung_reason,
            sources=incident.independent_sources or incident.sources,
            has_recovered=incident.has_recovered,
            mode=Mode.OBSERVE,
            is_drill=False,
            drills_may_act=False,
            is_node_gone=node.is_gone,
            is_hyperpod=node.is_hyperpod,
            is_karpenter=node.is_karpenter,
            hyperpod_repairs=node.hyperpod_repairs,
            is_manual_cordon=node.is_manual_cordon,
            opened_at=incident.opened_at,
            deadline_at=incident.deadline_at,
        )
