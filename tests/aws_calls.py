"""The AWS calls of the adapters: recorded, checked against botocore's models, and answered in their shapes.

    python -m tests.aws_calls        write tests/golden again, after a change of a request

Each case is one operation of a port, on a real botocore client that never reaches the network.
"""

import base64
import io
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import boto3
from botocore.model import ListShape, MapShape, OperationModel, Shape, StringShape, StructureShape
from botocore.response import StreamingBody

from evenkeel.adapters.autoscaling import AutoScalingNodeGroups
from evenkeel.adapters.capacity_reservations import Ec2CapacityReservations
from evenkeel.adapters.container_insights import ContainerInsights
from evenkeel.adapters.dynamo_ledger import DynamoLedger
from evenkeel.adapters.eks import EksConnections
from evenkeel.adapters.hyperpod import HyperPodProvider
from evenkeel.adapters.messages import (
    EventBridgeBus,
    LambdaWaitAnswerRequests,
    S3RawEvents,
    SnsChat,
    SnsOnCall,
    SqsCycleRequests,
    SqsDeadLetters,
    SqsInbox,
)
from evenkeel.adapters.s3_checkpoints import S3Checkpoints
from evenkeel.adapters.stepfunctions import StepFunctionsTaskTokens, StepFunctionsWorkflows
from evenkeel.domain.nodes import FleetNode, NodeLife
from evenkeel.ports import Add, BusEvent, ConditionCheck, Delete, Key, Put, Row, Table, WorkflowName

GOLDEN: Final = Path(__file__).resolve().parent / "golden"
UPDATE: Final = "python -m tests.aws_calls"
Json = dict[str, Any]
ClientOf = Callable[[str], Any]

NODE: Final = "i-0123456789abcdef0"
RESERVATION: Final = "cr-0123456789abcdef0"
PLAN: Final = "arn:aws:sagemaker:us-west-2:123456789012:training-plan/p5-autumn"
NOW: Final = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ACCOUNT: Final = "us-west-2:123456789012"
CLUSTER: Final = f"arn:aws:sagemaker:{ACCOUNT}:cluster/abcdefghijkl"
QUEUE: Final = "https://sqs.us-west-2.amazonaws.com/123456789012/events"
MACHINE: Final = f"arn:aws:states:{ACCOUNT}:stateMachine:evenkeel-recover-node"
URI: Final = "s3://checkpoints/research/job"
TABLES: Final = {table: f"evenkeel-{table.lower()}" for table in Table}
KEY: Final = Key(Table.JOBS, "JOB#job-1", "META")
ROW: Final = Row(key=KEY, doc={"name": "first"}, version=3, state=("RUNNING", "2026"), expires_at=NOW)
STORED: Final = {
    "pk": {"S": KEY.pk},
    "sk": {"S": KEY.sk},
    "version": {"N": "3"},
    "doc": {"S": '{"used": 8}'},
    "sum:used": {"N": "4"},
    "stateKey": {"S": "RUNNING"},
    "stateSort": {"S": "2026"},
    "ttl": {"N": "1767322800"},
}


class Fill(StrEnum):
    """How many optional fields an answer has."""

    REQUIRED = "required members alone"
    EMPTY = "empty lists"
    ALL = "all members"


@dataclass(frozen=True)
class Case:
    """One operation of a port."""

    adapter: str
    name: str
    act: Callable[[ClientOf], Any]
    values: Mapping[str, Any] = field(default_factory=dict)
    """Values of members in the answers, by name."""

    def __str__(self) -> str:
        return f"{self.adapter}.{self.name}"


def _with_provider(act: Callable[[HyperPodProvider], Any]) -> Callable[[ClientOf], Any]:
    """Return a call that runs `act` on the adapter with recorded clients. The next four do the same."""
    return lambda client: act(HyperPodProvider(CLUSTER, client("sagemaker"), client("sagemaker")))


def _with_node_groups(act: Callable[[AutoScalingNodeGroups], Any]) -> Callable[[ClientOf], Any]:
    return lambda client: act(AutoScalingNodeGroups(client("autoscaling"), client("autoscaling"), client("eks")))


def _with_ledger(act: Callable[[DynamoLedger], Any]) -> Callable[[ClientOf], Any]:
    return lambda client: act(DynamoLedger(TABLES, client("dynamodb"), lambda _: None))


def _with_workflows(act: Callable[[StepFunctionsWorkflows], Any]) -> Callable[[ClientOf], Any]:
    arns = {WorkflowName.RECOVER_NODE: MACHINE}
    return lambda client: act(StepFunctionsWorkflows(arns, client("stepfunctions")))


def _with_checkpoints(act: Callable[[S3Checkpoints], Any]) -> Callable[[ClientOf], Any]:
    return lambda client: act(S3Checkpoints(client("s3")))


def _nodes() -> list[FleetNode]:
    life = NodeLife(cluster="research-eks", instance_id=NODE, launched_at=NOW)
    name = "hyperpod-i-0123456789abcdef0"
    return [FleetNode(life=life, slot="p5-1", node_name=name, instance_type="ml.p5.48xlarge", changed_at=NOW)]


_OF_NODE: Final = {
    "InstanceId": NODE,
    "NodeId": NODE,
    "Successful": [NODE],
    "InstanceGroupName": "p5-workers",
    "Status": "Running",
    "LaunchTime": NOW,
    "Failed": [],
}
_OF_GROUP: Final = {
    "InstanceId": NODE,
    "AutoScalingGroupName": "gpu-asg",
    "LifecycleState": "InService",
    "Tags": [
        {"Key": "eks:cluster-name", "Value": "research-eks"},
        {"Key": "eks:nodegroup-name", "Value": "gpu"},
        {"Key": "without-a-value"},
    ],
}
_IN_STORE: Final = {
    "Key": "research/job/attempt=1/step=000000010/shard-0-of-1.bin",
    "ETag": '"1a"',
    "ContentLength": 2,
    "ChecksumSHA256": base64.b64encode(bytes(32)).decode(),
    "ChecksumType": "FULL_OBJECT",
    "Body": b"{}",
    "Prefix": "research/job/attempt=1/",
}
_OF_TABLE: Final = {
    "Item": STORED,
    "Items": [STORED],
    "Responses": {TABLES[Table.JOBS]: [STORED]},
    "LastEvaluatedKey": {name: STORED[name] for name in ("pk", "sk", "stateKey", "stateSort")},
    "UnprocessedKeys": {
        TABLES[Table.JOBS]: {"Keys": [{"pk": {"S": KEY.pk}, "sk": {"S": KEY.sk}}], "ConsistentRead": True}
    },
}
_OF_EKS: Final = {"endpoint": "https://127.0.0.1", "data": base64.b64encode(b"").decode(), "status": "ACTIVE"}
_METRIC: Final = {"Id": "m0", "StatusCode": "Complete", "Timestamps": [NOW], "Values": [50.0]}

CASES: Final = (
    Case("hyperpod", "cluster", _with_provider(lambda port: port.cluster())),
    Case("hyperpod", "training_plan", _with_provider(lambda port: port.training_plan(PLAN))),
    Case("hyperpod", "nodes", _with_provider(lambda port: port.nodes()), _OF_NODE),
    Case("hyperpod", "node", _with_provider(lambda port: port.node(NODE)), _OF_NODE),
    Case("hyperpod", "node_in_slot", _with_provider(lambda port: port.node_in_slot("slot-1")), _OF_NODE),
    Case("hyperpod", "nodes_launched_after", _with_provider(lambda port: port.nodes_launched_after(NOW)), _OF_NODE),
    Case("hyperpod", "reboot", _with_provider(lambda port: port.reboot(NODE)), _OF_NODE),
    Case("hyperpod", "replace", _with_provider(lambda port: port.replace(NODE)), _OF_NODE),
    Case("hyperpod", "check_health", _with_provider(lambda port: port.check_health("p5-workers", NODE)), _OF_NODE),
    Case("autoscaling", "member", _with_node_groups(lambda port: port.member(NODE)), _OF_GROUP),
    Case("autoscaling", "group", _with_node_groups(lambda port: port.group("gpu-asg")), _OF_GROUP),
    Case("autoscaling", "terminate", _with_node_groups(lambda port: port.terminate(NODE)), _OF_GROUP),
    Case(
        "capacity_reservations",
        "describe",
        lambda client: Ec2CapacityReservations(client("ec2")).describe(RESERVATION),
        {"CapacityReservationId": RESERVATION},
    ),
    Case("eks", "api", lambda client: EksConnections("us-west-2", client("eks")).api("research-eks"), _OF_EKS),
    Case("dynamo_ledger", "get", _with_ledger(lambda port: port.get(KEY)), _OF_TABLE),
    Case("dynamo_ledger", "batch_get", _with_ledger(lambda port: port.batch_get(KEY)), _OF_TABLE),
    Case(
        "dynamo_ledger",
        "partition",
        _with_ledger(lambda port: port.partition(Table.JOBS, KEY.pk, "ATTEMPT#")),
        _OF_TABLE,
    ),
    Case(
        "dynamo_ledger",
        "by_state",
        _with_ledger(lambda port: port.by_state(Table.JOBS, "RUNNING", prefix="2026", limit=9, newest_first=True)),
        _OF_TABLE,
    ),
    Case(
        "dynamo_ledger",
        "commit",
        _with_ledger(
            lambda port: port.commit(
                Put(ROW),
                Put(Row(Key(Table.JOBS, "JOB#job-2", "META"), {}), first_version=7),
                Delete(Key(Table.FLEET, "NODE#1", "META"), 2),
                ConditionCheck(Key(Table.QUOTAS, "TREE", "META"), 5),
                ConditionCheck(Key(Table.QUOTAS, "TREE", "NEW"), 0),
                Add(Key(Table.QUOTAS, "USE#red", "2026"), {"gpuSeconds": 60}),
                client_token="commit-1",
            )
        ),
    ),
    Case(
        "messages",
        "request_cycle",
        lambda client: SqsCycleRequests(QUEUE.replace("events", "cycles.fifo"), client("sqs")).request("a job ended"),
    ),
    Case("messages", "queue_event", lambda client: SqsInbox(QUEUE, client("sqs")).put({"id": "1", "detail": {}})),
    Case(
        "messages",
        "count_events",
        lambda client: SqsInbox(QUEUE, client("sqs")).waiting(),
        {"Attributes": {"ApproximateNumberOfMessages": "4"}},
    ),
    Case("messages", "delay_event", lambda client: SqsInbox(QUEUE, client("sqs")).delay_redelivery("receipt", 30)),
    Case(
        "messages",
        "dead_letter",
        lambda client: SqsDeadLetters(QUEUE, client("sqs")).put("{", "NOT_JSON", "line 1 is cut off"),
    ),
    Case(
        "messages",
        "alert",
        lambda client: SnsOnCall(f"arn:aws:sns:{ACCOUNT}:pages", "research", client("sns")).alert(
            "node i-1 is lost", "Look at it.", key="inc-1"
        ),
    ),
    Case(
        "messages",
        "chat",
        lambda client: SnsChat(f"arn:aws:sns:{ACCOUNT}:chat", client("sns")).send({"id": "1", "content": {}}),
    ),
    Case(
        "messages",
        "publish",
        lambda client: EventBridgeBus("evenkeel", client("events")).publish(
            [BusEvent("evenkeel", "Evenkeel Job Changed", {"jobId": "job-1"})]
        ),
        {"FailedEntryCount": 0},
    ),
    Case("messages", "archive", lambda client: S3RawEvents("events", client("s3")).keep("envelope-1", b"{}")),
    Case(
        "messages",
        "answer_wait",
        lambda client: LambdaWaitAnswerRequests("resolve-wait", client("lambda")).request(
            "inc-1", "await_node", 1, {"a": 1}
        ),
    ),
    Case("s3_checkpoints", "folders", _with_checkpoints(lambda port: port.folders(URI)), _IN_STORE),
    Case(
        "s3_checkpoints",
        "contents",
        _with_checkpoints(
            lambda port: port.contents(
                URI, "attempt=1/step=000000010", checksums_of=["attempt=1/step=000000010/shard-0-of-1.bin"]
            )
        ),
        _IN_STORE,
    ),
    Case(
        "s3_checkpoints", "read", _with_checkpoints(lambda port: port.read(URI, "attempt=1/manifest.json")), _IN_STORE
    ),
    Case("s3_checkpoints", "fence", _with_checkpoints(lambda port: port.fence(URI)), _IN_STORE),
    Case("s3_checkpoints", "first_fence", _with_checkpoints(lambda port: port.raise_fence(URI, {"attempt": 1}, ""))),
    Case(
        "s3_checkpoints", "raise_fence", _with_checkpoints(lambda port: port.raise_fence(URI, {"attempt": 2}, '"1a"'))
    ),
    Case(
        "stepfunctions",
        "start",
        _with_workflows(lambda port: port.start(WorkflowName.RECOVER_NODE, "inc-1-run-1", {"a": 1})),
    ),
    Case("stepfunctions", "state", _with_workflows(lambda port: port.state(WorkflowName.RECOVER_NODE, "inc-1-run-1"))),
    Case(
        "stepfunctions",
        "trace",
        _with_workflows(lambda port: port.trace(WorkflowName.RECOVER_NODE, "inc-1-run-1")),
        {"definition": "{}"},
    ),
    Case("stepfunctions", "running", _with_workflows(lambda port: port.running(WorkflowName.RECOVER_NODE))),
    Case(
        "stepfunctions",
        "succeed_task",
        lambda client: StepFunctionsTaskTokens(client("stepfunctions")).succeed("token", {"a": 1}),
    ),
    Case(
        "stepfunctions",
        "fail_task",
        lambda client: StepFunctionsTaskTokens(client("stepfunctions")).fail("token", "Evenkeel.Failed", "its cause"),
    ),
    Case(
        "container_insights",
        "read",
        lambda client: ContainerInsights(client("cloudwatch")).read(_nodes(), NOW),
        {"MetricDataResults": [_METRIC]},
    ),
)
ADAPTERS: Final = tuple(dict.fromkeys(case.adapter for case in CASES))

ALWAYS_SENT: Final[Mapping[str, frozenset[str]]] = {
    "s3:HeadObject": frozenset({"ContentLength", "LastModified"}),
    "s3:GetObject": frozenset({"Body", "ContentLength", "ETag"}),
    "s3:ListObjectsV2": frozenset({"Key", "Size", "LastModified", "Prefix"}),
    "dynamodb:Query": frozenset({"Items"}),
    "dynamodb:BatchGetItem": frozenset({"Responses"}),
    "sqs:GetQueueAttributes": frozenset({"Attributes"}),
    "eks:DescribeCluster": frozenset({"cluster"}),
    "eks:DescribeNodegroup": frozenset({"nodegroup"}),
    "cloudwatch:GetMetricData": frozenset({"MetricDataResults", "Id"}),
}
"""Members that the services always send, although their models do not say so. Adapters may rely on these alone."""
_NEXT: Final = re.compile(r"next\w*token|lastevaluatedkey|unprocessedkeys|istruncated", re.IGNORECASE)
"""Members of an answer that ask for another request. Only the first answer of an operation has them."""


class Recorder:
    """Makes clients, records their requests, and answers them."""

    def __init__(self, values: Mapping[str, Any] | None = None, fill: Fill = Fill.ALL) -> None:
        self.requests: list[tuple[OperationModel, Json]] = []
        self._values = values or {}
        self._fill = fill
        self.error: tuple[str, int] | None = None
        """Code and HTTP status of the error that each request is answered with; None for none."""
        self._answered: set[str] = set()
        self._clients: dict[str, Any] = {}

    def client(self, service: str) -> Any:
        if service not in self._clients:
            session: Any = boto3.session.Session("testing", "testing", region_name="us-west-2")
            client = self._clients[service] = session.client(service)
            client.meta.events.register_first("provide-client-params", self._record)
            client.meta.events.register_first("before-call", self._answer)
        return self._clients[service]

    def _record(self, params: Json, model: OperationModel, **_: Any) -> None:
        self.requests.append((model, dict(params)))

    def _answer(self, model: OperationModel, **_: Any) -> tuple[Any, Json]:
        if self.error:
            code, status = self.error
            error = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}}
            return SimpleNamespace(status_code=status, headers={}), error
        fill = Filling(self._values, self._fill, name_of(model), is_first=model.name not in self._answered)
        self._answered.add(model.name)
        answer = fill.member("", model.output_shape) if model.output_shape else {}
        return SimpleNamespace(status_code=200, headers={}), {**answer, "ResponseMetadata": {"HTTPStatusCode": 200}}


@dataclass(frozen=True)
class Filling:
    """An answer in the shape of an operation."""

    values: Mapping[str, Any]
    fill: Fill
    operation: str
    is_first: bool

    def member(self, name: str, shape: Shape, within: tuple[str, ...] = ()) -> Any:
        if name in self.values:
            value = self.values[name]
            return StreamingBody(io.BytesIO(value), len(value)) if _is_stream(shape) else value
        if isinstance(shape, StructureShape):
            return {
                inner: self.member(inner, member, (*within, shape.name))
                for inner, member in shape.members.items()
                if self._is_sent(inner, shape) and member.name not in within
            }
        if isinstance(shape, ListShape):
            return [] if self.fill is Fill.EMPTY else [self.member("", shape.member, (*within, shape.name))]
        if isinstance(shape, MapShape):
            return {} if self.fill is Fill.EMPTY else {"key": self.member("", shape.value, (*within, shape.name))}
        if _is_stream(shape):
            return StreamingBody(io.BytesIO(b"{}"), 2)
        if isinstance(shape, StringShape):
            return shape.enum[0] if shape.enum else "text"
        return {"timestamp": NOW, "boolean": True, "blob": b"{}", "double": 1.0, "float": 1.0}.get(shape.type_name, 1)

    def _is_sent(self, member_name: str, shape: StructureShape) -> bool:
        if _NEXT.fullmatch(member_name):
            return self.is_first and self.fill is Fill.ALL
        is_required = member_name in shape.required_members or member_name in ALWAYS_SENT.get(self.operation, ())
        return is_required or self.fill is not Fill.REQUIRED


def _is_stream(shape: Shape) -> bool:
    return shape.type_name == "blob" and bool(shape.serialization.get("streaming"))


def name_of(model: OperationModel) -> str:
    """Return an operation as `service:Operation`."""
    return f"{model.service_model.service_name}:{model.name}"


def recorded(adapter: str) -> Json:
    """Return the requests of an adapter's cases as JSON, with full answers."""
    document: Json = {}
    for case in CASES:
        if case.adapter == adapter:
            recorder = Recorder(case.values)
            case.act(recorder.client)
            document[case.name] = [
                {"operation": name_of(model), "request": _plain(params)} for model, params in recorder.requests
            ]
    return document


def golden_path(adapter: str) -> Path:
    return GOLDEN / f"{adapter}.json"


def _plain(value: Any) -> Any:
    """Return a request as JSON. Random ids become `RANDOM`."""
    match value:
        case Mapping():
            return {name: _plain(inner) for name, inner in value.items()}
        case bytes():
            return value.decode()
        case datetime():
            return value.isoformat()
        case str():
            return "RANDOM" if re.fullmatch(r"[0-9a-f]{32}", value) else value
        case Sequence():
            return [_plain(inner) for inner in value]
    return value


def _main() -> int:
    for adapter in ADAPTERS:
        golden_path(adapter).write_text(json.dumps(recorded(adapter), indent=1) + "\n", encoding="utf-8")
    return 0


def operations_called(source: str) -> Iterator[str]:
    """Yield the operations, as botocore's clients name them, that the source of an adapter calls."""
    yield from re.findall(r"(?:_client|_reader|_terminator|_repairer|_eks|client)\.([a-z_0-9]+)\(", source)
    yield from re.findall(r'get_paginator\("([a-z_0-9]+)"\)', source)
    yield from re.findall(r"_repairer\.([a-z_]+)\)", source)


if __name__ == "__main__":
    sys.exit(_main())
