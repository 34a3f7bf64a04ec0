"""Whether a job could run the same elsewhere: asked before it is moved, and answered with what would differ."""

from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import ConfigDict, Field

from evenkeel.domain.capacity.instance_types import InstanceTypes
from evenkeel.domain.submitted import Submitted
from evenkeel.domain.values import Line, Value, Word

ARCHITECTURES = ("amd64", "arm64")
"""CPU architectures, as container images name them."""


class PoolEnvironment(Value):
    """What a job finds on a node of a pool."""

    architecture: Word = "amd64"
    accelerator: Word = ""
    """Its model, as its maker names it: `a100`, `h100`; empty where nobody says."""
    accelerator_memory_gib: float = 0
    """Of one accelerator; 0 where nobody says."""
    fabric: Word = ""
    """What joins its nodes: `efa`, or empty."""
    storage: dict[Word, Line] = {}
    """Claim or mount → what lies behind it: a file system's id, a bucket. A name alone says nothing: claims are per
    cluster."""


class Requirements(Value):
    """Properties that every node of a job must have."""

    model_config = ConfigDict(extra="forbid")

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
    """What a job rests on."""

    storage: dict[str, str] = {}
    """Claim → what lies behind it where the job runs, or is to run first."""


Storage = Mapping[str, Mapping[str, str]]
"""Cluster → claim → what lies behind it there."""


def needs_of(requires: Requirements, claim: str, cluster: str, storage: Storage) -> EnvironmentNeeds:
    """Return what a job rests on.

    Args:
        requires: What it says itself.
        claim: That holds its checkpoints; empty where they are in S3, which is the same from anywhere.
        cluster: Where it is to run first.
        storage: What lies behind claims, as the site says. A claim of which it says nothing is like no other.
    """
    behind = {claim: storage.get(cluster, {}).get(claim) or f"a volume of {cluster} alone"} if claim else {}
    return EnvironmentNeeds(**dict(requires), storage=behind)


def differences(needs: EnvironmentNeeds, place: PoolEnvironment) -> tuple[str, ...]:
    """Return why a job would not run the same there, one sentence each; nothing where it would.

    What is needed and not known of a place counts as a difference: to find out by moving is to lose the job.
    """
    return tuple(_differences(needs, place))


def _differences(needs: EnvironmentNeeds, place: PoolEnvironment) -> Iterator[str]:
    if needs.architectures and place.architecture not in needs.architectures:
        there = place.architecture or "of an architecture that nobody knows"
        yield f"Its image is for {' and '.join(needs.architectures)}, the nodes are {there}."
    if needs.accelerators and place.accelerator not in needs.accelerators:
        model = place.accelerator or "not known"
        yield f"It runs on {' or '.join(needs.accelerators)}; the accelerator there is {model}."
    least, found_gib = needs.accelerator_memory_gib, place.accelerator_memory_gib
    if least and not found_gib:
        yield f"It needs {least:g} GiB on each accelerator; nobody says what there is."
    elif least > found_gib:
        yield f"It needs {least:g} GiB on each accelerator; there are {found_gib:g}."
    if needs.fabric and place.fabric != needs.fabric:
        yield f"Its nodes talk over {needs.fabric}; there it is {place.fabric or 'an ordinary network'}."
    for claim, behind in sorted(needs.storage.items()):
        found = place.storage.get(claim)
        if found is None:
            yield f"Nothing is mounted there as {claim}."
        elif found != behind:
            yield f"{claim} is {found} there and {behind} here: the same name, another volume."


def environment_on(
    instance_type: str, catalogue: InstanceTypes, storage: Mapping[str, str] | None = None
) -> PoolEnvironment:
    """Return what a job finds on a machine of a type; of a type that is not listed nothing is known.

    Args:
        instance_type: With or without `ml.`.
        catalogue: What types have.
        storage: What lies behind claims in its cluster.
    """
    found = catalogue.of(instance_type)
    if found is None:
        return PoolEnvironment(architecture="", storage=dict(storage or {}))
    return PoolEnvironment(
        architecture=found.architecture,
        accelerator=found.model,
        accelerator_memory_gib=found.accelerator_memory_gib,
        fabric="efa" if found.efa else "",
        storage=dict(storage or {}),
    )
