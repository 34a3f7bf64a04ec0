"""The model of AWS: how long a call takes, which calls wait for a limit, and what a function's processor share costs.

All numbers are in `bench/setups/scale.json`, each with its source or marked as an assumption.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from bench.scale.virtual_time import Bucket, Slots, VirtualTime, executor_of
from evenkeel.ports import Throttled
from tests.fakes.metered import ApiCall

SETUP: Final = Path(__file__).parents[1] / "setups" / "scale.json"
_Z99: Final = 2.3263
"""The 99th percentile of the standard normal distribution."""
FULL_SHARE_MB: Final = 1769
"""Memory at which a function has one whole vCPU: docs.aws.amazon.com/lambda/latest/dg/configuration-memory.html."""


def load_setup() -> dict[str, Any]:
    """Return the assumptions of the model."""
    document: dict[str, Any] = json.loads(SETUP.read_text(encoding="utf-8"))
    return document


def setup_hash() -> str:
    """Return a short hash of the assumptions."""
    return hashlib.sha256(SETUP.read_bytes()).hexdigest()[:12]


@dataclass(frozen=True)
class Latency:
    """A lognormal latency, and the time for the bytes of the answer."""

    p50: float
    p99: float
    bytes_per_second: float = math.inf
    """Bytes on the network."""
    compresses_per_second: float = math.inf
    """Bytes that the server encodes and compresses, before compression."""

    def sample(self, dice: random.Random, call: ApiCall | None = None) -> float:
        """Return seconds."""
        spread = math.log(self.p99 / self.p50) / _Z99
        seconds = self.p50 * math.exp(spread * dice.gauss(0, 1))
        if call is None:
            return seconds
        if call.compressed:
            # As if the network waited for the server. In fact, the server sends while it compresses.
            return seconds + call.received / self.compresses_per_second + call.compressed / self.bytes_per_second
        return seconds + call.received / self.bytes_per_second


class Latencies:
    """The latency of each API, by the longest prefix that the setup knows."""

    def __init__(self, setup: Mapping[str, Any]) -> None:
        self._known = {
            name: Latency(
                latency["p50Ms"] / 1000,
                latency["p99Ms"] / 1000,
                latency.get("bytesPerSecond", math.inf),
                latency.get("compressesPerSecond", math.inf),
            )
            for name, latency in setup["latencies"].items()
        }
        self._found: dict[str, Latency] = {}

    def of(self, api: str) -> Latency:
        """Return the latency of an API.

        Raises:
            KeyError: The setup has no latency for it. An unknown latency is never zero.
        """
        if api not in self._found:
            names = [name for name in self._known if api.startswith(name)]
            if not names:
                raise KeyError(f"bench/setups/scale.json has no latency for {api}")
            self._found[api] = self._known[max(names, key=len)]
        return self._found[api]


@dataclass
class Step:
    """Processor time of a function, and the call after it."""

    own: float
    """Processor seconds of the service's code before the call."""
    client: float
    """Processor seconds of the client for the call, from the calibration."""
    call: ApiCall | None = None
    branches: list[list[Step]] = field(default_factory=list)
    """Traces of the work that ran in parallel to this trace from here on."""
    joined: list[Step] | None = None
    """Trace of parallel work whose end this trace waited for."""

    @property
    def processor(self) -> float:
        return self.own + self.client


def flatten(steps: list[Step]) -> Iterator[Step]:
    """Yield all steps of a trace and of its branches."""
    for step in steps:
        yield step
        for branch in step.branches:
            yield from flatten(branch)


@dataclass
class Processor:
    """The one processor of an environment."""

    free_at: float = 0.0


@dataclass
class Invocation:
    """A call of a function: its trace, and the processor that its branches share."""

    function: str
    share: float
    """Part of a vCPU, from the function's memory. Above one, only parallel code would profit."""
    trace: list[Step] = field(default_factory=list)
    processor: Processor = field(default_factory=Processor)
    mark: float = 0.0
    throttled_seconds: float = 0.0
    model: Model | None = None

    def resume(self) -> None:
        """Start counting the processor time of the current thread."""
        self.mark = time.thread_time()

    def own_seconds(self) -> float:
        """Return the processor seconds since the last mark, and set the mark."""
        now = time.thread_time()
        spent, self.mark = now - self.mark, now
        return max(0.0, spent)

    def fork(self) -> Invocation:
        """Return the context of a branch."""
        branch = Invocation(self.function, self.share, processor=self.processor, model=self.model)
        self.trace.append(Step(0.0, 0.0, branches=[branch.trace]))
        return branch

    def join(self, branch: Invocation) -> None:
        """Record that the code waits for the end of a branch."""
        self.settle()
        self.trace.append(Step(0.0, 0.0, joined=branch.trace))

    def settle(self) -> None:
        """Record the processor time after the last call."""
        if self.model is not None:
            self.model.compute(self, self.own_seconds() * self.model.scale, 0.0)


class Model:
    """A meter whose calls wait in modelled time."""

    def __init__(self, setup: Mapping[str, Any], costs: ClientCosts, seed: int, scale: float = 1.0) -> None:
        """Begin at second zero.

        Args:
            setup: The assumptions.
            costs: The processor time of the clients.
            seed: Seed of every latency.
            scale: Seconds of the reference processor per measured second.
        """
        self.setup, self.costs, self.scale = setup, costs, scale
        self.time = VirtualTime()
        self.dice = random.Random(f"scale/{seed}")
        self.latencies = Latencies(setup)
        self.throttled: Counter[str] = Counter()
        self.throttled_seconds: defaultdict[str, float] = defaultdict(float)
        self.total: Counter[str] = Counter()
        self._buckets: dict[str, Bucket] = {}

    def call(self, call: ApiCall) -> None:
        """Record a call of the present invocation, and wait for it."""
        self.total[call.api] += 1
        invocation = self.time.context
        if not isinstance(invocation, Invocation):
            return
        own_seconds, client = invocation.own_seconds() * self.scale, self.costs.seconds(call)
        self.compute(invocation, own_seconds, client, call)
        self._wait_for_attempts(call)
        waited = self._limited(call)
        if waited:
            invocation.throttled_seconds += waited
            self.throttled[call.api] += 1
            self.throttled_seconds[call.api] += waited
        self._serve(call, waited + self.latencies.of(call.api).sample(self.dice, call))
        invocation.mark = time.thread_time()

    def pages(self, calls: Sequence[ApiCall]) -> None:
        """Record the pages of a list. Each page is received while the client processes the page before it."""
        invocation = self.time.context
        if len(calls) == 1 or not isinstance(invocation, Invocation):
            for call in calls:
                self.call(call)
            return
        own_seconds = invocation.own_seconds() * self.scale
        with executor_of(self.time)(max_workers=1) as reader:
            page = reader.submit(self._receive, calls[0])
            self.compute(invocation, own_seconds, 0.0)
            for call, next_call in itertools.zip_longest(calls, calls[1:]):
                invocation.mark = time.thread_time()
                page.result()
                page = reader.submit(self._receive, next_call) if next_call else page
                self.compute(invocation, 0.0, self.costs.seconds(call))
            invocation.mark = time.thread_time()
        invocation.mark = time.thread_time()

    def _receive(self, call: ApiCall) -> None:
        """Receive a page in a branch. The client's processor time belongs to the main trace."""
        self.total[call.api] += 1
        branch = self.time.context
        assert isinstance(branch, Invocation)
        branch.trace.append(Step(0.0, 0.0, call))
        self._serve(call, self._limited(call) + self.latencies.of(call.api).sample(self.dice, call))
        branch.mark = time.thread_time()

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Exclude the time inside this context from the function's own time."""
        invocation = self.time.context
        began = time.thread_time()
        try:
            yield
        finally:
            if isinstance(invocation, Invocation):
                invocation.mark += time.thread_time() - began

    def compute(self, invocation: Invocation, own: float, client: float, call: ApiCall | None = None) -> None:
        """Record processor time, and wait until the function's share of a processor has done it."""
        step = Step(own, client, call)
        invocation.trace.append(step)
        if self.time.context is None:
            return
        processor, now = invocation.processor, self.time.seconds
        processor.free_at = max(now, processor.free_at) + step.processor / min(1.0, invocation.share)
        self.time.sleep(processor.free_at - now)

    def wait(self, name: str) -> None:
        """Wait for a latency of the platform, such as the delivery of an event."""
        self.time.sleep(self.latencies.of(name).sample(self.dice))

    def _wait_for_attempts(self, call: ApiCall) -> None:
        """Repeat a refused call as the SDK does, with its pauses.

        Raises:
            Throttled: The service refused every attempt.
        """
        limit = self.setup["limits"].get(call.api, {})
        attempts = limit.get("attempts", 0)
        if not attempts:
            return
        bucket = self._buckets.setdefault(call.api, Bucket(limit["perSecond"], limit["burst"]))
        began = self.time.seconds
        for attempt in range(attempts):
            if bucket.take(self.time.seconds):
                break
            # https://github.com/boto/botocore/blob/develop/botocore/retries/standard.py: ExponentialBackoff
            pause = self.dice.uniform(0, 2**attempt) if attempt + 1 < attempts else 0.0
            self.time.sleep(self.latencies.of(call.api).sample(self.dice) + pause)
        else:
            self.throttled[call.api] += 1
            self.throttled_seconds[call.api] += self.time.seconds - began
            raise Throttled(f"{call.api} refused {attempts} attempts.")
        if self.time.seconds > began:
            self.throttled[call.api] += 1
            self.throttled_seconds[call.api] += self.time.seconds - began

    def _limited(self, call: ApiCall) -> float:
        """Return the seconds by which the rate limits of an API and of a partition delay a call."""
        waited = 0.0
        for name, tokens in self._limits_of(call):
            if name not in self._buckets:
                limit = self.setup["limits"][name.split("@")[0]]
                self._buckets[name] = Bucket(limit["perSecond"], limit["burst"])
            waited = max(waited, self._buckets[name].wait_for(tokens, self.time.seconds))
        return waited

    def _limits_of(self, call: ApiCall) -> Iterator[tuple[str, float]]:
        if call.api in self.setup["limits"] and "attempts" not in self.setup["limits"][call.api]:
            yield call.api, 1
        if call.partition:
            kind = "write" if "Write" in call.api else "read"
            yield f"dynamodb partition {kind} units@{call.partition}", call.units

    def _serve(self, call: ApiCall, seconds: float) -> None:
        """Wait for an answer. A list of the API server takes more of its concurrency than another call."""
        if not call.api.startswith("kubernetes:"):
            self.time.sleep(seconds)
            return
        per_unit = self.setup["limits"]["kubernetes concurrency"]["objectsPerUnit"]
        most = self.setup["limits"]["kubernetes concurrency"]["mostUnits"]
        units = max(1, min(most, math.ceil(call.items / per_unit))) if "LIST" in call.api else 1
        waited = self._kubernetes.take(units)
        if waited:
            self.throttled[call.api] += 1
            self.throttled_seconds[call.api] += waited
        self.time.sleep(seconds)
        self._kubernetes.give(units)

    @cached_property
    def _kubernetes(self) -> Slots:
        return Slots(self.time, self.setup["limits"]["kubernetes concurrency"]["units"])


@dataclass(frozen=True)
class ClientCost:
    """Processor seconds of a client: per call, per object and per byte of the answer."""

    per_call: float
    per_item: float = 0.0
    per_byte: float = 0.0


@dataclass(frozen=True)
class ClientCosts:
    """The processor time that clients take, by prefix of the API. Measured in the same run, see `client_costs`."""

    known: Mapping[str, ClientCost]

    def seconds(self, call: ApiCall) -> float:
        """Return the processor seconds of the client for one call."""
        cost = self.known[max((name for name in self.known if call.api.startswith(name)), key=len)]
        return cost.per_call + cost.per_item * call.items + cost.per_byte * (call.received + call.sent)


def seconds_of(
    trace: list[Step], latencies: Latencies, dice: random.Random, share: float, until: ApiCall | None = None
) -> float:
    """Draw the latencies of a trace again, and return its seconds at a processor share.

    Args:
        trace: A recorded trace.
        latencies: The latency of each API.
        dice: Source of the samples.
        share: Part of a vCPU.
        until: The trace ends with the answer of this call.
    """
    total = 0.0
    open_branches: dict[int, tuple[float, float, float]] = {}
    own_since: defaultdict[float, float] = defaultdict(float)
    for step in trace:
        for branch in step.branches:
            own_seconds = sum(step.processor for step in flatten(branch)) / share
            open_branches[id(branch)] = (total, total + seconds_of(branch, latencies, dice, share), own_seconds)
        if step.joined is not None and id(step.joined) in open_branches:
            began, end, own_seconds = open_branches.pop(id(step.joined))
            # Branches that began together share one processor.
            own_since[began] += own_seconds
            total = max(total, end, began + own_since[began])
        total += step.processor / share
        if step.call is not None:
            total += latencies.of(step.call.api).sample(dice, step.call)
            if step.call is until:
                return total
    return max([total, *(end for _, end, _ in open_branches.values())])
