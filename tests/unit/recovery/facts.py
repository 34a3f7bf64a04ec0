"""Builders of facts for decisions. A test states only the facts that matter."""

from datetime import datetime, timedelta
from typing import Any

from evenkeel.domain.nodes import NodeLife
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.recovery.node_slot import ObservedNode, SlotState
from evenkeel.domain.recovery.plan import NodeOwner, PlanFacts
from evenkeel.domain.recovery.repair_facts import RepairFacts
from evenkeel.domain.recovery.repair_requests import RepairRequest
from evenkeel.domain.recovery.validation import Validity
from tests.fakes import a_node, a_provider_node
from tests.fakes.cluster import CLUSTER, instance_id
from tests.fakes.system import A_MOMENT

LIFE = NodeLife(cluster=CLUSTER, instance_id=instance_id(1), launched_at=A_MOMENT.replace(hour=8, minute=0, second=0))
SLOT = f"{CLUSTER}/seat-1"
VALID = Validity(is_valid=True, reason="It is well.")
INVALID = Validity(is_valid=False, reason="It is ill.")


def at(seconds: float) -> datetime:
    return A_MOMENT + timedelta(seconds=seconds)


def plan_facts(**changes: Any) -> PlanFacts:
    facts: dict[str, Any] = {
        "fault_key": "hp:NvidiaErrorReboot",
        "ladder": ("reboot", "replace"),
        "sources": ("hyperpod.node-health",),
        "has_recovered": False,
        "mode": Mode.ACT,
        "is_drill": False,
        "drills_may_act": False,
        "is_node_gone": False,
        "is_hyperpod": True,
        "hyperpod_repairs": False,
        "cluster_status": "InService",
        "node_status": "Running",
        "is_manual_cordon": False,
    }
    return PlanFacts.model_validate({**facts, **changes})


def a_repair_request(
    rung: str = "reboot", seconds: float = 10, answer: str = "ACCEPTED", **changes: Any
) -> RepairRequest:
    facts: dict[str, Any] = {
        "rung": rung,
        "life": LIFE,
        "boot_id": "boot-1",
        "status_before": "Running",
        "requested_at": at(seconds),
        "incident_id": "inc-1",
        "answer": answer,
    }
    return RepairRequest.model_validate({**facts, **changes})


def a_slot_state(*, successor: ObservedNode | None = None, **node: Any) -> SlotState:
    original = ObservedNode(provider_node=a_provider_node(1), node=a_node(1, **{"boot_id": "boot-1", **node}))
    return SlotState(original=original, replacement=successor)


def a_successor(seconds: float = 60, status: str = "Running", **node: Any) -> ObservedNode:
    record = a_provider_node(9, logical_id="seat-1", launched_at=at(seconds), status=status)
    return ObservedNode(provider_node=record, node=a_node(9, **node))


def repair_facts(**changes: Any) -> RepairFacts:
    facts: dict[str, Any] = {
        "incident_id": "inc-1",
        "life": LIFE,
        "fault_key": "hp:NvidiaErrorReboot",
        "ladder": ("reboot", "replace"),
        "owner": NodeOwner.EVENKEEL,
        "opened_at": at(0),
        "boot_id_at_opening": "boot-1",
        "has_recovered": False,
        "not_allowed": "",
        "is_manual_cordon": False,
        "lease_holder": "",
        "requests": (),
        "slot_state": a_slot_state(),
        "validity": INVALID,
        "hold": None,
        "now": at(20),
    }
    return RepairFacts.model_validate({**facts, **changes})
