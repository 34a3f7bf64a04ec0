"""The inputs of an invocation of a service: ports, policy, mode, the site's settings and the time."""

from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from evenkeel.domain.admission.authority import AdmissionAuthority
from evenkeel.domain.policy import Policy, PolicyInForce
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.values import Value
from evenkeel.ports import (
    CapacityReservations,
    Chat,
    CheckpointStore,
    Clock,
    Cluster,
    CycleRequests,
    EventBus,
    Ids,
    Inbox,
    Key,
    Ledger,
    NodeGroups,
    OnCall,
    PermanentError,
    Provider,
    Row,
    TaskTokens,
    Telemetry,
    UtilizationMetrics,
    WaitAnswerRequests,
    Workflows,
)


class Site(Value):
    """Settings of the deployment for the whole stack."""

    fleet: str = ""
    clusters: tuple[str, ...] = ()
    """Kubernetes clusters. The first is HyperPod's own EKS cluster."""
    hyperpod_cluster_arn: str = ""
    """Empty if the fleet has no HyperPod cluster."""
    drills_may_act: bool = False
    admission: AdmissionAuthority = AdmissionAuthority.EVENKEEL
    job_namespace: str = ""
    """Namespace of jobs whose team has no namespace of its own."""
    job_service_account: str = ""
    operators: tuple[str, ...] = ()
    """ARNs of the roles and users that see the jobs of every team."""
    schedules_are_on: bool = True
    """Whether the stack's scheduled functions are invoked at all."""

    @property
    def default_cluster(self) -> str:
        """The first Kubernetes cluster: a new job belongs to it until a rental moves the job.

        With HyperPod it is HyperPod's EKS cluster.

        Raises:
            PermanentError: the deployment names no Kubernetes cluster.
        """
        if not self.clusters:
            raise PermanentError("KUBERNETES_CLUSTERS is not set, so no cluster can run jobs.")
        return self.clusters[0]

    @property
    def has_hyperpod(self) -> bool:
        return bool(self.hyperpod_cluster_arn)


class Context:
    """The ports, the policy, the mode, the site's settings and the time of one invocation.

    Ports are built, and the policy is read, on first use. So a function pays only for the parts that it needs.
    """

    site: Site
    mode: Mode
    """The mode of the stack; a policy may narrow it per fault class, pool or job."""
    now: datetime
    """Start of the invocation, in UTC. A service that waits within the invocation reads `clock`."""
    policy: Policy
    policy_in_force: PolicyInForce
    """The number of the change in force, and why the last change is not in force. Only for pages."""

    ledger: Ledger
    cluster: Cluster
    provider: Provider
    node_groups: NodeGroups
    capacity_reservations: CapacityReservations
    utilization_metrics: UtilizationMetrics
    checkpoints: CheckpointStore
    workflows: Workflows
    task_tokens: TaskTokens
    wait_answers: WaitAnswerRequests
    cycle_requests: CycleRequests
    on_call: OnCall
    event_bus: EventBus
    chat: Chat
    inbox: Inbox
    clock: Clock
    ids: Ids
    telemetry: Telemetry

    def __init__(self, ports: Any, **values: Any) -> None:
        """Take each attribute from `values`, else from the attribute of `ports` with the same name.

        Raises:
            TypeError: `values` names an attribute that a context does not have.
        """
        unknown_names = values.keys() - type(self).__annotations__.keys()
        if unknown_names:
            raise TypeError(f"a context has no {', '.join(sorted(unknown_names))}")
        self._ports = ports
        self.__dict__.update(values)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Take an attribute from the ports on its first use, and keep it."""
            if name.startswith("_") or name not in type(self).__annotations__:
                raise AttributeError(f"a context has no {name}")
            value = self.__dict__[name] = getattr(self._ports, name)
            return value

    def read_rows(self, *keys: Key) -> tuple[Row | None, ...]:
        """Return the rows of some keys, and read the site's policy in the same round trip if it is due."""
        if "policy" in self.__dict__:
            return self.ledger.batch_get(*keys)
        policy_key = self._ports.policies.due_key()
        if policy_key is None:
            return self.ledger.batch_get(*keys)
        read_at = self.clock.now()
        *answers, policy = self.ledger.batch_get(*keys, policy_key)
        self._ports.policies.use_row(policy, read_at)
        return tuple(answers)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with these attributes replaced. A port that is not built yet is still built on first use."""
        values = {name: value for name, value in vars(self).items() if name != "_ports"}
        return type(self)(self._ports, **{**values, **changes})
