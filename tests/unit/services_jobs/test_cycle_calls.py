"""A scheduling cycle asks HyperPod only about nodes that no sweep has seen."""

from evenkeel.domain.jobs.job import JobState
from tests.fakes import a_node, a_provider_node
from tests.fakes.counting import CountedCalls
from tests.unit.services_jobs.job_scenario import JobScenario


def counted(scenario: JobScenario) -> CountedCalls:
    calls = CountedCalls(scenario.world)
    scenario.ledger, scenario.cluster = calls.ports["ledger"], calls.ports["cluster"]
    scenario.world.provider = calls.ports["provider"]
    return calls


def test_cycle_after_a_sweep_makes_no_call_to_hyperpod() -> None:
    scenario = JobScenario(size=3)
    scenario.sweep()
    job = scenario.submit(nodes=2)
    calls = counted(scenario)

    scenario.run_scheduling_cycle()

    assert scenario.job(job.job_id).state is JobState.STARTING
    assert [name for name in calls.calls if name.startswith("provider.")] == []


def test_cycle_uses_a_node_that_joined_after_the_sweep() -> None:
    scenario = JobScenario(size=1)
    job = scenario.submit(nodes=2)
    scenario.sweep()
    scenario.world.cluster.add_node(a_node(2))
    scenario.world.provider.by_id[a_provider_node(2).instance_id] = a_provider_node(2)
    calls = counted(scenario)

    scenario.run_scheduling_cycle()

    assert scenario.job(job.job_id).state is JobState.STARTING
    assert calls.calls["provider.nodes"] == 1


def test_lives_and_slots_of_a_cycle_are_those_of_hyperpod() -> None:
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
