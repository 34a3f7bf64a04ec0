from typing import Any

import pytest

from evenkeel.domain.admission.admission_input import AdmissionInput
from evenkeel.domain.admission.admission_request import AdmissionRequest
from evenkeel.domain.admission.decide_job import AdmissionAction, AdmissionDecision
from evenkeel.domain.admission.queue_without_teams import decide_in_queue_order
from evenkeel.domain.admission.scheduling_policy import SchedulingPolicy
from evenkeel.domain.capacity.compatibility import Requirements
from evenkeel.domain.capacity.efa import (
    HUGE_PAGES_MIB,
    EfaNode,
    EfaRequest,
    efa_request,
    interfaces_per_pod,
    min_interfaces,
)
from evenkeel.domain.capacity.node_capacity import NodeCapacity, node_capacity
from evenkeel.domain.nodes import Node
from evenkeel_local.gpu_cluster.machines import SHAPES
from tests.fakes.cluster import a_node
from tests.unit.scheduling.builders import a_life, a_node_capacity, a_request, at

P5 = EfaNode("workers", "ml.p5.48xlarge", 8, 32)
COUNTS = {
    "ml.p4d.24xlarge": (8, 4),
    "ml.p4de.24xlarge": (8, 4),
    "ml.p5.4xlarge": (1, 1),
    "ml.p5.48xlarge": (8, 32),
    "ml.p5e.48xlarge": (8, 32),
    "p5en.48xlarge": (8, 16),
    "ml.p6-b200.48xlarge": (8, 8),
    "ml.p6-b300.48xlarge": (8, 16),
    "trn1.32xlarge": (16, 8),
    "ml.trn1n.32xlarge": (16, 16),
    "ml.trn2.3xlarge": (1, 1),
    "ml.trn2.48xlarge": (16, 16),
    "ml.g5.4xlarge": (1, 0),
    "ml.g5.48xlarge": (8, 1),
    "ml.g6.8xlarge": (1, 1),
    "ml.g6e.4xlarge": (1, 0),
    "ml.g6e.24xlarge": (4, 2),
    "ml.g6e.48xlarge": (8, 4),
}


@pytest.mark.parametrize("instance_type", COUNTS)
def test_whole_node_has_all_interfaces_of_its_type(instance_type: str) -> None:
    accelerators, interfaces = COUNTS[instance_type]

    assert interfaces_per_pod(EfaNode("any", instance_type), 2, accelerators, {}) == interfaces
    assert interfaces_per_pod(EfaNode("any", instance_type), 1, accelerators, {}) == 0


def test_local_nodes_offer_the_interfaces_of_the_catalogue() -> None:
    for instance_type, shape in SHAPES.items():
        offered = int(shape.get("vpc.amazonaws.com/efa", 0))
        accelerators = int(shape.get("nvidia.com/gpu") or shape.get("aws.amazon.com/neuron") or 0)
        assert interfaces_per_pod(EfaNode("any", instance_type), 2, accelerators, {}) == offered, instance_type


@pytest.mark.parametrize(
    ("machine", "accelerators", "interfaces"),
    [
        (P5, 4, 16),
        (P5, 1, 4),
        (P5, 0, 0),
        (EfaNode("any", "ml.p4d.24xlarge"), 3, 1),
        (EfaNode("any", "ml.p4d.24xlarge"), 1, 0),
        (EfaNode("any", "ml.g5.48xlarge"), 4, 0),
        (EfaNode("any", "ml.unheard.of", 8, 6), 4, 3),
        (EfaNode("any", "ml.unheard.of"), 4, 0),
    ],
)
def test_part_of_a_node_requests_its_share_rounded_down(machine: EfaNode, accelerators: int, interfaces: int) -> None:
    assert interfaces_per_pod(machine, 4, accelerators, {}) == interfaces


def test_varying_interface_count_follows_the_node() -> None:
    assert interfaces_per_pod(EfaNode("any", "ml.p6e-gb200.36xlarge", 4, 8), 2, 4, {}) == 8
    assert interfaces_per_pod(EfaNode("any", "ml.p6e-gb200.36xlarge", 4, 0), 2, 4, {}) == 17


def test_policy_overrides_interfaces_by_pool() -> None:
    assert interfaces_per_pod(P5, 2, 8, {"workers": 16}) == 16
    assert interfaces_per_pod(P5, 2, 8, {"workers": 0}) == 0
    assert interfaces_per_pod(P5, 2, 8, {"others": 0}) == 32


@pytest.mark.parametrize(
    ("offered", "requested"), [(10_256, HUGE_PAGES_MIB), (HUGE_PAGES_MIB, HUGE_PAGES_MIB), (4096, 0)]
)
def test_huge_pages_are_requested_only_if_offered(offered: int, requested: int) -> None:
    assert efa_request(P5, 2, 8, {}, offered) == EfaRequest(32, requested)


def test_huge_pages_follow_the_share_of_interfaces() -> None:
    assert efa_request(P5, 2, 3, {}, 10_256) == EfaRequest(12, 1920)
    assert efa_request(P5, 1, 8, {}, 10_256) == EfaRequest()
    assert efa_request(P5, 2, 8, {"workers": 0}, 10_256) == EfaRequest()


def test_job_of_several_types_requests_the_fewest_interfaces() -> None:
    p4 = EfaNode("old", "ml.p4d.24xlarge", 8, 4)

    assert min_interfaces((P5, p4), 2, 8, {}) == 4
    assert min_interfaces((P5, EfaNode("x", "ml.g5.xlarge", 8)), 2, 8, {}) == 0
    assert min_interfaces((), 2, 8, {}) == 0


# ---------------------------------------------------------------- admission


def decide_request(
    capacities: list[NodeCapacity], request: AdmissionRequest, policy: SchedulingPolicy | None = None
) -> AdmissionDecision:
    (answer,) = decide_in_queue_order(
        AdmissionInput(capacities=tuple(capacities), pending=(request,)), policy or SchedulingPolicy(), at(1000)
    )
    return answer


@pytest.mark.parametrize("offered", [0, 31])
def test_gang_waits_for_nodes_with_all_interfaces(offered: int) -> None:
    capacities = [a_node_capacity(1, efa=32), a_node_capacity(2, efa=offered), a_node_capacity(3, efa=offered)]

    answer = decide_request(capacities, a_request(nodes=2, accelerators_per_node=8))

    assert answer.action is AdmissionAction.WAIT
    assert f"workers has 1 of them (2 offering {offered} of 32 EFA interfaces)" in answer.reason


@pytest.mark.parametrize(
    ("changes", "policy"),
    [
        ({"nodes": 1}, {}),
        ({"nodes": 2, "is_serving": True}, {}),
        ({"nodes": 2}, {"efa_interfaces": {"workers": 0}}),
    ],
)
def test_job_that_needs_no_efa_starts_on_any_node(changes: dict[str, Any], policy: dict[str, Any]) -> None:
    capacities = [a_node_capacity(1, efa=0), a_node_capacity(2, efa=0)]

    answer = decide_request(
        capacities, a_request(accelerators_per_node=8, **changes), SchedulingPolicy.model_validate(policy)
    )

    assert answer.action is AdmissionAction.ADMIT


def test_pool_without_efa_is_not_offered_to_efa_jobs() -> None:
    policy = SchedulingPolicy(efa_interfaces={"workers": 0})
    request = a_request(nodes=2, accelerators_per_node=8, requires=Requirements(fabric="efa"))

    assert decide_request([a_node_capacity(1), a_node_capacity(2)], request).action is AdmissionAction.ADMIT
    assert (
        decide_request([a_node_capacity(1), a_node_capacity(2)], request, policy).action is AdmissionAction.NEVER_FITS
    )


def test_job_on_half_nodes_needs_half_of_their_interfaces() -> None:
    capacities = [a_node_capacity(1, efa=16), a_node_capacity(2, efa=16)]

    assert decide_request(capacities, a_request(nodes=2, accelerators_per_node=4)).action is AdmissionAction.ADMIT


def test_gang_uses_nodes_with_interfaces() -> None:
    capacities = [a_node_capacity(1, efa=0), a_node_capacity(2, efa=32), a_node_capacity(3, efa=32)]

    assert decide_request(capacities, a_request(nodes=2, accelerators_per_node=8)).node_names == ("node-2", "node-3")


def test_capacity_records_the_interfaces_of_each_node() -> None:
    nodes = [Node(life=a_life(number), kubernetes=a_node(number, efa=efa)) for number, efa in ((1, 32), (2, 0))]

    assert [capacity.efa for capacity in node_capacity(nodes, {})] == [32, 0]
