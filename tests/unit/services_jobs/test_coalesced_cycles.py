"""Requests for scheduling cycles: one cycle answers all earlier requests, and no request is lost."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.domain.jobs.job import JobState
from evenkeel.domain.scheduling.cycle_requests import ANSWER_MARGIN, is_answered
from evenkeel.ports import Key, Ledger, Page, Put, Table, Unreachable, Write
from evenkeel.runtime import entry
from evenkeel.services.scheduling import schedule_jobs
from evenkeel.services.tables import quota_rows
from tests.examples import examples
from tests.fakes.cluster import CLUSTER
from tests.fakes.system import A_MOMENT, FixedClock
from tests.unit.services_jobs.job_scenario import JobScenario

BATCH = 10


def a_batch(*sent_at: datetime) -> entry.Json:
    stamps = (str(int(at.timestamp() * 1000)) for at in sent_at)
    return {"Records": [{"messageId": f"m-{at}", "body": "{}", "attributes": {"SentTimestamp": at}} for at in stamps]}


class LaggingLedger:
    """A ledger whose index shows a write only after a while."""

    def __init__(self, ledger: Ledger, clock: FixedClock, lag_seconds: float) -> None:
        self._ledger, self._clock, self._lag = ledger, clock, timedelta(seconds=lag_seconds)
        self._written: dict[Key, datetime] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def commit(self, *writes: Write, client_token: str = "") -> None:
        self._ledger.commit(*writes, client_token=client_token)
        self._written |= {write.row.key: self._clock.now() for write in writes if isinstance(write, Put)}

    def by_state(self, table: Table, state: str, **options: Any) -> Page:
        page = self._ledger.by_state(table, state, **options)
        shown_until = self._clock.now() - self._lag
        return Page(
            tuple(row for row in page.rows if self._written.get(row.key, shown_until) <= shown_until), page.cursor
        )


def run_batches(scenario: JobScenario, requests: Iterable[datetime], cycle_seconds: float) -> int:
    """Deliver requests in order, as a queue with one message group does. Return how many cycles ran."""
    waiting, cycles = sorted(requests), 0
    clock = scenario.world.clock
    while waiting:
        clock.set(max(clock.now(), waiting[0]))
        batch = [at for at in waiting[:BATCH] if at <= clock.now()]
        waiting = waiting[len(batch) :]
        outcome = schedule_jobs.run(scenario.context(), requested_at=entry.newest_sent_at(a_batch(*batch)))
        if not outcome.was_skipped:
            cycles += 1
            clock.advance(cycle_seconds)
    return cycles


def test_number_of_cycles_does_not_grow_with_number_of_requests() -> None:
    scenario = JobScenario()
    start = scenario.world.clock.now()
    requests = [start + timedelta(seconds=30 * number / 1000) for number in range(1000)]

    cycles = run_batches(scenario, requests, cycle_seconds=3)

    assert cycles <= (30 + ANSWER_MARGIN.total_seconds()) / 3 + 2


def test_requests_sent_at_once_need_three_cycles() -> None:
    scenario = JobScenario()
    scenario.world.clock.advance(1)

    assert run_batches(scenario, [scenario.world.clock.now()] * 1000, cycle_seconds=3) == 3


@settings(max_examples=examples(100))
@given(
    after=st.lists(st.floats(0, 8), min_size=4, max_size=12),
    cycle_seconds=st.floats(0.1, 3),
    lag_seconds=st.floats(3, 4),
    batch_size=st.integers(1, 2),
)
def test_no_request_for_a_cycle_is_lost(
    after: list[float], cycle_seconds: float, lag_seconds: float, batch_size: int
) -> None:
    scenario = JobScenario(size=len(after))
    clock = scenario.world.clock
    lagging = LaggingLedger(scenario.world.ledger, clock, lag_seconds)
    scenario.ledger = lagging  # type: ignore[assignment]  # the part of the ledger that services call
    coming = sorted(clock.now() + timedelta(seconds=delay) for delay in after)
    jobs: dict[str, datetime] = {}
    queue: list[datetime] = []

    def submit_until(now: datetime) -> None:
        """Submit each job at its own time, and request a cycle for it."""
        while coming and coming[0] <= now:
            at = coming.pop(0)
            clock.set(at)
            jobs[scenario.submit(f"key-{len(jobs)}", nodes=1).job_id] = at
            queue.append(at)
        clock.set(now)

    while coming or queue:
        if not queue:
            submit_until(max(clock.now(), coming[0]))
        batch, queue[:] = queue[:batch_size], queue[batch_size:]
        outcome = schedule_jobs.run(scenario.context(), requested_at=entry.newest_sent_at(a_batch(*batch)))
        if outcome.was_skipped:
            job_states = {scenario.job(name).state for name, at in jobs.items() if at <= batch[-1]}
            assert job_states == {JobState.STARTING}
        else:
            submit_until(clock.now() + timedelta(seconds=cycle_seconds))


def test_only_cycle_that_starts_after_margin_answers_a_request() -> None:
    assert is_answered(A_MOMENT, A_MOMENT + ANSWER_MARGIN)
    assert not is_answered(A_MOMENT, A_MOMENT + ANSWER_MARGIN - timedelta(milliseconds=1))


def test_cycle_with_an_unreadable_cluster_answers_no_earlier_request() -> None:
    scenario = JobScenario()
    scenario.submit()
    sent = scenario.world.clock.now()
    scenario.world.clock.advance(60)
    scenario.world.cluster.unreadable_lists[CLUSTER] = {"*"}
    with pytest.raises(Unreachable):
        schedule_jobs.run(scenario.context(), requested_at=sent)

    assert scenario.world.ledger.get(quota_rows.finished_cycle_key()) is None


def test_cycle_started_by_the_schedule_is_never_skipped() -> None:
    scenario = JobScenario()
    schedule_jobs.run(scenario.context(), requested_at=scenario.world.clock.now())
    scenario.submit()

    outcome = schedule_jobs.run(scenario.context(), requested_at=entry.newest_sent_at({}))

    assert (outcome.was_skipped, len(outcome.admitted)) == (False, 1)


def test_batch_of_cycle_requests_counts_from_its_newest() -> None:
    later = A_MOMENT + timedelta(seconds=3)

    assert entry.newest_sent_at(a_batch(later, A_MOMENT)) == later
    assert entry.newest_sent_at({"Records": [*a_batch(later)["Records"], {"messageId": "m", "body": "{}"}]}) is None
