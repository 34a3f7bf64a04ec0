"""The functions of the service: memory, timeout and base memory as deployed, and calls of their real handlers."""

from __future__ import annotations

import atexit
import compileall
import functools
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final
from unittest import mock

import botocore

from bench.scale.client_costs import processor_scale
from bench.scale.model import FULL_SHARE_MB, Invocation, Model
from bench.scale.virtual_time import ModelClock, Slots, executor_of
from evenkeel.ports import Table
from evenkeel.runtime import wiring
from evenkeel.runtime.settings import Settings
from evenkeel.runtime.site_policy import SitePolicy
from evenkeel_local import PROJECT
from tests.fakes import FakeWorld
from tests.fakes.cluster import CLUSTER
from tests.fakes.metered import ObjectSizes, metered_ports
from tests.fakes.world import CLUSTER_ARN
from tests.simulator.simulation import handler
from tests.template.documents import template

Json = dict[str, Any]

MEASURED: Final = {
    "receive_event": ("dynamo_ledger,stepfunctions,messages", "dynamodb,stepfunctions,s3"),
    "plan_recovery": ("dynamo_ledger,cluster,eks,hyperpod", "dynamodb,eks,sts,sagemaker"),
    "cordon_node": ("dynamo_ledger,cluster,eks", "dynamodb,eks,sts"),
    "watch_cluster": ("dynamo_ledger,cluster,eks,hyperpod,messages", "dynamodb,eks,sts,sagemaker,lambda"),
    "schedule_jobs": ("dynamo_ledger,cluster,eks,hyperpod,stepfunctions", "dynamodb,eks,sts,sagemaker,stepfunctions"),
    "sweep_fleet": (
        "dynamo_ledger,cluster,eks,hyperpod,stepfunctions,messages",
        "dynamodb,eks,sts,sagemaker,stepfunctions,sqs,lambda",
    ),
    "settle_attempt": ("dynamo_ledger,cluster,eks,messages,s3_checkpoints", "dynamodb,eks,sts,sqs,s3"),
}
"""The functions of the cases, each with the adapters and the clients that a call of it builds."""
_ALL_CLIENTS: Final = (
    "dynamo_ledger,cluster,eks,hyperpod,stepfunctions,messages,s3_checkpoints",
    "dynamodb,eks,sts,sagemaker,stepfunctions,sqs,lambda,s3,sns,autoscaling,cloudwatch,events",
)
"""More adapters and clients than any single function builds: an upper bound for the functions outside `MEASURED`."""
_ENVIRONMENT: Final = {
    "EVENKEEL_FLEET": "research",
    "KUBERNETES_CLUSTERS": CLUSTER,
    "HYPERPOD_CLUSTER_ARN": CLUSTER_ARN,
    "EVENKEEL_MODE": "act",
}
_IMPORT: Final = """
import importlib, importlib.util, json, sys, time
began = time.process_time()
import aws_lambda_powertools.metrics.base, botocore.session, pydantic, urllib3
models, is_counting = 0.0, False
def counted(build):
    def wrapper(*arguments, **options):
        global models, is_counting
        if is_counting:
            return build(*arguments, **options)
        is_counting, build_began = True, time.process_time()
        try:
            return build(*arguments, **options)
        finally:
            models += time.process_time() - build_began
            is_counting = False
    return wrapper
metaclass, rebuild = type(pydantic.BaseModel), pydantic.BaseModel.model_rebuild.__func__
metaclass.__new__ = counted(metaclass.__new__)
pydantic.BaseModel.model_rebuild = classmethod(counted(rebuild))
libraries = time.process_time() - began
spec = importlib.util.spec_from_file_location("handler", sys.argv[1])
spec.loader.exec_module(importlib.util.module_from_spec(spec))
from evenkeel.adapters import aws
for adapter in sys.argv[2].split(","):
    importlib.import_module(f"evenkeel.adapters.{adapter}")
clients_began = time.process_time()
for service in sys.argv[3].split(","):
    aws.client(service)
libraries += time.process_time() - clients_began
spent = time.process_time() - began
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps([spent, libraries, models, int(peak.split()[1]) * 1024]))
"""


@dataclass(frozen=True)
class FunctionLimits:
    """A function as template.yaml deploys it."""

    memory_mb: int
    timeout_seconds: float
    concurrency: int = 1000
    """Maximum number of concurrent environments: of its queue, or of the account."""
    batch: int = 1

    @property
    def share(self) -> float:
        """Return the share of a vCPU."""
        return self.memory_mb / FULL_SHARE_MB


@functools.cache
def limits() -> Mapping[str, FunctionLimits]:
    """Return the limits of every function, by the name of its folder."""
    document = template()
    common = document["Globals"]["Function"]
    function_limits = {}
    for resource in document["Resources"].values():
        properties = resource.get("Properties", {})
        uri = properties.get("CodeUri")
        if resource["Type"] != "AWS::Serverless::Function" or not uri:
            continue
        queues = [event["Properties"] for event in properties.get("Events", {}).values() if event["Type"] == "SQS"]
        queue = queues[0] if queues else {}
        function_limits[uri.strip("/").rpartition("/")[2]] = FunctionLimits(
            memory_mb=properties.get("MemorySize", common["MemorySize"]),
            timeout_seconds=properties.get("Timeout", common["Timeout"]),
            concurrency=queue.get("ScalingConfig", {}).get("MaximumConcurrency", 1000),
            batch=queue.get("BatchSize", 1),
        )
    return function_limits


@dataclass(frozen=True)
class ColdStart:
    """The cost of a new environment: imports and clients, and the memory that they need."""

    processor_seconds: float
    memory_bytes: int
    library_seconds: float = 0.0
    """The part of `processor_seconds` in which pydantic, Powertools, the SDK and urllib3 are imported, and the clients
    are created."""
    model_seconds: float = 0.0
    """The part of `processor_seconds` in which pydantic makes and builds models."""


def cold_start(function: str, starts: int = 1) -> ColdStart:
    """Measure the import of a function, and the creation of the clients that a call of it builds.

    Return the median processor seconds of several starts, because the first may compile modules. Return the largest
    memory.
    """
    adapters, clients = (names.split(",") for names in MEASURED.get(function, _ALL_CLIENTS))
    samples = [measure_start(function, adapters, clients) for _ in range(starts)]
    return ColdStart(
        statistics.median(sample.processor_seconds for sample in samples),
        max(sample.memory_bytes for sample in samples),
    )


@functools.cache
def _layer() -> Path:
    """Return a folder with the SDK as the layer has it: without unused services and operations."""
    layer = Path(tempfile.mkdtemp(prefix="evenkeel-layer-"))
    atexit.register(shutil.rmtree, layer, ignore_errors=True)
    shutil.copytree(Path(botocore.__file__).parent, layer / "botocore")
    (layer / "evenkeel").symlink_to(PROJECT / "shared" / "evenkeel")
    makefile = (PROJECT / "shared" / "Makefile").read_text("utf-8")
    models = next(line for line in makefile.splitlines() if line.startswith("MODELS := ")).split()[2:]
    slim_sdk = PROJECT / "shared" / "slim_sdk.py"
    subprocess.run([sys.executable, str(slim_sdk), str(layer), *models], check=True)
    compileall.compile_dir(layer / "botocore", quiet=1)
    return layer


def measure_start(function: str, adapters: Iterable[str], clients: Iterable[str]) -> ColdStart:
    """Measure the import of a function and of adapters, and the creation of clients, in a fresh process."""
    file = PROJECT / "functions" / function / "handler.py"
    words = [sys.executable, "-c", _IMPORT, str(file), ",".join(adapters), ",".join(clients)]
    environment = {"PYTHONPATH": str(_layer()), "AWS_DEFAULT_REGION": "us-west-2", "PATH": ""}
    environment["AWS_LAMBDA_FUNCTION_NAME"] = function
    environment["PYDANTIC_DISABLE_PLUGINS"] = "__all__"  # as in template.yaml
    # Lambda sets credentials. Without them, the SDK would look for a metadata service.
    environment |= {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}
    scale = processor_scale(1)
    completed = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    spent, libraries, models, memory = json.loads(completed.stdout)
    return ColdStart(spent * scale, memory, libraries * scale, models * scale)


class _PolicyPerFunction:
    """The site's policy: each function reads it for itself, as each environment does."""

    def __init__(self, fleet: FakeWorld, world: wiring.Ports, model: Model) -> None:
        self._of = defaultdict[str, SitePolicy](lambda: SitePolicy(fleet.policy, Table.INCIDENTS, world))
        self._model = model

    def __getattr__(self, name: str) -> Any:
        invocation = self._model.time.context
        return getattr(self._of[invocation.function if isinstance(invocation, Invocation) else ""], name)


class Deployment:
    """The functions on one fleet in modelled time."""

    def __init__(self, fleet: FakeWorld, model: Model, sizes: ObjectSizes) -> None:
        self.fleet, self.model = fleet, model
        wiring.collect_less_garbage()  # as a function does; the objects of the fakes do not count
        clock = ModelClock(model.time)
        fleet.clock = fleet.cluster.clock = fleet.provider.clock = clock
        ports = {name: port for name, port in vars(fleet).items() if name not in ("size", "runs_at_once", "policy")}
        ports |= metered_ports(fleet, model, sizes)
        self.world = wiring.Ports(Settings.from_environment(_ENVIRONMENT), policy=fleet.policy, **ports)
        self.world.__dict__["policies"] = _PolicyPerFunction(fleet, self.world, model)
        self.invocations: list[Invocation] = []
        self._environments = {name: Slots(model.time, limit.concurrency) for name, limit in limits().items()}
        self._warm: dict[str, int] = {}
        self.is_warm = True
        """Whether every environment exists already."""
        self.cold_starts: dict[str, ColdStart] = {}
        self.past_third: Counter[str] = Counter()
        """Invocations that took more than a third of the timeout of their function."""
        self.longest: dict[str, float] = {}
        """Seconds of the longest invocation of each function, all its waits included."""

    def invoke(self, function: str, event: Json) -> Json:
        """Run a function in the present process, in a free environment."""
        slots = self._environments[function]
        slots.take()
        self._start(function, slots)
        context = self.model.time.current.context
        invocation = Invocation(function, limits()[function].share, model=self.model)
        self.invocations.append(invocation)
        self.model.time.current.context = invocation
        invocation.resume()
        began = self.model.time.seconds
        try:
            return handler(function)(event, None)
        finally:
            invocation.settle()
            seconds = self.model.time.seconds - began
            self.longest[function] = max(seconds, self.longest.get(function, 0.0))
            if seconds > limits()[function].timeout_seconds / 3:
                self.past_third[function] += 1
            self.model.time.current.context = context
            slots.give()

    def _start(self, function: str, slots: Slots) -> None:
        """Wait for a new environment, if all that exist are busy."""
        busy = slots.limit - slots.free
        if self.is_warm or busy <= self._warm.get(function, 0):
            return
        self._warm[function] = busy
        start = self.cold_starts.get(function)
        self.model.wait("lambda cold start")
        if start is not None:
            self.model.time.sleep(start.processor_seconds / min(1.0, limits()[function].share))

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Let handlers find this deployment, and run their threads in modelled time."""
        for name in limits():
            handler(name)
        with wiring.use_ports(self.world), ExitStack() as changes:
            for module in _modules():
                if hasattr(module, "ThreadPoolExecutor"):
                    changes.enter_context(mock.patch.object(module, "ThreadPoolExecutor", executor_of(self.model.time)))
                for locked in _locked_properties(module):
                    changes.enter_context(mock.patch.object(locked, "lock", nullcontext()))
            yield

    def run(self, work: Callable[[], object]) -> None:
        """Run one function as a process until it and all processes that it starts have ended."""
        with self.in_force():
            self.model.time.spawn(work)
            self.model.time.run()


def _modules() -> list[ModuleType]:
    """Return the loaded modules of the service."""
    return [
        module
        for name, module in sys.modules.items()
        if name.startswith(("evenkeel.services", "evenkeel.runtime", "evenkeel.ports"))
    ]


def _locked_properties(module: ModuleType) -> Iterator[Any]:
    """Yield the cached properties of a module's classes that have a lock.

    Until Python 3.11, all objects of a class share the lock of a property. On AWS each invocation is a process of its
    own, so the lock of an invocation never stops another invocation.
    """
    for kind in vars(module).values():
        if isinstance(kind, type) and kind.__module__ == module.__name__:
            yield from (
                member
                for member in vars(kind).values()
                if isinstance(member, functools.cached_property) and hasattr(member, "lock")
            )
