"""What a site's own detectors and operators report, and which faults each may name."""

from enum import StrEnum

from evenkeel.domain.values import Instant, Value


class ReporterRole(StrEnum):
    """On whose authority a report is filed: by the route that took it, never by what it says."""

    DETECTOR = "detector"
    """`POST /v1/faults`, which the Detector policy opens."""
    OPERATOR = "operator"
    """`POST /v1/nodes/{id}/replace`, which the Operator policy opens."""

    def may_report(self, fault_key: str) -> bool:
        """Whether a report may name this fault of the catalogue."""
        return self is ReporterRole.OPERATOR or is_detector_fault(fault_key)


DETECTOR_FAMILIES = (
    *("xid", "sxid", "gpu", "mem", "fabric", "efa", "thermal", "pcie", "disk", "neuron", "node", "train"),
)
"""First parts of the keys that a site's detectors observe by themselves.

All others are somebody else's to say: HyperPod's (`hp`), EC2's, AWS Health's, the EKS agent's (`eks`), an operator's
(`person`)."""
_KUBERNETES_FAMILIES = ("node:not_ready", "node:pressure")


def is_detector_fault(fault_key: str) -> bool:
    """Whether a detector may report a fault as seen by itself."""
    return fault_key.partition(":")[0] in DETECTOR_FAMILIES and fault_key not in _KUBERNETES_FAMILIES


class FaultReport(Value):
    """One fault of one machine or one job, as the detector has it."""

    instance_id: str = ""
    node_name: str = ""
    """Where the instance id is empty."""
    job_id: str = ""
    """Where both are: the fault was seen in a job."""
    rank: int | None = None
    """The rank that showed it, where the detector knows."""
    code: str = ""
    """A key of the catalogue, the number of an Xid, or a name as HyperPod or the EKS agent spell it."""
    code_field: str = "code"
    """The field of the request that holds `code`."""
    line: str = ""
    """A line of the kernel log or of HyperPod's agent: says which fault it is where `code` is empty."""
    gpu: str = ""
    detail: str = ""
    observed_at: Instant
