"""Fixtures that run the command against the real API functions, over HTTP on loopback."""

import contextlib
import dataclasses
import io
import json
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from evenkeel_cli.main import main
from tests.fakes.system import A_MOMENT
from tests.unit.api.gateway import FLEET, ApiResponse, Gateway
from tests.unit.api.seeds import store_heartbeats

_FORWARDED_HEADERS = ("Idempotency-Key", "If-None-Match", "If-Match")


@dataclass
class CliResult:
    """Output and exit code of a command."""

    exit_code: int
    out: str
    err: str


class _Terminal(io.StringIO):
    """A terminal of 80 columns that can show Unicode."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class _Pipe(io.StringIO):
    """An output that is not a terminal."""

    encoding = "utf-8"


class CliFixture:
    """The API on a port of loopback, and `evenkeel` commands in a folder with a context for this API."""

    def __init__(self, gateway: Gateway, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gateway = gateway
        self.folder = folder
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.bodies: list[str] = []
        """Of the same requests."""
        self.next_answers: list[ApiResponse] = []
        """Given instead of the API's own, in order."""
        self.cut_after: list[int] = []
        """Bytes of the body after which the connection of each next answer is cut; -1: before the status line."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        self.context = {
            "name": FLEET,
            "url": self.url,
            "region": "us-west-2",
            "credentials": {"accessKeyId": "AKIAOPERATOR", "secretAccessKey": "not-a-secret"},
        }
        (folder / ".evenkeel").mkdir()
        self.write_context(self.context)
        for name in ("EVENKEEL_URL", "EVENKEEL_CONTEXT", "EVENKEEL_PROFILE", "NO_COLOR"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HOME", str(folder))
        monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setenv("EVENKEEL_NOW", A_MOMENT.isoformat())
        monkeypatch.chdir(folder)

    def write_context(self, document: object) -> None:
        (self.folder / ".evenkeel" / "context.json").write_text(json.dumps(document), encoding="utf-8")

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def run(self, *words: str, terminal: bool = False, stdin: str = "", answer: str = "") -> CliResult:
        """Run the command as a person (on a terminal, without colour) or as a program (in a pipe).

        `answer` is what the person types when the command asks.
        """
        out, err = (_Terminal(), _Terminal()) if terminal else (_Pipe(), _Pipe())
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            if terminal:
                patch.setenv("NO_COLOR", "1")
            patch.setattr("sys.stdin", _Terminal(f"{answer}\n") if answer else io.StringIO(stdin))
            code = main(words)
        return CliResult(code, out.getvalue(), err.getvalue())

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        cli = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer("GET")

            def do_POST(self) -> None:
                self._answer("POST")

            def do_PUT(self) -> None:
                self._answer("PUT")

            def do_PATCH(self) -> None:
                self._answer("PATCH")

            def do_DELETE(self) -> None:
                self._answer("DELETE")

            def _answer(self, method: str) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
                headers = dict(self.headers.items())
                cli.requests.append((method, self.path, headers))
                cli.bodies.append(body)
                answer = cli.answer(method, self.path, body, headers)
                content = answer.text.encode()
                cut_after = cli.cut_after.pop(0) if cli.cut_after else None
                self.close_connection = cut_after is not None
                if cut_after == -1:
                    return
                self.send_response_only(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[:cut_after])

            def log_message(self, *_arguments: object) -> None:
                pass

        return Handler

    def answer(self, method: str, target: str, body: str, headers: dict[str, str]) -> ApiResponse:
        if self.next_answers:
            return self.next_answers.pop(0)
        if "AWS4-HMAC-SHA256" not in headers.get("Authorization", ""):
            return ApiResponse(403, {}, '{"message": "Missing Authentication Token"}')
        forwarded_headers = {name: value for name, value in headers.items() if name in _FORWARDED_HEADERS}
        key = forwarded_headers.pop("Idempotency-Key", None)
        return self.gateway.call(method, target, body or None, key=key, headers=forwarded_headers)


def leave_out(cli: CliFixture, path: str, *fields: str) -> None:
    """Let the API be that of an older stack, whose answer to a path lacks some fields."""
    current = cli.answer

    def answer(method: str, target: str, body: str, headers: dict[str, str]) -> ApiResponse:
        answered = current(method, target, body, headers)
        if not target.startswith(path):
            return answered
        older = {name: value for name, value in json.loads(answered.text).items() if name not in fields}
        return dataclasses.replace(answered, text=json.dumps(older))

    cli.answer = answer  # type: ignore[method-assign]  # an older API stands before the current one


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliFixture]:
    """Yield the command line with the API of a fleet in which every source answers."""
    gateway = Gateway()
    store_heartbeats(gateway.fakes.ledger)
    api = CliFixture(gateway, tmp_path, monkeypatch)
    yield api
    api.stop()
