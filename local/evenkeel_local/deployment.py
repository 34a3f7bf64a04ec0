"""The real template, built and deployed to a local engine with the same `sam` commands as to the cloud.

`sam deploy` packages a build each time, which takes a processor 5 s. So the first deployment of a build is kept:
the template and the artifacts that sam uploaded. A later engine receives the same objects and the same template.
"""

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
from botocore.exceptions import ClientError, WaiterError

from evenkeel_local import PROJECT
from evenkeel_local.engine import Engine
from evenkeel_local.identities import ARTIFACTS_BUCKET, Credentials

SAM: Final = PROJECT / ".tools" / "sam" / "bin" / "sam"
UV: Final = PROJECT / ".tools" / "uv" / "bin" / "uv"
STACK_NAME: Final = "evenkeel"
BUILDS: Final = PROJECT / ".evenkeel" / "build"
_PACKAGE: Final = "package"
"""Folder for the objects that sam uploaded for a build, each under its key, and the template that refers to them."""
_PACKAGED_TEMPLATE: Final = "packaged.template"
_CAPABILITIES: Final = ("CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND")
_BUILDS_KEPT: Final = 3
_DRAFT: Final = "draft-"
_BUILT_FROM: Final = ("functions", "shared", "statemachines", "policy", "openapi.json", "requirements/sam.txt")
_NEVER_BUILT_FROM: Final = ("__pycache__", ".mypy_cache", ".ruff_cache")

Outputs = dict[str, str]
Progress = Callable[[str], None]


class DeploymentError(RuntimeError):
    """A sam command failed. The message ends with its output, and names its log."""


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

    Idempotent: yes; an existing stack is updated, and a build with unchanged inputs is reused.

    Args:
        engine: The engine.
        credentials: The identity that deploys: `deployer`.
        parameters: Template parameters. They override the environment `local` in samconfig.toml. By default
            `PythonRuntime` and `Architecture` follow from the interpreter and the machine.
        template: The SAM template, in the folder of the code.
        run_dir: Folder for the logs of sam; by default the engine's folder.
        stack_name: The stack.
        progress: Receives progress messages.

    Returns:
        The stack's outputs.

    Raises:
        DeploymentError: Building or deploying failed.
    """
    say = progress or _no_progress
    logs = run_dir or engine.run_dir
    parameter_values = local_parameters(template) | dict(parameters)
    built = build(template, parameter_values["PythonRuntime"], parameter_values["Architecture"], logs, progress=say)
    if "DeploymentId" in json.loads(built.read_text(encoding="utf-8")).get("Parameters", {}):
        parameter_values["DeploymentId"] = _deployment_id(built, parameter_values)
    say("deploying the stack")
    package = built.parent / _PACKAGE
    if package.exists() and not _stack_exists(credentials, stack_name):
        _create_stack(package, credentials, stack_name, parameter_values)
        return _outputs_with_gateway_responses(built, credentials, stack_name)
    # Use only flags: sam would look for samconfig.toml relative to the build.
    command: list[str | Path] = [
        *(SAM, "deploy", "--template-file", built, "--stack-name", stack_name, "--region", credentials.region),
        *("--s3-bucket", ARTIFACTS_BUCKET, "--s3-prefix", _prefix_of(built), "--no-progressbar"),
        *("--use-json", "--no-confirm-changeset", "--no-fail-on-empty-changeset", "--capabilities", *_CAPABILITIES),
        *("--parameter-overrides", *_quoted_overrides(parameter_values)),
    ]
    _run_sam(command, logs / "sam-deploy.log", built.parent, credentials.environment())
    _keep_package(package, credentials, stack_name, _prefix_of(built))
    return _outputs_with_gateway_responses(built, credentials, stack_name)


def _outputs_with_gateway_responses(built: Path, credentials: Credentials, stack_name: str) -> Outputs:
    """Return the stack's outputs. Give the API the template's answers to refused requests, as AWS does.

    The engine ignores the gateway responses in the API's definition.

    Idempotent: yes; the same responses are put again.
    """
    outputs = stack_outputs(credentials, stack_name)
    resources = json.loads(built.read_text(encoding="utf-8"))["Resources"]
    responses = resources.get("Api", {}).get("Properties", {}).get("GatewayResponses", {})
    if not responses or not {"ApiId", "ApiStage"} <= outputs.keys():
        return outputs
    gateway = credentials.client("apigateway")
    for response_type, response in responses.items():
        status = {"statusCode": str(response["StatusCode"])} if "StatusCode" in response else {}
        headers = response["ResponseParameters"]["Headers"]
        gateway.put_gateway_response(
            restApiId=outputs["ApiId"],
            responseType=response_type,
            responseParameters={f"gatewayresponse.header.{name}": value for name, value in headers.items()},
            responseTemplates=response["ResponseTemplates"],
            **status,
        )
    gateway.create_deployment(restApiId=outputs["ApiId"], stageName=outputs["ApiStage"])
    return outputs


def _deployment_id(built: Path, parameters: Mapping[str, str]) -> str:
    """Return an id that changes only with the build or the parameters."""
    other_parameters = {name: value for name, value in parameters.items() if name != "DeploymentId"}
    text = json.dumps([_prefix_of(built), other_parameters], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def build(template: Path, runtime: str, architecture: str, log_dir: Path, *, progress: Progress | None = None) -> Path:
    """Run `sam build`, unless a build of the same inputs exists. Return the built template.

    Idempotent: yes, by a digest of the inputs; a build is moved into place atomically.
    """
    build_folder = BUILDS / _inputs_digest(template, runtime, architecture)
    built = build_folder / "template.yaml"
    if built.exists():
        os.utime(build_folder)
        return built
    (progress or _no_progress)("building the functions and their layer")
    BUILDS.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=BUILDS))
    # The other parameters do not change the build; the endpoints differ on each run.
    overrides = _quoted_overrides({"PythonRuntime": runtime, "Architecture": architecture})
    command: list[str | Path] = [
        *(SAM, "build", "--template-file", template, "--build-dir", draft),
        "--parameter-overrides",
        *overrides,
    ]
    try:
        _run_sam(command, log_dir / "sam-build.log", template.parent, layer_environment(runtime, architecture))
        _rewrite_as_json(draft / "template.yaml")
        draft.chmod(0o755)
        with contextlib.suppress(OSError):  # another process has made the same build
            draft.rename(build_folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    finished_builds = [path for path in BUILDS.iterdir() if not path.name.startswith(_DRAFT)]
    for old_build in sorted(finished_builds, key=lambda path: path.stat().st_mtime, reverse=True)[_BUILDS_KEPT:]:
        shutil.rmtree(old_build, ignore_errors=True)
    return built


def _rewrite_as_json(built: Path) -> None:
    """Rewrite a built template as JSON, which is also YAML: `sam deploy` parses it seven times, YAML in 1 s each."""
    built.write_text(json.dumps(yaml.safe_load(built.read_bytes())), encoding="utf-8")


def local_parameters(template: Path) -> dict[str, str]:
    """Return the parameters of the environment `local` in samconfig.toml, for this interpreter and machine."""
    machine = "arm64" if platform.machine() in ("aarch64", "arm64") else "x86_64"
    runtime = f"python{sys.version_info.major}.{sys.version_info.minor}"
    config = template.parent / "samconfig.toml"
    settings: dict[str, Any] = tomllib.loads(config.read_text(encoding="utf-8")) if config.exists() else {}
    overrides = settings.get("local", {}).get("deploy", {}).get("parameters", {}).get("parameter_overrides", [])
    overridden = dict(str(override).split("=", 1) for override in overrides)
    return {"PythonRuntime": runtime, "Architecture": machine} | overridden


def layer_environment(runtime: str, architecture: str) -> dict[str, str]:
    """Return the variables with which shared/Makefile builds for a runtime and architecture."""
    machine = "aarch64" if architecture == "arm64" else "x86_64"
    return {
        "EVENKEEL_LAYER_PYTHON": runtime.removeprefix("python"),
        "EVENKEEL_LAYER_PLATFORM": f"{machine}-manylinux_2_28",
        "EVENKEEL_UV": str(UV),
        "EVENKEEL_PYTHON": sys.executable,
        "AWS_REGION": "us-west-2",  # sam needs a region even if it calls no service
    }


def _prefix_of(built: Path) -> str:
    """Return the prefix of a build's objects in the bucket: its digest."""
    return built.parent.name


def _keep_package(package: Path, credentials: Credentials, stack_name: str, prefix: str) -> None:
    """Keep the template of a deployed stack, and the objects under its prefix. Idempotent: yes."""
    if package.exists():
        return
    draft = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=BUILDS))
    try:
        (draft / prefix).mkdir()
        stack = credentials.client("cloudformation").get_template(StackName=stack_name, TemplateStage="Original")
        body = stack["TemplateBody"]
        text = body if isinstance(body, str) else json.dumps(body)
        (draft / prefix / _PACKAGED_TEMPLATE).write_text(text, encoding="utf-8")
        s3 = credentials.client("s3")
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=ARTIFACTS_BUCKET, Prefix=f"{prefix}/")
        for key in (content["Key"] for page in pages for content in page.get("Contents", [])):
            s3.download_file(ARTIFACTS_BUCKET, key, str(draft / key))
        with contextlib.suppress(OSError):  # another process stored the same package first
            draft.rename(package)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _create_stack(package: Path, credentials: Credentials, stack_name: str, parameters: Mapping[str, str]) -> None:
    """Upload a kept package, and create the stack from it, as `sam deploy` does.

    Raises:
        DeploymentError: CloudFormation refused the template, or a resource failed.
    """
    s3, cloudformation = credentials.client("s3"), credentials.client("cloudformation")
    (template,) = package.rglob(_PACKAGED_TEMPLATE)
    try:
        for path in (path for path in package.rglob("*") if path.is_file()):
            s3.put_object(Bucket=ARTIFACTS_BUCKET, Key=str(path.relative_to(package)), Body=path.read_bytes())
        cloudformation.create_stack(
            StackName=stack_name,
            TemplateURL=f"{credentials.endpoint_url}/{ARTIFACTS_BUCKET}/{template.relative_to(package)}",
            Parameters=[{"ParameterKey": name, "ParameterValue": value} for name, value in parameters.items() if value],
            Capabilities=_CAPABILITIES,
        )
        waiter = cloudformation.get_waiter("stack_create_complete")
        waiter.wait(StackName=stack_name, WaiterConfig={"Delay": 0.5, "MaxAttempts": 600})
    except ClientError as error:
        raise DeploymentError(f"Creation of the stack {stack_name} was refused: {error}") from error
    except WaiterError as error:
        raise DeploymentError(
            f"The stack {stack_name} failed:\n  " + "\n  ".join(_failure_reasons(credentials, stack_name))
        ) from error


def _failure_reasons(credentials: Credentials, stack_name: str) -> list[str]:
    """Return the reasons of the resources of a stack that failed, oldest first."""
    events = credentials.client("cloudformation").describe_stack_events(StackName=stack_name)["StackEvents"]
    failed_events = (event for event in reversed(events) if event.get("ResourceStatus", "").endswith("FAILED"))
    return [
        f"{event.get('LogicalResourceId')}: {event.get('ResourceStatusReason', 'no reason')}" for event in failed_events
    ]


def _stack_exists(credentials: Credentials, stack_name: str) -> bool:
    try:
        credentials.client("cloudformation").describe_stacks(StackName=stack_name)
    except ClientError:
        return False
    return True


def stack_outputs(credentials: Credentials, stack_name: str = STACK_NAME) -> Outputs:
    stacks = credentials.client("cloudformation").describe_stacks(StackName=stack_name)["Stacks"]
    return {output["OutputKey"]: output["OutputValue"] for output in stacks[0].get("Outputs", [])}


def stack_resources(credentials: Credentials, stack_name: str = STACK_NAME) -> dict[str, str]:
    """Return the physical id of each resource of the stack, by logical id."""
    pages = credentials.client("cloudformation").get_paginator("list_stack_resources").paginate(StackName=stack_name)
    resources = (resource for page in pages for resource in page["StackResourceSummaries"])
    return {resource["LogicalResourceId"]: resource["PhysicalResourceId"] for resource in resources}


def _run_sam(command: list[str | Path], log: Path, cwd: Path, variables: Mapping[str, str]) -> None:
    if not SAM.exists():
        raise DeploymentError(f"sam is not installed at {SAM.relative_to(PROJECT)}. Run `make setup`")
    log.parent.mkdir(parents=True, exist_ok=True)
    inherited_environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "SAM_"))}
    environment = inherited_environment | {
        # The interpreter's folder first: sam looks for a `python3.x` of the functions' runtime.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        "SAM_CLI_TELEMETRY": "0",
        "SAM_CLI_CHECK_FOR_UPDATES": "0",
        "SAM_CLI_POLL_DELAY": "0.5",  # the default of 5 s is slow here
        "__SAM_CLI_APP_DIR": str(PROJECT / ".evenkeel" / "sam"),
        **variables,
    }
    with log.open("wb") as output:
        completed_process = subprocess.run(
            [str(word) for word in command],
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if completed_process.returncode != 0:
        last_lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-15:]
        verb = command[1]
        raise DeploymentError(
            f"sam {verb} failed (exit {completed_process.returncode}), see {log}:\n  " + "\n  ".join(last_lines)
        )


def _quoted_overrides(parameters: Mapping[str, str]) -> list[str]:
    """Quote parameters for sam. A parameter without a value keeps its default."""
    quoted_values = {
        name: value.replace("\\", "\\\\").replace('"', '\\"') for name, value in parameters.items() if value
    }
    return [f'ParameterKey={name},ParameterValue="{value}"' for name, value in quoted_values.items()]


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
        paths = sorted(start.rglob("*")) if start.is_dir() else [start]
        yield from (path for path in paths if path.is_file() and not set(path.parts) & set(_NEVER_BUILT_FROM))


def _no_progress(_text: str) -> None:
    """Ignore a progress message."""
