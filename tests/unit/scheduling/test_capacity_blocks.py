"""When the nodes of a Capacity Block end, as the sweep computes it from EC2's answers."""

from datetime import timedelta

import pytest

from evenkeel.domain.admission.scheduling_policy import SchedulingPolicy
from evenkeel.domain.capacity.capacity_blocks import (
    CapacityReservation,
    current_block_ends,
    reservations_in_use,
)
from evenkeel.domain.capacity.capacity_policy import ReservedPool
from evenkeel.domain.capacity.pools import Reservation
from evenkeel.domain.capacity.training_plans import PlanEnds
from evenkeel.domain.nodes import RESERVATION_LABELS, ULTRA_SERVER_LABEL, FleetNode, KubernetesNode, Node, NodeLife
from evenkeel.domain.policy import Policy
from evenkeel.domain.resources import NONE
from tests.fakes.system import A_MOMENT as NOW

CLUSTER, OTHER_CLUSTER = "burst-eks", "research-eks"
EARLY, LATE = "cr-0000000000000000a", "cr-0000000000000000b"
DAY = timedelta(days=1)


def a_node(
    number: int = 1, reservation: str = EARLY, *, cluster: str = CLUSTER, labels: dict[str, str] | None = None
) -> Node:
    life = NodeLife(cluster=cluster, instance_id=f"i-{number:017x}", launched_at=NOW - DAY)
    marks = {RESERVATION_LABELS[0]: reservation} if reservation else {}
    kubernetes = KubernetesNode(cluster=cluster, name=f"ip-{number}", pool="blocks", labels={**marks, **(labels or {})})
    return Node(life=life, kubernetes=kubernetes)


def a_block(reservation_id: str, days: int) -> CapacityReservation:
    period = Reservation(starts_at=NOW - DAY, ends_at=NOW + days * DAY)
    return CapacityReservation(reservation_id=reservation_id, period=period)


BLOCKS = {EARLY: a_block(EARLY, 3), LATE: a_block(LATE, 7)}


def ends_of(*nodes: Node, blocks: dict[str, CapacityReservation] = BLOCKS, earlier: PlanEnds | None = None) -> PlanEnds:
    return current_block_ends(nodes, blocks, earlier or PlanEnds(), (), NOW)


def test_nodepool_of_a_capacity_block_is_a_reserved_pool() -> None:
    (pool,) = ends_of(a_node()).pools

    assert (pool.cluster, pool.pool, pool.ends_at) == (CLUSTER, "blocks", NOW + 3 * DAY)
    assert pool.usable_until == NOW + 3 * DAY - timedelta(minutes=30)


def test_label_of_eks_auto_mode_names_the_reservation() -> None:
    node = a_node(reservation="", labels={RESERVATION_LABELS[1]: LATE})

    assert reservations_in_use([node]) == {LATE}
    assert [end.plan for end in ends_of(node).groups] == [LATE]


@pytest.mark.parametrize(
    "label", ["", "cr-", "cr-XYZ00000000000000", "../cr-0000000000000000a", "cr-0000000000000000a "]
)
def test_label_without_an_id_names_no_reservation(label: str) -> None:
    assert reservations_in_use([a_node(reservation="", labels={RESERVATION_LABELS[0]: label})]) == frozenset()


def test_each_block_of_a_pool_has_its_own_end() -> None:
    both = ends_of(a_node(1, LATE), a_node(2, EARLY))

    assert [end.plan for end in both.groups] == [EARLY, LATE]


@pytest.mark.parametrize(
    ("reservation", "days"),
    [(EARLY, 3), (LATE, 7), ("", 30)],
    ids=["the first block", "the other block", "no block: the time in the policy"],
)
def test_node_ends_with_its_own_block(reservation: str, days: int) -> None:
    ends = ends_of(a_node(1, LATE), a_node(2, EARLY))
    of_pool = ReservedPool(cluster=CLUSTER, pool="blocks", starts_at=NOW, ends_at=NOW + 30 * DAY)
    policy = Policy(scheduling=SchedulingPolicy(reservations=(of_pool,))).with_training_plan_ends(ends)
    node = a_node(3, reservation).kubernetes
    assert node is not None

    node_end = policy.scheduling.reservation_of_node(CLUSTER, "blocks", node.labels)

    assert node_end is not None
    assert node_end.ends_at == NOW + days * DAY


@pytest.mark.parametrize(
    ("reservations", "days"), [((EARLY, LATE), 7), ((EARLY, ""), None)], ids=["two blocks", "not only blocks"]
)
def test_pool_ends_with_the_last_of_its_nodes(reservations: tuple[str, ...], days: int | None) -> None:
    nodes = [a_node(number, reservation) for number, reservation in enumerate(reservations)]
    policy = Policy().with_training_plan_ends(ends_of(*nodes))
    labels = [node.kubernetes.labels for node in nodes if node.kubernetes]

    pool_end = policy.scheduling.reservation_of_pool(CLUSTER, "blocks", labels)

    assert (pool_end and pool_end.ends_at) == (NOW + days * DAY if days else None)


def test_stored_node_keeps_the_label_of_its_reservation() -> None:
    node = a_node(labels={"karpenter.sh/capacity-type": "reserved"})

    assert FleetNode.from_node(node, NONE, NOW).labels == {RESERVATION_LABELS[0]: EARLY}


def test_on_demand_reservation_ends_no_nodes() -> None:
    assert ends_of(a_node(), blocks={EARLY: CapacityReservation(reservation_id=EARLY)}) == PlanEnds()


def test_ultra_server_ends_an_hour_before_its_block() -> None:
    (pool,) = ends_of(a_node(labels={ULTRA_SERVER_LABEL: "us-1"})).pools

    assert pool.usable_until == NOW + 3 * DAY - timedelta(hours=1)


def test_unreadable_reservation_keeps_its_last_end() -> None:
    earlier = ends_of(a_node())

    assert ends_of(a_node(), blocks={}, earlier=earlier) == earlier
    assert ends_of(a_node(), blocks={}) == PlanEnds()


def test_block_without_nodes_loses_its_end() -> None:
    assert ends_of(earlier=ends_of(a_node())) == PlanEnds()


def test_unread_cluster_keeps_its_ends() -> None:
    nodes = [a_node(1), a_node(2, LATE, cluster=OTHER_CLUSTER)]
    earlier = ends_of(*nodes)

    kept = current_block_ends(nodes[:1], BLOCKS, earlier, {OTHER_CLUSTER}, NOW)

    assert {(end.cluster, end.plan) for end in kept.groups} == {(CLUSTER, EARLY), (OTHER_CLUSTER, LATE)}


def test_capacity_blocks_are_told_from_training_plans() -> None:
    (block,) = ends_of(a_node()).groups

    assert block.is_capacity_block
    assert not block.replace(plan="p5-autumn").is_capacity_block
