"""`GET /v1/cost-report`: the costs of a window, from the records of attempts, incidents, nodes and rentals."""

import math
from datetime import timedelta
from typing import Any

import pytest

from evenkeel.domain.economics.economy_policy import EconomyPolicy
from evenkeel.domain.policy import Policy
from evenkeel.domain.values import rfc3339
from evenkeel.ports import Key, Put
from evenkeel.services.queries.costs import read_cost_records, read_recent_days
from evenkeel.services.tables import fleet_rows, incident_rows, job_rows
from tests.fakes.cluster import CLUSTER, instance_id
from tests.fakes.world import FakeWorld
from tests.unit.api.gateway import Gateway
from tests.unit.api.seeds import a_fleet_node, a_job, ago, an_attempt, an_incident, make_unreadable, store
from tests.unit.api.test_receipts import a_lost_job, an_incident_of
from tests.unit.costs.test_rent import a_rental


def read_report(gateway: Gateway, query: str = "") -> Any:
    answer = gateway.get(f"/v1/cost-report{query}")
    assert answer.status == 200, answer.text
    return answer.document


def store_fleet(gateway: Gateway, **changes: Any) -> None:
    job, lost_attempt, resumed_attempt = a_lost_job()
    store(gateway.fakes.ledger, job, lost_attempt, resumed_attempt, an_incident_of(job, **changes))
    store(gateway.fakes.ledger, *(a_fleet_node(number) for number in range(1, 6)))


def gpu_hours_by_use(report: Any) -> dict[str, float]:
    return {use["use"]: round(use["gpuHours"], 6) for use in report["allNodes"]["uses"] if use["gpuHours"]}


def test_kinds_of_use_sum_to_the_windows_node_time(gateway: Gateway) -> None:
    store_fleet(gateway)

    document = read_report(gateway, f"?since={rfc3339(ago(hours=3))}")

    # Attempt 1 lost 12 of 62 minutes; attempt 2 started for two minutes and has run for 52 minutes. No record says when
    # it trained again, so the use of its first 1,400 seconds is unknown. The job waited for 60 minutes, and for 4.
    unknown = 1400 / 60
    assert gpu_hours_by_use(document) == {
        "PRODUCTIVE": round(16 * (50 + 52 - unknown) / 60, 6),
        "UNKNOWN": round(16 * unknown / 60, 6),
        "LOST": round(16 * (12 + 2) / 60, 6),
        "IN_REPAIR": round(8 * (18 / 60), 6),
        "WAITING": round(16 * 64 / 60, 6),
        "NO_JOB": round(5 * 8 * 3 - 16 * (116 + 64) / 60 - 8 * 18 / 60, 6),
    }
    assert document["allNodes"]["gpuHours"] == 5 * 8 * 3
    idle = gpu_hours_by_use(document)["NO_JOB"] + gpu_hours_by_use(document)["WAITING"]
    assert document["idleCommittedGpuHours"] == pytest.approx(idle)
    assert document["idleCommittedUsdMicros"] == pytest.approx(idle * 8.256e6, abs=100)
    assert (document["idleRentedGpuHours"], document["idleRentedUsdMicros"]) == (0, 0)
    assert (document["isComplete"], document["isNodeTimeComplete"]) == (True, True)


ONE_RECOVERY = {
    "count": 1,
    "unknown": 0,
    "p50Seconds": 480,
    "p99Seconds": 480,
    "maxSeconds": 480,
    "meanSeconds": 480,
}


def test_measured_restore_and_saves_have_their_own_uses(gateway: Gateway) -> None:
    job, lost_attempt, resumed_attempt = a_lost_job()
    assert resumed_attempt.running_at
    measured = {"save_seconds": 30.0, "save_interval_seconds": 300.0}
    trained_at = resumed_attempt.running_at + timedelta(minutes=12)
    attempts = (lost_attempt.replace(**measured), resumed_attempt.replace(trained_at=trained_at, **measured))
    store(gateway.fakes.ledger, job, *attempts, an_incident_of(job), *(a_fleet_node(number) for number in range(1, 6)))

    document = read_report(gateway, f"?since={rfc3339(ago(hours=3))}")

    uses = gpu_hours_by_use(document)
    assert "UNKNOWN" not in uses
    assert uses["RESTORING"] == 16 * 12 / 60
    assert uses["CHECKPOINTING"] == pytest.approx(16 * (50 + 40) / 60 / 10)
    assert uses["PRODUCTIVE"] == pytest.approx(9 * uses["CHECKPOINTING"])
    assert sum(uses.values()) == pytest.approx(document["allNodes"]["gpuHours"])
    assert document["allNodes"]["unmeasuredSavesGpuHours"] == 0
    effective = document["effective"]
    parts = [effective[f"{name}GpuHours"] for name in ("productive", "checkpointing", "unknown", "lost")]
    assert effective["ratio"] == pytest.approx(parts[0] / sum(parts))


def test_report_has_mtbf_and_mttr_by_pool_and_fault_class(gateway: Gateway) -> None:
    store_fleet(gateway)
    store(gateway.fakes.ledger, a_fleet_node(7, pool="other"))

    rows = {(row["pool"], row["faultClass"]): row for row in read_report(gateway)["reliability"]}

    assert rows.keys() == {
        (None, None),
        ("p5-workers", None),
        ("other", None),
        (None, "hardware"),
        ("p5-workers", "hardware"),
    }
    of_class = rows["p5-workers", "hardware"]
    assert (of_class["failures"], of_class["nodeHours"], of_class["mtbfHours"]) == (1, 5 * 72, 360)
    # One failure: the exact interval of its count is 0.0253 to 5.57.
    assert of_class["lowMtbfHours"] == pytest.approx(360 / 5.5716, rel=1e-4)
    assert of_class["highMtbfHours"] == pytest.approx(360 / 0.025318, rel=1e-4)
    assert of_class["jobRecovery"] == ONE_RECOVERY
    assert of_class["nodeRepair"]["meanSeconds"] == of_class["nodeRepair"]["maxSeconds"] == 20 * 60
    assert rows[None, None]["mtbfHours"] == 6 * 72
    without_failure = rows["other", None]
    assert (without_failure["mtbfHours"], without_failure["highMtbfHours"]) == (None, None)
    assert without_failure["lowMtbfHours"] == pytest.approx(72 / 3.6889, rel=1e-4)
    assert without_failure["nodeRepair"]["meanSeconds"] is None


def test_report_has_failures_by_job_size_with_running_time(gateway: Gateway) -> None:
    store_fleet(gateway)

    document = read_report(gateway, f"?since={rfc3339(ago(hours=3))}")

    all_jobs, pair = document["jobSizes"]
    # Both attempts had two nodes. The first ran for 62 minutes and was lost, the second has run for 52 minutes.
    assert (all_jobs["group"], pair["group"], pair["smallestNodes"], pair["failures"]) == ("all", "2-3", 2, 1)
    assert pair["jobHours"] == pair["mtbfHours"] == pytest.approx((62 + 52) / 60)
    assert (pair["nodeHours"], pair["gpuHours"]) == pytest.approx((2 * pair["jobHours"], 16 * pair["jobHours"]))
    assert pair["rate"]["failuresPerNodeHour"] == pytest.approx(1 / pair["nodeHours"])
    # The failure cost a standstill of 8 minutes, and 10 minutes of repeated work.
    assert document["endlessSize"]["lostSeconds"] == pytest.approx(18 * 60)
    assert document["endlessSize"]["nodes"] == math.ceil(pair["nodeHours"] / 0.3)


def test_failures_of_the_application_are_no_failures_of_the_size(gateway: Gateway) -> None:
    job = a_job(state="PENDING")
    failed_attempt = an_attempt(job, state="FAILED", running_at=ago(hours=2), ended_at=ago(hours=1))
    store(gateway.fakes.ledger, job, failed_attempt)

    _, pair = read_report(gateway)["jobSizes"]

    assert (pair["failures"], pair["otherFailures"], pair["mtbfHours"], pair["jobHours"]) == (0, 1, None, 1)


def test_node_that_is_not_back_has_an_unknown_repair_time(gateway: Gateway) -> None:
    store(gateway.fakes.ledger, a_fleet_node(1), an_incident(1))

    (row, *_) = read_report(gateway)["reliability"]

    assert (row["nodeRepair"]["count"], row["nodeRepair"]["unknown"], row["nodeRepair"]["meanSeconds"]) == (0, 1, None)


def test_report_shows_intervals_of_failure_rates_and_causes_of_losses(gateway: Gateway) -> None:
    store_fleet(gateway)

    document = read_report(gateway)

    rate = document["failures"]["rate"]
    assert (document["failures"]["count"], rate["nodeHours"]) == (1, 5 * 72)
    assert rate["lowFailuresPerNodeHour"] < rate["failuresPerNodeHour"] < rate["highFailuresPerNodeHour"]
    assert [(row["group"], row["interruptions"]) for row in document["byCause"]] == [("hardware", 1)]
    assert document["lost"]["gpuHours"] == pytest.approx(4.8)
    assert document["recovery"] == ONE_RECOVERY
    stages = {row["stage"]: row for row in document["stages"]}
    assert stages["WAIT_FOR_NODES"]["time"]["maxSeconds"] == 240
    assert (stages["RESTORE"]["time"]["unknown"], stages["RESTORE"]["time"]["p50Seconds"]) == (1, None)


def test_improvements_are_ranked_by_the_money_that_they_save(gateway: Gateway) -> None:
    store_fleet(gateway)

    worths = [improvement["worthUsdMicros"] for improvement in read_report(gateway)["improvements"]]

    assert worths == sorted(worths, reverse=True)
    assert len(worths) == 6


def test_changed_price_counts_from_its_first_day() -> None:
    """The idle hours of a day have the price of that day. An attempt keeps the price of its admission."""
    changed = [
        {"instanceType": "ml.p5.48xlarge", "basis": "discount", "from": "2026-10-01", "usdPerNodeHour": 40},
        {"instanceType": "ml.p5.48xlarge", "basis": "discount", "from": "2026-11-03", "usdPerNodeHour": 56},
    ]
    gateway = Gateway(FakeWorld(policy=Policy(economy=EconomyPolicy.model_validate({"prices": changed}))))
    job = a_job(state="RUNNING", submitted_at=ago(hours=13))
    whole_node = an_attempt(
        job, nodes=(2,), admitted_at=ago(hours=12), running_at=ago(hours=12), instance_type="ml.p5.48xlarge"
    )
    store(gateway.fakes.ledger, job, whole_node, a_fleet_node(1), a_fleet_node(2))

    document = read_report(gateway, f"?since={rfc3339(ago(hours=14))}")

    today = (10 * 3600 + 15 * 60 + 2) / 3600
    # Node 1 was idle for 14 hours, node 2 for the two hours before the attempt.
    assert document["idleCommittedUsdMicros"] == pytest.approx((40 * (14 - today) + 56 * today + 40 * 2) * 1e6, abs=10)
    assert document["teams"][0]["usdMicros"] == pytest.approx(12 * 40e6, abs=10)


def test_unknown_price_is_unknown_and_ranks_by_gpu_hours(gateway: Gateway) -> None:
    store_fleet(gateway)
    store(gateway.fakes.ledger, a_fleet_node(9, instance_type="ml.p5e.48xlarge"))

    document = read_report(gateway)

    assert document["idleCommittedUsdMicros"] is None
    hours = [improvement["worthGpuHours"] for improvement in document["improvements"]]
    assert hours == sorted(hours, reverse=True)


def test_cost_report_counts_drills_neither_as_failures_nor_as_savings(gateway: Gateway) -> None:
    store_fleet(gateway, is_drill=True)

    document = read_report(gateway)

    assert (document["failures"]["count"], document["lost"]["interruptions"]) == (0, 0)
    assert [(saving["claimed"], saving["highSavedGpuHours"]) for saving in document["saved"]] == [(0, None), (0, None)]


def test_interruption_belongs_to_the_window_in_which_its_attempt_ended(gateway: Gateway) -> None:
    store_fleet(gateway)
    boundary = rfc3339(ago(minutes=57))

    before = read_report(gateway, f"?since={rfc3339(ago(hours=9))}&until={boundary}")
    after = read_report(gateway, f"?since={boundary}")

    assert (before["lost"]["interruptions"], after["lost"]["interruptions"]) == (1, 0)
    assert before["lost"]["gpuHours"] == pytest.approx(4.8)


def test_losses_of_job_older_than_window_are_complete(gateway: Gateway) -> None:
    job, first, second = a_lost_job()
    first_attempt = first.replace(running_at=ago(days=9), admitted_at=ago(days=9), ended_at=ago(days=8))
    ended_attempt = second.replace(
        state="LOST", admitted_at=ago(days=7), launched_at=None, running_at=ago(days=7), ended_at=ago(hours=1)
    )
    # The third attempt resumes from a checkpoint of the first one, before the window.
    third = second.replace(attempt=3, resumed_work_from=ago(days=8, hours=1))
    store(gateway.fakes.ledger, job.replace(current_attempt=3), first_attempt, ended_attempt, third)

    document = read_report(gateway, f"?since={rfc3339(ago(hours=2))}")

    # The loss lasted 8 days and an hour, less the 52 minutes since, and less the day of the first loss.
    assert document["lost"]["interruptions"] == 1
    assert document["lost"]["gpuHours"] == pytest.approx(16 * ((8 * 24 + 1 - 52 / 60) - 24), rel=1e-3)


def test_preemption_does_not_count_as_failure(gateway: Gateway) -> None:
    job, lost_attempt, resumed_attempt = a_lost_job()
    store(gateway.fakes.ledger, job, lost_attempt.replace(state="STOPPED"), resumed_attempt)

    document = read_report(gateway)

    assert (document["lost"]["interruptions"], document["requested"]["interruptions"]) == (0, 1)
    assert (document["lost"]["usdMicros"], document["recovery"]["p50Seconds"]) == (0, None)


def test_use_without_known_quota_is_unknown_not_zero(gateway: Gateway) -> None:
    store_fleet(gateway)

    (team,) = read_report(gateway)["teams"]

    assert team["unknownQuotaGpuHours"] == team["gpuHours"] > 0
    assert [team[f"{name}GpuHours"] for name in ("withinQuota", "borrowed", "withoutQuota")] == [None] * 3


def test_empty_fleet_has_unknown_ratios_and_no_zero_rates(gateway: Gateway) -> None:
    document = read_report(gateway)

    assert document["failures"]["rate"] is document["effective"]["ratio"] is None
    assert {use["share"] for use in document["allNodes"]["uses"]} == {None}


def test_window_that_begins_before_the_records_is_shortened(gateway: Gateway) -> None:
    store_fleet(gateway)

    document = read_report(gateway, f"?since={rfc3339(ago(days=60))}")

    assert not document["isNodeTimeComplete"]
    assert document["since"] >= rfc3339(ago(days=30))
    assert any("begins later than requested" in note for note in document["notes"])


def test_window_without_any_record_is_refused(gateway: Gateway) -> None:
    answer = gateway.get(f"/v1/cost-report?since={rfc3339(ago(days=60))}&until={rfc3339(ago(days=40))}")

    assert (answer.status, answer.document["errors"][0]["field"]) == (400, "since")


def test_cost_report_states_that_it_left_out_records(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_cost_records, "MAX_ATTEMPTS", 2)
    monkeypatch.setattr(read_recent_days, "MAX_JOBS", 1)
    for number in range(1, 5):
        job = a_job(number, state="PENDING")
        lost_attempt = an_attempt(job, state="LOST", running_at=ago(hours=2), ended_at=ago(minutes=10 * number))
        store(gateway.fakes.ledger, job, lost_attempt)
    monkeypatch.setattr(gateway.fakes.ledger, "by_state", _read_two_per_page(gateway.fakes.ledger.by_state))

    document = read_report(gateway)

    assert not document["isComplete"]
    assert document["since"] == rfc3339(ago(minutes=20))
    assert document["lost"]["interruptions"] == 1


def test_cost_report_counts_unreadable_incidents(gateway: Gateway) -> None:
    store_fleet(gateway)
    make_unreadable(gateway.fakes.ledger, incident_rows.incident_key("inc-0000000001"), "severity")

    document = read_report(gateway)

    assert not document["isComplete"]
    assert "1 incident cannot be read: failures and losses are too low." in document["notes"]


@pytest.mark.parametrize(
    ("key", "field"),
    [
        (job_rows.attempt_key("job-0000000001", 1), "accelerators"),
        (job_rows.attempt_key("job-0000000001", 2), "accelerators"),
        (job_rows.job_key("job-0000000001"), "priority"),
        (fleet_rows.node_key(CLUSTER, instance_id(1)), "isReady"),
    ],
)
def test_cost_report_counts_unreadable_record(key: Key, field: str, gateway: Gateway) -> None:
    store_fleet(gateway)
    make_unreadable(gateway.fakes.ledger, key, field)

    document = read_report(gateway)

    assert (document["isComplete"], document["isNodeTimeComplete"]) == (False, False)
    text = "1 attempt, job, rental or node cannot be read: the sums are lower bounds."
    assert document["notes"].count(text) == 1
    assert not any("no longer stored" in note for note in document["notes"])


def test_cost_report_counts_unreadable_rental(gateway: Gateway) -> None:
    store_fleet(gateway)
    rental = a_rental(1, 0, None)
    gateway.fakes.ledger.commit(Put(job_rows.rental_row(rental, 0)))
    make_unreadable(gateway.fakes.ledger, job_rows.rental_key(rental.job_id, rental.number), "state")

    assert not read_report(gateway)["isComplete"]


def _read_two_per_page(read: Any) -> Any:
    return lambda *args, **options: read(*args, **{**options, "limit": min(2, options.get("limit", 100))})


def test_loss_of_a_job_that_is_not_stored_is_unknown(gateway: Gateway) -> None:
    _, lost_attempt, _ = a_lost_job()
    store(gateway.fakes.ledger, lost_attempt)

    document = read_report(gateway)

    assert (document["isComplete"], document["lost"]["interruptions"]) == (False, 0)
    assert "1 interrupted job is no longer stored: losses unknown." in document["notes"]


def test_only_a_node_with_unusually_many_failures_is_marked(gateway: Gateway) -> None:
    store(gateway.fakes.ledger, *(a_fleet_node(number) for number in range(1, 60)))
    store(
        gateway.fakes.ledger,
        *(an_incident(9, **{**_settled_incident(1), "incident_id": f"inc-{n:010d}"}) for n in range(4)),
    )
    # Two failures of one of 59 nodes are not unusual: in one of five fleets some node has as many by chance.
    store(
        gateway.fakes.ledger,
        *(an_incident(8, **{**_settled_incident(2), "incident_id": f"inc-{n:010d}"}) for n in (7, 8)),
    )

    report = read_report(gateway)

    document = {row["node"]: row["isAboveFleet"] for row in report["failures"]["nodes"]}
    assert (report["lemons"]["nodes"], report["lemons"]["failures"]) == (["i-00000000000000001"], 4)
    assert document == {"i-00000000000000001": True, "i-00000000000000002": False}


def _settled_incident(number: int) -> dict[str, Any]:
    return {"life": a_fleet_node(number).life, "state": "RECOVERED"}


@pytest.mark.parametrize("query", ["since=2027-01-01T00:00:00Z", "since=yesterday", "until=2026-01-01", "pageSize=3"])
def test_invalid_window_of_the_cost_report_is_refused(query: str, gateway: Gateway) -> None:
    answer = gateway.get(f"/v1/cost-report?{query}")

    assert answer.status == 400
    assert answer.document["errors"], answer.text


def test_demand_of_partly_recorded_hours_is_unknown(gateway: Gateway) -> None:
    store_fleet(gateway)

    (entry,) = read_report(gateway)["commitments"]

    # The nodes have existed for three days, until 10:15; the demand of the first and the last hour is unknown.
    assert (entry["instanceType"], entry["committedNodes"]) == ("p5.48xlarge", 5)
    assert (entry["hours"], entry["unknownHours"]) == (71, 27 * 24)
    assert sum(level["hours"] for level in entry["demand"]) == 71
    assert entry["peakNodes"] == 2


def test_advice_needs_a_price_of_the_site(gateway: Gateway) -> None:
    store_fleet(gateway)

    (entry,) = read_report(gateway)["commitments"]

    assert (entry["best"], entry["reserved"]) == (None, None)
    assert entry["whyUnknown"] == "The policy states no price for committed nodes (economy.prices)."
