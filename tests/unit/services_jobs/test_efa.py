from typing import Any

import pytest

from evenkeel.domain.admission.authority import AdmissionAuthority
from evenkeel.domain.capacity.efa import EfaRequest
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.policy import Policy
from evenkeel.ports import Table
from tests.fakes.cluster import a_node
from tests.unit.services_jobs.job_scenario import JobScenario

NO_EFA = Policy.model_validate({"scheduling": {"efaInterfaces": {"p5-workers": 0}}})


def launch_job(scenario: JobScenario, **changes: Any) -> Job:
    job = scenario.submit(**{"nodes": 2, **changes})
    assert scenario.run_scheduling_cycle().admitted == (f"{job.job_id}-a1",)
    scenario.launch(job.job_id)
    return job


def network_of_launch(scenario: JobScenario, **changes: Any) -> EfaRequest:
    job = launch_job(scenario, **changes)
    return scenario.world.cluster.launched(job.job_id, 1).spec.network


def launch_text(scenario: JobScenario, job: Job) -> str:
    events = scenario.world.ledger.partition(Table.JOBS, f"JOB#{job.job_id}", "EVENT#")
    return next(str(row.doc["text"]) for row in events if row.doc["kind"] == "launched")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({}, EfaRequest(32, 5120)), ({"accelerators_per_node": 4}, EfaRequest(16, 2560)), ({"nodes": 1}, EfaRequest())],
)
def test_launch_requests_the_efa_interfaces_of_its_nodes(changes: dict[str, Any], expected: EfaRequest) -> None:
    assert network_of_launch(JobScenario(), **changes) == expected


def test_launch_on_a_pool_without_efa_requests_none() -> None:
    assert network_of_launch(JobScenario(policy=NO_EFA)) == EfaRequest()


@pytest.mark.parametrize(
    ("policy", "text"), [(Policy(), "Each pod requests 32 EFA interfaces."), (NO_EFA, "The pods request no EFA.")]
)
def test_timeline_names_the_network_of_the_pods(policy: Policy, text: str) -> None:
    scenario = JobScenario(policy=policy)

    assert launch_text(scenario, launch_job(scenario)).endswith(text)


def test_gang_waits_for_the_efa_device_plugin() -> None:
    scenario = JobScenario(size=2)
    cluster = scenario.world.cluster
    offers = dict(cluster.by_name)
    for node_ref, node in offers.items():
        cluster.by_name[node_ref] = node.replace(efa=0)
    job = scenario.submit(nodes=2)

    assert scenario.run_scheduling_cycle().admitted == ()
    assert "offering 0 of 32 EFA interfaces" in scenario.job(job.job_id).reason

    cluster.by_name.update(offers)
    assert scenario.run_scheduling_cycle().admitted == (f"{job.job_id}-a1",)


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        (("ml.p5.48xlarge",), 32),
        (("ml.p5.48xlarge", "ml.p4d.24xlarge"), 4),
        (("ml.p5.48xlarge", "ml.g5.xlarge"), 0),
        ((), 32),
    ],
)
def test_kueue_job_requests_interfaces_that_every_named_type_has(types: tuple[str, ...], expected: int) -> None:
    scenario = JobScenario(admission=AdmissionAuthority.KUEUE)
    scenario.world.cluster.by_name["research-eks", "cpu"] = a_node(
        9, name="cpu", instance_type="ml.m5.xlarge", accelerators=0, accelerator_resource="", efa=0
    )

    assert network_of_launch(scenario, instance_types=types) == EfaRequest(expected)
