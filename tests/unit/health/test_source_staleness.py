"""The age of each source of facts, and the age at which its facts become stale."""

from datetime import timedelta

import pytest

from evenkeel.domain.health.health_policy import SourcePolicy
from evenkeel.domain.sources import (
    SWEEP_STEPS,
    Source,
    SourceAge,
    SourceKind,
    SourceReport,
    SourceState,
    expected_sources,
    judge_sources,
    source_problems,
    span,
)
from evenkeel.services.sweep import sweep_fleet
from tests.fakes.system import A_MOMENT

LIST = Source(kind=SourceKind.KUBERNETES_LIST, target="research-eks")
POLICY = SourcePolicy(kubernetes_list_seconds=180)


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def state_and_reason(report: SourceReport | None, *, is_running: bool = True) -> tuple[SourceState, str]:
    reports = {LIST.name: report} if report else {}
    (age,) = judge_sources([LIST], reports, POLICY, A_MOMENT, is_running=is_running)
    return age.state, age.reason


def test_source_never_read_is_unknown() -> None:
    assert state_and_reason(None) == (SourceState.UNKNOWN, "Nothing has read cluster research-eks yet.")


@pytest.mark.parametrize(("age", "state"), [(180, SourceState.CURRENT), (181, SourceState.STALE)])
def test_source_is_stale_past_its_threshold(age: float, state: SourceState) -> None:
    seen_at = A_MOMENT - seconds(age)
    assert state_and_reason(SourceReport(tried_at=seen_at, seen_at=seen_at))[0] is state


def test_failing_source_stays_trusted_until_its_threshold() -> None:
    source_report = SourceReport.after(None, "", A_MOMENT - seconds(100))
    failed = SourceReport.after(source_report, "Unreachable: no answer", A_MOMENT - seconds(40))
    failed_twice = SourceReport.after(failed, "Unreachable: no answer", A_MOMENT)

    assert failed_twice.failing_since == A_MOMENT - seconds(40)
    assert state_and_reason(failed_twice)[0] is SourceState.FAILING


def test_stale_source_shows_since_when_it_fails() -> None:
    source_report = SourceReport.after(None, "", A_MOMENT - seconds(720))
    failed = SourceReport.after(source_report, "Unreachable: no answer", A_MOMENT - seconds(700))

    state, reason = state_and_reason(failed)

    assert state is SourceState.STALE
    assert "cluster research-eks does not answer since".lower() in reason.lower()
    assert "last answer 12 min ago" in reason


def test_source_that_never_answered_becomes_stale() -> None:
    first = SourceReport.after(None, "NotAllowed: 403", A_MOMENT - seconds(60))
    late_report = SourceReport.after(None, "NotAllowed: 403", A_MOMENT - seconds(200))

    assert state_and_reason(first)[0] is SourceState.UNKNOWN
    assert state_and_reason(late_report)[0] is SourceState.STALE


def test_source_read_in_the_future_is_unknown() -> None:
    ahead = SourceReport.after(None, "", A_MOMENT + seconds(600))

    state, reason = state_and_reason(ahead)

    assert state is SourceState.UNKNOWN
    assert "10 min in the future" in reason


def test_later_run_overwrites_a_read_time_in_the_future() -> None:
    ahead = SourceReport.after(None, "", A_MOMENT + seconds(600))

    assert state_and_reason(SourceReport.after(ahead, "", A_MOMENT))[0] is SourceState.CURRENT
    assert SourceReport.after(ahead, "Unreachable", A_MOMENT).seen_at is None


def test_every_source_is_off_while_schedules_are_off() -> None:
    source_report = SourceReport.after(None, "", A_MOMENT)
    assert state_and_reason(source_report, is_running=False)[0] is SourceState.OFF
    assert state_and_reason(None, is_running=False)[0] is SourceState.OFF


def test_newest_answer_of_a_source_counts_across_functions() -> None:
    old_failure = SourceReport.after(None, "Unreachable: old", A_MOMENT - seconds(120))
    new_answer = SourceReport.after(None, "", A_MOMENT)

    for reports in ([old_failure, new_answer], [new_answer, old_failure]):
        joined = SourceReport.joined(reports)
        assert (joined.seen_at, joined.error, joined.failing_since) == (A_MOMENT, "", None)


def test_answer_of_one_function_hides_no_failing_function() -> None:
    first = SourceReport.after(None, "NotAllowed: 403", A_MOMENT - seconds(3000))
    failing = SourceReport.after(first, "NotAllowed: 403", A_MOMENT - seconds(50))
    answering = SourceReport.after(None, "", A_MOMENT)

    for reports in ([failing, answering], [answering, failing]):
        joined = SourceReport.joined(reports)
        assert (joined.seen_at, joined.failing_since) == (A_MOMENT, A_MOMENT - seconds(3000))
        state, reason = state_and_reason(joined)
        assert (state, "NotAllowed: 403" in reason) == (SourceState.FAILING, True)


def test_newer_failure_of_a_source_counts_across_functions() -> None:
    answered = SourceReport.after(None, "", A_MOMENT - seconds(50))
    failed = SourceReport.after(None, "NotAllowed: 403", A_MOMENT)

    joined = SourceReport.joined([answered, failed])

    assert (joined.seen_at, joined.error) == (A_MOMENT - seconds(50), "NotAllowed: 403")
    assert state_and_reason(joined)[0] is SourceState.FAILING


def test_expected_sources_follow_the_clusters_of_the_fleet() -> None:
    names = [source.name for source in expected_sources(["home", "burst"], has_hyperpod=True)]
    without_hyperpod = [source.name for source in expected_sources(["home"], has_hyperpod=False)]

    assert {"kubernetes-list/home", "kubernetes-list/burst", "kubernetes-watch/home", "hyperpod"} <= set(names)
    assert "kubernetes-watch/burst" not in names
    assert "hyperpod" not in without_hyperpod
    assert "kubernetes-list/burst" not in without_hyperpod


def test_every_sweep_step_is_a_source() -> None:
    assert tuple(name for name, _ in sweep_fleet.STEPS) == SWEEP_STEPS


def test_hourly_sweep_step_stays_current_for_an_hour_plus_threshold() -> None:
    step = Source(kind=SourceKind.SWEEP, target="days")
    report = SourceReport.after(None, "", A_MOMENT)
    limit = 3600 + SourcePolicy().threshold_seconds(SourceKind.SWEEP)

    def state_after(age: int) -> SourceState:
        return judge_sources([step], {step.name: report}, SourcePolicy(), A_MOMENT + seconds(age))[0].state

    assert [state_after(limit), state_after(limit + 1)] == [SourceState.CURRENT, SourceState.STALE]


@pytest.mark.parametrize("kind", SourceKind)
def test_every_source_kind_has_a_threshold_and_a_description(kind: SourceKind) -> None:
    assert SourcePolicy().threshold_seconds(kind) > 0
    assert Source(kind=kind, target="research-eks").words


def test_beginning_of_a_long_source_error_is_kept() -> None:
    assert len(SourceReport.after(None, "x" * 10_000, A_MOMENT).error) == 300


@pytest.mark.parametrize(("length", "expected"), [(40, "40 s"), (720, "12 min"), (18_000, "5 h"), (260_000, "3 days")])
def test_duration_in_a_staleness_message_has_one_unit(length: float, expected: str) -> None:
    assert span(length) == expected


CYCLE = Source(kind=SourceKind.SCHEDULING_CYCLE)


def judge_beside_cluster(list_age: float) -> tuple[SourceAge, ...]:
    """Judge a cycle that ran three seconds ago, and a cluster that answered `list_age` ago."""
    cluster = SourceReport.after(None, "", A_MOMENT - seconds(list_age))
    reports = {LIST.name: SourceReport.after(cluster, "Unreachable: no answer", A_MOMENT)}
    reports[CYCLE.name] = SourceReport.after(None, "", A_MOMENT - seconds(3))
    return judge_sources([LIST, CYCLE], reports, POLICY, A_MOMENT)


def test_scheduling_cycle_is_unknown_while_its_cluster_is_silent() -> None:
    _, cycle = judge_beside_cluster(181)

    assert (cycle.state, cycle.age_seconds) == (SourceState.UNKNOWN, 3)
    assert cycle.reason == (
        "Whether the scheduling cycle can start jobs on research-eks is unknown (last run 3 s ago)."
    )


def test_scheduling_cycle_stays_current_while_a_cluster_fails() -> None:
    assert judge_beside_cluster(180)[1].state is SourceState.CURRENT


def test_failing_cluster_is_a_problem_before_its_threshold() -> None:
    assert source_problems(judge_beside_cluster(180)) == ([], ["the last attempt to read cluster research-eks failed"])


def test_silent_cluster_is_reported_once_although_its_cycle_is_unknown() -> None:
    stale, unknown = source_problems(judge_beside_cluster(181))

    assert (len(stale), unknown) == (1, [])
