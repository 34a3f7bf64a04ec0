"""The site policy: apply it, and show it."""

import json

import pytest

from evenkeel.ports import Table
from evenkeel.runtime.site_policy import SitePolicy
from tests.unit.cli.conftest import CliFixture


@pytest.fixture
def policy_cli(cli: CliFixture) -> CliFixture:
    world = cli.gateway.world
    world.__dict__["policies"] = SitePolicy(cli.gateway.fakes.policy, Table.INCIDENTS, world)
    (cli.folder / "ours.json").write_text(json.dumps({"repair": {"maxAttempts": 2}}), encoding="utf-8")
    return cli


def test_policy_file_is_put_in_force_and_shown(policy_cli: CliFixture) -> None:
    applied = policy_cli.run("policy", "apply", "ours.json", "--reason", "Ours.", terminal=True)
    policy_cli.gateway.fakes.clock.advance(31)
    shown_result = policy_cli.run("policy", "show", terminal=True)

    assert applied.out == ("● change 1 takes effect everywhere within 30 seconds\nnext  evenkeel policy show\n")
    assert '  changes  {"repair": {"maxAttempts": 2}}' in shown_result.out
    assert "change 1" in shown_result.out
    assert "because  Ours." in shown_result.out


def test_policy_without_changes_is_shown_as_shipped(policy_cli: CliFixture) -> None:
    assert "as shipped" in policy_cli.run("policy", "show", terminal=True).out


def test_invalid_policy_file_exits_2_with_the_reason(policy_cli: CliFixture) -> None:
    (policy_cli.folder / "ours.json").write_text('{"repair": {"maxAtempts": 2}}', encoding="utf-8")

    refusal = policy_cli.run("policy", "apply", "ours.json", "--reason", "Ours.", terminal=True)

    assert refusal.exit_code == 2
    assert "repair.maxAtempts: is not a known field" in refusal.err


def test_policy_for_an_older_version_is_a_conflict(policy_cli: CliFixture) -> None:
    words = ["policy", "apply", "ours.json", "--reason", "Ours.", "--based-on", "0123456789ab"]

    assert policy_cli.run(*words).exit_code == 5


@pytest.mark.parametrize(
    ("words", "since"),
    [
        ((), "2026-10-27T10:15:02Z"),
        (("--since", "12h"), "2026-11-02T22:15:02Z"),
        (("--since", "2026-11-01T00:00:00Z"), "2026-11-01T00:00:00Z"),
    ],
)
def test_policy_replay_accepts_duration_as_start(policy_cli: CliFixture, words: tuple[str, ...], since: str) -> None:
    assert policy_cli.run("policy", "test", "ours.json", *words).exit_code == 0

    assert json.loads(policy_cli.bodies[-1])["since"] == since


def test_policy_history_shows_every_change(cli: CliFixture) -> None:
    for number in (1, 2, 3):
        body = {"changes": {"repair": {"maxAttempts": number}}, "reason": f"Reason {number}."}
        assert cli.gateway.post("/v1/clusters/laptop/policy", body, key=f"k{number}").status == 200

    table, names, first = (
        cli.run("policy", "history"),
        cli.run("policy", "history", "-o", "name"),
        cli.run("policy", "history", "--limit", "1", "-o", "name"),
    )

    assert [f"Reason {number}." in table.out for number in (1, 2, 3)] == [True] * 3
    assert (names.out.split(), first.out.split()) == (["3", "2", "1"], ["3"])
