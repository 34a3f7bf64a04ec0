"""Kueue's Workloads with Evenkeel's admission check, in a dictionary. A test sets what Kueue says."""

from datetime import datetime
from typing import Any

from evenkeel.domain.external.burst_check_protocol import BurstCheckAnswer, CheckedWorkload
from evenkeel.ports import BurstChecks, Conflict, NotFound


class FakeAdmissionChecks:
    """The part of the fake cluster in which Evenkeel is a controller of AdmissionChecks."""

    calls: list[tuple[Any, ...]]

    def __init__(self) -> None:
        self.burst_check_names: dict[str, bool] = {}
        """AdmissionChecks of Evenkeel: name → whether it is marked as active."""
        self.checked: dict[str, CheckedWorkload] = {}
        """Workloads with the check, by `namespace/name`."""

    def burst_checks(self, cluster: str) -> BurstChecks:
        self._answer(cluster, "burst_checks")
        inactive = tuple(name for name, is_active in sorted(self.burst_check_names.items()) if not is_active)
        listed = (workload for _, workload in sorted(self.checked.items()) if workload.cluster == cluster)
        return BurstChecks(inactive, tuple(listed) if self.burst_check_names else ())

    def mark_check_active(self, cluster: str, name: str, at: datetime) -> None:
        if not self.burst_check_names[name]:
            self.burst_check_names[name] = True
            self.calls.append(("mark_check_active", name))

    def answer_check(self, workload: CheckedWorkload, answer: BurstCheckAnswer, at: datetime) -> None:
        stored = self.checked.get(workload.label)
        if stored is None:
            raise NotFound(f"Workload {workload.label} is gone")
        if stored.resource_version != workload.resource_version:
            raise Conflict(f"Workload {workload.label} has changed")
        self.checked[workload.label] = stored.replace(
            state=answer.state,
            message=answer.message,
            node_selector=answer.node_selector,
            resource_version=f"{stored.resource_version}+",
        )
        self.calls.append(("answer_check", workload.label, str(answer.state)))

    def _answer(self, cluster: str, call: str) -> None:
        raise NotImplementedError
