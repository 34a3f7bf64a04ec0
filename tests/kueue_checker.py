"""An independent check that a decision follows from its recorded facts, and that a state is within its limits.

It shares no code with the scheduler. It computes quota and usage again, in the simplest way, from the declared queues
and the jobs.
"""

from collections.abc import Iterable, Iterator, Mapping

from evenkeel.domain.kueue.assignment import AssignmentMode, FlavorAttempt, FlavorMode, Pending
from evenkeel.domain.kueue.cycle_decisions import CycleDecision, Result
from evenkeel.domain.kueue.objects import Admitted, Cohort, Key, PreemptionPolicy, Queue, ResourceGroup, Workload
from evenkeel.domain.kueue.preemption import Reason


def faults_of(decision: CycleDecision, queue: Queue) -> Iterator[str]:
    """Yield each contradiction between a decision and its facts; yield nothing if all is consistent.

    Args:
        decision: The decision with its recorded inequalities.
        queue: The declaration of the queue at that time.
    """
    if decision.result is Result.INADMISSIBLE:
        return
    for attempts in decision.assignment.attempts:
        for attempt in attempts:
            yield from _of_attempt(attempt)
    yield from _of_choices(decision)
    yield from _of_size(decision)
    yield from _of_result(decision)
    yield from _of_victims(decision, queue)


def _of_attempt(attempt: FlavorAttempt) -> Iterator[str]:
    for inequality in attempt.compared:
        figures = (
            f"{attempt.flavor}/{inequality.resource}: "
            f"{inequality.wanted} of {inequality.available}, at most {inequality.potential}"
        )
        if inequality.mode is FlavorMode.FIT and inequality.wanted > inequality.available:
            yield f"{figures} does not fit"
        if (
            inequality.mode is not FlavorMode.FIT
            and inequality.wanted <= inequality.available
            and inequality.wanted <= inequality.potential
        ):
            yield f"{figures} fits"
        if inequality.mode not in (FlavorMode.FIT, FlavorMode.NO_FIT) and inequality.wanted > inequality.potential:
            yield f"{figures} can never fit"
        if inequality.level < 0 or (
            inequality.level == 0 and inequality.mode is FlavorMode.FIT and _must_borrow(inequality.used, inequality)
        ):
            yield f"{figures} borrows, but its level says that it does not"
    modes = {inequality.mode for inequality in attempt.compared}
    if attempt.compared and attempt.mode is not FlavorMode.NO_FIT and attempt.mode not in modes:
        yield f"{attempt.flavor}: {attempt.mode!r} is not the mode of any of its resources"
    if FlavorMode.NO_FIT in modes and attempt.mode is not FlavorMode.NO_FIT:
        yield f"{attempt.flavor}: a resource does not fit, but the flavor's mode says that it does"
    if attempt.mode is FlavorMode.FIT and modes - {FlavorMode.FIT}:
        yield f"{attempt.flavor}: not all of its resources fit"


def _must_borrow(used: int, row: object) -> bool:
    wanted, nominal, available = (getattr(row, name) for name in ("wanted", "nominal", "available"))
    # Without a cohort only nominal quota is available, so nothing is borrowed.
    return bool(used + wanted > nominal and available > max(0, nominal - used))


def _of_choices(decision: CycleDecision) -> Iterator[str]:
    assignment = decision.assignment
    for index, choices in enumerate(assignment.choices):
        tried = {attempt.flavor: attempt for attempt in assignment.attempts[index]}
        for resource, choice in choices.items():
            attempt = tried.get(choice.flavor)
            inequalities = (
                [inequality for inequality in attempt.compared if inequality.resource == resource] if attempt else []
            )
            if not inequalities:
                yield f"{resource} got {choice.flavor}, which was not examined"
            elif (inequalities[0].mode, inequalities[0].level) != (choice.mode, choice.level):
                yield f"{resource} on {choice.flavor} differs from what was compared"


def _of_size(decision: CycleDecision) -> Iterator[str]:
    pod_sets, counts = decision.workload.pod_sets, decision.assignment.counts
    reducible_counts = [
        pod_set.count - (pod_set.count if pod_set.min_count is None else pod_set.min_count) for pod_set in pod_sets
    ]
    steps = sum(max(0, amount) for amount in reducible_counts)
    full_counts = tuple(pod_set.count for pod_set in pod_sets)
    sizes = {
        tuple(
            count - max(0, reducible_count) * step // steps
            for count, reducible_count in zip(full_counts, reducible_counts, strict=True)
        )
        for step in range(steps + 1)
        if steps
    } | {full_counts}
    if counts not in sizes:
        yield f"{counts} is not a size between full and minimum"
    if decision.result is not Result.ADMITTED or decision.workload.replaces:
        return
    wanted: dict[Key, int] = {}
    for pod_set, count, choices in zip(pod_sets, counts, decision.assignment.choices, strict=True):
        for resource, choice in choices.items():
            amount = count if resource == "pods" else count * pod_set.requests.get(resource, 0)
            wanted[(choice.flavor, resource)] = wanted.get((choice.flavor, resource), 0) + amount
    if {key: amount for key, amount in wanted.items() if amount} != {
        key: amount for key, amount in decision.assignment.use.items() if amount
    }:
        yield f"it uses {decision.assignment.use}, but its pods request {wanted}"


def _of_result(decision: CycleDecision) -> Iterator[str]:
    assignment = decision.assignment
    modes = {choice.mode for choices in assignment.choices for choice in choices.values()}
    match decision.result:
        case Result.ADMITTED:
            if modes - {FlavorMode.FIT} or decision.victims:
                yield "it is admitted although it does not fit"
        case Result.PREEMPTING:
            if not decision.victims:
                yield "it preempts without victims"
            if FlavorMode.NO_FIT in modes or modes == {FlavorMode.FIT}:
                yield "it preempts although it fits, or never fits"
        case Result.NO_FIT:
            if assignment.verdict is not AssignmentMode.NO_FIT or decision.pending is Pending.NONE:
                yield "it does not fit, but there is no reason"
            if all(
                any(attempt.mode is not FlavorMode.NO_FIT for attempt in flavor_attempts)
                for flavor_attempts in assignment.attempts
                if flavor_attempts
            ):
                yield "each of its pod sets got a flavor"
        case Result.NO_CANDIDATES | Result.DEFERRED | Result.SKIPPED | Result.INADMISSIBLE | Result.NO_NODES:
            if decision.victims:
                yield "it has victims, but its result does not use them"


def _of_victims(decision: CycleDecision, queue: Queue) -> Iterator[str]:
    preemptor = decision.workload
    names = [victim.workload_id for victim in decision.victims]
    if len(set(names)) != len(names) or preemptor.workload_id in names:
        yield f"{names}: a victim appears twice, or is the preemptor"
    keys_needing_preemption = decision.assignment.keys_needing_preemption
    for victim in decision.victims:
        workload, name = victim.admitted.workload, victim.workload_id
        is_own = workload.queue == preemptor.queue
        if is_own is not (victim.reason is Reason.IN_CLUSTER_QUEUE):
            yield f"{name}: {victim.reason} of {workload.queue}"
        if keys_needing_preemption.isdisjoint(victim.admitted.use):
            yield f"{name} uses no key that needs preemption"
        policy = queue.preemption.within if is_own else queue.preemption.reclaim
        if not _may_evict(preemptor, workload, policy):
            yield f"{name} may not be evicted under {policy}"


def _may_evict(workload: Workload, other: Workload, policy: PreemptionPolicy) -> bool:
    is_lower = other.priority < workload.priority
    match policy:
        case PreemptionPolicy.NEVER:
            return False
        case PreemptionPolicy.ANY:
            return True
        case PreemptionPolicy.LOWER_PRIORITY:
            return is_lower
        case PreemptionPolicy.LOWER_OR_NEWER_EQUAL_PRIORITY:
            is_newer = other.priority == workload.priority and other.queued_at > workload.queued_at
            return is_lower or is_newer


# ---------------------------------------------------------------- a whole state


def overcommitted(queues: Iterable[Queue], cohorts: Iterable[Cohort], admitted: Iterable[Admitted]) -> Iterator[str]:
    """Yield each node and key that uses more than it may, computed only from declarations and jobs."""
    queue_of = {queue.name: queue for queue in queues}
    cohort_of = {cohort.name: cohort for cohort in cohorts}
    parents = {**{f"q:{queue.name}": queue.cohort for queue in queue_of.values()}}
    groups: dict[str, tuple[ResourceGroup, ...]] = {f"q:{name}": queue.groups for name, queue in queue_of.items()}
    pending = [*parents.values()]
    while pending:
        name = pending.pop()
        if name and f"c:{name}" not in parents:
            parent = cohort_of[name].parent if name in cohort_of else ""
            parents[f"c:{name}"], groups[f"c:{name}"] = parent, cohort_of[name].groups if name in cohort_of else ()
            pending.append(parent)
    for cohort in cohort_of.values():
        parents.setdefault(f"c:{cohort.name}", cohort.parent)
        groups.setdefault(f"c:{cohort.name}", cohort.groups)
    used: dict[tuple[str, Key], int] = {}
    for workload in admitted:
        for key, amount in workload.use.items():
            of = (f"q:{workload.workload.queue}", key)
            used[of] = used.get(of, 0) + amount
    keys = {
        (flavor.flavor, resource)
        for of_node in groups.values()
        for group in of_node
        for flavor in group.flavors
        for resource in flavor.quotas
    } | {key for _, key in used}
    for key in sorted(keys):
        yield from _over(key, parents, groups, used)


def _over(
    key: Key,
    parents: Mapping[str, str],
    groups: Mapping[str, tuple[ResourceGroup, ...]],
    used: Mapping[tuple[str, Key], int],
) -> Iterator[str]:
    children: dict[str, list[str]] = {}
    for name, parent in parents.items():
        children.setdefault(f"c:{parent}" if parent else "", []).append(name)

    def node_figures(name: str) -> Iterator[tuple[int, int, int] | str]:
        """Yield each exceeded limit below a node; last the node's quota, usage and guaranteed quota."""
        quota = next(
            (
                flavor.quotas[key[1]]
                for group in groups[name]
                for flavor in group.flavors
                if flavor.flavor == key[0] and key[1] in flavor.quotas
            ),
            None,
        )
        holds, uses = quota.nominal if quota else 0, used.get((name, key), 0)
        for child in children.get(name, ()):
            for node_figure in node_figures(child):
                if isinstance(node_figure, str):
                    yield node_figure
                    continue
                below, use, guaranteed = node_figure
                holds += below - guaranteed
                uses += max(0, use - guaranteed)
        most = None if not parents[name] else quota.borrow if quota else None
        if not parents[name] and uses > holds:
            yield f"{name[2:]}: {uses} of {holds} {'/'.join(key)}"
        elif most is not None and uses > holds + most:
            yield f"{name[2:]}: {uses} of {holds} {'/'.join(key)} and at most {most} borrowed"
        yield holds, uses, 0 if not quota or quota.lend is None else max(0, holds - quota.lend)

    for root in children.get("", ()):
        yield from (node_figure for node_figure in node_figures(root) if isinstance(node_figure, str))
