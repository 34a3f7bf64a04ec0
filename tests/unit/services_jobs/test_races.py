"""Two equal concurrent calls: one takes effect, and the other finds its effect."""

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

from evenkeel.domain.jobs.attempt import AttemptState
from evenkeel.domain.jobs.job import JobState
from evenkeel.domain.jobs.settlement import SettleOutcome
from evenkeel.ports import Key, Ledger, Row
from evenkeel.services.attempts.launch_job import LaunchOutcome
from evenkeel.services.jobs.cancel_job import CancelOutcome
from tests.unit.services_jobs.job_scenario import JobScenario

RIVALS = 4


class KeyBarrierLedger:
    """Pauses every writer after its read of a row, so that all writers hold the same version."""

    def __init__(self, ledger: Ledger, key: str) -> None:
        self._ledger = ledger
        self._key = key
        self._barrier = Barrier(RIVALS)
        self.meets = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def get(self, key: Key) -> Row | None:
        row = self._ledger.get(key)
        if self._key in f"{key.pk}/{key.sk}" and self.meets < RIVALS:
            self.meets += 1
            self._barrier.wait(60)
        return row


def call_twice_concurrently(scenario: JobScenario, key: str, act: Callable[[], Any]) -> list[Any]:
    scenario.ledger = KeyBarrierLedger(scenario.world.ledger, key)  # type: ignore[assignment]
    with ThreadPoolExecutor(RIVALS) as threads:
        return [future.result(90) for future in [threads.submit(act) for _ in range(RIVALS)]]


def test_concurrent_equal_submissions_create_one_job() -> None:
    scenario = JobScenario()

    outcomes = call_twice_concurrently(scenario, "IDEM#", scenario.submission)

    assert len({outcome.job.job_id for outcome in outcomes}) == 1
    assert Counter(outcome.is_repeat for outcome in outcomes) == {True: RIVALS - 1, False: 1}


def test_workflow_and_sweeper_settle_one_attempt_once() -> None:
    scenario = JobScenario()
    job = scenario.running()
    scenario.world.cluster.fail_pods(job.job_id, 1)

    results = call_twice_concurrently(scenario, "ATTEMPT#", lambda: scenario.settle(job.job_id))

    counted = Counter(result.outcome for result in results)
    assert counted == {SettleOutcome.JOB_REQUEUED: 1, SettleOutcome.ALREADY_SETTLED: RIVALS - 1}
    assert (scenario.usage(), scenario.charges(), scenario.job(job.job_id).application_failures) == (0, [], 1)


def test_concurrent_cancel_and_settlement_have_one_result() -> None:
    scenario = JobScenario()
    job = scenario.running()
    scenario.world.cluster.fail_pods(job.job_id, 1)
    acts: Iterator[Callable[[str], Any]] = iter([scenario.cancel, scenario.settle, scenario.cancel, scenario.settle])

    call_twice_concurrently(scenario, "/META", lambda: next(acts)(job.job_id))

    # In any order, the attempt is settled, and a cancelled job leaves the queue. A settlement after
    # the cancel finds pods that ended on request.
    assert scenario.attempt(job.job_id).state in {AttemptState.FAILED, AttemptState.STOPPED}
    assert scenario.job(job.job_id).state is JobState.CANCELLED
    assert scenario.usage() == 0


def test_one_of_many_concurrent_cancels_is_recorded() -> None:
    scenario = JobScenario()
    job = scenario.submit()

    results = call_twice_concurrently(scenario, "/META", lambda: scenario.cancel(job.job_id))

    assert {result.outcome for result in results} == {CancelOutcome.CANCELLED}
    assert scenario.timeline(job.job_id).count("cancelled") == 1


def test_concurrent_launches_create_one_job_and_one_pin() -> None:
    scenario = JobScenario()
    job = scenario.started()

    def launch() -> str:
        try:
            return scenario.launch(job.job_id).outcome
        except Exception as error:  # noqa: BLE001 - a rival's commit is a conflict, and its workflow retries
            return type(error).__name__

    outcomes = call_twice_concurrently(scenario, "ATTEMPT#", launch)

    assert set(outcomes) <= {LaunchOutcome.LAUNCHED, "Conflict"}
    assert LaunchOutcome.LAUNCHED in outcomes
    assert [call[0] for call in scenario.world.cluster.calls].count("launch") >= 1
    assert len(scenario.world.cluster.workloads(job.cluster)) == 1
    assert scenario.launch(job.job_id).outcome is LaunchOutcome.LAUNCHED
