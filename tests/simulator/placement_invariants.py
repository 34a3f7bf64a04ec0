"""Invariants of network levels and of capacity that ends: more rows of the same table.

Positions and ends come from the scenario's own record of labels and commits, not from the code under test.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from evenkeel.domain.capacity.network_topology import LEVELS
from evenkeel.domain.capacity.training_plans import PlanEnds
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.policy_section import Mode
from evenkeel.ports import Row
from evenkeel.services.tables import fleet_rows, job_rows, rows
from tests.simulator.invariants import Changes, CheckTrigger, invariant_check
from tests.simulator.placement_scenario import POOL, PlacementScenario

if TYPE_CHECKING:
    from tests.simulator.simulation import Simulation

_MARGIN_SECONDS = 60.0
_STOP_SECONDS = 150.0
"""Time in which the next cycle sees an end, and the attempt stops."""


def _began(world: "Simulation") -> float:
    return world.calls[-1].began if world.calls else world.loop.seconds


def _admissions(world: "Simulation", changes: Changes) -> Iterator[tuple[Job, Attempt]]:
    """Yield each job that a commit admits, with its new attempt."""
    for key, before, after in changes:
        if after and before is None and key.sk.startswith("ATTEMPT#"):
            attempt: Attempt = rows.decode(after, Attempt)
            yield rows.decode(world.ledger.rows[job_rows.job_key(attempt.job_id)], Job), attempt


@invariant_check(
    "required-level-holds",
    "A job starts only on nodes of one domain of the network level that it requires. Nodes without labels are in none.",
    CheckTrigger.COMMIT,
)
def required_level_holds(world: "Simulation", changes: Changes) -> Iterator[str]:
    placement = world.placement
    if placement is None:
        return
    for job, attempt in _admissions(world, changes):
        level = job.spec.required_network_level
        if level is None or attempt.ranks < 2:
            continue
        index, instance_ids = LEVELS.index(level), [life.instance_id for life in attempt.nodes]
        moments = _moments(placement, instance_ids, _began(world), world.loop.seconds)
        domains = [[placement.history.path_at(name, at)[index : index + 1] for name in instance_ids] for at in moments]
        if not any(all(paths) and len(set(paths)) == 1 for paths in domains):
            yield f"{attempt.workload_name} requires {level}, and its nodes are in {domains[-1]}"


def _moments(placement: PlacementScenario, instance_ids: list[str], began: float, now: float) -> list[float]:
    """Return the times at which the function may have read the labels: each change since it began."""
    paths = placement.history.paths
    changes = [at for name in instance_ids for at, _ in paths.get(name, ()) if began < at <= now]
    return sorted({began, *changes})


@invariant_check(
    "no-start-before-capacity-ends",
    "No attempt is admitted on nodes whose capacity ends before it could start, restore and save.",
    CheckTrigger.COMMIT,
)
def starts_leave_time_to_save(world: "Simulation", changes: Changes) -> Iterator[str]:
    placement, policy = world.placement, world.policy
    if placement is None:
        return
    for job, attempt in _admissions(world, changes):
        has_block = placement.history.is_of_block(attempt, _began(world))
        end = placement.history.usable_until(_began(world)) if has_block else None
        seconds = policy.economy.expected_launch_seconds + policy.jobs.expected_resume_seconds + job.spec.grace_seconds
        if end is not None and _began(world) + seconds > end:
            left = end - world.loop.seconds
            yield f"{attempt.workload_name} is admitted {left:.0f} s before its nodes end, and it needs {seconds} s"


@invariant_check(
    "known-end-is-kept",
    "The stored end of a pool stays until EC2 states another one, whether EC2 answers or not.",
    CheckTrigger.COMMIT,
)
def known_ends_are_kept(world: "Simulation", changes: Changes) -> Iterator[str]:
    placement = world.placement
    for key, before, after in changes:
        if placement is None or key != fleet_rows.plan_ends_key():
            continue
        end = _usable_until(world, after)
        if end is not None:
            placement.history.stored_ends.append((world.loop.seconds, end))
        elif _usable_until(world, before) is not None and _has_known_nodes(world, placement):
            yield f"the end of {POOL} is no longer stored, and its nodes are still of the Capacity Block"


def _usable_until(world: "Simulation", row: Row | None) -> float | None:
    """Return the second until which the pool is usable, as a row says; None without an end."""
    ends = rows.decode(row, PlanEnds).groups if row else ()
    start = world.loop.now().timestamp() - world.loop.seconds
    return next((end.reservation.usable_until.timestamp() - start for end in ends if end.group == POOL), None)


def _has_known_nodes(world: "Simulation", placement: PlacementScenario) -> bool:
    """Return whether a node of the Capacity Block was labelled before the function began, and is still there."""
    began, labelled_at = _began(world), placement.history.labelled_at
    return any(
        labelled_at.get(node.instance_id or "", began) < began and node.pool == POOL
        for node in world.cluster.by_name.values()
    )


@invariant_check(
    "capacity-is-left-before-its-end",
    "No attempt runs on nodes after their capacity has ended, if the end was known in time.",
    CheckTrigger.CALM,
)
def capacity_is_left(world: "Simulation") -> Iterator[str]:
    placement, now = world.placement, world.loop.seconds
    if placement is None or world.mode != Mode.ACT or now - world.calm_since < _STOP_SECONDS:
        return
    end = placement.history.usable_until(now - _STOP_SECONDS)
    if end is None or end != placement.history.usable_until(now) or now <= end + _MARGIN_SECONDS:
        return
    for workload in world.cluster.running():
        attempt = workload.spec.attempt
        is_of_block = placement.history.is_of_block(attempt, now - _STOP_SECONDS)
        if is_of_block and workload.is_there and any(not pod.has_ended for pod in workload.pods):
            yield f"{attempt.workload_name} runs {now - end:.0f} s after its nodes had to be left"
