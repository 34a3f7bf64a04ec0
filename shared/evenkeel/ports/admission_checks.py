"""Kueue's admission checks in a Kubernetes cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from datetime import datetime

    from evenkeel.domain.external.burst_check_protocol import BurstCheckAnswer, CheckedWorkload


class BurstChecks(NamedTuple):
    """The AdmissionChecks that Evenkeel answers, and the Workloads that have them."""

    inactive: tuple[str, ...] = ()
    """AdmissionChecks that are not marked as active."""
    workloads: tuple[CheckedWorkload, ...] = ()


class AdmissionChecks(Protocol):
    """The operations of Evenkeel as a controller of AdmissionChecks."""

    def burst_checks(self, cluster: str) -> BurstChecks:
        """Return the checks and Workloads of a cluster; empty if it has no Kueue, or no such AdmissionCheck.

        Without such an AdmissionCheck, neither Workloads nor queues are read.
        """
        ...

    def mark_check_active(self, cluster: str, name: str, at: datetime) -> None:
        """Mark an AdmissionCheck as active. Until then, Kueue admits nothing in the queues that name it.

        Idempotent: yes, it patches the version that it reads.
        """
        ...

    def answer_check(self, workload: CheckedWorkload, answer: BurstCheckAnswer, at: datetime) -> None:
        """Write the answer to a check into the Workload's status.

        Idempotent: yes, it patches the version that the caller read.

        Raises:
            Conflict: The Workload has changed since.
            NotFound: It is gone.
        """
        ...
