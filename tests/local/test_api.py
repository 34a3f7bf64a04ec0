"""The deployed API with IAM: the rights of each caller, and problem documents for every refusal."""

import json
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import botocore.auth
import pytest
from botocore.config import Config
from playwright.sync_api import expect

from evenkeel_cli.console.server import ConsoleServer
from evenkeel_client import context
from evenkeel_client.client import ApiClient
from evenkeel_client.errors import ApiRequestFailed
from evenkeel_local.data_centre import DataCentre
from evenkeel_local.identities import Credentials, make_user
from tests import browser
from tests.local.killed_functions import answered_despite_kills, changes_with, without_pauses
from tests.unit.api.gateway import template_routes
from tests.waiting import until

POLICIES = ("Viewer", "Submitter", "Operator", "Admin")
SMALL: dict[str, Any] = {
    "name": "small",
    "image": "registry/trainer:1",
    "command": ["true"],
    "nodes": 1,
}

# The least policy that each changing route needs; every read but the policy's is a viewer's.
NEEDS = {
    ("POST", "/v1/jobs"): "Submitter",
    ("POST", "/v1/jobs/plan"): "Submitter",
    ("POST", "/v1/jobs/{jobId}/cancel"): "Submitter",
    ("POST", "/v1/jobs/{jobId}/suspend"): "Submitter",
    ("POST", "/v1/jobs/{jobId}/resume"): "Submitter",
    ("PATCH", "/v1/jobs/{jobId}"): "Submitter",
    ("POST", "/v1/clusters/{cluster}/automation/hold"): "Operator",
    ("POST", "/v1/clusters/{cluster}/automation/release"): "Operator",
    ("POST", "/v1/faults"): "Operator",
    ("POST", "/v1/incidents/{incidentId}/approve"): "Operator",
    ("POST", "/v1/incidents/{incidentId}/decline"): "Operator",
    ("POST", "/v1/incidents/{incidentId}/acknowledge"): "Operator",
    ("POST", "/v1/nodes/{nodeId}/cordon"): "Operator",
    ("POST", "/v1/nodes/{nodeId}/uncordon"): "Operator",
    ("POST", "/v1/nodes/{nodeId}/replace"): "Operator",
    ("GET", "/v1/clusters/{cluster}/policy"): "Admin",
    ("POST", "/v1/clusters/{cluster}/policy"): "Admin",
    ("POST", "/v1/clusters/{cluster}/policy/test"): "Admin",
    ("PUT", "/v1/clusters/{cluster}/quotas"): "Admin",
    ("PUT", "/v1/teams/{team}/quota"): "Admin",
    ("DELETE", "/v1/teams/{team}"): "Admin",
}


@dataclass(frozen=True)
class People:
    """A client for each of the stack's policies."""

    clients: dict[str, ApiClient]

    def __getitem__(self, name: str) -> ApiClient:
        return self.clients[name]


@pytest.fixture(scope="module")
def people(data_centre: DataCentre) -> People:
    """Users with exactly one of the stack's managed policies each."""
    return People({name: _holder_of(data_centre, name) for name in POLICIES})


def _holder_of(centre: DataCentre, name: str) -> ApiClient:
    """Return the client of a new user with one of the stack's managed policies."""
    iam = centre.deployer.client("iam")
    arn = centre.outputs[f"Evenkeel{name}Policy"]
    version = iam.get_policy(PolicyArn=arn)["Policy"]["DefaultVersionId"]
    document = iam.get_policy_version(PolicyArn=arn, VersionId=version)["PolicyVersion"]["Document"]
    user = make_user(centre.deployer, f"person-{name.lower()}", document["Statement"])
    return ApiClient(_context(centre, user))


def _context(centre: DataCentre, user: Credentials) -> context.ApiContext:
    document = centre.context() | {
        "credentials": {"accessKeyId": user.access_key_id, "secretAccessKey": user.secret_access_key}
    }
    return context.read_context(document, "test", {})


def problem_code_of(call: Callable[[], Any]) -> str:
    """Return the problem code of a call; `OK` if the call succeeds."""
    try:
        call()
    except ApiRequestFailed as problem:
        return problem.code
    return "OK"


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("route", template_routes(), ids=lambda route: f"{route.method} {route.path}")
def test_caller_policy_allows_only_its_routes(route: Any, name: str, people: People, data_centre: DataCentre) -> None:
    path = route.path.removeprefix("/v1").replace("{cluster}", str(data_centre.context()["name"]))
    path = path.replace("{jobId}", "job-0000000404").replace("{incidentId}", "inc-0000000404")
    path = (
        path.replace("{team}", "no-such-team")
        .replace("{decisionId}", "dec-0000000404")
        .replace("{nodeId}", "i-00000000000000404")
    )
    client = people[name]

    # No request here changes anything: ids do not exist, and bodies lack required fields.
    body = {"reason": 7}
    code = problem_code_of(
        lambda: client.get(path) if route.method == "GET" else _change(client, route.method, path, body)
    )

    may = POLICIES.index(name) >= POLICIES.index(NEEDS.get((route.method, route.path), "Viewer"))
    if may:
        assert code in {"OK", "NOT_FOUND", "VALIDATION_FAILED"}
    else:
        assert code in {"NOT_ALLOWED", "HTTP_403"}


def _change(client: ApiClient, method: str, path: str, body: dict[str, Any]) -> Any:
    return client.post(path, body) if method == "POST" else client.change(method, path, body, version=1)


def test_detector_role_may_report_faults_but_read_nothing(data_centre: DataCentre, people: People) -> None:
    detector = _holder_of(data_centre, "Detector")
    node = until(lambda: people["Viewer"].get("/nodes")["items"], "nodes in the list")[0]
    nobody = {"instanceId": "i-00000000000000404", "code": "no-such-fault", "observedAt": "2026-11-03T10:15:00Z"}

    reported = problem_code_of(lambda: detector.post("/faults", {"faults": [nobody]}))
    line = {"instanceId": node["instanceId"], "line": "all is well", "observedAt": f"{datetime.now(UTC):%FT%TZ}"}
    document = detector.post("/faults", {"faults": [line]})

    assert (reported, document["ignored"]) == ("VALIDATION_FAILED", 1)
    assert problem_code_of(lambda: detector.get("/status")) in {"NOT_ALLOWED", "HTTP_403"}
    assert problem_code_of(lambda: detector.post("/jobs", SMALL)) in {"NOT_ALLOWED", "HTTP_403"}


def test_unsigned_request_is_refused(data_centre: DataCentre) -> None:
    import urllib3

    answer = urllib3.PoolManager().request("GET", f"{data_centre.api_url}/status", retries=False)

    assert (answer.status, answer.headers["Content-Type"]) == (403, "application/problem+json")
    assert answer.json()["code"] == "NOT_SIGNED"


def test_wrong_signature_is_refused(data_centre: DataCentre) -> None:
    forged = replace(data_centre.operator, secret_access_key="another-secret")

    assert problem_code_of(lambda: ApiClient(_context(data_centre, forged)).get("/status")) != "OK"


def test_unknown_key_is_refused(data_centre: DataCentre) -> None:
    forged = replace(data_centre.operator, access_key_id="AKIANOBODY0000000000")

    assert problem_code_of(lambda: ApiClient(_context(data_centre, forged)).get("/status")) != "OK"


@pytest.mark.parametrize("minutes", [-10, 10])
def test_signature_ten_minutes_off_is_refused(minutes: int, people: People, monkeypatch: pytest.MonkeyPatch) -> None:
    signed_at = datetime.now(UTC) + timedelta(minutes=minutes)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: signed_at)

    answer = people["Viewer"].forward("GET", "/status", None, {})

    problem = json.loads(answer.content)
    assert (answer.status, answer.headers["Content-Type"]) == (403, "application/problem+json")
    assert (problem["code"], problem["type"]) == ("BAD_SIGNATURE", "urn:evenkeel:problem:bad-signature")
    assert problem["hint"] == "Look at the secret key, the region and the clock."


def test_expired_session_token_is_refused(data_centre: DataCentre, monkeypatch: pytest.MonkeyPatch) -> None:
    # AWS gives a session at least 900 s, so only the engine accepts a length that ends at once.
    unchecked = Config(parameter_validation=False, proxies={})
    session = data_centre.operator.client("sts", config=unchecked).get_session_token(DurationSeconds=-1)["Credentials"]
    for name, value in {
        "AWS_ACCESS_KEY_ID": session["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": session["SecretAccessKey"],
        "AWS_SESSION_TOKEN": session["SessionToken"],
    }.items():
        monkeypatch.setenv(name, value)
    document = {name: value for name, value in data_centre.context().items() if name != "credentials"}
    client = ApiClient(context.read_context(document, "test", {}))

    answer = client.forward("GET", "/status", None, {})

    problem = json.loads(answer.content)
    assert (answer.status, answer.headers["Content-Type"]) == (403, "application/problem+json")
    assert (problem["code"], problem["type"]) == ("EXPIRED_CREDENTIALS", "urn:evenkeel:problem:expired-credentials")
    assert problem_code_of(lambda: client.get("/status")) == "EXPIRED_CREDENTIALS"


def test_job_is_submitted_once_shown_and_cancelled(people: People) -> None:
    submitter = people["Submitter"]
    key = f"key-{secrets.token_hex(4)}"
    long = {**SMALL, "command": ["sleep", "120"]}  # a short job may succeed before it is cancelled

    jobs = [submitter.post("/jobs", long, key=key) for _ in range(2)]
    reused = problem_code_of(lambda: submitter.post("/jobs", {**long, "nodes": 2}, key=key))
    job_id = jobs[0]["jobId"]
    shown = people["Viewer"].get(f"/jobs/{job_id}")
    cancelled = submitter.post(f"/jobs/{job_id}/cancel", {"reason": "seen enough"})
    listed = until(
        lambda: [job for job in submitter.get("/jobs", state="CANCELLED")["items"] if job["jobId"] == job_id],
        "the cancelled job in its list",
    )

    assert jobs[1]["jobId"] == job_id
    assert reused == "IDEMPOTENCY_KEY_REUSED"
    assert shown["submittedBy"] == "user/person-submitter"
    assert cancelled["state"] in ("CANCELLED", "STOPPING")  # it may already be admitted
    assert "seen enough" in listed[0]["reason"]


def test_retried_request_to_a_killed_function_takes_effect_once(people: People, data_centre: DataCentre) -> None:
    """Each change is sent with one key until it is answered. It takes effect once."""
    operator, fleet = without_pauses(people["Operator"]), data_centre.context()["name"]

    def answered(send: Callable[[], Any]) -> Any:
        answer, _failures, killed = answered_despite_kills(data_centre, send)
        assert killed, "no function was killed during the request: the test proves nothing"
        return answer

    node = until(lambda: operator.get("/nodes")["items"], "a node", patience_seconds=60)[0]["instanceId"]
    run, path = secrets.token_hex(4), f"/clusters/{fleet}/automation"
    acts = (("hold", {"reason": f"killed {run}", "forSeconds": 600}), ("release", {"reason": f"over {run}"}))
    for act, body in acts:
        answered(partial(operator.post, f"{path}/{act}", body, key=f"{act}-{run}"))
    for act in ("cordon", "uncordon"):
        answered(partial(operator.post, f"/nodes/{node}/{act}", {"reason": f"{act} {run}"}, key=f"{act}-{run}"))
    job = {**SMALL, "name": f"killed-{run}", "command": ["sleep", "600"]}
    submitted = answered(partial(operator.post, "/jobs", job, key=f"job-{run}"))
    path_of_job, reason = f"/jobs/{submitted['jobId']}", {"reason": f"stop {run}"}
    answered(partial(operator.post, f"{path_of_job}/cancel", reason, key=f"cancel-{run}"))

    recorded = [act for act in operator.get("/audit", pageSize=200)["items"] if run in act["text"]]
    assert len(recorded) == 4, recorded
    assert operator.get(path)["isHeld"] is False
    assert operator.get(f"/nodes/{node}")["cordon"] is None
    named = [
        named_job for named_job in operator.get("/jobs", pageSize=200)["items"] if named_job["name"] == job["name"]
    ]
    assert [named_job["jobId"] for named_job in named] == [submitted["jobId"]]
    until(
        lambda: operator.get(path_of_job)["state"] == "CANCELLED", "the end of the cancelled job", patience_seconds=90
    )
    entries = operator.get(f"{path_of_job}/timeline")["entries"]
    assert changes_with(run, entries) == ["cancelled"]


def test_malformed_job_names_its_field(people: People) -> None:
    with pytest.raises(ApiRequestFailed) as caught:
        people["Submitter"].post("/jobs", {**SMALL, "nodes": 0})

    assert (caught.value.code, caught.value.text.partition(":")[0]) == ("VALIDATION_FAILED", "nodes")


def test_hold_is_visible_to_every_role_and_released(people: People, data_centre: DataCentre) -> None:
    path = f"/clusters/{data_centre.context()['name']}/automation"

    people["Operator"].post(f"{path}/hold", {"reason": "a test", "forSeconds": 60})
    held = people["Viewer"].get(path)
    people["Operator"].post(f"{path}/release", {})
    after = people["Viewer"].get("/status")

    assert (held["isHeld"], held["hold"]["by"]) == (True, "user/person-operator")
    assert after["automation"]["isHeld"] is False


def test_overview_shows_the_whole_fleet(people: People) -> None:
    counts = until(
        lambda: (counts := people["Viewer"].get("/overview")["counts"]) and counts["nodes"]["total"] and counts,
        "nodes in the overview",
    )
    status = people["Viewer"].get("/status")

    assert counts["nodes"]["pools"][0]["kind"] == "committed"
    assert counts["gpus"]["total"] == 8 * counts["nodes"]["total"]
    assert status["nodes"]["total"] == counts["nodes"]["total"]


def test_fleet_without_metrics_shows_its_utilization_as_unknown(people: People) -> None:
    page = until(
        lambda: (document := people["Viewer"].get("/utilization"))["items"] and document, "nodes in the overview"
    )

    assert page["totals"]["gpus"] == 8 * page["totals"]["nodes"]
    assert page["totals"]["utilization"]["gpu"]["average"] is None
    assert page["totals"]["utilization"]["gpu"]["unknownNodes"] == page["totals"]["nodes"]
    assert all("has no metrics of the nodes" in source["problem"] for source in page["sources"])


@pytest.mark.parametrize(
    ("words", "exit_code"),
    [
        (["status", "-o", "json"], 0),
        (["jobs", "show", "job-0000000404"], 4),
        (["jobs", "submit", "--name", "x", "--image", "i:1", "--", "true"], 6),
        (["automation", "hold", "--yes", "--reason", "x"], 6),
    ],
)
def test_each_command_of_a_viewer_has_the_expected_exit_code(
    words: list[str], exit_code: int, people: People, data_centre: DataCentre, tmp_path: Path
) -> None:
    key = people["Viewer"].context.key
    assert key is not None
    document = data_centre.context() | {
        "credentials": {"accessKeyId": key.access_key_id, "secretAccessKey": key.secret_access_key}
    }
    (tmp_path / "context.json").write_text(json.dumps(document), encoding="utf-8")
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "EVENKEEL_CONTEXT": str(tmp_path / "context.json")}

    done = subprocess.run(
        [sys.executable, "-m", "evenkeel_cli.main", *words],
        env=environment,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
        check=False,
    )

    assert done.returncode == exit_code, done.stderr
    assert "Traceback" not in done.stderr


def test_viewer_can_read_but_change_nothing_in_the_console(people: People) -> None:
    server = ConsoleServer(people["Viewer"])
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with browser.running() as chromium:
        page = chromium.new_page()
        page.goto(server.link)
        expect(page.locator(".square").first).to_be_visible(timeout=30_000)
        page.get_by_role("button", name="Hold automation…").click()
        dialog = page.get_by_role("dialog")

        expect(dialog.get_by_role("alert")).to_contain_text("NOT_ALLOWED", timeout=30_000)
    server.shutdown()
    server.server_close()
