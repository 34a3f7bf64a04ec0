"""Expected run times: stated by the submitter, estimated from past runs, or from the policy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.domain.capacity.run_times import PastJob, RunOrigin, RunTimes, seconds_within, share_beyond

HOUR = 3600.0


def a_run(team: str = "red", submitter: str = "ana", job_type: str = "", stated: int | None = None) -> RunOrigin:
    return RunOrigin(team, submitter, job_type, stated, 4 * 3600)


def past_jobs(*seconds: float, team: str = "red", submitter: str = "ana", job_type: str = "") -> list[PastJob]:
    return [PastJob(team, submitter, job_type, run) for run in seconds]


def test_expected_run_time_without_past_runs_comes_from_policy() -> None:
    left = RunTimes().remaining(a_run(), 0.0)

    assert (left.mean, left.p90) == (4 * HOUR, 8 * HOUR)
    assert RunTimes().remaining(a_run(), 6 * HOUR).mean == 3 * HOUR  # half as long again


def test_runs_of_the_same_submitter_and_type_are_used_first() -> None:
    runs = [
        *past_jobs(*[60.0] * 5, job_type="eval"),
        *past_jobs(*[7200.0] * 5),
        *past_jobs(*[900.0] * 9, submitter="bo"),
    ]

    learned = RunTimes(runs)

    assert learned.remaining(a_run(job_type="eval"), 0).mean == 60
    assert learned.remaining(a_run(), 0).mean == 7200
    assert learned.remaining(a_run(submitter="new"), 0).mean == pytest.approx(
        (5 * 60 + 5 * 7200 + 9 * 900) / 19, rel=0.05
    )
    assert learned.remaining(a_run(team="blue", submitter="eve"), 0).mean == pytest.approx(
        learned.remaining(a_run(submitter="new"), 0).mean
    )


def test_group_with_too_few_past_runs_is_not_used() -> None:
    assert RunTimes(past_jobs(60, 60, 60, 60)).remaining(a_run(), 0).mean == 4 * HOUR


def test_remaining_time_uses_only_past_runs_longer_than_elapsed_time() -> None:
    learned = RunTimes(past_jobs(*[60.0] * 50, *[10_060.0] * 10))

    assert learned.remaining(a_run(), 0).mean == pytest.approx(1726.7, rel=0.01)
    assert learned.remaining(a_run(), 60).mean == 10_000  # after 60 s only the long runs remain


def test_run_beyond_all_past_runs_takes_half_as_long_again() -> None:
    assert RunTimes(past_jobs(*[600.0] * 20)).remaining(a_run(), 7200).seconds == (3600.0,)


def running_jobs(*seconds: float) -> list[PastJob]:
    return [PastJob("red", "ana", "", run, is_running=True) for run in seconds]


def test_runs_that_have_not_ended_raise_the_estimate() -> None:
    # Kaplan-Meier: at 100 s 10 of 20 runs end. The others run since 1000 s, so the mean is 0.5 x 100 + 0.5 x 1500.
    learned = RunTimes([*past_jobs(*[100.0] * 10), *running_jobs(*[1000.0] * 10)])

    assert learned.remaining(a_run(), 0).mean == pytest.approx(800)


def test_young_running_jobs_do_not_lower_the_estimate() -> None:
    ended = past_jobs(100, 200, 300, 400, 500, 600)

    learned = RunTimes([*ended, *running_jobs(*[50.0] * 40)])

    assert learned.remaining(a_run(), 0).mean == pytest.approx(350)


def test_share_of_an_unfinished_run_goes_to_longer_runs() -> None:
    # Textbook case: ends at 1, 3 and 5, censored at 2 and 4. Shares: 1/5, then 4/5 x 1/3 = 4/15, and 8/15 at 5.
    learned = RunTimes([*past_jobs(100, 300, 500), *running_jobs(200, 400)], min_samples=1)

    assert learned.remaining(a_run(), 0).mean == pytest.approx(100 / 5 + 300 * 4 / 15 + 500 * 8 / 15)


def test_running_jobs_alone_are_no_sample() -> None:
    assert RunTimes(running_jobs(*[60.0] * 50)).remaining(a_run(), 0).mean == 4 * HOUR


@given(st.lists(st.tuples(st.floats(1, 1e5), st.booleans()), min_size=5, max_size=80))
def test_running_jobs_never_lower_the_mean_of_ended_runs(runs: list[tuple[float, bool]]) -> None:
    past = [PastJob("red", "ana", "", seconds, is_running) for seconds, is_running in runs]
    ended = [seconds for seconds, is_running in runs if not is_running]

    left = RunTimes(past, min_samples=1).remaining(a_run(), 0)

    if ended:
        assert list(left.seconds) == sorted(left.seconds)
        assert left.mean >= sum(ended) / len(ended) * (1 - 1e-6) - 0.2


def test_stated_run_time_precedes_past_runs() -> None:
    left = RunTimes(past_jobs(*[60.0] * 20)).remaining(a_run(stated=3600), 0)

    assert left.seconds[5] < 3600 < left.seconds[6]
    assert 4 * 3600 > left.p90 > 2 * 3600


@given(st.lists(st.floats(1, 1e6), min_size=5, max_size=300), st.floats(0, 1e5))
def test_estimated_mean_equals_mean_of_past_runs_that_lasted_longer(runs: list[float], ran: float) -> None:
    left = RunTimes(past_jobs(*runs)).remaining(a_run(), ran)
    longer = [seconds - ran for seconds in runs if seconds > ran]

    assert list(left.seconds) == sorted(left.seconds)
    assert all(value >= 0 for value in left.seconds)
    if len(longer) >= 5 and len(longer) % 12 == 0:
        assert left.mean == pytest.approx(sum(longer) / len(longer), rel=1e-3, abs=0.2)
    assert seconds_within(left.seconds, 0) == 0
    assert seconds_within(left.seconds, 1e9) == pytest.approx(left.mean)
    assert 0 <= share_beyond(left.seconds, 600) <= 1
