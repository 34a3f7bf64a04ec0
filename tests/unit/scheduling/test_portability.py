"""A job is placed only in a pool whose environment suits it."""

from typing import Any

from evenkeel.domain.capacity.compatibility import Requirements
from evenkeel.domain.capacity.instance_types import InstanceType, shipped_instance_types
from evenkeel.domain.capacity.pools import Market
from evenkeel.domain.renting.candidates import why_not_portable
from tests.unit.scheduling.builders import CLUSTER, a_job, a_spec
from tests.unit.scheduling.pool_builders import a_pool

MOUNTED = {"checkpoint_uri": "file:///fsx/llama", "checkpoint_claim": "fsx"}
SHARED = {CLUSTER: {"fsx": "fs-1"}, "burst": {"fsx": "fs-1"}}


def portability_reasons(storage: Any = None, pool: Any = None, **spec: Any) -> tuple[str, ...]:
    rented = a_pool(Market.ON_DEMAND, **({"cluster": "burst"} | (pool or {})))
    return why_not_portable(a_job(spec=a_spec(**spec)), rented, storage or {}, shipped_instance_types())


def test_job_without_requirements_runs_anywhere() -> None:
    assert portability_reasons() == ()


def test_pool_overrides_accelerator_memory_of_the_type() -> None:
    requirements = {"requires": {"acceleratorMemoryGib": 80}}

    assert portability_reasons(pool={"instance_type": "p4d.24xlarge"}, **requirements) == (
        "The job needs 80 GiB on each accelerator, but the nodes have 40.",
    )
    assert portability_reasons(pool={"instance_type": "p4de.24xlarge"}, **requirements) == ()
    assert portability_reasons(pool={"instance_type": "x9.large"}, **requirements) == (
        "The job needs 80 GiB on each accelerator, but the memory of the nodes' accelerators is unknown.",
    )
    assert (
        portability_reasons(pool={"instance_type": "x9.large", "place": {"acceleratorMemoryGib": 96}}, **requirements)
        == ()
    )


def test_memory_is_what_ec2_states_not_the_vendor() -> None:
    needs = {"requires": {"acceleratorMemoryGib": 24}}

    assert portability_reasons(pool={"instance_type": "g5.12xlarge"}, **needs) == (
        "The job needs 24 GiB on each accelerator, but the nodes have 22.35.",
    )
    assert portability_reasons(pool={"instance_type": "g6.12xlarge"}, requires={"acceleratorMemoryGib": 22.3}) == ()
    assert portability_reasons(pool={"instance_type": "g6e.xlarge"}, **needs) == ()


def test_image_of_another_architecture_is_reported() -> None:
    requirements = {"requires": {"architectures": ["amd64"]}}

    assert portability_reasons(pool={"instance_type": "p6e-gb200.36xlarge"}, **requirements) == (
        "The job's image is for amd64, but the nodes have arm64.",
    )
    assert portability_reasons(pool={"instance_type": "x9.large"}, **requirements) == (
        "The job's image is for amd64, but the nodes have an unknown architecture.",
    )


def test_claim_matches_only_with_the_same_storage() -> None:
    assert portability_reasons(**MOUNTED) == (f"The job's checkpoints are on a volume that only {CLUSTER} has.",)
    assert portability_reasons(SHARED, **MOUNTED) == ()
    assert portability_reasons({CLUSTER: {"fsx": "fs-1"}}, **MOUNTED) == (
        "No storage is known for claim fsx in that cluster.",
    )
    assert portability_reasons(SHARED | {"burst": {"fsx": "fs-2"}}, **MOUNTED) == (
        "Claim fsx is fs-2 in that cluster, but fs-1 in the job's cluster.",
    )
    assert portability_reasons(pool={"cluster": CLUSTER}, **MOUNTED) == ()
    assert (
        portability_reasons({CLUSTER: {"fsx": "fs-1"}}, pool={"place": {"storage": {"fsx": "fs-1"}}}, **MOUNTED) == ()
    )


def test_job_type_selects_pools_by_name_or_market() -> None:
    demand, spot = {"name": "eks", "market": "on-demand"}, {"name": "eksSpot", "market": "spot"}

    assert portability_reasons(pools=[demand]) == ()
    assert portability_reasons(pools=[spot, {"name": "plan"}]) == ("The job's type runs on eksSpot, then plan.",)
    assert portability_reasons(pool={"name": "plan"}, pools=[{"name": "plan"}]) == ()


def test_committed_nodes_of_another_cluster_are_not_used() -> None:
    pool = a_pool(Market.COMMITTED, cluster="other")

    assert why_not_portable(a_job(), pool, {}, shipped_instance_types()) == (f"The job belongs to cluster {CLUSTER}.",)


def test_required_network_level_keeps_a_gang_on_committed_nodes() -> None:
    why = "The job requires one layer-3 domain, which AWS does not promise for rented nodes."

    assert portability_reasons(nodes=2, required_network_level="layer-3") == (why,)
    assert portability_reasons(nodes=1, required_network_level="layer-3") == ()
    assert portability_reasons(nodes=2, preferred_network_level="layer-3") == ()


def test_rented_pool_of_type_described_by_policy_runs_job() -> None:
    new = InstanceType(vcpu=256, memory_gib=4096, gpus=8, model="r300", accelerator_memory_mib=100_000)
    pool = a_pool(Market.ON_DEMAND, cluster="burst", instance_type="x9.large")
    job = a_job(spec=a_spec(requires=Requirements(accelerator_memory_gib=80)))

    assert why_not_portable(job, pool, {}, shipped_instance_types()) != ()
    assert why_not_portable(job, pool, {}, shipped_instance_types().with_types({"ml.x9.large": new})) == ()
