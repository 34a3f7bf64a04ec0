"""Which flavor each pod set of a workload gets, and in which mode.

Fit      there is room, perhaps by borrowing
Preempt  there is none, and there would be if others went (whether they may be made to is found out)
NoFit    nothing that could happen soon makes room
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import NamedTuple

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
    ResourceGroup,
    Workload,
)
from evenkeel.domain.kueue.snapshot import Snapshot, Team


class Mode(IntEnum):
    """How a flavor could be had, the best last."""

    NO_FIT = 0
    NO_CANDIDATES = 1
    """Others would have to go, and nobody may be made to."""
    PREEMPT = 2
    """Workloads of the own queue would go, perhaps with others."""
    RECLAIM = 3
    """Only workloads of other queues would go."""
    FIT = 4


class Verdict(IntEnum):
    """A whole workload's mode, the best last."""

    NO_FIT = 0
    PREEMPT = 1
    DEFERRED = 2
    """It fits once evictions that are under way are over."""
    FIT = 3


class Pending(StrEnum):
    """Why a workload gets no quota, the mildest first."""

    NONE = ""
    WAITING_FOR_PODS_READY = "WaitingForPodsReady"
    """Its quota is there. Not an answer about flavors: somebody else's pods are waited for."""
    WAITING_FOR_QUOTA = "WaitingForQuota"
    EXCEEDS_MAX_QUOTA = "ExceedsMaxQuota"
    NO_MATCHING_FLAVOR = "NoMatchingFlavor"

    @property
    def severity(self) -> int:
        """0 for none."""
        return _SEVERITY[self]


_SEVERITY = {pending: rank for rank, pending in enumerate(Pending)}


class Choice(NamedTuple):
    """A flavor for one resource of a pod set."""

    flavor: str
    mode: Mode
    level: int
    """How far up the tree it borrows."""
    tried: int
    """Index of the last flavor that was looked at; -1 where that was the last of its list."""


class Inequality(NamedTuple):
    """What was compared for one key: why a flavor would do, or would not."""

    resource: str
    wanted: int
    """With what earlier pod sets of the same workload took."""
    available: int
    potential: int
    nominal: int
    used: int
    mode: Mode
    level: int


class Attempt(NamedTuple):
    """One flavor that was looked at."""

    flavor: str
    mode: Mode
    level: int = 0
    pending: Pending = Pending.NONE
    why: str = ""
    compared: tuple[Inequality, ...] = ()


class Progress(NamedTuple):
    """Where the scan of the flavors stood, for the next time."""

    tried: tuple[Mapping[str, int], ...]
    """By pod set: resource → index."""
    generation: int
    cycle: int
    shape: str

    @property
    def has_more(self) -> bool:
        """Whether any list was left before its end."""
        return any(index != -1 for each in self.tried for index in each.values())

    def next_index(self, pod_set: int, resource: str) -> int:
        """Return the flavor to begin with."""
        if pod_set >= len(self.tried):
            return 0
        return self.tried[pod_set].get(resource, -1) + 1

    def is_outdated(self, workload: Workload, team: Team, cycle: int) -> bool:
        """Whether the world has changed since: then the scan begins anew."""
        if self.shape != workload.shape:
            return True
        return cycle - self.cycle > 1 and team.generation > self.generation


@dataclass(slots=True)
class Assignment:
    """Flavors for a workload at some size, and what follows."""

    counts: tuple[int, ...]
    choices: list[Mapping[str, Choice]] = field(default_factory=list)
    """By pod set, as far as it was got; resource → choice."""
    use: Amounts = field(default_factory=dict)
    """What it would use; of a larger slice, what it would use more."""
    verdict: Verdict = Verdict.FIT
    level: int = 0
    pending: Pending = Pending.NONE
    attempts: list[tuple[Attempt, ...]] = field(default_factory=list)
    """By pod set."""
    progress: Progress | None = None

    @property
    def contested(self) -> frozenset[Key]:
        """The keys on which somebody would have to go."""
        return frozenset(
            (choice.flavor, resource)
            for choices in self.choices
            for resource, choice in choices.items()
            if Mode.NO_FIT < choice.mode < Mode.FIT
        )

    @property
    def flavors(self) -> tuple[dict[str, str], ...]:
        """By pod set: resource → flavor."""
        return tuple({resource: each.flavor for resource, each in choices.items()} for choices in self.choices)


Simulate = Callable[[Workload, Key, int], tuple[Mode, int]]
"""Whether and how preemption makes room for so much of one key, and the level of borrowing afterwards."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Pod sets that get their flavors together."""

    indexes: tuple[int, ...]
    unfit: Mapping[str, str]
    """Flavors that cannot be theirs, and why: taints, selectors."""


class FlavorAssigner:
    """Assigns flavors to one workload, at any size."""

    def __init__(
        self,
        workload: Workload,
        snapshot: Snapshot,
        simulate: Simulate,
        *,
        progress: Progress | None,
        cycle: int,
        only: tuple[Mapping[str, str], ...] | None = None,
        replaced: Admitted | None = None,
    ) -> None:
        """Prepare.

        Args:
            workload: Who asks.
            snapshot: The world.
            simulate: Tries preemption for one key.
            progress: Where an earlier scan stood.
            cycle: This cycle's number.
            only: By pod set, the flavors to stay with; None = any.
            replaced: The smaller slice that this workload takes the place of.
        """
        self.workload = workload
        self.snapshot = snapshot
        self.team = snapshot.team_of(workload)
        self.simulate = simulate
        self.progress = progress
        self.cycle = cycle
        self.only = only
        self.replaced = replaced
        self.groups: tuple[_Group, ...] = snapshot.eligible(workload, self._groups)

    def _groups(self) -> tuple[_Group, ...]:
        members: dict[str, list[int]] = {}
        for index, pod_set in enumerate(self.workload.pod_sets):
            members.setdefault(pod_set.group or f"#{index}", []).append(index)
        names = {each.flavor for group in self.team.queue.groups for each in group.flavors}
        found = []
        for indexes in members.values():
            pods = [self.workload.pod_sets[index] for index in indexes]
            reasons = {name: why_unfit(name, self.snapshot.flavors.get(name), pods) for name in names}
            found.append(_Group(tuple(indexes), {name: why for name, why in reasons.items() if why}))
        return tuple(found)

    def assign(self, counts: tuple[int, ...]) -> Assignment:
        """Find flavors for these counts."""
        assignment = Assignment(counts)
        tried: list[Mapping[str, int]] = []
        for group in self.groups:
            wanted = [self._wanted(index, counts[index]) for index in group.indexes]
            choices, attempts, failed = self._choose(group, _together(wanted), assignment.use)
            for index, requests in zip(group.indexes, wanted, strict=True):
                if failed:
                    own: dict[str, Choice] = {}
                elif len(wanted) == 1:
                    own = choices
                else:
                    own = {each: choices[each] for each in requests if each in choices}
                tried.append(self._take(assignment, index, requests, own))
                assignment.attempts.append(attempts)
                if failed and requests:
                    assignment.verdict = Verdict.NO_FIT
            if assignment.verdict is Verdict.NO_FIT:
                break
        assignment.progress = Progress(tuple(tried), self.team.generation, self.cycle, self.workload.shape)
        if assignment.verdict is Verdict.NO_FIT:
            assignment.pending = self._why_pending(assignment)
        return assignment

    def _wanted(self, index: int, count: int) -> dict[str, int]:
        requests = self.workload.pod_sets[index].total(count)
        if PODS in self.team.group_of:
            requests[PODS] = count
        return requests

    def _held(self, index: int, resource: str) -> int:
        """What the slice that is to be replaced holds of a resource for this pod set."""
        if self.replaced is None:
            return 0
        count = self.replaced.counts[index]
        return count if resource == PODS else self.replaced.workload.pod_sets[index].requests.get(resource, 0) * count

    def _take(
        self, assignment: Assignment, index: int, requests: Mapping[str, int], choices: Mapping[str, Choice]
    ) -> dict[str, int]:
        """Take what a pod set is given; return how far the flavors were tried."""
        assignment.choices.append(choices)
        use, tried = assignment.use, dict[str, int]()
        for resource, choice in choices.items():
            flavor, mode, level, tried[resource] = choice
            amount = requests[resource]
            if self.replaced is not None:
                amount -= self._held(index, resource)
            use[flavor, resource] = use.get((flavor, resource), 0) + amount
            assignment.level = max(assignment.level, level)
            if mode is not Mode.FIT:
                assignment.verdict = min(assignment.verdict, Verdict.PREEMPT)
        return tried

    def _choose(
        self, group: _Group, wanted: dict[str, int], used: Amounts
    ) -> tuple[dict[str, Choice], tuple[Attempt, ...], bool]:
        """Choose a flavor for each resource; the last says that one has none at all."""
        choices: dict[str, Choice] = {}
        attempts: list[Attempt] = []
        for resource in sorted(wanted):
            resources = self.team.group_of.get(resource)
            if resources is None and (wanted[resource] == 0 or self.snapshot.rules.ignores_undeclared):
                continue  # nothing is asked of what the queue does not have
            if resource in choices:
                continue  # came with the others of its group
            if resources is None:
                why = f"the queue has no quota of {resource}"
                return {}, (*attempts, Attempt("", Mode.NO_FIT, pending=Pending.NO_MATCHING_FLAVOR, why=why)), True
            found, looked_at = self._search(group, resources, wanted, resource, used)
            attempts += looked_at
            if not found:
                return {}, tuple(attempts), True
            choices |= found
        return choices, tuple(attempts), False

    def _search(
        self, group: _Group, resources: ResourceGroup, wanted: dict[str, int], first: str, used: Amounts
    ) -> tuple[dict[str, Choice], list[Attempt]]:
        """Walk the flavors of a resource group from where the last scan stood."""
        fungibility = self.team.queue.fungibility
        asked = {resource: wanted[resource] for resource in sorted(wanted) if resource in resources.resources}
        start = self.progress.next_index(group.indexes[0], first) if self.progress else 0
        best: dict[str, tuple[str, Mode, int]] = {}
        best_mode, best_level = Mode.NO_FIT, 0
        attempts: list[Attempt] = []
        last = -1
        for index in range(start, len(resources.flavors)):
            last = index
            flavor = resources.flavors[index].flavor
            if self.only is not None and not any(
                self.only[each].get(first) == flavor for each in group.indexes if each < len(self.only)
            ):
                continue
            if flavor in group.unfit:
                why = group.unfit[flavor]
                attempts.append(Attempt(flavor, Mode.NO_FIT, pending=Pending.NO_MATCHING_FLAVOR, why=why))
                continue
            found, attempt = self._try(group, flavor, asked, used, fungibility)
            attempts.append(attempt)
            if not _goes_on(attempt.mode, attempt.level, fungibility):
                best, best_mode = found, attempt.mode
                break
            if is_preferred(attempt.mode, attempt.level, best_mode, best_level, fungibility):
                best, best_mode, best_level = found, attempt.mode, attempt.level
        tried = -1 if last == len(resources.flavors) - 1 else last
        chosen = {resource: Choice(flavor, mode, level, tried) for resource, (flavor, mode, level) in best.items()}
        return chosen, attempts

    def _try(
        self, group: _Group, flavor: str, asked: dict[str, int], used: Amounts, fungibility: Fungibility
    ) -> tuple[dict[str, tuple[str, Mode, int]], Attempt]:
        """Weigh one flavor for all resources of its group: the worst of them counts."""
        worst, worst_level, pending = Mode.FIT, 0, Pending.NONE
        found: dict[str, tuple[str, Mode, int]] = {}
        compared: list[Inequality] = []
        why = ""
        for resource, total in asked.items():  # in the order of their names
            key, amount = (flavor, resource), total
            if self.replaced is not None:
                amount -= sum(self._held(index, resource) for index in group.indexes)
                kept = {self.replaced.flavors[index].get(resource) for index in group.indexes}
                if kept != {flavor}:
                    held = ", ".join(sorted(each or "none" for each in kept))
                    why, pending, worst = f"the slice it replaces has {held}", Pending.NO_MATCHING_FLAVOR, Mode.NO_FIT
                    break
            with_earlier = used.get(key, 0) + amount
            if worst is Mode.NO_FIT:  # whatever else there is: the severest reason is told
                if pending is Pending.WAITING_FOR_QUOTA and with_earlier > self.team.node.at(key).potential:
                    pending = Pending.EXCEEDS_MAX_QUOTA
                continue
            reason, inequality = self._weigh(key, with_earlier)
            compared.append(inequality)
            mode, level = inequality.mode, inequality.level
            if reason is not Pending.NONE and reason.severity > pending.severity:
                pending = reason
            if (mode, level) != (worst, worst_level) and is_preferred(worst, worst_level, mode, level, fungibility):
                worst, worst_level = mode, level
            if worst is not Mode.NO_FIT:
                found[resource] = (flavor, mode, level)
        return found, Attempt(flavor, worst, worst_level, pending, why, tuple(compared))

    def _weigh(self, key: Key, wanted: int) -> tuple[Pending, Inequality]:
        """Compare what is wanted of one key with what there is."""
        node, queue = self.team.node, self.team.queue
        slot = node.slots.get(key) or node.at(key)
        available, potential, pending = max(0, slot.available()), slot.potential, Pending.NONE
        if wanted > potential:
            mode, level, pending = Mode.NO_FIT, 0, Pending.EXCEEDS_MAX_QUOTA
        elif wanted <= available:
            mode, level = Mode.FIT, 0 if slot.use + wanted <= slot.sub else node.level(key, wanted)[0]
        else:
            level, is_smaller = node.level(key, wanted)
            may_borrow_and_preempt = queue.preemption.borrow_within is not None or (
                self.snapshot.rules.fair_sharing and queue.preemption.reclaim is not PreemptionPolicy.NEVER
            )
            if slot.nominal >= wanted or is_smaller or may_borrow_and_preempt:
                mode, level = self.simulate(self.workload, key, wanted)
            else:
                mode, pending = Mode.NO_FIT, Pending.WAITING_FOR_QUOTA
        return pending, Inequality(key[1], wanted, available, potential, slot.nominal, slot.use, mode, level)

    def _why_pending(self, assignment: Assignment) -> Pending:
        """Give one reason: the mildest over the flavors of a group, the most severe over groups and pod sets."""
        overall = Pending.NONE
        group_of = {
            each.flavor: number for number, group in enumerate(self.team.queue.groups) for each in group.flavors
        }
        for choices, attempts, pod_set in zip(
            assignment.choices, assignment.attempts, self.workload.pod_sets, strict=False
        ):
            if choices or not (attempts or pod_set.requests):
                continue
            mildest: dict[int, Pending] = {}
            for number, attempt in enumerate(attempts):
                if attempt.mode is not Mode.NO_FIT:
                    continue
                group = group_of.get(attempt.flavor, -1 - number)
                known = mildest.get(group, attempt.pending)
                mildest[group] = min(known, attempt.pending, key=_SEVERITY.__getitem__)
            reasons = mildest.values() if attempts else (Pending.NO_MATCHING_FLAVOR,)
            overall = max(overall, *reasons, key=_SEVERITY.__getitem__)
        return overall


def _together(wanted: list[dict[str, int]]) -> dict[str, int]:
    """Sum up what pod sets ask for."""
    if len(wanted) == 1:
        return wanted[0]
    together: dict[str, int] = {}
    for requests in wanted:
        for resource, amount in requests.items():
            together[resource] = together.get(resource, 0) + amount
    return together


def is_preferred(mode: Mode, level: int, other: Mode, other_level: int, fungibility: Fungibility) -> bool:
    """Whether one way to have a flavor is strictly better than another."""
    if mode is Mode.NO_FIT:
        return False
    if other is Mode.NO_FIT:
        return True
    if (mode is Mode.NO_CANDIDATES) != (other is Mode.NO_CANDIDATES):
        return other is Mode.NO_CANDIDATES
    if fungibility.preference is Preference.PREEMPTION_OVER_BORROWING:
        return (-level, mode) > (-other_level, other)
    return (mode, -level) > (other, -other_level)


def _goes_on(mode: Mode, level: int, fungibility: Fungibility) -> bool:
    """Whether the search goes on after this flavor."""
    if mode in (Mode.NO_FIT, Mode.NO_CANDIDATES):
        return True
    if mode is not Mode.FIT and fungibility.when_can_preempt is Fungible.TRY_NEXT:
        return True
    return level > 0 and fungibility.when_can_borrow is Fungible.TRY_NEXT


def why_unfit(name: str, flavor: Flavor | None, pod_sets: list[PodSet]) -> str:
    """Say why these pods could not run on a flavor's nodes; empty where they could."""
    if flavor is None:
        return f"there is no flavor {name}"
    for pod_set in pod_sets:
        tolerations = (*pod_set.tolerations, *flavor.tolerations)
        for taint in flavor.taints:
            hard = taint.effect in ("NoSchedule", "NoExecute")
            if hard and not any(toleration.covers(taint) for toleration in tolerations):
                return f"the taint {taint.key}={taint.value}:{taint.effect} of {name} is not tolerated"
        if not _matches(pod_set, flavor):
            return f"{name} does not match the node selector or affinity"
    return ""


def _matches(pod_set: PodSet, flavor: Flavor) -> bool:
    """Whether selector and affinity are met, as far as they ask for labels that this flavor has itself."""
    for key, value in pod_set.selector.items():
        if key in flavor.labels and flavor.labels[key] != value:
            return False
    terms = [[need for need in term if need.key in flavor.labels] for term in pod_set.affinity]
    if not terms or not all(terms):
        return True  # a term with nothing left in it matches everything, and one term is enough
    return any(all(need.holds(flavor.labels) for need in term) for term in terms)
