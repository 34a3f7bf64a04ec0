"""A spike of a Deployment on a full fleet: nodes are rented for replicas, and returned once no replica uses them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from evenkeel.domain.admission.scheduling_policy import SchedulingPolicy
from evenkeel.domain.capacity.node_capacity import NodeCapacity
from evenkeel.domain.capacity.pool_choices import Toleration, all_tolerated
from evenkeel.domain.capacity.pools import Market
from evenkeel.domain.capacity.shortages import Shortages
from evenkeel.domain.external.adoption_policy import ServingWorkload
from evenkeel.domain.external.serving import holder_id
from evenkeel.domain.external.unmanaged_workloads import UnmanagedPod
from evenkeel.domain.jobs.job import JobState
from evenkeel.domain.nodes import NodeLife
from evenkeel.domain.policy import Policy
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.renting.burst_policy import RentedPool
from evenkeel.domain.renting.rental import Rental, RentalState
from evenkeel.domain.renting.serving_rentals import ServingState
from evenkeel.domain.replay import replay
from evenkeel.domain.resources import Resources
from evenkeel.domain.scheduling.serving_demand import ServingReturn, next_serving_return
from evenkeel.domain.waiting import ConditionKind, wait_name
from evenkeel.ports import ExecutionState, Table, WorkflowName
from evenkeel.services.rentals import rent_capacity
from evenkeel.services.rentals.rent_capacity import RentalStep
from evenkeel.services.tables import fleet_rows, job_rows, rows, subject_rows
from tests.crash_points import SIDES_AND_STEPS
from tests.fakes import Crash, CrashPlan, a_node, crashing
from tests.fakes.cluster import CLUSTER
from tests.unit.services_jobs.test_rentals import ON_DEMAND, RentalScenario, a_policy, a_pool

SERVING, DEARER = "serving-on-demand", "serving-dearer"
TAINT = "evenkeel.io/serving=chat:NoSchedule"
BORNE = (Toleration(key="evenkeel.io/serving", value="chat"),)
MICROS = 40_000_000
CHAT = ServingWorkload(
    cluster=CLUSTER,
    namespace="serving",
    name="chat",
    priority_class="critical",
    max_replicas=6,
    rents_from=(SERVING, DEARER),
    team="chat",
)
CHAT_ID = holder_id(CHAT)


def a_serving_pool(name: str = SERVING, **changes: Any) -> RentedPool:
    facts: dict[str, Any] = {
        "name": name,
        "micros_per_node_hour": MICROS if name == SERVING else 2 * MICROS,
        "taints": (TAINT,),
        "max_nodes": 3,
        "zone": "us-west-2a" if name == SERVING else "us-west-2b",
    }
    pool = a_pool(ON_DEMAND, Market.ON_DEMAND)
    return RentedPool.model_validate({**dict(pool), **facts, **changes})


def a_serving_policy(chat: ServingWorkload = CHAT, **changes: Any) -> Policy:
    pools = (a_pool(ON_DEMAND, Market.ON_DEMAND), a_serving_pool(), a_serving_pool(DEARER))
    policy = a_policy(**{"pools": pools, **changes})
    return policy.replace(scheduling=SchedulingPolicy(serving=(chat,)))


@dataclass
class ServingSpike(RentalScenario):
    """A fleet of two committed nodes, a Deployment, Karpenter, and the scheduler of Kubernetes."""

    policy: Policy = field(default_factory=a_serving_policy)
    has_capacity: set[str] = field(default_factory=lambda: {ON_DEMAND, SERVING, DEARER})
    per_replica: int = 8
    lands_first: bool = False
    """Whether replicas are placed on a node before its capacity pod."""
    does_twice: bool = False
    """Whether each step is repeated, as after a lost reply."""

    def __post_init__(self) -> None:
        super().__post_init__()
        effects = ("create_capacity_pods", "delete_capacity_pods", "set_pool_limit", "delete_node_claim")
        self.scenario.cluster = crashing(self.world.cluster, self.plan, *effects)
        self.world.cluster.limits = {(CLUSTER, name): (0, 0) for name in (ON_DEMAND, SERVING, DEARER)}
        self.stands: dict[str, str] = {}
        """Capacity Job → the node of its pod."""
        self.made = 0

    # ------------------------------------------------------------ the Deployment

    def scale_deployment(self, replicas: int, **changes: Any) -> None:
        """Set the number of replicas. The newest replicas are removed first."""
        cluster = self.world.cluster
        pods = [pod for pod in cluster.unmanaged if pod.namespace == "serving"]
        for pod in pods[replicas:]:
            cluster.unmanaged.remove(pod)
        for _ in range(replicas - len(pods)):
            self.made += 1
            facts: dict[str, Any] = {
                "namespace": "serving",
                "name": f"chat-7d9f-{self.made}",
                "uid": f"uid-{self.made}",
                "node_name": "",
                "accelerators": self.per_replica,
                "kind": "ReplicaSet",
                "workload": "chat-7d9f",
                "created_at": self.world.clock.now(),
                "tolerations": BORNE,
            }
            cluster.unmanaged.append(UnmanagedPod.model_validate({**facts, **changes}))

    def nodes_of_pods(self) -> list[str]:
        return [pod.node_name for pod in self.world.cluster.unmanaged if pod.node_name]

    def bind_replicas(self) -> None:
        """Place each replica on the first node with enough free GPUs and tolerated taints."""
        cluster = self.world.cluster
        for index, pod in enumerate(cluster.unmanaged):
            if pod.node_name:
                continue
            used = cluster.accelerators_in_use(CLUSTER)
            held = {node for name, node in self.stands.items() if name in cluster.capacity and not self.lands_first}
            for node in cluster.nodes(CLUSTER):
                has_room = node.accelerators - used.get(node.name, 0) >= pod.accelerators
                tolerates = all_tolerated(node.blocking_taints, pod.tolerations)
                if has_room and tolerates and node.is_ready and node.name not in held:
                    cluster.unmanaged[index] = pod.replace(node_name=node.name)
                    break

    def launch_nodes(self) -> None:
        cluster = self.world.cluster
        for spec in list(cluster.capacity.values()):
            node = self.stands.get(spec.name)
            if node and cluster.node(CLUSTER, node):
                continue
            limit = cluster.limits[spec.cluster, spec.pool]
            if len(cluster.node_claims(spec.cluster, spec.pool)) >= (limit[0] if limit else 0):
                continue
            if spec.pool not in self.has_capacity:
                cluster.refusals[spec.pool] = (self.world.clock.now(), "InsufficientInstanceCapacity")
                continue
            self.launched += 1
            name = self.stands[spec.name] = f"ip-10-3-0-{self.launched}"
            cluster.launch_rented(
                a_node(
                    200 + self.launched,
                    name=name,
                    pool=spec.pool,
                    hyperpod_cluster_id=None,
                    created_at=self.world.clock.now(),
                    instance_type="p5.48xlarge",
                    labels={"karpenter.sh/nodepool": spec.pool},
                    taints=(TAINT,),
                )
            )

    def run_rental_step(self, rental: Rental, step: RentalStep, reason: str = "") -> rent_capacity.RentCapacityResult:
        result = super().run_rental_step(rental, step, reason)
        return super().run_rental_step(rental, step, reason) if self.does_twice else result

    # ------------------------------------------------------------ time

    def advance_one_cycle(self, seconds: float = 20) -> None:
        """Run a cycle, its workflows, Karpenter and Kubernetes, and move the clock."""
        self.bind_replicas()
        self.scenario.run_scheduling_cycle()
        self.advance_executions()
        self.launch_nodes()
        self.advance_executions()
        self.bind_replicas()
        self.world.clock.advance(seconds)

    def advance_cycles(self, count: int) -> None:
        for _ in range(count):
            self.advance_one_cycle()

    def start_spike(self, replicas: int = 2, **changes: Any) -> None:
        """Fill the fleet with a job of one size, and scale the Deployment beyond it."""
        self.scenario.submit("first", checkpoint_uri="")
        self.scenario.run_scheduling_cycle()
        self.run_attempt(self.first_job_id, 1)
        self.scale_deployment(replicas, **changes)
        self.world.clock.advance(CHAT.patience_seconds)

    @property
    def first_job_id(self) -> str:
        (row,) = (
            row for key, row in self.world.ledger.rows.items() if key.pk.startswith("JOB#job-") and key.sk == "META"
        )
        return str(row.doc["jobId"])

    # ------------------------------------------------------------ looking

    def rentals(self) -> list[Rental]:
        rental_rows = self.world.ledger.partition(Table.JOBS, f"JOB#{CHAT_ID}", "RENTAL#")
        return [rows.decode(row, Rental) for row in rental_rows]

    def serving_state(self) -> ServingState:
        return rows.load(self.world.ledger, job_rows.serving_key(CHAT_ID), ServingState, "Deployment")

    def deployment_note(self) -> str:
        note = self.serving_state().last_note
        return note.text if note else ""


def test_serving_spike_beyond_committed_nodes_rents_and_returns_nodes() -> None:
    renting = ServingSpike()
    renting.start_spike(replicas=2)

    renting.advance_cycles(3)

    assert [(rental.state, rental.nodes, rental.offer.pool) for rental in renting.rentals()] == [
        (RentalState.READY, 1, SERVING),
        (RentalState.READY, 1, SERVING),
    ]
    assert sorted(renting.nodes_of_pods()) == sorted(name for rental in renting.rentals() for name in rental.node_names)
    assert renting.world.cluster.limits[CLUSTER, SERVING] == (2, 16)
    assert renting.world.cluster.capacity == {}
    renting.advance_cycles(10)
    assert renting.allocation_count() == 2
    renting.scale_deployment(0)
    renting.advance_cycles(6)
    assert {rental.state for rental in renting.rentals()} == {RentalState.ENDED}
    assert renting.leftovers() == []
    assert renting.scenario.job(renting.first_job_id).state is JobState.RUNNING


def test_each_node_is_returned_once_no_replica_runs_there() -> None:
    renting = ServingSpike()
    renting.start_spike(replicas=2)
    renting.advance_cycles(3)

    renting.scale_deployment(1)
    renting.advance_cycles(6)

    (serves,) = (rental for rental in renting.rentals() if rental.state is RentalState.READY)
    assert list(serves.node_names) == renting.nodes_of_pods()
    assert renting.allocation_count() == 1
    assert renting.world.cluster.limits[CLUSTER, SERVING] == (1, 8)


def test_node_waits_for_a_returning_replica_in_the_quiet_period() -> None:
    renting = ServingSpike()
    renting.start_spike(replicas=1)
    renting.advance_cycles(3)
    renting.scale_deployment(0)
    renting.advance_cycles(2)

    renting.scale_deployment(1)
    renting.advance_cycles(6)

    (rental,) = renting.rentals()
    assert rental.state is RentalState.READY
    assert renting.nodes_of_pods() == list(rental.node_names)
    assert rental.idle_since is None


def test_replicas_share_a_rented_node() -> None:
    renting = ServingSpike(per_replica=4)
    renting.start_spike(replicas=3)

    renting.advance_cycles(3)

    assert len(renting.rentals()) == 2
    assert len(renting.nodes_of_pods()) == 3


def test_nothing_is_rented_without_a_pool_for_the_deployment() -> None:
    for policy in (Policy(), a_serving_policy(CHAT.replace(rents_from=()))):
        renting = ServingSpike(policy=policy)
        renting.start_spike()

        renting.advance_cycles(2)

        assert renting.executions() == {}
        assert renting.world.ledger.get(job_rows.serving_key(CHAT_ID)) is None


def test_new_pending_replica_is_not_rented_for_yet() -> None:
    renting = ServingSpike()
    renting.start_spike(replicas=1)
    renting.scale_deployment(0)
    renting.scale_deployment(1)

    renting.scenario.run_scheduling_cycle()
    before = renting.allocation_count()
    renting.world.clock.advance(CHAT.patience_seconds)
    renting.scenario.run_scheduling_cycle()

    assert (before, renting.allocation_count()) == (0, 1)


def test_elastic_job_shrinks_instead_of_a_rental() -> None:
    renting = ServingSpike()
    renting.scenario.submit("first", nodes=2, elastic={"min_nodes": 1, "max_nodes": 2})
    renting.scenario.run_scheduling_cycle()
    renting.run_attempt(renting.first_job_id, 1)
    renting.scale_deployment(1)
    renting.world.clock.advance(CHAT.patience_seconds)

    renting.scenario.run_scheduling_cycle()
    renting.scenario.run_scheduling_cycle()

    resize = renting.scenario.job(renting.first_job_id).live_resize()
    assert resize
    assert resize.nodes == 1
    assert renting.allocation_count() == 0
    assert "Committed nodes can run its replicas" in renting.deployment_note()


def test_nodes_that_shrinking_cannot_free_are_rented() -> None:
    renting = ServingSpike()
    renting.scenario.submit("first", nodes=2, elastic={"min_nodes": 1, "max_nodes": 2})
    renting.scenario.run_scheduling_cycle()
    renting.run_attempt(renting.first_job_id, 1)
    renting.scale_deployment(1)
    renting.world.clock.advance(CHAT.patience_seconds)
    renting.scenario.run_scheduling_cycle()

    renting.scale_deployment(3)
    renting.world.clock.advance(CHAT.patience_seconds)
    renting.scenario.run_scheduling_cycle()

    assert renting.allocation_count() == 2


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.RECOMMEND])
def test_observe_mode_reports_a_spike_once_without_renting(mode: Mode) -> None:
    renting = ServingSpike()
    renting.start_spike()
    renting.mode = renting.scenario.mode = mode

    renting.advance_cycles(2)

    assert renting.allocation_count() == 0
    assert renting.deployment_note().startswith(
        f"Mode is {mode}: Evenkeel would rent nodes, but takes no action. {SERVING} starts the workload"
    )
    assert len(renting.decision_records("PLACEMENT")) == 1


def test_serving_decisions_replay_and_list_their_alternatives() -> None:
    renting = ServingSpike(has_capacity={ON_DEMAND, DEARER})
    renting.start_spike()
    renting.advance_cycles(6)

    records = renting.decision_records("PLACEMENT")

    assert {record.subject for record in records} == {CHAT_ID}
    assert [replay(record, renting.policy).differs_from(record) for record in records] == [""] * len(records)
    assert {alternative.option for alternative in records[0].alternatives} == {
        "p5-workers",
        "the end of the spike",
        DEARER,
    }


def test_replica_waits_if_its_delay_costs_less_than_rent() -> None:
    renting = ServingSpike(policy=a_serving_policy(delay_micros_per_hour={"critical": MICROS}))
    renting.start_spike()

    renting.advance_cycles(3)

    assert renting.allocation_count() == 0
    assert f"{SERVING} would save" in renting.deployment_note()
    assert len(renting.decision_records("PLACEMENT")) == 1


def test_team_and_fleet_caps_limit_serving_rentals() -> None:
    for caps in ({"team_caps_micros_per_hour": {"chat": MICROS}}, {"fleet_cap_micros_per_hour": MICROS}):
        renting = ServingSpike(policy=a_serving_policy(**caps))
        renting.start_spike(replicas=3)

        renting.advance_cycles(4)

        assert renting.allocation_count() == 1, caps
        assert renting.leftovers()[1:] != []
        assert len(renting.nodes_of_pods()) == 1


def test_jobs_and_replicas_share_the_rental_limit_of_a_cycle() -> None:
    renting = ServingSpike(policy=a_serving_policy(fleet_cap_micros_per_hour=2 * MICROS + 50_000_000))
    renting.start_spike(replicas=2)
    renting.scenario.submit("second", nodes=2)

    renting.scenario.run_scheduling_cycle()

    assert [row.doc["jobId"] for row in renting.world.ledger.partition(Table.QUOTAS, "TREE#fleet", "RENTAL#")] == [
        CHAT_ID,
        CHAT_ID,
    ]


def test_concurrent_cycles_rent_a_node_once() -> None:
    renting = ServingSpike()
    renting.start_spike(replicas=1)

    renting.run_concurrent_cycles()

    assert renting.allocation_count() == 1


def test_node_of_a_deployment_is_offered_to_no_job() -> None:
    renting = ServingSpike(policy=a_serving_policy(pools=(a_serving_pool(), a_serving_pool(DEARER))))
    renting.start_spike(replicas=1)
    renting.advance_cycles(3)
    renting.scale_deployment(0)

    second = renting.scenario.submit("second", nodes=1)
    renting.advance_cycles(1)

    assert renting.scenario.job(second.job_id).state is JobState.PENDING
    assert renting.scenario.job(second.job_id).rentals == 0


def test_missing_toleration_prevents_a_rental_and_is_the_reason() -> None:
    renting = ServingSpike()
    renting.start_spike(tolerations=())

    renting.advance_cycles(2)

    assert renting.allocation_count() == 0
    assert f"Its pods do not tolerate {TAINT}." in renting.deployment_note()


def test_unknown_node_selector_prevents_a_rental() -> None:
    renting = ServingSpike()
    renting.start_spike(selector={"disk": "nvme"})

    renting.advance_cycles(2)

    assert renting.allocation_count() == 0
    assert "Its pods select disk=nvme, and the policy does not give nodes of" in renting.deployment_note()


def test_unused_rented_node_pauses_further_rentals() -> None:
    renting = ServingSpike()
    renting.bind_replicas = lambda: None  # type: ignore[method-assign]
    renting.start_spike(replicas=1)

    renting.advance_cycles(8)

    (rental,) = renting.rentals()
    assert rental.state is RentalState.ENDED
    assert "No replica of serving/chat used the node within" in rental.reason
    assert renting.serving_state().unused_rentals == 1
    assert "The node that was rented last stayed unused" in renting.deployment_note()
    assert renting.leftovers() == []
    renting.advance_cycles(45)
    assert len(renting.rentals()) == 2


def test_refused_pool_is_skipped_for_every_deployment() -> None:
    renting = ServingSpike(has_capacity={ON_DEMAND, DEARER})
    renting.start_spike(replicas=1)

    renting.advance_cycles(4)

    (rental,) = renting.rentals()
    assert [offer.pool for offer in rental.offers] == [SERVING, DEARER]
    assert renting.nodes_of_pods() == list(rental.node_names)
    row = renting.world.ledger.get(fleet_rows.shortages_key())
    assert row is not None
    assert [entry.zone for entry in rows.decode(row, Shortages).entries] == ["us-west-2a"]


def test_serving_rental_without_any_capacity_ends_with_a_reason() -> None:
    renting = ServingSpike(has_capacity=set())
    renting.start_spike(replicas=1)

    renting.advance_cycles(8)

    assert {rental.state for rental in renting.rentals()} == {RentalState.ENDED}
    assert "The provider refused capacity there" in renting.deployment_note()
    assert renting.leftovers() == []


def test_spike_that_ends_early_leaves_no_rented_node() -> None:
    renting = ServingSpike()
    renting.start_spike(replicas=1)
    renting.scenario.run_scheduling_cycle()
    renting.advance_executions()

    renting.scale_deployment(0)
    renting.advance_cycles(3)

    assert [rental.state for rental in renting.rentals()] == [RentalState.ENDED]
    assert renting.leftovers() == []
    assert renting.serving_state().unused_rentals == 0
    assert renting.deployment_note() == ""


def test_surplus_node_is_returned_on_arrival() -> None:
    renting = ServingSpike()
    renting.start_spike(replicas=2)
    renting.scenario.run_scheduling_cycle()
    renting.advance_executions()
    renting.scale_deployment(1)

    renting.advance_cycles(4)

    assert sorted(rental.state for rental in renting.rentals()) == [RentalState.ENDED, RentalState.READY]
    assert len(renting.nodes_of_pods()) == 1


@pytest.mark.parametrize("replicas", [1, 2])
def test_rented_node_with_an_early_replica_becomes_ready(replicas: int) -> None:
    renting = ServingSpike(lands_first=True)
    renting.start_spike(replicas=replicas)
    renting.scenario.run_scheduling_cycle()
    renting.advance_executions()
    renting.launch_nodes()
    renting.bind_replicas()

    renting.advance_cycles(4)

    assert [rental.state for rental in renting.rentals()] == [RentalState.READY] * replicas
    assert sorted(renting.nodes_of_pods()) == sorted(name for rental in renting.rentals() for name in rental.node_names)
    renting.scale_deployment(0)
    renting.advance_cycles(6)
    assert renting.leftovers() == []


def test_reclaimed_spot_node_of_a_deployment_is_replaced() -> None:
    renting = ServingSpike()
    renting.start_spike(replicas=1)
    renting.advance_cycles(3)
    (gone,) = renting.rentals()[0].node_names
    renting.world.cluster.claimed.clear()
    renting.world.cluster.remove_node(gone)
    renting.scale_deployment(0)
    renting.scale_deployment(1)

    renting.advance_cycles(8)

    assert [rental.state for rental in renting.rentals()] == [RentalState.ENDED, RentalState.READY]
    assert len(renting.nodes_of_pods()) == 1


def test_node_with_a_replica_is_returned_only_after_its_time() -> None:
    renting = ServingSpike(policy=a_serving_policy(CHAT.replace(rented_seconds=3600)))
    renting.start_spike(replicas=1)
    renting.advance_cycles(3)
    renting.policy = renting.scenario.policy = a_serving_policy(CHAT.replace(rents_from=(), rented_seconds=3600))
    renting.advance_cycles(20)
    before = renting.rentals()[0].state
    renting.world.clock.advance(3600)
    renting.advance_one_cycle()

    assert before is RentalState.READY
    assert renting.rentals()[0].state is RentalState.ENDED
    assert renting.rentals()[0].reason.startswith("The rental's time limit is")


def test_rented_node_stays_for_a_late_replica() -> None:
    renting = ServingSpike()
    renting.start_spike(replicas=1)
    renting.advance_cycles(3)
    (rental,) = renting.rentals()

    result = renting.run_rental_step(rental, RentalStep.RELEASE, "No replica has stood there.")

    assert result.outcome == "IN_USE"
    assert result.reason == "Replicas of serving/chat run on these nodes."


def test_team_pays_until_the_instance_is_gone() -> None:
    renting = ServingSpike()
    renting.world.cluster.slow_to_go = True
    renting.start_spike(replicas=1)
    renting.advance_cycles(3)
    renting.scale_deployment(0)
    renting.advance_cycles(6)
    before = renting.allocation_count()
    renting.world.cluster.go()
    renting.advance_cycles(1)

    (rental,) = renting.rentals()
    assert (before, renting.allocation_count()) == (1, 0)
    assert rental.ended_at is not None
    assert rental.cost_parts == MICROS * round((rental.ended_at - rental.begun_at).total_seconds())
    assert {bill.team for bill in rental.bills()} == {"chat"}


def test_sweeper_starts_a_serving_rental_without_a_workflow() -> None:
    renting = ServingSpike()
    renting.start_spike(replicas=1)
    renting.scenario.run_scheduling_cycle()
    workflows, name = renting.world.workflows, f"{CHAT_ID}-b1"
    del workflows.executions[WorkflowName.BURST_CAPACITY, name], workflows.states[WorkflowName.BURST_CAPACITY, name]
    renting.world.clock.advance(60)

    renting.scenario.sweep()
    workflows.finish(WorkflowName.BURST_CAPACITY, name, ExecutionState.FAILED)
    renting.scenario.sweep()

    assert list(renting.executions()) == [name, f"{name}-r2"]


def test_wait_opened_twice_or_answered_late_changes_nothing() -> None:
    renting = ServingSpike()
    renting.start_spike(replicas=1)
    renting.advance_cycles(3)
    (rental,) = renting.rentals()

    answers = [renting.wait_answer(rental, ConditionKind.RENTAL_ENDED) for _ in range(2)]
    renting.scale_deployment(0)
    renting.world.clock.advance(10)
    answers += [renting.wait_answer(renting.rentals()[0], ConditionKind.RENTAL_ENDED)]
    renting.world.clock.advance(renting.policy.burst.quiet_seconds)
    answers += [renting.wait_answer(renting.rentals()[0], ConditionKind.RENTAL_ENDED)]

    assert answers == [None, None, None, "OVER"]
    assert renting.world.ledger.get(subject_rows.wait_key(CHAT_ID, wait_name(ConditionKind.RENTAL_ENDED, 1))) is None


def test_repeated_steps_rent_and_return_once() -> None:
    renting = ServingSpike(does_twice=True)
    renting.start_spike(replicas=2)
    renting.advance_cycles(3)
    served = sorted(renting.nodes_of_pods())
    renting.scale_deployment(0)
    renting.advance_cycles(6)

    assert served == sorted(name for rental in renting.rentals() for name in rental.node_names)
    assert [rental.state for rental in renting.rentals()] == [RentalState.ENDED] * 2
    assert renting.leftovers() == []
    deleted = [call for call in renting.world.cluster.calls if call[0] == "delete_node_claim"]
    assert len(deleted) == len(set(deleted)) == 2


@pytest.mark.parametrize(
    "lands_first", [False, pytest.param(True, marks=pytest.mark.exhaustive)], ids=["leaves first", "lands first"]
)
@pytest.mark.parametrize(("when", "step"), SIDES_AND_STEPS)
def test_spike_ends_the_same_after_any_crash(when: str, step: int, lands_first: bool) -> None:
    undisturbed = _play(CrashPlan(), lands_first=lands_first)
    assert (undisturbed.leftovers(), undisturbed.most, len(undisturbed.rentals())) == ([], 2, 2)
    effects = len(undisturbed.plan.effects)
    assert effects > 20
    for at in range(1, effects + 1, step):
        renting = _play(CrashPlan(at=at, when=when), lands_first=lands_first)
        crash = f"{when} effect {at}, {undisturbed.plan.effects[at - 1]}"
        assert renting.leftovers() == [], crash
        assert renting.most == 2, crash
        assert {rental.state for rental in renting.rentals()} == {RentalState.ENDED}, crash


def _play(plan: CrashPlan, *, lands_first: bool) -> Any:
    """Run a whole spike. The workflow, the next cycle or the sweep repeats a crashed step."""
    renting: Any = ServingSpike(plan=CrashPlan(), lands_first=lands_first)
    renting.start_spike(replicas=2)
    skipped = len(renting.plan.effects)
    renting.plan.at, renting.plan.when = (plan.at + skipped if plan.at else 0), plan.when
    renting.most = 0

    def again(do: Callable[[], object]) -> None:
        try:
            do()
        except Crash:
            renting.world.clock.advance(1)

    for turn in range(40):
        renting.bind_replicas()
        again(renting.scenario.run_scheduling_cycle)
        again(renting.advance_executions)
        renting.launch_nodes()
        again(renting.advance_executions)
        renting.bind_replicas()
        renting.most = max(renting.most, len(renting.nodes_of_pods()))
        if turn == 7:
            renting.scale_deployment(0)
        renting.world.clock.advance(20)
        again(renting.scenario.sweep)
        if turn > 7 and not renting.leftovers():
            break
    del renting.plan.effects[:skipped]
    return renting


# ---------------------------------------------------------------- the policy


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"rents_from": ("elsewhere",)}, "there is no pool elsewhere to rent from"),
        ({"cluster": "other-eks"}, "there is no pool serving-on-demand to rent from in other-eks"),
        ({"rents_from": (ON_DEMAND,)}, "needs a taint"),
    ],
)
def test_registration_that_rents_needs_its_own_pools(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Policy.model_validate(
            a_serving_policy().to_json() | {"scheduling": {"serving": [CHAT.replace(**changes).to_json()]}}
        )


def test_pool_belongs_to_one_deployment() -> None:
    other = CHAT.replace(name="search", rents_from=(DEARER,))
    document = a_serving_policy().to_json() | {"scheduling": {"serving": [CHAT.to_json(), other.to_json()]}}

    with pytest.raises(ValueError, match=f"{DEARER} is a pool of serving/chat and of serving/search"):
        Policy.model_validate(document)


# ---------------------------------------------------------------- replicas that move back


def recreate_replicas(renting: ServingSpike) -> None:
    """Create again each replica whose node is gone, as its ReplicaSet does."""
    cluster = renting.world.cluster
    names = {node.name for node in cluster.nodes(CLUSTER)}
    for index, pod in enumerate(cluster.unmanaged):
        if pod.node_name and pod.node_name not in names:
            cluster.unmanaged[index] = pod.replace(node_name="", created_at=renting.world.clock.now())


def end_first_job(renting: ServingSpike) -> None:
    renting.world.cluster.finish_pods(renting.first_job_id, 1)
    renting.scenario.settle(renting.first_job_id, 1)


def run_until_moved(renting: ServingSpike, cycles: int = 8) -> list[int]:
    """Run cycles; return how many rentals were open after each."""
    open_rentals = []
    for _ in range(cycles):
        renting.advance_one_cycle(61)
        recreate_replicas(renting)
        open_rentals.append(renting.allocation_count())
    return open_rentals


def test_replicas_move_to_free_committed_nodes_while_they_serve() -> None:
    renting = ServingSpike()
    renting.start_spike(replicas=2)
    renting.advance_cycles(3)
    before = {rental.state for rental in renting.rentals()}

    end_first_job(renting)
    open_rentals = run_until_moved(renting, cycles=12)

    assert before == {RentalState.READY}
    assert open_rentals == sorted(open_rentals, reverse=True)
    assert {rental.state for rental in renting.rentals()} == {RentalState.ENDED}
    assert [name.startswith("hyperpod-") for name in renting.nodes_of_pods()] == [True, True]
    record, *_ = renting.decision_records("SERVING_RETURN")
    assert record.reason == "p5-workers has room for the 1 replica on the rented node, which costs $40.00 an hour."
    assert replay(record, renting.policy).differs_from(record) == ""


def test_deployment_returns_one_node_at_a_time() -> None:
    renting = ServingSpike()
    renting.start_spike(replicas=2)
    renting.advance_cycles(3)

    end_first_job(renting)
    renting.world.clock.advance(61)
    renting.scenario.run_scheduling_cycle()
    renting.scenario.run_scheduling_cycle()

    assert sorted(rental.is_returning for rental in renting.rentals()) == [False, True]


def test_only_replica_stays_so_that_the_service_goes_on() -> None:
    renting = ServingSpike()
    renting.start_spike(replicas=1)
    renting.advance_cycles(3)

    end_first_job(renting)
    run_until_moved(renting, cycles=3)

    assert [rental.is_returning for rental in renting.rentals()] == [False]


def test_replica_stays_while_no_other_replica_is_ready() -> None:
    renting = ServingSpike()
    renting.start_spike(replicas=2)
    renting.advance_cycles(3)
    cluster = renting.world.cluster
    cluster.unmanaged[:] = [pod.replace(is_unready=True) for pod in cluster.unmanaged]

    end_first_job(renting)
    run_until_moved(renting, cycles=3)

    assert {rental.is_returning for rental in renting.rentals()} == {False}


def test_slots_of_replicas_that_move_are_not_promised_again() -> None:
    renting = ServingSpike()
    renting.start_spike(replicas=2)
    renting.advance_cycles(3)
    moving, staying = renting.rentals()
    node = renting.world.cluster.nodes(CLUSTER)[0]
    search = CHAT.replace(name="search", rents_from=(DEARER,))
    pods = [
        pod.replace(workload="search-5c4d") if pod.node_name in moving.node_names else pod
        for pod in renting.world.cluster.unmanaged
    ]
    elsewhere = pods[0].replace(name="elsewhere", workload="chat-7d9f", node_name="hyperpod-other", accelerators=8)
    assert moving.serving_target
    target = moving.serving_target.replace(name="search")
    moving = moving.replace(job_id=holder_id(search), serving_target=target, is_returning=True)
    size = Resources(accelerators=8, cpu_millis=100_000, memory_mib=1_000_000)
    free = NodeCapacity(
        life=NodeLife(cluster=CLUSTER, instance_id="i-1", launched_at=renting.world.clock.now()),
        node_name=node.name,
        cluster=CLUSTER,
        pool="p5-workers",
        instance_type="p5.48xlarge",
        allocatable=size,
        free=size,
    )
    later = renting.world.clock.now() + timedelta(seconds=600)
    chat = CHAT.replace(rents_from=(SERVING,))
    policy = renting.policy.replace(scheduling=SchedulingPolicy(serving=(chat, search)))

    def next_return(rentals: list[Rental]) -> ServingReturn | None:
        return next_serving_return(rentals, {CLUSTER: [*pods, elsewhere]}, [free], policy, later)

    alone = next_return([staying])
    assert alone
    assert alone.rental.name == staying.name
    assert next_return([moving, staying]) is None


def test_replicas_stay_while_a_job_waits_for_the_nodes() -> None:
    renting = ServingSpike()
    renting.start_spike(replicas=2)
    renting.advance_cycles(3)
    first = renting.first_job_id
    renting.scenario.submit("large", nodes=2, checkpoint_uri="")
    renting.world.cluster.finish_pods(first, 1)
    renting.scenario.settle(first, 1)
    renting.world.cluster.foreign_accelerators[renting.world.cluster.nodes(CLUSTER)[0].name] = 1

    run_until_moved(renting, cycles=3)

    assert {rental.is_returning for rental in renting.rentals()} == {False}


def test_replicas_that_do_not_fit_on_committed_nodes_stay() -> None:
    renting = ServingSpike()
    renting.start_spike(replicas=1)
    renting.advance_cycles(3)

    run_until_moved(renting, cycles=4)

    assert [(rental.state, rental.is_returning) for rental in renting.rentals()] == [(RentalState.READY, False)]


def test_spares_stay_free_when_replicas_could_move() -> None:
    policy = a_serving_policy()
    scheduling = policy.scheduling.replace(spare_nodes={"p5-workers": 2})
    renting = ServingSpike()
    renting.start_spike(replicas=2)
    renting.advance_cycles(3)
    renting.policy = renting.scenario.policy = policy.replace(scheduling=scheduling)

    end_first_job(renting)
    run_until_moved(renting, cycles=3)

    assert {rental.is_returning for rental in renting.rentals()} == {False}
