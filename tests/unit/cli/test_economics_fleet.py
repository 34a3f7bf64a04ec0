"""`evenkeel economics forecast` and `commitment`: from files, and from the fleet's own records."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from evenkeel.domain.health.incidents import StageTimes
from tests.unit.api.seeds import a_fleet_node, a_job, a_life, affected, ago, an_attempt, an_incident, store
from tests.unit.cli.conftest import CliFixture, leave_out
from tests.unit.cli.test_economics import json_output, run
from tools.schemas import schemas

Json = dict[str, Any]
EXAMPLES = Path(__file__).resolve().parents[3] / "docs" / "examples" / "economics"
PRICES = ("--reserved-usd-per-hour", "3", "--on-demand-usd-per-hour", "5")


# ---------------------------------------------------------------- forecast from a file


@pytest.mark.parametrize(("file", "schema"), [("fleet", "economics.forecast"), ("observations", "economics.rate")])
def test_economics_example_files_match_their_schemas(file: str, schema: str) -> None:
    document = yaml.safe_load((EXAMPLES / f"{file}.yaml").read_text())

    jsonschema.Draft202012Validator(schemas()[schema]).validate(document)


def test_example_forecast_shows_cheaper_strategies_after_dearer_ones() -> None:
    document = json_output("forecast", "--file", str(EXAMPLES / "fleet.yaml"))
    usd = {total["strategy"]: total["usdPerMonth"] for total in document["totals"]}

    assert list(usd) == ["manual", "hyperpod-unchanged", "evenkeel-configured", "evenkeel-possible"]
    assert usd["manual"] > usd["hyperpod-unchanged"] > usd["evenkeel-possible"]
    assert {group["end"] for group in document["groups"]} == {"low", "estimate", "high"}
    assert len(document["assumptions"]) >= 10


def test_price_option_applies_to_groups_without_a_price(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("groups: [{name: a, nodes: 4, gpusPerNode: 8, failures: 2, nodeHours: 900}]")

    assert json_output("forecast", "--file", str(file))["totals"][0]["usdPerMonth"] is None
    assert json_output("forecast", "--file", str(file), "--usd-per-gpu-hour", "5")["totals"][0]["usdPerMonth"] > 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("groups: []", "groups "),
        ("name: x", "groups is required."),
        ("groups: [{name: a, nodes: 0, gpusPerNode: 8}]", "groups[0].nodes must be at least 1, not 0."),
        (
            "groups: [{name: a, nodes: 4, gpusPerNode: 8, usdPerGpuHour: -1}]",
            "usdPerGpuHour must be at least 0, not -1.",
        ),
        ("groups: 7", "groups must be a list, not 7."),
        ("[]", "must have one document, an object."),
    ],
)
def test_invalid_fleet_file_names_the_field(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(text)
    code, out, err = run("forecast", "--file", str(file))

    assert (code, out) == (2, "")
    assert message in err


def test_forecast_without_a_fleet_is_refused() -> None:
    assert run("forecast")[2].startswith("✖ The fleet is unknown: give --file, --fleet, or both.")


# ---------------------------------------------------------------- the fleet's own records


@pytest.fixture
def cli_with_history(cli: CliFixture) -> CliFixture:
    """Return a fleet with four nodes, a node removed yesterday, and incidents, of which two count as failures."""
    ledger = cli.gateway.fakes.ledger
    nodes = [a_fleet_node(number) for number in (1, 2, 3, 4)]
    node = a_fleet_node(5, is_gone=True, changed_at=ago(days=1))
    counted_incidents = [
        an_incident(number, fault_key="xid:79", first_signal_at=ago(hours=number)) for number in (1, 2)
    ]
    ignored = [
        an_incident(3, is_drill=True, first_signal_at=ago(hours=3)),
        an_incident(4, resumes="inc-0000000001", first_signal_at=ago(hours=1)),
        an_incident(5, fault_key="xid:8", first_signal_at=ago(hours=1)),
        an_incident(6, first_signal_at=ago(days=20)),
    ]
    store(ledger, *nodes, node, *counted_incidents, *ignored)
    return cli


def json_output_for_fleet(cli: CliFixture, *words: str) -> Json:
    result = cli.run("economics", *words, "-o", "json")
    assert result.exit_code == 0, result.err
    document: Json = json.loads(result.out)
    return document


def test_failure_rate_of_the_fleet_uses_recorded_node_hours(cli_with_history: CliFixture) -> None:
    document = json_output_for_fleet(cli_with_history, "rate", "--fleet", "--days", "10")

    (pool,) = document["groups"]
    assert (pool["group"], pool["failures"]) == ("p5-workers", 2)
    assert pool["nodeHours"] == pytest.approx(4 * 72 + 48)


def test_failure_rate_counts_only_hours_within_the_window(cli_with_history: CliFixture) -> None:
    (pool,) = json_output_for_fleet(cli_with_history, "rate", "--fleet", "--days", "0.0625", "--by", "instance-type")[
        "groups"
    ]

    assert (pool["group"], pool["failures"]) == ("ml.p5.48xlarge", 1)
    assert pool["nodeHours"] == pytest.approx(4 * 1.5)


def test_forecast_of_the_fleet_uses_its_recorded_failures(cli_with_history: CliFixture) -> None:
    document = json_output_for_fleet(cli_with_history, "forecast", "--fleet", "--days", "10", "--usd-per-gpu-hour", "5")

    rates = {group["end"]: group["failuresPerNodeHour"] for group in document["groups"]}
    assert rates["estimate"] == pytest.approx(2 / (4 * 72 + 48))
    assert rates["low"] < rates["estimate"] < rates["high"]
    assert any("Too few recoveries are measured" in assumption for assumption in document["assumptions"])


def test_file_overrides_recorded_figures_of_the_fleet(cli_with_history: CliFixture, tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("groups: [{name: p5-workers, nodes: 3, spares: 1, usdPerGpuHour: 2, failuresPerNodeHour: 0.001}]")
    document = json_output_for_fleet(cli_with_history, "forecast", "--fleet", "--file", str(file))

    row = next(
        group
        for group in document["groups"]
        if group["end"] == "estimate" and group["strategy"] == "evenkeel-configured"
    )
    assert row["failuresPerNodeHour"] == 0.001
    assert row["spareGpuHoursPerMonth"] == 8 * 730


def test_measured_recoveries_give_the_configured_downtime(cli_with_history: CliFixture) -> None:
    job = a_job(1, state="RUNNING", current_attempt=2)
    recovered = [
        an_incident(
            number,
            state="RECOVERED",
            life=a_life(number),
            first_signal_at=ago(hours=2),
            affected_jobs=affected(job),
            stages=StageTimes(detected_at=ago(hours=2), jobs_resumed_at=ago(hours=2, seconds=-300 - number)),
        )
        for number in range(11, 16)
    ]
    store(cli_with_history.gateway.fakes.ledger, job, *recovered)
    document = json_output_for_fleet(cli_with_history, "forecast", "--fleet", "--days", "10")

    assert any(
        "313 s from the signal until jobs ran, the median of 5" in assumption for assumption in document["assumptions"]
    )
    row = next(group for group in document["groups"] if group["strategy"] == "evenkeel-configured")
    assert row["downtimeSecondsPerFailure"] == 83 + 313


def store_lost_and_resumed_job(cli_fixture: CliFixture) -> None:
    """Store a job on two nodes that lost an attempt after an hour, and has run again for half an hour."""
    job = a_job(1, state="RUNNING", current_attempt=2)
    lost = an_attempt(job, state="LOST", running_at=ago(hours=2), ended_at=ago(hours=1))
    resumed = an_attempt(job, 2, admitted_at=ago(minutes=40), running_at=ago(minutes=30))
    store(cli_fixture.gateway.fakes.ledger, job, lost, resumed)


def test_failure_rate_by_job_size_uses_running_time(cli_with_history: CliFixture) -> None:
    store_lost_and_resumed_job(cli_with_history)

    document = json_output_for_fleet(cli_with_history, "rate", "--fleet", "--by", "job-size", "--days", "1")

    (pair,) = document["groups"]
    assert (pair["group"], pair["failures"], pair["nodeHours"]) == ("2-3", 1, 2 * 1.5)
    assert pair["failuresPerNodeHour"] == pytest.approx(1 / 3)


def test_failure_rate_by_job_size_without_a_run_is_unknown(cli_with_history: CliFixture) -> None:
    result = cli_with_history.run("economics", "rate", "--fleet", "--by", "job-size", "--days", "1")

    assert (result.exit_code, result.out) == (4, "")
    assert "No job ran in this window, so rates by job size are unknown." in result.err


def test_forecast_of_the_fleet_shows_mtbf_by_job_size(cli_with_history: CliFixture) -> None:
    store_lost_and_resumed_job(cli_with_history)

    document = json_output_for_fleet(cli_with_history, "forecast", "--fleet", "--days", "1")

    sizes = {size["group"]: size for size in document["jobSizes"]}
    assert (sizes["2-3"]["mtbfHours"], sizes["all"]["failures"]) == (1.5, 1)
    assert sizes["2-3"]["lowMtbfHours"] == pytest.approx(1.5 / 5.5716, rel=1e-4)
    assert any("at which size a job never ends" in text for text in document["assumptions"])


def test_stack_without_job_sizes_is_named_as_older(cli_with_history: CliFixture) -> None:
    leave_out(cli_with_history, "/v1/cost-report", "jobSizes")

    result = cli_with_history.run("economics", "rate", "--fleet", "--by", "job-size")

    assert (result.exit_code, result.out) == (4, "")
    assert "does not record job sizes" in result.err


def test_fleet_without_nodes_has_no_figures(cli: CliFixture) -> None:
    result = cli.run("economics", "forecast", "--fleet")

    assert (result.exit_code, result.out) == (4, "")
    assert "has no nodes with GPUs, so there is nothing to forecast" in result.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("rate", "--fleet", "--days", "31"), "--days must be above 0 and at most 30, not 31."),
        (("rate", "--fleet", "--by", "job-size", "--days", "31"), "--days must be above 0 and at most 30, not 31."),
    ],
)
def test_impossible_window_or_group_is_refused(
    cli_with_history: CliFixture, words: tuple[str, ...], message: str
) -> None:
    result = cli_with_history.run("economics", *words)

    assert (result.exit_code, result.out) == (2, "")
    assert message in result.err


# ---------------------------------------------------------------- commitment


def run_commitment(tmp_path: Path, name: str, text: str, *words: str) -> Json:
    file = tmp_path / name
    file.write_text(text)
    return json_output("commitment", "--demand", str(file), *PRICES, *words)


def test_commitment_advice_for_the_example_covers_its_base_load() -> None:
    words = ("--reserved-usd-per-hour", "24", "--on-demand-usd-per-hour", "55.04", "--gpus-per-node", "8")
    document = json_output("commitment", "--demand", str(EXAMPLES / "demand.csv"), *words, "--committed", "16")

    assert (document["hours"], document["best"]["units"], document["peakUnits"]) == (336, 11, 15)
    assert [unit["reserve"] for unit in document["units"]] == [True] * 11 + [False] * 4
    assert document["present"]["idleReservedUsd"] == document["present"]["idleReservedHours"] * 24


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("d.json", "[4, 4, 1, 0]"),
        ("d.yaml", "demand: [4, 4, 1, 0]"),
        ("d.csv", "4\n4\n1\n0\n"),
        ("d.csv", "gpus\n4\n4\n1\n0\n"),
        ("d.csv", "hour,GPUs\n0,4\n1,4\n2,1\n3,0\n"),
        ("d.csv", "at,in use\n2026-11-02T00:00,4\n2026-11-02T01:00,4\n2026-11-02T03:00,0\n2026-11-02T02:00,1\n"),
        (
            "d.json",
            json.dumps(
                {"Datapoints": [{"Timestamp": f"2026-11-02T0{h}:00:00Z", "Maximum": u} for h, u in enumerate("4410")]}
            ),
        ),
    ],
)
def test_demand_may_be_given_in_several_formats(tmp_path: Path, name: str, text: str) -> None:
    document = run_commitment(tmp_path, name, text, "--committed", "3")

    assert (document["hours"], document["unknownHours"], document["peakUnits"]) == (4, 0, 4)
    assert document["present"]["idleReservedUsd"] == 15


def test_missing_hours_of_demand_are_unknown(tmp_path: Path) -> None:
    document = run_commitment(tmp_path, "d.csv", "hour,gpus\n0,2\n5,2\n")

    assert (document["hours"], document["unknownHours"], document["units"][1]["demandShare"]) == (2, 4, 1)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("d.csv", "hour,gpus\n", "demand has no hour."),
        ("d.json", "[]", "demand has no hour."),
        ("d.json", "[1, -2]", "demand[1] must not be negative, not -2."),
        ("d.json", "[1, null]", "demand[1] must have a figure, not null; leave out hours that are unknown."),
        ("d.json", "[1, true]", "demand[1] must have a figure, not true"),
        ("d.json", "[NaN]", "demand[0] must be a"),
        ("d.csv", "hour,gpus\nnoon,3\n", "demand[0] must have an instant such as"),
        ("d.csv", "hour,gpus\n1,\n", 'demand[0] must have a figure, not ""'),
        ("d.json", '[{"hour": 1, "units": 2}, {"units": 3}]', "demand[1] must have an hour, because other rows"),
        ("d.json", "[1000000000]", "the highest demand must be a whole number from 0 to 100000, not 1000000000."),
        ("d.csv", "hour,gpus\n1,3\n1,4\n", "demand has two figures for the hour"),
        ("d.json", "7", "demand must be a list of hours."),
    ],
)
def test_invalid_demand_names_the_hour(tmp_path: Path, name: str, text: str, message: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    code, out, err = run("commitment", "--demand", str(file), *PRICES)

    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.parametrize(
    ("prices", "message"),
    [
        (
            ("--reserved-usd-per-hour", "-1", "--on-demand-usd-per-hour", "5"),
            "--reserved-usd-per-hour must be at least 0",
        ),
        (
            ("--reserved-usd-per-hour", "1", "--on-demand-usd-per-hour", "0"),
            "--on-demand-usd-per-hour must be more than 0",
        ),
        ((*PRICES, "--gpus-per-node", "0"), "--gpus-per-node must be a whole number from 1"),
        ((*PRICES, "--reserved-availability", "0"), "--reserved-availability must be above 0 and at most 1, not 0."),
    ],
)
def test_invalid_price_names_the_option(prices: tuple[str, ...], message: str) -> None:
    code, _, err = run("commitment", "--demand", str(EXAMPLES / "demand.csv"), *prices)

    assert code == 2
    assert message in err


# ---------------------------------------------------------------- commitment from the fleet's records


@pytest.fixture
def cli_with_demand(cli: CliFixture) -> CliFixture:
    """Return a fleet of four nodes that is three days old. Job 1 holds two nodes; job 2 held three nodes for a day."""
    ledger = cli.gateway.fakes.ledger
    store(ledger, *(a_fleet_node(number) for number in (1, 2, 3, 4)))
    times: tuple[Json, ...] = ({"admitted_at": ago(days=3)}, {"admitted_at": ago(hours=49), "ended_at": ago(hours=25)})
    for number, changes in enumerate(times, 1):
        job = a_job(number, state="RUNNING", submitted_at=changes["admitted_at"])
        kind: Json = {"instance_type": "ml.p5.48xlarge", "accelerators": 8 * (1 + number)}
        store(ledger, job, an_attempt(job, state="LOST" if "ended_at" in changes else "RUNNING", **changes, **kind))
    return cli


def test_commitment_advice_for_the_fleet_judges_each_additional_node(cli_with_demand: CliFixture) -> None:
    document = json_output_for_fleet(cli_with_demand, "commitment", "--fleet", *PRICES)

    assert (document["instanceType"], document["hours"], document["unknownHours"]) == ("p5.48xlarge", 71, 648)
    # Three more nodes from 09:15 to 09:15 the next day. On average 2.25 of them in the first hour, 0.75 in the last.
    assert [unit["usedHours"] for unit in document["units"]] == [71, 71, 25, 24, 24]
    assert (document["best"]["units"], document["present"]["units"]) == (2, 4)
    assert document["present"]["idleReservedHours"] == (71 - 25) + (71 - 24)
    assert document["notes"][0].startswith("Hours without a record: 648.")


def test_commitment_advice_for_the_fleet_needs_a_price(cli_with_demand: CliFixture) -> None:
    result = cli_with_demand.run("economics", "commitment", "--fleet")

    assert (result.exit_code, result.out) == (2, "")
    assert "--reserved-usd-per-hour is required, because this price is unknown." in result.err


def test_commitment_advice_uses_the_list_price_as_on_demand_price(cli_with_demand: CliFixture) -> None:
    document = json_output_for_fleet(cli_with_demand, "commitment", "--fleet", "--reserved-usd-per-hour", "30")

    assert document["breakEvenShare"] == pytest.approx(30 / 55.04)
    assert document["notes"][0].startswith("--on-demand-usd-per-hour 55.04: EC2 list price of p5.48xlarge")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ((), 2, "Give either --demand or --fleet."),
        (("--fleet", "--demand", "x.csv"), 2, "Give either --demand or --fleet."),
        (("--demand", "x.csv", "--waiting"), 2, "--demand excludes --waiting: only --fleet has it."),
        (("--demand", "x.csv", "--since", "7d", "--until", "1d"), 2, "--demand excludes --since and --until"),
        (("--fleet", "--gpus-per-node", "8"), 2, "--fleet excludes --gpus-per-node."),
        (("--fleet", "--instance-type", "p4d.24xlarge", *PRICES), 2, "--instance-type must be one of p5.48xlarge"),
        (("--fleet", "--since", "10m", *PRICES), 4, "The demand is unknown. No whole hour of the window"),
        (("--fleet", "--since", "1h", "--until", "2h", *PRICES), 2, "since"),
        (("--fleet", "--committed", "-1", *PRICES), 2, "--committed must be a whole number from 0"),
        (("--fleet", "--reserved-usd-per-hour", "-3"), 2, "--reserved-usd-per-hour must be at least 0"),
    ],
)
def test_invalid_commitment_option_is_refused(
    cli_with_demand: CliFixture, words: tuple[str, ...], code: int, message: str
) -> None:
    result = cli_with_demand.run("economics", "commitment", *words)

    assert (result.exit_code, result.out) == (code, "")
    assert message in result.err


def test_fleet_without_demand_has_no_advice(cli: CliFixture) -> None:
    result = cli.run("economics", "commitment", "--fleet", *PRICES)

    assert (result.exit_code, result.out) == (4, "")
    assert "no demand and no committed nodes" in result.err


def test_older_stack_without_demand_is_named(cli_with_demand: CliFixture) -> None:
    leave_out(cli_with_demand, "/v1/cost-report", "hours", "commitments")

    result = cli_with_demand.run("economics", "commitment", "--fleet", *PRICES)

    assert (result.exit_code, result.out) == (4, "")
    assert "the stack is older than this command" in " ".join(result.err.split())
    assert "Update the stack: make deploy" in result.err
