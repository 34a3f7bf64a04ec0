"""Requests, exit codes and machine-readable output of the commands."""

import json
import os
import re
import resource
import shlex
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from evenkeel.domain.capacity.pools import Market
from evenkeel.domain.external.unmanaged_workloads import Consent, PodRecreation, UnmanagedPod, unmanaged_workloads
from evenkeel.domain.jobs.job import PlacementNote
from evenkeel.domain.renting.rental import Rental, RentalOffer, RentalState, end_rental
from evenkeel.domain.renting.serving import ServingState
from evenkeel.domain.values import rfc3339
from evenkeel.ports import Put, Row
from evenkeel.services.storage import fleet_rows, job_rows
from evenkeel_cli.commands.automation import parse_duration
from evenkeel_cli.commands.following import new_log_text
from evenkeel_cli.main import NOUNS
from evenkeel_cli.render import age_text, duration
from evenkeel_client.errors import CommandFailed
from tests.fakes.cluster import CLUSTER
from tests.fakes.system import A_MOMENT
from tests.unit.api.gateway import ROOT, ApiResponse, Gateway
from tests.unit.api.seeds import ASKS, a_fleet_node, a_job, ago, an_attempt, an_incident, store_fleet_counts, stored
from tests.unit.cli.conftest import CliFixture, CliResult
from tests.unit.cli.recovery_fixture import recovery_at_work
from tests.unit.scheduling.test_replicas import CHAT
from tests.unit.scheduling.test_replicas import a_rental as serving_rental

A_JOB: dict[str, Any] = {"name": "llama", "image": "registry/trainer:1", "command": ["python", "train.py"], "nodes": 2}


def submitted_job(served: CliFixture) -> dict[str, Any]:
    document: dict[str, Any] = served.gateway.get("/v1/jobs/job-0000000001").document
    return document


# ---------------------------------------------------------------- submit


def test_a_job_is_submitted_from_a_file(served: CliFixture) -> None:
    (served.folder / "job.json").write_text(json.dumps(A_JOB), encoding="utf-8")

    result = served.run("jobs", "submit", "job.json", terminal=True)

    assert result.out == "○ job-0000000001  pending, 2 nodes × 8 GPUs\nnext  evenkeel jobs wait job-0000000001\n"
    assert submitted_job(served)["command"] == ["python", "train.py"]


def test_options_override_the_file_and_a_command_overrides_both(served: CliFixture) -> None:
    body = json.dumps({**A_JOB, "args": ["--x"], "env": {"A": "1"}})
    words = ["--nodes", "3", "--checkpoint-uri", "s3://bucket/p", "--env", "B=2=3", "-", "--", "python", "-m", "other"]

    result = served.run("jobs", "submit", "-o", "name", *words, stdin=body)
    assert result.err == ""

    job = submitted_job(served)
    assert result.out == "job-0000000001\n"
    assert (job["nodes"], job["command"], job["args"]) == (3, ["python", "-m", "other"], [])
    assert (job["envNames"], job["checkpoint"]["uri"]) == (["A", "B"], "s3://bucket/p")


def test_options_add_folders_and_secrets_to_the_file(served: CliFixture) -> None:
    body = json.dumps({**A_JOB, "volumes": [{"claim": "base", "mountPath": "/base"}]})
    options = "--volume data:/data --volume data/out:/out:rw --scratch /scratch:100 --image-pull-secret registry"

    served.run("jobs", "plan", *options.split(), "--run-as-user", "2000", "-", stdin=body)

    sent = json.loads(served.bodies[-1])
    assert sent["volumes"] == [
        {"claim": "base", "mountPath": "/base"},
        {"claim": "data", "mountPath": "/data", "readOnly": True},
        {"claim": "data", "mountPath": "/out", "readOnly": False, "subPath": "out"},
    ]
    assert (sent["scratch"], sent["imagePullSecrets"]) == ([{"mountPath": "/scratch", "sizeGib": 100}], ["registry"])
    assert sent["securityContext"] == {"runAsUser": 2000}


@pytest.mark.parametrize("words", ["--volume data", "--volume data:/data:rx", "--volume :/data", "--scratch /a:big"])
def test_folder_option_that_cannot_be_read_is_a_usage_error(served: CliFixture, words: str) -> None:
    result = served.run("jobs", "submit", *words.split(), "-", stdin=json.dumps(A_JOB))

    assert result.exit_code == 2
    assert words in result.err


@pytest.mark.parametrize("verb", ["submit", "plan"])
def test_every_missing_field_of_a_job_is_named_at_once(served: CliFixture, verb: str) -> None:
    result = served.run("jobs", verb, "-", stdin="{}")

    assert result.exit_code == 2
    assert result.err.splitlines() == [
        "✖ name: is required [VALIDATION_FAILED]",
        "  image: missing; required unless a job type of the site fills it",
        "  command: missing; required unless a job type of the site fills it",
        "  evenkeel jobs init writes a whole job file.",
    ]


def test_plan_ends_with_the_command_that_submits_the_same_job(served: CliFixture) -> None:
    (served.folder / "my job.json").write_text(json.dumps(A_JOB), encoding="utf-8")

    result = served.run("jobs", "plan", "my job.json", "--nodes", "1", "--env", "A=1 2", "--", "python", "x.py")

    command = shlex.split(result.out.splitlines()[-1].partition("evenkeel ")[2])
    planned, _ = served.bodies[-1], served.run(*command)
    assert command[:3] == ["jobs", "submit", "my job.json"]
    assert served.bodies[-1] == planned


FOLDER, OTHER = "file:///data/llama", "file:///data/other"


@pytest.mark.parametrize("verb", ["submit", "plan"])
@pytest.mark.parametrize(
    ("options", "checkpoint"),
    [
        (["--checkpoint-claim", "fast"], {"uri": FOLDER, "claim": "fast"}),
        (["--checkpoint-uri", OTHER], {"uri": OTHER, "claim": "slow"}),
        (["--checkpoint-uri", OTHER, "--checkpoint-claim", ""], {"uri": OTHER, "claim": ""}),
        (["--checkpoint-uri", "s3://bucket/p"], {"uri": "s3://bucket/p", "claim": ""}),
        (["--checkpoint-uri", ""], {"uri": FOLDER, "claim": "slow"}),
        ([], {"uri": FOLDER, "claim": "slow"}),
    ],
)
def test_options_replace_only_the_named_checkpoint_settings(
    served: CliFixture, verb: str, options: list[str], checkpoint: dict[str, str]
) -> None:
    body = json.dumps({**A_JOB, "checkpoint": {"uri": FOLDER, "claim": "slow"}})

    served.run("jobs", verb, *options, "-", stdin=body)

    assert json.loads(served.bodies[-1])["checkpoint"] == checkpoint


@pytest.mark.parametrize(
    "options", [["--env", "A=b"], ["--checkpoint-uri", OTHER], ["--min-nodes", "1"]], ids=lambda options: options[0]
)
def test_options_fill_empty_sections_and_refuse_non_objects(served: CliFixture, options: list[str]) -> None:
    def submitted(value: object) -> CliResult:
        body = json.dumps({**A_JOB, "env": value, "checkpoint": value, "elastic": value})
        return served.run("jobs", "plan", *options, "-", stdin=body)

    empty, wrong = submitted(None), submitted(["x"])

    assert "Traceback" not in empty.err
    assert (wrong.exit_code, 'must be a JSON object in the job\'s file, not ["x"]. [NOT_JSON]' in wrong.err) == (
        2,
        True,
    )


def test_elastic_job_shows_its_allowed_sizes(served: CliFixture) -> None:
    words = ["--nodes", "2", "--min-nodes", "1", "--max-nodes", "4", "--checkpoint-uri", "s3://bucket/p", "-"]

    result = served.run("jobs", "submit", *words, stdin=json.dumps(A_JOB), terminal=True)

    assert "2 nodes, elastic 1 to 4 × 8 GPUs" in result.out
    assert submitted_job(served)["elastic"] == {
        "minNodes": 1,
        "maxNodes": 4,
        "step": None,
        "sizes": [],
        "throughput": [],
    }
    for verb in ("submit", "plan"):
        refused = served.run("jobs", verb, "--min-nodes", "3", *words[:2], "-", stdin=json.dumps(A_JOB))
        assert "elastic.maxNodes" in refused.err


def test_deadline_is_submitted_and_shown(served: CliFixture) -> None:
    result = served.run("jobs", "submit", "--deadline", "2030-01-02T10:15:00+01:00", "-", stdin=json.dumps(A_JOB))
    assert result.err == ""

    assert submitted_job(served)["deadline"] == "2030-01-02T09:15:00.000000Z"
    assert "deadline" in served.run("jobs", "show", "@latest").out
    planned = served.run("jobs", "plan", "--deadline", "soon", "-", stdin=json.dumps(A_JOB))
    assert (planned.exit_code, "deadline: " in planned.err) == (2, True)


@pytest.mark.parametrize("placement", [{}, {"placement": None}], ids=["left out", "none"])
def test_plan_with_kueue_admission_shows_the_local_queue(served: CliFixture, placement: dict[str, None]) -> None:
    served.gateway = Gateway(environment={"EVENKEEL_ADMISSION": "kueue"})
    document = served.gateway.post("/v1/jobs/plan", A_JOB).document
    answer = {name: value for name, value in document.items() if name != "placement"} | placement
    served.next_answers = [ApiResponse(200, {}, json.dumps(answer))]

    result = served.run("jobs", "plan", "-", stdin=json.dumps(A_JOB), terminal=True)

    assert (result.exit_code, result.err) == (0, "")
    assert result.out == (
        "● would be submitted to Kueue, team default\n"
        "  Kueue admits jobs here: the job goes to LocalQueue default.\n"
        "next  evenkeel jobs submit -\n"
    )


def test_every_submission_has_a_fresh_key_unless_one_is_given(served: CliFixture) -> None:
    flags = ["--name", "x", "--image", "i:1", "--", "train"]
    served.run("jobs", "submit", *flags)
    served.run("jobs", "submit", *flags)
    given = [served.run("jobs", "submit", "--idempotency-key", "k1", "-o", "name", *flags).out for _ in range(2)]

    keys = [headers["Idempotency-Key"] for method, _, headers in served.requests if method == "POST"]
    assert len(set(keys[:2])) == 2
    assert given[0] == given[1]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["missing.json"], "NO_FILE"),
        (["broken.json"], "NOT_YAML"),
        (["list.json"], "NOT_A_JOB"),
        (["--env", "X", "--name", "x", "--", "train"], "USAGE"),
        (["--nodes", "0", "--name", "x", "--image", "i", "--", "train"], "VALIDATION_FAILED"),
        (["--name", "x", "--", "train"], "VALIDATION_FAILED"),
    ],
)
def test_a_job_that_cannot_be_submitted_exits_2(served: CliFixture, words: list[str], code: str) -> None:
    (served.folder / "broken.json").write_text("{", encoding="utf-8")
    (served.folder / "list.json").write_text("[]", encoding="utf-8")

    result = served.run("jobs", "submit", *words)

    assert (result.exit_code, result.out) == (2, "")
    assert f"[{code}]" in result.err
    assert "Traceback" not in result.err


# ---------------------------------------------------------------- wait, cancel, logs


@pytest.mark.parametrize(("state", "code"), [("SUCCEEDED", 0), ("FAILED", 3), ("CANCELLED", 3)])
def test_wait_command_exits_with_the_code_of_the_jobs_end(served: CliFixture, state: str, code: int) -> None:
    stored(served.gateway.fakes.ledger, a_job(1, state=state, reason="So it went."))

    result = served.run("jobs", "wait", "llama-1")

    assert result.exit_code == code
    assert result.out.endswith(f"{state.lower()}  So it went.\n")


def test_wait_past_the_timeout_exits_124(served: CliFixture) -> None:
    stored(served.gateway.fakes.ledger, a_job(1))

    result = served.run("jobs", "wait", "llama-1", "--timeout", "0")

    assert result.exit_code == 124
    assert "still pending" in result.err


def test_a_job_is_cancelled_with_a_reason(served: CliFixture) -> None:
    stored(served.gateway.fakes.ledger, a_job(1))

    result = served.run("jobs", "cancel", "llama-1", "--reason", "not needed")

    assert (result.exit_code, submitted_job(served)["state"]) == (0, "CANCELLED")
    assert "not needed" in submitted_job(served)["reason"]


def test_cancel_of_an_ended_job_exits_5(served: CliFixture) -> None:
    stored(served.gateway.fakes.ledger, a_job(1, state="FAILED"))

    result = served.run("jobs", "cancel", "llama-1")

    assert (result.exit_code, "[JOB_ENDED]" in result.err) == (5, True)


@pytest.mark.parametrize(
    ("earlier", "now", "new"),
    [
        ("", "a\n", "a\n"),
        ("a\n", "a\nb\n", "b\n"),
        ("a\nb\n", "b\nc\n", "c\n"),
        ("a\nb\n", "x\ny\n", "x\ny\n"),
        ("a\n", "a\n", ""),
        ("a\nb", "a\nbc\n", "c\n"),
    ],
)
def test_followed_log_prints_new_lines(earlier: str, now: str, new: str) -> None:
    assert new_log_text(earlier, now) == new


def test_unmanaged_workloads_have_their_own_list(served: CliFixture) -> None:
    pods = [
        UnmanagedPod(
            namespace="research",
            name=f"llama-{number}",
            uid=str(number),
            node_name=f"node-{number}",
            accelerators=8,
            kind="PyTorchJob",
            workload="llama",
            recreation=PodRecreation.BY_OWNER,
            consent=Consent.ALLOWED,
        )
        for number in (1, 2)
    ]
    (workload,) = unmanaged_workloads(CLUSTER, pods)
    row = Row(fleet_rows.unmanaged_workloads_key(CLUSTER), {"workloads": [workload.to_json()]})
    served.gateway.fakes.ledger.commit(Put(row))

    result = served.run("jobs", "ls", "--unmanaged")

    assert "PyTorchJob research/llama" in result.out
    assert "Evenkeel moves it as soon as its node is faulty" in result.out
    assert served.run("jobs", "ls", "--unmanaged", "-o", "name").out == "llama\n"


def test_node_shows_cpu_and_memory_or_unknown(served: CliFixture) -> None:
    stated = a_fleet_node(1, cpu_millis=192_000, cpu_millis_in_use=95_500, memory_mib=2_097_152)
    stored(served.gateway.fakes.ledger, stated, a_fleet_node(2))
    store_fleet_counts(served.gateway.fakes)

    page = served.run("nodes", "show", "i-00000000000000001").out
    assert "95.5 of 192 vCPU requested" in page
    assert "0 of 2048 GiB requested" in page
    assert served.run("nodes", "show", "i-00000000000000002").out.count(" unknown") == 2
    assert "95.5/192" in served.run("nodes", "ls", "-o", "wide").out
    assert "192 vCPU in the fleet  95.5 requested  96.5 free" in served.run("status", "-o", "wide").out
    assert "unknown on 1 node" in served.run("status", "-o", "wide").out


def test_node_list_shows_unmanaged_workloads(served: CliFixture) -> None:
    stored(served.gateway.fakes.ledger, a_fleet_node(1, unmanaged_workloads=("PyTorchJob research/llama",)))

    assert "PyTorchJob research/llama" in served.run("nodes", "ls", "-o", "wide").out
    assert "PyTorchJob research/llama" in served.run("nodes", "show", "i-00000000000000001").out


# ---------------------------------------------------------------- reads for programs


@pytest.mark.parametrize(
    ("words", "path"),
    [
        ("status", "/v1/overview"),
        ("jobs show llama-1", "/v1/jobs/job-0000000001"),
        ("jobs timeline llama-1", "/v1/jobs/job-0000000001/timeline"),
        ("incidents show @latest", "/v1/incidents/inc-0000000001"),
        ("incidents timeline @latest", "/v1/incidents/inc-0000000001/timeline"),
        ("nodes show i-00000000000000002", "/v1/nodes/i-00000000000000002"),
        ("why llama-1", "/v1/jobs/job-0000000001/why"),
        ("why @latest", "/v1/incidents/inc-0000000001/why"),
        ("why dec-0000000003", "/v1/decisions/dec-0000000003"),
        ("automation show", "/v1/clusters/laptop/automation"),
    ],
)
def test_json_output_is_the_api_answer(served: CliFixture, words: str, path: str) -> None:
    recovery_at_work(served.gateway)

    result = served.run(*words.split(), "-o", "json")

    assert json.loads(result.out) == served.gateway.get(path).document


@pytest.mark.parametrize("noun", ["jobs", "incidents", "nodes"])
def test_lists_have_all_output_formats(served: CliFixture, noun: str) -> None:
    recovery_at_work(served.gateway)
    document = json.loads(served.run(noun, "ls", "-o", "json").out)
    names = served.run(noun, "ls", "-o", "name").out.split()
    wide = served.run(noun, "ls", "-o", "wide").out.splitlines()
    key = {"jobs": "jobId", "incidents": "incidentId", "nodes": "instanceId"}[noun]

    assert [item[key] for item in document["items"]] == names
    assert len(wide) == len(names) + 1


def test_list_reads_all_pages(served: CliFixture) -> None:
    stored(served.gateway.fakes.ledger, *(a_job(n) for n in range(1, 251)))

    result = served.run("jobs", "ls", "--limit", "240", "-o", "name")

    assert result.out.split() == [f"job-{n:010d}" for n in range(250, 10, -1)]


MORE = "Listed the first 2 items. There may be more: --limit accepts up to 1000.\n"


@pytest.mark.parametrize("noun", ["jobs", "incidents", "nodes"])
@pytest.mark.parametrize("form", ["table", "wide", "json", "name"])
def test_truncated_list_is_reported(served: CliFixture, noun: str, form: str) -> None:
    for number in (1, 2, 3):
        stored(served.gateway.fakes.ledger, a_job(number), an_incident(number), a_fleet_node(number))

    cut, whole = (served.run(noun, "ls", "--limit", limit, "-o", form) for limit in ("2", "3"))

    assert (cut.err, whole.err) == (MORE, "")
    if form == "json":
        token = json.loads(cut.out)["nextPageToken"]
        rest = served.gateway.get(f"/v1/{noun}?nextPageToken={token}").document["items"]
        (missing,) = [item for item in json.loads(whole.out)["items"] if item not in json.loads(cut.out)["items"]]
        assert ([missing], json.loads(whole.out)["nextPageToken"]) == (rest, None)


@pytest.mark.parametrize(("state", "code"), [("RECOVERING", 20), ("RECOVERED", 0), ("WAITING_FOR_PERSON", 21)])
def test_status_check_sets_the_exit_code(served: CliFixture, state: str, code: int) -> None:
    stored(served.gateway.fakes.ledger, an_incident(1, state=state))
    store_fleet_counts(served.gateway.fakes)

    assert served.run("status", "--check").exit_code == code


def test_status_names_the_pending_approval(served: CliFixture) -> None:
    stored(served.gateway.fakes.ledger, an_incident(1, plan=ASKS))

    output = served.run("status", terminal=True).out

    assert "0 incidents working, 1 needs you" in output
    assert output.endswith("NEXT    evenkeel incidents approve inc-0000000001\n")


def test_status_reads_only_the_overview(served: CliFixture) -> None:
    served.run("status")

    assert [path for _, path, _ in served.requests] == ["/v1/overview"]


def test_status_marks_old_counts_with_their_age(served: CliFixture) -> None:
    stored(served.gateway.fakes.ledger, a_fleet_node(1))
    store_fleet_counts(served.gateway.fakes, minutes_ago=12)

    lines = served.run("status", terminal=True).out.splitlines()

    assert "COUNTED ▲ 12m ago: these numbers are not current" in lines


def test_status_shows_unchecked_jobs_as_not_checked_yet(served: CliFixture) -> None:
    stored(served.gateway.fakes.ledger, an_incident(1, plan=ASKS))

    assert "job   ○ not checked yet" in served.run("status", terminal=True).out


def test_unusable_policy_is_shown_with_the_policy_in_force(served: CliFixture) -> None:
    change = {"number": 3, "at": "2026-01-01T00:00:00Z", "by": "ana", "reason": "x", "changes": {"a": 1}}
    shown = {"hash": "h", "catalogueHash": "c", "policy": {"name": "default"}, "change": change}
    document = shown | {"refused": "change 3 by ana: a: there is no such field", "inForce": 2}
    served.next_answers.append(ApiResponse(200, {}, json.dumps(document)))

    output = served.run("policy", "show", terminal=True).out

    assert "change 3 is invalid, so change 2 is active:" in output
    assert "a: there is no such field" in output


# ---------------------------------------------------------------- finding things


def test_ids_names_and_unique_prefixes_find_a_job(served: CliFixture) -> None:
    stored(served.gateway.fakes.ledger, a_job(1), a_job(12))

    results = {
        typed: served.run("jobs", "show", typed, "-o", "json")
        for typed in ("job-0000000001", "llama-12", "job-00000000011", "job-000000001", "@latest")
    }

    assert json.loads(results["job-0000000001"].out)["name"] == "llama-1"
    assert json.loads(results["llama-12"].out)["jobId"] == "job-0000000012"
    assert json.loads(results["job-000000001"].out)["jobId"] == "job-0000000012"
    assert json.loads(results["@latest"].out)["jobId"] == "job-0000000012"
    assert results["job-00000000011"].exit_code == 4


@pytest.mark.parametrize(
    "words",
    [
        *(["jobs", verb, ""] for verb in ("show", "cancel", "suspend", "logs")),
        *(["nodes", verb, name] for verb in ("show", "cordon") for name in ("", " ", "@latest")),
        *(["incidents", verb, ""] for verb in ("show", "approve")),
        ["automation", "hold", "--reason", "x", "--node", ""],
        ["automation", "release", "--pool", ""],
        ["why", ""],
    ],
    ids=" ".join,
)
def test_empty_argument_is_a_usage_error(served: CliFixture, words: list[str]) -> None:
    stored(served.gateway.fakes.ledger, a_job(1), a_fleet_node(1), an_incident(1))

    result = served.run(*words)

    assert (result.exit_code, result.out) == (2, "")
    assert "[USAGE]" in result.err
    assert {method for method, _, _ in served.requests} <= {"GET"}


def test_ambiguous_prefix_exits_2_and_names_the_candidates(served: CliFixture) -> None:
    stored(served.gateway.fakes.ledger, a_job(1), a_job(2))

    result = served.run("jobs", "show", "llama-")

    assert result.exit_code == 2
    assert "job-0000000001" in result.err
    assert "[AMBIGUOUS]" in result.err


@pytest.mark.parametrize("typed", ["i-00000000000000001", "hyperpod-i-00000000000000001", "hyperpod-i-"])
@pytest.mark.parametrize("state", ["RECOVERING", "RECOVERED"])
def test_why_of_a_node_shows_its_latest_incident(served: CliFixture, typed: str, state: str) -> None:
    earlier, now = an_incident(1, state="RECOVERED", opened_at=ago(days=1)), an_incident(2, state=state)
    stored(served.gateway.fakes.ledger, a_job(1), a_fleet_node(1), earlier, now.replace(life=earlier.life))

    result = served.run("why", typed, "-o", "json")

    assert json.loads(result.out) == served.gateway.get("/v1/incidents/inc-0000000002/why").document


def test_why_of_a_replaced_node_shows_its_incident(served: CliFixture) -> None:
    stored(served.gateway.fakes.ledger, an_incident(1, state="RECOVERED"))

    assert served.run("why", "i-00000000000000001").out.startswith("● inc-0000000001  recovered\n")


def test_why_of_a_healthy_node_names_the_next_command(served: CliFixture) -> None:
    stored(served.gateway.fakes.ledger, a_fleet_node(1), an_incident(2))

    result = served.run("why", "hyperpod-i-00000000000000001")

    assert result.exit_code == 4
    assert result.err == (
        "✖ There is no incident of i-00000000000000001. [NOT_FOUND]\n  evenkeel nodes show i-00000000000000001\n"
    )


def test_why_of_a_node_names_the_controller_that_repairs_it(served: CliFixture) -> None:
    mark = "NVSentinel (dgxc.nvidia.com/nvsentinel-state=draining)"
    stored(served.gateway.fakes.ledger, a_fleet_node(1, is_cordoned=True, repaired_by=mark))

    why, shown = served.run("why", "hyperpod-i-00000000000000001"), served.run("nodes", "show", "i-00000000000000001")

    assert "Another controller repairs the node: NVSentinel" in why.out
    assert "nvsentinel-state=draining" in why.out.replace("\n", "")
    assert "repaired by" in shown.out
    assert served.gateway.get("/v1/nodes/i-00000000000000001").document["repairedBy"] == mark


def test_why_of_an_unknown_name_is_refused(served: CliFixture) -> None:
    result = served.run("why", "nope")

    assert (result.exit_code, "There is no job 'nope'. [NOT_FOUND]" in result.err) == (4, True)


def store_jobs_of_one_name(served: CliFixture, *states: str) -> None:
    """Store jobs with the same name, oldest first. Job 1 waits in a team's queue, which is listed before all jobs."""
    jobs = [a_job(number, state=state, queue="research") for number, state in enumerate(states, 1)]
    stored(served.gateway.fakes.ledger, *(job.replace(spec=job.spec.replace(name="llama")) for job in jobs))


def test_newest_of_several_jobs_with_one_name_is_shown(served: CliFixture) -> None:
    store_jobs_of_one_name(served, "PENDING", "RUNNING", "SUCCEEDED")

    shown = [served.run(*words.split(), "-o", "json").out for words in ("jobs show llama", "jobs show @latest")]

    assert [json.loads(text)["jobId"] for text in shown] == ["job-0000000003"] * 2


@pytest.mark.parametrize(("typed", "number"), [("llama-700", 700), ("@latest", 701)])
def test_running_jobs_are_found_behind_a_long_queue(served: CliFixture, typed: str, number: int) -> None:
    waiting = (a_job(n, queue="research") for n in range(1, 610))
    stored(served.gateway.fakes.ledger, *waiting, a_job(700, state="RUNNING"), a_job(701, state="RUNNING"))

    result = served.run("jobs", "show", typed, "-o", "json")

    assert result.err == ""
    assert json.loads(result.out)["jobId"] == f"job-{number:010d}"


@pytest.mark.parametrize("words", ["cancel llama", "suspend llama", "resume llama", "priority llama high"])
def test_ambiguous_job_name_changes_no_job(served: CliFixture, words: str) -> None:
    store_jobs_of_one_name(served, "PENDING", "RUNNING", "SUCCEEDED")

    result = served.run("jobs", *words.split())

    assert (result.exit_code, result.out) == (2, "")
    assert "2 jobs that have not ended are named 'llama': job-0000000001, job-0000000002. [AMBIGUOUS]" in result.err
    assert {method for method, _, _ in served.requests} == {"GET"}


@pytest.mark.parametrize(
    "words", ["jobs show nope", "incidents show @latest", "nodes show i-1", "why inc-0000000404", "why dec-0000000404"]
)
def test_missing_object_exits_4(served: CliFixture, words: str) -> None:
    result = served.run(*words.split())

    assert (result.exit_code, result.out) == (4, "")
    assert "[NOT_FOUND]" in result.err


# ---------------------------------------------------------------- hold and release


def test_automation_is_held_and_released(served: CliFixture) -> None:
    held = served.run("automation", "hold", "--reason", "network work", "--for", "30m")
    shown = served.run("automation", "show")
    released = served.run("automation", "release")

    assert held.out.startswith("▲ held, until 2026-11-03T10:45:02Z: network work\n")
    assert "held by user/" in shown.out or "held by role/" in shown.out
    assert released.out.startswith("● released\n")


def test_hold_of_a_pool_shows_how_to_release_it(served: CliFixture) -> None:
    stored(served.gateway.fakes.ledger, a_fleet_node(1))
    unknown = served.run("automation", "hold", "--reason", "x", "--pool", "p5-worker")
    held = served.run("automation", "hold", "--reason", "new switch", "--pool", "p5-workers")
    shown, status = served.run("automation", "show"), served.run("status")
    released = served.run("automation", "release", "--pool", "p5-workers")

    assert (unknown.exit_code, "Did you mean p5-workers?" in unknown.err) == (2, True)
    assert held.out.startswith("▲ held on p5-workers, until ")
    assert "evenkeel automation release --pool p5-workers" in shown.out
    assert "NEXT    evenkeel automation release --pool p5-workers" in status.out
    assert released.out.startswith("● released\n")


# ---------------------------------------------------------------- approve, cordon


def store_plan_awaiting_approval(served: CliFixture) -> None:
    plan = {
        "run": 1,
        "outcome": "ASK",
        "repairsNode": True,
        "settleSeconds": 0,
        "maxRepairs": 3,
        "decisionId": "dec-0000000001",
        "reason": "Waits for approval. Plan: replace, and move the jobs.",
    }
    stored(served.gateway.fakes.ledger, an_incident(1, plan=plan), a_fleet_node(1))


def test_second_approval_shows_the_author_of_the_first(served: CliFixture) -> None:
    store_plan_awaiting_approval(served)

    shown = served.run("incidents", "show", "inc-0000000001")
    first = served.run("incidents", "approve", "inc-0000000001", "--yes", "--reason", "go")
    second = served.run("incidents", "decline", "inc-0000000001", "--yes")

    assert "Waits for approval. Plan: replace, and move the jobs. (dec-0000000001)" in shown.out
    assert first.out.startswith("● inc-0000000001  approved\n")
    assert (second.exit_code, "approved it. [PLAN_SUPERSEDED]" in second.err) == (5, True)


def test_script_must_pass_yes_instead_of_a_prompt(served: CliFixture) -> None:
    store_plan_awaiting_approval(served)

    result = served.run("incidents", "approve", "inc-0000000001")

    assert (result.exit_code, "--yes" in result.err) == (2, True)
    assert served.gateway.get("/v1/incidents/inc-0000000001").document["approval"] is None


def test_node_is_cordoned_and_uncordoned(served: CliFixture) -> None:
    stored(served.gateway.fakes.ledger, a_fleet_node(1), a_fleet_node(2), an_incident(2))
    served.gateway.fakes.cluster.cordon(CLUSTER, a_fleet_node(2).node_name, "inc-0000000002")

    cordoned = served.run("nodes", "cordon", a_fleet_node(1).life.instance_id, "--reason", "mine")
    freed = served.run("nodes", "uncordon", a_fleet_node(2).life.instance_id)

    assert cordoned.out.startswith(f"● {a_fleet_node(1).life.instance_id}  cordoned\n")
    assert f"evenkeel nodes uncordon {a_fleet_node(1).life.instance_id}" in cordoned.out
    assert freed.out.startswith(f"● {a_fleet_node(2).life.instance_id}  released\n")


def test_replacement_is_planned_before_it_is_requested(served: CliFixture) -> None:
    stored(served.gateway.fakes.ledger, a_fleet_node(1))
    node, queued = a_fleet_node(1).life.instance_id, served.gateway.fakes.inbox.queued

    tried = served.run("nodes", "replace", node, "--reason", "old", "--dry-run")
    unasked = served.run("nodes", "replace", node, "--reason", "old")
    nothing = list(queued)
    done = served.run("nodes", "replace", node, "--reason", "old", "--yes")

    assert tried.out.startswith(f"○ {node}  act, in a dry run\n")
    assert "A person asks for it to be replaced: replace, and move the jobs." in tried.out
    assert (unasked.exit_code, "--yes" in unasked.err, nothing) == (2, True, [])
    assert done.out.startswith(f"● {node}  replacement requested\n")
    assert len(queued) == 1


def test_node_list_shows_the_blocking_guardrail(served: CliFixture) -> None:
    block = {
        "guardrail": "POOL_REPAIRS",
        "reason": "2 of 8 are in repair.",
        "since": "2026-11-03T10:00:00Z",
        "act": "reboot",
    }
    stored(served.gateway.fakes.ledger, a_fleet_node(1), an_incident(1, state="BLOCKED", block=block))

    assert "blocked" in served.run("nodes", "ls").out
    assert "inc-0000000001 (pool repairs)" in served.run("nodes", "ls").out
    assert "POOL_REPAIRS: 2 of 8 are in repair." in served.run("nodes", "show", a_fleet_node(1).life.instance_id).out


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("2h", 7200), ("1d", 86_400)])
def test_durations_are_parsed(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "m", "-1h", "1h30m", "1y"])
def test_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(CommandFailed) as caught:
        parse_duration(text)

    assert caught.value.exit_code == 2


# ---------------------------------------------------------------- failures and where things are


@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [
        (400, "REFUSED", 2),
        (401, "X", 6),
        (403, "NOT_ALLOWED", 6),
        (404, "NOT_FOUND", 4),
        (409, "CONFLICT", 5),
        (409, "GUARDRAIL_REFUSED", 7),
        (422, "IDEMPOTENCY_KEY_REUSED", 2),
        (500, "INTERNAL", 1),
    ],
)
def test_each_problem_has_its_exit_code(served: CliFixture, status: int, code: str, exit_code: int) -> None:
    problem = {"status": status, "code": code, "detail": "What happened.", "hint": "Do that.", "requestId": "r-1"}
    served.next_answers = [ApiResponse(status, {}, json.dumps(problem))]

    result = served.run("status")

    assert (result.exit_code, result.out) == (exit_code, "")
    assert result.err.splitlines()[:2] == [f"✖ What happened. [{code}]", "  Do that."]


def test_gateway_refusal_has_a_plain_message(served: CliFixture) -> None:
    served.next_answers = [ApiResponse(403, {}, '{"message": "Forbidden"}')]

    result = served.run("status")

    assert result.exit_code == 6
    assert result.err.startswith("✖ Forbidden [HTTP_403]\n  Your AWS identity does not have permission")


def test_short_throttling_is_retried(served: CliFixture) -> None:
    served.next_answers = [ApiResponse(429, {}, '{"code": "THROTTLED"}')]

    assert served.run("jobs", "ls", "-o", "json").exit_code == 0


def test_long_throttling_exits_8(served: CliFixture) -> None:
    served.next_answers = [ApiResponse(503, {}, '{"code": "UNAVAILABLE", "detail": "Not now."}')] * 3

    assert served.run("status").exit_code == 8


@pytest.mark.parametrize(
    ("words", "status"), [("jobs submit --name x --image i:1 -- train", 503), ("nodes cordon i-00000000000000001", 500)]
)
def test_lost_answer_of_a_change_names_the_key_to_repeat(served: CliFixture, words: str, status: int) -> None:
    stored(served.gateway.fakes.ledger, a_fleet_node(1))
    served.next_answers = [ApiResponse(status, {}, '{"code": "LOST", "detail": "Nobody knows.", "hint": "Look."}')] * 3

    result = served.run(*words.split())

    sent = {headers["Idempotency-Key"] for method, _, headers in served.requests if method == "POST"}
    named = re.findall(r"add --idempotency-key (\S+) to the same command", result.err)
    assert (result.exit_code, set(named)) == (8 if status == 503 else 1, sent)
    assert "  Look.\n" in result.err


def test_repeated_fault_report_keeps_its_time(served: CliFixture) -> None:
    served.next_answers = [ApiResponse(500, {}, '{"code": "LOST", "detail": "Nobody knows."}')]

    result = served.run("faults", "report", "i-00000000000000001", "xid:79")

    assert re.search(r"--idempotency-key cli-\w+ --at \d{4}-\d\d-\d\dT[\d:]{8}Z to the same command", result.err)


@pytest.mark.parametrize(
    "words", ["jobs plan --name x --image i:1 -- train", "nodes replace i-00000000000000001 --reason old"]
)
def test_lost_answer_of_a_read_names_no_key(served: CliFixture, words: str) -> None:
    served.next_answers = [ApiResponse(500, {}, '{"code": "LOST", "detail": "Nobody knows."}')]

    result = served.run(*words.split())

    assert (result.exit_code, result.err) == (1, "✖ Nobody knows. [LOST]\n")


def test_answer_of_another_service_is_recognised(served: CliFixture) -> None:
    served.next_answers = [ApiResponse(200, {}, "<html>")]

    result = served.run("status")

    assert (result.exit_code, "[NOT_EVENKEEL]" in result.err) == (1, True)


def test_unreachable_api_exits_8(served: CliFixture) -> None:
    served.write_context({**served.context, "url": "http://127.0.0.1:9/v1"})

    result = served.run("status")

    assert (result.exit_code, "[UNREACHABLE]" in result.err) == (8, True)


@pytest.mark.parametrize(
    ("document", "code"),
    [
        ({"name": "x", "url": "http://example.com/v1", "region": "us-west-2"}, "BAD_CONTEXT"),
        ({"name": "x", "url": "https://example.com/", "region": "us-west-2"}, "BAD_CONTEXT"),
        ([], "BAD_CONTEXT"),
    ],
)
def test_unusable_context_exits_2(served: CliFixture, document: object, code: str) -> None:
    served.write_context(document)

    result = served.run("status")

    assert (result.exit_code, f"[{code}]" in result.err) == (2, True)


@pytest.mark.parametrize(
    ("credentials", "missing"),
    [
        ({"accessKeyId": "AKIA"}, "credentials.secretAccessKey is missing"),
        ({"accessKeyId": "AKIA", "secretAccessKey": None}, "credentials.secretAccessKey is missing"),
        ({"secretAccessKey": "x"}, "credentials.accessKeyId is missing"),
        ({}, "credentials.accessKeyId is missing"),
        ("AKIA", "credentials must be a JSON object"),
    ],
)
def test_missing_part_of_credentials_is_named(served: CliFixture, credentials: object, missing: str) -> None:
    served.write_context({**served.context, "credentials": credentials})

    result = served.run("status")

    assert (result.exit_code, result.out) == (2, "")
    assert f"cannot be used: {missing}. [BAD_CONTEXT]" in result.err


def test_missing_context_names_the_command_to_create_one(served: CliFixture) -> None:
    (served.folder / ".evenkeel" / "context.json").unlink()

    result = served.run("status")

    assert (result.exit_code, "EVENKEEL_URL" in result.err) == (2, True)


def test_environment_api_uses_the_callers_credentials(served: CliFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    (served.folder / ".evenkeel" / "context.json").unlink()
    monkeypatch.setenv("EVENKEEL_URL", served.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAANA")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token-of-ana")

    result = served.run("automation", "show")

    headers = served.requests[-1][2]
    assert result.exit_code == 0
    assert "Credential=AKIAANA/" in headers["Authorization"]
    assert "/us-west-2/execute-api/aws4_request" in headers["Authorization"]
    assert headers["X-Amz-Security-Token"] == "token-of-ana"


def test_missing_credentials_name_the_next_step(served: CliFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    served.write_context({key: value for key, value in served.context.items() if key != "credentials"})
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)

    result = served.run("status")

    assert (result.exit_code, "aws sso login" in result.err) == (6, True)


def test_drills_need_the_local_data_centre(served: CliFixture) -> None:
    result = served.run("drill", "inject", "gpu-xid79")

    assert (result.exit_code, "[NOT_LOCAL]" in result.err) == (6, True)


def test_the_drills_are_listed_without_a_data_centre(served: CliFixture) -> None:
    result = served.run("drill", "ls", "-o", "name")

    assert (result.exit_code, "storm" in result.out.splitlines()) == (0, True)


def test_unknown_drill_is_named(served: CliFixture) -> None:
    result = served.run("drill", "run", "earthquake")

    assert (result.exit_code, "[NO_SUCH_DRILL]" in result.err) == (4, True)


def test_fault_is_injected_into_the_current_attempt(served: CliFixture) -> None:
    recovery_at_work(served.gateway)
    served.write_context({**served.context, "controlUrl": served.url.removesuffix("/v1")})
    injected = {"faultId": "fault-1", "fault": "gpu-xid79", "node": "hyperpod-i-1", "cleared": False}
    shown = served.gateway.get("/v1/jobs/job-0000000001")
    listed = served.gateway.get("/v1/jobs")
    served.next_answers = [listed, shown, ApiResponse(201, {}, json.dumps(injected))]

    result = served.run("drill", "inject", "gpu-xid79", "--job", "llama-1")

    assert result.out.splitlines()[0] == "▲ gpu-xid79 on hyperpod-i-1 (fault-1)"
    assert served.requests[-1][1] == "/control/faults"


@pytest.mark.parametrize("words", ["", "--help", "jobs", *(f"{noun} --help" for noun in NOUNS)])
def test_help_exits_0(served: CliFixture, words: str) -> None:
    result = served.run(*words.split())

    assert (result.exit_code, result.err) == (0, "")
    assert result.out.startswith("Usage: evenkeel ")
    assert max(len(line) for line in result.out.splitlines()) <= 80


def test_status_shows_rentals_of_a_deployment(served: CliFixture) -> None:
    text = "1 node of chat-burst is rented for the job."
    memory = ServingState.of(CHAT).replace(rentals=1, last_note=PlacementNote(key="RENT", text=text))
    served.gateway.fakes.ledger.commit(
        Put(job_rows.serving_row(memory, 0)), Put(job_rows.rental_row(serving_rental(1), 0))
    )

    store_fleet_counts(served.gateway.fakes)
    shown = served.run("status", terminal=True).out
    served.gateway.fakes.ledger.commit(Put(job_rows.serving_row(memory.replace(last_note=None), 1)))
    over = end_rental(serving_rental(1).replace(state=RentalState.ENDING), A_MOMENT).rental
    served.gateway.fakes.ledger.commit(Put(job_rows.rental_row(over, 1)))
    store_fleet_counts(served.gateway.fakes)

    assert f"SERVING serving/chat: 1 node rented\n        {text}\n" in shown
    assert "SERVING" not in served.run("status", terminal=True).out


@pytest.mark.parametrize("words", ["nonsense", "jobs nonsense", "jobs show", "jobs ls --limit many", "status -o xml"])
def test_usage_error_exits_2_with_the_next_step(served: CliFixture, words: str) -> None:
    result = served.run(*words.split())

    assert (result.exit_code, result.out) == (2, "")
    assert "[USAGE]" in result.err
    assert "--help" in result.err


@pytest.mark.parametrize(
    ("seconds", "exact", "coarse"),
    [
        (0, "0s", "0s"),
        (0.31, "0.3s", "0s"),
        (59.6, "1m00s", "1m"),
        (61, "1m01s", "1m01s"),
        (708, "11m48s", "11m"),
        (3599.9, "1h00m", "1h"),
        (11_070, "3h04m", "3h04m"),
        (90_000, "1d01h", "1d01h"),
        (3_000_000, "34d17h", "34d"),
    ],
)
def test_durations_are_written_in_two_units(seconds: float, exact: str, coarse: str) -> None:
    assert (duration(seconds), age_text(seconds)) == (exact, coarse)


def test_help_takes_less_than_twice_the_time_of_its_library() -> None:
    def start_seconds(*arguments: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True, cwd=ROOT, timeout=30)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    rounds = [
        (start_seconds("-m", "evenkeel_cli.main", "--help"), start_seconds("-c", "import typer")) for _ in range(7)
    ]
    own_seconds, library = (min(taken) for taken in zip(*rounds, strict=True))

    # The runs alternate, and the shortest of each counts: a busy machine must not affect the result.
    assert own_seconds < 2 * library, rounds


@pytest.mark.parametrize(
    ("words", "code"), [("faults ls -o json", 0), ("version", 0), ("--help", 0), ("jobs nonsense", 2)]
)
def test_closed_pipe_is_no_failure(tmp_path: Path, words: str, code: int) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    environment = {**os.environ, "HOME": str(tmp_path)}

    done = subprocess.run(
        [sys.executable, "-m", "evenkeel_cli.main", *words.split()],
        check=False,
        stdout=writer,
        stderr=writer if code else subprocess.PIPE,
        text=True,
        env=environment,
        timeout=30,
    )
    os.close(writer)

    assert (done.returncode, done.stderr or "") == (code, "")


def test_help_loads_neither_botocore_nor_rich(tmp_path: Path) -> None:
    code = (
        "import sys; from evenkeel_cli.main import main; main(['--help']);"
        "print([name for name in ('botocore', 'rich', 'boto3', 'pydantic') if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path, timeout=30
    )

    assert done.stderr.strip() == "[]"


def test_job_shows_its_rental_and_cost(served: CliFixture) -> None:
    job = a_job(1, state="FAILED")
    offer = RentalOffer(
        pool="burst-spot",
        cluster=CLUSTER,
        market=Market.SPOT,
        instance_type="p5.48xlarge",
        zone="us-west-2a",
        accelerators_per_node=8,
        micros_per_node_hour=20_000_000,
        min_billed_seconds=60,
        opened_at=job.submitted_at,
        joined_node_names=("ip-1", "ip-2"),
    )
    ending = Rental(
        job_id=job.job_id,
        number=1,
        team="default",
        namespace="evenkeel-jobs",
        state=RentalState.ENDING,
        reason="It ended.",
        nodes=2,
        offers=(offer,),
        begun_at=job.submitted_at,
        ready_by=job.submitted_at,
        decision_id="dec-1",
    )
    rental = end_rental(ending, job.submitted_at + timedelta(seconds=100.5)).rental
    stored(served.gateway.fakes.ledger, job)
    served.gateway.fakes.ledger.commit(Put(job_rows.rental_row(rental, 0)))

    result = served.run("jobs", "show", job.job_id)

    assert "burst-spot" in result.out
    assert "$1.122222" in result.out


def test_job_of_another_team_is_shown_partly(served: CliFixture) -> None:
    team = {"name": "nlp", "namespace": "nlp", "members": []}
    new = {"If-None-Match": "*"}
    assert served.gateway.call("PUT", "/v1/teams/nlp/quota", {"team": team, "reason": "x"}, headers=new).status == 200
    job = a_job(1, state="FAILED", reason="The exit message.", current_attempt=1)
    stored(served.gateway.fakes.ledger, job.replace(spec=job.spec.replace(team="nlp")), an_attempt(job, state="FAILED"))

    shown, why, logs = (
        served.run(*words, terminal=True)
        for words in (
            ("jobs", "show", "job-0000000001"),
            ("why", "job-0000000001"),
            ("jobs", "logs", "job-0000000001"),
        )
    )

    assert (shown.exit_code, why.exit_code, logs.exit_code) == (0, 0, 6)
    assert "Only team nlp and operators see its command" in " ".join(shown.out.split())
    assert "The exit message." not in shown.out + why.out


# ---------------------------------------------------------------- what Evenkeel cannot see


def store_dead_cluster(served: CliFixture) -> None:
    """Store a fleet whose cluster stopped answering twelve minutes ago."""
    ledger = served.gateway.fakes.ledger
    for function in ("schedule_jobs", "sweep_fleet", "watch_cluster"):
        row = ledger.rows[fleet_rows.heartbeat_key(function)]
        sources = dict(row.doc["sources"])
        sources["kubernetes-list/research-eks"] = {
            "triedAt": rfc3339(A_MOMENT),
            "seenAt": rfc3339(ago(minutes=12)),
            "failingSince": rfc3339(ago(minutes=11)),
            "error": "nodes: Unreachable: no answer",
        }
        ledger.commit(Put(Row(row.key, {**row.doc, "sources": sources}, row.version)))
    stored(ledger, a_fleet_node(1), a_job(1, state="RUNNING", started_at=ago(minutes=25)))


def test_status_check_fails_while_a_cluster_does_not_answer(served: CliFixture) -> None:
    store_dead_cluster(served)

    result = served.run("status", "--check")

    assert result.exit_code == 21
    assert "Cluster research-eks does not answer since 2026-11-03 10:04:02Z" in result.out


def test_lists_show_when_stale_facts_were_last_seen(served: CliFixture) -> None:
    store_dead_cluster(served)

    nodes, jobs = (served.run(noun, "ls", terminal=True) for noun in ("nodes", "jobs"))

    assert "in service, last seen 12m ago" in nodes.out
    assert "running, last seen 12m ago" in jobs.out
    assert all(
        "These facts may be stale. Cluster research-eks does not answer" in result.err for result in (nodes, jobs)
    )


def test_job_is_never_shown_running_without_its_age(served: CliFixture) -> None:
    store_dead_cluster(served)

    outputs = [served.run(noun, *words, "llama-1", terminal=True).out for noun, *words in (("why",), ("jobs", "show"))]

    assert ["running, last seen 12m ago" in output.splitlines()[0] for output in outputs] == [True, True]


def test_incident_with_pending_approval_names_the_next_command(served: CliFixture) -> None:
    store_plan_awaiting_approval(served)

    output = served.run("incidents", "show", "inc-0000000001").out

    assert output.splitlines()[-1] == "next  evenkeel incidents approve inc-0000000001"


def test_status_shows_the_age_of_stale_numbers(served: CliFixture) -> None:
    store_dead_cluster(served)
    store_fleet_counts(served.gateway.fakes)

    lines = served.run("status", terminal=True).out.splitlines()

    nodes, gpus = (next(line for line in lines if line.startswith(title)) for title in ("NODES", "GPUs"))
    assert "1 in service ▲, last seen 12m ago" in nodes
    assert gpus.endswith("free in service, last seen 12m ago")
    assert "        running, last seen 12m ago" in lines
    assert lines[-1] == "NEXT    evenkeel doctor"


@pytest.mark.parametrize("words", ["why llama-1", "incidents ls", "jobs show llama-1"])
def test_every_answer_warns_of_stale_facts(served: CliFixture, words: str) -> None:
    store_dead_cluster(served)

    assert "These facts may be stale." in served.run(*words.split(), terminal=True).err


def test_wide_status_names_every_source(served: CliFixture) -> None:
    output = served.run("status", "-o", "wide", terminal=True).out

    assert "Cluster research-eks answered (last answer 0 s ago)." in output
    assert "Sweep step rentals answered" in output


def test_cordon_shows_its_author_and_reason(served: CliFixture) -> None:
    node = a_fleet_node(1).life.instance_id
    stored(served.gateway.fakes.ledger, a_fleet_node(1))
    served.run("nodes", "cordon", node, "--reason", "fan noise")

    answers = {
        words: served.run(*words) for words in (("nodes", "ls"), ("nodes", "show", node), ("status",), ("why", node))
    }
    freed = served.run("nodes", "uncordon", node)

    assert [
        words for words, answer in answers.items() if "fan noise" not in answer.out or "(ana)" not in answer.out
    ] == []
    assert f"next  evenkeel nodes uncordon {node}" in answers["why", node].out
    assert freed.exit_code == 0
    assert "fan noise" not in served.run("nodes", "show", node).out


def test_job_file_may_be_yaml(served: CliFixture) -> None:
    lines = ["name: from-yaml", "image: registry/trainer:1", "command: [python, -m, train]", "nodes: 2"]
    (served.folder / "job.yaml").write_text("\n".join([*lines, "deadline: 2027-01-31T08:00:00Z"]))

    result = served.run("jobs", "submit", "job.yaml")

    assert (result.exit_code, result.err) == (0, "")
    body = json.loads(served.bodies[-1])
    assert (body["name"], body["nodes"], body["deadline"]) == ("from-yaml", 2, "2027-01-31T08:00:00Z")


def test_new_job_file_is_accepted_with_every_field(served: CliFixture) -> None:
    assert served.run("jobs", "init").exit_code == 0
    file = served.folder / "job.yaml"
    text = file.read_text()
    commented = re.sub(r"^( *)# (\w+: )", r"\1\2", text, flags=re.MULTILINE)

    plain, full = served.run("jobs", "plan", "job.yaml"), yaml.safe_load(commented)

    assert (plain.exit_code, plain.err) == (0, "")
    schema = json.loads((ROOT / "docs" / "schemas" / "submission.schema.json").read_text())
    assert set(full) <= set(schema["properties"])
    assert len(full) > 15


def test_new_job_file_overwrites_nothing(served: CliFixture) -> None:
    (served.folder / "job.yaml").write_text("mine")

    result = served.run("jobs", "init")

    assert (result.exit_code, "[FILE_EXISTS]" in result.err) == (2, True)
    assert (served.folder / "job.yaml").read_text() == "mine"
    assert served.run("jobs", "init", "--force").exit_code == 0


@pytest.mark.parametrize("words", ["status", "jobs ls", "jobs show llama-1", "why llama-1", "nodes ls", "teams ls"])
def test_yaml_output_is_the_json_output(served: CliFixture, words: str) -> None:
    recovery_at_work(served.gateway)

    as_yaml, as_json = served.run(*words.split(), "-o", "yaml"), served.run(*words.split(), "-o", "json")

    assert yaml.safe_load(as_yaml.out) == json.loads(as_json.out)


def test_yaml_output_escapes_control_characters(served: CliFixture) -> None:
    stored(served.gateway.fakes.ledger, a_job(1, reason="\x1b[31mred\u202eturned"))

    result = served.run("jobs", "show", "llama-1", "-o", "yaml")

    assert "\x1b" not in result.out
    assert "\u202e" not in result.out
    assert yaml.safe_load(result.out)["reason"] == "\x1b[31mred\u202eturned"


@pytest.mark.parametrize("noun", ["jobs", "incidents", "nodes"])
def test_watched_list_is_printed_again_until_interrupted(
    served: CliFixture, monkeypatch: pytest.MonkeyPatch, noun: str
) -> None:
    recovery_at_work(served.gateway)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("evenkeel_cli.commands.output.time.sleep", pause)
    served.next_answers = []

    result = served.run(noun, "ls", "-w", "-o", "name")

    once = served.run(noun, "ls", "-o", "name").out
    assert (result.exit_code, result.out) == (130, once * 3)


def test_version_is_a_command_and_an_option(served: CliFixture) -> None:
    assert served.run("--version").out == served.run("version").out


def test_first_example_of_the_readme_is_a_valid_job(served: CliFixture) -> None:
    result = served.run("jobs", "plan", str(ROOT / "docs" / "examples" / "first.yaml"))

    assert (result.exit_code, result.err) == (0, "")
