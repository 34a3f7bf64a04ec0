"""Calls of the first day: AWS accepts their arguments, and the tool reports a wrong answer."""

import json
from typing import Any

import boto3
import pytest
from botocore.exceptions import EndpointConnectionError
from botocore.stub import Stubber

from tests import aws_shapes
from tests.template.documents import WORKFLOWS, Json, workflow
from tools import day_one
from tools.day_one import Call, Machine

CLUSTER = "arn:aws:sagemaker:us-west-2:111122223333:cluster/k3v9x2m7q1ab"
ROLE = "arn:aws:iam::111122223333:role/evenkeel-machine"


def every_call() -> list[Call]:
    machines = [Machine(name, workflow(name), ROLE) for name in WORKFLOWS]
    return [*day_one.iam_calls(CLUSTER), *(call for machine in machines for call in day_one.workflow_calls(machine))]


CALLS = every_call()


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.title)
def test_first_day_calls_have_arguments_that_botocore_accepts(call: Call) -> None:
    assert aws_shapes.problems(call.parameters, aws_shapes.operation(call.service, call.operation).input_shape) == []


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"severity": "FATAL", "definition": "{}"}, "not one of ERROR, WARNING"),
        ({"definition": 1}, "Invalid type for parameter definition"),
        ({"type": "STANDARD"}, "Missing required parameter"),
        ({"definition": "{}", "name": "x"}, "name does not exist"),
    ],
)
def test_call_that_botocore_would_reject_is_reported(wrong: Json, says: str) -> None:
    shape = aws_shapes.operation("stepfunctions", "validate_state_machine_definition").input_shape

    assert any(says in problem for problem in aws_shapes.problems(wrong, shape))


def test_day_one_calls_include_every_workflow() -> None:
    assert set(day_one.INPUTS) == set(WORKFLOWS)
    assert len(CALLS) == 3 + 5 * len(WORKFLOWS)


def test_first_day_policy_allows_only_the_hyperpod_calls_of_evenkeel() -> None:
    statements = {statement["Sid"]: statement for statement in day_one.hyperpod_policy(CLUSTER)["Statement"]}

    assert statements["RepairHyperPodNodes"]["Action"] == [
        "sagemaker:BatchRebootClusterNodes",
        "sagemaker:BatchReplaceClusterNodes",
    ]
    assert statements["CheckHyperPodNodes"]["Action"] == ["sagemaker:StartClusterHealthCheck"]
    assert {statement["Resource"] for statement in statements.values()} == {CLUSTER}


def simulation_result(decision: str) -> Json:
    actions = next(call for call in CALLS if call.operation == "simulate_custom_policy").parameters["ActionNames"]
    return {"EvaluationResults": [{"EvalActionName": name, "EvalDecision": decision} for name in actions]}


def good_answer(call: Call) -> Json:
    match call.operation:
        case "validate_policy":
            return {"findings": []}
        case "simulate_custom_policy":
            return simulation_result("allowed" if call.parameters["ResourceArns"] == [CLUSTER] else "implicitDeny")
        case "validate_state_machine_definition":
            return {"result": "OK", "diagnostics": []}
    return {"status": "SUCCEEDED", "nextState": call.title.rpartition(" ")[2]}


def bad_answer(call: Call) -> Json:
    match call.operation:
        case "validate_policy":
            finding = {
                "findingType": "ERROR",
                "findingDetails": "The action does not exist.",
                "issueCode": "INVALID_ACTION",
                "learnMoreLink": "https://docs.aws.amazon.com",
                "locations": [],
            }
            return {"findings": [finding]}
        case "simulate_custom_policy":
            return simulation_result("implicitDeny" if call.parameters["ResourceArns"] == [CLUSTER] else "allowed")
        case "validate_state_machine_definition":
            return {
                "result": "FAIL",
                "diagnostics": [{"severity": "ERROR", "code": "SCHEMA", "message": "no such field"}],
            }
    return {"status": "FAILED", "error": "States.QueryEvaluationError", "cause": "no variable"}


def ask_stubbed_client(call: Call, answer: Json) -> int:
    """Ask a stubbed client, which checks the request and the answer against the service model."""
    session = boto3.Session("x", "x", region_name="us-west-2")
    client = session.client(call.service)  # type: ignore[call-overload]  # its overloads name each service
    with Stubber(client) as stub:
        stub.add_response(call.operation, answer, call.parameters)
        return day_one.check_answers([call], lambda _service: client)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.title)
def test_first_day_check_reports_an_unexpected_answer_of_aws(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask_stubbed_client(call, good_answer(call)) == 0
    assert capsys.readouterr().out.startswith("ok")

    assert ask_stubbed_client(call, bad_answer(call)) == 1
    assert capsys.readouterr().out.startswith(f"WRONG  {call.title}: ")


def test_simulated_iam_action_without_a_result_is_reported() -> None:
    call = next(call_made for call_made in CALLS if call_made.operation == "simulate_custom_policy")
    answer = good_answer(call)

    assert call.problem({"EvaluationResults": answer["EvaluationResults"][1:]}).endswith("actions were judged")


def test_call_that_aws_does_not_answer_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    class Unreachable:
        def __getattr__(self, _name: str) -> Any:
            def call(**_parameters: Any) -> Any:
                raise EndpointConnectionError(endpoint_url="https://iam.amazonaws.com")

            return call

    assert day_one.check_answers(CALLS[:1], lambda _service: Unreachable()) == 1
    assert "could not be asked" in capsys.readouterr().out


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflow_input_reaches_the_variables_of_its_first_task(name: str) -> None:
    call = next(
        workflow_call
        for workflow_call in day_one.workflow_calls(Machine(name, workflow(name), ROLE))
        if "mock" in workflow_call.parameters
    )
    variables = json.loads(call.parameters["variables"])

    assert {
        key: value for key, value in day_one.INPUTS[name].items() if key != "schemaVersion"
    }.items() <= variables.items()
    assert not [value for value in variables.values() if isinstance(value, str) and "{%" in value]


def test_deployed_workflows_are_read_by_arn_in_any_partition() -> None:
    class Steps:
        def describe_state_machine(self, stateMachineArn: str) -> Json:  # noqa: N803 - the name of the API
            return {"definition": json.dumps({"arn": stateMachineArn}), "roleArn": ROLE}

    machines = list(day_one.deployed_machines(Steps(), "evenkeel-dev", "cn-north-1", "111122223333", "aws-cn"))

    assert [machine.name for machine in machines] == list(day_one.INPUTS)
    assert (
        machines[0].definition["arn"]
        == "arn:aws-cn:states:cn-north-1:111122223333:stateMachine:evenkeel-dev-recover_node"
    )
