"""The table of places for a job that is not submitted: every pool in dollars, with the one that would be chosen."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from evenkeel.domain.admission.decide import Action, AdmissionDecision
from evenkeel.domain.capacity.node_capacity import NodeCapacity
from evenkeel.domain.capacity.shortages import Shortages
from evenkeel.domain.economics import money
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.renting.candidates import PlacementContext, placement_facts
from evenkeel.domain.renting.demand import PlacementDecision, PlacementFacts, PoolCost
from evenkeel.domain.renting.placement import choose_pool
from evenkeel.domain.renting.rental import RentalAllocation
from evenkeel.domain.values import rfc3339
from evenkeel.ports import Ledger, Table
from evenkeel.services.context import Context
from evenkeel.services.storage import rows

Json = dict[str, Any]

_MOST_RUNNING = 1000
_NODES_WOULD_HELP = (Action.ADMIT, Action.WAIT, Action.BLOCKED, Action.NEVER_FITS)


def run(
    job: Job,
    decided: AdmissionDecision,
    capacities: tuple[NodeCapacity, ...],
    charges: Sequence[Charge],
    ahead: Sequence[Job],
    budgets_left: Mapping[str, int],
    context: Context,
) -> Json:
    """Weigh every pool for a job, as a pass does before it rents anything.

    Args:
        job: As it would be queued.
        decided: What the next pass would decide about it.
        capacities: The machines, with what runs on them; rented ones are kept for whom they were rented for.
        charges: What unsettled attempts hold.
        ahead: Jobs that wait before it.
        budgets_left: By team that has a budget in dollars, what is left of it.
    """
    tree = rows.tree_key()
    holds = context.ledger.partition(tree.table, rows.rental_allocation_key("", 0).pk, "RENTAL#")
    short = context.ledger.get(rows.shortages_key())
    seen = PlacementContext(
        capacities=capacities,
        charges=tuple(charges),
        classes=_classes(context.ledger),
        queue=(*ahead, job),
        holds=tuple(rows.read(row, RentalAllocation) for row in holds),
        shortages=rows.read(short, Shortages) if short else Shortages(),
        budgets_left=dict(budgets_left),
        now=context.now,
    )
    return shown(choose_pool(with_decision(placement_facts(job, seen, context.policy), decided)), context.now)


def with_decision(facts: PlacementFacts, decided: AdmissionDecision) -> PlacementFacts:
    """Return the facts with what the pass would decide: room where it starts; where quota lacks, none helps."""
    held = facts.job.accelerators
    aside = ""
    if decided.action not in _NODES_WOULD_HELP:
        aside = f"Rented nodes would not help the job: {decided.reason}"
    candidates = []
    for candidate in facts.candidates:
        starts_here = decided.action is Action.ADMIT and (candidate.pool.name, candidate.pool.instance_type) == (
            decided.pool,
            decided.instance_type,
        )
        if starts_here and not candidate.pool.market.is_rented:
            candidates.append(candidate.but(accelerators_left=held, wait_seconds=0))
        elif aside and candidate.pool.market.is_rented:
            candidates.append(candidate.but(differences=(*candidate.differences, aside)))
        else:
            candidates.append(candidate)
    return facts.but(candidates=tuple(candidates))


def shown(placed: PlacementDecision, now: datetime) -> Json:
    """Return a placement as the API shows it: dollars to the cent, instants, the chosen row first."""
    return {
        "action": placed.action,
        "pool": placed.pool or None,
        "reason": placed.reason,
        "rentThresholdSeconds": placed.rent_threshold_seconds,
        "pools": [_row(row, placed, now) for row in placed.table],
    }


def _row(row: PoolCost, placed: PlacementDecision, now: datetime) -> Json:
    candidate = next(each for each in placed.facts.candidates if each.pool.name == row.pool)
    return {
        "pool": row.pool,
        "cluster": candidate.pool.cluster,
        "market": row.market,
        "instanceType": candidate.pool.instance_type,
        "isChosen": row is placed.row,
        "whyNot": row.why_not or None,
        "differences": list(candidate.differences),
        "startsAt": rfc3339(now + timedelta(seconds=row.starts_after_seconds)),
        "endsAt": rfc3339(now + timedelta(seconds=row.ends_after_seconds)),
        "startsAfterSeconds": round(row.starts_after_seconds),
        "endsAfterSeconds": round(row.ends_after_seconds),
        "interruptions": round(row.interruptions, 3),
        "usd": {
            "rent": _usd(row.rent_parts),
            "delay": _usd(row.delay_parts),
            "shadow": _usd(row.shadow_parts),
            "total": _usd(row.parts),
        },
    }


def _usd(parts: int) -> float:
    return round(parts / money.PARTS, 2)


def _classes(ledger: Ledger) -> dict[str, str]:
    """Return the priority class of each job that runs or is about to."""
    states = (JobState.RUNNING, JobState.STARTING)
    pages = (ledger.by_state(Table.JOBS, f"JOB#{state}", limit=_MOST_RUNNING) for state in states)
    return {
        str(row.doc["jobId"]): str(row.doc["spec"].get("priorityClass") or "") for page in pages for row in page.rows
    }
