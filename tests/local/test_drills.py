"""Each drill injects a real fault into a running data centre. The job ends with the weights of an undisturbed run."""

import pytest

from evenkeel_local.data_centre import DataCentre
from evenkeel_local.drills import DRILLS, SHARED, run

EACH_TIME = ("app-crash", "gpu-xid79", "node-lost")
"""Drills of `make test`; `make drills` runs the rest in a quarter of an hour more. `no-capacity` covers the faults of
`stuck-replace`.
"""


@pytest.mark.timeout(420)  # one drill deploys a release, which takes long on a busy machine
@pytest.mark.parametrize(
    "name", [name if name in EACH_TIME else pytest.param(name, marks=pytest.mark.drills) for name in sorted(SHARED)]
)
def test_drill_passes_every_check(name: str, data_centre: DataCentre) -> None:
    result = run(DRILLS[name], data_centre, seed=2026)

    assert result.failures() == []
    assert result.checks
