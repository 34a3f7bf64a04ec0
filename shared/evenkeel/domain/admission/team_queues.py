"""The queues of the teams during one scheduling cycle: their use, their limits, and the quota that jobs request."""

import functools
from collections.abc import Iterator
from datetime import datetime

from evenkeel.domain.admission.admission_input import AdmissionInput
from evenkeel.domain.admission.admission_request import AdmissionRequest
from evenkeel.domain.capacity import instance_types
from evenkeel.domain.economics.economy_policy import EconomyPolicy
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.kueue.objects import Admitted, QueueingStrategy
from evenkeel.domain.kueue.scheduler import Scheduler
from evenkeel.domain.queue_simulation import short_form
from evenkeel.domain.quotas import flavor_matching
from evenkeel.domain.quotas.quota_holders import QuotaHolder, admitted_holder
from evenkeel.domain.quotas.spending import UsageLimit, usage_limits
from evenkeel.domain.quotas.teams import Team


class TeamQueues:
    """The queues of one cycle, by team. Admissions of the cycle count towards the limits of their team."""

    def __init__(self, admission_input: AdmissionInput, economy: EconomyPolicy, now: datetime) -> None:
        setup = admission_input.setup.scheduler_declarations
        self.by_name = {queue.name: queue for queue in setup.queues}
        self.flavors = {flavor.name: flavor_matching.with_labels(flavor) for flavor in setup.flavors}
        self.started: dict[str, list[Charge]] = {}
        """Team with limits → the charges of jobs that this cycle admitted."""
        self._admission_input, self._economy, self._now = admission_input, economy, now
        self._catalogue = instance_types.shipped_instance_types()
        self._kueue_jobs: dict[str, short_form.ShortJob] = {}

    def load_usage(self, scheduler: Scheduler) -> None:
        """Pass the time, the past use, the admitted jobs and the recent evictions to Kueue's scheduler.

        The last scheduler that got the admitted jobs may change them. Earlier schedulers must no longer be used.
        """
        scheduler.snapshot.now = self._now.timestamp()
        for team, submitters in self._admission_input.used.items():
            resource = flavor_matching.resource_of((), self.by_name[team], self._catalogue)
            for submitter, past_use in submitters.items():
                scheduler.add_past_use(team, submitter, {resource: past_use})
        for holder, is_evicted in self._holders:
            holder.is_evicted = is_evicted  # an earlier scheduler of this cycle may have evicted it
            scheduler.restore(holder)
        for eviction in self._admission_input.scheduler_state.evictions:
            scheduler.snapshot.evicted_at[frozenset((eviction.preemptor, eviction.victim))] = eviction.at.timestamp()

    @functools.cached_property
    def _holders(self) -> tuple[tuple[Admitted, bool], ...]:
        """The jobs that hold quota, and whether they were asked to stop before this cycle; in order of admission."""
        return tuple((holder, holder.is_evicted) for holder in self._read_holders())

    def _read_holders(self) -> Iterator[Admitted]:
        for charge in sorted(
            self._admission_input.charges,
            key=lambda held_charge: (held_charge.admitted_at or self._now, held_charge.job_id),
        ):
            queue = self.by_name.get(charge.queue or charge.team)
            quota_use = flavor_matching.quota_use(charge, queue, self.flavors, self._catalogue) if queue else {}
            if queue is None or not quota_use:
                continue
            yield admitted_holder(
                QuotaHolder(
                    charge.job_id,
                    queue.name,
                    quota_use,
                    max(1, len(charge.node_names)),
                    charge.priority,
                    (charge.admitted_at or self._now).timestamp(),
                    queued_at=charge.queued_at.timestamp() if charge.queued_at else 0.0,
                    is_evicted=charge.job_id in self._admission_input.stopping,
                    sub_queue=charge.submitter if queue.by_use else "",
                    work_at_risk=self._admission_input.work_at_risk_by_job.get(charge.job_id),
                    is_pinned=charge.cluster in self._admission_input.unreadable_clusters,
                )
            )

    def is_strict(self, name: str) -> bool:
        """Whether the first job of a queue blocks the queue while it waits."""
        return self.by_name[name].strategy is QueueingStrategy.STRICT

    def to_kueue(self, request: AdmissionRequest) -> short_form.ShortJob:
        """Return a request as Kueue reads it."""
        if request.job_id not in self._kueue_jobs:
            self._kueue_jobs[request.job_id] = self._kueue_job(request)
        return self._kueue_jobs[request.job_id]

    def _kueue_job(self, request: AdmissionRequest) -> short_form.ShortJob:
        queue = self.by_name[request.team]
        resource = flavor_matching.resource_of(request.instance_types, queue, self._catalogue)
        pods = short_form.ShortPodSet(
            name="workers",
            count=request.nodes,
            requests=flavor_matching.requests_of(request.per_node, resource, queue),
            selector={flavor_matching.CLUSTER_LABEL: request.cluster},
            affinity=flavor_matching.affinity_to_types(request.instance_types),
        )
        return short_form.ShortJob(
            name=request.job_id,
            queue=queue.name,
            priority=request.priority,
            created_at=request.submitted_at.timestamp(),
            requeued_at=request.queued_at.timestamp() if request.queued_at else None,
            sub_queue=request.submitter if queue.by_use else "",
            pod_sets=(pods,),
        )

    def has_limits(self, team: Team) -> bool:
        """Whether a team or its members have a limit beside the quota of the queue."""
        return team.max_accelerators_per_user is not None or bool(team.budgets)

    def limits(self, request: AdmissionRequest) -> tuple[UsageLimit, ...]:
        """Return the limits of a job's team and submitter, with the use of this cycle's admissions."""
        team = self._admission_input.setup.by_name[request.team]
        if not self.has_limits(team):
            return ()
        charges = [charge for charge in self._admission_input.charges if charge.team == team.name]
        spent = {period: spent for (of, period), spent in self._admission_input.spent.items() if of == team.name}
        return usage_limits(
            team,
            request.submitter,
            request.nodes * request.accelerators_per_node,
            (*charges, *self.started.get(team.name, ())),
            spent,
            self._economy,
            self._now,
        )
