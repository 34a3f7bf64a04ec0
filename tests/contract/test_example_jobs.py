"""Published example jobs recover on healthy nodes after a fault, without changes to their manifests."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from evenkeel.adapters.workload_resources import RESOURCES
from evenkeel.domain.external.unmanaged_workloads import Consent
from evenkeel.domain.jobs.workload_kind import WorkloadKind
from evenkeel.domain.nodes import FleetNode
from evenkeel.domain.recovery.unmanaged_restarts import RestartAction, UnmanagedJob, UnmanagedJobState
from evenkeel.ports import EvictionStatus, Put, Table
from evenkeel.services.recovery import cordon_node, drain_node, plan_recovery, restart_unmanaged
from evenkeel.services.tables import fleet_rows
from evenkeel_local.gpu_cluster import ClusterHandle
from tests.contract.clusters_under_test import CLUSTER, LocalClusterUnderTest
from tests.contract.example_jobs import (
    EXAMPLES,
    JOB_SET,
    LEFT_TO_HYPERPOD,
    MOVED,
    NAMESPACE,
    OPERATOR,
    RESTARTED,
    Example,
    Json,
)
from tests.unit.services_recovery.recovery_scenario import RecoveryScenario
from tests.unit.services_recovery.test_draining import SAVES

NUMBERS = itertools.count(1)

LONG_ENOUGH = 5
"""Rounds after which a job that still runs on the node counts as left there."""


@pytest.fixture
def bench(gpu_cluster: ClusterHandle) -> Iterator[LocalClusterUnderTest]:
    local_cluster_under_test = LocalClusterUnderTest(gpu_cluster)
    yield local_cluster_under_test
    local_cluster_under_test.restore()


def submit_example(bench: LocalClusterUnderTest, example: Example, faults: Path) -> UnmanagedJob:
    """Create the example, and wait until all of its pods run."""
    name = f"example-{next(NUMBERS)}"
    script = f'while :; do [ -e "{faults}/$NODE" ] && exit 1; sleep 0.1; done'
    container = {
        "name": "main",
        "image": "any",
        "command": ["sh", "-c", script],
        "env": [{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "resources": {"limits": {"nvidia.com/gpu": "2"}},
    }
    template = {"spec": {"terminationGracePeriodSeconds": 1, "containers": [container]}}
    labels = {"evenkeel.io/resume": "allowed"}
    manifest = {**example.manifest(template), "kind": str(example.kind), "metadata": {"name": name, "labels": labels}}
    bench.admin.create(RESOURCES[example.kind].path(NAMESPACE), json.loads(json.dumps(manifest)))

    def runs() -> UnmanagedJob | None:
        job = bench.cluster.unmanaged_job(CLUSTER, NAMESPACE, example.kind, name)
        all_placed = job is not None and len(job.live_nodes) == example.pods and all(job.live_nodes)
        return job if job and all_placed and running_pods(bench, job) == example.pods else None

    unmanaged_job: UnmanagedJob = bench.eventually(runs, "all pods of the example")
    assert (unmanaged_job.consent, unmanaged_job.state) == (Consent.ALLOWED, UnmanagedJobState.RUNNING)
    return unmanaged_job


def running_pods(bench: LocalClusterUnderTest, job: UnmanagedJob) -> int:
    """Count the running pods of a job; 0 while a pod waits or ends."""
    pods = pods_of(bench, job)
    live = [pod for pod in pods if pod["status"].get("phase") not in ("Succeeded", "Failed")]
    run = [
        pod for pod in live if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
    ]
    return len(run) if len(run) == len(live) else 0


def recovery_of(job: UnmanagedJob) -> RecoveryScenario:
    """An incident of the node, drained. The last sweep listed the job on the node."""
    recovery = RecoveryScenario(policy=SAVES, with_job=False)
    recovery.report_fault(fault_key="hp:NvidiaErrorReboot")
    for service in (plan_recovery, cordon_node, drain_node):
        recovery.run_state("", service)
    life = recovery.incident.life
    row = FleetNode(life=life, slot="slot-1", changed_at=recovery.now, unmanaged_workloads=(job.label,))
    recovery.world.ledger.commit(Put(fleet_rows.node_row(CLUSTER, life.instance_id, row.to_json(), 0, None)))
    return recovery


def runs_elsewhere(bench: LocalClusterUnderTest, job: UnmanagedJob, node: str, pods: int) -> bool:
    now = bench.cluster.unmanaged_job(CLUSTER, NAMESPACE, job.kind, job.name)
    return now is not None and node not in now.live_nodes and running_pods(bench, job) == pods


def controller_that_recovers(
    bench: LocalClusterUnderTest, recovery: RecoveryScenario, job: UnmanagedJob, node: str, pods: int
) -> str:
    """Run the drain and the sweep until the job runs on other nodes. Return the controller that restarted it."""
    context = recovery.context(cluster=bench.cluster)
    evicted: list[str] = []
    turns = itertools.count()

    def take_turn() -> str:
        movable = restart_unmanaged.run(recovery.incident.replace(node_name=node), context, may_stop=True)
        unmanaged_pods = [pod for pod in bench.cluster.pods(CLUSTER, node) if pod.label in movable]
        evicted.extend(
            pod.name for pod in unmanaged_pods if bench.cluster.evict(CLUSTER, pod).result is EvictionStatus.EVICTED
        )
        if runs_elsewhere(bench, job, node, pods):
            is_restarted = recovery.incident.unmanaged_jobs.get(job.label) == RestartAction.RESTART
            return RESTARTED if is_restarted else MOVED if evicted else OPERATOR
        is_hyperpod = job.kind is WorkloadKind.HYPERPOD_PYTORCH_JOB and running_pods(bench, job) == pods
        return LEFT_TO_HYPERPOD if is_hyperpod and next(turns) > LONG_ENOUGH else ""

    try:
        return str(bench.eventually(take_turn, "the job on another node"))
    except AssertionError as error:
        rows = recovery.world.ledger.partition(Table.INCIDENTS, f"INC#{recovery.incident_id}", "EVENT#")
        now = bench.admin.get(RESOURCES[job.kind].path(NAMESPACE, job.name)) or {}
        raise AssertionError(
            "\n".join([str(error), *(row.doc["text"] for row in rows), str(now.get("status"))])
        ) from error


def test_documented_table_matches_the_tested_example_jobs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operate" / "adoption.md").read_text(encoding="utf-8")
    rows = [row for row in page.partition("## Published examples")[2].splitlines() if row.startswith("| ")][1:]

    assert rows == [documented_row(example) for example in EXAMPLES]


def documented_row(example: Example) -> str:
    named = [f"`{name}`" if name.endswith(".yaml") else name for name in example.examples]
    return f"| {example.name} | {', '.join(named) or '–'} | {example.after_crash} | {example.after_drain} |"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
@pytest.mark.parametrize("fault", ["crash", "drain"])
def test_example_job_recovers_as_documented_after_crash_or_drain(
    bench: LocalClusterUnderTest, example: Example, fault: str, tmp_path: Path
) -> None:
    job = submit_example(bench, example, tmp_path)
    node = job.live_nodes[0]
    bench.cordon_as_a_person(node)  # first, so that the job's operator does not use up its restarts on this node
    recovery = recovery_of(job)  # before the crash, so that the first eviction soon follows it
    expected = example.after_crash if fault == "crash" else example.after_drain
    if fault == "crash":
        crash_process(bench, job, tmp_path / node)
        if expected == OPERATOR:  # else Evenkeel could evict a pod that the operator is about to replace
            bench.eventually(lambda: runs_elsewhere(bench, job, node, example.pods), "the restart by the operator")

    assert controller_that_recovers(bench, recovery, job, node, example.pods) == expected


@pytest.mark.parametrize(
    "example",
    [example for example in EXAMPLES if example.kind is JOB_SET and example.after_crash == OPERATOR],
    ids=lambda example: example.name,
)
def test_crash_restarts_jobset_once_even_if_evenkeel_evicts_first(
    bench: LocalClusterUnderTest, example: Example, tmp_path: Path
) -> None:
    job = submit_example(bench, example, tmp_path)
    node = job.live_nodes[0]
    bench.cordon_as_a_person(node)
    recovery = recovery_of(job)
    crash_process(bench, job, tmp_path / node)

    assert controller_that_recovers(bench, recovery, job, node, example.pods) in (OPERATOR, MOVED)
    job_set = bench.admin.get(RESOURCES[job.kind].path(NAMESPACE, job.name))
    assert job_set
    assert job_set["status"]["restarts"] == 1


def crash_process(bench: LocalClusterUnderTest, job: UnmanagedJob, fault_file: Path) -> None:
    """Let the process on a node fail, and wait until the cluster shows it."""
    before = {pod["metadata"]["uid"] for pod in pods_of(bench, job)}
    fault_file.touch()
    bench.eventually(lambda: has_lost_a_process(pods_of(bench, job), before), "the failure of a process")


def pods_of(bench: LocalClusterUnderTest, job: UnmanagedJob) -> list[Json]:
    listed = bench.admin.items(f"/api/v1/namespaces/{NAMESPACE}/pods")
    return [pod for pod in listed if pod["metadata"]["name"].startswith(f"{job.name}-")]


def has_lost_a_process(pods: list[Json], before: set[str]) -> bool:
    """Return whether a pod has failed, was restarted, or was replaced."""
    restarts = [
        container.get("restartCount") for pod in pods for container in pod["status"].get("containerStatuses") or ()
    ]
    has_failed = any(pod["status"].get("phase") == "Failed" for pod in pods)
    return any(restarts) or has_failed or {pod["metadata"]["uid"] for pod in pods} != before
