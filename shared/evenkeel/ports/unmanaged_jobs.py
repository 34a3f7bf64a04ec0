"""Jobs that users submit to a Kubernetes cluster without Evenkeel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from evenkeel.domain.jobs.workload_kind import WorkloadKind
    from evenkeel.domain.recovery.unmanaged_restarts import UnmanagedJob, UnmanagedRestart
    from evenkeel.ports.permissions import KubernetesPermission


class UnmanagedJobs(Protocol):
    """Reads the jobs, and suspends, deletes and creates them. A namespace grants these rights by a RoleBinding."""

    def unmanaged_jobs(self, cluster: str, node_name: str) -> tuple[UnmanagedJob, ...]:
        """Return the jobs that have a pod on a node, whether it runs or has ended. Evenkeel's own are among them."""
        ...

    def unmanaged_job(self, cluster: str, namespace: str, kind: WorkloadKind, name: str) -> UnmanagedJob | None:
        """Return one job; None if there is none of this name."""
        ...

    def suspend(self, cluster: str, job: UnmanagedJob, *, is_suspended: bool) -> None:
        """Suspend a job, so that its operator ends its pods, or resume it. With Kueue, Kueue does both.

        Idempotent: yes, by the object's UID.

        Raises:
            Conflict: Another object has the name by now, or Kueue has not created its Workload yet.
            Refused: The namespace grants no right to do it.
        """
        ...

    def manifest_of(self, cluster: str, job: UnmanagedJob) -> str:
        """Return JSON from which the job can be created again, without the fields that the API server set.

        Raises:
            NotFound: The object is gone, or another object has its name.
        """
        ...

    def missing_restart_rights(self, cluster: str, job: UnmanagedJob) -> tuple[KubernetesPermission, ...]:
        """Return the rights for a restart that the job's namespace does not grant. Changes nothing."""
        ...

    def delete_job(self, cluster: str, job: UnmanagedJob) -> bool:
        """Delete a job and its pods. Return False if it is gone, or another object has its name.

        Idempotent: yes, by the object's UID.
        """
        ...

    def create_job(self, restart: UnmanagedRestart) -> bool:
        """Create a deleted job from its manifest. Return False if an object of the name exists.

        Raises:
            Refused: A quota, an admission webhook or the namespace's rights forbid it.
        """
        ...
