"""Goodput and its buckets sum to the elapsed time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.domain.economics.figure_checks import WrongFigure
from evenkeel.domain.economics.goodput import Bucket, TimeSpent, goodput

TIMES = st.floats(0, 1e6)


@given(TIMES, st.dictionaries(st.sampled_from(list(Bucket)), TIMES), TIMES)
def test_goodput_and_buckets_sum_to_the_elapsed_time(
    productive: float, buckets: dict[Bucket, float], rest: float
) -> None:
    buckets.pop(Bucket.OTHER, None)
    added = sum(value for bucket, value in buckets.items() if bucket is not Bucket.DATA_LOADING_ASYNC)
    elapsed = productive + added + rest + 1
    report = goodput(TimeSpent(elapsed_seconds=elapsed, productive_seconds=productive, buckets=buckets))

    assert report.sum_seconds == pytest.approx(elapsed, rel=1e-9)
    assert report.goodput + sum(bucket.share for bucket in report.buckets if bucket.is_added) == pytest.approx(
        1, rel=1e-9
    )


def test_overlapping_loading_is_reported_and_not_added() -> None:
    spent = TimeSpent(elapsed_seconds=100, productive_seconds=100, buckets={Bucket.DATA_LOADING_ASYNC: 40})
    report = goodput(spent)

    assert report.goodput == 1
    assert [(bucket.bucket, bucket.seconds, bucket.is_added) for bucket in report.buckets] == [
        (Bucket.DATA_LOADING_ASYNC, 40, False),
        (Bucket.OTHER, 0, True),
    ]


@pytest.mark.parametrize(
    ("productive", "other", "problem"), [(80, 30, "10 s more than elapsed"), (80, 10, "10 s less than elapsed")]
)
def test_goodput_times_that_do_not_sum_are_refused(productive: float, other: float, problem: str) -> None:
    spent = TimeSpent(elapsed_seconds=100, productive_seconds=productive, buckets={Bucket.OTHER: other})

    with pytest.raises(WrongFigure, match=problem):
        goodput(spent)


@pytest.mark.parametrize(("elapsed", "productive", "bucket"), [(0, 0, 1), (10, -1, 1), (10, 1, -1)])
def test_negative_goodput_times_are_refused(elapsed: float, productive: float, bucket: float) -> None:
    with pytest.raises(WrongFigure):
        goodput(
            TimeSpent(elapsed_seconds=elapsed, productive_seconds=productive, buckets={Bucket.PROGRAM_STARTUP: bucket})
        )
