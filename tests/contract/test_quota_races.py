"""Freed quota goes to its owner, even if an attempt is settled between any two ledger calls of a scheduling cycle. The
same tests run on the in-memory ledger, DynamoDB in moto, and DynamoDB on the engine.
"""

import itertools
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.ports import Ledger, Table
from evenkeel.services.storage import charge_rows
from evenkeel.services.tables import job_rows
from tests.contract.test_ledger import ledger as three_beds
from tests.fakes import InMemoryLedger
from tests.interleaving import InterleavedLedger, at_every_point
from tests.unit.scheduling.test_sharing import a_team
from tests.unit.services_jobs.job_scenario import JobScenario
from tests.unit.services_jobs.test_teams import MEMBERS, set_up_teams

ledger = three_beds


def a_fleet(ledger: Ledger, run: str, *, teams: bool, size: int) -> JobScenario:
    scenario = JobScenario(size=size)
    scenario.world.ledger = scenario.ledger = ledger  # type: ignore[assignment]
    # DynamoDB remembers the tokens of commits, so two runs in one account need different ids.
    scenario.world.ids._numbers = itertools.count(1000 * zlib.crc32(run.encode()))
    if teams:
        set_up_teams(scenario, a_team("red", 16, members=MEMBERS))
    return scenario


def alpha_and_beta(scenario: JobScenario, team: str) -> tuple[Job, Job]:
    """Run `alpha` on one node; `beta`, which is younger, waits for two."""
    alpha = scenario.submit("alpha", team=team, nodes=1)
    scenario.run_scheduling_cycle()
    scenario.run_attempt(alpha.job_id, 1)
    scenario.world.clock.advance(1)
    beta = scenario.submit("beta", team=team, nodes=2)
    scenario.run_scheduling_cycle()
    assert (scenario.job(alpha.job_id).state, scenario.job(beta.job_id).state) == (JobState.RUNNING, JobState.PENDING)
    return alpha, beta


def lose_node(scenario: JobScenario, job: Job) -> None:
    scenario.world.cluster.remove_node(scenario.attempt(job.job_id).node_names[0])


def end_pods(scenario: JobScenario, job: Job) -> None:
    scenario.world.cluster.stop(scenario.attempt(job.job_id), 0)


def run_cycle(scenario: JobScenario, at: int, act: Callable[[], Any], *, lags: bool) -> int:
    """Run one cycle with `act` before its ledger call number `at`; return how many calls it made."""
    real = scenario.ledger
    interleaved = InterleavedLedger(real, at, act, lags=lags)
    scenario.ledger = interleaved  # type: ignore[assignment]
    try:
        scenario.run_scheduling_cycle()
    finally:
        scenario.ledger = real
    return interleaved.calls


RACES = {
    "memory-lost-node": ("memory", "red", 4, lose_node),
    "memory-ended-pods": ("memory", "red", 4, end_pods),
    "memory-no-teams": ("memory", "default", 2, end_pods),
    "moto-lost-node": ("moto", "red", 4, lose_node),
    "engine-lost-node": ("engine", "red", 4, lose_node),
}
"""The ledger, the team, the job's accelerators and its interruption, by name."""
IN_ALL_TESTS = ("moto-lost-node-index-current", "moto-lost-node-index-lags", "engine-lost-node-index-current")
"""Cases of `make test`. The contract tests show that all ledgers answer alike, and a late index is the harder case."""


def races() -> Iterator[Any]:
    """Yield each race with a current index, and with a late index."""
    for name, race in RACES.items():
        for lags in (False, True):
            case = f"{name}-index-{'lags' if lags else 'current'}"
            yield pytest.param(*race, lags, id=case, marks=[pytest.mark.exhaustive] if case in IN_ALL_TESTS else [])


@pytest.mark.parametrize(("ledger", "team", "size", "interrupt", "lags"), list(races()), indirect=["ledger"])
def test_interrupted_job_keeps_quota_from_younger_job(
    unique: str,
    request: pytest.FixtureRequest,
    ledger: Ledger,
    team: str,
    size: int,
    interrupt: Callable[[JobScenario, Job], None],
    lags: bool,
) -> None:
    fresh = fresh_ledgers(ledger, request)

    def run(at: int) -> int:
        scenario = a_fleet(next(fresh), f"{unique}-{at}", teams=team == "red", size=size)
        alpha, beta = alpha_and_beta(scenario, team)
        interrupt(scenario, alpha)

        calls = run_cycle(scenario, at, lambda: scenario.settle(alpha.job_id), lags=lags)
        scenario.settle(alpha.job_id)
        scenario.run_scheduling_cycle()

        assert (scenario.job(alpha.job_id).state, scenario.job(beta.job_id).state) == (
            JobState.STARTING,
            JobState.PENDING,
        ), f"settled before call {at}: {scenario.job(alpha.job_id).reason}"
        charges = charge_rows.load_charges(scenario.world.ledger)
        assert [charge.job_id for charge in charges.live] == [alpha.job_id]
        assert not charges.released
        return calls

    assert len(list(at_every_point(run))) >= 6


def fresh_ledgers(ledger: Ledger, request: pytest.FixtureRequest) -> Any:
    """Yield an empty ledger for each run: a new one in memory, or the same tables emptied."""
    while True:
        if isinstance(ledger, InMemoryLedger):
            yield InMemoryLedger()
            continue
        yield ledger
        delete_rows(ledger)


def delete_rows(ledger: Any) -> None:
    for table in Table:
        name = ledger._table_name(table)
        for page in ledger._client.get_paginator("scan").paginate(TableName=name):
            for item in page["Items"]:
                ledger._client.delete_item(TableName=name, Key={"pk": item["pk"], "sk": item["sk"]})


def test_cycle_deletes_released_charge_of_cancelled_job() -> None:
    scenario = JobScenario(size=2)
    alpha, beta = alpha_and_beta(scenario, "default")
    end_pods(scenario, alpha)
    scenario.settle(alpha.job_id)
    scenario.cancel(alpha.job_id)

    scenario.run_scheduling_cycle()

    charges = charge_rows.load_charges(scenario.world.ledger)
    assert [charge.job_id for charge in charges.live] == [beta.job_id]
    assert not charges.released


def test_cycle_reads_again_if_a_settlement_is_partly_visible() -> None:
    scenario = JobScenario(size=2)
    alpha, beta = alpha_and_beta(scenario, "default")
    end_pods(scenario, alpha)
    running = scenario.world.ledger.get(job_rows.job_key(alpha.job_id))
    scenario.settle(alpha.job_id)
    torn = PartlyVisibleLedger(scenario.world.ledger, running)
    scenario.ledger = torn  # type: ignore[assignment]

    scenario.run_scheduling_cycle()

    assert torn.shown == 1
    assert (scenario.job(alpha.job_id).state, scenario.job(beta.job_id).state) == (JobState.STARTING, JobState.PENDING)


class PartlyVisibleLedger:
    """A ledger that returns an old version of one row once: a read may see only a part of a transaction."""

    def __init__(self, ledger: Ledger, row: Any) -> None:
        self._ledger, self._row = ledger, row
        self.shown = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def batch_get(self, *keys: Any) -> Any:
        rows = self._ledger.batch_get(*keys)
        if self._row.key in keys and not self.shown:
            self.shown += 1
            return tuple(self._row if key == self._row.key else row for key, row in zip(keys, rows, strict=True))
        return rows
