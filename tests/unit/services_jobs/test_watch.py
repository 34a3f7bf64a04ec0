from collections.abc import Iterator
from typing import Any

import pytest

from evenkeel.domain.health.health_policy import WatchPolicy
from evenkeel.domain.nodes import KubernetesNode
from evenkeel.domain.policy import Policy
from evenkeel.domain.waiting import ConditionKind, Wait, WaitCondition
from evenkeel.ports import NotAllowed, Unreachable, WorkflowName
from evenkeel.services.storage import heartbeats, locks
from evenkeel.services.tables import fleet_rows, subject_rows
from evenkeel.services.waits import evaluate_waits
from tests.fakes.cluster import a_node
from tests.fakes.messages import WaitAnswerRequest
from tests.unit.services_jobs.job_scenario import JobScenario
from tests.unit.services_jobs.test_cycle_calls import require_concurrent_first_calls

LOCAL = Policy(watch=WatchPolicy(watch_seconds=20, tick_seconds=2, not_ready_seconds=5))


def a_wait(scenario: JobScenario, job_id: str, kind: ConditionKind = ConditionKind.ATTEMPT_RUNNING) -> None:
    now = scenario.world.clock.now()
    wait = Wait(
        subject=job_id,
        name="attempt-1-running",
        generation=1,
        token="token",
        opened_at=now,
        deadline_at=now.replace(hour=23),
        condition=WaitCondition(kind=kind, facts={"attempt": 1}),
    )
    scenario.store_row(subject_rows.wait_row(wait, 0))


def answered_outcomes(requests: list[WaitAnswerRequest]) -> set[tuple[str, str, str]]:
    return {(request.subject, request.name, request.answer["outcome"]) for request in requests}


def test_cluster_change_answers_a_due_wait() -> None:
    scenario = JobScenario(policy=LOCAL)
    job = scenario.started()
    scenario.launch(job.job_id)
    a_wait(scenario, job.job_id)
    scenario.world.cluster.run_pods(job.job_id, 1)

    result = scenario.watch()

    assert (result.outcome, result.failed_snapshots) == ("WATCHED", 0)
    assert answered_outcomes(scenario.world.wait_answers.requests) == {(job.job_id, "attempt-1-running", "RUNNING")}


class CountedNodes(tuple[KubernetesNode, ...]):
    """A list of nodes that counts its iterations."""

    reads = 0

    def __iter__(self) -> Iterator[KubernetesNode]:
        CountedNodes.reads += 1
        return super().__iter__()


def reads_of_node_list(waits: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how often one watch round iterates over the list of nodes, with this number of open waits."""
    scenario = JobScenario(policy=LOCAL, size=waits)
    for _ in range(waits):
        a_wait(scenario, scenario.running(nodes=1).job_id, ConditionKind.ATTEMPT_ENDED)
    listed = scenario.world.cluster.nodes("research-eks")
    monkeypatch.setattr(scenario.world.cluster, "nodes", lambda _cluster: CountedNodes(listed))
    CountedNodes.reads = 0
    result = evaluate_waits.run(scenario.context())
    assert (result.open, result.failed) == (waits, ())
    return CountedNodes.reads


def test_watch_round_indexes_nodes_once_for_all_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reads_of_node_list(2, monkeypatch) == reads_of_node_list(6, monkeypatch) == 1


def test_missing_answer_is_requested_again_after_a_pause() -> None:
    scenario = JobScenario(policy=LOCAL)
    job = scenario.started()
    scenario.launch(job.job_id)
    a_wait(scenario, job.job_id)
    scenario.world.cluster.run_pods(job.job_id, 1)

    outcome = scenario.watch()

    assert outcome.snapshots > 8
    assert outcome.answered == len(scenario.world.wait_answers.requests) == 2  # each request lasts 10 s


def test_watch_notices_a_cancelled_job_without_cluster_change() -> None:
    scenario = JobScenario(policy=LOCAL)
    job = scenario.running()
    a_wait(scenario, job.job_id, ConditionKind.ATTEMPT_ENDED)
    scenario.cancel(job.job_id)
    scenario.world.cluster.changes.clear()

    scenario.watch()

    assert answered_outcomes(scenario.world.wait_answers.requests) == {
        (job.job_id, "attempt-1-running", "STOP_REQUESTED")
    }


def test_simultaneous_changes_need_one_snapshot() -> None:
    scenario = JobScenario(policy=LOCAL.replace(watch=WatchPolicy(watch_seconds=1, tick_seconds=60)))
    scenario.world.cluster.changes.extend(["pod"] * 40)

    assert scenario.watch().snapshots <= 2


def test_not_ready_node_opens_an_incident_without_further_changes() -> None:
    scenario = JobScenario(policy=LOCAL)
    scenario.world.cluster.lose_node(scenario.world.cluster.nodes("research-eks")[0].name)
    scenario.world.cluster.changes.clear()

    outcome = scenario.watch()

    assert outcome.facts == 1
    assert len(scenario.world.workflows.names(WorkflowName.RECOVER_NODE)) == 1


def test_one_watcher_runs_at_a_time() -> None:
    scenario = JobScenario(policy=LOCAL)
    now = scenario.world.clock.now()
    assert locks.take_lock(scenario.world.ledger, "watch", "op-other", seconds=15, now=now)

    assert scenario.watch().outcome == "LOCKED"


def test_lock_of_a_dead_watcher_expires() -> None:
    scenario = JobScenario(policy=LOCAL)
    assert locks.take_lock(scenario.world.ledger, "watch", "op-dead", seconds=15, now=scenario.world.clock.now())
    scenario.world.clock.advance(15)

    assert scenario.watch().outcome == "WATCHED"


def test_watcher_without_its_lock_ends() -> None:
    scenario = JobScenario(policy=LOCAL)
    cluster_watch = scenario.world.cluster.watch

    def watch_after_lock_was_taken(cluster: str, on_change: Any, **given: Any) -> None:
        row = scenario.world.ledger.get(fleet_rows.lock_key("watch"))
        assert row
        scenario.store_row(row)  # another version: a concurrent write
        cluster_watch(cluster, on_change, **given)

    scenario.world.cluster.watch = watch_after_lock_was_taken  # type: ignore[method-assign]

    scenario.watch()

    assert (scenario.world.clock.now() - JobScenario().world.clock.now()).total_seconds() < 20


def test_watcher_releases_its_lock() -> None:
    scenario = JobScenario(policy=LOCAL)

    assert [scenario.watch().outcome, scenario.watch().outcome] == ["WATCHED", "WATCHED"]


def test_broken_watch_is_resumed() -> None:
    scenario = JobScenario(policy=LOCAL)
    cluster_watch = scenario.world.cluster.watch
    broken = iter([True, True])

    def watch(cluster: str, on_change: Any, **given: Any) -> None:
        if next(broken, False):
            raise Unreachable("the connection was reset")
        cluster_watch(cluster, on_change, **given)

    scenario.world.cluster.watch = watch  # type: ignore[method-assign]

    assert scenario.watch().snapshots > 1
    assert scenario.world.telemetry.totals["WatchesLost"] == 2


def test_failed_snapshot_does_not_end_the_watch() -> None:
    scenario = JobScenario(policy=LOCAL)
    job = scenario.started()
    scenario.launch(job.job_id)
    a_wait(scenario, job.job_id)
    nodes = scenario.world.cluster.nodes
    away = iter([True])

    def snapshot_that_fails_once(cluster: str) -> Any:
        if next(away, False):
            raise Unreachable("no answer")
        return nodes(cluster)

    scenario.world.cluster.nodes = snapshot_that_fails_once  # type: ignore[method-assign]
    scenario.world.cluster.run_pods(job.job_id, 1)

    scenario.watch()

    assert answered_outcomes(scenario.world.wait_answers.requests) == {(job.job_id, "attempt-1-running", "RUNNING")}


def test_watch_writes_a_heartbeat() -> None:
    scenario = JobScenario(policy=LOCAL)

    scenario.watch()

    assert scenario.world.ledger.get(fleet_rows.heartbeat_key("watch_cluster"))
    assert scenario.world.telemetry.totals["Heartbeat"] == 1


# ---------------------------------------------------------------- what the heartbeat says


def source_errors(scenario: JobScenario) -> dict[str, str]:
    """Return the last error of each recorded source; empty if it answered."""
    return {name: report.error for name, report in heartbeats.load_source_reports(scenario.world.ledger).items()}


def test_watch_with_a_working_cluster_is_reported_as_current() -> None:
    scenario = JobScenario(policy=LOCAL)

    scenario.watch()

    assert source_errors(scenario) == {"kubernetes-watch/research-eks": "", "waits": ""}


def test_watch_broken_for_one_kind_is_reported() -> None:
    scenario = JobScenario(policy=LOCAL)
    scenario.world.cluster.watch_errors["pod"] = "Unreachable: no answer"

    scenario.watch()

    assert source_errors(scenario)["kubernetes-watch/research-eks"] == "pod: Unreachable: no answer"


@pytest.mark.parametrize("error", [Unreachable("no answer"), NotAllowed("403 Forbidden")])
def test_watch_that_cannot_be_opened_is_reported(error: Exception) -> None:
    scenario = JobScenario(policy=LOCAL)

    def refuse(*_: Any, **__: Any) -> None:
        raise error

    scenario.world.cluster.watch = refuse  # type: ignore[method-assign]

    assert scenario.watch().outcome == "WATCHED"
    assert str(error) in source_errors(scenario)["kubernetes-watch/research-eks"]


def test_wait_that_cannot_be_evaluated_is_reported() -> None:
    scenario = JobScenario(policy=LOCAL)
    job = scenario.started()
    scenario.launch(job.job_id)
    a_wait(scenario, job.job_id)
    scenario.world.cluster.unreadable_lists["research-eks"] = {"*"}

    scenario.watch()

    assert "1 of 1 wait could not be evaluated" in source_errors(scenario)["waits"]


def test_watch_finds_faults_of_a_cluster_while_another_is_unreadable() -> None:
    scenario = JobScenario(policy=LOCAL)
    lost = a_node(7, cluster="burst-eks", name="burst-7", is_ready=False, not_ready_since=scenario.world.clock.now())
    scenario.world.cluster.add_node(lost)
    scenario.world.cluster.unreadable_lists["research-eks"] = {"*"}

    outcome = scenario.watch("research-eks", "burst-eks")

    assert (outcome.facts, outcome.failed_snapshots > 0) == (1, True)


def test_unreachable_cluster_is_called_once_for_all_waits() -> None:
    scenario = JobScenario(policy=LOCAL)
    for _ in range(3):
        job = scenario.started(nodes=1)
        scenario.launch(job.job_id)
        a_wait(scenario, job.job_id)
    clusters = []

    def refuse(cluster: str) -> Any:
        clusters.append(cluster)
        raise Unreachable("no answer")

    scenario.world.cluster.nodes = refuse  # type: ignore[method-assign]
    scenario.world.cluster.workloads = refuse  # type: ignore[method-assign]
    result = evaluate_waits.run(scenario.world.context())

    assert (len(result.failed), clusters) == (3, ["research-eks"])


def test_watch_round_lists_nodes_and_workloads_concurrently(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = JobScenario(size=3, policy=LOCAL)
    for _ in range(2):
        a_wait(scenario, scenario.running(nodes=1).job_id, ConditionKind.ATTEMPT_ENDED)
    require_concurrent_first_calls(
        monkeypatch, (scenario.world.cluster, "nodes"), (scenario.world.cluster, "workloads")
    )

    watched = scenario.watch()

    assert watched.snapshots > 1
    assert watched.failed_snapshots == 0


def test_watch_tick_lists_nodes_while_rows_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = JobScenario(size=3, policy=LOCAL)
    for _ in range(2):
        a_wait(scenario, scenario.running(nodes=1).job_id, ConditionKind.ATTEMPT_ENDED)
    require_concurrent_first_calls(monkeypatch, (scenario.world.cluster, "nodes"), (scenario.world.ledger, "batch_get"))

    assert scenario.watch().failed_snapshots == 0


def test_node_that_joins_after_its_list_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = JobScenario(size=3, policy=LOCAL)
    for _ in range(2):
        a_wait(scenario, scenario.running(nodes=1).job_id, ConditionKind.ATTEMPT_ENDED)
    cluster, nodes = scenario.world.cluster, scenario.world.cluster.nodes
    lists: list[int] = []

    def list_nodes(name: str) -> tuple[KubernetesNode, ...]:
        lists.append(len(lists))
        return nodes(name) if lists[-1] else ()  # every node joins after the first list

    monkeypatch.setattr(cluster, "nodes", list_nodes)

    result = evaluate_waits.run(scenario.world.context(), nodes_of=["research-eks"])

    assert (result.answered, result.failed, len(lists)) == ((), (), 2)
