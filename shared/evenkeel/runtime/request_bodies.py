"""The shapes of request bodies. Names and bounds are checked here, before any service is asked."""

from datetime import datetime, timedelta
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from evenkeel.domain.health.reports import FaultReport
from evenkeel.domain.jobs.spec import JobSpec
from evenkeel.domain.quotas.teams import FleetQuotas, Team
from evenkeel.domain.submitted import from_request
from evenkeel.runtime.api import Body
from evenkeel.runtime.request_fields import PoolName, Reason, Timestamp, create_body_class, one_line, printable

Label = Annotated[str, StringConstraints(max_length=63), AfterValidator(printable)]
"""A name of up to 63 characters. The service that uses it checks its characters."""
LogLine = Annotated[str, StringConstraints(max_length=8192), AfterValidator(printable)]


class JobRequest(Body):
    """`POST /v1/jobs`: the specification of a job. The template of its job type fills omitted fields."""

    def spec(self) -> JobSpec:
        """Return the specification, with only those fields set that the caller set."""
        request = from_request(JobSpec, self.model_dump(exclude_unset=True))
        # An empty team is not the default team: the service derives the team from the caller.
        return JobSpec.model_validate({"team": "", **request})


JobBody = create_body_class(
    "JobBody",
    JobSpec,
    JobRequest,
    groups={
        "checkpoint": "Where the job stores its checkpoints.",
        "network": "How close the nodes must be to each other in AWS's network.",
        "securityContext": "The ids that the job's processes run with.",
        "recovery": "How the job recovers from failures of the application and of nodes.",
    },
)
"""The body of a submission: one field for each field of `JobSpec` that has a `Submitted` annotation."""


class ReasonBody(Body):
    """`POST /v1/jobs/{id}/cancel`, `…/suspend` and `…/resume`."""

    reason: Annotated[str, StringConstraints(max_length=300), AfterValidator(one_line)] = ""
    dry_run: bool = False
    """Return the plan of the change, and change nothing."""


class PriorityBody(Body):
    """`PATCH /v1/jobs/{id}`."""

    priority_class: Label
    """Empty: none, which is the lowest."""
    reason: Annotated[str, StringConstraints(max_length=300), AfterValidator(one_line)] = ""
    dry_run: bool = False
    """Return the plan of the change, and change nothing. It needs no If-Match."""


class TeamBody(Body):
    """`PUT /v1/teams/{team}/quota`: the whole team after the change."""

    team: Team
    reason: Reason


class QuotasBody(Body):
    """`PUT /v1/clusters/{cluster}/quotas`: all parts of the quotas that no single team owns."""

    quotas: FleetQuotas
    reason: Reason


InstanceId = Annotated[str, StringConstraints(pattern=r"^(i-([0-9a-f]{8}|[0-9a-f]{17}))?$")]
"""A node; empty for all."""

FaultCode = Annotated[str, StringConstraints(max_length=80, pattern=r"^[A-Za-z0-9:*/._-]*$")]
"""A key of the catalogue, the number of an Xid, or a name as HyperPod or the EKS agent spell it."""


class HoldBody(Body):
    """`POST /v1/clusters/{cluster}/automation/hold`."""

    reason: Reason
    until: Timestamp | None = None
    for_seconds: Annotated[int, Field(ge=1, le=7 * 86_400)] | None = None
    pool: PoolName = ""
    instance_id: InstanceId = ""
    allow_unknown: bool = False
    """Allow a pool or node that the fleet does not know yet."""
    stops_scheduling: bool = False
    """Whether to hold admissions, preemptions, resizes, migrations and rentals, too, on the whole fleet."""
    dry_run: bool = False
    """Return the plan of the hold, and hold nothing."""

    @model_validator(mode="after")
    def _check_end(self) -> Self:
        if (self.until is None) == (self.for_seconds is None):
            raise ValueError("give either until or forSeconds")
        return self

    def end(self, now: datetime) -> datetime:
        """Return when the hold ends."""
        return self.until or now + timedelta(seconds=self.for_seconds or 0)


class PolicyBody(Body):
    """`POST /v1/clusters/{cluster}/policy`."""

    changes: dict[str, Any]
    """All values that differ from the shipped policy. They replace all earlier changes."""
    reason: Reason
    based_on: Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{12})?$")] = ""
    """Hash of the policy that the changes were written for; refused where another one is in force."""


class PolicyTestBody(Body):
    """`POST /v1/clusters/{cluster}/policy/test`."""

    changes: dict[str, Any]
    """The changes, as for a real change."""
    since: Timestamp | None = None
    """Decisions about incidents that were opened since; without it, the last seven days."""


class ReleaseBody(Body):
    """`POST /v1/clusters/{cluster}/automation/release`."""

    reason: Annotated[str, StringConstraints(max_length=300), AfterValidator(one_line)] = ""
    pool: PoolName = ""
    instance_id: InstanceId = ""
    cause: Annotated[str, StringConstraints(pattern=r"^((zone|UltraServer|image)/[ -~]{1,200})?$")] = ""
    """A shared cause that is over, instead of a hold: `zone/use1-az1`. It needs a reason."""


class RemarkBody(Body):
    """`POST /v1/incidents/{id}/acknowledge`."""

    reason: Annotated[str, StringConstraints(max_length=300), AfterValidator(one_line)] = ""


class NodeBody(RemarkBody):
    """`POST /v1/nodes/{id}/cordon` and `…/uncordon`."""

    dry_run: bool = False
    """Return the plan of the change, and change nothing."""


class ReplaceBody(Body):
    """`POST /v1/nodes/{id}/replace`."""

    reason: Reason
    code: FaultCode = ""
    """Fault of the node, if it is known."""
    dry_run: bool = False
    """Plan and record the replacement, but do not start it."""


class ApprovalBody(Body):
    """`POST /v1/incidents/{id}/approve` and `…/decline`: the answer names the very plan that it is given to."""

    decision_id: Annotated[str, StringConstraints(pattern=r"^dec-[A-Za-z0-9_.-]{1,120}$")]
    reason: Annotated[str, StringConstraints(max_length=300), AfterValidator(one_line)] = ""


def _not_empty(faults: tuple["FaultBody", ...]) -> tuple["FaultBody", ...]:
    if not faults:
        raise ValueError("report at least one fault")
    return faults


class FaultBody(Body):
    """A reported fault: the node or job, the fault, and the time."""

    instance_id: InstanceId = ""
    node_name: Annotated[str, StringConstraints(max_length=253, pattern=r"^[A-Za-z0-9._-]*$")] = ""
    job_id: Annotated[str, StringConstraints(max_length=80, pattern=r"^(job-[A-Za-z0-9-]+)?$")] = ""
    """In place of a node: the fault was seen in this job."""
    rank: Annotated[int, Field(ge=0, le=1023)] | None = None
    """The rank of the job that showed it."""
    code: FaultCode = ""
    """A key of the catalogue, the number of an Xid, or a name as HyperPod or the EKS agent spell it."""
    fault_key: FaultCode = ""
    """A key of the catalogue."""
    line: LogLine = ""
    """A line of the kernel log or of HyperPod's agent: read where neither code nor key is given."""
    gpu: Annotated[str, StringConstraints(max_length=64, pattern=r"^[A-Za-z0-9:._-]*$")] = ""
    """UUID or PCI address."""
    detail: Annotated[str, StringConstraints(max_length=500), AfterValidator(one_line)] = ""
    observed_at: Timestamp

    @model_validator(mode="after")
    def _check_fault(self) -> Self:
        if sum(map(bool, (self.instance_id, self.node_name, self.job_id))) != 1:
            raise ValueError("give exactly one of instanceId, nodeName and jobId")
        if self.rank is not None and not self.job_id:
            raise ValueError("rank requires jobId")
        if self.code and self.fault_key:
            raise ValueError("give either code or faultKey")
        if not (self.code or self.fault_key or self.line):
            raise ValueError("give code, faultKey or line")
        return self


class FaultsBody(Body):
    """`POST /v1/faults`: reports of a site's own detectors."""

    # `min_length` would count only valid faults, and report an invalid fault twice.
    faults: Annotated[tuple[FaultBody, ...], Field(max_length=100), AfterValidator(_not_empty)]

    def reports(self) -> tuple[FaultReport, ...]:
        """Return the faults in the service's words."""
        return tuple(
            FaultReport(
                instance_id=fault.instance_id,
                node_name=fault.node_name,
                job_id=fault.job_id,
                rank=fault.rank,
                code=fault.fault_key or fault.code,
                code_field="faultKey" if fault.fault_key else "code",
                line=fault.line,
                gpu=fault.gpu,
                detail=fault.detail,
                observed_at=fault.observed_at,
            )
            for fault in self.faults
        )
