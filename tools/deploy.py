"""Deploy an environment of samconfig.toml under a new deployment id (`make deploy ENV=dev` runs it after a build)."""

import argparse
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from evenkeel_cli.offline.planned_stack import read_planned_stack
from evenkeel_client.errors import CommandFailed

ROOT = Path(__file__).resolve().parents[1]
SAM = ROOT / ".tools" / "sam" / "bin" / "sam"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("environment", help="an environment of samconfig.toml")
    args = parser.parse_args()
    try:
        planned = read_planned_stack(ROOT, args.environment)
        import boto3

        present = present_deployment(planned.name, boto3.client("cloudformation", region_name=planned.region))
        deployment = deployment_id(datetime.now(UTC), present)
    except CommandFailed as failed:
        sys.exit(f"deploy: {failed.text} {failed.hint}")
    except IdNotNew as error:
        sys.exit(f"deploy: {error}")
    command = sam_command(args.environment, planned.parameters, deployment)
    return subprocess.run(command, cwd=ROOT, check=False).returncode


class IdNotNew(ValueError):
    """The id of the next deployment would not be greater than the id of the present one."""


def present_deployment(stack: str, cloudformation: Any) -> str:
    """Return the deployment id of a stack; empty if it does not exist, or adopted tables and has no functions yet."""
    try:
        described = cloudformation.describe_stacks(StackName=stack)["Stacks"][0]
    except cloudformation.exceptions.ClientError as error:
        if "does not exist" in str(error):
            return ""
        raise
    parameters = {item["ParameterKey"]: item["ParameterValue"] for item in described.get("Parameters", ())}
    return str(parameters.get("DeploymentId", ""))


def deployment_id(now: datetime, present: str = "") -> str:
    """Return the id of a deployment at a time: `2511250130` for 2025-11-25 01:30 UTC. Later ids are greater.

    Args:
        now: The time.
        present: The id of the present deployment. Under the same id, Lambda would publish nothing. Under an earlier
            id, a rollback would choose other versions. An id with letters was chosen by hand, and has no order.

    Raises:
        IdNotNew: `present` is of this minute, or the clock is behind it.
    """
    chosen = now.strftime("%y%m%d%H%M")
    if present.isdigit() and chosen <= present:
        raise IdNotNew(
            f"the stack has the deployment {present}, and the id of a deployment now would be {chosen}. "
            "Deploy again in a minute. If the clock of this machine is behind, set it first."
        )
    return chosen


def sam_command(environment: str, parameters: Mapping[str, str], deployment: str) -> list[str]:
    """Return the command that deploys.

    It has all parameters, because they replace the parameters of samconfig.toml. Empty ones are among them: sam keeps
    the present value of a parameter that the command does not name.
    """
    named = {**parameters, "DeploymentId": deployment}
    overrides = [
        f'ParameterKey={name},ParameterValue="{_escape_value(value)}"' for name, value in sorted(named.items())
    ]
    return [str(SAM), "deploy", "--config-env", environment, "--parameter-overrides", *overrides]


def _escape_value(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')


if __name__ == "__main__":
    sys.exit(main())
