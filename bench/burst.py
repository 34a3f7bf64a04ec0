"""Burst and placement in virtual time: the cost of the placement rules on a real trace, against three simpler policies.

    python -m bench.burst                     tuning, measurement and frontier (some minutes; see --help)
    python -m bench.burst --seeds 2 --quick   a short run

All inputs are in `bench/setups/burst.json`, which was fixed before the first run. The decisions come from the
service: `choose_pool`, `decide_migration`, `expected_starts`, `Shortages`. Nodes, markets and jobs are simulated.
A seed gives every policy the same jobs, capacity and interruptions.
"""

from __future__ import annotations

import argparse
import csv
import functools
import hashlib
import heapq
import itertools
import json
import math
import random
import statistics
import sys
import time
from bisect import insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from bench.origin import describe_origin, write_figures
from evenkeel.domain.capacity.compatibility import PoolEnvironment
from evenkeel.domain.capacity.pools import LaunchDelay, Market, Pool
from evenkeel.domain.capacity.shortages import Shortages
from evenkeel.domain.capacity.start_estimates import (
    RunningUse,
    WaitingUse,
    expected_starts,
    expected_wait,
    remaining_seconds,
)
from evenkeel.domain.economics import money
from evenkeel.domain.renting.cost import CandidatePool, JobDemand, RiskLimits, SpendLimits, opportunity_cost
from evenkeel.domain.renting.migration import (
    MigrationAction,
    MigrationCandidate,
    MigrationFacts,
    MigrationTarget,
    decide_migration,
)
from evenkeel.domain.renting.placement import PlacementAction, PlacementFacts, choose_pool

Json = dict[str, Any]
HERE = Path(__file__).parent
HOUR = 3600.0
BEGIN = datetime(2026, 1, 5, tzinfo=UTC)
_RESAMPLES = 2000


def load_setup() -> Json:
    """Return the inputs that were fixed before the first run."""
    setup: Json = json.loads((HERE / "setups" / "burst.json").read_text(encoding="utf-8"))
    return setup


def setup_hash() -> str:
    """Return the SHA-256 of the setup; figures carry it."""
    return hashlib.sha256((HERE / "setups" / "burst.json").read_bytes()).hexdigest()


# ---------------------------------------------------------------- the jobs


@dataclass(slots=True)
class TraceJob:
    """A job of the trace and its progress."""

    name: str
    team: str
    kind: str
    at: float
    nodes: int
    per_node: int
    run: float
    estimate: float
    saves: bool
    value: int
    """Price of an hour of delay, in micro-dollars."""
    done: float = 0.0
    starts: int = 0
    ended: float = -1.0

    @property
    def gpus(self) -> int:
        return self.nodes * self.per_node

    @property
    def guess(self) -> float:
        """Expected remaining seconds."""
        return remaining_seconds(self.estimate, self.done)


@functools.cache
def _trace() -> tuple[dict[str, list[tuple[float, int]]], list[float]]:
    arrivals: dict[str, list[tuple[float, int]]] = {}
    with (HERE / "traces" / "philly_arrivals.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            arrivals.setdefault(row["vc"], []).append((float(row["submit_s"]), int(row["gpus"])))
    with (HERE / "traces" / "philly_runtime_quantiles.csv").open(encoding="utf-8") as file:
        lengths = [float(line) for line in list(file)[1:]]
    return arrivals, lengths


class _DrawnJob(NamedTuple):
    """A job as it is drawn, before its class has a price of delay."""

    vc: str
    kind: str
    at: float
    gpus: int
    run: float
    wrong: float
    saves: bool


@functools.lru_cache(maxsize=16)
def _drawn_jobs(law_without_prices: str, seed: int, sigma: float) -> tuple[_DrawnJob, ...]:
    """Draw one month of jobs, in order of arrival. The policies of a seed share the draw."""
    rng, law = random.Random(f"{seed}/jobs"), json.loads(law_without_prices)
    arrivals, lengths = _trace()
    window = law["days"] * 86_400
    kinds = list(law["classes"])
    weights = [law["classes"][kind]["share"] for kind in kinds]
    jobs = []
    for vc in sorted(arrivals):
        span = arrivals[vc][-1][0]
        if span < window:
            continue
        offset = rng.random() * span
        for at, gpus in arrivals[vc]:
            moment = (at - offset) % span
            position = rng.random() * (len(lengths) - 1)
            low = int(position)
            run = lengths[low] + (position - low) * (lengths[low + 1] - lengths[low])
            run = min(max(run, 1.0), law["maxRunSeconds"])
            kind = rng.choices(kinds, weights)[0]
            wrong = math.exp(rng.gauss(0, 1) * sigma)
            saves = rng.random() < law["classes"][kind]["checkpoints"]
            if moment < window:
                jobs.append(_DrawnJob(vc, kind, moment, gpus, run, wrong, saves))
    return tuple(sorted(jobs, key=lambda job: job.at))


def jobs_of(setup: Json, seed: int, sigma: float) -> list[TraceJob]:
    """Return one month of jobs, in order of arrival."""
    law = setup["jobs"]
    classes = {name: {key: kind[key] for key in ("share", "checkpoints")} for name, kind in law["classes"].items()}
    drawn = {"days": law["days"], "maxRunSeconds": law["maxRunSeconds"], "classes": classes}
    jobs = []
    for number, job in enumerate(_drawn_jobs(json.dumps(drawn), seed, sigma)):
        nodes = max(1, -(-job.gpus // 8))
        value = round(law["classes"][job.kind]["usdPerHourOfDelay"] * money.MICROS_PER_USD)
        per_node = job.gpus if nodes == 1 else 8
        estimate = max(60.0, job.run * job.wrong)
        jobs.append(
            TraceJob(f"job-{number:05}", job.vc, job.kind, job.at, nodes, per_node, job.run, estimate, job.saves, value)
        )
    return jobs


# ---------------------------------------------------------------- the provider


class SimulatedProvider:
    """Capacity of each (type, zone, kind): open and closed intervals, the same for every policy of a seed."""

    def __init__(self, setup: Json, seed: int) -> None:
        self.setup, self.seed = setup["market"], seed
        self.switches: dict[tuple[str, str, Market], tuple[random.Random, list[float]]] = {}

    def is_open(self, instance_type: str, zone: str, market: Market, now: float) -> bool:
        """Return whether a request would be granted."""
        key = (instance_type, zone, market)
        law = self.setup["spot" if market is Market.SPOT else "onDemand"]
        if key not in self.switches:
            rng = random.Random(f"{self.seed}/market/{instance_type}/{zone}/{market}")
            share_open = law["meanOpenHours"] / (law["meanOpenHours"] + law["meanClosedHours"])
            self.switches[key] = (rng, [0.0] if rng.random() < share_open else [0.0, 0.0])
        rng, times = self.switches[key]
        while times[-1] <= now:
            mean = law["meanOpenHours"] if len(times) % 2 else law["meanClosedHours"]
            times.append(times[-1] + rng.expovariate(1 / (mean * HOUR)))
        return len([at for at in times if at <= now]) % 2 == 1 if len(times) < 64 else self._bisected(times, now)

    @staticmethod
    def _bisected(times: list[float], now: float) -> bool:
        low, high = 0, len(times)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if times[middle] <= now else (low, middle)
        return low % 2 == 1

    def launch_seconds(self, job: TraceJob) -> float:
        """Draw the seconds until the last node of this start is Ready."""
        rng = random.Random(f"{self.seed}/launch/{job.name}/{job.starts}")
        law = self.setup["launch"]
        return max(math.exp(math.log(law["medianSeconds"]) + law["sigma"] * rng.gauss(0, 1)) for _ in range(job.nodes))

    def interrupted_after(self, job: TraceJob) -> float:
        """Draw the seconds until the first spot node of this start is reclaimed."""
        rng = random.Random(f"{self.seed}/reclaim/{job.name}/{job.starts}")
        return rng.expovariate(self.setup["spot"]["interruptionsPerNodeHour"] * job.nodes / HOUR)


# ---------------------------------------------------------------- policies


@dataclass(frozen=True)
class BaselinePolicy:
    """A policy with its parameters."""

    name: str
    order: str
    patience_hours: float = math.inf
    """Hours in the queue after which the policy rents for a job; infinite if it never rents. `evenkeel` ignores it."""
    spot: bool = False
    most_gpus: int = 64
    value_factor: float = 1.0
    """`evenkeel` only: factor on the price of delay, for the frontier."""

    def key(self, job: TraceJob) -> tuple[float, float, str]:
        """Return the job's sort key in the queue."""
        if self.order == "class":
            return (-job.value, job.at, job.name)
        if self.order == "value":
            return (-job.value / (job.gpus * job.estimate), job.at, job.name)
        return (0.0, job.at, job.name)


def baselines(setup: Json) -> dict[str, list[BaselinePolicy]]:
    """Return every policy of the three baselines, as listed in the setup."""
    knobs = setup["baselines"]
    always, greedy = knobs["always"], knobs["greedy"]
    return {
        "committed": [BaselinePolicy("committed", order) for order in knobs["committed"]["orders"]],
        "always": [
            BaselinePolicy("always", *knob_values)
            for knob_values in itertools.product(always["orders"], [0.0], always["spot"], always["maxGpus"])
        ],
        "greedy": [
            BaselinePolicy("greedy", *knob_values)
            for knob_values in itertools.product(
                greedy["orders"], greedy["patienceHours"], greedy["spot"], greedy["maxGpus"]
            )
        ],
    }


# ---------------------------------------------------------------- the simulated fleet


@dataclass(slots=True)
class TraceJobRun:
    """A start of a job."""

    job: TraceJob
    token: int
    began: float
    trains_at: float
    ends_at: float
    expected_at: float
    """Estimated end; after it, `start_estimates.remaining_seconds` applies."""
    slots: tuple[tuple[int, int], ...] = ()
    """(node, GPUs) on committed nodes; empty on rented nodes."""
    pool: Pool | None = None
    """Pool of the rented nodes; None on committed nodes."""
    zone: str = ""


@dataclass
class BurstOutcome:
    """Result of one policy on one seed."""

    rent_parts: int = 0
    delay_parts: int = 0
    delays: list[float] = field(default_factory=list)
    rentals: int = 0
    interruptions: int = 0
    moves: int = 0
    most_fleet_rate: int = 0
    most_team_rate: int = 0
    idle_share: float = 0.0
    """Share of the committed GPU-hours of the window that no job used."""
    cpu_seconds: float = 0.0

    @property
    def usd(self) -> float:
        return (self.rent_parts + self.delay_parts) / money.COST_PARTS_PER_USD


class BurstSimulation:
    """Simulates one month under one policy."""

    def __init__(self, setup: Json, policy: BaselinePolicy, seed: int, sigma: float | None = None) -> None:
        self.setup, self.policy = setup, policy
        self.provider = SimulatedProvider(setup, seed)
        self.jobs = jobs_of(setup, seed, setup["jobs"]["estimate"]["sigma"] if sigma is None else sigma)
        self.sigma = setup["jobs"]["estimate"]["sigma"] if sigma is None else sigma
        self.free = [8] * setup["committed"]["nodes"]
        self.queue: list[tuple[tuple[float, float, str], TraceJob]] = []
        self.runs: dict[int, TraceJobRun] = {}
        self.rented: set[int] = set()
        self.leaving: dict[int, TraceJobRun] = {}
        self.events: list[tuple[float, int, int, int]] = []
        self.numbers = itertools.count()
        self.shortages = Shortages()
        self.rates: dict[str, int] = {}
        self.fleet_rate = 0
        self.caps = [round(setup["caps"][cap] * money.MICROS_PER_USD) for cap in ("teamUsdPerHour", "fleetUsdPerHour")]
        self.pools = _rented_pools(setup)
        self.home_pool = _committed_pool(setup)
        self.share_with_queue, self.seen_at = 0.0, 0.0
        self.out = BurstOutcome()
        self.busy_gpu_seconds = 0.0

    # ------------------------------------------------ the clock

    def play(self) -> BurstOutcome:
        """Simulate the month and the time until the last job ends."""
        began = time.process_time()
        for number, job in enumerate(self.jobs):
            heapq.heappush(self.events, (job.at, next(self.numbers), 0, number))
        step = self.setup["passSeconds"]
        heapq.heappush(self.events, (step, next(self.numbers), 1, 0))
        jobs_left = len(self.jobs)
        while jobs_left or self.leaving:
            now, _, kind, subject = heapq.heappop(self.events)
            self._update_share_with_queue(now)
            if kind == 0:
                self._arrive(self.jobs[subject], now)
            elif kind == 1:
                self._run_cycle(now)
                heapq.heappush(self.events, (now + step, next(self.numbers), 1, 0))
            elif kind == 4:
                self._pay(self.leaving.pop(subject), now)
            elif subject in self.runs:
                run = self.runs.pop(subject)
                jobs_left -= self._leave(run, now, is_done=kind == 2)
                if run.slots:
                    self._fill(now)
        window = self.setup["jobs"]["days"] * 86_400
        self.out.idle_share = 1 - self.busy_gpu_seconds / (8 * len(self.free) * window)
        self.out.cpu_seconds = time.process_time() - began
        return self.out

    def _update_share_with_queue(self, now: float) -> None:
        """Update the share of recent time in which jobs waited for committed capacity.

        It is an exponential average with a half-life of a day.
        """
        if now > self.seen_at:
            fades = 0.5 ** ((now - self.seen_at) / 86_400)
            self.share_with_queue = self.share_with_queue * fades + (1 - fades) * bool(self.queue)
            self.seen_at = now

    def _arrive(self, job: TraceJob, now: float) -> None:
        if not (self.policy.order == "arrival" and self.queue) and self._take_slots(job, now):
            return
        insort(self.queue, (self.policy.key(job), job))
        if self.policy.name == "evenkeel":
            self._weigh_queue(now, [job])
        elif self.policy.patience_hours <= 0:
            self._rent_as_decided(job, now)

    def _run_cycle(self, now: float) -> None:
        self._fill(now)
        if self.policy.name == "evenkeel":
            self._weigh_queue(now, [job for _, job in self.queue])
            self._migrate_back(now)
        elif self.policy.patience_hours < math.inf:
            for _, job in list(self.queue):
                if now - job.at >= self.policy.patience_hours * HOUR:
                    self._rent_as_decided(job, now)

    def _fill(self, now: float) -> None:
        queue_left = []
        free_nodes, most = self.free.count(8), max(self.free)
        for index, entry in enumerate(self.queue):
            job = entry[1]
            fits = job.nodes <= free_nodes if job.nodes > 1 else job.per_node <= most
            if fits and self._take_slots(job, now):
                free_nodes, most = self.free.count(8), max(self.free)
                continue
            queue_left.append(entry)
            if self.policy.order == "arrival" or not most:
                queue_left += self.queue[index + 1 :]
                break
        self.queue = queue_left

    # ------------------------------------------------ committed nodes

    def _free_slots(self, job: TraceJob) -> tuple[tuple[int, int], ...]:
        if job.nodes > 1:
            free_nodes = [node for node, free in enumerate(self.free) if free == 8]
            return tuple((node, 8) for node in free_nodes[: job.nodes]) if len(free_nodes) >= job.nodes else ()
        fitting = [(free, node) for node, free in enumerate(self.free) if free >= job.per_node]
        return ((min(fitting)[1], job.per_node),) if fitting else ()

    def _take_slots(self, job: TraceJob, now: float, *, after: float = 0.0) -> bool:
        slots = self._free_slots(job)
        if not slots:
            return False
        for node, gpus in slots:
            self.free[node] -= gpus
        self._begin(job, now, after + self.setup["committed"]["launchSeconds"], slots=slots)
        return True

    # ------------------------------------------------ starts and ends

    def _begin(self, job: TraceJob, now: float, launch: float, **where: Any) -> TraceJobRun:
        restart = self.setup["jobs"]["restartSeconds"] if job.starts else 0
        job.starts += 1
        trains_at = now + launch + restart
        ends_at, expected_at = trains_at + job.run - job.done, trains_at + job.guess
        run = TraceJobRun(job, next(self.numbers), now, trains_at, ends_at, expected_at, **where)
        self.runs[run.token] = run
        heapq.heappush(self.events, (run.ends_at, next(self.numbers), 2, run.token))
        return run

    def _leave(self, run: TraceJobRun, now: float, *, is_done: bool) -> int:
        """End a run and free its nodes; a job that saves keeps its progress. Return the number of completed jobs."""
        job = run.job
        for node, gpus in run.slots:
            self.free[node] += gpus
        if run.slots:
            window = self.setup["jobs"]["days"] * 86_400
            self.busy_gpu_seconds += job.gpus * max(0.0, min(now, window) - min(run.began, window))
        if run.pool:
            self._pay(run, now)
        if is_done:
            job.ended = now
            delay = max(0.0, now - job.at - job.run)
            self.out.delays.append(delay)
            self.out.delay_parts += round(job.value * delay)
            return 1
        job.done = min(job.run, job.done + max(0.0, now - run.trains_at)) if job.saves else 0.0
        self.out.interruptions += 1
        assert run.pool is not None  # only rented nodes are reclaimed
        self.shortages = self.shortages.with_refusal(run.pool.instance_type, run.zone, run.pool.market, instant(now))
        self._arrive(job, now)
        return 0

    def _pay(self, run: TraceJobRun, now: float) -> None:
        assert run.pool is not None  # the caller has checked the pool
        self.rented.discard(run.token)
        rate = run.pool.micros_per_node_hour * run.job.nodes
        self.rates[run.job.team] -= rate
        self.fleet_rate -= rate
        rental = money.BillableRental(
            pool=run.pool.name,
            job_id=run.job.name,
            team=run.job.team,
            micros_per_node_hour=run.pool.micros_per_node_hour,
            nodes=run.job.nodes,
            started_at=instant(run.began),
            ended_at=instant(now),
        )
        self.out.rent_parts += rental.cost_parts(instant(now))

    # ------------------------------------------------ renting

    def _rent(self, job: TraceJob, pool: Pool, now: float, waited: float) -> bool:
        """Request nodes; return False and record the refusal if there is no capacity."""
        if not self.provider.is_open(pool.instance_type, pool.zone, pool.market, now + waited):
            self.shortages = self.shortages.with_refusal(pool.instance_type, pool.zone, pool.market, instant(now))
            return False
        self.shortages = self.shortages.with_success(pool.instance_type, pool.zone, pool.market)
        after = self.provider.interrupted_after(job) if pool.market is Market.SPOT else math.inf
        run = self._begin(job, now, waited + self.provider.launch_seconds(job), pool=pool, zone=pool.zone)
        self.rented.add(run.token)
        if now + waited + after < run.ends_at:
            heapq.heappush(self.events, (now + waited + after, next(self.numbers), 3, run.token))
        rate = pool.micros_per_node_hour * job.nodes
        self.rates[job.team] = self.rates.get(job.team, 0) + rate
        self.fleet_rate += rate
        self.out.rentals += 1
        self.out.most_fleet_rate = max(self.out.most_fleet_rate, self.fleet_rate)
        self.out.most_team_rate = max(self.out.most_team_rate, self.rates[job.team])
        return True

    def _rent_as_decided(self, job: TraceJob, now: float) -> None:
        """Rent as the baselines do: the cheapest pool within the caps that did not refuse recently."""
        if job.gpus > self.policy.most_gpus:
            return
        waited = 0.0
        for pool in self.pools[_size(job)]:
            if pool.market is Market.SPOT and not (self.policy.spot and job.saves):
                continue
            rate = pool.micros_per_node_hour * job.nodes
            if self.rates.get(job.team, 0) + rate > self.caps[0] or self.fleet_rate + rate > self.caps[1]:
                continue
            if self.shortages.unavailable_until(pool.instance_type, pool.zone, pool.market, instant(now)):
                continue
            if self._rent(job, pool, now, waited):
                self._unqueue(job)
                return
            waited += self.setup["market"]["refusalAnswerSeconds"]

    def _unqueue(self, job: TraceJob) -> None:
        self.queue = [entry for entry in self.queue if entry[1] is not job]

    # ------------------------------------------------ what Evenkeel decides

    def _weigh_queue(self, now: float, jobs: Sequence[TraceJob]) -> None:
        if not self.queue:
            return
        held = [
            RunningUse(
                run.job.gpus, run.expected_at - now if run.expected_at > now else max(60.0, (now - run.trains_at) / 2)
            )
            for run in self.runs.values()
            if run.slots
        ]
        ordered = [job for _, job in self.queue]
        starts = expected_starts(sum(self.free), held, [WaitingUse(job.gpus, job.guess) for job in ordered])
        waits = {
            job.name: expected_wait(forecast, 0.0 if job.starts else now - job.at)
            for job, forecast in zip(ordered, starts, strict=True)
        }
        queue_price = sum(job.value for job in ordered) * self.policy.value_factor
        for job in jobs:
            opportunity = self._opportunity_cost(job, round(queue_price))
            if self._may_pay(job, waits[job.name], opportunity):
                self._weigh(job, now, waits[job.name], opportunity)

    def _may_pay(self, job: TraceJob, wait: float, opportunity: int) -> bool:
        """Return whether renting could pay at all. If not, `choose_pool` need not compare the pools.

        Every rental costs at least the cheapest node for the run alone, and saves at most the whole wait.
        """
        cheapest = min(pool.micros_per_node_hour for pool in self.pools[_size(job)])
        gain = job.value * self.policy.value_factor * (wait + self.setup["committed"]["launchSeconds"])
        return bool(gain + opportunity * job.gpus * job.guess > cheapest * job.nodes * job.guess)

    def _opportunity_cost(self, job: TraceJob, queue_price: int) -> int:
        cheapest = min(pool.micros_per_node_hour // pool.accelerators_per_node for pool in self.pools[_size(job)])
        return opportunity_cost(cheapest, self.share_with_queue, queue_price, 8 * len(self.free))

    def _weigh(self, job: TraceJob, now: float, wait: float, opportunity: int) -> None:
        waited = 0.0
        for _ in range(1 + len(self.pools[_size(job)])):
            decision = choose_pool(self._facts(job, now, wait, opportunity))
            if decision.action is not PlacementAction.RENT:
                return
            pool = next(candidate for candidate in self.pools[_size(job)] if candidate.name == decision.pool)
            if self._rent(job, pool, now, waited):
                self._unqueue(job)
                return
            waited += self.setup["market"]["refusalAnswerSeconds"]

    def _facts(self, job: TraceJob, now: float, wait: float, opportunity: int) -> PlacementFacts:
        moment = instant(now)
        candidates = [
            # The job does not fit on committed nodes now: otherwise it would have started.
            CandidatePool(
                pool=self.home_pool,
                accelerators_left=0,
                wait_seconds=max(1.0, wait),
                opportunity_micros_per_accelerator_hour=opportunity,
            )
        ]
        for pool in self.pools[_size(job)]:
            barred = self.shortages.unavailable_until(pool.instance_type, pool.zone, pool.market, moment)
            accelerators_left = pool.max_nodes * pool.accelerators_per_node
            candidates.append(CandidatePool(pool=pool, accelerators_left=accelerators_left, unavailable_until=barred))
        waiting = JobDemand(
            job_id=job.name,
            team=job.team,
            job_class=job.kind,
            nodes=job.nodes,
            accelerators_per_node=job.per_node,
            micros_per_hour_of_delay=round(job.value * self.policy.value_factor),
            run_seconds=job.guess,
            p90_run_seconds=job.guess * math.exp(1.2816 * self.sigma),
            checkpoint_seconds=self.setup["jobs"]["checkpointSeconds"] if job.saves else None,
            restart_seconds=self.setup["jobs"]["restartSeconds"] if job.starts else 0,
            submitted_at=instant(job.at),
            done_seconds=job.done,
        )
        spending = SpendLimits(
            team_micros_per_hour=self.rates.get(job.team, 0),
            fleet_micros_per_hour=self.fleet_rate,
            team_cap_micros_per_hour=self.caps[0],
            fleet_cap_micros_per_hour=self.caps[1],
        )
        return PlacementFacts(
            job=waiting, candidates=tuple(candidates), spending=spending, risk_limits=TERMS, now=moment
        )

    def _migrate_back(self, now: float) -> None:
        """Migrate jobs from rented to free committed nodes, the dearest rentals first."""
        if not self.rented or not any(self.free):
            return
        rented = [(self.runs[token].pool, token) for token in self.rented]
        dearest = sorted((-pool.micros_per_node_hour, token) for pool, token in rented if pool is not None)
        queue_price = round(sum(job.value for _, job in self.queue) * self.policy.value_factor)
        for _, token in dearest:
            run = self.runs[token]
            job = run.job
            if now < run.trains_at or not self._free_slots(job):
                continue
            assert run.pool is not None  # the run is in `rented`
            facts = MigrationFacts(
                candidate=self._migration_candidate(run, now),
                pool=run.pool,
                target=MigrationTarget(
                    pool="committed",
                    launch_seconds=self.setup["committed"]["launchSeconds"],
                    opportunity_micros_per_accelerator_hour=self._opportunity_cost(job, queue_price),
                ),
                now=instant(now),
            )
            if decide_migration(facts).action is not MigrationAction.MIGRATE:
                continue
            # The job saves first: its rent continues until then, and its committed slots are reserved.
            del self.runs[token]
            self.rented.discard(token)
            self.leaving[token] = run
            heapq.heappush(self.events, (now + SAVE_SECONDS, next(self.numbers), 4, token))
            job.done = min(job.run, job.done + now + SAVE_SECONDS - run.trains_at)
            self.out.moves += 1
            self._take_slots(job, now, after=SAVE_SECONDS)

    def _migration_candidate(self, run: TraceJobRun, now: float) -> MigrationCandidate:
        job, trained = run.job, now - run.trains_at
        return MigrationCandidate(
            job_id=job.name,
            team=job.team,
            nodes=job.nodes,
            accelerators_per_node=job.per_node,
            micros_per_hour_of_delay=round(job.value * self.policy.value_factor),
            left_seconds=remaining_seconds(job.estimate, job.done + trained),
            since_checkpoint_seconds=trained % self.setup["jobs"]["checkpointSeconds"],
            checkpoint_seconds=self.setup["jobs"]["checkpointSeconds"] if job.saves else None,
            save_seconds=SAVE_SECONDS,
            restart_seconds=self.setup["jobs"]["restartSeconds"],
        )


SAVE_SECONDS = 60.0
TERMS = RiskLimits()


@functools.lru_cache(maxsize=4096)
def instant(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def _size(job: TraceJob) -> str:
    """Return the smallest rented instance type that fits one pod of the job."""
    return next(
        name for name, gpus in (("g5.xlarge", 1), ("g5.12xlarge", 4), ("g5.48xlarge", 8)) if gpus >= job.per_node
    )


def _committed_pool(setup: Json) -> Pool:
    fleet = setup["committed"]
    launch = LaunchDelay(p50_seconds=fleet["launchSeconds"], p90_seconds=fleet["launchSeconds"])
    return Pool(
        name="committed",
        cluster="hyperpod",
        market=Market.COMMITTED,
        instance_type=fleet["instanceType"],
        accelerators_per_node=8,
        max_nodes=fleet["nodes"],
        launch=launch,
        environment=PoolEnvironment(),
    )


def _rented_pools(setup: Json) -> dict[str, tuple[Pool, ...]]:
    """Return the rentable pools by instance type, the cheapest first."""
    market = setup["market"]
    median, sigma = market["launch"]["medianSeconds"], market["launch"]["sigma"]
    launch = LaunchDelay(p50_seconds=median, p90_seconds=median * math.exp(1.2815515655446004 * sigma))
    pools: dict[str, tuple[Pool, ...]] = {}
    for name, price in setup["prices"]["nodes"].items():
        pools[name] = tuple(
            Pool(
                name=f"{market_kind}-{name}-{zone}",
                cluster="eks",
                market=market_kind,
                instance_type=name,
                zone=zone,
                accelerators_per_node=price["gpus"],
                max_nodes=64,
                micros_per_node_hour=round(price["onDemand"] * share),
                min_billed_seconds=market["minBilledSeconds"],
                launch=launch,
                interruptions_per_node_hour=law["interruptionsPerNodeHour"],
                environment=PoolEnvironment(),
            )
            for market_kind, share, law in (
                (Market.SPOT, market["spotShareOfOnDemand"], market["spot"]),
                (Market.ON_DEMAND, 1.0, market["onDemand"]),
            )
            for zone in market["zones"]
        )
    return pools


# ---------------------------------------------------------------- tuning and measuring


def tune_policy(
    setup: Json, policies: Sequence[BaselinePolicy], seeds: Sequence[int]
) -> tuple[BaselinePolicy, list[tuple[float, BaselinePolicy]]]:
    """Return the best policy and the final ranking.

    All policies run on one seed, the best quarter on three, and the best four on every tuning seed.
    """
    candidates, costs = list(policies), dict[tuple[BaselinePolicy, int], float]()
    for count, kept_count in ((1, len(candidates) // 4), (3, 4)):
        ranked = sorted(
            ((_mean_usd(setup, policy, seeds[:count], costs), policy) for policy in candidates),
            key=lambda pair: pair[0],
        )
        candidates = [policy for _, policy in ranked[: max(4, kept_count)]]
    final = sorted(
        ((_mean_usd(setup, policy, seeds, costs), policy) for policy in candidates), key=lambda pair: pair[0]
    )
    return final[0][1], final


def _mean_usd(
    setup: Json, policy: BaselinePolicy, seeds: Sequence[int], known_costs: dict[tuple[BaselinePolicy, int], float]
) -> float:
    for seed in seeds:
        if (policy, seed) not in known_costs:
            known_costs[policy, seed] = BurstSimulation(setup, policy, seed).play().usd
    return statistics.fmean(known_costs[policy, seed] for seed in seeds)


def ratio_with_interval(ratios: Sequence[tuple[float, float]], seed: int = 1) -> tuple[float, float, float]:
    """Return the ratio of two policies' totals over the same seeds, and its 95 % interval (bootstrap over seeds)."""
    dice = random.Random(seed)

    def ratio(pairs: Sequence[tuple[float, float]]) -> float:
        return sum(evenkeel_usd for evenkeel_usd, _ in pairs) / sum(baseline_usd for _, baseline_usd in pairs)

    resampled = sorted(ratio(dice.choices(ratios, k=len(ratios))) for _ in range(_RESAMPLES))
    return ratio(ratios), resampled[int(0.025 * _RESAMPLES)], resampled[int(0.975 * _RESAMPLES) - 1]


def policy_figures(outcomes: Mapping[int, BurstOutcome]) -> Json:
    """Return the figures of one policy over its seeds."""
    all_outcomes = list(outcomes.values())
    delays = sorted(delay for outcome in all_outcomes for delay in outcome.delays)
    return {
        "usd": round(statistics.fmean(outcome.usd for outcome in all_outcomes)),
        "rentUsd": round(statistics.fmean(outcome.rent_parts / money.COST_PARTS_PER_USD for outcome in all_outcomes)),
        "delayUsd": round(statistics.fmean(outcome.delay_parts / money.COST_PARTS_PER_USD for outcome in all_outcomes)),
        "meanDelayHours": round(statistics.fmean(delays) / HOUR, 3),
        "p90DelayHours": round(delays[int(0.9 * len(delays))] / HOUR, 3),
        "p99DelayHours": round(delays[int(0.99 * len(delays))] / HOUR, 3),
        "maxDelayHours": round(delays[-1] / HOUR, 1),
        "rentals": round(statistics.fmean(outcome.rentals for outcome in all_outcomes)),
        "interruptions": round(statistics.fmean(outcome.interruptions for outcome in all_outcomes)),
        "moves": round(statistics.fmean(outcome.moves for outcome in all_outcomes)),
        "idleShare": round(statistics.fmean(outcome.idle_share for outcome in all_outcomes), 3),
        "maxFleetUsdPerHour": round(max(outcome.most_fleet_rate for outcome in all_outcomes) / money.MICROS_PER_USD, 2),
        "maxTeamUsdPerHour": round(max(outcome.most_team_rate for outcome in all_outcomes) / money.MICROS_PER_USD, 2),
        "cpuSeconds": round(sum(outcome.cpu_seconds for outcome in all_outcomes), 1),
        "bySeed": {str(seed): round(outcome.usd, 2) for seed, outcome in outcomes.items()},
    }


def policy_parameters(policy: BaselinePolicy) -> Json:
    return {
        "order": policy.order,
        "spot": policy.spot,
        "patienceHours": None if policy.patience_hours == math.inf else policy.patience_hours,
        "maxGpus": policy.most_gpus,
        "valueFactor": policy.value_factor,
    }


def _frontier_rows(setup: Json, best: Mapping[str, BaselinePolicy], seeds: Sequence[int]) -> Iterator[Json]:
    """Yield cost and wait of each policy for each value of its knob: the factor on the price of delay, or patience."""
    policies = [replace(best["evenkeel"], value_factor=factor) for factor in setup["frontier"]["valueFactors"]]
    policies += [
        replace(best["greedy"], patience_hours=hours) for hours in setup["baselines"]["greedy"]["patienceHours"]
    ]
    policies += [replace(best["always"], most_gpus=most) for most in setup["baselines"]["always"]["maxGpus"]]
    policies.append(best["committed"])
    for policy in policies:
        figures = policy_figures({seed: BurstSimulation(setup, policy, seed).play() for seed in seeds})
        yield {
            "policy": policy.name,
            **policy_parameters(policy),
            **{name: figures[name] for name in ("rentUsd", "delayUsd", "meanDelayHours")},
        }


def main(words: Sequence[str] | None = None) -> int:
    """Tune, measure, print; write the figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.burst", description="Burst in virtual time.")
    parser.add_argument("--seeds", type=int, help="number of measured seeds (default all)")
    parser.add_argument("--quick", action="store_true", help="tune on one seed, leave out frontier and other estimates")
    parser.add_argument("--output", type=Path, help="file to write the figures to, as JSON")
    arguments = parser.parse_args(words)
    setup = load_setup()
    tuning = setup["seeds"]["tuning"][: 1 if arguments.quick else None]
    seeds = setup["seeds"]["measured"][: arguments.seeds]
    best: dict[str, BaselinePolicy] = {}
    document: Json = {
        **describe_origin("bench.burst", words, seeds),
        "setup": setup_hash(),
        "tuned": {},
        "policies": {},
    }
    groups = {
        **baselines(setup),
        "evenkeel": [BaselinePolicy("evenkeel", order) for order in ("backfill", "class", "value")],
    }
    for name, policies in groups.items():
        best[name], ranking = tune_policy(setup, policies, tuning)
        document["tuned"][name] = {"tried": len(policies), **policy_parameters(best[name]), "usd": round(ranking[0][0])}
        print(f"  tuned {name:<10} {document['tuned'][name]}", flush=True)
    outcomes = {
        name: {seed: BurstSimulation(setup, policy, seed).play() for seed in seeds} for name, policy in best.items()
    }
    print(f"\n  {'policy':<10}{'$':>8}{'rent $':>9}{'delay $':>9}{'mean h':>8}{'90 % h':>8}{'rentals':>9}{'idle':>7}")
    for name, outcome in outcomes.items():
        row = document["policies"][name] = policy_figures(outcome)
        print(
            f"  {name:<10}{row['usd']:>8}{row['rentUsd']:>9}{row['delayUsd']:>9}{row['meanDelayHours']:>8.2f}"
            f"{row['p90DelayHours']:>8.2f}{row['rentals']:>9}{row['idleShare']:>7.1%}"
        )
    rivals = [name for name in outcomes if name != "evenkeel"]
    document["ratios"] = {
        name: dict(
            zip(
                ("ratio", "low", "high"),
                (round(bound, 3) for bound in ratio_with_interval(_usd_pairs(outcomes["evenkeel"], outcomes[name]))),
                strict=True,
            )
        )
        for name in rivals
    }
    for name, ratio in document["ratios"].items():
        print(f"  evenkeel / {name:<10} {ratio['ratio']:.3f}  ({ratio['low']:.3f} – {ratio['high']:.3f})", flush=True)
    write_figures(arguments.output, document)
    if not arguments.quick:
        rival = min(rivals, key=lambda name: document["policies"][name]["usd"])
        _add_slow_results(setup, best, rival, seeds, document)
        write_figures(arguments.output, document)
    return 0


def _add_slow_results(
    setup: Json, best: Mapping[str, BaselinePolicy], rival: str, seeds: Sequence[int], document: Json
) -> None:
    """Add the frontier, and the results with better and worse estimates of run times; on fewer seeds."""
    document["frontier"] = list(_frontier_rows(setup, best, seeds[:_FRONTIER_SEEDS]))
    print(f"\n  frontier, {_FRONTIER_SEEDS} seeds: rent $ and mean delay h")
    for row in document["frontier"]:
        knob = row["valueFactor"] if row["policy"] == "evenkeel" else row["patienceHours"] or row["maxGpus"]
        print(f"  {row['policy']:<10}{knob!s:>8}{row['rentUsd']:>10}{row['meanDelayHours']:>8.2f}", flush=True)
    document["otherEstimates"] = {}
    for sigma in setup["jobs"]["estimate"]["otherSigmas"]:
        pairs = [
            (
                BurstSimulation(setup, best["evenkeel"], seed, sigma).play().usd,
                BurstSimulation(setup, best[rival], seed, sigma).play().usd,
            )
            for seed in seeds[:_ESTIMATE_SEEDS]
        ]
        ratio, low, high = (round(bound, 3) for bound in ratio_with_interval(pairs))
        document["otherEstimates"][str(sigma)] = {
            "against": rival,
            "seeds": len(pairs),
            "ratio": ratio,
            "low": low,
            "high": high,
        }
        print(f"  estimates with sigma {sigma}: evenkeel / {rival} {ratio:.3f}  ({low:.3f} – {high:.3f})", flush=True)


_FRONTIER_SEEDS = 4
_ESTIMATE_SEEDS = 8


def _usd_pairs(
    outcomes: Mapping[int, BurstOutcome], baselines: Mapping[int, BurstOutcome]
) -> list[tuple[float, float]]:
    return [(outcome.usd, baselines[seed].usd) for seed, outcome in outcomes.items()]


if __name__ == "__main__":
    sys.exit(main())
