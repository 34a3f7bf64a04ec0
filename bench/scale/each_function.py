"""Each function once, on one fleet: its peak memory and its modelled time, against the limits of template.yaml.

Two fleets of the same size run the same calls. The first run counts processor time. The second run traces memory,
which would slow the first one.
"""

from __future__ import annotations

import functools
import json
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final
from unittest import mock

from bench.figures import quantile
from bench.scale.fleet import FleetSize, events_of
from bench.scale.functions import Deployment, Json, limits
from bench.scale.memory import client_peak
from bench.scale.model import Latencies, flatten, seconds_of
from bench.scale.report import MEMORY_SHARE, TIMEOUT_SHARE
from bench.scale.scenarios import Bench
from evenkeel.domain.jobs.attempt import PodPhase
from evenkeel.domain.waiting import ConditionKind
from evenkeel.ports import Row, Table, WorkflowName
from evenkeel.services.scheduling import schedule_jobs
from evenkeel.services.tables import incident_rows, subject_rows
from tests.fakes.world import CLUSTER_ARN
from tests.unit.api.gateway import Gateway
from tests.unit.services_jobs.test_rentals import RentalScenario

_ADMINISTRATOR = "arn:aws:sts::000000000000:assumed-role/Platform/ana"
_JOB: Final = {"name": "train", "nodes": 2, "image": "registry/train:1", "command": ["train"]}


@dataclass(frozen=True)
class Step:
    """A call of a function, and a test that the call did its work."""

    function: str
    event: Json
    is_done: Callable[[Json], bool]


@dataclass
class FunctionLimitsUse:
    """Memory and time of the largest call of a function."""

    memory_bytes: int = 0
    seconds_p99: float = 0.0
    calls: Counter[str] = field(default_factory=Counter)


def measure_each_function(bench: Bench, size: FleetSize) -> dict[str, FunctionLimitsUse]:
    """Return the use of every function at a fleet size."""
    used: dict[str, FunctionLimitsUse] = {}
    for begin in (functools.partial(_fleet, bench, size), functools.partial(_rental, bench)):
        deployment, steps = begin()
        for step in _run(deployment, steps):
            invocation = deployment.invocations[-1]
            latencies = Latencies(bench.setup)
            times = [
                seconds_of(invocation.trace, latencies, dice, min(1.0, invocation.share)) for dice in bench.dice(200)
            ]
            use = used.setdefault(step.function, FunctionLimitsUse())
            use.seconds_p99 = max(use.seconds_p99, quantile(times, 0.99))
            use.calls.update(part.call.api for part in flatten(invocation.trace) if part.call is not None)
        deployment, steps = begin()
        tracemalloc.start()
        try:
            before = _reset_peak()
            for step in _run(deployment, steps):
                own_bytes = tracemalloc.get_traced_memory()[1] - before
                lists = client_peak([*flatten(deployment.invocations[-1].trace)], bench.clients.memory)
                use = used[step.function]
                peak = int(own_bytes + lists) + bench.cold_starts[step.function].memory_bytes
                use.memory_bytes = max(use.memory_bytes, peak)
                before = _reset_peak()
        finally:
            tracemalloc.stop()
    return used


def _reset_peak() -> int:
    tracemalloc.reset_peak()
    return tracemalloc.get_traced_memory()[0]


def _run(deployment: Deployment, steps: Iterator[Step]) -> Iterator[Step]:
    """Run the steps one after another, and yield each after its call."""
    for step in steps:
        answers: list[Json] = []
        deployment.run(lambda step=step, answers=answers: answers.append(deployment.invoke(step.function, step.event)))  # type: ignore[misc]  # binds the loop variables
        assert step.is_done(answers[0]), f"{step.function} did not do its work: {answers[0]}"
        yield step


def _outcome(*names: str) -> Callable[[Json], bool]:
    return lambda answer: answer.get("outcome") in names


def _always(_: Json) -> bool:
    return True


def _fleet(bench: Bench, size: FleetSize) -> tuple[Deployment, Iterator[Step]]:
    deployment, jobs = bench.deployment(size)
    return deployment, _steps_of_fleet(deployment, jobs)


def _steps_of_fleet(deployment: Deployment, jobs: tuple[str, ...]) -> Iterator[Step]:
    """Yield a recovery, a cycle with the life of a job, the scheduled functions, and requests of the API."""
    fleet, ledger = deployment.fleet, deployment.fleet.ledger
    fleet.cluster.idle_seconds = deployment.world.policy.watch.watch_seconds
    event = next(events_of(fleet, 1))
    record = {"messageId": "m", "body": json.dumps(event), "receiptHandle": "r", "attributes": {}}
    yield Step("receive_event", {"Records": [record]}, lambda answer: not answer["batchItemFailures"])
    (recovery,) = (
        dict(document)
        for (kind, _), document in fleet.workflows.executions.items()
        if kind is WorkflowName.RECOVER_NODE
    )
    incident_key = incident_rows.incident_key(recovery["incidentId"])
    opened = ledger.get(incident_key)
    yield Step("plan_recovery", recovery, _outcome("ACT"))
    yield Step("cordon_node", recovery, _outcome("CORDONED"))
    yield Step("drain_node", recovery, _outcome("JOBS_AFFECTED"))
    yield Step("plan_resume", recovery, _outcome("PLANNED"))
    yield Step("repair_node", recovery, _outcome("REQUESTED"))
    wait = {**recovery, "kind": ConditionKind.NODE_BACK, "token": "token-1"}
    yield Step("open_wait", wait, lambda answer: "generation" in answer)
    waiting = next(
        row
        for row in ledger.partition(Table.INCIDENTS, incident_key.pk, "WAIT#")
        if row.key == subject_rows.wait_key(recovery["incidentId"], row.key.sk.removeprefix("WAIT#"))
    )
    answer = {"outcome": "BACK", "reason": "The node is back."}
    stored = {"subject": recovery["incidentId"], "name": waiting.key.sk.removeprefix("WAIT#")}
    yield Step(
        "resolve_wait", {**stored, "generation": waiting.doc["generation"], "answer": answer}, _outcome("ANSWERED")
    )
    yield Step("check_node", recovery, _outcome("BASIC"))
    yield Step("return_node", recovery, _outcome("RETURNED"))
    ends = {
        "plan": {"outcome": "ACT", "reason": "Reboot."},
        "node": {"outcome": "RETURNED", "reason": "The node is back."},
        "jobs": {"outcome": "NO_JOBS", "reason": "The job runs."},
    }
    yield Step("settle_incident", {**recovery, **ends}, _outcome("RECOVERED"))
    yield Step("publish_events", {"Records": [_stream_record(opened, ledger.get(incident_key))]}, _always)
    yield Step("schedule_jobs", {}, lambda answer: bool(answer["admitted"]))
    job_id, attempt = _admitted(deployment)
    job = {"schemaVersion": 1, "jobId": job_id, "attempt": attempt}
    yield Step("launch_job", job, _outcome("LAUNCHED"))
    fleet.cluster.run_pods(job_id, attempt)
    yield Step("mark_running", job, _outcome("RUNNING"))
    yield Step("stop_attempt", job, _outcome("STOPPING"))
    fleet.cluster.set_pods(jobs[-1], 1, PodPhase.SUCCEEDED, exit_code=0)
    yield Step("settle_attempt", {"jobId": jobs[-1], "attempt": 1}, _outcome("JOB_SUCCEEDED"))
    yield Step("watch_cluster", {}, _outcome("WATCHED"))
    yield Step("sweep_fleet", {}, _outcome("SWEPT"))
    cluster = f"/v1/clusters/{deployment.world.settings.fleet}"
    for function, method, target, body in (
        ("api_read", "GET", "/v1/nodes", None),
        ("api_read", "GET", "/v1/jobs", None),
        ("api_read", "GET", "/v1/status", None),
        ("api_read", "GET", "/v1/overview", None),
        ("api_read", "GET", "/v1/cost-report", None),
        ("api_submit", "POST", "/v1/jobs", _JOB),
        ("api_operate", "POST", f"{cluster}/automation/hold", {"reason": "A measurement.", "forSeconds": 60}),
        ("api_admin", "GET", f"{cluster}/policy", None),
    ):
        yield Step(function, _api_event(method, target, body), lambda answer: answer["statusCode"] < 300)


def _admitted(deployment: Deployment) -> tuple[str, int]:
    """Return the job and the attempt of the newest execution of run_job."""
    *_, (_, name) = (key for key in deployment.fleet.workflows.executions if key[0] is WorkflowName.RUN_JOB)
    job_id, _, attempt = name.rpartition("-a")
    return job_id, int(attempt)


def _stream_record(before: Row | None, after: Row | None) -> Json:
    """Return a record of the stream of a table, as Lambda delivers it."""
    assert before is not None
    assert after is not None
    return {
        "eventName": "MODIFY",
        "eventSourceARN": f"arn:aws:dynamodb:us-west-2:111122223333:table/{after.key.table.value}/stream/1",
        "dynamodb": {
            "ApproximateCreationDateTime": 1_793_700_000,
            "OldImage": _image(before),
            "NewImage": _image(after),
        },
    }


def _image(row: Row) -> Mapping[str, Mapping[str, str]]:
    return {
        "pk": {"S": row.key.pk},
        "sk": {"S": row.key.sk},
        "version": {"N": str(row.version)},
        "doc": {"S": json.dumps(row.doc)},
    }


def _api_event(method: str, target: str, body: Json | None) -> Json:
    """Return the event of API Gateway for a request."""
    events: list[Json] = []

    def keep(event: Json, _: object) -> Json:
        events.append(event)
        return {"statusCode": 200}

    gateway = Gateway(environment={"HYPERPOD_CLUSTER_ARN": CLUSTER_ARN})
    with mock.patch("importlib.import_module", return_value=mock.Mock(handler=keep)):
        gateway.call(method, target, body, caller=_ADMINISTRATOR)
    return events[0]


def _rental(bench: Bench) -> tuple[Deployment, Iterator[Step]]:
    """Return a fleet whose pending job just got a rental, and the first steps of the rental."""
    scenario = RentalScenario()
    scenario.scenario.running(nodes=2)
    scenario.scenario.submit("waits", nodes=1)
    schedule_jobs.run(scenario.scenario.context())
    scenario.world.policy = scenario.policy
    deployment = bench.deploy(scenario.world)

    def steps() -> Iterator[Step]:
        (rental,) = (
            dict(document)
            for (kind, _), document in scenario.world.workflows.executions.items()
            if kind is WorkflowName.BURST_CAPACITY
        )
        for step in ("CHECK", "OPEN"):
            yield Step("rent_capacity", {**rental, "step": step}, _always)

    return deployment, steps()


def report_lines(used: Mapping[str, FunctionLimitsUse]) -> Iterator[str]:
    """Yield a line for each function with its use and its limits."""
    yield f"  {'function':<18}{'peak MB':>9}{'of MB':>7}{'p99 s':>8}{'of s':>6}"
    for name, use in sorted(used.items()):
        limit = limits()[name]
        verdict = "" if is_within(name, use) else "  MISSED"
        yield (
            f"  {name:<18}{use.memory_bytes / 2**20:>9.0f}{limit.memory_mb:>7}{use.seconds_p99:>8.2f}"
            f"{limit.timeout_seconds:>6.0f}{verdict}"
        )


def is_within(name: str, use: FunctionLimitsUse) -> bool:
    """Whether a function used at most half of its memory and a third of its timeout."""
    limit = limits()[name]
    has_memory = use.memory_bytes <= limit.memory_mb * 2**20 * MEMORY_SHARE
    return has_memory and use.seconds_p99 <= limit.timeout_seconds * TIMEOUT_SHARE


def to_json(used: Mapping[str, FunctionLimitsUse]) -> list[Json]:
    """Return the figures of each function."""
    return [
        {
            "function": name,
            "memoryMB": limits()[name].memory_mb,
            "timeoutSeconds": limits()[name].timeout_seconds,
            "peakMemoryMB": round(use.memory_bytes / 2**20, 1),
            "p99Seconds": round(use.seconds_p99, 3),
            "calls": sum(use.calls.values()),
            "isWithin": is_within(name, use),
        }
        for name, use in sorted(used.items())
    ]
