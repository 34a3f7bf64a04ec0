"""A Job in Kueue's queue, from its creation to its end, as the adapter reads it. A stand-in acts as Kueue."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from evenkeel.adapters.workload_resources import JOB
from evenkeel.domain.external.burst_check_protocol import BurstCheckAnswer, BurstCheckState, CheckedWorkload
from evenkeel.domain.external.kueue_status import KueueEviction, describe_status, eviction_of
from evenkeel.domain.jobs.attempt import ObservedWorkload, PodPhase
from evenkeel.domain.jobs.workload_kind import WorkloadKind
from evenkeel.domain.recovery.unmanaged_restarts import UnmanagedJob, UnmanagedJobState
from evenkeel.ports import Conflict, LaunchSpec, NotFound, Refused
from evenkeel_local.gpu_cluster import ClusterHandle
from tests.contract.clusters_under_test import CLUSTER, NAMESPACE, LocalClusterUnderTest, a_launch, free_nodes
from tests.fake_kueue import BURST_CHECK, BURST_FLAVOR, FakeKueue, holds
from tests.fakes.system import A_MOMENT
from tests.waiting import until


@pytest.fixture
def bench(gpu_cluster: ClusterHandle) -> Iterator[LocalClusterUnderTest]:
    bench = LocalClusterUnderTest(gpu_cluster)
    yield bench
    bench.restore()


@pytest.fixture
def kueue(bench: LocalClusterUnderTest) -> Iterator[FakeKueue]:
    with FakeKueue(bench.admin, NAMESPACE, room=0, priorities={"high": 9}) as stand_in:
        yield stand_in
    assert stand_in.faults == []


def seen(bench: LocalClusterUnderTest, spec: LaunchSpec) -> ObservedWorkload:
    return bench.cluster.workload(spec.attempt)


def messages(bench: LocalClusterUnderTest, spec: LaunchSpec) -> str:
    return describe_status(seen(bench, spec).kueue, "research", A_MOMENT)


def is_stopped_by_kueue(bench: LocalClusterUnderTest, spec: LaunchSpec) -> KueueEviction | None:
    kueue_status = seen(bench, spec).kueue
    assert kueue_status
    return eviction_of(kueue_status)


def test_job_is_admitted_evicted_and_admitted_again(bench: LocalClusterUnderTest, kueue: FakeKueue) -> None:
    spec = a_launch(bench, free_nodes(bench, 2), local_queue="research")
    bench.cluster.launch(spec)
    until(lambda: "16 more needed" in messages(bench, spec), "Kueue's reason")
    assert (seen(bench, spec).is_suspended, seen(bench, spec).pods) == (True, ())

    kueue.room = 16
    until(lambda: [pod.phase for pod in seen(bench, spec).pods] == [PodPhase.RUNNING] * 2, "its pods to run")
    assert not seen(bench, spec).is_suspended
    assert messages(bench, spec) == "Kueue admitted the job by quota of ml.p5.48xlarge in ClusterQueue research-queue."
    assert len({pod.node_name for pod in seen(bench, spec).pods}) == 2

    kueue.evict(spec.attempt.workload_name, "Preempted", "for another", room=0)
    until(lambda: seen(bench, spec).is_suspended and not seen(bench, spec).pods, "its pods to go")
    assert not seen(bench, spec).has_failed
    until(lambda: (kueue_status := seen(bench, spec).kueue) and kueue_status.was_admitted, "its quota to go")
    evicted = is_stopped_by_kueue(bench, spec)
    assert evicted
    assert (evicted.reason, evicted.was_preempted) == ("Kueue preempted the job: for another.", True)

    kueue.room = 16
    until(lambda: [pod.phase for pod in seen(bench, spec).pods] == [PodPhase.RUNNING] * 2, "its pods to run again")
    assert is_stopped_by_kueue(bench, spec)


def an_elastic_launch(bench: LocalClusterUnderTest, nodes: int, least: int) -> LaunchSpec:
    elastic = {"min_nodes": least, "max_nodes": nodes}
    spec = a_launch(bench, free_nodes(bench, nodes), local_queue="research", elastic=elastic)
    return replace(spec, attempt=spec.attempt.replace(requested_size=nodes))


def test_pods_of_a_partly_admitted_job_wait_for_their_number(bench: LocalClusterUnderTest, kueue: FakeKueue) -> None:
    spec = an_elastic_launch(bench, nodes=3, least=1)
    _, uid = bench.cluster.launch(spec)
    assert (seen(bench, spec).is_suspended, seen(bench, spec).parallelism) == (True, 3)

    kueue.room = 16
    until(lambda: len(seen(bench, spec).pods) == 2, "Kueue to start two of three pods")
    until(
        lambda: {pod.reason for pod in seen(bench, spec).pods} == {"CreateContainerConfigError"},
        "its pods to wait for their world size",
    )
    assert (seen(bench, spec).parallelism, seen(bench, spec).has_failed) == (2, False)

    sized = spec.attempt.at_size(2).replace(workload_uid=uid)
    bench.cluster.publish_size(sized)
    bench.cluster.publish_size(sized)
    with pytest.raises(Refused, match="has another number of pods than 3"):
        bench.cluster.publish_size(spec.attempt.replace(workload_uid=uid))

    until(lambda: [pod.phase for pod in seen(bench, spec).pods] == [PodPhase.RUNNING] * 2, "its pods to run", 40)
    kueue.evict(spec.attempt.workload_name, "Preempted", "for another", room=0)
    until(lambda: seen(bench, spec).is_suspended and seen(bench, spec).parallelism == 3, "its full number to return")


def test_pending_job_shows_its_position_by_priority_then_age(bench: LocalClusterUnderTest, kueue: FakeKueue) -> None:
    nodes = free_nodes(bench)
    specs = [
        a_launch(bench, nodes, local_queue="research", priority_class=priority_class)
        for priority_class in ("", "", "high")
    ]
    for spec in specs:
        bench.cluster.launch(spec)
        until(lambda spec=spec: seen(bench, spec).kueue, "its Workload")  # type: ignore[misc]  # bound now

    def read_positions() -> list[int | None]:
        positions = {
            workload.job_id: workload.kueue.position if workload.kueue else None
            for workload in bench.cluster.workloads(CLUSTER)
        }
        return [positions[spec.attempt.job_id] for spec in specs]

    assert until(lambda: (positions := read_positions()) == [2, 3, 1] and positions, "the positions")
    assert [workload.kueue.position for spec in specs if (workload := seen(bench, spec)).kueue] == [2, 3, 1]


def test_completed_job_is_finished_for_kueue(bench: LocalClusterUnderTest, kueue: FakeKueue) -> None:
    kueue.room = 8
    spec = a_launch(bench, free_nodes(bench), "exit 0", local_queue="research")
    bench.cluster.launch(spec)

    until(lambda: seen(bench, spec).has_completed, "its end")
    until(lambda: (kueue_status := seen(bench, spec).kueue) and kueue_status.is_true("Finished"), "Kueue to know")

    assert is_stopped_by_kueue(bench, spec) is None


def test_users_job_is_suspended_and_resumed_by_kueue(bench: LocalClusterUnderTest, kueue: FakeKueue) -> None:
    kueue.room = 16
    container = {
        "name": "main",
        "image": "any",
        "command": ["sh", "-c", "exec sleep 60"],
        "resources": {"limits": {"nvidia.com/gpu": "8"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]}
    spec = {"parallelism": 2, "completions": 2, "backoffLimit": 0, "suspend": True, "template": {"spec": pod}}
    metadata = {"name": "users-job", "labels": {"kueue.x-k8s.io/queue-name": "research"}}
    bench.admin.create(
        JOB.path(NAMESPACE), {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
    )

    def users_job() -> UnmanagedJob:
        unmanaged_job = bench.cluster.unmanaged_job(CLUSTER, NAMESPACE, WorkloadKind.JOB, "users-job")
        assert unmanaged_job
        return unmanaged_job

    until(
        lambda: len(users_job().live_nodes) == 2 and users_job().state is UnmanagedJobState.RUNNING, "its pods to run"
    )
    job = users_job()
    bench.cluster.suspend(CLUSTER, job, is_suspended=True)
    until(lambda: users_job().state is UnmanagedJobState.SUSPENDED and not users_job().live_nodes, "Kueue to evict it")
    until(lambda: not holds(kueue.workload("users-job"), "QuotaReserved"), "its quota to go")
    bench.cluster.suspend(CLUSTER, job, is_suspended=False)
    until(
        lambda: len(users_job().live_nodes) == 2 and users_job().state is UnmanagedJobState.RUNNING,
        "its pods to run again",
    )

    assert (users_job().uid, users_job().is_queued) == (job.uid, True)


# ---------------------------------------------------------------- the admission check evenkeel.io/burst


@pytest.fixture
def renting_kueue(bench: LocalClusterUnderTest) -> Iterator[FakeKueue]:
    with FakeKueue(bench.admin, NAMESPACE, room=0, burst_room=16) as stand_in:
        yield stand_in
    assert stand_in.faults == []


def job_with_burst_quota(bench: LocalClusterUnderTest) -> tuple[LaunchSpec, CheckedWorkload]:
    """Launch a job that Kueue has reserved quota of the burst flavor for."""
    for name in bench.cluster.burst_checks(CLUSTER).inactive:
        bench.cluster.mark_check_active(CLUSTER, name, A_MOMENT)
    spec = a_launch(bench, free_nodes(bench, 2), local_queue="default")
    bench.cluster.launch(spec)
    return spec, checked(bench, spec)


def checked(bench: LocalClusterUnderTest, spec: LaunchSpec) -> CheckedWorkload:
    def find() -> CheckedWorkload | None:
        listed = bench.cluster.burst_checks(CLUSTER).workloads
        return next((item for item in listed if item.job_name == spec.attempt.workload_name and item.is_waiting), None)

    workload = until(find, "Kueue to ask for the check")
    assert workload
    return workload


def test_kueue_reserves_burst_quota_only_once_the_check_is_active(
    bench: LocalClusterUnderTest, renting_kueue: FakeKueue
) -> None:
    spec = a_launch(bench, free_nodes(bench, 2), local_queue="default")
    bench.cluster.launch(spec)
    until(lambda: "16 more needed" in messages(bench, spec), "Kueue's reason")
    assert bench.cluster.burst_checks(CLUSTER).inactive == (BURST_CHECK,)

    bench.cluster.mark_check_active(CLUSTER, BURST_CHECK, A_MOMENT)

    assert bench.cluster.burst_checks(CLUSTER).inactive == ()
    workload = checked(bench, spec)
    assert (workload.state, workload.has_quota, workload.is_admitted) == (BurstCheckState.PENDING, True, False)
    assert (workload.pods, workload.pod_sets, workload.open_checks) == (2, ("main",), ())
    assert workload.flavors == (BURST_FLAVOR,)
    assert workload.node_labels == {"node.kubernetes.io/instance-type": "p5.48xlarge"}
    assert not workload.covers_all_flavors
    assert workload.job_uid == seen(bench, spec).uid


def test_ready_check_starts_the_job_with_the_node_selector(
    bench: LocalClusterUnderTest, renting_kueue: FakeKueue
) -> None:
    spec, workload = job_with_burst_quota(bench)
    selector = {"evenkeel.io/rental": "job-1-b1"}
    answer = BurstCheckAnswer(state=BurstCheckState.READY, message="Nodes are ready.", node_selector=selector)

    bench.cluster.answer_check(workload, answer, A_MOMENT)

    until(lambda: not seen(bench, spec).is_suspended, "Kueue to start the job")
    kueue_status = seen(bench, spec).kueue
    assert kueue_status
    assert kueue_status.is_sent_to("job-1-b1")
    job = bench.admin.get(f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{spec.attempt.workload_name}")
    assert job
    assert job["spec"]["template"]["spec"]["nodeSelector"] == {
        "node.kubernetes.io/instance-type": "p5.48xlarge",
        **selector,
    }


def test_answer_to_a_changed_workload_is_a_conflict(bench: LocalClusterUnderTest, renting_kueue: FakeKueue) -> None:
    _, workload = job_with_burst_quota(bench)
    answer = BurstCheckAnswer(state=BurstCheckState.PENDING, message="Nodes are starting.")
    bench.cluster.answer_check(workload, answer, A_MOMENT)

    with pytest.raises(Conflict):
        bench.cluster.answer_check(workload, answer, A_MOMENT)
    with pytest.raises(NotFound):
        bench.cluster.answer_check(workload.replace(name="gone"), answer, A_MOMENT)


def test_retry_releases_the_quota_and_counts(bench: LocalClusterUnderTest, renting_kueue: FakeKueue) -> None:
    spec, workload = job_with_burst_quota(bench)
    answer = BurstCheckAnswer(state=BurstCheckState.RETRY, message="Too expensive.", requeue_after_seconds=1)

    bench.cluster.answer_check(workload, answer, A_MOMENT)

    until(lambda: (status := seen(bench, spec).kueue) and status.is_pending, "the quota to go")
    again = checked(bench, spec)
    assert (again.state, again.retry_count) == (BurstCheckState.PENDING, 1)
    assert is_stopped_by_kueue(bench, spec) is None
