"""Both workflows with a function behind every task, to test arguments, tokens and retries.

The functions are stubs that record their arguments. A stub fails twice before it works.
"""

import io
import json
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from evenkeel_local.engine import Engine
from evenkeel_local.identities import Credentials
from tests.template.documents import Json, states, workflow
from tests.workflow.cases import RUNS, WELL, says
from tests.workflow.workflow_bench import ExecutionResult, WorkflowBench, function_name, make_role, usual_input

STAND_IN = """
import json, os, pathlib

class TransientError(Exception):
    pass

def handler(event, context):
    notes = pathlib.Path(os.environ["NOTES"]) / f"{os.environ['NAME']}.jsonl"
    died = notes.with_suffix(".died.jsonl")
    if len(died.read_text().splitlines() if died.exists() else []) < int(os.environ["CRASHES_FIRST"]):
        with died.open("a") as file:
            file.write(json.dumps(event) + "\\n")
        os.kill(os.getpid(), 9)
    tries = len(notes.read_text().splitlines()) if notes.exists() else 0
    with notes.open("a") as file:
        file.write(json.dumps(event) + "\\n")
    print(os.environ["NAME"], tries)
    if tries < int(os.environ["ERRORS_FIRST"]):
        raise TransientError("Throttled: told by the test")
    return json.loads(os.environ["ANSWER"])
"""
WAITS = {
    "NODE_BACK": WELL["AwaitNode"],
    "NODE_VALID": WELL["AwaitValidation"],
    "JOBS_RESUMED": WELL["AwaitResume"],
    "ATTEMPT_RUNNING": RUNS["AwaitRunning"],
    "ATTEMPT_ENDED": says("STOP_REQUESTED", facts={}),
    "ATTEMPT_STOPPED": RUNS["AwaitStopped"],
}


@dataclass(frozen=True)
class WorkflowRun:
    """An execution with real functions, and the arguments of each function."""

    ending: ExecutionResult
    inputs_of: dict[str, list[Json]]
    execution: str


class StubFunctions:
    """Stub functions, one behind each task; the test answers the tokens."""

    def __init__(self, bench: WorkflowBench, notes: Path) -> None:
        self._bench = bench
        self._notes = notes
        self._lambda = bench.deployer.client("lambda")
        self._role = make_role(bench.deployer, "stand-ins", "lambda.amazonaws.com")
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("handler.py", STAND_IN)
        self._code = packed.getvalue()

    def create(self, name: str, answer: Any, *, errors_first: int = 0, crashes_first: int = 0) -> None:
        """Create a function that first fails or crashes this often, and then answers."""
        variables = {"NAME": name, "NOTES": str(self._notes), "ANSWER": json.dumps(answer)}
        variables |= {"ERRORS_FIRST": str(errors_first), "CRASHES_FIRST": str(crashes_first)}
        self._lambda.create_function(
            FunctionName=name,
            Runtime="python3.11",
            Role=self._role,
            Handler="handler.handler",
            Code={"ZipFile": self._code},
            Environment={"Variables": variables},
            Timeout=30,
        )

    def inputs_of(self, name: str) -> list[Json]:
        file = self._notes / f"{name}.jsonl"
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        return [json.loads(line) for line in lines]

    def run_to_end(self, machine: str) -> WorkflowRun:
        """Run a machine to its end, answering each token as soon as it is known."""
        steps = self._bench.steps
        started = steps.start_execution(
            stateMachineArn=self._bench.arns[machine], name=f"walk-{machine}", input=json.dumps(usual_input(machine))
        )
        arn = str(started["executionArn"])
        answered: set[str] = set()
        deadline = time.monotonic() + 60
        while steps.describe_execution(executionArn=arn)["status"] == "RUNNING":
            assert time.monotonic() < deadline, self._bench.history(arn)[-1]
            for wait in self.inputs_of("OpenWait"):
                if wait["executionArn"] == arn and wait["token"] not in answered:
                    answered.add(wait["token"])
                    steps.send_task_success(taskToken=wait["token"], output=json.dumps(WAITS[wait["kind"]]))
            time.sleep(0.05)
        names = {
            function_name(state["Arguments"]["FunctionName"])
            for _, state in states(workflow(machine))
            if state["Type"] == "Task"
        }
        inputs_of = {name: [event for event in self.inputs_of(name) if event["executionArn"] == arn] for name in names}
        return WorkflowRun(self._bench.ending(arn), inputs_of, arn)


@pytest.fixture(scope="module")
def stand_ins(
    workflow_engine: Engine,
    workflow_deployer: Credentials,
    bench: WorkflowBench,
    tmp_path_factory: pytest.TempPathFactory,
) -> StubFunctions:
    stub_functions = StubFunctions(bench, tmp_path_factory.mktemp("notes"))
    tasks = {**WELL, **RUNS, "SettleAttempt": says("JOB_REQUEUED")}
    for name, answer in tasks.items():
        if not name.startswith("Await"):
            stub_functions.create(
                name,
                answer,
                errors_first=2 if name == "CordonNode" else 0,
                crashes_first=1 if name == "RepairNode" else 0,
            )
    stub_functions.create("OpenWait", {"outcome": "OPENED"}, crashes_first=1)
    return stub_functions


@pytest.fixture(scope="module")
def recovery(stand_ins: StubFunctions) -> WorkflowRun:
    return stand_ins.run_to_end("recover_node")


@pytest.fixture(scope="module")
def attempt(stand_ins: StubFunctions) -> WorkflowRun:
    return stand_ins.run_to_end("run_job")


def test_recovery_succeeds_after_two_failures_of_a_function(recovery: WorkflowRun) -> None:
    assert recovery.ending.entered[-1] == "Recovered"
    assert len(recovery.inputs_of["CordonNode"]) == 3


def test_recovery_succeeds_after_a_function_process_dies(stand_ins: StubFunctions, recovery: WorkflowRun) -> None:
    (died,) = stand_ins.inputs_of("RepairNode.died")

    assert recovery.ending.entered[-1] == "Recovered"
    assert died == recovery.inputs_of["RepairNode"][0]


def test_wait_is_opened_again_after_its_process_dies(stand_ins: StubFunctions, recovery: WorkflowRun) -> None:
    (died,) = stand_ins.inputs_of("OpenWait.died")

    opened = [wait for wait in recovery.inputs_of["OpenWait"] if wait["kind"] == died["kind"]]
    assert len(opened) == 1


def test_function_payloads_contain_ids_and_no_documents(recovery: WorkflowRun) -> None:
    expected = {"schemaVersion": 1, "incidentId": "inc-7qk2", "run": 1, "executionArn": recovery.execution}
    for name in ("PlanRecovery", "CordonNode", "DrainNode", "RepairNode", "CheckNode", "ReturnNode", "PlanResume"):
        assert recovery.inputs_of[name][0] == expected


def test_each_wait_of_a_recovery_has_its_own_token(recovery: WorkflowRun) -> None:
    waits = recovery.inputs_of["OpenWait"]

    assert {wait["kind"] for wait in waits} == {"NODE_BACK", "NODE_VALID", "JOBS_RESUMED"}
    assert len({wait["token"] for wait in waits}) == 3
    assert all(wait["incidentId"] == "inc-7qk2" for wait in waits)


def test_incident_is_settled_with_the_end_of_each_branch(recovery: WorkflowRun) -> None:
    (settled,) = recovery.inputs_of["SettleIncident"]

    assert settled["plan"] == {"outcome": "ACT", "reason": "It is act."}
    assert settled["node"] == {"outcome": "RETURNED", "reason": "It is returned."}
    assert settled["jobs"] == {"outcome": "JOBS_RESUMED", "reason": "It is jobs_resumed."}
    assert settled["failure"] is None


def test_attempt_is_settled_with_the_last_wait_answer(attempt: WorkflowRun) -> None:
    (settled,) = attempt.inputs_of["SettleAttempt"]

    assert attempt.ending.entered[-1] == "JobRequeued"
    assert settled["ended"] == WAITS["ATTEMPT_STOPPED"]
    assert settled["failure"] is None
    assert [wait["kind"] for wait in attempt.inputs_of["OpenWait"]] == [
        "ATTEMPT_RUNNING",
        "ATTEMPT_ENDED",
        "ATTEMPT_STOPPED",
    ]
