"""Read the state of a data centre during a drill, and wait for a state."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from botocore.exceptions import ClientError

from evenkeel.domain.jobs.workload_kind import WorkloadKind
from evenkeel_client.client import ApiClient
from evenkeel_client.errors import CommandFailed
from evenkeel_local.data_centre import DataCentre

Json = dict[str, Any]

ENDED: Final = ("SUCCEEDED", "FAILED", "CANCELLED")
SETTLED: Final = ("RECOVERED", "OBSERVED", "STOOD_DOWN", "WAITING_FOR_PERSON", "JOB_NOT_RESUMED", "FAILED")
JOB_SECONDS: Final = 150.0
FLEET_SECONDS: Final = 90.0
POLL_SECONDS: Final = 0.2
DEAD_LETTER_QUEUES: Final = (
    "DeadLetterQueueUrl",
    "UnhandledEventsQueueUrl",
    "UndeliveredEventsQueueUrl",
    "FailedCyclesQueueUrl",
    "FailedInvocationsQueueUrl",
)
"""Stack outputs with the URLs of queues that must stay empty."""


@dataclass(frozen=True)
class TrainingWork:
    """The job of a drill."""

    nodes: int = 2
    steps: int = 80
    checkpoint_every: int = 4
    step_seconds: float = 0.2
    seed: int = 7
    instance_types: tuple[str, ...] = ()
    kind: WorkloadKind = WorkloadKind.JOB
    paced_attempts: int = 0
    """Number of attempts that take `step_seconds` per step; later attempts are faster. 0: all attempts."""

    def submission(self, name: str, uri: str) -> dict[str, Any]:
        """Return the body of `POST /v1/jobs`."""
        return {
            "name": name,
            "kind": self.kind,
            "image": "evenkeel/example-trainer:1",
            "command": ["python", "-m", "evenkeel_trainer"],
            "args": [
                *("--steps", str(self.steps), "--checkpoint-every", str(self.checkpoint_every)),
                *("--step-seconds", str(self.step_seconds), "--seed", str(self.seed)),
                *("--paced-attempts", str(self.paced_attempts)),
            ],
            "nodes": self.nodes,
            "gpusPerNode": 8,
            "instanceTypes": list(self.instance_types),
            "checkpoint": {"uri": uri},
        }


RENTED_TYPE: Final = "p5.48xlarge"


def node_pool(
    name: str, market: str, *, limit: int | None = None, taints: Sequence[Json] = (), labels: Json | None = None
) -> Json:
    """Return a Karpenter NodePool of one instance type and market.

    Args:
        name: Its name.
        market: `spot` or `on-demand`.
        limit: Its limit of GPUs; None for no limit.
        taints: Taints of its nodes.
        labels: Labels of its nodes.
    """
    terms = {"karpenter.sh/capacity-type": market, "node.kubernetes.io/instance-type": RENTED_TYPE}
    requirements = [{"key": key, "operator": "In", "values": [value]} for key, value in terms.items()]
    node_class = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
    template = {"requirements": requirements, "nodeClassRef": node_class, "taints": list(taints)}
    spec: Json = {"template": {"metadata": {"labels": labels or {}}, "spec": template}}
    spec["disruption"] = {"consolidateAfter": "Never"}
    if limit is not None:
        spec["limits"] = {"nvidia.com/gpu": str(limit)}
    return {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": name}, "spec": spec}


def rented_pool(centre: DataCentre, name: str, market: str, *, max_nodes: int, price: int) -> Json:
    """Return the policy of a pool that Evenkeel may rent from; `price` is in micro-dollars per node hour."""
    return {
        "name": name,
        "cluster": centre.cluster.eks_cluster_name,
        "market": market,
        "instanceType": RENTED_TYPE,
        "zone": "us-west-2a",
        "acceleratorsPerNode": 8,
        "maxNodes": max_nodes,
        "microsPerNodeHour": price,
        "launch": {"p50Seconds": 2, "p90Seconds": 4},
        "place": {},
    }


@dataclass
class DrillResult:
    """The result of a drill: its checks, with the observations."""

    drill: str
    seed: int
    job_id: str = ""
    incident_id: str = ""
    checks: list[tuple[str, bool, str]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    figures: dict[str, str] = field(default_factory=dict)
    """Figures for people."""

    @property
    def is_ok(self) -> bool:
        return bool(self.checks) and all(ok for _, ok, _ in self.checks)

    def check(self, name: str, ok: bool, detail: str) -> None:
        self.checks.append((name, ok, detail))

    def failures(self) -> list[str]:
        return [f"{name}: {detail}" for name, ok, detail in self.checks if not ok]


class DrillTimeoutError(AssertionError):
    """The data centre did not reach an awaited state in time."""


def wait_for(state: str, seconds: float, probe: Callable[[], Any]) -> Any:
    """Call `probe` until it returns a true value, and return that value.

    Later calls are less frequent: they take time from the processes under test.

    Raises:
        DrillTimeoutError: the wait timed out.
    """
    deadline = time.monotonic() + seconds
    pause = POLL_SECONDS / 4
    while True:
        value = probe()
        if value:
            return value
        if time.monotonic() > deadline:
            raise DrillTimeoutError(f"waited {seconds:.0f} s for {state}")
        time.sleep(pause)
        pause = min(2 * POLL_SECONDS, pause * 1.3)


def last_step(client: ApiClient, job_id: str) -> int:
    """Return the newest step in rank 0's log; 0 before the first step."""
    try:
        log = client.get(f"/jobs/{job_id}/logs", rank=0, tail=5)["text"]
    except CommandFailed:
        return 0
    steps = [int(line["step"]) for line in _json_lines(log) if line.get("event") == "step"]
    return max(steps, default=0)


def node_of_rank(centre: DataCentre, job: dict[str, Any], rank: int) -> str:
    """Wait until a rank of the job's current attempt has a node; return the node's name."""
    name = re.compile(_pod_name(f"{job['jobId']}-a{job['currentAttempt']}", WorkloadKind(job["kind"]), rank))

    def bound() -> str:
        pods = centre.cluster.control("GET", "pods")["pods"]
        return next((str(pod["node"]) for pod in pods if name.fullmatch(pod["name"]) and pod["node"]), "")

    return str(wait_for(f"a node of {name.pattern}", JOB_SECONDS, bound))


def _pod_name(workload: str, kind: WorkloadKind, rank: int) -> str:
    """Return the pattern of the name of a rank's pod."""
    match kind:
        case WorkloadKind.JOB:
            return rf"{workload}-{rank}-\w+"
        case WorkloadKind.JOB_SET:
            return rf"{workload}-ranks-0-{rank}-\w+"
        case WorkloadKind.PYTORCH_JOB:
            return f"{workload}-worker-{rank}"
        case WorkloadKind.HYPERPOD_PYTORCH_JOB:
            return f"{workload}-ranks-{rank}"


def await_all_nodes_ready(client: ApiClient, centre: DataCentre) -> None:
    """Wait until every node is schedulable."""
    node_count = centre.node_count

    def all_schedulable() -> bool:
        nodes = client.get("/nodes", pageSize=200)["items"]
        return sum(1 for node in nodes if _is_schedulable(node)) >= node_count

    wait_for(f"{node_count} schedulable nodes", FLEET_SECONDS, all_schedulable)


def _is_schedulable(node: dict[str, Any]) -> bool:
    return bool(node["isReady"] and not node["isCordoned"] and not node["isAwaitingValidation"])


def _json_lines(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        try:
            document = json.loads(line)
        except ValueError:
            continue
        if isinstance(document, dict):
            yield document


@dataclass(frozen=True)
class RepairCounters:
    """Number of accepted Replace calls of each node, as the provider counted them."""

    replaces: dict[str, int]

    @classmethod
    def read(cls, centre: DataCentre) -> RepairCounters:
        return cls(dict(centre.cluster.control("GET", "counters")["accepted"].get("replace", {})))


def dead_letter_counts(centre: DataCentre) -> dict[str, int]:
    """Return the number of messages of each dead-letter queue that is not empty."""
    sqs = centre.deployer.client("sqs")
    counts = {}
    for queue in DEAD_LETTER_QUEUES:
        name = "ApproximateNumberOfMessages"
        answer = sqs.get_queue_attributes(QueueUrl=centre.outputs[queue], AttributeNames=[name])
        if count := int(answer["Attributes"][name]):
            counts[queue.removesuffix("Url")] = count
    return counts


def read_object(centre: DataCentre, uri: str, key: str) -> bytes | None:
    """Read an object below a checkpoint URI; None if it does not exist."""
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    try:
        answer = centre.deployer.client("s3").get_object(Bucket=bucket, Key=f"{prefix}/{key}")
    except ClientError as error:
        if error.response["Error"]["Code"] in ("NoSuchKey", "404"):
            return None
        raise
    return bytes(answer["Body"].read())
