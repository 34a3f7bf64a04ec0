"""The real template, built and deployed to a local engine with the same `sam` commands as to the cloud."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from evenkeel_local import PROJECT
from evenkeel_local.engine import Engine
from evenkeel_local.identities import ARTIFACTS_BUCKET, Credentials

SAM: Final = PROJECT / ".tools" / "sam" / "bin" / "sam"
UV: Final = PROJECT / ".tools" / "uv" / "bin" / "uv"
STACK_NAME: Final = "evenkeel"
BUILDS: Final = PROJECT / ".evenkeel" / "build"
_BUILDS_KEPT: Final = 3
_DRAFT: Final = "draft-"
_BUILT_FROM: Final = ("functions", "shared", "statemachines", "policy", "openapi.json", "requirements/sam.txt")
_NEVER_BUILT_FROM: Final = ("__pycache__", ".mypy_cache", ".ruff_cache")

Outputs = dict[str, str]
Progress = Callable[[str], None]


class DeploymentError(RuntimeError):
    """A sam command failed. The message ends with what it said, and names its log."""


def deploy(
    engine: Engine,
    credentials: Credentials,
    parameters: Mapping[str, str],
    template: Path = PROJECT / "template.yaml",
    run_dir: Path | None = None,
    *,
    stack_name: str = STACK_NAME,
    progress: Progress | None = None,
) -> Outputs:
    """Build `template` and deploy it to `engine`, acting as `credentials`.

    Idempotent: yes; a stack that is there is updated, and a build whose inputs have not changed is not made again.

    Args:
        engine: Where to.
        credentials: Who deploys: `deployer`.
        parameters: Template parameters, over those of the environment `local` in samconfig.toml. `PythonRuntime` and
            `Architecture` follow the interpreter and the machine if neither names them.
        template: The SAM template; code is found beside it.
        run_dir: Where the logs of sam go; the engine's folder if None.
        stack_name: The stack.
        progress: Is told in a few words what happens next.

    Returns:
        The stack's outputs.

    Raises:
        DeploymentError: Building or deploying failed.
    """
    say = progress or _no_progress
    logs = run_dir or engine.run_dir
    chosen = local_parameters(template) | dict(parameters)
    built = build(template, chosen["PythonRuntime"], chosen["Architecture"], logs, progress=say)
    say("deploying the stack")
    # Flags for all of it, and no samconfig.toml: a lookup of that file would be relative to the build.
    command: list[str | Path] = [
        *(SAM, "deploy", "--template-file", built, "--stack-name", stack_name, "--region", credentials.region),
        *("--s3-bucket", ARTIFACTS_BUCKET, "--s3-prefix", stack_name, "--no-progressbar", "--no-confirm-changeset"),
        "--use-json",
        *("--no-fail-on-empty-changeset", "--capabilities", "CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND"),
        *("--parameter-overrides", *_overrides(chosen)),
    ]
    _run_sam(command, logs / "sam-deploy.log", built.parent, credentials.environment())
    return stack_outputs(credentials, stack_name)


def build(template: Path, runtime: str, architecture: str, log_dir: Path, *, progress: Progress | None = None) -> Path:
    """Run `sam build`, unless a build of the same inputs is there. Return the built template.

    Idempotent: yes, by a digest of the inputs; a build is put in its place whole or not at all.
    """
    place = BUILDS / _inputs_digest(template, runtime, architecture)
    built = place / "template.yaml"
    if built.exists():
        os.utime(place)
        return built
    (progress or _no_progress)("building the functions and their layer")
    BUILDS.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=BUILDS))
    # The other parameters change nothing that is built; the endpoints among them are new on each run.
    overrides = _overrides({"PythonRuntime": runtime, "Architecture": architecture})
    command: list[str | Path] = [
        *(SAM, "build", "--template-file", template, "--build-dir", draft),
        "--parameter-overrides",
        *overrides,
    ]
    try:
        _run_sam(command, log_dir / "sam-build.log", template.parent, layer_environment(runtime, architecture))
        _as_json(draft / "template.yaml")
        draft.chmod(0o755)
        with contextlib.suppress(OSError):  # another process made the same build meanwhile
            draft.rename(place)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    finished = [path for path in BUILDS.iterdir() if not path.name.startswith(_DRAFT)]
    for old in sorted(finished, key=lambda path: path.stat().st_mtime, reverse=True)[_BUILDS_KEPT:]:
        shutil.rmtree(old, ignore_errors=True)
    return built


def _as_json(built: Path) -> None:
    """Rewrite a built template as JSON, which is YAML too: `sam deploy` parses it seven times, YAML a second each."""
    built.write_text(json.dumps(yaml.safe_load(built.read_bytes())), encoding="utf-8")


def local_parameters(template: Path) -> dict[str, str]:
    """Return the parameters of samconfig.toml's environment `local`, for this interpreter and machine."""
    machine = "arm64" if platform.machine() in ("aarch64", "arm64") else "x86_64"
    runtime = f"python{sys.version_info.major}.{sys.version_info.minor}"
    config = template.parent / "samconfig.toml"
    settings: dict[str, Any] = tomllib.loads(config.read_text(encoding="utf-8")) if config.exists() else {}
    overrides = settings.get("local", {}).get("deploy", {}).get("parameters", {}).get("parameter_overrides", [])
    named = dict(str(override).split("=", 1) for override in overrides)
    return {"PythonRuntime": runtime, "Architecture": machine} | named


def layer_environment(runtime: str, architecture: str) -> dict[str, str]:
    """Return the variables by which shared/Makefile builds for that runtime and architecture."""
    machine = "aarch64" if architecture == "arm64" else "x86_64"
    return {
        "EVENKEEL_LAYER_PYTHON": runtime.removeprefix("python"),
        "EVENKEEL_LAYER_PLATFORM": f"{machine}-manylinux_2_28",
        "EVENKEEL_UV": str(UV),
        "EVENKEEL_PYTHON": sys.executable,
        "AWS_REGION": "us-west-2",  # sam asks for one even where it calls nothing
    }


def stack_outputs(credentials: Credentials, stack_name: str = STACK_NAME) -> Outputs:
    stacks = credentials.client("cloudformation").describe_stacks(StackName=stack_name)["Stacks"]
    return {output["OutputKey"]: output["OutputValue"] for output in stacks[0].get("Outputs", [])}


def stack_resources(credentials: Credentials, stack_name: str = STACK_NAME) -> dict[str, str]:
    """Return logical id → physical id of everything in the stack."""
    pages = credentials.client("cloudformation").get_paginator("list_stack_resources").paginate(StackName=stack_name)
    resources = (resource for page in pages for resource in page["StackResourceSummaries"])
    return {resource["LogicalResourceId"]: resource["PhysicalResourceId"] for resource in resources}


def _run_sam(command: list[str | Path], log: Path, cwd: Path, variables: Mapping[str, str]) -> None:
    if not SAM.exists():
        raise DeploymentError(f"sam is not installed at {SAM.relative_to(PROJECT)}. Run `make setup`")
    log.parent.mkdir(parents=True, exist_ok=True)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "SAM_"))}
    environment = inherited | {
        # The interpreter's own folder first: sam looks for a `python3.x` of the functions' runtime.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        "SAM_CLI_TELEMETRY": "0",
        "SAM_CLI_CHECK_FOR_UPDATES": "0",
        "SAM_CLI_POLL_DELAY": "0.5",  # 5 s between looks at the stack is polite to AWS and slow here
        "__SAM_CLI_APP_DIR": str(PROJECT / ".evenkeel" / "sam"),
        **variables,
    }
    with log.open("wb") as output:
        done = subprocess.run(
            [str(word) for word in command],
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode != 0:
        said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-15:]
        verb = command[1]
        raise DeploymentError(f"sam {verb} failed (exit {done.returncode}), see {log}:\n  " + "\n  ".join(said))


def _overrides(parameters: Mapping[str, str]) -> list[str]:
    """Spell parameters as sam reads them: quoted, for spaces and commas. One without a value keeps its default."""
    quoted = {name: value.replace("\\", "\\\\").replace('"', '\\"') for name, value in parameters.items() if value}
    return [f'ParameterKey={name},ParameterValue="{value}"' for name, value in quoted.items()]


def _inputs_digest(template: Path, runtime: str, architecture: str) -> str:
    digest = hashlib.sha256(f"{runtime}/{architecture}".encode())
    digest.update(template.read_bytes())
    for path in _input_files(template.parent):
        digest.update(f"\0{path.relative_to(template.parent)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _input_files(root: Path) -> Iterator[Path]:
    for name in _BUILT_FROM:
        start = root / name
        found = sorted(start.rglob("*")) if start.is_dir() else [start]
        yield from (path for path in found if path.is_file() and not set(path.parts) & set(_NEVER_BUILT_FROM))


def _no_progress(_text: str) -> None:
    """Say nothing."""
