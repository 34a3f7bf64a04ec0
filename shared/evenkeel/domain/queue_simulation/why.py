"""Why a job is pending: a sentence, the compared figures, and the smallest changes that would admit it.

Each change was found by running the scheduler with it. Each search is bounded, and treats the job as the head of its
queue; the jobs before it are listed separately.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from evenkeel.domain.kueue import quantities
from evenkeel.domain.kueue.cycle_decisions import CycleDecision, Result
from evenkeel.domain.kueue.objects import PODS, Admitted, Cohort, Flavor, Queue, StopPolicy, Workload
from evenkeel.domain.kueue.scheduler import Scheduler
from evenkeel.domain.kueue.snapshot import SchedulerRules
from evenkeel.domain.queue_simulation.admitting_change import AdmittingChange
from evenkeel.domain.queue_simulation.documents import Output
from evenkeel.domain.queue_simulation.plan_report import DecisionAnswer, decision_of

_SEARCH_LIMIT = 64
"""Maximum flavors, priorities and running jobs that a search tries."""
_GRANTED = frozenset({Result.ADMITTED, Result.PREEMPTING})


class Why(Output):
    """Why a job is pending, or was admitted."""

    job: str
    queue: str
    sentence: str
    position: int | None
    """Its position in the queue, from 1; null if it is not pending."""
    before: tuple[str, ...]
    """The first ten jobs before it in the queue."""
    decision: DecisionAnswer
    changes: tuple[AdmittingChange, ...]
    """Changes that would each admit the job; empty if it is admitted."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The declarations and the workloads that hold quota: enough to run the scheduler with a change."""

    queues: tuple[Queue, ...]
    cohorts: tuple[Cohort, ...]
    flavors: tuple[Flavor, ...]
    rules: SchedulerRules
    admitted: tuple[Admitted, ...]
    now: float

    @classmethod
    def of(cls, scheduler: Scheduler) -> "WhatIf":
        queues = scheduler.snapshot.queues.values()
        return cls(
            tuple(queue.spec for queue in queues),
            scheduler.cohorts,
            tuple(scheduler.snapshot.flavors.values()),
            scheduler.rules,
            tuple(admitted for queue in queues for admitted in queue.admitted.values()),
            scheduler.snapshot.now,
        )

    def decide(self, workload: Workload, without: frozenset[str] = frozenset()) -> CycleDecision:
        """Return the decision about a job as if it were the only pending job.

        Args:
            workload: The job.
            without: Jobs that are left out, as if they had ended.
        """
        scheduler = Scheduler(self.queues, self.cohorts, self.flavors, self.rules)
        for admitted_workload in self.admitted:
            if admitted_workload.workload.workload_id not in without:
                scheduler.restore(replace(admitted_workload))
        scheduler.submit(workload)
        decisions = scheduler.cycle(self.now)
        while (
            decisions
            and decisions[0].result not in _GRANTED
            and scheduler.pending[workload.queue].get(workload.workload_id)
        ):
            flavor_cursor = decisions[0].assignment.flavor_cursor
            if decisions[0].parked or flavor_cursor is None or not flavor_cursor.has_more:
                break
            decisions = scheduler.cycle(self.now)  # the flavor scan was not complete
        return decisions[0]


def why(scheduler: Scheduler, workload: Workload) -> Why:
    """Explain why a job is pending."""
    state = WhatIf.of(scheduler)
    if not scheduler.snapshot.queues[workload.queue].spec.is_active:
        state = replace(state, queues=tuple(_started(queue, workload.queue) for queue in state.queues))
    decision = state.decide(workload)
    waiting = [pending_workload.workload.workload_id for pending_workload in scheduler.pending[workload.queue].all()]
    position = waiting.index(workload.workload_id) + 1 if workload.workload_id in waiting else None
    evicted = frozenset(
        admitted_workload.workload.workload_id for admitted_workload in state.admitted if admitted_workload.is_evicted
    )
    is_granted = decision.result in _GRANTED
    return Why(
        job=workload.workload_id,
        queue=workload.queue,
        sentence=_sentence(scheduler, workload, decision, position),
        position=position,
        before=tuple(waiting[: position - 1][:10]) if position else (),
        decision=decision_of(decision, evicted, scheduler.pending[workload.queue].sticky),
        changes=() if is_granted or workload.inadmissible_reason else tuple(_changes(state, scheduler, workload)),
    )


def _started(queue: Queue, name: str) -> Queue:
    return replace(queue, stop=StopPolicy.NONE, inactive="") if queue.name == name else queue


def _sentence(scheduler: Scheduler, workload: Workload, decision: CycleDecision, position: int | None) -> str:
    queue = scheduler.snapshot.queues[workload.queue].spec
    if not queue.is_active:
        return f"Queue {queue.name} is inactive: {queue.inactive or f'its stop policy is {queue.stop}'}."
    sticky = scheduler.pending[workload.queue].sticky
    if sticky and sticky != workload.workload_id:
        stopping = ", ".join(
            name
            for each_queue in scheduler.snapshot.queues.values()
            for name, admitted_workload in sorted(each_queue.admitted.items())
            if admitted_workload.is_evicted
        )
        return f"{sticky} stays the head of {queue.name} until {stopping or 'its victims'} has stopped."
    if decision.result in _GRANTED and position is not None and position > 1:
        alone = "be admitted" if decision.result is Result.ADMITTED else "preempt jobs"
        return f"Jobs before this job in {queue.name}: {position - 1}. Without them, this job would {alone}."
    worst = _tightest(decision)
    return f"{decision.reason} {worst}".strip()


def _tightest(decision: CycleDecision) -> str:
    """Return the last comparison of the last flavor, which decided."""
    for attempts in reversed(decision.assignment.attempts):
        for attempt in reversed(attempts):
            if attempt.why:
                return f"({attempt.why})"
            for inequality in reversed(attempt.compared):
                requested, available = (
                    quantities.short_text(inequality.resource, quantities.text(inequality.resource, amount))
                    for amount in (inequality.wanted, inequality.available)
                )
                return f"({attempt.flavor}/{inequality.resource}: {requested} requested, {available} available)"
    return ""


def _changes(state: WhatIf, scheduler: Scheduler, workload: Workload) -> Iterable[AdmittingChange]:
    for change in (
        _by_quota(state, workload),
        _by_priority(state, scheduler, workload),
        _by_size(state, workload),
        _by_waiting(state, scheduler, workload),
    ):
        if change is not None:
            yield change


def _smallest(upper_bound: int, is_enough: Callable[[int], bool]) -> int | None:
    """Return the smallest sufficient number from 1 to the bound, by binary search; None if the bound is not enough."""
    if upper_bound < 1 or not is_enough(upper_bound):
        return None
    low, high = 1, upper_bound
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle + 1, high)
    return low


def _minimize_each(upper_bounds: dict[str, int], is_admitted_with: Callable[[dict[str, int]], bool]) -> dict[str, int]:
    """Return amounts that work. No single amount can be smaller while all other amounts stay the same."""
    amounts, last_amounts = dict(upper_bounds), dict[str, int]()
    while amounts != last_amounts:  # a smaller amount of one resource may allow a smaller amount of another
        last_amounts = dict(amounts)
        for name in sorted(amounts):
            other_amounts = dict(amounts)

            def suffices(amount: int, name: str = name, other_amounts: dict[str, int] = other_amounts) -> bool:
                return is_admitted_with({**other_amounts, name: amount})

            amounts[name] = 0 if suffices(0) else _smallest(amounts[name], suffices) or amounts[name]
    return {name: amount for name, amount in amounts.items() if amount}


def _by_quota(state: WhatIf, workload: Workload) -> AdmittingChange | None:
    """Find the flavor with the smallest addition to its nominal quota that admits the job without preemption."""
    requested: dict[str, int] = {}
    for pod_set in workload.pod_sets:
        for resource, amount in {**pod_set.requests_of(pod_set.count), PODS: pod_set.count}.items():
            requested[resource] = requested.get(resource, 0) + amount
    (queue,) = (candidate for candidate in state.queues if candidate.name == workload.queue)
    smallest: tuple[int, str, dict[str, int]] | None = None
    flavors = [(group, quotas.flavor) for group in queue.groups for quotas in group.flavors]
    shortfall = {resource: -min(0, _free_amount(state, workload, resource)) for resource in requested}
    for group, flavor in flavors[:_SEARCH_LIMIT]:
        upper_bounds = {
            name: requested[name] + shortfall.get(name, 0) for name in group.resources if requested.get(name)
        }

        def is_admitted_with(addition: dict[str, int], flavor: str = flavor) -> bool:
            changed = replace(
                state, queues=tuple(_with_more(queue_spec, queue.name, flavor, addition) for queue_spec in state.queues)
            )
            return changed.decide(workload).result is Result.ADMITTED

        if not upper_bounds or not is_admitted_with(upper_bounds):
            continue
        addition = _minimize_each(upper_bounds, is_admitted_with)
        if addition and (smallest is None or sum(addition.values()) < smallest[0]):
            smallest = (sum(addition.values()), flavor, addition)
    if smallest is None:
        return None
    _, flavor, addition = smallest
    amounts = {name: quantities.text(name, amount) for name, amount in addition.items()}
    text = " and ".join(f"{quantities.short_text(name, amount)} more of {name}" for name, amount in amounts.items())
    return AdmittingChange(
        kind="quota", message=f"{text} on {flavor} for {queue.name}.", flavor=flavor, amounts=amounts
    )


def _free_amount(state: WhatIf, workload: Workload, resource: str) -> int:
    scheduler = Scheduler(state.queues, state.cohorts, state.flavors, state.rules)
    for admitted_workload in state.admitted:
        scheduler.restore(replace(admitted_workload))
    quota_node = scheduler.snapshot.queues[workload.queue].quota_node
    return min((quota_node.available(key) for key in quota_node.cells if key[1] == resource), default=0)


def _with_more(queue: Queue, name: str, flavor: str, addition: dict[str, int]) -> Queue:
    if queue.name != name:
        return queue
    return replace(
        queue,
        groups=tuple(
            replace(
                group,
                flavors=tuple(
                    replace(
                        quotas,
                        quotas={
                            resource: replace(quota, nominal=quota.nominal + addition.get(resource, 0))
                            for resource, quota in quotas.quotas.items()
                        },
                    )
                    if quotas.flavor == flavor
                    else quotas
                    for quotas in group.flavors
                ),
            )
            for group in queue.groups
        ),
    )


def _by_priority(state: WhatIf, scheduler: Scheduler, workload: Workload) -> AdmittingChange | None:
    """Find the lowest priority that lets the job preempt others."""
    root = scheduler.snapshot.queues[workload.queue].quota_node.root
    queues = {quota_node.name for quota_node in root.queues} | {workload.queue}
    # A policy compares priorities: the job needs a higher one, or the same one and an earlier position in the queue.
    present = {
        admitted_workload.workload.priority
        for admitted_workload in state.admitted
        if admitted_workload.workload.queue in queues
    }
    priorities = present | {level + 1 for level in present}
    for priority in sorted(priority for priority in priorities if priority > workload.priority)[:_SEARCH_LIMIT]:
        decision = state.decide(replace(workload, priority=priority))
        if decision.result in _GRANTED:
            names = ", ".join(victim.workload_id for victim in decision.victims)
            return AdmittingChange(kind="priority", message=f"Priority {priority}: evicts {names}.", priority=priority)
    return None


def _by_size(state: WhatIf, workload: Workload) -> AdmittingChange | None:
    """Find the largest size, with all pod sets in proportion, that is admitted without preemption."""
    reducible_count = sum(max(0, pod_set.count - 1) for pod_set in workload.pod_sets)

    def sized(step: int) -> Workload:
        pod_sets = tuple(
            replace(pod_set, count=pod_set.count - max(0, pod_set.count - 1) * step // reducible_count, min_count=None)
            for pod_set in workload.pod_sets
        )
        return replace(workload, pod_sets=pod_sets)

    steps = _smallest(reducible_count, lambda step: state.decide(sized(step)).result is Result.ADMITTED)
    if steps is None:
        return None
    counts = sized(steps).counts
    text = ", ".join(f"{pod_set.name} {count}" for pod_set, count in zip(workload.pod_sets, counts, strict=True))
    return AdmittingChange(kind="size", message=f"A smaller size: {text}.", counts=counts)


def _by_waiting(state: WhatIf, scheduler: Scheduler, workload: Workload) -> AdmittingChange | None:
    """Find the running jobs that must end to admit the job: evicted jobs first, then the longest-running."""
    root = scheduler.snapshot.queues[workload.queue].quota_node.root
    queues = {quota_node.name for quota_node in root.queues} | {workload.queue}
    running = sorted(
        (admitted_workload for admitted_workload in state.admitted if admitted_workload.workload.queue in queues),
        key=lambda admitted_workload: (
            not admitted_workload.is_evicted,
            admitted_workload.reserved_at or state.now,
            admitted_workload.workload.workload_id,
        ),
    )[:_SEARCH_LIMIT]
    names = [admitted_workload.workload.workload_id for admitted_workload in running]

    def is_admitted_without(gone: Iterable[str]) -> bool:
        return state.decide(workload, frozenset(gone)).result is Result.ADMITTED

    count = _smallest(len(names), lambda count: is_admitted_without(names[:count]))
    if count is None:
        return None
    needed, earlier_names = names[:count], list[str]()
    while needed != earlier_names:
        earlier_names = needed
        for name in reversed(earlier_names):
            without = [resource for resource in needed if resource != name]
            if without and is_admitted_without(without):
                needed = without
    return AdmittingChange(kind="wait", message=f"The end of {', '.join(needed)}.", jobs=tuple(needed))
