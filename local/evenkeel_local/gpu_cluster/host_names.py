"""Refuse requests of web pages: every browser of the machine can reach a listener on loopback.

A page can point its own host name at 127.0.0.1 (DNS rebinding), or post to 127.0.0.1 from its own origin. The first
request names the page in `Host`, the second in `Origin`.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler

ALLOWED: Final = frozenset(
    {"127.0.0.1", "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
)
"""The loopback address and the names in the API server's certificate."""

_AUTHORITY: Final = re.compile(r"[a-z0-9.-]+(:[0-9]{1,5})?", re.ASCII | re.IGNORECASE)
"""A host name with an optional port. `urlsplit` would also accept paths, spaces and tabs."""


@web.middleware
async def only_local_names(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer 421 to a request for another host, and 403 to one from another origin."""
    hosts = request.headers.getall("Host", [])
    # A target such as `GET http://attacker.example/` names a host too, and has precedence over `Host`.
    is_named_so = len(hosts) == 1 and _AUTHORITY.fullmatch(hosts[0]) is not None and is_local(str(request.url))
    if not is_named_so or not is_local(f"//{hosts[0]}"):
        return web.Response(status=421, text="This listener serves 127.0.0.1 and localhost only.\n")
    if not all(map(is_local, request.headers.getall("Origin", []))):
        return web.Response(status=403, text="This listener takes no requests from web pages.\n")
    return await handler(request)


def is_local(url: str) -> bool:
    """Whether a URL names this machine's loopback address."""
    try:
        parts = urlsplit(url)
        name, _ = parts.hostname, parts.port
    except ValueError:
        return False
    return name in ALLOWED and parts.username is None
