"""CPU and memory: the share that a pod requests, the nodes that fit, and the quota that it uses."""

import pytest

from evenkeel.domain.admission.admission_input import AdmissionInput
from evenkeel.domain.admission.decide_job import AdmissionAction
from evenkeel.domain.admission.pool_fits import describe_request
from evenkeel.domain.admission.queue_without_teams import decide_in_queue_order
from evenkeel.domain.admission.scheduling_policy import SchedulingPolicy
from evenkeel.domain.capacity.instance_types import shipped_instance_types
from evenkeel.domain.capacity.node_capacity import NodeCapacity
from evenkeel.domain.capacity.pod_shares import (
    NodeShares,
    available_to_pods,
    complete_request,
    expected_offer,
    whole_machine,
)
from evenkeel.domain.queue_simulation.hyperpod_cluster_policy import QuotaResources
from evenkeel.domain.resources import NONE, Resources, why_too_small
from evenkeel.domain.scheduling.resize_plan import shrunk_charge
from tests.unit.scheduling.builders import CLUSTER, a_node_capacity, a_request, at
from tests.unit.scheduling.test_sharing import GPU, P5, a_charge, a_setup, a_team, decide_pending

P4 = "ml.p4d.24xlarge"
G6 = "ml.g6.12xlarge"
WHOLE_P5 = whole_machine(shipped_instance_types().types[P5])


def gib(count: float) -> int:
    return int(count * 1024)


def a_node(
    number: int, *, cpu: int = 0, memory_gib: int = 0, free_gpus: int = 8, instance_type: str = P5
) -> NodeCapacity:
    """Return a node with eight GPUs whose CPU and memory are completely free."""
    host = {"cpu_millis": cpu * 1000, "memory_mib": gib(memory_gib)}
    return a_node_capacity(
        number,
        allocatable=Resources(accelerators=8, **host),
        instance_type=instance_type,
    ).with_free(Resources(accelerators=free_gpus, **host))


# ---------------------------------------------------------------- the share of a node


def test_reserve_for_node_software_matches_the_hyperpod_command_line() -> None:
    resources = available_to_pods(WHOLE_P5)

    assert (resources.cpu_millis, round(resources.memory_mib / 1024, 2)) == (179_970, 1890.26)


def test_quarter_of_gpus_gets_quarter_of_cpu_and_memory() -> None:
    resources = complete_request(Resources(accelerators=2), WHOLE_P5)

    assert resources == Resources(
        accelerators=2, cpu_millis=179_970 // 4, memory_mib=available_to_pods(WHOLE_P5).memory_mib // 4
    )


@pytest.mark.parametrize(
    ("wanted", "expected_cpu", "expected_gib"),
    [
        (Resources(accelerators=2, cpu_millis=96_000), 96_000, 945),  # the CPU is the largest share: a half
        (Resources(accelerators=4, cpu_millis=1_000), 1_000, 945),  # the GPUs are the largest share: a half
        (Resources(memory_mib=gib(1024)), 89_985, 1024),
        (Resources(accelerators=8, cpu_millis=8_000, memory_mib=gib(64)), 8_000, 64),
    ],
)
def test_omitted_amount_follows_from_the_largest_stated_share(
    wanted: Resources, expected_cpu: int, expected_gib: int
) -> None:
    resources = complete_request(wanted, WHOLE_P5)

    assert (resources.cpu_millis, resources.memory_mib // 1024) == (expected_cpu, expected_gib)


def test_job_without_any_amount_requests_one_cpu() -> None:
    assert complete_request(NONE, WHOLE_P5) == Resources(cpu_millis=1000, memory_mib=gib(4))


def test_default_cpu_and_memory_fit_smallest_type_of_job() -> None:
    shares = NodeShares([a_node(1), a_node(2, instance_type=P4)])
    resources = Resources(accelerators=8)

    assert shares.request_of(resources, CLUSTER).cpu_millis == expected_offer(P4, 8).cpu_millis
    assert shares.request_of(resources, CLUSTER, (P5,)).cpu_millis == 179_970
    assert shares.request_of(resources, "another-cluster") == resources


def test_unlisted_instance_type_has_the_amounts_of_its_node() -> None:
    shares = NodeShares([a_node(1, cpu=100, memory_gib=500, instance_type="ml.zz9.huge")])

    resources = shares.request_of(Resources(accelerators=4), CLUSTER)

    assert resources.cpu_millis == available_to_pods(Resources(cpu_millis=100_000)).cpu_millis // 2


def test_default_share_never_exceeds_the_amounts_of_a_node() -> None:
    nodes = [a_node(1, cpu=191, memory_gib=2000), a_node(2, cpu=160, memory_gib=1600)]
    shares = NodeShares(nodes)

    resources = shares.request_of(Resources(accelerators=8), CLUSTER)
    half = shares.request_of(Resources(accelerators=4), CLUSTER)

    assert resources == Resources(accelerators=8, cpu_millis=160_000, memory_mib=gib(1600))
    assert half == Resources(accelerators=4, cpu_millis=80_000, memory_mib=gib(800))
    assert not any(node.why_too_small(resources) for node in nodes)


# ---------------------------------------------------------------- nodes


def test_node_without_enough_free_cpu_is_named_in_the_reason() -> None:
    admission_input = AdmissionInput(
        capacities=(a_node(1, cpu=32, memory_gib=2048), a_node(2, cpu=192, memory_gib=16)),
        pending=(
            a_request(
                1, accelerators_per_node=2, cpu_millis_per_node=48_000, memory_mib_per_node=gib(15),
                names_cpu_or_memory=True, nodes=2,
            ),
        ),
    )  # fmt: skip

    (decided,) = decide_in_queue_order(admission_input, SchedulingPolicy(), at(1000))

    assert decided.action is AdmissionAction.WAIT or decided.action is AdmissionAction.NEVER_FITS
    assert "2 nodes with 2 free accelerators, 48 vCPU and 15 GiB each" in decided.reason


def test_two_slices_and_a_cpu_job_share_one_node() -> None:
    slice_of = {"accelerators_per_node": 4, "cpu_millis_per_node": 80_000, "memory_mib_per_node": gib(800)}
    admission_input = AdmissionInput(
        capacities=(a_node(1, cpu=191, memory_gib=2000),),
        pending=(
            a_request(1, **slice_of),
            a_request(2, **slice_of),
            a_request(3, accelerators_per_node=0, cpu_millis_per_node=16_000, memory_mib_per_node=gib(64)),
            a_request(4, accelerators_per_node=0, cpu_millis_per_node=16_000, memory_mib_per_node=gib(64)),
        ),
    )

    decided = {
        admission_decision.job_id: admission_decision
        for admission_decision in decide_in_queue_order(admission_input, SchedulingPolicy(), at(1000))
    }

    assert [decided[f"job-{n}"].action is AdmissionAction.ADMIT for n in (1, 2, 3, 4)] == [True, True, True, False]
    assert "short of CPU" in decided["job-4"].reason


def test_cpu_job_prefers_a_node_without_gpus() -> None:
    cpu_node = a_node(9, cpu=16, memory_gib=64).model_copy(
        update={"allocatable": Resources(cpu_millis=16_000, memory_mib=gib(64))}
    )
    cpu_node = cpu_node.with_free(cpu_node.allocatable)
    request = a_request(1, accelerators_per_node=0, cpu_millis_per_node=4_000, memory_mib_per_node=gib(8))

    (decided,) = decide_in_queue_order(
        AdmissionInput(capacities=(a_node(1, cpu=192, memory_gib=2000), cpu_node), pending=(request,)),
        SchedulingPolicy(),
        at(1000),
    )

    assert decided.node_names == ("node-9",)


def test_unstated_cpu_limits_no_pod() -> None:
    resources = Resources(accelerators=8, cpu_millis=10**6, memory_mib=10**9)

    assert why_too_small(resources, Resources(accelerators=8), Resources(accelerators=8)) == ""


def test_request_with_default_shares_is_described_by_its_gpus() -> None:
    request = a_request(1, cpu_millis_per_node=179_970, memory_mib_per_node=gib(1890))

    assert describe_request(request) == "1 node with 8 free accelerators each"


def test_shrunk_charge_keeps_its_amounts_per_node() -> None:
    charge = a_charge(1, "red", 1, 2, 3, cpu_millis=3 * 80_000, memory_mib=3 * gib(500))

    shrunk = shrunk_charge(charge, 2)

    assert shrunk.node_names == ("node-1", "node-2")
    assert shrunk.per_node == charge.per_node == Resources(accelerators=8, cpu_millis=80_000, memory_mib=gib(500))


# ---------------------------------------------------------------- quota


def test_cpu_and_memory_quota_limits_job_with_enough_gpus() -> None:
    groups = [{P5: {GPU: 8, "cpu": 96, "memory": "512Gi"}}]
    setup = a_setup(a_team("red", cohort="", queue={"groups": groups, "cohort": ""}))
    half = {"accelerators_per_node": 2, "cpu_millis_per_node": 64_000, "memory_mib_per_node": gib(100), "team": "red"}

    answers = decide_pending(setup, (a_node(1, cpu=192, memory_gib=2000),), a_request(1, **half), a_request(2, **half))

    assert answers["job-1"].use == {P5: {GPU: 2, "cpu": 64_000, "memory": gib(100) * 2**20}}
    assert answers["job-2"].action is AdmissionAction.NO_QUOTA
    assert "64 cpu" in answers["job-2"].reason


def test_team_with_two_gpus_and_48_vcpu_gets_192_gib() -> None:
    """The quota `onlygputeam` on ml.g6.12xlarge, an example of HyperPod task governance."""
    amounts = QuotaResources.model_validate({"InstanceType": G6, "Accelerators": 2, "VCpu": 48}).amounts(
        shipped_instance_types().types[G6]
    )
    quota = {resource: amounts[resource] for resource in (GPU, "memory")}
    groups = [{G6: {**quota, "cpu": amounts["cpu"] // 1000}}]
    setup = a_setup(a_team("only-gpu", queue={"groups": groups}))
    nodes = tuple(a_node(number, cpu=47, memory_gib=185, instance_type=G6) for number in (1, 2))
    one_gpu = complete_request(Resources(accelerators=1), whole_machine(shipped_instance_types().types[G6]))
    requests = [
        a_request(number, accelerators_per_node=1, team="only-gpu").with_per_node(one_gpu) for number in (1, 2, 3)
    ]

    answers = decide_pending(setup, nodes, *requests)

    assert (amounts["cpu"], amounts["memory"], amounts[GPU]) == (48_000, 192 * 2**30, 2)
    assert [answers[f"job-{n}"].action for n in (1, 2, 3)] == [
        AdmissionAction.ADMIT,
        AdmissionAction.ADMIT,
        AdmissionAction.NO_QUOTA,
    ]
    assert "nvidia.com/gpu" in answers["job-3"].reason


@pytest.mark.parametrize(
    ("flavor", "labels"),
    [
        ("ml.p5", {}),
        ("p5", {}),
        ("hopper", {"evenkeel.io/accelerator-model": "h100"}),
        ("fifth", {"evenkeel.io/instance-family": "p5"}),
    ],
)
def test_quota_by_family_or_model_covers_its_instance_types(flavor: str, labels: dict[str, str]) -> None:
    setup = a_setup(
        a_team("red", queue={"groups": [{flavor: {GPU: 8}}]}),
        flavors=[{"name": flavor, "labels": labels}] if labels else [],
    )
    nodes = (a_node_capacity(1, instance_type=P4), a_node_capacity(2))

    answers = decide_pending(
        setup,
        nodes,
        a_request(1, team="red", instance_types=(P5,)),
        a_request(2, team="red", instance_types=(P4,)),
    )

    assert (answers["job-1"].action, answers["job-1"].node_names) == (AdmissionAction.ADMIT, ("node-2",))
    assert answers["job-2"].action is AdmissionAction.NO_QUOTA
