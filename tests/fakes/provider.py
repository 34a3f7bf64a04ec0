"""The HyperPod control plane: machines with node lives and slots, and a record of every accepted call."""

import itertools
from collections import Counter, deque
from datetime import datetime
from typing import Any

from evenkeel.domain.capacity.training_plans import TrainingPlan
from evenkeel.domain.nodes import ProviderCluster, ProviderNode
from evenkeel.domain.recovery.repair_requests import RepairAnswer
from evenkeel.domain.recovery.validation import DEEP_CHECK_STATUS
from evenkeel.ports import Unreachable
from tests.fakes.cluster import TAINT_TEXT, FakeCluster, a_node, instance_id
from tests.fakes.system import A_MOMENT, FixedClock

REBOOT, REPLACE = "reboot", "replace"


def a_provider_node(number: int = 1, **changes: Any) -> ProviderNode:
    """Return the provider's record of `a_node(number)`."""
    facts: dict[str, Any] = {
        "instance_id": instance_id(number),
        "logical_id": f"seat-{number}",
        "instance_group": "p5-workers",
        "instance_type": "ml.p5.48xlarge",
        "launched_at": A_MOMENT.replace(hour=8, minute=0, second=0),
        "status": "Running",
    }
    return ProviderNode.model_validate({**facts, **changes})


class FakeProvider:
    """Accepts, refuses or loses repair calls; a test ends a repair.

    With a FakeCluster, both views show the same machines. An accepted call takes the Kubernetes node down. `finish`
    brings the node back, with a new boot id or as a new node life with its taint.
    """

    def __init__(self, clock: FixedClock, *nodes: ProviderNode, kubernetes: FakeCluster | None = None) -> None:
        self.clock = clock
        self.kubernetes = kubernetes
        self.by_id: dict[str, ProviderNode] = {node.instance_id: node for node in nodes}
        self.settings = ProviderCluster(
            name="research-train",
            arn="arn:aws:sagemaker:us-west-2:000000000000:cluster/abcdefghijkl",
            status="InService",
            repairs_by_itself=False,
        )
        self.accepted: list[tuple[str, str]] = []
        """Every call that took effect: (`reboot` or `replace`, instance id)."""
        self.examined: list[str] = []
        """Every deep health check that was accepted."""
        self.asked: list[tuple[str, str]] = []
        """Every call that was made."""
        self.scripted: deque[RepairAnswer] = deque()
        """Answers of the next calls; without effect, but for `lost_replies`."""
        self.lost_replies = 0
        """So many next calls take effect and answer UNKNOWN."""
        self.running: dict[str, str] = {}
        """Running repairs: instance id → rung."""
        self._numbers = itertools.count(101)

        self.plans: dict[str, TrainingPlan] = {}
        """ARN → training plan. A plan that is not listed cannot be read."""

    # ------------------------------------------------------------ the port

    def training_plan(self, arn: str) -> TrainingPlan:
        if arn not in self.plans:
            raise Unreachable(f"training plan {arn} cannot be read")
        return self.plans[arn]

    def cluster(self) -> ProviderCluster:
        return self.settings

    def nodes(self) -> tuple[ProviderNode, ...]:
        return tuple(node for _, node in sorted(self.by_id.items()))

    def node(self, instance_id: str) -> ProviderNode | None:
        return self.by_id.get(instance_id)

    def node_in_slot(self, logical_id: str) -> ProviderNode | None:
        return next((node for node in reversed(self.nodes()) if node.logical_id == logical_id), None)

    def nodes_launched_after(self, at: datetime) -> tuple[ProviderNode, ...]:
        return tuple(node for node in self.nodes() if node.launched_at > at)

    def reboot(self, instance_id: str) -> RepairAnswer:
        return self._ask(REBOOT, instance_id)

    def replace(self, instance_id: str) -> RepairAnswer:
        return self._ask(REPLACE, instance_id)

    def check_health(self, instance_group: str, instance_id: str) -> RepairAnswer:
        node = self.by_id.get(instance_id)
        if node is None or node.status != "Running" or node.instance_group != instance_group:
            return RepairAnswer.NOT_NOW
        self.examined.append(instance_id)
        self.by_id[instance_id] = node.replace(status="DeepHealthCheckInProgress")
        self._label(instance_id, "InProgress")
        return RepairAnswer.ACCEPTED

    # ------------------------------------------------------------ for tests

    def finish_check(self, instance_id: str, *, passed: bool = True) -> None:
        """End the deep health check of a machine."""
        self.by_id[instance_id] = self.by_id[instance_id].replace(status="Running")
        self._label(instance_id, "Passed" if passed else "Failed")

    def _label(self, instance_id: str, check: str) -> None:
        if self.kubernetes and (node := self._seen(instance_id)):
            labels = {**node.labels, DEEP_CHECK_STATUS: check}
            self.kubernetes.set_node(node.name, node.cluster, labels=labels)

    def finish(self, instance_id: str) -> str:
        """End the repair of a machine, and return the id of the instance that now has its slot."""
        rung = self.running.pop(instance_id)
        node = self.by_id[instance_id]
        if rung == REBOOT:
            self.by_id[instance_id] = node.replace(status="Running")
            if self.kubernetes and (seen_node := self._seen(instance_id)):
                self.kubernetes.ready_node(
                    seen_node.name, seen_node.cluster, boot_id=f"{seen_node.boot_id}+", fault_details=""
                )
            return instance_id
        number = next(self._numbers)
        new_node = a_node(number, is_awaiting_validation=True, taints=(TAINT_TEXT,))
        assert new_node.instance_id
        del self.by_id[instance_id]
        self.by_id[new_node.instance_id] = node.replace(
            instance_id=new_node.instance_id, launched_at=self.clock.now(), status="Running"
        )
        if self.kubernetes:
            if seen_node := self._seen(instance_id):
                self.kubernetes.remove_node(seen_node.name, seen_node.cluster)
            self.kubernetes.add_node(new_node.replace(pool=node.instance_group, instance_type=node.instance_type))
        return new_node.instance_id

    def finish_all(self) -> None:
        for machine in list(self.running):
            self.finish(machine)

    def accepted_calls(self, rung: str) -> Counter[str]:
        """Return the number of accepted calls of this rung for each machine."""
        return Counter(machine for kind, machine in self.accepted if kind == rung)

    def _ask(self, rung: str, machine: str) -> RepairAnswer:
        self.asked.append((rung, machine))
        if self.scripted:
            return self.scripted.popleft()
        if machine not in self.by_id:
            return RepairAnswer.NO_SUCH_NODE
        if machine in self.running:
            return RepairAnswer.IN_USE
        self.accepted.append((rung, machine))
        self.running[machine] = rung
        self.by_id[machine] = self.by_id[machine].replace(status="Pending")
        if self.kubernetes and (node := self._seen(machine)):
            if rung == REBOOT:
                self.kubernetes.kill_node(node.name, node.cluster)
            else:
                self.kubernetes.remove_node(node.name, node.cluster)
        if self.lost_replies:
            self.lost_replies -= 1
            return RepairAnswer.UNKNOWN
        return RepairAnswer.ACCEPTED

    def _seen(self, machine: str) -> Any:
        assert self.kubernetes
        return next((node for node in self.kubernetes.by_name.values() if node.instance_id == machine), None)
