"""Settings of a function: its environment variables as one frozen value."""

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from evenkeel.domain import metrics
from evenkeel.domain.admission.authority import AdmissionAuthority
from evenkeel.domain.policy_section import Mode
from evenkeel.ports import PermanentError
from evenkeel.services.context import Site


class BadSetting(PermanentError):
    """An environment variable is missing or not valid. The template gives each function the variables that it needs."""


class Settings(BaseModel):
    """The environment variables of all functions.

    All variables are optional, because each function has only the variables that it uses. `need` raises an error for a
    missing one.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    fleet: str = Field("", alias="EVENKEEL_FLEET")
    mode: Mode = Field(Mode.OBSERVE, alias="EVENKEEL_MODE")
    admission: AdmissionAuthority = Field(AdmissionAuthority.EVENKEEL, alias="EVENKEEL_ADMISSION")
    drills_may_act: bool = Field(default=False, alias="EVENKEEL_DRILLS_MAY_ACT")
    schedules: Literal["on", "off"] = Field("on", alias="EVENKEEL_SCHEDULES")
    """Whether the schedules of the stack run. In a new stack they are off until an operator turns them on."""
    policy_name: str = Field("production", alias="EVENKEEL_POLICY", pattern=r"^[a-z][a-z0-9-]*$")
    hyperpod_cluster_arn: str = Field("", alias="HYPERPOD_CLUSTER_ARN")
    """Empty if the fleet has no HyperPod cluster."""
    kubernetes_clusters: tuple[str, ...] = Field((), alias="KUBERNETES_CLUSTERS")
    """Names of the EKS clusters. The first is the cluster of HyperPod."""
    jobs_table: str = Field("", alias="JOBS_TABLE")
    incidents_table: str = Field("", alias="INCIDENTS_TABLE")
    fleet_table: str = Field("", alias="FLEET_TABLE")
    quotas_table: str = Field("", alias="QUOTAS_TABLE")
    raw_events_bucket: str = Field("", alias="RAW_EVENTS_BUCKET")
    dead_letter_queue_url: str = Field("", alias="DEAD_LETTER_QUEUE_URL")
    cycles_queue_url: str = Field("", alias="CYCLES_QUEUE_URL")
    events_queue_url: str = Field("", alias="EVENTS_QUEUE_URL")
    recover_node_arn: str = Field("", alias="RECOVER_NODE_ARN")
    run_job_arn: str = Field("", alias="RUN_JOB_ARN")
    burst_capacity_arn: str = Field("", alias="BURST_CAPACITY_ARN")
    resolve_wait_function: str = Field("", alias="RESOLVE_WAIT_FUNCTION")
    page_topic_arn: str = Field("", alias="PAGE_TOPIC_ARN")
    chat_topic_arn: str = Field("", alias="CHAT_TOPIC_ARN")
    event_bus_name: str = Field("", alias="EVENT_BUS_NAME")
    job_namespace: str = Field("evenkeel-jobs", alias="JOB_NAMESPACE")
    job_service_account: str = Field("trainer", alias="JOB_SERVICE_ACCOUNT")
    operators: tuple[str, ...] = Field((), alias="OPERATOR_PRINCIPALS")
    """ARNs of the roles and users that may read the jobs of every team."""
    service_name: str = Field("evenkeel", alias="POWERTOOLS_SERVICE_NAME")
    metrics_namespace: str = Field(metrics.NAMESPACE, alias="POWERTOOLS_METRICS_NAMESPACE")
    region: str = Field("us-west-2", alias="AWS_REGION")

    @field_validator("kubernetes_clusters", "operators", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return tuple(name.strip() for name in value.split(",") if name.strip()) if isinstance(value, str) else value

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Read the settings. An empty variable counts as absent.

        Raises:
            BadSetting: A value is not valid. The message names each such variable.
        """
        try:
            return cls.model_validate({name: value for name, value in environment.items() if value.strip()})
        except ValidationError as error:
            faults = "; ".join(f"{fault['loc'][0]}: {fault['msg']}" for fault in error.errors(include_input=False))
            raise BadSetting(f"the environment is not valid: {faults}") from error

    @property
    def site(self) -> Site:
        """Return the settings that services use."""
        return Site(
            fleet=self.fleet,
            clusters=self.kubernetes_clusters,
            hyperpod_cluster_arn=self.hyperpod_cluster_arn,
            drills_may_act=self.drills_may_act,
            admission=self.admission,
            job_namespace=self.job_namespace,
            job_service_account=self.job_service_account,
            operators=self.operators,
            schedules_are_on=self.schedules == "on",
        )

    def need(self, name: str) -> str:
        """Return a text setting by field name.

        Raises:
            BadSetting: The setting is empty. The message names the environment variable.
        """
        value = getattr(self, name)
        if not value:
            variable = type(self).model_fields[name].alias
            raise BadSetting(f"this function needs the environment variable {variable}, which is not set")
        return str(value)
