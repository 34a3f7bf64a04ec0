"""The context: the API's address and the credentials for it.

The first of these is used: `EVENKEEL_URL`; the context that `EVENKEEL_CONTEXT` names, by its file or by its name in
`~/.config/evenkeel/contexts`; `.evenkeel/context.json` of the current folder, if no other user can write it;
`~/.config/evenkeel/context.json`.
"""

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import SplitResult, urlsplit

from evenkeel_client.errors import CommandFailed, Exit

_API_HOST = re.compile(r"[a-z0-9]+\.execute-api\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?", re.ASCII)
_HOST = re.compile(r"[a-z0-9.:-]+", re.ASCII)
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}", re.ASCII)
"""Name of a context: the name of its fleet, for example."""
_NO_CONTEXT = (
    "Add the fleet: evenkeel context add NAME --stack STACK. Or set EVENKEEL_URL to the stack's ApiUrl. "
    "For a local data centre, run commands in the project folder, after evenkeel dev up."
)
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True)
class StaticKey:
    """An access key in a context file; only contexts of the local AWS engine hold one."""

    access_key_id: str
    secret_access_key: str

    def __repr__(self) -> str:
        return f"StaticKey({self.access_key_id!r})"


@dataclass(frozen=True)
class ApiContext:
    """The address of one API and the credentials for it."""

    name: str
    url: str
    """Base of the API; ends in `/v1`."""
    region: str
    key: StaticKey | None = None
    """None = botocore finds credentials as the AWS CLI does."""
    profile: str | None = None
    control_url: str = ""
    """The local GPU cluster's control address; empty for a fleet in the cloud."""
    stack: str = "evenkeel"
    """Name of the CloudFormation stack."""
    aws_endpoint_url: str = ""
    """The local engine's address; empty for AWS."""
    source: str = ""
    """Where this context was found; used in messages."""


def find_context(environment: Mapping[str, str], folder: Path) -> ApiContext:
    """Find the context.

    Raises:
        CommandFailed: there is no context, or its file cannot be read.
    """
    url = environment.get("EVENKEEL_URL", "")
    if url:
        document = {"name": environment.get("EVENKEEL_FLEET", ""), "url": url}
        return read_context(document, "EVENKEEL_URL", environment)
    for file in _candidate_files(environment, folder):
        if file.is_file():
            if file == _project_context_file(folder):
                _check_owner(file)
            try:
                return read_context(json.loads(file.read_text(encoding="utf-8")), str(file), environment)
            except (OSError, ValueError) as error:
                raise CommandFailed(Exit.USAGE, f"{file} cannot be read: {error}", code="BAD_CONTEXT") from error
    context_name = environment.get("EVENKEEL_CONTEXT")
    raise CommandFailed(
        Exit.USAGE,
        f"The context {context_name} does not exist." if context_name else "No Evenkeel API is configured.",
        code="NO_CONTEXT",
        hint="evenkeel context ls" if context_name else _NO_CONTEXT,
    )


def _candidate_files(environment: Mapping[str, str], folder: Path) -> Iterator[Path]:
    context_name = environment.get("EVENKEEL_CONTEXT")
    if context_name:
        yield (
            named_file(environment, context_name)
            if NAME.fullmatch(context_name) and not Path(context_name).is_file()
            else Path(context_name)
        )
        return
    yield _project_context_file(folder)
    yield default_file(environment)


def default_file(environment: Mapping[str, str]) -> Path:
    """Return the file of the context that a user's commands use by default."""
    settings = environment.get("XDG_CONFIG_HOME")
    return (Path(settings) if settings else Path(environment.get("HOME", "/"), ".config")) / "evenkeel" / "context.json"


def named_file(environment: Mapping[str, str], name: str) -> Path:
    """Return the file of a context by its name."""
    return default_file(environment).with_name("contexts") / f"{name}.json"


def _project_context_file(folder: Path) -> Path:
    return folder / ".evenkeel" / "context.json"


def _check_owner(file: Path) -> None:
    """Refuse a context file that another user could have written. The file decides where signed requests go.

    Raises:
        CommandFailed: the file or a folder of it is not safe. It belongs to another user, is a symbolic link, or is
            writable by every user or by a group other than the user's own.
    """
    for checked_path in (file.parent.parent, file.parent, file):
        status = checked_path.lstat()
        problem = ""
        if status.st_uid != os.geteuid():
            problem = "belongs to another user"
        elif stat.S_ISLNK(status.st_mode):
            problem = "is a symbolic link"
        elif status.st_mode & stat.S_IWOTH:
            problem = "is writable by every user"
        elif status.st_mode & stat.S_IWGRP and status.st_gid != os.getegid():
            problem = "is writable by another group"
        if problem:
            raise CommandFailed(
                Exit.USAGE,
                f"The context {file} is not used: {checked_path} {problem}.",
                code="UNSAFE_CONTEXT",
                hint=f"If you trust the file, set EVENKEEL_CONTEXT={file}",
            )


def read_context(document: Any, source: str, environment: Mapping[str, str]) -> ApiContext:
    """Read a context from its JSON form.

    Raises:
        CommandFailed: a field is missing or not valid.
    """
    if not isinstance(document, dict):
        _reject(source, "it is not a JSON object")
    url = str(document.get("url", "")).rstrip("/")
    url_parts = _parse_endpoint(url, source, "the URL")
    if not url_parts.path.endswith("/v1"):
        _reject(source, f"the URL {url!r} must end in /v1")
    host = _API_HOST.fullmatch(url_parts.hostname or "")
    region = (
        document.get("region")
        or (host and host[1])
        or environment.get("AWS_REGION")
        or environment.get("AWS_DEFAULT_REGION")
    )
    if not region:
        _reject(source, "the region is unknown; set AWS_REGION")
    return ApiContext(
        name=str(document.get("name") or ""),
        url=url,
        region=str(region),
        key=_read_static_key(document.get("credentials"), source),
        profile=environment.get("EVENKEEL_PROFILE") or document.get("profile"),
        control_url=_local_address(document, "controlUrl", source),
        stack=str(document.get("stack") or environment.get("STACK") or "evenkeel"),
        aws_endpoint_url=_local_address(document, "awsEndpointUrl", source),
        source=source,
    )


def _parse_endpoint(url: str, source: str, field: str) -> SplitResult:
    """Return the parts of an endpoint.

    Raises:
        CommandFailed: the URL is neither a plain https URL nor an http URL of this machine.
    """
    try:
        url_parts = urlsplit(url)
        name, _ = url_parts.hostname, url_parts.port
    except ValueError:
        _reject(source, f"{field} {url!r} is not a valid URL")
    is_safe = url_parts.scheme == "https" or (url_parts.scheme == "http" and name in _LOOPBACK)
    is_named = name is not None and _HOST.fullmatch(name) is not None
    if (
        not is_safe
        or not is_named
        or "@" in url_parts.netloc
        or url_parts.query
        or url_parts.fragment
        or not url.isprintable()
    ):
        _reject(source, f"{field} {url!r} must begin with https:// and hold only a host and a path")
    return url_parts


def _read_static_key(document: Any, source: str) -> StaticKey | None:
    if document is None:
        return None
    if not isinstance(document, dict):
        _reject(source, "credentials must be a JSON object")
    for field in ("accessKeyId", "secretAccessKey"):
        if not isinstance(document.get(field), str) or not document[field]:
            _reject(source, f"credentials.{field} is missing")
    return StaticKey(document["accessKeyId"], document["secretAccessKey"])


def _local_address(document: Mapping[str, Any], field: str, source: str) -> str:
    """Return an endpoint of the local data centre; empty if the context names none.

    Raises:
        CommandFailed: the endpoint is not on this machine. Requests to it have the same signatures as requests to AWS.
    """
    url = str(document.get(field) or "").rstrip("/")
    if url and _parse_endpoint(url, source, field).hostname not in _LOOPBACK:
        _reject(source, f"{field} {url!r} must be on this machine: 127.0.0.1 or localhost")
    return url


def _reject(source: str, reason: str) -> NoReturn:
    raise CommandFailed(Exit.USAGE, f"The context from {source} cannot be used: {reason}.", code="BAD_CONTEXT")
