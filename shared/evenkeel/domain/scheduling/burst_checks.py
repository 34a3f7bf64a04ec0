"""Answer Kueue's admission check `evenkeel.io/burst` for one Workload.

Kueue reserves quota of a flavor first, and asks then. Evenkeel weighs as it does for its own queue: rent for this job
within the caps and the budget, or let it wait.

    no pool can ever run it ── Rejected if the check covers every flavor of the queue, else Retry
    its cause may pass ─────── Retry: another flavor, another count of pods, or no pool in the policy
    no size of an elastic job  Retry; the attempt stops, and the next one asks for the next smaller size
    other checks are open ──── Pending: nothing is rented before they have passed
    renting does not pay ───── Retry: Kueue may use the quota for another job, and tries again later
    renting pays ───────────── Pending until all nodes are ready, then Ready with the nodes of the rental
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum

from evenkeel.domain.decisions import Alternative
from evenkeel.domain.external.burst_check_protocol import (
    MAX_MESSAGE,
    RENTAL_NODE_LABEL,
    BurstCheckAnswer,
    BurstCheckState,
    CheckedWorkload,
)
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.jobs.workload_kind import WorkloadKind
from evenkeel.domain.nodes import KARPENTER_LABEL
from evenkeel.domain.plurals import count_of
from evenkeel.domain.policy import Policy
from evenkeel.domain.renting.burst_policy import RentedPool
from evenkeel.domain.renting.candidates import PlacementContext, environment_in, placement_facts
from evenkeel.domain.renting.cost import CandidatePool
from evenkeel.domain.renting.placement import PlacementAction, PlacementDecision, PlacementFacts, choose_pool
from evenkeel.domain.renting.rental import Rental, RentalState
from evenkeel.domain.scheduling.cycle_snapshot import CycleSnapshot
from evenkeel.domain.values import Instant, Value

_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 60, 1800
"""Kueue's own defaults for its ProvisioningRequests: `apis/kueue/v1beta2/provisioningrequestconfig_types.go`."""
_MAX_NOTE_KEY = 500


class RentalOfCheck(Value):
    """The rental of the job that waits."""

    name: str
    state: RentalState
    pool: str
    nodes: int
    reason: str


class BurstCheckFacts(Value):
    """All facts of an answer. The recorded decision replays from these facts alone."""

    workload: CheckedWorkload
    job_id: str = ""
    """The job whose attempt controls the Workload; empty if Evenkeel has not created it."""
    nodes: int = 0
    """Nodes that the job asks for."""
    sizes: tuple[int, ...] = ()
    """Smaller numbers of nodes that Kueue may admit; none if it admits all pods or none."""
    rental: RentalOfCheck | None = None
    placement: PlacementFacts | None = None
    """Everything that the choice of a pool depends on; None if no choice is needed."""
    pools_outside_flavor: tuple[str, ...] | None = None
    """Pools whose nodes lack a label of the reserved flavor; None in older records. Another flavor may select them."""
    why_not_now: str = ""
    """Why this cycle begins no rental although renting pays; empty if it does."""
    now: Instant

    @property
    def next_size(self) -> int | None:
        """The largest size below the reserved number of pods; None if there is none."""
        return max((size for size in self.sizes if size < self.workload.pods), default=None)


class BurstCheckAction(StrEnum):
    """Action for a Workload that waits for the check."""

    WAIT = "WAIT"
    """The check stays Pending: nodes are starting, or another check comes first."""
    RENT = "RENT"
    """Rent nodes. The check stays Pending until they are ready."""
    ADMIT = "ADMIT"
    """The nodes are ready. Kueue may admit the job."""
    RESIZE = "RESIZE"
    """The reserved number of pods is no size of the job. The attempt stops, and the next asks for a smaller size."""
    RETRY = "RETRY"
    """Nothing is rented now. Kueue releases the quota and tries again later."""
    REJECT = "REJECT"
    """Nothing can ever be rented for it, and its queue has no flavor without this check."""


class BurstCheckDecision(Value):
    """The answer to a check, and the reason. Replays from `facts`."""

    action: BurstCheckAction
    reason: str
    alternatives: tuple[Alternative, ...] = ()
    answer: BurstCheckAnswer
    facts: BurstCheckFacts
    placement_key: str = ""
    """Key that two choices of a pool share if they differ only in their figures; empty if no pool was chosen."""

    @property
    def note_key(self) -> str:
        """Key that two answers to one reservation of quota share if they differ only in their figures."""
        workload = self.facts.workload
        subject = f"{workload.job_name}/{workload.check}/{workload.retry_count}/{self.action}"
        return f"{subject}/{self.placement_key or self.reason}"[:_MAX_NOTE_KEY]


def decide_burst_check(facts: BurstCheckFacts) -> BurstCheckDecision:
    """Decide the answer to the check of a Workload that Kueue has reserved quota for."""
    workload, rental = facts.workload, facts.rental
    if not facts.job_id:
        return _rejection(
            facts, "Evenkeel has not created this job, and rents only for its own: submit it to Evenkeel."
        )
    if workload.pods not in (facts.nodes, *facts.sizes):
        needed_text = f"the job needs {count_of(facts.nodes, 'node')}"
        reserved_text = f"Kueue reserved quota for {count_of(workload.pods, 'pod')}, but {needed_text}"
        if facts.next_size:
            reason = f"{reserved_text}, or a smaller size. Its next attempt asks for {facts.next_size}."
            return _decision_of(facts, BurstCheckAction.RESIZE, reason)
        return _decision_of(facts, BurstCheckAction.RETRY, f"{reserved_text}. Evenkeel rents only for a whole job.")
    if workload.open_checks:
        checks = ", ".join(workload.open_checks)
        return _decision_of(
            facts, BurstCheckAction.WAIT, f"Evenkeel rents once the other checks have passed: {checks}."
        )
    if rental is not None and rental.state.hosts_holder and rental.nodes != workload.pods:
        rented_text = count_of(rental.nodes, f"node of {rental.pool} is", f"nodes of {rental.pool} are")
        needed_text = f"the job needs {count_of(workload.pods, 'node')}"
        reason = f"{rented_text} rented, but {needed_text}. Evenkeel rents again after their release."
        return _decision_of(facts, BurstCheckAction.RETRY, reason)
    if rental is not None and rental.state is RentalState.READY:
        subject = count_of(rental.nodes, f"node of {rental.pool} is", f"nodes of {rental.pool} are")
        return _decision_of(facts, BurstCheckAction.ADMIT, f"{subject} rented for the job and ready.")
    if rental is not None and rental.state is RentalState.OPENING:
        return _decision_of(facts, BurstCheckAction.WAIT, rental.reason)
    assert facts.placement is not None  # only jobs that have a rental need no choice
    placement = choose_pool(facts.placement)
    if placement.action is PlacementAction.RENT:
        if facts.why_not_now:
            return _decision_of(facts, BurstCheckAction.WAIT, facts.why_not_now, placement.alternatives)
        return _decision_of(facts, BurstCheckAction.RENT, placement.reason, placement.alternatives, placement.note_key)
    rented_pools = [candidate for candidate in facts.placement.candidates if candidate.pool.market.is_rented]
    if all(candidate.differences for candidate in rented_pools):
        why_nots = " ".join(f"{candidate.pool.name}: {candidate.differences[0]}" for candidate in rented_pools)
        reason = f"No pool that Evenkeel may rent from can run this job. {why_nots or 'The policy lists no pool.'}"
        if _may_pass(facts, rented_pools):
            return _decision_of(facts, BurstCheckAction.RETRY, reason, placement.alternatives, placement.note_key)
        return _rejection(facts, reason, placement.alternatives)
    return _decision_of(facts, BurstCheckAction.RETRY, placement.reason, placement.alternatives, placement.note_key)


def _may_pass(facts: BurstCheckFacts, rented_pools: Sequence[CandidatePool]) -> bool:
    """Whether a pool may run the job later: Kueue may reserve another flavor, and the policy may list another pool."""
    if facts.pools_outside_flavor is None:
        return False
    outside = set(facts.pools_outside_flavor)
    return not rented_pools or any(
        candidate.pool.name in outside and len(candidate.differences) == 1 for candidate in rented_pools
    )


def _rejection(facts: BurstCheckFacts, reason: str, alternatives: Sequence[Alternative] = ()) -> BurstCheckDecision:
    """Return the answer for a cause that does not pass by itself.

    A rejected Workload stays inactive, so it never gets quota of a flavor that needs no check. It is rejected only if
    its queue has no such flavor.
    """
    action = BurstCheckAction.REJECT if facts.workload.covers_all_flavors else BurstCheckAction.RETRY
    return _decision_of(facts, action, reason, alternatives, is_permanent=True)


_STATES: Mapping[BurstCheckAction, BurstCheckState] = {
    BurstCheckAction.WAIT: BurstCheckState.PENDING,
    BurstCheckAction.RENT: BurstCheckState.PENDING,
    BurstCheckAction.ADMIT: BurstCheckState.READY,
    BurstCheckAction.RESIZE: BurstCheckState.RETRY,
    BurstCheckAction.RETRY: BurstCheckState.RETRY,
    BurstCheckAction.REJECT: BurstCheckState.REJECTED,
}


def _decision_of(
    facts: BurstCheckFacts,
    action: BurstCheckAction,
    reason: str,
    alternatives: Sequence[Alternative] = (),
    placement_key: str = "",
    *,
    is_permanent: bool = False,
) -> BurstCheckDecision:
    is_admitted = action is BurstCheckAction.ADMIT and facts.rental is not None
    selector = {RENTAL_NODE_LABEL: facts.rental.name} if is_admitted and facts.rental else {}
    requeue = None
    if _STATES[action] is BurstCheckState.RETRY:
        doubled_seconds = _FIRST_RETRY_SECONDS * 2 ** min(facts.workload.retry_count, 10)
        requeue = _LONGEST_RETRY_SECONDS if is_permanent else min(_LONGEST_RETRY_SECONDS, doubled_seconds)
    return BurstCheckDecision(
        action=action,
        reason=reason,
        alternatives=tuple(alternatives),
        answer=BurstCheckAnswer(
            state=_STATES[action],
            message=reason[:MAX_MESSAGE],
            node_selector=selector,
            requeue_after_seconds=requeue,
        ),
        facts=facts,
        placement_key=placement_key,
    )


# ---------------------------------------------------------------- facts


def burst_check_facts(
    workload: CheckedWorkload,
    job: Job | None,
    rental: Rental | None,
    context: PlacementContext,
    policy: Policy,
    done_seconds: float = 0,
) -> BurstCheckFacts:
    """Return the facts that the answer to a check is decided from.

    Args:
        workload: The Workload. Kueue waits for the check.
        job: The job whose current attempt controls it; None if there is none.
        rental: The job's open rental.
        context: The nodes, charges, rentals and refusals of this moment.
        policy: Pools, prices and caps.
        done_seconds: Run time of the job's earlier attempts.
    """
    facts = BurstCheckFacts(
        workload=workload,
        job_id=job.job_id if job else "",
        nodes=job.size if job else 0,
        sizes=_smaller_sizes(job) if job else (),
        rental=_rental_of_check(rental) if rental else None,
        now=context.now,
    )
    if job is None or (rental is not None and rental.state.hosts_holder):
        return facts
    if workload.pods in facts.sizes:
        job = job.replace(spec=job.spec.replace(nodes=workload.pods))
    placement = placement_facts(job, context, policy, done_seconds)
    outside_flavor = {
        pool.name: why_not for pool in policy.burst.pools if (why_not := _why_flavor_forbids(workload, pool, policy))
    }
    candidates = tuple(
        candidate.replace(differences=(*outside_flavor[candidate.pool.name], *candidate.differences))
        if candidate.pool.name in outside_flavor and candidate.pool.market.is_rented
        else candidate
        for candidate in placement.candidates
    )
    return facts.replace(
        placement=placement.replace(candidates=candidates), pools_outside_flavor=tuple(sorted(outside_flavor))
    )


def _smaller_sizes(job: Job) -> tuple[int, ...]:
    """Return the sizes below the requested number that Kueue may admit. It supports this for a `Job` only."""
    sizes = job.spec.sizes.legal if job.spec.sizes and job.spec.kind is WorkloadKind.JOB else ()
    return tuple(size for size in sizes if size < job.size)


def _rental_of_check(rental: Rental) -> RentalOfCheck:
    return RentalOfCheck(
        name=rental.name,
        state=rental.state,
        pool=rental.offer.pool,
        nodes=rental.nodes,
        reason=rental.reason,
    )


def _why_flavor_forbids(workload: CheckedWorkload, pool: RentedPool, policy: Policy) -> tuple[str, ...]:
    """Return why pods with the quota of a flavor could not run in a pool; empty if they could.

    Kueue adds the flavor's labels to the node selector. A pool without such a label has no node for the pods.
    """
    if pool.cluster != workload.cluster:
        return (f"The Workload is in cluster {workload.cluster}.",)
    known_labels = {
        KARPENTER_LABEL: pool.name,
        "karpenter.sh/capacity-type": str(pool.market),
        "node.kubernetes.io/instance-type": pool.instance_type,
        "kubernetes.io/arch": environment_in(pool, {}, policy.hardware).architecture,
        "kubernetes.io/os": "linux",
        **({"topology.kubernetes.io/zone": pool.zone} if pool.zone else {}),
        **pool.labels,
    }
    for key, value in sorted(workload.node_labels.items()):
        if known_labels.get(key) != value:
            flavors = ", ".join(workload.flavors)
            return (f"Kueue's flavor {flavors} selects nodes with {key}={value}.",)
    return ()


# ---------------------------------------------------------------- which Workloads


def job_of_check(workload: CheckedWorkload, snapshot: CycleSnapshot, job_uids: Mapping[str, str]) -> Job | None:
    """Return the job whose current attempt controls a Workload; None if there is none.

    Args:
        workload: A Workload with the check.
        snapshot: The snapshot of the cycle, with the jobs that hold charges.
        job_uids: Job id → UID of the Kubernetes Job of its current attempt.
    """
    for charge in snapshot.live_charges:
        if f"{charge.job_id}-a{charge.attempt}" == workload.job_name and charge.cluster == workload.cluster:
            job = snapshot.known_job(charge.job_id)
            if job and job.current_attempt == charge.attempt and job_uids.get(charge.job_id) == workload.job_uid:
                return job
    return None


def begins_rental(decision: BurstCheckDecision) -> PlacementDecision | None:
    """Return the placement that a decision carries out; None if it rents nothing."""
    if decision.action is not BurstCheckAction.RENT or decision.facts.placement is None:
        return None
    return choose_pool(decision.facts.placement)
