"""Mixed jobs through scheduling cycles: a committed base, and rented nodes that join and leave it."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from evenkeel.domain.admission.authority import AdmissionAuthority
from evenkeel.domain.admission.scheduling_policy import SchedulingPolicy
from evenkeel.domain.capacity.run_times import run_times_of
from evenkeel.domain.capacity.shortages import Shortages
from evenkeel.domain.costs.prices import base_price_of, prices_of
from evenkeel.domain.decisions import Decision
from evenkeel.domain.elastic.sizes import ElasticPolicy
from evenkeel.domain.elastic.throughput import SizeThroughput
from evenkeel.domain.jobs.attempt import AttemptState
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.jobs.workload_kind import WorkloadKind
from evenkeel.domain.policy import Policy
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.quotas.budgets import expected_remaining_cost
from evenkeel.domain.quotas.spending import usage_by_period
from evenkeel.domain.quotas.teams import TeamSetup
from evenkeel.domain.renting.candidates import PlacementContext
from evenkeel.domain.renting.mixed_capacity import Base
from evenkeel.domain.renting.rental import RentalState
from evenkeel.domain.renting.rental_book import RentalBook
from evenkeel.domain.replay import replay
from evenkeel.domain.scheduling.cycle_snapshot import CycleSnapshot
from evenkeel.domain.scheduling.mixed_plan import jobs_to_examine, mixed_facts, spending_without_leaving
from evenkeel.ports import Invalid, Put
from evenkeel.services.jobs.check_role import Requester
from evenkeel.services.queries.costs import read_receipts
from evenkeel.services.queries.disclosure import Reader
from evenkeel.services.queries.fleet import read_status
from evenkeel.services.queries.jobs import plan_unsubmitted_job, read_jobs
from evenkeel.services.queries.records import explain
from evenkeel.services.storage import charge_rows
from evenkeel.services.tables import job_rows
from tests.crash_points import SIDES_AND_STEPS
from tests.fakes import Crash, CrashPlan, a_node, a_provider_node
from tests.fakes.cluster import CLUSTER
from tests.unit.scheduling.test_sharing import a_team
from tests.unit.services_jobs.job_scenario import JobScenario, a_spec
from tests.unit.services_jobs.test_rentals import ON_DEMAND, SPOT, RentalScenario, a_policy
from tests.unit.services_jobs.test_teams import MEMBERS, set_up_teams

TERMS = ElasticPolicy(resize_seconds=10, snooze_seconds=30, backoff_seconds=60)
POLICY = a_policy().replace(scheduling=SchedulingPolicy(elastic=TERMS))
MIXED: dict[str, Any] = {
    "nodes": 2,
    "elastic": {"min_nodes": 1, "max_nodes": 4, "sizes": [1, 2, 4], "mixed_pools": [SPOT]},
}


@dataclass
class MixedScenario(RentalScenario):
    """A fleet of two committed nodes, a job on both, and the pools that it may rent from."""

    policy: Policy = field(default_factory=lambda: POLICY)
    job_id: str = ""

    def run_base(self, **changes: Any) -> Job:
        """Return a job that runs on its base."""
        job = self.scenario.submit("mixed", **{**MIXED, **changes})
        self.scenario.run_scheduling_cycle()
        self.run_attempt(job.job_id, 1)
        self.world.clock.advance(60)
        return self.scenario.job(job.job_id)

    def let_nodes_join(self) -> None:
        """Run a cycle that rents, and let the rented nodes become ready."""
        self.scenario.run_scheduling_cycle()
        self.advance_executions()
        self.launch_nodes()
        self.advance_executions()

    def stop_attempt(self, job_id: str, step: int = 10) -> None:
        """Stop the current attempt as run_job does: it saves, ends and is settled."""
        number = self.scenario.job(job_id).current_attempt
        self.world.clock.advance(1)
        self.scenario.save_checkpoint(job_id, number, step)
        self.scenario.stop(job_id, number)
        self.scenario.settle(job_id, number)

    def start_next_attempt(self, job_id: str) -> Job:
        """Admit, launch and run the next attempt."""
        self.world.clock.advance(1)
        self.scenario.run_scheduling_cycle()
        job = self.scenario.job(job_id)
        self.world.clock.advance(1)
        self.scenario.launch(job_id, job.current_attempt)
        self.run_attempt(job_id, job.current_attempt)
        return self.scenario.job(job_id)

    def run_mixed(self, **changes: Any) -> Job:
        """Return a job that runs on its base and a rented part."""
        job = self.run_base(**changes)
        self.let_nodes_join()
        self.world.clock.advance(1)
        self.scenario.run_scheduling_cycle()
        self.stop_attempt(job.job_id)
        return self.start_next_attempt(job.job_id)

    def lose_nodes(self, *names: str) -> None:
        """Let rented nodes disappear without a notice."""
        cluster = self.world.cluster
        cluster.claimed = {name: claim for name, claim in cluster.claimed.items() if claim[1].node_name not in names}
        for name in names:
            cluster.remove_node(name)

    def set_fleet_cap(self, micros_per_hour: int) -> None:
        burst = self.policy.burst.replace(fleet_cap_micros_per_hour=micros_per_hour)
        self.policy = self.scenario.policy = self.policy.replace(burst=burst)

    def add_committed_node(self, number: int) -> None:
        """Add an idle committed node."""
        node = a_provider_node(number)
        self.world.provider.by_id[node.instance_id] = node
        self.world.cluster.add_node(a_node(number))

    def repeated(self, act: Any) -> Any:
        """Do one step. After a crash its retry does it again."""
        try:
            return act()
        except Crash:
            return act()

    def recorded(self, kind: str) -> list[Decision]:
        return self.decision_records(kind)


def test_job_runs_on_its_base_while_rented_nodes_get_ready() -> None:
    mixed = MixedScenario()
    job = mixed.run_base()

    mixed.let_nodes_join()

    rental = mixed.rental(job.job_id)
    assert (rental.state, rental.nodes, rental.joins_base) == (RentalState.READY, 2, True)
    assert mixed.scenario.job(job.job_id).state is JobState.RUNNING
    assert mixed.scenario.job(job.job_id).stop_request is None
    [record] = mixed.recorded("MIXED_GROWTH")
    assert record.action == "RENT"
    assert not replay(record, mixed.policy).differs_from(record)


def test_next_attempt_has_a_committed_base_and_a_rented_part() -> None:
    mixed = MixedScenario()

    job = mixed.run_mixed()

    attempt, rental = mixed.scenario.attempt(job.job_id, 2), mixed.rental(job.job_id)
    base = mixed.scenario.attempt(job.job_id, 1).node_names
    assert (job.state, job.size, job.rented_nodes) == (JobState.RUNNING, 4, 2)
    assert attempt.node_names == (*base, *rental.node_names)
    assert attempt.rented_part is not None
    assert (attempt.rented_part.rental, attempt.rented_part.pool) == (1, SPOT)
    assert (attempt.ranks, attempt.accelerators, attempt.priced_accelerators) == (4, 32, 16)
    assert not attempt.is_rented
    assert rental.hosts(attempt)
    assert mixed.world.cluster.capacity == {}  # the pods of the job replaced the capacity pods
    for record in mixed.recorded("ADMISSION") + mixed.recorded("RESIZE"):
        assert not replay(record, mixed.policy).differs_from(record)
    assert any("2 rented nodes of burst-spot join them." in record.reason for record in mixed.recorded("ADMISSION"))


def test_job_without_mixed_pools_never_gets_a_rented_part() -> None:
    mixed = MixedScenario()
    job = mixed.run_base(elastic={"min_nodes": 1, "max_nodes": 4})

    mixed.let_nodes_join()

    assert mixed.executions() == {}
    assert mixed.recorded("MIXED_GROWTH") == []
    assert mixed.scenario.job(job.job_id).mixed_note is None


def test_pool_that_the_job_does_not_name_is_not_rented() -> None:
    mixed = MixedScenario()
    elastic = MIXED["elastic"] | {"mixed_pools": [ON_DEMAND]}

    job = mixed.run_mixed(elastic=elastic)

    assert mixed.rental(job.job_id).offer.pool == ON_DEMAND


@pytest.mark.parametrize("lost", [1, 2], ids=["half", "all"])
def test_lost_rented_nodes_leave_the_base_running(lost: int) -> None:
    mixed = MixedScenario()
    job = mixed.run_mixed()
    base, rented = mixed.scenario.attempt(job.job_id, 1).node_names, mixed.rental(job.job_id).node_names

    mixed.world.cluster.stop(mixed.scenario.attempt(job.job_id, 2), 1)
    mixed.lose_nodes(*rented[:lost])
    mixed.scenario.settle(job.job_id, 2)
    after = mixed.start_next_attempt(job.job_id)
    mixed.advance_executions()
    mixed.advance_executions()

    attempt = mixed.scenario.attempt(job.job_id, 3)
    assert mixed.scenario.attempt(job.job_id, 2).state is AttemptState.LOST
    assert (after.state, after.size, after.rented_nodes) == (JobState.RUNNING, 2, 0)
    assert (attempt.node_names, attempt.rented_part) == (base, None)
    assert mixed.rental(job.job_id).state is RentalState.ENDED
    assert mixed.leftovers() == []


def test_refused_capacity_changes_nothing_for_the_base() -> None:
    mixed = MixedScenario(has_capacity=set())
    job = mixed.run_base()

    mixed.scenario.run_scheduling_cycle()
    mixed.advance_executions()
    mixed.launch_nodes()
    mixed.advance_executions()
    mixed.scenario.run_scheduling_cycle()

    after = mixed.scenario.job(job.job_id)
    assert (after.state, after.current_attempt, after.stop_request) == (JobState.RUNNING, 1, None)
    assert mixed.rental(job.job_id).state is RentalState.ENDED
    assert len(mixed.executions()) == 1  # the shortage keeps the next cycle from asking again
    assert after.mixed_note is not None
    assert "The provider refused capacity there." in after.mixed_note.text
    assert mixed.leftovers() == []


def test_base_starts_alone_if_rented_nodes_are_gone() -> None:
    mixed = MixedScenario()
    job = mixed.run_base()
    mixed.let_nodes_join()
    mixed.scenario.run_scheduling_cycle()
    mixed.lose_nodes(mixed.rental(job.job_id).node_names[0])

    mixed.stop_attempt(job.job_id)
    after = mixed.start_next_attempt(job.job_id)

    assert (after.state, after.size, after.failed_growths) == (JobState.RUNNING, 2, 1)
    assert mixed.scenario.attempt(job.job_id, 2).rented_part is None


def test_rented_nodes_are_kept_while_the_base_saves() -> None:
    mixed = MixedScenario()
    job = mixed.run_base()
    mixed.let_nodes_join()
    mixed.scenario.run_scheduling_cycle()

    mixed.world.clock.advance(mixed.policy.burst.quiet_seconds + 10)
    mixed.advance_executions()
    mixed.stop_attempt(job.job_id)
    mixed.advance_executions()
    after = mixed.start_next_attempt(job.job_id)

    assert (after.size, after.rented_nodes) == (4, 2)


def test_end_of_the_job_releases_both_parts() -> None:
    mixed = MixedScenario()
    job = mixed.run_mixed()

    mixed.world.cluster.finish_pods(job.job_id, 2)
    mixed.scenario.settle(job.job_id, 2)
    for _ in range(3):
        mixed.advance_executions()

    assert mixed.scenario.job(job.job_id).state is JobState.SUCCEEDED
    assert mixed.rental(job.job_id).state is RentalState.ENDED
    assert mixed.rental(job.job_id).cost_parts > 0
    assert mixed.scenario.charges() == []
    assert mixed.leftovers() == []


def test_charge_prices_the_base_and_names_the_rented_part() -> None:
    mixed = MixedScenario()
    job = mixed.run_mixed()

    [charge] = charge_rows.live_charges(mixed.world.ledger)

    assert charge.base_node_names == mixed.scenario.attempt(job.job_id, 1).node_names
    assert (charge.accelerators, charge.priced_accelerators) == (32, 16)
    assert charge.without_rented_part().accelerators == 16
    assert charge.without_rented_part().per_node == charge.per_node


def test_free_committed_nodes_replace_the_rented_part() -> None:
    mixed = MixedScenario()
    job = mixed.run_mixed()
    for number in (31, 32):
        mixed.add_committed_node(number)

    mixed.scenario.run_scheduling_cycle()
    mixed.world.clock.advance(120)
    mixed.scenario.run_scheduling_cycle()
    mixed.stop_attempt(job.job_id, 20)
    after = mixed.start_next_attempt(job.job_id)
    for _ in range(3):
        mixed.advance_executions()

    assert (after.state, after.size, after.rented_nodes) == (JobState.RUNNING, 4, 0)
    assert mixed.rental(job.job_id).state is RentalState.ENDED


def test_free_committed_nodes_come_before_rented_nodes() -> None:
    mixed = MixedScenario()
    job = mixed.run_base()
    for number in (31, 32):
        mixed.add_committed_node(number)

    mixed.scenario.run_scheduling_cycle()

    note = mixed.scenario.job(job.job_id).mixed_note
    assert note is not None
    assert "2 committed nodes are free, and the job grows onto committed nodes first." in note.text
    assert mixed.executions() == {}


def test_growth_pauses_after_rented_nodes_that_cannot_join() -> None:
    mixed = MixedScenario()
    job = mixed.run_base()
    mixed.let_nodes_join()
    cluster = mixed.world.cluster
    for name in mixed.rental(job.job_id).node_names:
        cluster.by_name[CLUSTER, name] = cluster.by_name[CLUSTER, name].replace(efa=1)

    for _ in range(3):  # less than the pause after a failed growth
        mixed.world.clock.advance(mixed.policy.burst.quiet_seconds // 3)
        mixed.let_nodes_join()

    after = mixed.scenario.job(job.job_id)
    assert mixed.rental(job.job_id).state in (RentalState.ENDING, RentalState.ENDED)
    assert (after.state, after.current_attempt, after.rentals, after.failed_growths) == (JobState.RUNNING, 1, 1, 1)
    assert after.mixed_note is not None
    assert after.mixed_note.text.startswith("Rental 1 was released: No pod has used these nodes for")


def test_lost_rented_part_is_no_longer_shown_as_joining() -> None:
    mixed = MixedScenario()
    job = mixed.run_mixed()

    mixed.world.cluster.stop(mixed.scenario.attempt(job.job_id, 2), 1)
    mixed.lose_nodes(*mixed.rental(job.job_id).node_names)
    mixed.scenario.settle(job.job_id, 2)
    mixed.start_next_attempt(job.job_id)
    mixed.advance_executions()

    note = mixed.scenario.job(job.job_id).mixed_note
    assert note is not None
    assert note.text.startswith("Rental 1 was released: ")
    assert mixed.scenario.job(job.job_id).failed_growths == 0  # the nodes had joined


def test_jobs_of_later_pages_are_examined_too() -> None:
    mixed = MixedScenario()
    job = mixed.run_base()
    [charge] = charge_rows.live_charges(mixed.world.ledger)
    jobs = {f"job-{number:02d}": job.replace(job_id=f"job-{number:02d}") for number in range(20)}
    snapshot = CycleSnapshot(
        elastic=jobs, live_charges=tuple(charge.replace(job_id=job_id) for job_id in jobs), pending={}
    )
    now = mixed.world.clock.now()

    pages = [jobs_to_examine(snapshot, mixed.policy, now + timedelta(minutes=minute)) for minute in range(3)]

    assert {job.job_id for page in pages for job in page} == set(jobs)
    assert max(map(len, pages)) == 8


def test_decision_compares_few_sizes_that_a_pool_can_supply() -> None:
    mixed = MixedScenario()
    pool = mixed.policy.burst.pools[0].replace(max_nodes=100)
    policy = mixed.policy.replace(burst=mixed.policy.burst.replace(pools=(pool,)))
    job = mixed.run_base(elastic={"min_nodes": 1, "max_nodes": 1024, "mixed_pools": [SPOT]})
    base = Base(cluster=CLUSTER, pool="p5-workers", instance_type="ml.p5.48xlarge", nodes=2)
    context = PlacementContext(
        now=mixed.world.clock.now(),
        capacities=(),
        charges=(),
        classes={},
        rented=RentalBook(),
        shortages=Shortages(),
        run_times=run_times_of((), 1),
        jobs_with_charge={},
    )

    sizes = mixed_facts(job, base, context, policy, 0.0).sizes

    assert (len(sizes), sizes[0], sizes[-1]) == (16, 3, 102)


def test_recommend_mode_rents_nothing_and_says_so_once() -> None:
    mixed = MixedScenario()
    job = mixed.run_base()
    mixed.mode = mixed.scenario.mode = Mode.RECOMMEND

    mixed.scenario.run_scheduling_cycle()
    mixed.scenario.run_scheduling_cycle()

    [record] = mixed.recorded("MIXED_GROWTH")
    assert record.reason.startswith("Mode is recommend: Evenkeel would rent nodes, but takes no action.")
    assert not replay(record, mixed.policy).differs_from(record)
    assert mixed.executions() == {}
    assert mixed.scenario.job(job.job_id).mixed_note is not None


def test_concurrent_cycles_rent_one_part() -> None:
    mixed = MixedScenario()
    job = mixed.run_base()

    mixed.run_concurrent_cycles()

    assert mixed.scenario.job(job.job_id).rentals == 1
    assert mixed.allocation_count() == 1


@pytest.mark.parametrize(
    ("changes", "field", "expected"),
    [
        ({"mixed_pools": ["burst-none"]}, "elastic.mixedPools.0", "The policy rents from no pool burst-none for jobs."),
        ({"mixed_pools": [SPOT, SPOT]}, "elastic.mixedPools", "Name at most 8 pools, each once."),
        ({"min_nodes": 2, "max_nodes": 2, "sizes": [2]}, "elastic.mixedPools", "set maxNodes above minNodes"),
    ],
)
def test_impossible_mixed_submission_names_its_field(changes: dict[str, Any], field: str, expected: str) -> None:
    mixed = MixedScenario()

    with pytest.raises(Invalid) as refused:
        mixed.scenario.submit("mixed", nodes=2, elastic=MIXED["elastic"] | changes)

    assert any(name == field and expected in text for name, text in refused.value.faults), refused.value.faults


def test_mixed_job_of_another_kind_is_refused() -> None:
    mixed = MixedScenario()

    with pytest.raises(Invalid, match="Rented nodes join jobs of kind Job only, and this is a PyTorchJob"):
        mixed.scenario.submit("mixed", kind=WorkloadKind.PYTORCH_JOB, **MIXED)


def test_mixed_job_is_refused_where_kueue_admits() -> None:
    scenario = JobScenario(policy=POLICY, admission=AdmissionAuthority.KUEUE)

    with pytest.raises(Invalid, match="Kueue admits the jobs of this stack, so no rented nodes can join them"):
        scenario.submit("mixed", **MIXED)


def test_plan_shows_price_and_gain_of_each_mixed_option() -> None:
    mixed = MixedScenario()
    mixed.scenario.sweep()

    planned = plan_unsubmitted_job.run(a_spec(**MIXED), Requester(principal="role/ana"), mixed.scenario.context())

    document = planned["placement"]["mixed"]
    assert (document["action"], document["basePool"], document["baseNodes"]) == ("RENT", "p5-workers", 2)
    [option] = document["options"]
    assert (option["pool"], option["nodes"], option["rentedNodes"], option["isChosen"]) == (SPOT, 4, 2, True)
    assert option["usd"]["profit"] == pytest.approx(option["usd"]["gain"] - option["usd"]["rent"], abs=0.011)
    assert option["savedSeconds"] > 0


def test_plan_without_mixed_pools_compares_pure_pools_only() -> None:
    mixed = MixedScenario()
    mixed.scenario.sweep()

    planned = plan_unsubmitted_job.run(a_spec(), Requester(principal="role/ana"), mixed.scenario.context())

    assert planned["placement"]["mixed"] is None


def test_job_document_and_why_name_both_parts() -> None:
    mixed = MixedScenario()
    job = mixed.run_mixed()
    reader, context = (
        Reader(requester=Requester(principal="role/ana"), setup=TeamSetup(), operators=()),
        mixed.scenario.context(),
    )

    document = read_jobs.show_job(job.job_id, reader, context)
    why = explain.why_job(job.job_id, reader, context)

    rental = mixed.rental(job.job_id)
    timeline = " ".join(str(entry["text"]) for entry in read_jobs.job_timeline(mixed.world.ledger, job.job_id))
    assert "Attempt 2 admitted to 2 nodes of p5-workers and 2 of burst-spot: " in timeline
    assert document["attempts"][0]["rentedPart"] == {"rental": 1, "pool": SPOT, "nodes": list(rental.node_names)}
    assert document["attempts"][1]["rentedPart"] is None
    assert document["rentals"][0]["joinsBase"] is True
    assert document["mixedGrowth"]["reason"].startswith("2 spot nodes of burst-spot join")
    assert "It runs on 2 committed nodes and 2 rented nodes." in why["sentence"]


def test_receipt_prices_each_part_of_an_attempt() -> None:
    mixed = MixedScenario()
    job = mixed.run_mixed()
    attempt, rental = mixed.scenario.attempt(job.job_id, 2), mixed.rental(job.job_id)
    economy = mixed.policy.economy

    base, mean = base_price_of(attempt, economy), prices_of([attempt], [rental], economy)[2]

    assert base is not None
    assert mean is not None
    assert mean.usd_micros_per_gpu_hour == pytest.approx((base.usd_micros_per_gpu_hour + 2_500_000) / 2, abs=1)
    assert "16 GPUs: rent of burst-spot (spot)" in mean.origin


def test_receipt_has_a_line_for_each_part() -> None:
    mixed = MixedScenario()
    job = mixed.run_mixed()
    mixed.world.clock.advance(3600)
    reader = Reader(requester=Requester(principal="role/ana"), setup=TeamSetup(), operators=())

    committed, rented = read_receipts.show_job(job.job_id, reader, mixed.scenario.context())["parts"]

    assert (committed["part"], committed["pools"]) == ("COMMITTED", ["p5-workers"])
    assert (rented["part"], rented["pools"]) == ("RENTED", [SPOT])
    assert committed["gpuHours"] > rented["gpuHours"] >= 16
    assert rented["usdMicros"] == pytest.approx(rented["gpuHours"] * 2_500_000, abs=2)


def test_receipt_without_rented_part_has_no_parts() -> None:
    mixed = MixedScenario()
    job = mixed.run_base()
    reader = Reader(requester=Requester(principal="role/ana"), setup=TeamSetup(), operators=())

    assert read_receipts.show_job(job.job_id, reader, mixed.scenario.context())["parts"] == []


def test_status_counts_both_parts_of_mixed_jobs() -> None:
    mixed = MixedScenario()
    mixed.run_mixed()

    status = read_status.show_status((), mixed.scenario.context())

    assert status["jobs"]["mixed"] == {"jobs": 1, "committedNodes": 2, "rentedNodes": 2}


def test_budget_prices_the_base_and_leaves_rent_to_its_bill() -> None:
    mixed = MixedScenario()
    job = mixed.run_mixed()
    attempt = mixed.scenario.attempt(job.job_id, 2)
    ended_at = attempt.admitted_at + timedelta(hours=1)

    [day, *_] = usage_by_period(attempt, ended_at, mixed.policy.economy)

    base = attempt.replace(
        node_names=attempt.node_names[:2], nodes=attempt.nodes[:2], size=2, accelerators=16, rented_part=None
    )
    [base_day, *_] = usage_by_period(base, ended_at, mixed.policy.economy)
    assert day.spent.usd_micros == base_day.spent.usd_micros > 0
    assert day.spent.accelerator_seconds == 2 * base_day.spent.accelerator_seconds


def test_waiting_job_takes_committed_nodes_and_the_rented_part_stays() -> None:
    mixed = MixedScenario()
    job = mixed.run_base(nodes=1, elastic={"min_nodes": 1, "max_nodes": 4, "mixed_pools": [SPOT]})
    mixed.scenario.run_scheduling_cycle()
    mixed.world.clock.advance(120)
    mixed.scenario.run_scheduling_cycle()  # it grows onto the idle committed node
    mixed.stop_attempt(job.job_id)
    mixed.start_next_attempt(job.job_id)
    mixed.world.clock.advance(60)
    mixed.let_nodes_join()
    mixed.scenario.run_scheduling_cycle()
    mixed.stop_attempt(job.job_id, 20)
    before = mixed.start_next_attempt(job.job_id)

    other = mixed.scenario.submit("other", nodes=1, checkpoint_uri="")
    mixed.scenario.run_scheduling_cycle()
    mixed.stop_attempt(job.job_id, 30)
    after = mixed.start_next_attempt(job.job_id)

    assert (before.size, before.rented_nodes) == (4, 2)
    assert (after.size, after.rented_nodes) == (3, 2)
    assert mixed.scenario.job(other.job_id).state is JobState.STARTING
    assert mixed.scenario.attempt(other.job_id, 1).pool == "p5-workers"


def test_lowered_cap_drops_the_rented_part_alone() -> None:
    mixed = MixedScenario()
    job = mixed.run_mixed()
    base = mixed.scenario.attempt(job.job_id, 1).node_names
    mixed.set_fleet_cap(1_000_000)

    mixed.scenario.run_scheduling_cycle()
    stopping = mixed.scenario.job(job.job_id)
    mixed.stop_attempt(job.job_id, 20)
    after = mixed.start_next_attempt(job.job_id)
    for _ in range(3):
        mixed.advance_executions()
    mixed.scenario.run_scheduling_cycle()

    assert stopping.stop_request is not None
    assert "It continues on its 2 committed nodes alone. The rents of" in stopping.stop_request.reason
    assert (after.state, after.size, after.rented_nodes, after.is_migrating_back) == (JobState.RUNNING, 2, 0, False)
    assert mixed.scenario.attempt(job.job_id, 3).node_names == base
    assert mixed.rental(job.job_id).state is RentalState.ENDED
    assert mixed.scenario.job(job.job_id).rentals == 1
    record = mixed.recorded("RESIZE")[-1]
    assert record.action == "SHRINK"
    assert not replay(record, mixed.policy).differs_from(record)


def test_dropped_part_does_not_join_again_before_its_late_release() -> None:
    mixed = MixedScenario()
    job = mixed.run_mixed()
    mixed.set_fleet_cap(1_000_000)
    mixed.scenario.run_scheduling_cycle()
    mixed.stop_attempt(job.job_id, 20)
    mixed.start_next_attempt(job.job_id)
    mixed.world.clock.advance(3600)

    mixed.scenario.run_scheduling_cycle()

    assert mixed.rental(job.job_id).state is RentalState.READY
    assert mixed.scenario.job(job.job_id).stop_request is None


def test_late_release_of_one_part_drops_no_second_part() -> None:
    mixed, dropped, kept = drop_one_of_two_parts()

    mixed.scenario.run_scheduling_cycle()

    assert mixed.rental(dropped).state is RentalState.READY
    assert [mixed.scenario.job(job_id).rented_nodes for job_id in (dropped, kept)] == [0, 1]
    assert mixed.scenario.job(kept).stop_request is None


def test_late_release_of_a_part_leaves_the_budget_covered() -> None:
    mixed, dropped, kept = drop_one_of_two_parts()
    jobs = {job_id: mixed.scenario.job(job_id) for job_id in (dropped, kept)}
    rentals = {job_id: mixed.rental(job_id) for job_id in (dropped, kept)}
    snapshot = CycleSnapshot(
        pending={},
        elastic=jobs,
        live_charges=charge_rows.load_charges(mixed.world.ledger).live,
        rental_book=RentalBook(rentals=tuple(rentals.values()), budgets_left={"red": -1}),
    )
    now = mixed.world.clock.now()

    limits = spending_without_leaving(jobs[kept], snapshot, mixed.policy, now)

    to_pay = expected_remaining_cost(rentals[dropped], now)
    assert to_pay > 0
    assert limits.team_budget_left_parts == to_pay - 1


def drop_one_of_two_parts() -> tuple[MixedScenario, str, str]:
    """Return two jobs after a cap fell: one on its base with unreleased rented nodes, and one with both parts."""
    mixed, jobs = two_jobs_of_one_user(limit=32)
    for _ in range(2):
        mixed.let_nodes_join()
    for _ in range(2):
        mixed.world.clock.advance(1)
        mixed.scenario.run_scheduling_cycle()
    for job_id in jobs:
        mixed.stop_attempt(job_id)
    for job_id in jobs:
        mixed.start_next_attempt(job_id)
    rates = {job_id: mixed.rental(job_id).offer.micros_per_node_hour for job_id in jobs}
    dropped, kept = sorted(jobs, key=lambda job_id: -rates[job_id])
    mixed.set_fleet_cap(rates[kept])
    mixed.scenario.run_scheduling_cycle()
    mixed.stop_attempt(dropped, 20)
    mixed.start_next_attempt(dropped)
    mixed.world.clock.advance(60)
    return mixed, dropped, kept


def test_rented_part_without_measured_gain_is_released_once() -> None:
    mixed = MixedScenario()
    job = mixed.run_mixed()
    mixed.world.clock.advance(60)
    key = job_rows.job_key(job.job_id)
    row = mixed.world.ledger.get(key)
    assert row
    points = (SizeThroughput(nodes=2, per_second=100), SizeThroughput(nodes=4, per_second=100))
    flat = mixed.scenario.job(job.job_id).replace(measured_throughput=points)
    mixed.world.ledger.commit(Put(job_rows.job_row(flat, row.version)))

    mixed.scenario.run_scheduling_cycle()
    mixed.scenario.run_scheduling_cycle()
    stops = [record for record in mixed.recorded("RESIZE") if record.action == "SHRINK"]
    mixed.stop_attempt(job.job_id, 20)
    after = mixed.start_next_attempt(job.job_id)
    for _ in range(3):
        mixed.advance_executions()
        mixed.scenario.run_scheduling_cycle()

    assert len(stops) == 1
    assert (after.size, after.rented_nodes, mixed.scenario.job(job.job_id).rentals) == (2, 0, 1)


def test_recommend_mode_drops_no_rented_part_and_records_it_once() -> None:
    mixed = MixedScenario()
    job = mixed.run_mixed()
    mixed.set_fleet_cap(1_000_000)
    mixed.mode = mixed.scenario.mode = Mode.RECOMMEND
    before = len(mixed.recorded("RESIZE"))

    mixed.scenario.run_scheduling_cycle()
    mixed.scenario.run_scheduling_cycle()

    assert mixed.scenario.job(job.job_id).stop_request is None
    assert len(mixed.recorded("RESIZE")) == before + 1


def two_jobs_of_one_user(limit: int) -> tuple[MixedScenario, list[str]]:
    """Return two jobs of one user, each on one committed node, that may each grow by one rented node."""
    mixed = MixedScenario()
    set_user_limit(mixed, limit)
    jobs = [
        mixed.scenario.submit(
            pool, team="red", nodes=1, elastic={"min_nodes": 1, "max_nodes": 2, "mixed_pools": [pool]}
        ).job_id
        for pool in (SPOT, ON_DEMAND)
    ]
    mixed.scenario.run_scheduling_cycle()
    for job_id in jobs:
        mixed.run_attempt(job_id, 1)
    mixed.world.clock.advance(60)
    return mixed, jobs


def set_user_limit(mixed: MixedScenario, limit: int) -> None:
    set_up_teams(mixed.scenario, a_team("red", 16, members=MEMBERS, max_accelerators_per_user=limit))


def test_single_rented_node_asks_for_efa_and_joins() -> None:
    mixed = MixedScenario()

    job = mixed.run_mixed(nodes=2, elastic={"min_nodes": 2, "max_nodes": 3, "mixed_pools": [SPOT]})

    assert (job.size, job.rented_nodes) == (3, 1)


def test_open_rental_counts_in_the_limit_of_its_user() -> None:
    mixed, jobs = two_jobs_of_one_user(limit=24)

    for _ in range(3):
        mixed.scenario.run_scheduling_cycle()

    rentals = [mixed.scenario.job(job_id).rentals for job_id in jobs]
    notes = [note.text for job_id in jobs if (note := mixed.scenario.job(job_id).mixed_note)]
    assert sorted(rentals) == [0, 1]
    assert any("A limit is reached: 24 of 24 accelerators" in text for text in notes), notes


def test_rented_parts_of_one_cycle_stay_within_user_limit() -> None:
    mixed, jobs = two_jobs_of_one_user(limit=32)
    for _ in range(2):
        mixed.let_nodes_join()
    for _ in range(2):
        mixed.world.clock.advance(1)
        mixed.scenario.run_scheduling_cycle()
    for job_id in jobs:
        mixed.stop_attempt(job_id)
    set_user_limit(mixed, 24)

    mixed.world.clock.advance(1)
    mixed.scenario.run_scheduling_cycle()

    attempts = [mixed.scenario.attempt(job_id, 2) for job_id in jobs]
    assert [mixed.rental(job_id).state for job_id in jobs] == [RentalState.READY] * 2
    assert sorted(attempt.accelerators for attempt in attempts) == [8, 16]


@pytest.mark.parametrize(("when", "step"), SIDES_AND_STEPS)
def test_mixed_job_ends_the_same_after_any_crash(when: str, step: int) -> None:
    undisturbed = run_mixed_job_with_crash(CrashPlan())
    assert undisturbed.leftovers() == []
    effects = len(undisturbed.plan.effects)
    for at in range(1, effects + 1, step):
        mixed = run_mixed_job_with_crash(CrashPlan(at=at, when=when))
        crash = f"{when} effect {at}, {undisturbed.plan.effects[at - 1]}"
        assert mixed.leftovers() == [], crash
        assert mixed.scenario.job(mixed.job_id).state is JobState.SUCCEEDED, crash


def run_mixed_job_with_crash(plan: CrashPlan) -> MixedScenario:
    """Run a job through growth, the loss of its rented part and its end. Every interrupted step is repeated."""
    mixed = MixedScenario(plan=plan)
    step = mixed.repeated
    job_id = mixed.job_id = step(lambda: mixed.scenario.submit("mixed", **MIXED)).job_id

    def run_next() -> None:
        step(mixed.scenario.run_scheduling_cycle)
        number = mixed.scenario.job(job_id).current_attempt
        step(lambda: mixed.scenario.launch(job_id, number))
        step(lambda: mixed.run_attempt(job_id, number))
        mixed.world.clock.advance(60)

    run_next()
    for _ in range(3):
        step(mixed.scenario.run_scheduling_cycle)
        step(mixed.scenario.sweep)
        step(mixed.advance_executions)
        mixed.launch_nodes()
        mixed.world.clock.advance(20)
    if mixed.scenario.job(job_id).stop_request:
        step(lambda: mixed.stop_attempt(job_id))
        run_next()
    number = mixed.scenario.job(job_id).current_attempt
    mixed.world.cluster.finish_pods(job_id, number)
    step(lambda: mixed.scenario.settle(job_id, number))
    for _ in range(6):
        step(mixed.scenario.sweep)
        step(mixed.advance_executions)
        mixed.world.clock.advance(60)
    return mixed
