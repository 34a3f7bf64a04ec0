"""The cost of the clients of AWS and Kubernetes: processor seconds and memory per call, object and byte.

The services run on in-memory ports, so the clients are measured apart: the real adapters read real bytes, without a
network. Encryption and sockets are not included.
"""

from __future__ import annotations

import functools
import gc
import gzip
import json
import time
import tracemalloc
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final

import urllib3
from botocore.awsrequest import AWSResponse

from bench.scale import sample_objects
from bench.scale.model import ClientCost, ClientCosts
from evenkeel.adapters import aws
from evenkeel.adapters.cluster import KubernetesCluster
from evenkeel.adapters.dynamo_ledger import DynamoLedger
from evenkeel.adapters.hyperpod import HyperPodProvider
from evenkeel.adapters.kubernetes import KubernetesApi
from evenkeel.adapters.messages import SqsInbox
from evenkeel.ports import Key, Put, Row, Table
from evenkeel.runtime import wiring
from tests.fakes.metered import ObjectSizes

_OBJECTS: Final = 500
_PAGES: Final = (2, 4)
"""Pages of two lists: their difference is the memory for each object. From two pages on, a client holds two at once."""
_REPEATS: Final = 2
_GZIP_LEVEL: Final = 1
"""The level of API servers: https://github.com/kubernetes/kubernetes/pull/112299."""
_EMPTY_LIST: Final = b'{"metadata":{},"items":[]}'
_DOCUMENT: Final = {"jobId": "job-1", "reason": "Waits for 4 free nodes.", "facts": {f"f{i}": i for i in range(60)}}
REFERENCE_SECONDS: Final = 0.0187
"""Seconds of `reference_loop` on an idle processor of the machine on which this page's figures were made."""


def reference_loop() -> float:
    """Return the processor seconds of a fixed amount of work: JSON, dictionaries and compression, as services do."""
    text = json.dumps([_DOCUMENT] * 40)
    began = time.thread_time()
    for _ in range(40):
        items = json.loads(text)
        total = {item["reason"] + str(index): item for index, item in enumerate(items)}
        zlib.crc32(json.dumps(list(total.values())).encode())
    return time.thread_time() - began


def processor_scale(rounds: int = 3) -> float:
    """Return how many reference seconds a processor second of this machine is worth now."""
    return REFERENCE_SECONDS / min(reference_loop() for _ in range(rounds))


@dataclass(frozen=True)
class ListMemory:
    """Bytes of memory that reading a list takes."""

    fixed: float
    """Bytes at the peak for one page, independent of the length of the list."""
    per_object: float
    """Bytes at the peak for each object."""
    kept: float
    """Bytes for each object after the adapter returned."""

    def peak(self, objects: int) -> float:
        """Return the peak for a number of objects."""
        return self.fixed + self.per_object * objects


@dataclass(frozen=True)
class MeasuredClients:
    """The clients' processor time, the memory of their lists, and the sizes of the objects."""

    costs: ClientCosts
    memory: Mapping[str, ListMemory]
    sizes: ObjectSizes


def measure_clients() -> MeasuredClients:
    """Measure every client once, scaled to the reference processor."""
    wiring.collect_less_garbage()
    scale = processor_scale()
    costs: dict[str, ClientCost] = {}
    memory: dict[str, ListMemory] = {}
    items = [*map(sample_objects.node, range(_OBJECTS))], [*map(sample_objects.pod, range(_OBJECTS))]
    nodes, pods = map(sample_objects.page, items)
    jobs = sample_objects.page([*map(sample_objects.job, range(_OBJECTS))])
    sizes = ObjectSizes(
        node=len(nodes) // _OBJECTS,
        pod=len(pods) // _OBJECTS,
        workload=len(jobs) // _OBJECTS,
        compressed_share=max(len(_compress(page)) / len(page) for page in (nodes, pods, jobs)),
    )
    bodies = {"nodes": nodes, "pods": pods, "jobs": jobs}
    cluster, short, long = (
        KubernetesCluster(_Connections(bodies, count), fleet=sample_objects.FLEET) for count in (1, *_PAGES)
    )
    empty = KubernetesCluster(_Connections({}), fleet=sample_objects.FLEET)
    call = _seconds_per_run(lambda: empty.nodes("c"), 200) * scale
    costs["kubernetes:"] = ClientCost(call)
    for api, method in (("nodes", "nodes"), ("all pods", "resources_in_use")):
        read = functools.partial(getattr(cluster, method), "c")
        costs[f"kubernetes:LIST {api}"] = ClientCost(
            call, max(0.0, _seconds_per_run(read, _REPEATS) * scale - call) / _OBJECTS
        )
        memory[f"kubernetes:LIST {api}"] = _list_memory(getattr(short, method), getattr(long, method))
    # A list of workloads reads as many pods as Jobs, and keeps both until it returns.
    list_seconds = max(0.0, _seconds_per_run(lambda: cluster.workloads("c"), _REPEATS) * scale - 3 * call) / _OBJECTS
    of_both = _list_memory(short.workloads, long.workloads)
    half = ListMemory(of_both.fixed / 2, of_both.per_object / 2, of_both.kept / 2)
    for api in ("jobs", "own pods"):
        costs[f"kubernetes:LIST {api}"] = ClientCost(call, list_seconds / 2)
        memory[f"kubernetes:LIST {api}"] = half
    in_use = max(0.0, _seconds_per_run(lambda: cluster.pods_in_use("c"), _REPEATS) * scale - 3 * call) / _OBJECTS
    costs["kubernetes:LIST fleet pods"] = ClientCost(call, in_use)
    memory["kubernetes:LIST fleet pods"] = half
    costs["kubernetes:LIST pods of a node"] = costs["kubernetes:LIST all pods"]
    whole = _Connections({"nodes": nodes}).api("c")
    seconds = _seconds_per_run(lambda: whole.get("/api/v1/nodes"), _REPEATS) * scale
    costs["kubernetes:GET nodes"] = ClientCost(call, 0.0, seconds / len(nodes))
    costs |= _aws_costs(scale)
    return MeasuredClients(ClientCosts(costs), memory, sizes)


# ---------------------------------------------------------------- Kubernetes without a network


class _Connections:
    """API servers that answer each list with the same page, several times."""

    def __init__(self, bodies: Mapping[str, bytes], pages: int = 1) -> None:
        self._api = _PageApi({kind: _pages_of(body, pages) for kind, body in bodies.items()})

    def api(self, _cluster: str) -> KubernetesApi:
        return self._api


class _PageApi(KubernetesApi):
    """An API server that answers each list from memory, page by page and compressed."""

    def __init__(self, pages: Mapping[str, Sequence[bytes]]) -> None:
        self.name, self._pages = "measured", pages
        self._compressed = {kind: [*map(_compress, bodies)] for kind, bodies in pages.items()}

    def _open(self, method: str, path: str, query: Any = None, *_: Any, **__: Any) -> urllib3.BaseHTTPResponse:  # noqa: ARG002 - the client's signature
        is_of_others = "!=" in (query or {}).get("labelSelector", "")
        kind = "" if is_of_others else path.rpartition("/")[2]
        if kind not in self._pages:
            return urllib3.HTTPResponse(BytesIO(_EMPTY_LIST), status=200, preload_content=False)
        number = int((query or {}).get("continue") or 0)
        is_list = "limit" in (query or {})
        body = (self._compressed if is_list else self._pages)[kind][number]
        headers = {"Content-Encoding": "gzip"} if is_list else {}
        return urllib3.HTTPResponse(BytesIO(body), headers, status=200, preload_content=False)


def _pages_of(body: bytes, pages: int) -> list[bytes]:
    """Return this page several times, each time with the token of the next one."""
    tokens = [b'"continue":"%d",' % number for number in range(1, pages)]
    return [body.replace(b'"metadata":{', b'"metadata":{' + token, 1) for token in (*tokens, b"")]


def _compress(body: bytes) -> bytes:
    return gzip.compress(body, compresslevel=_GZIP_LEVEL, mtime=0)


# ---------------------------------------------------------------- AWS without a network


class _RawAnswer(BytesIO):
    """A response body that the client reads as a stream."""

    def stream(self, **_: Any) -> Any:
        while chunk := self.read(65_536):
            yield chunk


def _client(service: str, answer: Mapping[str, Any]) -> Any:
    """Return an SDK client that gets the same answer to every request, after it signed and wrote the request."""
    keys = {"aws_access_key_id": "measured", "aws_secret_access_key": "measured"}
    client = aws.session().create_client(service, "us-west-2", endpoint_url="http://127.0.0.1:9", **keys)
    body = json.dumps(answer).encode()
    headers: Any = {"content-type": "application/x-amz-json-1.0", "x-amz-crc32": str(zlib.crc32(body))}

    def respond(request: Any, **_: Any) -> AWSResponse:
        return AWSResponse(request.url, 200, headers, _RawAnswer(body))

    client.meta.events.register(f"before-send.{service}", respond)
    return client


def _aws_costs(scale: float) -> dict[str, ClientCost]:
    item = {
        "pk": {"S": "JOB#job-1"},
        "sk": {"S": "META"},
        "version": {"N": "3"},
        "doc": {"S": json.dumps(_DOCUMENT)},
        "stateKey": {"S": "JOB#PENDING"},
        "stateSort": {"S": "1"},
    }
    names = {table: table.lower() for table in Table}
    size = len(json.dumps(_DOCUMENT))
    key = Key(Table.JOBS, "JOB#job-1", "META")

    def ledger(answer: Mapping[str, Any]) -> DynamoLedger:
        return DynamoLedger(names, _client("dynamodb", answer))

    single, batch = ledger({"Item": item}), ledger({"Items": [item] * 400})
    get = _seconds_per_run(lambda: single.get(key), 100) * scale
    query = _seconds_per_run(lambda: batch.partition(Table.JOBS, "JOB#job-1"), _REPEATS) * scale
    writer = ledger({})
    row = Put(Row(key, _DOCUMENT, 3, ("JOB#PENDING", "1")))
    rows = [Put(Row(Key(Table.JOBS, f"JOB#{index}", "META"), _DOCUMENT, 3)) for index in range(20)]
    write, writes = (_seconds_per_run(lambda w=w: writer.commit(*w), 50) * scale for w in ([row], rows))  # type: ignore[misc]
    per_row = max(0.0, query - get) / 399
    per_write = max(0.0, writes - write) / 19
    summary = {
        "InstanceGroupName": "p5-workers",
        "InstanceId": "i-00000000000000001",
        "InstanceType": "ml.p5.48xlarge",
        "LaunchTime": 1_762_156_800,
        "InstanceStatus": {"Status": "Running", "Message": ""},
        "NodeLogicalId": "logical-1",
    }
    arn = "arn:aws:sagemaker:us-west-2:111122223333:cluster/abcdefghijkl"
    reader = _client("sagemaker", {"ClusterNodeSummaries": [summary] * 100})
    provider = HyperPodProvider(arn, reader, reader)
    listed = _seconds_per_run(provider.nodes, 20) * scale
    inbox = SqsInbox("http://127.0.0.1:9/queue", _client("sqs", {"MessageId": "1", "MD5OfMessageBody": ""}))
    sent = _seconds_per_run(lambda: inbox.put({"id": "x"}), 100) * scale
    return {
        "": ClientCost(sent),
        "dynamodb:": ClientCost(get, 0.0, max(0.0, per_row) / size),
        "dynamodb:TransactWriteItems": ClientCost(write - per_write, per_write),
        "sagemaker:": ClientCost(sent),
        "sagemaker:ListClusterNodes": ClientCost(sent, max(0.0, listed - sent) / 100),
    }


def _seconds_per_run(work: Callable[[], object], repeats: int) -> float:
    """Return the processor seconds of one run: the minimum of two series."""
    work()
    series = []
    for _ in range(2):
        began = time.thread_time()
        for _ in range(repeats):
            work()
        series.append((time.thread_time() - began) / repeats)
    return min(series)


def _list_memory(read: Callable[[str], object], read_longer: Callable[[str], object]) -> ListMemory:
    """Return the memory of a list from reading two lists of different length."""
    (short, _), (long, kept_bytes) = _peak_and_kept(read), _peak_and_kept(read_longer)
    fewer, more = (_OBJECTS * pages for pages in _PAGES)
    per_object = max(0.0, long - short) / (more - fewer)
    return ListMemory(max(0.0, short - per_object * fewer), per_object, kept_bytes / more)


def _peak_and_kept(read: Callable[[str], object]) -> tuple[int, int]:
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        answer = read("c")
        kept_bytes, peak = tracemalloc.get_traced_memory()
        del answer
        return peak - before, kept_bytes - before
    finally:
        tracemalloc.stop()
