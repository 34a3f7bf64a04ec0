"""The decision about one job: its action, its reason and its replay."""

from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum

from pydantic import Field

from evenkeel.domain.admission.admission_request import AdmissionRequest
from evenkeel.domain.admission.pool_fits import (
    JobToPreempt,
    PoolFit,
    PreemptionPlan,
    best_fit,
    describe_request,
    pool_instance_types,
    why_no_fit,
)
from evenkeel.domain.decisions import Alternative
from evenkeel.domain.jobs.attempt import Attempt, AttemptState, RentedPart
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.jobs.workload_kind import WorkloadKind
from evenkeel.domain.kueue import quantities
from evenkeel.domain.kueue.assignment import FlavorMode
from evenkeel.domain.kueue.cycle_decisions import CycleDecision, Result
from evenkeel.domain.nodes import NodeLife
from evenkeel.domain.plurals import count_of
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.quotas.quota_facts import QuotaFacts
from evenkeel.domain.quotas.spending import UsageLimit
from evenkeel.domain.values import Instant, Sentence, Value


class AdmissionAction(StrEnum):
    """The decision of a scheduling cycle about one pending job."""

    ADMIT = "ADMIT"
    WAIT = "WAIT"
    """The job is the first in its queue that does not fit now."""
    BLOCKED = "BLOCKED"
    """An earlier job in the queue waits."""
    BACK_OFF = "BACK_OFF"
    """The restart backoff after a failure is not over. The job blocks no other job."""
    NEVER_FITS = "NEVER_FITS"
    """No pool is large enough even when it is empty. The job blocks no other job."""
    PREEMPT = "PREEMPT"
    """Other jobs are asked to stop for the job, and it waits until they have."""
    NO_QUOTA = "NO_QUOTA"
    """The team's quota is used up, and no job may be preempted for this job."""
    SAME_SHAPE = "SAME_SHAPE"
    """A job with the same request waits. The job blocks no other job."""
    LIMIT_REACHED = "LIMIT_REACHED"
    """A limit of the team or of the submitter is reached, even if nodes are free. The job blocks no other job."""
    EXCLUDED = "EXCLUDED"
    """The cycle does not examine the job: a person holds automation or its queue, or its namespace or cluster cannot
    be used. The job blocks no other job."""


class AdmissionFacts(Value):
    """Everything the decision about one job depends on. The decision replays from it."""

    request: AdmissionRequest
    fits: tuple[PoolFit, ...] = Field(alias="offers")
    """Stored as `offers`, its earlier name."""
    blocked_by: str = ""
    """The earlier job that waits."""
    blocker_waits_for: str = "free nodes"
    """The resource that the earlier job waits for, in words."""
    same_shape_reason: str = ""
    """Why an earlier job with the same request waits."""
    exclusion_reason: str = ""
    """Why the cycle does not examine the job; empty if it does."""
    local_queue: str = ""
    """Kueue's LocalQueue for the job, if Kueue admits it."""
    limits: tuple[UsageLimit, ...] = ()
    """Limits that the job must stay below."""
    quota: QuotaFacts | None = None
    """The quota facts, if quota was checked. Then `fits` are the fits on the flavor that was found, after the victims
    have stopped."""
    preemption_plan: PreemptionPlan | None = None
    """How other jobs free nodes for the job, if it has quota but no nodes."""
    rented_part: RentedPart | None = None
    """Rented nodes that are ready and join the nodes that the rules find. The decision does not depend on them."""
    now: Instant


class AdmissionDecision(Value):
    """The decision about one pending job, with its reason."""

    job_id: str
    action: AdmissionAction
    reason: Sentence
    """The reason as a sentence for people."""
    alternatives: tuple[Alternative, ...] = ()
    facts: AdmissionFacts
    pool: str = ""
    instance_type: str = ""
    nodes: tuple[NodeLife, ...] = ()
    node_names: tuple[str, ...] = ()
    use: dict[str, dict[str, int]] = {}
    """The quota that the job takes: flavor → resource → amount."""
    victims: tuple[JobToPreempt, ...] = ()
    """Jobs that must stop for this job, including jobs that were already asked."""

    @property
    def rented_part(self) -> RentedPart | None:
        """The rented nodes that join its nodes; None if none do."""
        return self.facts.rented_part if self.action is AdmissionAction.ADMIT else None

    @property
    def size(self) -> int:
        """Nodes of the attempt that it admits, with the rented part."""
        return self.facts.request.nodes + (len(self.rented_part.node_names) if self.rented_part else 0)

    @property
    def blocks_queue(self) -> bool:
        """Whether the job blocks later jobs: it waits for existing nodes that other jobs could take, too."""
        may_block = self.action is AdmissionAction.WAIT and not self.facts.request.may_be_overtaken
        return may_block and bool(pool_instance_types(self.facts.fits))

    def to_attempt(self, job: Job, decision_id: str) -> Attempt:
        """Return the attempt that starts an admitted job.

        Args:
            job: The job, as it waits.
            decision_id: Id of the record of this decision.
        """
        request, rented_part = self.facts.request, self.rented_part
        return Attempt(
            job_id=job.job_id,
            attempt=job.current_attempt + 1,
            kind=job.spec.kind,
            state=AttemptState.STARTING,
            cluster=request.cluster,
            namespace=job.namespace,
            local_queue=self.facts.local_queue,
            pool=self.pool,
            instance_type=self.instance_type,
            nodes=(*self.nodes, *(rented_part.nodes if rented_part else ())),
            node_names=(*self.node_names, *(rented_part.node_names if rented_part else ())),
            rented_part=rented_part,
            size=self.size,
            requested_size=self.size if self._may_kueue_admit_fewer(job) else 0,
            accelerators=self.size * job.spec.accelerators_per_node,
            cpu_millis=self.size * request.cpu_millis_per_node,
            memory_mib=self.size * request.memory_mib_per_node,
            team=job.spec.team,
            quota_use=self.use,
            admitted_at=self.facts.now,
            decision_id=decision_id,
        )

    def _may_kueue_admit_fewer(self, job: Job) -> bool:
        """Whether Kueue may admit fewer pods than requested. It supports this for a `Job` only."""
        return bool(self.facts.local_queue and self.facts.request.sizes) and job.spec.kind is WorkloadKind.JOB

    def to_charge(self) -> Charge:
        """Return the charge that an admitted job holds from now on."""
        request, rented_part = self.facts.request, self.rented_part
        return Charge(
            job_id=self.job_id,
            attempt=request.attempts + 1,
            team=request.team,
            cluster=request.cluster,
            node_names=(*self.node_names, *(rented_part.node_names if rented_part else ())),
            rented_part=rented_part,
            accelerators=self.size * request.accelerators_per_node,
            cpu_millis=self.size * request.cpu_millis_per_node,
            memory_mib=self.size * request.memory_mib_per_node,
            instance_type=self.instance_type,
            pool=self.pool,
            admitted_at=self.facts.now,
            submitter=request.submitter,
            queue=request.team if self.use else "",
            priority=request.priority,
            queued_at=request.queued_at or request.submitted_at,
            use=self.use,
        )


def decide(facts: AdmissionFacts) -> AdmissionDecision:
    """Decide about one pending job. A record replays through this function alone."""
    decision = _decide_without_rented_part(facts)
    return with_rented_part(decision, facts.rented_part) if facts.rented_part else decision


def with_rented_part(decision: AdmissionDecision, rented_part: RentedPart) -> AdmissionDecision:
    """Return an admission whose nodes are joined by rented nodes."""
    verb = "joins" if len(rented_part.node_names) == 1 else "join"
    text = f" {count_of(len(rented_part.node_names), 'rented node')} of {rented_part.pool} {verb} them."
    facts = decision.facts.replace_unchecked(rented_part=rented_part)
    return decision.replace_unchecked(reason=f"{decision.reason}{text}", facts=facts)


def _decide_without_rented_part(facts: AdmissionFacts) -> AdmissionDecision:
    request, fits = facts.request, facts.fits
    if request.not_before and facts.now < request.not_before:
        reason = f"The job failed and waits until {request.not_before:%H:%M:%S} UTC before it restarts."
        return _build_decision(facts, AdmissionAction.BACK_OFF, reason)
    if facts.local_queue:
        return _build_decision(
            facts, AdmissionAction.ADMIT, f"Kueue admits jobs here: the job goes to LocalQueue {facts.local_queue}."
        )
    if facts.exclusion_reason:
        return _build_decision(facts, AdmissionAction.EXCLUDED, facts.exclusion_reason)
    for limit in facts.limits:
        if limit.is_reached:
            return _build_decision(
                facts, AdmissionAction.LIMIT_REACHED, f"The job waits because a limit is reached: {limit.text}."
            )
    if facts.same_shape_reason:
        # The reason does not name the other job: it changes between cycles, and each change would be a new record.
        return _build_decision(
            facts,
            AdmissionAction.SAME_SHAPE,
            f"A job with the same request waits in its queue: {facts.same_shape_reason}",
        )
    if facts.quota is not None:
        # A cycle decides about quota for all jobs together: only a replay comes here.
        from evenkeel.domain.quotas.quota_replay import replay_quota

        decision = from_quota_decision(
            facts, replay_quota(facts.quota, facts.now.timestamp(), lambda *_: why_no_fit(request, fits))
        )
        return with_preemption(decision)
    if all(fit.total_nodes < request.nodes for fit in fits) and request.attempts == 0:
        most_nodes = max((fit.total_nodes for fit in fits), default=0)
        wanted_text = f"the job asks for {describe_request(request)}"
        reason = f"No pool has such nodes: {wanted_text}."
        if most_nodes:
            largest_text = f"the largest matching pool has {count_of(most_nodes, 'node')}"
            reason = f"No pool is large enough: {wanted_text}, and {largest_text}."
        return _build_decision(facts, AdmissionAction.NEVER_FITS, reason)
    if facts.blocked_by:
        return _build_decision(
            facts,
            AdmissionAction.BLOCKED,
            f"The job waits behind {facts.blocked_by}, which waits for {facts.blocker_waits_for}.",
        )
    shortage = why_no_fit(request, fits)
    if shortage:
        return _build_decision(facts, AdmissionAction.WAIT, shortage)
    return _admit(facts, "", {})


def delegate_to_kueue(request: AdmissionRequest, local_queue: str, now: datetime) -> AdmissionDecision:
    """Let Kueue decide about a job. Evenkeel applies only the restart backoff after a failure."""
    return decide(AdmissionFacts(request=request, fits=(), local_queue=local_queue, now=now))


def exclude(request: AdmissionRequest, reason: str, now: datetime) -> AdmissionDecision:
    """Exclude a job from the scheduling cycle for a reason, such as a hold on automation."""
    return decide(AdmissionFacts(request=request, fits=(), exclusion_reason=reason, now=now))


def exclude_in_kueue_namespace(
    request: AdmissionRequest, namespace: str, shown_by: str, now: datetime
) -> AdmissionDecision:
    """Exclude a job in a namespace where Kueue admits. Two admission systems on the same nodes would break quotas."""
    reason = f"Kueue admits jobs in namespace {namespace} ({shown_by}), so Evenkeel starts no jobs there."
    return exclude(request, reason, now)


def exclude_on_unreadable_cluster(request: AdmissionRequest, now: datetime) -> AdmissionDecision:
    """Exclude a job if its cluster cannot be read: its free nodes are unknown."""
    reason = f"Cluster {request.cluster} cannot be read, so its free nodes are unknown. The job waits until it answers."
    return exclude(request, reason, now)


def exclude_in_other_teams_namespace(
    request: AdmissionRequest, namespace: str, other_team: str, now: datetime
) -> AdmissionDecision:
    """Exclude a job if its namespace now belongs to another team. It could read that team's secrets."""
    reason = f"Namespace {namespace} now belongs to team {other_team}. Cancel the job and submit it again."
    return exclude(request, reason, now)


def _admit(facts: AdmissionFacts, prefix: str, quota_use: dict[str, dict[str, int]]) -> AdmissionDecision:
    request, chosen_fit = facts.request, best_fit(facts.fits)
    if request.requested_nodes > request.nodes:
        prefix = f"The job starts with {request.nodes} of {count_of(request.requested_nodes, 'node')}. {prefix}"
    return AdmissionDecision(
        job_id=request.job_id,
        action=AdmissionAction.ADMIT,
        reason=f"{prefix}{chosen_fit.pool} has {describe_request(request)}.{_closeness_text(request, chosen_fit)}",
        alternatives=_rejected_fits(facts, chosen_fit),
        facts=facts,
        pool=chosen_fit.pool,
        instance_type=chosen_fit.instance_type,
        nodes=chosen_fit.best,
        node_names=chosen_fit.names,
        use=quota_use,
    )


def _closeness_text(request: AdmissionRequest, chosen_fit: PoolFit) -> str:
    """Return how close the nodes are to each other; empty if their position in the network is unknown."""
    if chosen_fit.level is None:
        return ""
    preferred_level = request.network_needs.preferred
    wider = (
        f" No {preferred_level} domain has {request.nodes} of them."
        if preferred_level and chosen_fit.level != preferred_level
        else ""
    )
    return f" They share {chosen_fit.level} domain {chosen_fit.domain}.{wider}"


def from_quota_decision(facts: AdmissionFacts, kueue_decision: CycleDecision) -> AdmissionDecision:
    """Translate the result of a Kueue cycle into the decision for a job."""
    alternatives = tuple(_rejected_flavors(kueue_decision))
    match kueue_decision.result:
        case Result.ADMITTED:
            quota_use: dict[str, dict[str, int]] = {}
            for (flavor, resource), amount in kueue_decision.assignment.use.items():
                quota_use.setdefault(flavor, {})[resource] = amount
            admission = _admit(facts, f"{kueue_decision.reason} ", quota_use)
            return admission.replace_unchecked(alternatives=(*admission.alternatives, *alternatives))
        case Result.PREEMPTING:
            victims = tuple(
                JobToPreempt(job_id=victim.workload_id, reason=victim.reason) for victim in kueue_decision.victims
            )
            return _build_decision(
                facts, AdmissionAction.PREEMPT, kueue_decision.reason, alternatives
            ).replace_unchecked(victims=victims)
        case Result.NO_NODES:
            reason = f"The job's quota is available. {kueue_decision.reason}"
            return _build_decision(facts, AdmissionAction.WAIT, reason, (*_rejected_fits(facts, None), *alternatives))
        case _:
            return _build_decision(
                facts,
                AdmissionAction.NO_QUOTA,
                f"{kueue_decision.reason}{_shortage_text(kueue_decision)}",
                alternatives,
            )


def with_preemption(decision: AdmissionDecision) -> AdmissionDecision:
    """Return a decision that preempts, if the job has quota and the victims free enough nodes."""
    preemption_plan = decision.facts.preemption_plan
    if (
        decision.action is not AdmissionAction.WAIT
        or preemption_plan is None
        or why_no_fit(decision.facts.request, preemption_plan.fits)
    ):
        return decision
    names = ", ".join(victim.job_id for victim in preemption_plan.victims)
    reason = f"The job's quota is available, and its recovery preempts other jobs. It waits until they stop: {names}."
    return decision.replace_unchecked(action=AdmissionAction.PREEMPT, reason=reason, victims=preemption_plan.victims)


def _shortage_text(kueue_decision: CycleDecision) -> str:
    """Return which amounts the last evaluated flavor lacked."""
    for attempts in kueue_decision.assignment.attempts:
        for attempt in reversed(attempts):
            for inequality in attempt.compared:
                if inequality.mode is not FlavorMode.FIT:
                    requested, free, potential = (
                        quantities.text(inequality.resource, max(0, amount))
                        for amount in (inequality.wanted, inequality.available, inequality.potential)
                    )
                    comparison = (
                        f"{requested} {inequality.resource} of {attempt.flavor}: {free} free, {potential} at most"
                    )
                    return f" The job asks for {comparison}."
            if attempt.why:
                sentence = f"{attempt.why[:1].upper()}{attempt.why[1:]}."
                return f" {attempt.flavor}: {attempt.why}" if attempt.flavor else f" {sentence}"
    return ""


def _rejected_flavors(kueue_decision: CycleDecision) -> Iterator[Alternative]:
    assigned_flavors = {flavor for flavors in kueue_decision.assignment.flavors for flavor in flavors.values()}
    for attempts in kueue_decision.assignment.attempts:
        for attempt in attempts:
            if attempt.flavor in assigned_flavors:
                continue
            compared = "; ".join(
                f"{quantities.text(inequality.resource, inequality.wanted)} {inequality.resource} requested, "
                f"{quantities.text(inequality.resource, max(0, inequality.available))} free"
                for inequality in attempt.compared
            )
            reason = attempt.why or compared or attempt.mode.name
            yield Alternative(option=f"flavor {attempt.flavor}", why_not=f"{reason.rstrip('.')}.")


def recorded_reason(decision: AdmissionDecision, mode: Mode) -> str:
    """Return the reason to record. In every mode except `act` it says that Evenkeel takes no action."""
    if mode is Mode.ACT:
        return decision.reason
    if decision.action is AdmissionAction.ADMIT:
        return f"Mode is {mode}: the job would start, but Evenkeel takes no action. {decision.reason}"
    if decision.action is AdmissionAction.PREEMPT:
        return f"Mode is {mode}: Evenkeel would ask other jobs to stop, but takes no action. {decision.reason}"
    return decision.reason


def _build_decision(
    facts: AdmissionFacts, action: AdmissionAction, reason: str, alternatives: tuple[Alternative, ...] | None = None
) -> AdmissionDecision:
    options = alternatives
    if options is None:
        options = _rejected_fits(facts, None) if action in (AdmissionAction.WAIT, AdmissionAction.NEVER_FITS) else ()
    return AdmissionDecision(
        job_id=facts.request.job_id, action=action, reason=reason, alternatives=options, facts=facts
    )


def _rejected_fits(facts: AdmissionFacts, chosen_fit: PoolFit | None) -> tuple[Alternative, ...]:
    return tuple(
        Alternative(option=f"{fit.pool} ({fit.instance_type})", why_not=_why_not_chosen(fit, chosen_fit, facts.request))
        for fit in facts.fits
        if fit is not chosen_fit
    )


def _why_not_chosen(fit: PoolFit, chosen_fit: PoolFit | None, request: AdmissionRequest) -> str:
    if not fit.fits_now:
        return f"{fit.why_not(request)}."
    if chosen_fit and fit.preference_rank > chosen_fit.preference_rank:
        return "The job prefers another pool."
    return "The pool has more free nodes, which a larger job may need."
