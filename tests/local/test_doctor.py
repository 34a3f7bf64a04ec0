"""`evenkeel doctor` in the running data centre: healthy, and with faults planted in its real parts."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evenkeel_cli.offline import access
from evenkeel_local.data_centre import DataCentre
from evenkeel_local.deployment import STACK_NAME
from evenkeel_local.drills import await_all_nodes_ready
from evenkeel_local.identities import make_user
from tests.waiting import until

pytestmark = pytest.mark.timeout(300)

Json = dict[str, Any]
UNKNOWN_HERE = {("hyperpod", "patch level"), ("events", ""), ("fleets", "")}
"""Checks that the local HyperPod and the local engine cannot answer.

The engine allows GetParametersByPath only on `*`; AWS allows it on the path of the parameters.
"""


class DoctorBench:
    """A data centre and the command."""

    def __init__(self, centre: DataCentre, folder: Path) -> None:
        self.centre = centre
        self.folder = folder
        self.context = centre.context()

    def run(self) -> tuple[int, list[Json]]:
        (self.folder / "context.json").write_text(json.dumps(self.context), encoding="utf-8")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "EVENKEEL_"))}
        completed = subprocess.run(
            [sys.executable, "-m", "evenkeel_cli.main", "doctor", "--json"],
            env=environment | {"EVENKEEL_CONTEXT": str(self.folder / "context.json")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert completed.stderr == ""
        document = json.loads(completed.stdout)
        assert document["exitCode"] == completed.returncode
        return completed.returncode, document["findings"]

    def findings_not_ok(self) -> dict[tuple[str, str], Json]:
        """Return the checks that are not ok, by check and subject."""
        return {
            (document["check"], document["subject"]): document
            for document in self.run()[1]
            if document["status"] != "ok"
        }


@pytest.fixture(scope="module")
def bench(data_centre: DataCentre, tmp_path_factory: pytest.TempPathFactory) -> DoctorBench:
    await_all_nodes_ready(data_centre.client(), data_centre)
    doctor_bench = DoctorBench(data_centre, tmp_path_factory.mktemp("doctor"))
    until(
        lambda: not any(check in ("ages", "sources") for check, _ in doctor_bench.findings_not_ok()),
        "every function to have run",
        120,
    )
    return doctor_bench


def test_doctor_cannot_decide_three_checks_of_healthy_data_centre(bench: DoctorBench) -> None:
    code, findings = bench.run()

    findings_not_ok = {
        (finding["check"], finding["subject"]): finding["status"] for finding in findings if finding["status"] != "ok"
    }
    assert findings_not_ok == dict.fromkeys(UNKNOWN_HERE, "unknown")
    assert code == 2


def test_disabled_schedule_is_a_warning_with_its_command(bench: DoctorBench) -> None:
    scheduler, name = bench.centre.deployer.client("scheduler"), f"{STACK_NAME}-sweep_fleet"
    schedule = scheduler.get_schedule(Name=name)
    document = {key: schedule[key] for key in ("Name", "ScheduleExpression", "Target", "FlexibleTimeWindow")}
    scheduler.update_schedule(**document, State="DISABLED")
    try:
        findings = bench.findings_not_ok()
    finally:
        scheduler.update_schedule(**document, State="ENABLED")

    assert findings["schedules", ""]["status"] == "warning"
    assert "sweep_fleet" in findings["schedules", ""]["text"]


def test_dead_letter_finding_names_its_runbook(bench: DoctorBench) -> None:
    sqs, url = bench.centre.deployer.client("sqs"), bench.centre.outputs["FailedCyclesQueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="{}", MessageGroupId="g", MessageDeduplicationId="d")
    try:
        findings = bench.findings_not_ok()
    finally:
        sqs.purge_queue(QueueUrl=url)

    assert findings["dead-letters", "FailedCyclesQueue"]["fix"] == "docs/runbooks/failed-cycles.md"


def test_access_entry_without_a_group_names_missing_verbs(bench: DoctorBench) -> None:
    role = bench.centre.roles["repair_node"]
    groups = access.groups_of("repair_node")
    bench.centre.cluster.put_access_entry(role, [group for group in groups if group != "evenkeel:retirers"])
    try:
        findings = bench.findings_not_ok()
    finally:
        bench.centre.cluster.put_access_entry(role, groups)

    finding = findings["access", "repair_node"]
    assert (finding["status"], "lacks: delete nodes." in finding["text"]) == ("failed", True)
    assert f"--principal-arn {role} --kubernetes-groups {' '.join(groups)}" in finding["fix"]


def test_checks_without_permission_are_reported_as_unknown(bench: DoctorBench) -> None:
    less = make_user(bench.centre.deployer, "doctor-without-rights", [])
    bench.context = bench.context | {
        "credentials": {"accessKeyId": less.access_key_id, "secretAccessKey": less.secret_access_key}
    }
    try:
        code, findings = bench.run()
    finally:
        bench.context = bench.centre.context()

    assert code == 1  # the API refuses it
    # The engine lets every caller read the account's limits.
    assert {finding["check"] for finding in findings if finding["status"] == "ok"} == {"credentials", "concurrency"}


def test_doctor_reports_a_wrong_secret_as_credentials_failure(bench: DoctorBench) -> None:
    key = bench.context["credentials"]["accessKeyId"]
    bench.context = bench.context | {"credentials": {"accessKeyId": key, "secretAccessKey": "wrong"}}
    try:
        findings = bench.findings_not_ok()
    finally:
        bench.context = bench.centre.context()

    assert findings["credentials", ""]["status"] == "failed"


@pytest.fixture
def stopped_gpu_cluster(bench: DoctorBench) -> Iterator[None]:
    """Kill the GPU cluster; start it again afterwards, with the nodes that it had."""
    os.kill(bench.centre.cluster.pid, signal.SIGKILL)
    yield
    bench.centre.restart_cluster()
    await_all_nodes_ready(bench.centre.client(), bench.centre)


@pytest.mark.usefixtures("stopped_gpu_cluster")
def test_doctor_finds_a_dead_gpu_cluster_through_the_functions(bench: DoctorBench) -> None:
    findings = bench.findings_not_ok()

    assert findings["kubernetes", bench.centre.cluster.eks_cluster_name]["status"] == "failed"
    assert findings["kueue", bench.centre.cluster.eks_cluster_name]["status"] == "unknown"
    assert findings["hyperpod", ""]["status"] == "unknown"
