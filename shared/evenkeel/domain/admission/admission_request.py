"""A job that asks for nodes, as a scheduling cycle sees it."""

from datetime import datetime
from enum import IntEnum

from pydantic import Field

from evenkeel.domain.capacity.compatibility import Requirements
from evenkeel.domain.capacity.network_topology import NetworkNeeds
from evenkeel.domain.capacity.pool_choices import PoolChoice, Toleration
from evenkeel.domain.jobs.job import Job, ResumeOption
from evenkeel.domain.resources import Resources
from evenkeel.domain.values import Instant, Value


class QueueRank(IntEnum):
    """The groups of waiting jobs in the order of the queue."""

    PRIOR_GRANT = 0
    """The job was admitted before: it recovers, or it changes size."""
    DISPLACER = 1
    """The job displaced other jobs."""
    WAITING = 2
    DISPLACED = 3
    """The job gave its nodes to another job, and its order has a time limit: `backfillSeconds`."""


class AdmissionRequest(Value):
    """The request of one pending job, reduced to the fields that admission needs."""

    job_id: str
    submitted_at: Instant
    cluster: str
    nodes: int
    """Nodes that the rules must find. The rented part of a mixed attempt is not among them."""
    accelerators_per_node: int
    cpu_millis_per_node: int = 0
    """CPU that each pod requests, in thousandths of a vCPU."""
    memory_mib_per_node: int = 0
    """Memory that each pod requests."""
    names_cpu_or_memory: bool = False
    """Whether the job names its CPU or its memory. If not, both are proportional to its accelerators."""
    instance_types: tuple[str, ...] = ()
    meets_on: tuple[str, ...] = ()
    """Types of the policy's `instanceTypes` that meet the job's requirements, without `ml.`."""
    not_before: Instant | None = None
    attempts: int = 0
    """Attempts so far."""
    is_recovery: bool = False
    """Whether the job has a resume plan and was not preempted since. It may take spares, and goes first."""
    is_interrupted: bool = False
    """Whether the job lost its last attempt and was not preempted. Nodes are reserved for it, as for a recovery, for as
    long as a replacement may take, even before it has a resume plan."""
    avoid: tuple[str, ...] = ()
    """Life keys of nodes that the job must not use."""
    team: str = ""
    submitter: str = Field(default="", alias="owner")
    """The principal that submitted the job."""
    priority: int = 0
    queued_at: Instant | None = None
    """When the job lost its position in its queue; None if it never did."""
    requested_nodes: int = 0
    """Full size of an elastic job, even while a smaller size is decided; 0 if the job has one size only."""
    sizes: tuple[int, ...] = ()
    """Smaller sizes at which the job may start, ascending."""
    shrinks_at: Instant | None = None
    """Until then the job waits for spares: it does not start on fewer nodes than before."""
    last_nodes: int = 0
    """Nodes of the last attempt of an elastic job; 0 if there was none."""
    resumes_by_preemption: bool = False
    """Whether its resume plan is to preempt: if the job has quota but no nodes, other jobs stop for it."""
    is_resize: bool = False
    """Whether the job was stopped to change size. The requested nodes were idle, or the job's own."""
    has_displaced: bool = False
    """Whether other jobs were displaced for it. It then goes before jobs that wait for nodes of their own."""
    is_displaced: bool = False
    """Whether it was stopped to free nodes for another job, which therefore goes first."""
    may_be_overtaken: bool = False
    """Whether later jobs may start before it. Such jobs wait in order of their price of delay."""
    delay_micros_per_hour: int = 0
    """Price of delay of its class, if that decides its order; else 0."""
    is_serving: bool = False
    """Whether these are replicas of a Deployment. Their pods ask for no EFA."""
    pools: tuple[PoolChoice, ...] = ()
    """Pools on which the job may run, in order of preference; empty = any pool."""
    tolerations: tuple[Toleration, ...] = ()
    requires: Requirements = Requirements()
    network_needs: NetworkNeeds = NetworkNeeds()
    needs_node_until: Instant | None = None
    """Earliest time at which the job could leave a node with a saved checkpoint. The job does not use nodes that AWS
    takes back earlier. None if no node has a known end."""

    @classmethod
    def of(cls, job: Job) -> "AdmissionRequest":
        """Return the request of a job."""
        plan, resize = job.live_plan(), job.live_resize()
        # A preempted job keeps its old position in the queue. If it went first, it would take its nodes back at once.
        # A job that a person resumed keeps its old position, too.
        was_resumed = job.resumed_after > 0 and job.resumed_after == job.current_attempt
        comes_back = plan is not None and not job.is_preempted and not was_resumed
        nodes = resize.nodes - resize.rented_nodes if resize else job.next_node_count
        return cls(
            job_id=job.job_id,
            submitted_at=job.submitted_at,
            cluster=job.cluster,
            nodes=nodes,
            requested_nodes=job.spec.nodes if job.spec.sizes else 0,
            sizes=tuple(size for size in job.spec.sizes.legal if size < nodes) if job.spec.sizes else (),
            shrinks_at=plan.shrinks_at if plan else None,
            last_nodes=job.committed_size if job.spec.sizes else 0,
            resumes_by_preemption=comes_back and plan is not None and plan.option is ResumeOption.PREEMPT,
            is_resize=resize is not None and not plan,
            has_displaced=job.displacing_since is not None,
            is_displaced=job.displaced_at is not None and not comes_back,
            accelerators_per_node=job.spec.accelerators_per_node,
            cpu_millis_per_node=job.spec.per_node.cpu_millis,
            memory_mib_per_node=job.spec.per_node.memory_mib,
            names_cpu_or_memory=bool(job.spec.per_node.cpu_millis or job.spec.per_node.memory_mib),
            instance_types=job.spec.instance_types,
            not_before=job.not_before,
            attempts=job.current_attempt,
            is_recovery=comes_back,
            avoid=plan.avoid if plan else (),
            team=job.spec.team,
            submitter=job.submitter,
            priority=job.priority,
            queued_at=job.queued_at,
            pools=job.spec.pools,
            tolerations=job.spec.tolerations,
            requires=job.spec.requires,
            network_needs=job.spec.network_needs,
        )

    @property
    def per_node(self) -> Resources:
        """The amounts that each pod requests."""
        return Resources(
            accelerators=self.accelerators_per_node,
            cpu_millis=self.cpu_millis_per_node,
            memory_mib=self.memory_mib_per_node,
        )

    def with_per_node(self, per_node: Resources) -> "AdmissionRequest":
        """Return the same request with these amounts for each pod."""
        return self.replace_unchecked(
            accelerators_per_node=per_node.accelerators,
            cpu_millis_per_node=per_node.cpu_millis,
            memory_mib_per_node=per_node.memory_mib,
        )

    @property
    def queue_order_key(self) -> tuple[int, bool, int, datetime, str]:
        """Order in the queue: recoveries, jobs that displaced others, other jobs; by submission.

        Among the other jobs, jobs that may be overtaken come last, by their price of delay, and then displaced jobs.
        If no job may be overtaken, a displaced job goes only before jobs that were submitted after its displacement.
        Otherwise it would wait for ever behind new jobs. Among displaced jobs that may be overtaken, and among jobs
        that displaced others, its submission counts. Priority plays no part.
        With teams, the queue engine orders the jobs of each queue again, by priority.
        """
        rank, price = self._queue_rank, self.delay_micros_per_hour
        since = self.submitted_at
        if rank is QueueRank.WAITING and self.is_displaced and self.queued_at:
            since = self.queued_at
        return (rank, self.may_be_overtaken, -price, since, self.job_id)

    @property
    def _queue_rank(self) -> "QueueRank":
        if self.has_prior_grant:
            return QueueRank.PRIOR_GRANT
        if self.has_displaced:
            return QueueRank.DISPLACER
        return QueueRank.DISPLACED if self.is_displaced and self.may_be_overtaken else QueueRank.WAITING

    @property
    def has_prior_grant(self) -> bool:
        """Whether the job was admitted before: it recovers, or it changes size."""
        return self.is_recovery or self.is_resize

    @property
    def reserves_nodes(self) -> bool:
        """Whether nodes and quota are reserved for the job while too few nodes are free."""
        return self.is_recovery or self.is_interrupted

    @property
    def sizes_during_spare_wait(self) -> tuple[int, ...]:
        """The smaller sizes allowed during the spare wait: none below the size of the last attempt."""
        return tuple(size for size in self.sizes if 0 < self.last_nodes <= size)

    def with_nodes(self, nodes: int) -> "AdmissionRequest":
        """Return the same request for another number of nodes."""
        return self.replace_unchecked(nodes=nodes)
