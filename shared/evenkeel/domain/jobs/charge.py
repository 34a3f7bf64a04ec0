"""Charges: the quota and the nodes that an attempt holds."""

from collections.abc import Container, Iterable, Mapping

from pydantic import Field

from evenkeel.domain.capacity.node_capacity import NodeKey, resources_not_free
from evenkeel.domain.jobs.attempt import Attempt, ObservedWorkload, RentedPart
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.resources import Resources, sum_by_node
from evenkeel.domain.values import Instant, Value


class Charge(Value):
    """The quota and nodes of an admitted attempt until it is settled.

    A released charge only records which pending job had the quota.
    """

    job_id: str
    attempt: int
    team: str
    cluster: str
    node_names: tuple[str, ...]
    accelerators: int
    """Accelerators over all nodes."""
    cpu_millis: int = 0
    """Requested CPU over all nodes, in thousandths of a vCPU."""
    memory_mib: int = 0
    """Requested memory over all nodes."""
    instance_type: str = ""
    pool: str = ""
    admitted_at: Instant | None = None
    submitter: str = Field(default="", alias="owner")
    """The principal that submitted the job."""
    queue: str = ""
    """The queue whose quota it uses; empty if there were no teams."""
    priority: int = 0
    queued_at: Instant | None = None
    """The time that decided its position in the queue."""
    use: dict[str, dict[str, int]] = {}
    """The quota that the job uses: flavor → resource → amount."""
    is_rented: bool = False
    """Whether all its nodes are rented for it. The rental then counts their cost."""
    rented_part: RentedPart | None = None
    """The rented nodes of a mixed attempt, which are the last of `node_names`. The rental counts their cost."""
    usd_per_accelerator_hour: float | None = None
    """Price at the attempt's admission; None if there was none."""
    is_elastic: bool = False
    """Whether its job can run at other sizes."""
    namespace: str = ""
    decision_id: str = ""
    """Id of the record of its admission; empty in rows of an earlier release."""
    released_at: Instant | None = None
    """When its attempt was settled and its job queued again; None while the attempt is live."""

    @property
    def is_live(self) -> bool:
        """Whether its attempt is live. A released charge uses no quota and no nodes."""
        return self.released_at is None

    @property
    def per_node(self) -> Resources:
        """The amounts on each of its nodes."""
        nodes = max(1, len(self.node_names))
        return Resources(
            accelerators=self.accelerators // nodes,
            cpu_millis=self.cpu_millis // nodes,
            memory_mib=self.memory_mib // nodes,
        )

    @property
    def base_node_names(self) -> tuple[str, ...]:
        """Its nodes without the rented nodes of a mixed attempt."""
        return self.node_names[: -len(self.rented_part.node_names)] if self.rented_part else self.node_names

    @property
    def priced_accelerators(self) -> int:
        """The accelerators whose cost its price counts; in a mixed attempt, only the accelerators of the base."""
        return self.per_node.accelerators * len(self.base_node_names) if self.rented_part else self.accelerators

    def without_rented_part(self) -> "Charge":
        """Return the charge of the base alone, for decisions about committed nodes."""
        if self.rented_part is None:
            return self
        names, per_node = self.base_node_names, self.per_node
        return self.replace_unchecked(
            node_names=names,
            accelerators=per_node.accelerators * len(names),
            cpu_millis=per_node.cpu_millis * len(names),
            memory_mib=per_node.memory_mib * len(names),
            rented_part=None,
        )

    @classmethod
    def of(cls, attempt: Attempt, job: Job | None = None) -> "Charge":
        """Return the charge of an attempt, with the facts of its job that quotas need."""
        return cls(
            job_id=attempt.job_id,
            attempt=attempt.attempt,
            team=attempt.team,
            cluster=attempt.cluster,
            node_names=attempt.node_names,
            accelerators=attempt.accelerators,
            cpu_millis=attempt.cpu_millis,
            memory_mib=attempt.memory_mib,
            instance_type=attempt.instance_type,
            pool=attempt.pool,
            admitted_at=attempt.admitted_at,
            submitter=job.submitter if job else "",
            queue=attempt.team if attempt.quota_use else "",
            priority=job.priority if job else 0,
            queued_at=(job.queued_at or job.submitted_at) if job else None,
            use=attempt.quota_use or {},
            is_rented=attempt.is_rented,
            rented_part=attempt.rented_part,
            usd_per_accelerator_hour=attempt.usd_per_accelerator_hour,
            is_elastic=bool(job and job.spec.elastic),
            namespace=attempt.namespace,
            decision_id=attempt.decision_id,
        )

    def is_named_by(self, workload: ObservedWorkload) -> bool:
        """Whether a Kubernetes Job names this charge's attempt and admission. No forged Job can free charged resources.

        A Job that a user creates with the same names only makes the attempt look started. Then
        `resources_in_use_or_charged` still counts at least the charge on each of its nodes.
        """
        names = (self.namespace, self.job_id, self.attempt, self.decision_id)
        return (workload.namespace, workload.job_id, workload.attempt, workload.decision_id) == names

    def on_nodes_of(self, attempt: Attempt) -> "Charge":
        """Return the charge with the nodes and amounts of its attempt.

        If Kueue admits, they are known later than the charge: Kueue may admit fewer pods than requested.
        """
        return self.replace(
            accelerators=attempt.accelerators,
            cpu_millis=attempt.cpu_millis,
            memory_mib=attempt.memory_mib,
            node_names=attempt.node_names,
            instance_type=attempt.instance_type,
            pool=attempt.pool,
            is_rented=attempt.is_rented,
        )


def charged_resources(
    charges: Iterable[Charge], started_pods: Container[tuple[str, str, str, int]] = ()
) -> dict[NodeKey, Resources]:
    """Return the amounts of each node that attempts are charged for.

    Args:
        charges: Charges of the attempts.
        started_pods: Pods to leave out, by cluster, node name, job and attempt.
    """
    return sum_by_node(
        ((charge.cluster, name), charge.per_node)
        for charge in charges
        for name in charge.node_names
        if (charge.cluster, name, charge.job_id, charge.attempt) not in started_pods
    )


def resources_in_use_or_charged(
    in_use: Mapping[NodeKey, Resources], charges: Iterable[Charge], workloads: Iterable[tuple[str, ObservedWorkload]]
) -> dict[NodeKey, Resources]:
    """Return the amounts of each node that are not free, including attempts whose pods do not exist yet.

    Args:
        in_use: Requests of live pods, unmanaged pods included.
        charges: Charges of all unsettled attempts.
        workloads: Pods of attempts, with the name of their cluster.
    """
    all_charges = tuple(charges)
    started_pods = {
        (cluster, pod.node_name, workload.job_id, workload.attempt)
        for cluster, workload in workloads
        for pod in workload.pods
        if pod.node_name and not pod.has_ended
    }
    return resources_not_free(in_use, charged_resources(all_charges), charged_resources(all_charges, started_pods))
