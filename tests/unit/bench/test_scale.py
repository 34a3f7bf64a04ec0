"""The scale benchmark counts the same API calls as the adapters, and its modelled time follows from these calls."""

import copy
import dataclasses
import functools
import json
import random
from collections import Counter
from io import BytesIO
from typing import Any

import pytest
import urllib3

from bench.scale import each_function, sample_objects
from bench.scale.client_costs import ListMemory, MeasuredClients
from bench.scale.fleet import FleetSize, build_world
from bench.scale.functions import MEASURED, ColdStart, limits
from bench.scale.memory import client_peak
from bench.scale.model import ClientCost, ClientCosts, Invocation, Latencies, Model, Step, load_setup, seconds_of
from bench.scale.report import judge_results
from bench.scale.scenarios import Bench
from bench.scale.virtual_time import Bucket, Slots, VirtualTime
from evenkeel.adapters import workloads
from evenkeel.adapters.cluster import KubernetesCluster
from evenkeel.adapters.kubernetes import KubernetesApi
from evenkeel.ports import Throttled
from tests.fakes import FakeWorld
from tests.fakes.cluster import CLUSTER
from tests.fakes.metered import ApiCall, CallCounter, MeteredCluster, ObjectSizes

SIZES = (FleetSize(20, 20), FleetSize(200, 200))


@pytest.fixture(scope="module")
def bench() -> Bench:
    setup = load_setup()
    setup["samples"] = 50
    setup["storm"] = {"events": 12, "arriveWithinSeconds": 1.0}
    clients = MeasuredClients(ClientCosts({"": ClientCost(0.0003)}), {}, ObjectSizes())
    starts = dict.fromkeys(MEASURED, ColdStart(0.3, 100_000_000))
    return Bench(setup, clients, starts, seed=1, measures_memory=False)


def test_calls_before_the_cordon_do_not_grow_with_the_fleet(bench: Bench) -> None:
    small, large = (bench.one_event(size) for size in SIZES)

    assert small.notes["isCordoned"]
    assert large.notes["isCordoned"]
    assert small.notes["callsBeforeCordon"] == large.notes["callsBeforeCordon"]
    assert sum(large.notes["callsBeforeCordon"].values()) == 10


def test_scale_benchmark_runs_each_scheduled_function(bench: Bench) -> None:
    for case, function in (("watch", "watch_cluster"), ("cycle", "schedule_jobs"), ("sweep", "sweep_fleet")):
        invocation = bench.one_invocation(case, function, SIZES[0])

        assert invocation.notes["answer"]["outcome" if case != "cycle" else "isComplete"] in ("WATCHED", "SWEPT", True)
        assert invocation.seconds_p99 >= invocation.seconds_p50 > 0
        assert invocation.received > 0


def test_failure_storm_ends_with_an_outcome_for_each_node(bench: Bench) -> None:
    storm = bench.storm(SIZES[0])

    outcomes = {name: count for name, count in storm.notes["outcomes"].items() if "retried" not in name and count}
    assert sum(outcomes.values()) == 12
    assert storm.notes["cordoned"] == outcomes["CORDONED"]


def test_storm_does_not_wait_for_a_throttled_hyperpod(bench: Bench) -> None:
    throttled = copy.deepcopy(dict(bench.setup))
    throttled["limits"]["sagemaker:DescribeClusterNode"] = {"perSecond": 0.001, "burst": 1, "attempts": 3}

    storm = dataclasses.replace(bench, setup=throttled).storm(SIZES[0])

    assert storm.notes["throttled"]["sagemaker:DescribeClusterNode"] == 11
    assert storm.notes["pastThirdOfTimeout"] == {}
    assert not any("retried" in outcome for outcome in storm.notes["outcomes"] if "plan_recovery" in outcome)


def test_failure_storm_settles_every_job_once(bench: Bench) -> None:
    settle = bench.settle(SIZES[0])

    assert settle.notes["settled"] == settle.notes["jobs"] == SIZES[0].running
    assert "kubernetes:LIST nodes" not in settle.calls


def test_seconds_after_the_last_call_are_reference_seconds(bench: Bench) -> None:
    invocation = Invocation("schedule_jobs", 1.0, model=Model(bench.setup, bench.clients.costs, 1, scale=0.0))

    invocation.resume()
    sum(range(1000))
    invocation.settle()

    assert [step.own for step in invocation.trace] == [0.0]


def test_benchmark_fleet_has_the_stated_nodes_and_jobs() -> None:
    world, running = build_world(SIZES[0])

    assert len(world.cluster.nodes(CLUSTER)) == SIZES[0].nodes
    assert len(running) == SIZES[0].running == len(world.cluster.jobs[CLUSTER])
    assert len({pod.node_name for workload in world.cluster.workloads(CLUSTER) for pod in workload.pods}) == len(
        running
    )


class RecordingApi(KubernetesApi):
    """Answers each list in pages of a fixed size, and counts the requests."""

    def __init__(self, objects: int) -> None:
        self.name, self.objects = "recorded", objects
        self.requests: Counter[str] = Counter()

    def _open(self, method: str, path: str, query: Any = None, *_: Any, **__: Any) -> urllib3.BaseHTTPResponse:
        kind = path.strip("/").split("/")[-1]
        self.requests[f"{method} {kind}"] += 1
        start = int((query or {}).get("continue") or 0)
        rest = self.objects - start - 500 if query else 0
        continue_field = b',"continue":"%d"' % (start + 500) if rest > 0 else b""
        body = b'{"metadata":{"resourceVersion":"1"%s},"items":[]}' % continue_field
        return urllib3.HTTPResponse(BytesIO(body), status=200, preload_content=False)

    def api(self, cluster: str) -> KubernetesApi:
        return self


@pytest.mark.parametrize(("method", "path"), [("nodes", "GET nodes"), ("resources_in_use", "GET pods")])
def test_metered_cluster_counts_the_pages_of_the_adapter(method: str, path: str) -> None:
    size, sizes = 1001, ObjectSizes(system_pods_per_node=1)
    recorded, counter = RecordingApi(size), CallCounter()

    getattr(KubernetesCluster(recorded, fleet="research"), method)(CLUSTER)
    getattr(MeteredCluster(FakeWorld(size=size).cluster, counter, sizes), method)(CLUSTER)

    assert len(counter.calls) == recorded.requests[path] == 3


def test_trimmed_workload_objects_are_read_like_complete_ones() -> None:
    jobs = [{**sample_objects.job(number), "kind": "Job"} for number in range(3)]
    jobs[0]["spec"]["suspend"] = True
    pods = [*map(sample_objects.pod, range(3))]
    trimmed = [{**workloads.trim_object(job), "kind": "Job"} for job in jobs], [*map(workloads.trim_object, pods)]

    assert workloads.read_workloads(*trimmed, {}) == workloads.read_workloads(jobs, pods, {})
    assert len(json.dumps(trimmed)) < len(json.dumps([jobs, pods])) / 2


def test_missing_latency_is_an_error() -> None:
    with pytest.raises(KeyError, match="no latency for quantum:Compute"):
        Latencies(load_setup()).of("quantum:Compute")


def test_parallel_branches_take_the_time_of_the_longest() -> None:
    latencies, random_numbers = Latencies(load_setup()), random.Random(1)
    calls = [ApiCall("kubernetes:LIST nodes", received=size) for size in (50_000_000, 250_000_000)]
    branches = [[Step(0, 0, call)] for call in calls]
    single_branches = [Step(0, 0, branches=[branch]) for branch in branches]
    joins = [Step(0, 0, joined=branch) for branch in branches]
    with_joins, without_joins = [*single_branches, *joins, Step(0.5, 0.0)], [*single_branches, Step(0.5, 0.0)]

    assert 5.5 < seconds_of(with_joins, latencies, random_numbers, share=1.0) < 6.5
    assert 6.0 < seconds_of(with_joins, latencies, random_numbers, share=0.5) < 7.0
    assert 5.0 < seconds_of(without_joins, latencies, random_numbers, share=1.0) < 5.5


def test_simulated_processes_wait_for_slots_in_order() -> None:
    time, end_times = VirtualTime(), list[tuple[str, float]]()
    slots = Slots(time, 1)

    def work(name: str) -> None:
        slots.take()
        time.sleep(2.0)
        slots.give()
        end_times.append((name, time.seconds))

    for name in ("first", "second"):
        time.spawn(functools.partial(work, name))
    time.run()

    assert end_times == [("first", 2.0), ("second", 4.0)]


def test_token_bucket_delays_calls_beyond_its_capacity() -> None:
    bucket = Bucket(rate=10, burst=2)

    assert [bucket.wait_for(1, now=0.0) for _ in range(4)] == [0, 0, pytest.approx(0.1), pytest.approx(0.2)]


def test_throttled_call_fails_after_the_attempts_of_the_sdk() -> None:
    setup = load_setup()
    setup["limits"]["sagemaker:DescribeClusterNode"] = {"perSecond": 0.001, "burst": 1, "attempts": 3}
    model = Model(setup, ClientCosts({"": ClientCost(0.0)}), seed=1)
    outcomes: list[str] = []

    def describe() -> None:
        model.time.current.context = Invocation("plan_recovery", 1.0, model=model)
        try:
            model.call(ApiCall("sagemaker:DescribeClusterNode"))
        except Throttled:
            outcomes.append(f"refused after at most 4 s: {model.time.seconds < 4}")
        else:
            outcomes.append("answered")

    model.time.spawn(describe)
    model.time.spawn(describe, after=1.0)
    model.time.run()

    assert outcomes == ["answered", "refused after at most 4 s: True"]


def test_peak_memory_includes_lists_that_are_still_referenced() -> None:
    memory = {"a": ListMemory(fixed=0, per_object=10, kept=4), "b": ListMemory(fixed=5, per_object=1, kept=1)}
    steps = [Step(0, 0, ApiCall("a", items=10)), Step(0, 0, ApiCall("b", items=100))]

    assert client_peak(steps, memory) == 145


def test_benchmark_uses_the_function_limits_of_the_template() -> None:
    assert MEASURED.keys() <= limits().keys()
    assert (limits()["receive_event"].batch, limits()["receive_event"].concurrency) == (10, 10)
    assert limits()["schedule_jobs"].share == 1.0


def test_every_function_of_the_template_is_measured(bench: Bench) -> None:
    starts = dict.fromkeys(limits(), ColdStart(0.3, 100_000_000))

    used = each_function.measure_each_function(dataclasses.replace(bench, cold_starts=starts), SIZES[0])

    assert used.keys() == limits().keys()
    assert all(use.memory_bytes > 100_000_000 for use in used.values())


def test_missed_targets_come_first_in_the_report(bench: Bench) -> None:
    verdicts_found = judge_results([bench.one_event(SIZES[0])])

    assert [verdict.is_met for verdict in verdicts_found] == sorted(verdict.is_met for verdict in verdicts_found)
