"""Rentals with IAM enforced: nodes are rented for an urgent job, returned, and billed."""

import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from evenkeel.runtime.site_policy import FRESH
from evenkeel_local.data_centre import DataCentre, FleetShape
from evenkeel_local.drills import TrainingWork
from evenkeel_local.drills.decision_replay import replay_mismatches
from tests.local.training import TrainingJob
from tests.waiting import until

Json = dict[str, Any]

FLEET = FleetShape(nodes=1)
TYPE = "p5.48xlarge"
SPOT, ON_DEMAND = "burst-spot", "burst-on-demand"
MICROS = {SPOT: 22_000_000, ON_DEMAND: 55_040_000}
LONG = TrainingWork(nodes=1, steps=400, checkpoint_every=4, step_seconds=0.15)
HOLDS = TrainingWork(nodes=1, steps=3000, checkpoint_every=4, step_seconds=0.15)
"""Work of a job that keeps the committed nodes until it is cancelled."""
SHORT = TrainingWork(nodes=1, steps=160, checkpoint_every=4, step_seconds=0.15)


def node_pool(name: str, market: str) -> Json:
    terms = {"karpenter.sh/capacity-type": market, "node.kubernetes.io/instance-type": TYPE}
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": name},
        "spec": {
            "limits": {"nvidia.com/gpu": "0"},
            "template": {
                "spec": {
                    "requirements": [{"key": key, "operator": "In", "values": [value]} for key, value in terms.items()],
                    "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"},
                }
            },
            "disruption": {"consolidateAfter": "Never"},
        },
    }


def rented_pool(centre: DataCentre, name: str, market: str) -> Json:
    return {
        "name": name,
        "cluster": centre.cluster.eks_cluster_name,
        "market": market,
        "instanceType": TYPE,
        "zone": "us-west-2a",
        "acceleratorsPerNode": 8,
        "maxNodes": 2,
        "microsPerNodeHour": MICROS[name],
        "launch": {"p50Seconds": 2, "p90Seconds": 4},
        "place": {},
    }


@pytest.fixture(scope="module")
def centre(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DataCentre]:
    with DataCentre.start(tmp_path_factory.mktemp("burst"), fleet=FLEET) as running:
        running.cluster.apply([node_pool(SPOT, "spot"), node_pool(ON_DEMAND, "on-demand")])
        burst = {
            "pools": [rented_pool(running, SPOT, "spot"), rented_pool(running, ON_DEMAND, "on-demand")],
            "fleetCapMicrosPerHour": 120_000_000,
            "otherTeamCapMicrosPerHour": 120_000_000,
            "otherDelayMicrosPerHour": 100_000_000,
            "otherExpectedRunSeconds": 3600,
        }
        client = running.client()
        client.post(f"/clusters/{client.fleet}/policy", {"changes": {"burst": burst}, "reason": "burst to EKS"})
        time.sleep(FRESH.total_seconds())
        yield running
        assert replay_mismatches(running) == []


@pytest.fixture(autouse=True)
def has_ended(centre: DataCentre) -> Iterator[None]:
    yield
    until(lambda: not remains_of_rentals(centre), "everything rented to be given back", 60)
    assert remains_of_rentals(centre) == []


def remains_of_rentals(centre: DataCentre) -> list[str]:
    """Return the remains of rentals: nodes, capacity pods, limits, and rows that count against the caps."""
    get = centre.cluster.get
    claims = [claim["metadata"]["name"] for claim in get("/apis/karpenter.sh/v1/nodeclaims")["items"]]
    pods = get("/api/v1/pods?labelSelector=evenkeel.io%2Frental")["items"]
    jobs = get("/apis/batch/v1/jobs?labelSelector=evenkeel.io%2Frental")["items"]
    pools = get("/apis/karpenter.sh/v1/nodepools")["items"]
    limits = [pool["metadata"]["name"] for pool in pools if pool["spec"]["limits"]["nvidia.com/gpu"] != "0"]
    rows = centre.deployer.client("dynamodb").query(
        TableName=centre.outputs["QuotasTableName"],
        KeyConditionExpression="pk = :pk AND begins_with(sk, :sk)",
        ExpressionAttributeValues={":pk": {"S": "TREE#fleet"}, ":sk": {"S": "RENTAL#"}},
    )["Items"]
    named = [document["metadata"]["name"] for document in (*pods, *jobs)]
    return [*claims, *named, *limits, *(row["sk"]["S"] for row in rows)]


def rental_of(job: TrainingJob, number: int = 1) -> Json:
    return next((rental for rental in job.show()["rentals"] if rental["rental"] == number), {})


def await_rental_end(job: TrainingJob, number: int = 1) -> Json:
    def look() -> Json:
        rental = rental_of(job, number)
        return rental if rental.get("endedAt") else {}

    return until(look, f"rental {number} of {job.job_id} to end", 60)


def bill_of(rental: Json) -> str:
    """Compute the cost of a rental from its offers: price x started seconds x nodes, to the micro-dollar."""
    parts = 0
    for offer in rental["offers"]:
        if offer["joinedNodes"]:
            lasted = datetime.fromisoformat(offer["closedAt"]) - datetime.fromisoformat(offer["openedAt"])
            seconds = max(60, lasted.seconds + (1 if lasted.microseconds else 0))
            parts += offer["microsPerNodeHour"] * offer["joinedNodes"] * seconds
    return f"{parts / 3_600_000_000:.6f}"


@pytest.mark.drills
@pytest.mark.timeout(600)
def test_urgent_job_bursts_and_migrates_back_to_free_committed_capacity(centre: DataCentre) -> None:
    first = TrainingJob.submit(centre, "baseline", HOLDS).reach(9)
    urgent = TrainingJob.submit(centre, "urgent", LONG)

    urgent.reach(9)
    rented = urgent.attempt(1)
    centre.client().post(f"/jobs/{first.job_id}/cancel", {"reason": "its room is wanted"})
    back = urgent.end()

    assert rented["pool"] == SPOT
    assert (back["state"], back["currentAttempt"], urgent.digest()) == ("SUCCEEDED", 2, urgent.expected_digest)
    assert urgent.attempt(1)["state"] == "STOPPED"
    assert urgent.attempt(1)["reason"].startswith(
        "The job migrates back to committed capacity: p5-workers has free nodes"
    )
    assert urgent.attempt(2)["pool"] == "p5-workers"
    assert urgent.attempt(2)["resumeFrom"]["step"] >= 8
    rental = await_rental_end(urgent)
    assert rental["costUsd"] == bill_of(rental)
    assert len(urgent.show()["rentals"]) == 1


@pytest.mark.drills
@pytest.mark.timeout(600)
def test_reclaimed_spot_node_is_replaced_on_demand(centre: DataCentre) -> None:
    first = TrainingJob.submit(centre, "baseline", HOLDS).reach(9)
    urgent = TrainingJob.submit(centre, "urgent", LONG).reach(9)
    told_at = urgent.last_step()

    centre.cluster.inject("spot-reclaim", node=urgent.node())
    until(lambda: urgent.show()["currentAttempt"] > 1, "the next attempt", 120)
    centre.client().post(f"/jobs/{first.job_id}/cancel", {"reason": "seen enough"})
    back = urgent.end()

    assert (back["state"], urgent.digest()) == ("SUCCEEDED", urgent.expected_digest)
    assert (urgent.attempt(1)["pool"], urgent.attempt(2)["pool"]) == (SPOT, ON_DEMAND)
    assert urgent.attempt(2)["resumeFrom"]["step"] >= told_at
    for number in (1, 2):
        assert await_rental_end(urgent, number)["costUsd"] == bill_of(await_rental_end(urgent, number))


@pytest.mark.drills
@pytest.mark.timeout(600)
def test_job_without_capacity_anywhere_waits_with_its_reason(centre: DataCentre) -> None:
    for market in ("spot", "on-demand"):
        none = {"instanceType": TYPE, "zone": "us-west-2a", "capacityType": market, "machines": 0}
        centre.cluster.control("POST", "offerings", none)
    first = TrainingJob.submit(centre, "baseline", SHORT).reach(4)
    urgent = TrainingJob.submit(centre, "urgent", SHORT)

    rental = await_rental_end(urgent)
    waiting = until(
        lambda: urgent.show() if "No pool can be rented" in urgent.show()["reason"] else {}, "its reason", 60
    )
    done, after = first.end(), urgent.end()

    assert all(offer["refused"] for offer in rental["offers"])
    assert rental["costUsd"] == "0.000000"
    assert waiting["state"] == "PENDING"
    assert "The job waits for 1 node" in waiting["reason"]
    assert (done["state"], after["state"], urgent.digest()) == ("SUCCEEDED", "SUCCEEDED", urgent.expected_digest)
    assert urgent.attempt(1)["pool"] == "p5-workers"
