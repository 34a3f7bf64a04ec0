"""Rentals in memory: the cycle rents, tasks assign and release nodes, and a crash does not change the end."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from evenkeel.domain.capacity.compatibility import PoolEnvironment
from evenkeel.domain.capacity.pools import LaunchDelay, Market
from evenkeel.domain.capacity.shortages import Shortages
from evenkeel.domain.decisions import Decision
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.jobs.job_policy import JobPolicy
from evenkeel.domain.policy import Policy
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.quotas.teams import Team
from evenkeel.domain.renting.burst_policy import BurstPolicy, RentedPool
from evenkeel.domain.renting.candidates import jobs_to_place
from evenkeel.domain.renting.placement import PlacementFacts
from evenkeel.domain.renting.rental import Rental, RentalState
from evenkeel.domain.replay import replay
from evenkeel.domain.waiting import ConditionKind, Wait, WaitOutcome, wait_name
from evenkeel.ports import Delete, ExecutionState, Ledger, NotAllowed, Table, WorkflowName
from evenkeel.services.rentals import rent_capacity
from evenkeel.services.rentals.rent_capacity import RentalStep, RentOutcome
from evenkeel.services.tables import fleet_rows, job_rows, quota_rows, rows, subject_rows
from evenkeel.services.waits import judge_wait, open_wait, wait_observation
from tests.crash_points import SIDES_AND_STEPS
from tests.fakes import Crash, CrashPlan, a_node
from tests.fakes.cluster import CLUSTER
from tests.interleaving import InterleavedLedger, at_every_point
from tests.unit.services_jobs.job_scenario import JobScenario
from tests.unit.services_jobs.test_scheduling_hold import hold_scheduling
from tests.unit.services_jobs.test_teams import set_up_teams

SPOT, ON_DEMAND = "burst-spot", "burst-on-demand"
NODE_HOUR = {SPOT: 20_000_000, ON_DEMAND: 50_000_000}


def a_pool(name: str, market: Market, **changes: Any) -> RentedPool:
    facts = {
        "name": name,
        "cluster": CLUSTER,
        "market": market,
        "instance_type": "p5.48xlarge",
        "zone": "us-west-2a",
        "accelerators_per_node": 8,
        "max_nodes": 4,
        "micros_per_node_hour": NODE_HOUR[name],
        "launch": LaunchDelay(p50_seconds=60, p90_seconds=120),
        "place": PoolEnvironment(),
    }
    return RentedPool.model_validate({**facts, **changes})


def a_policy(**changes: Any) -> Policy:
    facts = {
        "pools": (a_pool(SPOT, Market.SPOT), a_pool(ON_DEMAND, Market.ON_DEMAND)),
        "fleet_cap_micros_per_hour": 400_000_000,
        "other_team_cap_micros_per_hour": 400_000_000,
        "other_delay_micros_per_hour": 500_000_000,
        "other_expected_run_seconds": 7200,
        "quiet_seconds": 60,
    }
    burst = BurstPolicy.model_validate({**facts, **changes})
    return Policy(burst=burst, jobs=JobPolicy(expected_resume_seconds=60, restart_backoff_seconds=1))


@dataclass
class RentalScenario:
    """A full fleet of two nodes, a pending job, and Karpenter, which launches nodes within the limits."""

    policy: Policy = field(default_factory=a_policy)
    mode: Mode = Mode.ACT
    plan: CrashPlan = field(default_factory=CrashPlan)
    has_capacity: set[str] = field(default_factory=lambda: {SPOT, ON_DEMAND})

    def __post_init__(self) -> None:
        self.scenario = JobScenario(size=2, runs_at_once=True, policy=self.policy, mode=self.mode, plan=self.plan)
        self.world = self.scenario.world
        self.world.cluster.limits = {(CLUSTER, SPOT): (0, 0), (CLUSTER, ON_DEMAND): (0, 0)}
        self.states: dict[str, str] = {}
        self.whys: dict[str, str] = {}
        self.launched = 0

    # ------------------------------------------------------------ the world

    def launch_nodes(self) -> None:
        """Launch a node for each capacity pod without one, within the limits. Refuse if the pool has no capacity."""
        cluster = self.world.cluster
        for spec in list(cluster.capacity.values()):
            limit = cluster.limits[spec.cluster, spec.pool]
            claim_count = len(cluster.node_claims(spec.cluster, spec.pool))
            most = limit[0] if limit else 0
            for _ in range(min(spec.nodes, most) - claim_count):
                if spec.pool not in self.has_capacity:
                    cluster.refusals[spec.pool] = (self.world.clock.now(), "InsufficientInstanceCapacity")
                    break
                self.launched += 1
                number = 100 + self.launched
                cluster.launch_rented(
                    a_node(
                        number,
                        name=f"ip-10-2-0-{number}",
                        pool=spec.pool,
                        hyperpod_cluster_id=None,
                        created_at=self.world.clock.now(),
                        instance_type="p5.48xlarge",
                        efa=spec.efa,
                        labels={"karpenter.sh/nodepool": spec.pool},
                    )
                )

    def run_rental_step(self, rental: Rental, step: RentalStep, reason: str = "") -> rent_capacity.RentCapacityResult:
        scenario = self.scenario
        return rent_capacity.run(
            rent_capacity.RentCapacityRequest(step=step, job_id=rental.job_id, rental=rental.number, reason=reason),
            scenario.context(policy=self.policy, mode=self.mode),
        )

    def wait_answer(self, rental: Rental, kind: ConditionKind) -> Any:
        """Open a wait unless it is open, and return its answer; None before it has one."""
        name = wait_name(kind, rental.number)
        row = self.world.ledger.get(subject_rows.wait_key(rental.job_id, name))
        context = self.world.context(cluster=self.scenario.cluster, policy=self.policy)
        if row is None:
            request = open_wait.OpenWaitRequest(kind=kind, token="t", job_id=rental.job_id, rental=rental.number)
            open_wait.run(request, context)
            row = self.world.ledger.get(subject_rows.wait_key(rental.job_id, name))
            assert row is not None
        observed = wait_observation.Observation(
            context,
            reads_all=False,
        )
        wait = rows.decode(row, Wait)
        answer = judge_wait.judge_wait(wait, observed)
        late = self.world.clock.now() >= wait.deadline_at
        outcome = answer.outcome if answer else WaitOutcome.DEADLINE_PASSED if late else None
        if outcome:
            self.whys[rental.name] = answer.reason if answer else "Not all rented nodes joined."
            self.delete_wait(rental, kind)
        return outcome

    def delete_wait(self, rental: Rental, kind: ConditionKind) -> None:
        row = self.world.ledger.get(subject_rows.wait_key(rental.job_id, wait_name(kind, rental.number)))
        if row:
            self.world.ledger.commit(Delete(row.key, row.version))

    # ------------------------------------------------------------ its workflow

    def advance_executions(self) -> None:
        """Run every execution of burst_capacity until it waits or ends."""
        for name, document in list(self.executions().items()):
            if self.world.workflows.state(WorkflowName.BURST_CAPACITY, name) is not ExecutionState.RUNNING:
                continue
            state = self.states.get(name, "CheckRental")
            for _ in range(12):
                after = self.next_state(state, self.rental(document["jobId"], document["rental"]))
                self.states[name] = after
                pauses = after in ("NextOffer", "ReleasePool")  # it checks again which nodes remain
                if after == "Done" or (after == state and not pauses):
                    break
                state = after
            if self.states[name] == "Done":
                self.world.workflows.finish(WorkflowName.BURST_CAPACITY, name)

    def executions(self) -> dict[str, Any]:
        return {
            name: document
            for (machine, name), document in self.world.workflows.executions.items()
            if machine is WorkflowName.BURST_CAPACITY
        }

    def next_state(self, state: str, rental: Rental) -> str:
        why = self.whys.get(rental.name, "")
        match state:
            case "CheckRental":
                result = self.run_rental_step(rental, RentalStep.CHECK)
                self.whys[rental.name] = result.reason
                after = {"WANTED": "OpenPool", "READY": "AwaitEnd", "ENDING": "ReleasePool", "STALE": "Done"}
                return after[result.outcome]
            case "OpenPool":
                result = self.run_rental_step(rental, RentalStep.OPEN)
                self.whys[rental.name] = result.reason
                after = {"OPENED": "AwaitNodes", "REFUSED": "NextOffer", "NOT_WANTED": "ReleasePool"}
                return after[result.outcome]
            case "AwaitNodes":
                answer = self.wait_answer(rental, ConditionKind.RENTAL_READY)
                if answer is None:
                    return "AwaitNodes"
                return {"NODES_READY": "HandOver", "NOT_WANTED": "ReleasePool"}.get(answer, "NextOffer")
            case "HandOver":
                result = self.run_rental_step(rental, RentalStep.HAND_OVER)
                after = {"HANDED_OVER": "AwaitEnd", "NOT_YET": "AwaitNodes", "NOT_WANTED": "ReleasePool"}
                return after[result.outcome]
            case "NextOffer":
                result = self.run_rental_step(rental, RentalStep.NEXT, why)
                self.whys[rental.name] = why if result.outcome is RentOutcome.NOT_YET else result.reason
                return {"OPENED": "OpenPool", "NOT_YET": "NextOffer", "NO_OTHER_POOL": "ReleasePool"}[result.outcome]
            case "AwaitEnd":
                return "ReleasePool" if self.wait_answer(rental, ConditionKind.RENTAL_ENDED) else "AwaitEnd"
            case _:
                result = self.run_rental_step(rental, RentalStep.RELEASE, why)
                if result.outcome is RentOutcome.RELEASED:
                    result = self.run_rental_step(rental, RentalStep.SETTLE)
                after = {"NOT_YET": "ReleasePool", "IN_USE": "AwaitEnd", "SETTLED": "Done", "STALE": "Done"}
                return after[result.outcome]

    # ------------------------------------------------------------ looking

    def rental(self, job_id: str, number: int = 1) -> Rental:
        return rows.load(self.world.ledger, job_rows.rental_key(job_id, number), Rental, "rental")

    def run_concurrent_cycles(self) -> None:
        """Run a cycle that rents, and a second cycle between its read and its commit."""
        raced: list[bool] = []
        commit = self.world.ledger.commit

        def race(*writes: Any, client_token: str = "") -> None:
            if not raced and any("RENTAL#" in write.row.key.sk for write in writes if hasattr(write, "row")):
                raced.append(True)
                self.scenario.run_scheduling_cycle()
            commit(*writes, client_token=client_token)

        self.world.ledger.commit = race  # type: ignore[method-assign]
        self.scenario.run_scheduling_cycle()
        assert raced

    def allocation_count(self) -> int:
        return len(self.world.ledger.partition(Table.QUOTAS, quota_rows.rental_allocation_key("", 0).pk, "RENTAL#"))

    def decision_records(self, kind: str) -> list[Decision]:
        decision_rows = (row for key, row in self.world.ledger.rows.items() if key.pk.startswith("DEC#"))
        records = (rows.decode(row, Decision) for row in decision_rows)
        return [record for record in records if record.kind == kind]

    def leftovers(self) -> list[Any]:
        cluster = self.world.cluster
        limits = [pool_key for pool_key, limit in cluster.limits.items() if limit not in (None, (0, 0))]
        return [*cluster.capacity, *cluster.claimed, *limits] + ["a hold"] * self.allocation_count()

    def fill_fleet(self, **changes: Any) -> tuple[Job, Job]:
        """Return a job that holds both nodes, and a pending job."""
        first = self.scenario.submit("first", **changes)
        self.scenario.run_scheduling_cycle()
        self.run_attempt(first.job_id, 1)
        self.world.clock.advance(60)
        return first, self.scenario.submit("second", **changes)

    def run_attempt(self, job_id: str, attempt: int) -> None:
        self.scenario.launch(job_id, attempt)
        self.scenario.mark_running(job_id, attempt)

    def run_first_job_again_after_an_hour(self) -> None:
        """Submit a job whose first attempt fails after an hour, and start its second attempt."""
        first = self.scenario.submit("first")
        self.scenario.run_scheduling_cycle()
        self.run_attempt(first.job_id, 1)
        self.world.clock.advance(3600)
        self.world.cluster.fail_pods(first.job_id, 1)
        self.scenario.settle(first.job_id, 1)
        self.world.clock.advance(60)
        self.scenario.run_scheduling_cycle()
        self.run_attempt(first.job_id, 2)

    def rent_nodes(self) -> None:
        """Run a cycle that rents, let the nodes join, and run a cycle that uses them."""
        self.scenario.run_scheduling_cycle()
        self.advance_executions()
        self.launch_nodes()
        self.advance_executions()
        self.scenario.run_scheduling_cycle()

    def run_second_job_on_rented_nodes(self, **changes: Any) -> tuple[Job, Job]:
        """Return both jobs, the second running on rented nodes."""
        first, second = self.fill_fleet(**changes)
        self.rent_nodes()
        self.run_attempt(second.job_id, 1)
        return first, self.scenario.job(second.job_id)


def test_every_pending_job_is_considered_for_rent_in_order() -> None:
    scenario = JobScenario()
    jobs = [scenario.submit(f"key-{number}") for number in range(75)]
    policy, now = a_policy(), scenario.world.clock.now()
    weighed = [jobs_to_place(jobs, policy, now + timedelta(minutes=minute)) for minute in range(7)]

    assert all(part[:10] == jobs[:10] and len(part) <= 20 for part in weighed)
    assert {job.job_id for part in weighed for job in part} == {job.job_id for job in jobs}
    assert jobs_to_place(jobs[:20], policy, now) == jobs[:20]
    assert jobs_to_place(jobs, Policy(), now) == []


def test_cycle_emits_rent_and_its_cap_as_metrics() -> None:
    renting = RentalScenario()
    _, second = renting.run_second_job_on_rented_nodes()
    renting.world.telemetry.metrics.clear()

    renting.scenario.run_scheduling_cycle()

    offer, totals = renting.rental(second.job_id).offer, renting.world.telemetry.totals
    assert totals["RentalUsdPerHour"] == 2 * offer.micros_per_node_hour / 1_000_000 > 0
    assert totals["RentalCapUsdPerHour"] == renting.policy.burst.fleet_cap_micros_per_hour / 1_000_000 > 0


def test_urgent_job_starts_once_all_its_rented_nodes_are_ready() -> None:
    renting = RentalScenario()

    _, second = renting.run_second_job_on_rented_nodes()

    rental = renting.rental(second.job_id)
    assert rental.state is RentalState.READY
    assert second.state is JobState.RUNNING
    assert renting.scenario.attempt(second.job_id, 1).pool == SPOT
    assert renting.scenario.attempt(second.job_id, 1).node_names == rental.node_names
    assert renting.world.cluster.limits[CLUSTER, SPOT] == (2, 16)
    assert renting.world.cluster.capacity == {}


def test_shipped_policy_rents_nothing() -> None:
    renting = RentalScenario(policy=Policy())

    renting.fill_fleet()
    renting.scenario.run_scheduling_cycle()

    assert renting.executions() == {}
    assert renting.decision_records("PLACEMENT") == []


def test_rented_nodes_are_reserved_for_their_job() -> None:
    renting = RentalScenario()
    _, second = renting.fill_fleet()
    renting.scenario.run_scheduling_cycle()
    renting.advance_executions()
    renting.launch_nodes()
    renting.advance_executions()

    third = renting.scenario.submit("third", nodes=1, checkpoint_uri="")
    renting.scenario.run_scheduling_cycle()

    assert renting.scenario.job(second.job_id).state is JobState.STARTING
    assert renting.scenario.job(third.job_id).state is JobState.PENDING


SPOT_TAINT = "spot=true:NoSchedule"


@pytest.mark.parametrize("tolerates", [True, False])
def test_tainted_pool_is_rented_only_for_tolerating_jobs(tolerates: bool) -> None:
    renting = RentalScenario(policy=a_policy(pools=(a_pool(SPOT, Market.SPOT, taints=(SPOT_TAINT,)),)))
    tolerations = [{"key": "spot", "value": "true", "effect": "NoSchedule"}] if tolerates else []
    _, second = renting.fill_fleet(tolerations=tolerations)
    renting.scenario.run_scheduling_cycle()
    renting.advance_executions()
    renting.launch_nodes()
    for name in renting.world.cluster.claimed.values():
        renting.world.cluster.set_node(name[1].node_name, taints=(SPOT_TAINT,))
    renting.advance_executions()
    renting.scenario.run_scheduling_cycle()

    job = renting.scenario.job(second.job_id)
    assert (job.state is JobState.STARTING, renting.allocation_count()) == ((True, 1) if tolerates else (False, 0))
    assert tolerates or f"{SPOT}: Its pods do not tolerate {SPOT_TAINT}." in job.reason


def test_rental_cap_holds_for_any_request() -> None:
    renting = RentalScenario(policy=a_policy(fleet_cap_micros_per_hour=2 * NODE_HOUR[SPOT]))
    renting.fill_fleet()
    job_ids = [renting.scenario.submit(f"more-{number}").job_id for number in range(3)]

    for _ in range(3):
        renting.scenario.run_scheduling_cycle()

    assert renting.allocation_count() == 1
    for name in job_ids:
        assert "the fleet spends $40.00 of $40.00 an hour" in str(renting.scenario.job(name).placement), name


def test_concurrent_cycles_together_stay_within_the_rental_limit() -> None:
    renting = RentalScenario(policy=a_policy(fleet_cap_micros_per_hour=2 * NODE_HOUR[SPOT]))
    renting.fill_fleet()
    renting.scenario.submit("third")

    renting.run_concurrent_cycles()

    assert renting.allocation_count() == 1


def test_observe_mode_records_a_rental_without_renting() -> None:
    renting = RentalScenario()
    _, second = renting.fill_fleet()
    renting.scenario.mode = Mode.OBSERVE

    renting.scenario.run_scheduling_cycle()
    renting.scenario.run_scheduling_cycle()

    assert renting.allocation_count() == 0
    assert (
        "Mode is observe: Evenkeel would rent nodes, but takes no action." in renting.scenario.job(second.job_id).reason
    )
    assert len(renting.decision_records("PLACEMENT")) == 1


def test_unchanged_pending_reason_is_written_once() -> None:
    renting = RentalScenario(policy=a_policy(fleet_cap_micros_per_hour=0))
    _, second = renting.fill_fleet()
    renting.scenario.run_scheduling_cycle()
    waiting, commits = renting.scenario.job(second.job_id), len(renting.world.ledger.commits)

    renting.world.clock.advance(30)
    renting.scenario.run_scheduling_cycle()

    assert waiting.reason.startswith("The job waits for 2 nodes")
    assert waiting.placement is not None
    assert waiting.reason.endswith(waiting.placement.text)
    assert renting.scenario.job(second.job_id) == waiting
    assert [
        write for writes in renting.world.ledger.commits[commits:] for write in writes if "JOB#" in str(write)
    ] == []


def test_placement_and_migration_decisions_replay() -> None:
    renting = RentalScenario()
    first, _ = renting.run_second_job_on_rented_nodes()
    renting.world.cluster.finish_pods(first.job_id, 1)
    renting.scenario.settle(first.job_id, 1)
    renting.scenario.run_scheduling_cycle()

    records = [*renting.decision_records("PLACEMENT"), *renting.decision_records("MIGRATION")]

    assert {record.kind for record in records} == {"PLACEMENT", "MIGRATION"}
    assert [replay(record, renting.policy).differs_from(record) for record in records] == [""] * len(records)


def test_job_migrates_to_free_committed_nodes_and_returns_rented_ones() -> None:
    renting = RentalScenario()
    first, second = renting.run_second_job_on_rented_nodes()
    renting.world.cluster.finish_pods(first.job_id, 1)
    renting.scenario.settle(first.job_id, 1)

    renting.scenario.run_scheduling_cycle()
    job = renting.scenario.job(second.job_id)
    renting.scenario.stop(second.job_id, 1)
    renting.scenario.settle(second.job_id, 1)
    renting.advance_executions()
    renting.scenario.run_scheduling_cycle()
    renting.advance_executions()

    assert job.stop_request is not None
    assert job.stop_request.reason.startswith("The job migrates back to committed capacity: p5-workers has free nodes")
    assert renting.scenario.attempt(second.job_id, 2).pool == "p5-workers"
    assert renting.rental(second.job_id).state is RentalState.ENDED
    assert renting.leftovers() == []


def test_pending_jobs_get_committed_nodes_before_migrations() -> None:
    renting = RentalScenario(policy=a_policy(fleet_cap_micros_per_hour=2 * NODE_HOUR[SPOT]))
    first, second = renting.run_second_job_on_rented_nodes()
    third = renting.scenario.submit("third")
    renting.world.cluster.finish_pods(first.job_id, 1)
    renting.scenario.settle(first.job_id, 1)

    renting.scenario.run_scheduling_cycle()

    assert renting.scenario.job(third.job_id).state is JobState.STARTING
    assert renting.scenario.job(second.job_id).stop_request is None


def test_refused_market_is_skipped_for_every_job() -> None:
    renting = RentalScenario(has_capacity={ON_DEMAND})
    _, second = renting.fill_fleet()
    renting.scenario.run_scheduling_cycle()
    renting.advance_executions()
    renting.launch_nodes()
    renting.world.clock.advance(2)
    renting.advance_executions()
    renting.launch_nodes()
    renting.advance_executions()
    renting.scenario.run_scheduling_cycle()

    rental = renting.rental(second.job_id)
    assert [offer.pool for offer in rental.offers] == [SPOT, ON_DEMAND]
    assert rental.offers[0].refused == f"{SPOT} has no capacity: InsufficientInstanceCapacity"
    assert renting.world.cluster.limits == {(CLUSTER, SPOT): (0, 0), (CLUSTER, ON_DEMAND): (2, 16)}
    assert renting.scenario.attempt(second.job_id, 1).pool == ON_DEMAND
    row = renting.world.ledger.get(fleet_rows.shortages_key())
    assert row is not None
    assert [entry.market for entry in rows.decode(row, Shortages).entries] == [Market.SPOT]


def test_rental_resumed_after_a_crash_skips_a_refused_pool() -> None:
    renting = RentalScenario(has_capacity={ON_DEMAND})
    _, second = renting.fill_fleet()
    renting.scenario.run_scheduling_cycle()
    renting.advance_executions()
    renting.world.cluster.launch_rented(a_node(77, name="ip-77", pool=SPOT, hyperpod_cluster_id=None))
    renting.world.cluster.slow_to_go = True
    renting.run_rental_step(renting.rental(second.job_id), RentalStep.NEXT, "It was refused.")

    checked = renting.run_rental_step(renting.rental(second.job_id), RentalStep.CHECK)
    opened = renting.run_rental_step(renting.rental(second.job_id), RentalStep.OPEN)

    assert (checked.outcome, opened.outcome, opened.reason) == ("WANTED", "REFUSED", "It was refused.")
    assert renting.world.cluster.capacity == {}


def test_rental_is_refused_although_another_rental_has_nodes() -> None:
    renting = RentalScenario(policy=a_policy(pools=(a_pool(ON_DEMAND, Market.ON_DEMAND),)))
    renting.run_second_job_on_rented_nodes()
    third = renting.scenario.submit("third")
    renting.scenario.run_scheduling_cycle()
    renting.advance_executions()
    renting.world.cluster.refusals[ON_DEMAND] = (renting.world.clock.now(), "InsufficientInstanceCapacity")

    answer = renting.wait_answer(renting.rental(third.job_id), ConditionKind.RENTAL_READY)

    assert answer == "REFUSED"


def test_rental_without_any_capacity_ends_with_a_reason() -> None:
    renting = RentalScenario(has_capacity=set())
    _, second = renting.fill_fleet()
    renting.scenario.run_scheduling_cycle()
    for _ in range(4):
        renting.advance_executions()
        renting.launch_nodes()
        renting.world.clock.advance(2)
    renting.scenario.run_scheduling_cycle()

    job = renting.scenario.job(second.job_id)
    assert job.state is JobState.PENDING
    assert "The job waits for 2 nodes" in job.reason
    assert job.placement is not None
    assert renting.rental(second.job_id).state is RentalState.ENDED
    assert renting.rental(second.job_id).cost_parts == 0
    assert renting.leftovers() == []


def test_nodes_rented_for_a_gang_have_efa() -> None:
    renting = RentalScenario(policy=a_policy(pools=(a_pool(ON_DEMAND, Market.ON_DEMAND),)))
    renting.fill_fleet()
    renting.scenario.run_scheduling_cycle()
    renting.advance_executions()

    assert [(spec.nodes, spec.efa) for spec in renting.world.cluster.capacity.values()] == [(2, 32)]


def test_incomplete_gang_is_returned_after_the_deadline_and_billed() -> None:
    renting = RentalScenario(policy=a_policy(pools=(a_pool(ON_DEMAND, Market.ON_DEMAND),)))
    _, second = renting.fill_fleet()
    renting.scenario.run_scheduling_cycle()
    renting.advance_executions()
    name = next(iter(renting.world.cluster.capacity))
    renting.world.cluster.launch_rented(
        a_node(77, name="ip-77", pool=ON_DEMAND, hyperpod_cluster_id=None, created_at=renting.world.clock.now())
    )
    renting.world.clock.advance(901)
    renting.advance_executions()

    rental = renting.rental(second.job_id)
    assert name == rental.name
    assert rental.state is RentalState.ENDED
    assert rental.offers[0].joined_node_names == ("ip-77",)
    assert rental.cost_parts == NODE_HOUR[ON_DEMAND] * 1 * 901
    assert renting.scenario.job(second.job_id).state is JobState.PENDING
    assert renting.leftovers() == []


def test_rental_with_nodes_of_two_pools_ends() -> None:
    renting = RentalScenario(has_capacity={ON_DEMAND})
    _, second = renting.fill_fleet()
    renting.scenario.run_scheduling_cycle()
    renting.advance_executions()
    renting.world.cluster.launch_rented(a_node(77, name="ip-77", pool=SPOT, hyperpod_cluster_id=None))
    renting.launch_nodes()
    renting.world.clock.advance(2)
    renting.advance_executions()
    renting.launch_nodes()
    renting.advance_executions()

    renting.scenario.cancel(second.job_id)
    renting.advance_executions()

    rental = renting.rental(second.job_id)
    assert [len(offer.joined_node_names) for offer in rental.offers] == [1, 2]
    assert rental.state is RentalState.ENDED
    assert renting.leftovers() == []


def test_bill_is_price_times_started_seconds_times_nodes() -> None:
    renting = RentalScenario()
    _, second = renting.run_second_job_on_rented_nodes()
    renting.world.clock.advance(100.5)
    renting.world.cluster.finish_pods(second.job_id, 1)
    renting.scenario.settle(second.job_id, 1)
    renting.advance_executions()

    rental = renting.rental(second.job_id)
    assert rental.cost_parts == NODE_HOUR[SPOT] * 2 * 101
    assert rental.shown_cost == "$1.12"
    assert renting.leftovers() == []


def test_caps_count_a_rental_until_its_last_node_ends() -> None:
    renting = RentalScenario()
    renting.world.cluster.slow_to_go = True
    _, second = renting.run_second_job_on_rented_nodes()
    renting.world.cluster.finish_pods(second.job_id, 1)
    renting.scenario.settle(second.job_id, 1)
    renting.advance_executions()
    before = renting.allocation_count()
    renting.world.cluster.go()
    renting.advance_executions()

    assert (before, renting.allocation_count()) == (1, 0)


@pytest.mark.parametrize(
    ("step", "outcome"),
    [
        (RentalStep.CHECK, RentOutcome.ENDING),
        (RentalStep.OPEN, RentOutcome.NOT_WANTED),
        (RentalStep.NEXT, RentOutcome.NO_OTHER_POOL),
    ],
)
def test_no_pool_is_asked_for_nodes_during_a_hold(step: RentalStep, outcome: RentOutcome) -> None:
    renting = RentalScenario()
    _, job = renting.fill_fleet()
    renting.scenario.run_scheduling_cycle()
    rental = renting.rental(job.job_id)
    hold_scheduling(renting.scenario)

    held = renting.run_rental_step(rental, step)

    assert (held.outcome, len(renting.rental(job.job_id).offers)) == (outcome, 1)
    assert "holds admissions until" in held.reason
    assert renting.world.cluster.capacity == {}


def test_pool_without_limits_is_refused() -> None:
    renting = RentalScenario(policy=a_policy(pools=(a_pool(ON_DEMAND, Market.ON_DEMAND),)))
    renting.world.cluster.limits[CLUSTER, ON_DEMAND] = None
    _, second = renting.fill_fleet()
    renting.scenario.run_scheduling_cycle()
    renting.advance_executions()

    assert renting.rental(second.job_id).state is RentalState.ENDED
    assert "no limit" in renting.rental(second.job_id).offers[0].refused
    assert renting.world.cluster.claimed == {}


def test_reclaimed_spot_node_is_replaced_on_demand() -> None:
    renting = RentalScenario()
    _, second = renting.run_second_job_on_rented_nodes()
    node_name = renting.rental(second.job_id).node_names[0]
    renting.world.cluster.claimed = {
        name: claim for name, claim in renting.world.cluster.claimed.items() if claim[1].node_name != node_name
    }
    renting.world.cluster.stop(renting.scenario.attempt(second.job_id), 1)
    renting.world.cluster.remove_node(node_name)
    renting.scenario.settle(second.job_id, 1)
    renting.advance_executions()
    renting.world.clock.advance(5)
    renting.scenario.run_scheduling_cycle()
    renting.advance_executions()
    renting.launch_nodes()
    renting.advance_executions()
    renting.scenario.run_scheduling_cycle()

    assert renting.rental(second.job_id, 1).state is RentalState.ENDED
    assert renting.scenario.attempt(second.job_id, 2).pool == ON_DEMAND


def test_cancelled_job_leaves_no_rental() -> None:
    renting = RentalScenario()
    _, second = renting.fill_fleet()
    renting.scenario.run_scheduling_cycle()
    renting.advance_executions()
    renting.launch_nodes()

    renting.scenario.cancel(second.job_id)
    renting.advance_executions()

    assert renting.rental(second.job_id).state is RentalState.ENDED
    assert renting.leftovers() == []


def test_sweeper_restarts_a_rental_without_a_running_workflow() -> None:
    renting = RentalScenario()
    _, second = renting.fill_fleet()
    renting.scenario.run_scheduling_cycle()
    workflows, name = renting.world.workflows, f"{second.job_id}-b1"
    del workflows.executions[WorkflowName.BURST_CAPACITY, name], workflows.states[WorkflowName.BURST_CAPACITY, name]
    renting.world.clock.advance(60)

    renting.scenario.sweep()
    workflows.finish(WorkflowName.BURST_CAPACITY, name, ExecutionState.FAILED)
    renting.scenario.sweep()

    assert list(renting.executions()) == [name, f"{name}-r2"]


def test_failed_restart_of_a_rental_keeps_no_other_rental_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    renting = RentalScenario()
    _, second = renting.fill_fleet()
    third = renting.scenario.submit("third", nodes=1)
    for _ in range(2):
        renting.scenario.run_scheduling_cycle()
    workflows, names = renting.world.workflows, [f"{job.job_id}-b1" for job in (second, third)]
    for name in names:
        workflows.finish(WorkflowName.BURST_CAPACITY, name, ExecutionState.FAILED)
    renting.world.clock.advance(60)
    start = workflows.start

    def refuse_first(machine: WorkflowName, name: str, document: Any) -> bool:
        if name == f"{names[0]}-r2":
            raise NotAllowed(name)
        return start(machine, name, document)

    monkeypatch.setattr(workflows, "start", refuse_first)
    result = renting.scenario.sweep()

    assert f"{names[1]}-r2" in renting.executions()
    assert any(names[0] in failure for failure in result.failed)


@pytest.mark.parametrize(("when", "step"), SIDES_AND_STEPS)
def test_rental_ends_the_same_after_any_crash(when: str, step: int) -> None:
    undisturbed = run_both_jobs_with_crash(CrashPlan())
    assert undisturbed.leftovers() == []
    effects = len(undisturbed.plan.effects)
    for at in range(1, effects + 1, step):
        renting = run_both_jobs_with_crash(CrashPlan(at=at, when=when))
        crash = f"{when} effect {at}, {undisturbed.plan.effects[at - 1]}"
        assert renting.leftovers() == [], crash
        assert [renting.scenario.job(name).state for name in renting.names] == [JobState.SUCCEEDED] * 2, crash


def run_both_jobs_with_crash(plan: CrashPlan) -> Any:
    """Run both jobs to their ends. The workflow, the next cycle or the sweep repeats a crashed step."""
    renting = RentalScenario(plan=CrashPlan())
    first, second = renting.fill_fleet()
    renting.names = (first.job_id, second.job_id)  # type: ignore[attr-defined]
    renting.plan.at, renting.plan.when = (plan.at + len(renting.plan.effects) if plan.at else 0), plan.when
    skipped = len(renting.plan.effects)

    def call_ignoring_crash(do: Callable[[], object]) -> None:
        try:
            do()
        except Crash:
            renting.world.clock.advance(1)

    def launch_starting_jobs() -> None:
        for name in renting.names:  # type: ignore[attr-defined]
            job = renting.scenario.job(name)
            if job.state is JobState.STARTING:
                renting.run_attempt(name, job.current_attempt)

    for turn in range(30):
        call_ignoring_crash(renting.scenario.run_scheduling_cycle)
        call_ignoring_crash(renting.advance_executions)
        renting.launch_nodes()
        call_ignoring_crash(renting.advance_executions)
        call_ignoring_crash(launch_starting_jobs)
        if turn > 3:
            for name in renting.names:  # type: ignore[attr-defined]
                job = renting.scenario.job(name)
                if job.state is JobState.RUNNING:
                    renting.world.cluster.finish_pods(name, job.current_attempt)
                    call_ignoring_crash(lambda n=name, a=job.current_attempt: renting.scenario.settle(n, a))  # type: ignore[misc]
        renting.world.clock.advance(20)
        call_ignoring_crash(renting.scenario.sweep)
        over = all(renting.scenario.job(name).state.has_ended for name in renting.names)  # type: ignore[attr-defined]
        if over and not renting.leftovers():
            break
    renting.plan.effects[:] = renting.plan.effects[skipped:]
    return renting


# ---------------------------------------------------------------- teams


def a_team_with(*groups: dict[str, dict[str, int]]) -> Team:
    members = [{"principal": "arn:aws:iam::111122223333:role/ana"}]
    queue = {"cohort": "fleet", "groups": list(groups)}
    return Team.model_validate({"name": "red", "queue": queue, "members": members})


@pytest.mark.parametrize("rented", [0, 8, 16])
def test_rental_is_limited_by_team_quota_of_the_type(rented: int) -> None:
    renting = RentalScenario()
    quota = {"ml.p5.48xlarge": {"nvidia.com/gpu": 32}, "p5.48xlarge": {"nvidia.com/gpu": rented}}
    set_up_teams(renting.scenario, a_team_with(quota))
    first, second = renting.fill_fleet(team="red")

    renting.scenario.run_scheduling_cycle()

    assert renting.scenario.job(first.job_id).state is JobState.RUNNING
    assert renting.allocation_count() == (1 if rented == 16 else 0)
    if rented < 16:
        assert "Rented nodes would not help the job" in renting.scenario.job(second.job_id).reason
        return
    renting.advance_executions()
    renting.launch_nodes()
    renting.advance_executions()
    renting.scenario.run_scheduling_cycle()
    (charge,) = (
        row.doc
        for row in renting.world.ledger.partition(Table.QUOTAS, quota_rows.tree_key().pk, "CHARGE#")
        if row.doc["jobId"] == second.job_id
    )
    assert charge["use"] == {"p5.48xlarge": {"nvidia.com/gpu": 16}}


def test_expected_wait_counts_earlier_attempts_of_running_job() -> None:
    renting = RentalScenario()
    scenario, clock = renting.scenario, renting.world.clock
    renting.run_first_job_again_after_an_hour()
    clock.advance(60)
    second = scenario.submit("second")
    clock.advance(60)

    scenario.run_scheduling_cycle()

    # The policy expects two hours, and both attempts ran for 62 minutes.
    assert committed_wait_of(second, renting) == 7200 - 3720


def test_expected_wait_counts_job_admitted_in_same_cycle() -> None:
    renting = RentalScenario()
    first = renting.scenario.submit("first")
    renting.world.clock.advance(60)
    second = renting.scenario.submit("second")

    renting.scenario.run_scheduling_cycle()

    assert renting.scenario.attempt(first.job_id, 1).pool == "p5-workers"
    assert committed_wait_of(second, renting) == 7200  # the policy expects two hours


def committed_wait_of(job: Job, renting: RentalScenario) -> float:
    """Return the wait for committed nodes that the recorded placement of a job expects."""
    records = renting.decision_records("PLACEMENT")
    facts = PlacementFacts.model_validate(next(record.facts for record in records if record.subject == job.job_id))
    return next(candidate.wait_seconds for candidate in facts.candidates if candidate.pool.name == "p5-workers")


def two_opening_rentals() -> tuple[RentalScenario, Rental, Rental]:
    """Return two rentals of one pool that wait for two nodes each."""
    renting = RentalScenario(policy=a_policy(pools=(a_pool(ON_DEMAND, Market.ON_DEMAND),)), has_capacity=set())
    _, second = renting.fill_fleet()
    third = renting.scenario.submit("third")
    for _ in range(2):
        renting.scenario.run_scheduling_cycle()
        renting.advance_executions()
    return renting, renting.rental(second.job_id), renting.rental(third.job_id)


def join_node(renting: RentalScenario, number: int, pool: str = ON_DEMAND) -> None:
    now = renting.world.clock.now()
    renting.world.cluster.launch_rented(
        a_node(number, name=f"ip-{number}", pool=pool, hyperpod_cluster_id=None, created_at=now)
    )


@pytest.mark.parametrize("step", [RentalStep.NEXT, RentalStep.RELEASE])
@pytest.mark.parametrize("slow_to_go", [False, True])
def test_rental_gets_no_node_that_another_rental_gives_up(step: RentalStep, slow_to_go: bool) -> None:
    def run(at: int) -> int:
        renting, ending_rental, other_rental = two_opening_rentals()
        cluster = renting.world.cluster
        join_node(renting, 77)
        renting.run_rental_step(ending_rental, RentalStep.HAND_OVER)
        join_node(renting, 78)
        cluster.slow_to_go = slow_to_go
        ending_rental = renting.rental(ending_rental.job_id)
        assert (ending_rental.offer.joined_node_names, other_rental.state) == (("ip-77",), RentalState.OPENING)

        def hand_over() -> None:
            renting.run_rental_step(other_rental, RentalStep.HAND_OVER)

        ledger = InterleavedLedger(renting.scenario.ledger, at, hand_over)
        rent_capacity.run(
            rent_capacity.RentCapacityRequest(step=step, job_id=ending_rental.job_id, rental=1, reason="It is late."),
            renting.scenario.context(policy=renting.policy, mode=renting.mode, ledger=ledger),
        )
        if ledger.calls < at:
            hand_over()  # after the step
        cluster.slow_to_go = False
        cluster.go()
        renting.run_rental_step(ending_rental, step)

        rental_after = renting.rental(other_rental.job_id)
        nodes = {node.name for node in cluster.nodes(CLUSTER)}
        assert set(rental_after.node_names) <= nodes, (at, rental_after.node_names, nodes)
        return ledger.calls

    assert len(list(at_every_point(run))) >= 5


@pytest.mark.parametrize(
    ("step", "outcome"), [(RentalStep.NEXT, RentOutcome.NO_OTHER_POOL), (RentalStep.RELEASE, RentOutcome.RELEASED)]
)
def test_rental_ends_although_other_rental_has_node_it_saw(step: RentalStep, outcome: RentOutcome) -> None:
    renting, late_rental, other_rental = two_opening_rentals()
    join_node(renting, 77)
    renting.run_rental_step(late_rental, RentalStep.HAND_OVER)
    join_node(renting, 78)
    renting.run_rental_step(other_rental, RentalStep.HAND_OVER)

    result = renting.run_rental_step(late_rental, step, "It is late.")
    if step is RentalStep.NEXT:
        renting.run_rental_step(late_rental, RentalStep.RELEASE)
    renting.run_rental_step(late_rental, RentalStep.SETTLE)

    assert result.outcome is outcome
    rental_after = renting.rental(late_rental.job_id)
    assert (rental_after.state, rental_after.bills()) == (RentalState.ENDED, ())
    assert renting.rental(other_rental.job_id).node_names == ("ip-77", "ip-78")
    assert {node.name for node in renting.world.cluster.nodes(CLUSTER)} >= {"ip-77", "ip-78"}


def test_ready_rental_is_billed_for_its_own_nodes_alone() -> None:
    renting, first_rental, second_rental = two_opening_rentals()
    join_node(renting, 77)
    renting.run_rental_step(second_rental, RentalStep.HAND_OVER)
    join_node(renting, 78)
    renting.run_rental_step(first_rental, RentalStep.HAND_OVER)
    join_node(renting, 79)
    join_node(renting, 80)
    renting.run_rental_step(second_rental, RentalStep.HAND_OVER)

    rental_after = renting.rental(second_rental.job_id)
    assert rental_after.node_names == ("ip-79", "ip-80")
    assert [bill.nodes for bill in rental_after.bills()] == [2]


def end_rental_now(renting: RentalScenario, rental: Rental) -> Rental:
    """Release all nodes of a rental and settle it."""
    renting.run_rental_step(rental, RentalStep.RELEASE, "Its job ended.")
    assert renting.run_rental_step(rental, RentalStep.SETTLE).outcome is RentOutcome.SETTLED
    return renting.rental(rental.job_id)


def test_node_seen_by_two_given_up_rentals_is_billed_once() -> None:
    renting, first_rental, second_rental = two_opening_rentals()
    join_node(renting, 77)
    for rental in (first_rental, second_rental):
        renting.run_rental_step(rental, RentalStep.HAND_OVER)

    ended_rentals = [end_rental_now(renting, rental) for rental in (first_rental, second_rental)]

    assert [[bill.nodes for bill in rental.bills()] for rental in ended_rentals] == [[1], []]


def test_node_is_billed_once_after_its_rental_has_ended() -> None:
    renting, late_rental, other_rental = two_opening_rentals()
    join_node(renting, 77)
    renting.run_rental_step(late_rental, RentalStep.HAND_OVER)
    join_node(renting, 78)
    renting.run_rental_step(other_rental, RentalStep.HAND_OVER)
    bills_after_assignment = renting.rental(late_rental.job_id).bills()

    ended_rentals = [end_rental_now(renting, rental) for rental in (other_rental, late_rental)]

    assert bills_after_assignment == ()
    assert [[bill.nodes for bill in rental.bills()] for rental in ended_rentals] == [[2], []]


def rental_with_refused_spot_node() -> tuple[RentalScenario, Rental]:
    """Return a rental whose first offer is refused, while a node of this offer still exists."""
    renting = RentalScenario(has_capacity=set())
    _, job = renting.fill_fleet()
    renting.scenario.run_scheduling_cycle()
    renting.run_rental_step(renting.rental(job.job_id), RentalStep.OPEN)
    join_node(renting, 77, SPOT)
    renting.run_rental_step(renting.rental(job.job_id), RentalStep.HAND_OVER)
    renting.world.cluster.slow_to_go = True
    result = renting.run_rental_step(renting.rental(job.job_id), RentalStep.NEXT, "It is late.")
    assert result.outcome is RentOutcome.NOT_YET
    return renting, renting.rental(job.job_id)


def give_up_first_offer(renting: RentalScenario, rental: Rental, ledger: Ledger) -> rent_capacity.RentCapacityResult:
    """Run the step NEXT for the first offer of a rental."""
    return rent_capacity.run(
        rent_capacity.RentCapacityRequest(step=RentalStep.NEXT, job_id=rental.job_id, rental=1, offer=1),
        renting.scenario.context(policy=renting.policy, mode=renting.mode, ledger=ledger),
    )


def test_late_repeated_next_step_bills_no_old_node() -> None:
    def run(at: int) -> int:
        renting, refused_rental = rental_with_refused_spot_node()

        def move_to_next_pool() -> None:
            renting.world.cluster.slow_to_go = False
            renting.world.cluster.go()
            assert renting.run_rental_step(refused_rental, RentalStep.NEXT).outcome is RentOutcome.OPENED

        ledger = InterleavedLedger(renting.scenario.ledger, at, move_to_next_pool)
        give_up_first_offer(renting, refused_rental, ledger)
        if ledger.calls < at:
            move_to_next_pool()

        offers = renting.rental(refused_rental.job_id).offers
        assert [(offer.pool, offer.joined_node_names, bool(offer.refused)) for offer in offers] == [
            (SPOT, ("ip-77",), True),
            (ON_DEMAND, (), False),
        ], at
        return ledger.calls

    assert len(list(at_every_point(run))) >= 5


def test_repeated_next_step_keeps_the_new_offer() -> None:
    renting, refused_rental = rental_with_refused_spot_node()
    renting.world.cluster.slow_to_go = False
    renting.world.cluster.go()

    results = [give_up_first_offer(renting, refused_rental, renting.scenario.ledger) for _ in range(2)]

    assert [result.outcome for result in results] == [RentOutcome.OPENED, RentOutcome.OPENED]
    offers = renting.rental(refused_rental.job_id).offers
    assert [(offer.pool, bool(offer.refused)) for offer in offers] == [(SPOT, True), (ON_DEMAND, False)]
    assert renting.run_rental_step(refused_rental, RentalStep.OPEN).offer == 2
