"""`evenkeel shadow report`."""

from evenkeel.domain.shadow.shadow_cases import NodeEventKind
from evenkeel.services.tables import incident_rows
from tests.unit.api.seeds import make_unreadable, store
from tests.unit.api.shadow_seeds import an_observed, store_node_event
from tests.unit.cli.conftest import CliFixture


def test_shadow_report_shows_verdicts_and_rates(cli: CliFixture) -> None:
    incident = an_observed(1)
    store(cli.gateway.fakes.ledger, incident, an_observed(2, hours=1))
    store_node_event(cli.gateway, incident, NodeEventKind.REPLACED, hours=29)

    result = cli.run("shadow", "report", "--since", "7d")

    assert result.exit_code == 0, result.err
    assert result.out.splitlines()[0] == "2 cases of 2 incidents, window 24 h"
    assert "replace: earlier by 1h00m" in result.out
    assert ["replacements", "0", "1", "0.0%", "0.0%", "to", "97.5%", "1"] in [
        line.split() for line in result.out.splitlines()
    ]


def test_shadow_report_reads_all_pages_up_to_its_limit(cli: CliFixture) -> None:
    store(cli.gateway.fakes.ledger, *(an_observed(number, hours=30 + number) for number in range(1, 8)))

    result = cli.run("shadow", "report", "--limit", "3", "-o", "wide")

    assert result.exit_code == 0, result.err
    assert sum("inc-000000000" in line for line in result.out.splitlines()) == 3
    assert "The counts include all cases" in result.err


def test_shadow_report_says_that_it_skipped_unreadable_incident(cli: CliFixture) -> None:
    store(cli.gateway.fakes.ledger, an_observed(1, hours=30), an_observed(2, hours=30))
    make_unreadable(cli.gateway.fakes.ledger, incident_rows.incident_key("inc-0000000002"), "severity")

    result = cli.run("shadow", "report")

    assert result.exit_code == 0, result.err
    assert "The report leaves out 1 incident that cannot be read." in result.err


def test_shadow_report_names_an_invalid_time(cli: CliFixture) -> None:
    result = cli.run("shadow", "report", "--since", "yesterday")

    assert result.exit_code == 2
    assert "--since" in result.err
