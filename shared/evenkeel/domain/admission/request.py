"""A job that asks for nodes, as a scheduling cycle sees it."""

from datetime import datetime

from evenkeel.domain.capacity.compatibility import Requirements
from evenkeel.domain.capacity.pool_choices import PoolChoice, Toleration
from evenkeel.domain.jobs.job import Job, ResumeOption
from evenkeel.domain.values import Instant, Value


class AdmissionRequest(Value):
    """What one pending job asks for, reduced to what admission needs."""

    job_id: str
    submitted_at: Instant
    cluster: str
    nodes: int
    accelerators_per_node: int
    instance_types: tuple[str, ...] = ()
    not_before: Instant | None = None
    attempts: int = 0
    """Attempts so far."""
    is_recovery: bool = False
    """Whether a resume plan is due, and it gave way to nobody since: it may take spares, and goes first."""
    is_interrupted: bool = False
    """Whether its last attempt was lost and it was not preempted, for as long as a replacement may take: nodes are kept
    for it, as for a recovery, also before a resume plan is there."""
    avoid: tuple[str, ...] = ()
    """Life keys not to be used."""
    team: str = ""
    owner: str = ""
    """The principal that submitted it."""
    priority: int = 0
    queued_at: Instant | None = None
    """When it lost its place in its queue, where it did."""
    wanted: int = 0
    """Nodes that an elastic job asked for, whatever it is weighed at; 0 where it runs at one size only."""
    sizes: tuple[int, ...] = ()
    """Fewer nodes that would do, too, ascending."""
    shrinks_at: Instant | None = None
    """Until then it has no fewer nodes than it had: one that lost some gives spares a chance."""
    had: int = 0
    """Nodes of its last attempt, where it can run at several sizes; 0 where it had none."""
    resumes_by_preemption: bool = False
    """Whether its recovery chose that others give way to it: where it has quota and no machines, some are stopped."""
    is_resize: bool = False
    """Whether it was stopped to change size: what it asks for was its own, or was idle."""
    is_serving: bool = False
    """Whether it is replicas of a Deployment: their pods ask for no EFA."""
    pools: tuple[PoolChoice, ...] = ()
    """Where it may run, in this order; empty = anywhere."""
    tolerations: tuple[Toleration, ...] = ()
    requires: Requirements = Requirements()
    needs_node_until: Instant | None = None
    """The soonest that it could leave a machine again with something saved: one that goes before is none for it. None
    where no machine is known to go."""

    @classmethod
    def of(cls, job: Job) -> "AdmissionRequest":
        """Return what a job asks for."""
        plan, resize = job.live_plan(), job.live_resize()
        # Who gave way takes its old place: were it first, it would take back at once what it was stopped for.
        comes_back = plan is not None and not job.is_preempted
        nodes = resize.nodes if resize else job.next_node_count
        return cls(
            job_id=job.job_id,
            submitted_at=job.submitted_at,
            cluster=job.cluster,
            nodes=nodes,
            wanted=job.spec.nodes if job.spec.sizes else 0,
            sizes=tuple(size for size in job.spec.sizes.legal if size < nodes) if job.spec.sizes else (),
            shrinks_at=plan.shrinks_at if plan else None,
            had=job.size if job.spec.sizes else 0,
            resumes_by_preemption=comes_back and plan is not None and plan.option is ResumeOption.PREEMPT,
            is_resize=resize is not None and not plan,
            accelerators_per_node=job.spec.accelerators_per_node,
            instance_types=job.spec.instance_types,
            not_before=job.not_before,
            attempts=job.current_attempt,
            is_recovery=comes_back,
            avoid=plan.avoid if plan else (),
            team=job.spec.team,
            owner=job.owner,
            priority=job.priority,
            queued_at=job.queued_at,
            pools=job.spec.pools,
            tolerations=job.spec.tolerations,
            requires=job.spec.requires,
        )

    @property
    def queue_order_key(self) -> tuple[bool, datetime, str]:
        """Recoveries first, then by submission; the id makes the order total."""
        return (not self.has_prior_grant, self.submitted_at, self.job_id)

    @property
    def has_prior_grant(self) -> bool:
        """Whether its capacity was granted once already: a recovery brings it back, or it changes size."""
        return self.is_recovery or self.is_resize

    @property
    def reserves_nodes(self) -> bool:
        """Whether nodes and quota are kept for it while too few nodes are there."""
        return self.is_recovery or self.is_interrupted

    @property
    def sizes_during_spare_wait(self) -> tuple[int, ...]:
        """The smaller sizes that do while spares have their time: none below what it had."""
        return tuple(size for size in self.sizes if 0 < self.had <= size)

    def at(self, nodes: int) -> "AdmissionRequest":
        """Return the same request for another number of nodes."""
        return self.model_copy(update={"nodes": nodes})
