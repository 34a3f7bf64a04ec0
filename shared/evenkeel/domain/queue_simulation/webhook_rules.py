"""The checks of Kueue's admission webhooks for ClusterQueues and Cohorts."""

from collections import Counter
from collections.abc import Iterator

from evenkeel.domain.kueue.objects import Cohort, Fungible, PreemptionPolicy, Preference, Queue, Quota, ResourceGroup


def refusals(declared: Queue | Cohort) -> Iterator[str]:
    """Yield the reasons why Kueue refuses a declaration. Source: Kueue's webhooks of ClusterQueue and Cohort."""
    for group in declared.groups:
        yield from _invalid_group(group, declared)
    if len(declared.groups) > 16:
        yield "there are more than 16 resource groups"
    resources = [resource for group in declared.groups for resource in group.resources]
    flavors = [flavor.flavor for group in declared.groups for flavor in group.flavors]
    for kind, names in (("resource", resources), ("flavor", flavors)):
        if len(names) > 256:
            yield f"there are more than 256 {kind}s"
        for name, times in sorted(Counter(names).items()):
            if times > 1:
                yield f"{kind} {name} is in two places"
    if declared.fair_weight < 0:
        yield "the weight is negative"
    if isinstance(declared, Queue):
        yield from _invalid_policies(declared)


def _invalid_group(group: ResourceGroup, declared: Queue | Cohort) -> Iterator[str]:
    for flavor in group.flavors:
        for resource, quota in flavor.quotas.items():
            for refusal in _invalid_amounts(quota, declared):
                yield f"{flavor.flavor}/{resource}: {refusal}"
        if {*flavor.quotas} != {*group.resources}:
            yield f"{flavor.flavor}: its resources differ from the resources that its group covers"
    if len(group.flavors) > 64 or len(group.resources) > 64:
        yield "a group has more than 64 flavors or resources"
    if sum(len(flavor.quotas) for flavor in group.flavors) > 512:
        yield "a group has more than 512 pairs of a flavor and a resource"


def _invalid_amounts(quota: Quota, declared: Queue | Cohort) -> Iterator[str]:
    is_queue = isinstance(declared, Queue)
    parent = declared.cohort if isinstance(declared, Queue) else declared.parent
    if quota.nominal < 0:
        yield "the nominal quota is negative"
    if min(quota.borrow or 0, quota.lend or 0) < 0:
        yield "a limit is negative"
    if is_queue and quota.lend is not None and quota.lend > quota.nominal:
        yield "the lending limit is above the nominal quota"
    if not parent and not (quota.borrow is None and quota.lend is None):
        yield f"limits need a {'cohort' if is_queue else 'parent'}"


def _invalid_policies(queue: Queue) -> Iterator[str]:
    if queue.preemption.borrow_within is not None and queue.preemption.reclaim is PreemptionPolicy.NEVER:
        yield "preemption while borrowing needs reclaim"
    policies = (queue.fungibility.when_can_borrow, queue.fungibility.when_can_preempt)
    has_preference = queue.fungibility.preference is not Preference.BORROWING_OVER_PREEMPTION
    if has_preference and policies != (Fungible.TRY_NEXT, Fungible.TRY_NEXT):
        yield "a preference needs both policies to be TryNextFlavor"
