"""Costs in the command line: wrong options are named, unknown figures are no zeros, and quotas split the use."""

import json
from typing import Any

import pytest
import yaml

from evenkeel.domain.quotas.teams import Team
from evenkeel.services.admin import set_quotas
from tests.fakes.world import a_context
from tests.unit.api.seeds import a_fleet_node, a_job, ago, an_attempt, store
from tests.unit.api.test_showback import store_two_jobs
from tests.unit.cli.conftest import CliFixture

P5, GPU = "ml.p5.48xlarge", "nvidia.com/gpu"


@pytest.fixture
def fleet(cli: CliFixture) -> CliFixture:
    store_two_jobs(cli.gateway)
    return cli


_WHEN = [("--until", ""), ("--since", ""), ("--since", "0d"), ("--since", "x" * 90), ("--until", "9999d")]


@pytest.mark.parametrize(
    ("command", "option", "value"),
    [
        *(
            (command, *when)
            for command in (("teams", "spend"), ("report",), ("economics", "commitment", "--fleet"))
            for when in _WHEN
        ),
        (("teams", "spend"), "--team", ""),
        (("teams", "spend"), "--team", "visoin"),
        (("teams", "spend"), "--label", ""),
        (("teams", "spend"), "--by", "nobody"),
        (("report",), "-o", ""),
    ],
)
def test_wrong_option_is_named(fleet: CliFixture, command: tuple[str, ...], option: str, value: str) -> None:
    result = fleet.run(*command, option, value)

    assert (result.exit_code, result.out) == (2, "")
    assert {"-o": "--output"}.get(option, option).removeprefix("--") in result.err
    assert max(map(len, result.err.splitlines())) < 140
    assert ".." not in result.err


def test_spend_without_records_is_unknown(cli: CliFixture) -> None:
    out = cli.run("teams", "spend").out

    assert next(line for line in out.splitlines() if line.startswith("all")).split() == ["all", *["unknown"] * 4]


def test_report_splits_use_by_the_quota_of_each_team(cli: CliFixture) -> None:
    ledger = cli.gateway.fakes.ledger
    for name in ("nlp", "vision"):
        queue = {"cohort": "all", "groups": [{P5: {GPU: 8}}]}
        part = Team.model_validate({"name": name, "namespace": name, "queue": queue})
        request = set_quotas.SetQuotasRequest(part=part, expected=0, by="ana", reason="First quota.")
        set_quotas.run(request, a_context(cli.gateway.fakes, now=ago(minutes=90)))
    job = a_job(1, current_attempt=1)
    times: dict[str, Any] = {"admitted_at": ago(hours=1), "running_at": ago(hours=1), "ended_at": ago(hours=0)}
    use = {P5: {GPU: 16}}
    store(ledger, job, an_attempt(job, state="SUCCEEDED", team="nlp", quota_use=use, instance_type=P5, **times))
    store(ledger, *(a_fleet_node(number) for number in (1, 2)))

    text = cli.run("report", "-o", "md").out

    _, _, table = text.partition("## GPU-hours by quota\n\n")
    assert table.splitlines()[:4] == [
        "| team | own quota | borrowed | no quota | unknown | lent |",
        "|---|---:|---:|---:|---:|---:|",
        "| nlp | 8.0 | 8.0 | 0.0 | 0.0 | 0.0 |",
        "| vision | 0.0 | 0.0 | 0.0 | 0.0 | 8.0 |",
    ]


def test_losses_of_a_window_without_nodes_are_unknown(cli: CliFixture) -> None:
    out = cli.run("report").out

    assert "lost      unknown: no node is recorded" in out
    assert "idle      unknown: no node is recorded" in out


def test_report_in_yaml_equals_the_json(cli: CliFixture) -> None:
    yaml_out, json_out = (cli.run("report", "-o", form).out for form in ("yaml", "json"))

    assert yaml.safe_load(yaml_out) == json.loads(json_out)
    assert cli.run("report", "-o", "wide").out.startswith(cli.run("report").out.splitlines()[0])
