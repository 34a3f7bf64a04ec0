"""The server of the console: its sessions, and the requests that it forwards."""

import contextlib
import gzip
import hashlib
import http.client
import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import evenkeel_cli.console
from evenkeel_cli.commands import lookup
from evenkeel_cli.console.server import MAX_BODY_BYTES, ConsoleServer
from tests.fakes.cluster import instance_id
from tests.unit.api.gateway import FLEET, ApiResponse
from tests.unit.api.seeds import PLAN_AWAITING_APPROVAL, a_fleet_node, a_job, an_incident, store
from tests.unit.cli.conftest import CliFixture
from tests.unit.cli.recovery_fixture import store_running_recovery

STATIC = Path(evenkeel_cli.console.__file__).parent / "static"
VENDORED = {
    "htm-preact-standalone-3.1.1.js": "72284e8e9079c87817145df1110f74e8a2aa040b2fc384922e18dfcb46fc1fd7",
    "htm-LICENSE.txt": "740725f7252e750af735d0028cc534970772f513331e9f68150fede8fb3ce00f",
    "preact-LICENSE.txt": "1fe6958409c8c257a70c587a18b6f7f412b179b456630790d30b2ec9a8e4b7d4",
}


class Reply(NamedTuple):
    """A response of the console's server."""

    status: int
    headers: http.client.HTTPMessage
    text: str

    @property
    def code(self) -> str:
        return str(json.loads(self.text)["code"])


class Address(NamedTuple):
    """The address of a console in another process."""

    server_port: int
    link: str


class ConsolePageClient:
    """A client that sends the same requests as the console's own page."""

    def __init__(self, server: "ConsoleServer | Address") -> None:
        self.server = server
        self.host = f"127.0.0.1:{server.server_port}"
        self.cookie = ""
        self.key = ""

    def send(self, method: str, path: str, *, body: str | None = None, **headers: str) -> Reply:
        """Send a request. An empty header is not sent."""
        sent = {"Host": self.host} | ({"Cookie": self.cookie} if self.cookie else {})
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=10)
        connection.request(method, path, body, {name: value for name, value in sent.items() if value})
        answer = connection.getresponse()
        reply = Reply(answer.status, answer.headers, answer.read().decode())
        connection.close()
        return reply

    def change(self, path: str, body: object = None, **headers: str) -> Reply:
        console_headers = {
            "Origin": f"http://{self.host}",
            "X_Evenkeel_Console": self.key,
            "Idempotency_Key": "console-1",
            "Content_Type": "application/json",
        }
        return self.send("POST", path, body=json.dumps(body or {"reason": "a test"}), **console_headers | headers)

    def sign_in(self) -> Reply:
        reply = self.send("GET", self.server.link.partition(self.host)[2])
        self.cookie = (reply.headers["Set-Cookie"] or "").partition(";")[0]
        match = re.search(r'data-key="([^"]+)"', reply.text)
        self.key = match[1] if match else ""
        return reply


@pytest.fixture
def console(cli: CliFixture) -> Iterator[ConsoleServer]:
    store_running_recovery(cli.gateway)
    yield from _run_server(ConsoleServer(lookup.current_client()))


@pytest.fixture
def read_only_console(cli: CliFixture) -> Iterator[ConsoleServer]:
    yield from _run_server(ConsoleServer(lookup.current_client(), read_only=True))


def _run_server(server: ConsoleServer) -> Iterator[ConsoleServer]:
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(5)


@pytest.fixture
def page_client(console: ConsoleServer) -> ConsolePageClient:
    signed_in = ConsolePageClient(console)
    signed_in.sign_in()
    return signed_in


# ---------------------------------------------------------------- the link and the session


def test_console_listens_on_loopback_only(console: ConsoleServer) -> None:
    assert console.server_address[0] == "127.0.0.1"


def test_login_link_opens_the_console_once(console: ConsoleServer) -> None:
    link = console.link.partition(str(console.server_port))[2]
    first, second = ConsolePageClient(console), ConsolePageClient(console)

    assert first.sign_in().status == 200
    assert first.send("GET", "/v1/status").status == 200
    assert second.send("GET", link).code == "LINK_USED"
    assert first.send("GET", link).status == 303, "a reload in the same browser"


def test_session_cookie_is_strict_and_hidden_from_scripts(console: ConsoleServer) -> None:
    cookie = ConsolePageClient(console).sign_in().headers["Set-Cookie"]

    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= {part.strip() for part in cookie.split(";")}


@pytest.mark.parametrize("path", ["/", "/main.js", "/session", "/v1/status", "/v1/jobs?pageSize=1"])
def test_console_serves_nothing_without_a_session(console: ConsoleServer, path: str) -> None:
    client_without_session = ConsolePageClient(console)

    assert client_without_session.send("GET", path).code == "NOT_SIGNED_IN"
    assert (
        client_without_session.send("GET", path, Cookie=f"evenkeel-console-{console.server_port}=guess").code
        == "NOT_SIGNED_IN"
    )


@pytest.mark.parametrize("token", ["", "?token=", "?token=wrong", "?token=%00", "?tok"])
def test_invalid_login_link_opens_no_session(console: ConsoleServer, token: str) -> None:
    assert ConsolePageClient(console).send("GET", f"/open{token}").code == "LINK_USED"
    assert ConsolePageClient(console).sign_in().status == 200, "the right link still works"


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example", "[::1]:80"])
def test_request_to_another_host_name_is_refused(page_client: ConsolePageClient, host: str) -> None:
    assert page_client.send("GET", "/v1/status", Host=host).code == "WRONG_HOST"


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1"])
def test_request_of_another_origin_is_refused(page_client: ConsolePageClient, origin: str) -> None:
    assert page_client.send("GET", "/v1/status", Origin=origin).code == "WRONG_ORIGIN"
    assert page_client.change("/v1/jobs/job-0000000002/cancel", Origin=origin).code == "WRONG_ORIGIN"


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_request_of_another_site_is_refused(page_client: ConsolePageClient, site: str) -> None:
    assert page_client.send("GET", "/v1/status", Sec_Fetch_Site=site).code == "WRONG_ORIGIN"


# ---------------------------------------------------------------- changes


def test_change_is_signed_with_the_key_of_the_operator(page_client: ConsolePageClient, cli: CliFixture) -> None:
    reply = page_client.change("/v1/jobs/job-0000000002/cancel")

    assert reply.status == 202
    method, path, headers = cli.requests[-1]
    assert (method, path) == ("POST", "/v1/jobs/job-0000000002/cancel")
    assert "Credential=AKIAOPERATOR/" in headers["Authorization"]
    assert headers["Idempotency-Key"] == "console-1"
    assert not {"Cookie", "X-Evenkeel-Console", "Origin"} & set(headers)


@pytest.mark.parametrize("left_out", ["Origin", "X_Evenkeel_Console"])
def test_change_without_origin_or_request_token_is_refused(
    page_client: ConsolePageClient, cli: CliFixture, left_out: str
) -> None:
    before = len(cli.requests)

    assert page_client.change("/v1/jobs/job-0000000002/cancel", **{left_out: ""}).code == "NOT_FROM_THE_CONSOLE"
    assert len(cli.requests) == before


def test_session_cookie_is_not_accepted_as_request_token(page_client: ConsolePageClient) -> None:
    reply = page_client.change(
        "/v1/jobs/job-0000000002/cancel", X_Evenkeel_Console=page_client.cookie.partition("=")[2]
    )

    assert reply.code == "NOT_FROM_THE_CONSOLE"


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_read_only_console_refuses_every_change(read_only_console: ConsoleServer, cli: CliFixture, method: str) -> None:
    page_client = ConsolePageClient(read_only_console)
    page_client.sign_in()
    console_headers = {
        "Origin": f"http://{page_client.host}",
        "X_Evenkeel_Console": page_client.key,
        "Content_Type": "application/json",
    }

    reply = page_client.send(method, "/v1/jobs/job-0000000002/cancel", body="{}", **console_headers)

    assert reply.code == "READ_ONLY"
    assert not cli.requests
    assert page_client.send("GET", "/v1/status").status == 200


def test_refusal_of_the_api_reaches_the_page_unchanged(page_client: ConsolePageClient) -> None:
    reply = page_client.change("/v1/jobs/job-9999999999/cancel")

    assert (reply.status, reply.code) == (404, "NOT_FOUND")
    assert reply.headers["Content-Type"] == "application/problem+json"


# ---------------------------------------------------------------- forwarding


@pytest.mark.parametrize(
    "path",
    ["/v1/../admin", "/v1/jobs/%2e%2e/x", "/v1//jobs", "/v1/jobs/a%2fb", "/v1/./status", "/v1/jobs/a\\b"],
)
def test_path_outside_the_api_is_not_forwarded(page_client: ConsolePageClient, cli: CliFixture, path: str) -> None:
    before = len(cli.requests)

    assert page_client.send("GET", path).code == "NO_SUCH_ROUTE"
    assert len(cli.requests) == before


def test_console_sends_no_body_for_an_unchanged_answer(page_client: ConsolePageClient) -> None:
    first = page_client.send("GET", "/v1/incidents?pageSize=5")
    second = page_client.send("GET", "/v1/incidents?pageSize=5", If_None_Match=first.headers["ETag"])

    assert (second.status, second.text) == (304, "")


def test_console_refuses_a_large_or_endless_body(page_client: ConsolePageClient, cli: CliFixture) -> None:
    before = len(cli.requests)

    assert page_client.change("/v1/jobs", {"x": "y" * MAX_BODY_BYTES}).code == "TOO_LARGE"
    assert page_client.send("POST", "/v1/jobs", Transfer_Encoding="chunked").code == "LENGTH_REQUIRED"
    assert page_client.send("POST", "/v1/jobs", Content_Length="-1").code == "BAD_LENGTH"
    assert len(cli.requests) == before


def test_console_reports_an_unreachable_api(page_client: ConsolePageClient, cli: CliFixture) -> None:
    cli.stop()

    reply = page_client.send("GET", "/v1/status")

    assert (reply.status, reply.code) == (503, "UNREACHABLE")


def test_console_reports_missing_credentials_with_a_hint(cli: CliFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.write_context({name: value for name, value in cli.context.items() if name != "credentials"})
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    server = ConsoleServer(lookup.current_client())
    running = _run_server(server)
    next(running)
    page_client = ConsolePageClient(server)
    page_client.sign_in()

    reply = page_client.send("GET", "/v1/status")

    assert (reply.status, reply.code) == (401, "NO_CREDENTIALS")
    assert "aws sso login" in json.loads(reply.text)["hint"]
    next(running, None)


@pytest.mark.parametrize(
    ("code", "minutes", "expected", "detail"),
    [
        ("EXPIRED_CREDENTIALS", 0, "EXPIRED_CREDENTIALS", "The AWS credentials have expired. Nothing was changed."),
        ("BAD_SIGNATURE", 10, "CLOCK_SKEW", "This machine's clock is 10 min behind the API's"),
        ("BAD_SIGNATURE", -10, "CLOCK_SKEW", "This machine's clock is 10 min ahead of the API's"),
    ],
)
def test_console_names_expired_credentials_or_a_wrong_local_clock(
    page_client: ConsolePageClient, cli: CliFixture, code: str, minutes: int, expected: str, detail: str
) -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(minutes=minutes, seconds=1), usegmt=True)
    problem = {"status": 403, "code": code, "detail": "AWS said so.", "hint": "Look."}
    cli.next_answers = [ApiResponse(403, {"Date": date}, json.dumps(problem))]

    reply = page_client.change(f"/v1/clusters/{FLEET}/automation/hold")

    assert (reply.status, reply.code) == (403, expected)
    assert json.loads(reply.text)["detail"].startswith(detail)


def test_console_does_not_accept_a_proxys_html_as_answer(page_client: ConsolePageClient, cli: CliFixture) -> None:
    cli.next_answers = [ApiResponse(502, {}, "<html>Bad Gateway</html>")]

    reply = page_client.send("GET", "/v1/status")

    assert (reply.status, reply.code) == (502, "HTTP_502")
    assert "comes from a gateway or proxy, not from Evenkeel" in json.loads(reply.text)["detail"]


def test_change_interrupted_by_a_proxy_takes_effect_once(page_client: ConsolePageClient, cli: CliFixture) -> None:
    hold = {"reason": "a test", "forSeconds": 3600}
    path = f"/v1/clusters/{FLEET}/automation/hold"
    cli.cut_after = [5]

    interrupted_reply, repeated_reply = page_client.change(path, hold), page_client.change(path, hold)

    assert (interrupted_reply.status, interrupted_reply.code) == (503, "UNREACHABLE")
    assert repeated_reply.status == 200
    assert len(cli.gateway.get(f"/v1/clusters/{FLEET}/automation").document["holds"]) == 1


JOB, NODE, INCIDENT = "jobs/job-0000000001", f"nodes/{instance_id(1)}", "incidents/inc-0000000002"
KILLED_ACTS = {
    "hold": (f"clusters/{FLEET}/automation/hold", {"forSeconds": 3600}, "audit"),
    "cordon": (f"{NODE}/cordon", {}, "audit"),
    "suspend": (f"{JOB}/suspend", {}, f"{JOB}/timeline"),
    "cancel": (f"{JOB}/cancel", {}, f"{JOB}/timeline"),
    "approve": (f"{INCIDENT}/approve", {"decisionId": PLAN_AWAITING_APPROVAL.decision_id}, f"{INCIDENT}/timeline"),
    "acknowledge": (f"{INCIDENT}/acknowledge", {}, f"{INCIDENT}/timeline"),
}
"""Path, fields and record of each act."""


@pytest.mark.parametrize(("path", "fields", "record"), KILLED_ACTS.values(), ids=KILLED_ACTS)
def test_console_killed_during_a_change_loses_no_change(
    cli: CliFixture, path: str, fields: dict[str, Any], record: str
) -> None:
    """The API completes the change without the console. The next console repeats it, and shows it once."""
    store(cli.gateway.fakes.ledger, a_job(1), a_fleet_node(1), an_incident(2, plan=PLAN_AWAITING_APPROVAL))
    change = (f"/v1/{path}", {"reason": "a test of kills", **fields})
    arrived, killed = threading.Event(), threading.Event()
    answer_request = cli.answer

    def answer(method: str, target: str, body: str, headers: dict[str, str]) -> ApiResponse:
        if method == "POST":
            arrived.set()
            assert killed.wait(20)
        return answer_request(method, target, body, headers)

    cli.answer = answer  # type: ignore[method-assign]  # the console is killed while the API works
    with a_console_process() as (process, first):
        connection_errors: list[Exception] = []

        def send() -> None:
            try:
                first.change(*change)
            except (OSError, http.client.HTTPException) as error:
                connection_errors.append(error)

        sender = threading.Thread(target=send)
        sender.start()
        assert arrived.wait(20)
        process.kill()
        process.wait(20)
        killed.set()
        sender.join(20)
    assert connection_errors, "the page learns that no answer came"

    with a_console_process() as (_, second):
        reply = second.change(*change)
        document = json.loads(second.send("GET", f"/v1/{record}").text)

    assert reply.status in {200, 202}, reply.text
    entries = [entry for entry in document.get("items") or document["entries"] if "a test of kills" in entry["text"]]
    assert len(entries) == 1, entries


@contextlib.contextmanager
def a_console_process() -> Iterator[tuple[subprocess.Popen[str], ConsolePageClient]]:
    """Run `evenkeel console` in its own process; yield it with a client that has a session."""
    command = [sys.executable, "-m", "evenkeel_cli.main", "console", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        match = re.search(r"http://127\.0\.0\.1:(\d+)/\S+", process.stdout.readline())
        assert match
        page_client = ConsolePageClient(Address(int(match[1]), match[0]))
        page_client.sign_in()
        yield process, page_client
        process.kill()


# ---------------------------------------------------------------- pages


def test_response_headers_forbid_external_and_inline_scripts(page_client: ConsolePageClient) -> None:
    reply = page_client.send("GET", "/")

    assert "default-src 'self'" in reply.headers["Content-Security-Policy"]
    assert "unsafe" not in reply.headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in reply.headers["Content-Security-Policy"]
    assert reply.headers["X-Content-Type-Options"] == "nosniff"
    assert reply.headers["Referrer-Policy"] == "no-referrer"


@pytest.mark.parametrize("path", ["/../session.py", "/vendor/../../session.py", "/%2e%2e/server.py", "/static/main.js"])
def test_console_serves_only_its_own_files(page_client: ConsolePageClient, path: str) -> None:
    assert page_client.send("GET", path).status == 404


def test_console_files_link_to_no_other_site() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in STATIC.rglob("*.*") if "vendor" not in path.parts}

    linked_urls = {
        (path.name, url)
        for path, text in texts.items()
        for url in re.findall(r"(?:https?:)?//[a-z0-9][a-z0-9.-]*\.[a-z]{2,}", text)
        if url != "http://www.w3.org"  # the name space of SVG
    }
    assert linked_urls == set()


def test_vendored_files_match_their_published_checksums() -> None:
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (STATIC / "vendor").iterdir()}

    assert digests == VENDORED


def test_console_files_are_less_than_200_kb_compressed() -> None:
    size = sum(len(gzip.compress(path.read_bytes())) for path in STATIC.rglob("*.*") if path.suffix != ".txt")

    assert size < 200_000


def test_first_page_loads_every_module_at_once() -> None:
    names = {path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*.js")} - {"start.js", "main.js"}

    preloaded = re.findall(r'<link rel="modulepreload" href="/([^"]+)">', (STATIC / "index.html").read_text("utf-8"))

    assert sorted(preloaded) == sorted(names)


def test_answer_is_not_held_back_for_a_confirmation(console: ConsoleServer) -> None:
    without_delay: list[int] = []

    class Watched(console.RequestHandlerClass):  # type: ignore[name-defined,misc]  # the server's own class
        def handle(self) -> None:
            without_delay.append(self.connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            super().handle()

    console.RequestHandlerClass = Watched

    ConsolePageClient(console).send("GET", "/")

    assert without_delay == [1]


def test_client_is_ready_before_the_first_request(cli: CliFixture) -> None:
    client = lookup.current_client()

    client.prepare()

    assert {"_session", "_credentials"} <= vars(client).keys()
    assert cli.requests == []


def test_console_port_in_use_is_a_usage_error(cli: CliFixture, console: ConsoleServer) -> None:
    result = cli.run("console", "--no-open", "--port", str(console.server_port))

    assert result.exit_code == 2
    assert "PORT_IN_USE" in result.err
