"""Rented nodes that join the committed nodes of a running job: which pool, how many nodes, and whether that pays.

    base      |== trains on its committed nodes ==========================================|
    mixed     |== trains on its base while the nodes launch ==| resize |== trains faster ==|
                                                                                          └ saved time

A larger size pays if the price of the delay that it saves exceeds the rent. A reclaimed node costs two resizes and a
launch, as often as the pool states.
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

from evenkeel.domain.capacity import compatibility
from evenkeel.domain.capacity.compatibility import PoolEnvironment, Storage
from evenkeel.domain.capacity.instance_types import InstanceTypes
from evenkeel.domain.capacity.pod_shares import expected_offer
from evenkeel.domain.capacity.pools import Market
from evenkeel.domain.decisions import Alternative
from evenkeel.domain.economics import money
from evenkeel.domain.elastic.throughput import Throughput
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.jobs.spec import JobSpec
from evenkeel.domain.jobs.validation import SpecError
from evenkeel.domain.plurals import count_of
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.renting.burst_policy import RentedPool
from evenkeel.domain.renting.candidates import environment_in, why_not_portable, why_not_tolerated
from evenkeel.domain.renting.cost import (
    SPOT_NOTICE_SECONDS,
    CandidatePool,
    JobDemand,
    RiskLimits,
    SpendLimits,
    cost_of_pool,
    duration_text,
)
from evenkeel.domain.resources import why_too_small
from evenkeel.domain.values import Instant, Value


class Base(Value):
    """The committed nodes of a job."""

    cluster: str
    pool: str
    instance_type: str
    nodes: int
    zones: tuple[str, ...] = ()
    """Zones of its nodes, each once; an empty text is an unknown zone."""
    ultra_servers: tuple[str, ...] = ()
    """UltraServers of its nodes; empty if they are in none."""


class MixedFacts(Value):
    """All facts of a decision about rented nodes for a running job. The recorded decision replays from them."""

    job: JobDemand
    """The job on its base. Its run time is the expected time that is left at this size."""
    base: Base
    sizes: tuple[int, ...]
    """Allowed sizes above the base."""
    throughput: Throughput | None = None
    """None if unknown. Then each node counts the same."""
    resize_seconds: float
    candidates: tuple[CandidatePool, ...]
    """The pools that the job names, as they are listed in the policy."""
    free_committed_nodes: int = 0
    """Free nodes of the base's pool that no job waits for."""
    max_rented_nodes: int | None = None
    """Most nodes by which a limit of the team lets the job grow; None without a limit."""
    limit_text: str = ""
    """That limit in words."""
    spending: SpendLimits
    risk_limits: RiskLimits = RiskLimits()
    now: Instant


class MixedAction(StrEnum):
    """Action for a job that may get a rented part."""

    RENT = "RENT"
    """Rent nodes that join its base."""
    KEEP = "KEEP"
    """Stay on the base alone."""


class MixedOption(Value):
    """A pool and a size, with the cost and the gain of renting the difference to the base."""

    pool: str
    market: Market
    nodes: int
    """Size of the whole job."""
    rented_nodes: int
    why_not: str
    """Why this option is rejected; empty if it is possible."""
    rent_parts: int
    gain_parts: int
    """Price of the delay that it saves, in parts of `economics.money`."""
    saved_seconds: float
    """How much earlier the job is expected to end. Negative if it ends later."""
    interruptions: float
    """Expected stops of the job because of its rented nodes."""

    @property
    def profit_parts(self) -> int:
        """The gain less the rent."""
        return self.gain_parts - self.rent_parts

    @property
    def label(self) -> str:
        """Name of the option: `burst-spot, 4 nodes`."""
        return f"{self.pool}, {count_of(self.nodes, 'node')}"


class MixedDecision(Value):
    """Whether nodes are rented to join the base of a job, with the reason."""

    job_id: str
    action: MixedAction
    reason: str
    chosen: MixedOption | None = None
    options: tuple[MixedOption, ...] = ()
    """Every option, best first; rejected options come last."""
    alternatives: tuple[Alternative, ...] = ()
    facts: MixedFacts

    @property
    def note_key(self) -> str:
        """Key that two decisions about a job share if they differ only in their figures."""
        chosen_text = f"{self.chosen.pool}/{self.chosen.nodes}" if self.chosen else ""
        possible = ",".join(option.label for option in self.options if not option.why_not)
        return f"{self.action}/{chosen_text}/{possible}"

    def recorded_reason(self, mode: Mode) -> str:
        """Return the reason as it is recorded. In any mode but `act` it says that nothing is rented."""
        if mode is not Mode.ACT and self.action is MixedAction.RENT:
            return f"Mode is {mode}: Evenkeel would rent nodes, but takes no action. {self.reason}"
        return self.reason


def decide_mixed(facts: MixedFacts) -> MixedDecision:
    """Choose the pool and the size with the highest gain after rent; keep the base if no option gains."""
    order = {candidate.pool.name: index for index, candidate in enumerate(facts.candidates)}
    options = sorted(
        (_option(facts, candidate, size) for candidate in facts.candidates for size in facts.sizes),
        key=lambda option: (bool(option.why_not), -option.profit_parts, option.nodes, order[option.pool]),
    )
    chosen_option = next((option for option in options if not option.why_not), None)
    alternatives = tuple(
        Alternative(
            option=option.label,
            why_not=option.why_not or f"It gains {money.format_usd(_profit_difference(chosen_option, option))} less.",
            usd=round(option.rent_parts / money.COST_PARTS_PER_USD, 2),
        )
        for option in options
        if option is not chosen_option
    )
    return MixedDecision(
        job_id=facts.job.job_id,
        action=MixedAction.RENT if chosen_option else MixedAction.KEEP,
        reason=_reason(facts, options, chosen_option),
        chosen=chosen_option,
        options=tuple(options),
        alternatives=alternatives,
        facts=facts,
    )


def _profit_difference(chosen_option: MixedOption | None, option: MixedOption) -> int:
    return chosen_option.profit_parts - option.profit_parts if chosen_option else 0


def _reason(facts: MixedFacts, options: list[MixedOption], chosen_option: MixedOption | None) -> str:
    base_text = f"{count_of(facts.base.nodes, 'committed node')} of {facts.base.pool}"
    if chosen_option is not None:
        rented_text = count_of(chosen_option.rented_nodes, f"{chosen_option.market} node")
        verb = "joins" if chosen_option.rented_nodes == 1 else "join"
        return (
            f"{rented_text} of {chosen_option.pool} {verb} the job's {base_text}. The job ends about "
            f"{duration_text(chosen_option.saved_seconds)} sooner. "
            f"That is worth {money.format_usd(chosen_option.gain_parts)}, and "
            f"the rent is {money.format_usd(chosen_option.rent_parts)}."
        )
    best_by_pool: dict[str, MixedOption] = {}
    for option in options:
        best_by_pool.setdefault(option.pool, option)
    why_nots = " ".join(f"{option.label}: {option.why_not}" for option in best_by_pool.values())
    if not facts.candidates:
        why_nots = "The policy no longer lists a pool that the job names in mixedPools."
    return f"The job stays on its {base_text}. {why_nots or 'No larger size is allowed.'}"


# ---------------------------------------------------------------- release the rented part


class RentedPartFacts(Value):
    """All facts of a decision whether a running job releases its rented part. The record replays from them."""

    job: JobDemand
    """The job on its base. Its run time is the expected time that is left at this size."""
    base_nodes: int
    rented_nodes: int
    pool: str
    rental: int
    """Number of the job's rental."""
    micros_per_node_hour: int
    """Price of its bill."""
    throughput: Throughput | None = None
    """None if unknown. Then each node counts the same."""
    resize_seconds: float
    may_stop_to_save: bool = True
    """Whether the job may stop again to save money. A cap or a budget ends the rented part in any case."""
    closed_nodes: tuple[str, ...] = ()
    """Reclaimable rented nodes that are cordoned or out of service, for example after a rebalance recommendation."""
    spending: SpendLimits
    """Caps, and the rents of the rentals that no job releases yet. This rental is one of them."""

    @property
    def large_seconds(self) -> float:
        """Expected time that is left with the rented part."""
        return self.job.run_seconds / speed_at(self.throughput, self.base_nodes, self.base_nodes + self.rented_nodes)

    @property
    def lost_gpu_seconds(self) -> float:
        """Accelerator-seconds that the resize costs."""
        return self.resize_seconds * (self.base_nodes + self.rented_nodes) * self.job.accelerators_per_node


class RentedPartDecision(Value):
    """Whether a job continues on its base alone, with the reason."""

    is_released: bool
    reason: str
    alternatives: tuple[Alternative, ...] = ()


def decide_rented_part(facts: RentedPartFacts) -> RentedPartDecision:
    """Decide whether a running job releases its rented part.

    The rented part ends if the rents exceed a cap, or the team's budget does not cover its rentals. It also ends if a
    node is out of service and the job saves for longer than a Spot notice lasts. It then saves before the notice.
    Otherwise:

        saving = rent of the time left with the rented part, less the rent while the job saves
        cost   = price of delay x (time left on the base + resize - time left with the rented part)

    It ends if the saving exceeds the cost plus the price of one more resize. So a slightly wrong estimate does not let
    a job release nodes and rent them again.
    """
    part_text = count_of(facts.rented_nodes, "rented node")
    over = next(facts.spending.exceeded_caps(facts.job.team), None)
    if over is not None:
        scope, rate, cap = over
        rents, limit = _dollars_per_hour(rate), _dollars_per_hour(cap)
        return _released(facts, f"The rents of {scope} are {rents}, and its cap is {limit}. The {part_text} go first.")
    budget_left_parts = facts.spending.team_budget_left_parts
    if budget_left_parts is not None and budget_left_parts < 0:
        return _released(
            facts, f"The budget of team {facts.job.team} does not cover its rentals. The {part_text} go first."
        )
    if facts.closed_nodes and facts.job.save_seconds > SPOT_NOTICE_SECONDS:
        saves = f"the job needs {facts.job.save_seconds:g} s to save, and a Spot notice gives {SPOT_NOTICE_SECONDS} s"
        return _released(facts, f"{facts.closed_nodes[0]} is out of service and may be reclaimed: {saves}.")
    large, rate = facts.large_seconds, facts.micros_per_node_hour * facts.rented_nodes
    saving = round(rate * max(0.0, large - facts.job.save_seconds))
    delay = facts.job.micros_per_hour_of_delay
    cost = round(delay * (facts.job.run_seconds + facts.resize_seconds - large))
    rent_text, cost_text = money.format_usd(saving), money.format_usd(cost)
    why_not = ""
    if not facts.may_stop_to_save:
        why_not = "The job changed its size a short time ago."
    elif large <= facts.job.save_seconds + facts.resize_seconds:
        why_not = "The job is expected to end before the resize."
    elif saving <= cost + round(delay * facts.resize_seconds):
        why_not = f"It would save {rent_text} of rent and cost {cost_text} of delay."
    if why_not:
        kept_text = f"The job keeps its {part_text} of {facts.pool}."
        return RentedPartDecision(
            is_released=False, reason=kept_text, alternatives=(Alternative(option=_BASE_ALONE, why_not=why_not),)
        )
    return _released(
        facts,
        f"The {part_text} no longer pay: the rent for the rest is {rent_text}, and they save {cost_text} of delay.",
    )


_BASE_ALONE, _BOTH_PARTS = "base alone", "both parts"


def _released(facts: RentedPartFacts, reason: str) -> RentedPartDecision:
    if facts.rented_nodes == 1:
        reason = reason.replace("node go first", "node goes first").replace("no longer pay:", "no longer pays:")
        reason = reason.replace("and they save", "and it saves")
    rent = round(facts.micros_per_node_hour * facts.rented_nodes * facts.large_seconds)
    keep_alternative = Alternative(option=_BOTH_PARTS, why_not=reason, usd=round(rent / money.COST_PARTS_PER_USD, 2))
    return RentedPartDecision(is_released=True, reason=reason, alternatives=(keep_alternative,))


def _dollars_per_hour(micros: int) -> str:
    return f"${micros / money.MICROS_PER_USD:,.2f} per hour"


# ---------------------------------------------------------------- one option


class _Forecast(NamedTuple):
    """The expected rest of a job that grows by rented nodes."""

    large_seconds: float
    """Time at the larger size."""
    saved_seconds: float
    interruptions: float


def _option(facts: MixedFacts, candidate: CandidatePool, size: int) -> MixedOption:
    pool, rented_nodes = candidate.pool, size - facts.base.nodes
    forecast = _forecast(facts, candidate, size)
    demand = facts.job.replace(nodes=rented_nodes, run_seconds=forecast.large_seconds, left_seconds=())
    row = cost_of_pool(demand, candidate, facts.spending, facts.risk_limits, facts.now)
    gain = round(facts.job.micros_per_hour_of_delay * forecast.saved_seconds)
    option = MixedOption(
        pool=pool.name,
        market=pool.market,
        nodes=size,
        rented_nodes=rented_nodes,
        why_not="",
        rent_parts=row.rent_parts,
        gain_parts=gain,
        saved_seconds=round(forecast.saved_seconds, 1),
        interruptions=round(forecast.interruptions, 4),
    )
    return option.replace(why_not=next(_rejections(facts, option, row.why_not, forecast), ""))


def _rejections(facts: MixedFacts, option: MixedOption, why_not_pool: str, forecast: _Forecast) -> Iterator[str]:
    if why_not_pool:
        yield why_not_pool
    if facts.max_rented_nodes is not None and option.rented_nodes > facts.max_rented_nodes:
        yield f"A limit is reached: {facts.limit_text}."
    if facts.free_committed_nodes >= facts.sizes[0] - facts.base.nodes:
        free_nodes = count_of(facts.free_committed_nodes, "committed node is", "committed nodes are")
        yield f"{free_nodes} free, and the job grows onto committed nodes first."
    if not forecast.large_seconds:
        yield "The job is expected to end before the nodes are ready."
    if forecast.saved_seconds <= 0:
        yield "The job would not end sooner."
    if option.profit_parts <= 0:
        gain, rent = money.format_usd(option.gain_parts), money.format_usd(option.rent_parts)
        yield f"The larger size would save {gain} of delay, but the rent is {rent}."


def _forecast(facts: MixedFacts, candidate: CandidatePool, size: int) -> _Forecast:
    """Return the expected time at a larger size. Times are seconds, and work is seconds of the base.

        large = (left - launch) / (speed + stops per second x launch)
        end   = launch + resize + large x (1 + stops per second x (2 resizes + launch + lost work))

    Between a stop and the next growth, the base trains alone while nodes launch again.
    """
    job, pool, rented_nodes = facts.job, candidate.pool, size - facts.base.nodes
    launch = pool.launch.gang_seconds(rented_nodes)
    work_seconds = job.run_seconds - launch
    if work_seconds <= 0:
        return _Forecast(0.0, 0.0, 0.0)
    reclaims = pool.interruptions_per_node_hour * rented_nodes / 3600
    faults = job.failures_per_node_hour * rented_nodes / 3600
    stops = reclaims + faults
    risk = (job.checkpoint_seconds or 0.0) / 2
    lost_share = faults * risk + (reclaims * risk if job.save_seconds > SPOT_NOTICE_SECONDS else 0.0)
    large = work_seconds / (speed_at(facts.throughput, facts.base.nodes, size) + stops * launch)
    end = launch + facts.resize_seconds + large * (1 + stops * (2 * facts.resize_seconds + launch) + lost_share)
    return _Forecast(large, job.run_seconds - end, stops * large)


def speed_at(throughput: Throughput | None, base_nodes: int, size: int) -> float:
    """Return the work of a job at a size, as a multiple of the work of its base.

    Without a known throughput, each node counts the same.
    """
    if throughput is None:
        return size / base_nodes
    base_rate = throughput.per_second(base_nodes)
    return max(1e-9, throughput.per_second(size) / base_rate) if base_rate else 1e-9


# ---------------------------------------------------------------- compatibility


def mixed_pool_errors(
    spec: JobSpec, cluster: str, pools: Iterable[RentedPool], *, is_kueue: bool
) -> tuple[SpecError, ...]:
    """Return why a submission could never get a rented part; empty if it could, or if it names no pools.

    Args:
        spec: The job.
        cluster: Its cluster.
        pools: Pools that the policy rents from for jobs.
        is_kueue: Whether Kueue admits the jobs.
    """
    mixed_pools = spec.elastic.mixed_pools if spec.elastic else ()
    field = "elastic.mixedPools"
    if mixed_pools and is_kueue:
        return (SpecError(field, "Kueue admits the jobs of this stack, so no rented nodes can join them."),)
    by_name = {pool.name: pool for pool in pools}
    return tuple(
        SpecError(f"{field}.{index}", why_not)
        for index, name in enumerate(mixed_pools)
        if (why_not := _why_never_mixed(name, by_name.get(name), spec, cluster))
    )


def _why_never_mixed(name: str, pool: RentedPool | None, spec: JobSpec, cluster: str) -> str:
    if pool is None:
        return f"The policy rents from no pool {name} for jobs."
    if pool.cluster != cluster:
        return f"{name} is in cluster {pool.cluster}, and the job runs in {cluster}."
    if pool.accelerators_per_node < spec.accelerators_per_node:
        return _too_few_accelerators(pool, spec)
    return next(iter(why_not_tolerated(pool, spec.tolerations)), "")


def why_not_joinable(
    job: Job, base: Base, pool: RentedPool, storage: Storage, hardware: InstanceTypes
) -> tuple[str, ...]:
    """Return why nodes of a pool cannot train together with a base, one sentence each; empty if they can.

    An unknown property counts as a difference: the job would train slowly or not at all.

    Args:
        job: The job. It names the pool.
        base: Its committed nodes.
        pool: A pool to rent from.
        storage: The volume behind each claim, by cluster.
        hardware: The catalogue of instance types.
    """
    if pool.cluster != base.cluster:
        return (f"The pool is in cluster {pool.cluster}, and the job runs in {base.cluster}.",)
    return (
        *why_not_tolerated(pool, job.spec.tolerations),
        *_too_small(job.spec, pool),
        *_differences_from_base(base, pool, environment_in(pool, storage, hardware), hardware),
        *why_not_portable(job, pool, storage, hardware),
    )


def _too_small(spec: JobSpec, pool: RentedPool) -> Iterator[str]:
    node_resources = expected_offer(pool.instance_type, pool.accelerators_per_node)
    if node_resources.accelerators < spec.accelerators_per_node:
        yield _too_few_accelerators(pool, spec)
    elif shortage := why_too_small(spec.per_node, node_resources, node_resources):
        yield f"Each node of the pool is {shortage} for the job."


def _too_few_accelerators(pool: RentedPool, spec: JobSpec) -> str:
    accelerators = count_of(pool.accelerators_per_node, "accelerator")
    return f"Each node of {pool.name} has {accelerators}, and the job asks for {spec.accelerators_per_node}."


def _differences_from_base(
    base: Base, pool: RentedPool, rented_environment: PoolEnvironment, hardware: InstanceTypes
) -> Iterator[str]:
    base_environment = compatibility.environment_on(base.instance_type, hardware)
    for noun, own_value, other_value in (
        ("architecture", base_environment.architecture, rented_environment.architecture),
        ("accelerator", base_environment.accelerator, rented_environment.accelerator),
    ):
        if not own_value or not other_value or own_value != other_value:
            yield _difference(noun, base, own_value, other_value)
    if base_environment.fabric != rented_environment.fabric:
        yield _difference(
            "network",
            base,
            base_environment.fabric or "an ordinary one",
            rented_environment.fabric or "an ordinary one",
        )
    if base.ultra_servers:
        yield f"The base is in UltraServer {base.ultra_servers[0]}, which rented nodes cannot join."
    if base.zones != (pool.zone,) or not pool.zone:
        own_zones = " and ".join(zone or "an unknown zone" for zone in base.zones) or "an unknown zone"
        pool_zone = pool.zone or "an unknown zone"
        yield f"The nodes of the job must be in one zone: the base is in {own_zones}, the pool in {pool_zone}."


def _difference(noun: str, base: Base, own_value: str, other_value: str) -> str:
    unknown = "unknown"
    return f"The {noun} differs: {base.pool} has {own_value or unknown}, and the pool has {other_value or unknown}."
