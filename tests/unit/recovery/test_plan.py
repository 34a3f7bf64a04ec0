"""The plan of a recovery, and the permission to act on it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.domain.health.faults import Rung, default_catalogue
from evenkeel.domain.health.incidents import JobAction, PlanOutcome
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.recovery.plan import RUNGS, NodeOwner, PlanFacts, plan_recovery, present_owner, should_ask_person
from evenkeel.domain.recovery.repair_policy import RepairPolicy
from tests.unit.recovery.facts import at, plan_facts

POLICY = RepairPolicy()


@pytest.mark.parametrize(
    ("changes", "outcome", "repairs", "owner"),
    [
        ({}, "ACT", True, NodeOwner.EVENKEEL),
        ({"mode": Mode.OBSERVE}, "OBSERVE", True, NodeOwner.EVENKEEL),
        ({"mode": Mode.RECOMMEND}, "ASK", True, NodeOwner.EVENKEEL),
        ({"mode": Mode.RECOMMEND, "node_status": "SystemUpdating"}, "LATER", False, NodeOwner.HYPERPOD),
        ({"is_drill": True}, "OBSERVE", True, NodeOwner.EVENKEEL),
        ({"is_drill": True, "drills_may_act": True}, "ACT", True, NodeOwner.EVENKEEL),
        ({"is_manual_cordon": True}, "ACT", True, NodeOwner.PERSON),
        ({"hyperpod_repairs": True}, "ACT", True, NodeOwner.HYPERPOD),
        ({"hyperpod_repairs": True, "fault_key": "node:not_ready"}, "ACT", True, NodeOwner.EVENKEEL),
        ({"is_hyperpod": False}, "ACT", True, NodeOwner.NODE_GROUP),
        ({"is_hyperpod": False, "is_karpenter": True}, "ACT", True, NodeOwner.KARPENTER),
        ({"is_node_gone": True}, "ACT", True, NodeOwner.EVENKEEL),
        ({"is_node_gone": True, "opt_out_reason": "Left to people."}, "STAND_DOWN", False, NodeOwner.PERSON),
        ({"opt_out_reason": "Left to people."}, "STAND_DOWN", False, NodeOwner.PERSON),
        ({"has_recovered": True}, "NOTHING", False, NodeOwner.NONE),
        ({"cluster_status": "RollingBack"}, "LATER", False, NodeOwner.HYPERPOD),
        ({"node_status": "SystemUpdating"}, "LATER", False, NodeOwner.HYPERPOD),
        ({"node_status": "SystemUpdating", "mode": Mode.OBSERVE}, "OBSERVE", False, NodeOwner.HYPERPOD),
        ({"fault_key": "xid:13"}, "ACT", False, NodeOwner.NONE),
        ({"fault_key": "node:pressure", "ladder": ()}, "NOTHING", False, NodeOwner.NONE),
        ({"fault_key": "node:clock_unsynced", "ladder": ()}, "NOTHING", False, NodeOwner.NONE),
        ({"fault_key": "hp:pending_reboot_label", "ladder": ("reboot",)}, "NOTHING", False, NodeOwner.NONE),
        ({"fault_key": "xid:63", "is_busy": True, "opened_at": at(0)}, "ACT", True, NodeOwner.EVENKEEL),
        ({"fault_key": "xid:63", "is_busy": False}, "ACT", True, NodeOwner.EVENKEEL),
        ({"fault_key": "eks:IPAMDNotReady"}, "NOTHING", False, NodeOwner.NONE),
        ({"fault_key": "eks:IPAMDNotReady", "sources": ("one", "two")}, "ACT", True, NodeOwner.EVENKEEL),
    ],
)
def test_recovery_plan_decides_outcome_repair_and_owner(
    changes: dict[str, Any], outcome: str, repairs: bool, owner: NodeOwner
) -> None:
    plan = plan_recovery(plan_facts(**changes), POLICY)

    assert (plan.outcome, plan.repairs_node, plan.owner) == (outcome, repairs, owner)
    assert plan.reason.endswith(".")


@pytest.mark.parametrize(
    ("planned_owner", "fault_key", "rungs", "hyperpod_repairs", "owner"),
    [
        (NodeOwner.EVENKEEL, "xid:79", ("reboot", "replace"), True, NodeOwner.HYPERPOD),
        (NodeOwner.EVENKEEL, "hp:NvidiaXidError", ("replace",), True, NodeOwner.HYPERPOD),
        (NodeOwner.EVENKEEL, "xid:79", ("reboot", "replace"), False, NodeOwner.EVENKEEL),
        (NodeOwner.EVENKEEL, "node:not_ready", ("reboot",), True, NodeOwner.EVENKEEL),
        (NodeOwner.EVENKEEL, "xid:79", ("cordon", "reboot"), True, NodeOwner.EVENKEEL),
        (NodeOwner.HYPERPOD, "xid:79", ("reboot",), False, NodeOwner.HYPERPOD),
        (NodeOwner.PERSON, "xid:79", ("reboot",), True, NodeOwner.PERSON),
        (NodeOwner.KARPENTER, "xid:79", ("replace",), True, NodeOwner.KARPENTER),
    ],
)
def test_present_owner_follows_node_recovery_that_changed_after_the_plan(
    planned_owner: NodeOwner, fault_key: str, rungs: tuple[str, ...], hyperpod_repairs: bool, owner: NodeOwner
) -> None:
    assert present_owner(planned_owner, fault_key, rungs, hyperpod_repairs=hyperpod_repairs) is owner


@pytest.mark.parametrize(
    ("fault_key", "ladder", "repairs", "jobs"),
    [
        ("xid:79", ("reboot", "replace"), True, JobAction.MOVE),
        ("xid:8", (), False, JobAction.RESTART),
        ("train:exit_do_not_requeue", (), False, JobAction.STOP),
        ("train:checkpoint_incomplete", (), False, JobAction.ROLLBACK),
        ("train:nan_or_inf", ("diagnose", "replace"), True, JobAction.ROLLBACK),
        ("train:slow_rank", ("diagnose", "replace"), True, JobAction.MOVE),
        ("ec2:spot_interruption", (), True, JobAction.MOVE),
        ("ec2:rebalance_recommendation", (), True, JobAction.LEAVE),
        ("fabric:manager_not_running", ("reboot", "replace"), True, JobAction.MOVE),
    ],
)
def test_first_rung_decides_whether_node_and_jobs_are_touched(
    fault_key: str, ladder: tuple[str, ...], repairs: bool, jobs: JobAction
) -> None:
    plan = plan_recovery(plan_facts(fault_key=fault_key, ladder=ladder, sources=("one", "two")), POLICY)

    assert (plan.outcome, plan.repairs_node, plan.jobs) == (PlanOutcome.ACT, repairs, jobs)


def test_unavailable_rung_is_skipped_with_a_reason() -> None:
    plan = plan_recovery(plan_facts(fault_key="fabric:manager_not_running"), POLICY)

    assert [alternative.option for alternative in plan.alternatives] == ["restart_fabric_manager"]
    assert should_ask_person(default_catalogue().look_up("hp:insufficient_capacity").ladder)


@pytest.mark.parametrize(
    ("changes", "until"),
    [
        ({}, at(86_400)),
        ({"deadline_at": at(7200)}, at(7200 - POLICY.leave_seconds)),
        ({"is_busy": False}, None),
        ({"fault_key": "xid:79"}, None),
    ],
    ids=["a day at most", "the machine goes earlier", "it is idle", "the fault cannot wait"],
)
def test_job_may_run_until_a_deadline_if_the_fault_allows(changes: dict[str, Any], until: Any) -> None:
    facts = {"fault_key": "xid:63", "is_busy": True, "opened_at": at(0), **changes}

    plan = plan_recovery(plan_facts(**facts), POLICY)

    assert plan.work_may_run_until == until
    assert plan.jobs is (JobAction.LEAVE if until else JobAction.MOVE)


def test_every_rung_of_the_catalogue_is_known() -> None:
    assert set(Rung) == RUNGS


def test_plan_for_a_recurring_fault_starts_on_its_raised_rung() -> None:
    facts = plan_facts(
        fault_key="xid:13",
        ladder=("reboot", "replace"),
        rungs=("reboot", "replace"),
        min_rung_reason="Three times a day.",
    )

    plan = plan_recovery(facts, POLICY)

    assert (plan.repairs_node, plan.jobs) == (True, JobAction.MOVE)
    assert plan.reason.endswith("Three times a day.")


def test_intent_of_a_recovery_plan_does_not_depend_on_mode() -> None:
    plans = [plan_recovery(plan_facts(mode=mode), POLICY) for mode in Mode]

    assert {plan.intent for plan in plans} == {PlanOutcome.ACT}


def test_plan_scales_the_settling_time_of_the_fault_catalogue() -> None:
    plan = plan_recovery(plan_facts(), POLICY.replace(settle_scale=0.5))

    assert plan.evidence_wait_seconds == default_catalogue().look_up("hp:NvidiaErrorReboot").evidence_wait_seconds / 2


@given(
    st.builds(
        PlanFacts,
        fault_key=st.sampled_from(sorted(default_catalogue())),
        ladder=st.sampled_from([(), ("reboot",), ("replace",), ("reboot", "replace")]),
        sources=st.sampled_from([("one",), ("one", "two")]),
        mode=st.sampled_from(Mode),
        cluster_status=st.sampled_from(["InService", "Updating", "SystemUpdating", "Deleting"]),
        node_status=st.sampled_from(["Running", "Failure", "SystemUpdating", ""]),
        opt_out_reason=st.sampled_from(["", "Left to people."]),
    )
)
def test_plan_never_acts_without_permission(facts: PlanFacts) -> None:
    plan = plan_recovery(facts, POLICY)

    if plan.outcome is PlanOutcome.ACT:
        assert facts.mode is Mode.ACT
        assert not facts.is_drill or facts.drills_may_act
    if plan.repairs_node:
        assert not facts.opt_out_reason
        assert plan.intent is PlanOutcome.ACT
    assert plan == plan_recovery(facts, POLICY)
