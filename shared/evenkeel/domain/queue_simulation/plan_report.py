"""The answer of a plan: the decisions of each cycle with all facts behind them, and the state at the end."""

import math
from collections.abc import Sequence

from evenkeel.domain.kueue import quantities
from evenkeel.domain.kueue.assignment import FlavorAttempt, FlavorMode
from evenkeel.domain.kueue.capacity import QuotaNode
from evenkeel.domain.kueue.cycle_decisions import CycleDecision, Result
from evenkeel.domain.kueue.fair_sharing import share_of
from evenkeel.domain.kueue.objects import Admitted, TopologyAssignment
from evenkeel.domain.kueue.scheduler import Scheduler
from evenkeel.domain.queue_simulation.documents import FlavorAmount, Output, amounts_of

_MODES = {
    FlavorMode.NO_FIT: "NoFit",
    FlavorMode.NO_CANDIDATES: "NoCandidates",
    FlavorMode.PREEMPT: "Preempt",
    FlavorMode.RECLAIM: "Reclaim",
    FlavorMode.FIT: "Fit",
}

_MAX_NAMED = 10
"""Maximum jobs that a sentence lists by name."""


class ChosenFlavor(Output):
    """The flavor of a resource of a pod set."""

    flavor: str
    mode: str
    """NoCandidates, Preempt, Reclaim or Fit. The first three are Kueue's `Preempt`."""
    level: int
    """Borrowing level: 0 without borrowing, otherwise the cohort's height."""
    tried: int
    """Index of the last flavor examined; -1 if it was the last of its list."""


class DomainAnswer(Output):
    """A domain of a topology, and the pods in it."""

    values: tuple[str, ...]
    """A value for each level."""
    count: int


class TopologyAnswer(Output):
    """The domains of a pod set: Kueue's TopologyAssignment."""

    levels: tuple[str, ...]
    """Node labels: the host name alone if the topology ends with it, otherwise all levels."""
    domains: tuple[DomainAnswer, ...]


class PodSetAnswer(Output):
    """The flavors of one pod set."""

    name: str
    count: int
    """The admitted count; smaller than requested after partial admission."""
    flavors: dict[str, ChosenFlavor]
    """By resource; empty if no flavor was found."""
    topology: TopologyAnswer | None = None
    """Its domains; for a job that preempts, those that it gets afterwards. null without a topology."""


class VictimAnswer(Output):
    """A job that would be preempted, and why."""

    job: str
    queue: str
    reason: str
    """InClusterQueue, InCohortReclamation, InCohortFairSharing or InCohortReclaimWhileBorrowing."""
    already_evicted: bool
    """Whether it was asked to stop before this cycle."""


class ComparedAmounts(Output):
    """The inequality that decided about a resource of a flavor."""

    resource: str
    wanted: str
    """Includes the requests of earlier pod sets of the same job."""
    available: str
    potential: str
    nominal: str
    used: str
    mode: str
    level: int


class ConsideredFlavor(Output):
    """A flavor that was examined for a pod set."""

    pod_set: str
    flavor: str
    mode: str
    level: int
    pending: str
    why: str
    compared: tuple[ComparedAmounts, ...]


class ShortAnswer(Output):
    """The amounts by which a queue falls below its own quota."""

    queue: str
    amounts: tuple[FlavorAmount, ...]


class DecisionAnswer(Output):
    """The decision about the head of a queue."""

    job: str
    queue: str
    result: str
    """Admitted. Preempting: its victims were asked to stop; the job waits. Deferred: the job fits when the present
    evictions have ended. Skipped: an earlier job of this cycle took quota or victims. Blocked: the job fits, but
    waits until pods are ready. NoCandidates: the job fits only after preemption, and no job may be preempted. NoFit.
    Inadmissible: its queue does not accept it."""
    reason: str
    """The reason as a sentence."""
    pending: str
    """NoMatchingFlavor, ExceedsMaxQuota, WaitingForQuota, TopologyPlacementFailed or WaitingForPodsReady; empty
    otherwise."""
    level: int
    pod_sets: tuple[PodSetAnswer, ...]
    usage: tuple[FlavorAmount, ...]
    """Quota that it would use; for a larger slice, the additional quota."""
    victims: tuple[VictimAnswer, ...]
    """In the order in which they were chosen."""
    below: tuple[ShortAnswer, ...]
    """Queues that the evictions push below their own quota, and by how much."""
    replaces: str
    """The smaller slice that it replaces."""
    reserved: tuple[FlavorAmount, ...]
    """Capacity reserved for it until the cycle ends."""
    recomputed: bool
    """Whether another job already preempted its victims or took its domains, so that the cycle decided again."""
    considered: tuple[ConsideredFlavor, ...]
    checks: tuple[str, ...] = ()
    """Admission checks that the job must pass before it starts. It holds its quota meanwhile. Empty: it starts."""
    requeue: str
    """none (admitted), active, parked (until a wake-up) or sticky (stays the head)."""


class CycleAnswer(Output):
    """A Kueue cycle, with its decisions in their order."""

    number: int
    at: float
    decisions: tuple[DecisionAnswer, ...]


class QuotaUsage(Output):
    """A flavor and resource of a queue or cohort."""

    flavor: str
    resource: str
    nominal: str
    subtree: str
    """Nominal quota plus the quota that its children can lend."""
    used: str
    borrowed: str
    available: str
    """The amount it could use now; 0 if its tree uses more than its quota."""
    potential: str
    """The maximum that the queue could use in an empty tree."""


class ShareAnswer(Output):
    """The borrowing of a node, by the rules of fair sharing."""

    value: int | None
    """Per mille, weighted, rounded up. null is infinite: weight 0 and borrowing."""
    precise: float | None
    """The share, not rounded."""
    resource: str
    """The resource with the largest share."""
    weight: float


class NodeAnswer(Output):
    """A queue or cohort with its quotas."""

    name: str
    parent: str
    quotas: tuple[QuotaUsage, ...]
    share: ShareAnswer


class QueueAnswer(NodeAnswer):
    """A queue with its quotas and its waiting jobs."""

    inactive: str
    """Why the queue is inactive; empty if it is active."""
    active: tuple[str, ...]
    """Jobs that the next cycles try, in order."""
    parked: tuple[str, ...]
    """Jobs that are not tried until a wake-up."""
    backing_off: tuple[str, ...]
    """Jobs that are not tried until their backoff ends."""
    sticky: str
    """The job that stays the head until its victims have stopped."""


class AdmittedAnswer(Output):
    """A job that holds quota."""

    job: str
    queue: str
    at: float | None
    evicted: bool
    pod_sets: tuple["AdmittedPodSet", ...]
    usage: tuple[FlavorAmount, ...]


class AdmittedPodSet(Output):
    """A pod set of a job that holds quota."""

    name: str
    count: int
    flavors: dict[str, str]
    topology: TopologyAnswer | None = None


class UnqueuedAnswer(Output):
    """A job in no queue, with the reason."""

    job: str
    reason: str


class State(Output):
    """The queues, cohorts and jobs at one moment."""

    at: float
    queues: tuple[QueueAnswer, ...]
    cohorts: tuple[NodeAnswer, ...]
    admitted: tuple[AdmittedAnswer, ...]
    unqueued: tuple[UnqueuedAnswer, ...]
    """Jobs that are in no queue, and why."""


class SettingAnswer(Output):
    """A preemption setting of a queue."""

    queue: str
    field: str
    """Below `spec.preemption` of a ClusterQueue."""
    value: str


class EvictionLoopReport(Output):
    """Jobs that evict each other without end.

    The plan stops at the first repeated state, and continues with later events.
    """

    at: float
    last_cycle: int
    """Number of the cycle after which the state repeated."""
    jobs: tuple[str, ...]
    """Jobs that evict or are evicted, by name."""
    settings: tuple[SettingAnswer, ...]
    """Settings that would each end the loop. Each was found by a run of the scheduler with this setting."""

    @property
    def sentence(self) -> str:
        """Describe the loop and the settings that end it."""
        shown = ", ".join(self.jobs[:_MAX_NAMED])
        others_text = f" and {len(self.jobs) - _MAX_NAMED} more" if len(self.jobs) > _MAX_NAMED else ""
        text = f"jobs {shown}{others_text} evict each other without end; the plan stops after cycle {self.last_cycle}."
        changes = [
            f"`preemption.{setting.field}: {setting.value}` of queue {setting.queue}" for setting in self.settings
        ]
        if not changes:
            return (
                f"{text} No change of one preemption setting ends the loop. "
                "`--evictions held` shows the plan up to the point where the jobs stop"
            )
        return f"{text} Each of these settings alone ends it: {'; '.join(changes)}"


class Plan(Output):
    """The answer of `evenkeel plan -o json`."""

    profile: str
    fair_sharing: bool
    cycles: tuple[CycleAnswer, ...]
    loops: tuple[EvictionLoopReport, ...] = ()
    """Eviction loops; only with `--evictions released`."""
    end: State
    warnings: tuple[str, ...]


# ---------------------------------------------------------------- from the scheduler


def decision_of(decision: CycleDecision, evicted_before: frozenset[str], sticky: str) -> DecisionAnswer:
    """Return a decision as a part of the answer."""
    workload, assignment = decision.workload, decision.assignment
    is_in = decision.result is Result.ADMITTED
    requeue = "none" if is_in else "parked" if decision.parked else "active"
    return DecisionAnswer(
        job=workload.workload_id,
        queue=workload.queue,
        result=str(decision.result),
        reason=decision.reason,
        pending=str(decision.pending),
        level=assignment.level,
        pod_sets=tuple(
            PodSetAnswer(
                name=pod_set.name,
                count=count,
                flavors={
                    resource: ChosenFlavor(
                        flavor=choices.flavor, mode=_MODES[choices.mode], level=choices.level, tried=choices.tried
                    )
                    for resource, choices in sorted(
                        assignment.choices[index].items() if index < len(assignment.choices) else ()
                    )
                },
                topology=_topology_answer(assignment.topology, index),
            )
            for index, (pod_set, count) in enumerate(zip(workload.pod_sets, assignment.counts, strict=True))
        ),
        usage=amounts_of(assignment.use),
        victims=tuple(
            VictimAnswer(
                job=victim.workload_id,
                queue=victim.admitted.workload.queue,
                reason=str(victim.reason),
                already_evicted=victim.workload_id in evicted_before,
            )
            for victim in decision.victims
        ),
        below=tuple(
            ShortAnswer(queue=queue, amounts=amounts_of(amounts))
            for queue, amounts in sorted(decision.below_nominal.items())
        ),
        replaces=workload.replaces,
        reserved=amounts_of(dict(decision.reserved)),
        recomputed=decision.was_recomputed,
        considered=tuple(
            _considered_flavor(workload.pod_sets[index].name, attempt)
            for index, attempts in enumerate(assignment.attempts)
            for attempt in attempts
        ),
        requeue="sticky" if sticky == workload.workload_id and not is_in else requeue,
    )


def _topology_answer(topology: Sequence[TopologyAssignment | None], index: int) -> TopologyAnswer | None:
    assignment = topology[index] if index < len(topology) else None
    if assignment is None:
        return None
    domains = tuple(DomainAnswer(values=domain.values, count=domain.count) for domain in assignment.domains)
    return TopologyAnswer(levels=assignment.levels, domains=domains)


def _considered_flavor(pod_set: str, attempt: FlavorAttempt) -> ConsideredFlavor:
    return ConsideredFlavor(
        pod_set=pod_set,
        flavor=attempt.flavor,
        mode=_MODES[attempt.mode],
        level=attempt.level,
        pending=str(attempt.pending),
        why=attempt.why,
        compared=tuple(
            ComparedAmounts(
                resource=inequality.resource,
                mode=_MODES[inequality.mode],
                level=inequality.level,
                **{
                    name: quantities.text(inequality.resource, getattr(inequality, name))
                    for name in ("wanted", "available", "potential", "nominal", "used")
                },
            )
            for inequality in attempt.compared
        ),
    )


def state_of(scheduler: Scheduler, at: float, unqueued: Sequence[tuple[str, str]]) -> State:
    """Return the present state of a scheduler as a part of the answer."""
    queues = []
    for name, queue in sorted(scheduler.snapshot.queues.items()):
        pending, quota_node = scheduler.pending[name], queue.quota_node
        active, parked, blocked = pending.by_state()
        cyclic = "its cohort is its own ancestor" if scheduler.snapshot.tree.is_cyclic(name) else ""
        stop = "" if queue.spec.stop == "None" else f"its stop policy is {queue.spec.stop}"
        queues.append(
            QueueAnswer(
                **_quotas_and_use(quota_node),
                inactive=queue.spec.inactive or stop or cyclic,
                active=tuple(active),
                parked=tuple(parked),
                backing_off=tuple(blocked),
                sticky=pending.sticky,
            )
        )
    admitted = [workload for queue in scheduler.snapshot.queues.values() for workload in queue.admitted.values()]
    return State(
        at=at,
        queues=tuple(queues),
        cohorts=tuple(
            NodeAnswer(**_quotas_and_use(quota_node))
            for _, quota_node in sorted(scheduler.snapshot.tree.cohorts.items())
        ),
        admitted=tuple(
            _admitted_answer(workload)
            for workload in sorted(admitted, key=lambda workload: workload.workload.workload_id)
        ),
        unqueued=tuple(UnqueuedAnswer(job=job, reason=reason) for job, reason in sorted(unqueued)),
    )


def _quotas_and_use(quota_node: QuotaNode) -> dict[str, object]:
    share = share_of(quota_node)
    is_finite = math.isfinite(share.value)
    return {
        "name": quota_node.name,
        "parent": quota_node.parent.name if quota_node.parent else "",
        "quotas": tuple(
            QuotaUsage(
                flavor=key[0],
                resource=key[1],
                nominal=quantities.text(key[1], cell.nominal),
                subtree=quantities.text(key[1], cell.subtree),
                used=quantities.text(key[1], cell.use),
                borrowed=quantities.text(key[1], max(0, cell.use - cell.subtree)),
                available=quantities.text(key[1], max(0, cell.available())),
                potential=quantities.text(key[1], cell.potential),
            )
            for key, cell in sorted(quota_node.cells.items(), key=lambda item: item[0])
            if cell.subtree or cell.use or key in quota_node.quotas
        ),
        "share": ShareAnswer(
            value=math.ceil(share.value) if is_finite else None,
            precise=share.value if is_finite else None,
            resource=share.resource,
            weight=share.weight,
        ),
    }


def _admitted_answer(workload: Admitted) -> AdmittedAnswer:
    return AdmittedAnswer(
        job=workload.workload.workload_id,
        queue=workload.workload.queue,
        at=workload.reserved_at,
        evicted=workload.is_evicted,
        pod_sets=tuple(
            AdmittedPodSet(
                name=pod_set.name,
                count=count,
                flavors=dict(sorted(flavors.items())),
                topology=_topology_answer(workload.topology, index),
            )
            for index, (pod_set, flavors, count) in enumerate(
                zip(workload.workload.pod_sets, workload.flavors, workload.counts, strict=True)
            )
        ),
        usage=amounts_of(workload.use),
    )
