"""Every machine sickens at once, and is told of far more often than once."""

from pathlib import Path

import pytest

from evenkeel_local.data_centre import DataCentre
from evenkeel_local.drills import DRILLS, run


@pytest.mark.drills
@pytest.mark.timeout(720)  # it brings up a data centre of its own, and a busy machine takes its time
def test_storm_loses_and_repeats_nothing_and_excess_repairs_wait(tmp_path: Path) -> None:
    drill = DRILLS["storm"]

    with DataCentre.start(tmp_path, fleet=drill.fleet) as centre:
        result = run(drill, centre, seed=2026)

    assert result.failures() == []
    assert result.checks
