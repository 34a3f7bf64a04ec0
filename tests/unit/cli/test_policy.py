"""The site policy: apply it, and show it."""

import json

import pytest

from evenkeel.ports import Table
from evenkeel.runtime.site_policy import SitePolicy
from tests.unit.cli.conftest import CliFixture


@pytest.fixture
def site(served: CliFixture) -> CliFixture:
    world = served.gateway.world
    world.__dict__["policies"] = SitePolicy(served.gateway.fakes.policy, Table.INCIDENTS, world)
    (served.folder / "ours.json").write_text(json.dumps({"repair": {"maxAttempts": 2}}), encoding="utf-8")
    return served


def test_a_policy_file_is_put_in_force_and_shown(site: CliFixture) -> None:
    applied = site.run("policy", "apply", "ours.json", "--reason", "Ours.", terminal=True)
    site.gateway.fakes.clock.advance(31)
    shown = site.run("policy", "show", terminal=True)

    assert applied.out == ("● change 1 takes effect everywhere within 30 seconds\nnext  evenkeel policy show\n")
    assert '  changes  {"repair": {"maxAttempts": 2}}' in shown.out
    assert "change 1" in shown.out
    assert "because  Ours." in shown.out


def test_without_a_change_the_policy_is_as_shipped(site: CliFixture) -> None:
    assert "as shipped" in site.run("policy", "show", terminal=True).out


def test_refused_policy_exits_2_with_the_reason(site: CliFixture) -> None:
    (site.folder / "ours.json").write_text('{"repair": {"maxAtempts": 2}}', encoding="utf-8")

    refused = site.run("policy", "apply", "ours.json", "--reason", "Ours.", terminal=True)

    assert refused.exit_code == 2
    assert "repair.maxAtempts: there is no such field" in refused.err


def test_policy_for_an_older_version_is_a_conflict(site: CliFixture) -> None:
    words = ["policy", "apply", "ours.json", "--reason", "Ours.", "--based-on", "0123456789ab"]

    assert site.run(*words).exit_code == 5


def test_history_shows_every_change(served: CliFixture) -> None:
    for number in (1, 2, 3):
        body = {"changes": {"repair": {"maxAttempts": number}}, "reason": f"Reason {number}."}
        assert served.gateway.post("/v1/clusters/laptop/policy", body, key=f"k{number}").status == 200

    table, names, first = (
        served.run("policy", "history"),
        served.run("policy", "history", "-o", "name"),
        served.run("policy", "history", "--limit", "1", "-o", "name"),
    )

    assert [f"Reason {number}." in table.out for number in (1, 2, 3)] == [True] * 3
    assert (names.out.split(), first.out.split()) == (["3", "2", "1"], ["3"])
