"""The net below all nets: compare ledger and world, and repeat what a crash left half done, by the same services.

Each step stands alone: one that fails is reported and comes again in the next round, and the others go on.
"""

from collections.abc import Callable, Sequence

from evenkeel.domain.health.incidents import IncidentState
from evenkeel.domain.policy import Mode, Policy
from evenkeel.domain.scheduling.jobs import JobState
from evenkeel.domain.values import Value
from evenkeel.events import kubernetes_node
from evenkeel.ports import EvenkeelError, Table
from evenkeel.services import evaluate_waits, heartbeats, locks, watch_cluster
from evenkeel.services.patient_answers import PatientWaitAnswers
from evenkeel.services.sweep import arrivals, attempts, incidents, memory, rentals, signals
from evenkeel.services.sweep.round import WRITER, Round, World

LOCK = "sweep"
_LOCK_SECONDS = 60
_COUNTED = 1000
"""Rows that a gauge counts; past it the figure is a lower bound."""


class Outcome(Value):
    """What one round did."""

    outcome: str
    """`SWEPT`, or `HELD_BY_ANOTHER`."""
    mended: dict[str, int] = {}
    """What had been left half done, by step: the miss rate of everything above this net."""
    failed: tuple[str, ...] = ()
    """Steps that failed, and why."""


def run(world: World, *, clusters: Sequence[str], policy: Policy, mode: Mode, drills_may_act: bool) -> Outcome:
    """Sweep once.

    Idempotent: yes, each step is, and a round that finds nothing amiss changes nothing but the heartbeat.
    """
    now = world.clock.now()
    lock = locks.take(world.ledger, LOCK, world.ids.new("op"), seconds=_LOCK_SECONDS, now=now)
    if lock is None:
        return Outcome(outcome="HELD_BY_ANOTHER")
    sweep = Round(world, clusters, policy, mode, lock.notes, now, drills_may_act=drills_may_act)
    mended: dict[str, int] = {}
    failed: list[str] = []
    held: locks.Lock | None = lock
    for name, step in STEPS:
        held = locks.renew(world.ledger, held, now=world.clock.now()) if held else None
        if held is None:
            failed.append(f"{name}: the lock was lost")
            break
        if not sweep.is_due(name):
            continue
        try:
            count = step(sweep)
        except EvenkeelError as error:
            failed.append(f"{name}: {type(error).__name__}")
            world.telemetry.count("SweepStepsFailed", step=name)
            world.telemetry.warning(
                "A step of the sweep failed", step=name, error=type(error).__name__, detail=str(error)
            )
            continue
        if count:
            mended[name] = count
            world.telemetry.count("SweepMended", count, step=name)
    if held is not None:
        locks.release(world.ledger, held, now=world.clock.now(), notes=sweep.notes)
    heartbeats.beat(world.ledger, world.telemetry, WRITER, world.clock.now())
    return Outcome(outcome="SWEPT", mended=mended, failed=tuple(failed))


def answer_waits(sweep: Round) -> int:
    """Judge every open wait, and repeat the answers that were recorded and never delivered.

    While somebody watches, an answer that has just fallen due is the watch's to ask for.
    """
    world = sweep.world
    answers = PatientWaitAnswers(
        world.wait_answers,
        world.clock,
        sweep.notes.pop("asked", {}),
        leaves_first_to_watch=locks.is_held(world.ledger, watch_cluster.LOCK, now=sweep.now),
    )
    evaluate_waits.run(
        ledger=world.ledger,
        cluster=world.cluster,
        provider=world.provider,
        wait_answers=answers,
        telemetry=world.telemetry,
        policy=sweep.policy,
        now=sweep.now,
        repeat_answered=True,
    )
    sweep.notes["asked"] = answers.asked
    return answers.requests


def measure(sweep: Round) -> int:
    """Emit how much of everything there is."""
    world = sweep.world
    for state in JobState:
        if state.has_ended:
            continue
        world.telemetry.count(f"Jobs{state.capitalize()}", _count(sweep, Table.JOBS, f"JOB#{state}"))
    world.telemetry.count("IncidentsOpen", len(sweep.open_incidents))
    blocked = sum(incident.state is IncidentState.BLOCKED for incident in sweep.open_incidents)
    world.telemetry.count("IncidentsBlocked", blocked)
    ready = sum(node.kubernetes is not None and node.kubernetes.is_ready for node in sweep.nodes)
    world.telemetry.count("NodesReady", ready)
    world.telemetry.count("NodesNotReady", len(sweep.nodes) - ready)
    world.telemetry.count("NodesLemon", sum(node.life.key in sweep.lemons for node in sweep.nodes))
    stale = [kubernetes_node.stale_conditions(node, sweep.policy.watch, sweep.now) for node in sweep.kubernetes]
    world.telemetry.count("ConditionsStale", sum(map(len, stale)))
    return 0


def _count(sweep: Round, table: Table, state: str) -> int:
    count, cursor = 0, None
    while count < _COUNTED and sweep.pages_left > 0:
        sweep.pages_left -= 1
        page = sweep.world.ledger.by_state(table, state, cursor=cursor)
        count, cursor = count + len(page.rows), page.cursor
        if cursor is None:
            break
    return count


def ask_for_pass(sweep: Round) -> int:
    """Have the queue looked at: a lost request must not leave a job waiting."""
    if sweep.world.ledger.by_state(Table.JOBS, f"JOB#{JobState.PENDING}", limit=1).rows:
        sweep.world.passes.request("sweep")
    return 0


STEPS: tuple[tuple[str, Callable[[Round], int]], ...] = (
    ("fleet", memory.refresh_fleet),
    ("kueue", memory.refresh_kueue),
    ("early", signals.tell_early),
    ("facts", signals.tell_facts),
    ("unresolved", signals.retry_unresolved),
    ("incidents", incidents.resume_incidents),
    ("rollbacks", incidents.take_back_jobs),
    ("ghosts", incidents.close_ghosts),
    ("registers", incidents.reconcile_registers),
    ("attempts", attempts.resume_attempts),
    ("workloads", attempts.clear_workloads),
    ("rentals", rentals.resume_rentals),
    ("waits", answer_waits),
    ("arrivals", arrivals.release_arrivals),
    ("gauges", measure),
    ("pass", ask_for_pass),
)
"""The steps in order; each returns how much it mended."""
