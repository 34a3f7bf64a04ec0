"""Answers of the read routes, from the rows that services write."""

from datetime import timedelta
from typing import Any

import pytest

from evenkeel.domain.admission.admission_request import AdmissionRequest
from evenkeel.domain.admission.decide_job import AdmissionFacts
from evenkeel.domain.decisions import Alternative, Decision
from evenkeel.domain.external.unmanaged_workloads import Consent, PodRecreation, UnmanagedWorkload
from evenkeel.domain.health.incidents import Block, IncidentState, StageTimes, StoredRecoveryPlan
from evenkeel.domain.jobs.attempt import ResumePoint
from evenkeel.domain.jobs.job import PlacementNote, ResizeRequest, ResumeOption, ResumePlan, StopRequest
from evenkeel.domain.policy import Policy
from evenkeel.domain.policy_section import Mode, ModeRule
from evenkeel.domain.recovery.guardrails import GuardrailFacts, Register, RegisterEntry
from evenkeel.domain.renting.rental import RentalState, end_rental
from evenkeel.domain.renting.serving_rentals import ServingState
from evenkeel.domain.sources import SourceKind, SourceReport
from evenkeel.domain.values import rfc3339
from evenkeel.ports import Delete, Put, Row, Table
from evenkeel.services.queries.jobs import read_queue
from evenkeel.services.storage import pagination
from evenkeel.services.storage.guardrail_registers import RegisterName
from evenkeel.services.tables import fleet_rows, job_rows
from tests.fakes import FakeWorld
from tests.fakes.cluster import CLUSTER
from tests.fakes.system import A_MOMENT
from tests.unit.api.gateway import FLEET, Gateway
from tests.unit.api.seeds import (
    PLAN_AWAITING_APPROVAL,
    a_decision,
    a_fleet_node,
    a_job,
    a_life,
    affected,
    ago,
    an_attempt,
    an_incident,
    some_evidence,
    store,
    store_heartbeats,
    store_timeline_entries,
)
from tests.unit.scheduling.test_replicas import CHAT, a_rental


def listed_job_ids(answer: dict[str, object]) -> list[str]:
    items = answer["items"]
    assert isinstance(items, list)
    return [item["jobId"] for item in items]


def test_jobs_are_listed_newest_first_over_all_states(gateway: Gateway) -> None:
    states = ["PENDING", "RUNNING", "SUCCEEDED", "FAILED", "RUNNING"]
    store(gateway.fakes.ledger, *(a_job(n, state=state) for n, state in enumerate(states, 1)))

    answer = gateway.get("/v1/jobs").document

    assert listed_job_ids(answer) == [f"job-{n:010d}" for n in (5, 4, 3, 2, 1)]
    assert answer["nextPageToken"] is None


def test_state_filter_returns_only_those_states(gateway: Gateway) -> None:
    states = ["PENDING", "RUNNING", "SUCCEEDED"]
    store(gateway.fakes.ledger, *(a_job(n, state=state) for n, state in enumerate(states, 1)))

    assert listed_job_ids(gateway.get("/v1/jobs?state=RUNNING,PENDING").document) == [
        "job-0000000002",
        "job-0000000001",
    ]


@pytest.mark.parametrize("states", ["PENDING,PENDING", "PENDING,RUNNING,PENDING"])
def test_repeated_state_filter_returns_no_job_twice(gateway: Gateway, states: str) -> None:
    store(gateway.fakes.ledger, *(a_job(n) for n in (1, 2, 3)))

    assert sorted(listed_job_ids(gateway.get(f"/v1/jobs?state={states}").document)) == [
        f"job-{n:010d}" for n in (1, 2, 3)
    ]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 200])
def test_each_job_is_on_exactly_one_page(gateway: Gateway, size: int) -> None:
    states = ["PENDING", "RUNNING", "SUCCEEDED", "FAILED"]
    store(gateway.fakes.ledger, *(a_job(n, state=states[n % 4]) for n in range(1, 21)))

    ids: list[str] = []
    token = ""
    while True:
        page = gateway.get(f"/v1/jobs?pageSize={size}" + (f"&nextPageToken={token}" if token else "")).document
        ids += listed_job_ids(page)
        token = page["nextPageToken"]
        if not token:
            break

    assert ids == [f"job-{n:010d}" for n in range(20, 0, -1)]


def test_state_change_between_pages_loses_and_repeats_no_job(gateway: Gateway) -> None:
    ledger = gateway.fakes.ledger
    store(ledger, *(a_job(n, state="PENDING") for n in range(1, 7)))
    first = gateway.get("/v1/jobs?pageSize=3").document
    for number in (2, 5):
        row = ledger.get(job_rows.job_key(f"job-{number:010d}"))
        assert row
        ledger.commit(Delete(row.key, row.version))
        store(ledger, a_job(number, state="RUNNING").replace(submitted_at=row.doc["submittedAt"]))
    store(ledger, a_job(9))

    second = gateway.get(f"/v1/jobs?pageSize=3&nextPageToken={first['nextPageToken']}").document

    assert listed_job_ids(second) == ["job-0000000003", "job-0000000002", "job-0000000001"]


def test_page_token_of_another_list_is_refused(gateway: Gateway) -> None:
    store(gateway.fakes.ledger, *(a_job(n) for n in range(1, 4)))
    token = gateway.get("/v1/jobs?pageSize=1").document["nextPageToken"]

    assert gateway.get(f"/v1/jobs?state=PENDING&nextPageToken={token}").document["code"] == "BAD_PAGE_TOKEN"


def test_job_is_shown_with_its_attempts_newest_first(gateway: Gateway) -> None:
    job = a_job(1, state="RUNNING", current_attempt=2)
    point = ResumePoint(attempt=1, step=12, manifest="attempt=1/step=000000012/manifest.json")
    lost_attempt = an_attempt(job, 1, state="LOST", reason="Its node failed.")
    resumed_attempt = an_attempt(job, 2, nodes=(3, 2), is_pinned=True, resume_from=point)
    store(gateway.fakes.ledger, job, lost_attempt, resumed_attempt)

    attempts = gateway.get(f"/v1/jobs/{job.job_id}").document["attempts"]

    assert [(a["attempt"], a["state"]) for a in attempts] == [(2, "RUNNING"), (1, "LOST")]
    assert attempts[0]["resumeFrom"]["step"] == 12
    assert [node["instanceId"] for node in attempts[0]["nodes"]] == [a_life(3).instance_id, a_life(2).instance_id]


def test_attempt_shows_what_its_pods_request(gateway: Gateway) -> None:
    job = a_job(1, state="RUNNING", current_attempt=2)
    store(gateway.fakes.ledger, job, an_attempt(job, 1), an_attempt(job, 2, cpu_millis=96_500, memory_mib=524_288))

    attempts = gateway.get(f"/v1/jobs/{job.job_id}").document["attempts"]

    assert [(run["gpus"], run["cpu"], run["memoryGib"]) for run in attempts] == [(16, 96.5, 512), (16, None, None)]


def test_cpu_and_memory_that_a_node_omits_are_unknown(gateway: Gateway) -> None:
    stated_amounts = {"cpu_millis": 191_450, "memory_mib": 2_000_000}
    store(
        gateway.fakes.ledger,
        a_fleet_node(1, **stated_amounts, cpu_millis_in_use=95_500, memory_mib_in_use=102_400),
        a_fleet_node(2, **stated_amounts),
        a_fleet_node(3, **stated_amounts, is_cordoned=True),
        a_fleet_node(4),
    )

    items = sorted(gateway.get("/v1/nodes").document["items"], key=lambda node: node["instanceId"])
    status = gateway.get("/v1/status").document

    amounts = [(node["cpuInUse"], node["cpu"], node["memoryGibInUse"], node["memoryGib"]) for node in items]
    assert amounts[0] == (95.5, 191.45, 100, 1953.1)
    assert amounts[1] == (0, 191.45, 0, 1953.1)
    assert amounts[3] == (None, None, None, None)
    # The cordoned node counts in the total, but nothing on it is free.
    assert status["cpu"] == {"total": 574.35, "inUse": 95.5, "free": 287.4, "unknownNodes": 1}
    assert status["memoryGib"]["total"] == 5859.4


def test_cpu_total_is_unknown_if_every_node_omits_it(gateway: Gateway) -> None:
    store(gateway.fakes.ledger, a_fleet_node(1))

    document = gateway.get("/v1/status").document["cpu"]

    assert document == {"total": None, "inUse": None, "free": None, "unknownNodes": 1}


def test_read_is_answered_304_while_nothing_changed(gateway: Gateway) -> None:
    store(gateway.fakes.ledger, a_job(1))
    first = gateway.get("/v1/jobs/job-0000000001")
    second_answer = gateway.get("/v1/jobs/job-0000000001", headers={"If-None-Match": first.headers["ETag"]})
    status = gateway.get("/v1/status")
    gateway.fakes.clock.advance(0.5)
    status_again = gateway.get("/v1/status", headers={"If-None-Match": status.headers["ETag"]})

    assert (second_answer.status, second_answer.text) == (304, "")
    assert status_again.status == 304


def test_logs_of_the_latest_attempt_come_from_the_cluster(gateway: Gateway) -> None:
    job = a_job(1)
    store(gateway.fakes.ledger, job)
    before_launch = gateway.get(f"/v1/jobs/{job.job_id}/logs")

    assert (before_launch.status, before_launch.document["detail"]) == (
        404,
        f"{job.job_id} has not started yet, so it has no log.",
    )


def test_logs_of_an_unknown_rank_are_refused(gateway: Gateway) -> None:
    job = a_job(1, state="RUNNING", current_attempt=1)
    store(gateway.fakes.ledger, job, an_attempt(job))

    answer = gateway.get(f"/v1/jobs/{job.job_id}/logs?rank=2")

    assert (answer.status, answer.document["code"]) == (400, "REFUSED")
    assert "the highest rank is 1" in answer.document["detail"]


def test_incident_shows_node_branch_job_branch_evidence_and_times(gateway: Gateway) -> None:
    job = a_job(1, state="RUNNING", current_attempt=2)
    stages = StageTimes(
        detected_at=ago(minutes=12),
        planned_at=ago(minutes=11, seconds=58),
        cordoned_at=ago(minutes=11, seconds=57),
        repair_requested_at=ago(minutes=11, seconds=50),
    )
    incident = an_incident(1, affected_jobs=affected(job), repairs=("replace",), stages=stages)
    store(gateway.fakes.ledger, job, incident, some_evidence(incident), a_decision(1, incident.incident_id))

    document = gateway.get(f"/v1/incidents/{incident.incident_id}").document

    assert (document["nodeLane"]["phase"], document["nodeLane"]["status"]) == ("replacing", "working")
    assert [(lane["phase"], lane["status"]) for lane in document["jobLanes"]] == [("running again", "ok")]
    assert [(step["stage"], step["seconds"]) for step in document["took"]] == [
        ("detected", 0.0),
        ("planned", 2.0),
        ("cordoned", 1.0),
        ("repair requested", 7.0),
    ]
    assert document["evidence"][0]["faultKey"] == "xid:79"
    assert [decision["decisionId"] for decision in document["decisions"]] == ["dec-0000000001"]


def test_node_is_in_service_while_its_incident_blames_the_application(gateway: Gateway) -> None:
    plan = {
        "run": 1,
        "outcome": "ACT",
        "repairsNode": False,
        "settleSeconds": 0,
        "maxRepairs": 3,
        "jobs": "RESTART",
        "decisionId": "dec-0000000001",
        "reason": "The application's own fault, its jobs are restarted.",
    }
    incident = an_incident(1, fault_key="xid:31", plan=plan, stages=StageTimes(planned_at=ago(minutes=1)))
    store(gateway.fakes.ledger, incident)

    document = gateway.get(f"/v1/incidents/{incident.incident_id}").document
    why = gateway.get(f"/v1/incidents/{incident.incident_id}/why").document

    assert (document["nodeLane"]["phase"], document["nodeLane"]["status"]) == ("left in service", "ok")
    assert "stays in service" in why["sentence"]


def test_timeline_is_in_time_order(gateway: Gateway) -> None:
    incident = an_incident(1)
    store(gateway.fakes.ledger, incident)
    store_timeline_entries(
        gateway.fakes.ledger,
        incident.incident_id,
        (ago(minutes=11), "decided", "Replace it."),
        (ago(minutes=12), "fault", "Xid 79."),
    )

    entries = gateway.get(f"/v1/incidents/{incident.incident_id}/timeline").document["entries"]

    assert [entry["kind"] for entry in entries] == ["fault", "decided"]


def guardrail_readings_of_incident(gateway: Gateway, number: int = 1) -> dict[str, Any]:
    why = gateway.get(f"/v1/incidents/inc-{number:010d}/why").document
    return {reading["guardrail"]: reading for reading in why["guardrails"]}


def test_why_of_an_open_incident_shows_every_guardrail_that_passes(gateway: Gateway) -> None:
    incident = an_incident(1)
    other_entry = RegisterEntry(life_key="another", incident_id="inc-9", pool="others", since=A_MOMENT)
    repairs = fleet_rows.register_key(RegisterName.REPAIRS, is_drill=False)
    gateway.fakes.ledger.commit(Put(Row(repairs, Register(entries=(other_entry,)).to_json())))
    store(gateway.fakes.ledger, incident)

    readings = guardrail_readings_of_incident(gateway)

    fleet = readings["FLEET_REPAIRS"]
    assert (fleet["reading"], fleet["limit"], fleet["isBlocking"]) == (1, 10, False)
    assert fleet["readAt"] == rfc3339(A_MOMENT)
    assert "FLEET_CORDONS" in readings, "the node is not cordoned yet"
    shared = readings["SHARED_CAUSE"]
    assert (shared["reading"], shared["readAt"]) == (None, None), "unknown is not 0"


def test_why_of_a_settled_incident_shows_its_recorded_readings(gateway: Gateway) -> None:
    incident = an_incident(1, state="RECOVERED")
    facts = GuardrailFacts(life_key=incident.life.key, pool=incident.pool, pool_nodes=20, now=ago(minutes=9))
    record = a_decision(1, incident.incident_id, kind="REPAIR", facts={"guard": facts.to_json()})
    store(gateway.fakes.ledger, incident, record)
    before = guardrail_readings_of_incident(gateway)["POOL_REPAIRS"]
    store(
        gateway.fakes.ledger,
        a_decision(
            2,
            incident.incident_id,
            kind="REPAIR",
            facts={"guard": facts.to_json()},
            policy_hash=Policy().hash,
            decided_at=ago(minutes=8),
        ),
    )

    after = guardrail_readings_of_incident(gateway)["POOL_REPAIRS"]

    shown_before = (before["reading"], before["limit"], before["isBlocking"])
    assert shown_before == (0, None, None), "the policy has changed since"
    assert (after["reading"], after["limit"], after["readAt"]) == (0, 2, rfc3339(ago(minutes=9)))


@pytest.mark.parametrize(("minutes", "is_blocking"), [(1, False), (500, None)])
def test_blocking_by_old_evidence_is_unknown_while_node_health_is(
    gateway: Gateway, minutes: int, is_blocking: bool | None
) -> None:
    signal_at = ago(minutes=minutes)
    store(gateway.fakes.ledger, an_incident(1, first_signal_at=signal_at, last_fault_at=signal_at))

    stale = guardrail_readings_of_incident(gateway)["STALE_EVIDENCE"]

    assert (stale["reading"], stale["isBlocking"]) == (minutes, is_blocking), "whether it looks healthy is unknown"


def test_why_of_an_incident_survives_unreadable_guardrail_facts(gateway: Gateway) -> None:
    incident = an_incident(1)
    record = a_decision(1, incident.incident_id, kind="REPAIR", facts={"guard": {"life": incident.life.key}})
    store(gateway.fakes.ledger, incident, record)

    assert guardrail_readings_of_incident(gateway)["SHARED_CAUSE"]["reading"] is None


def test_why_of_a_recovering_job_shows_the_resume_decision(gateway: Gateway) -> None:
    plan = ResumePlan(
        incident_id="inc-0000000001",
        after_attempt=1,
        option=ResumeOption.FREE_NODE,
        decision_id="dec-0000000007",
        planned_at=ago(minutes=2),
    )
    job = a_job(1, state="PENDING", current_attempt=1, resume_plan=plan, reason="Waits for a free node")
    resume_decision = a_decision(
        7,
        "inc-0000000001",
        kind="RESUME",
        action="FREE_NODE",
        reason="A free node is ready now.",
        alternatives=(Alternative(option="WAIT_FOR_REPAIR", why_not="The repair takes longer.", expected_seconds=960),),
    )
    store(gateway.fakes.ledger, job, resume_decision, a_decision(1, job.job_id, kind="ADMISSION"))

    why = gateway.get(f"/v1/jobs/{job.job_id}/why").document

    assert why["sentence"] == "The job waits to resume after attempt 1. Waits for a free node."
    assert why["decision"]["decisionId"] == "dec-0000000007"
    assert [(item["option"], item["chosen"]) for item in why["considered"]] == [
        ("FREE_NODE", True),
        ("WAIT_FOR_REPAIR", False),
    ]
    assert why["evidence"]["incident"] == "inc-0000000001"


@pytest.mark.parametrize("state", ["PENDING", "STARTING", "RUNNING", "STOPPING", "SUCCEEDED", "FAILED", "CANCELLED"])
def test_every_job_state_has_a_sentence(gateway: Gateway, state: str) -> None:
    store(gateway.fakes.ledger, a_job(1, state=state, reason="Because."))

    why = gateway.get("/v1/jobs/job-0000000001/why").document

    assert why["sentence"].endswith("Because.")


def a_stop_request(by: str, reason: str, **more: Any) -> StopRequest:
    return StopRequest(attempt=2, reason=reason, by=by, grace_seconds=30, requested_at=ago(seconds=40), **more)


@pytest.mark.parametrize(
    ("job", "expected", "following"),
    [
        (
            {
                "is_suspended": True,
                "stop_request": a_stop_request("suspend/role/Lead (bo)", "Suspended by role/Lead (bo)."),
            },
            (
                "Suspended by role/Lead (bo). Requested 40s ago by role/Lead (bo). "
                "After the stop it stays suspended until a person resumes it."
            ),
            "resume",
        ),
        (
            {
                "is_preempted": True,
                "stop_request": a_stop_request("schedule_jobs/job-7", "job-7 of a higher priority needs its nodes"),
            },
            (
                "job-7 of a higher priority needs its nodes. Requested 40s ago by Evenkeel (schedule jobs). "
                "After the stop it waits for capacity and resumes from its last checkpoint."
            ),
            "wait",
        ),
        (
            {"stop_request": a_stop_request("recover_node/inc-1", "Its node is sick.", outcome="LOST")},
            (
                "Its node is sick. Requested 40s ago by the recovery of inc-1. "
                "After the stop it waits for capacity and resumes from its last checkpoint."
            ),
            "wait",
        ),
        (
            {"stop_request": a_stop_request("run_job", "Its pods hang.", counts_as_failure=True)},
            "if one is left, it waits for capacity and resumes from its last checkpoint.",
            "wait",
        ),
        (
            {"stop_request": a_stop_request("run_job", "It cannot start.", is_final=True)},
            "After the stop it is FAILED, because another attempt would fail too.",
            "wait",
        ),
        (
            {
                "stop_request": a_stop_request("resize_jobs/job-1", "It grows."),
                "resize": ResizeRequest(after_attempt=2, from_nodes=2, nodes=4, reason="It grows.", asked_at=ago()),
            },
            "After the stop it starts on 4 nodes and resumes from its last checkpoint.",
            "wait",
        ),
    ],
)
def test_why_of_a_stopping_job_names_the_next_state(
    gateway: Gateway, job: dict[str, Any], expected: str, following: str
) -> None:
    store(gateway.fakes.ledger, a_job(1, state="RUNNING", current_attempt=2, reason="Runs on 2 nodes.", **job))

    why = gateway.get("/v1/jobs/job-0000000001/why").document

    assert why["sentence"].startswith("The job is stopping, attempt 2. ")
    assert why["sentence"].endswith(expected)
    assert why["next"] == f"evenkeel jobs {following} job-0000000001"


def test_stop_request_of_an_earlier_attempt_is_not_shown(gateway: Gateway) -> None:
    job = a_job(
        1, state="RUNNING", current_attempt=3, stop_request=a_stop_request("recover_node/inc-1", "Its node is sick.")
    )
    store(gateway.fakes.ledger, job)

    assert gateway.get("/v1/jobs/job-0000000001/why").document["sentence"] == "The job runs, attempt 3."


def why_after_a_lost_attempt(gateway: Gateway, *decisions: Decision, **changes: Any) -> dict[str, Any]:
    """Return why a job is pending: its first attempt was admitted 20 minutes ago, and was lost."""
    job = a_job(1, state="PENDING", reason="Its node failed. The job waits to run again.", current_attempt=1, **changes)
    lost_attempt = an_attempt(job, state="LOST", ended_at=ago(minutes=5), decision_id="dec-0000000002")
    admit = a_decision(2, job.job_id, kind="ADMISSION", action="ADMIT", reason="It fits.", decided_at=ago(minutes=20))
    store(gateway.fakes.ledger, job, lost_attempt, admit, *decisions)
    return gateway.get(f"/v1/jobs/{job.job_id}/why").document


def an_admission_record(number: int, action: str, **before: float) -> Decision:
    job_id, at = "job-0000000001", ago(**before)
    request = AdmissionRequest(
        job_id=job_id, submitted_at=ago(hours=1), cluster=CLUSTER, nodes=2, accelerators_per_node=8
    )
    facts = AdmissionFacts(request=request, fits=(), now=at).to_json()
    reason = f"Because {number}."
    return a_decision(number, job_id, kind="ADMISSION", action=action, reason=reason, decided_at=at, facts=facts)


def test_why_of_a_pending_job_starts_with_its_current_reason(gateway: Gateway) -> None:
    document = why_after_a_lost_attempt(
        gateway,
        an_admission_record(1, "NO_ROOM", minutes=25),
        an_admission_record(3, "NO_QUOTA", minutes=4),
        an_admission_record(4, "NO_ROOM", minutes=2),
    )

    assert document["state"] == "PENDING"
    assert document["decision"]["decisionId"] == "dec-0000000004"
    assert [decision["decisionId"] for decision in document["earlier"]] == [
        "dec-0000000003",
        "dec-0000000002",
        "dec-0000000001",
    ]


def test_why_of_a_pending_job_omits_decisions_of_earlier_attempts(gateway: Gateway) -> None:
    document = why_after_a_lost_attempt(gateway, an_admission_record(1, "NO_ROOM", minutes=25))

    assert (document["decision"], document["considered"], document["changes"]) == (None, [], [])
    assert document["changesUnknown"] == "No scheduling cycle has decided about the job yet."
    assert [decision["action"] for decision in document["earlier"]] == ["ADMIT", "NO_ROOM"]
    assert "waits to resume" in document["sentence"]


def test_why_of_a_pending_job_starts_with_its_resume_plan(gateway: Gateway) -> None:
    plan = ResumePlan(
        incident_id="inc-0000000001",
        after_attempt=1,
        option=ResumeOption.SPARE,
        decision_id="dec-0000000005",
        planned_at=ago(minutes=6),
    )
    resume = a_decision(5, "inc-0000000001", kind="RESUME", action="SPARE", decided_at=ago(minutes=6))

    with_resume_plan = why_after_a_lost_attempt(gateway, resume, resume_plan=plan)
    store(gateway.fakes.ledger, an_admission_record(6, "NO_ROOM", minutes=3))
    decided = gateway.get("/v1/jobs/job-0000000001/why").document

    assert with_resume_plan["decision"]["decisionId"] == "dec-0000000005"
    assert decided["decision"]["decisionId"] == "dec-0000000006"


@pytest.mark.parametrize("state", list(IncidentState))
def test_every_incident_state_has_a_sentence(gateway: Gateway, state: IncidentState) -> None:
    incident = an_incident(1, state=state, outcome="That was it")
    detail = a_decision(2, incident.incident_id, kind="DRAIN", reason="Its pods get 30 s to save, as the job requests.")
    store(gateway.fakes.ledger, incident, a_decision(1, incident.incident_id), detail)

    why = gateway.get(f"/v1/incidents/{incident.incident_id}/why").document

    assert why["sentence"].startswith(f"{incident.node_name} showed ")
    assert why["decision"]["reason"] == "Xid 79 calls for a replacement."
    assert [decision["reason"] for decision in why["earlier"]] == [detail.reason]


def test_decision_is_returned_with_all_its_fields(gateway: Gateway) -> None:
    decision = a_decision(1, "inc-0000000001", facts={"rungs": ["replace"]})
    store(gateway.fakes.ledger, decision)

    assert gateway.get("/v1/decisions/dec-0000000001").document == decision.to_json() | {"isRedacted": False}


# ---------------------------------------------------------------- nodes and status


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "IN_SERVICE"),
        ({"is_ready": False, "not_ready_since": ago(minutes=1)}, "NOT_READY"),
        ({"is_ready": False, "node_name": ""}, "STARTING"),
        ({"is_awaiting_validation": True}, "STARTING"),
        ({"is_cordoned": True}, "CORDONED"),
        ({"is_cordoned": True, "incident_id": "inc-0000000009"}, "QUARANTINED"),
        ({"is_gone": True}, "GONE"),
    ],
)
def test_node_health_follows_its_observations(gateway: Gateway, changes: dict[str, object], state: str) -> None:
    store(gateway.fakes.ledger, a_fleet_node(1, **changes))

    document = gateway.get(f"/v1/nodes/{a_life(1).instance_id}").document
    listed_nodes = gateway.get("/v1/nodes?gone=true").document["items"]

    assert document["state"] == state
    assert [node["state"] for node in listed_nodes] == [state]


def test_node_with_open_incident_is_in_repair(gateway: Gateway) -> None:
    store(gateway.fakes.ledger, a_fleet_node(1, is_cordoned=True), an_incident(1))

    items = gateway.get("/v1/nodes").document["items"]

    assert [(node["state"], node["incidentId"]) for node in items] == [("REPAIRING", "inc-0000000001")]


def test_status_of_a_fleet_without_problems_is_ok(gateway: Gateway) -> None:
    ledger = gateway.fakes.ledger
    store_heartbeats(ledger)
    store(
        ledger,
        a_fleet_node(1, accelerators_in_use=8),
        a_fleet_node(2),
        a_job(1, state="RUNNING", started_at=ago(hours=2)),
    )

    status = gateway.get("/v1/status").document

    assert (status["health"], status["reasons"]) == ("OK", [])
    assert status["nodes"] == {
        "total": 2,
        "pools": [
            {
                "cluster": "research-eks",
                "pool": "p5-workers",
                "kind": "committed",
                "total": 2,
                "states": {"IN_SERVICE": 2},
                "isStale": False,
                "lastSeenAt": None,
            }
        ],
        "isLowerBound": False,
    }
    assert status["gpus"] == {
        "total": 16,
        "inService": 16,
        "inUse": 8,
        "free": 8,
        "isStale": False,
        "lastSeenAt": None,
    }
    assert status["jobs"]["classes"] == [
        {
            "priorityClass": None,
            "running": 1,
            "pending": 0,
            "preempted": 0,
            "suspended": 0,
            "averageRunSeconds": 7200,
            "longestRunSeconds": 7200,
            "averageWaitSeconds": None,
            "longestWaitSeconds": None,
        }
    ]


def test_status_shows_nodes_rented_for_serving_deployments(gateway: Gateway) -> None:
    ledger = gateway.fakes.ledger
    rental = a_rental(1)
    note = PlacementNote(key="RENT", text="1 node of chat-burst is rented for the job.", decision_id=rental.decision_id)
    memory = ServingState.of(CHAT).replace(rentals=1, last_note=note)
    before = gateway.get("/v1/status").document["serving"]
    ended_rental = end_rental(a_rental(2).replace(state=RentalState.ENDING), A_MOMENT).rental
    memory = memory.replace(rentals=2)
    ledger.commit(
        Put(job_rows.serving_row(memory, 0)),
        Put(job_rows.rental_row(rental, 0)),
        Put(job_rows.rental_row(ended_rental, 0)),
    )

    (document,) = gateway.get("/v1/status").document["serving"]

    assert before == []
    assert (document["id"], document["namespace"], document["name"]) == (rental.job_id, "serving", "chat")
    assert (document["reason"], document["decisionId"]) == (note.text, rental.decision_id)
    assert [(rental["rental"], rental["state"], rental["nodeNames"]) for rental in document["rentals"]] == [
        (2, "ENDED", ["ip-2"]),
        (1, "READY", ["ip-1"]),
    ]


def test_running_recovery_degrades_the_fleet(gateway: Gateway) -> None:
    store_heartbeats(gateway.fakes.ledger)
    store(gateway.fakes.ledger, a_fleet_node(1, is_cordoned=True), an_incident(1))

    status = gateway.get("/v1/status").document

    assert (status["health"], status["reasons"]) == ("DEGRADED", ["1 incident working"])
    assert (status["incidents"]["working"], status["incidents"]["needYou"]) == (1, 0)


def test_missing_heartbeat_of_a_scheduled_function_is_critical(gateway: Gateway) -> None:
    store_heartbeats(gateway.fakes.ledger, A_MOMENT - timedelta(minutes=11))

    status = gateway.get("/v1/status").document

    assert status["health"] == "CRITICAL"
    assert "no heartbeat from schedule_jobs, sweep_fleet, watch_cluster" in status["reasons"][0]


def test_incident_waits_for_a_person_until_its_node_is_back(gateway: Gateway) -> None:
    ledger = gateway.fakes.ledger
    store_heartbeats(ledger)
    incident = an_incident(1, state="WAITING_FOR_PERSON", outcome="Every rung was used.")
    store(ledger, incident, a_fleet_node(1, is_cordoned=True, incident_id=incident.incident_id))
    before = gateway.get("/v1/status").document
    ledger.rows.pop(next(key for key in ledger.rows if key.pk.startswith("NODE#")))
    store(ledger, a_fleet_node(1))
    after = gateway.get("/v1/status").document

    assert (before["health"], before["incidents"]["needYou"]) == ("CRITICAL", 1)
    assert (after["health"], after["incidents"]["needYou"]) == ("OK", 0)


def test_replacement_in_service_ends_the_wait_for_a_person(gateway: Gateway) -> None:
    ledger = gateway.fakes.ledger
    store_heartbeats(ledger)
    incident = an_incident(1, state="WAITING_FOR_PERSON")
    store(ledger, incident, a_fleet_node(1, is_gone=True))
    status_before = gateway.get("/v1/status").document
    store(ledger, a_fleet_node(9, slot=incident.slot, is_awaiting_validation=True))
    status_during = gateway.get("/v1/status").document
    ledger.rows.pop(next(key for key in ledger.rows if key.pk.endswith(a_life(9).instance_id)))
    store(ledger, a_fleet_node(9, slot=incident.slot))
    status_after = gateway.get("/v1/status").document

    assert [document["incidents"]["needYou"] for document in (status_before, status_during, status_after)] == [1, 1, 0]


def test_incident_with_an_unresumed_job_needs_a_person(gateway: Gateway) -> None:
    ledger = gateway.fakes.ledger
    store_heartbeats(ledger)
    job = a_job(1, state="PENDING", current_attempt=1)
    store(ledger, job, a_fleet_node(1), an_incident(1, state="WAITING_FOR_PERSON", affected_jobs=affected(job)))

    assert gateway.get("/v1/status").document["incidents"]["needYou"] == 1


def test_pending_approval_needs_a_person_and_names_the_command(gateway: Gateway) -> None:
    store_heartbeats(gateway.fakes.ledger)
    running_incident = an_incident(2)
    store(
        gateway.fakes.ledger,
        an_incident(1, plan=PLAN_AWAITING_APPROVAL),
        running_incident,
        a_fleet_node(1),
        a_fleet_node(2),
    )

    status = gateway.get("/v1/status").document

    assert status["reasons"] == ["1 incident needs a person", "1 incident working"]
    assert (status["incidents"]["working"], status["incidents"]["needYou"]) == (1, 1)
    assert status["next"] == "evenkeel incidents approve inc-0000000001"
    assert [item["needsYou"] for item in status["incidents"]["items"]] == [True, False]
    assert status["nodes"]["pools"][0]["states"] == {"REPAIRING": 1, "WAITING": 1}


def test_old_incident_that_needs_a_person_is_always_shown(gateway: Gateway) -> None:
    ledger = gateway.fakes.ledger
    store_heartbeats(ledger)
    oldest_incident = an_incident(1, state="FAILED", opened_at=ago(days=9))
    older_incident = an_incident(2, state="FAILED", opened_at=ago(days=8))
    job = a_job(
        1,
        resume_plan=ResumePlan(
            incident_id=older_incident.incident_id,
            after_attempt=1,
            option=ResumeOption.WAIT_FOR_REPAIR,
            planned_at=ago(days=8),
        ),
    )
    store(ledger, oldest_incident, older_incident.replace(affected_jobs=affected(job)), job.replace(current_attempt=1))
    store(ledger, a_fleet_node(1, is_cordoned=True, incident_id=oldest_incident.incident_id), a_fleet_node(2))
    newer = (an_incident(n, state="FAILED", opened_at=ago(days=2), slot="settled") for n in range(10, 160))
    store(ledger, *newer, a_fleet_node(3, slot="settled"))

    incidents = gateway.get("/v1/status").document["incidents"]

    assert {item["incidentId"] for item in incidents["items"]} == {
        oldest_incident.incident_id,
        older_incident.incident_id,
    }
    assert (incidents["needYou"], incidents["isLowerBound"]) == (2, False)


def test_open_incidents_beyond_the_list_are_counted(gateway: Gateway) -> None:
    ledger = gateway.fakes.ledger
    store_heartbeats(ledger)
    store(ledger, *(an_incident(n) for n in range(1, 71)), *(a_fleet_node(n) for n in range(1, 71)))

    status = gateway.get("/v1/status").document
    nodes = gateway.get("/v1/nodes?pageSize=200").document["items"]

    assert (status["incidents"]["working"], status["incidents"]["isLowerBound"]) == (70, False)
    assert status["nodes"]["pools"][0]["states"] == {"REPAIRING": 70}
    assert len(status["incidents"]["items"]) == 50
    assert {node["state"] for node in nodes} == {"REPAIRING"}


def test_count_that_stopped_early_is_shown_as_lower_bound(gateway: Gateway) -> None:
    ledger = gateway.fakes.ledger
    store_heartbeats(ledger)
    store(ledger, *(an_incident(n) for n in range(1, 1002)))
    store(ledger, *(an_incident(n, state="FAILED", opened_at=ago(hours=3)) for n in range(2001, 2102)))

    status = gateway.get("/v1/status").document

    assert status["incidents"]["isLowerBound"] is True
    assert status["reasons"][:2] == ["100+ incidents need a person", "1000+ incidents working"]


def test_removed_nodes_are_listed_last(gateway: Gateway) -> None:
    ledger = gateway.fakes.ledger
    store(ledger, *(a_fleet_node(n, is_gone=True, pool="z") for n in range(1, 31)), a_fleet_node(99))

    document = gateway.get("/v1/nodes?pageSize=5").document
    document_with_removed = gateway.get("/v1/nodes?pageSize=200&gone=true").document
    present_rows, has_more = pagination.read_partition(
        ledger, Table.FLEET, "NODE", at_most=8, keep=read_queue.is_present
    )

    assert [node["instanceId"] for node in document["items"]] == [a_life(99).instance_id]
    assert document["nextPageToken"] is None
    assert len(document_with_removed["items"]) == 31
    assert ([row.doc["life"]["instanceId"] for row in present_rows], has_more) == ([a_life(99).instance_id], False)


def test_status_shows_a_hold_of_the_fleet(gateway: Gateway) -> None:
    store_heartbeats(gateway.fakes.ledger)
    gateway.post("/v1/clusters/laptop/automation/hold", {"reason": "network work", "forSeconds": 60})

    status = gateway.get("/v1/status").document

    assert (status["health"], status["reasons"]) == ("DEGRADED", ["automation is held"])


def test_policy_in_force_is_shown_with_its_hash(gateway: Gateway) -> None:
    document = gateway.get("/v1/clusters/laptop/policy").document

    assert (document["hash"], document["policy"]["name"]) == (gateway.fakes.policy.hash, "production")


def test_status_of_a_large_fleet_stays_small(gateway: Gateway) -> None:
    ledger = gateway.fakes.ledger
    store_heartbeats(ledger)
    store(ledger, *(a_fleet_node(n, slot=f"research-eks/n{n}") for n in range(1, 1001)))
    states = ("PENDING", "RUNNING", "SUCCEEDED", "FAILED")
    store(ledger, *(a_job(n, state=states[n % 4]) for n in range(1, 10_001)))

    answer = gateway.get("/v1/status")

    assert answer.document["jobs"]["counts"] == {
        "PENDING": 2000,
        "STARTING": 0,
        "RUNNING": 2000,
        "STOPPING": 0,
        "SUSPENDED": 0,
    }
    assert answer.document["jobs"]["isLowerBound"] is True
    assert answer.document["nodes"]["total"] == 1000
    assert len(answer.text) < 200_000


def test_unmanaged_workloads_are_listed_with_their_treatment(gateway: Gateway) -> None:
    workload = UnmanagedWorkload(
        cluster=CLUSTER,
        namespace="research",
        kind="HyperPodPyTorchJob",
        name="llama",
        pods=2,
        accelerators=16,
        node_names=("a", "b"),
        recreation=PodRecreation.BY_HYPERPOD,
        consent=Consent.FORBIDDEN,
    )
    gateway.fakes.ledger.commit(
        Put(Row(fleet_rows.unmanaged_workloads_key(CLUSTER), {"workloads": [workload.to_json()]}))
    )

    (item,) = gateway.get("/v1/jobs?unmanaged=true").document["items"]

    assert (item["kind"], item["name"], item["accelerators"]) == ("HyperPodPyTorchJob", "llama", 16)
    assert item["says"] == "HyperPod restarts it, so Evenkeel does not move it."
    assert gateway.get("/v1/jobs?unmanaged=perhaps").status == 400


def test_status_distinguishes_preempted_held_and_unmanaged_jobs(gateway: Gateway) -> None:
    ledger = gateway.fakes.ledger
    store(
        ledger,
        a_job(1, state="PENDING", is_preempted=True),
        a_job(2, state="RUNNING", is_preempted=True),
        a_job(3, state="SUSPENDED", is_suspended=True),
        a_job(4, state="PENDING"),
    )
    work = {"cluster": CLUSTER, "namespace": "research", "kind": "PyTorchJob", "name": "bert", "pods": 2}
    work |= {"accelerators": 16, "nodeNames": ["a", "b"], "recreation": "BY_OWNER", "consent": "FORBIDDEN"}
    ledger.commit(Put(Row(fleet_rows.unmanaged_workloads_key(CLUSTER), {"workloads": [work]})))

    jobs = gateway.get("/v1/status").document["jobs"]

    (line,) = jobs["classes"]
    assert [line[name] for name in ("running", "pending", "preempted", "suspended")] == [0, 1, 2, 1]
    assert jobs["unmanaged"] == {"workloads": 1, "pods": 2, "gpus": 16}


# ---------------------------------------------------------------- unreachable clusters and stale sources


def store_unreachable_cluster(gateway: Gateway) -> None:
    """Store a healthy fleet whose cluster stopped answering twelve minutes ago."""
    ledger = gateway.fakes.ledger
    store_heartbeats(ledger)
    for function in ("schedule_jobs", "watch_cluster"):
        ledger.rows.pop(fleet_rows.heartbeat_key(function))
    row = ledger.rows[fleet_rows.heartbeat_key("sweep_fleet")]
    reports = dict(row.doc["sources"])
    reports["kubernetes-list/research-eks"] = {
        "triedAt": rfc3339(A_MOMENT),
        "seenAt": rfc3339(ago(minutes=12)),
        "failingSince": rfc3339(ago(minutes=11)),
        "error": "nodes: Unreachable: no answer",
    }
    for function in ("schedule_jobs", "sweep_fleet", "watch_cluster"):
        ledger.rows.pop(fleet_rows.heartbeat_key(function), None)
        ledger.commit(Put(Row(fleet_rows.heartbeat_key(function), {"at": rfc3339(A_MOMENT), "sources": reports})))
    store(
        ledger,
        a_fleet_node(1, accelerators_in_use=8),
        a_job(1, state="RUNNING", started_at=ago(hours=2)),
        a_job(2, state="PENDING"),
    )


def test_status_is_never_ok_while_a_cluster_does_not_answer(gateway: Gateway) -> None:
    store_unreachable_cluster(gateway)

    status = gateway.get("/v1/status").document

    assert status["health"] == "CRITICAL"
    (reason,) = status["reasons"]
    assert reason.startswith("Cluster research-eks does not answer since 2026-11-03 10:04:02Z: nodes: Unreachable")
    assert reason.endswith("(last answer 12 min ago)")
    (pool,) = status["nodes"]["pools"]
    for numbers in (pool, status["gpus"], status["jobs"]):
        assert (numbers["isStale"], numbers["lastSeenAt"]) == (True, rfc3339(ago(minutes=12)))


def test_status_is_not_ok_beside_failing_source(gateway: Gateway) -> None:
    ledger, answered = gateway.fakes.ledger, SourceReport.after(None, "", ago(seconds=30))
    store_heartbeats(ledger, ago(seconds=30))
    row = ledger.get(fleet_rows.heartbeat_key("sweep_fleet"))
    assert row
    row.doc["sources"]["hyperpod"] = SourceReport.after(answered, "Throttled", A_MOMENT).to_json()
    ledger.commit(Put(row))

    status = gateway.get("/v1/status").document

    assert (status["health"], status["reasons"]) == ("DEGRADED", ["the last attempt to read HyperPod failed"])


def test_facts_of_an_unreachable_cluster_are_shown_as_stale(gateway: Gateway) -> None:
    store_unreachable_cluster(gateway)

    nodes = gateway.get("/v1/nodes").document
    jobs = {job["state"]: job for job in gateway.get("/v1/jobs").document["items"]}

    assert [(node["isStale"], node["lastSeenAt"]) for node in nodes["items"]] == [(True, rfc3339(ago(minutes=12)))]
    assert [text.split(" since ")[0] for text in nodes["stale"]] == ["Cluster research-eks does not answer"]
    assert (jobs["RUNNING"]["isStale"], jobs["PENDING"]["isStale"]) == (True, False)


@pytest.mark.parametrize(
    "path",
    ["/v1/jobs", "/v1/jobs/job-0000000001", "/v1/jobs/job-0000000001/why", "/v1/nodes", "/v1/incidents", "/v1/teams"],
)
def test_every_list_names_its_stale_sources(gateway: Gateway, path: str) -> None:
    store_unreachable_cluster(gateway)

    assert len(gateway.get(path).document["stale"]) == 1


@pytest.mark.parametrize("kind", SourceKind)
def test_stale_source_of_any_kind_makes_the_status_critical(gateway: Gateway, kind: SourceKind) -> None:
    store_heartbeats(gateway.fakes.ledger, A_MOMENT - timedelta(minutes=9))
    row = gateway.fakes.ledger.rows[fleet_rows.heartbeat_key("sweep_fleet")]
    fresh_report = SourceReport.after(None, "", A_MOMENT).to_json()
    reports = {
        name: old_report if name.startswith(kind) else fresh_report for name, old_report in row.doc["sources"].items()
    }
    for function in ("schedule_jobs", "sweep_fleet", "watch_cluster"):
        gateway.fakes.ledger.rows.pop(fleet_rows.heartbeat_key(function))
        doc = {"at": rfc3339(A_MOMENT), "sources": reports}
        gateway.fakes.ledger.commit(Put(Row(fleet_rows.heartbeat_key(function), doc)))
    gateway.fakes.clock.advance(120)  # eleven minutes for this kind, two for all other kinds

    status = gateway.get("/v1/status").document

    assert status["health"] == "CRITICAL"
    assert {source["source"]["kind"] for source in status["sources"] if source["state"] == "STALE"} == {kind}


def test_fleet_that_no_sweep_has_read_is_unknown(gateway: Gateway) -> None:
    status = gateway.get("/v1/status").document

    assert status["health"] == "DEGRADED"
    assert status["reasons"][0] == "nothing has been observed yet"
    assert (status["nodes"]["total"], status["gpus"]["total"], status["gpus"]["free"]) == (None, None, None)
    assert {source["state"] for source in status["sources"]} == {"UNKNOWN"}


def test_status_says_that_evenkeel_is_not_running() -> None:
    gateway = Gateway(environment={"EVENKEEL_SCHEDULES": "off"})

    status = gateway.get("/v1/status").document

    assert (status["health"], status["isRunning"]) == ("NOT_RUNNING", False)
    assert status["reasons"][0].startswith("The schedules are off: no cluster is watched")
    assert gateway.get("/v1/nodes").document["stale"] == [status["reasons"][0]]


def test_status_shows_the_outage_of_a_zone_once() -> None:
    gateway = Gateway()
    since = ago(minutes=10)
    block = Block(guardrail="SHARED_CAUSE", reason="3 of 4.", since=since, action="replace", cause="zone/usw2-az2")
    blocked_fields = {"state": IncidentState.BLOCKED, "first_signal_at": since}
    blocked_incidents = [an_incident(number, block=block, **blocked_fields) for number in (1, 2, 3)]
    other_incident = an_incident(4, block=block.replace(guardrail="POOL_REPAIRS", cause=""), **blocked_fields)
    store(gateway.fakes.ledger, *blocked_incidents, other_incident)

    overview = gateway.get("/v1/status").document

    headline = f"3 nodes of zone usw2-az2 are unhealthy since {since:%H:%M}Z; repairs wait (SHARED_CAUSE) "
    assert [outage["incidentIds"] for outage in overview["outages"]] == [
        [incident.incident_id for incident in blocked_incidents]
    ]
    assert overview["outages"][0]["headline"].startswith(headline)
    assert overview["reasons"][0].startswith(headline)


PLAN_FOR_LATER = PLAN_AWAITING_APPROVAL.replace(outcome="LATER")


@pytest.mark.parametrize("plan", [PLAN_AWAITING_APPROVAL, PLAN_FOR_LATER], ids=["asks a person", "waits for HyperPod"])
def test_node_whose_recovery_plan_waits_is_shown_as_waiting(gateway: Gateway, plan: StoredRecoveryPlan) -> None:
    store(gateway.fakes.ledger, an_incident(1, plan=plan), a_fleet_node(1))

    assert gateway.get("/v1/nodes").document["items"][0]["state"] == "WAITING"
    assert gateway.get("/v1/status").document["nodes"]["pools"][0]["states"] == {"WAITING": 1}


def test_node_blocked_by_guardrail_is_counted_as_blocked(gateway: Gateway) -> None:
    block = Block(guardrail="POOL_REPAIRS", reason="1 of 1.", since=ago(minutes=1), action="replace")
    store(gateway.fakes.ledger, an_incident(1, state=IncidentState.BLOCKED, block=block), a_fleet_node(1))

    assert gateway.get("/v1/status").document["nodes"]["pools"][0]["states"] == {"BLOCKED": 1}


def test_why_says_that_a_plan_waits_for_hyperpod(gateway: Gateway) -> None:
    store(gateway.fakes.ledger, an_incident(1, plan=PLAN_FOR_LATER, state="RECOVERING"), a_fleet_node(1))

    why = gateway.get("/v1/incidents/inc-0000000001/why").document

    assert PLAN_FOR_LATER.reason in why["sentence"]


def test_status_shows_the_mode_that_the_policy_sets() -> None:
    rules = (ModeRule(mode=Mode.RECOMMEND), ModeRule(pool="p5-workers", mode=Mode.OBSERVE))
    gateway = Gateway(FakeWorld(policy=FakeWorld().policy.replace(modes=rules)))

    automation = gateway.get("/v1/status").document["automation"]

    assert (automation["mode"], automation["modeInForce"]) == ("act", "recommend")
    assert [(rule["pool"], rule["mode"]) for rule in automation["modeRules"]] == [("p5-workers", "observe")]
    assert gateway.get(f"/v1/clusters/{FLEET}/automation").document["modeInForce"] == "recommend"


@pytest.mark.parametrize(
    ("changes", "next_steps", "latest"),
    [
        ({"repairs": ("replace",)}, "validate the replacement", 1800),
        ({"repairs": ("reboot",)}, "validate the node", 900),
        ({"repairs": ("replace",), "plan": PLAN_AWAITING_APPROVAL}, "a person approves or declines the plan", None),
        ({"state": "RECOVERED", "outcome": "Done."}, None, None),
    ],
    ids=["replacing", "rebooting", "awaits approval", "settled"],
)
def test_active_recovery_shows_next_step_and_latest_end(
    gateway: Gateway, changes: dict[str, Any], next_steps: str | None, latest: int | None
) -> None:
    stages = StageTimes(planned_at=ago(minutes=3), cordoned_at=ago(minutes=3), repair_requested_at=ago(minutes=2))
    store(gateway.fakes.ledger, an_incident(1, **{"stages": stages, **changes}))

    lane = gateway.get("/v1/incidents/inc-0000000001").document["nodeLane"]

    assert lane["next"] == next_steps
    if latest:
        assert lane["latestAt"] == rfc3339(ago(minutes=2) + timedelta(seconds=latest))
