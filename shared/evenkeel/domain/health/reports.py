"""What a site's own detectors report."""

from evenkeel.domain.values import Instant, Value


class Report(Value):
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
    line: str = ""
    """A line of the kernel log or of HyperPod's agent: says which fault it is where `code` is empty."""
    gpu: str = ""
    detail: str = ""
    observed_at: Instant
