"""The six measured cases, each on a fleet of its own."""

from __future__ import annotations

import functools
import json
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bench.figures import quantile
from bench.scale.client_costs import MeasuredClients, processor_scale
from bench.scale.fleet import FleetSize, build_long_queue, build_world, events_of
from bench.scale.functions import ColdStart, Deployment, limits
from bench.scale.memory import peak_bytes
from bench.scale.model import Invocation, Latencies, Model, Step, flatten, seconds_of
from evenkeel.domain.jobs.attempt import PodPhase
from evenkeel.ports import WorkflowName
from tests.fakes import FakeWorld
from tests.fakes.cluster import CLUSTER
from tests.fakes.metered import ApiCall

CORDON: Final = "kubernetes:PATCH nodes"
_QUEUE_CYCLES: Final = 4
"""Cycles of the case `queue`; the last one is measured."""
_QUEUE_RUNS: Final = 3
"""Runs of the case `queue`, each on a new fleet; the run with the median processor time counts."""
_QUEUE_ENDED: Final = 20
"""Jobs that end before the measured cycle."""
_TEAMS: Final = 100
"""Teams of the case `queue`."""
_READS: Final = ("Get", "Query", "LIST", "GET", "List", "Describe")
_PATH: Final = ("receive_event", "plan_recovery", "cordon_node")


@dataclass
class CaseFigures:
    """The figures of one case at one size."""

    case: str
    size: FleetSize
    calls: Counter[str]
    received: int
    service_seconds: float
    """Processor seconds of the service's code, at the reference processor."""
    client_seconds: float
    """Processor seconds of the clients, at the reference processor."""
    seconds_p50: float
    """Modelled seconds."""
    seconds_p99: float
    capacity_units: dict[str, float] = field(default_factory=dict)
    """Requested capacity units of DynamoDB."""
    functions: dict[str, FunctionFigures] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass
class FunctionFigures:
    """The figures of a function in a case, over its invocations."""

    invocations: int
    seconds_p50: float
    seconds_p99: float
    gigabyte_seconds: float
    """Median, over all invocations."""
    memory_bytes: int | None = None
    """Peak; None if it was not measured."""


@dataclass(frozen=True)
class Bench:
    """The assumptions, the measured clients and the seed of all cases."""

    setup: Mapping[str, Any]
    clients: MeasuredClients
    cold_starts: Mapping[str, ColdStart]
    seed: int
    measures_memory: bool = True

    def deployment(self, size: FleetSize) -> tuple[Deployment, tuple[str, ...]]:
        """Return a fleet with its functions, and the ids of its running jobs."""
        world, jobs = build_world(size)
        return self.deploy(world), jobs

    def deploy(self, world: FakeWorld) -> Deployment:
        """Return the functions on a fleet."""
        model = Model(self.setup, self.clients.costs, self.seed, processor_scale())
        deployment = Deployment(world, model, self.clients.sizes)
        deployment.cold_starts = dict(self.cold_starts)
        return deployment

    # ------------------------------------------------------------ one invocation

    def one_invocation(self, case: str, function: str, size: FleetSize) -> CaseFigures:
        """Measure one run of a scheduled function."""
        deployment, _ = self.deployment(size)
        if function == "watch_cluster":
            # The watch sees no change until its time is up, so it runs one round.
            deployment.fleet.cluster.idle_seconds = deployment.world.policy.watch.watch_seconds
        answers: list[Any] = []
        deployment.run(lambda: answers.append(deployment.invoke(function, {})))
        result = self._measured(case, size, deployment.invocations)
        result.notes["answer"] = {name: _length_of_long_list(value) for name, value in answers[0].items()}
        if self.measures_memory:
            # A second run on the same fleet: the trace would slow the run whose processor time counts.
            invocations = deployment.invocations
            used = peak_bytes(
                lambda: deployment.run(lambda: deployment.invoke(function, {})), invocations, self.clients
            )
            result.functions[function].memory_bytes = used + self.cold_starts[function].memory_bytes
        return result

    def long_queue(self, size: FleetSize) -> CaseFigures:
        """Measure a scheduling cycle over queues that no cycle reads whole, a minute after the last cycle.

        The first cycle of a fleet knows no head of a queue. Its figures are in the notes.
        """
        runs = sorted((self._long_queue_once(size) for _ in range(_QUEUE_RUNS)), key=_processor_seconds)
        median_run = runs[_QUEUE_RUNS // 2]
        median_run.notes["processorSecondsOfRuns"] = [_processor_seconds(run) for run in runs]
        return median_run

    def _long_queue_once(self, size: FleetSize) -> CaseFigures:
        deployment = self.deploy(build_long_queue(size.nodes, size.jobs, _TEAMS))
        answers: list[Any] = []

        def run_cycles() -> None:
            for number in range(_QUEUE_CYCLES):
                if number == _QUEUE_CYCLES - 1:
                    self._end_jobs(deployment, _QUEUE_ENDED)
                # The speed of the machine changes within the minute that earlier cycles take.
                deployment.model.scale = processor_scale()
                answers.append(deployment.invoke("schedule_jobs", {}))
                deployment.model.time.sleep(60)

        deployment.run(run_cycles)
        *_, last = deployment.invocations
        early = self._measured("queue", size, deployment.invocations[:1])
        result = self._measured("queue", size, [last])
        latencies, share = Latencies(self.setup), min(1.0, last.share)
        start = self.cold_starts["schedule_jobs"].processor_seconds
        cold_seconds = start / share + latencies.of("lambda cold start").p50
        result.notes |= {
            "teams": _TEAMS,
            "reads": _reads(result),
            "admitted": len(answers[-1]["admitted"]),
            "examined": len(answers[-1]["admitted"]) + answers[-1]["waiting"],
            "processorSeconds": _processor_seconds(result),
            "coldProcessorSeconds": round(_processor_seconds(result) + start, 3),
            "firstCycle": {
                "reads": _reads(early),
                "processorSeconds": _processor_seconds(early),
                "admitted": len(answers[0]["admitted"]),
                "examined": len(answers[0]["admitted"]) + answers[0]["waiting"],
            },
        }
        first = _call_of([last], "states:StartExecution")
        if first is not None:
            times = [seconds_of(last.trace, latencies, dice, share, first) for dice in self.dice(200)]
            result.notes["firstAdmission"] = {
                "warm": statistics.median(times),
                "p99": quantile(times, 0.99),
                "cold": statistics.median(times) + cold_seconds,
            }
        return result

    def _end_jobs(self, deployment: Deployment, count: int) -> None:
        """Let some running jobs end and free their nodes, so that the next cycle can admit jobs."""
        fleet = deployment.fleet
        for (_, job_id, attempt), _ in list(fleet.cluster.jobs[CLUSTER].items())[:count]:
            fleet.cluster.set_pods(job_id, attempt, PodPhase.SUCCEEDED, exit_code=0)
            deployment.invoke("settle_attempt", {"jobId": job_id, "attempt": attempt})

    # ------------------------------------------------------------ one event

    def one_event(self, size: FleetSize) -> CaseFigures:
        """Measure the time from one event to the cordon, with warm and with cold functions."""
        deployment, _ = self.deployment(size)
        event = next(events_of(deployment.fleet, 1))
        deployment.run(lambda: _to_cordon(deployment, event))
        result = self._measured("event to cordon", size, deployment.invocations)
        cordon = _cordon_call(deployment.invocations)
        result.notes["isCordoned"] = cordon is not None
        result.notes["callsBeforeCordon"] = _calls_until(deployment.invocations, cordon)
        ends = _ends_on_path(deployment.invocations, cordon)
        result.notes["callsInARow"] = [
            f"{invocation.function} {api}"
            for invocation in deployment.invocations
            for api in _longest_chain(invocation.trace, ends.get(invocation.function))
        ]
        for name, is_cold in (("warm", False), ("cold", True)):
            times = [self._path_seconds(deployment.invocations, cordon, dice, is_cold) for dice in self.dice()]
            result.notes[name] = {"p50": statistics.median(times), "p99": quantile(times, 0.99)}
        result.seconds_p50, result.seconds_p99 = result.notes["warm"]["p50"], result.notes["warm"]["p99"]
        return result

    def _path_seconds(
        self, invocations: Sequence[Invocation], cordon: ApiCall | None, dice: random.Random, is_cold: bool
    ) -> float:
        latencies = Latencies(self.setup)
        platform = ["eventbridge delivery", "sqs to lambda", *(["states transition", "states to lambda"] * 2)]
        total = sum(latencies.of(name).sample(dice) for name in platform)
        ends = _ends_on_path(invocations, cordon)
        for invocation in invocations:
            total += seconds_of(
                invocation.trace, latencies, dice, min(1.0, invocation.share), ends.get(invocation.function)
            )
            if is_cold:
                start = self.cold_starts[invocation.function]
                total += latencies.of("lambda cold start").sample(dice)
                total += start.processor_seconds / min(1.0, invocation.share)
        return total

    # ------------------------------------------------------------ many events, many jobs

    def storm(self, size: FleetSize) -> CaseFigures:
        """Measure 1,000 events at once, with cold functions that wait for each other and for the limits of AWS."""
        deployment, _ = self.deployment(size)
        deployment.is_warm = False
        count, within = self.setup["storm"]["events"], self.setup["storm"]["arriveWithinSeconds"]
        storm = _Storm(deployment, list(events_of(deployment.fleet, count)), within)
        deployment.run(storm.arrive)
        result = self._measured("storm", size, deployment.invocations)
        model = deployment.model
        result.seconds_p50, result.seconds_p99 = (
            _quantiles(storm.cordoned_after) if storm.cordoned_after else (float("nan"),) * 2
        )
        result.notes |= {
            "events": count,
            "cordoned": len(storm.cordoned_after),
            "outcomes": dict(storm.outcomes),
            "lastCordonSeconds": max(storm.cordoned_after, default=None),
            "handledSeconds": storm.ended_at,
            "pastThirdOfTimeout": dict(deployment.past_third),
            "longestSeconds": {name: round(value, 3) for name, value in deployment.longest.items()},
            "throttled": dict(model.throttled),
            "throttledSeconds": {name: round(value, 3) for name, value in model.throttled_seconds.items()},
        }
        return result

    def settle(self, size: FleetSize, most: int | None = None) -> CaseFigures:
        """Measure the end of up to 1,000 jobs at once."""
        deployment, jobs = self.deployment(size)
        ended = jobs[: min(most or len(jobs), self.setup["settle"]["jobs"])]
        for job_id in ended:
            deployment.fleet.cluster.set_pods(job_id, 1, PodPhase.SUCCEEDED, exit_code=0)
        done: list[float] = []
        failures: Counter[str] = Counter()

        def settle(job_id: str) -> None:
            for _ in range(13):  # the retries of the state
                deployment.model.wait("states to lambda")
                try:
                    deployment.invoke("settle_attempt", {"jobId": job_id, "attempt": 1})
                except Exception as error:  # noqa: BLE001 - the workflow retries any of these
                    failures[type(error).__name__] += 1
                    deployment.model.time.sleep(1.0)
                    continue
                done.append(deployment.model.time.seconds)
                return

        def start() -> None:
            for job_id in ended:
                deployment.model.time.spawn(functools.partial(settle, job_id))

        deployment.run(start)
        result = self._measured("settle", size, deployment.invocations)
        result.seconds_p50, result.seconds_p99 = _quantiles(done)
        model = deployment.model
        result.notes |= {
            "jobs": len(ended),
            "settled": len(done),
            "retries": dict(failures),
            "cycleRequests": len(deployment.fleet.cycle_requests.reasons),
            "pastThirdOfTimeout": dict(deployment.past_third),
            "longestSeconds": {name: round(value, 3) for name, value in deployment.longest.items()},
            "throttled": dict(model.throttled),
            "throttledSeconds": {name: round(value, 3) for name, value in model.throttled_seconds.items()},
        }
        return result

    # ------------------------------------------------------------ figures

    def _measured(self, case: str, size: FleetSize, invocations: Sequence[Invocation]) -> CaseFigures:
        steps = [step for invocation in invocations for step in flatten(invocation.trace)]
        calls = [step.call for step in steps if step.call is not None]
        times = self._times(invocations)
        by_function: dict[str, list[list[float]]] = defaultdict(list)
        for invocation, drawn in zip(invocations, times, strict=True):
            by_function[invocation.function].append(drawn)
        units: dict[str, float] = defaultdict(float)
        for call in calls:
            if call.units:
                units["write" if "Write" in call.api else "read"] += call.units
        total = times[0] if len(times) == 1 else [0.0]
        return CaseFigures(
            case,
            size,
            Counter(call.api for call in calls),
            sum(call.received for call in calls),
            sum(step.own for step in steps),
            sum(step.client for step in steps),
            *_quantiles(total),
            capacity_units=dict(units),
            functions={
                name: FunctionFigures(
                    len(drawn),
                    *_quantiles([sample for samples in drawn for sample in samples]),
                    gigabyte_seconds=sum(statistics.median(samples) for samples in drawn)
                    * limits()[name].memory_mb
                    / 1024,
                )
                for name, drawn in by_function.items()
            },
        )

    def _times(self, invocations: Sequence[Invocation]) -> list[list[float]]:
        """Return samples of the modelled seconds of each invocation. Many invocations need few samples each."""
        latencies = Latencies(self.setup)
        count = max(3, self.setup["samples"] // max(1, len(invocations)))
        return [
            [seconds_of(invocation.trace, latencies, dice, min(1.0, invocation.share)) for dice in self.dice(count)]
            for invocation in invocations
        ]

    def dice(self, count: int | None = None) -> Iterator[random.Random]:
        """Yield the same source of samples, once for each sample."""
        dice = random.Random(f"samples/{self.seed}")
        for _ in range(count or self.setup["samples"]):
            yield dice


class _Storm:
    """Sends events through queue, functions and workflows until each node is cordoned or ignored."""

    def __init__(self, deployment: Deployment, events: Sequence[Mapping[str, Any]], within: float) -> None:
        self.deployment, self.events, self.within = deployment, events, within
        self.queue: list[tuple[float, Mapping[str, Any]]] = []
        self.pollers = 0
        self.arrived: dict[str, float] = {}
        """Instance id → when its first event reached EventBridge."""
        self.cordoned_after: list[float] = []
        self.outcomes: Counter[str] = Counter()
        self.ended_at = 0.0
        start = deployment.world.workflows.start

        def started(machine: WorkflowName, name: str, document: Mapping[str, Any]) -> bool:
            is_new: bool = start(machine, name, document)
            if is_new and machine is WorkflowName.RECOVER_NODE:
                deployment.model.time.spawn(lambda: self._recover(dict(document)))
            return is_new

        deployment.world.__dict__["workflows"] = _Started(deployment.world.workflows, started)

    def arrive(self) -> None:
        """Send every event to EventBridge."""
        time, dice = self.deployment.model.time, self.deployment.model.dice
        for event in self.events:
            time.spawn(functools.partial(self._deliver, event), after=dice.uniform(0, self.within))

    def _deliver(self, event: Mapping[str, Any]) -> None:
        model = self.deployment.model
        self.arrived.setdefault(event["detail"]["InstanceId"], model.time.seconds)
        model.wait("eventbridge delivery")
        self.queue.append((model.time.seconds, event))
        if self.pollers < limits()["receive_event"].concurrency:
            self.pollers += 1
            model.time.spawn(self._poll)

    def _poll(self) -> None:
        """Take batches from the queue until it is empty, as one poller of the event source mapping does."""
        model, most = self.deployment.model, limits()["receive_event"].batch
        while self.queue:
            model.wait("sqs to lambda")
            batch, self.queue = self.queue[:most], self.queue[most:]
            if not batch:
                break
            records = [
                {"messageId": event["id"], "body": json.dumps(event), "receiptHandle": event["id"], "attributes": {}}
                for _, event in batch
            ]
            answer = self.deployment.invoke("receive_event", {"Records": records})
            failed = {failure["itemIdentifier"] for failure in answer["batchItemFailures"]}
            self.outcomes["redelivered"] += len(failed)
            for _, event in batch:
                if event["id"] in failed:
                    model.time.spawn(functools.partial(self._deliver, event), after=10.0)
        self.pollers -= 1

    def _recover(self, document: Mapping[str, Any]) -> None:
        """Run the states of `recover_node` until the cordon."""
        model = self.deployment.model
        model.wait("states transition")
        planned = self._task("plan_recovery", document)
        if planned is not None and planned["outcome"] == "ACT" and planned["repairsNode"]:
            model.wait("states transition")
            cordoned = self._task("cordon_node", document)
            outcome = "FAILED" if cordoned is None else str(cordoned["outcome"])
            if outcome == "CORDONED" and (cordon := self._cordon_of()) is not None:
                self.cordoned_after.append(cordon)
        else:
            outcome = "FAILED" if planned is None else str(planned["outcome"])
        self.outcomes[outcome] += 1
        self.ended_at = max(self.ended_at, model.time.seconds)

    def _task(self, function: str, document: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Run one task with the retries of its state."""
        model, pause = self.deployment.model, 1.0
        for _ in range(13):
            model.wait("states to lambda")
            try:
                return self.deployment.invoke(function, dict(document))
            except Exception as error:  # noqa: BLE001 - the state retries
                self.outcomes[f"{function} retried: {error}"[:60]] += 1
                model.time.sleep(model.dice.uniform(0, pause))
                pause = min(60.0, pause * 2)
        return None

    def _cordon_of(self) -> float | None:
        """Return the seconds from the event to the cordon that was just made."""
        cluster = self.deployment.fleet.cluster
        name = cluster.calls[-1][1] if cluster.calls and cluster.calls[-1][0] == "cordon" else None
        node = cluster.node(CLUSTER, name) if name else None
        if node is None or node.instance_id is None:
            return None
        return self.deployment.model.time.seconds - self.arrived[node.instance_id]


@dataclass
class _Started:
    """The port Workflows; a new execution runs in modelled time."""

    inner: Any
    start: Callable[..., bool]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def _to_cordon(deployment: Deployment, event: Mapping[str, Any]) -> None:
    records = [{"messageId": "m", "body": json.dumps(event), "receiptHandle": "r", "attributes": {}}]
    deployment.invoke("receive_event", {"Records": records})
    (document,) = (
        execution
        for (kind, _), execution in deployment.fleet.workflows.executions.items()
        if kind is WorkflowName.RECOVER_NODE
    )
    deployment.invoke("plan_recovery", dict(document))
    deployment.invoke("cordon_node", dict(document))


def _cordon_call(invocations: Sequence[Invocation]) -> ApiCall | None:
    for invocation in invocations:
        for step in flatten(invocation.trace):
            if step.call is not None and step.call.api == CORDON:
                return step.call
    return None


def _calls_until(invocations: Sequence[Invocation], cordon: ApiCall | None) -> dict[str, int]:
    """Return the calls before the cordon, by API. The calls after the start of the workflow do not delay it."""
    counts: Counter[str] = Counter()
    ends = _ends_on_path(invocations, cordon)
    for invocation in invocations:
        end = ends.get(invocation.function)
        for step in flatten(invocation.trace):
            if step.call is not None and step.call is not cordon:
                counts[step.call.api] += 1
            if step.call is not None and step.call is end:
                break
    return dict(counts)


def _ends_on_path(invocations: Sequence[Invocation], cordon: ApiCall | None) -> dict[str, ApiCall | None]:
    """Return the last call of a function on the way to the cordon, where the function continues after it.

    The workflow starts with the answer to StartExecution.
    """
    return {"receive_event": _call_of(invocations, "states:StartExecution"), "cordon_node": cordon}


def _reads(figures: CaseFigures) -> int:
    return sum(count for api, count in figures.calls.items() if any(word in api for word in _READS))


def _processor_seconds(figures: CaseFigures) -> float:
    return round(figures.service_seconds + figures.client_seconds, 3)


def _call_of(invocations: Sequence[Invocation], api: str) -> ApiCall | None:
    calls = (step.call for invocation in invocations for step in flatten(invocation.trace) if step.call is not None)
    return next((call for call in calls if call.api == api), None)


def _longest_chain(trace: Sequence[Step], until: ApiCall | None) -> list[str]:
    """Return the calls of a trace of which each waits for the one before. The longest parallel chain counts."""
    chain: list[str] = []
    branches: dict[int, list[str]] = {}
    for step in trace:
        for branch in step.branches:
            branches[id(branch)] = [*chain, *_longest_chain(branch, until)]
        if step.joined is not None:
            chain = max((chain, branches.pop(id(step.joined), [])), key=len)
        if step.call is not None:
            chain.append(step.call.api)
        if step.call is not None and step.call is until:
            return chain
    return max((chain, *branches.values()), key=len)


def _quantiles(samples: Sequence[float]) -> tuple[float, float]:
    return statistics.median(samples), quantile(samples, 0.99)


def _length_of_long_list(value: Any) -> Any:
    return len(value) if isinstance(value, list | tuple) and len(value) > 5 else value
