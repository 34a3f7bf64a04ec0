"""The state machines of the product on the engine, with task answers from the test."""

import itertools
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evenkeel_local.engine import Engine
from evenkeel_local.identities import Credentials
from tests.template.documents import WORKFLOWS, Json, machines, states, workflow

DEADLINE_SECONDS = 90.0
_FUNCTION = "arn:aws:lambda:us-west-2:000000000000:function:"
_WAIT = "arn:aws:states:::lambda:invoke.waitForTaskToken"


@dataclass(frozen=True)
class TaskError:
    """A task that fails with this error, on each of its tries."""

    error: str
    cause: str = "told by the test"


Answer = Mapping[str, Any] | TaskError


@dataclass(frozen=True)
class WorkflowCase:
    """An execution: its input, the answer of each of its tasks, and its expected end."""

    name: str
    machine: str
    answers: Mapping[str, Answer | Sequence[Answer]]
    """By state; a sequence holds one answer per call, a single answer serves all calls."""
    ends: str
    """The state in which it must end."""
    visits: tuple[str, ...] = ()
    """States that must have been entered."""
    never: tuple[str, ...] = ()
    """States that must not have been entered."""
    document: Mapping[str, Any] | None = None
    """The input, if it differs from the usual input."""

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class ExecutionResult:
    """Result of an execution."""

    status: str
    error: str
    cause: str
    events: tuple[Json, ...]
    entered: tuple[str, ...] = field(init=False)
    """States in the order in which they were entered, over all branches."""

    def __post_init__(self) -> None:
        names = (
            event["stateEnteredEventDetails"]["name"] for event in self.events if "stateEnteredEventDetails" in event
        )
        object.__setattr__(self, "entered", tuple(names))

    def inputs_of(self, state: str) -> list[Any]:
        """Return the input of each entry into a state."""
        details = [event.get("stateEnteredEventDetails", {}) for event in self.events]
        return [json.loads(detail["input"]) for detail in details if detail.get("name") == state]

    def transitions(self, machine: str) -> set[tuple[str, str]]:
        """Return the transitions in order, branch by branch."""
        taken: set[tuple[str, str]] = set()
        for _, part in machines(workflow(machine)):
            own = [name for name in self.entered if name in part["States"]]
            taken |= set(itertools.pairwise(own))
        return taken


class WorkflowBench:
    """An engine with both machines on it."""

    def __init__(self, engine: Engine, deployer: Credentials) -> None:
        self.engine = engine
        self.deployer = deployer
        self.steps = deployer.client("stepfunctions")
        self.role = make_role(deployer, "workflow-tests", "states.amazonaws.com")
        self.arns = {name: self._create(name) for name in WORKFLOWS}

    def _create(self, name: str) -> str:
        definition = json.dumps(workflow(name))
        for _, state in states(workflow(name)):
            if placeholder := state.get("Arguments", {}).get("FunctionName"):
                definition = definition.replace(placeholder, _FUNCTION + function_name(placeholder))
        machine = self.steps.create_state_machine(name=name, definition=definition, roleArn=self.role)
        return str(machine["stateMachineArn"])

    def run_all(self, cases: Iterable[WorkflowCase]) -> dict[str, ExecutionResult]:
        """Run the cases side by side, and return how each of them ended."""
        listed = list(cases)
        self.engine.mock_workflows(mock_config(listed))
        started = {case.name: self.start(case) for case in listed}
        return {name: self.ending(arn) for name, arn in started.items()}

    def start(self, case: WorkflowCase) -> str:
        """Start a case; return the execution's ARN."""
        document = usual_input(case.machine) if case.document is None else case.document
        started = self.steps.start_execution(
            stateMachineArn=f"{self.arns[case.machine]}#{case.name}", name=case.name, input=json.dumps(document)
        )
        return str(started["executionArn"])

    def ending(self, arn: str) -> ExecutionResult:
        """Wait for an execution's end."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while (execution := self.steps.describe_execution(executionArn=arn))["status"] == "RUNNING":
            assert time.monotonic() < deadline, f"{arn} is still running: {self.history(arn)[-1]}"
            time.sleep(0.05)
        return ExecutionResult(
            execution["status"], execution.get("error", ""), execution.get("cause", ""), self.history(arn)
        )

    def history(self, arn: str) -> tuple[Json, ...]:
        """Return all events of an execution."""
        pages = self.steps.get_paginator("get_execution_history").paginate(executionArn=arn)
        return tuple(event for page in pages for event in page["events"])


def make_role(deployer: Credentials, name: str, service: str) -> str:
    """Make a role that a service may assume; return its ARN. The engine does not check what a machine's role may do."""
    trust = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": service}}
    document = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
    created = deployer.client("iam").create_role(RoleName=name, AssumeRolePolicyDocument=document)
    return str(created["Role"]["Arn"])


def usual_input(machine: str) -> Json:
    """Return a valid input of the machine."""
    subjects: dict[str, Json] = {
        "recover_node": {"incidentId": "inc-7qk2", "run": 1},
        "run_job": {"jobId": "job-llm", "attempt": 2},
        "burst_capacity": {"jobId": "job-llm", "rental": 1},
    }
    return {"schemaVersion": 1, **subjects[machine]}


def function_name(placeholder: str) -> str:
    """Return `LaunchJob` for `${LaunchJobArn}`."""
    return placeholder.removeprefix("${").removesuffix("Arn}")


def mock_config(cases: Iterable[WorkflowCase]) -> Json:
    """Return the cases in the format of Step Functions Local."""
    config: Json = {"StateMachines": {name: {"TestCases": {}} for name in WORKFLOWS}, "MockedResponses": {}}
    for case in cases:
        waits = {name for name, state in states(workflow(case.machine)) if state.get("Resource") == _WAIT}
        responses = config["StateMachines"][case.machine]["TestCases"].setdefault(case.name, {})
        for state, answers in case.answers.items():
            responses[state] = f"{case.name}/{state}"
            entries = {"0-9999": answers} if isinstance(answers, Mapping | TaskError) else dict(enumerate(answers))
            config["MockedResponses"][responses[state]] = {
                str(entry): _mocked(answer, is_wait=state in waits) for entry, answer in entries.items()
            }
    return config


def _mocked(answer: Answer, *, is_wait: bool) -> Json:
    if isinstance(answer, TaskError):
        return {"Throw": {"Error": answer.error, "Cause": answer.cause}}
    return {"Return": dict(answer) if is_wait else {"StatusCode": 200, "Payload": dict(answer)}}
