"""Size at which a waiting elastic job starts: its full size if that fits, else the largest allowed size that fits.

Kueue admits fewer pods only if the full number neither fits nor finds preemption victims. The same holds here. Kueue
may choose any count down to the minimum; here only allowed sizes are tried. The admission rules decide at every size,
so quota, limits, nodes and the order of the queue hold at every size.
"""

from bisect import bisect_left
from collections.abc import Container, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from evenkeel.domain.admission.admission_input import AdmissionInput
from evenkeel.domain.admission.admission_request import AdmissionRequest
from evenkeel.domain.admission.decide_job import AdmissionAction, AdmissionDecision
from evenkeel.domain.admission.decide_queue import decide_queue
from evenkeel.domain.elastic.sizes import ElasticPolicy
from evenkeel.domain.policy import Policy

_MAX_ENLARGED = 4
"""Maximum jobs of one cycle whose largest size is searched: each costs several decisions about the whole queue. Other
jobs start at their smallest size and may grow later."""
_KEEPS_SIZE = frozenset({AdmissionAction.ADMIT, AdmissionAction.BACK_OFF})


def delay_smaller_start(request: AdmissionRequest, lost_at: datetime | None, policy: ElasticPolicy) -> AdmissionRequest:
    """Return the request, marked to wait for its full size until `spare_wait_seconds` after its job lost nodes.

    It is unchanged if the job lost no node, has one size, or has a resume plan.
    """
    if lost_at is None or not request.sizes or request.is_recovery:
        return request
    return request.replace_unchecked(shrinks_at=lost_at + timedelta(seconds=policy.spare_wait_seconds))


def decide_with_sizes(
    admission_input: AdmissionInput, policy: Policy, now: datetime, full_size_only: Container[str] = ()
) -> tuple[AdmissionDecision, ...]:
    """Decide about every pending job. An elastic job starts with fewer nodes if its full size does not fit."""
    return fit_sizes(admission_input, decide_queue(admission_input, policy, now), policy, now, full_size_only)


def fit_sizes(
    admission_input: AdmissionInput,
    decisions: tuple[AdmissionDecision, ...],
    policy: Policy,
    now: datetime,
    full_size_only: Container[str] = (),
) -> tuple[AdmissionDecision, ...]:
    """Return the decisions after elastic jobs took smaller sizes where their full size does not fit.

    The order of the queue stays the same. No job gets more than its smallest size if that keeps another job from
    starting.

    Args:
        admission_input: The input of the decisions.
        decisions: The decision about each pending job at its requested size.
        policy: The whole policy.
        now: The time.
        full_size_only: Jobs that wait for all their nodes, since those nodes were rented and are starting.
    """
    decision_by_job = {decision.job_id: decision for decision in decisions}
    waiting_requests = [
        request.replace_unchecked(sizes=smaller)
        for request in admission_input.pending
        if request.job_id not in full_size_only
        and (smaller := _smaller_sizes(request, now))
        and _needs_smaller_size(request, decision_by_job[request.job_id].action)
    ]
    requests_to_try = sorted(waiting_requests, key=lambda admission_request: admission_request.queue_order_key)
    search = _SizeSearch(admission_input, policy, now)
    sizes = {request.job_id: request.sizes[0] for request in requests_to_try}
    decisions_by_job = decision_by_job
    while sizes:
        decisions_by_job = search.decide_at(sizes)
        sizes_by_job = {
            job_id: size for job_id, size in sizes.items() if decisions_by_job[job_id].action is AdmissionAction.ADMIT
        }
        if len(sizes_by_job) == len(sizes):
            break
        sizes = sizes_by_job  # the other jobs ask for their full size again, so other sizes may fit
    if not sizes:
        return decisions
    for request in [admission_request for admission_request in requests_to_try if admission_request.job_id in sizes][
        :_MAX_ENLARGED
    ]:
        decisions_by_job = search.enlarge(request, sizes, decisions_by_job)
    return tuple(decisions_by_job.values())


def _smaller_sizes(request: AdmissionRequest, now: datetime) -> tuple[int, ...]:
    """Return the smaller sizes that the job may start at now."""
    waits_for_spare = request.shrinks_at is not None and now < request.shrinks_at
    return request.sizes_during_spare_wait if waits_for_spare else request.sizes


def _needs_smaller_size(request: AdmissionRequest, action: AdmissionAction) -> bool:
    """Whether the job does not start at its full size.

    A job that waits for its victims keeps its full size, unless it is growing.
    """
    asks_for_more = request.is_resize or request.nodes > request.requested_nodes
    return action not in _KEEPS_SIZE and (action is not AdmissionAction.PREEMPT or asks_for_more)


class _SizeSearch(NamedTuple):
    """Decisions about the same queue with some jobs at other sizes."""

    admission_input: AdmissionInput
    policy: Policy
    now: datetime

    def decide_at(self, sizes: Mapping[str, int]) -> dict[str, AdmissionDecision]:
        """Return the decision about each pending job if these jobs ask for these sizes."""
        requests = tuple(
            request.with_nodes(sizes[request.job_id]) if request.job_id in sizes else request
            for request in self.admission_input.pending
        )
        decisions = decide_queue(self.admission_input._replace(pending=requests), self.policy, self.now)
        return {decision.job_id: decision for decision in decisions}

    def enlarge(
        self, request: AdmissionRequest, sizes: dict[str, int], decisions: dict[str, AdmissionDecision]
    ) -> dict[str, AdmissionDecision]:
        """Raise one job to its largest size at which all jobs that start still start. Sets that size in `sizes`."""
        larger = request.sizes[1:]
        admitted_job_ids = [
            job_id for job_id, decision in decisions.items() if decision.action is AdmissionAction.ADMIT
        ]
        decisions_by_count = {0: decisions}

        def is_too_large(size: int) -> bool:
            resized_decisions = self.decide_at({**sizes, request.job_id: size})
            if any(resized_decisions[job_id].action is not AdmissionAction.ADMIT for job_id in admitted_job_ids):
                return True
            decisions_by_count[size] = resized_decisions
            return False

        count = bisect_left(larger, True, key=is_too_large)
        if count:
            sizes[request.job_id] = larger[count - 1]
        return decisions_by_count[larger[count - 1]] if count else decisions
