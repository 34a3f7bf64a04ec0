"""Point every alias of a deployed stack at the versions of an earlier deployment (`make rollback ENV=prod`).

    python -m tools.rollback prod                     the deployment before the present one
    python -m tools.rollback prod --to 2511250130     this deployment
    python -m tools.rollback prod --list              the deployments with versions of every function

It takes seconds, because it moves aliases and deploys nothing. New executions and invocations then run the earlier
deployment. An execution that began on another deployment ends on that one. Tables, roles and queues stay as they are.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from evenkeel_cli.offline.planned_stack import read_planned_stack
from evenkeel_client.errors import CommandFailed

ROOT = Path(__file__).resolve().parents[1]
ALIAS = "live"
_DEPLOYMENT = "EVENKEEL_DEPLOYMENT"
_FUNCTION_VERSION = re.compile(r"arn:[a-z-]+:lambda:[^\"]+?:function:[A-Za-z0-9_-]+:[0-9]+")
Client = Callable[[str], Any]


class RollbackError(Exception):
    """The stack cannot be rolled back. The message gives the reason and the next step."""


class DeployedFunction(NamedTuple):
    """A function of the stack."""

    name: str
    arn: str
    live: int
    """The version behind the alias."""
    versions: Mapping[str, int]
    """Deployment id → its newest version."""

    @property
    def deployment(self) -> str:
        """The deployment behind the alias."""
        return next((name for name, version in self.versions.items() if version == self.live), "")


class DeployedWorkflow(NamedTuple):
    """A workflow of the stack."""

    arn: str
    versions: tuple[tuple[str, frozenset[str]], ...]
    """Each version, newest first, with the versions of functions that it calls."""


class Rollback(NamedTuple):
    """The new target of each alias."""

    workflows: Mapping[str, str]
    """ARN of the workflow → ARN of its version."""
    functions: Mapping[str, int]
    """Name of the function → its version."""


def read_functions(stack: str, client: Client) -> Iterator[DeployedFunction]:
    """Yield the functions of a stack."""
    functions = client("lambda")
    for name in _resources(stack, "AWS::Lambda::Function", client):
        versions: dict[str, int] = {}
        arn = ""
        for page in functions.get_paginator("list_versions_by_function").paginate(FunctionName=name):
            for version in page["Versions"]:
                if version["Version"] == "$LATEST":
                    continue
                arn = version["FunctionArn"].rpartition(":")[0]
                deployment = version.get("Environment", {}).get("Variables", {}).get(_DEPLOYMENT, "")
                versions[deployment] = max(int(version["Version"]), versions.get(deployment, 0))
        live = int(functions.get_alias(FunctionName=name, Name=ALIAS)["FunctionVersion"])
        yield DeployedFunction(name, arn, live, versions)


def read_workflows(stack: str, client: Client) -> Iterator[DeployedWorkflow]:
    """Yield the workflows of a stack."""
    workflows = client("stepfunctions")
    for arn in _resources(stack, "AWS::StepFunctions::StateMachine", client):
        versions = []
        for version in _versions_of(arn, workflows):
            definition = workflows.describe_state_machine(stateMachineArn=version)["definition"]
            versions.append((version, frozenset(_FUNCTION_VERSION.findall(definition))))
        yield DeployedWorkflow(arn, tuple(versions))


def _versions_of(arn: str, workflows: Any) -> Iterator[str]:
    """Yield the versions of a workflow, newest first. The API has no paginator for them."""
    token: dict[str, str] = {}
    while True:
        page = workflows.list_state_machine_versions(stateMachineArn=arn, **token)
        yield from (version["stateMachineVersionArn"] for version in page["stateMachineVersions"])
        if not page.get("nextToken"):
            return
        token = {"nextToken": page["nextToken"]}


def _resources(stack: str, kind: str, client: Client) -> list[str]:
    pages = client("cloudformation").get_paginator("list_stack_resources").paginate(StackName=stack)
    summaries = [
        summary for page in pages for summary in page["StackResourceSummaries"] if summary["ResourceType"] == kind
    ]
    if not summaries:
        raise RollbackError(f"The stack {stack} has no {kind}.")
    return sorted(summary["PhysicalResourceId"] for summary in summaries)


def complete_deployments(functions: list[DeployedFunction]) -> list[str]:
    """Return the deployments with a version of every function, oldest first."""
    common = set.intersection(*(set(function.versions) for function in functions))
    return sorted(common - {""}, key=lambda name: max(function.versions[name] for function in functions))


def plan(functions: list[DeployedFunction], workflows: list[DeployedWorkflow], to: str = "") -> Rollback:
    """Choose the version of each alias. Pure.

    Args:
        functions: All functions of the stack.
        workflows: All workflows of the stack.
        to: The deployment to return to; by default the one before the present one.

    Raises:
        RollbackError: The deployment is unknown or not complete.
    """
    known = complete_deployments(functions)
    if not to:
        live = {function.deployment for function in functions}
        if len(live) > 1:
            raise RollbackError(
                f"The aliases are at several deployments: {', '.join(sorted(live))}. Name one with --to."
            )
        earlier = known[: known.index(next(iter(live)))] if live <= set(known) else []
        if not earlier:
            raise RollbackError(f"There is no deployment before {next(iter(live))}.")
        to = earlier[-1]
    if to not in known:
        raise RollbackError(f"There is no complete deployment {to}. There are: {', '.join(known) or 'none'}.")
    chosen = {function.name: function.versions[to] for function in functions}
    callable_versions = {f"{function.arn}:{chosen[function.name]}" for function in functions}
    targets = {}
    for workflow in workflows:
        fitting = [arn for arn, called in workflow.versions if called and called <= callable_versions]
        if not fitting:
            raise RollbackError(f"No version of {workflow.arn} calls the functions of the deployment {to}.")
        targets[workflow.arn] = fitting[0]
    return Rollback(targets, chosen)


def carry_out(rollback: Rollback, client: Client) -> None:
    """Move the aliases: the workflows first, so that earlier code never starts a newer workflow.

    Idempotent: yes; after an interruption, run it again with the same deployment.
    """
    for arn, version in rollback.workflows.items():
        client("stepfunctions").update_state_machine_alias(
            stateMachineAliasArn=f"{arn}:{ALIAS}",
            routingConfiguration=[{"stateMachineVersionArn": version, "weight": 100}],
        )
    for name, number in rollback.functions.items():
        client("lambda").update_alias(FunctionName=name, Name=ALIAS, FunctionVersion=str(number))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("environment", help="an environment of samconfig.toml")
    parser.add_argument("--to", default="", help="the deployment to return to")
    parser.add_argument("--list", action="store_true", help="list the deployments, and change nothing")
    args = parser.parse_args()
    import boto3

    try:
        planned = read_planned_stack(ROOT, args.environment)
        session: Any = boto3.Session(region_name=planned.region)
        client: Client = session.client
        functions = list(read_functions(planned.name, client))
        if args.list:
            print(*complete_deployments(functions), sep="\n")
            return 0
        rollback = plan(functions, list(read_workflows(planned.name, client)), args.to)
    except (RollbackError, CommandFailed) as failed:
        sys.exit(f"rollback: {failed}")
    carry_out(rollback, client)
    print(f"rollback: {len(rollback.workflows)} workflows and {len(rollback.functions)} functions moved.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
