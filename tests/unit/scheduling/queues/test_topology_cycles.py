"""One cycle with topologies: assignment, preemption, reservation and cohorts, as in Kueue's own test cases."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from evenkeel.domain.queue_simulation.plan_events import Events
from evenkeel.domain.queue_simulation.plan_report import DecisionAnswer
from evenkeel.domain.queue_simulation.replay import Replay
from evenkeel.domain.queue_simulation.setup import QuotaDocuments

Json = dict[str, Any]

CYCLES = yaml.safe_load(
    (Path(__file__).resolve().parents[3] / "fixtures" / "topology_cycles.yaml").read_text(encoding="utf-8")
)


def a_manifest(job: Json) -> Json:
    """Return the Workload of a job in the fixture's form."""
    pod_sets = []
    for pods in job["podSets"]:
        container = {"name": "c", "resources": {"requests": pods["requests"]}}
        pod_set = {"name": pods["name"], "count": pods["count"]}
        pod_set["template"] = {"spec": {"containers": [container], **pods.get("pod", {})}}
        pod_set |= {"topologyRequest": pods["topology"]} if "topology" in pods else {}
        pod_set |= {"minCount": pods["minCount"]} if "minCount" in pods else {}
        pod_sets.append(pod_set)
    reserved = {"type": "QuotaReserved", "status": "True", "lastTransitionTime": "2026-01-02T00:00:00Z"}
    admission = job.get("admission")
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": job["name"], "uid": job.get("uid", ""), "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"queueName": job["queue"], "priority": job["priority"], "podSets": pod_sets},
        "status": {"admission": admission, "conditions": [reserved]} if admission else {},
    }


def domains_of(decision: DecisionAnswer) -> Json:
    return {
        pod_set.name: pod_set.topology
        and {"/".join(domain.values): domain.count for domain in pod_set.topology.domains}
        for pod_set in decision.pod_sets
    }


@pytest.mark.parametrize("case", CYCLES["cases"], ids=lambda case: case["name"])
def test_cycle_with_topologies_admits_and_preempts_the_expected_jobs(case: Json) -> None:
    declared = QuotaDocuments()
    declared.configure({"featureGates": case.get("gates", {})}, "configuration")
    for name in case["quota"]:
        declared.add(CYCLES["documents"][name], name)
    replay = Replay(declared, 1, False, 0)
    for job in case["jobs"]:
        replay.submit(a_manifest(job), "jobs")

    replay.run(Events(), "events")

    plan = replay.answer()
    decisions = {decision.job: decision for cycle in plan.cycles for decision in cycle.decisions}
    admitted = {job: domains_of(decision) for job, decision in decisions.items() if decision.result == "Admitted"}
    assert admitted == case["admitted"]
    victims = {victim.job for decision in decisions.values() for victim in decision.victims}
    assert sorted(victims) == sorted(case["preempted"])
    for job, reason in case.get("why", {}).items():
        assert reason in {considered.why for considered in decisions[job].considered}
