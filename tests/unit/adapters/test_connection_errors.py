"""Messages of failed connections are plain and show no objects of libraries."""

import socket
import ssl
from collections.abc import Iterator

import pytest
import trustme
import urllib3
from botocore.exceptions import EndpointConnectionError, HTTPClientError, ReadTimeoutError

from evenkeel.adapters.connection_errors import describe_connection_error
from evenkeel.adapters.kubernetes import KubernetesApi
from evenkeel.ports import Unreachable

CERTIFICATE = trustme.CA().cert_pem.bytes().decode()


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Return the port of a stopped server: the kernel accepts the connection, and no answer follows."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield int(listening.getsockname()[1])


def test_refused_connection_message_shows_no_python_objects(unused_port: int) -> None:
    api = KubernetesApi("research-eks", f"https://127.0.0.1:{unused_port}", CERTIFICATE, lambda _: "token")

    with pytest.raises(Unreachable) as error_info:
        api.get("/version")

    assert str(error_info.value) == "GET /version of research-eks: no answer: connection refused"


def test_stopped_server_is_reported_as_timeout(silent_port: int) -> None:
    pool = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(connect=0.1, read=0.1))

    with pytest.raises(urllib3.exceptions.HTTPError) as error_info:
        pool.request("GET", f"https://127.0.0.1:{silent_port}/version")

    assert describe_connection_error(error_info.value) == "timed out"


RAW = urllib3.exceptions.ReadTimeoutError(urllib3.HTTPSConnectionPool("h"), "/", "HTTPSConnectionPool(host='h'): Read")
UNTRUSTED = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] (_ssl.c:1006)")
UNTRUSTED.reason = "CERTIFICATE_VERIFY_FAILED"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RAW, "timed out"),
        (HTTPClientError(error=RAW), "timed out"),
        (urllib3.exceptions.SSLError(UNTRUSTED), "TLS failed (certificate verify failed)"),
        (urllib3.exceptions.ProtocolError("Connection aborted.", ConnectionResetError(104, "Connection reset by peer")),
         "connection reset by peer"),
        (urllib3.exceptions.ProtocolError("Response ended prematurely"), "the connection broke"),
        (urllib3.exceptions.NameResolutionError("h", urllib3.HTTPConnectionPool("h"), socket.gaierror(-2, "x")),  # type: ignore[arg-type]
         "host name not found"),
        (ReadTimeoutError(endpoint_url="https://x"), 'Read timeout on endpoint URL: "https://x"'),
        (EndpointConnectionError(endpoint_url="https://x"), 'Could not connect to the endpoint URL: "https://x"'),
        (OSError("odd"), "OSError"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_each_connection_failure_has_a_plain_message(error: Exception, expected: str) -> None:
    assert describe_connection_error(error) == expected
