"""`python -m bench.queues`: the queue scheduler in virtual time: decisions per second and waiting times.

    nominations   jobs wait in the queues of 100 teams: decisions per second, each with its whole record
    lengths       the same with the shortest and the longest queues alternately: how much more a decision costs
    generators    the workloads of Kueue's own benchmark: makespan against the bound set by capacity
    philly        a trace of a real cluster: waits by team, with and without sharing

Times are processor time of this process. Other programs affect it only through the caches.
"""

from __future__ import annotations

import argparse
import csv
import gc
import heapq
import itertools
import random
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.cpu_usage import Usage
from bench.figures import quantile, ratio
from bench.origin import describe_origin, write_figures
from bench.scale.client_costs import REFERENCE_SECONDS, reference_loop
from evenkeel.domain.kueue.cycle_decisions import CycleDecision, Result
from evenkeel.domain.kueue.objects import (
    Cohort,
    Flavor,
    FlavorQuotas,
    PodSet,
    PreemptionPolicy,
    PreemptionRules,
    Queue,
    Quota,
    ResourceGroup,
    Workload,
)
from evenkeel.domain.kueue.scheduler import Scheduler
from evenkeel.domain.kueue.snapshot import SchedulerRules
from evenkeel.runtime import wiring

TRACES: Final = Path(__file__).parent / "traces"
GPU: Final = "nvidia.com/gpu"
_BOTH: Final = PreemptionRules(PreemptionPolicy.LOWER_PRIORITY, PreemptionPolicy.ANY)


# ---------------------------------------------------------------- nominations

LANES: Final = ("nominations", "lengths", "generators", "philly")
TEAMS: Final = 100
SHORTEST: Final = 1_000
"""Smallest number of queued jobs."""
COLD: Final = 500
COHORTS: Final = 10
_DECISIONS_PER_ROUND: Final = 300
"""Decisions of one length in a round of the lane lengths. The speed of the machine hardly changes within a round."""
_UNCOUNTED_ROUNDS: Final = 5
"""Rounds in which the fleet fills."""


@dataclass
class QueueThroughput:
    """Speed of the decisions with one number of queued jobs."""

    queued: int
    fair: bool
    submitted_per_second: float = 0.0
    nominations: int = 0
    admissions: int = 0
    shape_parked: int = 0
    """Jobs that were parked because a job of the same shape was; they have no decision and count in no other figure."""
    seconds: float = 0.0
    cold_nominations: int = 0
    """Decisions of a newly filled scheduler: its caches and the fleet are empty."""
    cold_seconds: float = 0.0
    loop_seconds: float = 0.0
    """Processor seconds of the fixed loop, just before and after the decisions: the smaller of the two."""

    @property
    def reference_per_second(self) -> float:
        """Decisions per second at the reference processor: their ratio to the fixed loop, not the machine, counts."""
        return self.nominations_per_second * self.loop_seconds / REFERENCE_SECONDS

    @property
    def nominations_per_second(self) -> float:
        return self.nominations / self.seconds

    def to_json(self) -> dict[str, Any]:
        return {
            "queued": self.queued,
            "fairSharing": self.fair,
            "coldNominationsPerSecond": round(self.cold_nominations / self.cold_seconds),
            "submittedPerSecond": round(self.submitted_per_second),
            "nominations": self.nominations,
            "admissions": self.admissions,
            "shapeParked": self.shape_parked,
            "nominationsPerSecond": round(self.nominations_per_second),
            "referencePerSecond": round(self.reference_per_second),
            "admissionsPerSecond": round(self.admissions / self.seconds),
        }


def build_fleet(*, fair: bool) -> Scheduler:
    """Return 100 teams in ten cohorts of one fleet, each with 64 devices of two flavors."""
    resources = ("cpu", "memory", GPU)
    quotas = {"cpu": Quota(192_000 * 4), "memory": Quota(2**41 * 4), GPU: Quota(32)}
    group = ResourceGroup(resources, (FlavorQuotas("p5", quotas), FlavorQuotas("p4d", quotas)))
    queues = [Queue(f"team-{n:03}", f"cohort-{n % COHORTS}", (group,), preemption=_BOTH) for n in range(TEAMS)]
    cohorts = [Cohort(f"cohort-{n}", "fleet") for n in range(COHORTS)]
    return Scheduler(queues, cohorts, [Flavor("p5"), Flavor("p4d")], SchedulerRules(fair_sharing=fair))


class NominationRun:
    """Decisions on the heads of full queues, while jobs end. A new job replaces each admitted one.

    So the queues keep their length, and all sizes get the same mix of decisions.
    """

    def __init__(self, queued: int, *, fair: bool) -> None:
        """Fill the queues."""
        self._rng = random.Random(queued)
        self.scheduler = build_fleet(fair=fair)
        self._running: list[str] = []
        self._submitted, self._now = queued, 0.0
        self.nominations = self.admissions = 0
        self.seconds = 0.0
        """Processor seconds of the decisions, without the submissions that replace admitted jobs."""
        jobs = [_waiting_job(number, self._rng) for number in range(queued)]
        gc.collect()
        began = time.process_time()
        for job in jobs:
            self.scheduler.submit(job)
        self.submit_seconds = time.process_time() - began

    def decide(self, wanted: int) -> None:
        """Decide until this many more heads have a decision."""
        goal = self.nominations + wanted
        while self.nominations < goal:
            began = time.process_time()
            admitted = self._decide_once()
            self.seconds += time.process_time() - began
            for number in range(self._submitted, self._submitted + admitted):
                self.scheduler.submit(_waiting_job(number, self._rng))
            self._submitted += admitted

    def start_again(self) -> None:
        """Count from here."""
        self.nominations, self.admissions, self.seconds = 0, 0, 0.0

    def _decide_once(self) -> int:
        """Run a Kueue cycle, and end some running jobs; return how many jobs it admitted.

        Raises:
            ValueError: no job waits and none runs, so no cycle could decide anything.
        """
        self._now += 1.0
        decisions, running, admitted = self.scheduler.cycle(self._now), self._running, 0
        if not decisions and not running:
            raise ValueError("The queues are empty: submit at least one job.")
        self.nominations += len(decisions)
        for decision in decisions:
            if decision.result is Result.ADMITTED:
                admitted += 1
                running.append(decision.workload.workload_id)
            for victim in decision.victims:
                self.scheduler.requeue_evicted(victim.workload_id)
        self.admissions += admitted
        for _ in range(min(20, len(running))):
            index = self._rng.randrange(len(running))
            running[index], running[-1] = running[-1], running[index]
            self.scheduler.release(running.pop())
        return admitted


def measure_nominations(queued: int, wanted: int, *, fair: bool) -> QueueThroughput:
    """Measure decisions with one number of queued jobs, and the submissions separately."""
    run, speed = NominationRun(queued, fair=fair), QueueThroughput(queued, fair)
    speed.submitted_per_second = queued / run.submit_seconds
    wiring.collect_less_garbage()  # as a function does; a million waiting jobs are no garbage
    speed.loop_seconds = reference_loop()
    run.decide(COLD)
    speed.cold_nominations, speed.cold_seconds = run.nominations, run.seconds
    run.start_again()
    run.decide(wanted - COLD)
    speed.nominations, speed.admissions, speed.seconds = run.nominations, run.admissions, run.seconds
    speed.loop_seconds = min(speed.loop_seconds, reference_loop())
    parked = (len(queue.by_state()[1]) - len(queue.parked_shapes) for queue in run.scheduler.pending.values())
    speed.shape_parked = sum(max(0, count) for count in parked)
    gc.unfreeze()
    return speed


def compare_lengths(short: int, long: int, rounds: int, *, fair: bool) -> dict[str, Any]:
    """Measure alternately on short and on long queues: the speed of the machine affects both alike."""
    runs = {queued: NominationRun(queued, fair=fair) for queued in (short, long)}
    wiring.collect_less_garbage()
    seconds: dict[int, list[float]] = {short: [], long: []}
    for number in range(rounds + _UNCOUNTED_ROUNDS):
        for queued in (short, long) if number % 2 else (long, short):
            run = runs[queued]
            run.start_again()
            run.decide(_DECISIONS_PER_ROUND)
            if number >= _UNCOUNTED_ROUNDS:
                seconds[queued].append(run.seconds / run.nominations)
    gc.unfreeze()
    compared = ratio(seconds[long], seconds[short])
    return {
        "fairSharing": fair,
        "short": short,
        "long": long,
        "rounds": rounds,
        "decisionsPerRound": _DECISIONS_PER_ROUND,
        "ratio": round(compared.p50, 2),
        "low": round(compared.p50_low, 2),
        "high": round(compared.p50_high, 2),
        "p99": round(compared.p99, 2),
    }


def _waiting_job(number: int, rng: random.Random) -> Workload:
    pods = PodSet(
        "main",
        rng.choice((1, 1, 1, 2, 4, 8, 8, 16)),
        {"cpu": 20_000 + rng.randrange(4_000), "memory": 2**36, GPU: 1},
    )
    priority = rng.randrange(5) * 100
    return Workload(
        f"job-{number:07}", f"team-{number % TEAMS:03}", (pods,), priority=priority, created_at=float(number)
    )


# ---------------------------------------------------------------- virtual time


@dataclass(frozen=True, slots=True)
class Arrival:
    """A future job and its run time after its admission."""

    at: float
    workload: Workload
    seconds: float
    kind: str


@dataclass
class ReplayResult:
    """Result of a replay."""

    makespan: float = 0.0
    waits: dict[str, list[float]] = field(default_factory=dict)
    """Seconds from arrival to the last admission, by kind."""
    evictions: int = 0
    nominations: int = 0
    cpu_seconds: float = 0.0


def replay_arrivals(scheduler: Scheduler, arrivals: Iterable[Arrival]) -> ReplayResult:
    """Run every job of the trace. Decisions take no virtual time; an evicted job restarts from the beginning."""
    ran, clock = ReplayResult(), time.process_time()
    coming = {arrival.workload.workload_id: arrival for arrival in arrivals}
    agenda = [(arrival.at, 0, arrival.workload.workload_id) for arrival in coming.values()]
    heapq.heapify(agenda)
    ends: dict[str, float] = {}
    while agenda:
        now = agenda[0][0]
        while agenda and agenda[0][0] <= now:
            at, is_end, name = heapq.heappop(agenda)
            if not is_end:
                scheduler.submit(coming[name].workload)
            elif ends.get(name) == at:  # otherwise the job was evicted in between
                scheduler.release(name)
                del ends[name]
                ran.makespan = at
                waited = at - coming[name].seconds - coming[name].at
                ran.waits.setdefault(coming[name].kind, []).append(max(0.0, waited))
        while decisions := scheduler.cycle(now):
            ran.nominations += len(decisions)
            if not _carry_out(scheduler, decisions, now, coming, ends, agenda, ran):
                break
    ran.cpu_seconds = time.process_time() - clock
    return ran


def _carry_out(
    scheduler: Scheduler,
    decisions: list[CycleDecision],
    now: float,
    coming: dict[str, Arrival],
    ends: dict[str, float],
    agenda: list[tuple[float, int, str]],
    ran: ReplayResult,
) -> bool:
    """Start the admitted jobs and stop the victims; return whether another cycle could change anything."""
    may_change = False
    for decision in decisions:
        name = decision.workload.workload_id
        if decision.result is Result.ADMITTED:
            ends[name] = now + coming[name].seconds
            heapq.heappush(agenda, (ends[name], 1, name))
        for victim in decision.victims:
            ran.evictions += 1
            ends.pop(victim.workload_id, None)
            scheduler.requeue_evicted(victim.workload_id)
        may_change = may_change or decision.result is not Result.NO_CANDIDATES
    return may_change


# ---------------------------------------------------------------- Kueue's generators

SHAPES: Final = {
    # cohorts, queues in each, then: kind, count, interval, run time, priority, units
    "baseline": (
        5,
        6,
        (("small", 350, 0.1, 0.2, 50, 1), ("medium", 100, 0.5, 0.5, 100, 5), ("large", 50, 1.2, 1.0, 200, 20)),
    ),
    "large-scale": (
        10,
        100,
        (("small", 35, 0.06, 0.15, 50, 1), ("medium", 11, 0.3, 0.35, 100, 5), ("large", 4, 0.7, 0.7, 200, 20)),
    ),
}
NOMINAL: Final = 20


PREEMPT_AFTER_SECONDS: Final = (0.0, 0.25, 0.5, 1.0, 2.0, 5.0)
"""Values of Evenkeel's own setting `preemptAfterSeconds`. 0 is Kueue's order."""


def build_generator(name: str, rules: SchedulerRules | None = None) -> tuple[Scheduler, list[Arrival], float]:
    """Return the queues and jobs of a generator, and the makespan that capacity alone allows.

    Source: test/performance/scheduler/configs in kubernetes-sigs/kueue.
    """
    cohorts, queues_each, kinds = SHAPES[name]
    names = [(f"cohort-{c}", f"queue-{c}-{q}") for c in range(cohorts) for q in range(queues_each)]
    group = ResourceGroup(("cpu",), (FlavorQuotas("rf", {"cpu": Quota(NOMINAL * 1000, 100_000)}),))
    queues = [Queue(queue, cohort, (group,), preemption=_BOTH) for cohort, queue in names]
    arrivals = [
        Arrival(
            (number + 1) * interval,
            Workload(
                f"{queue}-{kind}-{number:04}",
                queue,
                (PodSet("main", 1, {"cpu": units * 1000}),),
                priority=priority,
                created_at=(number + 1) * interval,
            ),
            seconds,
            kind,
        )
        for _, queue in names
        for kind, count, interval, seconds, priority, units in kinds
        for number in range(count)
    ]
    work = sum(count * seconds * units for _, count, _, seconds, _, units in kinds) / NOMINAL
    last = max(count * interval + seconds for _, count, interval, seconds, _, _ in kinds)
    return Scheduler(queues, (), [Flavor("rf")], rules or SchedulerRules()), arrivals, max(work, last)


# ---------------------------------------------------------------- the trace


def build_philly_trace(
    *, shares: bool, load: float = 0.85, seed: int = 1
) -> tuple[Scheduler, list[Arrival], dict[str, int]]:
    """Return teams and jobs of the trace, and each team's devices: as many as its own load needs, in eights."""
    rng = random.Random(seed)
    with (TRACES / "philly_runtime_quantiles.csv").open(encoding="utf-8") as file:
        lengths = [float(line) for line in list(file)[1:]]
    with (TRACES / "philly_arrivals.csv").open(encoding="utf-8") as file:
        rows = [(row["vc"], float(row["submit_s"]), int(row["gpus"])) for row in csv.DictReader(file)]
    arrivals, work, span = [], dict.fromkeys(sorted({vc for vc, _, _ in rows}), 0.0), dict[str, float]()
    for number, (vc, at, gpus) in enumerate(rows):
        position = rng.random() * (len(lengths) - 1)
        low = int(position)
        seconds = max(1.0, lengths[low] + (position - low) * (lengths[low + 1] - lengths[low]))
        workload = Workload(f"job-{number:05}", vc, (PodSet("main", 1, {GPU: gpus}),), created_at=at)
        arrivals.append(Arrival(at, workload, seconds, vc))
        work[vc] += gpus * seconds
        span[vc] = max(span.get(vc, 1.0), at)
    largest = {
        vc: max(arrival.workload.pod_sets[0].requests[GPU] for arrival in arrivals if arrival.kind == vc) for vc in work
    }
    held = {
        vc: max(8, largest[vc], -(-int(work[vc] / span[vc] / load) // 8) * 8 if span[vc] > 86_400 else 8) for vc in work
    }
    queues = [
        Queue(
            vc,
            "fleet",
            (ResourceGroup((GPU,), (FlavorQuotas("gpu", {GPU: Quota(amount, None if shares else 0)}),)),),
            preemption=_BOTH if shares else PreemptionRules(PreemptionPolicy.LOWER_PRIORITY),
        )
        for vc, amount in held.items()
    ]
    return Scheduler(queues, (), [Flavor("gpu")], SchedulerRules(fair_sharing=shares)), arrivals, held


# ---------------------------------------------------------------- the command


def main(words: Sequence[str] | None = None) -> int:
    """Measure and print; write the figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.queues", description="The queue scheduler in virtual time.")
    parser.add_argument("lanes", nargs="*", choices=LANES, default=[])
    parser.add_argument("--most", type=int, default=1_000_000, help="largest number of queued jobs")
    parser.add_argument("--decisions", type=int, default=20_000, help="decisions per number of queued jobs")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each nominations lane; the best counts")
    parser.add_argument("--rounds", type=int, default=60, help="rounds of the lane lengths")
    parser.add_argument("--output", type=Path, help="where the figures go, as JSON")
    arguments = parser.parse_args(words)
    lanes = arguments.lanes or LANES
    before, document = Usage.now(), describe_origin("bench.queues", words, [1])
    if "nominations" in lanes:
        document["nominations"] = _print_nominations(arguments.most, arguments.decisions, arguments.repeats)
    if "lengths" in lanes:
        document["lengths"] = _print_lengths(arguments.most, arguments.rounds)
    if "generators" in lanes:
        document["generators"] = _print_generators()
    if "philly" in lanes:
        document["philly"] = _print_philly()
    document["othersShare"] = round(Usage.now().others_since(before), 2)
    print(f"\nOther programs used {document['othersShare']:.0%} of the processors meanwhile.")
    write_figures(arguments.output, document)
    return 0


def _print_nominations(most: int, wanted: int, repeats: int) -> list[dict[str, Any]]:
    print(f"\nNOMINATIONS, {TEAMS} teams, two flavors, three resources, one process, best of {repeats}\n")
    print(
        f"  {'queued':>9}  {'rules':<9}{'decide/s':>11}{'reference':>11}{'cold':>9}"
        f"{'admissions/s':>14}{'submits/s':>11}{'shape-parked':>14}"
    )
    documents = []
    for fair in (False, True):
        for queued in (10**power for power in range(3, 7) if 10**power <= most):
            runs = [measure_nominations(queued, wanted, fair=fair).to_json() for _ in range(repeats)]
            document = {name: max(run_figures[name] for run_figures in runs) for name in runs[0]}
            # A disturbed loop makes this figure too large, so the largest figure is not the best.
            document["referencePerSecond"] = round(
                statistics.median(run_figures["referencePerSecond"] for run_figures in runs)
            )
            documents.append(document)
            print(
                f"  {queued:>9}  {'fair' if fair else 'classical':<9}{document['nominationsPerSecond']:>11}"
                f"{document['referencePerSecond']:>11}"
                f"{document['coldNominationsPerSecond']:>9}"
                f"{document['admissionsPerSecond']:>14}{document['submittedPerSecond']:>11}{document['shapeParked']:>14}",
                flush=True,
            )
    return documents


def _print_lengths(most: int, rounds: int) -> list[dict[str, Any]]:
    print(f"\nLENGTHS, cost of a decision with {most:,} queued jobs over its cost with {SHORTEST:,}\n")
    documents = []
    for fair in (False, True):
        document = compare_lengths(SHORTEST, most, rounds, fair=fair)
        documents.append(document)
        print(
            f"  {'fair' if fair else 'classical':<9}  {document['ratio']:.2f}"
            f" (95 %: {document['low']:.2f} to {document['high']:.2f})   p99 {document['p99']:.2f}",
            flush=True,
        )
    return documents


def _print_generators() -> list[dict[str, Any]]:
    print("\nKUEUE'S GENERATORS, virtual time; an evicted job restarts from the beginning\n")
    print(
        f"  {'':<11}{'after s':>8}{'jobs':>6}{'makespan':>10}{'bound':>7}{'ratio':>7}{'evicted':>9}{'decided':>10}"
        f"{'cpu s':>7}"
        "  mean wait s"
    )
    documents = []
    for shape, after in itertools.product(SHAPES, PREEMPT_AFTER_SECONDS):
        scheduler, arrivals, bound = build_generator(shape, SchedulerRules(preempt_after_seconds=after))
        ran = replay_arrivals(scheduler, arrivals)
        waits = {kind: statistics.fmean(kind_waits) for kind, kind_waits in ran.waits.items()}
        figures = {
            "shape": shape,
            "preemptAfterSeconds": after,
            "jobs": len(arrivals),
            "makespan": round(ran.makespan, 2),
            "bound": round(bound, 2),
            "evictions": ran.evictions,
            "decisions": ran.nominations,
            "cpuSeconds": round(ran.cpu_seconds, 1),
            "meanWaits": {kind: round(wait, 2) for kind, wait in waits.items()},
        }
        documents.append(figures)
        mean_waits = "  ".join(f"{kind} {wait:.1f}" for kind, wait in waits.items())
        print(
            f"  {shape:<11}{after:>8}{len(arrivals):>6}{ran.makespan:>10.1f}{bound:>7.1f}{ran.makespan / bound:>7.2f}"
            f"{ran.evictions:>9}{ran.nominations:>10}{ran.cpu_seconds:>7.1f}  {mean_waits}",
            flush=True,
        )
    return documents


def _print_philly() -> dict[str, Any]:
    print("\nPHILLY, 15,264 jobs of 15 teams, run times drawn with seed 1; hours waited, mean and 90 %\n")
    runs = {}
    for name, shares in (("alone", False), ("sharing", True)):
        scheduler, arrivals, held = build_philly_trace(shares=shares)
        runs[name] = replay_arrivals(scheduler, arrivals)
    print(f"  {'team':<8}{'gpus':>6}{'jobs':>6}{'alone':>16}{'sharing':>16}")
    document: dict[str, Any] = {"teams": {}, "evictions": runs["sharing"].evictions}
    for vc, amount in held.items():
        cells, row = "", {"gpus": amount}
        for name, ran in runs.items():
            waits = [seconds / 3600 for seconds in ran.waits[vc]]
            row[name] = {"mean": round(statistics.fmean(waits), 2), "p90": round(quantile(waits, 0.9), 2)}  # type: ignore[assignment]
            cells += f"{statistics.fmean(waits):>9.1f}{quantile(waits, 0.9):>7.1f}"
        document["teams"][vc] = row
        print(f"  {vc:<8}{amount:>6}{len(waits):>6}{cells}")
    cells = ""
    for name, ran in runs.items():
        waits = [wait / 3600 for seconds in ran.waits.values() for wait in seconds]
        document[name] = {"mean": round(statistics.fmean(waits), 2), "p90": round(quantile(waits, 0.9), 2)}
        cells += f"{statistics.fmean(waits):>9.1f}{quantile(waits, 0.9):>7.1f}"
    print(f"  {'all':<8}{sum(held.values()):>6}{len(waits):>6}{cells}")
    print(f"  {runs['sharing'].evictions} evictions while sharing")
    return document


if __name__ == "__main__":
    sys.exit(main())
