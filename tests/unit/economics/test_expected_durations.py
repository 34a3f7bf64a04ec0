"""Expected durations are measured if there are enough cases; otherwise they come from the policy."""

from datetime import timedelta

from evenkeel.domain.economics.expected_durations import (
    ExpectedDuration,
    expected_duration,
    launch_durations,
    repair_durations,
)
from evenkeel.domain.health.incidents import Incident, StageTimes
from tests.unit.api.seeds import a_job, ago, an_attempt, an_incident


def a_past_repair(seconds: float | None, **changes: object) -> Incident:
    asked_at = ago(hours=1)
    back_at = None if seconds is None else asked_at + timedelta(seconds=seconds)
    stages = StageTimes(repair_requested_at=asked_at, node_back_at=back_at)
    return an_incident(1, **{"stages": stages, "repairs": ("reboot",), "pool": "p5", **changes})


def test_median_of_enough_past_durations_replaces_the_policy_figure() -> None:
    assert ExpectedDuration(seconds=960) == expected_duration([10, 20], 960, min_samples=3)
    assert ExpectedDuration(seconds=20, samples=3) == expected_duration([20, 86_400, 10], 960, min_samples=3)
    assert ExpectedDuration(seconds=960) == expected_duration([], 960, min_samples=0)


def test_repair_forecast_uses_only_repairs_of_equal_rung_and_pool() -> None:
    past = [
        a_past_repair(300),
        a_past_repair(None),
        a_past_repair(301, pool="other"),
        a_past_repair(302, repairs=("reboot", "replace")),
        a_past_repair(303, repairs=("replace",)),
    ]

    assert repair_durations(past, "p5", "reboot") == (300,)


def test_attempt_that_never_ran_does_not_count_as_launch_time() -> None:
    job = a_job(1)
    ran = an_attempt(job, 1, admitted_at=ago(minutes=10), running_at=ago(minutes=8))

    assert launch_durations([ran, an_attempt(job, 2, running_at=None)]) == (120,)
