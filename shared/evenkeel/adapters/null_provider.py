"""The port Provider for a fleet without HyperPod."""

from datetime import datetime

from evenkeel.domain.capacity.training_plans import TrainingPlan
from evenkeel.domain.nodes import ProviderCluster, ProviderNode
from evenkeel.domain.recovery.repair_requests import RepairAnswer
from evenkeel.ports import NotFound


class NullProvider:
    """A provider without a cluster and without nodes."""

    def cluster(self) -> ProviderCluster:
        raise NotFound("this fleet has no HyperPod cluster")

    def training_plan(self, arn: str) -> TrainingPlan:
        raise NotFound(f"this fleet has no training plan {arn}")

    def nodes(self) -> tuple[ProviderNode, ...]:
        return ()

    def node(self, instance_id: str) -> ProviderNode | None:  # noqa: ARG002 - the port's name
        return None

    def node_in_slot(self, logical_id: str) -> ProviderNode | None:  # noqa: ARG002 - the port's name
        return None

    def nodes_launched_after(self, at: datetime) -> tuple[ProviderNode, ...]:  # noqa: ARG002 - the port's name
        return ()

    def reboot(self, instance_id: str) -> RepairAnswer:  # noqa: ARG002 - the port's name
        return RepairAnswer.NO_SUCH_NODE

    def replace(self, instance_id: str) -> RepairAnswer:  # noqa: ARG002 - the port's name
        return RepairAnswer.NO_SUCH_NODE

    def check_health(self, instance_group: str, instance_id: str) -> RepairAnswer:  # noqa: ARG002 - the port's names
        return RepairAnswer.NO_SUCH_NODE
