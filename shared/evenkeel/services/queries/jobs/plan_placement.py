"""Pools for a job that is not submitted yet, each with its cost in dollars, and the pool that would be chosen."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from evenkeel.domain.admission.decide_job import AdmissionAction, AdmissionDecision
from evenkeel.domain.capacity.node_capacity import NodeCapacity
from evenkeel.domain.capacity.run_times import run_times_of
from evenkeel.domain.economics import money
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.policy import Policy
from evenkeel.domain.renting.candidates import (
    PlacementContext,
    committed_pools,
    placement_facts,
    runs_so_far,
    why_not_portable,
)
from evenkeel.domain.renting.cost import PoolCost
from evenkeel.domain.renting.mixed_capacity import Base, MixedDecision, MixedOption, decide_mixed
from evenkeel.domain.renting.placement import PlacementDecision, PlacementFacts, choose_pool
from evenkeel.domain.renting.rental_book import RentalBook
from evenkeel.domain.scheduling.mixed_plan import base_on, mixed_facts
from evenkeel.domain.values import rfc3339
from evenkeel.ports import Ledger, Table
from evenkeel.services.context import Context
from evenkeel.services.rentals import rental_store
from evenkeel.services.storage import past_jobs
from evenkeel.services.tables import rows

Json = dict[str, Any]

_MAX_RUNNING = 1000
_ACTIONS_THAT_NODES_MAY_CHANGE = (
    AdmissionAction.ADMIT,
    AdmissionAction.WAIT,
    AdmissionAction.BLOCKED,
    AdmissionAction.NEVER_FITS,
)


def compare_pools(
    job: Job,
    decision: AdmissionDecision,
    capacities: tuple[NodeCapacity, ...],
    charges: Sequence[Charge],
    ahead: Sequence[Job],
    budgets_left: Mapping[str, int],
    context: Context,
) -> Json:
    """Compare all pools for a job, as a scheduling cycle does before it rents nodes.

    Args:
        job: The job as it would be queued.
        decision: Decision of the next cycle about it.
        capacities: Nodes of the fleet. Rented nodes are reserved for their jobs.
        charges: Charges of all attempts that are not settled.
        ahead: Pending jobs before it.
        budgets_left: Team with a budget in dollars → its remaining amount.
    """
    holders = _holders(context.ledger)
    past = (*past_jobs.load_past_jobs(context.ledger), *runs_so_far(charges, holders, context.now))
    placement = PlacementContext(
        now=context.now,
        capacities=capacities,
        charges=tuple(charges),
        classes={name: holder.spec.priority_class for name, holder in holders.items()},
        queue=(*ahead, job),
        rented=RentalBook(allocations=rental_store.load_allocations(context.ledger), budgets_left=budgets_left),
        shortages=rental_store.read_shortages(context.ledger)[0],
        run_times=run_times_of(past, context.policy.economy.min_samples),
        jobs_with_charge=holders,
        done_seconds=rental_store.read_done_seconds(context.ledger, holders.values()),
    )
    document = placement_document(
        choose_pool(with_decision(placement_facts(job, placement, context.policy), decision)), context.now
    )
    return document | {"mixed": _compare_mixed_options(job, decision, placement, context.policy)}


def _compare_mixed_options(
    job: Job, decision: AdmissionDecision, placement: PlacementContext, policy: Policy
) -> Json | None:
    """Compare the rented nodes that could join a job once it runs on its base; None if it names no pools for them.

    The base is the nodes that the job would start on now, or its smallest size in the first committed pool that can run
    it.
    """
    base = _expected_base(job, decision, placement, policy)
    if base is None or job.spec.elastic is None or not job.spec.elastic.mixed_pools:
        return None
    mixed_decision = decide_mixed(mixed_facts(job, base, placement, policy, 0.0))
    return {
        "action": mixed_decision.action,
        "reason": mixed_decision.reason,
        "basePool": base.pool,
        "baseNodes": base.nodes,
        "options": [_option_document(option, mixed_decision) for option in mixed_decision.options],
    }


def _expected_base(job: Job, decision: AdmissionDecision, placement: PlacementContext, policy: Policy) -> Base | None:
    if job.spec.sizes is None:
        return None
    pools = [pool for pool in committed_pools(placement.capacities, policy) if pool.cluster == job.cluster]
    names, nodes = set(decision.node_names), len(decision.node_names)
    if decision.action is AdmissionAction.ADMIT and nodes:
        pools = [pool for pool in pools if pool.name == decision.pool]
    else:
        nodes = job.spec.sizes.legal[0]
        pools = [
            pool
            for pool in pools
            if pool.max_nodes >= nodes and not why_not_portable(job, pool, policy.storage, policy.hardware)
        ]
    if not pools:
        return None
    pool = pools[0]
    own_capacities = [
        capacity
        for capacity in placement.capacities
        if (capacity.cluster, capacity.pool, capacity.instance_type) == (pool.cluster, pool.name, pool.instance_type)
        and (not names or capacity.node_name in names)
    ]
    return base_on(pool.cluster, pool.name, pool.instance_type, nodes, own_capacities)


def _option_document(option: MixedOption, decision: MixedDecision) -> Json:
    return {
        "pool": option.pool,
        "market": option.market,
        "nodes": option.nodes,
        "rentedNodes": option.rented_nodes,
        "isChosen": option is decision.chosen,
        "whyNot": option.why_not or None,
        "savedSeconds": round(option.saved_seconds),
        "interruptions": round(option.interruptions, 3),
        "usd": {
            "rent": _usd_of_parts(option.rent_parts),
            "gain": _usd_of_parts(option.gain_parts),
            "profit": _usd_of_parts(option.profit_parts),
        },
    }


def with_decision(facts: PlacementFacts, decision: AdmissionDecision) -> PlacementFacts:
    """Return the facts with the decision of the next cycle: the free nodes, or why renting would not help."""
    accelerators = facts.job.accelerators
    aside = ""
    if decision.action not in _ACTIONS_THAT_NODES_MAY_CHANGE:
        aside = f"Rented nodes would not help the job: {decision.reason}"
    candidates = []
    for candidate in facts.candidates:
        starts_here = decision.action is AdmissionAction.ADMIT and (
            candidate.pool.name,
            candidate.pool.instance_type,
        ) == (
            decision.pool,
            decision.instance_type,
        )
        if starts_here and not candidate.pool.market.is_rented:
            candidates.append(candidate.replace(accelerators_left=accelerators, wait_seconds=0))
        elif aside and candidate.pool.market.is_rented:
            candidates.append(candidate.replace(differences=(*candidate.differences, aside)))
        else:
            candidates.append(candidate)
    return facts.replace(candidates=tuple(candidates))


def placement_document(placement: PlacementDecision, now: datetime) -> Json:
    """Return a placement as the API shows it: dollars to the cent, times, the chosen row first."""
    return {
        "action": placement.action,
        "pool": placement.pool or None,
        "reason": placement.reason,
        "rentThresholdSeconds": placement.rent_threshold_seconds,
        "pools": [_row_document(row, placement, now) for row in placement.table],
    }


def _row_document(row: PoolCost, placement: PlacementDecision, now: datetime) -> Json:
    candidate = next(pool for pool in placement.facts.candidates if pool.pool.name == row.pool)
    return {
        "pool": row.pool,
        "cluster": candidate.pool.cluster,
        "market": row.market,
        "instanceType": candidate.pool.instance_type,
        "isChosen": row is placement.row,
        "whyNot": row.why_not or None,
        "differences": list(candidate.differences),
        "startsAt": rfc3339(now + timedelta(seconds=row.starts_after_seconds)),
        "endsAt": rfc3339(now + timedelta(seconds=row.ends_after_seconds)),
        "startsAfterSeconds": round(row.starts_after_seconds),
        "endsAfterSeconds": round(row.ends_after_seconds),
        "interruptions": round(row.interruptions, 3),
        "usd": {
            "rent": _usd_of_parts(row.rent_parts),
            "delay": _usd_of_parts(row.delay_parts),
            "opportunityCost": _usd_of_parts(row.opportunity_parts),
            "total": _usd_of_parts(row.cost_parts),
        },
    }


def _usd_of_parts(cost_parts: int) -> float:
    return round(cost_parts / money.COST_PARTS_PER_USD, 2)


def _holders(ledger: Ledger) -> dict[str, Job]:
    """Return the jobs that run or are about to, by id."""
    states = (JobState.RUNNING, JobState.STARTING)
    pages = (ledger.by_state(Table.JOBS, f"JOB#{state}", limit=_MAX_RUNNING) for state in states)
    jobs = (job for page in pages for _, job in rows.readable_rows(page.rows, Job))
    return {job.job_id: job for job in jobs}
