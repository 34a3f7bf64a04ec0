"""`GET /v1/utilization`: amounts, allocation and measured utilization, by pool and by node."""

from typing import Any

import pytest

from evenkeel.domain.capacity.utilization import Measure, Sample
from evenkeel.domain.nodes import FleetNode, NodeLife
from evenkeel.ports import NotAllowed, Throttled
from tests.fakes.cluster import CLUSTER, instance_id
from tests.unit.api.gateway import Gateway
from tests.unit.api.seeds import a_fleet_node, ago, an_incident, store, store_heartbeats

BURST = "burst-eks"


def a_burst_node(number: int = 9, **changes: Any) -> FleetNode:
    life = NodeLife(cluster=BURST, instance_id=instance_id(number), launched_at=ago(hours=1))
    facts = {"life": life, "pool": "spot", "instance_type": "p5.48xlarge", "node_name": f"ip-10-0-0-{number}"}
    return a_fleet_node(number, **(facts | changes))


def publish_samples(gateway: Gateway, node: FleetNode, minutes: int = 2, **percent: float) -> None:
    """Publish a sample of each named measure, taken some minutes ago."""
    for name, value in percent.items():
        start = ago(minutes=minutes).replace(second=0, microsecond=0)
        gateway.fakes.utilization_metrics.put(node, Measure[name.upper()], Sample(start, value))


def store_fleet(gateway: Gateway, *nodes: FleetNode) -> None:
    store(gateway.fakes.ledger, *nodes)
    store_heartbeats(gateway.fakes.ledger)


def test_pool_shows_amounts_allocation_and_utilization_separately(gateway: Gateway) -> None:
    busy = a_fleet_node(1, accelerators_in_use=8, cpu_millis_in_use=96_000, memory_mib_in_use=512 * 1024)
    idle = a_fleet_node(2, accelerators_in_use=8)
    store_fleet(gateway, busy, idle)
    publish_samples(gateway, busy, gpu=90.04, gpu_memory=70, cpu=20, memory=30)
    publish_samples(gateway, idle, minutes=4, gpu=0)

    answer = gateway.get("/v1/utilization").document

    item = answer["items"][0]
    assert {name: item[name] for name in ("cluster", "pool", "instanceTypes")} == {
        "cluster": CLUSTER,
        "pool": "p5-workers",
        "instanceTypes": ["ml.p5.48xlarge"],
    }
    assert (item["nodes"], item["running"], item["starting"], item["pendingRecovery"]) == (2, 2, 0, 0)
    assert (item["gpus"], item["gpusAllocated"], item["gpuMemoryGib"]) == (16, 16, 1280)
    assert (item["vcpus"], item["vcpusAllocated"], item["memoryGib"], item["memoryGibAllocated"]) == (
        384,
        96,
        4096,
        512,
    )
    assert item["utilization"]["gpu"] == {
        "average": 45,
        "lowest": 0,
        "lowestNode": instance_id(2),
        "highest": 90,
        "measuredNodes": 2,
        "unknownNodes": 0,
    }
    assert item["utilization"]["cpu"]["average"] == 20
    assert item["utilization"]["cpu"]["unknownNodes"] == 1
    assert item["measuredAt"] == "2026-11-03T10:12:00.000000Z"
    assert answer["totals"] == {name: item[name] for name in answer["totals"]}
    assert answer["windowMinutes"] == 15


def test_node_utilization_shows_the_state_and_null_for_unknown(gateway: Gateway) -> None:
    node = a_fleet_node(1, accelerators_in_use=8)
    store_fleet(gateway, node, a_fleet_node(2))
    publish_samples(gateway, node, gpu=12.34, cpu=0)

    first, second = gateway.get("/v1/utilization?by=node").document["items"]

    assert first["instanceId"] == instance_id(1)
    assert (first["state"], first["gpus"], first["gpusAllocated"]) == ("IN_SERVICE", 8, 8)
    assert first["utilization"] == {"gpu": 12.3, "gpuMemory": None, "cpu": 0, "memory": None}
    assert second["utilization"] == {"gpu": None, "gpuMemory": None, "cpu": None, "memory": None}
    assert second["measuredAt"] is None


def test_each_node_counts_in_exactly_one_phase(gateway: Gateway) -> None:
    states: dict[str, list[dict[str, Any]]] = {
        "running": [{}, {"is_cordoned": True}],
        "starting": [{"is_awaiting_validation": True}, {"is_ready": False, "node_name": ""}],
        "pendingRecovery": [
            {"is_cordoned": True, "is_ready": False},
            {"is_cordoned": True, "incident_id": "inc-0000000009"},
            {"is_ready": False, "not_ready_since": ago(minutes=5)},
            {"marks": ("NodeUnhealthy",)},
        ],
    }
    changes = [document for group in states.values() for document in group]
    store_fleet(gateway, *(a_fleet_node(number, **change) for number, change in enumerate(changes, 2)))
    store(gateway.fakes.ledger, a_fleet_node(1), an_incident(1))

    totals = gateway.get("/v1/utilization").document["totals"]

    assert totals["nodes"] == len(changes) + 1
    assert {name: totals[name] for name in states} == {
        name: len(group) + (name == "pendingRecovery") for name, group in states.items()
    }


def test_utilization_is_filtered_by_cluster_and_pool(gateway: Gateway) -> None:
    store_fleet(gateway, a_fleet_node(1), a_fleet_node(2, pool="other"), a_burst_node())

    def pools_matching(query: str) -> list[str]:
        return [item["pool"] for item in gateway.get(f"/v1/utilization?{query}").document["items"]]

    assert pools_matching("") == ["spot", "other", "p5-workers"]
    assert pools_matching(f"cluster={BURST}") == ["spot"]
    assert pools_matching("pool=other") == ["other"]
    assert pools_matching("pool=no-such-pool") == []
    assert gateway.get("/v1/utilization?pool=no-such-pool").document["totals"] is None
    assert gateway.get("/v1/utilization?by=gpu").status == 400


@pytest.mark.parametrize("error", [Throttled("read: Throttling: Rate exceeded"), NotAllowed("read: AccessDenied: no.")])
def test_failed_read_of_one_cluster_leaves_the_other_measured(gateway: Gateway, error: Any) -> None:
    node, unmeasured_node = a_fleet_node(1), a_burst_node()
    store_fleet(gateway, node, unmeasured_node)
    publish_samples(gateway, node, gpu=50)
    publish_samples(gateway, unmeasured_node, gpu=99)
    gateway.fakes.utilization_metrics.errors[BURST] = error

    answer = gateway.get("/v1/utilization").document

    burst, committed = answer["items"]
    assert burst["utilization"]["gpu"]["average"] is None
    assert burst["utilization"]["gpu"]["unknownNodes"] == 1
    assert committed["utilization"]["gpu"]["average"] == 50
    assert [source["problem"] for source in answer["sources"]] == [
        f"CloudWatch Container Insights was not read for 1 of 1 node of {BURST}: {str(error).removesuffix('.')}.",
        None,
    ]
    assert answer["totals"]["utilization"]["gpu"]["measuredNodes"] == 1


def test_cluster_without_the_metrics_add_on_is_reported(gateway: Gateway) -> None:
    store_fleet(gateway, a_fleet_node(1))

    source = gateway.get("/v1/utilization").document["sources"][0]

    assert (source["measuredNodes"], source["unknownNodes"]) == (0, 1)
    assert "amazon-cloudwatch-observability" in source["problem"]


def test_value_that_is_no_percentage_is_named_and_unknown(gateway: Gateway) -> None:
    nodes = [a_fleet_node(number) for number in range(1, 6)]
    store_fleet(gateway, *nodes)
    for node in nodes:
        publish_samples(gateway, node, gpu=640)

    answer = gateway.get("/v1/utilization").document

    assert answer["items"][0]["utilization"]["gpu"]["average"] is None
    node_ids = ", ".join(instance_id(number) for number in (1, 2, 3))
    assert f"no percentages for {node_ids}, …" in answer["sources"][0]["problem"]


def test_utilization_measured_before_the_launch_is_unknown(gateway: Gateway) -> None:
    young_node = a_burst_node(life=NodeLife(cluster=BURST, instance_id=instance_id(9), launched_at=ago(minutes=3)))
    store_fleet(gateway, young_node)
    publish_samples(gateway, young_node, minutes=5, gpu=80)

    assert gateway.get("/v1/utilization").document["items"][0]["utilization"]["gpu"]["unknownNodes"] == 1


def test_utilization_counts_a_starting_node_with_its_types_amounts(gateway: Gateway) -> None:
    store_fleet(gateway, a_fleet_node(1, node_name="", is_ready=False, accelerators=0))

    item = gateway.get("/v1/utilization").document["items"][0]

    assert (item["gpus"], item["vcpus"], item["gpusAllocated"], item["vcpusAllocated"]) == (8, 192, 0, 0)


def test_amount_of_an_unknown_type_makes_the_sum_unknown(gateway: Gateway) -> None:
    new = {"instance_type": "ml.p9.48xlarge"}
    node_with_amounts = a_fleet_node(1, accelerators=16, cpu_millis=64_000, memory_mib=2048, **new)
    store_fleet(
        gateway, node_with_amounts, a_fleet_node(2, node_name="", is_ready=False, accelerators=0, pool="other", **new)
    )

    unseen, joined = gateway.get("/v1/utilization").document["items"]

    assert (joined["gpus"], joined["gpuMemoryGib"], joined["vcpus"], joined["memoryGib"]) == (16, None, 64, 2)
    assert (unseen["gpus"], unseen["gpuMemoryGib"], unseen["vcpus"], unseen["memoryGib"]) == (None, None, None, None)


def test_utilization_has_no_totals_before_nodes_are_read(gateway: Gateway) -> None:
    answer = gateway.get("/v1/utilization").document

    assert (answer["items"], answer["totals"], answer["sources"]) == ([], None, [])
    assert answer["stale"]
