"""`evenkeel report`: one screen, Markdown, HTML and CSV with equal figures."""

import csv
import json
import re
from io import StringIO

import pytest

from evenkeel_cli.render import Printer
from evenkeel_cli.report_page import draw_fleet_report
from tests.unit.api.seeds import a_fleet_node, store
from tests.unit.api.test_receipts import a_lost_job, an_incident_of
from tests.unit.cli.conftest import CliFixture, leave_out


@pytest.fixture
def fleet(cli: CliFixture) -> CliFixture:
    job, lost_attempt, resumed_attempt = a_lost_job()
    store(cli.gateway.fakes.ledger, job, lost_attempt, resumed_attempt, an_incident_of(job))
    store(cli.gateway.fakes.ledger, *(a_fleet_node(number) for number in range(1, 6)))
    return cli


def test_report_begins_with_the_figures_of_the_month(fleet: CliFixture) -> None:
    lines = fleet.run("report").out.splitlines()

    assert lines[:11] == [
        "window    2026-10-04T10:15Z to 2026-11-03T10:15Z",
        "GPU time  2,880 GPU-hours of 5 nodes",
        "          productive 0.7%, lost 0.1%, unknown 0.2%, in repair 0.1%, waiting 0.6%, no job 98.2%",
        "failures  1; 66.67 (1.69 to 371.44) per 1,000 node-days",
        "recovery  p50 8m00s, p99 8m00s, longest 8m00s (1 known)",
        "lost      at least 4.8 GPU-hours, $39.63, by failures",
        "ETTR      at most 85.0% of job time was productive",
        "idle      at most 2,847 GPU-hours, $23,502, on committed nodes",
        "rented    nothing; the policy rents nothing",
        "lemons    no node fails more often than the fleet",
        "job size  never ends from 13 nodes (3 to 501), where a failure costs 18m00s",
    ]
    assert lines[11].startswith("saved     estimate against HyperPod unchanged: -0.8 to 2.3 GPU-hours")


def test_cost_report_shows_every_group_within_80_columns(fleet: CliFixture) -> None:
    result = fleet.run("report", terminal=True)

    plain_output = result.out.replace("\x1b[1m", "").replace("\x1b[0m", "").replace("\x1b[2m", "")
    assert max(map(len, plain_output.splitlines())) <= 80
    assert plain_output.count("p5-work") == 6  # lost, MTBF twice, nodes, GPU time twice
    assert re.search(r"p5-workers / +1 +15 d +64\.6 h to 592 d +20m00s +8m00s\n  hardware\n", plain_output)
    assert "  1. Use idle committed nodes" in plain_output


def test_unknown_commitment_fits_80_columns(fleet: CliFixture) -> None:
    report = json.loads(fleet.run("report", "-o", "json").out)
    unknown = dict.fromkeys(("peakNodes", "best", "bestWithWaiting", "present"))
    report["commitments"] = [
        {
            "instanceType": "p5.48xlarge",
            "hours": 0,
            "unknownHours": 702,
            "committedNodes": 5,
            "whyUnknown": "",
            **unknown,
        }
    ]
    stream = StringIO()

    draw_fleet_report(Printer(stream, {}, columns=80), report, is_wide=False)

    assert re.search(r"\n  p5\.48xlarge +0 +702 +5( +unknown){5}\n", stream.getvalue())


def test_report_of_an_empty_fleet_shows_unknown_figures(cli: CliFixture) -> None:
    out = cli.run("report").out

    assert "failures  0; unknown per 1,000 node-days" in out
    assert "recovery  unknown: no interruption with a known end" in out
    assert "ETTR      at most unknown of job time" not in out
    assert "saved     unknown: no interruption allows an estimate" in out
    assert "lemons    unknown" in out


def test_report_as_csv_has_one_line_per_figure(fleet: CliFixture) -> None:
    rows = list(csv.DictReader(StringIO(fleet.run("report", "-o", "csv").out)))
    values = {(row["section"], row["item"], row["figure"]): row["value"] for row in rows}

    assert values["stages.time", "DRAIN", "p50Seconds"] == "80.0"
    assert values["stages.time", "RESTORE", "p50Seconds"] == ""
    assert values["failures.nodes", "i-00000000000000001", "failures"] == "1"
    assert values["pools.uses", "p5-workers / NO_JOB", "gpuHours"].startswith("2829.6")
    assert len(values) == len(rows)


def test_report_as_markdown_has_every_table(fleet: CliFixture) -> None:
    text = fleet.run("report", "-o", "md").out

    assert text.startswith("# Costs of the fleet\n")
    assert "## Downtime by stage" in text
    assert "| restore | unknown | unknown | unknown | 0 | 1 | unknown | unknown |" in text


def test_html_report_has_charts_loads_nothing_and_escapes_names(fleet: CliFixture) -> None:
    store(fleet.gateway.fakes.ledger, a_fleet_node(9, pool="<script>alert(1)</script>"))

    text = fleet.run("report", "-o", "html").out

    assert text.startswith("<!doctype html>")
    assert 'aria-label="GPU time by use"' in text
    assert 'aria-label="GPU-hours lost by stage"' in text
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert not re.search(r"(?:src|href)=|url\(|@import", text)


def test_report_sends_its_window_and_prints_the_response_as_json(fleet: CliFixture) -> None:
    document = json.loads(fleet.run("report", "--since", "12h", "--until", "1h", "-o", "json").out)

    assert (document["since"][:19], document["until"][:19]) == ("2026-11-02T22:15:02", "2026-11-03T09:15:02")
    invalid_result = fleet.run("report", "--until", "yesterday")
    assert invalid_result.exit_code == 2
    assert "--until is 30d, 12h" in invalid_result.err


def test_commitment_advice_appears_in_every_report_format(fleet: CliFixture) -> None:
    table, text, page = (fleet.run("report", "-o", form).out for form in ("table", "md", "html"))
    rows = csv.DictReader(StringIO(fleet.run("report", "-o", "csv").out))
    values = {(row["section"], row["item"], row["figure"]): row["value"] for row in rows}

    assert re.search(r"p5\.48xlarge +71 +648 +5 +2 +unknown +unknown +unknown +unknown", table)
    assert "No advice for p5.48xlarge: The policy states no price for committed nodes" in " ".join(table.split())
    assert "| p5.48xlarge | 71 | 648 | 5 | 2 | unknown |" in text
    assert "<h2>Nodes to commit</h2>" in page
    assert values["commitments", "p5.48xlarge", "unknownHours"] == "648"
    assert values["commitments.demand", "p5.48xlarge / 1", "hours"]


@pytest.mark.parametrize("form", ["table", "md", "html", "csv", "json"])
def test_report_of_an_older_stack_lacks_only_the_commitments(fleet: CliFixture, form: str) -> None:
    leave_out(fleet, "/v1/cost-report", "hours", "commitments", "reliability", "lemons", "idleRentedGpuHours")

    result = fleet.run("report", "-o", form)

    assert result.exit_code == 0, result.err
    assert "p5-workers" in result.out
    assert "Nodes to commit" not in result.out
    if form in ("table", "md", "html"):
        assert "How many nodes to commit is unknown: the stack is older" in " ".join(result.out.split())
