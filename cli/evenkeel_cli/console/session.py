"""The session of a console: its one-time link, its cookie, and the key that changes need."""

import hmac
import secrets
import threading
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import NamedTuple

CHANGE_HEADER = "X-Evenkeel-Console"
"""Header of a change. Its value is the key of the session."""


class Refusal(NamedTuple):
    """Why the console refuses a request: status, code, message and hint."""

    status: int
    code: str
    detail: str
    hint: str = ""


class ConsoleSession:
    """The session of one console: its link, its cookie and its key.

    Browsers send a cookie to every port of its host, so another server on this machine could receive it. Therefore a
    change also needs the key, which only pages of this port can read.
    """

    def __init__(self, port: int) -> None:
        self._hosts = (f"127.0.0.1:{port}", f"localhost:{port}")
        self._cookie_name = f"evenkeel-console-{port}"
        self._cookie = secrets.token_urlsafe(32)
        self._key = secrets.token_urlsafe(32)
        self._link = secrets.token_urlsafe(32)
        self._lock = threading.Lock()

    @property
    def link_token(self) -> str:
        """The token of the link. It works once."""
        return self._link

    def open(self, token: str) -> str | None:
        """Return the key of the session for a link's token; None if the token is wrong or was used before."""
        with self._lock:
            if not self._link or not _is_equal_secret(token, self._link):
                return None
            self._link = ""
        return self._key

    def cookie_header(self) -> str:
        return f"{self._cookie_name}={self._cookie}; HttpOnly; SameSite=Strict; Path=/"

    def refuse_wrong_host(self, headers: Mapping[str, str]) -> Refusal | None:
        """Refuse a request to another name (DNS rebinding)."""
        if headers.get("Host") not in self._hosts:
            return Refusal(403, "WRONG_HOST", f"The console answers only as http://{self._hosts[0]}.")
        return None

    def refuse_other_site(self, headers: Mapping[str, str]) -> Refusal | None:
        """Refuse a request that a page of another site sent."""
        origin = headers.get("Origin")
        is_own = origin is None or origin in [f"http://{host}" for host in self._hosts]
        if not is_own or headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return Refusal(403, "WRONG_ORIGIN", "Another site sent this request.")
        return None

    def is_signed_in(self, headers: Mapping[str, str]) -> bool:
        """Whether the request has the session's cookie."""
        try:
            cookies = SimpleCookie(headers.get("Cookie", ""))
        except CookieError:
            return False
        morsel = cookies.get(self._cookie_name)
        return morsel is not None and _is_equal_secret(morsel.value, self._cookie)

    def refuse_unproven_change(self, headers: Mapping[str, str]) -> Refusal | None:
        """Refuse a change that no page of this console sent."""
        if not headers.get("Origin") or not _is_equal_secret(headers.get(CHANGE_HEADER, ""), self._key):
            return Refusal(
                403,
                "NOT_FROM_THE_CONSOLE",
                f"A change needs the headers Origin and {CHANGE_HEADER}.",
                "Open the link that `evenkeel console` prints.",
            )
        return None


def _is_equal_secret(received_secret: str, expected_secret: str) -> bool:
    return hmac.compare_digest(received_secret.encode(), expected_secret.encode())
