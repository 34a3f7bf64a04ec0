"""Broken connections, expired credentials and wrong clocks: a clear message, and one effect of each change."""

import json
import socket
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
import yaml

from evenkeel.domain.jobs.job import JobState
from evenkeel.domain.jobs.job_policy import JobPolicy
from evenkeel.domain.policy import Policy
from tests.fakes import FakeWorld
from tests.fakes.cluster import instance_id
from tests.unit.api.gateway import ApiResponse, Gateway
from tests.unit.api.seeds import PLAN_AWAITING_APPROVAL, a_fleet_node, a_job, an_incident, store, store_heartbeats
from tests.unit.cli.conftest import CliFixture

NODE = instance_id(1)
KEY_OPTION = "--idempotency-key k"
CHANGE_COMMANDS = {
    "submit": f"jobs submit {KEY_OPTION} --name a --image r/a:1 -- train",
    "cancel": f"jobs cancel job-0000000009 --yes {KEY_OPTION}",
    "suspend": f"jobs suspend job-0000000009 --yes {KEY_OPTION}",
    "priority": "jobs priority job-0000000009 high --yes",
    "hold": f"automation hold --reason x --yes {KEY_OPTION}",
    "release": f"automation release {KEY_OPTION}",
    "approve": f"incidents approve inc-0000000001 --yes {KEY_OPTION}",
    "decline": f"incidents decline inc-0000000001 --yes {KEY_OPTION}",
    "cordon": f"nodes cordon {NODE} --reason x --yes {KEY_OPTION}",
    "uncordon": f"nodes uncordon {NODE} --yes {KEY_OPTION}",
    "replace": f"nodes replace {NODE} --reason x --yes {KEY_OPTION}",
    "policy": f"policy apply policy.json --reason x {KEY_OPTION}",
    "teams": "teams apply -f teams.yaml --reason x",
}
CUT_POINTS = {"before the answer": -1, "in the answer": 5}


@pytest.fixture
def fleet_cli(cli: CliFixture) -> CliFixture:
    (cli.folder / "policy.json").write_text("{}", encoding="utf-8")
    team = {"name": "nlp", "namespace": "nlp"}
    (cli.folder / "teams.yaml").write_text(yaml.safe_dump({"team": team}), encoding="utf-8")
    restart_site(cli)
    return cli


def restart_site(cli: CliFixture) -> None:
    """Store the fleet again in an empty ledger."""
    cli.gateway = Gateway(FakeWorld(policy=Policy(jobs=JobPolicy(priority_classes=("high",)))))
    ledger = cli.gateway.fakes.ledger
    store_heartbeats(ledger)
    store(
        ledger,
        an_incident(1, plan=PLAN_AWAITING_APPROVAL, mode="recommend"),
        a_fleet_node(1, node_name=f"hyperpod-{NODE}"),
    )
    store(ledger, a_job(9, state=JobState.PENDING))


def change_requests(cli: CliFixture) -> list[tuple[str, str]]:
    """Return the requests that change something, in order."""
    return [(method, path) for method, path, _ in cli.requests if method != "GET"]


@pytest.mark.parametrize("cut", CUT_POINTS.values(), ids=CUT_POINTS)
@pytest.mark.parametrize("act", CHANGE_COMMANDS)
def test_change_whose_response_is_lost_takes_effect_once(
    fleet_cli: CliFixture, monkeypatch: pytest.MonkeyPatch, act: str, cut: int
) -> None:
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    undisturbed = fleet_cli.run(*CHANGE_COMMANDS[act].split())
    expected, number = fleet_cli.gateway.fakes.ledger.contents(), len(change_requests(fleet_cli))
    assert undisturbed.exit_code == 0, undisturbed.err
    restart_site(fleet_cli)
    fleet_cli.requests.clear()
    let_through = CutsFirstAnswer(fleet_cli, cut)

    result = fleet_cli.run(*CHANGE_COMMANDS[act].split())

    assert let_through.was_cut
    assert len(change_requests(fleet_cli)) > number
    if result.exit_code:
        # A change with `If-Match` conflicts with its own earlier attempt.
        assert (result.exit_code, act) == (5, "teams")
        assert "An earlier try was cut off. The change may have been made" in result.err
    assert fleet_cli.gateway.fakes.ledger.contents() == expected


class CutsFirstAnswer:
    """Cuts off the answer to the first change, after the API has made the change."""

    def __init__(self, cli: CliFixture, after: int) -> None:
        self.was_cut = False
        answer: Callable[..., ApiResponse] = cli.answer

        def cut_first(method: str, target: str, body: str, headers: dict[str, str]) -> ApiResponse:
            response = answer(method, target, body, headers)
            if method != "GET" and '"dryRun": true' not in body and not self.was_cut:
                self.was_cut = True
                cli.cut_after = [after]
            return response

        cli.answer = cut_first  # type: ignore[method-assign]  # the test stands between the API and the command


@pytest.mark.parametrize("cut", CUT_POINTS.values(), ids=CUT_POINTS)
def test_broken_connection_shows_the_key_for_repeating_the_change(
    fleet_cli: CliFixture, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    fleet_cli.cut_after = [cut] * 3

    result = fleet_cli.run("automation", "hold", "--yes", "--reason", "x", "--idempotency-key", "k1")
    repeated_result = fleet_cli.run("automation", "hold", "--yes", "--reason", "x", "--idempotency-key", "k1")

    assert result.exit_code == 8
    assert "was cut before the answer was complete. [UNREACHABLE]" in result.err
    assert "A proxy may be the cause" in result.err
    assert "add --idempotency-key k1 to the same command" in result.err
    assert repeated_result.exit_code == 0
    assert len(fleet_cli.gateway.get(f"/v1/clusters/{fleet_cli.context['name']}/automation").document["holds"]) == 1


def test_lost_answer_to_a_versioned_change_is_no_failure(
    fleet_cli: CliFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    answer: Callable[..., ApiResponse] = fleet_cli.answer

    def lose(method: str, *request: Any) -> ApiResponse:
        done = answer(method, *request)
        return ApiResponse(502, {}, "") if method == "PATCH" else done

    monkeypatch.setattr(fleet_cli, "answer", lose)
    lost = fleet_cli.run("jobs", "priority", "job-0000000009", "high", "--yes")
    monkeypatch.setattr(fleet_cli, "answer", answer)
    again = fleet_cli.run("jobs", "priority", "job-0000000009", "high", "--yes")

    assert lost.exit_code == 8
    assert "The change may have been made: check the current state before you repeat the command." in lost.err
    assert (again.exit_code, fleet_cli.gateway.get("/v1/jobs/job-0000000009").document["priorityClass"]) == (0, "high")


def test_lost_answer_of_suspension_advises_to_check_first(
    fleet_cli: CliFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    answer: Callable[..., ApiResponse] = fleet_cli.answer
    monkeypatch.setattr(
        fleet_cli,
        "answer",
        lambda method, *request: ApiResponse(502, {}, "") if method == "POST" else answer(method, *request),
    )

    lost = fleet_cli.run("jobs", "suspend", "job-0000000009", "--yes")

    assert "check the current state before you repeat the command" in lost.err
    assert "retry safely" not in lost.err


def test_unreachable_proxy_is_named(fleet_cli: CliFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.delenv("NO_PROXY")
    monkeypatch.setenv("HTTP_PROXY", closed)
    monkeypatch.setenv("http_proxy", closed)

    result = fleet_cli.run("status")

    assert result.exit_code == 8
    assert "The proxy does not answer, or refuses the connection. [UNREACHABLE]" in result.err
    assert "HTTPS_PROXY" in result.err


@pytest.mark.parametrize("status", [407, 502, 504])
def test_html_answer_of_a_proxy_is_reported(
    fleet_cli: CliFixture, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    fleet_cli.next_answers = [ApiResponse(status, {"Content-Type": "text/html"}, "<html>Sign in</html>")] * 3

    result = fleet_cli.run("status")

    assert result.exit_code == (1 if status == 407 else 8)
    assert f"HTTP {status}: the answer comes from a gateway or proxy, not from Evenkeel." in result.err


def gateway_refusal(code: str, **headers: str) -> ApiResponse:
    """Return what the stack's API Gateway answers to a signature that it refuses."""
    problem: dict[str, Any] = {"status": 403, "code": code, "detail": "AWS said so.", "hint": "Look."}
    return ApiResponse(403, headers, json.dumps(problem))


@pytest.mark.parametrize("profile", ["", "site"])
def test_error_for_expired_credentials_says_how_to_sign_in(fleet_cli: CliFixture, profile: str) -> None:
    fleet_cli.write_context({**fleet_cli.context, "profile": profile})
    fleet_cli.next_answers = [gateway_refusal("EXPIRED_CREDENTIALS")]

    result = fleet_cli.run("automation", "hold", "--yes", "--reason", "x")

    assert result.exit_code == 6
    assert result.err.splitlines() == [
        "✖ The AWS credentials have expired. Nothing was changed. [EXPIRED_CREDENTIALS]",
        f"  Sign in again, then repeat the command: aws sso login{' --profile site' if profile else ''}",
    ]


@pytest.mark.parametrize(("minutes", "side"), [(10, "behind"), (-10, "ahead of")])
def test_signature_error_names_a_wrong_local_clock(fleet_cli: CliFixture, minutes: int, side: str) -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(minutes=minutes, seconds=1), usegmt=True)
    fleet_cli.next_answers = [gateway_refusal("BAD_SIGNATURE", Date=date)]

    result = fleet_cli.run("status")

    assert result.exit_code == 6
    assert f"This machine's clock is 10 min {side} the API's, so AWS refuses its signatures." in result.err
    assert "[CLOCK_SKEW]" in result.err


@pytest.mark.parametrize("date", ["", "yesterday", "now"])
def test_wrong_secret_key_is_not_blamed_on_the_clock(fleet_cli: CliFixture, date: str) -> None:
    date = format_datetime(datetime.now(UTC), usegmt=True) if date == "now" else date
    fleet_cli.next_answers = [gateway_refusal("BAD_SIGNATURE", Date=date)]

    assert "[BAD_SIGNATURE]" in fleet_cli.run("status").err


def test_hint_wraps_between_words_but_never_inside_a_command(fleet_cli: CliFixture) -> None:
    sentence = "Check the address of the fleet, and ask an administrator if it has moved to another account."
    command = f"evenkeel automation hold --reason {'x' * 80}"
    problem = {"status": 400, "code": "REFUSED", "detail": "No.", "hint": f"{sentence}\n{command}"}
    fleet_cli.next_answers = [ApiResponse(400, {}, json.dumps(problem))]

    lines = fleet_cli.run("status", terminal=True).err.splitlines()

    assert lines == [
        "✖ No. [REFUSED]",
        "  Check the address of the fleet, and ask an administrator if it has moved to",
        "  another account.",
        f"  {command}",
    ]
