"""Builders of shadow cases. A test states only the fields that matter."""

from datetime import datetime, timedelta
from typing import Any

from evenkeel.domain.shadow.shadow_cases import Actor, NodeEvent, NodeEventKind, ShadowCase, ShadowDecision
from tests.fakes.system import A_MOMENT

HOUR = 3600


def at(seconds: float) -> datetime:
    return A_MOMENT + timedelta(seconds=seconds)


def a_decision(**changes: Any) -> ShadowDecision:
    fields: dict[str, Any] = {
        "incident_id": "inc-1",
        "node": "research-eks/i-0a1c4f7b92d36e581/1",
        "instance_id": "i-0a1c4f7b92d36e581",
        "slot": "research-eks/slot-1",
        "pool": "p5-workers",
        "fault_key": "hp:NvidiaErrorTerminate",
        "first_signal_at": at(-5),
        "last_signal_at": at(-5),
        "decided_at": at(0),
        "cordons": True,
        "repair": "replace",
        "owner": "EVENKEEL",
    }
    return ShadowDecision.model_validate({**fields, **changes})


def an_event(kind: NodeEventKind, seconds: float, actor: Actor = Actor.HYPERPOD) -> NodeEvent:
    return NodeEvent(at=at(seconds), kind=kind, actor=actor, evidence=f"{kind} at {seconds}")


def a_case(*events: NodeEvent, known_until: float = 1000 * HOUR, **decision: Any) -> ShadowCase:
    shadow_decision = a_decision(**decision)
    return ShadowCase(
        decision=shadow_decision,
        incident_ids=(shadow_decision.incident_id,),
        events=events,
        known_until=at(known_until),
    )
