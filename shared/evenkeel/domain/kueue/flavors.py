"""Choose the flavor and the mode of each pod set of a workload.

The modes:

    Fit      quota is free, possibly by borrowing
    Preempt  quota is not free, but preemption could free it (whether it may is found out separately)
    NoFit    neither
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from evenkeel.domain.kueue.assignment import (
    Assignment,
    AssignmentMode,
    Choice,
    FlavorAttempt,
    FlavorCursor,
    FlavorMode,
    Inequality,
    Pending,
    new_tuple,
)
from evenkeel.domain.kueue.capacity import QuotaCell
from evenkeel.domain.kueue.objects import (
    PODS,
    Admitted,
    Amounts,
    Flavor,
    Fungibility,
    Fungible,
    Key,
    PodSet,
    PreemptionPolicy,
    Preference,
    Workload,
)
from evenkeel.domain.kueue.snapshot import FlavorSearch, Snapshot
from evenkeel.domain.kueue.topology import NoPlacementError
from evenkeel.domain.kueue.topology_state import TopologyState

Simulate = Callable[[Workload, Key, int], tuple[FlavorMode, int]]
"""Returns whether preemption frees this amount of one key, and the borrowing level afterwards."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Pod sets that get the same flavors."""

    indexes: tuple[int, ...]
    unfit: Mapping[str, str]
    """Flavors that their pods cannot run on, with the reason: a taint or a selector."""


class FlavorAssigner:
    """Assigns flavors to one workload, at any size."""

    def __init__(
        self,
        workload: Workload,
        snapshot: Snapshot,
        simulate: Simulate,
        *,
        flavor_cursor: FlavorCursor | None,
        cycle: int,
        only: tuple[Mapping[str, str], ...] | None = None,
        replaced: Admitted | None = None,
    ) -> None:
        """Keep the workload and the state to assign from.

        Args:
            workload: The workload that needs flavors.
            snapshot: The queues and flavors with their present use.
            simulate: Tells whether preemption can free an amount of one `Key` (flavor and resource).
            flavor_cursor: The flavor at which an earlier scan stopped.
            cycle: Number of the present cycle.
            only: Flavors to use, by pod set; None allows all.
            replaced: The smaller slice that the workload replaces.
        """
        self.workload = workload
        self.snapshot = snapshot
        self.queue = snapshot.queue_of(workload)
        self.simulate = simulate
        self.flavor_cursor = flavor_cursor
        self.cycle = cycle
        self.only = only
        self.replaced = replaced
        self.groups: tuple[_Group, ...] = snapshot.cached_groups(workload, self._groups)

    def _groups(self) -> tuple[_Group, ...]:
        members: dict[str, list[int]] = {}
        for index, pod_set in enumerate(self.workload.pod_sets):
            members.setdefault(pod_set.group or f"#{index}", []).append(index)
        names = {flavor.flavor for group in self.queue.spec.groups for flavor in group.flavors}
        groups = []
        for indexes in members.values():
            pods = [self.workload.pod_sets[index] for index in indexes]
            reasons = {name: why_unfit(name, self.snapshot.flavors.get(name), pods) for name in names}
            if (topology := self.snapshot.topology) is not None:
                reasons = {name: topology.why_unfit(self.queue.spec, name, pods) or reasons[name] for name in names}
            groups.append(_Group(tuple(indexes), {name: reason for name, reason in reasons.items() if reason}))
        return tuple(groups)

    def assign(self, counts: tuple[int, ...]) -> Assignment:
        """Find flavors for these pod counts."""
        assignment = Assignment(counts)
        tried: list[Mapping[str, int]] = []
        for group in self.groups:
            if len(group.indexes) == 1:
                (index,) = group.indexes
                requests = self._requests_of(index, counts[index])
                choices, attempts, failed = self._choose(group, requests, assignment.use)
                tried.append(self._take(assignment, index, requests, choices))
                assignment.attempts.append(attempts)
                if failed and requests:
                    assignment.verdict = AssignmentMode.NO_FIT
                    break
                continue
            requests_by_pod_set = [self._requests_of(index, counts[index]) for index in group.indexes]
            choices, attempts, failed = self._choose(group, _sum_of(requests_by_pod_set), assignment.use)
            for index, requests in zip(group.indexes, requests_by_pod_set, strict=True):
                own_choices = {request: choices[request] for request in requests if request in choices}
                tried.append(self._take(assignment, index, requests, own_choices))
                assignment.attempts.append(attempts)
                if failed and requests:
                    assignment.verdict = AssignmentMode.NO_FIT
            if assignment.verdict is AssignmentMode.NO_FIT:
                break
        assignment.flavor_cursor = new_tuple(
            FlavorCursor, (tuple(tried), self.queue.generation, self.cycle, self.workload.shape)
        )
        if self.snapshot.topology is not None and assignment.verdict is not AssignmentMode.NO_FIT:
            self._place(assignment, self.snapshot.topology)
        if assignment.verdict is AssignmentMode.NO_FIT:
            assignment.pending = self._why_pending(assignment)
        return assignment

    def _place(self, assignment: Assignment, topology: TopologyState) -> None:
        """Find domains for an assignment that has quota, now or after preemption.

        If the pods fit only in empty domains, the workload must preempt. If they do not fit there either, it has NoFit.
        """
        pod_sets, counts = self.workload.pod_sets, assignment.counts
        try:
            assignment.demands = tuple(topology.demands(self.queue.spec, pod_sets, counts, assignment.flavors))
        except NoPlacementError as error:
            self._fail(assignment, 0, "", str(error), Pending.NO_MATCHING_FLAVOR)
            return
        if not assignment.demands:
            return
        if assignment.verdict is AssignmentMode.FIT:
            result = topology.place(assignment.demands)
            if result.failed is None:
                assignment.place(result)
                return
            assignment.verdict = AssignmentMode.PREEMPT
            _explain(assignment, result.failed.index, result.failed.flavor, result.reason)
        result = topology.place(assignment.demands, ignores_workloads=True)
        if result.failed is not None:
            failed = result.failed
            self._fail(assignment, failed.index, failed.flavor, result.reason, Pending.TOPOLOGY_PLACEMENT_FAILED)
            return
        for demand in assignment.demands:
            assignment.choices[demand.index] = {
                resource: choice._replace(mode=FlavorMode.PREEMPT) if choice.mode is FlavorMode.FIT else choice
                for resource, choice in assignment.choices[demand.index].items()
            }

    def _fail(self, assignment: Assignment, index: int, flavor: str, reason: str, pending: Pending) -> None:
        """Record that the workload does not fit, because of the topology of one pod set."""
        assignment.verdict = AssignmentMode.NO_FIT
        assignment.choices[index] = {
            resource: choice._replace(mode=FlavorMode.NO_FIT) for resource, choice in assignment.choices[index].items()
        }
        _explain(assignment, index, flavor, reason, pending)

    def _requests_of(self, index: int, count: int) -> dict[str, int]:
        requests = self.workload.pod_sets[index].requests_of(count)
        if PODS in self.queue.group_by_resource:
            requests[PODS] = count
        return requests

    def _already_held(self, index: int, resource: str) -> int:
        """Return the amount of a resource that the replaced slice holds for this pod set."""
        if self.replaced is None:
            return 0
        count = self.replaced.counts[index]
        return count if resource == PODS else self.replaced.workload.pod_sets[index].requests.get(resource, 0) * count

    def _take(
        self, assignment: Assignment, index: int, requests: Mapping[str, int], choices: Mapping[str, Choice]
    ) -> dict[str, int]:
        """Add a pod set's flavors to the assignment; return the index of the last flavor examined, by resource."""
        assignment.choices.append(choices)
        use, tried, replaced = assignment.use, dict[str, int](), self.replaced
        for resource, (flavor, mode, level, last) in choices.items():
            tried[resource] = last
            amount = requests[resource]
            if replaced is not None:
                amount -= self._already_held(index, resource)
            key = (flavor, resource)
            use[key] = use[key] + amount if key in use else amount
            if level:
                assignment.level = max(assignment.level, level)
            if mode is not FlavorMode.FIT and assignment.verdict > AssignmentMode.PREEMPT:
                assignment.verdict = AssignmentMode.PREEMPT
        return tried

    def _choose(
        self, group: _Group, requested: dict[str, int], used: Amounts
    ) -> tuple[dict[str, Choice], tuple[FlavorAttempt, ...], bool]:
        """Choose a flavor for each resource. The third value is whether a resource got none."""
        choices: dict[str, Choice] = {}
        attempts: list[FlavorAttempt] = []
        for search in self.queue.searches(requested):
            first = search.first
            if not search.resources:
                if requested[first] == 0 or self.snapshot.rules.ignores_undeclared:
                    continue  # no request, or the rules ignore it
                reason = f"the queue has no quota of {first}"
                attempts.append(
                    FlavorAttempt("", FlavorMode.NO_FIT, pending=Pending.NO_MATCHING_FLAVOR, why=reason),
                )
                return {}, tuple(attempts), True
            chosen = self._search(group, search, requested, used, attempts)
            if not chosen:
                return {}, tuple(attempts), True
            choices = choices | chosen if choices else chosen
        return choices, tuple(attempts), False

    def _search(
        self,
        group: _Group,
        search: FlavorSearch,
        requested: dict[str, int],
        used: Amounts,
        attempts: list[FlavorAttempt],
    ) -> dict[str, Choice]:
        """Examine the flavors of a resource group, from where the last scan stopped; add what was tried to attempts."""
        fungibility = self.queue.spec.fungibility
        start = self.flavor_cursor.next_index(group.indexes[0], search.first) if self.flavor_cursor else 0
        best: FlavorAttempt | None = None
        last = -1
        for index in range(start, len(search.flavors)):
            last = index
            flavor, keys = search.flavors[index]
            if self.only is not None and not any(
                self.only[index].get(search.first) == flavor for index in group.indexes if index < len(self.only)
            ):
                continue
            if flavor in group.unfit:
                reason = group.unfit[flavor]
                attempts.append(
                    FlavorAttempt(flavor, FlavorMode.NO_FIT, pending=Pending.NO_MATCHING_FLAVOR, why=reason)
                )
                continue
            attempt = self._try_flavor(group, flavor, keys, requested, used, fungibility)
            attempts.append(attempt)
            is_free = attempt.mode is FlavorMode.FIT and not attempt.level  # the most frequent case
            if is_free or not _may_try_next_flavor(attempt.mode, attempt.level, fungibility):
                best = attempt
                break
            if attempt.mode is not FlavorMode.NO_FIT and (
                best is None or is_preferred(attempt.mode, attempt.level, best.mode, best.level, fungibility)
            ):
                best = attempt
        if best is None:
            return {}
        tried = -1 if last == len(search.flavors) - 1 else last
        flavor = best.flavor
        return {
            inequality.resource: new_tuple(Choice, (flavor, inequality.mode, inequality.level, tried))
            for inequality in best.compared
        }

    def _try_flavor(  # noqa: C901 - the innermost loop of a cycle: calls are a measurable part of it
        self,
        group: _Group,
        flavor: str,
        keys: tuple[tuple[str, Key], ...],
        requested: dict[str, int],
        used: Amounts,
        fungibility: Fungibility,
    ) -> FlavorAttempt:
        """Evaluate one flavor for all resources of its group. The resource with the worst mode decides."""
        worst, worst_level, pending = FlavorMode.FIT, 0, Pending.NONE
        compared: list[Inequality] = []
        why_not = ""
        quota_node = self.queue.quota_node
        cells = quota_node.cells
        for resource, key in keys:  # in the order of the resources' names
            amount = requested[resource]
            if self.replaced is not None:
                amount -= sum(self._already_held(index, resource) for index in group.indexes)
                why_not = self._why_other_flavor(self.replaced, group, flavor, resource)
                if why_not:
                    pending, worst = Pending.NO_MATCHING_FLAVOR, FlavorMode.NO_FIT
                    break
            if used:
                amount += used.get(key, 0)
            cell = cells.get(key) or quota_node.at(key)
            if worst is FlavorMode.NO_FIT:  # later resources can only change which reason is the most severe
                if pending is Pending.WAITING_FOR_QUOTA and amount > cell.potential:
                    pending = Pending.EXCEEDS_MAX_QUOTA
                continue
            free, potential, use = cell.available(), cell.potential, cell.use
            available = free if free > 0 else 0
            level = 0
            if amount > potential:
                mode, reason = FlavorMode.NO_FIT, Pending.EXCEEDS_MAX_QUOTA
            elif amount <= available:
                mode, reason = FlavorMode.FIT, Pending.NONE
                if use + amount > cell.subtree:
                    level = quota_node.level(key, amount)[0]
            else:
                mode, level, reason = self._mode_beyond_free(cell, key, amount)
            compared.append(
                new_tuple(Inequality, (resource, amount, available, potential, cell.nominal, use, mode, level))
            )
            if reason is not Pending.NONE and reason.severity > pending.severity:
                pending = reason
            if mode is worst:
                if level > worst_level:
                    worst_level = level
            elif is_preferred(worst, worst_level, mode, level, fungibility):
                worst, worst_level = mode, level
        return new_tuple(FlavorAttempt, (flavor, worst, worst_level, pending, why_not, tuple(compared)))

    def _why_other_flavor(self, replaced: Admitted, group: _Group, flavor: str, resource: str) -> str:
        """Return why a larger slice cannot have a flavor: the slice that it replaces has another. Empty if it can."""
        flavors = {replaced.flavors[index].get(resource) for index in group.indexes}
        names = ", ".join(sorted(name or "none" for name in flavors))
        return "" if flavors == {flavor} else f"the slice it replaces has {names}"

    def _mode_beyond_free(self, cell: QuotaCell, key: Key, amount: int) -> tuple[FlavorMode, int, Pending]:
        """Return the mode and the borrowing level of an amount that exceeds the free quota."""
        quota_node, preemption = self.queue.quota_node, self.queue.spec.preemption
        level, is_smaller = quota_node.level(key, amount)
        may_borrow_and_preempt = preemption.borrow_within is not None or (
            self.snapshot.rules.fair_sharing and preemption.reclaim is not PreemptionPolicy.NEVER
        )
        if cell.nominal >= amount or is_smaller or may_borrow_and_preempt:
            mode, level = self.simulate(self.workload, key, amount)
            return mode, level, Pending.NONE
        return FlavorMode.NO_FIT, level, Pending.WAITING_FOR_QUOTA

    def _why_pending(self, assignment: Assignment) -> Pending:
        """Return one reason: the least severe of a group's flavors, the most severe of all groups and pod sets."""
        overall = Pending.NONE
        group_by_resource = {
            flavor.flavor: number for number, group in enumerate(self.queue.spec.groups) for flavor in group.flavors
        }
        for choices, attempts, pod_set in zip(
            assignment.choices, assignment.attempts, self.workload.pod_sets, strict=False
        ):
            if any(choice.mode is not FlavorMode.NO_FIT for choice in choices.values()):
                continue
            if not (attempts or pod_set.requests):
                continue
            mildest: dict[int, Pending] = {}
            for number, attempt in enumerate(attempts):
                if attempt.mode is not FlavorMode.NO_FIT:
                    continue
                group = group_by_resource.get(attempt.flavor, -1 - number)
                mildest_reason = mildest.get(group, attempt.pending)
                mildest[group] = min(mildest_reason, attempt.pending, key=lambda reason: reason.severity)
            reasons = mildest.values() if attempts else (Pending.NO_MATCHING_FLAVOR,)
            overall = max(overall, *reasons, key=lambda reason: reason.severity)
        return overall


def _explain(assignment: Assignment, index: int, flavor: str, reason: str, pending: Pending = Pending.NONE) -> None:
    """Record why a pod set does not fit in the topology of a flavor; with `pending`, it would not fit there empty."""
    attempts = assignment.attempts[index]
    if not any(attempt.flavor == flavor for attempt in attempts):
        attempts = (*attempts, FlavorAttempt(flavor, FlavorMode.NO_FIT))
    assignment.attempts[index] = tuple(
        attempt
        if attempt.flavor != flavor
        else attempt._replace(why=reason, mode=FlavorMode.NO_FIT if pending else attempt.mode, pending=pending)
        for attempt in attempts
    )


def _sum_of(pod_sets: list[dict[str, int]]) -> dict[str, int]:
    """Add up the requests of pod sets."""
    if len(pod_sets) == 1:
        return pod_sets[0]
    total: dict[str, int] = {}
    for requests in pod_sets:
        for resource, amount in requests.items():
            total[resource] = total.get(resource, 0) + amount
    return total


def is_preferred(mode: FlavorMode, level: int, other: FlavorMode, other_level: int, fungibility: Fungibility) -> bool:
    """Whether one mode and borrowing level is strictly better than another."""
    if mode is FlavorMode.NO_FIT:
        return False
    if other is FlavorMode.NO_FIT:
        return True
    if (mode is FlavorMode.NO_CANDIDATES) != (other is FlavorMode.NO_CANDIDATES):
        return other is FlavorMode.NO_CANDIDATES
    if fungibility.preference is Preference.PREEMPTION_OVER_BORROWING:
        return (-level, mode) > (-other_level, other)
    return (mode, -level) > (other, -other_level)


def _may_try_next_flavor(mode: FlavorMode, level: int, fungibility: Fungibility) -> bool:
    """Whether the search continues after this flavor."""
    if mode in (FlavorMode.NO_FIT, FlavorMode.NO_CANDIDATES):
        return True
    if mode is not FlavorMode.FIT and fungibility.when_can_preempt is Fungible.TRY_NEXT:
        return True
    return level > 0 and fungibility.when_can_borrow is Fungible.TRY_NEXT


def why_unfit(name: str, flavor: Flavor | None, pod_sets: list[PodSet]) -> str:
    """Return why these pods cannot run on a flavor's nodes; empty if they can."""
    if flavor is None:
        return f"there is no flavor {name}"
    for pod_set in pod_sets:
        tolerations = (*pod_set.tolerations, *flavor.tolerations)
        for taint in flavor.taints:
            hard = taint.effect in ("NoSchedule", "NoExecute")
            if hard and not any(toleration.tolerates(taint) for toleration in tolerations):
                return f"the taint {taint.key}={taint.value}:{taint.effect} of {name} is not tolerated"
        if not _matches(pod_set, flavor):
            return f"{name} does not match the node selector or affinity"
    return ""


def _matches(pod_set: PodSet, flavor: Flavor) -> bool:
    """Whether selector and affinity match. Labels that the flavor does not define are ignored."""
    for key, value in pod_set.selector.items():
        if key in flavor.labels and flavor.labels[key] != value:
            return False
    terms = [[requirement for requirement in term if requirement.key in flavor.labels] for term in pod_set.affinity]
    if not terms or not all(terms):
        return True  # a term without requirements matches everything, and one matching term is enough
    return any(all(requirement.is_satisfied_by(flavor.labels) for requirement in term) for term in terms)
