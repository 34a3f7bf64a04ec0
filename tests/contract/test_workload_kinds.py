"""Every kind of workload on the local GPU cluster: launch, ranks, logs, end, stop, and ownership."""

import threading
from collections.abc import Iterator

import pytest

from evenkeel.adapters.workload_resources import OPERATED, RESOURCES
from evenkeel.domain.external.unmanaged_workloads import ManagedKind
from evenkeel.domain.jobs.attempt import ObservedWorkload, PodPhase
from evenkeel.domain.jobs.workload_kind import WorkloadKind
from evenkeel.domain.kept_logs import shortened_with_times
from evenkeel.ports import LaunchResult, LaunchSpec, NotFound, Refused
from evenkeel_local.gpu_cluster import ClusterHandle, training_operators
from tests.contract.clusters_under_test import (
    CLUSTER,
    FLEET,
    NAMESPACE,
    LocalClusterUnderTest,
    a_launch,
    free_nodes,
    seen,
)

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
RANK = 'echo "rank ${JOB_COMPLETION_INDEX:-$RANK} of $WORLD_SIZE, master $MASTER_ADDR"'

each_kind = pytest.mark.parametrize("kind", list(WorkloadKind))


@pytest.fixture
def bench(gpu_cluster: ClusterHandle) -> Iterator[LocalClusterUnderTest]:
    local_cluster_under_test = LocalClusterUnderTest(gpu_cluster)
    yield local_cluster_under_test
    local_cluster_under_test.restore()


def launch_workload(
    bench: LocalClusterUnderTest, kind: WorkloadKind, script: str = "exec sleep 60", count: int = 2
) -> LaunchSpec:
    spec = a_launch(bench, free_nodes(bench, count), script, kind=kind)
    bench.cluster.launch(spec)
    return spec


def launch_and_run(bench: LocalClusterUnderTest, kind: WorkloadKind, script: str = "exec sleep 60") -> LaunchSpec:
    spec = launch_workload(bench, kind, script)

    def runs() -> bool:
        pods = seen(bench, spec).pods
        return len(pods) == 2 and all(pod.phase is PodPhase.RUNNING for pod in pods)

    bench.eventually(runs, "two running pods")
    return spec


def services_of(bench: LocalClusterUnderTest, spec: LaunchSpec) -> list[str]:
    listed = (
        document["metadata"]["name"] for document in bench.admin.items(f"/api/v1/namespaces/{NAMESPACE}/services")
    )
    return [name for name in listed if name.startswith(spec.attempt.workload_name)]


@each_kind
def test_attempt_runs_pod_on_each_of_its_nodes(bench: LocalClusterUnderTest, kind: WorkloadKind) -> None:
    spec = launch_and_run(bench, kind)

    workload = seen(bench, spec)

    assert {pod.node_name for pod in workload.pods} == set(spec.attempt.node_names)
    assert bench.cluster.workloads(CLUSTER) == (workload,)
    (pods,) = bench.cluster.pods_in_use(CLUSTER).attempts
    assert (pods.job_uid, pods.decision_id, pods.pods) == (workload.job_uid, workload.decision_id, workload.pods)
    assert bench.cluster.launch(spec) == (LaunchResult.ALREADY_THERE, workload.uid)
    assert spec.attempt.replace(workload_uid=workload.uid).owns(workload)


@each_kind
def test_every_rank_knows_its_number_and_address_of_rank_0(bench: LocalClusterUnderTest, kind: WorkloadKind) -> None:
    spec = launch_and_run(bench, kind, f"{RANK}; exec sleep 60")

    def logs() -> list[str]:
        texts = [bench.cluster.logs(spec.attempt, rank, None).strip() for rank in (0, 1)]
        return texts if all(texts) else []

    first, second = bench.eventually(logs, "the logs of both ranks")
    assert first.startswith("rank 0 of 2, master 127.")
    assert second.startswith("rank 1 of 2, master 127.")
    assert first.partition("master")[2] == second.partition("master")[2]
    tails = bench.cluster.log_tails(spec.attempt, 5, 4, 10.0)
    assert [shortened_with_times(tails[rank].text, ()).text.strip() for rank in (0, 1)] == [first, second]
    with pytest.raises(NotFound):
        bench.cluster.logs(spec.attempt, 2, None)


@each_kind
@pytest.mark.parametrize(("code", "completes"), [(0, True), (3, False)])
def test_success_and_failure_of_an_attempt_are_read(
    bench: LocalClusterUnderTest, kind: WorkloadKind, code: int, *, completes: bool
) -> None:
    spec = launch_workload(bench, kind, f"exit {code}")

    def end() -> ObservedWorkload | None:
        workload = seen(bench, spec)
        return workload if workload.has_completed or workload.has_failed else None

    workload = bench.eventually(end, "the end of the attempt")
    assert (workload.has_completed, workload.has_failed) == (completes, not completes)
    assert not workload.was_disrupted
    assert code in {pod.exit_code for pod in workload.pods}


@each_kind
def test_attempt_fails_if_any_rank_fails(bench: LocalClusterUnderTest, kind: WorkloadKind) -> None:
    """Rank 0 succeeds first, and rank 1 fails later."""
    spec = launch_workload(bench, kind, '[ "${JOB_COMPLETION_INDEX:-$RANK}" = 0 ] || { sleep 0.5; exit 5; }')

    bench.eventually(lambda: seen(bench, spec).has_failed, "the failure of the attempt")

    workload = seen(bench, spec)
    assert not workload.has_completed
    assert 5 in {pod.exit_code for pod in workload.pods}


@each_kind
def test_no_operator_restarts_a_failed_attempt(bench: LocalClusterUnderTest, kind: WorkloadKind) -> None:
    spec = launch_workload(bench, kind, "exit 3", count=1)
    bench.eventually(lambda: seen(bench, spec).has_failed, "the failure")
    before = {pod.name for pod in seen(bench, spec).pods}
    other = launch_workload(bench, kind, "exit 0", count=1)
    bench.eventually(lambda: seen(bench, other).has_completed, "a later attempt to end")

    assert {pod.name for pod in seen(bench, spec).pods} == before


@each_kind
def test_stop_deletes_every_object_of_the_attempt(bench: LocalClusterUnderTest, kind: WorkloadKind) -> None:
    spec = launch_and_run(bench, kind)

    bench.cluster.stop(spec.attempt, 1)

    def is_gone() -> bool:
        return bench.cluster.workloads(CLUSTER) == () and not services_of(bench, spec)

    bench.eventually(is_gone, "the workload, its pods and Services to be gone")
    bench.cluster.stop(spec.attempt, 1)


@each_kind
def test_terminating_pods_still_belong_to_the_attempt(bench: LocalClusterUnderTest, kind: WorkloadKind) -> None:
    """A pod that ignores SIGTERM still writes, so the next attempt must wait for it."""
    spec = launch_and_run(bench, kind, "trap '' TERM; while :; do sleep 0.05; done")
    uid = seen(bench, spec).uid

    bench.cluster.stop(spec.attempt, 3)

    workload = bench.cluster.workload(spec.attempt.replace(workload_uid=uid))
    assert len(workload.live_pods()) == 2
    assert not workload.has_runnable_pods
    bench.eventually(lambda: not seen(bench, spec).pods, "the pods to end")


@each_kind
def test_pods_of_a_lost_node_are_removed(bench: LocalClusterUnderTest, kind: WorkloadKind) -> None:
    spec = launch_and_run(bench, kind)
    lost = seen(bench, spec).pods[1].node_name

    bench.cluster.force_delete_pods(spec.attempt, [lost])

    bench.eventually(
        lambda: lost not in {pod.node_name for pod in seen(bench, spec).pods}, "the pod of the node to be gone"
    )


@each_kind
def test_workload_with_copied_name_is_not_attempt(bench: LocalClusterUnderTest, kind: WorkloadKind) -> None:
    spec = a_launch(bench, free_nodes(bench), kind=kind)
    labels = {
        "evenkeel.io/job": spec.attempt.job_id,
        "evenkeel.io/attempt": "1",
        "evenkeel.io/fleet": FLEET,
    }
    resource = RESOURCES[kind]
    pod = {"containers": [{"name": "main", "image": "any"}], "restartPolicy": "Never"}
    body = {
        "apiVersion": resource.api_version,
        "kind": kind.value,
        "metadata": {"name": spec.attempt.workload_name, "labels": labels},
        "spec": {
            "suspend": True,
            "runPolicy": {"suspend": True},
            "replicatedJobs": [],
            "replicaSpecs": [],
            "pytorchReplicaSpecs": {},
            **({"template": {"spec": pod}} if kind is WorkloadKind.JOB else {}),
        },
    }
    if kind is WorkloadKind.JOB:
        body["spec"] = {"suspend": True, "template": {"spec": pod}}
        bench.admin.create("/apis/batch/v1/namespaces/default/jobs", body)
    else:
        bench.admin.create(resource.path(NAMESPACE), body)
        with pytest.raises(Refused, match="was not created by the launch"):
            bench.cluster.launch(spec)

    bench.cluster.stop(spec.attempt, 1)

    where = "default" if kind is WorkloadKind.JOB else NAMESPACE
    assert seen(bench, spec).uid == ""
    assert bench.admin.get(resource.path(where, spec.attempt.workload_name)) is not None


@each_kind
def test_listed_pod_identifies_its_attempt(bench: LocalClusterUnderTest, kind: WorkloadKind) -> None:
    spec = launch_and_run(bench, kind)
    workload = seen(bench, spec)

    claims = [pod.claim for pod in bench.cluster.pods(CLUSTER) if pod.claim]

    assert [(claim.kind, claim.controller, claim.controller_uid) for claim in claims] == [
        (ManagedKind.ATTEMPT, spec.attempt.workload_name, workload.uid)
    ] * 2


@pytest.mark.parametrize("kind", [WorkloadKind.JOB, WorkloadKind.JOB_SET])
def test_evicted_pod_is_disruption_not_application_failure(bench: LocalClusterUnderTest, kind: WorkloadKind) -> None:
    spec = launch_and_run(bench, kind)
    name = seen(bench, spec).pods[0].name
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": NAMESPACE}}

    bench.admin.create(f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/eviction", body)

    bench.eventually(lambda: seen(bench, spec).was_disrupted, "the disruption to be seen")


@pytest.mark.parametrize("kind", [workload_resource.kind for workload_resource in OPERATED])
def test_cluster_without_the_operator_refuses_the_launch(bench: LocalClusterUnderTest, kind: WorkloadKind) -> None:
    (definition,) = (
        definition
        for definition in training_operators.definitions()
        if definition["spec"]["names"]["kind"] == kind.value
    )
    path = f"{DEFINITIONS}/{definition['metadata']['name']}"
    bench.admin.delete(path)
    spec = a_launch(bench, free_nodes(bench), kind=kind)
    try:
        with pytest.raises(Refused, match=f"has no {kind}: install"):
            bench.cluster.launch(spec)
        assert bench.cluster.workloads(CLUSTER) == ()
        assert services_of(bench, spec) == []
    finally:
        body = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", **definition}
        bench.admin.create(DEFINITIONS, body)


@each_kind
def test_watch_reports_changes_of_each_workload_kind(bench: LocalClusterUnderTest, kind: WorkloadKind) -> None:
    seen_changes: list[str] = []
    states: list[str] = []
    ended = threading.Event()
    watcher = threading.Thread(
        target=bench.cluster.watch,
        args=(CLUSTER, seen_changes.append),
        kwargs={"until": ended.is_set, "on_state": lambda kind, _: states.append(kind)},
    )
    watcher.start()
    try:
        bench.eventually(lambda: states.count("job") >= len(WorkloadKind), "the first list of each kind")
        first = seen_changes.count("job")
        launch_workload(bench, kind, count=1)
        bench.eventually(lambda: seen_changes.count("job") > first, "a change of the workload")
    finally:
        ended.set()
        watcher.join()
