"""Every command that reads the fleet accepts every output format, and repeats with `--watch`."""

import csv
import io
import json

import pytest
import yaml

from evenkeel_cli.main import NOUNS
from tests.fakes.cluster import instance_id
from tests.unit.api.gateway import FLEET
from tests.unit.cli.busy_fleet import store_busy_fleet
from tests.unit.cli.conftest import CliFixture

JOB, INCIDENT = "job-0000000001", "inc-0000000001"
READS = (
    *("status", f"why {JOB}", f"why {INCIDENT}", "why dec-0000000001", "jobs ls", f"jobs show {JOB}"),
    *(f"jobs timeline {JOB}", f"jobs receipt {JOB}", "decisions ls", f"decisions ls {JOB}", "incidents ls"),
    *(f"incidents show {INCIDENT}", f"incidents timeline {INCIDENT}", f"incidents receipt {INCIDENT}"),
    *("nodes ls", f"nodes show {instance_id(1)}", "teams ls", "teams show nlp", "teams quota nlp"),
    *("automation show", "policy show", "policy history", "events ls", "audit ls", "utilization ls"),
    "shadow report",
)
"""Commands that read the state of the fleet."""
WITHOUT_STATE = {
    "console": "opens the browser",
    "postmortem": "writes Markdown",
    "report": "has forms of its own: Markdown and HTML",
    "faults": "needs no fleet",
    "plan": "needs no fleet",
    "backtest": "needs no fleet",
    "quota": "converts files",
    "context": "reads files of this machine",
    "access": "changes access entries",
    "economics": "calculates",
    "doctor": "has its own result",
    "drill": "acts on the local data centre",
    "dev": "acts on the local data centre",
    "completion": "prints a script",
    "version": "prints the version",
}
"""Nouns without such a command, and why."""


def test_every_noun_has_a_read_or_a_reason() -> None:
    assert NOUNS.keys() == {words.split()[0] for words in READS} | WITHOUT_STATE.keys()


@pytest.mark.parametrize("words", READS)
def test_read_prints_every_output_format(cli: CliFixture, words: str) -> None:
    store_busy_fleet(cli.gateway)

    results = {form: cli.run(*words.split(), "-o", form) for form in ("table", "wide", "json", "yaml", "name", "csv")}

    assert {form: result.exit_code for form, result in results.items()} == dict.fromkeys(results, 0), results
    document = json.loads(results["json"].out)
    assert yaml.safe_load(results["yaml"].out) == document
    items = document.get("items", document.get("entries"))
    lines = list(csv.DictReader(io.StringIO(results["csv"].out)))
    assert len(lines) == (1 if items is None else len(items))
    assert results["name"].out.strip() or items == []


@pytest.mark.parametrize("words", READS)
def test_watched_read_prints_a_json_object_on_each_line(
    cli: CliFixture, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    store_busy_fleet(cli.gateway)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", pause)

    result = cli.run(*words.split(), "--watch", "-o", "json")

    assert (result.exit_code, "Stopped watching." in result.err) == (130, True)
    assert len([json.loads(line) for line in result.out.splitlines()]) == 2


@pytest.mark.parametrize(
    "command", ["status", "automation show", "teams ls", "teams spend", "audit ls", "incidents ls"]
)
def test_pages_of_a_busy_fleet_fit_80_columns(cli: CliFixture, command: str) -> None:
    store_busy_fleet(cli.gateway)
    hold = {"reason": "Too many repairs in this rack.", "forSeconds": 3600, "stopsScheduling": True}
    assert cli.gateway.post(f"/v1/clusters/{FLEET}/automation/hold", hold, key="stop").status == 200

    shown = cli.run(*command.split(), terminal=True).out

    assert [line for line in shown.splitlines() if len(line) > 80] == []
