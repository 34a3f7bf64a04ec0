"""Compatibility: whether a job could run on the nodes of another pool, and the differences."""

from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import Field

from evenkeel.domain.capacity.instance_types import InstanceTypes
from evenkeel.domain.submitted import Submitted
from evenkeel.domain.values import Line, StrictValue, Value, Word

ARCHITECTURES = ("amd64", "arm64")
"""CPU architectures, as container images name them."""


class PoolEnvironment(Value):
    """Processor, accelerator, network and storage of the nodes of a pool."""

    architecture: Word = "amd64"
    """Processor of the nodes: `amd64`, `arm64`."""
    accelerator: Word = ""
    """GPU or accelerator model, as its vendor names it: `a100`, `h100`; empty if unknown."""
    accelerator_memory_gib: float = 0
    """Memory of one accelerator; 0 if unknown."""
    fabric: Word = ""
    """Network between the nodes: `efa`, or empty."""
    storage: dict[Word, Line] = {}
    """Claim or mount → the storage behind it: a file system's id, a bucket.

    The name of a claim is not enough, because each cluster has its own claims.
    """


class Requirements(StrictValue):
    """Properties that every node of a job must have."""

    architectures: Annotated[
        tuple[str, ...],
        Submitted(
            max_length=41,
            max_items=len(ARCHITECTURES),
            unit="architectures",
            choices=ARCHITECTURES,
            advice=f"Choose from {' and '.join(ARCHITECTURES)}.",
        ),
    ] = ()
    """Architectures that the image is built for. Empty: unknown."""
    accelerators: Annotated[
        tuple[str, ...],
        Submitted(
            "gpuModels",
            max_length=41,
            max_items=20,
            unit="GPU models",
            pattern="[a-z0-9][a-z0-9._-]{0,39}",
            advice="Name a GPU model, for example h100: at most 40 letters, digits, dots, dashes and underscores.",
            is_lowered=True,
        ),
    ] = ()
    """GPU models that the job may run on. Empty: any."""
    accelerator_memory_gib: Annotated[float, Submitted("gpuMemoryGib", limits=(0, 1_000_000), unit="GiB")] = Field(
        0, ge=0, allow_inf_nan=False
    )
    """Minimum memory of each accelerator, in GiB. 0: any."""
    fabric: Annotated[
        str, Submitted(max_length=41, choices=("", "efa"), advice="Use efa, or leave the field empty.")
    ] = ""
    """Network between the nodes: `efa`, or empty for any."""


class EnvironmentNeeds(Requirements):
    """The environment that a job needs."""

    storage: dict[str, str] = {}
    """Claim → the storage behind it in the cluster where the job runs, or runs first."""


Storage = Mapping[str, Mapping[str, str]]
"""Cluster → claim → the storage behind it."""


def needs_of(requires: Requirements, claim: str, cluster: str, storage: Storage) -> EnvironmentNeeds:
    """Return the environment that a job needs.

    Args:
        requires: The requirements of the job's specification.
        claim: The claim with its checkpoints; empty if they are in S3, which is the same for all clusters.
        cluster: The cluster where it runs first.
        storage: The site's storage behind claims. A claim that is not listed differs from every other claim.
    """
    behind = {claim: storage.get(cluster, {}).get(claim) or f"a volume of {cluster} alone"} if claim else {}
    return EnvironmentNeeds(**{name: getattr(requires, name) for name in Requirements.model_fields}, storage=behind)


def differences(needs: EnvironmentNeeds, environment: PoolEnvironment) -> tuple[str, ...]:
    """Return why a job cannot run in an environment, one sentence for each reason; empty if it can.

    A needed but unknown property counts as a difference: a move to find out could lose the job.
    """
    return tuple(_differences(needs, environment))


def _differences(needs: EnvironmentNeeds, environment: PoolEnvironment) -> Iterator[str]:
    if needs.architectures and environment.architecture not in needs.architectures:
        architecture = environment.architecture or "an unknown architecture"
        yield f"The job's image is for {' and '.join(needs.architectures)}, but the nodes have {architecture}."
    if needs.accelerators and environment.accelerator not in needs.accelerators:
        model = environment.accelerator or "an unknown model"
        yield f"The job runs on {' or '.join(needs.accelerators)}, but the nodes have {model}."
    needed_gib, available_gib = needs.accelerator_memory_gib, environment.accelerator_memory_gib
    if needed_gib and not available_gib:
        yield (
            f"The job needs {needed_gib:g} GiB on each accelerator, "
            "but the memory of the nodes' accelerators is unknown."
        )
    elif needed_gib > available_gib:
        yield f"The job needs {needed_gib:g} GiB on each accelerator, but the nodes have {round(available_gib, 2):g}."
    if needs.fabric and environment.fabric != needs.fabric:
        network = environment.fabric or "an ordinary network"
        yield f"The job needs the network {needs.fabric}, but the nodes have {network}."
    for claim, behind in sorted(needs.storage.items()):
        storage_class = environment.storage.get(claim)
        if storage_class is None:
            yield f"No storage is known for claim {claim} in that cluster."
        elif storage_class != behind:
            yield f"Claim {claim} is {storage_class} in that cluster, but {behind} in the job's cluster."


def environment_on(
    instance_type: str, catalogue: InstanceTypes, storage: Mapping[str, str] | None = None
) -> PoolEnvironment:
    """Return the environment on nodes of an instance type; all unknown if the type is not in the catalogue.

    Args:
        instance_type: The instance type, with or without `ml.`.
        catalogue: The catalogue of instance types.
        storage: The storage behind the claims of its cluster.
    """
    hardware = catalogue.find(instance_type)
    if hardware is None:
        return PoolEnvironment(architecture="", storage=dict(storage or {}))
    return PoolEnvironment(
        architecture=hardware.architecture,
        accelerator=hardware.model,
        accelerator_memory_gib=hardware.accelerator_memory_gib,
        fabric="efa" if hardware.efa else "",
        storage=dict(storage or {}),
    )
