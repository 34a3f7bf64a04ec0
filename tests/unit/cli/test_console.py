"""The server of the console: its sessions, and the requests that it forwards."""

import contextlib
import gzip
import hashlib
import http.client
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import NamedTuple

import pytest

import evenkeel_cli.console
from evenkeel_cli.commands import lookup
from evenkeel_cli.console.server import MAX_BODY_BYTES, ConsoleServer
from tests.unit.api.gateway import FLEET, ApiResponse
from tests.unit.cli.conftest import CliFixture
from tests.unit.cli.recovery_fixture import recovery_at_work

STATIC = Path(evenkeel_cli.console.__file__).parent / "static"
VENDORED = {
    "htm-preact-standalone-3.1.1.js": "72284e8e9079c87817145df1110f74e8a2aa040b2fc384922e18dfcb46fc1fd7",
    "htm-LICENSE.txt": "740725f7252e750af735d0028cc534970772f513331e9f68150fede8fb3ce00f",
    "preact-LICENSE.txt": "1fe6958409c8c257a70c587a18b6f7f412b179b456630790d30b2ec9a8e4b7d4",
}


class Reply(NamedTuple):
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


class Browser:
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
        own = {
            "Origin": f"http://{self.host}",
            "X_Evenkeel_Console": self.key,
            "Idempotency_Key": "console-1",
            "Content_Type": "application/json",
        }
        return self.send("POST", path, body=json.dumps(body or {"reason": "a test"}), **own | headers)

    def sign_in(self) -> Reply:
        reply = self.send("GET", self.server.link.partition(self.host)[2])
        self.cookie = (reply.headers["Set-Cookie"] or "").partition(";")[0]
        match = re.search(r'data-key="([^"]+)"', reply.text)
        self.key = match[1] if match else ""
        return reply


@pytest.fixture
def console(served: CliFixture) -> Iterator[ConsoleServer]:
    recovery_at_work(served.gateway)
    yield from _running(ConsoleServer(lookup.current_client()))


@pytest.fixture
def reading(served: CliFixture) -> Iterator[ConsoleServer]:
    yield from _running(ConsoleServer(lookup.current_client(), read_only=True))


def _running(server: ConsoleServer) -> Iterator[ConsoleServer]:
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(5)


@pytest.fixture
def browser(console: ConsoleServer) -> Browser:
    signed_in = Browser(console)
    signed_in.sign_in()
    return signed_in


# ---------------------------------------------------------------- the link and the session


def test_console_listens_on_loopback_only(console: ConsoleServer) -> None:
    assert console.server_address[0] == "127.0.0.1"


def test_login_link_opens_the_console_once(console: ConsoleServer) -> None:
    link = console.link.partition(str(console.server_port))[2]
    first, second = Browser(console), Browser(console)

    assert first.sign_in().status == 200
    assert first.send("GET", "/v1/status").status == 200
    assert second.send("GET", link).code == "LINK_USED"
    assert first.send("GET", link).status == 303, "a reload in the same browser"


def test_session_cookie_is_strict_and_hidden_from_scripts(console: ConsoleServer) -> None:
    cookie = Browser(console).sign_in().headers["Set-Cookie"]

    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= {part.strip() for part in cookie.split(";")}


@pytest.mark.parametrize("path", ["/", "/main.js", "/session", "/v1/status", "/v1/jobs?pageSize=1"])
def test_nothing_is_served_without_a_session(console: ConsoleServer, path: str) -> None:
    stranger = Browser(console)

    assert stranger.send("GET", path).code == "NOT_SIGNED_IN"
    assert stranger.send("GET", path, Cookie=f"evenkeel-console-{console.server_port}=guess").code == "NOT_SIGNED_IN"


@pytest.mark.parametrize("token", ["", "?token=", "?token=wrong", "?token=%00", "?tok"])
def test_invalid_login_link_opens_no_session(console: ConsoleServer, token: str) -> None:
    assert Browser(console).send("GET", f"/open{token}").code == "LINK_USED"
    assert Browser(console).sign_in().status == 200, "the right link still works"


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example", "[::1]:80"])
def test_request_to_another_host_name_is_refused(browser: Browser, host: str) -> None:
    assert browser.send("GET", "/v1/status", Host=host).code == "WRONG_HOST"


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1"])
def test_request_of_another_origin_is_refused(browser: Browser, origin: str) -> None:
    assert browser.send("GET", "/v1/status", Origin=origin).code == "WRONG_ORIGIN"
    assert browser.change("/v1/jobs/job-0000000002/cancel", Origin=origin).code == "WRONG_ORIGIN"


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_request_of_another_site_is_refused(browser: Browser, site: str) -> None:
    assert browser.send("GET", "/v1/status", Sec_Fetch_Site=site).code == "WRONG_ORIGIN"


# ---------------------------------------------------------------- changes


def test_change_is_signed_with_the_key_of_the_operator(browser: Browser, served: CliFixture) -> None:
    reply = browser.change("/v1/jobs/job-0000000002/cancel")

    assert reply.status == 202
    method, path, headers = served.requests[-1]
    assert (method, path) == ("POST", "/v1/jobs/job-0000000002/cancel")
    assert "Credential=AKIAOPERATOR/" in headers["Authorization"]
    assert headers["Idempotency-Key"] == "console-1"
    assert not {"Cookie", "X-Evenkeel-Console", "Origin"} & set(headers)


@pytest.mark.parametrize("left_out", ["Origin", "X_Evenkeel_Console"])
def test_change_without_origin_or_request_token_is_refused(browser: Browser, served: CliFixture, left_out: str) -> None:
    before = len(served.requests)

    assert browser.change("/v1/jobs/job-0000000002/cancel", **{left_out: ""}).code == "NOT_FROM_THE_CONSOLE"
    assert len(served.requests) == before


def test_session_cookie_is_not_accepted_as_request_token(browser: Browser) -> None:
    reply = browser.change("/v1/jobs/job-0000000002/cancel", X_Evenkeel_Console=browser.cookie.partition("=")[2])

    assert reply.code == "NOT_FROM_THE_CONSOLE"


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_read_only_console_refuses_every_change(reading: ConsoleServer, served: CliFixture, method: str) -> None:
    browser = Browser(reading)
    browser.sign_in()
    own = {"Origin": f"http://{browser.host}", "X_Evenkeel_Console": browser.key, "Content_Type": "application/json"}

    reply = browser.send(method, "/v1/jobs/job-0000000002/cancel", body="{}", **own)

    assert reply.code == "READ_ONLY"
    assert not served.requests
    assert browser.send("GET", "/v1/status").status == 200


def test_refusal_of_the_api_reaches_the_page_unchanged(browser: Browser) -> None:
    reply = browser.change("/v1/jobs/job-9999999999/cancel")

    assert (reply.status, reply.code) == (404, "NOT_FOUND")
    assert reply.headers["Content-Type"] == "application/problem+json"


# ---------------------------------------------------------------- forwarding


@pytest.mark.parametrize(
    "path",
    ["/v1/../admin", "/v1/jobs/%2e%2e/x", "/v1//jobs", "/v1/jobs/a%2fb", "/v1/./status", "/v1/jobs/a\\b"],
)
def test_path_outside_the_api_is_not_forwarded(browser: Browser, served: CliFixture, path: str) -> None:
    before = len(served.requests)

    assert browser.send("GET", path).code == "NO_SUCH_ROUTE"
    assert len(served.requests) == before


def test_unchanged_answer_is_not_sent_again(browser: Browser) -> None:
    first = browser.send("GET", "/v1/incidents?pageSize=5")
    again = browser.send("GET", "/v1/incidents?pageSize=5", If_None_Match=first.headers["ETag"])

    assert (again.status, again.text) == (304, "")


def test_large_or_endless_body_is_refused(browser: Browser, served: CliFixture) -> None:
    before = len(served.requests)

    assert browser.change("/v1/jobs", {"x": "y" * MAX_BODY_BYTES}).code == "TOO_LARGE"
    assert browser.send("POST", "/v1/jobs", Transfer_Encoding="chunked").code == "LENGTH_REQUIRED"
    assert browser.send("POST", "/v1/jobs", Content_Length="-1").code == "BAD_LENGTH"
    assert len(served.requests) == before


def test_stopped_api_is_a_problem_with_a_hint(browser: Browser, served: CliFixture) -> None:
    served.stop()

    reply = browser.send("GET", "/v1/status")

    assert (reply.status, reply.code) == (503, "UNREACHABLE")


def test_missing_credentials_are_a_problem_with_a_hint(served: CliFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    served.write_context({name: value for name, value in served.context.items() if name != "credentials"})
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    server = ConsoleServer(lookup.current_client())
    running = _running(server)
    next(running)
    browser = Browser(server)
    browser.sign_in()

    reply = browser.send("GET", "/v1/status")

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
def test_expired_credentials_or_wrong_local_clock_is_named(
    browser: Browser, served: CliFixture, code: str, minutes: int, expected: str, detail: str
) -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(minutes=minutes, seconds=1), usegmt=True)
    problem = {"status": 403, "code": code, "detail": "AWS said so.", "hint": "Look."}
    served.next_answers = [ApiResponse(403, {"Date": date}, json.dumps(problem))]

    reply = browser.change(f"/v1/clusters/{FLEET}/automation/hold")

    assert (reply.status, reply.code) == (403, expected)
    assert json.loads(reply.text)["detail"].startswith(detail)


def test_html_of_a_proxy_is_not_taken_for_a_response(browser: Browser, served: CliFixture) -> None:
    served.next_answers = [ApiResponse(502, {}, "<html>Bad Gateway</html>")]

    reply = browser.send("GET", "/v1/status")

    assert (reply.status, reply.code) == (502, "HTTP_502")
    assert "comes from a gateway or proxy, not from Evenkeel" in json.loads(reply.text)["detail"]


def test_change_interrupted_by_a_proxy_takes_effect_once(browser: Browser, served: CliFixture) -> None:
    hold = {"reason": "a test", "forSeconds": 3600}
    path = f"/v1/clusters/{FLEET}/automation/hold"
    served.cut_after = [5]

    cut, again = browser.change(path, hold), browser.change(path, hold)

    assert (cut.status, cut.code) == (503, "UNREACHABLE")
    assert again.status == 200
    assert len(served.gateway.get(f"/v1/clusters/{FLEET}/automation").document["holds"]) == 1


def test_console_killed_during_a_change_loses_no_change(served: CliFixture) -> None:
    """The API completes the change without the console, and the next console shows it."""
    hold = {"reason": "a test", "forSeconds": 3600}
    path = f"/v1/clusters/{FLEET}/automation/hold"
    arrived, killed = threading.Event(), threading.Event()
    inner = served.answer

    def answer(method: str, target: str, body: str, headers: dict[str, str]) -> ApiResponse:
        if method == "POST":
            arrived.set()
            assert killed.wait(20)
        return inner(method, target, body, headers)

    served.answer = answer  # type: ignore[method-assign]  # the console is killed while the API works
    with a_console_process() as (process, first):
        lost: list[Exception] = []

        def send() -> None:
            try:
                first.change(path, hold)
            except (OSError, http.client.HTTPException) as error:
                lost.append(error)

        sender = threading.Thread(target=send)
        sender.start()
        assert arrived.wait(20)
        process.kill()
        process.wait(20)
        killed.set()
        sender.join(20)
    assert lost, "the page learns that no answer came"

    with a_console_process() as (_, second):
        reply = second.change(path, hold)
        shown = json.loads(second.send("GET", f"/v1/clusters/{FLEET}/automation").text)

    assert reply.status == 200
    assert len(shown["holds"]) == 1


@contextlib.contextmanager
def a_console_process() -> Iterator[tuple[subprocess.Popen[str], Browser]]:
    """Run `evenkeel console` in its own process; yield it with a browser that has a session."""
    command = [sys.executable, "-m", "evenkeel_cli.main", "console", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        match = re.search(r"http://127\.0\.0\.1:(\d+)/\S+", process.stdout.readline())
        assert match
        browser = Browser(Address(int(match[1]), match[0]))
        browser.sign_in()
        yield process, browser
        process.kill()


# ---------------------------------------------------------------- pages


def test_response_headers_forbid_external_and_inline_scripts(browser: Browser) -> None:
    reply = browser.send("GET", "/")

    assert "default-src 'self'" in reply.headers["Content-Security-Policy"]
    assert "unsafe" not in reply.headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in reply.headers["Content-Security-Policy"]
    assert reply.headers["X-Content-Type-Options"] == "nosniff"
    assert reply.headers["Referrer-Policy"] == "no-referrer"


@pytest.mark.parametrize("path", ["/../session.py", "/vendor/../../session.py", "/%2e%2e/server.py", "/static/main.js"])
def test_console_serves_only_its_own_files(browser: Browser, path: str) -> None:
    assert browser.send("GET", path).status == 404


def test_console_files_link_to_no_other_site() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in STATIC.rglob("*.*") if "vendor" not in path.parts}

    named = {
        (path.name, url)
        for path, text in texts.items()
        for url in re.findall(r"(?:https?:)?//[a-z0-9][a-z0-9.-]*\.[a-z]{2,}", text)
        if url != "http://www.w3.org"  # the name space of SVG
    }
    assert named == set()


def test_vendored_files_match_their_published_checksums() -> None:
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (STATIC / "vendor").iterdir()}

    assert digests == VENDORED


def test_console_files_are_less_than_200_kb_compressed() -> None:
    size = sum(len(gzip.compress(path.read_bytes())) for path in STATIC.rglob("*.*") if path.suffix != ".txt")

    assert size < 200_000


def test_port_in_use_is_a_usage_error(served: CliFixture, console: ConsoleServer) -> None:
    result = served.run("console", "--no-open", "--port", str(console.server_port))

    assert result.exit_code == 2
    assert "PORT_IN_USE" in result.err
