"""The composition root: it builds the adapter of each port on first use."""

import contextlib
import gc
import importlib.resources
import os
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from evenkeel.domain.policy import Policy, PolicyInForce
from evenkeel.ports import (
    CapacityReservations,
    Chat,
    CheckpointStore,
    Clock,
    Cluster,
    CycleRequests,
    DeadLetters,
    EventBus,
    Ids,
    Inbox,
    Ledger,
    NodeGroups,
    OnCall,
    Provider,
    RawEvents,
    Table,
    UtilizationMetrics,
    WaitAnswerRequests,
    WorkflowName,
    Workflows,
)
from evenkeel.runtime.settings import BadSetting, Settings
from evenkeel.runtime.site_policy import SitePolicy
from evenkeel.runtime.telemetry import LambdaTelemetry
from evenkeel.services.context import Context

if TYPE_CHECKING:
    from evenkeel.adapters.stepfunctions import StepFunctionsTaskTokens


_OBJECTS_PER_COLLECTION = 500_000
"""New objects after which the collector of reference cycles runs. A scheduling cycle over 100 queues holds about
250,000: the collector would traverse them, and free almost none."""


class Ports:
    """All ports of a function. Each is built on first use and kept as long as the container lives.

    A port that is given by keyword replaces its adapter. Tests and offline tools use this.
    """

    def __init__(self, settings: Settings, **ports: Any) -> None:
        self.settings = settings
        if "policy" in ports:
            ports["policies"] = SitePolicy(ports.pop("policy"), None, self)
        unknown = [name for name in ports if not isinstance(getattr(type(self), name, None), cached_property)]
        if unknown:
            raise TypeError(f"there is no port {', '.join(unknown)}")
        self.__dict__.update(ports)

    def context(self, **values: Any) -> Context:
        """Return a context with these ports and the current time. `values` replaces attributes."""
        settings = self.settings
        return Context(self, **{"site": settings.site, "mode": settings.mode, "now": self.clock.now(), **values})

    @property
    def policy(self) -> Policy:
        """The policy in force now."""
        return self.policies.current_policy()

    @property
    def policy_in_force(self) -> PolicyInForce:
        """The policy in force now, if any, and why the site's last change is not in force."""
        return self.policies.in_force()

    @cached_property
    def policies(self) -> SitePolicy:
        base = load_policy(self.settings.policy_name)
        settings = self.settings
        if settings.incidents_table:
            return SitePolicy(base, Table.INCIDENTS, self)
        return SitePolicy(base, Table.JOBS if settings.jobs_table else None, self)

    @cached_property
    def clock(self) -> Clock:
        from evenkeel.adapters.system import SystemClock

        return SystemClock()

    @cached_property
    def ids(self) -> Ids:
        from evenkeel.adapters.system import RandomIds

        return RandomIds()

    @cached_property
    def telemetry(self) -> LambdaTelemetry:
        return LambdaTelemetry(self.settings)

    @cached_property
    def ledger(self) -> Ledger:
        from evenkeel.adapters.dynamo_ledger import DynamoLedger

        return DynamoLedger({table: name for name, table in self.table_names.items()})

    @property
    def table_names(self) -> dict[str, Table]:
        """The tables of this function, by name."""
        names = {
            Table.JOBS: self.settings.jobs_table,
            Table.INCIDENTS: self.settings.incidents_table,
            Table.FLEET: self.settings.fleet_table,
            Table.QUOTAS: self.settings.quotas_table,
        }
        return {name: table for table, name in names.items() if name}

    @cached_property
    def cluster(self) -> Cluster:
        from evenkeel.adapters.cluster import KubernetesCluster
        from evenkeel.adapters.eks import EksConnections

        return KubernetesCluster(EksConnections(self.settings.region), fleet=self.settings.fleet)

    @cached_property
    def provider(self) -> Provider:
        if not self.settings.hyperpod_cluster_arn:
            from evenkeel.adapters.null_provider import NullProvider

            return NullProvider()
        from evenkeel.adapters.hyperpod import HyperPodProvider

        return HyperPodProvider(self.settings.hyperpod_cluster_arn)

    @cached_property
    def node_groups(self) -> NodeGroups:
        from evenkeel.adapters.autoscaling import AutoScalingNodeGroups

        return AutoScalingNodeGroups()

    @cached_property
    def capacity_reservations(self) -> CapacityReservations:
        from evenkeel.adapters.capacity_reservations import Ec2CapacityReservations

        return Ec2CapacityReservations()

    @cached_property
    def utilization_metrics(self) -> UtilizationMetrics:
        from evenkeel.adapters.container_insights import ContainerInsights

        return ContainerInsights()

    @cached_property
    def checkpoints(self) -> CheckpointStore:
        from evenkeel.adapters.s3_checkpoints import S3Checkpoints

        return S3Checkpoints()

    @cached_property
    def workflows(self) -> Workflows:
        from evenkeel.adapters.stepfunctions import StepFunctionsWorkflows

        arns = {
            WorkflowName.RECOVER_NODE: self.settings.recover_node_arn,
            WorkflowName.RUN_JOB: self.settings.run_job_arn,
            WorkflowName.BURST_CAPACITY: self.settings.burst_capacity_arn,
        }
        return StepFunctionsWorkflows({workflow: arn for workflow, arn in arns.items() if arn})

    @cached_property
    def task_tokens(self) -> "StepFunctionsTaskTokens":
        from evenkeel.adapters.stepfunctions import StepFunctionsTaskTokens

        return StepFunctionsTaskTokens()

    @cached_property
    def wait_answers(self) -> WaitAnswerRequests:
        from evenkeel.adapters.messages import LambdaWaitAnswerRequests

        return LambdaWaitAnswerRequests(self.settings.need("resolve_wait_function"))

    @cached_property
    def cycle_requests(self) -> CycleRequests:
        from evenkeel.adapters.messages import SqsCycleRequests

        return SqsCycleRequests(self.settings.need("cycles_queue_url"))

    @cached_property
    def on_call(self) -> OnCall:
        from evenkeel.adapters.messages import SnsOnCall

        return SnsOnCall(self.settings.need("page_topic_arn"), self.settings.fleet)

    @cached_property
    def event_bus(self) -> EventBus:
        from evenkeel.adapters.messages import EventBridgeBus

        return EventBridgeBus(self.settings.need("event_bus_name"))

    @cached_property
    def chat(self) -> Chat:
        from evenkeel.adapters.messages import SnsChat

        return SnsChat(self.settings.need("chat_topic_arn"))

    @cached_property
    def raw_events(self) -> RawEvents:
        from evenkeel.adapters.messages import S3RawEvents

        return S3RawEvents(self.settings.need("raw_events_bucket"))

    @cached_property
    def inbox(self) -> Inbox:
        from evenkeel.adapters.messages import SqsInbox

        return SqsInbox(self.settings.need("events_queue_url"))

    @cached_property
    def dead_letters(self) -> DeadLetters:
        from evenkeel.adapters.messages import SqsDeadLetters

        return SqsDeadLetters(self.settings.need("dead_letter_queue_url"))


def load_policy(name: str) -> Policy:
    """Read a policy from the Lambda layer.

    Raises:
        BadSetting: The layer has no policy of this name.
    """
    file = importlib.resources.files("evenkeel").joinpath("policy", f"{name}.json")
    if not file.is_file():
        raise BadSetting(f"EVENKEEL_POLICY={name!r}: there is no such policy")
    return Policy.model_validate_json(file.read_bytes())


_container_ports: list[Ports] = []


def ports() -> Ports:
    """Return the ports of this container."""
    if not _container_ports:
        collect_less_garbage()
        _container_ports.append(Ports(Settings.from_environment(os.environ)))
    return _container_ports[-1]


def collect_less_garbage() -> None:
    """Let the collector of cycles run rarely, and skip all present objects.

    Almost everything here is freed by its reference count: a cycle or a sweep leaves a few hundred objects. With
    Python's default limits, the collector takes half of the time that parsing a long list takes.
    """
    gc.freeze()
    gc.set_threshold(_OBJECTS_PER_COLLECTION, 2, 20)
    gc.enable()


def context() -> Context:
    """Return the context for one call of a service, with the current time."""
    return ports().context()


def context_to_show() -> Context:
    """Return the context for an answer that only shows facts, even while no policy is in force."""
    present_ports = ports()
    return present_ports.context(policy=present_ports.policies.policy_to_show())


@contextlib.contextmanager
def use_ports(another: Ports) -> Iterator[Ports]:
    """Make `ports()` return other ports inside the `with` block."""
    _container_ports.append(another)
    try:
        yield another
    finally:
        _container_ports.remove(another)
