"""`GET /v1/showback`: use and cost by team, user and project, and budgets with their forecast."""

from dataclasses import replace
from typing import Any

import pytest

from evenkeel.domain.jobs.job import Job
from evenkeel.domain.values import rfc3339
from evenkeel.ports import Add, Key, Put, Row
from evenkeel.services.tables import job_rows, quota_rows
from tests.unit.api.gateway import ACCOUNT, Gateway
from tests.unit.api.seeds import a_job, ago, an_attempt, make_unreadable, store
from tests.unit.api.test_receipts import a_lost_job
from tests.unit.costs.test_rent import a_rental

LAST_FOUR_HOURS = f"?since={rfc3339(ago(hours=4))}"


def read_showback(gateway: Gateway, query: str = LAST_FOUR_HOURS, caller: str = "") -> Any:
    answer = gateway.get(f"/v1/showback{query}", **({"caller": caller} if caller else {}))
    assert answer.status == 200, answer.text
    return answer.document


def with_labels(job: Job, project: str, team: str = "nlp", owner: str = "role/Nlp") -> Job:
    return job.replace(spec=job.spec.replace(team=team, labels={"project": project}), submitter=owner)


def store_two_jobs(gateway: Gateway) -> None:
    """Store two jobs. Job 1 held 16 GPUs for 62 and 54 minutes; job 2 has held 8 GPUs for 20 minutes."""
    job, lost_attempt, resumed_attempt = a_lost_job()
    vision_job = with_labels(a_job(2, state="RUNNING"), "vit", "vision", "role/Vision")
    vision_attempt = an_attempt(
        vision_job, nodes=(5,), running_at=ago(minutes=20), team="vision", instance_type="ml.p5e.48xlarge"
    )
    store(
        gateway.fakes.ledger,
        with_labels(job, "llama"),
        lost_attempt.replace(team="nlp"),
        resumed_attempt.replace(team="nlp"),
        vision_job,
        vision_attempt,
    )


def test_showback_rows_sum_to_use_and_cost_of_the_window(gateway: Gateway) -> None:
    store_two_jobs(gateway)

    document = read_showback(gateway)

    nlp, vision = document["items"]
    assert (nlp["team"], nlp["user"], nlp["project"], nlp["jobs"]) == ("nlp", "role/Nlp", "llama", 1)
    assert nlp["gpuHours"] == pytest.approx(16 * (62 + 54) / 60)
    assert nlp["usdMicros"] == pytest.approx(16 * (62 + 54) / 60 * 8.256e6, abs=2)
    assert (vision["project"], vision["usdMicros"]) == ("vit", None)
    assert vision["unpricedGpuHours"] == pytest.approx(8 / 3)
    assert document["total"]["gpuHours"] == pytest.approx(nlp["gpuHours"] + vision["gpuHours"])
    assert document["total"]["usdMicros"] == nlp["usdMicros"]
    assert document["total"]["unpricedGpuHours"] == pytest.approx(8 / 3)


def test_showback_counts_only_use_within_the_window(gateway: Gateway) -> None:
    store_two_jobs(gateway)

    query = f"?since={rfc3339(ago(minutes=60))}&until={rfc3339(ago(minutes=53))}&team=nlp"
    (row,) = read_showback(gateway, query)["items"]

    # The first attempt ended 58 minutes ago; the second was admitted 54 minutes ago.
    assert row["gpuHours"] == pytest.approx(16 * (2 + 1) / 60)


def test_showback_charges_rented_nodes_at_their_rent(gateway: Gateway) -> None:
    job = with_labels(a_job(1, state="RUNNING", rentals=1), "llama")
    attempt = an_attempt(job, team="nlp", is_rented=True, running_at=ago(minutes=20), instance_type="p5.48xlarge")
    rental = a_rental(1, 0, None).replace(job_id=job.job_id, begun_at=ago(minutes=30))
    rental = rental.with_offer(opened_at=ago(minutes=30))
    store(gateway.fakes.ledger, job, attempt)
    gateway.fakes.ledger.commit(Put(job_rows.rental_row(rental, 0)))

    document = {row["kind"]: row for row in read_showback(gateway)["items"]}

    assert (document["USE"]["gpuHours"], document["USE"]["usdMicros"]) == (pytest.approx(16 / 3), 0)
    assert (document["RENT"]["gpuHours"], document["RENT"]["usdMicros"]) == (0, 25_000_000)
    assert document["RENT"]["instanceType"] == "p5.48xlarge"


def test_showback_pages_contain_each_row_once(gateway: Gateway) -> None:
    for number in range(1, 6):
        job = with_labels(a_job(number, state="RUNNING"), f"p{number}")
        store(gateway.fakes.ledger, job, an_attempt(job, running_at=ago(minutes=5)))
    projects: list[str] = []
    query = f"{LAST_FOUR_HOURS}&pageSize=2"
    for _ in range(3):
        answer = read_showback(gateway, query)
        projects += [row["project"] for row in answer["items"]]
        query = f"{LAST_FOUR_HOURS}&pageSize=2&nextPageToken={answer['nextPageToken']}"

    assert projects == ["p1", "p2", "p3", "p4", "p5"]
    assert answer["nextPageToken"] is None


def store_teams(gateway: Gateway) -> None:
    for name in ("nlp", "vision"):
        role = f"arn:aws:iam::{ACCOUNT}:role/{name}"
        team = {
            "name": name,
            "namespace": name,
            "queue": {"groups": [{"ml.p5.48xlarge": {"nvidia.com/gpu": 16}}]},
            "members": [{"principal": role, "role": "viewer"}],
            "budgets": [{"period": "month", "usd": 1000}],
        }
        body = {"team": team, "reason": "x"}
        assert gateway.call("PUT", f"/v1/teams/{name}/quota", body, headers={"If-None-Match": "*"}).status == 200


def test_showback_of_other_teams_shows_only_gpu_hours(gateway: Gateway) -> None:
    store_teams(gateway)
    store_two_jobs(gateway)

    document = read_showback(gateway, caller=f"arn:aws:sts::{ACCOUNT}:assumed-role/vision/ana")

    nlp, vision = document["items"]
    assert (nlp["user"], nlp["project"], nlp["usdMicros"]) == (None, None, None)
    assert nlp["gpuHours"] > 0
    assert (vision["user"], vision["project"]) == ("role/Vision", "vit")
    assert {budget["team"] for budget in document["budgets"]} == {"vision"}


def test_budget_forecast_follows_the_pace_of_the_period(gateway: Gateway) -> None:
    store_teams(gateway)
    key = quota_rows.spent_key("nlp", "2026-11")
    gateway.fakes.ledger.commit(Add(key, {"usdMicros": 121_250_000, "acceleratorSeconds": 0, "unpricedSeconds": 0}))

    caller = f"arn:aws:sts::{ACCOUNT}:assumed-role/nlp/ana"
    (budget,) = read_showback(gateway, caller=caller)["budgets"]

    # 58 h 15 min of 720 h have passed: 121.25 / 58.25 x 720.
    assert budget["used"] == 121.25
    assert budget["expectedAtEnd"] == pytest.approx(1498.7, abs=0.1)
    assert budget["reachedAt"].startswith("2026-11-21T00:")
    assert budget["endsAt"] == "2026-12-01T00:00:00.000000Z"


def test_unreadable_charge_makes_used_budget_lower_bound(gateway: Gateway) -> None:
    store_teams(gateway)
    row = quota_rows.charge_row(an_attempt(a_job(1), team="nlp"))
    gateway.fakes.ledger.commit(Put(replace(row, doc={**row.doc, "accelerators": "of a newer release"})))

    (budget,) = read_showback(gateway, caller=f"arn:aws:sts::{ACCOUNT}:assumed-role/nlp/ana")["budgets"]

    assert budget["isLowerBound"]


@pytest.mark.parametrize("key", [job_rows.attempt_key("job-0000000001", 1), job_rows.job_key("job-0000000001")])
def test_showback_counts_unreadable_record(key: Key, gateway: Gateway) -> None:
    store_two_jobs(gateway)
    make_unreadable(gateway.fakes.ledger, key, "priority" if key.sk == "META" else "accelerators")

    document = read_showback(gateway)

    assert document["isComplete"] is False
    assert document["notes"][-1] == "1 attempt, job, rental or node cannot be read: the sums are lower bounds."


def test_unreadable_rental_makes_used_budget_lower_bound(gateway: Gateway) -> None:
    store_teams(gateway)
    key = quota_rows.rental_allocation_key("job-0000000001", 1)
    gateway.fakes.ledger.commit(Put(Row(key, {"nodes": "of a newer release"})))

    (budget,) = read_showback(gateway, caller=f"arn:aws:sts::{ACCOUNT}:assumed-role/nlp/ana")["budgets"]

    assert budget["isLowerBound"]


@pytest.mark.parametrize(
    "query", ["?since=2027-01-01T00:00:00Z", "?nextPageToken=x", "?nextPageToken=e30=", "?label=%00"]
)
def test_invalid_query_of_the_showback_is_refused(query: str, gateway: Gateway) -> None:
    assert gateway.get(f"/v1/showback{query}").status == 400
