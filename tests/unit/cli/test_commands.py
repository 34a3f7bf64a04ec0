"""Requests, exit codes and machine-readable output of the commands."""

import json
import os
import re
import resource
import shlex
import signal
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
from evenkeel.domain.renting.serving_rentals import ServingState
from evenkeel.domain.values import rfc3339
from evenkeel.ports import Delete, Put, Row
from evenkeel.runtime.api import PROBLEMS
from evenkeel.services.tables import fleet_rows, job_rows
from evenkeel_cli.commands.automation import parse_duration
from evenkeel_cli.commands.following import new_log_text
from evenkeel_cli.main import NOUNS
from evenkeel_cli.render import age_text, duration
from evenkeel_client.errors import CommandFailed, Exit, exit_for
from tests.fakes.cluster import CLUSTER, instance_id
from tests.fakes.system import A_MOMENT
from tests.unit.api.gateway import ROOT, ApiResponse, Gateway
from tests.unit.api.seeds import (
    PLAN_AWAITING_APPROVAL,
    a_decision,
    a_fleet_node,
    a_job,
    ago,
    an_attempt,
    an_incident,
    list_decision,
    make_unreadable,
    store,
    store_fleet_counts,
)
from tests.unit.cli.conftest import CliFixture, CliResult
from tests.unit.cli.recovery_fixture import store_running_recovery
from tests.unit.scheduling.test_replicas import CHAT
from tests.unit.scheduling.test_replicas import a_rental as serving_rental

A_JOB: dict[str, Any] = {"name": "llama", "image": "registry/trainer:1", "command": ["python", "train.py"], "nodes": 2}


def submitted_job(cli: CliFixture) -> dict[str, Any]:
    document: dict[str, Any] = cli.gateway.get("/v1/jobs/job-0000000001").document
    return document


# ---------------------------------------------------------------- submit


def test_job_is_submitted_from_file(cli: CliFixture) -> None:
    (cli.folder / "job.json").write_text(json.dumps(A_JOB), encoding="utf-8")

    result = cli.run("jobs", "submit", "job.json", terminal=True)

    assert result.out == "○ job-0000000001  pending, 2 nodes × 8 GPUs\nnext  evenkeel jobs wait job-0000000001\n"
    assert submitted_job(cli)["command"] == ["python", "train.py"]


def test_submit_options_override_the_job_file(cli: CliFixture) -> None:
    body = json.dumps({**A_JOB, "args": ["--x"], "env": {"A": "1"}})
    words = ["--nodes", "3", "--checkpoint-uri", "s3://bucket/p", "--env", "B=2=3", "-", "--", "python", "-m", "other"]

    result = cli.run("jobs", "submit", "-o", "name", *words, stdin=body)
    assert result.err == ""

    job = submitted_job(cli)
    assert result.out == "job-0000000001\n"
    assert (job["nodes"], job["command"], job["args"]) == (3, ["python", "-m", "other"], [])
    assert (job["envNames"], job["checkpoint"]["uri"]) == (["A", "B"], "s3://bucket/p")


def test_submit_options_add_folders_and_secrets_to_the_job_file(cli: CliFixture) -> None:
    body = json.dumps({**A_JOB, "volumes": [{"claim": "base", "mountPath": "/base"}]})
    options = "--volume data:/data --volume data/out:/out:rw --scratch /scratch:100 --image-pull-secret registry"

    cli.run("jobs", "plan", *options.split(), "--run-as-user", "2000", "-", stdin=body)

    sent = json.loads(cli.bodies[-1])
    assert sent["volumes"] == [
        {"claim": "base", "mountPath": "/base"},
        {"claim": "data", "mountPath": "/data", "readOnly": True},
        {"claim": "data", "mountPath": "/out", "readOnly": False, "subPath": "out"},
    ]
    assert (sent["scratch"], sent["imagePullSecrets"]) == ([{"mountPath": "/scratch", "sizeGib": 100}], ["registry"])
    assert sent["securityContext"] == {"runAsUser": 2000}


def test_plan_options_name_the_pools_of_mixed_capacity(cli: CliFixture) -> None:
    body = json.dumps({**A_JOB, "nodes": 2, "elastic": {"minNodes": 2, "maxNodes": 4, "mixedPools": ["burst-a"]}})

    cli.run("jobs", "plan", "--mixed-pool", "burst-b", "--mixed-pool", "burst-c", "-", stdin=body)

    assert json.loads(cli.bodies[-1])["elastic"] == {
        "minNodes": 2,
        "maxNodes": 4,
        "mixedPools": ["burst-a", "burst-b", "burst-c"],
    }


@pytest.mark.parametrize("words", ["--volume data", "--volume data:/data:rx", "--volume :/data", "--scratch /a:big"])
def test_folder_option_that_cannot_be_read_is_a_usage_error(cli: CliFixture, words: str) -> None:
    result = cli.run("jobs", "submit", *words.split(), "-", stdin=json.dumps(A_JOB))

    assert result.exit_code == 2
    assert words in result.err


@pytest.mark.parametrize("verb", ["submit", "plan"])
def test_every_missing_field_of_a_job_is_named_at_once(cli: CliFixture, verb: str) -> None:
    result = cli.run("jobs", verb, "-", stdin="{}")

    assert result.exit_code == 2
    assert result.err.splitlines() == [
        "✖ name: is required [VALIDATION_FAILED]",
        "  image: missing; required unless a job type of the site fills it",
        "  command: missing; required unless a job type of the site fills it",
        "  evenkeel jobs init writes a whole job file.",
    ]


def test_refused_fields_of_a_manifest_are_each_named_once(cli: CliFixture) -> None:
    result = cli.run("jobs", "submit", "-", stdin=json.dumps({"apiVersion": "batch/v1", "metadata": {"name": "a"}}))

    assert result.err.splitlines() == [
        "✖ Several fields are refused [VALIDATION_FAILED]",
        "  name: is required",
        "  apiVersion: is not a known field",
        "  metadata: is not a known field",
        "  image: missing; required unless a job type of the site fills it",
        "  command: missing; required unless a job type of the site fills it",
        "  evenkeel jobs init writes a whole job file.",
    ]


def test_plan_ends_with_the_command_that_submits_the_same_job(cli: CliFixture) -> None:
    (cli.folder / "my job.json").write_text(json.dumps(A_JOB), encoding="utf-8")

    result = cli.run("jobs", "plan", "my job.json", "--nodes", "1", "--env", "A=1 2", "--", "python", "x.py")

    command = shlex.split(result.out.splitlines()[-1].partition("evenkeel ")[2])
    planned, _ = cli.bodies[-1], cli.run(*command)
    assert command[:3] == ["jobs", "submit", "my job.json"]
    assert cli.bodies[-1] == planned


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
def test_submit_options_replace_only_the_named_checkpoint_settings(
    cli: CliFixture, verb: str, options: list[str], checkpoint: dict[str, str]
) -> None:
    body = json.dumps({**A_JOB, "checkpoint": {"uri": FOLDER, "claim": "slow"}})

    cli.run("jobs", verb, *options, "-", stdin=body)

    assert json.loads(cli.bodies[-1])["checkpoint"] == checkpoint


@pytest.mark.parametrize(
    "options", [["--env", "A=b"], ["--checkpoint-uri", OTHER], ["--min-nodes", "1"]], ids=lambda options: options[0]
)
def test_submit_options_fill_null_sections_but_refuse_other_values(cli: CliFixture, options: list[str]) -> None:
    def plan_with(value: object) -> CliResult:
        body = json.dumps({**A_JOB, "env": value, "checkpoint": value, "elastic": value})
        return cli.run("jobs", "plan", *options, "-", stdin=body)

    null_result, list_result = plan_with(None), plan_with(["x"])

    assert "Traceback" not in null_result.err
    assert (
        list_result.exit_code,
        'must be a JSON object in the job\'s file, not ["x"]. [NOT_JSON]' in list_result.err,
    ) == (
        2,
        True,
    )


def test_elastic_job_shows_its_allowed_sizes(cli: CliFixture) -> None:
    words = ["--nodes", "2", "--min-nodes", "1", "--max-nodes", "4", "--checkpoint-uri", "s3://bucket/p", "-"]

    result = cli.run("jobs", "submit", *words, stdin=json.dumps(A_JOB), terminal=True)

    assert "2 nodes, elastic 1 to 4 × 8 GPUs" in result.out
    assert submitted_job(cli)["elastic"] == {
        "minNodes": 1,
        "maxNodes": 4,
        "step": None,
        "sizes": [],
        "throughput": [],
        "mixedPools": [],
    }
    for verb in ("submit", "plan"):
        refusal = cli.run("jobs", verb, "--min-nodes", "3", *words[:2], "-", stdin=json.dumps(A_JOB))
        assert "elastic.maxNodes" in refusal.err


def test_job_page_counts_unreadable_records(cli: CliFixture) -> None:
    job = a_job(1, state="RUNNING", current_attempt=1)
    store(cli.gateway.fakes.ledger, job, an_attempt(job))
    make_unreadable(cli.gateway.fakes.ledger, job_rows.attempt_key(job.job_id, 1), "accelerators")

    assert "1 record of attempts or rentals cannot be read" in cli.run("jobs", "show", job.job_id).out


def test_deadline_is_submitted_and_shown(cli: CliFixture) -> None:
    result = cli.run("jobs", "submit", "--deadline", "2030-01-02T10:15:00+01:00", "-", stdin=json.dumps(A_JOB))
    assert result.err == ""

    assert submitted_job(cli)["deadline"] == "2030-01-02T09:15:00.000000Z"
    assert "deadline" in cli.run("jobs", "show", "@latest").out
    planned = cli.run("jobs", "plan", "--deadline", "soon", "-", stdin=json.dumps(A_JOB))
    assert (planned.exit_code, "deadline: " in planned.err) == (2, True)


@pytest.mark.parametrize("placement", [{}, {"placement": None}], ids=["left out", "none"])
def test_plan_with_kueue_admission_shows_the_local_queue(cli: CliFixture, placement: dict[str, None]) -> None:
    cli.gateway = Gateway(environment={"EVENKEEL_ADMISSION": "kueue"})
    document = cli.gateway.post("/v1/jobs/plan", A_JOB).document
    answer = {name: value for name, value in document.items() if name != "placement"} | placement
    cli.next_answers = [ApiResponse(200, {}, json.dumps(answer))]

    result = cli.run("jobs", "plan", "-", stdin=json.dumps(A_JOB), terminal=True)

    assert (result.exit_code, result.err) == (0, "")
    assert result.out == (
        "● would be submitted to Kueue, team default\n"
        "  Kueue admits jobs here: the job goes to LocalQueue default.\n"
        "next  evenkeel jobs submit -\n"
    )


def test_every_submission_has_a_fresh_key_unless_one_is_given(cli: CliFixture) -> None:
    job_options = ["--name", "x", "--image", "i:1", "--", "train"]
    cli.run("jobs", "submit", *job_options)
    cli.run("jobs", "submit", *job_options)
    ids_with_given_key = [
        cli.run("jobs", "submit", "--idempotency-key", "k1", "-o", "name", *job_options).out for _ in range(2)
    ]

    keys = [headers["Idempotency-Key"] for method, _, headers in cli.requests if method == "POST"]
    assert len(set(keys[:2])) == 2
    assert ids_with_given_key[0] == ids_with_given_key[1]


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
def test_job_that_cannot_be_submitted_exits_2(cli: CliFixture, words: list[str], code: str) -> None:
    (cli.folder / "broken.json").write_text("{", encoding="utf-8")
    (cli.folder / "list.json").write_text("[]", encoding="utf-8")

    result = cli.run("jobs", "submit", *words)

    assert (result.exit_code, result.out) == (2, "")
    assert f"[{code}]" in result.err
    assert "Traceback" not in result.err


# ---------------------------------------------------------------- wait, cancel, logs


@pytest.mark.parametrize(("state", "code"), [("SUCCEEDED", 0), ("FAILED", 3), ("CANCELLED", 3)])
def test_wait_command_exits_with_the_code_of_the_final_state(cli: CliFixture, state: str, code: int) -> None:
    store(cli.gateway.fakes.ledger, a_job(1, state=state, reason="So it went."))

    result = cli.run("jobs", "wait", "llama-1")

    assert result.exit_code == code
    assert result.out.endswith(f"{state.lower()}  So it went.\n")


def test_wait_past_the_timeout_exits_124(cli: CliFixture) -> None:
    store(cli.gateway.fakes.ledger, a_job(1))

    result = cli.run("jobs", "wait", "llama-1", "--timeout", "0")

    assert result.exit_code == 124
    assert "still pending" in result.err


def test_job_is_cancelled_with_reason(cli: CliFixture) -> None:
    store(cli.gateway.fakes.ledger, a_job(1))

    result = cli.run("jobs", "cancel", "llama-1", "--reason", "not needed", "--yes")

    assert (result.exit_code, submitted_job(cli)["state"]) == (0, "CANCELLED")
    assert "not needed" in submitted_job(cli)["reason"]


@pytest.mark.parametrize("change", [("cancel",), ("suspend",), ("priority", "high")], ids=" ".join)
def test_job_change_in_a_pipe_needs_yes_and_changes_nothing(cli: CliFixture, change: tuple[str, ...]) -> None:
    store(cli.gateway.fakes.ledger, a_job(1))
    before = dict(cli.gateway.fakes.ledger.rows)

    result = cli.run("jobs", change[0], "llama-1", *change[1:])

    assert (result.exit_code, "--yes" in result.err) == (2, True)
    assert cli.gateway.fakes.ledger.rows == before


@pytest.mark.parametrize(("answer", "state"), [("y", "STOPPING"), ("n", "RUNNING")])
def test_person_sees_the_plan_of_a_cancel_and_decides(cli: CliFixture, answer: str, state: str) -> None:
    job = a_job(1, state="RUNNING", current_attempt=1)
    store(cli.gateway.fakes.ledger, job, an_attempt(job))

    result = cli.run("jobs", "cancel", "llama-1", "--reason", "not needed", terminal=True, answer=answer)

    assert "Attempt 1 stops: 2 nodes" in result.err
    assert "Cancel the job?" in result.err
    assert submitted_job(cli)["state"] == state


def test_dry_run_of_a_job_change_changes_nothing(cli: CliFixture) -> None:
    store(cli.gateway.fakes.ledger, a_job(1), a_job(2))
    before = dict(cli.gateway.fakes.ledger.rows)

    drawn = cli.run("jobs", "suspend", "llama-1", "--dry-run")
    document = json.loads(cli.run("jobs", "resume", "llama-1", "--dry-run", "-o", "json").out)

    assert drawn.out.startswith("○ job-0000000001  suspend: pending, then suspended, in a dry run\n")
    assert "Queue position: 1 now, none after the change." in drawn.out
    assert document["effects"] == ["Nothing changes: the job is not suspended."]
    assert cli.gateway.fakes.ledger.rows == before


def test_decisions_about_a_job_are_listed_newest_first(cli: CliFixture) -> None:
    store(cli.gateway.fakes.ledger, a_job(1))
    for number, kind in ((1, "ADMISSION"), (2, "RESUME")):
        store(
            cli.gateway.fakes.ledger,
            a_decision(number, "job-0000000001", kind=kind, decided_at=ago(minutes=9 - number)),
        )

    names = cli.run("decisions", "ls", "llama-1", "-o", "name")
    admissions = cli.run("decisions", "ls", "llama-1", "--kind", "admission", "-o", "csv")
    drawn = cli.run("decisions", "ls", "llama-1", terminal=True)

    assert names.out.split() == ["dec-0000000002", "dec-0000000001"]
    assert [line.split(",")[0] for line in admissions.out.splitlines()] == ["decisionId", "dec-0000000001"]
    assert drawn.exit_code == 0, drawn.err
    assert "dec-0000000002" in drawn.out


def test_decisions_of_the_fleet_name_their_subject(cli: CliFixture) -> None:
    long_id = f"dec-{instance_id(1)}-4239d591-bc2f-41cc-82e0-017a084e9236-act"
    about_node = a_decision(3, f"research-eks/{instance_id(1)}/1795641101", decision_id=long_id)
    for number, subject in ((1, "job-0000000001"), (2, "inc-0000000001")):
        list_decision(cli.gateway.fakes.ledger, a_decision(number, subject, decided_at=ago(minutes=9 - number)))
    list_decision(cli.gateway.fakes.ledger, about_node)

    names = cli.run("decisions", "ls", "-o", "name")
    drawn = cli.run("decisions", "ls", terminal=True)
    none = cli.run("decisions", "ls", "--kind", "resize")

    assert names.out.split() == ["dec-0000000002", "dec-0000000001", long_id]
    words = ("ABOUT", "inc-0000000001", "job-0000000001", instance_id(1))
    assert [f" {word} " in drawn.out for word in words] == [True] * 4
    assert max(map(len, drawn.out.splitlines())) <= 80
    assert "No decision of kind RESIZE is recorded." in none.err + none.out


@pytest.mark.parametrize("verb", ["cancel", "suspend", "resume"])
def test_change_of_an_ended_job_exits_5(cli: CliFixture, verb: str) -> None:
    store(cli.gateway.fakes.ledger, a_job(1, state="FAILED", reason="Rank 3 exited with code 1."))

    result = cli.run("jobs", verb, "llama-1", *(["--yes"] if verb != "resume" else []))

    expected = "✖ job-0000000001 has ended (failed): Rank 3 exited with code 1. [JOB_ENDED]"
    assert (result.exit_code, result.err.splitlines()[0]) == (5, expected)


def test_refused_option_is_named_as_typed(cli: CliFixture) -> None:
    result = cli.run("automation", "hold", "--yes", "--reason", "x" * 301)

    expected = "✖ --reason: must have at most 300 characters [VALIDATION_FAILED]\n  Correct this, then run it again.\n"
    assert (result.exit_code, result.err) == (2, expected)


@pytest.mark.parametrize("duration", ["0s", "8d"])
def test_hold_of_impossible_length_names_the_option(cli: CliFixture, duration: str) -> None:
    result = cli.run("automation", "hold", "--yes", "--reason", "x", "--for", duration)

    assert (result.exit_code, result.err) == (2, f"✖ --for {duration}: a hold lasts 1s to 7d. [USAGE]\n")


def test_declined_question_says_that_nothing_changed(cli: CliFixture) -> None:
    result = cli.run("automation", "hold", "--reason", "x", terminal=True, answer="n")

    assert (result.exit_code, result.err.endswith("Nothing was changed.\n")) == (130, True)


def test_word_taken_for_the_command_is_named(cli: CliFixture) -> None:
    result = cli.run("jobs", "submit", "job.txt")

    assert result.exit_code == 2
    assert "job.txt was read as the command of the job. Job files end in .yaml, .yml or .json." in result.err


def test_empty_job_file_argument_is_refused(cli: CliFixture) -> None:
    assert cli.run("jobs", "submit", "").err == "✖ The job file argument is empty. [USAGE]\n"


def test_ctrl_c_while_modules_load_shows_no_traceback() -> None:
    program = """
import os, signal, sys
class CtrlC:
    def find_spec(name, *_):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, CtrlC)
from evenkeel_cli.__main__ import main
main()
"""
    completed = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=30)

    assert (completed.returncode, completed.stderr) == (-signal.SIGINT, "")


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


def test_unmanaged_workloads_are_listed_by_their_own_command(cli: CliFixture) -> None:
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
    cli.gateway.fakes.ledger.commit(Put(row))

    result = cli.run("jobs", "ls", "--unmanaged")

    assert "PyTorchJob research/llama" in result.out
    assert "Evenkeel moves it as soon as its node is faulty" in result.out
    assert cli.run("jobs", "ls", "--unmanaged", "-o", "name").out == "llama\n"


def test_node_shows_cpu_and_memory_or_unknown(cli: CliFixture) -> None:
    node_with_amounts = a_fleet_node(1, cpu_millis=192_000, cpu_millis_in_use=95_500, memory_mib=2_097_152)
    store(cli.gateway.fakes.ledger, node_with_amounts, a_fleet_node(2))
    store_fleet_counts(cli.gateway.fakes)

    page = cli.run("nodes", "show", "i-00000000000000001").out
    assert "95.5 of 192 vCPU requested" in page
    assert "0 of 2048 GiB requested" in page
    assert cli.run("nodes", "show", "i-00000000000000002").out.count(" unknown") == 2
    assert "95.5/192" in cli.run("nodes", "ls", "-o", "wide").out
    assert "192 vCPU in the fleet  95.5 requested  96.5 free" in cli.run("status", "-o", "wide").out
    assert "unknown on 1 node" in cli.run("status", "-o", "wide").out


def test_node_list_shows_unmanaged_workloads(cli: CliFixture) -> None:
    store(cli.gateway.fakes.ledger, a_fleet_node(1, unmanaged_workloads=("PyTorchJob research/llama",)))

    assert "PyTorchJob research/llama" in cli.run("nodes", "ls", "-o", "wide").out
    assert "PyTorchJob research/llama" in cli.run("nodes", "show", "i-00000000000000001").out


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
def test_json_output_is_the_api_answer(cli: CliFixture, words: str, path: str) -> None:
    store_running_recovery(cli.gateway)

    result = cli.run(*words.split(), "-o", "json")

    assert json.loads(result.out) == cli.gateway.get(path).document


@pytest.mark.parametrize("noun", ["jobs", "incidents", "nodes"])
def test_lists_have_all_output_formats(cli: CliFixture, noun: str) -> None:
    store_running_recovery(cli.gateway)
    document = json.loads(cli.run(noun, "ls", "-o", "json").out)
    names = cli.run(noun, "ls", "-o", "name").out.split()
    wide_lines = cli.run(noun, "ls", "-o", "wide").out.splitlines()
    key = {"jobs": "jobId", "incidents": "incidentId", "nodes": "instanceId"}[noun]

    assert [item[key] for item in document["items"]] == names
    assert len(wide_lines) == len(names) + 1


@pytest.mark.parametrize("noun", ["jobs", "incidents"])
def test_refused_filter_of_list_names_its_option(cli: CliFixture, noun: str) -> None:
    result = cli.run(noun, "ls", "--state", "asleep")

    assert (result.exit_code, result.out) == (2, "")
    assert result.err.startswith("✖ --state: must be 'PENDING', " if noun == "jobs" else "✖ --state: ")
    assert result.err.splitlines()[-1] == "  Correct this option."


def test_list_command_reads_all_pages(cli: CliFixture) -> None:
    store(cli.gateway.fakes.ledger, *(a_job(n) for n in range(1, 251)))

    result = cli.run("jobs", "ls", "--limit", "240", "-o", "name")

    assert result.out.split() == [f"job-{n:010d}" for n in range(250, 10, -1)]


CUT_LIST_WARNING = "Listed the first 2 items. There may be more: --limit accepts up to 1000.\n"


@pytest.mark.parametrize("noun", ["jobs", "incidents", "nodes"])
@pytest.mark.parametrize("form", ["table", "wide", "json", "name"])
def test_list_that_is_cut_at_the_limit_is_reported(cli: CliFixture, noun: str, form: str) -> None:
    for number in (1, 2, 3):
        store(cli.gateway.fakes.ledger, a_job(number), an_incident(number), a_fleet_node(number))

    shortened, complete = (cli.run(noun, "ls", "--limit", limit, "-o", form) for limit in ("2", "3"))

    assert (shortened.err, complete.err) == (CUT_LIST_WARNING, "")
    if form == "json":
        token = json.loads(shortened.out)["nextPageToken"]
        next_page = cli.gateway.get(f"/v1/{noun}?nextPageToken={token}").document["items"]
        (missing,) = [
            item for item in json.loads(complete.out)["items"] if item not in json.loads(shortened.out)["items"]
        ]
        assert ([missing], json.loads(complete.out)["nextPageToken"]) == (next_page, None)


@pytest.mark.parametrize(("state", "code"), [("RECOVERING", 20), ("RECOVERED", 0), ("WAITING_FOR_PERSON", 21)])
def test_status_check_sets_the_exit_code(cli: CliFixture, state: str, code: int) -> None:
    store(cli.gateway.fakes.ledger, an_incident(1, state=state))
    store_fleet_counts(cli.gateway.fakes)

    assert cli.run("status", "--check").exit_code == code


def test_status_names_the_pending_approval(cli: CliFixture) -> None:
    store(cli.gateway.fakes.ledger, an_incident(1, plan=PLAN_AWAITING_APPROVAL))

    output = cli.run("status", terminal=True).out

    assert "0 incidents working, 1 needs you" in output
    assert output.endswith("NEXT    evenkeel incidents approve inc-0000000001\n")


def test_status_reads_only_the_overview(cli: CliFixture) -> None:
    cli.run("status")

    assert [path for _, path, _ in cli.requests] == ["/v1/overview"]


def test_status_marks_old_counts_with_their_age(cli: CliFixture) -> None:
    store(cli.gateway.fakes.ledger, a_fleet_node(1))
    store_fleet_counts(cli.gateway.fakes, minutes_ago=12)

    lines = cli.run("status", terminal=True).out.splitlines()

    assert "COUNTED ▲ 12m ago: these numbers are not current" in lines


def test_status_shows_unchecked_jobs_as_not_checked_yet(cli: CliFixture) -> None:
    store(cli.gateway.fakes.ledger, an_incident(1, plan=PLAN_AWAITING_APPROVAL))

    assert "job   ○ not checked yet" in cli.run("status", terminal=True).out


def test_unusable_policy_is_shown_with_the_policy_in_force(cli: CliFixture) -> None:
    change = {"number": 3, "at": "2026-01-01T00:00:00Z", "by": "ana", "reason": "x", "changes": {"a": 1}}
    policy_document = {"hash": "h", "catalogueHash": "c", "policy": {"name": "default"}, "change": change}
    document = policy_document | {"refused": "change 3 by ana: a: there is no such field", "inForce": 2}
    cli.next_answers.append(ApiResponse(200, {}, json.dumps(document)))

    output = cli.run("policy", "show", terminal=True).out

    assert "change 3 is invalid, so change 2 is active:" in output
    assert "a: there is no such field" in output


def test_policy_show_says_that_no_policy_is_in_force(cli: CliFixture) -> None:
    change = {"number": 1, "at": "2026-01-01T00:00:00Z", "by": "ana", "reason": "x", "changes": {"a": 1}}
    document = dict.fromkeys(("hash", "catalogueHash", "policy", "inForce")) | {"change": change, "refused": "a: no."}
    cli.next_answers.append(ApiResponse(200, {}, json.dumps(document)))

    output = cli.run("policy", "show", terminal=True).out

    assert "no policy is active, so Evenkeel decides nothing:" in output
    assert "a: no." in output
    assert "by ana, change 1" in output


# ---------------------------------------------------------------- jobs and nodes by id, name or prefix


def test_job_is_found_by_id_name_prefix_or_latest(cli: CliFixture) -> None:
    store(cli.gateway.fakes.ledger, a_job(1), a_job(12))

    results = {
        typed: cli.run("jobs", "show", typed, "-o", "json")
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
def test_empty_argument_is_a_usage_error(cli: CliFixture, words: list[str]) -> None:
    store(cli.gateway.fakes.ledger, a_job(1), a_fleet_node(1), an_incident(1))

    result = cli.run(*words)

    assert (result.exit_code, result.out) == (2, "")
    assert "[USAGE]" in result.err
    assert {method for method, _, _ in cli.requests} <= {"GET"}


def test_ambiguous_prefix_exits_2_and_names_the_candidates(cli: CliFixture) -> None:
    store(cli.gateway.fakes.ledger, a_job(1), a_job(2))

    result = cli.run("jobs", "show", "llama-")

    assert result.exit_code == 2
    assert "job-0000000001" in result.err
    assert "[AMBIGUOUS]" in result.err


@pytest.mark.parametrize("typed", ["i-00000000000000001", "hyperpod-i-00000000000000001", "hyperpod-i-"])
@pytest.mark.parametrize("state", ["RECOVERING", "RECOVERED"])
def test_why_of_a_node_shows_its_latest_incident(cli: CliFixture, typed: str, state: str) -> None:
    earlier_incident, latest_incident = (
        an_incident(1, state="RECOVERED", opened_at=ago(days=1)),
        an_incident(2, state=state),
    )
    store(
        cli.gateway.fakes.ledger,
        a_job(1),
        a_fleet_node(1),
        earlier_incident,
        latest_incident.replace(life=earlier_incident.life),
    )

    result = cli.run("why", typed, "-o", "json")

    assert json.loads(result.out) == cli.gateway.get("/v1/incidents/inc-0000000002/why").document


def test_why_of_a_replaced_node_shows_its_incident(cli: CliFixture) -> None:
    store(cli.gateway.fakes.ledger, an_incident(1, state="RECOVERED"))

    assert cli.run("why", "i-00000000000000001").out.startswith("● inc-0000000001  recovered\n")


def test_why_of_a_healthy_node_names_the_next_command(cli: CliFixture) -> None:
    store(cli.gateway.fakes.ledger, a_fleet_node(1), an_incident(2))

    result = cli.run("why", "hyperpod-i-00000000000000001")

    assert result.exit_code == 4
    assert result.err == (
        "✖ There is no incident of i-00000000000000001. [NOT_FOUND]\n  evenkeel nodes show i-00000000000000001\n"
    )


def test_why_of_a_node_names_the_controller_that_repairs_it(cli: CliFixture) -> None:
    mark = "NVSentinel (dgxc.nvidia.com/nvsentinel-state=draining)"
    store(cli.gateway.fakes.ledger, a_fleet_node(1, is_cordoned=True, repaired_by=mark))

    why, shown_result = cli.run("why", "hyperpod-i-00000000000000001"), cli.run("nodes", "show", "i-00000000000000001")

    assert "Another controller repairs the node: NVSentinel" in why.out
    assert "nvsentinel-state=draining" in why.out.replace("\n", "")
    assert "repaired by" in shown_result.out
    assert cli.gateway.get("/v1/nodes/i-00000000000000001").document["repairedBy"] == mark


def test_why_of_an_unknown_name_is_refused(cli: CliFixture) -> None:
    result = cli.run("why", "nope")

    assert (result.exit_code, "There is no job, incident, node or decision 'nope'." in result.err) == (4, True)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["incidents", "show", "job-0000000001"], "job-0000000001 names a job, but this command takes an incident."),
        (["jobs", "show", "inc-0000000001"], "inc-0000000001 names an incident, but this command takes a job."),
        (["nodes", "show", "dec-0000000001"], "dec-0000000001 names a decision, but this command takes a node."),
    ],
)
def test_id_of_another_kind_is_refused(cli: CliFixture, words: list[str], expected: str) -> None:
    result = cli.run(*words)

    assert (result.exit_code, result.err) == (2, f"✖ {expected} [USAGE]\n  evenkeel why {words[-1]}\n")


def store_jobs_of_one_name(cli: CliFixture, *states: str) -> None:
    """Store jobs with the same name, oldest first. Job 1 waits in a team's queue, which is listed before all jobs."""
    jobs = [a_job(number, state=state, queue="research") for number, state in enumerate(states, 1)]
    store(cli.gateway.fakes.ledger, *(job.replace(spec=job.spec.replace(name="llama")) for job in jobs))


def test_name_of_several_jobs_means_the_newest(cli: CliFixture) -> None:
    store_jobs_of_one_name(cli, "PENDING", "RUNNING", "SUCCEEDED")

    shown_result = [cli.run(*words.split(), "-o", "json").out for words in ("jobs show llama", "jobs show @latest")]

    assert [json.loads(text)["jobId"] for text in shown_result] == ["job-0000000003"] * 2


@pytest.mark.parametrize(("typed", "number"), [("llama-700", 700), ("@latest", 701)])
def test_running_jobs_are_found_behind_a_long_queue(cli: CliFixture, typed: str, number: int) -> None:
    waiting = (a_job(n, queue="research") for n in range(1, 610))
    store(cli.gateway.fakes.ledger, *waiting, a_job(700, state="RUNNING"), a_job(701, state="RUNNING"))

    result = cli.run("jobs", "show", typed, "-o", "json")

    assert result.err == ""
    assert json.loads(result.out)["jobId"] == f"job-{number:010d}"


@pytest.mark.parametrize("words", ["cancel llama", "suspend llama", "resume llama", "priority llama high"])
def test_ambiguous_job_name_changes_no_job(cli: CliFixture, words: str) -> None:
    store_jobs_of_one_name(cli, "PENDING", "RUNNING", "SUCCEEDED")

    result = cli.run("jobs", *words.split())

    assert (result.exit_code, result.out) == (2, "")
    assert "2 jobs that have not ended are named 'llama': job-0000000001, job-0000000002. [AMBIGUOUS]" in result.err
    assert {method for method, _, _ in cli.requests} == {"GET"}


@pytest.mark.parametrize(
    "words", ["jobs show nope", "incidents show @latest", "nodes show i-1", "why inc-0000000404", "why dec-0000000404"]
)
def test_command_for_a_missing_object_exits_4(cli: CliFixture, words: str) -> None:
    result = cli.run(*words.split())

    assert (result.exit_code, result.out) == (4, "")
    assert "[NOT_FOUND]" in result.err


# ---------------------------------------------------------------- hold and release


def test_automation_is_held_and_released(cli: CliFixture) -> None:
    held = cli.run("automation", "hold", "--yes", "--reason", "network work", "--for", "30m")
    shown_result = cli.run("automation", "show")
    released = cli.run("automation", "release")

    assert held.out.startswith("▲ held, until 2026-11-03T10:45:02Z: network work\n")
    assert "held by user/" in shown_result.out or "held by role/" in shown_result.out
    assert released.out.startswith("● released\n")


def test_hold_of_a_pool_shows_how_to_release_it(cli: CliFixture) -> None:
    store(cli.gateway.fakes.ledger, a_fleet_node(1))
    unknown = cli.run("automation", "hold", "--yes", "--reason", "x", "--pool", "p5-worker")
    held = cli.run("automation", "hold", "--yes", "--reason", "new switch", "--pool", "p5-workers")
    shown_result, status = cli.run("automation", "show"), cli.run("status")
    released = cli.run("automation", "release", "--pool", "p5-workers")

    assert (unknown.exit_code, "Did you mean p5-workers?" in unknown.err) == (2, True)
    assert held.out.startswith("▲ held on p5-workers, until ")
    assert "evenkeel automation release --pool p5-workers" in shown_result.out
    assert "NEXT    evenkeel automation release --pool p5-workers" in status.out
    assert released.out.startswith("● released\n")


# ---------------------------------------------------------------- approve, cordon


def store_plan_awaiting_approval(cli: CliFixture) -> None:
    plan = {
        "run": 1,
        "outcome": "ASK",
        "repairsNode": True,
        "settleSeconds": 0,
        "maxRepairs": 3,
        "decisionId": "dec-0000000001",
        "reason": "Waits for approval. Plan: Evenkeel moves the jobs, then: replace.",
    }
    store(cli.gateway.fakes.ledger, an_incident(1, plan=plan), a_fleet_node(1))


def test_decline_after_an_approval_is_refused_with_its_author(cli: CliFixture) -> None:
    store_plan_awaiting_approval(cli)

    shown_result = cli.run("incidents", "show", "inc-0000000001")
    first = cli.run("incidents", "approve", "inc-0000000001", "--yes", "--reason", "go")
    second = cli.run("incidents", "decline", "inc-0000000001", "--yes")

    assert "Waits for approval. Plan: Evenkeel moves the jobs, then: replace. (dec-0000000001)" in shown_result.out
    assert first.out.startswith("● inc-0000000001  approved\n")
    assert (second.exit_code, "approved it. [PLAN_SUPERSEDED]" in second.err) == (5, True)


def test_script_must_pass_yes_instead_of_a_prompt(cli: CliFixture) -> None:
    store_plan_awaiting_approval(cli)

    result = cli.run("incidents", "approve", "inc-0000000001")

    assert (result.exit_code, "--yes" in result.err) == (2, True)
    assert cli.gateway.get("/v1/incidents/inc-0000000001").document["approval"] is None


def test_node_is_cordoned_and_uncordoned(cli: CliFixture) -> None:
    store(cli.gateway.fakes.ledger, a_fleet_node(1), a_fleet_node(2), an_incident(2))
    cli.gateway.fakes.cluster.cordon(CLUSTER, a_fleet_node(2).node_name, "inc-0000000002")

    cordoned = cli.run("nodes", "cordon", "--yes", a_fleet_node(1).life.instance_id, "--reason", "mine")
    uncordoned = cli.run("nodes", "uncordon", "--yes", a_fleet_node(2).life.instance_id)

    assert cordoned.out.startswith(f"● {a_fleet_node(1).life.instance_id}  cordoned\n")
    assert f"evenkeel nodes uncordon {a_fleet_node(1).life.instance_id}" in cordoned.out
    assert uncordoned.out.startswith(f"● {a_fleet_node(2).life.instance_id}  released\n")


ACTS_OF_OPERATORS = {
    "cordon": ("nodes cordon {node} --reason fans", "The node gets no new pods."),
    "uncordon": ("nodes uncordon {node}", "Nothing changes: the node is not cordoned."),
    "hold": ("automation hold --reason x", "No recovery repairs a node or stops a job until "),
}


@pytest.mark.parametrize(("words", "effect"), ACTS_OF_OPERATORS.values(), ids=ACTS_OF_OPERATORS)
def test_operator_act_shows_its_plan_and_asks(cli: CliFixture, words: str, effect: str) -> None:
    store(cli.gateway.fakes.ledger, a_fleet_node(1), an_incident(2))
    command = words.format(node=a_fleet_node(1).life.instance_id).split()
    before = dict(cli.gateway.fakes.ledger.rows)

    piped = cli.run(*command)
    dry_run = cli.run(*command, "--dry-run", "-o", "json")
    declined = cli.run(*command, answer="n")
    unchanged = cli.gateway.fakes.ledger.rows == before
    agreed = cli.run(*command, answer="y")

    assert (piped.exit_code, "add --yes" in piped.err) == (2, True)
    assert json.loads(dry_run.out)["effects"][0].startswith(effect)
    assert [effect in " ".join(result.err.split()) for result in (declined, agreed)] == [True, True]
    assert (unchanged, declined.exit_code, agreed.exit_code) == (True, 130, 0), agreed.err


def test_stack_without_plans_still_asks(cli: CliFixture) -> None:
    store(cli.gateway.fakes.ledger, a_fleet_node(1))
    fault = {"title": "Invalid", "detail": "dryRun: is not a field", "code": "VALIDATION_FAILED"}
    cli.next_answers = [ApiResponse(400, {}, json.dumps(fault))]

    result = cli.run("nodes", "cordon", a_fleet_node(1).life.instance_id, answer="y")

    assert (result.exit_code, "older than the command" in " ".join(result.err.split())) == (0, True), result.err


def test_node_replacement_needs_a_dry_run_or_yes(cli: CliFixture) -> None:
    store(cli.gateway.fakes.ledger, a_fleet_node(1))
    node, queued = a_fleet_node(1).life.instance_id, cli.gateway.fakes.inbox.queued

    dry_run = cli.run("nodes", "replace", node, "--reason", "old", "--dry-run")
    without_yes = cli.run("nodes", "replace", node, "--reason", "old")
    nothing = list(queued)
    confirmed = cli.run("nodes", "replace", node, "--reason", "old", "--yes")

    assert dry_run.out.startswith(f"○ {node}  act, in a dry run\n")
    assert "A person asks for it to be replaced: Evenkeel moves the jobs, then: replace." in dry_run.out
    assert (without_yes.exit_code, "--yes" in without_yes.err, nothing) == (2, True, [])
    assert confirmed.out.startswith(f"● {node}  replacement requested\n")
    assert len(queued) == 1


def test_cordoned_node_of_list_fits_the_terminal(cli: CliFixture) -> None:
    name = f"hyperpod-{instance_id(1)}"
    store(cli.gateway.fakes.ledger, an_incident(2), a_fleet_node(1, node_name=name), a_fleet_node(2))
    cli.run("nodes", "cordon", instance_id(1), "--reason", "fan noise in slot 4", "--yes")

    result = cli.run("nodes", "ls", terminal=True)

    assert "    role/Researcher (ana): fan noise in slot 4" in result.out.splitlines()
    assert max(map(len, result.out.splitlines())) <= 80


def test_node_list_shows_the_blocking_guardrail(cli: CliFixture) -> None:
    block = {
        "guardrail": "POOL_REPAIRS",
        "reason": "2 of 8 are in repair.",
        "since": "2026-11-03T10:00:00Z",
        "act": "reboot",
    }
    store(cli.gateway.fakes.ledger, a_fleet_node(1), an_incident(1, state="BLOCKED", block=block))

    assert "blocked" in cli.run("nodes", "ls").out
    assert "inc-0000000001 (pool repairs)" in cli.run("nodes", "ls").out
    assert "POOL_REPAIRS: 2 of 8 are in repair." in cli.run("nodes", "show", a_fleet_node(1).life.instance_id).out


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("2h", 7200), ("1d", 86_400)])
def test_durations_are_parsed(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "m", "-1h", "1h30m", "1y"])
def test_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(CommandFailed) as error_info:
        parse_duration(text)

    assert error_info.value.exit_code == 2


# ---------------------------------------------------------------- errors, contexts and credentials


@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [
        (400, "REFUSED", 2),
        (401, "X", 6),
        (403, "NOT_ALLOWED", 6),
        (404, "NOT_FOUND", 4),
        (409, "CONFLICT", 5),
        (412, "STALE_VERSION", 5),
        (422, "IDEMPOTENCY_KEY_REUSED", 2),
        (500, "INTERNAL", 1),
    ],
)
def test_each_problem_has_its_exit_code(cli: CliFixture, status: int, code: str, exit_code: int) -> None:
    problem = {"status": status, "code": code, "detail": "What happened.", "hint": "Do that.", "requestId": "r-1"}
    cli.next_answers = [ApiResponse(status, {}, json.dumps(problem))]

    result = cli.run("status")

    assert (result.exit_code, result.out) == (exit_code, "")
    assert result.err.splitlines()[:2] == [f"✖ What happened. [{code}]", "  Do that."]


def test_documented_exit_codes_are_those_of_the_commands() -> None:
    section = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8").partition("## Exit codes")[2].partition("\n## ")[0]
    documented = {
        int(code) for cell in re.findall(r"^\| ([\d, ]+) \|", section, re.MULTILINE) for code in cell.split(",")
    }

    assert documented == set(Exit)
    assert documented == {Exit.DONE, Exit.UNSUCCESSFUL_END, Exit.DEGRADED, Exit.CRITICAL, Exit.TIMED_OUT} | {
        Exit.INTERRUPTED,
        *(exit_for(problem.status) for problem in PROBLEMS.values()),
    }


def test_refusal_by_api_gateway_has_a_plain_message(cli: CliFixture) -> None:
    cli.next_answers = [ApiResponse(403, {}, '{"message": "Forbidden"}')]

    result = cli.run("status")

    assert result.exit_code == 6
    assert result.err.startswith("✖ Forbidden [HTTP_403]\n  Your AWS identity does not have permission")


def test_short_throttling_is_retried(cli: CliFixture) -> None:
    cli.next_answers = [ApiResponse(429, {}, '{"code": "THROTTLED"}')]

    assert cli.run("jobs", "ls", "-o", "json").exit_code == 0


def test_long_throttling_exits_8(cli: CliFixture) -> None:
    cli.next_answers = [ApiResponse(503, {}, '{"code": "UNAVAILABLE", "detail": "Not now."}')] * 3

    assert cli.run("status").exit_code == 8


@pytest.mark.parametrize(
    ("words", "status"),
    [("jobs submit --name x --image i:1 -- train", 503), ("nodes cordon --yes i-00000000000000001", 500)],
)
def test_lost_answer_to_a_change_shows_the_key_for_repeating(cli: CliFixture, words: str, status: int) -> None:
    store(cli.gateway.fakes.ledger, a_fleet_node(1))
    cli.next_answers = [ApiResponse(status, {}, '{"code": "LOST", "detail": "Nobody knows.", "hint": "Look."}')] * 3

    result = cli.run(*words.split())

    sent = {headers["Idempotency-Key"] for method, _, headers in cli.requests if method == "POST"}
    shown_keys = re.findall(r"add --idempotency-key (\S+) to the same command", result.err)
    assert (result.exit_code, set(shown_keys)) == (8 if status == 503 else 1, sent)
    assert "  Look.\n" in result.err


def test_repeated_fault_report_keeps_its_time(cli: CliFixture) -> None:
    cli.next_answers = [ApiResponse(500, {}, '{"code": "LOST", "detail": "Nobody knows."}')]

    result = cli.run("faults", "report", "i-00000000000000001", "xid:79")

    assert re.search(r"--idempotency-key cli-\w+ --at \d{4}-\d\d-\d\dT[\d:]{8}Z to the same command", result.err)


@pytest.mark.parametrize(
    "words", ["jobs plan --name x --image i:1 -- train", "nodes replace i-00000000000000001 --reason old"]
)
def test_lost_answer_to_a_read_shows_no_key(cli: CliFixture, words: str) -> None:
    cli.next_answers = [ApiResponse(500, {}, '{"code": "LOST", "detail": "Nobody knows."}')]

    result = cli.run(*words.split())

    assert (result.exit_code, result.err) == (1, "✖ Nobody knows. [LOST]\n")


def test_answer_that_is_not_from_evenkeel_is_reported(cli: CliFixture) -> None:
    cli.next_answers = [ApiResponse(200, {}, "<html>")]

    result = cli.run("status")

    assert (result.exit_code, "[NOT_EVENKEEL]" in result.err) == (1, True)


def test_unreachable_api_exits_8(cli: CliFixture) -> None:
    cli.write_context({**cli.context, "url": "http://127.0.0.1:9/v1"})

    result = cli.run("status")

    assert (result.exit_code, "[UNREACHABLE]" in result.err) == (8, True)


@pytest.mark.parametrize(
    ("document", "code"),
    [
        ({"name": "x", "url": "http://example.com/v1", "region": "us-west-2"}, "BAD_CONTEXT"),
        ({"name": "x", "url": "https://example.com/", "region": "us-west-2"}, "BAD_CONTEXT"),
        ([], "BAD_CONTEXT"),
    ],
)
def test_unusable_context_exits_2(cli: CliFixture, document: object, code: str) -> None:
    cli.write_context(document)

    result = cli.run("status")

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
def test_missing_field_of_credentials_is_named(cli: CliFixture, credentials: object, missing: str) -> None:
    cli.write_context({**cli.context, "credentials": credentials})

    result = cli.run("status")

    assert (result.exit_code, result.out) == (2, "")
    assert f"cannot be used: {missing}. [BAD_CONTEXT]" in result.err


def test_missing_context_names_the_command_to_create_one(cli: CliFixture) -> None:
    (cli.folder / ".evenkeel" / "context.json").unlink()

    result = cli.run("status")

    assert (result.exit_code, "EVENKEEL_URL" in result.err) == (2, True)


def test_api_address_from_the_environment_uses_the_callers_credentials(
    cli: CliFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cli.folder / ".evenkeel" / "context.json").unlink()
    monkeypatch.setenv("EVENKEEL_URL", cli.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAANA")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token-of-ana")

    result = cli.run("automation", "show")

    headers = cli.requests[-1][2]
    assert result.exit_code == 0
    assert "Credential=AKIAANA/" in headers["Authorization"]
    assert "/us-west-2/execute-api/aws4_request" in headers["Authorization"]
    assert headers["X-Amz-Security-Token"] == "token-of-ana"


def test_missing_credentials_name_the_next_step(cli: CliFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.write_context({key: value for key, value in cli.context.items() if key != "credentials"})
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)

    result = cli.run("status")

    assert (result.exit_code, "aws sso login" in result.err) == (6, True)


def test_drills_need_the_local_data_centre(cli: CliFixture) -> None:
    result = cli.run("drill", "inject", "gpu-xid79")

    assert (result.exit_code, "[NOT_LOCAL]" in result.err) == (6, True)


def test_drills_are_listed_without_a_local_data_centre(cli: CliFixture) -> None:
    result = cli.run("drill", "ls", "-o", "name")

    assert (result.exit_code, "storm" in result.out.splitlines()) == (0, True)


def test_unknown_drill_is_named(cli: CliFixture) -> None:
    result = cli.run("drill", "run", "earthquake")

    assert (result.exit_code, "[NO_SUCH_DRILL]" in result.err) == (4, True)


def test_fault_is_injected_into_the_current_attempt(cli: CliFixture) -> None:
    store_running_recovery(cli.gateway)
    cli.write_context({**cli.context, "controlUrl": cli.url.removesuffix("/v1")})
    injection_answer = {"faultId": "fault-1", "fault": "gpu-xid79", "node": "hyperpod-i-1", "cleared": False}
    job_answer = cli.gateway.get("/v1/jobs/job-0000000001")
    jobs_answer = cli.gateway.get("/v1/jobs")
    cli.next_answers = [jobs_answer, job_answer, ApiResponse(201, {}, json.dumps(injection_answer))]

    result = cli.run("drill", "inject", "gpu-xid79", "--job", "llama-1", "--set", "code=48", "--set", "zone=a")

    assert result.out.splitlines()[0] == "▲ gpu-xid79 on hyperpod-i-1 (fault-1)"
    assert cli.requests[-1][1] == "/control/faults"
    job = f"{job_answer.document['namespace']}/job-0000000001-a{job_answer.document['currentAttempt']}"
    assert json.loads(cli.bodies[-1]) == {"fault": "gpu-xid79", "job": job, "code": 48, "zone": "a"}


@pytest.mark.parametrize("words", ["", "--help", "jobs", *(f"{noun} --help" for noun in NOUNS)])
def test_help_exits_0(cli: CliFixture, words: str) -> None:
    result = cli.run(*words.split())

    assert (result.exit_code, result.err) == (0, "")
    assert result.out.startswith("Usage: evenkeel ")
    assert max(len(line) for line in result.out.splitlines()) <= 80


def test_status_shows_rentals_of_a_deployment(cli: CliFixture) -> None:
    text = "1 node of chat-burst is rented for the job."
    memory = ServingState.of(CHAT).replace(rentals=1, last_note=PlacementNote(key="RENT", text=text))
    cli.gateway.fakes.ledger.commit(
        Put(job_rows.serving_row(memory, 0)), Put(job_rows.rental_row(serving_rental(1), 0))
    )

    store_fleet_counts(cli.gateway.fakes)
    output = cli.run("status", terminal=True).out
    cli.gateway.fakes.ledger.commit(Put(job_rows.serving_row(memory.replace(last_note=None), 1)))
    ended_rental = end_rental(serving_rental(1).replace(state=RentalState.ENDING), A_MOMENT).rental
    cli.gateway.fakes.ledger.commit(Put(job_rows.rental_row(ended_rental, 1)))
    store_fleet_counts(cli.gateway.fakes)

    assert f"SERVING serving/chat: 1 node rented\n        {text}\n" in output
    assert "SERVING" not in cli.run("status", terminal=True).out


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("nonsense", "evenkeel"),
        ("jobs nonsense", "evenkeel jobs"),
        ("jobs show", "evenkeel jobs show"),
        ("jobs submit --dry-run", "evenkeel jobs submit"),
        ("jobs ls --limit many", "evenkeel jobs ls"),
    ],
)
def test_usage_error_exits_2_and_names_help_of_command(cli: CliFixture, words: str, command: str) -> None:
    result = cli.run(*words.split())

    assert (result.exit_code, result.out) == (2, "")
    assert "[USAGE]" in result.err
    assert f"  {command} --help\n" in result.err


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


def test_help_starts_within_twice_the_time_of_typer_alone() -> None:
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
def test_output_into_a_closed_pipe_is_no_failure(tmp_path: Path, words: str, code: int) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    environment = {**os.environ, "HOME": str(tmp_path)}

    completed = subprocess.run(
        [sys.executable, "-m", "evenkeel_cli.main", *words.split()],
        check=False,
        stdout=writer,
        stderr=writer if code else subprocess.PIPE,
        text=True,
        env=environment,
        timeout=30,
    )
    os.close(writer)

    assert (completed.returncode, completed.stderr or "") == (code, "")


def test_help_loads_neither_botocore_nor_rich(tmp_path: Path) -> None:
    code = (
        "import sys; from evenkeel_cli.main import main; main(['--help']);"
        "print([name for name in ('botocore', 'rich', 'boto3', 'pydantic') if name in sys.modules], file=sys.stderr)"
    )
    completed = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path, timeout=30
    )

    assert completed.stderr.strip() == "[]"


def test_job_shows_its_rental_and_cost(cli: CliFixture) -> None:
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
    store(cli.gateway.fakes.ledger, job)
    cli.gateway.fakes.ledger.commit(Put(job_rows.rental_row(rental, 0)))

    result = cli.run("jobs", "show", job.job_id)

    assert "burst-spot" in result.out
    assert "$1.122222" in result.out


def test_job_of_another_team_is_shown_partly(cli: CliFixture) -> None:
    team = {"name": "nlp", "namespace": "nlp", "members": []}
    new = {"If-None-Match": "*"}
    assert cli.gateway.call("PUT", "/v1/teams/nlp/quota", {"team": team, "reason": "x"}, headers=new).status == 200
    job = a_job(1, state="FAILED", reason="The exit message.", current_attempt=1)
    store(cli.gateway.fakes.ledger, job.replace(spec=job.spec.replace(team="nlp")), an_attempt(job, state="FAILED"))

    shown_job, why, logs = (
        cli.run(*words, terminal=True)
        for words in (
            ("jobs", "show", "job-0000000001"),
            ("why", "job-0000000001"),
            ("jobs", "logs", "job-0000000001"),
        )
    )

    assert (shown_job.exit_code, why.exit_code, logs.exit_code) == (0, 0, 6)
    assert "Only team nlp and operators see its command" in " ".join(shown_job.out.split())
    assert "The exit message." not in shown_job.out + why.out


# ---------------------------------------------------------------- unreachable clusters and stale facts


def store_unreachable_cluster(cli: CliFixture) -> None:
    """Store a fleet whose cluster stopped answering twelve minutes ago."""
    ledger = cli.gateway.fakes.ledger
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
    store(ledger, a_fleet_node(1), a_job(1, state="RUNNING", started_at=ago(minutes=25)))


def test_status_check_fails_while_a_cluster_does_not_answer(cli: CliFixture) -> None:
    store_unreachable_cluster(cli)

    result = cli.run("status", "--check")

    assert result.exit_code == 21
    assert "Cluster research-eks does not answer since 2026-11-03 10:04:02Z" in result.out


def test_lists_show_when_stale_facts_were_last_seen(cli: CliFixture) -> None:
    store_unreachable_cluster(cli)

    nodes, jobs = (cli.run(noun, "ls", terminal=True) for noun in ("nodes", "jobs"))

    assert "in service, last seen 12m ago" in nodes.out
    assert "running, last seen 12m ago" in jobs.out
    assert all(
        "These facts may be stale. Cluster research-eks does not answer" in result.err for result in (nodes, jobs)
    )


def test_job_on_an_unreachable_cluster_is_shown_with_its_age(cli: CliFixture) -> None:
    store_unreachable_cluster(cli)

    outputs = [cli.run(noun, *words, "llama-1", terminal=True).out for noun, *words in (("why",), ("jobs", "show"))]

    assert ["running, last seen 12m ago" in output.splitlines()[0] for output in outputs] == [True, True]


def test_incident_with_pending_approval_names_the_next_command(cli: CliFixture) -> None:
    store_plan_awaiting_approval(cli)

    output = cli.run("incidents", "show", "inc-0000000001").out

    assert output.splitlines()[-1] == "next  evenkeel incidents approve inc-0000000001"


def test_status_shows_the_age_of_stale_numbers(cli: CliFixture) -> None:
    store_unreachable_cluster(cli)
    store_fleet_counts(cli.gateway.fakes)

    lines = cli.run("status", terminal=True).out.splitlines()

    nodes, gpus = (next(line for line in lines if line.startswith(title)) for title in ("NODES", "GPUs"))
    assert "1 in service ▲, last seen 12m ago" in nodes
    assert gpus.endswith("free in service, last seen 12m ago")
    assert "        running, last seen 12m ago" in lines
    assert lines[-1] == "NEXT    evenkeel doctor"


@pytest.mark.parametrize("words", ["why llama-1", "incidents ls", "jobs show llama-1"])
def test_every_command_warns_of_stale_facts(cli: CliFixture, words: str) -> None:
    store_unreachable_cluster(cli)

    assert "These facts may be stale." in cli.run(*words.split(), terminal=True).err


def test_wide_status_lists_every_source(cli: CliFixture) -> None:
    output = cli.run("status", "-o", "wide", terminal=True).out

    assert "Cluster research-eks answered (last answer 0 s ago)." in output
    assert "Sweep step rentals answered" in output


def test_wide_status_shows_age_of_each_last_run(cli: CliFixture) -> None:
    cli.gateway.fakes.ledger.commit(Delete(fleet_rows.heartbeat_key("watch_cluster"), 1))
    cli.gateway.fakes.clock.advance(95)

    output = cli.run("status", "-o", "wide", terminal=True).out

    assert "● The last run of sweep_fleet ended 1m35s ago." in output
    assert "▲ The last run of watch_cluster has not ended yet." in output
    cli.gateway.fakes.clock.advance(900)
    assert "✖ The last run of sweep_fleet ended" in cli.run("status", "-o", "wide", terminal=True).out


def test_cordon_shows_its_author_and_reason(cli: CliFixture) -> None:
    node = a_fleet_node(1).life.instance_id
    store(cli.gateway.fakes.ledger, a_fleet_node(1))
    cli.run("nodes", "cordon", "--yes", node, "--reason", "fan noise")

    answers = {
        words: cli.run(*words) for words in (("nodes", "ls"), ("nodes", "show", node), ("status",), ("why", node))
    }
    uncordoned = cli.run("nodes", "uncordon", "--yes", node)

    assert [
        words for words, answer in answers.items() if "fan noise" not in answer.out or "(ana)" not in answer.out
    ] == []
    assert f"next  evenkeel nodes uncordon {node}" in answers["why", node].out
    assert uncordoned.exit_code == 0
    assert "fan noise" not in cli.run("nodes", "show", node).out


def test_job_file_may_be_yaml(cli: CliFixture) -> None:
    lines = ["name: from-yaml", "image: registry/trainer:1", "command: [python, -m, train]", "nodes: 2"]
    (cli.folder / "job.yaml").write_text("\n".join([*lines, "deadline: 2027-01-31T08:00:00Z"]))

    result = cli.run("jobs", "submit", "job.yaml")

    assert (result.exit_code, result.err) == (0, "")
    body = json.loads(cli.bodies[-1])
    assert (body["name"], body["nodes"], body["deadline"]) == ("from-yaml", 2, "2027-01-31T08:00:00Z")


def test_new_job_file_is_accepted_with_every_field(cli: CliFixture) -> None:
    assert cli.run("jobs", "init").exit_code == 0
    file = cli.folder / "job.yaml"
    text = file.read_text()
    commented = re.sub(r"^( *)# (\w+: )", r"\1\2", text, flags=re.MULTILINE)

    plan_result, all_fields = cli.run("jobs", "plan", "job.yaml"), yaml.safe_load(commented)

    assert (plan_result.exit_code, plan_result.err) == (0, "")
    schema = json.loads((ROOT / "docs" / "schemas" / "submission.schema.json").read_text())
    assert set(all_fields) <= set(schema["properties"])
    assert len(all_fields) > 15


def test_new_job_file_overwrites_nothing(cli: CliFixture) -> None:
    (cli.folder / "job.yaml").write_text("mine")

    result = cli.run("jobs", "init")

    assert (result.exit_code, "[FILE_EXISTS]" in result.err) == (2, True)
    assert (cli.folder / "job.yaml").read_text() == "mine"
    assert cli.run("jobs", "init", "--force").exit_code == 0


@pytest.mark.parametrize("words", ["status", "jobs ls", "jobs show llama-1", "why llama-1", "nodes ls", "teams ls"])
def test_yaml_output_has_the_content_of_the_json_output(cli: CliFixture, words: str) -> None:
    store_running_recovery(cli.gateway)

    as_yaml, as_json = cli.run(*words.split(), "-o", "yaml"), cli.run(*words.split(), "-o", "json")

    assert yaml.safe_load(as_yaml.out) == json.loads(as_json.out)


def test_yaml_output_escapes_control_characters(cli: CliFixture) -> None:
    store(cli.gateway.fakes.ledger, a_job(1, reason="\x1b[31mred\u202eturned"))

    result = cli.run("jobs", "show", "llama-1", "-o", "yaml")

    assert "\x1b" not in result.out
    assert "\u202e" not in result.out
    assert yaml.safe_load(result.out)["reason"] == "\x1b[31mred\u202eturned"


@pytest.mark.parametrize("noun", ["jobs", "incidents", "nodes"])
def test_watched_list_is_printed_again_until_interrupted(
    cli: CliFixture, monkeypatch: pytest.MonkeyPatch, noun: str
) -> None:
    store_running_recovery(cli.gateway)
    paused_seconds: list[float] = []

    def pause(seconds: float) -> None:
        paused_seconds.append(seconds)
        if len(paused_seconds) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("evenkeel_cli.commands.output.time.sleep", pause)
    cli.next_answers = []

    result = cli.run(noun, "ls", "-w", "-o", "name")

    once = cli.run(noun, "ls", "-o", "name").out
    assert (result.exit_code, result.out) == (130, once * 3)


def test_version_is_a_command_and_an_option(cli: CliFixture) -> None:
    assert cli.run("--version").out == cli.run("version").out


def test_first_example_of_the_readme_is_a_valid_job(cli: CliFixture) -> None:
    result = cli.run("jobs", "plan", str(ROOT / "docs" / "examples" / "first.yaml"))

    assert (result.exit_code, result.err) == (0, "")
