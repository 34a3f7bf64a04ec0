"""Teams over HTTP: changes by version, invalid fields, and the rights of each caller."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from evenkeel.ports import Put
from evenkeel.services.tables import job_rows, quota_rows
from tests.unit.api.gateway import ACCOUNT, FLEET, ApiResponse, Gateway
from tests.unit.api.seeds import a_fleet_node, a_job, ago, store
from tests.unit.scheduling.builders import an_attempt
from tests.unit.scheduling.test_renting import a_rental

TEAM = "/v1/teams/nlp/quota"
QUOTAS = f"/v1/clusters/{FLEET}/quotas"
IF_NEW = {"If-None-Match": "*"}
A_JOB: dict[str, Any] = {"name": "llama", "image": "registry/nlp/train:1", "command": ["python", "train.py"]}


def role_arn(name: str) -> str:
    return f"arn:aws:iam::{ACCOUNT}:role/{name}"


def session_arn(name: str, person: str = "ana") -> str:
    return f"arn:aws:sts::{ACCOUNT}:assumed-role/{name}/{person}"


def a_team(**changes: Any) -> dict[str, Any]:
    team = {
        "name": "nlp",
        "queue": {"cohort": "research", "groups": [{"ml.p5.48xlarge": {"nvidia.com/gpu": 16}}]},
        "members": [
            {"principal": role_arn("Nlp"), "role": "submitter"},
            {"principal": role_arn("NlpLead"), "role": "lead"},
            {"principal": role_arn("Guest"), "role": "viewer"},
        ],
        "namespace": "nlp",
        "serviceAccount": "nlp-trainer",
        "images": ["registry/nlp/*"],
    }
    return {"team": team | changes, "reason": "The quarter's plan."}


@pytest.fixture
def gateway_with_team(gateway: Gateway) -> Gateway:
    """A fleet of one team and one priority class."""
    quotas = {"quotas": {"priorityClasses": {"high": 100}}, "reason": "First."}
    assert gateway.call("PUT", QUOTAS, quotas, headers=IF_NEW).status == 200
    assert gateway.call("PUT", TEAM, a_team(), headers=IF_NEW).status == 200
    return gateway


def submit_job(
    gateway_with_team: Gateway, caller: str = session_arn("Nlp"), key: str = "key-1", **changes: Any
) -> ApiResponse:
    return gateway_with_team.post("/v1/jobs", A_JOB | changes, caller=caller, key=key)


def test_team_is_set_up_and_read_with_its_version(gateway: Gateway) -> None:
    put = gateway.call("PUT", TEAM, a_team(), headers=IF_NEW)
    read = gateway.get(TEAM)

    assert (put.status, put.headers["ETag"]) == (200, '"1"')
    assert read.document == put.document
    assert read.document["team"]["namespace"] == "nlp"
    assert read.headers["ETag"].startswith('"1-')


def test_fleet_quotas_can_be_read_before_the_setup(gateway: Gateway) -> None:
    answer = gateway.get(QUOTAS)

    assert (answer.status, answer.document["version"], answer.document["quotas"]["fairSharing"]) == (200, 0, True)


def test_team_change_needs_the_etag_that_was_read(gateway_with_team: Gateway) -> None:
    tag = gateway_with_team.get(TEAM).headers["ETag"]

    answers = [
        gateway_with_team.call("PUT", TEAM, a_team(namespace="other"), headers=headers)
        for headers in ({}, {"If-Match": '"7"'}, {"If-Match": "*"}, IF_NEW, {"If-Match": tag}, {"If-Match": tag})
    ]

    assert [answer.status for answer in answers] == [428, 412, 412, 412, 200, 200]
    assert [answer.document["code"] for answer in answers[:2]] == ["PRECONDITION_MISSING", "STALE_VERSION"]
    assert gateway_with_team.get(TEAM).document["version"] == 2


def test_team_change_with_an_old_etag_is_refused(gateway_with_team: Gateway) -> None:
    gateway_with_team.call("PUT", TEAM, a_team(namespace="other"), headers={"If-Match": '"1"'})

    answer = gateway_with_team.call("PUT", TEAM, a_team(namespace="third"), headers={"If-Match": '"1"'})

    assert (answer.status, answer.document["code"]) == (412, "STALE_VERSION")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (a_team(members=[{"principal": "ana"}]), "team.members.0.principal"),
        (a_team(namespace="kube-system"), "team.namespace"),
        (a_team(budget=5), "team.budget"),
        (a_team(queue={"groups": [{"a": {"gpu": "many"}}]}), "team.queue.groups[0].a.gpu"),
        ({"team": a_team()["team"]}, "reason"),
        ({"reason": "x"}, "team"),
        (a_team(budgets=[{"usd": 1e308}]), "team.budgets[0].usd"),
        (a_team(budgets=[{"gpuHours": 1e308}]), "team.budgets[0].gpuHours"),
        (a_team(maxAcceleratorsPerUser=10**40), "team.maxAcceleratorsPerUser"),
    ],
)
def test_invalid_team_field_is_named(gateway: Gateway, body: dict[str, Any], field: str) -> None:
    answer = gateway.call("PUT", TEAM, body, headers=IF_NEW)

    assert (answer.status, answer.document["code"]) == (400, "VALIDATION_FAILED")
    assert answer.document["errors"][0]["field"].startswith(field)


def test_team_name_must_match_its_path(gateway: Gateway) -> None:
    answer = gateway.call("PUT", "/v1/teams/vision/quota", a_team(), headers=IF_NEW)

    assert (answer.status, answer.document["code"]) == (400, "VALIDATION_FAILED")
    assert gateway.get("/v1/teams/vision/quota").status == 404


def test_team_sets_namespace_and_service_account(gateway_with_team: Gateway) -> None:
    answer = submit_job(gateway_with_team, priorityClass="high")

    job = gateway_with_team.get(f"/v1/jobs/{answer.document['jobId']}", caller=session_arn("Nlp")).document
    assert (answer.status, job["team"], job["namespace"], job["serviceAccount"]) == (202, "nlp", "nlp", "nlp-trainer")


@pytest.mark.parametrize(
    "caller", [session_arn("Guest"), session_arn("Other"), session_arn("Other", "Nlp"), role_arn("Other")]
)
def test_only_members_submit_for_a_team(gateway_with_team: Gateway, caller: str) -> None:
    answer = submit_job(gateway_with_team, caller, team="nlp")

    assert (answer.status, answer.document["code"]) == (403, "NOT_YOUR_TEAM")
    assert gateway_with_team.get("/v1/jobs").document["items"] == []


def test_role_of_another_account_is_no_team_member(gateway_with_team: Gateway) -> None:
    answer = submit_job(gateway_with_team, "arn:aws:sts::999988887777:assumed-role/Nlp/ana", team="nlp")

    assert (answer.status, answer.document["code"]) == (403, "NOT_YOUR_TEAM")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"team": "speech"}, "team"),
        ({"image": "elsewhere/train:1"}, "image"),
        ({"priorityClass": "urgent"}, "priorityClass"),
        ({"secretEnv": {"A-B": {"secret": "s", "key": "k"}}}, "secretEnv.A-B"),
        ({"secretEnv": {"TOKEN": {"secret": "../x", "key": "k"}}}, "secretEnv.TOKEN.secret"),
        ({"secretEnv": {"WORLD_SIZE": {"secret": "s", "key": "k"}}}, "secretEnv.WORLD_SIZE"),
        ({"namespace": "kube-system"}, "namespace"),
        ({"serviceAccount": "admin"}, "serviceAccount"),
    ],
)
def test_forbidden_job_field_is_named(gateway_with_team: Gateway, changes: dict[str, Any], field: str) -> None:
    answer = submit_job(gateway_with_team, **changes)

    assert (answer.status, [error["field"] for error in answer.document["errors"]]) == (400, [field])


@pytest.mark.parametrize("verb", ["cancel", "suspend", "resume"])
@pytest.mark.parametrize(
    ("caller", "status"),
    [
        (session_arn("Nlp", "another"), 202),
        (session_arn("NlpLead"), 202),
        (session_arn("Guest"), 403),
        (session_arn("Other"), 403),
    ],
)
def test_only_submitter_or_lead_may_change_a_job(
    gateway_with_team: Gateway, verb: str, caller: str, status: int
) -> None:
    job_id = submit_job(gateway_with_team).document["jobId"]

    answer = gateway_with_team.post(f"/v1/jobs/{job_id}/{verb}", {}, caller=caller)

    assert answer.status == status


def test_job_is_suspended_and_resumed(gateway_with_team: Gateway) -> None:
    job_id = submit_job(gateway_with_team).document["jobId"]

    states = [
        gateway_with_team.post(f"/v1/jobs/{job_id}/{verb}", {}, caller=session_arn("Nlp")).document["state"]
        for verb in ("suspend", "suspend", "resume", "resume")
    ]

    assert states == ["SUSPENDED", "SUSPENDED", "PENDING", "PENDING"]


def test_priority_change_needs_the_etag(gateway_with_team: Gateway) -> None:
    job_id = submit_job(gateway_with_team).document["jobId"]
    tag = gateway_with_team.get(f"/v1/jobs/{job_id}").headers["ETag"]
    body = {"priorityClass": "high"}

    def change_priority(headers: dict[str, str], caller: str = session_arn("Nlp")) -> ApiResponse:
        return gateway_with_team.call("PATCH", f"/v1/jobs/{job_id}", body, caller=caller, headers=headers)

    assert [change_priority({}).status, change_priority({"If-Match": '"9"'}).status] == [428, 412]
    assert change_priority({"If-Match": tag}, session_arn("Other")).document["code"] == "NOT_YOUR_TEAM"
    assert change_priority({"If-Match": tag}).document["priorityClass"] == "high"
    assert change_priority({"If-Match": tag}).status == 200  # the caller lost the answer and repeats the request


def test_ended_job_cannot_be_changed(gateway_with_team: Gateway) -> None:
    job_id = submit_job(gateway_with_team).document["jobId"]
    gateway_with_team.post(f"/v1/jobs/{job_id}/cancel", {}, caller=session_arn("Nlp"))

    answers = [
        gateway_with_team.post(f"/v1/jobs/{job_id}/suspend", {}, caller=session_arn("Nlp")),
        gateway_with_team.post(f"/v1/jobs/{job_id}/resume", {}, caller=session_arn("Nlp")),
        gateway_with_team.call(
            "PATCH", f"/v1/jobs/{job_id}", {"priorityClass": ""}, caller=session_arn("Nlp"), headers={"If-Match": '"2"'}
        ),
    ]

    assert [(answer.status, answer.document["code"]) for answer in answers] == [(409, "JOB_ENDED")] * 3


def test_jobs_are_listed_by_team_and_class(gateway_with_team: Gateway) -> None:
    first = submit_job(gateway_with_team, key="1", priorityClass="high").document["jobId"]
    second = submit_job(gateway_with_team, key="2").document["jobId"]

    def listed_job_ids(query: str) -> list[str]:
        return [job["jobId"] for job in gateway_with_team.get(f"/v1/jobs?{query}").document["items"]]

    assert listed_job_ids("class=high") == [first]
    assert listed_job_ids("class=") == [second]
    assert sorted(listed_job_ids("team=nlp")) == sorted([first, second])
    third = submit_job(gateway_with_team, key="3", priorityClass="high").document["jobId"]
    assert listed_job_ids("state=PENDING&team=nlp") == [first, third, second]


def test_filtered_job_list_loses_no_job_between_pages(gateway_with_team: Gateway) -> None:
    high_class_ids = [
        submit_job(gateway_with_team, key=f"h{n}", priorityClass="high").document["jobId"] for n in range(5)
    ]
    for n in range(5):
        submit_job(gateway_with_team, key=f"l{n}")

    for state in ("", "&state=PENDING"):
        ids, token = [], ""
        while True:
            page = gateway_with_team.get(
                f"/v1/jobs?class=high&pageSize=2{state}" + (f"&nextPageToken={token}" if token else "")
            )
            ids += [job["jobId"] for job in page.document["items"]]
            token = page.document["nextPageToken"]
            if not token:
                break
        assert sorted(ids) == sorted(high_class_ids)


def test_team_table_shows_quota_use_borrowing_and_lending(gateway_with_team: Gateway) -> None:
    gateway_with_team.call(
        "PUT", "/v1/teams/vision/quota", {"team": a_team()["team"] | _VISION, "reason": "x"}, headers=IF_NEW
    )
    store_charge(gateway_with_team, "job-1", "nlp", 16)
    store_charge(gateway_with_team, "job-2", "nlp", 8)
    store_charge(gateway_with_team, "job-3", "vision", 4)
    submit_job(gateway_with_team)

    nlp, vision = gateway_with_team.get("/v1/teams").document["items"]

    assert (nlp["team"], nlp["running"], nlp["pending"], nlp["cohort"]) == ("nlp", 2, 1, "research")
    assert nlp["accelerators"] == {
        "allocated": 16,
        "used": 24,
        "usedByUnmanaged": 0,
        "borrowed": 8,
        "lent": 0,
        "utilization": 150,
    }
    assert vision["accelerators"]["lent"] == 8
    assert nlp["resources"] == [
        {
            "flavor": "ml.p5.48xlarge",
            "resource": "nvidia.com/gpu",
            "allocated": "16",
            "used": "24",
            "borrowed": "8",
            "lent": "0",
            "utilization": 150,
        }
    ]
    assert [team["team"] for team in gateway_with_team.get("/v1/status").document["teams"]] == ["nlp", "vision"]


def test_team_table_without_teams_shows_accelerator_use(gateway: Gateway) -> None:
    store_charge(gateway, "job-1", "default", 8)

    (line,) = gateway.get("/v1/teams").document["items"]

    assert (line["team"], line["accelerators"]["used"], line["accelerators"]["allocated"]) == ("default", 8, None)


_VISION = {"name": "vision", "namespace": "vision", "members": []}


def store_charge(gateway_with_team: Gateway, job_id: str, team: str, accelerators: int) -> None:
    attempt = an_attempt(job_id=job_id, team=team, accelerators=accelerators, instance_type="ml.p5.48xlarge")
    gateway_with_team.fakes.ledger.commit(Put(quota_rows.charge_row(attempt)))


# ---------------------------------------------------------------- plans, queue positions


def store_nodes(gateway_with_team: Gateway, count: int = 2) -> None:
    store(
        gateway_with_team.fakes.ledger, *(a_fleet_node(number, accelerators_in_use=0) for number in range(1, count + 1))
    )


def plan_job(gateway_with_team: Gateway, caller: str = session_arn("Nlp"), **changes: Any) -> ApiResponse:
    return gateway_with_team.post("/v1/jobs/plan", A_JOB | {"nodes": 2} | changes, caller=caller)


def test_plan_shows_where_a_job_would_start(gateway_with_team: Gateway) -> None:
    store_nodes(gateway_with_team)
    commits = len(gateway_with_team.fakes.ledger.commits)

    document = plan_job(gateway_with_team).document

    assert (document["team"], document["position"], document["decision"]["action"]) == ("nlp", 1, "ADMIT")
    assert document["decision"]["quota"] == {"ml.p5.48xlarge": {"nvidia.com/gpu": 16}}
    assert len(document["decision"]["nodes"]) == 2
    assert len(gateway_with_team.fakes.ledger.commits) == commits
    assert gateway_with_team.get("/v1/jobs").document["items"] == []


def test_plan_shows_what_blocks_a_job(gateway_with_team: Gateway) -> None:
    store_nodes(gateway_with_team, 4)
    store_charge(gateway_with_team, "job-1", "nlp", 16)

    blocked_decision = plan_job(gateway_with_team).document["decision"]
    impossible_plan = plan_job(gateway_with_team, nodes=100)

    assert blocked_decision["action"] != "ADMIT"
    assert (impossible_plan.status, impossible_plan.document["errors"][0]["field"]) == (400, "nodes")


def test_plan_has_the_checks_of_a_submission(gateway_with_team: Gateway) -> None:
    assert plan_job(gateway_with_team, session_arn("Other"), team="nlp").document["code"] == "NOT_YOUR_TEAM"
    assert plan_job(gateway_with_team, image="elsewhere/x").document["errors"][0]["field"] == "image"
    assert plan_job(gateway_with_team, nodes=0).document["errors"][0]["field"] == "nodes"


def test_plan_without_teams_depends_on_the_nodes_alone(gateway: Gateway) -> None:
    store_nodes(gateway)

    assert plan_job(gateway).document["decision"]["action"] == "ADMIT"
    assert plan_job(gateway, nodes=3).document["errors"][0]["field"] == "nodes"


def test_plan_shows_the_starting_size_of_an_elastic_job(gateway: Gateway) -> None:
    store_nodes(gateway)
    checkpoint = {"uri": "s3://checkpoints/elastic"}
    sizes = {"minNodes": 1, "maxNodes": 4}

    decision = plan_job(gateway, nodes=4, elastic=sizes, checkpoint=checkpoint).document["decision"]

    assert (decision["action"], len(decision["nodes"])) == ("ADMIT", 2)
    assert decision["reason"].startswith("The job starts with 2 of 4 nodes.")
    refusal = plan_job(gateway, nodes=4, elastic=sizes | {"step": 0}, checkpoint=checkpoint).document
    assert refusal["errors"][0]["field"] == "elastic.step"


def store_past_jobs(gateway_with_team: Gateway) -> None:
    for number in range(5):
        ran = {"started_at": ago(minutes=60), "ended_at": ago(minutes=60 - 10 * (number + 1))}
        ended_job = a_job(20 + number, state="SUCCEEDED", **ran)
        store(gateway_with_team.fakes.ledger, ended_job.replace(spec=ended_job.spec.replace(team="nlp")))


def test_pending_job_shows_its_position_and_estimated_start(gateway_with_team: Gateway) -> None:
    store_nodes(gateway_with_team)
    store_past_jobs(gateway_with_team)
    first = submit_job(gateway_with_team, key="1", nodes=2).document["jobId"]
    second = submit_job(gateway_with_team, key="2", nodes=2).document["jobId"]

    positions = [gateway_with_team.get(f"/v1/jobs/{job_id}").document["queue"] for job_id in (first, second)]

    assert [position["position"] for position in positions] == [1, 2]
    now = gateway_with_team.fakes.clock.now()
    starts = [datetime.fromisoformat(position["estimate"]["startsAt"]) - now for position in positions]
    assert starts == [timedelta(0), timedelta(minutes=30)]
    assert (
        positions[1]["estimate"]["earliestAt"]
        < positions[1]["estimate"]["startsAt"]
        < positions[1]["estimate"]["latestAt"]
    )
    assert positions[1]["estimate"]["samples"] == 5


def test_estimated_start_follows_the_required_network_level(gateway_with_team: Gateway) -> None:
    layers = [("top", "middle", leaf) for leaf in ("left", "left", "right")]
    nodes = (
        a_fleet_node(number, accelerators_in_use=0, network_layers=layer)
        for number, layer in enumerate(layers, start=1)
    )
    store(gateway_with_team.fakes.ledger, *nodes)
    for number in range(5):
        ran = {"started_at": ago(minutes=60), "ended_at": ago(minutes=30)}
        ended_job = a_job(20 + number, state="SUCCEEDED", **ran)
        store(gateway_with_team.fakes.ledger, ended_job.replace(spec=ended_job.spec.replace(team="nlp")))
    network = {"requiredLevel": "layer-3"}
    job_id = submit_job(gateway_with_team, key="1", nodes=2, network=network).document["jobId"]
    running = an_attempt(
        job_id="job-1", team="vision", accelerators=8, node_names=("hyperpod-i-1",), admitted_at=ago(minutes=10)
    )

    def starts_in() -> timedelta:
        estimate = gateway_with_team.get(f"/v1/jobs/{job_id}").document["queue"]["estimate"]
        return datetime.fromisoformat(estimate["startsAt"]) - gateway_with_team.fakes.clock.now()

    assert starts_in() == timedelta(0)
    name = next(node.node_name for node in [a_fleet_node(1)])
    charge = quota_rows.charge_row(running.replace(node_names=(name,), cluster=a_fleet_node(1).life.cluster))
    gateway_with_team.fakes.ledger.commit(Put(charge))
    assert starts_in() == timedelta(minutes=20)


def store_unreadable_charge(gateway_with_team: Gateway) -> None:
    row = quota_rows.charge_row(an_attempt(job_id="job-new", team="nlp"))
    gateway_with_team.fakes.ledger.commit(Put(replace(row, doc={**row.doc, "accelerators": "of a newer release"})))


def test_unreadable_charge_makes_use_of_teams_lower_bound(gateway_with_team: Gateway) -> None:
    store_charge(gateway_with_team, "job-1", "nlp", 8)
    store_unreadable_charge(gateway_with_team)

    teams = gateway_with_team.get("/v1/teams").document
    status = gateway_with_team.get("/v1/status").document

    assert (teams["unreadableCharges"], teams["isLowerBound"], status["unreadableCharges"]) == (1, True, 1)
    assert [team["running"] for team in (*teams["items"], *status["teams"])] == [1, 1]
    assert status["health"] == "CRITICAL"
    assert "1 charge cannot be read: no job starts, and the use of teams is a lower bound" in status["reasons"]


def test_unreadable_charge_leaves_queued_job_without_estimate(gateway_with_team: Gateway) -> None:
    store_nodes(gateway_with_team)
    store_past_jobs(gateway_with_team)
    job_id = submit_job(gateway_with_team).document["jobId"]
    store_unreadable_charge(gateway_with_team)

    queue = gateway_with_team.get(f"/v1/jobs/{job_id}").document["queue"]
    plan = plan_job(gateway_with_team).document

    assert queue == {"position": 1, "estimate": None}
    assert plan["decision"]["action"] == "WAIT"
    assert plan["decision"]["reason"].startswith("1 charge cannot be read")


def test_unreadable_rental_lets_planned_job_wait(gateway_with_team: Gateway) -> None:
    store_nodes(gateway_with_team)
    allocation, rental = quota_rows.rental_allocation_row(a_rental(), 0), job_rows.rental_row(a_rental(), 0)
    unreadable_rental = replace(rental, doc={**rental.doc, "nodes": "of a newer release"})
    gateway_with_team.fakes.ledger.commit(Put(allocation), Put(unreadable_rental))

    decision = plan_job(gateway_with_team).document["decision"]

    assert decision["action"] == "WAIT"
    assert decision["reason"] == "1 open rental cannot be read, so scheduling cycles fail. No job starts."


def test_position_is_shown_without_an_estimate_at_first(gateway_with_team: Gateway) -> None:
    job_id = submit_job(gateway_with_team).document["jobId"]

    assert gateway_with_team.get(f"/v1/jobs/{job_id}").document["queue"] == {"position": 1, "estimate": None}
    gateway_with_team.post(f"/v1/jobs/{job_id}/cancel", {}, caller=session_arn("Nlp"))
    assert gateway_with_team.get(f"/v1/jobs/{job_id}").document["queue"] is None


# ---------------------------------------------------------------- removing a team

REMOVAL_ROUTE = "/v1/teams/nlp?reason=Merged."
IF_UNCHANGED = {"If-Match": '"1"'}


def test_empty_team_is_removed_once(gateway_with_team: Gateway) -> None:
    first = gateway_with_team.call("DELETE", REMOVAL_ROUTE, headers=IF_UNCHANGED)
    repeated_answer = gateway_with_team.call("DELETE", REMOVAL_ROUTE, headers=IF_UNCHANGED)

    assert (first.status, first.document) == (200, {"team": "nlp", "wasThere": True})
    assert (repeated_answer.status, repeated_answer.document) == (200, {"team": "nlp", "wasThere": False})
    assert gateway_with_team.get(TEAM).status == 404


@pytest.mark.parametrize(
    ("target", "headers", "status", "code"),
    [
        (REMOVAL_ROUTE, {}, 428, "PRECONDITION_MISSING"),
        (REMOVAL_ROUTE, {"If-Match": '"7"'}, 412, "STALE_VERSION"),
        ("/v1/teams/nlp", IF_UNCHANGED, 400, "VALIDATION_FAILED"),
    ],
)
def test_removal_of_a_team_needs_an_etag_and_a_reason(
    gateway_with_team: Gateway, target: str, headers: dict[str, str], status: int, code: str
) -> None:
    answer = gateway_with_team.call("DELETE", target, headers=headers)

    assert (answer.status, answer.document["code"]) == (status, code)
    assert gateway_with_team.get(TEAM).status == 200


@pytest.mark.parametrize("state", ["waits", "is held back"])
def test_team_with_jobs_is_not_removed(gateway_with_team: Gateway, state: str) -> None:
    job_id = submit_job(gateway_with_team).document["jobId"]
    if state == "is held back":
        gateway_with_team.post(f"/v1/jobs/{job_id}/suspend", {"reason": "x"}, caller=session_arn("Nlp"), key="k2")

    answer = gateway_with_team.call("DELETE", REMOVAL_ROUTE, headers=IF_UNCHANGED)

    assert (answer.status, answer.document["code"]) == (409, "TEAM_IN_USE")
    assert job_id in answer.document["detail"]
    gateway_with_team.post(f"/v1/jobs/{job_id}/cancel", {"reason": "x"}, caller=session_arn("Nlp"), key="k3")
    assert gateway_with_team.call("DELETE", REMOVAL_ROUTE, headers=IF_UNCHANGED).status == 200


def test_team_with_nodes_is_not_removed(gateway_with_team: Gateway) -> None:
    running_attempt = an_attempt(team="nlp")
    gateway_with_team.fakes.ledger.commit(Put(quota_rows.charge_row(running_attempt)))

    answer = gateway_with_team.call("DELETE", REMOVAL_ROUTE, headers=IF_UNCHANGED)

    assert answer.document["detail"] == "Team nlp cannot be removed: job-1 still holds quota."


def test_team_with_borrowed_quota_is_not_removed(gateway_with_team: Gateway) -> None:
    vision = {"name": "vision", "namespace": "vision", "serviceAccount": "v", "members": []}
    queue = {"cohort": "research", "groups": [{"ml.p5.48xlarge": {"nvidia.com/gpu": 0}}]}
    body = {"team": a_team()["team"] | vision | {"queue": queue}, "reason": "x"}
    assert gateway_with_team.call("PUT", "/v1/teams/vision/quota", body, headers=IF_NEW).status == 200
    use = {"ml.p5.48xlarge": {"nvidia.com/gpu": 16}}
    running_attempt = an_attempt(team="vision", instance_type="ml.p5.48xlarge", quota_use=use)
    gateway_with_team.fakes.ledger.commit(Put(quota_rows.charge_row(running_attempt)))

    answer = gateway_with_team.call("DELETE", REMOVAL_ROUTE, headers=IF_UNCHANGED)

    assert answer.document["detail"] == (
        "Team nlp cannot be removed: other teams use 16 nvidia.com/gpu of ml.p5.48xlarge of its quota."
    )


def test_job_mounts_only_the_claims_that_its_team_allows(gateway: Gateway) -> None:
    team = a_team(allowed={"claims": [{"name": "data"}], "maxScratchGib": 10})
    assert gateway.call("PUT", TEAM, team, headers=IF_NEW).status == 200
    image: dict[str, Any] = {"image": "registry/nlp/a:1", "team": "nlp"}
    allowed: dict[str, Any] = {
        "volumes": [{"claim": "data", "mountPath": "/data"}],
        "scratch": [{"mountPath": "/s", "sizeGib": 10}],
    }
    refused_claims: dict[str, Any] = {
        "volumes": [{"claim": "other", "mountPath": "/data"}],
        "scratch": [{"mountPath": "/s", "sizeGib": 11}],
    }

    accepted = submit_job(gateway, **image, **allowed)
    answer = submit_job(gateway, key="key-2", **image, **refused_claims)
    document = gateway.get(f"/v1/jobs/{accepted.document['jobId']}", caller=session_arn("Nlp")).document

    assert (accepted.status, answer.status) == (202, 400)
    assert document["volumes"] == [{"claim": "data", "mountPath": "/data", "subPath": "", "readOnly": True}]
    assert [error["field"] for error in answer.document["errors"]] == ["volumes.0.claim", "scratch"]
    assert "data (read-only)" in answer.document["errors"][0]["message"]


def test_misspelt_pod_rule_is_refused_with_its_path(gateway: Gateway) -> None:
    answer = gateway.call("PUT", TEAM, a_team(allowed={"claims": [{"name": "data", "mode": "rw"}]}), headers=IF_NEW)

    assert answer.status == 400
    assert [error["field"] for error in answer.document["errors"]] == ["team.allowed.claims[0].mode"]
