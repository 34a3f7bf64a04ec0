"""The claims, Secrets, ids, scratch folders and huge pages that the pods of a team may use beyond the defaults. Pure.

The defaults are the checkpoint claim, user and group 1000, and the memory-backed /dev/shm. The service checks a job
when it is submitted. A later change affects only later jobs.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from evenkeel.domain.policy_section import Section
from evenkeel.domain.values import Word

MAX_ALLOWED = 200
"""Maximum number of claims, and of Secrets, that a list of rules names."""
MAX_RANGES = 20
MAX_ID = 2**31 - 1
"""Maximum user or group id, as in Kubernetes."""
DEFAULT_ID = 1000
"""User, group and fsGroup of the pods, if the job names none."""
MAX_SCRATCH_GIB = 65_536
MAX_HUGE_PAGES_MIB = 32 * 1024 * 1024
OBJECT_NAME = r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?"
"""Names that Kubernetes accepts for claims and Secrets, of at most 253 characters."""


def _check_distinct(names: Sequence[str]) -> Sequence[str]:
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ValueError(f"{name} is listed twice")
    return names


_ObjectName = Annotated[Word, Field(max_length=253, pattern=f"^{OBJECT_NAME}$")]
_Names = Annotated[tuple[_ObjectName, ...], Field(max_length=MAX_ALLOWED), AfterValidator(_check_distinct)]


class ClaimMode(StrEnum):
    """How jobs may mount a claim."""

    READ_ONLY = "read-only"
    READ_WRITE = "read-write"


class AccessMode(StrEnum):
    """The access mode of a PersistentVolumeClaim, as Kubernetes names it."""

    UNKNOWN = ""
    READ_WRITE_ONCE = "ReadWriteOnce"
    READ_WRITE_ONCE_POD = "ReadWriteOncePod"
    READ_ONLY_MANY = "ReadOnlyMany"
    READ_WRITE_MANY = "ReadWriteMany"


class AllowedClaim(Section):
    """A PersistentVolumeClaim that jobs may mount."""

    name: _ObjectName
    """Name of the claim, in the namespace of the team."""
    max_mode: ClaimMode = ClaimMode.READ_ONLY
    """`read-only`, or `read-write` for jobs that set `readOnly` to false, or keep checkpoints there."""
    access_mode: AccessMode = AccessMode.UNKNOWN
    """Access mode of the claim. A job with several nodes may not use `ReadWriteOnce`. Empty: unknown, not checked."""


class IdRange(Section):
    """A range of user or group ids."""

    min: int = Field(ge=1, le=MAX_ID)
    """The lowest allowed id."""
    max: int = Field(ge=1, le=MAX_ID)
    """The highest allowed id."""

    @model_validator(mode="after")
    def _min_is_not_above_max(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"the minimum {self.min} is above the maximum {self.max}")
        return self

    def __contains__(self, number: int) -> bool:
        return self.min <= number <= self.max

    @property
    def text(self) -> str:
        """The range as text: `1000`, `2000-2999`."""
        return str(self.min) if self.min == self.max else f"{self.min}-{self.max}"


class PodRules(Section):
    """The parts of a pod that jobs may use beyond the defaults. By default none."""

    claims: Annotated[tuple[AllowedClaim, ...], Field(max_length=MAX_ALLOWED)] = ()
    """Claims that jobs may mount. If any is listed, checkpoints need a listed claim with `read-write` too."""
    image_pull_secrets: _Names = ()
    """Secrets with the credentials of registries."""
    env_secrets: _Names = ()
    """Secrets that `secretEnv` may name; empty allows every Secret of the namespace."""
    users: Annotated[tuple[IdRange, ...], Field(max_length=MAX_RANGES)] = ()
    """User ids, besides 1000. Root is never allowed."""
    groups: Annotated[tuple[IdRange, ...], Field(max_length=MAX_RANGES)] = ()
    """Group ids of the processes, besides 1000."""
    fs_groups: Annotated[tuple[IdRange, ...], Field(max_length=MAX_RANGES)] = ()
    """Group ids that may own mounted volumes, besides 1000."""
    max_scratch_gib: int = Field(0, ge=0, le=MAX_SCRATCH_GIB)
    """Maximum size of all scratch folders of one pod, in GiB."""
    max_huge_pages_mib: int = Field(0, ge=0, le=MAX_HUGE_PAGES_MIB)
    """Maximum size of the huge pages that one pod requests, in MiB, in addition to EFA's huge pages."""

    @model_validator(mode="after")
    def _claims_are_distinct(self) -> Self:
        _check_distinct([claim.name for claim in self.claims])
        return self


NOTHING_ALLOWED = PodRules()
