"""The loopback server of the console: it serves the pages, and signs and forwards requests to the API.

It is built on `http.server` of the standard library (docs/decisions/0037): it has one user, on this machine.
"""

import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any, NamedTuple, cast
from urllib.parse import parse_qs, urlsplit

from evenkeel_cli.console.session import ConsoleSession, Refusal
from evenkeel_client.client import ApiClient
from evenkeel_client.errors import CommandFailed, Exit

HOST = "127.0.0.1"
MAX_BODY_BYTES = 128_000
"""Larger than any body that the API accepts."""
_API_PATH = re.compile(r"/v1(/[A-Za-z0-9@:._~-]+)+(\?[A-Za-z0-9@:._~%&=,+-]*)?", re.ASCII)
_FORWARDED = ("If-Match", "If-None-Match", "Idempotency-Key", "Content-Type")
_RETURNED = ("Content-Type", "ETag", "Location", "Retry-After", "Cache-Control")
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_SECURITY = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_STATUS_OF = {Exit.TRY_AGAIN: 503, Exit.NOT_ALLOWED: 401}


class _Answer(NamedTuple):
    """Status, headers and body of a response."""

    status: int
    headers: Mapping[str, str]
    content: bytes


class ConsoleServer(ThreadingHTTPServer):
    """The console of one person, on a port of 127.0.0.1."""

    daemon_threads = True

    def __init__(self, client: ApiClient, *, port: int = 0, read_only: bool = False) -> None:
        """Listen on the port; 0 chooses a free one. Nothing is served before `serve_forever`.

        Raises:
            OSError: Another program uses the port.
        """
        super().__init__((HOST, port), _Handler)
        self.client = client
        self.read_only = read_only
        self.session = ConsoleSession(self.server_port)

    @property
    def link(self) -> str:
        """The link that opens the console. It works once."""
        return f"http://{HOST}:{self.server_port}/open?token={self.session.link_token}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that closed its connection; report other errors as `socketserver` does."""
        import sys

        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """Handles the requests of one browser connection."""

    protocol_version = "HTTP/1.1"
    server_version = "evenkeel-console"
    sys_version = ""
    timeout = 60
    # Headers and body are two writes. With Nagle's algorithm, the body waits up to 40 ms until headers are confirmed.
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def do_PATCH(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def log_message(self, *_arguments: object) -> None:
        """Write no access log: the API records each change with its caller."""

    @property
    def _console(self) -> ConsoleServer:
        return cast("ConsoleServer", self.server)

    def _serve(self) -> None:
        # Read the body first. A refusal that leaves it unread would corrupt the next request of the connection.
        body = self._read_body()
        if isinstance(body, Refusal):
            self.close_connection = True
            answer = _refusal_answer(body)
        else:
            answer = self._answer(body)
        self.send_response(answer.status)
        for name, value in {**_SECURITY, **answer.headers, "Content-Length": str(len(answer.content))}.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(answer.content)

    def _read_body(self) -> bytes | Refusal:
        if self.headers.get("Transfer-Encoding"):
            return Refusal(411, "LENGTH_REQUIRED", "Send the length of the body.")
        length = self.headers.get("Content-Length") or "0"
        if not re.fullmatch(r"[0-9]{1,9}", length, re.ASCII):
            return Refusal(400, "BAD_LENGTH", "Content-Length is not a number.")
        if int(length) > MAX_BODY_BYTES:
            return Refusal(413, "TOO_LARGE", f"The body has {length} bytes; at most {MAX_BODY_BYTES} are read.")
        return self.rfile.read(int(length))

    def _answer(self, body: bytes) -> _Answer:
        session = self._console.session
        headers = _headers_by_name(self.headers.items())
        if headers is None:
            return _refusal_answer(Refusal(400, "REPEATED_HEADER", "A header occurs twice."))
        if refusal := session.refuse_wrong_host(headers):
            return _refusal_answer(refusal)
        target = urlsplit(self.path)
        if self.command == "GET" and target.path == "/open":
            # A terminal or a file may hold the link, so the browser may report another site. The token is the proof.
            return self._open(headers, parse_qs(target.query).get("token", [""])[0])
        if refusal := session.refuse_other_site(headers):
            return _refusal_answer(refusal)
        if not session.is_signed_in(headers):
            return _refusal_answer(
                Refusal(
                    401,
                    "NOT_SIGNED_IN",
                    "This browser has no session.",
                    "Open the link that `evenkeel console` printed. For a new link, run: evenkeel console",
                )
            )
        if target.path.startswith("/v1/"):
            return self._forward(headers, body)
        if self.command != "GET":
            return _refusal_answer(Refusal(405, "NOT_ALLOWED", f"{self.command} {target.path[:80]} does not exist."))
        if target.path == "/session":
            return _json_answer(200, self._describe())
        return _static_answer(target.path)

    def _open(self, headers: Mapping[str, str], token: str) -> _Answer:
        key = self._console.session.open(token)
        if key is not None:
            # Not a redirect: a browser sends a strict cookie only if the request comes from a page of this site.
            script = '<title>Evenkeel</title><script src="/start.js"></script>'
            start = f'<!doctype html><html lang="en" data-key="{key}">{script}'
            cookie = self._console.session.cookie_header()
            start_headers = {"Content-Type": _TYPES[".html"], "Set-Cookie": cookie, "Cache-Control": "no-store"}
            return _Answer(200, start_headers, start.encode())
        if self._console.session.is_signed_in(headers):
            return _Answer(303, {"Location": "/", "Cache-Control": "no-store"}, b"")
        return _refusal_answer(
            Refusal(403, "LINK_USED", "This link is wrong or was used before.", "Get a new link: evenkeel console")
        )

    def _describe(self) -> dict[str, Any]:
        context = self._console.client.context
        return {
            "fleet": context.name,
            "region": context.region,
            "apiUrl": context.url,
            "isReadOnly": self._console.read_only,
            "isLocal": bool(context.control_url),
        }

    def _forward(self, headers: Mapping[str, str], body: bytes) -> _Answer:
        console = self._console
        if not _API_PATH.fullmatch(self.path) or "/." in self.path:
            return _refusal_answer(Refusal(404, "NO_SUCH_ROUTE", "The path is not a path of the API."))
        if self.command != "GET":
            if console.read_only:
                return _refusal_answer(
                    Refusal(
                        403, "READ_ONLY", "This console is read-only.", "To make changes, start it without --read-only."
                    )
                )
            if refusal := console.session.refuse_unproven_change(headers):
                return _refusal_answer(refusal)
        request_headers = {name: headers[name] for name in _FORWARDED if name in headers}
        try:
            raw = console.client.forward(self.command, self.path.removeprefix("/v1"), body or None, request_headers)
        except CommandFailed as failure:
            return _refusal_answer(
                Refusal(_STATUS_OF.get(failure.exit_code, 502), failure.code or "FAILED", failure.text, failure.hint)
            )
        if cause := console.client.local_cause(raw):
            return _refusal_answer(Refusal(raw.status, cause.code, cause.text, cause.hint))
        response_headers = {name: raw.headers[name] for name in _RETURNED if name in raw.headers}
        return _Answer(raw.status, {"Cache-Control": "no-store", **response_headers}, raw.content)


def _headers_by_name(headers: Iterable[tuple[str, str]]) -> dict[str, str] | None:
    """Return the headers by name, such as `If-Match`; None if a header occurs twice."""
    values: dict[str, str] = {}
    for name, value in headers:
        spelt = "-".join(word.capitalize() for word in name.split("-"))
        if spelt in values:
            return None
        values[spelt] = value
    return values


def _refusal_answer(refusal: Refusal) -> _Answer:
    document = {
        "type": f"urn:evenkeel:problem:{refusal.code.lower().replace('_', '-')}",
        "title": "The console refused the request",
        "status": refusal.status,
        "code": refusal.code,
        "detail": refusal.detail,
        "hint": refusal.hint,
    }
    return _json_answer(refusal.status, document, "application/problem+json")


def _json_answer(status: int, document: Mapping[str, Any], content_type: str = "application/json") -> _Answer:
    headers = {"Content-Type": content_type, "Cache-Control": "no-store"}
    return _Answer(status, headers, json.dumps(document).encode())


def _static_answer(path: str) -> _Answer:
    name = path.removeprefix("/") or "index.html"
    content = _static_files().get(name)
    if content is None:
        return _refusal_answer(Refusal(404, "NOT_FOUND", f"The console has no file {name[:80]}."))
    suffix = name[name.rfind(".") :]
    return _Answer(200, {"Content-Type": _TYPES[suffix], "Cache-Control": "no-cache"}, content)


@cache
def _static_files() -> Mapping[str, bytes]:
    """Return name → content of every file that the console serves. A path can name no other file."""
    root = resources.files("evenkeel_cli.console") / "static"
    folders = [("", root), ("pages/", root / "pages"), ("vendor/", root / "vendor")]
    return {
        prefix + file.name: file.read_bytes()
        for prefix, folder in folders
        for file in folder.iterdir()
        if file.is_file() and file.name[file.name.rfind(".") :] in _TYPES
    }
