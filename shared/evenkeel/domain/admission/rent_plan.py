"""How the decisions of a scheduling cycle and those about renting depend on each other.

Rented nodes help a job only if the rules of the cycle would then start it. A job leaves its rented nodes for committed
ones only if the rules would start it there. So the cycle applies its rules a second time, and these functions judge the
answer. The second time they see the nodes that a rental would add (`candidates.nodes_to_rent`), or only the committed
nodes that are left (`committed_left`).
"""

from collections.abc import Iterable, Sequence

from evenkeel.domain.admission.decide import Action, AdmissionDecision
from evenkeel.domain.capacity.node_capacity import NodeCapacity, with_taken
from evenkeel.domain.capacity.pools import Pool
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.policy import Policy
from evenkeel.domain.renting.book import RentalBook
from evenkeel.domain.renting.candidates import committed_pools
from evenkeel.domain.renting.rental import Rental

_RENTABLE_ACTIONS = (Action.WAIT, Action.BLOCKED, Action.NEVER_FITS)
"""Decisions about jobs that wait for nodes. A job that waits for quota would wait on rented nodes, too."""
_WAITING_FOR_NODES = (Action.WAIT, Action.BLOCKED, Action.PREEMPT)
"""Decisions about jobs that would use free committed nodes. Jobs that wait for quota cannot use them."""


def jobs_without_nodes(decisions: Iterable[AdmissionDecision], rented: RentalBook) -> tuple[str, ...]:
    """Return the pending jobs that wait for nodes and have no rental, in queue order."""
    return tuple(
        each.job_id for each in decisions if each.action in _RENTABLE_ACTIONS and each.job_id not in rented.serving
    )


def capacity_left(
    capacities: Iterable[NodeCapacity], decisions: Iterable[AdmissionDecision]
) -> tuple[NodeCapacity, ...]:
    """Return the capacities without the accelerators that the admitted jobs take."""
    taken = {
        life.key: each.facts.request.accelerators_per_node
        for each in decisions
        if each.action is Action.ADMIT
        for life in each.nodes
    }
    return with_taken(capacities, taken)


def why_rental_would_not_help(job_id: str, pool: Pool, decisions: Iterable[AdmissionDecision]) -> str:
    """Say why a job would not start on rented nodes of a pool; empty if it would.

    Args:
        job_id: The job.
        pool: The pool to rent from.
        decisions: The decisions about the fleet with these nodes.
    """
    decided = next((each for each in decisions if each.job_id == job_id), None)
    if decided is not None and decided.action is Action.ADMIT and decided.pool == pool.name:
        return ""
    why = decided.reason if decided else "The job is not at the head of its queue."
    return f"Rented nodes would not help the job: {why}"


def committed_left(
    capacities: Iterable[NodeCapacity], decisions: Sequence[AdmissionDecision]
) -> tuple[NodeCapacity, ...]:
    """Return the committed nodes that jobs on rented nodes may migrate to; none while pending jobs wait for nodes."""
    if any(each.action in _WAITING_FOR_NODES for each in decisions):
        return ()
    return tuple(capacity for capacity in capacity_left(capacities, decisions) if not capacity.reserved_for)


def may_leave(job: Job, rental: Rental, charges: Iterable[Charge]) -> bool:
    """Whether a job runs on its rental, and no stop of its attempt is requested."""
    if job.state is not JobState.RUNNING or job.stop_of(job.current_attempt):
        return False
    return any(
        (charge.job_id, charge.attempt) == (job.job_id, job.current_attempt)
        and set(charge.node_names) <= set(rental.node_names)
        for charge in charges
    )


def committed_target(
    decisions: Iterable[AdmissionDecision], rental: Rental, capacities: tuple[NodeCapacity, ...], policy: Policy
) -> Pool | None:
    """Return the committed pool in which the job of a rental would start with all its nodes; None if it would not.

    Args:
        decisions: The decision about the job, as if it were pending and alone, on the committed nodes.
        rental: The rental that it runs on.
        capacities: The committed nodes.
        policy: Reservations and launch times.
    """
    decided = next(iter(decisions), None)
    if decided is None or decided.action is not Action.ADMIT or len(decided.nodes) != rental.nodes:
        return None
    kind = (decided.pool, decided.instance_type)
    return next(pool for pool in committed_pools(capacities, policy) if (pool.name, pool.instance_type) == kind)
