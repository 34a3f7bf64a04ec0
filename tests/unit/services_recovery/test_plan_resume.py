"""PlanResume: what the choice rests on, and what is kept of it."""

from datetime import timedelta

import pytest

from evenkeel.domain.capacity.network_topology import NetworkLevel
from evenkeel.domain.decisions import Decision
from evenkeel.domain.health.incidents import IncidentState, StageTimes
from evenkeel.domain.jobs.spec import ElasticSpec
from evenkeel.domain.nodes import NETWORK_LAYER_LABEL, FleetNode
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.recovery.resume_options import ResumeFacts
from evenkeel.domain.recovery.resume_options import plan_resume as choose
from evenkeel.domain.replay import replay
from evenkeel.domain.values import rfc3339
from evenkeel.ports import Table
from evenkeel.services.queries.disclosure import Reader
from evenkeel.services.queries.jobs import read_jobs
from evenkeel.services.queries.records import explain
from evenkeel.services.recovery import cordon_node, drain_node, plan_recovery
from evenkeel.services.resume import plan_resume
from evenkeel.services.tables import fleet_rows, incident_rows, rows
from tests.unit.services_recovery.recovery_scenario import QUICK, RecoveryScenario, answer_plan

WITH_ITS_OWN_PRICE = QUICK.replace(
    economy=QUICK.economy.replace(usd_per_accelerator_hour={"ml.p5.48xlarge": 2.5}, min_samples=2)
)


def recovery_with_resume_plan(*durations: int, size: int = 3) -> RecoveryScenario:
    """A recovery up to its resume plan, after earlier reboots that took this long."""
    recovery = RecoveryScenario(size=size, policy=WITH_ITS_OWN_PRICE)
    recovery.report_fault()
    for number, seconds in enumerate(durations):
        asked_at = recovery.now - timedelta(days=number + 1)
        past = recovery.incident.replace(
            incident_id=f"inc-past{number}",
            state=IncidentState.RECOVERED,
            repairs=("reboot",),
            stages=StageTimes(repair_requested_at=asked_at, node_back_at=asked_at + timedelta(seconds=seconds)),
            pool="p5-workers",
        )
        recovery.scenario.store_row(incident_rows.incident_row(past, 0))
    for name, service in (("PlanRecovery", plan_recovery), ("DrainNode", drain_node), ("PlanResume", plan_resume)):
        recovery.run_state(name, service)
    return recovery


def resume_decision(recovery: RecoveryScenario) -> Decision:
    page = recovery.world.ledger.by_state(Table.INCIDENTS, f"DEC#{recovery.incident_id}")
    return next(
        resume_decision for row in page.rows if (resume_decision := rows.decode(row, Decision)).kind == "RESUME"
    )


@pytest.mark.parametrize(
    ("durations", "seconds", "samples"),
    [
        ((), QUICK.economy.expected_reboot_seconds, 0),
        ((100,), QUICK.economy.expected_reboot_seconds, 0),
        ((100, 140), 120, 2),
    ],
)
def test_expected_repair_time_follows_past_repairs(durations: tuple[int, ...], seconds: float, samples: int) -> None:
    facts = ResumeFacts.model_validate(resume_decision(recovery_with_resume_plan(*durations)).facts)

    assert (facts.delays.repair.seconds, facts.delays.repair.samples) == (seconds, samples)
    assert facts.usd_per_accelerator_hour == 2.5


def test_record_of_a_resume_plan_replays() -> None:
    record = resume_decision(recovery_with_resume_plan(100, 140))

    again = choose(ResumeFacts.model_validate(record.facts), WITH_ITS_OWN_PRICE.jobs)

    assert (again.option, again.reason, again.alternatives) == (record.action, record.reason, record.alternatives)
    assert record.chosen
    assert (again.expected_seconds, again.usd) == (record.chosen.expected_seconds, record.chosen.usd)


def test_why_shows_every_option_with_figures_or_a_reason() -> None:
    recovery = recovery_with_resume_plan(size=2)

    table = explain.why_job(recovery.job_id, Reader(), recovery.world.context())["considered"]

    chosen, *other_options = table
    assert (chosen["option"], chosen["chosen"]) == ("WAIT_FOR_REPAIR", True)
    assert chosen["usd"] == pytest.approx(chosen["gpuHoursLost"] * 2.5, abs=0.01)
    assert {option["option"] for option in other_options} == {"FREE_NODE", "SPARE", "SHRINK", "PREEMPT", "RENT"}
    assert all(option["whyNot"] for option in other_options)


def test_entry_of_resumed_job_has_time_of_its_next_attempt() -> None:
    """At the end of the lost attempt nothing had resumed, and the incident might not have been open."""
    recovery = RecoveryScenario(size=3)
    recovery.report_fault()
    for name, service in (("PlanRecovery", plan_recovery), ("CordonNode", cordon_node), ("DrainNode", drain_node)):
        recovery.run_state(name, service)
    recovery.scenario.stop(recovery.job_id)
    recovery.scenario.settle(recovery.job_id)
    recovery.world.clock.advance(5)
    recovery.scenario.run_scheduling_cycle()
    recovery.scenario.run_attempt(recovery.job_id, 2)

    for _ in range(2):
        recovery.run_state("PlanResume", plan_resume)

    entries = read_jobs.stored_timeline(recovery.world.ledger, recovery.incident_id)
    (entry,) = [entry for entry in entries if "already resuming" in entry["text"]]
    assert entry["at"] == rfc3339(recovery.scenario.attempt(recovery.job_id, 2).admitted_at)


def test_expected_lost_work_includes_time_since_last_trusted_checkpoint() -> None:
    def expected_loss(fault_key: str) -> float:
        recovery = RecoveryScenario()
        recovery.scenario.set_job(
            recovery.job.replace(spec=recovery.job.spec.replace(checkpoint_uri="s3://checkpoints/one"))
        )
        recovery.world.clock.advance(7200)
        recovery.report_fault(fault_key=fault_key, observed_at=recovery.now)
        for service in (plan_recovery, drain_node, plan_resume):
            recovery.run_state("", service)
        return ResumeFacts.model_validate(resume_decision(recovery).facts).lost_work_seconds

    half = QUICK.economy.expected_checkpoint_seconds / 2
    assert expected_loss("hp:NvidiaErrorReboot") == half
    assert expected_loss("hp:NvidiaErrorTerminate") == QUICK.jobs.distrust_guard_seconds + half


@pytest.mark.parametrize(
    ("fault_key", "option"), [("train:hang", "FREE_NODE"), ("hp:NvidiaErrorTerminate", "WAIT_FOR_REPAIR")]
)
@pytest.mark.parametrize("mode", [Mode.ACT, Mode.RECOMMEND])
def test_job_resumes_on_same_node_if_fault_lies_elsewhere(fault_key: str, option: str, mode: Mode) -> None:
    recovery = RecoveryScenario(size=2, mode=mode)
    recovery.report_fault(fault_key=fault_key, source="site:role/Detector")
    recovery.run_state("", plan_recovery)
    if mode is Mode.RECOMMEND:
        answer_plan(recovery)
    for service in (drain_node, plan_resume):
        recovery.run_state("", service)

    plan = recovery.job.resume_plan
    assert plan
    assert (plan.option, bool(plan.avoid)) == (option, option == "WAIT_FOR_REPAIR")


@pytest.mark.parametrize(("offered", "option"), [(32, "FREE_NODE"), (0, "WAIT_FOR_REPAIR")])
def test_free_node_without_efa_does_not_resume_a_gang(offered: int, option: str) -> None:
    recovery = RecoveryScenario(size=3)
    recovery.report_fault(fault_key="hp:NvidiaErrorTerminate")
    used, by_name = recovery.scenario.attempt(recovery.job_id).node_names, recovery.world.cluster.by_name
    (spare,) = (node_ref for node_ref in by_name if node_ref[1] not in used)
    by_name[spare] = by_name[spare].replace(efa=offered)
    for service in (plan_recovery, drain_node, plan_resume):
        recovery.run_state("", service)

    assert resume_decision(recovery).action == option


@pytest.mark.parametrize(("domain", "option"), [("nn-a", "FREE_NODE"), ("nn-b", "WAIT_FOR_REPAIR")])
def test_free_node_of_another_domain_does_not_resume_a_gang(domain: str, option: str) -> None:
    recovery = RecoveryScenario(size=3)
    spec = recovery.job.spec.replace(required_network_level=NetworkLevel.LAYER_2)
    recovery.scenario.set_job(recovery.job.replace(spec=spec))
    recovery.report_fault(fault_key="hp:NvidiaErrorTerminate")
    used, by_name = recovery.scenario.attempt(recovery.job_id).node_names, recovery.world.cluster.by_name
    for node_ref, node in by_name.items():
        layers = {f"{NETWORK_LAYER_LABEL}1": "nn-top", f"{NETWORK_LAYER_LABEL}2": "nn-a"}
        free_layers = {**layers, f"{NETWORK_LAYER_LABEL}2": domain}
        by_name[node_ref] = node.replace(labels=node.labels | (layers if node.name in used else free_layers))
    for service in (plan_recovery, drain_node, plan_resume):
        recovery.run_state("", service)

    assert resume_decision(recovery).action == option


def recovery_with_distant_free_node(slowdown: float | None, *, is_faulty_node_gone: bool = False) -> RecoveryScenario:
    """A recovery of two nodes that shared a domain of layer 2. The free node is in another domain."""
    policy = WITH_ITS_OWN_PRICE.replace(economy=WITH_ITS_OWN_PRICE.economy.replace(slowdown_per_network_level=slowdown))
    recovery = RecoveryScenario(size=3, policy=policy)
    recovery.report_fault()
    used, by_name = recovery.scenario.attempt(recovery.job_id).node_names, recovery.world.cluster.by_name
    for node_ref, node in by_name.items():
        layers = {
            f"{NETWORK_LAYER_LABEL}1": "nn-top",
            f"{NETWORK_LAYER_LABEL}2": "nn-a" if node.name in used else "nn-b",
        }
        by_name[node_ref] = node.replace(labels=node.labels | layers)
    for service in (plan_recovery, drain_node):
        recovery.run_state("", service)
    if is_faulty_node_gone:
        life = recovery.incident.life
        faulty = next(node_ref for node_ref, node in by_name.items() if node.instance_id == life.instance_id)
        network_layers = by_name.pop(faulty).network_layers
        stored = FleetNode(life=life, slot="slot", network_layers=network_layers, changed_at=recovery.now)
        row = fleet_rows.node_row(life.cluster, life.instance_id, stored.to_json(), 0, None)
        recovery.scenario.store_row(row)
    recovery.run_state("", plan_resume)
    return recovery


@pytest.mark.parametrize("is_faulty_node_gone", [False, True])
def test_job_waits_near_while_distant_nodes_lose_more(is_faulty_node_gone: bool) -> None:
    recovery = recovery_with_distant_free_node(0.5, is_faulty_node_gone=is_faulty_node_gone)
    record, plan = resume_decision(recovery), recovery.job.resume_plan

    assert record.action == "WAIT_FOR_REPAIR"
    assert replay(record, recovery.policy).differs_from(record) == ""
    assert plan
    assert plan.far_nodes_at
    assert recovery.job.near_level(plan.far_nodes_at - timedelta(seconds=1)) is NetworkLevel.LAYER_2
    assert recovery.job.near_level(plan.far_nodes_at) is None


def test_record_says_that_no_slowdown_is_configured() -> None:
    record = resume_decision(recovery_with_distant_free_node(None))

    assert record.action == "FREE_NODE"
    assert "no slowdown is weighed, because economy.slowdownPerNetworkLevel is not set" in record.reason
    assert record.chosen
    assert record.chosen.slowdown_seconds is None


def test_elastic_job_that_lost_a_node_is_planned_smaller() -> None:
    recovery = RecoveryScenario(
        size=2,
        policy=WITH_ITS_OWN_PRICE.replace(economy=WITH_ITS_OWN_PRICE.economy.replace(expected_reboot_seconds=3600)),
    )
    sizes = ElasticSpec(min_nodes=1, max_nodes=2)
    recovery.scenario.set_job(
        recovery.job.replace(spec=recovery.job.spec.replace(elastic=sizes, checkpoint_uri="s3://checkpoints/one"))
    )
    recovery.report_fault()
    for service in (plan_recovery, drain_node, plan_resume):
        recovery.run_state("", service)

    record, plan = resume_decision(recovery), recovery.job.resume_plan
    facts = ResumeFacts.model_validate(record.facts)

    assert record.action == "SHRINK"
    assert facts.node_loss
    assert (facts.nodes, facts.node_loss.lost_nodes, facts.node_loss.spares) == (2, 1, 0)
    assert replay(record, recovery.policy).differs_from(record) == ""
    assert plan
    assert plan.shrinks_at == recovery.incident.opened_at + timedelta(
        seconds=recovery.policy.scheduling.elastic.spare_wait_seconds
    )
