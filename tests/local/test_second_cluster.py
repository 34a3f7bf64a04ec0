"""Rentals in a second EKS cluster with IAM enforced: a job starts there, returns, and leaves nothing behind."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from evenkeel.runtime.site_policy import FRESH
from evenkeel_local.data_centre import DataCentre, FleetShape
from evenkeel_local.drills.decision_replay import replay_mismatches
from evenkeel_local.gpu_cluster import ClusterHandle
from tests.local.test_burst import HOLDS, LONG, ON_DEMAND, await_rental_end, bill_of, node_pool, rented_pool
from tests.local.training import TrainingJob
from tests.waiting import until

Json = dict[str, Any]

FLEET = FleetShape(nodes=1, burst_cluster="burst-eks")


@pytest.fixture(scope="module")
def centre(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DataCentre]:
    with DataCentre.start(tmp_path_factory.mktemp("second-cluster"), fleet=FLEET) as running:
        burst_cluster_of(running).apply([node_pool(ON_DEMAND, "on-demand")])
        burst = {
            "pools": [rented_pool(running, ON_DEMAND, "on-demand") | {"cluster": FLEET.burst_cluster}],
            "fleetCapMicrosPerHour": 120_000_000,
            "otherTeamCapMicrosPerHour": 120_000_000,
            "otherDelayMicrosPerHour": 100_000_000,
            "otherExpectedRunSeconds": 3600,
        }
        client = running.client()
        changes = {"changes": {"burst": burst}, "reason": "burst to a second cluster"}
        client.post(f"/clusters/{client.fleet}/policy", changes)
        time.sleep(FRESH.total_seconds())
        yield running
        assert replay_mismatches(running) == []


def burst_cluster_of(centre: DataCentre) -> ClusterHandle:
    assert centre.burst_cluster
    return centre.burst_cluster


def rented_objects(cluster: ClusterHandle) -> list[str]:
    """Return the names of all nodes, claims, Jobs and pods of rentals and attempts, and raised limits."""
    paths = ("/api/v1/nodes", "/apis/karpenter.sh/v1/nodeclaims", "/apis/batch/v1/jobs", "/api/v1/pods")
    names = [item["metadata"]["name"] for path in paths for item in cluster.get(path)["items"]]
    pools = cluster.get("/apis/karpenter.sh/v1/nodepools")["items"]
    return [*names, *(pool["metadata"]["name"] for pool in pools if pool["spec"]["limits"]["nvidia.com/gpu"] != "0")]


@pytest.mark.drills
@pytest.mark.timeout(600)
def test_job_runs_in_second_cluster_and_returns_to_committed_nodes(centre: DataCentre) -> None:
    elsewhere = burst_cluster_of(centre)
    first = TrainingJob.submit(centre, "baseline", HOLDS).reach(9)
    urgent = TrainingJob.submit(centre, "urgent", LONG).reach(9)

    rented, pods = urgent.attempt(1), elsewhere.get(f"/api/v1/pods?labelSelector=evenkeel.io%2Fjob%3D{urgent.job_id}")
    centre.client().post(f"/jobs/{first.job_id}/cancel", {"reason": "its node is needed"})
    back = urgent.end()

    assert rented["pool"] == ON_DEMAND
    assert [pod["spec"]["nodeName"] for pod in pods["items"]] == [node["name"] for node in rented["nodes"]]
    assert (back["state"], back["currentAttempt"], urgent.digest()) == ("SUCCEEDED", 2, urgent.expected_digest)
    assert urgent.attempt(2)["pool"] == "p5-workers"
    assert urgent.attempt(2)["resumeFrom"]["step"] >= 8
    rental = await_rental_end(urgent)
    assert rental["costUsd"] == bill_of(rental)
    until(lambda: not rented_objects(elsewhere), "the second cluster to be empty", 60)


@pytest.mark.drills
@pytest.mark.timeout(600)
def test_reclaimed_node_of_second_cluster_is_recovered(centre: DataCentre) -> None:
    elsewhere = burst_cluster_of(centre)
    first = TrainingJob.submit(centre, "baseline", HOLDS).reach(9)
    urgent = TrainingJob.submit(centre, "urgent", LONG).reach(9)
    told_at = urgent.last_step()
    (node,) = (member["name"] for member in urgent.attempt(1)["nodes"])

    elsewhere.inject("gpu-xid79", node=node)
    until(lambda: urgent.show()["currentAttempt"] > 1, "the next attempt", 120)
    centre.client().post(f"/jobs/{first.job_id}/cancel", {"reason": "seen enough"})
    back = urgent.end()

    assert (back["state"], urgent.digest()) == ("SUCCEEDED", urgent.expected_digest)
    assert node not in [member["name"] for member in urgent.attempt(2)["nodes"]]
    assert urgent.attempt(2)["resumeFrom"]["step"] <= told_at + LONG.checkpoint_every
    for number in (rental["rental"] for rental in urgent.show()["rentals"]):
        assert await_rental_end(urgent, number)["costUsd"] == bill_of(await_rental_end(urgent, number))
    until(lambda: not rented_objects(elsewhere), "the second cluster to be empty", 60)
