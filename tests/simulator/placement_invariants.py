"""Invariants of network levels and of capacity that ends: more rows of the same table.

Positions and ends come from the scenario's own record of labels and commits, not from the code under test.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

from evenkeel.domain.capacity.network_topology import LEVELS
from evenkeel.domain.capacity.training_plans import PlanEnds
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.policy_section import Mode
from evenkeel.ports import LaunchSpec, Row
from evenkeel.services.scheduling import drain_reservations
from evenkeel.services.tables import fleet_rows, job_rows, rows
from tests.fakes.cluster import CLUSTER
from tests.simulator.elastic_invariants import newest_saved_step, sizes_of
from tests.simulator.invariants import Changes, CheckTrigger, invariant_check
from tests.simulator.placement_scenario import POOL, PlacementScenario

if TYPE_CHECKING:
    from tests.simulator.simulation import Simulation

_MARGIN_SECONDS = 60.0
_LEAVER = drain_reservations.WRITER
_SAVE_SECONDS = 60.0
"""Seconds before the end, besides its grace, at which a job is asked to leave."""
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
        is_ending = placement.history.is_on_ending_nodes(attempt, _began(world))
        end = placement.history.usable_until(_began(world)) if is_ending else None
        seconds = policy.economy.expected_launch_seconds + policy.jobs.expected_resume_seconds + job.spec.grace_seconds
        if end is not None and _began(world) + seconds > end:
            left = end - world.loop.seconds
            yield f"{attempt.workload_name} is admitted {left:.0f} s before its nodes end, and it needs {seconds} s"


@invariant_check(
    "known-end-is-kept",
    "The stored end of a pool stays until AWS states another one, whether AWS answers or not.",
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
            yield f"the end of {POOL} is no longer stored, and its nodes still end"


def _usable_until(world: "Simulation", row: Row | None) -> float | None:
    """Return the second until which the pool is usable, as a row says; None without an end."""
    ends = rows.decode(row, PlanEnds).groups if row else ()
    start = world.loop.now().timestamp() - world.loop.seconds
    return next((end.reservation.usable_until.timestamp() - start for end in ends if end.group == POOL), None)


def _has_known_nodes(world: "Simulation", placement: PlacementScenario) -> bool:
    """Return whether a node was known to end before the function began, and is still there."""
    began, labelled_at = _began(world), placement.history.labelled_at
    return any(
        labelled_at.get(node.instance_id or "", began) < began and node.pool == POOL
        for node in world.cluster.by_name.values()
    )


@invariant_check(
    "capacity-is-left-before-its-end",
    "No attempt runs on nodes after their capacity has ended, if the end was known in time.",
    CheckTrigger.AFTER_FAULTS,
)
def capacity_is_left(world: "Simulation") -> Iterator[str]:
    placement, now = world.placement, world.loop.seconds
    end = _steady_end(world)
    if placement is None or end is None or now <= end + _MARGIN_SECONDS:
        return
    for workload in world.cluster.running():
        attempt = workload.spec.attempt
        is_ending = placement.history.is_on_ending_nodes(attempt, now - _STOP_SECONDS)
        if is_ending and workload.is_there and any(not pod.has_ended for pod in workload.pods):
            yield f"{attempt.workload_name} runs {now - end:.0f} s after its nodes had to be left"


def _steady_end(world: "Simulation") -> float | None:
    """Return until when the pool is usable, if this is known so long, without faults, that jobs had time to leave."""
    now = world.loop.seconds
    if world.placement is None or world.mode != Mode.ACT or now - world.faults_ended_at < _STOP_SECONDS:
        return None
    end = world.placement.history.usable_until(now - _STOP_SECONDS)
    return end if end == world.placement.history.usable_until(now) else None


@invariant_check(
    "pending-job-names-capacity-end",
    "If only the end of its capacity keeps a job from idle nodes, the job states this end.",
    CheckTrigger.AFTER_FAULTS,
)
def pending_jobs_name_the_end(world: "Simulation") -> Iterator[str]:
    end = _steady_end(world)
    # Within its grace a job cannot even save, so no job starts.
    if end is None or world.loop.seconds < end - _SAVE_SECONDS or not _has_idle_ending_node(world):
        return
    until = f"{world.loop.now() + timedelta(seconds=end - world.loop.seconds):%d %b %H:%M} UTC"
    for row in world.ledger.of("META", "JOB#"):
        job = rows.decode(row, Job)
        is_waiting = job.state is JobState.PENDING and not (job.not_before and job.not_before > world.loop.now())
        is_behind = job.queue_reason.startswith("The job waits behind")
        is_too_large = _large_enough_nodes(world, job) < min(sizes_of(job.spec))
        if is_waiting and not is_behind and not is_too_large and f"usable only until {until}" not in job.queue_reason:
            yield f"{job.job_id} waits because {job.queue_reason!r}, but its nodes end at {until}"


def _large_enough_nodes(world: "Simulation", job: Job) -> int:
    """Return how many nodes of the pool could run one pod of a job if they were idle. A node can have lost a GPU."""
    return sum(
        node.pool == POOL and node.accelerators >= job.spec.accelerators_per_node
        for node in world.cluster.nodes(CLUSTER)
    )


def _has_idle_ending_node(world: "Simulation") -> bool:
    """Return whether a node that ends is free, so that only its end keeps jobs away."""
    assert world.placement
    known_at, used = world.placement.history.labelled_at, world.cluster.accelerators_in_use(CLUSTER)
    return any(
        node.pool == POOL
        and node.is_schedulable
        and not used.get(node.name)
        and known_at.get(node.instance_id or "", world.loop.seconds) < world.faults_ended_at
        for node in world.cluster.nodes(CLUSTER)
    )


# ---------------------------------------------------------------- what leaving costs


@invariant_check(
    "leaving-keeps-progress",
    "A job leaves ending capacity with its grace to save, resumes from its newest checkpoint, and keeps its restarts.",
    CheckTrigger.COMMIT,
)
def leaving_jobs_have_time_to_save(world: "Simulation", changes: Changes) -> Iterator[str]:
    if world.placement is None:
        return
    end = world.placement.history.usable_until(_began(world))
    for key, before, after in changes:
        if not (before and after and key.sk == "META" and key.pk.startswith("JOB#")):
            continue
        was, job = rows.decode(before, Job), rows.decode(after, Job)
        request = job.stop_request
        if request and request != was.stop_request and request.by == _LEAVER:
            world.placement.history.leaving.add(f"{job.job_id}-a{job.current_attempt}")
            if request.grace_seconds != job.spec.grace_seconds:
                yield f"{job.job_id} has {request.grace_seconds} s to save, not {job.spec.grace_seconds} s"
            if end is not None and world.loop.seconds < end - _SAVE_SECONDS - job.spec.grace_seconds - 1:
                yield f"{job.job_id} leaves {end - world.loop.seconds:.0f} s before its nodes end"
        if _leaves_now(was, job) and (job.application_failures, job.launch_failures) != (was.application_failures, 0):
            yield f"{job.job_id} leaves its nodes, which must not count as a failure"


def _leaves_now(was: Job, job: Job) -> bool:
    """Return whether a commit ends the attempt that leaves ending capacity."""
    request = was.stop_of(was.current_attempt)
    return bool(request and request.by == _LEAVER) and job.state is JobState.PENDING is not was.state


@invariant_check("leaving-keeps-progress", "", CheckTrigger.LAUNCH)
def leaving_keeps_work(world: "Simulation", spec: LaunchSpec) -> Iterator[str]:
    attempt = spec.attempt
    last = f"{attempt.job_id}-a{attempt.attempt - 1}"
    if world.placement is None or last not in world.placement.history.leaving:
        return
    newest = newest_saved_step(world, attempt)
    step = attempt.resume_from.step if attempt.resume_from else 0
    if newest is not None and step < newest:
        yield f"{attempt.workload_name} resumes from step {step}, but step {newest} was saved before it left"
