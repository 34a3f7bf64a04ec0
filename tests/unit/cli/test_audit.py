"""Commands to acknowledge an incident, list the audit, and stop all automation."""

import csv
import io

import yaml

from tests.unit.api.seeds import an_incident, store, store_fleet_counts
from tests.unit.cli.conftest import CliFixture
from tests.unit.cli.recovery_fixture import store_running_recovery


def test_acknowledged_incident_is_shown_in_lists_and_in_status(cli: CliFixture) -> None:
    store(cli.gateway.fakes.ledger, an_incident(1))

    result = cli.run("incidents", "ack", "@latest", "--reason", "on it", terminal=True)

    by = "role/Researcher (ana)"
    assert result.out.splitlines() == [
        f"● inc-0000000001  acknowledged by {by}",
        "next  evenkeel why inc-0000000001",
    ]
    assert f"Acknowledged by {by}." in cli.run("incidents", "ls").out
    assert f"acknowledged  0s ago by {by}" not in cli.run("incidents", "show", "@latest", terminal=True).out
    assert f"{by}, 0s ago" in cli.run("incidents", "show", "@latest", terminal=True).out
    assert f"acknowledged by {by}, 0s ago" in cli.run("status", terminal=True).out


def test_incident_that_needs_a_person_names_its_runbook(cli: CliFixture) -> None:
    store(cli.gateway.fakes.ledger, an_incident(1, state="WAITING_FOR_PERSON", outcome="Every rung was used."))

    output = cli.run("incidents", "show", "@latest").out
    status = cli.run("status").out

    for page in (output, status):
        assert "docs/runbooks/incident-needs-person.md" in page
    assert "not yet" in output


def test_audit_lists_actions_newest_first_in_every_output_format(cli: CliFixture) -> None:
    cli.run("automation", "hold", "--yes", "--reason", "network work")
    cli.gateway.fakes.clock.advance(60)
    cli.run("automation", "release")

    table = cli.run("audit", "ls").out.splitlines()
    rows = list(csv.DictReader(io.StringIO(cli.run("audit", "ls", "-o", "csv").out)))
    document = yaml.safe_load(cli.run("audit", "ls", "-o", "yaml").out)

    assert [line.split()[-1] for line in table[1:]] == ["(ana)", "work"]
    assert [row["kind"] for row in rows] == [item["kind"] for item in document["items"]] == ["released", "held"]
    assert cli.run("audit", "ls", "--by", "bo").err == "bo did not change the fleet since 2026-10-04T10:15:02Z.\n"
    assert cli.run("audit", "ls", "--since", "ever").exit_code == 2


def test_automation_stop_holds_everything_and_lists_what_still_runs(cli: CliFixture) -> None:
    store_running_recovery(cli.gateway)
    store_fleet_counts(cli.gateway.fakes)

    result = cli.run("automation", "stop", "--reason", "network work", "--for", "2h", terminal=True)

    assert (result.exit_code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0] == "▲ everything is held until 2026-11-03T12:15:02Z: network work"
    output = " ".join(result.out.split())
    for expected_text in (
        "1 running, counted at 2026-11-03T10:15:02Z; a hold stops none of them",
        "0 nodes, counted at 2026-11-03T10:15:02Z; AWS bills them until they are released",
        "inc-0000000001: replacing",
        "HyperPod, EC2, Karpenter and Kueue still act",
    ):
        assert expected_text in output
    assert lines[-1] == "next  evenkeel automation release"
    assert max(map(len, lines)) <= 80
    assert "HELD    everything, by role/Researcher (ana)" in cli.run("status").out
    (hold,) = cli.gateway.get(f"/v1/clusters/{cli.context['name']}/automation").document["holds"]
    assert hold["stopsScheduling"] is True


def test_automation_stop_marks_old_counts_and_cut_list(cli: CliFixture) -> None:
    store_fleet_counts(cli.gateway.fakes)
    cli.gateway.fakes.clock.advance(86_400)
    store(cli.gateway.fakes.ledger, *(an_incident(number) for number in range(1, 61)))

    shown = " ".join(cli.run("automation", "stop", "--reason", "network work").out.split())

    assert "counted at 2026-11-03T10:15:02Z, which is long ago; a hold stops none of them" in shown
    assert "and more: evenkeel incidents ls" in shown


def test_automation_stop_does_not_count_every_node_and_job(cli: CliFixture) -> None:
    result = cli.run("automation", "stop", "--reason", "network work")

    assert "an unknown number; a hold stops none of them" in " ".join(result.out.split())
    assert "/v1/status" not in {path for _, path, _ in cli.requests}


def test_automation_release_ends_a_stop(cli: CliFixture) -> None:
    cli.run("automation", "stop", "--reason", "x")

    assert cli.run("automation", "release").out.splitlines()[0] == "● released"
    assert cli.gateway.get(f"/v1/clusters/{cli.context['name']}/automation").document["isHeld"] is False
