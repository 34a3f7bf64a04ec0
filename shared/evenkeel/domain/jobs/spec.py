"""The specification of a job, as a user submits it."""

from enum import StrEnum
from typing import Annotated

from evenkeel.domain.capacity.compatibility import Requirements
from evenkeel.domain.capacity.network_topology import NetworkLevel, NetworkNeeds
from evenkeel.domain.capacity.pool_choices import PoolChoice, Toleration
from evenkeel.domain.elastic.sizes import Sizes
from evenkeel.domain.elastic.throughput import MAX_POINTS, SizeThroughput
from evenkeel.domain.jobs.pod_rules import MAX_HUGE_PAGES_MIB, MAX_ID
from evenkeel.domain.jobs.volumes import MAX_SCRATCH_FOLDERS, MAX_VOLUMES, ScratchFolder, Volume
from evenkeel.domain.jobs.workload_kind import WorkloadKind
from evenkeel.domain.resources import Resources
from evenkeel.domain.submitted import Submitted
from evenkeel.domain.values import Instant, Value

DEFAULT_TEAM = "default"
MAX_NODES = 1024
MAX_ACCELERATORS_PER_NODE = 128
MAX_CPU_PER_NODE = 1024
MAX_MEMORY_GIB_PER_NODE = 32_768
MAX_GRACE_SECONDS = 3600
MAX_RESTARTS = 100
MAX_EXPECTED_SECONDS = 31_536_000
MAX_ENV = 200
MAX_WORDS = 256
"""Maximum number of words of a command, and of its arguments."""
MAX_TEXT = 32_768
"""Maximum bytes of command, arguments and environment together, as UTF-8."""
MAX_URI = 512
"""Maximum number of characters of a checkpoint URI, which is part of a key of the ledger."""
MAX_INSTANCE_TYPES = 20
MAX_LABELS = 32
MAX_SIZES = 64
MAX_PULL_SECRETS = 8
MAX_MIXED_POOLS = 8
DNS_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_DNS_ADVICE = "Use 1 to 63 lower-case letters, digits and dashes, without a dash at either end."


class OnNodeFault(StrEnum):
    """How to treat a job when one of its nodes becomes faulty, if the fault allows a choice."""

    MOVE = "move"
    """Stop the job with its grace period, then resume it on other nodes."""
    FINISH = "finish"
    """Only cordon the node; the job runs to its end."""


class SecretKey(Value):
    """Reference to a value of a Kubernetes Secret in the job's namespace. Evenkeel never reads the value."""

    secret: Annotated[str, Submitted(max_length=253)]
    """Name of the Secret."""
    key: Annotated[str, Submitted(max_length=253)]
    """Key in the Secret."""


class ElasticSpec(Value):
    """The node counts that an elastic job can run at."""

    min_nodes: Annotated[int, Submitted(option="--min-nodes", limits=(1, MAX_NODES), unit="nodes")]
    """Minimum number of nodes; makes the job elastic."""
    max_nodes: Annotated[int, Submitted(option="--max-nodes", limits=(1, MAX_NODES), unit="nodes")]
    """Maximum number of nodes; makes the job elastic."""
    step: Annotated[int | None, Submitted(limits=(1, MAX_NODES), unit="nodes")] = None
    """Distance between sizes, from `minNodes` up; 1 if neither this nor `sizes` is given."""
    sizes: Annotated[tuple[int, ...], Submitted(max_items=MAX_SIZES, unit="sizes")] = ()
    """The allowed node counts, instead of a step."""
    throughput: Annotated[tuple[SizeThroughput, ...], Submitted(max_items=MAX_POINTS, unit="sizes")] = ()
    """Throughput at two or more sizes. Evenkeel grows the job only where it rises. Empty: each node adds the same."""
    mixed_pools: Annotated[
        tuple[str, ...],
        Submitted(
            option="--mixed-pool",
            max_length=63,
            max_items=MAX_MIXED_POOLS,
            unit="pools",
            pattern=r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?",
            advice="Name a pool of the policy's burst section.",
        ),
    ] = ()
    """Pools of the policy's burst section whose nodes may join the job's committed nodes. Empty: the nodes of an
    attempt are all committed, or all rented."""


class JobSpec(Value):
    """Specification of a job as the user submitted it. The API validates it; it is stored unchanged.

    `Submitted` declares the fields and limits of a request. The request body, its checks, `openapi.json`, the options
    of `evenkeel jobs submit` and the table of fields in docs/api.md are derived from these fields and their docstrings.
    """

    name: Annotated[
        str, Submitted(option="--name", max_length=63, pattern=DNS_LABEL, advice=_DNS_ADVICE, is_public=True)
    ]
    """Name of the job. Several jobs may have the same name."""
    team: Annotated[
        str,
        Submitted(option="--team", max_length=63, pattern=DNS_LABEL, advice=_DNS_ADVICE, is_public=True, default=""),
    ] = DEFAULT_TEAM
    """Team whose quota the job uses. If omitted, the caller's only team."""
    job_type: Annotated[str, Submitted(option="--type", max_length=63, is_public=True)] = ""
    """Job type; its template sets omitted fields. If omitted, the default type of the site policy, if it has one."""
    kind: Annotated[WorkloadKind, Submitted(option="--kind", is_public=True)] = WorkloadKind.JOB
    """Kind of the Kubernetes object that is created. Each kind but `Job` needs its operator in the cluster."""
    priority_class: Annotated[
        str,
        Submitted(
            option="--class",
            max_length=63,
            pattern=DNS_LABEL,
            advice="Use 1 to 63 lower-case letters, digits and dashes.",
            is_public=True,
        ),
    ] = ""
    """Priority class."""
    image: Annotated[str, Submitted(option="--image", max_length=512)] = ""
    """Container image."""
    command: Annotated[tuple[str, ...], Submitted(max_length=MAX_TEXT, max_items=MAX_WORDS, unit="words")] = ()
    """Command of the container."""
    args: Annotated[tuple[str, ...], Submitted(max_length=MAX_TEXT, max_items=MAX_WORDS, unit="words")] = ()
    """Arguments of the command."""
    env: Annotated[
        dict[str, str],
        Submitted(option="--env", max_length=MAX_TEXT, max_items=MAX_ENV, unit="variables", is_withheld=True),
    ] = {}
    """Environment variables. Reads return only their names, never their values."""
    secret_env: Annotated[dict[str, SecretKey], Submitted(max_items=MAX_ENV, unit="variables")] = {}
    """Environment variables whose values come from Secrets in the job's namespace. Only the cluster sees a value."""
    image_pull_secrets: Annotated[
        tuple[str, ...],
        Submitted(option="--image-pull-secret", max_length=253, max_items=MAX_PULL_SECRETS, unit="Secrets"),
    ] = ()
    """Secrets of the job's namespace with the credentials of the image's registry."""
    volumes: Annotated[
        tuple[Volume, ...], Submitted(option="--volume", max_items=MAX_VOLUMES, unit="volumes", max_length=253)
    ] = ()
    """PersistentVolumeClaims to mount, read-only by default. `readOnly: false`, or `:rw` in `--volume`, lets the pods
    write. The team must allow each claim."""
    scratch: Annotated[
        tuple[ScratchFolder, ...],
        Submitted(option="--scratch", max_items=MAX_SCRATCH_FOLDERS, unit="folders", max_length=253),
    ] = ()
    """Writable folders on the disk of each pod's node. They are deleted with the pod."""
    run_as_user: Annotated[
        int | None,
        Submitted("securityContext.runAsUser", option="--run-as-user", limits=(1, MAX_ID), unit="as a user id"),
    ] = None
    """User id of the processes. Null: 1000. Root is refused."""
    run_as_group: Annotated[
        int | None,
        Submitted("securityContext.runAsGroup", option="--run-as-group", limits=(1, MAX_ID), unit="as a group id"),
    ] = None
    """Group id of the processes. Null: 1000."""
    fs_group: Annotated[
        int | None,
        Submitted("securityContext.fsGroup", option="--fs-group", limits=(1, MAX_ID), unit="as a group id"),
    ] = None
    """Group id that owns mounted volumes. Null: 1000."""
    nodes: Annotated[int, Submitted(option="--nodes", limits=(1, MAX_NODES), unit="nodes", is_public=True)] = 1
    """Nodes of the gang, one pod each. Each attempt of an elastic job records its own number."""
    elastic: Annotated[ElasticSpec | None, Submitted(is_public=True)] = None
    """The node counts that an elastic job can run at. Null: the job runs at one size only."""
    accelerators_per_node: Annotated[
        int,
        Submitted(
            "gpusPerNode",
            option="--gpus-per-node",
            limits=(0, MAX_ACCELERATORS_PER_NODE),
            unit="accelerators per node",
            is_public=True,
        ),
    ] = 8
    """Accelerators on each node."""
    cpu_per_node: Annotated[
        int | None,
        Submitted(option="--cpu-per-node", limits=(1, MAX_CPU_PER_NODE), unit="vCPU per node", is_public=True),
    ] = None
    """vCPU that each pod requests. Null: in proportion to its accelerators, so 4 of 8 GPUs get half of the node."""
    memory_gib_per_node: Annotated[
        int | None,
        Submitted(
            option="--memory-gib-per-node", limits=(1, MAX_MEMORY_GIB_PER_NODE), unit="GiB per node", is_public=True
        ),
    ] = None
    """Memory that each pod requests, in GiB. Null: in proportion to its accelerators, so 4 of 8 GPUs get half of
    the node."""
    shared_memory_gib: Annotated[
        int | None,
        Submitted(option="--shared-memory-gib", limits=(1, MAX_MEMORY_GIB_PER_NODE), unit="GiB per node"),
    ] = None
    """Maximum size of /dev/shm, in GiB. It is part of `memoryGibPerNode`. Null: no limit of its own."""
    huge_pages_mib_per_node: Annotated[
        int | None,
        Submitted(option="--huge-pages-mib-per-node", limits=(2, MAX_HUGE_PAGES_MIB), unit="MiB per node"),
    ] = None
    """Huge pages of 2 MiB that each pod requests, in MiB, in addition to EFA's huge pages. Null: none."""
    instance_types: Annotated[
        tuple[str, ...],
        Submitted(
            max_length=41,
            max_items=MAX_INSTANCE_TYPES,
            unit="instance types",
            pattern=r"(ml\.)?[a-z0-9-]{2,20}\.[a-z0-9-]{2,20}",
            advice="Name an instance type, for example ml.p5.48xlarge.",
            is_public=True,
        ),
    ] = ()
    """Instance types that the job may run on. Empty: any."""
    requires: Annotated[Requirements, Submitted(is_public=True)] = Requirements()
    """Properties that every node of the job must have."""
    required_network_level: Annotated[
        NetworkLevel | None,
        Submitted("network.requiredLevel", option="--required-network-level", is_public=True),
    ] = None
    """All nodes must share one network node of this layer, or one UltraServer. The job waits until they can."""
    preferred_network_level: Annotated[
        NetworkLevel | None,
        Submitted("network.preferredLevel", option="--preferred-network-level", is_public=True),
    ] = None
    """All nodes share one network node of this layer, or of the lowest wider layer that has enough free nodes.
    Null: Evenkeel tries the narrowest level first."""
    checkpoint_uri: Annotated[
        str, Submitted("checkpoint.uri", option="--checkpoint-uri", max_length=MAX_URI, is_required=True)
    ] = ""
    """s3://bucket/prefix or file:///folder/path that only this job uses. Without it, the job keeps no checkpoints."""
    checkpoint_claim: Annotated[str, Submitted("checkpoint.claim", option="--checkpoint-claim", max_length=253)] = ""
    """PersistentVolumeClaim that holds a file:///folder. It is mounted at the first folder of the URI's path."""
    max_restarts: Annotated[
        int | None, Submitted("recovery.maxRestarts", limits=(0, MAX_RESTARTS), unit="restarts")
    ] = None
    """Maximum restarts after failures of the application. Null: the policy's value."""
    on_node_fault: Annotated[OnNodeFault, Submitted("recovery.onNodeFault")] = OnNodeFault.MOVE
    """How to treat the job when a node becomes faulty: `move` stops and resumes the job, `finish` lets it end first."""
    grace_seconds: Annotated[int, Submitted(limits=(0, MAX_GRACE_SECONDS), unit="seconds")] = 30
    """Time that the pods get for a last checkpoint before they are stopped, in seconds."""
    deadline_at: Annotated[Instant | None, Submitted("deadline", option="--deadline")] = None
    """Deadline, such as 2026-11-03T10:15:00Z. It may cause renting or avoid spot nodes; the queue order stays."""
    expected_seconds: Annotated[
        int | None,
        Submitted(option="--expected-seconds", limits=(1, MAX_EXPECTED_SECONDS), unit="seconds", is_public=True),
    ] = None
    """Expected run time without failures, in seconds. It may cause or avoid renting; no job is stopped because of it.
    Null: learned from past runs of the submitter, else the policy's value."""
    labels: Annotated[dict[str, str], Submitted(max_length=63, max_items=MAX_LABELS, unit="labels")] = {}
    """Kubernetes labels of the pods."""
    pools: tuple[PoolChoice, ...] = ()
    """Pools where the job may run, in order of preference, from its job type; empty = any pool."""
    tolerations: tuple[Toleration, ...] = ()
    """Tolerations from the job type."""

    @property
    def per_node(self) -> Resources:
        """The amounts that each pod requests, as the job names them; 0 = not named."""
        return Resources(
            accelerators=self.accelerators_per_node,
            cpu_millis=1000 * (self.cpu_per_node or 0),
            memory_mib=1024 * (self.memory_gib_per_node or 0),
        )

    @property
    def network_needs(self) -> NetworkNeeds:
        """How close the nodes must be to each other."""
        return NetworkNeeds(required=self.required_network_level, preferred=self.preferred_network_level)

    @property
    def keeps_checkpoints_in_cluster(self) -> bool:
        """Whether the checkpoints are on mounted storage that only the job's pods can read."""
        return self.checkpoint_uri.startswith("file://")

    @property
    def sizes(self) -> Sizes | None:
        """The sizes that an elastic job can have; None if it is not elastic."""
        elastic = self.elastic
        if elastic is None:
            return None
        return Sizes(least=elastic.min_nodes, most=elastic.max_nodes, step=elastic.step, discrete=elastic.sizes)
