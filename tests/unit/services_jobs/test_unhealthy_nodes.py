"""No job starts on a node that needs a repair and gets none, cordoned or not."""

from typing import Any

import pytest

from evenkeel.domain.jobs.job import JobState
from evenkeel.domain.nodes import FleetNode
from evenkeel.domain.recovery.unhealthy import UnhealthyNode
from evenkeel.ports import Delete, Row
from evenkeel.services.jobs.check_authority import Asker
from evenkeel.services.queries import read_queue
from evenkeel.services.recovery import mark_node
from evenkeel.services.storage import rows
from tests.fakes.cluster import CLUSTER, instance_id
from tests.unit.services_jobs.story import NAMESPACE, Story, a_spec

FAULT = "sagemaker.amazonaws.com/fault-types"


def name_of(story: Story, number: int) -> str:
    [name] = [node.name for node in story.world.cluster.by_name.values() if node.instance_id == instance_id(number)]
    return name


def mark(story: Story, number: int = 1, fault: str = "NvidiaErrorReboot") -> None:
    labels = {FAULT: fault} if fault else {}
    story.world.cluster.set_node(name_of(story, number), labels=labels)


def leave(story: Story, number: int = 1) -> Row:
    """Leave a node unhealthy, as a recovery does that nobody approved."""
    story.sweep()
    row = story.world.ledger.get(rows.node_key(CLUSTER, instance_id(number)))
    assert row
    life = rows.read(row, FleetNode).life
    left = UnhealthyNode(life=life, incident_id="inc-1", since=story.world.clock.now(), reason="It was declined.")
    written = rows.unhealthy_row(left, 0)
    story.put(written)
    return written


def uncordon(story: Story, number: int = 1) -> None:
    request = mark_node.Request(instance_id=instance_id(number), by="role/Op (bo)", reason="mended", request_id="r-1")
    ports: dict[str, Any] = {"ledger": story.world.ledger, "cluster": story.world.cluster}
    mark_node.uncordon(request, **ports, clusters=(CLUSTER,), now=story.world.clock.now())


def planned(story: Story, nodes: int) -> dict[str, Any]:
    found: dict[str, Any] = read_queue.plan(
        a_spec(nodes=nodes),
        Asker(principal="role/ana", identity="111122223333:role/ana"),
        story.world.ledger,
        cluster=CLUSTER,
        namespace=NAMESPACE,
        policy=story.policy,
        now=story.world.clock.now(),
    )
    return found


@pytest.mark.parametrize("make_unhealthy", [mark, leave])
def test_job_waits_rather_than_start_on_unhealthy_node(make_unhealthy: Any) -> None:
    story = Story(size=2)
    make_unhealthy(story)

    job = story.submit(nodes=2)
    story.run_pass()

    assert story.job(job.job_id).state is JobState.PENDING
    assert "unhealthy" in story.job(job.job_id).reason


def test_job_starts_on_the_healthy_nodes_alone() -> None:
    story = Story(size=3)
    leave(story)

    job = story.submit(nodes=2)
    story.run_pass()

    assert name_of(story, 1) not in story.attempt(job.job_id).node_names


@pytest.mark.parametrize("make_unhealthy", [mark, leave])
def test_plan_counts_no_free_gpus_on_unhealthy_node(make_unhealthy: Any) -> None:
    story = Story(size=2)
    make_unhealthy(story)
    story.sweep()

    assert planned(story, 1)["decision"]["action"] == "ADMIT"
    assert planned(story, 2)["decision"]["action"] == "WAIT"
    assert "unhealthy" in planned(story, 2)["decision"]["reason"]


def test_node_without_its_mark_is_usable_at_once() -> None:
    story = Story(size=2)
    mark(story)
    job = story.submit(nodes=2)
    story.run_pass()
    mark(story, fault="")

    story.run_pass()

    assert story.job(job.job_id).state is JobState.STARTING


def test_row_that_ended_closes_no_node_though_listed() -> None:
    story = Story(size=2)
    row = leave(story)
    job = story.submit(nodes=2)
    story.world.ledger.commit(Delete(row.key, 1))

    story.run_pass()

    assert story.job(job.job_id).state is JobState.STARTING


@pytest.mark.parametrize("make_unhealthy", [mark, leave])
def test_node_that_a_person_uncordons_is_usable_at_once(make_unhealthy: Any) -> None:
    story = Story(size=2)
    make_unhealthy(story)
    story.sweep()
    uncordon(story)

    job = story.submit(nodes=2)
    story.run_pass()

    assert story.job(job.job_id).state is JobState.STARTING
