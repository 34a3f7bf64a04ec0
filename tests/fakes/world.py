"""All fakes, under the names of the ports."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evenkeel.domain.policy import Policy, PolicyInForce
from evenkeel.domain.policy_section import Mode
from evenkeel.runtime.settings import Settings
from evenkeel.runtime.wiring import Ports
from evenkeel.services.context import Context, Site
from tests.fakes.capacity_reservations import InMemoryCapacityReservations
from tests.fakes.checkpoints import InMemoryCheckpoints
from tests.fakes.cluster import CLUSTER, FakeCluster, a_node
from tests.fakes.ledger import InMemoryLedger
from tests.fakes.messages import (
    InMemoryDeadLetters,
    InMemoryInbox,
    InMemoryRawEvents,
    RecordingBus,
    RecordingChat,
    RecordingCycleRequests,
    RecordingOnCall,
    RecordingWaitAnswerRequests,
)
from tests.fakes.node_groups import InMemoryNodeGroups
from tests.fakes.provider import FakeProvider, a_provider_node
from tests.fakes.system import A_MOMENT, FixedClock, RecordingTelemetry, SequenceIds
from tests.fakes.utilization import InMemoryUtilization
from tests.fakes.workflows import RecordingTaskTokens, RecordingWorkflows

CLUSTER_ARN = "arn:aws:sagemaker:us-west-2:111122223333:cluster/k3v9x2m7q1ab"
"""The fleet's HyperPod cluster; the sample events are about it."""


SHIPPED_POLICY = Policy()

A_SITE = Site(
    fleet="research",
    clusters=(CLUSTER,),
    hyperpod_cluster_arn=CLUSTER_ARN,
    job_namespace="evenkeel-jobs",
    job_service_account="trainer",
)


def a_context(ports: Any = None, **given: Any) -> Context:
    """Return a context of the given ports, in mode `act`. A port that is not given is an error when it is used.

    Args:
        ports: An object with the ports as attributes.
        given: Attributes of `Context`, or fields of its `Site`.
    """
    site = A_SITE.replace(**{name: given.pop(name) for name in Site.model_fields if name in given})
    return Context(ports, **{"site": site, "mode": Mode.ACT, "now": A_MOMENT, "policy": SHIPPED_POLICY, **given})


@dataclass
class FakeWorld:
    """A fleet with fakes of all ports; by default four healthy nodes without any event."""

    size: int = 4
    runs_at_once: bool = False
    policy: Policy = SHIPPED_POLICY

    def __post_init__(self) -> None:
        self.clock = FixedClock()
        self.ids = SequenceIds()
        self.ledger = InMemoryLedger()
        numbers = range(1, self.size + 1)
        self.cluster = FakeCluster(self.clock, *map(a_node, numbers), runs_at_once=self.runs_at_once)
        self.node_groups = InMemoryNodeGroups()
        self.capacity_reservations = InMemoryCapacityReservations()
        self.utilization_metrics = InMemoryUtilization()
        self.provider = FakeProvider(self.clock, *map(a_provider_node, numbers), kubernetes=self.cluster)
        self.checkpoints = InMemoryCheckpoints()
        self.workflows = RecordingWorkflows()
        self.task_tokens = RecordingTaskTokens()
        self.wait_answers = RecordingWaitAnswerRequests()
        self.cycle_requests = RecordingCycleRequests()
        self.on_call = RecordingOnCall()
        self.event_bus = RecordingBus()
        self.chat = RecordingChat()
        self.raw_events = InMemoryRawEvents()
        self.dead_letters = InMemoryDeadLetters()
        self.inbox = InMemoryInbox()
        self.telemetry = RecordingTelemetry()

    @property
    def policy_in_force(self) -> PolicyInForce:
        return PolicyInForce(self.policy, 0, "")

    def context(self, **given: Any) -> Context:
        """Return a context of these ports, with this policy, at this moment. `given` replaces ports, policy or site."""
        return a_context(self, **{"policy": self.policy, "now": self.clock.now(), **given})

    def as_ports(self, environment: Mapping[str, str] | None = None) -> Ports:
        """Return the ports for handlers, made of these fakes: `with wiring.use_ports(fake.as_ports()): handler(…)`."""
        variables = {
            "EVENKEEL_FLEET": "research",
            "KUBERNETES_CLUSTERS": CLUSTER,
            "HYPERPOD_CLUSTER_ARN": CLUSTER_ARN,
            "EVENKEEL_MODE": "act",
        }
        ports = {name: port for name, port in vars(self).items() if name not in ("size", "runs_at_once")}
        return Ports(Settings.from_environment({**variables, **(environment or {})}), **ports)
