"""Scheduling cycles with decisions that the ledger refuses to store."""

from typing import Any

import pytest

from evenkeel.domain.jobs.job import JobState
from evenkeel.ports import Ledger, Put, Refused, Row, Table, Write, row_bytes
from evenkeel.services.storage import batches
from evenkeel.services.tables import job_rows, quota_rows, subject_rows
from tests.unit.services_jobs.job_scenario import JobScenario
from tests.unit.services_jobs.test_elastic import a_shared_scenario


class RefusingLedger:
    """A ledger that refuses each commit with a row of one of these jobs in this state."""

    def __init__(self, inner: Ledger, *jobs: str, states: tuple[str, ...] = ("STARTING",)) -> None:
        self.inner = inner
        self.jobs = set(jobs)
        self.states = states
        self.refusals = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def commit(self, *writes: Write, client_token: str = "") -> None:
        for write in writes:
            row = write.row if isinstance(write, Put) else None
            if row and row.doc.get("jobId") in self.jobs and row.doc.get("state") in self.states:
                self.refusals += 1
                raise Refused("the row is too large")
        self.inner.commit(*writes, client_token=client_token)


def refuse_jobs(scenario: JobScenario, *jobs: str, **more: Any) -> RefusingLedger:
    ledger = RefusingLedger(scenario.ledger, *jobs, **more)
    scenario.ledger = ledger  # type: ignore[assignment]
    return ledger


def test_refused_admission_does_not_stop_other_admissions() -> None:
    scenario = JobScenario(size=24)
    jobs = [scenario.submit(f"key-{n}", nodes=1).job_id for n in range(20)]
    refuse_jobs(scenario, jobs[7])

    outcome = scenario.run_scheduling_cycle()

    assert len(outcome.admitted) == 19
    assert scenario.job(jobs[7]).state is JobState.PENDING
    assert all(scenario.job(job).state is JobState.STARTING for job in jobs if job != jobs[7])


def test_job_shows_refused_write_as_reason_and_is_counted() -> None:
    scenario = JobScenario()
    job = scenario.submit().job_id
    refuse_jobs(scenario, job)

    scenario.run_scheduling_cycle()

    assert scenario.job(job).reason.startswith("The ledger refused to store this job's decision.")
    assert "deferred" in scenario.timeline(job)
    assert scenario.world.telemetry.totals["WritesRejected"] == 1


def test_job_whose_admission_was_refused_reserves_no_nodes() -> None:
    scenario = JobScenario(size=2)
    first, second = scenario.submit("first").job_id, scenario.submit("second").job_id
    refuse_jobs(scenario, first)

    scenario.run_scheduling_cycle()

    assert [scenario.job(job_id).state for job_id in (first, second)] == [JobState.PENDING, JobState.STARTING]


def test_job_whose_every_write_is_refused_reserves_nothing() -> None:
    scenario = JobScenario(size=2)
    first, second = scenario.submit("first").job_id, scenario.submit("second").job_id
    refuse_jobs(scenario, first, states=("STARTING", "PENDING"))

    for _ in range(2):
        scenario.run_scheduling_cycle()

    assert [scenario.job(job_id).state for job_id in (first, second)] == [JobState.PENDING, JobState.STARTING]


def test_job_whose_write_was_refused_is_retried_later() -> None:
    scenario = JobScenario()
    job = scenario.submit().job_id
    ledger = refuse_jobs(scenario, job)
    scenario.run_scheduling_cycle()
    refusals = ledger.refusals
    scenario.run_scheduling_cycle()
    assert ledger.refusals == refusals
    ledger.jobs.clear()

    scenario.world.clock.advance(3601)
    scenario.run_scheduling_cycle()

    assert scenario.job(job).state is JobState.STARTING


def test_job_whose_reason_is_refused_does_not_block_other_reasons() -> None:
    scenario = JobScenario(size=1)
    jobs = [scenario.submit(f"key-{n}", nodes=2).job_id for n in range(6)]
    refuse_jobs(scenario, jobs[0], states=("PENDING",))

    scenario.run_scheduling_cycle()

    reasons = [scenario.job(job).reason for job in jobs]
    assert reasons[0] == "The job waits for the next scheduling cycle."
    assert "The job waits for the next scheduling cycle." not in reasons[1:]
    assert scenario.world.telemetry.totals["WritesRejected"] == 1


def test_refused_preemption_does_not_stop_other_admissions() -> None:
    scenario = a_shared_scenario(size=4, red=32)
    low = [scenario.running(team="red", priority_class="low", nodes=2).job_id for _ in range(2)]
    high = scenario.submit("high", team="red", priority_class="high", nodes=2).job_id
    ledger = refuse_jobs(scenario, high, states=("PENDING",))

    scenario.run_scheduling_cycle()

    assert ledger.refusals
    assert scenario.world.telemetry.totals["WritesRejected"] >= 1
    assert all(scenario.job(job_id).state is JobState.RUNNING for job_id in low)


def test_jobs_of_the_full_size_are_admitted_in_several_commits() -> None:
    scenario = JobScenario(size=24)
    jobs = [scenario.submit(f"key-{n}", nodes=1).job_id for n in range(20)]
    for job in jobs:
        row = scenario.world.ledger.rows[job_rows.job_key(job)]
        scenario.store_row(Row(row.key, {**row.doc, "submittedBy": "x" * 350_000}, row.version, row.state))

    outcome = scenario.run_scheduling_cycle()

    assert len(outcome.admitted) == 20


def write_groups(*sizes: int) -> list[batches.WriteGroup]:
    return [
        batches.WriteGroup(f"job-{n}", (Put(Row(subject_rows.decision_key(f"dec-{n}"), {"text": "x" * size})),))
        for n, size in enumerate(sizes)
    ]


def test_commit_batches_stay_below_3_megabytes_and_100_writes() -> None:
    parts = write_groups(*[300_000] * 25, *[10] * 250)
    common_writes = (Put(Row(quota_rows.tree_key(), {"memory": "x" * 200_000})),)

    cut_batches = list(batches.cut_into_batches(parts, common_writes=common_writes, extra_writes=1))

    assert [part for batch in cut_batches for part in batch] == parts
    assert all(2 * len(batch) + 1 <= 100 for batch in cut_batches)
    assert all(
        batches.size_of([*common_writes, *(part.writes[0] for part in batch)]) <= 3_000_000 for batch in cut_batches
    )
    assert len(cut_batches) <= 9


def test_write_group_above_the_batch_limit_is_sent_alone() -> None:
    parts = [
        batches.WriteGroup("job-1", tuple(part.writes[0] for part in write_groups(*[390_000] * 9))),
        *write_groups(1),
    ]

    assert [len(batch) for batch in batches.cut_into_batches(parts)] == [1, 1]


@pytest.mark.parametrize("offenders", [(), (0,), (3, 4), (0, 1, 2, 3, 4, 5, 6)])
def test_only_refused_write_groups_are_skipped(offenders: tuple[int, ...]) -> None:
    parts = write_groups(*[1] * 7)
    bad = {parts[n].subject for n in offenders}
    done: list[str] = []
    aside: list[str] = []

    def commit(batch: Any) -> None:
        if bad & {part.subject for part in batch}:
            raise Refused("no")
        done.extend(part.subject for part in batch)

    batches.commit_each(parts, commit, lambda part, _refused: aside.append(part.subject))

    assert done == [part.subject for part in parts if part.subject not in bad]
    assert aside == sorted(bad)


def test_row_size_counts_bytes_of_utf8() -> None:
    key = subject_rows.decision_key("dec-1")
    assert key.table is Table.INCIDENTS
    assert row_bytes(Row(key, {"a": "\u20ac" * 100})) == row_bytes(Row(key, {"a": "x" * 300}))
