"""The cost, start time and risk of every pool for a job, before Evenkeel rents nodes."""

from datetime import timedelta
from typing import Any

import pytest

from evenkeel.domain.nodes import NodeLife
from evenkeel.domain.policy import changed
from evenkeel.domain.values import rfc3339
from evenkeel.ports import Put
from evenkeel.runtime.site_policy import SitePolicy
from evenkeel.services.tables import quota_rows
from tests.unit.api.gateway import Gateway
from tests.unit.api.seeds import a_fleet_node, a_job, ago, an_attempt, store

DELAY = {"launch": {"p50Seconds": 120, "p90Seconds": 120}}
DEMAND = {
    "name": "burst-od",
    "cluster": "burst",
    "market": "on-demand",
    "instanceType": "ml.p5.48xlarge",
    "acceleratorsPerNode": 8,
    "maxNodes": 4,
    "microsPerNodeHour": 55_040_000,
    "place": {},
    **DELAY,
}
SPOT = DEMAND | {"name": "burst-spot", "market": "spot", "microsPerNodeHour": 24_000_000, "interruptionsPerNodeHour": 5}
BURST = {
    "pools": [SPOT, DEMAND],
    "fleetCapMicrosPerHour": 500_000_000,
    "otherTeamCapMicrosPerHour": 200_000_000,
    "otherDelayMicrosPerHour": 400_000_000,
    "expectedRunSeconds": {},
    "otherExpectedRunSeconds": 7200,
}
BODY = {
    "name": "a",
    "image": "registry/a:1",
    "command": ["run"],
    "nodes": 2,
    "checkpoint": {"uri": "s3://checkpoints/a"},
}


def store_busy_fleet(gateway: Gateway, **burst: Any) -> Gateway:
    """Store two nodes that are in use for 15 minutes, and two pools to rent from."""
    policy = changed(gateway.fakes.policy, {"burst": BURST | burst})
    gateway.world.__dict__["policies"] = SitePolicy(policy, None, gateway.world)
    store(gateway.fakes.ledger, a_fleet_node(1), a_fleet_node(2))
    running_attempt = an_attempt(a_job(1), instance_type="ml.p5.48xlarge", admitted_at=ago(minutes=15))
    gateway.fakes.ledger.commit(Put(quota_rows.charge_row(running_attempt)))
    return gateway


def placement_of(gateway: Gateway, **fields: Any) -> dict[str, Any]:
    answer = gateway.post("/v1/jobs/plan", BODY | fields)
    assert answer.status == 200, answer.text
    document: dict[str, Any] = answer.document["placement"]
    return document


def test_plan_of_an_urgent_job_explains_every_pool(gateway: Gateway) -> None:
    site = store_busy_fleet(gateway)
    commits = len(site.fakes.ledger.commits)

    document = placement_of(site)

    assert (document["action"], document["pool"]) == ("RENT", "burst-od")
    chosen, *other_rows = document["pools"]
    assert (chosen["pool"], chosen["isChosen"], chosen["market"]) == ("burst-od", True, "on-demand")
    # Two nodes for two hours of work, the launch and the restart, at $55.04.
    seconds = chosen["endsAfterSeconds"]
    assert chosen["usd"]["rent"] == pytest.approx(2 * 55.04 * seconds / 3600, abs=0.05)
    assert {row["pool"] for row in other_rows} == {"p5-workers", "burst-spot"}
    spot = next(row for row in other_rows if row["pool"] == "burst-spot")
    assert spot["interruptions"] > 0
    assert "too infrequent" in spot["whyNot"]
    assert all(row["startsAt"] < row["endsAt"] for row in document["pools"])
    assert len(site.fakes.ledger.commits) == commits


def test_free_committed_nodes_are_chosen(gateway: Gateway) -> None:
    site = store_busy_fleet(gateway)
    store(site.fakes.ledger, *(a_fleet_node(number, accelerators_in_use=0) for number in (3, 4)))

    document = placement_of(site)

    assert (document["action"], document["pool"], document["pools"][0]["usd"]["rent"]) == ("START", "p5-workers", 0)


def test_plan_counts_earlier_attempts_of_the_running_job(gateway: Gateway) -> None:
    site = store_busy_fleet(gateway)
    spec = a_job(1).spec.replace(checkpoint_uri="s3://checkpoints/running")
    running = a_job(1, state="RUNNING", current_attempt=2, spec=spec)
    ended = an_attempt(running, 1, state="LOST", running_at=ago(minutes=100), ended_at=ago(minutes=40))
    before = placement_of(site)["pools"]

    store(site.fakes.ledger, running, ended, an_attempt(running, 2))
    after = placement_of(site)["pools"]

    def wait(pools: list[dict[str, Any]]) -> float:
        return float(next(row["startsAfterSeconds"] for row in pools if row["pool"] == "p5-workers"))

    assert wait(before) - wait(after) == 3600


def test_exceeded_spending_cap_is_shown_in_dollars(gateway: Gateway) -> None:
    document = placement_of(store_busy_fleet(gateway, fleetCapMicrosPerHour=60_000_000))

    why = next(row["whyNot"] for row in document["pools"] if row["pool"] == "burst-od")
    assert document["action"] == "WAIT"
    assert why == "Renting costs $110.08 an hour, which exceeds the limit: the fleet spends $0.00 of $60.00 an hour."


def test_job_whose_class_has_no_delay_price_rents_nothing(gateway: Gateway) -> None:
    document = placement_of(store_busy_fleet(gateway, otherDelayMicrosPerHour=0))

    assert document["action"] == "WAIT"
    assert {row["whyNot"] for row in document["pools"] if row["market"] != "committed"} >= {
        "The policy sets no price on the delay of the job's class, so Evenkeel rents nothing for it."
    }


def test_pool_that_cannot_run_the_job_shows_the_difference(gateway: Gateway) -> None:
    small = DEMAND | {"name": "small", "instanceType": "p4d.24xlarge"}
    document = placement_of(store_busy_fleet(gateway, pools=[small]), requires={"gpuMemoryGib": 80})

    row = next(row for row in document["pools"] if row["pool"] == "small")
    assert row["differences"] == ["The job needs 80 GiB on each accelerator, but the nodes have 40."]
    assert row["whyNot"] == row["differences"][0]


def test_pool_table_without_rental_pools_shows_committed_nodes(gateway: Gateway) -> None:
    store(gateway.fakes.ledger, a_fleet_node(1), a_fleet_node(2))

    document = placement_of(gateway)

    assert [(row["pool"], row["market"]) for row in document["pools"]] == [("p5-workers", "committed")]


# ---------------------------------------------------------------- deadlines


def test_deadline_is_shown_in_plan_and_job(gateway: Gateway) -> None:
    site = store_busy_fleet(gateway, otherDelayMicrosPerHour=0)
    deadline = rfc3339(site.fakes.clock.now() + timedelta(hours=3))

    document = placement_of(site, deadline=deadline)
    response = site.post("/v1/jobs", BODY | {"deadline": deadline.replace("Z", "+00:00")}, key="k1")

    assert (document["action"], document["pool"]) == ("RENT", "burst-od")
    assert "p5-workers would be cheaper but would miss the job's deadline" in document["reason"]
    assert placement_of(site)["action"] == "WAIT"
    assert site.get(f"/v1/jobs/{response.document['jobId']}").document["deadline"] == deadline


@pytest.mark.parametrize(
    "deadline",
    [
        "2020-01-01T00:00:00Z",
        "2026-11-03",
        "2026-11-03T10:15:00",
        "1793700900",
        1_793_700_900,
        "2026-13-03T10:15:00Z",
        "9999-12-31T23:59:59-01:00",
        "tomorrow",
        "",
    ],
)
@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/jobs/plan"])
def test_past_or_invalid_deadline_is_refused_by_field(gateway: Gateway, path: str, deadline: Any) -> None:
    answer = gateway.post(path, BODY | {"deadline": deadline}, key="k1")

    assert (answer.status, answer.document["code"]) == (400, "VALIDATION_FAILED")
    assert [error["field"] for error in answer.document["errors"]] == ["deadline"]
    assert answer.headers["Content-Type"] == "application/problem+json"


def test_job_without_a_deadline_shows_null(gateway: Gateway) -> None:
    response = gateway.post("/v1/jobs", BODY | {"deadline": None}, key="k1")

    assert gateway.get(f"/v1/jobs/{response.document['jobId']}").document["deadline"] is None


def test_plan_with_kueue_admission_has_no_pools(gateway: Gateway) -> None:
    with_kueue = Gateway(environment={"EVENKEEL_ADMISSION": "kueue"})

    evenkeel_answer, kueue_answer = (site.post("/v1/jobs/plan", BODY) for site in (gateway, with_kueue))

    assert (evenkeel_answer.status, kueue_answer.status) == (200, 200)
    assert kueue_answer.document.keys() == evenkeel_answer.document.keys()
    assert (kueue_answer.document["jobType"], kueue_answer.document["placement"]) == (None, None)


def test_status_shows_rental_pools_of_the_policy_as_burst(gateway: Gateway) -> None:
    life = NodeLife(cluster="burst", instance_id="i-0fedcba9876543210", launched_at=ago(hours=1))
    store(store_busy_fleet(gateway).fakes.ledger, a_fleet_node(3, life=life, pool="burst-od"))

    pools = gateway.get("/v1/status").document["nodes"]["pools"]

    assert {pool["pool"]: pool["kind"] for pool in pools} == {"burst-od": "burst", "p5-workers": "committed"}
