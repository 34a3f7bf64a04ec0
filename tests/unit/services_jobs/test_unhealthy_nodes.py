"""No job starts on an unhealthy node without a permitted repair, cordoned or not."""

from typing import Any

import pytest

from evenkeel.domain.jobs.job import JobState
from evenkeel.domain.nodes import FleetNode
from evenkeel.domain.recovery.unhealthy_nodes import UnhealthyNode
from evenkeel.ports import Delete, Row
from evenkeel.services.jobs.check_role import Requester
from evenkeel.services.queries.jobs import plan_unsubmitted_job
from evenkeel.services.recovery import set_manual_cordon
from evenkeel.services.tables import fleet_rows, incident_rows, rows
from tests.fakes.cluster import CLUSTER, instance_id
from tests.unit.services_jobs.job_scenario import JobScenario, a_spec

FAULT = "sagemaker.amazonaws.com/fault-types"


def name_of(scenario: JobScenario, number: int) -> str:
    [name] = [node.name for node in scenario.world.cluster.by_name.values() if node.instance_id == instance_id(number)]
    return name


def mark_node(scenario: JobScenario, number: int = 1, fault: str = "NvidiaErrorReboot") -> None:
    labels = {FAULT: fault} if fault else {}
    scenario.world.cluster.set_node(name_of(scenario, number), labels=labels)


def store_unhealthy_node(scenario: JobScenario, number: int = 1) -> Row:
    """Record a node as unhealthy, as a recovery without an approval does."""
    scenario.sweep()
    row = scenario.world.ledger.get(fleet_rows.node_key(CLUSTER, instance_id(number)))
    assert row
    life = rows.decode(row, FleetNode).life
    node = UnhealthyNode(life=life, incident_id="inc-1", since=scenario.world.clock.now(), reason="It was declined.")
    written = incident_rows.unhealthy_row(node, 0)
    scenario.store_row(written)
    return written


def uncordon(scenario: JobScenario, number: int = 1) -> None:
    request = set_manual_cordon.SetManualCordonRequest(
        instance_id=instance_id(number), by="role/Op (bo)", reason="mended", request_id="r-1", fingerprint="f-1"
    )
    set_manual_cordon.uncordon_as_person(request, scenario.world.context())


def plan_job(scenario: JobScenario, nodes: int) -> dict[str, Any]:
    plan: dict[str, Any] = plan_unsubmitted_job.run(
        a_spec(nodes=nodes),
        Requester(principal="role/ana", identity="111122223333:role/ana"),
        scenario.world.context(),
    )
    return plan


@pytest.mark.parametrize("make_unhealthy", [mark_node, store_unhealthy_node])
def test_job_waits_rather_than_start_on_unhealthy_node(make_unhealthy: Any) -> None:
    scenario = JobScenario(size=2)
    make_unhealthy(scenario)

    job = scenario.submit(nodes=2)
    scenario.run_scheduling_cycle()

    assert scenario.job(job.job_id).state is JobState.PENDING
    assert "unhealthy" in scenario.job(job.job_id).reason


def test_job_starts_only_on_healthy_nodes() -> None:
    scenario = JobScenario(size=3)
    store_unhealthy_node(scenario)

    job = scenario.submit(nodes=2)
    scenario.run_scheduling_cycle()

    assert name_of(scenario, 1) not in scenario.attempt(job.job_id).node_names


@pytest.mark.parametrize("make_unhealthy", [mark_node, store_unhealthy_node])
def test_plan_counts_no_free_gpus_on_unhealthy_node(make_unhealthy: Any) -> None:
    scenario = JobScenario(size=2)
    make_unhealthy(scenario)
    scenario.sweep()

    assert plan_job(scenario, 1)["decision"]["action"] == "ADMIT"
    assert plan_job(scenario, 2)["decision"]["action"] == "WAIT"
    assert "unhealthy" in plan_job(scenario, 2)["decision"]["reason"]


def test_node_without_fault_labels_is_usable_at_once() -> None:
    scenario = JobScenario(size=2)
    mark_node(scenario)
    job = scenario.submit(nodes=2)
    scenario.run_scheduling_cycle()
    mark_node(scenario, fault="")

    scenario.run_scheduling_cycle()

    assert scenario.job(job.job_id).state is JobState.STARTING


def test_row_of_an_ended_incident_excludes_no_node() -> None:
    scenario = JobScenario(size=2)
    row = store_unhealthy_node(scenario)
    job = scenario.submit(nodes=2)
    scenario.world.ledger.commit(Delete(row.key, 1))

    scenario.run_scheduling_cycle()

    assert scenario.job(job.job_id).state is JobState.STARTING


@pytest.mark.parametrize("make_unhealthy", [mark_node, store_unhealthy_node])
def test_node_that_a_person_uncordons_is_usable_at_once(make_unhealthy: Any) -> None:
    scenario = JobScenario(size=2)
    make_unhealthy(scenario)
    scenario.sweep()
    uncordon(scenario)

    job = scenario.submit(nodes=2)
    scenario.run_scheduling_cycle()

    assert scenario.job(job.job_id).state is JobState.STARTING
