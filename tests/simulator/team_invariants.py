"""Invariants of teams that share a fleet, in the same table."""

import math
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from evenkeel.domain.admission.admission_request import AdmissionRequest
from evenkeel.domain.jobs.attempt import Attempt, AttemptState
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.kueue.objects import Admitted, Workload
from evenkeel.domain.nodes import is_lost
from evenkeel.domain.quotas.teams import Team, TeamSetup
from evenkeel.ports import Key
from evenkeel.services.tables import job_rows, quota_rows, rows
from tests.fakes.cluster import CLUSTER
from tests.kueue_checker import overcommitted
from tests.simulator.invariants import Changes, CheckTrigger, held_charges, invariant_check, is_new_stop

if TYPE_CHECKING:
    from tests.simulator.simulation import Simulation

_JUST_NOW_SECONDS = 60
"""Longest throttling of a function that carries out an answer."""
_CAUGHT = ("LaunchJob", "AwaitRunning", "MarkRunning", "AwaitEnd", "StopAttempt")
"""States of run_job that lead to SettleAttempt by their Catch alone."""
_MAX_TURNS = 3
"""Maximum number of preemptions between two starts: faults may take the freed nodes this often."""


def _admitted_in(changes: Changes) -> list[Charge]:
    return [rows.decode(after, Charge) for key, before, after in changes if after and not before and _is_charge(key)]


def _is_charge(key: Key) -> bool:
    return key.sk.startswith("CHARGE#")


def _charges(world: "Simulation") -> list[Charge]:
    return held_charges(world)


def _job(world: "Simulation", job_id: str) -> Job:
    job: Job = rows.decode(world.ledger.rows[job_rows.job_key(job_id)], Job)
    return job


def _jobs_changed(changes: Changes) -> Iterator[tuple[Job, Job]]:
    """Yield each job that a commit changed, before and after."""
    for key, before, after in changes:
        if before and after and key.sk == "META" and key.pk.startswith("JOB#"):
            yield rows.decode(before, Job), rows.decode(after, Job)


# ---------------------------------------------------------------- limits


@invariant_check(
    "quota-limits",
    "No admission exceeds a limit of its team, a cohort above it or its submitter.",
    CheckTrigger.COMMIT,
    needs_teams=True,
)
def quotas_hold(world: "Simulation", changes: Changes) -> Iterator[str]:
    new = _admitted_in(changes)
    if not new or world.sharing is None:
        return
    setup, charges = world.sharing.setup, _charges(world)
    if not setup.has_teams:
        return
    names = {charge.job_id for charge in new}
    # A lower quota stops no job: earlier use above it may remain, but may not grow.
    before = set(over(setup, (charge for charge in charges if charge.job_id not in names)))
    yield from (surplus for surplus in over(setup, charges) if surplus not in before)
    for charge in new:
        team = setup.by_name.get(charge.team)
        if team is None or charge.queue != team.name or not charge.use:
            yield f"{charge.job_id} has a charge that is not on the quota of its team {charge.team}"
            continue
        most = team.max_accelerators_per_user
        held = sum(
            team_charge.accelerators
            for team_charge in charges
            if (team_charge.team, team_charge.submitter) == (team.name, charge.submitter)
        )
        if most is not None and held > most:
            yield f"{charge.submitter} holds {held} in team {team.name}, more than the limit of {most}"


def over(setup: TeamSetup, charges: Iterable[Charge]) -> Iterator[str]:
    queues = setup.scheduler_declarations
    admitted = []
    for charge in charges:
        use = {(flavor, name): amount for flavor, amounts in charge.use.items() for name, amount in amounts.items()}
        admitted.append(Admitted(Workload(charge.job_id, charge.queue, ()), (), (), use=use))
    yield from overcommitted(queues.queues, queues.cohorts, admitted)


@invariant_check(
    "budget-limits",
    "No job of a team starts once its budget is spent: only running jobs exceed it.",
    CheckTrigger.COMMIT,
    needs_teams=True,
)
def budgets_hold(world: "Simulation", changes: Changes) -> Iterator[str]:
    if world.sharing is None:
        return
    for charge in _admitted_in(changes):
        team = world.sharing.setup.by_name.get(charge.team)
        assert charge.admitted_at
        for budget in team.budgets if team else ():
            period = budget.period.key_at(charge.admitted_at)
            spent = _spent(world, charge.team, period, charge.admitted_at, but=charge.job_id)
            if budget.gpu_hours is not None and spent / 3600 >= budget.gpu_hours + 0.01:
                yield f"{charge.job_id} starts, but {spent / 3600:.3f} of {budget.gpu_hours} h of {period} are spent"


def _spent(world: "Simulation", team: str, period: str, now: datetime, *, but: str = "") -> int:
    """Compute the accelerator-seconds of a team in the day or month of `now`, from its attempts."""
    begin = now.replace(hour=0, minute=0, second=0, microsecond=0)
    begin = begin if period.count("-") == 2 else begin.replace(day=1)
    total = 0
    for key, row in world.ledger.rows.items():
        if key.sk.startswith("ATTEMPT#") and row.doc["team"] == team:
            attempt = rows.decode(row, Attempt)
            is_new = attempt.job_id == but and not attempt.state.has_ended
            ends = min(now, attempt.ended_at or now)
            if not is_new:
                total += attempt.accelerators * max(0, round((ends - max(begin, attempt.admitted_at)).total_seconds()))
    return total


@invariant_check("budget-limits", "", CheckTrigger.END, needs_teams=True)
def spending_is_counted_once(world: "Simulation") -> Iterator[str]:
    now = world.loop.now()
    teams: Iterable[Team] = world.sharing.setup.teams if world.sharing else ()
    for team in teams:
        for period in (f"{now:%Y-%m-%d}", f"{now:%Y-%m}"):
            row = world.ledger.rows.get(quota_rows.spent_key(team.name, period))
            counted = row.doc["acceleratorSeconds"] if row else 0
            held = [charge for charge in _charges(world) if charge.team == team.name]
            spent = _spent(world, team.name, period, now)
            if not held and counted != spent:
                yield f"team {team.name} held {spent} accelerator-seconds in {period}, but {counted} are counted"


# ---------------------------------------------------------------- who has to stop


@invariant_check(
    "no-preemption-cycle",
    "A job preempts another job at most once per flap guard, and never repeatedly without starting.",
    CheckTrigger.COMMIT,
    needs_teams=True,
)
def no_preempt_cycle(world: "Simulation", changes: Changes) -> Iterator[str]:
    if world.sharing is None:
        return
    eviction_counter = world.sharing.evictions
    for before, after in _jobs_changed(changes):
        is_asked_anew = before.is_suspended and not after.is_suspended
        if after.current_attempt > before.current_attempt or is_asked_anew:
            for turn in [turn for turn in eviction_counter.turns if turn[0] == after.job_id]:
                del eviction_counter.turns[turn]
        request = after.stop_request
        by = request.by.removeprefix("schedule_jobs/") if request and is_new_stop(request, before.stop_request) else ""
        if not by.startswith("job-") or request is None:
            continue
        pair = frozenset((by, after.job_id))
        guard = world.sharing.setup.fleet.switches.flap_guard_seconds
        last = eviction_counter.at.get(pair)
        if last is not None and abs((request.requested_at - last).total_seconds()) < guard:
            yield f"{by} preempts {after.job_id} again; the last preemption between them was at {last:%H:%M:%S}"
        eviction_counter.at[pair] = request.requested_at
        eviction_counter.turns[by, after.job_id] += 1
        if eviction_counter.turns[by, after.job_id] > _MAX_TURNS:
            yield f"{by} preempted {after.job_id} {eviction_counter.turns[by, after.job_id]} times without starting"


@invariant_check(
    "preempted-keeps-queue-position",
    "A preempted job waits again at its old queue position, and keeps its restarts.",
    CheckTrigger.COMMIT,
    needs_teams=True,
)
def preempted_job_keeps_its_place(world: "Simulation", changes: Changes) -> Iterator[str]:
    ended = {
        (after.doc["jobId"], after.doc["attempt"])
        for key, before, after in changes
        if key.sk.startswith("ATTEMPT#") and before and after and after.doc["state"] == AttemptState.STOPPED
    }
    for before, after in _jobs_changed(changes) if ended else ():
        request = before.stop_of(before.current_attempt)
        if not request or not request.by.startswith("schedule_jobs/") or (after.job_id, request.attempt) not in ended:
            continue
        if before.state is JobState.STOPPING:
            continue
        waits = JobState.SUSPENDED if before.is_suspended else JobState.PENDING
        if after.state is not waits or not after.reason:
            yield f"{after.job_id} was preempted and must be {waits}, not {after.state}"
        if (after.queued_at, after.submitted_at) != (before.queued_at, before.submitted_at):
            yield f"{after.job_id} was preempted and must keep its queue position"
        if (after.application_failures, after.launch_failures) != (before.application_failures, 0):
            yield f"{after.job_id} was preempted, which must not count as a failure"


@invariant_check(
    "quota-held-until-pods-gone",
    "A stopped job holds its quota until its pods are gone or unreachable, or its workflow failed.",
    CheckTrigger.COMMIT,
)
def charge_is_held_until_pods_end(world: "Simulation", changes: Changes) -> Iterator[str]:
    for key, before, _ in changes:
        if before is None or not _is_charge(key) or not rows.decode(before, Charge).is_live:
            continue
        charge = rows.decode(before, Charge)
        attempt = rows.decode(world.ledger.rows[job_rows.attempt_key(charge.job_id, charge.attempt)], Attempt)
        run = world.engine.executions["run_job", attempt.workload_name]
        # A failed workflow settles at once; its pods are stopping, and use their nodes until their end.
        has_failed = run.entered[-1:] == ["SettleAttempt"] and run.entered[-2] in _CAUGHT
        if attempt.state is not AttemptState.STOPPED or has_failed:
            continue
        if world.kueue and world.kueue.records[attempt.workload_name].evicted_at is not None:
            continue  # Kueue may start the Job again before Evenkeel has deleted it. Kueue then holds its quota
        job_key = (attempt.namespace, charge.job_id, charge.attempt)
        workload = world.cluster.jobs.get(CLUSTER, {}).get(job_key)
        seconds = world.policy.jobs.lost_node_seconds
        for pod in workload.pods if workload else ():
            # A node may return between the read that its pods are unreachable and the act on that read.
            if world.loop.seconds - world.watched.returned.get(pod.node_name, -math.inf) < _JUST_NOW_SECONDS:
                continue
            node = world.cluster.node(CLUSTER, pod.node_name)
            if pod.node_name and not pod.has_ended and not is_lost(node, world.loop.now(), seconds):
                yield f"{attempt.workload_name} releases its charge while {pod.name} runs on {pod.node_name}"


# ---------------------------------------------------------------- who was interrupted


@invariant_check(
    "interrupted-before-younger",
    "No younger job of the same queue and priority takes the quota of an interrupted job that could start.",
    CheckTrigger.COMMIT,
)
def interrupted_job_starts_first(world: "Simulation", changes: Changes) -> Iterator[str]:
    given_back = world.watched.given_back
    for key, before, _ in changes:
        if before and _is_charge(key) and rows.decode(before, Charge).is_live:
            charge = rows.decode(before, Charge)
            given_back[charge.job_id] = charge
    tree = next((before for key, before, _ in changes if before and key == quota_rows.tree_key()), None)
    sticky = ((tree.doc.get("schedulerState") or {}).get("sticky") or {}).values() if tree else ()
    were = {before.job_id: before for before, _ in _jobs_changed(changes)}
    for charge in _admitted_in(changes):
        younger = were[charge.job_id]
        is_others = AdmissionRequest.of(younger).has_prior_grant or younger.job_id in sticky or charge.is_rented
        for name, had in list(given_back.items()) if not is_others else ():
            job = _job(world, name)
            if job.state is not JobState.PENDING or job.current_attempt != had.attempt:
                del given_back[name]
            elif _comes_before(job, younger, charge, world) and _was_taken(had, charge, world):
                yield f"{younger.job_id} uses the nodes of {name}, which is older and waits"


def _comes_before(job: Job, younger: Job, charge: Charge, world: "Simulation") -> bool:
    """Return whether a waiting job is an older equal of an admitted job, and fits on its nodes."""
    if (job.queue, job.priority, job.cluster) != (younger.queue, younger.priority, younger.cluster):
        return False
    if job.not_before and job.not_before > world.loop.now():
        return False
    team = world.sharing.setup.by_name.get(job.queue) if world.sharing else None
    if team and (
        team.queue.by_use or (team.max_accelerators_per_user is not None and job.submitter != younger.submitter)
    ):
        return False
    request, other = AdmissionRequest.of(job), AdmissionRequest.of(younger)
    if (request.queued_at or request.submitted_at, job.job_id) > (
        other.queued_at or other.submitted_at,
        younger.job_id,
    ):
        return False
    fits = request.nodes <= len(charge.node_names) and request.accelerators_per_node <= other.accelerators_per_node
    asks_alike = (request.instance_types, request.pools, request.tolerations) == (
        other.instance_types,
        other.pools,
        other.tolerations,
    )
    avoided = " ".join(request.avoid)
    is_free_to_go = not any(name.removeprefix("hyperpod-") in avoided for name in charge.node_names)
    has_rental = world.renting is not None and any(row.state for row in world.ledger.of("RENTAL", f"JOB#{job.job_id}"))
    return fits and asks_alike and is_free_to_go and not has_rental


def _was_taken(had: Charge, charge: Charge, world: "Simulation") -> bool:
    """Return whether an admitted job uses nodes or quota that a preempted job needs to resume."""
    if set(had.node_names) & set(charge.node_names):
        return True
    setup, held = (world.sharing.setup if world.sharing else None), held_charges(world)
    if setup is None or not setup.has_teams:
        return False
    before = set(over(setup, (*(other for other in held if other.job_id != charge.job_id), had)))
    return any(surplus not in before for surplus in over(setup, (*held, had)))


# ---------------------------------------------------------------- requests of people


@invariant_check(
    "suspended-until-resumed",
    "A suspended job does not start, and waits again only when a person resumes it.",
    CheckTrigger.COMMIT,
    needs_teams=True,
)
def suspended_stays_suspended(_: "Simulation", changes: Changes) -> Iterator[str]:
    is_resumed = any("#resumed-" in key.sk for key, _, _ in changes)
    for before, after in _jobs_changed(changes):
        if not before.is_suspended or is_resumed:
            continue
        if not after.is_suspended and not after.state.has_ended:
            yield f"{after.job_id} is resumed without a request"
        if after.current_attempt != before.current_attempt:
            yield f"{after.job_id} is suspended but starts"
        if after.state is JobState.PENDING or (
            before.state is JobState.SUSPENDED and not (after.state is before.state or after.state.has_ended)
        ):
            yield f"{after.job_id} is suspended but {after.state}"
