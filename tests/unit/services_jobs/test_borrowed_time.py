"""The cost report of jobs that a scheduling cycle admitted: borrowed and lent GPU-hours while quotas change."""

import pytest

from evenkeel.services.queries.costs import read_cost_report
from evenkeel.services.queries.disclosure import Reader
from tests.unit.scheduling.test_sharing import a_team
from tests.unit.services_jobs.test_teams import MEMBERS, set_up_teams, shared_fleet


def test_report_shows_borrowed_and_lent_after_jobs_and_quotas_changed() -> None:
    scenario = shared_fleet()
    start = scenario.world.clock.now()
    borrower = scenario.submit(team="red", nodes=3)
    scenario.run_scheduling_cycle()
    scenario.world.clock.advance(3600)
    set_up_teams(scenario, a_team("red", 24, members=MEMBERS), a_team("blue", 8, members=MEMBERS))
    scenario.world.clock.advance(3600)
    scenario.cancel(borrower.job_id)
    scenario.settle(borrower.job_id)
    scenario.world.clock.advance(60)

    report = read_cost_report.show_cost_report(read_cost_report.ReportWindow(start), Reader(), scenario.world.context())

    figures = ("gpuHours", "withinQuotaGpuHours", "borrowedGpuHours", "unknownQuotaGpuHours", "lentGpuHours")
    blue, red = ([team[figure] for figure in figures] for team in report["teams"])
    assert red == [48, 16 + 24, 8, 0, 0]
    assert blue == [0, 0, 0, 0, 8]
    assert report["knownQuotaHours"] == pytest.approx(2 + 1 / 60)
