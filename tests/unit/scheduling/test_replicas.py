"""Pending replicas: the value of a rented node, the pools that fit, and the return of nodes."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.domain.admission.admission_request import AdmissionRequest
from evenkeel.domain.admission.pool_fits import pool_fits
from evenkeel.domain.admission.scheduling_policy import SchedulingPolicy
from evenkeel.domain.capacity.compatibility import PoolEnvironment
from evenkeel.domain.capacity.node_capacity import NodeCapacity
from evenkeel.domain.capacity.pool_choices import Effect, Operator, Toleration
from evenkeel.domain.capacity.pools import LaunchDelay, Market
from evenkeel.domain.external.adoption_policy import ServingWorkload
from evenkeel.domain.external.serving import ReplicaShortfall, holder_id, replica_shortfalls
from evenkeel.domain.external.unmanaged_workloads import UnmanagedPod
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.nodes import KubernetesNode, NodeLife
from evenkeel.domain.policy import Policy
from evenkeel.domain.renting.burst_policy import BurstPolicy, RentedPool
from evenkeel.domain.renting.candidates import PlacementContext
from evenkeel.domain.renting.placement import PlacementAction, PlacementDecision, choose_pool
from evenkeel.domain.renting.rental import Rental, RentalOffer, RentalState, ServingTarget, with_replicas_observed
from evenkeel.domain.renting.rental_book import RentalAllocation, RentalBook
from evenkeel.domain.renting.rental_waits import evaluate_serving_rental_over, why_no_replica_waits
from evenkeel.domain.renting.serving_rentals import (
    NO_EXTRA_NODE,
    ServingState,
    decide_serving_rentals,
    free_replica_slots,
    replicas_on,
    why_not_schedulable,
)
from evenkeel.domain.resources import Resources
from evenkeel.domain.scheduling.serving_demand import replica_requests, reserve_for_replicas
from tests.fakes import a_node

START = datetime(2026, 11, 3, 10, 15, tzinfo=UTC)
CLUSTER, TAINT = "research-eks", "evenkeel.io/serving=chat:NoSchedule"
BORNE = Toleration(key="evenkeel.io/serving", value="chat")
MICROS = 40_000_000
CHAT = ServingWorkload(
    cluster=CLUSTER,
    namespace="serving",
    name="chat",
    priority_class="critical",
    rents_from=("chat-burst",),
    team="chat",
)
POOL = RentedPool(
    name="chat-burst",
    cluster=CLUSTER,
    market=Market.ON_DEMAND,
    instance_type="p5.48xlarge",
    accelerators_per_node=8,
    max_nodes=4,
    micros_per_node_hour=MICROS,
    launch=LaunchDelay(p50_seconds=240, p90_seconds=240),
    environment=PoolEnvironment(),
    taints=(TAINT,),
)


def a_policy(chat: ServingWorkload = CHAT, pools: tuple[RentedPool, ...] = (POOL,), **changes: Any) -> Policy:
    facts: dict[str, Any] = {
        "pools": pools,
        "fleet_cap_micros_per_hour": 10**9,
        "other_team_cap_micros_per_hour": 10**9,
        "delay_micros_per_hour": {"critical": 2 * MICROS},
    }
    burst = BurstPolicy.model_validate({**facts, **changes})
    return Policy(burst=burst, scheduling=SchedulingPolicy(serving=(chat,)))


def a_replica(number: int = 1, node: str = "", **changes: Any) -> UnmanagedPod:
    facts: dict[str, Any] = {
        "namespace": "serving",
        "name": f"chat-7d9f-{number}",
        "uid": f"uid-{number}",
        "node_name": node,
        "accelerators": 8,
        "kind": "ReplicaSet",
        "workload": "chat-7d9f",
        "created_at": START - timedelta(seconds=60),
        "tolerations": (BORNE,),
    }
    return UnmanagedPod.model_validate({**facts, **changes})


def a_node_capacity(number: int, free: int = 0, **changes: Any) -> NodeCapacity:
    facts: dict[str, Any] = {
        "life": NodeLife(cluster=CLUSTER, instance_id=f"i-{number:017x}", launched_at=START),
        "node_name": f"hyperpod-{number}",
        "cluster": CLUSTER,
        "pool": "p5-workers",
        "instance_type": "ml.p5.48xlarge",
        "allocatable": Resources(accelerators=8),
        "free": Resources(accelerators=free),
    }
    return NodeCapacity.model_validate({**facts, **changes})


def a_charge(number: int, ran_seconds: float = 0) -> Charge:
    return Charge(
        job_id=f"job-{number}",
        attempt=1,
        team="default",
        cluster=CLUSTER,
        pool="p5-workers",
        instance_type="ml.p5.48xlarge",
        accelerators=8,
        node_names=(f"hyperpod-{number}",),
        admitted_at=START - timedelta(seconds=ran_seconds),
    )


def a_rental(number: int = 1, state: RentalState = RentalState.READY, **changes: Any) -> Rental:
    facts: dict[str, Any] = {
        "job_id": holder_id(CHAT),
        "number": number,
        "serving_target": ServingTarget(namespace="serving", name="chat", accelerators_per_replica=8),
        "team": "chat",
        "namespace": "evenkeel-jobs",
        "state": state,
        "reason": "It cannot wait.",
        "nodes": 1,
        "offers": (RentalOffer.of(POOL, START),),
        "node_names": (f"ip-{number}",) if state is RentalState.READY else (),
        "begun_at": START,
        "ready_by": START + timedelta(seconds=900),
        "decision_id": "dec-1",
    }
    return Rental.model_validate({**facts, **changes})


def rented_node(number: int = 1, **changes: Any) -> KubernetesNode:
    return a_node(number, name=f"ip-{number}", pool="chat-burst", hyperpod_cluster_id=None, taints=(TAINT,), **changes)


def serving_facts(*capacities: NodeCapacity, **changes: Any) -> PlacementContext:
    charges = tuple(a_charge(number) for number, capacity in enumerate(capacities, 1) if not capacity.is_unused)
    return PlacementContext(START, capacities, charges)._replace(**changes)


def decide_replicas(
    *pods: UnmanagedPod,
    policy: Policy | None = None,
    most: int = 4,
    serving_state: ServingState | None = None,
    **changes: Any,
) -> tuple[PlacementDecision, ...]:
    policy = policy or a_policy()
    (chat,) = policy.scheduling.serving
    (short,) = replica_shortfalls((chat,), {CLUSTER: pods})
    placement_context = serving_facts(a_node_capacity(1), a_node_capacity(2), **changes)
    return decide_serving_rentals(
        short, len(short.waiting), placement_context, serving_state or ServingState.of(chat), policy, max_rentals=most
    )


# ---------------------------------------------------------------- ids


def test_holder_id_is_a_valid_kubernetes_name() -> None:
    for name in ("chat", "Chat.v2_prod", "a" * 200, "-"):
        identifier = holder_id(CHAT.replace(name=name))
        assert identifier.startswith("srv-")
        assert len(identifier) <= 46
        assert set(identifier) <= set("abcdefghijklmnopqrstuvwxyz0123456789-"), identifier


def test_no_two_deployments_have_the_same_id() -> None:
    names = [
        CHAT,
        CHAT.replace(cluster="other"),
        CHAT.replace(namespace="serving-chat", name="x"),
        CHAT.replace(name="chat-x"),
    ]

    assert len({holder_id(name) for name in names}) == len(names)


# ---------------------------------------------------------------- the value of a node


@pytest.mark.parametrize(("factor", "rents"), [(2.0, True), (1.1, False), (0.9, False), (0.0, False)])
def test_node_is_rented_if_replicas_are_worth_its_rent(factor: float, rents: bool) -> None:
    (answer,) = decide_replicas(
        a_replica(), policy=a_policy(delay_micros_per_hour={"critical": round(factor * MICROS)})
    )

    # The node serves nothing in the first four minutes of the spike: 64 minutes are paid for 56 minutes of serving.
    assert (answer.action is PlacementAction.RENT) is rents
    assert {row.pool for row in answer.table} == {"p5-workers", NO_EXTRA_NODE, "chat-burst"}


def test_replicas_sharing_a_node_add_up_their_value() -> None:
    policy = a_policy(delay_micros_per_hour={"critical": round(0.8 * MICROS)})
    halves = [a_replica(number, accelerators=4) for number in (1, 2)]

    assert [placement_decision.action for placement_decision in decide_replicas(*halves[:1], policy=policy)] == [
        PlacementAction.WAIT
    ]
    assert [placement_decision.action for placement_decision in decide_replicas(*halves, policy=policy)] == [
        PlacementAction.RENT
    ]


def test_replicas_wait_for_committed_nodes_that_become_free_soon() -> None:
    soon = (a_charge(1, ran_seconds=14_400 - 300), a_charge(2))

    (answer,) = decide_replicas(a_replica(), charges=soon)

    assert answer.action is PlacementAction.WAIT
    assert answer.pool == "p5-workers"


def test_nodes_rented_earlier_in_a_cycle_count_against_caps() -> None:
    pods = [a_replica(number) for number in range(6)]

    assert [placement_decision.action for placement_decision in decide_replicas(*pods)] == [PlacementAction.RENT] * 4
    assert [placement_decision.action for placement_decision in decide_replicas(*pods, most=2)] == [
        PlacementAction.RENT
    ] * 2
    assert [
        placement_decision.action
        for placement_decision in decide_replicas(*pods, policy=a_policy(fleet_cap_micros_per_hour=3 * MICROS))
    ] == [PlacementAction.RENT] * 3


def test_team_budget_limits_serving_rentals() -> None:
    pods = [a_replica(number) for number in range(4)]
    # 64 minutes of a node: the launch and the spike.
    rent = MICROS * 3840

    assert len(decide_replicas(*pods, rented=RentalBook(budgets_left={"chat": 2 * rent}))) == 2
    (answer,) = decide_replicas(*pods, rented=RentalBook(budgets_left={"chat": rent - 1}))
    assert "but the budget of team chat has" in next(row.why_not for row in answer.table if row.pool == "chat-burst")


def test_replicas_without_delay_price_are_not_rented_for() -> None:
    (answer,) = decide_replicas(a_replica(), policy=a_policy(delay_micros_per_hour={}))

    assert answer.action is PlacementAction.WAIT


def test_new_replica_is_not_rented_for_yet() -> None:
    assert decide_replicas(a_replica(created_at=START - timedelta(seconds=29))) == ()
    assert len(decide_replicas(a_replica(created_at=START - timedelta(seconds=30)))) == 1


def test_unused_rentals_increase_the_backoff() -> None:
    serving_state = ServingState.of(CHAT)
    waits_seconds = []
    for _ in range(9):
        serving_state = serving_state.after_return(was_used=False, now=START)
        assert serving_state.not_before is not None
        waits_seconds.append((serving_state.not_before - START).total_seconds())

    (answer,) = decide_replicas(a_replica(), serving_state=serving_state)
    assert answer.action is not PlacementAction.RENT
    assert waits_seconds == [900, 1800, 3600, 7200, 14_400, 28_800, 57_600, 86_400, 86_400]
    assert serving_state.after_return(was_used=True, now=START) == ServingState.of(CHAT)


@given(
    replicas=st.integers(1, 12),
    accelerators=st.sampled_from([1, 2, 4, 8]),
    price=st.integers(0, 4 * MICROS),
    cap=st.integers(0, 6 * MICROS),
    held=st.integers(0, 4),
    most=st.integers(0, 6),
)
def test_serving_rentals_respect_limits_and_replay(
    replicas: int, accelerators: int, price: int, cap: int, held: int, most: int
) -> None:
    hold = RentalAllocation(
        job_id="srv-x",
        number=1,
        team="chat",
        cluster=CLUSTER,
        pool="chat-burst",
        nodes=held,
        accelerators_per_node=8,
        micros_per_hour=held * MICROS,
    )
    policy = a_policy(delay_micros_per_hour={"critical": price}, team_caps_micros_per_hour={"chat": cap})
    pods = [a_replica(number, accelerators=accelerators) for number in range(replicas)]

    answers = decide_replicas(*pods, policy=policy, most=most, rented=RentalBook(allocations=(hold,) if held else ()))

    rented = [answer for answer in answers if answer.action is PlacementAction.RENT]
    assert len(rented) <= min(most, POOL.max_nodes - held, -(-replicas // (8 // accelerators)))
    assert not rented or (held + len(rented)) * MICROS <= cap
    assert not rented or len(rented) == len(answers)
    assert [choose_pool(answer.facts) for answer in answers] == list(answers)


# ---------------------------------------------------------------- fit


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"tolerations": (Toleration(key="evenkeel.io/serving", operator=Operator.EXISTS),)}, ""),
        ({"tolerations": (Toleration(key="", operator=Operator.EXISTS),)}, ""),
        ({"tolerations": (Toleration(key="evenkeel.io/serving", value="search"),)}, "do not tolerate"),
        ({"tolerations": (BORNE.replace(effect=Effect.NO_EXECUTE),)}, "do not tolerate"),
        ({"selector": {"karpenter.sh/nodepool": "chat-burst", "kubernetes.io/arch": "amd64"}}, ""),
        ({"selector": {"karpenter.sh/nodepool": "other"}}, "select karpenter.sh/nodepool=other"),
        ({"selector": {"disk": "nvme"}}, "select disk=nvme"),
    ],
)
def test_replica_fits_a_pool_by_tolerations_and_labels(changes: dict[str, Any], why: str) -> None:
    reason = why_not_schedulable(a_replica(**changes), POOL)

    assert (why in reason) if why else reason == ""


def test_configured_pool_labels_are_known() -> None:
    assert why_not_schedulable(a_replica(selector={"disk": "nvme"}), POOL.replace(labels={"disk": "nvme"})) == ""


# ---------------------------------------------------------------- demand for launching nodes


def test_free_replica_slots_count_present_and_launching_nodes() -> None:
    rentals = [a_rental(1), a_rental(2, RentalState.OPENING), a_rental(3, RentalState.ENDING)]

    assert free_replica_slots(rentals, [a_replica(1)]) == 2
    assert free_replica_slots(rentals, [a_replica(1, "ip-1"), a_replica(2)]) == 1
    assert (
        free_replica_slots(
            [a_rental(1, serving_target=ServingTarget(namespace="serving", name="chat", accelerators_per_replica=2))],
            [],
        )
        == 4
    )


@pytest.mark.parametrize(
    ("waiting", "other_rentals", "is_wanted"),
    [
        (1, (), True),
        (0, (), False),
        (1, (a_rental(1, RentalState.OPENING),), False),
        (2, (a_rental(1, RentalState.OPENING),), True),
        (1, (a_rental(3, RentalState.OPENING),), True),
        (1, (a_rental(3),), False),
    ],
)
def test_launching_node_is_needed_by_unplaced_replicas(
    waiting: int, other_rentals: tuple[Rental, ...], is_wanted: bool
) -> None:
    pods = [a_replica(number) for number in range(waiting)]

    why = why_no_replica_waits(a_rental(2, RentalState.OPENING), other_rentals, (CHAT,), pods, ())

    assert (why == "") is is_wanted


def test_launching_node_of_a_removed_registration_is_not_needed() -> None:
    rental = a_rental(1, RentalState.OPENING)

    for registered in ((), (CHAT.replace(rents_from=()),)):
        assert "no longer" in why_no_replica_waits(rental, (), registered, [a_replica()], ())


@pytest.mark.parametrize("registered", [(CHAT,), ()])
def test_launching_node_with_a_replica_is_needed(
    registered: tuple[ServingWorkload, ...],
) -> None:
    pods, nodes = [a_replica(1, "ip-7")], [rented_node(7)]
    first, second = a_rental(1, RentalState.OPENING), a_rental(2, RentalState.OPENING)

    assert why_no_replica_waits(first, (second,), registered, pods, nodes) == ""
    assert why_no_replica_waits(second, (first,), registered, pods, nodes) != ""
    assert why_no_replica_waits(second, (a_rental(7),), registered, pods, nodes) != ""
    elsewhere = first.with_offer(pool="chat-dearer")
    assert why_no_replica_waits(second, (elsewhere,), registered, pods, nodes) == ""


# ---------------------------------------------------------------- returning a node


def test_node_use_by_replicas_is_tracked() -> None:
    fresh = a_rental(idle_since=START)
    used = with_replicas_observed(fresh, has_replicas=True, now=START + timedelta(seconds=5))
    idle = with_replicas_observed(used, has_replicas=False, now=START + timedelta(seconds=9))

    assert (used.was_used, used.idle_since) == (True, None)
    assert (idle.was_used, idle.idle_since) == (True, START + timedelta(seconds=9))
    assert with_replicas_observed(idle, has_replicas=False, now=START + timedelta(seconds=20)) == idle
    assert with_replicas_observed(used, has_replicas=True, now=START + timedelta(seconds=20)) == used
    assert with_replicas_observed(fresh, has_replicas=False, now=START) == fresh
    assert replicas_on(fresh, [a_replica(1, "ip-1")]) != ()
    assert replicas_on(fresh, [a_replica(1, "elsewhere")]) == ()


@pytest.mark.parametrize(
    ("rental", "pods", "nodes", "why"),
    [
        (a_rental(idle_since=START), [], [rented_node()], "used the node within 300 s"),
        (a_rental(idle_since=START, was_used=True), [], [rented_node()], "has run on the node for 300 s"),
        (a_rental(idle_since=START + timedelta(seconds=1)), [], [rented_node()], ""),
        (a_rental(), [a_replica(1, "ip-1")], [rented_node()], ""),
        (a_rental(), [a_replica(1, "ip-1")], [rented_node(is_ready=False)], ""),
        (a_rental(idle_since=START), [], [rented_node(is_cordoned=True)], "out of service"),
        (a_rental(), [a_replica(1, "ip-1")], [], "was reclaimed"),
        (a_rental(due_at=START), [a_replica(1, "ip-1")], [rented_node()], "time limit is"),
        (a_rental(due_at=START + timedelta(seconds=301)), [a_replica(1, "ip-1")], [rented_node()], ""),
    ],
)
def test_unused_or_expired_serving_node_is_returned(
    rental: Rental, pods: list[UnmanagedPod], nodes: list[KubernetesNode], why: str
) -> None:
    answer = evaluate_serving_rental_over(rental, pods, nodes, 300, START + timedelta(seconds=300))

    assert (answer is not None) is bool(why)
    assert answer is None or why in answer.reason


# ---------------------------------------------------------------- demand


def test_replicas_request_only_nodes_beyond_rented_ones() -> None:
    (short,) = replica_shortfalls((CHAT,), {CLUSTER: [a_replica(number) for number in range(3)]})

    assert [request.nodes for request in replica_requests([short], [a_node_capacity(1)], {}, START)] == [3]
    assert [
        request.nodes for request in replica_requests([short], [a_node_capacity(1)], {}, START, {holder_id(CHAT): 2})
    ] == [1]
    assert replica_requests([short], [a_node_capacity(1)], {}, START, {holder_id(CHAT): 3}) == ()


def test_only_registered_number_of_longest_waiting_replicas_counts() -> None:
    pods = [a_replica(number, created_at=START - timedelta(seconds=number)) for number in range(3)]

    (short,) = replica_shortfalls((CHAT.replace(max_replicas=2),), {CLUSTER: pods})

    assert isinstance(short, ReplicaShortfall)
    assert [pod.name for pod in short.waiting] == ["chat-7d9f-2", "chat-7d9f-1"]


@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        ({}, True),
        ({"unschedulable_reason": "tainted", "taints": (TAINT,)}, True),
        ({"unschedulable_reason": "tainted", "taints": ("other=x:NoSchedule",)}, False),
        ({"labels": {"disk": "nvme"}}, True),
    ],
)
def test_committed_node_is_reserved_for_a_fitting_replica(changes: dict[str, Any], fits: bool) -> None:
    (short,) = replica_shortfalls((CHAT,), {CLUSTER: [a_replica()]})
    demands = replica_requests([short], [a_node_capacity(1)], {}, START)

    (capacity,) = reserve_for_replicas(demands, (a_node_capacity(1, free=8, **changes),), SchedulingPolicy())

    assert (capacity.free.accelerators == 0) is fits


def test_replica_that_selects_other_nodes_reserves_none() -> None:
    (short,) = replica_shortfalls((CHAT,), {CLUSTER: [a_replica(selector={"disk": "nvme"})]})
    (demand,) = replica_requests([short], [a_node_capacity(1)], {}, START)

    def count_fitting_replicas(request: AdmissionRequest, *capacities: NodeCapacity) -> int:
        return sum(fit.fitting for fit in pool_fits(request, capacities, SchedulingPolicy()))

    assert (
        count_fitting_replicas(demand, a_node_capacity(1, free=8), a_node_capacity(2, free=8, labels={"disk": "nvme"}))
        == 1
    )
