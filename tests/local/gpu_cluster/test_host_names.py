"""Every listener of the cluster accepts only loopback host names, and no request of a web page."""

import http.client
import ssl
from urllib.parse import urlsplit

import pytest

from evenkeel_local.gpu_cluster import ClusterHandle
from evenkeel_local.gpu_cluster.host_names import is_local

LISTENERS = {"sagemaker_url": "/clusters", "kubernetes_url": "/version", "control_url": "/control/health"}


OTHERS = (
    *("attacker.example", "attacker.example:80", "localhost.attacker.example", "10.0.0.1", "localhost.", "[::1]"),
    *("127.0.0.1/attacker.example", "127.0.0.1#x", "127.0.0.1?x", "local\thost", "127.0.0.1, x", "127.1", ""),
)


def status(cluster: ClusterHandle, listener: str, *, origin_of_target: str = "", **headers: str) -> int:
    """Return the status of a request with this Host and Origin, and optionally an absolute target."""
    url = urlsplit(getattr(cluster, listener))
    assert url.hostname
    assert url.port
    if url.scheme == "https":
        context = ssl.create_default_context(cadata=cluster.ca_pem)
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            url.hostname, url.port, timeout=10, context=context
        )
    else:
        connection = http.client.HTTPConnection(url.hostname, url.port, timeout=10)
    connection.putrequest("GET", origin_of_target + LISTENERS[listener], skip_host=True)
    for name, value in ({"Host": url.netloc} | headers).items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse().status
    connection.close()
    return answer


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("host", OTHERS)
def test_listener_refuses_another_host(cluster: ClusterHandle, listener: str, host: str) -> None:
    assert status(cluster, listener, Host=host) == 421


@pytest.mark.parametrize("listener", LISTENERS)
def test_listener_refuses_a_target_of_another_host(cluster: ClusterHandle, listener: str) -> None:
    assert status(cluster, listener, origin_of_target="http://attacker.example", Host="127.0.0.1") == 421
    assert status(cluster, listener, origin_of_target="http://localhost", Host="127.0.0.1") not in (403, 421)


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("origin", ["https://attacker.example", "http://127.0.0.1.attacker.example", "null"])
def test_listener_refuses_a_web_page(cluster: ClusterHandle, listener: str, origin: str) -> None:
    assert status(cluster, listener, Origin=origin) == 403


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "localhost:1234"])
def test_listener_accepts_loopback_host_names(cluster: ClusterHandle, listener: str, host: str) -> None:
    assert status(cluster, listener, Host=host) not in (403, 421)


@pytest.mark.parametrize("url", ["//", "//127.0.0.1@attacker.example", "//[::1", "//a@127.0.0.1", "//127.0.0.1:port"])
def test_malformed_host_header_is_not_local(url: str) -> None:
    assert not is_local(url)
