"""A cluster that cannot be read stops only its own admissions; its nodes and quota stay reserved."""

from typing import Any

import pytest

from evenkeel.domain.decisions import Decision
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.nodes import KubernetesNode
from evenkeel.domain.quotas.teams import FleetQuotas
from evenkeel.domain.replay import replay
from evenkeel.ports import NotAllowed, Table, Unreachable
from evenkeel.services.storage import heartbeats
from evenkeel.services.tables import rows
from tests.fakes.cluster import CLUSTER, a_node
from tests.fakes.system import A_MOMENT
from tests.unit.scheduling.test_sharing import a_team
from tests.unit.services_jobs.job_scenario import JobScenario
from tests.unit.services_jobs.test_teams import MEMBERS, set_up_teams

BURST = "burst-eks"
LISTS = ["*", "nodes", "workloads", "resources_in_use", "kueue_namespaces"]


def a_burst_node(number: int) -> KubernetesNode:
    facts: dict[str, Any] = {"cluster": BURST, "name": f"burst-{number}", "hyperpod_cluster_id": ""}
    return a_node(number, **facts, created_at=A_MOMENT)


def two_clusters(**more: Any) -> JobScenario:
    """Two nodes on each of two clusters."""
    scenario = JobScenario(size=2, clusters=(CLUSTER, BURST), **more)
    for number in (8, 9):
        scenario.world.cluster.add_node(a_burst_node(number))
    return scenario


def submit_on(scenario: JobScenario, cluster: str, key: str, **changes: Any) -> Job:
    job = scenario.submit(key, **changes)
    scenario.set_job(job.replace(cluster=cluster))
    return scenario.job(job.job_id)


def make_unreadable(scenario: JobScenario, cluster: str, what: str = "*") -> None:
    scenario.world.cluster.unreadable_lists[cluster] = {what}


def newest_record(scenario: JobScenario, job_id: str) -> Decision:
    return rows.decode(scenario.world.ledger.by_state(Table.INCIDENTS, f"DEC#{job_id}").rows[-1], Decision)


@pytest.mark.parametrize("what", LISTS)
@pytest.mark.parametrize(("dead", "alive"), [(CLUSTER, BURST), (BURST, CLUSTER)])
def test_unreadable_cluster_stops_no_admission_on_the_other(dead: str, alive: str, what: str) -> None:
    scenario = two_clusters()
    first, second = submit_on(scenario, dead, "a"), submit_on(scenario, alive, "b")
    make_unreadable(scenario, dead, what)

    outcome = scenario.run_scheduling_cycle()

    held = scenario.job(first.job_id)
    assert outcome.admitted == (f"{second.job_id}-a1",)
    assert (held.state, held.current_attempt) == (JobState.PENDING, 0)
    assert held.reason == (
        f"Cluster {dead} cannot be read, so its free nodes are unknown. The job waits until it answers."
    )
    assert replay(newest_record(scenario, held.job_id), scenario.policy).reason == held.reason


def test_job_is_admitted_once_its_cluster_answers_again() -> None:
    scenario = two_clusters()
    job = submit_on(scenario, BURST, "a")
    make_unreadable(scenario, BURST)
    scenario.run_scheduling_cycle()
    commits = len(scenario.world.ledger.commits)
    scenario.run_scheduling_cycle()
    repeated = len(scenario.world.ledger.commits) - commits
    scenario.world.cluster.unreadable_lists.clear()

    outcome = scenario.run_scheduling_cycle()

    assert repeated == 0  # the reason is recorded once
    assert outcome.admitted == (f"{job.job_id}-a1",)


@pytest.mark.parametrize("error", [Unreachable("no answer"), NotAllowed("403")])
def test_jobs_wait_only_on_the_cluster_of_a_failing_hyperpod(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = two_clusters()
    home, burst = submit_on(scenario, CLUSTER, "a"), submit_on(scenario, BURST, "b")

    def fail() -> None:
        raise error

    monkeypatch.setattr(scenario.world.provider, "nodes", fail)

    outcome = scenario.run_scheduling_cycle()

    assert outcome.admitted == (f"{burst.job_id}-a1",)
    assert "cannot be read" in scenario.job(home.job_id).reason


def test_unreadable_cluster_is_reported_as_failing_source() -> None:
    scenario = two_clusters()
    submit_on(scenario, CLUSTER, "a")
    make_unreadable(scenario, BURST)

    scenario.run_scheduling_cycle()

    reports = heartbeats.load_source_reports(scenario.world.ledger)
    assert "no answer" in reports[f"kubernetes-list/{BURST}"].error
    assert reports["scheduling-cycle"].error == ""


def shared_fleet(red: int, blue: int, **fleet: Any) -> JobScenario:
    scenario = two_clusters()
    teams = (a_team("red", red, members=MEMBERS), a_team("blue", blue, members=MEMBERS))
    set_up_teams(scenario, *teams, FleetQuotas(priority_classes={"low": 1, "high": 10}, **fleet))
    return scenario


def test_job_on_an_unreadable_cluster_is_not_preempted() -> None:
    scenario = shared_fleet(red=16, blue=0)
    low = scenario.running(team="red", priority_class="low")
    high = submit_on(scenario, BURST, "high", team="red", priority_class="high")
    make_unreadable(scenario, CLUSTER)

    scenario.run_scheduling_cycle()

    assert scenario.job(low.job_id).stop_of(1) is None
    assert scenario.job(high.job_id).state is JobState.PENDING
    assert replay(newest_record(scenario, high.job_id), scenario.policy).action == "NO_QUOTA"

    scenario.world.cluster.unreadable_lists.clear()
    scenario.run_scheduling_cycle()
    assert scenario.job(low.job_id).stop_of(1) is not None


def test_interrupted_job_keeps_its_quota_while_its_cluster_is_unreadable() -> None:
    scenario = shared_fleet(red=16, blue=0)
    old = scenario.running(team="red")
    scenario.world.clock.advance(5)
    young = submit_on(scenario, BURST, "young", team="red")
    scenario.world.cluster.fail_pods(old.job_id, 1)
    scenario.settle(old.job_id)
    assert scenario.job(old.job_id).state is JobState.PENDING
    make_unreadable(scenario, CLUSTER)

    outcome = scenario.run_scheduling_cycle()

    assert outcome.admitted == ()
    assert scenario.job(young.job_id).state is JobState.PENDING
    scenario.world.cluster.unreadable_lists.clear()
    scenario.world.clock.advance(3600)
    assert scenario.run_scheduling_cycle().admitted == (f"{old.job_id}-a2",)
