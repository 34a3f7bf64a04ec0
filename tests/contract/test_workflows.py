"""The ports Workflows and Tokens: the fakes, and Step Functions on the engine."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from evenkeel.adapters.stepfunctions import StepFunctionsTaskTokens, StepFunctionsWorkflows
from evenkeel.ports import ExecutionState, NotFound, Refused, Throttled, WorkflowName, Workflows
from evenkeel_local.identities import Credentials
from tests.fakes import RecordingTaskTokens, RecordingWorkflows
from tests.waiting import until

DEFINITION = {
    "QueryLanguage": "JSONata",
    "StartAt": "Which",
    "States": {
        "Which": {
            "Type": "Choice",
            "Choices": [{"Condition": "{% $states.input.ends = 'well' %}", "Next": "Well"}],
            "Default": "HowElse",
        },
        "HowElse": {
            "Type": "Choice",
            "Choices": [{"Condition": "{% $states.input.ends = 'badly' %}", "Next": "Badly"}],
            "Default": "NotYet",
        },
        "NotYet": {"Type": "Wait", "Seconds": 60, "Next": "Well"},
        "Well": {"Type": "Succeed"},
        "Badly": {"Type": "Fail", "Error": "BADLY"},
    },
}


@pytest.fixture(scope="module")
def machine_arn(engine_user: Credentials) -> str:
    trust = {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Principal": {"Service": "states.amazonaws.com"}, "Action": "sts:AssumeRole"}
        ],
    }
    iam, states = engine_user.client("iam"), engine_user.client("stepfunctions")
    role = iam.create_role(RoleName="contract-machine", AssumeRolePolicyDocument=json.dumps(trust))["Role"]["Arn"]
    machine = states.create_state_machine(name="contract", definition=json.dumps(DEFINITION), roleArn=role)
    return str(machine["stateMachineArn"])


@pytest.fixture(params=["twin", "engine"])
def workflows(request: pytest.FixtureRequest) -> Iterator[Workflows]:
    if request.param == "twin":
        yield RecordingWorkflows()
        return
    client = request.getfixturevalue("engine_user").client("stepfunctions")
    arn = request.getfixturevalue("machine_arn")
    yield StepFunctionsWorkflows({WorkflowName.RUN_JOB: arn}, client)
    for execution in client.list_executions(stateMachineArn=arn, statusFilter="RUNNING")["executions"]:
        client.stop_execution(executionArn=execution["executionArn"])


def test_execution_is_started_once_under_its_name(workflows: Workflows, unique: str) -> None:
    assert workflows.state(WorkflowName.RUN_JOB, unique) is ExecutionState.NONE

    first = workflows.start(WorkflowName.RUN_JOB, unique, {"ends": "not yet"})
    second = workflows.start(WorkflowName.RUN_JOB, unique, {"ends": "not yet"})
    other = workflows.start(WorkflowName.RUN_JOB, unique, {"ends": "well"})

    assert (first, second, other) == (True, False, False)
    assert workflows.state(WorkflowName.RUN_JOB, unique) is ExecutionState.RUNNING


@pytest.mark.parametrize(("ends", "state"), [("well", ExecutionState.SUCCEEDED), ("badly", ExecutionState.FAILED)])
def test_ended_execution_shows_its_status_and_keeps_its_name(
    workflows: Workflows, unique: str, ends: str, state: ExecutionState
) -> None:
    workflows.start(WorkflowName.RUN_JOB, unique, {"ends": ends})
    if isinstance(workflows, RecordingWorkflows):
        workflows.finish(WorkflowName.RUN_JOB, unique, state)

    until(lambda: workflows.state(WorkflowName.RUN_JOB, unique) is state, f"the execution to end {ends}")

    assert workflows.start(WorkflowName.RUN_JOB, unique, {"ends": ends}) is False


def test_unconfigured_workflow_is_refused_by_name() -> None:
    with pytest.raises(Refused, match="recover_node"):
        StepFunctionsWorkflows({}, StubStarter()).start(WorkflowName.RECOVER_NODE, "n", {})


class StubStarter:
    """A client that starts nothing."""

    def start_execution(self, **_: Any) -> None:
        raise AssertionError


class StubStepFunctionsClient:
    """A client that accepts or refuses every answer."""

    def __init__(self, code: str = "") -> None:
        self.code = code
        self.requests: list[dict[str, Any]] = []

    def _answer(self, **request: Any) -> None:
        self.requests.append(request)
        if self.code:
            raise ClientError({"Error": {"Code": self.code, "Message": "token abc"}}, "Send")

    send_task_success = send_task_failure = _answer


def test_task_token_accepts_one_answer() -> None:
    for tokens in (RecordingTaskTokens(), StepFunctionsTaskTokens(StubStepFunctionsClient())):
        assert tokens.succeed("t1", {"outcome": "ENDED"}) is True
        assert tokens.fail("t2", "TransientError", "Throttled: …") is True
    twin = RecordingTaskTokens(over={"t3"})
    assert (twin.succeed("t1", {}), twin.succeed("t1", {}), twin.succeed("t3", {})) == (True, False, False)


@pytest.mark.parametrize("code", ["TaskTimedOut", "TaskDoesNotExist", "InvalidToken"])
def test_answer_to_an_ended_task_is_no_error(code: str) -> None:
    tokens = StepFunctionsTaskTokens(StubStepFunctionsClient(code))

    assert tokens.succeed("t", {}) is False
    assert tokens.fail("t", "E", "c") is False


def test_unknown_task_token_counts_as_an_ended_task(engine_user: Credentials) -> None:
    assert StepFunctionsTaskTokens(engine_user.client("stepfunctions")).succeed("AAAA", {"a": 1}) is False


@pytest.mark.parametrize(("code", "meaning"), [("ThrottlingException", Throttled), ("InvalidOutput", Refused)])
def test_errors_never_contain_the_task_token(code: str, meaning: type[Exception]) -> None:
    with pytest.raises(meaning) as caught:
        StepFunctionsTaskTokens(StubStepFunctionsClient(code)).succeed("secret-token", {})

    assert "secret-token" not in str(caught.value)


def test_failure_fits_the_limits_of_step_functions() -> None:
    client = StubStepFunctionsClient()

    StepFunctionsTaskTokens(client).fail("t", "E" * 1000, "c\ud800" * 50_000)

    (request,) = client.requests
    assert len(request["error"]) == 256
    assert len(request["cause"].encode()) <= 32_768


def test_missing_workflow_is_not_found(engine_user: Credentials) -> None:
    gone = "arn:aws:states:us-west-2:000000000000:stateMachine:gone"

    with pytest.raises(NotFound):
        StepFunctionsWorkflows({WorkflowName.RUN_JOB: gone}, engine_user.client("stepfunctions")).start(
            WorkflowName.RUN_JOB, "n", {}
        )


def test_trace_shows_the_state_in_which_an_execution_waits(
    engine_user: Credentials, machine_arn: str, unique: str
) -> None:
    workflows = StepFunctionsWorkflows({WorkflowName.RUN_JOB: machine_arn}, engine_user.client("stepfunctions"))
    assert workflows.trace(WorkflowName.RUN_JOB, unique) is None
    workflows.start(WorkflowName.RUN_JOB, unique, {"ends": "not yet"})

    def waits() -> bool:
        trace = workflows.trace(WorkflowName.RUN_JOB, unique)
        return trace is not None and [visit.state for visit in trace.visits] == ["Which", "HowElse", "NotYet"]

    until(waits, "the execution to wait")
    trace = workflows.trace(WorkflowName.RUN_JOB, unique)

    assert trace is not None
    assert (trace.state, trace.stopped_at, trace.is_cut) == (ExecutionState.RUNNING, None, False)
    assert trace.definition == DEFINITION
    assert [visit.exited_at is None for visit in trace.visits] == [False, False, True]
    engine_user.client("stepfunctions").stop_execution(executionArn=trace.arn)


def test_trace_of_an_ended_execution_has_all_exit_times(
    engine_user: Credentials, machine_arn: str, unique: str
) -> None:
    workflows = StepFunctionsWorkflows({WorkflowName.RUN_JOB: machine_arn}, engine_user.client("stepfunctions"))
    workflows.start(WorkflowName.RUN_JOB, unique, {"ends": "well"})
    until(lambda: workflows.state(WorkflowName.RUN_JOB, unique) is ExecutionState.SUCCEEDED, "the execution to end")

    trace = workflows.trace(WorkflowName.RUN_JOB, unique)

    assert trace is not None
    assert trace.stopped_at is not None
    assert [visit.state for visit in trace.visits] == ["Which", "Well"]
    assert all(visit.exited_at for visit in trace.visits)
