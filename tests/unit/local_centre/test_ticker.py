"""The pause of the ticker between two invocations of a function."""

import pytest

from evenkeel_local.ticker import rest_seconds


@pytest.mark.parametrize(
    ("took", "rest"),
    [
        pytest.param(0.2, 0.8, id="short-one-keeps-the-beat"),
        pytest.param(3.0, 3.0, id="long-one-rests-as-long"),
        pytest.param(60.0, 10.0, id="very-long-one-rests-ten-seconds"),
    ],
)
def test_ticker_pauses_a_busy_function_as_long_as_it_ran(took: float, rest: float) -> None:
    assert rest_seconds(took, 1.0, is_long_running=False) == rest


def test_ticker_pauses_an_idle_function_at_most_one_interval() -> None:
    assert [rest_seconds(took, 1.0, is_long_running=True) for took in (0.2, 3.0, 60.0)] == [0.8, 1.0, 1.0]
