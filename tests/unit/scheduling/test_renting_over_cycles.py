"""Rentals over many scheduling cycles: no limit is exceeded, and jobs return to idle committed nodes."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.domain.capacity.compatibility import PoolEnvironment
from evenkeel.domain.capacity.pools import LaunchDelay, Market
from evenkeel.domain.economics import money
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.jobs.spec import JobSpec
from evenkeel.domain.policy import Policy
from evenkeel.domain.quotas.budgets import add_rent, remaining_by_team
from evenkeel.domain.quotas.spending import Spending
from evenkeel.domain.quotas.teams import Team, TeamSetup
from evenkeel.domain.renting.burst_policy import BurstPolicy, RentedPool
from evenkeel.domain.renting.candidates import PlacementContext, placement_facts
from evenkeel.domain.renting.migration import (
    MigrationAction,
    MigrationDecision,
    MigrationTarget,
    decide_migration,
    migration_facts,
)
from evenkeel.domain.renting.placement import PlacementAction, place_in_queue_order
from evenkeel.domain.renting.rental import Rental, RentalOffer, RentalState, end_rental, release_rental
from evenkeel.domain.renting.rental_book import RentalAllocation, RentalBook
from tests.examples import examples
from tests.unit.scheduling.pool_builders import HOUR, NOW, at

TEAMS = ("speech", "vision")


def a_job(number: int, team: str = "vision", **spec: Any) -> Job:
    facts = {
        "name": "job",
        "team": team,
        "image": "i",
        "command": ("c",),
        "checkpoint_uri": f"s3://b/{number}",
        **spec,
    }
    return Job(
        job_id=f"job-{number}",
        spec=JobSpec.model_validate(facts),
        state=JobState.PENDING,
        submitted_at=NOW,
        cluster="research-eks",
        namespace="jobs",
    )


# ---------------------------------------------------------------- caps, limits, budgets


def a_pool(index: int, dollars: int, most: int, market: Market) -> RentedPool:
    return RentedPool(
        name=f"pool-{index}",
        cluster="research-eks",
        market=market,
        instance_type="p5.48xlarge",
        accelerators_per_node=8,
        max_nodes=most,
        micros_per_node_hour=dollars * money.MICROS_PER_USD,
        launch=LaunchDelay(p50_seconds=60, p90_seconds=60),
        environment=PoolEnvironment(),
    )


pools = st.lists(
    st.tuples(st.integers(1, 60), st.integers(1, 6), st.sampled_from([Market.SPOT, Market.ON_DEMAND])),
    min_size=1,
    max_size=3,
).map(lambda pool_values: tuple(a_pool(index, *values) for index, values in enumerate(pool_values)))
caps = st.integers(0, 300).map(lambda dollars: dollars * money.MICROS_PER_USD)
submissions = st.tuples(
    st.sampled_from(TEAMS),
    st.integers(1, 4),
    st.sampled_from(["priced", "unpriced"]),
    st.sampled_from([None, 3 * HOUR, 12 * HOUR]),
)
passes = st.lists(
    st.tuples(st.integers(1, 3 * HOUR), st.lists(submissions, max_size=4), st.lists(st.integers(0, 7), max_size=3)),
    min_size=1,
    max_size=6,
)


@settings(max_examples=examples(150), deadline=None)
@given(pools, caps, st.fixed_dictionaries(dict.fromkeys(TEAMS, caps)), st.sampled_from([None, 0, 90, 700]), passes)
def test_rentals_never_exceed_caps_pool_limits_or_budgets(
    rented_pools: tuple[RentedPool, ...],
    fleet_cap: int,
    team_caps: dict[str, int],
    usd: int | None,
    history: list[tuple[int, list[tuple[str, int, str, int | None]], list[int]]],
) -> None:
    """Random jobs with and without prices and deadlines, rentals that end early or on time, and random cycles.

    In every cycle the hourly cost of all rentals, and of each team's, is within its cap. The nodes of a pool are within
    its limit. The cost and the expected further cost of a team's rentals are within its budget.
    """
    burst = BurstPolicy(
        pools=rented_pools,
        fleet_cap_micros_per_hour=fleet_cap,
        team_caps_micros_per_hour=team_caps,
        delay_micros_per_hour={"priced": 500 * money.MICROS_PER_USD},
        expected_run_seconds={"priced": 2 * HOUR, "unpriced": 2 * HOUR},
    )
    policy = Policy(burst=burst)
    budgets = () if usd is None else ({"period": "month", "usd": usd},)
    setup = TeamSetup(teams=tuple(Team.model_validate({"name": name, "budgets": budgets}) for name in TEAMS))
    settled: dict[tuple[str, str], Spending] = {}
    paid = dict.fromkeys(TEAMS, 0)
    running: list[Rental] = []
    now, count = NOW, 0
    for gap, submitted, leaving in history:
        now += timedelta(seconds=gap)
        over = [
            rented_job
            for index, rented_job in enumerate(running)
            if index in leaving or now >= expected_end(rented_job)
        ]
        for rental in over:
            cost = end_rental(
                release_rental(rental, "It is over.", ()).rental, min(now, expected_end(rental))
            ).rental.cost_parts
            paid[rental.team] += cost
            before = settled.get((rental.team, "2026-11"), Spending()).usd_micros
            settled[rental.team, "2026-11"] = Spending(usd_micros=before + -(-cost // 3600))
        running = [rental for rental in running if rental not in over]
        spent = add_rent(settled, setup, running, now)
        allocations = tuple(RentalAllocation.of(rental) for rental in running)
        remaining = remaining_by_team(setup, spent, (), running, policy.economy, now)
        placement_context = PlacementContext(now, rented=RentalBook(tuple(running), allocations, remaining))
        jobs = []
        for team, nodes, priority_class, deadline in submitted:
            count += 1
            until = now + timedelta(seconds=deadline) if deadline else None
            jobs.append(a_job(count, team, nodes=nodes, priority_class=priority_class, deadline_at=until))
        for decision in place_in_queue_order([placement_facts(job, placement_context, policy) for job in jobs]):
            if decision.action is PlacementAction.RENT and decision.row:
                pool = next(rented_pool for rented_pool in rented_pools if rented_pool.name == decision.pool)
                running.append(a_rental(decision.facts.job.team, decision.facts.job.nodes, pool, decision.row, now))

        holds = [RentalAllocation.of(rental) for rental in running]
        assert sum(hold.micros_per_hour for hold in holds) <= fleet_cap
        for team in TEAMS:
            rentals_of_team = [rental for rental in running if rental.team == team]
            assert sum(hold.micros_per_hour for hold in holds if hold.team == team) <= team_caps[team]
            if usd is not None:
                assert (
                    paid[team] + sum(rental.expected_parts for rental in rentals_of_team)
                    <= usd * money.COST_PARTS_PER_USD
                )
        for pool in rented_pools:
            assert sum(hold.nodes for hold in holds if hold.pool == pool.name) <= pool.max_nodes


def a_rental(team: str, nodes: int, pool: RentedPool, row: Any, now: Any) -> Rental:
    return Rental(
        job_id="job",
        number=1,
        team=team,
        namespace="jobs",
        state=RentalState.READY,
        reason="It cannot wait.",
        nodes=nodes,
        offers=(RentalOffer.of(pool, now).replace(joined_node_names=tuple(f"ip-{number}" for number in range(nodes))),),
        begun_at=now,
        ready_by=now,
        decision_id="dec-1",
        expected_parts=row.rent_parts,
    )


def expected_end(rental: Rental) -> Any:
    """Return when a rental has cost what was expected, to the second."""
    rate = rental.offer.micros_per_node_hour * rental.nodes
    return rental.begun_at + timedelta(seconds=rental.expected_parts // rate)


# ---------------------------------------------------------------- migration back


@dataclass
class RentedJob:
    """A job on rented nodes, with facts that Evenkeel does not know."""

    job: Job
    pool: RentedPool
    total_seconds: int
    """Duration of its whole run, which Evenkeel does not know."""
    ran_seconds: int = 0
    is_back: bool = False
    avoidable_rent_parts: int = 0
    """Rent that was paid while committed nodes were idle for it, and no other job used them."""

    @property
    def nodes(self) -> int:
        return self.job.spec.nodes

    @property
    def rate(self) -> int:
        return self.pool.micros_per_node_hour * self.nodes

    @property
    def is_done(self) -> bool:
        return self.ran_seconds >= self.total_seconds

    def cost_of_moving(self, policy: Policy) -> int:
        """Compute independently the cost of the move and of one more restart, in parts."""
        save, restart = self.job.spec.grace_seconds, policy.jobs.expected_resume_seconds
        delay = policy.burst.delay_of(self.job.spec.priority_class)
        return self.rate * save + delay * (save + LAUNCH + 2 * restart)

    def remaining(self, policy: Policy) -> float:
        """Compute independently the expected remaining run time in seconds."""
        remaining = policy.burst.run_seconds_of(self.job.spec.priority_class) - self.ran_seconds
        return remaining if remaining > 0 else max(60, self.ran_seconds / 2)

    def decided(self, policy: Policy, now: Any) -> MigrationDecision:
        target = MigrationTarget(pool="plan", launch_seconds=LAUNCH)
        return decide_migration(
            migration_facts(self.job, self.nodes, self.pool, target, policy, now, ran_seconds=float(self.ran_seconds))
        )


LAUNCH = 60
visitors = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.integers(1, 60),
        st.integers(0, 60),
        st.integers(60, 30 * HOUR),
        st.integers(60, 30 * HOUR),
        st.integers(0, 600),
        st.booleans(),
        st.sampled_from([None, 2 * HOUR, 20 * HOUR]),
    ),
    min_size=1,
    max_size=3,
)
days = st.lists(st.tuples(st.integers(10, 4 * HOUR), st.integers(0, 6)), min_size=1, max_size=25)


@settings(max_examples=examples(300), deadline=None)
@given(visitors, days)
def test_jobs_on_rented_nodes_return_to_idle_committed_nodes(
    candidates: list[tuple[int, int, int, int, int, int, bool, int | None]], days: list[tuple[int, int]]
) -> None:
    """Other jobs use and leave committed nodes, cycles run at random times, and estimates of run times may be wrong.

    In every cycle, consider the jobs on rented nodes for which committed nodes are free and no other job waits:

    * A job migrates back, at its next save, if its expected further rent exceeds the cost of its move and one restart.
      A cycle migrates a single job, so another job may be chosen first.
    * Otherwise a job stays only if it keeps no checkpoints, or if the move would make it miss its deadline.

    A job with checkpoints therefore pays beside idle nodes at most twice the cost of its move, over its whole life.
    The rent until the next cycle is extra. This holds for any error of its estimate: an overdue run is expected to
    take half as long again.
    """
    burst = BurstPolicy(
        delay_micros_per_hour={
            f"class-{index}": candidate[2] * money.MICROS_PER_USD for index, candidate in enumerate(candidates)
        },
        expected_run_seconds={f"class-{index}": candidate[4] for index, candidate in enumerate(candidates)},
    )
    policy = Policy(burst=burst)
    jobs = []
    for index, (nodes, dollars, _, run_seconds, _, grace, keeps, deadline) in enumerate(candidates):
        job = a_job(
            index,
            nodes=nodes,
            priority_class=f"class-{index}",
            grace_seconds=grace,
            checkpoint_uri="s3://b/c" if keeps else "",
            deadline_at=at(deadline) if deadline else None,
        )
        jobs.append(RentedJob(job, a_pool(index, dollars, 3, Market.ON_DEMAND), run_seconds))
    now, longest = NOW, max(gap for gap, _ in days)
    for gap, left_by_others in days:
        free = left_by_others - sum(job.nodes for job in jobs if job.is_back and not job.is_done)
        rented = [job for job in jobs if not job.is_back and not job.is_done]
        fit = [job for job in rented if job.nodes <= free]
        decided = [(job, job.decided(policy, now)) for job in fit]
        migrating = next(
            (rented_job for rented_job, decision in decided if decision.action is MigrationAction.MIGRATE), None
        )

        for rented_job, decision in decided:
            pays = rented_job.rate * rented_job.remaining(policy) > rented_job.cost_of_moving(policy)
            keeps = bool(rented_job.job.spec.checkpoint_uri)
            expected = pays and keeps and not deadline_prevents_move(rented_job, policy, now)
            assert (decision.action is MigrationAction.MIGRATE) == expected, decision.reason
        if migrating is not None:
            migrating.is_back = True
        for running_job in rented:
            ran = min(gap, running_job.total_seconds - running_job.ran_seconds)
            if migrating is None and running_job in fit:
                running_job.avoidable_rent_parts += running_job.rate * ran
        for unfinished_job in jobs:
            unfinished_job.ran_seconds = min(unfinished_job.total_seconds, unfinished_job.ran_seconds + gap)
        now += timedelta(seconds=gap)

    for final_job in jobs:
        if final_job.job.spec.checkpoint_uri and final_job.job.spec.deadline_at is None:
            assert final_job.avoidable_rent_parts <= 2 * final_job.cost_of_moving(policy) + final_job.rate * longest


def deadline_prevents_move(rented_job: RentedJob, policy: Policy, now: Any) -> bool:
    if rented_job.job.spec.deadline_at is None:
        return False
    slack_seconds = (rented_job.job.spec.deadline_at - now).total_seconds() - rented_job.remaining(policy)
    move_seconds = rented_job.job.spec.grace_seconds + LAUNCH + policy.jobs.expected_resume_seconds
    return bool(0 <= slack_seconds < move_seconds)
