"""An upgrade and a rollback during jobs and recoveries: each execution ends on the release on which it began.

The next release is made from this tree by two changes: a field of a job's row, and a state of each workflow. The
upgrade begins on this tree, and once more on the commit `PREVIOUS`. A shallow clone lacks that commit, and skips the
second case.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from samtranslator.yaml_helper import yaml_parse

from evenkeel.adapters.dynamo_ledger import document_of
from evenkeel_local import PROJECT
from evenkeel_local.data_centre import DataCentre
from evenkeel_local.deployment import STACK_NAME, deploy
from evenkeel_local.drills import SETTLED, TrainingWork
from tests.local import signals
from tests.local.conftest import EARLIER_POLICIES
from tests.local.training import TrainingJob, with_all_nodes_in_service
from tests.waiting import until
from tools import rollback

Json = dict[str, Any]

LONG = TrainingWork(nodes=1, steps=4000, checkpoint_every=10, step_seconds=0.2)
"""Never ends by itself within the test."""
SECONDS = 90.0
NEXT = "noteOfTheNextRelease"
PREVIOUS = "4257693647bf"
"""The earlier release: the last commit that renamed fields of rows. Every later release must read its rows."""
PARTS = ("functions", "shared", "statemachines", "template.yaml", "samconfig.toml")

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(1800)]


@pytest.fixture(autouse=True)
def _all_nodes_in_service(data_centre: DataCentre) -> Iterator[None]:
    yield from with_all_nodes_in_service(data_centre)


def _empty_folder(name: str) -> Path:
    """Return an empty folder. Its name is always the same, because a cached build contains the name of its sources."""
    folder = PROJECT / ".evenkeel" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


@pytest.fixture(params=["this tree", PREVIOUS])
def first_release(request: pytest.FixtureRequest, data_centre: DataCentre) -> Iterator[str]:
    """Deploy the release before the upgrade. Afterwards, deploy this tree again for the other tests."""
    if request.param == "this tree":
        yield request.param
        return
    release = _release_of_commit(request.param)
    EARLIER_POLICIES.add(_policy_hash(release.parent))
    upgrade(data_centre, release)
    yield request.param
    upgrade(data_centre, PROJECT / "template.yaml")


def _release_of_commit(commit: str) -> Path:
    """Return the template of a commit, in a folder with all its files.

    Skip the test if the clone lacks the commit: tests do not use the network.
    """
    git = ["git", "-C", str(PROJECT)]
    if subprocess.run([*git, "cat-file", "-e", f"{commit}^{{commit}}"], capture_output=True, check=False).returncode:
        pytest.skip(f"This clone lacks {commit}. Run: git fetch --depth 1 origin {commit}")
    folder = _empty_folder("previous-release")
    archive = folder.with_suffix(".tar")
    subprocess.run([*git, "archive", "--output", str(archive), commit], capture_output=True, check=True)
    with tarfile.open(archive) as files:
        files.extraction_filter = getattr(tarfile, "data_filter", None)
        files.extractall(folder)
    return folder / "template.yaml"


def _policy_hash(release: Path) -> str:
    """Return the hash of the data centre's policy, as the code of a release computes it."""
    program = "from evenkeel.runtime.wiring import load_policy; print(load_policy('local').hash)"
    environment = {"PYTHONPATH": str(release / "shared"), "PATH": os.environ["PATH"]}
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=release, env=environment, capture_output=True, check=True, text=True
    )
    return ended.stdout.strip()


@pytest.fixture
def next_release() -> Path:
    """Template of the next release: jobs have one more field, and each workflow begins with one more state."""
    folder = _empty_folder("next-release")
    for part in PARTS:
        source = PROJECT / part
        if source.is_dir():
            shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / part)
    module = folder / "shared" / "evenkeel" / "domain" / "jobs" / "job.py"
    text, count = re.subn(
        r'(class Job\(Value\):\n    """[^"]+"""\n)',
        r'\1\n    note_of_the_next_release: str = "next"\n',
        module.read_text(),
    )
    assert count == 1, "the class Job has another form: change this test"
    module.write_text(text)
    for workflow in (folder / "statemachines").glob("*.asl.json"):
        definition = json.loads(workflow.read_text())
        definition["States"][NEXT] = {"Type": "Pass", "Next": definition["StartAt"]}
        definition["StartAt"] = NEXT
        workflow.write_text(json.dumps(definition))
    return folder / "template.yaml"


class Executions:
    """The executions of a data centre's workflows."""

    def __init__(self, centre: DataCentre) -> None:
        self._steps = centre.deployer.client("stepfunctions")
        self._outputs = centre.outputs

    def list_executions(self, output: str, name: str) -> list[Json]:
        """Return the executions of a workflow whose names begin with a name."""
        list_execution = self._steps.list_executions(stateMachineArn=self._outputs[output])["executions"]
        return [execution for execution in list_execution if execution["name"].startswith(name)]

    def starts_with_state_of_next_release(self, execution: Json) -> bool:
        events = self._steps.get_execution_history(executionArn=execution["executionArn"])["events"]
        return any(event.get("stateEnteredEventDetails", {}).get("name") == NEXT for event in events)

    def releases(self, output: str, name: str) -> list[str]:
        """Return `old` or `new` for each execution, in the order of their names."""
        documents = sorted(self.list_executions(output, name), key=lambda execution: execution["name"])
        return ["new" if self.starts_with_state_of_next_release(document) else "old" for document in documents]

    def states(self, output: str, name: str) -> set[str]:
        return {document["status"] for document in self.list_executions(output, name)}


def row_of(centre: DataCentre, job: TrainingJob) -> Json:
    """Return the stored document of a job."""
    key = {"pk": {"S": f"JOB#{job.job_id}"}, "sk": {"S": "META"}}
    answer = centre.deployer.client("dynamodb").get_item(TableName=centre.outputs["JobsTableName"], Key=key)
    return document_of(answer["Item"])


def upgrade(centre: DataCentre, template: Path) -> None:
    """Deploy another release with the same parameters."""
    [stack] = centre.deployer.client("cloudformation").describe_stacks(StackName=STACK_NAME)["Stacks"]
    known = yaml_parse(template.read_text(encoding="utf-8"))["Parameters"]
    parameters = {
        parameter["ParameterKey"]: parameter["ParameterValue"]
        for parameter in stack["Parameters"]
        if parameter["ParameterKey"] in known
    }
    deploy(centre.engine, centre.deployer, parameters, template, centre.run_dir)


def roll_back(centre: DataCentre) -> None:
    """Roll back to the previous deployment, as `make rollback` does."""
    client = centre.deployer.client
    functions = list(rollback.read_functions(STACK_NAME, client))
    plan = rollback.plan(functions, list(rollback.read_workflows(STACK_NAME, client)))
    rollback.carry_out(plan, client)


def fail_node(centre: DataCentre, job: TrainingJob) -> str:
    """Report a fault of a job's node while automation is held, and return the incident once its repair waits."""
    instance = job.node().removeprefix("hyperpod-")
    signals.queue(centre, signals.health_event(instance, fault="InstanceUnreachable"))
    blocked = until(
        lambda: [document for document in signals.incidents_about(centre, instance) if document["state"] == "BLOCKED"],
        f"the repair of {instance} to be held",
        SECONDS,
    )
    return str(blocked[0]["incidentId"])


def repair_count(centre: DataCentre, instance: str) -> int:
    """Return how often the provider accepted a repair of an instance, also in earlier tests."""
    return sum(signals.accepted_calls(centre, instance).values())


def await_settled(centre: DataCentre, incident_id: str) -> Json:
    path = f"/incidents/{incident_id}"
    return until(
        lambda: document if (document := centre.client().get(path))["state"] in SETTLED else {},
        f"{incident_id} to be settled",
        SECONDS,
    )


def test_jobs_and_recoveries_continue_during_upgrade_and_rollback(
    data_centre: DataCentre, first_release: str, next_release: Path
) -> None:
    client, executions = data_centre.client(), Executions(data_centre)
    automation = f"/clusters/{client.fleet}/automation"
    repairs_before = {
        node["instanceId"]: repair_count(data_centre, node["instanceId"]) for node in data_centre.cluster.nodes()
    }
    first = TrainingJob.submit(data_centre, "before", LONG).reach(3)
    client.post(f"{automation}/hold", {"reason": "an upgrade in mid-flight", "forSeconds": 900})
    try:
        old_incident = fail_node(data_centre, first)

        upgrade(data_centre, next_release)
        second = TrainingJob.submit(data_centre, "during", LONG).reach(3)
        new_incident = fail_node(data_centre, second)
        stored = row_of(data_centre, second)

        roll_back(data_centre)
        third = TrainingJob.submit(data_centre, "after", LONG).reach(3)
    finally:
        client.post(f"{automation}/release", {})
    ends = [await_settled(data_centre, name) for name in (old_incident, new_incident)]
    for job in (first, second, third):
        client.post(f"/jobs/{job.job_id}/cancel", {})
    cancelled = [
        until(lambda job=job: shown if (shown := job.show())["state"] == "CANCELLED" else {}, "its end", SECONDS)  # type: ignore[misc]  # job=job binds the loop variable
        for job in (first, second, third)
    ]

    # Each execution ran the workflow of its release, and no execution failed.
    assert executions.releases("RecoverNodeArn", old_incident) == ["old"]
    assert executions.releases("RecoverNodeArn", new_incident) == ["new"]
    assert executions.releases("RunJobArn", second.job_id)[0] == "new"
    assert set(executions.releases("RunJobArn", third.job_id)) == {"old"}
    for output, name in (
        ("RecoverNodeArn", old_incident),
        ("RecoverNodeArn", new_incident),
        *(("RunJobArn", job.job_id) for job in (first, second, third)),
    ):
        until(lambda output=output, name=name: executions.states(output, name) == {"SUCCEEDED"}, name, SECONDS)  # type: ignore[misc]  # job=job binds the loop variable
    # Both recoveries succeeded. A node was repaired at most once; it needed no repair if it was healthy after the hold.
    assert [end["state"] for end in ends] == ["RECOVERED", "RECOVERED"]
    assert max(len(end["repairs"]) for end in ends) <= 1
    repaired = [end["node"]["instanceId"] for end in ends]
    assert max(repair_count(data_centre, name) - repairs_before.get(name, 0) for name in repaired) <= 1
    assert max(job["currentAttempt"] for job in cancelled) <= 2
    # The older release changed the row of the newer one, and kept its field.
    assert stored["noteOfTheNextRelease"] == "next"
    assert row_of(data_centre, second)["noteOfTheNextRelease"] == "next"
    assert row_of(data_centre, second)["state"] == "CANCELLED"
    assert "noteOfTheNextRelease" not in row_of(data_centre, third)
