"""`GET /v1/incidents/{id}/receipt` and `GET /v1/jobs/{id}/receipt`."""

from datetime import datetime
from typing import Any

import pytest

from evenkeel.domain.health.incidents import AffectedJob, Incident, IncidentState, StageTimes, StoredRecoveryPlan
from evenkeel.domain.jobs.attempt import Attempt, ResumePoint
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.timeline import TimelineEntry
from evenkeel.ports import Put
from evenkeel.services.tables import incident_rows, job_rows, subject_rows
from tests.unit.api.gateway import Gateway
from tests.unit.api.seeds import a_decision, a_job, ago, an_attempt, an_incident, make_unreadable, store

PLAN_THAT_ACTS = StoredRecoveryPlan(
    run=1,
    outcome="ACT",
    repairs_node=True,
    evidence_wait_seconds=0,
    max_repairs=3,
    decision_id="dec-0000000001",
    reason="Replace.",
)
PART_SECONDS = {
    "REPEATED_WORK": 600,
    "DETECTION": 30,
    "DECISION": 10,
    "DRAIN": 80,
    "WAIT_FOR_NODES": 240,
    "LAUNCH": 20,
    "RESTART": 100,
}


def a_lost_job(number: int = 1, **changes: Any) -> tuple[Job, Attempt, Attempt]:
    """Return a job on two nodes of 8 GPUs. Attempt 1 was lost 58 minutes ago; attempt 2 has run for 52 minutes."""
    job = a_job(number, state="RUNNING", current_attempt=2, submitted_at=ago(hours=3), **changes)
    lost_attempt = an_attempt(
        job,
        1,
        state="LOST",
        admitted_at=ago(hours=2),
        launched_at=ago(hours=2),
        running_at=ago(hours=2),
        ended_at=ago(minutes=58),
        instance_type="ml.p5.48xlarge",
        usd_per_accelerator_hour=8.256,
    )
    resumed_attempt = an_attempt(
        job,
        2,
        nodes=(2, 3),
        admitted_at=ago(minutes=54),
        launched_at=ago(minutes=53, seconds=40),
        running_at=ago(minutes=52),
        instance_type="ml.p5.48xlarge",
        usd_per_accelerator_hour=8.256,
        is_pinned=True,
        resume_from=ResumePoint(attempt=1, step=41_200, manifest="a1/s41200"),
        resumed_work_from=ago(minutes=70),
    )
    return job, lost_attempt, resumed_attempt


def an_incident_of(job: Job, number: int = 1, **changes: Any) -> Incident:
    stages = StageTimes(
        planned_at=ago(minutes=59, seconds=20),
        cordoned_at=ago(minutes=59, seconds=20),
        returned_at=ago(minutes=40),
        settled_at=ago(minutes=39),
    )
    facts: dict[str, Any] = {
        "state": IncidentState.RECOVERED,
        "first_signal_at": ago(minutes=60),
        "opened_at": ago(minutes=59, seconds=30),
        "stages": stages,
        "plan": PLAN_THAT_ACTS,
        "affected_jobs": (AffectedJob(job_id=job.job_id, attempt=1),),
    }
    return an_incident(number, **{**facts, **changes})


def store_resume_plan(
    gateway: Gateway,
    job: Job,
    incident: Incident,
    number: int = 7,
    at: datetime | None = None,
    other: str = "RENT",
) -> None:
    """Store the decision of a recovery about a job, and the job's timeline entry that names it."""
    decision = a_decision(
        number,
        incident.incident_id,
        kind="RESUME",
        action="FREE_NODE",
        facts={"jobId": job.job_id, "attempt": 1},
        chosen={"option": "FREE_NODE", "whyNot": "", "expectedSeconds": 900},
        alternatives=[{"option": other, "whyNot": "costs more", "expectedSeconds": 1200, "usd": 12.5}],
        decided_at=at or ago(minutes=59),
    )
    store(gateway.fakes.ledger, decision)
    entry = TimelineEntry(
        at=decision.decided_at, kind="planned", text="Resumes.", decision_id=decision.decision_id, writer="plan_resume"
    )
    gateway.fakes.ledger.commit(Put(subject_rows.timeline_row(job.job_id, entry, "plan_resume")))


def read_receipt(gateway: Gateway, path: str) -> Any:
    answer = gateway.get(f"/v1/{path}/receipt")
    assert answer.status == 200, answer.text
    return answer.document


def seconds_by_stage(interruption: Any) -> dict[str, float]:
    return {
        stage_row["stage"]: stage_row["seconds"]
        for stage_row in interruption["parts"]
        if stage_row["seconds"] is not None
    }


def test_every_second_of_an_interruption_has_a_stage(gateway: Gateway) -> None:
    job, lost_attempt, resumed_attempt = a_lost_job()
    store(gateway.fakes.ledger, job, lost_attempt, resumed_attempt, an_incident_of(job))

    document = read_receipt(gateway, "incidents/inc-0000000001")

    (interruption,) = document["jobs"]
    assert seconds_by_stage(interruption) == PART_SECONDS
    assert interruption["total"]["seconds"] == sum(PART_SECONDS.values()) == 18 * 60
    assert interruption["total"]["gpuHours"] == pytest.approx(16 * 0.3)
    assert interruption["total"]["usdMicros"] == pytest.approx(16 * 0.3 * 8.256e6, abs=len(PART_SECONDS))
    assert interruption["total"]["usdMicros"] == sum(part["usdMicros"] or 0 for part in interruption["parts"])
    assert interruption["total"]["unknownStages"] == ["RESTORE"]
    assert (interruption["resumedStep"], interruption["resumedByAttempt"]) == (41_200, 2)
    assert interruption["price"]["origin"] == "HyperPod list price of p5.48xlarge in us-east-1 from 2026-09-01"


@pytest.mark.parametrize("is_measured", [False, True])
def test_receipt_notes_an_unmeasured_restore_and_no_measured_one(gateway: Gateway, *, is_measured: bool) -> None:
    job, lost_attempt, resumed_attempt = a_lost_job()
    if is_measured:
        resumed_attempt = resumed_attempt.replace(trained_at=ago(minutes=40))
    store(gateway.fakes.ledger, job, lost_attempt, resumed_attempt, an_incident_of(job))

    document = read_receipt(gateway, "incidents/inc-0000000001")

    says_unknown = any("was not measured" in note for note in document["notes"])
    assert ("RESTORE" in document["jobs"][0]["total"]["unknownStages"], says_unknown) == (not is_measured,) * 2


def test_node_time_that_jobs_lost_is_not_counted_twice(gateway: Gateway) -> None:
    job, lost_attempt, resumed_attempt = a_lost_job()
    store(gateway.fakes.ledger, job, lost_attempt, resumed_attempt, an_incident_of(job))

    document = read_receipt(gateway, "incidents/inc-0000000001")

    # The node was out from 59:20 to 40:00. Until 52:00 its job had lost these seconds already.
    assert document["node"]["seconds"] == 19 * 60 + 20
    assert document["node"]["countedWithJobsSeconds"] == 7 * 60 + 20
    assert document["node"]["gpuHours"] == pytest.approx(8 * 0.2)
    assert document["totalGpuHours"] == pytest.approx(16 * 0.3 + 8 * 0.2)
    assert document["totalUsdMicros"] == document["lost"]["usdMicros"] + document["node"]["usdMicros"]
    assert document["node"]["usdMicros"] == round(8 * 0.2 * 8.256e6)


def test_receipt_marks_estimates_and_states_their_assumptions(gateway: Gateway) -> None:
    job, lost_attempt, resumed_attempt = a_lost_job()
    store(gateway.fakes.ledger, job, lost_attempt, resumed_attempt, an_incident_of(job))

    hyperpod, manual = read_receipt(gateway, "incidents/inc-0000000001")["savings"]

    assert (hyperpod["insteadOf"], manual["insteadOf"]) == ("HYPERPOD_UNCHANGED", "MANUAL")
    assert hyperpod["isEstimate"] is manual["isEstimate"] is True
    assert len(hyperpod["assumptions"]) == 3
    # The smallest size in the published HyperPod recovery times is 16 instances: 83 + 912 + 1212 s. The standstill was
    # 480 s. The policy expects a restore of 1,400 s, of which at most the published 1,212 s count.
    assert hyperpod["highSavedSeconds"] == pytest.approx(2207 - 480 - 1212)
    assert hyperpod["lowSavedSeconds"] < hyperpod["highSavedSeconds"]
    assert manual["lowSavedSeconds"] == 280 * 60 - 480 - 1400


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"plan": PLAN_THAT_ACTS.replace(outcome="OBSERVE")}, "Evenkeel did not act"),
        ({"is_drill": True}, "A drill saves nothing."),
    ],
)
def test_receipt_claims_no_savings_unless_evenkeel_acted(gateway: Gateway, changes: dict[str, Any], why: str) -> None:
    job, lost_attempt, resumed_attempt = a_lost_job()
    store(gateway.fakes.ledger, job, lost_attempt, resumed_attempt, an_incident_of(job, **changes))

    for saving in read_receipt(gateway, "incidents/inc-0000000001")["savings"]:
        assert saving["highSavedSeconds"] is saving["lowSavedUsdMicros"] is None
        assert saving["whyUnknown"].startswith(why)


def test_receipt_shows_the_forecast_and_the_actual_resume_time(gateway: Gateway) -> None:
    job, lost_attempt, resumed_attempt = a_lost_job()
    incident = an_incident_of(job)
    store(gateway.fakes.ledger, job, lost_attempt, resumed_attempt, incident)
    store_resume_plan(gateway, job, incident)

    chosen_option, rejected_option = read_receipt(gateway, "incidents/inc-0000000001")["options"]

    assert (chosen_option["option"], chosen_option["isChosen"], chosen_option["expectedSeconds"]) == (
        "FREE_NODE",
        True,
        900,
    )
    assert chosen_option["actualSeconds"] == 7 * 60 + 600
    assert (rejected_option["option"], rejected_option["isChosen"], rejected_option["actualSeconds"]) == (
        "RENT",
        False,
        None,
    )
    assert (rejected_option["hindsightSeconds"], rejected_option["whyUnknown"]) == (
        None,
        "It was not carried out, so no record shows its time.",
    )


@pytest.mark.parametrize(
    ("returned_at", "seconds", "why"),
    [
        # The decision was 59 minutes ago. The node was back 19 minutes later; 120 s to start the pods, 600 s repeated.
        (ago(minutes=40), 19 * 60 + 120 + 600, ""),
        (None, None, "No record says when the node was back."),
    ],
)
def test_receipt_shows_waiting_for_the_repair_in_hindsight(
    gateway: Gateway, returned_at: datetime | None, seconds: float | None, why: str
) -> None:
    job, lost_attempt, resumed_attempt = a_lost_job()
    incident = an_incident_of(job)
    incident = incident.replace(stages=incident.stages.replace(returned_at=returned_at))
    store(gateway.fakes.ledger, job, lost_attempt, resumed_attempt, incident)
    store_resume_plan(gateway, job, incident, other="WAIT_FOR_REPAIR")

    _, rejected_option = read_receipt(gateway, "incidents/inc-0000000001")["options"]

    assert (rejected_option["hindsightSeconds"], rejected_option["whyUnknown"]) == (seconds, why)


def test_loss_of_two_incidents_is_counted_in_the_first(gateway: Gateway) -> None:
    job, lost_attempt, resumed_attempt = a_lost_job()
    first, second = an_incident_of(job, 1), an_incident_of(job, 2, first_signal_at=ago(minutes=59, seconds=50))
    store(gateway.fakes.ledger, job, lost_attempt, resumed_attempt, first, second)
    store_resume_plan(gateway, job, first)

    document = read_receipt(gateway, "incidents/inc-0000000002")

    assert document["jobs"] == []
    assert [share["incidentIds"] for share in document["shared"]] == [["inc-0000000001", "inc-0000000002"]]
    assert document["lost"]["seconds"] == 0


def test_receipt_notes_unreadable_incident_of_its_job(gateway: Gateway) -> None:
    job, lost_attempt, resumed_attempt = a_lost_job()
    first, second = an_incident_of(job, 1), an_incident_of(job, 2)
    store(gateway.fakes.ledger, job, lost_attempt, resumed_attempt, first, second)
    store_resume_plan(gateway, job, first)
    make_unreadable(gateway.fakes.ledger, incident_rows.incident_key(first.incident_id), "severity")

    notes = [read_receipt(gateway, path)["notes"] for path in (f"jobs/{job.job_id}", f"incidents/{second.incident_id}")]

    text = "1 incident of the job cannot be read, so losses may have another cause."
    assert [text in shown for shown in notes] == [True, True]


def test_receipt_notes_unreadable_attempt(gateway: Gateway) -> None:
    job, lost_attempt, resumed_attempt = a_lost_job()
    store(gateway.fakes.ledger, job, lost_attempt, resumed_attempt, incident := an_incident_of(job))
    make_unreadable(gateway.fakes.ledger, job_rows.attempt_key(job.job_id, 1), "accelerators")

    paths = (f"jobs/{job.job_id}", f"incidents/{incident.incident_id}")
    notes = [read_receipt(gateway, path)["notes"] for path in paths]

    text = "1 attempt or rental cannot be read: the sums are lower bounds."
    assert [text in shown for shown in notes] == [True, True]


def test_lost_work_is_unknown_if_the_resume_point_is(gateway: Gateway) -> None:
    job, lost_attempt, resumed_attempt = a_lost_job()
    store(gateway.fakes.ledger, job, lost_attempt, resumed_attempt.replace(is_pinned=False), an_incident_of(job))

    (interruption,) = read_receipt(gateway, "incidents/inc-0000000001")["jobs"]

    assert seconds_by_stage(interruption) == {stage: s for stage, s in PART_SECONDS.items() if stage != "REPEATED_WORK"}
    assert interruption["total"]["unknownStages"] == ["REPEATED_WORK", "RESTORE"]


def test_receipt_of_an_unpriced_instance_type_has_no_dollars(gateway: Gateway) -> None:
    job, lost_attempt, resumed_attempt = a_lost_job()
    changes: dict[str, Any] = {"instance_type": "ml.p5e.48xlarge", "usd_per_accelerator_hour": None}
    incident = an_incident_of(job, instance_type="ml.p5e.48xlarge")
    store(gateway.fakes.ledger, job, lost_attempt.replace(**changes), resumed_attempt.replace(**changes), incident)

    document = read_receipt(gateway, "incidents/inc-0000000001")

    assert document["totalUsdMicros"] is document["lost"]["usdMicros"] is document["jobs"][0]["price"] is None
    assert document["lost"]["unpricedGpuHours"] == pytest.approx(16 * 0.3)
    assert document["isLowerBound"]


def test_time_buckets_of_a_job_sum_to_its_elapsed_time(gateway: Gateway) -> None:
    job, lost_attempt, resumed_attempt = a_lost_job()
    incident = an_incident_of(job)
    store(gateway.fakes.ledger, job, lost_attempt, resumed_attempt, incident)
    store_resume_plan(gateway, job, incident)

    document = read_receipt(gateway, f"jobs/{job.job_id}")

    assert {bucket["bucket"]: bucket["seconds"] for bucket in document["buckets"]} == {
        "PRODUCTIVE": (50 + 52) * 60 - 1400,
        "CHECKPOINTING": 0,
        "RESTORING": 0,
        "UNKNOWN": 1400,
        "LOST": 18 * 60,
        "INTERRUPTED": 0,
        "STARTING": 0,
        "QUEUED": 3600,
    }
    assert document["elapsedSeconds"] == 3 * 3600
    assert document["interruptions"][0]["incidentIds"] == ["inc-0000000001"]
    unmeasured = {bucket["bucket"] for bucket in document["buckets"] if not bucket["isMeasured"]}
    assert unmeasured == {"CHECKPOINTING", "RESTORING"}


def test_measured_restore_and_saves_have_their_own_buckets(gateway: Gateway) -> None:
    job, lost_attempt, resumed_attempt = a_lost_job()
    saves = {"save_seconds": 60.0, "save_interval_seconds": 600.0}
    attempts = (lost_attempt.replace(**saves), resumed_attempt.replace(trained_at=ago(minutes=42), **saves))
    store(gateway.fakes.ledger, job, *attempts, an_incident_of(job))

    document = read_receipt(gateway, f"jobs/{job.job_id}")

    seconds = {bucket["bucket"]: bucket["seconds"] for bucket in document["buckets"]}
    assert (seconds["RESTORING"], seconds["UNKNOWN"]) == (600, 0)
    assert (seconds["CHECKPOINTING"], seconds["PRODUCTIVE"]) == ((50 + 42) * 6, (50 + 42) * 54)
    assert sum(seconds.values()) == document["elapsedSeconds"]
    assert all(bucket["isMeasured"] for bucket in document["buckets"])


def test_timeline_of_job_and_incident_ends_with_the_receipt(gateway: Gateway) -> None:
    job, lost_attempt, resumed_attempt = a_lost_job()
    store(gateway.fakes.ledger, job, lost_attempt, resumed_attempt, an_incident_of(job))

    of_incident = gateway.get("/v1/incidents/inc-0000000001/timeline").document["entries"][-1]
    of_job = gateway.get(f"/v1/jobs/{job.job_id}/timeline").document["entries"][-1]

    assert of_incident["kind"] == of_job["kind"] == "receipt"
    assert of_incident["text"].startswith(f"Receipt: {job.job_id} lost 18 min, 4.80 GPU-hours, $39.63.")
    assert "wait for nodes 4 min, launch 20 s, restart 1 min 40 s." in of_job["text"]
    assert of_job["text"].endswith("The sum excludes these unrecorded stages: restore.")
