"""Measures the time from an event on the bus to an unschedulable node in each lane, and restores the node."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from bench.node_watch import NodeWatch, admin_api
from evenkeel_local.data_centre import DataCentre, Say
from evenkeel_local.deployment import Outputs, deploy, stack_resources
from evenkeel_local.identities import make_user

HEALTH_EVENT: Final = "SageMaker HyperPod Cluster Node Health Event"
STACK: Final = "bench"
TEMPLATE: Final = Path(__file__).parent / "yardsticks" / "template.yaml"
CORDON_SECONDS: Final = 30.0
RESTORED_SECONDS: Final = 60.0
EXECUTION_SECONDS: Final = 60.0
CLIENTS: Final = "CLIENTS"
"""Variable of the yardsticks' functions, see `yardsticks/functions/libraries.py`."""
_POLL_SECONDS: Final = 0.05
_CLOCK_GRAIN_SECONDS: Final = 0.002
"""The engine writes instants in whole milliseconds."""


class BenchFailed(Exception):
    """A measurement failed. The message names the awaited state."""


@dataclass(frozen=True)
class Sample:
    """Times of one event, from the bus to the node."""

    lane: str
    node: str
    event_id: str
    sent_at: float
    """Wall clock when the event was sent to the bus."""
    accept_seconds: float
    """Until the bus accepted the event."""
    seconds: float
    """From the same moment until a watcher of the Kubernetes API saw the node unschedulable."""
    execution: str = ""
    """Name of the workflow's execution; empty in a lane without a workflow."""
    marks: Mapping[str, float] = field(default_factory=dict)
    """Seconds after `sent_at` at which the workflow began, and entered and left each state that cordons."""

    @property
    def pause_seconds(self) -> float:
        """Return the fixed pause of the engine between the start of the workflow and its first state."""
        return self.marks["entered PlanRecovery"] - self.marks["started"] if self.marks else 0.0

    @property
    def moving_seconds(self) -> float:
        """Return the seconds without that pause."""
        return self.seconds - self.pause_seconds


@dataclass(frozen=True)
class BenchNode:
    """A schedulable node."""

    name: str
    instance_id: str


class CordonTimer:
    """Times the lanes on one fleet and one event bus."""

    def __init__(self, centre: DataCentre, watch: NodeWatch) -> None:
        self.centre = centre
        self._watch = watch
        self._admin = admin_api(centre.cluster)
        sender = [{"Effect": "Allow", "Action": "events:PutEvents", "Resource": "*"}]
        self._bus = make_user(centre.deployer, "aws-bench", sender).client("events")
        self._states = centre.deployer.client("stepfunctions")
        self._functions = centre.deployer.client("lambda")
        self._timed = 0

    def deploy_yardsticks(self, say: Say) -> Outputs:
        """Deploy the lanes without the product to the same engine."""
        centre = self.centre
        layers = [arn for name, arn in stack_resources(centre.deployer).items() if name.startswith("EvenkeelLayer")]
        outputs = deploy(
            centre.engine,
            centre.deployer,
            {
                "Layer": layers[0],
                "KubernetesCluster": centre.cluster.eks_cluster_name,
                "EksEndpoint": centre.cluster.eks_url,
            },
            TEMPLATE,
            centre.run_dir / "yardsticks",
            stack_name=STACK,
            progress=lambda text: say(f"yardsticks: {text}"),
        )
        centre.cluster.put_access_entry(outputs["CordonRoleArn"], ["evenkeel:cordoners"])
        return outputs

    def next_node(self) -> BenchNode:
        """Wait until every node is schedulable and no workflow runs; return the next node of the cyclic order."""
        nodes = self._await_restored()
        self._timed += 1
        return nodes[self._timed % len(nodes)]

    def time_cordon(self, lane: str, source: str, node: BenchNode) -> Sample:
        """Send one node-health event to the bus and wait until the node is unschedulable.

        Raises:
            BenchFailed: The node did not become unschedulable in time.
        """
        cluster = self.centre.cluster
        detail = {
            "ClusterName": cluster.cluster_name,
            "ClusterArn": cluster.cluster_arn,
            "InstanceId": node.instance_id,
            "NodeName": node.name,
            "Tags": {},
            "HealthSummary": {
                "HealthStatus": "Unhealthy",
                "HealthStatusReason": "HyperPod Health Monitoring Agent (HMA) has detected fault type "
                "NvidiaErrorTerminate on this node and is unhealthy.",
                "RepairAction": "None",
                "Recommendation": "Please Replace the Faulty Node.",
            },
        }
        entry = {"Source": source, "DetailType": HEALTH_EVENT, "Detail": json.dumps(detail)}
        wall, began = time.time(), time.perf_counter()
        answer = self._bus.put_events(Entries=[entry])
        accepted = time.perf_counter()
        if answer["FailedEntryCount"]:
            raise BenchFailed(f"the bus refused an event: {answer['Entries'][0]}")
        cordoned_at = self._watch.cordoned_at(node.name, CORDON_SECONDS)
        if cordoned_at is None:
            raise BenchFailed(f"lane {lane}: {node.name} was not cordoned within {CORDON_SECONDS:.0f} s")
        return Sample(lane, node.name, answer["Entries"][0]["EventId"], wall, accepted - began, cordoned_at - began)

    def with_execution(self, sample: Sample, machine_arn: str) -> Sample:
        """Wait for the end of the workflow that an event started; return the sample with the marks of its history.

        Raises:
            BenchFailed: The workflow failed, or did not end in time.
        """

        def ended() -> dict[str, Any] | None:
            newest = self._states.list_executions(stateMachineArn=machine_arn, maxResults=5)["executions"]
            executions = [
                execution
                for execution in newest
                if execution["startDate"].timestamp() >= sample.sent_at - _CLOCK_GRAIN_SECONDS
            ]
            return executions[0] if executions and executions[0]["status"] != "RUNNING" else None

        execution = await_true(f"the execution after lane {sample.lane}", EXECUTION_SECONDS, ended)
        if execution["status"] != "SUCCEEDED":
            raise BenchFailed(f"lane {sample.lane}: execution {execution['name']} ended {execution['status']}")
        history = self._states.get_execution_history(executionArn=execution["executionArn"], maxResults=40)["events"]
        marks = {mark: at - sample.sent_at for mark, at in _history_marks(history)}
        return replace(sample, execution=execution["name"], marks=marks)

    def chill(self, functions: Iterable[str], clients: Mapping[str, str]) -> None:
        """Make the next call of each function a cold start: the engine ends the workers of a changed function.

        Args:
            functions: The names of the functions.
            clients: By function, the clients of the lane `libraries`; empty for all other lanes.
        """
        for name in functions:
            variables = self._functions.get_function_configuration(FunctionName=name)["Environment"]["Variables"]
            variables.pop(CLIENTS, None)
            if name in clients:
                variables[CLIENTS] = clients[name]
            self._functions.update_function_configuration(FunctionName=name, Environment={"Variables": variables})

    def uncordon(self, node: BenchNode) -> None:
        self._admin.patch(f"/api/v1/nodes/{node.name}", {"spec": {"unschedulable": None}})

    def _await_restored(self) -> list[BenchNode]:
        def restored() -> list[BenchNode] | None:
            listed = self.centre.cluster.nodes()
            fit = [node for node in listed if _is_schedulable(node)]
            return [BenchNode(node["name"], node["instanceId"]) for node in fit] if len(fit) == len(listed) else None

        nodes: list[BenchNode] = await_true("every node to be schedulable", RESTORED_SECONDS, restored)
        return sorted(nodes, key=lambda node: node.name)


def _history_marks(history: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    for event in history:
        at = event["timestamp"].timestamp()
        if event["type"] == "ExecutionStarted":
            yield "started", at
        for kind, details in (("entered", "stateEnteredEventDetails"), ("left", "stateExitedEventDetails")):
            if details in event and event[details]["name"] in ("PlanRecovery", "CordonNode"):
                yield f"{kind} {event[details]['name']}", at


def await_true(what: str, seconds: float, probe: Callable[[], Any]) -> Any:
    """Call the probe until it returns a true value; return that value.

    Raises:
        BenchFailed: The probe returned no true value in time.
    """
    deadline = time.monotonic() + seconds
    while not (answer := probe()):
        if time.monotonic() > deadline:
            raise BenchFailed(f"waited {seconds:.0f} s for {what}")
        time.sleep(_POLL_SECONDS)
    return answer


def _is_schedulable(node: dict[str, Any]) -> bool:
    return node["ready"] == "True" and not node["unschedulable"] and not node["taints"] and node["status"] == "Running"
