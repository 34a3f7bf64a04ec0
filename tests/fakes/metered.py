"""Ports around the fakes that report each call of the AWS and Kubernetes APIs which the real adapter would make.

A port method is not one call: `cluster.nodes` reads a page of 500 nodes at a time, `provider.nodes` a page of 100. The
tables below say which calls an adapter makes for a method. `tests/unit/bench/test_scale.py` compares them with the
adapters themselves.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.ports import (
    Add,
    ClusterCordonResult,
    Delete,
    Key,
    Ledger,
    Page,
    PodGroup,
    Put,
    Row,
    Table,
    Write,
    row_bytes,
)

KUBERNETES_PAGE = 500
PROVIDER_PAGE = 100
WORKFLOWS_PAGE = 1000
_QUERY_PAGE_BYTES = 1_000_000
_BATCH_PAGE_BYTES = 16_000_000
_READ_UNIT, _WRITE_UNIT = 4096, 1024
_COMPRESSED_FROM = 128 * 1024
"""Bytes above which an API server compresses a list."""


class ApiCall(NamedTuple):
    """One call of an API."""

    api: str
    """Service and operation, for example `dynamodb:GetItem` or `kubernetes:LIST nodes`."""
    received: int = 0
    """Bytes of the answer."""
    sent: int = 0
    """Bytes of the request."""
    items: int = 1
    """Rows or objects in the answer or the request."""
    units: float = 0.0
    """Capacity units of DynamoDB: read units of a read, write units of a write."""
    partition: str = ""
    """Partition that the call reads or writes, where the service limits a partition."""
    compressed: int = 0
    """Bytes of the answer on the network; 0 if it is not compressed."""


class Meter(Protocol):
    """Takes the calls of metered ports."""

    def call(self, call: ApiCall) -> None:
        """Record a call; a model of time also waits for it."""
        ...

    def pages(self, calls: Sequence[ApiCall]) -> None:
        """Record the pages of a list. Each page is received while the client processes the page before it."""
        ...

    def outside(self) -> AbstractContextManager[None]:
        """Return a context whose processor time belongs to the cloud, not to the function."""
        ...


@dataclass
class CallCounter:
    """A meter that only counts."""

    calls: list[ApiCall] = field(default_factory=list)

    def call(self, call: ApiCall) -> None:
        self.calls.append(call)

    def pages(self, calls: Sequence[ApiCall]) -> None:
        self.calls.extend(calls)

    @contextmanager
    def outside(self) -> Iterator[None]:
        yield

    @property
    def by_api(self) -> Counter[str]:
        return Counter(call.api for call in self.calls)

    @property
    def received(self) -> int:
        return sum(call.received for call in self.calls)


@dataclass(frozen=True)
class ObjectSizes:
    """Bytes of Kubernetes and HyperPod objects as JSON, and the pods of a node that belong to no job."""

    node: int = 12_000
    pod: int = 7_000
    workload: int = 5_000
    provider_node: int = 700
    compressed_share: float = 0.2
    """Bytes of a compressed list on the network, for each byte of its JSON."""
    system_pods_per_node: int = 8


class MeteredLedger:
    """The ledger, as calls of DynamoDB."""

    def __init__(self, inner: Ledger, meter: Meter) -> None:
        self._inner, self._meter = inner, meter
        self._sizes: dict[Key, tuple[int, int]] = {}

    def get(self, key: Key) -> Row | None:
        with self._meter.outside():
            row = self._inner.get(key)
            size = self._size(row)
        self._meter.call(ApiCall("dynamodb:GetItem", size, 0, 1, _read_units(size), _partition(key)))
        return row

    def batch_get(self, *keys: Key) -> tuple[Row | None, ...]:
        with self._meter.outside():
            rows = self._inner.batch_get(*keys)
            sizes = [self._size(row) for row in rows]
        units = sum(map(_read_units, sizes))
        for number, size in enumerate(_pages(sum(sizes), _BATCH_PAGE_BYTES)):
            items = len(keys) if number == 0 else 0
            self._meter.call(ApiCall("dynamodb:BatchGetItem", size, 0, items, units if number == 0 else 0.0))
        return rows

    def partition(self, table: Table, pk: str, prefix: str = "") -> tuple[Row, ...]:
        with self._meter.outside():
            rows = self._inner.partition(table, pk, prefix)
            total = sum(map(self._size, rows))
        pages = _pages(total, _QUERY_PAGE_BYTES)
        for size in pages:
            items = math.ceil(len(rows) / len(pages))
            self._meter.call(ApiCall("dynamodb:Query", size, 0, items, _read_units(size), f"{table} {pk}"))
        return rows

    def by_state(self, table: Table, state: str, **options: Any) -> Page:
        with self._meter.outside():
            page = self._inner.by_state(table, state, **options)
            total = sum(map(self._size, page.rows))
        pages = _pages(total, _QUERY_PAGE_BYTES)
        for size in pages:
            items = math.ceil(len(page.rows) / len(pages))
            # The index is read with eventual consistency, at half the cost.
            self._meter.call(
                ApiCall("dynamodb:Query byState", size, 0, items, _read_units(size) / 2, f"{table} byState {state}")
            )
        return page

    def commit(self, *writes: Write, client_token: str = "") -> None:
        if not writes:
            return
        with self._meter.outside():
            before = {key: self._inner.get(key) for key in map(_key_of, writes)}
            sizes = [_write_bytes(write, before[_key_of(write)], self._size) for write in writes]
            # A transaction reads and writes each item twice, and each entry of the index once more.
            units = sum(
                2 * math.ceil(size / _WRITE_UNIT) + _index_units(write, before[_key_of(write)], size)
                for write, size in zip(writes, sizes, strict=True)
            )
        call = ApiCall(
            "dynamodb:TransactWriteItems", 100, sum(sizes), len(writes), units, _partition(_key_of(writes[0]))
        )
        self._meter.call(call)
        # The conditions are checked when the call arrives, so after its wait.
        with self._meter.outside():
            self._inner.commit(*writes, client_token=client_token)

    def _size(self, row: Row | None) -> int:
        if row is None:
            return 0
        known = self._sizes.get(row.key)
        if known is None or known[0] != row.version:
            known = self._sizes[row.key] = (row.version, row_bytes(row))
        return known[1]


class MeteredPort:
    """A port. `calls_of` names the calls that its adapter makes for a method."""

    def __init__(
        self, inner: Any, meter: Meter, calls_of: Callable[[str, tuple[Any, ...], Any], Iterator[ApiCall]]
    ) -> None:
        self._inner, self._meter, self._calls = inner, meter, calls_of

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if not callable(method):
            return method

        def metered(*given: Any, **named: Any) -> Any:
            with self._meter.outside():
                answer = method(*given, **named)
            for api, calls in itertools.groupby(self._calls_of(name, given, answer), key=lambda call: call.api):
                if "kubernetes:LIST" in api:
                    self._meter.pages(tuple(calls))
                else:
                    for call in calls:
                        self._meter.call(call)
            return answer

        return metered

    def _calls_of(self, name: str, given: tuple[Any, ...], answer: Any) -> Iterator[ApiCall]:
        return self._calls(name, given, answer)


class MeteredCluster(MeteredPort):
    """The Kubernetes clusters, as calls of their API servers. Pods of the system are counted, not created."""

    def __init__(self, inner: Any, meter: Meter, sizes: ObjectSizes) -> None:
        super().__init__(inner, meter, self._calls_of)
        self._sizes = sizes

    def cordon(
        self, cluster: str, name: str, incident_id: str | None, uncordoned_resource_version: str = ""
    ) -> ClusterCordonResult:
        """Read the node unless it has the seen version, and cordon it when the second call arrives."""
        with self._meter.outside():
            node = self._inner.node(cluster, name)
        if node is None or node.is_cordoned or node.resource_version != uncordoned_resource_version:
            self._meter.call(self._get("nodes", self._sizes.node))
        if node is not None and not node.is_cordoned:
            self._meter.call(self._change("PATCH", "nodes", self._sizes.node))
        with self._meter.outside():
            result: ClusterCordonResult = self._inner.cordon(cluster, name, incident_id)
        return result

    def watch(self, cluster: str, on_change: Callable[[str], None], **options: Any) -> None:
        """Open the watches of nodes, pods and Jobs. The watch itself calls back, so its callbacks cost the function."""
        self._meter.call(self._get("apis", 4_000))
        for kind in ("nodes", "pods", "jobs"):
            self._meter.call(self._list(kind, 1, 1, self._sizes.node))
            self._meter.call(ApiCall(f"kubernetes:WATCH {kind}"))
        self._inner.watch(cluster, on_change, **options)

    def _calls_of(self, name: str, given: tuple[Any, ...], answer: Any) -> Iterator[ApiCall]:
        sizes = self._sizes
        match name:
            case "nodes":
                yield from self._lists("nodes", len(answer), sizes.node)
            case "workloads":
                yield from self._lists("jobs", len(answer), sizes.workload)
                yield self._get("apis", 4_000)
                yield from self._lists("own pods", sum(len(workload.pods) for workload in answer), sizes.pod)
            case "workload":
                yield from self._objects_of(len(answer.pods))
            case "pods_in_use":
                yield self._get("apis", 4_000)
                yield from self._lists("fleet pods", sum(len(attempt.pods) for attempt in answer.attempts), sizes.pod)
                yield from self._lists("all pods", len(self._inner.unmanaged), sizes.pod)
            case "resources_in_use":
                yield from self._resources_in_use(*given)
            case "pods" | "live_pods":
                listed = answer if name == "pods" else answer.pods
                yield from self._pods(given[0], given[1] if len(given) > 1 else None, listed)
            case "launch":
                yield self._get("nodes", sizes.node)
                yield self._change("POST", "services", 1_000)
                yield self._change("POST", "jobs", sizes.workload)
            case "stop":
                yield from self._stops(given[0])
            case "log_tails":
                yield from self._objects_of(len(answer))
                for _ in answer:
                    yield ApiCall("kubernetes:GET log", 20_000)
            case "return_to_service" | "remove_manual_cordon":
                yield self._get("nodes", sizes.node)
                yield self._change("PATCH", "nodes", sizes.node)
            case _:
                kinds = {"node": "nodes", "check_result": "jobs"}
                yield self._get(kinds.get(name, "apis"), sizes.node)

    def _resources_in_use(self, cluster: str, pods: PodGroup = PodGroup.ALL) -> Iterator[ApiCall]:
        bound = sum(where == cluster for where, _ in self._inner.by_name) * self._sizes.system_pods_per_node
        count = {PodGroup.BOUND: bound, PodGroup.MOVABLE: self._all_pods(cluster) - bound}
        yield from self._lists("all pods", count.get(pods, self._all_pods(cluster)), self._sizes.pod)

    def _pods(self, cluster: str, on: str | None, answer: Any) -> Iterator[ApiCall]:
        count = self._all_pods(cluster) if on is None else self._sizes.system_pods_per_node + len(answer)
        yield from self._lists("all pods" if on is None else "pods of a node", count, self._sizes.pod)
        if any(pod.kind == "Job" for pod in answer):
            yield from self._lists("jobs", self._job_count(cluster), self._sizes.workload)

    def _objects_of(self, pods: int) -> Iterator[ApiCall]:
        yield self._get("jobs", self._sizes.workload)
        yield from self._lists("own pods", pods, self._sizes.pod)

    def _stops(self, attempt: Attempt) -> Iterator[ApiCall]:
        yield from self._objects_of(attempt.ranks)
        for _ in range(attempt.ranks):
            yield self._change("DELETE", "pods", 200)
        yield self._change("DELETE", "jobs", 200)
        yield self._get("services", 1_000)
        yield self._change("DELETE", "services", 200)

    def _all_pods(self, cluster: str) -> int:
        own = sum(len(workload.pods) for workload in self._inner.jobs.get(cluster, {}).values())
        nodes = sum(where == cluster for where, _ in self._inner.by_name)
        unmanaged = len(self._inner.unmanaged)
        return int(own + nodes * self._sizes.system_pods_per_node + unmanaged)

    def _job_count(self, cluster: str) -> int:
        return len(self._inner.jobs.get(cluster, {}))

    def _lists(self, kind: str, count: int, size: int) -> Iterator[ApiCall]:
        for start in range(0, max(1, count), KUBERNETES_PAGE):
            items = min(KUBERNETES_PAGE, count - start)
            yield self._list(kind, items, items, size)

    def _list(self, kind: str, items: int, count: int, size: int) -> ApiCall:
        received = 200 + count * size
        compressed = int(received * self._sizes.compressed_share) if received > _COMPRESSED_FROM else 0
        return ApiCall(f"kubernetes:LIST {kind}", received, 0, items, compressed=compressed)

    def _get(self, kind: str, size: int) -> ApiCall:
        return ApiCall(f"kubernetes:GET {kind}", size)

    def _change(self, verb: str, kind: str, size: int) -> ApiCall:
        return ApiCall(f"kubernetes:{verb} {kind}", size, size)


def provider_calls(sizes: ObjectSizes) -> Callable[[str, tuple[Any, ...], Any], Iterator[ApiCall]]:
    """Return the calls of SageMaker for the port Provider."""
    operations = {
        "cluster": "DescribeCluster",
        "training_plan": "DescribeTrainingPlan",
        "node": "DescribeClusterNode",
        "node_in_slot": "DescribeClusterNode",
        "reboot": "BatchRebootClusterNodes",
        "replace": "BatchReplaceClusterNodes",
        "check_health": "StartClusterHealthCheck",
    }

    def calls_of(name: str, given: tuple[Any, ...], answer: Any) -> Iterator[ApiCall]:
        if name not in ("nodes", "nodes_launched_after"):
            yield ApiCall(f"sagemaker:{operations[name]}", sizes.provider_node)
            return
        for start in range(0, max(1, len(answer)), PROVIDER_PAGE):
            items = min(PROVIDER_PAGE, len(answer) - start)
            yield ApiCall("sagemaker:ListClusterNodes", 100 + items * sizes.provider_node, 0, items)

    return calls_of


def workflow_calls(name: str, given: tuple[Any, ...], answer: Any) -> Iterator[ApiCall]:
    """Yield the calls of Step Functions for the ports Workflows and Tokens."""
    if name == "running":
        for start in range(0, max(1, len(answer)), WORKFLOWS_PAGE):
            items = min(WORKFLOWS_PAGE, len(answer) - start)
            yield ApiCall("states:ListExecutions", 100 + 300 * items, 0, items)
        return
    operations = {
        "start": "StartExecution",
        "state": "DescribeExecution",
        "succeed": "SendTaskSuccess",
        "fail": "SendTaskFailure",
    }
    yield ApiCall(f"states:{operations[name]}", 500, 500)


def one_call(api: str, received: int = 300, sent: int = 500) -> Callable[..., Iterator[ApiCall]]:
    """Return a port's calls where every method is one call of the same operation."""

    def calls_of(name: str, given: tuple[Any, ...], answer: Any) -> Iterator[ApiCall]:
        yield ApiCall(api, received, sent)

    return calls_of


def checkpoint_calls(name: str, given: tuple[Any, ...], answer: Any) -> Iterator[ApiCall]:
    """Yield the calls of S3 for the port CheckpointStore."""
    if name in ("folders", "contents"):
        yield ApiCall("s3:ListObjectsV2", 100 + 400 * len(answer), 0, len(answer))
    else:
        yield ApiCall("s3:PutObject" if name in ("put", "raise_fence") else "s3:GetObject", 2_000)


def metered_ports(world: Any, meter: Meter, sizes: ObjectSizes) -> dict[str, Any]:
    """Return the ports of a `FakeWorld`, each around the fake, by the names that a context knows."""
    return {
        "ledger": MeteredLedger(world.ledger, meter),
        "cluster": MeteredCluster(world.cluster, meter, sizes),
        "provider": MeteredPort(world.provider, meter, provider_calls(sizes)),
        "workflows": MeteredPort(world.workflows, meter, workflow_calls),
        "task_tokens": MeteredPort(world.task_tokens, meter, workflow_calls),
        "checkpoints": MeteredPort(world.checkpoints, meter, checkpoint_calls),
        "node_groups": MeteredPort(world.node_groups, meter, one_call("autoscaling:Describe")),
        "capacity_reservations": MeteredPort(world.capacity_reservations, meter, one_call("ec2:Describe")),
        "wait_answers": MeteredPort(world.wait_answers, meter, one_call("lambda:Invoke")),
        "cycle_requests": MeteredPort(world.cycle_requests, meter, one_call("sqs:SendMessage")),
        "on_call": MeteredPort(world.on_call, meter, one_call("sns:Publish")),
        "raw_events": MeteredPort(world.raw_events, meter, one_call("s3:PutObject", 100, 1_500)),
        "dead_letters": MeteredPort(world.dead_letters, meter, one_call("sqs:SendMessage")),
        "inbox": MeteredPort(world.inbox, meter, one_call("sqs:GetQueueAttributes")),
    }


def _pages(total: int, size: int) -> list[int]:
    """Return the bytes of each page of an answer; one page if it is empty."""
    full, rest = divmod(total, size)
    return [*([size] * full), *([rest] if rest or not full else [])]


def _read_units(size: int) -> float:
    return max(1, math.ceil(size / _READ_UNIT))


def _key_of(write: Write) -> Key:
    return write.row.key if isinstance(write, Put) else write.key


def _partition(key: Key) -> str:
    return f"{key.table} {key.pk}"


def _write_bytes(write: Write, before: Row | None, size_of: Callable[[Row | None], int]) -> int:
    """Return the size that DynamoDB counts: the larger of the item before and after."""
    after = row_bytes(write.row) if isinstance(write, Put) else 0
    return max(after, size_of(before), 1)


def _index_units(write: Write, before: Row | None, size: int) -> int:
    """Return the write units of the index: one entry is written, or an old one deleted and a new one written."""
    was = before.state if before else None
    match write:
        case Put(row):
            now = row.state
        case Delete():
            now = None
        case Add():
            now = was
        case _:
            return 0
    entries = 1 if was == now else (was is not None) + (now is not None)
    return entries * math.ceil(size / _WRITE_UNIT) if was or now else 0
