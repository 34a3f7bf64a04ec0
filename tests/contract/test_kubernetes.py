"""The Kubernetes client against a server with scripted answers, over real TLS."""

import contextlib
import gzip
import json
import queue
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from evenkeel.adapters import manifests
from evenkeel.adapters.cluster import KubernetesCluster
from evenkeel.adapters.kubernetes import (
    AlreadyExists,
    ApiAddress,
    Expired,
    InvalidObject,
    KubernetesApi,
    NamespaceTerminating,
    ServerFailed,
)
from evenkeel.adapters.unmanaged_pods import resources_requested
from evenkeel.domain.recovery.validation import CheckResult
from evenkeel.domain.resources import Resources
from evenkeel.ports import (
    CapacitySpec,
    ClusterCordonResult,
    Conflict,
    EvenkeelError,
    EvictionStatus,
    NotAllowed,
    NotFound,
    PodGroup,
    Refused,
    Throttled,
    UncordonResult,
    Unreachable,
)
from tests.contract.test_manifests import a_spec
from tests.waiting import until

Answer = tuple[int, Any]
NODES = "/api/v1/nodes"
COMPRESSED_FROM = 128 * 1024
"""Bytes from which an API server compresses an answer, if the client allows it."""
TERMINATING = {"causes": [{"reason": "NamespaceTerminating", "message": "namespace a is being terminated"}]}


class ScriptedServer:
    """Answers in the given order, per method and path; repeats the last answer. Records the requests."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], list[Answer]] = {}
        self.asked: list[tuple[str, str, Any, str]] = []
        """Method, path with query, body, authorization."""
        self.compressed = 0
        """Number of compressed answers."""
        self.damages_answers = False
        self.lock = threading.Lock()

    def on(self, method: str, path: str, *answers: Answer) -> None:
        self.answers[method, path] = list(answers)

    def next(self, method: str, path: str) -> Answer:
        with self.lock:
            left = self.answers.get((method, path.partition("?")[0])) or [(404, status(404, "NotFound"))]
            return left.pop(0) if len(left) > 1 else left[0]


class QuietServer(ThreadingHTTPServer):
    """A server without a log, because connections break on purpose."""

    def handle_error(self, *_: Any) -> None:
        pass


def status(code: int, reason: str, **more: Any) -> dict[str, Any]:
    return {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": "m", **more}


def lines(*events: Any) -> bytes:
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


@pytest.fixture
def script() -> ScriptedServer:
    return ScriptedServer()


@contextlib.contextmanager
def serving(script: ScriptedServer, context: ssl.SSLContext, authority: str) -> Iterator[KubernetesApi]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            script.asked.append((self.command, self.path, body, self.headers["Authorization"]))
            code, content = script.next(self.command, self.path)
            if code == 0:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            if isinstance(content, queue.Queue):
                self.stream(content)
                return
            payload = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(code)
            if len(payload) > COMPRESSED_FROM and self.headers["Accept-Encoding"] == "gzip":
                payload = b"no gzip" if script.damages_answers else gzip.compress(payload, compresslevel=1)
                self.send_header("Content-Encoding", "gzip")
                script.compressed += 1
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def stream(self, chunks: "queue.Queue[bytes]") -> None:
            """Send one chunk at a time. An empty chunk ends the stream, as an API server does after its timeout."""
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while True:
                chunk = chunks.get(timeout=20)
                with contextlib.suppress(OSError):
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                    self.wfile.flush()
                if not chunk:
                    return

        do_GET = do_POST = do_PATCH = do_DELETE = answer  # noqa: N815 - the standard library's names

        def log_message(self, *_: Any) -> None:
            pass

    server = QuietServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    tokens = iter(f"token-{number}" for number in range(1, 100))
    current = [next(tokens)]

    def token(is_fresh_needed: bool) -> str:
        if is_fresh_needed:
            current[0] = next(tokens)
        return current[0]

    try:
        yield KubernetesApi("research-eks", f"https://127.0.0.1:{server.server_port}", authority, token)
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


@pytest.fixture
def api(script: ScriptedServer) -> Iterator[KubernetesApi]:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with serving(script, context, authority.cert_pem.bytes().decode()) as kubernetes_api:
        yield kubernetes_api


class SameApiForEveryCluster:
    """Gives every cluster the same Kubernetes API."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api

    def api(self, cluster: str) -> KubernetesApi:
        return self._api


@pytest.mark.parametrize(
    ("answer", "meaning"),
    [
        ((401, status(401, "Unauthorized")), NotAllowed),
        ((403, status(403, "Forbidden")), NotAllowed),
        ((409, status(409, "AlreadyExists")), AlreadyExists),
        ((409, status(409, "Conflict")), Conflict),
        ((400, status(400, "BadRequest")), Refused),
        ((405, status(405, "MethodNotAllowed")), Refused),
        ((406, status(406, "NotAcceptable")), Refused),
        ((408, b"<html>a proxy</html>"), Unreachable),
        ((413, status(413, "RequestEntityTooLarge")), Refused),
        ((410, status(410, "Expired")), Expired),
        ((410, status(410, "Gone")), Expired),
        ((415, status(415, "UnsupportedMediaType")), Refused),
        ((422, status(422, "InvalidObject")), InvalidObject),
        ((429, status(429, "TooManyRequests")), Throttled),
        ((500, status(500, "InternalError")), ServerFailed),
        ((403, status(403, "Forbidden", details=TERMINATING)), NamespaceTerminating),
        ((504, status(504, "Timeout")), Unreachable),
        ((502, b"<html>a proxy</html>"), Unreachable),
        ((400, b"[]"), Refused),
        ((301, b""), Refused),
        ((0, b""), Unreachable),
    ],
)
def test_each_http_status_has_its_own_error(
    script: ScriptedServer, api: KubernetesApi, answer: Answer, meaning: type[EvenkeelError]
) -> None:
    script.on("POST", NODES, answer)

    with pytest.raises(meaning) as caught:
        api.create(NODES, {"kind": "Node"})

    assert type(caught.value) is meaning


def test_missing_object_reads_as_none_and_deletes_as_false(script: ScriptedServer, api: KubernetesApi) -> None:
    assert api.get(f"{NODES}/gone") is None
    assert api.delete(f"{NODES}/gone") is False
    with pytest.raises(NotFound):
        api.patch(f"{NODES}/gone", {})


def test_write_is_sent_once_after_any_failure(script: ScriptedServer, api: KubernetesApi) -> None:
    script.on("POST", NODES, (503, status(503, "ServiceUnavailable")))

    with pytest.raises(Unreachable):
        api.create(NODES, {})

    assert len(script.asked) == 1


def test_only_reads_are_retried_after_a_broken_connection(script: ScriptedServer, api: KubernetesApi) -> None:
    broken = (0, b"")
    script.on("GET", f"{NODES}/a", broken, (200, {"kind": "Node"}))
    script.on("PATCH", f"{NODES}/a", broken, (200, {}))

    assert api.get(f"{NODES}/a") == {"kind": "Node"}
    with pytest.raises(Unreachable):
        api.patch(f"{NODES}/a", {})

    assert [method for method, *_ in script.asked] == ["GET", "GET", "PATCH"]


def without_key_identifiers(folder: Path) -> tuple[ssl.SSLContext, str]:
    """Return TLS context and authority of an old EKS cluster: certificates without key identifiers."""
    names = [x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]) for name in ("kubernetes", "server")]
    now, keys = datetime.now(UTC), [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]

    def signed(index: int, *extensions: tuple[x509.ExtensionType, bool]) -> bytes:
        builder = (
            x509.CertificateBuilder()
            .subject_name(names[index])
            .issuer_name(names[0])
            .public_key(keys[index].public_key())
        )
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(hours=1))
        for extension, is_critical in extensions:
            builder = builder.add_extension(extension, critical=is_critical)
        return builder.sign(keys[0], hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    authority = signed(0, (x509.BasicConstraints(ca=True, path_length=None), True))
    alternative_name = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    secret = keys[1].private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "server.pem").write_bytes(signed(1, (alternative_name, False)) + secret)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    return context, authority.decode()


def test_certificate_authority_without_key_id_is_trusted_by_every_python(
    script: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def strict_ssl_context(**given: Any) -> ssl.SSLContext:
        context = default_context(**given)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    default_context = ssl.create_default_context
    monkeypatch.setattr(ssl, "create_default_context", strict_ssl_context)
    script.on("GET", f"{NODES}/a", (200, {"kind": "Node"}))

    with serving(script, *without_key_identifiers(tmp_path)) as api:
        assert api.get(f"{NODES}/a") == {"kind": "Node"}


def test_expired_token_is_renewed_once(script: ScriptedServer, api: KubernetesApi) -> None:
    script.on("GET", f"{NODES}/a", (401, status(401, "Unauthorized")), (200, {"kind": "Node"}))

    assert api.get(f"{NODES}/a") == {"kind": "Node"}

    assert [authorization for *_, authorization in script.asked] == ["Bearer token-1", "Bearer token-2"]


class MovableApi:
    """A client whose cluster was created again: the address that it knows is wrong, and `present` is right."""

    def __init__(self, known: ApiAddress, present: ApiAddress) -> None:
        self.seconds, self.reads, self.present = 0.0, 0, present
        self.api = KubernetesApi("research-eks", *known, lambda _: "token", self._read_address, lambda: self.seconds)

    def _read_address(self) -> ApiAddress:
        self.reads += 1
        return self.present


@pytest.mark.parametrize("fault", ["no server", "other certificate", "token refused"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_cluster_created_again_is_found_at_its_new_address(
    script: ScriptedServer, api: KubernetesApi, fault: str, method: str
) -> None:
    authority, old_script = trustme.CA(), ScriptedServer()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    old_script.on(method, NODES, (401, status(401, "Unauthorized")))
    script.on(method, NODES, (200, {"kind": "Node"}))
    with serving(old_script, context, authority.cert_pem.bytes().decode()) as old_api:
        old = old_api.address
        known = {
            "no server": old._replace(endpoint="https://127.0.0.1:1"),
            "other certificate": old._replace(endpoint=api.address.endpoint),
            "token refused": old,
        }
        movable = MovableApi(known[fault], api.address)
        movable.seconds += 60

        for _ in range(2):
            assert (movable.api.get(NODES) if method == "GET" else movable.api.create(NODES, {})) == {"kind": "Node"}

    assert movable.reads == 1
    assert [request[0] for request in script.asked] == [method, method]


def test_watch_of_old_cluster_ends_when_cluster_moved(script: ScriptedServer, api: KubernetesApi) -> None:
    movable = MovableApi(api.address._replace(endpoint="https://127.0.0.1:1"), api.address)
    movable.seconds = 60

    with pytest.raises(Expired, match="created again"), movable.api.watch(NODES, "7", 1):
        pass

    assert script.asked == []
    assert movable.api.address == api.address


def test_address_that_stays_is_read_once_a_minute(script: ScriptedServer, api: KubernetesApi) -> None:
    nowhere = api.address._replace(endpoint="https://127.0.0.1:1")
    movable, reads = MovableApi(nowhere, nowhere), []

    for seconds in (59, 60, 119, 120):
        movable.seconds = seconds
        with pytest.raises(Unreachable, match="connection refused"):
            movable.api.get(NODES)
        reads.append(movable.reads)

    assert reads == [0, 1, 1, 2]


def test_call_that_a_server_received_is_not_repeated_elsewhere(script: ScriptedServer, api: KubernetesApi) -> None:
    script.on("POST", NODES, (0, b""))
    movable = MovableApi(api.address, ApiAddress("https://127.0.0.1:1", api.address.ca_pem))
    movable.seconds = 60

    with pytest.raises(Unreachable):
        movable.api.create(NODES, {})

    assert (movable.reads, len(script.asked)) == (0, 1)


def test_lists_are_read_page_by_page(script: ScriptedServer, api: KubernetesApi) -> None:
    first = {"metadata": {"continue": "next"}, "items": [{"n": 1}, {"n": 2}]}
    script.on("GET", NODES, (200, first), (200, {"metadata": {}, "items": [{"n": 3}]}))

    assert [item["n"] for item in api.items(NODES, labelSelector="a=b")] == [1, 2, 3]

    assert [path for _, path, *_ in script.asked] == [
        f"{NODES}?labelSelector=a%3Db&limit=500",
        f"{NODES}?labelSelector=a%3Db&limit=500&continue=next",
    ]


def test_long_pages_of_a_list_are_received_compressed(script: ScriptedServer, api: KubernetesApi) -> None:
    long = {"metadata": {"continue": "next"}, "items": [{"n": 1, "note": "x" * COMPRESSED_FROM}]}
    script.on("GET", NODES, (200, long), (200, {"metadata": {}, "items": [{"n": 2}]}))

    assert [item["n"] for item in api.items(NODES)] == [1, 2]

    assert script.compressed == 1


def test_damaged_compressed_page_is_unreachable(script: ScriptedServer, api: KubernetesApi) -> None:
    script.damages_answers = True
    script.on("GET", NODES, (200, {"items": [{"note": "x" * COMPRESSED_FROM}]}))

    with pytest.raises(Unreachable, match=f"GET {NODES} of research-eks"):
        list(api.items(NODES))


def test_list_with_an_expired_continuation_restarts(script: ScriptedServer, api: KubernetesApi) -> None:
    page = {"metadata": {"continue": "next"}, "items": [a_node_object("1")]}
    script.on("GET", NODES, (200, page), (410, status(410, "Expired")), (200, {"items": [a_node_object("2")]}))

    assert [
        node.resource_version
        for node in KubernetesCluster(SameApiForEveryCluster(api), fleet="f").nodes("research-eks")
    ] == ["2"]


def test_watch_yields_each_event_at_once(script: ScriptedServer, api: KubernetesApi) -> None:
    chunks: queue.Queue[bytes] = queue.Queue()
    script.on("GET", NODES, (200, chunks))
    text = lines({"type": "ADDED", "object": {"n": 1}}, {"type": "MODIFIED", "object": {"n": 2}})
    chunks.put(text[:10])

    with api.watch(NODES, "5", 30) as watch:
        events = watch.events()
        chunks.put(text[10:])
        assert [next(events).kind for _ in range(2)] == ["ADDED", "MODIFIED"]
        chunks.put(b"")
        assert list(events) == []

    assert "resourceVersion=5" in script.asked[0][1]


@pytest.mark.parametrize("line", [b"<html>a proxy</html>\n", b"[]\n", b"null\n", b"{}\n"])
def test_malformed_event_of_watch_is_unreachable(script: ScriptedServer, api: KubernetesApi, line: bytes) -> None:
    script.on("GET", NODES, (200, line))

    with pytest.raises(Unreachable, match="the line is not an event"), api.watch(NODES, "5", 30) as watch:
        list(watch.events())


def test_watch_from_old_version_expires_by_status_or_event(script: ScriptedServer, api: KubernetesApi) -> None:
    error = lines({"type": "ERROR", "object": status(410, "Expired")})
    script.on("GET", NODES, (410, status(410, "Gone")), (200, error))

    for _ in range(2):
        with pytest.raises(Expired), api.watch(NODES, "5", 30) as watch:
            list(watch.events())


def test_watch_can_be_closed_from_another_thread(script: ScriptedServer, api: KubernetesApi) -> None:
    chunks: queue.Queue[bytes] = queue.Queue()
    script.on("GET", NODES, (200, chunks))
    began = time.monotonic()

    with api.watch(NODES, "5", 60) as watch:
        timer = threading.Timer(0.1, watch.shut)
        timer.start()
        with contextlib.suppress(Unreachable):
            list(watch.events())

    timer.join()
    chunks.put(b"")
    assert time.monotonic() - began < 30


def test_closed_watch_can_be_closed_again(script: ScriptedServer, api: KubernetesApi) -> None:
    chunks: queue.Queue[bytes] = queue.Queue()
    chunks.put(b"")
    script.on("GET", NODES, (200, chunks))

    with api.watch(NODES, "5", 30) as watch:
        assert list(watch.events()) == []
        watch.shut()


# ---------------------------------------------------------------- the port's loops


def a_node_object(version: str, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "n1", "resourceVersion": version, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": spec,
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }


def a_pod_object(name: str, gpus: str, node_name: str = "", kind: str = "ReplicaSet") -> dict[str, Any]:
    owner = {"kind": kind, "name": "owner", "controller": True}
    return {
        "metadata": {"namespace": "a", "name": name, "uid": name, "ownerReferences": [owner], "managedFields": ["…"]},
        "spec": {"nodeName": node_name, "containers": [{"resources": {"limits": {"nvidia.com/gpu": gpus}}}]},
    }


def test_pods_of_daemonsets_are_selected_by_their_label(script: ScriptedServer, api: KubernetesApi) -> None:
    script.on("GET", "/api/v1/pods", (200, {"metadata": {}, "items": [a_pod_object("one", "8", "n1")]}))
    cluster = KubernetesCluster(SameApiForEveryCluster(api), fleet="f")

    for group in PodGroup:
        cluster.resources_in_use("c", group)

    queries = [parse_qs(urlsplit(path).query) for _, path, *_ in script.asked]
    assert [query.get("labelSelector") for query in queries] == [
        None,
        ["pod-template-generation"],
        ["!pod-template-generation"],
    ]


def test_concurrent_lists_of_live_pods_do_not_overlap(script: ScriptedServer, api: KubernetesApi) -> None:
    script.on("GET", "/api/v1/pods", (200, {"metadata": {}, "items": []}))
    script.on("GET", "/apis", (200, {"groups": []}))
    cluster = KubernetesCluster(SameApiForEveryCluster(api), fleet="f")

    cluster.pods_in_use("c")
    cluster.live_pods("c")

    listed = [urlsplit(path) for _, path, *_ in script.asked if "/pods" in path]
    live = ["status.phase!=Succeeded,status.phase!=Failed"]
    assert [parse_qs(parts_of_url.query)["fieldSelector"] for parts_of_url in listed] == [live, live, live]
    assert [parse_qs(parts_of_url.query).get("labelSelector") for parts_of_url in listed] == [
        ["!pod-template-generation,evenkeel.io/fleet=f"],
        ["!pod-template-generation,evenkeel.io/fleet!=f"],
        None,
    ]


def test_gpu_quantities_are_read_in_every_kubernetes_form(script: ScriptedServer, api: KubernetesApi) -> None:
    pods = [a_pod_object("typo", "1k"), a_pod_object("one", "8", "n1"), a_pod_object("odd", "many", "n1")]
    script.on(
        "GET", "/api/v1/pods", (200, {"metadata": {}, "items": [*pods, a_pod_object("d", "1", "n1", "DaemonSet")]})
    )
    script.on("GET", f"{NODES}/n1", (200, a_node_object("1") | {"status": {"allocatable": {"nvidia.com/gpu": "1k"}}}))
    cluster = KubernetesCluster(SameApiForEveryCluster(api), fleet="f")

    assert cluster.resources_in_use("c") == {"n1": Resources(accelerators=9)}
    assert {pod.name: pod.accelerators for pod in cluster.pods("c")} == {"typo": 1000, "one": 8, "odd": 0}
    node = cluster.node("c", "n1")
    assert node is not None
    assert node.accelerators == 1000


BUDGET = {"causes": [{"reason": "DisruptionBudget", "message": "needs 2 healthy pods and has 2 currently"}]}
EVICTIONS: list[tuple[Answer, EvictionStatus]] = [
    ((201, {"kind": "Status", "status": "Success", "code": 201}), EvictionStatus.EVICTED),
    ((200, b""), EvictionStatus.EVICTED),
    ((201, status(500, "")), EvictionStatus.NOT_NOW),
    ((500, status(500, "")), EvictionStatus.NOT_NOW),
    ((500, status(500, "InternalError")), EvictionStatus.NOT_NOW),
    ((429, status(429, "TooManyRequests", details=BUDGET)), EvictionStatus.NOT_NOW),
    ((429, status(429, "TooManyRequests", details={"retryAfterSeconds": 10})), EvictionStatus.NOT_NOW),
    ((429, b"slow down"), EvictionStatus.NOT_NOW),
    ((403, status(403, "Forbidden", details=TERMINATING)), EvictionStatus.NOT_NOW),
    ((403, status(403, "Forbidden")), EvictionStatus.REFUSED),
    ((401, status(401, "Unauthorized")), EvictionStatus.REFUSED),
    ((400, status(400, "BadRequest")), EvictionStatus.REFUSED),
    ((422, status(422, "InvalidObject")), EvictionStatus.REFUSED),
    ((405, status(405, "MethodNotAllowed")), EvictionStatus.REFUSED),
    ((404, status(404, "NotFound")), EvictionStatus.GONE),
    ((409, status(409, "Conflict")), EvictionStatus.GONE),
    ((410, status(410, "Gone")), EvictionStatus.NO_ANSWER),
    ((503, status(503, "ServiceUnavailable")), EvictionStatus.NO_ANSWER),
    ((504, status(504, "Timeout")), EvictionStatus.NO_ANSWER),
    ((502, b"<html>bad gateway</html>"), EvictionStatus.NO_ANSWER),
    ((200, b"<html>welcome</html>"), EvictionStatus.NO_ANSWER),
    ((0, None), EvictionStatus.NO_ANSWER),
]


@pytest.mark.parametrize(("answer", "result"), EVICTIONS)
def test_every_eviction_response_maps_to_a_result(
    script: ScriptedServer, api: KubernetesApi, answer: Answer, result: EvictionStatus
) -> None:
    script.on("POST", "/api/v1/namespaces/a/pods/p/eviction", answer)
    script.on("GET", "/api/v1/pods", (200, {"metadata": {}, "items": [a_pod_object("p", "8", "n1")]}))
    cluster = KubernetesCluster(SameApiForEveryCluster(api), fleet="f")
    (pod,) = cluster.pods("c")

    eviction = cluster.evict("c", pod)

    assert eviction.result is result
    assert bool(eviction.why) is (result not in (EvictionStatus.EVICTED, EvictionStatus.GONE))


def test_validation_job_on_a_dead_node_fails(script: ScriptedServer, api: KubernetesApi) -> None:
    job = {"status": {"conditions": [{"type": "FailureTarget", "status": "True"}]}}
    script.on("GET", "/apis/batch/v1/namespaces/a/jobs/check", (200, job))

    assert (
        KubernetesCluster(SameApiForEveryCluster(api), fleet="f").check_result("c", "a", "check") is CheckResult.FAILED
    )


def test_capacity_pods_tolerate_only_the_taints_of_their_pool(script: ScriptedServer, api: KubernetesApi) -> None:
    taints = [{"key": "team", "value": "red", "effect": "NoSchedule"}, {"key": "nvidia.com/gpu", "effect": "NoExecute"}]
    late = [{"key": "evenkeel.io/awaiting-validation", "value": "true", "effect": "NoSchedule"}]
    nodes = {"template": {"spec": {"taints": taints, "startupTaints": late}}}
    script.on("GET", "/apis/karpenter.sh/v1/nodepools/burst", (200, {"spec": nodes}))
    script.on("POST", "/apis/batch/v1/namespaces/a/jobs", (201, {}))
    spec = CapacitySpec(
        cluster="c",
        namespace="a",
        name="job-a-b1",
        pool="burst",
        nodes=1,
        accelerators=8,
        accelerator_resource="nvidia.com/gpu",
        image="registry.k8s.io/pause:3.10",
    )

    KubernetesCluster(SameApiForEveryCluster(api), fleet="f").create_capacity_pods(spec)

    (created,) = [body for method, _, body, _ in script.asked if method == "POST"]
    borne = created["spec"]["template"]["spec"]["tolerations"]
    assert borne == [
        {"key": "evenkeel.io/awaiting-validation", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "team", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"},
    ]


def test_refused_job_leaves_no_service(script: ScriptedServer, api: KubernetesApi) -> None:
    spec = a_spec()
    space, name = f"namespaces/{spec.attempt.namespace}", spec.attempt.workload_name
    service = manifests.service(spec, "f")
    service["metadata"]["uid"] = "uid-1"
    script.on("POST", f"/api/v1/{space}/services", (201, service))
    script.on("POST", f"/apis/batch/v1/{space}/jobs", (403, status(403, "Forbidden")))
    script.on("GET", f"/api/v1/{space}/services/{name}", (200, service))
    script.on("DELETE", f"/api/v1/{space}/services/{name}", (200, {}))

    with pytest.raises(NotAllowed):
        KubernetesCluster(SameApiForEveryCluster(api), fleet="f").launch(
            replace(spec, accelerator_resource="nvidia.com/gpu")
        )

    assert [path for method, path, *_ in script.asked if method == "DELETE"] == [f"/api/v1/{space}/services/{name}"]


def test_cordon_retries_after_a_concurrent_change(script: ScriptedServer, api: KubernetesApi) -> None:
    script.on("GET", f"{NODES}/n1", (200, a_node_object("1")), (200, a_node_object("2")))
    script.on("PATCH", f"{NODES}/n1", (409, status(409, "Conflict")), (200, {}))

    assert (
        KubernetesCluster(SameApiForEveryCluster(api), fleet="f").cordon("c", "n1", "inc-1")
        is ClusterCordonResult.CORDONED
    )

    patches = [body["metadata"]["resourceVersion"] for method, _, body, _ in script.asked if method == "PATCH"]
    assert patches == ["1", "2"]


def test_cordon_at_the_current_version_needs_no_read(script: ScriptedServer, api: KubernetesApi) -> None:
    script.on("PATCH", f"{NODES}/n1", (200, {}))

    assert (
        KubernetesCluster(SameApiForEveryCluster(api), fleet="f").cordon("c", "n1", "inc-1", "7")
        is ClusterCordonResult.CORDONED
    )

    ((method, _, body, _),) = script.asked
    assert (method, body["metadata"]["resourceVersion"]) == ("PATCH", "7")


@pytest.mark.parametrize(
    ("unschedulable", "result"), [(False, ClusterCordonResult.CORDONED), (True, ClusterCordonResult.BY_PERSON)]
)
def test_cordon_reads_the_node_again_if_it_changed(
    script: ScriptedServer, api: KubernetesApi, unschedulable: bool, result: ClusterCordonResult
) -> None:
    script.on("PATCH", f"{NODES}/n1", (409, status(409, "Conflict")), (200, {}))
    script.on("GET", f"{NODES}/n1", (200, a_node_object("8", unschedulable=unschedulable)))

    assert KubernetesCluster(SameApiForEveryCluster(api), fleet="f").cordon("c", "n1", "inc-1", "7") is result

    patches = [body["metadata"]["resourceVersion"] for method, _, body, _ in script.asked if method == "PATCH"]
    assert patches == (["7"] if unschedulable else ["7", "8"])


def test_concurrent_cordon_of_a_person_is_not_overwritten(script: ScriptedServer, api: KubernetesApi) -> None:
    script.on("GET", f"{NODES}/n1", (200, a_node_object("1")), (200, a_node_object("2", unschedulable=True)))
    script.on("PATCH", f"{NODES}/n1", (409, status(409, "Conflict")))

    assert (
        KubernetesCluster(SameApiForEveryCluster(api), fleet="f").cordon("c", "n1", "inc-1")
        is ClusterCordonResult.BY_PERSON
    )


def test_cordon_that_fails_on_every_retry_is_a_conflict(script: ScriptedServer, api: KubernetesApi) -> None:
    script.on("GET", f"{NODES}/n1", (200, a_node_object("1")))
    script.on("PATCH", f"{NODES}/n1", (409, status(409, "Conflict")))

    with pytest.raises(Conflict):
        KubernetesCluster(SameApiForEveryCluster(api), fleet="f").cordon("c", "n1", "inc-1")

    assert len([method for method, *_ in script.asked if method == "PATCH"]) == 5


def test_release_of_a_node_is_retried_after_failed_precondition(script: ScriptedServer, api: KubernetesApi) -> None:
    own_taint = {"key": "evenkeel.io/awaiting-validation", "effect": "NoSchedule"}
    other = {"key": "own", "effect": "NoExecute"}
    script.on(
        "GET",
        f"{NODES}/n1",
        (200, a_node_object("1", taints=[own_taint, other])),
        (200, a_node_object("2", taints=[other, own_taint])),
    )
    script.on("PATCH", f"{NODES}/n1", (422, status(422, "InvalidObject")), (200, {}))

    assert (
        KubernetesCluster(SameApiForEveryCluster(api), fleet="f").return_to_service("c", "n1", None)
        is UncordonResult.RELEASED
    )

    _, second = [body for method, _, body, _ in script.asked if method == "PATCH"]
    assert second == [
        {"op": "test", "path": "/metadata/resourceVersion", "value": "2"},
        {"op": "test", "path": "/spec/taints/1/key", "value": "evenkeel.io/awaiting-validation"},
        {"op": "remove", "path": "/spec/taints/1"},
    ]


def test_node_deleted_between_read_and_write_counts_as_gone(script: ScriptedServer, api: KubernetesApi) -> None:
    script.on("GET", f"{NODES}/n1", (200, a_node_object("1", taints=[{"key": "x", "effect": "NoSchedule"}])))
    cluster = KubernetesCluster(SameApiForEveryCluster(api), fleet="f")

    assert cluster.cordon("c", "n1", "inc-1") is ClusterCordonResult.GONE


def test_broken_watch_continues_and_an_expired_one_lists_again(script: ScriptedServer, api: KubernetesApi) -> None:
    change = {"type": "MODIFIED", "object": {"metadata": {"resourceVersion": "7"}}}
    listed = (200, {"metadata": {"resourceVersion": "6"}, "items": []})
    quiet: queue.Queue[bytes] = queue.Queue()
    script.on(
        "GET",
        NODES,
        listed,
        (200, lines(change)),
        (0, b""),
        (410, status(410, "Gone")),
        listed,
        (200, quiet),
    )
    for path in ("/api/v1/pods", "/apis/batch/v1/jobs"):
        script.on("GET", path, (503, status(503, "ServiceUnavailable")))
    heard: list[str] = []

    KubernetesCluster(SameApiForEveryCluster(api), fleet="f").watch("c", heard.append, until=lambda: len(heard) >= 3)

    quiet.put(b"")
    assert heard == ["node"] * 3
    requested = [path for _, path, *_ in script.asked if path.startswith(NODES)]
    versions = ["limit" if "limit=1" in path else path.partition("resourceVersion=")[2][:1] for path in requested]
    assert versions[:5] == ["limit", "6", "7", "7", "limit"]


def test_watch_without_permission_reports_an_error(script: ScriptedServer, api: KubernetesApi) -> None:
    for path in (NODES, "/api/v1/pods", "/apis/batch/v1/jobs"):
        script.on("GET", path, (403, status(403, "Forbidden")))
    deadline = time.monotonic() + 20

    with pytest.raises(NotAllowed):
        KubernetesCluster(SameApiForEveryCluster(api), fleet="f").watch(
            "c", lambda _: None, until=lambda: time.monotonic() > deadline
        )


def test_watch_ends_soon_after_deadline_and_leaves_no_thread(script: ScriptedServer, api: KubernetesApi) -> None:
    quiet: queue.Queue[bytes] = queue.Queue()
    for path in (NODES, "/api/v1/pods", "/apis/batch/v1/jobs"):
        script.on("GET", path, (200, {"metadata": {"resourceVersion": "6"}, "items": []}), (200, quiet))
    heard: list[str] = []
    began = time.monotonic()

    KubernetesCluster(SameApiForEveryCluster(api), fleet="f").watch("c", heard.append, until=lambda: len(heard) == 3)

    for _ in range(3):
        quiet.put(b"")
    assert time.monotonic() - began < 20
    until(lambda: not [t for t in threading.enumerate() if t.name.startswith("watch-")], "the watchers to end")


def test_watch_reports_for_each_kind_whether_the_server_answers(script: ScriptedServer, api: KubernetesApi) -> None:
    listed = (200, {"metadata": {"resourceVersion": "6"}, "items": []})
    change = {"type": "MODIFIED", "object": {"metadata": {"resourceVersion": "7"}}}
    script.on("GET", NODES, listed, (200, lines(change)), (200, lines(change)))
    script.on("GET", "/api/v1/pods", (503, status(503, "ServiceUnavailable")))
    script.on("GET", "/apis/batch/v1/jobs", (503, status(503, "ServiceUnavailable")))
    states: dict[str, str] = {}
    cluster = KubernetesCluster(SameApiForEveryCluster(api), fleet="f")

    cluster.watch("c", lambda _: None, until=lambda: len(states) == 3, on_state=states.__setitem__)

    assert {kind: error.partition(":")[0] for kind, error in states.items()} == {
        "node": "",
        "pod": "Unreachable",
        "job": "Unreachable",
    }


def test_requests_of_a_pod_count_as_the_scheduler_counts_them() -> None:
    def container(cpu: str, **fields: str) -> dict[str, Any]:
        return {"resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}, **fields}

    pod = {
        "spec": {
            "initContainers": [container("500m", restartPolicy="Always"), container("4")],
            "containers": [container("1500m"), {"resources": {"limits": {"cpu": "1", "nvidia.com/gpu": "2"}}}],
            "overhead": {"cpu": "250m", "memory": "100Mi"},
        }
    }

    # The second init container runs beside the sidecar alone: 4.5 vCPU, more than the 3 vCPU of the rest.
    assert resources_requested(pod) == Resources(accelerators=2, cpu_millis=4_750, memory_mib=2 * 1024 + 100)


def test_allocatable_cpu_and_memory_of_a_node_are_read(script: ScriptedServer, api: KubernetesApi) -> None:
    allocatable = {"cpu": "191450m", "memory": "2097152Ki", "nvidia.com/gpu": "8"}
    script.on("GET", f"{NODES}/n1", (200, a_node_object("1") | {"status": {"allocatable": allocatable}}))

    node = KubernetesCluster(SameApiForEveryCluster(api), fleet="f").node("c", "n1")

    assert node is not None
    assert node.allocatable == Resources(accelerators=8, cpu_millis=191_450, memory_mib=2048)
