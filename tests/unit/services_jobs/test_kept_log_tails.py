"""The end of each rank's log is kept with its attempt after its pod is deleted."""

from dataclasses import replace
from typing import Any

import pytest

from evenkeel.domain.kept_logs import KEPT_BYTES, KEPT_RANKS, KeptLog
from evenkeel.ports import Delete, LogTail, NotAllowed, NotFound, Put
from evenkeel.services.queries.disclosure import Reader
from evenkeel.services.queries.jobs import read_jobs
from evenkeel.services.recovery import drain_node, plan_recovery
from evenkeel.services.tables import job_rows, rows
from tests.fakes.cluster import CLUSTER, LOG_TIME
from tests.unit.services_jobs.job_scenario import JobScenario
from tests.unit.services_recovery.recovery_scenario import RecoveryScenario


def kept_lines(scenario: JobScenario, job_id: str, rank: int = 0, attempt: int = 1) -> KeptLog | None:
    row = scenario.world.ledger.get(job_rows.kept_log_key(job_id, attempt, rank))
    return rows.decode(row, KeptLog) if row else None


def write_log(scenario: JobScenario, job_id: str, rank: int, text: str, attempt: int = 1) -> None:
    scenario.world.cluster.text[f"{job_id}-a{attempt}-{rank}"] = text


def shown_log(scenario: JobScenario, job_id: str, rank: int | None = 0, tail: int = 200) -> dict[str, Any]:
    return read_jobs.job_logs(job_id, Reader(), scenario.context(), attempt=1, rank=rank, tail=tail)


def test_logs_of_stopped_attempt_are_kept_before_pods_are_deleted() -> None:
    scenario = JobScenario()
    job = scenario.running(nodes=2)
    for rank in (0, 1):
        write_log(scenario, job.job_id, rank, f"step 1\nrank {rank} says goodbye\n")
    scenario.cancel(job.job_id)

    scenario.stop(job.job_id)
    scenario.settle(job.job_id)

    assert not scenario.world.cluster.workloads(CLUSTER)
    for rank in (0, 1):
        document = shown_log(scenario, job.job_id, rank)
        assert document["text"] == f"step 1\nrank {rank} says goodbye\n"
        assert document["keptAt"]
        assert "The rest is on hyperpod-i-" in document["note"]


def a_job_with_a_log_of_rank_1_only(scenario: JobScenario) -> str:
    """Return a failed job: Kubernetes deleted the pod of rank 0 before its log was kept."""
    job_id = scenario.running(nodes=2).job_id
    write_log(scenario, job_id, 1, "rank 1 failed\n")
    scenario.cancel(job_id)
    scenario.stop(job_id)
    scenario.settle(job_id)
    return job_id


def test_log_without_a_rank_is_the_first_that_was_kept() -> None:
    scenario = JobScenario()
    job_id = a_job_with_a_log_of_rank_1_only(scenario)

    document = shown_log(scenario, job_id, rank=None)

    assert (document["rank"], document["text"]) == (1, "rank 1 failed\n")
    assert document["note"].startswith("Rank 0 left no log; this is rank 1. ")


def test_missing_log_names_a_rank_whose_log_was_kept() -> None:
    scenario = JobScenario()
    job_id = a_job_with_a_log_of_rank_1_only(scenario)
    row = scenario.world.ledger.get(job_rows.kept_log_key(job_id, 1, 0))
    assert row
    scenario.world.ledger.commit(Delete(row.key, row.version))

    with pytest.raises(NotFound, match=f"evenkeel jobs logs {job_id} --attempt 1 --rank 1"):
        shown_log(scenario, job_id, rank=0)


def test_kept_lines_have_their_times() -> None:
    scenario = JobScenario()
    job = scenario.running()
    write_log(scenario, job.job_id, 0, "step 1\n")
    live = read_jobs.job_logs(job.job_id, Reader(), scenario.context(), attempt=1, rank=0, tail=9, timestamps=True)
    scenario.cancel(job.job_id)
    scenario.stop(job.job_id)
    scenario.settle(job.job_id)

    kept_log = read_jobs.job_logs(job.job_id, Reader(), scenario.context(), attempt=1, rank=0, tail=9, timestamps=True)

    assert (live["text"], live["note"]) == (f"{LOG_TIME} step 1", None)
    assert kept_log["text"] == "2026-11-03T10:00:00.000Z step 1\n"
    assert "unknown" not in kept_log["note"]
    assert shown_log(scenario, job.job_id)["text"] == "step 1\n"


def test_answer_says_that_times_of_kept_lines_are_unknown() -> None:
    scenario = JobScenario()
    job = scenario.running()
    write_log(scenario, job.job_id, 0, "step 1\n")
    scenario.cancel(job.job_id)
    scenario.stop(job.job_id)
    scenario.settle(job.job_id)
    row = scenario.world.ledger.get(job_rows.kept_log_key(job.job_id, 1, 0))
    assert row
    without_times = {name: value for name, value in row.doc.items() if name != "times"}
    scenario.world.ledger.commit(Put(replace(row, doc=without_times)))

    kept_log = read_jobs.job_logs(job.job_id, Reader(), scenario.context(), attempt=1, rank=0, tail=9, timestamps=True)

    assert kept_log["text"] == "step 1\n"
    assert kept_log["note"].endswith(" The times of these lines are unknown.")


def test_logs_of_a_settled_attempt_outlive_their_node() -> None:
    scenario = JobScenario()
    job = scenario.running(nodes=1)
    write_log(scenario, job.job_id, 0, "CUDA error: the cause\n")
    scenario.world.cluster.fail_pods(job.job_id, 1)
    scenario.settle(job.job_id)

    scenario.world.cluster.remove_node(scenario.attempt(job.job_id).node_names[0])

    assert shown_log(scenario, job.job_id)["text"] == "CUDA error: the cause\n"


def test_logs_are_kept_before_a_recovery_deletes_the_pods() -> None:
    recovery = RecoveryScenario()
    scenario = recovery.scenario
    write_log(scenario, recovery.job_id, 0, "last words\n")
    recovery.report_fault()

    for service in (plan_recovery, drain_node):
        recovery.run_state("", service)

    log = kept_lines(scenario, recovery.job_id)
    assert log
    assert log.text == "last words\n"


def test_answer_says_why_a_log_cannot_be_read() -> None:
    scenario = JobScenario()
    job = scenario.running(nodes=1)
    name = scenario.attempt(job.job_id).node_names[0]
    scenario.world.cluster.lose_node(name)
    scenario.cancel(job.job_id)
    scenario.stop(job.job_id)
    scenario.world.cluster.remove_node(name)
    scenario.settle(job.job_id)

    with pytest.raises(NotFound, match="no answer: its node is out of reach") as caught:
        shown_log(scenario, job.job_id)

    assert f"The rest is on {name}" in str(caught.value)


def test_attempt_without_pods_or_kept_lines_says_how_it_ended() -> None:
    scenario = JobScenario()
    job = scenario.running(nodes=1)
    scenario.world.cluster.jobs[CLUSTER].clear()
    scenario.settle(job.job_id)

    with pytest.raises(NotFound, match="has no pod and no kept log"):
        shown_log(scenario, job.job_id)


def test_unreadable_log_does_not_replace_kept_lines() -> None:
    scenario = JobScenario()
    job = scenario.running(nodes=1)
    write_log(scenario, job.job_id, 0, "before\n")
    scenario.cancel(job.job_id)
    scenario.stop(job.job_id)
    scenario.world.cluster.log_tails = lambda *_: {0: LogTail("p", "n", why="no answer")}  # type: ignore[method-assign]

    scenario.stop(job.job_id)

    log = kept_lines(scenario, job.job_id)
    assert log
    assert (log.text, log.why) == ("before\n", "")


def test_refused_log_read_does_not_prevent_a_stop() -> None:
    scenario = JobScenario()
    job = scenario.running(nodes=1)
    scenario.cancel(job.job_id)

    def refuse(*_: Any) -> Any:
        raise NotAllowed("GET pods: 403 Forbidden")

    scenario.world.cluster.log_tails = refuse  # type: ignore[method-assign, assignment]

    scenario.stop(job.job_id)

    assert not scenario.world.cluster.workloads(CLUSTER)


def test_kept_lines_are_masked_and_bounded() -> None:
    scenario = JobScenario()
    job = scenario.running(nodes=1, env={"WANDB_API_KEY": "of-no-known-form"})
    write_log(scenario, job.job_id, 0, "x" * 100_000 + "\nlogin of-no-known-form \x1b[31m\n")
    scenario.world.cluster.finish_pods(job.job_id, 1)

    scenario.settle(job.job_id)

    log = kept_lines(scenario, job.job_id)
    assert log
    assert log.text == "login [redacted] \\x1b[31m\n"
    assert log.is_cut


def test_log_rows_of_the_largest_gang_fit_one_commit() -> None:
    log = KeptLog(
        job_id="job-1",
        attempt=1,
        rank=1,
        pod_name="p" * 63,
        node_name="n" * 63,
        text="\u20ac" * (KEPT_BYTES // 3),
        kept_at=JobScenario().world.clock.now(),
    )

    assert len(log.model_dump_json().encode()) * KEPT_RANKS < 3_000_000


def test_tail_shows_the_newest_kept_lines() -> None:
    scenario = JobScenario()
    job = scenario.running(nodes=1)
    write_log(scenario, job.job_id, 0, "one\ntwo\nthree\n")
    scenario.cancel(job.job_id)
    scenario.stop(job.job_id)

    document = shown_log(scenario, job.job_id, tail=2)

    assert (document["text"], document["isCut"]) == ("two\nthree\n", True)
