"""Sections of the policy for reserved pools, and for instance types that the shipped catalogue does not have yet."""

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import ConfigDict, Field, StringConstraints, model_validator

from evenkeel.domain.capacity.instance_types import InstanceType
from evenkeel.domain.capacity.pools import Reservation
from evenkeel.domain.nodes import RESERVATION_LABELS
from evenkeel.domain.policy_section import Section
from evenkeel.domain.values import Word


class ReservedPool(Reservation):
    """A pool whose capacity is reserved until a fixed time: by a training plan or a capacity block."""

    model_config = ConfigDict(extra="forbid")

    cluster: Word
    """Kubernetes cluster."""
    pool: Word
    """Name of the instance group or NodePool."""

    @property
    def key(self) -> tuple[str, ...]:
        """Cluster and pool."""
        return (self.cluster, self.pool)

    def has_node(self, labels: Mapping[str, str]) -> bool:  # noqa: ARG002 - a Capacity Block reads them
        """Whether a node of the pool with these labels ends with the reservation."""
        return True

    @property
    def reservation(self) -> Reservation:
        """Start, end and notice of the reservation."""
        return Reservation(starts_at=self.starts_at, ends_at=self.ends_at, closing_seconds=self.closing_seconds)


class CapacityBlock(ReservedPool):
    """The nodes of a pool that were launched from one Capacity Block. Other nodes of the pool do not end with it."""

    reservation_id: str
    """Id of the reservation, in the labels of its nodes."""

    @property
    def key(self) -> tuple[str, ...]:
        """Cluster, pool and reservation."""
        return (self.cluster, self.pool, self.reservation_id)

    def has_node(self, labels: Mapping[str, str]) -> bool:
        """Whether a node of the pool with these labels was launched from the block."""
        return any(labels.get(label) == self.reservation_id for label in RESERVATION_LABELS)


InstanceTypeName = Annotated[str, StringConstraints(max_length=63, pattern=r"^(ml\.)?[a-z][a-z0-9-]*\.[a-z0-9-]+$")]
_MAX_DEVICES = 1024


class SiteInstanceType(Section):
    """An instance type, with the figures of `aws ec2 describe-instance-types`."""

    vcpu: int = Field(ge=1, le=100_000)
    """vCPUs of an instance."""
    memory_gib: float = Field(gt=0, le=1_000_000)
    """Memory of an instance in GiB."""
    gpus: int = Field(default=0, ge=0, le=_MAX_DEVICES)
    """NVIDIA GPUs of an instance."""
    neuron: int = Field(default=0, ge=0, le=_MAX_DEVICES)
    """Neuron devices of an instance."""
    efa: int = Field(default=0, ge=0, le=_MAX_DEVICES)
    """EFA interfaces of an instance."""
    architecture: Word = "amd64"
    """CPU architecture, as container images name it: `amd64` or `arm64`."""
    model: Word = ""
    """Model of its accelerators, in lower case, such as `h100`."""
    accelerator_memory_mib: int = Field(default=0, ge=0, le=100_000_000)
    """Memory of one accelerator in MiB."""

    @model_validator(mode="after")
    def _has_one_kind_of_accelerators(self) -> Self:
        if self.gpus and self.neuron:
            raise ValueError("state either gpus or neuron")
        has_fields = bool(self.model), bool(self.accelerator_memory_mib)
        if any(has_fields) and not (self.gpus or self.neuron):
            raise ValueError("model and acceleratorMemoryMib describe accelerators: state gpus or neuron")
        if self.architecture not in ("amd64", "arm64"):
            raise ValueError("architecture must be amd64 or arm64")
        return self

    @property
    def to_instance_type(self) -> InstanceType:
        """Return this type as an entry of the catalogue."""
        return InstanceType(**{name: getattr(self, name) for name in type(self).model_fields})
