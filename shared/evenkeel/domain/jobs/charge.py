"""The quota that one attempt holds."""

from collections.abc import Mapping

from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.values import Instant, Value


class Charge(Value):
    """What one admitted attempt holds until it is settled. A released charge says which waiting job had the quota."""

    job_id: str
    attempt: int
    team: str
    cluster: str
    node_names: tuple[str, ...]
    accelerators: int
    """Over all nodes."""
    instance_type: str = ""
    pool: str = ""
    admitted_at: Instant | None = None
    owner: str = ""
    """The principal that submitted the job."""
    queue: str = ""
    """Whose quota it takes; empty where no teams were set up."""
    priority: int = 0
    queued_at: Instant | None = None
    """By what it stood in its queue."""
    use: dict[str, dict[str, int]] = {}
    """The quota that the job takes: flavor → resource → amount."""
    is_rented: bool = False
    """Whether its nodes are rented for it: their dollars are the rental's."""
    is_elastic: bool = False
    """Whether its job can have another size."""
    released_at: Instant | None = None
    """When its attempt was settled and its job went back to the queue; None while the attempt is live."""

    @property
    def is_held(self) -> bool:
        """Whether its attempt is live: a released charge takes no quota and no node, and only names its owner."""
        return self.released_at is None

    @classmethod
    def of(
        cls, attempt: Attempt, job: Job | None = None, use: Mapping[str, Mapping[str, int]] | None = None
    ) -> "Charge":
        """Return the charge of an attempt, with what quotas need to know of its job."""
        return cls(
            job_id=attempt.job_id,
            attempt=attempt.attempt,
            team=attempt.team,
            cluster=attempt.cluster,
            node_names=attempt.node_names,
            accelerators=attempt.accelerators,
            instance_type=attempt.instance_type,
            pool=attempt.pool,
            admitted_at=attempt.admitted_at,
            owner=job.owner if job else "",
            queue=attempt.team if use else "",
            priority=job.priority if job else 0,
            queued_at=(job.queued_at or job.submitted_at) if job else None,
            use={flavor: dict(amounts) for flavor, amounts in (use or {}).items()},
            is_rented=attempt.is_rented,
            is_elastic=bool(job and job.spec.elastic),
        )
