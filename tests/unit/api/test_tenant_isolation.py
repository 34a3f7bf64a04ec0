"""Access to the data of a job, for every read route and every kind of caller.

The rows come from the template: a read route without a row here fails.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from evenkeel.domain.health.incidents import IncidentState
from evenkeel.domain.jobs.attempt import Attempt, ResumePoint
from evenkeel.domain.jobs.job import Job, StopRequest
from evenkeel.domain.jobs.spec import SecretKey
from evenkeel.ports import LaunchSpec, Put, Row, RowChange
from evenkeel.services.publishing import publish_events
from evenkeel.services.queries import disclosure
from evenkeel.services.queries.fleet import read_overview
from evenkeel.services.tables import fleet_rows, job_rows
from tests.fakes.world import a_context
from tests.unit.api.gateway import ACCOUNT, FLEET, ApiResponse, Gateway, template_routes
from tests.unit.api.seeds import (
    a_decision,
    a_fleet_node,
    a_job,
    affected,
    ago,
    an_attempt,
    an_incident,
    list_decision,
    some_evidence,
    store,
    store_heartbeats,
    store_timeline_entries,
)

SECRET = "s3cret"
"""A text in every field that only the job's team may read."""


def session_arn(name: str) -> str:
    return f"arn:aws:sts::{ACCOUNT}:assumed-role/{name}/ana"


def role_arn(name: str) -> str:
    return f"arn:aws:iam::{ACCOUNT}:role/{name}"


INSIDERS = {
    "viewer of the team": session_arn("NlpGuest"),
    "submitter of the team": session_arn("Nlp"),
    "lead of the team": session_arn("NlpLead"),
    "member of every team": session_arn("Everywhere"),
    "operator": session_arn("Operator"),
    "operator who is a user": f"arn:aws:iam::{ACCOUNT}:user/on-call",
}
OUTSIDERS = {
    "lead of another team": session_arn("VisionLead"),
    "submitter of another team": session_arn("Vision"),
    "member of no team": session_arn("Stranger"),
    "same role in another account": "arn:aws:sts::999988887777:assumed-role/Nlp/ana",
    "operator's role in another account": "arn:aws:sts::999988887777:assumed-role/Operator/ana",
    "session named after a member": f"arn:aws:sts::{ACCOUNT}:assumed-role/Stranger/Nlp",
    "federated user named after a member": f"arn:aws:sts::{ACCOUNT}:federated-user/Nlp",
    "root": f"arn:aws:iam::{ACCOUNT}:root",
}


@dataclass(frozen=True)
class AccessCase:
    """The answer of a read route for a caller outside the job's team."""

    target: str
    status: int = 200
    shows: tuple[str, ...] = ()
    """Parts of the answer that every caller sees."""
    is_private: bool = True
    """Whether the team's answer has private data: otherwise this case would prove nothing."""


ROWS: Mapping[str, AccessCase] = {
    "/v1/status": AccessCase("/v1/status", shows=("nlp",), is_private=False),
    "/v1/jobs": AccessCase("/v1/jobs", shows=("llama-1", "nlp", "role/Nlp (ana)", "FAILED")),
    "/v1/jobs/{jobId}": AccessCase(
        "/v1/jobs/job-0000000001", shows=("role/Nlp (ana)", '"nodes": 2', '"isRedacted": true')
    ),
    "/v1/jobs/{jobId}/timeline": AccessCase("/v1/jobs/job-0000000001/timeline", shows=("Submitted by", "settled")),
    "/v1/jobs/{jobId}/why": AccessCase("/v1/jobs/job-0000000001/why", shows=("The job failed in attempt 1.",)),
    "/v1/jobs/{jobId}/logs": AccessCase("/v1/jobs/job-0000000001/logs", status=403, shows=("NOT_YOUR_TEAM",)),
    "/v1/jobs/{jobId}/receipt": AccessCase("/v1/jobs/job-0000000001/receipt", shows=("QUEUED", '"isRedacted": true')),
    "/v1/incidents": AccessCase("/v1/incidents", shows=("xid:79",), is_private=False),
    "/v1/incidents/{incidentId}": AccessCase("/v1/incidents/inc-0000000001", shows=("xid:79", "job-0000000001")),
    "/v1/incidents/{incidentId}/execution": AccessCase(
        "/v1/incidents/inc-0000000001/execution", shows=("inc-0000000001-r1",), is_private=False
    ),
    "/v1/incidents/{incidentId}/timeline": AccessCase(
        "/v1/incidents/inc-0000000001/timeline", shows=("Fell off the bus.",)
    ),
    "/v1/incidents/{incidentId}/why": AccessCase(
        "/v1/incidents/inc-0000000001/why", shows=("xid:79", '"isRedacted": true')
    ),
    "/v1/incidents/{incidentId}/receipt": AccessCase(
        "/v1/incidents/inc-0000000001/receipt", shows=("WAIT_FOR_NODES", '"isRedacted": true')
    ),
    "/v1/decisions": AccessCase("/v1/decisions?subject=job-0000000001", shows=("ADMIT", '"isRedacted": true')),
    "/v1/decisions/{decisionId}": AccessCase("/v1/decisions/dec-0000000003", shows=("ADMIT", '"isRedacted": true')),
    "/v1/nodes": AccessCase("/v1/nodes", shows=("p5-workers",), is_private=False),
    "/v1/nodes/{nodeId}": AccessCase("/v1/nodes/i-00000000000000001", shows=("p5-workers",), is_private=False),
    "/v1/cost-report": AccessCase("/v1/cost-report", shows=("improvements", "byCause"), is_private=False),
    "/v1/overview": AccessCase("/v1/overview", shows=("nlp", "xid:79"), is_private=False),
    "/v1/events": AccessCase("/v1/events", shows=("Job Ended", "llama-1", "nlp"), is_private=False),
    "/v1/showback": AccessCase("/v1/showback?label=experiment", shows=("nlp", '"user": null', '"usdMicros": null')),
    "/v1/shadow-report": AccessCase("/v1/shadow-report", shows=("falseCordons",), is_private=False),
    "/v1/audit": AccessCase("/v1/audit", shows=("setup", "vision"), is_private=False),
    "/v1/utilization": AccessCase("/v1/utilization", shows=("p5-workers",), is_private=False),
    "/v1/clusters/{cluster}/automation": AccessCase(f"/v1/clusters/{FLEET}/automation", is_private=False),
    "/v1/teams": AccessCase("/v1/teams", shows=("nlp",), is_private=False),
    "/v1/teams/{team}/quota": AccessCase("/v1/teams/nlp/quota", shows=("nlp",), is_private=False),
    "/v1/clusters/{cluster}/quotas": AccessCase(f"/v1/clusters/{FLEET}/quotas", is_private=False),
}
"""Cases by path of the template. A new read route needs a case with the parts that other callers see."""


def a_team(name: str, *members: tuple[str, str]) -> dict[str, Any]:
    team = {
        "name": name,
        "namespace": name,
        "queue": {"groups": [{"ml.p5.48xlarge": {"nvidia.com/gpu": 16}}]},
        "members": [{"principal": role_arn(member), "role": role} for member, role in members],
    }
    return {"team": team, "reason": "x"}


def secret_job() -> Job:
    """A job whose every field names the team, except fields that every caller may read."""
    job = a_job(1, state="FAILED", reason=f"{SECRET} exit message", current_attempt=1)
    spec = job.spec.replace(
        team="nlp",
        image=f"registry/{SECRET}:1",
        command=("python", f"--token={SECRET}"),
        args=(f"--data={SECRET}",),
        env={f"{SECRET}_NAME": SECRET},
        secret_env={"TOKEN": SecretKey(secret=SECRET, key=SECRET)},
        checkpoint_uri=f"s3://{SECRET}/llama",
        checkpoint_claim=SECRET,
        labels={"experiment": SECRET},
    )
    return job.replace(
        spec=spec,
        submitter="role/Nlp",
        submitted_by="role/Nlp (ana)",
        namespace=f"{SECRET}-namespace",
        service_account=SECRET,
        result={"note": SECRET},
        stop_request=StopRequest(attempt=1, reason=SECRET, by="cancel/ana", grace_seconds=1, requested_at=ago(hours=1)),
    )


def secret_attempt(job: Job) -> Attempt:
    return an_attempt(
        job,
        state="FAILED",
        team="nlp",
        running_at=ago(minutes=19),
        ended_at=ago(minutes=11),
        reason=f"{SECRET} failed (exit code 1).",
        resume_from=ResumePoint(attempt=1, step=1, manifest=SECRET),
        is_pinned=True,
        exit_codes={SECRET: 1},
        rejected_checkpoints=({"manifest": SECRET, "code": "SHARD_MISSING"},),
        workload_uid=SECRET,
    )


@pytest.fixture
def gateway_with_teams() -> Gateway:
    operators = f"{role_arn('Operator')},arn:aws:iam::{ACCOUNT}:user/on-call"
    gateway = Gateway(environment={"OPERATOR_PRINCIPALS": operators})
    new = {"If-None-Match": "*"}
    quotas = {"members": [{"principal": role_arn("Everywhere"), "role": "viewer"}]}
    teams = {
        "nlp": a_team("nlp", ("Nlp", "submitter"), ("NlpLead", "lead"), ("NlpGuest", "viewer")),
        "vision": a_team("vision", ("Vision", "submitter"), ("VisionLead", "lead")),
    }
    body = {"quotas": quotas, "reason": "x"}
    assert gateway.call("PUT", f"/v1/clusters/{FLEET}/quotas", body, headers=new).status == 200
    for name, team in teams.items():
        assert gateway.call("PUT", f"/v1/teams/{name}/quota", team, headers=new).status == 200
    store_secret_rows(gateway)
    return gateway


def store_secret_rows(gateway: Gateway) -> None:
    ledger, job = gateway.fakes.ledger, secret_job()
    incident = an_incident(1, affected_jobs=affected(job), state=IncidentState.RECOVERING)
    store(
        ledger,
        job,
        secret_attempt(job),
        incident,
        some_evidence(incident),
        some_evidence(incident, job_id=job.job_id, source="site:role/Probe", detail=SECRET, envelope_id="e-2"),
        a_fleet_node(1),
        a_decision(1, incident.incident_id, facts={"rungs": ["replace"]}),
        a_decision(2, incident.incident_id, kind="RESUME", reason=SECRET, facts={"jobId": SECRET}),
        a_decision(3, job.job_id, kind="ADMISSION", action="ADMIT", reason="It fits.", facts={"request": SECRET}),
        a_decision(4, job.job_id, kind="ATTRIBUTION", reason=SECRET, facts={"request": SECRET}),
    )
    for number, subject, kind in ((2, incident.incident_id, "RESUME"), (4, job.job_id, "ATTRIBUTION")):
        list_decision(ledger, a_decision(number, subject, kind=kind, reason=SECRET))
    list_decision(ledger, a_decision(3, job.job_id, kind="ADMISSION", action="ADMIT", reason="It fits."))
    store_timeline_entries(
        ledger,
        job.job_id,
        (ago(minutes=30), "submitted", "Submitted by role/Nlp (ana)."),
        (ago(minutes=20), "settled", f"Attempt 1 failed: {SECRET}."),
        (ago(minutes=10), "pinned", f"Rank 0 says: {SECRET}."),
    )
    store_timeline_entries(
        ledger,
        incident.incident_id,
        (ago(minutes=12), "fault", "Fell off the bus."),
        (ago(minutes=11), "job", f"{SECRET} comes back."),
    )
    publish_events.run(
        RowChange(job_rows.job_row(job.replace(state="RUNNING"), 1), job_rows.job_row(job, 2), ago(minutes=20)),
        a_context(gateway.fakes),
    )
    store_heartbeats(ledger)
    counts = read_overview.counts_document((), a_context(gateway.fakes))
    ledger.commit(Put(Row(fleet_rows.overview_key(), counts)))
    gateway.fakes.cluster.launch(LaunchSpec(job.spec, secret_attempt(job), "", "trainer"))
    gateway.fakes.cluster.launched(job.job_id, 1).uid = SECRET
    gateway.fakes.cluster.text[f"{job.job_id}-a1-0"] = f"{SECRET} line\n"


def test_every_read_route_states_which_fields_are_public() -> None:
    reads = {route.path for route in template_routes() if route.method == "GET" and route.function == "api_read"}

    assert reads == set(ROWS)


@pytest.mark.parametrize("caller", OUTSIDERS)
@pytest.mark.parametrize("path", ROWS)
def test_callers_of_other_teams_see_only_public_fields(gateway_with_teams: Gateway, path: str, caller: str) -> None:
    row = ROWS[path]

    answer = gateway_with_teams.get(row.target, caller=OUTSIDERS[caller])

    assert answer.status == row.status
    assert SECRET not in answer.text
    assert [part for part in row.shows if part not in text_and_headers(answer)] == []


@pytest.mark.parametrize("caller", INSIDERS)
@pytest.mark.parametrize("path", ROWS)
def test_team_and_operators_see_everything(gateway_with_teams: Gateway, path: str, caller: str) -> None:
    row = ROWS[path]

    answer = gateway_with_teams.get(row.target, caller=INSIDERS[caller])

    assert answer.status == 200
    assert (SECRET in answer.text) == row.is_private


def test_without_teams_every_caller_sees_everything() -> None:
    gateway = Gateway()
    store_secret_rows(gateway)

    answers = [
        gateway.get(row.target, caller=OUTSIDERS["member of no team"]) for row in ROWS.values() if row.is_private
    ]

    assert [SECRET in answer.text for answer in answers] == [True] * len(answers)


@pytest.mark.parametrize(
    "kind", ["RESUME", "ROLLBACK", "DRAIN", "ATTRIBUTION", "RESIZE", "MIGRATION", "TEMPORARY_CAPACITY", "NEW_KIND"]
)
def test_decisions_about_jobs_hide_reasons_and_facts_from_other_teams(gateway_with_teams: Gateway, kind: str) -> None:
    for number, subject in ((8, "job-0000000001"), (9, "inc-0000000001")):
        store(
            gateway_with_teams.fakes.ledger, a_decision(number, subject, kind=kind, reason=SECRET, facts={"x": SECRET})
        )

        answer = gateway_with_teams.get(f"/v1/decisions/dec-{number:010d}", caller=session_arn("Vision"))

        assert (answer.status, SECRET in answer.text, answer.document["isRedacted"]) == (200, False, True)


def test_fleet_list_hides_reasons_of_other_teams(gateway_with_teams: Gateway) -> None:
    ledger = gateway_with_teams.fakes.ledger
    lost = a_decision(9, "job-0000009999", kind="ATTRIBUTION", reason=SECRET)
    dry_run = a_decision(10, "life/of/a/node", kind="REPAIR", reason="The dry run of a person.")
    list_decision(ledger, lost)
    list_decision(ledger, dry_run)

    other_team = gateway_with_teams.get("/v1/decisions", caller=session_arn("Vision"))
    team = gateway_with_teams.get("/v1/decisions", caller=session_arn("Nlp")).document

    shown = {item["decisionId"]: item["reason"] for item in other_team.document["items"]}
    assert shown == {
        "dec-0000000002": "",
        "dec-0000000003": "It fits.",
        "dec-0000000004": "",
        "dec-0000000009": "",
        "dec-0000000010": "The dry run of a person.",
    }
    assert other_team.document["isRedacted"]
    assert [item["decisionId"] for item in team["items"] if not item["reason"]] == ["dec-0000000009"]


def test_decision_about_a_job_without_a_row_is_withheld(gateway_with_teams: Gateway) -> None:
    store(
        gateway_with_teams.fakes.ledger,
        a_decision(9, "job-0000009999", kind="ATTRIBUTION", reason=SECRET, facts={"x": SECRET}),
    )

    assert SECRET not in gateway_with_teams.get("/v1/decisions/dec-0000000009", caller=session_arn("Nlp")).text
    assert SECRET in gateway_with_teams.get("/v1/decisions/dec-0000000009", caller=session_arn("Operator")).text


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("Needs 2 free nodes; 1 is free.", "Needs 2 free nodes; 1 is free."),
        (f"{SECRET} failed (exit code 1). Restart 1 of 3 follows.", "Restart 1 of 3 follows."),
        (f"The attempt lost contact with {SECRET}. The job waits to run again.", "The job waits to run again."),
        (f"{SECRET} went out of reach. Waits to run again.", "Waits to run again."),
    ],
)
def test_public_reason_of_a_pending_job_hides_the_failure(gateway_with_teams: Gateway, reason: str, shown: str) -> None:
    pending = a_job(2, state="PENDING", reason=reason, submitter="role/Nlp")
    store(gateway_with_teams.fakes.ledger, pending.replace(spec=pending.spec.replace(team="nlp")))

    response = gateway_with_teams.get("/v1/jobs/job-0000000002", caller=session_arn("Stranger"))
    list_answer = gateway_with_teams.get("/v1/jobs?state=PENDING", caller=session_arn("Stranger"))
    why = gateway_with_teams.get("/v1/jobs/job-0000000002/why", caller=session_arn("Stranger"))

    assert response.document["reason"] == list_answer.document["items"][0]["reason"] == shown
    assert shown in why.document["sentence"]
    assert SECRET not in response.text + list_answer.text + why.text


@pytest.mark.parametrize(("caller", "named"), [("Nlp", True), ("Vision", False)])
def test_checkpoint_conflict_does_not_name_another_teams_job(
    gateway_with_teams: Gateway, caller: str, named: bool
) -> None:
    gateway_with_teams.fakes.ids.new("job")  # the fixture has used the first id
    checkpoint = {"checkpoint": {"uri": "s3://checkpoints/shared"}}
    body = {"name": "a", "image": "registry/a:1", "command": ["a"]} | checkpoint
    first = gateway_with_teams.post("/v1/jobs", body, caller=session_arn("NlpLead"), key="1").document["jobId"]

    refusal = gateway_with_teams.post("/v1/jobs", body, caller=session_arn(caller), key="2")

    assert (refusal.status, first in refusal.text) == (400, named)


def test_job_older_than_its_team_belongs_to_its_submitter(gateway_with_teams: Gateway) -> None:
    job = secret_job()
    store(
        gateway_with_teams.fakes.ledger,
        job.replace(job_id="job-0000000007", spec=job.spec.replace(team="speech"), submitter="role/Stranger"),
    )

    own_response = gateway_with_teams.get("/v1/jobs/job-0000000007", caller=session_arn("Stranger"))
    response = gateway_with_teams.get("/v1/jobs/job-0000000007", caller=session_arn("Nlp"))

    assert (SECRET in own_response.text, SECRET in response.text) == (True, False)


def test_submitter_who_left_the_team_cannot_read_its_jobs(gateway_with_teams: Gateway) -> None:
    team = a_team("nlp", ("NlpLead", "lead"))
    gateway_with_teams.call("PUT", "/v1/teams/nlp/quota", team, headers={"If-Match": '"1"'})

    assert SECRET not in gateway_with_teams.get("/v1/jobs/job-0000000001", caller=session_arn("Nlp")).text


def test_author_of_a_resume_is_visible_only_to_the_team(gateway_with_teams: Gateway) -> None:
    suspended_job = a_job(2, state="SUSPENDED", is_suspended=True, submitter="role/NlpLead")
    store(gateway_with_teams.fakes.ledger, suspended_job.replace(spec=suspended_job.spec.replace(team="nlp")))
    body = {"reason": f"{SECRET} is fixed"}
    assert gateway_with_teams.post("/v1/jobs/job-0000000002/resume", body, caller=session_arn("NlpLead")).status == 202

    shown_reasons = [
        gateway_with_teams.get(f"/v1/jobs{path}", caller=session_arn("Stranger"))
        for path in ("?state=PENDING", "/job-0000000002", "/job-0000000002/why", "/job-0000000002/timeline")
    ]

    assert [(answer.status, SECRET in answer.text) for answer in shown_reasons] == [(200, False)] * 4
    assert "Resumed by role/NlpLead" in shown_reasons[1].document["reason"]
    assert SECRET in gateway_with_teams.get("/v1/jobs/job-0000000002/timeline", caller=session_arn("Nlp")).text


@pytest.mark.parametrize("route", ["/v1/jobs", "/v1/jobs/plan"])
def test_callers_outside_a_team_do_not_see_its_rules(gateway_with_teams: Gateway, route: str) -> None:
    team_with_rules = a_team("nlp", ("NlpLead", "lead"))
    team_with_rules["team"] |= {"images": [f"registry/{SECRET}/*"], "checkpoints": [f"s3://{SECRET}"]}
    assert (
        gateway_with_teams.call("PUT", "/v1/teams/nlp/quota", team_with_rules, headers={"If-Match": '"1"'}).status
        == 200
    )
    body = {"name": "a", "team": "nlp", "image": "a:1", "command": ["a"], "checkpoint": {"uri": "s3://other/a"}}

    response = gateway_with_teams.post(route, body, caller=session_arn("VisionLead"))
    api_response = gateway_with_teams.post(route, body, caller=session_arn("NlpLead"))

    assert (response.document["code"], SECRET in response.text) == ("NOT_YOUR_TEAM", False)
    assert (api_response.document["code"], SECRET in api_response.text) == ("VALIDATION_FAILED", True)


def test_field_of_a_job_is_private_unless_listed() -> None:
    job, attempt = secret_job(), secret_attempt(secret_job())

    assert SECRET not in json.dumps(disclosure.public_job(job).to_json())
    assert SECRET not in json.dumps(disclosure.public_attempt(attempt).to_json())
    assert set(disclosure.PUBLIC_JOB) <= set(Job.model_fields)
    assert set(disclosure.PUBLIC_ATTEMPT) <= set(Attempt.model_fields)
    assert set(disclosure.PUBLIC_SPEC) <= set(type(job.spec).model_fields)


def text_and_headers(answer: ApiResponse) -> str:
    return json.dumps(answer.document, ensure_ascii=False)
