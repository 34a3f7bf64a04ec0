"""What a user asks for: the specification of a job."""

from enum import StrEnum

from evenkeel.domain.capacity.compatibility import Requirements
from evenkeel.domain.capacity.pool_choices import PoolChoice, Toleration
from evenkeel.domain.elastic.sizes import Sizes
from evenkeel.domain.values import Instant, Value

DEFAULT_TEAM = "default"


class OnNodeFault(StrEnum):
    """What a job wants when a node of its sickens, where the fault leaves the choice."""

    MOVE = "move"
    """Stop it, with its grace to save, and run it on elsewhere."""
    FINISH = "finish"
    """Cordon only: let it run to its end."""


class SecretKey(Value):
    """One value of a Kubernetes Secret in the job's namespace: what it is, only the cluster knows."""

    secret: str
    key: str


class ElasticSpec(Value):
    """At how many nodes a job can run, beside the number that it asks for."""

    min_nodes: int
    max_nodes: int
    step: int | None = None
    """From `min_nodes` on; 1 where neither this nor `sizes` is given."""
    sizes: tuple[int, ...] = ()
    """The only numbers of nodes, in place of a step."""


class JobSpec(Value):
    """What a researcher asked for. Validated at the API; stored as given."""

    name: str
    team: str = DEFAULT_TEAM
    priority_class: str = ""
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    secret_env: dict[str, SecretKey] = {}
    """Variables whose values are secrets, by reference alone."""
    nodes: int = 1
    """Pods of the gang, one a node; of an elastic job those that it asks for, and each attempt has its own."""
    elastic: ElasticSpec | None = None
    """None where it runs at one size only."""
    accelerators_per_node: int = 8
    instance_types: tuple[str, ...] = ()
    """Empty = any."""
    checkpoint_uri: str = ""
    """`s3://bucket/prefix`, or `file:///folder/…` on `checkpoint_claim`; empty = it starts again from nothing."""
    checkpoint_claim: str = ""
    """PersistentVolumeClaim that holds a `file:///` URI. It is mounted at the first folder of the URI's path."""
    grace_seconds: int = 30
    """terminationGracePeriodSeconds of its pods: time for a last checkpoint."""
    max_restarts: int | None = None
    """Application restarts; None = the policy's."""
    deadline_at: Instant | None = None
    """When it is to be done. It is no place in the queue: it may have nodes rented, and keeps it off spot."""
    on_node_fault: OnNodeFault = OnNodeFault.MOVE
    labels: dict[str, str] = {}
    job_type: str = ""
    """Whose template filled what was left out; empty = none did."""
    pools: tuple[PoolChoice, ...] = ()
    """Where it may run, in this order, as its type has it; empty = anywhere."""
    tolerations: tuple[Toleration, ...] = ()
    """As its type has them."""
    requires: Requirements = Requirements()
    """What its machines must have, wherever they are."""

    @property
    def keeps_checkpoints_in_cluster(self) -> bool:
        """Whether its checkpoints lie on mounted storage, where only its own pods can look."""
        return self.checkpoint_uri.startswith("file://")

    @property
    def sizes(self) -> Sizes | None:
        """The sizes that an elastic job can have; None where it runs at one only."""
        found = self.elastic
        if found is None:
            return None
        return Sizes(least=found.min_nodes, most=found.max_nodes, step=found.step, discrete=found.sizes)
