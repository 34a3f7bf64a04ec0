"""A cluster that cannot be read stops admissions on itself alone, and nothing of it is given away."""

from typing import Any

import pytest

from evenkeel.domain.decisions import Decision
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.nodes import KubernetesNode
from evenkeel.domain.quotas.teams import FleetQuotas
from evenkeel.domain.replay import replay
from evenkeel.ports import NotAllowed, Table, Unreachable
from evenkeel.services.storage import heartbeats, rows
from tests.fakes.cluster import CLUSTER, a_node
from tests.fakes.system import A_MOMENT
from tests.unit.scheduling.test_sharing import a_team
from tests.unit.services_jobs.story import Story
from tests.unit.services_jobs.test_teams import MEMBERS, set_up

BURST = "burst-eks"
LISTS = ["*", "nodes", "workloads", "accelerators_in_use", "kueue_namespaces"]


def a_burst_node(number: int) -> KubernetesNode:
    facts: dict[str, Any] = {"cluster": BURST, "name": f"burst-{number}", "hyperpod_cluster_id": ""}
    return a_node(number, **facts, created_at=A_MOMENT)


def two_clusters(**more: Any) -> Story:
    """Two nodes on each of two clusters."""
    story = Story(size=2, clusters=(CLUSTER, BURST), **more)
    for number in (8, 9):
        story.world.cluster.add_node(a_burst_node(number))
    return story


def submit_on(story: Story, cluster: str, key: str, **changes: Any) -> Job:
    job = story.submit(key, **changes)
    story.set_job(job.but(cluster=cluster))
    return story.job(job.job_id)


def blind(story: Story, cluster: str, what: str = "*") -> None:
    story.world.cluster.blind[cluster] = {what}


def record_of(story: Story, job_id: str) -> Decision:
    return rows.read(story.world.ledger.by_state(Table.INCIDENTS, f"DEC#{job_id}").rows[-1], Decision)


@pytest.mark.parametrize("what", LISTS)
@pytest.mark.parametrize(("dead", "alive"), [(CLUSTER, BURST), (BURST, CLUSTER)])
def test_unreadable_cluster_stops_no_admission_on_the_other(dead: str, alive: str, what: str) -> None:
    story = two_clusters()
    first, second = submit_on(story, dead, "a"), submit_on(story, alive, "b")
    blind(story, dead, what)

    outcome = story.run_pass()

    held = story.job(first.job_id)
    assert outcome.admitted == (f"{second.job_id}-a1",)
    assert (held.state, held.current_attempt) == (JobState.PENDING, 0)
    assert held.reason == (
        f"Cluster {dead} cannot be read, so its free nodes are unknown. The job waits until it answers."
    )
    assert replay(record_of(story, held.job_id), story.policy).reason == held.reason


def test_job_of_a_cluster_that_answers_again_is_admitted() -> None:
    story = two_clusters()
    job = submit_on(story, BURST, "a")
    blind(story, BURST)
    story.run_pass()
    commits = len(story.world.ledger.commits)
    story.run_pass()
    repeated = len(story.world.ledger.commits) - commits
    story.world.cluster.blind.clear()

    outcome = story.run_pass()

    assert repeated == 0  # the reason is recorded once
    assert outcome.admitted == (f"{job.job_id}-a1",)


@pytest.mark.parametrize("error", [Unreachable("no answer"), NotAllowed("403")])
def test_hyperpod_that_fails_holds_its_own_cluster_alone(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    story = two_clusters()
    home, burst = submit_on(story, CLUSTER, "a"), submit_on(story, BURST, "b")

    def fail() -> None:
        raise error

    monkeypatch.setattr(story.world.provider, "nodes", fail)

    outcome = story.run_pass()

    assert outcome.admitted == (f"{burst.job_id}-a1",)
    assert "cannot be read" in story.job(home.job_id).reason


def test_unreadable_cluster_is_reported_as_failing_source() -> None:
    story = two_clusters()
    submit_on(story, CLUSTER, "a")
    blind(story, BURST)

    story.run_pass()

    reports = heartbeats.load(story.world.ledger)
    assert "no answer" in reports[f"kubernetes-list/{BURST}"].error
    assert reports["scheduling-cycle"].error == ""


def shared(red: int, blue: int, **fleet: Any) -> Story:
    story = two_clusters()
    teams = (a_team("red", red, members=MEMBERS), a_team("blue", blue, members=MEMBERS))
    set_up(story, *teams, FleetQuotas(priority_classes={"low": 1, "high": 10}, **fleet))
    return story


def test_job_on_an_unreadable_cluster_is_not_preempted() -> None:
    story = shared(red=16, blue=0)
    low = story.running(team="red", priority_class="low")
    high = submit_on(story, BURST, "high", team="red", priority_class="high")
    blind(story, CLUSTER)

    story.run_pass()

    assert story.job(low.job_id).stop_of(1) is None
    assert story.job(high.job_id).state is JobState.PENDING
    assert replay(record_of(story, high.job_id), story.policy).action == "NO_QUOTA"

    story.world.cluster.blind.clear()
    story.run_pass()
    assert story.job(low.job_id).stop_of(1) is not None


def test_interrupted_job_keeps_its_quota_while_its_cluster_is_unreadable() -> None:
    story = shared(red=16, blue=0)
    old = story.running(team="red")
    story.world.clock.advance(5)
    young = submit_on(story, BURST, "young", team="red")
    story.world.cluster.fail_pods(old.job_id, 1)
    story.settle(old.job_id)
    assert story.job(old.job_id).state is JobState.PENDING
    blind(story, CLUSTER)

    outcome = story.run_pass()

    assert outcome.admitted == ()
    assert story.job(young.job_id).state is JobState.PENDING
    story.world.cluster.blind.clear()
    story.world.clock.advance(3600)
    assert story.run_pass().admitted == (f"{old.job_id}-a2",)
