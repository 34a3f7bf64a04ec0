"""The burst benchmark with the service's own scheduling cycle, which knows only what the service knows.

`decide_cycle` decides about admissions, rentals and departures. Its snapshot has the same facts as in the service
(`services/scheduling/load_cycle.py`). It contains the site policy and the history of jobs, but no future run time.
Jobs, nodes, markets and bills come from `bench.burst`, so every policy runs on the same month.
"""

from __future__ import annotations

import argparse
import functools
import heapq
import itertools
import json
import statistics
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.burst import (
    HERE,
    HOUR,
    SAVE_SECONDS,
    BaselinePolicy,
    BurstOutcome,
    BurstSimulation,
    Json,
    TraceJob,
    TraceJobRun,
    instant,
    load_setup,
    policy_figures,
    policy_parameters,
    ratio_with_interval,
    setup_hash,
)
from bench.origin import describe_origin, write_figures
from evenkeel.domain.capacity.node_capacity import NodeCapacity
from evenkeel.domain.capacity.pools import Market
from evenkeel.domain.capacity.run_times import PastJob
from evenkeel.domain.economics import money
from evenkeel.domain.jobs.attempt import Attempt, AttemptState
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.jobs.spec import JobSpec
from evenkeel.domain.nodes import KARPENTER_LABEL, NodeLife
from evenkeel.domain.policy import Policy
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.renting.burst_policy import RentedPool
from evenkeel.domain.renting.candidates import facts_for_next_offer
from evenkeel.domain.renting.displacement import displacement_requester
from evenkeel.domain.renting.placement import PlacementAction, PlacementDecision, choose_pool
from evenkeel.domain.renting.rental import Rental, RentalHolder, RentalOffer, RentalState, RentalTerms, open_rental
from evenkeel.domain.renting.rental_book import RentalAllocation, RentalBook
from evenkeel.domain.resources import Resources
from evenkeel.domain.scheduling.cycle_plan import AdmissionStep, DisplacementStep, RentStep
from evenkeel.domain.scheduling.cycle_snapshot import CycleSnapshot
from evenkeel.domain.scheduling.decide_cycle import decide_cycle

_COMMITTED_CLUSTER = "hyperpod"
_ARRIVAL, _TICK, _END, _RECLAIM, _READY, _REFUSAL, _SAVED = range(7)
PAST_RUNS = 200
"""Runs that a cycle reads, newest first."""
THIS = BaselinePolicy("evenkeel", "service")


def site_policy(
    setup: Json,
    pools: Mapping[str, tuple[Any, ...]],
    *,
    delay_factor: float = 1.0,
    backfill_seconds: int = 0,
    **burst: Any,
) -> Policy:
    """Return the policy that a site with this setup writes: pools, caps, prices of delay, and known durations.

    Args:
        setup: The setup with its true prices.
        pools: Pools to rent from, by instance type.
        delay_factor: The price of delay in the policy, as a share of the true one.
        backfill_seconds: The field of the section `scheduling`.
        burst: Further fields of the section `burst`.
    """
    rented = [
        RentedPool.model_validate({name: getattr(pool, name) for name in type(pool).model_fields})
        for group in pools.values()
        for pool in group
    ]
    policy, caps, jobs = Policy(), setup["caps"], setup["jobs"]
    return policy.replace(
        burst=policy.burst.replace(
            pools=tuple(rented),
            fleet_cap_micros_per_hour=round(caps["fleetUsdPerHour"] * money.MICROS_PER_USD),
            other_team_cap_micros_per_hour=round(caps["teamUsdPerHour"] * money.MICROS_PER_USD),
            delay_micros_per_hour={
                name: round(kind["usdPerHourOfDelay"] * delay_factor * money.MICROS_PER_USD)
                for name, kind in jobs["classes"].items()
            },
            **burst,
        ),
        economy=policy.economy.replace(
            expected_checkpoint_seconds=jobs["checkpointSeconds"],
            expected_launch_seconds=setup["committed"]["launchSeconds"],
        ),
        scheduling=policy.scheduling.replace(backfill_seconds=backfill_seconds),
        jobs=policy.jobs.replace(expected_resume_seconds=jobs["restartSeconds"]),
    )


@dataclass
class _Grant:
    """A rental that the market granted."""

    rental: Rental
    token: int
    requested_at: float
    reclaimed_at: float
    ready_at: float
    pool: Any


@dataclass
class CycleSimulation(BurstSimulation):
    """Simulates one month under `decide_cycle`, without teams."""

    def __init__(self, setup: Json, seed: int, *, delay_share: float = 1.0, **burst: Any) -> None:
        super().__init__(setup, THIS, seed)
        self.site = site_policy(setup, self.pools, delay_factor=delay_share, **burst)
        self.past: deque[PastJob] = deque(maxlen=PAST_RUNS)
        self.first_start: dict[str, float] = {}
        self.by_pool = {pool.name: pool for pool in self.site.burst.pools}
        self.trace = {job.name: job for job in self.jobs}
        self.pending: dict[str, Job] = {}
        self.holders: dict[str, Job] = {}
        self.charges: dict[str, Charge] = {}
        self.done_attempts: dict[str, list[Attempt]] = {}
        self.live: dict[str, TraceJobRun] = {}
        self.rentals: dict[str, _Grant] = {}
        self.nodes = {f"node-{number:02}": self._committed_node(number) for number in range(len(self.free))}
        self.cycles = self.displacements = 0
        self.wants_cycle = False

    def _committed_node(self, number: int) -> NodeCapacity:
        name, offered = f"node-{number:02}", Resources(accelerators=8)
        return NodeCapacity(
            life=NodeLife(cluster=_COMMITTED_CLUSTER, instance_id=name, launched_at=instant(0)),
            node_name=name,
            cluster=_COMMITTED_CLUSTER,
            pool="committed",
            instance_type=self.setup["committed"]["instanceType"],
            allocatable=offered,
            free=offered,
        )

    # ------------------------------------------------ the clock

    def play(self) -> BurstOutcome:
        """Simulate the month and the time until the last job ends."""
        began = time.process_time()
        for job in self.jobs:
            self.schedule(job.at, _ARRIVAL, job.name)
        self.schedule(self.setup["passSeconds"], _TICK, "")
        jobs_left = len(self.jobs)
        while jobs_left or self.rentals:
            now = self.events[0][0]
            while self.events and self.events[0][0] == now:
                _, _, event_kind, subject = heapq.heappop(self.events)
                jobs_left -= self._apply_event(event_kind, subject, now)
            if self.wants_cycle:
                self.wants_cycle = False
                self._run_cycle(now)
        window = self.setup["jobs"]["days"] * 86_400
        self.out.idle_share = 1 - self.busy_gpu_seconds / (8 * len(self.free) * window)
        self.out.cpu_seconds = time.process_time() - began
        return self.out

    def schedule(self, at: float, event_kind: int, subject: Any) -> None:
        heapq.heappush(self.events, (at, next(self.numbers), event_kind, subject))

    def _apply_event(self, event_kind: int, subject: Any, now: float) -> int:
        """Apply an event. Return the number of completed jobs."""
        if event_kind == _TICK:
            self.schedule(now + self.setup["passSeconds"], _TICK, "")
            self.wants_cycle = bool(self.pending) or any(
                grant.rental.state is RentalState.READY for grant in self.rentals.values()
            )
            return 0
        self.wants_cycle = True
        if event_kind == _ARRIVAL:
            self.pending[subject] = self._new_job(self.trace[subject])
        elif event_kind == _END:
            name, token = subject
            if name in self.live and self.live[name].token == token:
                self._stop_job(name, now, AttemptState.SUCCEEDED)
                return 1
        elif event_kind == _RECLAIM:
            self._reclaim_nodes(subject[0], subject[1], subject[2], now)
        elif event_kind == _READY:
            self._set_ready(*subject)
        elif event_kind == _REFUSAL:
            self._next_offer(subject[0], subject[1], subject[2], now)
        elif event_kind == _SAVED and subject[0] in self.live and self.live[subject[0]].token == subject[1]:
            job = self._stop_job(subject[0], now, AttemptState.STOPPED)
            is_displaced = subject[2]
            self.pending[subject[0]] = job if is_displaced else job.replace(is_migrating_back=True)
            self.out.moves += 1
        return 0

    def _new_job(self, trace: TraceJob) -> Job:
        spec = JobSpec(
            name=trace.name,
            team=trace.team,
            priority_class=trace.kind,
            nodes=trace.nodes,
            accelerators_per_node=trace.per_node,
            checkpoint_uri=f"s3://checkpoints/{trace.name}" if trace.saves else "",
            grace_seconds=int(SAVE_SECONDS),
        )
        return Job(
            job_id=trace.name,
            spec=spec,
            state=JobState.PENDING,
            submitted_at=instant(trace.at),
            cluster=_COMMITTED_CLUSTER,
            namespace="jobs",
        )

    # ------------------------------------------------ one cycle

    def _run_cycle(self, now: float) -> None:
        if not self.pending and not any(grant.rental.state is RentalState.READY for grant in self.rentals.values()):
            return
        self.cycles += 1
        moment, snapshot = instant(now), self._snapshot()
        plan = decide_cycle(snapshot, self.site, Mode.ACT, moment)
        while plan.is_incomplete:
            plan = decide_cycle(snapshot, self.site, Mode.ACT, moment, incomplete_plan=plan)
        for step in plan.steps:
            if isinstance(step, AdmissionStep):
                self._start_job(step, now)
            elif isinstance(step, RentStep):
                self._open_rental(step, now)
            elif isinstance(step, DisplacementStep):
                self.displacements += 1
                waiting = step.displacement.job_id
                self.pending[waiting] = self.pending[waiting].replace(displacing_since=moment)
                for victim in step.displacement.victims:
                    self._ask_to_stop(victim, displacement_requester(step.displacement.job_id), now, is_displaced=True)
        if plan.departure:
            name = plan.departure.job_id
            self._ask_to_stop(name, "schedule_jobs/home", now, is_displaced=False)

    def _ask_to_stop(self, name: str, by: str, now: float, *, is_displaced: bool) -> None:
        job = self.holders[name]
        stop = job.stop_request_now("", by, instant(now))
        displaced_at = instant(now) if is_displaced else None
        self.holders[name] = job.replace(
            stop_request=stop, moves=job.moves + 1, displaced_at=displaced_at, queued_at=displaced_at
        )
        self.schedule(now + SAVE_SECONDS, _SAVED, (name, self.live[name].token, is_displaced))

    def _snapshot(self) -> CycleSnapshot:
        rentals = tuple(grant.rental for grant in self.rentals.values())
        rented = tuple(node for grant in self.rentals.values() for node in self._rented_nodes(grant))
        names = {*self.pending, *self.done_attempts, *(rental.job_id for rental in rentals)}
        attempts = [attempt for name in names for attempt in self._attempts(name)]
        return CycleSnapshot(
            pending=dict(self.pending),
            jobs_with_charge=dict(self.holders),
            attempts=tuple(attempts),
            live_charges=tuple(self.charges.values()),
            capacities=(*self.nodes.values(), *rented),
            rental_book=RentalBook(rentals, tuple(map(RentalAllocation.of, rentals))),
            shortages=self.shortages,
            past_jobs=tuple(self.past),
        )

    def _attempts(self, name: str) -> list[Attempt]:
        ended = list(self.done_attempts.get(name, ()))
        run = self.live.get(name)
        return [*ended, self._attempt(name, run, AttemptState.RUNNING)] if run else ended

    def _attempt(self, name: str, run: TraceJobRun, state: AttemptState, ended: float | None = None) -> Attempt:
        charge = self.charges[name]
        return Attempt(
            job_id=name,
            attempt=charge.attempt,
            state=state,
            cluster=charge.cluster,
            namespace="jobs",
            pool=charge.pool,
            nodes=(),
            node_names=charge.node_names,
            accelerators=charge.accelerators,
            admitted_at=charge.admitted_at or instant(run.began),
            running_at=instant(run.trains_at),
            ended_at=None if ended is None else instant(ended),
        )

    def _rented_nodes(self, grant: _Grant) -> tuple[NodeCapacity, ...]:
        rental = grant.rental
        if rental.state is not RentalState.READY:
            return ()
        offered = Resources(accelerators=rental.offer.accelerators_per_node)
        return tuple(
            NodeCapacity(
                life=NodeLife(cluster=rental.offer.cluster, instance_id=name, launched_at=rental.begun_at),
                node_name=name,
                cluster=rental.offer.cluster,
                pool=rental.offer.pool,
                instance_type=rental.offer.instance_type,
                allocatable=offered,
                free=offered,
                labels={KARPENTER_LABEL: rental.offer.pool},
                reserved_for=rental.job_id,
            )
            for name in rental.node_names
        )

    # ------------------------------------------------ starts and ends

    def _start_job(self, step: AdmissionStep, now: float) -> None:
        decided = step.decision
        name = decided.job_id
        job, trace = self.pending.pop(name), self.trace[name]
        grant = self.rentals.get(name)
        is_rented = decided.pool != "committed"
        charge = decided.to_charge()
        self.charges[name] = charge.replace(is_rented=is_rented)
        self.holders[name] = job.replace(
            state=JobState.RUNNING,
            current_attempt=job.current_attempt + 1,
            is_migrating_back=False,
            stop_request=None,
            displaced_at=None,
            displacing_since=None,
            queued_at=None,
        )
        launch = 0.0
        if not is_rented:
            for node_name in decided.node_names:
                node = self.nodes[node_name]
                self.nodes[node_name] = node.with_free(node.free.minus(charge.per_node))
            launch = self.setup["committed"]["launchSeconds"]
            if grant:
                self._end_rental(name, now)
        restart = self.setup["jobs"]["restartSeconds"] if trace.starts else 0
        trace.starts += 1
        trains_at = now + launch + restart
        slots = () if is_rented else tuple((0, trace.per_node) for _ in range(trace.nodes))
        run = TraceJobRun(trace, next(self.numbers), now, trains_at, trains_at + trace.run - trace.done, 0.0, slots)
        self.live[name] = run
        self.first_start.setdefault(name, trains_at)
        self.schedule(run.ends_at, _END, (name, run.token))

    def _stop_job(self, name: str, now: float, state: AttemptState) -> Job:
        """End the attempt of a job and free its nodes. A job that saves keeps its progress."""
        run, trace = self.live.pop(name), self.trace[name]
        ended = self._attempt(name, run, state, now)
        charge, job = self.charges.pop(name), self.holders.pop(name)
        if not charge.is_rented:
            for node_name in charge.node_names:
                node = self.nodes[node_name]
                self.nodes[node_name] = node.with_free(node.free + charge.per_node)
            window = self.setup["jobs"]["days"] * 86_400
            self.busy_gpu_seconds += trace.gpus * max(0.0, min(now, window) - min(run.began, window))
        self._end_rental(name, now)
        if state is AttemptState.SUCCEEDED:
            trace.ended = now
            delay = max(0.0, now - trace.at - trace.run)
            self.out.delays.append(delay)
            self.out.delay_parts += round(trace.value * delay)
            self.done_attempts.pop(name, None)
            self.past.appendleft(PastJob(trace.team, "", "", now - self.first_start.pop(name)))
            return job
        trace.done = min(trace.run, trace.done + max(0.0, now - run.trains_at)) if trace.saves else 0.0
        # Without checkpoints the work of an attempt is lost, so its run time does not predict the next one.
        self.done_attempts.setdefault(name, []).append(ended)
        return job.replace(state=JobState.PENDING, stop_request=None)

    # ------------------------------------------------ rentals

    def _open_rental(self, step: RentStep, now: float) -> None:
        name = step.decision.job_id
        job = self.pending[name]
        self.pending[name] = job = job.replace(rentals=job.rentals + 1, is_migrating_back=False)
        holder = RentalHolder(name, job.rentals, job.spec.team, "jobs")
        rental = open_rental(
            holder, RentalTerms.of(step.placement), f"dec-{name}", self.site.burst, instant(now)
        ).rental
        self._request_nodes(rental, step.placement, now)

    def _request_nodes(self, rental: Rental, placement: PlacementDecision, now: float) -> None:
        """Ask the pool of the current offer for the nodes."""
        name, pool, trace = rental.job_id, self.by_pool[placement.pool], self.trace[rental.job_id]
        grant = _Grant(rental, next(self.numbers), now, float("inf"), float("inf"), pool)
        self.rentals[name] = grant
        self._note_rates()
        if not self.provider.is_open(pool.instance_type, pool.zone, pool.market, now):
            answer = now + self.setup["market"]["refusalAnswerSeconds"]
            self.schedule(answer, _REFUSAL, (name, grant.token, placement))
            return
        if pool.market is Market.SPOT:
            grant.reclaimed_at = now + self.provider.interrupted_after(trace)
            self.schedule(grant.reclaimed_at, _RECLAIM, (name, grant.token, placement))
        grant.ready_at = now + self.provider.launch_seconds(trace)
        self.schedule(grant.ready_at, _READY, (name, grant.token))
        self.out.rentals += 1

    def _note_rates(self) -> None:
        rates: dict[str, int] = {}
        for rental in (grant.rental for grant in self.rentals.values()):
            rates[rental.team] = rates.get(rental.team, 0) + rental.offer.micros_per_node_hour * rental.nodes
        self.out.most_fleet_rate = max(self.out.most_fleet_rate, sum(rates.values()))
        self.out.most_team_rate = max(self.out.most_team_rate, *rates.values())

    def _set_ready(self, name: str, token: int) -> None:
        grant = self.rentals.get(name)
        if grant is None or grant.token != token:
            return
        pool = grant.pool
        self.shortages = self.shortages.with_success(pool.instance_type, pool.zone, pool.market)
        names = tuple(f"{grant.rental.name}-{number}" for number in range(grant.rental.nodes))
        grant.rental = grant.rental.replace(state=RentalState.READY, node_names=names)

    def _next_offer(self, name: str, token: int, placement: PlacementDecision, now: float) -> None:
        """Ask the next pool after a refusal, as the workflow of the rental does; else the job waits again."""
        grant = self.rentals.get(name)
        if grant is None or grant.token != token:
            return
        pool, moment, rental = grant.pool, instant(now), grant.rental
        self.shortages = self.shortages.with_refusal(pool.instance_type, pool.zone, pool.market, moment)
        del self.rentals[name]
        if len(rental.offers) >= self.site.burst.max_offers:
            return
        allocations = [RentalAllocation.of(other.rental) for other in self.rentals.values()]
        facts = facts_for_next_offer(placement.facts, rental, allocations, self.shortages, self.site.burst, moment)
        again = choose_pool(facts)
        if again.action is PlacementAction.RENT:
            offer = RentalOffer.of(self.by_pool[again.pool], moment)
            self._request_nodes(rental.replace(offers=(*rental.offers, offer)), again, now)

    def _end_rental(self, name: str, now: float) -> None:
        grant = self.rentals.pop(name, None)
        if grant is None or grant.ready_at == float("inf"):
            return
        offer = grant.rental.offer
        bill = money.BillableRental(
            pool=offer.pool,
            job_id=name,
            team=grant.rental.team,
            micros_per_node_hour=offer.micros_per_node_hour,
            nodes=grant.rental.nodes,
            min_billed_seconds=offer.min_billed_seconds,
            started_at=instant(grant.requested_at),
            ended_at=instant(now),
        )
        self.out.rent_parts += bill.cost_parts(instant(now))

    def _reclaim_nodes(self, name: str, token: int, placement: PlacementDecision, now: float) -> None:
        grant = self.rentals.get(name)
        if grant is None or grant.token != token:
            return
        self.out.interruptions += 1
        if grant.rental.state is RentalState.OPENING:
            self._next_offer(name, token, placement, now)
            return
        pool = grant.pool
        self.shortages = self.shortages.with_refusal(pool.instance_type, pool.zone, pool.market, instant(now))
        if name in self.live:
            self.pending[name] = self._stop_job(name, now, AttemptState.LOST).replace(lost_at=instant(now))
        else:
            self._end_rental(name, now)


def at_cell(setup: Json, *, delay: float = 1, spot: float = 1, committed: float = 1) -> Json:
    """Return the setup of a cell of the grid."""
    jobs, market, fleet = setup["jobs"], setup["market"], setup["committed"]
    classes = {
        name: {**kind, "usdPerHourOfDelay": kind["usdPerHourOfDelay"] * delay} for name, kind in jobs["classes"].items()
    }
    return {
        **setup,
        "jobs": {**jobs, "classes": classes},
        "market": {**market, "spotShareOfOnDemand": market["spotShareOfOnDemand"] * spot},
        "committed": {**fleet, "nodes": max(1, round(fleet["nodes"] * committed))},
    }


def quantiles(delays: list[float]) -> Json:
    """Return p50, p90, p99 and the maximum in hours."""
    ordered = sorted(delays)
    return {f"p{share}": round(ordered[int(share / 100 * len(ordered))] / HOUR, 3) for share in (50, 90, 99)} | {
        "max": round(ordered[-1] / HOUR, 1)
    }


# ---------------------------------------------------------------- measuring


SITE: dict[str, int] = {"max_moves": 3, "max_wait_seconds": 600, "backfill_seconds": 1800}
"""Fields of `burst` beside prices and caps, and `backfillSeconds`. Chosen on tuning seeds."""


def load_grid() -> Json:
    """Return the settings that were fixed before any rule was tuned."""
    grid: Json = json.loads((HERE / "setups" / "burst_grid.json").read_text(encoding="utf-8"))
    return grid


def cells_of(grid: Json) -> list[dict[str, float]]:
    """Return the published setting, each factor alone, and every combination of the corners."""
    listed, corners = grid["cells"], grid["cells"]["corners"]
    cells = [dict(listed["published"])]
    cells += [
        {**listed["published"], factor: value} for factor in ("delay", "spot", "committed") for value in listed[factor]
    ]
    combined = itertools.product(corners["delay"], corners["spot"], corners["committed"])
    return [*cells, *({"delay": delay, "spot": spot, "committed": nodes} for delay, spot, nodes in combined)]


def _candidate_baselines(grid: Json) -> dict[str, list[BaselinePolicy]]:
    knobs = grid["baselines"]
    always, greedy = knobs["always"], knobs["greedy"]
    return {
        "committed": [BaselinePolicy("committed", order) for order in knobs["committed"]["orders"]],
        "always": [
            BaselinePolicy("always", *knob)
            for knob in itertools.product(always["orders"], [0.0], always["spot"], always["maxGpus"])
        ],
        "greedy": [
            BaselinePolicy("greedy", *knob)
            for knob in itertools.product(greedy["orders"], greedy["patienceHours"], greedy["spot"], greedy["maxGpus"])
        ],
    }


def best_rivals(setup: Json, grid: Json) -> dict[str, BaselinePolicy]:
    """Return the best parameters of each baseline, tuned on this setting."""
    seeds = grid["baselines"]["tuningSeeds"]

    def cost(policy: BaselinePolicy) -> float:
        return statistics.fmean(BurstSimulation(setup, policy, seed).play().usd for seed in seeds)

    return {name: min(policies, key=cost) for name, policies in _candidate_baselines(grid).items()}


def compare_policies(
    setup: Json, grid: Json, seeds: Sequence[int], known_share: float = 1.0, site: Mapping[str, int] | None = None
) -> Json:
    """Return the costs and delays of Evenkeel and of the tuned baselines on the same seeds.

    Args:
        setup: The setting.
        grid: Parameters of the baselines.
        seeds: Seeds to measure.
        known_share: The price of delay in the policy, as a share of the true one.
        site: Fields of `burst` beside prices and caps.
    """
    site = SITE if site is None else site
    outcomes = {seed: CycleSimulation(setup, seed, delay_share=known_share, **site).play() for seed in seeds}
    costs: Json = {"evenkeel": {**_shown_costs(outcomes), "site": dict(site)}}
    played = {}
    for name, policy in best_rivals(setup, grid).items():
        played[name] = {seed: BurstSimulation(setup, policy, seed).play() for seed in seeds}
        costs[name] = {**_shown_costs(played[name]), "tunedTo": policy_parameters(policy)}
    best = min(played, key=lambda name: float(costs[name]["usd"]))
    ratio, low, high = ratio_with_interval([(outcomes[seed].usd, played[best][seed].usd) for seed in seeds])
    longest = {name: max(map(max, (run.delays for run in runs.values()))) for name, runs in played.items()}
    return {
        "best": best,
        "ratio": round(ratio, 3),
        "low": round(low, 3),
        "high": round(high, 3),
        "wins": sum(outcomes[seed].usd < played[best][seed].usd for seed in seeds),
        "seeds": len(seeds),
        "longestHours": round(max(max(run.delays) for run in outcomes.values()) / HOUR, 2),
        "longestHoursOfGreedy": round(longest["greedy"] / HOUR, 2),
        "policies": costs,
    }


def _shown_costs(runs: Mapping[int, BurstOutcome]) -> Json:
    figures = policy_figures(runs)
    names_kept = (
        "usd",
        "rentUsd",
        "delayUsd",
        "meanDelayHours",
        "rentals",
        "interruptions",
        "moves",
        "idleShare",
        "bySeed",
    )
    delays = [delay for run in runs.values() for delay in run.delays]
    longest = {str(seed): round(max(run.delays) / HOUR, 2) for seed, run in runs.items()}
    return {
        **{name: figures[name] for name in names_kept},
        "delayHours": quantiles(delays),
        "longestHoursBySeed": longest,
    }


def main(words: Sequence[str] | None = None) -> int:
    """Compare, print, and write the figures as JSON after each cell."""
    parser = argparse.ArgumentParser(prog="python -m bench.burst_cycle", description=__doc__)
    parser.add_argument("--grid", action="store_true", help="all cells of the grid, on the grid's seeds")
    parser.add_argument(
        "--cells",
        nargs="+",
        metavar="D,S,C",
        help="only these cells: price of delay x, price of Spot x, committed nodes x",
    )
    parser.add_argument("--untold", action="store_true", help="the policy keeps the published prices of delay")
    parser.add_argument("--plain", action="store_true", help="without the settings of `SITE`")
    parser.add_argument("--seeds", type=int, nargs="*", help="seeds, instead of the seeds in the grid file")
    parser.add_argument("--days", type=int, help="a shorter month")
    parser.add_argument("--processes", type=int, default=1, help="cells that are measured at the same time")
    parser.add_argument("--output", type=Path, help="file for the figures")
    arguments = parser.parse_args(words)
    grid, setup = load_grid(), load_setup()
    if arguments.days:
        setup = {**setup, "jobs": {**setup["jobs"], "days": arguments.days}}
    seeds = arguments.seeds or grid["seeds"]["gridSeeds" if arguments.grid or arguments.untold else "published"]
    cells = cells_of(grid) if arguments.grid or arguments.untold else [grid["cells"]["published"]]
    if arguments.cells:
        factors = [map(float, listed.split(",")) for listed in arguments.cells]
        cells = [dict(zip(("delay", "spot", "committed"), values, strict=True)) for values in factors]
    if arguments.untold:
        cells = [cell for cell in cells if cell["delay"] != 1 and cell["spot"] == cell["committed"] == 1]
    figures: Json = {
        **describe_origin("bench.burst_cycle", words, seeds),
        "setup": setup_hash(),
        "days": setup["jobs"]["days"],
        "cells": [],
    }
    compare = functools.partial(
        _compare_cell,
        setup=setup,
        grid=grid,
        seeds=seeds,
        is_untold=arguments.untold,
        site={} if arguments.plain else None,
    )
    with ProcessPoolExecutor(arguments.processes) as processes:
        for row in processes.map(compare, cells):
            figures["cells"].append(row)
            print(json.dumps({name: value for name, value in row.items() if name != "policies"}), flush=True)
            write_figures(arguments.output, figures)
    return 0


def _compare_cell(
    cell: Mapping[str, float],
    *,
    setup: Json,
    grid: Json,
    seeds: Sequence[int],
    is_untold: bool,
    site: Mapping[str, int] | None,
) -> Json:
    """Return the row of one cell."""
    known_share = 1 / cell["delay"] if is_untold else 1.0
    return {**cell, **compare_policies(at_cell(setup, **cell), grid, seeds, known_share, site)}


if __name__ == "__main__":
    sys.exit(main())
