"""`evenkeel incidents receipt` and `evenkeel jobs receipt`: text of 80 columns, and JSON as from the API."""

import json

import pytest

from tests.unit.api.seeds import store
from tests.unit.api.test_receipts import a_lost_job, an_incident_of, store_resume_plan
from tests.unit.cli.conftest import CliFixture

STAGES = """\
    STAGE           FROM          LOST  GPU-HOURS     COST  UNTIL
    repeated work   09:05:02Z   10m00s       2.67   $22.02  first signal
    detection       09:15:02Z      30s       0.13    $1.10  incident opened
    decision        09:15:32Z      10s       0.04    $0.37  recovery planned
    drain           09:15:42Z    1m20s       0.36    $2.94  attempt 1 ended
    wait for nodes  09:17:02Z    4m00s       1.07    $8.81  attempt 2 admitted
    launch          09:21:02Z      20s       0.09    $0.73  attempt 2 launched
    restart         09:21:22Z    1m40s       0.44    $3.67  every pod of attempt
                                                            2 runs
    restore         –          unknown    unknown  unknown  not recorded
    sum                         18m00s       4.80   $39.63
"""


@pytest.fixture
def fleet(cli: CliFixture) -> CliFixture:
    job, lost_attempt, resumed_attempt = a_lost_job()
    incident = an_incident_of(job)
    store(cli.gateway.fakes.ledger, job, lost_attempt, resumed_attempt, incident)
    store_resume_plan(cli.gateway, job, incident)
    return cli


@pytest.mark.parametrize("words", [("incidents", "receipt", "@latest"), ("jobs", "receipt", "llama-1")])
def test_receipt_shows_each_stage_within_80_columns(fleet: CliFixture, words: tuple[str, ...]) -> None:
    result = fleet.run(*words, terminal=True)

    assert result.exit_code == 0, result.err
    plain_output = result.out.replace("\x1b[1m", "").replace("\x1b[0m", "").replace("\x1b[2m", "")
    assert STAGES in plain_output
    assert max(map(len, plain_output.splitlines())) <= 80


def test_unmeasured_time_is_unknown_and_not_zero(fleet: CliFixture) -> None:
    lines = [line.split() for line in fleet.run("jobs", "receipt", "llama-1").out.splitlines()]

    assert ["restoring", *["unknown"] * 4] in lines
    assert ["checkpointing", *["unknown"] * 4] in lines
    assert ["starting", "0s", "0.0%", "0.00", "$0.00"] in lines


def test_receipt_separates_estimates_from_measurements(fleet: CliFixture) -> None:
    lines = fleet.run("incidents", "receipt", "@latest").out.splitlines()

    assert "  cost  at least 6.40 GPU-hours, $52.84" in lines
    at = lines.index("  Estimates, not measurements: the same interruption without Evenkeel")
    assert lines[at + 1].split() == ["INSTEAD", "OF", "STANDSTILL", "SAVED", "COST"]
    assert (
        "  An estimate, not a measurement. Without Evenkeel, the work since the last checkpoint is lost, too." in lines
    )


def test_receipt_as_json_equals_the_api_response(fleet: CliFixture) -> None:
    document = json.loads(fleet.run("incidents", "receipt", "inc-0000000001", "-o", "json").out)

    assert document == fleet.gateway.get("/v1/incidents/inc-0000000001/receipt").document
