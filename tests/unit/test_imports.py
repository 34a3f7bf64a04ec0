"""The allowed imports between the layers, checked on every file."""

import ast
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
PROJECT_PACKAGES = (
    "evenkeel",
    "evenkeel_cli",
    "evenkeel_client",
    "evenkeel_local",
    "evenkeel_trainer",
    "bench",
    "tests",
)
AWS = frozenset({"boto3", "botocore", "mypy_boto3"})

# Modules that read the clock, random numbers or the machine. A decision gets such values as arguments.
IMPURE_MODULES = frozenset(
    {
        *("asyncio", "getpass", "http.client", "io", "logging", "multiprocessing", "os", "pathlib", "platform"),
        *("random", "secrets", "select", "shutil", "signal", "socket", "ssl", "subprocess", "sys", "tempfile"),
        *("threading", "time", "urllib.request", "uuid"),
    }
)
IMPURE_CALLS = frozenset({"datetime.now", "datetime.utcnow", "datetime.today", "date.today", "open", "print", "input"})


@dataclass(frozen=True)
class LayerRule:
    """A folder, and the modules that its files may import besides the standard library."""

    name: str
    paths: tuple[str, ...]
    ours: tuple[str, ...] = ()
    third_party: frozenset[str] = frozenset()
    only_late: frozenset[str] = frozenset()  # allowed inside a function, so that the file loads without them
    is_pure: bool = False


LAYER_RULES = (
    LayerRule(
        "domain",
        ("shared/evenkeel/domain",),
        ("evenkeel.domain",),
        frozenset({"pydantic"}),
        is_pure=True,
    ),
    LayerRule(
        "events",
        ("shared/evenkeel/events",),
        ("evenkeel.events", "evenkeel.domain"),
        frozenset({"pydantic"}),
        is_pure=True,
    ),
    LayerRule(
        "ports",
        ("shared/evenkeel/ports",),
        ("evenkeel.domain", "evenkeel.ports"),
        frozenset({"pydantic"}),
        is_pure=True,
    ),
    LayerRule(
        "services",
        ("shared/evenkeel/services",),
        ("evenkeel.services", "evenkeel.domain", "evenkeel.events", "evenkeel.ports"),
        frozenset({"pydantic"}),
        is_pure=True,
    ),
    LayerRule(
        "adapters",
        ("shared/evenkeel/adapters",),
        ("evenkeel.adapters", "evenkeel.domain", "evenkeel.ports"),
        AWS | {"pydantic", "pydantic_core", "urllib3"},
    ),
    LayerRule(
        "runtime",
        ("shared/evenkeel/runtime",),
        (
            *("evenkeel.runtime", "evenkeel.adapters", "evenkeel.ports", "evenkeel.domain", "evenkeel.__version__"),
            "evenkeel.services.context",  # the context that every function builds
            "evenkeel.services.tables.rows",  # the row of the site policy is read like every row
        ),
        frozenset({"aws_lambda_powertools", "pydantic"}),
    ),
    LayerRule("training", ("shared/evenkeel/training",), ("evenkeel.training",), only_late=AWS),
    LayerRule("functions", ("functions",), ("evenkeel.services", "evenkeel.events", "evenkeel.runtime")),
    LayerRule("client", ("cli/evenkeel_client",), ("evenkeel_client",), only_late=frozenset({"botocore"})),
    LayerRule(
        "cli",
        ("cli/evenkeel_cli",),
        ("evenkeel_cli", "evenkeel_client"),
        frozenset({"click", "rich", "typer", "yaml"}),
        only_late=frozenset({"botocore"}),
    ),
    LayerRule(
        "cli offline",
        ("cli/evenkeel_cli/offline",),
        # The reader of node objects is pure, and the backtest reads exported objects with it.
        ("evenkeel_cli", "evenkeel_client", "evenkeel.domain", "evenkeel.events", "evenkeel.adapters.node_objects"),
        frozenset({"rich", "typer", "yaml"}),
    ),
    LayerRule(
        "local",
        ("local/evenkeel_local",),
        ("evenkeel_local", "evenkeel_client", "evenkeel"),
        AWS | {"pydantic", "yaml"},
    ),
    # The environment of the AWS emulator has no other module of the project.
    LayerRule(
        "engine program", ("local/evenkeel_local/engine_program.py",), (), frozenset({"ministack", "samtranslator"})
    ),
    # The same interpreter runs it. It finds the SDK in the layer that it imports.
    LayerRule("worker template", ("local/evenkeel_local/worker_template.py",), only_late=AWS),
    # The simulated GPU cluster is usable without Evenkeel. Importing it also loads its parent package.
    LayerRule("local package", ("local/evenkeel_local/__init__.py",)),
    LayerRule(
        "GPU cluster",
        ("local/evenkeel_local/gpu_cluster",),
        ("evenkeel_local.gpu_cluster",),
        frozenset({"aiohttp", "botocore", "jsonpatch", "pydantic", "trustme", "yaml", "yarl"}),
    ),
    LayerRule("pytorch example", ("examples/pytorch",), ("evenkeel.training",), frozenset({"torch"})),
    LayerRule("trainer", ("examples/trainer/evenkeel_trainer",), ("evenkeel_trainer", "evenkeel.training")),
)


@dataclass(frozen=True)
class Import:
    module: str
    line: int
    is_late: bool


def imports_of(tree: ast.Module) -> Iterator[Import]:
    """Yield the imports that run when the file is loaded: none in a function or for the type checker alone."""
    nested_imports = {
        id(descendant)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
        for descendant in ast.walk(node)
    }
    for node in ast.walk(tree):
        is_late = id(node) in nested_imports
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, is_late) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield Import("." * node.level + (node.module or ""), node.lineno, is_late)
            elif node.module == "evenkeel" or (node.module or "") in sys.stdlib_module_names:
                # `from evenkeel import domain` and `from urllib import request` name a module after the word import.
                yield from (Import(f"{node.module}.{alias.name}", node.lineno, is_late) for alias in node.names)
            else:
                yield Import(node.module or "", node.lineno, is_late)


def is_within(module: str, allowed: tuple[str, ...] | frozenset[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in allowed)


def why_forbidden(layer: LayerRule, imported: Import) -> str | None:
    """Return why a layer may not have this import; None if it may."""
    top = imported.module.partition(".")[0]
    top = "mypy_boto3" if top.startswith("mypy_boto3_") else top
    if imported.module.startswith("."):
        return "is relative: say the whole path"
    if is_within(imported.module, layer.ours):
        return None
    if top in layer.third_party or (imported.is_late and top in layer.only_late):
        return None
    if top in layer.only_late:
        return f"may import {top} only inside a function"
    if top in PROJECT_PACKAGES:
        return f"may not reach {imported.module}"
    if top in sys.stdlib_module_names:
        return "is impure here" if layer.is_pure and is_within(imported.module, IMPURE_MODULES) else None
    return f"may not use {top}"


def forbidden_imports(layer: LayerRule, source: str) -> list[str]:
    """List the forbidden imports and calls of a file of this layer."""
    tree = ast.parse(source)
    problems = [
        f"line {imported.line}: {layer.name}: `{imported.module}` {why}"
        for imported in imports_of(tree)
        if (why := why_forbidden(layer, imported)) is not None
    ]
    if layer.is_pure:
        calls = ((node, ast.unparse(node.func)) for node in ast.walk(tree) if isinstance(node, ast.Call))
        problems += [
            f"line {node.lineno}: {layer.name}: calls {name}()"
            for node, name in calls
            if name in IMPURE_CALLS or any(name.endswith(f".{call}") for call in IMPURE_CALLS if "." in call)
        ]
    return problems


def layer_of(path: str) -> LayerRule | None:
    """Return the layer with the most specific folder for the path."""
    inside = [
        (len(folder), layer)
        for layer in LAYER_RULES
        for folder in layer.paths
        if path == folder or path.startswith(f"{folder}/")
    ]
    return max(inside, key=lambda pair: pair[0])[1] if inside else None


FILES = sorted(
    path.relative_to(PROJECT).as_posix()
    for folder in ("shared/evenkeel", "functions", "cli", "local", "examples")
    for path in (PROJECT / folder).rglob("*.py")
    if path.name != "__init__.py" or path.stat().st_size > 0
)


@pytest.mark.parametrize("path", FILES)
def test_file_imports_only_allowed_layers(path: str) -> None:
    layer = layer_of(path)
    assert layer is not None or path == "shared/evenkeel/__init__.py", f"{path} belongs to no layer"

    problems = [] if layer is None else forbidden_imports(layer, (PROJECT / path).read_text(encoding="utf-8"))

    assert problems == []


@pytest.mark.parametrize(
    ("file", "source", "why"),
    [
        ("shared/evenkeel/domain/x.py", "import boto3", "may not use boto3"),
        ("shared/evenkeel/domain/x.py", "from evenkeel.services import plan", "may not reach evenkeel.services"),
        ("shared/evenkeel/domain/x.py", "from evenkeel import ports", "may not reach evenkeel.ports"),
        ("shared/evenkeel/domain/x.py", "import time", "is impure here"),
        ("shared/evenkeel/domain/x.py", "from os import environ", "is impure here"),
        ("shared/evenkeel/domain/x.py", "from urllib import request", "is impure here"),
        ("shared/evenkeel/domain/x.py", "def f():\n    import random", "is impure here"),
        ("shared/evenkeel/domain/x.py", "from datetime import datetime\nnow = datetime.now()", "calls datetime.now()"),
        (
            "shared/evenkeel/domain/x.py",
            "import datetime\nt = datetime.datetime.now()",
            "calls datetime.datetime.now()",
        ),
        ("shared/evenkeel/domain/x.py", "from .values import Value", "is relative"),
        ("shared/evenkeel/events/x.py", "from evenkeel.ports import Clock", "may not reach evenkeel.ports"),
        ("shared/evenkeel/services/x.py", "from evenkeel.adapters import s3", "may not reach evenkeel.adapters"),
        ("shared/evenkeel/services/x.py", "import uuid", "is impure here"),
        ("shared/evenkeel/adapters/x.py", "from evenkeel.services import plan", "may not reach evenkeel.services"),
        ("shared/evenkeel/runtime/x.py", "import boto3", "may not use boto3"),
        ("shared/evenkeel/training/x.py", "import boto3", "may import boto3 only inside a function"),
        ("shared/evenkeel/training/x.py", "from evenkeel.domain import values", "may not reach evenkeel.domain"),
        ("functions/cordon_node/handler.py", "import boto3", "may not use boto3"),
        ("functions/cordon_node/handler.py", "from evenkeel.domain import nodes", "may not reach evenkeel.domain"),
        ("cli/evenkeel_cli/x.py", "import botocore.auth", "may import botocore only inside a function"),
        ("cli/evenkeel_cli/x.py", "from evenkeel.domain import nodes", "may not reach evenkeel.domain"),
        ("cli/evenkeel_cli/x.py", "def f():\n    import evenkeel_local", "may not reach evenkeel_local"),
        ("cli/evenkeel_client/x.py", "from evenkeel_cli import render", "may not reach evenkeel_cli"),
        ("local/evenkeel_local/x.py", "from evenkeel_cli import render", "may not reach evenkeel_cli"),
        ("local/evenkeel_local/gpu_cluster/x.py", "from evenkeel_local import PROJECT", "may not reach evenkeel_local"),
        ("local/evenkeel_local/gpu_cluster/x.py", "from evenkeel import ports", "may not reach evenkeel.ports"),
        ("local/evenkeel_local/gpu_cluster/x.py", "def f():\n    import boto3", "may not use boto3"),
        ("examples/trainer/evenkeel_trainer/x.py", "import numpy", "may not use numpy"),
    ],
)
def test_forbidden_import_is_reported(file: str, source: str, why: str) -> None:
    layer = layer_of(file)

    assert layer is not None
    assert len(forbidden_imports(layer, source)) == 1
    assert why in forbidden_imports(layer, source)[0]


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("shared/evenkeel/domain/x.py", "import json\nfrom pydantic import Field\nfrom evenkeel.domain import values"),
        ("shared/evenkeel/services/x.py", "from evenkeel import ports\nfrom evenkeel.domain.health import faults"),
        ("shared/evenkeel/adapters/x.py", "import boto3\nimport urllib3\nfrom mypy_boto3_s3 import S3Client"),
        ("shared/evenkeel/training/x.py", "import os\ndef f():\n    import boto3"),
        ("shared/evenkeel/training/x.py", "if TYPE_CHECKING:\n    from mypy_boto3_s3 import S3Client"),
        ("functions/cordon_node/handler.py", "from evenkeel.runtime import entry, wiring"),
        ("cli/evenkeel_cli/offline/plan.py", "from evenkeel.domain.recovery import resume_options"),
    ],
)
def test_allowed_import_is_accepted(file: str, source: str) -> None:
    layer = layer_of(file)

    assert layer is not None
    assert forbidden_imports(layer, source) == []


# ---------------------------------------------------------------- order of the packages

# Lowest first: a package imports only from earlier ones. A policy section is listed apart from its package:
# `policy` joins all sections, and most packages import the whole policy.
DOMAIN_PACKAGES = (
    *(
        "plurals",
        "values",
        "resources",
        "name_suggestions",
        "submitted",
        "nodes",
        "waiting",
        "timeline",
        "decisions",
        "metrics",
        "kept_logs",
        "wrong_fields",
        "workflow_graph",
    ),
    *("policy_section", "health.health_policy", "sources", "health", "capacity"),
    *("capacity.capacity_policy", "capacity.training_plans", "capacity.capacity_blocks", "kueue", "queue_simulation"),
    *(
        "external.adoption_policy",
        "external",
        "elastic",
        "admission.scheduling_policy",
        "jobs.pod_rules",
        "jobs.job_policy",
        "jobs",
    ),
    *("economics.economy_policy", "economics", "recovery.repair_policy", "renting.burst_policy", "policy"),
    *(
        "renting",
        "quotas",
        "admission",
        "scheduling",
        "checkpoints",
        "recovery",
        "outbound",
        "shadow",
        "costs",
        "fault_preview",
        "replay",
    ),
)
_QUERIES = ("queries", "queries.jobs", "queries.incidents", "queries.fleet", "queries.costs", "queries.records")
SERVICE_PACKAGES = (
    *("context", "tables", "storage", "incidents", "rentals", "attempts", "scheduling", "jobs"),
    *("recovery", "resume", "waits", *_QUERIES, "publishing", "admin", "sweep"),
)
ORDERS = {"domain": DOMAIN_PACKAGES, "services": SERVICE_PACKAGES}


def package_of(module: str, order: tuple[str, ...]) -> str:
    """Return the package of a module, by its dotted name below `domain` or `services`."""
    first, second, *_ = [*module.split("."), ""]
    return f"{first}.{second}" if f"{first}.{second}" in order else first


def higher_imports(module: str, tree: ast.Module, floor: str) -> list[str]:
    """List the modules that a module imports from a package above its own."""
    order, root = ORDERS[floor], f"evenkeel.{floor}"
    allowed = order[: order.index(package_of(module, order)) + 1]
    names = [
        f"{node.module}.{alias.name}".removeprefix(f"{root}.")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and is_within(node.module or "", (root,))
        for alias in node.names
    ]
    return [name for name in names if package_of(name, order) not in allowed]


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.startswith(tuple(f"shared/evenkeel/{f}/" for f in ORDERS))]
)
def test_module_imports_only_packages_below_its_own(path: str) -> None:
    floor, *parts = Path(path).relative_to("shared/evenkeel").with_suffix("").parts
    tree = ast.parse((PROJECT / path).read_text(encoding="utf-8"))

    if parts[0] != "__init__":
        assert higher_imports(".".join(parts), tree, floor) == []


@pytest.mark.parametrize(
    ("floor", "module", "source", "expected"),
    [
        ("services", "incidents.x", "from evenkeel.services.recovery import plan_recovery", ["recovery.plan_recovery"]),
        ("services", "recovery.x", "from evenkeel.services.incidents import ingest_event", []),
        ("domain", "jobs.x", "from evenkeel.domain.jobs.job_policy import JobPolicy", []),
        ("domain", "jobs.x", "from evenkeel.domain.policy import Policy", ["policy.Policy"]),
        ("domain", "policy", "from evenkeel.domain.recovery.repair_policy import RepairPolicy", []),
        ("domain", "policy", "from evenkeel.domain.recovery.plan import Plan", ["recovery.plan.Plan"]),
    ],
)
def test_import_of_a_higher_package_is_reported(floor: str, module: str, source: str, expected: list[str]) -> None:
    assert higher_imports(module, ast.parse(source), floor) == expected


def test_gpu_cluster_declares_its_imports() -> None:
    """The cluster can be installed alone: a dependency of Evenkeel must not hide a missing declaration."""
    rule = next(layer for layer in LAYER_RULES if layer.name == "GPU cluster")
    declared = tomllib.loads((PROJECT / "local" / "pyproject.toml").read_text())["project"]["dependencies"]

    assert {requirement.partition(">")[0].replace("pyyaml", "yaml") for requirement in declared} == rule.third_party, (
        "declare the same libraries in local/pyproject.toml and in the rule of this test"
    )


# ---------------------------------------------------------------- modules without a cycle


def test_only_one_cli_module_loads_the_local_data_centre() -> None:
    """The rule above does not see an import by a string."""
    cli = PROJECT / "cli"
    files_that_name_it = [path for path in cli.rglob("*.py") if "evenkeel_local" in path.read_text(encoding="utf-8")]

    assert files_that_name_it == [cli / "evenkeel_cli" / "local_data_centre.py"], (
        "import evenkeel_local only in evenkeel_cli/local_data_centre.py"
    )


def import_cycle(sources: dict[str, str]) -> list[str]:
    """Return the modules of one import cycle, or nothing. Imports for the type checker count."""
    graph: dict[str, set[str]] = {}
    for module, source in sources.items():
        names = [
            f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        ]
        imported = {name if name in sources else name.rpartition(".")[0] for name in names}
        graph[module] = imported & (sources.keys() - {module})
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("package", ["local/evenkeel_local", "cli/evenkeel_cli", "cli/evenkeel_client"])
def test_modules_of_a_package_have_no_import_cycle(package: str) -> None:
    root = (PROJECT / package).parent
    sources = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path.read_text("utf-8")
        for path in (PROJECT / package).rglob("*.py")
    }

    assert import_cycle(sources) == [], "move what both modules need to a third module"


def test_import_cycle_is_reported() -> None:
    sources = {
        "p.a": "from p import b",
        "p.b": "if TYPE_CHECKING:\n    from p.c import C",
        "p.c": "def f():\n    import p.a",
    }

    assert set(import_cycle(sources)) == {"p.a", "p.b", "p.c"}
    assert import_cycle(sources | {"p.c": "import p"}) == []
