"""Each scenario with IAM enforced: several jobs compete for nodes, and every check passes."""

import pytest

from evenkeel_local.data_centre import DataCentre
from evenkeel_local.scenarios import SCENARIOS, run


@pytest.mark.drills
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario_passes_every_check(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    scenario = SCENARIOS[name]
    with DataCentre.start(tmp_path_factory.mktemp(f"scenario-{name}"), fleet=scenario.fleet) as centre:
        result = run(scenario, centre)

    assert result.failures() == []
    assert result.checks
