"""The cost of interruptions: properties of complete job histories, late records, and missing records."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.domain.costs.interruptions import LostTime, interruptions
from evenkeel.domain.costs.job_receipt import JobTimeBucket, job_receipt
from evenkeel.domain.costs.receipt import GpuPrice, InterruptionCause, Stage, cost_usd_micros
from evenkeel.domain.health.incidents import AffectedJob, Approval, Incident, StageTimes
from evenkeel.domain.jobs.attempt import Attempt, ResumePoint
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.nodes import NodeLife

BEGIN = datetime(2026, 11, 3, tzinfo=UTC)
PRICE = GpuPrice(usd_micros_per_gpu_hour=6_880_000, origin="a list")


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def a_job(**changes: Any) -> Job:
    spec = {"name": "llama", "image": "trainer", "command": ("train",), "nodes": 2}
    facts = {
        "job_id": "job-1",
        "spec": spec,
        "state": "PENDING",
        "submitted_at": BEGIN,
        "cluster": "c",
        "namespace": "n",
    }
    return Job.model_validate({**facts, **changes})


def an_attempt(number: int, **changes: Any) -> Attempt:
    facts = {
        "job_id": "job-1",
        "attempt": number,
        "state": "LOST",
        "cluster": "c",
        "namespace": "n",
        "pool": "p5",
        "nodes": (),
        "node_names": (),
        "size": 2,
        "accelerators": 16,
    }
    return Attempt.model_validate({**facts, **changes})


def an_incident(number: int = 1, **changes: Any) -> Incident:
    facts = {
        "incident_id": f"inc-{number}",
        "life": NodeLife(cluster="c", instance_id="i-1", launched_at=BEGIN),
        "slot": "s",
        "node_name": "n",
        "pool": "p5",
        "instance_type": "ml.p5.48xlarge",
        "state": "RECOVERED",
        "severity": "critical",
        "fault_key": "xid:79",
        "affected_jobs": (AffectedJob(job_id="job-1", attempt=1),),
    }
    return Incident.model_validate({**facts, **changes})


def a_run(number: int, admitted: float, running: float, ended: float | None, **changes: Any) -> Attempt:
    state = "RUNNING" if ended is None else "LOST"
    times = {
        "admitted_at": at(admitted),
        "launched_at": at(admitted + 1),
        "running_at": at(running),
        "ended_at": None if ended is None else at(ended),
    }
    return an_attempt(number, **{"state": state, **times, **changes})


def a_resume_point(step_written_at: float) -> dict[str, Any]:
    point = ResumePoint(attempt=1, step=5, manifest="m")
    return {"is_pinned": True, "resume_from": point, "resumed_work_from": at(step_written_at)}


def seconds_by_stage(interruption: LostTime) -> dict[Stage, float | None]:
    return {receipt_part.stage: receipt_part.seconds for receipt_part in interruption.receipt.parts}


# ---------------------------------------------------------------- properties

SECONDS = st.integers(0, 4_000).map(lambda tick: tick * 0.25)
MAYBE = st.none() | SECONDS


Life = tuple[Job, list[Attempt], list[tuple[int, Incident]], dict[int, GpuPrice | None], datetime]


@st.composite
def draw_job_history(draw: st.DrawFn) -> Life:
    """Draw a job with up to five attempts, of which some records are missing, and incidents at any time."""
    clock, attempts, incidents = 0.0, list[Attempt](), list[tuple[int, Incident]]()
    prices: dict[int, GpuPrice | None] = {}
    count = draw(st.integers(1, 5))
    for number in range(1, count + 1):
        clock += draw(SECONDS)
        admitted = clock
        launched = clock = clock + draw(SECONDS)
        did_run = draw(st.booleans())
        running = clock = clock + draw(SECONDS) if did_run else clock
        clock += draw(SECONDS)
        is_live = number == count and draw(st.booleans())
        is_pinned = draw(st.booleans())
        point = ResumePoint(attempt=1, step=5, manifest="m") if draw(st.booleans()) else None
        state = draw(st.sampled_from(["LOST", "FAILED", "STOPPED"])) if did_run else "NEVER_RAN"
        attempts.append(
            an_attempt(
                number,
                state="RUNNING" if is_live and did_run else "STARTING" if is_live else state,
                accelerators=draw(st.sampled_from([0, 7, 16])),
                admitted_at=at(admitted),
                launched_at=at(launched) if draw(st.booleans()) else None,
                running_at=at(running) if did_run else None,
                ended_at=None if is_live else at(clock),
                stop_asked_at=at(draw(SECONDS)) if draw(st.booleans()) else None,
                is_pinned=is_pinned,
                resume_from=point,
                resumed_work_from=at(draw(SECONDS) * 3) if point and draw(st.booleans()) else None,
                trained_at=at(running + draw(SECONDS)) if did_run and point and draw(st.booleans()) else None,
                **draw(st.sampled_from([{}, {"save_seconds": 20.0, "save_interval_seconds": 60.0}])),
            )
        )
        prices[number] = draw(st.sampled_from([None, PRICE]))
        for index in range(draw(st.integers(0, 2))):
            first = draw(SECONDS) * 3
            is_planned = draw(MAYBE)
            approval = Approval(decision_id="d", approves=True, by="ana", reason="", at=at(draw(SECONDS) * 3))
            incidents.append(
                (
                    number,
                    an_incident(
                        10 * number + index,
                        first_signal_at=at(first),
                        opened_at=at(draw(SECONDS) * 3),
                        stages=StageTimes(planned_at=None if is_planned is None else at(is_planned * 3)),
                        approval=draw(st.none() | st.just(approval)),
                    ),
                )
            )
    has_ended = draw(st.booleans())
    ended_at = at(clock + draw(SECONDS)) if has_ended else None
    job = a_job(state="FAILED" if has_ended else "PENDING", ended_at=ended_at)
    return job, attempts, incidents, prices, at(clock + draw(SECONDS))


@given(draw_job_history())
def test_lost_seconds_never_overlap_and_sum_to_the_total(life: Life) -> None:
    lost_times = interruptions(*life)

    spans = sorted(span for lost in lost_times for _, span in lost.spans)
    assert all(before.end <= after.start for before, after in pairwise(spans))
    for lost in lost_times:
        lost_time = sum((span.end - span.start for _, span in lost.spans), timedelta())
        receipt_parts = [part for part in lost.receipt.parts if part.seconds is not None]
        assert (
            lost.receipt.total.seconds == lost_time.total_seconds() == sum(part.seconds or 0 for part in receipt_parts)
        )
        assert all((part.seconds or 0) >= 0 for part in receipt_parts)
        assert (lost.receipt.total.usd_micros or 0) == sum(part.usd_micros or 0 for part in receipt_parts)
        assert lost.receipt.total.gpu_hours == pytest.approx(sum(part.gpu_hours or 0 for part in receipt_parts))


@given(draw_job_history())
def test_stages_of_an_interruption_follow_each_other_without_a_gap(life: Life) -> None:
    for interruption in interruptions(*life):
        receipt_parts = [part for part in interruption.receipt.parts if part.started_at is not None]
        assert all(before.ended_at == after.started_at for before, after in pairwise(receipt_parts))
        assert [part.stage for part in interruption.receipt.parts][-1] is Stage.RESTORE


@given(draw_job_history(), st.sampled_from([0.0, 30.0, 1400.0]))
def test_time_buckets_sum_to_the_elapsed_time(life: Life, restore_seconds: float) -> None:
    job, *_, now = life
    receipt = job_receipt(*life, restore_seconds)

    assert sum(bucket.seconds for bucket in receipt.buckets) == receipt.elapsed_seconds
    assert all(bucket.seconds >= 0 for bucket in receipt.buckets)
    assert receipt.until >= (job.ended_at or now)
    interrupted = (JobTimeBucket.LOST, JobTimeBucket.INTERRUPTED, JobTimeBucket.RESTORING)
    lost_buckets = [bucket for bucket in receipt.buckets if bucket.bucket in interrupted]
    assert sum(bucket_time.seconds for bucket_time in lost_buckets) == pytest.approx(
        sum(interruption.total.seconds for interruption in receipt.interruptions)
    )


def test_admission_dated_before_its_submission_gives_no_negative_time() -> None:
    """The clocks of two functions differ by some milliseconds."""
    receipt = job_receipt(a_job(), [a_run(1, -0.25, 0, 60)], [], {1: PRICE}, at(60))

    assert receipt.elapsed_seconds == 60.25
    assert min(bucket.seconds for bucket in receipt.buckets) == 0


@given(draw_job_history(), st.randoms(use_true_random=False))
def test_interruptions_do_not_depend_on_order_or_copies_of_records(life: Life, chance: Any) -> None:
    job, attempts, incidents, prices, now = life
    shuffled, copies = list(attempts), [*incidents, *incidents]
    chance.shuffle(shuffled)
    chance.shuffle(copies)

    assert job_receipt(job, shuffled, copies, prices, now) == job_receipt(*life)


@given(st.integers(0, 10**16), st.integers(0, 10**9))
def test_cost_is_rounded_to_half_a_micro_dollar(gpu_microseconds: int, price: int) -> None:
    cost = cost_usd_micros(gpu_microseconds, GpuPrice(usd_micros_per_gpu_hour=price, origin=""))

    assert cost is not None
    assert abs(cost * 3_600_000_000 - gpu_microseconds * price) * 2 <= 3_600_000_000


# ---------------------------------------------------------------- single cases


def test_rollback_does_not_count_lost_seconds_of_earlier_interruptions_again() -> None:
    attempts = [
        a_run(1, 0, 10, 1_000),
        a_run(2, 1_100, 1_200, 2_000, **a_resume_point(900)),
        # The checkpoints since 500 are distrusted, so the work since then is lost.
        # An earlier interruption had lost part of it already.
        a_run(3, 2_100, 2_200, None, **a_resume_point(500)),
    ]

    first, second = interruptions(a_job(), attempts, [], {}, at(3_000))

    assert first.receipt.total.seconds == 1_200 - 900
    assert second.receipt.total.seconds == (2_200 - 500) - 300
    repeated = second.receipt.parts[0]
    assert (repeated.seconds, repeated.already_counted_seconds) == (1_200, 300)


def test_signal_between_attempts_adds_no_detection_or_drain_time() -> None:
    attempts = [a_run(1, 0, 10, 1_000), a_run(2, 1_100, 1_200, None, **a_resume_point(900))]
    late_incident = an_incident(first_signal_at=at(1_050), opened_at=at(1_060), stages=StageTimes(planned_at=at(1_070)))

    (interruption,) = interruptions(a_job(), attempts, [(1, late_incident)], {}, at(2_000))

    assert seconds_by_stage(interruption) == {
        Stage.REPEATED_WORK: 100,
        Stage.DETECTION: 0,
        Stage.DECISION: 0,
        Stage.DRAIN: 0,
        Stage.WAIT_FOR_NODES: 100,
        Stage.LAUNCH: 1,
        Stage.RESTART: 99,
        Stage.RESTORE: None,
    }


def test_measured_restore_time_is_a_separate_stage() -> None:
    attempts = [a_run(1, 0, 10, 1_000), a_run(2, 1_100, 1_200, None, **a_resume_point(900), trained_at=at(1_350))]

    (interruption,) = interruptions(a_job(), attempts, [], {}, at(2_000))

    assert seconds_by_stage(interruption)[Stage.RESTORE] == 150
    assert interruption.receipt.standstill_seconds == 350
    assert interruption.receipt.total.unknown_stages == ()


def test_stage_without_a_record_names_the_missing_record() -> None:
    attempts = [a_run(1, 0, 10, 1_000), a_run(2, 1_100, 1_200, None, **a_resume_point(900))]
    unplanned_incident = an_incident(first_signal_at=at(910), opened_at=at(920))

    (interruption,) = interruptions(a_job(), attempts, [(1, unplanned_incident)], {}, at(2_000))

    drain = next(part for part in interruption.receipt.parts if part.stage is Stage.DRAIN)
    assert (drain.seconds, drain.covers) == (80, (Stage.DECISION,))
    assert Stage.DECISION not in seconds_by_stage(interruption)


def test_attempts_that_never_ran_count_as_failed_starts() -> None:
    failed_start = an_attempt(2, state="NEVER_RAN", admitted_at=at(1_100), ended_at=at(1_400))
    attempts = [a_run(1, 0, 10, 1_000), failed_start, a_run(3, 1_500, 1_600, None, **a_resume_point(1_000))]

    (interruption,) = interruptions(a_job(), attempts, [], {}, at(2_000))

    stages = [(part.stage, part.seconds) for part in interruption.receipt.parts if part.seconds]
    assert stages == [
        (Stage.WAIT_FOR_NODES, 100),
        (Stage.FAILED_START, 300),
        (Stage.WAIT_FOR_NODES, 100),
        (Stage.LAUNCH, 1),
        (Stage.RESTART, 99),
    ]


def test_job_that_still_waits_loses_until_now() -> None:
    (interruption,) = interruptions(a_job(), [a_run(1, 0, 10, 1_000)], [], {1: PRICE}, at(1_600))

    assert not interruption.receipt.is_over
    assert interruption.receipt.resumed_by_attempt is None
    assert interruption.receipt.total.seconds == 600
    assert interruption.receipt.total.unknown_stages == (Stage.REPEATED_WORK, Stage.RESTORE)
    assert interruption.receipt.total.usd_micros == round(16 * 600 / 3600 * 6.88e6)


def test_job_without_a_checkpoint_loses_all_its_work() -> None:
    attempts = [a_run(1, 0, 10, 1_000), a_run(2, 1_100, 1_200, None, is_pinned=True)]

    (interruption,) = interruptions(a_job(), attempts, [], {}, at(2_000))

    assert seconds_by_stage(interruption)[Stage.REPEATED_WORK] == 990
    assert interruption.receipt.parts[0].from_record == "first run: attempt 2 resumed from no checkpoint"


def test_job_that_saves_during_its_drain_repeats_no_work() -> None:
    stopped_attempt = a_run(1, 0, 10, 1_000, state="STOPPED", stop_asked_at=at(900))
    attempts = [stopped_attempt, a_run(2, 1_100, 1_200, None, **a_resume_point(950))]

    (interruption,) = interruptions(a_job(), attempts, [], {}, at(2_000))

    assert interruption.receipt.cause is InterruptionCause.REQUEST
    assert (seconds_by_stage(interruption)[Stage.REPEATED_WORK], seconds_by_stage(interruption)[Stage.DRAIN]) == (0, 50)


@pytest.mark.parametrize(
    ("attempt", "job"),
    [
        (a_run(1, 0, 10, 1_000, state="SUCCEEDED"), a_job(state="SUCCEEDED", ended_at=at(1_000))),
        (a_run(1, 0, 10, 1_000, state="FAILED"), a_job(state="FAILED", ended_at=at(1_000))),
        (a_run(1, 0, 10, None), a_job(state="RUNNING")),
        (an_attempt(1, state="NEVER_RAN", admitted_at=at(0), ended_at=at(100)), a_job()),
    ],
)
def test_finished_job_and_unstarted_attempt_have_no_interruption(attempt: Attempt, job: Job) -> None:
    assert interruptions(job, [attempt], [], {}, at(2_000)) == []


def test_launch_recorded_after_the_run_does_not_extend_the_loss() -> None:
    attempts = [a_run(1, 0, 10, 1_000), a_run(2, 1_100, 1_200, None, launched_at=at(5_000), **a_resume_point(900))]

    (interruption,) = interruptions(a_job(), attempts, [], {}, at(9_000))

    assert interruption.receipt.total.seconds == 300
