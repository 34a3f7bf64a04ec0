"""Pass after pass: what is rented passes no limit, and nobody stays on rented nodes beside paid ones that idle."""

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
from evenkeel.domain.quotas.spending import Spent
from evenkeel.domain.quotas.teams import Team, TeamSetup
from evenkeel.domain.renting.book import RentalAllocation, RentalBook
from evenkeel.domain.renting.candidates import PlacementContext, placement_facts
from evenkeel.domain.renting.migration import (
    MigrationAction,
    MigrationDecision,
    MigrationTarget,
    decide_migration,
    migration_facts,
)
from evenkeel.domain.renting.placement import PlacementAction, place_in_queue_order
from evenkeel.domain.renting.policy import BurstPolicy, RentedPool
from evenkeel.domain.renting.rental import Rental, RentalOffer, RentalState, ended, released
from tests.unit.scheduling.markets import HOUR, NOW, at

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
        most_nodes=most,
        micros_per_node_hour=dollars * money.MICROS,
        launch=LaunchDelay(p50_seconds=60, p90_seconds=60),
        place=PoolEnvironment(),
    )


pools = st.lists(
    st.tuples(st.integers(1, 60), st.integers(1, 6), st.sampled_from([Market.SPOT, Market.ON_DEMAND])),
    min_size=1,
    max_size=3,
).map(lambda found: tuple(a_pool(index, *each) for index, each in enumerate(found)))
caps = st.integers(0, 300).map(lambda dollars: dollars * money.MICROS)
asks = st.tuples(
    st.sampled_from(TEAMS),
    st.integers(1, 4),
    st.sampled_from(["priced", "unpriced"]),
    st.sampled_from([None, 3 * HOUR, 12 * HOUR]),
)
passes = st.lists(
    st.tuples(st.integers(1, 3 * HOUR), st.lists(asks, max_size=4), st.lists(st.integers(0, 7), max_size=3)),
    min_size=1,
    max_size=6,
)


@settings(max_examples=150, deadline=None)
@given(pools, caps, st.fixed_dictionaries(dict.fromkeys(TEAMS, caps)), st.sampled_from([None, 0, 90, 700]), passes)
def test_rentals_never_exceed_caps_pool_limits_or_budgets(
    found: tuple[RentedPool, ...],
    fleet_cap: int,
    team_caps: dict[str, int],
    usd: int | None,
    stories: list[tuple[int, list[tuple[str, int, str, int | None]], list[int]]],
) -> None:
    """Jobs come with and without prices and deadlines, rentals end early or when expected, passes come as they like.

    At every pass: what all rentals, or a team's, cost an hour is within the cap, a pool's nodes within its limit, and
    what a team's rentals have cost and are yet expected to cost within its budget.
    """
    burst = BurstPolicy(
        pools=found,
        fleet_cap_micros_per_hour=fleet_cap,
        team_caps_micros_per_hour=team_caps,
        delay_micros_per_hour={"priced": 500 * money.MICROS},
        expected_run_seconds={"priced": 2 * HOUR, "unpriced": 2 * HOUR},
    )
    policy = Policy(burst=burst)
    budgets = () if usd is None else ({"period": "month", "usd": usd},)
    setup = TeamSetup(teams=tuple(Team.model_validate({"name": name, "budgets": budgets}) for name in TEAMS))
    settled: dict[tuple[str, str], Spent] = {}
    paid = dict.fromkeys(TEAMS, 0)
    running: list[Rental] = []
    now, count = NOW, 0
    for gap, asked, leaving in stories:
        now += timedelta(seconds=gap)
        over = [each for index, each in enumerate(running) if index in leaving or now >= due(each)]
        for rental in over:
            cost = ended(released(rental, "It is over.", ()).rental, min(now, due(rental))).rental.cost_parts
            paid[rental.team] += cost
            before = settled.get((rental.team, "2026-11"), Spent()).usd_micros
            settled[rental.team, "2026-11"] = Spent(usd_micros=before + -(-cost // 3600))
        running = [each for each in running if each not in over]
        spent = add_rent(settled, setup, running, now)
        taken = tuple(RentalAllocation.of(each) for each in running)
        left = remaining_by_team(setup, spent, (), running, policy.economy, now)
        seen = PlacementContext(now, rented=RentalBook(tuple(running), taken, left))
        jobs = []
        for team, nodes, priority_class, deadline in asked:
            count += 1
            until = now + timedelta(seconds=deadline) if deadline else None
            jobs.append(a_job(count, team, nodes=nodes, priority_class=priority_class, deadline_at=until))
        for decision in place_in_queue_order([placement_facts(job, seen, policy) for job in jobs]):
            if decision.action is PlacementAction.RENT and decision.row:
                pool = next(each for each in found if each.name == decision.pool)
                running.append(a_rental(decision.facts.job.team, decision.facts.job.nodes, pool, decision.row, now))

        holds = [RentalAllocation.of(each) for each in running]
        assert sum(hold.micros_per_hour for hold in holds) <= fleet_cap
        for team in TEAMS:
            mine = [each for each in running if each.team == team]
            assert sum(hold.micros_per_hour for hold in holds if hold.team == team) <= team_caps[team]
            if usd is not None:
                assert paid[team] + sum(each.expected_parts for each in mine) <= usd * money.PARTS
        for pool in found:
            assert sum(hold.nodes for hold in holds if hold.pool == pool.name) <= pool.most_nodes


def a_rental(team: str, nodes: int, pool: RentedPool, row: Any, now: Any) -> Rental:
    return Rental(
        job_id="job",
        number=1,
        team=team,
        namespace="jobs",
        state=RentalState.READY,
        reason="It cannot wait.",
        nodes=nodes,
        offers=(RentalOffer.of(pool, now).but(joined_node_names=tuple(f"ip-{number}" for number in range(nodes))),),
        begun_at=now,
        ready_by=now,
        decision_id="dec-1",
        expected_parts=row.rent_parts,
    )


def due(rental: Rental) -> Any:
    """Return when it has cost what was expected, to the second."""
    rate = rental.offer.micros_per_node_hour * rental.nodes
    return rental.begun_at + timedelta(seconds=rental.expected_parts // rate)


# ---------------------------------------------------------------- home again


@dataclass
class RentedJob:
    """A job on rented nodes, and what is known of it."""

    job: Job
    pool: RentedPool
    takes_seconds: int
    """All of its work: nobody knows."""
    ran_seconds: int = 0
    is_home: bool = False
    beside_idle_parts: int = 0
    """Rent that was paid while room that is paid for stood idle for it, and nobody else took it."""

    @property
    def nodes(self) -> int:
        return self.job.spec.nodes

    @property
    def rate(self) -> int:
        return self.pool.micros_per_node_hour * self.nodes

    @property
    def is_done(self) -> bool:
        return self.ran_seconds >= self.takes_seconds

    def price_of_a_move(self, policy: Policy) -> int:
        """Reckon by hand what the move and one more restart cost, in parts."""
        save, restart = self.job.spec.grace_seconds, policy.jobs.expected_resume_seconds
        delay = policy.burst.delay_of(self.job.spec.priority_class)
        return self.rate * save + delay * (save + LAUNCH + 2 * restart)

    def left(self, policy: Policy) -> float:
        """Reckon by hand how much longer it is expected to run."""
        left = policy.burst.run_seconds_of(self.job.spec.priority_class) - self.ran_seconds
        return left if left > 0 else max(60, self.ran_seconds / 2)

    def judged(self, policy: Policy, now: Any) -> MigrationDecision:
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


@settings(max_examples=300, deadline=None)
@given(visitors, days)
def test_rented_jobs_return_to_idle_committed_nodes_in_time(
    guests: list[tuple[int, int, int, int, int, int, bool, int | None]], days: list[tuple[int, int]]
) -> None:
    """Others take committed nodes and leave them, passes come as they like, and estimates of run times may be wrong.

    At every pass, of the jobs on rented nodes for which committed room is free and nobody waits:

    * one whose rent over what it is expected to run on is more than its move and one restart besides is sent home, at
      its next save; one a pass, so that another may be in that very pass;
    * and for no other reason does one stay than that it is not, that it keeps no checkpoints, or that the way home
      would cost it a deadline that it meets where it is.

    So what one that keeps checkpoints pays beside idle room, over its whole life, is at most twice its move with that
    restart, and the rent until the next pass: however wrong its estimate was. Where it had outrun that by far, the
    rule takes it to run for half as long again.
    """
    burst = BurstPolicy(
        delay_micros_per_hour={f"class-{index}": candidate[2] * money.MICROS for index, candidate in enumerate(guests)},
        expected_run_seconds={f"class-{index}": candidate[4] for index, candidate in enumerate(guests)},
    )
    policy = Policy(burst=burst)
    there = []
    for index, (nodes, dollars, _, takes, _, grace, keeps, deadline) in enumerate(guests):
        job = a_job(
            index,
            nodes=nodes,
            priority_class=f"class-{index}",
            grace_seconds=grace,
            checkpoint_uri="s3://b/c" if keeps else "",
            deadline_at=at(deadline) if deadline else None,
        )
        there.append(RentedJob(job, a_pool(index, dollars, 3, Market.ON_DEMAND), takes))
    now, longest = NOW, max(gap for gap, _ in days)
    for gap, left_by_others in days:
        free = left_by_others - sum(each.nodes for each in there if each.is_home and not each.is_done)
        rented = [each for each in there if not each.is_home and not each.is_done]
        fit = [each for each in rented if each.nodes <= free]
        judged = [(each, each.judged(policy, now)) for each in fit]
        goes = next((each for each, decision in judged if decision.action is MigrationAction.MIGRATE), None)

        for each, decision in judged:
            saves = each.rate * each.left(policy) > each.price_of_a_move(policy)
            keeps = bool(each.job.spec.checkpoint_uri)
            expected = saves and keeps and not is_kept_by_its_deadline(each, policy, now)
            assert (decision.action is MigrationAction.MIGRATE) == expected, decision.reason
        if goes is not None:
            goes.is_home = True
        for each in rented:
            ran = min(gap, each.takes_seconds - each.ran_seconds)
            if goes is None and each in fit:
                each.beside_idle_parts += each.rate * ran
        for each in there:
            each.ran_seconds = min(each.takes_seconds, each.ran_seconds + gap)
        now += timedelta(seconds=gap)

    for each in there:
        if each.job.spec.checkpoint_uri and each.job.spec.deadline_at is None:
            assert each.beside_idle_parts <= 2 * each.price_of_a_move(policy) + each.rate * longest


def is_kept_by_its_deadline(each: RentedJob, policy: Policy, now: Any) -> bool:
    if each.job.spec.deadline_at is None:
        return False
    spare = (each.job.spec.deadline_at - now).total_seconds() - each.left(policy)
    away = each.job.spec.grace_seconds + LAUNCH + policy.jobs.expected_resume_seconds
    return bool(0 <= spare < away)
