"""Deploy an environment of samconfig.toml under a new deployment id (`make deploy ENV=dev` runs it after a build)."""

import argparse
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

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
    except CommandFailed as failed:
        sys.exit(f"deploy: {failed.text} {failed.hint}")
    command = sam_command(args.environment, planned.parameters, deployment_id(datetime.now(UTC)))
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def deployment_id(now: datetime) -> str:
    """Return the id of a deployment at a time: `2511250130` for 2025-11-25 01:30 UTC. Later ids are greater."""
    return now.strftime("%y%m%d%H%M")


def sam_command(environment: str, parameters: Mapping[str, str], deployment: str) -> list[str]:
    """Return the command that deploys. It has all parameters, because they replace the parameters of samconfig.toml."""
    named = {name: value for name, value in parameters.items() if value} | {"DeploymentId": deployment}
    overrides = [f'ParameterKey={name},ParameterValue="{_escaped(value)}"' for name, value in sorted(named.items())]
    return [str(SAM), "deploy", "--config-env", environment, "--parameter-overrides", *overrides]


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')


if __name__ == "__main__":
    sys.exit(main())
