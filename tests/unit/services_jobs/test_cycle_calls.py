"""A scheduling cycle asks HyperPod, and lists the pods of DaemonSets, only for nodes that no sweep has seen.

Cycles and sweeps list each pod once, and read long lists concurrently.
"""

import threading
from collections.abc import Callable, Mapping

import pytest

from evenkeel.domain.jobs.job import JobState
from evenkeel.domain.resources import Resources
from evenkeel.ports import PodGroup, Table
from tests.fakes import a_node, a_provider_node
from tests.fakes.counting import CountedCalls
from tests.unit.services_jobs.job_scenario import JobScenario


def count_cycle_calls(scenario: JobScenario) -> CountedCalls:
    calls = CountedCalls(scenario.world)
    scenario.ledger, scenario.cluster = calls.ports["ledger"], calls.ports["cluster"]
    scenario.world.provider = calls.ports["provider"]
    return calls


def test_cycle_after_a_sweep_makes_no_call_to_hyperpod() -> None:
    scenario = JobScenario(size=3)
    scenario.sweep()
    job = scenario.submit(nodes=2)
    calls = count_cycle_calls(scenario)

    scenario.run_scheduling_cycle()

    assert scenario.job(job.job_id).state is JobState.STARTING
    assert [name for name in calls.calls if name.startswith("provider.")] == []


def test_cycle_uses_a_node_that_joined_after_the_sweep() -> None:
    scenario = JobScenario(size=1)
    job = scenario.submit(nodes=2)
    scenario.sweep()
    scenario.world.cluster.add_node(a_node(2))
    scenario.world.provider.by_id[a_provider_node(2).instance_id] = a_provider_node(2)
    calls = count_cycle_calls(scenario)

    scenario.run_scheduling_cycle()

    assert scenario.job(job.job_id).state is JobState.STARTING
    assert calls.calls["provider.nodes"] == 1


def used_lists(scenario: JobScenario) -> list[PodGroup]:
    """Record which lists of pods a cycle reads."""
    groups: list[PodGroup] = []
    real = scenario.world.cluster.resources_in_use

    def recorded(cluster: str, pods: PodGroup = PodGroup.ALL) -> Mapping[str, Resources]:
        groups.append(pods)
        return real(cluster, pods)

    vars(scenario.world.cluster)["resources_in_use"] = recorded
    return groups


@pytest.mark.parametrize("is_swept", [True, False])
def test_cycle_subtracts_resources_of_daemonset_pods_from_a_node(is_swept: bool) -> None:
    scenario = JobScenario(size=1)
    scenario.world.cluster.bound_requests[a_node(1).name] = Resources(accelerators=1)
    if is_swept:
        scenario.sweep()
    groups = used_lists(scenario)
    whole, part = (scenario.submit(key, nodes=1, accelerators_per_node=count) for key, count in (("a", 8), ("b", 7)))

    scenario.run_scheduling_cycle()

    # A pending job blocks later jobs, so the larger job is removed first.
    scenario.cancel(whole.job_id)
    scenario.run_scheduling_cycle()
    assert scenario.job(whole.job_id).state is JobState.CANCELLED
    assert scenario.job(part.job_id).state is JobState.STARTING
    assert (PodGroup.BOUND in groups, PodGroup.ALL in groups) == (not is_swept, False)


def test_cycle_lists_daemonset_pods_of_a_node_after_sweep() -> None:
    scenario = JobScenario(size=1)
    job = scenario.submit(nodes=2, accelerators_per_node=8)
    scenario.sweep()
    scenario.world.cluster.add_node(a_node(2))
    scenario.world.provider.by_id[a_provider_node(2).instance_id] = a_provider_node(2)
    scenario.world.cluster.bound_requests[a_node(2).name] = Resources(accelerators=1)

    scenario.run_scheduling_cycle()

    assert scenario.job(job.job_id).state is JobState.PENDING


def test_cycle_records_same_node_lives_before_and_after_sweep() -> None:
    lives = []
    for is_swept in (False, True):
        scenario = JobScenario(size=2)
        if is_swept:
            scenario.sweep()
        job = scenario.submit(nodes=2)
        scenario.run_scheduling_cycle()
        attempt = scenario.attempt(job.job_id)
        lives.append((attempt.nodes, attempt.node_names, attempt.pool, attempt.instance_type))

    assert lives[0] == lives[1]


def test_cycle_lists_each_pod_once() -> None:
    scenario = JobScenario(size=3)
    scenario.running(nodes=1)
    scenario.sweep()
    scenario.submit(nodes=2)
    calls = count_cycle_calls(scenario)

    scenario.run_scheduling_cycle()

    lists = {name: count for name, count in calls.calls.items() if "pods" in name or "workload" in name}
    assert lists == {"cluster.pods_in_use": 1}


def test_sweep_lists_live_pods_once() -> None:
    scenario = JobScenario(size=3)
    scenario.running(nodes=1)
    calls = count_cycle_calls(scenario)

    scenario.sweep()

    assert calls.calls["cluster.live_pods"] == 1
    assert not calls.calls.keys() & {"cluster.pods", "cluster.resources_in_use"}


def require_concurrent_first_calls(patch: pytest.MonkeyPatch, *methods: tuple[object, str]) -> None:
    """Make the first call of each method wait until all were called. A call fails after ten seconds."""
    barrier = threading.Barrier(len(methods))
    for port, name in methods:
        patch.setitem(vars(port), name, _waiting_at_barrier(getattr(port, name), barrier))


def _waiting_at_barrier(method: Callable[..., object], barrier: threading.Barrier) -> Callable[..., object]:
    waits = [True]

    def called(*given: object, **named: object) -> object:
        if waits and waits.pop():
            barrier.wait(10)
        return method(*given, **named)

    return called


def test_cycle_reads_nodes_and_jobs_concurrently(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = JobScenario(size=3)
    job = scenario.submit(nodes=2)
    require_concurrent_first_calls(monkeypatch, (scenario.world.cluster, "nodes"), (scenario.world.ledger, "batch_get"))

    scenario.run_scheduling_cycle()

    assert scenario.job(job.job_id).state is JobState.STARTING


def test_sweep_reads_its_lists_concurrently(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = JobScenario(size=3)
    cluster = scenario.world.cluster
    lists = ((cluster, "live_pods"), (cluster, "workloads"), (cluster, "nodes"), (scenario.world.provider, "nodes"))
    require_concurrent_first_calls(monkeypatch, *lists)

    scenario.sweep()

    assert len(scenario.world.ledger.by_state(Table.FLEET, "NODE").rows) == 3
