"""Every node fails at once, and each fault is reported many times."""

from pathlib import Path

import pytest

from evenkeel_local.data_centre import DataCentre
from evenkeel_local.drills import DRILLS, run


@pytest.mark.drills
@pytest.mark.timeout(720)  # it starts its own data centre, which takes long on a busy machine
def test_storm_of_faults_passes_every_check(tmp_path: Path) -> None:
    drill = DRILLS["storm"]

    with DataCentre.start(tmp_path, fleet=drill.fleet) as centre:
        result = run(drill, centre, seed=2026)

    assert result.failures() == []
    assert result.checks
