"""The modules that each function loads before its first event. Each module costs time in each cold start."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.test_imports import PROJECT

FUNCTIONS = tuple(sorted(path.parent.name for path in (PROJECT / "functions").glob("*/handler.py")))
ON_THE_WAY_TO_A_CORDON = ("receive_event", "plan_recovery", "cordon_node")
LATE = {"boto3", "botocore.session", "botocore.client", "urllib3", "s3transfer"}
"""Modules that only adapters need. A function loads it with its first call. Powertools loads `botocore` itself."""
LARGE = (
    "evenkeel.domain.kueue",
    "evenkeel.domain.queue_simulation",
    "evenkeel.domain.quotas",
    "evenkeel.domain.admission",
    "evenkeel.domain.scheduling",
    "evenkeel.services.scheduling",
)
"""Packages that only scheduling needs, apart from the policy section."""
JOBS = ("evenkeel.domain.checkpoints", "evenkeel.domain.jobs.attempt", "evenkeel.domain.outbound")
"""Packages for running jobs, for their checkpoints, and for messages to other programs: a cordon needs none of them."""
SECTIONS = {
    "evenkeel.domain.admission",
    "evenkeel.domain.admission.authority",
    "evenkeel.domain.admission.scheduling_policy",
}
PLAN_FILES = frozenset(
    f"evenkeel.domain.queue_simulation.{name}"
    for name in ("setup", "queue_manifests", "workload_manifests", "node_manifests", "plan_report", "quota_formats")
)
"""The readers and the report of `evenkeel plan`. In the service, only a replay about quota needs them."""
_IMPORT = """
import ast, importlib, importlib.util, json, os, sys
before = set(sys.modules)
handlers = sys.argv[1:]

def names_from_runtime(handler):
    statements = [node for node in ast.parse(open(handler).read()).body if isinstance(node, ast.ImportFrom)]
    return {alias.name for node in statements if node.module == "evenkeel.runtime" for alias in node.names}

for name in sorted(set.intersection(*map(names_from_runtime, handlers))):
    importlib.import_module("evenkeel.runtime." + name)

def built(kind):
    return int(kind.__pydantic_complete__) + sum(map(built, kind.__subclasses__()))

for handler in handlers:
    if os.fork() == 0:
        spec = importlib.util.spec_from_file_location("handler", handler)
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
        from evenkeel.domain.values import Value
        print(json.dumps([handler, sorted(set(sys.modules) - before), built(Value)]), flush=True)
        os._exit(0)
    if os.wait()[1] != 0:
        sys.exit("cannot import " + handler)
"""
"""Imports what all handlers need from `evenkeel.runtime`, then each in its own process. Prints the loaded modules."""


@pytest.fixture(scope="module")
def imports() -> dict[str, tuple[set[str], int]]:
    """Return the modules that each function loads, and how many models it builds."""
    environment = {**os.environ, "PYTHONPATH": str(PROJECT / "shared"), "PYDANTIC_DISABLE_PLUGINS": "__all__"}
    handlers = [str(PROJECT / "functions" / name / "handler.py") for name in FUNCTIONS]
    words = [sys.executable, "-c", _IMPORT, *handlers]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {Path(handler).parent.name: (set(modules), built) for handler, modules, built in lines}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_loads_no_client_before_its_first_call(imports: dict[str, tuple[set[str], int]], name: str) -> None:
    modules, _ = imports[name]

    assert modules & LATE == set()
    assert {module for module in modules if module.startswith("evenkeel.adapters.")} == set()


@pytest.mark.parametrize("name", ON_THE_WAY_TO_A_CORDON)
def test_function_called_before_a_cordon_loads_no_scheduling_code(
    imports: dict[str, tuple[set[str], int]], name: str
) -> None:
    modules, _ = imports[name]

    assert {module for module in modules if module.startswith(LARGE)} - SECTIONS == set()


@pytest.mark.parametrize("name", ON_THE_WAY_TO_A_CORDON)
def test_function_called_before_a_cordon_loads_no_attempts_or_checkpoints(
    imports: dict[str, tuple[set[str], int]], name: str
) -> None:
    modules, _ = imports[name]

    assert {module for module in modules if module.startswith(JOBS)} == set()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_does_not_load_files_of_the_plan_command(imports: dict[str, tuple[set[str], int]], name: str) -> None:
    modules, _ = imports[name]

    assert modules & PLAN_FILES == set()


def test_function_that_only_reads_loads_no_request_bodies(imports: dict[str, tuple[set[str], int]]) -> None:
    assert {name for name in FUNCTIONS if "evenkeel.runtime.request_bodies" in imports[name][0]} == {
        "api_admin",
        "api_operate",
        "api_submit",
    }


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_builds_only_the_models_of_the_policy(imports: dict[str, tuple[set[str], int]], name: str) -> None:
    _, built = imports[name]

    assert built < 40


def test_cluster_adapter_loads_no_queue_engine() -> None:
    program = "import sys, evenkeel.adapters.cluster; print(*sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(PROJECT / "shared")}

    process = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )

    queue_modules = {module for module in process.stdout.split() if module.startswith("evenkeel.domain.kueue.")}
    assert queue_modules == {"evenkeel.domain.kueue.quantities"}


def test_function_collects_no_garbage_until_its_first_call() -> None:
    program = """
import gc
from evenkeel.runtime import wiring
enabled = [gc.isenabled()]
wiring.collect_less_garbage()
print(enabled + [gc.isenabled()])
"""
    environment = {**os.environ, "PYTHONPATH": str(PROJECT / "shared"), "AWS_LAMBDA_FUNCTION_NAME": "receive_event"}

    process = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )

    assert process.stdout == "[False, True]\n"
