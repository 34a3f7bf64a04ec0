"""Ask AWS, after the first deployment, the questions that no local test can answer.

It changes nothing and calls no function.

    python -m tools.day_one dev

* IAM Access Analyzer: does IAM know the actions with which Evenkeel repairs HyperPod nodes?
* The IAM simulator: do the roles allow them on this cluster, and on no other?
* Step Functions: does it accept the deployed workflows, and do their first states go where they must?
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from evenkeel_cli.offline.planned_stack import read_planned_stack
from evenkeel_client.errors import CommandFailed
from tools.architecture import template

ROOT = Path(__file__).resolve().parents[1]
Json = dict[str, Any]
INPUTS: Mapping[str, Json] = {
    "recover_node": {"schemaVersion": 1, "incidentId": "inc-dayone", "run": 1},
    "run_job": {"schemaVersion": 1, "jobId": "job-dayone", "attempt": 1},
    "burst_capacity": {"schemaVersion": 1, "jobId": "job-dayone", "rental": 1},
}
"""For each workflow, by the end of its name, an input that it accepts."""
SIDS = ("RepairHyperPodNodes", "CheckHyperPodNodes", "ReadHyperPod")
"""Statements of the roles with calls of HyperPod."""


class Call(NamedTuple):
    """A call of AWS, with the check of its answer."""

    title: str
    service: str
    operation: str
    parameters: Json
    problem: Callable[[Json], str]
    """Returns the problem of an answer; empty if the answer is as expected."""


class Machine(NamedTuple):
    """A deployed workflow."""

    name: str
    definition: Json
    role_arn: str


def hyperpod_policy(cluster_arn: str) -> Json:
    """Return the HyperPod statements of all roles, as one policy for one cluster."""
    actions: dict[str, set[str]] = {sid: set() for sid in SIDS}
    for resource in template().values():
        if resource["Type"] != "AWS::IAM::Role":
            continue
        for policy in resource["Properties"]["Policies"]:
            for written in policy["PolicyDocument"]["Statement"]:
                statement = written["Fn::If"][1] if "Fn::If" in written else written
                if statement["Sid"] in actions:
                    actions[statement["Sid"]] |= set(statement["Action"])
    return {
        "Version": "2012-10-17",
        "Statement": [
            {"Sid": sid, "Effect": "Allow", "Action": sorted(names), "Resource": cluster_arn}
            for sid, names in actions.items()
        ],
    }


def iam_calls(cluster_arn: str) -> Iterator[Call]:
    """Yield the questions to IAM about the calls of HyperPod."""
    policy = hyperpod_policy(cluster_arn)
    document = json.dumps(policy)
    actions = sorted({action for statement in policy["Statement"] for action in statement["Action"]})
    yield Call(
        "IAM knows the actions of HyperPod",
        "accessanalyzer",
        "validate_policy",
        {"policyDocument": document, "policyType": "IDENTITY_POLICY"},
        _findings,
    )
    another = f"{cluster_arn.rpartition('/')[0]}/{'a' * 12}"
    for title, arn, decision in (
        ("the policy allows them on the cluster", cluster_arn, "allowed"),
        ("the policy denies them on another cluster", another, "implicitDeny"),
    ):
        parameters = {"PolicyInputList": [document], "ActionNames": actions, "ResourceArns": [arn]}
        yield Call(title, "iam", "simulate_custom_policy", parameters, _decisions(decision, len(actions)))


def _findings(answer: Json) -> str:
    errors = [finding["findingDetails"] for finding in answer["findings"] if finding["findingType"] == "ERROR"]
    return "; ".join(errors)


def _decisions(wanted: str, count: int) -> Callable[[Json], str]:
    def problem(answer: Json) -> str:
        results = answer["EvaluationResults"]
        wrong = [
            f"{result['EvalActionName']} is {result['EvalDecision']}"
            for result in results
            if result["EvalDecision"] != wanted
        ]
        if len(results) != count:
            wrong.append(f"{len(results)} of {count} actions were judged")
        return ", ".join(wrong)

    return problem


def workflow_calls(machine: Machine) -> Iterator[Call]:
    """Yield the questions to Step Functions about one workflow. A mocked result replaces the call of a function."""
    definition = json.dumps(machine.definition)
    yield Call(
        f"Step Functions accepts {machine.name}",
        "stepfunctions",
        "validate_state_machine_definition",
        {"definition": definition, "type": "STANDARD", "severity": "ERROR"},
        lambda answer: (
            ""
            if answer["result"] == "OK"
            else "; ".join(f"{diagnostic['code']}: {diagnostic['message']}" for diagnostic in answer["diagnostics"])
        ),
    )
    start = machine.definition["StartAt"]
    choice = machine.definition["States"][start]
    good = INPUTS[machine.name]
    (rule,) = choice["Choices"]
    parameters = {"definition": definition, "roleArn": machine.role_arn, "inspectionLevel": "DEBUG"}
    for title, given, goes in (
        ("a valid input", good, rule["Next"]),
        ("an unknown schema", {**good, "schemaVersion": 2}, choice["Default"]),
    ):
        state = {**parameters, "stateName": start, "input": json.dumps(given)}
        yield Call(f"{machine.name}: {title} leads to {goes}", "stepfunctions", "test_state", state, _would_pass(goes))
    task = machine.definition["States"][rule["Next"]]
    # The variables that the first state assigns: each expression reads a field of the input.
    variables = {
        name: good[value.rpartition(".")[2].removesuffix(" %}")] if isinstance(value, str) and "{%" in value else value
        for name, value in rule["Assign"].items()
    }
    common = {
        **parameters,
        "stateName": rule["Next"],
        "input": json.dumps(good),
        "variables": json.dumps(variables),
        "context": json.dumps({"Execution": {"Id": f"{machine.name}-day-one"}}),
    }
    answers: tuple[tuple[str, Json, str], ...] = (
        ("an answer of the function", {"result": json.dumps({"Payload": {"outcome": "DAY_ONE"}})}, task["Next"]),
        ("an error", {"errorOutput": {"error": "PermanentError", "cause": "day one"}}, task["Catch"][0]["Next"]),
    )
    for title, mock, goes in answers:
        state = {**common, "mock": {**mock, "fieldValidationMode": "NONE"}}
        yield Call(f"{machine.name}: {title} leads to {goes}", "stepfunctions", "test_state", state, _would_pass(goes))


def _would_pass(wanted: str) -> Callable[[Json], str]:
    def problem(answer: Json) -> str:
        if answer.get("nextState") == wanted:
            return ""
        reason = f"{answer.get('error', '')} {answer.get('cause', '')}".strip()
        return f"it is {answer['status']} and leads to {answer.get('nextState') or 'no state'}. {reason}".rstrip()

    return problem


def deployed_machines(client: Any, stack: str, region: str, account: str, partition: str) -> Iterator[Machine]:
    """Yield the workflows of a stack as they are deployed."""
    for name in INPUTS:
        arn = f"arn:{partition}:states:{region}:{account}:stateMachine:{stack}-{name}"
        machine = client.describe_state_machine(stateMachineArn=arn)
        yield Machine(name, json.loads(machine["definition"]), machine["roleArn"])


def main() -> int:
    import boto3

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("environment", help="an environment of samconfig.toml, whose stack is deployed")
    args = parser.parse_args()
    try:
        planned = read_planned_stack(ROOT, args.environment)
    except CommandFailed as failed:
        sys.exit(f"day one: {failed.text}")
    session = boto3.Session(region_name=planned.region)
    identity = session.client("sts").get_caller_identity()
    partition = identity["Arn"].split(":")[1]
    steps = session.client("stepfunctions")
    machines = deployed_machines(steps, planned.name, planned.region, identity["Account"], partition)
    cluster = planned.parameters["HyperPodClusterArn"]
    calls = [
        *(iam_calls(cluster) if cluster else ()),
        *(call for machine in machines for call in workflow_calls(machine)),
    ]
    client: Callable[[str], Any] = session.client  # type: ignore[assignment]  # its overloads name each service
    return check_answers(calls, client)


def check_answers(calls: list[Call], client: Callable[[str], Any]) -> int:
    """Make every call, print a line for each, and return 1 if an answer was not as expected."""
    from botocore.exceptions import BotoCoreError, ClientError

    wrong = 0
    for call in calls:
        try:
            problem = call.problem(getattr(client(call.service), call.operation)(**call.parameters))
        except (BotoCoreError, ClientError) as error:
            problem = f"could not be asked: {error}"
        wrong += bool(problem)
        print(f"{'WRONG' if problem else 'ok   '}  {call.title}{f': {problem}' if problem else ''}")
    print(f"{len(calls) - wrong} of {len(calls)} answers are as expected.")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
