"""The Kubernetes resource by which a pod requests its accelerators, if no node lists it."""

import pytest

from evenkeel.domain.admission.authority import AdmissionAuthority
from evenkeel.domain.jobs.job import Job
from tests.unit.services_jobs.job_scenario import JobScenario

NVIDIA, NEURON = "nvidia.com/gpu", "aws.amazon.com/neuron"
TRAINIUM = "ml.trn2.48xlarge"


def requested_resource(scenario: JobScenario, job: Job) -> str:
    scenario.launch(job.job_id)
    return scenario.world.cluster.launched(job.job_id, 1).spec.accelerator_resource


def fleet_of(instance_type: str, resource: str) -> JobScenario:
    scenario = JobScenario()
    nodes = scenario.world.cluster.by_name
    for node_ref, node in nodes.items():
        nodes[node_ref] = node.replace(instance_type=instance_type, accelerator_resource=resource)
    provider = scenario.world.provider
    provider.by_id = {key: node.replace(instance_type=instance_type) for key, node in provider.by_id.items()}
    return scenario


@pytest.mark.parametrize(("instance_type", "resource"), [(TRAINIUM, NEURON), ("ml.p5.48xlarge", NVIDIA)])
@pytest.mark.parametrize("is_deleted", [False, True])
def test_launch_requests_accelerators_of_a_silent_node(instance_type: str, resource: str, is_deleted: bool) -> None:
    """The device plugin restarts, or the node object is deleted, between the admission and the launch."""
    scenario = fleet_of(instance_type, resource)
    job = scenario.submit()
    scenario.run_scheduling_cycle()
    nodes = scenario.world.cluster.by_name
    for node_ref, node in tuple(nodes.items()):
        if is_deleted:
            del nodes[node_ref]
        else:
            nodes[node_ref] = node.replace(accelerator_resource="", accelerators=0)

    assert requested_resource(scenario, job) == resource


def test_kueue_job_requests_accelerators_of_its_types_without_nodes() -> None:
    """An autoscaler adds nodes of this type only for a pending pod."""
    scenario = JobScenario(admission=AdmissionAuthority.KUEUE)
    job = scenario.started(instance_types=(TRAINIUM,))

    assert requested_resource(scenario, job) == NEURON
