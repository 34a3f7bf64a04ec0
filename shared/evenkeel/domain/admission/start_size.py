"""At which size a waiting elastic job starts: all that it asks for where that fits, else the largest size that does.

Kueue admits fewer pods only where the full number neither fits nor finds victims, and so it is here. Its counts may be
anything down to the least; here only legal sizes are tried, each by the very rules that admit, so that quota, limits,
machines and the order of the queue hold at every size.
"""

from bisect import bisect_left
from collections.abc import Callable, Container, Mapping
from datetime import datetime, timedelta

from evenkeel.domain.admission.decide import Action, AdmissionDecision
from evenkeel.domain.admission.request import AdmissionRequest
from evenkeel.domain.elastic.sizes import ElasticTerms

DecideQueue = Callable[[tuple[AdmissionRequest, ...]], tuple[AdmissionDecision, ...]]
"""Decides about all that wait, by the rules of the pass."""

_MAX_ENLARGED = 4
"""Jobs of one cycle whose largest size is sought, since each costs some cycles over the queue. The others start at
their smallest size, and may grow later."""
_KEEPS_SIZE = frozenset({Action.ADMIT, Action.BACK_OFF})


def with_spare_wait(request: AdmissionRequest, lost_at: datetime | None, terms: ElasticTerms) -> AdmissionRequest:
    """Return what a job asks for; one that lost machines gives spares their time before any recovery has planned."""
    if lost_at is None or not request.sizes or request.is_recovery:
        return request
    return request.model_copy(update={"shrinks_at": lost_at + timedelta(seconds=terms.spare_wait_seconds)})


def fit_sizes(
    pending: tuple[AdmissionRequest, ...],
    decisions: tuple[AdmissionDecision, ...],
    weigh: DecideQueue,
    now: datetime,
    whole: Container[str] = (),
) -> tuple[AdmissionDecision, ...]:
    """Return the decisions with elastic jobs started at fewer nodes where more do not fit.

    Who comes before whom stays as it is; and nobody gets more than its least while that keeps another from starting.

    Args:
        pending: All that wait.
        decisions: About each at the size that it asks for.
        weigh: The rules.
        now: The time.
        whole: Jobs that wait for all their nodes, since those are on their way.
    """
    found = {decided.job_id: decided for decided in decisions}
    waiting = [
        request.model_copy(update={"sizes": smaller})
        for request in pending
        if request.job_id not in whole
        and (smaller := _smaller_sizes(request, now))
        and _needs_smaller_size(request, found[request.job_id].action)
    ]
    tried = sorted(waiting, key=lambda each: each.queue_order_key)
    sizes = {request.job_id: request.sizes[0] for request in tried}
    best = found
    while sizes:
        best = _decide_at(pending, sizes, weigh)
        starting = {name: size for name, size in sizes.items() if best[name].action is Action.ADMIT}
        if len(starting) == len(sizes):
            break
        sizes = starting  # the others ask for all their nodes again, and that may change what fits
    if not sizes:
        return decisions
    for request in [each for each in tried if each.job_id in sizes][:_MAX_ENLARGED]:
        best = _largest_size(request, pending, sizes, best, weigh)
    return tuple(best.values())


def _smaller_sizes(request: AdmissionRequest, now: datetime) -> tuple[int, ...]:
    """Return the smaller sizes that would do by now."""
    is_patient = request.shrinks_at is not None and now < request.shrinks_at
    return request.sizes_during_spare_wait if is_patient else request.sizes


def _needs_smaller_size(request: AdmissionRequest, action: Action) -> bool:
    """Whether it does not start at its full size; one that others stop for waits for them, unless it grew."""
    is_beyond = request.is_resize or request.nodes > request.wanted
    return action not in _KEEPS_SIZE and (action is not Action.PREEMPT or is_beyond)


def _decide_at(
    pending: tuple[AdmissionRequest, ...], sizes: Mapping[str, int], weigh: DecideQueue
) -> dict[str, AdmissionDecision]:
    asked = tuple(each.at(sizes[each.job_id]) if each.job_id in sizes else each for each in pending)
    return {decided.job_id: decided for decided in weigh(asked)}


def _largest_size(
    request: AdmissionRequest,
    pending: tuple[AdmissionRequest, ...],
    sizes: dict[str, int],
    best: dict[str, AdmissionDecision],
    weigh: DecideQueue,
) -> dict[str, AdmissionDecision]:
    """Raise one job to its largest size at which all who start still do; `sizes` is changed to it."""
    larger = request.sizes[1:]
    started = [name for name, decided in best.items() if decided.action is Action.ADMIT]
    found = {0: best}

    def is_too_large(size: int) -> bool:
        tried = {**sizes, request.job_id: size}
        after = _decide_at(pending, tried, weigh)
        if any(after[name].action is not Action.ADMIT for name in started):
            return True
        found[size] = after
        return False

    count = bisect_left(larger, True, key=is_too_large)
    if count:
        sizes[request.job_id] = larger[count - 1]
    return found[larger[count - 1]] if count else best
