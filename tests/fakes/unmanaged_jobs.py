"""Jobs of users in a dictionary: a suspension ends their pods, and a resumed or created job runs on a free node."""

import itertools
import json
from typing import Any

from evenkeel.domain.jobs.workload_kind import WorkloadKind
from evenkeel.domain.recovery.unmanaged_restarts import UnmanagedJob, UnmanagedJobState, UnmanagedRestart
from evenkeel.ports import Conflict, EvenkeelError, KubernetesPermission, NotFound

FREE_NODE = "free-node"


class FakeUnmanagedJobs:
    """The part of the fake cluster for users' jobs. A test adds them with `submit`."""

    calls: list[tuple[Any, ...]]

    def __init__(self) -> None:
        self.users_jobs: dict[tuple[str, str, WorkloadKind, str], UnmanagedJob] = {}
        self.missing_verbs: tuple[str, ...] = ()
        """Verbs on JobSets that the namespaces do not grant."""
        self.pods_end_late = False
        """Whether pods of a suspended or deleted job keep running until `end_pods()`."""
        self.creation_error: EvenkeelError | None = None
        """Answer to the creation of a job; None = it is created."""
        self._uids = itertools.count(1)

    def submit(self, cluster: str, job: UnmanagedJob) -> UnmanagedJob:
        """Add a job, or replace the job of its name."""
        self.users_jobs[(cluster, job.namespace, job.kind, job.name)] = job
        return job

    def end_pods(self) -> None:
        """End the pods of suspended jobs, and remove deleted jobs."""
        for key, job in list(self.users_jobs.items()):
            if job.state is UnmanagedJobState.DELETING:
                del self.users_jobs[key]
            elif job.state is UnmanagedJobState.SUSPENDED:
                self.users_jobs[key] = job.replace(live_nodes=())

    def unmanaged_jobs(self, cluster: str, node_name: str) -> tuple[UnmanagedJob, ...]:
        return tuple(
            job
            for (job_cluster, *_), job in self.users_jobs.items()
            if job_cluster == cluster and node_name in (*job.live_nodes, *(pod.node_name for pod in job.failed_pods))
        )

    def unmanaged_job(self, cluster: str, namespace: str, kind: WorkloadKind, name: str) -> UnmanagedJob | None:
        return self.users_jobs.get((cluster, namespace, kind, name))

    def _present(self, cluster: str, job: UnmanagedJob) -> UnmanagedJob | None:
        unmanaged_job = self.unmanaged_job(cluster, job.namespace, job.kind, job.name)
        return unmanaged_job if unmanaged_job is not None and unmanaged_job.uid == job.uid else None

    def suspend(self, cluster: str, job: UnmanagedJob, *, is_suspended: bool) -> None:
        unmanaged_job = self._present(cluster, job)
        if unmanaged_job is None:
            raise Conflict(f"{job.label} was replaced by another object")
        self.calls.append(("suspend" if is_suspended else "resume", job.label))
        if is_suspended:
            live = unmanaged_job.live_nodes if self.pods_end_late else ()
            self.submit(cluster, unmanaged_job.replace(state=UnmanagedJobState.SUSPENDED, live_nodes=live))
        else:
            self.submit(cluster, unmanaged_job.replace(state=UnmanagedJobState.RUNNING, live_nodes=(FREE_NODE,)))

    def manifest_of(self, cluster: str, job: UnmanagedJob) -> str:
        unmanaged_job = self._present(cluster, job)
        if unmanaged_job is None:
            raise NotFound(f"{job.label} is gone")
        return json.dumps(unmanaged_job.to_json())

    def missing_restart_rights(self, cluster: str, job: UnmanagedJob) -> tuple[KubernetesPermission, ...]:
        group = "jobset.x-k8s.io"
        return tuple(KubernetesPermission(verb, group, "jobsets", job.namespace) for verb in self.missing_verbs)

    def delete_job(self, cluster: str, job: UnmanagedJob) -> bool:
        if self._present(cluster, job) is None:
            return False
        self.calls.append(("delete_job", job.label))
        if self.pods_end_late:
            self.submit(cluster, job.replace(state=UnmanagedJobState.DELETING))
        else:
            del self.users_jobs[(cluster, job.namespace, job.kind, job.name)]
        return True

    def create_job(self, restart: UnmanagedRestart) -> bool:
        if self.unmanaged_job(restart.cluster, restart.namespace, restart.kind, restart.name) is not None:
            return False
        if self.creation_error is not None:
            raise self.creation_error
        before = UnmanagedJob.model_validate(json.loads(restart.manifest))
        self.calls.append(("create_job", before.label))
        uid = f"{before.uid}-again-{next(self._uids)}"
        created = before.replace(uid=uid, state=UnmanagedJobState.RUNNING, live_nodes=(FREE_NODE,), failed_pods=())
        self.submit(restart.cluster, created)
        return True
