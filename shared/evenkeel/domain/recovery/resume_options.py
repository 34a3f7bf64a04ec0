"""Choose how an interrupted job resumes: the option with the least expected loss."""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from pydantic import Field

from evenkeel.domain.capacity.network_topology import NetworkLevel, NetworkSpread
from evenkeel.domain.decisions import Alternative
from evenkeel.domain.economics import money
from evenkeel.domain.economics.expected_durations import ExpectedDuration
from evenkeel.domain.elastic.grow_shrink import NodeLossAction, NodeLossFacts, decide_after_node_loss
from evenkeel.domain.health.faults import CheckpointTrust
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.jobs.job import CheckpointRequirement, Job, ResumeOption
from evenkeel.domain.jobs.job_policy import JobPolicy
from evenkeel.domain.plurals import count_of
from evenkeel.domain.recovery.network_distance import NO_SLOWDOWN, NetworkFacts, Slowdown, slowdown_on
from evenkeel.domain.renting.cost import cheapest_committed
from evenkeel.domain.renting.placement import PlacementFacts, cheapest_rental_in_time, choose_pool
from evenkeel.domain.renting.rental import nodes_subject
from evenkeel.domain.values import Instant, Value

OPTION_ORDER = (
    ResumeOption.FREE_NODE,
    ResumeOption.SPARE,
    ResumeOption.SHRINK,
    ResumeOption.WAIT_FOR_REPAIR,
    ResumeOption.PREEMPT,
    ResumeOption.RENT,
)
"""Order among equal losses: the option that costs other jobs least comes first."""


class PoolCapacity(Value):
    """Nodes that one pool could give this job now."""

    pool: str
    usable: int
    """Schedulable nodes of a suitable type, without the faulty node, that are free now or once the attempt ended."""
    spares: int
    """Usable nodes that are reserved for recoveries."""
    spread: NetworkSpread | None = None
    """Distance between the nodes that the job would take; None if they are too few, or if it is unknown."""


class OptionCost(Value):
    """The cost of a resume option beyond free nodes, or the reason why it is not available: shrink, rent or preempt."""

    option: ResumeOption
    why_not: str = ""
    """Why the option is not available; empty if it is."""
    pool: str = ""
    wait_seconds: float = 0
    """Time until its nodes are ready."""
    gpu_hours_taken: float = 0
    """GPU-hours that the option costs other jobs."""
    usd: float = 0
    """Cost in addition to the GPU time."""


class RentOption(Value):
    """Facts for renting nodes, if there are pools to rent from. A scheduling cycle computes the price the same way."""

    placement: PlacementFacts
    barred: str = ""
    """Why a scheduling cycle would not start the job on rented nodes; empty if it would."""


class PreemptionCandidate(Value):
    """A job that Evenkeel would preempt for the interrupted job."""

    job_id: str
    team: str
    accelerators: int
    save_seconds: float
    """Grace of the preempted job. The interrupted job gets the nodes after it."""
    lost_work_seconds: float
    usd_per_hour_of_delay: float = 0


class ResumeDelays(Value):
    """Expected duration of each step until the job trains again."""

    repair: ExpectedDuration
    """Repair of the faulty node by its first rung."""
    capacity: ExpectedDuration
    """Time until the scheduler finds capacity without a repair."""
    launch: ExpectedDuration
    """Time from admission until every pod runs."""
    restore: ExpectedDuration
    """Time from running pods until the job trains again."""


def capacity_wait(delays: ResumeDelays, pools: Iterable[PoolCapacity], nodes: int, *, is_repaired: bool) -> float:
    """Return the expected seconds until a job gets committed nodes by waiting.

    Args:
        delays: Expected durations.
        pools: The nodes that can run the job now.
        nodes: Nodes that the job needs.
        is_repaired: Whether the faulty node will be repaired.
    """
    repair, capacity = delays.repair.seconds, delays.capacity.seconds
    if not is_repaired:
        return capacity
    max_usable = max((pool.usable for pool in pools), default=0)
    return max(repair, capacity) if nodes - max_usable > 1 else repair


class ResumeFacts(Value):
    """Facts for the decision."""

    job_id: str
    attempt: int
    nodes: int
    accelerators_per_node: int
    pools: tuple[PoolCapacity, ...]
    option_costs: tuple[OptionCost, ...] = Field(alias="offers")
    """The costs of options beyond free nodes, or the reasons why they are not available."""
    renting: RentOption | None = None
    """None if there is no pool to rent from; then `option_costs` says why."""
    preemption_victims: tuple[PreemptionCandidate, ...] = ()
    """Jobs that a scheduling cycle would preempt; if there are none, `option_costs` says why."""
    usd_per_hour_of_delay: float = 0
    """Cost of one hour of delay for the job's owner, in addition to the time of its accelerators."""
    node_loss: NodeLossFacts | None = Field(default=None, alias="fault")
    """Nodes that an elastic job lost and still has; None if the job has a fixed size."""
    delays: ResumeDelays
    lost_work_seconds: float
    """Work since the last usable checkpoint, as `lost_work_seconds` estimates it."""
    usd_per_accelerator_hour: float | None
    """Price of the nodes' accelerators; None if they have no price. Then the other costs are compared first, and the
    lost GPU-hours decide between equal costs."""
    price_origin: str = ""
    """Where the price comes from: the list, its region and its date, or the site's policy."""
    fault_key: str
    fault_class: str
    trust: CheckpointTrust
    first_signal_at: Instant
    faulty_life: str
    will_be_replaced: bool
    """Whether the first rung replaces the node, so that this node life does not return."""
    is_repaired: bool
    """Whether the node will be repaired."""
    network: NetworkFacts | None = None
    """The cost of nodes that are farther apart; None for a job on one node, and in records of earlier releases."""


class ResumeDecision(Value):
    """How one job resumes, and why."""

    option: ResumeOption
    reason: str
    pool: str = ""
    nodes: int
    """Number of nodes that the job resumes on."""
    shrinks_at: Instant | None = None
    """Time from which an elastic job continues on fewer nodes if not all nodes are ready."""
    avoid: tuple[str, ...] = ()
    distrust_after: Instant | None = None
    requirement: CheckpointRequirement = CheckpointRequirement.CONVENTION
    expected_seconds: float
    gpu_hours_lost: float
    usd: float | None
    """None if the accelerators have no price."""
    max_rent_parts: int | None = None
    """Highest rent at which RENT still loses least; None if no nodes are rented."""
    capacity_seconds: float = 0
    """Expected time until committed nodes are free for the job."""
    slowdown_seconds: float | None = None
    """Seconds that the job loses on nodes that are farther apart than before; None if unknown, or not weighed."""
    near_level: NetworkLevel | None = None
    """Network level of which one domain must hold the job's nodes; None if any nodes will do."""
    far_nodes_after_seconds: float | None = None
    """Time after which `near_level` no longer counts: then waiting has cost as much as the slowdown."""
    alternatives: tuple[Alternative, ...] = ()


class _Option(Value):
    """A resume option with its costs."""

    option: ResumeOption
    why_not: str = ""
    """Why the option is not possible; empty if it is."""
    why: str = ""
    pool: str = ""
    nodes: int = 0
    """Number of nodes that the job resumes on; 0 = all."""
    shrinks_at: Instant | None = None
    seconds: float = 0
    gpu_hours: float = 0
    usd: float = 0
    rent_parts: int = 0
    slowdown: Slowdown = NO_SLOWDOWN


def plan_resume(facts: ResumeFacts, policy: JobPolicy) -> ResumeDecision:
    """Choose how to resume one interrupted job: the option with the least expected loss in dollars.

    The loss of an option:

        seconds = wait for nodes + launch + restore + lost work
        lost    = seconds + slowdown on nodes that are farther apart
        loss    = (lost x accelerators / 3600 + GPU-hours that other jobs lose) x price
                  + lost x price of delay + cost of the option itself

    Ties follow `OPTION_ORDER`.
    """
    options = sorted(_all_options(facts), key=lambda option: OPTION_ORDER.index(option.option))
    possible = [option for option in options if not option.why_not]
    # Waiting is always possible, so there is always a best option.
    is_priced = facts.usd_per_accelerator_hour is not None
    chosen_option = min(
        possible,
        key=lambda option: (option.usd, 0 if is_priced else option.gpu_hours, OPTION_ORDER.index(option.option)),
    )
    distrust = distrust_after(facts.trust, facts.first_signal_at, policy)
    max_rent_parts = None
    if chosen_option.option is ResumeOption.RENT and facts.renting is not None:
        next_best = min(option.usd for option in possible if option is not chosen_option)
        max_rent_parts = chosen_option.rent_parts + round((next_best - chosen_option.usd) * money.COST_PARTS_PER_USD)
    far_nodes_after_seconds = _far_nodes_after_seconds(chosen_option, possible)
    texts = (
        chosen_option.why,
        _slowdown_text(chosen_option.slowdown),
        _trust_text(facts.trust, distrust),
        _durations_text(facts.delays),
    )
    return ResumeDecision(
        option=chosen_option.option,
        reason=" ".join(filter(None, texts)),
        pool=chosen_option.pool,
        nodes=chosen_option.nodes or facts.nodes,
        shrinks_at=chosen_option.shrinks_at or _shrinks_at(facts, chosen_option),
        # Only a node that will be replaced is avoided. A rebooted node returns, and may be the only free node.
        avoid=(facts.faulty_life,) if facts.will_be_replaced else (),
        distrust_after=distrust,
        requirement=requirement_after(facts.trust, facts.fault_class, policy),
        expected_seconds=chosen_option.seconds,
        gpu_hours_lost=chosen_option.gpu_hours,
        usd=chosen_option.usd if is_priced else None,
        max_rent_parts=max_rent_parts,
        capacity_seconds=_wait_seconds(facts),
        slowdown_seconds=chosen_option.slowdown.seconds,
        near_level=facts.network.before.level
        if far_nodes_after_seconds is not None and facts.network and facts.network.before
        else None,
        far_nodes_after_seconds=far_nodes_after_seconds,
        alternatives=tuple(
            _rejected_alternative(option, chosen_option, is_priced=is_priced)
            for option in options
            if option is not chosen_option
        ),
    )


def _all_options(facts: ResumeFacts) -> Iterator[_Option]:
    max_usable = max((pool.usable for pool in facts.pools), default=0)
    need = count_of(facts.nodes, "node is", "nodes are")
    shortage = f"{need} needed and {max_usable} {'is' if max_usable == 1 else 'are'} free"
    free_pool = next((pool for pool in facts.pools if pool.usable - pool.spares >= facts.nodes), None)
    spare_pool = next((pool for pool in facts.pools if pool.usable >= facts.nodes and pool.spares), None)
    if free_pool is None:
        why_not = f"{shortage} without the spares" if spare_pool else shortage
        yield _Option(option=ResumeOption.FREE_NODE, why_not=why_not)
    else:
        yield _priced_option(
            facts,
            ResumeOption.FREE_NODE,
            f"Free nodes in {free_pool.pool} can run the job now.",
            pool=free_pool.pool,
            slowdown=slowdown_on(free_pool.spread, facts.network),
        )
    if spare_pool is None:
        why_not = "the pool has no spare node" if max_usable >= facts.nodes else shortage
        yield _Option(option=ResumeOption.SPARE, why_not=why_not)
    else:
        why = f"The job can run now in {spare_pool.pool} if it takes spare nodes."
        slowdown = slowdown_on(spare_pool.spread, facts.network)
        yield _priced_option(facts, ResumeOption.SPARE, why, pool=spare_pool.pool, slowdown=slowdown)
    yield _wait_option(facts, shortage, max_usable)
    if facts.node_loss is not None:
        yield _shrink_option(facts, facts.node_loss)
    if facts.preemption_victims:
        yield _preempt_option(facts, _wait_seconds(facts))
    if facts.renting is not None:
        yield _rent_option(facts, facts.renting)
    for cost in facts.option_costs:
        if cost.why_not:
            yield _Option(option=cost.option, why_not=cost.why_not)
        else:
            why, slowdown = _OPTION_REASONS[cost.option], slowdown_on(None, facts.network)
            yield _priced_option(facts, cost.option, why, wait=cost.wait_seconds, cost=cost, slowdown=slowdown)


_OPTION_REASONS = {
    ResumeOption.SHRINK: "The job continues on fewer nodes.",
    ResumeOption.RENT: "Rented nodes run the job.",
    ResumeOption.PREEMPT: "Evenkeel preempts other jobs, as the policies of the queue allow.",
}


def _wait_option(facts: ResumeFacts, shortage: str, max_usable: int) -> _Option:
    shortage = shortage[0].upper() + shortage[1:]
    why = f"{shortage}, so the job waits for the repair."
    if not facts.is_repaired:
        why = f"{shortage}, so the job waits for capacity."
    elif facts.nodes - max_usable > 1:
        why = f"{shortage}: one repaired node is not enough, so the job waits for capacity."
    slowdown = slowdown_on(None, facts.network)
    if far_pool := next((pool for pool in facts.pools if pool.usable >= facts.nodes), None):
        # Any of the free nodes would do. Only a repair brings back a node at the place of the faulty one.
        slowdown = NO_SLOWDOWN if facts.is_repaired else slowdown_on(far_pool.spread, facts.network)
        why = "The free nodes are farther apart than the job's nodes were, so the job waits for the repair."
    elif facts.is_repaired and facts.nodes - max_usable == 1:
        slowdown = NO_SLOWDOWN
    return _priced_option(facts, ResumeOption.WAIT_FOR_REPAIR, why, wait=_wait_seconds(facts), slowdown=slowdown)


def _far_nodes_after_seconds(chosen_option: _Option, possible: Iterable[_Option]) -> float | None:
    """Return how long the job waits for near nodes although others are free; None if it does not.

    Longer than that, the wait would lose more than the slowdown.
    """
    if chosen_option.option is not ResumeOption.WAIT_FOR_REPAIR:
        return None
    slowdowns = (option.slowdown.seconds for option in possible if option.option in _EXISTING_NODES)
    return min((seconds for seconds in slowdowns if seconds), default=None)


_EXISTING_NODES = (ResumeOption.FREE_NODE, ResumeOption.SPARE)


def _wait_seconds(facts: ResumeFacts) -> float:
    return capacity_wait(facts.delays, facts.pools, facts.nodes, is_repaired=facts.is_repaired)


def _rent_option(facts: ResumeFacts, rent_option: RentOption) -> _Option:
    """Return the option to rent nodes, priced as a scheduling cycle prices it.

    The price is the rent, less the value of the committed nodes that the job then leaves free.
    """
    requirement = rent_option.placement.job
    placement = choose_pool(rent_option.placement)
    table, row = placement.table, cheapest_rental_in_time(placement)
    if row is None:
        why = " ".join(f"{cost.pool}: {cost.why_not}" for cost in table if cost.market.is_rented)
        return _Option(option=ResumeOption.RENT, why_not=(why or "no pool to rent from is configured").rstrip("."))
    if rent_option.barred:
        return _Option(option=ResumeOption.RENT, why_not=rent_option.barred.rstrip("."))
    premium = row.premium_over(cheapest_committed(table))
    # The wait covers the launch and the expected interruptions. The restore is left out: every option includes it.
    wait = row.ends_after_seconds - requirement.run_seconds - requirement.restart_seconds
    rent = f"{money.format_usd(row.rent_parts)} for the expected run time"
    why = f"{nodes_subject(requirement.nodes, row.pool)} rented for it, {rent}."
    cost = OptionCost(option=ResumeOption.RENT, pool=row.pool, usd=premium / money.COST_PARTS_PER_USD)
    slowdown = slowdown_on(None, facts.network)
    return _priced_option(facts, ResumeOption.RENT, why, wait=max(0.0, wait), cost=cost, slowdown=slowdown).replace(
        rent_parts=row.rent_parts
    )


def _preempt_option(facts: ResumeFacts, wait: float) -> _Option:
    """Return the option to preempt jobs.

    The preempted jobs wait as long as this job would have waited, and lose their work since their last checkpoint.
    """
    delays = facts.delays
    save_seconds = max(victim.save_seconds for victim in facts.preemption_victims)
    hours = usd = 0.0
    for victim in facts.preemption_victims:
        delay_seconds = wait + delays.launch.seconds + delays.restore.seconds + victim.lost_work_seconds
        hours += delay_seconds * victim.accelerators / 3600
        usd += delay_seconds * victim.usd_per_hour_of_delay / 3600
    names = ", ".join(f"{victim.job_id} of team {victim.team}" for victim in facts.preemption_victims)
    cost = OptionCost(option=ResumeOption.PREEMPT, gpu_hours_taken=hours, usd=usd)
    why, slowdown = f"Evenkeel preempts {names} to run the job.", slowdown_on(None, facts.network)
    return _priced_option(facts, ResumeOption.PREEMPT, why, wait=save_seconds, cost=cost, slowdown=slowdown)


def _shrink_option(facts: ResumeFacts, node_loss: NodeLossFacts) -> _Option:
    """Return the option to continue on fewer nodes.

    It costs the time of the missing nodes until they are back, and the resize back to the full size.
    """
    decision = decide_after_node_loss(node_loss)
    begins_at = decision.recheck_at or node_loss.now
    if decision.action is NodeLossAction.WAIT:
        decision = decide_after_node_loss(node_loss.replace(now=begins_at))
    if decision.action is not NodeLossAction.SHRINK:
        return _Option(option=ResumeOption.SHRINK, why_not=decision.reason.rstrip("."))
    delays, elastic_policy = facts.delays, node_loss.policy
    missing_seconds = (delays.repair if facts.is_repaired else delays.capacity).seconds
    node_seconds = (facts.nodes - decision.nodes) * missing_seconds + facts.nodes * elastic_policy.resize_seconds
    cost = OptionCost(
        option=ResumeOption.SHRINK,
        pool=facts.pools[0].pool if facts.pools else "",
        gpu_hours_taken=node_seconds * facts.accelerators_per_node / 3600,
        # On fewer nodes the job finishes later.
        usd=node_seconds / facts.nodes * facts.usd_per_hour_of_delay / 3600,
    )
    wait = (begins_at - node_loss.now).total_seconds()
    time_text = f" from {begins_at:%H:%M:%S} UTC, unless a spare node becomes free earlier" if wait else ""
    size = f"{decision.nodes} of {count_of(facts.nodes, 'node')}"
    why = f"The job continues on {size}{time_text}, and grows back when nodes are free."
    return _priced_option(facts, ResumeOption.SHRINK, why, wait=wait, cost=cost).replace(
        nodes=decision.nodes, shrinks_at=begins_at
    )


def _shrinks_at(facts: ResumeFacts, chosen_option: _Option) -> datetime | None:
    """Return the time from which an elastic job no longer waits for all its nodes; None for a fixed size."""
    node_loss = facts.node_loss
    if node_loss is None:
        return None
    spare_wait = timedelta(seconds=node_loss.policy.spare_wait_seconds)
    if chosen_option.option is ResumeOption.WAIT_FOR_REPAIR:
        return node_loss.now + max(spare_wait, timedelta(seconds=chosen_option.seconds))
    return node_loss.now + spare_wait


def _priced_option(
    facts: ResumeFacts,
    option: ResumeOption,
    why: str,
    *,
    wait: float = 0,
    pool: str = "",
    cost: OptionCost | None = None,
    slowdown: Slowdown = NO_SLOWDOWN,
) -> _Option:
    seconds = wait + facts.delays.launch.seconds + facts.delays.restore.seconds + facts.lost_work_seconds
    lost_seconds = seconds + (slowdown.seconds or 0)
    gpu_hours = lost_seconds * facts.nodes * facts.accelerators_per_node / 3600 + (cost.gpu_hours_taken if cost else 0)
    delay_usd = lost_seconds * facts.usd_per_hour_of_delay / 3600
    usd = gpu_hours * (facts.usd_per_accelerator_hour or 0) + delay_usd + (cost.usd if cost else 0)
    return _Option(
        option=option,
        why=why,
        pool=pool or (cost.pool if cost else ""),
        seconds=round(seconds, 3),
        gpu_hours=round(gpu_hours, 3),
        usd=round(usd, 2),
        slowdown=slowdown,
    )


def _rejected_alternative(rejected_option: _Option, chosen_option: _Option, *, is_priced: bool) -> Alternative:
    if rejected_option.why_not:
        return Alternative(option=rejected_option.option, why_not=rejected_option.why_not)
    why_not = _why_not_chosen(rejected_option, chosen_option, is_priced=is_priced)
    if rejected_option.slowdown.text:
        why_not = f"{why_not}; {rejected_option.slowdown.text}"
    return Alternative(
        option=rejected_option.option,
        why_not=why_not,
        expected_seconds=rejected_option.seconds,
        gpu_hours_lost=rejected_option.gpu_hours,
        usd=rejected_option.usd if is_priced else None,
        slowdown_seconds=rejected_option.slowdown.seconds,
    )


def _why_not_chosen(rejected_option: _Option, chosen_option: _Option, *, is_priced: bool) -> str:
    more_hours = rejected_option.gpu_hours - chosen_option.gpu_hours
    if not is_priced and more_hours > 0:
        return f"it would lose {more_hours:,.1f} GPU-hours more; GPU-hours are unpriced"
    extra_usd = rejected_option.usd - chosen_option.usd
    if extra_usd > 0:
        return f"it would lose ${extra_usd:,.2f} more"
    if (chosen_option.option, rejected_option.option) == _EXISTING_NODES:
        return "a free node is as quick and keeps the spare"
    return f"as quick, but {chosen_option.option} costs other jobs less"


def lost_work_seconds(
    *,
    ran_seconds: float,
    keeps_checkpoints: bool,
    distrusted_seconds: float,
    expected_checkpoint_seconds: float,
) -> float:
    """Estimate the seconds of work that the job lost: the work since its last usable checkpoint.

    On average a job loses half the time between two checkpoints (docs/operate/resume.md), and all work saved after
    checkpoints became distrusted. It never loses more than its attempt has run. A job without checkpoints loses all of
    that.

    Args:
        ran_seconds: How long the interrupted attempt has trained.
        keeps_checkpoints: Whether the job has a checkpoint URI.
        distrusted_seconds: Time from the first distrusted checkpoint to the end of the attempt; 0 if all are trusted.
        expected_checkpoint_seconds: Usual time between two checkpoints.
    """
    if not keeps_checkpoints:
        return max(0.0, ran_seconds)
    return max(0.0, min(ran_seconds, distrusted_seconds + expected_checkpoint_seconds / 2))


def charge_lost_work(charge: Charge, job: Job | None, expected_checkpoint_seconds: float, now: datetime) -> float:
    """Estimate the seconds of work that a job would lose if its attempt stopped now.

    Args:
        charge: The quota that the attempt holds.
        job: The job of the charge; None if its row is gone. Such a job counts as one without checkpoints.
        expected_checkpoint_seconds: Usual time between two checkpoints.
        now: Time of the estimate.
    """
    return lost_work_seconds(
        ran_seconds=(now - charge.admitted_at).total_seconds() if charge.admitted_at else 0.0,
        keeps_checkpoints=bool(job and job.spec.checkpoint_uri),
        distrusted_seconds=0.0,
        expected_checkpoint_seconds=expected_checkpoint_seconds,
    )


def distrust_after(trust: CheckpointTrust, first_signal_at: datetime, policy: JobPolicy) -> datetime | None:
    """Return the time from which checkpoints of the interrupted attempt are distrusted; None if all are trusted.

    Trust `none` gives the same time. Earlier checkpoints then also need evidence of their own (`requirement_after`).
    """
    if trust is CheckpointTrust.TRUSTED:
        return None
    return first_signal_at - timedelta(seconds=policy.distrust_guard_seconds)


def requirement_after(trust: CheckpointTrust, fault_class: str, policy: JobPolicy) -> CheckpointRequirement:
    """Return the requirement that checkpoints must meet after a fault."""
    if trust is CheckpointTrust.NONE:
        return CheckpointRequirement.EVIDENCE
    return CheckpointRequirement.CONVENTION if policy.accepts_convention(fault_class) else CheckpointRequirement.PROOF


def _durations_text(delays: ResumeDelays) -> str:
    """Return the measured times that the forecast uses; empty if all of them come from the policy.

    Records of earlier releases name no origin. They replay without this text.
    """
    named_durations = (("repair", delays.repair), ("launch", delays.launch), ("restore", delays.restore))
    if not any(duration.origin for _, duration in named_durations):
        return ""
    return f"Expected times: {'; '.join(f'{name} {duration.text}' for name, duration in named_durations)}."


def _slowdown_text(slowdown: Slowdown) -> str:
    return f"{slowdown.text[0].upper()}{slowdown.text[1:]}." if slowdown.text else ""


def _trust_text(trust: CheckpointTrust, distrust: datetime | None) -> str:
    if distrust is None:
        return ""
    time_text = distrust.strftime("%H:%M:%SZ")
    if trust is CheckpointTrust.NONE:
        return (
            f"The job does not use checkpoints that began after {time_text}. "
            "An earlier checkpoint needs its own evidence that it is intact."
        )
    return f"The job does not use checkpoints that began after {time_text}."
