"""What a user asks for: the specification of a job."""

from enum import StrEnum

from evenkeel.domain.capacity.compatibility import Requirements
from evenkeel.domain.capacity.pool_choices import PoolChoice, Toleration
from evenkeel.domain.elastic.sizes import Sizes
from evenkeel.domain.values import Instant, Value

DEFAULT_TEAM = "default"


class OnNodeFault(StrEnum):
    """What to do with a job when one of its nodes becomes faulty, if the fault leaves the choice."""

    MOVE = "move"
    """Stop the job with its grace period, then resume it on other nodes."""
    FINISH = "finish"
    """Only cordon the node; the job runs to its end."""


class SecretKey(Value):
    """Reference to one value of a Kubernetes Secret in the job's namespace. Evenkeel never reads the value."""

    secret: str
    key: str


class ElasticSpec(Value):
    """The node counts that an elastic job can run at."""

    min_nodes: int
    max_nodes: int
    step: int | None = None
    """Distance between sizes, from `min_nodes` up; 1 if neither this nor `sizes` is given."""
    sizes: tuple[int, ...] = ()
    """The allowed node counts, instead of a step."""


class JobSpec(Value):
    """Specification of a job as the user submitted it. The API validates it; it is stored unchanged."""

    name: str
    team: str = DEFAULT_TEAM
    priority_class: str = ""
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    secret_env: dict[str, SecretKey] = {}
    """Environment variables whose values come from Secrets."""
    nodes: int = 1
    """Requested nodes, one pod per node. Each attempt of an elastic job records its own number."""
    elastic: ElasticSpec | None = None
    """None if the job runs at one size only."""
    accelerators_per_node: int = 8
    instance_types: tuple[str, ...] = ()
    """Empty = any."""
    checkpoint_uri: str = ""
    """`s3://bucket/prefix`, or `file:///folder/…` on `checkpoint_claim`; empty = the job keeps no checkpoints."""
    checkpoint_claim: str = ""
    """PersistentVolumeClaim that holds a `file:///` URI. It is mounted at the first folder of the URI's path."""
    grace_seconds: int = 30
    """terminationGracePeriodSeconds of its pods: time for a last checkpoint."""
    max_restarts: int | None = None
    """Application restarts; None = the policy's."""
    deadline_at: Instant | None = None
    """When the job must be finished. It does not change the queue order, but may cause renting or avoid spot nodes."""
    on_node_fault: OnNodeFault = OnNodeFault.MOVE
    labels: dict[str, str] = {}
    job_type: str = ""
    """Job type whose template filled the omitted fields; empty = none."""
    pools: tuple[PoolChoice, ...] = ()
    """Pools where the job may run, in order of preference, from its job type; empty = any pool."""
    tolerations: tuple[Toleration, ...] = ()
    """Tolerations from the job type."""
    requires: Requirements = Requirements()
    """What every node of the job must provide."""

    @property
    def keeps_checkpoints_in_cluster(self) -> bool:
        """Whether the checkpoints are on mounted storage that only the job's pods can read."""
        return self.checkpoint_uri.startswith("file://")

    @property
    def sizes(self) -> Sizes | None:
        """The sizes that an elastic job can have; None if it is not elastic."""
        found = self.elastic
        if found is None:
            return None
        return Sizes(least=found.min_nodes, most=found.max_nodes, step=found.step, discrete=found.sizes)
