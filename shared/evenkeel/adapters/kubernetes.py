"""A small Kubernetes client on urllib3, with the calls that the adapter `cluster` needs.

A library with typed models needs 50 to 95 MiB of memory and a second of each cold start, which delays the cordon.
Only a read whose connection broke is retried. For any other call, the caller decides whether to repeat it.
"""

import contextlib
import functools
import json
import ssl
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar
from urllib.parse import urlencode

import urllib3
from pydantic_core import from_json

from evenkeel.adapters.connection_errors import describe_connection_error
from evenkeel.adapters.node_images import NODES_PATH, remove_images
from evenkeel.ports import (
    Conflict,
    EvenkeelError,
    NotAllowed,
    NotFound,
    Refused,
    Throttled,
    TransientError,
    Unreachable,
)

Json: TypeAlias = dict[str, Any]

MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
_TIMEOUT = urllib3.Timeout(connect=3, read=15)
_PAGE_SIZE = 500
_MAX_BUFFER = 64_000_000
"""Maximum bytes that are reserved for a page before it is decompressed. A page of 500 nodes has 9 MB."""
_METADATA_BYTES = 8192
"""Bytes of a list that surely contain its metadata: a token has a few hundred."""
_TRIES = 5
_ADDRESS_SECONDS = 60
"""Minimum time between two reads of a cluster's address. EKS limits the rate of these reads."""

T = TypeVar("T")


class AlreadyExists(Conflict):
    """An object of this name already exists."""


class Expired(TransientError):
    """410: the resourceVersion or the continuation of the list is too old. List the objects again."""


class ServerFailed(Unreachable):
    """500: the server answered, but failed. Whether the call took effect is unknown."""


class NamespaceTerminating(NotAllowed):
    """403: the namespace is being deleted and accepts no new objects."""


class InvalidObject(Refused):
    """422: the object is not valid, or a `test` of a JSON patch failed."""


_ERRORS_BY_REASON: Mapping[str, type[EvenkeelError]] = {
    "AlreadyExists": AlreadyExists,
    "Conflict": Conflict,
    "Expired": Expired,
    "Gone": Expired,
    "Invalid": InvalidObject,
}
_ERRORS_BY_STATUS: Mapping[int, type[EvenkeelError]] = {
    401: NotAllowed,
    403: NotAllowed,
    404: NotFound,
    408: Unreachable,
    409: Conflict,
    410: Expired,
    422: InvalidObject,
    429: Throttled,
    500: ServerFailed,
}


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """A line of a watch."""

    kind: str
    """ADDED, MODIFIED, DELETED or BOOKMARK."""
    item: Json


class ApiAddress(NamedTuple):
    """Where an API server is."""

    endpoint: str
    """URL of the API server."""
    ca_pem: str
    """The certificate authority of the API server."""


class _Call(NamedTuple):
    """A call of the API, without the address and the token."""

    method: str
    target: str
    """Path and query."""
    body: bytes | None
    headers: Mapping[str, str]
    timeout: urllib3.Timeout


class _Server:
    """The connections to one address."""

    def __init__(self, address: ApiAddress) -> None:
        self.address = address
        context = ssl.create_default_context(cadata=address.ca_pem)
        # From Python 3.13 on, this flag requires key identifiers, which certificates of EKS may lack. Chain, name and
        # time are checked without it.
        # https://github.com/kubernetes-client/python/issues/2394
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        self.pool = urllib3.PoolManager(maxsize=16, block=False, ssl_context=context, retries=False, timeout=_TIMEOUT)

    def url_of(self, path: str) -> str:
        return self.address.endpoint.rstrip("/") + path


class KubernetesApi:
    """An API server. Safe to share between threads."""

    def __init__(
        self,
        name: str,
        endpoint: str,
        ca_pem: str,
        token: Callable[[bool], str],
        read_address: Callable[[], ApiAddress] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a client. It sends nothing yet.

        Args:
            name: Name of the cluster, for messages.
            endpoint: URL of the API server.
            ca_pem: The certificate authority of the API server.
            token: Returns a bearer token. If its argument is true, the token must be new.
            read_address: Reads the present address. A cluster that is created again under its name has another one.
            clock: Returns seconds.
        """
        self.name = name
        self._token = token
        self._server = _Server(ApiAddress(endpoint, ca_pem))
        self._read_address, self._clock = read_address, clock
        self._address_read_at = clock()
        self._address_lock = threading.Lock()

    @property
    def address(self) -> ApiAddress:
        """The address that the next call uses. With another one, versions of objects that were read before are void."""
        return self._server.address

    def get(self, path: str) -> Json | None:
        """Return one object; None if it does not exist."""
        try:
            return self._json("GET", path)
        except NotFound:
            return None

    def items(self, path: str, **query: str) -> Iterator[Json]:
        """Yield the objects of a list, page by page. The next page is received while this page is parsed and used.

        Nodes have no images (`remove_images`).

        Raises:
            Expired: The list changed too much during a slow read. List the objects again.
        """

        def receive(token: str) -> bytes:
            return self._request(
                "GET", path, {**query, "limit": str(_PAGE_SIZE), **({"continue": token} if token else {})}
            )

        content = receive("")
        with contextlib.ExitStack() as threads:
            reader: ThreadPoolExecutor | None = None
            while True:
                token = _page_token(content)
                if token and reader is None:  # most lists have one page and need no thread
                    reader = threads.enter_context(ThreadPoolExecutor(max_workers=1))
                next_page = reader.submit(receive, token) if token and reader else None
                page = self._parse_page(content, path)
                yield from page.pop("items", None) or ()
                token = page.get("metadata", {}).get("continue", "")
                if not token:
                    return
                content = next_page.result() if next_page else receive(token)

    def version(self, path: str, **query: str) -> str:
        """Return the current resourceVersion of a list, from which a watch can start."""
        return str(self._json("GET", path, {**query, "limit": "1"}).get("metadata", {}).get("resourceVersion", ""))

    def create(self, path: str, item: Json) -> Json:
        return self._json("POST", path, body=item)

    def patch(self, path: str, patch: Json | list[Json], kind: str = MERGE_PATCH) -> Json:
        return self._json("PATCH", path, body=patch, content_type=kind)

    def delete(self, path: str, **options: Any) -> bool:
        """Delete one object. Return False if it does not exist. `options` are DeleteOptions."""
        body = {"kind": "DeleteOptions", "apiVersion": "v1", **options}
        try:
            self._json("DELETE", path, body=body)
        except NotFound:
            return False
        return True

    def text(self, path: str, **query: str) -> str:
        """Return a plain-text resource, such as a pod's log."""
        return self._request("GET", path, query, accept="*/*").decode("utf-8", "replace")

    @contextmanager
    def watch(self, path: str, version: str, seconds: int, **query: str) -> Iterator["Watch"]:
        """Open a watch from a resourceVersion. The server ends it after `seconds`.

        Raises:
            Expired: The version is too old.
        """
        parameters = {**query, "watch": "1", "allowWatchBookmarks": "true", "resourceVersion": version}
        response = self._open("GET", path, {**parameters, "timeoutSeconds": str(seconds)}, read_seconds=seconds + 5)
        try:
            self._raise_for_status("GET", path, response)
            yield Watch(response, f"watch {path} of {self.name}")
        finally:
            response.close()

    def _json(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> Json:
        return self._parse(self._request(method, path, query, body, content_type) or b"{}", f"{method} {path}")

    def _parse_page(self, content: bytes, path: str) -> Json:
        """Return a page of a list."""
        if path == NODES_PATH:
            with contextlib.suppress(Unreachable):  # without the images it may be no JSON
                return self._parse(remove_images(content), f"GET {path}")
        return self._parse(content, f"GET {path}")

    def _parse(self, content: bytes, call: str) -> Json:
        """Return the JSON object of an answer."""
        try:
            answer = from_json(content)  # faster than `json`, and pages of nodes have 9 MB
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise Unreachable(f"{call} of {self.name}: the answer is not a JSON object: {content[:100]!r}")
        return answer

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> bytes:
        with _translate_network_errors(f"{method} {path} of {self.name}"):
            response = self._open(method, path, query, body, content_type, accept)
            try:
                self._raise_for_status(method, path, response)
                content = response.read(decode_content=False)
            finally:
                response.release_conn()
            return _decompress(content) if response.headers.get("Content-Encoding") == "gzip" else content

    def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        read_seconds: float | None = None,
    ) -> urllib3.BaseHTTPResponse:
        target = f"{path}{'?' + urlencode(query) if query else ''}"
        payload = None if body is None else json.dumps(body).encode()
        headers = {"Accept": accept, **({"Content-Type": content_type} if body is not None else {})}
        if query and "limit" in query:
            # The server compresses lists above 128 KiB: https://www.kubernetes.dev/resources/keps/2338/
            headers["Accept-Encoding"] = "gzip"
        timeout = _TIMEOUT if read_seconds is None else urllib3.Timeout(connect=3, read=read_seconds)
        call = _Call(method, target, payload, headers, timeout)
        with _translate_network_errors(f"{method} {path} of {self.name}"):
            server = self._server
            try:
                response = self._send_signed(server, call)
            except urllib3.exceptions.HTTPError as error:
                if not _was_not_sent(error) or not self._has_moved(server):
                    raise
            else:
                if response.status != 401 or not self._has_moved(server):
                    return response
                response.drain_conn()
                response.release_conn()
            if query and not query.keys().isdisjoint({"watch", "continue"}):
                raise Expired(f"{method} {path} of {self.name} continues a list of a cluster that was created again")
            return self._send_signed(self._server, call)

    def _has_moved(self, server: _Server) -> bool:
        """Return whether the API server has another address than this one. Read it again if it was not read lately."""
        with self._address_lock:
            is_due = self._clock() - self._address_read_at >= _ADDRESS_SECONDS
            if self._server is server and self._read_address is not None and is_due:
                self._address_read_at = self._clock()
                with contextlib.suppress(EvenkeelError, ssl.SSLError):  # the error of the call says more
                    address = self._read_address()
                    if address != server.address:
                        self._server = _Server(address)
            return self._server is not server

    def _send_signed(self, server: _Server, call: _Call) -> urllib3.BaseHTTPResponse:
        """Send one call with a token. If the token was refused, as an expired one is, try once more with a new one."""
        for is_second_try in (False, True):
            signed_headers = {**call.headers, "Authorization": f"Bearer {self._token(is_second_try)}"}
            response = self._send(server, call._replace(headers=signed_headers))
            if response.status != 401 or is_second_try:
                return response
            response.drain_conn()
            response.release_conn()
        raise AssertionError("unreachable")

    def _send(self, server: _Server, call: _Call) -> urllib3.BaseHTTPResponse:
        """Send one call. Repeat a read once if its connection broke, as after a freeze of the Lambda container."""
        request = functools.partial(
            server.pool.request,
            call.method,
            server.url_of(call.target),
            body=call.body,
            headers=call.headers,
            timeout=call.timeout,
            preload_content=False,
            redirect=False,
        )
        try:
            return request()
        except urllib3.exceptions.ProtocolError:
            if call.method != "GET":
                raise
            return request()

    def _raise_for_status(self, method: str, path: str, response: urllib3.BaseHTTPResponse) -> None:
        """Raise the error of a Status object, by its reason and code, never by its message."""
        if response.status < 300:
            return
        try:
            status = json.loads(response.read())
        except ValueError:
            status = {}
        if not isinstance(status, dict):
            status = {}
        raise _error_of_status(f"{method} {path} of {self.name}", response.status, status)


class Watch:
    """An open watch. Another thread may call `shut` to end the reader."""

    def __init__(self, response: urllib3.BaseHTTPResponse, name: str) -> None:
        self._response = response
        self._name = name

    def events(self) -> Iterator[WatchEvent]:
        """Yield events until the server, the network or `shut` ends the stream.

        Raises:
            Expired: The version has become too old.
        """
        fragment = b""
        with _translate_network_errors(self._name):
            # `read1` returns the data that has arrived; `stream` would wait for a whole block.
            while chunk := self._response.read1():
                *lines, fragment = (fragment + chunk).split(b"\n")
                for line in filter(None, lines):
                    yield self._read_event(line)

    def _read_event(self, line: bytes) -> WatchEvent:
        try:
            event = json.loads(line)
            kind, item = event["type"], event.get("object") or {}
        except (ValueError, TypeError, KeyError) as error:
            raise Unreachable(f"{self._name}: the line is not an event: {line[:100]!r}") from error
        if kind == "ERROR":
            raise _error_of_status(self._name, int(item.get("code") or 500), item)
        return WatchEvent(kind, item)

    def shut(self) -> None:
        """End the stream. This has no effect if the stream has already ended."""
        with contextlib.suppress(RuntimeError, ValueError, OSError):
            self._response.shutdown()


def _was_not_sent(error: urllib3.exceptions.HTTPError) -> bool:
    """Return whether a call failed before any server received it: without a connection, or without a trusted one."""
    if isinstance(error, urllib3.exceptions.SSLError):
        return any(isinstance(argument, ssl.SSLCertVerificationError) for argument in error.args)
    return isinstance(error, urllib3.exceptions.NewConnectionError | urllib3.exceptions.ConnectTimeoutError)


def _decompress(content: bytes) -> bytes:
    """Return the content of a gzip body. With its size, this takes half of the processor time of urllib3's decoder.

    The last four bytes are the size: https://www.rfc-editor.org/rfc/rfc1952#section-2.3.1

    Raises:
        DecodeError: It is no complete gzip body.
    """
    size = int.from_bytes(content[-4:], "little")
    try:
        return zlib.decompress(content, wbits=zlib.MAX_WBITS | 16, bufsize=max(1, min(size, _MAX_BUFFER)))
    except zlib.error as error:
        raise urllib3.exceptions.DecodeError(f"the gzip body cannot be read: {error}") from error


def _page_token(content: bytes) -> str:
    """Return the token of the next page without parsing the page; empty if it does not begin with its metadata.

    The API server writes the metadata of a list before its items.
    """
    start, separator, _ = content[:_METADATA_BYTES].partition(b'"items":[')
    if not separator:
        return ""
    try:
        token = from_json(start + b'"items":[]}').get("metadata", {}).get("continue", "")
    except ValueError:
        return ""
    return token if isinstance(token, str) else ""


def _error_of_status(call: str, code: int, status: Mapping[str, Any]) -> EvenkeelError:
    reason = str(status.get("reason") or "")
    causes = (status.get("details") or {}).get("causes") or ()
    if any(cause.get("reason") == "NamespaceTerminating" for cause in causes):
        return NamespaceTerminating(f"{call}: {code} {reason}: {status.get('message', '')}")
    kind = _ERRORS_BY_REASON.get(reason) or _ERRORS_BY_STATUS.get(code) or (Unreachable if code >= 500 else Refused)
    return kind(f"{call}: {code} {reason}: {status.get('message', '')}")


@contextmanager
def _translate_network_errors(call: str) -> Iterator[None]:
    try:
        yield
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise Unreachable(f"{call}: no answer: {describe_connection_error(error)}") from error


def retry_on_conflict(once: Callable[[], T]) -> T:
    """Read and write again after a conflict: other controllers patch the same objects."""
    for _ in range(_TRIES - 1):
        with contextlib.suppress(Conflict, InvalidObject):
            return once()
    return once()
