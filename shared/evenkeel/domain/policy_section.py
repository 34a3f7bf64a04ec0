"""Building blocks of the policy: number types, the base class of its sections, and modes."""

from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field

from evenkeel.domain.values import StrictValue, Word

LONGEST_SECONDS = 31_536_000
"""A year, the longest duration in the policy. A workflow cannot run longer."""


LARGEST = 10**12
"""Upper limit of all numbers without a limit of their own. Sums and products of such numbers stay exact."""


def _no_system_class(name: str) -> str:
    if name.startswith("system-"):
        raise ValueError("classes that begin with system- belong to Kubernetes")
    return name


Seconds = Annotated[int, Field(ge=0, le=LONGEST_SECONDS)]
"""A pause or a margin; it may be 0."""


Deadline = Annotated[int, Field(ge=1, le=LONGEST_SECONDS)]
"""A time limit; at least 1, because a limit of 0 would be over at once."""


Count = Annotated[int, Field(ge=0, le=1_000_000)]


Tries = Annotated[int, Field(ge=0, le=1000)]


Usd = Annotated[float, Field(ge=0, le=10_000)]


Micros = Annotated[int, Field(ge=0, le=10**15)]


Scale = Annotated[float, Field(ge=0, le=100)]


PriorityClass = Annotated[
    str, Field(max_length=63, pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"), AfterValidator(_no_system_class)
]


class Section(StrictValue):
    """A part of the policy. It rejects unknown fields, because a misspelled limit would not be a limit.

    Every number has a lower and an upper limit. A value beyond them is a mistake that could stop scheduling or overflow
    a date.
    """

    model_config = ConfigDict(allow_inf_nan=False)


class Mode(StrEnum):
    """How far automation may go."""

    OBSERVE = "observe"
    """Decide and record; change nothing."""
    RECOMMEND = "recommend"
    """Decide, record and wait for approval."""
    ACT = "act"
    """Decide, record and act."""


class ModeRule(Section):
    """A mode for some faults in some pools. It can only be more cautious than the stack's own mode."""

    fault_class: Word = ""
    """Class in the fault catalogue; empty for all classes."""
    pool: Word = ""
    """Empty for all pools."""
    mode: Mode
    """The mode for them."""
