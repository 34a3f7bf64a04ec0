from typing import Any

import pytest

from evenkeel.domain.admission.fifo import Admission
from evenkeel.domain.capacity.efa import Network
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.policy import Policy
from evenkeel.ports import Table
from tests.fakes.cluster import a_node
from tests.unit.services_jobs.story import Story

NO_EFA = Policy.model_validate({"scheduling": {"efaInterfaces": {"p5-workers": 0}}})


def launched(story: Story, **changes: Any) -> Job:
    job = story.submit(**{"nodes": 2, **changes})
    assert story.run_pass().admitted == (f"{job.job_id}-a1",)
    story.launch(job.job_id)
    return job


def network(story: Story, **changes: Any) -> Network:
    job = launched(story, **changes)
    return story.world.cluster.launched(job.job_id, 1).spec.network


def launch_text(story: Story, job: Job) -> str:
    events = story.world.ledger.partition(Table.JOBS, f"JOB#{job.job_id}", "EVENT#")
    return next(str(row.doc["text"]) for row in events if row.doc["kind"] == "launched")


@pytest.mark.parametrize(
    ("changes", "asked"),
    [({}, Network(32, 5120)), ({"accelerators_per_node": 4}, Network(16, 2560)), ({"nodes": 1}, Network())],
)
def test_a_launch_asks_for_its_nodes_interfaces(changes: dict[str, Any], asked: Network) -> None:
    assert network(Story(), **changes) == asked


def test_a_pool_without_efa_gets_none() -> None:
    assert network(Story(policy=NO_EFA)) == Network()


@pytest.mark.parametrize(
    ("policy", "text"), [(Policy(), "Each pod asks for 32 EFA interfaces."), (NO_EFA, "Its pods ask for no EFA.")]
)
def test_the_timeline_says_over_what_pods_talk(policy: Policy, text: str) -> None:
    story = Story(policy=policy)

    assert launch_text(story, launched(story)).endswith(text)


def test_a_gang_waits_for_the_efa_plugin() -> None:
    story = Story(size=2)
    cluster = story.world.cluster
    offers = dict(cluster.by_name)
    for place, node in offers.items():
        cluster.by_name[place] = node.but(efa=0)
    job = story.submit(nodes=2)

    assert story.run_pass().admitted == ()
    assert "offering 0 of 32 EFA interfaces" in story.job(job.job_id).reason

    cluster.by_name.update(offers)
    assert story.run_pass().admitted == (f"{job.job_id}-a1",)


@pytest.mark.parametrize(
    ("types", "asked"),
    [
        (("ml.p5.48xlarge",), 32),
        (("ml.p5.48xlarge", "ml.p4d.24xlarge"), 4),
        (("ml.p5.48xlarge", "ml.g5.xlarge"), 0),
        ((), 32),
    ],
)
def test_kueue_may_admit_on_any_named_type(types: tuple[str, ...], asked: int) -> None:
    story = Story(admission=Admission.KUEUE)
    story.world.cluster.by_name["research-eks", "cpu"] = a_node(
        9, name="cpu", instance_type="ml.m5.xlarge", accelerators=0, accelerator_resource="", efa=0
    )

    assert network(story, instance_types=types) == Network(asked)
