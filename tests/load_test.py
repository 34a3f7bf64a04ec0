"""Concurrent submitters, cycles and workers on one ledger, in a random order of threads; sometimes one of them dies.

The ledger is under test: DynamoDB, or its fake. The nodes and the workflows are in-memory fakes. A worker does what the
workflow of an attempt does, in its order. `python -m tests.load_test --jobs 2000` is the long form, on its own engine.
"""

import argparse
import functools
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from evenkeel.domain.jobs.attempt import Attempt, AttemptState
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.quotas.teams import FleetQuotas, Team, TeamSetup
from evenkeel.ports import Conflict, Ledger, Put, Table, Throttled, Unreachable, Write, get_all
from evenkeel.services.admin import set_quotas
from evenkeel.services.attempts.launch_job import LaunchOutcome
from evenkeel.services.storage import team_setup
from evenkeel.services.tables import job_rows, rows
from tests.fakes.crashes import Crash
from tests.unit.services_jobs import admission_audit
from tests.unit.services_jobs.job_scenario import JobScenario

if TYPE_CHECKING:
    from evenkeel_local.engine import Engine

TEAMS = ("red", "blue", "green")
CLASSES = ("low", "high", "")
GPUS = 8
_RUNS_ON = 0.8
"""Probability that an attempt continues to run when a worker examines it."""


@dataclass
class CommitRecorder:
    """A ledger that records commits, and sometimes kills a caller before or after its commit.

    A commit is recorded at its start. A reader of its effect began later, so the check reports no false violation.
    """

    ledger: Ledger
    deaths: float
    dice: random.Random
    begun: list[tuple[tuple[Write, ...], list[bool]]] = field(default_factory=list)
    died: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ledger, name)

    def commit(self, *writes: Write, client_token: str = "") -> None:
        with self.lock:
            fate = self.dice.random()
            done: list[bool] = []
            self.died += fate < self.deaths
            if fate < self.deaths / 2:
                raise Crash("before a commit")
            self.begun.append((writes, done))
        self.ledger.commit(*writes, client_token=client_token)
        done.append(True)
        if fate < self.deaths:
            raise Crash("after a commit")

    @property
    def commits(self) -> list[tuple[Write, ...]]:
        return [writes for writes, done in self.begun if done]


class _LockedPort:
    """A port of which one method runs at a time."""

    def __init__(self, port: Any) -> None:
        self._port, self._lock = port, threading.RLock()

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._port, name)
        if not callable(attribute):
            return attribute

        def call(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                return attribute(*args, **kwargs)

        return call


@dataclass
class LoadTestResult:
    """Result of a load test."""

    jobs: list[str]
    states: set[JobState]
    faults: list[str]
    errors: list[BaseException]
    attempts: int
    """The number of attempts in the job rows."""
    preempted: int
    died: int
    admissions: int
    """Number of admissions in the recorded commits."""
    seconds: float


@dataclass(frozen=True)
class Load:
    """The size of a load test."""

    jobs: int
    submitters: int = 50
    cycles: int = 4
    """Number of threads that run scheduling cycles."""
    workers: int = 3
    nodes: int = 12
    deaths: float = 0.01
    """Share of the commits that end in a crash."""
    seed: int = 1
    pace_seconds: float = 0.1
    """Longest pause between two submissions of one thread."""
    patience_seconds: float = 300


def run(ledger: Ledger, load: Load) -> LoadTestResult:
    """Submit the jobs from many threads, and run them until all have ended."""
    began = time.monotonic()
    scenario = JobScenario(size=load.nodes)
    world = scenario.world
    witness = CommitRecorder(ledger, 0.0, random.Random(load.seed))
    shared = cast("Any", witness)
    scenario.ledger = world.ledger = shared
    scenario.cluster = world.cluster = _LockedPort(world.cluster)  # type: ignore[assignment]  # the same, one at a time
    world.ids, world.telemetry = cast("Any", _LockedPort(world.ids)), cast("Any", _LockedPort(world.telemetry))
    scenario.workflows = world.workflows = cast("Any", _LockedPort(world.workflows))
    setup = _set_up(scenario, load.nodes)
    witness.deaths = load.deaths
    crowd = _LoadTest(scenario, load)
    threads = [
        *(threading.Thread(target=crowd.guarded, args=(crowd.submit, number)) for number in range(load.submitters)),
        *(threading.Thread(target=crowd.guarded, args=(crowd.schedule, number)) for number in range(load.cycles)),
        *(threading.Thread(target=crowd.guarded, args=(crowd.work, number)) for number in range(load.workers)),
    ]
    random.Random(load.seed).shuffle(threads)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(load.patience_seconds + 30)
    commits = witness.commits
    ended = crowd.read(crowd.jobs).values()
    return LoadTestResult(
        jobs=crowd.jobs,
        states={job.state for job in ended},
        faults=list(admission_audit.broken_limits(commits, setup, GPUS)),
        errors=crowd.errors,
        attempts=sum(job.current_attempt for job in ended),
        preempted=sum("preempted" in scenario.timeline(job) for job in crowd.jobs),
        died=witness.died,
        admissions=sum(
            isinstance(write, Put) and write.row.key.sk.startswith("CHARGE#") and rows.decode(write.row, Charge).is_live
            for writes in commits
            for write in writes
        ),
        seconds=time.monotonic() - began,
    )


def _set_up(scenario: JobScenario, nodes: int) -> TeamSetup:
    members = [{"principal": "arn:aws:iam::111122223333:role/ana"}]
    own = nodes // len(TEAMS) * GPUS
    parts: list[Team | FleetQuotas] = [FleetQuotas(priority_classes={"low": 1, "high": 10})]
    parts += [
        Team.model_validate(
            {
                "name": name,
                "namespace": name,
                "members": members,
                "queue": {
                    "cohort": "fleet",
                    "groups": [{"ml.p5.48xlarge": {"nvidia.com/gpu": own}}],
                    "preemption": {"within": "LowerPriority", "reclaim": "Any"},
                },
            }
        )
        for name in TEAMS
    ]
    for part in parts:
        request = set_quotas.SetQuotasRequest(part=part, expected=0, by="role/Platform", reason="A crowd.")
        set_quotas.run(request, scenario.context())
    return team_setup.load_setup(scenario.ledger).setup


class _LoadTest:
    def __init__(self, scenario: JobScenario, load: Load) -> None:
        self.scenario, self.load = scenario, load
        self.until = time.monotonic() + load.patience_seconds
        self.jobs: list[str] = []
        self.errors: list[BaseException] = []
        self.left = load.submitters
        self.lock = threading.Lock()
        self.at_rest = False

    def guarded(self, work: Callable[..., None], *args: int) -> None:
        try:
            work(*args)
        except BaseException as error:  # noqa: BLE001 - a thread's error is told to the test
            self.errors.append(error)

    @property
    def is_over(self) -> bool:
        return self.at_rest or time.monotonic() > self.until

    def submit(self, number: int) -> None:
        dice = random.Random(self.load.seed * 1000 + number)
        for turn in range(self.load.jobs // self.load.submitters):
            facts = {
                "team": dice.choice(TEAMS),
                "nodes": dice.choice((1, 1, 2)),
                "priority_class": dice.choice(CLASSES),
            }
            job = _again(lambda facts=facts, turn=turn: self.scenario.submit(f"key-{number}-{turn}", **facts))  # type: ignore[misc]
            with self.lock:
                self.jobs.append(job.job_id)
            time.sleep(dice.random() * self.load.pace_seconds)
        with self.lock:
            self.left -= 1

    def schedule(self, number: int) -> None:
        dice = random.Random(number)
        while not self.is_over:
            began = time.monotonic()
            _once(self.scenario.run_scheduling_cycle)
            # All threads share one interpreter: half of the time is for the workers of admitted jobs.
            time.sleep(max(dice.random() * self.load.pace_seconds * 4, time.monotonic() - began))

    def work(self, number: int) -> None:
        dice = random.Random(number)
        while not self.is_over:
            live = self.scenario.ledger.by_state(Table.JOBS, "ATTEMPT#LIVE", limit=200).rows
            own_attempts = [rows.decode(row, Attempt) for row in live if hash(row.key.pk) % self.load.workers == number]
            jobs = self.read(attempt.job_id for attempt in own_attempts)
            for attempt in own_attempts:
                _once(functools.partial(self._move, jobs[attempt.job_id], attempt, dice))
            if not live and not self.left and not self.waits():
                self.at_rest = all(job.state.has_ended for job in self.read(self.jobs).values())
            time.sleep(dice.random() * self.load.pace_seconds)

    def waits(self) -> bool:
        """Return whether a job is still pending, in one query; reading all jobs takes many."""
        return bool(self.scenario.ledger.by_state(Table.JOBS, f"JOB#{JobState.PENDING}", limit=1).rows)

    def read(self, names: Iterable[str]) -> dict[str, Job]:
        stored = get_all(self.scenario.ledger, map(job_rows.job_key, names)).values()
        return {job.job_id: job for job in (rows.decode(row, Job) for row in stored)}

    def _move(self, job: Job, attempt_read: Attempt, dice: random.Random) -> None:
        """Advance an attempt by one step, or let it run for a while."""
        scenario, job_id, attempt = self.scenario, job.job_id, attempt_read.attempt
        if job.stop_of(attempt):
            scenario.stop(job_id, attempt)
        elif not attempt_read.launched_at:
            launched = scenario.launch(job_id, attempt).outcome
            if launched is LaunchOutcome.LAUNCHED:
                scenario.world.cluster.run_pods(job_id, attempt)
                scenario.mark_running(job_id, attempt)
            if launched is not LaunchOutcome.GIVE_UP:  # the attempt stopped after its job was read
                return
        elif dice.random() < _RUNS_ON:
            return
        else:
            if attempt_read.state is not AttemptState.RUNNING:
                scenario.mark_running(job_id, attempt)
            scenario.world.cluster.finish_pods(job_id, attempt)
        scenario.settle(job_id, attempt)


def _once(step: Callable[[], Any]) -> None:
    """Run a step once. After a crash or a conflict, the caller's next round runs it again."""
    try:
        step()
    except (Crash, Conflict, Throttled, Unreachable):
        time.sleep(0.01)


def _again(step: Callable[[], Any]) -> Any:
    """Repeat a step until it succeeds, as a caller does."""
    while True:
        try:
            return step()
        except (Crash, Conflict, Throttled, Unreachable):
            time.sleep(0.01)


def ledger_of(engine: "Engine") -> Ledger:
    """Return a ledger with empty tables on an engine, for a caller with no other permissions."""
    from evenkeel_local.identities import create_deployer, make_user
    from tests.contract.test_ledger import make_tables

    statement = {"Effect": "Allow", "Action": "dynamodb:*", "Resource": "*"}
    return make_tables(make_user(create_deployer(engine), "crowd", [statement]).client("dynamodb"), "crowd")


def main() -> int:
    """Run a load test on its own engine. Return 0 if every check passed."""
    from evenkeel_local.engine import Engine  # the crowd itself runs without one

    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--jobs", type=int, default=2000, help="how many (2000)")
    options.add_argument("--seed", type=int, default=1, help="of teams, sizes, classes and deaths (1)")
    options.add_argument("--minutes", type=float, default=60, help="after which it is given up (60)")
    args = options.parse_args()
    with tempfile.TemporaryDirectory() as folder, Engine.start(Path(folder)) as engine:
        load = Load(args.jobs, nodes=24, seed=args.seed, patience_seconds=args.minutes * 60)
        result = run(ledger_of(engine), load)
    lost = len(result.jobs) != args.jobs or result.states != {JobState.SUCCEEDED}
    again = result.admissions != result.attempts
    for fault in (*result.faults, *map(repr, result.errors)):
        print(f"  {fault}")
    print(
        f"crowd: {len(result.jobs)} jobs in {result.seconds:.0f} s, {result.attempts} attempts, "
        f"{result.preempted} preempted, {result.died} deaths; {len(result.faults)} broken limits, "
        f"{'some' if lost else 'none'} lost, {'some' if again else 'none'} started twice"
    )
    return 1 if result.faults or result.errors or lost or again else 0


if __name__ == "__main__":
    sys.exit(main())
