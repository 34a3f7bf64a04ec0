"""A team is removed only from the set-up that the caller read."""

from typing import Any

import pytest

from evenkeel.ports import Add, Conflict, Write
from evenkeel.services.admin import remove_team
from evenkeel.services.admin.remove_team import TeamInUse
from evenkeel.services.storage import team_setup
from evenkeel.services.tables import quota_rows
from tests.fakes.crashes import Crash, CrashingLedger, CrashTiming
from tests.unit.services_jobs.job_scenario import JobScenario
from tests.unit.services_jobs.test_teams import shared_fleet


def remove_team_at(scenario: JobScenario, ledger: Any = None, version: int = 1) -> remove_team.RemoveTeamResult:
    request = remove_team.RemoveTeamRequest(team="blue", expected=version, by="role/Platform", reason="Merged.")
    return remove_team.run(request, scenario.context(ledger=ledger or scenario.ledger))


def tree_version(scenario: JobScenario) -> int:
    row = scenario.world.ledger.get(quota_rows.tree_key())
    return row.version if row else 0


class ConcurrentAdmissionLedger:
    """A ledger into which a cycle admits a job of the team between the read and the commit."""

    def __init__(self, scenario: JobScenario) -> None:
        self._story = scenario
        self._is_first = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._story.world.ledger, name)

    def commit(self, *writes: Write, client_token: str = "") -> None:
        if self._is_first:
            self._is_first = False
            self._story.submit(team="blue", nodes=1)
            self._story.run_scheduling_cycle()
        self._story.world.ledger.commit(*writes, client_token=client_token)


def test_removal_raises_the_tree_version_and_requests_a_cycle() -> None:
    scenario = shared_fleet()
    before, requests_before = tree_version(scenario), len(scenario.world.cycle_requests.reasons)

    outcome = remove_team_at(scenario)

    assert outcome.was_there
    assert tree_version(scenario) == before + 1
    assert scenario.world.cycle_requests.reasons[requests_before:] == ["Team blue removed"]
    assert [team.name for team in team_setup.load_setup(scenario.world.ledger).setup.teams] == ["red"]


def test_concurrent_admission_prevents_the_removal() -> None:
    scenario = shared_fleet()

    with pytest.raises(TeamInUse, match="still holds quota"):
        remove_team_at(scenario, ConcurrentAdmissionLedger(scenario))

    assert "blue" in team_setup.load_setup(scenario.world.ledger).setup.by_name


@pytest.mark.parametrize("when", [CrashTiming.BEFORE, CrashTiming.AFTER])
def test_crash_removes_the_team_completely_or_not_at_all(when: CrashTiming) -> None:
    scenario = shared_fleet()

    with pytest.raises(Crash):
        remove_team_at(scenario, CrashingLedger(scenario.world.ledger, 1, when))
    outcome = remove_team_at(scenario)

    assert outcome.was_there is (when is CrashTiming.BEFORE)
    assert "blue" not in team_setup.load_setup(scenario.world.ledger).setup.by_name


def test_recreated_team_keeps_its_spending() -> None:
    scenario = shared_fleet()
    key = quota_rows.spent_key("blue", "2026-11")
    scenario.world.ledger.commit(Add(key, {"gpuSeconds": 5}))

    remove_team_at(scenario)

    row = scenario.world.ledger.get(key)
    assert row
    assert row.doc["gpuSeconds"] == 5


def test_removal_during_other_changes_is_a_conflict() -> None:
    scenario = shared_fleet()

    class ConflictingLedger:
        def __getattr__(self, name: str) -> Any:
            return getattr(scenario.world.ledger, name)

        def commit(self, *_writes: Write, **_more: Any) -> None:
            raise Conflict("Somebody was first.")

    with pytest.raises(Conflict):
        remove_team_at(scenario, ConflictingLedger())
