"""Why a job waits: one sentence, what was weighed, and the smallest changes that flip the answer.

A change is not guessed: the scheduler runs on a world that has it. Each search is bounded, and looks at the job as if
it were its queue's head; who is before it is said beside.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from pydantic import Field

from evenkeel.domain.kueue import quantities
from evenkeel.domain.kueue.capacity import queues_below
from evenkeel.domain.kueue.cycle import Decision, Result, Scheduler
from evenkeel.domain.kueue.documents import Output
from evenkeel.domain.kueue.objects import PODS, Admitted, Cohort, Flavor, Queue, StopPolicy, Workload
from evenkeel.domain.kueue.report import DecisionAnswer, decision_of
from evenkeel.domain.kueue.snapshot import Rules

_MOST_TRIED = 64
"""Flavors, priorities and running jobs that a search looks at."""
_GETS_IN = frozenset({Result.ADMITTED, Result.PREEMPTING})


class Change(Output):
    """One change that alone would get the job in."""

    kind: str = Field(description="quota, priority, size or wait.")
    message: str = Field(alias="said")
    flavor: str = ""
    amounts: dict[str, str] = Field({}, description="quota: how much more nominal quota, by resource.")
    priority: int | None = None
    counts: tuple[int, ...] = ()
    jobs: tuple[str, ...] = Field((), description="wait: jobs whose end would make room.")


class Why(Output):
    """Why one job waits, or runs."""

    job: str
    queue: str
    sentence: str
    position: int | None = Field(description="Its place in the queue, from 1; null where it does not wait.")
    before: tuple[str, ...] = Field(description="At most ten of the jobs before it.")
    decision: DecisionAnswer
    changes: tuple[Change, ...] = Field(description="Each alone would get it in. Empty where it is in.")


@dataclass(frozen=True, slots=True)
class WhatIfState:
    """What is declared, and who holds quota: enough to ask what would be if."""

    queues: tuple[Queue, ...]
    cohorts: tuple[Cohort, ...]
    flavors: tuple[Flavor, ...]
    rules: Rules
    admitted: tuple[Admitted, ...]
    now: float

    @classmethod
    def of(cls, scheduler: Scheduler) -> "WhatIfState":
        teams = scheduler.snapshot.teams.values()
        return cls(
            tuple(team.queue for team in teams),
            scheduler.cohorts,
            tuple(scheduler.snapshot.flavors.values()),
            scheduler.rules,
            tuple(admitted for team in teams for admitted in team.admitted.values()),
            scheduler.snapshot.now,
        )

    def decide(self, workload: Workload, without: frozenset[str] = frozenset()) -> Decision:
        """Return what would be decided about a job, were it the only one to wait."""
        scheduler = Scheduler(self.queues, self.cohorts, self.flavors, self.rules)
        for each in self.admitted:
            if each.workload.workload_id not in without:
                scheduler.restore(replace(each))
        scheduler.submit(workload)
        decisions = scheduler.cycle(self.now)
        while (
            decisions
            and decisions[0].result not in _GETS_IN
            and scheduler.pending[workload.queue].get(workload.workload_id)
        ):
            progress = decisions[0].assignment.progress
            if decisions[0].parked or progress is None or not progress.has_more:
                break
            decisions = scheduler.cycle(self.now)  # the scan of the flavors was not at its end
        return decisions[0]


def why(scheduler: Scheduler, workload: Workload) -> Why:
    """Explain one job that waits."""
    world = WhatIfState.of(scheduler)
    if not scheduler.snapshot.teams[workload.queue].queue.is_active:
        world = replace(world, queues=tuple(_started(each, workload.queue) for each in world.queues))
    decision = world.decide(workload)
    waiting = [each.workload.workload_id for each in scheduler.pending[workload.queue].all()]
    position = waiting.index(workload.workload_id) + 1 if workload.workload_id in waiting else None
    evicted = frozenset(each.workload.workload_id for each in world.admitted if each.is_evicted)
    gets_in = decision.result in _GETS_IN
    return Why(
        job=workload.workload_id,
        queue=workload.queue,
        sentence=_sentence(scheduler, workload, decision, position),
        position=position,
        before=tuple(waiting[: position - 1][:10]) if position else (),
        decision=decision_of(decision, evicted, scheduler.pending[workload.queue].sticky),
        changes=() if gets_in or workload.barred else tuple(_changes(world, scheduler, workload)),
    )


def _started(queue: Queue, name: str) -> Queue:
    return replace(queue, stop=StopPolicy.NONE, inactive="") if queue.name == name else queue


def _sentence(scheduler: Scheduler, workload: Workload, decision: Decision, position: int | None) -> str:
    queue = scheduler.snapshot.teams[workload.queue].queue
    if not queue.is_active:
        return f"Queue {queue.name} takes no part: {queue.inactive or f'its stop policy is {queue.stop}'}."
    sticky = scheduler.pending[workload.queue].sticky
    if sticky and sticky != workload.workload_id:
        stopping = ", ".join(
            name
            for team in scheduler.snapshot.teams.values()
            for name, each in sorted(team.admitted.items())
            if each.is_evicted
        )
        return f"{sticky} stays before it in {queue.name} until {stopping or 'its victims'} has stopped."
    if decision.result in _GETS_IN and position is not None and position > 1:
        return f"{position - 1} jobs are before it in {queue.name}; alone, it would be {str(decision.result).lower()}."
    worst = _tightest(decision)
    return f"{decision.reason} {worst}".strip()


def _tightest(decision: Decision) -> str:
    """Say the inequality that stands nearest to the answer: the last one of the last flavor."""
    for attempts in reversed(decision.assignment.attempts):
        for attempt in reversed(attempts):
            if attempt.why:
                return f"({attempt.why})"
            for each in reversed(attempt.compared):
                wanted, there = (
                    quantities.short_text(each.resource, quantities.text(each.resource, amount))
                    for amount in (each.wanted, each.available)
                )
                sign = "≤" if each.wanted <= each.available else ">"
                return f"({attempt.flavor}/{each.resource}: wants {wanted} {sign} {there} available)"
    return ""


def _changes(world: WhatIfState, scheduler: Scheduler, workload: Workload) -> Iterable[Change]:
    for found in (
        _by_quota(world, workload),
        _by_priority(world, scheduler, workload),
        _by_size(world, workload),
        _by_waiting(world, scheduler, workload),
    ):
        if found is not None:
            yield found


def _least(most: int, works: Callable[[int], bool]) -> int | None:
    """Return the least of 1…most that works, by halving; None where the most does not."""
    if most < 1 or not works(most):
        return None
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if works(middle) else (middle + 1, high)
    return low


def _least_of_each(most: dict[str, int], works: Callable[[dict[str, int]], bool]) -> dict[str, int]:
    """Return amounts that work, none of which can be one less, the others as they are."""
    found, before = dict(most), dict[str, int]()
    while found != before:  # less of one resource may allow less of another: flavors are not always a matter of more
        before = dict(found)
        for name in sorted(found):
            rest = dict(found)

            def enough(amount: int, name: str = name, rest: dict[str, int] = rest) -> bool:
                return works({**rest, name: amount})

            found[name] = 0 if enough(0) else _least(found[name], enough) or found[name]
    return {name: amount for name, amount in found.items() if amount}


def _by_quota(world: WhatIfState, workload: Workload) -> Change | None:
    """Find the flavor and the least more of its nominal quota that gets the job in without sending anybody away."""
    asked: dict[str, int] = {}
    for pod_set in workload.pod_sets:
        for resource, amount in {**pod_set.total(pod_set.count), PODS: pod_set.count}.items():
            asked[resource] = asked.get(resource, 0) + amount
    (queue,) = (each for each in world.queues if each.name == workload.queue)
    best: tuple[int, str, dict[str, int]] | None = None
    flavors = [(group, each.flavor) for group in queue.groups for each in group.flavors]
    over = {resource: -min(0, _free_amount(world, workload, resource)) for resource in asked}
    for group, flavor in flavors[:_MOST_TRIED]:
        most = {name: asked[name] + over.get(name, 0) for name in group.resources if asked.get(name)}

        def works(more: dict[str, int], flavor: str = flavor) -> bool:
            changed = replace(world, queues=tuple(_with_more(each, queue.name, flavor, more) for each in world.queues))
            return changed.decide(workload).result is Result.ADMITTED

        if not most or not works(most):
            continue
        more = _least_of_each(most, works)
        if more and (best is None or sum(more.values()) < best[0]):
            best = (sum(more.values()), flavor, more)
    if best is None:
        return None
    _, flavor, more = best
    amounts = {name: quantities.text(name, amount) for name, amount in more.items()}
    text = " and ".join(f"{quantities.short_text(name, amount)} more of {name}" for name, amount in amounts.items())
    return Change(kind="quota", message=f"{text} on {flavor} for {queue.name}.", flavor=flavor, amounts=amounts)


def _free_amount(world: WhatIfState, workload: Workload, resource: str) -> int:
    scheduler = Scheduler(world.queues, world.cohorts, world.flavors, world.rules)
    for each in world.admitted:
        scheduler.restore(replace(each))
    node = scheduler.snapshot.teams[workload.queue].node
    return min((node.available(key) for key in node.slots if key[1] == resource), default=0)


def _with_more(queue: Queue, name: str, flavor: str, more: dict[str, int]) -> Queue:
    if queue.name != name:
        return queue
    return replace(
        queue,
        groups=tuple(
            replace(
                group,
                flavors=tuple(
                    replace(
                        each,
                        quotas={
                            resource: replace(quota, nominal=quota.nominal + more.get(resource, 0))
                            for resource, quota in each.quotas.items()
                        },
                    )
                    if each.flavor == flavor
                    else each
                    for each in group.flavors
                ),
            )
            for group in queue.groups
        ),
    )


def _by_priority(world: WhatIfState, scheduler: Scheduler, workload: Workload) -> Change | None:
    """Find the least priority that lets it have others evicted."""
    team = scheduler.snapshot.teams[workload.queue]
    queues = {node.name for node in queues_below(team.node.root)} | {workload.queue}
    # Policies ask for more than somebody's priority, or for as much and an earlier place.
    theirs = {each.workload.priority for each in world.admitted if each.workload.queue in queues}
    others = theirs | {each + 1 for each in theirs}
    for priority in sorted(each for each in others if each > workload.priority)[:_MOST_TRIED]:
        decision = world.decide(replace(workload, priority=priority))
        if decision.result in _GETS_IN:
            names = ", ".join(victim.workload_id for victim in decision.victims)
            return Change(kind="priority", message=f"Priority {priority}: evicts {names}.", priority=priority)
    return None


def _by_size(world: WhatIfState, workload: Workload) -> Change | None:
    """Find the largest size, all pod sets in proportion, that gets in without sending anybody away."""
    spare = sum(max(0, each.count - 1) for each in workload.pod_sets)

    def sized(step: int) -> Workload:
        pod_sets = tuple(
            replace(each, count=each.count - max(0, each.count - 1) * step // spare, min_count=None)
            for each in workload.pod_sets
        )
        return replace(workload, pod_sets=pod_sets)

    least = _least(spare, lambda step: world.decide(sized(step)).result is Result.ADMITTED)
    if least is None:
        return None
    counts = sized(least).counts
    text = ", ".join(f"{each.name} {count}" for each, count in zip(workload.pod_sets, counts, strict=True))
    return Change(kind="size", message=f"A smaller size: {text}.", counts=counts)


def _by_waiting(world: WhatIfState, scheduler: Scheduler, workload: Workload) -> Change | None:
    """Find running jobs whose end would make room: evicted ones first, then those that run longest; none in vain."""
    root = scheduler.snapshot.teams[workload.queue].node.root
    queues = {node.name for node in queues_below(root)} | {workload.queue}
    running = sorted(
        (each for each in world.admitted if each.workload.queue in queues),
        key=lambda each: (not each.is_evicted, each.reserved_at or world.now, each.workload.workload_id),
    )[:_MOST_TRIED]
    names = [each.workload.workload_id for each in running]

    def works(gone: Iterable[str]) -> bool:
        return world.decide(workload, frozenset(gone)).result is Result.ADMITTED

    count = _least(len(names), lambda count: works(names[:count]))
    if count is None:
        return None
    needed, before = names[:count], list[str]()
    while needed != before:
        before = needed
        for name in reversed(before):
            without = [each for each in needed if each != name]
            if without and works(without):
                needed = without
    return Change(kind="wait", message=f"The end of {', '.join(needed)}.", jobs=tuple(needed))
