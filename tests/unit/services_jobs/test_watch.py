from typing import Any

import pytest

from evenkeel.domain.health.policy import WatchPolicy
from evenkeel.domain.policy import Policy
from evenkeel.domain.waiting import Condition, ConditionKind, Wait
from evenkeel.ports import Machine, NotAllowed, Unreachable
from evenkeel.services.storage import heartbeats, locks, rows
from evenkeel.services.waits import evaluate_waits
from tests.fakes.cluster import a_node
from tests.fakes.messages import WaitRequest
from tests.unit.services_jobs.story import Story

LOCAL = Policy(watch=WatchPolicy(watch_seconds=20, tick_seconds=2, not_ready_seconds=5))


def a_wait(story: Story, job_id: str, kind: ConditionKind = ConditionKind.ATTEMPT_RUNNING) -> None:
    now = story.world.clock.now()
    wait = Wait(
        subject=job_id,
        name="attempt-1-running",
        generation=1,
        token="token",
        opened_at=now,
        deadline_at=now.replace(hour=23),
        condition=Condition(kind=kind, facts={"attempt": 1}),
    )
    story.put(rows.wait_row(wait, 0))


def outcomes(requests: list[WaitRequest]) -> set[tuple[str, str, str]]:
    return {(each.subject, each.name, each.answer["outcome"]) for each in requests}


def test_a_change_has_the_wait_answered() -> None:
    story = Story(policy=LOCAL)
    job = story.started()
    story.launch(job.job_id)
    a_wait(story, job.job_id)
    story.world.cluster.run_pods(job.job_id, 1)

    outcome = story.watch()

    assert (outcome.outcome, outcome.failed_rounds) == ("WATCHED", 0)
    assert outcomes(story.world.wait_answers.requests) == {(job.job_id, "attempt-1-running", "RUNNING")}


def test_an_answer_is_asked_for_once_and_again_only_when_it_stays_out() -> None:
    story = Story(policy=LOCAL)
    job = story.started()
    story.launch(job.job_id)
    a_wait(story, job.job_id)
    story.world.cluster.run_pods(job.job_id, 1)

    outcome = story.watch()

    assert outcome.rounds > 8
    assert outcome.answered == len(story.world.wait_answers.requests) == 2  # 20 s, and one ask lasts 10 s


def test_a_cancel_is_seen_by_time_alone() -> None:
    story = Story(policy=LOCAL)
    job = story.running()
    a_wait(story, job.job_id, ConditionKind.ATTEMPT_ENDED)
    story.cancel(job.job_id)
    story.world.cluster.changes.clear()

    story.watch()

    assert outcomes(story.world.wait_answers.requests) == {(job.job_id, "attempt-1-running", "STOP_REQUESTED")}


def test_changes_that_come_together_are_one_look() -> None:
    story = Story(policy=LOCAL.but(watch=WatchPolicy(watch_seconds=1, tick_seconds=60)))
    story.world.cluster.changes.extend(["pod"] * 40)

    assert story.watch().rounds <= 2


def test_a_node_that_stays_away_opens_an_incident_though_nothing_changes() -> None:
    story = Story(policy=LOCAL)
    story.world.cluster.lose_node(story.world.cluster.nodes("research-eks")[0].name)
    story.world.cluster.changes.clear()

    outcome = story.watch()

    assert outcome.facts == 1
    assert len(story.world.workflows.names(Machine.RECOVER_NODE)) == 1


def test_only_one_watches() -> None:
    story = Story(policy=LOCAL)
    now = story.world.clock.now()
    assert locks.take(story.world.ledger, "watch", "op-other", seconds=15, now=now)

    assert story.watch().outcome == "HELD_BY_ANOTHER"


def test_the_lock_of_a_watcher_that_died_runs_out() -> None:
    story = Story(policy=LOCAL)
    assert locks.take(story.world.ledger, "watch", "op-dead", seconds=15, now=story.world.clock.now())
    story.world.clock.advance(15)

    assert story.watch().outcome == "WATCHED"


def test_a_watcher_whose_lock_was_taken_ends() -> None:
    story = Story(policy=LOCAL)
    cluster_watch = story.world.cluster.watch

    def stolen(cluster: str, on_change: Any, **given: Any) -> None:
        row = story.world.ledger.get(rows.lock_key("watch"))
        assert row
        story.put(row)  # another version: somebody else wrote it
        cluster_watch(cluster, on_change, **given)

    story.world.cluster.watch = stolen  # type: ignore[method-assign]

    story.watch()

    assert (story.world.clock.now() - Story().world.clock.now()).total_seconds() < 20


def test_the_lock_is_free_again_afterwards() -> None:
    story = Story(policy=LOCAL)

    assert [story.watch().outcome, story.watch().outcome] == ["WATCHED", "WATCHED"]


def test_a_watch_that_breaks_is_taken_up_again() -> None:
    story = Story(policy=LOCAL)
    cluster_watch = story.world.cluster.watch
    broken = iter([True, True])

    def watch(cluster: str, on_change: Any, **given: Any) -> None:
        if next(broken, False):
            raise Unreachable("the connection was reset")
        cluster_watch(cluster, on_change, **given)

    story.world.cluster.watch = watch  # type: ignore[method-assign]

    assert story.watch().rounds > 1
    assert story.world.telemetry.totals["WatchesLost"] == 2


def test_a_look_that_fails_does_not_end_the_watch() -> None:
    story = Story(policy=LOCAL)
    job = story.started()
    story.launch(job.job_id)
    a_wait(story, job.job_id)
    nodes = story.world.cluster.nodes
    away = iter([True])

    def flaky(cluster: str) -> Any:
        if next(away, False):
            raise Unreachable("no answer")
        return nodes(cluster)

    story.world.cluster.nodes = flaky  # type: ignore[method-assign]
    story.world.cluster.run_pods(job.job_id, 1)

    story.watch()

    assert outcomes(story.world.wait_answers.requests) == {(job.job_id, "attempt-1-running", "RUNNING")}


def test_the_watch_leaves_a_heartbeat() -> None:
    story = Story(policy=LOCAL)

    story.watch()

    assert story.world.ledger.get(rows.heartbeat_key("watch_cluster"))
    assert story.world.telemetry.totals["Heartbeat"] == 1


# ---------------------------------------------------------------- what the heartbeat says


def reports(story: Story) -> dict[str, str]:
    """Return the last error of each source that has reported; empty where it answered."""
    return {name: report.error for name, report in heartbeats.load(story.world.ledger).items()}


def test_watch_that_answers_is_reported() -> None:
    story = Story(policy=LOCAL)

    story.watch()

    assert reports(story) == {"kubernetes-watch/research-eks": "", "waits": ""}


def test_watch_broken_for_one_kind_is_reported() -> None:
    story = Story(policy=LOCAL)
    story.world.cluster.watch_errors["pod"] = "Unreachable: no answer"

    story.watch()

    assert reports(story)["kubernetes-watch/research-eks"] == "pod: Unreachable: no answer"


@pytest.mark.parametrize("error", [Unreachable("no answer"), NotAllowed("403 Forbidden")])
def test_watch_that_cannot_be_opened_is_reported(error: Exception) -> None:
    story = Story(policy=LOCAL)

    def refuse(*_: Any, **__: Any) -> None:
        raise error

    story.world.cluster.watch = refuse  # type: ignore[method-assign]

    assert story.watch().outcome == "WATCHED"
    assert str(error) in reports(story)["kubernetes-watch/research-eks"]


def test_wait_that_cannot_be_judged_is_reported() -> None:
    story = Story(policy=LOCAL)
    job = story.started()
    story.launch(job.job_id)
    a_wait(story, job.job_id)
    story.world.cluster.blind["research-eks"] = {"*"}

    story.watch()

    assert "1 of 1 waits could not be judged" in reports(story)["waits"]


def test_cluster_without_answer_does_not_hide_the_other() -> None:
    story = Story(policy=LOCAL)
    lost = a_node(7, cluster="burst-eks", name="burst-7", is_ready=False, not_ready_since=story.world.clock.now())
    story.world.cluster.add_node(lost)
    story.world.cluster.blind["research-eks"] = {"*"}

    outcome = story.watch("research-eks", "burst-eks")

    assert (outcome.facts, outcome.failed_rounds > 0) == (1, True)


def test_unreachable_cluster_is_asked_once_for_all_waits() -> None:
    story = Story(policy=LOCAL)
    for _ in range(3):
        job = story.started(nodes=1)
        story.launch(job.job_id)
        a_wait(story, job.job_id)
    asked = []

    def refuse(cluster: str) -> Any:
        asked.append(cluster)
        raise Unreachable("no answer")

    story.world.cluster.nodes = refuse  # type: ignore[method-assign]
    story.world.cluster.workloads = refuse  # type: ignore[method-assign]
    found = evaluate_waits.run(
        ledger=story.world.ledger,
        cluster=story.world.cluster,
        provider=story.world.provider,
        wait_answers=story.world.wait_answers,
        telemetry=story.world.telemetry,
        policy=story.policy,
        now=story.world.clock.now(),
    )

    assert (len(found.failed), asked) == (3, ["research-eks"])
