"""Builders of incidents in mode `observe`, and of later events of their nodes."""

from typing import Any

from evenkeel.domain.health.incidents import Incident, StageTimes, StoredRecoveryPlan
from evenkeel.domain.shadow.shadow_cases import Actor, Aftermath, NodeEvent, NodeEventKind
from evenkeel.ports import Put
from evenkeel.services.tables import incident_rows
from tests.unit.api.gateway import Gateway
from tests.unit.api.seeds import ago, an_incident

PLAN = StoredRecoveryPlan(
    run=1,
    outcome="OBSERVE",
    repairs_node=True,
    owner="EVENKEEL",
    evidence_wait_seconds=0,
    max_repairs=3,
    decision_id="dec-0000000001",
    reason="Mode is observe.",
    rungs=("replace",),
)


def an_observed(number: int = 1, hours: float = 30, **changes: Any) -> Incident:
    at = ago(hours=hours)
    facts: dict[str, Any] = {
        "state": "OBSERVED",
        "mode": "observe",
        "opened_at": at,
        "first_signal_at": at,
        "plan": PLAN,
        "stages": StageTimes(planned_at=at, settled_at=at),
    }
    return an_incident(number, **{**facts, **changes})


def store_node_event(gateway: Gateway, incident: Incident, kind: NodeEventKind, hours: float) -> None:
    event = NodeEvent(at=ago(hours=hours), kind=kind, actor=Actor.HYPERPOD, evidence="a record")
    gateway.fakes.ledger.commit(Put(incident_rows.aftermath_row(incident, Aftermath(events=(event,)), 0)))
