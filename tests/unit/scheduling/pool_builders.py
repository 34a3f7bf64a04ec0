"""Builders of pools and pending jobs. A test states only the fields that matter."""

from datetime import UTC, datetime, timedelta
from typing import Any

from evenkeel.domain.capacity.pools import LaunchDelay, Market, Pool, Reservation
from evenkeel.domain.economics.money import MICROS_PER_USD
from evenkeel.domain.renting.cost import CandidatePool, JobDemand, SpendLimits
from evenkeel.domain.renting.placement import PlacementFacts

NOW = datetime(2026, 11, 3, 10, 15, tzinfo=UTC)
HOUR = 3600


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def a_pool(market: Market = Market.COMMITTED, **changes: Any) -> Pool:
    rent = {Market.SPOT: 16 * MICROS_PER_USD, Market.ON_DEMAND: 32 * MICROS_PER_USD}.get(market, 0)
    facts: dict[str, Any] = {
        "name": market.value,
        "cluster": "research-eks",
        "market": market,
        "instance_type": "p5.48xlarge",
        "accelerators_per_node": 8,
        "max_nodes": 16,
        "micros_per_node_hour": rent,
        "launch": {"p50Seconds": 0, "p90Seconds": 0},
        "interruptions_per_node_hour": 0.04 if market is Market.SPOT else 0,
        "place": {},
    }
    if market is Market.RESERVED:
        facts["reservation"] = {"starts_at": at(-HOUR), "ends_at": at(24 * HOUR)}
    return Pool.model_validate({**facts, **changes})


def a_candidate_pool(
    market: Market = Market.COMMITTED, *, pool: dict[str, Any] | None = None, **changes: Any
) -> CandidatePool:
    candidate = a_pool(market, **(pool or {}))
    facts: dict[str, Any] = {"pool": candidate, "accelerators_left": 8 * candidate.max_nodes if market.is_rented else 0}
    return CandidatePool.model_validate({**facts, **changes})


def a_waiting(**changes: Any) -> JobDemand:
    facts: dict[str, Any] = {
        "job_id": "job-1",
        "team": "vision",
        "nodes": 1,
        "accelerators_per_node": 8,
        "micros_per_hour_of_delay": 40 * MICROS_PER_USD,
        "run_seconds": 3 * HOUR,
        "p90_run_seconds": 6 * HOUR,
        "checkpoint_seconds": 900,
        "submitted_at": NOW,
    }
    return JobDemand.model_validate({**facts, **changes})


RICH = SpendLimits(team_cap_micros_per_hour=10**12, fleet_cap_micros_per_hour=10**12)


def facts_of(*candidates: CandidatePool, job: JobDemand | None = None, **changes: Any) -> PlacementFacts:
    return PlacementFacts.model_validate(
        {"job": job or a_waiting(), "candidates": candidates, "spending": RICH, "now": NOW, **changes}
    )


def a_reservation(ends_in_seconds: float) -> Reservation:
    return Reservation(starts_at=at(-HOUR), ends_at=at(ends_in_seconds))


def a_delay(seconds: float) -> LaunchDelay:
    return LaunchDelay(p50_seconds=seconds, p90_seconds=seconds)
