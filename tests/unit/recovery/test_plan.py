"""What a recovery is to do, and whether it may."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.domain.health.faults import catalogue, look_up
from evenkeel.domain.policy import Mode, RepairPolicy
from evenkeel.domain.recovery.plan import Owner, PlanFacts, PlanOutcome, plan_recovery
from tests.unit.recovery.facts import plan_facts

POLICY = RepairPolicy()


@pytest.mark.parametrize(
    ("changes", "outcome", "repairs", "owner"),
    [
        ({}, "ACT", True, Owner.EVENKEEL),
        ({"mode": Mode.OBSERVE}, "OBSERVE", True, Owner.EVENKEEL),
        ({"mode": Mode.RECOMMEND}, "OBSERVE", True, Owner.EVENKEEL),
        ({"is_drill": True}, "OBSERVE", True, Owner.EVENKEEL),
        ({"is_drill": True, "drills_may_act": True}, "ACT", True, Owner.EVENKEEL),
        ({"is_persons_cordon": True}, "ACT", False, Owner.PERSON),
        ({"hyperpod_repairs": True}, "ACT", True, Owner.HYPERPOD),
        ({"hyperpod_repairs": True, "fault_key": "node:not_ready"}, "ACT", True, Owner.EVENKEEL),
        ({"is_hyperpod": False}, "ACT", False, Owner.NOBODY),
        ({"life_is_over": True}, "NOTHING", False, Owner.NOBODY),
        ({"has_recovered": True}, "NOTHING", False, Owner.NOBODY),
        ({"cluster_status": "RollingBack"}, "STAND_DOWN", False, Owner.HYPERPOD),
        ({"node_status": "SystemUpdating"}, "STAND_DOWN", False, Owner.HYPERPOD),
        ({"fault_key": "xid:13"}, "NOTHING", False, Owner.NOBODY),
        ({"fault_key": "node:pressure", "ladder": ()}, "NOTHING", False, Owner.NOBODY),
        ({"fault_key": "node:clock_unsynced", "ladder": ()}, "NOTHING", False, Owner.NOBODY),
        ({"fault_key": "hp:pending_reboot_label", "ladder": ("reboot",)}, "NOTHING", False, Owner.NOBODY),
        ({"fault_key": "xid:63", "is_busy": True}, "NOTHING", False, Owner.NOBODY),
        ({"fault_key": "xid:63", "is_busy": False}, "ACT", True, Owner.EVENKEEL),
        ({"fault_key": "eks:IPAMDNotReady"}, "NOTHING", False, Owner.NOBODY),
        ({"fault_key": "eks:IPAMDNotReady", "sources": ("one", "two")}, "ACT", True, Owner.EVENKEEL),
    ],
)
def test_plan(changes: dict[str, Any], outcome: str, repairs: bool, owner: Owner) -> None:
    plan = plan_recovery(plan_facts(**changes), POLICY)

    assert (plan.outcome, plan.repairs_node, plan.owner) == (outcome, repairs, owner)
    assert plan.reason.endswith(".")


def test_every_mode_records_the_same_intent() -> None:
    plans = [plan_recovery(plan_facts(mode=mode), POLICY) for mode in Mode]

    assert {plan.intent for plan in plans} == {PlanOutcome.ACT}


def test_settling_time_comes_from_the_catalogue_scaled_by_policy() -> None:
    plan = plan_recovery(plan_facts(), POLICY.but(settle_scale=0.5))

    assert plan.settle_seconds == look_up("hp:NvidiaErrorReboot").settle_seconds / 2


@given(
    st.builds(
        PlanFacts,
        fault_key=st.sampled_from(sorted(catalogue())),
        ladder=st.sampled_from([(), ("reboot",), ("replace",), ("reboot", "replace")]),
        sources=st.sampled_from([("one",), ("one", "two")]),
        mode=st.sampled_from(Mode),
        cluster_status=st.sampled_from(["InService", "Updating", "SystemUpdating", "Deleting"]),
        node_status=st.sampled_from(["Running", "Failure", "SystemUpdating", ""]),
    )
)
def test_nothing_acts_where_it_may_not(facts: PlanFacts) -> None:
    plan = plan_recovery(facts, POLICY)

    if plan.outcome is PlanOutcome.ACT:
        assert facts.mode is Mode.ACT
        assert not facts.is_drill or facts.drills_may_act
        assert not facts.life_is_over
    if plan.repairs_node:
        assert not facts.is_persons_cordon
        assert facts.ladder
    assert plan == plan_recovery(facts, POLICY)
