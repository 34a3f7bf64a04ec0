"""Acknowledge an incident, list the audit, and hold everything."""

import csv
import io

import yaml

from tests.unit.api.seeds import an_incident, stored
from tests.unit.cli.conftest import CliFixture
from tests.unit.cli.recovery_fixture import recovery_at_work


def test_acknowledged_incident_is_shown_in_lists_and_in_status(served: CliFixture) -> None:
    stored(served.gateway.fakes.ledger, an_incident(1))

    result = served.run("incidents", "ack", "@latest", "--reason", "on it", terminal=True)

    by = "role/Researcher (ana)"
    assert result.out.splitlines() == [
        f"● inc-0000000001  acknowledged by {by}",
        "next  evenkeel why inc-0000000001",
    ]
    assert f"Acknowledged by {by}." in served.run("incidents", "ls").out
    assert f"acknowledged  0s ago by {by}" not in served.run("incidents", "show", "@latest", terminal=True).out
    assert f"{by}, 0s ago" in served.run("incidents", "show", "@latest", terminal=True).out
    assert f"acknowledged by {by}, 0s ago" in served.run("status", terminal=True).out


def test_incident_that_needs_a_person_names_its_runbook(served: CliFixture) -> None:
    stored(served.gateway.fakes.ledger, an_incident(1, state="WAITING_FOR_PERSON", outcome="Every rung was used."))

    shown = served.run("incidents", "show", "@latest").out
    status = served.run("status").out

    for page in (shown, status):
        assert "docs/runbooks/incident-needs-person.md" in page
    assert "not yet" in shown


def test_audit_lists_acts_newest_first_in_every_form(served: CliFixture) -> None:
    served.run("automation", "hold", "--reason", "network work")
    served.gateway.fakes.clock.advance(60)
    served.run("automation", "release")

    table = served.run("audit", "ls").out.splitlines()
    rows = list(csv.DictReader(io.StringIO(served.run("audit", "ls", "-o", "csv").out)))
    document = yaml.safe_load(served.run("audit", "ls", "-o", "yaml").out)

    assert [line.split()[-1] for line in table[1:]] == ["(ana)", "work"]
    assert [row["kind"] for row in rows] == [item["kind"] for item in document["items"]] == ["released", "held"]
    assert served.run("audit", "ls", "--by", "bo").err == "No person changed the fleet since 2026-10-04T10:15:02Z.\n"
    assert served.run("audit", "ls", "--since", "ever").exit_code == 2


def test_stop_holds_everything_and_says_what_still_runs(served: CliFixture) -> None:
    recovery_at_work(served.gateway)

    result = served.run("automation", "stop", "--reason", "network work", "--for", "2h", terminal=True)

    assert (result.exit_code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0] == "▲ everything is held until 2026-11-03T12:15:02Z: network work"
    shown = " ".join(result.out.split())
    for part in (
        "1 running; a hold stops none of them",
        "inc-0000000001: replacing",
        "HyperPod, EC2, Karpenter and Kueue still act",
    ):
        assert part in shown
    assert lines[-1] == "next  evenkeel automation release"
    assert max(map(len, lines)) <= 80
    assert "HELD    everything, by role/Researcher (ana)" in served.run("status").out
    (hold,) = served.gateway.get(f"/v1/clusters/{served.context['name']}/automation").document["holds"]
    assert hold["stopsScheduling"] is True


def test_release_ends_a_stop(served: CliFixture) -> None:
    served.run("automation", "stop", "--reason", "x")

    assert served.run("automation", "release").out.splitlines()[0] == "● released"
    assert served.gateway.get(f"/v1/clusters/{served.context['name']}/automation").document["isHeld"] is False
