"""Displacement: move jobs that keep checkpoints from committed to rented nodes, so that another job can start there.

A job without checkpoints can neither use spot nodes nor leave rented nodes before its end. A gang needs whole nodes,
and small jobs spread over many. In both cases it is often cheaper to move other jobs. They save, stop and continue
on rented nodes. They move back as soon as committed nodes are free.

    cost = sum over the moved jobs (price of delay x standstill + rent until committed nodes are free again)
           + price of delay of the job x (save + launch)

Jobs are displaced if this costs less than renting for the job itself, and less than its wait.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from evenkeel.domain.capacity.run_times import seconds_within
from evenkeel.domain.decisions import Alternative
from evenkeel.domain.economics import money
from evenkeel.domain.renting.cost import duration_text
from evenkeel.domain.values import Instant, Value

MAX_RECORDED_JOBS = 100
"""Movable jobs up to which a record keeps all of them. Each has up to 200 run times, and a row has a limit."""
_DISPLACER = "schedule_jobs/displace"
"""Prefix of the requester of a stop that displaces a job."""


def displacement_requester(job_id: str) -> str:
    """Return the requester of a stop that frees nodes for a job."""
    return f"{_DISPLACER}/{job_id}"


class CommittedNode(Value):
    """A committed node."""

    name: str
    free: int
    """Accelerators that no job uses."""


class MovableJob(Value):
    """A job on committed nodes that may continue on rented nodes."""

    job_id: str
    team: str
    nodes: dict[str, int]
    """Its nodes, with the accelerators that it uses there."""
    micros_per_hour_of_delay: int
    left_seconds: tuple[float, ...]
    """Equally likely values of the run time that is left."""
    save_seconds: float
    standstill_seconds: float
    """Time from its last checkpoint until it trains on rented nodes."""
    pool: str
    """Cheapest pool that can be rented for it now."""
    rent_micros_per_hour: int
    rented_nodes: int = 0
    """Nodes that it would rent; 0 in older records."""
    rent_parts: int = 0
    """Expected cost of its rental; 0 in older records."""


class DisplacementFacts(Value):
    """All facts of a displacement decision. The recorded decision replays from these facts alone."""

    job_id: str
    nodes: int
    """Nodes that the job needs."""
    accelerators_per_node: int
    micros_per_hour_of_delay: int
    start_seconds: float
    """Time until the job trains on the nodes: the other jobs save, then it launches."""
    wait_seconds: float
    """Expected wait for committed nodes if no job is displaced."""
    other_option: str
    """The cheapest other option: a rented pool, or the committed pool that the job waits for."""
    other_parts: int
    """Cost of the other option, without the opportunity cost of committed hours."""
    committed: tuple[CommittedNode, ...]
    movable: tuple[MovableJob, ...]
    team_left_micros: dict[str, int]
    """Team of a movable job → the rest of its cap, in micro-dollars an hour."""
    fleet_left_micros: int
    pool_nodes_left: dict[str, int] = {}
    """Pool of a movable job → the nodes that its limit leaves; empty in older records."""
    team_budget_left_parts: dict[str, int] = {}
    """Team of a movable job → the rest of its budget. A team without a budget in dollars is left out."""
    now: Instant


class DisplacementAction(StrEnum):
    """Action for a job that waits for committed nodes."""

    DISPLACE = "DISPLACE"
    KEEP = "KEEP"


class DisplacementDecision(Value):
    """The jobs that move for another job, and why."""

    job_id: str
    action: DisplacementAction
    reason: str
    victims: tuple[str, ...] = ()
    parts: int = 0
    alternatives: tuple[Alternative, ...] = ()
    facts: DisplacementFacts


def decide_displacement(facts: DisplacementFacts) -> DisplacementDecision:
    """Choose the jobs that move to free nodes for a job; none if another option costs less, or if too few can move."""
    options = _cheapest_nodes(facts)
    if options is None:
        return _build_decision(
            facts, DisplacementAction.KEEP, "Too few nodes would become free if all movable jobs moved."
        )
    victim_ids = {job_id for option in options for job_id in option.job_ids}
    victims = [job for job in facts.movable if job.job_id in victim_ids]
    if not victims:
        return _build_decision(facts, DisplacementAction.KEEP, "Enough nodes are free without moving a job.")
    if why_not := _why_above_caps(facts, victims):
        return _build_decision(facts, DisplacementAction.KEEP, why_not)
    cost_parts = round(facts.micros_per_hour_of_delay * facts.start_seconds) + sum(
        _cost_of_move(job, facts) for job in victims
    )
    price, other_price = money.format_usd(cost_parts), money.format_usd(facts.other_parts)
    job_count = f"{len(victims)} job{'' if len(victims) == 1 else 's'}"
    if cost_parts >= facts.other_parts:
        reason = f"Moving {job_count} to rented nodes would cost {price}, and {facts.other_option} costs {other_price}."
        return _build_decision(facts, DisplacementAction.KEEP, reason, cost_parts=cost_parts)
    return _build_decision(
        _with_nodes(facts, {option.node_name for option in options}),
        DisplacementAction.DISPLACE,
        f"{job_count} {'moves' if len(victims) == 1 else 'move'} to rented nodes, so that the job starts in "
        f"{duration_text(facts.start_seconds)}. That costs {price}, and {facts.other_option} costs {other_price}.",
        tuple(sorted(job.job_id for job in victims)),
        cost_parts,
    )


def _build_decision(
    facts: DisplacementFacts,
    action: DisplacementAction,
    reason: str,
    victims: tuple[str, ...] = (),
    cost_parts: int = 0,
) -> DisplacementDecision:
    usd = round(facts.other_parts / money.COST_PARTS_PER_USD, 2)
    extra_cost = money.format_usd(facts.other_parts - cost_parts)
    alternatives = (
        (Alternative(option=facts.other_option, why_not=f"It costs {extra_cost} more.", usd=usd),) if victims else ()
    )
    return DisplacementDecision(
        job_id=facts.job_id,
        action=action,
        reason=reason,
        victims=victims,
        parts=cost_parts,
        alternatives=alternatives,
        facts=facts,
    )


def _cost_of_move(job: MovableJob, facts: DisplacementFacts) -> int:
    """Return the cost of moving one job: its standstill, and its rent or its wait, whichever is cheaper."""
    launch_seconds = job.standstill_seconds - job.save_seconds
    trains = seconds_within(job.left_seconds, max(0.0, facts.wait_seconds - job.standstill_seconds))
    rent = job.rent_micros_per_hour * (launch_seconds + trains)
    wait = job.micros_per_hour_of_delay * facts.wait_seconds
    return round(job.micros_per_hour_of_delay * job.standstill_seconds + min(rent, wait))


def _why_above_caps(facts: DisplacementFacts, victims: Sequence[MovableJob]) -> str:
    """Return which limit the rentals of all moved jobs together would exceed; empty if none."""
    rates, rent_parts, rented_nodes = Counter[str](), Counter[str](), Counter[str]()
    for job in victims:
        rates[job.team] += job.rent_micros_per_hour
        rent_parts[job.team] += job.rent_parts
        rented_nodes[job.pool] += job.rented_nodes
    for team, rate in rates.items():
        if rate > facts.team_left_micros.get(team, 0):
            return f"The rents of the moved jobs would exceed the cap of team {team}."
        if rent_parts[team] > facts.team_budget_left_parts.get(team, rent_parts[team]):
            return f"The rents of the moved jobs would exceed the budget of team {team}."
    if rates.total() > facts.fleet_left_micros:
        return "The rents of the moved jobs would exceed the cap of the fleet."
    for pool, nodes in rented_nodes.items():
        if nodes > facts.pool_nodes_left.get(pool, nodes):
            return f"The moved jobs would need more nodes than the limit of {pool} leaves."
    return ""


class _NodeOption(NamedTuple):
    """A node that can become free."""

    cost_parts: int
    node_name: str
    job_ids: tuple[str, ...]
    """The jobs to move."""


def _with_nodes(facts: DisplacementFacts, names: Collection[str]) -> DisplacementFacts:
    """Return the facts with these nodes and the movable jobs on them alone, if the record could be too large.

    If they are the cheapest nodes, the decision from them is the same.
    """
    if len(facts.movable) <= MAX_RECORDED_JOBS:
        return facts
    return facts.replace_unchecked(
        committed=tuple(node for node in facts.committed if node.name in names),
        movable=tuple(job for job in facts.movable if not job.nodes.keys().isdisjoint(names)),
    )


def _cheapest_nodes(facts: DisplacementFacts) -> Sequence[_NodeOption] | None:
    """Return the nodes that become free at the lowest cost; None if too few can become free.

    A job on several nodes is counted once, with all its nodes.
    """
    costs = {job.job_id: _cost_of_move(job, facts) for job in facts.movable}
    options = sorted(_node_options(facts, costs))
    return options[: facts.nodes] if len(options) >= facts.nodes else None


def _node_options(facts: DisplacementFacts, costs: dict[str, int]) -> Iterator[_NodeOption]:
    """Yield each node that can become free."""
    jobs_by_node: dict[str, list[MovableJob]] = {}
    for job in facts.movable:
        for name in job.nodes:
            jobs_by_node.setdefault(name, []).append(job)
    for node in facts.committed:
        free_accelerators, victims = node.free, list[str]()
        on_node = jobs_by_node.get(node.name, [])
        # The cheapest accelerators come first. A job stays if the remaining moves make its move unnecessary.
        for job in sorted(on_node, key=lambda job: (costs[job.job_id] / job.nodes[node.name], job.job_id)):
            if free_accelerators >= facts.accelerators_per_node:
                break
            free_accelerators += job.nodes[node.name]
            victims.append(job.job_id)
        jobs_by_id = {job.job_id: job for job in on_node}
        for job_id in sorted(victims, key=lambda job_id: -costs[job_id]):
            if free_accelerators - jobs_by_id[job_id].nodes[node.name] >= facts.accelerators_per_node:
                free_accelerators -= jobs_by_id[job_id].nodes[node.name]
                victims.remove(job_id)
        if free_accelerators >= facts.accelerators_per_node:
            yield _NodeOption(sum(costs[job_id] for job_id in victims), node.name, tuple(victims))
