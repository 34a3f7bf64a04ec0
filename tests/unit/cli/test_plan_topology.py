"""`evenkeel plan` with topologies, from manifests to domains."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.cli.test_plan import PlanFiles

Json = dict[str, Any]

RACK = "topology.k8s.aws/network-node-layer-3"
BLOCK = "topology.k8s.aws/network-node-layer-2"
HOST = "kubernetes.io/hostname"
REQUIRED, PREFERRED = "kueue.x-k8s.io/podset-required-topology", "kueue.x-k8s.io/podset-preferred-topology"
SLICE_TOPOLOGY, SLICE_SIZE = "kueue.x-k8s.io/podset-slice-required-topology", "kueue.x-k8s.io/podset-slice-size"
GROUP = "kueue.x-k8s.io/podset-group-name"
GPU = "nvidia.com/gpu"
VERSION = "kueue.x-k8s.io/v1beta2"


def quota_file(*more: Json, gpus: int = 32, within: str = "Never", flavors: Mapping[str, str] | None = None) -> str:
    """Return the quota file: a queue, its flavors with their topologies, and four nodes in two racks of one block."""
    topology_by_flavor = {"p5": "aws"} if flavors is None else flavors
    levels = [{"nodeLabel": label} for label in (BLOCK, RACK, HOST)]
    documents: list[Json] = [
        {"apiVersion": VERSION, "kind": "Topology", "metadata": {"name": "aws"}, "spec": {"levels": levels}},
        a_queue("research", gpus, tuple(topology_by_flavor), within),
    ]
    for name, topology in topology_by_flavor.items():
        spec = {"nodeLabels": {"type": "p5"}, **({"topologyName": topology} if topology else {})}
        documents.append({"apiVersion": VERSION, "kind": "ResourceFlavor", "metadata": {"name": name}, "spec": spec})
    nodes = [a_node(f"n{number}", f"r{(number + 1) // 2}") for number in range(1, 5)]
    return str(yaml.safe_dump_all([*documents, *nodes, *more]))


def a_queue(name: str, gpus: int, flavors: tuple[str, ...] = ("p5",), within: str = "Never", **spec: Any) -> Json:
    quotas = [{"name": flavor, "resources": [{"name": GPU, "nominalQuota": gpus}]} for flavor in flavors]
    groups = [{"coveredResources": [GPU], "flavors": quotas}]
    queue_spec = {
        "namespaceSelector": {},
        "resourceGroups": groups,
        "preemption": {"withinClusterQueue": within},
        **spec,
    }
    return {"apiVersion": VERSION, "kind": "ClusterQueue", "metadata": {"name": name}, "spec": queue_spec}


def a_node(name: str, rack: str, spec: Json | None = None, ready: str = "True", gpus: int = 8) -> Json:
    labels = {"type": "p5", BLOCK: "b1", RACK: rack, HOST: name}
    condition = {"type": "Ready", "status": ready, "lastHeartbeatTime": "2026-11-03T10:00:00Z"}
    status = {"allocatable": {GPU: gpus, "pods": 110}, "conditions": [condition]}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": spec or {},
        "status": status,
    }


def a_pod(
    name: str, node: str, gpus: int, phase: str = "Running", annotations: Mapping[str, str] | None = None
) -> Json:
    resources = {"requests": {GPU: gpus}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "lab", "annotations": dict(annotations or {})},
        "spec": {"nodeName": node, "containers": [{"name": "c", "resources": resources}]},
        "status": {"phase": phase},
    }


def pods(
    count: int,
    gpus: int = 8,
    name: str = "main",
    request: Json | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Json:
    container = {"name": "c", "resources": {"requests": {GPU: gpus}}}
    template = {
        "metadata": {"annotations": dict(annotations or {}), "labels": {"app": "x"}},
        "spec": {"containers": [container]},
    }
    pod_set: Json = {"name": name, "count": count, "template": template}
    return pod_set if request is None else {**pod_set, "topologyRequest": request}


def a_job(name: str, *pod_sets: Json, priority: int = 0, queue: str = "research", status: Json | None = None) -> Json:
    return {
        "apiVersion": VERSION,
        "kind": "Workload",
        "metadata": {"name": name, "namespace": "lab", "creationTimestamp": "2026-11-03T10:00:00Z"},
        "spec": {"queueName": queue, "priority": priority, "podSets": list(pod_sets)},
        "status": status or {},
    }


def running_job(name: str, nodes: dict[str, int], gpus: int = 8, **given: Any) -> Json:
    """Return a job that runs on these nodes, as v1beta1 records it."""
    count = sum(nodes.values())
    domains = [{"values": [node], "count": number} for node, number in nodes.items()]
    assigned = {
        "name": "main",
        "flavors": {GPU: "p5"},
        "count": count,
        "topologyAssignment": {"levels": [HOST], "domains": domains},
    }
    return a_job(name, pods(count, gpus), status=_admitted(assigned), **given)


def _admitted(assigned: Json, queue: str = "research") -> Json:
    at = "2026-11-03T11:00:00Z"
    condition = {"type": "QuotaReserved", "status": "True", "lastTransitionTime": at}
    return {"admission": {"clusterQueue": queue, "podSetAssignments": [assigned]}, "conditions": [condition]}


def last_decisions(plan: Json) -> dict[str, Json]:
    """Return the last decision about each job."""
    decided = [decision for cycle in plan["cycles"] for decision in cycle["decisions"]]
    return {decision["job"].removeprefix("lab/"): decision for decision in decided}


def pods_by_domain(pod_set: Json) -> dict[str, int]:
    return {"/".join(domain["values"]): domain["count"] for domain in pod_set["topology"]["domains"]}


@pytest.fixture
def files(tmp_path: Path) -> PlanFiles:
    return PlanFiles(tmp_path)


def test_annotation_of_task_governance_keeps_pods_in_one_rack(files: PlanFiles) -> None:
    plan = files.plan(
        a_job("near", pods(2, annotations={REQUIRED: RACK})), running_job("held", {"n1": 1}), quota=quota_file()
    )

    near = last_decisions(plan)["near"]
    assert near["result"] == "Admitted"
    assert near["podSets"][0]["topology"]["levels"] == [HOST]
    assert pods_by_domain(near["podSets"][0]) == {"n3": 1, "n4": 1}
    admitted_job = next(job for job in plan["end"]["admitted"] if job["job"] == "lab/held")
    assert pods_by_domain(admitted_job["podSets"][0]) == {"n1": 1}
    assert plan["warnings"] == []


def test_request_beyond_the_largest_domain_never_fits(files: PlanFiles) -> None:
    plan = files.plan(a_job("wide", pods(3, annotations={REQUIRED: RACK})), quota=quota_file())

    wide = last_decisions(plan)["wide"]
    assert (wide["result"], wide["pending"], wide["requeue"]) == ("NoFit", "TopologyPlacementFailed", "parked")
    assert wide["considered"][0]["why"] == 'topology "aws" allows to fit only 2 out of 3 pod(s)'


def test_fragmented_quota_makes_a_job_preempt(files: PlanFiles) -> None:
    # 16 of 32 devices are free, but one node of each rack is in use.
    running_jobs = [running_job("a", {"n1": 1}, priority=1), running_job("b", {"n3": 1})]
    job = a_job("near", pods(2, request={"required": RACK}), priority=5)

    plan = files.plan(job, *running_jobs, quota=quota_file(within="LowerPriority"), options="--cycles 1")

    near = last_decisions(plan)["near"]
    assert near["result"] == "Preempting"
    assert [victim["job"] for victim in near["victims"]] == ["lab/b"]
    assert near["podSets"][0]["flavors"][GPU]["mode"] == "Preempt"
    assert pods_by_domain(near["podSets"][0]) == {"n3": 1, "n4": 1}
    waiting = files.plan(job, *running_jobs, quota=quota_file(), options="--cycles 1")
    assert last_decisions(waiting)["near"]["result"] == "NoCandidates"


def test_job_starts_on_the_nodes_of_its_preempted_victim(files: PlanFiles) -> None:
    running_jobs = [running_job("a", {"n1": 2}, gpus=4), running_job("b", {"n3": 1})]
    job = a_job("near", pods(2, annotations={REQUIRED: RACK}), priority=5)

    plan = files.plan(job, *running_jobs, quota=quota_file(within="LowerPriority"), options="--evictions released")

    assert last_decisions(plan)["near"]["result"] == "Admitted"
    devices_by_node: dict[str, int] = {}
    for admitted in plan["end"]["admitted"]:
        for name, count in pods_by_domain(admitted["podSets"][0]).items():
            devices_by_node[name] = devices_by_node.get(name, 0) + count * (4 if admitted["job"] == "lab/a" else 8)
    assert max(devices_by_node.values()) == 8


def test_preferred_request_spreads_over_racks(files: PlanFiles) -> None:
    plan = files.plan(a_job("near", pods(3, annotations={PREFERRED: RACK})), quota=quota_file())

    assert pods_by_domain(last_decisions(plan)["near"]["podSets"][0]) == {"n1": 1, "n2": 1, "n3": 1}


def test_pods_of_a_slice_share_a_rack(files: PlanFiles) -> None:
    job = a_job("sliced", pods(4, 4, annotations={PREFERRED: BLOCK, SLICE_TOPOLOGY: HOST, SLICE_SIZE: "2"}))

    plan = files.plan(job, running_job("held", {"n1": 1}, gpus=4), quota=quota_file())

    assert pods_by_domain(last_decisions(plan)["sliced"]["podSets"][0]) == {"n3": 2, "n4": 2}


def test_leader_and_workers_share_a_rack(files: PlanFiles) -> None:
    group_annotations = {REQUIRED: RACK, GROUP: "all"}
    job = a_job(
        "lws", pods(1, 2, "leader", annotations=group_annotations), pods(3, 4, "workers", annotations=group_annotations)
    )

    plan = files.plan(job, running_job("held", {"n1": 1}), quota=quota_file())

    leader, workers = last_decisions(plan)["lws"]["podSets"]
    assert pods_by_domain(leader).keys() | pods_by_domain(workers).keys() == {"n3", "n4"}
    assert sum(pods_by_domain(workers).values()) == 3


@pytest.mark.parametrize("gate", [True, False])
def test_job_without_request_is_unconstrained(files: PlanFiles, gate: bool) -> None:
    (files.folder / "kueue.yaml").write_text(yaml.safe_dump({"featureGates": {"TASProfileMixed": gate}}))
    small_node = a_node("small", "r2", gpus=2)

    plan = files.plan(
        a_job("any", pods(3, 2)),
        running_job("held", {"n1": 1, "n2": 1}, gpus=6),
        quota=quota_file(small_node),
        options=f"--config {files.folder / 'kueue.yaml'}",
    )

    # Three pods of 2 devices fit on n3 alone; single pods go to small domains first.
    assert pods_by_domain(last_decisions(plan)["any"]["podSets"][0]) == {"n3": 3}
    plan_with_unconstrained_job = files.plan(
        a_job("any", pods(7, 2)),
        running_job("held", {"n1": 1, "n2": 1}, gpus=6),
        quota=quota_file(small_node),
        options=f"--config {files.folder / 'kueue.yaml'}",
    )
    chosen = pods_by_domain(last_decisions(plan_with_unconstrained_job)["any"]["podSets"][0])
    assert chosen == ({"n1": 1, "n2": 1, "small": 1, "n3": 4} if gate else {"n3": 4, "n4": 3})


def test_pods_on_a_node_reduce_its_free_capacity(files: PlanFiles) -> None:
    running_pods = [
        a_pod("other", "n1", 1),
        a_pod("ended", "n2", 8, "Succeeded"),
        a_pod("of-a-workload", "n2", 8, annotations={REQUIRED: RACK}),
    ]

    plan = files.plan(a_job("near", pods(2, annotations={REQUIRED: RACK})), quota=quota_file(*running_pods))

    assert pods_by_domain(last_decisions(plan)["near"]["podSets"][0]) == {"n3": 1, "n4": 1}


@pytest.mark.parametrize(
    "unusable_node",
    [
        {"spec": {"unschedulable": True}},
        {"ready": "False"},
        {"spec": {"taints": [{"key": "gpu", "value": "bad", "effect": "NoSchedule"}]}},
    ],
)
def test_node_that_takes_no_pods_is_not_chosen(files: PlanFiles, unusable_node: Json) -> None:
    plan = files.plan(
        a_job("near", pods(2, annotations={REQUIRED: RACK})), quota=quota_file(a_node("n2", "r1", **unusable_node))
    )

    assert pods_by_domain(last_decisions(plan)["near"]["podSets"][0]) == {"n3": 1, "n4": 1}


def test_jobs_of_two_queues_get_different_nodes_in_one_cycle(files: PlanFiles) -> None:
    jobs = [a_job(name, pods(2, annotations={REQUIRED: RACK}), queue=name) for name in ("research", "vision")]

    plan = files.plan(*jobs, quota=quota_file(a_queue("vision", 32)), options="--cycles 1")

    first, second = plan["cycles"][0]["decisions"]
    assert (first["result"], first["recomputed"]) == ("Admitted", False)
    assert (second["result"], second["recomputed"]) == ("Admitted", True)
    assert pods_by_domain(first["podSets"][0]).keys().isdisjoint(pods_by_domain(second["podSets"][0]))


def test_flavor_without_the_requested_topology_level_is_skipped(files: PlanFiles) -> None:
    flat_topology = {"apiVersion": VERSION, "kind": "Topology", "metadata": {"name": "flat"}}
    flat_topology["spec"] = {"levels": [{"nodeLabel": HOST}]}

    plan = files.plan(
        a_job("near", pods(2, annotations={REQUIRED: RACK})),
        quota=quota_file(flat_topology, flavors={"flat": "flat", "plain": "", "p5": "aws"}),
    )

    near = last_decisions(plan)["near"]
    assert [(flavor["flavor"], flavor["why"]) for flavor in near["considered"]] == [
        ("flat", f"flat has no topology level {RACK}"),
        ("plain", "plain has no topology"),
        ("p5", ""),
    ]
    assert near["podSets"][0]["flavors"][GPU]["flavor"] == "p5"


def test_job_without_request_takes_the_flavor_without_topology(files: PlanFiles) -> None:
    plan = files.plan(a_job("any", pods(2)), quota=quota_file(flavors={"p5": "aws", "plain": ""}))

    decided = last_decisions(plan)["any"]
    assert decided["considered"][0]["why"] == "p5 takes only pods with a topology request"
    assert decided["podSets"][0]["flavors"][GPU]["flavor"] == "plain"
    assert decided["podSets"][0]["topology"] is None


def test_topology_assignment_of_kueue_v1beta2_is_read(files: PlanFiles) -> None:
    individual = {"prefix": "n", "roots": ["1", "3"]}
    assignment_slice = {"domainCount": 2, "valuesPerLevel": [{"individual": individual}], "podCounts": {"universal": 1}}
    assigned = {
        "name": "main",
        "flavors": {GPU: "p5"},
        "count": 2,
        "topologyAssignment": {"levels": [HOST], "slices": [assignment_slice]},
    }

    plan = files.plan(a_job("held", pods(2), status=_admitted(assigned)), quota=quota_file())

    assert pods_by_domain(plan["end"]["admitted"][0]["podSets"][0]) == {"n1": 1, "n3": 1}


def test_new_node_lets_a_parked_job_start(files: PlanFiles) -> None:
    events = [{"type": "quota", "at": "2026-11-03T12:00:00Z", "documents": [a_node("n5", "r2")]}]

    plan = files.plan(a_job("near", pods(3, annotations={REQUIRED: RACK})), quota=quota_file(), events=events)

    results = [decision["result"] for cycle in plan["cycles"] for decision in cycle["decisions"]]
    assert results == ["NoFit", "Admitted"]
    assert pods_by_domain(last_decisions(plan)["near"]["podSets"][0]) == {"n3": 1, "n4": 1, "n5": 1}


def test_plan_without_nodes_ignores_topology_requests(files: PlanFiles) -> None:
    documents = [document for document in yaml.safe_load_all(quota_file()) if document["kind"] != "Node"]

    plan = files.plan(a_job("near", pods(3, annotations={REQUIRED: RACK})), quota=yaml.safe_dump_all(documents))

    assert last_decisions(plan)["near"]["result"] == "Admitted"
    assert last_decisions(plan)["near"]["podSets"][0]["topology"] is None
    assert any("no file has a Node" in warning for warning in plan["warnings"])
    assert any("its topology request is ignored" in warning for warning in plan["warnings"])


def test_disabled_feature_gate_ignores_topologies(files: PlanFiles) -> None:
    (files.folder / "kueue.yaml").write_text(yaml.safe_dump({"featureGates": {"TopologyAwareScheduling": False}}))

    plan = files.plan(
        a_job("near", pods(3, annotations={REQUIRED: RACK})),
        quota=quota_file(),
        options=f"--config {files.folder / 'kueue.yaml'}",
    )

    assert last_decisions(plan)["near"]["result"] == "Admitted"
    assert last_decisions(plan)["near"]["podSets"][0]["topology"] is None


def test_queue_of_a_missing_topology_is_inactive(files: PlanFiles) -> None:
    plan = files.plan(a_job("near", pods(1)), quota=quota_file(flavors={"p5": "gone"}))

    assert plan["cycles"] == []
    assert plan["end"]["queues"][0]["inactive"] == "there is no Topology gone for its flavor p5"
    assert plan["warnings"] == [
        "ClusterQueue/research: there is no Topology gone for its flavor p5, so it admits no job"
    ]


def test_admitted_job_without_assignment_is_reported(files: PlanFiles) -> None:
    status = _admitted({"name": "main", "flavors": {GPU: "p5"}, "count": 1})

    plan = files.plan(a_job("held", pods(1), status=status), quota=quota_file())

    assert any("pod set main has no topologyAssignment" in warning for warning in plan["warnings"])


@pytest.mark.parametrize(
    ("annotations", "problem"),
    [
        ({REQUIRED: RACK, PREFERRED: RACK}, "must be one of required, preferred and unconstrained"),
        ({REQUIRED: RACK, SLICE_SIZE: "2"}, "must have both podSetSliceRequiredTopology and podSetSliceSize"),
        ({SLICE_TOPOLOGY: RACK, SLICE_SIZE: "two"}, f"{SLICE_SIZE} must be a whole number"),
        ({SLICE_TOPOLOGY: RACK, SLICE_SIZE: "9" * 5_000}, f"{SLICE_SIZE} must be a whole number"),
        ({"kueue.x-k8s.io/podset-slice-required-topology-constraints": "[" * 100_000}, "is not JSON"),
        ({SLICE_TOPOLOGY: RACK, SLICE_SIZE: "0"}, "podSetSliceSize"),
        ({GROUP: "all"}, f"{GROUP} needs {REQUIRED} or {PREFERRED}"),
        ({"kueue.x-k8s.io/podset-unconstrained-topology": "yes"}, "must be true or false"),
        ({"kueue.x-k8s.io/podset-slice-required-topology-constraints": "["}, "is not JSON"),
    ],
)
def test_invalid_annotation_is_refused(files: PlanFiles, annotations: dict[str, str], problem: str) -> None:
    code, _, error = files.run(a_job("near", pods(2, annotations=annotations)), quota=quota_file())

    assert code == 2
    assert "Workload/near" in error
    assert "podSets[0].template.metadata.annotations" in error
    assert problem in error


@pytest.mark.parametrize(
    ("levels", "problem"),
    [
        ([], "spec.levels"),
        ([{"nodeLabel": HOST}, {"nodeLabel": RACK}], f"must have {HOST} as its lowest level"),
        ([{"nodeLabel": RACK}, {"nodeLabel": RACK}], "must not have a level twice"),
    ],
)
def test_invalid_topology_is_refused(files: PlanFiles, levels: list[Json], problem: str) -> None:
    topology = {"apiVersion": VERSION, "kind": "Topology", "metadata": {"name": "aws"}, "spec": {"levels": levels}}

    code, _, error = files.run(quota=quota_file(topology))

    assert code == 2
    assert "Topology/aws" in error
    assert problem in error
