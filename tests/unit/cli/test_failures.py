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
from tests.unit.api.seeds import ASKS, a_fleet_node, a_job, an_incident, store_heartbeats, stored
from tests.unit.cli.conftest import CliFixture

NODE = instance_id(1)
KEY = "--idempotency-key k"
ACTS = {
    "submit": f"jobs submit {KEY} --name a --image r/a:1 -- train",
    "cancel": f"jobs cancel job-0000000009 {KEY}",
    "suspend": f"jobs suspend job-0000000009 {KEY}",
    "priority": "jobs priority job-0000000009 high",
    "hold": f"automation hold --reason x {KEY}",
    "release": f"automation release {KEY}",
    "approve": f"incidents approve inc-0000000001 --yes {KEY}",
    "decline": f"incidents decline inc-0000000001 --yes {KEY}",
    "cordon": f"nodes cordon {NODE} --reason x {KEY}",
    "uncordon": f"nodes uncordon {NODE} {KEY}",
    "replace": f"nodes replace {NODE} --reason x --yes {KEY}",
    "policy": f"policy apply policy.json --reason x {KEY}",
    "teams": "teams apply -f teams.yaml --reason x",
}
CUTS = {"before the answer": -1, "in the answer": 5}


@pytest.fixture
def site(served: CliFixture) -> CliFixture:
    (served.folder / "policy.json").write_text("{}", encoding="utf-8")
    team = {"name": "nlp", "namespace": "nlp"}
    (served.folder / "teams.yaml").write_text(yaml.safe_dump({"team": team}), encoding="utf-8")
    restart_site(served)
    return served


def restart_site(served: CliFixture) -> None:
    """Set up the same fleet again."""
    served.gateway = Gateway(FakeWorld(policy=Policy(jobs=JobPolicy(priority_classes=("high",)))))
    ledger = served.gateway.fakes.ledger
    store_heartbeats(ledger)
    stored(ledger, an_incident(1, plan=ASKS, mode="recommend"), a_fleet_node(1, node_name=f"hyperpod-{NODE}"))
    stored(ledger, a_job(9, state=JobState.PENDING))


def change_requests(served: CliFixture) -> list[tuple[str, str]]:
    """Return the requests that change something, in order."""
    return [(method, path) for method, path, _ in served.requests if method != "GET"]


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("act", ACTS)
def test_change_whose_response_is_lost_takes_effect_once(
    site: CliFixture, monkeypatch: pytest.MonkeyPatch, act: str, cut: int
) -> None:
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    undisturbed = site.run(*ACTS[act].split())
    expected, number = site.gateway.fakes.ledger.contents(), len(change_requests(site))
    assert undisturbed.exit_code == 0, undisturbed.err
    restart_site(site)
    site.requests.clear()
    let_through = CutsFirstAnswer(site, cut)

    result = site.run(*ACTS[act].split())

    assert let_through.was_cut
    assert len(change_requests(site)) > number
    if result.exit_code:
        # A change at a stated version cannot tell its own earlier try from another change.
        assert (result.exit_code, act) == (5, "teams")
        assert "An earlier try was cut off and may have made the change" in result.err
    assert site.gateway.fakes.ledger.contents() == expected


class CutsFirstAnswer:
    """Cuts off the answer to the first change, after the API has made the change."""

    def __init__(self, served: CliFixture, after: int) -> None:
        self.was_cut = False
        answer: Callable[..., ApiResponse] = served.answer

        def cut_first(method: str, target: str, body: str, headers: dict[str, str]) -> ApiResponse:
            response = answer(method, target, body, headers)
            if method != "GET" and '"dryRun": true' not in body and not self.was_cut:
                self.was_cut = True
                served.cut_after = [after]
            return response

        served.answer = cut_first  # type: ignore[method-assign]  # the test stands between the API and the command


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_permanently_broken_connection_names_the_key_to_repeat(
    site: CliFixture, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    site.cut_after = [cut] * 3

    result = site.run("automation", "hold", "--reason", "x", "--idempotency-key", "k1")
    again = site.run("automation", "hold", "--reason", "x", "--idempotency-key", "k1")

    assert result.exit_code == 8
    assert "was cut before the answer was complete. [UNREACHABLE]" in result.err
    assert "A proxy may be the cause" in result.err
    assert "add --idempotency-key k1 to the same command" in result.err
    assert again.exit_code == 0
    assert len(site.gateway.get(f"/v1/clusters/{site.context['name']}/automation").document["holds"]) == 1


def test_unreachable_proxy_is_named(site: CliFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.delenv("NO_PROXY")
    monkeypatch.setenv("HTTP_PROXY", closed)
    monkeypatch.setenv("http_proxy", closed)

    result = site.run("status")

    assert result.exit_code == 8
    assert "The proxy does not answer, or refuses the connection. [UNREACHABLE]" in result.err
    assert "HTTPS_PROXY" in result.err


@pytest.mark.parametrize("status", [407, 502, 504])
def test_html_of_a_proxy_is_not_taken_for_a_response(
    site: CliFixture, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    site.next_answers = [ApiResponse(status, {"Content-Type": "text/html"}, "<html>Sign in</html>")] * 3

    result = site.run("status")

    assert result.exit_code == (1 if status == 407 else 8)
    assert f"HTTP {status}: the answer comes from a gateway or proxy, not from Evenkeel." in result.err


def gateway_refusal(code: str, **headers: str) -> ApiResponse:
    """Return what the stack's API Gateway answers to a signature that it refuses."""
    problem: dict[str, Any] = {"status": 403, "code": code, "detail": "AWS said so.", "hint": "Look."}
    return ApiResponse(403, headers, json.dumps(problem))


@pytest.mark.parametrize("profile", ["", "site"])
def test_expired_credentials_say_how_to_sign_in(site: CliFixture, profile: str) -> None:
    site.write_context({**site.context, "profile": profile})
    site.next_answers = [gateway_refusal("EXPIRED_CREDENTIALS")]

    result = site.run("automation", "hold", "--reason", "x")

    assert result.exit_code == 6
    assert result.err.splitlines() == [
        "✖ The AWS credentials have expired. Nothing was changed. [EXPIRED_CREDENTIALS]",
        f"  Sign in again, then repeat the command: aws sso login{' --profile site' if profile else ''}",
    ]


@pytest.mark.parametrize(("minutes", "side"), [(10, "behind"), (-10, "ahead of")])
def test_error_names_a_local_clock_that_is_wrong(site: CliFixture, minutes: int, side: str) -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(minutes=minutes, seconds=1), usegmt=True)
    site.next_answers = [gateway_refusal("BAD_SIGNATURE", Date=date)]

    result = site.run("status")

    assert result.exit_code == 6
    assert f"This machine's clock is 10 min {side} the API's, so AWS refuses its signatures." in result.err
    assert "[CLOCK_SKEW]" in result.err


@pytest.mark.parametrize("date", ["", "yesterday", "now"])
def test_wrong_secret_key_is_not_blamed_on_the_clock(site: CliFixture, date: str) -> None:
    date = format_datetime(datetime.now(UTC), usegmt=True) if date == "now" else date
    site.next_answers = [gateway_refusal("BAD_SIGNATURE", Date=date)]

    assert "[BAD_SIGNATURE]" in site.run("status").err


def test_hint_wraps_between_words_but_never_inside_a_command(site: CliFixture) -> None:
    sentence = "Check the address of the fleet, and ask an administrator if it has moved to another account."
    command = f"evenkeel automation hold --reason {'x' * 80}"
    problem = {"status": 400, "code": "REFUSED", "detail": "No.", "hint": f"{sentence}\n{command}"}
    site.next_answers = [ApiResponse(400, {}, json.dumps(problem))]

    lines = site.run("status", terminal=True).err.splitlines()

    assert lines == [
        "✖ No. [REFUSED]",
        "  Check the address of the fleet, and ask an administrator if it has moved to",
        "  another account.",
        f"  {command}",
    ]
