"""The tables are restored to an earlier moment, and the world has moved on (docs/backup.md)."""

import copy
import marshal
from collections.abc import Mapping

import pytest

from evenkeel.domain.jobs.attempt import PodPhase
from evenkeel.domain.jobs.job import JobState
from evenkeel.ports import Key, Row
from evenkeel.services.attempts.launch_job import LaunchOutcome
from evenkeel.services.recovery import cordon_node, plan_recovery, repair_node
from evenkeel.services.sweep import sweep_fleet
from tests.fakes import FakeWorld
from tests.fakes.cluster import instance_id
from tests.unit.services_jobs.job_scenario import JobScenario
from tests.unit.services_jobs.test_rentals import ON_DEMAND, RentalScenario
from tests.unit.services_recovery.recovery_scenario import RecoveryScenario

READS = {
    "nodes",
    "node",
    "workload",
    "workloads",
    "pods",
    "pods_in_use",
    "live_pods",
    "resources_in_use",
    "logs",
    "log_tails",
}


def backup_ledger(world: FakeWorld) -> Mapping[Key, Row]:
    return copy.deepcopy(world.ledger.rows)


def restore_ledger(world: FakeWorld, saved: Mapping[Key, Row], *, seconds: int = 3600) -> None:
    """Bring the rows back, some time later. The new stack has no execution of the old one."""
    world.clock.advance(seconds)
    restored = type(world.ledger)()
    for row in saved.values():
        restored._store(row.key, row, marshal.dumps(row.doc, 2))
    vars(world.ledger).update({name: value for name, value in vars(restored).items() if name != "_lock"})
    world.workflows.executions.clear()
    world.workflows.states.clear()
    world.cluster.calls.clear()


def effects(world: FakeWorld) -> list[str]:
    """Return the names of the calls that changed the cluster."""
    return [str(call[0]) for call in world.cluster.calls if call[0] not in READS]


def running_pods(world: FakeWorld) -> dict[tuple[str, int], list[str]]:
    """Return the nodes of the running pods of each attempt."""
    listed = world.cluster.workloads("research-eks")
    pods = {
        (workload.job_id, workload.attempt): [pod for pod in workload.pods if pod.phase is PodPhase.RUNNING]
        for workload in listed
    }
    return {name: sorted(str(pod.node_name) for pod in job_pods) for name, job_pods in pods.items() if job_pods}


def a_job_that_resumed(size: int) -> tuple[JobScenario, str]:
    """Restore the ledger to the first attempt of a job whose second attempt runs."""
    scenario = JobScenario(size=size)
    job = scenario.running(nodes=2)
    saved = backup_ledger(scenario.world)
    scenario.world.cluster.fail_pods(job.job_id, 1)
    scenario.settle(job.job_id, 1)
    scenario.world.clock.advance(600)
    scenario.run_scheduling_cycle()
    scenario.run_attempt(job.job_id, 2)
    restore_ledger(scenario.world, saved)
    return scenario, job.job_id


def test_nodes_of_an_unknown_attempt_get_no_other_job() -> None:
    scenario, job_id = a_job_that_resumed(size=3)

    for _ in range(3):
        scenario.sweep()
        scenario.run_scheduling_cycle()
        scenario.world.clock.advance(120)

    job = scenario.job(job_id)
    assert (job.state, job.current_attempt) == (JobState.PENDING, 1)
    assert "in use" in job.reason
    assert len(running_pods(scenario.world)[job_id, 2]) == 2
    assert effects(scenario.world) == []


def test_launch_gives_up_if_unknown_pods_have_its_attempt_number() -> None:
    scenario, job_id = a_job_that_resumed(size=6)
    scenario.sweep()
    scenario.world.clock.advance(120)
    scenario.run_scheduling_cycle()
    before = running_pods(scenario.world)

    launched = scenario.launch(job_id, 2)

    assert launched.outcome is LaunchOutcome.GIVE_UP
    assert "was not created by this launch" in launched.reason
    assert running_pods(scenario.world) == before
    assert not {"stop", "force_delete_pods", "evict"} & set(effects(scenario.world))


def test_pods_of_unknown_job_keep_their_nodes() -> None:
    scenario = JobScenario(size=3)
    saved = backup_ledger(scenario.world)
    unknown = scenario.running(nodes=2)
    restore_ledger(scenario.world, saved)

    waiting = scenario.submit("key-2", nodes=2)
    for _ in range(3):
        scenario.sweep()
        scenario.watch()
        scenario.run_scheduling_cycle()
        scenario.world.clock.advance(120)

    assert len(running_pods(scenario.world)[unknown.job_id, 1]) == 2
    assert scenario.job(waiting.job_id).state is JobState.PENDING
    assert effects(scenario.world) == []


def a_rental_that_the_ledger_forgot() -> tuple[RentalScenario, str]:
    """Restore the ledger to before a job was submitted that runs on rented nodes."""
    renting = RentalScenario()
    first = renting.scenario.submit("first")
    renting.scenario.run_scheduling_cycle()
    renting.run_attempt(first.job_id, 1)
    renting.world.clock.advance(60)
    saved = backup_ledger(renting.world)
    unknown = renting.scenario.submit("unknown")
    renting.rent_nodes()
    renting.run_attempt(unknown.job_id, 1)
    restore_ledger(renting.world, saved)
    renting.states.clear()
    return renting, unknown.job_id


def sweep_three_times(renting: RentalScenario) -> None:
    for _ in range(3):
        renting.scenario.sweep()
        renting.scenario.watch()
        renting.scenario.run_scheduling_cycle()
        renting.advance_executions()
        renting.world.clock.advance(120)


def test_sweep_leaves_unknown_rented_nodes_alone() -> None:
    renting, unknown = a_rental_that_the_ledger_forgot()
    before, limits = running_pods(renting.world), dict(renting.world.cluster.limits)

    sweep_three_times(renting)

    assert len(before[unknown, 1]) == 2
    assert running_pods(renting.world) == before
    assert renting.world.cluster.limits == limits
    assert effects(renting.world) == []


def test_next_rental_neither_uses_nor_ends_unknown_busy_nodes() -> None:
    renting, unknown = a_rental_that_the_ledger_forgot()
    nodes = running_pods(renting.world)[unknown, 1]
    later = renting.scenario.submit("later")
    renting.rent_nodes()
    renting.world.clock.advance(3600)
    for _ in range(3):
        renting.rent_nodes()

    job = renting.scenario.job(later.job_id)
    assert running_pods(renting.world)[unknown, 1] == nodes
    assert renting.scenario.attempt(job.job_id, 1).pool == ON_DEMAND
    assert "delete_node_claim" not in effects(renting.world)


def test_next_rental_returns_unknown_nodes_that_are_idle() -> None:
    renting, unknown = a_rental_that_the_ledger_forgot()
    renting.world.cluster.finish_pods(unknown, 1)
    idle = {claim.node_name for _, claim in renting.world.cluster.claimed.values()}
    later = renting.scenario.submit("later", nodes=1)
    renting.rent_nodes()
    renting.run_attempt(later.job_id, 1)

    left = {claim.node_name for _, claim in renting.world.cluster.claimed.values()}
    assert len(idle) == 2
    assert left == set(renting.scenario.attempt(later.job_id, 1).node_names)


def test_attempt_that_ended_meanwhile_is_settled_once() -> None:
    scenario = JobScenario(size=4)
    job = scenario.running(nodes=2)
    saved = backup_ledger(scenario.world)
    scenario.world.cluster.finish_pods(job.job_id, 1)
    scenario.settle(job.job_id, 1)
    restore_ledger(scenario.world, saved)

    scenario.sweep()
    scenario.sweep()

    assert scenario.job(job.job_id).state is JobState.SUCCEEDED
    assert scenario.charges() == []


def test_replaced_node_is_not_replaced_again() -> None:
    recovery = RecoveryScenario(size=4, with_job=False)
    recovery.report_fault(3, fault_key="hp:NvidiaErrorTerminate", code="NvidiaErrorTerminate")
    saved = backup_ledger(recovery.world)
    assert recovery.recover() == "RECOVERED"
    nodes = sorted(recovery.world.cluster.by_name)
    restore_ledger(recovery.world, saved)

    sweep_fleet.run(recovery.context())
    assert recovery.execution_names() == [recovery.incident.execution_name]
    assert recovery.recover() == "RECOVERED"

    assert recovery.world.provider.accepted_calls("replace").total() == 1
    assert sorted(recovery.world.cluster.by_name) == nodes
    assert not any(node.is_cordoned for node in recovery.world.cluster.by_name.values())


@pytest.mark.parametrize("is_rebooting", [False, True])
def test_rebooted_node_is_not_rebooted_again(is_rebooting: bool) -> None:
    """The ledger forgot the request. The node has another boot id, and became Ready after its last fault signal."""
    recovery = RecoveryScenario(size=4, with_job=False)
    sweep_fleet.run(recovery.context())
    recovery.report_fault(3)
    saved = backup_ledger(recovery.world)
    recovery.world.clock.advance(60)
    if is_rebooting:
        for name, service in (
            ("PlanRecovery", plan_recovery),
            ("CordonNode", cordon_node),
            ("RepairNode", repair_node),
        ):
            recovery.run_state(name, service)
        assert recovery.world.provider.running
    else:
        assert recovery.recover() == "RECOVERED"
    restore_ledger(recovery.world, saved, seconds=60)  # later, the evidence is stale in any case

    sweep_fleet.run(recovery.context())
    assert recovery.recover() == "RECOVERED"

    assert recovery.world.provider.accepted_calls("reboot").total() == 1
    assert recovery.world.provider.accepted_calls("replace").total() == 0
    assert not any(node.is_cordoned for node in recovery.world.cluster.by_name.values())


def test_rebooted_node_with_a_new_fault_is_repaired() -> None:
    recovery = RecoveryScenario(size=4, with_job=False)
    sweep_fleet.run(recovery.context())
    recovery.report_fault(3)
    saved = backup_ledger(recovery.world)
    recovery.world.clock.advance(60)
    assert recovery.recover() == "RECOVERED"
    restore_ledger(recovery.world, saved, seconds=60)
    recovery.report_fault(3)

    sweep_fleet.run(recovery.context())
    assert recovery.recover() == "RECOVERED"

    assert recovery.world.provider.accepted_calls("reboot").total() == 2


def a_cordon_of_an_unknown_incident(*, is_still_faulty: bool) -> RecoveryScenario:
    recovery = RecoveryScenario(size=4)
    saved = backup_ledger(recovery.world)
    recovery.report_fault(3)
    recovery.run_state("PlanRecovery", plan_recovery)
    recovery.run_state("CordonNode", cordon_node)
    if not is_still_faulty:
        recovery.set_fault_label(instance_id(3))
    restore_ledger(recovery.world, saved)
    return recovery


def test_faulty_node_of_an_unknown_incident_gets_a_new_incident() -> None:
    recovery = a_cordon_of_an_unknown_incident(is_still_faulty=True)

    sweep_fleet.run(recovery.context())
    (incident,) = recovery.incidents()
    recovery.incident_id, recovery.run = incident.incident_id, 1
    assert recovery.recover() == "RECOVERED"

    assert recovery.world.provider.accepted_calls("reboot").total() == 1
    assert not any(node.is_cordoned for node in recovery.world.cluster.by_name.values())


def test_healthy_node_of_an_unknown_incident_stays_cordoned() -> None:
    """The lost incident may have left the node to a person."""
    recovery = a_cordon_of_an_unknown_incident(is_still_faulty=False)

    for _ in range(3):
        sweep_fleet.run(recovery.context())
        recovery.world.clock.advance(120)

    cordoned = [node.instance_id for node in recovery.world.cluster.by_name.values() if node.is_cordoned]
    assert cordoned == [instance_id(3)]
    assert recovery.incidents() == []
