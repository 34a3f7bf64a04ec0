"""The search for flavors without shortcuts: each step looks up its declaration and its cell."""

from evenkeel.domain.kueue.assignment import Choice, FlavorAttempt, FlavorMode, Inequality, Pending
from evenkeel.domain.kueue.flavors import FlavorAssigner, _Group, _may_try_next_flavor, is_preferred
from evenkeel.domain.kueue.objects import Amounts, Fungibility, Key, PreemptionPolicy, ResourceGroup


def plain_choose(
    self: FlavorAssigner, group: _Group, requested: dict[str, int], used: Amounts
) -> tuple[dict[str, Choice], tuple[FlavorAttempt, ...], bool]:
    """Choose a flavor for each resource. The third value is whether a resource got none."""
    choices: dict[str, Choice] = {}
    attempts: list[FlavorAttempt] = []
    for resource in sorted(requested):
        resources = self.queue.group_by_resource.get(resource)
        if resources is None and (requested[resource] == 0 or self.snapshot.rules.ignores_undeclared):
            continue  # no request, or the rules ignore it
        if resource in choices:
            continue  # chosen together with another resource of its group
        if resources is None:
            reason = f"the queue has no quota of {resource}"
            return (
                {},
                (*attempts, FlavorAttempt("", FlavorMode.NO_FIT, pending=Pending.NO_MATCHING_FLAVOR, why=reason)),
                True,
            )
        chosen, looked_at = _search(self, group, resources, requested, resource, used)
        attempts += looked_at
        if not chosen:
            return {}, tuple(attempts), True
        choices |= chosen
    return choices, tuple(attempts), False


def _search(
    self: FlavorAssigner, group: _Group, resources: ResourceGroup, requests: dict[str, int], first: str, used: Amounts
) -> tuple[dict[str, Choice], list[FlavorAttempt]]:
    """Examine the flavors of a resource group, from where the last scan stopped."""
    fungibility = self.queue.spec.fungibility
    requested = {resource: requests[resource] for resource in sorted(requests) if resource in resources.resources}
    start = self.flavor_cursor.next_index(group.indexes[0], first) if self.flavor_cursor else 0
    best_choices: dict[str, tuple[str, FlavorMode, int]] = {}
    best_mode, best_level = FlavorMode.NO_FIT, 0
    attempts: list[FlavorAttempt] = []
    last = -1
    for index in range(start, len(resources.flavors)):
        last = index
        flavor = resources.flavors[index].flavor
        if self.only is not None and not any(
            self.only[index].get(first) == flavor for index in group.indexes if index < len(self.only)
        ):
            continue
        if flavor in group.unfit:
            reason = group.unfit[flavor]
            attempts.append(FlavorAttempt(flavor, FlavorMode.NO_FIT, pending=Pending.NO_MATCHING_FLAVOR, why=reason))
            continue
        choices, attempt = _try_flavor(self, group, flavor, requested, used, fungibility)
        attempts.append(attempt)
        if not _may_try_next_flavor(attempt.mode, attempt.level, fungibility):
            best_choices, best_mode = choices, attempt.mode
            break
        if is_preferred(attempt.mode, attempt.level, best_mode, best_level, fungibility):
            best_choices, best_mode, best_level = choices, attempt.mode, attempt.level
    tried = -1 if last == len(resources.flavors) - 1 else last
    chosen = {resource: Choice(flavor, mode, level, tried) for resource, (flavor, mode, level) in best_choices.items()}
    return chosen, attempts


def _try_flavor(
    self: FlavorAssigner, group: _Group, flavor: str, requested: dict[str, int], used: Amounts, fungibility: Fungibility
) -> tuple[dict[str, tuple[str, FlavorMode, int]], FlavorAttempt]:
    """Evaluate one flavor for all resources of its group. The resource with the worst mode decides."""
    worst, worst_level, pending = FlavorMode.FIT, 0, Pending.NONE
    choices: dict[str, tuple[str, FlavorMode, int]] = {}
    compared: list[Inequality] = []
    why_not = ""
    for resource, total in requested.items():  # in the order of their names
        key, amount = (flavor, resource), total
        if self.replaced is not None:
            amount -= sum(self._already_held(index, resource) for index in group.indexes)
            replaced_flavors = {self.replaced.flavors[index].get(resource) for index in group.indexes}
            if replaced_flavors != {flavor}:
                replaced_text = ", ".join(sorted(flavor or "none" for flavor in replaced_flavors))
                why_not, pending, worst = (
                    f"the slice it replaces has {replaced_text}",
                    Pending.NO_MATCHING_FLAVOR,
                    FlavorMode.NO_FIT,
                )
                break
        with_earlier = used.get(key, 0) + amount
        if worst is FlavorMode.NO_FIT:  # later resources can only change which reason is the most severe
            if pending is Pending.WAITING_FOR_QUOTA and with_earlier > self.queue.quota_node.at(key).potential:
                pending = Pending.EXCEEDS_MAX_QUOTA
            continue
        reason, inequality = _compare(self, key, with_earlier)
        compared.append(inequality)
        mode, level = inequality.mode, inequality.level
        if reason is not Pending.NONE and reason.severity > pending.severity:
            pending = reason
        if (mode, level) != (worst, worst_level) and is_preferred(worst, worst_level, mode, level, fungibility):
            worst, worst_level = mode, level
        if worst is not FlavorMode.NO_FIT:
            choices[resource] = (flavor, mode, level)
    return choices, FlavorAttempt(flavor, worst, worst_level, pending, why_not, tuple(compared))


def _compare(self: FlavorAssigner, key: Key, requested: int) -> tuple[Pending, Inequality]:
    """Compare the requested amount of one key with the quota."""
    quota_node, spec = self.queue.quota_node, self.queue.spec
    cell = quota_node.cells.get(key) or quota_node.at(key)
    available, potential, pending = max(0, cell.available()), cell.potential, Pending.NONE
    if requested > potential:
        mode, level, pending = FlavorMode.NO_FIT, 0, Pending.EXCEEDS_MAX_QUOTA
    elif requested <= available:
        mode, level = (
            FlavorMode.FIT,
            0 if cell.use + requested <= cell.subtree else quota_node.level(key, requested)[0],
        )
    else:
        level, is_smaller = quota_node.level(key, requested)
        may_borrow_and_preempt = spec.preemption.borrow_within is not None or (
            self.snapshot.rules.fair_sharing and spec.preemption.reclaim is not PreemptionPolicy.NEVER
        )
        if cell.nominal >= requested or is_smaller or may_borrow_and_preempt:
            mode, level = self.simulate(self.workload, key, requested)
        else:
            mode, pending = FlavorMode.NO_FIT, Pending.WAITING_FOR_QUOTA
    return pending, Inequality(key[1], requested, available, potential, cell.nominal, cell.use, mode, level)
