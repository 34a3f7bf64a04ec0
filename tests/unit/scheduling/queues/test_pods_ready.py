"""`waitForPodsReady.blockAdmission`: no workload is admitted before the pods of all admitted workloads are ready.

Source: Kueue's `pkg/scheduler/scheduler.go`, `waitForPodsReadyIfNeeded`, and `pkg/cache/scheduler/cache.go`.
"""

from typing import Any

import pytest

from evenkeel.domain.queue_simulation.plan_events import Events
from evenkeel.domain.queue_simulation.profiles import Profile
from evenkeel.domain.queue_simulation.replay import Replay
from evenkeel.domain.queue_simulation.setup import QuotaDocuments

Json = dict[str, Any]
BLOCKS: Json = {"apiVersion": "config.kueue.x-k8s.io/v1beta2", "waitForPodsReady": {"blockAdmission": True}}


def a_replay(configuration: Json | None = None, *jobs: Json) -> Replay:
    declared = QuotaDocuments(Profile.KUEUE)
    declared.configure(BLOCKS if configuration is None else configuration, "config")
    quota = {"queues": [{"name": name, "groups": [{"h100": {"gpu": 8}}]} for name in ("a", "b")]}
    declared.add(quota, "quota")
    replay = Replay(declared)
    for job in jobs:
        replay.submit(job, "jobs")
    return replay


def a_job(name: str, queue: str, gpus: int = 2, at: int = 0, **more: Any) -> Json:
    return {"name": name, "queue": queue, "requests": {"gpu": gpus}, "createdAt": at, **more}


def results_by_cycle(replay: Replay) -> list[list[tuple[str, str]]]:
    return [[(decision.job, decision.result) for decision in cycle.decisions] for cycle in replay.cycles]


def run(replay: Replay, *events: Json) -> list[list[tuple[str, str]]]:
    replay.run(Events.model_validate({"events": events}))
    return results_by_cycle(replay)


def test_next_workload_waits_for_pods_of_the_admitted_one() -> None:
    replay = a_replay(None, a_job("first", "a"), a_job("second", "b", at=1))

    cycles = run(replay)

    assert cycles[0] == [("first", "Admitted"), ("second", "Blocked")]
    assert cycles[1:] == [[("second", "Blocked")]]
    decision = replay.cycles[0].decisions[1]
    assert (decision.pending, decision.requeue) == ("WaitingForPodsReady", "sticky")


def test_blocked_workload_stays_ahead_of_later_higher_priority() -> None:
    replay = a_replay(None, a_job("first", "a"), a_job("second", "b", at=1))

    cycles = run(
        replay,
        {"type": "submit", "at": 10, "job": a_job("urgent", "b", at=10, priority=100)},
        {"type": "podsReady", "at": 20, "job": "first"},
        {"type": "podsReady", "at": 30, "job": "second"},
    )

    admitted = [job for cycle in cycles for job, result in cycle if result == "Admitted"]
    assert admitted == ["first", "second", "urgent"]


def test_wait_for_pods_blocks_all_later_heads_of_the_cycle() -> None:
    replay = a_replay(None, a_job("runs", "a", admitted={"flavors": {"gpu": "h100"}, "ready": False}))

    cycles = run(replay, {"type": "submit", "at": 1, "jobs": [a_job("small", "a"), a_job("too-large", "b", 9, at=1)]})

    assert cycles[0] == [("small", "Blocked"), ("too-large", "Blocked")]


def test_workload_that_cannot_fit_is_not_blocked_by_unready_pods() -> None:
    replay = a_replay(None, a_job("runs", "a", 8, admitted={"flavors": {"gpu": "h100"}, "ready": False}))

    cycles = run(replay, {"type": "submit", "at": 1, "job": a_job("next", "a")})

    assert cycles == [[("next", "NoCandidates")]]


@pytest.mark.parametrize("event", ["finish", "delete"])
def test_finished_workload_blocks_no_admission(event: str) -> None:
    replay = a_replay(None, a_job("first", "a"), a_job("second", "b", at=1))

    cycles = run(replay, {"type": event, "at": 5, "job": "first"})

    assert cycles[-1] == [("second", "Admitted")]


def test_replay_reads_the_pods_ready_condition() -> None:
    def workload(ready: str) -> Json:
        return {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "Workload",
            "metadata": {"name": "runs"},
            "spec": {
                "queueName": "a",
                "podSets": [
                    {
                        "name": "main",
                        "count": 1,
                        "template": {"spec": {"containers": [{"name": "c", "resources": {"requests": {"gpu": "2"}}}]}},
                    }
                ],
            },
            "status": {
                "admission": {
                    "clusterQueue": "a",
                    "podSetAssignments": [{"name": "main", "flavors": {"gpu": "h100"}, "count": 1}],
                },
                "conditions": [{"type": "QuotaReserved", "status": "True"}, {"type": "PodsReady", "status": ready}],
            },
        }

    results = []
    for ready in ("True", "False"):
        replay = a_replay(None, workload(ready))
        results.append(run(replay, {"type": "submit", "at": 1, "job": a_job("next", "b")})[0])

    assert results == [[("next", "Admitted")], [("next", "Blocked")]]


@pytest.mark.parametrize(
    ("configuration", "blocks"),
    [
        ({}, False),
        ({"waitForPodsReady": {"timeout": "5m"}}, False),
        ({"waitForPodsReady": {"blockAdmission": True}}, True),
        ({"apiVersion": "config.kueue.x-k8s.io/v1beta1", "waitForPodsReady": {"blockAdmission": True}}, False),
        ({"apiVersion": "config.kueue.x-k8s.io/v1beta1", "waitForPodsReady": {"enable": True}}, True),
        (
            {
                "apiVersion": "config.kueue.x-k8s.io/v1beta1",
                "waitForPodsReady": {"enable": True, "blockAdmission": False},
            },
            False,
        ),
    ],
)
def test_omitted_pods_ready_settings_use_kueue_defaults(configuration: Json, blocks: bool) -> None:
    replay = a_replay(configuration, a_job("first", "a"), a_job("second", "b", at=1))

    cycles = run(replay)

    assert (cycles[0][1][1] == "Blocked") is blocks
