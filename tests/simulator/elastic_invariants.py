"""Invariants of jobs with several sizes: more rows of the same table.

The size limits, waiting times and idle nodes are computed here again, from specs, attempts and nodes.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from evenkeel.domain.admission.decide_job import AdmissionAction
from evenkeel.domain.jobs.attempt import Attempt, AttemptState
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.jobs.job import Job, JobState, ResizeRequest
from evenkeel.domain.jobs.spec import JobSpec
from evenkeel.ports import LaunchSpec, Row
from evenkeel.services.tables import incident_rows, job_rows, quota_rows, rows
from tests.fakes.cluster import CLUSTER
from tests.simulator.elastic_scenario import CYCLES_EVERY, GrowthAttempt
from tests.simulator.invariants import Changes, CheckTrigger, held_charges, invariant_check, is_new_stop
from tests.simulator.team_invariants import over

if TYPE_CHECKING:
    from tests.simulator.simulation import Simulation

_RESIZER = "resize_jobs/"


def sizes_of(spec: JobSpec) -> set[int]:
    """Return the numbers of nodes that a job may have."""
    elastic_spec = spec.elastic
    if elastic_spec is None:
        return {spec.nodes}
    between = range(elastic_spec.min_nodes, elastic_spec.max_nodes + 1)
    if elastic_spec.sizes:
        return set(elastic_spec.sizes) & set(between)
    return {size for size in between if (size - elastic_spec.min_nodes) % (elastic_spec.step or 1) == 0}


def _job(world: "Simulation", job_id: str) -> Job:
    job: Job = rows.decode(world.ledger.rows[job_rows.job_key(job_id)], Job)
    return job


def _attempt(world: "Simulation", job_id: str, number: int) -> Attempt | None:
    row = world.ledger.rows.get(job_rows.attempt_key(job_id, number))
    return rows.decode(row, Attempt) if row else None


def _jobs_changed(changes: Changes) -> Iterator[tuple[Job | None, Job]]:
    for key, before, after in changes:
        if after and key.sk == "META" and key.pk.startswith("JOB#"):
            yield rows.decode(before, Job) if before else None, rows.decode(after, Job)


def _attempts_changed(changes: Changes) -> Iterator[tuple[Attempt | None, Attempt]]:
    for key, before, after in changes:
        if after and key.sk.startswith("ATTEMPT#"):
            yield rows.decode(before, Attempt) if before else None, rows.decode(after, Attempt)


def _new_resizes(changes: Changes) -> Iterator[tuple[Job, ResizeRequest]]:
    """Yield each job with a new resize request in a commit."""
    for before, after in _jobs_changed(changes):
        if after.resize and before and after.resize != before.resize:
            yield after, after.resize


def _charges(world: "Simulation") -> list[Charge]:
    return held_charges(world)


def _was_undisturbed(world: "Simulation") -> bool:
    """Return whether the running function saw the present state: no fault happened since it began."""
    return bool(world.calls) and world.calls[-1].injected_failures == world.chaos.injected_failures


# ---------------------------------------------------------------- sizes


@invariant_check(
    "allowed-sizes-only",
    "An attempt has a size that its job allows, on its nodes and in its charge.",
    CheckTrigger.COMMIT,
)
def sizes_are_allowed(world: "Simulation", changes: Changes) -> Iterator[str]:
    for before, attempt in _attempts_changed(changes):
        if before is not None:
            continue
        spec = _job(world, attempt.job_id).spec
        charge = rows.decode(world.ledger.rows[quota_rows.charge_key(attempt)], Charge)
        if attempt.size not in sizes_of(spec):
            yield f"{attempt.workload_name} has {attempt.size} nodes; its spec allows {sorted(sizes_of(spec))}"
        held = (len(set(attempt.node_names)), attempt.accelerators, len(charge.node_names), charge.accelerators)
        whole = attempt.size * spec.accelerators_per_node
        nodes = 0 if attempt.local_queue else attempt.size  # Kueue chooses them later
        if held != (nodes, whole, nodes, whole):
            yield f"{attempt.workload_name} has {attempt.size} nodes but holds {held} accelerators"
    for job, resize in _new_resizes(changes):
        if resize.nodes not in sizes_of(job.spec) or resize.nodes == resize.from_nodes:
            yield f"{job.job_id} is asked to resize from {resize.from_nodes} to {resize.nodes} nodes"


@invariant_check("allowed-sizes-only", "", CheckTrigger.LAUNCH)
def sizes_are_launched(_: "Simulation", spec: LaunchSpec) -> Iterator[str]:
    if spec.attempt.ranks not in sizes_of(spec.job_spec):
        yield f"{spec.attempt.workload_name} is launched on {spec.attempt.ranks} nodes, not on its admitted size"


# ---------------------------------------------------------------- growth


@invariant_check(
    "growth-respects-backoff",
    "No job grows within its snooze, nor within the back-off of a failed growth.",
    CheckTrigger.COMMIT,
    needs_elastic_jobs=True,
)
def growth_waits(world: "Simulation", changes: Changes) -> Iterator[str]:
    assert world.elastic
    terms, known = world.policy.scheduling.elastic, world.elastic.watched.growths
    for job, resize in _new_resizes(changes):
        growth_attempt = known.setdefault(job.job_id, GrowthAttempt())
        if resize.nodes < resize.from_nodes:
            continue
        if growth_attempt.resized_at and resize.asked_at < growth_attempt.resized_at + timedelta(
            seconds=terms.snooze_seconds
        ):
            yield f"{job.job_id} grows too soon after its last resize at {growth_attempt.resized_at:%H:%M:%S}"
        pause = min(terms.backoff_seconds * 2 ** max(0, growth_attempt.failures - 1), terms.max_backoff_seconds)
        if growth_attempt.failed_at and resize.asked_at < growth_attempt.failed_at + timedelta(seconds=pause):
            yield (
                f"{job.job_id} grows too soon: {growth_attempt.failures} tries failed, "
                f"the last at {growth_attempt.failed_at:%H:%M:%S}"
            )
    for before, attempt in _attempts_changed(changes):
        _follow(world, known.setdefault(attempt.job_id, GrowthAttempt()), before, attempt)


def _follow(world: "Simulation", growth: GrowthAttempt, before: Attempt | None, attempt: Attempt) -> None:
    """Record how an attempt's change affects the growth of its job."""
    if before is None:
        last = _attempt(world, attempt.job_id, attempt.attempt - 1)
        resize = _job(world, attempt.job_id).resize
        is_resized = resize is not None and last is not None and resize.after_attempt == last.attempt
        growth.grown = 0
        if last and (is_resized or last.size != attempt.size):
            growth.resized_at = attempt.admitted_at
        if is_resized and resize and resize.nodes > resize.from_nodes:
            if attempt.size < resize.nodes:
                growth.failures, growth.failed_at = growth.failures + 1, attempt.admitted_at
            elif attempt.size == resize.nodes:
                growth.grown = attempt.attempt
    elif attempt.attempt == growth.grown and attempt.state is not before.state:
        if attempt.state is AttemptState.RUNNING:
            growth.failures, growth.failed_at = 0, None
        elif attempt.state is AttemptState.NEVER_RAN:
            growth.failures, growth.failed_at = growth.failures + 1, attempt.ended_at


@invariant_check(
    "grow-onto-idle-nodes-only",
    "A job grows only onto nodes that are unused, not cordoned, and not waited for.",
    CheckTrigger.COMMIT,
    needs_elastic_jobs=True,
)
def grows_onto_idle(world: "Simulation", changes: Changes) -> Iterator[str]:
    for job, resize in _new_resizes(changes):
        if resize.nodes < resize.from_nodes or not _was_undisturbed(world):
            continue
        idle = _idle_for(world, job)
        if len(idle) < resize.nodes - resize.from_nodes:
            yield f"{job.job_id} grows from {resize.from_nodes} to {resize.nodes} nodes, but only {idle} are idle"
        if world.sharing is None and (waiting := _waiting(world, _pool_of(world, job))):
            yield f"{job.job_id} grows while {', '.join(waiting)} wait for nodes"


def _pool_of(world: "Simulation", job: Job) -> tuple[str, str]:
    attempt = _attempt(world, job.job_id, job.current_attempt)
    return (attempt.pool, attempt.instance_type) if attempt else ("", "")


def _kind_of(world: "Simulation", name: str) -> tuple[str, str]:
    node = world.cluster.node(CLUSTER, name)
    return (node.pool, node.instance_type) if node else ("", "")


def _idle_for(world: "Simulation", job: Job) -> list[str]:
    """Return the nodes of its kind that nothing uses and that a job could have, without the spares."""
    pool = _pool_of(world, job)
    used, charged = (
        world.cluster.accelerators_in_use(CLUSTER),
        {name for charge in _charges(world) for name in charge.node_names},
    )
    names = [
        node.name
        for node in world.cluster.nodes(CLUSTER)
        if node.is_schedulable
        and node.accelerators >= job.spec.accelerators_per_node
        and (node.pool, node.instance_type) == pool
        and not used.get(node.name)
    ]
    free = [name for name in names if name not in charged]
    return free[: max(0, len(free) - world.policy.scheduling.spare_nodes.get(pool[0], 0))]


def _waiting(world: "Simulation", pool: tuple[str, str]) -> list[str]:
    """Return the jobs and replicas that wait for nodes of a kind; jobs that are too large for it are left out."""
    now, waiting = world.loop.now(), []
    size = sum(_kind_of(world, node.name) == pool for node in world.cluster.nodes(CLUSTER))
    for key, row in world.ledger.rows.items():
        if key.sk != "META" or not key.pk.startswith("JOB#") or row.doc["state"] != JobState.PENDING:
            continue
        job = rows.decode(row, Job)
        if job.next_node_count <= size and not (job.not_before and now < job.not_before):
            waiting.append(job.job_id)
    replicas = [pod for pod in world.cluster.unmanaged_pods(CLUSTER) if pod.namespace == "serving"]
    most = sum(workload.max_replicas for workload in world.policy.scheduling.serving)
    pods_with_nodes = sum(bool(pod.node_name) for pod in replicas)
    return waiting + [pod.name for pod in replicas if not pod.node_name][: max(0, most - pods_with_nodes)]


# ---------------------------------------------------------------- no endless resizing


@invariant_check(
    "no-repeated-resize",
    "While nothing else changes, no job makes the same resize twice.",
    CheckTrigger.COMMIT,
    needs_elastic_jobs=True,
)
def resizes_settle(world: "Simulation", changes: Changes) -> Iterator[str]:
    assert world.elastic
    size_history = world.elastic.watched
    size_history.changes += sum(_is_from_outside(change) for change in changes)
    era = (size_history.changes, world.chaos.injected_failures, world.cluster.node_changes)
    if era != size_history.era:
        size_history.made.clear()
        size_history.disturbed_at = world.loop.seconds
    size_history.era = era
    if any(key.sk.startswith("ATTEMPT#") or key.sk == "META" for key, _, _ in changes):
        size_history.disturbed_at = world.loop.seconds
    for job, resize in _new_resizes(changes):
        key = (job.job_id, resize.from_nodes, resize.nodes)
        size_history.made[key] += 1
        if size_history.made[key] > 1:
            sizes = f"from {resize.from_nodes} to {resize.nodes} nodes"
            yield f"{job.job_id} goes {sizes} again although nothing else changed"


def _is_from_outside(change: tuple[object, Row | None, Row | None]) -> bool:
    """Return whether scheduling cycles never make this change themselves."""
    _, before, after = change
    row = after or before
    if row is None:
        return False
    if row.key.pk.startswith("JOB#") and row.key.sk == "META":
        was, job = (rows.decode(before, Job) if before else None), rows.decode(row, Job)
        is_new = (
            was is None or was.state.is_at_rest or was.priority != job.priority or was.is_suspended != job.is_suspended
        )
        return is_new or job.state.is_at_rest or job.not_before is not None
    if row.key.sk.startswith("ATTEMPT#"):
        return row.doc["state"] in (AttemptState.LOST, AttemptState.FAILED, AttemptState.NEVER_RAN)
    return row.key == quota_rows.setup_key()


# ---------------------------------------------------------------- what a resize costs


@invariant_check(
    "resize-keeps-progress",
    "A resize resumes from the newest valid checkpoint, and costs neither a restart nor the job's queue position.",
    CheckTrigger.COMMIT,
    needs_elastic_jobs=True,
)
def resize_is_no_failure(world: "Simulation", changes: Changes) -> Iterator[str]:
    ended = {
        attempt.job_id: attempt
        for before, attempt in _attempts_changed(changes)
        if before and not before.state.has_ended and attempt.state.has_ended
    }
    for before, after in _jobs_changed(changes) if ended else ():
        attempt = ended.get(after.job_id)
        request = before.stop_of(attempt.attempt) if before and attempt else None
        if before is None or attempt is None or request is None or not request.by.startswith(_RESIZER):
            continue
        if attempt.state is AttemptState.SUCCEEDED or before.state is JobState.STOPPING:
            continue
        if attempt.state is not AttemptState.STOPPED:
            yield f"{attempt.workload_name} was stopped for a resize and must end STOPPED, not {attempt.state}"
        waits = JobState.SUSPENDED if before.is_suspended else JobState.PENDING
        if after.state is not waits or not after.reason:
            yield f"{after.job_id} resizes and must be {waits}, not {after.state}"
        if (after.queued_at, after.submitted_at) != (before.queued_at, before.submitted_at):
            yield f"{after.job_id} resizes and must keep its queue position"
        if (after.application_failures, after.launch_failures) != (before.application_failures, 0) or after.not_before:
            yield f"{after.job_id} resizes, which must not count as a failure"


@invariant_check("resize-keeps-progress", "", CheckTrigger.LAUNCH, needs_elastic_jobs=True)
def resize_keeps_work(world: "Simulation", spec: LaunchSpec) -> Iterator[str]:
    attempt = spec.attempt
    job = _job(world, attempt.job_id)
    resize = job.resize
    if resize is None or resize.after_attempt != attempt.attempt - 1:
        return
    newest, point = newest_saved_step(world, attempt), attempt.resume_from
    if newest is not None and (point.step if point else 0) < newest:
        yield f"{attempt.workload_name} resumes from step {point.step if point else 0}, but step {newest} was saved"


def newest_saved_step(world: "Simulation", attempt: Attempt) -> int | None:
    """Return the newest step of earlier attempts; None if a fault or a distrust may rightly exclude it."""
    job = _job(world, attempt.job_id)
    if job.damaged_checkpoints or _was_distrusted(world, job.job_id) or not _was_undisturbed(world):
        return None
    return max((step for number, step in _saved(world, job.job_id) if number < attempt.attempt), default=0)


def _was_distrusted(world: "Simulation", job_id: str) -> bool:
    """Return whether a checkpoint of the job was distrusted. Rejected checkpoints stay behind the fence."""
    return any(
        key.pk.startswith("DEC#")
        and row.doc["kind"] == "RESUME"
        and row.doc["facts"]["jobId"] == job_id
        and row.doc["facts"]["trust"] != "trusted"
        for key, row in world.ledger.rows.items()
    )


def _saved(world: "Simulation", job_id: str) -> Iterator[tuple[int, int]]:
    """Yield the attempt and the step of each checkpoint that was written in time."""
    for name in world.trainers.started:
        whose, _, manifest = name.partition(" ")
        if whose == job_id and name not in world.trainers.late:
            number, step, _ = manifest.split("/")
            yield int(number.partition("=")[2]), int(step.partition("=")[2])


@invariant_check(
    "spare-before-shrink",
    "A job that lost nodes continues with fewer only after spares had their time.",
    CheckTrigger.COMMIT,
    needs_elastic_jobs=True,
)
def spares_precede_shrinking(world: "Simulation", changes: Changes) -> Iterator[str]:
    for before, attempt in _attempts_changed(changes):
        last = _attempt(world, attempt.job_id, attempt.attempt - 1) if before is None else None
        job = _job(world, attempt.job_id)
        if (
            last is None
            or last.state is not AttemptState.LOST
            or (job.resize and job.resize.after_attempt == last.attempt)
        ):
            continue
        lost_at = min([last.ended_at or attempt.admitted_at, *_incident_openings(world, job)])
        until = lost_at + timedelta(seconds=world.policy.scheduling.elastic.spare_wait_seconds)
        if attempt.size < min(job.spec.nodes, last.size) and attempt.admitted_at < until:
            yield f"{attempt.workload_name} shrinks before {until:%H:%M:%S}, the end of the spare wait"


def _incident_openings(world: "Simulation", job: Job) -> Iterator[datetime]:
    """Yield the opening time of the incident of the job's resume plan."""
    row = world.ledger.rows.get(incident_rows.incident_key(job.resume_plan.incident_id)) if job.resume_plan else None
    if row:
        yield datetime.fromisoformat(row.doc["openedAt"])


# ---------------------------------------------------------------- shrinking before preemption


@invariant_check(
    "shrink-before-preempt",
    "No job is preempted if the waiting job could start when the victims shrank instead.",
    CheckTrigger.COMMIT,
    needs_elastic_jobs=True,
)
def shrunk_before_killed(world: "Simulation", changes: Changes) -> Iterator[str]:
    if world.sharing is None or not _was_undisturbed(world):
        return
    victims: dict[str, list[Charge]] = {}
    charges = {charge.job_id: charge for charge in _charges(world)}
    for before, after in _jobs_changed(changes):
        request = after.stop_request
        is_new = before is not None and request is not None and is_new_stop(request, before.stop_request)
        if is_new and request and after.live_resize() is None and after.job_id in charges:
            victims.setdefault(request.by, []).append(charges[after.job_id])
    for requester, stopped in victims.items():
        writer, _, winner = requester.partition("/")
        if writer != "schedule_jobs" or not winner.startswith("job-"):
            continue
        kept = [_smallest_charge(world, charge) for charge in stopped]
        if kept == stopped or _other_workloads_wait(world, winner):
            continue
        job = _job(world, winner)
        rest = [charge for charge in charges.values() if charge not in stopped]
        for charge in stopped:
            needed = _charge_of_waiting(job, charge)
            if not _fits_after_returns(world, needed, stopped, kept):
                continue
            before_that = set(over(world.sharing.setup, [*rest, *stopped]))
            if set(over(world.sharing.setup, [*rest, *kept, needed])) <= before_that:
                yield f"{winner} preempts {', '.join(charge.job_id for charge in stopped)}, but shrinking is enough"
                break


def _smallest_charge(world: "Simulation", charge: Charge) -> Charge:
    """Return the nodes of a job at its smallest size; it can resume only if it gets these."""
    nodes = min(sizes_of(_job(world, charge.job_id).spec))
    initial_nodes = {name: world.cluster.node(CLUSTER, name) for name in charge.node_names}
    names = sorted(initial_nodes, key=lambda name: (node := initial_nodes[name]) is None or not node.is_schedulable)
    return _resized(charge.replace(node_names=tuple(names)), nodes) if nodes < len(names) else charge


def _resized(charge: Charge, nodes: int) -> Charge:
    held = len(charge.node_names)
    return charge.replace(
        node_names=charge.node_names[:nodes],
        accelerators=charge.accelerators * nodes // held,
        use={
            flavor: {name: count * nodes // held for name, count in use.items()} for flavor, use in charge.use.items()
        },
    )


def _charge_of_waiting(job: Job, like: Charge) -> Charge:
    """Return the nodes that a waiting job would get, free or by preemption."""
    held = job.next_node_count * job.spec.accelerators_per_node
    use = {flavor: dict.fromkeys(amounts, held) for flavor, amounts in like.use.items()}
    return like.replace(job_id=job.job_id, team=job.spec.team, queue=job.spec.team, accelerators=held, use=use)


def _fits_after_returns(world: "Simulation", needed: Charge, stopped: list[Charge], kept: list[Charge]) -> bool:
    """Return whether a waiting job finds its nodes in a pool after other jobs return theirs."""
    job = _job(world, needed.job_id)
    gpus, used = job.spec.accelerators_per_node, dict(world.cluster.accelerators_in_use(CLUSTER))
    plan = job.live_plan()
    for charge in _charges(world):
        for name in charge.node_names:
            used[name] = max(used.get(name, 0), charge.accelerators // len(charge.node_names))
    for was, left in zip(stopped, kept, strict=True):
        for name in {*was.node_names} - {*left.node_names}:
            used[name] -= was.accelerators // len(was.node_names)
    fits = [
        node.name
        for node in world.cluster.nodes(CLUSTER)
        if node.is_schedulable
        and (node.pool, node.instance_type) == (needed.pool, needed.instance_type)
        and node.accelerators - used.get(node.name, 0) >= gpus
        and not any(f"/{node.instance_id}/" in life for life in (plan.avoid if plan else ()))
    ]
    return len(fits) - world.policy.scheduling.spare_nodes.get(needed.pool, 0) >= job.next_node_count


def _other_workloads_wait(world: "Simulation", winner: str) -> bool:
    """Return whether other workloads could use the returned nodes. Then a different job may start on them.

    A job without quota cannot use them, nor can a later job of the same team. Replicas use all free capacity.
    """
    if any(not pod.node_name for pod in world.cluster.unmanaged_pods(CLUSTER)):
        return True
    first, actions = _job(world, winner), {}
    waiting: list[Job] = []
    for key, row in world.ledger.rows.items():
        if key.pk.startswith("DEC#") and row.doc["kind"] == "ADMISSION":
            actions[row.doc["subject"]] = row.doc["action"]
        elif key.pk.startswith("JOB#") and key.sk == "META" and row.doc["state"] == JobState.PENDING:
            waiting.append(rows.decode(row, Job))
    return any(
        job.priority >= first.priority
        if job.spec.team == first.spec.team
        else actions.get(job.job_id) != AdmissionAction.NO_QUOTA
        for job in waiting
        if job.job_id != winner
    )


# ---------------------------------------------------------------- after the faults


def _effective_nodes(job: Job, size: int) -> float:
    return job.throughput.equivalent_nodes(size) if job.throughput else float(size)


def _gained_nodes(job: Job, held: int, size: int) -> float:
    """Return how many effective nodes a job gains by a growth. A job may declare that more nodes make it slower."""
    return _effective_nodes(job, size) - _effective_nodes(job, held)


def _resizes_to_pay_off(job: Job, held: int, sizes: list[int]) -> float:
    """Return how many times the duration of a resize the nodes must be idle, before the slowest growth pays off."""
    gains = [(size, _gained_nodes(job, held, size)) for size in sizes]
    return max((_effective_nodes(job, size) / gain for size, gain in gains if gain > 0), default=0.0)


@invariant_check(
    "grow-when-nodes-idle",
    "After the faults stop, no job stays smaller than idle nodes allow that no job waits for, if it gains by them.",
    CheckTrigger.AFTER_FAULTS,
    needs_elastic_jobs=True,
)
def grows_when_idle(world: "Simulation") -> Iterator[str]:
    assert world.elastic
    terms, known = world.policy.scheduling.elastic, world.elastic.watched
    if world.mode != "act" or world.sharing:
        return
    for charge in _charges(world):
        job = _job(world, charge.job_id)
        if (
            job.state is not JobState.RUNNING
            or job.stop_of(job.current_attempt)
            or job.current_attempt != charge.attempt
        ):
            continue
        idle = len(_idle_for(world, job))
        held = len(charge.node_names)
        # The whole job stops to grow, so it does not get back nodes that are cordoned or must be drained.
        plan = job.live_plan()
        nodes = [
            node
            for name in charge.node_names
            if (node := world.cluster.node(CLUSTER, name))
            and node.is_schedulable
            and not any(f"/{node.instance_id}/" in life for life in (plan.avoid if plan else ()))
        ]
        larger_sizes = [size for size in sizes_of(job.spec) if held < size <= len(nodes) + idle]
        larger = min((size for size in larger_sizes if _gained_nodes(job, held, size) > 0), default=0)
        if not larger or _waiting(world, _pool_of(world, job)):
            continue
        growth_attempt = known.growths.get(job.job_id, GrowthAttempt())
        pays = terms.resize_seconds * max(held + idle, _resizes_to_pay_off(job, held, larger_sizes))
        pause = terms.snooze_seconds + pays + terms.scaling_timeout_seconds + 3 * CYCLES_EVERY
        if growth_attempt.failures:
            pause += terms.max_backoff_seconds
        if world.loop.seconds - known.disturbed_at > pause:
            yield f"{job.job_id} stays at {held} nodes, although {idle} idle nodes allow {larger}"
