"""What one instance of a type holds, and how much of it a pod can have."""

import functools
import importlib.resources
from collections.abc import Mapping
from fractions import Fraction

from evenkeel.domain.values import Value

GPU = "nvidia.com/gpu"
NEURON = "aws.amazon.com/neurondevice"
EFA = "vpc.amazonaws.com/efa"
MIG_PREFIX = "nvidia.com/"


class InstanceType(Value):
    """One instance, raw."""

    vcpu: int
    memory_gib: float
    gpus: int = 0
    neuron: int = 0
    efa: int = 0
    """EFA interfaces."""
    efa_varies: bool = False
    """Whether `efa` is only the most that a node can have: sites attach fewer, and the node says how many."""
    architecture: str = "amd64"
    """As images name it."""
    model: str = ""
    """Of its accelerators, in lower case: `h100`, `trainium2`."""
    accelerator_memory_gib: float = 0
    """Of one accelerator, as its maker names it; 0 where there is none."""
    mig: dict[str, int] = {}
    """MIG profile → most of them on one GPU."""

    @property
    def accelerators(self) -> int:
        """GPUs or Neuron devices."""
        return self.gpus or self.neuron

    @property
    def accelerator(self) -> str:
        """The resource that they are asked for as; empty where there are none."""
        return GPU if self.gpus else NEURON if self.neuron else ""

    @property
    def allocatable_vcpu(self) -> Fraction:
        """Cores that pods can have, as HyperPod's command line reckons: 0.1 goes, and a falling part of each core."""
        cores = Fraction(self.vcpu)
        by_core = (Fraction(30, 100), Fraction(15, 100), Fraction(10, 100), Fraction(10, 100))
        reserved = Fraction(1, 10) + sum(by_core[: self.vcpu], Fraction(0))
        return cores - reserved - max(Fraction(0), cores - len(by_core)) * Fraction(6, 100)

    @property
    def allocatable_memory_gib(self) -> Fraction:
        """Memory that pods can have, reckoned likewise: half a GiB goes, and a falling part of each band."""
        left = Fraction(str(self.memory_gib))
        free = left - Fraction(1, 2)
        for band, percent in ((4, 30), (4, 25), (8, 20), (112, 17), (None, 7)):
            here = left if band is None else min(left, Fraction(band))
            free -= here * Fraction(percent, 100)
            left -= here
        return free


class InstanceTypes(Value):
    """The catalogue: the shipped one, or one made anew from EC2's DescribeInstanceTypes."""

    source: str
    types: Mapping[str, InstanceType]

    def of(self, name: str) -> InstanceType | None:
        """Return a type, by its name with or without `ml.`."""
        return self.types.get(name) or self.types.get(f"ml.{name}")


@functools.cache
def shipped() -> InstanceTypes:
    """Return the catalogue that comes with Evenkeel."""
    text = importlib.resources.files(__package__).joinpath("instance_types.json").read_text(encoding="utf-8")
    return InstanceTypes.model_validate_json(text)
