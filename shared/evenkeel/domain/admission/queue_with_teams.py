"""Admission where teams share the fleet: quota decides which job is next, free nodes decide where it starts.

    charges         ─┐
    recoveries      ─┼─▶ Kueue cycles until nothing changes ─▶ one decision for each job
    heads of queues ─┘         │ quota and nodes: both or neither

Recoveries are decided in Kueue cycles of their own, before all other jobs, and may take spares. While a recovery waits
for nodes, its quota and nodes are reserved. The same holds for other interrupted jobs, so that no younger job takes
their nodes. A job that has quota but no nodes is parked, or blocks its queue, as the queue's strategy says. It blocks
only the jobs of its queue that could take the same nodes.
"""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from typing import NamedTuple

from evenkeel.domain.admission.admission_input import AdmissionInput
from evenkeel.domain.admission.admission_request import AdmissionRequest
from evenkeel.domain.admission.decide_job import (
    AdmissionAction,
    AdmissionDecision,
    AdmissionFacts,
    decide,
    from_quota_decision,
    with_preemption,
)
from evenkeel.domain.admission.free_nodes import FreeNodes
from evenkeel.domain.admission.pool_fits import (
    JobToPreempt,
    PoolFit,
    PreemptionPlan,
    best_fit,
    why_no_fit,
)
from evenkeel.domain.admission.queue_without_teams import FifoBarrier
from evenkeel.domain.admission.scheduling_policy import SchedulingPolicy
from evenkeel.domain.admission.team_queues import TeamQueues
from evenkeel.domain.economics.economy_policy import EconomyPolicy
from evenkeel.domain.kueue.assignment import Assignment
from evenkeel.domain.kueue.cycle_decisions import CycleDecision, Result
from evenkeel.domain.kueue.nomination import KnownNominations
from evenkeel.domain.kueue.objects import Amounts, Workload
from evenkeel.domain.kueue.preemption import QuotaDemand, Victim, preemptable_victims
from evenkeel.domain.kueue.scheduler import Scheduler
from evenkeel.domain.queue_simulation import short_form
from evenkeel.domain.quotas.quota_documents import DocumentCache
from evenkeel.domain.quotas.quota_facts import KueueCycleState, quota_facts_of
from evenkeel.domain.quotas.spending import UsageLimit

_MAX_KUEUE_CYCLES = 2000
"""Maximum Kueue cycles for the jobs of one phase. Then the decisions so far are final."""


class AdmissionPhase(IntEnum):
    """The order of decisions within a scheduling cycle. All jobs of one phase are decided before the next phase."""

    INTERRUPTED = 0
    """Jobs that had nodes before."""
    NEW = 1
    LAST = 2
    """Jobs that would start and be preempted in the same scheduling cycle."""


class _QuotaDecision(NamedTuple):
    """The Kueue decision about a head, with the state before it."""

    decision: CycleDecision
    before: KueueCycleState
    """The state right before the Kueue cycle."""
    fits: tuple[PoolFit, ...]


@dataclass(slots=True)
class _QueuedJob:
    """A job that takes part in the Kueue cycles, with the decisions about it so far."""

    request: AdmissionRequest
    kueue_job: short_form.ShortJob
    """The request in Kueue's form."""
    latest: _QuotaDecision | None = None
    """Its latest decision by quota; None if it was not the head of its queue yet."""
    without_nodes: _QuotaDecision | None = None
    """The decision that found quota but no nodes, until the scan of the flavors ends."""
    waiting: AdmissionDecision | None = None
    """The decision while it waits; None until a reason needs it."""


class _SharedByRuns(NamedTuple):
    """The values that all runs of one scheduling cycle share. They do not depend on the admissions of a run."""

    admission_input: AdmissionInput
    now: datetime
    queues: TeamQueues
    nodes: FreeNodes
    """The nodes before the first admission. Each run copies them."""
    without_quota: dict[str, AdmissionDecision | None]
    """Job → its decision before the first admission if it needs no quota, else None."""
    nominations: KnownNominations


def decide_with_teams(
    admission_input: AdmissionInput, policy: SchedulingPolicy, economy: EconomyPolicy, now: datetime
) -> tuple[AdmissionDecision, ...]:
    """Decide about every pending job. No decision exceeds a limit, or the free amounts of a node.

    Returns:
        A decision for each job, in the order of commits: each decision takes the earlier decisions into account.
    """
    decided_last: frozenset[str] = frozenset()
    queues = TeamQueues(admission_input, economy, now)
    shared = _SharedByRuns(
        admission_input, now, queues, FreeNodes(admission_input, policy, queues.flavors), {}, KnownNominations()
    )
    while True:
        admission = _TeamAdmission(shared, decided_last)
        decisions = admission.run()
        admitted_job_ids = {decision.job_id for decision in decisions if decision.action is AdmissionAction.ADMIT}
        # A job that would start and be preempted in the same scheduling cycle is decided last, on the remaining nodes.
        preempted_at_once = admitted_job_ids & {victim.job_id for decision in decisions for victim in decision.victims}
        if preempted_at_once <= decided_last:
            return tuple(map(admission.with_quota_facts, decisions))
        decided_last |= preempted_at_once


class _TeamAdmission:
    """The admissions of one scheduling cycle with teams. Kueue cycles decide quota, and this class decides nodes."""

    def __init__(self, shared: _SharedByRuns, decided_last: frozenset[str]) -> None:
        self.admission_input, self.now, self.queues = shared.admission_input, shared.now, shared.queues
        self.nodes = copy.copy(shared.nodes)
        self.without_quota = shared.without_quota
        self.decided_last = decided_last
        """Jobs that are decided after all other jobs."""
        self.queues.started = {}
        declarations = self.admission_input.setup.scheduler_declarations
        self.scheduler = Scheduler(
            declarations.queues,
            declarations.cohorts,
            self.queues.flavors.values(),
            declarations.rules,
            shared.nominations,
        )
        self.queues.load_usage(self.scheduler)
        self.queued_jobs: dict[str, _QueuedJob] = {}
        """Jobs that take part in the Kueue cycles, by id."""
        self.documents = DocumentCache()
        self.recorded: dict[str, tuple[AdmissionDecision, _QuotaDecision]] = {}
        """Job → its decision by quota, whose record has quota facts unless another decision replaces it."""
        self.last_state: KueueCycleState | None = None
        """The state before the last Kueue cycle."""
        self.first_head = ""
        """The first job that was decided by quota; empty if there is none."""
        self.fits: dict[str, tuple[PoolFit, ...]] = {}
        """Job → its fits in the present Kueue cycle."""
        self.final_decisions: dict[str, AdmissionDecision] = {}
        """Final decisions, in the order of commits."""
        self.queue_heads: dict[str, tuple[str, Mapping[str, str]]] = {}
        """Queue → its first decided job, and the first job of each parked shape. Filled after the last Kueue cycle."""
        self.barriers: dict[str, FifoBarrier] = {}
        self.reserved_quota: dict[str, tuple[str, Amounts]] = {}
        """Job that has quota but no nodes → (queue, quota that is reserved for it)."""
        self.preemption_plans: dict[str, PreemptionPlan | None] = {}
        """Job that has quota but no nodes, and may preempt → its plan."""

    # ------------------------------------------------------------ the order of decisions

    def run(self) -> tuple[AdmissionDecision, ...]:
        """Decide about the jobs of each phase in order. Within a phase, run Kueue cycles until nothing changes."""
        pending_requests = sorted(self.admission_input.pending, key=lambda request: request.queue_order_key)
        for request in pending_requests:
            if request.job_id not in self.without_quota:
                self.without_quota[request.job_id] = self._decision_without_quota(request)
            if decision := self.without_quota[request.job_id]:
                self.final_decisions[request.job_id] = decision
            else:
                self.queued_jobs[request.job_id] = _QueuedJob(request, self.queues.to_kueue(request))
        for phase in AdmissionPhase:
            job_ids = []
            for job_id, job in self.queued_jobs.items():
                if self._phase_of(job.request) is not phase:
                    continue
                # Admissions of an earlier phase count towards the limits of this one.
                if decision := self._decision_over_limit(job.request):
                    self.final_decisions[job_id] = decision
                else:
                    job_ids.append(job_id)
            for job in map(self.queued_jobs.__getitem__, job_ids):
                self.scheduler.submit(job.kueue_job.to_workload(job.request.priority))
            self._keep_waiting_preemptors_at_head(job_ids)
            self._run_until_stable()
        for request in pending_requests:
            if request.job_id not in self.final_decisions:
                self.final_decisions[request.job_id] = self._decide_waiting(request)
        return tuple(self.final_decisions.values())

    def _phase_of(self, request: AdmissionRequest) -> AdmissionPhase:
        if request.job_id in self.decided_last:
            return AdmissionPhase.LAST
        return AdmissionPhase.INTERRUPTED if request.has_prior_grant else AdmissionPhase.NEW

    def _decision_without_quota(self, request: AdmissionRequest) -> AdmissionDecision | None:
        """Return the decision about a job that needs no quota: it backs off, is excluded, or can never start here."""
        if request.not_before and self.now < request.not_before:
            return self._decide(request)
        team = self.admission_input.setup.by_name.get(request.team)
        if team is None:
            return self._decide(request, exclusion_reason=f"Team {request.team} no longer exists.")
        queue = self.queues.by_name[request.team]
        if not queue.is_active:
            stop_reason = queue.inactive or f"an administrator set its stop policy to {queue.stop}"
            return self._decide(request, exclusion_reason=f"The job's queue admits no jobs: {stop_reason}.")
        counts = self.nodes.counts(request)
        if all(fit.total_nodes < request.nodes for fit in counts) and (request.attempts == 0 or not counts):
            return self._decide(request, fits=self.nodes.fits(request))
        # Jobs of the same shape may end before AWS takes the nodes, so this job must not park them.
        is_cut_off = all(fit.total_nodes - fit.leaving < request.nodes for fit in counts)
        if is_cut_off and any(fit.leaving for fit in counts):
            return self._decide(request, fits=self.nodes.fits(request))
        return self._decision_over_limit(request)

    def _decision_over_limit(self, request: AdmissionRequest) -> AdmissionDecision | None:
        """Return the decision about a job that a limit of its team or its submitter keeps waiting."""
        limits = self.queues.limits(request)
        return self._decide(request, limits=limits) if any(limit.is_reached for limit in limits) else None

    def _decide(
        self,
        request: AdmissionRequest,
        *,
        fits: tuple[PoolFit, ...] = (),
        exclusion_reason: str = "",
        limits: tuple[UsageLimit, ...] = (),
    ) -> AdmissionDecision:
        return decide(
            AdmissionFacts(request=request, fits=fits, exclusion_reason=exclusion_reason, limits=limits, now=self.now)
        )

    def _keep_waiting_preemptors_at_head(self, job_ids: Iterable[str]) -> None:
        """Keep a job at the head of its queue while its victims stop. A recovery comes before it."""
        heads = {*self.admission_input.scheduler_state.sticky.values()}
        for job_id in job_ids:
            pending = self.scheduler.pending[self.queued_jobs[job_id].request.team]
            if job_id in heads and not pending.sticky:
                pending.sticky = job_id

    # ------------------------------------------------------------ nodes

    def _assign_nodes(self, workload: Workload, assignment: Assignment, victims: tuple[Victim, ...]) -> str:
        """Return why no nodes fit; empty if some do. Assigns the nodes unless victims must stop first."""
        request = self.queued_jobs[workload.workload_id].request
        if victims:
            stopped_job_ids = {victim.workload_id for victim in victims} | self.admission_input.stopping
            fits = self.nodes.fits_without(request, assignment, stopped_job_ids)
        else:
            fits = self.nodes.fits_in_flavors(request, assignment)
        self.fits[request.job_id] = fits
        shortage = why_no_fit(request, fits)
        if not shortage and not victims:
            self.nodes.assign(request, best_fit(fits).best)
        elif shortage and not victims and not _tries_next_flavor(assignment):
            self._reserve(request, workload, assignment)
        return shortage

    # ------------------------------------------------------------ Kueue cycles

    def _run_until_stable(self) -> None:
        """Run Kueue cycles until one more could change nothing."""
        seen_fingerprints: set[str] = set()
        for _ in range(_MAX_KUEUE_CYCLES):
            state_before = KueueCycleState.of(self.scheduler, self.reserved_quota.values(), self.last_state)
            self.last_state = state_before
            self.fits = {}
            # The scheduler does not keep the method. A scheduler that refers to this object would keep everything that
            # the run read in memory until a garbage collection.
            decisions = self.scheduler.cycle(self.now.timestamp(), node_fit=self._assign_nodes)
            if not decisions:
                return
            has_changed = False
            for decision in decisions:
                job_id = decision.workload.workload_id
                self.queued_jobs[job_id].latest = _QuotaDecision(decision, state_before, self.fits.get(job_id, ()))
                self.first_head = self.first_head or job_id
                has_changed |= self._apply_decision(decision)
            victim_ids = {victim.workload_id for decision in decisions for victim in decision.victims}
            has_changed = has_changed or bool(victim_ids and victim_ids - state_before.stopping_ids)
            # If the same decisions come again and nothing changed since, the cycles would never end.
            fingerprint = repr(
                [
                    (decision.workload.workload_id, decision.result, decision.assignment.flavors)
                    for decision in decisions
                ]
            )
            if has_changed:
                seen_fingerprints.clear()
            elif fingerprint in seen_fingerprints:
                return
            seen_fingerprints.add(fingerprint)

    def _apply_decision(self, decision: CycleDecision) -> bool:
        """Apply a decision. Return whether other jobs may now get another decision."""
        workload = decision.workload
        job = self.queued_jobs[workload.workload_id]
        request = job.request
        if decision.result is Result.ADMITTED:
            self._record_admission(request)
            return True
        if decision.result is Result.NO_NODES:
            job.without_nodes = job.latest
        if decision.result in (Result.PREEMPTING, Result.DEFERRED, Result.SKIPPED) or _tries_next_flavor(
            decision.assignment
        ):
            return False
        without_nodes = job.without_nodes
        job.without_nodes = None
        if without_nodes is None:
            return False
        # No other flavor has quota either, so the reason is that nodes are missing.
        job.latest = without_nodes
        is_strict = self.queues.is_strict(workload.queue)
        if not is_strict and not request.reserves_nodes:
            return False  # parked: later jobs of the queue are decided
        self.scheduler.withdraw(workload)
        self._reserve(request, workload, without_nodes.decision.assignment)
        if request.job_id in self.reserved_quota:
            self.scheduler.snapshot.queue_of(workload).quota_node.add_all(self.reserved_quota[request.job_id][1])
        if is_strict:
            self._block_queue(request)
        return True

    def _record_admission(self, request: AdmissionRequest) -> None:
        decision = self._decide_by_quota(request)
        self.final_decisions[request.job_id] = decision
        team = self.admission_input.setup.by_name[request.team]
        if not self.queues.has_limits(team):
            return
        self.queues.started.setdefault(team.name, []).append(decision.to_charge())
        for other_request in self._waiting_requests(request.team):
            limits = self.queues.limits(other_request)
            if any(limit.is_reached for limit in limits):
                self._withdraw(other_request)
                self.final_decisions[other_request.job_id] = self._decide(other_request, limits=limits)

    def _reserve(self, request: AdmissionRequest, workload: Workload, assignment: Assignment) -> None:
        """Reserve quota and free nodes for a job that waits for nodes, so that no other job takes them."""
        must_reserve = self.queues.is_strict(workload.queue) or request.reserves_nodes
        if not must_reserve or assignment.level or request.job_id in self.reserved_quota:
            return
        self.reserved_quota[request.job_id] = (workload.queue, dict(assignment.use))
        fits = self.fits.get(request.job_id)
        if fits is None:
            fits = self._latest(request.job_id).fits
        largest_fit = max(fits, key=lambda fit: (fit.most_nodes, fit.pool), default=None)
        if largest_fit is not None:
            self.nodes.reserve(request, largest_fit)

    def _block_queue(self, request: AdmissionRequest) -> None:
        """Let a job that waits for nodes block the jobs of its queue that could take the same nodes."""
        barrier = self.barriers.setdefault(request.team, FifoBarrier())
        barrier.add(request.job_id, self.nodes.fits(request))
        for other_request in self._waiting_requests(request.team):
            blocker = barrier.blocker_of(self.nodes.fits(other_request))
            if blocker:
                self._withdraw(other_request)
                self.final_decisions[other_request.job_id] = self._decide_blocked(other_request, blocker, "free nodes")

    def _waiting_requests(self, team: str) -> list[AdmissionRequest]:
        return [
            self.queued_jobs[pending_workload.workload.workload_id].request
            for pending_workload in self.scheduler.pending[team].all()
        ]

    def _withdraw(self, request: AdmissionRequest) -> None:
        self.scheduler.pending[request.team].remove(request.job_id)

    # ------------------------------------------------------------ reasons

    def _is_decided_by_quota(self, job_id: str) -> bool:
        job = self.queued_jobs.get(job_id)
        return job is not None and job.latest is not None

    def _latest(self, job_id: str) -> _QuotaDecision:
        """Return the latest decision by quota about a job that was the head of its queue."""
        latest_decision = self.queued_jobs[job_id].latest
        assert latest_decision is not None, f"{job_id} was not the head of its queue"
        return latest_decision

    def _decide_by_quota(self, request: AdmissionRequest) -> AdmissionDecision:
        latest_decision = self._latest(request.job_id)
        facts = AdmissionFacts(request=request, fits=latest_decision.fits, now=self.now)
        decision = from_quota_decision(facts, latest_decision.decision)
        if request.resumes_by_preemption and decision.action is AdmissionAction.WAIT:
            if request.job_id not in self.preemption_plans:
                self.preemption_plans[request.job_id] = self._plan_preemption(request, latest_decision.decision)
            facts = facts.replace_unchecked(preemption_plan=self.preemption_plans[request.job_id])
            decision = with_preemption(decision.replace_unchecked(facts=facts))
        # An admission or a preemption is always recorded, even if its reason is the last one.
        is_done = decision.action in (
            AdmissionAction.ADMIT,
            AdmissionAction.PREEMPT,
        )
        if not is_done and self.admission_input.last_reasons.get(request.job_id) == decision.reason:
            return decision
        self.recorded[request.job_id] = (decision, latest_decision)
        return decision

    def with_quota_facts(self, decision: AdmissionDecision) -> AdmissionDecision:
        """Return a decision with its quota facts, if it was decided by quota and its reason is new."""
        recorded_decision, latest_decision = self.recorded.get(decision.job_id, (None, None))
        if recorded_decision is not decision or latest_decision is None:
            return decision
        kueue_job = self.queued_jobs[decision.job_id].kueue_job
        document = kueue_job.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        quota = quota_facts_of(
            document, latest_decision.decision, latest_decision.before, self.scheduler, self.documents
        )
        return decision.replace_unchecked(facts=decision.facts.replace_unchecked(quota=quota))

    def _plan_preemption(self, request: AdmissionRequest, decision: CycleDecision) -> PreemptionPlan | None:
        """Choose the fewest victims, in the order of the queue's policies, that free nodes for a job that has quota.

        Returns None if the jobs that already stop free enough, or if no choice of victims does.
        """
        preemptors = self.admission_input.scheduler_state.stopping
        stopping_job_ids = {
            job_id for job_id in self.admission_input.stopping if preemptors.get(job_id) != request.job_id
        }
        stops_for_others = {job_id for job_id in stopping_job_ids if preemptors.get(job_id)}
        stops_for_others |= {
            victim.job_id for plan in self.preemption_plans.values() if plan for victim in plan.victims
        }
        latest_decisions = (job.latest.decision for job in self.queued_jobs.values() if job.latest)
        stops_for_others |= {
            victim.workload_id for kueue_decision in latest_decisions for victim in kueue_decision.victims
        }
        reserved_life_keys = frozenset(life.key for life in self.nodes.reserved.get(request.job_id, ()))

        def fits_without(stopped_job_ids: Iterable[str]) -> tuple[PoolFit, ...]:
            capacities = tuple(
                capacity.with_free(capacity.free + request.per_node)
                if capacity.life.key in reserved_life_keys
                else capacity
                for capacity in self.nodes.capacities_without({*stopped_job_ids, *stopping_job_ids})
            )
            return self.nodes.fits_in_flavors(request, decision.assignment, capacities)

        def is_enough(stopped_job_ids: Iterable[str]) -> bool:
            return not why_no_fit(request, fits_without(stopped_job_ids))

        if is_enough(()):
            return None
        victims: list[JobToPreempt] = []
        for victim in self._preemption_candidates(request, decision):
            if victim.workload_id in stops_for_others:
                continue
            victims.append(JobToPreempt(job_id=victim.workload_id, reason=victim.reason))
            if is_enough(victim.job_id for victim in victims):
                break
        else:
            return None
        # Remove each victim that is not needed, from the second-last backwards.
        for candidate in victims[-2::-1]:
            if is_enough(victim.job_id for victim in victims if victim is not candidate):
                victims.remove(candidate)
        return PreemptionPlan(victims=tuple(victims), fits=fits_without(victim.job_id for victim in victims))

    def _preemption_candidates(self, request: AdmissionRequest, decision: CycleDecision) -> list[Victim]:
        """Return the jobs that may be preempted for a job, in order. Its reserved quota does not count as used."""
        queue = self.scheduler.snapshot.queue_of(decision.workload)
        requested_amounts = {key: amount for key, amount in decision.assignment.use.items() if amount > 0}
        _, reserved_amounts = self.reserved_quota.get(request.job_id, ("", {}))
        queue.quota_node.remove_all(reserved_amounts)
        demand = QuotaDemand(decision.workload, queue, requested_amounts, frozenset(requested_amounts))
        victims = preemptable_victims(demand, self.scheduler.snapshot, may_borrow=decision.assignment.level > 0)
        queue.quota_node.add_all(reserved_amounts)
        # A job that this cycle admitted is no victim.
        return [victim for victim in victims if not self._is_admitted(victim.workload_id)]

    def _is_admitted(self, job_id: str) -> bool:
        decision = self.final_decisions.get(job_id)
        return decision is not None and decision.action is AdmissionAction.ADMIT

    def _decide_waiting(self, request: AdmissionRequest) -> AdmissionDecision:
        if self._is_decided_by_quota(request.job_id):
            return self._cached_decision_by_quota(request)
        pending_workload = self.scheduler.pending[request.team].get(request.job_id)
        head_id, first_by_shape = self._heads_of(request.team)
        if pending_workload is not None and pending_workload.workload.shape in first_by_shape:
            return self._decide_same_shape(request, first_by_shape[pending_workload.workload.shape])
        blocker = head_id or self.first_head
        blocker_decision = self._latest(blocker) if blocker else None
        waits_for = {
            Result.PREEMPTING: "preempted jobs to stop",
            Result.DEFERRED: "preempted jobs to stop",
            Result.NO_NODES: "free nodes",
        }
        return self._decide_blocked(
            request,
            blocker,
            waits_for.get(blocker_decision.decision.result, "quota")
            if blocker_decision
            else "a later scheduling cycle",
        )

    def _heads_of(self, team: str) -> tuple[str, Mapping[str, str]]:
        if team not in self.queue_heads:
            pending_queue = self.scheduler.pending[team]
            evaluated_workloads = [
                pending_workload.workload
                for pending_workload in pending_queue.all()
                if self._is_decided_by_quota(pending_workload.workload.workload_id)
            ]
            parked = pending_queue.parked_shapes
            # The last value of a key stays, so the jobs are read backwards to keep the first job of each shape.
            first_by_shape = {
                workload.shape: workload.workload_id
                for workload in reversed(evaluated_workloads)
                if workload.shape in parked
            }
            self.queue_heads[team] = (evaluated_workloads[0].workload_id if evaluated_workloads else "", first_by_shape)
        return self.queue_heads[team]

    def _cached_decision_by_quota(self, request: AdmissionRequest) -> AdmissionDecision:
        job = self.queued_jobs[request.job_id]
        if job.waiting is None:
            job.waiting = self._decide_by_quota(request)
        return job.waiting

    def _decide_same_shape(self, request: AdmissionRequest, first_id: str) -> AdmissionDecision:
        reason = self._cached_decision_by_quota(self.queued_jobs[first_id].request).reason
        facts = AdmissionFacts(request=request, fits=(), blocked_by=first_id, same_shape_reason=reason, now=self.now)
        return decide(facts)

    def _decide_blocked(self, request: AdmissionRequest, blocker: str, waits_for: str) -> AdmissionDecision:
        fits = self.nodes.fits(request)
        facts = AdmissionFacts(
            request=request, fits=fits, blocked_by=blocker, blocker_waits_for=waits_for, now=self.now
        )
        return decide(facts)


def _tries_next_flavor(assignment: Assignment) -> bool:
    """Whether another flavor is tried in the next Kueue cycle."""
    return assignment.flavor_cursor is not None and assignment.flavor_cursor.has_more
