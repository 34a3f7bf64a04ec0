"""Job types: what a submission leaves out is filled from the template of its type, as the site's policy has it."""

from collections.abc import Iterator
from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator

from evenkeel.domain.capacity.pool_choices import PoolChoice, Toleration
from evenkeel.domain.capacity.pools import Market
from evenkeel.domain.jobs.spec import JobSpec
from evenkeel.domain.jobs.validation import SpecError
from evenkeel.domain.names import unknown_name
from evenkeel.domain.values import Image, ProgramText, Value, Word

_MOST = 20
"""Pools and tolerations of one type: each job of it carries all of them."""


class JobType(Value):
    """The template of one kind of job. What it does not say either stays as a submission without a type has it."""

    model_config = ConfigDict(extra="forbid")

    priority_class: Word = ""
    image: Image = ""
    command: tuple[ProgramText, ...] = ()
    args: tuple[ProgramText, ...] = ()
    env: dict[Word, ProgramText] = {}
    nodes: int | None = Field(None, ge=1)
    accelerators_per_node: int | None = Field(None, ge=0)
    instance_types: tuple[Word, ...] = ()
    max_restarts: int | None = Field(None, ge=0)
    grace_seconds: int | None = Field(None, ge=0)
    pools: Annotated[tuple[Word, ...], Field(max_length=_MOST)] = ()
    """Where its jobs may run, in this order; empty = anywhere."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=_MOST)] = ()
    """Taints of the site's own that its pods put up with. A submission cannot name any."""


class PoolAlias(Value):
    """What one name of a pool stands for, besides the instance group or NodePool of just this name."""

    model_config = ConfigDict(extra="forbid")

    labels: dict[Word, Word] = {}
    """All machines that bear them."""
    market: Market | None = None
    """How its nodes are had: pools to rent are meant by this while they have no machines."""


class JobTypes(Value):
    """The job types of a site; none as shipped."""

    model_config = ConfigDict(extra="forbid")

    default: Word = ""
    """The type of a job that names none; empty = it has none then."""
    types: dict[Word, JobType] = {}
    pools: dict[Word, PoolAlias] = {}

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.default and self.default not in self.types:
            raise ValueError(f"default: no job type is named {self.default!r}")
        for name, each in self.types.items():
            if len(set(each.pools)) < len(each.pools):
                raise ValueError(f"types.{name}.pools: name each pool only once")
        return self

    def choices_of(self, job_type: JobType) -> tuple[PoolChoice, ...]:
        """Return the pools of a type with what their names stand for."""
        named = ((name, self.pools.get(name, PoolAlias())) for name in job_type.pools)
        return tuple(PoolChoice(name=name, labels=each.labels, market=each.market) for name, each in named)


def check_type(spec: JobSpec, types: JobTypes) -> tuple[SpecError, ...]:
    """Return what is wrong with the type that a job names; nothing where it is known, or none is named."""
    return tuple(_faults(spec, types))


def _faults(spec: JobSpec, types: JobTypes) -> Iterator[SpecError]:
    if spec.job_type and spec.job_type not in types.types:
        shown = spec.job_type[:63].encode("unicode_escape").decode()
        hint = "" if types.types else " The site's policy defines no job types."
        yield SpecError("jobType", unknown_name("job type", shown, types.types) + hint)


_DEFAULTS = tuple(name for name in JobType.model_fields if name not in ("env", "pools", "tolerations"))
"""Fields of a type that a job takes unchanged if it omits them."""


def with_defaults(spec: JobSpec, types: JobTypes) -> JobSpec:
    """Return a job with what it leaves out as its type has it; what it says itself stays.

    Environment is joined name by name. Arguments belong to a command: those of the type do not follow another one.

    Args:
        spec: As it was submitted: only what is set in it counts as said.
        types: Those of the policy in force.
    """
    name = spec.job_type or types.default
    found = types.types.get(name)
    if found is None:
        return spec
    given_fields = spec.model_fields_set
    given = {name: getattr(found, name) for name in _DEFAULTS if name not in given_fields}
    if "command" in given_fields:
        given.pop("args", None)
    fills = {name: value for name, value in given.items() if value not in (None, "", ())}
    return spec.but(
        **fills,
        env={**found.env, **spec.env},
        job_type=name,
        pools=types.choices_of(found),
        tolerations=found.tolerations,
    )
