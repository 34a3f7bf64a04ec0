"""Job types: templates of the site policy that set the fields a submission omits."""

from collections.abc import Iterator
from typing import Annotated, Self

from pydantic import Field, model_validator

from evenkeel.domain.capacity.pool_choices import PoolChoice, Toleration
from evenkeel.domain.capacity.pools import Market
from evenkeel.domain.jobs.pod_rules import MAX_ID
from evenkeel.domain.jobs.spec import MAX_PULL_SECRETS, JobSpec
from evenkeel.domain.jobs.validation import SpecError, mount_errors
from evenkeel.domain.jobs.volumes import MAX_SCRATCH_FOLDERS, MAX_VOLUMES, ScratchFolder, Volume
from evenkeel.domain.jobs.workload_kind import WorkloadKind
from evenkeel.domain.name_suggestions import unknown_name
from evenkeel.domain.values import Image, ProgramText, StrictValue, Word

_MAX_ENTRIES = 20
"""Maximum number of pools, and of tolerations, of a type. Each job of the type stores all of them."""


class JobType(StrictValue):
    """The template of a job type. A field that it omits has the default of a submission without a type."""

    kind: WorkloadKind = WorkloadKind.JOB
    priority_class: Word = ""
    image: Image = ""
    command: tuple[ProgramText, ...] = ()
    args: tuple[ProgramText, ...] = ()
    env: dict[Word, ProgramText] = {}
    nodes: int | None = Field(None, ge=1)
    accelerators_per_node: int | None = Field(None, ge=0)
    cpu_per_node: int | None = Field(None, ge=1)
    """vCPU that each pod requests."""
    memory_gib_per_node: int | None = Field(None, ge=1)
    """Memory that each pod requests, in GiB."""
    image_pull_secrets: Annotated[tuple[Word, ...], Field(max_length=MAX_PULL_SECRETS)] = ()
    volumes: Annotated[tuple[Volume, ...], Field(max_length=MAX_VOLUMES)] = ()
    """Claims that its jobs mount. The team must allow each claim."""
    scratch: Annotated[tuple[ScratchFolder, ...], Field(max_length=MAX_SCRATCH_FOLDERS)] = ()
    run_as_user: int | None = Field(None, ge=1, le=MAX_ID)
    run_as_group: int | None = Field(None, ge=1, le=MAX_ID)
    fs_group: int | None = Field(None, ge=1, le=MAX_ID)
    shared_memory_gib: int | None = Field(None, ge=1)
    huge_pages_mib_per_node: int | None = Field(None, ge=2)
    checkpoint_claim: Word = ""
    """Claim of the checkpoints, for jobs with a file:///folder URI that name none."""
    instance_types: tuple[Word, ...] = ()
    max_restarts: int | None = Field(None, ge=0)
    grace_seconds: int | None = Field(None, ge=0)
    pools: Annotated[tuple[Word, ...], Field(max_length=_MAX_ENTRIES)] = ()
    """Pools of its jobs, in order of preference; empty allows all pools."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=_MAX_ENTRIES)] = ()
    """Tolerations of the site's taints. A submission cannot name any."""


class PoolAlias(StrictValue):
    """The nodes that a pool name means, besides the instance group or NodePool with this name."""

    labels: dict[Word, Word] = {}
    """All nodes with these labels."""
    market: Market | None = None
    """The market of the pool. It selects rented pools that have no nodes yet."""


class JobTypes(StrictValue):
    """The job types of a site; by default none."""

    default: Word = ""
    """The type of a job that names none; empty gives it no type."""
    types: dict[Word, JobType] = {}
    """The template of each type, by name."""
    pools: dict[Word, PoolAlias] = {}
    """Pool name in a template → the nodes that it means."""

    @model_validator(mode="after")
    def _names_known_types_and_distinct_pools(self) -> Self:
        if self.default and self.default not in self.types:
            raise ValueError(f"default: no job type is named {self.default!r}")
        for name, job_type in self.types.items():
            if len(set(job_type.pools)) < len(job_type.pools):
                raise ValueError(f"types.{name}.pools: name each pool only once")
            for error in mount_errors(job_type.volumes, job_type.scratch):
                raise ValueError(f"types.{name}.{error.field}: {error.message}")
        return self

    def choices_of(self, job_type: JobType) -> tuple[PoolChoice, ...]:
        """Return the pool choices of a type, with the labels and markets of its pool names."""
        aliases = ((name, self.pools.get(name, PoolAlias())) for name in job_type.pools)
        return tuple(PoolChoice(name=name, labels=alias.labels, market=alias.market) for name, alias in aliases)


def check_type(spec: JobSpec, types: JobTypes) -> tuple[SpecError, ...]:
    """Return the errors of the job type that a job names; empty if it is known or omitted."""
    return tuple(_job_type_errors(spec, types))


def _job_type_errors(spec: JobSpec, types: JobTypes) -> Iterator[SpecError]:
    if spec.job_type and spec.job_type not in types.types:
        shown = spec.job_type[:63].encode("unicode_escape").decode()
        hint = "" if types.types else " The site's policy defines no job types."
        yield SpecError("jobType", unknown_name("job type", shown, types.types) + hint)


_MERGED_FIELDS = ("env", "pools", "tolerations", "checkpoint_claim")
_COPIED_FIELDS = tuple(name for name in JobType.model_fields if name not in _MERGED_FIELDS)
"""Fields of a type that a job takes unchanged if it omits them."""


def with_defaults(spec: JobSpec, types: JobTypes) -> JobSpec:
    """Return a job with the omitted fields set by its type.

    Environments are merged by name. Arguments belong to a command: the type's arguments are not used with another
    command.

    Args:
        spec: The job as submitted. Only fields that the submission sets count as given.
        types: The job types of the policy in force.
    """
    name = spec.job_type or types.default
    job_type = types.types.get(name)
    if job_type is None:
        return spec
    given_fields = spec.model_fields_set
    defaults = {name: getattr(job_type, name) for name in _COPIED_FIELDS if name not in given_fields}
    if "command" in given_fields:
        defaults.pop("args", None)
    if spec.keeps_checkpoints_in_cluster and not spec.checkpoint_claim:
        defaults["checkpoint_claim"] = job_type.checkpoint_claim
    fills = {name: value for name, value in defaults.items() if value not in (None, "", ())}
    return spec.replace(
        **fills,
        env={**job_type.env, **spec.env},
        job_type=name,
        pools=types.choices_of(job_type),
        tolerations=job_type.tolerations,
    )
