"""Instance types: the resources of one instance, and the share that pods can use."""

import functools
import importlib.resources
from collections.abc import Mapping

from pydantic import Field

from evenkeel.domain.values import Value

GPU = "nvidia.com/gpu"
NEURON = "aws.amazon.com/neurondevice"


def is_accelerator(resource: str) -> bool:
    """Whether a resource counts whole accelerators."""
    return resource in (GPU, NEURON)


EFA = "vpc.amazonaws.com/efa"
INSTANCE_TYPE_LABEL = "node.kubernetes.io/instance-type"
"""Kubernetes' label of the instance type of a node."""
MIG_PREFIX = "nvidia.com/"
HYPERPOD_PREFIX = "ml."
"""Prefix of SageMaker's names of instance types. EC2's name follows."""


class InstanceType(Value):
    """An instance type, with the whole capacity of an instance."""

    vcpu: int
    memory_gib: float
    gpus: int = 0
    neuron: int = 0
    efa: int = 0
    """EFA interfaces."""
    efa_varies: bool = False
    """Whether `efa` is only the maximum: sites attach fewer interfaces, and the node object has the count."""
    architecture: str = "amd64"
    """CPU architecture, as container images name it."""
    model: str = ""
    """Model of its accelerators, in lower case: `h100`, `trainium2`."""
    accelerator_memory_mib: int = Field(default=0, ge=0)
    """Memory of one accelerator, as DescribeInstanceTypes states it; 0 without accelerators.

    Vendors round it: an A10G of "24 GB" has 22,888 MiB.
    """
    mig: dict[str, int] = {}
    """MIG profile → most partitions of it on one GPU."""

    @property
    def accelerators(self) -> int:
        """GPUs or Neuron devices."""
        return self.gpus or self.neuron

    @property
    def accelerator_memory_gib(self) -> float:
        """Memory of one accelerator in GiB, which `requires.gpuMemoryGib` is compared with."""
        return self.accelerator_memory_mib / 1024

    @property
    def accelerator(self) -> str:
        """The Kubernetes resource of its accelerators; empty without accelerators."""
        return GPU if self.gpus else NEURON if self.neuron else ""


class InstanceTypes(Value):
    """The catalogue of instance types: the shipped one, or one made from EC2's DescribeInstanceTypes."""

    source: str
    types: Mapping[str, InstanceType]

    def with_types(self, types: Mapping[str, InstanceType]) -> "InstanceTypes":
        """Return a catalogue with further types. If both have a type, the further catalogue's entry wins."""
        ec2_names = {name.removeprefix(HYPERPOD_PREFIX) for name in types}
        shipped_types = {
            name: instance_type
            for name, instance_type in self.types.items()
            if name.removeprefix(HYPERPOD_PREFIX) not in ec2_names
        }
        return InstanceTypes(source=self.source, types={**shipped_types, **types})

    def find(self, name: str) -> InstanceType | None:
        """Return an instance type by its name, with or without `ml.`."""
        ec2_name = name.removeprefix(HYPERPOD_PREFIX)
        return self.types.get(f"{HYPERPOD_PREFIX}{ec2_name}") or self.types.get(ec2_name)


@functools.cache
def shipped_instance_types() -> InstanceTypes:
    """Return the catalogue that Evenkeel ships."""
    text = importlib.resources.files(__package__).joinpath("instance_types.json").read_text(encoding="utf-8")
    return InstanceTypes.model_validate_json(text)
