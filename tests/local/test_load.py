"""Four threads of cycles, many submitters and three workers on the engine's DynamoDB. Sometimes one of them dies.

The tables and their transactions are the engine's; nodes and workflows are in-memory fakes (`tests/load_test.py`).
"""

from pathlib import Path

import pytest

from evenkeel.domain.jobs.job import JobState
from evenkeel_local.engine import Engine
from tests import load_test


@pytest.mark.timeout(600)  # 200 jobs take a quiet machine half a minute, and a busy one its time
@pytest.mark.parametrize(
    ("jobs", "submitters", "deaths"), [(36, 12, 0.05), pytest.param(200, 50, 0.01, marks=pytest.mark.exhaustive)]
)
def test_concurrent_submissions_exceed_no_quota_and_start_once(
    jobs: int, submitters: int, deaths: float, tmp_path: Path
) -> None:
    with Engine.start(tmp_path) as engine:  # its own engine, without the fleet's sweeps and cycles
        ledger = load_test.ledger_of(engine)
        outcome = load_test.run(
            ledger, load_test.Load(jobs, submitters=submitters, deaths=deaths, patience_seconds=500)
        )

    assert outcome.errors == []
    assert outcome.faults == []
    assert (len(outcome.jobs), outcome.states) == (jobs, {JobState.SUCCEEDED})
    assert outcome.died > 0
    assert outcome.preempted > 0
    assert outcome.admissions == outcome.attempts
