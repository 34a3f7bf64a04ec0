"""Deployment ids, and the choice of versions for a rollback."""

import json
import subprocess
from datetime import UTC, datetime

import boto3
import pytest
from botocore.exceptions import ClientError
from botocore.stub import Stubber

from tools import deploy
from tools.rollback import DeployedFunction, DeployedWorkflow, RollbackError, complete_deployments, plan

PLAN, SETTLE = ("arn:aws:lambda:us-west-2:111122223333:function:evenkeel-" + name for name in ("plan", "settle"))
MACHINE = "arn:aws:states:us-west-2:111122223333:stateMachine:evenkeel-recover_node"


def a_function(arn: str, live: int, **versions: int) -> DeployedFunction:
    return DeployedFunction(arn.rpartition(":")[2], arn, live, versions)


def a_workflow(*called: tuple[int, int]) -> DeployedWorkflow:
    """Return a workflow whose versions, oldest first, call these versions of the two functions."""
    versions = [(f"{MACHINE}:{n}", frozenset({f"{PLAN}:{a}", f"{SETTLE}:{b}"})) for n, (a, b) in enumerate(called, 1)]
    return DeployedWorkflow(MACHINE, tuple(reversed(versions)))


FUNCTIONS = [a_function(PLAN, 3, a=1, b=2, c=3), a_function(SETTLE, 7, a=5, b=6, c=7)]
WORKFLOW = a_workflow((1, 5), (2, 6), (3, 7))


def test_rollback_returns_to_the_previous_deployment() -> None:
    chosen = plan(FUNCTIONS, [WORKFLOW])

    assert chosen.functions == {"evenkeel-plan": 2, "evenkeel-settle": 6}
    assert chosen.workflows == {MACHINE: f"{MACHINE}:2"}


def test_reused_deployment_id_selects_its_newest_versions() -> None:
    """A template of the deployment `a` was deployed again, with its id, after `b`."""
    functions = [a_function(PLAN, 3, a=3, b=2), a_function(SETTLE, 7, a=7, b=6)]

    assert complete_deployments(functions) == ["b", "a"]
    assert plan(functions, [WORKFLOW]).workflows == {MACHINE: f"{MACHINE}:2"}
    assert plan(functions, [WORKFLOW], "a").functions == {"evenkeel-plan": 3, "evenkeel-settle": 7}


def test_any_named_deployment_older_or_newer_can_be_chosen() -> None:
    functions = [a_function(PLAN, 1, a=1, b=2), a_function(SETTLE, 5, a=5, b=6)]

    assert plan(FUNCTIONS, [WORKFLOW], "a").workflows == {MACHINE: f"{MACHINE}:1"}
    assert plan(functions, [WORKFLOW], "b").functions == {"evenkeel-plan": 2, "evenkeel-settle": 6}


def test_interrupted_rollback_asks_which_deployment_to_use() -> None:
    half_rolled_back = [a_function(PLAN, 2, a=1, b=2, c=3), a_function(SETTLE, 7, a=5, b=6, c=7)]

    with pytest.raises(RollbackError, match=r"several deployments: b, c. Name one with --to"):
        plan(half_rolled_back, [WORKFLOW])
    assert plan(half_rolled_back, [WORKFLOW], "b").functions == {"evenkeel-plan": 2, "evenkeel-settle": 6}


def test_first_deployment_cannot_be_rolled_back() -> None:
    with pytest.raises(RollbackError, match="no deployment before a"):
        plan([a_function(PLAN, 1, a=1)], [])


def test_deployment_without_a_version_of_every_function_is_refused() -> None:
    functions = [a_function(PLAN, 3, a=1, b=2, c=3), a_function(SETTLE, 7, a=5, c=7)]

    assert complete_deployments(functions) == ["a", "c"]
    with pytest.raises(RollbackError, match=r"no complete deployment b. There are: a, c"):
        plan(functions, [WORKFLOW], "b")


def test_rollback_needs_a_workflow_version_of_the_chosen_deployment() -> None:
    with pytest.raises(RollbackError, match=r"No version of .*recover_node calls the functions of the deployment b"):
        plan(FUNCTIONS, [a_workflow((1, 5), (3, 7))], "b")


def test_later_deployment_has_a_higher_id() -> None:
    first = deploy.deployment_id(datetime(2025, 11, 25, 1, 30, tzinfo=UTC))

    assert first == "2511250130"
    assert first < deploy.deployment_id(datetime(2025, 11, 25, 1, 31, tzinfo=UTC))


@pytest.mark.parametrize("present", ["2511250130", "2511250131"])
def test_deployment_never_reuses_an_id(present: str) -> None:
    now = datetime(2025, 11, 25, 1, 30, tzinfo=UTC)

    with pytest.raises(deploy.IdNotNew, match=f"has the deployment {present}"):
        deploy.deployment_id(now, present)
    assert {deploy.deployment_id(now, earlier) for earlier in ("", "2511250129", "release001")} == {"2511250130"}


@pytest.mark.parametrize(
    ("parameters", "present"),
    [([], ""), ([{"ParameterKey": "DeploymentId", "ParameterValue": "2511250130"}], "2511250130")],
)
def test_current_deployment_id_is_read_from_the_stack(parameters: list[dict[str, str]], present: str) -> None:
    client = boto3.client("cloudformation", region_name="us-west-2")
    stack = {"StackName": "evenkeel", "CreationTime": 0, "StackStatus": "IMPORT_COMPLETE", "Parameters": parameters}
    with Stubber(client) as stub:
        stub.add_response("describe_stacks", {"Stacks": [stack]}, {"StackName": "evenkeel"})
        stub.add_client_error("describe_stacks", "ValidationError", "Stack with id evenkeel does not exist")
        stub.add_client_error("describe_stacks", "AccessDenied", "not authorized")

        assert deploy.present_deployment("evenkeel", client) == present
        assert deploy.present_deployment("evenkeel", client) == ""
        with pytest.raises(ClientError, match="not authorized"):
            deploy.present_deployment("evenkeel", client)


def test_deploy_command_names_every_parameter_and_a_new_id() -> None:
    command = deploy.sam_command("dev", {"Mode": "act", "PageEmail": "", "DeploymentId": "0000000000"}, "2511250130")

    assert command[1:] == [
        *("deploy", "--config-env", "dev", "--parameter-overrides"),
        'ParameterKey=DeploymentId,ParameterValue="2511250130"',
        'ParameterKey=Mode,ParameterValue="act"',
        'ParameterKey=PageEmail,ParameterValue=""',
    ]


def test_sam_reads_every_parameter_of_the_deploy_command() -> None:
    parameters = {"Mode": "act", "PageEmail": "", "SubnetIds": "subnet-1,subnet-2", "JobNamespace": 'a "b" c'}
    words = deploy.sam_command("dev", parameters, "2511250130")[5:]
    program = (
        "import json, sys; from samcli.cli.types import CfnParameterOverridesType; "
        "print(json.dumps(CfnParameterOverridesType().convert(tuple(sys.argv[1:]), None, None)))"
    )

    sam_python = str(deploy.SAM.with_name("python"))
    answer = subprocess.run([sam_python, "-c", program, *words], capture_output=True, text=True, check=True)

    assert json.loads(answer.stdout) == {**parameters, "DeploymentId": "2511250130"}
