"""Which API a command talks to, and as whom.

Looked for in this order: `EVENKEEL_URL`; the file that `EVENKEEL_CONTEXT` names; `.evenkeel/context.json` here or in a
folder above; `~/.config/evenkeel/context.json`.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from evenkeel_cli.errors import CommandFailed, Exit

_API_HOST = re.compile(r"https://[a-z0-9]+\.execute-api\.([a-z0-9-]+)\.amazonaws\.com")


@dataclass(frozen=True)
class StaticKey:
    """An access key that a context carries: only ever one of the local engine."""

    access_key_id: str
    secret_access_key: str

    def __repr__(self) -> str:
        return f"StaticKey({self.access_key_id!r})"


@dataclass(frozen=True)
class Context:
    """One API and how to reach it."""

    name: str
    url: str
    """Base of the API; ends in `/v1`."""
    region: str
    key: StaticKey | None = None
    """None = credentials are found as the AWS CLI finds them."""
    profile: str | None = None
    control_url: str = ""
    """The local GPU cluster's control address; empty for a fleet in the cloud."""
    stack: str = "evenkeel"
    """Name of the CloudFormation stack."""
    aws_endpoint_url: str = ""
    """The local engine's address; empty for AWS."""
    source: str = ""
    """Where this context was found, for messages."""


def find(environment: Mapping[str, str], folder: Path) -> Context:
    """Find the context that is in force.

    Raises:
        CommandFailed: there is none, or it cannot be read.
    """
    url = environment.get("EVENKEEL_URL", "")
    if url:
        document = {"name": environment.get("EVENKEEL_FLEET", ""), "url": url}
        return read(document, "EVENKEEL_URL", environment)
    for file in _places(environment, folder):
        if file.is_file():
            try:
                return read(json.loads(file.read_text(encoding="utf-8")), str(file), environment)
            except (OSError, ValueError) as error:
                raise CommandFailed(Exit.USAGE, f"{file} cannot be read: {error}", code="BAD_CONTEXT") from error
    named = environment.get("EVENKEEL_CONTEXT")
    raise CommandFailed(
        Exit.USAGE,
        f"The context file {named} does not exist." if named else "No Evenkeel API is known here.",
        code="NO_CONTEXT",
        hint="Set EVENKEEL_URL to the stack's ApiUrl (it ends in /v1), or start a local data centre: evenkeel dev up",
    )


def _places(environment: Mapping[str, str], folder: Path) -> Iterator[Path]:
    named = environment.get("EVENKEEL_CONTEXT")
    if named:
        yield Path(named)
        return
    for here in (folder, *folder.parents):
        yield here / ".evenkeel" / "context.json"
    settings = environment.get("XDG_CONFIG_HOME")
    yield (Path(settings) if settings else Path(environment.get("HOME", "/"), ".config")) / "evenkeel" / "context.json"


def read(document: Any, source: str, environment: Mapping[str, str]) -> Context:
    """Read a context from its JSON form.

    Raises:
        CommandFailed: it cannot be used.
    """
    if not isinstance(document, dict):
        _refuse(source, "it is no JSON object")
    url = str(document.get("url", "")).rstrip("/")
    if not url.startswith(("https://", "http://127.0.0.1", "http://localhost")) or not url.endswith("/v1"):
        _refuse(source, f"the URL {url!r} must begin with https:// and end in /v1")
    host = _API_HOST.match(url)
    region = (
        document.get("region")
        or (host and host[1])
        or environment.get("AWS_REGION")
        or environment.get("AWS_DEFAULT_REGION")
    )
    if not region:
        _refuse(source, "the region is not known: set AWS_REGION")
    return Context(
        name=str(document.get("name") or ""),
        url=url,
        region=str(region),
        key=_key(document.get("credentials"), source),
        profile=environment.get("EVENKEEL_PROFILE") or document.get("profile"),
        control_url=str(document.get("controlUrl") or "").rstrip("/"),
        stack=str(document.get("stack") or environment.get("STACK") or "evenkeel"),
        aws_endpoint_url=_endpoint(document.get("awsEndpointUrl"), source),
        source=source,
    )


def _key(document: Any, source: str) -> StaticKey | None:
    if document is None:
        return None
    if not isinstance(document, dict):
        _refuse(source, "credentials must be a JSON object")
    for field in ("accessKeyId", "secretAccessKey"):
        if not isinstance(document.get(field), str) or not document[field]:
            _refuse(source, f"credentials.{field} is missing")
    return StaticKey(document["accessKeyId"], document["secretAccessKey"])


def _endpoint(url: Any, source: str) -> str:
    if not url:
        return ""
    # Requests to it are signed like those to AWS: nobody else may receive them.
    if urlsplit(str(url)).hostname not in ("127.0.0.1", "localhost"):
        _refuse(source, "awsEndpointUrl is for the local engine, on this machine")
    return str(url)


def _refuse(source: str, why: str) -> NoReturn:
    raise CommandFailed(Exit.USAGE, f"The context from {source} cannot be used: {why}.", code="BAD_CONTEXT")
