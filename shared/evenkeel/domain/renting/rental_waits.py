"""The waits of a rental's workflow: for its nodes, and for its end. For a job, and for replicas of a Deployment.

Karpenter launches a node for the pod that it sees first: a replica may run on a node before the node is assigned.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime

from evenkeel.domain.external.adoption_policy import ServingWorkload
from evenkeel.domain.external.kueue_status import ADMITTED, EVICTED, QUOTA_RESERVED, KueueStatus
from evenkeel.domain.external.serving import replica_shortfalls, replicas_of
from evenkeel.domain.external.unmanaged_workloads import UnmanagedPod
from evenkeel.domain.jobs.attempt import Attempt, AttemptState
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.nodes import KubernetesNode
from evenkeel.domain.renting.rental import Rental, RentalOffer, RentalState, ServingTarget, nodes_subject
from evenkeel.domain.renting.serving_rentals import free_replica_slots, registration_of, replicas_on
from evenkeel.domain.waiting import WaitAnswer, WaitOutcome

# ---------------------------------------------------------------- its nodes


def joined_nodes(
    rental: Rental, nodes: Iterable[KubernetesNode], other_nodes: Iterable[str] = ()
) -> tuple[KubernetesNode, ...]:
    """Return the nodes of the current offer's pool that belong to no other rental, by name."""
    offer, other_names = rental.offer, frozenset(other_nodes)
    return tuple(
        node
        for node in sorted(nodes, key=lambda node: node.name)
        if (node.cluster, node.pool) == (offer.cluster, offer.pool) and node.name not in other_names
    )


def is_usable(node: KubernetesNode, offer: RentalOffer) -> bool:
    """Whether pods of the holder may start on a node. They tolerate the taints of its pool."""
    return node.is_ready and not node.is_cordoned and set(node.blocking_taints) <= set(offer.taints)


def evaluate_rental_ready(
    rental: Rental,
    job: Job,
    nodes: Iterable[KubernetesNode],
    refusal: str,
    other_nodes: Iterable[str] = (),
    kueue: KueueStatus | None = None,
) -> WaitAnswer | None:
    """Answer the wait for the nodes of a job's rental; None while they may still join.

    Args:
        rental: An OPENING rental.
        job: Its job.
        nodes: Nodes of the cluster.
        refusal: The provider's refusal since the pool was opened; empty if there is none.
        other_nodes: Nodes of other rentals.
        kueue: Kueue's status of a job in its queue; None if it is unknown.
    """
    return evaluate_nodes_joined(rental, why_job_does_not_wait(rental, job, kueue), nodes, refusal, other_nodes)


def evaluate_nodes_joined(
    rental: Rental, why_not_waiting: str, nodes: Iterable[KubernetesNode], refusal: str, other_nodes: Iterable[str] = ()
) -> WaitAnswer | None:
    """Answer the wait for a rental's nodes. `why_not_waiting` says why the holder no longer needs them."""
    if why_not_waiting:
        return WaitAnswer(outcome=WaitOutcome.NOT_WANTED, reason=why_not_waiting)
    usable = [node for node in joined_nodes(rental, nodes, other_nodes) if is_usable(node, rental.offer)]
    if len(usable) >= rental.nodes:
        return WaitAnswer(
            outcome=WaitOutcome.NODES_READY, reason=f"{nodes_subject(rental.nodes, rental.offer.pool)} ready."
        )
    if refusal:
        return WaitAnswer(outcome=WaitOutcome.REFUSED, reason=f"{rental.offer.pool} has no capacity: {refusal}")
    return None


# ---------------------------------------------------------------- a job


def why_job_does_not_wait(rental: Rental, job: Job, kueue: KueueStatus | None = None) -> str:
    """Say why a job no longer waits for its rental; empty if it does.

    Args:
        rental: A rental.
        job: Its job.
        kueue: Kueue's status of a job in its queue; None if it is unknown.
    """
    if job.rentals != rental.number:
        return f"{job.job_id} already has another rental."
    if job.state is JobState.PENDING:
        return ""
    if job.state is JobState.STARTING and job.local_queue:
        if kueue is None or kueue.is_sent_to(rental.name):
            return ""
        if kueue.is_true(ADMITTED):
            return f"Kueue admitted {job.job_id} on other nodes."
        return "" if kueue.holds_quota else f"Kueue released the quota of {job.job_id}."
    if rental.joins_base and job.state in (JobState.STARTING, JobState.RUNNING):
        return ""
    return f"{job.job_id} no longer waits: it is {job.state}."


def evaluate_rental_over(
    rental: Rental,
    job: Job,
    attempt: Attempt | None,
    nodes: Iterable[KubernetesNode],
    quiet_seconds: int,
    now: datetime,
    kueue: KueueStatus | None = None,
) -> WaitAnswer | None:
    """Answer the wait for the end of a job's rental; None while the job runs on it, or may resume there.

    A job that ended frees its nodes at once, since no other job may use them. A job that waits again keeps them for the
    quiet period if all of them are still there: the next scheduling cycle resumes it there.

    Args:
        rental: A READY rental.
        job: Its job.
        attempt: The job's current attempt; None if it has none.
        nodes: Nodes of the cluster.
        quiet_seconds: How long idle nodes are kept for a pending job.
        now: The time.
        kueue: Kueue's status of a job in its queue; None if it is unknown.
    """
    is_its_last = attempt is not None and rental.hosts(attempt)
    if attempt is not None and is_its_last and not attempt.state.has_ended:
        return None
    if job.state.is_at_rest:
        return WaitAnswer(outcome=WaitOutcome.OVER, reason=f"{job.job_id} is {job.state}.")
    queued_attempt = attempt if attempt is not None and is_queued(attempt) else None
    if queued_attempt and may_use_nodes(rental, queued_attempt, kueue):
        return None
    other_use = _why_used_by_no_attempt(rental, job, attempt, kueue)
    if other_use:
        return WaitAnswer(outcome=WaitOutcome.OVER, reason=other_use)
    offer = rental.offer
    names = {node.name for node in nodes if node.cluster == offer.cluster and is_usable(node, offer)}
    lost_node_names = [name for name in rental.node_names if name not in names]
    if lost_node_names:
        return WaitAnswer(
            outcome=WaitOutcome.OVER,
            reason=f"{lost_node_names[0]} is out of service or was reclaimed.",
            facts={"lost": lost_node_names},
        )
    since = rental.handed_over_at or rental.begun_at
    if attempt is not None and is_base(rental, attempt):
        if _is_stopping_to_join(job, attempt):
            return None
        since = max(since, attempt.ended_at or since)
    if attempt is not None and is_its_last:
        if job.is_migrating_back:
            text = "continues on its committed nodes" if rental.joins_base else "migrates back to committed capacity"
            return WaitAnswer(outcome=WaitOutcome.OVER, reason=f"{job.job_id} {text}.")
        since = max(since, attempt.ended_at or since)
    if queued_attempt:
        # The job waits in Kueue's queue, or Kueue waits for the check. The next cycle answers it within a minute.
        quota_condition = kueue.condition(QUOTA_RESERVED) if kueue else None
        since = max(
            since, queued_attempt.admitted_at, (quota_condition.changed_at if quota_condition else None) or since
        )
    idle_seconds = (now - since).total_seconds()
    if idle_seconds >= quiet_seconds:
        return WaitAnswer(outcome=WaitOutcome.OVER, reason=f"No pod has used these nodes for {round(idle_seconds)} s.")
    return None


def _why_used_by_no_attempt(rental: Rental, job: Job, attempt: Attempt | None, kueue: KueueStatus | None) -> str:
    """Say why no attempt of a job will use its rental, whose nodes it does not use now; empty if one may."""
    queued_attempt = attempt if attempt is not None and is_queued(attempt) else None
    if queued_attempt and kueue and kueue.is_true(ADMITTED) and not kueue.is_true(EVICTED):
        return f"Kueue admitted {job.job_id} on other nodes."
    if attempt is not None and not attempt.state.has_ended and not queued_attempt and not is_base(rental, attempt):
        where = "its committed nodes alone" if rental.joins_base else "other nodes"
        return f"{job.job_id} runs on {where}."
    return f"{job.job_id} already has another rental." if job.rentals != rental.number else ""


def is_base(rental: Rental, attempt: Attempt) -> bool:
    """Whether an attempt was admitted to its base before the nodes that join it were ready."""
    return rental.joins_attempt_of(attempt.admitted_at)


def _is_stopping_to_join(job: Job, attempt: Attempt) -> bool:
    """Whether an attempt on committed nodes saves and stops, so that rented nodes join the next one."""
    resize = job.live_resize()
    return not attempt.state.has_ended and resize is not None and resize.rented_nodes > 0


def is_queued(attempt: Attempt) -> bool:
    """Whether Kueue has an attempt, and its nodes are not known yet."""
    return bool(attempt.local_queue) and not attempt.state.has_ended and not attempt.node_names


def may_use_nodes(rental: Rental, attempt: Attempt, kueue: KueueStatus | None) -> bool:
    """Whether pods of an attempt in Kueue's queue run, or may start, on the nodes of a rental.

    The nodes of the attempt are not known yet. So an attempt that runs counts, unless Kueue sent it to other nodes.
    """
    if kueue is None:
        return attempt.state is AttemptState.RUNNING
    if kueue.is_true(EVICTED):  # the eviction resets the checks, while pods may still save on the nodes
        return attempt.state is AttemptState.RUNNING
    return kueue.is_sent_to(rental.name)


# ---------------------------------------------------------------- replicas of a Deployment


def why_no_replica_waits(
    rental: Rental,
    other_rentals: Iterable[Rental],
    serving_workloads: Iterable[ServingWorkload],
    pods: Sequence[UnmanagedPod],
    nodes: Iterable[KubernetesNode],
) -> str:
    """Say why the replicas of a Deployment no longer need a node that is starting; empty if they do.

    Args:
        rental: An OPENING rental.
        other_rentals: Rentals of the same Deployment. Without them, the answer may come late.
        serving_workloads: The Deployments in the policy.
        pods: Pods without a node, and pods on the nodes of the rental's pool.
        nodes: Nodes of the cluster.
    """
    label = _target_of(rental).label
    registration = registration_of(rental, serving_workloads)
    beside = [other for other in other_rentals if other.name != rental.name]
    rentals_before = [other for other in beside if other.state is RentalState.READY or other.number < rental.number]
    landed_replicas = len(_replicas_on_new_nodes(rental, beside, pods, nodes))
    rentals_of_pool = [
        other for other in rentals_before if not other.node_names and other.offer.pool == rental.offer.pool
    ]
    if landed_replicas > free_replica_slots(rentals_of_pool, pods):
        return ""  # no earlier rental could be assigned the node on which they run
    if registration is None or rental.offer.pool not in registration.rents_from:
        return f"The policy no longer rents from {rental.offer.pool} for {label}."
    waiting_replicas = sum(
        len(shortfall.waiting) for shortfall in replica_shortfalls((registration,), {registration.cluster: pods})
    )
    if waiting_replicas + landed_replicas <= free_replica_slots(rentals_before, pods):
        return f"The replicas of {label} have nodes, or are no longer needed."
    return ""


def _target_of(rental: Rental) -> ServingTarget:
    assert rental.serving_target is not None  # otherwise the rental would belong to a job
    return rental.serving_target


def _replicas_on_new_nodes(
    rental: Rental, other_rentals: Iterable[Rental], pods: Iterable[UnmanagedPod], nodes: Iterable[KubernetesNode]
) -> tuple[UnmanagedPod, ...]:
    """Return the replicas on nodes of a rental's pool that belong to no rental yet."""
    assigned_nodes = {*rental.other_rentals_nodes, *(name for other in other_rentals for name in other.node_names)}
    joined_names = {node.name for node in joined_nodes(rental, nodes, assigned_nodes)}
    target = _target_of(rental)
    return tuple(pod for pod in replicas_of(target.namespace, target.name, pods) if pod.node_name in joined_names)


def evaluate_serving_rental_over(
    rental: Rental, pods: Iterable[UnmanagedPod], nodes: Iterable[KubernetesNode], quiet_seconds: int, now: datetime
) -> WaitAnswer | None:
    """Answer the wait for the end of a Deployment's rental; None while a replica runs on the node, or may soon.

    Args:
        rental: A READY rental, with the observed use by its replicas.
        pods: Pods of the cluster.
        nodes: Nodes of the cluster.
        quiet_seconds: How long an idle node is kept.
        now: The time.
    """
    if rental.is_returning:
        return WaitAnswer(outcome=WaitOutcome.OVER, reason=rental.reason)
    if rental.due_at is not None and now >= rental.due_at:
        return WaitAnswer(
            outcome=WaitOutcome.OVER, reason=f"The rental's time limit is {rental.due_at:%d %b %H:%M} UTC."
        )
    nodes_by_name = {node.name: node for node in nodes if node.cluster == rental.offer.cluster}
    node_names = [name for name in rental.node_names if name not in nodes_by_name]
    if node_names:
        return WaitAnswer(
            outcome=WaitOutcome.OVER, reason=f"{node_names[0]} was reclaimed.", facts={"lost": node_names}
        )
    if replicas_on(rental, pods):
        return None
    lost_node_names = [name for name in rental.node_names if not is_usable(nodes_by_name[name], rental.offer)]
    if lost_node_names:
        return WaitAnswer(
            outcome=WaitOutcome.OVER, reason=f"{lost_node_names[0]} is out of service.", facts={"lost": lost_node_names}
        )
    idle_seconds = (now - (rental.idle_since or now)).total_seconds()
    if idle_seconds < quiet_seconds:
        return None
    idle_text = "has run on the node for" if rental.was_used else "used the node within"
    label = _target_of(rental).label
    return WaitAnswer(outcome=WaitOutcome.OVER, reason=f"No replica of {label} {idle_text} {round(idle_seconds)} s.")
