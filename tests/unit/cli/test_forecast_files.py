"""Wrong files and windows of `evenkeel economics forecast`: an error names the field, never a traceback."""

from pathlib import Path

import pytest

from tests.unit.api.seeds import a_fleet_node, store
from tests.unit.cli.conftest import CliFixture

PRICE = ("--usd-per-gpu-hour", "5")


@pytest.fixture
def fleet(cli: CliFixture) -> CliFixture:
    store(cli.gateway.fakes.ledger, *(a_fleet_node(number) for number in range(1, 4)))
    return cli


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("groups: 7", "groups must be a list, not 7."),
        ("groups:", "groups must be a list, not null."),
        ("groups: {a: 1}", "groups must be a list, not"),
        ("groups: [7]", "groups[0] must be an object, not 7."),
        ("groups: &a [*a]", "an alias refers to the object or list that contains it"),
        (f"groups: {'[' * 900}{']' * 900}", "groups[0] must be an object, not a list."),
        (f"groups: {'9' * 5000}", "is not valid YAML or JSON"),
        ("groups: [{name: a, nodes: .nan, gpusPerNode: 8}]", "groups[0].nodes must be a finite number, not nan."),
        ("groups: [{name: [1], nodes: 1, gpusPerNode: 8}]", "groups[0].name must be text, not a list."),
        ("[]", "must have one document, an object."),
    ],
)
@pytest.mark.parametrize(
    "more", [(), ("--usd-per-gpu-hour", "5"), ("--fleet",), ("--fleet", "--usd-per-gpu-hour", "5")]
)
def test_wrong_fleet_file_names_its_field(
    fleet: CliFixture, tmp_path: Path, text: str, message: str, more: tuple[str, ...]
) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(text)

    result = fleet.run("economics", "forecast", "--file", str(file), *more)

    assert (result.exit_code, result.out) == (2, "")
    assert message in result.err


def test_history_of_seconds_gives_unknown_figures(fleet: CliFixture) -> None:
    out = fleet.run("economics", "forecast", "--fleet", "--days", "0.0001", "-o", "json").out

    assert '"failuresPerMonth": 0' not in out
    assert '"failuresPerMonth": null' in out
