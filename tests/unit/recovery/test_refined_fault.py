"""Two signals of one fault: HyperPod requests a replacement, but the ladder of the Xid begins with a reboot."""

from evenkeel.domain.health.incidents import PlanOutcome
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.recovery.plan import PlanFacts, plan_recovery
from evenkeel.domain.recovery.repair_policy import RepairPolicy


def test_plan_starts_on_the_first_rung_of_a_shortened_ladder() -> None:
    facts = PlanFacts(
        fault_key="xid:79",
        ladder=("replace",),
        sources=("hyperpod.node-health", "hyperpod.node-labels"),
        has_recovered=False,
        mode=Mode.ACT,
        is_drill=False,
        drills_may_act=False,
        is_node_gone=False,
        is_hyperpod=True,
        hyperpod_repairs=False,
        is_manual_cordon=False,
    )

    plan = plan_recovery(facts, RepairPolicy())

    assert plan.outcome is PlanOutcome.ACT
    assert plan.repairs_node
