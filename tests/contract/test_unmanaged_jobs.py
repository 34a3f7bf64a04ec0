"""The port UnmanagedJobs: the same answers from the fake and from the adapter on the local GPU cluster."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from evenkeel.adapters.workload_resources import RESOURCES
from evenkeel.domain.external.unmanaged_workloads import Consent
from evenkeel.domain.jobs.workload_kind import WorkloadKind
from evenkeel.domain.recovery.unmanaged_restarts import UnmanagedJob, UnmanagedJobState, UnmanagedRestart
from evenkeel.ports import Conflict, NotFound
from evenkeel_local.gpu_cluster import ClusterHandle
from tests.contract.clusters_under_test import (
    CLUSTER,
    ClusterUnderTest,
    FakeClusterUnderTest,
    LocalClusterUnderTest,
    free_nodes,
)
from tests.contract.example_jobs import EXAMPLES, NAMESPACE
from tests.unit.recovery.test_restarts import NOW

KINDS = (WorkloadKind.JOB, WorkloadKind.JOB_SET, WorkloadKind.PYTORCH_JOB)
"""Kinds that Evenkeel suspends. A running HyperPodPyTorchJob is left to HyperPod."""


@dataclass(frozen=True)
class SubmittedJob:
    """A running job of a user, in one of the clusters."""

    bench: ClusterUnderTest
    job: UnmanagedJob

    def now(self) -> UnmanagedJob | None:
        job = self.job
        return self.bench.cluster.unmanaged_job(CLUSTER, job.namespace, job.kind, job.name)

    def eventually(self, state: UnmanagedJobState, *, has_pods: bool) -> UnmanagedJob:
        def look() -> UnmanagedJob | None:
            now = self.now()
            return now if now and now.state is state and bool(now.live_nodes) is has_pods else None

        job: UnmanagedJob = self.bench.eventually(look, f"{self.job.label} {state}")
        return job


@pytest.fixture(params=["fake", "local"])
def bench(request: pytest.FixtureRequest, gpu_cluster: ClusterHandle) -> Iterator[ClusterUnderTest]:
    if request.param == "fake":
        yield FakeClusterUnderTest()
        return
    local = LocalClusterUnderTest(gpu_cluster)
    yield local
    local.restore()


@pytest.fixture(params=KINDS)
def submitted(request: pytest.FixtureRequest, bench: ClusterUnderTest) -> SubmittedJob:
    kind: WorkloadKind = request.param
    name = f"users-{bench.new_job()}"
    if isinstance(bench, LocalClusterUnderTest):
        example = next(example for example in EXAMPLES if example.kind is kind)
        container = {"name": "main", "image": "any", "command": ["sh", "-c", "exec sleep 60"]}
        pods = {"spec": {"terminationGracePeriodSeconds": 1, "containers": [container]}}
        metadata = {"name": name, "labels": {"evenkeel.io/resume": "allowed"}}
        item = {**example.manifest(pods), "kind": str(kind), "metadata": metadata}
        bench.admin.create(RESOURCES[kind].path(NAMESPACE), item)
    elif isinstance(bench, FakeClusterUnderTest):
        (node,) = free_nodes(bench)
        job = UnmanagedJob(
            namespace=NAMESPACE,
            kind=kind,
            name=name,
            uid=name,
            state=UnmanagedJobState.RUNNING,
            consent=Consent.ALLOWED,
            live_nodes=(node.name,),
        )
        bench.cluster.submit(CLUSTER, job)

    def job_with_pods() -> UnmanagedJob | None:
        unmanaged_job = bench.cluster.unmanaged_job(CLUSTER, NAMESPACE, kind, name)
        return unmanaged_job if unmanaged_job and unmanaged_job.live_nodes and all(unmanaged_job.live_nodes) else None

    return SubmittedJob(bench, bench.eventually(job_with_pods, "the pods of a user's job"))


def test_job_is_found_by_the_node_of_a_pod(submitted: SubmittedJob) -> None:
    cluster, job = submitted.bench.cluster, submitted.job

    jobs_by_label = {
        unmanaged_job.label: unmanaged_job for unmanaged_job in cluster.unmanaged_jobs(CLUSTER, job.live_nodes[0])
    }

    assert (jobs_by_label[job.label].uid, jobs_by_label[job.label].consent) == (job.uid, Consent.ALLOWED)
    assert cluster.unmanaged_jobs(CLUSTER, "no-such-node") == ()
    assert cluster.missing_restart_rights(CLUSTER, job) == ()


def test_suspended_job_keeps_its_object_and_runs_again(submitted: SubmittedJob) -> None:
    cluster, job = submitted.bench.cluster, submitted.job

    for _ in range(2):
        cluster.suspend(CLUSTER, job, is_suspended=True)
    suspended = submitted.eventually(UnmanagedJobState.SUSPENDED, has_pods=False)
    for _ in range(2):
        cluster.suspend(CLUSTER, job, is_suspended=False)
    resumed = submitted.eventually(UnmanagedJobState.RUNNING, has_pods=True)

    assert suspended.uid == resumed.uid == job.uid


def test_deleted_job_is_created_once_from_its_manifest(submitted: SubmittedJob) -> None:
    cluster, job = submitted.bench.cluster, submitted.job
    manifest = cluster.manifest_of(CLUSTER, job)
    restart = UnmanagedRestart(
        cluster=CLUSTER,
        namespace=job.namespace,
        kind=job.kind,
        name=job.name,
        uid=job.uid,
        incident_id="inc-1",
        node_name=job.live_nodes[0],
        begun_at=NOW,
        manifest=manifest,
    )

    assert not cluster.create_job(restart)
    assert cluster.delete_job(CLUSTER, job)
    submitted.bench.eventually(lambda: submitted.now() is None, "the job to be gone")
    assert not cluster.delete_job(CLUSTER, job)
    with pytest.raises(NotFound):
        cluster.manifest_of(CLUSTER, job)
    assert cluster.create_job(restart)
    created = submitted.eventually(UnmanagedJobState.RUNNING, has_pods=True)
    assert created.uid != job.uid
    assert not cluster.create_job(restart)


def test_another_object_of_the_name_is_not_touched(submitted: SubmittedJob) -> None:
    cluster, old = submitted.bench.cluster, submitted.job.replace(uid="an-older-object")

    assert not cluster.delete_job(CLUSTER, old)
    with pytest.raises(Conflict):
        cluster.suspend(CLUSTER, old, is_suspended=True)
    with pytest.raises(NotFound):
        cluster.manifest_of(CLUSTER, old)
    submitted.eventually(UnmanagedJobState.RUNNING, has_pods=True)
