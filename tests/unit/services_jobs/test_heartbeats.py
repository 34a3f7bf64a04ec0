"""A heartbeat records the result of each source that a run read."""

from datetime import timedelta

from evenkeel.domain.sources import Source, SourceKind, SourceState
from evenkeel.ports import Unreachable
from evenkeel.services.queries.fleet import read_sources
from evenkeel.services.storage import heartbeats
from evenkeel.services.storage.heartbeats import SourceResults
from evenkeel.services.tables import fleet_rows
from tests.fakes import InMemoryLedger, a_context
from tests.fakes.system import A_MOMENT, RecordingTelemetry

LIST = Source(kind=SourceKind.KUBERNETES_LIST, target="home")
HYPERPOD = Source(kind=SourceKind.HYPERPOD)


def record_run(ledger: InMemoryLedger, function: str = "sweep_fleet", after: float = 0, **results: str) -> None:
    """Record a run in which `home` or `hyperpod` failed with this text, or answered if the text is empty."""
    source_results = SourceResults()
    for name, error in results.items():
        source = LIST if name == "home" else HYPERPOD
        if error:
            source_results.record_failure(source, Unreachable(error))
        else:
            source_results.record_answer(source)
    heartbeats.record_heartbeat(
        function,
        a_context(ledger=ledger, telemetry=RecordingTelemetry(), now=A_MOMENT + timedelta(seconds=after)),
        source_results,
    )


def states(ledger: InMemoryLedger, after: float = 0) -> dict[str, SourceState]:
    now = A_MOMENT + timedelta(seconds=after)
    ages = read_sources.read_source_ages(a_context(ledger=ledger, clusters=("home",), now=now))
    return {age.source.name: age.state for age in ages}


def test_heartbeats_are_empty_before_the_first_run() -> None:
    assert set(states(InMemoryLedger()).values()) == {SourceState.UNKNOWN}


def test_failed_read_of_one_source_leaves_the_other_current() -> None:
    ledger = InMemoryLedger()
    record_run(ledger, home="", hyperpod="")
    record_run(ledger, after=400, home="no answer", hyperpod="")

    source_states = states(ledger, after=400)

    assert (source_states["kubernetes-list/home"], source_states["hyperpod"]) == (
        SourceState.STALE,
        SourceState.CURRENT,
    )


def test_source_not_read_by_a_run_keeps_its_state() -> None:
    ledger = InMemoryLedger()
    record_run(ledger, home="", hyperpod="")
    record_run(ledger, after=60, home="")

    assert heartbeats.load_source_reports(ledger)["hyperpod"].seen_at == A_MOMENT


def test_changed_result_is_recorded_at_once() -> None:
    ledger = InMemoryLedger()
    record_run(ledger, home="")
    record_run(ledger, after=1, home="no answer")
    failed = heartbeats.load_source_reports(ledger)["kubernetes-list/home"].error
    record_run(ledger, after=2, home="")

    assert (failed, heartbeats.load_source_reports(ledger)["kubernetes-list/home"].error) == (
        "Unreachable: no answer",
        "",
    )


def test_unchanged_result_is_not_recorded_again_at_once() -> None:
    ledger = InMemoryLedger()
    record_run(ledger, home="")
    commits = len(ledger.commits)
    record_run(ledger, after=1, home="")

    assert len(ledger.commits) == commits


def test_source_that_is_read_rarely_is_recorded_each_time() -> None:
    ledger = InMemoryLedger()
    record_run(ledger, home="", hyperpod="")
    record_run(ledger, after=45, home="")
    record_run(ledger, after=50, home="", hyperpod="")

    assert heartbeats.load_source_reports(ledger)["hyperpod"].seen_at == A_MOMENT + timedelta(seconds=50)


def test_heartbeat_from_a_wrong_clock_is_overwritten() -> None:
    ledger = InMemoryLedger()
    record_run(ledger, after=3600, home="")
    record_run(ledger, home="")

    assert states(ledger)["kubernetes-list/home"] is SourceState.CURRENT


def test_heartbeat_has_the_time_at_which_its_run_began() -> None:
    ledger = InMemoryLedger()
    results = SourceResults()
    results.record_answer(LIST)
    ended = A_MOMENT + timedelta(seconds=200)
    heartbeats.record_heartbeat(
        "sweep_fleet", a_context(ledger=ledger, telemetry=RecordingTelemetry(), now=ended), results, read_at=A_MOMENT
    )

    assert heartbeats.load_source_reports(ledger)["kubernetes-list/home"].seen_at == A_MOMENT


def test_last_result_for_a_source_in_a_run_counts() -> None:
    results = SourceResults()
    results.record_answer(LIST)
    results.record_failure(LIST, Unreachable("pods"))

    assert results.errors == {"kubernetes-list/home": "Unreachable: pods"}


def test_heartbeat_without_sources_is_read() -> None:
    ledger = InMemoryLedger()
    heartbeats.record_heartbeat("watch_cluster", a_context(ledger=ledger, telemetry=RecordingTelemetry(), now=A_MOMENT))

    assert heartbeats.load_source_reports(ledger) == {}
    assert ledger.get(fleet_rows.heartbeat_key("watch_cluster")) is not None
