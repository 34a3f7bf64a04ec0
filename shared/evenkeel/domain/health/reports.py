"""Faults that a site's own detectors and operators report, and which faults each may report."""

from enum import StrEnum

from evenkeel.domain.values import Instant, Value


class ReporterRole(StrEnum):
    """Role of the caller that reports a fault. The API route decides it, never the report itself."""

    DETECTOR = "detector"
    """Calls `POST /v1/faults`, which the IAM policy Detector allows."""
    OPERATOR = "operator"
    """Calls `POST /v1/nodes/{id}/replace`, which the IAM policy Operator allows."""

    def may_report(self, fault_key: str) -> bool:
        """Whether this role may report a fault of the catalogue."""
        return self is ReporterRole.OPERATOR or is_detector_fault(fault_key)


DETECTOR_FAMILIES = (
    *("xid", "sxid", "gpu", "mem", "fabric", "efa", "thermal", "pcie", "disk", "neuron", "node", "train"),
)
"""Families of fault keys that a site's own detectors may report.

All other families belong to another source: HyperPod (`hp`), EC2, AWS Health, the EKS agent (`eks`), or an operator
(`person`)."""
_KUBERNETES_FAMILIES = ("node:not_ready", "node:pressure")


def is_detector_fault(fault_key: str) -> bool:
    """Whether a site's detector may report this fault."""
    return fault_key.partition(":")[0] in DETECTOR_FAMILIES and fault_key not in _KUBERNETES_FAMILIES


class FaultReport(Value):
    """A fault of one node or one job, as a detector reports it."""

    instance_id: str = ""
    node_name: str = ""
    """Used if the instance id is empty."""
    job_id: str = ""
    """Used if the instance id and the node name are empty: the job in which the fault showed."""
    rank: int | None = None
    """Rank of the job that showed the fault, if the detector knows it."""
    code: str = ""
    """A key of the catalogue, the number of an Xid, or the name that HyperPod or the EKS agent uses."""
    code_field: str = "code"
    """Name of the request field that holds `code`; used in error messages."""
    line: str = ""
    """A line of the kernel log or of HyperPod's agent. It names the fault if `code` is empty."""
    gpu: str = ""
    detail: str = ""
    observed_at: Instant
